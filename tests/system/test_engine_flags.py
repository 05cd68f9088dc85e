"""A flag of an engine that a scenario does not have is explained, and no key of another meaning suggested."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import penstock as ps
from penstock.scenario.scenario import build
from penstock.scenario.server import GpuSection, HardwareSection, MemorySection, ServerSection
from penstock.system.engine import Engine, explained, kinds
from penstock.system.engine_flags import _GIVEN, _NOT_MODELLED
from penstock.system.engines import ENGINES

SHAPE = {"model": "Mixtral-8x7B", "gpu": "h100-sxm", "tensor_parallel": 8}
WORKLOAD = {"poisson": {"rate": 2, "prompt": 100, "output": 50}}
SETTINGS = {key: setting for engine in ENGINES.values() for key, setting in engine.known().items()}
USUAL = {key: value for engine in ENGINES.values() for key, value in engine.options.items()}
SAMPLES = {key: value for key, value in USUAL.items() if value not in ((), "", None)} | {
    **SHAPE, "expert_parallel": 8, "precision": "fp8", "kv_precision": "fp8", "memory_gib": 80, "router": "random",
    "gpu_memory_utilization": 0.8, "too_long": "drop", "watermark": 0.01, "prefix_caching": False, "order": "priority",
    "scheduling_policy": "priority", "drafts": 3, "draft_lookahead": 3, "acceptance": 0.7, "method": "eagle",
    "new_token_ratio": 0.7, "min_new_token_ratio": 0.1, "num_nextn_predict_layers": 1, "tokens": 9999,
    "admission": "input",
}  # fmt: skip
"""What a hint leaves out; where nothing stands here, a number."""

FLAGS = [
    flag
    for line in Path(__file__).with_name("engine_flags.txt").read_text("utf-8").splitlines()
    if not line.startswith("#")
    for flag in line.split()
]
"""All that the command lines of vLLM 0.33.0 and SGLang 0.5.23 have, short names too (but -n and -r)."""


def built(change: dict[str, Any], place: str = "server", policy: str = "vllm", folder: Path = Path()) -> None:
    """Build a scenario with keys put into its server or a part of it, or into a pool of a network."""
    server: dict[str, Any] = {"hardware": dict(SHAPE), "policy": policy}
    if policy not in ("vllm", "sglang"):
        server["token_budget"] = 8192
    part = server if place in ("server", "pool") else server.setdefault(place, {})
    for key, value in change.items():
        part[key] = part[key] | value if isinstance(part.get(key), dict) else value
    workload, simulate = server.pop("workload", WORKLOAD), server.pop("simulate", {})
    if place == "pool":
        network = {"pools": {"p": server}, "workflows": {"w": {"workload": workload, "pool": "p"}}}
        build({"network": network, "simulate": simulate}, folder)
    else:
        build({"workload": workload, "server": server, "simulate": simulate}, folder)


def refusal(change: dict[str, Any], place: str = "server", policy: str = "vllm") -> str:
    with pytest.raises(ps.InputError) as caught:
        built(copy.deepcopy(change), place, policy)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def filled(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a scenario with values where a hint leaves them out."""
    return {
        key: filled(value) if isinstance(value, dict) else SAMPLES.get(key, 64) if value == "..." else value
        for key, value in part.items()
    }


