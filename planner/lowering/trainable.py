"""Which parameters of a forward graph are trained, by the user's patterns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import networkx as nx

from planner.errors import GraphError, PlannerError
from planner.graph import Graph, Op
from planner.lowering.operators.rows import is_float
from planner.lowering.schema import lower
from planner.patterns import Pattern, modules_around

#: What people call the layer of an op that reads a parameter.
_LAYERS: Final = {
    "Gather": "Embedding", "Gemm": "Linear", "MatMul": "Linear", "LayerNormalization": "LayerNorm",
    "BatchNormalization": "BatchNorm",
}  # fmt: skip


def trained_by(graph: nx.DiGraph, patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the float parameters that the patterns leave trainable; see `TrainingStep.trainable`.

    Raises:
        PlannerError: a pattern that names no parameter, with the nearest names.
        GraphError: the patterns freeze every parameter.

    >>> from planner import zoo
    >>> trained_by(zoo.mlp([4, 3, 2], batch=1, training=False), ("!fc1*",))
    ('fc2.weight', 'fc2.bias')
    """
    program = lower(graph)
    parameters = [op for op in program.ops if op.kind == "parameter" and all(is_float(t.dtype) for t in op.outputs)]
    trains = dict.fromkeys((op.name for op in parameters), all(pattern.startswith("!") for pattern in patterns))
    names = _Names(program)
    for pattern in patterns:
        wanted = Pattern(pattern.removeprefix("!"), names=names.by_kind)
        found = wanted.found_in(parameters)
        if not found:
            why = wanted.instead(parameters, what="parameter")
            raise PlannerError(f"trainable: {pattern!r} names no parameter{why}")
        trains.update(dict.fromkeys((op.name for op in found), not pattern.startswith("!")))
    trained = tuple(name for name, is_trained in trains.items() if is_trained)
    if not trained:
        raise GraphError(f"trainable {', '.join(patterns)} freezes every parameter; leave one to train")
    return trained


class _Names:
    """What a parameter is called: itself, the types of the ops that read it, and the modules it is of."""

    def __init__(self, program: Graph) -> None:
        self.program = program
        self.by_kind = {"name": self.own, "op": self.types, "module": self.modules}

    def own(self, op: Op) -> Iterator[str]:
        yield op.name

    def types(self, op: Op) -> Iterator[str]:
        for reader in self._readers(op):
            if reader.op is not None:
                yield reader.op
            if reader.op in _LAYERS:
                yield _LAYERS[reader.op]

    def modules(self, op: Op) -> Iterator[str]:
        for one in (op, *self._readers(op)):
            yield from modules_around(one)

    def _readers(self, op: Op) -> list[Op]:
        """Ops that read a parameter, through views and casts of it."""
        found: list[Op] = []
        waiting = [t.name for t in op.outputs]
        while waiting:
            for name in self.program.readers[waiting.pop()]:
                reader = self.program.op_named[name]
                found.append(reader)
                if reader.op in ("Cast", "Transpose") or reader.view:
                    waiting += [t.name for t in reader.outputs]
        return found
