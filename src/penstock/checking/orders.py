"""The same jobs under several orders between stages, routers or policies."""

import dataclasses
from collections.abc import Mapping, Sequence

from penstock import checks
from penstock.checking.answer import check
from penstock.checking.network_answer import NetworkAnswer
from penstock.errors import InputError, nearest
from penstock.simulation.progress import Progress, part_of
from penstock.system.network import Network
from penstock.system.orders import ORDERS, Order, OrderFunction, resolve_order
from penstock.system.pool import Pool
from penstock.system.routing import Router, resolve_router
from penstock.system.scheduler import Scheduler

OrderChoice = str | Order | OrderFunction


def compare_orders(
    network: Network,
    orders: Sequence[OrderChoice] | Mapping[str, OrderChoice | Mapping[str, OrderChoice]],
    *,
    jobs: int | None = None,
    until: float | None = None,
    seed: int | None = None,
    resolution: float | None = None,
    progress: Progress | None = None,
) -> dict[str, NetworkAnswer]:
    """Answer for the same jobs under several orders between stages.

    Parameters
    ----------
    network, jobs, until, seed, resolution, progress
        As in `penstock.check`.
    orders
        Orders that all pools have, as in `Pool`; or by any names, orders of all pools or a mapping
        from pools to theirs, where pools left out keep their own.

    Returns
    -------
    dict
        Answers by the names of the orders.

    Raises
    ------
    InputError
        If a value cannot be used.
    """
    networks = _reordered(network, orders)
    count = len(networks)
    answers = {}
    for index, (name, reordered) in enumerate(networks.items()):
        part = part_of(progress, index / count, (index + 1) / count)
        answers[name] = check(
            reordered, jobs=jobs, until=until, seed=seed, resolution=resolution, progress=part
        )
    return answers


def own_order(network: Network) -> str:
    """Name the orders that the pools of a network have."""
    return ", ".join(dict.fromkeys(pool.order_name for pool in network.pools.values()))


def with_order(network: Network, order: OrderChoice | Mapping[str, OrderChoice]) -> Network:
    """Return a network with another order at all pools, or at those that a mapping names.

    ``priority`` without stages is that of the requests, by which each engine of a pool goes then.

    Raises
    ------
    InputError
        If a pool or an order is unknown.
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


def with_router(network: Network, router: str | Router) -> Network:
    """Return a network with another router before all pools of several replicas.

    Raises
    ------
    InputError
        If the router is unknown.
    """
    chosen = resolve_router(router)
    pools = {
        name: dataclasses.replace(pool, router=chosen if pool.replicas > 1 else pool.router)
        for name, pool in network.pools.items()
    }
    return dataclasses.replace(network, pools=pools)


def with_policy(network: Network, policy: str | Scheduler) -> Network:
    """Return a network with another policy at all pools.

    Raises
    ------
    InputError
        If the policy is unknown, or cannot serve a pool as it is.
    """
    pools = {
        name: dataclasses.replace(
            pool, servers=tuple((one.with_policy(policy), count) for one, count in pool.servers)
        )
        for name, pool in network.pools.items()
    }
    return dataclasses.replace(network, pools=pools)


def _reordered(
    network: Network,
    orders: Sequence[OrderChoice] | Mapping[str, OrderChoice | Mapping[str, OrderChoice]],
) -> dict[str, Network]:
    if not isinstance(network, Network):
        raise InputError(
            f"compare_orders takes a Network, not {checks.shown(network)}; for one server use check"
        )
    if isinstance(orders, str) or not isinstance(orders, Sequence | Mapping) or not orders:
        raise InputError(
            f"orders are {checks.shown(orders)}; give a list of at least one, such as ['fcfs', "
            "'hlpps']"
        )
    if isinstance(orders, Mapping):
        return {name: with_order(network, order) for name, order in orders.items()}
    networks: dict[str, Network] = {}
    for choice in orders:
        order = resolve_order(choice)
        if order.name in networks:
            raise InputError(
                f"two orders are called {order.name}, so which is meant is unclear; leave one out"
            )
        networks[order.name] = with_order(network, order)
    return networks
