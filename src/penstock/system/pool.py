"""A pool: replicas of a server, or of several, behind a router."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from penstock import checks
from penstock.errors import InputError
from penstock.fields import Checked, Range
from penstock.kernel.signatures import SEES_DECODES
from penstock.system.orders import Order, OrderFunction, resolve_order
from penstock.system.queue_limit import QueueLimit
from penstock.system.routing import Router, RouterFunction, resolve_router
from penstock.system.scheduler import Scheduler
from penstock.system.server import Server

MOST_REPLICAS = 65_536
"""Of a pool: so many can a router's coin tell apart."""

_REPORT = Range(0, 1e9, "ms", "a router learns no earlier than now")
_REPLICAS = Range(
    1, MOST_REPLICAS, "", "none serve nothing, and a router cannot tell more apart", "replicas"
)


@dataclasses.dataclass(frozen=True, init=False)
class Pool(Checked):
    """Replicas behind a router.

    Parameters
    ----------
    servers
        One replica, or of a pool of different ones pairs (server, how many). With KV memory, the
        scheduler of an engine, or batch times by more than the token load its own order is that of
        its queue.
    replicas
        How many there are; 1 of pairs, which say it themselves.
    router
        Which replica gets a request: a name in `ROUTERS`, ``Router.measure(prefill=1, decode=2)``,
        or a function, see `penstock.system.routing`.
    order
        Which stage is served first at a replica: a name in `ORDERS`, ``Order.priority([...])``,
        ``module:function``, or a function.
    affinity
        Whether later requests of a job go to the replica that its first one here went to.
    report_ms
        Of a router that learns only now and then how replicas are: every so many milliseconds; 0:
        it always knows. What it remembers itself (turns, where jobs went, what it sent since then)
        and what a replica has computed of a prompt it knows at once.
    router_limit
        Whom the router refuses on arrival, by all replicas together; by ``ttft_ms`` at the replica
        that it chose. None: nobody.

    Attributes
    ----------
    servers
        Each kind of server, and how many there are.
    """

    servers: tuple[tuple[Server, int], ...]
    router: Router
    order: Order
    affinity: bool
    report_ms: Annotated[float, _REPORT]
    router_limit: QueueLimit | None

    def __init__(
        self,
        servers: Server | Sequence[tuple[Server, int]],
        replicas: int = 1,
        router: str | Router | RouterFunction = "jsq",
        order: str | Order | OrderFunction = "fcfs",
        affinity: bool = False,
        report_ms: float = 0.0,
        router_limit: QueueLimit | None = None,
    ) -> None:
        vars(self).update(
            servers=_kinds(servers, replicas),
            router=resolve_router(router),
            order=resolve_order(order),
            affinity=affinity,
            report_ms=report_ms,
            router_limit=router_limit,
        )
        self.__post_init__()  # what the last two may be stands on their fields

    def settle(self) -> None:
        """Refuse kinds of servers that cannot stand in one pool, or not under its order."""
        kinds = [server for server, _ in self.servers]
        for server in kinds:
            _refuse_what_pools_lack(server, self.order)
        _refuse_what_differs(kinds)

    @property
    def server(self) -> Server:
        """The first kind of server."""
        return self.servers[0][0]

    @property
    def replicas(self) -> int:
        """How many there are of all kinds."""
        return sum(count for _, count in self.servers)

    def server_of(self, replica: int) -> Server:
        """Return the kind of server that a replica is, which are counted kind by kind from 0."""
        ends = itertools.accumulate(count for _, count in self.servers)
        return self.servers[next(index for index, end in enumerate(ends) if replica < end)][0]

    @property
    def policy(self) -> Scheduler:
        """The policy of the first kind."""
        return self.server.policy

    @property
    def caches_prefixes(self) -> bool:
        """Whether some of its replicas keep what prompts begin with for others."""
        return any(server.caches_prefixes for server, _ in self.servers)

    def with_servers(self, changed: Callable[[Server], Server]) -> "Pool":
        """Return the pool with each server as it is when changed."""
        servers = tuple((changed(server), count) for server, count in self.servers)
        if all(new is old for (new, _), (old, _) in zip(servers, self.servers, strict=True)):
            return self
        return dataclasses.replace(self, servers=servers)

    @property
    def order_name(self) -> str:
        """What tables call its order: that between stages, or ``priority`` where each server goes
        by the priorities of requests.
        """
        if self.order.name == "fcfs":
            return self.server.order
        return self.order.name

    @property
    def work_conserving(self) -> bool | None:
        """Whether each replica fills its batches whenever it can, under no max batch size: not
        where KV memory may leave no room; None: not known.
        """
        servers = [server for server, _ in self.servers]
        if any(server.memory is not None for server in servers):
            return False
        if self.order.fills:
            return True
        known = {server.policy.batching.work_conserving for server in servers}
        if False in known:
            return False
        if None in known:
            return None
        return True

    def repeats(self, server: Server) -> bool:
        """Whether a batch of all that decode at such a server is followed by the same one while
        nobody arrives or finishes.

        Not where the policy looks at what each batch changes; nor where the order of the lines may
        change meanwhile and the policy may then choose otherwise: the paper's policies take all
        decodes that fit, first line or last.
        """
        if server.policy.sees == SEES_DECODES:
            return False
        lasting = self.order.single_line or self.order.fills or self.order.ranks_stages
        return lasting or server.policy.batching.phases is not None

    def describe(self) -> str:
        """Say in a few words what serves."""
        if self.replicas == 1:
            return f"1 replica, {self.order_name}"
        bound = " with affinity" if self.affinity else ""
        kinds = f" of {len(self.servers)} kinds" if len(self.servers) > 1 else ""
        late = f" ({self.report_ms:g} ms late)" if self.report_ms else ""
        behind = f"{self.replicas:,} replicas{kinds} behind {self.router.name}{bound}{late}"
        return f"{behind}, {self.order_name}"


