"""A deployment: replicas of a server behind a router, and what they cost."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from penstock import checks
from penstock.errors import InputError
from penstock.fields import Checked, Range
from penstock.show.answers import Meaning
from penstock.system.batch_time_file import BatchTimeFile
from penstock.system.models.served import ShapedHardware
from penstock.system.pool import MOST_REPLICAS
from penstock.system.presets import hardware as preset
from penstock.system.routing import ROUTERS, Router, resolve_router
from penstock.system.server import Server
from penstock.words import counted

_ACCELERATORS = Range(1, 100_000, "", "a replica runs on at least one")
_PRICE = Range(1e-9, 1e9, "", "it is money for an accelerator for an hour; 1 counts them")
_REPLICAS = Range(1, MOST_REPLICAS, "", "none serve nothing, more are no fleet")


class ReplicasData(TypedDict):
    """What JSON has of replicas of a kind."""

    hardware: Annotated[str | None, Meaning("Its name; null: a server alone.")]
    kv_tokens: Annotated[int | None, Meaning("KV memory of a replica; null: it is no limit.")]
    replicas: Annotated[int, Meaning("How many there are.")]
    accelerators: Annotated[int, Meaning("Of all of them.")]
    price: Annotated[float, Meaning("Of an accelerator for an hour.")]


class DeploymentData(ReplicasData):
    """What JSON has of a deployment, beside its replicas of the first kind."""

    name: Annotated[str, Meaning("Short and unique in a search space.")]
    policy: Annotated[str, Meaning("Of each replica.")]
    token_budget: Annotated[int, Meaning("Of each replica.")]
    max_batch_size: Annotated[int | None, Meaning("Of each replica; null: any.")]
    router: Annotated[str, Meaning("Which replica gets a request.")]
    router_settings: Annotated[dict[str, float], Meaning("Those that are not its usual ones.")]
    prefill_replicas: Annotated[int, Meaning("Those for prompts alone; 0: each does both.")]
    other: Annotated[
        ReplicasData | None,
        Meaning("A second kind; null: all are alike. Beside those for prompts, they decode."),
    ]
    cost: Annotated[float, Meaning("Of all accelerators for an hour.")]


@dataclasses.dataclass(frozen=True)
class Kind(Checked):
    """A kind of replica.

    Attributes
    ----------
    server
        Batch times, token budget, max batch size, policy, KV memory.
    hardware
        Name of the preset, None where batch times were given.
    accelerators
        Of one replica.
    price
        Of an accelerator for an hour, in whatever money; 1 counts accelerators.
    known
        What is known of the hardware; None: it is the preset of that name.
    """

    server: Server
    hardware: str | None = None
    accelerators: Annotated[int, _ACCELERATORS] = 1
    price: Annotated[float, _PRICE] = 1.0
    known: BatchTimeFile | None = dataclasses.field(default=None, compare=False)

    def settle(self) -> None:
        """Find what is known of hardware that is named."""
        if self.known is None and self.hardware is not None:
            object.__setattr__(self, "known", preset(self.hardware))

    @property
    def title(self) -> str:
        """What its hardware is called."""
        return self.hardware or "the server"

    @property
    def brief(self) -> str:
        """Its hardware in a table: of a model on GPUs those alone."""
        if not isinstance(self.known, ShapedHardware):
            return self.hardware or "server"
        served = self.known.served
        many = "" if served.tensor_parallel == 1 else f"{served.tensor_parallel} "
        return f"{many}{served.gpu.name}"

    def as_dict(self, replicas: int) -> ReplicasData:
        """Return the JSON form of so many replicas."""
        memory = self.server.memory
        return {
            "hardware": self.hardware,
            "kv_tokens": None if memory is None else memory.tokens,
            "replicas": replicas,
            "accelerators": self.accelerators * replicas,
            "price": self.price,
        }


@dataclasses.dataclass(frozen=True, init=False)
class Deployment(Checked):
    """Replicas of a server behind a router, and maybe some of another kind.

    Attributes
    ----------
    kind
        Each replica: a server on its hardware, with its price; or a server alone.
    replicas
        How many there are, but for ``others``.
    router
        Which replica gets a request: a name in `penstock.ROUTERS`, one with settings such as
        ``{"prefix": {"match": 0.5}}``, or a router.
    prefill_replicas
        Of the replicas, those for prompts alone; the others decode. 0: each does both.
    transfer_ms, transfer_ms_per_token
        From a replica for prompts to one that decodes, and what each prompt token adds.
    other
        A second kind of replica; None: all are alike. With replicas for prompts alone it is the
        kind of those that decode, which ``replicas`` counts.
    others
        Of the second kind, how many stand beside the first in one pool, where each does both.
    """

    kind: Kind
    replicas: Annotated[int, _REPLICAS]
    router: Router
    prefill_replicas: int
    transfer_ms: float
    transfer_ms_per_token: float
    other: Kind | None
    others: int

    def __init__(
        self, kind: Kind | Server, replicas: int,
        router: str | Router | Mapping[str, Any] = "random", prefill_replicas: int = 0,
        transfer_ms: float = 0.0, transfer_ms_per_token: float = 0.0, other: Kind | None = None,
        others: int = 0,
    ) -> None:  # fmt: skip
        vars(self).update(
            kind=Kind(kind) if isinstance(kind, Server) else kind, replicas=replicas,
            router=resolve_router(router), prefill_replicas=prefill_replicas,
            transfer_ms=transfer_ms, transfer_ms_per_token=transfer_ms_per_token, other=other,
            others=others,
        )  # fmt: skip
        self.__post_init__()

    def settle(self) -> None:
        """Refuse kinds of replicas that cannot stand together, and roles that nobody has."""
        most = self.replicas - 1
        reason = "at least one replica must decode; 0 lets each do both"
        checks.whole("prefill_replicas", self.prefill_replicas, 0, most, "", reason)
        if self.prefill_replicas:
            for kind, _ in self.kinds:
                _refuse_apart(kind.server)
        beside = self.other is not None and not self.prefill_replicas
        most = MOST_REPLICAS - self.replicas if beside else 0
        reason = "they are the replicas of a second kind, `other`, in the pool of the first"
        checks.whole("others", self.others, int(beside), most, "", reason)
        if self.other is not None and self.server.by_lines != self.other.server.by_lines:
            raise InputError(
                f"batches of {self.kind.title} and of {self.other.title} do not count the same "
                "(one by the token load alone, the other by what is in a batch), so they cannot "
                "serve the same requests; take two that are measured alike"
            )

    @property
    def server(self) -> Server:
        """The server of the first kind."""
        return self.kind.server

    @property
    def kinds(self) -> tuple[tuple[Kind, int], ...]:
        """Each kind of replica, and how many there are; those for prompts alone come first."""
        if self.prefill_replicas:
            decode = self.replicas - self.prefill_replicas
            return (self.kind, self.prefill_replicas), (self.other or self.kind, decode)
        second = () if self.other is None else ((self.other, self.others),)
        return (self.kind, self.replicas), *second

    @property
    def parts(self) -> tuple["Deployment", ...]:
        """The replicas of each kind in one pool, as a deployment of their own behind the router."""
        if not self.others:
            return (self,)
        return tuple(Deployment(kind, count, self.router) for kind, count in self.kinds)

    @property
    def total_replicas(self) -> int:
        """Replicas of all kinds."""
        return self.replicas + self.others

    @property
    def total_accelerators(self) -> int:
        """Accelerators of all replicas."""
        return sum(kind.accelerators * count for kind, count in self.kinds)

    @property
    def cost(self) -> float:
        """Price of all accelerators for an hour."""
        return sum(kind.price * (kind.accelerators * count) for kind, count in self.kinds)

    @property
    def by_cost(self) -> tuple[float, str]:
        """By what fleets are put in order: cost, then name."""
        return self.cost, self.name

    @property
    def splits(self) -> bool:
        """Whether each replica has its share of the stream and nothing else, so that one of them
        tells everything.
        """
        if self.prefill_replicas or self.others:
            return False
        return self.router.by_shares or self.replicas == 1

    @property
    def ratio(self) -> tuple[int, int] | None:
        """Replicas for prompts to those that decode, in lowest terms; None where each does both."""
        prefill, decode = self.prefill_replicas, self.replicas - self.prefill_replicas
        common = math.gcd(prefill, decode)
        return (prefill // common, decode // common) if prefill else None

    def with_replicas(self, replicas: int) -> "Deployment":
        """Return the same with another number of replicas, in the same ratio of prefill to decode,
        beside as many of a second kind.

        Raises
        ------
        InputError
            If so many cannot be divided in that ratio.
        """
        prefill, decode = self.ratio or (0, 1)
        if replicas % (prefill + decode):
            raise InputError(
                f"{replicas} replicas cannot be divided {prefill}:{decode} into prefill and "
                f"decode; take a multiple of {prefill + decode}"
            )
        prefill = replicas // (prefill + decode) * prefill
        return dataclasses.replace(self, replicas=replicas, prefill_replicas=prefill)

    def with_others(self, others: int) -> "Deployment":
        """Return the same beside another number of a second kind."""
        return dataclasses.replace(self, other=self.other if others else None, others=others)

    @property
    def router_title(self) -> str:
        """The router with what is set of it: ``prefix (match 0.5)``."""
        settings = ", ".join(f"{name} {value:g}" for name, value in settings_of(self.router))
        return f"{self.router.name} ({settings})" if settings else self.router.name

    @property
    def family(self) -> str:
        """What it is but for the number of replicas, short: unique in a search space."""
        server = self.server
        parts = [self.kind.hardware or "server", server.policy.name]
        parts += [f"budget {server.token_budget:,}"]
        parts += [] if server.max_batch_size is None else [f"at most {server.max_batch_size:,}"]
        parts += [self.router_title] if self.router.name != "random" else []
        parts += [f"prefill:decode {self.ratio[0]}:{self.ratio[1]}"] if self.ratio else []
        if self.other is not None:
            beside = f"beside {self.others} x" if self.others else "decode on"
            parts.append(f"{beside} {self.other.title}")
        return ", ".join(parts)

    @property
    def name(self) -> str:
        """Short and unique in a search space."""
        return f"{self.replicas} x {self.family}"

    @property
    def brief(self) -> str:
        """What tells it from others, in tables: ``3 x a100 vllm 512/64``, no jsq."""
        server = self.server
        slots = "" if server.max_batch_size is None else f"/{server.max_batch_size:,}"
        hardware = f"{self.replicas} x {self.kind.brief}"
        if self.other is not None:
            hardware += f" + {self.others} x" if self.others else ", decode on"
            hardware += f" {self.other.brief}"
        ratio = f" {self.ratio[0]}:{self.ratio[1]}" if self.ratio else ""
        asked = self.total_replicas > 1 and self.router.name != "jsq"
        router = f" {self.router_title}" if asked else ""
        return f"{hardware} {server.policy.name} {server.token_budget:,}{slots}{ratio}{router}"

    @property
    def fleet(self) -> str:
        """How many replicas of what, and behind which router where there are several: the beginning
        of a sentence.
        """
        (kind, first), *rest = self.kinds
        second = rest[0][1] if rest else 0
        decode = "that decodes" if second == 1 else "that decode"
        if self.other is not None:
            roles = (" for prompts", f" {decode}") if self.prefill_replicas else ("", "")
            fleet = f"{counted(first, 'replica')} of {kind.title}{roles[0]}"
            fleet += f" and {second:,} of {self.other.title}{roles[1]}"
        else:
            fleet = f"{counted(self.replicas, 'replica')} of {kind.title}"
            fleet += f", {first:,} for prompts and {second:,} that decode" if second else ""
        return f"{fleet} behind {self.router_title}" if self.total_replicas > 1 else fleet

    @property
    def limits(self) -> str:
        """The limits of a replica in words; of a second kind its KV memory, if that differs."""
        if self.other is None or self.other.server.limits == self.server.limits:
            return self.server.limits
        memory = self.other.server.memory
        words = "no limit on KV memory" if memory is None else f"{memory.blocks:,} of these blocks"
        return f"{self.server.limits}, {words} on {self.other.title}"

    def as_dict(self) -> DeploymentData:
        """Return the JSON form."""
        server = self.server
        return {
            **self.kind.as_dict(self.replicas),
            "name": self.name,
            "policy": server.policy.name,
            "token_budget": server.token_budget,
            "max_batch_size": server.max_batch_size,
            "router": self.router.name,
            "router_settings": dict(settings_of(self.router)),
            "prefill_replicas": self.prefill_replicas,
            "other": None if self.other is None else self.other.as_dict(self.kinds[1][1]),
            "accelerators": self.total_accelerators,
            "cost": self.cost,
        }


def settings_of(router: Router) -> list[tuple[str, float]]:
    """Return the settings of a router that are not those of its name."""
    usual = ROUTERS[router.name].settings if router.name in ROUTERS else ()
    return [pair for pair in router.settings if pair not in usual]


def _refuse_apart(server: Server) -> None:
    """Refuse replicas for prompts alone where those that decode could not go on."""
    if not (server.by_lines or server.policy.memory.receives):
        raise InputError(
            f"prefill and decode apart are not judged for {server.policy.name} as its server has "
            "it: that it goes on with KV memory from elsewhere is not modelled; take vllm without "
            "drafts, or a policy of the paper, or leave disaggregation out"
        )
