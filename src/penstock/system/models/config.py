"""Read the shape of a model from its `config.json`, as Hugging Face has it.

What a config has and the model of times does not know is refused by name: an answer that leaves out
half of a model's layers would be worse than none.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock import checks
from penstock.errors import InputError
from penstock.inputs.source import Source
from penstock.system.models.shape import Experts, Latent, ModelShape, Numbers

_MOST_GIB = 1 / 64  # of a config, which has a few kB
_TWO_MATRICES = ("gpt_neox", "starcoder2", "phi", "nemotron", "gpt_bigcode")

_UNKNOWN = {
    "linear": "linear attention",
    "mamba": "state-space layers (Mamba)",
    "ssm": "state-space layers",
    "state_size": "state-space layers",
    "hybrid_override_pattern": "hybrid layers",
    "attn_layer_period": "hybrid layers",
    "attn_type_list": "hybrid layers",
    "lru_width": "recurrent layers",
    "index_topk": "sparse attention with an indexer",
    "attention_chunk_size": "chunked attention",
    "interleave_moe_layer_step": "experts in every few layers",
    "num_kv_shared_layers": "layers that share their KV cache",
    "cross_attention_layers": "cross-attention layers",
    "is_encoder_decoder": "an encoder",
}
"""Beginnings of keys that say that a layer is none whose time is known, and what it is."""

_KNOWN_LAYERS = ("full_attention", "sliding_attention")


def read_shape(path: str | Path) -> ModelShape:
    """Return the shape in a `config.json`; a `hf_quant_config.json` beside it counts, too."""
    path = Path(path)
    config = _json(path)
    quantisation = path.with_name(path.name.replace("config.json", "hf_quant_config.json"))
    if quantisation != path and quantisation.is_file():
        config.setdefault("quantization_config", _json(quantisation).get("quantization"))
    name = path.name.removesuffix("config.json").rstrip("_-.")
    return shape_of(config, name.replace("--", "/") or path.resolve().parent.name)


def shape_of(config: Mapping[str, Any], name: str) -> ModelShape:
    """Return the shape that a config says; of a multimodal one, that of its text part."""
    text = dict(config.get("text_config") or config)
    text.setdefault("quantization_config", config.get("quantization_config"))
    text.setdefault("tie_word_embeddings", config.get("tie_word_embeddings", False))
    _refuse_unknown(text, name)
    get = _Reader(text, name)
    layers, hidden = get.count("num_hidden_layers"), get.count("hidden_size")
    heads = get.count("num_attention_heads")
    experts = _experts(get, layers)
    window, windowed = _windows(text, layers)
    return ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        vocabulary=get.count("vocab_size"),
        heads=heads,
        kv_heads=get.count("num_key_value_heads", default=heads),
        head_dim=get.count("head_dim", default=hidden // heads),
        width=get.count("intermediate_size"),
        tied=bool(text["tie_word_embeddings"]),
        matrices=2 if text.get("model_type") in _TWO_MATRICES else 3,
        window=window,
        windowed_layers=windowed,
        latent=_latent(get),
        experts=experts,
        stored=_stored(text.get("quantization_config"), experts is not None, name),
    )


class _Reader:
    """Whole numbers of a config, under one of the names that makers give them."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self.config = config
        self.name = name

    def count(self, *keys: str, default: int | None = None, low: int = 1) -> int:
        """Return the first of these keys that is there, else the default."""
        for key in keys:
            value = self.config.get(key)
            if value is not None:
                what = f"{key} of {self.name}"
                return checks.whole(what, value, low, 2**24, "", "it decides the model's shape")
        if default is None:
            raise InputError(
                f"the config of {self.name} has no {keys[0]}, so its shape is not known; give the "
                "config.json of a transformer"
            )
        return default


def _refuse_unknown(text: Mapping[str, Any], name: str) -> None:
    """Refuse layers whose times are not known."""
    kinds = text.get("layer_types") or []
    for kind in dict.fromkeys(kinds):
        if kind not in _KNOWN_LAYERS:
            layers = f"{kinds.count(kind)} of its {len(kinds)} layers"
            _refuse(name, f"{kind.replace('_', ' ')} in {layers}")
    for key, value in text.items():
        for beginning, what in _UNKNOWN.items():
            if key.startswith(beginning) and value:
                _refuse(name, f"{what} (`{key}`)")


