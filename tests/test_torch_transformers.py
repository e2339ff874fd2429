"""Models of transformers, as they are, from configurations: equal to the bit, at the predicted peak to the byte."""

from __future__ import annotations

from typing import Any

import pytest

from planner import MemoryModel, PlannerError
from tests.extras import imported

torch = imported("torch")
transformers = imported("transformers")

from planner.torch import checkpoint  # noqa: E402
from tests.training import Trial  # noqa: E402

SIZES = {"vocab_size": 128, "max_position_embeddings": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
WIDE = {**SIZES, "hidden_size": 32, "intermediate_size": 64}


def gpt2() -> Any:
    config = transformers.GPT2Config(vocab_size=128, n_positions=32, n_layer=2, n_head=2, n_embd=32)
    return transformers.GPT2LMHeadModel(config)


def bert() -> Any:
    return transformers.BertForMaskedLM(transformers.BertConfig(**WIDE))


def llama() -> Any:
    config = transformers.LlamaConfig(**WIDE, num_key_value_heads=1, attention_dropout=0.1)
    return transformers.LlamaForCausalLM(config)


@pytest.mark.parametrize("make", [gpt2, bert, llama])
def test_a_model_of_transformers_trains_unmodified_with_labels(make: Any) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = make().train()
    ids = torch.randint(0, 128, (4, 32))
    batch = {"input_ids": ids, "labels": ids}
    trial = Trial(model, ())
    eager = trial.of(lambda: model(**batch).loss)
    for budget in (eager.peak_bytes // 2, None):
        net = checkpoint(
            model, batch, loss=lambda made: made.loss, budget=budget, memory=MemoryModel(scope="activations"),
            effort=0.02, costs="roofline",
        )  # fmt: skip
        found = trial.of(lambda net=net: net(**batch))
        assert found.differs_from(eager) == []
        assert found.peak_bytes == net.plan.report.plan.peak_bytes
    torch.set_num_threads(threads)


def test_a_cache_among_the_results_is_refused_with_the_way_out() -> None:
    ids = torch.randint(0, 128, (4, 32))
    with pytest.raises(PlannerError, match=r"returns a DynamicCache.*loss=lambda result: result\.loss"):
        checkpoint(gpt2(), {"input_ids": ids, "labels": ids})
