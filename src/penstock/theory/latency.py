"""Instant estimates of latency, without simulation: the mean field of a server that decodes first.

See `penstock.theory.mean_field` for the equations. They describe Poisson arrivals, prompts in order
of arrival and cut anywhere, a max batch size and a KV memory that do not bind, and one server. The
estimate is a formula with an error, `InstantEstimate.ranges`, and no bound;
`penstock.theory.latency_bounds` has bounds.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from penstock.inputs.arrays import Floats
from penstock.inputs.caching import cached
from penstock.system.batch_time import BatchTime, Composition
from penstock.system.engines import ENGINES
from penstock.system.policies import POLICIES
from penstock.system.prefix_cache import as_serving
from penstock.system.server import Server
from penstock.theory import mean_field as field
from penstock.theory.hypotheses import refuse_without_rate
from penstock.theory.kv_blocks import drawn, reuses, served
from penstock.workload.arrivals import Poisson
from penstock.workload.pairs import Lengths
from penstock.workload.workload import Workload

HIGHEST_LOAD = 0.95
"""Load of full batches up to which errors are known."""

_LARGEST_FACTOR = 4.0  # off by so much, an estimate says nothing

# Quantile regression (98.5%, and .7 as much again) of the errors on 1,247 random servers: what
# |log(estimate / truth)| is at most, as the exponential of a sum of 1, the log of the variation of
# batch times, load^2, (pool / token budget)^2 min(8 / sqrt(pool), 1) and log E[P^2] / E[P]^2
# Of estimates too high, and too low.
_ERRORS = {
    "ttft_s": ((-2.59, -0.00, 0.79, 2.00, 0.47), (-3.05, 0.10, 2.31, 4.65, -0.22)),
    "tbt_s": ((-3.44, 0.23, 1.92, -2.09, 0.73), (-1.06, 0.50, 0.65, -1.17, -0.15)),
    "e2e_s": ((-3.82, 0.05, 2.52, -1.17, 0.55), (-2.28, 0.28, 2.10, 0.02, -0.21)),
}

# A step ahead decodes see fewer batches with long prompts than the mean field says: of 68 random
# servers 11 were below their ranges, 9 of them by less than this.
_LOWER_AHEAD = 0.1

_QUANTILES = np.concatenate([np.arange(32) / 32, 1 - 2.0 ** -np.arange(6, 12), [1.0]])
_SPREADS = 4.0  # a limit binds where the pool is within so many standard deviations of it


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
    dispersion
        Variance over the mean of the pool, beside the same prompt tokens.
    variation
        Variance of the batch times over their mean squared.
    attracts
        Whether a pool nearby comes back to it; else it goes to a fixed point beside.
    """

    pool: float
    batch_s: float
    full: float
    ttft_s: float
    tbt_s: float | None
    e2e_s: float
    dispersion: float
    variation: float
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
    ranges
        Lowest and highest seconds expected of each mean, by metric. On 98% of the random servers
        that were not used in the fit, all three means lay inside. Empty where no error is known.
    warnings
        Several fixed points, or why there is none, and what lies outside the hypotheses.
    """

    points: tuple[FixedPoint, ...]
    rho: float
    full_load: float
    ranges: dict[str, tuple[float, float]]
    warnings: tuple[str, ...]

    @property
    def band(self) -> float | None:
        """Largest relative error that the ranges leave to any of the means; None where none is
        known.
        """
        if not self.ranges:
            return None
        means = {name: float(getattr(self, name)) for name in self.ranges}
        above = (means[name] / low - 1 for name, (low, _) in self.ranges.items())
        return max(*above, *(1 - means[name] / high for name, (_, high) in self.ranges.items()))

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
        return {**means, "band": self.band, **dataclasses.asdict(self)}


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
    >>> workload = ps.Workload.poisson(5.0, ps.Geometric(129), ps.Geometric(112))
    >>> found = estimate_latency(workload, server)
    >>> round(found.rho, 2), len(found.points), round(found.band, 2)
    (0.36, 1, 0.13)
    """
    refuse_without_rate("estimate_latency", workload, server)
    server = as_serving(workload, server)
    work = served(workload, server)
    what = _about(work.lengths, server.convention)
    times = _tabulated(server.batch_time, server.most_tokens)
    terms = _terms(what, server)
    rate = workload.rate * work.share

    # What is known before any fixed point is looked for.
    tokens = what.prompt + what.decodes
    beside = float(terms[1:] @ (what.decodes, what.prompt, tokens / server.token_budget))
    rho, full_load = (rate * (tokens / carried + beside) for carried in (times.best, times.full))
    outside = _refused(workload, server)
    if full_load >= 1:
        outside = (
            f"full batches are asked for {full_load:.3f} times what they carry, so there may be "
            "no steady state; lower "
            "the rate, or raise the token budget"
        )
    if outside:
        return InstantEstimate((), rho, full_load, {}, (outside,))

    # The fixed points, and whether the lowest keeps clear of the limits.
    costs = field.Costs(times.sums, float(server.most_tokens), *terms.tolist())
    points = tuple(
        _point(point, what, server, rate) for point in field.fixed_points(what.at(rate), costs)
    )
    binds = (
        _binds(points[0], rate, what, server) if points else "no fixed point was found; simulate"
    )
    if binds:
        return InstantEstimate((), rho, full_load, {}, (binds,))
    doubts = _doubts(workload, points, full_load)
    if doubts:
        return InstantEstimate(points, rho, full_load, {}, doubts)

    # How far off the estimate may be.
    ranges = _ranges(points[0], full_load, what, server)
    doubt = _too_wide(points[0], ranges)
    if doubt:
        return InstantEstimate(points, rho, full_load, {}, (doubt,))
    return InstantEstimate(points, rho, full_load, ranges, ())


