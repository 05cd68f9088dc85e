"""One point of a sweep to one row of its table: built, certified, tested if need be, simulated."""

import dataclasses
import functools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import ValidationError

from penstock.checking.doubt import end_of
from penstock.document import Section, one_line
from penstock.errors import InputError
from penstock.scenario.run_section import DEFAULT_ARRIVALS
from penstock.scenario.scenario import SimulateSection
from penstock.scenario.server import ServerSection
from penstock.scenario.workload import WorkloadSection
from penstock.show.answers import Meaning
from penstock.simulation.run import Run
from penstock.simulation.simulate import simulate
from penstock.sweeping.fields import at
from penstock.sweeping.grid import Point
from penstock.system.server import Server
from penstock.theory.certify import certify
from penstock.theory.ends import server_ends
from penstock.words import STATISTICS
from penstock.workload.workload import Workload

Row = dict[str, Any]
Sections = TypeVar("Sections", bound=Section)

FACTS = {
    "verdict": Annotated[str, Meaning("The theorem's, or where it says nothing the test's.")],
    "theory": Annotated[str, Meaning("The theorem's; or ``unknown``.")],
    "rho": Annotated[float, Meaning("Load.")],
    "max_rate": Annotated[float, Meaning("Requests/s above which no policy is stable.")],
    "max_rate_low": Annotated[
        float, Meaning("At the slow end of the batch times; null: they are taken as exact.")
    ],
    "max_rate_high": Annotated[float, Meaning("At their fast end.")],
    "requests": Annotated[int, Meaning("That arrived.")],
    "unfinished": Annotated[int, Meaning("Requests that had not ended when the run stopped.")],
    "batches": Annotated[int, Meaning("That started.")],
    "seconds": Annotated[float, Meaning("Simulated.")],
    "throughput": Annotated[float, Meaning("Requests that ended, per second.")],
    "tokens_per_s": Annotated[float, Meaning("Tokens of batches that ended, per second.")],
    "utilisation": Annotated[float, Meaning("Share of the time in batches.")],
    "preemptions": Annotated[int, Meaning("How often a request had to make room.")],
    **{
        f"{metric}_{statistic}_s": Annotated[float, Meaning(f"Of the run, {between}.")]
        for metric, between in {
            "ttft": "from arrival to first token",
            "tbt": "from token to token",
            "e2e": "from arrival to last token",
        }.items()
        for statistic in STATISTICS
    },
}
"""Columns of a row beside its fields, and what they hold."""

MOST_REQUESTS = 1_000_000_000
"""Of one run: some ten minutes where the simulator is fast."""

_TRACES_KEPT = 8
_SERVERS_KEPT = 64


@dataclasses.dataclass(frozen=True)
class Job:
    """What every worker knows of a sweep."""

    document: dict[str, Any]  # the scenario, as read
    folder: Path  # where its own paths are looked for
    keys: tuple[tuple[str, ...], ...]  # the fields that vary, as keys into the document
    test: bool = True  # ask the sequential test where no theorem says whether a point is stable


def run_points(job: Job, points: Sequence[Point]) -> list[Row]:
    """Return a row for each point; a bad one is a row with its message."""
    return [run_point(job, point) for point in points]


def run_point(job: Job, point: Point) -> Row:
    """Return the row of a point: its index, and what was found or why nothing could be."""
    try:
        row = _found(at(job.document, job.keys, point.values), job, point.seed)
    except InputError as error:
        row = {"error": str(error)}
    except Exception as error:  # one point that hits a bug must not cost the others
        row = {
            "error": f"{type(error).__name__}: {error} (a bug of Penstock: please report the "
            "scenario)"
        }
    numbers = {
        name: None if isinstance(v, float) and not math.isfinite(v) else v
        for name, v in row.items()
    }
    return {"point": point.index, **numbers}


