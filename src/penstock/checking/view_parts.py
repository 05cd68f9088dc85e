"""What pages of servers, networks and comparisons share: verdicts, sections, figures, words."""

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Protocol

import numpy as np

from penstock.checking.answer import Answer, Drawn
from penstock.checking.head import BECAUSE, MIDDLE, SAME
from penstock.checking.metastable import Metastable
from penstock.checking.storm import Storm
from penstock.checking.targets import Estimate, TargetAnswer
from penstock.show.page import Fact, Figure, Hypothesis, Section, Table, Verdict
from penstock.simulation.run import Run
from penstock.system.kinds import System
from penstock.system.server import Server
from penstock.theory.certificate import Certificate
from penstock.theory.limits import Limit
from penstock.words import METRICS, counted, near, near_one, seconds, sentence
from penstock.workload.workload import Workload

Parts = tuple[Section, Sequence[Section], Sequence[Section], Sequence[Section]]
"""What pages of servers and of networks differ in: load, pools, stages, and latency."""

NO_LATENCY = Section("No latency", ["There is no steady state whose latency could be told."])


class Doubted(Protocol):
    """What may contradict itself."""

    @property
    def disagreement(self) -> str | None:
        """What to doubt then; else None."""


def heading_of(system: System, policies: str = "") -> str:
    """Say what arrives, and what serves it, under what policies; of a network what visits pools."""
    if isinstance(system, tuple):
        workload, server = system
        return f"{traffic(workload)}; {policies or server.policy.name}, {server.limits}"
    replicas = int(system.replicas.sum())
    pools = counted(len(system.pools), "pool")
    if replicas > len(system.pools):
        pools += f" of {replicas:,} replicas in all"
    workflows = [
        f"{workflow.name}: {workflow.rate:,.4g} jobs/s, {counted(len(workflow.stages), 'stage')}"
        for workflow in system.workflows
    ]
    return "; ".join([pools, *workflows])


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
        if answer.metastable is not None:
            verdicts.append(Verdict("metastable", f"{answer.metastable.reason}.", by_test))
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
        said += f" {sentence(doubt.held)}"
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
    guarded = run.rows is not None and run.rows.refusals is not None
    others = f"{run.unfinished:,} {'not served' if guarded else 'unfinished'}"
    if run.ends is None:
        did = (
            f"{counted(run.arrived, 'request')} ({others}), "
            f"{run.n_batches:,} batches of {run.tokens_per_batch:,.0f} tokens on average, "
            f"{run.seconds:,.0f} s: {run.tokens_per_s:,.0f} tokens/s; a batch, however "
            f"small, runs {run.utilisation:.0%} of the time"
        )
    else:
        did = (
            f"{counted(run.arrived, 'job')} ({others}), "
            f"{counted(run.requests.height, 'request')}, {run.seconds:,.0f} s"
        )
    work = "backlog" if run.ends is None else "work that is left"
    return (
        f"{did}; over the second half of the arrivals the {work} changed by "
        f"{_growth(run.growth_tokens_per_s)}{run.memory_facts}."
    )


ALL_CACHED = "with what this run found; even if prefix caches keep everything, "
"""Before a limit beside the margin of a run, which finds less."""


def load_section(certificate: Certificate, server: Server, verdict: str = "") -> Section:
    """Lay out what arrives at a server, and what can be carried."""
    load = certificate.load
    max_rate = certificate.max_rate
    capacity = load.capacity_in_words
    if server.max_batch_size is not None and server.max_batch_size < server.token_budget:
        capacity += f"; the max batch size of {server.max_batch_size:,} can only lower it"
    offered = (
        f"{load.offered_tokens_per_s:,.0f} tokens/s arrive, {load.tokens_per_request:,.0f} tokens "
        "a request"
    )
    offered += _cached(certificate)
    headroom = max_rate / load.arrival_rate - 1
    cached = "" if certificate.measured is None else ALL_CACHED
    limit = (
        f"{cached}no policy is stable above {max_rate:,.4g} requests/s ({headroom:+.1%} from here)"
    )
    facts = [
        Fact("Load rho", near_one(certificate.rho), offered),
        Fact("Capacity", f"{load.capacity_tokens_per_s:,.0f}", capacity),
        margin_fact(certificate.margin, limit + _beside_the_limit(certificate, server), verdict),
    ]
    return Section("Load", facts=facts, tables=limits_table(certificate), why=True)


