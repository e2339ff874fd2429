"""Baseline, plan, lower bound and budget side by side."""

from __future__ import annotations

import html
from itertools import pairwise
from typing import Any, Final, Literal, Optional

import msgspec

from planner.graph import Graph
from planner.names import STRATEGIES
from planner.problem import LEAST_PEAK, Asked, Request, flat
from planner.schedule import Compute, Schedule
from planner.simulator import Trace
from planner.text import aligned, folded, printable, shortened
from planner.units import counted, format_bytes

#: What can be proven of a plan.
PROOFS: Final = (
    "cost at this budget, order free",
    "cost at this budget, order pinned",
    "peak, order free",
    "peak, order pinned",
)


class Figures(msgspec.Struct, frozen=True):
    """What one schedule takes.

    Args:
        peak_bytes: most live bytes at a step.
        arena_bytes: bytes with every buffer in its place; the peak where nothing was placed.
        cost: in the graph's unit.
    """

    peak_bytes: int
    arena_bytes: int
    cost: float


class Applied(msgspec.Struct, frozen=True):
    """What one rule of the user's comes to in one plan, measured on the plan's replay.

    Args:
        held_bytes: storages with values of its ops that are live where the backward pass begins: at its first op, or at
            the first of the reruns right before that.
        run_again: how many of its ops run more than once.
        overhead: what their further runs cost, as a fraction of keep-all's cost.
        largest, largest_bytes: of what is held, the newest value on the largest storage; "" where nothing is.
        read_by: the op that reads that storage next; "" where nothing does, as of an output.
    """

    held_bytes: int
    run_again: int
    overhead: float
    largest: str = ""
    largest_bytes: int = 0
    read_by: str = ""


class PatternReport(msgspec.Struct, frozen=True):
    """What came of one rule of the user's; see `planner.policy`.

    Args:
        kind, pattern: the rule; a preset is a "recompute" rule.
        ops: how many ops obey it: "save" (and preset "none"): run once; "recompute": keep no value for the backward
            pass.
        run_again: of these, the ops that the backward pass needs a second time. They run again in every plan.
        nbytes: bytes that the backward pass reads of them; `applied` has what a plan holds.
        overhead: what one further run of each op that the rule makes run again costs, as a fraction of keep-all's cost.
        peak_change_bytes: what the rule by itself does to the peak of keep-all; above 0 it costs memory.
        exceptions: (op, why) of the first ops the pattern names that cannot obey.
        excepted: how many there are.
        applied: what it comes to in the plan; None in files of older planners.
    """

    kind: Literal["save", "recompute"]
    pattern: str
    ops: int
    run_again: int = 0
    nbytes: int = 0
    overhead: float = 0.0
    peak_change_bytes: int = 0
    exceptions: tuple[tuple[str, str], ...] = ()
    excepted: int = 0
    applied: Optional[Applied] = None

    def __str__(self) -> str:
        plan = self.applied or Applied(self.nbytes, self.run_again, self.overhead)
        if self.kind == "save" or self.pattern == "none":
            held = f"{format_bytes(plan.held_bytes)} of theirs held for the backward pass"
            what = f"{counted(self.ops, 'op')} run once, {held}"
            if plan.largest:
                reader = f"next read by {plan.read_by!r}" if plan.read_by else "an output"
                what += f" (most {plan.largest!r}, {format_bytes(plan.largest_bytes)}, {reader})"
        else:
            change = self.peak_change_bytes
            by_itself = f"peak {'+' if change > 0 else '-'}{format_bytes(abs(change))}" if change else "peak unchanged"
            costs = " (costs memory)" if change > 0 else " (frees no memory)" if not change else ""
            idle = self.ops - plan.run_again
            spare = f", {idle:,} are not needed again" if idle else ""
            here = "" if plan.overhead == self.overhead else f", +{100 * plan.overhead:.2f} % cost in this plan"
            what = (
                f"{counted(plan.run_again, 'op')} recomputed{spare}{here}; by itself {by_itself}{costs},"
                f" +{100 * self.overhead:.2f} % cost"
            )
        shown = ", ".join(f"{op!r} ({why})" for op, why in self.exceptions)
        more = f" and {self.excepted - len(self.exceptions):,} more" if self.excepted > len(self.exceptions) else ""
        unkept = f"; not kept for {shown}{more}" if self.excepted else ""
        return f"Pattern {self.kind} {self.pattern!r}: {what}{unkept}"


