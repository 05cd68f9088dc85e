"""Up to which rate latency targets hold: a bisection whose rates are judged by simulation."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.checking.answer import TargetAnswer, judged
from penstock.checking.batch_means import GAP_SECTIONS
from penstock.checking.enough_requests import MOST_TIMES_LONGER, estimate
from penstock.checking.goodput import goodput_of_jobs, goodput_of_run
from penstock.checking.latency_network import network_steady_state
from penstock.checking.recordings import recording_notes
from penstock.checking.targets import Estimate, Judgement, Target
from penstock.errors import InputError
from penstock.simulation.progress import Progress
from penstock.simulation.simulate import RunOptions, run_network
from penstock.system.prefix_cache import as_serving
from penstock.system.server import Server
from penstock.theory.certificate import certify
from penstock.workload.workload import Workload

if TYPE_CHECKING:
    from penstock.system.network import Network

REQUESTS = 20_000
"""Requests, or jobs, of the first run at a rate, where neither a recording nor the user says."""

_ALONE = 1e-3  # of the stable rate: there each request is served alone
_CONFIDENCE = 0.95
_WORDS: tuple[Judgement, ...] = ("met", "undecided", "missed")  # from good to bad


class TargetTrial(NamedTuple):
    """A rate that was tried, and what simulation says there."""

    rate: float
    answers: Mapping[str, TargetAnswer]  # by target, in a network with its stage or workflow
    goodput: Estimate

    @property
    def worst(self) -> str:
        """Which target is furthest from being met, and so decides."""

        def excess(name: str) -> tuple[int, float]:
            target, of, judgement = self.answers[name]
            return _WORDS.index(judgement), ((of and of.value) or 0.0) / target.limit_s

        return max(self.answers, key=excess)

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
        answers = {str(target): judged(target, steady) for target in targets}
        return TargetTrial(rate, answers, goodput_of_run(targets, run, steady, _CONFIDENCE))

    return judge


def judge_of_network(
    network: "Network", targets: Sequence[Target], stable: float, jobs: int, seed: int
) -> Judge:
    """Return what judges a network at a load: the worst stage or workflow counts."""
    model, pools = network.model(), certify(network).pools
    calls = [name for name, tokens in zip(model.stages, model.prefill, strict=True) if tokens > 0]
    if len(calls) > len(network.workflows) and any(one.metric == "tpot_s" for one in targets):
        raise InputError(
            "a target limits tpot, which in jobs of several calls counts what lies between these; "
            "limit tbt"
        )
    # While undecided the run doubles; all looks together are as sure as asked (Bonferroni).
    sizes = [jobs * 2**double for double in range(MOST_TIMES_LONGER.bit_length())]
    level = 1 - (1 - _CONFIDENCE) / len(sizes)
    fullest = min(pool.max_load for pool in pools)

    def judge(load: float, part: Progress) -> TargetTrial:
        loads = [load / stable * fullest / pool.max_load for pool in pools]
        offered = network.with_load(load)
        for size in sizes:
            options = RunOptions(drain=True, progress=part)
            run = run_network(offered, size, seed, options, gap_sections=GAP_SECTIONS)
            steady = network_steady_state(
                run, confidence=level, targets=targets,
                loads=loads if network.reuse_is_certain else None,
            )  # fmt: skip
            places = {
                "ttft_s": {call: steady.stages[call]["ttft_s"] for call in calls},
                "tbt_s": {"": steady.tbt_s},
                "tpot_s": {"": steady.tpot_s},
                "e2e_s": steady.workflows,
            }
            answers = {
                f"{target} of {place}" if place else str(target): TargetAnswer(
                    target, of[target.statistic], target.judge(of[target.statistic])
                )
                for target in targets
                for place, of in places[target.metric].items()
            }
            trial = TargetTrial(load, answers, goodput_of_jobs(targets, run, steady, level))
            if trial.judgement != "undecided":
                break
        return trial

    return judge
