"""Figures of a page on a network: charts, what they show in words, and their figures as a table.

Charts are imported when one is drawn: a terminal never waits for that.
"""

from collections.abc import Mapping

import numpy as np

from penstock.checking.comparison import NetworkComparison
from penstock.checking.graph_layout import network_ways, pool_cycles
from penstock.checking.stability import Stability
from penstock.show.page import Figure, Table
from penstock.simulation.run import Run
from penstock.system.network import Network
from penstock.theory.certificate import Certificate
from penstock.words import METRICS, amount, seconds

_SHARES = (0.1, 0.5, 0.9, 0.95, 0.99, 0.999)  # of a table of a distribution
_ROWS = 20  # of a table of values over time
_PHONE = 480  # px; a wider drawing scrolls on a phone
_FLOODS = (
    "Each stage in turn is flooded with jobs that begin there, beside those that arrive; the "
    "network is stable if its "
    "work falls from every flood, and unstable if it rises from any."
)


def graph_figure(
    network: Network,
    certificate: Certificate | None = None,
    loads: Mapping[str, float] | None = None,
) -> Figure:
    """Draw pools, stages and the ways of jobs."""
    from penstock.checking import graph

    names, ways, model = list(network.pools), network_ways(network), network.model()
    cycles = pool_cycles(network)
    pools = "; ".join(
        f"{name}, {graph.load_in_words(load)}"
        for name, load in graph.pool_loads(network, loads).items()
    )
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
    wide = chart.width > _PHONE
    return Figure("The network", {text: chart}, [Table(columns, rows)], caption, wide=wide)


def _then_in_words(fork: bool, targets: dict[str, float]) -> str:
    if fork:
        return f"all of {', '.join(targets)}"
    said = [to if chance == 1 else f"{to} {chance:.3g}" for to, chance in targets.items()]
    ends = 1 - sum(targets.values())
    return ", ".join(said + ([f"end {ends:.3g}"] if 1e-9 < ends < 1 else [])) or "end"


def flood_figure(stability: Stability) -> Figure:
    """Draw how the work went after each flood."""
    from penstock.checking import charts_network

    went = "; ".join(
        f"with {flood.name} flooded it went to {flood.ratio:.2f} times, at most {flood.highest:.2f}"
        for flood in stability.floods
    )
    text = f"Lines of work over that at the start, against time: {went}."
    rows = [
        (flood.name, flood.outcome, f"{flood.initial:,}", f"{flood.arrivals:,}",
        f"{flood.ratio:.2f}",
         f"{flood.highest:.2f}", f"{flood.path[-1, 0]:,.4g}")
        for flood in stability.floods
    ]  # fmt: skip
    columns = (
        "Flooded stage",
        "Outcome",
        "Jobs at the start",
        "Jobs that arrived",
        "Work at the end",
        "Most",
        "Seconds",
    )
    return Figure(
        "Floods",
        {text: charts_network.flood_paths(stability)},
        [
            Table(
                columns,
                rows,
                "Work: all that jobs in the network still need, over that at the start",
            )
        ],
        f"{_FLOODS} Drawn is the work that jobs in the network still need, calls to come "
        "included. It may "
        "rise before it falls.",
    )


def queue_figure(run: Run) -> Figure:
    """Draw the requests at each stage over time, a chart per pool."""
    from penstock.checking import charts_network

    stages = run.network.stages
    served = run.network.pool_of_stage
    wide = charts_network.stage_queues(run).pivot(on="stage", index="time_s", values="requests")
    charts = {}
    for pool, panel in charts_network.queue_panels(run).items():
        here = [stage for stage in stages if served[stage] == pool]
        most = "; ".join(f"{s} at most {wide[s].to_numpy().max():,}" for s in here)
        charts[f"Lines of requests at pool {pool} over time: {most}."] = panel
    picked = np.unique(np.linspace(0, wide.height - 1, _ROWS + 1).astype(int)).tolist()
    rows = [
        (amount(time), *(f"{n:,}" for n in of))
        for time, *of in wide.select("time_s", *stages)[picked].iter_rows()
    ]
    return Figure(
        "Queues",
        charts,
        [Table(("Time (s)", *stages), rows, "Requests, waiting and served")],
        "Requests at each stage, waiting and served, while jobs arrive.",
    )


def comparison_figure(comparison: NetworkComparison, what: str) -> Figure:
    """Draw the distributions of latency of networks side by side."""
    from penstock.checking import charts_network

    charts = {}
    tables = []
    columns = (what, *(f"{100 * share:g}%" for share in _SHARES))
    by_workflow = comparison.by_workflow()
    for (workflow, metric), panel in charts_network.comparison_panels(comparison, what).items():
        cells = [
            (row.network, *(seconds(row.samples[metric].quantile(s) * row.tick_s) for s in _SHARES))
            for row in by_workflow[workflow]
        ]
        title = f"{METRICS[metric]} of {workflow}"
        text = "; ".join(f"{row[0]} {row[2]} s at the median, {row[-2]} s at 99%" for row in cells)
        charts[f"{title}, cumulative distribution: {text}."] = panel
        tables.append(Table(columns, cells, f"{title}: at most so many seconds"))
    return Figure("Latency", charts, tables, "Share of calls or jobs that took at most so long.")
