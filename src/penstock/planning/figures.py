"""Figures of a plan: charts, what they show in words, and their figures as a table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.capacity.charts import rate_cells, rate_heat_map
from penstock.planning import charts
from penstock.show.heat_map import significant
from penstock.show.page import Figure, Table
from penstock.words import NO_LIMIT, amount

if TYPE_CHECKING:
    from penstock.capacity.stable_rates import RateMap
    from penstock.planning.day import DayPlan
    from penstock.planning.plan import Plan

_MOST_ROWS = 60


def frontier_figure(plan: "Plan") -> Figure:
    """Draw cost and throughput against latency of all that was simulated."""
    answer = "none meets the targets"
    line = "target"
    if plan.objective == "goodput":
        answer = "none has the goodput"
        line = "limit of a good request"
    if plan.best is not None:
        answer = f"the answer is {plan.best.deployment.name}"
    texts = [
        f"{what} over {plan.targets[0].label} of each deployment that was simulated; {answer}."
        for what in ("Cost", "Throughput per cost")
    ]
    return Figure(
        "Cost and throughput against latency",
        dict(zip(texts, charts.frontier_panels(plan), strict=True)),
        [_simulated(plan)],
        f"The dashed line is the {line}. Horizontal lines: intervals. Stairs: what more money, or "
        "less, buys.",
    )


def _simulated(plan: "Plan") -> Table:
    """Lay out all that was simulated, the cheapest first."""
    cost = "Money per hour" if plan.priced else "Accelerators"
    latencies = [f"{target.label} (s)" for target in plan.targets]
    rows = []
    for evaluation in sorted(
        plan.evaluated, key=lambda one: (one.deployment.cost, one.deployment.name)
    )[:_MOST_ROWS]:
        deployment = evaluation.deployment
        rows.append(
            (
                "unstable" if evaluation.verdict == "unstable" else charts.judged(plan, evaluation),
                deployment.family,
                f"{deployment.replicas:,}",
                amount(deployment.cost),
                *(significant(estimate.value) for estimate in evaluation.estimates),
                "-" if evaluation.goodput.value is None else f"{evaluation.goodput.value:.1%}",
                significant(evaluation.throughput),
            )
        )
    caption = ""
    if len(plan.evaluated) > _MOST_ROWS:
        caption = f"The first {_MOST_ROWS} of {len(plan.evaluated):,}."
    return Table(
        ("Judged", "Deployment", "Replicas", cost, *latencies, "Goodput", "Requests/s"),
        rows,
        caption,
    )


def rates_figure(rates: "RateMap") -> Figure:
    """Draw what one replica carries at each token budget and max batch size."""
    rows = [
        (
            row["token_budget"],
            row["max_batch_size"],
            row["text"],
            significant(row["above"]),
            row["known"],
        )
        for row in rate_cells(rates).iter_rows(named=True)
    ]
    columns = (
        "Token budget",
        "Max batch size",
        "Stable at (requests/s)",
        "Not known above",
        "Known by",
    )
    most = ""
    if rates.best is not None:
        budget, size = rates.best
        most = f"; the highest at token budget {budget:,}, max batch size {size or NO_LIMIT}"
    text = f"Heat map of the highest stable rate over token budget and max batch size{most}."
    return Figure(
        "What one replica carries",
        {text: rate_heat_map(rates)},
        [Table(columns, rows)],
        "Requests/s. Theorem: what is certified is all that any policy could carry, so nothing "
        "was simulated. "
        "Simulated: theorems leave a gap, which a search by simulation closes. Framed: the "
        "highest.",
    )


def day_figure(day: "DayPlan", tables: Sequence[Table]) -> Figure:
    """Draw rate, replicas and latency over the day, with tables of what the page lacks."""
    texts = {
        "rate": "Arrival rate over the day.",
        "replicas": "Replicas over the day: following it, static, and the least that theory "
        "allows.",
        "latency": "Latency over the day with the replicas that follow it, simulated, with its "
        "target.",
    }
    panels = {texts[name]: chart for name, chart in charts.day_panels(day).items()}
    return Figure("The day", panels, tables, wide=True)
