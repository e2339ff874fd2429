"""Who makes and reads what in an ONNX model, before any size is known."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, final

from planner.errors import GraphError
from planner.lowering.onnx.shapes import TRAINING_OPS, is_training_step
from planner.lowering.onnx.weights import Judge, Verdict, listed, metadata
from planner.lowering.operators.onnx_rows import ONNX_OPERATORS, QUANTIZED_OPS, REFUSED
from planner.names import scoped

_SCOPES: Final = "pkg.torch.onnx.name_scopes"
_NO_MODULE: Final = "_empty_nn_module_stack_from_metadata_hook"
_CONSTANT_OPS: Final = ("Constant", "ConstantOfShape")
_DRAWS: Final = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")
_SHAPE_OPS: Final = ("Shape", "Size")
_PARAMS: Final = (
    "kernel_shape", "transA", "transB", "size", "axis", "equation", "layout", "q_num_heads", "kv_num_heads",
)  # fmt: skip
# Values of an attribute under which an op's backward reads more than its row says.
_ROWS_FOR: Final = {
    "Scatter": ("reduction", ("none", "add")), "ScatterElements": ("reduction", ("none", "add")),
    "ScatterND": ("reduction", ("none", "add")), "RoiAlign": ("mode", ("avg",)),
}  # fmt: skip


@final
class Layout:
    """The nodes of a model, what of them is constant or a weight, and what the outputs need.

    A stored tensor can be a weight if a gradient flows from the outputs to a place where it is read that is neither an
    initial state nor a mask; `weights.Judge` says which of these are. What the file computes from weights (a cast one,
    the first rows of a table) is an op of every step, but for a view or a transposed one, which is the weight itself.

    Args:
        model: as read.
        trainable: names of stored tensors that the caller says are trained.
        folder: where external weights lie.
    """

    def __init__(self, model: Any, *, trainable: Iterable[str] = (), folder: Path = Path()) -> None:
        self.model: Final = model
        self.nodes: Final[list[Any]] = list(model.graph.node)
        self.is_step: Final = is_training_step(self.nodes)
        self.outputs: Final[list[str]] = [value.name for value in model.graph.output]
        self.aliases: Final[dict[str, str]] = {}
        self.readers: Final[dict[str, list[Any]]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(filter(None, node.input)):
                self.readers.setdefault(name, []).append(node)
        self.constants: Final = self._constants()
        self.settled: Final = self.constants if self.is_step else self._settled()
        self.used: Final = self._used()
        self.verdicts: Final[dict[str, Verdict]] = {}
        self.weights: Final = set[str]() if self.is_step else self._weights(frozenset(trainable), folder)
        self.needed: Final = self._needed()

    def _constants(self) -> set[str]:
        """Values that depend on no input and no random draw; views of stored tensors go to `aliases`."""
        constants = {tensor.name for tensor in self.model.graph.initializer}
        made = constants | {value.name for value in self.model.graph.input}
        for node in self.nodes:
            if not any(node.output) or (not node.output[0] and not self.is_step):
                raise GraphError(f"node {node.name!r} ({op_type(node)}) has no first output; no rule covers that")
            for name in node.input:
                if name and name not in made:
                    raise GraphError(f"node {title(node)} reads {name!r}, which nothing before it makes")
            for name in node.output:
                if name and name in made:
                    raise GraphError(f"node {title(node)} makes {name!r}, which exists already")
            made.update(node.output)
            folds = self._follows(node, constants)
            if folds or node.op_type in _CONSTANT_OPS:
                constants.update(node.output)
                row = ONNX_OPERATORS.get(op_type(node))
                # A transposed weight is the weight: frameworks hand over its strides, and copy nothing.
                if folds and row is not None and (row.view or node.op_type == "Transpose"):
                    source = next(filter(None, node.input))
                    self.aliases[node.output[0]] = self.aliases.get(source, source)
        for name in self.outputs:
            if name not in made:
                raise GraphError(f"output {name!r} is made by no node")
        return constants

    def _settled(self) -> set[str]:
        """Constants and values computed from shapes alone, which are known once the inputs have sizes."""
        settled = set(self.constants)
        for node in self.nodes:
            if node.op_type in _SHAPE_OPS or self._follows(node, settled):
                settled.update(name for name in node.output if name)
        return settled

    def _follows(self, node: Any, known: set[str]) -> bool:
        """True if a node computes its outputs from known values alone."""
        # A CastLike takes no more than the dtype of what it is like.
        inputs = [name for k, name in enumerate(node.input) if name and not (k and node.op_type == "CastLike")]
        return bool(inputs) and known.issuperset(inputs) and node.op_type not in _DRAWS and not _is_nested(node)

    def _used(self) -> set[str]:
        """Values that the outputs depend on, constants and shapes included."""
        used = set(self.outputs)
        for node in reversed(self.nodes):
            if any(name in used for name in node.output):
                used.update(name for name in node.input if name)
        return used

    def _weights(self, trainable: frozenset[str], folder: Path) -> set[str]:
        """Stored tensors that are trained; values computed from them leave `settled`, tied ones go to `aliases`."""
        learned: set[str] = set()
        for node in reversed(self.nodes):
            flows = node.output[0] not in self.settled or any(name in learned for name in node.output)
            if flows and any(name in self.used for name in node.output):
                learned.update(self._followed(node))
        judge = Judge(
            self.model, constants=self.constants, settled=self.settled, reached=learned, statistics=self.statistics(),
            trainable=trainable, folder=folder,
        )  # fmt: skip
        self.verdicts.update(judge.verdicts())
        tied = {name: found.tied for name, found in self.verdicts.items() if found.tied}
        self.aliases.update({name: tied[root] for name, root in self.aliases.items() if root in tied})
        self.aliases.update(tied)
        weights = {name for name, found in self.verdicts.items() if found.trained}
        computed: set[str] = set()
        for node in self.nodes:
            first = node.output[0]
            if first in self.settled and any(name in learned for name in node.output):
                roots = {self.aliases.get(name, name) for name in self._followed(node)}
                if roots & computed or (roots & weights and first not in self.aliases):
                    computed.update(name for name in node.output if name)
        self.settled.difference_update(computed)
        for name in computed:
            self.aliases.pop(name, None)
        return weights | {name for name, root in self.aliases.items() if root in weights and name in learned}

    def _followed(self, node: Any) -> list[str]:
        """Inputs of a node through which a gradient flows on to a weight."""
        row = ONNX_OPERATORS.get(op_type(node))
        if row is None:
            return []
        trained = (k not in row.untrained and row.gradient(k) is not None for k in range(len(node.input)))
        return [name for name, flows in zip(self.places(node), trained, strict=False) if name and flows]

    def reads(self, node: Any) -> list[str]:
        """The tensors a node reads: no shape arguments, no omitted inputs."""
        row = ONNX_OPERATORS.get(op_type(node))
        static = row.static if row is not None else ()
        # The backward pass of a training step keeps shapes as values: only constants are arguments there.
        values = {i for i in static if self.is_step and i < len(node.input) and node.input[i] not in self.constants}
        return [name for i, name in enumerate(node.input) if name and (i not in static or i in values)]

    def places(self, node: Any) -> list[str]:
        """The tensors a node reads, by the row's input positions: an omitted one before another is an empty name."""
        row = ONNX_OPERATORS.get(op_type(node))
        names = [name for i, name in enumerate(node.input) if row is None or i not in row.static]
        while names and not names[-1]:
            names.pop()
        return names

    def _needed(self) -> set[str]:
        """Values that the outputs depend on and that a step computes."""
        needed = set(self.outputs)
        for node in reversed(self.nodes):
            if any(name in needed for name in node.output) and node.output[0] not in self.settled:
                needed.update(self.reads(node))
        return needed

    def title_of(self, name: str) -> str:
        """What a stored tensor is called: the exporter's parameter if it holds one whole, else its own name."""
        verdict = self.verdicts.get(name)
        return verdict.parameter if verdict is not None and verdict.parameter else name

    def is_live(self, node: Any) -> bool:
        """True for nodes that become ops."""
        return node.output[0] not in self.settled and any(name in self.needed for name in node.output)

    def check_ops(self) -> None:
        """Refuse op types without a rule before inference stumbles over them.

        Raises:
            GraphError: names the node and its op type.
        """
        for node in (node for node in self.nodes if self.is_live(node)):
            if op_type(node) not in ONNX_OPERATORS:
                raise GraphError(f"no rule for node {title(node)}{_reason(node)}")
            if (wrong := _wrong_form(node)) is not None:
                raise GraphError(f"no rule for node {title(node)} with {wrong}; export it without")
            optional = () if self.is_step else ONNX_OPERATORS[op_type(node)].optional
            if any(not name and k not in optional for k, name in enumerate(self.places(node))):
                raise GraphError(f"node {title(node)} omits an input before one it has; no rule covers that")
        for node in self.nodes:
            if op_type(node) in QUANTIZED_OPS and any(name in self.used for name in node.output):  # of constants too
                raise GraphError(f"no rule for node {title(node)}{_reason(node)}")
        for node in self.nodes:  # inference reads the inputs of dead ones too
            if len(node.input) < (least := self._least_inputs(node)):
                raise GraphError(f"node {title(node)} has {len(node.input)} inputs, and its op needs {least}")

    def _least_inputs(self, node: Any) -> int:
        from onnx import defs

        if node.op_type in TRAINING_OPS:
            return TRAINING_OPS[node.op_type]
        opsets = (opset.version for opset in self.model.opset_import if opset.domain in ("", "ai.onnx"))
        version = max(opsets, default=1)
        try:
            return int(defs.get_schema(node.op_type, version, "").min_input)
        except Exception:  # onnx raises a type of its own; inference says what is wrong with an op of another version
            return 0

    def statistics(self) -> set[str]:
        """Running means and variances: constants at inputs 3 and 4 of a batch normalization."""
        found = {name for node in self.nodes if node.op_type == "BatchNormalization" for name in node.input[3:5]}
        return {self.aliases.get(name, name) for name in found if name in self.constants}


