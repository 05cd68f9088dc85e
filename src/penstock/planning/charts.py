"""Charts of a plan: cost and throughput against latency, the stable rate over limits, the day."""

from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from penstock.capacity.charts import rate_heat_map
from penstock.capacity.stable_rates import RateMap
from penstock.show.charts import COLOURS, GRID

if TYPE_CHECKING:
    from penstock.checking.targets import Target
    from penstock.planning.day import DayPlan
    from penstock.planning.evaluate import Evaluation
    from penstock.planning.plan import Plan

ANSWER, MET, UNDECIDED, MISSED = "answer", "meets all targets", "undecided", "misses a target"
ENOUGH, TOO_LITTLE = "enough goodput", "too little goodput"
"""What those that meet or miss are called where goodput was asked for."""

_LOOKS = {
    ANSWER: ("#000000", "diamond"),
    MET: (COLOURS[0], "circle"),
    UNDECIDED: (COLOURS[4], "triangle-up"),
    MISSED: ("#8c8c8c", "cross"),
}
_LOOKS_OF_GOODPUT = {ENOUGH: _LOOKS[MET], TOO_LITTLE: _LOOKS[MISSED]}
_SPREAD = 20  # times the least latency: beyond it the axis is logarithmic
_FARTHEST = 50  # times the limit, where latency is drawn at the edge
_FOLLOWS, _STATIC, _NEEDED = "follows the day", "static: for the peak", "least by theory"
_FLEETS = {
    _FOLLOWS: (COLOURS[0], [1, 0], 2.4),
    _STATIC: (COLOURS[1], [7, 3], 1.8),
    _NEEDED: ("#444444", [2, 2], 1.8),
}
_HOUR_S = 3600.0


def figures(
    plan: "Plan | None", rates: RateMap | None = None, day: "DayPlan | None" = None
) -> dict[str, Any]:
    """Return the figures that there are, by file name."""
    charts: dict[str, Any] = {}
    if plan is not None and plan.measured:
        charts["frontier"] = alt.hconcat(*frontier_panels(plan)).configure_axis(gridColor=GRID)
    if rates is not None:
        charts["stable_rates"] = rate_heat_map(rates)
    if day is not None:
        charts["day"] = alt.vconcat(*day_panels(day).values()).configure_axis(gridColor=GRID)
    return charts


def judged(plan: "Plan", evaluation: "Evaluation") -> str:
    """Say what became of a deployment: answer, undecided, or whether it meets what is asked."""
    if evaluation is plan.best:
        return ANSWER
    met, missed = (ENOUGH, TOO_LITTLE) if plan.objective == "goodput" else (MET, MISSED)
    return {"met": met, "missed": missed}.get(evaluation.answer, UNDECIDED)


def evaluations(plan: "Plan") -> pl.DataFrame:
    """Return a row for each simulated deployment that has the latency of the first target."""
    # Cost per hour; latency_s, low_s, high_s of the first target; per_cost: requests/s carried over
    # the cost; state: see `judged`.
    rows = []
    for evaluation in plan.measured:
        first = evaluation.estimates[0]
        cost = evaluation.deployment.cost
        row = {
            "deployment": evaluation.deployment.name,
            "cost": cost,
            "per_cost": evaluation.throughput / cost,
        }
        row |= {"latency_s": first.value, "low_s": first.low, "high_s": first.high}
        rows.append(
            row
            | {
                "state": judged(plan, evaluation),
                "frontier": any(evaluation is other for other in plan.frontier),
            }
        )
    numbers = dict.fromkeys(("cost", "per_cost", "latency_s", "low_s", "high_s"), pl.Float64)
    schema = {"deployment": pl.String, **numbers, "state": pl.String, "frontier": pl.Boolean}
    return pl.DataFrame(rows, schema=schema).sort("cost", "latency_s", "deployment")


