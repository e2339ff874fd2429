"""A policy on one graph: the graph that a search sees, and how its proposals are made to obey."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np
from msgspec.structs import replace

from planner.analysis.arrays import Ints
from planner.analysis.evaluator import evaluator_of
from planner.errors import InfeasibleBudget, TimeLimit
from planner.graph import Graph, Op
from planner.memory import MemoryModel
from planner.policy.apply import AppliedProgram
from planner.policy.check import check_obeyed
from planner.policy.measure_rules import Measure
from planner.problem import Problem, Proposal, Strategy, Watch
from planner.report import PatternReport
from planner.schedule import Schedule
from planner.simulator import Trace

_TWIN: Final = " again"


class Policy:
    """Which ops of one graph to save and which to recompute, as the user's patterns say.

    A search knows no policy: it sees a graph in which the policy holds (`search_graph`), and its proposals are put back
    onto the program (`ask`).

    Args:
        saved: ops that run once.
        rerun: ops whose values do not wait for the backward pass: what the forward part read is freed before it, and
            what the backward pass reads is made after the forward part. The original's mirror attribute, set by users.
        rulings: what became of each pattern, before there is a plan.
        named: the ops that obey each of `rulings`.
    Source: Chen et al. 2016, Alg. 2 and section 4.1 (m(v) set by the user). Ours differs: the policy binds every
        search, views of a recomputed value are recomputed with it, and values that the original cannot drop are named.
    """

    def __init__(
        self,
        graph: Graph,
        memory: MemoryModel,
        *,
        save: Sequence[str],
        recompute: Sequence[str],
        saved: frozenset[str],
        rerun: frozenset[str],
        rulings: tuple[PatternReport, ...],
        named: tuple[frozenset[str], ...],
    ) -> None:
        self.graph, self.memory, self.save, self.recompute = graph, memory, tuple(save), tuple(recompute)
        self.saved, self.rerun, self.rulings, self.named = saved, rerun, rulings, named
        self._applied = AppliedProgram(evaluator_of(graph, memory))

    @cached_property
    def base(self) -> Schedule:
        """The cheapest schedule that obeys: program order, every op once, and the reruns that the policy needs."""
        return self._applied.evaluator.schedule(self._base)

    @cached_property
    def _base(self) -> Ints:
        return self._applied.obeyed(self._applied.evaluator.keep_all, self.rerun)

    @cached_property
    def cost_lower_bound(self) -> float:
        """Cost of one run of each op, and of one rerun of each op that every obedient plan runs again."""
        costs = {op.name: op.cost for op in self.graph.ops if not op.resident}
        return math.fsum([*costs.values(), *(costs[name] for name in self._applied.must_rerun(self.rerun))])

    @cached_property
    def _kept_graph(self) -> Graph:
        """The program with saved ops run at most once."""
        return Graph([self._once(op) for op in self.graph.ops], name=self.graph.name) if self.saved else self.graph

    @cached_property
    def search_graph(self) -> Graph:
        """The program for a search: saved ops run at most once, and each rerun of `base` is an op of its own."""
        return Graph(self._unrolled(), name=self.graph.name) if self.rerun else self._kept_graph

    def _once(self, op: Op) -> Op:
        return replace(op, recomputable=False) if op.name in self.saved else op

    def _unrolled(self) -> list[Op]:
        """Ops of `base`, one for each of its runs."""
        names = self._applied.evaluator.encoded.op_names
        taken = {*self.graph.op_named, *self.graph.tensors}
        left = np.bincount(self._base, minlength=len(names)).tolist()
        current: dict[str, str] = {}
        unrolled = [op for op in self.graph.ops if op.resident]
        seen: set[str] = set()
        before = edge = ""
        for row in self._base.tolist():
            op = self.graph.op_named[names[row]]
            left[row] -= 1
            twin = op.name in seen
            suffix = _free_suffix(op, taken) if twin else ""
            taken.update([op.name + suffix, *(t.name + suffix for t in op.outputs)])
            last = not left[row]
            outputs = tuple(replace(t, name=t.name + suffix, output=t.output and last) for t in op.outputs)
            made = replace(op, outputs=outputs, reads=tuple(current.get(value, value) for value in op.reads))
            if twin:  # not before the pass that reads it
                after = tuple(dict.fromkeys((op.name, before, edge)))
                unrolled.append(replace(made, name=op.name + suffix, after=after, phase="backward", stage=None))
            else:
                unrolled.append(self._once(made))
                before = op.name
                edge = op.name if op.name in self._applied.forward else edge
            seen.add(op.name)
            current.update((t.name, newest.name) for t, newest in zip(op.outputs, outputs, strict=True))
        return unrolled

    @cached_property
    def _origins(self) -> tuple[Ints, frozenset[int]]:
        """The row in the program of each op row of the search graph; and the rows of reruns."""
        rows = self._applied.evaluator.encoded.op_index
        twins: set[int] = set()
        origin = []
        for place, op in enumerate(self.search_graph.ops):
            if op.name in rows:
                origin.append(rows[op.name])
            else:
                twins.add(place)
                origin.append(rows[_twin_of(op)])
        return np.array(origin, dtype=np.int64), frozenset(twins)

    def ask(self, strategy: Strategy, problem: Problem) -> Proposal:
        """A strategy's proposal, on the program and obedient, without its bounds: they hold for another graph.

        With ops to recompute, the strategy is asked twice: about the search graph, and about the program, which is
        simpler where whole stretches run again. A rerun of the search graph is left out where the search runs the op
        again by itself. All these forms, and `base`, are made to obey and evaluated; the cheapest within the budget
        wins, else the one of least peak.

        Raises:
            InfeasibleBudget, TimeLimit: the strategy proposed nothing either time.
        """
        if not self.rerun:
            proposal = strategy(problem)
            return Proposal(proposal.schedule, cut_short=proposal.cut_short)
        candidates, cut_short = self._candidates(strategy, problem)
        ranked = []
        for place, sequence in enumerate((*candidates, self._base)):
            obeyed = self._applied.obeyed(sequence, self.rerun)
            outcome = self._applied.evaluator.evaluate(obeyed)
            if outcome is not None:
                fits = problem.budget is not None and outcome[0] <= problem.budget
                ranked.append((not fits, *(outcome[::-1] if fits else outcome), place, obeyed))
        best = min(ranked, key=lambda row: row[:4])[4]
        return Proposal(self._applied.evaluator.schedule(best), cut_short=cut_short)

    def _candidates(self, strategy: Strategy, problem: Problem) -> tuple[list[Ints], bool]:
        """Op rows of all proposals, not yet obedient; and whether a search was cut short."""
        found: list[Ints] = []
        failures: list[InfeasibleBudget | TimeLimit] = []
        cut_short = False
        for graph in (self.search_graph, self._kept_graph):
            try:
                watch = problem.watch if graph is self.search_graph else _counting(problem.watch)
                # plans of the program are no plans of these graphs
                proposal = strategy(replace(problem, graph=graph, watch=watch, starts=(), onwards=None))
            except (InfeasibleBudget, TimeLimit) as failure:
                failures.append(failure)
                cut_short = isinstance(failure, TimeLimit)
            else:
                cut_short = proposal.cut_short
                rows = evaluator_of(graph, self.memory).sequence(proposal.schedule)
                if graph is self.search_graph:
                    origin, twins = self._origins
                    found += [origin[rows], origin[rows[~np.isin(rows, list(twins))]]]
                else:
                    found.append(rows)
            if cut_short or problem.stop.now:
                break
        if not found:
            raise max(failures, key=lambda failure: isinstance(failure, TimeLimit))
        return found, cut_short

    def in_plan(self, schedule: Schedule, trace: Trace) -> tuple[PatternReport, ...]:
        """What became of each pattern in a plan, measured on its replay."""
        measure = Measure(self.graph, self.memory, schedule, trace)
        return tuple(
            replace(ruling, applied=measure.of(names)) for ruling, names in zip(self.rulings, self.named, strict=True)
        )

    def check(self, schedule: Schedule) -> None:
        """See `check_obeyed`."""
        check_obeyed(self.graph, schedule, saved=self.saved, rerun=self.rerun)


def _counting(watch: Watch | None) -> Watch | None:
    """For plans that may not obey: they are counted, and none is the best."""
    return None if watch is None else lambda strategy, peak_bytes, cost, fits: watch(strategy, peak_bytes, cost, False)


def _free_suffix(op: Op, taken: set[str]) -> str:
    suffix = _TWIN
    while op.name + suffix in taken or any(t.name + suffix in taken for t in op.outputs):
        suffix += "'"
    return suffix


def _twin_of(op: Op) -> str:
    """The op that a rerun repeats: the first it comes after."""
    return op.after[0]
