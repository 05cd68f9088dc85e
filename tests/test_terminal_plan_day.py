"""Days, jobs and commands on the terminal: the answer first, on 80 columns, nothing cut off."""

import pytest

import penstock as ps
from penstock.planning.day import plan_day
from penstock.planning.job import plan_job
from penstock.planning.launch import launch
from penstock.planning.rates import RateProfile
from penstock.planning.space import Deployment
from penstock.terminal_plan_day import print_day, print_job, print_launch

WORKLOAD = ps.Workload.poisson(5.0, ps.Geometric(600), ps.Geometric(100), seed=3)
REPLICA = Deployment(ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, 512, 128), 1, price=2.0)


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def test_a_day_shows_each_hour_what_it_saves_and_when_to_ask(capsys):
    found = plan_day(
        RateProfile([2.0, 9.0, 4.0]), WORKLOAD, REPLICA, ["ttft_p99<3s"], requests=1_000, startup_minutes=6
    )
    print_day(found)
    text = capsys.readouterr().out
    for period, clock in zip(found.periods, ("00:00", "01:00", "02:00"), strict=True):
        row = next(line for line in text.splitlines() if line.split()[:1] == [clock])
        assert row.split()[2:4] == [str(period.certified), str(period.replicas)]
    assert f"{found.saving:.0%} less" in text
    assert f"{found.periods[1].replicas} from 00:54" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


def test_a_job_shows_fleet_makespan_and_bound_and_what_was_not_reached(capsys):
    found = plan_job(WORKLOAD, REPLICA, requests=1_000, deadline_s=200.0, token_budgets=[256, 512])
    print_job(found)
    text = " ".join(capsys.readouterr().out.split())
    assert found.best.deployment.name in text
    assert "by theory" in text
    assert "online" not in text
    print_job(plan_job(WORKLOAD, REPLICA, requests=1_000, deadline_s=200.0, most_replicas=1, token_budgets=[512]))
    assert "UNREACHABLE" in capsys.readouterr().out


def test_a_command_can_be_copied_from_the_terminal(capsys):
    found = launch(Deployment(REPLICA.server, 3), model="codellama/CodeLlama-34b-Instruct-hf")
    print_launch(found)
    text = capsys.readouterr().out
    assert found.shell in text
    assert "3 times" in text
