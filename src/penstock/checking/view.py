"""The page of each answer of this room."""

from penstock.checking.answer import Answer
from penstock.checking.closed_loop import ClosedAnswer
from penstock.checking.head_of_answer import (
    BEHIND_ALL,
    BEHIND_WHY,
    head_of_answer,
    head_of_clients,
    head_of_run,
)
from penstock.checking.one_run import OneRun
from penstock.checking.view_parts import (
    heading_of_server,
    run_in_words,
    target_verdicts,
    theorem_and_test,
)
from penstock.checking.view_server import (
    batch_sections,
    figure_sections,
    latency_of_run,
    latency_section,
    limits_table,
    load_facts,
    measured_section,
    sections_of_server,
)
from penstock.scenario.scenario import Scenario
from penstock.show.answers import page_of
from penstock.show.page import Page, Section, Verdict


@page_of.register
def answer_page(answer: Answer, scenario: Scenario | None = None) -> Page:
    """Show an answer: verdicts first."""
    if not answer.is_network:
        name = answer.server.policy.name
        heading = heading_of_server(answer.workload, answer.server, name)
        sections = sections_of_server(answer, scenario)
    else:
        # Imported here, as a server has no graph, no floods and no stages to show.
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


@page_of.register
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
            *measured_section(scenario),
            Section("Simulated", [run_in_words(answer.run)], notes=answer.warnings),
            latency_section(answer),
            *figure_sections({name: answer.run}),
        ],
    )


@page_of.register
def run_page(answer: OneRun, scenario: Scenario) -> Page:
    """Show what happened in one finite run, and in its first batches, without a verdict."""
    certificate, run = answer.certificate, answer.run
    name = run.server.policy.name
    load = []
    if certificate is not None:
        facts = load_facts(certificate, run.server)
        load = [Section("Load", facts=facts, tables=limits_table(certificate), why=True)]
    return Page(
        title=scenario.name,
        heading=heading_of_server(scenario.workload, run.server, name),
        notes=answer.front,
        head=head_of_run(scenario, certificate, run),
        why="load, what was assumed" if load else "what was assumed",
        rest="every statistic of the run",
        sections=[
            *load,
            Section("Simulated", [run_in_words(run)], notes=answer.notices),
            Section("Latency in this run", ["In seconds."], tables=[latency_of_run(run)]),
            *figure_sections({name: run}),
            *batch_sections({name: run}, {name: answer.drawn}),
        ],
    )


def _verdicts(answer: Answer) -> list[Verdict]:
    """Return what theorem and test say, what batch times leave open, and the targets."""
    verdicts = theorem_and_test(answer)
    if answer.stability_skipped:
        verdicts.append(Verdict("not tested", f"{answer.stability_skipped}."))
    return verdicts + target_verdicts(answer.targets)
