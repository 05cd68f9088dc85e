"""Four real runs of vLLM are predicted from layer profiles; nothing is fitted to them."""

import dataclasses
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"


def _load():
    """Return the script that makes the tables of docs/real-runs.md."""
    spec = importlib.util.spec_from_file_location("real_runs", ROOT / "benchmarks" / "studies" / "real_runs.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


real_runs = _load()
WITHIN = {("e2e_s", "mean"): 0.05, ("e2e_s", "p99"): 0.05, ("ttft_s", "mean"): 0.11, ("tpot_s", "mean"): 0.05}

pytestmark = pytest.mark.skipif(
    not (DATA / "real_runs" / "llmservingsim_bench").exists(), reason="the recorded runs are not beside the repository"
)


@pytest.fixture(scope="module", params=real_runs.RUNS, ids=lambda run: run.folder)
def case(request):
    """A run: what happened, the model fitted to the profile, and what is predicted."""
    fit = real_runs.fitted(request.param, DATA)
    predicted = real_runs.predicted(request.param, DATA, fit.model)
    return request.param, real_runs.recorded(request.param, DATA), fit, predicted


def test_latencies_are_within_the_stated_limits_of_the_real_run(case) -> None:
    """Mean and p99 of E2E within 5%, mean TTFT within 11%, mean TPOT within 5%."""
    _, recorded, _, predicted = case
    real, said = real_runs.metrics(recorded), real_runs.metrics(predicted)
    for (metric, statistic), limit in WITHIN.items():
        assert said[metric][statistic] == pytest.approx(real[metric][statistic], rel=limit), (metric, statistic)


def test_the_same_requests_come_and_all_leave(case) -> None:
    _, recorded, _, predicted = case
    assert predicted.select("prompt", "output").equals(recorded.select("prompt", "output"))
    assert predicted["arrival_s"].to_numpy() == pytest.approx(recorded["arrival_s"].to_numpy(), abs=1e-8)
    assert predicted["finish_s"].null_count() == 0


def test_single_requests_are_predicted_too(case) -> None:
    """Half of them within 10% of their E2E: means do not agree by chance."""
    _, recorded, _, predicted = case
    e2e = [(rows["finish_s"] - rows["arrival_s"]).to_numpy() for rows in (predicted, recorded)]
    assert np.median(np.abs(e2e[0] / e2e[1] - 1)) < 0.10


def test_what_adds_up_over_a_run_is_as_the_profile_says(case) -> None:
    """The composition's seconds sum to those of the profile within half a percent, on batches not used to fit it."""
    run, _, fit, _ = case
    assert max(abs(one.bias) for one in (fit, real_runs.fitted(run, DATA, 1))) < 0.005


@pytest.mark.parametrize("run", [real_runs.RUNS[0]], ids=lambda run: run.folder)
def test_without_prefix_caching_what_memory_costs_is_overestimated(run) -> None:
    """The engine finds blocks of preempted requests again; computed anew they would cost 3% of the E2E and more."""
    fit = real_runs.fitted(run, DATA)
    anew = dataclasses.replace(run, memory=dataclasses.replace(run.memory, prefix_caching=False))
    e2e = [real_runs.metrics(real_runs.predicted(r, DATA, fit.model))["e2e_s"]["mean"] for r in (run, anew)]
    assert e2e[1] > 1.03 * e2e[0]
