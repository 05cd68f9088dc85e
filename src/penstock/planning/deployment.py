"""A deployment: replicas of a server behind a router, and what they cost."""

import dataclasses
import math
from typing import Annotated, Any

from penstock import checks
from penstock.errors import InputError
from penstock.fields import Checked, Range
from penstock.system.batch_time_file import BatchTimeFile
from penstock.system.pool import MOST_REPLICAS
from penstock.system.presets import hardware as preset
from penstock.system.routing import Router, resolve_router
from penstock.system.server import Server
from penstock.words import counted

SPLITTING = ("random", "round-robin")
"""Routers that do not look at queues: each replica has a share of the stream and knows nothing of
the others.
"""


_ACCELERATORS = Range(1, 100_000, "", "a replica runs on at least one")
_PRICE = Range(1e-9, 1e9, "", "it is money for an accelerator for an hour; 1 counts them")
_REPLICAS = Range(1, MOST_REPLICAS, "", "none serve nothing, more are no fleet")


@dataclasses.dataclass(frozen=True)
class Kind(Checked):
    """A kind of replica."""

    server: Server
    hardware: str | None = None  # name of the preset; None: batch times were given
    accelerators: Annotated[int, _ACCELERATORS] = 1  # of one replica
    price: Annotated[float, _PRICE] = 1.0  # of an accelerator for an hour, in whatever money
    known: BatchTimeFile | None = dataclasses.field(default=None, compare=False)  # of that name

    def settle(self) -> None:
        """Find what is known of hardware that is named."""
        if self.known is None and self.hardware is not None:
            object.__setattr__(self, "known", preset(self.hardware))

    @property
    def title(self) -> str:
        """What its hardware is called."""
        return self.hardware or "the server"


