"""Costs that the rows cannot tell are marked, and what the rows allow holds the truth."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import penstock as ps
from penstock.checking.doubt import doubt_of
from penstock.measuring.calibration.allowed import SPAN, TOLERANCE, ranges_of
from penstock.measuring.calibration.benchmarks import COLUMNS
from penstock.measuring.calibration.calibrate import calibrate
from penstock.measuring.calibration.calibration import Calibration
from penstock.measuring.calibration.equations import LINEAR, equations_of
from penstock.measuring.calibration.predict import Overhead, Requests, predict
from penstock.measuring.calibration.priors import cost_priors
from penstock.system.batch_time_file import read_batch_time, write_batch_time

CONTEXT = ps.Composition(ps.Affine(0.04, 5e-4), decode_attention=1e-5)
"""As a real server on a CPU had it: 10 us a token of context, and nothing for a request."""

ONE_SHAPE = {(250, 20): (0.5, 1.5, 2.5)}
LIMITS = {"token_budget": 2048, "max_batch_size": 64}


def rows_of(model: ps.Composition, shapes: dict[tuple[int, int], tuple[float, ...]]) -> pl.DataFrame:
    """Benchmark a server by simulation, Poisson arrivals."""
    server = ps.Server(model, *LIMITS.values(), policy="vllm")
    rows: list[dict[str, Any]] = []
    for (prompt, output), rates in shapes.items():
        for rate in rates:
            rng = np.random.default_rng(len(rows))
            arrivals = np.cumsum(rng.exponential(1 / rate, 400))
            load = Requests(arrivals - arrivals[0], np.full(400, prompt), np.full(400, output), None, None)
            seen = predict(load, server, Overhead(0.005, 0.0, 0.0))
            rows.append(
                {"row": len(rows), "run": "a", "shape": f"{prompt}+{output}", "load": str(rate), "pattern": "poisson"}
                | {"rate": rate, "completed": 400, "incomplete": 0, "duration_s": 400 / seen["requests_per_s"]}
                | {"prompt_tokens": float(prompt), "output_tokens": float(output)}
                | {name: seen[name] for name in ("ttft_p50_s", "itl_mean_s", "e2e_mean_s", "requests_per_s")}
            )
    return pl.DataFrame([{name: row.get(name) for name in COLUMNS} for row in rows], schema=COLUMNS)


@pytest.fixture(scope="module")
def found() -> Calibration:
    return calibrate(rows_of(CONTEXT, ONE_SHAPE), fit_rows="all", **LIMITS)  # type: ignore[arg-type]


def test_costs_that_share_the_time_of_equal_rows_are_marked_and_their_ranges_hold_the_truth(found: Calibration) -> None:
    for name, true in (("decode_attention", 1e-5), ("per_request", 0.0)):
        assert name in found.unidentified
        low, high = found.ranges[name]
        assert low <= true <= high
    assert "step" not in found.unidentified
    assert found.values["step"] == pytest.approx(0.04, rel=0.1)
    # The reason why marks are needed: the fit looks as good, and is off by a factor.
    assert abs(np.log(found.values["decode_attention"] / 1e-5)) > 1


def test_marks_stand_in_the_table_in_the_json_and_in_the_file(found: Calibration, tmp_path: Path) -> None:
    (parameters,) = (section for section in found.page().sections if section.title == "Parameters")
    meanings = {fact.name: fact.explanation for fact in parameters.facts}
    assert "assumed within 0 to" in meanings["decode_attention"]
    assert found.as_dict()["intervals"]["per_request"].startswith("0 us to")
    write_batch_time(tmp_path / "own.yaml", found.batch_time_file("own", "a test"))
    again = read_batch_time(tmp_path / "own.yaml")
    assert {"decode_attention", "per_request"} <= set(again.fit["priors"])
    before = found.batch_time_file("own", "a test").uncertainty
    assert again.uncertainty is not None
    assert before is not None
    assert again.uncertainty["seen"] == before["seen"]
    assert len(again.uncertainty["extremes"]) == len(before["extremes"]) > 2


@pytest.mark.parametrize(("prompt", "output"), [(250, 20), (250, 200), (1000, 20), (20, 300)])
def test_the_true_limit_of_any_policy_lies_between_the_ends_at_other_lengths_too(
    found: Calibration, prompt: int, output: int
) -> None:
    workload = ps.Workload.poisson(rate=1.0, prompt=prompt, output=output)
    true = ps.certify(workload, dataclasses.replace(found.server, batch_time=CONTEXT)).max_rate
    doubt = doubt_of((workload, found.server))
    assert doubt is not None
    assert doubt.max_rate.low <= true <= doubt.max_rate.high
    if (prompt, output) == (250, 20):
        assert doubt.max_rate.high < 1.4 * doubt.max_rate.low


def test_more_shapes_tell_more(found: Calibration) -> None:
    several = {(250, 20): (0.5, 1.5, 2.5), (30, 200): (0.3, 1.0), (1500, 8): (0.2, 0.6)}
    answers = [found, calibrate(rows_of(CONTEXT, several), fit_rows="all", **LIMITS)]  # type: ignore[arg-type]
    for name in ("per_token", "decode_attention"):
        one, more = (each.ranges.get(name, (each.values[name], each.values[name])) for each in answers)
        assert more[1] - more[0] < one[1] - one[0]
    assert "per_token" not in answers[1].unidentified


def test_no_extreme_moves_a_fitted_row_by_more_than_the_tolerance() -> None:
    rows = list(rows_of(CONTEXT, ONE_SHAPE).iter_rows(named=True))
    priors = cost_priors(0.04).of
    values = {name: priors[name].centre for name in LINEAR}
    ranges = ranges_of(rows, values, priors, ahead=True, token_budget=LIMITS["token_budget"])
    matrix, constant, metrics = equations_of(rows, 0.0, True, LIMITS["token_budget"])
    allowed = np.array([TOLERANCE[metric] for metric in metrics])

    def times(costs: Any) -> Any:
        return matrix @ [costs.get(name, 0.0) for name in LINEAR] + constant

    usual = times(values)
    for name, of in ranges.items():
        assert 0 <= of.low <= values[name] * (1 + 1e-9)
        assert of.high >= values[name] * (1 - 1e-9)
        assert of.open == (of.high > SPAN * of.low)
        for costs in (of.at_low, of.at_high):
            assert (np.abs(times(costs) / usual - 1) <= allowed * (1 + 1e-6)).all()
