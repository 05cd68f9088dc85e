"""A fleet that follows the day: replicas by interval, against the fleet that the peak needs all
day.

Each interval is planned as if its rate lasted (quasi-stationary). That is wrong where queues settle
slowly against the length of an interval, or where a backlog is carried into the next one: both are
said, and a simulation of whole days with the planned replicas shows the latency by interval without
that assumption.
"""

import bisect
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock import checks
from penstock.checking.batch_means import relaxation_requests
from penstock.checking.targets import Target
from penstock.errors import InputError
from penstock.planning.aim import Aim
from penstock.planning.day_run import DayCheck, resampled, simulate_day
from penstock.planning.deployment import SPLITTING, Deployment
from penstock.planning.evaluate import Evaluation, network_of
from penstock.planning.rates import HOUR_S, RateProfile
from penstock.planning.search import Search, Theory
from penstock.planning.space import Family
from penstock.planning.targets_at_rate import TargetsAtRate
from penstock.show.page import Page, Shown
from penstock.system.pool import MOST_REPLICAS
from penstock.theory.certificate import certify
from penstock.words import counted
from penstock.workload.workload import Workload

RELAXATIONS = 5
"""Relaxation times in an interval from which on it counts as settled: a deviation is then below 1%
(e^-5).
"""

Progress = Callable[[str, float], None]
"""Called with what is being done, and the share that is."""


@dataclasses.dataclass(frozen=True, eq=False)
class Period:
    """One interval of the day."""

    start_s: float  # when it begins
    rate: float  # requests/s
    # Fewest replicas with which theory allows a stable fleet: no policy carries the rate with
    # fewer.
    certified: int
    replicas: int  # fewest that meet the targets; the most allowed where those do not
    met: bool
    rho: float  # rate over what no policy of so many replicas can exceed
    # Relaxation time of the queues: over so long a deviation falls to 1/e; infinite where more
    # arrives than so many replicas can carry.
    settles_s: float
    # Requests left over at its end, at least, where more arrives than so many replicas can carry.
    backlog: float


@dataclasses.dataclass(frozen=True, eq=False)
class DayPlan(Shown):
    """Replicas by interval."""

    profile: RateProfile
    deployment: Deployment  # the fleet that the peak needs, static
    targets: tuple[Target, ...]
    periods: tuple[Period, ...]  # one for each interval
    startup_s: float  # from when a replica is asked for until it serves
    # Those that were simulated; the others follow, since fewer requests or more replicas do no
    # harm.
    evaluations: tuple[Evaluation, ...]
    check: DayCheck | None  # the whole day simulated, or None: `notices` say why
    notices: tuple[str, ...]

    @property
    def schedule(self) -> tuple[tuple[float, int], ...]:
        """(seconds, replicas to hold from then on) at each change: as early as starting takes."""
        return _ahead(
            [period.replicas for period in self.periods], self.profile.interval_s, self.startup_s
        )

    def accelerator_hours(self, replicas: Sequence[int] | None = None) -> float:
        """Return accelerator-hours of a day, or those of other ``replicas`` by interval."""
        # Held as early as those planned.
        held = self.schedule
        if replicas is not None:
            held = _ahead(replicas, self.profile.interval_s, self.startup_s)
        ends = [start for start, _ in held[1:]] + [self.profile.span_s]
        seconds = sum(count * (end - start) for (start, count), end in zip(held, ends, strict=True))
        return seconds / HOUR_S * self.deployment.accelerators

    @property
    def static_hours(self) -> float:
        """Accelerator-hours of the fleet that the peak needs, all day."""
        return self.deployment.total_accelerators * self.profile.span_s / HOUR_S

    @property
    def certified_hours(self) -> float:
        """Accelerator-hours of the fewest replicas with which theory allows a stable fleet."""
        return self.accelerator_hours([period.certified for period in self.periods])

    @property
    def saving(self) -> float:
        """Share of the static fleet's accelerator-hours that following the day saves."""
        return 1 - self.accelerator_hours() / self.static_hours

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        hours = {
            "planned": self.accelerator_hours(),
            "static": self.static_hours,
            "certified": self.certified_hours,
        }
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
            "schedule": [
                {"start_s": start, "replicas": replicas} for start, replicas in self.schedule
            ],
            "accelerator_hours": hours,
            "cost": {name: hours[name] * self.deployment.price for name in ("planned", "static")},
            "saving": self.saving,
            "simulations": len(self.evaluations),
            "check": self.check and self.check.as_dict(),
            "notices": list(self.notices),
        }

    def page(self) -> Page:
        """Return the day as a page."""
        from penstock.planning.view import plan_page

        return plan_page("day", day=self)


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
    """Return the least replicas for each interval of a day, from the highest rate down."""
    # Nothing is simulated where an evaluation implies the answer (no more requests per replica and
    # no fewer replicas than one that met the targets, or the reverse). Recorded arrivals are
    # resampled as Poisson ones. Targets are an `Aim`, or for `Aim.of`, with what else is given by
    # name. ``replicas`` are the numbers allowed; without them all from least to most. A starting
    # replica is paid for.
    if deployment.other is not None:
        raise InputError(
            f"the fleet is {deployment.fleet}, but a day is planned for one kind of replica, for "
            "which of two to stop at night is not searched; give a fleet of one kind"
        )
    counts = _counts(deployment, replicas, least_replicas, most_replicas)
    startup_s = 60 * checks.number(
        "startup_minutes", startup_minutes, 0, profile.span_s / 60, "minutes", "of the day"
    )
    workload = resampled(workload, profile.peak)
    aim_of_all = targets if isinstance(targets, Aim) else Aim.of(targets, **aim)
    step = sum(deployment.ratio or (1,))
    per_replica = _most_rate(workload, deployment.with_replicas(step)) / step
    family = Family(deployment.with_replicas(counts[0]), tuple(counts))
    simulated: list[Evaluation] = []
    rounded = [
        profile.peak if rate == profile.peak else float(f"{rate:.9g}") for rate in profile.rates
    ]
    profile = dataclasses.replace(profile, rates=np.array(rounded))
    report = progress or (lambda what, share: None)
    rates = sorted({rate for rate in rounded if rate > 0}, reverse=True)
    fleets: dict[float, tuple[int, bool]] = {}
    for index, rate in enumerate(rates):
        report(f"{rate:.4g} requests/s", index / len(rates))
        question = _AtTheRate(workload, rate, aim_of_all, per_replica, simulated)
        search = Search(question, [family])
        search.run()
        fleets[rate] = counts[-1], False
        if search.best is not None:
            fleets[rate] = counts[search.best[1].answer or 0], True
    periods = _periods(profile, workload, family, per_replica, fleets)
    # the days as they follow each other, on the fleet of the peak
    report("whole days", 1.0)
    peak = deployment.with_replicas(max(period.replicas for period in periods))
    days, notices = (
        _whole_days(profile, workload, peak, periods, aim_of_all.targets) if check else (None, [])
    )
    return DayPlan(
        profile, peak, aim_of_all.targets, periods, startup_s, tuple(simulated), days,
        (*_cautions(profile, periods), *notices),
    )  # fmt: skip


