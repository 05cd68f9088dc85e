"""A fleet that follows the day: replicas by interval, against the fleet that the peak needs all
day.

Each interval is planned as if its rate lasted (quasi-stationary). That is wrong where queues settle
slowly against the length of an interval, or where a backlog is carried into the next one: both are
said, and a simulation of whole days with the planned replicas shows the latency by interval without
that assumption.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from penstock import checks
from penstock.checking.batch_means import relaxation_requests
from penstock.checking.targets import Target
from penstock.errors import InputError
from penstock.planning.aim import Aim
from penstock.planning.day_run import DayCheck, resampled, simulate_day
from penstock.planning.deployment import Deployment
from penstock.planning.evaluate import Evaluation, network_of
from penstock.planning.rates import HOUR_S, RateProfile
from penstock.planning.search import Report, Search
from penstock.planning.space import Family
from penstock.planning.targets_at_rate import TargetsAtRate
from penstock.show.answers import Meaning, Shown, computed, texts
from penstock.system.pool import MOST_REPLICAS
from penstock.theory.certify import certify
from penstock.words import counted, span
from penstock.workload.workload import Workload

MOST = 1_024
"""Replicas of a fleet, where nothing else is said."""

RELAXATIONS = 5
"""Relaxation times in an interval from which on it counts as settled: a deviation is then below 1%
(e^-5).
"""


@dataclasses.dataclass(frozen=True, eq=False)
class Period:
    """One interval of the day."""

    start_s: Annotated[float, Meaning("When it begins.")]
    rate: Annotated[float, Meaning("Requests/s.")]
    certified: Annotated[int, Meaning("Replicas below which, by theory, no policy is stable.")]
    replicas: Annotated[int, Meaning("Fewest that meet the targets, else the most allowed.")]
    met: Annotated[bool, Meaning("Whether they meet the targets.")]
    rho: Annotated[float, Meaning("Rate over what no policy of so many replicas can exceed.")]
    settles_s: Annotated[float, Meaning("Until a deviation of queues is 1/e; null: never.")]
    backlog: Annotated[float, Meaning("Requests left over at its end, at least.")]


class Change(NamedTuple):
    """Of the number of replicas."""

    start_s: Annotated[float, Meaning("When.")]
    replicas: Annotated[int, Meaning("To hold from then on.")]


@dataclasses.dataclass(frozen=True, eq=False)
class DayPlan(Shown):
    """Replicas by interval."""

    profile: Annotated[RateProfile, Meaning("Rates by interval.")]
    deployment: Annotated[Deployment, Meaning("The fleet that the peak needs, static.")]
    targets: Annotated[tuple[Target, ...], Meaning("Upper limits.", data=texts)]
    periods: Annotated[tuple[Period, ...], Meaning("One for each interval.")]
    startup_s: Annotated[float, Meaning("From when a replica is asked for until it serves.")]
    evaluations: Annotated[tuple[Evaluation, ...], Meaning(
        "Those that were simulated, in JSON how many; the others follow, since fewer requests or "
        "more replicas do no harm.",
        key="simulations", data=len,
    )]  # fmt: skip
    check: Annotated[DayCheck | None, Meaning(
        "The whole day simulated, or None: `notices` say why."
    )]  # fmt: skip
    notices: Annotated[tuple[str, ...], Meaning("What the user should know besides.")]

    @computed()
    def schedule(self) -> tuple[Change, ...]:
        """(seconds, replicas to hold from then on) at each change: as early as starting takes."""
        return self._changes([period.replicas for period in self.periods])

    def _changes(self, replicas: Sequence[int]) -> tuple[Change, ...]:
        return _ahead(replicas, self.profile.interval_s, self.startup_s)

    def accelerator_hours(self, replicas: Sequence[int] | None = None) -> float:
        """Return accelerator-hours of a day, or those of other ``replicas`` by interval, which
        start as early.
        """
        changes = self.schedule if replicas is None else self._changes(replicas)
        ends = [start for start, _ in changes[1:]] + [self.profile.span_s]
        spans = zip(changes, ends, strict=True)
        seconds = sum(count * (end - start) for (start, count), end in spans)
        return seconds / HOUR_S * self.deployment.kind.accelerators

    @property
    def static_hours(self) -> float:
        """Accelerator-hours of the fleet that the peak needs, all day."""
        return self.deployment.total_accelerators * self.profile.span_s / HOUR_S

    @computed()
    def saving(self) -> float:
        """Share of the static fleet's accelerator-hours that following the day saves."""
        return 1 - self.accelerator_hours() / self.static_hours

    @computed(key="accelerator_hours")
    def hours(self) -> dict[str, float]:
        """Accelerator-hours of a day as planned, static, and by the certificate."""
        least = self.accelerator_hours([period.certified for period in self.periods])
        planned = self.accelerator_hours()
        return {"planned": planned, "static": self.static_hours, "certified": least}

    @computed()
    def cost(self) -> dict[str, float]:
        """What the planned and the static fleet cost a day."""
        price = self.deployment.kind.price
        return {name: self.hours[name] * price for name in ("planned", "static")}


