"""What ``penstock check`` and ``compare`` say of a network: a scenario of pools and workflows."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.checking.command_choices import chosen_variants, varied
from penstock.errors import InputError
from penstock.show import progress
from penstock.show.options import Form

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.checking.answer import Answer
    from penstock.scenario.scenario import Scenario
    from penstock.system.network import Network


Jobs = Annotated[int | None, typer.Option("--jobs", help="Of a network: jobs to simulate.")]
Orders = Annotated[
    str | None,
    typer.Option("--orders", help="Of a network: orders between stages, by commas."),
]
OrdersBeside = Annotated[
    str | None,
    typer.Option(
        "--orders",
        help="Of a network: orders between stages, by commas, beside the scenario's own.",
    ),
]
Routers = Annotated[
    str | None,
    typer.Option("--routers", help="Of a network: routers, by commas, at all pools."),
]


def compare_orders(chosen: "Scenario", orders: str, asked: dict[str, Any], form: Form) -> None:
    """Put a network's own order and others side by side; ``asked`` goes to `compare_networks`."""
    _compare(chosen, _beside_its_own(chosen, orders), "Order", asked, form)


def refuse_beside_orders(options: dict[str, Any]) -> None:
    """Refuse what only one network is asked."""
    for option, value in options.items():
        if value is not None:
            raise InputError(
                f"{option} judges one network, and --orders compares several; leave out one of them"
            )


def compare_variants(
    chosen: "Scenario",
    axes: "Mapping[str, str | None]",
    asked: dict[str, Any],
    form: Form,
) -> None:
    """Compare a network's policies, routers and orders; ``asked`` goes to `compare_networks`."""
    if all(given is None for given in axes.values()):
        several = any(pool.replicas > 1 for pool in chosen.network.pools.values())
        such = "--routers jsq,tokens" if several else "--orders fcfs,hlpps"
        raise InputError(
            f"{chosen.name} describes a network, of which compare puts routers, policies or "
            f"orders side by side; name some, as {such}"
        )
    networks = chosen_variants(chosen, axes)
    _compare(chosen, networks, varied(axes), asked, form)


def _compare(
    chosen: "Scenario",
    networks: "Mapping[str, Network]",
    what: str,
    asked: dict[str, Any],
    form: Form,
) -> None:
    """Put networks side by side."""
    from penstock.checking.comparison import compare_networks

    if chosen.outages:
        raise InputError(
            "steady states are compared, in which nothing dies, so `simulate.outages` would be "
            "passed over; leave them out"
        )
    progress.announce_compilation()
    with progress.bar("Simulating") as show:
        comparison = compare_networks(
            networks, jobs=chosen.arrivals, until=chosen.until, progress=show, **asked
        )
    if form.figures is not None:
        from penstock.checking.charts_network import compared_latencies

        form.draw({"latency_cdfs": compared_latencies(comparison, what)})
    form.show(comparison.page(chosen, what), comparison.as_dict())
    form.leave(any(answer.verdict != "stable" for answer in comparison.answers.values()))


def _beside_its_own(chosen: "Scenario", orders: str) -> "dict[str, Network]":
    """Return the network under its own order and those named, its own first."""
    from penstock.checking.variants import own_order

    variants = chosen_variants(chosen, {"policies": None, "routers": None, "orders": orders})
    own = {own_order(chosen.network): chosen.network}
    return own | variants | own


def draw_network(form: Form, answer: "Answer") -> None:
    """Write the figures: the graph, the floods, the queues."""
    if form.figures is None:
        return
    from penstock.checking import charts_network as plotting_network

    charts = {
        "network_graph": plotting_network.network_graph(
            answer.network, answer.certificate, answer.loads
        ),
        "queue_lengths": plotting_network.queue_lengths(answer.run),
    }
    if answer.stability:
        charts["flood_paths"] = plotting_network.flood_paths(answer.stability)
    form.draw(charts)
