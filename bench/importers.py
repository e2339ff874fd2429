"""python -m bench importers: exports of PyTorch made here, and files of others, as the importer reads them.

A row of the first table is one export, loaded at batch 1 and 4. Its weights are held to the module's named parameters,
tied ones once; the bytes of each value to a run of onnxruntime that returns them all; what its step saves to what
PyTorch saves eagerly (`bench.saved`); and a plan at 80 % of the keep-all peak is executed. Needs the extra
`test-torch`. An LSTM is one op in a file, which keeps what the cells of PyTorch do; what a library keeps
instead, only that library knows.

The second table is of files in packages, from a folder that these fill:

    pip install --no-deps --target FOLDER rapidocr-onnxruntime nudenet magika silero-vad ddddocr
    pip download --no-deps --no-binary :all: tract    # unpacked as FOLDER/tract
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import networkx as nx

import planner
from bench.exports import FAMILIES, Exporter, Form, write
from bench.saved import saved, saved_eagerly
from planner.errors import GraphError, InfeasibleBudget
from planner.lowering.onnx.importer import from_onnx
from planner.lowering.onnx.model_file import FreeDimensions, infer_sizes, read_model, settle_branches

BATCHES: Final = (1, 4)
KINDS: Final[tuple[tuple[Exporter, Form], ...]] = (
    ("torchscript", "training"), ("dynamo", "training"), ("dynamo", "folded"), ("torchscript", "eval"),
    ("dynamo", "eval"),
)  # fmt: skip
OPSET: Final = 18  # onnxruntime runs some ops of later ones at batch 1 alone
#: Families whose batch normalization an export for inference folds.
FOLDED: Final = ("resnet18", "mobilenet_v3", "efficientnet")


class Other(NamedTuple):
    """A file in a package, and what is known of it.

    Args:
        file: in the folder of packages.
        weights: how many trained tensors its own framework has; None: refused.
        dims: sizes of free dimensions.
        refusal: what the message says where it is refused, at its own batch or at 4.
    """

    file: str
    weights: int | None
    dims: Mapping[str, int] = {}
    refusal: str = ""


OTHERS: Final = (
    Other("rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", 222, {"x:2": 48, "x:3": 320}),
    Other("rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", 228, {"x:2": 64, "x:3": 64}),
    Other("nudenet/320n.onnx", 127, {"height": 320, "width": 320}),
    Other("magika/models/standard_v3_3/model.onnx", 10),
    Other("silero_vad/data/silero_vad_16k_sequence.onnx", 14, {}, "initial state 'h' is [4, 1, 128]"),
    Other("silero_vad/data/silero_vad_openvino_16k.onnx", 15, {}, "picks a fixed part of dimension 0"),
    Other("silero_vad/data/silero_vad.onnx", None, {"input:1": 576, "state:1": 1}, "which of its subgraphs runs"),
    Other("ddddocr/common.onnx", 47, {"image_width": 160}),
    Other("ddddocr/common_det.onnx", 166, {}, "has batch 1 frozen at place 0 of its target [1, 6, free]"),
    Other("ddddocr/common_old.onnx", None, {"image_width": 160}, "works on quantized integers"),
    Other("tract/rust-workspace/onnx/test_cases/byte_sb_bidi_lstm/model.onnx", 9, {"length": 20}),
    Other("tract/rust-workspace/examples/keras-tract-tf2/example.onnx", 4),
)  # fmt: skip


def weights_unlike(dag: nx.DiGraph, module: Any) -> list[str]:
    """Weights that only the graph or only the module has, by name and bytes; a tied one may have any of its names."""
    left = {name: dag.nodes[name]["nbytes"] for name, kind in dag.nodes(data="kind") if kind == "parameter"}
    names: dict[int, list[str]] = {}
    sizes: dict[int, int] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
        sizes[id(parameter)] = parameter.nbytes
    missed = []
    for key, tied in names.items():
        found = [name for name in tied if left.get(name) == sizes[key]]
        if len(found) == 1:
            del left[found[0]]
        else:
            missed.append(tied[0])
    return [*(f"+{name}" for name in left), *(f"-{name}" for name in missed)]


def values_run(path: Path, inputs: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of every tensor that onnxruntime makes of the inputs, without any optimization, by name."""
    import numpy as np
    import onnx
    import onnxruntime

    model = onnx.load(path)
    known = {value.name for value in model.graph.output}
    for name in (name for node in model.graph.node for name in node.output if name and name not in known):
        model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    names = [value.name for value in session.get_outputs()]
    made = session.run(names, {value.name: inputs[value.name].numpy() for value in session.get_inputs()})
    return {name: value.nbytes for name, value in zip(names, made, strict=True) if isinstance(value, np.ndarray)}


def values_unlike(path: Path, run: Mapping[str, int], *, batch: int) -> list[str]:
    """Names of the values of a run whose bytes the importer does not infer."""
    model = read_model(path)
    settle_branches(model, batch=batch, dims=None)
    sizes = infer_sizes(model, batch=batch, dims=None)
    return [name for name, nbytes in run.items() if (found := sizes.get(name)) is None or found.nbytes != nbytes]


