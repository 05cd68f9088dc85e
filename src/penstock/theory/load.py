"""Load: how much is asked of a server, or of a pool, and how much it can give.

Only means matter. A batch time that is random, drawn anew for each batch with mean t_b, has the
load of t_b itself, and both halves of Theorem 1 hold for it (remark after thm:main): so any
batch-time model of means will do. Several measurements at one token load are to be averaged, as
`Measured.read` does.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from penstock.errors import InputError
from penstock.system.kinds import refuse_all_but_a_server, refuse_guarded
from penstock.system.prefix_cache import as_serving
from penstock.system.server import Server
from penstock.theory.attention import (
    attention,
    attention_of_a_decode,
    beside_prefill,
    in_name,
    slowed,
)
from penstock.theory.kv_blocks import (
    Served,
    block_iterations_of,
    least_block_iterations,
    least_on_average,
    reuses,
    served,
)
from penstock.theory.unforeseen import wasted
from penstock.workload.lengths import Empirical, Length, Lengths
from penstock.workload.workload import Workload


@dataclasses.dataclass(frozen=True)
class Load:
    """What a workload asks of a server, or of each replica of a pool."""

    workload: Workload = dataclasses.field(repr=False, compare=False)
    server: Server = dataclasses.field(repr=False, compare=False)  # with its prefix cache
    arrival_rate: float  # requests/s
    # Forward tokens of a request, on average: prompt + output (convention `paper`), or prompt +
    # output - 1 (`engine`: the end of prefill yields the first output token), and what it surely
    # costs after its end. Those that are dropped have none.
    tokens_per_request: float
    # Max over 1 <= b <= token budget of b / t_b; for the few engines that go beyond it, over all
    # batches that they form.
    best_batch_tokens_per_s: float
    best_token_load: int  # the b at which that is attained
    # b_max / t_bmax; without a token budget of batches as large as they come.
    filled_batch_tokens_per_s: float
    work: Served = dataclasses.field(repr=False, compare=False)
    # Seconds of a request beside those by token load, on average: the least under any policy, and
    # the most in batches filled in order of arrival; (0, 0) for batch times by token load.
    attention_s: tuple[float, float] = (0.0, 0.0)
    sampled: bool = False  # by a sample of the lengths
    # Tokens that a request costs after its end, on average, at least and at most.
    wasted: tuple[float, float] = (0.0, 0.0)

    @property
    def capacity_tokens_per_s(self) -> float:
        """Forward tokens/s of such requests that no policy exceeds (Theorem 1(a))."""
        if not self.attention_s[0]:
            return self.best_batch_tokens_per_s
        tokens = self.tokens_per_request
        return tokens / (tokens / self.best_batch_tokens_per_s + self.attention_s[0])

    @property
    def capacity_in_words(self) -> str:
        """What the capacity counts."""
        words = f"tokens/s, with batches of {self.best_token_load:,}"
        if any(self.attention_s):
            words += ", with the least that attention takes"
        return words

    @property
    def most_tokens_per_request(self) -> float:
        """Forward tokens of a request with the most that it may cost after its end."""
        return self.tokens_per_request + self.wasted[1] - self.wasted[0]

    @property
    def full_batch_rate(self) -> float:
        """Requests/s that filled batches are sure to carry."""
        by_tokens = self.filled_batch_tokens_per_s / self.most_tokens_per_request
        return slowed(by_tokens, self.attention_s[1])

    @property
    def full_batch_tokens_per_s(self) -> float:
        """Forward tokens/s of such requests that filled batches are sure to process."""
        return self.full_batch_rate * self.most_tokens_per_request

    @property
    def offered_tokens_per_s(self) -> float:
        """Forward tokens that arrive per second."""
        return self.arrival_rate * self.tokens_per_request

    @property
    def rho(self) -> float:
        """Offered token rate over the capacity (eq:load>, eq:load<)."""
        return self.offered_tokens_per_s / self.capacity_tokens_per_s

    @property
    def max_rate(self) -> float:
        """Requests/s above which no policy is stable."""
        return self.capacity_tokens_per_s / self.tokens_per_request

    @property
    def reused(self) -> bool:
        """Whether prompts may be found in a prefix cache."""
        return reuses(self.workload, self.server)

    @property
    def extended(self) -> str:
        """What the names of theorems have added to them."""
        return in_name(sum(self.attention_s))


def refuse_no_rate(workload: Workload) -> None:
    """Refuse lengths without arrivals, clients who wait, and requests that come all at once."""
    if not workload.rate > 0:
        raise InputError(
            f"{workload.name} has no arrival rate (its requests span no time, or next to none), "
            "so it has no load and no steady state; `penstock simulate` says what happens to a "
            "burst, and a rate with arrivals 'poisson' gives it one"
        )


def refuse_without_rate(asker: str, workload: Workload, server: Server) -> None:
    """Refuse what is no workload or server, and what has no rate."""
    refuse_all_but_a_server(asker, workload, server)
    refuse_guarded((workload, server))
    refuse_no_rate(workload)


def load(workload: Workload, server: Server, rate: float | None = None) -> Load:
    """Return what a workload asks of a server, at its own rate or at another, requests/s."""
    refuse_guarded((workload, server))
    if rate is None:
        refuse_no_rate(workload)
        rate = workload.rate
    server = as_serving(workload, server)
    linear = server.batch_time.by_tokens
    best, capacity = linear.best_load(server.most_tokens)
    full = min(server.most_tokens, server.token_budget)
    work = served(workload, server)
    least_wasted, most_wasted = wasted(workload, server, work)
    tokens = server.tokens_per_request(work.lengths.mean_prompt, work.lengths.mean_output)
    tokens += least_wasted
    plain = server
    if reuses(workload, server):  # what a cache finds is left out of bounds, not of the load
        plain = server.without_cache
    least, most, sampled = attention(work.lengths, plain)
    most += (tokens + most_wasted - least_wasted) / full * beside_prefill(server.batch_time)
    if most_wasted:
        most += attention_of_a_decode(work.lengths, server)
    return Load(
        workload=workload,
        server=server,
        arrival_rate=rate,
        tokens_per_request=tokens * work.share,
        best_batch_tokens_per_s=capacity,
        best_token_load=best,
        filled_batch_tokens_per_s=linear.rate_of(full),
        work=work,
        attention_s=(least * work.share, most * work.share),
        sampled=sampled,
        wasted=(least_wasted * work.share, most_wasted * work.share),
    )


class Estimate(NamedTuple):
    """A mean per second, and its standard error: 0 where the mean is exact."""

    mean: float
    error: float = 0.0

    def times(self, factor: float) -> "Estimate":
        """Return it in other units."""
        return Estimate(self.mean * factor, self.error * factor)


NOTHING = Estimate(0.0)


@dataclasses.dataclass(frozen=True)
class Demand:
    """What comes to a pool per second, and the least that it takes there under any policy."""

    kinds: tuple[tuple[Server, int], ...]  # each kind of replica, and how many there are
    load: Load | None  # of each replica, where the law of all that comes is known
    capacity: float  # tokens/s that all replicas process in batches of any size
    prefill: float  # tokens/s
    decode: float  # tokens/s
    error: float  # standard error of these tokens/s, as a share of them
    prompt: Length | Lengths  # what is known of prompts, for what batches can be made of
    attention: Estimate  # tokens/s that replicas would process meanwhile
    memory: Estimate  # tokens in blocks of KV memory over all iterations; nothing without memory
    links: Estimate  # seconds of links that transfers take
    front: Estimate  # seconds that its front end works
    # Tokens/s with attention if requests find nothing of their prompts; None: it is the same.
    without_cache: float | None = None
    memory_sampled: bool = False  # a sample of the law, four standard errors on the safe side

    @property
    def tokens(self) -> float:
        """Forward tokens/s."""
        return self.prefill + self.decode

    @property
    def replicas(self) -> int:
        """How many there are."""
        return sum(count for _, count in self.kinds)


def demand_of(load: Load, replicas: int = 1, links: Estimate = NOTHING) -> Demand:
    """Return what is asked of replicas that have such a load each."""
    server, lengths, share = load.server, load.work.lengths, load.work.share
    least = least_on_average(load.work, load.workload, server).lengths
    prompt = least.mean_prompt * share
    tokens = server.tokens_per_request(least.mean_prompt, least.mean_output) * share
    tokens += load.wasted[0]
    rate, capacity = load.arrival_rate * replicas, load.best_batch_tokens_per_s
    seconds = load.attention_s[0]
    without_cache = None
    if load.reused:
        without_cache = rate * (load.tokens_per_request + seconds * capacity)
        seconds = attention(lengths, server, reused=True).least * share
    kv_tokens, by_sample = _kv_tokens(load)
    return Demand(
        kinds=((server, replicas),),
        load=load,
        capacity=capacity * replicas,
        prefill=rate * prompt,
        decode=rate * (tokens - prompt),
        error=0.0,
        prompt=least,
        attention=Estimate(rate * seconds * capacity),
        memory=Estimate(rate * share * kv_tokens),
        links=links,
        front=Estimate(rate * share * front_s(server, lengths.mean_output)),
        without_cache=without_cache,
        memory_sampled=by_sample,
    )


def front_s(server: Server, outputs: float) -> float:
    """Return the seconds that a front end works on a request with so many outputs on average."""
    return 0.0 if server.front_end is None else float(server.front_end.seconds(outputs))


def _kv_tokens(load: Load) -> tuple[float, bool]:
    """Return the least that a request holds over all its iterations, and whether by a sample."""
    memory, lengths = load.server.memory, load.work.lengths
    if memory is None:
        return 0.0, False
    if not load.reused:
        least, by_sample = least_block_iterations(lengths, load.server, memory)
        return least * memory.block_size, by_sample
    if not isinstance(lengths, Empirical):
        return 0.0, False
    # Blocks of a prompt may be those of others; those of its outputs are its own.
    output = lengths.output_tokens
    blocks = block_iterations_of(np.zeros_like(output), output, load.server, memory)
    return float(blocks.mean()) * memory.block_size, False


def iteration_s(server: Server) -> float:
    """Return the least time that an iteration of a request takes for each output, s."""
    return server.shortest_s / server.policy.batching.outputs_per_decode
