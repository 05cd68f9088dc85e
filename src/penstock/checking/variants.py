"""A server or a network with fields changed: policies, routers, orders between stages, limits."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.simulation.progress import Progress, in_parts
from penstock.system.kinds import asked_about
from penstock.system.orders import ORDERS, Order, OrderFunction, resolve_order
from penstock.system.policies import Policy, resolve
from penstock.system.pool import Pool
from penstock.system.routing import ROUTERS, Router, resolve_router
from penstock.system.scheduler import Scheduler
from penstock.system.server import Server

if TYPE_CHECKING:
    from penstock.system.kinds import System
    from penstock.system.network import Network

OrderChoice = str | Order | OrderFunction


def with_limits(server: Server, policy: str | Scheduler, **limits: Any) -> Server:
    """Return a server with other limits, under another policy or its own, which keeps settings."""
    if server.policy.name not in (policy, getattr(policy, "name", "")):
        limits |= {"policy": policy, "policy_params": ()}
    return dataclasses.replace(server, **limits)


def own_order(network: "Network") -> str:
    """Name the orders that the pools of a network have."""
    return ", ".join(dict.fromkeys(pool.order_name for pool in network.pools.values()))


def with_order(network: "Network", order: OrderChoice | Mapping[str, OrderChoice]) -> "Network":
    """Return a network with another order at all pools, or at those that a mapping names.

    ``priority`` without stages is that of the requests, by which each engine of a pool goes then.
    """
    if isinstance(order, Mapping):
        for name in order:
            if name not in network.pools:
                raise InputError(
                    f"an order is given for pool {checks.shown(name)}, which there is not"
                    f"{nearest(str(name), network.pools)}"
                )
        chosen = {name: resolve_order(choice) for name, choice in order.items()}
    else:
        chosen = dict.fromkeys(network.pools, resolve_order(order))
    pools = {
        name: _with_order(pool, chosen[name]) if name in chosen else pool
        for name, pool in network.pools.items()
    }
    return dataclasses.replace(network, pools=pools)


def _with_order(pool: Pool, order: Order) -> Pool:
    """Return a pool with another order between stages, or of the requests at each engine."""
    kinds = tuple((dataclasses.replace(each, order="fcfs"), n) for each, n in pool.servers)
    if order.ranks_stages and not order.stages and not kinds[0][0].by_lines:
        kinds = tuple((dataclasses.replace(each, order="priority"), n) for each, n in kinds)
        order = ORDERS["fcfs"]
    return dataclasses.replace(pool, servers=kinds, order=order)


def with_router(network: "Network", router: str | Router) -> "Network":
    """Return a network with another router before all pools of several replicas.

    A pool that has the router already keeps it with its settings.
    """
    chosen = resolve_router(router)
    pools = {
        name: pool
        if pool.replicas == 1 or pool.router.name == chosen.name
        else dataclasses.replace(pool, router=chosen)
        for name, pool in network.pools.items()
    }
    return dataclasses.replace(network, pools=pools)


def with_policy(network: "Network", policy: str | Scheduler) -> "Network":
    """Return a network with another policy at all pools."""
    pools = {
        name: dataclasses.replace(
            pool, servers=tuple((one.with_policy(policy), count) for one, count in pool.servers)
        )
        for name, pool in network.pools.items()
    }
    return dataclasses.replace(network, pools=pools)


class _Axis(NamedTuple):
    """What of a network may vary."""

    what: str
    known: Iterable[str]
    resolve: Callable[..., Any]
    change: "Callable[[Network, Any], Network]"


_AXES = {
    "policies": _Axis("policy", Policy.known, resolve, with_policy),
    "routers": _Axis("router", ROUTERS, resolve_router, with_router),
    "orders": _Axis("order", ORDERS, resolve_order, with_order),
}

Choices = Mapping[str, Sequence[str | Scheduler] | str | None]
"""What `policies`, `routers` and `orders` are to be: lists, or names with commas between; None: as
they are.
"""


def variants(system: "System", choices: Choices, folder: Path | None = None) -> "dict[str, System]":
    """Return a system with every combination of what is chosen, by name; as it is where nothing is.

    Functions are looked for in the folder first. Policies without KV memory of their own have that
    of the first engine beside them, else the server's.
    """
    axes = {
        field: values_of(field, names, folder)
        for field, names in choices.items()
        if names is not None
    }
    if isinstance(system, tuple):
        workload, server = system
        servers = _under(server, axes.get("policies", [server.policy]))
        return {name: (workload, each) for name, each in servers.items()}
    if not axes:
        return {"as it is": system}
    from penstock.system.network_checks import refuse_in_vain

    if "routers" in axes and all(pool.replicas == 1 for pool in system.pools.values()):
        raise InputError(
            f"--routers names {choices['routers']}, but each pool has one replica, so no router is "
            "asked; give one more `replicas`, or leave it out"
        )
    networks: dict[str, System] = {}
    for values in itertools.product(*axes.values()):
        network = system
        for field, value in zip(axes, values, strict=True):
            network = _AXES[field].change(network, value)
        refuse_in_vain(network)  # as where the scenario names the router
        networks[", ".join(value.name for value in values)] = network
    return networks


def ask(
    question: Callable[..., Any],
    systems: "Mapping[str, System]",
    progress: Progress | None,
    **options: Any,
) -> dict[str, Any]:
    """Ask the same of each, and return the answers by name."""
    return {
        name: question(*asked_about(system), **options, progress=part)
        for (name, system), part in in_parts(progress, systems.items())
    }


def values_of(
    field: str, choices: Sequence[str | Scheduler] | str, folder: Path | None = None
) -> list[Any]:
    """Return what is chosen for a field, if tables can tell it apart."""
    axis = _AXES[field]
    if isinstance(choices, str):
        choices = [name.strip() for name in choices.split(",") if name.strip()]
    if not choices:
        raise InputError(f"--{field} names none; give some of {', '.join(axis.known)}")
    values = [axis.resolve(choice, folder=folder) for choice in choices]
    if len({value.name for value in values}) < len(values):
        called = ", ".join(value.name for value in values)
        raise InputError(
            f"--{field}: two of {called} have one name; leave one out, or give it another name"
        )
    return values


def varied(choices: Choices) -> str:
    """Return what tables call variants: ``Policy, router``."""
    named = [_AXES[field].what for field, names in choices.items() if names is not None]
    return (", ".join(named) or "network").capitalize()


def _under(server: Server, policies: Sequence[Scheduler]) -> dict[str, Server]:
    """Return a server under policies, by name."""
    servers = {policy.name: with_limits(server, policy) for policy in policies}
    engine = next((each for each in servers.values() if each.policy.memory.limited), server)
    for name, each in servers.items():
        if not each.policy.memory.limited and each.gpu is not None:
            servers[name] = dataclasses.replace(each, gpu=engine.gpu, memory=engine.memory)
    return servers
