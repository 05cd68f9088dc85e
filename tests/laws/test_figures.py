"""What a figure draws, what its tables say and what the answer has are the same numbers."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import penstock as ps
from penstock.checking import figures, figures_network
from penstock.measuring.calibration.figures import calibration_figures
from penstock.measuring.fitting.figures import fit_figures
from penstock.planning.day import plan_day
from penstock.planning.figures import day_figure, frontier_figure
from penstock.planning.rates import RateProfile
from penstock.planning.space import search_space
from penstock.scenario.scenario import read_scenario
from penstock.show.page import Figure
from penstock.sweeping.figures import sweep_figures
from penstock.sweeping.sweep import sweep
from penstock.theory.region import sarathi_region

EXAMPLES = Path(__file__).parents[2] / "examples"
SERVER = ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, 512, 32)
WORKLOAD = ps.Workload.poisson(3.0, 400, 60)


def drawn(chart: Any, *columns: str) -> list[tuple[Any, ...]]:
    """Return what the layers of a chart that put columns at x and y (and tell marks apart by more) draw."""
    rows = []
    for layer in chart["layer"]:
        at = {part.get("field") for part in layer["encoding"].values() if isinstance(part, dict)}
        if set(columns) <= at:
            rows += [tuple(row[name] for name in columns) for row in layer.get("data", chart["data"])["values"]]
    assert rows, columns
    return rows


def cells(figure: Figure, table: int = 0) -> list[dict[str, str]]:
    return [dict(zip(figure.tables[table].columns, row, strict=True)) for row in figure.tables[table].rows]


def number(text: str) -> float:
    return float(text.replace(",", "").rstrip("%")) / (100 if text.endswith("%") else 1)


@pytest.fixture(scope="module")
def runs() -> dict[str, ps.Run]:
    return {name: ps.simulate(WORKLOAD, SERVER.with_policy(name), requests=400) for name in ("sarathi", "orca")}


def test_tokens_are_those_of_the_series(runs: dict[str, ps.Run]) -> None:
    figure = figures.token_figure(runs)
    for name, of in figures.series_while_arriving(runs).items():
        series = dict(of.select("time_s", "uncompleted_tokens").iter_rows())
        for chart in figure.charts.values():
            points = {x: y for x, y, policy in drawn(chart, "time_s", "uncompleted_tokens", "policy") if policy == name}
            assert len(points) > 100
            assert points == {time: max(series[time], 1) for time in points}
        assert all(number(row[name]) in series.values() for row in cells(figure) if row[name] != "-")
        assert all(f"{name} ends with {of['uncompleted_tokens'][-1]:,}" in text for text in figure.charts)


def test_distributions_are_those_of_the_samples(runs: dict[str, ps.Run]) -> None:
    figure = figures.latency_figure(runs)
    for place, ((text, chart), pick) in enumerate(zip(figure.charts.items(), figures.SAMPLES.values(), strict=True)):
        for name, run in runs.items():
            samples = getattr(run, pick)
            points = [(x, y) for x, y, of in drawn(chart, "seconds", "share", "name") if of == name][1:]
            shares = np.cumsum(samples.counts) / samples.size
            of_time = dict(zip((np.maximum(samples.values, 1) * run.tick_s).tolist(), shares.tolist(), strict=True))
            assert dict(points) == {time: of_time[time] for time, _ in points}
            assert points[-1][1] == 1
            for row in cells(figure, place):
                true = samples.quantile(number(row["Share"])) * run.tick_s
                assert number(row[name]) == pytest.approx(true, rel=6e-3)
            for share, said in ((0.5, "at the median"), (0.99, "at the 99th percentile")):
                assert f"{figures.seconds(samples.quantile(share) * run.tick_s)} s {said}" in text


def test_a_region_has_its_corners_and_each_batch_of_the_run(runs: dict[str, ps.Run]) -> None:
    region, own = ps.region(SERVER, prompt=400, output=60), sarathi_region(SERVER)
    figure = figures.region_figure(region, point=(600.0, 90.0), own={"sarathi": own})
    (chart,) = figure.charts.values()
    lines = drawn(chart, "prefill", "decode", "line")
    for name, of, row in (("stability region", region, "region"), ("policy's own region", own, "sarathi's own")):
        assert [point[:2] for point in lines if point[2] == name] == [tuple(corner) for corner in of.vertices[1:]]
        said = [(number(x), number(y)) for at, x, y in figure.tables[0].rows if at == row]
        assert np.allclose(said, of.vertices, atol=0.051)
    assert {at: (x, y) for x, y, at in drawn(chart, "prefill", "decode", "at")}["offered load"] == (600.0, 90.0)
    for table, run in zip(figures.region_figure(region, runs).tables, runs.values(), strict=True):
        for said, mix in zip(table.rows[:12], run.compositions.iter_rows(), strict=False):
            assert [number(text) for text in said] == pytest.approx([*mix[:3], mix[4]], abs=6e-4)


def test_queues_are_those_of_the_run() -> None:
    network = read_scenario(EXAMPLES / "rybko_stolyar.yaml").network
    run = ps.simulate(network, jobs=300)
    figure, queues = figures_network.queue_figure(run), figures_network.stage_queues(run)
    rows = {(time, stage): count for time, stage, count in queues.iter_rows()}
    stages = run.queues.filter(pl.col("what").is_in(["prefill", "decode"]), pl.col("name") == network.stages[0])
    whole = dict(stages.group_by("time_s").agg(pl.col("value").sum()).iter_rows())
    assert all(count == whole[time] for (time, stage), count in rows.items() if stage == network.stages[0])
    for text, chart in figure.charts.items():
        points = {(time, stage): count for time, count, stage in drawn(chart, "time_s", "requests", "stage")}
        assert points == {key: rows[key] for key in points}
        for stage in {stage for _, stage in points}:
            most = max(count for (_, at), count in rows.items() if at == stage)
            assert f"{stage} at most {most:,}" in text
            said = [number(row[stage]) for row in cells(figure)]
            assert said[-1] == queues.filter(stage=stage)["requests"][-1]
            assert set(said) <= {count for (_, at), count in rows.items() if at == stage}


@pytest.mark.parametrize("name", ["rybko_stolyar.yaml", "self_reflection.yaml"])  # one grows, one drains
def test_floods_went_where_their_paths_end(name: str) -> None:
    stability = ps.verdict(read_scenario(EXAMPLES / name).network)
    figure = figures_network.flood_figure(stability)
    ((text, chart),) = figure.charts.items()
    points = drawn(chart, "time", "work", "stage")
    for flood, row in zip(stability.floods, cells(figure), strict=True):
        path = dict(flood.path.tolist())
        mine = [(x, y) for x, y, stage in points if stage == flood.name]
        low = min(y for _, y in mine)
        assert mine == [(x, max(path[x], low)) for x, _ in mine]
        assert mine[-1][0] == flood.path[-1, 0]
        assert flood.path[-1, 1] == pytest.approx(flood.ratio)
        assert (number(row["Work at the end"]), number(row["Most"])) == pytest.approx(
            (flood.ratio, flood.highest), abs=0.006
        )
        assert number(row["Seconds"]) == pytest.approx(flood.path[-1, 0], rel=1e-3)
        assert f"{flood.name} flooded it went to {flood.ratio:.2f} times, at most {flood.highest:.2f}" in text


def test_a_sweep_s_lines_are_its_rows() -> None:
    rate = "workload.poisson.rate"
    document = {
        "workload": {"poisson": {"rate": 1.0, "prompt": 400, "output": 60}},
        "server": {"hardware": "codellama-34b-a100-tp1", "token_budget": 512, "max_batch_size": 32},
        "simulate": {"requests": 400},
    }
    rows = sweep(document, {rate: [1, 2, 3]}, jobs=1, seed=0)
    for figure, statistic in zip(sweep_figures(rows, [rate]), ("p50", "p99"), strict=True):
        for chart, metric in zip(figure.charts.values(), ("ttft", "tbt", "e2e"), strict=True):
            true = dict(rows.select(rate, f"{metric}_{statistic}_s").iter_rows())
            assert dict(drawn(chart, "x", "y")) == true
            column = f"{metric.upper()} {statistic}"
            assert [number(row[column]) for row in cells(figure)] == pytest.approx([*true.values()], rel=6e-3)


def test_a_plan_s_points_and_its_day_are_those_simulated() -> None:
    workload, targets = ps.Workload.poisson(20.0, 400, 60), ["ttft_p99<2s", "e2e_p50<10s"]
    space = search_space(SERVER, token_budget=[128, 512], max_batch_size=[32], replicas=16)
    answer = ps.plan(workload, space, targets, requests=600)
    assert answer.best is not None
    (chart,) = frontier_figure(answer).charts.values()
    true = {(one.estimates[0].value, one.deployment.cost) for one in answer.measured}
    edge = 50 * answer.targets[0].limit_s
    assert {(x, y) for x, y, _ in drawn(chart, "latency_s", "cost", "state")} == {(min(x, edge), y) for x, y in true}
    profile = RateProfile([2.0, 20.0], interval_s=12 * 3600.0)
    day = plan_day(profile, WORKLOAD, answer.best.deployment, targets, most_replicas=16, requests=600)
    rates, replicas, *_ = day_figure(day).charts.values()
    assert [rate for _, rate in drawn(rates, "hour", "rate")][:2] == profile.rates.tolist() == [2.0, 20.0]
    following = [count for _, count, fleet in drawn(replicas, "hour", "value", "fleet") if fleet == "follows the day"]
    assert following[:2] == [period.replicas for period in day.periods]


def test_a_fit_s_points_are_its_batches_and_their_errors() -> None:
    tokens = np.arange(1.0, 200.0)
    measured = ps.MeasuredBatches(0.01 + 1e-4 * tokens * (1 + 0.1 * np.sin(tokens)), tokens)
    answer = ps.fit(measured, "affine")
    times, errors = (chart for figure in fit_figures(answer) for chart in figure.charts.values())
    assert dict(drawn(times, "tokens", "measured_ms")) == pytest.approx(
        dict(zip(tokens, measured.seconds * 1e3, strict=True))
    )
    end = errors["layer"][0]["encoding"]["y"]["scale"]["domain"][1]
    true = (answer.predicted / measured.seconds - 1).clip(-end, end)
    assert dict(drawn(errors, "tokens", "error")) == pytest.approx(dict(zip(tokens, true, strict=True)))


MEASURED = """rate,prompt,output,ttft_ms,itl_ms,e2e_ms,completed,incomplete,rps
1,500,60,21,9.4,576,200,0,1.0
6,500,60,26,10.7,657,200,0,5.9
12,500,60,31,13.5,828,200,0,11.5
"""


def test_a_calibration_s_points_are_its_rows_and_their_errors(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(MEASURED)
    parameters = ["step", "per_token", "overhead"]
    answer = ps.calibrate(ps.read_benchmarks(tmp_path / "mine.csv"), fit_rows="spread:2", parameters=parameters)
    predicted, errors = calibration_figures(answer)
    for chart, metric, per in zip(predicted.charts.values(), ("ttft", "itl", "e2e"), (1e3, 1e3, 1.0), strict=True):
        true = answer.rows.select(pl.col(f"{metric}_{name}") * per for name in ("measured", "predicted"))
        assert np.allclose([(x, y) for x, y, _ in drawn(chart, "measured", "predicted", "rows")], true.rows())
    assert sorted(answer.rows["ttft_measured"]) == pytest.approx([0.021, 0.026, 0.031])
    for chart, metric in zip(errors.charts.values(), ("ttft", "itl"), strict=True):
        one, other = (answer.rows[f"{metric}_{name}"] for name in ("predicted", "measured"))
        loads = answer.rows["requests_per_s_measured"] / answer.rows["limit_per_s"]
        true = zip(loads, (one / other - 1).clip(-0.5, 0.5), strict=True)
        assert np.allclose([(x, y) for x, y, _ in drawn(chart, "share", "error", "rows")], [*true])
