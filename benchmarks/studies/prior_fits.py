"""Fit how far off shapes usually are: the sections of `measuring/calibration/shape_priors.yaml`.

    python benchmarks/studies/prior_fits.py ../shared/data vllm sglang trtllm

Every deployment of InferenceX with six points or more is fitted to up to ten of them, with priors
so wide that they say next to nothing. What its parameters and their uncertainty are then says how
far they spread between deployments (expectation and maximisation on a normal distribution of
logarithms, with four deployments more that spread as kernels and hosts are taken to: a dozen say
little of what they hardly identify).
What no parameter explains is the noise. Qwen3-32B and the B200 are left out, and rows that say more
FLOP/s than the units have; no other deployment, and no value is set by hand. Nothing is read from
the file that is to be written.
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl
from deployments import Deployment, candidates, deployments
from how_far_off import ENGINES_HERE, TOO_FAST, busy_share

from penstock.inputs.arrays import Floats
from penstock.measuring.calibration.laplace import FREEDOM, Normal, Posterior
from penstock.measuring.calibration.quantities import ADJUSTMENTS
from penstock.system.models.adjusted import KNOTS
from penstock.system.models.hosts import engine_fit

NAMES = tuple(ADJUSTMENTS)
WIDE = 0.5  # deviation of the logarithm of a factor that says next to nothing
WIDE_SECONDS = 1.5  # of the logarithm of seconds
TAKEN, TAKEN_SECONDS = 0.2, 1.0  # what the further deployments spread by
TAKEN_MEMORY = 0.1  # of the logarithm of KV memory, always: few points are short of it
FURTHER = 4  # deployments
BATCH_S, STREAM_S = 3e-4, 3e-6
"""Seconds of the host around which fits begin, and of the four deployments more; what it adds to a
request's TTFT is in `hosts.yaml`."""
WEIGHTS = {"vllm": {"ttft": 0.1, "itl": 0.05}}
OTHER_WEIGHTS = {"ttft": 0.4, "itl": 0.05}
"""Noise of TTFT and time per output token while deployments are fitted: round numbers."""
TOGETHER = tuple(NAMES.index(name) for name in KNOTS)
"""Factors by token load go together: a kernel that is slow at one load is slow near it."""
CENTRED = tuple(NAMES.index(name) for name in ("host", "per_stream", "overhead"))
"""Seconds, whose usual value is sought; factors are usually 1."""
MOST = 10  # points of a deployment, at equal distances: more would take hours
ROUNDS = 200
ELSEWHERE = {"sglang": 0.0277, "tensorrt-llm": 0.052}
"""Seconds of a request in front of an engine as another benchmark has them, whose clients and
servers were others. Two say little of a third: the prior lies between, as wide as both."""
LEFT_OUT = pl.col("model_path").str.contains("Qwen3-32B") | (pl.col("system") == "b200_sxm")


def begin(engine: str) -> Floats:
    """Return the logarithms around which fits begin: factors of 1, and the seconds of a host."""
    mean = np.zeros(len(NAMES))
    mean[list(CENTRED)] = np.log([BATCH_S, STREAM_S, engine_fit(engine).host.front_s])
    return mean


