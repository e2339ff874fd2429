"""Files as PyTorch's two exporters write them, beside the modules that they are of and a runtime that runs them.

`python -m bench importers` holds more of them to the same, at published sizes too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from extras import imported

import planner
from bench.exports import FAMILIES, Exporter, Form, write
from bench.importers import OPSET, folded, values_run, values_unlike, weights_unlike
from bench.saved import saved, saved_eagerly
from planner.lowering.onnx.importer import from_onnx

for library in ("torch", "torchvision", "transformers", "onnxscript", "onnxruntime"):
    imported(library)

Written = Callable[..., tuple[Path, Any]]
# Of both exporters here what they write most unlike each other; `bench importers` has all.
BY_DYNAMO = ("vit", "unet", "llama")
TRAINED = [(name, "torchscript") for name in FAMILIES if not FAMILIES[name].held_out]
TRAINED += [(name, "dynamo") for name in BY_DYNAMO]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    def call(name: str, exporter: Exporter, form: Form) -> tuple[Path, Any]:
        path = tmp_path / f"{name}.onnx"
        return path, write(FAMILIES[name], path, exporter=exporter, form=form, opset=OPSET)

    return call


@pytest.mark.parametrize(("name", "exporter"), TRAINED)
def test_a_training_export_is_the_step_that_pytorch_trains(written: Written, name: str, exporter: Exporter) -> None:
    """At a free batch: the weights by name and bytes, every value of a run, what is saved, and a plan that runs."""
    path, module = written(name, exporter, "training")
    inputs, named = FAMILIES[name].inputs(4, False), FAMILIES[name].named
    assert weights_unlike(from_onnx(path, batch=1, training="forward"), module) == []
    step = from_onnx(path, batch=4)
    assert weights_unlike(step, module) == []
    run = values_run(path, inputs)
    assert len(run) > 30
    assert values_unlike(path, run, batch=4) == []
    assert saved(step).activations == pytest.approx(saved_eagerly(module, inputs, named=named), rel=0.005)
    plan = planner.optimize(step, budget="80%", effort=0.1, least=False)
    assert plan.report.plan.arena_bytes <= 0.8 * plan.report.keep_all.peak_bytes
    plan.execute()


def test_an_export_for_inference_is_the_folded_net_and_says_so(written: Written) -> None:
    """A stem, four blocks of two convolutions and three on shortcuts; each gets a bias from its normalization."""
    path, module = written("resnet18", "torchscript", "eval")
    net, inputs = folded(module), FAMILIES["resnet18"].inputs(4, False)
    step = from_onnx(path, batch=4)
    sizes = sorted(step.nodes[name]["nbytes"] for name, kind in step.nodes(data="kind") if kind == "parameter")
    assert sizes == sorted(parameter.nbytes for parameter in net.parameters())
    assert saved(step).activations == pytest.approx(saved_eagerly(net, inputs, named=False), rel=0.005)
    (note,) = step.graph["source"]["notes"]
    assert "batch normalization was folded into 12 layers" in note


@pytest.mark.parametrize(("name", "weights"), [("efficientnet", 57), ("t5", 47)])
def test_families_that_no_rule_was_made_for_have_their_weights(written: Written, name: str, weights: int) -> None:
    """Held out when the rule for weights was found; by both exporters, see `bench importers`."""
    path, module = written(name, "torchscript", "training")
    assert len(list(module.parameters())) == weights
    assert weights_unlike(from_onnx(path, batch=4, training="forward"), module) == []
