"""Instant estimates of latency, without simulation: the mean field of a server that decodes first.

See `penstock.theory.mean_field` for the equations. They describe Poisson arrivals, prompts in order of arrival and cut
anywhere, a max batch size and a KV memory that do not bind, and one server. The estimate is a formula with an error,
`InstantEstimate.band`, and no bound; `penstock.theory.latency_bounds` has bounds.
"""

import dataclasses
import functools
import math
from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.system.batch_time import BatchTime, Composition
from penstock.system.engines import Engine
from penstock.system.policies import POLICIES
from penstock.system.server import Server
from penstock.theory import mean_field as field
from penstock.theory.hypotheses import refuse_without_rate
from penstock.theory.kv_blocks import drawn, reuses, served
from penstock.workload.arrivals import Poisson
from penstock.workload.pairs import Lengths
from penstock.workload.workload import Workload

Floats = npt.NDArray[np.float64]

DECODE_FIRST_POLICIES = ("sarathi", "vllm")
"""Policies whose mean field is known."""

BANDS = ((0.5, 0.1), (0.7, 0.12), (0.9, 0.2), (0.95, 0.35), (0.98, 0.4))
"""Up to this load (of full batches) mean TTFT, TBT and E2E were within this share of the simulated ones."""

_QUANTILES = 16
_MOST_POINTS = 7
_SPREADS = 3.0  # a limit binds where the pool is within so many standard deviations of it


@dataclasses.dataclass(frozen=True)
class FixedPoint:
    """A pool and a batch time that reproduce themselves.

    Attributes
    ----------
    pool
        Requests in decode, on average.
    batch_s
        Mean batch time, seconds.
    full
        Share of the batches that leave prompt tokens behind.
    ttft_s, tbt_s, e2e_s
        Mean latencies, seconds; no TBT where requests have one output token.
    attracts
        Whether a pool nearby comes back to it; else it goes to a fixed point beside.
    """

    pool: float
    batch_s: float
    full: float
    ttft_s: float
    tbt_s: float | None
    e2e_s: float
    attracts: bool


@dataclasses.dataclass(frozen=True)
class InstantEstimate:
    """Latency as the mean field has it.

    Attributes
    ----------
    points
        All fixed points, the lowest first; none where it says nothing.
    rho
        Offered tokens over the most that any batches carry, attention at its mean.
    full_load
        The same over what full batches carry.
    band
        Relative error to be expected of the means, from tests against simulation at this load (`BANDS`); None where
        none is known.
    warnings
        Several fixed points, or why there is none, and what lies outside the hypotheses.
    """

    points: tuple[FixedPoint, ...]
    rho: float
    full_load: float
    band: float | None
    warnings: tuple[str, ...]

    @property
    def ttft_s(self) -> float | None:
        """Mean TTFT at the lowest fixed point, seconds."""
        return self.points[0].ttft_s if self.points else None

    @property
    def tbt_s(self) -> float | None:
        """Mean time between tokens at the lowest fixed point, seconds."""
        return self.points[0].tbt_s if self.points else None

    @property
    def e2e_s(self) -> float | None:
        """Mean time from arrival to the last token at the lowest fixed point, seconds."""
        return self.points[0].e2e_s if self.points else None

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        means = {"ttft_s": self.ttft_s, "tbt_s": self.tbt_s, "e2e_s": self.e2e_s}
        return {**means, **dataclasses.asdict(self)}


