"""Read the shape of a model from its `config.json`, as Hugging Face has it.

What a config has and the model of times does not know is refused by name: an answer that leaves out
half of a model's layers would be worse than none. So is a key that decides the shape by its name
(`config_keys.yaml`) and is not read.
"""

import functools
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from penstock import checks
from penstock.checks import shown
from penstock.errors import InputError
from penstock.inputs.source import Source
from penstock.system.models.precision import stored_numbers
from penstock.system.models.shape import Experts, Global, Latent, ModelShape

_MOST_GIB = 1 / 64  # of a config, which has a few kB
_MOST_LAYERS = 4096
_TEXT_PARTS = ("thinker_config", "text_config", "llm_config", "language_config")
_KEYS = Path(__file__).parent / "config_keys.yaml"
_WHY = "it decides the model's shape"
_WORDS = {
    **dict.fromkeys(("sliding_attention", "sparse", "L", "True", "1"), True),
    **dict.fromkeys(("full_attention", "dense", "G", "False", "0"), False),
}
"""Whether a layer has a window, or experts, in the words of lists."""
_PATTERNS = (
    *("sliding_window_pattern", "_sliding_window_pattern"),
    *("global_attn_every_n_layers", "layer_switch"),
)


@functools.cache
def _keys() -> Mapping[str, Any]:
    keys: dict[str, Any] = yaml.safe_load(_KEYS.read_text(encoding="utf-8"))
    for name in ("decide", "idle", "encoders"):
        keys[name] = re.compile(keys[name].replace(" ", ""))
    return keys


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
    text: dict[str, Any] = dict(config)
    for part in _TEXT_PARTS:
        if isinstance(inner := text.get(part), Mapping) and inner:
            text = {k: v for k, v in text.items() if k in _WHOLE} | _given(inner)
    kind = str(text.get("model_type"))
    defaults = (known for start, known in _keys()["defaults"].items() if kind.startswith(start))
    text = functools.reduce(lambda all_, more: all_ | more, defaults, {}) | _given(text)
    for said in (kind, text.get("architectures")):
        if _keys()["encoders"].search(str(said).lower().replace("_", "")):
            _refuse(name, f"an encoder or a classifier ({shown(said)}), which writes no text")
    get = _Config(text, name)
    window, slides = _windows(get)
    for key, value in text.items():
        for beginning, what in _keys()["unknown"].items():
            if key.startswith(beginning) and value:
                _refuse(name, f"{what} (`{key}`)")
    hidden, heads = get.count("hidden_size"), get.count("num_attention_heads")
    kv_heads = get.count("num_key_value_heads", default=heads)
    latent = _latent(get)
    head_dim = get.count("head_dim", "attention_head_dim", "kv_channels", default=hidden // heads)
    if (
        latent is None
        and get.value("head_dim", "attention_head_dim", "kv_channels") is None
        and hidden % heads
    ):
        get.refuse(
            f"hidden_size {hidden} and {heads} heads, which do not divide it, and no head_dim"
        )
    if (kinds := get.value("attn_type_list")) and not all(get.words("attn_type_list", kinds)):
        _refuse(name, "attention of another kind in some layers (`attn_type_list`)")
    experts, mixed = _experts(get)
    own = get.value("num_attention_heads_per_layer") or [heads] * get.layers
    far, heads = _by_window(get, own, slides)
    full = Global(
        far,
        get.count("num_global_key_value_heads", default=kv_heads),
        get.count("global_head_dim", default=head_dim),
        not get.flag("attention_k_eq_v"),
    )
    for many, count in ((heads, kv_heads), (full.heads, full.kv_heads)):
        if many % count:
            get.refuse(f"{count} KV heads, which do not divide its {many} heads")
    shape = ModelShape(
        name=name,
        layers=get.layers,
        hidden=hidden,
        vocabulary=get.count("vocab_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        width=get.count("intermediate_size"),
        tied=get.flag("tie_word_embeddings"),
        matrices=2 if kind in _keys()["two"] else 3,
        window=window if any(slides) else 0,
        windowed_layers=sum(slides),
        full=None if full == Global(heads, kv_heads, head_dim) else full,
        latent=latent,
        experts=experts,
        stored=stored_numbers(text, _matrices(mixed, experts, latent), name),
    )
    get.refuse_unread()
    return shape


_WHOLE = (
    "quantization_config",
    "compression_config",
    "tie_word_embeddings",
    "torch_dtype",
    "dtype",
)
"""Keys that a multimodal config has for all of its parts."""


def _given(config: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in config.items() if value is not None}


class _Config:
    """Values of a config, under one of the names that makers give them; it knows what was read."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self.config = config
        self.name = name
        self.read: set[str] = set()
        self.layers = 1
        self.layers = self.count("num_hidden_layers", high=_MOST_LAYERS)

    def value(self, *keys: str) -> Any:
        """Return what the config has under these keys, which must agree."""
        self.read.update(keys)
        given = [key for key in keys if self.config.get(key) is not None]
        for key in given[1:]:
            if self.config[key] != self.config[given[0]]:
                self.refuse(" and ".join(f"{k} {shown(self.config[k])}" for k in (given[0], key)))
        return self.config[given[0]] if given else None

    def count(self, *keys: str, default: int | None = None, low: int = 1, high: int = 2**24) -> int:
        """Return the whole number under one of these keys, else the default."""
        value = self.value(*keys)
        if value is None and default is None:
            raise InputError(
                f"the config of {self.name} has no {keys[0]}, so its shape is not known; give the "
                "config.json of a transformer"
            )
        key = next((key for key in keys if self.config.get(key) is not None), keys[0])
        if isinstance(value, list):  # one for each layer
            if len(value) != self.layers or any(each != value[0] for each in value):
                self.refuse(f"{key} {shown(value)}: {len(value)} numbers, not one for all layers")
            value = value[0]
        what = f"{key} of {self.name}"
        value = default if value is None else value
        return checks.whole(what, value, low, high, "", _WHY)

    def flag(self, key: str, default: bool = False) -> bool:
        """Return whether a key is true."""
        value = self.value(key)
        return default if value is None else checks.truth(f"{key} of {self.name}", value)

    def words(self, key: str, value: object) -> list[bool]:
        """Return what a list says of each layer, in words or as true and false."""
        if not isinstance(value, list) or len(value) != self.layers:
            size = f"a list of {len(value)}" if isinstance(value, list) else shown(value)
            self.refuse(f"{key} as {size}, not one for each of its {self.layers} layers")
        said = [str(each) for each in value]
        for kind in dict.fromkeys(said):
            if kind not in _WORDS:
                many = f"{said.count(kind)} of its {len(said)} layers"
                _refuse(self.name, f"{kind[:40].replace('_', ' ')} in {many} (`{key}`)")
        return [_WORDS[kind] for kind in said]

    def refuse(self, what: str) -> NoReturn:
        """Refuse what contradicts itself, or is not known."""
        raise InputError(
            f"the config of {self.name} has {what}, so an answer would be of another model; mend "
            "the config, or measure the model (penstock fit or calibrate)"
        )

    def refuse_unread(self) -> None:
        """Refuse what decides the shape by its name, and was not read."""
        for key, value in self.config.items():
            plain = key.lower()
            if key in self.read or not value or _keys()["idle"].fullmatch(plain):
                continue
            if _keys()["decide"].search(plain) and not key.endswith("_token_id"):
                self.refuse(f"`{key}` {shown(value)}, a key that decides the shape and is not read")


def _refuse(name: str, what: str) -> NoReturn:
    raise InputError(
        f"{name} has {what}, whose times are not known, so an answer would leave them out; "
        "measure it (penstock fit or calibrate), or take a model without"
    )


def _latent(get: _Config) -> Latent | None:
    if get.value("kv_lora_rank") is None:
        return None
    return Latent(
        query_rank=get.count("q_lora_rank", default=0, low=0),
        kv_rank=get.count("kv_lora_rank"),
        rope_dim=get.count("qk_rope_head_dim"),
        plain_dim=get.count("qk_nope_head_dim"),
        value_dim=get.count("v_head_dim"),
    )


def _experts(get: _Config) -> tuple[Experts | None, list[bool]]:
    """Return the experts, and for each layer whether it has some."""
    counts = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    count = get.count(*counts, default=0, low=0)
    if count < 2:
        return None, [False] * get.layers
    dense = get.count("intermediate_size")
    width = get.count("moe_intermediate_size", "expert_ffn_hidden_size", default=dense)
    many = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
    shared = width * get.count(*many, default=0, low=0)
    said = ("shared_expert_intermediate_size", "shared_intermediate_size")
    shared = get.count(*said, default=0, low=0) or shared
    if get.flag("enable_moe_block"):  # Gemma: beside a dense MLP
        shared += dense
    per_token = get.count(
        "num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_k", "moe_topk",
        "moe_top_k", "top_k_experts",
    )  # fmt: skip
    if per_token > count:
        get.refuse(f"{per_token} experts for each token, but only {count} in a layer")
    mixed = _mixed(get)
    return Experts(count, per_token, width, shared, sum(mixed)), mixed


def _mixed(get: _Config) -> list[bool]:
    """Return for each layer whether it has experts."""
    starts = ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers")
    first = get.count(*starts, default=0, low=0)
    last = get.count("moe_layer_end_index", default=-1, low=-1)
    step = get.count("decoder_sparse_step", "moe_layer_interval", default=1)
    dense = get.value("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(at in range(get.layers) for at in dense):
        get.refuse(f"mlp_only_layers {shown(dense)}, which is no list of its layers")
    mixed = [(at + 1) % step == 0 and at not in dense for at in range(get.layers)]
    for key in ("moe_layer_freq", "mlp_layer_types", "is_moe_layer"):
        if isinstance(get.value(key), list):
            mixed = [a and b for a, b in zip(mixed, get.words(key, get.value(key)), strict=True)]
    if not isinstance(get.value("moe_layer_freq"), list):
        every = get.count("moe_layer_freq", default=1)
        mixed = [each and at % every == 0 for at, each in enumerate(mixed)]
    end = get.layers - 1 if last < 0 else last
    return [each and first <= at <= end for at, each in enumerate(mixed)]


def _windows(get: _Config) -> tuple[int, list[bool]]:
    """Return the tokens of the sliding window, and for each layer whether it has one."""
    window = get.value("sliding_window", "interleaved_sliding_window")
    on, first = (
        get.flag("use_sliding_window", True),
        get.count("max_window_layers", default=0, low=0),
    )
    pattern: Any = get.value(*_PATTERNS)
    if isinstance(window, list):  # windows of the first layers, again and again
        sizes = {str(each): each for each in window if each}
        if len(sizes) != 1:
            get.refuse(f"sliding_window {shown(window)}, which is not one length")
        pattern, window, on = [bool(each) for each in window], *sizes.values(), True
    elif pattern is not None and not isinstance(pattern, str | list):  # every so many look at all
        why = "it is a number of layers"
        every = checks.whole(f"the window pattern of {get.name}", pattern, 1, 2**24, "", why)
        pattern = [True] * min(every - 1, get.layers) + [False]
    size = checks.whole(f"sliding_window of {get.name}", window or 0, 0, 2**24, "tokens", _WHY)
    kinds = get.value("layer_types")
    if kinds is None:
        kinds = pattern or [at >= first for at in range(get.layers)]
        slides = get.words("pattern", list(itertools.islice(itertools.cycle(kinds), get.layers)))
    else:
        slides = get.words("layer_types", kinds)
        if any(slides) and not size:
            get.refuse("layers with a sliding window, but no length of it (`sliding_window`)")
    bounded = 0 < size < get.count("max_position_embeddings", default=2**24)
    return (size, slides) if on and bounded else (0, [False] * get.layers)


def _by_window(get: _Config, heads: object, slides: Sequence[bool]) -> tuple[int, int]:
    """Return the heads of the layers that look at all tokens, and of those with a window."""
    if not isinstance(heads, list) or len(heads) != get.layers:
        get.refuse(f"heads {shown(heads)}, not one for each of its {get.layers} layers")
    kinds = []
    for kind in (False, True):
        many = {str(each): each for each, has in zip(heads, slides, strict=True) if has == kind}
        if len(many) > 1:
            get.refuse(f"layers of one kind with {' and '.join(many)} heads")
        kinds += [
            checks.whole(f"heads of {get.name}", each, 1, 2**24, "", _WHY) for each in many.values()
        ]
    return kinds[0], kinds[-1]


def _matrices(
    mixed: Sequence[bool], experts: Experts | None, latent: Latent | None
) -> dict[str, list[str]]:
    """Return names of the matrices of each part, as quantisation names them."""
    parts: dict[str, list[str]] = {"dense": [], "experts": [], "attention": []}
    ends = ["q_proj", "k_proj", "v_proj", "o_proj"]
    if latent is not None:
        queries = ["q_a_proj", "q_b_proj"] if latent.query_rank else ["q_proj"]
        ends = [*queries, "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
    for at, has in enumerate(mixed):
        layer = f"model.layers.{at}"
        kinds = ["experts"] * has + ["dense"] * (not has or bool(experts and experts.shared_width))
        for part in kinds:
            inner = {"experts": "experts.0."}.get(part, "shared_experts." if has else "")
            parts[part] += [f"{layer}.mlp.{inner}{end}_proj" for end in ("gate", "up", "down")]
        parts["attention"] += [f"{layer}.self_attn.{end}" for end in ends]
    return parts


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
