"""The report on a sweep, as a page with the figures that fit what varied."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from penstock.capacity.figures import NO_LIMIT
from penstock.show import page
from penstock.show.heat_map import significant
from penstock.show.page import Fact, Figure, Section, Table, Verdict
from penstock.sweeping import figures as plotting_sweep
from penstock.sweeping.figures import LIMITS, SHOWN
from penstock.sweeping.limits import KNOWN, RATE, is_rate
from penstock.words import METRICS, counted

_MOST_ROWS = 300  # of a table
_MOST_BAD = 10
_TITLES = {"p50": "Medians", "p99": "99th percentiles"}


def report_sweep(path: Path, rows: pl.DataFrame, fields: Sequence[str], title: str) -> None:
    """Write a sweep: how many points are stable, the figures that fit what varied, every point.

    Parameters
    ----------
    path
        File to write.
    rows
        The table of the sweep; with ``stable_rate`` (`penstock.sweeping.limits`) the limits are drawn too.
    fields
        The names of what varies.
    title
        Of the page: the scenario.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    found, what = plotting_sweep.averages(rows, fields), plotting_sweep.varied(rows, fields)
    counts = {state: int((found["state"] == state).sum()) for state in plotting_sweep.STATES}
    bad = rows.filter(pl.col("error").is_not_null())
    said = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count) or "none could be simulated"
    if bad.height:
        said += f"; {counted(bad.height, 'bad row')}"
    facts = [_fact(rows, field) for field in (*what.numbers, *what.names)]
    facts.append(Fact("Requests", f"{int(rows['requests'].sum() or 0):,}", "simulated in all"))
    sections = [Section("What varied", facts=facts, notes=_bad(bad, fields))]
    for name, charts in plotting_sweep.panels(rows, fields).items():
        figure = Figure(
            _title(name), charts, [_figures(found, fields, name)], _caption(name, found), wide="each" in name
        )
        sections.append(Section(_title(name), figures=[figure]))
    sections.append(Section("Every point", tables=[_every(found, fields)]))
    page.write(
        path,
        title=f"Sweep of {title}",
        heading=f"{counted(rows.height, 'run')} of {counted(found.height, 'point')}, over {', '.join(fields)}",
        verdicts=[Verdict("swept", f"{said[0].upper()}{said[1:]}.", "theorems, and the test where none speaks")],
        sections=sections,
    )


def _fact(rows: pl.DataFrame, field: str) -> Fact:
    values = rows[field].unique().sort(nulls_last=True)
    if values.len() <= 8:
        return Fact(field, counted(values.len(), "value"), ", ".join(_cell(value) for value in values))
    drawn = values.drop_nulls()
    return Fact(field, counted(values.len(), "value"), f"from {_cell(drawn.min())} to {_cell(drawn.max())}")


def _title(name: str) -> str:
    for statistic, words in _TITLES.items():
        if f"_{statistic}" in name:
            metric = name.split("_")[0]
            where = "of latency over the rate, with the limits" if name.endswith("limits") else "of latency"
            return f"{words} {where}" if metric == "latency" else f"{words} of {metric.upper()}"
    return "Highest stable rate" if name.startswith(RATE) else "Latency of each"


def _caption(name: str, found: pl.DataFrame) -> str:
    if name.endswith("limits"):
        return f"{LIMITS} Latency is drawn where there is a steady state: points of unstable servers are left out."
    if name == f"{RATE}_map":
        return "Theorem: what is certified is all that any policy could carry. Framed: the highest."
    if name.endswith("map"):
        return "Framed: the least of the stable ones. Unstable ones have no steady state, so they are white."
    if name.startswith(RATE) or not (found["state"] == "unstable").any():
        return ""
    if name.endswith("each"):
        return "Where it is unstable: what a finite run showed, which grows with the run."
    return "A cross is what a finite run of an unstable server showed: it grows with the run."


def _figures(found: pl.DataFrame, fields: Sequence[str], name: str) -> Table:
    """Return the figures that a group of charts draws."""
    if name.startswith(RATE):
        seen = found.unique([*(f for f in fields if not is_rate(f))], keep="first", maintain_order=True)
        names = [field for field in fields if not is_rate(field)]
        cells = [(*_names(row, names), significant(row[RATE]), row[KNOWN] or "-") for row in seen.iter_rows(named=True)]
        return Table((*_heads(names), "Stable rate (requests/s)", "Known by"), cells[:_MOST_ROWS])
    statistics = [statistic for statistic in SHOWN if f"_{statistic}" in name] or list(SHOWN)
    return _latencies(found, fields, statistics)


def _every(found: pl.DataFrame, fields: Sequence[str]) -> Table:
    return _latencies(found, fields, ["mean", *SHOWN])


def _latencies(found: pl.DataFrame, fields: Sequence[str], statistics: Sequence[str]) -> Table:
    columns = {
        f"{metric[:-2]}_{statistic}_s": f"{metric[:-2].upper()} {statistic} (s)"
        for metric in METRICS
        for statistic in statistics
    }
    limits = found[RATE].count() > 0
    cells = []
    for row in found.head(_MOST_ROWS).iter_rows(named=True):
        more = (significant(row[RATE]),) if limits else ()
        cells.append((*_names(row, fields), row["state"], *(significant(row[name]) for name in columns), *more))
    head = (*_heads(fields), "Verdict", *columns.values(), *(("Stable rate (requests/s)",) if limits else ()))
    said = ["Unstable points have no steady state: theirs is the latency of a finite run."]
    if not (found["state"] == "unstable").any():
        said = []
    if found.height > _MOST_ROWS:
        said.append(f"The first {_MOST_ROWS:,} of {found.height:,} points; the table of the sweep has all.")
    return Table(head, cells, " ".join(said))


def _heads(fields: Sequence[str]) -> list[str]:
    """Return the last part of each field, or all of it where two would be alike, and the unit of a rate."""
    short = [field.rsplit(".", 1)[-1].replace("_", " ").replace("-", " ") for field in fields]
    heads = short if len(set(short)) == len(short) else fields
    return [f"{head} (requests/s)" if is_rate(field) else head for head, field in zip(heads, fields, strict=True)]


def _names(row: dict[str, Any], fields: Sequence[str]) -> list[str]:
    return [_cell(row[field]) for field in fields]


def _cell(value: Any) -> str:
    if value is None:
        return NO_LIMIT
    return f"{value:,.6g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _bad(bad: pl.DataFrame, fields: Sequence[str]) -> list[str]:
    """Say which points could not be simulated, and why."""
    notes = []
    for row in bad.head(_MOST_BAD).iter_rows(named=True):
        where = ", ".join(f"{field} {_cell(row[field])}" for field in fields)
        notes.append(f"{where}: {row['error']}")
    if bad.height > _MOST_BAD:
        more = bad.height - _MOST_BAD
        are = "more row is" if more == 1 else "more rows are"
        notes.append(f"{more:,} {are} bad; the table of the sweep says why.")
    return notes
