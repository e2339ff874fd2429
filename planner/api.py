"""The verbs: search, pack, judge, and hand over a plan."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from typing import Union

import networkx as nx

from planner.analysis.bounds import peak_lower_bound
from planner.curves import Curve
from planner.errors import PlannerError
from planner.graph import Graph
from planner.lowering.files import read_graph
from planner.lowering.schema import lower
from planner.memory import Allocation, MemoryModel
from planner.packing import find_allocator
from planner.plan import Plan
from planner.problem import Allocator, Order, Problem, Strategy
from planner.schedule import Schedule
from planner.search import find_strategy
from planner.simulator import Trace
from planner.simulator import simulate as judge
from planner.solving import Work
from planner.sweeps import Progress, Sweep
from planner.units import MAX_BYTES, Budget, parse_budget

GraphLike = Union[nx.DiGraph, Graph, str, os.PathLike[str]]
MOST_BUDGETS = 1000


def optimize(
    graph: GraphLike,
    budget: Budget | None = None,
    *,
    strategy: str | Strategy = "auto",
    allocator: str | Allocator | None = "auto",
    memory: MemoryModel = MemoryModel(),
    order: Order = "free",
    effort: float = 1.0,
    time_limit: float | None = None,
    seed: int = 0,
) -> Plan:
    """The cheapest plan found that fits the budget; without a budget, the one of least peak.

    Whatever a strategy proposes is packed and replayed by the judge before it is returned. Where the arena misses the budget
    that the peak meets, the search is asked again for the difference.

    Args:
        graph: a networkx DiGraph in the schema, a `Graph`, or the path of an ONNX or JSON file.
        budget: `"7GB"`, `"7GiB"`, bytes, a fraction of the keep-all peak in the same scope (`0.4`, `"40%"`), or `"auto"`: what the
            device has free.
        strategy: a registered name, or a callable Problem -> Proposal.
        allocator: a registered name, or a callable; None plans live bytes, without offsets.
        memory: what the budget covers.
        order: "pinned" forbids first runs in another order than the program's.
        effort: search work relative to the default; counted in moves, so the result is the same on any machine.
        time_limit: seconds; the best plan so far is returned, and says that it was cut short.
    Raises:
        InfeasibleBudget: no plan fits; carries the least that works, and what no plan can go below.
        TimeLimit: the limit passed before a plan was found.
        GraphError, UnitError, UnknownStrategy, UnknownAllocator: the arguments.

    >>> import networkx as nx
    >>> g = nx.DiGraph()
    >>> g.add_node("a", nbytes=4)
    >>> g.add_node("b", nbytes=2)
    >>> g.add_edge("a", "b")
    >>> optimize(g, "100%").report.plan
    Figures(peak_bytes=6, arena_bytes=6, cost=2.0)
    """
    deadline = _deadline(order, effort, time_limit, seed)
    if budget is not None:
        parse_budget(budget, MAX_BYTES)  # refuse what is not understood before any work
    program = as_graph(graph)
    name, search = find_strategy(strategy)
    work = Work(program, allocator, memory)
    budget_bytes = None if budget is None else parse_budget(budget, work.keep_all.trace.peak_bytes)
    problem = Problem(program, None, memory, order, seed, float(effort), deadline)
    solution = work.solve(name, search, problem, budget_bytes)
    report = work.report(name, solution, budget_bytes, "least peak" if budget is None else str(budget))
    return Plan(
        program, solution.proposal.schedule, solution.allocation, report, name, work.allocator_name, budget_bytes, memory, seed,
        float(effort),
    )  # fmt: skip


def curve(
    graph: GraphLike,
    budgets: int | Budget | Sequence[Budget] = 16,
    *,
    strategies: str | Strategy | Sequence[str | Strategy] = ("auto",),
    allocator: str | Allocator | None = "auto",
    memory: MemoryModel = MemoryModel(),
    order: Order = "free",
    effort: float = 1.0,
    time_limit: float | None = None,
    seed: int = 0,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Curve:
    """What memory costs: the cheapest plan found at each of many budgets, by each of several strategies.

    Within a strategy every plan found serves every budget that it fits, so that a larger budget never costs more.

    Args:
        graph, allocator, memory, order, effort, seed: as for `optimize`.
        budgets: an int: that many, evenly from the least arena any of the strategies reaches to that of keep-all. A list: each in any
            form that `optimize` takes (`[7_000_000_000]`, `["4GB", "40%"]`); equals are asked once.
        strategies: registered names, or callables.
        time_limit: seconds for the whole curve; what it stops is marked so.
        jobs: processes; -1 takes every core. The curve is the same with any number.
        progress: called after each search with (done, total, what).
    Raises:
        GraphError, UnitError, UnknownStrategy, UnknownAllocator, PlannerError: the arguments. A budget that nothing fits is a point
            of the curve, not an error. Ctrl-C returns the points found so far, if there are any.

    >>> from planner import zoo
    >>> [(point.budget, point.cost) for point in curve(zoo.chain(8), [7, 8, 9]).points]  # public case C1
    [(7, 19.0), (8, 18.0), (9, 17.0)]
    """
    deadline = _deadline(order, effort, time_limit, seed)
    wanted = _wanted(budgets)
    searches = _searches(strategies)
    if isinstance(jobs, bool) or not isinstance(jobs, int) or not (jobs >= 1 or jobs == -1):
        raise PlannerError(f"jobs {jobs!r} is not a number of processes >= 1, or -1 for every core")
    program = as_graph(graph)
    work = Work(program, allocator, memory)
    problem = Problem(program, None, memory, order, seed, float(effort), deadline)
    sweep = Sweep(work, problem, searches, allocator=allocator, jobs=jobs, progress=progress)
    points = sweep.points(wanted)
    return Curve(
        graph=program.name,
        fingerprint=program.fingerprint,
        ops=sum(not op.resident for op in program.ops),
        keep_all=work.keep_all.figures,
        peak_lower_bound=peak_lower_bound(program, memory).nbytes,
        memory=memory,
        strategies=tuple(searches),
        points=points,
        allocator=work.allocator_name,
        order=order,
        effort=float(effort),
        seed=seed,
    )


def _wanted(budgets: int | Budget | Sequence[Budget]) -> int | tuple[Budget, ...]:
    """A number of budgets, or the budgets; refused before any work."""
    if isinstance(budgets, int) and not isinstance(budgets, bool):
        if not 1 <= budgets <= MOST_BUDGETS:
            hint = f"; for one budget in bytes write [{budgets}]" if budgets > MOST_BUDGETS else ""
            raise PlannerError(f"{budgets!r} is not a number of budgets from 1 to {MOST_BUDGETS}{hint}")
        return budgets
    try:
        listed = (budgets,) if isinstance(budgets, (bool, float, str)) else tuple(budgets)
    except TypeError:
        raise PlannerError(f"budgets {budgets!r} is neither a number of them nor a list") from None
    if not 1 <= len(listed) <= MOST_BUDGETS:
        raise PlannerError(f"{len(listed)} budgets were given; a curve has from 1 to {MOST_BUDGETS}")
    for budget in listed:
        parse_budget(budget, MAX_BYTES)
    return listed


def _searches(strategies: str | Strategy | Sequence[str | Strategy]) -> dict[str, Strategy]:
    listed = [strategies] if isinstance(strategies, str) or callable(strategies) else list(strategies)
    searches: dict[str, Strategy] = {}
    for strategy in listed:
        name, search = find_strategy(strategy)
        if name in searches:
            raise PlannerError(f"two strategies are named {name!r}; give each a name of its own by register_strategy")
        searches[name] = search
    if not searches:
        raise PlannerError("no strategy was named")
    return searches


def _deadline(order: Order, effort: float, time_limit: float | None, seed: int) -> float | None:
    """Refuse options that cannot be meant; the `time.monotonic()` at which the search ends."""
    if order not in ("free", "pinned"):
        raise PlannerError(f"order {order!r} is not 'free' or 'pinned'")
    if not (isinstance(effort, (int, float)) and math.isfinite(effort) and effort > 0):
        raise PlannerError(f"effort {effort!r} is not a number above 0")
    if time_limit is not None and not (isinstance(time_limit, (int, float)) and time_limit > 0):
        raise PlannerError(f"time limit {time_limit!r} is not a number of seconds above 0")
    if not isinstance(seed, int):
        raise PlannerError(f"seed {seed!r} is not an int")
    return None if time_limit is None else time.monotonic() + time_limit


def allocate(
    graph: GraphLike, schedule: Schedule, *, allocator: str | Allocator = "auto", memory: MemoryModel = MemoryModel()
) -> Allocation:
    """Offsets for every buffer of a schedule, checked by the judge.

    Raises:
        ScheduleError: the schedule is illegal.
        VerificationError: the allocator's offsets are.
        UnknownAllocator: no such name.

    >>> import networkx as nx
    >>> g = nx.DiGraph()
    >>> g.add_node("a", nbytes=4)
    >>> allocate(g, optimize(g).schedule).arena_bytes
    4
    """
    program = as_graph(graph)
    judge(program, schedule, memory=memory)
    allocation = find_allocator(allocator)[1](program, schedule, memory=memory)
    judge(program, schedule, memory=memory, allocation=allocation)
    return allocation


def simulate(
    graph: GraphLike, schedule: Schedule, *, memory: MemoryModel = MemoryModel(), allocation: Allocation | None = None
) -> Trace:
    """The judge's verdict on a schedule; see `planner.simulator.simulate`. Takes any form of a graph.

    >>> import networkx as nx
    >>> g = nx.DiGraph()
    >>> g.add_node("a", nbytes=4)
    >>> simulate(g, optimize(g).schedule).peak_bytes
    4
    """
    return judge(as_graph(graph), schedule, memory=memory, allocation=allocation)


def as_graph(graph: GraphLike) -> Graph:
    """The program of a graph in any form.

    Raises:
        GraphError: unreadable or invalid.
    """
    if isinstance(graph, (str, os.PathLike)):
        graph = read_graph(graph)
    return lower(graph)
