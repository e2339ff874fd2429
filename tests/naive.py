"""Slow obvious twins: the exhaustive oracle, the memory rules, buffers and overlaps.

Written from `design.md` section 4 and from `cases.md`; nothing here imports more of `planner` than its plain types and
rule 11, and nothing is quick. Every function works from the whole history again instead of keeping state.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from planner import schedule as rules
from planner.graph import Graph, Op
from planner.memory import Allocation, Buffer, MemoryModel
from planner.schedule import Compute, Free, Schedule, Step

#: Rules 11 and 1 as the judge's side has them; `test_schedule` compares them with the kernels.
canonical_steps, keep_all = rules.canonical, rules.keep_all

# ------------------------------------------------------------------------------------------------ cases.md's oracle


def parse(text: str) -> dict[str, tuple]:
    """`cases.md`, word for word: name -> (inputs, size, cost[, workspace])."""
    found = {}
    for word in text.split():
        name, rest = word.split("<")
        inputs, numbers = rest.split(":")
        found[name] = ([x for x in inputs.split(",") if x], *map(float, numbers.split(",")))
    return found


class Best(NamedTuple):
    """The oracle's answer: least peak or least cost, and a schedule that reaches it."""

    value: float
    steps: tuple[tuple[str, str], ...]


def search(
    program: dict[str, tuple],
    outs: Iterable[str],
    budget: float | None = None,
    *,
    once: Collection[str] = (),
    must: Collection[str] = (),
    after: dict[str, Collection[str]] | None = None,
) -> Best | None:
    """Shortest path over (live values, ops that ran): the oracle of `cases.md` with rules 6 and 12 of the design added.

    Args:
        program: as `parse` gives it; names that nobody defines are residents and cost nothing.
        budget: None: least possible peak. Else least total cost within it.
        once: nodes that run at most once.
        must: nodes that have to run although no output needs them.
        after: node -> nodes that must have run before its first run.
    Returns:
        None where no order fits the budget.
    """
    after = after or {}
    names = list(program)
    bit = {name: 1 << k for k, name in enumerate(names)}

    def bits(some: Iterable[str]) -> int:
        return sum(bit[name] for name in set(some) if name in bit)

    needs = [bits(program[name][0]) for name in names]
    waits = [bits(after.get(name, ())) for name in names]
    once_bits, must_bits, goal = bits(once), bits(must), bits(outs)
    watched = once_bits | must_bits
    for name in names:
        watched |= bits(after.get(name, ()))
        watched |= bit[name] if after.get(name) else 0

    def size(live: int) -> float:
        return sum(program[name][1] for name in names if live & bit[name])

    start = (0, 0)
    best: dict[tuple[int, int], float] = {start: 0}
    came: dict[tuple[int, int], tuple[tuple[int, int], tuple[str, str]]] = {}
    queue: list[tuple[float, int, int]] = [(0, 0, 0)]
    while queue:
        value, live, ran = heapq.heappop(queue)
        if value > best[live, ran]:
            continue
        if live & goal == goal and ran & must_bits == must_bits:
            return Best(value, _path(came, (live, ran)))
        total = size(live)
        for k, name in enumerate(names):
            one = 1 << k
            if live & one:
                state, then, move = (live ^ one, ran), value, ("free", name)
            elif needs[k] & ~live or ran & one & once_bits or (waits[k] & ~ran and not ran & one):
                continue
            else:
                _inputs, nbytes, cost, *workspace = program[name]
                peak = total + nbytes + (workspace[0] if workspace else 0)
                if budget is not None and peak > budget:
                    continue
                then = max(value, peak) if budget is None else value + cost
                state, move = (live | one, ran | one & watched), ("compute", name)
            if then < best.get(state, math.inf):
                best[state] = then
                came[state] = ((live, ran), move)
                heapq.heappush(queue, (then, *state))
    return None


def _path(came: dict, state: tuple[int, int]) -> tuple[tuple[str, str], ...]:
    moves = []
    while state in came:
        state, move = came[state]
        moves.append(move)
    return tuple(reversed(moves))


def best(
    program: dict[str, tuple], outs: Iterable[str], budget: float | None = None, once: Collection[str] = ()
) -> float | None:
    """`cases.md`: the least possible peak, or the least cost within a budget; None = impossible."""
    found = search(program, outs, budget, once=once)
    return None if found is None else found.value


