"""Options of zoo models as text: on the command line, in its errors, and in what `planner zoo` lists."""

from __future__ import annotations

import json
from typing import Any

import pytest
from offenders import every

from planner import zoo
from planner.lowering.schema import lower
from planner.zoo.model_options import Option, options_of


@every("name", zoo.MODELS)
def test_every_option_of_every_model_can_be_given_as_text(name: str) -> None:
    for option in zoo.MODELS[name].typed_options.values():
        if option.default is not None:
            text = ",".join(option.default) if option.type == "list" else str(option.default)
            assert option.parse(text) == option.default
        elif option.nullable:
            assert option.parse("none") is None


@every(("given", "built"), [
    (["dtype=bfloat16", "master_weights=yes"], {"dtype": "bfloat16", "master_weights": True}),
    (["fused_attention=false", "dropout=0.25"], {"fused_attention": False, "dropout": 0.25}),
    (["loss_chunks=4", "tokens=16"], {"loss_chunks": 4, "tokens": 16}),
])  # fmt: skip
def test_an_option_builds_what_the_argument_builds(run, given: list[str], built: dict[str, Any]) -> None:
    sizes = {"hidden": 8, "heads": 2, "vocabulary": 11}
    dims = (f"--dim={name}={n}" for name, n in sizes.items())
    arguments = ["gpt:1", "--batch", "2", *dims, *(f"--option={item}" for item in given)]
    expected = lower(zoo.gpt(1, batch=2, **{**sizes, **built}))
    written = json.loads(run("zoo", *arguments, "-f", "-o", "g.json", "--json").out)
    assert written["fingerprint"] == expected.fingerprint != lower(zoo.gpt(1, batch=2, **sizes)).fingerprint
    estimated = json.loads(run("estimate", *arguments, "--json").out)
    assert estimated["rows"][0]["footprint"]["fingerprint"] == expected.fingerprint


@every(("arguments", "said"), [
    (["gpt:1", "--option", "dtype=fp8"], "--option dtype=fp8: dtype of gpt is one of float32, bfloat16, float16"),
    (["gpt:1", "--option", "fused_attention=maybe"], "is true or false"),
    (["gpt:1", "--option", "dropout=nan"], "is a number"), (["gpt:1", "--option", "dropout=1e999"], "is a number"),
    (["gpt:1", "--option", "tokens=1.5"], "is an int"), (["gpt:1", "--option", "tokens=\u0663"], "is an int"),
    (["gpt:1", "--option", f"tokens={'9' * 5000}"], "is an int"),
    (["gpt:1", "--option", "flash=1"], "dtype=float32|bfloat16|float16"),
    (["gpt:1", "--option", "tokens"], "write NAME=VALUE"), (["gpt:1", "--option", "=3"], "write NAME=VALUE"),
    (["gpt:1", "--option", "tokens=8", "--option", "tokens=9"], "twice"),
    (["gpt:1", "--option", "tokens=8", "--dim", "tokens=9"], "give one"),
    (["gpt:1", "--option", "batch=8"], "write --batch"), (["gpt:1", "--option", "training=no"], "write --inference"),
    (["gpt:1", "--dim", "fused_attention=1"], "write --option fused_attention=bool"),
    (["chain:4", "--option", "reads=in,up"], "some of in, out"),
    (["nosuch.json", "--option", "a=b"], "for zoo models"),
])  # fmt: skip
def test_an_option_that_cannot_be_is_one_line_that_says_what_can(run, arguments: list[str], said: str) -> None:
    batch = [] if arguments[0].startswith(("chain", "nosuch")) else ["--batch", "1"]
    answer = run("inspect", *arguments, *batch)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err
    assert answer.err.startswith("error: ")
    assert len(answer.err.splitlines()) == 1
    assert len(answer.err) < 500


@every(("short", "dtype"), [
    ("bf16", "bfloat16"), ("BF16", "bfloat16"), ("fp16", "float16"), ("half", "float16"), ("fp32", "float32"),
    ("float", "float32"), ("Float32", "float32"),
])  # fmt: skip
def test_a_dtype_has_the_names_that_frameworks_give_it(short: str, dtype: Any) -> None:
    sizes: dict[str, Any] = {"batch": 1, "tokens": 2, "hidden": 4, "heads": 2, "vocabulary": 3}
    assert lower(zoo.gpt(1, **sizes, dtype=short)).ops == lower(zoo.gpt(1, **sizes, dtype=dtype)).ops  # type: ignore[arg-type]
    option = zoo.MODELS["gpt"].typed_options["dtype"]
    assert lower(zoo.gpt(1, **sizes, dtype=option.parse(short))) == lower(zoo.gpt(1, **sizes, dtype=dtype))
    assert (option.choices, str(option)) == (("float32", "bfloat16", "float16"), "dtype=float32|bfloat16|float16")


