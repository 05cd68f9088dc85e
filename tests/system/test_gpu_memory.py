"""KV memory follows from a model and its GPUs, for the schedulers of engines and for no other policy."""

import dataclasses
import json
from pathlib import Path

import pytest

import penstock as ps
from penstock.capacity.candidates import candidates
from penstock.system.engines import ENGINES
from penstock.system.gpu_memory import GIB, Gpu
from penstock.system.models.catalogue import catalogue
from penstock.system.models.gpus import sheet_of
from penstock.system.presets import HARDWARE

SHARED = Path(__file__).parents[3] / "shared" / "data"
LINEAR = ps.Affine(0.01, 1e-4)
TWO = Gpu("Llama-2-70B", 79.2, 2)
WORKLOAD = ps.Workload.poisson(0.2, ps.Geometric(300, max=2_000), ps.Geometric(100, max=1_000))


def tokens(gpu: Gpu, engine: str, budget: int = 2_048) -> int:
    return gpu.kv_tokens(ENGINES[engine], budget).tokens


def test_the_estimate_is_what_is_left_over_the_bytes_of_a_token() -> None:
    left = 0.9 * 79.2 * GIB - 137.95e9 / 2 - GIB - 2_048 * 100 * 1_024
    assert tokens(TWO, "vllm") == int(left / (2 * 80 * 4 * 128 * 2))


@pytest.mark.parametrize(
    ("gpu", "engine", "budget", "logged"),
    [
        (Gpu("Llama-3.1-8B", 25_250_627_584 / GIB, 1), "vllm", 2_048, 41_408),  # vLLM 0.19, RTX 4090
        (Gpu("Llama-2-7B", 79.2, 1), "vllm", 4_096, 16 * 7_351),  # vLLM pull request 2031, A100
        (Gpu("Llama-3-8B", 47.54, 1), "vllm", 8_192, 16 * 13_248),  # vLLM pull request 4454, A6000
    ],
)
def test_what_engines_logged_lies_within_the_estimate(gpu: Gpu, engine: str, budget: int, logged: int) -> None:
    known = gpu.kv_tokens(ENGINES[engine], budget)
    assert known.low < logged < known.high
    assert known.tokens == pytest.approx(logged, rel=0.02)


def test_more_gpus_more_memory_and_a_smaller_budget_leave_more_tokens() -> None:
    for engine in ("vllm", "sglang", "tensorrt-llm"):
        known = tokens(TWO, engine)
        assert tokens(dataclasses.replace(TWO, tensor_parallel=4), engine) > 2 * known
        assert tokens(dataclasses.replace(TWO, memory_gib=90), engine) > known
        assert tokens(TWO, engine, 512) >= known
        assert tokens(dataclasses.replace(TWO, utilization=0.97), engine) > known


def test_sglang_leaves_ten_gb_and_more_of_a_large_gpu_to_everything_else() -> None:
    reserved = (512 + 1.5 * 8_192 + 2 * 256 + 128 * 2) * 2**20
    assert tokens(TWO, "sglang", 8_192) == int((79.2 * GIB - reserved - 137.95e9 / 2) / (2 * 80 * 4 * 128 * 2))
    assert tokens(TWO, "sglang", 2_048) == int((69.2 * GIB - 137.95e9 / 2) / (2 * 80 * 4 * 128 * 2))


def test_heads_are_copied_where_there_are_more_gpus() -> None:
    eight, sixteen = (TWO.memory.kv_bytes(count) for count in (8, 16))
    assert eight == sixteen == 2 * 80 * 128 * 2


@pytest.mark.parametrize("name", ["meta-llama/Llama-2-70b-hf", "llama-2-70B", "meta-llama/Llama-2-70b-chat-hf"])
def test_a_model_is_known_by_its_name_on_a_hub(name: str) -> None:
    assert Gpu(name, 80, 2).model == "Llama-2-70B"


