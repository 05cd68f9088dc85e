"""The head of an answer: six lines that say what the whole answer says, the first two before anything is simulated."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock import Workload, certify, check
from penstock.checking import check as question
from penstock.checking.head import first_lines
from penstock.cli import command_line
from penstock.scenario.scenario import read_scenario
from penstock.show.page import Line
from penstock.show.terminal import print_page
from tests.asked_once import asked_once

EXAMPLES = Path(__file__).parents[2] / "examples"
NETWORKS = ("agent_with_caches", "disaggregated", "research_fork_join", "rybko_stolyar", "self_reflection", "vllm_pool")
CASES = Path(__file__).parents[3] / "shared" / "data" / "user_cases"
AZURE = EXAMPLES / "azure_code.yaml"

WATCHED = """
import sys
from numba.core import event
from penstock.show import options

class Compiled(event.Listener):
    on_end = lambda self, _: None
    def on_start(self, event):
        print("compiles", event.data["dispatcher"].py_func)

event.register("numba:compile", Compiled())
begin = options.Form.begin

def stop_after(form, lines):
    begin(form, lines)
    print("begun")
    sys.stdout.flush()
    import os
    os._exit(0)

options.Form.begin = stop_after
from penstock.cli import main
main()
"""
"""Runs a command until the first lines of its head are printed."""


def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object) -> str:
    monkeypatch.setenv("COLUMNS", "2000")
    monkeypatch.setenv("NO_COLOR", "1")
    command_line()(["check", *map(str, arguments)], prog_name="penstock", standalone_mode=False)
    return capsys.readouterr().out


def in_seconds(text: str) -> list[float]:
    """Return all means and 99th percentiles in a line, seconds."""
    found = re.findall(r"(?:mean|p99) ([\d.,]+) (ms|s)\b", text)
    return [float(number.replace(",", "")) / (1000 if unit == "ms" else 1) for number, unit in found]


LONG = ("agent_with_caches", "vllm_pool")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.stem, marks=pytest.mark.slow if path.stem in LONG else ())
        for path in sorted(EXAMPLES.glob("*.yaml"))
    ],
)
def test_the_head_of_every_example_has_six_lines_and_the_figures_of_json(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [EXAMPLES / f"{name}.yaml", *(["--jobs", 1500] if name in NETWORKS else ["--requests", 2000])]
    asked_once(monkeypatch, question, "check")
    lines = said(capsys, monkeypatch, *asked).splitlines()
    document = json.loads(said(capsys, monkeypatch, *asked, "--json"))
    assert len(lines) <= 7
    assert lines[0].startswith(name)
    assert lines[-1] == "--why: hypotheses and limits   --all: every statistic with its interval"
    assert any(line.startswith(document["verdict"].upper()) for line in lines)
    head = "; ".join(lines)
    if document["latency_refused"]:
        assert "mean" not in head
        return
    if name in NETWORKS:
        expected = [workflow["e2e_s"]["mean"] for workflow in document["workflows"]]
    else:
        expected = [document["latency"][metric][of] for metric in document["latency"] for of in ("mean", "p99")]
    shown = in_seconds(head)
    assert all(any(value == pytest.approx(one, rel=0.01) for one in shown) for value in expected)


def test_what_is_printed_bit_by_bit_is_the_page(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = said(capsys, monkeypatch, AZURE, "--requests", 2000)
    scenario = read_scenario(AZURE)
    print_page(check(scenario.workload, scenario.server, requests=2000).page(scenario))
    assert capsys.readouterr().out == out


@pytest.mark.parametrize(
    "name",
    ["vllm_8b_h100", "vllm_pool", *(pytest.param(n, marks=pytest.mark.slow) for n in ("azure_code", "rybko_stolyar"))],
)
def test_the_first_two_lines_come_before_anything_is_compiled(name: str) -> None:
    command = [sys.executable, "-c", WATCHED, "check", str(EXAMPLES / f"{name}.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    lines = done.stdout.splitlines()
    assert lines[0].startswith(name)
    assert lines[-1] == "begun"
    assert "compiles" not in done.stdout


def proved(name: str) -> str:
    network = read_scenario(EXAMPLES / f"{name}.yaml").network
    return first_lines(name, network, certify(network))[1].text


def test_an_order_that_fails_is_named_with_the_rates_above_which_it_does() -> None:
    said = proved("rybko_stolyar")
    assert said.startswith(
        "Order priority fails above 0.7059 search, 0.7059 complaint jobs/s (0.621 times this load), "
    )


def test_with_prefix_caches_the_limit_stands_beside_the_case_that_it_belongs_to() -> None:
    said = (
        r"can carry \(limit [\d.]+ times this load\) if prefix caches keep everything, 27% if nothing\. No theorem .*"
    )
    assert re.search(f"{said}; not true here: batch times go by the token load, ", proved("agent_with_caches"))


@pytest.mark.parametrize("name", ["agent", "agent_cached"])
def test_an_agent_has_one_load_with_the_caches_of_engines_and_its_other_end_is_that_of_the_pool_it_overloads(
    name: str,
) -> None:
    """With all that caches may find pool big is the fuller one, without it pool small is."""
    network = read_scenario(CASES / f"{name}.yaml").network
    found = certify(network)
    pools = {pool.name: pool.rho_without_cache or 0.0 for pool in found.pools}
    assert pools["big"] < pools["small"]
    (_, line) = first_lines(name, network, found)
    ends = rf"56% .* at pool big\) if prefix caches keep everything, {pools['small']:.0%} if nothing\. "
    assert re.match(ends, line.text)


def head(rate: float, *targets: str, requests: int = 2000) -> list[Line]:
    scenario = read_scenario(AZURE)
    found = check(scenario.workload.with_rate(rate), scenario.server, requests=requests, targets=targets)
    return list(found.page(scenario).head)


def test_an_overloaded_server_is_told_its_limit_and_what_to_do_but_no_latency() -> None:
    labels = {line.label: line.text for line in head(2.0)}
    assert list(labels) == ["azure_code", "unstable", "Next", "Rests on"]
    assert labels["unstable"].startswith("119% of the most that any scheduler can carry (limit 1.679 requests/s).")
    assert "penstock recommend" in labels["Next"]


def test_a_load_near_its_limit_is_undecided_where_batch_times_are_not_known_so_well_with_its_share() -> None:
    scenario = read_scenario(CASES / "seventy_b.yaml")
    found = check(scenario.workload, scenario.server, requests=2000)
    labels = {line.label: line.text for line in found.page(scenario).head}
    assert re.match(r"100.\d\d% \(\d\d% to 1\d\d% as far as batch times are known\)", labels["Load"])
    assert labels["undecided"].startswith("because of the batch times: with the slowest that are likely it is unstable")
    assert "unstable" not in labels


def test_targets_are_one_line_with_the_one_that_is_missed_first() -> None:
    lines = head(1.2, "tbt_p99<200ms", "ttft_p99<2s")
    assert len(lines) == 6
    line = next(line for line in lines if line.label == "missed")
    assert line.judges
    assert re.match(r"ttft_p99<2s \([\d.]+ s\); met: tbt_p99<0.2s \(153 ms\); `penstock recommend`", line.text)


def test_a_p99_without_an_upper_end_says_so_and_names_the_run_that_would_have_one() -> None:
    said = "; ".join(line.text for line in head(1.2))
    assert said.count("; for an upper end: ") == 1
    assert re.search(r"p99 [\d.]+ m?s \([\d.]+ m?s to \?\); for an upper end: --requests \d+;", said)


def test_no_longer_run_is_named_than_a_recording_has() -> None:
    rng = np.random.default_rng(0)
    arrivals = np.cumsum(rng.exponential(1 / 1.2, 600))
    workload = Workload.from_arrays(arrivals, rng.geometric(1 / 1_900, 600), rng.geometric(1 / 28, 600))
    server = read_scenario(AZURE).server
    mean = check(workload, server).latency.estimates["ttft_s"]["mean"].value  # type: ignore[union-attr]
    found = check(workload, server, targets=[f"ttft_mean<{mean}s"])
    assert found.targets[0].judgement == "undecided"
    said = " ".join(line.text for line in found.page().head)
    assert "600 requests leave it open" in said
    assert "--requests" not in said