def _cached(certificate: Certificate) -> str:
    """Say which load is shown beside a prefix cache, and which it could be."""
    if certificate.rho_at_least is None or certificate.rho_without_cache is None:
        return ""
    which = f"; {near_one(certificate.rho_without_cache)} without the prefix cache, this is "
    if certificate.measured is None:
        return which + "at least, if it kept everything"
    return (
        f"{which}with what it found in this run (measured), {near_one(certificate.rho_at_least)} "
        "is the least, if it kept everything"
    )


def limits_table(certificate: Certificate) -> list[Table]:
    """Lay out what is asked of each limit, where a pool has one besides its token budget."""
    if all(len(pool.limits) < 2 for pool in certificate.pools):
        return []
    limits = [(pool.name, limit) for pool in certificate.pools for limit in pool.limits]
    columns: dict[str, Callable[[tuple[str, Limit]], str]] = {
        "Pool": lambda of: of[0],
        "Limit": lambda of: of[1].name,
        "Load": lambda of: near_one(of[1].load),
        "Error": lambda of: f"{of[1].standard_error:.1g}" if of[1].standard_error else "-",
        "Requests/s": lambda of: f"{of[1].carried * certificate.rate:,.4g}",
        "From": lambda of: of[1].why,
        "By": lambda of: of[1].theorem,
    }
    caption = (
        "What arrives over what a limit lets any policy carry: above 1 the backlog grows for ever. "
        "Below 1 a limit may still bind: see the verdict, and its hypotheses"
    )
    spare: tuple[str, ...] = ()
    if certificate.of_server:
        del columns["Pool"]
        caption += ". Requests/s: no policy is stable above them"
    else:
        del columns["Requests/s"]
        spare = ("From", "By", "Error")
    if any(limit.standard_error for _, limit in limits):
        caption += ". Error: standard error of a load that is sampled"
    else:
        del columns["Error"]
    look = {"title": "Load by limit", "spare": spare, "detail": True}
    return [Table.of(columns, limits, caption=f"{caption}.", **look)]


def _beside_the_limit(certificate: Certificate, server: Server) -> str:
    """Say what any policy's limit leaves out: unbounded KV memory, and lower ones of schedulers."""
    certified = certificate.certified_rate or 0.0
    if certified >= (1 - SAME) * certificate.max_rate or certificate.margin < 0:
        return ""
    said = "; a scheduler's own limit may be lower: ask max-rate"
    bounded = any(bound.name == "KV memory" for bound in certificate.bounds)
    if server.memory is not None and not bounded:
        return f", KV memory not counted{said}"
    return said


def figure_sections(runs: Mapping[str, Run], refused: Sequence[str] = ()) -> list[Section]:
    """Draw tokens in the system, and latency but for those that have no steady state."""
    tokens = Section("Tokens in the system", figures=lambda: [_figures().token_figure(runs)])
    if len(refused) == len(runs):
        return [tokens]
    latency = Section(
        "Distribution of latency", figures=lambda: [_figures().latency_figure(runs, refused)]
    )
    return [tokens, latency]


def two_states_section(of: Metastable | Storm) -> Section:
    """Draw a server with two states from both sides."""
    return Section("Two states at one rate", figures=lambda: [_figures().both_states_figure(of)])


def batch_sections(runs: Mapping[str, Run], drawn: Mapping[str, Drawn]) -> list[Section]:
    """Draw the batches in the region, and who was in the first of them, if there was any batch."""
    runs = {name: run for name, run in runs.items() if run.compositions.height}
    if not runs:
        return []

    def region() -> list[Figure]:
        point = next(iter(drawn.values())).point
        own = {name: region for name in runs if (region := drawn[name].point.own) is not None}
        draw = _figures().region_figure
        limits = {"most": point.most, "not_drawn": point.not_drawn}
        return [draw(point.region, runs, point=point.point, own=own, **limits)]

    def first() -> list[Figure]:
        return [_figures().gantt_figure(drawn[name].first, name) for name in runs]

    rated = all(of.workload.has_rate for of in drawn.values())
    return [
        *([Section("Batches in the region", figures=region)] if rated else []),
        Section("The first batches", figures=first),
    ]


def _figures() -> ModuleType:
    """Return what draws, which a terminal has no use for."""
    from penstock.checking import figures

    return figures