class _About(NamedTuple):
    """Lengths as the mean field takes them; moments of prompts P, decodes D and P + D."""

    lengths: field.Lengths
    prompt: float
    prompt_square: float
    decodes: float
    decodes_square: float
    square: float
    context: float  # tokens before a decode, on average
    context_square: float

    def at(self, rate: float) -> field.Work:
        """Return the work of so many requests/s."""
        moments = (self.prompt, self.prompt_square, self.decodes, self.decodes_square, self.square)
        return field.Work(self.lengths, rate, *moments)


class _Times(NamedTuple):
    """Running sums of t_b, and the tokens/s of the best batches and of full ones."""

    sums: Floats
    best: float
    full: float


@cached(64)
def _about(lengths: Lengths, convention: str) -> _About:
    prompt, output = (tokens.astype(np.float64) for tokens in drawn(lengths))
    # Near the capacity all depends on the means, and these are exact.
    prompt *= lengths.mean_prompt / prompt.mean()
    decodes = output * (lengths.mean_output / output.mean()) - (1 if convention == "engine" else 0)
    lags = np.array([(decodes > lag + 0.5).mean() for lag in range(field.LAGS)])
    late = decodes[decodes > field.LAGS + 0.5] - field.LAGS
    later = [late.size / decodes.size, late.mean()] if late.size else [0.0, 1.0]
    values = (*_values(prompt), *_values(decodes), lags, np.array(later))
    before = float((decodes * prompt + decodes * (decodes - 1) / 2).mean())
    before_square = float((decodes * prompt**2 + decodes**2 * prompt + decodes**3 / 3).mean())
    return _About(
        field.Lengths(*values),
        lengths.mean_prompt,
        float((prompt**2).mean()),
        max(float(decodes.mean()), 0.0),
        float((decodes**2).mean()),
        float(((prompt + decodes) ** 2).mean()),
        before / float(decodes.mean()) if decodes.any() else 0.0,
        before_square / float(decodes.mean()) if decodes.any() else 0.0,
    )


def _values(tokens: Floats) -> tuple[Floats, Floats]:
    """Return means between quantiles, most of them in the tail, and their weights."""
    edges = np.unique(np.round(tokens.size * _QUANTILES).astype(np.int64))
    counts = np.diff(edges)
    return np.add.reduceat(np.sort(tokens), edges[:-1]) / counts, counts / tokens.size


@cached(256)
def _tabulated(batch_time: BatchTime, budget: int) -> _Times:
    seconds = batch_time.by_tokens.table(budget)[1:]
    carried = np.arange(1, budget + 1) / seconds
    return _Times(
        np.concatenate([[0.0], np.cumsum(seconds)]), float(carried.max()), float(carried[-1])
    )


def _terms(what: _About, server: Server) -> Floats:
    """Return the seconds beside those by token load: of a decode alone and beside prefill, a prompt
    token, a batch.
    """
    model = server.batch_time
    if not isinstance(model, Composition):
        return np.zeros(4)
    per_decode = model.self_attention + model.per_request
    alone, mixed = (per_decode + of_token * what.context for of_token in model.of_decodes)
    # Tokens of a piece, seen by a token.
    pieces = min(what.prompt_square / what.prompt, float(server.token_budget))
    prompt = model.cross_attention * what.prompt_square / (2 * what.prompt)
    prompt += (
        max(model.self_attention - model.cross_attention / 2, 0.0) * pieces
        + model.per_request / what.prompt
    )
    return np.array([alone, mixed, prompt, model.with_prefill])


def _refused(workload: Workload, server: Server) -> str | None:
    """Return why nothing is known, before anything is computed."""
    policy = server.policy
    if not policy.has_mean_field:
        names = ", ".join(
            name for name, scheduler in (POLICIES | ENGINES).items() if scheduler.has_mean_field
        )
        return (
            f"no mean field is known for the policy {policy.name!r}, only where decodes come "
            f"first ({names})"
        )
    if server.order != "fcfs":
        return f"order {server.order!r}: the mean field knows prompts in order of arrival only"
    if reuses(workload, server):
        return "what prompts share by prefix caching is not known to the mean field"
    return None


