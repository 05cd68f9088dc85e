"""Clients who wait for their answers, and bursts: what `simulate` and `check` say of them, and what refuses them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import penstock as ps
from penstock.cli import command_line
from penstock.scenario.scenario import build

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
SERVER = ps.Server(TP1, 512, 64)
LENGTHS = ps.Geometric(300, max=2000), ps.Geometric(60, max=400)


@settings(max_examples=25, deadline=None)
@given(
    clients=st.integers(1, 40), pause=st.sampled_from([0.0, 0.05, 3.0]), requests=st.integers(1, 120),
    policy=st.sampled_from(["sarathi", "vllm"]), seed=st.integers(0, 9),
)  # fmt: skip
def test_each_client_has_one_request_under_way_and_pauses(
    clients: int, pause: float, requests: int, policy: str, seed: int
) -> None:
    """Every request after the first of each client is sent a pause after some answer, in order of the answers."""
    workload = ps.Workload.closed(clients, *LENGTHS, pause_s=pause, seed=seed)
    run = ps.simulate(workload, ps.Server(TP1, 512, 64, policy=policy), requests=requests)
    rows = run.rows
    assert rows is not None
    assert run.arrived == run.finished == requests == rows.arrival.size
    first = min(clients, requests)
    assert not rows.arrival[:first].any()
    ticks = max(round(pause / run.tick_s), 1)
    np.testing.assert_array_equal(rows.arrival[first:], np.sort(rows.finish)[: requests - first] + ticks)


def test_throughput_times_time_of_a_round_is_the_number_of_clients() -> None:
    """Little's law: requests/s x (latency + pause) = clients."""
    answer = ps.check(ps.Workload.closed(25, *LENGTHS, pause_s=2.0), SERVER, requests=6000)
    rate, e2e = answer.requests_per_s, answer.latency.estimates["e2e_s"]["mean"]
    assert rate.value is not None
    assert rate.low is not None
    assert rate.high is not None
    assert e2e.value is not None
    assert rate.low * (e2e.low + 2) < 25 < rate.high * (e2e.high + 2)  # type: ignore[operator]
    assert rate.value * (e2e.value + 2) == pytest.approx(25, rel=0.01)
    assert answer.max_rate is not None
    assert rate.high < answer.max_rate


def test_one_client_waits_for_nobody() -> None:
    """Alone, a request takes as long as by itself, and the throughput is one over that and the pause."""
    alone = ps.simulate(ps.Workload.burst(1, 700, 30), SERVER).latency()["mean"][2]
    answer = ps.check(ps.Workload.closed(1, 700, 30, pause_s=0.5), SERVER, requests=300)
    assert answer.requests_per_s.value == pytest.approx(1 / (alone + 0.5), rel=1e-6)


def test_many_clients_come_near_to_what_can_be_carried_and_never_beyond() -> None:
    """The limit of arrivals at a rate is that of clients, too."""
    rates = [
        ps.check(ps.Workload.closed(clients, *LENGTHS), SERVER, requests=3000).requests_per_s
        for clients in (2, 16, 250)
    ]
    most = ps.certify(ps.Workload.poisson(1.0, *LENGTHS), SERVER).max_rate
    values = [rate.value or 0.0 for rate in rates]
    assert values == sorted(values)
    assert 0.8 * most < values[-1] < most


def test_targets_are_judged_by_the_long_run() -> None:
    """A target far above is met, one far below is missed; the JSON form says both."""
    answer = ps.check(ps.Workload.closed(8, *LENGTHS), SERVER, requests=1000, targets=["ttft_mean<9s", "e2e_mean<1ms"])
    assert [target.judgement for target in answer.targets] == ["met", "missed"]
    assert answer.missed
    assert answer.verdict == "stable"
    document = json.loads(json.dumps(answer.as_dict()))
    assert [target["answer"] for target in document["targets"]] == ["met", "missed"]
    assert document["clients"] == 8
    assert document["load"] is None


