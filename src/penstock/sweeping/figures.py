"""Figures of a sweep, chosen by what varies: lines over one number, heat maps over two, points over
many.

Text (a policy, a preset) and what has few values beside a rate take colours and dashes.
"""

import itertools
from collections.abc import Sequence

import polars as pl

from penstock.show.page import Figure, Table
from penstock.show.plot import COLOURS, Axis, By, Chart, heat_map, mark, plot
from penstock.sweeping.fields import resolved
from penstock.sweeping.points import SHOWN, Varied, averages, varied
from penstock.sweeping.stable_rates import KNOWN, RATE, is_rate
from penstock.sweeping.tables import cell, heads, points_table
from penstock.words import METRICS, digits

# of points, by verdict
_SHAPES = {"stable": "circle", "undecided": "triangle-up", "unstable": "cross"}
_STATISTICS = {"p50": "Medians", "p99": "99th percentiles"}
_HIGHEST = "Highest stable rate"
_LIMITS = "Vertical lines: the highest stable rate of each."
_STEADY = "Latency is drawn where there is a steady state: points of unstable servers are left out."
_FINITE = "what a finite run of an unstable server showed: it grows with the run."
_LABELS = {
    "token_budget": "Token budget (tokens)",
    "max_batch_size": "Max batch size (requests)",
    "rate": "Arrival rate (requests/s)",
}
_SIZE = (260, 260)  # px
_MOST_NAMES = 2 * len(COLOURS)  # a colour comes again with another dash
_MOST_MAPS = 4  # beside one another
_MOST_ACROSS = 40  # columns and rows of a heat map
_MOST_TICKS = 8
_MOST_SCATTERED = 6  # fields
_MOST_ROWS = 300
_LOG = 8  # times the least of few values: beyond it their axis is logarithmic


def sweep_figures(rows: pl.DataFrame, fields: Sequence[str]) -> list[Figure]:
    """Draw the figures of a sweep; none where nothing that varies can be drawn."""
    # With ``stable_rate`` (`penstock.sweeping.stable_rates`) the limits are drawn too.
    points, what = averages(rows, fields), varied(rows, fields)
    if points.is_empty() or not (what.numbers or what.names):
        return []
    if not what.numbers:
        return [_of_each(points, fields)]
    lines, across = _as_lines(points, what), _as_map(points, what)
    figures = [] if lines is None else _over_one(points, fields, *lines)
    if across is not None:
        figures += _maps(points, fields, *across)
    elif lines is None:
        figures.append(_scattered(points, fields, what))
    return figures


def label(field: str) -> str:
    """Return what an axis says of a field."""
    return _LABELS.get(resolved(field)[-1], field)


def _as_lines(points: pl.DataFrame, what: Varied) -> tuple[str, pl.DataFrame, str] | None:
    """Return the field across, rows with their line's name, what lines are; None: too many."""
    x = what.rate or (what.numbers[0] if len(what.numbers) == 1 else None)
    if x is None:
        return None
    others = [field for field in what.numbers if field != x]
    words = [pl.col("line")] if what.names else []
    # The title has their names.
    words += [pl.col(f).map_elements(cell, pl.String, skip_nulls=False) for f in others]
    shown = (
        points.with_columns(pl.concat_str(words, separator=", ").alias("line")) if words else points
    )
    if shown["line"].n_unique() > _MOST_NAMES or shown.height < 2 * shown["line"].n_unique():
        return None
    titles = [
        resolved(field)[-1].replace("_", " ").capitalize() for field in (*what.names, *others)
    ]
    return x, shown, ", ".join(titles)


def _over_one(
    points: pl.DataFrame, fields: Sequence[str], x: str, shown: pl.DataFrame, title: str
) -> list[Figure]:
    """Draw latency over a field, a line per name, and the highest stable rate."""
    known = shown[RATE].count() > 0
    limits = is_rate(x) and known
    of = f", a line per {title.lower()}" if shown["line"].n_unique() > 1 else ""
    caption = f"{_LIMITS} {_STEADY}" if limits else ""
    if not is_rate(x) and (points["state"] == "unstable").any():
        caption = f"A cross is {_FINITE}"
    figures = []
    for statistic in SHOWN:
        charts = {}
        for metric, words in METRICS.items():
            column, name = f"{metric[:-2]}_{statistic}_s", f"{words}, {statistic}"
            text = f"{name}, over {label(x)}{of}.{f' {_LIMITS}' if limits else ''}"
            charts[text] = _line(shown, x, column, "Seconds", name, title, limits)
        figures.append(
            Figure(
                f"latency_{statistic}{'_with_limits' if limits else ''}",
                f"{_STATISTICS[statistic]} of latency"
                f"{' over the rate, with the limits' if limits else ''}",
                charts,
                [_points(points, fields, [statistic])],
                caption,
            )
        )
    if known and not limits:
        chart = _line(shown, x, RATE, "Requests/s", _HIGHEST, title, False)
        text = f"{_HIGHEST} over {label(x)}, a line per {title.lower()}."
        figures.append(Figure("stable_rate", _HIGHEST, {text: chart}, [_rates(points, fields)]))
    return figures