def _counts(
    deployment: Deployment, replicas: Sequence[int], least: int, most: int
) -> Sequence[int]:
    """Return the numbers of replicas that the fleet may have, rising."""
    step = sum(deployment.ratio or (1,))
    between = "the fleet is between these"
    most = checks.whole("most_replicas", most, step, MOST_REPLICAS, "", between) // step * step
    least = checks.whole("least_replicas", least, 1, most, "", between)
    counts = sorted(
        checks.whole("a number of replicas", count, least, most, "", between) for count in replicas
    )
    return counts or range(-(-least // step) * step, most + 1, step)


def _whole_days(
    profile: RateProfile,
    workload: Workload,
    fleet: Deployment,
    periods: Sequence[Period],
    targets: Sequence[Target],
) -> tuple[DayCheck | None, list[str]]:
    """Return the days simulated, and what to say of them, or why they are not."""
    try:
        if fleet.prefill_replicas:
            raise InputError(
                "prompts and output tokens are served by replicas of their own, so that one does "
                "not tell the rest"
            )
        if not fleet.splits:
            raise InputError(f"replicas behind {fleet.router} see each other's queues")
        days = simulate_day(
            profile, workload, fleet, [period.replicas for period in periods], targets
        )
    except InputError as error:
        return None, [f"whole days are not simulated: {error}"]
    return days, _above(profile, days)


class _AtTheRate(TargetsAtRate):
    """Meet targets at one of many rates; what was simulated at others tells of this one."""

    asks_the_most = False  # of a fleet with any number

    def __init__(
        self, workload: Workload, rate: float, aim: Aim, per_replica: float,
        simulated: list[Evaluation],
    ) -> None:  # fmt: skip
        super().__init__(workload.with_rate(rate), aim)
        self.rate, self.per_replica, self.simulated = rate, per_replica, simulated

    def theory(self, family: Family) -> Theory:
        """Say how many replicas may be stable, and what the share of those that do asks for."""
        counts = family.counts
        step = sum(family.smallest.ratio or (1,))
        least = bisect.bisect_left(counts, certified(self.rate, self.per_replica, step))
        shares = [
            one.deployment.replicas / one.rate for one in self.simulated if one.answer == "met"
        ]
        likely = self.rate * min(shares, default=0.0) * (1 - 1e-12)
        guess = min(max(bisect.bisect_left(counts, likely), least), len(counts) - 1)
        return Theory(least, guess, "")

    def judge(self, family: Family, count: int, report: Callable[[float], None]) -> Evaluation:
        """Return what implies whether so many do, or simulate them."""
        fleet = family.smallest
        alone = fleet.router == "random" and not fleet.prefill_replicas
        for one in self.simulated:
            # at the same rate for each, more replicas serve no worse; at random, the same
            less = self.rate / count <= one.rate / one.deployment.replicas
            more = self.rate / count >= one.rate / one.deployment.replicas
            if one.answer == "met" and less and (alone or count >= one.deployment.replicas):
                return one
            if one.answer != "met" and more and (alone or count <= one.deployment.replicas):
                return one
        self.simulated.append(super().judge(family, count, report))
        return self.simulated[-1]


def certified(rate: float, per_replica: float, step: int) -> int:
    """Return the fewest replicas, by steps, with which theory allows a stable fleet."""
    return (math.floor(rate / per_replica / step * (1 - 1e-12)) + 1) * step


def _most_rate(workload: Workload, deployment: Deployment) -> float:
    """Return the requests/s above which no policy of so many replicas is stable."""
    if not deployment.prefill_replicas:
        return certify(workload, deployment.server).max_rate * deployment.replicas
    return workload.rate / certify(network_of(workload, deployment)).rho


def _periods(
    profile: RateProfile,
    workload: Workload,
    family: Family,
    per_replica: float,
    fleets: Mapping[float, tuple[int, bool]],
) -> tuple[Period, ...]:
    """Return the intervals with their fleets, how long queues take to settle, and what is left."""
    prompt, output = (tokens.astype(float) for tokens in workload.requests(10_000)[1:3])
    tokens = prompt + output
    variability = float(1 + tokens.var() / tokens.mean() ** 2)
    periods: list[Period] = []
    left = 0.0
    fleet, step = family.smallest, sum(family.smallest.ratio or (1,))
    for index, rate in enumerate(profile.rates.tolist()):
        replicas, met = fleets[rate] if rate else (family.counts[0], True)
        most = per_replica * replicas
        units = replicas if fleet.splits or fleet.router in SPLITTING else 1
        settles = relaxation_requests(rate / most, variability) / (rate / units) if rate else 0.0
        left = max(left + (rate - most) * profile.interval_s, 0.0)
        periods.append(
            Period(
                index * profile.interval_s,
                rate,
                certified(rate, per_replica, step) if rate else 0,
                replicas,
                met,
                rate / most,
                settles,
                left,
            )
        )
    return tuple(periods)


def _cautions(profile: RateProfile, periods: Sequence[Period]) -> list[str]:
    """Say where an interval cannot be planned by itself."""
    cautions = []
    numbered = list(enumerate(periods))
    missed = [index for index, period in numbered if not period.met]
    if missed:
        cautions.append(
            f"{len(missed)} of {counted(len(periods), 'interval')} miss the targets even with "
            f"{counted(periods[missed[0]].replicas, 'replica')}, from {profile.clock(missed[0])} "
            "on: allow more "
            "(plan.day.most_replicas), or another deployment"
        )
    # where more arrives than is served nothing settles: that is a backlog
    slow = [
        (period.settles_s, -index)
        for index, period in numbered
        if profile.interval_s < RELAXATIONS * period.settles_s < math.inf
    ]
    if slow:
        settles_s, index = max(slow)
        cautions.append(
            f"queues settle slowly against intervals of {profile.interval_s:,.0f} s in "
            f"{len(slow)} of {len(periods)} "
            f"(relaxation time {settles_s:,.0f} s at {profile.clock(-index)}): what is planned "
            "there for "
            "a rate that lasts is not reached, nor left, within the interval"
        )
    backlog, index = max((period.backlog, -index) for index, period in numbered)
    if backlog > 0:
        cautions.append(
            "a backlog is carried into later intervals, of at least "
            f"{counted(max(int(backlog), 1), 'request')} at the end of the one from "
            f"{profile.clock(-index)}: planning each by itself is wrong after it"
        )
    return cautions


def _ahead(
    replicas: Sequence[int], interval_s: float, startup_s: float
) -> tuple[tuple[float, int], ...]:
    """Return (seconds, replicas held from then): the most needed until startup_s later."""
    count = len(replicas)
    span = count * interval_s
    starts = [index * interval_s for index in range(count)]
    held: list[tuple[float, int]] = []
    for start in sorted({0.0, *starts, *((start - startup_s) % span for start in starts)}):
        first = int(start / interval_s * (1 + 1e-12) + 1e-9)
        last = math.floor((start + startup_s) / interval_s + 1e-9)
        needed = max(
            replicas[index % count] for index in range(first, min(last, first + count) + 1)
        )
        if not held or held[-1][1] != needed:
            held.append((start, needed))
    return tuple(held)


def _above(profile: RateProfile, check: DayCheck) -> list[str]:
    """Say what the simulated days show above the targets."""
    if not check.above:
        return []
    index, target, value = max(check.above, key=lambda excess: excess[2] / excess[1].limit_s)
    days = counted(check.days, "simulated day")
    count = len({index for index, _, _ in check.above})
    return [
        f"in {days} {count:,} of {counted(profile.rates.size, 'interval')} lie above a target, "
        "most the one from "
        f"{profile.clock(index)}: {value:.4g} s for {target}"
    ]
