"""How long requests take under a family of schedulers, and how long they took in the paper."""

import dataclasses
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from penstock import checks
from penstock.checking.verdict import verdict
from penstock.document import Section, Whole, parsed
from penstock.inputs.arrays import Floats
from penstock.reproducing.item import Setup, refuse
from penstock.simulation.run import Run
from penstock.simulation.simulate import simulate
from penstock.system.batch_time import MOST_TOKENS, BatchTime
from penstock.system.measured_times import Measured
from penstock.workload.workload import Workload

METRICS = ("E2E", "TTFT", "TBT")
PERCENTILES = (50, 90, 95, 99)
PUBLISHED = {
    "FasterTransformer": (
        (45.38, 116.81, 123.98, 139.65),
        (44.61, 114.53, 123.63, 138.87),
        (0.04, 0.04, 0.04, 0.05),
    ),
    "Orca": ((7.1, 16.13, 18.6, 30.59), (4.55, 13.99, 14.83, 15.9), (0.08, 0.19, 0.24, 0.38)),
    "vLLM": ((6.22, 14.62, 20.74, 40.75), (2.52, 7.07, 8.58, 10.09), (0.17, 0.43, 0.47, 0.65)),
    "Sarathi-Serve": (
        (3.78, 8.8, 12.29, 22.36),
        (2.02, 3.87, 5.81, 7.47),
        (0.13, 0.17, 0.17, 0.17),
    ),
}
"""Seconds by scheduler, metric and percentile (tab:latency-code)."""

FITTED = frozenset({"Vidur"})
"""Families whose limits were chosen to come near the published rows: agreement is no independent
check.
"""


class _Row(Section):
    server: dict[str, Any]
    flat_beyond: Whole | None = None  # batches of more tokens take no longer
    longest_gap: Annotated[float, Field(gt=0)] | None = None  # between arrivals, in means


@dataclasses.dataclass(frozen=True, eq=False)
class Family:
    """Four schedulers measured; ``seconds`` has the shape (seeds, schedulers, metrics,
    percentiles).
    """

    name: str
    schedulers: tuple[str, ...]
    seconds: Floats
    overloaded: frozenset[str]

    @property
    def mean(self) -> Floats:
        """Mean over the seeds."""
        return np.asarray(self.seconds.mean(axis=0))

    @property
    def spread(self) -> Floats:
        """Standard deviation over the seeds."""
        return np.asarray(self.seconds.std(axis=0, ddof=min(1, len(self.seconds) - 1)))

    @property
    def published(self) -> Floats:
        """The rows of the paper."""
        return np.array([PUBLISHED[name] for name in self.schedulers])

    @property
    def label(self) -> str:
        """The name, and whether the family was made to agree."""
        return f"{self.name}, fitted" if self.name in FITTED else self.name


def measured_family(
    setup: Setup,
    name: str,
    rows: dict[str, Any],
    workload: Workload,
    *,
    requests: int,
    seeds: int,
) -> Family:
    """Serve so many requests under each scheduler of a family, once with each seed.

    Raises
    ------
    InputError
        If a row is none of the table's, or there is nothing to compare it with.
    """
    unknown = [row for row in rows if row not in PUBLISHED]
    refuse(
        unknown or len(rows) < 2,
        f"reproduce.schedulers.{name} has the rows {', '.join(rows) or 'none'}, but a "
        f"comparison takes two or more of the table's: {', '.join(PUBLISHED)}",
    )
    seconds = np.empty((seeds, len(rows), len(METRICS), len(PERCENTILES)))
    overloaded = set()
    for index, (scheduler, document) in enumerate(rows.items()):
        row = parsed(document, _Row, f"reproduce.schedulers.{name}.{scheduler}", "a server")
        server = setup.scenario(server=row.server).server
        if row.flat_beyond is not None:
            server = dataclasses.replace(
                server, batch_time=_flat(server.batch_time, row.flat_beyond)
            )
        for seed in range(seeds):
            drawn = _drawn(workload.with_seed(workload.seed + seed), requests, row.longest_gap)
            seconds[seed, index] = _latency(simulate(drawn, server))
        if verdict(workload, server, resolution=0.05).verdict == "unstable":
            overloaded.add(scheduler)
    return Family(name, tuple(rows), seconds, frozenset(overloaded))


def _flat(model: BatchTime, tokens: int) -> Measured:
    """Return batch times that rise no more beyond a token load."""
    loads = np.arange(
        1,
        checks.whole("flat_beyond", tokens, 1, MOST_TOKENS - 1, "tokens", "a batch has tokens") + 1,
    )
    return Measured([*loads.tolist(), MOST_TOKENS], [*model(loads).tolist(), float(model(tokens))])


def _drawn(workload: Workload, count: int, longest_gap: float | None) -> Workload:
    """Return so many requests, gaps longer than some means cut to that."""
    rows = workload.requests(count)
    arrival = rows.arrival_s
    if longest_gap is not None:
        gaps = np.minimum(np.diff(arrival, prepend=0.0), longest_gap / workload.rate)
        arrival = np.cumsum(gaps)
    return Workload.from_arrays(arrival, rows.prompt_tokens, rows.output_tokens, name=workload.name)


def _latency(run: Run) -> Floats:
    """Return seconds by metric and percentile."""
    rows = run.requests
    arrival, first, last = (
        rows[name].to_numpy() * 1e-9 for name in ("arrival_ns", "first_token_ns", "finish_ns")
    )
    samples = (last - arrival, first - arrival, (last - first) / rows["output_tokens"].to_numpy())
    return np.array([np.percentile(sample, PERCENTILES) for sample in samples])
