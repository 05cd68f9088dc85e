"""Charts of a sweep, chosen by what varies: lines over one number, heat maps over two, points over
many.

Text (a policy, a preset) and what has few values beside a rate take colours and dashes.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import altair as alt
import polars as pl

from penstock.show.charts import COLOURS, GRID, line_channels, with_line_under
from penstock.show.heat_map import heat_map, significant
from penstock.sweeping.fields import resolved
from penstock.sweeping.points import SHOWN, Varied, averages, varied
from penstock.sweeping.stable_rates import KNOWN, RATE, is_rate
from penstock.sweeping.view import cell
from penstock.words import METRICS

# of points, by verdict
_SHAPES = {"stable": "circle", "undecided": "triangle-up", "unstable": "cross"}

LIMITS = "Vertical lines: the highest stable rate of each."

_LABELS = {
    "token_budget": "Token budget (tokens)",
    "max_batch_size": "Max batch size (requests)",
    "rate": "Arrival rate (requests/s)",
}
_LOG = alt.Scale(type="log", nice=False, padding=12)
_SECONDS = alt.Axis(format="~g", tickCount=4, labelOverlap=True)
_MOST_NAMES = 2 * len(COLOURS)  # a colour comes again with another dash
_MOST_MAPS = 4  # beside one another
_LONG = 16  # letters of a name in a legend: two such do not fit beside one another
_MOST_ACROSS = 40  # columns and rows of a heat map
_MOST_TICKS = 8
_SPREAD = 20  # times the least latency: beyond it the axis is logarithmic


def label(field: str) -> str:
    """Return what an axis says of a field."""
    return _LABELS.get(resolved(field)[-1], field)


def figures(rows: pl.DataFrame, fields: Sequence[str]) -> dict[str, Any]:
    """Return a sweep's figures by file name: none where nothing that varies can be drawn."""
    # With ``stable_rate`` (`penstock.sweeping.stable_rates`) the limits are drawn too.
    drawings: dict[str, Any] = {}
    for name, drawn in panels(rows, fields).items():
        charts: Any = alt.hconcat(*drawn.values())
        if name.endswith("map"):
            charts = alt.concat(*drawn.values(), columns=_MOST_MAPS // 2).resolve_scale(
                color="independent"
            )
        about = LIMITS if name.endswith("limits") else ""
        drawings[name] = with_line_under(charts.configure_axis(gridColor=GRID), about)
    return drawings


