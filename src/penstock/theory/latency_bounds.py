"""Optimistic bounds: latencies that no policy undercuts, from the lengths and from the load.

**Of each request**, in every run. No token is processed before it arrives, batches come one after
another, and none takes less than t(b), the least time of any with b tokens or more (t_b, if that
rises).

* TTFT >= G(p), the least that all batches with tokens of a prompt of p may take together. One batch
  takes t(p). At least m = max(2, ceil(p / b_max)) of them take m a + s p, if t(b) >= a + s b for
  all b, with a >= 0; the best of some such lines counts. If t(i + j) <= t(i) + t(j) within the
  budget, several are never faster than one. Under convention ``paper`` a decode iteration follows.
* Time between tokens >= min t_b, and E2E >= G(p) + D min t_b, as each of D decodes is in a batch of
  its own.
* With attention (`Composition`), its least under any policy is added (`penstock.theory.attention`).

Hence the same quantiles of those numbers bound the quantiles. In a network a request comes to its
pool when all that it waits for have ended, its delay is over, and its KV memory is there where that
comes from another replica. Of replicas that differ the fastest counts, and of a prompt what is left
if all is found that may be. So along every way through a job these times add up, and after a join
the longest way counts, whatever the policies, orders, routers and loads.

**Of the mean, and of the quantiles of TBT, in a steady state**, where all that arrives is served.
With rate lambda, g gaps between tokens a request, x other tokens, u_b = t_b / b and r = min u_b,
let c = (1 - lambda x r) / (lambda g).

* A gap is no shorter than the batch that ends it. Charge u_b seconds to each token in a batch of b:
  in all 1 s per second at most, and r or more to each token that ends no gap, so c at most to each
  that does. The mean gap is thus at least the least mean of t_b over mixes of batches with mean u_b
  <= c: the lower convex hull of the points (u_b, t_b), at c.
* If a share q of the gaps is in batches of at most z seconds, q u + (1 - q) r <= c for the least
  u_b of those. So the quantile q is at least the least t_b of all b with u_b <= r + (c - r) / q.
* Poisson arrivals see time averages, so each waits on average for what is left of the batch that
  runs: the mean of t^2 / 2 per second, at least min over b of lambda (g + x) (t_b / 2 + gamma) u_b
  - gamma, for each gamma >= 0.
* Where Poisson arrivals have their prompts served in order of arrival: prompts alone, at 1 / r
  tokens/s without a pause, would be an M/G/1 queue with service times r p, and are never behind.
  TTFT is at least its time in system (Pollaczek, Khinchine).
* Mean E2E is mean TTFT and g times the mean gap.

They rise with the rate, so that those of a low rate hold at any. They are of one server that does
both phases.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.inputs.arrays import Floats, Ints
from penstock.inputs.caching import cached
from penstock.system import hull
from penstock.system.batch_time import BatchTime, Composition
from penstock.system.prefix_cache import as_serving
from penstock.system.server import Server
from penstock.theory.attention import attention_of, prefill_seconds
from penstock.theory.kv_blocks import (
    STANDARD_ERRORS,
    drawn,
    least,
    reuses,
    served,
)
from penstock.theory.load import refuse_without_rate
from penstock.workload.arrivals import Poisson
from penstock.workload.jobs import Jobs
from penstock.workload.lengths import Empirical, Lengths
from penstock.workload.means import released
from penstock.workload.workload import Workload

if TYPE_CHECKING:
    from penstock.system.network import Network

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
"""Names of the percentiles that are bounded beside the mean, and the share of samples below each.
"""

_LINES = 16
_TRIED = 2**14  # largest budget for which all ways to cut in two are compared
_MULTIPLIERS = np.r_[0.0, np.geomspace(1e-2, 1e7, 181)]  # gamma
_ROUNDING = 1e-9  # of sums; and simulated time comes in whole nanoseconds


def lower_bounds(workload: Workload, server: Server) -> Mapping[str, Mapping[str, float]]:
    """Return latencies that no policy undercuts in a steady state, seconds.

    Parameters
    ----------
    workload
        What arrives. At a rate near 0 the bounds hold for any rate, so for any number of replicas.
    server
        Limits and batch times. Its policy counts only in that prompts may be served in order of
        arrival.

    Returns
    -------
    Mapping
        By metric (``ttft_s``, ``tbt_s``, ``e2e_s``), then ``mean``, ``p50``, ``p90``, ``p95`` or
        ``p99``; those of TBT are of gaps, pooled over requests. Infinite means, and quantiles of
        TBT, where no policy is stable.

    Raises
    ------
    InputError
        If the workload has no arrival rate, or a request can never be served.

    >>> import penstock as ps
    >>> server = ps.Server(ps.Affine(c=0.010, a=1e-4), token_budget=512)
    >>> bounds = lower_bounds(ps.Workload.deterministic(1e-6, 1_000, 101), server)
    >>> chosen = bounds["ttft_s"]["p99"], bounds["tbt_s"]["mean"], bounds["e2e_s"]["mean"]
    >>> [round(bound, 4) for bound in chosen]
    [0.12, 0.0101, 1.13]
    """
    refuse_without_rate("lower_bounds", workload, server)
    server = as_serving(workload, server)
    work = least(served(workload, server), workload, server)
    # Of the requests alone, whose bounds are worked out once for all servers that are alike there.
    alike = server
    if server.policy.by_phase and server.memory is None:
        alike = Server(server.batch_time, server.token_budget, convention=server.convention)
    elif server.max_batch_size is not None:
        unlimited = dataclasses.replace(server, max_batch_size=None)
        if unlimited.most_tokens == server.most_tokens:
            alike = unlimited
    requests = _requests(work.lengths, alike, reuses(workload, server))
    ttft, e2e = dict(requests.ttft), dict(requests.e2e)

    # Of the load.
    gaps = requests.output - 1
    rate = workload.rate * work.share
    others = server.tokens_per_request(requests.prompt, requests.output) - gaps
    batches = _batches(server.batch_time, server.most_tokens)
    shortest = float(batches.seconds.min())
    tbt = _gaps(batches, rate, gaps, others)
    if isinstance(workload.arrivals, Poisson):
        ttft["mean"] += _running(batches, rate * (gaps + others))
        if server.by_phase:
            in_order = _queue(batches, rate, requests)
            if server.convention == "paper":
                in_order += shortest
            ttft["mean"] = max(ttft["mean"], in_order)
    e2e["mean"] = max(e2e["mean"], ttft["mean"] + gaps * tbt["mean"])
    rounded = 1 - _ROUNDING - 1e-9 / shortest
    metrics = {"ttft_s": ttft, "tbt_s": tbt, "e2e_s": e2e}
    return {
        metric: {name: bound * rounded for name, bound in bounds.items()}
        for metric, bounds in metrics.items()
    }


def request_bounds(
    prompt: Ints, output: Ints, server: Server, *, reused: bool = False
) -> tuple[Floats, Floats]:
    """Return TTFT and E2E, s, that each request needs in any case; shape (requests,) each."""
    # ``reused``: prompts may be found in a prefix cache, all but the tokens given.
    model, budget = server.batch_time, server.most_tokens
    shortest, lines, merges = _lines(model.by_tokens, budget)
    tokens = prompt.astype(np.float64)
    pieces = np.maximum(np.ceil(tokens / budget), 2.0)
    cut = np.zeros_like(tokens)
    for a, s in lines:  # a table of all of them would cost more than it says
        np.maximum(cut, pieces * a + s * tokens, out=cut)
    whole = shortest[np.minimum(prompt, budget)]
    if not merges:
        whole = np.minimum(whole, cut)
    first = np.where(prompt > budget, cut, whole)
    # Drafts that are right bring that many outputs more.
    decodes = np.ceil(
        (output - server.outputs_of_prefill) / (1 + server.policy.memory.drafted_tokens)
    )
    end = first + decodes * shortest[1]
    if isinstance(model, Composition):
        prefill, _ = prefill_seconds(tokens, model, budget)
        if reused:
            prefill = np.full_like(tokens, model.self_attention + model.per_request)
        first = first + model.with_prefill + prefill
        end = end + model.with_prefill + attention_of(prompt, output, server, reused=reused)[0]
    if server.convention == "paper":
        first = first + float(_batches(model, budget).seconds.min())
    return first, end


def earliest_ends(network: "Network", jobs: Jobs) -> Floats:
    """Return how long after the arrival of its job each request ends at the earliest, in any run.

    Parameters
    ----------
    network
        What serves.
    jobs
        As drawn for it.

    Returns
    -------
    Floats
        Shape (requests,), seconds.
    """
    alone = jobs.wait_s.copy()
    pool_of = network.stage_pool[jobs.stage]
    prompt = (jobs.prompt - network.found_at_most(jobs)).astype(np.int64)
    for index, pool in enumerate(network.pools.values()):
        here = np.flatnonzero((pool_of == index) & (jobs.prompt + jobs.output > 0))
        reused = bool((prompt[here] < jobs.prompt[here]).any())
        output = jobs.output[here].astype(np.int64)
        of_kinds = [_alone(server, prompt[here], output, reused) for server, _ in pool.servers]
        alone[here] += np.min(of_kinds, axis=0)
    parent, child = released(jobs)
    ends = alone.copy()
    while True:  # once for each request on the longest way
        later = ends.copy()
        np.maximum.at(later, child, ends[parent] + alone[child])
        if (later == ends).all():
            return ends
        ends = later


def earliest_of_jobs(network: "Network", jobs: Jobs) -> Floats:
    """Return how long each job takes at least, s; shape (jobs,)."""
    if not jobs.count:
        return np.zeros(0)
    return np.maximum.reduceat(earliest_ends(network, jobs), jobs.first_request[:-1])


def _alone(server: Server, prompt: Ints, output: Ints, reused: bool) -> Floats:
    """Return each request's least seconds at an idle server; shape (requests,)."""
    prefills = prompt > 0
    end = np.zeros(prompt.size)
    made = np.maximum(output[prefills], server.outputs_of_prefill)
    _, end[prefills] = request_bounds(prompt[prefills], made, server, reused=reused)
    # The others decode all of their outputs here, of drafts that may all be right.
    shortest = float(server.batch_time.by_tokens.table(server.most_tokens)[1:].min())
    decodes = np.ceil(output[~prefills] / (1 + server.policy.memory.drafted_tokens))
    end[~prefills] = decodes * shortest
    return end


