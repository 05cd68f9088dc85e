"""The highest rate at which a policy is stable: a search over verdicts, on the same requests at
every rate; of a server in requests/s, of a network in times its load.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

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
from penstock.checking.stability import RECORDED, Stability
from penstock.checking.targets import Target, parsed_targets, refuse_gaps_of_one_token
from penstock.checking.verdict import verdict
from penstock.errors import InputError
from penstock.simulation.progress import Progress, in_parts, part_of
from penstock.system.kinds import as_network, refuse
from penstock.system.server import Server
from penstock.theory.certificate import Certificate
from penstock.theory.certify import certify
from penstock.theory.ends import Ends, server_ends
from penstock.workload.workload import Workload

if TYPE_CHECKING:
    from penstock.system.network import Network

SIMULATION = "simulation"
"""What is known by no theorem."""

System = TypeVar("System")

_HALVINGS = 40
_STABLE_SHARE = 0.2  # of the work, where there are targets
_GUIDED = 6  # trials that go by the drift of those before; then halves are taken


class Trial(NamedTuple):
    """A rate that was tried, requests/s, or a load, and what was found."""

    rate: float
    stability: Stability


@dataclasses.dataclass(frozen=True, eq=False)
class MaxRate:
    """How much a server carries under its policy.

    Attributes
    ----------
    rate
        Highest rate known to be stable, requests/s: certified by a theorem, or found so.
    above
        Lowest rate above it that is not: unstable, too close to the limit to tell, or beyond the
        bound; equal to ``rate`` where theorems leave nothing between them.
    known
        The theorem that says stable up to ``rate``, or ``simulation``.
    certificate
        What theory says far below the limits; its ``max_rate`` is the bound of every policy.
    trials
        The rates tried, in order.
    targets
        Up to which rate the targets hold, with the middle batch times; None where there are none.
    ends
        The same at the slow and the fast end of the batch times; None: they are taken as exact.
    """

    rate: float
    above: float
    known: str
    certificate: Certificate = dataclasses.field(repr=False)
    trials: tuple[Trial, ...] = dataclasses.field(repr=False)
    targets: TargetRate | None = None
    ends: Ends["MaxRate"] | None = dataclasses.field(default=None, repr=False)

    @property
    def bound(self) -> float:
        """Requests/s above which no policy is stable."""
        return self.certificate.max_rate

    @property
    def disagreement(self) -> str | None:
        """What to doubt where a theorem certifies a rate that the test found unstable, or None."""
        unstable = [trial.rate for trial in self.trials if trial.stability.verdict == "unstable"]
        certified = self.certificate.certified_rate
        if certified is None or not unstable or min(unstable) >= certified:
            return None
        doubt = "the seed, or Penstock itself"
        unchecked = [h.name for h in self.certificate.hypotheses if not h.checked]
        if unchecked:
            doubt = f"what was taken on trust: {', '.join(unchecked)}"
        return (
            f"{self.certificate.theorem} says stable up to {certified:,.4g} requests/s, but the "
            "test found "
            f"{min(unstable):,.4g} unstable; in doubt is {doubt}"
        )

    @property
    def share(self) -> float:
        """The rate as a share of the bound."""
        return self.rate / self.bound

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "rate": self.rate,
            "above": self.above,
            "known": self.known,
            "bound": self.bound,
            "share": self.share,
            "certified_rate": self.certificate.certified_rate,
            "disagreement": self.disagreement,
            "ends": _ends_as_dict(self.ends, "rate"),
            "arrivals": sum(trial.stability.arrivals for trial in self.trials),
            "trials": _trials_as_dicts(self.trials),
            "targets": self.targets and self.targets.as_dict(),
        }


@dataclasses.dataclass(frozen=True, eq=False)
class MaxLoad:
    """How much a network carries; loads are factors on all arrival rates."""

    load: float  # the highest known to be stable
    above: float  # the lowest above it that is not: unstable, or too close to the limit to tell
    known: str  # the theorem that says stable at `load`, or `simulation`
    # No policy is stable above it, even if requests find all of their prompts that they may.
    bound: float
    certificate: Certificate = dataclasses.field(repr=False)  # of the network as it is
    trials: tuple[Trial, ...] = dataclasses.field(repr=False)  # in order
    targets: TargetRate | None = None  # with the middle batch times
    # The same at the slow and the fast end of the batch times.
    ends: Ends["MaxLoad"] | None = dataclasses.field(default=None, repr=False)

    @property
    def certified_load(self) -> float | None:
        """Load up to which a theorem says stable, None where none does at any."""
        return self.certificate.certified_load

    @property
    def disagreement(self) -> str | None:
        """What to doubt where a theorem certifies a load that the test found unstable, or None."""
        unstable = [trial.rate for trial in self.trials if trial.stability.verdict == "unstable"]
        certified = self.certified_load
        if certified is None or not unstable or min(unstable) >= certified:
            return None
        return (
            f"{self.certificate.theorem} says stable up to {certified:,.4g} times this load, but "
            f"the test found {min(unstable):,.4g} unstable; try another seed and a finer precision"
        )

    @property
    def share(self) -> float:
        """The load as a share of the bound."""
        return self.load / self.bound

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "load": self.load,
            "above": self.above,
            "known": self.known,
            "bound": self.bound,
            "share": self.share,
            "certified_load": self.certified_load,
            "disagreement": self.disagreement,
            "ends": _ends_as_dict(self.ends, "load"),
            "trials": _trials_as_dicts(self.trials, "load"),
            "targets": self.targets and self.targets.as_dict(),
        }


def _ends_as_dict(ends: Ends[Any] | None, name: str) -> dict[str, Any] | None:
    """Return the JSON form of what is carried at both ends of the batch times."""
    if ends is None:
        return None
    return {
        name: [getattr(ends.slow, name), getattr(ends.fast, name)],
        "bound": [ends.slow.bound, ends.fast.bound],
        "origin": ends.origin,
    }


Found = TypeVar("Found", MaxRate, MaxLoad)


def _trials_as_dicts(trials: Sequence[Trial], unit: str = "rate") -> list[dict[str, Any]]:
    """Return the JSON form of what was tried."""
    return [
        {
            unit: trial.rate,
            "verdict": trial.stability.verdict,
            "drift": trial.stability.drift,
        }
        for trial in trials
    ]


@overload
def max_rate(
    workload: Workload,
    server: Server,
    *,
    precision: float | None = None,
    alpha: float | None = None,
    seed: int = 0,
    targets: Sequence[Target | str] = (),
    requests: int | None = None,
    progress: Progress | None = None,
) -> MaxRate: ...
@overload
def max_rate(
    network: "Network",
    /,
    *,
    precision: float | None = None,
    seed: int = 0,
    targets: Sequence[Target | str] = (),
    jobs: int | None = None,
    progress: Progress | None = None,
) -> MaxLoad: ...
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
) -> MaxRate | MaxLoad:
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
    stable = part_of(progress, 0.0, _STABLE_SHARE) if limits else progress
    judged = part_of(progress, _STABLE_SHARE, 1.0)
    if not isinstance(workload, Workload) or not isinstance(server, Server):
        network = as_network("max_rate", workload, server)
        refuse(alpha=alpha, requests=requests)
        distance = _checked_precision(precision, 0.05)
        from penstock.theory.ends import network_ends

        jobs = checks.whole(
            "jobs",
            REQUESTS if jobs is None else jobs,
            1,
            MOST_JOBS,
            "",
            "each keeps rows in memory",
        )
        load = _at_both_ends(
            lambda one, part: _max_load(one, distance, seed, part),
            network, network_ends(network), stable,
        )  # fmt: skip
        if not limits:
            return load
        judge = judge_of_network(network, limits, load.load, jobs, seed)
        per_s = sum(workflow.rate for workflow in network.workflows)
        found = target_rate(judge, load.load, load.above, distance, per_s, judged)
        refuse_if_never(found, "times this load")
        return dataclasses.replace(load, targets=found)
    refuse(jobs=jobs)
    precision = _checked_precision(precision, 0.01)
    alpha = 0.01 if alpha is None else alpha
    refuse_gaps_of_one_token(limits, workload)
    requests = workload.rows or REQUESTS if requests is None else requests
    if limits:
        RunAsked(workload, requests, None, limits)
    rate = _at_both_ends(
        lambda one, part: _max_rate(workload, one, precision, alpha, seed, part),
        server, server_ends(workload, server), stable,
    )  # fmt: skip
    if not limits:
        return rate
    judge = judge_of_server(workload, server, limits, rate.rate, requests)
    found = target_rate(judge, rate.rate, rate.above, precision, 1.0, judged)
    refuse_if_never(found, "requests/s")
    return dataclasses.replace(rate, targets=found)


def _at_both_ends(
    search: Callable[[System, Progress | None], Found],
    system: System,
    ends: Ends[System] | None,
    progress: Progress | None,
) -> Found:
    """Search a system, and where its batch times are not exact both of their ends."""
    if ends is None:
        return search(system, progress)
    usual, slow, fast = (
        search(one, part) for one, part in in_parts(progress, (system, ends.slow, ends.fast))
    )
    both = Ends(slow, fast, ends.origin, ends.calibrated)
    return dataclasses.replace(usual, ends=both)


def _max_rate(
    workload: Workload,
    server: Server,
    precision: float,
    alpha: float,
    seed: int,
    progress: Progress | None,
) -> MaxRate:
    """Find the highest stable rate of a server: see `max_rate`."""

    def judge(rate: float, part: Progress) -> Stability:
        return verdict(workload.with_rate(rate), server, alpha, precision / 2, seed, progress=part)

    certificate = certify(workload, server)
    bound, certified = certificate.max_rate, certificate.certified_rate or 0.0
    certificate = certify(workload.with_rate((certified or bound) / 2), server)
    bound, certified = certificate.max_rate, certificate.certified_rate or 0.0  # but for rounding
    low = 0.0 if certificate.trusted else certified
    high = bound
    trials: tuple[Trial, ...] = ()
    if low * (1 + precision) < bound:
        low, high, trials = _searched(judge, low, bound, precision, progress)
    if not low:
        raise InputError(
            f"{server.policy.name} is not stable at {high:g} requests/s, far below what the "
            "server could carry; "
            "mend the policy"
        )
    found = MaxRate(low, high, SIMULATION, certificate, trials)
    if low > certified or found.disagreement:
        return found
    theorem = certificate.theorem or SIMULATION
    return dataclasses.replace(found, rate=certified, above=max(high, certified), known=theorem)


def _max_load(
    network: "Network", precision: float, seed: int, progress: Progress | None
) -> MaxLoad:
    """Find the highest stable load of a network: see `max_rate`."""
    certificate = certify(network)
    bound = high = certificate.max_load
    low = certificate.certified_load or 0.0
    # above the load of a virtual station this order of the stages is unstable, though others be not
    if certificate.virtual_station is not None:
        high = min(high, max(certificate.virtual_station.max_load, low))
    load = low
    trials: tuple[Trial, ...] = ()
    if low * (1 + precision) < high:
        load, high, trials = _tested(network, low, high, precision, seed, progress)
    known = SIMULATION
    if load == low:
        known = certify(network.with_load(low / 2)).theorem or SIMULATION
    return MaxLoad(load, high, known, bound, certificate, trials)


def _tested(
    network: "Network",
    low: float,
    high: float,
    precision: float,
    seed: int,
    progress: Progress | None,
) -> tuple[float, float, tuple[Trial, ...]]:
    """Search between a load stable by theorem, if there is one, and the least that is not."""
    from penstock.checking.flood_test import flood_test

    if network.ends:
        raise InputError(RECORDED)

    def judge(load: float, part: Progress) -> Stability:
        return flood_test(network.with_load(load), precision / 2, seed, None, part, tries=1)

    low, high, trials = _searched(judge, low, high, precision, progress)
    if not low:
        raise InputError(
            f"the network is not stable at {high:g} times this load, far below what its pools "
            "could carry; mend its policies or orders"
        )
    return low, high, trials


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
    rate, found = trials[-1]
    guess = rate * (1 - found.drift)  # so much was served
    step = math.sqrt(1 + precision)
    for near in (guess / step, guess * step):
        if low < near < high and len(trials) <= _GUIDED:
            return near
    if high == math.inf:
        return 2 * low
    return math.sqrt(low * high) if low else high / 2
