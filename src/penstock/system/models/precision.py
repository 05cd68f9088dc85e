"""How the numbers of a checkpoint are stored, by what its config says of quantisation.

Each way of saying it is read, or refused by name: bits that are taken for others would give
plausible times and memory of a model that does not exist.
"""

import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from penstock.checks import shown
from penstock.errors import InputError
from penstock.system.models.shape import Numbers


def stored_numbers(
    text: Mapping[str, Any],
    matrices: Mapping[str, Sequence[str]],
    words: Mapping[str, Any],
    name: str,
) -> Numbers:
    """Return how the numbers of some parts are published, whose matrices have such names.

    ``words`` are those of `config_keys.yaml` for precisions.
    """
    dtype = text.get("torch_dtype", text.get("dtype", "auto"))
    config = text.get("quantization_config", text.get("compression_config"))
    plain = words["dtypes"].get(str(dtype).removeprefix("torch."))
    if plain is None:
        _refuse(name, f"torch_dtype {shown(dtype)}")
    if not config:
        return Numbers(plain, plain, plain)
    if not isinstance(config, Mapping):
        _refuse(name, f"quantization_config {shown(config)}, which is no mapping")
    config = {key: value for key, value in config.items() if value is not None}
    for key in ("lm_head", "sparsity_config"):
        if config.get(key) and "'dense'" not in str(config[key]):
            _refuse(name, f"`{key}` {shown(config[key])}")
    number, scheme = _number(config, words, name), config.get("kv_cache_scheme")
    scheme = scheme or config.get("kv_cache_quant_algo")
    kv = words["kv"].get(_words(scheme) or str(scheme).lower())
    if kv is None:
        _refuse(name, f"a KV cache in {_words(scheme) or shown(scheme)}")
    if number == "mxfp4":  # of which only experts are converted
        return Numbers("bf16", number, "bf16", kv)
    stays = _kept(config, [matrix for part in matrices.values() for matrix in part], words, name)
    numbers = dict.fromkeys(matrices, number)
    for part, modules in matrices.items():
        left = len(stays.intersection(modules))
        if 0 < left < len(modules):
            _refuse(name, f"{left} of {len(modules)} matrices of {part} in 16 bits, others not")
        numbers[part] = "bf16" if left else number
    if not matrices["experts"]:
        numbers["experts"] = numbers["dense"]
    return Numbers(**numbers, kv=kv)


def _refuse(name: str, what: str) -> NoReturn:
    raise InputError(
        f"{name} is published in a precision that is not known here, {what}, so its times and "
        "memory would be those of another; take its config in bf16, fp8 or fp4"
    )


def _words(part: Any) -> str:
    """Return type and bits of numbers as compressed-tensors states them."""
    if not isinstance(part, Mapping):
        return ""
    return shown(f"{part.get('type', 'int')} {part.get('num_bits')}")[1:-1]


def _number(config: Mapping[str, Any], words: Mapping[str, Any], name: str) -> str:
    """Return in what the weights are."""
    method = str(config.get("quant_method", "modelopt")).lower().replace("_", "-")
    algorithm, groups = config.get("quant_algo"), config.get("config_groups")
    known = words["methods"].get(method) or words["algorithms"].get(str(algorithm).lower())
    if known:
        return "fp8-block" if known == "fp8" and config.get("weight_block_size") else str(known)
    if method.startswith(tuple(words["alone"])):
        size = config.get("group_size", config.get("q_group_size"))
        bits = config.get("bits", config.get("w_bit"))
        groups = [{"weights": {"num_bits": bits, "group_size": size}}]
    elif algorithm or not method.startswith(("compressed-tensors", "modelopt")):
        _refuse(name, shown(algorithm or config.get("quant_method")))
    groups = list(groups.values()) if isinstance(groups, Mapping) else groups
    if not isinstance(groups, list) or len({str(_group(group, words)) for group in groups}) != 1:
        _refuse(name, f"config_groups {shown(groups)}, which do not name one kind of weights")
    number = _group(groups[0], words)
    if number is None:
        inputs = _words(groups[0].get("input_activations"))
        activations = f" with activations in {inputs}" if inputs else ""
        _refuse(name, f"weights in {_words(groups[0]['weights'])}{activations}")
    return number


def _group(group: Any, words: Mapping[str, Any]) -> str | None:
    """Return in what the weights of a group of compressed-tensors are; None: that is not known."""
    if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping):
        return ""
    weights, inputs = group["weights"], group.get("input_activations")
    spelled = f"{_words(weights)}, {_words(inputs)}" if inputs else _words(weights)
    number: str | None = words["numbers"].get(spelled)
    size = weights.get("group_size")
    if number == "fp4" and size not in (None, 16):
        return None
    if number == "int4-128" and size == 32:
        return "int4"
    return "fp8-block" if number == "fp8" and weights.get("strategy") == "block" else number


def _kept(
    config: Mapping[str, Any], modules: Sequence[str], words: Mapping[str, Any], name: str
) -> set[str]:
    """Return the matrices that stay in 16 bits, by the patterns of names that say so."""
    patterns: Any = next((config[key] for key in words["kept"] if key in config), [])
    if not isinstance(patterns, list) or not all(isinstance(each, str) for each in patterns):
        _refuse(
            name, f"modules that are not converted as {shown(patterns)}, which is no list of names"
        )
    for text in config.get("dynamic") or ():  # of GPTQ: what has other bits, or with "-:" none
        patterns = [
            *patterns,
            f"re:{text[2:]}" if str(text).startswith("-:") else f"dynamic {text}",
        ]
    layers = {module.split(".")[2] for module in modules}
    stay: set[str] = set()
    for text in dict.fromkeys(patterns):
        plain = text.replace("language_model.", "").replace("shared_expert.", "shared_experts.")
        glob = rf"(?:.*\.)?{fnmatch.translate(plain)[4:-3]}(?:\..*)?$"
        try:
            pattern = re.compile(text[3:] if text.startswith("re:") else glob)
        except re.error:
            _refuse(name, f"modules {shown(text)}, which is no regular expression")
        at = re.search(r"layers\.(\d+)", text)
        near = [m for m in modules if not at or m.startswith(f"model.layers.{at[1]}.")]
        matches = {m for m in near if pattern.match(m) or pattern.match(f"language_model.{m}")}
        outside = words["outside"].search(text) or (at and at[1] not in layers)
        if not matches and (text.startswith("dynamic") or not outside):
            _refuse(name, f"modules {shown(text)} in 16 bits, which are none of those known")
        stay |= matches
    return stay
