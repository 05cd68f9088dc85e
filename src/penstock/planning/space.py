"""The search space of a plan: which deployments there are, and what each costs."""

import bisect
import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from penstock import checks
from penstock.checking.variants import with_limits
from penstock.errors import InputError
from penstock.fields import Range
from penstock.planning.deployment import Deployment, Kind
from penstock.planning.per_hardware import Stock, number_for, refuse_idle
from penstock.show.answers import Meaning
from penstock.system.batch_time_file import BatchTimeFile
from penstock.system.kv_transfer import checked_link, link_ms_per_token
from penstock.system.models.served import ShapedHardware
from penstock.system.pool import MOST_REPLICAS
from penstock.system.presets import hardware as preset
from penstock.system.routing import Router, resolve_router
from penstock.system.scheduler import Scheduler
from penstock.system.server import Server, with_kv_tokens

MOST_FAMILIES = 100_000

_REASONS = 3  # that are told where nothing can exist

Reason = Literal["impossible", "unsuited", "theory", "simulation", "cost"]
"""By what a deployment was ruled out: it cannot exist, its policy is known to do badly there, a
theorem, simulation, or its price.
"""

Ratio = tuple[int, int]
"""Replicas for prompts to replicas that decode."""


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

    family: Annotated[str, Meaning("What they have in common.")]
    replicas: Annotated[tuple[int, int], Meaning("The least and the most of those meant.")]
    count: Annotated[int, Meaning("How many deployments.")]
    by: Annotated[Reason, Meaning("What ruled them out.")]
    why: Annotated[str, Meaning("A sentence.")]

    @classmethod
    def of(cls, family: str, counts: Sequence[int], by: Reason, why: object) -> "Discarded":
        """Return what is said of so many replicas of a family."""
        return cls(family, (counts[0], counts[-1]), len(counts), by, str(why))


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
    checks.seconds("transfer_ms", transfer_ms)
    machines = [preset(item) if isinstance(item, str) else item for item in hardware]
    choices = _Choices(
        server, _allowed_counts(replicas), kv_tokens, price, accelerators, transfer_ms,
        _link_ms_per_token(transfer_ms_per_token, transfer_gb_per_s, kv_bytes_per_token),
        math.inf if max_cost is None
        else checks.number("max_cost", max_cost, 0, 1e15, "", "it is the most a fleet may cost"),
        Stock.of(at_hand, machines),
    )  # fmt: skip
    axes: dict[str, Sequence[Any]] = {
        "hardware": machines, "token_budget": token_budget or (server.token_budget,),
        "max_batch_size": max_batch_size or (server.max_batch_size,),
        "policy": policy or (server.policy,),
        "router": [resolve_router(choice) for choice in router],
        "disaggregation": [_ratio(text) for text in disaggregation],
    }  # fmt: skip
    if mix:
        _refuse_mixing(machines)
    _refuse_sizes(axes, len(choices.counts) if mix else 0)
    for machine in machines:
        choices.with_memory(machine)
    refuse_idle("kv_tokens", kv_tokens, machines)
    kinds: list[tuple[BatchTimeFile | None, ...]] = [(machine,) for machine in machines]
    if mix:
        distinct = {machine and machine.name: machine for machine in machines}.values()
        kinds += itertools.combinations(distinct, 2)
    axes["hardware"] = kinds
    combinations = itertools.product(*axes.values())
    every = [family for values in combinations for family in choices.families(*values)]
    refused = tuple(family for family in every if isinstance(family, Discarded))
    families: dict[str, Family] = {}
    for family in every:
        if isinstance(family, Family):
            families.setdefault(family.name, family)
    if not families:
        _refuse_all(refused)
    return Space(tuple(families.values()), refused, price is not None)


