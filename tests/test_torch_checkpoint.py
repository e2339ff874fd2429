"""A planned module against the same module without a plan: equal to the bit, at the predicted peak to the byte."""

from __future__ import annotations

import copy
import gc
import pickle
from itertools import pairwise
from typing import Any

import pytest

from planner import GraphError, MemoryModel, PlanFileError, PlannerError
from tests.extras import imported

torch = imported("torch")
nn, F = torch.nn, torch.nn.functional

from bench.torch_models import made  # noqa: E402
from planner.torch import Planned, apply, checkpoint, track  # noqa: E402
from tests.training import Trial  # noqa: E402

ACTIVATIONS = MemoryModel(scope="activations")
pytestmark = pytest.mark.usefixtures("one_thread")


def planned(model: Any, inputs: Any, budget: Any = None, **options: Any) -> Planned:
    return checkpoint(model, inputs, budget=budget, memory=ACTIVATIONS, **{"costs": "roofline", **options})


def predicted(net: Planned) -> int:
    return net.plan.report.plan.peak_bytes


class Perceptron(nn.Module):
    """Four layers with dropout; the forward returns the loss."""

    def __init__(self, dropout: float = 0.1, width: int = 32) -> None:
        super().__init__()
        sizes = [16, width, width, width]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.head, self.dropout = nn.Linear(width, 5), dropout

    def forward(self, x: Any, y: Any) -> Any:
        for layer in self.layers:
            x = F.dropout(torch.tanh(layer(x)), self.dropout, self.training)
        return F.cross_entropy(self.head(x), y)


def batch(size: int = 64) -> tuple[Any, Any]:
    return torch.randn(size, 16), torch.randint(0, 5, (size,))


