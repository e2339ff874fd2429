"""Chains of unequal stages: exact over all persistent plans; on equal stages exact outright, by the oracle."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import cases
import networkx as nx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive import canonical_steps, least_cost
from strategies import digraphs

from planner import Graph, InfeasibleBudget, MemoryModel, Problem, lower, optimize, simulate, zoo
from planner.analysis.arrays import encode
from planner.kernels import chain_dp as kernels
from planner.problem import Stop
from planner.search.chain import chain, recurrence
from planner.search.incumbent import Incumbent

PLAIN = MemoryModel()
QUICK = settings(max_examples=settings().max_examples // 2, suppress_health_check=list(HealthCheck))


def cost_of(graph: Graph, budget: int | None, memory: MemoryModel = PLAIN) -> float | None:
    """Cost of the plan as the judge has it, or None for the typed error."""
    try:
        schedule = chain(Problem(graph, budget, memory)).schedule
    except InfeasibleBudget:
        return None
    trace = simulate(graph, schedule, memory=memory)
    assert budget is None or trace.peak_bytes <= budget
    return trace.cost


# ------------------------------------------------------------------------------------------------ published values


def test_c1_costs_the_optimum_at_every_budget() -> None:
    for budget, expected in [(2, None), (3, 38), (4, 24), (5, 21), (6, 20), (7, 19), (8, 18), (9, 17), (12, 17)]:
        assert cost_of(lower(cases.C1.digraph()), budget) == expected


C10 = {
    3: 500502, 4: 29822, 5: 13157, 6: 9000, 8: 6286, 12: 4638, 16: 4186, 32: 3474, 46: 2956, 64: 2938, 1001: 2001,
        5000: 2001,
}  # fmt: skip


@pytest.fixture(scope="module")
def thousand() -> Graph:
    return lower(cases.digraph(cases.chain(1000), ("g0",)))


def test_c10_costs_the_optimum_at_every_budget(thousand: Graph) -> None:
    for budget in C10:
        assert cost_of(thousand, budget) == C10[budget]


def test_c10_has_no_plan_in_two_units(thousand: Graph) -> None:
    with pytest.raises(InfeasibleBudget) as caught:
        optimize(thousand, 2, strategy="chain", allocator=None)
    assert (caught.value.minimum, caught.value.proven) == (3, True)


def test_c4_one_layer_a_hundred_times_costs_278_in_24_slots() -> None:
    assert cost_of(lower(cases.digraph(cases.chain(100), ("g0",))), 24) == 278


def test_other_chains_of_the_cases_cost_the_optimum() -> None:
    for case, expected in [
        (cases.C7_DEAD, {25: 32, 30: 32, 31: 28}),
        (cases.C9, {24: None, 25: 49, 32: 49, 33: 41}),
        (cases.C9_REPLAYED, {23: None, 24: 50, 25: 49, 31: 49, 32: 42, 33: 41}),
        (cases.C3, {159: None, 161: 26, 163: 25}),
    ]:
        graph = lower(case.digraph())
        assert {budget: cost_of(graph, budget) for budget in expected} == expected


def test_c3_at_160_costs_31() -> None:
    # `a` is dropped while gb runs and made again for ga.
    assert cost_of(lower(cases.C3.digraph()), 160) == 31


@pytest.mark.parametrize(("case", "most"), [(cases.TRAP_B, 41), (cases.TRAP_B_EQUAL, 56)])
def test_c1_trap_b_is_not_walked_into(case: cases.Case, most: int) -> None:
    assert optimize(case.digraph(), strategy="chain").verify().peak_bytes <= most


@pytest.mark.parametrize(("name", "fraction", "most"), [
    ("chain100", 0.5, 25.5), ("chain100", 0.25, 38.0), ("chain100", 0.1, 77.0), ("vgg16chain", 0.6, 0.0125),
    ("vgg16chain", 0.5, 0.385), ("cm_vgg16", 0.9, 1.9685),
])  # fmt: skip
def test_shared_chains_cost_no_more_than_the_best_known(shared: Path, name: str, fraction: float, most: float) -> None:
    # rematerialisation.md 5 and 9; rotor itself: 26.5, 40.0, 88.0, 4.18, 6.37 (it drops a cut that two stages read).
    graph = lower(rematgraph(shared / "data" / "rematgraphs" / f"{name}.json"))
    base = simulate(graph, canonical_steps(graph, [op.name for op in graph.ops]))
    cost = cost_of(graph, int(fraction * base.peak_bytes))
    assert cost is not None
    assert 100 * (cost / base.cost - 1) <= most


def rematgraph(path: Path) -> nx.DiGraph:
    """A shared `rematgraph-1` in our schema."""
    parts = json.loads(path.read_text())
    graph = nx.DiGraph()
    for k in range(parts["n"]):
        phase = "backward" if parts["bwd"][k] else "forward"
        graph.add_node(k, nbytes=parts["mem"][k], cost=parts["cost"][k], phase=phase)
    graph.add_edges_from(sorted(parts["edges"], key=lambda edge: edge[::-1]))
    nx.set_node_attributes(graph, {k: False for k in graph if not graph.out_degree(k)}, "output")
    return nx.relabel_nodes(graph, str)


# ------------------------------------------------------------------------------------------------ all persistent plans


@dataclass(frozen=True)
class Layer:
    """Ops of one layer in program order, its output `x`, and what its backward op reads ("in": the output below)."""

    ops: dict[str, tuple[str, ...]]
    x: str
    reads: tuple[str, ...]
    backward: tuple[str, ...]


@st.composite
def layered(draw: Callable, *, most: int = 4) -> tuple[nx.DiGraph, list[Layer]]:
    """A chain of layers of one op, or of two with a skip around the first."""
    graph = nx.DiGraph()
    graph.add_node("x0", nbytes=draw(st.sampled_from([0, 2])), kind="input")
    sizes, costs = st.sampled_from([4, 1, 7, 2]), st.sampled_from([1.0, 3.0, 0.5])

    def add(name: str, sources: tuple[str, ...], **attributes: Any) -> None:
        attributes = {
            "nbytes": draw(sizes),
            "cost": draw(costs),
            "workspace": draw(st.sampled_from([0, 0, 3])),
            **attributes,
        }
        graph.add_node(name, **attributes)
        for source in sources:
            graph.add_edge(source, name)

    layers: list[Layer] = []
    x = "x0"
    for i in range(1, draw(st.integers(2, most)) + 1):
        kind = draw(st.sampled_from(["one", "one", "skip"])) if i > 1 else "one"  # a skip over a resident cuts nothing
        below, ops = x, {}
        x = f"x{i}"
        if kind == "skip":
            ops[f"t{i}"] = (below,)
            ops[x] = (f"t{i}", below)
        else:
            ops[x] = (below,)
        for name, sources in ops.items():
            add(name, sources, phase="forward")
        choices = [(below,), (x,), (below, x)] + (
            [(f"t{i}",), (f"t{i}", below), (f"t{i}", x)] if kind == "skip" else []
        )
        layers.append(Layer(ops, x, draw(st.sampled_from(choices)), (f"b{i}",)))
    add("loss", (x,), phase="loss", nbytes=1, workspace=0)
    above = "loss"
    for layer in reversed(layers):
        add(layer.backward[0], (above, *layer.reads), phase="backward")
        above = layer.backward[0]
    return graph, partitioned([*layers, Layer({"loss": (x,)}, "loss", (), ())])


def partitioned(layers: list[Layer]) -> list[Layer]:
    """Each backward op with the last layer that it reads of, or if it reads of none, with the op before it."""
    made = {name: k for k, layer in enumerate(layers) for name in layer.ops}
    new = [replace(layer, reads=(), backward=()) for layer in layers]
    current = len(layers) - 1
    for layer in reversed(layers):
        wanted = [made[name] for name in layer.reads if name in made]
        current = min(current, max(wanted, default=current))
        mine = new[current]
        new[current] = replace(mine, reads=(*mine.reads, *layer.reads), backward=(*mine.backward, *layer.backward))
    return new


def remake(layer: Layer, targets: set[str], live: set[str]) -> tuple[list[str], bool]:
    """Ops that make the targets again, and whether they or the backward op read the layer before."""
    wanted = {name for name in targets if name in layer.ops and name not in live}
    for name in reversed(layer.ops):
        if name in wanted:
            wanted |= {source for source in layer.ops[name] if source in layer.ops and source not in live}
    outside = any(source not in layer.ops and source != "x0" for name in wanted for source in layer.ops[name])
    return [name for name in layer.ops if name in wanted], outside or any(
        r not in layer.ops and r != "x0" for r in targets
    )


def persistent(layers: list[Layer], first: bool, s: int, t: int, out: bool) -> Iterator[tuple[str, ...]]:
    """Every persistent plan of layers s to t, as ops, from the output below s and the gradient after t."""
    one, last = layers[s], layers[t]
    if not first:
        again, below = remake(last, set(last.reads), {last.x} if out else set())
        if s == t:
            yield (*again, *last.backward)
            return
        if not below:
            for rest in persistent(layers, False, s, t - 1, False):
                yield (*again, *last.backward, *rest)
    elif s == t:
        yield (*one.ops, *one.backward)
        return
    whole = one.ops if first else remake(one, {one.x, *one.reads} & set(one.ops), set())[0]
    for rest in persistent(layers, first, s + 1, t, out):
        yield (*whole, *rest, *one.backward)
    way: list[str] = []
    for k in range(s, t):
        way += layers[k].ops if first else remake(layers[k], {layers[k].x}, set())[0]
        for stays in {False, layers[k].x in layers[k].reads}:
            for right in persistent(layers, first, k + 1, t, out):
                for left in persistent(layers, False, s, k, stays):
                    yield (*way, *right, *left)


@QUICK
@given(drawn=layered(), data=st.data())
def test_the_plan_is_the_cheapest_of_all_persistent_ones(
    drawn: tuple[nx.DiGraph, list[Layer]], data: st.DataObject
) -> None:
    digraph, layers = drawn
    graph = lower(digraph)
    traces = [
        simulate(graph, canonical_steps(graph, ops)) for ops in set(persistent(layers, True, 0, len(layers) - 1, False))
    ]
    peaks = sorted({trace.peak_bytes for trace in traces})
    for budget in {peaks[0] - 1, peaks[0], *data.draw(st.lists(st.sampled_from(peaks), max_size=4))}:
        expected = min((trace.cost for trace in traces if trace.peak_bytes <= budget), default=math.inf)
        assert cost_apart(graph, budget) == expected, budget
        assert (cost_of(graph, budget) or math.inf) <= expected
    smallest = chain(Problem(graph, None)).schedule
    assert simulate(graph, smallest).peak_bytes <= peaks[0]


def test_a_cut_that_is_dropped_on_the_way_is_not_dropped_again() -> None:
    """At b3 the loss, x3, b3 and its workspace take 1 + 4 + 4 + 3 = 12 bytes, whatever else is dropped."""
    graph = nx.DiGraph()
    sizes = {"x0": 0, "x1": 4, "x2": 1, "x3": 4, "loss": 1, "b3": 4, "b2": 1, "b1": 4}
    for name, nbytes in sizes.items():
        graph.add_node(name, nbytes=nbytes, phase={"l": "loss", "b": "backward"}.get(name[0], "forward"))
    graph.nodes["x0"].update(kind="input", phase=None)
    graph.nodes["b3"]["workspace"] = 3
    graph.nodes["b1"]["output"] = True
    nx.add_path(graph, ["x0", "x1", "x2", "x3", "loss", "b3", "b2", "b1"])
    graph.add_edges_from([("x3", "b3"), ("x1", "b2"), ("x0", "b1")])
    assert cost_apart(lower(graph), 11) == math.inf
    assert cost_apart(lower(graph), 12) == 8  # seven ops, and x1 again


def cost_apart(graph: Graph, budget: int) -> float:
    """What the judge says of the plan with backward ops shared out as `partitioned` does."""
    incumbent = Incumbent(Problem(graph, budget), "chain")
    search = recurrence(incumbent.problem, incumbent, apart=True)
    assert search is not None
    headroom = budget - search.resident_bytes
    if search.solve(headroom) is None:
        return math.inf
    trace = simulate(graph, incumbent.evaluator.schedule(search.sequence(headroom)))
    assert trace.peak_bytes <= budget
    return trace.cost


@QUICK
@given(drawn=layered(most=9), percent=st.integers(0, 100), apart=st.booleans())
def test_the_peak_that_the_recurrence_sees_is_the_judges(
    drawn: tuple[nx.DiGraph, list[Layer]], percent: int, apart: bool
) -> None:
    check_prediction(lower(drawn[0]), percent, apart=apart)


def check_prediction(graph: Graph, percent: int, memory: MemoryModel = PLAIN, *, apart: bool = False) -> None:
    incumbent = Incumbent(Problem(graph, None, memory), "chain")
    search = recurrence(incumbent.problem, incumbent, apart=apart)
    assert incumbent.best is not None
    if search is None:
        return
    least = search.solve(None)
    assert least is not None
    most = max(least, incumbent.best.peak_bytes - search.resident_bytes)
    headroom = least + (most - least) * percent // 100
    assert search.solve(headroom) is not None
    plan = search.plan(headroom)
    trace = simulate(graph, incumbent.evaluator.schedule(search.sequence(headroom)), memory=memory)
    extra = trace.cost - sum(op.cost for op in graph.ops if not op.resident)
    assert trace.peak_bytes == plan.peak_bytes <= headroom + search.resident_bytes
    assert math.isclose(extra, plan.cost, rel_tol=1e-9, abs_tol=1e-9 * trace.cost)


def test_on_real_networks_too() -> None:
    for model in ["resnet", "vgg", "gpt"]:
        for percent in [0, 20, 50, 80, 100]:
            check_prediction(real(model), percent, MemoryModel("activations", alignment=512))


@cache
def real(model: str) -> Graph:
    if model == "resnet":
        return lower(zoo.resnet(50, batch=2, image=64))
    return lower(zoo.vgg(16, batch=2) if model == "vgg" else zoo.gpt(batch=1))


# ----------------------------------------------------------------------------------------------- the exhaustive optimum


def test_equal_layers_cost_the_exhaustive_optimum_at_every_budget() -> None:
    for n in [2, 3, 5]:
        for reads in [("in",), ("out",), ("in", "out")]:
            graph = lower(zoo.chain(n, reads=reads))
            for budget in range(2, n + 3):
                assert cost_of(graph, budget) == least_cost(graph, budget), budget


@QUICK
@given(drawn=layered(most=3), spare=st.integers(0, 12))
def test_no_plan_is_cheaper_than_the_exhaustive_optimum(drawn: tuple[nx.DiGraph, list[Layer]], spare: int) -> None:
    graph = lower(drawn[0])
    least = simulate(graph, chain(Problem(graph, None)).schedule).peak_bytes
    cost, cheapest = cost_of(graph, least + spare), least_cost(graph, least + spare)
    assert cost is not None
    assert cheapest is not None
    assert cheapest <= cost


# --------------------------------------------------------------------------------------- where it applies, and how well


def test_what_is_no_chain_is_kept_whole_or_refused_without_proof() -> None:
    graph = lower(cases.C2.digraph())
    assert len(chain(Problem(graph, 296)).schedule.computes) == len([op for op in graph.ops if not op.resident])
    with pytest.raises(InfeasibleBudget) as caught:
        chain(Problem(graph, 250))
    assert (caught.value.minimum, caught.value.proven) == (296, False)


def test_a_skip_over_many_layers_is_one_stage() -> None:
    digraph = cases.C1.digraph()
    nx.set_node_attributes(digraph, {"f6": {"inplace": ()}})
    digraph.add_edge("f3", "f6", at=(1,))
    graph = lower(digraph)
    for budget in range(5, 10):
        assert cost_of(graph, budget) is None or cost_of(graph, budget) >= least_cost(graph, budget)
    assert cost_of(graph, 7) is not None


def test_little_effort_thins_fronts_and_leaves_out_cuts_but_never_breaks_the_budget() -> None:
    rng = np.random.default_rng(7)
    graph = lower(uneven(80, rng))
    exact = cost_of(graph, budget := keep_all_peak(graph) * 2 // 5)
    assert exact is not None
    for effort in (0.1, 0.001):
        trace = simulate(graph, chain(Problem(graph, budget, effort=effort)).schedule)
        assert trace.peak_bytes <= budget
        assert exact <= trace.cost * (1 + 1e-9)


def keep_all_peak(graph: Graph) -> int:
    return simulate(graph, canonical_steps(graph, [op.name for op in graph.ops if not op.resident])).peak_bytes


def uneven(n: int, rng: np.random.Generator) -> nx.DiGraph:
    """A chain whose layers all differ."""
    graph = nx.DiGraph()
    graph.add_node("x0", nbytes=0, kind="input")
    for i in range(1, n + 1):
        graph.add_node(
            f"x{i}", nbytes=int(rng.integers(10**6, 10**8)), cost=float(rng.uniform(0.1, 3)), phase="forward"
        )
        graph.add_edge(f"x{i - 1}", f"x{i}")
    graph.add_node("g", nbytes=4, phase="loss")
    graph.add_edge(f"x{n}", "g")
    above = "g"
    for i in range(n, 0, -1):
        graph.add_node(f"b{i}", nbytes=graph.nodes[f"x{i - 1}"]["nbytes"], cost=1.0, phase="backward")
        graph.add_edges_from([(above, f"b{i}"), (f"x{i - 1}", f"b{i}")])
        above = f"b{i}"
    return graph


def test_more_memory_never_costs_more_on_a_real_network() -> None:
    graph = real("resnet")
    memory = MemoryModel("activations")
    least = simulate(graph, chain(Problem(graph, None, memory)).schedule, memory=memory).peak_bytes
    costs = [cost_of(graph, least * k // 8, memory) for k in range(8, 26)]
    assert None not in costs
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < costs[0]


def test_a_deadline_that_has_passed_is_a_time_limit_or_keep_all() -> None:
    graph = lower(zoo.chain(40))
    assert chain(Problem(graph, None, stop=Stop(0.0))).cut_short


# ---------------------------------------------------------------------------------------------- kernels and their twins


def ints(items: Any) -> Any:
    return np.array(items, dtype=np.int64)


@QUICK
@given(digraph=digraphs(), data=st.data())
def test_action_frees_are_those_of_its_twin(digraph: nx.DiGraph, data: st.DataObject) -> None:
    graph = lower(digraph)
    arrays = encode(graph, MemoryModel()).arrays
    ops = [k for k, op in enumerate(graph.ops) if not op.resident]
    actions = data.draw(st.lists(st.lists(st.sampled_from(ops), max_size=4), min_size=1, max_size=4)) if ops else [[]]
    m = len(arrays.producer)
    dies = data.draw(st.lists(st.integers(-1, 3), min_size=m, max_size=m))
    level = data.draw(st.lists(st.integers(-1, 3), min_size=len(actions), max_size=len(actions)))
    keep = [sorted(data.draw(st.sets(st.integers(0, m - 1), max_size=3))) if m else [] for _ in actions]
    sequence = [op for rows in actions for op in rows]
    freed = np.empty(len(sequence) * (2 * m + 8), dtype=np.int64)
    free_ptr = kernels.action_frees(
        arrays,
        ints(sequence),
        ints(np.cumsum([0, *map(len, actions)])),
        ints(level),
        ints(dies),
        ints(np.cumsum([0, *map(len, keep)])),
        ints([v for values in keep for v in values]),
        freed,
    )
    found = [set(freed[a:b].tolist()) for a, b in pairwise(free_ptr)]
    assert found == action_frees_twin(graph, arrays, actions, dies, level, keep)


def action_frees_twin(graph: Graph, arrays: Any, actions: Any, dies: Any, level: Any, keep: Any) -> list[set[int]]:
    """A value goes after a step that touches it if the action neither uses this instance again nor has to keep it."""
    row = {name: v for v, name in enumerate(graph.tensors)}
    found = []
    for rows, now, kept in zip(actions, level, keep, strict=True):
        for k, op in enumerate(rows):
            made = {row[t.name] for t in graph.ops[op].outputs}
            gone = set()
            for v in made | {row[name] for name in graph.ops[op].reads}:
                use = v in kept
                for other in map(graph.ops.__getitem__, reversed(rows[k + 1 :])):
                    use = v in {row[name] for name in other.reads} or (
                        use and v not in {row[t.name] for t in other.outputs}
                    )
                if not use and dies[v] <= now and not arrays.never_freed[v]:
                    gone.add(v)
            found.append(gone)
    return found


@st.composite
def tables(draw: Callable) -> tuple[Any, Any]:
    """Stage tables with small numbers; sense is not needed for twins to agree."""
    count = draw(st.integers(2, 4))
    table = ints([[draw(st.integers(0, 4)) for _ in range(kernels.COLUMNS)] for _ in range(count)])
    for column in (kernels.READS_AFTER, kernels.SAVES, kernels.FREE, kernels.FREE_OUT):
        table[:, column] %= 2
    table[1:, kernels.CUT_BEFORE] = table[:-1, kernels.CUT_AFTER]
    table[:, kernels.NET] -= 2
    table[:, kernels.FIRST_NET] -= 2
    table[-1, kernels.READS_AFTER] = 0
    costs = np.array([[draw(st.sampled_from([0.0, 1.0, 2.5])) for _ in range(4)] for _ in range(count)])
    return table, costs


class Twin:
    """The recurrence at one headroom at a time, by trying everything."""

    def __init__(self, table: Any, costs: Any) -> None:
        self.t, self.c, self.last = table.tolist(), costs.tolist(), len(table) - 1

    def again(self, s: int, t: int, outlives: int, out: int, room: int) -> float:
        row, k = self.t[t], kernels
        leaf = self.c[t][k.LEAF_COST + out]
        free = row[k.FREE + out]
        if s == t:
            return leaf if room >= row[k.LEAF_GONE + 2 * out + (0 if free else outlives)] else math.inf
        at_once = math.inf
        if free and room >= row[k.LEAF_GONE + 2 * out]:
            at_once = leaf + self.again(s, t - 1, outlives, 0, room - row[k.LEAF_DELTA + out])
        after = row[k.CUT_AFTER] if out else 0
        net = sum(self.t[u][k.NET] for u in range(s + 1, t + 1)) - after
        return min(at_once, self.best(False, s, t, outlives, out, room, net))

    def first(self, s: int, outlives: int, room: int) -> float:
        row, k = self.t[s], kernels
        if s == self.last:
            need = max(
                row[k.FIRST_ALL_GONE + outlives], row[k.FIRST_ALL_DELTA_GONE + outlives] + row[k.BACK_GONE + outlives]
            )
            return 0.0 if room >= need else math.inf
        net = sum(self.t[u][k.FIRST_NET] for u in range(s + 1, self.last + 1))
        return self.best(True, s, self.last, outlives, 0, room, net)

    def best(self, first: bool, s: int, t: int, outlives: int, out: int, room: int, net: int) -> float:
        k, row = kernels, self.t[s]
        names = (
            (k.FIRST_ALL_GONE, k.FIRST_ALL_DELTA_GONE, k.FIRST_KEPT, k.FIRST_GONE)
            if first
            else (k.ALL_GONE, k.ALL_DELTA_GONE, k.ADVANCE_KEPT, k.ADVANCE_GONE)
        )
        found = math.inf
        if row[k.SAVES]:
            stays = row[k.READS_AFTER]
            delta = row[names[1] + outlives]
            then = delta + net - (0 if stays else row[k.CUT_AFTER])
            if room >= max(row[names[0] + outlives], then + row[k.BACK_GONE + outlives]):
                found = (0.0 if first else self.c[s][k.ALL_COST]) + self.above(
                    first, s + 1, t, stays, out, room - delta
                )
        for cut in range(s, t):
            for stays in range(1 + self.t[cut][k.READS_AFTER]):
                needless = all(self.t[u][k.FREE] for u in range(s, cut)) and self.t[cut][k.FREE + stays]
                drops = bool(needless) and not outlives
                live, need = 0, 0
                for u in range(s, cut + 1):
                    stage = self.t[u]
                    need = max(need, live + stage[names[2] if u == s and not drops else names[3]])
                    delta = stage[k.FIRST_DELTA] if first else stage[k.CUT_AFTER]
                    live += delta - (stage[k.CUT_BEFORE] if u > s or drops else 0)
                then = live + net - sum(self.t[u][k.FIRST_NET if first else k.NET] for u in range(s + 1, cut + 1))
                then -= 0 if stays else self.t[cut][k.CUT_AFTER]
                if room >= need:
                    way = 0.0 if first else sum(self.c[u][k.ADVANCE_COST] for u in range(s, cut + 1))
                    left = self.again(s, cut, 1 if drops else outlives, stays, room - then)
                    found = min(found, way + self.above(first, cut + 1, t, stays, out, room - live) + left)
        return found

    def above(self, first: bool, s: int, t: int, outlives: int, out: int, room: int) -> float:
        return self.first(s, outlives, room) if first else self.again(s, t, outlives, out, room)


@QUICK
@given(drawn=tables(), limit=st.integers(0, 40), points=st.sampled_from([64, 3]))
def test_fronts_are_those_of_the_twin_at_every_headroom(drawn: tuple[Any, Any], limit: int, points: int) -> None:
    table, costs = drawn
    twin = Twin(table, costs)
    wanted = [twin.first(0, 0, room) for room in range(limit + 1)]
    for least in (False, True):
        # With tables that make no sense a stretch may start with less than nothing live: fronts go further than asked.
        found = fronts(table, costs, limit + 200, 1 if least else points, least)[: limit + 1]
        if least or points == 3:  # the least headroom is exact; the rest is on the safe side
            assert [math.isinf(cost) for cost in found] == [math.isinf(cost) for cost in wanted]
            assert least or all(a >= b for a, b in zip(found, wanted, strict=True))
        else:
            assert found == wanted


def fronts(table: Any, costs: Any, limit: int, points: int, least: bool) -> list[float]:
    """Cost of the whole at each headroom, by the kernels, every stretch a kind of its own."""
    count = len(table)
    spans = [(s, s + length) for length in range(count - 1) for s in range(count - 1 - length)]
    kind = np.full((count, count), -1, dtype=np.int64)
    for q, (s, t) in enumerate(spans):
        kind[s, t] = q
    result = np.zeros((len(spans) + count, 2, 2, 2), dtype=np.int64)
    pool_h, pool_c = np.empty(1 << 14, dtype=np.int64), np.empty(1 << 14)
    pool_h[0], pool_c[0] = -(1 << 62), 0.0
    chain = kernels.new_chain(
        table=table,
        costs=costs,
        kind=kind,
        of_kind=ints(spans).reshape(-1, 2),
        limit=limit,
        points=points,
        least=least,
        fronts=result,
        pool_h=pool_h,
        pool_c=pool_c,
        used=ints([1]),
        h=np.empty((3, 12 * points + 16), dtype=np.int64),
        c=np.empty((3, 12 * points + 16)),
        choice=ints([0] * 4),
    )
    assert kernels.stretches(chain, 0, len(spans)) == len(spans)
    assert kernels.sweeps(chain, count - 1, -1) == -1
    start, size = result[len(spans), 0, 0].tolist()
    at, cost = pool_h[start : start + size].tolist(), pool_c[start : start + size].tolist()
    return [min((c for h, c in zip(at, cost, strict=True) if h <= room), default=math.inf) for room in range(limit + 1)]


def test_each_kernel_has_one_signature() -> None:
    optimize(lower(zoo.chain(12)), 6, strategy="chain", allocator=None)
    optimize(lower(zoo.chain(12)), 6, strategy="binomial", allocator=None)
    own = [value for value in vars(kernels).values() if getattr(value, "__module__", "") == kernels.__name__]
    compiled = {value.__name__: len(value.signatures) for value in own if hasattr(value, "signatures")}
    public = {"action_frees", "stretches", "sweeps", "choose", "binomial_table"}
    assert {name: count for name, count in compiled.items() if not name.startswith("_")} == dict.fromkeys(public, 1)
    assert max(compiled.values()) == 1  # the others too, where they were not found compiled on disk