class Report(Asked, msgspec.Struct, frozen=True):
    """A plan in numbers; printing it gives the table people read. All bytes are exact ints.

    Args:
        graph, ops: name, and number of operations (residents not counted).
        keep_all, plan: see `Figures`.
        peak_lower_bound: bytes no plan can go below.
        request: what was asked.
        cost_lower_bound: cost no plan at this budget can go below; where `order` is pinned, "exact" may say it of that
            order alone.
        recomputed_ops, extra_runs: ops run more than once, and their runs beyond the first.
        peak_step, steps, peak_op: where the peak is.
        resident_bytes, workspace_bytes: of the bytes at the peak.
        live_at_peak: (value, bytes, "kept" or "recomputed") of the largest storages there.
        profile_bytes: the most bytes in each of up to 60 equal stretches of the schedule.
        optimal: what is proven, one of `PROOFS`, or None.
        cut_short: True if a time limit or Ctrl-C stopped the search.
        peak_phase: the phase of `peak_op`, where it has one.
        arena_lower_bound: bytes no arena of this schedule goes below, as proven by the allocator; 0 if it says nothing.
        rules: what became of each pattern of the user's; see `PatternReport`. Bounds on cost count what they make run
            again.
    """

    graph: str
    ops: int
    request: Request
    keep_all: Figures
    plan: Figures
    peak_lower_bound: int
    cost_lower_bound: float
    recomputed_ops: int
    extra_runs: int
    peak_step: int
    steps: int
    peak_op: Optional[str]
    resident_bytes: int
    workspace_bytes: int
    live_at_peak: tuple[tuple[str, int, str], ...]
    profile_bytes: tuple[int, ...]
    optimal: Optional[str] = None
    cut_short: bool = False
    peak_phase: Optional[str] = None
    arena_lower_bound: int = 0
    rules: tuple[PatternReport, ...] = ()

    def as_object(self) -> dict[str, Any]:
        """The report as `--json` prints it: what was asked lies beside what was found."""
        asked = {"budget": self.budget, "budget_text": self.budget_text}
        return {**flat(self, "strategy", "allocator", "memory", "order", "step"), **asked}

    @property
    def overhead(self) -> float:
        """Extra cost as a fraction of keep-all's."""
        return self.plan.cost / self.keep_all.cost - 1 if self.keep_all.cost else 0.0

    @property
    def gap(self) -> float:
        """How far the cost may be above the best possible at this budget, as a fraction of keep-all's."""
        return (self.plan.cost - self.cost_lower_bound) / self.keep_all.cost if self.keep_all.cost else 0.0

    @property
    def needed_bytes(self) -> int:
        """What is held against the budget: arena + reserve."""
        return self.memory.needed_bytes(self.plan.arena_bytes)

    def __str__(self) -> str:
        return "\n".join(map(printable, [self.verdict, self._title(), *self._table(), *self._notes()]))

    @property
    def verdict(self) -> str:
        """The answer in one sentence."""
        plan, base = self.plan, self.keep_all
        if self.budget is None:
            begins = "Least peak found"
        else:
            asked = format_bytes(self.budget) if self.budget_text == str(self.budget) else self.budget_text
            begins = f"Fits {asked}, {format_bytes(self.budget - self.needed_bytes)} to spare"
        if not self.extra_runs and plan.arena_bytes == base.arena_bytes:
            return f"{begins}: {format_bytes(plan.arena_bytes)}, with nothing recomputed"
        memory = f"{format_bytes(plan.arena_bytes)} in place of {format_bytes(base.arena_bytes)}"
        return f"{begins}: {memory}, for {100 * self.overhead:.2f} % more cost"

    @property
    def gist(self) -> str:
        """Model, memory and extra cost in a few words."""
        nbytes = f"{format_bytes(self.plan.arena_bytes)} of {format_bytes(self.keep_all.arena_bytes)}"
        return f"{shortened(self.graph, 60)!r}, {nbytes}, {100 * self.overhead:+.2f} % cost"

    def __repr__(self) -> str:
        return f"Report({self.gist})"

    def _repr_html_(self) -> str:
        """The report, and the memory over time."""
        return self.as_html()

    def as_html(self, *, baseline_bytes: tuple[int, ...] = ()) -> str:
        """The memory over time as a picture, and the report.

        Args:
            baseline_bytes: bytes at each step without recomputation, drawn beside the plan's where they are given.
        """
        from planner.views.sketch import timeline_svg

        left = None if self.budget is None else self.memory.live_bytes(self.budget)
        picture = timeline_svg(self.profile_bytes, baseline=profile(baseline_bytes), budget=left)
        return f"{picture}<pre>{html.escape(str(self))}</pre>"

    def _title(self) -> str:
        packed = f"allocator {self.allocator}" if self.allocator else "live bytes only"
        order = " · order pinned" if self.order == "pinned" else ""
        step = "" if self.step is None else f" · step: {self.step}"
        return (
            f"Plan  {self.graph} · {self.ops:,} ops · strategy {self.strategy} · {packed} · scope"
            f" {self.memory.scope}{order}{step}"
        )

    def _table(self) -> list[str]:
        base, plan = self.keep_all, self.plan
        peaks = [format_bytes(nbytes) for nbytes in (base.peak_bytes, plan.peak_bytes)]
        costs = [f"{1 + overhead:.3f}x" for overhead in (0.0, self.overhead)]
        budget = LEAST_PEAK if self.budget is None else format_bytes(self.budget)
        reserve = self.needed_bytes - plan.arena_bytes
        rows = [
            ["", "no recomputation", "this plan", "budget"],
            ["peak", *peaks],
            ["memory", format_bytes(base.arena_bytes), format_bytes(plan.arena_bytes), budget],
            *([["reserve", "", format_bytes(reserve)]] if reserve else []),
            ["cost", *costs],
        ]
        return [f"  {line}" for line in aligned(rows)]

    def _notes(self) -> list[str]:
        plan, base = self.plan, self.keep_all
        notes = []
        notes.append(f"Lower bound on memory: no plan's peak is below {format_bytes(self.peak_lower_bound)}")
        if self.budget is not None:
            least = f"no plan{self._of_which()} costs less than {1 + self.overhead - self.gap:.3f}x"
            notes.append(f"Lower bound on cost: within this budget {least}")
        if self.allocator is not None:
            notes.append(self._packing())
        if self.extra_runs:
            saved = f"; without it {base.arena_bytes / plan.arena_bytes:.2f}x the memory" if plan.arena_bytes else ""
            cost = f"+{100 * self.overhead:.2f} % cost"
            notes.append(f"{counted(self.recomputed_ops, 'op')} recomputed: {cost}{saved}")
        else:
            notes.append("Nothing is recomputed")
        notes.extend(map(str, self.rules))
        if self.optimal:
            notes.append(f"Proven optimal: {self.optimal}")
        elif self.budget is None:
            below = f"{format_bytes(self.peak_lower_bound)}{self._who_says()}"
            notes.append(f"Not proven optimal: no plan{self._of_which()} goes below {below}")
        else:
            best = f"the best possible{self._of_which()}{self._who_says()}"
            notes.append(f"Not proven optimal: at most {100 * self.gap:.2f} % of a step's cost above {best}")
        if self.cut_short:
            notes.append("Cut short by the time limit or Ctrl-C: more time may find a better plan")
        if self.peak_op is not None:
            live = plan.peak_bytes - self.resident_bytes - self.workspace_bytes
            where = {"update": " (optimizer step)", "loss": " (loss)"}.get(self.peak_phase or "", "")
            notes.append(
                f"Peak at step {self.peak_step + 1} of {self.steps}, op {self.peak_op}{where}:"
                f" weights and inputs {format_bytes(self.resident_bytes)}, activations and gradients"
                f" {format_bytes(live)},"
                f" workspace {format_bytes(self.workspace_bytes)}"
            )
            notes.append(f"Memory {sparkline(self.profile_bytes)}")
        if self.live_at_peak:
            rows = folded((value, (nbytes, fate)) for value, nbytes, fate in self.live_at_peak)
            width = max(len(value) for value, _, _ in rows)
            notes.append("Largest at the peak")
            notes.extend(
                f"  {value.ljust(width)}  {format_bytes(nbytes):>11}  {fate}{f'  x {count}' if count > 1 else ''}"
                for value, count, (nbytes, fate) in rows
            )
        return [f"  {note}" for note in notes]

    def _of_which(self) -> str:
        """Which plans a bound is about, where it may not be all."""
        return " in the program's order" if self.order == "pinned" and self.strategy == "exact" else ""

    def _who_says(self) -> str:
        """A bound of a strategy that is not ours is its own claim."""
        return "" if self.strategy in STRATEGIES else f", or so {self.strategy!r} says"

    def _packing(self) -> str:
        """What the placement of the buffers loses."""
        arena, peak = self.plan.arena_bytes, self.plan.peak_bytes
        if arena <= peak:
            return "Fragmentation: none, the buffers take no more than the peak"
        lost = f"Fragmentation: {format_bytes(arena - peak)} ({100 * (arena - peak) / max(peak, 1):.2g} % of the peak)"
        if arena <= self.arena_lower_bound:
            return f"{lost}; proven: no placement of these buffers takes less"
        return (
            f"{lost}; no placement of these buffers takes less than {format_bytes(max(peak, self.arena_lower_bound))}"
        )


