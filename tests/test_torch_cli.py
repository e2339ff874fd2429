"""A model of PyTorch on the command line: `module:callable` that returns (model, inputs, loss)."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.extras import imported

torch = imported("torch")

NET = """
import torch
from torch import nn

def make(batch=8, width=16):
    print("made")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, width), nn.Tanh(), nn.Dropout(0.5), nn.Linear(width, 4))
    return net, (torch.randn(batch, 16), torch.randint(0, 4, (batch,))), nn.functional.cross_entropy

def wider():
    return make(width=17)

def either(training=True):
    return make()

def alone():
    net, (x, _), _ = make()
    return net, x

def wrong():
    return make()[0]
"""


@pytest.fixture
def folder(run: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "mynet.py").write_text(NET)
    monkeypatch.delitem(sys.modules, "mynet", raising=False)
    return tmp_path


def test_a_plan_of_a_model_is_made_and_then_held_to_what_it_claims_by_running_it(run: Any, folder: Any) -> None:
    assert run("optimize", "mynet:make", "-o", "plan.json").code == 0
    answer = run("verify", "plan.json", "--model", "mynet:make")
    assert answer.code == 0, answer.err
    assert "values are equal to the bit" in answer.out
    assert "as predicted, to the byte" in answer.out
    found = json.loads(run("verify", "plan.json", "--model", "mynet:make", "--json").out)["model"]
    assert found["differing"] == []
    assert found["tracked_bytes"] == found["predicted_bytes"]
    other = run("verify", "plan.json", "--model", "mynet:wider")
    assert other.code == 3
    assert "the plan of another step" in other.err


def test_a_model_is_estimated_inspected_and_refused_in_one_line(run: Any, folder: Any) -> None:
    inputs = 4 * 32 * 16 + 8 * 32  # a batch of 32 float32 rows and int64 labels
    states = 2 * 4 * (16 * 16 + 16 + 4 * 16 + 4)  # of Adam, for each weight and bias
    answer = run("estimate", "mynet:make", "--batch", "32", "--optimizer", "adam", "--json").out
    assert f'"inputs":{inputs}' in answer
    assert f'"optimizer_state":{states}' in answer
    assert run("inspect", "mynet:alone", "--device", "t4").code == 0
    for command, code, words in (
        (("optimize", "mynet:wrong"), 3, "returned Sequential, expected"),
        (("estimate", "mynet:either", "--inference"), 2, "forward and backward; there is no other"),
    ):
        answer = run(*command)
        assert answer.code == code
        assert words in answer.err
