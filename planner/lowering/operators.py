"""The operator table: what each op costs, may overwrite, and what its gradients read.

One row an op type, declarative, used alike by the zoo, the importers and `differentiate`. What a backward op reads decides
everything a planner can save, so a row lists it input by input, and an op without a row is an error, never a guess.
References are ("in", i), the forward op's i-th input, and ("out", k), its k-th output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, Optional, final

from planner.errors import GraphError
from planner.lowering.devices import Device, roofline_seconds

Ref = tuple[Literal["in", "out"], int]

DTYPE_BYTES: Final[Mapping[str, int]] = MappingProxyType(
    {
        "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "complex64": 8, "complex128": 16,
        "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1,
    }
)  # fmt: skip


class TensorType(NamedTuple):
    """Shape and dtype of a value.

    >>> TensorType((2, 3), "int64").nbytes
    48
    """

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Exact bytes.

        Raises:
            GraphError: a dtype whose size is not known.
        """
        if self.dtype not in DTYPE_BYTES:
            raise GraphError(f"unknown dtype {self.dtype!r}; known: {', '.join(DTYPE_BYTES)}")
        return self.elements * DTYPE_BYTES[self.dtype]


def is_float(dtype: str | None) -> bool:
    """True if gradients flow through values of this dtype; a dtype nobody gave counts as float."""
    return dtype is None or dtype.startswith(("float", "bfloat", "complex"))


Flops = Callable[[Sequence[TensorType], Sequence[TensorType], Mapping[str, Any]], int]


@final
@dataclass(frozen=True, slots=True)
class Gradient:
    """How the gradient of one input is made from that of the output.

    Args:
        reads: what it reads beside the gradient of the output.
        how: "compute" makes a value; "pass" is the gradient of the output itself, and a sum over it where the input was
            broadcast; "view" is it in another shape.
        flops: "forward" = as many as the forward op; "elements" = one for each element of the output's gradient.
    """

    reads: tuple[Ref, ...] = ()
    how: Literal["compute", "pass", "view"] = "compute"
    flops: Literal["forward", "elements"] = "forward"


@final
@dataclass(frozen=True, slots=True)
class Operator:
    """One row of the table.

    Args:
        gradients: one per input; None where no gradient flows. Inputs beyond the last have none, see `variadic`.
        flops: of one execution, from input and output types and parameters.
        variadic: the last entry of `gradients` and any in-place permission hold for all further inputs.
        inplace: inputs that output 0 may overwrite where types are equal (memory model, rule 10, decides if it happens).
        inplace_backward: a lone gradient may overwrite the gradient of the output.
        view: output 0 shares the storage of input 0 and nothing is computed.
        static: inputs that are arguments (a target shape, a ratio), not tensors; importers drop them.
        outputs: outputs of this form of the op.
        fewer: the row for the form with fewer outputs: inference for BatchNormalization, Dropout and MaxPool.
    """

    gradients: tuple[Optional[Gradient], ...]
    flops: Flops
    variadic: bool = False
    inplace: tuple[int, ...] = ()
    inplace_backward: bool = False
    view: bool = False
    static: tuple[int, ...] = ()
    outputs: int = 1
    fewer: Optional[Operator] = None

    def gradient(self, position: int) -> Gradient | None:
        """Rule of the gradient of one input, None if none flows."""
        if position < len(self.gradients):
            return self.gradients[position]
        return self.gradients[-1] if self.variadic and self.gradients else None


def _per_element(count: int) -> Flops:
    return lambda inputs, outputs, params: count * outputs[0].elements


def _per_input_element(count: int) -> Flops:
    return lambda inputs, outputs, params: count * inputs[0].elements


def _no_flops(inputs: Sequence[TensorType], outputs: Sequence[TensorType], params: Mapping[str, Any]) -> int:
    return 0


def _conv_flops(inputs: Sequence[TensorType], outputs: Sequence[TensorType], params: Mapping[str, Any]) -> int:
    # Weight is (Cout, Cin / groups, *kernel): each output element is a dot product of its last axes.
    return 2 * outputs[0].elements * math.prod(inputs[1].shape[1:])


