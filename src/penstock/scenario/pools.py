"""The pools of a scenario of a network: servers, how many, and the router and order before them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, BeforeValidator, Field

from penstock import checks
from penstock.document import Section, Whole, with_keys_of, within
from penstock.errors import InputError
from penstock.scenario.server import QueueLimitSection, ServerSection
from penstock.system.engine_flags import key
from penstock.system.gpu_memory import Gpu
from penstock.system.network import Pool
from penstock.system.orders import Order, resolve_order
from penstock.system.routing import Router, resolve_router
from penstock.system.server import Server

_ORDER = AliasChoices(*key("order").names)


@with_keys_of(Router.measure)
class _Weights(Section):
    pass


class _Measure(Section):
    measure: _Weights


def _router(value: Any) -> Any:
    """Turn ``{measure: {prefill: 1, decode: 2}}`` into a router, maybe one beside the file."""
    if isinstance(value, Mapping) and list(value) == ["measure"]:
        return _Measure.model_validate(value).measure.build()
    return value


def _order(value: Any) -> str | Order:
    """Turn ``{priority: [stages]}`` into an order; what a name means may lie beside the file."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and list(value) == ["priority"]:
        return Order.priority(value["priority"])
    raise InputError(
        f"an order is {checks.shown(value)}, but must be a name such as hlpps, `priority` (of the "
        "requests), or {priority: [stages]}, most urgent first"
    )


class KindSection(ServerSection):
    """One kind of server of a pool, and how many there are."""

    replicas: Whole = 1


_OF_POOL = {"servers", "router", "order", "affinity", "report_ms", "router_limit"}


class PoolSection(KindSection):
    """A pool: the keys of a server, or several kinds of ``servers``, and the router before them.

    ``order`` is between stages; ``priority`` alone is that of each server, between requests.
    """

    servers: list[KindSection] | None = None
    router: Annotated[Any, BeforeValidator(_router)] = "jsq"
    order: Annotated[Any, BeforeValidator(_order)] = Field("fcfs", validation_alias=_ORDER)
    affinity: bool = False
    report_ms: float = 0.0
    router_limit: QueueLimitSection | None = None

    def build_pool(self, where: str, folder: Path) -> Pool:
        """Return the pool that stands there in the file; paths are looked for in ``folder``."""
        by_priority = self.order == "priority"
        with within(where, "server"):
            servers = self._servers(where, folder, "priority" if by_priority else "fcfs")
            with within(f"{where}.router"):
                router = resolve_router(self.router, folder=folder)
            with within(f"{where}.order"):
                order = resolve_order("fcfs" if by_priority else self.order, folder=folder)
            limit = None
            if self.router_limit is not None:
                with within(f"{where}.router_limit"):
                    limit = self.router_limit.build()
            return Pool(servers, 1, router, order, self.affinity, self.report_ms, limit)

    @property
    def hardware_name(self) -> str:
        """How answers call what it runs on; empty where it has no name."""
        if self.servers is None:
            return super().hardware_name
        return " and ".join(filter(None, (kind.hardware_name for kind in self.servers)))

    def known_gpu(self, folder: Path) -> Gpu | None:
        """Return the model on its GPUs that the batch times of the first kind are those of."""
        measured = (self.servers[0] if self.servers else self).measured(folder)
        if measured:
            return measured.gpu
        return None

    def _servers(self, where: str, folder: Path, order: str) -> list[tuple[Server, int]]:
        """Return each kind of server, which serves requests in that order, and how many."""
        if self.servers is None:
            return [(super().build(folder, order=order), self.replicas)]
        idle = sorted(self.model_fields_set - _OF_POOL)
        if idle:
            raise InputError(
                f"{idle[0]} stands beside `servers`, which each have keys of their own, so it "
                "would say nothing; put it into them"
            )
        if not self.servers:
            raise InputError("servers is an empty list, so the pool serves nothing; give one")
        kinds = []
        for index, kind in enumerate(self.servers):
            with within(f"{where}.servers.{index}", "server"):
                if "order" in kind.model_fields_set:
                    raise InputError(
                        f"order is {kind.arguments()['order']}, but all servers of a pool have "
                        "one; give it beside `servers`"
                    )
                kinds.append((kind.build(folder, order=order), kind.replicas))
        return kinds
