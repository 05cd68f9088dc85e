"""What a command asks about: a scenario with the choices of the command line over it."""

import dataclasses
import itertools
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from penstock.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.scenario.scenario import Scenario
    from penstock.system.network import Network
    from penstock.system.orders import Order
    from penstock.system.routing import Router
    from penstock.system.scheduler import Scheduler
    from penstock.system.server import Server

Named = TypeVar("Named", "Scheduler", "Router", "Order")

Requests = Annotated[
    int | None, typer.Option("--requests", help="Arrivals to simulate, instead of the scenario's.")
]
Targets = Annotated[
    list[str] | None,
    typer.Option("--target", metavar="TARGET", help="A limit such as ttft_p99<2s; repeatable."),
]
Alpha = Annotated[
    float, typer.Option("--alpha", help="Share of wrong verdicts that the test aims at.")
]
AlphaOfServer = Annotated[
    float | None,
    typer.Option("--alpha", help="Share of wrong verdicts that the test of a server aims at."),
]
PolicyName = Annotated[
    str | None, typer.Option("--policy", help="Policy, instead of the scenario's.")
]


def measured(scenario: "Scenario") -> dict[str, Any] | None:
    """Return where the batch times come from, None where they stand in the scenario."""
    measurement = scenario.measured
    if measurement is None:
        return None
    return {
        "description": measurement.description,
        "source": measurement.source,
        "year": measurement.year,
    }


def chosen_scenario(
    path: Path,
    policy: str | None = None,
    arrivals: int | None = None,
    seed: int | None = None,
    document: Any = None,
) -> "Scenario":
    """Read a scenario, unless it is read, and put the choices of the command line over it."""
    # ``policy`` and ``seed`` are of a server alone; so is what is asked where it is read here.
    from penstock.document import read_document
    from penstock.scenario.scenario import build
    from penstock.system.policies import resolve

    scenario = build(read_document(path) if document is None else document, path.parent, path.name)
    if document is None or not scenario.is_network:
        workload, server = scenario.workload, scenario.server
        if policy is not None:
            server = server.with_policy(resolve(policy, folder=scenario.folder))
        if seed is not None:
            workload = workload.with_seed(seed)
        scenario = dataclasses.replace(scenario, system=(workload, server))
    if arrivals is not None:
        scenario = dataclasses.replace(scenario, arrivals=arrivals, until=None)
    return scenario


def chosen_servers(
    scenario: "Scenario", policies: str | None, default: "Sequence[str | Scheduler]"
) -> "dict[str, Server]":
    """Return the scenario's server under each policy named, by name."""
    # Policies without KV memory of their own have that of the first engine named, else the
    # scenario's.
    own = scenario.server
    servers = {
        policy.name: own if policy.name == own.policy.name else own.with_policy(policy)
        for policy in chosen_policies(scenario, policies, default)
    }
    engine = next((server for server in servers.values() if server.policy.memory.limited), own)
    for name, server in servers.items():
        if not server.policy.memory.limited and server.gpu is not None:
            servers[name] = dataclasses.replace(server, gpu=engine.gpu, memory=engine.memory)
    return servers


def chosen_policies(
    scenario: "Scenario",
    policies: str | None,
    default: "Sequence[str | Scheduler]",
) -> "list[Scheduler]":
    """Return the policies named."""
    from penstock.system.policies import POLICIES, resolve

    resolved = partial(resolve, folder=scenario.folder)
    if policies is None:
        return _without_twins("--policies", list(map(resolved, default)))
    return _chosen("--policies", policies, POLICIES, resolved)


def chosen_variants(scenario: "Scenario", axes: "Mapping[str, str | None]") -> "dict[str, Network]":
    """Return the network under all named combinations, by name; as it is where none are named."""
    from penstock.checking.variants import with_order, with_policy, with_router
    from penstock.system.network_checks import refuse_in_vain
    from penstock.system.orders import ORDERS, resolve_order
    from penstock.system.policies import POLICIES, resolve
    from penstock.system.routing import ROUTERS, resolve_router

    kinds: dict[str, tuple[Iterable[str], Callable[..., Any], Callable[..., Network]]] = {
        "policies": (POLICIES, resolve, with_policy),
        "routers": (ROUTERS, resolve_router, with_router),
        "orders": (ORDERS, resolve_order, with_order),
    }
    parts = []
    for axis, (known, resolved, change) in kinds.items():
        names = axes[axis]
        if names is not None:
            if axis == "routers":
                _refuse_routers_in_vain(scenario.network, names)
            chosen = _chosen(f"--{axis}", names, known, partial(resolved, folder=scenario.folder))
            parts.append([(each, change) for each in chosen])
    if not parts:
        return {"as it is": scenario.network}
    networks = {}
    for choices in itertools.product(*parts):
        network = scenario.network
        for each, change in choices:
            network = change(network, each)
        refuse_in_vain(network)  # as where the scenario names the router
        networks[", ".join(each.name for each, _ in choices)] = network
    return networks


def _refuse_routers_in_vain(network: "Network", routers: str) -> None:
    """Refuse routers where there is nothing to choose for them."""
    if all(pool.replicas == 1 for pool in network.pools.values()):
        raise InputError(
            f"--routers names {routers}, but each pool has one replica, so no router is asked; "
            "give one more `replicas`, or leave it out"
        )


def varied(axes: "Mapping[str, str | None]") -> str:
    """Return what tables call the networks under what is named: ``Policy, router``."""
    named = [_SINGULAR[axis] for axis, given in axes.items() if given is not None]
    return (", ".join(named) or "network").capitalize()


_SINGULAR = {"policies": "policy", "routers": "router", "orders": "order"}


def _chosen(
    option: str, given: str, known: "Iterable[str]", resolved: "Callable[[str], Named]"
) -> "list[Named]":
    """Return what the names in an option mean, of which it is to have some."""
    names = [name.strip() for name in given.split(",") if name.strip()]
    if not names:
        raise InputError(f"{option} names none; give some of {', '.join(known)}")
    return _without_twins(option, list(map(resolved, names)))


def _without_twins(option: str, chosen: "list[Named]") -> "list[Named]":
    """Return what is chosen, if tables can tell it apart."""
    if len({each.name for each in chosen}) < len(chosen):
        called = ", ".join(each.name for each in chosen)
        raise InputError(
            f"{option}: two of {called} have one name; leave one out, or give it another name"
        )
    return chosen


# the length of a run: requests of one server, jobs of a network
_INSTEAD = {"--requests": "--jobs", "--jobs": "--requests"}


def read_either(
    path: Path, of_server: dict[str, Any], of_network: dict[str, Any]
) -> tuple[Any, bool]:
    """Return what a scenario holds and whether it is a network; refuse the other kind's options."""
    from penstock.document import read_document
    from penstock.scenario.scenario import describes_network

    document = read_document(path)
    is_network = describes_network(document)
    what, options = ("a network", of_server) if is_network else ("one server", of_network)
    for option, value in options.items():
        if value is not None:
            remedy = f"give {_INSTEAD[option]}" if option in _INSTEAD else "leave it out"
            raise InputError(f"{path} describes {what}, which knows no {option}; {remedy}")
    return document, is_network


def about(scenario: "Scenario") -> str:
    """Return the line under a figure: what arrives, and the token budget."""
    workload, server = scenario.workload, scenario.server
    return f"{workload.describe()}, {workload.pace}; token budget {server.token_budget:,}"
