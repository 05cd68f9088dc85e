"""GPUs: what their sheets say, and the fitted times of their kernels."""

import dataclasses
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from penstock.checks import shown
from penstock.errors import InputError, nearest
from penstock.system.models.kernels import Shares, Sheet

OUT = Path(__file__).parent / "kernel_times.yaml"
"""Fitted parameters, with their errors; written by `benchmarks/studies/kernel_fits.py`."""

_A100_FLOPS = {"bf16": 3.12e14, "int8": 6.24e14}
_H100_FLOPS = {"bf16": 9.89e14, "fp8": 1.98e15, "int8": 1.98e15}


def _twice(bf16: float) -> dict[str, float]:
    """Return FLOP/s in 16 bits and, twice as many, in 8."""
    return {"bf16": bf16, "fp8": 2 * bf16, "int8": 2 * bf16}


SHEETS = {
    "a100-sxm": Sheet(79.2, 2.04e12, _A100_FLOPS, 3.0e11, 400),
    "h100-sxm": Sheet(79.2, 3.35e12, _H100_FLOPS, 4.5e11, 700),
    "h200-sxm": Sheet(139.8, 4.8e12, _H100_FLOPS, 4.5e11, 700),
    "b200-sxm": Sheet(178.4, 7.7e12, {"bf16": 2.25e15, "fp8": 4.5e15, "fp4": 9.0e15}, 9.0e11, 1000),
    "l40s": Sheet(44.5, 8.64e11, {"bf16": 3.62e14, "fp8": 7.33e14, "int8": 7.33e14}, 3.2e10, 350),
    "gb200": Sheet(184.0, 8.0e12, {"bf16": 2.5e15, "fp8": 5.0e15, "fp4": 1.0e16}, 9.0e11, 1200),
    "b300-sxm": Sheet(
        267.0, 8.0e12, {"bf16": 2.25e15, "fp8": 4.5e15, "fp4": 1.35e16}, 9.0e11, 1400
    ),
    "h100-nvl": Sheet(93.1, 3.9e12, _twice(8.35e14), 3.0e11, 400),
    "h100-pcie": Sheet(79.2, 2.0e12, _twice(7.56e14), 6.4e10, 350),
    "h20": Sheet(95.1, 4.0e12, _twice(1.48e14), 4.5e11, 400),
    "a100-pcie": Sheet(79.2, 1.935e12, _A100_FLOPS, 3.2e10, 300),
    "a100-sxm-40gb": Sheet(39.4, 1.555e12, _A100_FLOPS, 3.0e11, 400),
    "l40": Sheet(44.5, 8.64e11, _twice(1.81e14), 3.2e10, 300),
    "l20": Sheet(44.5, 8.64e11, _twice(1.195e14), 3.2e10, 275),
    "l4": Sheet(22.0, 3.0e11, _twice(1.21e14), 3.2e10, 72),
    "a10": Sheet(22.0, 6.0e11, {"bf16": 1.25e14, "int8": 2.5e14}, 3.2e10, 150),
    "t4": Sheet(14.6, 3.2e11, {"bf16": 6.5e13, "int8": 1.3e14}, 1.6e10, 70),
    "v100-sxm": Sheet(31.7, 9.0e11, {"bf16": 1.25e14}, 1.5e11, 300),
    "rtx4090": Sheet(23.5, 1.008e12, _twice(1.652e14), 3.2e10, 450),
    "rtx5090": Sheet(
        31.4, 1.792e12, {"bf16": 2.095e14, "fp8": 4.19e14, "fp4": 1.676e15}, 6.4e10, 575
    ),
    "rtxpro6000": Sheet(
        95.0, 1.792e12, {"bf16": 5.0e14, "fp8": 1.0e15, "fp4": 2.0e15}, 6.4e10, 600
    ),
}
"""Known GPUs, after the data sheets of NVIDIA, FLOP/s without sparsity and with sums in 32 bits.

The memory is what drivers report, which is less than what the name says. 16 bits are one precision:
T4 and V100 have float16 only.
"""

_FLASH_2 = r"(a10|l4|l20|rtx)"
"""Beginnings of the names of GPUs on which vLLM runs FlashAttention 2, whatever follows."""

TYPICAL = {
    "floor_us": 5.0,
    "memory": 0.8,
    "compute": 0.7,
    "sharpness": 2.0,
    "tile_ns": 0.6,
    "activation": 0.7,
    "spread": 0.8,
    "block": 0.5,
    "walk_ns": 1.0,
    "head_ns": 1.0,
    "attention": 0.4,
    "token_ns": 1.0,
    "per_gpu": 0.1,
    "link": 0.5,
    "growth": 0.9,
    "partners": 0.5,
}
"""Usual values: where a fit begins, and what a GPU gets whose kernels nobody measured."""

SHEET_ALONE = 1.6
"""A factor that nine of ten batch times by the sheets of measured GPUs alone are within, of those
by their kernels (models of the catalogue on 1 to 8 GPUs, one decode to a prompt of 2,048)."""


