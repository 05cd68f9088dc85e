"""Figures of a plan: each drawn, said in words, and laid out as a table, in one place."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import polars as pl

from penstock.planning.rates import HOUR_S
from penstock.show.page import Figure, Table
from penstock.show.plot import COLOURS, Axis, By, Chart, Look, limit, mark, plot

if TYPE_CHECKING:
    from penstock.planning.day import DayPlan
    from penstock.planning.plan import Plan

ANSWER = "answer"
_STATES = {
    ANSWER: ("#000000", "diamond"),
    "met": (COLOURS[0], "circle"),
    "undecided": (COLOURS[4], "triangle-up"),
    "missed": ("#8c8c8c", "cross"),
}
"""Of what became of a deployment."""

_FARTHEST = 50  # times the limit, where latency is drawn at the edge
_FLEETS = {
    "follows the day": (COLOURS[0], [1, 0], 2.4),
    "static: for the peak": (COLOURS[1], [7, 3], 1.8),
    "least by theory": ("#444444", [2, 2], 1.8),
}
_DAY = (560, 160)  # px


def frontier_figure(plan: "Plan", tables: Sequence[Table] = ()) -> Figure:
    """Draw cost against latency of all that was simulated."""
    of_goodput = plan.objective == "goodput"
    answer = "none has the goodput" if of_goodput else "none meets the targets"
    if plan.best is not None:
        answer = f"the answer is {plan.best.deployment.name}"
    label = plan.targets[0].label
    text = f"Cost over {label} of each deployment that was simulated; {answer}."
    return Figure(
        "frontier",
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
    for result in plan.measured:
        fleet, first = result.deployment, result.estimates[0]
        state = ANSWER if result is plan.best else result.answer
        best = any(result is other for other in plan.frontier)
        rows.append((fleet.name, fleet.cost, first.value, first.low, first.high, state, best))
    return pl.DataFrame(rows, schema, orient="row").sort("cost", "latency_s", "deployment")


def frontier_chart(plan: "Plan") -> Chart:
    """Draw cost against latency; the target as a line, the answer on top."""
    cost = "money per hour" if plan.priced else "accelerators"
    target = plan.targets[0]
    edge = _FARTHEST * target.limit_s
    rows = evaluations(plan).with_columns(pl.col("latency_s", "low_s", "high_s").clip(None, edge))
    states = {state: look for state, look in _STATES.items() if (rows["state"] == state).any()}
    by = By("state", states, look="color shape")
    best, known = rows.filter("frontier"), rows.drop_nulls(["low_s", "high_s"])
    stairs: Look = {"interpolate": "step-before", "color": "#666666", "strokeWidth": 1.2}
    along, until = {"order": "cost"}, {"x2": "high_s"}
    marks = [
        *limit("x", target.limit_s, str(target)),
        mark("line", "latency_s", "cost", table=best, more=along, **stairs),
        mark("rule", "low_s", "cost", by, table=known, more=until, opacity=0.45),
    ]
    for state in reversed(list(states)):  # the answer on top
        look: Look = {
            "filled": state != "undecided",
            "size": 190 if state == ANSWER else 60,
            "opacity": 0.5 if state == "missed" else 1,
        }
        marks.append(mark("point", "latency_s", "cost", by, table=rows.filter(state=state), **look))
    return plot(
        rows.clear(),
        *marks,
        x=Axis.over(f"{target.label} (s)", [*rows["latency_s"], target.limit_s], ticks=5),
        y=Axis(f"Cost ({cost})"),
        size=(460, 280),
    )


def day_figure(day: "DayPlan", tables: Sequence[Table] = ()) -> Figure:
    """Draw rate, replicas and latency over the day, with tables of what the page lacks."""
    return Figure("day", "The day", day_charts(day), tables, columns=1, wide=True)


def day_rows(day: "DayPlan") -> pl.DataFrame:
    """Return a row per interval: its first hour, rate, and replicas: planned, static, by theory."""
    static = day.deployment.replicas
    rows = [(p.start_s / HOUR_S, p.rate, p.replicas, static, p.certified) for p in day.periods]
    return pl.DataFrame(rows, ["hour", "rate", *_FLEETS], orient="row")


def day_charts(day: "DayPlan") -> dict[str, Chart]:
    """Rate, replicas and, of whole days simulated, latency by interval; by what is drawn."""
    end = day.profile.span_s / HOUR_S
    hours = Axis("Hour", domain=(0, end), ticks=range(0, 25, 3) if end == 24 else 8)
    rows = day_rows(day)
    rows = pl.concat([rows, rows.tail(1).with_columns(hour=pl.lit(end))])  # its step is drawn
    outline = {"color": COLOURS[0], "strokeWidth": 2}
    most = max(day.deployment.replicas, *(period.replicas for period in day.periods))
    fleets = rows.unpivot(list(_FLEETS), index="hour", variable_name="fleet")
    by = By("fleet", _FLEETS, "Fleet", "color strokeDash strokeWidth")
    charts = {
        "Arrival rate over the day.": plot(
            rows,
            mark("area", "hour", "rate", interpolate="step-after", fillOpacity=0.18, line=outline),
            x=hours,
            y=Axis("Requests/s"),
            size=_DAY,
            title="Arrival rate",
        ),
        "Replicas over the day: following it, static, and the least that theory allows.": plot(
            fleets,
            mark("line", "hour", "value", by, interpolate="step-after"),
            x=hours,
            y=Axis("Replicas", ticks=range(0, most + 1, max(-(-most // 6), 1))),
            size=_DAY,
            title="Replicas",
        ),
    }
    target = next((target for target in day.targets if target.metric != "tbt_s"), None)
    if day.check is not None and target is not None:
        half = day.profile.interval_s / HOUR_S / 2
        middles = [period.start_s / HOUR_S + half for period in day.periods]
        values = [of.get(target.metric, {}).get(target.statistic) for of in day.check.latency]
        text = "Latency over the day with the replicas that follow it, simulated, with its target."
        charts[text] = plot(
            pl.DataFrame({"hour": middles, "value": values}).drop_nulls(),
            mark("line", "hour", "value"),
            mark("point", "hour", "value"),
            *limit("y", target.limit_s, str(target)),
            x=hours,
            y=Axis("Seconds"),
            size=_DAY,
            title=f"{target.label} by the time of arrival, simulated",
        )
    return charts