def panels(rows: pl.DataFrame, fields: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return charts that belong together, by file name, then by their text alternatives."""
    points, what = averages(rows, fields), varied(rows, fields)
    if points.is_empty() or not (what.numbers or what.names):
        return {}
    groups: dict[str, dict[str, Any]] = {}
    if not what.numbers:
        return {"latency_of_each": _dots(points)}
    lines = _as_lines(points, what)
    if lines is not None:
        x, shown, title = lines
        limits = is_rate(x) and shown[RATE].count() > 0
        for statistic in SHOWN:
            groups[f"latency_{statistic}{'_with_limits' if limits else ''}"] = _lines(
                shown, x, statistic, title, limits
            )
        if shown[RATE].count() and not limits:
            groups["stable_rate"] = {
                f"Highest stable rate over {label(x)}, a line per {title.lower()}.": _line(
                    shown, x, RATE, "Requests/s", "Highest stable rate", title, False
                )
            }
    if (across := _as_map(points, what)) is not None:
        groups |= _maps(points, *across)
    elif lines is None:
        groups["latency_p50_points"] = _scattered(points, what)
    return groups


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


def _channels(names: list[str], title: str) -> dict[str, Any]:
    legend = alt.Legend(
        title=title, columns=1 if max(map(len, names)) > _LONG else 2, symbolType="stroke",
        symbolStrokeWidth=2.5, symbolSize=300, labelLimit=280,
    )  # fmt: skip
    return line_channels("line", names, legend if names != [""] else None)


def _lines(
    points: pl.DataFrame, x: str, statistic: str, title: str, limits: bool
) -> dict[str, Any]:
    of = f", a line per {title.lower()}" if points["line"].n_unique() > 1 else ""
    limited = f" {LIMITS}" if limits else ""
    return {
        f"{METRICS[metric]}, {statistic}, over {label(x)}{of}.{limited}": _line(
            points,
            x,
            f"{metric[:-2]}_{statistic}_s",
            "Seconds",
            f"{METRICS[metric]}, {statistic}",
            title,
            limits,
        )
        for metric in METRICS
    }


def _line(
    points: pl.DataFrame, x: str, column: str, unit: str, name: str, title: str, limits: bool
) -> alt.LayerChart:
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
    log = shown.height and float(shown["y"].max()) > _SPREAD * max(float(shown["y"].min()), 1e-12)  # type: ignore[arg-type]
    scale = alt.Scale(type="log", nice=False, padding=8) if log else alt.Scale(zero=True)
    lines = list(dict.fromkeys(points["line"]))
    y = alt.Y(
        "y:Q",
        title=f"{unit}{' (log scale)' if log else ''}",
        scale=scale,
        axis=alt.Axis(format="~g" if log else ",.4~r", tickCount=6),
    )
    look, across = _channels(lines, title), _across(points[x], x)
    if points[x].null_count():
        shown = shown.with_columns(
            x=pl.Series([cell(value) for value in shown["x"]], dtype=pl.String)
        )
    kinds = [state for state in _SHAPES if (shown["state"] == state).any()]
    shape = alt.Shape(
        "state:N",
        scale=alt.Scale(domain=kinds, range=[_SHAPES[kind] for kind in kinds]),
        legend=alt.Legend(title="Verdict", symbolSize=70)
        if kinds not in ([], ["stable"])
        else None,
    )
    base = alt.Chart(shown)
    layers = [base.mark_line(strokeWidth=1.8).encode(x=across, y=y, **look)]
    if limits:
        ends = points.select("line", x=pl.col(RATE)).unique(maintain_order=True).drop_nulls()
        layers.insert(
            0,
            alt.Chart(ends).mark_rule(strokeWidth=1.6, opacity=0.75).encode(x=alt.X("x:Q"), **look),
        )
    marks = base.mark_point(size=45, filled=True, opacity=1)
    layers.append(marks.encode(x=across, y=y, color=look["color"], shape=shape))
    return alt.LayerChart(layer=layers).properties(width=260, height=260, title=name)


def _across(values: pl.Series, field: str) -> alt.X:
    """Return a field's axis: few values as ticks, log scale where they spread; null comes last."""
    title, ticks = label(field), values.unique().sort(nulls_last=True)
    if values.null_count():
        return alt.X(
            "x:N", title=title, sort=[cell(value) for value in ticks], axis=alt.Axis(labelAngle=0)
        )
    if is_rate(field) or ticks.len() > _MOST_TICKS:
        # A label that is moved inwards runs into the next.
        axis = alt.Axis(tickCount=6, labelFlush=False)
        return alt.X("x:Q", title=title, scale=alt.Scale(zero=is_rate(field)), axis=axis)
    spread = ticks[0] > 0 and ticks[-1] >= 8 * ticks[0]
    scale = (
        alt.Scale(type="log", nice=False, padding=12)
        if spread
        else alt.Scale(zero=False, padding=12)
    )
    axis = alt.Axis(values=ticks.to_list(), format=",~g", labelOverlap=True)
    return alt.X(
        "x:Q",
        title=f"{title[:-1]}, log scale)" if spread and title.endswith(")") else title,
        scale=scale,
        axis=axis,
    )


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


def _maps(points: pl.DataFrame, x: str, y: str) -> dict[str, dict[str, Any]]:
    """Draw heat maps over two fields, one per line: stable rate if known, median TTFT, E2E."""
    groups: dict[str, dict[str, Any]] = {}
    wanted = [
        (f"{metric[:-2]}_p50_s", f"Median {metric[:-2].upper()}", "Seconds")
        for metric in ("ttft_s", "e2e_s")
    ]
    if points[RATE].count() and not (is_rate(x) or is_rate(y)):
        wanted.insert(0, (RATE, "Highest stable rate", "Requests/s"))
    for column, name, unit in wanted:
        charts = {}
        for line in dict.fromkeys(points["line"]):
            title = f"{name}{f': {line}' if line else ''}"
            text = f"{title}, by {label(x)} across and {label(y)} upwards."
            charts[text] = _map(points.filter(pl.col("line") == line), x, y, column, title, unit)
        groups[f"{column.removesuffix('_s')}_map"] = charts
    return groups


def _map(points: pl.DataFrame, x: str, y: str, column: str, name: str, unit: str) -> alt.LayerChart:
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
            {"x": cell(row[x]), "y": cell(row[y]), "value": value, "text": significant(value)}
            | {"note": note, "best": value is not None and value == best}
        )
    across, up = (points[field].unique().sort(nulls_last=True) for field in (x, y))
    return heat_map(
        pl.DataFrame(rows, schema_overrides={"value": pl.Float64}),
        x=alt.X("x:N", sort=[cell(v) for v in across], title=label(x), axis=alt.Axis(labelAngle=0)),
        y=alt.Y("y:N", sort=[cell(v) for v in up][::-1], title=label(y)),
        value="value",
        title=unit,
        name=name,
        cells=(across.len(), up.len()),
    )


