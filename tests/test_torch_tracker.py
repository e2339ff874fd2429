"""`planner.torch.track` against bytes counted by hand: float32 has 4, float64 and int64 have 8."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

import planner
from planner import PlannerError
from tests.extras import imported
from tests.offenders import every

torch = imported("torch")
track = imported("planner.torch").track


def made() -> None:
    a = torch.ones(10)  # 40
    b = a + 1  # 80: the peak
    del a
    c = b * 2  # 80 again
    del b, c


def views() -> None:
    a = torch.ones(4, 5)  # 80
    b, c, d, e = a.view(20), a.t(), a[1:], a.detach()
    del a, b, c, d
    f = e.expand(3, 4, 5) + e[0]  # 80 + 240, as a view keeps the whole storage
    del f


def in_place() -> None:
    a = torch.ones(6, dtype=torch.float64)  # 48
    b = a.add_(1).mul_(a).relu_()
    a.zero_()
    del a, b


def several_outputs() -> None:
    a = torch.ones(3, 4)  # 48
    values, positions = a.max(dim=1)  # 3 * 4 + 3 * 8 = 36
    left, right = a.split(2, dim=1)  # views
    del values, positions, left, right


def scalars() -> None:
    a = torch.tensor([1.0, 2.0, 3.0])  # 12
    b = a + torch.tensor(2.0)  # 4 more, and 12
    del b


def written_elsewhere() -> None:
    out = torch.empty(0)
    torch.add(torch.ones(5), torch.ones(5), out=out)  # 20 + 20, and out grows to 20
    out.resize_(3)  # a storage never shrinks
    out.resize_(50)  # 200; the two ones are gone
    del out


def chain_of_ten() -> None:
    a = torch.ones(100)
    for _ in range(10):
        a = a + 1  # the old one dies when the name is given away: two at a time
    del a


def nothing() -> None:
    pass


#: Peak, the storages at the peak, and what is live at the end, by hand.
CALLS: list[tuple[Callable[[], None], int, list[int]]] = [
    (nothing, 0, []),
    (made, 80, [40, 40]),
    (views, 320, [240, 80]),
    (in_place, 48, [48]),
    (several_outputs, 84, [48, 24, 12]),
    (scalars, 28, [12, 12, 4]),
    (written_elsewhere, 200, [200]),
    (chain_of_ten, 800, [400, 400]),
]


@every("call, peak_bytes, at_peak", CALLS, ids=lambda row: row[0].__name__)
def test_the_peak_is_that_of_a_count_by_hand(call: Callable[[], None], peak_bytes: int, at_peak: list[int]) -> None:
    with track() as memory:
        call()
    assert memory.peak_bytes == peak_bytes
    assert [storage.nbytes for storage in memory.at_peak()] == at_peak
    assert memory.live_bytes == 0


def test_the_timeline_has_the_live_bytes_after_each_op() -> None:
    with track() as memory:
        a = torch.ones(2)
        b = a * 3
        c = b.view(2, 1)
        del a, b
        c.add_(1)
    assert [op.split(".")[1] for op in memory.ops] == ["ones", "mul", "view", "add_"]
    assert memory.timeline_bytes == [8, 16, 16, 8]
    assert memory.live_bytes == 8
    del c
    assert memory.live_bytes == 0, "what outlives the call is followed until it dies"


def test_a_storage_at_the_peak_names_the_op_that_made_it_or_resized_it() -> None:
    with track() as memory:
        a = torch.ones(7)
        b = a.exp()
        a.resize_(9)
    assert [(s.op, s.nbytes) for s in memory.at_peak()] == [("aten.resize_.default", 36), ("aten.exp.default", 28)]
    del b


def test_autograd_keeps_what_its_formulas_read_until_the_backward_pass_has_read_it() -> None:
    """exp keeps its result, sin what it reads, which is the same storage; the sum keeps nothing."""
    x = torch.ones(100, requires_grad=True)  # there before: not counted
    with track() as memory:
        loss = x.exp().sin().sum()
        held_bytes = memory.live_bytes
        loss.backward()
    # Forward: exp 400, sin 400, then the sum's 4, and what sin made dies: 404 are held.
    assert held_bytes == 404
    # Backward: the root's gradient 4, expanded as a view; the cosine 400; its product with the gradient 400.
    assert memory.peak_bytes == 404 + 4 + 800
    # The gradient of x and the loss remain.
    assert memory.live_bytes == 400 + 4
    assert x.grad is not None


def test_a_step_of_a_linear_layer_holds_its_results_and_its_gradients() -> None:
    layer = torch.nn.Linear(8, 4)
    x = torch.ones(2, 8)
    with track() as memory:
        loss = layer(x).relu().sum()
        loss.backward()
    # The loss 4 and the root's gradient 4 stay. relu's result 32 dies when relu's gradient 32 is there, of which the
    # gradients of the weight, 4 * 8 * 4 = 128, and of the bias, 16, are made.
    assert memory.peak_bytes == 4 + 4 + 32 + 128 + 16
    assert memory.live_bytes == 128 + 16 + 4


def test_storages_from_before_count_only_for_what_they_grow_by() -> None:
    old = torch.ones(10)
    with track() as memory:
        old.add_(1)
        part = old[2:]
        grown = old.resize_(25)  # from 40 bytes to 100
        assert memory.live_bytes == 60
        fresh = part + 1  # 32
    assert memory.peak_bytes == 92
    del old, part, grown, fresh
    assert memory.live_bytes == 0


def test_the_optimizer_holds_its_states_and_the_temporaries_of_all_parameters_at_once() -> None:
    """Adam over tensors of 400 and 80 bytes: two states each, and a step count of 4 bytes for each."""
    for foreach in (False, True):
        weights = [torch.ones(100, requires_grad=True), torch.ones(20, requires_grad=True)]
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimizer = torch.optim.Adam(weights, foreach=foreach)
        with track() as first:
            optimizer.step()
        assert first.live_bytes == 2 * (400 + 80) + 2 * 4
        with track() as later:
            optimizer.step()
        assert later.live_bytes == 0
        # All roots of the second moments, divided in place; or the root of the larger one, and the quotient beside it.
        assert later.peak_bytes == (400 + 80 if foreach else 400 + 400)


def test_fake_tensors_are_counted_as_the_real_ones() -> None:
    fake_mode = import_module("torch._subclasses.fake_tensor").FakeTensorMode

    def step() -> None:
        net = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
        torch.nn.functional.cross_entropy(net(torch.ones(5, 8)), torch.zeros(5, dtype=torch.int64)).backward()

    with track() as real:
        step()
    with fake_mode(), track() as fake:
        step()
    assert fake.peak_bytes == real.peak_bytes
    assert [storage.nbytes for storage in fake.at_peak()] == [storage.nbytes for storage in real.at_peak()]


def test_a_compiled_function_runs_as_compiled() -> None:
    """Ours is a backend that runs another graph, so that running the eager one would show."""

    def backend(_graph: Any, _inputs: Any) -> Callable[..., Any]:
        return lambda x: (torch.zeros(1000).sum() + x,)

    with track() as memory:
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    assert memory.peak_bytes >= 4000


def test_a_tensor_without_a_storage_is_refused_with_its_op() -> None:
    with pytest.raises(PlannerError, match=r"aten\._to_sparse\.default.*torch\.sparse_coo.*dense"), track():
        torch.ones(3).to_sparse()


def test_it_is_found_from_the_front_door_and_says_how_to_install_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert planner.torch.track is track
    for name in [name for name in sys.modules if name.startswith("planner.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(planner, "torch")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'sublinear-planner\[torch\]'"):
        _ = planner.torch