class _Batches(NamedTuple):
    """Seconds of batches, and per token, shape (kinds,): all that no other undercuts in both."""

    seconds: Floats
    per_token: Floats
    mixes: Floats  # shape (corners, 2): least seconds over mixes by seconds per token


@cached(256)
def _batches(batch_time: BatchTime, budget: int) -> _Batches:
    """Return the batches up to a budget that no other undercuts."""
    seconds = batch_time.table(budget)[1:]
    per_token: Floats = seconds / np.arange(1, budget + 1)
    order = np.lexsort((per_token, seconds))
    seconds, per_token = seconds[order], per_token[order]
    # Longer batches only if they are cheaper per token.
    best = np.r_[True, per_token[1:] < np.minimum.accumulate(per_token)[:-1]]
    seconds, per_token = seconds[best], per_token[best]
    mixes = hull.corners(np.column_stack([per_token, seconds])[::-1])
    return _Batches(seconds, per_token, mixes)


@cached(256)
def _lines(
    batch_time: BatchTime, budget: int
) -> tuple[Floats, tuple[tuple[float, float], ...], bool]:
    """Return t(b), b = 0 .. budget, lines (a, s) below it, a >= 0, and whether one batch takes no
    longer than two.
    """
    shortest = np.r_[0.0, np.minimum.accumulate(batch_time.table(budget)[:0:-1])[::-1]]
    loads = np.arange(1, budget + 1)
    slopes = np.linspace(0.0, float((shortest[1:] / loads).min()), _LINES + 1)
    slopes = np.r_[slopes, min((shortest[-1] - shortest[1]) / max(budget - 1, 1), slopes[-1])]
    lines = tuple((max(float((shortest[1:] - s * loads).min()), 0.0), float(s)) for s in slopes)
    merges = budget <= _TRIED and all(
        (shortest[2 * i :] <= (shortest[i] + shortest[i : budget + 1 - i]) * (1 + _ROUNDING)).all()
        for i in range(1, budget // 2 + 1)
    )
    return shortest, lines, merges


class _Requests(NamedTuple):
    """What lengths alone say: statistics of `request_bounds`, mean tokens, least E[p], E[p^2]."""

    ttft: dict[str, float]
    e2e: dict[str, float]
    prompt: float
    output: float
    least_prompt: float
    least_prompt_square: float


@cached(256)
def _requests(lengths: Lengths, server: Server, reused: bool) -> _Requests:
    """Return what lengths alone say, of a sample on the safe side."""
    prompt, output = drawn(lengths)
    sampled = not isinstance(lengths, Empirical)
    first, end = request_bounds(prompt, output, server, reused=reused)
    return _Requests(
        _statistics(first, sampled),
        _statistics(end, sampled),
        lengths.mean_prompt,
        lengths.mean_output,
        *(_mean(prompt.astype(np.float64) ** power, sampled) for power in (1, 2)),
    )


def _statistics(seconds: Floats, sampled: bool) -> dict[str, float]:
    """Return mean and percentiles; of a sample four standard errors less."""
    spread = _spread(seconds, sampled)
    shares = [max(q - spread * math.sqrt(q * (1 - q)), 0.0) for q in PERCENTILES.values()]
    of = dict(zip(PERCENTILES, np.quantile(seconds, shares, method="lower").tolist(), strict=True))
    return {"mean": _mean(seconds, sampled), **of}


def _mean(values: Floats, sampled: bool) -> float:
    """Return the mean; of a sample four standard errors less."""
    spread = _spread(values, sampled)
    return max(float(values.mean()) - spread * float(values.std()), float(values.min()))


def _spread(values: Floats, sampled: bool) -> float:
    """Return four standard errors of a mean, in standard deviations; 0 where nothing is sampled."""
    return STANDARD_ERRORS / math.sqrt(values.size) * sampled


def _gaps(batches: _Batches, rate: float, gaps: float, others: float) -> dict[str, float]:
    """Return bounds of the time between tokens by load."""
    seconds, per_token, mixes = batches
    cheapest = float(per_token.min())
    if not gaps:
        return dict.fromkeys(("mean", *PERCENTILES), 0.0)
    left = (1 - rate * others * cheapest) / (rate * gaps)
    if left <= cheapest:
        return dict.fromkeys(("mean", *PERCENTILES), math.inf)
    bounds = {"mean": float(np.interp(left, *mixes.T))}
    for name, share in PERCENTILES.items():
        bounds[name] = float(seconds[per_token <= cheapest + (left - cheapest) / share].min())
    return bounds


def _running(batches: _Batches, tokens_per_s: float) -> float:
    """Return the least mean of what is left of the batch that runs when a request arrives."""
    seconds, per_token = batches.seconds, batches.per_token
    if tokens_per_s * float(per_token.min()) >= 1:
        return math.inf
    return float(
        max(
            tokens_per_s * float(((seconds / 2 + gamma) * per_token).min()) - gamma
            for gamma in (_MULTIPLIERS * float(seconds[0])).tolist()
        )
    )


def _queue(batches: _Batches, rate: float, requests: _Requests) -> float:
    """Return the mean time in system of an M/G/1 queue of the prompts alone (Pollaczek)."""
    per_token = float(batches.per_token.min())
    used = rate * per_token * requests.least_prompt
    if used >= 1:
        return math.inf
    return float(
        per_token * requests.least_prompt
        + rate * per_token**2 * requests.least_prompt_square / (2 * (1 - used))
    )