Tables = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Parameters by operation and precision."""

NEAR = {"int8": ("fp8",), "mxfp4": ("int4", "bf16")}
"""Whose parameters stand for those of a precision that was not measured, before those of others."""


def version_number(version: str) -> int:
    """Return a version, such as 0.16 or 0.16.1, as a number that grows as versions do."""
    major, minor = version.split(".")[:2]
    return 1000 * int(major) + int(minor)


@dataclasses.dataclass(frozen=True)
class KnownGpu:
    """A GPU: its sheet, and the parameters of its operations."""

    name: str
    sheet: Sheet
    # By version of vLLM whose kernels were timed, nearest to what is served first; empty: only the
    # sheet is known.
    fits: Mapping[str, Tables]

    @property
    def measured(self) -> bool:
        """Whether its kernels were measured."""
        return bool(self.fits)

    @property
    def reads_again(self) -> bool:
        """Whether under vLLM a decode beside prefill reads its KV cache once for each query head;
        other engines are taken to do the same.
        """
        return re.match(_FLASH_2, self.name) is not None

    def shares(self, operation: str, precision: str = "bf16") -> Shares:
        """Return an operation's parameters, else those of the nearest precision measured."""
        near = NEAR.get(precision, ())
        for name in (precision, precision.partition("-")[0], *near, "bf16", "fp8"):
            for tables in self.fits.values():
                if name in tables.get(operation, {}):
                    return tables[operation][name]
        return TYPICAL

    def error(self, operation: str, precision: str = "bf16") -> Mapping[str, float] | None:
        """Return median and p90 error of an operation's fit on held-out rows; None: no rows."""
        answers = (tables.get(operation, {}).get(precision) for tables in self.fits.values())
        answer: Mapping[str, Any] = next(filter(None, answers), {})
        return answer.get("errors")


@functools.cache
def _fits() -> Mapping[str, Mapping[str, Tables]]:
    fast = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    fits: Mapping[str, Mapping[str, Tables]] = yaml.load(OUT.read_text(encoding="utf-8"), fast)
    return fits


_OTHERS = {
    "AMD": r"amd|mi\d|radeon|rx\d|instinct",
    "Intel": r"intel|gaudi|hpu|arc|xeon|max1\d",
    "Google": r"tpu|v[4-7][ep]?$",
    "AWS": r"aws|trn|trainium|inf",
    "Huawei": r"ascend|910",
    "Apple": r"m[1-5](pro|max|ultra|$)",
}
"""Makers whose processors run other kernels, by the beginnings of their names."""


_BESIDE = (
    "nvidia|tesla|geforce|(server|workstation) edition|tensor core|gpu|hbm\\d*e?|"
    "volta|turing|ampere|ada( lovelace)?( generation)?|hopper|blackwell"
)
"""What makers and drivers put into the name of a GPU that tells it from no other of `SHEETS`."""


def sheet_of(name: object) -> Sheet | None:
    """Return the sheet of a GPU, by its name as it is written or without ``-sxm``; None: no GPU is
    called so.
    """
    return SHEETS.get(_spelled(name))


def _spelled(name: object) -> str:
    """Return a name as `SHEETS` spells it, where that knows it."""
    text = re.sub("[-_ ]+", " ", str(name).lower())
    text = re.sub(r"\bsxm\d\b", "sxm", re.sub(_BESIDE, "", text))
    whole = text.replace(" ", "")
    names = {known.replace("-", ""): known for known in SHEETS}
    known = names.get(whole) or names.get(f"{whole}sxm")
    if known:
        return known
    # The memory in a name is what the maker says, of which drivers report nine tenths or more.
    memory = re.search(r"(80|(?<= )\d+) ?gi?b\b", text)
    if memory is None:
        return whole
    plain = (text[: memory.start()] + text[memory.end() :]).replace(" ", "")
    known = names.get(plain) or names.get(f"{plain}sxm")
    if known and 0.9 * int(memory[1]) <= SHEETS[known].memory_gib <= int(memory[1]):
        return known
    return whole


def known_gpu(name: str, version: str | None = None) -> KnownGpu:
    """Return the GPU of that name, with the kernels of a version of vLLM; None: the newest."""
    known = _spelled(name)
    if known in SHEETS:
        tables = _fits().get(known, {})
        newest = sorted(tables, key=version_number, reverse=True)
        if version is not None:
            newest.sort(key=lambda table: abs(version_number(table) - version_number(version)))
        return KnownGpu(known, SHEETS[known], {table: tables[table] for table in newest})
    near = nearest(known, SHEETS)
    for maker, names in _OTHERS.items():
        if re.match(names, known):
            near = (
                f": kernels of {maker} are other ones, and how much of its sheet they reach nobody "
                "measured here"
            )
    raise InputError(
        f"gpu is {shown(name)}, whose times are not known{near}; give batch times that were "
        "measured there (`batch_time`)"
    )