@dataclasses.dataclass(frozen=True)
class _Choices:
    """What all deployments of a search space share."""

    server: Server
    counts: tuple[int, ...]
    kv_tokens: int | Mapping[str, int] | None
    price: float | Mapping[str, float] | None
    accelerators: int
    transfer_ms: float
    transfer_ms_per_token: Callable[[Kind], float]
    max_cost: float
    stock: Stock

    def families(
        self, hardware: Sequence[BatchTimeFile | None], budget: int | None, slots: int | None,
        policy: str | Scheduler | None, router: Router, ratio: Ratio | None,
    ) -> Sequence[Family | Discarded]:  # fmt: skip
        """Return the families of one kind of replica or of two, or why there are none."""
        kinds: list[Kind] = []
        try:
            for machine in hardware:
                kinds.append(self._kind(machine, budget, slots, policy))
            if len(kinds) == 1:
                return [self._of_ratio(kinds[0], router, ratio)]
            if not ratio:
                return self._side_by_side(kinds, router)
            sides = (kinds, kinds[::-1])
            return [self._of_ratio(prompts, router, ratio, decode) for prompts, decode in sides]
        except InputError as error:
            if len(kinds) < len(hardware) == 2:
                return []  # which the family of that kind says
            by: Reason = "unsuited" if isinstance(error, _UnsuitedError) else "impossible"
            name = " and ".join(machine.name if machine else "server" for machine in hardware)
            name += "" if policy is None else f", {getattr(policy, 'name', policy)}"
            name += "" if budget is None else f", budget {budget}"
            return [Discarded.of(name, self.counts, by, error)]

    def with_memory(self, hardware: BatchTimeFile | None) -> Server:
        """Return the server with the KV memory of some hardware."""
        if self.kv_tokens is None:
            return self.server
        return with_kv_tokens(self.server, number_for("kv_tokens", self.kv_tokens, hardware))

    def _kind(
        self, known: BatchTimeFile | None, budget: int | None, slots: int | None,
        policy: str | Scheduler | None,
    ) -> Kind:  # fmt: skip
        """Return a kind of replica."""
        replica = _replica(self.with_memory(known), known, budget, slots, policy)
        price = 1.0 if self.price is None else number_for("price", self.price, known)
        accelerators = (known and known.tensor_parallel) or self.accelerators
        name = None if known is None else known.name
        return Kind(replica, name, accelerators, price, known)

    def _of_ratio(
        self, kind: Kind, router: Router, ratio: Ratio | None, decode: Kind | None = None
    ) -> Family:
        """Return the family of a kind; ``decode`` is that of those which decode, if another."""
        if ratio is None:
            smallest = Deployment(kind, 1, router)
        else:
            per_token = self.transfer_ms_per_token(kind)
            smallest = Deployment(
                kind, sum(ratio), router, ratio[0], self.transfer_ms, per_token, decode
            )
        family = self._affordable(smallest)
        if family is None:
            split = f", in the ratio {ratio[0]}:{ratio[1]}" if ratio else ""
            cap = "" if math.isinf(self.max_cost) else f", costs at most {self.max_cost:g}"
            raise InputError(
                f"no number of replicas is allowed{split}{cap}{self.stock.limits(kind)}; allow "
                "others"
            )
        return family

    def _side_by_side(self, kinds: list[Kind], router: Router) -> list[Family]:
        """Return families of two kinds in one pool, one for each number of the slower."""
        # Slower in full batches; the faster are counted up, and come first at the router.
        fast, slow = sorted(kinds, key=lambda kind: -kind.server.full_batch_rate)
        others = range(1, self.counts[-1])
        fleets = [Deployment(fast, 1, router, other=slow, others=count) for count in others]
        return [family for fleet in fleets if (family := self._affordable(fleet)) is not None]

    def _affordable(self, smallest: Deployment) -> Family | None:
        """Return the numbers of replicas that are allowed, at hand and within the cost."""
        whole = sum(smallest.ratio or (1,))
        beside = smallest.others
        counts = [n - beside for n in self.counts if n > beside and n % whole == 0]

        def too_much(count: int) -> bool:
            fleet = smallest.with_replicas(count)
            return fleet.cost > self.max_cost or not self.stock.has(fleet.kinds)

        allowed = tuple(counts[: bisect.bisect_left(counts, True, key=too_much)])
        return Family(smallest.with_replicas(allowed[0]), allowed) if allowed else None


