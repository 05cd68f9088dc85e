"""The page of each answer of this room."""

from penstock.checking.answer import Answer
from penstock.checking.head_of_answer import (
    BEHIND_ALL,
    BEHIND_WHY,
    head_of_answer,
)
from penstock.checking.view_comparison import compare_page, comparison_page
from penstock.checking.view_network import network_heading, sections_of_network
from penstock.checking.view_parts import heading_of_server, target_verdicts, theorem_and_test
from penstock.checking.view_server import closed_page, run_page, sections_of_server
from penstock.scenario.scenario import Scenario
from penstock.show.answers import page_of
from penstock.show.page import Page, Verdict


@page_of.register
def answer_page(answer: Answer, scenario: Scenario | None = None) -> Page:
    """Show an answer: verdicts first."""
    if not answer.is_network:
        name = answer.server.policy.name
        heading = heading_of_server(answer.workload, answer.server, name)
        sections = sections_of_server(answer, scenario)
    else:
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


def _verdicts(answer: Answer) -> list[Verdict]:
    """Return what theorem and test say, what batch times leave open, and the targets."""
    verdicts = theorem_and_test(answer)
    if answer.stability_skipped:
        verdicts.append(Verdict("not tested", f"{answer.stability_skipped}."))
    return verdicts + target_verdicts(answer.targets)


for _page in (closed_page, compare_page, comparison_page, run_page):
    page_of.register(_page)
