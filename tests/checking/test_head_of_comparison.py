"""The head of a comparison has a line for each policy or network, or those that matter most."""

import dataclasses
from pathlib import Path

import pytest

import penstock as ps
from penstock.checking import check
from penstock.checking.answer import Answer
from penstock.checking.comparison import NetworkComparison, compare_networks
from penstock.checking.head_of_comparison import head_of_networks, head_of_policies
from penstock.checking.variants import with_router
from penstock.scenario.scenario import Scenario, read_scenario
from penstock.show.page import MOST_LINES
from penstock.words import duration

SERVER = ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, 512)
GIVEN = Scenario("mine", (ps.Workload.poisson(1.2, 1_964, 28), SERVER), 2_000, None, Path())


@pytest.fixture(scope="module")
def answers() -> dict[str, Answer]:
    names = ("sarathi", "fastertransformer", "orca")
    return {
        name: check.check(GIVEN.workload, SERVER.with_policy(name), requests=2_000, resolution=0.05) for name in names
    }


def test_each_policy_has_a_line_with_its_verdict_and_mean_latencies(answers: dict[str, Answer]) -> None:
    asked, *rows = head_of_policies(GIVEN, answers)
    assert "3 policies" in asked.text
    assert [row.label for row in rows] == list(answers)
    said = {row.label: row.text for row in rows}
    assert said["fastertransformer"].startswith("unstable: it does 0.")
    latency = answers["orca"].latency
    assert latency is not None
    assert f"whole call {duration(latency.estimates['e2e_s']['mean'].value)}" in said["orca"]
    assert [name for name, text in said.items() if "the fastest" in text] == ["sarathi"]
    *_, last = head_of_policies(GIVEN, answers, {"other": "a request is too long: it never fits; cut it"})
    assert (last.label, last.text) == ("Left out", "other: a request is too long (--why).")


def test_of_many_the_first_and_the_fastest_have_a_line_and_the_others_are_named(
    answers: dict[str, Answer],
) -> None:
    many = answers | {f"other {n}": answers["orca"] for n in range(4)}
    many = {"fastertransformer": many["fastertransformer"], **many}
    lines = head_of_policies(GIVEN, many)
    assert len(lines) == MOST_LINES
    assert [line.label for line in lines[1:3]] == ["fastertransformer", "sarathi"]
    assert lines[-1].label == "Others"
    named = {line.label for line in lines[1:-1]}
    assert all((name in named) != (name in lines[-1].text) for name in many)


def test_a_contradiction_stands_before_all(answers: dict[str, Answer]) -> None:
    wrong = dataclasses.replace(answers["fastertransformer"], certificate=answers["sarathi"].certificate)
    assert wrong.disagreement
    (_, first, *_) = head_of_policies(GIVEN, answers | {"sarathi": wrong})
    assert (first.label, first.judges) == ("contradiction", True)
    assert first.text.startswith("sarathi: ")


def test_whose_run_is_too_short_is_said_last_with_its_own_reason(answers: dict[str, Answer]) -> None:
    def short(name: str, why: str) -> Answer:
        latency = answers[name].latency
        assert latency is not None
        return dataclasses.replace(
            answers[name], latency=dataclasses.replace(latency, too_short=True, notices=("first", why))
        )

    assert "Mind" not in {line.label for line in head_of_policies(GIVEN, answers)}
    one = answers | {"orca": short("orca", "400 would do")}
    *_, last = head_of_policies(GIVEN, one)
    assert (last.label, last.text) == ("Mind", "orca: 400 would do.")
    *_, last = head_of_policies(GIVEN, one | {"sarathi": short("sarathi", "90 would do")})
    assert last.text == "sarathi: 90 would do; orca too (--why)."


@pytest.fixture(scope="module")
def routers() -> NetworkComparison:
    network = read_scenario(Path(__file__).parents[2] / "examples" / "research_fork_join.yaml").network
    networks = {name: with_router(network, name) for name in ("random", "jsq")}
    return compare_networks(networks, jobs=2_500, resolution=0.1)


def test_networks_say_how_much_longer_or_shorter_jobs_take_than_at_the_first(routers: NetworkComparison) -> None:
    asked, random, jsq = head_of_networks(routers, "research", "Router")
    assert f"the same {routers.jobs:,} jobs" in asked.text
    first, second = routers.rows
    change = second.difference and second.difference["e2e_s"]["mean"]
    assert change is not None
    assert change.value is not None
    assert f"research {duration(first.latency['e2e_s']['mean'].value)}" in random.text
    word = "less" if change.value < 0 else "more"
    assert f"({duration(abs(change.value))} {word} than random" in jsq.text
    sure = change.low is not None and change.high is not None and change.low * change.high > 0
    assert ("perhaps by chance" in jsq.text) != sure


def test_a_network_without_a_steady_state_has_a_verdict_alone(routers: NetworkComparison) -> None:
    none = dataclasses.replace(routers, rows=())
    assert [line.text for line in head_of_networks(none, "research", "Router")[1:]] == [
        f"{one.verdict}." for one in routers.answers.values()
    ]
