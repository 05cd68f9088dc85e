"""Predictions of every row of a benchmark, beside what was measured."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from penstock.measuring.calibration.allowed import Range
from penstock.measuring.calibration.build import with_tokens
from penstock.measuring.calibration.loads import MEASURES, Row, column_of, measured, rate_of
from penstock.measuring.calibration.posterior import Fit
from penstock.measuring.calibration.predict import (
    Overhead,
    Requests,
    predict,
    requests_of,
    sustained_rate,
)
from penstock.system.server import Server

MISSED = 0.25
"""Relative error beyond which a row counts as missed, in any of `JUDGED`."""

ROUGHLY = 0.15
"""Relative error beyond which a row that was used to fit is met only roughly."""

JUDGED = ("ttft", "itl", "e2e", "requests_per_s")
"""What a row is warned of; the p99s are not fitted, and their errors stand in the table."""

UNSURE = 0.6
"""Share of the prior's standard deviation: a cost that stays less certain is not identified."""

_LENGTHS = 1.2  # factor beyond those of the fitted rows at which a prediction hinges on priors
_HINGES = {
    "prompt": ("per_token", "per_token_below", "self_attention", "with_prefill", "overhead"),
    "context": ("decode_attention",),
    "output": ("front_end", "front_end_per_token"),
}


class Hinge(NamedTuple):
    """Costs that the rows do not identify, and the lengths between which that does not matter."""

    kind: str
    low: float
    high: float
    costs: str


def unidentified(fit: Fit, ranges: Mapping[str, Range]) -> tuple[str, ...]:
    """Return costs that rows do not tell: they hardly narrow the prior, or allow a wide range."""
    wide = [name for name, of in ranges.items() if of.open]
    return tuple(
        name
        for name, prior in fit.priors.of.items()
        if name in wide or fit.deviations[name] > UNSURE * prior.deviation
    )


def hinges_of(unsure: Sequence[str], fitted: Sequence[Row]) -> list[Hinge]:
    """Return on which unidentified costs predictions of lengths unlike the fitted rows' hinge."""
    hinges = []
    for kind, costs in _HINGES.items():
        unknown = [name for name in costs if name in unsure]
        lengths = [_length(row, kind) for row in fitted]
        if unknown:
            low = min(lengths) / _LENGTHS
            hinges.append(Hinge(kind, low, max(lengths) * _LENGTHS, ", ".join(unknown)))
    return hinges


def _length(row: Row, kind: str) -> float:
    lengths = {"prompt": row["prompt_tokens"], "output": row["output_tokens"]}
    return float(lengths.get(kind, sum(lengths.values())))


def judged(
    rows: Sequence[Row],
    fitted: Sequence[bool],
    servers: Mapping[str, tuple[Server, Overhead]],
    seed: int,
    hinges: Sequence[Hinge],
    least_tokens: float | None,
) -> pl.DataFrame:
    """Predict every row, and put what was measured beside it."""
    # ``hinges``: on which costs predictions of other lengths hinge. ``least_tokens``: the KV memory
    # that the servers have for sure, None: theirs.
    limits: dict[tuple[str, str], dict[str, float]] = {}
    entries = []
    for row, is_fitted in zip(rows, fitted, strict=True):
        server, overhead = servers[row["run"]]
        load = requests_of(row, server, seed)
        predicted = predict(load, server, overhead)
        kind = row["run"], row["shape"]
        if kind not in limits:
            carried = max(rate_of(each) for each in rows if each["shape"] == row["shape"])
            limits[kind] = _limits(load, server, least_tokens, carried)
        limit = limits[kind]["limit_per_s"]
        hinging = [h.costs for h in hinges if not h.low <= _length(row, h.kind) <= h.high]
        compared: dict[str, Any] = {}
        for metric in MEASURES:
            compared |= _compared(metric, row, predicted)
        entries.append(
            {name: row[name] for name in ("row", "run", "shape", "load")}
            | {"fitted": is_fitted}
            | compared
            | limits[kind]
            | {
                "beyond": None if row["pattern"] == "closed" else bool(row["rate"] > limit),
                "missed": any(abs(compared[f"{name}_error"] or 0.0) > MISSED for name in JUDGED),
                "hinges_on": ", ".join(hinging) or None,
                "note": row["note"],
            }
        )
    types: dict[str, Any] = dict.fromkeys(compared, pl.Float64) | {"beyond": pl.Boolean}
    types |= dict.fromkeys(("hinges_on", "note"), pl.String)
    return pl.DataFrame(entries, infer_schema_length=None, schema_overrides=types)


def _compared(metric: str, row: Row, predictions: Mapping[str, float]) -> dict[str, float | None]:
    """Return what was measured of a metric, what is predicted, and the relative error."""
    known = measured(row, metric)
    prediction = predictions[column_of(row, metric)]
    predicted = prediction if np.isfinite(prediction) else None
    error = None
    if known is not None:
        error = -1.0 if predicted is None else predicted / known - 1
    values = {"measured": known, "predicted": predicted, "error": error}
    return {f"{metric}_{name}": value for name, value in values.items()}


def _limits(
    load: Requests, server: Server, least_tokens: float | None, carried: float
) -> dict[str, float]:
    """Return the requests per second that a server carries, and those with the memory it has."""
    # ``carried``: what some row did, so it is no limit below that.
    limit = at_least = sustained_rate(load, server)
    if least_tokens is not None:
        tight = with_tokens(server, load, least_tokens)
        at_least = min(max(sustained_rate(load, tight), carried), limit)
    return {"limit_per_s": limit, "limit_at_least_per_s": at_least}
