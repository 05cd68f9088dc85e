"""Configs as makers publish them, and spoiled ones: the shape that their pages state, or one line that refuses them."""

import json
import random
import warnings
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InputError
from penstock.system.models.config import read_shape, shape_of
from penstock.system.models.served import served_model
from penstock.system.models.shape import ModelShape, Numbers

CASES = Path(__file__).parents[4] / "shared" / "data" / "user_cases"
QUANTISED = {"num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 4, "intermediate_size": 2048,
    "vocab_size": 1000, "model_type": "llama"}  # fmt: skip


def dense(
    kind: str, hidden: int, width: int, layers: int, heads: int, kv: int, words: int, **more: Any
) -> dict[str, Any]:
    return {"model_type": kind, "hidden_size": hidden, "intermediate_size": width, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv, "vocab_size": words} | more  # fmt: skip


GEMMA4 = {"model_type": "gemma4_text", "global_head_dim": 512, "attention_k_eq_v": True, "sliding_window": 1024,
    "vocab_size": 262144, "head_dim": 256, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0}  # fmt: skip
GEMMA3 = {"model_type": "gemma3_text", "sliding_window": 1024, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}
LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "moe_layer_freq": 1,
    "n_group": 8, "topk_group": 3}  # fmt: skip

# Name, config, thousand millions of parameters and those active, and bytes of KV cache a token, as pages state or
# follow from their figures; `None`: no token in every layer.
PUBLISHED: list[tuple[str, dict[str, Any], float, float | None, int | None]] = [
    ("Mistral-7B-v0.1", dense("mistral", 4096, 14336, 32, 32, 8, 32000, sliding_window=4096), 7.24, None, 0),
    ("Mistral-Nemo-12B", dense("mistral", 5120, 14336, 40, 32, 8, 131072, head_dim=128), 12.2, None, 163_840),
    ("Mistral-Small-24B", dense("mistral", 5120, 32768, 40, 32, 8, 131072, head_dim=128), 23.6, None, 163_840),
    ("Mistral-Large-2407", dense("mistral", 12288, 28672, 88, 96, 8, 32768, head_dim=128), 122.6, None, 360_448),
    ("Llama-3.2-1B", dense("llama", 2048, 8192, 16, 32, 8, 128256, head_dim=64, tie_word_embeddings=True), 1.24,
        None, 32_768),
    ("Qwen2.5-7B", dense("qwen2", 3584, 18944, 28, 28, 4, 152064, sliding_window=131072, use_sliding_window=False,
        max_window_layers=28), 7.61, None, 57_344),
    ("Qwen2.5-72B", dense("qwen2", 8192, 29568, 80, 64, 8, 152064, sliding_window=131072, max_window_layers=80),
        72.7, None, 327_680),
    ("Yi-34B", dense("llama", 7168, 20480, 60, 56, 8, 64000), 34.4, None, 245_760),
    ("Phi-4", dense("phi3", 5120, 17920, 40, 40, 10, 100352, sliding_window=None), 14.7, None, 204_800),
    ("Phi-3-mini-4k", dense("phi3", 3072, 8192, 32, 32, 32, 32064, sliding_window=2047,
        max_position_embeddings=4096), 3.82, None, 0),
    ("Phi-3-mini-128k", dense("phi3", 3072, 8192, 32, 32, 32, 32064, sliding_window=262144,
        max_position_embeddings=131072),
        3.82, None, 393_216),
    ("StarCoder2-3B", dense("starcoder2", 3072, 12288, 30, 24, 2, 49152, sliding_window=4096,
        max_position_embeddings=16384),
        3.03, None, 0),
    ("Gemma-2-9B", dense("gemma2", 3584, 14336, 42, 16, 8, 256000, head_dim=256, sliding_window=4096), 9.24, None,
        172_032),
    ("Gemma-3-4B", {"text_config": GEMMA3 | {"hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 34}},
        3.88, None, 20_480),
    ("Gemma-3-27B", {"text_config": GEMMA3 | {"hidden_size": 5376, "intermediate_size": 21504,
        "num_hidden_layers": 62,
        "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128}}, 27.0, None, 81_920),
    ("Gemma-4-26B-A4B", {"text_config": GEMMA4 | {"hidden_size": 2816, "intermediate_size": 2112,
        "num_hidden_layers": 30,
        "num_attention_heads": 16, "num_key_value_heads": 8, "num_global_key_value_heads": 2,
        "enable_moe_block": True,
        "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704}}, 25.2, 3.8, 20_480),
    ("Command-R7B", dense("cohere2", 4096, 14336, 32, 32, 8, 256000, sliding_window=4096, layer_switch=4,
        use_parallel_block=True, order_of_interleaved_layers="local_attn_first", max_position_embeddings=132096), 8.03,
        None, 32_768),
    ("Command-R+", dense("cohere", 12288, 33792, 64, 96, 8, 256000), 103.8, None, 262_144),
    ("SmolLM3-3B", dense("smollm3", 2048, 11008, 36, 16, 4, 128256, tie_word_embeddings=True,
        use_sliding_window=False,
        layer_types=["full_attention"] * 36, no_rope_layers=[1, 1, 1, 0] * 9), 3.08, None, 73_728),
    ("Qwen1.5-MoE-A2.7B", dense("qwen2_moe", 2048, 5632, 24, 16, 16, 151936, num_experts=60, num_experts_per_tok=4,
        moe_intermediate_size=1408, shared_expert_intermediate_size=5632, decoder_sparse_step=1), 14.3, 2.7, 196_608),
    ("Qwen2-57B-A14B", dense("qwen2_moe", 3584, 18944, 28, 28, 4, 151936, num_experts=64, num_experts_per_tok=8,
        moe_intermediate_size=2560, shared_expert_intermediate_size=20480), 57.4, 14.0, 57_344),
    ("OLMoE-1B-7B", dense("olmoe", 2048, 1024, 16, 16, 16, 50304, num_experts=64, num_experts_per_tok=8), 6.92, 1.3,
        131_072),
    ("Phi-3.5-MoE", dense("phimoe", 4096, 6400, 32, 32, 8, 32064, num_local_experts=16, num_experts_per_tok=2,
        sliding_window=131072, max_position_embeddings=131072, lm_head_bias=True), 41.9, 6.6, 131_072),
    ("DeepSeek-V2-Lite", dense("deepseek_v2", 2048, 10944, 27, 16, 16, 102400, **LATENT, n_routed_experts=64,
        q_lora_rank=None,
        n_shared_experts=2, num_experts_per_tok=6, moe_intermediate_size=1408, first_k_dense_replace=1), 15.7, 2.4,
        31_104),
    ("DeepSeek-V2", dense("deepseek_v2", 5120, 12288, 60, 128, 128, 102400, **LATENT, n_routed_experts=160,
        q_lora_rank=1536,
        n_shared_experts=2, num_experts_per_tok=6, moe_intermediate_size=1536, first_k_dense_replace=1), 236.0,
        21.0, 69_120),
    ("MiniCPM3-4B", dense("minicpm3", 2560, 6400, 62, 40, 40, 73448, q_lora_rank=768, kv_lora_rank=256,
        qk_nope_head_dim=64, qk_rope_head_dim=32), 4.07, None, 35_712),
    ("GLM-4.5-Air", dense("glm4_moe", 4096, 10944, 46, 96, 8, 151552, head_dim=128, n_routed_experts=128,
        n_shared_experts=1,
        num_experts_per_tok=8, moe_intermediate_size=1408, first_k_dense_replace=1), 106.0, 12.0, 188_416),
    ("ERNIE-4.5-21B-A3B", dense("ernie4_5_moe", 2560, 12288, 28, 20, 4, 103424, tie_word_embeddings=True,
        moe_num_experts=64,
        moe_k=6, moe_intermediate_size=1536, moe_num_shared_experts=2, moe_layer_start_index=1,
        moe_layer_end_index=-1,
        moe_layer_interval=1, moe_use_aux_free=True, moe_capacity=[64, 64, 64], moe_gate="topk"), 21.8, 3.0, 57_344),
    ("Hunyuan-A13B", dense("hunyuan_v1_moe", 4096, 3072, 32, 32, 8, 128167, tie_word_embeddings=True,
        attention_head_dim=128,
        num_experts=64, moe_topk=[8] * 32, num_shared_expert=[1] * 32, moe_intermediate_size=[3072] * 32,
        use_mixed_mlp_moe=True), 80.0, 13.0, 131_072),
]  # fmt: skip


@pytest.mark.parametrize(("name", "config", "billions", "active", "kv"), PUBLISHED, ids=[row[0] for row in PUBLISHED])
def test_published_configs_have_the_parameters_and_the_kv_cache_of_their_pages(
    name: str, config: dict[str, Any], billions: float, active: float | None, kv: int | None
) -> None:
    shape = shape_of(config, name)
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.01)
    stated, most = active or billions, shape.active_parameters / 1e9  # some pages leave embeddings out
    assert 0.97 * (most - shape.embedding_parameters / 1e9) <= stated <= 1.03 * most
    assert shape.kv_bytes_per_token(shape.numbers()) == kv


def read(name: str) -> ModelShape:
    return read_shape(CASES / name)


def test_a_window_in_every_layer_keeps_no_more_than_the_window_of_a_request() -> None:
    for name in ("g_mistral7b_v01.json", "broken/mistral_config.json"):
        shape = read(name)
        assert shape.kv_bytes_per_token(shape.numbers()) == 0
        assert shape.window_bytes(shape.numbers()) == 4096 * 131_072
    served = served_model(str(CASES / "g_mistral7b_v01.json"), "h100")
    assert served.on_gpus.known is not None
    assert served.on_gpus.known.kv_bytes(1) == 131_072
    assert "All layers have a sliding window of 4,096 tokens" in served.on_gpus.windows
    assert "as if they looked at all tokens" in served.caution


def test_patterns_of_windows_are_read_as_text_and_as_lists() -> None:
    assert (read("m_exaone.json").window, read("m_exaone.json").windowed_layers) == (4096, 48)
    assert (read("f_window_list.json").window, read("f_window_list.json").windowed_layers) == (4096, 20)


def test_layers_that_look_at_all_tokens_may_have_heads_of_their_own() -> None:
    shape = read("gemma4_31b.json")
    assert shape.parameters / 1e9 == pytest.approx(30.7, rel=0.002)
    assert shape.kv_bytes_per_token(shape.numbers(), 2) == 40_960
    assert shape.window_bytes(shape.numbers(), 2) == 50 * 1024 * 2 * 8 * 256 * 2
    assert "The engine logs another number" in served_model(str(CASES / "gemma4_31b.json"), "h100", 2).on_gpus.windows


def test_layers_of_one_kind_may_have_more_heads_than_the_others() -> None:
    """Laguna XS has 33 thousand million parameters, 3 of them active."""
    kinds = (["full_attention"] + ["sliding_attention"] * 3) * 10
    laguna = dense("laguna", 2048, 8192, 40, 48, 8, 100352, head_dim=128, num_experts=256, num_experts_per_tok=8,
        moe_intermediate_size=512, shared_expert_intermediate_size=512, sliding_window=512, layer_types=kinds,
        mlp_layer_types=["dense"] + ["sparse"] * 39, num_attention_heads_per_layer=[48, 64, 64, 64] * 10)  # fmt: skip
    shape = shape_of(laguna, "Laguna-XS")
    assert [(kind.layers, kind.heads) for kind in shape.attention] == [(10, 48), (30, 64)]
    assert shape.parameters / 1e9 == pytest.approx(33.4, rel=0.01)
    assert shape.active_parameters / 1e9 == pytest.approx(3.0, rel=0.02)
    with pytest.raises(InputError, match="not one value for each of its layers alike"):
        shape_of(laguna | {"num_attention_heads_per_layer": [64, 48, 64, 64] * 10}, "mine")


def test_experts_beside_a_dense_mlp_are_quantised_where_only_that_mlp_is_not() -> None:
    config = next(config for name, config, *_ in PUBLISHED if name == "Gemma-4-26B-A4B")
    kept = [f"model.language_model.layers.{at}.{part}*" for at in range(30) for part in ("mlp", "self_attn")]
    said = {"quantization_config": {"quant_algo": "NVFP4", "exclude_modules": kept}}
    assert shape_of(config | said, "mine").stored == Numbers("bf16", "fp4", "bf16")


def test_a_mixture_under_other_keys_is_a_mixture() -> None:
    shape = read("ernie.json")
    assert shape.parameters / 1e9 == pytest.approx(300, rel=0.01)
    assert shape.active_parameters / 1e9 == pytest.approx(47, rel=0.025)
    assert shape.weights_bytes(shape.numbers(), 8) / 1e9 == pytest.approx(75, rel=0.01)


def test_eight_bits_are_eight_and_a_scheme_of_the_kv_cache_doubles_its_tokens() -> None:
    served = served_model(str(CASES / "q_gptq8.json"), "h100")
    assert served.shape.weights_bytes(served.numbers) / 1e9 == pytest.approx(16.3, rel=0.005)
    assert float(served.times.composition(64).linear([1.0])[0]) == pytest.approx(6.1e-3, rel=0.03)
    fp8 = {name: read(name) for name in ("r_fp8kv.json", "r_modeloptfp8kv.json")}
    for shape in fp8.values():
        assert shape.stored == Numbers("fp8", "fp8", "fp8", "fp8")
        assert shape.kv_bytes_per_token(shape.numbers()) == 163_840 / 2
    assert read("q_gptq4.json").stored.dense == "int4-128"
    assert read("f_groups_list.json").stored.dense == "w8a16"
    assert read("qwq.json").stored == Numbers("fp8", "fp8", "fp8")


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("experts_int", "mlp_only_layers 9223372036854775808"),
        ("experts_more", "8 experts for each token, but only 4"),
        ("heads7", "hidden_size 4096 and 7 heads"),
        ("kv5", "5 KV heads, which do not divide its 32 heads"),
        ("kv_gt", "64 KV heads, which do not divide its 32 heads"),
        ("layers_dict", "layer_types as a list of 1, not one for each of its 32 layers"),
        ("layers_float", "layer_types as a list of 2"),
        ("layers_len", "layer_types as a list of 3"),
        ("quant_odd", "weights in int 3"),
    ],
)
def test_a_config_that_contradicts_itself_is_refused_by_what_it_says(name: str, named: str) -> None:
    with pytest.raises(InputError, match=named) as refused:
        read(f"broken/{name}_config.json")
    assert "\n" not in str(refused.value)


LAYERS = {"num_hidden_layers": 4}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "an encoder or a classifier"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "an encoder or a classifier"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "an encoder"),
        ({"type_vocab_size": 2}, "an encoder"),
        ({"moe_experts_count": 8}, "`moe_experts_count` 8, a key that decides the shape"),
        ({"swa_num_key_value_heads": 8}, "`swa_num_key_value_heads` 8"),
        ({"v_head_dim": 64}, "`v_head_dim` 64"),
        ({"hybrid_layer_pattern": [0, 1, 1, 1]}, "`hybrid_layer_pattern`"),
        ({"block_configs": [{}]}, "`block_configs`"),
        ({"num_key_value_heads": [4, 4, 2, 2]}, "num_key_value_heads"),
        ({"num_attention_heads": "4"}, "num_attention_heads of mine is '4'"),
        ({"num_attention_heads": True}, "num_attention_heads of mine is True"),
        ({"intermediate_size": 2.5}, "intermediate_size of mine is 2.5"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings of mine is 'yes'"),
        ({"sliding_window": 128, "sliding_window_pattern": "LX"}, "X in 2 of its 4 layers"),
        ({"sliding_window": 128, "sliding_window_pattern": {}}, "the window pattern of mine"),
        ({"sliding_window": [128, 256]}, "not one length"),
        ({"layer_types": ["sliding_attention"] * 4}, "no length of it"),
        ({"num_experts": 8, "num_local_experts": 4}, "num_experts 8 and num_local_experts 4"),
        ({"num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": [7]}, "mlp_only_layers"),
        ({"attn_type_list": [0, 1, 1, 1]}, "attention of another kind"),
        ({"num_hidden_layers": 4.5}, "num_hidden_layers of mine is 4.5"),
        ({"layer_types": ["linear_attention", "full_attention"] * 2}, "linear attention in 2 of its 4 layers"),
        ({"layer_types": ["chunked_attention"] * 4}, "chunked attention in 4 of its 4 layers"),
        ({"mamba_d_state": 128}, "state-space layers"),
        ({"hybrid_override_pattern": "M-M*"}, "hybrid layers"),
        ({"index_topk": 2048}, "sparse attention with an indexer"),
        ({"is_encoder_decoder": True}, "an encoder"),
        ({"quantization_config": {"quant_method": "eetq"}}, "a precision that is not known here, 'eetq'"),
        ({"num_hidden_layers": None}, "no num_hidden_layers"),
        ({"hidden_size": -5}, "hidden_size of mine is -5"),
    ],
)
def test_what_decides_the_shape_and_is_not_read_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError) as refused:
        shape_of(QUANTISED | change, "mine")
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "more",
    [
        {"model_type": "llama4_text", "attention_chunk_size": 8192},
        {"model_type": "qwen3_next", "linear_num_key_heads": 16},
        {"model_type": "jamba", "attn_layer_period": 8, "mamba_d_state": 16},
        {"model_type": "step3_text", "moe_num_experts": 48, "moe_top_k": 3, "moe_layers_enum": "2,3"},
        {"model_type": "gemma3n_text", "num_kv_shared_layers": 15},
        {"model_type": "hunyuan", "use_cla": True, "cla_share_factor": 2},
        {"model_type": "bailing_moe_linear", "layer_group_size": 8},
        {"model_type": "step3p5", "attention_other_setting": {"num_attention_heads": 96}},
        {"model_type": "recurrent_gemma", "block_types": ["recurrent", "attention"], "lru_width": 512},
        {"model_type": "arctic", "num_local_experts": 8, "num_experts_per_tok": 2, "moe_layer_frequency": 2},
        {
            "model_type": "bailing_moe",
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_shared_expert_intermediate_size": 9,
        },
        {"model_type": "lfm2", "conv_L_cache": 3, "layer_types": ["conv", "conv", "full_attention", "conv"]},
        {"model_type": "falcon", "num_kv_heads": 2},
        {"model_type": "phi3small", "blocksparse_num_local_blocks": 16},
    ],
    ids=lambda more: str(more["model_type"]),
)
def test_published_layers_that_are_not_known_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(InputError) as refused:
        shape_of(QUANTISED | more, "mine")
    assert any(key in str(refused.value) for key in more)


def groups(weights: dict[str, Any], inputs: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}} | more


