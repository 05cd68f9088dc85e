"""What is said of recordings whose rate changes, or whose load is seldom one."""

import numpy as np
import pytest

import penstock as ps
from penstock import Affine, Server, Workload, certify, check
from penstock.checking.check_server import RunAsked
from penstock.checking.head_of_answer import head_of_answer
from penstock.checking.recordings import recording_notes
from penstock.cli import command_line

SERVER = Server(Affine(0.02, 5e-5), 2048, 16)


def recorded(times):
    return Workload.from_arrays(times, np.full(times.size, 600), np.full(times.size, 40))


def ramp(factor):
    """A stretch of 600 s at so many times what the server carries, after nine times as long with next to nothing."""
    most = certify(Workload.poisson(1, 600, 40), SERVER).max_rate
    count = int(600 * factor * most)
    times = np.append(np.linspace(0, 5_400, 200), 5_400 + 600 * np.arange(1, count + 1) / count)
    return recorded(times)


def test_a_stretch_that_overloads_is_named_first_and_there_is_no_steady_state():
    answer = check(ramp(1.5), SERVER)
    assert "The rate changes: 600 s from 5,400 s on bring" in answer.front[0]
    assert ", a load of 1.5, where the mean is" in answer.front[0]
    assert "`day: trace`" in answer.front[0]
    assert answer.latency is None
    assert "no steady state" in answer.latency_refused
    assert answer.verdict == "stable"  # of the mean rate
    assert [line.label for line in head_of_answer(answer, None)][1] == "Mind"
    assert answer.as_dict()["latency"] is None


def test_a_stretch_that_is_carried_is_named_and_latency_stays():
    answer = check(ramp(0.7), SERVER)
    assert ", a load of 0.7, where the mean is" in answer.front[0]
    assert answer.latency_refused is None
    assert answer.latency is not None


def test_too_much_throughout_is_the_verdict_and_no_change_of_rate():
    workload = ramp(1.5).with_rate(20 * ramp(1.5).rate)
    assert not any("rate changes" in note for note in recording_notes(workload, certify(workload, SERVER))[0])


@pytest.mark.parametrize(("load", "said"), [(0.0005, True), (0.002, False), (9, False), (12, True)])
def test_loads_that_recordings_seldom_have_are_questioned(load, said):
    times = np.cumsum(np.random.default_rng(0).exponential(1, 500))
    workload = recorded(times)
    workload = workload.with_rate(load / certify(workload, SERVER).rho * workload.rate)
    notes, _ = recording_notes(workload, certify(workload, SERVER))
    assert any(note.startswith("The load is") for note in notes) is said


def test_a_process_has_no_recording_to_doubt():
    workload = Workload.poisson(1e-4, 600, 40)
    assert recording_notes(workload, certify(workload, SERVER)) == ([], None)


@pytest.mark.parametrize("command", ["check", "simulate"])
def test_a_doubt_finds_room_in_the_head(command, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "2000")
    rows = "\n".join(f"{10 * (number // 4)},100,20" for number in range(80))
    (tmp_path / "grid.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}\n")
    scenario = tmp_path / "grid.yaml"
    scenario.write_text(
        "workload: {trace: grid.csv}\nserver: {batch_time: {c_ms: 20, a_ms: 1, b0: 64}, token_budget: 512}"
    )
    command_line()([command, str(scenario)], prog_name="penstock", standalone_mode=False)
    said = capsys.readouterr().out.splitlines()
    assert said[1].startswith("Mind         Arrival times are stamped every 10 s: 80 requests come at 20 instants.")


def test_a_recording_with_more_rows_than_are_kept_is_refused_targets_and_told_in_a_summary(monkeypatch) -> None:
    """Whether or not the requests are named: all of the recording is meant."""
    monkeypatch.setattr("penstock.checking.check_server.ROWS_UP_TO", 100)
    recording = ps.Workload.from_arrays(np.arange(300) * 0.05, np.full(300, 40), np.full(300, 5))
    assert [RunAsked(recording, count, None).record for count in (None, 300, 100)] == ["summary", "summary", "requests"]
    with pytest.raises(ps.InputError, match="need a run with a row per request, up to 100"):
        RunAsked(recording, None, None, [ps.Target("ttft_s", "p99", 1.0)])
