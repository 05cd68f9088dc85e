"""The command ``penstock sweep``: many scenarios from one, into a table that can be resumed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock import checks
from penstock.errors import InputError
from penstock.show.options import Form, ScenarioPath, Seed, answers, files_of

if TYPE_CHECKING:
    import polars as pl


Vary = Annotated[
    list[str] | None,
    typer.Option(
        "--vary",
        metavar="FIELD=VALUES",
        help="A field and what it takes: server.token_budget=128,512, workload.rate=1:10:0.5, or "
        "with --sample "
        "1:10 or 1:10:log; may be repeated. Default: the section `sweep` of the scenario.",
    ),
]
Sample = Annotated[
    int | None, typer.Option("--sample", help="Random points, instead of the whole grid.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FILE", help="The table, .parquet or .csv; the same call resumes it."
    ),
]
Jobs = Annotated[
    int, typer.Option("--jobs", help="Workers; -1: one to each core, all of a cluster.")
]
Backend = Annotated[
    str,
    typer.Option(
        "--backend", help="loky (this machine), ray, dask, ray://host:port or dask://host:port."
    ),
]
Seeds = Annotated[
    int | None, typer.Option("--seeds", help="Runs of each point, with seeds one after another.")
]
Independent = Annotated[
    bool,
    typer.Option(
        "--independent", help="A seed of its own for each point, not common random numbers."
    ),
]
Test = Annotated[
    bool,
    typer.Option(
        "--test/--no-test", help="Test whether a point is stable where no theorem says so."
    ),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Begin anew, whatever --out holds.")]
Sort = Annotated[
    str | None,
    typer.Option("--sort", metavar="COLUMN", help="Order of the rows shown; of many by e2e_p50_s."),
]


@answers("figures", "report")
def sweep(
    scenario: ScenarioPath,
    vary: Vary = None,
    sample: Sample = None,
    out: Out = None,
    jobs: Jobs = -1,
    backend: Backend = "loky",
    seed: Seed = None,
    seeds: Seeds = None,
    independent: Independent = False,
    test: Test = True,
    fresh: Fresh = False,
    sort: Sort = None,
    *,
    form: Form,
) -> None:
    """Run a scenario with every combination of some of its fields, or a random sample, and tabulate
    what happens.

    Killed at any moment, the same call goes on where it stopped: finished points are kept beside
    the table.
    """
    from penstock.show import progress
    from penstock.sweeping.points import checked_order
    from penstock.sweeping.store import checked_output, journal_of
    from penstock.sweeping.sweep import set_up
    from penstock.sweeping.sweep import sweep as run_sweep
    from penstock.sweeping.view import sweep_page

    varied = None if vary is None else fields(vary)
    journal = None
    if out is not None:
        out = checked_output(out)
        journal = journal_of(out)
    values = [value for text in (varied or {}).values() for value in text.split(",")]
    form.check(files_of(scenario, *values), {"--out": out, "the journal of --out": journal})
    checked_order(sort)
    chosen = set_up(
        scenario, varied, sample=sample, seed=seed, seeds=seeds, independent=independent or None,
        test=test,
    )  # fmt: skip
    with progress.count("Sweeping", "point") as show:
        table = run_sweep(chosen, out=out, jobs=jobs, backend=backend, fresh=fresh, progress=show)
    _refuse_if_all_bad(table, out, journal)
    if out is not None:
        form.written("Table", [out])
    document = {"points": table.to_dicts()}
    names = list(chosen.fields)
    if form.figures is not None or form.report is not None:
        from penstock.sweeping.stable_rates import with_stable_rates

        with progress.bar("Finding the stable rates") as show_rates:
            table = with_stable_rates(chosen, table, progress=show_rates)
    if form.figures is not None:
        from penstock.sweeping.charts import figures as drawings

        form.draw(drawings(table, names))
    form.show(sweep_page(table, names, scenario.stem, sort), document)


def _refuse_if_all_bad(table: "pl.DataFrame", *files: Path | None) -> None:
    """Refuse a table without results, which would stand in the way of the corrected sweep."""
    if table["error"].null_count():
        return
    for file in files:
        if file is not None:
            file.unlink(missing_ok=True)
    raise InputError(
        f"every point of the sweep is bad, so there is no table; the first: {table['error'][0]}"
    )


def fields(options: list[str]) -> dict[str, str]:
    """Return ``FIELD=VALUES`` as pairs."""
    pairs: dict[str, str] = {}
    for text in options:
        name, equals, values = text.partition("=")
        name = name.strip()
        if not (name and equals and values.strip()):
            raise InputError(
                f"--vary {checks.shown(text)} names no field and values; give --vary "
                "server.token_budget=128,512"
            )
        if name in pairs:
            raise InputError(f"--vary {name} stands twice; give all its values at once")
        pairs[name] = values.strip()
    return pairs