def op_type(node: Any) -> str:
    """The name under which the operator table has an op; an op of a foreign domain keeps its domain."""
    known = node.domain in ("", "ai.onnx") or (node.domain == "com.microsoft" and node.op_type in TRAINING_OPS)
    return str(node.op_type) if known else f"{node.domain}.{node.op_type}"


def node_name(node: Any) -> str:
    """The name of a node, or of its first output where the node has none."""
    return str(node.name or node.output[0])


def module_of(node: Any) -> str | None:
    """The module that an exporter names: in metadata, before the node's name, or as onnxruntime does before "_Grad"."""
    scopes = [scope for scope in listed(metadata(node, _SCOPES))[:-1] if scope and scope != _NO_MODULE]
    if scopes:  # the last entry is the op; the one before it is the whole path, which may skip lists of modules
        return scopes[-1]
    name = node_name(node).replace(":", "_")  # as nodes of the DAG are named
    forward, gradient, _ = name.partition("_Grad/")
    parts = scoped(forward) if gradient else scoped(name)[:-1] if "/" in name else ()
    return ".".join(parts) or None


def title(node: Any) -> str:
    """Name and op type, for errors."""
    return f"{node_name(node)!r} ({op_type(node)})"


def _is_nested(node: Any) -> bool:
    return any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)


def _wrong_form(node: Any) -> str | None:
    """An attribute with a value for which the row of an op does not hold, or None."""
    name, values = _ROWS_FOR.get(node.op_type, ("", ()))
    for attribute in node.attribute:
        if attribute.name == name and attribute.s.decode(errors="replace") not in values:
            return f"{name}={attribute.s.decode(errors='replace')!r}"
    return None


def _reason(node: Any) -> str:
    if _is_nested(node):
        return f": {REFUSED['If']}"
    if op_type(node) in REFUSED:
        return f": {REFUSED[op_type(node)]}"
    if node.domain not in ("", "ai.onnx"):
        return f": domain {node.domain!r} is none of ONNX's, so neither its sizes nor what its backward reads are known"
    return "; a graph built by hand can say what the backward reads, as saves="


def params_of(node: Any) -> dict[str, Any]:
    """Attributes that FLOPs depend on."""
    from onnx import helper

    given = (attribute for attribute in node.attribute if attribute.name in _PARAMS)
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in given}