def peak(program: dict[str, tuple], order: Sequence[str], outs: Collection[str]) -> float:
    """`cases.md`: peak of an order (repeats = recompute), every value dropped after its last use."""
    live: dict[str, float] = {}
    most = 0.0
    for t, name in enumerate(order):
        inputs, nbytes, _cost, *workspace = program[name]
        assert all(i in live for i in inputs if i in program), name
        most = max(most, sum(live.values()) + (0 if name in live else nbytes) + sum(workspace))
        live[name] = nbytes
        for value in list(live):
            following = next((w for w in order[t + 1 :] if w == value or value in program[w][0]), None)
            if (following is None and value not in outs) or following == value:
                del live[value]
    return most


def oracle(
    graph: Graph, budget: int | None = None, *, memory: MemoryModel = MemoryModel()
) -> tuple[float, Schedule] | None:
    """Least peak in bytes (no budget) or least cost of any schedule with peak + reserve <= budget; and such a schedule.

    For graphs of at most one output per op and without views, updates and in-place pairs; about 20 ops.

    Returns:
        None where nothing fits the budget. A least peak includes residents (in scope "total"), not the reserve.
    """
    ops = [op for op in graph.ops if op.kind == "op"]
    for op in ops:
        assert len(op.outputs) <= 1, f"{op.name} has several outputs"
        assert (op.view, op.updates, op.inplace) == ((), (), ()), f"{op.name} aliases"
    nbytes = {op.name: memory.round_up(op.outputs[0].nbytes) if op.outputs else 0 for op in ops}
    maker = {op.outputs[0].name: op.name for op in ops if op.outputs}
    program = {
        op.name: ([maker[v] for v in op.reads if v in maker], nbytes[op.name], op.cost, op.workspace) for op in ops
    }
    residents = _resident_bytes(graph, memory)
    found = search(
        program,
        [op.name for op in ops if op.outputs and op.outputs[0].output],
        None if budget is None else budget - (memory.reserve or 0) - residents,
        once=[op.name for op in ops if not op.recomputable or not op.outputs],
        must=[op.name for op in ops],
        after={op.name: [name for name in op.after if name in program] for op in ops},
    )
    if found is None:
        return None
    value_of = {op.name: op.outputs[0].name if op.outputs else None for op in ops}
    steps: list[Step] = []
    for kind, name in found.steps:
        value = value_of[name]
        if kind == "compute":
            steps.append(Compute(name))
        elif value is not None:
            steps.append(Free(value))
    return found.value + (residents if budget is None else 0), Schedule.of(steps)


def least_peak(graph: Graph, *, memory: MemoryModel = MemoryModel()) -> int:
    """The least possible peak in bytes; see `oracle`."""
    found = oracle(graph, memory=memory)
    assert found is not None
    return int(found[0])


def least_cost(graph: Graph, budget: int, *, memory: MemoryModel = MemoryModel()) -> float | None:
    """The least possible cost within a budget, or None; see `oracle`."""
    found = oracle(graph, budget, memory=memory)
    return None if found is None else found[0]


# ------------------------------------------------------------------------------------------------ residents


def program_order(graph: Graph) -> list[str]:
    """The ops of keep-all."""
    return [op.name for op in graph.ops if op.kind == "op"]


def is_resident_version(graph: Graph, value: str) -> bool:
    """A resident, or what a chain of updates (over views or not) has made of one: rule 3 forbids to free it."""
    op = graph.producer[value]
    if op.kind != "op":
        return True
    return any(op.outputs[o].name == value and _root(graph, op.reads[i]).kind != "op" for i, o in op.updates)


def _root(graph: Graph, value: str) -> Op:
    """The op that made the storage, in-place aside."""
    op = graph.producer[value]
    for i, o, *_ in (*op.view, *op.updates):
        if op.outputs[o].name == value:
            return _root(graph, op.reads[i])
    return op


def instance(graph: Graph, ops: Sequence[str], t: int, value: str) -> tuple[str, int]:
    """(value, step of its making) of the storage under a value's newest instance before step t, in-place aside."""
    op = graph.producer[value]
    if op.kind != "op":
        return value, -1
    made = max(s for s in range(t) if ops[s] == op.name)
    for i, o, *_ in (*op.view, *op.updates):
        if op.outputs[o].name == value:
            return instance(graph, ops, made, op.reads[i])
    return value, made


def runs(schedule: Schedule) -> list[tuple[str, frozenset[str]]]:
    """(op, values freed directly after it) for each Compute: the order of the frees does not count."""
    pairs: list[tuple[str, set[str]]] = []
    for step in schedule.steps:
        if isinstance(step, Compute):
            pairs.append((step.op, set()))
        else:
            pairs[-1][1].add(step.value)
    return [(op, frozenset(freed)) for op, freed in pairs]