def _refuse_mixing(hardware: Sequence[BatchTimeFile | None]) -> None:
    """Refuse to mix where there are no two kinds of hardware that run one model."""
    kinds = {kind and kind.name: kind for kind in hardware}
    if len(kinds) < 2:
        raise InputError(
            f"search.mix is true, but search.hardware has {len(kinds)} name, so no two kinds can "
            "stand together; name two, or leave mix out"
        )
    models = {kind.model: name for name, kind in kinds.items() if kind is not None}
    if len(models) > 1:
        first, second, *_ = models.values()
        raise InputError(
            f"search.mix is true, but {first} and {second} run different models, and all replicas "
            "behind a router serve the same; name hardware of one model, or leave mix out"
        )


def _link_ms_per_token(
    ms_per_token: float, gb_per_s: float | None, bytes_per_token: float | None
) -> Callable[[Kind], float]:
    """Return what tells how long a token takes the link between replicas of a kind."""
    checks.seconds("transfer_ms_per_token", ms_per_token)
    checked_link(ms_per_token, gb_per_s, bytes_per_token)
    if gb_per_s is None:
        return lambda kind: ms_per_token
    link_ms_per_token(gb_per_s, bytes_per_token or 1)  # checks both, whatever the model
    return lambda kind: link_ms_per_token(
        gb_per_s, bytes_per_token, kind.server.gpu if kind.known is None else kind.known.gpu
    )


def _allowed_counts(replicas: int | Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of replicas that are allowed, rising: a list, or all up to the most."""
    reason = "it is a number of replicas; a list, or the most"
    limits = Range(1, MOST_REPLICAS, "", reason)
    if not isinstance(replicas, Iterable) or isinstance(replicas, str):
        return tuple(range(1, limits.whole(replicas, "search.replicas.max") + 1))
    counts = {limits.whole(count, "search.replicas") for count in replicas}
    if not counts:
        raise InputError(
            "search.replicas is empty, so there is nothing to deploy; give at least one number"
        )
    return tuple(sorted(counts))


def _ratio(text: str | None) -> Ratio | None:
    """Read prefill:decode, in lowest terms."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*([0-9]{1,4})\s*:\s*([0-9]{1,4})\s*", str(text))
    prefill, decode = (int(match[1]), int(match[2])) if match else (0, 0)
    if not prefill or not decode:
        raise InputError(
            f"search.disaggregation is {checks.shown(text)}, but must be replicas for prompts to "
            'replicas that decode, in quotes, such as "1:2"; null: each does both'
        )
    common = math.gcd(prefill, decode)
    return prefill // common, decode // common


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
            f"{MOST_FAMILIES:,}, and each takes a simulation; search fewer values"
        )


def _refuse_all(refused: Sequence[Discarded]) -> None:
    """Refuse a search space without a deployment, and say why it has none."""
    reasons = list(dict.fromkeys(family.why for family in refused))
    more = f"; and {len(reasons) - _REASONS:,} more reasons" if len(reasons) > _REASONS else ""
    unsuited = any(family.by == "unsuited" for family in refused)
    raise InputError(
        f"no deployment of the search space {'is worth judging' if unsuited else 'can exist'}: "
        f"{'; or: '.join(reasons[:_REASONS])}{more}"
    )


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
    budget = server.token_budget if budget is None else budget
    replica = with_limits(server, policy, token_budget=budget, max_batch_size=slots, **changed)
    if replica.scope_warning and replica.policy.name != server.policy.name:
        raise _UnsuitedError(replica.scope_warning)
    return replica
