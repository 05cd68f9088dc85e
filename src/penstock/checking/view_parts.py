"""What pages of servers, networks and comparisons share: verdicts, hypotheses, words."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from penstock.checking.answer import Answer
from penstock.checking.head import BECAUSE, MIDDLE
from penstock.checking.targets import Estimate, TargetAnswer
from penstock.show.page import Fact, Hypothesis, Section, Verdict
from penstock.simulation.run import Run
from penstock.system.server import Server
from penstock.theory.certificate import Certificate
from penstock.words import (
    METRICS,
    counted,
    near,
    seconds,
    sentence,
)
from penstock.workload.workload import Workload

NO_LATENCY = Section("No latency", ["There is no steady state whose latency could be told."])


class Doubted(Protocol):
    """What may contradict itself."""

    @property
    def disagreement(self) -> str | None:
        """What to doubt then; else None."""


def heading_of_server(workload: Workload, server: Server, policies: str) -> str:
    """Say what arrives, and what serves it."""
    return f"{traffic(workload)}; {policies}, {server.limits}"


def traffic(workload: Workload) -> str:
    """Say what arrives."""
    return (
        f"{workload.describe()}, {workload.pace}, "
        f"{workload.mean_prompt:,.0f} prompt + {workload.mean_output:,.0f} output tokens"
    )


def contradictions(answers: Mapping[str, Doubted]) -> list[Verdict]:
    """Return where theorem and test contradict each other, by the names of the answers."""
    return [
        Verdict("contradiction", f"{answer.disagreement}.", about=name)
        for name, answer in answers.items()
        if answer.disagreement
    ]


def theorem_and_test(answer: Answer) -> list[Verdict]:
    """Return what theorem and test say, the one that decides first."""
    # Before them contradictions, and what hinges on batch times that are not exact.
    certificate = answer.certificate
    test = answer.stability
    doubt = answer.calibration
    source = f"by {certificate.theorem}" if certificate.theorem else "to theory"
    by_test = "by simulation"
    if doubt is not None and not (doubt.by_theorem and doubt.holds(certificate.verdict)):
        source += MIDDLE
        by_test += MIDDLE
    verdicts = [Verdict(certificate.verdict, f"{certificate.reason}.", source)]
    if test:
        verdicts.append(Verdict(test.verdict, f"{test.reason}.", by_test))
        if certificate.verdict == "unknown":
            verdicts.reverse()
    return contradictions({"": answer}) + hinging({"": answer}) + verdicts


def hinging(answers: Mapping[str, Answer]) -> list[Verdict]:
    """Return what hinges on batch times that are not exact, by the names of the answers."""
    return [
        Verdict("undecided", f"{answer.reason}.", BECAUSE, about=name)
        for name, answer in answers.items()
        if answer.hinges_on_calibration
    ]


def batch_times(answer: Answer) -> list[Section]:
    """Return the intervals that batch times leave which are not exact."""
    doubt = answer.calibration
    if doubt is None:
        return []
    facts = [
        Fact("Load", f"{doubt.load.low:.3f} to {doubt.load.high:.3f}"),
        Fact(
            "No policy above",
            f"{doubt.max_rate.low:,.4g} to {doubt.max_rate.high:,.4g}",
            doubt.unit,
        ),
        Fact("Margin", f"{near(doubt.margin.low)} to {near(doubt.margin.high)}"),
        *(
            Fact(METRICS[metric], f"{ends.low:.2f} to {ends.high:.2f}", "times the mean below")
            for metric, ends in doubt.latency.items()
        ),
    ]
    origin = "" if answer.hinges_on_calibration else f" ({doubt.origin})"
    said = f"What is not known of the batch times{origin}, beside the intervals of simulation."
    if doubt.cached:
        said += " Load, limit and margin are those of a prefix cache that keeps everything."
    if not answer.hinges_on_calibration and not answer.disagreement:
        said += f" {sentence(doubt.held(answer.verdict))}"
    return [Section("Batch times", [said], facts=facts, why=True)]


def target_verdicts(targets: Sequence[TargetAnswer]) -> list[Verdict]:
    """Return each target, whether it is met, and the estimate that says so."""
    verdicts = []
    for answer in targets:
        text = "there is no steady state."
        if answer.estimate:
            text = f"{with_interval(answer.estimate)} s."
        verdicts.append(Verdict(answer.judgement, text, "", str(answer)))
    return verdicts


def with_interval(estimate: Estimate) -> str:
    """Return an estimate and its interval as text; ? for an end that is not known."""
    if estimate.value is None:
        return "-"
    value = seconds(estimate.value)
    if estimate.low is None:
        return value
    high = "?" if estimate.high is None else seconds(estimate.high)
    return f"{value} ({seconds(estimate.low)} to {high})"


def margin_fact(margin: float, limit: str, verdict: str = "") -> Fact:
    """Return what is left before no policy is stable.

    Beside an unstable verdict it is called the best policy's, since this one has none.
    """
    if verdict == "unstable" and margin > 0:
        return Fact("Best policy", near(margin), f"is left to it, not to this one: {limit}")
    return Fact("Margin", near(margin), limit)


def hypotheses_section(certificate: Certificate) -> list[Section]:
    """Say which hypotheses hold, those that fail first; none at a limit."""
    if not certificate.hypotheses:
        return []
    failing_first = sorted(certificate.hypotheses, key=lambda hypothesis: hypothesis.held)
    rows = [Hypothesis(h.name, h.state, h.why) for h in failing_first]
    used = "the theorems that say stable"  # which a network was asked for, whatever is proved
    if certificate.theorem and (certificate.of_server or certificate.verdict == "stable"):
        used = certificate.theorem
    return [Section(f"Hypotheses of {used}", hypotheses=rows, why=True)]


def _growth(tokens_per_s: float) -> str:
    """Return a rate of growth with its sign."""
    if np.isnan(tokens_per_s):
        return "an unknown number of tokens/s"
    if abs(tokens_per_s) < 0.05:
        return "0.0 tokens/s"
    return f"{tokens_per_s:+,.1f} tokens/s"


def run_in_words(run: Run) -> str:
    """Say what one run did."""
    if run.ends is None:
        did = (
            f"{counted(run.arrived, 'request')} ({run.unfinished:,} unfinished), "
            f"{run.n_batches:,} batches of {run.tokens_per_batch:,.0f} tokens on average, "
            f"{run.seconds:,.0f} s: {run.tokens_per_s:,.0f} tokens/s; a batch, however "
            f"small, runs {run.utilisation:.0%} of the time"
        )
    else:
        did = (
            f"{counted(run.arrived, 'job')} ({run.unfinished:,} unfinished), "
            f"{counted(run.requests.height, 'request')}, {run.seconds:,.0f} s"
        )
    work = "backlog" if run.ends is None else "work that is left"
    return (
        f"{did}; over the second half of the arrivals the {work} changed by "
        f"{_growth(run.growth_tokens_per_s)}{run.memory_facts}."
    )
