"""Batch times that know how uncertain their calibration leaves them."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import InputError
from penstock.system.batch_time import Composition
from penstock.system.batch_time_file import BatchTimeFile, read_batch_time, write_batch_time
from penstock.system.measured_times import Measured
from penstock.system.models.adjusted import Adjustment
from penstock.system.uncertain import PARAMETERS, Uncertainty

SHAPE = Composition(Measured((1, 8, 64, 512, 2048, 8192), (0.01, 0.01, 0.011, 0.03, 0.1, 0.4)), 1e-9, 2e-9, 3e-9)
VALUES = {
    "small_batches": 1.1, "medium_batches": 1.2, "large_batches": 0.9, "decode_kernel": 1.3,
    "prompt_kernel": 0.8, "host": 5e-4, "per_stream": 4e-6,
}  # fmt: skip


def test_factors_act_at_their_loads() -> None:
    moved = Adjustment(**VALUES).of(SHAPE)
    linear = SHAPE.linear([8, 64, 8192])
    assert moved.linear([8, 64, 8192]) == pytest.approx(linear * [1.1, 1.2, 0.9] + 5e-4)
    assert moved.decode_attention == pytest.approx(1.3 * 3e-9)
    assert moved.self_attention == pytest.approx(0.8e-9)
    assert moved.per_request == pytest.approx(4e-6)


def test_the_shape_itself_is_the_adjustment_by_nothing() -> None:
    assert Adjustment().of(SHAPE).linear([1, 100, 8192]) == pytest.approx(SHAPE.linear([1, 100, 8192]))


def test_moving_is_the_adjustment_at_other_values() -> None:
    known = Uncertainty(VALUES, np.diag([0.1] * len(VALUES)).tolist())
    change = np.linspace(-0.3, 0.3, len(VALUES))
    there = {name: value * np.exp(move) for (name, value), move in zip(VALUES.items(), change, strict=True)}
    moved = known.moved(Adjustment(**VALUES).of(SHAPE), change)
    meant = Adjustment(**there).of(SHAPE)
    loads = [1, 20, 300, 8192]
    assert moved.linear(loads) == pytest.approx(meant.linear(loads))
    assert moved.of_batch([(500, 100)], [1000] * 5) == pytest.approx(meant.of_batch([(500, 100)], [1000] * 5))


def test_draws_cancel_and_spread_as_the_covariance_says() -> None:
    covariance = np.diag(np.arange(1, 8) / 100.0)
    draws = Uncertainty(VALUES, covariance.tolist()).draws(4000)
    assert draws.mean(axis=0) == pytest.approx(np.zeros(7), abs=1e-12)
    assert draws.var(axis=0) == pytest.approx(np.diag(covariance), rel=0.15)


def test_a_file_keeps_what_the_calibration_left_open(tmp_path: Path) -> None:
    known = Uncertainty(VALUES, np.diag([0.01] * 7).tolist())
    model = dataclasses.replace(Adjustment(**VALUES).of(SHAPE), uncertainty=known)
    write_batch_time(tmp_path / "server.yaml", BatchTimeFile("mine", model, "a test"))
    again = read_batch_time(tmp_path / "server.yaml").batch_time
    assert isinstance(again, Composition)
    assert again == model
    assert again.uncertainty == known


@pytest.mark.parametrize(
    ("values", "covariance"), [({"speed": 1.0}, [[0.1]]), ({"host": 1.0}, [[0.1, 0.0]]), ({"host": 1.0}, [[np.nan]])]
)
def test_an_uncertainty_that_says_nothing_is_refused(values: dict[str, float], covariance: list[list[float]]) -> None:
    with pytest.raises(InputError, match="say nothing together"):
        Uncertainty(values, covariance)


def test_every_parameter_is_known() -> None:
    assert set(VALUES) == set(PARAMETERS)
