"""`planner.from_torch` against bytes and ops counted by hand: float32 has 4 bytes, int64 8."""

from __future__ import annotations

from typing import Any

import pytest

import planner
from planner import GraphError
from tests.extras import imported

torch = imported("torch")
nn, F = torch.nn, torch.nn.functional

from bench.torch_models import made  # noqa: E402
from planner.torch.eager import eager_peak_bytes  # noqa: E402
from planner.torch.root import Root, as_call  # noqa: E402
from tests.training import Trial  # noqa: E402

PAIR = (torch.ones(32, 64), torch.ones(32, 8))


def net() -> Any:
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 8))


def test_a_step_is_told_with_its_residents_phases_and_gradients() -> None:
    graph = planner.lower(planner.from_torch(net(), PAIR, loss=F.mse_loss))
    residents = {op.name: (op.kind, op.outputs[0].nbytes) for op in graph.ops if op.resident}
    assert residents == {
        "0.weight": ("parameter", 4 * 16 * 64), "0.bias": ("parameter", 4 * 16),
        "2.weight": ("parameter", 4 * 8 * 16), "2.bias": ("parameter", 4 * 8),
        "input.0": ("input", 4 * 32 * 64), "input.1": ("input", 4 * 32 * 8),
    }  # fmt: skip
    gradients = {op.name: op.outputs[0].nbytes for op in graph.ops if op.op == "give"}
    assert gradients == {f"give.{name}": size for name, (kind, size) in residents.items() if kind == "parameter"}
    order = [op.phase for op in graph.ops if op.phase]
    assert order == sorted(order, key=["forward", "loss", "backward"].index)
    assert {op.module for op in graph.ops if op.op == "aten.addmm.default"} == {"0", "2"}
    assert [op.flops for op in graph.ops if op.op == "aten.addmm.default"] == [2 * 32 * 16 * 64, 2 * 32 * 8 * 16]


def test_every_op_knows_the_line_that_made_it_and_so_does_its_backward() -> None:
    graph = planner.from_torch(Noisy(), torch.ones(8))
    made = [facts for _, facts in graph.nodes(data=True) if facts.get("op", "").startswith("aten.")]
    assert {facts["phase"] for facts in made} == {"forward", "backward"}
    first = Noisy.forward.__code__.co_firstlineno
    lines = {facts["line"] for facts in made}
    assert lines == {f"{__file__}:{first + 1}", f"{__file__}:{first + 2}"}


def test_a_boundary_lies_between_forward_and_backward() -> None:
    graph = planner.lower(planner.from_torch(net(), PAIR, loss=F.mse_loss))
    after_it: set[str] = {"boundary"}
    for op in graph.ops:
        reached = after_it & {*op.after, *(graph.producer[value].name for value in op.reads)}
        assert bool(reached) == (op.phase == "backward"), op.name
        after_it |= {op.name} if reached else set()


def test_a_footprint_of_a_module_counts_gradients_and_the_optimizer_s_states() -> None:
    parameters = 4 * (16 * 64 + 16 + 8 * 16 + 8)
    without = planner.estimate(planner.from_torch(net(), PAIR, loss=F.mse_loss))
    adam = planner.estimate(planner.from_torch(net(), PAIR, loss=F.mse_loss, optimizer="adam"))
    update = {moment.phase: moment for moment in adam.later.phases}["update"]
    assert [update.components[part] for part in ("parameters", "gradients", "optimizer_state")] == [
        parameters, parameters, 2 * parameters
    ]  # fmt: skip
    assert "update" not in {moment.phase for moment in without.later.phases}


def test_a_model_of_a_terabyte_is_captured_without_its_storage() -> None:
    with torch.device("meta"):
        model, x = nn.Linear(500_000, 500_000), torch.ones(2, 500_000)
    graph = planner.lower(planner.from_torch(model, x, loss=None))
    assert sum(op.outputs[0].nbytes for op in graph.ops if op.kind == "parameter") == 4 * 500_000 * 500_001


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Any) -> Any:
        F.dropout(x, 0.15)  # nobody reads it
        return (F.dropout(x * self.weight, 0.15) * torch.rand(8)).sum()


def test_draws_are_chained_by_the_generator_s_state_and_none_is_left_out() -> None:
    graph = planner.lower(planner.from_torch(Noisy(), torch.ones(4, 8)))
    states = [op for op in graph.ops if op.op == "GeneratorState"]
    draws = [op for op in graph.ops if set(op.reads) & {state.name for state in states}]
    assert len(states) == len(draws) == 3  # two dropouts and a rand
    assert all(not state.recomputable and state.outputs[0].nbytes == 5056 for state in states)
    assert [state.after for state in states] == [(), (draws[0].name,), (draws[1].name,)]


def test_running_statistics_are_written_once_and_batch_normalization_may_run_again() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    graph = planner.lower(planner.from_torch(model, torch.ones(2, 3, 8, 8)))
    writes = {op.name for op in graph.ops if op.op == "write"}
    assert writes == {f"write.1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
    assert all(graph.op_named[name].outputs == () for name in writes)
    assert [op.recomputable for op in graph.ops if "batch_norm" in str(op.op)] == [True, True]


def test_eager_s_peak_is_counted_without_running_it() -> None:
    model, inputs = made("lstm20")
    eager = Trial(model, inputs).of(model)
    kept = [p.grad for p in model.parameters()]  # gradients that are there are not those that it makes
    assert eager_peak_bytes(Root(model, None), as_call(inputs)) == eager.peak_bytes
    assert all(p.grad is gradient for p, gradient in zip(model.parameters(), kept, strict=True))


def test_a_graph_is_the_same_each_time_and_costs_are_those_of_the_device() -> None:
    one, two = (planner.lower(planner.from_torch(net(), PAIR, loss=F.mse_loss)) for _ in range(2))
    assert one.fingerprint == two.fingerprint
    fast = planner.lower(planner.from_torch(net(), PAIR, loss=F.mse_loss, device="a100"))
    assert sum(op.cost for op in fast.ops) < sum(op.cost for op in one.ops)
    with pytest.raises(GraphError, match="unknown device 'a1000'"):
        planner.from_torch(net(), PAIR, loss=F.mse_loss, device="a1000")
