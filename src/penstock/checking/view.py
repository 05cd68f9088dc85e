"""The page of each answer of this room."""

from penstock.checking.answer import Answer
from penstock.checking.closed_loop import ClosedAnswer
from penstock.checking.head_of_answer import (
    BEHIND_ALL,
    BEHIND_WHY,
    head_of_answer,
    head_of_clients,
    head_of_overload,
    head_of_run,
)
from penstock.checking.one_run import OneRun
from penstock.checking.overload import OverloadAnswer
from penstock.checking.view_parts import (
    NO_LATENCY,
    Parts,
    batch_sections,
    batch_times,
    figure_sections,
    heading_of,
    hypotheses_section,
    load_section,
    run_in_words,
    target_verdicts,
    theorem_and_test,
    two_states_section,
)
from penstock.scenario.scenario import Scenario
from penstock.show.answers import page_of, table
from penstock.show.page import Page, Section, Table, Verdict
from penstock.simulation.run import Run
from penstock.words import LIMITED, METRICS, STATISTICS, seconds, sentence


@page_of.register
def answer_page(answer: Answer, scenario: Scenario | None = None) -> Page:
    """Show an answer: verdicts first."""
    verdicts = theorem_and_test(answer)
    if answer.stability_skipped:
        verdicts.append(Verdict("not tested", f"{answer.stability_skipped}."))
    if answer.is_network:
        # Imported here, as a server has no graph, no floods and no stages to show.
        from penstock.checking.view_network import parts_of_network as parts_of
    else:
        parts_of = _parts_of_server
    load, pools, stages, latency = parts_of(answer)
    step = None  # where latency is refused the head says it
    if not answer.latency_refused:
        step = answer.next_step(scenario.file if scenario else "SCENARIO")
    return Page(
        title=scenario.name if scenario else "check",
        heading=heading_of(answer.system),
        notes=answer.front,
        head=head_of_answer(answer, scenario),
        why=BEHIND_WHY,
        rest=BEHIND_ALL,
        verdicts=verdicts + target_verdicts(answer.targets),
        sections=[
            *([Section("Next", [sentence(step)], why=True)] if step else []),
            load,
            *_measured(scenario),
            *batch_times(answer),
            *pools,
            *hypotheses_section(answer.certificate),
            *stages,
            Section("Simulated", [run_in_words(answer.run)], notes=answer.warnings),
            *latency,
        ],
    )


def _parts_of_server(answer: Answer) -> Parts:
    """Return load and limits, nothing of pools and of stages, and latency with its figures."""
    name = answer.server.policy.name
    both = answer.metastable
    latency = [
        *([] if both is None else [two_states_section(both)]),
        _latency_section(answer),
        *figure_sections({name: answer.run}, [name] if answer.latency_refused else []),
        *batch_sections({name: answer.run}, {name: answer.drawn}),
    ]
    return load_section(answer.certificate, answer.server, answer.verdict), [], [], latency


@page_of.register
def closed_page(answer: ClosedAnswer, scenario: Scenario | None = None) -> Page:
    """Show the answer for a closed loop."""
    return Page(
        title=scenario.name if scenario else "check",
        heading=heading_of((answer.workload, answer.server)),
        notes=answer.front,
        head=head_of_clients(answer, scenario),
        why="what was assumed",
        rest=BEHIND_ALL,
        verdicts=[Verdict("stable", f"{answer.reason}."), *target_verdicts(answer.targets)],
        sections=[
            *_measured(scenario),
            Section("Simulated", [run_in_words(answer.run)], notes=answer.warnings),
            _latency_section(answer),
            *figure_sections({answer.server.policy.name: answer.run}),
        ],
    )


@page_of.register
def overload_page(answer: OverloadAnswer, scenario: Scenario | None = None) -> Page:
    """Show the answer where requests are refused, or clients leave."""
    fates = [answer.rates, *answer.stages, *answer.priorities]
    return Page(
        title=scenario.name if scenario else "check",
        heading=heading_of(answer.system),
        notes=answer.front,
        head=head_of_overload(answer, scenario),
        why="who is served",
        rest=BEHIND_ALL,
        verdicts=[
            Verdict(answer.verdict, sentence(answer.reason)),
            *target_verdicts(answer.targets),
        ],
        sections=[
            Section("Who is served", tables=[table(fates)], why=True),
            *_measured(scenario),
            *([] if answer.storm is None else [two_states_section(answer.storm)]),
            Section("Simulated", [run_in_words(answer.run)], notes=answer.warnings),
            _latency_section(answer),
            *(
                []
                if answer.is_network
                else figure_sections({answer.server.policy.name: answer.run})
            ),
        ],
    )


@page_of.register
def run_page(answer: OneRun, scenario: Scenario) -> Page:
    """Show what happened in one finite run, and in its first batches, without a verdict."""
    certificate, run = answer.certificate, answer.run
    name = run.server.policy.name
    load = [] if certificate is None else [load_section(certificate, run.server)]
    return Page(
        title=scenario.name,
        heading=heading_of((scenario.workload, run.server)),
        notes=answer.front,
        head=head_of_run(scenario, certificate, run),
        why="load, what was assumed" if load else "what was assumed",
        rest="every statistic of the run",
        sections=[
            *load,
            Section("Simulated", [run_in_words(run)], notes=answer.notices),
            _latency_of_run(run),
            *figure_sections({name: run}),
            *batch_sections({name: run}, {name: answer.drawn}),
        ],
    )


def _measured(scenario: Scenario | None) -> list[Section]:
    """Say when and from what batch times were measured."""
    if scenario is None or scenario.measured is None or not scenario.measured.year:
        return []
    of = scenario.measured
    return [Section("Batch times", [f"Measured in {of.year}: {of.origin}."], why=True)]


def _latency_section(answer: Answer | ClosedAnswer | OverloadAnswer) -> Section:
    """Lay out the latency of the steady state, or of the run where it kept no rows."""
    if answer.latency_refused:
        return NO_LATENCY
    if answer.latency is None:
        return _latency_of_run(answer.run)
    rows: list[tuple[str, ...]] = []
    strong = []
    for key, of in (answer.by_metric or {}).items():  # each over the ends of its interval
        place, _, metric = key.rpartition(".")
        statistics = [of[name] for name in STATISTICS]
        strong.append(len(rows))
        label = f"{LIMITED[metric]} at {place}" if place else LIMITED[metric]
        rows.append((label, *(seconds(estimate.value) for estimate in statistics)))
        if any((estimate.low, estimate.high) != (None, None) for estimate in statistics):
            rows.append(("  from", *(seconds(estimate.low) for estimate in statistics)))
            rows.append(("  to", *(seconds(estimate.high) for estimate in statistics)))
    said = f"In seconds, each with its {answer.latency.confidence:.0%} interval."
    table = Table(("", *STATISTICS), rows, strong=strong)
    return Section("Latency in the steady state", [said], tables=[table])


def _latency_of_run(run: Run) -> Section:
    """Lay out the latency of one run."""
    rows = [
        (METRICS[metric], *map(seconds, values)) for metric, *values in run.latency().iter_rows()
    ]
    table = Table(("", *STATISTICS), rows)
    return Section("Latency in this run", ["In seconds."], tables=[table])
