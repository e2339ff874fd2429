"""A planned model: an `nn.Module` that shares the parameters of the one it was made from, and is used like it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, final

import torch

from planner.errors import PlannerError
from planner.memory import MemoryModel
from planner.plan import Plan
from planner.torch.eager import eager_peak_bytes
from planner.torch.prepared import Prepared, joint_step, prepare, prepare_again, prepare_plan
from planner.torch.root import Call, Loss, Root, as_call
from planner.torch.sharing import CallKind, Sharing
from planner.torch.step_roles import Handover
from planner.torch.timing import measured_seconds, with_costs

CostsOf = Literal["roofline", "profile"]
OnNewShape = Literal["error", "plan", "eager"]
#: Plans kept for calls of other shapes; each holds the graph that it was captured from.
_MOST_PLANS: Final = 8


def checkpoint(
    model: torch.nn.Module,
    inputs: Any,
    *,
    loss: Loss | None = None,
    budget: Any = None,
    memory: MemoryModel = MemoryModel(),
    gradients: Handover = "new",
    update_workspace: float = 0.0,
    state_bytes: int = 0,
    costs: CostsOf = "profile",
    on_new_shape: OnNewShape = "error",
    **options: Any,
) -> Planned:
    """A module that trains the model within a budget: the same parameters, losses and gradients, bit for bit.

    In training it runs the plan; under `eval()` or `no_grad` the model's own forward, for any shape.

    Args:
        model: in training mode; its parameters, buffers and submodules are shared, not copied.
        inputs: example arguments: a tuple is positional, a mapping keyword arguments, a tensor one argument.
        loss: called with the model's result and the last argument; with the result alone where `inputs` is a mapping.
            Without it the caller makes the loss, and what that takes is the caller's: it is not in the plan.
        budget: as `planner.optimize` takes it; None: the plan of least memory. A fraction is of this first call; later
            plans have the same bytes.
        memory: what the budget covers; "total" counts parameters, buffers and inputs, "activations" leaves them out.
        gradients: "new": `.grad` is None at each call; "existing": it is there, and is added to (it is resident, as
            parameters are); "inside-backward": hooks (`register_post_accumulate_grad_hook`) update each parameter and
            drop its gradient at once.
        update_workspace: for "inside-backward": temporary bytes of an update for each byte of its parameter; 0 for SGD,
            2 for Adam and AdamW with foreach=False.
        state_bytes: of an optimizer; they are resident, as parameters are.
        costs: "profile": a plan by the roofline is run three times, each op is timed there, and the plan is made again
            with these times. The budget holds meanwhile, and the model is left as it was. "roofline": by a model of
            the device alone: nothing runs, and the same call gives the same plan each time.
        on_new_shape: what a call of other shapes, dtypes or modes does: "error"; "plan" makes another plan within the
            same bytes; "eager" runs the model as it is where its peak, counted on fake tensors, fits.
        options: of `planner.optimize`: strategy, effort, save, recompute, time_limit, seed ...
    Raises:
        InfeasibleBudget: no plan fits; carries the least that works.
        GraphError: the step cannot be captured; names the line and the way out.

    >>> import torch
    >>> from planner.torch import checkpoint
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> x, y = torch.ones(16, 4), torch.zeros(16, 1)
    >>> net = checkpoint(model, (x, y), loss=torch.nn.functional.mse_loss, budget="100%")
    >>> net(x, y).backward()
    >>> model[0].weight.grad.shape
    torch.Size([8, 4])
    """
    update = _Update(gradients, update_workspace, state_bytes)
    asked = _Asked(budget, memory, update, costs, on_new_shape, options)
    net = Planned(Root(model, loss), asked)
    net._plan_for(as_call(inputs))
    return net


def apply(
    plan: Plan,
    model: torch.nn.Module,
    *,
    loss: Loss | None = None,
    gradients: Handover = "new",
    update_workspace: float = 0.0,
) -> Planned:
    """A module that runs a plan that was made before: a loaded one, or one of `planner.optimize(from_torch(...))`.

    The step is captured again at the first call, and must be the one that was planned, costs aside.

    Raises:
        PlanFileError: at the first call: it is the plan of another step.
    """
    update = _Update(gradients, update_workspace, 0)
    asked = _Asked(plan.budget, plan.memory, update, "roofline", "error", {})
    return Planned(Root(model, loss), asked, given=plan)


class _Update(NamedTuple):
    """What the plan is told of gradients and optimizer."""

    handover: Handover
    update_workspace: float
    state_bytes: int


@final
class _Asked:
    """What the user asked, kept for later shapes; `budget` becomes bytes with the first plan."""

    def __init__(
        self,
        budget: Any,
        memory: MemoryModel,
        update: _Update,
        costs: CostsOf,
        on_new_shape: OnNewShape,
        options: Mapping[str, Any],
    ) -> None:
        for name, word, known in (
            ("gradients", update.handover, ("new", "existing", "inside-backward")),
            ("costs", costs, ("roofline", "profile")),
            ("on_new_shape", on_new_shape, ("error", "plan", "eager")),
        ):
            if word not in known:
                raise PlannerError(f"unknown {name} {word!r} (known: {', '.join(known)})")
        self.budget, self.memory, self.on_new_shape, self.options = budget, memory, on_new_shape, dict(options)
        self.update, self.costs = update, costs

    def prepared(self, root: Root, call: Call, given: Plan | None) -> Prepared:
        joint = joint_step(root, call, **self.update._asdict())
        if given is not None:
            return prepare_plan(joint, given)
        prepared = prepare(joint, self.budget, memory=self.memory, **self.options)
        if self.costs == "profile":
            joint = with_costs(joint, measured_seconds(prepared, root, call))
            prepared = prepare_again(prepared, joint, self.budget, memory=self.memory, **self.options)
        if self.budget is not None:
            self.budget = prepared.plan.budget
        return prepared


@final
class Planned(Sharing):
    """A model whose training calls run a plan. Made by `checkpoint` and `apply`."""

    def __init__(self, root: Root, asked: _Asked, *, given: Plan | None = None) -> None:
        super().__init__(root)
        for name, value in (("_asked", asked), ("_given", given), ("_plans", {})):
            object.__setattr__(self, name, value)

    @property
    def plan(self) -> Plan:
        """The plan of the call made last."""
        if not self._plans:
            raise PlannerError("nothing is planned yet: call the module once in training mode")
        return next(reversed(self._plans.values())).plan

    @torch.compiler.disable
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The results of the model, or its loss; by the plan in training, by the model itself elsewhere."""
        root = self._root
        if not self._trains:
            return self._own(args, kwargs, self._plans)
        call = Call.of(args, kwargs)
        prepared = self._plans.get(CallKind(root, call))
        if prepared is None:
            prepared = self._met(call)
        if prepared is None:
            return root(*args, **kwargs)
        return prepared.run(root, call.tensors)

    def _met(self, call: Call) -> Prepared | None:
        """A call of a kind that was not met before."""
        asked, key = self._asked, CallKind(self._root, call)
        if not self._plans or asked.on_new_shape == "plan":
            return self._plan_for(call)
        if asked.on_new_shape == "error":
            known = next(reversed(self._plans))
            fix = 'on_new_shape="plan" makes another plan within the same bytes, "eager" runs the model as it is'
            raise PlannerError(f"the step was planned for {known}; this call is {key}: {fix}")
        allowed = asked.budget
        needed = asked.memory.needed_bytes(eager_peak_bytes(self._root, call, total=asked.memory.scope == "total"))
        if allowed is not None and needed > allowed:
            fix = 'on_new_shape="plan" plans it'
            raise PlannerError(
                f"the model as it is takes {needed} bytes for {key}, above the budget of {allowed}: {fix}"
            )
        return None

    def _plan_for(self, call: Call) -> Prepared:
        while len(self._plans) >= _MOST_PLANS:
            self._plans.pop(next(iter(self._plans)))
        prepared = self._asked.prepared(self._root, call, self._given)
        self._plans[CallKind(self._root, call)] = prepared
        return prepared

    def __deepcopy__(self, memo: dict[int, Any]) -> Planned:
        root = Root(copy.deepcopy(self._root.model, memo), copy.deepcopy(self._root.loss, memo))
        twin = Planned(root, copy.copy(self._asked), given=self._given)
        twin._plans.update(self._plans)
        return twin

    def __reduce__(self) -> Any:
        """A saved module plans again when it is first called."""
        return Planned, (self._root, self._asked)
