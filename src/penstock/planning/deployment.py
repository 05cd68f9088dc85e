"""A deployment: replicas of a server behind a router, and what they cost."""

import dataclasses
import math
from typing import Any

from penstock import checks
from penstock.errors import InputError
from penstock.system.pool import MOST_REPLICAS
from penstock.system.routing import resolve_router
from penstock.system.server import Server
from penstock.words import counted

SPLITTING = ("random", "round-robin")
"""Routers that do not look at queues: each replica has a share of the stream and knows nothing of
the others.
"""


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
        checks.whole(
            "replicas", self.replicas, 1, MOST_REPLICAS, "", "none serve nothing, more are no fleet"
        )
        checks.whole(
            "accelerators", self.accelerators, 1, 100_000, "", "a replica runs on at least one"
        )
        checks.number(
            "price",
            self.price,
            1e-9,
            1e9,
            "",
            "it is money for an accelerator for an hour; 1 counts them",
        )
        most = self.replicas - 1
        reason = "at least one replica must decode; 0 lets each do both"
        checks.whole("prefill_replicas", self.prefill_replicas, 0, most, "", reason)
        resolve_router(self.router)
        if self.prefill_replicas:
            _refuse_apart(self.server)

    @property
    def splits(self) -> bool:
        """Whether each replica has its share of the stream and nothing else, so that one of them
        tells everything.
        """
        return not self.prefill_replicas and (self.router in SPLITTING or self.replicas == 1)

    @property
    def ratio(self) -> tuple[int, int] | None:
        """Replicas for prompts to replicas that decode, in lowest terms; None where each does
        both.
        """
        if not self.prefill_replicas:
            return None
        return lowest(self.prefill_replicas, self.replicas - self.prefill_replicas)

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
        parts = [
            f"{self.hardware or 'server'}, {server.policy.name}, budget "
            f"{server.token_budget:,}{slots}"
        ]
        parts += [self.router] if self.router != "random" else []
        parts += [f"prefill:decode {self.ratio[0]}:{self.ratio[1]}"] if self.ratio else []
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
        hardware = self.hardware or "server"
        return (
            f"{self.replicas} x {hardware} {server.policy.name} "
            f"{server.token_budget:,}{slots}{ratio}"
        )

    @property
    def fleet(self) -> str:
        """How many replicas of what, and behind which router where there are several: the beginning
        of a sentence.
        """
        fleet = f"{counted(self.replicas, 'replica')} of {self.hardware or 'the server'}"
        if self.prefill_replicas:
            decode = self.replicas - self.prefill_replicas
            fleet += f", {self.prefill_replicas:,} for prompts and {decode:,} that decode"
        return f"{fleet} behind {self.router}" if self.replicas > 1 else fleet

    def with_replicas(self, replicas: int) -> "Deployment":
        """Return the same with another number of replicas, in the same ratio of prefill to decode.

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
