"""A model has a name or sizes, and what it holds is what transformers makes of it."""

import importlib.util

import pytest

import penstock as ps
from penstock.measuring.profiling.engine import machine
from penstock.measuring.profiling.llama import MODELS, llama
from penstock.measuring.profiling.open_engine import open_engine


def test_sizes_change_a_named_model() -> None:
    assert llama("tiny,layers=5").layers == 5
    assert llama("hidden=768,heads=12").hidden == 768
    assert llama("tiny") == MODELS["tiny"]


@pytest.mark.parametrize(
    "wrong",
    ["huge", "tiny,depth=3", "tiny,layers=x", "tiny,layers=0", "tiny,heads=3", "tiny,kv_heads=3", "tiny,vocab=4"],
)
def test_what_is_no_model_is_refused_in_one_line(wrong: str) -> None:
    with pytest.raises(ps.InputError) as caught:
        llama(wrong)
    assert "\n" not in str(caught.value)


def test_llama_8b_has_the_published_number_of_parameters() -> None:
    assert MODELS["llama-8b"].parameters == 8_030_261_248
    assert MODELS["llama-8b"].kv_values * 2 == 131_072  # bytes of a token in bf16


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs pip install '.[test,torch]'")
def test_parameters_are_those_of_transformers() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = MODELS["tiny"]
    assert LlamaForCausalLM(LlamaConfig(**shape.config())).num_parameters() == shape.parameters


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [("tgi", {}, "unknown engine"), ("torch", {"clock": "sun"}, "unknown clock"), ("openvno", {}, "did you mean")],
)
def test_an_engine_that_is_not_known_is_refused_in_one_line(name: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(ps.InputError, match=said):
        open_engine(name, llama("tiny"), 64, **options)  # type: ignore[arg-type]


def test_facts_about_a_machine_name_no_host_and_no_user() -> None:
    import getpass
    import platform

    facts = machine(["numpy"], 2)
    assert {"processor", "cores", "threads", "python", "numpy"} == set(facts)
    said = " ".join(map(str, facts.values()))
    assert platform.node() not in said
    assert getpass.getuser() not in said.split()
