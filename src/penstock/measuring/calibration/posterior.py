"""What rows say of parameters beside their priors: each row is simulated with its own load, and its
predicted times are brought near those that were measured (`most_probable`).
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from penstock.inputs.arrays import Floats
from penstock.measuring.calibration.build import Build
from penstock.measuring.calibration.laplace import Posterior, most_probable, slopes_of
from penstock.measuring.calibration.loads import Row, column_of, measured, saturated
from penstock.measuring.calibration.predict import Overhead, Requests, predict, requests_of
from penstock.measuring.calibration.priors import Prior, Priors
from penstock.system.server import Server

Sent = tuple[Row, Requests]

FITTED = ("ttft", "itl")
"""Metrics that are fitted, beside the whole request."""

_MOST_REQUESTS = 10_000  # of a row, while it is fitted: the rest tells little more
_FARTHEST = 3.0  # logarithm; what is further off, or never ends, counts as this far
_ODD = 3.0  # scales of its noise that a time is not off by chance
_ROUGH = 0.05  # logarithm; the least scale for that
_T90 = 2.132  # half of the 90% interval of Student's t with four degrees of freedom, in its scales
_N90 = 1.645  # and of a normal distribution
NOISE_90 = _T90 / _N90
"""Deviations of a normal distribution with the 90% interval of one scale of Student's t."""

# Metrics that get an interval, and whose noise they have.
_NOISE_OF = {"ttft": "ttft", "itl": "itl", "e2e": "itl", "requests_per_s": "itl"}


class Fit(NamedTuple):
    """What rows say of a server."""

    build: Build
    priors: Priors
    posterior: Posterior
    sent: Sequence[Sent]  # the rows that were fitted
    held: Mapping[str, str] = {}  # why other parameters were left out
    warning: str | None = None  # what is not certain of the limits

    @property
    def values(self) -> dict[str, float]:
        """The most probable value of each parameter."""
        return self.priors.values(self.posterior.mean)

    @property
    def deviations(self) -> dict[str, float]:
        """Standard deviation of the logarithm of each, given rows and priors."""
        return dict(zip(self.priors.of, self.posterior.deviations.tolist(), strict=True))

    @property
    def strained(self) -> list[str]:
        """The parameters that rows pull further from their priors than chance does."""
        usual = self.priors.normal
        far = np.abs(self.posterior.mean - usual.mean) > _ODD * usual.deviations
        return [name for name, is_far in zip(self.priors.of, far, strict=True) if is_far]

    @property
    def waiting(self) -> list[Row]:
        """The rows whose first tokens come later than noise explains; all if parameters are odd."""
        if self.strained:
            return [row for row, _ in self.sent]
        times, noise = (
            each[: 3 * len(self.sent)].reshape(-1, 3)
            for each in (self.posterior.misfits, self.posterior.noise)
        )
        whole = np.isnan(times[:, 0])  # the first token's time is known as part of the request's
        late = np.nan_to_num(times[:, 1]) - np.where(whole, times[:, 2], times[:, 0])
        late = np.where(np.isnan(late), self.posterior.misfits[3 * len(self.sent) :], late)
        odd = late > _ODD * np.maximum(np.where(whole, noise[:, 2], noise[:, 0]), _ROUGH)
        return [row for (row, _), far in zip(self.sent, odd, strict=True) if far]


class WholeRequests(NamedTuple):
    """What rows say of whole requests: TTFT, and the time of all tokens after the first.

    A scheduler that is not quite the one that ran moves time from one of the two to the other, but
    hardly their sum, which decides how many requests end in a second. The sum says the more that is
    new, the larger the share of TTFT: without it the time between tokens says the same.
    """

    parts: Floats  # shape (rows, 2), measured seconds of the two; NaN: not measured

    @classmethod
    def of(cls, seconds: Floats, outputs: Floats) -> "WholeRequests":
        """Return those of rows with TTFT and time between tokens, and so many output tokens."""
        return cls(seconds * np.column_stack([np.ones_like(outputs), outputs - 1.0]))

    @property
    def share(self) -> Floats:
        """Of TTFT in the time of a request; 1 where only the request was measured."""
        return np.asarray(np.nan_to_num(self.parts[:, 0] / self.parts.sum(axis=1), nan=1.0))

    def misfits(self, off: Floats, unstreamed: Floats | float = np.nan) -> Floats:
        """Return misfits of TTFT, time between tokens and requests of each row, row after row."""
        # ``off``: of the first two, NaN: not measured. ``unstreamed``: of requests, where one of
        # the two was not: without streaming a client sees only whole requests.
        whole = np.log((self.parts * np.exp(off)).sum(axis=1) / self.parts.sum(axis=1))
        whole = np.where(np.isnan(off).any(axis=1), unstreamed, whole)
        return np.column_stack([off, whole]).ravel()

    def noise(self, usual: Mapping[str, float]) -> Floats:
        """Return the noise of each misfit, in their order, where this is usual by metric."""
        noise = np.full((self.parts.shape[0], 3), usual["itl"])
        noise[:, 0] = usual["ttft"]
        noise[:, 2] /= np.sqrt(self.share)
        return noise.ravel()


def as_sent(rows: Sequence[Row], build: Build, priors: Priors, seed: int) -> list[Sent]:
    """Return rows with the requests that a benchmark of the usual server sends."""
    usual, _ = build(priors.values(priors.normal.mean))
    return [(row, requests_of(row, usual, seed, _MOST_REQUESTS)) for row in rows]


