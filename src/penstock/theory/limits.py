"""Necessary conditions: what each limit of a pool carries, whatever policy, order and router.

Each follows from conservation of what it limits: what arrives per second, of all stages, against
what all replicas give together. A load is what is asked over what is given: above 1 no policy is
stable.

* **Token budget** (Theorem 1(a)): forward tokens/s against the sum over replicas of max over b of
  b / t_b, b up to the most tokens that a batch may have. Where batches take longer for what is in
  them, a request takes the least of its attention besides (`penstock.theory.attention`), in tokens
  that its replica would have processed meanwhile.
* **Max batch size** (paper, Section 6, Condition stable_condition): the prefill and decode tokens/s
  of all stages have to be in the sum of the replicas' regions (`penstock.theory.region`): at no
  prices of the two do they come to more than all replicas together earn with their batches (a sum
  of convex sets is bounded by sums of what bounds them).
* **KV memory** (after Nie, Si, Zhou): a request holds g blocks, summed over the iterations that
  serve it (`penstock.theory.kv_blocks.block_iterations`), each of at least t seconds, the least
  batch time. So with M blocks at each of R replicas

      sum over stages of lambda E[g] t <= R M        (Little's law for blocks).

  Each forward token leaves one KV entry, which is held from its own iteration on. Iterations that
  leave a request out while it holds memory, blocks taken ahead, and tokens processed anew after a
  preemption only add to it. An admission that reserves memory to completion holds more, and that is
  counted: no policy helps, another admission may. Requests whose KV memory comes from elsewhere
  hold its blocks in all their decodes, and while it comes. Of replicas that differ each request is
  counted where it asks for the least share.
* **Front end**: it works a given time on each request, on as many at a time as it has processes.
  What leaves it is what came, so the others bind behind it as they do without.
* **Transfers**: each takes the links of the replica that sends and of the one that gets it for some
  time, and a link carries one at a time. So per second no more link time is used than there are
  replicas, on either side.

Where a decode verifies drafts it brings up to y outputs on average, so the decodes of a request are
1 / y of its outputs at least (Wald), and it holds its blocks in so many iterations less: max batch
size and KV memory carry y times as much. What drafts cost is left out.

What a server drops is not counted. Where prompts may share their beginnings, a prompt counts the
tokens that are processed even if its replica has all that it has in common with others, one at
least: what a recording names is counted once in all (`Prefixes.computed_once`). Of the blocks that
it holds only those count that no other request can have. If the recording goes on, it is with other
prompts.
"""

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from penstock.inputs.caching import cached
from penstock.show.answers import AsData, Meaning, computed
from penstock.system.server import Server
from penstock.theory.attention import in_name
from penstock.theory.hypotheses import CRITICAL_BAND
from penstock.theory.kv_blocks import SAMPLE, STANDARD_ERRORS, reserves
from penstock.theory.load import NOTHING, Demand, Estimate, Load, demand_of, iteration_s
from penstock.workload.lengths import Length, Lengths

if TYPE_CHECKING:
    from penstock.theory.region import Region

TOKENS = "Theorem 1(a)"
REGION = "Section 6 (stability region under a max batch size)"
MEMORY = "KV memory (Nie, Si, Zhou; Little's law)"
LINKS = "conservation of link time"
FRONT = "conservation of the front end's time"

LimitName = Literal["token budget", "max batch size", "KV memory", "transfers", "front end"]
_NAMES = "``token budget``, ``max batch size``, ``KV memory``, ``transfers`` or ``front end``."


@dataclasses.dataclass(frozen=True)
class Limit(AsData):
    """A limit of a pool, and how much of it is asked for."""

    name: Annotated[LimitName, Meaning(_NAMES)]
    load: Annotated[float, Meaning("What arrives over what the limit lets any policy carry.")]
    standard_error: Annotated[
        float, Meaning("Of the load, where it is the mean of a sample of jobs; else 0.")
    ]
    theorem: Annotated[str, Meaning("Where it is proved.")]
    why: Annotated[str, Meaning("The numbers that it comes from.")]
    sampled: Annotated[
        bool,
        Meaning(
            "Whether the load is that of a sample of the lengths, four standard errors on the "
            "safe side."
        ),
    ] = False

    @property
    def carried(self) -> float:
        """How many times what arrives it lets any policy carry."""
        return 1 / self.load

    @computed()
    def margin(self) -> float:
        """What is left, as a share of what the limit carries; negative where it is exceeded."""
        return 1 - self.load

    @property
    def exceeded(self) -> bool:
        """Whether no policy is stable: above 1, by more than what sampling may be wrong by."""
        return self.load - STANDARD_ERRORS * self.standard_error > 1 + CRITICAL_BAND

    @property
    def in_words(self) -> str:
        """The load with its error."""
        if not self.standard_error:
            return f"{self.load:.4f}"
        return f"{self.load:.4f} +- {self.standard_error:.4f}"