def test_recorded_requests_are_sent_in_order_and_no_more_of_them() -> None:
    """Clients send the rows of a trace, and the run ends with them, or at a time."""
    rng = np.random.default_rng(1)
    trace = ps.Workload.from_arrays(None, rng.integers(1, 500, 70), rng.integers(1, 50, 70)).with_clients(6)
    run = ps.simulate(trace, SERVER)
    assert run.requests["prompt_tokens"].to_list() == trace.lengths.prompt_tokens.tolist()  # type: ignore[attr-defined]
    cut = ps.simulate(trace, SERVER, until=run.seconds / 2)
    assert 0 < cut.finished < cut.arrived < 70
    with pytest.raises(ps.InputError, match="has 70"):
        ps.simulate(trace, SERVER, requests=71)


def test_a_loop_of_centuries_is_refused_and_not_cut() -> None:
    """Its times are counted in ticks, of which there are not so many."""
    with pytest.raises(ps.InputError, match=r"90,000 requests of 4 clients .*more ticks"):
        ps.simulate(ps.Workload.closed(4, 5, 5, pause_s=1e6), SERVER, requests=90_000)


CLOSED, BURST = ps.Workload.closed(4, 100, 10), ps.Workload.burst(4, 100, 10)


@pytest.mark.parametrize("workload", [CLOSED, BURST])
@pytest.mark.parametrize(
    "ask", [ps.certify, ps.verdict, ps.max_rate, ps.recommend, ps.estimate_latency, ps.lower_bounds]
)
def test_what_needs_a_rate_refuses_what_has_none(ask: Callable[..., Any], workload: ps.Workload) -> None:
    """One line that says what does take it."""
    with pytest.raises(ps.InputError, match=r"no arrival rate.*simulate"):
        ask(workload, SERVER)


@pytest.mark.parametrize(
    ("workload", "requests", "said"),
    [
        (CLOSED, 0, "requests is 0"),
        (CLOSED, -3, "requests is -3"),
        (CLOSED, "9", "requests is '9'"),
        (ps.Workload.closed(500, 50, 50, pause_s=500.0), 1499, "1,499 requests of 500 clients .*1,500 or more"),
        (ps.Workload.burst(15, 50, 50).with_clients(4), None, "15 requests of 4 clients .*fewer clients"),
    ],
)
def test_the_beginning_of_a_loop_is_not_told_as_the_long_run(workload: ps.Workload, requests: Any, said: str) -> None:
    """First requests come all at once: at least three of each client are counted, and one of each is left out."""
    with pytest.raises(ps.InputError, match=said):
        ps.check(workload, SERVER, requests=requests)
    assert ps.check(ps.Workload.burst(16, 50, 50).with_clients(4), SERVER).asked == 12


def test_requests_of_one_length_keep_clients_in_step_and_that_is_said() -> None:
    """With pauses and one length all ask together; where answers differ, first tokens come sooner."""
    alike = ps.check(ps.Workload.closed(40, 400, 60, pause_s=3.0), SERVER, requests=4000)
    apart = ps.check(ps.Workload.closed(40, 400, ps.Geometric(60), pause_s=3.0), SERVER, requests=4000)
    assert any("asking together" in note for note in alike.front)
    assert not any("asking together" in note for note in apart.front)
    first = [answer.latency.estimates["ttft_s"]["mean"].value or 0.0 for answer in (alike, apart)]
    assert first[0] > 1.5 * first[1]
    assert not ps.Workload.closed(1, 400, 60).front


def test_a_closed_loop_is_not_tested_and_is_as_long_as_its_requests() -> None:
    """What would be in vain is refused."""
    for options in ({"until": 3.0}, {"precision": 0.1}, {"alpha": 0.1}, {"resolution": 0.1}):
        with pytest.raises(ps.InputError, match="leave it out"):
            ps.check(CLOSED, SERVER, requests=9, **options)  # type: ignore[call-overload]
    with pytest.raises(ps.InputError, match=r"how much to simulate with `requests`$"):
        ps.check(CLOSED, SERVER)
    with pytest.raises(ps.InputError, match="how many"):
        ps.simulate(CLOSED, SERVER, until=3.0)