# ------------------------------------------------------------------------------------------------ rules 2 to 10, 12, 13


class Illegal(Exception):
    """A schedule breaks a rule at a step; None is the end."""

    def __init__(self, step: int | None, reason: str) -> None:
        super().__init__(f"step {step}: {reason}")
        self.step = step


Storage = tuple[str, int]  # the value whose making allocated it, and which run of its op that was


class Moment(NamedTuple):
    """The machine after the steps so far."""

    on: dict[str, Storage]  # live value -> its storage
    copies: tuple[Storage, ...] = ()  # siblings made anew for this step only (rule 8)
    during: frozenset[Storage] = frozenset()  # non-resident storages that exist while this step runs, copies included
    inplace: tuple[tuple[str, int, str], ...] = ()  # (output, run, input) that happened so far


def _freed_after(steps: Sequence[Step], k: int) -> set[str]:
    freed = set()
    for step in steps[k + 1 :]:
        if isinstance(step, Compute):
            break
        freed.add(step.value)
    return freed


def _ran(steps: Sequence[Step], k: int, name: str) -> int:
    return sum(isinstance(step, Compute) and step.op == name for step in steps[:k])


def _is_resident(graph: Graph, storage: Storage) -> bool:
    return graph.producer[storage[0]].kind != "op"


def _compute(
    graph: Graph, steps: Sequence[Step], k: int, before: Moment, allowed: Collection[tuple[str, int, str]] | None
) -> Moment:
    op = graph.op_named.get(steps[k].op)
    if op is None or op.kind != "op":
        raise Illegal(k, "not an op")
    run = _ran(steps, k, op.name)
    if run and (not op.recomputable or not op.outputs):
        raise Illegal(k, "ran before")
    for other in op.after:
        if not run and graph.op_named[other].kind == "op" and not _ran(steps, k, other):
            raise Illegal(k, "order")
    for value in op.reads:
        if value not in before.on:
            raise Illegal(k, f"{value} is not live")
    kept = {o for o, tensor in enumerate(op.outputs) if tensor.name in before.on}
    if op.outputs and len(kept) == len(op.outputs):
        raise Illegal(k, "all outputs live")
    under = [before.on[value] for value in op.reads]
    overwritten = {under[i] for i, _ in op.updates}
    on = {value: storage for value, storage in before.on.items() if storage not in overwritten}
    aliased = set()
    for i, o, *_ in (*op.updates, *op.view):
        aliased.add(o)
        if o not in kept:
            on[op.outputs[o].name] = under[i]
    freed = _freed_after(steps, k)
    taken = set(overwritten)
    happened = []
    for i, o, identity in op.inplace:
        name, storage = op.outputs[o].name, under[i]
        if o in kept or o in aliased or name in on:
            continue
        if _is_resident(graph, storage) or storage in taken or graph.tensors[storage[0]].nbytes != op.outputs[o].nbytes:
            continue
        here = [j for j in range(len(op.reads)) if under[j] == storage]
        if any(op.reads[j] != op.reads[i] for j in here) or any(all(p[:2] != (j, o) for p in op.inplace) for j in here):
            continue
        dying = all(value in freed for value, where in on.items() if where == storage)
        if allowed is not None:
            if (name, run, op.reads[i]) not in allowed:
                continue
        elif not dying and (not identity or name in freed):
            continue
        on[name] = storage
        taken.add(storage)
        happened.append((name, run, op.reads[i]))
    for o, tensor in enumerate(op.outputs):
        if o not in kept and o not in aliased:
            on.setdefault(tensor.name, (tensor.name, run))
    copies = tuple((op.outputs[o].name, run) for o in sorted(kept) if o not in aliased)
    during = {s for s in (*before.on.values(), *on.values(), *copies) if not _is_resident(graph, s)}
    return Moment(on, copies, frozenset(during), (*before.inplace, *happened))


def _free(graph: Graph, k: int, value: str, before: Moment) -> Moment:
    if value not in graph.tensors or value not in before.on:
        raise Illegal(k, f"{value} is not live")
    if is_resident_version(graph, value):
        raise Illegal(k, f"{value} is resident")
    on = {name: storage for name, storage in before.on.items() if name != value}
    return before._replace(on=on)