@dataclasses.dataclass(frozen=True)
class Deployment(Checked):
    """Replicas of a server behind a router, and maybe some of another kind.

    Attributes
    ----------
    server
        Each replica: batch times, token budget, max batch size, policy, KV memory.
    replicas
        How many there are, but for ``others``.
    hardware
        Name of the preset, None where batch times were given.
    router
        Which replica gets a request; a name in `penstock.ROUTERS`.
    router_settings
        Numbers that the router is told, by name; what is left out is as `penstock.ROUTERS` has it.
    known
        What is known of the hardware; None: it is the preset of that name.
    prefill_replicas
        Of the replicas, those for prompts alone; the others decode. 0: each does both.
    accelerators
        Of one replica.
    price
        Of an accelerator for an hour, in whatever money; 1 counts accelerators.
    transfer_ms, transfer_ms_per_token
        From a replica for prompts to one that decodes, and what each prompt token adds.
    other
        A second kind of replica; None: all are alike. With replicas for prompts alone it is the
        kind of those that decode, which ``replicas`` counts.
    others
        Of the second kind, how many stand beside the first in one pool, where each does both.
    """

    server: Server
    replicas: Annotated[int, _REPLICAS]
    hardware: str | None = None
    router: str = "random"
    prefill_replicas: int = 0
    accelerators: int = 1
    price: float = 1.0
    transfer_ms: float = 0.0
    transfer_ms_per_token: float = 0.0
    other: Kind | None = None
    others: int = 0
    router_settings: tuple[tuple[str, float], ...] = ()
    known: BatchTimeFile | None = dataclasses.field(default=None, compare=False)

    def settle(self) -> None:
        """Refuse kinds of replicas that cannot stand together, and roles that nobody has."""
        object.__setattr__(self, "known", self.kind.known)  # which checks what it costs, too
        most = self.replicas - 1
        reason = "at least one replica must decode; 0 lets each do both"
        checks.whole("prefill_replicas", self.prefill_replicas, 0, most, "", reason)
        _ = self.chosen_router
        if self.prefill_replicas:
            for kind, _ in self.kinds:
                _refuse_apart(kind.server)
        self._check_other()

    def _check_other(self) -> None:
        """Refuse a second kind that cannot stand with the first, or of which there are none."""
        beside = self.other is not None and not self.prefill_replicas
        most = MOST_REPLICAS - self.replicas if beside else 0
        reason = "they are the replicas of a second kind, `other`, in the pool of the first"
        checks.whole("others", self.others, int(beside), most, "", reason)
        if self.other is None:
            return
        if self.server.by_lines != self.other.server.by_lines:
            raise InputError(
                f"batches of {self.title} and of {self.other.title} do not count the same "
                "(one by the token load alone, the other by what is in a batch), so they cannot "
                "serve the same requests; take two that are measured alike"
            )

    @property
    def chosen_router(self) -> Router:
        """The router with its settings."""
        return resolve_router(self.router).with_settings(**dict(self.router_settings))

    @property
    def router_title(self) -> str:
        """What tables call the router: ``prefix (match 0.5)``."""
        settings = ", ".join(f"{name} {value:g}" for name, value in self.router_settings)
        return f"{self.router} ({settings})" if settings else self.router

    @property
    def kind(self) -> Kind:
        """The first kind of replica."""
        return Kind(self.server, self.hardware, self.accelerators, self.price, self.known)

    @property
    def title(self) -> str:
        """What the hardware of the first kind is called."""
        return self.kind.title

    @property
    def kinds(self) -> tuple[tuple[Kind, int], ...]:
        """Each kind of replica, and how many there are."""
        if self.other is None:
            return ((self.kind, self.replicas),)
        if self.prefill_replicas:
            decode = self.replicas - self.prefill_replicas
            return ((self.kind, self.prefill_replicas), (self.other, decode))
        return ((self.kind, self.replicas), (self.other, self.others))

    @property
    def parts(self) -> tuple["Deployment", ...]:
        """The replicas of each kind in one pool, as a deployment of their own behind the router."""
        if not self.others or self.other is None:
            return (self,)
        other = self.other
        alone = dataclasses.replace(self, other=None, others=0)
        beside = dataclasses.replace(
            alone, server=other.server, replicas=self.others, hardware=other.hardware,
            accelerators=other.accelerators, price=other.price, known=other.known,
        )  # fmt: skip
        return alone, beside

    @property
    def limits(self) -> str:
        """The limits of a replica in words; of a second kind its KV memory, if that differs."""
        if self.other is None or self.other.server.limits == self.server.limits:
            return self.server.limits
        memory = self.other.server.memory
        words = "no limit on KV memory" if memory is None else f"{memory.blocks:,} of these blocks"
        return f"{self.server.limits}, {words} on {self.other.title}"

    @property
    def total_replicas(self) -> int:
        """Replicas of all kinds."""
        return self.replicas + self.others

    @property
    def splits(self) -> bool:
        """Whether each replica has its share of the stream and nothing else, so that one of them
        tells everything.
        """
        if self.prefill_replicas or self.others:
            return False
        return self.router in SPLITTING or self.replicas == 1

    @property
    def ratio(self) -> tuple[int, int] | None:
        """Replicas for prompts to those that decode, in lowest terms; None where each does both."""
        if not self.prefill_replicas:
            return None
        return lowest(self.prefill_replicas, self.replicas - self.prefill_replicas)

    @property
    def total_accelerators(self) -> int:
        """Accelerators of all replicas."""
        return sum(kind.accelerators * count for kind, count in self.kinds)

    @property
    def cost(self) -> float:
        """Price of all accelerators for an hour."""
        return sum(kind.price * (kind.accelerators * count) for kind, count in self.kinds)

    @property
    def family(self) -> str:
        """What it is but for the number of replicas, short: unique in a search space."""
        server = self.server
        slots = "" if server.max_batch_size is None else f", at most {server.max_batch_size:,}"
        parts = [
            f"{self.hardware or 'server'}, {server.policy.name}, budget "
            f"{server.token_budget:,}{slots}"
        ]
        parts += [self.router_title] if self.router != "random" else []
        parts += [f"prefill:decode {self.ratio[0]}:{self.ratio[1]}"] if self.ratio else []
        if self.other is not None:
            beside = f"beside {self.others} x" if self.others else "decode on"
            parts.append(f"{beside} {self.other.title}")
        return ", ".join(parts)

    @property
    def name(self) -> str:
        """Short and unique in a search space, for tables."""
        return f"{self.replicas} x {self.family}"

    @property
    def brief(self) -> str:
        """In as few words as tell it from others behind the same router."""
        server = self.server
        slots = "" if server.max_batch_size is None else f"/{server.max_batch_size:,}"
        ratio = f" {self.ratio[0]}:{self.ratio[1]}" if self.ratio else ""
        hardware = f"{self.replicas} x {self.hardware or 'server'}"
        if self.other is not None:
            beside = f" + {self.others} x" if self.others else ", decode on"
            hardware += f"{beside} {self.other.title}"
        return f"{hardware} {server.policy.name} {server.token_budget:,}{slots}{ratio}"

    @property
    def fleet(self) -> str:
        """How many replicas of what, and behind which router where there are several: the beginning
        of a sentence.
        """
        fleet = f"{counted(self.replicas, 'replica')} of {self.title}"
        if self.other is not None:
            ((_, first), (other, second)) = self.kinds
            verb = "decodes" if second == 1 else "decode"
            roles = (" for prompts", f" that {verb}") if self.prefill_replicas else ("", "")
            fleet = f"{counted(first, 'replica')} of {self.title}{roles[0]}"
            fleet += f" and {second:,} of {other.title}{roles[1]}"
        elif self.prefill_replicas:
            decode = self.replicas - self.prefill_replicas
            fleet += f", {self.prefill_replicas:,} for prompts and {decode:,} that decode"
        return f"{fleet} behind {self.router_title}" if self.total_replicas > 1 else fleet

    def with_replicas(self, replicas: int) -> "Deployment":
        """Return the same with another number of replicas, in the same ratio of prefill to decode,
        beside as many of a second kind.

        Raises
        ------
        InputError
            If so many cannot be divided in that ratio.
        """
        prefill = 0
        ratio = self.ratio
        if ratio:
            prefill = replicas * ratio[0] // sum(ratio)
            if prefill * sum(ratio) != replicas * ratio[0]:
                raise InputError(
                    f"{replicas} replicas cannot be divided {ratio[0]}:{ratio[1]} into prefill "
                    "and decode; take a "
                    f"multiple of {sum(ratio)}"
                )
        return dataclasses.replace(self, replicas=replicas, prefill_replicas=prefill)

    def with_fewer_others(self) -> "Deployment":
        """Return the same with one replica less of the second kind in the pool."""
        if self.others == 1:
            return self.parts[0]
        return dataclasses.replace(self, others=self.others - 1)

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
            "router_settings": dict(self.router_settings),
            "replicas": self.replicas,
            "prefill_replicas": self.prefill_replicas,
            "other": self._other_as_dict(),
            "accelerators": self.total_accelerators,
            "price": self.price,
            "cost": self.cost,
        }

    def _other_as_dict(self) -> dict[str, Any] | None:
        """Return the JSON form of the second kind, if there is one."""
        if self.other is None:
            return None
        memory = self.other.server.memory
        return {
            "hardware": self.other.hardware,
            "kv_tokens": None if memory is None else memory.tokens,
            "replicas": self.kinds[1][1],
            "accelerators": self.other.accelerators * self.kinds[1][1],
            "price": self.other.price,
        }


def _refuse_apart(server: Server) -> None:
    """Refuse replicas for prompts alone where those that decode could not go on."""
    if server.by_lines or server.policy.receives:
        return
    raise InputError(
        f"prefill and decode apart are not judged for {server.policy.name} as its server has it: "
        "that it goes on with KV memory from elsewhere is not modelled; take vllm without drafts, "
        "or a policy of the paper, or leave disaggregation out"
    )


def lowest(prefill: int, decode: int) -> tuple[int, int]:
    """Return a ratio in lowest terms."""
    common = math.gcd(prefill, decode)
    return prefill // common, decode // common
