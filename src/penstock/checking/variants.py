"""A network with another policy, router or order between stages."""

import dataclasses
from collections.abc import Mapping

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.system.network import Network
from penstock.system.orders import ORDERS, Order, OrderFunction, resolve_order
from penstock.system.pool import Pool
from penstock.system.routing import Router, resolve_router
from penstock.system.scheduler import Scheduler

OrderChoice = str | Order | OrderFunction


def own_order(network: Network) -> str:
    """Name the orders that the pools of a network have."""
    return ", ".join(dict.fromkeys(pool.order_name for pool in network.pools.values()))


def with_order(network: Network, order: OrderChoice | Mapping[str, OrderChoice]) -> Network:
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


def with_router(network: Network, router: str | Router) -> Network:
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


def with_policy(network: Network, policy: str | Scheduler) -> Network:
    """Return a network with another policy at all pools."""
    pools = {
        name: dataclasses.replace(
            pool, servers=tuple((one.with_policy(policy), count) for one, count in pool.servers)
        )
        for name, pool in network.pools.items()
    }
    return dataclasses.replace(network, pools=pools)
