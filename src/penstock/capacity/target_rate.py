"""Up to which rate latency targets hold: a bisection whose rates are judged by simulation."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from penstock.checking.check_network import JobsAsked
from penstock.checking.enough_requests import estimate
from penstock.checking.goodput import goodput
from penstock.checking.latency import SteadyState, judged
from penstock.checking.recordings import recording_notes
from penstock.checking.targets import Estimate, Judgement, Target, TargetAnswer
from penstock.errors import InputError
from penstock.show.answers import Meaning, Shown, computed
from penstock.show.page import Section
from penstock.simulation.progress import Progress
from penstock.simulation.run import Run
from penstock.system.prefix_cache import as_serving
from penstock.system.server import Server
from penstock.theory.certify import certify
from penstock.workload.workload import Workload

if TYPE_CHECKING:
    from penstock.system.network import Network

REQUESTS = 20_000
"""Requests, or jobs, of the first run at a rate, where neither a recording nor the user says."""

_HELD = Section("Targets")
_ALONE = 1e-3  # of the stable rate: there each request is served alone
_CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True, eq=False)
class TargetTrial:
    """A rate that was tried, and what simulation says there."""

    rate: Annotated[float, Meaning("Requests/s, or times the load.")]
    answers: Annotated[
        Mapping[str, TargetAnswer],
        Meaning("By target, in a network with its stage or workflow.", key="targets"),
    ]
    goodput: Annotated[Estimate, Meaning("Share of the requests, or jobs, within all limits.")]

    @property
    def worst(self) -> str:
        """Which target is furthest from being met, and so decides."""
        return max(self.answers, key=lambda name: self.answers[name].excess)

    @computed(key="answer")
    def judgement(self) -> Judgement:
        """What is said of all targets together."""
        return self.answers[self.worst].judgement


Judge = Callable[[float, Progress], TargetTrial]


@dataclasses.dataclass(frozen=True, eq=False)
class TargetRate(Shown):
    """Up to which rate latency targets hold: requests/s, or of a network times its load."""

    rate: Annotated[
        float,
        Meaning(
            "Highest rate tried at which all targets are known to be met; 0: not even without "
            "load.",
            _HELD,
            "Met up to",
        ),
    ]
    missed: Annotated[
        float,
        Meaning(
            "Lowest rate above it at which one is known to be missed, or, where there is none, "
            "that is not known to be stable. Between the two simulation leaves it open.",
            _HELD,
            "Not at",
        ),
    ]
    binding: Annotated[
        str, Meaning("The target that is missed there, or ``stability``.", _HELD, "Limit")
    ]
    goodput: Annotated[
        Estimate, Meaning("Share of the requests, or jobs, within all limits at ``rate``.")
    ]
    goodput_rate: Annotated[float, Meaning("So many requests or jobs a second.", _HELD, "Goodput")]
    trials: Annotated[tuple[TargetTrial, ...], Meaning("The rates tried, in order.")] = (
        dataclasses.field(repr=False)
    )
    precision: Annotated[float, Meaning("Relative distance that was asked for.", key=None)] = 0.0

    @property
    def gap(self) -> float | None:
        """Relative distance that runs too short to judge leave; None: what was asked is reached."""
        wide = self.rate > 0 and self.missed > self.rate * (1 + self.precision) ** 2
        unsure = any(
            one.judgement == "undecided" and self.rate < one.rate <= self.missed
            for one in self.trials
        )
        return self.missed / self.rate - 1 if wide and unsure else None

    @property
    def limits(self) -> str:
        """The targets in words."""
        return " and ".join({str(answer.target): 0 for answer in self.trials[0].answers.values()})


def target_rate(
    judge: Judge, stable: float, above: float, precision: float, per_s: float, progress: Progress
) -> TargetRate:
    """Find where targets are last known to be met, and then where one is first known missed.

    ``above`` is the lowest rate that is not known to be stable, ``per_s`` the requests, or jobs, a
    second at a rate of 1.
    """
    trials: list[TargetTrial] = []

    def tried(rate: float) -> Judgement:
        done = len(trials)
        trials.append(judge(rate, lambda share: progress(1 - 0.85 ** (done + share))))
        return trials[-1].judgement

    def halved(low: float, high: float, *words: Judgement) -> tuple[float, float]:
        while high > low * (1 + precision):
            rate = (low + high) / 2
            low, high = (rate, high) if tried(rate) in words else (low, rate)
        return low, high

    met, missed = _ALONE * stable, stable
    if tried(met) == "met":
        met, _ = halved(met, stable, "met")
        known = (one.rate for one in trials if one.judgement == "missed" and one.rate > met)
        missed = min(known, default=stable)
        open_to = max(one.rate for one in trials if met <= one.rate < missed)
        _, missed = halved(open_to, missed, "met", "undecided")
    binding = next((one.worst for one in trials if one.rate == missed), "stability")
    missed = missed if missed < stable else above
    there = next(one for one in trials if one.rate == met)
    if there.judgement != "met":
        return TargetRate(0.0, met, there.worst, Estimate(None), 0.0, tuple(trials))
    good = met * per_s * (there.goodput.value or 0.0)
    return TargetRate(met, missed, binding, there.goodput, good, tuple(trials), precision)


def refuse_if_never(found: TargetRate, unit: str) -> None:
    """Raise an `InputError` where targets are not known to be met even without load."""
    if found.rate:
        return
    value = found.trials[0].answers[found.binding].value
    raise InputError(
        f"{found.binding} is not known to be met at any rate: at {found.missed:.3g} {unit}, where "
        f"requests are alone, it is {value}; give a higher limit, or faster hardware"
    )


def judge_of_server(
    workload: Workload, server: Server, targets: Sequence[Target], stable: float, requests: int
) -> Judge:
    """Return what judges a server at a rate, as `penstock.check` judges targets."""
    server = as_serving(workload, server)

    def judge(rate: float, part: Progress) -> TargetTrial:
        offered = workload.with_rate(rate)
        if recording_notes(offered, certify(offered, server))[1]:  # there is no steady state
            missed = {str(target): judged(target, None) for target in targets}
            return TargetTrial(rate, missed, Estimate(None))
        run, steady = estimate(
            offered, server, requests=requests, targets=targets, confidence=_CONFIDENCE,
            rho=rate / stable, progress=part,
        )  # fmt: skip
        return _trial(rate, targets, run, steady)

    return judge


def judge_of_network(
    network: "Network", targets: Sequence[Target], stable: float, jobs: int, seed: int
) -> Judge:
    """Return what judges a network at a load: the worst stage or workflow counts."""
    pools = certify(network).pools
    fullest = min(pool.max_load for pool in pools)

    def judge(load: float, part: Progress) -> TargetTrial:
        loads = [load / stable * fullest / pool.max_load for pool in pools]
        asked = JobsAsked(network.with_load(load), jobs, None, seed, targets)
        run, steady = asked.simulated(loads if network.reuse_is_certain else None, True, part)
        assert steady is not None
        return _trial(load, targets, run, steady)

    return judge


def _trial(rate: float, targets: Sequence[Target], run: Run, steady: SteadyState) -> TargetTrial:
    """Return what a run says of the targets, at each stage or of each workflow, and of goodput."""
    answers = {str(one): one for target in targets for one in steady.answers(target)}
    return TargetTrial(rate, answers, goodput(targets, run, steady, _CONFIDENCE))
