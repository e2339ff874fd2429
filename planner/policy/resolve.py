"""Resolve patterns on a graph: the ops they name, those that cannot obey and why, and what each pattern does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from planner.analysis.candidates import touches_updated
from planner.analysis.evaluator import evaluator_of
from planner.errors import PlannerError, ScheduleError
from planner.graph import Graph, Op
from planner.memory import MemoryModel
from planner.patterns import PRESETS, matching
from planner.policy.apply import AppliedProgram
from planner.policy.policy import Policy
from planner.policy.presets import full, selective
from planner.report import PatternReport
from planner.simulator import simulate

_SHOWN: Final = 3  # exceptions listed in a report


def policy_of(graph: Graph, memory: MemoryModel, save: Sequence[str], recompute: Sequence[str]) -> Policy | None:
    """The policy on a graph; None without patterns.

    A `save` pattern wins over a `recompute` pattern, and both win over a preset. The report of a pattern lists the ops
    that cannot obey, and why; a pattern that no op can obey is an error.

    Args:
        save, recompute: as `rule_list` returns them.
    Raises:
        PlannerError: a pattern that names no op, or none that can obey.
    """
    return _Resolution(graph, memory, save, recompute).policy() if save or recompute else None


class _Resolution:
    """Patterns while they are resolved."""

    def __init__(self, graph: Graph, memory: MemoryModel, save: Sequence[str], recompute: Sequence[str]) -> None:
        self.graph, self.memory, self.save, self.recompute = graph, memory, save, recompute
        self.evaluator = evaluator_of(graph, memory)
        self.applied = AppliedProgram(self.evaluator)
        preset = next((pattern for pattern in recompute if pattern in PRESETS), None)
        named = {pattern: matching(graph, pattern, option="recompute") for pattern in recompute if pattern != preset}
        self.saves = {pattern: matching(graph, pattern, option="save") for pattern in save}
        self.saved_by = {name: pattern for pattern, names in reversed(self.saves.items()) for name in names}
        self.wished = {pattern: self._forward_of(pattern, names) for pattern, names in named.items()}
        explicit = {name for names in self.wished.values() for name in names}
        if preset is not None:
            self.wished[preset] = self._preset(preset, explicit)
        if preset == "none":
            rest = (op.name for op in graph.ops if not op.resident and op.name not in explicit)
            self.saved_by.update((name, "none") for name in rest if name not in self.saved_by)
        self.reasons: dict[str, str] = {}

    def _forward_of(self, pattern: str, names: tuple[str, ...]) -> tuple[str, ...]:
        if not self.applied.forward:
            why = "needs to know where the backward pass begins"
            raise PlannerError(f"recompute: {pattern!r} {why}; give its ops phase='backward'")
        found = tuple(name for name in names if name in self.applied.forward)
        if not found:
            raise PlannerError(f"recompute: {pattern!r} names no op of the forward pass; {names[0]!r} is of another")
        return found

    def _preset(self, preset: str, explicit: set[str]) -> tuple[str, ...]:
        if preset == "none":
            return ()
        if not self.applied.forward:
            raise PlannerError(f"recompute: preset {preset!r} needs a graph with a backward pass")
        found = selective(self.graph) if preset == "selective" else full(self.evaluator)
        why_not, op_named = self._unable(), self.graph.op_named
        return tuple(name for name in found if name in self.applied.forward and why_not(op_named[name]) is None)

    def policy(self) -> Policy:
        """The policy, with a report of each pattern."""
        rerun = self._settled(name for names in self.wished.values() for name in names)
        reasons = dict(self.reasons)
        reports, named = [], [frozenset(names) for names in self.saves.values()]
        for pattern, names in self.saves.items():
            reports.append(PatternReport("save", pattern, len(names), nbytes=self._read_bytes(names)))
        for pattern in self.recompute:
            if pattern == "none":
                once = tuple(name for name, why in self.saved_by.items() if why == "none")
                reports.append(PatternReport("recompute", pattern, len(once), nbytes=self._read_bytes(once)))
                named.append(frozenset(once))
                continue
            names = self.wished[pattern]
            unable = [(name, reasons[name]) for name in names if name not in rerun]
            if len(unable) == len(names):
                why = f"{unable[0][0]!r}: {unable[0][1]}" if unable else "nothing that can run again is left"
                raise PlannerError(f"recompute: {pattern!r} cannot be kept for any op ({why}); leave it out")
            named.append(self._settled(name for name in names if name in rerun))
            reports.append(self._recomputing(pattern, named[-1], unable))
        return Policy(
            self.graph,
            self.memory,
            save=self.save,
            recompute=self.recompute,
            saved=frozenset(self.saved_by),
            rerun=rerun,
            rulings=tuple(reports),
            named=tuple(named),
        )

    def _settled(self, names: Iterable[str]) -> frozenset[str]:
        """Those of some ops that can obey, and the views of what they make; `reasons` says why the others cannot."""
        why_not = self._unable()
        self.reasons = {}
        rerun: set[str] = set()
        for name in names:
            why = why_not(self.graph.op_named[name])
            if why is None:
                rerun.add(name)
            else:
                self.reasons[name] = why
        while True:
            self._with_views(rerun, why_not)
            sequence = self.applied.obeyed(self.evaluator.keep_all, frozenset(rerun))
            if self.evaluator.evaluate(sequence) is not None:
                return frozenset(rerun)
            try:
                simulate(self.graph, self.evaluator.schedule(sequence), memory=self.memory)
                raise AssertionError("the judge and the kernels disagree")
            except ScheduleError as error:
                if error.op not in rerun:
                    raise
                rerun.discard(error.op)
                self.reasons[error.op] = "what it reads is overwritten before the backward pass needs it"

    def _unable(self) -> Callable[[Op], str | None]:
        """A function that says why an op cannot run again, or None if it can."""
        arrays, rows = self.evaluator.encoded.arrays, self.evaluator.encoded.op_index
        stuck = touches_updated(arrays)

        def why(op: Op) -> str | None:
            if op.name in self.saved_by:
                return f"saved by {self.saved_by[op.name]!r}"
            if not op.recomputable:
                return "may run only once"
            if not op.outputs:
                return "makes no value"
            if stuck[rows[op.name]]:
                return "reads or makes a value that is updated in place"
            return None

        return why

    def _with_views(self, rerun: set[str], why_not: Callable[[Op], str | None]) -> None:
        """Add forward views of recomputed values; a view that is wanted later and cannot run again keeps its base."""
        graph, forward = self.graph, self.applied.forward
        wanted = {value for op in graph.ops if op.name not in forward for value in op.reads}
        views = [op for op in graph.ops if op.view and op.name in forward]
        makers: dict[str, set[str]] = {}
        for op in graph.ops if views else ():
            for tensor in op.outputs:
                makers.setdefault(graph.storage_root[tensor.name], set()).add(op.name)
        changed = True
        while changed:
            changed = False
            for op in views:
                bases = set().union(*(makers[graph.storage_root[op.reads[i]]] for i, _, _ in op.view)) & rerun
                if op.name in rerun or not any(graph.producer[op.reads[i]].name in bases for i, _, _ in op.view):
                    continue
                why = self.reasons.get(op.name) or why_not(op)
                if why is None:
                    rerun.add(op.name)
                    changed = True
                elif any(t.output or t.name in wanted for t in op.outputs):
                    rerun -= bases
                    self.reasons.update((base, f"its bytes are held by its view {op.name!r}: {why}") for base in bases)
                    self.reasons[op.name] = why
                    changed = True

    def _recomputing(self, pattern: str, own: frozenset[str], unable: list[tuple[str, str]]) -> PatternReport:
        """What the pattern does by itself, in program order."""
        must_rerun = self.applied.must_rerun(own)
        alone = self.evaluator.evaluate(self.applied.obeyed(self.evaluator.keep_all, own))
        kept = self.evaluator.evaluate(self.evaluator.keep_all)
        assert alone is not None
        assert kept is not None
        extra = math.fsum(self.graph.op_named[name].cost for name in must_rerun)
        return PatternReport(
            "recompute",
            pattern,
            len(own),
            run_again=len(must_rerun),
            nbytes=self._read_bytes(own),
            overhead=extra / kept[1] if kept[1] else 0.0,
            peak_change_bytes=alone[0] - kept[0],
            exceptions=tuple(unable[:_SHOWN]),
            excepted=len(unable),
        )

    def _read_bytes(self, names: Iterable[str]) -> int:
        """Bytes of these ops' storages that something outside the forward part reads."""
        graph, forward = self.graph, self.applied.forward
        makers = set(names) & forward
        late = [op for op in graph.ops if forward and op.name not in forward]
        roots = {graph.storage_root[value] for op in late for value in op.reads}
        kept = (graph.tensors[root] for root in roots if graph.producer[root].name in makers)
        return sum(self.memory.round_up(tensor.nbytes) for tensor in kept)