def _found(document: Mapping[str, Any], job: Job, seed: int) -> Row:
    """Certify, test and simulate one scenario."""
    settings = _section(SimulateSection, document, "simulate")
    workload = _workload(document, job.folder).with_seed(seed)
    server = _server(json.dumps(document.get("server", {}), default=str), job.folder)
    requests = settings.requests
    if requests is None and settings.until is None:
        requests = workload.rows or DEFAULT_ARRIVALS
    _refuse_endless(workload, requests, settings.until)
    certificate = certify(workload, server)
    run = simulate(workload, server, requests=requests, until=settings.until, record="summary")
    said = _said(workload, server, job.test)
    ends = server_ends(workload, server)
    rates: tuple[float | None, float | None] = (None, None)
    if ends is not None:
        rates = certify(workload, ends.slow).max_rate, certify(workload, ends.fast).max_rate
        if {_said(workload, one, job.test) for one in (ends.slow, ends.fast)} != {said}:
            said = "undecided"
    return {
        "verdict": said,
        "theory": certificate.verdict,
        "rho": certificate.with_found(run.found_share, run.server).rho,
        "max_rate": certificate.max_rate,
        "max_rate_low": rates[0],
        "max_rate_high": rates[1],
        **_measured(run),
    }


def _said(workload: Workload, server: Server, test: bool) -> str:
    """Return what a theorem says, or else the test if it is asked."""
    certificate = certify(workload, server)
    if not test:
        return certificate.verdict
    return end_of((workload, server), certificate).verdict


def _refuse_endless(workload: Workload, requests: int | None, until: float | None) -> None:
    """Refuse a run of which nobody would see the end; a recording has one."""
    count = requests if until is None else workload.rate * until
    if workload.rows is None and count is not None and count > MOST_REQUESTS:
        size = (
            f"requests is {requests:,}"
            if until is None
            else f"until is {until:g} s, for {count:.4g} requests"
        )
        raise InputError(
            f"simulate.{size}, but one run of a sweep has at most {MOST_REQUESTS:,}, which take "
            "some ten minutes or "
            "more; lower it, or repeat the point with --seeds"
        )


def _measured(run: Run) -> Row:
    """Return what a run shows, in plain numbers."""
    return {
        "requests": run.arrived,
        "unfinished": run.unfinished,
        "batches": run.n_batches,
        "seconds": run.seconds,
        "throughput": run.finished / run.seconds if run.seconds else None,
        "tokens_per_s": run.tokens_per_s,
        "utilisation": run.utilisation,
        "preemptions": run.preemptions,
        **{
            f"{latency['metric'].removesuffix('_s')}_{statistic}_s": latency[statistic]
            for latency in run.latency().iter_rows(named=True)
            for statistic in STATISTICS
        },
    }


def _workload(document: Mapping[str, Any], folder: Path) -> Workload:
    """Return a scenario's workload, whatever its seed; a worker reads a recording once."""
    section = _section(WorkloadSection, document, "workload")
    keys = document.get("workload", {})
    if section.trace is None and section.preset is None:
        return section.build(folder, 0)
    changes = {"rate", "arrivals", "cv"}
    kept = _recorded(
        json.dumps({k: v for k, v in keys.items() if k not in changes}, sort_keys=True), folder
    )
    if not any(getattr(section, name) is not None for name in changes):
        return kept
    rate = kept.rate if section.rate is None else section.rate
    return kept.with_rate(rate, section.arrivals or "scaled", cv=section.cv)


@functools.lru_cache(maxsize=_TRACES_KEPT)
def _recorded(section: str, folder: Path) -> Workload:
    """Return a trace or a preset at its own rate."""
    return WorkloadSection.model_validate(json.loads(section)).build(folder, 0)


@functools.lru_cache(maxsize=_SERVERS_KEPT)
def _server(section: str, folder: Path) -> Server:
    return _section(ServerSection, {"server": json.loads(section)}, "server").build(folder)


def _section(model: type[Sections], document: Mapping[str, Any], name: str) -> Sections:
    """Return a section of a scenario, checked."""
    try:
        return model.model_validate(document.get(name, {}))
    except ValidationError as error:
        raise InputError(f"{name}: {one_line(error, model)}") from None
