"""Which modules to run again whole: what `torch.utils.checkpoint` can do, and no more.

Such a module keeps its inputs alone. Where the backward pass first needs a value from inside it, the module runs again,
once, up to the last such value. No other plan than a choice of modules, none inside another, is possible there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Final, NamedTuple, Optional, final

from planner.errors import PlannerError, ScheduleError
from planner.graph import Graph, Op
from planner.memory import MemoryModel
from planner.schedule import Schedule, canonical
from planner.simulator import simulate
from planner.units import exactly

#: Ops replayed at most by one search: a choice of a thousand ops costs a thousand.
_MOST_OPS: Final = 1_000_000


@final
@dataclass(frozen=True)
class WholeModules:
    """A choice of modules, by their paths in the order that they run, and what it takes by the rules of the planner."""

    modules: tuple[str, ...]
    peak_bytes: int
    cost: float


def whole_modules(
    graph: Graph, budget: int | None, *, memory: MemoryModel = MemoryModel(), among: Iterable[str] | None = None
) -> WholeModules:
    """The cheapest choice found whose peak is within a budget; without a budget, the one of least peak.

    The search begins from the modules of one kind (`blocks.*`), and then adds, removes and exchanges modules, or takes
    a module for those inside it, as long as that helps.

    Args:
        budget: in bytes, reserve included.
        among: paths that may be chosen; None: every module that has an op of its own.
    Raises:
        PlannerError: no choice fits; names the least that was reached.

    >>> from planner.graph import Graph, Op, Tensor
    >>> def op(name, reads, **facts):
    ...     return Op(name, outputs=(Tensor(name, 1),), reads=reads, **facts)
    >>> ops = [op(f"f{k}", (f"f{k - 1}",)[: k], module=f"m{k // 3}", phase="forward") for k in range(9)]
    >>> ops += [op(f"b{k}", (f"f{k}", f"b{k + 1}")[: 9 - k], phase="backward") for k in reversed(range(9))]
    >>> found = whole_modules(Graph(ops), None)
    >>> found.modules, found.peak_bytes, found.cost
    (('m0', 'm1'), 6, 22.0)
    """
    found = _Search(graph, memory, among).best(budget)
    if budget is not None and memory.needed_bytes(found.peak_bytes) > budget:
        least = exactly(memory.needed_bytes(found.peak_bytes))
        raise PlannerError(
            f"no choice of modules to run again whole was found within {exactly(budget)}: the least takes {least};"
            f" run the plan itself (planner.torch.apply), or raise the budget"
        )
    return found


class _Tried(NamedTuple):
    peak_bytes: int
    cost: float


class _Search:
    def __init__(self, graph: Graph, memory: MemoryModel, among: Iterable[str] | None) -> None:
        self.graph, self.memory = graph, memory
        self.forward = [op for op in graph.ops if op.phase == "forward" and not op.resident]
        self.rest = [op for op in graph.ops if op.phase != "forward" and not op.resident]
        allowed = None if among is None else frozenset(among)
        own = {op.module for op in self.forward if op.module}
        used = {value for op in graph.ops if op.outputs for value in op.reads}
        once = [op for op in self.forward if not _runs_again(op) and any(tensor.name in used for tensor in op.outputs)]
        fixed = {path for op in once for path in _paths(op)}  # what counts for a buffer alone is read by no op
        paths = dict.fromkeys(path for op in self.forward if op.cost for path in _paths(op))
        self.paths = [path for path in paths if path not in fixed and path in (own if allowed is None else allowed)]
        self.tried: dict[frozenset[str], _Tried] = {}
        self.left = _MOST_OPS

    def best(self, budget: int | None) -> WholeModules:
        """The best of what descents from each kind of modules meet, from the best kind first."""
        kinds: dict[str, set[str]] = {}
        for path in self.paths:
            kinds.setdefault(re.sub(r"\d+", "*", path), set()).add(path)
        starts = [frozenset[str](), *map(frozenset, kinds.values())]
        ends = [self._descent(start, budget) for start in sorted(starts, key=lambda start: self._rank(start, budget))]
        chosen = min(ends, key=lambda choice: self._rank(choice, budget))
        peak_bytes, cost = self._try(chosen)
        return WholeModules(tuple(path for path in self.paths if path in chosen), peak_bytes, cost)

    def _descent(self, chosen: frozenset[str], budget: int | None) -> frozenset[str]:
        while (better := self._better(chosen, budget)) is not None:
            chosen = better
        return chosen

    def _better(self, chosen: frozenset[str], budget: int | None) -> frozenset[str] | None:
        """The best neighbour, if it is better; where none is, the best after one was left out."""
        rank = self._rank(chosen, budget)
        near = dict.fromkeys(self._near(chosen))
        fewer = [other for other in near if other < chosen]
        for others in (near, dict.fromkeys(other for via in fewer for other in self._near(via))):
            best = min(others, key=lambda other: self._rank(other, budget), default=chosen)
            if self._rank(best, budget) < rank:
                return best
        return None

    def _near(self, chosen: frozenset[str]) -> Iterator[frozenset[str]]:
        for path in self.paths:
            if path in chosen:
                yield chosen - {path}
                inside = [other for other in self.paths if _parent(other, self.paths) == path]
                if inside:
                    yield chosen - {path} | set(inside)
            elif not any(_within(path, other) for other in chosen):
                yield frozenset(other for other in chosen if not _within(other, path)) | {path}

    def _rank(self, chosen: frozenset[str], budget: int | None) -> tuple[float, ...]:
        """Least first: what is above the budget, then cost, then peak; without a budget, peak and then cost."""
        peak_bytes, cost = self._try(chosen)
        if budget is None:
            return peak_bytes, cost
        return max(0, self.memory.needed_bytes(peak_bytes) - budget), cost, peak_bytes

    def _try(self, chosen: frozenset[str]) -> _Tried:
        found = self.tried.get(chosen)
        if found is None:
            if self.left <= 0 and self.tried:
                return _Tried(2**62, float("inf"))
            try:
                schedule = self._schedule(chosen)
                self.left -= len(schedule.computes)
                trace = simulate(self.graph, schedule, memory=self.memory)
                found = _Tried(trace.peak_bytes, trace.cost)
            except ScheduleError:  # an op between has overwritten what the module read
                found = _Tried(2**62, float("inf"))
            self.tried[chosen] = found
        return found

    def _schedule(self, chosen: Set[str]) -> Schedule:
        """The program, and before the first backward op that needs a value from inside a chosen module, its ops."""
        segments = self._segments(chosen)
        inside = {op.name: segment for segment in segments for op in segment}
        again = {id(segment): self._again(segment, inside) for segment in segments}
        order = [op.name for op in self.forward]
        for op in self.rest:
            for value in op.reads:
                producer = self.graph.producer[value].name
                segment = inside.get(producer)
                if segment is not None and producer in again[id(segment)]:
                    order += again.pop(id(segment))
                    again[id(segment)] = []
            order.append(op.name)
        return canonical(self.graph, order)

    def _segments(self, chosen: Set[str]) -> list[list[Op]]:
        """The ops of each call of a chosen module."""
        found: list[list[Op]] = []
        current: Optional[str] = None
        for op in self.forward:
            if op.module is None and not op.cost:
                continue  # a buffer's write, a generator's state, a result: between two ops of one call
            path = next((path for path in _paths(op) if path in chosen), None)
            if path is not None and path == current:
                found[-1].append(op)
            elif path is not None:
                found.append([op])
            current = path
        return found

    def _again(self, segment: list[Op], inside: dict[str, list[Op]]) -> list[str]:
        """What runs again of a call: ops of which a value is not kept, up to the last that the backward pass reads."""
        own = {op.name for op in segment}
        kept = {value for op in self.forward if op.name not in own for value in op.reads}
        kept |= {value for op in self.graph.ops if op.phase != "forward" and op.op == "out" for value in op.reads}
        wanted = {value for op in self.rest for value in op.reads}
        names: list[str] = []
        for op in reversed(segment):
            made = {tensor.name for tensor in op.outputs}
            if (made & wanted) - kept and _runs_again(op):
                names.append(op.name)
                wanted.update(op.reads)
        return names[::-1]


def _runs_again(op: Op) -> bool:
    return op.recomputable and not op.updates


def _paths(op: Op) -> list[str]:
    """The module of an op, and all that it is in."""
    parts = op.module.split(".") if op.module else []
    return [".".join(parts[: k + 1]) for k in range(len(parts))]


def _within(path: str, outer: str) -> bool:
    return path == outer or path.startswith(f"{outer}.")


def _parent(path: str, paths: list[str]) -> str | None:
    return max((outer for outer in paths if outer != path and _within(path, outer)), key=len, default=None)
