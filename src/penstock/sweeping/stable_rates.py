"""The highest stable rate of every server in a sweep: by theorem where one applies."""

from typing import Any

import polars as pl

from penstock.capacity.max_rate import max_rate
from penstock.errors import InputError
from penstock.scenario import scenario
from penstock.simulation.progress import Progress, in_parts, silent
from penstock.sweeping.fields import at, resolved
from penstock.sweeping.sweep import Sweep
from penstock.theory.ends import taken_as_exact

MOST = 100
"""Combinations of fields whose stable rate is sought; a random sample of more would take minutes.
"""

RATE, KNOWN = "stable_rate", "stable_rate_known"

PRECISION = 0.02
"""Relative distance between the highest rate known to be stable and the lowest known not to be."""


def is_rate(field: str) -> bool:
    """Return whether a field is the arrival rate, in whichever form of workload."""
    keys = resolved(field)
    return keys[0] == "workload" and keys[-1] == "rate"


def with_stable_rates(
    plan: Sweep, rows: pl.DataFrame, *, progress: Progress | None = None
) -> pl.DataFrame:
    """Return the rows with the highest stable rate of their servers, whatever rate arrives."""
    # ``stable_rate``: requests/s, null: none; ``stable_rate_known``: the theorem, ``simulation``,
    # or why there is none. Rows stay as they were where servers are more than `MOST`.
    kept = [index for index, field in enumerate(plan.fields) if not is_rate(field)]
    servers: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for point in plan.points:
        servers.setdefault(_key(point.values, kept), point.values)
    if len(servers) > MOST:
        return rows
    rates: dict[tuple[Any, ...], tuple[float | None, str]] = {}
    for (key, values), part in in_parts(progress, servers.items()):
        try:
            built = scenario.build(at(plan.job.document, plan.job.keys, values), plan.job.folder)
            found = max_rate(
                built.workload, taken_as_exact(built.server), precision=PRECISION,
                seed=built.workload.seed, progress=part,
            )  # fmt: skip
            rates[key] = found.rate, found.known
        except InputError as error:
            rates[key] = None, str(error)
    (progress or silent)(1.0)
    of_point = {point.index: rates[_key(point.values, kept)] for point in plan.points}
    limits = [of_point[index] for index in rows["point"]]
    return rows.with_columns(
        pl.Series(RATE, [rate for rate, _ in limits], pl.Float64),
        pl.Series(KNOWN, [known for _, known in limits], pl.String),
    )


def _key(values: tuple[Any, ...], kept: list[int]) -> tuple[str, ...]:
    return tuple(repr(values[index]) for index in kept)
