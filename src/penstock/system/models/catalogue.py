"""Shapes of known models, by name: facts from the `config.json` of their makers."""

import dataclasses
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.system.models.shape import Experts, Latent, ModelShape, Numbers

_FILE = Path(__file__).parent / "shapes.yaml"
# Of a model, whose shape is the same: what it was trained for, and a version or a month.
_VARIANTS = ("-hf", "-chat", "-instruct", "-it", "-base", "-pt", "-thinking", "-preview")
_VERSION = r"-(v0\.\d|\d{4})$"
_CONVERTED = {  # by others than the maker: endings of names, and the precision of the weights
    "int4": r"(-awq|-gptq-int4|-awq-int4|[-.]w4a16)$",
    "fp8": r"-fp8(-dynamic)?$",
    "fp4": r"-(nvfp4|fp4)$",
}
_PARTS = {"latent": Latent, "experts": Experts, "stored": Numbers}


@functools.cache
def catalogue() -> Mapping[str, ModelShape]:
    """Return the known shapes by name."""
    fast = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    entries: dict[str, dict[str, Any]] = yaml.load(_FILE.read_text(encoding="utf-8"), fast)
    shapes = {}
    for name, entry in entries.items():
        parts = {key: kind(**entry[key]) for key, kind in _PARTS.items() if key in entry}
        shapes[name] = ModelShape(name=name, **(entry | parts))
    return shapes


def model_shape(model: str, folder: Path = Path()) -> ModelShape:
    """Return the shape of a model: a name in the catalogue, or the path of a `config.json`."""
    # A name may lack its organisation. A path ends with ``.json``, or is a folder that holds a
    # `config.json`.
    path = folder / checks.path("model", model)
    config = path if path.suffix == ".json" else path / "config.json"
    if config == path or config.is_file():
        from penstock.system.models.config import read_shape  # names need no configs

        return read_shape(config)
    if (known := by_name(model)) is not None:
        return known
    maker, _, called = model.rpartition("/")
    plain = called.lower().removeprefix("meta-")
    for precision, ending in _CONVERTED.items():
        converted = re.sub(ending, "", plain).removesuffix("-quantized")
        if converted == plain or (shape := by_name(converted)) is None:
            continue
        if maker.lower() in ("", "qwen") and precision == "fp8" and plain.startswith("qwen"):
            own_fp8 = catalogue().get(f"{shape.name}-FP8")
            blocks = Numbers("fp8-block", "fp8-block", "fp8-block", shape.stored.kv)
            return own_fp8 or dataclasses.replace(
                shape, name=called, stored=blocks, published_gb=None
            )
        # NVIDIA's checkpoints ask for a KV cache in 8 bits, those of others do not.
        own = maker.lower() == "nvidia" and precision != "int4"
        kv = "fp8" if own else shape.stored.kv
        stored = shape.numbers(precision, kv)
        return dataclasses.replace(shape, name=called, published_gb=None, stored=stored)
    names = [name.lower() for name in catalogue()]
    plain = _plain(model)
    near = [name for name in names if name.startswith(plain)] or names
    raise InputError(
        f"the shape of {checks.shown(model)} is not known{nearest(plain, near)}; give the path of "
        "its config.json"
    )


def by_name(model: str) -> ModelShape | None:
    """Return the shape of a model of the catalogue, whose name may have an organisation before it,
    and a variant or a version behind it; None: there is none.
    """
    names = {name.lower(): name for name in catalogue()}
    plain = _plain(model)
    name = names.get(plain) or names.get(re.sub(_VERSION, "", plain))
    return None if name is None else catalogue()[name]


def _plain(model: str) -> str:
    """Return the name of a model in small letters, without organisation and variants."""
    plain = model.rpartition("/")[2].lower().removeprefix("meta-")
    for variant in _VARIANTS:
        plain = plain.removesuffix(variant).replace(f"{variant}-", "-")
    return plain
