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

_MOST_GIB = 1 / 16  # of a config: lists of modules that are not quantised may have 3 MB
_KEYS = Path(__file__).parent / "config_keys.yaml"
_WHY = "it decides the model's shape"


@functools.cache
def _keys() -> Mapping[str, Any]:
    keys: dict[str, Any] = yaml.safe_load(_KEYS.read_text(encoding="utf-8"))
    for name in ("decide", "idle", "encoders"):
        keys[name] = re.compile(keys[name].replace(" ", ""))
    keys["precisions"]["outside"] = re.compile(keys["precisions"]["outside"])
    return keys


def read_shape(path: str | Path) -> ModelShape:
    """Return the shape in a `config.json`; a `hf_quant_config.json` beside it counts, too."""
    path = Path(path)
    config = _json(path)
    quantisation = path.with_name(path.name.replace("config.json", "hf_quant_config.json"))
    if quantisation != path and quantisation.is_file():
        stored = _json(quantisation).get("quantization")
        config["quantization_config"] = config.get("quantization_config") or stored
        for part in _keys()["parts"]:
            if isinstance(config.get(part), dict):
                config[part]["quantization_config"] = stored
    name = path.name.removesuffix("config.json").rstrip("_-.")
    return shape_of(config, name.replace("--", "/") or path.resolve().parent.name)


def shape_of(config: Mapping[str, Any], name: str) -> ModelShape:
    """Return the shape that a config says; of a multimodal one, that of its text part."""
    text: dict[str, Any] = dict(config)
    for part in _keys()["parts"]:
        if isinstance(inner := text.get(part), Mapping) and inner:
            text = {k: v for k, v in text.items() if k in _keys()["whole"]} | _given(inner)
    kind = str(text.get("model_type"))
    defaults = (known for start, known in _keys()["defaults"].items() if kind.startswith(start))
    text = functools.reduce(lambda all_, more: all_ | more, defaults, {}) | _given(text)
    for word in (kind, text.get("architectures")):
        if _keys()["encoders"].search(str(word).lower().replace("_", "")):
            _refuse(name, f"the architecture of an encoder or a classifier ({shown(word)})")
    get = _Config(text, name)
    window, slides = _windows(get)
    for key, value in text.items():
        for beginning, what in _keys()["unknown"].items():
            if key.startswith(beginning) and value:
                _refuse(name, f"{what} (`{key}`)")
    hidden, heads = get.count("hidden_size"), get.count("num_attention_heads")
    kv_heads = get.count("num_key_value_heads", default=heads)
    latent = _latent(get)
    head_dim = get.count("head_dim", default=hidden // heads)
    if latent is None and get.value("head_dim") is None and hidden % heads:
        get.refuse(
            f"hidden_size {hidden} and {heads} heads, which do not divide it, and no head_dim"
        )
    if (kinds := get.value("attn_type_list")) and not all(get.words("attn_type_list", kinds)):
        _refuse(name, "attention of another kind in some layers (`attn_type_list`)")
    experts, mixed = _experts(get)
    sides = [[slide == near for slide in slides] for near in (False, True)]
    far, heads = (get.count("num_attention_heads_per_layer", heads, of=side) for side in sides)
    full = Global(
        far,
        get.count("num_global_key_value_heads", default=kv_heads),
        get.count("global_head_dim", default=head_dim),
        not get.flag("attention_k_eq_v"),
    )
    for many, count in ((heads, kv_heads), (full.heads, full.kv_heads)):
        if many % count:
            get.refuse(f"{count} KV heads, which do not divide its {many} heads")
    matrices = _matrices(mixed, experts, latent, get.flag("enable_moe_block"))
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
        stored=stored_numbers(text, matrices, _keys()["precisions"], name),
    )
    get.refuse_unread()
    return shape


def _given(config: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in config.items() if value is not None}


