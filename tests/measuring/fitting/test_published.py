"""Fits of published measurements: the paper's constants, and real steps that the fit has not seen."""

from pathlib import Path

import numpy as np
import pytest

from penstock.measuring.fitting.fit import fit
from penstock.measuring.fitting.readers import read_batches
from penstock.measuring.fitting.relative_errors import seconds_of

PAPER = {1: (11.28e-3, 35.47e-3), 2: (7.24e-3, 18.03e-3), 4: (6.96e-3, 8.69e-3)}


@pytest.mark.parametrize("degree", PAPER)
def test_the_papers_constants_come_out_of_the_profile_of_codellama_34b(degree: int, shared_data: Path) -> None:
    """b0 = 128 with R^2 above .97; c and a near the paper's. On four A100 a width of 64 fits better."""
    path = shared_data / "profiling/vidur/a100/codellama/CodeLlama-34b-Instruct-hf/mlp.csv.gz"
    measured = read_batches(path, layers=48, where={"num_tensor_parallel_workers": str(degree)}).up_to(512)
    if degree < 4:
        found = fit(measured, "steps")
        assert found.parameters["b0"][0] == 128
        assert found.r2 > 0.97
        c, a = PAPER[degree]
        assert found.parameters["a"][0] == pytest.approx(a, rel=0.02)
        assert found.parameters["c"][0] == pytest.approx(c, rel=0.12)
    else:
        assert fit(measured, "steps").r2 > 0.97
        assert fit(measured, "steps").parameters["b0"][0] == 64


@pytest.mark.parametrize("model", ["codellama-34b", "llama-2-70b", "llama-2-70b-hf"])
def test_the_second_half_of_a_real_run_is_predicted_from_the_first(model: str, shared_data: Path) -> None:
    """BLIS StepML, vLLM 0.15.1 on H100: half of the typical errors within 8%, with context better than without."""
    path = shared_data / "real_runs/blis_stepml/steps_with_true_cycle.parquet"
    steps = read_batches(path, where={"model": model})
    half = len(steps) // 2
    first, second = steps.take(np.arange(half)), steps.take(np.arange(half, len(steps)))
    errors = {}
    for name in ("affine", "composition-affine"):
        errors[name] = np.median(np.abs(seconds_of(fit(first, name).model, second) / second.seconds - 1))
    assert errors["composition-affine"] < 0.08
    assert errors["composition-affine"] < errors["affine"]