def proven(report: Report, *, cost_lower_bound: float, peak_lower_bound: int) -> bool:
    """True if the report's `optimal` is one of `PROOFS`, about the question asked, and its bound is met.

    Args:
        cost_lower_bound, peak_lower_bound: what the reader has computed; those of the report are claims too.
    """
    if report.optimal not in PROOFS:
        return False
    if report.optimal.startswith("cost"):
        return report.budget is not None and report.plan.cost <= cost_lower_bound
    return report.plan.peak_bytes <= peak_lower_bound


def replayed(graph: Graph, schedule: Schedule, trace: Trace) -> dict[str, Any]:
    """The fields of a report that follow from a schedule and the judge's trace of it."""
    return {
        "recomputed_ops": len(trace.recomputed),
        "extra_runs": sum(trace.recomputed.values()),
        "peak_step": trace.peak_step,
        "steps": len(trace.timeline_bytes),
        "peak_op": trace.peak_op,
        "peak_phase": None if trace.peak_op is None else graph.op_named[trace.peak_op].phase,
        "resident_bytes": trace.resident_bytes,
        "workspace_bytes": trace.workspace_at_peak_bytes,
        "live_at_peak": tuple(
            (value, nbytes, "recomputed" if graph.producer[value].name in trace.recomputed else "kept")
            for value, nbytes in named_at_peak(graph, schedule, trace)[:8]
        ),
        "profile_bytes": profile(trace.timeline_bytes),
    }