def plan_day(
    profile: RateProfile,
    workload: Workload,
    deployment: Deployment,
    targets: Sequence[Target | str] | Aim,
    *,
    replicas: Sequence[int] = (),
    most_replicas: int | None = None,
    least_replicas: int = 1,
    startup_minutes: float = 0.0,
    check: bool = True,
    progress: Report | None = None,
    **asked: Any,
) -> DayPlan:
    """Return the least replicas for each interval of a day, from the highest rate down."""
    # Recorded arrivals are resampled as Poisson ones. Targets are an `Aim`, or for `Aim.of`, with
    # what else is ``asked``. ``replicas`` are the numbers allowed; without them all from least to
    # most (by default `MOST`). A starting replica is paid for.
    if deployment.other is not None:
        raise InputError(
            f"the fleet is {deployment.fleet}, but a day is planned for one kind of replica, for "
            "which of two to stop at night is not searched; give a fleet of one kind"
        )
    counts = _counts(sum(deployment.ratio or (1,)), replicas, least_replicas, most_replicas)
    startup_s = 60 * checks.number(
        "startup_minutes", startup_minutes, 0, profile.span_s / 60, "minutes", "of the day"
    )
    workload = resampled(workload, profile.peak)
    aim = targets if isinstance(targets, Aim) else Aim.of(targets, **asked)
    family = Family(deployment.with_replicas(counts[0]), counts)
    report = progress or (lambda share, what: None)
    rates = sorted({rate for rate in profile.rates.tolist() if rate > 0}, reverse=True)
    simulated: list[Evaluation] = []
    fleets = {0.0: (counts[0], True)}
    for index, rate in enumerate(rates):
        report(index / len(rates), f"{rate:.4g} requests/s")
        search = Search(_AtTheRate(workload.with_rate(rate), aim, family, simulated), [family])
        search.run()
        met = search.best is not None
        fleets[rate] = counts[search.prospects[0].answer or 0] if met else counts[-1], met
    periods = _periods(profile, workload, family, fleets)
    report(1.0, "whole days")
    replicas = [period.replicas for period in periods]
    peak = deployment.with_replicas(max(replicas))
    days, why = None, []
    if check:
        try:
            days = simulate_day(profile, workload, peak, replicas, aim.targets)
        except InputError as error:
            why = [f"whole days are not simulated: {error}"]
    return DayPlan(
        profile, peak, aim.targets, periods, startup_s, tuple(simulated), days,
        (*_cautions(profile, periods, days), *why),
    )  # fmt: skip


def _counts(step: int, replicas: Sequence[int], least: int, most: int | None) -> tuple[int, ...]:
    """Return the numbers of replicas that the fleet may have, rising."""
    between = "the fleet is between these"
    if most is None:
        most = max(replicas, default=MOST)
    most = checks.whole("most_replicas", most, step, MOST_REPLICAS, "", between)
    least = checks.whole("least_replicas", least, 1, most, "", between)
    allowed = sorted(replicas) or range(step, most + 1, step)
    counts = tuple(count for count in allowed if least <= count <= most)
    if not counts:
        raise InputError(
            f"{span(allowed[0], allowed[-1], 'replica')} may be searched, but none of {least:,} to "
            f"{most:,}, as the day asks for; change plan.search.replicas, or "
            "plan.day.least_replicas and most_replicas"
        )
    return counts


class _AtTheRate(TargetsAtRate):
    """Meet targets at one of many rates; what was simulated at others tells of this one."""

    asks_the_most = False  # of a fleet with any number

    def __init__(
        self, workload: Workload, aim: Aim, family: Family, simulated: list[Evaluation]
    ) -> None:
        super().__init__(workload, aim)
        self.simulated = simulated
        needed = [of.deployment.replicas / of.rate for of in simulated if of.answer == "met"]
        if needed:  # by a request a second, of those that do
            likely = math.ceil(workload.rate * min(needed) * (1 - 1e-12))
            self.likely = {family.name: min(likely, family.counts[-1])}

    def judge(self, family: Family, count: int, report: Callable[[float], None]) -> Evaluation:
        """Return what implies whether so many do, or simulate them."""
        fleet = family.smallest
        alone = fleet.router.sends == "at random" and not fleet.prefill_replicas
        share = self.workload.rate / count
        for evaluation in self.simulated:
            # at the same rate for each, more replicas serve no worse; at random, the same
            replicas = evaluation.deployment.replicas
            sign = 1 if evaluation.answer == "met" else -1
            lighter, more = evaluation.rate / replicas - share, count - replicas
            if sign * lighter >= 0 and (alone or sign * more >= 0):
                return evaluation
        self.simulated.append(super().judge(family, count, report))
        return self.simulated[-1]


