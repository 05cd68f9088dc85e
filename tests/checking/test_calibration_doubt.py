"""A verdict holds over what the calibration of the batch times leaves open, or hinges on it."""

import dataclasses

import numpy as np
import pytest

import penstock as ps
from penstock.checking.calibration_doubt import calibration_doubt
from penstock.system.batch_time import Affine, Composition
from penstock.system.measured_times import Measured
from penstock.system.uncertain import PARAMETERS, Uncertainty

VALUES = dict.fromkeys(PARAMETERS, 1.0) | {"host": 1e-4, "per_stream": 1e-6}
LOADS = (1, 64, 512, 2048)


def server(deviation: float) -> ps.Server:
    seconds = tuple(0.01 + 1e-4 * load for load in LOADS)
    model = Composition(Measured(LOADS, seconds), decode_attention=1e-9, per_request=1e-6)
    known = Uncertainty(VALUES, (np.eye(len(VALUES)) * deviation**2).tolist())
    return ps.Server(dataclasses.replace(model, uncertainty=known), 1024, None, "sarathi")


def workload(rate: float) -> ps.Workload:
    return ps.Workload.poisson(rate=rate, prompt=100, output=50, seed=0)


def test_nothing_is_said_of_batch_times_that_were_not_calibrated() -> None:
    plain = ps.Server(Affine(0.01, 1e-4), 1024, None, "sarathi")
    assert calibration_doubt(workload(10), plain) is None


@pytest.mark.parametrize(("rate", "verdict"), [(20, "stable"), (200, "unstable")])
def test_far_from_the_limit_the_verdict_holds(rate: float, verdict: str) -> None:
    answer = ps.check(workload(rate), server(0.05), requests=2000)
    assert answer.calibration is not None
    assert answer.calibration.holds(verdict)
    assert answer.verdict == verdict


def test_near_the_limit_it_is_undecided_because_of_the_calibration() -> None:
    usual = ps.certify(workload(10), server(0.2)).max_rate
    answer = ps.check(workload(0.97 * usual), server(0.2), requests=2000)
    assert answer.verdict == "undecided"
    assert "the slow end" in answer.reason
    assert answer.as_dict()["calibration"]["slow"] == "unstable"


def test_a_verdict_that_flips_within_the_interval_is_undecided_and_each_end_has_its_own() -> None:
    """One factor is uncertain, so the ends of its 90% interval are known: 1.645 deviations away."""
    deviation = 0.2
    only = np.zeros((len(VALUES), len(VALUES)))
    index = list(VALUES).index("large_batches")
    only[index, index] = deviation**2
    usual = server(deviation)
    model = usual.batch_time
    assert isinstance(model, Composition)
    known = Uncertainty(VALUES, only.tolist())
    asked = workload(0.97 * ps.certify(workload(10), usual).max_rate)
    ends = []
    for sign in (1, -1):
        change = np.zeros(len(VALUES))
        change[index] = sign * 1.645 * deviation
        moved = dataclasses.replace(known.moved(model, change), uncertainty=None)
        end = ps.check(asked, dataclasses.replace(usual, batch_time=moved), requests=2000)
        ends.append(end.verdict)
    assert ends == ["unstable", "stable"]
    doubtful = dataclasses.replace(usual, batch_time=dataclasses.replace(model, uncertainty=known))
    answer = ps.check(asked, doubtful, requests=2000)
    assert answer.calibration is not None
    assert [answer.calibration.slow, answer.calibration.fast] == ends
    assert answer.verdict == "undecided"
    assert answer.page().verdicts[0].source == "because of the calibration"


def test_more_uncertainty_widens_the_interval_around_the_same_limit() -> None:
    narrow, wide = (calibration_doubt(workload(20), server(spread)) for spread in (0.02, 0.2))
    assert narrow is not None
    assert wide is not None
    usual = ps.certify(workload(20), server(0.1)).max_rate
    assert wide.max_rate.low < narrow.max_rate.low < usual < narrow.max_rate.high < wide.max_rate.high
    assert narrow.latency["ttft_s"].low < 1 < narrow.latency["ttft_s"].high