@pytest.mark.parametrize("name", ["rn26", "gptd", "lstm20"])
def test_a_plan_gives_the_bits_of_eager_at_the_predicted_peak(name: str) -> None:
    model, inputs = made(name)
    trial = Trial(model, inputs)
    eager = trial.of(model)
    for budget in (eager.peak_bytes // 2, None):
        net = planned(model, inputs, budget, effort=0.02)
        found = trial.of(net)
        assert found.differs_from(eager) == []
        assert found.peak_bytes == predicted(net)
        assert budget is None or found.peak_bytes <= budget
        assert net.plan.report.recomputed_ops > 0  # or nothing was tried


@pytest.mark.parametrize("dropout", [0.04, 0.1, 0.15, 0.3, 0.42])
def test_dropout_is_that_of_eager_for_every_probability(dropout: float) -> None:
    # Traced by PyTorch, dropout multiplies by a rounded reciprocal: at 0.15 no gradient of such a net is eager's.
    model, inputs = Perceptron(dropout), batch()
    trial = Trial(model, inputs)
    assert trial.of(planned(model, inputs)).differs_from(trial.of(model)) == []


def test_under_autocast_the_forward_is_cast_and_the_backward_is_not() -> None:
    model, inputs = Perceptron(0.1), batch()
    trial = Trial(model, inputs)

    def cast(call: Any) -> Any:
        def run(*given: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return call(*given)

        return run

    with torch.autocast("cpu", dtype=torch.bfloat16):
        net = planned(model, inputs)
    assert trial.of(cast(net)).differs_from(trial.of(cast(model))) == []
    assert trial.of(cast(model)).differs_from(trial.of(model)) != []  # or autocast was off


@pytest.mark.parametrize("factor", [1.0, 1 / 3, 65536.0])
def test_any_upstream_gradient_goes_through(factor: float) -> None:
    model, inputs = Perceptron(), batch()
    trial, net = Trial(model, inputs), planned(model, inputs)

    def backward(loss: Any) -> None:
        (loss * factor).backward()

    assert trial.of(net, backward=backward).differs_from(trial.of(model, backward=backward)) == []


def test_three_steps_of_adam_end_with_eager_s_parameters() -> None:
    def trained(call: Any) -> Any:
        trial.reset()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = call(*inputs)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [*losses, *trial.left().values()]

    model, inputs = Perceptron(), batch()
    trial, net = Trial(model, inputs), planned(model, inputs)
    assert all(map(torch.equal, trained(net), trained(model)))


def test_a_second_micro_batch_adds_to_the_gradients_and_holds_what_was_predicted() -> None:
    # (loss / 2).backward() makes the quotient and the root's ones, 4 bytes each; the tangent of 4 is in the plan.
    model, inputs = made("lstm20")
    trial, net = Trial(model, inputs), planned(model, inputs, gradients="existing", effort=0.02)

    def two(call: Any) -> tuple[dict[str, Any], int]:
        trial.reset()
        for _ in range(2):
            with track() as memory:
                loss = call(*inputs)
                (loss / 2).backward()
        return trial.left(), memory.peak_bytes

    (found, peak_bytes), (eager, _) = two(net), two(model)
    assert all(torch.equal(found[name], eager[name]) for name in eager)
    assert peak_bytes == predicted(net) + 8


@pytest.mark.parametrize(("make", "temporaries"), [(torch.optim.SGD, 0), (torch.optim.AdamW, 2)])
def test_an_optimizer_inside_the_backward_holds_one_gradient_at_a_time(make: Any, temporaries: int) -> None:
    model, inputs = Perceptron(0.1, width=128), batch(256)
    trial = Trial(model, inputs)
    net = planned(model, inputs, gradients="inside-backward", update_workspace=temporaries)

    def trained(call: Any) -> tuple[list[Any], list[int]]:
        trial.reset()
        options = {} if make is torch.optim.SGD else {"foreach": False}
        optimizers = {p: make([p], lr=0.01, **options) for p in model.parameters()}

        def step(parameter: Any) -> None:
            optimizers[parameter].step()
            parameter.grad = None

        hooks = [p.register_post_accumulate_grad_hook(step) for p in model.parameters()]
        losses, peaks = [], []
        for _ in range(3):
            with track() as memory:
                loss = call(*inputs)
                loss.backward()
            losses.append(loss.detach())
            peaks.append(memory.peak_bytes)
        for hook in hooks:
            hook.remove()
        return [*losses, *(p.detach().clone() for p in model.parameters())], peaks

    (found, peaks), (eager, _) = trained(net), trained(model)
    assert all(map(torch.equal, found, eager))
    assert peaks[1] == peaks[2]
    assert peaks[2] <= predicted(net)
    assert temporaries or peaks[2] == predicted(net)


def test_a_forward_whose_loss_is_dropped_holds_nothing() -> None:
    model, inputs = Perceptron(), batch()
    net = planned(model, inputs)
    gc.disable()
    try:
        with track() as memory:
            loss = net(*inputs)
            assert memory.live_bytes > 64 * 16 * 4
            del loss
        assert memory.live_bytes == 0
    finally:
        gc.enable()


def test_a_backward_that_would_need_freed_values_is_refused_by_name() -> None:
    model, inputs = Perceptron(), batch()
    net = planned(model, inputs)
    with pytest.raises(PlannerError, match=r"retain_graph=True cannot be honoured"):
        net(*inputs).backward(retain_graph=True)
    with pytest.raises(PlannerError, match="create_graph=True"):
        net(*inputs).backward(create_graph=True)
    loss = net(*inputs)
    loss.backward()
    with pytest.raises((PlannerError, RuntimeError), match=r"twice|second time"):
        loss.backward()


def test_a_parameter_changed_between_forward_and_backward_is_named() -> None:
    model, inputs = Perceptron(), batch()
    net = planned(model, inputs)
    loss = net(*inputs)
    with torch.no_grad():
        model.head.weight.add_(1)
    with pytest.raises(PlannerError, match=r"parameter 'head\.weight' was changed in place"):
        loss.backward()


def test_a_plan_by_profile_keeps_the_budget_while_it_measures_and_the_model_as_it_was() -> None:
    body = [
        nn.Linear(16, 64),
        nn.BatchNorm1d(64),
        nn.Tanh(),
        nn.Dropout(0.1),
        nn.Linear(64, 64),
        nn.Tanh(),
        nn.Linear(64, 5),
    ]
    model, inputs = nn.Sequential(*body), batch(256)
    trial = Trial(model, inputs)
    eager = trial.of(lambda x, y: F.cross_entropy(model(x), y))
    budget = eager.peak_bytes * 7 // 10
    trial.reset()
    before, met = trial.left(), []
    hook = model[0].weight.register_post_accumulate_grad_hook(met.append)
    with track() as memory:
        net = planned(model, inputs, budget, loss=F.cross_entropy, costs="profile", effort=0.1)
    hook.remove()
    assert 16 * 64 * 4 < memory.peak_bytes <= budget  # it ran, and never without a plan
    left = trial.left()
    assert all(left[name] is before[name] or torch.equal(left[name], before[name]) for name in before)
    assert met == []
    costs = [op.cost for op in net.plan.graph.ops if op.op == "aten.addmm.default"]
    assert len(costs) == 3
    assert all(1e-7 < seconds < 10 for seconds in costs)  # of this machine, not of a model of one
    assert trial.of(net).differs_from(eager) == []
    other = planned(model, inputs, budget, loss=F.cross_entropy).plan
    assert other.graph.fingerprint != net.plan.graph.fingerprint
    assert trial.of(apply(other, model, loss=F.cross_entropy)).differs_from(eager) == []


class Tied(nn.Module):
    """One matrix under three names."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(16, 16) for _ in range(3))
        self.b.weight = self.c.weight = self.a.weight

    def forward(self, x: Any, y: Any) -> Any:
        return (self.c(torch.tanh(self.b(torch.tanh(self.a(x))))) - y).square().mean()


def test_a_matrix_under_three_names_is_summed_in_the_engine_s_order() -> None:
    model, inputs = Tied(), (torch.randn(32, 16), torch.randn(32, 16))
    trial = Trial(model, inputs)
    net = planned(model, inputs)
    eager, found = trial.of(model), trial.of(net)
    assert found.differs_from(eager) == []
    assert found.peak_bytes == predicted(net)


class TwoHeads(nn.Module):
    """Two outputs in a dict, frozen parameters, a parameter nobody uses, and an argument that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 3), nn.Linear(16, 4)
        self.unused = nn.Parameter(torch.ones(3))
        self.a.bias.requires_grad_(False)

    def forward(self, x: Any, *, scale: float = 1.0) -> dict[str, Any]:
        h = torch.relu(self.body(x)) * scale
        return {"a": self.a(h), "b": self.b(h), "best": self.a(h).argmax(-1)}


def test_several_outputs_come_in_the_model_s_own_form() -> None:
    model, x = TwoHeads(), torch.randn(8, 16, requires_grad=True)
    trial = Trial(model, ())
    net = planned(model, {"x": x, "scale": 2.0})
    both = lambda made: made["a"].sum() + made["b"].square().sum()  # noqa: E731
    for loss in (both, lambda made: made["b"].sum()):
        left = []
        for call in (model, net):
            trial.reset()
            x.grad = None
            made = call(x=x, scale=2.0)
            assert list(made) == ["a", "b", "best"]
            assert not made["best"].requires_grad
            loss(made).backward()
            left.append({**trial.left(), "x": x.grad, "best": made["best"]})
        eager, found = left
        assert {name for name in eager if eager[name] is None} == {name for name in found if found[name] is None}
        assert all(found[name] is None or torch.equal(found[name], eager[name]) for name in eager)
    assert model.unused.grad is None


def test_a_loss_may_be_a_module_with_weights_of_its_own() -> None:
    model, inputs = nn.Linear(16, 5), batch()
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]))
    trial, net = Trial(model, inputs), planned(model, inputs, loss=loss)
    assert trial.of(net).differs_from(trial.of(lambda x, y: loss(model(x), y))) == []
    net.eval()
    assert torch.equal(net(inputs[0]), model(inputs[0]))
    assert torch.equal(net(*inputs), loss(model(inputs[0]), inputs[1]))


