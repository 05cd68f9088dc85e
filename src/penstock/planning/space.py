"""The search space of a plan: which deployments there are, and what each costs."""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from penstock import checks
from penstock.errors import InputError
from penstock.system.engines import Engine
from penstock.system.memory import Memory
from penstock.system.policies import Policy
from penstock.system.pool import MOST_REPLICAS, Pool
from penstock.system.presets import hardware as preset
from penstock.system.routing import resolve_router
from penstock.system.server import Server, usual_block_size
from penstock.words import counted

SPLITTING = ("random", "round-robin")
"""Routers that do not look at queues: each replica has a share of the stream and knows nothing of the others."""

MOST_FAMILIES = 100_000

_REASONS = 3  # that are told where nothing can exist

Reason = Literal["impossible", "unsuited", "theory", "simulation", "cost"]
"""By what a deployment was ruled out: it cannot exist, its policy is known to do badly there, a theorem, simulation, or
its price."""


class _UnsuitedError(InputError):
    """A deployment that can exist, but whose policy is out of place in it."""


@dataclasses.dataclass(frozen=True)
class Deployment:
    """Replicas of a server behind a router.

    Attributes
    ----------
    server
        Each replica: batch times, token budget, max batch size, policy, KV memory.
    replicas
        How many there are in all.
    hardware
        Name of the preset, None where batch times were given.
    router
        Which replica gets a request; a name in `penstock.ROUTERS`.
    prefill_replicas
        Of the replicas, those for prompts alone; the others decode. 0: each does both.
    accelerators
        Of one replica.
    price
        Of an accelerator for an hour, in whatever money; 1 counts accelerators.
    transfer_ms, transfer_ms_per_token
        From a replica for prompts to one that decodes, and what each prompt token adds.
    """

    server: Server
    replicas: int
    hardware: str | None = None
    router: str = "random"
    prefill_replicas: int = 0
    accelerators: int = 1
    price: float = 1.0
    transfer_ms: float = 0.0
    transfer_ms_per_token: float = 0.0

    def __post_init__(self) -> None:
        checks.whole("replicas", self.replicas, 1, MOST_REPLICAS, "", "none serve nothing, more are no fleet")
        checks.whole("accelerators", self.accelerators, 1, 100_000, "", "a replica runs on at least one")
        checks.number("price", self.price, 1e-9, 1e9, "", "it is money for an accelerator for an hour; 1 counts them")
        most = self.replicas - 1
        why = "at least one replica must decode; 0 lets each do both"
        checks.whole("prefill_replicas", self.prefill_replicas, 0, most, "", why)
        resolve_router(self.router)
        if self.router not in SPLITTING or self.prefill_replicas:
            Pool(self.server)  # which says what the server of a pool cannot have

    @property
    def splits(self) -> bool:
        """Whether each replica has its share of the stream and nothing else, so that one of them tells everything."""
        return not self.prefill_replicas and (self.router in SPLITTING or self.replicas == 1)

    @property
    def ratio(self) -> tuple[int, int] | None:
        """Replicas for prompts to replicas that decode, in lowest terms; None where each does both."""
        if not self.prefill_replicas:
            return None
        decode = self.replicas - self.prefill_replicas
        common = math.gcd(self.prefill_replicas, decode)
        return self.prefill_replicas // common, decode // common

    @property
    def total_accelerators(self) -> int:
        """Accelerators of all replicas."""
        return self.accelerators * self.replicas

    @property
    def cost(self) -> float:
        """Price of all accelerators for an hour."""
        return self.price * self.total_accelerators

    @property
    def family(self) -> str:
        """What it is but for the number of replicas, short: unique in a search space."""
        server = self.server
        slots = "" if server.max_batch_size is None else f", at most {server.max_batch_size:,}"
        parts = [f"{self.hardware or 'server'}, {server.policy.name}, budget {server.token_budget:,}{slots}"]
        parts += [self.router] if self.router != "random" else []
        parts += [f"prefill:decode {self.ratio[0]}:{self.ratio[1]}"] if self.ratio else []
        return ", ".join(parts)

    @property
    def name(self) -> str:
        """Short and unique in a search space, for tables."""
        return f"{self.replicas} x {self.family}"

    @property
    def fleet(self) -> str:
        """How many replicas of what, and behind which router where there are several: the beginning of a sentence."""
        count, prefill = self.replicas, self.prefill_replicas
        said = f"{counted(count, 'replica')} of {self.hardware or 'the server'}"
        if prefill:
            said += f", {prefill:,} for prompts and {count - prefill:,} that decode"
        return f"{said} behind {self.router}" if count > 1 else said

    def with_replicas(self, replicas: int) -> "Deployment":
        """Return the same with another number of replicas, in the same ratio of prefill to decode.

        Raises
        ------
        InputError
            If so many cannot be divided in that ratio.
        """
        prefill, ratio = 0, self.ratio
        if ratio:
            prefill = replicas * ratio[0] // sum(ratio)
            if prefill * sum(ratio) != replicas * ratio[0]:
                raise InputError(
                    f"{replicas} replicas cannot be divided {ratio[0]}:{ratio[1]} into prefill and decode; take a "
                    f"multiple of {sum(ratio)}"
                )
        return dataclasses.replace(self, replicas=replicas, prefill_replicas=prefill)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        server = self.server
        return {
            "name": self.name,
            "hardware": self.hardware,
            "policy": server.policy.name,
            "token_budget": server.token_budget,
            "max_batch_size": server.max_batch_size,
            "kv_tokens": None if server.memory is None else server.memory.tokens,
            "router": self.router,
            "replicas": self.replicas,
            "prefill_replicas": self.prefill_replicas,
            "accelerators": self.total_accelerators,
            "price": self.price,
            "cost": self.cost,
        }