def folded(module: Any) -> Any:
    """A module for inference, its batch normalization folded into convolutions by PyTorch's own transformation."""
    from torch.fx.experimental.optimization import fuse

    found = fuse(module.eval())
    for parameter in found.parameters():
        parameter.requires_grad_(True)
    return found


def export_rows(names: Iterable[str], folder: Path, *, published: bool) -> Iterator[str]:
    """Lines of the first table, one an export."""
    for name in names:
        for exporter, form in KINDS:
            path = folder / f"{name}.{exporter}.{form}.onnx"
            begin = time.process_time()
            try:
                module = write(FAMILIES[name], path, exporter=exporter, form=form, opset=OPSET, published=published)
            except Exception as error:  # an exporter's own: it raises anything
                cells = [f"the exporter fails: {' '.join(str(error).split())[:60]}"]
            else:
                exported = time.process_time() - begin
                cells = [*_export_cells(name, path, module, form, published=published), f"{exported:.1f}"]
                for written in folder.glob(f"{path.name}*"):  # large ones have a second file
                    written.unlink()
            held_out = " (held out)" if FAMILIES[name].held_out else ""
            yield f"| {name}{held_out} | {exporter} | {form} | {' | '.join(cells)} |"


def _export_cells(name: str, path: Path, module: Any, form: Form, *, published: bool) -> list[str]:
    family, batch = FAMILIES[name], BATCHES[-1]
    inputs = family.inputs(batch, published)
    try:
        graphs = [from_onnx(path, batch=size) for size in BATCHES]
    except GraphError as error:
        return [str(error)[len(str(path)) :][:120]]
    step = graphs[-1]
    asked = folded(module) if form == "eval" and name in FOLDED else module
    unlike = weights_unlike(step, asked)
    count = sum(kind == "parameter" for _, kind in step.nodes(data="kind"))
    own = len({id(parameter) for parameter in asked.parameters()})
    try:
        run = values_run(path, inputs)
        values = f"{len(run)}, {len(values_unlike(path, run, batch=batch))} unlike"
    except Exception as error:  # onnxruntime's own
        values = f"not run: {' '.join(str(error).split())[:60]}"
    eager, ours = saved_eagerly(asked, inputs, named=family.named), saved(step)
    return [
        f"{count} of {own}" + (f", {len(unlike)} by other names" if unlike else ""),
        values,
        f"{eager:,}",
        f"{ours.activations:,}" + (f" + {ours.of_weights:,} of weights" if ours.of_weights else ""),
        f"{ours.activations / eager:.3f}",
        _planned(step),
        "; ".join(re.split(r" [(]|, as in |: ", note)[0] for note in step.graph["source"]["notes"]),
    ]


def _planned(step: nx.DiGraph) -> str:
    begin, short = time.process_time(), ""
    try:
        plan = planner.optimize(step, budget="80%")
    except InfeasibleBudget as error:
        if error.plan is None:
            return str(error).splitlines()[0]
        plan = error.plan
        share = plan.report.plan.arena_bytes / plan.report.keep_all.peak_bytes
        short = f"none, the least that works is {share:.1%}: "
    cost = plan.report.plan.cost / plan.report.keep_all.cost
    seconds = time.process_time() - begin
    plan.verify()
    plan.execute()
    return f"{short}{cost:.3f}x in {seconds:.1f} s, runs"


def other_rows(packages: Path) -> Iterator[str]:
    """Lines of the second table, one a file; what is not as expected is in bold."""
    for other in OTHERS:
        own = other.refusal if other.weights is None else str(other.weights)
        cells = [_as_expected(_found(packages, other, None), own)]
        cells.append(_as_expected(_found(packages, other, BATCHES[-1]), other.refusal or own))
        yield f"| {other.file} | {other.weights or 'refused'} | {' | '.join(cells)} |"


def _found(packages: Path, other: Other, batch: int | None) -> str:
    """The number of weights at a batch, or why the file is refused; at 1 where the file has none of its own."""
    path = packages / other.file
    try:
        graph = from_onnx(path, batch=batch, dims=other.dims, training="forward")
    except FreeDimensions:
        return _found(packages, other, BATCHES[0])
    except GraphError as error:
        return f"refused: {str(error)[len(str(path)) + 2 :]}"
    return str(sum(kind == "parameter" for _, kind in graph.nodes(data="kind")))


def _as_expected(found: str, expected: str) -> str:
    return found if found == expected or (found.startswith("refused") and expected in found) else f"**{found}**"


EXPORTS_HEAD: Final = (
    "| family | exporter | form | weights of the module's | values of a run | saved eagerly, bytes | ours | ratio |"
    " plan at 80 %, executed | noted | export, CPU s |\n|" + "---|" * 11
)
OTHERS_HEAD: Final = "| file | weights | found | at batch 4 |\n|" + "---|" * 4
