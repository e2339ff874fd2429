"""The declarations of MXNet 1.5.1's operators: in-place permissions, and the reads of each backward operator.

This table only reproduces the original's graphs: its max pool keeps no indices, its batch norm backward names eight
inputs. FLOPs come from our own table, `planner.lowering.operators.lookup`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, Optional, final

from planner.lowering.devices import device as device_named
from planner.lowering.devices import roofline_seconds
from planner.lowering.operators.lookup import TensorType, attributes, operator

Pairs = tuple[tuple[int, int, bool], ...]
# One read of a backward op: the gradient of an output, an input, or an output of the forward op; and its position.
Source = tuple[Literal["grad", "in", "out"], int]


@final
@dataclass(frozen=True, slots=True)
class Declaration:
    """One operator of MXNet.

    Args:
        row: the op type of our operator table with its FLOPs; None: no arithmetic.
        backward: name of its backward operator; "pass" if gradients are handed on, None if none flows.
        reads: what the backward operator reads, by input position.
        gradients: the first so many inputs get a gradient; None: all.
        inplace, inplace_backward: (input, output, identity) permissions, in the order MXNet tries them.
    """

    row: Optional[str]
    backward: Optional[str] = None
    reads: tuple[Source, ...] = ()
    gradients: Optional[int] = None
    inplace: Pairs = ()
    inplace_backward: Pairs = ()


def _reads(text: str) -> tuple[Source, ...]:
    """`"g0 o1 i2"`: gradient of output 0, output 1, input 2."""
    sides: Mapping[str, Literal["grad", "in", "out"]] = {"g": "grad", "i": "in", "o": "out"}
    return tuple((sides[word[0]], int(word[1:])) for word in text.split())


_OVER: Final[Pairs] = ((0, 0, False),)
_EITHER: Final[Pairs] = ((0, 0, False), (1, 0, False))
_SAME: Final[Pairs] = ((0, 0, True),)


def _activation(row: str, reads: str) -> Declaration:
    return Declaration(row, "_backward_Activation", _reads(reads), inplace=_OVER, inplace_backward=_OVER)


def _pooling(row: str) -> Declaration:
    return Declaration(row, "_backward_Pooling", _reads("g0 i0 o0"))


# By operator, with its type after a dot if declarations differ. FGradient, FInplaceOption and FInplaceIdentity are as
# registered in src/operator of MXNet 1.5.1, oneDNN build for the CPU: only ReLU's backward does without the input.
DECLARATIONS: Final[Mapping[str, Declaration]] = MappingProxyType({
    "Convolution": Declaration("Conv", "_backward_Convolution", _reads("g0 i0 i1 i2")),
    "FullyConnected":
        Declaration("Gemm", "_backward_FullyConnected", _reads("g0 i0 i1"), inplace_backward=((1, 0, False),)),
    # Moving mean and variance are inputs 3 and 4: auxiliary states, without a gradient.
    "BatchNorm":
        Declaration("BatchNormalization", "_backward_BatchNorm", _reads("g0 o1 o2 i0 i1 i2 i3 i4"), gradients=3),
    "LeakyReLU":
        Declaration("LeakyRelu", "_backward_LeakyReLU", _reads("g0 o0"), inplace=_OVER, inplace_backward=_OVER),
    "Activation.relu": _activation("Relu", "g0 o0"),
    "Activation.tanh": _activation("Tanh", "g0 o0 i0"),
    "Activation.sigmoid": _activation("Sigmoid", "g0 o0 i0"),
    "Pooling.max": _pooling("MaxPool"),
    "Pooling.avg": _pooling("AveragePool"),
    "elemwise_add": Declaration("Add", "pass", inplace=_EITHER),
    "elemwise_mul":
        Declaration("Mul", "_backward_mul", _reads("g0 i0 i1"), inplace=_EITHER, inplace_backward=((0, 1, False),)),
    "Concat": Declaration("Concat", "_backward_Concat", _reads("g0")),
    "SliceChannel": Declaration(None, "_backward_SliceChannel", _reads("g0 g1 g2 g3")),
    "Flatten": Declaration("Flatten", "_backward_copy", _reads("g0"), inplace=_SAME, inplace_backward=_SAME),
    # Its own loss: the backward needs the probabilities and the label, and no gradient of its output.
    "SoftmaxOutput":
        Declaration("Softmax", "_backward_SoftmaxOutput", _reads("o0 i1"), inplace=_OVER, inplace_backward=_OVER),
    "softmax_cross_entropy":
        Declaration("SoftmaxCrossEntropyLoss", "_backward_softmax_cross_entropy", _reads("g0 i0 i1")),
    "BlockGrad": Declaration("Identity", inplace=_SAME),
    # Added by the gradient pass itself.
    "add_n": Declaration("Sum", inplace=_OVER),
    "_grad_add": Declaration("Add", inplace=_EITHER),
    "_copy": Declaration(None, inplace=_SAME),
    "_identity_with_attr_like_rhs": Declaration("Identity", inplace=_SAME),
})  # fmt: skip


class Work(NamedTuple):
    """Arithmetic and roofline seconds of one execution."""

    flops: int
    seconds: float


@lru_cache(maxsize=4096)
def forward_work(
    op: str, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...], kernel: tuple[int, ...], device: str
) -> Work:
    """Work of one forward execution.

    Args:
        op: a key of `DECLARATIONS`.
        kernel: window of a pooling.
    Raises:
        GraphError: unknown device.

    >>> x = TensorType((2, 8))
    >>> forward_work("LeakyReLU", (x,), (x,), (), "a100").flops
    32
    """
    row, on = DECLARATIONS[op].row, device_named(device)
    if row is None:
        return Work(0, roofline_seconds(on, flops=0, bytes_moved=_moved(inputs, outputs)))
    found = attributes(row, node=op, inputs=inputs, outputs=outputs, device=on, params={"kernel_shape": kernel})
    return Work(found["flops"], found["cost"])


@lru_cache(maxsize=4096)
def backward_work(
    op: str,
    inputs: tuple[TensorType, ...],
    outputs: tuple[TensorType, ...],
    kernel: tuple[int, ...],
    reads: tuple[TensorType, ...],
    made: tuple[TensorType, ...],
    device: str,
) -> Work:
    """Work of one backward execution, counted as `differentiate` does: FLOPs by gradient, and its own traffic.

    Args:
        op: the forward operator, a key of `DECLARATIONS`.
        inputs, outputs: types of the forward op.
        reads, made: types that the backward op reads and makes.
    Raises:
        GraphError: unknown device.
    """
    row = DECLARATIONS[op].row
    flops, moved = 0, _moved(reads, made)
    if row is not None:
        rule = operator(row, node=op, outputs=len(outputs))
        forward = rule.flops(inputs, outputs, {"kernel_shape": kernel})
        for position in range(len(made)):
            gradient = rule.gradient(position)
            if gradient is not None:
                flops += forward if gradient.flops == "forward" else outputs[0].elements
        moved = 0 if rule.view else moved
    return Work(flops, roofline_seconds(device_named(device), flops=flops, bytes_moved=moved))


def _moved(*groups: Sequence[TensorType]) -> int:
    return sum(value.nbytes for group in groups for value in group)