def _line(
    points: pl.DataFrame, x: str, column: str, unit: str, name: str, title: str, limits: bool
) -> Chart:
    """Draw a figure over a field; the shape of a point is its verdict, a vertical line a limit."""
    # Over the rate, latency is drawn where there is a steady state; else a cross says there is
    # none.
    shown = (
        points.select("line", "state", x=pl.col(x), y=pl.col(column))
        .drop_nulls("y")
        .sort("line", "x")
    )
    if is_rate(x):
        shown = shown.filter(pl.col("state") != "unstable")
    if points[x].null_count():
        shown = shown.with_columns(
            x=pl.Series([cell(value) for value in shown["x"]], dtype=pl.String)
        )
    names = list(dict.fromkeys(points["line"]))
    by = By("line", names, title, legend=names != [""])
    ends = points.select("line", x=pl.col(RATE)).unique(maintain_order=True).drop_nulls()
    marks = [mark("rule", "x", None, by, table=ends, opacity=0.75)] if limits else []
    marks += [mark("line", "x", "y", by), mark("point", "x", "y", by, _verdicts(shown))]
    across, up = _across(points[x], x), Axis.over(unit, shown["y"].to_list())
    return plot(shown, *marks, x=across, y=up, size=_SIZE, title=name)


def _verdicts(points: pl.DataFrame) -> By:
    """Return the shapes of the verdicts that there are."""
    states = {state: [of] for state, of in _SHAPES.items() if (points["state"] == state).any()}
    return By("state", states, "Verdict", "shape", legend=bool(states.keys() - {"stable"}))


def _across(values: pl.Series, field: str) -> Axis:
    """Return a field's axis: few values as ticks, log scale where they spread; null comes last."""
    title, ticks = label(field), values.unique().sort(nulls_last=True)
    if values.null_count():
        return Axis(title, names=[cell(value) for value in ticks])
    if is_rate(field) or ticks.len() > _MOST_TICKS:
        return Axis(title, free=not is_rate(field))
    log = bool(ticks[0] > 0 and ticks[-1] >= _LOG * ticks[0])
    return Axis(title, log=log, free=True, ticks=ticks.to_list())


def _as_map(points: pl.DataFrame, what: Varied) -> tuple[str, str] | None:
    """Return fields across and upwards, where two numbers vary on a grid not mostly empty."""
    if len(what.numbers) != 2:
        return None
    first, second = what.numbers
    x, y = (
        (second, first)
        if is_rate(second) or resolved(first)[-1] == "max_batch_size"
        else (first, second)
    )
    columns, rows = points[x].n_unique(), points[y].n_unique()
    maps = points["line"].n_unique()
    full = columns * rows * maps <= 2 * points.height
    return (x, y) if full and max(columns, rows) <= _MOST_ACROSS and maps <= _MOST_MAPS else None