def test_the_share_that_was_taken_stands_beside_the_estimate() -> None:
    for engine, utilization, words in (
        ("vllm", None, "GPUs of 79.2 GiB at gpu_memory_utilization 0.92."),
        ("vllm", 0.9, "at gpu_memory_utilization 0.9."),
        ("sglang", 0.85, "at mem_fraction_static 0.85."),
        ("sglang", None, "GPUs of 79.2 GiB."),
    ):
        gpu = Gpu("Llama-2-70B", 79.2, 2, utilization)
        assert words in str(ps.Server(LINEAR, 2_048, 64, policy=engine, gpu=gpu).kv_note)


def test_weights_that_leave_no_room_are_refused() -> None:
    with pytest.raises(ps.InputError, match=r"Llama-2-70B \(137.* would not start; take more GPUs"):
        ps.Server(LINEAR, 2_048, policy="vllm", gpu=dataclasses.replace(TWO, tensor_parallel=1))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"model": "Lama-2-70B"}, "did you mean 'Llama-2-70B'"),
        ({"memory_gib": 0}, "gpu.memory_gib is 0"),
        ({"tensor_parallel": 0}, "gpu.tensor_parallel is 0"),
        ({"utilization": 1.2}, "gpu_memory_utilization is 1.2"),
    ],
)
def test_what_no_gpu_can_be_is_refused(more: dict[str, object], said: str) -> None:
    with pytest.raises(ps.InputError, match=said):
        Gpu(**({"model": "Llama-2-70B", "memory_gib": 80, "tensor_parallel": 2} | more))  # type: ignore[arg-type]