def _scattered(points: pl.DataFrame, what: Varied) -> dict[str, Any]:
    """Draw median E2E over each number that varies, a point per point of the sweep."""
    names = list(dict.fromkeys(points["line"]))
    few = len(names) <= len(COLOURS)
    charts: dict[str, Any] = {}
    for field in itertools.islice(what.numbers, 6):
        shown = points.select("state", "line", x=pl.col(field), y=pl.col("e2e_p50_s")).drop_nulls()
        kinds = [state for state in _SHAPES if (shown["state"] == state).any()]
        shapes = [_SHAPES[kind] for kind in kinds]
        color: Any = alt.value(COLOURS[0])
        if few and len(names) > 1:
            color = alt.Color(
                "line:N",
                scale=alt.Scale(domain=names, range=list(COLOURS[: len(names)])),
                title=None,
            )
        charts[
            f"Median end-to-end latency over {label(field)}, a point for each point of the sweep."
        ] = (
            alt.Chart(shown, title="End to end, p50")
            .mark_point(size=45, filled=True, opacity=0.7)
            .encode(
                x=alt.X(
                    "x:Q",
                    title=label(field),
                    scale=alt.Scale(zero=False),
                    axis=alt.Axis(tickCount=5),
                ),
                y=alt.Y("y:Q", title="Seconds (log scale)", scale=_LOG, axis=_SECONDS),
                color=color,
                shape=alt.Shape(
                    "state:N", scale=alt.Scale(domain=kinds, range=shapes), title="Verdict"
                ),
            )
            .properties(width=260, height=260)
        )
    return charts


def _dots(points: pl.DataFrame) -> dict[str, Any]:
    """Draw the median and the 99th percentile of each, where no number varies."""
    charts: dict[str, Any] = {}
    mark = (
        pl.when(pl.col("state") == "stable").then(pl.lit("")).otherwise(pl.format(" ({})", "state"))
    )
    named = points.with_columns(pl.concat_str("line", mark))
    for metric in METRICS:
        columns = {f"{metric[:-2]}_{statistic}_s": statistic for statistic in SHOWN}
        shown = (
            named.select("line", *columns)
            .rename(columns)
            .unpivot(index="line", variable_name="statistic")
        )
        shape = alt.Scale(domain=list(SHOWN), range=["circle", "diamond"])
        color = alt.Scale(domain=list(SHOWN), range=[COLOURS[0], COLOURS[1]])
        charts[f"{METRICS[metric]} of each: median and 99th percentile."] = (
            alt.Chart(shown.drop_nulls(), title=METRICS[metric])
            .mark_point(size=90, filled=True, opacity=1)
            .encode(
                x=alt.X("value:Q", title="Seconds (log scale)", scale=_LOG, axis=_SECONDS),
                y=alt.Y(
                    "line:N", title=None, sort=list(named["line"]), axis=alt.Axis(labelLimit=320)
                ),
                shape=alt.Shape("statistic:N", scale=shape, title="Statistic"),
                color=alt.Color("statistic:N", scale=color, title="Statistic"),
            )
            .properties(width=240, height=max(24 * points.height, 80))
        )
    return charts
