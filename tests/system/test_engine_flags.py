"""A flag of an engine that a scenario does not have is explained, and no key of another meaning suggested."""

from pathlib import Path

import pytest

import penstock as ps
from penstock.scenario.scenario import build
from penstock.scenario.server import ServerSection
from penstock.system.engine_flags import EXPLAINED

WORKLOAD = {"poisson": {"rate": 2, "prompt": 100, "output": 50}}
SERVER = {"hardware": "codellama-34b-a100-tp1", "token_budget": 512, "policy": "vllm"}


def refusal(key: str) -> str:
    with pytest.raises(ps.InputError) as caught:
        build({"workload": WORKLOAD, "server": SERVER | {key: 8}}, Path())
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("context-length", "lengths come from the workload"),
        ("max_seq_len", "lengths come from the workload"),
        ("tensor_parallel_size", "choose `hardware`"),
        ("tp", "choose `hardware`"),
        ("dp", "one scenario is one replica"),
        ("model", "gpu: {model: ..., memory_gib: 80}"),
        ("gpu_memory_utilization", "gpu: {memory_gib: 80, gpu_memory_utilization: ...}"),
        ("mem-fraction-static", "gpu_memory_utilization"),
        ("kv_cache_free_gpu_memory_fraction", "gpu_memory_utilization"),
        ("kv_cache_dtype", "changes the time of a batch"),
        ("enable_prefix_caching", "memory: {prefix_caching: true}"),
        ("seed", "simulate: {seed: ...}"),
    ],
)
def test_what_a_flag_would_be_here_is_said(key: str, said: str) -> None:
    assert said in refusal(key)


@pytest.mark.parametrize("key", EXPLAINED)
def test_a_flag_that_is_known_is_answered_without_a_guess(key: str) -> None:
    assert key not in ServerSection.known_keys()
    assert "did you mean" not in refusal(key)


@pytest.mark.parametrize(
    "key", ["max_len", "num_gpus", "max_num_partial_prefills", "max_loras", "max_prefill_len", "kv_cache"]
)
def test_a_key_that_is_only_somewhat_alike_is_not_suggested(key: str) -> None:
    assert "did you mean" not in refusal(key)


@pytest.mark.parametrize(
    ("key", "meant"), [("tokenbudget", "token_budget"), ("max_num_seq", "max_num_seqs"), ("polcy", "policy")]
)
def test_a_slip_of_the_pen_is_still_understood(key: str, meant: str) -> None:
    assert f"did you mean '{meant}'?" in refusal(key)


def test_a_value_in_place_of_a_section_is_answered_with_its_keys() -> None:
    with pytest.raises(ps.InputError, match=r"server.gpu must be a mapping of keys \(memory_gib, .*, model, "):
        build({"workload": WORKLOAD, "server": SERVER | {"gpu": 80}}, Path())
