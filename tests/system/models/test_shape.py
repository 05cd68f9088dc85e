"""The shape of a model says its weights, its KV cache and its FLOPs; what is not known is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InputError
from penstock.system.models.catalogue import catalogue, model_shape
from penstock.system.models.config import read_shape, shape_of
from penstock.system.models.shape import BYTES, Experts, ModelShape, Numbers

CONFIGS = Path(__file__).parents[4] / "shared" / "data" / "models"
CASES = CONFIGS.parent / "user_cases"
SMALL = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1000,
}


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("Llama-3.1-8B", 8.03, 8.03),
        ("Llama-3.1-70B", 70.6, 70.6),
        ("Llama-3.1-405B", 406.0, 406.0),
        ("Mixtral-8x7B", 46.7, 12.9),
        ("Mixtral-8x22B", 141.0, 39.0),
        ("Qwen3-8B", 8.2, 8.2),
        ("Qwen3-30B-A3B", 30.5, 3.3),
        ("Qwen3-235B-A22B", 235.0, 22.0),
        ("DeepSeek-V3", 671.0, 37.0),
        ("Kimi-K2.5", 1026.0, 32.0),
        ("gpt-oss-20b", 20.9, 3.6),
        ("gpt-oss-120b", 117.0, 5.1),
        ("MiniMax-M2.5", 229.0, 10.0),
        ("Llama-3.2-1B", 1.24, 1.24),
        ("Llama-3.2-3B", 3.21, 3.21),
        ("Qwen2.5-0.5B", 0.494, 0.494),
        ("Qwen2.5-1.5B", 1.54, 1.54),
        ("Qwen2.5-3B", 3.09, 3.09),
        ("Qwen2.5-7B", 7.62, 7.62),
        ("Qwen2.5-14B", 14.8, 14.8),
        ("Qwen2.5-32B", 32.8, 32.8),
        ("Qwen2.5-72B", 72.7, 72.7),
        ("Mistral-7B-v0.1", 7.24, 7.24),
        ("Mistral-7B-v0.3", 7.25, 7.25),
        ("Mistral-Nemo", 12.2, 12.2),
        ("Mistral-Small-24B", 23.6, 23.6),
        ("Gemma-2-9B", 9.24, 9.24),
        ("Gemma-2-27B", 27.2, 27.2),
        ("Gemma-3-4B", 3.88, 3.88),
        ("Gemma-3-12B", 11.77, 11.77),
        ("Gemma-3-27B", 27.0, 27.0),
    ],
)
def test_parameters_are_those_that_makers_name(name: str, billions: float, active: float) -> None:
    """Makers of mixtures leave embeddings out of what is active, some of them both."""
    shape = model_shape(name)
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.01)
    embeddings = shape.embedding_parameters
    assert (shape.active_parameters - embeddings) / 1e9 <= active * 1.01
    assert shape.active_parameters / 1e9 >= active * 0.99


@pytest.mark.parametrize("name", [name for name, shape in catalogue().items() if shape.published_gb])
def test_weights_are_those_that_makers_publish(name: str) -> None:
    shape = model_shape(name)
    assert shape.weights_bytes(shape.stored) / 1e9 == pytest.approx(shape.published_gb, rel=0.001)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*_config.json")), ids=lambda path: path.name)
def test_every_config_is_in_the_catalogue_as_it_is_read_or_refused_by_what_is_in_it(path: Path) -> None:
    if "hf_quant" in path.name:
        return
    if "Qwen3.5" in path.name:
        with pytest.raises(InputError, match="linear attention in 45 of its 60 layers"):
            read_shape(path)
        return
    shape = read_shape(path)
    known = model_shape(shape.name)
    own = {"name": "", "published_gb": None}
    assert vars(known) | own == vars(shape) | own


def test_quantisation_in_a_file_of_its_own_counts() -> None:
    shape = model_shape("Llama-3.1-70B-FP8")
    assert shape.stored == Numbers("fp8", "fp8", "fp8", "fp8")
    assert shape.weights_bytes(shape.numbers()) / 1e9 == pytest.approx(72.7, rel=0.01)


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("Qwen/Qwen3-32B-AWQ", "Qwen3-32B"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "Qwen2.5-7B"),
        ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "Llama-3.1-70B"),
        ("RedHatAI/Mistral-7B-Instruct-v0.3-quantized.w4a16", "Mistral-7B-v0.3"),
    ],
)
def test_names_of_checkpoints_in_four_bits_are_read(name: str, base: str) -> None:
    shape = model_shape(name)
    known = model_shape(base)
    assert (shape.parameters, shape.name) == (known.parameters, name.rpartition("/")[2])
    assert shape.numbers() == known.numbers("int4") == Numbers("int4-128", "int4-128", "int4-128")
    layers = known.parameters - known.embedding_parameters
    saved = known.weights_bytes(known.numbers()) - shape.weights_bytes(shape.numbers())
    assert saved == pytest.approx(layers * (2 - 0.52), rel=0.001)


def test_latent_attention_keeps_576_numbers_of_a_token_in_each_layer_on_every_gpu() -> None:
    shape = model_shape("DeepSeek-V3")
    for gpus in (1, 8):
        assert shape.kv_bytes_per_token(shape.numbers(), gpus) == 61 * 576 * 2


def test_sliding_windows_take_no_memory_per_token_but_a_window_of_each_request() -> None:
    shape = model_shape("gpt-oss-120b")
    assert (shape.window, shape.windowed_layers) == (128, 18)
    assert shape.kv_bytes_per_token(shape.numbers()) == 18 * 2 * 8 * 64 * 2
    assert shape.window_bytes(shape.numbers()) == 18 * 128 * 2 * 8 * 64 * 2


def test_flops_of_a_token_are_two_for_each_weight_that_it_meets_and_rise_with_its_context() -> None:
    shape = model_shape("Llama-3.1-8B")
    met = shape.parameters - shape.vocabulary * shape.hidden
    assert shape.flops_per_token() == 2 * met
    assert shape.flops_per_token(1_000) - shape.flops_per_token() == 4 * 32 * 128 * 1_000 * 32


@given(st.integers(2, 512), st.integers(1, 16), st.integers(1, 4096))
def test_the_experts_that_a_batch_visits_grow_from_k_of_e_to_all(count: int, k: int, tokens: int) -> None:
    mixture = Experts(count, min(k, count), 64, 0, 1)
    assert mixture.visited(1) == pytest.approx(mixture.per_token / count)
    assert mixture.visited(tokens) <= mixture.visited(tokens + 1) <= 1.0
    assert mixture.visited(tokens) * count <= mixture.per_token * tokens * (1 + 1e-9)


@given(st.sampled_from(sorted(catalogue())), st.sampled_from([1, 2, 4, 8]))
def test_gpus_together_hold_all_weights_and_no_fewer(name: str, gpus: int) -> None:
    shape = model_shape(name)
    numbers = shape.numbers()
    assert gpus * shape.weights_bytes(numbers, gpus) >= shape.weights_bytes(numbers) * (1 - 1e-12)
    assert shape.weights_bytes(numbers, gpus) <= shape.weights_bytes(numbers)


@pytest.mark.parametrize(
    ("change", "window", "layers"),
    [
        ({"sliding_window": 128, "use_sliding_window": False}, 0, 0),
        ({"sliding_window": 4096}, 4096, 4),
        ({"sliding_window": 512, "sliding_window_pattern": 4}, 512, 3),
        ({"sliding_window": 64, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}, 64, 3),
        ({"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 3}, 64, 1),
        ({"sliding_window": 64, "model_type": "gemma2"}, 64, 2),
    ],
)
def test_windows_are_found_under_the_keys_that_makers_use(change: dict[str, Any], window: int, layers: int) -> None:
    shape = shape_of(SMALL | change, "mine")
    assert (shape.window, shape.windowed_layers) == (window, layers)


@pytest.mark.parametrize(
    ("stored", "asked", "dense", "experts"),
    [
        (("bf16", "bf16"), "fp8", "fp8", "fp8"),
        (("fp8-block", "fp8-block"), "fp8", "fp8-block", "fp8-block"),
        (("fp8-block", "fp8-block"), "bf16", "bf16", "bf16"),
        (("bf16", "mxfp4"), "fp4", "bf16", "mxfp4"),
        (("bf16", "mxfp4"), None, "bf16", "mxfp4"),
    ],
)
def test_a_precision_that_is_asked_for_takes_the_place_of_the_published_one(
    stored: tuple[str, str], asked: str | None, dense: str, experts: str
) -> None:
    shape = ModelShape("mine", 4, 256, 1000, 8, 2, 32, 512, stored=Numbers(stored[0], stored[1], stored[0]))
    numbers = shape.numbers(asked)
    assert (numbers.dense, numbers.experts) == (dense, experts)
    assert {numbers.dense, numbers.experts} <= BYTES.keys()


def test_experts_in_four_bits_are_not_converted_to_eight() -> None:
    with pytest.raises(InputError, match="no engine converts that"):
        model_shape("gpt-oss-120b").numbers("fp8")


@pytest.mark.parametrize(("tp", "ep", "named"), [(3, 1, "attention heads"), (8, 8, "has no experts")])
def test_a_split_that_no_engine_makes_is_refused(tp: int, ep: int, named: str) -> None:
    with pytest.raises(InputError, match=named):
        model_shape("Llama-3.1-8B").check_split(tp, ep)


@pytest.mark.parametrize(("text", "named"), [("[1]", "no mapping"), ("{", "no JSON")])
def test_a_file_that_is_no_config_is_refused_in_one_line(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=named):
        model_shape(str(path))
    with pytest.raises(InputError, match="cannot read"):
        model_shape("missing.json", tmp_path)


def test_a_name_near_a_known_one_is_suggested_and_a_folder_holds_a_config(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Llama|llama"):
        model_shape("Llama-3.1-7B")
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    assert model_shape(str(tmp_path)).layers == 4


@pytest.mark.parametrize(
    ("named", "known"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("meta-llama/Meta-Llama-3-70B-Instruct", "Llama-3.1-70B"),
        ("meta-llama/Llama-3.3-70B-Instruct", "Llama-3.1-70B"),
        ("Qwen/Qwen2.5-Coder-32B-Instruct", "Qwen2.5-32B"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "Mistral-7B-v0.3"),
        ("mistralai/Mistral-Nemo-Instruct-2407", "Mistral-Nemo"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "Mixtral-8x7B"),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507", "Qwen3-235B-A22B"),
        ("google/gemma-3-27b-it", "Gemma-3-27B"),
    ],
)
def test_names_of_one_shape_are_known_alike(named: str, known: str) -> None:
    assert vars(model_shape(named)) | {"name": ""} == vars(model_shape(known)) | {"name": ""}


def test_the_versions_of_mistral_7b_are_told_apart_and_one_must_be_named() -> None:
    windowed = read_shape(CASES / "g_mistral7b_v01.json")
    assert vars(model_shape("Mistral-7B-Instruct-v0.1")) | {"name": ""} == vars(windowed) | {"name": ""}
    assert model_shape("Mistral-7B-Instruct-v0.2").windowed_layers == 0
    with pytest.raises(InputError, match=r"did you mean 'mistral-7b-v0\.\d'"):
        model_shape("mistralai/Mistral-7B-Instruct")