EIGHT, FLOAT = {"num_bits": 8, "type": "int"}, {"num_bits": 8, "type": "float"}
FOUR = {"num_bits": 4, "type": "float", "group_size": 16}
ATTENTION = [f"model.layers.{at}.self_attn*" for at in range(4)]


@pytest.mark.parametrize(
    ("said", "stored"),
    [
        ({"quant_method": "gptq", "bits": "4", "group_size": 128}, ["int4-128"] * 3),
        (
            {"quant_method": "gptq", "bits": 4, "dynamic": {r"-:.*mlp\.gate$": {}, r"-:.*self_attn": {}}},
            ["int4-128", "int4-128", "bf16"],
        ),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 32}, ["int4"] * 3),
        ({"quant_method": "auto-round", "bits": 8}, ["w8a16"] * 3),
        ({"quant_method": "fbgemm_fp8"}, ["fp8"] * 3),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ["fp8-block"] * 3),
        ({"quant_method": "fp8", "modules_to_not_convert": ["lm_head", "model.layers.0.input_layernorm"]}, ["fp8"] * 3),
        ({"quant_method": "fp8", "ignored_layers": ["self_attn"]}, ["fp8", "fp8", "bf16"]),
        (groups(EIGHT, EIGHT, ignore=["lm_head"]), ["int8"] * 3),
        (groups(EIGHT), ["w8a16"] * 3),
        (groups(FLOAT), ["w8a16"] * 3),
        (groups(FLOAT | {"strategy": "block"}, FLOAT), ["fp8-block"] * 3),
        (groups(FOUR, FOUR), ["fp4"] * 3),
        (groups({"num_bits": 4, "type": "int", "group_size": 128}), ["int4-128"] * 3),
        (groups(FLOAT, FLOAT, ignore=["re:.*self_attn.*", "re:vision_tower.*"]), ["fp8", "fp8", "bf16"]),
        ({"quant_algo": "NVFP4", "exclude_modules": ["lm_head", *ATTENTION]}, ["fp4", "fp4", "bf16"]),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, ["fp8"] * 4),
        ({"quant_algo": "FP8", "kv_cache_scheme": "FP8"}, ["fp8"] * 4),
    ],
)
def test_every_way_of_stating_a_precision_is_read(said: dict[str, Any], stored: list[str]) -> None:
    shape = shape_of(QUANTISED | {"quantization_config": said}, "mine")
    assert shape.stored == Numbers(*stored)


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"quant_method": "gptq", "bits": 3}, "weights in int 3"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*": {"bits": 8}}}, "modules 'dynamic +:.*'"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.mlp"]}, "3 of 12 matrices of dense"),
        ({"quant_method": "fp8", "modules_to_not_convert": ["k_proj"]}, "4 of 16 matrices of attention"),
        ({"quant_method": "fp8", "modules_to_not_convert": ["attention"]}, "modules 'attention'"),
        ({"quant_method": "fp8", "modules_to_not_convert": ["re:["]}, "no regular expression"),
        ({"quant_method": "fp8", "modules_to_not_convert": "lm_head"}, "no list of names"),
        (groups({"num_bits": 4, "type": "int"}, FLOAT), "weights in int 4 with activations in float 8"),
        (groups(FOUR), "weights in float 4"),
        (groups({"num_bits": 4, "type": "of\nmine"}), "weights in of\\nmine 4"),
        ({"quant_algo": "FP8", "kv_cache_scheme": "of\nmine"}, "a KV cache in 'of\\nmine'"),
        (groups(FLOAT, FLOAT, kv_cache_scheme={"num_bits": 8, "type": "int"}), "a KV cache in int 8"),
        (groups(FLOAT, FLOAT, sparsity_config={"format": "sparse-24-bitmask"}), "`sparsity_config`"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "'W4A8_AWQ'"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"}, "a KV cache in 'NVFP4'"),
        ({"quant_method": "compressed-tensors"}, "config_groups None"),
        ([8], "which is no mapping"),
    ],
)
def test_a_precision_that_is_not_known_is_never_taken_for_another(said: Any, named: str) -> None:
    config = QUANTISED | {"quantization_config": said}
    with pytest.raises(InputError) as refused:
        shape_of(config, "mine")
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_numbers_that_a_gpu_does_not_compute_with_are_refused_and_others_are_not(tmp_path: Path) -> None:
    def serve(gpu: str, precision: str | None = None, **more: Any) -> str:
        (tmp_path / "config.json").write_text(json.dumps(QUANTISED | more))
        return served_model(str(tmp_path), gpu, precision=precision).numbers.dense

    whole = {"quantization_config": groups(EIGHT, EIGHT)}
    assert serve("a100", **whole) == "int8"
    assert serve("a100", quantization_config=groups(EIGHT)) == "w8a16"
    with pytest.raises(InputError, match="int8, but b200-sxm computes in"):
        serve("b200", **whole)
    with pytest.raises(InputError, match="fp32, but h100-sxm computes in"):
        serve("h100", torch_dtype="float32")
    assert serve("h100", "bf16", torch_dtype="float32") == "bf16"
    with pytest.raises(InputError, match="torch_dtype 'int3'"):
        serve("h100", dtype="int3")


