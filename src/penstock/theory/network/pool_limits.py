"""What each limit of a pool carries: necessary conditions, whatever policy, order and router.

The limits of one server (`penstock.theory.bounds`) hold for a pool of R replicas by conservation
over all of them: what arrives per second, of all stages, against R times what one replica gives.

* **Token budget** (Theorem 1(a)): forward tokens/s against R max over b of b / t_b, b up to the
  most tokens that a batch may have. Where batches take longer for what is in them, a request takes
  the least of its attention besides (`penstock.theory.attention`): together a share of the time of
  R replicas.
* **Max batch size** (Section 6): the linear program of `penstock.theory.region` for the prefill
  and decode tokens/s of a replica, which are 1 / R of all if replicas share them best.
* **KV memory** (Nie, Si, Zhou): a request of a stage holds g blocks, summed over the iterations
  that serve it (`penstock.theory.kv_blocks.block_iterations_of`), each of at least t seconds, the
  least batch time. So with M blocks at a replica

      sum over stages of lambda E[g] t <= R M        (Little's law for blocks),

  the memory that requests need, in block-seconds per second, against what there is.

Loads are what is asked over what is given: above 1 no policy is stable. E[g] and attention are
means of a sample of jobs, with their standard errors; those of constant lengths are exact. A prompt
that goes on with the context of another request is counted without it, since a replica might have
it.

**Transfer.** Where requests take their KV entries from one pool to another, the bytes that cross
per second are at most what the links of all senders carry, and those of all receivers
(`transfer_loads`).
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError
from penstock.inputs.arrays import Floats, Ints
from penstock.system.batch_time import Composition
from penstock.system.network import Network
from penstock.system.network_model import NetworkModel
from penstock.system.pool import Pool
from penstock.system.server import Server
from penstock.theory.attention import WITH_ATTENTION, attention_of
from penstock.theory.bounds import Limit, unhurried
from penstock.theory.hypotheses import CRITICAL_BAND
from penstock.theory.kv_blocks import block_iterations_of, outputs_of_prefill, reserves
from penstock.theory.network.hypotheses import STANDARD_ERRORS
from penstock.theory.region import linear_program
from penstock.workload.jobs import Jobs
from penstock.workload.lengths import Geometric
from penstock.workload.means import Means, sampled_jobs
from penstock.workload.sessions import Sessions
from penstock.workload.workflow import Workflow

TOKENS = "Theorem 1(a)"
SLOTS = "Section 6 (stability region under a max batch size)"
MEMORY = "KV memory (Nie, Si, Zhou; Little's law)"

OfRequests = Callable[[Ints, Ints], Floats]
"""What requests ask, from their prompt and output tokens; shape (requests,)."""


@dataclasses.dataclass(frozen=True)
class PoolLimit:
    """A limit of a pool, and how much of it is asked for.

    Attributes
    ----------
    name
        ``token budget``, ``max batch size`` or ``KV memory``.
    load
        What arrives over what the limit lets any policy carry.
    standard_error
        Of the load, where it is sampled; else 0.
    theorem
        Where it is proved.
    why
        The numbers that it comes from.
    """

    name: Limit
    load: float
    standard_error: float
    theorem: str
    why: str

    @property
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
        error = f" +- {self.standard_error:.4f}" if self.standard_error else ""
        return f"{self.load:.4f}{error}"


@dataclasses.dataclass(frozen=True)
class PoolLimits:
    """The limits of a pool.

    Attributes
    ----------
    limits
        The token budget first.
    binding
        What sets the tightest: ``token budget``, ``max batch size``, ``KV memory``, or ``batch
        time`` where only faster batches would help.
    """

    limits: tuple[PoolLimit, ...]
    binding: tuple[str, ...]

    @property
    def tightest(self) -> PoolLimit:
        """The limit with the highest load; of equal ones the first."""
        return max(self.limits, key=lambda limit: limit.load)


def pool_limits(network: Network, model: NetworkModel) -> tuple[PoolLimits, ...]:
    """Return what each limit of each pool carries, pool by pool.

    Parameters
    ----------
    network
        Pools and workflows.
    model
        Its means.
    """
    asked: list[tuple[int, OfRequests]] = []
    for index, pool in enumerate(network.pools.values()):
        asked.append((index, _attention(pool.server)))
        asked.append((index, _blocks(pool.server)))
    sampled = any(_is_sampled(pool.server) for pool in network.pools.values())
    nothing = np.zeros(len(asked))
    mean, error = _per_second(network, asked) if sampled else (nothing, nothing)
    return tuple(
        _limits_of(
            pool,
            model,
            index,
            (float(mean[2 * index]), float(error[2 * index])),
            (float(mean[2 * index + 1]), float(error[2 * index + 1])),
        )
        for index, pool in enumerate(network.pools.values())
    )


def with_limits(model: NetworkModel, limits: Sequence[PoolLimits]) -> NetworkModel:
    """Return the means with what batches of each pool carry at most of what arrives there: those
    beyond the token budget counted, and the least that attention takes.
    """
    offered = model.offered
    loads = np.array([pool.limits[0].load if pool.limits else 0.0 for pool in limits])
    errors = np.array([pool.limits[0].standard_error if pool.limits else 0.0 for pool in limits])
    busy = loads > 0
    capacity = model.capacity.copy()
    capacity[busy] = offered[busy] / loads[busy]
    return dataclasses.replace(
        model, capacity=capacity, standard_error=np.maximum(model.standard_error, errors * capacity)
    )


def _limits_of(
    pool: Pool,
    model: NetworkModel,
    index: int,
    attention: tuple[float, float],
    blocks: tuple[float, float],
) -> PoolLimits:
    """Return the limits of one pool, given (mean, standard error) of seconds of attention and of
    block-iterations per second.
    """
    here = model.pool == index
    visits, prefill, decode = model.visits[here], model.prefill[here], model.decode[here]
    server, replicas = pool.server, pool.replicas
    rates = np.array([visits @ prefill, visits @ decode]) / replicas
    if not rates.any():
        return PoolLimits((), ())
    tokens = _token_budget(server, rates, attention[0] / replicas)
    sampled = float(model.standard_error[index]) / max(float(model.offered[index]), 1e-300)
    by_tokens = float(rates.sum()) / server.batch_time.by_tokens.capacity(server.most_tokens)
    error = math.hypot(by_tokens * sampled, attention[1] / replicas)
    limits = [dataclasses.replace(tokens, standard_error=error)]

    # Only the mean and the longest prompt count; the longest is not known of contexts that grow, so
    # there is none.
    prompts = float(visits[prefill > 0].sum())
    mean = max(float(visits @ prefill) / prompts, 1.0) if prompts else 1.0
    best = linear_program(unhurried(server), rates, prompt=Geometric(mean))
    binding = best.binding
    slots = server.max_batch_size
    if slots is not None and slots < server.most_tokens:
        beside, wrong = attention
        if server.memory is not None and not reserves(server):
            beside = wrong = 0.0  # tokens computed anew may ride along in batches short of requests
        by_slots = 1 / best.scale / server.policy.outputs_per_decode
        limits.append(
            PoolLimit(
                "max batch size",
                by_slots + beside / replicas,
                math.hypot(by_slots * sampled, wrong / replicas),
                SLOTS + (WITH_ATTENTION if beside else ""),
                f"the best mix of batches of at most {slots:,} requests and "
                f"{server.most_tokens:,} tokens",
            )
        )
    if server.memory is not None:
        limits.append(_kv_memory(server, replicas, *blocks))
    found = PoolLimits(tuple(limits), binding)
    if found.tightest.name == "KV memory":
        return dataclasses.replace(found, binding=("KV memory",))
    return found


def _token_budget(server: Server, rates: Floats, attention_s: float) -> PoolLimit:
    """Return the limit that the token budget sets a replica that gets these tokens/s."""
    best, capacity = server.batch_time.by_tokens.best_load(server.most_tokens)
    offered = float(rates.sum())
    beside = f", and {attention_s:.4g} s of attention a second at least" if attention_s else ""
    return PoolLimit(
        "token budget",
        offered / capacity + attention_s,
        0.0,
        TOKENS + (WITH_ATTENTION if attention_s else ""),
        f"a replica gets {offered:,.0f} tokens/s, its best batch ({best:,} tokens) carries "
        f"{capacity:,.0f}{beside}",
    )


def _kv_memory(server: Server, replicas: int, blocks: float, error: float) -> PoolLimit:
    """Return the limit that KV memory sets, for so many block-iterations per second."""
    assert server.memory is not None
    size, usable = server.memory.block_size, server.usable_blocks or 0
    shortest = float(server.batch_time.table(server.most_tokens)[1:].min())
    of_all = shortest / usable / replicas / server.policy.outputs_per_decode
    of = "tokens" if size == 1 else f"blocks of {size:,} tokens"
    return PoolLimit(
        "KV memory",
        blocks * of_all,
        error * of_all,
        MEMORY,
        f"a replica has {usable:,} {of}; requests hold at least {blocks * of_all * usable:,.0f} on "
        f"average, with batches of {shortest:.4g} s, the least",
    )


def _is_sampled(server: Server) -> bool:
    """Whether a limit of it counts what is known of single requests only."""
    return server.memory is not None or not server.batch_time.by_load


def _blocks(server: Server) -> OfRequests:
    """Return what asks for the blocks that requests hold, summed over their iterations."""
    memory = server.memory
    if memory is None:
        return _nothing
    return lambda prompt, output: block_iterations_of(prompt, output, server, memory)


def _attention(server: Server) -> OfRequests:
    """Return what asks for the seconds of attention that requests take at least."""
    model = server.batch_time
    if not isinstance(model, Composition):
        return _nothing
    # As in `penstock.theory.attention.attention`.
    lost = server.memory is not None and server.policy.loses_rest_of_prompt
    per_token = 0.0 if lost else model.with_prefill / server.most_tokens

    def seconds(prompt: Ints, output: Ints) -> Floats:
        served = np.maximum(prompt, 1)
        least, _ = attention_of(
            served, np.maximum(output, outputs_of_prefill(server)), server, reused=lost
        )
        return np.where(prompt > 0, least + per_token * prompt, 0.0)

    return seconds


def _nothing(prompt: Ints, output: Ints) -> Floats:
    return np.zeros(prompt.size)


def _per_second(network: Network, asked: Sequence[tuple[int, OfRequests]]) -> tuple[Floats, Floats]:
    """Return the mean of what is asked of pools per second, and its standard error; shape (asked,)
    each.
    """
    mean, variance = np.zeros(len(asked)), np.zeros(len(asked))
    for workflow, first in zip(network.workflows, network.first_stage, strict=False):
        means = workflow.means()
        here = slice(first, first + len(means.visits))
        of_job, error = _per_job(workflow, means, network.stage_pool[here], asked)
        mean += workflow.rate * of_job
        variance += (workflow.rate * error) ** 2
    return mean, np.sqrt(variance)


def _per_job(
    workflow: Workflow | Sessions,
    means: Means,
    stage_pool: Ints,
    asked: Sequence[tuple[int, OfRequests]],
) -> tuple[Floats, Floats]:
    """Return the mean of what a job asks, and its standard error; shape (asked,) each.

    Where visits are known by formula, means are those of a request at each stage times its visits:
    so constant lengths have no error, however jobs branch.
    """
    stages = len(means.visits)
    visited, brought = [], []
    for jobs in _sampled(workflow, means):
        at = jobs.job * stages + jobs.stage
        visited.append(np.bincount(at, minlength=jobs.count * stages).reshape(-1, stages))
        prompt = jobs.prompt - np.minimum(jobs.reuse, np.maximum(jobs.prompt - 1, 0))
        of_requests = np.zeros((len(asked), jobs.requests))
        for row, (pool, ask) in enumerate(asked):
            mine = np.flatnonzero(stage_pool[jobs.stage] == pool)
            of_requests[row, mine] = ask(
                prompt[mine].astype(np.int64), jobs.output[mine].astype(np.int64)
            )
        brought.append(
            np.stack(
                [
                    np.bincount(at, values, jobs.count * stages).reshape(-1, stages)
                    for values in of_requests
                ],
                axis=1,
            )
        )
    visits, sums = np.concatenate(visited), np.concatenate(brought)  # (jobs, [asked,] stages)
    count = len(visits)
    if isinstance(workflow, Sessions):  # all of them
        return sums.sum(axis=2).mean(axis=0), np.zeros(len(asked))
    if means.sampled is not None:
        of_jobs = sums.sum(axis=2)
        return of_jobs.mean(axis=0), of_jobs.std(axis=0) / math.sqrt(count)
    seen = np.maximum(visits.mean(axis=0), 1e-300)
    of_request = sums.mean(axis=0) / seen  # (asked, stages)
    known = np.where(visits.any(axis=0), means.visits, 0.0)
    rest = (sums - visits[:, None, :] * of_request) @ (known / seen)
    return of_request @ known, rest.std(axis=0) / math.sqrt(count)


def _sampled(workflow: Workflow | Sessions, means: Means) -> Iterable[Jobs]:
    """Yield the jobs whose requests are looked at."""
    if isinstance(workflow, Sessions):
        yield workflow.recorded
        return
    left = sampled_jobs(max(float(means.visits.sum()), 1.0))
    for block in workflow.blocks():
        jobs = block.first(left)
        yield jobs
        left -= jobs.count
        if not left:
            return


@dataclasses.dataclass(frozen=True)
class TransferLoads:
    """How much of the links between two pools is asked for, on either side.

    Attributes
    ----------
    bytes_per_s
        That cross.
    sending, receiving
        Loads: those bytes over what all links of that side carry. Above 1 what waits for the
        transfer grows for ever.
    """

    bytes_per_s: float
    sending: float
    receiving: float

    @property
    def load(self) -> float:
        """The higher of the two."""
        return max(self.sending, self.receiving)

    @property
    def max_scale(self) -> float:
        """Factor on the rate above which no policy is stable."""
        return math.inf if self.load == 0 else 1 / self.load


def transfer_loads(
    rate: float,
    prompt_tokens: float,
    bytes_per_token: float,
    sending: npt.ArrayLike,
    receiving: npt.ArrayLike,
) -> TransferLoads:
    """Return the loads of the links over which a prefill pool hands KV entries to a decode pool.

    Each request moves ``prompt_tokens`` x ``bytes_per_token`` bytes on average, out of one replica
    and into another. A link carries at most its bandwidth, so by conservation of bytes a load
    above 1 on either side means that requests whose transfer is not done pile up without end,
    whatever the policy, the routers and the order of transfers. Below 1 on both sides nothing
    follows: routers may still send too much over one link.

    Parameters
    ----------
    rate
        Requests/s whose KV entries move; long-run averages suffice.
    prompt_tokens
        Tokens whose entries a request moves, on average.
    bytes_per_token
        Of KV entries in all layers.
    sending, receiving
        Shape (replicas,), bytes/s that the link of each replica of the prefill pool, and of the
        decode pool, carries; infinite: no limit.

    Raises
    ------
    InputError
        If a number cannot be used.

    >>> found = transfer_loads(10, 2_000, 131_072, [2e9, 2e9], [4e9])
    >>> found.bytes_per_s, found.sending, found.receiving
    (2621440000.0, 0.65536, 0.65536)
    """
    reason = "what moves per second follows from it"
    moved = (
        checks.number("the rate", rate, 0, 1e12, "requests/s", reason)
        * checks.number("prompt_tokens", prompt_tokens, 0, 1e12, "tokens", reason)
        * checks.number("bytes_per_token", bytes_per_token, 0, 1e15, "bytes", reason)
    )
    return TransferLoads(
        moved, moved / _bandwidth("sending", sending), moved / _bandwidth("receiving", receiving)
    )


def _bandwidth(side: str, links: npt.ArrayLike) -> float:
    """Return what all links of a side carry together, bytes/s."""
    carried = np.atleast_1d(np.asarray(links, np.float64))
    if carried.ndim != 1 or carried.size == 0 or not (carried > 0).all():
        raise InputError(
            f"the bandwidths of the {side} replicas are {checks.shown(links)}, but each is above 0 "
            "bytes/s; give one for every replica"
        )
    return float(carried.sum())
