"""A row of benchmark results: the columns of one load that was measured."""

from typing import Any

import polars as pl

METRICS = ("ttft", "itl", "tpot", "e2e")
STATISTICS = ("mean", "p50", "p90", "p99")
TIMES = tuple(f"{metric}_{statistic}_s" for metric in METRICS for statistic in STATISTICS)

# The type of a column, and what a benchmark can have measured: the least, the most, the unit.
_RATE = (pl.Float64, 1e-6, 1e6, "requests/s")
_AT_LEAST_ONE = (pl.Int64, 1, 1e6, "requests")
_REQUESTS = (pl.Int64, 0, 1e6, "requests")
_LASTED = (pl.Float64, 1e-3, 1e7, "s")
_TOKENS = (pl.Float64, 1, 1e7, "tokens")
_OF_LENGTHS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("tokens", "low", "high"), _TOKENS),
    "std": (pl.Float64, 0, 1e7, "tokens"),
    "lengths": (pl.List(pl.Int64),),
    "quantiles": (pl.List(pl.List(pl.Float64)),),
}
_TABLE: dict[str, tuple[Any, ...]] = {
    "row": (pl.Int64,),
    **dict.fromkeys(("run", "shape", "engine", "load", "pattern"), (pl.String,)),
    "rate": _RATE,
    "burstiness": (pl.Float64, 1e-3, 1e6, "(the shape of gamma-distributed gaps)"),
    "burst": _REQUESTS,
    **dict.fromkeys(("in_flight", "client_limit"), _AT_LEAST_ONE),
    **dict.fromkeys(("duration_s", "sending_s"), _LASTED),
    "completed": _AT_LEAST_ONE,
    "incomplete": _REQUESTS,
    **{
        f"{length}_{part}": _OF_LENGTHS[part]
        for parts in (("tokens", "low", "high", "std"), ("lengths",), ("quantiles",))
        for length in ("prompt", "output")
        for part in parts
    },
    "declared_tokens": _TOKENS,
    "prefix_hits": (pl.Float64, 0, 1, "of the prompt tokens"),
    **dict.fromkeys(("arrival_s", "ttft_each_s", "e2e_each_s"), (pl.List(pl.Float64),)),
    **dict.fromkeys(TIMES, (pl.Float64, 1e-7, 1e6, "s")),
    "requests_per_s": _RATE,
    "concurrency": (pl.Float64, 0, 1e6, "requests"),
    "note": (pl.String,),
}
LIMITS = {name: limits for name, (_, *limits) in _TABLE.items() if limits}
COLUMNS: dict[str, Any] = {name: kind for name, (kind, *_) in _TABLE.items()}
"""Columns of `read_benchmarks` and their types; seconds, tokens, requests. Null: not known.

``pattern`` is ``constant``, ``poisson`` (gamma gaps where a ``burstiness`` is given) or ``closed``:
``in_flight`` requests under way, each followed by another when it ends. ``burst`` requests more
came at the very start. A client with a rate had no more than ``client_limit`` under way. The whole
took ``duration_s``; the last request was sent after ``sending_s``. ``incomplete`` is how many were
cut off at the end; 0: the tool waited for all. Rows of one ``shape`` have lengths of one
distribution. Rows of one ``run`` are of one deployment and client: a file, unless its table has
such a column. ``itl`` is over all gaps between tokens (its percentiles as the tool takes them),
``tpot`` over requests, each the mean of its own gaps. ``prompt_lengths`` and ``output_lengths`` are
of each request in the order in which they were sent, where the file has them all;
``prompt_quantiles`` and ``output_quantiles`` are pairs of a share of requests and the length up to
which they were. ``declared_tokens`` is how many output tokens each request said it may make,
``prefix_hits`` the share of prompt tokens that a cache held. ``arrival_s``: when each was sent, in
seconds after the first, as recorded, or as its tool sends where that is known. ``ttft_each_s`` and
``e2e_each_s``, of the same requests, are there where it is recorded; a null in them: cut off.
``engine``: ``sglang`` where its client says so. ``note``: what was left out, or cannot be
simulated.
"""

Row = dict[str, Any]
"""One load that was measured, by column; what is not known is left out.

Beside these: ``unusable``, why the row says nothing, and ``schedule``, when its tool sends where
only the seed of its random numbers is not known.
"""


def open_loop(
    kind: str, rate: float, burstiness: float | None = None, limit: float | None = None
) -> Row:
    """Return a load that does not wait for departures: requests/s, the shape of gamma gaps."""
    # ``kind``: ``poisson`` or ``constant``; ``limit``: the most requests that the client has under
    # way.
    row: Row = {"pattern": kind, "rate": rate, "load": f"{kind}@{rate:.6g}", "client_limit": limit}
    if burstiness is not None:
        row["burstiness"] = burstiness
    return row


def closed_loop(in_flight: float) -> Row:
    """Return a load of so many requests under way, each followed by another."""
    return {"pattern": "closed", "in_flight": in_flight, "load": f"closed@{in_flight:g}"}


def add_note(row: Row, *notes: str | None) -> None:
    """Add what is left out of a row, or not simulated, to its note."""
    row["note"] = "; ".join(filter(None, (row.get("note"), *notes))) or None
