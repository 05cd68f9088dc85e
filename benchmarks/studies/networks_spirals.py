"""Draw how a backlog moves between two servers that are crossed both ways (Rybko and Stolyar).

Drawn is the fluid model of ``examples/rybko_stolyar.yaml``: what a large backlog does when
randomness averages out. The priorities of the file serve first, at each server, the calls after
which a job leaves. At a load of .65 of each server the path from a backlog of one stage spirals
out, at .50 it spirals in: the limit is .5588. With the priorities turned around a load of .90
drains in one go.

Run ``python benchmarks/studies/networks_spirals.py``; it writes
``docs/figures/networks_spirals.svg``, ``networks_graph.svg`` and ``networks_queues.svg``: the
graph, and the queues of the simulation under both orders.
"""

import dataclasses
from pathlib import Path

import altair as alt
import numpy as np
import polars as pl

import penstock as ps
from penstock.checking.figures_network import queue_figure
from penstock.checking.graph import network_graph
from penstock.scenario.scenario import read_scenario
from penstock.show import charts
from penstock.show.plot import COLOURS, SHORT
from penstock.theory.network.fluid import network_path

LOAD = 0.9  # of the file
ROOT = Path(__file__).parents[2]
REVERSED = {
    "retrieval": ["search.look_up", "complaint.look_into"],
    "communication": ["complaint.understand", "search.reply"],
}
JOBS = 20_000
# classes against each other, of each pair the first less the other
ACROSS = ["search.look_up", "complaint.understand"]
UPWARDS = ["search.reply", "complaint.look_into"]


def ranking(network: ps.Network) -> list[str]:
    """Return the stages of all pools, most urgent first."""
    return [stage for pool in network.pools.values() for stage in pool.order.stages]


def turned_around(network: ps.Network) -> ps.Network:
    """Return the network with the other priorities."""
    pools = {
        name: dataclasses.replace(pool, order=ps.Order.priority(REVERSED[name]))
        for name, pool in network.pools.items()
    }
    return dataclasses.replace(network, pools=pools)


def spiral(network: ps.Network, load: float, events: int, title: str) -> alt.LayerChart:
    """Return levels against levels on the way from a backlog of the first stage."""
    model = network.with_load(load / LOAD).model()
    path = network_path(model, ranking(network), "search.look_up", most_events=events)
    print(f"{title}: a cycle multiplies the backlog by {path.growth}, drained: {path.drained}")
    level = dict(zip(path.classes, path.requests.T, strict=True))
    across, upwards = (level[first] - level[other] for first, other in (ACROSS, UPWARDS))
    axis = alt.Axis(labelExpr=SHORT, tickCount=6)
    turns = pl.DataFrame({"x": across, "y": upwards, "order": np.arange(across.size)})
    x = alt.X("x:Q", title=f"{' minus '.join(ACROSS)} (requests)", axis=axis)
    y = alt.Y("y:Q", title=f"{' minus '.join(UPWARDS)} (requests)", axis=axis)
    ends = pl.DataFrame({"x": across[[0, -1]], "y": upwards[[0, -1]], "at": ["start", "end"]})
    shape = alt.Shape(
        "at:N",
        scale=alt.Scale(domain=["start", "end"], range=["circle", "diamond"]),
        legend=alt.Legend(title="Path", symbolSize=110),
    )
    layers = [
        alt.Chart(turns, title=title)
        .mark_line(strokeWidth=1.6, color=COLOURS[0])
        .encode(x=x, y=y, order="order:Q"),
        alt.Chart(arrows(across, upwards))
        .mark_point(shape="triangle", size=60, filled=True, color=COLOURS[0], opacity=1)
        .encode(x=x, y=y, angle=alt.Angle("angle:Q", scale=None)),
        alt.Chart(ends)
        .mark_point(size=90, filled=True, color="black", opacity=1)
        .encode(x=x, y=y, shape=shape),
    ]
    return alt.LayerChart(layer=layers).properties(width=250, height=250)


def arrows(x: np.ndarray, y: np.ndarray) -> pl.DataFrame:
    """Return an arrow amid each long stretch of a path, its angle clockwise from upwards."""
    # On square axes.
    reach = max(float(np.ptp(x)), 1e-300), max(float(np.ptp(y)), 1e-300)
    dx, dy = np.diff(x) / reach[0], np.diff(y) / reach[1]
    long = np.hypot(dx, dy) > 0.12
    return pl.DataFrame(
        {
            "x": (x[:-1] + x[1:])[long] / 2,
            "y": (y[:-1] + y[1:])[long] / 2,
            "angle": np.degrees(np.arctan2(dx, dy))[long],
        }
    )


def main() -> None:
    """Compute, simulate and draw."""
    network = read_scenario(ROOT / "examples" / "rybko_stolyar.yaml").network
    spirals = alt.hconcat(
        spiral(network, 0.65, 16, "These priorities, load .65"),
        spiral(network, 0.5, 24, "These priorities, load .50"),
        spiral(turned_around(network), 0.9, 16, "Turned around, load .90"),
    )
    runs = {
        "these priorities": ps.simulate(network, jobs=JOBS, seed=0),
        "turned around": ps.simulate(turned_around(network), jobs=JOBS, seed=0),
    }
    rows = []
    for name, run in runs.items():
        print(f"{name}: {run.growth_tokens_per_s:+.0f} tokens/s; {run.workflows()}")
        panels = queue_figure(run).charts.values()
        row = [
            panel | {"title": f"{pool}, {name}", "height": 170}
            for pool, panel in zip(network.pools, panels, strict=True)
        ]
        rows.append({"hconcat": row})
    queues = {"vconcat": rows, "resolve": {"scale": {"color": "shared"}}}
    graph = network_graph(network, ps.certify(network))
    drawings = {"networks_spirals": spirals, "networks_queues": queues, "networks_graph": graph}
    for path in charts.save(drawings, ROOT / "docs" / "figures"):
        if path.suffix == ".png":
            path.unlink()


if __name__ == "__main__":
    main()