@dataclasses.dataclass(frozen=True)
class Bound(AsData):
    """A request rate that no policy can exceed."""

    name: Annotated[LimitName, Meaning(_NAMES)]
    max_rate: Annotated[
        float, Meaning("Requests/s, or jobs/s, above which the backlog grows for ever.")
    ]
    theorem: Annotated[str, Meaning("Where it is proved.")]
    why: Annotated[str, Meaning("The numbers that it comes from.")]
    sampled: Annotated[
        bool,
        Meaning("Whether it is by a sample of the lengths, four standard errors on the safe side."),
    ] = False


@dataclasses.dataclass(frozen=True)
class PoolLoad:
    """Load of one pool."""

    name: str
    # Forward tokens that arrive, without those that requests may find of their prompts, and the
    # most that its replicas can process.
    offered_tokens_per_s: float
    capacity_tokens_per_s: float
    standard_error: float  # of the offered tokens/s where means are sampled, else 0
    # Seconds after which the pool has drained, in the fluid model, per second of work: a backlog
    # that brings no pool more than w seconds of work, in all its stages, has left pool s after w
    # T_s seconds with T_s = (1 + the largest T of the pools before it) / (1 - rho_s). Until those
    # have drained it may wait for work, and after that it works at its full rate until none is left
    # (thm:dag). Fluid of a pool is spread evenly over its replicas. None: beside or behind a cycle
    # or replicas that differ, or overloaded.
    drain_s: float | None
    # Factor on all rates above which no policy is stable at this pool, under all of its limits,
    # even if requests find all of their prompts that they may.
    max_load: float
    # How much of each limit is asked for, the token budget first; none where only the means of the
    # pool are known, or nothing arrives.
    limits: tuple[Limit, ...] = ()
    # The load if requests find nothing of their prompts but what they surely do; None: it is rho.
    rho_without_cache: float | None = None
    # What is asked of it; None where only the means of the pool are known.
    demand: Demand | None = dataclasses.field(default=None, repr=False, compare=False)

    @classmethod
    def of_server(cls, name: str, load: Load, *, fills: bool) -> "PoolLoad":
        """Return the load of a pool of one replica; ``fills``: its full batches drain it."""
        demand = demand_of(load)
        limits = limits_of(demand)
        capacity = demand.capacity
        if demand.attention.mean:
            capacity = demand.tokens / limits[0].load
        full = load.arrival_rate / load.full_batch_rate
        drain_s = None
        if fills and full < 1:
            drain_s = 1 / (1 - full)
        pool = cls(name, demand.tokens, capacity, 0.0, drain_s, limits[0].carried)
        return pool.under(limits, demand)

    @property
    def rho(self) -> float:
        """Offered token rate over the capacity (eq:load-dag), at least."""
        return self.offered_tokens_per_s / self.capacity_tokens_per_s

    @property
    def margin(self) -> float:
        """The share left before no policy is stable: 1 - rho where the token budget binds."""
        return 1 - 1 / self.max_load

    @property
    def load(self) -> Load | None:
        """The load of each replica, where the law of all that comes is known."""
        return None if self.demand is None else self.demand.load

    @functools.cached_property
    def binding(self) -> tuple[str, ...]:
        """What sets the max load; `batch time` where only faster batches would help."""
        if self.demand is None:
            return ("token budget",)
        if not self.limits:
            return ()
        name, kinds = tightest(self.limits).name, self.demand.kinds
        if name in ("KV memory", "transfers", "front end") or len(kinds) > 1:
            return (name,)
        server, replicas = kinds[0]
        rates = np.array([self.demand.prefill, self.demand.decode]) / replicas
        from penstock.theory.region import binding_limits

        binding, _ = binding_limits(unhurried(server), rates, prompt=self.demand.prompt)
        return binding

    def under(self, limits: tuple[Limit, ...], demand: Demand) -> "PoolLoad":
        """Return the load under all limits of the pool, with what is asked of it."""
        if not limits:
            return dataclasses.replace(self, demand=demand)
        most = tightest(limits).carried
        pool = dataclasses.replace(self, max_load=most, limits=limits, demand=demand)
        if demand.without_cache is None:
            return pool
        rho = demand.without_cache / demand.capacity
        return dataclasses.replace(pool, rho_without_cache=rho)