def fit_of(
    sent: Sequence[Sent],
    build: Build,
    priors: Priors,
    step: Callable[[], None] = lambda: None,
    start: Floats | None = None,
) -> Fit:
    """Return what rows say of a server; the search begins at ``start``, or at the priors.

    Of several kinds of server the one whose posterior costs least is the most probable.
    """
    # ``step`` is called before each simulation of the rows. The same random numbers are used
    # throughout, so differences come from the parameters.
    times = np.array([[measured(row, metric) or np.nan for metric in FITTED] for row, _ in sent])
    requests = WholeRequests.of(times, np.array([row["output_tokens"] for row, _ in sent]))
    # How many requests end says something where the time of one says little, or is not known.
    counts = [
        saturated(row) or not (measured(row, "ttft") or measured(row, "e2e")) for row, _ in sent
    ]
    usual = np.append(requests.noise(priors.noise), np.full(len(sent), priors.noise["itl"]))

    def misfits(theta: Floats, slower: float = 0.0) -> Floats:
        step()
        server, overhead = build(priors.values(theta))
        off = np.array([_off(one, _slowed(server, slower), overhead) for one in sent])
        carried = np.where(counts, off[:, 3], np.nan)
        return np.append(requests.misfits(off[:, :2], off[:, 2]), carried)

    def noise_at(theta: Floats) -> Floats:
        return _with_swing(usual, lambda slower: misfits(theta, slower), priors)

    # A row is fitted as far as its times go with batch times.
    posterior = most_probable(misfits, priors.normal, noise_at, start, priors.whole)
    return Fit(build, priors, posterior, sent)


def widened(fit: Fit, more: Mapping[str, Prior], step: Callable[[], None]) -> Fit:
    """Return what the rows of a fit say where there are further parameters."""
    priors = fit.priors.with_priors(more)
    start = priors.normal.mean.copy()
    start[: len(fit.priors.of)] = fit.posterior.mean
    return fit_of(fit.sent, fit.build, priors, step, start)._replace(warning=fit.warning)


def _off(sent: Sent, server: Server, overhead: Overhead) -> list[float]:
    """Return log(predicted / measured) of a row's metrics; NaN: not measured."""
    row, load = sent
    predicted = predict(load, server, overhead)
    off = []
    for metric in (*FITTED, "e2e", "requests_per_s"):
        known, value = measured(row, metric), predicted[column_of(row, metric)]
        never = -_FARTHEST if metric == "requests_per_s" else _FARTHEST
        far = np.log(value / known) if known and value > 0 else never
        off.append(float(np.clip(far, -_FARTHEST, _FARTHEST)) if known else np.nan)
    return off


def _slowed(server: Server, slower: float) -> Server:
    """Return a server whose batches take longer, by so much of their logarithm."""
    if not slower:
        return server
    longer = server.batch_time.scaled(float(np.exp(slower)))
    return dataclasses.replace(server, batch_time=longer)


def _with_swing(noise: Floats, logs: Callable[[float], Floats], priors: Priors) -> Floats:
    """Return the noise of some times, of which a queue makes more than of batch times.

    ``logs``: their logarithms, with batches that take longer by so much of theirs. Near what a
    server carries, and beyond, TTFT moves by several times what batch times do, so what no
    parameter explains of these moves it as far.
    """
    batches = priors.noise["itl"]
    swing = np.abs(logs(batches) - logs(-batches)) / 2
    more = np.maximum(np.nan_to_num(swing, nan=0.0, posinf=0.0) ** 2 - batches**2, 0.0)
    return np.asarray(np.sqrt(noise**2 + more))


def with_intervals(table: pl.DataFrame, fit: Fit, sent: Sequence[Sent]) -> pl.DataFrame:
    """Return judged rows with the 90% interval of each prediction, in seconds.

    Of calibration, and of what no parameter explains: more where no row of its shape was fitted.
    """
    posterior, priors = fit.posterior, fit.priors
    shapes = {row["shape"] for row, _ in fit.sent}

    def interval(row: Row, load: Requests) -> dict[str, float | None]:
        def logs(theta: Floats, slower: float = 0.0) -> Floats:
            server, overhead = fit.build(priors.values(theta))
            predicted = predict(load, _slowed(server, slower), overhead)
            return np.log([predicted[column_of(row, metric)] for metric in _NOISE_OF])

        near = logs(posterior.mean)
        slopes = slopes_of(logs, posterior.mean, near)
        spread = np.einsum("mi,ij,mj->m", slopes, posterior.covariance, slopes)
        more = dict.fromkeys(priors.unseen, 1.0) if row["shape"] in shapes else priors.unseen
        usual = np.array([priors.noise[kind] * more[kind] for kind in _NOISE_OF.values()])
        noise = _with_swing(usual, lambda slower: logs(posterior.mean, slower), priors)
        answer: dict[str, float | None] = {}
        for metric, middle, variance, stray in zip(_NOISE_OF, near, spread, noise, strict=True):
            half = float(np.hypot(_N90 * np.sqrt(variance), _T90 * stray))
            known = bool(np.isfinite(middle) and np.isfinite(half))
            answer[f"{metric}_low"] = float(np.exp(middle - half)) if known else None
            answer[f"{metric}_high"] = float(np.exp(middle + half)) if known else None
        return answer

    names = [f"{metric}_{end}" for metric in _NOISE_OF for end in ("low", "high")]
    entries = [interval(row, load) for row, load in sent]
    return table.hstack(pl.DataFrame(entries, schema=dict.fromkeys(names, pl.Float64)))