def _kinds(servers: Any, replicas: Any) -> tuple[tuple[Server, int], ...]:
    """Return the kinds of servers of a pool, and how many there are of each."""
    pairs = [(servers, replicas)]
    if isinstance(servers, Sequence) and not isinstance(servers, str):
        pairs = list(servers)
        if not pairs or any(not isinstance(pair, Sequence) or len(pair) != 2 for pair in pairs):
            raise InputError(
                f"the servers of a pool are {checks.shown(servers)}; give pairs (Server, how many)"
            )
        if replicas != 1:
            raise InputError(
                f"replicas is {checks.shown(replicas)}, but servers of several kinds each say how "
                "many there are; leave it out"
            )
    kinds = []
    for server, count in pairs:
        if not isinstance(server, Server):
            raise InputError(f"the server of a pool is {checks.shown(server)}; give a Server")
        kinds.append((server, _REPLICAS.whole(count)))
    _REPLICAS.whole(sum(count for _, count in kinds))
    return tuple(kinds)


def _refuse_what_differs(servers: Sequence[Server]) -> None:
    """Refuse kinds of servers that cannot stand in one pool."""
    first = servers[0]
    for other in servers[1:]:
        for what, one, two in (
            ("their convention", first.convention, other.convention),
            ("what they are", _what(first), _what(other)),
            ("their front end", first.front_end, other.front_end),
            (
                "max_model_len",
                first.policy.memory.longest_context,
                other.policy.memory.longest_context,
            ),
        ):
            if one != two:
                raise InputError(
                    f"two kinds of servers of a pool differ in {what} ({one} and {two}), so a "
                    "request would not be the same at both; make them alike, or two pools"
                )


def _what(server: Server) -> str:
    """Say what decides which requests a server takes into a batch."""
    if server.by_lines:
        return "a policy of the paper alone"
    return "an engine, or one with KV memory, priorities or attention"


def _refuse_what_pools_lack(server: Server, order: Order) -> None:
    """Refuse servers that a pool cannot consist of."""
    if server.by_lines:
        return
    if order.name != "fcfs":
        raise InputError(
            f"the order of the pool is {order.name}, but {server.policy.name}, as its server has "
            "it, serves requests by arrival or by priorities of their own, whatever their stages; "
            "leave the order out, or give the Server order='priority' (in a scenario the pool "
            "`order: priority`)"
        )