def bounds(load: Load) -> tuple[Bound, ...]:
    """Return what each limit of a server can carry, the token budget first."""
    return as_bounds(limits_of(demand_of(load)), load.arrival_rate)


def as_bounds(limits: tuple[Limit, ...], rate: float) -> tuple[Bound, ...]:
    """Return the request rates that limits carry, of which so many requests/s ask so much."""
    return tuple(Bound(of.name, rate * of.carried, of.theorem, of.why, of.sampled) for of in limits)


def tightest(limits: tuple[Limit, ...]) -> Limit:
    """Return the limit with the highest load; of equal ones the first."""
    most = max(limit.load for limit in limits)
    return next(limit for limit in limits if limit.load * (1 + CRITICAL_BAND) >= most)


def limits_of(demand: Demand) -> tuple[Limit, ...]:
    """Return how much of each limit of a pool is asked for, the token budget first."""
    if not demand.tokens:
        return ()
    attention = demand.attention.times(1 / demand.capacity)
    limits = [_token_budget(demand, attention)]
    kinds = demand.kinds
    if any((server.max_batch_size or math.inf) < server.most_tokens for server, _ in kinds):
        limits.append(_max_batch_size(demand, attention))
    if demand.memory.mean:
        limits.append(_kv_memory(demand))
    if demand.links.mean:
        seconds, replicas = demand.links.mean, demand.replicas
        why = f"transfers take {seconds:.4g} s of links a second, of {replicas:,}"
        limits.append(Limit("transfers", *demand.links.times(1 / replicas), LINKS, why))
    if demand.front.mean:
        limits.append(_front_end(demand))
    return tuple(limits)


def _front_end(demand: Demand) -> Limit:
    """Return the limit of what takes requests in."""
    front_end = demand.kinds[0][0].front_end
    assert front_end is not None
    processes = front_end.processes * demand.replicas
    many = "it" if processes == 1 else f"its {processes:,} processes"
    why = f"it works {demand.front.mean:.4g} s a second on requests that come"
    if demand.load is not None:
        each = demand.front.mean / (demand.load.arrival_rate * demand.replicas)
        why = f"a request takes {each * 1e3:.4g} ms of {many}"
    return Limit("front end", *demand.front.times(1 / processes), FRONT, why)


def _token_budget(demand: Demand, attention: Estimate) -> Limit:
    """Return Theorem 1(a), given the load that attention adds."""
    by_tokens = demand.tokens / demand.capacity
    server, replicas = demand.kinds[0]
    beside = ""
    if attention.mean:
        beside = f", and {attention.mean:.4g} s of attention a second at least"
    if demand.load is not None and replicas == 1:
        why = _of_a_request(demand, demand.load)
    elif len(demand.kinds) == 1:
        best, capacity = server.batch_time.by_tokens.best_load(server.most_tokens)
        why = (
            f"a replica gets {demand.tokens / replicas:,.0f} tokens/s, its best batch ({best:,} "
            f"tokens) carries {capacity:,.0f}{beside}"
        )
    else:
        why = (
            f"{demand.tokens:,.0f} tokens/s arrive, the best batches of all replicas carry "
            f"{demand.capacity:,.0f} together{beside}"
        )
    return Limit(
        "token budget",
        by_tokens + attention.mean,
        math.hypot(by_tokens * demand.error, attention.error),
        TOKENS + in_name(attention.mean),
        why,
    )


def _of_a_request(demand: Demand, load: Load) -> str:
    """Return the numbers of the token budget where one server gets requests of one kind."""
    tokens = demand.tokens / load.arrival_rate
    seconds = demand.attention.mean / demand.capacity / load.arrival_rate
    if seconds and not load.reused:  # one capacity on a page: that with attention
        capacity = f"the capacity of {load.capacity_tokens_per_s:,.0f} tokens/s"
        return f"{capacity} over the {tokens:,.6g} tokens of a request"
    count = f"{tokens:,.6g} of them"
    if load.reused:
        count = f"at least {count}"
    if seconds:
        count += f", and at least {seconds:.4g} s of attention"
    return (
        f"the best batch ({load.best_token_load:,} tokens) carries "
        f"{load.best_batch_tokens_per_s:,.0f} tokens/s, and a request has {count}"
    )