def _conv_transpose_flops(inputs: Sequence[TensorType], outputs: Sequence[TensorType], params: Mapping[str, Any]) -> int:
    return 2 * inputs[0].elements * math.prod(inputs[1].shape[1:])


def _gemm_flops(inputs: Sequence[TensorType], outputs: Sequence[TensorType], params: Mapping[str, Any]) -> int:
    return 2 * outputs[0].elements * inputs[0].shape[0 if params.get("transA") else -1]


def _matmul_flops(inputs: Sequence[TensorType], outputs: Sequence[TensorType], params: Mapping[str, Any]) -> int:
    return 2 * outputs[0].elements * inputs[0].shape[-1]


def _attention_flops(inputs: Sequence[TensorType], outputs: Sequence[TensorType], params: Mapping[str, Any]) -> int:
    # Two products of (..., T, D) by (..., D, S), and the softmax between; a causal mask is not taken off.
    scores = math.prod(inputs[0].shape[:-1]) * inputs[1].shape[-2]
    return scores * (2 * inputs[0].shape[-1] + 2 * inputs[2].shape[-1] + 5)


def _conv_gradient_flops(inputs: Sequence[TensorType], outputs: Sequence[TensorType], params: Mapping[str, Any]) -> int:
    # (dY, X, W): as many as forward for each of dX and dW that is made, one an element for the bias.
    forward = 2 * inputs[0].elements * math.prod(inputs[2].shape[1:])
    return sum(forward if len(made.shape) > 1 else inputs[0].elements for made in outputs)


def _pool_flops(inputs: Sequence[TensorType], outputs: Sequence[TensorType], params: Mapping[str, Any]) -> int:
    return outputs[0].elements * math.prod(params.get("kernel_shape") or (1,))


def _lrn_flops(inputs: Sequence[TensorType], outputs: Sequence[TensorType], params: Mapping[str, Any]) -> int:
    return outputs[0].elements * (2 * int(params.get("size") or 1) + 3)


_IN0: Final[Ref] = ("in", 0)
_IN1: Final[Ref] = ("in", 1)
_IN2: Final[Ref] = ("in", 2)
_IN3: Final[Ref] = ("in", 3)
_IN4: Final[Ref] = ("in", 4)
_OUT0: Final[Ref] = ("out", 0)
_OUT1: Final[Ref] = ("out", 1)
_OUT2: Final[Ref] = ("out", 2)
_ANY_COUNT: Final = 2**16  # outputs: as many as the node names
_FREE: Final = Gradient()  # reads nothing but the gradient of the output
_SUM: Final = Gradient(flops="elements")
_PASS: Final = Gradient(how="pass", flops="elements")
_VIEW: Final = Gradient(how="view")
_ATTENTION: Final = Gradient((_IN0, _IN1, _IN2, _OUT0, _OUT1))
_PRODUCT: Final = (Gradient((_IN1,)), Gradient((_IN0,)))  # each factor's gradient reads the other factor


def _from_output(count: int) -> Operator:
    return Operator((Gradient((_OUT0,)),), _per_element(count), inplace=(0,), inplace_backward=True)


def _from_input(count: int, *, static: tuple[int, ...] = ()) -> Operator:
    return Operator((Gradient((_IN0,)),), _per_element(count), inplace=(0,), inplace_backward=True, static=static)


def _reshaped(*static: int) -> Operator:
    return Operator((_VIEW,), _no_flops, view=True, static=static)


