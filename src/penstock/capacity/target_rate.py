"""Up to which rate latency targets hold: a bisection whose rates are judged by simulation."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.checking.batch_means import GAP_SECTIONS
from penstock.checking.check_network import refuse_between_calls
from penstock.checking.enough_requests import MOST_TIMES_LONGER, estimate, until_known
from penstock.checking.goodput import goodput
from penstock.checking.latency import SteadyState, judged
from penstock.checking.recordings import recording_notes
from penstock.checking.targets import Estimate, Judgement, Target, TargetAnswer
from penstock.errors import InputError
from penstock.simulation.progress import Progress
from penstock.simulation.run import Run
from penstock.simulation.simulate import RunOptions, run_network
from penstock.system.prefix_cache import as_serving
from penstock.system.server import Server
from penstock.theory.certify import certify
from penstock.workload.workload import Workload

if TYPE_CHECKING:
    from penstock.system.network import Network

REQUESTS = 20_000
"""Requests, or jobs, of the first run at a rate, where neither a recording nor the user says."""

_ALONE = 1e-3  # of the stable rate: there each request is served alone
_CONFIDENCE = 0.95


class TargetTrial(NamedTuple):
    """A rate that was tried, and what simulation says there."""

    rate: float
    answers: Mapping[str, TargetAnswer]  # by target, in a network with its stage or workflow
    goodput: Estimate

    @property
    def worst(self) -> str:
        """Which target is furthest from being met, and so decides."""
        return max(self.answers, key=lambda name: self.answers[name].excess)

    @property
    def judgement(self) -> Judgement:
        """What is said of all targets together."""
        return self.answers[self.worst].judgement


Judge = Callable[[float, Progress], TargetTrial]


@dataclasses.dataclass(frozen=True, eq=False)
class TargetRate:
    """Up to which rate latency targets hold: requests/s, or of a network times its load.

    Attributes
    ----------
    rate
        Highest rate tried at which all targets are known to be met; 0: not even without load.
    missed
        Lowest rate above it at which one is known to be missed, or, where there is none, that is
        not known to be stable. Between the two simulation leaves it open.
    binding
        The target that is missed there, or ``stability``.
    goodput
        Share of the requests, or jobs, within all limits at ``rate``.
    goodput_rate
        So many requests, or jobs, a second.
    trials
        The rates tried, in order.
    """

    rate: float
    missed: float
    binding: str
    goodput: Estimate
    goodput_rate: float
    trials: tuple[TargetTrial, ...] = dataclasses.field(repr=False)

    @property
    def limits(self) -> str:
        """The targets in words."""
        return " and ".join({str(answer.target): 0 for answer in self.trials[0].answers.values()})

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        names = ("rate", "missed", "binding", "goodput_rate")
        trials = [
            {
                "rate": one.rate,
                "answer": one.judgement,
                "goodput": one.goodput.as_dict(),
                "targets": {name: answer.as_dict() for name, answer in one.answers.items()},
            }
            for one in self.trials
        ]
        said = {name: getattr(self, name) for name in names}
        return said | {"goodput": self.goodput.as_dict(), "trials": trials}


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
    return TargetRate(met, missed, binding, there.goodput, good, tuple(trials))


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
    refuse_between_calls(network, targets)
    fullest = min(pool.max_load for pool in pools)

    def judge(load: float, part: Progress) -> TargetTrial:
        loads = [load / stable * fullest / pool.max_load for pool in pools]
        offered = network.with_load(load)

        def simulated(size: int, share: Progress) -> Run:
            options = RunOptions(drain=True, progress=share)
            return run_network(offered, size, seed, options, gap_sections=GAP_SECTIONS)

        run, steady = until_known(
            simulated, jobs, MOST_TIMES_LONGER * jobs, targets,
            loads if network.reuse_is_certain else None, confidence=_CONFIDENCE, progress=part,
        )  # fmt: skip
        return _trial(load, targets, run, steady)

    return judge


def _trial(rate: float, targets: Sequence[Target], run: Run, steady: SteadyState) -> TargetTrial:
    """Return what a run says of the targets, at each stage or of each workflow, and of goodput."""
    answers = {str(one): one for target in targets for one in steady.answers(target)}
    return TargetTrial(rate, answers, goodput(targets, run, steady, _CONFIDENCE))