def test_the_module_is_used_like_the_model() -> None:
    model, inputs = Perceptron(), batch()
    net = planned(model, inputs)
    assert list(net.state_dict()) == list(model.state_dict())
    assert [name for name, _ in net.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert net.head is model.head
    net.eval()
    assert not model.training
    assert torch.equal(net(*batch(3)).isnan(), torch.tensor(False))  # any shape
    net.train()
    assert model.training
    with torch.no_grad():
        assert net(*batch(3)).grad_fn is None
    twin = copy.deepcopy(net)
    assert twin.head.weight is not net.head.weight
    for call in (net, twin, pickle.loads(pickle.dumps(net))):
        torch.manual_seed(5)
        call.zero_grad()
        call(*inputs).backward()
    assert torch.equal(twin.head.weight.grad, net.head.weight.grad)


def test_another_shape_is_refused_planned_or_run_as_it_is() -> None:
    model, inputs, short = Perceptron(), batch(64), batch(10)
    trial = Trial(model, short)
    eager = trial.of(model)
    net = planned(model, inputs, "100%")
    with pytest.raises(
        PlannerError, match=r"planned for float32\[64, 16\], int64\[64\]; this call is float32\[10, 16\]"
    ):
        net(*short)
    for policy in ("plan", "eager"):
        net = planned(model, inputs, "100%", on_new_shape=policy)
        assert trial.of(net).differs_from(eager) == []
        assert len(net._plans) == (2 if policy == "plan" else 1)
    net = planned(model, inputs, on_new_shape="eager", budget="70%")
    with pytest.raises(PlannerError, match="above the budget of"):
        net(*batch(128))


def test_a_plan_that_was_made_before_runs_and_another_model_s_is_refused() -> None:
    model, inputs = Perceptron(), batch()
    trial, first = Trial(model, inputs), planned(model, inputs)
    assert trial.of(apply(first.plan, model)).differs_from(trial.of(model)) == []
    other = Perceptron(width=33)
    with pytest.raises(PlanFileError, match="the plan of another step"):
        apply(first.plan, other)(*inputs)


class AsksForValues(nn.Linear):
    def forward(self, x: Any) -> Any:
        return super().forward(x) if x.sum() > 0 else x


class ChangesItsInput(nn.Linear):
    def forward(self, x: Any) -> Any:
        return super().forward(x.add_(1))


def test_what_cannot_be_planned_is_refused_with_the_line_and_the_way_out() -> None:
    x = torch.randn(8, 16)
    with pytest.raises(
        GraphError, match=r"test_torch_checkpoint.py:\d+ `return .* asks for the value of a tensor.*mask"
    ):
        planned(AsksForValues(16, 16), x)
    with pytest.raises(GraphError, match="writes into input 0: let it write into a copy"):
        planned(ChangesItsInput(16, 16), x)
    with pytest.raises(PlannerError, match="no parameter and no input requires a gradient"):
        planned(nn.Linear(16, 16).requires_grad_(False), x)
    with torch.no_grad(), pytest.raises(PlannerError, match="outside no_grad"):
        planned(nn.Linear(16, 16), x)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
    model[0].register_forward_hook(lambda *_: None)
    with pytest.warns(UserWarning, match="the hook on module '0' runs when the step is planned"):
        planned(model, x)