def _max_batch_size(demand: Demand, attention: Estimate) -> Limit:
    """Return the limit of the requests in a batch, given the load that attention adds."""
    kinds = demand.kinds
    # Tokens computed anew may ride along in batches short of requests.
    again = any(server.memory is not None and not reserves(server) for server, _ in kinds)
    if again or len(kinds) > 1:
        attention = NOTHING
    rates = np.array([demand.prefill, demand.decode])
    regions = [(_region_of(server, demand.prompt), count) for server, count in kinds]
    prices = np.concatenate([of_one.normals for of_one, _ in regions])
    earned = sum(count * (prices @ of_one.vertices.T).max(axis=1) for of_one, count in regions)
    outputs = max(server.policy.batching.outputs_per_decode for server, _ in kinds)
    load = float((prices @ rates / earned).max()) / outputs
    why = "the best mix of batches of all kinds of replicas, within their limits"
    if len(kinds) == 1:
        server = kinds[0][0]
        why = (
            f"the best mix of batches of at most {server.max_batch_size:,} requests and "
            f"{server.most_tokens:,} tokens"
        )
        if demand.load is not None and demand.replicas == 1 and attention.mean:
            why += f", and at least {attention.mean / demand.load.arrival_rate:.4g} s of attention"
        if outputs > 1:
            why += f", with {outputs:.3g} outputs from a decode"
    return Limit(
        "max batch size",
        load + attention.mean,
        math.hypot(load * demand.error, attention.error),
        REGION + in_name(attention.mean),
        why,
    )


@cached(32)
def _region_of(server: Server, prompt: Length | Lengths) -> "Region":
    """Return the region of a server on which no batch takes longer than one with more tokens."""
    from penstock.theory.region import region

    return region(unhurried(server), prompt=prompt)


def _kv_memory(demand: Demand) -> Limit:
    """Return the limit that KV memory sets."""
    most = sum(count * _token_rate(server) for server, count in demand.kinds)
    share = demand.memory.times(1 / most)
    server, replicas = demand.kinds[0]
    memory, load = server.memory, demand.load
    if len(demand.kinds) > 1 or memory is None:
        why = f"requests hold at least {share.mean:.4g} of the KV memory of all replicas on average"
        return Limit("KV memory", *share, MEMORY, why)
    size, usable = memory.block_size, server.usable_blocks or 0
    unit = "tokens"
    if size > 1:
        unit = f"blocks of {size:,} tokens"
    if load is not None and replicas == 1:
        blocks = demand.memory.mean / size / load.arrival_rate / load.work.share
        blocks /= server.policy.batching.outputs_per_decode
        why = (
            f"{usable:,} {unit}, of which a request holds at least {blocks:,.6g} summed over its "
            f"iterations, each of at least {server.shortest_s:.4g} s"
        )
        if demand.memory_sampled:
            why += f", by {SAMPLE:,} draws of lengths"
    else:
        why = (
            f"a replica has {usable:,} {unit}; requests hold at least {share.mean * usable:,.0f} "
            f"on average, with batches of {server.shortest_s:.4g} s, the least"
        )
    return Limit("KV memory", *share, MEMORY, why, demand.memory_sampled)


def _token_rate(server: Server) -> float:
    """Return the token-iterations that the memory of a replica gives per second at most."""
    assert server.memory is not None
    return (server.usable_blocks or 0) * server.memory.block_size / iteration_s(server)


def unhurried(server: Server) -> Server:
    """Return a server by token load on which no batch takes longer than one with more tokens."""
    # Tokens processed anew fill batches: where larger ones are faster, they must not seem a loss.
    if not server.batch_time.by_load:
        server = dataclasses.replace(server, batch_time=server.batch_time.by_tokens)
    if server.memory is None:
        return server
    from penstock.system.measured_times import Measured  # tables take a while to load

    seconds = server.batch_time.table(server.most_tokens)[1:]
    least = np.minimum.accumulate(seconds[::-1])[::-1]
    if (seconds == least).all():
        return server
    return dataclasses.replace(
        server, batch_time=Measured(range(1, least.size + 1), least.tolist())
    )