def history(
    graph: Graph, schedule: Schedule, *, allowed: Collection[tuple[str, int, str]] | None = None
) -> list[Moment]:
    """The machine after each step, legality checked as it goes.

    Args:
        allowed: in-place pairs (output, run, input) that happen; None: all that rule 10 makes happen.
    Raises:
        Illegal: at the first illegal step.
    """
    moments = [Moment({t.name: (t.name, 0) for op in graph.ops if op.kind != "op" for t in op.outputs})]
    for k, step in enumerate(schedule.steps):
        if isinstance(step, Compute):
            moments.append(_compute(graph, schedule.steps, k, moments[-1], allowed))
        else:
            moments.append(_free(graph, k, step.value, moments[-1]))
    for op in graph.ops:
        if op.kind == "op" and op.name not in schedule.computes:
            raise Illegal(None, f"{op.name} never ran")
    if any(tensor.output and name not in moments[-1].on for name, tensor in graph.tensors.items()):
        raise Illegal(None, "an output is not live")
    return moments[1:]


def _resident_bytes(graph: Graph, memory: MemoryModel) -> int:
    if memory.scope != "total":
        return 0
    return sum(memory.round_up(t.nbytes) for op in graph.ops if op.kind != "op" for t in op.outputs)


def naive_timeline(graph: Graph, schedule: Schedule, *, memory: MemoryModel = MemoryModel()) -> list[int]:
    """Rule 4 at each Compute: residents + storages of that step + workspace."""
    moments = history(graph, schedule)
    timeline = []
    for step, moment in zip(schedule.steps, moments, strict=True):
        if isinstance(step, Compute):
            storages = sum(memory.round_up(graph.tensors[value].nbytes) for value, _ in moment.during)
            timeline.append(_resident_bytes(graph, memory) + storages + graph.op_named[step.op].workspace)
    return timeline


def naive_peak(graph: Graph, schedule: Schedule, alignment: int = 1, scope: str = "total") -> int:
    """Most bytes at a step by rules 3 to 10; residents alone where nothing runs."""
    memory = MemoryModel(scope=scope, alignment=alignment)
    return max(naive_timeline(graph, schedule, memory=memory), default=_resident_bytes(graph, memory))


def naive_cost(graph: Graph, schedule: Schedule) -> float:
    """Summed cost of all runs."""
    return sum(graph.op_named[name].cost for name in schedule.computes)


def inplace_pairs(graph: Graph, schedule: Schedule) -> tuple[tuple[str, int, str], ...]:
    """(output, run of its op, input) of each in-place pair that rule 10 makes happen."""
    return history(graph, schedule)[-1].inplace if schedule.steps else ()


# ------------------------------------------------------------------------------------------------ buffers


def stacked(
    graph: Graph, schedule: Schedule, *, memory: MemoryModel = MemoryModel(), declined: Collection[tuple[str, int]] = ()
) -> Allocation:
    """A correct allocation that shares nothing: every storage and workspace above the one before.

    Args:
        declined: (output, run) of in-place pairs that get a buffer of their own.
    """
    allowed = [pair for pair in inplace_pairs(graph, schedule) if pair[:2] not in declined]
    moments = [
        moment
        for step, moment in zip(schedule.steps, history(graph, schedule, allowed=allowed), strict=True)
        if isinstance(step, Compute)
    ]
    buffers: list[Buffer] = []
    offset = 0

    def place(value: str, execution: int, workspace: bool, nbytes: int, start: int, end: int) -> None:
        nonlocal offset
        buffers.append(Buffer(value, execution, workspace, nbytes, start, end, offset))
        offset += memory.round_up(nbytes)

    for storage in dict.fromkeys(s for moment in moments for s in sorted(moment.during)):
        when = [t for t, moment in enumerate(moments) if storage in moment.during]
        place(*storage, False, memory.round_up(graph.tensors[storage[0]].nbytes), when[0], when[-1] + 1)
    for t, name in enumerate(schedule.computes):
        if workspace := graph.op_named[name].workspace:
            place(name, schedule.computes[:t].count(name), True, workspace, t, t + 1)
    residents = _resident_bytes(graph, memory)
    arena = residents + max((b.offset + b.nbytes for b in buffers), default=0)
    return Allocation(tuple(buffers), residents, arena, "stacked")


def overlaps(buffers: Sequence[Buffer]) -> list[tuple[Buffer, Buffer]]:
    """All pairs that share a byte at a step."""
    return [
        (a, b)
        for k, a in enumerate(buffers)
        for b in buffers[k + 1 :]
        if max(a.start, b.start) < min(a.end, b.end)
        and max(a.offset, b.offset) < min(a.offset + a.nbytes, b.offset + b.nbytes)
    ]


def lower_bound(buffers: Sequence[Buffer]) -> int:
    """Most bytes of buffers at any one step: no arena can be smaller."""
    steps = {b.start for b in buffers}
    return max((sum(b.nbytes for b in buffers if b.start <= t < b.end) for t in steps), default=0)