@pytest.mark.parametrize(
    "flag",
    dict.fromkeys(
        [flag for flags in _GIVEN.values() for flag in flags.split()]
        + [name for key, setting in SETTINGS.items() for name in (key, setting.alias) if name]
        + ["speculative_num_steps"]
    ),
)
def test_what_a_hint_says_can_be_put_into_a_scenario(flag: str, tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text(
        "def function(queue, limits, params):\n    return 0, queue.decoding, 1\n", "utf-8"
    )
    said = explained(flag)
    assert said is not None
    parts = [filled(yaml.safe_load(f"{{{text}}}")) for text in re.findall("`([^`]+: [^`]+)`", said)]
    assert parts
    for part in parts:
        place = "pool" if {"replicas", "router"} & set(part) else "server"
        policy = {"admission": "sarathi", "max_queued_requests": "sglang"}.get(flag, "vllm")
        built(part, place, part.get("policy", policy), tmp_path)


def test_every_flag_of_the_engines_is_answered_without_a_guess() -> None:
    known = ServerSection.known_keys()
    answers = {flag: ServerSection.unknown("server", flag) for flag in FLAGS if flag not in known}
    assert len(answers) > 800
    assert {flag: said for flag, said in answers.items() if not explained(flag) or "did you mean" in said} == {}


@pytest.mark.parametrize("table", [_GIVEN, _NOT_MODELLED])
def test_no_flag_stands_twice_in_a_table(table: dict[str, str]) -> None:
    words = [word for words in table.values() for word in words.split()]
    assert len(set(words)) == len(words)


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("max_num_queued_tokens", "`queue_limit: {max_num_queued_tokens: ...}`"),
        ("num_scheduler_steps", "vLLM 0.33 has it no more"),
        ("kv_cache_dtype", "`hardware: {model: ..., gpu: ..., kv_precision: ...}`"),
        ("schedule_conservativeness", "`policy: sglang, policy_params: {schedule_conservativeness: ...}`"),
        ("data_parallel_size", "in a network a pool has `replicas: ...`"),
        ("no_enable_prefix_caching", "`memory: {prefix_caching: ...}`"),
        ("enforce_eager", "it changes the time of a batch"),
        ("enable_what_comes_next", "it is not modelled"),
    ],
)
@pytest.mark.parametrize("place", ["server", "hardware", "gpu", "memory", "policy_params", "pool"])
def test_a_flag_has_one_answer_wherever_it_stands_and_however_it_is_spelled(flag: str, said: str, place: str) -> None:
    dashed = flag.replace("_", "-")
    for spelled in (flag, dashed, f"--{dashed}"):
        assert said in refusal({spelled: 8}, place)


def test_a_policy_that_takes_numbers_explains_flags_too() -> None:
    assert "kv_precision" in refusal({"kv_cache_dtype": "fp8"}, "policy_params", "sarathi")
    assert refusal({"three": 3}, "policy_params", "sarathi").endswith("give a list")


def test_short_names_are_taken_where_they_belong() -> None:
    hardware = HardwareSection.model_validate({"model": "m", "gpu": "g", "--tp": 8, "ep-size": 4})
    assert (hardware.tensor_parallel, hardware.expert_parallel) == (8, 4)
    built({"--max-num-seqs": 8})
    assert "says again what another key of server says" in refusal({"--max-num-seqs": 8, "max-num-seqs": 9})
    assert "says again what another key of server says" in refusal({"--max-num-seqs": 8, "max_running_requests": 9})


@pytest.mark.parametrize("key", ["max_len", "num_gpus", "max_prefill_len", "kv_cache"])
def test_a_key_that_is_only_somewhat_alike_is_not_suggested(key: str) -> None:
    assert "did you mean" not in refusal({key: 8})


@pytest.mark.parametrize("section", [ServerSection, HardwareSection, GpuSection, MemorySection])
def test_a_slip_of_the_pen_is_not_taken_for_a_flag(section: type[ServerSection]) -> None:
    slips = {key[:at] + key[at + 1 :] for key in section.known_keys() for at in range(3, len(key)) if len(key) > 5}
    slips.discard("too_log")
    answers = {slip: section.unknown("server", slip) for slip in slips}
    assert {slip: said for slip, said in answers.items() if "did you mean" not in said} == {}


def test_a_value_in_place_of_a_section_is_answered_with_its_keys() -> None:
    said = refusal({"gpu": 80})
    assert said.startswith("server.gpu must be a mapping of keys (a100, offline, model, memory_gib, tensor_parallel, ")


def test_a_scheduler_that_somebody_derives_from_an_engine_is_in_no_hint() -> None:
    kind = type(ENGINES["vllm"])
    derived = type("Derived", (kind,), {"name": "derived"})
    beside = type("Beside", (Engine,), {"name": "beside"})
    assert {derived, beside}.isdisjoint(kinds())
    assert kinds() == [type(engine) for engine in ENGINES.values()]
