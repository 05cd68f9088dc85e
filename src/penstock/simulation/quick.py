"""What a server carries once it is full: by a flood of requests that are all there at once."""

import dataclasses
from typing import Literal

import numpy as np

from penstock.errors import InputError
from penstock.inputs.arrays import Floats
from penstock.simulation.intervals import ratio_interval
from penstock.simulation.rows import recorded
from penstock.simulation.run import Run
from penstock.simulation.simulate import simulate
from penstock.system.kinds import refuse_all_but_a_server, refuse_guarded
from penstock.system.prefix_cache import as_serving
from penstock.system.server import Server
from penstock.workload.lengths import Length, Recorded
from penstock.workload.workload import Workload

_REQUESTS = 60_000
_MOST = 16  # times as many, where more run at once
_SETTLED = 20  # times that all who run have left, until those who began together are spread
_PARTS = 20  # of the flood, in order of time
_CONFIDENCE = 0.95
_WORTH = 1.01  # what ample memory must carry more, for memory to be the limit
_BUDGET_BINDS = 0.95  # share of the token budget that batches fill


@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
    """A server that is full, as a flood finds it.

    Attributes
    ----------
    rate, rate_interval
        Requests/s that it carries, those that are dropped included; the interval of 95% is that of
        the flood, by batch means.
    limit
        What it is full of: ``KV memory`` where it carries more without that limit, else requests,
        ``max batch size``, or tokens, ``token budget``.
    batch_time_s
        Mean seconds of a batch.
    token_load
        Mean tokens of a batch.
    running
        Mean number of requests in a batch.
    preemptions, preemptions_interval
        Mean number of a request, with its interval.
    recomputed_share
        Share of the tokens in batches that were processed before.
    """

    rate: float
    rate_interval: tuple[float, float]
    limit: Literal["KV memory", "max batch size", "token budget"]
    batch_time_s: float
    token_load: float
    running: float
    preemptions: float
    preemptions_interval: tuple[float, float]
    recomputed_share: float


def memory_estimate(
    workload: Workload, server: Server, *, requests: int | None = None
) -> MemoryEstimate:
    """Estimate the rate that a server's KV memory carries, by simulation; no bound and no theorem.

    Requests of these lengths are there at once. The rate is that at which they leave, after all
    that ran at once have left 20 times.

    Parameters
    ----------
    workload
        Its lengths; at whatever rate.
    server
        With a memory.
    requests
        How many; default: 60,000, and more where more run at once.

    Raises
    ------
    InputError
        If the server has no memory, a request never fits, or requests may share what begins alike.

    Examples
    --------
    >>> import penstock as ps
    >>> chat = ps.Workload.poisson(1.0, 129, 112)
    >>> memory = ps.Memory(451, admission="completion")
    >>> a100 = ps.hardware("codellama-34b-a100-tp1").batch_time
    >>> server = ps.Server(a100, 512, 512, memory=memory)
    >>> round(ps.memory_estimate(chat, server).rate, 1)  # with sure batch times of 46.75 ms: 5.7
    4.8
    """
    refuse_all_but_a_server("memory_estimate", workload, server)
    refuse_guarded((workload, server))
    if server.memory is None:
        raise InputError(
            "the server has no KV memory, so memory limits nothing; give kv_blocks or kv_tokens"
        )
    if as_serving(workload, server).caches_prefixes and workload.prefixes is not None:
        raise InputError(
            "what requests share by prefix caching is not known, so there is no estimate; ask "
            "max_rate"
        )
    server = server.behind_front_end
    # First the one that refuses orders of the queue that go by the cache: they have no estimate.
    unlimited = dataclasses.replace(server, memory=None, gpu=None)
    ample = saturated(workload, unlimited, requests=requests)
    full = saturated(workload, server, requests=requests)
    if ample.rate > _WORTH * full.rate:
        return full
    return dataclasses.replace(full, limit=ample.limit)


def memory_is_full(workload: Workload, server: Server) -> MemoryEstimate | None:
    """Return the estimate of a server whose KV memory is full; None: it is not, or is unknown."""
    try:
        full = memory_estimate(workload, server)
    except InputError:  # no memory, or no estimate for such a workload
        return None
    return full if full.limit == "KV memory" else None