SERVER_YAML = {"batch_time": {"affine": {"c_ms": 442, "a_ms_per_token": 0}}, "token_budget": 2048, "max_batch_size": 32}


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ({"closed": {"clients": 4}}, "how long requests are"),
        ({"closed": {"clients": 0, "prompt": 1, "output": 1}}, "clients of a closed loop is 0"),
        ({"closed": {"clients": 4, "pause": -1, "prompt": 1, "output": 1}}, "pause of a closed loop is -1"),
        ({"closed": {"clients": 4, "prompt": 1, "output": 1}, "rate": 2}, "put them inside|leave"),
        *(
            ({"preset": "azure-code", "closed": {"clients": 4} | idle, **beside}, "leave out `rate`")
            for idle, beside in (
                ({}, {"rate": 2}),
                ({}, {"cv": 2}),
                ({"output": 7}, {}),
                ({"prompt": 7}, {}),
                ({"declared": 7}, {}),
            )
        ),
        ({"closed": {"clients": 4, "prompt": 1, "output": 1}, "hash_block": 0}, "describe a trace"),
        ({"preset": "azure-code", "where": {}}, "describe a trace"),
        ({"clients": 4}, "clients is the clients of"),
        ({"closed": {"in_flight": 4, "prompt": 1, "output": 1}}, "in_flight is given as .*clients"),
        ({"concurrency": 4, "prompt": 1, "output": 1}, "concurrency is the clients of"),
        ({"burst": {"requests": 0, "prompt": 1, "output": 1}}, "requests of a burst is 0"),
        ({"burst": {"requests": 3, "prompt": 1}}, "output"),
    ],
)
def test_a_section_that_says_no_closed_loop_is_refused(workload: dict[str, Any], said: str) -> None:
    """One line with the value and the remedy."""
    with pytest.raises(ps.InputError, match=said):
        build({"workload": workload, "server": SERVER_YAML}, Path())


def test_commands_say_who_asks_and_what_is_carried(tmp_path: Path) -> None:
    """Both heads; a burst of 32 prompts, two a batch of 442 ms, waits 7.07 s at most."""
    file = tmp_path / "s.yaml"

    def said(command: str, *options: str, code: int = 0) -> str:
        result = CliRunner().invoke(command_line([command]), [command, str(file), *options])
        assert (result.exit_code != 0) == code, result.output
        return " ".join((str(result.exception) if code else result.stdout).split())

    burst = {"burst": {"requests": 32, "prompt": 1024, "output": 1}}
    file.write_text(json.dumps({"workload": burst, "server": SERVER_YAML}))
    answer = json.loads(said("simulate", "--json"))
    assert answer["load"] is None
    assert answer["simulation"]["seconds"] == pytest.approx(16 * 0.442)
    assert "32 requests at once" in said("simulate", "--report", str(tmp_path / "page.html"))
    assert "The first batches" in (tmp_path / "page.html").read_text()
    assert "simulate" in said("check", code=1)
    closed = {"clients": 4, "pause": 0.5, "prompt": 300, "output": {"geometric": 20}}
    file.write_text(json.dumps({"workload": {"closed": closed}, "server": SERVER_YAML, "simulate": {"requests": 400}}))
    for command in ("check", "simulate"):
        words = said(command, "--all", "--figures", str(tmp_path / command))
        assert "4 clients with pauses of 0.5 s" in words
        drawn = (tmp_path / command / "tokens_over_time.svg").read_text()
        assert "4 clients with pauses of 0.5 s" in drawn
        assert "By construction" in words
    for command in ("max-rate", "compare", "region", "serve"):
        assert "no arrival rate" in said(command, code=1)


