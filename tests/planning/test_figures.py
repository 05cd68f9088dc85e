"""Figures of a plan show every deployment that was simulated, the answer, the target, and the day."""

from pathlib import Path
from typing import Any

import altair as alt
import pytest

import penstock as ps
from penstock.planning import figures as plotting_plan
from penstock.planning.answers import Answers
from penstock.planning.day import DayPlan, plan_day
from penstock.planning.plan import Plan, plan
from penstock.planning.rates import RateProfile
from penstock.planning.space import Space, search_space
from penstock.show import charts

WORKLOAD = ps.Workload.poisson(rate=20.0, prompt=400, output=60)
SERVER = ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, 512, 32)
TARGETS = ["ttft_p99<2s", "e2e_p50<10s"]
RATES = [2.0, 5.0, 20.0, 8.0]


@pytest.fixture(scope="module")
def space() -> Space:
    return search_space(SERVER, token_budget=[128, 512], max_batch_size=[32, None], replicas=16)


@pytest.fixture(scope="module")
def found(space: Space) -> Plan:
    return plan(WORKLOAD, space, TARGETS, requests=1_000)


@pytest.fixture(scope="module")
def day(found: Plan) -> DayPlan:
    assert found.best is not None
    profile = RateProfile(RATES, interval_s=6 * 3600.0)
    return plan_day(profile, WORKLOAD, found.best.deployment, TARGETS, most_replicas=16, requests=1_000)


def rows_of(chart: Any) -> list[dict[str, Any]]:
    return [row for part in (chart, *chart["layer"]) for row in part.get("data", {"values": []})["values"]]


def test_every_stable_deployment_that_was_simulated_is_drawn_and_one_is_the_answer(found: Plan) -> None:
    rows = plotting_plan.evaluations(found)
    assert rows.height == sum(each.verdict == "stable" for each in found.evaluated)
    assert found.best is not None
    assert rows.filter(rows["state"] == plotting_plan.ANSWER)["deployment"].to_list() == [found.best.deployment.name]
    assert rows["frontier"].sum() == len(found.frontier)
    drawn = {row["deployment"] for row in rows_of(plotting_plan.frontier_chart(found)) if "deployment" in row}
    assert drawn == set(rows["deployment"])


def test_the_target_is_a_line_with_its_name_and_axes_have_units(found: Plan) -> None:
    chart = plotting_plan.frontier_chart(found)
    assert {row["x"] for row in rows_of(chart) if row.get("text") == "ttft_p99<2s"} == {2.0}
    encoding = chart["layer"][-1]["encoding"]
    assert encoding["x"]["title"].startswith("TTFT p99 (s")
    assert encoding["y"]["title"] == "Cost (accelerators)"


def test_what_became_of_a_deployment_differs_in_shape_and_not_in_colour_alone() -> None:
    shapes = [shape for _, shape in plotting_plan._STATES.values()]
    assert len(set(shapes)) == len(shapes)


def test_the_day_draws_what_follows_it_the_static_fleet_and_what_theory_needs(day: DayPlan) -> None:
    rows = plotting_plan.day_rows(day)
    assert rows["hour"].to_list() == [0.0, 6.0, 12.0, 18.0]
    assert rows["rate"].to_list() == RATES
    following, static, needed = (rows[name].to_list() for name in list(rows.columns)[2:])
    assert following == [period.replicas for period in day.periods]
    assert set(static) == {day.deployment.replicas}
    assert all(least <= planned for least, planned in zip(needed, following, strict=True))
    replicas = rows_of(list(plotting_plan.day_charts(day).values())[1])
    assert max(row["hour"] for row in replicas) == 24


def test_figures_can_be_written_and_what_is_missing_is_left_out(found: Plan, day: DayPlan, tmp_path: Path) -> None:
    answers = Answers("cluster", found, day)
    for chart in [plotting_plan.frontier_chart(found), *plotting_plan.day_charts(day).values()]:
        alt.LayerChart.from_dict(chart)  # refuses what Vega-Lite does not know
    assert [path.stem for path in charts.save_page(answers.page(), tmp_path)] == ["frontier"] * 2 + ["day"] * 2
    assert "Requests/s" in (tmp_path / "day.svg").read_text()