def test_the_memory_of_an_engine_follows_its_policy_and_its_token_budget() -> None:
    server = ps.Server(LINEAR, 2_048, 128, policy="vllm", gpu=TWO)
    assert server.memory == ps.Memory(tokens(TWO, "vllm") // 16)
    assert "(estimated)" in server.limits
    larger = dataclasses.replace(server, token_budget=8_192)
    assert larger.memory == ps.Memory(tokens(TWO, "vllm", 8_192) // 16)
    assert larger.memory.tokens < server.memory.tokens  # type: ignore[union-attr]
    assert server.with_policy("tensorrt-llm").memory == ps.Memory(tokens(TWO, "tensorrt-llm") // 32, 32)


def test_a_policy_of_the_paper_has_no_limit_unless_it_takes_the_place_of_an_engine() -> None:
    paper = ps.Server(LINEAR, 2_048, 128, gpu=TWO)
    assert paper.memory is None
    assert paper.kv_note is None
    engine = paper.with_policy("vllm")
    assert engine.memory is not None
    assert engine.with_policy("orca").memory == engine.memory


def test_the_rules_of_a_memory_stay_where_its_size_follows_from_the_gpu() -> None:
    rules = ps.Memory(1, 32, too_long="drop", prefix_caching=True, estimated=True)
    server = ps.Server(LINEAR, 2_048, policy="vllm", memory=rules, gpu=TWO)
    assert server.memory == dataclasses.replace(rules, blocks=tokens(TWO, "vllm") // 32)


def test_a_gpu_and_a_number_of_tokens_are_not_both_given() -> None:
    for more in ({"kv_tokens": 20_000}, {"memory": ps.Memory(1_250)}):
        with pytest.raises(ps.InputError, match=r"gpu and a memory of 1,250 blocks .* give one of them"):
            ps.Server(LINEAR, 2_048, policy="vllm", gpu=TWO, **more)  # type: ignore[arg-type]
    known = ps.Server(LINEAR, 2_048, policy="vllm", gpu=TWO)
    with pytest.raises(ps.InputError, match="give one of them"):
        dataclasses.replace(known, memory=ps.Memory(1_000))
    assert dataclasses.replace(known, memory=ps.Memory(1_000), gpu=None).memory == ps.Memory(1_000)


def test_a_policy_in_the_place_of_an_engine_has_the_memory_of_that_engine_at_its_own_token_budget() -> None:
    engine = ps.Server(LINEAR, 2_048, 128, policy="vllm", gpu=TWO)
    orca = engine.with_policy("orca")
    assert orca.kv_estimate == engine.kv_estimate
    assert orca.kv_note == engine.kv_note
    assert "(estimated)" in orca.limits
    assert dataclasses.replace(orca, token_budget=8_192).memory == ps.Memory(tokens(TWO, "vllm", 8_192) // 16)
    without = dataclasses.replace(orca, gpu=None)
    assert without.memory == engine.memory
    assert "(estimated)" not in without.limits


def test_candidates_have_the_memory_of_their_own_token_budget() -> None:
    server = ps.Server(LINEAR, 2_048, 128, policy="vllm", gpu=TWO)
    tried = candidates(WORKLOAD, server, ["orca"]).servers
    budgets = {one.token_budget for one in tried if one.policy.name == "orca"}
    assert budgets - {2_048}
    for one in tried:
        assert one.memory == ps.Memory(tokens(TWO, "vllm", one.token_budget) // 16)


def test_theory_sees_the_same_server_as_with_the_number_of_blocks() -> None:
    known = ps.Server(LINEAR, 2_048, 128, policy="vllm", gpu=TWO)
    blocks = ps.Server(LINEAR, 2_048, 128, policy="vllm", kv_blocks=known.memory.blocks)  # type: ignore[union-attr]
    assert ps.certify(WORKLOAD, known).as_dict() == ps.certify(WORKLOAD, blocks).as_dict()
    assert ps.memory_estimate(WORKLOAD, known) == ps.memory_estimate(WORKLOAD, blocks)


def test_an_engine_without_a_limit_says_so_and_one_with_a_number_says_nothing() -> None:
    assert "no limit" in str(ps.Server(LINEAR, 2_048, policy="sglang").kv_note)
    assert ps.Server(LINEAR, 2_048, policy="sglang", kv_tokens=9_000).kv_note is None
    assert "or model and GPU" in str(ps.Server(LINEAR, 2_048, policy="sglang").kv_note)


def test_every_preset_knows_its_model_its_gpu_and_its_year() -> None:
    for entry in HARDWARE.values():
        assert entry.model in catalogue()
        sheet = sheet_of(entry.accelerator)
        assert sheet is not None
        assert entry.gpu == Gpu(entry.model, sheet.memory_gib, entry.tensor_parallel or 1)
        assert entry.year in (2024, 2025, 2026)


@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared/data")
def test_shapes_are_those_that_their_makers_publish() -> None:
    compared = 0
    for file in (SHARED / "models").glob("*_config.json"):
        name = file.name.removesuffix("_config.json").rpartition("--")[2].removeprefix("Meta-").removesuffix("-v0.1")
        if (model := catalogue().get(name)) is None or model.latent:
            continue
        shape = json.loads(file.read_text())
        heads = shape["num_attention_heads"]
        assert model.layers == shape["num_hidden_layers"]
        assert model.kv_heads == shape["num_key_value_heads"]
        assert model.head_dim == shape.get("head_dim", shape["hidden_size"] // heads)
        compared += 1
    assert compared == 14


@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared/data")
def test_a_real_run_of_vllm_had_the_memory_that_is_estimated() -> None:
    run = SHARED / "real_runs" / "llmservingsim_bench" / "RTX4090" / "Llama-3.1-8B" / "vllm" / "meta.json"
    told = json.loads(run.read_text())
    gpu = ps.hardware("llama-3.1-8b-rtx4090-tp1").gpu
    assert gpu is not None
    assert gpu.memory_gib == pytest.approx(told["hardware"]["device_total_memory_bytes"] / GIB, rel=0.002)
    assert tokens(gpu, "vllm") == pytest.approx(told["kv_cache"]["num_kv_tokens"], rel=0.02)
