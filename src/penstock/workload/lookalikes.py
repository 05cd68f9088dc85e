"""Look-alikes of public traces: generators fitted to them, so that a clone has something real-like
to run on.
"""

import functools
import json
from importlib import resources
from typing import Any

import numpy as np

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.inputs import special_functions as special
from penstock.workload.arrivals import Arrivals, OnOff, WanderingRate
from penstock.workload.lengths import Independent, Tabulated

LOOKALIKES = ("azure-code", "azure-conv")
"""Names of the look-alikes."""


@functools.cache
def _parameters() -> dict[str, Any]:
    return dict(
        json.loads(resources.files("penstock.workload").joinpath("azure_2023.json").read_text())
    )


def lookalike(name: str) -> tuple[Arrivals, Independent]:
    """Return the arrival process and the lengths of a look-alike."""
    # Lengths are mixtures of lognormals, each conditioned on [low, high] and rounded, joined by a
    # Gaussian copula; arrivals are bursts and silences (code) or a wandering rate (conversation).
    if not checks.named(name, LOOKALIKES):
        raise InputError(
            f"unknown workload preset {checks.shown(name)}{nearest(str(name), LOOKALIKES)}"
        )
    fit = _parameters()[name]
    lengths = Independent(_mixture(**fit["prompt"]), _mixture(**fit["output"]), fit["correlation"])
    if "wandering" in fit:
        return WanderingRate(**fit["wandering"]), lengths
    bursts = dict(fit["on_off"])
    on, off = bursts["on_mean_s"], bursts["off_mean_s"]
    return OnOff(rate=bursts.pop("rate_on") * on / (on + off), **bursts), lengths


def _mixture(
    low: int, high: int, weights: list[float], mu: list[float], sigma: list[float]
) -> Tabulated:
    """Tabulate a mixture of lognormals, each conditioned on [low, high], in whole tokens."""
    edges = np.concatenate([[low], np.arange(low, high) + 0.5, [high]])
    probabilities = np.zeros(high - low + 1)
    for weight, m, s in zip(weights, mu, sigma, strict=True):
        part = np.diff(special.ndtr((np.log(edges) - m) / s))
        probabilities += weight * part / part.sum()
    return Tabulated(low, probabilities)
