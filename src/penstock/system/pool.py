"""A pool: identical replicas of a server behind a router."""

import dataclasses

from penstock import checks
from penstock.errors import InputError
from penstock.kernel.signatures import SEES_DECODES
from penstock.system.orders import Order, OrderFunction, resolve_order
from penstock.system.routing import Router, resolve_router
from penstock.system.scheduler import Scheduler
from penstock.system.server import Server

MOST_REPLICAS = 65_536
"""Of a pool: so many can a router's coin tell apart."""


@dataclasses.dataclass(frozen=True, init=False)
class Pool:
    """Identical replicas behind a router.

    Parameters
    ----------
    server
        One replica. With KV memory, the scheduler of an engine, or batch times by more than the
        token load its own order is that of its queue.
    replicas
        How many there are.
    router
        Which replica gets a request: a name in `ROUTERS`, or ``Router.measure(prefill=1,
        decode=2)``.
    order
        Which stage is served first at a replica: a name in `ORDERS`, ``Order.priority([...])``,
        ``module:function``, or a function.
    affinity
        Whether later requests of a job go to the replica that its first one here went to.
    """

    server: Server
    replicas: int
    router: Router
    order: Order
    affinity: bool

    def __init__(
        self,
        server: Server,
        replicas: int = 1,
        router: str | Router = "jsq",
        order: str | Order | OrderFunction = "fcfs",
        affinity: bool = False,
    ) -> None:
        if not isinstance(server, Server):
            raise InputError(f"the server of a pool is {checks.shown(server)}; give a Server")
        reason = "none serve nothing, and a router cannot tell more apart"
        if not isinstance(affinity, bool):
            raise InputError(
                f"affinity is {checks.shown(affinity)}, but must be true or false; give one"
            )
        resolved = resolve_order(order)
        _refuse_what_pools_lack(server, resolved)
        vars(self).update(
            server=server,
            replicas=checks.whole("replicas", replicas, 1, MOST_REPLICAS, "", reason),
            router=resolve_router(router),
            order=resolved,
            affinity=affinity,
        )

    @property
    def policy(self) -> Scheduler:
        """The policy of each replica."""
        return self.server.policy

    @property
    def work_conserving(self) -> bool | None:
        """Whether each replica fills its batches whenever it can, under no max batch size: not
        where KV memory may leave no room; None: not known.
        """
        if self.server.memory is not None:
            return False
        return True if self.order.fills else self.policy.work_conserving

    @property
    def repeats(self) -> bool:
        """Whether a batch of all that decode is followed by the same one while nobody arrives or
        finishes.

        Not where the policy looks at what each batch changes; nor where the order of the lines may
        change meanwhile and the policy may then choose otherwise: the paper's policies take all
        decodes that fit, first line or last.
        """
        if self.policy.sees == SEES_DECODES:
            return False
        lasting = self.order.single_line or self.order.fills or self.order.ranks_stages
        return lasting or self.policy.phases is not None

    def describe(self) -> str:
        """Say in a few words what serves."""
        if self.replicas == 1:
            return f"1 replica, {self.order.name}"
        bound = " with affinity" if self.affinity else ""
        return f"{self.replicas:,} replicas behind {self.router.name}{bound}, {self.order.name}"


def _refuse_what_pools_lack(server: Server, order: Order) -> None:
    """Refuse servers that a pool cannot consist of."""
    if server.policy.longest_context:
        raise InputError(
            f"max_model_len is {server.policy.longest_context:,}, but a network does not cut "
            "outputs; leave it out, and shorten the outputs of the stages"
        )
    if server.by_lines:
        return
    if order.name != "fcfs":
        raise InputError(
            f"the order of the pool is {order.name}, but {server.policy.name}, as its server has "
            "it, serves requests in order of arrival; leave the order out"
        )