@dataclasses.dataclass(frozen=True)
class Family:
    """Deployments that differ in the number of replicas alone.

    Attributes
    ----------
    smallest
        The one with the fewest.
    counts
        Numbers of replicas that are allowed, rising.
    """

    smallest: Deployment
    counts: tuple[int, ...]

    def at(self, replicas: int) -> Deployment:
        """Return the deployment with so many replicas."""
        return self.smallest.with_replicas(replicas)

    @property
    def name(self) -> str:
        """What they have in common."""
        return self.smallest.family


@dataclasses.dataclass(frozen=True)
class Discarded:
    """Deployments that are not the answer, and why.

    Attributes
    ----------
    family
        What they have in common.
    replicas
        The least and the most of those meant.
    count
        How many deployments.
    by
        What ruled them out.
    why
        A sentence.
    """

    family: str
    replicas: tuple[int, int]
    count: int
    by: Reason
    why: str

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return dataclasses.asdict(self) | {"replicas": list(self.replicas)}


@dataclasses.dataclass(frozen=True)
class Space:
    """What a plan searches.

    Attributes
    ----------
    families
        Deployments that can exist.
    refused
        Those that cannot, and why.
    priced
        Whether costs are money; else accelerators.
    """

    families: tuple[Family, ...]
    refused: tuple[Discarded, ...] = ()
    priced: bool = False

    def __len__(self) -> int:
        """Return the number of deployments that can exist."""
        return sum(len(family.counts) for family in self.families)

    def __iter__(self) -> Iterator[Deployment]:
        """Go through all deployments that can exist."""
        return (family.at(count) for family in self.families for count in family.counts)


