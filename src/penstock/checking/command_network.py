"""The command ``penstock network``: a scenario of pools and workflows."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.errors import InputError
from penstock.show import progress
from penstock.show.options import (
    EXIT_ANSWER_IS_NO,
    Figures,
    Json,
    Report,
    Resolution,
    Seed,
    Strict,
    check_outputs,
    files_of,
    save_figures,
    show_page,
)

if TYPE_CHECKING:
    from penstock.checking.network_answer import NetworkAnswer
    from penstock.scenario.network import NetworkScenario
    from penstock.system.orders import Order


Jobs = Annotated[int | None, typer.Option("--jobs", help="Of a network: jobs to simulate.")]
Orders = Annotated[
    str | None,
    typer.Option(
        "--orders",
        help="Of a network: orders between stages, by commas, beside the scenario's own.",
    ),
]


def network(
    scenario: Annotated[
        Path, typer.Argument(metavar="SCENARIO", help="A YAML file: network, simulate.")
    ],
    jobs: Jobs = None,
    seed: Seed = None,
    resolution: Resolution = 0.02,
    orders: Orders = None,
    as_json: Json = False,
    figures: Figures = None,
    report: Report = None,
    strict: Strict = False,
) -> None:
    """Say whether workflows over pools are stable, which pool is the bottleneck, and how long their
    jobs take.

    The same as `penstock check` of a network. With --orders: under each order between stages, for
    the same jobs.
    """
    from penstock.document import read_document

    check_outputs(files_of(scenario), {"--report": report}, figures)
    document = read_document(scenario)
    chosen = chosen_network(scenario, document, jobs)
    answer_network(chosen, seed, resolution, orders, as_json, figures, report, strict)


def answer_network(
    chosen: "NetworkScenario",
    seed: int | None,
    resolution: float | None,
    orders: str | None,
    as_json: bool,
    figures: Path | None,
    report: Path | None,
    strict: bool,
) -> None:
    """Answer for a network."""
    if orders is not None:
        if figures is not None or report is not None:
            raise InputError("--figures and --report show one order; leave --orders out, or them")
        _compare(chosen, orders, seed, resolution, as_json, strict)
        return
    from penstock.checking.answer import check

    with progress.bar(f"Simulating {chosen.name}") as show:
        answer = check(
            chosen.network,
            jobs=chosen.jobs,
            until=chosen.until,
            seed=seed,
            resolution=resolution,
            progress=show,
            outages=chosen.outages,
        )
    if figures is not None:
        _draw(figures, answer, as_json)
    show_page(answer.page(chosen), answer.as_dict(), report, as_json)
    if strict and answer.verdict != "stable":
        raise typer.Exit(EXIT_ANSWER_IS_NO)


def _compare(
    chosen: "NetworkScenario",
    orders: str,
    seed: int | None,
    resolution: float | None,
    as_json: bool,
    strict: bool,
) -> None:
    """Answer for the scenario's own order and those named."""
    from penstock.checking.orders import compare_orders, own_order
    from penstock.checking.view_network import orders_page

    if chosen.outages:
        raise InputError(
            "--orders compares steady states, in which nothing dies, so it would pass over "
            "`simulate.outages`; leave out one of the two"
        )
    named = chosen_orders(chosen, orders)
    own = own_order(chosen.network)
    orders_by_name: dict[str, Order | dict[str, Order]] = {own: {}}
    orders_by_name |= {order.name: order for order in named if order.name != own}
    with progress.bar("Simulating") as show:
        answers = compare_orders(
            chosen.network,
            orders_by_name,
            jobs=chosen.jobs,
            until=chosen.until,
            seed=seed,
            resolution=resolution,
            progress=show,
        )
    document = {"orders": {name: answer.as_dict() for name, answer in answers.items()}}
    show_page(orders_page(answers, chosen), document, None, as_json)
    if strict and any(answer.verdict != "stable" for answer in answers.values()):
        raise typer.Exit(EXIT_ANSWER_IS_NO)


def chosen_network(path: Path, document: Any, jobs: int | None) -> "NetworkScenario":
    """Build a scenario, put the choices of the command line over it, and say so if something has to
    be compiled.
    """
    from penstock.scenario.network import build_network
    from penstock.scenario.scenario import describes_network

    if not describes_network(document) and isinstance(document, dict) and "server" in document:
        raise InputError(f"{path} describes one server, not a network; ask `penstock check {path}`")
    scenario = build_network(document, path.parent, path.name)
    progress.announce_compilation()
    return scenario if jobs is None else dataclasses.replace(scenario, jobs=jobs, until=None)


def chosen_orders(chosen: "NetworkScenario", orders: str) -> "list[Order]":
    """Return the orders named."""
    from penstock.system.orders import ORDERS, resolve_order

    names = [name.strip() for name in orders.split(",") if name.strip()]
    if not names:
        raise InputError(f"--orders names none; give some of {', '.join(ORDERS)}")
    resolved = [resolve_order(name, folder=chosen.folder) for name in names]
    if len({order.name for order in resolved}) < len(resolved):
        called = ", ".join(order.name for order in resolved)
        raise InputError(f"--orders: two of {called} have one name; leave one out")
    return resolved


def _draw(folder: Path, answer: "NetworkAnswer", as_json: bool) -> None:
    """Write the figures: the graph, the floods, the queues."""
    from penstock.checking import charts_network as plotting_network

    charts = {
        "network_graph": plotting_network.network_graph(answer.network, answer.certificate),
        "queue_lengths": plotting_network.queue_lengths(answer.run),
    }
    if answer.stability:
        charts["flood_paths"] = plotting_network.flood_paths(answer.stability)
    save_figures(charts, folder, as_json)