def estimate_latency(workload: Workload, server: Server) -> InstantEstimate:
    """Estimate mean latencies at once, without simulation.

    Parameters
    ----------
    workload, server
        What arrives and what serves. Policies ``sarathi`` and ``vllm`` are known.

    Returns
    -------
    InstantEstimate
        Without fixed points, and with the reason, where the mean field says nothing.

    Raises
    ------
    InputError
        If the workload has no arrival rate, or a request can never be served.

    >>> import penstock as ps
    >>> server = ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, token_budget=512)
    >>> found = estimate_latency(ps.Workload.poisson(5.0, ps.Geometric(129), ps.Geometric(112)), server)
    >>> round(found.rho, 2), len(found.points), found.band
    (0.36, 1, 0.1)
    """
    refuse_without_rate("estimate_latency", workload, server)
    work = served(workload, server)
    what, times = _lengths(work.lengths, server.convention), _times(server.batch_time, server.most_tokens)
    terms = _terms(what, server)
    rate = workload.rate * work.share
    tokens = what.prompt + what.decodes
    beside = float(terms[1:] @ (what.decodes, what.prompt, tokens / server.token_budget))
    rho, full_load = (rate * (tokens / carried + beside) for carried in (times.best, times.full))
    outside = _refused(workload, server)
    if full_load >= 1:
        outside = (
            f"full batches are asked for {full_load:.3f} times what they carry, so there may be no steady state; lower "
            "the rate, or raise the token budget"
        )
    if outside:
        return InstantEstimate((), rho, full_load, None, (outside,))
    about = np.array([rate, what.prompt, what.prompt_square, what.decodes, what.decodes_square, what.square, *terms])
    rows = np.zeros((_MOST_POINTS, field.POINT_FIELDS))
    count = field.fixed_points(about, what.quantiles, times.sums, rows)
    points = tuple(_point(row, what, server) for row in rows[:count].tolist())
    binds = _binds(points[0], rate, what, server) if points else "no fixed point was found; simulate"
    if binds:
        return InstantEstimate((), rho, full_load, None, (binds,))
    return InstantEstimate(points, rho, full_load, *_judged(workload, points, full_load))


class _About(NamedTuple):
    """Quantiles of the prompt, shape (16,), with its mean; moments of prompts P, decodes D and P + D; E[gaps]."""

    quantiles: Floats
    prompt: float
    prompt_square: float
    decodes: float
    decodes_square: float
    square: float
    context: float  # tokens before a decode, on average


class _Times(NamedTuple):
    """Running sums of t_b, and the tokens/s of the best batches and of full ones."""

    sums: Floats
    best: float
    full: float


def _lengths(lengths: Lengths, convention: str) -> _About:
    return _cached_lengths(lengths, convention) if isinstance(lengths, Hashable) else _about(lengths, convention)


def _times(batch_time: BatchTime, budget: int) -> _Times:
    return _cached_times(batch_time, budget) if isinstance(batch_time, Hashable) else _tabulated(batch_time, budget)


def _about(lengths: Lengths, convention: str) -> _About:
    prompt, output = (tokens.astype(np.float64) for tokens in drawn(lengths))
    prompt *= lengths.mean_prompt / prompt.mean()  # near the capacity all depends on the means, and these are exact
    decodes = output * (lengths.mean_output / output.mean()) - (1 if convention == "engine" else 0)
    quantiles = np.quantile(prompt, (np.arange(_QUANTILES) + 0.5) / _QUANTILES)
    mean = lengths.mean_prompt
    before = float((decodes * prompt + decodes * (decodes - 1) / 2).mean())
    return _About(
        quantiles * (mean / quantiles.mean()),
        mean,
        float((prompt**2).mean()),
        max(float(decodes.mean()), 0.0),
        float((decodes**2).mean()),
        float(((prompt + decodes) ** 2).mean()),
        before / float(decodes.mean()) if decodes.any() else 0.0,
    )


def _tabulated(batch_time: BatchTime, budget: int) -> _Times:
    seconds = batch_time.by_tokens.table(budget)[1:]
    carried = np.arange(1, budget + 1) / seconds
    return _Times(np.concatenate([[0.0], np.cumsum(seconds)]), float(carried.max()), float(carried[-1]))


_cached_lengths = functools.lru_cache(maxsize=64)(_about)
_cached_times = functools.lru_cache(maxsize=256)(_tabulated)