def saturated(workload: Workload, server: Server, *, requests: int | None = None) -> MemoryEstimate:
    """Return what a server does with more requests than it holds; see `memory_estimate`."""
    # The limit is KV memory where it has one.
    most = requests or _MOST * _REQUESTS
    requests = requests or _REQUESTS
    while True:
        run = _flood(workload, server, requests)
        running = _running(run, server)
        if requests >= 2 * _SETTLED * running or requests >= most:
            break
        requests *= 4
    rows = recorded(run.rows, "requests")
    order = np.argsort(rows.finish)[requests - run.finished :]  # those dropped come before
    finish = rows.finish[order]
    first = int(min(_SETTLED * running, finish.size // 2))
    last = int(max(finish.size - 2 * running, (first + finish.size) // 2)) - 1
    cuts = np.linspace(first, last, _PARTS + 1).astype(np.int64)
    left, seconds = np.diff(cuts).astype(float), np.diff(finish[cuts]) * run.tick_s
    preempted = np.diff(np.cumsum(rows.preempted[order])[cuts]).astype(float)
    preemptions, preemptions_interval = _ratio(preempted, left)
    if not seconds.any():  # all ran at once, and ended so
        left, seconds = np.full(_PARTS, finish.size), np.full(_PARTS, run.end * run.tick_s)
    rate, rate_interval = _ratio(left * requests / finish.size, seconds)
    token_load = run.tokens / run.n_batches
    limit: Literal["KV memory", "max batch size", "token budget"] = "KV memory"
    if server.memory is None:
        by_tokens = token_load > _BUDGET_BINDS * server.token_budget
        limit = "token budget" if by_tokens or server.most_requests is None else "max batch size"
    return MemoryEstimate(
        rate=rate,
        rate_interval=rate_interval,
        limit=limit,
        batch_time_s=run.busy * run.tick_s / run.n_batches,
        token_load=token_load,
        running=running,
        preemptions=preemptions,
        preemptions_interval=preemptions_interval,
        recomputed_share=run.recomputed_tokens / run.tokens,
    )


def _ratio(sums: Floats, counts: Floats) -> tuple[float, tuple[float, float]]:
    """Return what the parts of a flood say of the ratio of sums to counts, with its interval."""
    low, high = ratio_interval(sums, counts, _CONFIDENCE)
    return float(sums.sum() / counts.sum()), (max(low, 0.0), high)


def _flood(workload: Workload, server: Server, requests: int) -> Run:
    """Serve so many requests that are all there at once, of a recording any of its rows."""
    rng = np.random.default_rng(workload.seed)
    priority, declared = workload.priority, workload.declared
    if isinstance(workload.lengths, Recorded):
        rows = rng.integers(workload.lengths.prompt_tokens.size, size=requests)
        prompt, output = workload.lengths.prompt_tokens[rows], workload.lengths.output_tokens[rows]
        priority = None if priority is None else priority[rows]
        if declared is not None and not isinstance(declared, Length):
            declared = declared[rows]
    else:
        prompt, output = workload.lengths.sample(rng, requests)
    arrival_s = np.linspace(0, 1e-6, requests)
    flood = Workload.from_arrays(arrival_s, prompt, output, priority, declared, seed=workload.seed)
    return simulate(flood, server, requests=requests, record="requests", drain=True)


def _running(run: Run, server: Server) -> float:
    """Return the mean number of requests in a batch: those that decode, and one for each prompt."""
    mixes, batches = run.mixes
    decodes = float(np.sum((mixes & 0xFFFFFFFF) * batches))
    if server.policy.batching.outputs_per_decode > 1:  # then that counts drafts, too
        rows = recorded(run.rows, "requests")
        outputs = int(rows.output_tokens[rows.finish >= 0].sum()) - run.finished
        decodes = outputs / server.policy.batching.outputs_per_decode
    return (decodes + run.finished + run.preemptions) / run.n_batches
