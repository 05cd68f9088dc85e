"""Draw how a backlog moves between two servers that are crossed both ways (Rybko and Stolyar).

Drawn is the fluid model of ``examples/rybko_stolyar.yaml``: what a large backlog does when
randomness averages out. The priorities of the file serve first, at each server, the calls after
which a job leaves. At a load of .65 of each server the path from a backlog of one stage spirals
out, at .50 it spirals in: the limit is .5588. With the priorities turned around a load of .90
drains in one go.

Run ``python docs/networks_spirals.py``; it writes ``docs/figures/networks_spirals.svg``,
``networks_graph.svg`` and ``networks_queues.svg``: the graph, and the queues of the simulation
under both orders.
"""

import dataclasses
from pathlib import Path

import altair as alt

import penstock as ps
from penstock.checking import charts_network as plotting_network
from penstock.scenario.network import read_network
from penstock.show import charts
from penstock.theory.network.fluid import network_path

LOAD = 0.9  # of the file
DOCS = Path(__file__).parent
REVERSED = {
    "retrieval": ["search.look_up", "complaint.look_into"],
    "communication": ["complaint.understand", "search.reply"],
}
JOBS = 20_000


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
    across = ["search.look_up", "complaint.understand"], ["search.reply", "complaint.look_into"]
    chart: alt.LayerChart = plotting_network.fluid_panels(path, across)[1].properties(
        title=title, width=250, height=250
    )
    return chart


def main() -> None:
    """Compute, simulate and draw."""
    network = read_network(DOCS.parent / "examples" / "rybko_stolyar.yaml").network
    spirals = alt.hconcat(
        spiral(network, 0.65, 16, "These priorities, load .65"),
        spiral(network, 0.5, 24, "These priorities, load .50"),
        spiral(turned_around(network), 0.9, 16, "Turned around, load .90"),
    ).configure_axis(gridColor=charts.GRID)
    runs = {
        "these priorities": ps.simulate(network, jobs=JOBS, seed=0),
        "turned around": ps.simulate(turned_around(network), jobs=JOBS, seed=0),
    }
    rows = []
    for name, run in runs.items():
        print(f"{name}: {run.growth_tokens_per_s:+.0f} tokens/s; {run.workflows()}")
        panels = plotting_network.queue_panels(run)
        rows.append(
            alt.hconcat(
                *(p.properties(title=f"{pool}, {name}", height=170) for pool, p in panels.items())
            )
        )
    queues = alt.vconcat(*rows).resolve_scale(color="shared").configure_axis(gridColor=charts.GRID)
    graph = plotting_network.network_graph(network, ps.certify(network))
    drawings = {"networks_spirals": spirals, "networks_queues": queues, "networks_graph": graph}
    for path in charts.save(drawings, DOCS / "figures"):
        if path.suffix == ".png":
            path.unlink()


if __name__ == "__main__":
    main()