def named_at_peak(graph: Graph, schedule: Schedule, trace: Trace) -> tuple[tuple[str, int], ...]:
    """`Trace.live_at_peak` with each storage called by the newest value on it: of a chain of views, the last one.

    The judge calls a storage by the value that made it.
    """
    newest: dict[str, list[str]] = {}  # by the value that made a storage, of those live at the peak
    for made, names in storages_at(graph, schedule, trace, trace.peak_step):
        newest.setdefault(made, []).append(next(reversed(names), made))
    named = [(newest[made].pop() if newest.get(made) else made, nbytes) for made, nbytes in trace.live_at_peak]
    return tuple(sorted(named, key=lambda pair: (-pair[1], pair[0])))


def storages_at(graph: Graph, schedule: Schedule, trace: Trace, at: int) -> list[tuple[str, dict[str, None]]]:
    """(value that made it, names on it, oldest first) of each storage with a name at a Compute step."""
    taken = {(step, output): value for step, output, value in trace.inplace_taken}
    on: dict[str, tuple[str, dict[str, None]]] = {}
    for op in graph.ops:
        on.update({tensor.name: (tensor.name, {tensor.name: None}) for tensor in op.outputs if op.resident})
    step = -1
    for instruction in schedule.steps:
        if not isinstance(instruction, Compute):
            if step < at:
                on.pop(instruction.value)[1].pop(instruction.value)
            continue
        step += 1
        if step > at:
            break
        op = graph.op_named[instruction.op]
        inputs = [on[value] for value in op.reads]
        joined = {op.outputs[o].name: inputs[i] for i, o, *_ in (*op.updates, *op.view)}
        for i, _ in op.updates:
            for older in tuple(inputs[i][1]):
                on.pop(older, None)
            inputs[i][1].clear()
        for tensor in op.outputs:
            if tensor.name not in on:
                value = taken.get((step, tensor.name))
                storage = joined.get(tensor.name) or (on[value] if value is not None else (tensor.name, {}))
                storage[1][tensor.name] = None
                on[tensor.name] = storage
    return list({id(storage): storage for storage in on.values()}.values())


def profile(timeline_bytes: tuple[int, ...], width: int = 60) -> tuple[int, ...]:
    """The most bytes in each of up to `width` equal stretches.

    >>> profile((1, 5, 2, 4), width=2)
    (5, 4)
    """
    count = min(width, len(timeline_bytes))
    edges = [len(timeline_bytes) * k // count for k in range(count + 1)] if count else []
    return tuple(max(timeline_bytes[a:b]) for a, b in pairwise(edges))


def sparkline(timeline_bytes: tuple[int, ...]) -> str:
    """A timeline as one line of bars from zero to its peak.

    >>> sparkline((0, 1, 3, 4))
    '▁▃▆█'
    """
    bars = profile(timeline_bytes)
    top = max(bars, default=0)
    return "".join("▁▂▃▄▅▆▇█"[round(7 * nbytes / top)] if top else "▁" for nbytes in bars)