def test_a_file_of_quantisation_beside_goes_before_what_the_text_part_was_before(tmp_path: Path) -> None:
    """As in NVFP4 checkpoints of Kimi K2.5, whose text part still says int4."""
    left = QUANTISED | {"quantization_config": groups({"num_bits": 4, "type": "int", "group_size": 32})}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "kimi_k25", "text_config": left}))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    assert read_shape(tmp_path / "config.json").stored.dense == "fp4"


def test_four_bits_that_are_no_fp4_are_not_taken_for_it() -> None:
    mixed = ModelShape("mine", 4, 256, 1000, 8, 2, 32, 512, stored=Numbers("bf16", "int4", "bf16"))
    with pytest.raises(InputError, match="experts in int4"):
        mixed.numbers("fp4")
    assert mixed.numbers("bf16") == Numbers("bf16", "bf16", "bf16")


BASES = [config for _, config, *_ in PUBLISHED] + [
    QUANTISED | {"quantization_config": said}
    for said in (groups(FLOAT, FLOAT, ignore=["lm_head"]), {"quant_method": "gptq", "bits": 4, "group_size": 128})
]
VALUES = [None, 0, -1, 1, 7, 2.5, 1e300, float("nan"), 2**63, True, "x", "8", [], [1], [None], {}, {"a": 1}, ["x", 3]]


