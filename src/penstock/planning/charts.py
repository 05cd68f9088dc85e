"""Figures of a plan: each drawn, said in words, and laid out as a table, in one place."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from penstock.planning.rates import HOUR_S
from penstock.show.charts import COLOURS, on_grid
from penstock.show.page import Figure, Table

if TYPE_CHECKING:
    from penstock.checking.targets import Target
    from penstock.planning.day import DayPlan
    from penstock.planning.plan import Plan

ANSWER = "answer"
_LOOKS = {
    ANSWER: ("#000000", "diamond"),
    "met": (COLOURS[0], "circle"),
    "undecided": (COLOURS[4], "triangle-up"),
    "missed": ("#8c8c8c", "cross"),
}
"""Of what became of a deployment."""

_SPREAD = 20  # times the least latency: beyond it the axis is logarithmic
_FARTHEST = 50  # times the limit, where latency is drawn at the edge
_FLEETS = {
    "follows the day": (COLOURS[0], [1, 0], 2.4),
    "static: for the peak": (COLOURS[1], [7, 3], 1.8),
    "least by theory": ("#444444", [2, 2], 1.8),
}
_LINEAR = alt.Axis(format=",.4~r", tickCount=6)
_TO_ZERO = alt.Scale(zero=True)


def figures(plan: "Plan | None", day: "DayPlan | None" = None) -> dict[str, Any]:
    """Return the figures that there are as one chart each, by file name."""
    drawn: dict[str, Figure] = {}
    if plan is not None and plan.measured:
        drawn["frontier"] = frontier_figure(plan)
    if day is not None:
        drawn["day"] = day_figure(day)
    return {name: on_grid(alt.vconcat(*one.charts.values())) for name, one in drawn.items()}


def frontier_figure(plan: "Plan", tables: Sequence[Table] = ()) -> Figure:
    """Draw cost against latency of all that was simulated."""
    of_goodput = plan.objective == "goodput"
    answer = "none has the goodput" if of_goodput else "none meets the targets"
    if plan.best is not None:
        answer = f"the answer is {plan.best.deployment.name}"
    label = plan.targets[0].label
    text = f"Cost over {label} of each deployment that was simulated; {answer}."
    return Figure(
        "Cost against latency",
        {text: frontier_chart(plan)},
        tables,
        f"The dashed line is the {'limit of a good request' if of_goodput else 'target'}. "
        "Horizontal lines: intervals. Stairs: what more money, or less, buys.",
        wide=True,
    )


def evaluations(plan: "Plan") -> pl.DataFrame:
    """Return a row for each simulated deployment that has the latency of the first target."""
    # Cost per hour; latency_s, low_s, high_s of the first target; what became of it.
    numbers = dict.fromkeys(("cost", "latency_s", "low_s", "high_s"), pl.Float64)
    schema = {"deployment": pl.String, **numbers, "state": pl.String, "frontier": pl.Boolean}
    rows = []
    for one in plan.measured:
        first = one.estimates[0]
        state = ANSWER if one is plan.best else one.answer
        best = any(one is other for other in plan.frontier)
        name, cost = one.deployment.name, one.deployment.cost
        rows.append((name, cost, first.value, first.low, first.high, state, best))
    return pl.DataFrame(rows, schema, orient="row").sort("cost", "latency_s", "deployment")


def frontier_chart(plan: "Plan") -> alt.LayerChart:
    """Draw cost against latency; the target as a line, the answer on top."""
    cost = "money per hour" if plan.priced else "accelerators"
    y = alt.Y("cost:Q", title=f"Cost ({cost})", axis=_LINEAR, scale=_TO_ZERO)
    target = plan.targets[0]
    edge = _FARTHEST * target.limit_s
    rows = evaluations(plan).with_columns(pl.col("latency_s", "low_s", "high_s").clip(None, edge))
    least, most = min(*rows["latency_s"], target.limit_s), max(*rows["latency_s"], target.limit_s)
    log = most > _SPREAD * least
    x = alt.X(
        "latency_s:Q",
        title=f"{target.label} (s{', log scale' if log else ''})",
        scale=alt.Scale(type="log", nice=False, padding=12) if log else _TO_ZERO,
        axis=alt.Axis(format="~g" if log else ",.4~r", tickCount=5),
    )
    kinds = [state for state in _LOOKS if (rows["state"] == state).any()]
    legend = alt.Legend(title=None, symbolSize=110, symbolOpacity=1)
    colours, shapes = (
        alt.Scale(domain=kinds, range=[_LOOKS[kind][part] for kind in kinds]) for part in (0, 1)
    )
    color = alt.Color("state:N", scale=colours, legend=legend)
    shape = alt.Shape("state:N", scale=shapes, legend=legend)
    best = alt.Chart(rows.filter("frontier")).mark_line(
        interpolate="step-before", color="#666666", strokeWidth=1.2
    )
    between = alt.Chart(rows.drop_nulls(["low_s", "high_s"])).mark_rule(strokeWidth=1, opacity=0.45)
    beside = {"angle": 270, "align": "right", "dx": -4}
    layers = [
        *_limit(target, "latency_s", beside, x=x, at={"y": alt.value(0)}),
        best.encode(x=x, y=y, order="cost:Q"),
        between.encode(x=alt.X("low_s:Q"), x2="high_s:Q", y=y, color=color),
    ]
    for state in reversed(kinds):  # the answer on top
        marks = alt.Chart(rows.filter(pl.col("state") == state)).mark_point(
            filled=state != "undecided",
            size=190 if state == ANSWER else 60,
            opacity=0.5 if state == "missed" else 1,
            strokeWidth=1.6,
        )
        layers.append(marks.encode(x=x, y=y, color=color, shape=shape))
    return alt.LayerChart(layer=layers).properties(width=460, height=280)


def _limit(
    target: "Target", column: str, words: dict[str, Any], at: dict[str, Any], **along: Any
) -> list[alt.Chart]:
    """Draw a target as a dashed line with its name."""
    row = pl.DataFrame({column: [target.limit_s], "text": [str(target)]})
    limit = alt.Chart(row).encode(**along)
    named = limit.mark_text(baseline="bottom", dy=-3, color="#8f3f00", **words)
    return [
        limit.mark_rule(strokeDash=[5, 4], strokeWidth=1.5, color=COLOURS[1]),
        named.encode(text="text:N", **at),
    ]


def day_figure(day: "DayPlan", tables: Sequence[Table] = ()) -> Figure:
    """Draw rate, replicas and latency over the day, with tables of what the page lacks."""
    texts = {
        "rate": "Arrival rate over the day.",
        "replicas": "Replicas over the day: following it, static, and the least that theory "
        "allows.",
        "latency": "Latency over the day with the replicas that follow it, simulated, with its "
        "target.",
    }
    panels = {texts[name]: chart for name, chart in day_panels(day).items()}
    return Figure("The day", panels, tables, wide=True)


def day_rows(day: "DayPlan") -> pl.DataFrame:
    """Return a row per interval: its first hour, rate, and replicas: planned, static, by theory."""
    static = day.deployment.replicas
    rows = [(p.start_s / HOUR_S, p.rate, p.replicas, static, p.certified) for p in day.periods]
    return pl.DataFrame(rows, ["hour", "rate", *_FLEETS], orient="row")


def day_panels(day: "DayPlan") -> dict[str, Any]:
    """Rate, replicas and, of whole days simulated, latency by interval; by what is drawn."""
    end = day.profile.span_s / HOUR_S
    ticks = {"values": list(range(0, 25, 3))} if end == 24 else {"tickCount": 8}
    axis = alt.Axis(format=",~f", **ticks)
    hours = alt.X("hour:Q", title="Hour", scale=alt.Scale(domain=[0, end], nice=False), axis=axis)
    most = max(day.deployment.replicas, *(period.replicas for period in day.periods))
    rows = day_rows(day)
    rows = pl.concat([rows, rows.tail(1).with_columns(hour=pl.lit(end))])  # its step is drawn
    rate = alt.Chart(rows, title="Arrival rate").mark_area(
        interpolate="step-after",
        color=COLOURS[0],
        fillOpacity=0.18,
        line={"color": COLOURS[0], "strokeWidth": 2},
    )
    y = alt.Y("rate:Q", title="Requests/s", axis=_LINEAR)
    panels: dict[str, Any] = {
        "rate": rate.encode(x=hours, y=y).properties(width=560, height=150),
        "replicas": _replicas(rows, hours, most),
    }
    shown = next((target for target in day.targets if target.metric != "tbt_s"), None)
    if day.check is not None and shown is not None:
        half = day.profile.interval_s / HOUR_S / 2
        middles = [period.start_s / HOUR_S + half for period in day.periods]
        values = [of.get(shown.metric, {}).get(shown.statistic) for of in day.check.latency]
        latency = pl.DataFrame({"hour": middles, "value": values}).drop_nulls()
        line = alt.Chart(latency).mark_line(
            point={"size": 40, "color": COLOURS[0]}, color=COLOURS[0]
        )
        seconds = alt.Y("value:Q", title="Seconds", axis=_LINEAR, scale=_TO_ZERO)
        above = alt.Y("value:Q", title="Seconds")
        at = {"x": alt.value(4)}
        layers = [
            line.encode(x=hours, y=seconds),
            *_limit(shown, "value", {"align": "left"}, y=above, at=at),
        ]
        title = f"{shown.label} by the time of arrival, simulated"
        drawn = alt.LayerChart(layer=layers).properties(width=560, height=170, title=title)
        panels["latency"] = drawn
    return panels


def _replicas(rows: pl.DataFrame, hours: alt.X, most: int) -> Any:
    """Draw the fleets over the day as steps."""
    ticks = list(range(0, most + 1, max(-(-most // 6), 1)))
    legend = alt.Legend(
        title="Fleet", symbolType="stroke", symbolStrokeWidth=2.5, symbolSize=300, labelLimit=220
    )
    colours, dashes, widths = (
        alt.Scale(domain=list(_FLEETS), range=[look[part] for look in _FLEETS.values()])
        for part in range(3)
    )
    axis = alt.Axis(values=ticks, format="d")
    steps = alt.Chart(
        rows.unpivot(list(_FLEETS), index="hour", variable_name="fleet"), title="Replicas"
    ).mark_line(interpolate="step-after")
    return steps.encode(
        x=hours,
        y=alt.Y("value:Q", title="Replicas", axis=axis, scale=_TO_ZERO),
        color=alt.Color("fleet:N", scale=colours, legend=legend),
        strokeDash=alt.StrokeDash("fleet:N", scale=dashes, legend=legend),
        strokeWidth=alt.StrokeWidth("fleet:N", scale=widths, legend=None),
    ).properties(width=560, height=180)
