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

_DTYPES = {
    **dict.fromkeys(("bfloat16", "float16", "half", "auto"), "bf16"),
    **dict.fromkeys(("float32", "float"), "fp32"),
}
_WEIGHTS_ALONE = ("gptq", "awq", "auto-round", "intel/auto-round", "auto_round", "gptqmodel")
_ALGORITHMS = {
    "fp8": "fp8",
    "fp8_pb_wo": "fp8-block",
    "nvfp4": "fp4",
    "nvfp4_awq": "fp4",
    "w8a8_sq_per_channel": "int8",
    "w4a16_awq": "int4-128",
}
_NUMBERS = {
    "float 8, float 8": "fp8",
    "int 8, int 8": "int8",
    "float 4, float 4": "fp4",
    "int 4": "int4-128",
    "int 8": "w8a16",
    "float 8": "w8a16",
}
"""Precisions by type and bits of weights, and of what they are multiplied with (else 16 bits)."""

_KEPT = ("ignore", "modules_to_not_convert", "exclude_modules", "ignored_layers")
_OUTSIDE = re.compile(
    r"head|embed|norm|gate(?!_)|router|vis|image|audio|tower|mtp|nextn|project|bias|eh_proj|_gate\b|g_proj"
)
"""Modules that are in 16 bits anyway, or no part of the text model."""


def stored_numbers(
    text: Mapping[str, Any], matrices: Mapping[str, Sequence[str]], name: str
) -> Numbers:
    """Return how the numbers of some parts are published, whose matrices have such names."""
    dtype = text.get("torch_dtype", text.get("dtype", "auto"))
    said = text.get("quantization_config", text.get("compression_config"))
    plain = _DTYPES.get(str(dtype).removeprefix("torch."))
    if plain is None:
        _refuse(name, f"torch_dtype {shown(dtype)}")
    if not said:
        return Numbers(plain, plain, plain)
    if not isinstance(said, Mapping):
        _refuse(name, f"quantization_config {shown(said)}, which is no mapping")
    said = {key: value for key, value in said.items() if value is not None}
    for key in ("dynamic", "lm_head", "sparsity_config"):
        value = said.get(key)
        if value and not (isinstance(value, Mapping) and value.get("format") == "dense"):
            _refuse(name, f"`{key}` {shown(value)}")
    number, kv = _number(said, name), _kv(said, name)
    if number == "mxfp4":  # of which only experts are converted
        return Numbers("bf16", number, "bf16", kv)
    kept: Any = next((said[key] for key in _KEPT if key in said), [])
    if not isinstance(kept, list) or not all(isinstance(each, str) for each in kept):
        _refuse(name, f"modules that are not converted as {shown(kept)}, which is no list of names")
    stays = _kept(kept, [each for part in matrices.values() for each in part], name)
    numbers = dict.fromkeys(matrices, number)
    for part, modules in matrices.items():
        left = sum(each in stays for each in modules)
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


def _number(said: Mapping[str, Any], name: str) -> str:
    """Return in what the weights are."""
    method = str(said.get("quant_method", "modelopt")).lower()
    algorithm, groups = said.get("quant_algo"), said.get("config_groups")
    if method in ("fp8", "fbgemm_fp8"):
        return "fp8-block" if said.get("weight_block_size") else "fp8"
    if method == "mxfp4":
        return "mxfp4"
    if method in _WEIGHTS_ALONE:
        bits = said.get("bits", said.get("w_bit"))
        size = said.get("group_size", said.get("q_group_size"))
        return _group({"weights": {"num_bits": bits, "group_size": size}}, name)
    if method == "modelopt" and str(algorithm).lower() in _ALGORITHMS:
        return _ALGORITHMS[str(algorithm).lower()]
    if method not in ("compressed-tensors", "modelopt") or algorithm:
        _refuse(name, shown(algorithm or said.get("quant_method")))
    groups = list(groups.values()) if isinstance(groups, Mapping) else groups
    if not groups or not isinstance(groups, list):
        _refuse(name, f"config_groups {shown(groups)}, which names no weights")
    numbers = sorted({_group(group, name) for group in groups})
    if len(numbers) > 1:
        _refuse(name, f"groups of weights in {' and '.join(numbers)}")
    return numbers[0]


def _group(group: Any, name: str) -> str:
    """Return in what the weights of a group of compressed-tensors are."""
    parts = (group.get("weights"), group.get("input_activations")) if _is_map(group) else (None,)
    if not parts[0] or not all(_is_map(part) for part in parts if part):
        _refuse(name, f"the group {shown(group)}, which names no weights")
    said = ", ".join(f"{part.get('type', 'int')} {part.get('num_bits')}" for part in parts if part)
    number, size = _NUMBERS.get(said), parts[0].get("group_size")
    if number is None or (number == "fp4" and size not in (None, 16)):
        _refuse(name, f"weights{' and activations' * (',' in said)} as {said}")
    if number == "int4-128" and size == 32:
        return "int4"
    return "fp8-block" if number == "fp8" and parts[0].get("strategy") == "block" else number


def _is_map(value: object) -> bool:
    return isinstance(value, Mapping)


def _kv(said: Mapping[str, Any], name: str) -> str:
    """Return in what the KV cache is."""
    scheme = said.get("kv_cache_scheme") or said.get("kv_cache_quant_algo") or "none"
    if isinstance(scheme, Mapping):
        scheme = f"{scheme.get('type', 'int')}{scheme.get('num_bits')}".replace("float", "fp")
    numbers = {"none": "bf16", "fp8": "fp8"}
    if str(scheme).lower() not in numbers:
        _refuse(name, f"a KV cache in {shown(scheme)}")
    return numbers[str(scheme).lower()]


def _kept(kept: Sequence[str], modules: Sequence[str], name: str) -> set[str]:
    """Return the matrices that stay in 16 bits, by the patterns of names that say so."""
    layers = {module.split(".")[2] for module in modules}
    stay: set[str] = set()
    for each in dict.fromkeys(kept):
        plain = each.replace("language_model.", "").replace("shared_expert.", "shared_experts.")
        glob = rf"(?:.*\.)?{fnmatch.translate(plain)[4:-3]}(?:\..*)?$"
        try:
            pattern = re.compile(each[3:] if each.startswith("re:") else glob)
        except re.error:
            _refuse(name, f"modules {shown(each)}, which is no regular expression")
        at = re.search(r"layers\.(\d+)", each)
        near = [m for m in modules if not at or m.startswith(f"model.layers.{at[1]}.")]
        found = {m for m in near if pattern.match(m) or pattern.match(f"language_model.{m}")}
        if not found and not _OUTSIDE.search(each) and not (at and at[1] not in layers):
            _refuse(name, f"modules {shown(each)} in 16 bits, which are none of those known")
        stay |= found
    return stay
