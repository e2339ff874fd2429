"""From an ONNX file to the networkx DAG of a training step, or of inference."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, final

import networkx as nx

from planner.errors import GraphError
from planner.lowering.assembly import Assembly, Value
from planner.lowering.devices import device as device_named
from planner.lowering.differentiate import check_optimizer, differentiate
from planner.lowering.onnx.batches import Sizes
from planner.lowering.onnx.fused import fused
from planner.lowering.onnx.layout import Layout, module_of, node_name, params_of, title
from planner.lowering.onnx.model_file import (
    FreeDimensions,
    check_dtype,
    infer_sizes,
    read_model,
    real_inputs,
    settle_branches,
)
from planner.lowering.onnx.notes import notes_on
from planner.lowering.onnx.rewrites import constants_of, values_in
from planner.lowering.onnx.training import Step
from planner.lowering.operators.lookup import DTYPE_BYTES, TensorType, sizes_of
from planner.lowering.operators.onnx_rows import ONNX_OPERATORS
from planner.lowering.step import stepped
from planner.training_step import TrainingStep


def from_onnx(
    path: str | os.PathLike[str],
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    training: bool | Literal["forward"] = True,
    optimizer: str | None = "sgd",
    step: TrainingStep | None = None,
    trainable: Iterable[str] = (),
    device: str = "a100",
) -> nx.DiGraph:
    """The DAG of an ONNX file, with backward and update unless `training=False`.

    What only touches constants is folded, but for what is computed from weights: that is an op of each step, or a view
    of the weight. `onnx.weights.Judge` says which stored tensors are weights; the others are states. Shape arguments
    are no tensors, what no output needs is pruned. In training, batch normalization uses batch statistics and updates
    the running ones, dropout draws a mask that can be drawn again from a saved generator state, max pooling keeps
    indices, and a recurrent layer the gates of each step; a generic loss reads the outputs.

    A file that holds its own backward pass is read as the step it is, without an optimizer: see `onnx.training`.

    Args:
        path: the file; nothing in it is run, and weights are not needed.
        batch: dimension 0 of all inputs, types inferred anew; None: as in the file.
        dims: sizes of named dimensions, such as {"height": 224}; {"x:2": 224} is dimension 2 of input x.
        training: False gives the forward graph as inference runs it; "forward" as training does, not differentiated.
        optimizer: see `differentiate`.
        step: the training step; `optimizer` is for a step that names none.
        trainable: names of stored tensors that are trained whatever the file says; those that `step.trainable` spells
            out are too.
        device: costs are seconds on it.
    Returns:
        A DAG whose `graph["source"]` counts what the file holds, as inference: nodes, real_nodes (without
        ConstantOfShape), folded nodes, params (elements of weights and, bn_stats of them, running statistics),
        act_elems and act_bytes (non-constant outputs of known size), and lists ignored initializers and pruned nodes
        and outputs. Of a training step: nodes, forward_nodes (before the first gradient op), grad_ops, trainable
        (elements), saved_tensors and saved_elems (forward values that backward reads).
    Raises:
        GraphError: names the file and the node: unreadable, an op without a rule, a value without a size, or a Reshape
            that has another batch frozen in.
    """
    check_optimizer(optimizer)
    device_named(device)
    try:
        model = read_model(Path(path))
        settle_branches(model, batch=batch, dims=dims)
        spelled_out = (*trainable, *(step.trainable if step is not None else ()))
        layout = Layout(model, trainable=spelled_out, folder=Path(path).parent)
        layout.check_ops()
        if layout.is_step and not training:
            raise GraphError("holds its own backward pass, so it is no inference graph; leave training=True")
        sizes = infer_sizes(model, batch=batch, dims=dims)
        if layout.is_step:
            return Step(layout, sizes, Path(path), device=device).build()
        source = counts_of(layout, sizes)
        if training and (with_functions := fused(layout)) is not model:
            layout = Layout(with_functions, trainable=spelled_out, folder=Path(path).parent)
        graph = _Importer(layout, sizes, Path(path), source, training=bool(training), device=device).build()
        if training is not True:
            return graph
        return differentiate(graph, optimizer=optimizer) if step is None else stepped(graph, step, optimizer=optimizer)
    except FreeDimensions as error:
        raise error.told(path) from None
    except GraphError as error:
        raise GraphError(f"{path}: {' '.join(str(error).split())}") from None  # an op type may hold a line break


def counts_of(layout: Layout, sizes: Sizes) -> dict[str, Any]:
    """Counts of a file as it is: before folding, fusion and pruning."""
    real = [node for node in layout.nodes if node.op_type != "ConstantOfShape"]
    moving = [node for node in real if node.output[0] not in layout.constants]
    typed = [size for node in moving for name in node.output if name and (size := sizes.get(name)) is not None]
    counted = [size for size in typed if size.dtype in DTYPE_BYTES]
    used = {name for node in layout.nodes for name in node.input} | set(layout.outputs)
    return {
        "nodes": len(layout.nodes),
        "real_nodes": len(real),
        "folded": sum(1 for node in real if node.output[0] in layout.constants and node.op_type != "Constant"),
        "act_elems": sum(size.elements for size in counted),
        "act_bytes": sum(size.nbytes for size in counted),
        "notes": notes_on(layout.model),
        "stored": {
            layout.title_of(name): {"weight": found.trained, "line": found.line}
            for name, found in layout.verdicts.items()
        },
        "ignored": tuple(tensor.name for tensor in layout.model.graph.initializer if tensor.name not in used),
    }


_NOTHING: Final = TensorType((0,))


@final
class _Importer:
    """Writes the forward DAG."""

    def __init__(
        self, layout: Layout, sizes: Sizes, path: Path, source: dict[str, Any], *, training: bool, device: str
    ) -> None:
        self.layout: Final = layout
        self.sizes: Final = sizes
        self.training: Final = training
        self.statistics: Final = layout.statistics()
        self.numbers: Final = constants_of(layout.model)
        self.draft: Final = Assembly(name=path.stem, device=device)
        self.source: Final = {"path": str(path), **source}
        self.values: Final[dict[str, Value]] = {}
        self.pruned: Final[list[str]] = []

    def build(self) -> nx.DiGraph:
        """The forward DAG, its facts in `graph.graph`."""
        layout, draft = self.layout, self.draft
        for value in real_inputs(layout.model):
            if value.name in layout.needed:
                size = self._size(value.name, "input")
                self.values[value.name] = draft.resident(self._free_name(value.name), size, kind="input")
            else:
                self.pruned.append(value.name)
        for node in layout.nodes:
            if layout.is_live(node):
                self._write(node)
            elif node.output[0] not in layout.settled:
                self.pruned.append(node_name(node))
        self._write_outputs()
        residents = [draft.graph.nodes[node] for node, kind in draft.graph.nodes(data="kind") if kind == "parameter"]
        weights = [TensorType(found["shape"], found["dtype"]) for found in residents]
        statistics = [TensorType(self._size(name, "constant").shape) for name in self.statistics if name in self.values]
        params = sum(size.elements for size in (*weights, *statistics))
        bn_stats = sum(statistic.elements for statistic in statistics)
        self.source.update(params=params, bn_stats=bn_stats, pruned=tuple(self.pruned))
        draft.graph.graph.update(source=self.source, pruned=tuple(self.pruned))
        return draft.graph

    def _size(self, name: str, where: str) -> TensorType:
        size = self.sizes.get(name)
        if size is None:
            remedy = "give dims= or batch=, or simplify the file first"
            raise GraphError(f"{where}: no size could be inferred for value {name!r}; {remedy}")
        check_dtype(size, name, where)
        return size

    def _free_name(self, name: str) -> str:
        """A free name of a node, without colons: a colon would read as the number of an output."""
        return self.draft.unique(name.replace(":", "_"))

    def _read(self, name: str, node: Any) -> Value:
        """The value behind a name; a constant becomes a resident where it is first read."""
        source = self.layout.aliases.get(name, name)
        if source not in self.values:
            if source not in self.layout.settled:
                raise GraphError(f"node {title(node)} reads {name!r}, an output that its rule does not make")
            size = self._size(source, f"node {title(node)}")
            name_there = self._free_name(self.layout.title_of(source))
            self.values[source] = self.draft.resident(name_there, size, kind=self._kind(source))
        return self.values[source]

    def _omitted(self) -> Value:
        """An empty resident in the place of an optional input that a node leaves out before one it has."""
        if "" not in self.values:
            self.values[""] = self.draft.resident(self._free_name("omitted"), _NOTHING, kind="state")
        return self.values[""]

    def _kind(self, name: str) -> str:
        """Weights are parameters; running statistics, initial states, masks and lone numbers are states."""
        return "parameter" if name in self.layout.weights and name not in self.statistics else "state"

    def _write(self, node: Any) -> None:
        """Write one node of the file as one op; training adds statistics, masks and generator states."""
        names = self.layout.places(node)
        reads = [self._read(name, node) if name else self._omitted() for name in names]
        name = self._free_name(node_name(node))
        live = [k for k, output in enumerate(node.output) if output in self.layout.needed]
        made = 1 + max(live)
        module = {"module": scope} if (scope := module_of(node)) else {}
        fixed = self.layout.constants.issuperset(names[3:5])
        if node.op_type == "BatchNormalization" and self.training and fixed:
            self.draft.batch_norm(name, reads[0], reads[1], reads[2], (reads[3], reads[4]), **module)
        elif node.op_type == "Dropout" and self.training and self._drops(node):
            self.draft.dropout(name, reads[0], **module)
        else:
            types = [self._size(x, f"node {title(node)}") if x else _NOTHING for x in names]
            outputs = self._outputs(node, types, made)
            if node.op_type in ("BatchNormalization", "Dropout") and made > 1:
                raise GraphError(f"node {title(node)}: output {made - 1} is read, which no rule covers in inference")
            if ONNX_OPERATORS[node.op_type].state is not None and node.op_type != "Dropout":
                reads.append(self.draft.generator_state(self._free_name(f"{name}.rng"), **module))
                types.append(self.draft.types[reads[-1]])
            further = {**module, **self._shared(node, types, outputs)}
            self.draft.apply(name, node.op_type, reads, outputs, types=types, params=params_of(node), **further)
        nbytes = self.draft.graph.nodes[name]["nbytes"]
        count = len(nbytes) if isinstance(nbytes, tuple) else 1
        for k, output in enumerate(node.output):
            if k in live and k < count and not (node.op_type == "BatchNormalization" and k):
                self.values[output] = Value(name, k)
            elif output and k:
                self.pruned.append(output)

    def _outputs(self, node: Any, types: list[TensorType], made: int) -> list[TensorType]:
        """Types of the outputs up to the last live one, and in training of further outputs that the backward reads."""
        # A recurrent layer may leave earlier outputs without a name, and training keeps the gates of each step.
        if node.op_type in ("LSTM", "GRU", "RNN"):
            count = {"LSTM": 4, "GRU": 3, "RNN": 2}[node.op_type] if self.training else made
            found = sizes_of(node.op_type, node=title(node), inputs=types, outputs=count, params=params_of(node))
            return list(found[:count])
        outputs = [self._size(output, f"node {title(node)}") for output in node.output[:made]]
        if node.op_type in ("MaxPool", "TopK") and self.training and made == 1:
            outputs.append(TensorType(outputs[0].shape, "int64"))
        if node.op_type == "LayerNormalization" and self.training and made == 1:  # mean and deviation of each row
            found = sizes_of(node.op_type, node=title(node), inputs=types, outputs=3, params=params_of(node))
            outputs.extend(found[1:])
        return outputs

    def _shared(self, node: Any, types: list[TensorType], outputs: list[TensorType]) -> dict[str, Any]:
        """What a training framework hands over without a copy, as a view; a runtime for inference would copy it."""
        if not self.training:
            return {}
        offset: int | None = None
        if node.op_type in ("Cast", "CastLike") and types[0].dtype == outputs[0].dtype:
            offset = 0
        elif node.op_type == "Gather":
            offset = self._selected(node, types[0])
        elif node.op_type == "Transpose" and self._keeps_order(node, types[0], outputs[0]):
            offset = 0
        return {} if offset is None else {"view": ((0, 0, offset),), "flops": 0, "cost": 0.0}

    def _selected(self, node: Any, source: TensorType) -> int | None:
        """Where one entry of a dimension begins, such as q of q, k and v; None for a Gather of several."""
        at = values_in(self.numbers.get(node.input[1]))
        if at is None or at.ndim:
            return None
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0) % len(source.shape)
        return int(at) % source.shape[axis] * source._replace(shape=source.shape[axis + 1 :]).nbytes

    def _keeps_order(self, node: Any, source: TensorType, made: TensorType) -> bool:
        """True where strides are enough for what follows a Transpose.

        It moves dimensions of one element alone; or the two outer of three dimensions change places, and every reader
        splits the outermost.
        """
        perm = next((list(attribute.ints) for attribute in node.attribute if attribute.name == "perm"), [])
        moved = [k for k in perm if source.shape[k] > 1]
        if perm and moved == sorted(moved):
            return True
        readers = self.layout.readers.get(node.output[0], [])
        shapes = [self.sizes.get(reader.output[0]) for reader in readers]
        splits = (shape is not None and shape.shape[-2:] == made.shape[-2:] for shape in shapes)
        return perm == [1, 0, 2] and bool(readers) and all(r.op_type == "Reshape" for r in readers) and all(splits)

    def _drops(self, node: Any) -> bool:
        """False for a Dropout of rate 0, which frameworks do not run."""
        rates = [attribute.f for attribute in node.attribute if attribute.name == "ratio"]
        rate = values_in(self.numbers.get(node.input[1])) if len(node.input) > 1 else None
        return not (rates and rates[0] == 0) and not (rate is not None and rate.size == 1 and float(rate) == 0)

    def _write_outputs(self) -> None:
        """Make the file's outputs outputs; in training, values that the loss and nothing else reads."""
        read: list[tuple[Any, int]] = []
        for name in self.layout.outputs:
            value = self.values.get(name)
            if value is None or self.draft.graph.nodes[value.node].get("kind", "op") != "op":
                continue
            if not self.training:
                self.draft.mark_output(value)
            elif any(value.output in edge["reads"] for _, _, edge in self.draft.graph.out_edges(value.node, data=True)):
                same = self.draft.types[value]
                read.append(self.draft.apply(self._free_name(f"{name}.output"), "Identity", [value], [same]))
            else:
                read.append(value)
        if self.training:
            self.draft.graph.graph["loss_reads"] = tuple(map(tuple, read))