def _periods(
    profile: RateProfile, workload: Workload, family: Family,
    fleets: Mapping[float, tuple[int, bool]],
) -> tuple[Period, ...]:  # fmt: skip
    """Return the intervals with their fleets, how long queues take to settle, and what is left."""
    fleet, step = family.smallest, sum(family.smallest.ratio or (1,))
    per_step = _most_rate(workload, fleet.with_replicas(step))
    prompt, output = (tokens.astype(float) for tokens in workload.requests(10_000)[1:3])
    tokens = prompt + output
    variability = float(1 + tokens.var() / tokens.mean() ** 2)
    periods: list[Period] = []
    left = 0.0
    for index, rate in enumerate(profile.rates.tolist()):
        replicas, met = fleets[rate]
        most = per_step / step * replicas
        units = replicas if fleet.splits or fleet.router.by_shares else 1
        settles = relaxation_requests(rate / most, variability) / (rate / units) if rate else 0.0
        left = max(left + (rate - most) * profile.interval_s, 0.0)
        # with fewer steps than these a rate is at or above what any policy carries
        least = (math.floor(rate / per_step * (1 - 1e-12)) + 1) * step if rate else 0
        start = index * profile.interval_s
        periods.append(Period(start, rate, least, replicas, met, rate / most, settles, left))
    return tuple(periods)


def _most_rate(workload: Workload, deployment: Deployment) -> float:
    """Return the requests/s above which no policy of so many replicas is stable."""
    if not deployment.prefill_replicas:
        return certify(workload, deployment.server).max_rate * deployment.replicas
    return workload.rate / certify(network_of(workload, deployment)).rho


def _cautions(
    profile: RateProfile, periods: Sequence[Period], days: DayCheck | None
) -> Iterator[str]:
    """Say where an interval cannot be planned by itself, and what whole days show."""
    many = counted(len(periods), "interval")
    missed = [index for index, period in enumerate(periods) if not period.met]
    if missed:
        yield (
            f"{len(missed)} of {many} miss the targets even with "
            f"{counted(periods[missed[0]].replicas, 'replica')}, from {profile.clock(missed[0])} "
            "on: allow more (plan.day.most_replicas), or another deployment"
        )
    # where more arrives than is served nothing settles: that is a backlog
    settles = {index: period.settles_s for index, period in enumerate(periods)}
    slow = [i for i, s in settles.items() if profile.interval_s < RELAXATIONS * s < math.inf]
    if slow:
        worst = max(slow, key=settles.__getitem__)
        yield (
            f"queues settle slowly against intervals of {profile.interval_s:,.0f} s in "
            f"{len(slow)} of {len(periods)} (relaxation time {settles[worst]:,.0f} s at "
            f"{profile.clock(worst)}): what is planned there for a rate that lasts is not "
            "reached, nor left, within the interval"
        )
    fullest = max(range(len(periods)), key=lambda index: periods[index].backlog)
    if backlog := periods[fullest].backlog:
        yield (
            "a backlog is carried into later intervals, of at least "
            f"{counted(max(int(backlog), 1), 'request')} at the end of the one from "
            f"{profile.clock(fullest)}: planning each by itself is wrong after it"
        )
    if days is not None and days.above:
        most = max(days.above, key=lambda above: above.value / above.target.limit_s)
        above = len({above.period for above in days.above})
        yield (
            f"in {counted(days.days, 'simulated day')} {above:,} of {many} lie above a target, "
            f"most the one from {profile.clock(most.period)}: {most.value:.4g} s for {most.target}"
        )


def _ahead(replicas: Sequence[int], interval_s: float, startup_s: float) -> tuple[Change, ...]:
    """Return from when how many serve or start: the most needed until startup_s later."""
    count = len(replicas)
    starts = [index * interval_s for index in range(count)]
    early = ((start - startup_s) % (count * interval_s) for start in starts)
    changes: list[Change] = []
    for start in sorted({0.0, *starts, *early}):
        first = int(start / interval_s * (1 + 1e-12) + 1e-9)
        last = math.floor((start + startup_s) / interval_s + 1e-9)
        needed = max(replicas[at % count] for at in range(first, min(last, first + count) + 1))
        if not changes or changes[-1].replicas != needed:
            changes.append(Change(start, needed))
    return tuple(changes)
