"""What a row of a benchmark measured, and the load that it was."""

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]

_LEAST_CARRIED = 0.9  # of what may end: whoever carries less lets a queue grow
_LONGEST_OUTPUT = 3.0  # means of an output that the last of a run takes
_FULL = 0.8  # share of a closed loop that streams at least, unless something holds the others back

MEASURES = {
    "ttft": ("ttft_p50_s", "ttft_mean_s"),
    "itl": ("itl_mean_s", "tpot_mean_s", "itl_p50_s"),
    "e2e": ("e2e_mean_s", "e2e_p50_s"),
    "requests_per_s": ("requests_per_s",),
    "ttft_p99": ("ttft_p99_s",),
    "e2e_p99": ("e2e_p99_s",),
}
"""The columns that a row is judged by: of each, the first that it has."""


def column_of(row: Row, metric: str) -> str:
    """Return the column of `MEASURES` that a row has of a metric; where it has none, the first."""
    columns = MEASURES[metric]
    return next((name for name in columns if row[name]), columns[0])


def measured(row: Row, metric: str) -> float | None:
    """Return what a row has of a metric of `MEASURES`; None: nothing."""
    value = row[column_of(row, metric)]
    return float(value) if value else None


def spread_of(row: Row, name: str) -> float:
    """Return the squared coefficient of variation of a length, as the tool drew it."""
    mean, low, high, deviation = (
        row[f"{name}_{part}"] for part in ("tokens", "low", "high", "std")
    )
    if deviation:
        return float((deviation / mean) ** 2)
    if low is not None and high > low:
        return float(((high - low) / (low + high)) ** 2 / 3)
    return 0.0


def rate_of(row: Row) -> float:
    """Return the requests of a row that ended in a second."""
    return float(row["requests_per_s"] or row["completed"] / row["duration_s"])


def streams_of(row: Row) -> float:
    """Return how many requests of a row decode at a time, by Little's law."""
    if row["in_flight"] == 1:
        return 1.0
    gaps = max(float(row["output_tokens"]) - 1, 0.0)
    return rate_of(row) * gaps * (measured(row, "itl") or 0.0)


def tokens_held(row: Row) -> float:
    """Return the tokens that the requests of a row hold while they decode, by Little's law."""
    before = row["prompt_tokens"] + row["output_tokens"] * (1 + spread_of(row, "output")) / 2
    return streams_of(row) * float(before)


def held_back(row: Row, max_batch_size: int | None) -> bool:
    """Return whether a closed loop keeps fewer streams going than it may: others have to wait."""
    if row["pattern"] != "closed":
        return False
    places = min(row["in_flight"], max_batch_size or row["in_flight"])
    waits = (measured(row, "ttft") or 0.0) > 2 * (measured(row, "itl") or 0.0)
    return bool(1 < streams_of(row) < _FULL * places and waits)


def saturated(row: Row) -> bool:
    """Return whether more arrived than the server carried: what left says how much that is."""
    if row["pattern"] == "closed" or not row["rate"] or not row["requests_per_s"]:
        return False
    # The last requests end after the last was sent, at any load.
    sending = row["sending_s"] or row["completed"] / row["rate"]
    alone = (measured(row, "itl") or 0.0) * row["output_tokens"] * _LONGEST_OUTPUT
    return bool(row["requests_per_s"] < _LEAST_CARRIED * row["completed"] / (sending + alone))