def spoiled(seed: int) -> tuple[dict[str, Any], str | None]:
    """Return a config of which a key is dropped, renamed or of another type; and the new name."""
    draw = random.Random(seed)
    config = json.loads(json.dumps(draw.choice(BASES)))
    inside: dict[str, Any] = config.get("text_config") or config
    if "quantization_config" in inside and draw.random() < 0.6:
        inside = inside["quantization_config"]
        while any(isinstance(each, dict) for each in inside.values()) and draw.random() < 0.7:
            inside = draw.choice([each for each in inside.values() if isinstance(each, dict)])
    key = draw.choice(sorted(inside))
    how = draw.choice(("drop", "rename", "retype", "retype"))
    value = inside.pop(key)
    if how == "drop":
        return config, None
    name = key if how == "retype" else f"{key}_of_mine"
    inside[name] = draw.choice(VALUES) if how == "retype" else value
    deciding = ("moe", "expert", "global", "window", "kv", "head", "latent", "pattern")
    return config, name if how == "rename" and value and any(word in key for word in deciding) else None


@pytest.mark.parametrize("seed", range(300))
def test_a_spoiled_config_is_a_shape_or_one_line_that_refuses_it(seed: int, tmp_path: Path) -> None:
    config, renamed = spoiled(seed)
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = ""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            served_model(str(tmp_path), "b300").times.composition(2048)
        except InputError as refused:
            said = str(refused)
    assert "\n" not in said
    assert len(said) < 600
    assert said or renamed is None
