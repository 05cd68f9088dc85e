"""Where a workload lies in the region of a server, what holds it back, and what more would
bring.
"""

import dataclasses
import math
from typing import Annotated

from penstock.inputs.arrays import Floats
from penstock.show.answers import AsData, Meaning, computed
from penstock.system.prefix_cache import as_serving
from penstock.system.scheduler import words_where
from penstock.system.server import Server
from penstock.theory.kv_blocks import least_on_average, reuses
from penstock.theory.limits import Bound, bounds
from penstock.theory.load import load
from penstock.theory.region import (
    Optimum,
    Prices,
    Region,
    Use,
    linear_program,
    region,
    sarathi_region,
)
from penstock.workload.workload import Workload


@dataclasses.dataclass(frozen=True)
class TokenRates:
    """What arrives, by phase."""

    prefill_tokens_per_s: Annotated[float, Meaning("That arrive.")]
    decode_tokens_per_s: Annotated[float, Meaning("That arrive.")]


@dataclasses.dataclass(frozen=True)
class OwnRegion:
    """The region of a policy itself."""

    vertices: Annotated[Floats, Meaning("Its corners.")]
    max_rate: Annotated[float | None, Meaning("Requests/s at its boundary.")]


def _by_phase(point: tuple[float, float]) -> TokenRates:
    """Return what JSON has of token rates."""
    return TokenRates(*point)


def _mix(optimum: Optimum) -> tuple[Use, ...]:
    """Return what JSON has of the best batches."""
    return optimum.mix


@dataclasses.dataclass(frozen=True, eq=False)
class OperatingPoint(AsData):
    """A workload in the region of a server."""

    region: Annotated[
        Region,
        Meaning(
            "Corners of the prefill and decode tokens/s that some policy may carry.",
            key="vertices",
            data=lambda region: region.vertices,
        ),
    ]
    point: Annotated[
        tuple[float, float],
        Meaning(
            "Tokens/s that arrive.",
            data=_by_phase,
        ),
    ]
    optimum: Annotated[
        Optimum,
        Meaning(
            "The batches by which the server carries the most in the same proportion.",
            key="mix",
            data=_mix,
        ),
    ]
    # Of Sarathi-Serve under a max batch size, for prompts so long that one of them fills what the
    # decodes leave of a batch.
    own: Annotated[
        Region | None,
        Meaning("The region of the policy, where it is another and known, else None.", key=None),
    ]
    arrival_rate: Annotated[float, Meaning("Requests/s that arrive.")]
    bound: Annotated[
        Bound,
        Meaning(
            "The least of what each limit can carry, KV memory too, which the region does not "
            "know.",
            key=None,
        ),
    ]
    notes: Annotated[tuple[str, ...], Meaning("What the region counts and does not.")] = ()
    kv_memory_rate: Annotated[
        float | None,
        Meaning(
            "Requests/s that the server carries once KV memory is full, where that is less than "
            "the bound; by an estimate."
        ),
    ] = None

    @computed()
    def max_rate(self) -> float:
        """Requests/s above which no policy is stable."""
        return self.bound.max_rate

    @computed()
    def margin(self) -> float:
        """What is left before that rate, as a share of it; negative where no policy is stable."""
        return 1 - self.arrival_rate / self.max_rate

    @computed()
    def inside(self) -> bool:
        """Whether some policy may be stable."""
        return self.margin > 0

    @property
    def most(self) -> float:
        """How many times what arrives no policy exceeds: the end of the load's ray."""
        return self.max_rate / self.arrival_rate

    @property
    def not_drawn(self) -> str:
        """What the highest rate counts and the region does not, in a sentence; empty: nothing."""
        drawn = self.region.scale(self.point)
        if math.isclose(drawn, self.most, rel_tol=1e-3):
            return ""
        besides: str = self.bound.name
        if besides == "token budget":
            besides = "attention"
        if besides == "max batch size":
            besides = "attention" if drawn > self.most else "drafts"
        return f"The outline leaves out {besides}, which the mark on the ray counts."

    @computed()
    def binding(self) -> tuple[str, ...]:
        """The limits that hold the server back; KV memory also where an estimate says so."""
        if self.kv_memory_rate is not None:
            return ("KV memory",)
        return self.without_estimate

    @property
    def without_estimate(self) -> tuple[str, ...]:
        """Return the limits that hold the server back by necessary conditions alone."""
        if self.bound.name in ("KV memory", "front end"):
            return (self.bound.name,)
        return self.optimum.binding

    @property
    def own_max_rate(self) -> float | None:
        """Requests/s at the policy's own boundary, no more than any policy's; long prompts only."""
        if self.own is None:
            return None
        return min(self.arrival_rate / (1 - self.own.margin(self.point)), self.max_rate)

    @computed(key="own")
    def _own(self) -> OwnRegion | None:
        """The region of the policy itself, and the rate at its boundary; None: it is not known."""
        return None if self.own is None else OwnRegion(self.own.vertices, self.own_max_rate)

    @computed()
    def prices(self) -> Prices:
        """What a token or a request more costs, and what another slot would bring."""
        return self.optimum.prices


def operating_point(
    workload: Workload, server: Server, *, memory_rate: float | None = None
) -> OperatingPoint:
    """Return where a workload lies in the region of a server."""
    # ``memory_rate``: requests/s that it carries once KV memory is full, where that is known.
    server = as_serving(workload, server)
    demand = load(workload, server)
    work = least_on_average(demand.work, workload, server)
    lengths = work.lengths
    rate = demand.arrival_rate * work.share
    prompt = lengths.mean_prompt
    decode = max(server.tokens_per_request(prompt, lengths.mean_output) - prompt, 0.0)
    budget, slots = server.token_budget, server.max_batch_size
    by_load, own = server.batch_time.by_load, None
    long_prompts = slots is not None and slots < budget and prompt >= budget - slots + 1
    if long_prompts and by_load and server.policy.batching.phases == "decode-first":
        own = sarathi_region(server)
    bound = min(bounds(demand), key=lambda bound: bound.max_rate)
    if memory_rate is not None and memory_rate >= bound.max_rate:
        memory_rate = None
    notes = words_where(
        (
            work.share < 1,
            f"{1 - work.share:.2%} of the requests are dropped, as they never fit, and count as "
            "nothing",
        ),
        (
            reuses(workload, server),
            "prompts may be found in the prefix cache, so what they have in common counts once",
        ),
        (
            not by_load,
            "batch times depend on what is in a batch: region, mix and prices count the least for "
            "so many tokens, and hold more than can be carried; the highest rate counts attention",
        ),
        (
            server.memory is not None and bound.name != "KV memory",
            "KV memory is not counted in the region, nor in its margin; max-rate counts it",
        ),
    )
    return OperatingPoint(
        region=region(server, prompt=lengths),
        point=(rate * prompt, rate * decode),
        optimum=linear_program(server, (prompt, decode), prompt=lengths),
        own=own,
        arrival_rate=demand.arrival_rate,
        bound=bound,
        notes=tuple(notes),
        kv_memory_rate=memory_rate,
    )