def search_space(
    server: Server,
    *,
    hardware: Sequence[str | None] = (None,),
    token_budget: Sequence[int] = (),
    max_batch_size: Sequence[int | None] = (),
    policy: Sequence[str | Policy | Engine] = (),
    router: Sequence[str] = ("random",),
    disaggregation: Sequence[str | None] = (None,),
    replicas: int | Sequence[int] = 32,
    kv_tokens: int | Mapping[str, int] | None = None,
    price: float | Mapping[str, float] | None = None,
    accelerators: int = 1,
    transfer_ms: float = 0.0,
    transfer_ms_per_token: float = 0.0,
    max_cost: float | None = None,
) -> Space:
    """Return every combination of what may vary; all else is as ``server`` has it.

    Parameters
    ----------
    server
        One replica, for what does not vary.
    hardware
        Names of presets; None: the batch times of ``server``.
    token_budget, max_batch_size, policy
        Values instead of the server's; empty: its own.
    router
        Names in `penstock.ROUTERS`.
    disaggregation
        Replicas for prompts to replicas that decode, such as ``"1:2"``; None: each does both.
    replicas
        The most, or the numbers allowed; those for prompts and those that decode together.
    kv_tokens
        KV memory of a replica: one number, or one for each hardware, found by a part of its name
        (``{"tp1": 40_000, "tp4": 400_000}``); its rules are the server's. None: as the server has it.
    price
        Of an accelerator for an hour, in whatever money: one number, or one for each kind, found by a part of its name
        (``{"a100": 2.0}``). None: accelerators are counted.
    accelerators
        Of a replica where ``hardware`` is None; presets know theirs.
    transfer_ms, transfer_ms_per_token
        As in `Deployment`.
    max_cost
        Dearer deployments are left out.

    Raises
    ------
    InputError
        If a value cannot be used, or no deployment can exist.
    """
    counts = _counts(replicas)
    checks.seconds("transfer_ms", transfer_ms)
    checks.seconds("transfer_ms_per_token", transfer_ms_per_token)
    ratios = [_ratio(text) for text in disaggregation]
    axes: list[tuple[str, Sequence[Any]]] = [
        ("hardware", hardware), ("token_budget", token_budget or (server.token_budget,)),
        ("max_batch_size", max_batch_size or (server.max_batch_size,)), ("policy", policy or (server.policy,)),
        ("router", router), ("disaggregation", ratios),
    ]  # fmt: skip
    for name, values in axes:
        if not values:
            raise InputError(f"search.{name} is empty, so there is nothing to deploy; give at least one value")
    size = math.prod(len(values) for _, values in axes)
    if size > MOST_FAMILIES:
        raise InputError(
            f"the search space has {size:,} deployments beside the number of replicas, above {MOST_FAMILIES:,}, and "
            "each takes a simulation; search fewer values"
        )
    servers = {name: _with_memory(server, name, kv_tokens) for name in hardware}
    _refuse_unused(kv_tokens, hardware)
    families: dict[str, Family] = {}
    refused: list[Discarded] = []
    for name, budget, slots, chosen, routed, ratio in itertools.product(*(values for _, values in axes)):
        allowed = tuple(count for count in counts if not ratio or count % sum(ratio) == 0)
        of, cost = _accelerators_and_price(name, price, accelerators)
        if max_cost is not None:
            allowed = tuple(count for count in allowed if cost * of * count <= max_cost)
        words = f"{name or 'server'}, {getattr(chosen, 'name', chosen)}, budget {budget}"
        try:
            if not allowed:
                split = f", in the ratio {ratio[0]}:{ratio[1]}" if ratio else ""
                cap = "" if max_cost is None else f", costs at most {max_cost:g}"
                raise InputError(f"no number of replicas is allowed{split}{cap}; allow others")
            count = allowed[0]
            smallest = Deployment(
                _replica(servers[name], name, budget, slots, chosen), count, name, routed,
                count * ratio[0] // sum(ratio) if ratio else 0, of, cost, transfer_ms, transfer_ms_per_token,
            )  # fmt: skip
        except InputError as error:
            by: Reason = "unsuited" if isinstance(error, _UnsuitedError) else "impossible"
            refused.append(Discarded(words, (counts[0], counts[-1]), len(counts), by, str(error)))
        else:
            families.setdefault(smallest.family, Family(smallest, allowed))
    if not families:
        whys = list(dict.fromkeys(each.why for each in refused))
        more = f"; and {len(whys) - _REASONS:,} more reasons" if len(whys) > _REASONS else ""
        fails = "is worth judging" if any(each.by == "unsuited" for each in refused) else "can exist"
        raise InputError(f"no deployment of the search space {fails}: {'; or: '.join(whys[:_REASONS])}{more}")
    return Space(tuple(families.values()), tuple(refused), price is not None)


def _replica(
    server: Server, hardware: str | None, budget: int, slots: int | None, policy: str | Policy | Engine
) -> Server:
    """Return one replica with what varies put into the server."""
    same = policy is server.policy or policy == server.policy.name
    changed: dict[str, Any] = {} if same else {"policy": policy, "policy_params": ()}
    if hardware is not None:
        known = preset(hardware)
        changed["batch_time"] = known.batch_time
        if server.gpu is not None:  # KV memory follows from the GPU, so it is another on each
            gpu = known.gpu
            changed["gpu"] = gpu and dataclasses.replace(
                gpu, utilization=server.gpu.utilization, engine=server.gpu.engine
            )
            changed["memory"] = server.memory if gpu else None
    replica = dataclasses.replace(server, token_budget=budget, max_batch_size=slots, **changed)
    if replica.scope_warning and not same:
        raise _UnsuitedError(replica.scope_warning)
    return replica