def frontier_panels(plan: "Plan") -> list[alt.LayerChart]:
    """Cost, and throughput per cost, against latency; the target as a line, the answer on top."""
    rows = evaluations(plan)
    unit, per = (
        ("money per hour", "per money per hour")
        if plan.priced
        else ("accelerators", "per accelerator")
    )
    return [
        _frontier_panel(
            plan,
            rows,
            title,
            alt.Y(f"{column}:Q", title=says, axis=_LINEAR, scale=alt.Scale(zero=True)),
        )
        for title, column, says in (
            ("Cost against latency", "cost", f"Cost ({unit})"),
            ("Throughput against latency", "per_cost", f"Requests/s {per}"),
        )
    ]


_LINEAR = alt.Axis(format=",.4~r", tickCount=6)


def _frontier_panel(plan: "Plan", rows: pl.DataFrame, title: str, y: alt.Y) -> alt.LayerChart:
    target = plan.targets[0]
    edge = _FARTHEST * target.limit_s
    rows = rows.with_columns(pl.col("latency_s", "low_s", "high_s").clip(None, edge))
    least, most = min(*rows["latency_s"], target.limit_s), max(*rows["latency_s"], target.limit_s)
    log = most > _SPREAD * least
    scale = alt.Scale(type="log", nice=False, padding=12) if log else alt.Scale(zero=True)
    axis = alt.Axis(format="~g" if log else ",.4~r", tickCount=5)
    x = alt.X(
        "latency_s:Q",
        title=f"{target.label} (s{', log scale' if log else ''})",
        scale=scale,
        axis=axis,
    )
    looks = _LOOKS | _LOOKS_OF_GOODPUT
    kinds = [state for state in looks if (rows["state"] == state).any()]
    legend, colours = (
        alt.Legend(title=None, symbolSize=110, symbolOpacity=1),
        [looks[kind][0] for kind in kinds],
    )
    color = alt.Color("state:N", scale=alt.Scale(domain=kinds, range=colours), legend=legend)
    shapes = alt.Scale(domain=kinds, range=[looks[kind][1] for kind in kinds])
    shape = alt.Shape("state:N", scale=shapes, legend=legend)
    limit = alt.Chart(pl.DataFrame({"latency_s": [target.limit_s], "text": [str(target)]})).encode(
        x=x
    )
    words = limit.mark_text(
        angle=270, align="right", baseline="bottom", dx=-4, dy=-3, color="#8f3f00"
    )
    best = alt.Chart(rows.filter("frontier")).mark_line(
        interpolate="step-before", color="#666666", strokeWidth=1.2
    )
    between = alt.Chart(rows.drop_nulls(["low_s", "high_s"])).mark_rule(strokeWidth=1, opacity=0.45)
    layers = [
        limit.mark_rule(strokeDash=[5, 4], strokeWidth=1.5, color=COLOURS[1]),
        words.encode(y=alt.value(0), text="text:N"),
        best.encode(x=x, y=y, order="cost:Q"),
        between.encode(x=alt.X("low_s:Q"), x2="high_s:Q", y=y, color=color),
    ]
    for state in reversed(kinds):  # the answer on top
        marks = alt.Chart(rows.filter(pl.col("state") == state)).mark_point(
            filled=state != UNDECIDED,
            size=190 if state == ANSWER else 60,
            opacity=0.5 if state in (MISSED, TOO_LITTLE) else 1,
            strokeWidth=1.6,
        )
        layers.append(marks.encode(x=x, y=y, color=color, shape=shape))
    return alt.LayerChart(layer=layers).properties(width=340, height=280, title=title)


def day_panels(day: "DayPlan") -> dict[str, Any]:
    """Rate, replicas and, of whole days simulated, latency by interval; by what is drawn."""
    panels: dict[str, Any] = {"rate": _rates(day), "replicas": _replicas(day)}
    shown = [target for target in day.targets if target.metric != "tbt_s"]
    if day.check is not None and shown:
        panels["latency"] = _latency_of_day(day, shown[0])
    return panels


def day_rows(day: "DayPlan") -> pl.DataFrame:
    """Return a row per interval: its first hour, rate, and replicas: planned, static, by theory."""
    static = day.deployment.replicas
    return pl.DataFrame(
        [
            {
                "hour": p.start_s / _HOUR_S,
                "rate": p.rate,
                _FOLLOWS: p.replicas,
                _STATIC: static,
                _NEEDED: p.certified,
            }
            for p in day.periods
        ]
    )


