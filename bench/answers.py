"""Today's answers, written down, so that a change that should move code and nothing else can be compared with them.

    python -m bench.answers record FILE
    python -m bench.answers check FILE [--only SUBSTRING]

Every question has a name. Its answer is a short hash of the schedule and one of the offsets, and the figures and bounds
that are stated; of an error, its class and its numbers. Wording is no part of an answer. Nothing but the public
interface is used, no question has a time limit, and each answer is independent of the questions before it. The shared
files are looked for in `PLANNER_SHARED`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import networkx as nx

import planner
from planner import MemoryModel, zoo

STRATEGIES = (
    "auto", "chen-budget", "chen-sqrt", "recursive", "memonger", "binomial", "chain", "cuts", "retention", "exact",
)  # fmt: skip
ALLOCATORS = ("auto", "first-fit", "best-fit", "exact", "nnvm", None)
ACTIVATIONS = MemoryModel("activations")
Question = tuple[str, Callable[[], dict[str, Any]]]
SHARED = Path(os.environ.get("PLANNER_SHARED") or Path(__file__).resolve().parents[2] / "shared") / "data"

#: Cases of `cases.md` in its own words, `NAME<inputs:size,cost[,workspace]`, and what must be live at the end.
CASES = {
    "C2": (
        "e1<x:64,8 e2<e1:32,8 e3<e2:16,8 m<e3:8,4 d3<m,e3:16,8 d2<d3,e2:32,8 d1<d2,e1:64,8 gd1<d1:64,1 "
        "gd2<gd1,d2,e1:32,8 se1<gd1:64,1 gd3<gd2,d3,e2:16,8 se2<gd2:32,1 gm<gd3,m,e3:8,8 se3<gd3:16,1 "
        "ge3<gm,se3,e3:16,4 ge2<ge3,se2,e2:32,8 ge1<ge2,se1,e1:64,8 gx<ge1:1,8", "gx",
    ),
    "C3": ("a<x:2,1 b<a:20,5 c<b:20,5,4 d<c:1,1 gd<d:1,1 gc<gd,c:20,1 gb<gc,b:20,5 ga<gb,a:2,5 gx<ga:1,1", "gx"),
    "C5": (
        "hid<x:134217728,1 l16<hid:9957277696,100 l32<l16:19914555392,5 logp<l32:19914555392,5 loss<logp:4,1 "
        "g32<logp,loss:19914555392,5 g16<g32:9957277696,5 gh<g16,hid:134217728,200", "gh",
    ),
    "C7": (
        "t1<x:8,4 t2<t1:8,4 A1<t2:6,3 A2<A1:1,1 B1<t2:30,10 B2<B1:2,1 gA2<A2,B2:1,1 gA1<gA2,A1:6,3 gt2<gA1,t2:8,4 "
        "gt1<gt2,t1:8,4 gx<gt1:1,4", "A2 B2 gx",
    ),
    "C9": (
        "h1<x:8,8 n1<h1:8,2 once<:1,1 d1<n1,once:8,1 h2<d1:8,8 gl<h2:8,1 gd1<gl,d1:8,8 gn1<gd1,once:8,1 gh1<gn1,h1:8,3 "
        "gx<gh1:8,8", "gx",
    ),
}  # fmt: skip


def _case(text: str, outs: str) -> nx.DiGraph:
    """A case as a graph: names that are never defined are inputs of no bytes, and a node named "once" runs once."""
    graph = nx.DiGraph()
    for word in text.split():
        name, rest = word.split("<")
        inputs, numbers = rest.split(":")
        nbytes, cost, *workspace = map(int, numbers.split(","))
        phase = "loss" if name == "loss" else "backward" if name.startswith(("g", "se")) else "forward"
        for source in filter(None, inputs.split(",")):
            if source not in graph:
                graph.add_node(source, nbytes=0, kind="input")
        graph.add_node(
            name, nbytes=nbytes, cost=cost, workspace=sum(workspace), phase=phase, recomputable=name != "once"
        )
        graph.add_edges_from((source, name, {"at": (k,)}) for k, source in enumerate(filter(None, inputs.split(","))))
    for name in graph:
        if name in outs.split() or not graph.out_degree(name):
            graph.nodes[name]["output"] = name in outs.split()
    return graph


def _net(layers: int, features: str) -> nx.DiGraph:
    """A training step by hand, with views, two outputs, ops that run once, in-place pairs or updates."""
    graph = nx.DiGraph(name=f"net {features}")

    def node(name: str, *reads: tuple[str, int], **attributes: Any) -> tuple[str, int]:
        graph.add_node(name, **attributes)
        graph.add_edges_from(
            (source, name, {"reads": (output,), "at": (k,)}) for k, (source, output) in enumerate(reads)
        )
        return name, 0

    h = node("x", nbytes=32, kind="input")
    kept = []
    for i in range(layers):
        weight = node(f"w{i}", nbytes=8, kind="parameter")
        saved = [weight, h]
        h = node(
            f"y{i}",
            h,
            weight,
            nbytes=32,
            cost=4 + i % 3,
            workspace=6,
            phase="forward",
            op="Linear",
            module=f"half{2 * i // layers}",
        )
        if "view" in features:
            saved.append(h := node(f"v{i}", h, nbytes=24, cost=0, view=((0, 0, 8),), phase="forward", op="View"))
        if "two" in features:
            once = "once" in features
            h = node(f"d{i}", h, nbytes=(32, 4), cost=2, recomputable=not once, phase="forward", op="Dropout")
            saved.append((f"d{i}", 1))
        if "inplace" in features:
            saved.append(h := node(f"r{i}", h, nbytes=32, cost=1, inplace=((0, 0),), phase="forward", op="Relu"))
        kept.append(saved)
    above = node("loss", h, nbytes=4, phase="loss")
    for i in reversed(range(layers)):
        node(f"gw{i}", above, kept[i][1], nbytes=8, cost=3, phase="backward")
        above = node(f"g{i}", above, *kept[i], nbytes=32, cost=5, phase="backward", output=i == 0 or None)
    for i in range(layers if "update" in features else 0):
        node(f"u{i}", (f"w{i}", 0), (f"gw{i}", 0), nbytes=8, cost=1, updates=((0, 0),), phase="update")
        graph.add_edge(above[0], f"u{i}", reads=())
    return graph


def _residual() -> nx.DiGraph:
    """A training step made by `differentiate`: blocks of two ops with a skip around them."""
    graph = nx.DiGraph()
    graph.add_node("x0", nbytes=64, kind="input")
    for i in range(5):
        graph.add_node(f"w{i}", nbytes=16, kind="parameter")
        graph.add_node(f"h{i}", nbytes=64, cost=6.0, saves=(("in", 0), ("in", 1)))
        graph.add_node(f"x{i + 1}", nbytes=64, cost=1.0, saves=(("out", 0),))
        reads = ((f"x{i}", f"h{i}", 0), (f"w{i}", f"h{i}", 1), (f"x{i}", f"x{i + 1}", 0), (f"h{i}", f"x{i + 1}", 1))
        graph.add_edges_from((source, target, {"reads": (0,), "at": (k,)}) for source, target, k in reads)
    return planner.differentiate(graph, optimizer="adam")


def _remat(name: str) -> nx.DiGraph:
    """A shared graph of format `rematgraph-1`; a value that nobody reads lives for its own step."""
    parts = json.loads((SHARED / f"rematgraphs/{name}.json").read_text())
    graph = nx.DiGraph(name=parts["name"])
    for k, (cost, nbytes) in enumerate(zip(parts["cost"], parts["mem"], strict=True)):
        graph.add_node(f"v{k}", nbytes=nbytes, cost=cost)
        if parts["bwd"] is not None:
            graph.nodes[f"v{k}"]["phase"] = "backward" if parts["bwd"][k] else "forward"
    graph.add_edges_from((f"v{u}", f"v{v}") for u, v in sorted(parts["edges"], key=lambda edge: edge[1]))
    for node in graph:
        if not graph.out_degree(node):
            graph.nodes[node]["output"] = False
    return graph


#: Every graph that a question is about, by its name there; `onnx/...` and `remat/...` are shared files.
GRAPHS: dict[str, Callable[[], nx.DiGraph]] = {
    "chain": partial(zoo.chain, 12),
    "chain-out": partial(zoo.chain, 40, reads=("in", "out"), nbytes=8),
    "C1": partial(zoo.chain, 8),
    "C10": partial(zoo.chain, 1000),
    "resnet": partial(zoo.resnet, (1, 1), batch=2, image=32, classes=10),
    "resnet50": partial(zoo.resnet, 50, batch=8),
    "lstm": partial(zoo.lstm, 3, batch=2, layers=1, hidden=8, classes=10),
    "unet": partial(zoo.unet, 2, batch=1, image=60, channels=4),
    "gpt": partial(zoo.gpt, 2, batch=2, tokens=16, hidden=16, heads=2, vocabulary=50),
    "gpt-plain": partial(
        zoo.gpt, 2, batch=2, tokens=16, hidden=16, heads=2, vocabulary=50, fused_attention=False, dropout=0.1
    ),
    "vit": partial(zoo.vit, 2, batch=4, image=32, hidden=16, heads=2, classes=10),
    "vgg": partial(zoo.vgg, 16, batch=8, image=32, classes=10),
    "mlp": partial(zoo.mlp, (16, 32, 32, 32, 8), batch=64, optimizer="adam"),
    "densenet": partial(zoo.densenet, (2, 2), batch=2, image=32, classes=10),
    "squeezenet": partial(zoo.squeezenet, batch=4, image=64, classes=10),
    "mxnet_resnet": partial(zoo.mxnet_resnet, (1, 1, 1, 1), batch=4),
    "mxnet_lstm": partial(zoo.mxnet_lstm, 3, batch=2, layers=1, hidden=8, features=8, embed=8, classes=10),
    "inception_bn": partial(zoo.inception_bn, batch=2),
    "residual": _residual,
    **{
        f"net {features}": partial(_net, 10, features)
        for features in ("view", "two", "two once", "inplace", "view two inplace update")
    },
    **{name: partial(_case, *case) for name, case in CASES.items()},
}


@cache
def program(name: str) -> planner.Graph:
    """The graph of this name as a program."""
    kind, _, file = name.partition("/")
    if kind == "onnx":
        return planner.lower(planner.from_onnx(SHARED / f"graphs/{file}.onnx"))
    return planner.lower(_remat(file) if kind == "remat" else GRAPHS[name]())


def _shown(value: Any) -> str:
    """A value in the name of a question."""
    return f"{value.scope}-{value.alignment}-{value.reserve}" if isinstance(value, MemoryModel) else str(value)


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _steps(schedule: planner.Schedule) -> str:
    return _hash(
        [["compute", step.op] if isinstance(step, planner.Compute) else ["free", step.value] for step in schedule.steps]
    )


def _offsets(allocation: planner.Allocation | None) -> str | None:
    if allocation is None:
        return None
    return _hash([[b.value, b.execution, b.workspace, b.start, b.end, b.nbytes, b.offset] for b in allocation.buffers])


def _planned(graph: str, budget: Any, **options: Any) -> dict[str, Any]:
    """What `optimize` answers."""
    plan = planner.optimize(program(graph), budget, **options)
    report = plan.report
    return {
        "schedule": _steps(plan.schedule),
        "offsets": _offsets(plan.allocation),
        "budget": plan.budget,
        "peak_bytes": report.plan.peak_bytes,
        "arena_bytes": report.plan.arena_bytes,
        "cost": repr(report.plan.cost),
        "keep_all": [report.keep_all.peak_bytes, report.keep_all.arena_bytes, repr(report.keep_all.cost)],
        "peak_lower_bound": report.peak_lower_bound,
        "cost_lower_bound": repr(report.cost_lower_bound),
        "arena_lower_bound": report.arena_lower_bound,
        "optimal": report.optimal,
        "peak_op": report.peak_op,
    }


def _curve(graph: str, budgets: Any, **options: Any) -> dict[str, Any]:
    """What `curve` answers, and the plan of its last point."""
    curve = planner.curve(program(graph), budgets, **options)
    fields = (
        "strategy", "budget", "status", "minimum", "peak_bytes", "arena_bytes", "cost", "overhead", "recomputed_ops",
        "extra_runs", "cost_lower_bound", "gap",
    )  # fmt: skip
    points = [[repr(getattr(point, field)) for field in fields] for point in curve.points]
    plan = curve.plan(curve.points[-1])
    return {
        "points": _hash(points),
        "front": [[point.arena_bytes, repr(point.cost)] for point in curve.front],
        "least_budget": curve.least_budget,
        "schedule": _steps(plan.schedule),
    }


def _packed(graph: str, allocator: str, memory: MemoryModel) -> dict[str, Any]:
    """What `allocate` and `simulate` answer about one schedule."""
    schedule = planner.optimize(program(graph), strategy="chen-sqrt", allocator=None, memory=memory).schedule
    found = planner.allocate(program(graph), schedule, allocator=allocator, memory=memory)
    trace = planner.simulate(program(graph), schedule, memory=memory, allocation=found)
    return {
        "offsets": _offsets(found),
        "arena_bytes": [found.arena_bytes, trace.arena_bytes, found.resident_bytes, found.bound_bytes],
        "peak": [trace.peak_bytes, trace.peak_step, trace.peak_op, repr(trace.cost), trace.workspace_at_peak_bytes],
        "timeline": _hash(
            [trace.timeline_bytes, trace.live_at_peak, sorted(trace.recomputed.items()), trace.inplace_taken]
        ),
    }


def _illegal(graph: str, dropped: int) -> dict[str, Any]:
    """What `simulate` says of a schedule that lacks a step."""
    steps = planner.optimize(program(graph), "100%", allocator=None).schedule.steps
    trace = planner.simulate(program(graph), planner.Schedule.of(steps[:dropped] + steps[dropped + 1 :]))
    return {"peak_bytes": trace.peak_bytes}


def _program(graph: str) -> dict[str, Any]:
    """What the front ends make of a graph, and what a step of it holds."""
    found = program(graph)
    return {
        "fingerprint": found.fingerprint,
        "ops": len(found.ops),
        "needed_bytes": planner.estimate(found).needed_bytes,
    }


def _plan(graph: str, budget: Any, **options: Any) -> Question:
    shown = " ".join(f"{key}={_shown(value)}" for key, value in options.items())
    return f"plan {graph} at {budget!r} {shown}".strip(), partial(_planned, graph, budget, **options)


def questions() -> Iterator[Question]:
    """Every question by name, and what answers it."""
    for graph in (*GRAPHS, "onnx/onnx_light/light_shufflenet", "onnx/onnx_training/resnet50_training", "remat/rl100"):
        yield f"program {graph}", partial(_program, graph)
    yield from _of_searches()
    yield from _of_budgets()
    yield from _of_options()
    yield from _of_files()
    for allocator in ("auto", "first-fit", "best-fit", "exact", "nnvm"):
        for memory in (MemoryModel(), MemoryModel("activations", 512)):
            for graph in ("gpt", "net view two inplace update", "inception_bn"):
                yield f"packing {graph} {allocator} {_shown(memory)}", partial(_packed, graph, allocator, memory)
    for dropped in (0, 5, 20):
        yield f"simulate gpt without step {dropped}", partial(_illegal, "gpt", dropped)
    for graph, budgets, strategies in (
        ("unet", 5, ("auto", "chen-sqrt")),
        ("residual", 5, ("cuts", "retention")),
        ("chain", [2, 4, 6, "80%", "100%"], ("auto", "recursive")),
    ):
        yield f"curve {graph}", partial(_curve, graph, budgets, strategies=strategies)


def _of_searches() -> Iterator[Question]:
    """Every strategy, and every allocator."""
    small = ("chain", "chain-out", "gpt", "unet", "net view two inplace update")
    for strategy in STRATEGIES:
        for allocator in ("auto", None):
            for graph in small if strategy == "exact" else (*small, "resnet"):
                yield _plan(graph, "80%", strategy=strategy, allocator=allocator)
            for graph, budget in (
                ("chain", "50%"),
                ("mlp", "95%"),
                ("net two once", "90%"),
                ("C2", "90%"),
                ("C9", "80%"),
            ):
                yield _plan(graph, budget, strategy=strategy, allocator=allocator, memory=ACTIVATIONS)
        for graph in ("chain", "chain-out", "net view"):
            yield _plan(graph, "30%", strategy=strategy)
        for graph in ("chain-out", "C2", "C7", "mlp", "residual", "net inplace"):
            yield _plan(graph, None, strategy=strategy)
        if strategy != "exact":
            for graph in ("squeezenet", "vgg"):
                yield _plan(graph, "75%", strategy=strategy, memory=ACTIVATIONS)
    for allocator in ALLOCATORS:
        for graph in ("chain-out", "gpt", "net view two inplace update", "squeezenet"):
            yield _plan(graph, None, strategy="chen-sqrt", allocator=allocator)


def _of_budgets() -> Iterator[Question]:
    """Public cases, what does not fit, and budgets in every form."""
    for budget in (3, 4, 6, 8):
        yield _plan("C1", budget)
    for graph, budgets in {
        "C2": (288, 240, 224, 223),
        "C3": (60, 61, 63, 59),
        "C5": (39829110788, "24GiB"),
        "C7": (38, 40, 37),
    }.items():
        for budget in (*budgets, None):
            yield _plan(graph, budget, allocator=None)
    for budget, strategy in ((8, "chain"), (64, "chen-budget"), (46, "binomial"), (None, "recursive")):
        yield _plan("C10", budget, strategy=strategy)
    for budget in (
        "80%", "80 %", "0.8", 0.8, "9e-1", 80000, "80000", "80KB", " 80 kb", "78.5KiB", "0.08MB", "1GB", 1, "1%",
        "59Kb", "110%", "-1", 0, float("nan"), "much", True,
    ):  # fmt: skip
        yield _plan("gpt", budget, strategy="chain")


def _of_options() -> Iterator[Question]:
    """Kinds of ops, rules, and every option of a search."""
    for name in ("view", "two", "two once", "inplace", "view two inplace update"):
        yield _plan(f"net {name}", "70%")
        yield _plan(f"net {name}", "85%", order="pinned", memory=MemoryModel(alignment=512))
    for graph in ("gpt-plain", "vit", "residual", "mxnet_lstm", "lstm", "densenet"):
        yield _plan(graph, "85%")
    for rules in (
        {"save": "y*"}, {"save": ("y1", "op:Dropout"), "recompute": "y*"}, {"recompute": "module:half0"},
        {"recompute": "op:Linear"}, {"recompute": "none"}, {"recompute": "selective"}, {"recompute": "full"},
        {"recompute": "auto"}, {"save": "nothing*"},
    ):  # fmt: skip
        for budget in ("100%", "90%"):
            yield _plan("net two", budget, **rules)
    yield _plan("gpt", "85%", recompute="selective", save="op:Gemm")
    yield _plan("unet", None, recompute="full")
    for memory in (
        MemoryModel(reserve=9000),
        MemoryModel(alignment=512),
        MemoryModel("activations", 512, 1000),
        MemoryModel(alignment=64),
    ):
        yield _plan("unet", "85%", memory=memory)
        yield _plan("gpt", None, memory=memory, strategy="cuts")
        yield _plan("unet", "2KB", memory=memory, strategy="cuts")
    for graph, budget in (("mxnet_resnet", "60%"), ("vgg", "60%"), ("net two", "70%"), ("C2", None)):
        for options in ({"order": "pinned"}, {"effort": 0.3}, {"effort": 3.0}, {"seed": 1}, {"seed": 2}):
            yield _plan(graph, budget, memory=ACTIVATIONS, **options)
    yield _plan("C2", 240, strategy="exact", order="pinned")


def _of_files() -> Iterator[Question]:
    """Shared files, and a large graph of the zoo."""
    for name in ("light_squeezenet", "light_bvlc_alexnet", "light_inception_v1"):
        yield _plan(f"onnx/onnx_light/{name}", "80%", memory=ACTIVATIONS)
    for name in ("onnx_training/squeezenet_training", "onnx_training/vgg19_training", "onnx_light/light_vgg19"):
        yield _plan(f"onnx/{name}", "80%", memory=ACTIVATIONS)
        yield _plan(f"onnx/{name}", None, memory=ACTIVATIONS, strategy="cuts")
    yield _plan("resnet50", "50%")
    yield _plan("remat/unet_own", "50%", allocator=None)
    yield _plan("remat/cm_vgg16", "90%", allocator=None)
    yield _plan("remat/layered100", "80%", allocator=None)
    yield _plan("remat/gpt12", "50%", allocator=None, strategy="retention")
    yield _plan("remat/aten_resnet50", "40%", allocator=None, strategy="retention")
    yield _plan("remat/cm_mobilenet", "50%", allocator=None, strategy="chen-budget")


def answered(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """An answer, or the error that was one."""
    try:
        return ask()
    except planner.InfeasibleBudget as error:
        numbers = ("budget", "minimum", "peak_lower_bound", "proven", "binding_op", "phase")
        return {
            "error": type(error).__name__,
            **{name: getattr(error, name) for name in numbers},
            "live": _hash(sorted(error.live)),
        }
    except planner.ScheduleError as error:
        return {"error": type(error).__name__, "step": error.step, "op": error.op, "value": error.value}
    except planner.PlannerError as error:
        return {"error": type(error).__name__}


def answers(only: str = "") -> dict[str, dict[str, Any]]:
    """The answers to all questions whose name has `only` in it."""
    asked = [(name, ask) for name, ask in questions() if only in name]
    found: dict[str, dict[str, Any]] = {}
    for number, (name, ask) in enumerate(asked, start=1):
        if name in found:
            raise ValueError(f"two questions are named {name!r}")
        start = time.process_time()
        found[name] = json.loads(json.dumps(answered(ask)))
        print(f"{number}/{len(asked)}  {time.process_time() - start:6.2f} s  {name}", file=sys.stderr, flush=True)
    return found


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """One line for each question whose answer is another, with what was and what is."""
    lines = []
    for name in dict.fromkeys([*old, *new]):
        was, now = old.get(name, {}), new.get(name, {})
        changed = [key for key in dict.fromkeys([*was, *now]) if was.get(key) != now.get(key)]
        if changed:
            lines.append(f"{name}: " + ", ".join(f"{key} {was.get(key)!r} -> {now.get(key)!r}" for key in changed))
    return lines


def main() -> None:
    """Record all answers, or check them against a record; exits with 1 where one differs."""
    parser = argparse.ArgumentParser(description="Record the planner's answers, or check them against a record.")
    parser.add_argument("action", choices=("record", "check"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="check the questions whose name has this in it")
    given = parser.parse_args()
    if given.action == "record":
        found = answers()
        given.file.write_text(
            "{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in found.items()) + "\n}\n"
        )
        print(f"{len(found)} answers")
        return
    old = {name: answer for name, answer in json.loads(given.file.read_text()).items() if given.only in name}
    lines = differences(old, answers(given.only))
    print(*lines, f"{len(lines)} of {len(old)} answers differ", sep="\n")
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
