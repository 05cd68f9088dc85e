"""How many requests does a run need for its latency to be known well enough?"""

import dataclasses
import math
from collections.abc import Callable, Sequence

from penstock import checks
from penstock.checking.batch_means import GAP_SECTIONS, checked_confidence
from penstock.checking.latency import SteadyState, judged, steady_state
from penstock.checking.targets import Target
from penstock.checking.verdict import verdict
from penstock.simulation.progress import Progress, part_of
from penstock.simulation.run import TICK_S, Run, checked_tick
from penstock.simulation.simulate import RunOptions, length_of_run, run_server
from penstock.system.kinds import refuse_all_but_a_server, refuse_guarded
from penstock.system.server import Server
from penstock.theory.limits import bounds
from penstock.theory.load import load, refuse_without_rate
from penstock.workload.workload import Workload

MOST_TIMES_LONGER = 16
"""How many times the requests asked for a run may have, to become precise or to decide targets."""

_MOST_DRIFT = 0.999
_AT_ONCE = 20_000  # requests


def estimate(
    workload: Workload,
    server: Server,
    *,
    requests: int | None = None,
    precision: float | None = None,
    targets: Sequence[Target] = (),
    confidence: float = 0.95,
    rho: float | None = None,
    most_requests: int | None = None,
    tick_s: float = TICK_S,
    progress: Progress | None = None,
) -> tuple[Run, SteadyState]:
    """Simulate until the latency of the steady state is known well enough, or the budget is spent.

    While a mean is less precise than asked for or a target undecided, the number of requests
    doubles; with the same seed a longer run begins with the shorter one. Return the last run, with
    a row per request, and what it says.

    Parameters
    ----------
    workload, server
        What arrives and what serves. A recording is never longer than it is: intervals are for it
        gone on with.
    requests
        To begin with; default: the whole recording.
    precision
        Largest half-width of the interval of any mean, over its value; 0.05 is 5%.
    targets
        To be decided.
    confidence
        How often the interval of a statistic holds its value, whenever the simulation stops.
    rho
        Rate over the rate that the server can carry under its policy and limits. Default: as
        `penstock.verdict` finds.
    most_requests
        Budget; default: `MOST_TIMES_LONGER` times ``requests``.
    tick_s, progress
        As in `penstock.simulate`.

    Raises
    ------
    InputError
        If a value cannot be used.
    """
    refuse_all_but_a_server("estimate", workload, server)
    refuse_guarded((workload, server))
    tick_s = checked_tick(tick_s)
    confidence = checked_confidence(confidence)
    begin = length_of_run(workload, requests, None)
    begin = checks.whole("requests", begin, 1, 10**9, "", "each keeps a row in memory")
    precision = checked_precision(precision)
    budget = _budget(workload, begin, most_requests)
    drain = workload.rows is not None or load(workload, server).rho <= 1

    def simulated(count: int, part: Progress) -> Run:
        options = RunOptions(drain=drain, tick_s=tick_s, progress=part)
        return run_server(workload, server, count, options, gap_sections=GAP_SECTIONS)

    if rho is None:
        rho = 1 / (1 - min(verdict(workload, server, seed=workload.seed).drift, _MOST_DRIFT))
    return until_known(
        simulated, begin, budget, targets, [rho], precision, confidence=confidence,
        progress=progress,
    )  # fmt: skip


def until_known(
    simulated: Callable[[int, Progress], Run],
    begin: int,
    budget: int,
    targets: Sequence[Target],
    rho: Sequence[float] | None,
    precision: float | None = None,
    *,
    confidence: float = 0.95,
    progress: Progress | None = None,
) -> tuple[Run, SteadyState]:
    """Simulate twice as much while what was asked for is not known: see `estimate`.

    ``rho`` is that of each pool; None: not known.
    """
    # Nothing more is told where no less arrives than is carried.
    if (precision is None and not targets) or max(rho or [0.0]) >= 1:
        budget = begin
    # Who looks several times is wrong more often, so each interval has the confidence
    # 1 - (1 - confidence) / looks, and all looks together the one asked for (Bonferroni).
    looks = 1 + math.ceil(math.log2(budget / begin))
    level = 1 - (1 - confidence) / looks
    count = begin
    while True:
        part = part_of(progress, 0.0, count / budget)
        run = simulated(count, part)
        steady = steady_state(run, targets=targets, rho=rho, confidence=level)
        missing = _missing(steady, precision, targets)
        if not missing or count >= budget:
            break
        count = min(2 * count, budget)
    notices = steady.notices
    if missing:
        unit = "requests" if isinstance(run.system, Server) else "jobs"
        said = f"{run.arrived:,} {unit} were not enough to {' or to '.join(missing)}"
        notices = (*notices, said)
    return run, dataclasses.replace(steady, confidence=confidence, notices=notices)


def estimate_latency(workload: Workload, server: Server) -> SteadyState:
    """Estimate the latency of the steady state at once, by a run of 20,000 requests.

    That takes about 0.1 s. The intervals say how much so few requests leave open. Near the highest
    rate they are too few: then no interval has an upper end, `notices` say what run would do, and
    `penstock.estimate` makes it.

    Parameters
    ----------
    workload, server
        What arrives and what serves. Of a recording its first 20,000 requests, at its rate.

    Returns
    -------
    SteadyState
        The same each time: the run is that of the workload's seed.

    Raises
    ------
    InputError
        If the workload has no arrival rate, or a request can never be served.

    Examples
    --------
    >>> import penstock as ps
    >>> server = ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, token_budget=512)
    >>> workload = ps.Workload.poisson(10.0, ps.Geometric(129), ps.Geometric(112))
    >>> mean = ps.estimate_latency(workload, server).estimates["ttft_s"]["mean"]
    >>> round(mean.value, 3), round(mean.low, 3), round(mean.high, 3)
    (0.18, 0.176, 0.192)
    """
    refuse_without_rate("estimate_latency", workload, server)
    requests = min(_AT_ONCE, workload.rows or _AT_ONCE)
    limits = bounds(load(workload, server))
    rho = workload.rate / min(bound.max_rate for bound in limits)
    return estimate(workload, server, requests=requests, rho=rho)[1]


def _budget(workload: Workload, requests: int, most_requests: int | None) -> int:
    """Return the most requests of a run that begins with so many."""
    budget = MOST_TIMES_LONGER * requests if most_requests is None else most_requests
    budget = checks.whole(
        "most_requests", budget, requests, 10**11, "", "the first run already has `requests`"
    )
    if workload.rows is None:
        return budget
    return min(budget, max(workload.rows, requests))


def checked_precision(precision: float | None) -> float | None:
    """Return to what means are to be known, if it is a share."""
    if precision is None:
        return None
    why = "it is a share of the mean; 0.05 is 5%"
    return checks.number("precision", precision, 1e-4, 1.0, "", why)


def _missing(steady: SteadyState, precision: float | None, targets: Sequence[Target]) -> list[str]:
    """Say what the run was asked for and did not give."""
    answers = [judged(target, steady) for target in targets]
    missing = [f"decide {one.target}" for one in answers if one.judgement == "undecided"]
    if precision is not None and not steady.precision <= precision:
        missing.insert(0, f"know every mean to {precision:.3g} of its value")
    return missing
