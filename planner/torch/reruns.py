"""A model whose chosen modules run again whole, by `torch.utils.checkpoint`: a plan's budget without our executor."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint as run_again

from planner.errors import PlannerError
from planner.plan import Plan
from planner.policy.whole_modules import whole_modules
from planner.torch import unstable
from planner.torch.capture import capture, fake, fake_state
from planner.torch.eager import eager_peak_bytes
from planner.torch.meanings import Update
from planner.torch.root import Call, Loss, Root
from planner.torch.sharing import CallKind, Sharing
from planner.units import exactly

#: Choices counted at most: each that is above the budget makes the next one smaller by what it was above.
_MOST_CHOICES: Final = 8


def wrap_checkpoints(model: torch.nn.Module, plan: Plan, *, loss: Loss | None = None) -> Checkpointed:
    """A module that trains the model within a plan's budget by running whole modules again, as PyTorch can by itself.

    Dearer than the plan, which also frees inside modules, keeps single values and draws: see `bench/torch_peers.py`.
    Gradients are eager's to the bit; statistics are written once, dropout draws what it drew.

    Modules are chosen at the first call of each shape, from `plan.modules_to_checkpoint` and by the peak that the step
    then has, counted on fake tensors.

    Args:
        plan: of `checkpoint`, or of `planner.optimize(planner.from_torch(...))`, with its budget.
        loss: as `checkpoint` takes it.
    Raises:
        PlannerError: at the first call: no choice fits the budget.

    >>> import planner
    >>> from planner.torch import wrap_checkpoints
    >>> Linear, Tanh, Sequential = torch.nn.Linear, torch.nn.Tanh, torch.nn.Sequential
    >>> layers = [Sequential(Linear(8, 32), Tanh(), Linear(32, 8)) for _ in range(4)]
    >>> model, x = Sequential(*layers, Linear(8, 1)), torch.ones(64, 8)
    >>> plan = planner.optimize(planner.from_torch(model, x), "80%")
    >>> net = wrap_checkpoints(model, plan)
    >>> net(x).sum().backward()
    >>> net.peak_bytes <= plan.budget, len(net.modules_run_again) > 0
    (True, True)
    """
    return Checkpointed(Root(model, loss), plan)


@final
@dataclass(frozen=True)
class _Choice:
    modules: tuple[str, ...]
    writes: frozenset[str]  # paths of buffers
    peak_bytes: int


@final
class Checkpointed(Sharing):
    """A model of which some modules run again whole in the backward pass. Made by `wrap_checkpoints`."""

    def __init__(self, root: Root, plan: Plan) -> None:
        super().__init__(root)
        for name, value in (("plan", plan), ("_choices", {})):
            object.__setattr__(self, name, value)

    @property
    def modules_run_again(self) -> tuple[str, ...]:
        """Paths of the modules that run again, for the call whose shape was met last."""
        return self._choice.modules

    @property
    def peak_bytes(self) -> int:
        """What that call and its backward hold at most, by the scope of the plan."""
        return self._choice.peak_bytes

    @property
    def _choice(self) -> _Choice:
        if not self._choices:
            raise PlannerError("nothing is chosen yet: call the module once in training mode")
        return next(reversed(self._choices.values()))

    @torch.compiler.disable
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The results of the model, or its loss."""
        if not self._trains:
            return self._own(args, kwargs, self._choices)
        root, call = self._root, Call.of(args, kwargs)
        kind = CallKind(root, call)
        if kind not in self._choices:
            self._choices[kind] = _chosen(root, call, self.plan)
        choice = self._choices[kind]
        with _run_again(root, choice.modules, choice.writes):
            return root(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Checkpointed:
        root = Root(copy.deepcopy(self._root.model, memo), copy.deepcopy(self._root.loss, memo))
        return Checkpointed(root, self.plan)


def _chosen(root: Root, call: Call, plan: Plan) -> _Choice:
    """The modules that run again so that PyTorch's own step fits.

    The planner's rules count other temporaries than eager has. So a choice whose step is counted above the budget is
    made again for as many bytes less.
    """
    memory, budget = plan.memory, plan.budget
    # Batch normalization writes its statistics where no version tells: the captured step knows.
    writes = frozenset(made.buffer.path for _, made in capture(root, call).results if isinstance(made, Update))
    among = _fit(root, call)
    asked: list[int | None] = [budget]
    least: int | None = None
    for _ in range(_MOST_CHOICES):
        try:
            modules = whole_modules(plan.graph, asked[-1], memory=memory, among=among).modules
        except PlannerError:
            if asked[-1] is None:
                raise
            asked.append(None)  # the least by the planner's rules may fit by the count
            continue
        with _run_again(root, modules, writes):
            peak_bytes = eager_peak_bytes(root, call, total=memory.scope == "total")
        needed = memory.needed_bytes(peak_bytes)
        least = needed if least is None else min(least, needed)
        if budget is None or needed <= budget:
            return _Choice(modules, writes, peak_bytes)
        if asked[-1] is None:
            break
        asked.append(asked[-1] - (needed - budget))
    assert budget is not None
    fix = "run the plan itself (planner.torch.apply), or raise the budget"
    took = exactly(least or 0)
    raise PlannerError(f"no choice of modules to run again whole fits {exactly(budget)}, the best takes {took}: {fix}")


def _fit(root: Root, call: Call) -> list[str]:
    """Paths of the modules that would do the same a second time: tensors and plain values in, none of them written to.

    A module that writes into its input, or whose input is written to after it ran, would begin from other numbers.
    """
    fakes = FakeTensorMode()
    met: dict[str, list[tuple[Any, int]]] = {}
    unfit: set[str] = set()

    def enter(path: str) -> Any:
        def note(_: Any, args: Any, kwargs: Any) -> None:
            try:
                given = Call.of(args, kwargs).tensors
            except PlannerError:
                unfit.add(path)
                return
            met.setdefault(path, []).extend((tensor, tensor._version) for tensor in given)

        return note

    modules = [(_path(name), module) for name, module in root.named_modules() if name not in ("", "model")]
    handles = [module.register_forward_pre_hook(enter(path), with_kwargs=True) for path, module in modules]
    try:
        with unstable.unwatched(), fake_state(root, fakes), torch.random.fork_rng(devices=[]), fakes:
            args, kwargs = call.arguments([fake(tensor, fakes) for tensor in call.tensors])
            root(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    written = {path for path, given in met.items() if any(tensor._version != version for tensor, version in given)}
    return [path for path in met if path not in written | unfit]


def _path(name: str) -> str:
    return name.removeprefix("model.")


@contextmanager
def _run_again(root: Root, paths: Sequence[str], writes: Set[str]) -> Iterator[None]:
    """Inside, these modules keep their inputs alone.

    Args:
        writes: paths of the buffers that the forward pass writes.
    """
    named = {_path(name): (name, module) for name, module in root.named_modules()}
    chosen = [(path, *named[path]) for path in paths]
    before = [module.__dict__.get("forward") for _, _, module in chosen]
    try:
        for path, name, module in chosen:
            own = [(f"{name}.{inner}" if inner else name, part) for inner, part in module.named_modules()]
            written = [(part._buffers, key) for at, part in own for key in part._buffers if f"{at}.{key}" in writes]
            module.forward = _Again(path, module, module.forward, written)
        yield
    finally:
        for (_, _, module), own_forward in zip(chosen, before, strict=True):
            module.__dict__.pop("forward", None)
            if own_forward is not None:
                module.forward = own_forward


@final
class _Again:
    """The forward of a module, which runs a second time in the backward pass as it ran the first time."""

    def __init__(self, path: str, module: torch.nn.Module, own: Any, written: list[tuple[dict[str, Any], str]]) -> None:
        self.path, self.module, self.own, self.written = path, module, own, written

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = Call.of(args, kwargs)
        given, rest = call.tensors, call._replace(tensors=())  # PyTorch keeps the tensors, and sees a write to one
        del args, kwargs, call

        def again(*tensors: torch.Tensor) -> Any:
            args, kwargs = rest.arguments(tensors)
            return self.own(*args, **kwargs)

        return run_again(again, *given, use_reentrant=False, context_fn=self._contexts)

    def _contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        versions = [parameter._version for parameter in self.module.parameters()]
        return nullcontext(), self._second(versions)

    @contextmanager
    def _second(self, versions: list[int]) -> Iterator[None]:
        """The second run, which begins from the same parameters and writes into copies of the buffers."""
        if [parameter._version for parameter in self.module.parameters()] != versions:
            fix = "change it after the backward pass"
            raise PlannerError(f"a parameter of {self.path!r} was changed between forward and backward: {fix}")
        buffers = [table[name] for table, name in self.written]
        try:
            for table, name in self.written:
                table[name] = table[name].clone()
            yield
        finally:
            for (table, name), buffer in zip(self.written, buffers, strict=True):
                table[name] = buffer
