"""A sweep: points to workers, rows to the journal as they come, in the end a table of them."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl

from penstock import checks
from penstock.document import Section, Whole, check_mapping, files_named, parsed, read_document
from penstock.errors import InputError
from penstock.fields import parts_of
from penstock.scenario.run_section import DEFAULT_ARRIVALS
from penstock.scenario.scenario import describes_network
from penstock.show.answers import Meaning
from penstock.sweeping import grid, store, workers
from penstock.sweeping.fields import resolved
from penstock.sweeping.grid import Point
from penstock.sweeping.tasks import FACTS, Job, Row, run_points

Progress = Callable[[int, int], None]
"""Called with the number of finished points, and of all."""

_REQUESTS_TO_A_CHUNK = (
    400_000  # a fifth of a second: little is lost with a worker, and little spent on messages
)
_MOST_TO_A_CHUNK = 64
_OF_ROW = {**FACTS, "error": Annotated[str, Meaning("Why a bad point has nothing else.")]}
COLUMNS = {
    "point": Annotated[int, Meaning("Its number in the grid.")],
    "seed": Annotated[int, Meaning("Of its workload.")],
    **_OF_ROW,
}
"""Columns of a table beside the fields that vary, and what they hold."""

_FRUITLESS = 3  # times that workers may die without a single point done


class SweepSection(Section):
    """The section ``sweep`` of a scenario: what varies, how much, and how often points repeat."""

    vary: dict[str, Any]
    sample: Whole | None = None
    seeds: Whole = 1
    independent: bool = False


class _Parts(Section):
    """The sections of a scenario; what is in them is checked point by point."""

    workload: Any = None
    server: Any = None
    simulate: Any = None
    plan: Any = None
    sweep: Any = None


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What a sweep will do, checked."""

    name: str  # of the scenario
    job: Job  # what workers know
    fields: tuple[str, ...]  # the names of what varies, as given
    points: tuple[Point, ...]
    digest: str  # of everything that the rows depend on


def sweep(
    scenario: "str | Path | Mapping[str, Any] | Sweep",
    vary: Mapping[str, Any] | None = None,
    *,
    sample: int | None = None,
    out: str | Path | None = None,
    jobs: int = -1,
    backend: str = "loky",
    seed: int | None = None,
    seeds: int | None = None,
    independent: bool | None = None,
    test: bool = True,
    fresh: bool = False,
    progress: Progress | None = None,
) -> pl.DataFrame:
    """Run a scenario with every combination of some of its fields, or a random sample of them.

    The rows are the same whatever the backend, the number of workers and the order in which they
    finish.

    Parameters
    ----------
    scenario
        A file, what one would hold (paths then begin in the working folder), or what `set_up` made
        of it.
    vary
        Dotted fields and what they take: a list of values, text such as ``"1:10:0.5"`` (from, to,
        step), and to draw from, with ``sample``, ``(low, high)`` or ``"1:10:log"``. Default: the
        scenario's ``sweep``.
    sample
        Random points, instead of the whole grid.
    out
        A ``.parquet`` or ``.csv`` file, and a journal beside it, so that the next call goes on
        where this one stopped.
    jobs
        Workers; -1: one to each core, all of a cluster.
    backend
        ``loky`` (this machine), ``ray``, ``dask``, ``ray://host:port`` or ``dask://host:port``.
    seed
        Instead of the scenario's.
    seeds
        Runs of each point, with seeds one after another.
    independent
        Whether to give each point a seed of its own, not common random numbers.
    test
        Whether to test points that no theorem judges.
    fresh
        Whether to begin anew, whatever ``out`` and its journal hold.
    progress
        Called with the number of finished points, and of all.

    Returns
    -------
    pl.DataFrame
        A row per point in the order of the grid; its columns are those of `table`.

    Raises
    ------
    InputError
        If a field, a value or a file cannot be used.
    """
    target = None if out is None else store.checked_output(out)
    plan = scenario
    if not isinstance(plan, Sweep):
        plan = set_up(
            plan, vary, sample=sample, seed=seed, seeds=seeds, independent=independent, test=test
        )
    workers.checked(backend, jobs)
    if target is None:
        rows: dict[int, Row] = {}
        _finish(plan, backend, jobs, rows, lambda row: rows.setdefault(row["point"], row), progress)
        return table(plan, rows)
    with (
        store.named_if_full(target),
        store.Journal.opened(target, plan.digest, fresh=fresh) as journal,
    ):
        _finish(plan, backend, jobs, journal.rows, journal.add, progress)
        result = table(plan, journal.rows)
        if result[
            "error"
        ].null_count():  # else there is nothing but mistakes, and no table to take for an answer
            store.write_table(result, target)
    return result