def _maps(points: pl.DataFrame, fields: Sequence[str], x: str, y: str) -> list[Figure]:
    """Draw heat maps over two fields, one per line: stable rate if known, median TTFT, E2E."""
    framed = "Framed: the least of the stable ones."
    white = "Unstable ones have no steady state, so they are white."
    wanted = []
    if points[RATE].count() and not (is_rate(x) or is_rate(y)):
        theorem = "Theorem: what is certified is all that any policy could carry."
        caption = f"{theorem} Framed: the highest."
        wanted.append((RATE, _HIGHEST, _HIGHEST, "Requests/s", caption))
    for metric in ("TTFT", "E2E"):
        column = f"{metric.lower()}_p50_s"
        titles = f"Medians of {metric}", f"Median {metric}"
        wanted.append((column, *titles, "Seconds", f"{framed} {white}"))
    figures = []
    for column, title, name, unit, caption in wanted:
        charts = {}
        for line in dict.fromkeys(points["line"]):
            head = f"{name}{f': {line}' if line else ''}"
            text = f"{head}, by {label(x)} across and {label(y)} upwards."
            charts[text] = _map(points.filter(pl.col("line") == line), x, y, column, head, unit)
        table = _rates(points, fields) if column == RATE else _points(points, fields, ["p50"])
        file = f"{column.removesuffix('_s')}_map"
        figures.append(Figure(file, title, charts, [table], caption, columns=_MOST_MAPS // 2))
    return figures


def _map(points: pl.DataFrame, x: str, y: str, column: str, name: str, unit: str) -> Chart:
    stable = points.filter(pl.col("state") == "stable") if column != RATE else points
    values = stable[column].drop_nulls()
    best = values.max() if column == RATE else values.min()  # None where there are no values
    rows = []
    for row in points.iter_rows(named=True):
        note = row["state"]
        if column == RATE:
            note = "simulated" if row[KNOWN] == "simulation" else "theorem"
            if row[RATE] is None:
                note = "not served"
        # No steady state to colour.
        value = row[column] if row["state"] != "unstable" or column == RATE else None
        rows.append(
            {"x": cell(row[x]), "y": cell(row[y]), "value": value, "text": _digits(value)}
            | {"note": note, "best": value is not None and value == best}
        )
    across, up = (points[field].unique().sort(nulls_last=True) for field in (x, y))
    return heat_map(
        pl.DataFrame(rows, schema_overrides={"value": pl.Float64}),
        Axis(label(x), names=[cell(value) for value in across]),
        Axis(label(y), names=[cell(value) for value in up][::-1]),
        unit,
        name,
    )


def _scattered(points: pl.DataFrame, fields: Sequence[str], what: Varied) -> Figure:
    """Draw median E2E over each number that varies, a point per point of the sweep."""
    names = list(dict.fromkeys(points["line"]))
    few = 1 < len(names) <= len(COLOURS)
    by = [By("line", dict(zip(names, zip(COLOURS), strict=False)), look="color")] if few else []
    charts = {}
    for field in itertools.islice(what.numbers, _MOST_SCATTERED):
        shown = points.select("state", "line", x=pl.col(field), y=pl.col("e2e_p50_s")).drop_nulls()
        text = f"Median end-to-end latency over {label(field)}, for each point of the sweep."
        charts[text] = plot(
            shown,
            mark("point", "x", "y", *by, _verdicts(shown), opacity=0.7),
            x=Axis(label(field), free=True, ticks=5),
            y=Axis("Seconds", log=True),
            size=_SIZE,
            title="End to end, p50",
        )
    unstable = (points["state"] == "unstable").any()
    return Figure(
        "latency_p50_points",
        f"{_STATISTICS['p50']} of latency",
        charts,
        [_points(points, fields, ["p50"])],
        f"A cross is {_FINITE}" if unstable else "",
    )


def _of_each(points: pl.DataFrame, fields: Sequence[str]) -> Figure:
    """Draw the median and the 99th percentile of each, where no number varies."""
    looks = dict(zip(SHOWN, ((COLOURS[0], "circle"), (COLOURS[1], "diamond")), strict=True))
    by = By("statistic", looks, "Statistic", "color shape")
    state = pl.col("state")
    unless = pl.when(state == "stable").then(pl.lit("")).otherwise(pl.format(" ({})", state))
    named = points.with_columns(pl.concat_str("line", unless))
    charts = {}
    for metric, words in METRICS.items():
        columns = {f"{metric[:-2]}_{statistic}_s": statistic for statistic in SHOWN}
        shown = (
            named.select("line", *columns)
            .rename(columns)
            .unpivot(index="line", variable_name="statistic")
        )
        charts[f"{words} of each: median and 99th percentile."] = plot(
            shown.drop_nulls(),
            mark("point", "value", "line", by, size=90),
            x=Axis("Seconds", log=True, ticks=4),
            y=Axis(None, names=list(named["line"])),
            size=(240, max(24 * points.height, 80)),
            title=words,
        )
    unstable = (state == "unstable").any()
    caption = f"Where it is unstable: {_FINITE}" if points.select(unstable).item() else ""
    return Figure(
        "latency_of_each",
        "Latency of each",
        charts,
        [_points(points, fields, SHOWN)],
        caption,
        wide=True,
    )


def _points(points: pl.DataFrame, fields: Sequence[str], statistics: Sequence[str]) -> Table:
    """Return the latencies that a figure draws."""
    return points_table(points.rename({"state": "verdict"}), fields, statistics=statistics)


def _rates(points: pl.DataFrame, fields: Sequence[str]) -> Table:
    """Return the stable rates that a figure draws."""
    others = [field for field in fields if not is_rate(field)]
    rows = [
        (*(cell(row[field]) for field in others), _digits(row[RATE]), row[KNOWN] or "-")
        for row in points.unique(others, keep="first", maintain_order=True)
        .head(_MOST_ROWS)
        .iter_rows(named=True)
    ]
    return Table((*heads(others), "Stable rate (requests/s)", "Known by"), rows)


def _digits(value: float | None) -> str:
    return "-" if value is None else digits(value)
