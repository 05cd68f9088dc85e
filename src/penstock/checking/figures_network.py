"""Figures of a page on a network: charts, what they show in words, and their figures as a table."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from penstock.checking import graph
from penstock.checking.figures import TIME, distributions
from penstock.checking.flood_test import FALLEN
from penstock.checking.graph_layout import network_ways, pool_cycles
from penstock.checking.stability import Stability
from penstock.show.page import Figure, Table
from penstock.show.plot import Axis, By, Chart, limit, mark, plot
from penstock.simulation.run import Run
from penstock.system.network import Network
from penstock.theory.certificate import Certificate
from penstock.words import METRICS, amount

if TYPE_CHECKING:
    from penstock.checking.comparison import NetworkComparison

_POINTS = 500  # of a line
_MOST_POINTS = 4_800  # of all lines of a chart
_ROWS = 20  # of a table of values over time
_PHONE = 480  # px; a wider drawing scrolls on a phone
_FLOODS = (
    "Each stage in turn is flooded with jobs that begin there, beside those that arrive; the "
    "network is stable if its work falls from every flood, and unstable if it rises from any."
)


def graph_figure(
    network: Network,
    certificate: Certificate | None = None,
    loads: Mapping[str, float] | None = None,
) -> Figure:
    """Draw pools, stages and the ways of jobs."""
    names, ways, model = list(network.pools), network_ways(network), network.model()
    cycles = pool_cycles(network)
    known = graph.pool_loads(network, loads)
    pools = "; ".join(f"{name}, {graph.load_in_words(load)}" for name, load in known.items())
    cycle = "no job comes back to a pool that it has left"
    if cycles:
        round_trips = "; ".join(" - ".join(name for name in names if name in of) for of in cycles)
        cycle = f"jobs can go round between {round_trips}"
    text = f"Graph of {len(names)} pools and {len(network.stages)} stages: {pools}; {cycle}."
    rows = [
        (
            stage,
            names[network.stage_pool[k]],
            f"{model.visits[k]:,.4g}",
            f"{model.prefill[k] + model.decode[k]:,.0f}",
            _then_in_words(*ways[stage]),
        )
        for k, stage in enumerate(network.stages)
    ]
    columns = ("Stage", "Pool", "Requests/s", "Tokens", "What follows")
    caption = (
        "A column is a pool, darker where its load is higher; jobs go down, and a number is the "
        "share of them that "
        "takes a way. A bar below a stage: all that follow begin; above: it waits for all."
    )
    if cycles:
        caption += (
            " Dashed: pools between which jobs can go round, where load below 1 is not enough."
        )
    chart = graph.network_graph(network, certificate, loads)
    wide = chart["width"] > _PHONE
    tables = [Table(columns, rows)]
    return Figure("network_graph", "The network", {text: chart}, tables, caption, wide=wide)


def _then_in_words(fork: bool, targets: dict[str, float]) -> str:
    if fork:
        return f"all of {', '.join(targets)}"
    said = [to if chance == 1 else f"{to} {chance:.3g}" for to, chance in targets.items()]
    ends = 1 - sum(targets.values())
    return ", ".join(said + ([f"end {ends:.3g}"] if 1e-9 < ends < 1 else [])) or "end"


def flood_figure(stability: Stability) -> Figure:
    """Draw how the work went after each flood."""
    went = "; ".join(
        f"with {flood.name} flooded it went to {flood.ratio:.2f} times, at most {flood.highest:.2f}"
        for flood in stability.floods
    )
    text = f"Lines of work over that at the start, against time: {went}."
    table = Table.of(
        {
            "Flooded stage": lambda flood: flood.name,
            "Outcome": lambda flood: flood.outcome,
            "Jobs at the start": lambda flood: f"{flood.initial:,}",
            "Jobs that arrived": lambda flood: f"{flood.arrivals:,}",
            "Work at the end": lambda flood: f"{flood.ratio:.2f}",
            "Most": lambda flood: f"{flood.highest:.2f}",
            "Seconds": lambda flood: f"{flood.path[-1, 0]:,.4g}",
        },
        stability.floods,
        caption="Work: all that jobs in the network still need, over that at the start",
    )
    caption = (
        f"{_FLOODS} Drawn is the work that jobs in the network still need, calls to come "
        "included. It may rise before it falls."
    )
    return Figure("flood_paths", "Floods", {text: flood_paths(stability)}, [table], caption)


def flood_paths(stability: Stability) -> Chart:
    """Work over that at the start, by time, a line per flooded stage, between the barriers."""
    floods = stability.floods
    rose = [flood.barrier for flood in floods if flood.outcome == "unstable"]
    high = rose[0] if rose else min(flood.barrier for flood in floods)
    lowest = min(float(flood.path[:, 1].min()) for flood in floods)
    low = min(FALLEN / 1.25, max(0.05, lowest))
    parts = []
    for flood in floods:
        time, work = _thinned(flood.path, _MOST_POINTS // len(floods)).T
        parts.append(pl.DataFrame({"time": time, "work": work.clip(low), "stage": flood.name}))
    ticks = [2.0**power for power in range(-4, 12)]
    by = By("stage", [flood.name for flood in floods], "Flooded stage")
    look: dict[str, Any] = {"color": "black"}
    return plot(
        pl.concat(parts),
        *limit("y", FALLEN, "stable: it fell to half", below=True, **look),
        *limit("y", high, "unstable: it rose so far", **look),
        mark("line", "time", "work", by),
        x=TIME,
        y=Axis("Work over that at the start", log=True, domain=(low, 1.5 * high), ticks=ticks),
        size=(430, 280),
    )


def _thinned(path: Any, most: int) -> Any:
    """Return at most so many rows, the last among them."""
    return path if len(path) <= most else path[np.linspace(0, len(path) - 1, most).astype(int)]


def queue_figure(run: Run) -> Figure:
    """Draw the requests at each stage over time, a chart per pool."""
    stages, queues = run.network.stages, stage_queues(run)
    wide = queues.pivot(on="stage", index="time_s", values="requests")
    times = wide["time_s"].to_numpy()
    charts = {}
    for pool in run.network.pools:
        here = [stage for stage in stages if run.network.pool_of_stage[stage] == pool]
        most = "; ".join(f"{s} at most {wide[s].to_numpy().max():,}" for s in here)
        shown = _thinned(times, min(_POINTS, _MOST_POINTS // len(here))).tolist()
        table = queues.filter(pl.col("stage").is_in(here), pl.col("time_s").is_in(shown))
        by = By("stage", here, "Stage")
        charts[f"Lines of requests at pool {pool} over time: {most}."] = plot(
            table,
            mark("line", "time_s", "requests", by, interpolate="step-after"),
            x=TIME,
            y=Axis("Requests"),
            size=(330, 240),
            title=f"Requests at {pool}",
        )
    picked = np.unique(np.linspace(0, wide.height - 1, _ROWS + 1).astype(int)).tolist()
    rows = [
        (amount(time), *(f"{n:,}" for n in of))
        for time, *of in wide.select("time_s", *stages)[picked].iter_rows()
    ]
    over_time = Table(("Time (s)", *stages), rows, "Requests, waiting and served")
    caption = "Requests at each stage, waiting and served, while jobs arrive."
    return Figure("queue_lengths", "Queues", charts, [over_time], caption)


def stage_queues(run: Run) -> pl.DataFrame:
    """Return the requests at each stage while jobs arrive: time_s, stage, requests."""
    until = run.last_arrival * run.tick_s
    return (
        run.queues.filter(pl.col("what").is_in(["prefill", "decode"]) & (pl.col("time_s") <= until))
        .group_by("time_s", pl.col("name").alias("stage"), maintain_order=True)
        .agg(pl.col("value").sum().alias("requests"))
    )


def comparison_figure(comparison: "NetworkComparison", what: str) -> Figure:
    """Draw the distributions of latency of networks, a chart for each workflow and metric."""
    by_workflow = comparison.by_workflow()
    samples = {}
    for workflow, rows in by_workflow.items():
        of = f" of {workflow}" if len(by_workflow) > 1 else ""
        for metric in rows[0].samples:
            latencies = {row.network: (row.samples[metric], row.tick_s) for row in rows}
            samples[f"{METRICS[metric]}{of}"] = latencies
    caption = "Share of calls or jobs that took at most so long."
    return distributions(samples, list(comparison.answers), what, caption, columns=2)
