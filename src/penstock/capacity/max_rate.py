"""The highest rate at which a policy is stable: a search over verdicts, on the same requests at
every rate; of a server in requests/s, of a network in times its load.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

from penstock import checks
from penstock.capacity.target_rate import (
    REQUESTS,
    TargetRate,
    judge_of_network,
    judge_of_server,
    refuse_if_never,
    target_rate,
)
from penstock.checking.answer import MOST_JOBS
from penstock.checking.check_server import RunAsked
from penstock.checking.doubt import ends_of
from penstock.checking.stability import RECORDED, Stability
from penstock.checking.targets import Target, parsed_targets, refuse_gaps_of_one_token
from penstock.checking.verdict import verdict
from penstock.errors import InputError
from penstock.show.answers import AsData, Meaning, Shown, computed
from penstock.show.page import Section
from penstock.simulation.progress import Progress, in_parts, part_of
from penstock.system.kinds import System, as_network, asked_about, refuse
from penstock.system.server import Server
from penstock.theory.certificate import Certificate
from penstock.theory.certify import certify
from penstock.theory.ends import Ends
from penstock.workload.workload import Workload

if TYPE_CHECKING:
    from penstock.system.network import Network

SIMULATION = "simulation"
"""What is known by no theorem."""

_figures = "{:,.4g}".format
_HIGHEST = Section("Highest rate")

_PER_S = "requests/s"
_HALVINGS = 40
_STABLE_SHARE = 0.2  # of the work, where there are targets
_GUIDED = 6  # trials that go by the drift of those before; then halves are taken


@dataclasses.dataclass(frozen=True, eq=False)
class Trial(AsData):
    """A rate that was tried, and what was found."""

    rate: Annotated[float, Meaning("Requests/s, or times the load.", of_network="load")]
    stability: Annotated[Stability, Meaning("What the test says there.", key=None)]

    @computed()
    def verdict(self) -> str:
        """What the test says there."""
        return self.stability.verdict

    @computed()
    def drift(self) -> float:
        """Share of the arriving work by which a large backlog grows; below 0 it shrinks."""
        return self.stability.drift

    @property
    def is_network(self) -> bool:
        """Whether it is a load of a network."""
        return bool(self.stability.floods)


@dataclasses.dataclass(frozen=True)
class RateAtEnds:
    """The highest rate at both ends of the batch times."""

    rate: Annotated[list[float], Meaning("At the slow and at the fast end.", of_network="load")]
    bound: Annotated[list[float], Meaning("Likewise.")]
    origin: Annotated[str, Meaning("What the interval comes from.")]
    is_network: bool


def _of_ends(ends: "Ends[MaxRate] | None") -> RateAtEnds | None:
    """Return what JSON has of both ends of the batch times."""
    if ends is None:
        return None
    slow, fast = ends.slow, ends.fast
    both = [slow.rate, fast.rate], [slow.bound, fast.bound]
    return RateAtEnds(*both, ends.origin, slow.is_network)


@dataclasses.dataclass(frozen=True, eq=False)
class MaxRate(Shown):
    """How much a server carries under its policy, in requests/s; or a network, in times its load,
    in JSON with ``load`` for ``rate``.
    """

    rate: Annotated[
        float,
        Meaning(
            "Highest rate known to be stable: certified by a theorem, or found so.",
            _HIGHEST,
            "Stable up to",
            format=_figures,
            of_network="load",
        ),
    ]
    above: Annotated[
        float,
        Meaning(
            "Lowest rate above it that is not: unstable, too close to the limit to tell, or beyond "
            "the bound; equal to ``rate`` where theorems leave nothing between them.",
            _HIGHEST,
            "Not at",
            format=_figures,
        ),
    ]
    known: Annotated[
        str,
        Meaning(
            "The theorem that says stable up to ``rate``, or ``simulation``.",
            _HIGHEST,
            "Known by",
            spare=1,
        ),
    ]
    certificate: Annotated[
        Certificate,
        Meaning(
            "What theory says far below the limits; its ``max_rate`` is the bound of every policy, "
            "in jobs/s.",
            key=None,
        ),
    ] = dataclasses.field(repr=False)
    trials: Annotated[tuple[Trial, ...], Meaning("The rates tried, in order.")] = dataclasses.field(
        repr=False
    )
    targets: Annotated[
        TargetRate | None,
        Meaning(
            "Up to which rate the targets hold, with the middle batch times; None where there are "
            "none."
        ),
    ] = None
    ends: Annotated[
        Ends["MaxRate"] | None,
        Meaning(
            "The same at the slow and the fast end of the batch times; None: they are taken as "
            "exact.",
            data=_of_ends,
        ),
    ] = dataclasses.field(default=None, repr=False)
    unit: Annotated[str, Meaning("What rates are in.")] = _PER_S
    per_s: Annotated[float, Meaning("Requests, or jobs, a second at a rate of 1.", key=None)] = (
        dataclasses.field(default=1.0, repr=False)
    )

    @computed(_HIGHEST, "Any policy", format=_figures)
    def bound(self) -> float:
        """Rate above which no policy is stable, even if requests find all of their prompts that
        they may.
        """
        return self.certificate.max_rate / self.per_s

    @computed(_HIGHEST, "Share", format="{:.1%}".format, spare=2)
    def share(self) -> float:
        """The rate as a share of the bound."""
        return self.rate / self.bound

    @computed(_HIGHEST, "Certified to", format=_figures, key="certified_rate",
              of_network="certified_load")  # fmt: skip
    def certified(self) -> float | None:
        """Rate up to which a theorem says stable, None where none does at any."""
        rate = self.certificate.certified_rate
        return None if rate is None else rate / self.per_s

    @computed()
    def disagreement(self) -> str | None:
        """What to doubt where a theorem certifies a rate that the test found unstable, or None."""
        unstable = [trial.rate for trial in self.trials if trial.verdict == "unstable"]
        if self.certified is None or not unstable or min(unstable) >= self.certified:
            return None
        doubt = "the seed, or Penstock itself; try another seed and a finer precision"
        if self.certificate.trusted:
            doubt = f"what was taken on trust: {', '.join(self.certificate.trusted)}"
        return (
            f"{self.certificate.theorem} says stable up to {self.certified:,.4g} {self.unit}, but "
            f"the test found {min(unstable):,.4g} unstable; in doubt is {doubt}"
        )

    @computed()
    def arrivals(self) -> int:
        """Requests, or jobs, that arrived while backlogs were watched."""
        return sum(trial.stability.arrivals for trial in self.trials)

    @property
    def is_network(self) -> bool:
        """Whether rates are loads of a network."""
        return self.unit != _PER_S


def max_rate(
    workload: "Workload | Network",
    server: Server | None = None,
    *,
    precision: float | None = None,
    alpha: float | None = None,
    seed: int = 0,
    targets: Sequence[Target | str] = (),
    requests: int | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> MaxRate:
    """Find the highest stable rate of a server, or the highest stable load of a network, for any
    policy.

    What a theorem certifies is not simulated, unless it takes something on trust: the search is for
    more than that. It begins just below the rate above which no policy is stable. The drift of a
    backlog says how much was served, and so where the limit may be: the next rates are half the
    precision below and above that. Every rate is judged on the same requests, closer or further
    apart (common random numbers), at half the precision as resolution. A rate too close to the
    limit to be told counts as not stable.

    Parameters
    ----------
    workload, server
        What arrives, at whatever rate, and what serves; or a network alone, all of whose arrival
        rates are multiplied by one factor.
    precision
        Relative distance that may be left. Default: 0.01, of a network 0.05. It lies between
        ``rate`` and ``above``.
    alpha, seed
        As in `verdict`.
    targets
        Upper limits of latencies, such as ``ttft_p99<2s``, to be met at once. The highest rate at
        which they are is looked for, too. In a network TTFT is of the calls at each stage, E2E of
        the jobs of each workflow.
    requests
        Of a server with targets: arrivals of the first run at each rate. Default: 20,000, of a
        recording all. While a target is undecided runs become longer, up to 16 times.
    jobs
        Of a network with targets: jobs of the first run at each load. Default: 20,000. They become
        more likewise.
    progress
        Called now and then with the share that is done.

    Raises
    ------
    InputError
        If a value cannot be used, the workload has no arrival times, jobs are recorded, no rate is
        stable, or a target is not met where requests are alone.
    """
    limits = parsed_targets(targets)
    system: System
    if isinstance(workload, Workload) and isinstance(server, Server):
        refuse(jobs=jobs)
        precision = _checked_precision(precision, 0.01)
        refuse_gaps_of_one_token(limits, workload)
        requests = workload.rows or REQUESTS if requests is None else requests
        if limits:
            RunAsked(workload, requests, None, limits)
        system = workload, server
    else:
        system = as_network("max_rate", workload, server)
        refuse(alpha=alpha, requests=requests)
        precision = _checked_precision(precision, 0.05)
        size = REQUESTS if jobs is None else jobs
        jobs = checks.whole("jobs", size, 1, MOST_JOBS, "", "each keeps rows in memory")
    share = _STABLE_SHARE if limits else 1.0
    both = ends_of(system)
    systems = [system] if both is None else [system, both[0].slow, both[0].fast]
    rate, *slow_and_fast = (
        _max_rate(one, precision, 0.01 if alpha is None else alpha, seed, part)
        for one, part in in_parts(part_of(progress, 0.0, share), systems)
    )
    if both is not None:
        slow, fast = slow_and_fast
        ends = Ends(slow, fast, both[0].origin, both[0].calibrated)
        rate = dataclasses.replace(rate, ends=ends)
    if not limits:
        return rate
    if isinstance(system, tuple):
        judge = judge_of_server(*system, limits, rate.rate, requests or REQUESTS)
    else:
        judge = judge_of_network(system, limits, rate.rate, jobs or REQUESTS, seed)
    judged = part_of(progress, share, 1.0)
    held = target_rate(judge, rate.rate, rate.above, precision, rate.per_s, judged)
    refuse_if_never(held, rate.unit)
    return dataclasses.replace(rate, targets=held)


def _max_rate(
    system: System, precision: float, alpha: float, seed: int, progress: Progress
) -> MaxRate:
    """Find the highest stable rate of a system: see `max_rate`."""

    def at(rate: float) -> System:
        if isinstance(system, tuple):
            return system[0].with_rate(rate), system[1]
        return system.with_load(rate)

    def judge(rate: float, part: Progress) -> Stability:
        offered = at(rate)
        if isinstance(offered, tuple):
            return verdict(*offered, alpha, precision / 2, seed, progress=part)
        from penstock.checking.flood_test import flood_test

        return flood_test(offered, precision / 2, seed, None, part, tries=1)

    certificate = certify(*asked_about(system))
    if isinstance(system, tuple):
        name, recorded, unit, per_s = system[1].policy.name, False, _PER_S, 1.0
    else:
        name, recorded = "the network", bool(system.ends)
        unit, per_s = "times this load", certificate.rate
    limit = certificate.certified_rate or certificate.max_rate
    certificate = certify(*asked_about(at(limit / per_s / 2)))
    far_below = MaxRate(0.0, 0.0, SIMULATION, certificate, (), unit=unit, per_s=per_s)
    certified, high = far_below.certified or 0.0, far_below.bound
    # above the load of a virtual station this order of the stages is unstable, though others be not
    if virtual := certificate.virtual_station:
        high = min(high, max(virtual.max_load * certificate.rate / per_s, certified))
    low = 0.0 if certificate.trusted and not recorded else certified
    trials: tuple[Trial, ...] = ()
    if low * (1 + precision) < high:
        if recorded:
            raise InputError(RECORDED)
        low, high, trials = _searched(judge, low, high, precision, progress)
    if not low:
        raise InputError(
            f"{name} is not stable at {high:g} {unit}, far below what could be carried; "
            "mend its policies or orders"
        )
    rate = dataclasses.replace(far_below, rate=low, above=high, trials=trials)
    if low > certified or rate.disagreement:
        return rate
    theorem = certificate.theorem or SIMULATION
    return dataclasses.replace(rate, rate=certified, above=max(high, certified), known=theorem)


def _checked_precision(precision: float | None, default: float) -> float:
    """Return the relative distance that a search may leave, if it can be had."""
    value = default if precision is None else precision
    return checks.number(
        "the precision", value, 1e-3, 0.5, "", "it is the relative distance that is left"
    )


def _searched(
    judge: Callable[[float, Progress], Stability],
    low: float,
    high: float,
    precision: float,
    progress: Progress | None,
) -> tuple[float, float, tuple[Trial, ...]]:
    """Return the highest rate that is stable, the lowest above it that is not, and all tried."""
    # ``low`` 0 and ``high`` infinity are not known. A relative distance of ``precision`` is left; 0
    # is returned where nothing far below is stable.
    report = part_of(progress, 0.0, 1.0)
    trials: list[Trial] = []
    rate = high / (1 + precision) if high < math.inf else max(low, 1.0)
    while (low == 0 or high > low * (1 + precision) * (1 + 1e-9)) and len(trials) <= _HALVINGS:
        done = len(trials)
        stability = judge(rate, lambda share: report(1 - 0.7 ** (done + share)))  # noqa: B023
        trials.append(Trial(rate, stability))
        low, high = (rate, high) if stability.verdict == "stable" else (low, rate)
        rate = _next(low, high, trials, precision)
    return low, high, tuple(trials)


def _next(low: float, high: float, trials: Sequence[Trial], precision: float) -> float:
    """Return the rate to try: where drift would be 0, on the unknown side; else the middle."""
    guess = trials[-1].rate * (1 - trials[-1].drift)  # so much was served
    step = math.sqrt(1 + precision)
    for near in (guess / step, guess * step):
        if low < near < high and len(trials) <= _GUIDED:
            return near
    if high == math.inf:
        return 2 * low
    return math.sqrt(low * high) if low else high / 2
