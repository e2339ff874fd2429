"""Whole training loops by a plan against the same loops without one: losses and parameters equal to the bit."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import planner
from planner import MemoryModel, PlannerError
from tests.extras import imported

torch = imported("torch")
nn, F = torch.nn, torch.nn.functional

from planner.torch import checkpoint, track, train_step, verify  # noqa: E402
from planner.torch.slices import Box  # noqa: E402

ACTIVATIONS = MemoryModel(scope="activations")
pytestmark = pytest.mark.usefixtures("one_thread")


def net(dropout: float = 0.1) -> Any:
    """Dropout, batch normalization, an in-place op."""
    parts = [nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(inplace=True), nn.Dropout(dropout)]
    return nn.Sequential(*parts, nn.Linear(32, 32), nn.Tanh(), nn.Dropout(dropout), nn.Linear(32, 5))


def batches(count: int, size: int = 64) -> list[tuple[Any, Any]]:
    generator = torch.Generator().manual_seed(7)
    sizes = [*[size] * (count - 1), size // 3]
    return [
        (torch.randn(n, 16, generator=generator), torch.randint(0, 5, (n,), generator=generator)) for n in sizes
    ]  # fmt: skip


def loop(model: Any, call: Any) -> list[Any]:
    """20 batches, the last one short, with accumulation, clipping, a schedule, evaluation and a resumed state."""
    torch.manual_seed(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    seen = []
    for k, (x, y) in enumerate(batches(20)):
        loss = call(x, y)
        (loss / 2).backward()
        seen.append(loss.detach())
        if k % 2:
            seen.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if k == 9:
            model.eval()
            with torch.no_grad():
                seen.append(call(*batches(1, 30)[0]))
            model.train()
            states = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            model.load_state_dict(states[0])
            optimizer.load_state_dict(states[1])
    return [*seen, *(p.detach().clone() for p in model.parameters()), *model.buffers(), torch.get_rng_state()]


@pytest.mark.parametrize("policy", ["plan", "eager"])
def test_a_loop_as_people_write_it_ends_with_the_unplanned_one_s_bits(policy: Any) -> None:
    model = net()
    twin = copy.deepcopy(model)
    x, y = batches(2)[0]
    planned = checkpoint(model, (x, y), loss=F.cross_entropy, budget="100%", memory=ACTIVATIONS, on_new_shape=policy)
    unplanned = loop(twin, lambda x, y: F.cross_entropy(twin(x), y))
    assert all(map(torch.equal, loop(model, planned), unplanned))
    assert len(planned._plans) == (2 if policy == "plan" else 1)


@pytest.mark.parametrize("update", ["per-tensor", "multi-tensor", "inside-backward"])
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
def test_a_step_with_its_update_trains_as_the_unplanned_one(make: Any, update: Any) -> None:
    model = net()
    twin = copy.deepcopy(model)
    x, y = batches(2)[0]
    left = []
    for each in (model, twin):
        torch.manual_seed(1)
        optimizer = make(each.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        losses = []
        if each is model:
            step = train_step(each, (x, y), optimizer, loss=F.cross_entropy, update=update, memory=ACTIVATIONS)
        for _ in range(3):
            if each is model:
                with track() as memory:
                    losses.append(step(x, y))
            else:
                optimizer.zero_grad()
                loss = F.cross_entropy(each(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            schedule.step()
        left.append([*losses, *(p.detach() for p in each.parameters()), *each.buffers(), torch.get_rng_state()])
    assert all(map(torch.equal, *left))
    if make is torch.optim.SGD:  # the trial of AdamW held up to its temporaries more or less
        assert memory.peak_bytes == step.peak_bytes
    if update == "inside-backward":
        assert all(p.grad is None for p in model.parameters())


def test_an_update_that_alone_exceeds_the_budget_is_refused_with_the_way_out() -> None:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.ones(2, 64), torch.ones(2, 64)
    size = 4 * (64 * 64 + 64)
    # "activations" counts gradients and temporaries: gradients fit, two temporaries of their size beside them do not.
    with pytest.raises(PlannerError, match=r"the update alone needs .* holds one gradient at a time"):
        train_step(
            model, (x, y), optimizer, loss=F.mse_loss, budget=2 * size, update="multi-tensor", memory=ACTIVATIONS
        )
    with pytest.raises(PlannerError, match="what Adagrad holds is not known"):
        train_step(model, (x, y), torch.optim.Adagrad(model.parameters()), loss=F.mse_loss)


def test_verify_says_that_bits_are_equal_and_the_peak_is_the_predicted_one() -> None:
    model, (x, y) = net(), batches(2)[0]
    plan = checkpoint(model, (x, y), loss=F.cross_entropy).plan
    before = [*(b.clone() for b in model.buffers()), torch.get_rng_state()]
    found = verify(plan, model, (x, y), loss=F.cross_entropy)
    assert found.holds, str(found)
    assert "values are equal to the bit" in str(found)
    assert found.unplanned_bytes > found.tracked_bytes
    assert all(map(torch.equal, before, [*model.buffers(), torch.get_rng_state()]))
    assert all(p.grad is None for p in model.parameters())


def test_a_generator_that_is_not_set_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, y) = net(0.5), batches(2)[0]
    draws = [f"op:{op.op}" for op in planner.lower(planner.from_torch(model, x)).ops if "dropout" in str(op.op)]
    plan = checkpoint(model, (x, y), loss=F.cross_entropy, recompute=draws[:1], budget="100%", memory=ACTIVATIONS).plan
    assert any("dropout" in op for op in plan.schedule.computes if plan.schedule.computes.count(op) > 1)
    assert verify(plan, model, (x, y), loss=F.cross_entropy).holds
    monkeypatch.setattr(Box, "restore", lambda self, state, device: None)
    found = verify(plan, model, (x, y), loss=F.cross_entropy)
    assert "generator" in found.differing
    assert "gradient of 0.weight" in found.differing


def test_without_the_chain_of_draws_another_order_would_be_legal() -> None:
    # Each draw waits for the one before it: the state it starts from is then eager's.
    graph = planner.from_torch(net(), batches(2)[0][0])
    states = [name for name, op in graph.nodes(data="op") if op == "GeneratorState"]
    program = planner.lower(graph)
    order = [op.name for op in program.ops if not op.resident]
    second = states[1]
    moved = [second, *(name for name in order if name != second)]
    schedule = planner.Schedule.of(planner.Compute(name) for name in moved)
    with pytest.raises(planner.ScheduleError, match=second):
        planner.simulate(program, schedule)
    for before in [p for p in graph.predecessors(second) if not graph.edges[p, second]["reads"]]:
        graph.remove_edge(before, second)
    planner.simulate(planner.lower(graph), schedule)


def test_the_script_that_trains_a_gpt_has_the_unplanned_loop_s_losses_at_a_lower_peak() -> None:
    gpt = imported("bench.train_gpt")
    planned = gpt.train(steps=6, budget="50%", length=32, layers=2)
    unplanned = gpt.train(steps=6, budget=None, planned=False, length=32, layers=2)
    assert planned.losses == unplanned.losses
    assert all(map(torch.equal, planned.parameters, unplanned.parameters))
    assert planned.peak_bytes < 0.6 * unplanned.peak_bytes
