"""Modules as people write them, one small one a trap: equal to the bit, or refused with the way out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from planner import GraphError, MemoryModel, PlannerError
from tests.extras import imported
from tests.offenders import every

torch = imported("torch")
nn, F = torch.nn, torch.nn.functional

from planner.torch import checkpoint, track  # noqa: E402

ACTIVATIONS = MemoryModel(scope="activations")
pytestmark = pytest.mark.usefixtures("one_thread")
X = torch.randn


class Does(nn.Module):
    """A module whose forward is a function of it and the inputs."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.does = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Any) -> Any:
        return self.does(self, *inputs)


class Averages(nn.Module):
    """A buffer that is read, written, and read again."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Any) -> Any:
        y = self.fc(x) + self.mean
        self.mean.mul_(0.9).add_(y.detach().mean(0))
        return y * self.mean


class Rebinds(Averages):
    def forward(self, x: Any) -> Any:
        self.mean = 0.9 * self.mean + x.mean(0)
        return self.fc(x)


class Triples(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 3


def written(self: Any, x: Any) -> Any:
    h = self.fc(x).clone()
    h[:, 0] = 0
    h[:2] *= 3
    return h


def constant(self: Any, x: Any) -> Any:
    with torch.no_grad():
        h = self.fc(x)
    return self.out(h) + torch.randn_like(h) + torch.tensor(2.0)


def fc() -> Any:
    return nn.Linear(8, 8)


def rows() -> tuple[Any, ...]:
    return (X(4, 8),)


def frozen(model: Any) -> Any:
    model[1].eval()
    return model


def tied_transposed() -> Any:
    model = fc()
    model.weight = nn.Parameter(X(8, 8).t())
    return model


MODULES: dict[str, tuple[Callable[[], Any], Callable[[], tuple[Any, ...]]]] = {
    "weight norm by a hook": (lambda: nn.Sequential(nn.utils.weight_norm(fc()), nn.Tanh(), fc()), rows),
    "weight norm": (lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(fc()), nn.Tanh(), fc()), rows),
    "spectral norm": (lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(fc()), fc()), rows),
    "channels last": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 3)).to(
            memory_format=torch.channels_last
        ),
        lambda: (X(2, 3, 8, 8).to(memory_format=torch.channels_last),),
    ),
    "one parameter in two terms": (lambda: Does(lambda m, x: m.fc.weight.sum() + m.fc(x).sum(), fc=fc()), rows),
    "one layer three times": (lambda: Does(lambda m, x: m.fc(m.fc(m.fc(x))), fc=fc()), rows),
    "one gradient for two parameters": (
        lambda: Does(lambda m, x: (m.p + m.q).sum() * x.sum(), p=nn.Parameter(X(5)), q=nn.Parameter(X(5))), rows,
    ),
    "a gradient that is a view of a number": (lambda: Does(lambda m, x: m.p.sum(), p=nn.Parameter(X(5, 5))), rows),
    "a gradient that is the tangent": (lambda: Does(lambda m, x: m.p * 1.0, p=nn.Parameter(X(5, 5))), rows),
    "a transposed parameter": (tied_transposed, rows),
    "batch normalization twice": (lambda: Does(lambda m, x: m.bn(m.fc(m.bn(x))), bn=nn.BatchNorm1d(8), fc=fc()), rows),
    "batch normalization frozen": (lambda: frozen(nn.Sequential(fc(), nn.BatchNorm1d(8), fc())), rows),
    "a running mean of one's own": (Averages, rows),
    "attention with dropout": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), lambda: (X(2, 5, 8),)),
    "a padded embedding": (
        lambda: Does(lambda m, x: m.e(x).sum(1), e=nn.Embedding(10, 8, padding_idx=0)),
        lambda: (torch.randint(0, 10, (4, 5)),),
    ),
    "dropout of channels, in place": (
        lambda: Does(lambda m, x: F.dropout(F.dropout2d(m.c(x), 0.3), 0.3, True, True), c=nn.Conv2d(3, 4, 3)),
        lambda: (X(2, 3, 8, 8),),
    ),
    "dropout of everything": (lambda: Does(lambda m, x: F.dropout(m.fc(x), 1.0), fc=fc()), rows),
    "checkpoint inside": (
        lambda: Does(
            lambda m, x: torch.utils.checkpoint.checkpoint(m.part, x, use_reentrant=False),
            part=nn.Sequential(fc(), nn.Dropout(0.5), nn.Tanh()),
        ),
        rows,
    ),
    "a Function of one's own": (lambda: Does(lambda m, x: Triples.apply(m.fc(x)), fc=fc()), rows),
    "a part without gradients, draws, a literal": (lambda: Does(constant, fc=fc(), out=fc()), rows),
    "writes into slices": (lambda: Does(written, fc=fc()), rows),
    "bfloat16": (lambda: fc().to(torch.bfloat16), lambda: (X(4, 8, dtype=torch.bfloat16),)),
    "float64 with dropout": (lambda: nn.Sequential(fc(), nn.Dropout(0.1), fc()).double(), lambda: (X(4, 8).double(),)),
    "a GRU with whole vectors": (lambda: Does(lambda m, x: m.r(x)[0], r=nn.GRU(8, 32)), lambda: (X(3, 4, 8),)),
    "upsampling": (lambda: Does(lambda m, x: F.interpolate(m.c(x), scale_factor=2, mode="bilinear"),
                                c=nn.Conv2d(3, 4, 3)), lambda: (X(2, 3, 8, 8),)),
    "an input that needs a gradient": (lambda: nn.Sequential(fc(), nn.Tanh(), fc()),
                                       lambda: (X(4, 8, requires_grad=True),)),
    "two results": (lambda: Does(lambda m, x: (m.a(x), m.b(x)), a=fc(), b=fc()), rows),
}  # fmt: skip


def left_by(call: Any, model: Any, inputs: tuple[Any, ...]) -> tuple[list[Any], int]:
    torch.manual_seed(1)
    model.zero_grad()
    for tensor in inputs:
        tensor.grad = None
    with track() as memory:
        made = call(*inputs)
        ends = made if isinstance(made, tuple) else (made,)
        torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
    peak_bytes = memory.peak_bytes
    gradients = [*(p.grad for p in model.parameters()), *(tensor.grad for tensor in inputs)]
    buffers = [buffer.clone() for buffer in model.buffers()]
    return [*(end.detach() for end in ends), *gradients, *buffers, torch.get_rng_state()], peak_bytes


def equal(a: Any, b: Any) -> bool:
    return a is b if a is None or b is None else torch.equal(a, b) and a.stride() == b.stride()


@every("name", list(MODULES))
def test_a_module_gives_eager_s_bits_at_the_predicted_peak(name: str) -> None:
    make, inputs_of = MODULES[name]
    model, inputs = make(), inputs_of()
    state = copy.deepcopy(model.state_dict())
    net = checkpoint(model, inputs, memory=ACTIVATIONS, costs="roofline", effort=0.02)
    found, peak_bytes = left_by(net, model, inputs)
    model.load_state_dict(state)
    eager, _ = left_by(model, model, inputs)
    assert all(map(equal, found, eager)), name
    assert peak_bytes == net.plan.report.plan.peak_bytes, name


def keeps(self: Any, x: Any) -> Any:
    self.last = self.fc(x)
    return self.last * 2


def plain(self: Any, x: Any) -> Any:
    return self.fc(x) * self.scale[0]


REFUSED: dict[str, tuple[Callable[[], Any], Callable[[], tuple[Any, ...]], str]] = {
    "views": (lambda: Does(lambda m, x: (h := m.fc(x), h.t()), fc=fc()), rows, r"result 1 .* return a copy \(clone\)"),
    "input": (lambda: Does(lambda m, x: (m.fc(x), x), fc=fc()), lambda: (X(4, 8, requires_grad=True),), "result 1 is"),
    "rebinds": (Rebinds, rows, r"binds a tensor to 'mean'.* write into a buffer"),
    "keeps": (lambda: Does(keeps, fc=fc()), rows, "binds a tensor to 'last'"),
    "plain": (lambda: Does(plain, fc=fc(), scale=[X(8)]), rows, r"no parameter, no buffer and no input: keep it with"),
    "sparse": (lambda: Does(lambda m, x: m.e(x), e=nn.Embedding(9, 4, sparse=True)),
               lambda: (torch.randint(0, 9, (3,)),), r"modules\.py:\d+ `.*makes a sparse tensor.* make it dense"),
    "rows": (lambda: Does(lambda m, x: m.r(x)[0], r=nn.GRU(8, 8)), lambda: (X(3, 4, 8),),
             r"test_torch_modules\.py:\d+ `.* in place on a view with gaps, \[4, 8\]: .* a multiple of 32 float32"),
    "lstm": (lambda: Does(lambda m, x: m.r(x)[0], r=nn.LSTM(8, 8)), lambda: (X(3, 4, 8),),
             r"torch\.backends\.mkldnn\.flags\(enabled=False\)"),
    "mask": (lambda: Does(lambda m, x: m.fc(x)[x[:, 0] > 0], fc=fc()), rows, r"asks for the value of a tensor .*mask"),
}  # fmt: skip


@every("name", list(REFUSED))
def test_what_would_not_be_eager_s_is_refused_with_the_way_out(name: str) -> None:
    make, inputs_of, words = REFUSED[name]
    with pytest.raises((GraphError, PlannerError), match=words):
        checkpoint(make(), inputs_of(), memory=ACTIVATIONS)


def test_a_refused_model_is_left_as_it_was() -> None:
    model = Does(keeps, fc=fc())
    before = {name: id(tensor) for name, tensor in model.named_parameters()}
    with pytest.raises(GraphError):
        checkpoint(model, rows())
    assert {name: id(tensor) for name, tensor in model.named_parameters()} == before
    assert not hasattr(model, "last")
    assert not model.fc._forward_hooks
    assert model(rows()[0]).shape == (4, 8)
