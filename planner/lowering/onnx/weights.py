"""Which stored tensors of an ONNX file are trained, by what its exporter wrote into it, and by which line that is told.

No file says it outright. PyTorch's dynamo exporter leaves the kind of each tensor, other exporters their names; where
there is neither, the arithmetic around a tensor decides. The lines were measured on hundreds of exports: each is there
because files without it were read wrongly.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Optional, final

from planner.lowering.onnx.model_file import type_of, values_of
from planner.lowering.operators.lookup import is_float
from planner.lowering.operators.onnx_rows import ONNX_OPERATORS

_KIND: Final = "pkg.torch.export.graph_signature.InputSpec.kind"
_SIGNATURE: Final = "pkg.torch.export.ExportedProgram.graph_signature"
_FOLDED_FROM: Final = "pkg.onnxscript.optimizer.folded_from"
RULE_NAME: Final = "pkg.onnxscript.rewriter.rule_name"
_SIGNED: Final = re.compile(r"^\s*\S+: ([A-Z_]+) target='([^']*)'", re.MULTILINE)
_PYTORCH_OWN: Final = re.compile(r".*::.*|/.*|.*_output_0|val_\d+|\d+")
_EXPORTERS_OWN: Final = re.compile(
    r"p2o\.helper\.constant\..*|const_fold_opt__.*|.*\bConstant_\d+(_output_0)?|.*_pppN_.*"
)
_SCALING: Final = frozenset({"Mul", "Div", "Add", "Sub", "Pow", "Max", "Min", "Where", "Clip"})
_SHIFTING: Final = frozenset({"Mul", "Div", "Add", "Sub"})
_MEETING: Final = frozenset({"Mul", "MatMul", "Add"})
_MASKING: Final = frozenset({"Add", "Where", "Mul"})
_HIDDEN: Final = -100.0  # what masks add to the scores that must not count, or less


class Verdict(NamedTuple):
    """Whether a stored tensor is trained.

    Args:
        trained: it is a weight.
        line: what says so.
        parameter: the exporter's parameter that it holds whole, in another shape or under another name.
        tied: the stored tensor that holds the same parameter, and is read in its place.
    """

    trained: bool
    line: str
    parameter: Optional[str] = None
    tied: Optional[str] = None


@final
class Stored:
    """A float tensor of the file: an initializer, or what a Constant or a ConstantOfShape makes.

    Args:
        name: of the value.
        maker: the node that makes it; None for an initializer.
        tensor: shape and values; None for a fill.
    """

    def __init__(self, name: str, maker: Any, tensor: Any) -> None:
        self.name, self.maker, self.tensor = name, maker, tensor
        self.elements: Final = None if tensor is None else math.prod(tensor.dims)
        self.rank: Final = None if tensor is None else len(tensor.dims)

    @property
    def op_type(self) -> str:
        """Type of the node that makes it, "" of an initializer."""
        return str(self.maker.op_type) if self.maker is not None else ""


@final
class Exporter:
    """What an exporter wrote about the tensors of a file.

    Args:
        model: as read.
    """

    def __init__(self, model: Any) -> None:
        self.producer: Final = str(model.producer_name)
        self.signature: Final = self._signature(model)
        self.kinds: Final = _values_with(model, _KIND)
        self.folded_from: Final = {name: listed(text) for name, text in _values_with(model, _FOLDED_FROM).items()}
        self.parameters: Final = {name for name, kind in self.signature.items() if kind == "PARAMETER"}

    @staticmethod
    def _signature(model: Any) -> dict[str, str]:
        """Kinds by the name of the tensor in the module."""
        texts = (prop.value for prop in model.graph.metadata_props if prop.key == _SIGNATURE)
        return {target: kind for text in texts for kind, target in _SIGNED.findall(text)}

    def kind(self, name: str) -> str | None:
        """PARAMETER, BUFFER or another kind of the value itself; None where nothing says."""
        return self.kinds.get(name) or self.signature.get(name)


def _values_with(model: Any, key: str) -> dict[str, str]:
    """One entry of the metadata of all values that have it."""
    values = (*model.graph.value_info, *model.graph.input, *model.graph.initializer)
    return {value.name: prop.value for value in values for prop in value.metadata_props if prop.key == key}


def listed(text: str) -> list[str]:
    """A list of names as Python writes it; empty for any other text."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # text in a damaged file
        return []
    return [str(name) for name in found] if isinstance(found, list) else []