def test_an_option_out_of_range_is_refused_by_the_model(run) -> None:
    answer = run("inspect", "gpt:1", "--batch", "1", "--option", "dropout=2")
    assert (answer.code, answer.out) == (3, "")
    assert "dropout is 2.0" in answer.err


def test_an_option_is_for_the_graph_of_a_plan(run) -> None:
    run("optimize", "chain:4", "-o", "plan.json")
    assert "--option is for --graph" in run("verify", "plan.json", "--option", "nbytes=2").err


def test_the_zoo_lists_what_its_options_take(run) -> None:
    assert "    dtype=float32|bfloat16|float16\n" in run("zoo", "gpt").out
    models = {model["name"]: model for model in json.loads(run("zoo", "--json").out)["models"]}
    types = {option["name"]: option for option in models["gpt"]["types"]}
    assert list(types) == models["gpt"]["options"]
    assert (types["dtype"]["type"], types["dtype"]["choices"]) == ("str", ["float32", "bfloat16", "float16"])
    assert (types["dropout"]["type"], types["dropout"]["default"]) == ("float", 0.0)
    assert types["fused_attention"]["default"] is True


def test_an_option_of_a_type_that_has_no_text_is_an_error_of_the_author() -> None:
    def model(*, shape: dict[str, int]) -> None: ...

    with pytest.raises(TypeError, match="shape"):
        options_of(model, ("shape",))


def test_none_is_a_value_where_the_signature_says_so() -> None:
    assert Option("features", "int", None, nullable=True).parse("None") is None
    with pytest.raises(ValueError, match=r"an int$"):
        Option("hidden", "int", 4).parse("none")


def test_the_zoo_lists_its_aliases_and_what_they_stand_for(run) -> None:
    listed = json.loads(run("zoo", "--json").out)["aliases"]
    assert [alias["name"] for alias in listed] == list(zoo.ALIASES)
    medium = next(alias for alias in listed if alias["name"] == "gpt2-medium")
    assert (medium["spec"], medium["options"]["hidden"]) == ("gpt:24", 1024)
    assert "gpt:24 hidden=1024 heads=16" in " ".join(run("zoo").out.split())


def test_an_alias_takes_the_options_of_its_model_in_any_case(run) -> None:
    sizes = ("--option=tokens=4", "--option=hidden=8", "--option=heads=2", "--option=vocabulary=11")
    written = run("zoo", "GPT2", "--batch=2", *sizes, "--option=dropout=0", "-f", "-o", "g.json", "--json")
    expected = zoo.gpt(12, batch=2, tokens=4, hidden=8, heads=2, vocabulary=11, positions=1024, activation="gelu_new")
    assert json.loads(written.out)["fingerprint"] == lower(expected).fingerprint
    assert json.loads(written.out)["graph"] == "gpt2"
    assert run("inspect", "ResNet18", "--batch=1", "--option=image=32").code == 0


@every(("arguments", "code", "said"), [
    ("inspect resnet50x --batch 1", 3, "no file 'resnet50x', and no zoo model of that name; did you mean 'resnet50'"),
    ("inspect resnt:50 --batch 1", 3, "no module:callable; did you mean 'resnet:50'?"),
    ("zoo rsnet50 -o g.json", 3, "unknown model 'rsnet50'; did you mean 'resnet50'?"),
    ("inspect resnet50", 2, "resnet50 needs --batch"),
    ("inspect resnet50 --batch 1 --option heads=2", 2, "resnet has no such option"),
])  # fmt: skip
def test_a_name_that_is_wrong_is_one_line_with_the_nearest(run, arguments: str, code: int, said: str) -> None:
    answer = run(*arguments.split())
    assert (answer.code, answer.out) == (code, "")
    assert said in answer.err
    assert len(answer.err.splitlines()) == 1
