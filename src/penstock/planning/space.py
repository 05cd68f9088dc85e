"""The search space of a plan: which deployments there are, and what each costs."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from penstock import checks
from penstock.errors import InputError
from penstock.planning.axes import NamedRouter, allowed_counts, named_router, ratio_of
from penstock.planning.deployment import Deployment, Kind
from penstock.planning.mixed_fleets import Stock, refuse_mixing
from penstock.planning.per_hardware import accelerators_and_price, with_memory
from penstock.system.batch_time_file import BatchTimeFile
from penstock.system.kv_transfer import checked_link, link_ms_per_token
from penstock.system.models.served import ShapedHardware
from penstock.system.presets import hardware as preset
from penstock.system.routing import Router
from penstock.system.scheduler import Scheduler
from penstock.system.server import Server

MOST_FAMILIES = 100_000

_REASONS = 3  # that are told where nothing can exist

Reason = Literal["impossible", "unsuited", "theory", "simulation", "cost"]
"""By what a deployment was ruled out: it cannot exist, its policy is known to do badly there, a
theorem, simulation, or its price.
"""


class _UnsuitedError(InputError):
    """A deployment that can exist, but whose policy is out of place in it."""


@dataclasses.dataclass(frozen=True)
class Family:
    """Deployments that differ in the number of replicas alone."""

    smallest: Deployment  # the one with the fewest
    counts: tuple[int, ...]  # numbers of replicas that are allowed, rising

    def at(self, replicas: int) -> Deployment:
        """Return the deployment with so many replicas."""
        return self.smallest.with_replicas(replicas)

    @property
    def name(self) -> str:
        """What they have in common."""
        return self.smallest.family


@dataclasses.dataclass(frozen=True)
class Discarded:
    """Deployments that are not the answer, and why."""

    family: str  # what they have in common
    replicas: tuple[int, int]  # the least and the most of those meant
    count: int  # how many deployments
    by: Reason  # what ruled them out
    why: str  # a sentence

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return dataclasses.asdict(self) | {"replicas": list(self.replicas)}


@dataclasses.dataclass(frozen=True)
class Space:
    """What a plan searches."""

    families: tuple[Family, ...]  # that can exist
    refused: tuple[Discarded, ...] = ()  # those that cannot, and why
    priced: bool = False  # costs are money; else accelerators

    def __len__(self) -> int:
        """Return the number of deployments that can exist."""
        return sum(len(family.counts) for family in self.families)

    def __iter__(self) -> Iterator[Deployment]:
        """Go through all deployments that can exist."""
        return (family.at(count) for family in self.families for count in family.counts)


def search_space(
    server: Server,
    *,
    hardware: Sequence[str | BatchTimeFile | None] = (None,),
    token_budget: Sequence[int | None] = (),
    max_batch_size: Sequence[int | None] = (),
    policy: Sequence[str | Scheduler | None] = (),
    router: Sequence[str | Router | Mapping[str, Any]] = ("jsq",),
    disaggregation: Sequence[str | None] = (None,),
    replicas: int | Sequence[int] = 32,
    kv_tokens: int | Mapping[str, int] | None = None,
    price: float | Mapping[str, float] | None = None,
    accelerators: int = 1,
    transfer_ms: float = 0.0,
    transfer_ms_per_token: float = 0.0,
    transfer_gb_per_s: float | None = None,
    kv_bytes_per_token: float | None = None,
    max_cost: float | None = None,
    mix: bool = False,
    at_hand: Mapping[str, int] | None = None,
) -> Space:
    """Return every combination of what may vary; all else is as ``server`` has it.

    Parameters
    ----------
    server
        One replica, for what does not vary.
    hardware
        Names of presets, or hardware that follows from a model's shape; None: as the server has it.
    token_budget, max_batch_size, policy
        Values instead of the server's, which stand where a list is empty. None is what the engine
        takes of hardware that follows from a shape, and its scheduler; elsewhere the server's
        budget and policy, and no max batch size.
    router, disaggregation
        Names in `penstock.ROUTERS`, also with settings (``{"prefix": {"match": 0.5}}``); replicas
        for prompts to replicas that decode, such as ``"1:2"`` (None: each does both).
    replicas
        The most, or the numbers allowed; those for prompts and those that decode together.
    kv_tokens
        KV memory of a replica: one number, or one for each hardware, found by a part of its name
        (``{"tp1": 40_000, "tp4": 400_000}``); its rules are the server's. None: as the server has
        it.
    price, max_cost
        Of an accelerator for an hour, in whatever money: one number, or one for each kind, found by
        a part of its name (``{"a100": 2.0}``); None: accelerators are counted. Dearer deployments
        are left out.
    accelerators, transfer_ms, transfer_ms_per_token
        As in `Deployment`, where ``hardware`` is None; presets know their accelerators.
    transfer_gb_per_s, kv_bytes_per_token
        Instead of ``transfer_ms_per_token``: bandwidth of the link of a replica, 10^9 bytes/s, and
        what a token takes; None: that of the model of the hardware.

    mix
        Whether there are also deployments of two of the hardware: both in one pool, any number of
        each, or where prefill and decode are apart one for prompts and one for decodes.
    at_hand
        Accelerators that there are, found by a part of the name of the hardware as prices are
        (``{"a100": 4}``); of others there are as many as needed.

    Raises
    ------
    InputError
        If a value cannot be used, or no deployment can exist.
    """
    known = {one.name: one for one in map(_known, hardware) if one is not None}
    names = [one if isinstance(one, str | None) else one.name for one in hardware]
    kinds = [known.get(name or "") for name in names]
    choices = _Choices(
        known, allowed_counts(replicas), price, accelerators, transfer_ms, transfer_ms_per_token,
        transfer_gb_per_s, kv_bytes_per_token, max_cost, Stock.of(at_hand, kinds),
    )  # fmt: skip
    axes: dict[str, Sequence[Any]] = {
        "hardware": names, "token_budget": token_budget or (server.token_budget,),
        "max_batch_size": max_batch_size or (server.max_batch_size,),
        "policy": policy or (server.policy,),
        "router": [named_router(choice) for choice in router],
        "disaggregation": [ratio_of(text) for text in disaggregation],
    }  # fmt: skip
    if mix:
        refuse_mixing(kinds)
    _refuse_sizes(axes, len(choices.counts) if mix else 0)
    servers = with_memory(server, names, kv_tokens)
    tried: list[Family | Discarded] = []
    for values in itertools.product(*axes.values()):
        tried.append(choices.family(servers[values[0]], *values))
    if mix:
        for two in itertools.combinations(dict.fromkeys(names), 2):
            both = [(servers[name], name) for name in two]
            for values in itertools.product(*list(axes.values())[1:]):
                tried += choices.mixed(both, *values)
    refused = [family for family in tried if isinstance(family, Discarded)]
    families: dict[str, Family] = {}
    for family in tried:
        if isinstance(family, Family):
            families.setdefault(family.name, family)
    _refuse_none(families, refused)
    return Space(tuple(families.values()), tuple(refused), price is not None)


@dataclasses.dataclass(frozen=True)
class _Choices:
    """What all deployments of a search space share."""

    known: Mapping[str, BatchTimeFile]  # hardware by name
    counts: tuple[int, ...]
    price: float | Mapping[str, float] | None
    accelerators: int
    transfer_ms: float
    transfer_ms_per_token: float
    transfer_gb_per_s: float | None
    kv_bytes_per_token: float | None
    max_cost: float | None
    stock: Stock

    def __post_init__(self) -> None:
        checks.seconds("transfer_ms", self.transfer_ms)
        checks.seconds("transfer_ms_per_token", self.transfer_ms_per_token)
        checked_link(self.transfer_ms_per_token, self.transfer_gb_per_s, self.kv_bytes_per_token)
        if self.max_cost is not None:
            checks.number("max_cost", self.max_cost, 0, 1e15, "", "it is the most a fleet may cost")
        if self.transfer_gb_per_s is not None:  # whatever the model
            link_ms_per_token(self.transfer_gb_per_s, self.kv_bytes_per_token or 1)

    def _ms_per_token(self, server: Server, hardware: str | None) -> float:
        """Return how long the KV memory of a token takes a link between such replicas."""
        if self.transfer_gb_per_s is None:
            return self.transfer_ms_per_token
        gpu = server.gpu if hardware is None else self.known[hardware].gpu
        return link_ms_per_token(self.transfer_gb_per_s, self.kv_bytes_per_token, gpu)

    def kind(
        self, server: Server, hardware: str | None, budget: int | None, slots: int | None,
        policy: str | Scheduler | None,
    ) -> Kind:  # fmt: skip
        """Return a kind of replica."""
        known = self.known.get(hardware or "")
        accelerators, price = accelerators_and_price(known, self.price, self.accelerators)
        replica = _replica(server, known, budget, slots, policy)
        return Kind(replica, hardware, accelerators, price, known)

    def affordable(self, *kinds: tuple[Kind, int]) -> bool:
        """Return whether so many replicas of each kind are at hand and within the cost."""
        cost = sum(kind.price * kind.accelerators * count for kind, count in kinds)
        most = math.inf if self.max_cost is None else self.max_cost
        return cost <= most and self.stock.has(kinds)

    def family(
        self, server: Server, hardware: str | None, budget: int | None, slots: int | None,
        policy: str | Scheduler | None,
        router: NamedRouter, ratio: tuple[int, int] | None,
    ) -> Family | Discarded:  # fmt: skip
        """Return the deployments that differ only in replicas, or why there are none."""
        try:
            return self._of_kind(self.kind(server, hardware, budget, slots, policy), router, ratio)
        except InputError as error:
            return self._refused(hardware or "server", policy, budget, error)

    def _refused(
        self, hardware: str, policy: str | Scheduler | None, budget: int | None, error: InputError
    ) -> Discarded:
        """Account for deployments that there cannot be."""
        by: Reason = "unsuited" if isinstance(error, _UnsuitedError) else "impossible"
        limits = "" if policy is None else f", {getattr(policy, 'name', policy)}"
        limits += "" if budget is None else f", budget {budget}"
        name = f"{hardware}{limits}"
        return Discarded(name, (self.counts[0], self.counts[-1]), len(self.counts), by, str(error))

    def _of_kind(
        self, kind: Kind, router: NamedRouter, ratio: tuple[int, int] | None,
        decode: Kind | None = None,
    ) -> Family:  # fmt: skip
        """Return the family of a kind; ``decode`` is that of those which decode, if another."""
        for_prompts, apart = ratio or (1, 0)
        whole = for_prompts + apart
        allowed = tuple(
            count
            for count in self.counts
            if count % whole == 0
            and self.affordable(
                (kind, count // whole * for_prompts), (decode or kind, count // whole * apart)
            )
        )
        if not allowed:
            split = f", in the ratio {ratio[0]}:{ratio[1]}" if ratio else ""
            cap = "" if self.max_cost is None else f", costs at most {self.max_cost:g}"
            cap += f", with {self.stock} at hand" if self.stock.limits(kind) else ""
            raise InputError(f"no number of replicas is allowed{split}{cap}; allow others")
        prefill = allowed[0] // whole * for_prompts if ratio else 0
        smallest = Deployment(
            kind.server, allowed[0], kind.hardware, router[0], prefill,
            kind.accelerators, kind.price, self.transfer_ms,
            self._ms_per_token(kind.server, kind.hardware) if ratio else 0.0,
            decode, router_settings=router[1], known=kind.known,
        )  # fmt: skip
        return Family(smallest, allowed)

    def mixed(
        self, both: Sequence[tuple[Server, str | None]], budget: int | None, slots: int | None,
        policy: str | Scheduler | None,
        router: NamedRouter, ratio: tuple[int, int] | None,
    ) -> Sequence[Family | Discarded]:  # fmt: skip
        """Return the families of two kinds of replica, or why there are none."""
        # Nothing where one kind cannot exist, which its own family says.
        try:
            one, two = (self.kind(*each, budget, slots, policy) for each in both)
        except InputError:
            return []
        try:
            if not ratio:
                return self._side_by_side(one, two, router)
            sides = ((one, two), (two, one))
            return [self._of_kind(prompts, router, ratio, decode) for prompts, decode in sides]
        except InputError as error:
            return [self._refused(f"{one.title} and {two.title}", policy, budget, error)]

    def _side_by_side(self, one: Kind, two: Kind, router: NamedRouter) -> list[Family]:
        """Return families of two kinds in one pool, one for each number of the slower."""
        # Slower in full batches; the faster are counted up, and come first at the router.
        better, other = one, two
        if two.server.full_batch_rate > one.server.full_batch_rate:
            better, other = two, one
        families = []
        for others in range(1, self.counts[-1]):
            allowed = tuple(
                count - others
                for count in self.counts
                if count > others and self.affordable((better, count - others), (other, others))
            )
            if allowed:
                smallest = Deployment(
                    better.server, allowed[0], better.hardware, router[0], 0, better.accelerators,
                    better.price, other=other, others=others, router_settings=router[1],
                    known=better.known,
                )  # fmt: skip
                families.append(Family(smallest, allowed))
        return families


def _refuse_sizes(axes: Mapping[str, Sequence[Any]], mixed: int) -> None:
    """Refuse a search space that is empty, or too large, with a second kind, to go through."""
    for name, values in axes.items():
        if not values:
            raise InputError(
                f"search.{name} is empty, so there is nothing to deploy; give at least one value"
            )
    size = math.prod(len(values) for values in axes.values())
    size += size * (len(axes["hardware"]) - 1) * mixed // 2
    if size > MOST_FAMILIES:
        raise InputError(
            f"the search space has {size:,} deployments beside the number of replicas, above "
            f"{MOST_FAMILIES:,}, and "
            "each takes a simulation; search fewer values"
        )


def _refuse_none(families: Mapping[str, Family], refused: Sequence[Discarded]) -> None:
    """Refuse a search space without a deployment, and say why it has none."""
    if families:
        return
    reasons = list(dict.fromkeys(discarded.why for discarded in refused))
    more = f"; and {len(reasons) - _REASONS:,} more reasons" if len(reasons) > _REASONS else ""
    fails = (
        "is worth judging"
        if any(discarded.by == "unsuited" for discarded in refused)
        else "can exist"
    )
    raise InputError(
        f"no deployment of the search space {fails}: {'; or: '.join(reasons[:_REASONS])}{more}"
    )


def _known(hardware: str | BatchTimeFile | None) -> BatchTimeFile | None:
    """Return what is known of hardware that may be named."""
    return preset(hardware) if isinstance(hardware, str) else hardware


def _replica(
    server: Server, hardware: BatchTimeFile | None, budget: int | None, slots: int | None,
    policy: str | Scheduler | None,
) -> Server:  # fmt: skip
    """Return one replica with what varies put into the server."""
    changed: dict[str, Any] = {}
    if hardware is not None:
        changed["batch_time"] = hardware.batch_time
        if server.gpu is not None:  # KV memory follows from the GPU, so it is another on each
            gpu = hardware.gpu
            changed["gpu"] = gpu and dataclasses.replace(
                gpu, utilization=server.gpu.utilization, engine=server.gpu.engine
            )
            changed["memory"] = server.memory if gpu else None
    if isinstance(hardware, ShapedHardware):
        usual, most = hardware.served.limits
        budget = usual if budget is None else budget
        slots = most if slots is None else slots
        slots = slots and min(slots, budget)
        policy = hardware.served.engine if policy is None else policy
    policy = server.policy if policy is None else policy
    same = policy is server.policy or policy == server.policy.name
    changed |= {} if same else {"policy": policy, "policy_params": ()}
    budget = server.token_budget if budget is None else budget
    replica = dataclasses.replace(server, token_budget=budget, max_batch_size=slots, **changed)
    if replica.scope_warning and not same:
        raise _UnsuitedError(replica.scope_warning)
    return replica
