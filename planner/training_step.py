"""Which training step is meant: one value that every verb takes, and that plans and reports name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Optional

import msgspec

from planner.dtypes import DTYPE_ALIASES, DTYPE_BYTES, is_float
from planner.errors import PlannerError
from planner.text import as_int, nearest, shown

Gradients = Literal["released", "zeroed"]
Update = Literal["per-tensor", "multi-tensor", "fused", "inside-backward"]

#: Per optimizer its states, each with the size of the parameter, and the FLOPs per element of one update.
OPTIMIZERS: Final[Mapping[str, tuple[tuple[str, ...], int]]] = {
    "sgd": ((), 2), "momentum": (("momentum",), 4), "adagrad": (("sum_sq",), 7), "rmsprop": (("mean_sq",), 9),
    "adam": (("exp_avg", "exp_avg_sq"), 12), "adamw": (("exp_avg", "exp_avg_sq"), 13),
}  # fmt: skip
UPDATES: Final[tuple[Update, ...]] = ("per-tensor", "multi-tensor", "fused", "inside-backward")


class TrainingStep(msgspec.Struct, frozen=True):
    """One training step as it will run.

    A forward graph is differentiated and given the step. A graph that is a step already is rewritten where its
    gradients and updates can be told. What is left at its default stays as the graph has it.

    Args:
        optimizer: one of `OPTIMIZERS`, or "none": gradients are outputs, and nothing is updated. None: the graph's; SGD
            without state for a forward graph.
        update: "per-tensor": one parameter after the other, each with a temporary of its size; "multi-tensor": all
            parameters in one op, with a temporary of the size of all; "fused": all in one op without a temporary;
            "inside-backward": each parameter right after its last gradient, which then goes. None: one op a parameter,
            without a temporary, or as the graph has it. SGD, with momentum or without, never needs a temporary.
        micro_batches: forward and backward passes before one update; gradient buffers live across them. The third and
            later equal the second, so two are written.
        gradients: between iterations "released" (set to None) or "zeroed" (each new gradient is added to its buffer).
        master_weights: parameters of 2 bytes or less an element have a float32 master, and float32 optimizer states.
        gradient_dtype: gradients of parameters are kept in this dtype, as float32 for 16-bit parameters.
        state_dtype: dtype of the optimizer states, as "uint8"; the scales of quantized states are not counted.
        trainable: patterns over the float parameters of a forward graph. A name (`"h0.*"`), `"op:Gemm"` for those that
            ops of a type read, `"module:lora*"` for those of a module; with "!" before it, a pattern freezes what it
            matches. The last pattern that matches decides; where none does, a parameter is trained unless some pattern
            trains.
        lowering: convolutions of a forward graph unfold their input (im2col) into workspace of
            N * C_in * k_h * k_w * H_out * W_out elements, forward and backward; a 1x1 kernel needs none.
        resumed: the run goes on from a saved state: optimizer states are there in the first iteration.
    Raises:
        PlannerError: an unknown word, with the nearest ones.

    >>> str(TrainingStep("adam", update="multi-tensor", micro_batches=4))
    'adam, multi-tensor update, 4 micro-batches'
    """

    optimizer: Optional[str] = None
    update: Optional[str] = None
    micro_batches: int = 1
    gradients: str = "released"
    master_weights: bool = False
    gradient_dtype: Optional[str] = None
    state_dtype: Optional[str] = None
    trainable: tuple[str, ...] = ()
    lowering: bool = False
    resumed: bool = False

    def __post_init__(self) -> None:
        self._word("optimizer", (*OPTIMIZERS, "none"))
        self._word("update", UPDATES)
        self._word("gradients", ("released", "zeroed"), optional=False)
        self._word("gradient_dtype", [name for name in DTYPE_BYTES if is_float(name)])
        self._word("state_dtype", list(DTYPE_BYTES))
        count = as_int(self.micro_batches)
        if count is None or count < 1:
            raise PlannerError(f"micro_batches {shown(self.micro_batches)} is not a number >= 1")
        msgspec.structs.force_setattr(self, "micro_batches", count)
        for name in ("master_weights", "lowering", "resumed"):
            if not isinstance(getattr(self, name), bool):
                raise PlannerError(f"{name} {shown(getattr(self, name))} is not True or False")
        patterns: Any = self.trainable
        patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns or ())
        for pattern in patterns:
            if not isinstance(pattern, str) or not pattern.removeprefix("!"):
                fix = "write a name, op:TYPE or module:NAME, with ! before it to freeze"
                raise PlannerError(f"trainable: {shown(pattern)} is not a pattern; {fix}")
        msgspec.structs.force_setattr(self, "trainable", patterns)
        if self.optimizer == "none" and (self.update or self.master_weights or self.state_dtype):
            raise PlannerError("optimizer 'none' updates nothing: leave update, master_weights and state_dtype out")

    def _word(self, name: str, known: Sequence[str], *, optional: bool = True) -> None:
        given = getattr(self, name)
        if given is None and optional:
            return
        word = given.strip().lower() if isinstance(given, str) else ""
        word = DTYPE_ALIASES.get(word, word) if name.endswith("dtype") else word
        if word not in known:
            near = nearest(word, known)
            instead = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise PlannerError(f"unknown {name} {shown(given)}{instead} (known: {', '.join(known)})")
        msgspec.structs.force_setattr(self, name, word)

    @property
    def rewrites(self) -> bool:
        """True if the step changes a graph that is differentiated already."""
        return msgspec.structs.replace(self, trainable=(), lowering=False, resumed=False) != TrainingStep()

    def __str__(self) -> str:
        said = [
            self.optimizer and ("no optimizer" if self.optimizer == "none" else self.optimizer),
            self.update and f"{self.update} update",
            self.micro_batches > 1 and f"{self.micro_batches} micro-batches",
            self.gradients == "zeroed" and "gradients zeroed",
            self.master_weights and "master weights",
            self.gradient_dtype and f"gradients in {self.gradient_dtype}",
            self.state_dtype and f"states in {self.state_dtype}",
            self.trainable and f"trainable {', '.join(self.trainable)}",
            self.lowering and "im2col",
            self.resumed and "resumed",
        ]
        return ", ".join(word for word in said if word) or "as the graph has it"