def _binds(point: FixedPoint, rate: float, what: _About, server: Server) -> str | None:
    """Return the limit that keeps requests waiting, of which the mean field knows nothing."""
    pool = point.pool
    # And those whose prompt a batch takes, or whose last token is in flight.
    running = point.pool + rate * point.batch_s * (1 + server.policy.ahead)
    spread = _SPREADS * math.sqrt(running * point.dispersion)
    most = running + spread + 1
    slots = server.max_batch_size
    if pool + 2 > server.token_budget:
        return (
            f"about {pool:,.0f} requests decode at once, and the token budget of "
            f"{server.token_budget:,} leaves no "
            "room for prompts beside them; simulate, or raise it"
        )
    if slots is not None and slots < server.token_budget and most > slots:
        return (
            f"about {pool:,.0f} requests decode at once, too near the max batch size of "
            f"{slots:,}, at which others "
            "wait outside; simulate, or raise it"
        )
    if server.memory is not None and server.usable_blocks is not None:
        beside = 1 + server.memory.block_size / 2
        held = (running + 1) * (what.context + beside) + spread * (
            math.sqrt(what.context_square) + beside
        )
        kept = server.usable_blocks * server.memory.block_size
        if held > kept:
            return (
                f"about {held:,.0f} tokens are held at once at most, and the KV memory has "
                f"{kept:,}, so requests may "
                "wait for memory or be preempted; simulate, or raise it"
            )
    return None


def _point(point: field.Point, what: _About, server: Server, rate: float) -> FixedPoint:
    ttft = point.ttft
    decoding = point.decoding
    gaps = what.decodes
    e2e = ttft + decoding
    if server.convention == "paper":  # the first decode yields the first token
        ttft += point.first_decode
        decoding -= point.first_decode
        gaps -= 1
    if server.policy.ahead:
        # For a batch that was composed before they came, unless nobody is there: as likely as where
        # requests do not wait for each other.
        later = point.batch * -math.expm1(-rate * e2e)
        ttft += later
        e2e += later
    return FixedPoint(
        pool=point.pool,
        batch_s=point.batch,
        full=point.left,
        ttft_s=ttft,
        tbt_s=decoding / gaps if gaps > 1e-9 else None,
        e2e_s=e2e,
        dispersion=point.dispersion,
        variation=point.variation,
        attracts=not point.repels,
    )


def _ranges(
    point: FixedPoint, full_load: float, what: _About, server: Server
) -> dict[str, tuple[float, float]]:
    """Return in which seconds the means are expected."""
    varied = math.log(point.variation + 1e-3)
    crowded = min(point.pool / server.token_budget, 1.0) ** 2 * min(
        8 / math.sqrt(point.pool + 1e-9), 1.0
    )
    unlike = math.log(min(what.prompt_square / what.prompt**2, 30.0))
    causes = np.array([1.0, varied, full_load**2, crowded, unlike])
    lower = 1 - _LOWER_AHEAD * server.policy.ahead
    ranges = {}
    for name, (high, low) in _ERRORS.items():
        value = getattr(point, name)
        if value is not None:
            ranges[name] = (
                lower * value * math.exp(-math.exp(causes @ high)),
                value * math.exp(math.exp(causes @ low)),
            )
    return ranges


def _too_wide(point: FixedPoint, ranges: dict[str, tuple[float, float]]) -> str | None:
    """Return which mean may be so far off that the estimate says nothing."""
    for name, (low, high) in ranges.items():
        off = max(getattr(point, name) / low, high / getattr(point, name))
        if off > _LARGEST_FACTOR:
            return (
                f"mean {name[:-2].upper()} may be off by a factor of {off:.1f}, as on servers "
                "whose "
                "batches differ so much in length or are so full of decodes; simulate"
            )
    return None


def _doubts(
    workload: Workload, points: tuple[FixedPoint, ...], full_load: float
) -> tuple[str, ...]:
    """Return why no error is known."""
    doubts = []
    if len(points) > 1:
        pools = ", ".join(f"{point.pool:,.0f}" for point in points)
        doubts.append(
            f"{len(points)} fixed points, with {pools} requests in decode: batch times jump "
            "between them, and the "
            "server may stay near either or go to and fro; simulate"
        )
    if not isinstance(workload.arrivals, Poisson):
        doubts.append(f"{workload.describe()}: the mean field is that of Poisson arrivals")
    if full_load > HIGHEST_LOAD * (1 + 1e-9):
        doubts.append(
            f"a load of {full_load:.3f} is above {HIGHEST_LOAD}, up to which an error is known"
        )
    return tuple(doubts)
