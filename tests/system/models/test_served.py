"""A model on GPUs is known by its shape: what cannot be served is refused, the rest gets batch times and KV memory."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli import command_line
from penstock.errors import InputError
from penstock.planning.scenario import read_plan
from penstock.scenario.scenario import Scenario, read_scenario
from penstock.system.gpu_memory import Gpu
from penstock.system.models.served import served_model, shaped_hardware
from penstock.system.models.shape import Numbers

WORKLOAD = "workload: {poisson: {rate: 2, prompt: 500, output: 100}}\n"


def scenario(folder: Path, server: str) -> Scenario:
    path = folder / "scenario.yaml"
    path.write_text(f"{WORKLOAD}server: {server}\n")
    return read_scenario(path)


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        ({"model": "Llama-3.1-70B", "gpu": "h100"}, "131.4 GiB a GPU on 1 GPU, but h100-sxm has 79.2 GiB"),
        ({"model": "Llama-3.1-8B", "gpu": "a100", "precision": "fp8"}, "a100-sxm computes in bf16"),
        ({"model": "Llama-3.1-8B", "gpu": "h100", "precision": "fp4"}, "h100-sxm computes in bf16, fp8"),
        ({"model": "Llama-3.1-8B", "gpu": "h100", "precision": "fp7"}, "precision is 'fp7'"),
        ({"model": "Llama-3.1-8B", "gpu": "h100", "engine": "vlm"}, "engine is 'vlm'"),
        ({"model": "Llama-3.1-8B", "gpu": "h100", "tensor_parallel": 3}, "32 attention heads"),
        ({"model": "Llama-3.1-8B", "gpu": "h100", "tensor_parallel": 12}, "take a number that divides 32"),
        ({"model": "Mixtral-8x7B", "gpu": "h100", "tensor_parallel": 4, "expert_parallel": 3}, "expert_parallel is 3"),
        ({"model": "Llama-3.1-8B", "gpu": "tpu"}, "gpu is 'tpu'"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(wanted: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError) as refused:
        served_model(**wanted)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_weights_in_four_bits_alone_need_no_units_for_them() -> None:
    """gpt-oss runs on GPUs that compute in 16 bits."""
    for gpu in ("a100", "h100", "b200"):
        assert served_model("gpt-oss-120b", gpu, 2).numbers.experts == "mxfp4"


def test_a_scenario_with_a_shape_has_the_engine_its_limits_and_its_memory(tmp_path: Path) -> None:
    chosen = scenario(tmp_path, "{hardware: {model: Llama-3.1-70B, gpu: h100, tensor_parallel: 4, precision: fp8}}")
    server = chosen.server
    assert (server.policy.name, server.token_budget, server.max_batch_size) == ("vllm", 8192, 1024)
    assert isinstance(server.gpu, Gpu)
    assert server.gpu.tensor_parallel == 4
    weights = 72.7e9 / 4
    left = (0.92 - 0.02) * 79.2 * 2**30 - weights - 2**30 - 8192 * 100 * 1024
    assert server.memory is not None
    assert server.memory.tokens == pytest.approx(left / (2 * 80 * 2 * 128 * 2), rel=0.02)
    assert any("nobody measured them" in notice for notice in chosen.workload.notices)


def test_what_the_scenario_says_goes_before_what_the_engine_would_choose(tmp_path: Path) -> None:
    server = scenario(
        tmp_path,
        "{hardware: {model: Llama-3.1-8B, gpu: h100}, policy: sarathi, max_num_batched_tokens: 512, max_num_seqs: 64}",
    ).server
    assert (server.policy.name, server.token_budget, server.max_batch_size) == ("sarathi", 512, 64)
    assert server.memory is None
    sized = scenario(tmp_path, "{hardware: {model: Llama-3.1-8B, gpu: h100}, kv_tokens: 16000}").server
    assert sized.memory is not None
    assert sized.memory.tokens == 16_000
    shared = "{hardware: {model: Llama-3.1-8B, gpu: h100}, gpu: {gpu_memory_utilization: 0.5}}"
    less, more = scenario(tmp_path, shared).server, scenario(tmp_path, shared.replace("0.5", "0.9")).server
    assert less.memory is not None
    assert more.memory is not None
    assert less.memory.tokens < more.memory.tokens / 1.5


def test_a_config_beside_the_scenario_is_a_model(tmp_path: Path) -> None:
    config = {
        "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "intermediate_size": 512,
        "vocab_size": 1000,
    }  # fmt: skip
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "config.json").write_text(json.dumps(config))
    chosen = scenario(tmp_path, "{hardware: {model: small/config.json, gpu: b200, engine: sglang}}")
    assert chosen.server.policy.name == "sglang"
    assert chosen.measured is not None
    assert chosen.measured.model == "small"


@pytest.mark.parametrize(
    ("hardware", "named"),
    [
        ("{model: Llama-3.1-8B}", "server.hardware.gpu is missing"),
        ("{model: Llama-3.1-8B, gpu: h100, gpus: 2}", "server.hardware.gpus is not a key"),
        ("5", "server.hardware must be a mapping of keys"),
    ],
)
def test_a_mapping_that_is_none_of_a_shape_is_refused(tmp_path: Path, hardware: str, named: str) -> None:
    with pytest.raises(InputError, match=named):
        scenario(tmp_path, f"{{hardware: {hardware}}}")


def test_a_gpu_section_that_contradicts_the_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"those of a GPU with 79\.2 GiB"):
        scenario(tmp_path, "{hardware: {model: Llama-3.1-8B, gpu: h100}, gpu: {memory_gib: 40}}")
    with pytest.raises(InputError, match=r"Llama-3\.1-8B on h100 are those of a tensor parallelism of 1"):
        scenario(tmp_path, "{hardware: {model: Llama-3.1-8B, gpu: h100}, gpu: {tensor_parallel: 2}}")


def test_a_plan_counts_the_gpus_that_share_the_model(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    hardware = "{model: Llama-3.1-70B, gpu: h100, tensor_parallel: 4, precision: fp8}"
    path.write_text(f"{WORKLOAD}server: {{hardware: {hardware}}}\nplan: {{targets: [ttft_p99<5s]}}\n")
    (family,) = read_plan(path).space.families
    assert family.smallest.total_accelerators == 4


def test_the_command_says_shape_memory_times_and_how_far_off_they_may_be() -> None:
    line = ["hardware", "Mixtral-8x7B", "--gpu", "h200", "--tp", "2"]
    shown = CliRunner().invoke(command_line(), line)
    assert shown.exit_code == 0
    text = " ".join(shown.stdout.split())
    for part in ("46.70", "12.88 of them", "KV memory", "64 decodes and a prompt of 448", "nobody measured them"):
        assert part in text
    document = json.loads(CliRunner().invoke(command_line(), [*line, "--json"]).stdout)
    assert document["weights_bytes_per_gpu"] == pytest.approx(46.7e9, rel=0.01)
    assert document["kv_tokens"]["low"] < document["kv_tokens"]["estimate"]
    assert document["within_a_factor_of"]["tpot"] > 1


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (["--gpu", "h100"], "no model is named"),
        (["x", "--tp", "2"], "no GPU is given"),
        (["Llama-3.1-8B", "--gpu", "h100", "--engine", "orca"], "--engine is 'orca'"),
    ],
)
def test_the_command_refuses_half_a_question(line: list[str], named: str) -> None:
    shown = CliRunner().invoke(command_line(), ["hardware", *line])
    assert isinstance(shown.exception, InputError | SystemExit)
    assert named in f"{shown.exception}{shown.output}"


def test_hardware_without_kernel_times_says_so() -> None:
    said = shaped_hardware(served_model("Llama-3.1-8B", "l40")).origin
    assert "only the sheet is known, not its kernels" in said
    another = dataclasses.replace(served_model("Llama-3.1-8B", "h100"), engine="another")
    assert "taken for vLLM's" in another.caution


def test_an_engine_may_have_a_version_whose_host_and_nearest_kernels_are_taken() -> None:
    newest, older = (served_model("Llama-3.1-8B", "h100", engine=name) for name in ("vllm", "vllm-0.12.1"))
    assert (older.engine, older.version) == ("vllm", "0.12")
    assert older.host.batch_s > newest.host.batch_s == 0
    assert older.times.composition(64).linear([1.0])[0] > newest.times.composition(64).linear([1.0])[0] + 1e-3
    said = "h100-sxm, GEMMs and experts as in vLLM 0.19, the nearest to 0.12, with the host of vLLM up to 0.13"
    assert said in older.caution
    assert older.name == "Llama-3.1-8B on h100-sxm under vllm-0.12"
    assert "as in vLLM" not in newest.caution
    assert served_model("Llama-3.1-8B", "h100", engine="vllm-0.24.0+cu128").caution == newest.caution
    assert served_model("Llama-3.1-8B", "h100", engine="vllm==0.24").caution == newest.caution
    oldest = served_model("Llama-3.1-8B", "h100", engine="vllm-0.6")
    assert oldest.host.request_s > older.host.request_s
    with pytest.raises(InputError, match="times are known by version of vllm alone; give sglang"):
        served_model("Llama-3.1-8B", "h100", engine="sglang-0.5")


@pytest.mark.parametrize(
    ("model", "engine", "precision", "numbers"),
    [
        ("Kimi-K2.5", "vllm", "fp4", Numbers("bf16", "fp4", "bf16", "fp8")),
        ("Kimi-K2.5", "vllm", None, Numbers("bf16", "int4", "bf16", "bf16")),
        ("gpt-oss-120b", "vllm", "fp4", Numbers("bf16", "mxfp4", "bf16", "bf16")),
        ("Llama-3.1-70B", "vllm", "fp4", Numbers("fp4", "fp4", "fp4", "fp8")),
        ("Llama-3.1-70B", "vllm", "fp8", Numbers("fp8", "fp8", "fp8", "bf16")),
        ("Llama-3.1-70B", "tensorrt-llm", "fp8", Numbers("fp8", "fp8", "fp8", "fp8")),
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "vllm", None, Numbers("fp8", "fp8", "fp8", "fp8")),
        ("nvidia/Llama-3.1-8B-Instruct-NVFP4", "vllm", None, Numbers("fp4", "fp4", "fp4", "fp8")),
        ("RedHatAI/Llama-3.1-8B-Instruct-FP8-dynamic", "vllm", None, Numbers("fp8", "fp8", "fp8", "bf16")),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "vllm", None, Numbers("fp8-block", "fp8-block", "fp8-block")),
        ("RedHatAI/Llama-3.1-8B-Instruct-NVFP4", "vllm", None, Numbers("fp4", "fp4", "fp4", "bf16")),
    ],
)
def test_precisions_are_those_of_the_checkpoint_that_is_served(
    model: str, engine: str, precision: str | None, numbers: Numbers
) -> None:
    assert served_model(model, "b200", 8, precision=precision, engine=engine).numbers == numbers


def test_decodes_beside_prefill_read_keys_and_values_once_for_each_query_head_under_flash_attention_2() -> None:
    for gpu, again in (("a100", 0.25 * 3), ("l40s", 0.25 * 3), ("h100", 0.0), ("b200", 0.0)):
        alone, mixed = served_model("Llama-3.1-8B", gpu).times.composition(64).of_decodes
        assert mixed == pytest.approx((1 + again) * alone)