# FLOPs of everything but convolutions and matrix products are of the right order only: memory traffic bounds these ops.
OPERATORS: Final[Mapping[str, Operator]] = MappingProxyType(
    {
        "Conv": Operator((*_PRODUCT, _SUM), _conv_flops),
        "ConvTranspose": Operator((*_PRODUCT, _SUM), _conv_transpose_flops),
        "Gemm": Operator((*_PRODUCT, _SUM), _gemm_flops),
        "MatMul": Operator(_PRODUCT, _matmul_flops),
        # Training: (x, scale, shift) -> (y, saved mean, saved 1/std). Inference: the running mean and variance are inputs 3 and 4.
        "BatchNormalization": Operator(
            (Gradient((_IN0, _IN1, _OUT1, _OUT2)), Gradient((_IN0, _OUT1, _OUT2)), _SUM),
            _per_element(7),
            outputs=3,
            fewer=Operator((Gradient((_IN1, _IN4)), Gradient((_IN0, _IN3, _IN4)), _SUM), _per_element(2), inplace=(0,)),
        ),
        # (running mean, running variance, batch mean, batch 1/std) -> new running mean and variance.
        "UpdateStatistics": Operator((), _per_element(6), outputs=2),
        # (x, scale, shift) -> (y, mean, 1/std), each row by itself; with one output the backward finds the statistics again.
        "LayerNormalization": Operator(
            (Gradient((_IN0, _IN1, _OUT1, _OUT2)), Gradient((_IN0, _OUT1, _OUT2)), _SUM),
            _per_element(8),
            outputs=3,
            fewer=Operator((Gradient((_IN0, _IN1)), Gradient((_IN0,)), _SUM), _per_element(8)),
        ),
        "LRN": Operator((Gradient((_IN0, _OUT0)),), _lrn_flops),
        # (x, generator state) -> (y, bool mask); with one output it is the identity of inference.
        "Dropout": Operator(
            (Gradient((_OUT1,)),),
            _per_element(2),
            inplace=(0,),
            inplace_backward=True,
            static=(1, 2),
            outputs=2,
            fewer=Operator((_PASS,), _no_flops, view=True, static=(1, 2)),
        ),
        # With its int64 indices the backward needs nothing else; without, it finds the maximum again (as cuDNN and MXNet do).
        "MaxPool": Operator((Gradient((_OUT1,)),), _pool_flops, outputs=2, fewer=Operator((Gradient((_IN0, _OUT0)),), _pool_flops)),
        "AveragePool": Operator((_FREE,), _pool_flops),
        "GlobalAveragePool": Operator((_FREE,), _per_input_element(1)),
        "Relu": _from_output(1),
        "Sigmoid": _from_output(4),
        "Tanh": _from_output(4),
        "Exp": _from_output(4),
        "Sqrt": _from_output(1),
        # By its input: the sign of the output tells only for positive slopes.
        "LeakyRelu": _from_input(2),
        "Clip": _from_input(2, static=(1, 2)),
        "Gelu": _from_input(8),
        "Log": _from_input(4),
        "Neg": Operator((_FREE,), _per_element(1), inplace=(0,), inplace_backward=True),
        "Softmax": Operator((Gradient((_OUT0,)),), _per_element(5)),
        "LogSoftmax": Operator((Gradient((_OUT0,)),), _per_element(5)),
        # (q, k, v) -> (y, log of the sum of exponentials, a float32 a row): the scores are made tile by tile and never stored (Dao et al.
        # 2022). Backward: 3 times the forward here, 2.5 in truth.
        "FusedAttention": Operator(
            (_ATTENTION, _ATTENTION, _ATTENTION),
            _attention_flops,
            outputs=2,
            fewer=Operator((Gradient((_IN0, _IN1, _IN2)),) * 3, _attention_flops),
        ),
        "Add": Operator((_PASS, _PASS), _per_element(1), inplace=(0, 1)),
        "Sum": Operator((_PASS,), lambda inputs, outputs, params: (len(inputs) - 1) * outputs[0].elements, variadic=True, inplace=(0,)),
        "Sub": Operator((_PASS, _FREE), _per_element(1), inplace=(0, 1)),
        "Mul": Operator(_PRODUCT, _per_element(1), inplace=(0, 1), inplace_backward=True),
        "Div": Operator((Gradient((_IN1,)), Gradient((_IN0, _IN1))), _per_element(1), inplace=(0, 1), inplace_backward=True),
        "Concat": Operator((_FREE,), _no_flops, variadic=True),
        "Transpose": Operator((_FREE,), _no_flops),
        "Cast": Operator((_FREE,), _no_flops),
        "Pad": Operator((_FREE,), _no_flops, static=(1, 2, 3)),
        "Slice": Operator((_FREE,), _no_flops, static=(1, 2, 3, 4)),
        # (table, int64 indices): an embedding. Its gradient is as large as the table.
        "Gather": Operator((Gradient((_IN1,), flops="elements"), None), _no_flops),
        "ReduceSum": Operator((_FREE,), _per_input_element(1), static=(1,)),
        "ReduceMean": Operator((_FREE,), _per_input_element(1), static=(1,)),
        "Identity": Operator((_PASS,), _no_flops, view=True),
        "Reshape": _reshaped(1),
        "Flatten": _reshaped(),
        "Squeeze": _reshaped(1),
        "Unsqueeze": _reshaped(1),
        # (logits, int64 labels) -> (loss, log-probabilities): exp of the latter minus the one-hot label is the gradient.
        "SoftmaxCrossEntropyLoss": Operator(
            (Gradient((_OUT1, _IN1)),),
            _per_input_element(5),
            outputs=2,
            fewer=Operator((Gradient((_IN0, _IN1)),), _per_input_element(5)),
        ),
        "Erf": _from_input(8),
        "Abs": _from_input(1),
        "HardSigmoid": _from_input(3),
        "HardSwish": _from_input(4),
        "Elu": _from_input(4),
        "Softplus": _from_input(8),
        "Reciprocal": _from_output(1),
        # (base, exponent): the exponent's gradient is the output times the logarithm of the base.
        "Pow": Operator((Gradient((_IN0, _IN1)), Gradient((_IN0, _OUT0))), _per_element(8), inplace=(0,)),
        "PRelu": Operator((Gradient((_IN0, _IN1)), Gradient((_IN0,))), _per_element(2), inplace=(0,)),
        # (condition, x, y): the bool condition alone says where the gradient goes.
        "Where": Operator((None, Gradient((_IN0,)), Gradient((_IN0,))), _per_element(1), inplace=(1, 2)),
        **{name: Operator((), _per_element(1)) for name in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")},
        **{name: Operator((), _per_element(1)) for name in ("And", "Or", "Not")},
        # Steps have no slope: no gradient flows.
        **{name: Operator((), _per_element(1), inplace=(0,)) for name in ("Floor", "Ceil", "Round", "Sign")},
        **{name: Operator((), _per_input_element(1)) for name in ("ArgMax", "ArgMin")},
        # The gradient goes to where the input equals the output.
        **{name: Operator((Gradient((_IN0, _OUT0)),), _per_input_element(1), static=(1,)) for name in ("ReduceMax", "ReduceMin")},
        "GlobalMaxPool": Operator((Gradient((_IN0, _OUT0)),), _per_input_element(1)),
        # Interpolation is linear in x; region, scales and sizes are arguments. FLOPs: bilinear.
        "Resize": Operator((_FREE,), _per_element(8), static=(1, 2, 3)),
        "Upsample": Operator((_FREE,), _per_element(8), static=(1,)),
        "Tile": Operator((_FREE,), _no_flops, static=(1,)),
        "DepthToSpace": Operator((_FREE,), _no_flops),
        "SpaceToDepth": Operator((_FREE,), _no_flops),
        # Differentiated by `saves=()`: the gradient joins those of all outputs, and a row speaks for output 0.
        "Split": Operator((_FREE,), _no_flops, static=(1,), outputs=_ANY_COUNT),
        # Ops of a training step that others differentiated (onnxruntime's names); nothing differentiates them again.
        "ReluGrad": Operator((), _per_element(1), inplace=(0,)),
        "Scale": Operator((), _per_element(1), inplace=(0,)),
        "DropoutGrad": Operator((), _per_element(2), inplace=(0,), static=(2, 3)),
        "ConvGrad": Operator((), _conv_gradient_flops, outputs=3),
        "BatchNormInternal": Operator((), _per_element(7), outputs=5),
        "BatchNormalizationGrad": Operator((), _per_element(11), outputs=3),
        "MaxPoolGrad": Operator((), _per_input_element(1)),
        "AveragePoolGrad": Operator((), _per_element(1)),
        "SoftmaxCrossEntropyLossGrad": Operator((), _per_element(2)),
        "ConcatTraining": Operator((), _no_flops, outputs=2),
        "SplitTraining": Operator((), _no_flops, outputs=_ANY_COUNT),
        # (buffer, gradient, flag) -> (done, the buffer's new version, in place).
        "InPlaceAccumulatorV2": Operator((), _per_input_element(1), outputs=2),
        "Shape": Operator((), _no_flops),
        "Expand": Operator((_FREE,), _no_flops, static=(1,)),
    }
)


def operator(op: str, *, node: str, outputs: int = 1) -> Operator:
    """The row of an op type, in the form that has so many outputs.

    Args:
        op: operator type, named as in ONNX.
        node: named in the error.
        outputs: number of outputs of the node.
    Raises:
        GraphError: no row for this op type, or more outputs than it has.

    >>> operator("Relu", node="r1").gradient(0).reads
    (('out', 0),)
    """
    row = OPERATORS.get(op)
    if row is None:
        raise GraphError(f"node {node!r}: no rule for op type {op!r}; give the node saves=, what its backward reads, e.g. (('in', 0),)")
    if row.fewer is not None and outputs < row.outputs:
        row = row.fewer
    if outputs > row.outputs:
        raise GraphError(f"node {node!r}: op type {op!r} has at most {row.outputs} outputs, not {outputs}")
    return row


def attributes(
    op: str,
    *,
    node: str,
    inputs: Sequence[TensorType],
    outputs: Sequence[TensorType],
    device: Device,
    params: Mapping[str, Any] | None = None,
    phase: str = "forward",
) -> dict[str, Any]:
    """Node attributes of an op of these types: sizes, FLOPs, seconds, and what it may overwrite.

    Args:
        op: operator type.
        node: named in errors.
        inputs, outputs: types, arguments such as a target shape left out.
        params: what FLOPs need beside types, named as in ONNX: kernel_shape, transA, size.
    Raises:
        GraphError: no rule for the op type, or an unknown dtype.

    >>> from planner.lowering.devices import device
    >>> x = TensorType((1, 8))
    >>> attributes("Relu", node="r", inputs=[x], outputs=[x], device=device("a100"))["inplace"]
    ((0, 0),)
    """
    row = operator(op, node=node, outputs=len(outputs))
    flops = row.flops(inputs, outputs, params or {})
    made = tuple(value.nbytes for value in outputs)
    moved = 0 if row.view else sum(made) + sum(value.nbytes for value in inputs)
    found: dict[str, Any] = {
        "op": op,
        **output_types(outputs),
        "flops": flops,
        "cost": roofline_seconds(device, flops=flops, bytes_moved=moved, dtype=outputs[0].dtype),
        "phase": phase,
    }
    if row.view:
        found["view"] = ((0, 0),)
    overwritten = range(len(inputs)) if row.variadic and row.inplace else row.inplace
    pairs = tuple((i, 0) for i in overwritten if i < len(inputs) and inputs[i] == outputs[0])
    if pairs:
        found["inplace"] = pairs
    return found


def output_types(outputs: Sequence[TensorType]) -> dict[str, Any]:
    """`nbytes`, `shape` and `dtype` of a node: plain for one output, tuples for several."""
    if len(outputs) == 1:
        return {"nbytes": outputs[0].nbytes, "shape": outputs[0].shape, "dtype": outputs[0].dtype}
    return {
        "nbytes": tuple(value.nbytes for value in outputs),
        "shape": tuple(value.shape for value in outputs),
        "dtype": tuple(value.dtype for value in outputs),
    }
