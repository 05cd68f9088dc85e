"""What is known of a server as a page: of one policy, of several, of one finite run."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from penstock.checking.answer import Answer, Drawn
from penstock.checking.closed_loop import ClosedAnswer
from penstock.checking.figures import gantt_figure, latency_figure, region_figure, token_figure
from penstock.checking.head import BECAUSE, MIDDLE, SAME
from penstock.checking.head_of_answer import (
    BEHIND_ALL,
    BEHIND_WHY,
    head_of_answer,
    head_of_clients,
    head_of_run,
)
from penstock.checking.head_of_comparison import head_of_policies
from penstock.checking.latency import SteadyState
from penstock.checking.targets import Estimate, TargetAnswer
from penstock.scenario.scenario import Scenario
from penstock.show.page import Fact, Figure, Hypothesis, Page, Section, Table, Verdict
from penstock.simulation.run import Run
from penstock.system.server import Server
from penstock.theory.certificate import Certificate
from penstock.words import (
    LIMITED,
    METRICS,
    STATISTICS,
    counted,
    gathered,
    seconds,
    sentence,
    sharing,
)
from penstock.workload.workload import Workload


class Doubted(Protocol):
    """What may contradict itself."""

    @property
    def disagreement(self) -> str | None:
        """What to doubt then; else None."""


NO_LATENCY = Section("No latency", ["There is no steady state whose latency could be told."])

_MOST_NAMED = 4  # policies that stand before what theory says of them
_HIGHLIGHTS = ("p50", "p99")  # statistics in the table of several policies


def answer_page(answer: Answer, scenario: Scenario | None = None) -> Page:
    """Show an answer: verdicts first."""
    if not answer.is_network:
        name = answer.server.policy.name
        heading = heading_of_server(answer.workload, answer.server, name)
        sections = _sections_of_server(answer, scenario)
    else:
        from penstock.checking.view_network import network_heading, sections_of_network

        heading = network_heading(answer.network)
        sections = sections_of_network(answer)
    return Page(
        title=scenario.name if scenario else "check",
        heading=heading,
        notes=answer.front,
        head=head_of_answer(answer, scenario),
        why=BEHIND_WHY,
        rest=BEHIND_ALL,
        verdicts=_verdicts(answer),
        sections=sections,
    )


def _sections_of_server(answer: Answer, scenario: Scenario | None) -> list[Section]:
    """Return what is known of a server behind the verdicts."""
    name = answer.server.policy.name
    load = _load_facts(answer.certificate, answer.server, answer.verdict)
    step = answer.next_step(scenario.file if scenario else "SCENARIO")
    refused = [name] if answer.latency_refused else []  # whose head says the step
    return [
        *([Section("Next", [sentence(step)], why=True)] if step and not refused else []),
        Section("Load", facts=load, tables=_limits(answer.certificate), why=True),
        *_measured(scenario),
        *batch_times(answer),
        *hypotheses_section(answer.certificate),
        Section("Simulated", [run_in_words(answer.run)], notes=answer.warnings),
        _latency_section(answer),
        *_figure_sections({name: answer.run}, refused),
        *_batch_sections({name: answer.run}, {name: answer.drawn}),
    ]


def closed_page(answer: ClosedAnswer, scenario: Scenario | None = None) -> Page:
    """Show the answer for a closed loop."""
    name = answer.server.policy.name
    return Page(
        title=scenario.name if scenario else "check",
        heading=heading_of_server(answer.workload, answer.server, name),
        notes=answer.front,
        head=head_of_clients(answer, scenario),
        why="what was assumed",
        rest=BEHIND_ALL,
        verdicts=[Verdict("stable", f"{answer.reason}."), *target_verdicts(answer.targets)],
        sections=[
            *_measured(scenario),
            Section("Simulated", [run_in_words(answer.run)], notes=answer.warnings),
            _latency_section(answer),
            *_figure_sections({name: answer.run}),
        ],
    )


def _measured(scenario: Scenario | None) -> list[Section]:
    """Say when and from what batch times were measured."""
    if scenario is None or scenario.measured is None or not scenario.measured.year:
        return []
    of = scenario.measured
    return [Section("Batch times", [f"Measured in {of.year}: {of.origin}."], why=True)]


def run_page(
    scenario: Scenario,
    certificate: Certificate | None,  # None: there is no rate, and no load
    run: Run,
    drawn: Drawn,
    front: Sequence[str],
    warnings: Sequence[str],
) -> Page:
    """Show what happened in one finite run, and in its first batches, without a verdict."""
    name = run.server.policy.name
    load = []
    if certificate is not None:
        facts = _load_facts(certificate, run.server)
        load = [Section("Load", facts=facts, tables=_limits(certificate), why=True)]
    return Page(
        title=scenario.name,
        heading=heading_of_server(scenario.workload, run.server, name),
        notes=front,
        head=head_of_run(scenario, certificate, run),
        why="load, what was assumed" if load else "what was assumed",
        rest="every statistic of the run",
        sections=[
            *load,
            Section("Simulated", [run_in_words(run)], notes=warnings),
            Section("Latency in this run", ["In seconds."], tables=[_latency_of_run(run)]),
            *_figure_sections({name: run}),
            *_batch_sections({name: run}, {name: drawn}),
        ],
    )


def compare_page(
    scenario: Scenario, answers: Mapping[str, Answer], left_out: Mapping[str, str] | None = None
) -> Page:
    """Show the answers for several policies side by side; of those left out, the reasons."""
    left_out = left_out or {}
    first = next(iter(answers.values()))
    runs = {name: answer.run for name, answer in answers.items()}
    refused = [name for name, answer in answers.items() if answer.latency_refused]
    return Page(
        title=scenario.name,
        heading=heading_of_server(scenario.workload, scenario.server, f"{len(answers)} policies"),
        head=head_of_policies(scenario, answers, left_out),
        why="what theory and test say",
        rest="percentiles and intervals",
        notes=[
            *gathered({name: answer.front for name, answer in answers.items()}),
            *(f"{name} is left out: {reason}." for name, reason in left_out.items()),
        ],
        verdicts=contradictions(answers) + hinging(answers),
        sections=[
            Section(
                "Policies",
                tables=[_policies_table(answers)],
                notes=gathered({name: answer.warnings for name, answer in answers.items()}),
                why=True,
            ),
            Section("Latency", ["In seconds."], tables=_latency_of_all(answers)),
            Section(
                "Load",
                facts=_load_facts(first.certificate, scenario.server),
                tables=_limits(first.certificate),
                why=True,
            ),
            Section("Theory", facts=_reasons(answers), why=True),
            *_figure_sections(runs, refused),
            *_batch_sections(runs, {name: answer.drawn for name, answer in answers.items()}),
        ],
    )


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


def _verdicts(answer: Answer) -> list[Verdict]:
    """Return what theorem and test say, what batch times leave open, and the targets."""
    verdicts = theorem_and_test(answer)
    if answer.stability_skipped:
        verdicts.append(Verdict("not tested", f"{answer.stability_skipped}."))
    return verdicts + target_verdicts(answer.targets)


def batch_times(answer: Answer) -> list[Section]:
    """Return the intervals that batch times leave which are not exact."""
    doubt = answer.calibration
    if doubt is None:
        return []
    facts = [
        Fact("Load", f"{doubt.load.low:.3f}", f"to {doubt.load.high:.3f}"),
        Fact(
            "No policy above",
            f"{doubt.max_rate.low:,.4g}",
            f"to {doubt.max_rate.high:,.4g} {doubt.unit}",
        ),
        Fact("Margin", share(doubt.margin.low), f"to {share(doubt.margin.high)}"),
        *(
            Fact(METRICS[metric], f"{ends.low:.2f}", f"to {ends.high:.2f} times the mean below")
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
        return Fact("Best policy", share(margin), f"is left to it, not to this one: {limit}")
    return Fact("Margin", share(margin), limit)


def _load_facts(certificate: Certificate, server: Server, verdict: str = "") -> list[Fact]:
    """Return what arrives and what can be carried."""
    load = certificate.load
    max_rate = certificate.max_rate
    capacity = load.capacity_in_words
    if server.max_batch_size is not None and server.max_batch_size < server.token_budget:
        capacity += f"; the max batch size of {server.max_batch_size:,} can only lower it"
    offered = (
        f"{load.offered_tokens_per_s:,.0f} tokens/s arrive, {load.tokens_per_request:,.0f} of "
        "each request"
    )
    offered += _cached(certificate)
    headroom = max_rate / load.arrival_rate - 1
    limit = f"no policy is stable above {max_rate:,.4g} requests/s ({headroom:+.1%} from here)"
    return [
        Fact("Load rho", share(certificate.rho, 1.0), offered),
        Fact("Capacity", f"{load.capacity_tokens_per_s:,.0f}", capacity),
        margin_fact(certificate.margin, limit + _beside_the_limit(certificate, server), verdict),
    ]


def _cached(certificate: Certificate) -> str:
    """Say which load is shown beside a prefix cache, and which it could be."""
    if certificate.rho_at_least is None or certificate.rho_without_cache is None:
        return ""
    which = f"; {share(certificate.rho_without_cache, 1.0)} without the prefix cache, this is "
    if certificate.measured is None:
        return which + "at least, if it kept everything"
    return (
        f"{which}with what it found in this run (measured), {share(certificate.rho_at_least, 1.0)} "
        "is the least, if it kept everything"
    )


def _limits(certificate: Certificate) -> list[Table]:
    """Lay out the limits of any policy, where there are several."""
    if len(certificate.bounds) < 2:
        return []
    rows = [(b.name, f"{b.max_rate:,.4g}", b.why, b.theorem) for b in certificate.bounds]
    title = "Above these rates no policy is stable"
    return [Table(("Limit", "Requests/s", "Why", "By"), rows, title=title, detail=True)]


def share(value: float, limit: float = 0.0) -> str:
    """Return a load or a margin with three digits, or five near its limit."""
    digits = 3 if abs(limit - value) > 0.01 else 5
    return f"{value:.{digits}f}"


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


def run_in_words(run: Run) -> str:
    """Say what one run did."""
    return (
        f"{counted(run.arrived, 'request')} ({run.unfinished:,} unfinished), "
        f"{run.n_batches:,} batches of {_tokens_per_batch(run):,.0f} tokens on average, "
        f"{run.seconds:,.0f} s: "
        f"{run.tokens_per_s:,.0f} tokens/s, busy {run.utilisation:.0%} of the time; over the "
        "second half of the "
        f"arrivals the backlog changed by {growth(run.growth_tokens_per_s)}{run.memory_facts}."
    )


def growth(tokens_per_s: float) -> str:
    """Return a rate of growth with its sign."""
    if np.isnan(tokens_per_s):
        return "an unknown number of tokens/s"
    if abs(tokens_per_s) < 0.05:
        return "0.0 tokens/s"
    return f"{tokens_per_s:+,.1f} tokens/s"


def _tokens_per_batch(run: Run) -> float:
    return run.started_tokens / run.n_batches if run.n_batches else 0.0


def _latency_section(answer: Answer | ClosedAnswer) -> Section:
    if answer.latency_refused:
        return NO_LATENCY
    if answer.latency is None:
        return Section("Latency in this run", ["In seconds."], tables=[_latency_of_run(answer.run)])
    said = f"In seconds, each with its {answer.latency.confidence:.0%} interval."
    return Section("Latency in the steady state", [said], tables=[_latency_of(answer.latency)])


def _latency_of_run(run: Run) -> Table:
    rows = [
        (METRICS[metric], *map(seconds, values)) for metric, *values in run.latency().iter_rows()
    ]
    return Table(("", *STATISTICS), rows)


def _latency_of(latency: SteadyState) -> Table:
    """Lay out each latency over the ends of its interval."""
    rows: list[tuple[str, ...]] = []
    strong = []
    for metric, of in latency.estimates.items():
        statistics = [of[name] for name in STATISTICS]
        strong.append(len(rows))
        rows.append((LIMITED[metric], *(seconds(estimate.value) for estimate in statistics)))
        if any((estimate.low, estimate.high) != (None, None) for estimate in statistics):
            rows.append(("  from", *(seconds(estimate.low) for estimate in statistics)))
            rows.append(("  to", *(seconds(estimate.high) for estimate in statistics)))
    return Table(("", *STATISTICS), rows, strong=strong)


def _policies_table(answers: Mapping[str, Answer]) -> Table:
    """Lay out verdicts and runs, a row per policy."""
    columns = ["Policy", "Theory", "Test", "Can do", "Tokens/s", "A batch"]
    limited = any(answer.server.memory for answer in answers.values())
    if limited:
        columns.append("Preempted")
    cut = any(answer.run.unfinished for answer in answers.values())
    if cut:
        columns.append("Unfinished")
    rows = []
    for name, answer in answers.items():
        run, test = answer.run, answer.tested
        row = [
            name,
            answer.certificate.verdict,
            test.verdict,
            f"{share(1 - test.drift, 1.0)} x" if test.interval else "> 1 x",
            f"{run.tokens_per_s:,.0f}",
            f"{_tokens_per_batch(run):,.0f}",
        ]
        if limited:
            row.append(f"{run.preemptions:,}")
        if cut:
            row.append(f"{run.unfinished:,}")
        rows.append(row)
    caption = (
        "Can do: work done under a large backlog over the work that arrives; below 1 the backlog "
        "grows"
    )
    if any(answer.tested.interval is None for answer in answers.values()):
        caption += "; > 1 where it was gone before it could be measured"
    return Table(
        columns, rows, f"{caption}. A batch: tokens in it, on average.", spare=("Preempted",)
    )


def _latency_of_all(answers: Mapping[str, Answer]) -> list[Table]:
    """Lay out latency by policy; intervals in a table per metric."""
    columns = [f"{metric[:-2].upper()} {name}" for metric in METRICS for name in _HIGHLIGHTS]
    rows = []
    caption = ""
    for name, answer in answers.items():
        if answer.latency_refused:
            cells = ["refused", *[""] * (len(columns) - 1)]
        elif answer.latency:
            shown = [
                answer.latency.estimates[metric][of] for metric in METRICS for of in _HIGHLIGHTS
            ]
            cells = [f"{seconds(e.value)}{'?' if e.high is None else ''}" for e in shown]
            if any(estimate.high is None for estimate in shown):
                caption = "?: the run is too short to bound this from above; check shows intervals."
        else:
            run = answer.run.latency().iter_rows(named=True)
            cells = [seconds(row[of]) for row in run for of in _HIGHLIGHTS]
        rows.append((name, *cells))
    steady = {name: answer.latency.estimates for name, answer in answers.items() if answer.latency}
    intervals = [
        Table(
            ("Policy", *STATISTICS),
            [
                (name, *(with_interval(of[metric][statistic]) for statistic in STATISTICS))
                for name, of in steady.items()
            ],
            title=f"{words}, in seconds and with intervals",
            detail=True,
        )
        for metric, words in METRICS.items()
        if steady
    ]
    return [Table(("Policy", *columns), rows, caption), *intervals]


def _reasons(answers: Mapping[str, Answer]) -> list[Fact]:
    """Return what theory says of each policy, those of which it says the same together."""
    said = {name: [(a.certificate.verdict, a.certificate.reason)] for name, a in answers.items()}
    facts = []
    for (word, reason), names in sharing(said).items():
        if len(names) < _MOST_NAMED:
            facts.append(Fact(", ".join(names), word, f"{reason}."))
        else:
            facts.append(Fact(f"{len(names)} policies", word, f"{', '.join(names)}: {reason}."))
    return facts


def _figure_sections(runs: Mapping[str, Run], refused: Sequence[str] = ()) -> list[Section]:
    """Draw tokens in the system, and latency but for those that have no steady state."""
    tokens = Section("Tokens in the system", figures=lambda: [token_figure(runs)])
    if len(refused) == len(runs):
        return [tokens]
    latency = Section("Distribution of latency", figures=lambda: [latency_figure(runs, refused)])
    return [tokens, latency]


def _batch_sections(runs: Mapping[str, Run], drawn: Mapping[str, Drawn]) -> list[Section]:
    """Draw the batches in the region, and who was in the first of them, if there was any batch."""
    runs = {name: run for name, run in runs.items() if run.compositions.height}
    if not runs:
        return []

    def region() -> list[Figure]:
        point = next(iter(drawn.values())).point
        own = {name: region for name in runs if (region := drawn[name].point.own) is not None}
        return [region_figure(point.region, runs, point=point.point, own=own)]

    rated = all(of.workload.has_rate for of in drawn.values())
    return [
        *([Section("Batches in the region", figures=region)] if rated else []),
        Section(
            "The first batches",
            figures=lambda: [gantt_figure(drawn[name].first, name) for name in runs],
        ),
    ]
