"""A plan: what runs when, where every buffer lies, and what it takes. One JSON file holds all of it, graph included."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, Optional, Protocol

import msgspec

from planner.errors import PlanFileError, PlannerError, UnitError, VerificationError
from planner.files import read_versioned, write_whole
from planner.graph import Graph, Op
from planner.memory import Allocation
from planner.names import STRATEGIES
from planner.problem import LEAST_PEAK, Allocator, Asked, Budget, Problem, Request, nested, out_of_order
from planner.report import PROOFS, PatternReport, Report, proven, replayed
from planner.schedule import Schedule, keep_all
from planner.simulator import Trace, simulate

if TYPE_CHECKING:
    from planner.executors.arena_machine import Execution
    from planner.footprint.explain import Explanation
    from planner.views.difference import Difference

FORMAT: Final = "planner-plan"
VERSION: Final = 3


class _PlanFile(msgspec.Struct, frozen=True):
    format: str
    version: int
    fingerprint: str
    graph_name: str
    ops: tuple[Op, ...]
    schedule: Schedule
    allocation: Optional[Allocation]
    report: Report


@dataclasses.dataclass(frozen=True)
class Plan(Asked):
    """What `optimize` returns.

    Args:
        graph, schedule, allocation: the program, its steps, and the offsets (None: live bytes only).
        report: baseline, plan, bound and budget; `print(plan.report)`. It holds the request too.
    """

    graph: Graph
    schedule: Schedule
    allocation: Allocation | None
    report: Report

    @property
    def request(self) -> Request:
        """What was asked."""
        return self.report.request

    def __str__(self) -> str:
        return str(self.report)

    def __repr__(self) -> str:
        return f"Plan({self.report.gist})"

    def _repr_html_(self) -> str:
        """The memory over time beside that without recomputation, and the report."""
        kept = simulate(self.graph, keep_all(self.graph), memory=self.memory)
        return self.report.as_html(baseline_bytes=kept.timeline_bytes)

    def verify(self) -> Trace:
        """Replay the plan by the judge, and hold it to every number it claims.

        The judge replays the baseline too, and a registered allocator packs it again; an allocator that is not
        registered, or whose options a callable carried, cannot: there the baseline's arena is only checked to lie
        between its peak and the sum of all buffers. The policy is applied to the graph again: the instructions must
        obey it, and the report must say the same of it.

        The bounds of built-in strategies may be no higher than those of `planner.bounds`, which are computed again; an
        older planner proves less, so lower ones hold. What "exact" says beyond them is proven again by its own search.
        A strategy of the user's may claim a higher bound, up to its plan; `optimal` may not rest on that claim. Taken
        on trust are that a search was cut short, the bytes of the budget "auto", and the training step that was named.

        Raises:
            ScheduleError: an illegal step.
            VerificationError: overlapping or missing buffers, above the budget, or a claim that is not what was found.
        """
        from planner.bounds import lower_bounds

        trace = simulate(self.graph, self.schedule, memory=self.memory, allocation=self.allocation)
        arena_bytes = trace.peak_bytes if trace.arena_bytes is None else trace.arena_bytes
        baseline = keep_all(self.graph)
        kept = simulate(self.graph, baseline, memory=self.memory)
        report, again = self.report, replayed(self.graph, self.schedule, trace)
        for what, claimed, found in (
            ("graph", report.graph, self.graph.name),
            ("ops", report.ops, sum(not op.resident for op in self.graph.ops)),
            ("peak", report.plan.peak_bytes, trace.peak_bytes),
            ("arena", report.plan.arena_bytes, arena_bytes),
            ("arena lower bound", report.arena_lower_bound, self._arena_bound),
            ("cost", report.plan.cost, trace.cost),
            ("baseline peak", report.keep_all.peak_bytes, kept.peak_bytes),
            ("baseline cost", report.keep_all.cost, kept.cost),
            *((name, getattr(report, name), found) for name, found in again.items()),
        ):
            if claimed != found:
                raise VerificationError(f"the report says {what} {claimed}, the replay finds {found}")
        self._verify_options(kept)
        least_cost = self._verify_policy(kept, trace)
        self._verify_packing(baseline, kept)
        needed_bytes, asked = self.memory.needed_bytes(arena_bytes), self.request
        if self.budget is not None and needed_bytes > self.budget:
            raise VerificationError(f"arena + reserve take {needed_bytes} bytes, above the budget of {self.budget}")
        bounds = lower_bounds(self.graph, self.memory, asked.live_budget, plan_cost=trace.cost, effort=asked.effort)
        self._verify_bounds(trace, kept, bounds.peak_bytes, max(least_cost, bounds.cost))
        return trace

    @property
    def _arena_bound(self) -> int:
        """What the allocator says that no arena of its buffers is below; 0 where it says nothing."""
        return 0 if self.allocation is None else self.allocation.bound_bytes

    def _verify_options(self, kept: Trace) -> None:
        """The budget as it was written, and a pinned order."""
        text = self.request.budget_text
        asked = asked_bytes(text, kept.peak_bytes)
        if asked != self.budget and not (text.strip() == "auto" and self.budget is not None):
            raise VerificationError(
                f"the report says that the budget was written {text!r}, which is {asked} bytes, not {self.budget}"
            )
        if self.order == "pinned" and (pair := out_of_order(self.graph, self.schedule)) is not None:
            raise VerificationError(
                f"op {pair[1]!r} first runs before {pair[0]!r}, but the plan says that the order is pinned"
            )

    def _verify_policy(self, kept: Trace, trace: Trace) -> float:
        """That the instructions obey the user's policy; what a plan that obeys costs at least."""
        from planner.policy import policy_of

        try:
            policy = policy_of(self.graph, self.memory, self.save_rules, self.recompute_rules)
        except PlannerError as error:
            raise VerificationError(f"the plan's policy cannot be: {error}") from None
        rules = self.report.rules
        unmeasured = tuple(msgspec.structs.replace(rule, applied=None) for rule in rules)
        _check_rules(unmeasured, () if policy is None else policy.rulings)
        if policy is None:
            return kept.cost
        policy.check(self.schedule)
        if rules != unmeasured:  # files of older planners measured nothing
            _check_rules(rules, policy.in_plan(self.schedule, trace))
        return policy.cost_lower_bound

    def _verify_packing(self, baseline: Schedule, kept: Trace) -> None:
        """That the allocator named packed the plan, and the baseline too."""
        from planner import mxnet
        from planner.packing import allocator_names, find_allocator
        from planner.packing.allocators import proves

        mxnet.register()
        claimed = self.report.keep_all.arena_bytes
        if self.allocator is None or self.allocation is None:
            if self.allocator is not None or self.allocation is not None:
                held = "no offsets" if self.allocation is None else "offsets"
                raise VerificationError(f"the plan has {held}, and its allocator is {self.allocator!r}")
            least = most = kept.peak_bytes
        elif self.allocator in allocator_names():
            packer = find_allocator(self.allocator)[1]
            packed = packer(self.graph, baseline, memory=self.memory)
            least = most = simulate(self.graph, baseline, memory=self.memory, allocation=packed).arena_bytes or 0
            if claimed != least and _has_options(packer, self.allocator):
                least, most = kept.peak_bytes, self._stacked_bytes()
            # A registered portfolio may name the member that won, and another may win here than with the baseline.
            names = {packed.allocator}
            if self.allocation.allocator not in names:
                names.add(packer(self.graph, self.schedule, memory=self.memory).allocator)
            if self.allocation.allocator not in names:
                raise VerificationError(
                    f"the offsets say that {self.allocation.allocator!r} placed them, the plan {self.allocator!r}"
                )
        else:
            least, most = kept.peak_bytes, None
        bound = self._arena_bound
        if bound and not proves(self.graph, self.schedule, self.memory, bound):
            raise VerificationError(
                f"the offsets say that no arena of theirs is below {bound} bytes; that cannot be proven again"
            )
        if claimed < least or (most is not None and claimed > most):
            found = f"{least}" if least == most else f"at least {least}" if most is None else f"from {least} to {most}"
            raise VerificationError(f"the report says baseline arena {claimed}, the replay finds {found}")

    def _stacked_bytes(self) -> int:
        """The baseline's arena where no two buffers share a byte."""
        ops = [op for op in self.graph.ops if not op.resident or self.memory.scope == "total"]
        round_up = self.memory.round_up
        return sum(round_up(op.workspace) + sum(round_up(tensor.nbytes) for tensor in op.outputs) for op in ops)

    def _verify_bounds(self, trace: Trace, kept: Trace, least_peak: int, least_cost: float) -> None:
        """Lower bounds, and what rests on them."""
        report = self.report
        cost_claim = f"the report says no plan costs less than {report.cost_lower_bound}"
        peak_claim = f"the report says no plan goes below {report.peak_lower_bound} bytes"
        if not 0 <= report.cost_lower_bound <= trace.cost:
            raise VerificationError(f"{cost_claim}; this plan costs {trace.cost}")
        if not 0 <= report.peak_lower_bound <= min(trace.peak_bytes, kept.peak_bytes):
            raise VerificationError(
                f"{peak_claim}; this plan takes {trace.peak_bytes}, and the baseline {kept.peak_bytes}"
            )
        about_cost, asked_of = self.budget is not None, f"of plans of {self.strategy!r} no more than"
        exact = self.strategy == "exact"  # alone proves more than `lower_bounds`, and only of what it was asked for
        for claim, stated, proven_again, asked in (
            (cost_claim, report.cost_lower_bound, least_cost, about_cost),
            (peak_claim, report.peak_lower_bound, least_peak, not about_cost),
        ):
            if self.strategy not in STRATEGIES or stated <= proven_again:
                continue
            if not (asked and exact and self._proven_exactly(stated)):
                raise VerificationError(f"{claim}; {asked_of} {proven_again} is proven")
        if report.optimal is None or proven(report, cost_lower_bound=least_cost, peak_lower_bound=least_peak):
            return
        found = trace.cost if about_cost else trace.peak_bytes
        if not exact or report.optimal not in PROOFS or not self._optimal_as_asked() or not self._proven_exactly(found):
            raise VerificationError(
                f"the report says {report.optimal!r} is proven; what can be proven again is cost {least_cost} and"
                f" peak {least_peak}"
            )

    def _optimal_as_asked(self) -> bool:
        """True if what is called optimal is what was asked for, in the order that was asked for."""
        kind, _, order = (self.report.optimal or "").rpartition(", order ")
        return kind.startswith("cost") == (self.budget is not None) and order == self.order

    def _proven_exactly(self, bound: float) -> bool:
        """Repeat the proof of strategy "exact" that no plan in the order that was asked for is below a bound."""
        from planner.search.exact import proves as no_plan_is_below

        asked = self.request
        problem = Problem(self.graph, asked.live_budget, asked.memory, asked.order, asked.seed, asked.effort)
        return no_plan_is_below(problem, self.schedule, bound=bound)

    def diff(self, other: Plan) -> Difference:
        """What another plan of the same graph does differently: memory, cost, and how often each op runs.

        Raises:
            PlannerError: a plan of another graph.
        """
        from planner.views.difference import difference

        return difference(self, other)

    def modules_to_checkpoint(self, *, among: Iterable[str] | None = None) -> tuple[str, ...]:
        """The modules to run again whole, as `torch.utils.checkpoint` does, to keep the budget at the least cost found.

        It is dearer than this plan, which keeps and runs again single values. `planner.torch.wrap_checkpoints` does it.

        Args:
            among: paths that may be chosen; None: every module that has an op of its own.
        Raises:
            PlannerError: no choice of modules fits; names the least.
        """
        from planner.policy.whole_modules import whole_modules

        return whole_modules(self.graph, self.budget, memory=self.memory, among=among).modules

    def explain(self, subject: str | None = None, *, search: bool = True, effort: float | None = None) -> Explanation:
        """Why a tensor, an op or a module is as it is, or what the peak is made of: `planner.explain` of this plan.

        Raises:
            PlannerError: nothing of that name.
        """
        if not _EXPLAIN:
            raise PlannerError("a plan is explained by planning again: import planner.api before, or planner.explain")
        return _EXPLAIN[0](self, subject, search=search, effort=effort)

    def execute(self, *, scale: int | None = None) -> Execution:
        """Run the plan on real bytes in one arena; every byte must be that of a plain run.

        Args:
            scale: divide all sizes by it; None: the least power of two that keeps the arena below 256 MiB.
        Raises:
            VerificationError: names the value whose bytes differ, and the step that damaged it.
            PlannerError: a plan without offsets, or a scale below 1.
        """
        from planner.executors.arena_machine import execute
        from planner.executors.windows import automatic_scale

        if self.allocation is None:
            raise PlannerError(
                "a plan with no offsets (allocator none) cannot be run; plan again with an allocator, or `allocate` it"
            )
        if scale is None:
            scale = automatic_scale(self.graph, self.allocation)
        return execute(self.graph, self.schedule, self.allocation, scale=scale)

    def to_json(self) -> bytes:
        """The plan file: versioned, everything in it."""
        graph = self.graph
        file = _PlanFile(
            FORMAT, VERSION, graph.fingerprint, graph.name, graph.ops, self.schedule, self.allocation, self.report
        )
        return msgspec.json.encode(file)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan file, whole or not at all.

        Raises:
            OutputError: the file cannot be written.
        """
        write_whole(path, self.to_json())


def _check_rules(claimed: tuple[PatternReport, ...], found: tuple[PatternReport, ...]) -> None:
    """That a report says of each pattern what the policy gives."""
    if claimed != found:
        differ = [pair for pair in zip_longest(claimed, found) if pair[0] != pair[1]]
        said, instead = (repr(str(outcome)) if outcome else "no such pattern" for outcome in differ[0])
        raise VerificationError(f"the report says {said}, the policy gives {instead}")


class Explain(Protocol):
    """Answers `Plan.explain`."""

    def __call__(self, plan: Plan, subject: str | None, *, search: bool, effort: float | None) -> Explanation: ...


_EXPLAIN: Final[list[Explain]] = []


def explain_by(explain: Explain) -> None:
    """Set what answers `Plan.explain`, `planner.explain`: a plan lies below the searches that the answer needs."""
    _EXPLAIN[:] = [explain]


def asked_bytes(text: str, keep_all_peak_bytes: int) -> int | None:
    """Bytes of a budget as a report writes it; None for "least peak" and "auto".

    Raises:
        VerificationError: no budget is written so.
    """
    if text == LEAST_PEAK or text.strip() == "auto":
        return None
    try:
        return Budget.read(text, keep_all_peak_bytes=keep_all_peak_bytes).nbytes
    except UnitError as error:
        raise VerificationError(f"the report says that the budget was written {text!r}: {error}") from None


def _has_options(allocator: Allocator, name: str) -> bool:
    """True if a partial of this allocator is called the same: what a plan says of it is then not all there is."""
    function = getattr(allocator, "func", allocator)
    options = set(getattr(function, "__kwdefaults__", None) or ()) - {
        "stop",
        "capacity_bytes",
    }  # which only end the search
    return getattr(function, "__name__", None) == name and bool(options)


def load(path: str | os.PathLike[str], graph: Graph | None = None) -> Plan:
    """A plan from its file. Nothing in the file is executed; its claims are checked by `Plan.verify`.

    Args:
        graph: refuse a plan of any other graph.
    Raises:
        PlanFileError: missing, not a plan, another version, damaged, or the plan of another graph.
    """
    head = read_versioned(path, kind="plan", format=FORMAT, versions=(1, 2, VERSION), again="plan it again")
    try:
        parts = msgspec.convert(_with_request(head) if head["version"] == 1 else head, _PlanFile)
        if head["version"] < VERSION and "step" in head["report"].get("request", ()):
            raise PlannerError(f"it names a training step, which files of version {head['version']} do not")
        own = Graph(parts.ops, name=parts.graph_name)
    except (msgspec.ValidationError, PlannerError, RecursionError) as error:
        raise PlanFileError(f"{str(path)!r} is damaged: {error}") from None
    if own.fingerprint != parts.fingerprint:
        raise PlanFileError(f"{str(path)!r} is damaged: its graph is not the one it was planned for (fingerprint)")
    if graph is not None and graph.fingerprint != own.fingerprint:
        raise PlanFileError(
            f"{str(path)!r} is the plan of another graph ({own.name!r}, not {graph.name!r}); plan this graph again"
        )
    return Plan(own, parts.schedule, parts.allocation, parts.report)


def _with_request(head: dict[str, Any]) -> dict[str, Any]:
    """A file of version 1, in which plan and report each said what was asked, as one of this version.

    Raises:
        PlannerError: plan and report say different things.
    """
    parts, report = nested(head), head.get("report")
    if not isinstance(report, dict):
        return parts
    asked: dict[str, Any] = parts["request"]
    twice = ("strategy", "allocator", "memory", "order", "budget")
    report = {"order": "free", **report}
    for name in twice:
        mine = parts.get("budget") if name == "budget" else asked.get(name, report["order"])
        if report.get(name) != mine:
            raise PlannerError(f"its report says {name} {report.get(name)!r}, the plan {mine!r}")
    if parts.get("budget") is not None:
        asked["budget"] = {"text": report.get("budget_text"), "nbytes": parts["budget"]}
    elif report.get("budget_text") != LEAST_PEAK:
        raise PlannerError(f"its budget was written {report.get('budget_text')!r}, and it has none")
    return {**parts, "report": {**report, "request": asked}}