def set_up(
    scenario: str | Path | Mapping[str, Any],
    vary: Mapping[str, Any] | None = None,
    *,
    sample: int | None = None,
    seed: int | None = None,
    seeds: int | None = None,
    independent: bool | None = None,
    test: bool = True,
) -> Sweep:
    """Check what was asked, and list the points; parameters as in `sweep`."""
    document, folder, name = _document(scenario)
    own = document.pop("sweep", None)
    document.pop("plan", None)  # of another command
    if own is None and vary is None:
        raise InputError(
            f"nothing varies: {name} has no section `sweep`, and no fields are given; give --vary "
            "server.token_budget=128,512 or the like"
        )
    if own is not None:
        section = parsed(own, SweepSection, f"{name}: the section sweep", "`vary`")
        if vary is None:
            vary = section.vary
            sample = section.sample if sample is None else sample
        seeds = section.seeds if seeds is None else seeds
        independent = section.independent if independent is None else independent
    # what varies, where it stands in the scenario, and the points with their seeds
    count = checks.whole(
        "seeds", 1 if seeds is None else seeds, 1, 10_000, "", "each point is run so many times"
    )
    chosen = grid.axes(vary)
    keys = tuple(resolved(field) for field in chosen)
    if ("simulate", "seed") in keys:
        raise InputError(
            "simulate.seed does not vary like a field; repeat every point with --seeds 5"
        )
    simulate = document.get("simulate")
    own_seed = simulate.get("seed", 0) if isinstance(simulate, Mapping) else 0
    first = own_seed if seed is None else seed
    first = checks.whole("seed", first, 0, 2**62, "", "take any")
    points = grid.points(chosen, sample, range(first, first + count), first)
    if independent:
        points = [
            dataclasses.replace(point, seed=_own_seed(first, point.index)) for point in points
        ]
    # the digest covers all that rows depend on, files that the scenario names included
    job = Job(document, folder, keys, test)
    varied = [axis.values for axis in chosen.values() if isinstance(axis, grid.Values)]
    files = files_named([document, *varied], folder)
    digest = store.fingerprint(
        {
            "scenario": document,
            "files": {name: store.file_digest(path) for name, path in files.items()},
            "fields": list(chosen),
            "points": [(point.values, point.seed) for point in points],
            "test": test,
        }
    )
    return Sweep(name, job, tuple(chosen), tuple(points), digest)


def table(plan: Sweep, rows: Mapping[int, Row]) -> pl.DataFrame:
    """Return the finished points as a table, in the order of the grid, with a column for each field
    that varies.
    """
    done = [point for point in plan.points if point.index in rows]
    kinds = {str: pl.String, float: pl.Float64, int: pl.Int64}
    return pl.DataFrame(
        {
            "point": pl.Series([point.index for point in done], dtype=pl.Int64),
            **{
                field: _column([point.values[index] for point in done])
                for index, field in enumerate(plan.fields)
            },
            "seed": pl.Series([point.seed for point in done], dtype=pl.Int64),
            **{
                name: pl.Series(
                    [rows[point.index].get(name) for point in done],
                    dtype=kinds[parts_of(kind)[0]],
                    strict=False,
                )
                for name, kind in _OF_ROW.items()
            },
        }
    )


def _column(values: Sequence[Any]) -> pl.Series:
    """Return the values of a field: numbers where all are, else text."""
    present = [value for value in values if value is not None]
    for kinds, dtype in (((bool,), pl.Boolean), ((int,), pl.Int64), ((int, float), pl.Float64)):
        if all(
            isinstance(value, kinds) and (dtype is pl.Boolean or not isinstance(value, bool))
            for value in present
        ):
            return pl.Series(values, dtype=dtype, strict=False)
    return pl.Series(
        [None if value is None else grid.as_text(value) for value in values], dtype=pl.String
    )


def _finish(
    plan: Sweep,
    backend: str,
    jobs: int,
    rows: Mapping[int, Row],
    add: Callable[[Row], object],
    progress: Progress | None,
) -> None:
    """Run what is left with as many workers as have work; where they die, go on with the rest."""
    count = len(plan.points)
    report = progress or (lambda done, count: None)
    if len(rows) == count:
        return
    with workers.gathered(backend, jobs, count - len(rows)) as ready:
        size = _chunk_size(plan, count - len(rows), ready.count)
        fruitless = 0
        while left := [point for point in plan.points if point.index not in rows]:
            before = len(rows)
            report(before, count)
            chunks = [left[begin : begin + size] for begin in range(0, len(left), size)]
            try:
                for chunk in ready.results(functools.partial(run_points, plan.job), chunks):
                    for row in chunk:
                        add(row)
                    report(len(rows), count)
            except workers.WorkersDied as error:
                size = 1  # if a point kills its worker, let it take no other with it
                fruitless = fruitless + 1 if len(rows) == before else 0
                if fruitless == _FRUITLESS:
                    raise InputError(
                        f"workers died {_FRUITLESS} times without finishing one of the "
                        f"{len(left):,} points left "
                        f"(memory? {' '.join(str(error).split())[:200]}); what is finished is "
                        "kept, and with --out the "
                        "next call goes on from there; try fewer --jobs"
                    ) from None


def _chunk_size(plan: Sweep, left: int, count: int) -> int:
    """Return how many of the points left one of so many workers gets at a time."""
    simulate = plan.job.document.get("simulate")
    requests = simulate.get("requests") if isinstance(simulate, Mapping) else None
    requests = requests if isinstance(requests, int) and requests > 0 else DEFAULT_ARRIVALS
    return max(1, min(_REQUESTS_TO_A_CHUNK // requests, left // (8 * count), _MOST_TO_A_CHUNK))


def _own_seed(seed: int, index: int) -> int:
    return int(np.random.SeedSequence([seed, 1, index]).generate_state(1, np.uint64)[0] >> 2)


def _document(scenario: Any) -> tuple[dict[str, Any], Path, str]:
    """Return what a scenario holds, the folder of its paths, and its name."""
    if isinstance(scenario, Mapping):
        document: Any = dict(scenario)
        path = Path("scenario")
    else:
        path = checks.path("the name of a scenario", scenario)
        document = read_document(path)
    name = path.name
    check_mapping(document, name, "`workload` and `server`")
    if describes_network(document):
        raise InputError(
            f"{name} describes a network; sweeps vary scenarios of one server: `workload` and "
            "`server`"
        )
    parsed(document, _Parts, name, "`workload` and `server`")
    return document, path.resolve().parent, path.stem
