"""The command ``penstock sweep``: many scenarios from one, into a table that can be resumed."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import InputError
from penstock.show.commands import command, pairs
from penstock.show.options import Form, files_of

if TYPE_CHECKING:
    import polars as pl


@command("sweep", but="seed", form="figures report")
def sweep(
    scenario: Path,
    *,
    vary: list[str] | None = None,
    out: Path | None = None,
    form: Form,
    seed: int | None = None,
    sort: str | None = None,
    **options: Any,
) -> None:
    """Run a scenario with fields varied, and tabulate what happens.

    It runs every combination of values, or a random sample.

    Killed at any moment, the same call goes on where it stopped: finished points are kept beside
    the table.

    Parameters
    ----------
    sort : COLUMN
        Order of the rows shown; of many by e2e_p50_s, at each rate where that varies.
    vary : FIELD=VALUES
        A field and what it takes: server.token_budget=128,512, workload.rate=1:10:0.5, or with
        --sample 1:10 or 1:10:log. Default: the scenario's `sweep`.
    out
        The table, .parquet or .csv; the same call resumes it.
    """
    from penstock.show import progress
    from penstock.sweeping.points import checked_order
    from penstock.sweeping.store import checked_output, journal_of
    from penstock.sweeping.sweep import set_up
    from penstock.sweeping.sweep import sweep as run_sweep
    from penstock.sweeping.view import sweep_page

    example = "server.token_budget=128,512"
    varied = pairs("--vary FIELD=VALUES", vary, example) if vary else None
    journal = None
    if out is not None:
        out = checked_output(out)
        journal = journal_of(out)
    values = [value for text in (varied or {}).values() for value in text.split(",")]
    form.check(files_of(scenario, *values), {"--out": out, "the journal of --out": journal})
    checked_order(sort)
    of_run = {name: options.pop(name) for name in ("jobs", "backend", "fresh")}
    chosen = set_up(scenario, varied, seed=seed, **options)
    with progress.count("Sweeping", "point") as show:
        table = run_sweep(chosen, out=out, progress=show, **of_run)
    _refuse_if_all_bad(table, out, journal)
    if out is not None:
        form.written("Table", [out])
    document = {"points": table.to_dicts()}
    names = list(chosen.fields)
    if form.figures is not None or form.report is not None:
        from penstock.sweeping.stable_rates import with_stable_rates

        with progress.bar("Finding the stable rates") as show_rates:
            table = with_stable_rates(chosen, table, progress=show_rates)
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
