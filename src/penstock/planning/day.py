"""A fleet that follows the day: replicas by interval, against the fleet that the peak needs all day.

Each interval is planned as if its rate lasted (quasi-stationary). That is wrong where queues settle slowly against the
length of an interval, or where a backlog is carried into the next one: both are said, and a simulation of whole days
with the planned replicas shows the latency by interval without that assumption.
"""

import bisect
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock import checks
from penstock.checking.latency import relaxation_requests
from penstock.checking.targets import Target
from penstock.errors import InputError
from penstock.planning.day_run import DayCheck, resampled, simulate_day
from penstock.planning.evaluate import Aim, Evaluation, evaluate, network_of
from penstock.planning.rates import HOUR_S, RateProfile
from penstock.planning.space import Deployment
from penstock.system.pool import MOST_REPLICAS
from penstock.theory.certificate import certify
from penstock.theory.network.certificate import certify_network
from penstock.words import counted
from penstock.workload.workload import Workload

RELAXATIONS = 5
"""Relaxation times in an interval from which on it counts as settled: a deviation is then below 1% (e^-5)."""

Progress = Callable[[str, float], None]
"""Called with what is being done, and the share that is."""


@dataclasses.dataclass(frozen=True, eq=False)
class Period:
    """One interval of the day.

    Attributes
    ----------
    start_s, rate
        When it begins, and its requests/s.
    certified
        Fewest replicas with which theory allows a stable fleet: no policy carries the rate with fewer.
    replicas
        Fewest that meet the targets; the most allowed where those do not.
    met
        Whether they do.
    rho
        Rate over what no policy of so many replicas can exceed.
    settles_s
        Relaxation time of the queues: over so long a deviation falls to 1/e; infinite where more arrives than so many
        replicas can carry.
    backlog
        Requests left over at its end, at least, where more arrives than so many replicas can carry.
    """

    start_s: float
    rate: float
    certified: int
    replicas: int
    met: bool
    rho: float
    settles_s: float
    backlog: float


@dataclasses.dataclass(frozen=True, eq=False)
class DayPlan:
    """Replicas by interval.

    Attributes
    ----------
    profile, deployment, targets
        What was asked; the deployment is the fleet that the peak needs, and is static.
    periods
        One for each interval.
    startup_s
        Seconds from when a replica is asked for until it serves.
    evaluations
        Those that were simulated; the others follow, since fewer requests or more replicas do no harm.
    check
        The whole day simulated, or None: ``notices`` say why.
    notices
        What the user should know besides.
    """

    profile: RateProfile
    deployment: Deployment
    targets: tuple[Target, ...]
    periods: tuple[Period, ...]
    startup_s: float
    evaluations: tuple[Evaluation, ...]
    check: DayCheck | None
    notices: tuple[str, ...]

    @property
    def schedule(self) -> tuple[tuple[float, int], ...]:
        """(seconds, replicas to hold from then on), where the number changes: as early as starting takes."""
        return _ahead([period.replicas for period in self.periods], self.profile.interval_s, self.startup_s)

    def accelerator_hours(self, replicas: Sequence[int] | None = None) -> float:
        """Return accelerator-hours of a day; of other ``replicas`` by interval than those planned, held as early."""
        counts = [period.replicas for period in self.periods] if replicas is None else list(replicas)
        held = _ahead(counts, self.profile.interval_s, self.startup_s)
        ends = [start for start, _ in held[1:]] + [self.profile.span_s]
        seconds = sum(n * (end - start) for (start, n), end in zip(held, ends, strict=True))
        return seconds / HOUR_S * self.deployment.accelerators

    @property
    def static_hours(self) -> float:
        """Accelerator-hours of the fleet that the peak needs, all day."""
        return self.deployment.total_accelerators * self.profile.span_s / HOUR_S

    @property
    def saving(self) -> float:
        """Share of the static fleet's accelerator-hours that following the day saves."""
        return 1 - self.accelerator_hours() / self.static_hours

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        hours, price, certified = self.accelerator_hours(), self.deployment.price, [p.certified for p in self.periods]
        return {
            "profile": {"name": self.profile.name, "interval_s": self.profile.interval_s},
            "deployment": self.deployment.as_dict(),
            "targets": [str(target) for target in self.targets],
            "startup_s": self.startup_s,
            "periods": [
                dataclasses.asdict(period)
                | {"settles_s": period.settles_s if math.isfinite(period.settles_s) else None}
                for period in self.periods
            ],
            "schedule": [{"start_s": start, "replicas": replicas} for start, replicas in self.schedule],
            "accelerator_hours": {
                "planned": hours,
                "static": self.static_hours,
                "certified": self.accelerator_hours(certified),
            },
            "cost": {"planned": hours * price, "static": self.static_hours * price},
            "saving": self.saving,
            "simulations": len(self.evaluations),
            "check": None
            if self.check is None
            else {
                "days": self.check.days,
                "requests": self.check.requests,
                "latency": [{m: dict(of) for m, of in found.items()} for found in self.check.latency],
                "tbt_s": dict(self.check.gaps),
                "above": [{"period": p, "target": str(t), "value": value} for p, t, value in self.check.above],
            },
            "notices": list(self.notices),
        }


