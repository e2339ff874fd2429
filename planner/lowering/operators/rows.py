"""What a row of the operator table says: `Operator`, and the types of values it speaks of.

One row an op type, used alike by the zoo, the importers and `differentiate`. What a backward op reads decides
everything a planner can save, so a row lists it input by input. References are ("in", i), the forward op's i-th input,
and ("out", k), its k-th output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Optional, final

from planner.dtypes import DTYPE_BYTES as DTYPE_BYTES
from planner.dtypes import is_float as is_float
from planner.errors import GraphError

Ref = tuple[Literal["in", "out"], int]

ANY_COUNT: Final = 2**16  # an op with as many outputs as the node names


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


Params = Mapping[str, Any]
Types = Sequence[TensorType]
#: A number, of FLOPs or of bytes, from the types of inputs and outputs and the parameters.
Count = Callable[[Types, Types, Params], int]
#: The types of the outputs from those of the inputs and the parameters.
Sizes = Callable[[Types, Params], tuple[TensorType, ...]]


@final
@dataclass(frozen=True, slots=True)
class Gradient:
    """How the gradient of one input is made from that of the output.

    Args:
        reads: what it reads beside the gradient of the output.
        how: "compute" makes a value; "pass" is the gradient of the output itself, and a sum over it where the input was
            broadcast; "view" is it in another shape.
        flops: "forward" = as many as the forward op; "elements" = one for each element of the output's gradient.
        own: it also reads the input it is the gradient of.
    """

    reads: tuple[Ref, ...] = ()
    how: Literal["compute", "pass", "view"] = "compute"
    flops: Literal["forward", "elements"] = "forward"
    own: bool = False

    def refs(self, position: int) -> tuple[Ref, ...]:
        """All references that the gradient of the input at this position reads."""
        return (("in", position), *self.reads) if self.own else self.reads


@final
@dataclass(frozen=True, slots=True)
class Operator:
    """One row of the table. Positions count the inputs that are tensors, `static` ones left out.

    Args:
        gradients: one per input; None where no gradient flows. Inputs beyond the last have none, see `variadic`.
        flops: of one execution.
        sizes: types of the outputs; None where the node itself must say them.
        workspace: bytes needed only while it runs, beyond inputs and outputs.
        moved: bytes read and written; None: those of all inputs and outputs, each in its own dtype.
        variadic: the last entry of `gradients` and any in-place permission hold for all further inputs.
        optional: inputs that a node may lack; a backward that reads such a one then does without.
        optional_outputs: outputs that a node may lack, likewise.
        inputs: the most inputs the row is true for; None: any number.
        flows: outputs whose gradients the row accounts for; None: all, which one backward op joins.
        inplace: inputs that output 0 may overwrite where types are equal and rule 10 of the memory model allows it.
        inplace_backward: a lone gradient may overwrite the gradient of the output.
        view: every output shares the storage of input 0 and nothing is computed.
        updates: pairs (input, output), of lists with `lists`: the output is the input's new version in its storage.
        lists: the inputs are so many lists of equal length, one behind the other.
        recomputable: False: an effect, which must happen once.
        state: input position of the saved generator state that a draw reads; without that input it runs only once.
        chance: the parameter that says whether it draws at all, where it is not 0.
        static: inputs that are arguments (a target shape, a ratio), not tensors; importers drop them.
        untrained: inputs with a gradient where a tensor stored in a file is no weight: initial states, masks.
        outputs: outputs of this form of the op.
        fewer: the row for the form with fewer outputs: inference for BatchNormalization, Dropout and MaxPool.
    """

    gradients: tuple[Optional[Gradient], ...]
    flops: Count
    sizes: Optional[Sizes] = None
    workspace: Optional[Count] = None
    moved: Optional[Count] = None
    variadic: bool = False
    optional: tuple[int, ...] = ()
    optional_outputs: tuple[int, ...] = ()
    inputs: Optional[int] = None
    flows: Optional[tuple[int, ...]] = (0,)
    inplace: tuple[int, ...] = ()
    inplace_backward: bool = False
    view: bool = False
    updates: tuple[tuple[int, int], ...] = ()
    lists: int = 0
    recomputable: bool = True
    state: Optional[int] = None
    chance: Optional[str] = None
    static: tuple[int, ...] = ()
    untrained: tuple[int, ...] = ()
    outputs: int = 1
    fewer: Optional[Operator] = None

    def gradient(self, position: int) -> Gradient | None:
        """Rule of the gradient of one input, None if none flows."""
        if position < len(self.gradients):
            return self.gradients[position]
        return self.gradients[-1] if self.variadic and self.gradients else None

    def draws(self, params: Params) -> bool:
        """True if an execution with these parameters draws random numbers."""
        return self.state is not None and (self.chance is None or bool(params.get(self.chance)))

    def lacks(self, ref: Ref) -> bool:
        """True if a node may do without this input or output."""
        return ref[1] in (self.optional if ref[0] == "in" else self.optional_outputs)

    def update_pairs(self, inputs: int, outputs: int) -> tuple[tuple[int, int], ...]:
        """`updates`, input by input, of a node with so many inputs and outputs.

        Raises:
            ValueError: the lists are not as many, or not as long, as the row says.
        """
        if not self.lists or not self.updates:
            return tuple((i, o) for i, o in self.updates if i < inputs and o < outputs)
        updated = len(self.updates)
        length, rest = divmod(outputs, updated)
        if rest or inputs - self.lists * length not in (0, 1):  # one more: a number that is a tensor
            lists = f"{self.lists} lists, {updated} of them updated"
            raise ValueError(f"{inputs} inputs and {outputs} outputs are not {lists}")
        return tuple((i * length + k, o * length + k) for i, o in self.updates for k in range(length))


def each(names: str, row: Operator) -> dict[str, Operator]:
    """One row under several names."""
    return dict.fromkeys(names.split(), row)