class _Config:
    """Values of a config, under one of the names that makers give them; it knows what was read."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self.config = config
        self.name = name
        self.read: set[str] = set()
        self.layers = 1
        self.layers = self.count("num_hidden_layers", high=4096)

    def value(self, key: str) -> Any:
        """Return what the config has under a key or others of its meaning, which must agree."""
        values = {}
        for name in _keys()["same"].get(key, [key]):
            self.read.add(name)
            if self.config.get(name) is not None:
                values[name] = self.config[name]
        if any(value != next(iter(values.values())) for value in values.values()):
            self.refuse(" and ".join(f"{name} {shown(value)}" for name, value in values.items()))
        return next(iter(values.values()), None)

    def count(
        self, key: str, default: int | None = None, low: int = 1, high: int = 2**24,
        of: Sequence[bool] | None = None,
    ) -> int:  # fmt: skip
        """Return the whole number under a key, else the default; ``of``: the layers that count."""
        value = self.value(key)
        if value is None and default is None:
            raise InputError(
                f"the config of {self.name} has no {key}, so its shape is not known; give the "
                "config.json of a transformer"
            )
        if isinstance(value, list):
            some = [*itertools.compress(value, of or [True] * self.layers)]
            if len(value) != self.layers or some != some[:1] * len(some):
                self.refuse(f"{key} {shown(some)}, not one value for each of its layers alike")
            value = next(iter(some), default)
        if value is None:
            value = default
        return checks.whole(f"{key} of {self.name}", value, low, high, "", _WHY)

    def flag(self, key: str, default: bool = False) -> bool:
        """Return whether a key is true."""
        value = self.value(key)
        if value is None:
            return default
        return checks.truth(f"{key} of {self.name}", value)

    def words(self, key: str, value: object) -> list[bool]:
        """Return what a list says of each layer, in words or as true and false."""
        if not isinstance(value, list) or len(value) != self.layers:
            size = f"a list of {len(value)}" if isinstance(value, list) else shown(value)
            self.refuse(f"{key} as {size}, not one for each of its {self.layers} layers")
        kinds = [str(kind) for kind in value]
        for kind in dict.fromkeys(kinds):
            if kind not in _keys()["layers"]:
                many = f"{kinds.count(kind)} of its {len(kinds)} layers"
                _refuse(self.name, f"{shown(kind)[1:-1].replace('_', ' ')} in {many} (`{key}`)")
        return [_keys()["layers"][kind] for kind in kinds]

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
    count = get.count("num_experts", default=0, low=0)
    if count < 2:
        return None, [False] * get.layers
    dense = get.count("intermediate_size")
    width = get.count("moe_intermediate_size", default=dense)
    shared = width * get.count("n_shared_experts", default=0, low=0)
    shared = get.count("shared_expert_intermediate_size", default=0, low=0) or shared
    if get.flag("enable_moe_block"):  # Gemma: beside a dense MLP
        shared += dense
    per_token = get.count("num_experts_per_tok")
    if per_token > count:
        get.refuse(f"{per_token} experts for each token, but only {count} in a layer")
    mixed = _mixed(get)
    return Experts(count, per_token, width, shared, sum(mixed)), mixed


def _mixed(get: _Config) -> list[bool]:
    """Return for each layer whether it has experts."""
    first = get.count("first_k_dense_replace", default=0, low=0)
    last = get.count("moe_layer_end_index", default=-1, low=-1)
    step = get.count("decoder_sparse_step", default=1)
    dense = get.value("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(at in range(get.layers) for at in dense):
        get.refuse(f"mlp_only_layers {shown(dense)}, which is no list of its layers")
    mixed = [(at + 1) % step == 0 and at not in dense for at in range(get.layers)]
    for key in ("moe_layer_freq", "mlp_layer_types", "is_moe_layer"):
        if isinstance(get.value(key), list):
            mixed = [a and b for a, b in zip(mixed, get.words(key, get.value(key)), strict=True)]
        elif key == "moe_layer_freq":
            every = get.count(key, default=1)
            mixed = [has and at % every == 0 for at, has in enumerate(mixed)]
    end = get.layers - 1 if last < 0 else last
    return [has and first <= at <= end for at, has in enumerate(mixed)]


def _windows(get: _Config) -> tuple[int, list[bool]]:
    """Return the tokens of the sliding window, and for each layer whether it has one."""
    window = get.value("sliding_window")
    on = get.flag("use_sliding_window", True)
    first = get.count("max_window_layers", default=0, low=0)
    pattern: Any = get.value("sliding_window_pattern")
    if isinstance(window, list):  # windows of the first layers, again and again
        sizes = {str(size): size for size in window if size}
        if len(sizes) != 1:
            get.refuse(f"sliding_window {shown(window)}, which is not one length")
        pattern, window, on = [bool(size) for size in window], *sizes.values(), True
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


def _matrices(
    mixed: Sequence[bool], experts: Experts | None, latent: Latent | None, beside: bool
) -> dict[str, list[str]]:
    """Return names of the matrices of each part, as quantisation names them; ``beside``: experts
    stand beside the dense MLP of their layer, not in it.
    """
    parts: dict[str, list[str]] = {"dense": [], "experts": [], "attention": []}
    ends = ["q_proj", "k_proj", "v_proj", "o_proj"]
    if latent is not None:
        queries = ["q_a_proj", "q_b_proj"] if latent.query_rank else ["q_proj"]
        ends = [*queries, "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
    for at, has in enumerate(mixed):
        layer, inner = f"model.layers.{at}", "" if beside or not has else "shared_experts."
        folders = {"experts": "experts.0." if beside else "mlp.experts.0."} if has else {}
        if not has or (experts and experts.shared_width):
            folders["dense"] = f"mlp.{inner}"
        for part, folder in folders.items():
            parts[part] += [f"{layer}.{folder}{end}_proj" for end in ("gate", "up", "down")]
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