@final
class Judge:
    """Tells weights from everything else that a file stores.

    Args:
        model: as read.
        constants: values that depend on no input.
        settled: constants, and values that the shapes of inputs determine.
        reached: values at which a gradient arrives.
        statistics: running means and variances.
        trainable: names that the caller says are trained, whatever the file says.
        folder: where external weights lie.
    """

    def __init__(
        self,
        model: Any,
        *,
        constants: set[str],
        settled: set[str],
        reached: set[str],
        statistics: set[str],
        trainable: Iterable[str],
        folder: Path,
    ) -> None:
        self.model: Final = model
        self.exporter: Final = Exporter(model)
        self.constants, self.settled, self.reached, self.statistics = constants, settled, reached, statistics
        self.trainable: Final = frozenset(trainable)
        self.folder: Final = folder
        self.readers: Final[dict[str, list[Any]]] = {}
        for node in model.graph.node:
            for name in dict.fromkeys(filter(None, node.input)):
                self.readers.setdefault(name, []).append(node)
        self.stored: Final = {tensor.name: tensor for tensor in self._stored()}
        self.has_paths: Final = any(self._is_path(tensor) for tensor in self.stored.values())

    def verdicts(self) -> dict[str, Verdict]:
        """The verdict on each stored float that a node reads: initializers first, in the order of the file.

        The lines, in order: 1 no gradient; 2 the kind that the exporter's signature gives; 3 what it was folded from;
        4 a batch normalization folded into it; 5 what a signature does not name; 6 names of PyTorch; 7 names
        and numbers of others; 8 arithmetic; 9 a weight, as a gradient arrives. With a signature, 2 to 5 decide.
        """
        found = {name: self._told(tensor) for name, tensor in self.stored.items() if name in self.readers}
        if not self.exporter.signature:
            found = self._by_arithmetic(found)
            found = self._copies_tied(found)
        named = [verdict.parameter for verdict in found.values() if verdict.parameter]
        shared = {name for name in named if named.count(name) > 1}  # parts of one parameter keep their own names
        return {
            name: verdict._replace(parameter=None) if verdict.parameter in shared else verdict
            for name, verdict in found.items()
        }

    def _stored(self) -> Iterator[Stored]:
        for tensor in self.model.graph.initializer:
            if is_float(type_of(tensor).dtype):
                yield Stored(tensor.name, None, tensor)
        for node in self.model.graph.node:
            given = {attribute.name: attribute for attribute in node.attribute}
            if node.op_type == "ConstantOfShape":
                if "value" not in given or is_float(type_of(given["value"].t).dtype):
                    yield Stored(node.output[0], node, None)
            elif node.op_type == "Constant" and "value" in given:
                if is_float(type_of(given["value"].t).dtype):
                    yield Stored(node.output[0], node, given["value"].t)
            elif node.op_type == "Constant" and ("value_float" in given or "value_floats" in given):
                yield Stored(node.output[0], node, _tensor_of(given))

    def _told(self, tensor: Stored) -> Verdict:
        """What the exporter's words say, lines 1 to 7; line 9 where they say nothing."""
        name = tensor.name
        if name in self.statistics:
            return Verdict(False, "1: running statistics")
        if name not in self.reached:
            return Verdict(False, "1: no gradient arrives")
        if name in self.trainable:
            return Verdict(True, "named by trainable=")
        if self.exporter.signature:
            return self._signed(tensor)
        if self.exporter.producer == "pytorch":
            if self._is_path(tensor):
                return Verdict(True, "6: an initializer named as a path")
            return self._unnamed(tensor)
        return self._foreign(tensor)

    def _signed(self, tensor: Stored) -> Verdict:
        exporter, name = self.exporter, tensor.name
        kind = exporter.kind(name)
        if kind is not None:
            return Verdict(kind == "PARAMETER", f"2: {kind} in the signature of the exporter")
        if name in exporter.folded_from:
            met = [source for source in exporter.folded_from[name] if source in exporter.parameters]
            if not met:
                return Verdict(False, "3: folded from no parameter")
            if all(source in self.stored for source in met):
                same = [source for source in met if self.stored[source].elements == tensor.elements]
                if same:
                    return Verdict(True, "3: a stored parameter in another shape", tied=same[0])
                return Verdict(False, "3: folded from the shapes of stored parameters")
            return Verdict(True, "3: folded from parameters", parameter=met[0] if len(met) == 1 else None)
        if any("BatchNorm" in metadata(node, RULE_NAME) for node in self.readers[name]):
            return Verdict(True, "4: a batch normalization was folded into it")
        return Verdict(False, "5: a constant of the exporter, which its signature does not name")

    def _unnamed(self, tensor: Stored) -> Verdict:
        """Line 6, for what PyTorch's exporters store under a name of their own."""
        if tensor.op_type == "ConstantOfShape":
            return Verdict(False, "6: a fill made in the step")
        if tensor.rank == 0:
            return Verdict(False, "6: a lone number")
        if tensor.op_type == "Constant":
            if self.has_paths:
                return Verdict(False, "6: a Constant node beside tensors named as paths")
            values = self._values(tensor)
            if values is not None and (values == values.flat[0]).all():
                return Verdict(False, "6: a Constant node of equal elements")
        elif tensor.elements == 1 and self._only_scales(tensor):
            return Verdict(False, "6: one element that scales or shifts, without a path")
        return _DEFAULT

    def _foreign(self, tensor: Stored) -> Verdict:
        """Line 7, for files of other exporters."""
        if tensor.rank == 0:
            return Verdict(False, "7: a lone number")
        if tensor.op_type == "ConstantOfShape" and tensor.maker.input[0] not in self.constants:
            return Verdict(False, "7: a fill whose size an input determines")
        if tensor.elements == 1 and self._only_scales(tensor):
            if _EXPORTERS_OWN.fullmatch(tensor.name):
                return Verdict(False, "7: one element that scales or shifts, under an exporter's own name")
            values = self._values(tensor)
            number = None if values is None else abs(float(values.flat[0]))
            if number is not None and (number == 0.5 or (number >= 2 and number.is_integer())):
                return Verdict(False, "7: one element that scales or shifts, a half or a whole number")
        return _DEFAULT

    def _by_arithmetic(self, found: Mapping[str, Verdict]) -> dict[str, Verdict]:
        """Line 8: what stands where no trained tensor stands."""
        verdicts = dict(found)
        open_ = [name for name, verdict in found.items() if verdict.trained and name not in self.trainable]
        for name in open_:
            if self._meets_shapes_alone(name):
                verdicts[name] = Verdict(False, "8: meets only values made from shapes")
            elif self._is_mask(self.stored[name]):
                verdicts[name] = Verdict(False, "8: a mask of the scores before a softmax")
        for name in self._before_all_weights({name for name, verdict in verdicts.items() if verdict.trained}):
            if name not in self.trainable:
                verdicts[name] = Verdict(False, "8: shifts or scales an input before any weight")
        return verdicts

    def _is_path(self, tensor: Stored) -> bool:
        return tensor.maker is None and _PYTORCH_OWN.fullmatch(tensor.name) is None

    def _through_views(self, name: str) -> list[tuple[str, Any]]:
        """(name read, reader) of a value and of its views and casts, which are not readers themselves."""
        found: list[tuple[str, Any]] = []
        waiting = [name]
        while waiting:
            own = waiting.pop()
            for node in self.readers.get(own, ()):
                row = ONNX_OPERATORS.get(node.op_type)
                if node.op_type in ("Cast", "Transpose", "Expand") or (row is not None and row.view):
                    if node.input[0] == own:
                        waiting.append(node.output[0])
                else:
                    found.append((own, node))
        return found

    def _only_scales(self, tensor: Stored) -> bool:
        readers = self._through_views(tensor.name)
        return bool(readers) and all(node.op_type in _SCALING for _, node in readers)

    def _meets_shapes_alone(self, name: str) -> bool:
        """True where each reader combines it with values that shapes determine, such as positions."""
        met = self._through_views(name)
        made = self.settled - self.constants
        return bool(met) and all(
            node.op_type in _MEETING and all(other == own or other in made for other in node.input) for own, node in met
        )

    def _is_mask(self, tensor: Stored) -> bool:
        """True for at most two values, each 0 or far below it, that reach a Softmax by Add, Where or Mul alone."""
        if tensor.tensor is None or not self._reaches_softmax(tensor.name):
            return False
        values = self._values(tensor)
        if values is None or not values.size or not ((values == 0) | (values <= _HIDDEN)).all():
            return False
        hidden = values[values != 0]
        return not hidden.size or bool((hidden == hidden.flat[0]).all())

    def _reaches_softmax(self, name: str) -> bool:
        seen, waiting = {name}, [name]
        while waiting:
            for _, node in self._through_views(waiting.pop()):
                if node.op_type == "Softmax":
                    return True
                if node.op_type in _MASKING and node.output[0] not in seen:
                    seen.add(node.output[0])
                    waiting.append(node.output[0])
        return False

    def _before_all_weights(self, weights: set[str]) -> list[str]:
        """Weights that only shift or scale what is fed, before a weight meets it; none if there are no others."""
        fed = {value.name for value in self.model.graph.input} - set(self.stored)
        roots = {name: name for name in weights}
        met_one = set[str]()  # values that depend on a weight
        found = set[str]()
        for node in self.model.graph.node:
            inputs = [name for name in node.input if name]
            met = {roots[name] for name in inputs if name in roots}
            others = [name for name in inputs if name not in roots and name not in self.settled]
            row = ONNX_OPERATORS.get(node.op_type)
            if met_one.intersection(inputs):
                met_one.update(node.output)
            elif met and inputs[0] in roots and row is not None and row.view:
                roots[node.output[0]] = roots[inputs[0]]
            elif others and fed.issuperset(others) and (not met or node.op_type in _SHIFTING):
                found |= met
                fed.update(node.output)
            elif met:
                met_one.update(node.output)
        only = [
            name for name in found
            if all(node.op_type in _SHIFTING and fed.issuperset(node.output) for _, node in self._through_views(name))
        ]  # fmt: skip
        return sorted(only) if len(only) < len(weights) else []

    def _copies_tied(self, found: Mapping[str, Verdict]) -> dict[str, Verdict]:
        """TorchScript stores a tied matrix twice, once transposed under a name of its own: only values tell."""
        if self.exporter.producer != "pytorch":
            return dict(found)
        verdicts = dict(found)
        named: dict[tuple[int, ...], list[str]] = {}
        for name, verdict in found.items():
            if verdict.trained and self._is_path(self.stored[name]) and self.stored[name].rank == 2:
                named.setdefault(tuple(self.stored[name].tensor.dims), []).append(name)
        for name, verdict in found.items():
            tensor = self.stored[name]
            if not verdict.trained or tensor.maker is not None or tensor.rank != 2 or self._is_path(tensor):
                continue
            for other in named.get(tuple(reversed(tensor.tensor.dims)), ()):
                own, theirs = self._values(tensor), self._values(self.stored[other])
                if own is not None and theirs is not None and (own == theirs.T).all():
                    verdicts[name] = Verdict(True, "6: a named tensor again, transposed", tied=other)
                    break
        return verdicts

    def _values(self, tensor: Stored) -> Any:
        return None if tensor.tensor is None else values_of(tensor.tensor, self.folder)


_DEFAULT: Final = Verdict(True, "9: a gradient arrives, and nothing speaks against it")


def metadata(node: Any, key: str) -> str:
    """One entry of a node's metadata, empty if it has none."""
    return next((prop.value for prop in node.metadata_props if prop.key == key), "")


def _tensor_of(given: Mapping[str, Any]) -> Any:
    """The tensor of a Constant that lists its numbers."""
    from onnx import TensorProto, helper

    if "value_float" in given:
        return helper.make_tensor("", TensorProto.FLOAT, [], [given["value_float"].f])
    numbers = list(given["value_floats"].floats)
    return helper.make_tensor("", TensorProto.FLOAT, [len(numbers)], numbers)
