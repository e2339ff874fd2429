"""Every number of an explanation once more: by a walk over the instructions, by a second `optimize`, and by the judge.

No code is shared with `planner.footprint.explain` beside the words for sizes.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, final

import planner
from bench.measure import Bench, OnSubject, Size
from bench.results import ExplainRow
from planner import Compute, InfeasibleBudget, Plan, PlannerError
from planner.footprint.explain import Explanation, Instead
from planner.units import format_bytes

_NUMBER = re.compile(r"(?<![\w.#:@\[-])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?(?: (?:B|[KMGTP]iB|%))?(?![\w\]])")


class Held(NamedTuple):
    """A stay of a tensor's bytes: steps count from 1, and the op of the last one is None where they stay to the end."""

    made: int
    held_to: int
    held_by: str | None
    taken: bool


class Checked(NamedTuple):
    """What became of an explanation: numbers looked at, and what was wrong with them."""

    numbers: int
    wrong: list[str]


@final
class Walk:
    """A plan's instructions, followed name by name; in-place ops are where the judge says that they happened."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.trace = planner.simulate(plan.graph, plan.schedule, memory=plan.memory, allocation=plan.allocation)
        self.runs = Counter(plan.schedule.computes)

    @cached_property
    def stays(self) -> dict[str, list[Held]]:
        """Every stay of the bytes of each value that makes a storage of its own."""
        graph, ops = self.plan.graph, self.plan.schedule.computes
        taken = {(step, source): output for step, output, source in self.trace.inplace_taken}
        found: dict[str, list[Held]] = {}
        storage: dict[str, list[Any]] = {}  # by live name: [the value whose bytes they are, step made, names]
        step = 0
        for instruction in self.plan.schedule.steps:
            if isinstance(instruction, Compute):
                step += 1
                op = graph.op_named[instruction.op]
                joins = {op.outputs[o].name: op.reads[i] for i, o, *_ in (*op.view, *op.updates)}
                for source in {source for at, source in taken if at == step - 1}:
                    root, made, _ = storage[source]
                    found.setdefault(root, []).append(Held(made, step, op.name, True))
                    storage[source][0] = None  # its names are freed next, and their bytes are another value's
                for i, _ in op.updates:
                    if op.reads[i] in storage:
                        for name in storage[op.reads[i]][2]:
                            storage[name] = storage[op.reads[i]]
                for tensor in op.outputs:
                    if tensor.name in joins:
                        given = storage.get(joins[tensor.name])
                        if given is not None:  # else it lies on a resident
                            given[2].add(tensor.name)
                            storage[tensor.name] = given
                    elif tensor.name in storage:
                        found.setdefault(tensor.name, []).append(Held(step, step, op.name, False))
                    else:
                        storage[tensor.name] = [tensor.name, step, {tensor.name}]
                for i, o in op.updates:
                    given = storage.get(op.reads[i])
                    if given is not None:
                        for name in given[2] - {op.outputs[o].name}:
                            del storage[name]
                        given[2] &= {op.outputs[o].name}
            elif instruction.value in storage:
                root, made, names = held = storage.pop(instruction.value)
                names.discard(instruction.value)
                if not names and root is not None:
                    found.setdefault(root, []).append(Held(made, step, ops[step - 1], False))
                    held[0] = None
        for root, made, names in storage.values():
            if root is not None and names:
                found.setdefault(root, []).append(Held(made, step, None, False))
                names.clear()
        return {root: sorted(stays) for root, stays in found.items()}

    def bytes_at_peak(self, value: str) -> int:
        """Bytes on which a value lies that are held at the peak."""
        graph, at = self.plan.graph, self.trace.peak_step + 1
        root = graph.storage_root[value]
        if graph.producer[root].resident:
            return self.plan.memory.round_up(graph.tensors[root].nbytes) * (self.plan.memory.scope == "total")
        held = [stay for stay in self.stays.get(root, ()) if stay.made <= at <= stay.held_to - stay.taken]
        return len(held) * self.plan.memory.round_up(graph.tensors[root].nbytes)

    def forced(self, other: Instead) -> Plan:
        """The plan of a second `optimize`, with a decision forced that an explanation names."""
        plan = self.plan
        rules: dict[str, Any] = {"save": plan.save_rules, "recompute": plan.recompute_rules}
        rules[other.option] = (*rules[other.option], other.pattern)
        asked: dict[str, Any] = {"strategy": plan.strategy, "allocator": plan.allocator, "order": plan.order}
        return planner.optimize(
            plan.graph, plan.budget, memory=plan.memory, seed=plan.seed, effort=other.effort, **asked, **rules
        )

    def check(self, value: str, found: Explanation) -> Checked:
        """Hold what an explanation of a tensor states to the walk, to a second `optimize`, and to the judge."""
        graph, trace = self.plan.graph, self.trace
        op, root = graph.producer[value].name, graph.storage_root[value]
        stays, at_peak, runs = self.stays.get(root, []), self.bytes_at_peak(value), self.runs[op]
        size = self.plan.memory.round_up(graph.tensors[root].nbytes)
        pairs: list[tuple[str, object, object]] = [
            ("step of the peak", found.step, trace.timeline_bytes.index(max(trace.timeline_bytes)) + 1),
            ("op of the peak", found.op, self.plan.schedule.computes[trace.peak_step]),
            ("bytes at the peak", found.nbytes, at_peak),
            ("ops recomputed", found.recomputed, (op,) if runs > 1 else ()),
            ("ops kept", found.kept, (op,) if runs == 1 else ()),
            (
                "stays",
                [(life.made, life.held_to, life.held_by, life.taken) for life in found.lives],
                [tuple(stay) for stay in stays],
            ),
            (
                "ops that made it",
                {life.made_by for life in found.lives},
                {graph.producer[root].name} if stays else set(),
            ),
        ]
        known = {format_bytes(size), format_bytes(at_peak), format_bytes(trace.peak_bytes), f"{runs}"}
        known |= {f"{number:,}" for stay in stays for number in stay[:2]} | {f"{trace.peak_step + 1:,}"}
        share = 100 * at_peak / max(trace.peak_bytes, 1)
        known.add(f"{share:.{0 if share >= 10 else 2}{'f' if share >= 10 else 'g'}} %")
        for other in found.instead:
            checked, stated = self._check_forced(other, found.lines[-1])
            pairs, known = pairs + checked, known | stated
        names = {value, op, root, str(found.op), *(stay.held_by or "" for stay in stays)} - {""}
        said = [number for line in found.lines for number in _numbers(line, names)]
        wrong = [f"{value}: {what} is {stated}, found {again}" for what, stated, again in pairs if stated != again]
        wrong += [f"{value}: says {number}, which nothing gives" for number in said if number not in known]
        return Checked(len(pairs) + len(said), wrong)

    def _check_forced(self, other: Instead, line: str) -> tuple[list[tuple[str, object, object]], set[str]]:
        """(what, stated, found again) of the forced decision, and its numbers as people read them."""
        figures = self.plan.report.plan
        try:
            plan = self.forced(other)
        except InfeasibleBudget as error:
            least = set() if error.minimum is None else {format_bytes(error.minimum)}
            return [("a plan within the budget", other.cost is not None, False)], least
        except PlannerError as error:
            return [("the reason", other.why_not, str(error))], set(_numbers(str(error), set()))
        trace = planner.simulate(plan.graph, plan.schedule, memory=plan.memory, allocation=plan.allocation)
        arena_bytes = trace.peak_bytes if trace.arena_bytes is None else trace.arena_bytes
        overheads = [trace.cost / plan.report.keep_all.cost - 1, self.trace.cost / plan.report.keep_all.cost - 1]
        pairs: list[tuple[str, object, object]] = [
            ("peak", other.peak_bytes, trace.peak_bytes),
            ("arena", other.arena_bytes, arena_bytes),
            ("cost", other.cost, trace.cost),
            ("overhead", round(other.overhead or 0.0, 12), round(overheads[0], 12)),
        ]
        if other.needed_again:
            aims = (trace.cost, arena_bytes), (figures.cost, figures.arena_bytes)
            order = 1 if self.plan.budget is not None else -1
            pairs.append(("an offer", "the better plan" in line, aims[0][::order] < aims[1][::order]))
        said = {f"{100 * overhead:+.{digits}f} %" for overhead in overheads for digits in (2, 5)}
        return pairs, said | {format_bytes(arena_bytes), format_bytes(figures.arena_bytes)}


def _numbers(line: str, names: set[str]) -> list[str]:
    """Numbers of a sentence as they are written, those inside names and quotes left out."""
    for name in sorted(names, key=len, reverse=True):
        line = line.replace(name, "")
    return _NUMBER.findall(re.sub(r"'[^']*'", "", line))


def drawn(plan: Plan, count: int, *, seed: int = 15) -> list[str]:
    """Forward tensors that may be recomputed, half of which the plan keeps where it has so many; by the seed."""
    runs, draw = Counter(plan.schedule.computes), random.Random(seed)
    values = [
        tensor.name for op in plan.graph.ops if op.phase == "forward" and op.recomputable for tensor in op.outputs
    ]
    halves = [[v for v in values if (runs[plan.graph.producer[v].name] > 1) is again] for again in (False, True)]
    return [value for half in halves for value in draw.sample(half, min(count // 2, len(half)))]


@final
@dataclass(frozen=True)
class Explanations(OnSubject):
    """Seeded tensors of a plan, explained and checked.

    Args:
        budget: of the plan.
        tensors: how many, half kept and half recomputed.
    """

    budget: str
    tensors: int = 20
    size: Size = "normal"

    def rows(self, bench: Bench) -> Iterator[ExplainRow]:
        """One row."""
        plan = planner.optimize(bench.graph(self.subject).graph, self.budget, memory=self.subject.memory)
        walk, peak = Walk(plan), plan.explain(search=False)
        wrong = [] if sum(share[2] for share in peak.shares) == walk.trace.peak_bytes else ["shares do not add up"]
        seconds, numbers, refused, better = [], 0, 0, 0
        values = drawn(plan, self.tensors)
        for value in values:
            begin = time.process_time()
            found = plan.explain(value)
            seconds.append(time.process_time() - begin)
            checked = walk.check(value, found)
            numbers, wrong = numbers + checked.numbers, wrong + checked.wrong
            refused += any(other.cost is None for other in found.instead)
            better += "the better plan" in found.lines[-1]
        yield ExplainRow(
            graph=self.name,
            budget=self.budget,
            kept=sum(walk.runs[plan.graph.producer[value].name] == 1 for value in values),
            recomputed=sum(walk.runs[plan.graph.producer[value].name] > 1 for value in values),
            numbers=numbers,
            wrong=tuple(wrong),
            refused=refused,
            better=better,
            owned=_listed(peak) / max(peak.nbytes, 1),
            cpu={"a tensor": sum(seconds) / max(len(seconds), 1), "slowest": max(seconds, default=0.0)},
        )


def _listed(peak: Explanation) -> int:
    """Bytes of the owners that the explanation of a peak names."""
    lines = [line for line in peak.lines if re.match(r" +[\d.]+ \S+ +[\d.]+ %  .* of ", line)]
    return sum(nbytes for _, _, nbytes in peak.shares[: len(lines)])
