"""GPUs: what their sheets say, and the fitted times of their kernels."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from penstock.checks import shown
from penstock.errors import InputError, nearest
from penstock.system.models.kernels import Shares, Sheet

OUT = Path(__file__).parent / "kernel_times.yaml"
"""Fitted parameters, with their errors; written by `docs/kernel_fits.py`."""

_H100_FLOPS = {"bf16": 9.89e14, "fp8": 1.98e15}

SHEETS = {
    "a100-sxm": Sheet(79.2, 2.04e12, {"bf16": 3.12e14}, 3.0e11),
    "h100-sxm": Sheet(79.2, 3.35e12, _H100_FLOPS, 4.5e11),
    "h200-sxm": Sheet(139.8, 4.8e12, _H100_FLOPS, 4.5e11),
    "b200-sxm": Sheet(178.4, 7.7e12, {"bf16": 2.25e15, "fp8": 4.5e15, "fp4": 9.0e15}, 9.0e11),
    "l40s": Sheet(44.5, 8.64e11, {"bf16": 3.62e14, "fp8": 7.33e14}, 3.2e10),
}
"""Known GPUs; the memory is what drivers report, which is less than what the name says."""

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


@dataclasses.dataclass(frozen=True)
class KnownGpu:
    """A GPU: its sheet, and the parameters of its operations."""

    name: str
    sheet: Sheet
    # Parameters by operation and precision; empty: only the sheet is known.
    fits: Mapping[str, Mapping[str, Mapping[str, Any]]]

    @property
    def measured(self) -> bool:
        """Whether its kernels were measured."""
        return bool(self.fits)

    def shares(self, operation: str, precision: str = "bf16") -> Shares:
        """Return an operation's parameters, else those of the nearest precision measured."""
        answers = self.fits.get(operation, {})
        for name in (precision, precision.partition("-")[0], "bf16", "fp8"):
            if name in answers:
                return answers[name]
        return TYPICAL

    def error(self, operation: str, precision: str = "bf16") -> Mapping[str, float] | None:
        """Return median and p90 error of an operation's fit on held-out rows; None: no rows."""
        errors: Mapping[str, float] | None = (
            self.fits.get(operation, {}).get(precision, {}).get("errors")
        )
        return errors


@functools.cache
def _fits() -> Mapping[str, Any]:
    fits: Mapping[str, Any] = yaml.safe_load(OUT.read_text(encoding="utf-8"))
    return fits


def is_known(name: object) -> bool:
    """Return whether a GPU has that name, as it is written or without ``-sxm``."""
    return _spelled(name) in SHEETS


def _spelled(name: object) -> str:
    """Return a name as `SHEETS` spells it."""
    plain = str(name).lower().replace("_", "-").replace(" ", "-")
    return f"{plain}-sxm" if f"{plain}-sxm" in SHEETS else plain


def known_gpu(name: str) -> KnownGpu:
    """Return the GPU of that name."""
    known = _spelled(name)
    if known in SHEETS:
        return KnownGpu(known, SHEETS[known], _fits().get(known, {}))
    raise InputError(
        f"gpu is {shown(name)}, whose times are not known{nearest(known, SHEETS)}; give batch "
        "times that were measured there (`batch_time`)"
    )
