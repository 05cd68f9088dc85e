"""Networks side by side as a page: what theory and test say of each, and the same jobs' latency."""

import dataclasses
from collections.abc import Mapping, Sequence

from penstock.checking.answer import Answer
from penstock.checking.batch_means import Statistics
from penstock.checking.comparison import ComparedWorkflow, NetworkComparison
from penstock.checking.figures_network import comparison_figure
from penstock.checking.head_of_comparison import head_of_networks
from penstock.checking.targets import Estimate
from penstock.checking.view import contradictions, hinging, with_interval
from penstock.checking.view_network import network_heading
from penstock.show.page import Fact, Page, Section, Table
from penstock.words import seconds, sharing

_METRICS = {"ttft_s": "TTFT", "e2e_s": "E2E"}
_STATISTICS = ("mean", "p50", "p99")


def comparison_page(comparison: NetworkComparison, title: str, what: str) -> Page:
    """Show networks side by side. ``what`` says what they differ by, such as ``Router``."""
    answers = comparison.answers
    return Page(
        title=title,
        head=head_of_networks(comparison, title, what),
        why="what theory and test say",
        rest="percentiles and intervals",
        heading=network_heading(next(iter(answers.values())).network),
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
            *_figures(comparison, what),
        ],
    )


def _runs_table(comparison: NetworkComparison, what: str) -> Table:
    """Lay out verdicts, and what a run did besides latency."""
    goodput = {
        workflow: {row.network: row.goodput for row in rows}
        for workflow, rows in comparison.by_workflow().items()
        if comparison.targets
    }
    heads = [f"Goodput of {workflow}" if len(goodput) > 1 else "Goodput" for workflow in goodput]
    rows = []
    for name, answer in comparison.answers.items():
        test = answer.stability.verdict if answer.stability else "skipped"
        run = answer.run
        preempted = f"{run.preemptions:,}"
        good = [_share(of.get(name)) for of in goodput.values()]
        rows.append(
            (name, answer.certificate.verdict, test, preempted, f"{run.found_share:.1%}", *good)
        )
    table = Table((what, "Theory", "Test", "Preempted", "Found", *heads), rows)
    captions = []
    if any(answer.run.preemptions for answer in comparison.answers.values()):
        captions.append("Preempted: how often requests lost their KV memory to others.")
    else:
        table = table.without("Preempted")
    if any(answer.run.found_share for answer in comparison.answers.values()):
        captions.append("Found: share of the prompt tokens that replicas had already.")
    else:
        table = table.without("Found")
    if goodput:
        limits = ", ".join(
            f"{target.metric[:-2].upper()} up to {target.limit_s:g} s"
            for target in comparison.targets
        )
        captions.append(f"Goodput: share of the jobs with {limits}, at every call.")
    return dataclasses.replace(table, caption=" ".join(captions))


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
    """Return what theory and test say of the orders, those of which they say the same together."""
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


def _figures(comparison: NetworkComparison, what: str) -> list[Section]:
    if not comparison.rows:
        return []
    title = "Distribution of latency"
    return [Section(title, figures=lambda: [comparison_figure(comparison, what)])]