def test_what_never_fits_is_counted_and_if_all_is_nothing_is_told(tmp_path: Path) -> None:
    """Heads say how many requests were dropped; where all are, or one blocks the server, that is the whole answer."""
    file = tmp_path / "s.yaml"
    kept = {"batch_time": {"affine": {"c_ms": 9, "a_ms_per_token": 0.1}}, "token_budget": 512, "policy": "vllm"}
    lengths = {"prompt": {"uniform": [100, 6000]}, "output": 5}
    workloads = [{"burst": {"requests": 50, **lengths}}, {"closed": {"clients": 5, **lengths}}]

    def asked(command: str, workload: dict[str, Any], memory: dict[str, Any], *options: str) -> Any:
        document = {"workload": workload, "server": kept | {"memory": memory}, "simulate": {"requests": 50}}
        file.write_text(json.dumps(document))
        return CliRunner().invoke(command_line([command]), [command, str(file), *options])

    drop = {"tokens": 4096, "too_long": "drop"}
    for command, workload in (("simulate", workloads[0]), ("simulate", workloads[1]), ("check", workloads[1])):
        document = json.loads(asked(command, workload, drop, "--json").stdout)
        dropped = document["simulation"]["dropped"]
        assert 0 < dropped < 50
        said = " ".join(asked(command, workload, drop).stdout.split())
        share = f"{dropped / (50 + 5):.2%} of the requests never fit and are dropped"
        assert (f"dropped: {dropped} requests" if command == "simulate" else share) in said
        refused = asked(command, workload, {"tokens": 64, "too_long": "drop"}, "--figures", str(tmp_path))
        assert "all are dropped" in str(refused.exception)
        blocked = asked(command, workload, {"tokens": 4096})
        assert "never fits and blocks" in str(blocked.exception)
        assert not blocked.stdout


@pytest.mark.parametrize("target", ["tpot_p99<40ms", "tbt_mean<1s"])
@pytest.mark.parametrize("ask", [ps.check, ps.recommend])
def test_a_limit_on_times_between_tokens_asks_for_two_tokens(ask: Callable[..., Any], target: str) -> None:
    """No run decides it where each request makes one."""
    with pytest.raises(ps.InputError, match=f"{target[:5]}.* every request makes one token"):
        ask(ps.Workload.poisson(1.0, 100, 1), SERVER, requests=300, targets=[target])


@pytest.mark.parametrize(
    ("kind", "beside", "asked", "said"),
    [
        ({"closed": {"clients": 4}}, {"until": 5.0}, ["simulate"], "how many to simulate"),
        ({"poisson": {"rate": 2.0}}, {}, ["check", "--precision", "0"], "precision is 0"),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_a_word_of_the_answer(
    kind: dict[str, dict[str, Any]], beside: dict[str, Any], asked: list[str], said: str, tmp_path: Path
) -> None:
    """Nobody reads half an answer that then has none."""
    file = tmp_path / "s.yaml"
    workload = {name: given | {"prompt": 300, "output": 20} for name, given in kind.items()}
    file.write_text(json.dumps({"workload": workload, "server": SERVER_YAML, "simulate": beside}))
    result = CliRunner().invoke(command_line([asked[0]]), [asked[0], str(file), *asked[1:]])
    assert said in str(result.exception)
    assert not result.stdout


@pytest.mark.parametrize("verb", [ps.check, ps.verdict, ps.certify, ps.max_rate])
def test_of_a_network_with_clients_is_said_who_tells_its_latency(verb: Any) -> None:
    network = ps.Network.single(ps.Workload.closed(4, 100, 20), ps.Server(ps.Affine(0.01, 1e-4), 512), 2)
    with pytest.raises(ps.InputError, match=r"4 clients, .* stable by construction. `penstock.simulate` says"):
        verb(network, **({"jobs": 100} if verb is ps.check else {}))
    assert ps.simulate(network, jobs=100).finished == 100
