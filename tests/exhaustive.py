"""The least cost of any schedule of a tiny graph under all thirteen memory rules.

Where `naive.oracle` knows one output per op and no aliasing, this walks the machine of `naive` itself: every order,
every number of runs, every set of frees after every step.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import chain, combinations, count

from naive import Illegal, Moment, Storage, _compute, _free, _resident_bytes, is_resident_version

from planner.graph import Graph
from planner.memory import MemoryModel
from planner.schedule import Compute, Free, Step

Key = tuple[frozenset[tuple[frozenset[str], int, bool]], frozenset[str]]


def cheapest(graph: Graph, budget: int, *, memory: MemoryModel, most_states: int = 4000) -> float | None:
    """Least cost within a budget (the reserve taken off); None where nothing fits.

    Raises:
        OverflowError: more states than `most_states`.
    """
    ops = [op for op in graph.ops if op.kind == "op"]
    start = Moment({t.name: (t.name, 0) for op in graph.ops if op.kind != "op" for t in op.outputs})
    known: dict[Key, float] = {_key(graph, start, frozenset()): 0.0}
    ties = count()
    queue: list[tuple[float, int, Moment, tuple[Step, ...]]] = [(0.0, next(ties), start, ())]
    while queue:
        cost, _, moment, steps = heapq.heappop(queue)
        ran = frozenset(step.op for step in steps if isinstance(step, Compute))
        if cost > known[_key(graph, moment, ran)]:
            continue
        if len(ran) == len(ops) and all(name in moment.on for name, tensor in graph.tensors.items() if tensor.output):
            return cost
        if len(known) > most_states:
            raise OverflowError("too many states")
        for op in ops:
            for after, taken in _moves(graph, moment, steps, op.name, budget, memory):
                key = _key(graph, after, ran | {op.name})
                if cost + op.cost < known.get(key, float("inf")):
                    known[key] = cost + op.cost
                    heapq.heappush(queue, (cost + op.cost, next(ties), after, taken))
    return None


def _moves(
    graph: Graph, moment: Moment, steps: tuple[Step, ...], name: str, budget: int, memory: MemoryModel
) -> Iterator[tuple[Moment, tuple[Step, ...]]]:
    """One Compute with every set of frees after it, where it is legal and fits."""
    op = graph.op_named[name]
    names = [
        v
        for v in graph.tensors
        if (v in moment.on or v in {t.name for t in op.outputs}) and not is_resident_version(graph, v)
    ]
    for freed in chain.from_iterable(combinations(names, k) for k in range(len(names) + 1)):
        taken = (*steps, Compute(name), *(Free(v) for v in freed))
        try:
            after = _compute(graph, taken, len(steps), moment, None)
            live = sum(memory.round_up(graph.tensors[value].nbytes) for value, _ in after.during)
            if live + op.workspace + _resident_bytes(graph, memory) > budget:
                if not op.inplace:
                    return  # frees come after the step
                continue
            for v in freed:
                after = _free(graph, len(steps), v, after)
        except Illegal:
            if not freed:
                return
            continue
        yield after, taken


def _key(graph: Graph, moment: Moment, ran: frozenset[str]) -> Key:
    """Storages by the names on them, and what ran."""
    on: dict[Storage, set[str]] = {}
    for value, storage in moment.on.items():
        on.setdefault(storage, set()).add(value)
    groups = (
        (frozenset(names), graph.tensors[s[0]].nbytes, graph.producer[s[0]].kind != "op") for s, names in on.items()
    )
    return frozenset(groups), ran