def _to_the_end(rows: pl.DataFrame, day: "DayPlan") -> pl.DataFrame:
    """Repeat the last row at the end of the day, so that its step is drawn."""
    return pl.concat([rows, rows.tail(1).with_columns(hour=pl.lit(day.profile.span_s / _HOUR_S))])


def _hours(day: "DayPlan") -> alt.X:
    end = day.profile.span_s / _HOUR_S
    ticks = list(range(0, 25, 3)) if end == 24 else None
    axis = alt.Axis(values=ticks, format=",~f") if ticks else alt.Axis(tickCount=8, format=",~f")
    return alt.X("hour:Q", title="Hour", scale=alt.Scale(domain=[0, end], nice=False), axis=axis)


def _rates(day: "DayPlan") -> Any:
    area = alt.Chart(_to_the_end(day_rows(day), day), title="Arrival rate").mark_area(
        interpolate="step-after",
        color=COLOURS[0],
        fillOpacity=0.18,
        line={"color": COLOURS[0], "strokeWidth": 2},
    )
    y = alt.Y("rate:Q", title="Requests/s", axis=_LINEAR)
    return area.encode(x=_hours(day), y=y).properties(width=560, height=150)


def _replicas(day: "DayPlan") -> Any:
    rows = _to_the_end(day_rows(day), day).unpivot(
        list(_FLEETS), index="hour", variable_name="fleet"
    )
    most = max(day.deployment.replicas, *(period.replicas for period in day.periods))
    ticks = list(range(0, most + 1, max(-(-most // 6), 1)))
    names, looks = list(_FLEETS), list(_FLEETS.values())
    legend = alt.Legend(
        title="Fleet", symbolType="stroke", symbolStrokeWidth=2.5, symbolSize=300, labelLimit=220
    )
    colours, dashes, widths = (
        alt.Scale(domain=names, range=[look[i] for look in looks]) for i in range(3)
    )
    return (
        alt.Chart(rows, title="Replicas")
        .mark_line(interpolate="step-after")
        .encode(
            x=_hours(day),
            y=alt.Y(
                "value:Q",
                title="Replicas",
                axis=alt.Axis(values=ticks, format="d"),
                scale=alt.Scale(zero=True),
            ),
            color=alt.Color("fleet:N", scale=colours, legend=legend),
            strokeDash=alt.StrokeDash("fleet:N", scale=dashes, legend=legend),
            strokeWidth=alt.StrokeWidth("fleet:N", scale=widths, legend=None),
        )
        .properties(width=560, height=180)
    )


def latency_of_day(day: "DayPlan", target: "Target") -> list[float | None]:
    """Return the latency that a target limits, by interval of the simulated days, or None."""
    if day.check is None:
        return [None] * len(day.periods)
    return [interval.get(target.metric, {}).get(target.statistic) for interval in day.check.latency]


def _latency_of_day(day: "DayPlan", target: "Target") -> alt.LayerChart:
    hours = [period.start_s / _HOUR_S for period in day.periods]
    half = day.profile.interval_s / _HOUR_S / 2
    rows = pl.DataFrame(
        {"hour": [hour + half for hour in hours], "value": latency_of_day(day, target)}
    )
    limit = alt.Chart(pl.DataFrame({"value": [target.limit_s], "text": [str(target)]})).encode(
        y=alt.Y("value:Q", title="Seconds")
    )
    y = alt.Y("value:Q", title="Seconds", axis=_LINEAR, scale=alt.Scale(zero=True))
    layers = [
        alt.Chart(rows.drop_nulls())
        .mark_line(point={"size": 40, "color": COLOURS[0]}, color=COLOURS[0])
        .encode(x=_hours(day), y=y),
        limit.mark_rule(strokeDash=[5, 4], strokeWidth=1.5, color=COLOURS[1]),
        limit.mark_text(align="left", baseline="bottom", dy=-3, color="#8f3f00").encode(
            x=alt.value(4), text="text:N"
        ),
    ]
    title = f"{target.label} by the time of arrival, simulated"
    return alt.LayerChart(layer=layers).properties(width=560, height=170, title=title)
