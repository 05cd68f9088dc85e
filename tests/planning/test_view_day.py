"""Days, jobs and commands on the terminal: the answer first, on 80 columns, nothing cut off."""

import pytest

import penstock as ps
from penstock.planning.answers import Answers
from penstock.planning.day import plan_day
from penstock.planning.deployment import Deployment, Kind
from penstock.planning.job import plan_job
from penstock.planning.launch import launch
from penstock.planning.rates import RateProfile
from penstock.show.terminal import print_page

WORKLOAD = ps.Workload.poisson(5.0, ps.Geometric(600), ps.Geometric(100), seed=3)
REPLICA = Deployment(Kind(ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, 512, 128), price=2.0), 1)


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def test_a_day_shows_each_hour_what_it_saves_and_when_to_ask(capsys):
    found = plan_day(
        RateProfile([2.0, 9.0, 4.0]), WORKLOAD, REPLICA, ["ttft_p99<3s"], requests=1_000, startup_minutes=6
    )
    print_page(found.page(), depth="all")
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
    print_page(found.page(), depth="all")
    text = " ".join(capsys.readouterr().out.split())
    budget = found.best.deployment.server.token_budget
    assert f"{found.best.deployment.fleet}: 2 accelerators; sarathi, token budget {budget}" in text
    assert "by theory" in text
    assert "online" not in text
    print_page(
        plan_job(WORKLOAD, REPLICA, requests=1_000, deadline_s=200.0, most_replicas=1, token_budgets=[512]).page(),
        depth="all",
    )
    assert "UNREACHABLE Offline work: no fleet allowed is sure to be done by then; allow more" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_job_that_nothing_finishes_in_time_has_the_reason_and_a_remedy_beside_the_word(capsys):
    print_page(plan_job(WORKLOAD, REPLICA, requests=50, deadline_s=0.5, token_budgets=[512]).page(), depth="all")
    text = " ".join(capsys.readouterr().out.split())
    assert "UNREACHABLE Offline work: the longest request alone takes" in text
    assert "give a later deadline (plan.job.deadline_h)" in text


def test_a_job_beside_online_traffic_says_its_rate(capsys):
    asked = {"requests": 200, "deadline_s": 400.0, "online": WORKLOAD.with_rate(1.5), "targets": ["ttft_p50<9s"]}
    print_page(plan_job(WORKLOAD, REPLICA, token_budgets=[512], runs=2, **asked).page(), depth="all")
    assert "beside 1.5 online requests/s with ttft_p50<9s" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("columns", [60, 80])
def test_a_day_of_large_numbers_is_not_cut_off(capsys, monkeypatch, columns):
    """Columns are left out instead, and the rate has all its digits before the point."""
    monkeypatch.setenv("COLUMNS", str(columns))
    replica = Deployment(REPLICA.server, 1)
    found = plan_day(RateProfile([10.0, 99_000.0]), WORKLOAD, replica, ["ttft_p50<3s"], requests=500, most_replicas=500)
    print_page(found.page(), depth="all")
    text = capsys.readouterr().out
    row = next(line for line in text.splitlines() if line.startswith("01:00"))
    assert "99,000" in row
    assert row.rstrip().endswith("missed")
    assert "…" not in text
    assert "inf" not in text
    assert max(map(len, text.splitlines())) <= columns


def test_one_replica_and_one_hour_are_not_several(capsys):
    print_page(
        plan_day(RateProfile([0.5]), WORKLOAD, REPLICA, ["ttft_p99<9s"], requests=500, check=False).page(), depth="all"
    )
    text = " ".join(capsys.readouterr().out.split())
    assert "1 replica of" in text
    assert "1 replica all the time" in text
    assert "accelerator-hours in 1 hour, 0% less" in text


def test_a_command_can_be_copied_from_the_terminal(capsys):
    found = launch(Deployment(REPLICA.server, 3), model="codellama/CodeLlama-34b-Instruct-hf")
    print_page(Answers("cluster", launches=[found]).page())
    text = capsys.readouterr().out
    assert found.shell in text
    assert "3 replicas, each on 1 GPU." in text