def plan_day(
    profile: RateProfile,
    workload: Workload,
    deployment: Deployment,
    targets: Sequence[Target | str] | Aim,
    *,
    replicas: Sequence[int] = (),
    most_replicas: int = 1_024,
    least_replicas: int = 1,
    startup_minutes: float = 0.0,
    check: bool = True,
    progress: Progress | None = None,
    **aim: Any,
) -> DayPlan:
    """Return the least replicas for each interval of a day.

    Rates are planned from the highest down. Where an evaluation implies the answer (no more requests per replica and
    no fewer replicas than one that met the targets, or the reverse), nothing is simulated.

    Parameters
    ----------
    profile
        Rates of the day.
    workload
        Lengths, and arrivals at each rate; recorded ones are resampled as Poisson arrivals.
    deployment
        Of any number of replicas.
    targets
        An `Aim`, or targets for `Aim.of`, which also takes what else is given by name (``requests`` ...).
    replicas
        Numbers that the fleet may have. Default: all from the least to the most.
    most_replicas, least_replicas
        Of the fleet at any time.
    startup_minutes
        From when a replica is asked for until it serves; it is paid for from the start.
    check
        Whether to simulate whole days.
    progress
        Called now and then.

    Raises
    ------
    InputError
        If a value cannot be used.
    """
    step = 1 if deployment.ratio is None else sum(deployment.ratio)
    why = "the fleet is between these"
    most = checks.whole("most_replicas", most_replicas, step, MOST_REPLICAS, "", why) // step * step
    least = checks.whole("least_replicas", least_replicas, 1, most, "", why)
    counts = sorted(checks.whole("a number of replicas", n, least, most, "", why) for n in replicas)
    counts = counts or list(range(-(-least // step) * step, most + 1, step))
    startup_s = 60 * checks.number("startup_minutes", startup_minutes, 0, profile.span_s / 60, "minutes", "of the day")
    workload = resampled(workload, profile.peak)
    wanted = targets if isinstance(targets, Aim) else Aim.of(targets, **aim)
    search = _Search(workload, deployment, wanted, counts)
    report = progress or (lambda what, share: None)
    found: dict[float, tuple[int, bool]] = {}
    few = [profile.peak if rate == profile.peak else float(f"{rate:.9g}") for rate in profile.rates]
    profile = dataclasses.replace(profile, rates=np.array(few))
    rates = sorted({rate for rate in profile.rates.tolist() if rate > 0}, reverse=True)
    for place, rate in enumerate(rates):
        report(f"{rate:.4g} requests/s", place / len(rates))
        found[rate] = search.least(rate)
    periods = _periods(profile, workload, search, found)
    peak = deployment.with_replicas(max(period.replicas for period in periods))
    days, notices = None, _cautions(profile, periods)
    if check and not peak.splits:
        why = f"replicas behind {peak.router} see each other's queues"
        if peak.prefill_replicas:
            why = "prompts and output tokens are served by replicas of their own, so that one does not tell the rest"
        notices.append(f"whole days are not simulated: {why}")
    elif check:
        report("whole days", 1.0)
        try:
            days = simulate_day(profile, workload, peak, [p.replicas for p in periods], search.aim.targets)
            notices += _above(profile, days)
        except InputError as error:
            notices.append(f"whole days are not simulated: {error}")
    return DayPlan(
        profile, peak, search.aim.targets, periods, startup_s, tuple(search.evaluations), days, tuple(notices)
    )


class _Search:
    """Least replicas for a rate, remembering what was simulated."""

    def __init__(self, workload: Workload, deployment: Deployment, aim: Aim, counts: Sequence[int]) -> None:
        self.workload, self.deployment, self.aim, self.counts = workload, deployment, aim, counts
        self.evaluations: list[Evaluation] = []
        self.known: list[tuple[int, float, bool]] = []
        self.step = sum(deployment.ratio or (1,))
        self.per_replica = _most_rate(workload, deployment.with_replicas(self.step)) / self.step

    def certified(self, rate: float) -> int:
        """Return the fewest replicas with which theory allows a stable fleet."""
        return (math.floor(rate / self.per_replica / self.step * (1 - 1e-12)) + 1) * self.step

    def least(self, rate: float) -> tuple[int, bool]:
        """Return the fewest replicas that meet the targets at a rate, or the most allowed and False."""
        counts, low, high = self.counts, bisect.bisect_left(self.counts, self.certified(rate)), len(self.counts) - 1
        if low > high:
            return counts[-1], False
        guess, size = min((n * rate / r for n, r, met in self.known if met), default=0.0), 1
        tried = min(max(bisect.bisect_left(counts, guess * (1 - 1e-12)), low), high)
        if not self._met(counts[tried], rate):  # gallop up
            low = tried + 1
            while low <= high and not self._met(counts[tried := min(low + size - 1, high)], rate):
                low, size = tried + 1, 2 * size
            if low > high:
                return counts[-1], False
        high = tried
        while low < high:  # the answer lies just below a guess that was met, so look there first
            middle = max((low + high) // 2, high - size)
            size *= 2
            low, high = (low, middle) if self._met(counts[middle], rate) else (middle + 1, high)
        return counts[high], True

    def _met(self, replicas: int, rate: float) -> bool:
        alone = self.deployment.router == "random" and not self.deployment.prefill_replicas
        for n, r, met in self.known:  # at the same rate for each, more replicas serve no worse; at random, the same
            if met and rate / replicas <= r / n and (alone or replicas >= n):
                return True
            if not met and rate / replicas >= r / n and (alone or replicas <= n):
                return False
        found = evaluate(self.workload.with_rate(rate), self.deployment.with_replicas(replicas), self.aim)
        self.evaluations.append(found)
        self.known.append((replicas, rate, found.answer == "met"))
        return found.answer == "met"


def _most_rate(workload: Workload, deployment: Deployment) -> float:
    """Return the requests/s above which no policy of so many replicas is stable."""
    if not deployment.prefill_replicas:
        return certify(workload, deployment.server).max_rate * deployment.replicas
    return workload.rate / certify_network(network_of(workload, deployment)).rho


def _periods(
    profile: RateProfile, workload: Workload, search: _Search, found: Mapping[float, tuple[int, bool]]
) -> tuple[Period, ...]:
    prompt, output = (tokens.astype(float) for tokens in workload.requests(10_000)[1:3])
    tokens = prompt + output
    variability = float(1 + tokens.var() / tokens.mean() ** 2)
    periods: list[Period] = []
    left = 0.0
    for start, rate in zip(profile.starts_s.tolist(), profile.rates.tolist(), strict=True):
        certified, (replicas, met) = 0, (search.counts[0], True)
        if rate > 0:
            certified, (replicas, met) = search.certified(rate), found[rate]
        most = search.per_replica * replicas
        units = replicas if search.deployment.splits or search.deployment.router in ("random", "round-robin") else 1
        settles = relaxation_requests(rate / most, variability) / (rate / units) if rate > 0 else 0.0
        left = max(left + (rate - most) * profile.interval_s, 0.0)
        periods.append(Period(start, rate, certified, replicas, met, rate / most, settles, left))
    return tuple(periods)


def _cautions(profile: RateProfile, periods: Sequence[Period]) -> list[str]:
    """Say where an interval cannot be planned by itself."""
    said = []
    missed = [place for place, period in enumerate(periods) if not period.met]
    if missed:
        said.append(
            f"{len(missed)} of {counted(len(periods), 'interval')} miss the targets even with "
            f"{counted(periods[missed[0]].replicas, 'replica')}, from {profile.clock(missed[0])} on: allow more "
            "(plan.day.most_replicas), or another deployment"
        )
    slow = [  # where more arrives than is served nothing settles: that is a backlog
        place for place, period in enumerate(periods) if profile.interval_s < RELAXATIONS * period.settles_s < math.inf
    ]
    if slow:
        worst = max(slow, key=lambda place: periods[place].settles_s)
        said.append(
            f"queues settle slowly against intervals of {profile.interval_s:,.0f} s in {len(slow)} of {len(periods)} "
            f"(relaxation time {periods[worst].settles_s:,.0f} s at {profile.clock(worst)}): what is planned there for "
            "a rate that lasts is not reached, nor left, within the interval"
        )
    behind = [place for place, period in enumerate(periods) if period.backlog > 0]
    if behind:
        worst = max(behind, key=lambda place: periods[place].backlog)
        left = counted(max(int(periods[worst].backlog), 1), "request")
        said.append(
            f"a backlog is carried into later intervals, of at least {left} at the end of the one from "
            f"{profile.clock(worst)}: planning each by itself is wrong after it"
        )
    return said


def _ahead(replicas: Sequence[int], interval_s: float, startup_s: float) -> tuple[tuple[float, int], ...]:
    """Return (seconds, replicas held from then on): the most that is needed from then until startup_s later."""
    count, span = len(replicas), len(replicas) * interval_s
    starts = [place * interval_s for place in range(count)]
    held: list[tuple[float, int]] = []
    for start in sorted({0.0, *starts, *((start - startup_s) % span for start in starts)}):
        first = int(start / interval_s * (1 + 1e-12) + 1e-9)
        last = math.floor((start + startup_s) / interval_s + 1e-9)
        now = max(replicas[place % count] for place in range(first, min(last, first + count) + 1))
        if not held or held[-1][1] != now:
            held.append((start, now))
    return tuple(held)


def _above(profile: RateProfile, check: DayCheck) -> list[str]:
    """Say what the simulated days show above the targets."""
    if not check.above:
        return []
    place, target, value = max(check.above, key=lambda one: one[2] / one[1].limit_s)
    days, count = counted(check.days, "simulated day"), len({at for at, _, _ in check.above})
    return [
        f"in {days} {count:,} of {counted(profile.rates.size, 'interval')} lie above a target, most the one from "
        f"{profile.clock(place)}: {value:.4g} s for {target}"
    ]