def fitted(data: Path, backend: str) -> list[tuple[Deployment, Posterior]]:
    """Return each deployment with what all of its points say."""
    prior = spread_by(begin(ENGINES_HERE[backend]), WIDE, WIDE_SECONDS)
    noise = WEIGHTS.get(backend, OTHER_WEIGHTS)
    answers = []
    for points in deployments(data, (pl.col("backend") == backend) & ~LEFT_OUT):
        possible = [point for point in points if busy_share(point, data) < TOO_FAST]
        possible = possible[:: -(-len(possible) // MOST)]
        everything = list(range(len(possible)))
        shapes = candidates(data, possible)
        fits = [(shape, shape.fit(everything, prior, noise)) for shape in shapes]
        best = min(fits, key=lambda fit: fit[1].cost)
        answers.append(best)
        values = best[1].mean.round(2).tolist()
        print(best[0].name, len(possible), values, file=sys.stderr, flush=True)
    return answers


def spread_by(mean: Floats, factors: float, seconds: float) -> Normal:
    """Return independent logarithms that spread so."""
    spread = np.full(mean.size, factors)
    spread[list(CENTRED)] = seconds
    spread[NAMES.index("kv_memory")] = TAKEN_MEMORY
    return Normal(mean, np.diag(spread**2))


def usual(fits: list[Posterior], prior: Normal) -> Normal:
    """Return the distribution of parameters between deployments, fitted with that prior."""
    taken = spread_by(prior.mean, TAKEN, TAKEN_SECONDS)
    wide = np.linalg.inv(prior.covariance)
    told = [np.linalg.inv(fit.covariance) - wide for fit in fits]
    # What a deployment hardly says moves nothing: the fit is where it pulls to, and not what lies
    # beyond, where the wide prior kept it from.
    pulls = [information @ fit.mean for information, fit in zip(told, fits, strict=True)]
    mean, covariance = prior.mean.copy(), prior.covariance.copy()
    free = np.zeros_like(covariance, dtype=bool)
    np.fill_diagonal(free, val=True)
    free[np.ix_(TOGETHER, TOGETHER)] = True
    for _ in range(ROUNDS):
        tight = np.linalg.inv(covariance)
        left = [np.linalg.inv(information + tight) for information in told]
        means = [each @ (pull + tight @ mean) for each, pull in zip(left, pulls, strict=True)]
        seconds = list(CENTRED)
        total = np.sum(means, axis=0) + FURTHER * prior.mean
        mean[seconds] = total[seconds] / (len(fits) + FURTHER)
        away = [one - mean for one in means]
        outer = [each + np.outer(far, far) for each, far in zip(left, away, strict=True)]
        total = np.sum(outer, axis=0) + FURTHER * taken.covariance
        covariance = np.where(free, total / (len(fits) + FURTHER), 0.0)
    return Normal(mean, covariance)


def noise_of(fits: list[Posterior], metric: int) -> float:
    """Return the scale of Student's t of what parameters do not explain."""
    off = np.concatenate([fit.misfits.reshape(-1, 3)[:, metric] for fit in fits])
    off = off[np.isfinite(off)]
    parameters = sum(_spent(fit) for fit in fits) / 2
    scale = 0.1
    for _ in range(ROUNDS):
        weights = (FREEDOM + 1) / (FREEDOM + (off / scale) ** 2)
        scale = float(np.sqrt((weights * off**2).sum() / max(off.size - parameters, 1)))
    return scale


def _spent(fit: Posterior) -> float:
    """Return how many parameters the points decide, rather than the wide prior."""
    return float((fit.deviations < WIDE / 2).sum())


def between_benchmarks(here: Normal, front_s: float | None) -> Normal:
    """Return the distribution where another benchmark had such a front end."""
    if front_s is None:
        return here
    place = NAMES.index("overhead")
    apart = (np.log(front_s) - here.mean[place]) / 2
    mean, covariance = here.mean.copy(), here.covariance.copy()
    mean[place] += apart
    covariance[place, place] += apart**2
    return Normal(mean, covariance)


def section(backend: str, both: list[tuple[Deployment, Posterior]]) -> str:
    """Return what `shape_priors.yaml` says of an engine, from fits of its deployments."""
    engine = ENGINES_HERE[backend]
    fits = [fit for _, fit in both]
    answer = usual(fits, spread_by(begin(engine), WIDE, WIDE_SECONDS))
    answer = between_benchmarks(answer, ELSEWHERE.get(engine))
    points = sum(len(deployment.points) for deployment, _ in both)
    what = f"{len(fits)} deployments of {engine_fit(engine).title} on H100 and H200 in InferenceX"
    lines = [f"{engine}:", f"  source: {what}, {points} points", "  priors:"]
    for name, mean, deviation in zip(NAMES, answer.mean, answer.deviations, strict=True):
        lines.append(f"    {name}: [{np.exp(mean):.3g}, {np.exp(deviation):.3g}]")
    lines.append(f"  together: {_correlations(answer.covariance)}")
    lines.append(f"  noise: {{ttft: {noise_of(fits, 0):.3f}, itl: {noise_of(fits, 1):.3f}}}")
    return "\n".join(lines)


def main() -> None:
    """Print a section for each engine."""
    for backend in sys.argv[2:]:
        print(section(backend, fitted(Path(sys.argv[1]), backend)), flush=True)


def _correlations(covariance: Floats) -> list[float]:
    block = covariance[np.ix_(TOGETHER, TOGETHER)]
    scale = np.sqrt(np.diag(block))
    shares = block / np.outer(scale, scale)
    return [round(float(shares[i, j]), 2) for i, j in ((0, 1), (1, 2), (0, 2))]


if __name__ == "__main__":
    main()