def _terms(what: _About, server: Server) -> Floats:
    """Return the seconds beside those by token load: of a decode alone and beside prefill, a prompt token, a batch."""
    model = server.batch_time
    if not isinstance(model, Composition):
        return np.zeros(4)
    each = model.self_attention + model.per_request
    alone, mixed = (each + of_token * what.context for of_token in model.of_decodes)
    pieces = min(what.prompt_square / what.prompt, float(server.token_budget))  # tokens of a piece, seen by a token
    prompt = model.cross_attention * what.prompt_square / (2 * what.prompt)
    prompt += max(model.self_attention - model.cross_attention / 2, 0.0) * pieces + model.per_request / what.prompt
    return np.array([alone, mixed, prompt, model.with_prefill])


def _refused(workload: Workload, server: Server) -> str | None:
    """Return why nothing is known, before anything is computed."""
    policy = server.policy
    chunked = isinstance(policy, Engine) and policy.name == "vllm" and policy.work_conserving  # not so by its options
    if not (policy is POLICIES["sarathi"] or chunked):
        known = ", ".join(DECODE_FIRST_POLICIES)
        return f"no mean field is known for the policy {policy.name!r}, only where decodes come first ({known})"
    if server.order != "fcfs":
        return f"order {server.order!r}: the mean field knows prompts in order of arrival only"
    if reuses(workload, server):
        return "what prompts share by prefix caching is not known to the mean field"
    return None


def _binds(point: FixedPoint, rate: float, what: _About, server: Server) -> str | None:
    """Return the limit that keeps requests waiting, of which the mean field knows nothing."""
    pool, running = point.pool, point.pool + rate * point.batch_s  # and those whose prompt a batch takes
    most = running + _SPREADS * math.sqrt(running) + 1
    slots = server.max_batch_size
    if pool + 2 > server.token_budget:
        return (
            f"about {pool:,.0f} requests decode at once, and the token budget of {server.token_budget:,} leaves no "
            "room for prompts beside them; simulate, or raise it"
        )
    if slots is not None and slots < server.token_budget and most > slots:
        return (
            f"about {pool:,.0f} requests decode at once, too near the max batch size of {slots:,}, at which others "
            "wait outside; simulate, or raise it"
        )
    if server.memory is not None and server.usable_blocks is not None:
        held = most * (what.context + 1 + server.memory.block_size / 2)
        kept = server.usable_blocks * server.memory.block_size
        if held > kept:
            return (
                f"about {held:,.0f} tokens are held at once at most, and the KV memory has {kept:,}, so requests may "
                "wait for memory or be preempted; simulate, or raise it"
            )
    return None


def _point(row: list[float], what: _About, server: Server) -> FixedPoint:
    seen = row[field.SEEN]
    ttft, gaps = row[field.TTFT], what.decodes
    if server.convention == "paper":  # the first decode yields the first token
        ttft, gaps = ttft + seen, gaps - 1
    return FixedPoint(
        pool=row[field.POOL] * seen / row[field.TAU],
        batch_s=row[field.TAU],
        full=row[field.LEFT],
        ttft_s=ttft,
        tbt_s=seen if gaps > 0 else None,
        e2e_s=ttft + max(gaps, 0.0) * seen,
        attracts=not row[field.RISING],
    )


def _judged(
    workload: Workload, points: tuple[FixedPoint, ...], full_load: float
) -> tuple[float | None, tuple[str, ...]]:
    """Return the error to be expected, and what to beware of."""
    said = []
    if len(points) > 1:
        pools = ", ".join(f"{point.pool:,.0f}" for point in points)
        said.append(
            f"{len(points)} fixed points, with {pools} requests in decode: batch times jump between them, and the "
            "server may stay near either or go to and fro; simulate"
        )
    if not isinstance(workload.arrivals, Poisson):
        said.append(f"{workload.describe()}: the mean field is that of Poisson arrivals")
    band = next((share for load, share in BANDS if full_load <= load * (1 + 1e-9)), None)
    if band is None:
        said.append(f"a load of {full_load:.3f} is above {BANDS[-1][0]}, up to which an error is known")
    return (None if said else band), tuple(said)
