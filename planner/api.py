"""The verbs: search, pack, judge, and hand over a plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import TYPE_CHECKING, Any

import msgspec

from planner import mxnet
from planner import plan as plans
from planner.analysis.evaluator import evaluator_of
from planner.errors import InfeasibleBudget, PlanFileError, PlannerError, TimeLimit, VerificationError
from planner.graph import Graph
from planner.lowering.read import GraphLike
from planner.lowering.schema import lower
from planner.lowering.step import with_step
from planner.memory import Allocation, MemoryModel
from planner.packing import find_allocator
from planner.plan import Plan
from planner.planning.curve import Curve
from planner.planning.session import Candidate, Missed, Progress, Session
from planner.planning.sweep import Sweep, SweepProgress
from planner.policy import rule_list
from planner.problem import (
    Allocator,
    Budget,
    Order,
    Request,
    Status,
    Stop,
    Strategy,
    as_number,
    check_memory,
    usable,
    with_reserve,
)
from planner.remedies import Shortfall
from planner.report import named_at_peak
from planner.schedule import Schedule
from planner.search import find_strategy
from planner.simulator import Trace
from planner.simulator import simulate as judge
from planner.text import as_int, shown
from planner.training_step import TrainingStep
from planner.units import MAX_BYTES, BudgetText
from planner.zoo import opened, opened_under

if TYPE_CHECKING:
    from planner.footprint.explain import Explanation

MOST_BUDGETS = 1000
mxnet.register()


def optimize(
    graph: GraphLike,
    budget: BudgetText | None = None,
    *,
    step: TrainingStep | None = None,
    strategy: str | Strategy = "auto",
    allocator: str | Allocator | None = "auto",
    memory: MemoryModel = MemoryModel(),
    order: Order = "free",
    save: str | Sequence[str] = (),
    recompute: str | Sequence[str] = (),
    effort: float = 1.0,
    time_limit: float | None = None,
    seed: int = 0,
    starts: Sequence[Plan] = (),
    least: bool = True,
    progress: Callable[[Status], None] | None = None,
) -> Plan:
    """The cheapest plan found that fits the budget; without a budget, the one of least peak.

    The judge replays every plan, packed, before it is returned. Where the arena misses a budget that the peak meets,
    the strategy is asked again for less; where packing wastes more than a thousandth of the plan of least peak, the
    strategy is asked for plans that pack tighter.

    Args:
        graph: a networkx DiGraph in the schema, a `Graph`, the name of a zoo model such as `"resnet50"`, which has a
            batch of 1, or the path of an ONNX or JSON file. A model comes before a file of its name.
        budget: `"7GB"`, `"7GiB"`, bytes, a fraction (`0.4`, `"40%"`) of the peak without recomputation in the same
            scope, a device (`"t4"`, `"RTX 4090"`), or `"auto"`: what the device has free.
        step: the training step that runs. A forward graph is differentiated and given it; a graph that is a step
            already is rewritten where gradients and updates can be told. None: the graph as it is.
        strategy: a registered name, or a callable Problem -> Proposal.
        allocator: a registered name, or a callable; None plans live bytes, without offsets.
        memory: what the budget covers. Where the budget is a device and no reserve is given, 512 MiB of it are kept
            for its context.
        order: "pinned" forbids first runs in another order than the program's.
        save: patterns over ops that are never computed again: a name (`"conv*"`), `"op:Conv"` for an op type,
            `"module:layer1"` for a module and all inside it.
        recompute: the same patterns over forward ops of which nothing is kept for the backward pass, which computes
            again what it needs of them; or a preset: `"none"` (nothing else is computed again), `"selective"` (cheap
            ops), `"full"` (everything between about sqrt(n) boundaries) or `"auto"` (the search decides). Where
            patterns meet, `save` wins, and a pattern wins over a preset. The report says what became of each; see
            `planner.policy`.
        effort: search work relative to the default; counted in moves, so the result is the same on any machine.
        time_limit: seconds; the best plan so far is returned, and says that it was cut short.
        starts: plans of the same graph that the search begins from, as `InfeasibleBudget.plan`; the result is no worse
            than those that fit.
        least: where nothing fits, look for the least that works; False: the error comes at once.
        progress: called at each plan judged, with a `Status`; it has no say in the result, and what it raises ends
            the search.
    Raises:
        InfeasibleBudget: no plan fits; carries the least that works, and what no plan can go below.
        TimeLimit: the limit passed before a plan was found.
        GraphError, UnitError, UnknownStrategy, UnknownAllocator: the arguments.
        PlannerError: a pattern that names no op, or none that can obey it; a strategy, allocator or `progress` that
            is not callable, or of which the answer is of another type.
        KeyboardInterrupt: Ctrl-C came before there was a plan; after that, it ends the search with the best so far.

    >>> import networkx as nx
    >>> g = nx.DiGraph()
    >>> g.add_node("a", nbytes=4)
    >>> g.add_node("b", nbytes=2)
    >>> g.add_edge("a", "b")
    >>> optimize(g, "100%").report.plan
    Figures(peak_bytes=6, arena_bytes=6, cost=2.0)
    """
    memory = with_reserve(memory, budget)
    request, search, allocate = _request(
        strategy,
        allocator,
        memory=memory,
        order=order,
        save=save,
        recompute=recompute,
        seed=seed,
        effort=effort,
        step=step,
    )
    if budget is not None:
        Budget.read(budget)  # what is not understood is refused before any work
    told, stop = None if progress is None else Progress(progress), _stop(time_limit)
    program = _program(graph, step)
    with stop.listening(), _interruptible(stop):
        given = _schedules(starts, program)
        session = Session(
            program,
            request,
            search=search,
            allocate=allocate,
            stop=stop,
            progress=told,
            advise=_advise,
            starts=given,
            least=least,
        )
        if budget is not None:
            session = session.asking(budget=Budget.read(budget, keep_all_peak_bytes=session.keep_all.trace.peak_bytes))
        return session.plan(session.solve())


def curve(
    graph: GraphLike,
    budgets: int | BudgetText | Sequence[BudgetText] = 16,
    *,
    step: TrainingStep | None = None,
    strategies: str | Strategy | Sequence[str | Strategy] = ("auto",),
    allocator: str | Allocator | None = "auto",
    memory: MemoryModel = MemoryModel(),
    order: Order = "free",
    save: str | Sequence[str] = (),
    recompute: str | Sequence[str] = (),
    effort: float = 1.0,
    time_limit: float | None = None,
    seed: int = 0,
    jobs: int | None = None,
    resume: str | os.PathLike[str] | None = None,
    progress: SweepProgress | None = None,
) -> Curve:
    """What memory costs: the cheapest plan found at each of many budgets, by each of several strategies.

    Within a strategy every plan found serves every budget that it fits, so that a larger budget never costs more, and
    is where the searches at its neighbours begin. Each point says what no plan within its budget can cost less than,
    and has its plan (`Curve.plan`).

    Args:
        graph, step, allocator, memory, order, save, recompute, effort, seed: as for `optimize`.
        budgets: an int: that many, from the least arena any of the strategies reaches to the one without recomputation,
            dense at the least, where costs rise. A list: each in any form that `optimize` takes (`[7_000_000_000]`,
            `["4GB", "40%"]`); equals are asked once. Where no reserve is given, a device (`"t4"`) stands for what its
            context leaves of it.
        strategies: registered names, or callables.
        time_limit: seconds for the whole curve; what it stops is marked so.
        jobs: processes; -1 takes every core. None leaves it to joblib's context: one, unless there is a context.
            Within `joblib.parallel_config(backend="dask")` the searches run on the cluster of the `distributed.Client`,
            and within `parallel_config(backend="ray")`, after `ray.util.joblib.register_ray()`, on that of ray; the
            package must be installed there. The curve is the same wherever it is found. A cluster that shares no disk
            with this machine hears no Ctrl-C: searches under way end, and no more are sent.
        resume: a file with a JSON line for each search that has ended, made where it is missing. Searches that it holds
            are not made again, so that after Ctrl-C, a crash or a time limit the same call goes on where it stopped, to
            the curve that it would have found at once. A strategy of your own is known by its name alone.
        progress: called after each search and each bound with (done, total, what).
    Raises:
        GraphError, UnitError, UnknownStrategy, UnknownAllocator, PlannerError: the arguments. A budget that nothing
            fits is a point of the curve, not an error. Ctrl-C returns the points found so far, if there are any.
        PlanFileError: the file to resume from is of another graph, request or version of this package, or damaged.

    >>> from planner import zoo
    >>> [(point.budget, point.cost) for point in curve(zoo.chain(8), [7, 8, 9]).points]  # public case C1
    [(7, 19.0), (8, 18.0), (9, 17.0)]
    """
    request, _, allocate = _request(
        "auto",
        allocator,
        memory=memory,
        order=order,
        save=save,
        recompute=recompute,
        seed=seed,
        effort=effort,
        step=step,
    )
    wanted, searches, stop = _wanted(budgets, memory), _searches(strategies), _stop(time_limit)
    processes = None if jobs is None else as_int(jobs)
    if jobs is not None and not (processes == -1 or (processes is not None and processes >= 1)):
        raise PlannerError(f"jobs {shown(jobs)} is not a number of processes >= 1, or -1 for every core, or None")
    if progress is not None and not callable(progress):
        raise PlannerError(f"progress {shown(progress)} is not callable")
    if resume is not None and not isinstance(resume, (str, os.PathLike)):
        raise PlannerError(f"resume {shown(resume)} is not the path of a file")
    program = _program(graph, step)
    with stop.listening(), _interruptible(stop):
        session = Session(program, msgspec.structs.replace(request, strategy=""), allocate=allocate, stop=stop)
        sweep = Sweep(session, searches, allocator=allocator, jobs=processes, progress=progress)
        return sweep.curve(wanted, resume=resume)


def _schedules(starts: Sequence[Plan], program: Graph) -> tuple[Schedule, ...]:
    """The schedules of plans of this program."""
    for plan in starts:
        if not isinstance(plan, Plan):
            raise PlannerError(f"starts has {shown(plan, 80)}, which is no Plan")
        if plan.graph.fingerprint != program.fingerprint:
            raise PlannerError(f"starts has a plan of another graph ({plan.graph.name!r}, not {program.name!r})")
    return tuple(plan.schedule for plan in starts)


def _program(graph: GraphLike, step: TrainingStep | None) -> Graph:
    """The program of a graph in any form, under a training step."""
    return with_step(opened_under(graph, step), step)


def explain(plan: Plan, subject: str | None = None, *, search: bool = True, effort: float | None = None) -> Explanation:
    """Why a tensor is kept or recomputed, who holds it and what the other decision would cost; or what the peak is.

    What is not decided so is found by planning again: nothing is told from a formula. `Plan.explain` is this.

    Args:
        subject: a value, an op or a module; None: what the peak is made of, why it is no lower, and what would help.
        search: False leaves out what is planned again, which takes as long as the plan did.
        effort: of that search. Default: the plan's own, so that costs compare.
    Raises:
        PlannerError: nothing of that name.

    >>> import networkx as nx
    >>> g = nx.DiGraph()
    >>> g.add_node("a", nbytes=4)
    >>> print(explain(optimize(g), "a", search=False))
    a: 4 B of activations
    It is kept: op a runs once.
      Made at step 1, held to the end.
    It has 4 B of the 4 B at the peak (step 1, op a), 100 %.
    """
    from planner.footprint.explain import explain as explained

    return explained(plan, subject, search=optimize if search else None, effort=effort)


plans.explain_by(explain)


def _wanted(budgets: int | BudgetText | Sequence[BudgetText], memory: MemoryModel) -> int | tuple[BudgetText, ...]:
    """A number of budgets, or the budgets; refused before any work."""
    count = as_int(budgets)
    if count is not None:
        if not 1 <= count <= MOST_BUDGETS:
            hint = f"; for one budget in bytes write [{count}]" if MOST_BUDGETS < count <= MAX_BYTES else ""
            raise PlannerError(f"{shown(count)} is not a number of budgets from 1 to {MOST_BUDGETS}{hint}")
        return count
    try:
        listed: tuple[Any, ...] = (budgets,) if isinstance(budgets, (Real, str, bytes)) else tuple(budgets)  # type: ignore[arg-type]
    except TypeError:
        raise PlannerError(f"budgets {shown(budgets)} is neither a number of them nor a list") from None
    if not 1 <= len(listed) <= MOST_BUDGETS:
        raise PlannerError(f"{len(listed)} budgets were given; a curve has from 1 to {MOST_BUDGETS}")
    return tuple(usable(budget, memory) for budget in listed)


def _searches(strategies: str | Strategy | Sequence[str | Strategy]) -> dict[str, Strategy]:
    try:
        listed = [strategies] if isinstance(strategies, str) or callable(strategies) else list(strategies)
    except TypeError:
        raise PlannerError(f"strategies {shown(strategies)} is neither a strategy nor a list of them") from None
    searches: dict[str, Strategy] = {}
    for strategy in listed:
        name, search = find_strategy(strategy)
        if name in searches:
            raise PlannerError(f"two strategies are named {name!r}; give each a name of its own by register_strategy")
        searches[name] = search
    if not searches:
        raise PlannerError("no strategy was named")
    return searches


def _request(strategy: Any, allocator: Any, **asked: Any) -> tuple[Request, Strategy, Allocator | None]:
    """What is asked, checked, and the callables for its names."""
    asked |= {option: rule_list(asked[option], option=option) for option in ("save", "recompute")}
    name, search = find_strategy(strategy)
    packer, allocate = (None, None) if allocator is None else find_allocator(allocator)
    return Request(strategy=name, allocator=packer, **asked), search, allocate


def _stop(time_limit: float | None) -> Stop:
    if time_limit is not None and not as_number(time_limit) > 0:
        raise PlannerError(f"time limit {shown(time_limit)} is not a number of seconds above 0")
    return Stop.after(None if time_limit is None else as_number(time_limit))


@contextmanager
def _interruptible(stop: Stop) -> Iterator[None]:
    """A search that Ctrl-C ended without any plan ends as Ctrl-C ends any program."""
    try:
        yield
    except (TimeLimit, InfeasibleBudget):
        if stop.interrupted:
            raise KeyboardInterrupt from None
        raise


def _advise(session: Session, missed: Missed) -> Shortfall:
    """What recomputation cannot mend, and what would, where no plan fits."""
    from planner.footprint.advice import shortfall
    from planner.footprint.components import Simulated

    def run(candidate: Candidate) -> Simulated:
        schedule, trace = candidate.proposal.schedule, candidate.trace
        evaluator = evaluator_of(session.graph, session.memory)
        return Simulated(session.graph, session.memory, evaluator=evaluator, schedule=schedule, trace=trace)

    return shortfall(
        run(session.keep_all),
        run(missed.least),
        allowed=session.request.live_budget or 0,
        reached_bytes=missed.reached_bytes,
        packing_bytes=missed.least.arena_bytes - missed.least.trace.peak_bytes,
    )


def _check_schedule(schedule: Schedule) -> None:
    if not isinstance(schedule, Schedule):
        raise PlannerError(f"schedule {shown(schedule)} is not a Schedule; write Schedule.of([Compute(...), ...])")


def allocate(
    graph: GraphLike, schedule: Schedule, *, allocator: str | Allocator = "auto", memory: MemoryModel = MemoryModel()
) -> Allocation:
    """Offsets for every buffer of a schedule, checked by the judge.

    Raises:
        PlannerError: the arguments.
        ScheduleError: the schedule is illegal.
        VerificationError: the allocator's offsets are.
        UnknownAllocator: no such name.

    >>> import networkx as nx
    >>> g = nx.DiGraph()
    >>> g.add_node("a", nbytes=4)
    >>> allocate(g, optimize(g).schedule).arena_bytes
    4
    """
    _check_schedule(schedule)
    check_memory(memory)
    name, allocate_buffers = find_allocator(allocator)
    program = lower(opened(graph))
    judge(program, schedule, memory=memory)
    allocation = allocate_buffers(program, schedule, memory=memory)
    if not isinstance(allocation, Allocation):
        raise VerificationError(f"allocator {name!r} returned {shown(allocation)}, no Allocation")
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
    _check_schedule(schedule)
    check_memory(memory)
    if allocation is not None and not isinstance(allocation, Allocation):
        raise PlannerError(f"allocation {shown(allocation)} is not an Allocation, nor None")
    program = lower(opened(graph))
    trace = judge(program, schedule, memory=memory, allocation=allocation)
    return msgspec.structs.replace(trace, live_at_peak=named_at_peak(program, schedule, trace))


def load(path: str | os.PathLike[str], graph: GraphLike | None = None) -> Plan:
    """A plan from its file. Nothing in the file is executed; its claims are checked by `Plan.verify`.

    Args:
        path: what `Plan.save` wrote.
        graph: refuse a plan of any other graph; in any form that `optimize` takes.
    Raises:
        PlanFileError: missing, not a plan, another version, damaged, or the plan of another graph.
        GraphError: the graph is unreadable or invalid.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise PlanFileError(f"{shown(path)} is not the path of a plan file")
    return plans.load(path, None if graph is None else lower(opened(graph)))