def _refuse(name: str, what: str) -> None:
    raise InputError(
        f"{name} has {what}, whose times are not known, so an answer would leave them out; "
        "measure it (penstock fit or calibrate), or take a model without"
    )


def _latent(get: _Reader) -> Latent | None:
    if get.config.get("kv_lora_rank") is None:
        return None
    return Latent(
        query_rank=get.count("q_lora_rank", default=0, low=0),
        kv_rank=get.count("kv_lora_rank"),
        rope_dim=get.count("qk_rope_head_dim"),
        plain_dim=get.count("qk_nope_head_dim"),
        value_dim=get.count("v_head_dim"),
    )


def _experts(get: _Reader, layers: int) -> Experts | None:
    count = get.count("num_experts", "num_local_experts", "n_routed_experts", default=0, low=0)
    if count < 2:
        return None
    width = get.count("moe_intermediate_size", "intermediate_size")
    shared = get.count(
        "shared_expert_intermediate_size", "shared_intermediate_size", default=0, low=0
    )
    shared += width * get.count("n_shared_experts", default=0, low=0)
    first = get.count("first_k_dense_replace", default=0, low=0)
    step = get.count("decoder_sparse_step", "moe_layer_freq", default=1)
    dense = set(get.config.get("mlp_only_layers") or ())
    return Experts(
        count=count,
        per_token=get.count("num_experts_per_tok", "experts_per_token", "num_experts_per_token"),
        width=width,
        shared_width=shared,
        layers=len([at for at in range(first, layers) if (at + 1) % step == 0 and at not in dense]),
    )


def _windows(text: Mapping[str, Any], layers: int) -> tuple[int, int]:
    """Return the tokens of the sliding window, and how many layers have one."""
    window = text.get("sliding_window")
    if not window or text.get("use_sliding_window") is False:
        return 0, 0
    if kinds := text.get("layer_types"):
        return int(window), kinds.count("sliding_attention")
    if pattern := text.get("sliding_window_pattern"):
        return int(window), layers - layers // int(pattern)
    if "use_sliding_window" in text:  # Qwen: the first layers look at all
        return int(window), max(layers - int(text.get("max_window_layers") or 0), 0)
    return int(window), layers // 2 if text.get("model_type") == "gemma2" else layers


def _stored(quantisation: Mapping[str, Any] | None, has_experts: bool, name: str) -> Numbers:
    """Return how the numbers are published."""
    if not quantisation:
        return Numbers("bf16", "bf16", "bf16")
    method = str(quantisation.get("quant_method") or "modelopt").lower()
    algorithm = str(quantisation.get("quant_algo") or "").lower()
    kv = "fp8" if "fp8" in str(quantisation.get("kv_cache_quant_algo") or "").lower() else "bf16"
    groups = quantisation.get("config_groups") or {}
    bits = {(group.get("weights") or {}).get("num_bits") for group in groups.values()}
    if method == "fp8" or algorithm == "fp8" or (method == "compressed-tensors" and bits == {8}):
        blocks = "fp8-block" if quantisation.get("weight_block_size") else "fp8"
        return Numbers(blocks, blocks, blocks, kv)
    if method == "mxfp4":
        return Numbers("bf16", "mxfp4", "bf16", kv)
    if "nvfp4" in algorithm:
        return Numbers("fp4", "fp4", "fp4", kv)
    if bits == {4} and has_experts:
        return Numbers("bf16", "int4", "bf16", kv)
    if bits == {4} or method in ("awq", "gptq"):
        return Numbers("int4", "int4", "int4", kv)
    said = algorithm or method
    raise InputError(
        f"{name} is published in a precision that is not known here, {checks.shown(said)}; take "
        "its config in bf16, fp8 or fp4"
    )


def _json(path: Path) -> dict[str, Any]:
    """Return the mapping that a JSON file holds."""
    if not path.exists():
        raise InputError(f"cannot read {path}: there is no such file; give a config.json")
    text = Source.at(path, _MOST_GIB).document()
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{path} holds no JSON; give a config.json of Hugging Face") from None
    if not isinstance(document, dict):
        raise InputError(f"{path} holds no mapping; give a config.json of Hugging Face")
    return document
