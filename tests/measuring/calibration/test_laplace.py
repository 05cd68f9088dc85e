"""What rows and priors say together."""

import numpy as np

from penstock.measuring.calibration.laplace import Normal, most_probable

PRIOR = Normal(np.zeros(2), np.diag([0.3, 0.5]) ** 2)
SLOPES = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])


def test_a_parameter_that_no_row_moves_keeps_its_prior() -> None:
    fit = most_probable(lambda theta: SLOPES @ theta - 0.1, PRIOR, lambda _: np.full(3, 0.05))
    assert fit.mean[1] == 0
    assert fit.deviations[1] == 0.5
    assert fit.deviations[0] < 0.1


def test_rows_that_agree_outweigh_the_prior() -> None:
    fit = most_probable(lambda theta: SLOPES @ theta - 0.1, PRIOR, lambda _: np.full(3, 0.01))
    assert abs(fit.mean[0] - 0.1) < 0.002


def test_one_odd_row_does_not_bend_the_rest() -> None:
    measured = np.array([0.0, 0.0, 1.0])
    fit = most_probable(lambda theta: SLOPES @ theta - measured, PRIOR, lambda _: np.full(3, 0.02))
    assert abs(fit.mean[0]) < 0.02


def test_what_was_not_measured_says_nothing() -> None:
    def misfits(theta: np.ndarray) -> np.ndarray:
        return np.array([theta[0] - 0.1, np.nan])

    fit = most_probable(misfits, PRIOR, lambda _: np.full(2, 0.01))
    assert abs(fit.mean[0] - 0.1) < 0.002
    assert np.isfinite(fit.cost)


def test_of_two_hypotheses_the_one_that_fits_costs_less() -> None:
    near = most_probable(lambda theta: SLOPES @ theta - 0.1, PRIOR, lambda _: np.full(3, 0.02))
    far = most_probable(lambda theta: SLOPES @ theta - 0.9, PRIOR, lambda _: np.full(3, 0.02))
    assert near.cost < far.cost
