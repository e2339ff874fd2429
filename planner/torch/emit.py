"""A schedule as straight-line Python: a generator of ATen calls and `del`s, cut where the caller has its say.

Its locals are exactly the live instances of the plan. It yields at the end of the forward pass, and after every group
of gradients that it hands over.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol, final

import torch

from planner.graph import Graph
from planner.memory import MemoryModel
from planner.schedule import Compute, Schedule
from planner.simulator import simulate
from planner.torch import unstable
from planner.torch.forms import FORMS
from planner.torch.meanings import Input, Parameter
from planner.torch.step_roles import HandOut, HandOver, Joint, SaveState, Take, Wait, Write
from planner.torch.stream import ATenCall


class Clock(Protocol):
    """Is told when an op begins and ends on a device."""

    def begin(self, device: torch.device) -> None: ...
    def end(self, op: str, device: torch.device) -> None: ...


@final
@dataclass(frozen=True)
class Emitted:
    """A plan that can be run.

    Args:
        source: the Python that runs.
        start: called with a box and the residents in the order of the joint graph.
        groups: whose gradients are in the box after each yield but the first.
        still_reads: for each group, the residents that it or a later one reads.
    """

    source: str
    start: Callable[..., Generator[None, None, None]]
    groups: tuple[tuple[Parameter | Input, ...], ...]
    still_reads: tuple[frozenset[str], ...]


def emit(joint: Joint, program: Graph, schedule: Schedule, *, clock: Clock | None = None) -> Emitted:
    """The Python of a schedule.

    Args:
        joint: what the nodes of the program are.
        program: the graph that was planned.
        clock: is told when each op begins and ends.
    """
    return _Emitter(joint, program, schedule, clock).emitted()


class _Emitter:
    def __init__(self, joint: Joint, program: Graph, schedule: Schedule, clock: Clock | None) -> None:
        self.clock = clock
        self.joint, self.program, self.schedule = joint, program, schedule
        trace = simulate(program, schedule, memory=MemoryModel(scope="activations"))
        self.taken = {(step, output): given for step, output, given in trace.inplace_taken}
        self.variables: dict[str, str] = {}
        self.scope: dict[str, Any] = {}
        self.names: dict[int, str] = {}
        self.lines: list[str] = []
        self.live: dict[str, object] = {name: object() for name in joint.residents}  # and the storage of each
        self.runs: Counter[str] = Counter()
        self.pending: list[Parameter | Input] = []
        self.reads: set[str] = set()
        self.groups: list[tuple[Parameter | Input, ...]] = []
        self.group_reads: list[set[str]] = []
        self.at_rest: dict[int, set[str]] = {}
        for name in joint.residents:
            self.at_rest.setdefault(joint.storages[name], set()).add(name)

    def emitted(self) -> Emitted:
        arguments = ", ".join(map(self._variable, self.joint.residents))
        step = 0
        for instruction in self.schedule.steps:
            if isinstance(instruction, Compute):
                self._run(instruction.op, step)
                step += 1
            elif instruction.value in self.live:
                self._drop(instruction.value)
        self._yield_gradients()
        still: list[frozenset[str]] = []
        for reads in reversed(self.group_reads):
            still.append(frozenset(reads) | (still[-1] if still else frozenset()))
        source = f"def start(box, {arguments}):\n    " + "\n    ".join(self.lines) + "\n"
        exec(compile(source, "<plan>", "exec"), self.scope)
        return Emitted(source, self.scope["start"], tuple(self.groups), tuple(reversed(still)))

    def _run(self, name: str, step: int) -> None:
        role = self.joint.roles[name]
        if not isinstance(role, HandOver):
            self._yield_gradients()
        if isinstance(role, ATenCall):
            self._call(role, step)
        elif isinstance(role, SaveState):
            self._say(f"{self._variable(name)} = box.state({self._constant(role.device)})")
            self.live[name] = object()
        elif isinstance(role, HandOut):
            self._say(f"box.outputs[{role.index}] = {self._variable(role.value)}.detach()")
        elif isinstance(role, Write):
            self._say(f"box.write({role.path!r}, {self._variable(role.value)})")
        elif isinstance(role, Take):
            self._say(f"{self._variable(name)} = box.take({role.output})")
            self.live[name] = object()
        elif isinstance(role, Wait):
            self._say("yield")
            self.reads = set()
        else:
            self._hand_over(name, role)

    def _hand_over(self, name: str, role: HandOver) -> None:
        given = self._variable(role.value)
        if role.copied:
            given = f"box.copied({given}, {self._constant(role.of)})"
        self._say(f"box.give({given}, {self._constant(role.needs)})")
        self.pending.append(role.of)
        op = self.program.op_named[name]
        overwritten = [self.live[op.reads[i]] for i, _ in op.updates if op.reads[i] in self.live]
        for value in [value for value, where in self.live.items() if any(where is other for other in overwritten)]:
            if value not in self.joint.residents:
                self._drop(value)

    def _yield_gradients(self) -> None:
        if self.pending:
            self._say("yield")
            self.groups.append(tuple(self.pending))
            self.group_reads.append(self.reads)
            self.pending, self.reads = [], set()

    def _call(self, call: ATenCall, step: int) -> None:
        values = [tensor.name for tensor in self.program.op_named[call.name].outputs]
        reads = self.program.op_named[call.name].reads
        if len(call.views) < len(call.tensors):
            for value in reads:
                self.reads |= self.at_rest.get(self.joint.storages.get(value, -1), set())
        device = ""
        again = call.draws and self.runs[call.name] > 0
        self.runs[call.name] += 1
        if again:
            state, device = self.joint.states[call.name], self._constant(call.tensors[0].device)
            self._say(f"before = box.now({device}); box.restore({self._variable(state)}, {device})")
        if self.clock is not None:
            self._say(f"{self._constant(self.clock)}.begin({self._constant(call.tensors[0].device)})")
        taken = self.taken.get((step, values[0]))
        made = self._text(call, taken)
        if call.places == (None,):
            self._say(f"{self._variable(values[0])} = {made}")
        else:
            self._say(f"made = {made}")
            for value, place in zip(values, call.places, strict=True):
                if value not in self.live:
                    self._say(f"{self._variable(value)} = made[{place}]")
            self._say("del made")
        if self.clock is not None:
            self._say(f"{self._constant(self.clock)}.end({call.name!r}, {self._constant(call.tensors[0].device)})")
        if again:
            self._say(f"box.restore(before, {device}); del before")
        onto = {output: self.live[reads[i]] for i, output, _ in call.views}
        if taken is not None:
            onto[0] = self.live[taken]
        for output, value in enumerate(values):
            self.live.setdefault(value, onto.get(output) or object())

    def _text(self, call: ATenCall, taken: str | None) -> str:
        node: Any = call.node
        target, args, kwargs = node.target, list(node.args), dict(node.kwargs)
        if taken is not None:
            form = FORMS[target]
            place = next(k for k in form.positions if k < len(args) and self.joint.value_of.get(args[k]) == taken)
            target, args, kwargs = form.call(args, kwargs, place)
        given = [self._argument(argument) for argument in args]
        given += [f"{key}={self._argument(argument)}" for key, argument in kwargs.items()]
        return f"{self._constant(unstable.called(target))}({', '.join(given)})"

    def _argument(self, argument: Any) -> str:
        if isinstance(argument, torch.fx.Node):
            value = self.joint.value_of.get(argument)
            return "None" if value is None else self._variable(value)
        if isinstance(argument, (list, tuple)) and any(isinstance(part, torch.fx.Node) for part in argument):
            return "[" + ", ".join(map(self._argument, argument)) + "]"
        return self._constant(argument)

    def _constant(self, constant: Any) -> str:
        if constant is None or type(constant) in (bool, int) or (type(constant) is float and math.isfinite(constant)):
            return repr(constant)
        name = self.names.get(id(constant))
        if name is None:
            name = self.names[id(constant)] = f"c{len(self.scope)}"
            self.scope[name] = constant
        return name

    def _variable(self, value: str) -> str:
        return self.variables.setdefault(value, f"v{len(self.variables)}")

    def _drop(self, value: str) -> None:
        self._say(f"del {self._variable(value)}")
        del self.live[value]

    def _say(self, line: str) -> None:
        self.lines.append(line)
