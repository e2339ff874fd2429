"""The captured step in the planner's schema: ops, boundary, outputs, tangents, buffer updates and gradients.

Beside its attributes each node has a role: what the executor does there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from planner.errors import GraphError
from planner.lowering.assembly import Assembly, Value
from planner.torch import unstable
from planner.torch.capture import Capture
from planner.torch.costs import Cost, Costs, type_of
from planner.torch.forms import overwritable
from planner.torch.gradients import as_engine_wants, gradient_terms
from planner.torch.meanings import Buffer, Input, Output, Parameter, Tangent, Update, plain_path
from planner.torch.step_roles import (
    RNG_STATE_BYTES,
    HandOut,
    HandOver,
    Handover,
    Joint,
    Role,
    SaveState,
    Take,
    Wait,
    Write,
)
from planner.torch.stream import ATenCall, Stream, storage, storage_bytes
from planner.torch.stream import Value as Slot

_BOUNDARY: Final = "boundary"


def joint_of(
    captured: Capture,
    costs: Costs,
    *,
    handover: Handover = "new",
    update_workspace: float = 0.0,
    updated: bool = False,
    state_bytes: int = 0,
    name: str = "step",
) -> Joint:
    """The graph of a captured step.

    Args:
        costs: of one execution of an op.
        handover: what becomes of gradients.
        update_workspace: for "inside-backward": temporary bytes of one update, for each byte of its parameter.
        updated: an op a parameter updates it by its gradient, which then goes (SGD without state); no executor runs it.
        state_bytes: of an optimizer that is there while the step runs; a resident of the graph.
        name: of the graph.
    Raises:
        GraphError: the capture has what no plan can keep.
    """
    writer = _Writer(captured, Stream.of(captured), costs, handover, update_workspace, updated, state_bytes, name)
    return writer.written()


@dataclass
class _Writer:
    captured: Capture
    stream: Stream
    costs: Costs
    handover: Handover
    update_workspace: float
    updated: bool
    state_bytes: int
    name: str
    roles: dict[str, Role] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)

    def written(self) -> Joint:
        self.forward = [call for call in self.stream.calls if not call.backward]
        self.backward = [call for call in self.stream.calls if call.backward]
        self._needed()
        self._watch_buffers()
        self.draft = Assembly(name=self.name)
        self.last_draw: str | None = None
        for name, node in self.stream.residents.items():
            self._resident(name, node)
        if self.state_bytes:
            self.draft.add("optimizer.state", nbytes=self.state_bytes, kind="state", cost=0.0, op="OptimizerState")
        for of in self.terms if self.handover == "existing" else ():
            if isinstance(of, Parameter):
                like = self.stream.residents[self._residents_of(of)[0]].meta["val"]
                self.draft.add(
                    f"{_label(of)}.grad", nbytes=storage_bytes(like), kind="state", cost=0.0, op="GradientBuffer",
                    **_types([like]),
                )  # fmt: skip
        ends = self._forward()
        self._between(ends)
        self._backward()
        if self.updated:
            self._updates()
        named = {slot: self._name(slot) for slot in self.stream.storage_of if slot.node in self.draft.graph}
        return Joint(
            dag=self.draft.graph,
            roles=self.roles,
            residents={name: self.captured.sources[node] for name, node in self.stream.residents.items()
                       if name in self.draft.graph and not isinstance(self.captured.sources[node], Tangent)},
            value_of={node: named[slot] for node, slot in self.stream.value_of.items() if slot in named},
            outputs={meaning.index: node.meta["val"] for node, meaning in self.results(Output)},
            tangents=frozenset(self.tangents.values()),
            shape=self.captured.shape,
            states=self.states,
            storages={named[slot]: where for slot, where in self.stream.storage_of.items() if slot in named},
        )  # fmt: skip

    def results(self, kind: Any) -> list[tuple[torch.fx.Node, Any]]:
        """Nodes that the capture hands out, of one meaning, with it."""
        return [(node, meaning) for node, meaning in self.captured.results if isinstance(meaning, kind)]

    def _needed(self) -> None:
        """What is left where no result depends on the rest; which outputs every value depends on."""
        self.tangents = {
            Slot(name): self.captured.sources[node].output  # type: ignore[union-attr]
            for name, node in self.stream.residents.items()
            if isinstance(self.captured.sources[node], Tangent)
        }
        self.terms, self.sums = gradient_terms(self.captured, self.stream)
        wanted = {self.stream.value_of[node] for node, _ in self.captured.results}
        wanted |= {self.stream.value_of[node] for nodes in self.terms.values() for node in nodes}
        wanted |= {call.values[0] for call in self.stream.calls if call.draws}  # the generator goes on, used or not
        peeled = {node.name for node in self.sums}
        needed = {slot.node for slot in wanted} - peeled
        for call in reversed(self.stream.calls):
            if call.name in needed:
                needed.update(slot.node for slot in call.reads)
        self.forward = [call for call in self.forward if call.name in needed]
        self.backward = [call for call in self.backward if call.name in needed]
        self.depends: dict[Slot, frozenset[int]] = {slot: frozenset({of}) for slot, of in self.tangents.items()}
        for call in self.backward:
            found = frozenset[int]().union(*(self.depends.get(slot, frozenset()) for slot in call.reads))
            self.depends.update(dict.fromkeys(call.values, found))

    def _watch_buffers(self) -> None:
        """Who reads the old content of a buffer that the forward pass writes: those ops run once, before it is written.

        Batch normalization in training is exempt: what it makes beside the new statistics does not depend on the old.
        """
        self.before_write: dict[str, list[str]] = {}
        written = {meaning.buffer.path for _, meaning in self.results(Update)}
        at: dict[int, str] = {}
        for name, node in self.stream.residents.items():
            source = self.captured.sources[node]
            if isinstance(source, Buffer) and source.path in written:
                at[self.stream.storage_of[Slot(name)]] = source.path
        self.run_once: set[str] = set()
        for call in self.stream.calls:
            for slot in call.reads:
                path = at.get(self.stream.storage_of[slot])
                if path is None or len(call.views) == len(call.tensors) or "batch_norm" in str(call.node.target):
                    continue
                self.run_once.add(call.name)
                if not call.backward:
                    self.before_write.setdefault(path, []).append(call.name)

    def _resident(self, name: str, node: torch.fx.Node) -> None:
        source = self.captured.sources[node]
        if isinstance(source, Tangent):
            return
        kind = "parameter" if isinstance(source, Parameter) else "state" if isinstance(source, Buffer) else "input"
        tensor = node.meta["val"]
        where = storage(tensor)
        shared = any(self.stream.storage_of[Slot(other)] == where for other in self.draft.graph)
        path = plain_path(source.path) if isinstance(source, (Parameter, Buffer)) else None
        module = path.rpartition(".")[0] if path else None
        self.draft.add(
            name, nbytes=0 if shared else storage_bytes(tensor), kind=kind, cost=0.0, module=module or None,
            **_types([tensor]),
        )  # fmt: skip

    def _forward(self) -> list[str]:
        """The forward pass; returns what must have run at its end."""
        ends: list[str] = []
        outs: dict[str, list[tuple[torch.fx.Node, Any]]] = {}
        for node, meaning in self.results((Output, Update)):
            outs.setdefault(self.stream.value_of[node].node, []).append((node, meaning))
        late: list[tuple[torch.fx.Node, Any]] = []
        for name in list(self.draft.graph):
            late += outs.get(name, [])
        for call in self.forward:
            self._call(call, "forward")
            if call.name in self.states:
                ends += [self.states[call.name], call.name]
            for node, meaning in outs.get(call.name, ()):
                if isinstance(meaning, Update) and self._waits(meaning):
                    late.append((node, meaning))
                else:
                    ends.append(self._outlet(node, meaning))
        ends += [self._outlet(node, meaning) for node, meaning in late]
        return ends

    def _waits(self, meaning: Update) -> bool:
        return any(name not in self.draft.graph for name in self.before_write.get(meaning.buffer.path, ()))

    def _outlet(self, node: torch.fx.Node, meaning: Output | Update) -> str:
        slot = self.stream.value_of[node]
        if isinstance(meaning, Output):
            name = f"out.{meaning.index}"
            self.roles[name] = HandOut(meaning.index, self._name(slot))
            # Without an output of its own the plan would free the value before the boundary, and make it again.
            self.draft.add(
                name, [_value(slot)], nbytes=storage_bytes(node.meta["val"]), cost=0.0, op="out", phase="forward",
                view=((0, 0),), recomputable=False, output=True,
            )  # fmt: skip
            return name
        path = meaning.buffer.path
        name = f"write.{plain_path(path)}"
        self.roles[name] = Write(path, self._name(slot))
        before = [call for call in self.before_write.get(path, ()) if call in self.draft.graph]
        self.draft.add(name, [_value(slot)], after=before, nbytes=(), cost=0.0, op="write", phase="forward")
        return name

    def _between(self, ends: Sequence[str]) -> None:
        """The boundary, and the gradients that the caller's backward brings."""
        self.roles[_BOUNDARY] = Wait()
        self.draft.add(_BOUNDARY, after=ends, nbytes=(), cost=0.0, op="boundary", phase="loss")
        for slot, output in self.tangents.items():
            tensor = self.stream.residents[slot.node].meta["val"]
            self.roles[slot.node] = Take(output)
            self.draft.add(
                slot.node, after=[_BOUNDARY], nbytes=tensor.numel() * tensor.element_size(), cost=0.0, op="tangent",
                phase="backward", recomputable=False, output=True, **_types([tensor]),
            )  # fmt: skip

    def _backward(self) -> None:
        """The backward pass, each gradient handed over as soon as it is there."""
        order = {call.name: place for place, call in enumerate(self.backward)}
        readers: dict[int, list[str]] = {}
        for call in self.backward:
            for slot in call.reads:
                readers.setdefault(self.stream.storage_of[slot], []).append(call.name)
        handed: dict[int, list[tuple[str, Parameter | Input, torch.fx.Node, int, int]]] = {}
        for of, nodes in self.terms.items():
            place = -1
            for k, node in enumerate(nodes):
                slot = self.stream.value_of[node]
                after = [slot.node]
                if self.handover == "new":
                    after += readers.get(self.stream.storage_of[slot], [])
                if self.handover == "inside-backward" and k == len(nodes) - 1:
                    after += self._readers_of(of, readers)
                place = max([place, *(order.get(name, -1) for name in after)])
                name = f"give.{_label(of)}" + (f".{k}" if len(nodes) > 1 else "")
                handed.setdefault(place, []).append((name, of, node, k, len(nodes)))
        self.handed: dict[Parameter | Input, list[str]] = {}
        last_on = {
            self.stream.storage_of[self.stream.value_of[node]]: name
            for place in sorted(handed) for name, _, node, _, _ in handed[place]
        }  # fmt: skip
        for place in range(-1, len(self.backward)):
            if place >= 0:
                self._call(self.backward[place], "backward")
            for name, of, node, k, count in handed.get(place, ()):
                self._hand_over(name, of, node, k, count, last_on)

    def _readers_of(self, of: Parameter | Input, readers: Mapping[int, list[str]]) -> list[str]:
        return [name for resident in self._residents_of(of)
                for name in readers.get(self.stream.storage_of[Slot(resident)], [])]  # fmt: skip

    def _residents_of(self, of: Parameter | Input) -> list[str]:
        first = self.captured.first_name
        return [
            name for name, node in self.stream.residents.items()
            if (source := self.captured.sources[node]) == of
            or (isinstance(source, Parameter) and isinstance(of, Parameter) and first.get(source.path) == of.path)
        ]  # fmt: skip

    def _hand_over(
        self, name: str, of: Parameter | Input, node: torch.fx.Node, k: int, count: int,
        last_on: Mapping[int, str],
    ) -> None:  # fmt: skip
        slot = self.stream.value_of[node]
        tensor = node.meta["val"]
        owner = self._residents_of(of)[0]
        like = self.stream.residents[owner].meta["val"]
        where = self.stream.storage_of[slot]
        taken_elsewhere = last_on[where] != name or where in {self.stream.storage_of[s] for s in self.tangents}
        resident = slot.node in self.stream.residents and slot not in self.tangents
        copied = taken_elsewhere or resident or (isinstance(of, Parameter) and not as_engine_wants(tensor, like))
        depends = self.depends.get(slot, frozenset())
        self.roles[name] = HandOver(of, self._name(slot), copied, depends)
        earlier = self.handed.setdefault(of, [])
        after = earlier[-1:]
        if not depends:
            after.append(_BOUNDARY)
        handover = "existing" if isinstance(of, Input) and self.handover == "inside-backward" else self.handover
        nbytes = storage_bytes(like) if copied else storage_bytes(tensor)
        facts: dict[str, Any] = {"cost": 0.0, "op": "give", "phase": "backward", "recomputable": False}
        reads, last = [_value(slot)], k == count - 1
        if handover == "inside-backward" and last:
            held = [Value(first) for first in earlier[:1]]
            size = storage_bytes(like)
            scratch = max(int(self.update_workspace * size), size if earlier else 0)
            self.draft.add(
                name, [*reads, Value(owner), *held], after=after, nbytes=(size,), updates=((1, 0),), output=False,
                workspace=scratch + (nbytes if copied else 0), **{**facts, "phase": "update"},
            )  # fmt: skip
        elif k == 0 and (handover == "new" or not last):
            lives = handover == "new" and not (self.updated and isinstance(of, Parameter))
            if copied:
                self.draft.add(name, reads, after=after, nbytes=nbytes, output=lives, **facts)
            else:
                self.draft.add(name, reads, after=after, nbytes=nbytes, updates=((0, 0),), output=lives, **facts)
        else:
            held = [Value(first) for first in earlier[:1] if last and handover != "new"]
            # The engine adds a term to those before it out of place, at least where a tracker watches.
            workspace = (nbytes if copied else 0) + (storage_bytes(like) if earlier else 0)
            if handover == "existing" and last and isinstance(of, Parameter):
                buffer = Value(f"{_label(of)}.grad")
                self.draft.add(
                    name, [*reads, buffer, *held], after=after, nbytes=storage_bytes(like), updates=((1, 0),),
                    output=False, workspace=workspace, **facts,
                )  # fmt: skip
            else:
                self.draft.add(name, [*reads, *held], after=after, nbytes=(), workspace=workspace, **facts)
        earlier.append(name)

    def _updates(self) -> None:
        """Every parameter by its gradient."""
        for of, names in self.handed.items():
            if isinstance(of, Parameter):
                owner = self._residents_of(of)[0]
                tensor = self.stream.residents[owner].meta["val"]
                self.draft.add(
                    f"update.{_label(of)}", [Value(owner), Value(names[0])], after=names[1:], cost=0.0,
                    nbytes=storage_bytes(tensor), updates=((0, 0),), output=True, op="SGD", phase="update",
                    flops=2.0 * tensor.numel(), **_types([tensor]),
                )  # fmt: skip

    def _call(self, call: ATenCall, phase: str) -> None:
        facts = facts_of(call, self.costs(call), phase)
        if not call.views and (pairs := self._inplace(call)):
            facts["inplace"] = pairs
        if call.name in self.run_once:
            facts["recomputable"] = False
        reads, after = [_value(slot) for slot in call.reads], []
        if call.draws:
            state = f"rng.{len(self.states)}"
            self.states[call.name] = state
            device = call.tensors[0].device
            if device.type not in RNG_STATE_BYTES:
                fix = "train without dropout there, or use the model itself"
                raise GraphError(f"op {call.name!r} draws on device {device.type!r}, which cannot be set back: {fix}")
            self.roles[state] = SaveState(device)
            earlier = [self.last_draw] if self.last_draw else []
            earlier += [_BOUNDARY] if phase == "backward" else []
            self.draft.add(
                state, after=earlier, nbytes=RNG_STATE_BYTES[device.type], cost=0.0,
                op="GeneratorState", phase=phase, output=False,
                recomputable=False,
            )  # fmt: skip
            reads.append(Value(state))
            self.last_draw = call.name
        if phase == "backward" and not self.depends.get(call.values[0]):
            after.append(_BOUNDARY)
        self.roles[call.name] = call
        self.draft.add(call.name, reads, after=after, **facts)

    def _inplace(self, call: ATenCall) -> tuple[tuple[int, int], ...]:
        if len(call.tensors) > 1 or call.places != (None,):
            return ()
        slots = [self.stream.value_of.get(node) for node in overwritable(call.node)]
        return tuple((call.reads.index(slot), 0) for slot in slots
                     if slot is not None and slot.node not in self.stream.residents)  # fmt: skip

    def _name(self, slot: Slot) -> str:
        nbytes = self.draft.graph.nodes[slot.node]["nbytes"]
        return f"{slot.node}:{slot.output}" if isinstance(nbytes, tuple) else slot.node


