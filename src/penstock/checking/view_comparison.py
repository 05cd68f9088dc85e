"""Networks side by side as a page: what theory and test say of each, and the same jobs' latency."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from penstock.checking.answer import Answer
from penstock.checking.batch_means import Statistics
from penstock.checking.comparison import ComparedWorkflow, NetworkComparison, ServerComparison
from penstock.checking.head_of_comparison import head_of_networks, head_of_policies
from penstock.checking.targets import Estimate
from penstock.checking.view_parts import (
    batch_sections,
    contradictions,
    figure_sections,
    heading_of,
    hinging,
    load_section,
    with_interval,
)
from penstock.scenario.scenario import Scenario
from penstock.show.answers import page_of
from penstock.show.page import Fact, Figure, Page, Section, Table
from penstock.words import METRICS, STATISTICS, gathered, near_one, seconds, sharing

_METRICS = {"ttft_s": "TTFT", "e2e_s": "E2E"}
_STATISTICS = ("mean", "p50", "p99")
_HIGHLIGHTS = ("p50", "p99")  # statistics in the table of several policies


@page_of.register
def comparison_page(
    comparison: NetworkComparison, scenario: Scenario | None = None, what: str = "Network"
) -> Page:
    """Show networks side by side. ``what`` says what they differ by, such as ``Router``."""

    def figures() -> list[Figure]:
        from penstock.checking.figures_network import comparison_figure

        return [comparison_figure(comparison, what)]

    title = scenario.name if scenario else "compare"
    answers = comparison.answers
    return Page(
        title=title,
        head=head_of_networks(comparison, title, what),
        why="what theory and test say",
        rest="percentiles and intervals",
        heading=heading_of(next(iter(answers.values())).system),
        verdicts=contradictions(answers) + hinging(answers),
        sections=[
            Section(
                "Side by side",
                ["The same jobs went through all."],
                tables=[_runs_table(comparison, what)],
                notes=comparison.warnings,
                why=True,
            ),
            _latency_section(comparison, what),
            *_reasons(answers),
            *([Section("Distribution of latency", figures=figures)] if comparison.rows else []),
        ],
    )


def _runs_table(comparison: NetworkComparison, what: str) -> Table:
    """Lay out verdicts, and what a run did besides latency."""
    answers, captions = comparison.answers, []
    columns: dict[str, Callable[[str], str]] = {
        what: str,
        "Theory": lambda name: answers[name].certificate.verdict,
        "Test": lambda name: getattr(answers[name].stability, "verdict", "skipped"),
    }
    if any(answer.run.preemptions for answer in answers.values()):
        columns["Preempted"] = lambda name: f"{answers[name].run.preemptions:,}"
        captions.append("Preempted: how often requests lost their KV memory to others.")
    if any(answer.run.found_share for answer in answers.values()):
        columns["Found"] = lambda name: f"{answers[name].run.found_share:.1%}"
        captions.append("Found: share of the prompt tokens that replicas had already.")
    by_workflow = comparison.by_workflow() if comparison.targets else {}
    for workflow, rows in by_workflow.items():
        goodput = dict.fromkeys(answers, "-") | {row.network: _share(row.goodput) for row in rows}
        head = f"Goodput of {workflow}" if len(by_workflow) > 1 else "Goodput"
        columns[head] = goodput.__getitem__
    if by_workflow:
        limits = ", ".join(
            f"{target.metric[:-2].upper()} up to {target.limit_s:g} s"
            for target in comparison.targets
        )
        captions.append(f"Goodput: share of the jobs with {limits}, at every call.")
    return Table.of(columns, answers, caption=" ".join(captions))


def _latency_section(comparison: NetworkComparison, what: str) -> Section:
    """Lay out latency, and below it how much more that is than in the first network."""
    refused = [name for name, answer in comparison.answers.items() if answer.latency_refused]
    if not comparison.rows:
        return Section("No latency", ["None of them has a steady state whose latency it would be."])
    by_workflow = comparison.by_workflow()
    tables = [
        _latency_table(rows, refused, what, workflow if len(by_workflow) > 1 else "")
        for workflow, rows in by_workflow.items()
    ]
    paragraph = (
        f"In seconds, of {comparison.jobs:,} jobs of the steady state. TTFT: of a call, from its "
        "arrival at a replica; E2E: of a job."
    )
    if len(comparison.answers) - len(refused) > 1:
        paragraph += (
            f" Below each: its change from {comparison.first}, and from where to where the "
            f"{comparison.confidence:.0%} interval of that goes. Where it leaves out 0, the change "
            "is more than chance."
        )
    return Section(
        "Latency in the steady state",
        [paragraph],
        tables=[*tables, *(_intervals(rows, what) for rows in by_workflow.values())],
    )


def _latency_table(
    rows: Sequence[ComparedWorkflow], refused: Sequence[str], what: str, title: str
) -> Table:
    cells: list[tuple[str, ...]] = []
    strong = []
    for row in rows:
        strong.append(len(cells))
        cells.append((row.network, *(seconds(e.value) for e in _shown(row.latency))))
        change = _shown(row.difference or {})
        if change:
            cells += [
                ("  change", *(signed(estimate.value) for estimate in change)),
                ("  from", *(signed(estimate.low) for estimate in change)),
                ("  to", *(signed(estimate.high) for estimate in change)),
            ]
    columns = [f"{name} {of}" for name in _METRICS.values() for of in _STATISTICS]
    unknown = any(e.low is None for row in rows for e in _shown(row.difference or {}))
    captions = ["-: the run is too short to tell; simulate more jobs."] if unknown else []
    if refused:
        cells += [(name, "refused", *[""] * (len(columns) - 1)) for name in refused]
        captions.append("Refused: it has no steady state.")
    return Table((what, *columns), cells, " ".join(captions), title=title, strong=strong)


def _intervals(rows: Sequence[ComparedWorkflow], what: str) -> Table:
    """Lay out latencies with their own intervals, which a terminal has no room for."""
    cells = [
        (row.network, _METRICS[metric], *(with_interval(of[name]) for name in _STATISTICS))
        for row in rows
        for metric, of in row.latency.items()
    ]
    title = f"{rows[0].workflow}: each with its interval"
    return Table((what, "Latency", *_STATISTICS), cells, title=title, detail=True)


def _shown(latency: Mapping[str, Statistics]) -> list[Estimate]:
    return [
        latency[metric][name] for metric in _METRICS if metric in latency for name in _STATISTICS
    ]


def signed(value: float | None) -> str:
    """Return seconds with their sign, or a dash."""
    if value is None:
        return "-"
    return f"{'-' if value < 0 else '+'}{seconds(abs(value))}"


def _share(estimate: Estimate | None) -> str:
    return "-" if estimate is None or estimate.value is None else f"{estimate.value:.1%}"


def _reasons(answers: Mapping[str, Answer]) -> list[Section]:
    """Return what theory and test say of each, those of which they say the same together."""
    theory: dict[str, list[str]] = {}
    failing: dict[str, list[str]] = {}
    test: dict[str, list[str]] = {}
    for name, answer in answers.items():
        certificate = answer.certificate
        if certificate.verdict != "unknown":
            theory[name] = [certificate.reason]
        else:
            failed = [f"{h.name}: {h.why}" for h in certificate.hypotheses if not h.held]
            failing[name] = failed or [certificate.reason]
        if answer.stability and answer.stability.verdict != "stable":
            test[name] = [answer.stability.reason]
    titles = {"Theory": theory, "What keeps theorems from saying stable": failing, "The test": test}
    return [
        Section(title, facts=_gathered(of, len(answers)), why=True)
        for title, of in titles.items()
        if of
    ]


def _gathered(sentences: Mapping[str, Sequence[str]], count: int) -> list[Fact]:
    """Return each sentence once, after the names of which it is true."""
    return [
        Fact("all" if len(names) == count else ", ".join(names), "", f"{text}.")
        for text, names in sharing(sentences).items()
    ]


@page_of.register
def compare_page(
    comparison: ServerComparison, scenario: Scenario | None = None, what: str = "Policy"
) -> Page:
    """Show a server under several policies; of those left out, the reasons."""
    answers, left_out = comparison.answers, comparison.left_out
    first = next(iter(answers.values()))
    scenario = scenario or Scenario("compare", first.system, None, None, Path())
    runs = {name: answer.run for name, answer in answers.items()}
    refused = [name for name, answer in answers.items() if answer.latency_refused]
    return Page(
        title=scenario.name,
        heading=heading_of(scenario.system, f"{len(answers)} policies"),
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
            Section("Latency", ["In seconds."], tables=_latency_of_policies(answers)),
            load_section(first.certificate, scenario.server),
            *_reasons(answers),
            *figure_sections(runs, refused),
            *batch_sections(runs, {name: answer.drawn for name, answer in answers.items()}),
        ],
    )


def _policies_table(answers: Mapping[str, Answer]) -> Table:
    """Lay out verdicts and runs, a row per policy."""
    runs = {name: answer.run for name, answer in answers.items()}
    tests = {name: answer.tested for name, answer in answers.items()}
    columns: dict[str, Callable[[str], str]] = {
        "Policy": str,
        "Theory": lambda name: answers[name].certificate.verdict,
        "Test": lambda name: tests[name].verdict,
        "Can do": lambda name: (
            f"{near_one(1 - tests[name].drift)} x" if tests[name].interval else "> 1 x"
        ),
        "Tokens/s": lambda name: f"{runs[name].tokens_per_s:,.0f}",
        "A batch": lambda name: f"{runs[name].tokens_per_batch:,.0f}",
    }
    if any(answer.server.memory for answer in answers.values()):
        columns["Preempted"] = lambda name: f"{runs[name].preemptions:,}"
    if any(run.unfinished for run in runs.values()):
        columns["Unfinished"] = lambda name: f"{runs[name].unfinished:,}"
    caption = (
        "Can do: work done under a large backlog over the work that arrives; below 1 the backlog "
        "grows"
    )
    if any(test.interval is None for test in tests.values()):
        caption += "; > 1 where it was gone before it could be measured"
    caption += ". A batch: tokens in it, on average."
    return Table.of(columns, answers, caption=caption, spare=("Preempted",))


def _latency_of_policies(answers: Mapping[str, Answer]) -> list[Table]:
    """Lay out latency by policy; intervals in a table per metric."""
    shown = [(metric, name) for metric in METRICS for name in _HIGHLIGHTS]
    rows = []
    caption = ""
    for name, answer in answers.items():
        if answer.latency_refused:
            cells = ["refused", *[""] * (len(shown) - 1)]
        elif answer.latency:
            known = [answer.latency.estimates[metric][of] for metric, of in shown]
            cells = [f"{seconds(e.value)}{'?' if e.high is None else ''}" for e in known]
            if any(estimate.high is None for estimate in known):
                caption = "?: the run is too short to bound this from above; check shows intervals."
        else:
            of_run = answer.run.latency_as_dict()
            cells = [seconds(of_run[metric][of]) for metric, of in shown]
        rows.append((name, *cells))
    columns = [f"{metric[:-2].upper()} {name}" for metric, name in shown]
    steady = {name: answer.latency.estimates for name, answer in answers.items() if answer.latency}
    tables = [Table(("Policy", *columns), rows, caption)]
    for metric, words in METRICS.items() if steady else ():
        ends = [
            (name, *(with_interval(of[metric][statistic]) for statistic in STATISTICS))
            for name, of in steady.items()
        ]
        title = f"{words}, in seconds and with intervals"
        tables.append(Table(("Policy", *STATISTICS), ends, title=title, detail=True))
    return tables
