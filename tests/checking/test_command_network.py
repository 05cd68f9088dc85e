"""`penstock check` answers for a network, or says in one line what is wrong and where to ask instead."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.checking.check import check
from penstock.scenario.scenario import read_scenario
from tests.conftest import Said

EXAMPLES = Path(__file__).parents[2] / "examples"
RYBKO_STOLYAR, RESEARCH = EXAMPLES / "rybko_stolyar.yaml", EXAMPLES / "research_fork_join.yaml"
SERVER = EXAMPLES / "azure_code.yaml"


def test_json_is_the_answer_of_the_library_with_the_choices_of_the_command_line(penstock: Callable[..., Said]) -> None:
    status, out, err = penstock(
        "check", RESEARCH, "--jobs", 700, "--seed", 3, "--resolution", 0.1, "--json", "--strict"
    )
    assert status == 0, err
    expected = check(read_scenario(RESEARCH).network, jobs=700, seed=3, resolution=0.1)
    said = json.loads(json.dumps(expected.as_dict())) | {"measured": None, "next": expected.next_step("")}
    assert json.loads(out) == said
    assert expected.run.arrived == 700


def test_the_keys_of_the_json_are_as_agreed(penstock: Callable[..., Said]) -> None:
    status, out, _ = penstock("check", RYBKO_STOLYAR, "--jobs", 300, "--json")
    assert status == 0
    found: dict[str, Any] = json.loads(out)
    assert list(found) == [
        "verdict", "latency_refused", "disagreement", "stability_skipped", "pools", "workflows", "stages", "priorities",
        "load", "simulation", "latency", "steady_state", "warnings", "latency_interval", "certificate", "stability",
        "targets", "outages", "calibration", "metastable", "measured", "next",
    ]  # fmt: skip
    assert found["verdict"] == found["certificate"]["verdict"] == found["stability"]["verdict"] == "unstable"
    assert found["certificate"]["virtual_station"]["stages"] == [["complaint.look_into"], ["search.reply"]]
    assert [pool["name"] for pool in found["pools"]] == ["retrieval", "communication"]
    assert all(stage["latency"] is None for stage in found["stages"])
    assert isinstance(found["latency_refused"], str)


def test_words_begin_with_the_verdict_and_name_the_stages_that_starve_each_other(penstock: Callable[..., Said]) -> None:
    status, out, _ = penstock("check", RYBKO_STOLYAR, "--jobs", 300, "--why")
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80
    head, _, verdict, *_ = out.split("\n\n")
    assert "\nUNSTABLE     Order priority fails above 0.7059 search, 0.7059 complaint jobs/s" in head
    assert verdict.startswith("UNSTABLE by virtual station")
    for words in ("complaint.look_into", "search.reply", "0.6209 x", "retrieval - communication"):
        assert words in out


def test_orders_stand_side_by_side_with_the_scenarios_own_first(penstock: Callable[..., Said]) -> None:
    arguments = ("check", RYBKO_STOLYAR, "--jobs", 1000, "--resolution", 0.1, "--orders", " fcfs", "--all")
    status, out, _ = penstock(*arguments)
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80
    rows = [line.split()[:3] for line in out.splitlines() if line.split()[1:2] in (["unstable"], ["unknown"])]
    assert rows == [["priority", "unstable", "unstable"], ["fcfs", "unknown", "stable"]]
    found = json.loads(penstock(*arguments, "--json")[1])
    assert list(found["networks"]) == ["priority", "fcfs"]
    assert found["first"] == found["latency"][0]["network"] == "fcfs"  # priority has no steady state
    assert f"{found['latency'][0]['latency']['e2e_s']['mean']['value']:,.1f} " in out
    assert found["networks"]["priority"]["workflows"][0]["e2e_s"] is None


def test_the_scenarios_own_order_is_shown_once(penstock: Callable[..., Said]) -> None:
    status, out, _ = penstock("check", RESEARCH, "--jobs", 300, "--resolution", 0.1, "--orders", "fcfs", "--json")
    assert status == 0
    assert list(json.loads(out)["networks"]) == ["fcfs"]


def test_routers_stand_side_by_side_on_the_same_jobs(penstock: Callable[..., Said], tmp_path: Path) -> None:
    page, folder = tmp_path / "report.html", tmp_path / "figures"
    choices = ("compare", RESEARCH, "--routers", "jsq,random", "--jobs", 1500, "--resolution", 0.1)
    written = ("--figures", folder, "--report", page, "--strict", "--json")
    status, out, _ = penstock(*choices, "--target", "ttft_p99<2s", *written)
    assert status == 0
    assert {path.name for path in folder.iterdir()} == {"latency_cdfs.svg", "latency_cdfs.png"}
    assert "Distribution of latency" in page.read_text()
    found = json.loads(out)
    assert list(found) == [
        "first", "warnings", "runs", "networks", "targets", "latency", "jobs", "warmup_jobs", "confidence",
    ]  # fmt: skip
    jsq, random = found["latency"]
    assert (jsq["network"], random["network"]) == ("jsq", "random") == tuple(found["networks"])
    low, high = random["difference"]["ttft_s"]["mean"]["interval"]
    assert 0 < low < random["difference"]["ttft_s"]["mean"]["value"] < high
    assert jsq["difference"] is None
    assert random["goodput"]["value"] < jsq["goodput"]["value"]


def test_strict_makes_what_is_not_stable_an_exit_status(penstock: Callable[..., Said]) -> None:
    assert penstock("check", RYBKO_STOLYAR, "--jobs", 100, "--resolution", 0.1, "--strict")[0] == 1
    assert penstock("check", RYBKO_STOLYAR, "--jobs", 100, "--resolution", 0.1, "--orders", "fcfs", "--strict")[0] == 1


def test_figures_and_a_report_are_written_where_asked(penstock: Callable[..., Said], tmp_path: Path) -> None:
    page, folder = tmp_path / "folder" / "report.html", tmp_path / "f"
    status, _, err = penstock(
        "check", RYBKO_STOLYAR, "--jobs", 300, "--resolution", 0.1, "--figures", folder, "--report", page
    )
    assert status == 0
    charts = ("network_graph", "flood_paths", "queue_lengths")
    assert {path.name for path in folder.iterdir()} == {f"{c}.{kind}" for c in charts for kind in ("svg", "png")}
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert "search.reply" in text
    assert str(page) in err


@pytest.mark.parametrize(
    ("path", "option", "remedy"),
    [
        (RYBKO_STOLYAR, "--requests", "give --jobs"),
        (RYBKO_STOLYAR, "--alpha", "leave it out"),
        (SERVER, "--jobs", "give --requests"),
    ],
)
def test_check_refuses_what_the_other_kind_of_scenario_knows(
    path: Path, option: str, remedy: str, penstock: Callable[..., Said]
) -> None:
    status, out, err = penstock("check", path, option, 100)
    assert (status, out) == (2, "")
    assert f"knows no {option}; {remedy}" in err


def test_targets_of_a_network_are_judged_and_orders_side_by_side_have_none(penstock: Callable[..., Said]) -> None:
    status, out, _ = penstock("check", RESEARCH, "--jobs", 2_000, "--target", "e2e_mean<1ms", "--json", "--strict")
    assert status == 1
    (target,) = json.loads(out)["targets"]
    assert target["answer"] == "missed"
    status, out, err = penstock("check", RESEARCH, "--orders", "fcfs", "--target", "e2e_mean<1ms")
    assert (status, out) == (2, "")
    assert "--target judges one network, and --orders compares several" in err


@pytest.mark.parametrize("path", [RYBKO_STOLYAR, SERVER])
def test_a_resolution_of_nothing_is_refused_and_not_taken_for_the_default(
    path: Path, penstock: Callable[..., Said]
) -> None:
    status, out, err = penstock("check", path, "--resolution", 0)
    assert (status, out) == (2, "")
    assert "resolution" in err


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        ("region", "`penstock max-rate {}` says what the network carries"),
        ("recommend", "`penstock compare {}` with --routers, --policies or --orders puts side by side what "),
        ("simulate", "`penstock check {} --all` simulates a run of the network, and shows its statistics"),
    ],
)
def test_commands_for_servers_say_which_one_answers_for_networks(
    command: str, instead: str, penstock: Callable[..., Said]
) -> None:
    status, out, err = penstock(command, RYBKO_STOLYAR)
    assert (status, out) == (2, "")
    said = f"penstock: {RYBKO_STOLYAR} describes a network, and {command} is of one server; "
    assert err.startswith(said + instead.format(RYBKO_STOLYAR))


BAD = {
    "no file": (("check", "none.yaml"), "none.yaml"),
    "no jobs": (("check", RESEARCH, "--jobs", "0"), "jobs is 0"),
    "unknown order": (("check", RESEARCH, "--orders", "fcsf"), "did you mean 'fcfs'"),
    "order twice": (("check", RESEARCH, "--orders", "hlpps,hlpps"), "one name"),
    "no order": (("check", RESEARCH, "--orders", ","), "--orders names none"),
    "priority of what": (("check", RESEARCH, "--orders", "priority"), "priority without stages"),
    "nothing to compare": (("compare", RESEARCH), "name some, as --routers jsq,tokens"),
    "nothing to route or compare": (("compare", RYBKO_STOLYAR), "name some, as --orders fcfs,hlpps"),
    "router twice": (("compare", RESEARCH, "--routers", "jsq,jsq"), "--routers: two of jsq, jsq have one name"),
    "no router": (("compare", RESEARCH, "--routers", ","), "--routers names none; give some of random, "),
    "unknown router": (("compare", RESEARCH, "--routers", "jqs"), "did you mean 'jsq'"),
    "nothing to route": (("compare", RYBKO_STOLYAR, "--routers", "jsq"), "each pool has one replica"),
    "target of what": (
        ("compare", RESEARCH, "--routers", "jsq", "--target", "ttft<2s"),
        "name the mean or a percentile",
    ),
    "requests of a network": (("compare", RESEARCH, "--requests", "9"), "give --jobs"),
    "routers of a server": (("compare", SERVER, "--routers", "jsq"), "knows no --routers; leave it out"),
    "resolution": (("check", RESEARCH, "--resolution", "0"), "resolution is 0"),
    "report over the scenario": (("check", RESEARCH, "--report", RESEARCH), "is what is read"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_line_and_status_2(
    name: str, penstock: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, said = BAD[name]
    monkeypatch.chdir(tmp_path)
    status, out, err = penstock(*arguments)
    assert (status, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    assert err.startswith("penstock: ")
    assert said in err
    assert list(tmp_path.iterdir()) == []


def test_an_order_of_ones_own_is_looked_for_beside_the_scenario(penstock: Callable[..., Said], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from penstock.kernel.signatures import BY_LINE\nfrom penstock.system.orders import order\n\n\n"
        "@order(name='last-[b]stage')\ndef last(lines, params, weights):\n"
        "    for line in range(lines.shape[0]):\n        weights[line, 0] = line\n    return BY_LINE\n"
    )
    scenario = tmp_path / "[b]two.yaml"
    scenario.write_text(
        "network:\n  pools: {pool: {batch_time: {c_ms: 1, a_ms: 0, b0: 64}, token_budget: 64}}\n"
        "  workflows: {ask: {arrivals: {poisson: 9}, stages: {call: {pool: pool, prompt: 30, output: 3}}}}\n"
    )
    status, out, _ = penstock("check", scenario, "--jobs", 300, "--resolution", 0.1, "--orders", "mine:last")
    assert status == 0
    assert "last-[b]stage" in out
    assert "[b]two" in out