def _with_memory(server: Server, hardware: str | None, kv_tokens: int | Mapping[str, int] | None) -> Server:
    """Return the server with the KV memory of a kind of hardware."""
    if kv_tokens is None:
        return server
    given: Any = kv_tokens
    if isinstance(kv_tokens, Mapping):
        given = kv_tokens[_matching("kv_tokens", kv_tokens, hardware or "")]
    if isinstance(given, str | list | bool):
        raise InputError(
            f"kv_tokens is {checks.shown(given)}, but must be the tokens of a replica, or those of each hardware by a "
            "part of its name, such as {tp1: 40000, tp4: 400000}"
        )
    size = usual_block_size(server.policy) if server.memory is None else server.memory.block_size
    memory = Memory.of_tokens(given, size)
    if server.memory is not None:
        memory = dataclasses.replace(server.memory, blocks=memory.blocks)
    return dataclasses.replace(server, memory=memory, gpu=None)


def _refuse_unused(kv_tokens: int | Mapping[str, int] | None, hardware: Sequence[str | None]) -> None:
    """Refuse sizes of KV memory that no hardware of the search takes: the name is misspelt."""
    if isinstance(kv_tokens, Mapping):
        used = {_matching("kv_tokens", kv_tokens, name or "") for name in hardware}
        if idle := [key for key in kv_tokens if key not in used]:
            raise InputError(
                f"kv_tokens names {checks.shown(idle[0])}, which no hardware of the search takes (the longest part of "
                "its name counts); mend it, or leave it out"
            )


def _matching(what: str, given: Mapping[str, Any], kind: str) -> str:
    """Return the key that is the longest part of a name."""
    plain = _plain(kind)
    found = sorted((key for key in given if _plain(str(key)) and _plain(str(key)) in plain), key=len)
    if not found:
        raise InputError(
            f"no {what} matches {kind.strip() or 'a server without a preset'}: {', '.join(map(str, given)) or 'none'} "
            "given; add one, or give one number for all"
        )
    return found[-1]


def _accelerators_and_price(
    hardware: str | None, price: float | Mapping[str, float] | None, accelerators: int
) -> tuple[int, float]:
    """Return the accelerators of a replica, and what each costs."""
    known = None if hardware is None else preset(hardware)
    of = accelerators if known is None or known.tensor_parallel is None else known.tensor_parallel
    if price is None:
        return of, 1.0
    if not isinstance(price, Mapping):
        return of, checks.number("price", price, 1e-9, 1e9, "", "it is money for an accelerator for an hour")
    kind = "" if known is None else f"{known.accelerator or ''} {hardware}"
    key = _matching("price", price, kind)
    return of, checks.number(f"price.{key}", price[key], 1e-9, 1e9, "", "it is money for an hour")


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _counts(replicas: int | Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of replicas that are allowed, rising."""
    why = "it is a number of replicas; a list, or the most"
    if isinstance(replicas, Iterable) and not isinstance(replicas, str):
        found = sorted({checks.whole("search.replicas", count, 1, MOST_REPLICAS, "", why) for count in replicas})
        if not found:
            raise InputError("search.replicas is empty, so there is nothing to deploy; give at least one number")
        return tuple(found)
    return tuple(range(1, checks.whole("search.replicas.max", replicas, 1, MOST_REPLICAS, "", why) + 1))


def _ratio(text: str | None) -> tuple[int, int] | None:
    """Read prefill:decode."""
    if text is None:
        return None
    found = re.fullmatch(r"\s*([0-9]{1,4})\s*:\s*([0-9]{1,4})\s*", text) if isinstance(text, str) else None
    if not found or not (int(found[1]) and int(found[2])):
        raise InputError(
            f"search.disaggregation is {checks.shown(text)}, but must be replicas for prompts to replicas that decode, "
            'in quotes, such as "1:2"; null: each does both'
        )
    common = math.gcd(int(found[1]), int(found[2]))
    return int(found[1]) // common, int(found[2]) // common