def facts_of(call: ATenCall, cost: Cost, phase: str) -> dict[str, Any]:
    """What the planner is told of an op."""
    views = {output for _, output, _ in call.views}
    sizes = [tensor.numel() * tensor.element_size() if output in views else storage_bytes(tensor)
             for output, tensor in enumerate(call.tensors)]  # fmt: skip
    facts: dict[str, Any] = {
        "nbytes": _one(sizes), "cost": cost.seconds, "flops": cost.flops, "op": str(call.node.target), "phase": phase,
        "output": False, "module": _module(call.node), "line": unstable.line_of(call.node), **_types(call.tensors),
    }  # fmt: skip
    return {**facts, "view": call.views} if call.views else facts


def _label(of: Parameter | Input) -> str:
    return plain_path(of.path) if isinstance(of, Parameter) else f"input.{of.index}"


def _value(slot: Slot) -> Value:
    return Value(slot.node, slot.output)


def _module(node: torch.fx.Node) -> str | None:
    path = unstable.module_of(node)
    return plain_path(path) if path and path != "model" else None


def _one(entries: Sequence[Any]) -> Any:
    return entries[0] if len(entries) == 1 else tuple(entries)


def _types(tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
    types = [type_of(tensor) for tensor in tensors]
    return {"shape": _one([found.shape for found in types]), "dtype": _one([found.dtype for found in types])}
