"""The mirror of OpenVINO's scheduler knows each of its batches; what is missing is said in one line."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.measuring.profiling.driving import Episode, drive, run_episode
from penstock.measuring.profiling.llama import llama
from penstock.measuring.profiling.open_engine import open_engine
from penstock.measuring.profiling.openvino import OpenVinoEngine

MISSING = importlib.util.find_spec("openvino_genai") is None
needs_openvino = pytest.mark.skipif(MISSING, reason="OpenVINO GenAI is not installed: pip install '.[test,openvino]'")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.skipif(not MISSING, reason="OpenVINO GenAI is installed here")
def test_without_openvino_one_line_says_how_to_install_it() -> None:
    with pytest.raises(ps.InputError, match=r"pip install '\.\[openvino\]'$"):
        open_engine("openvino", llama("tiny"), 64)


@pytest.mark.openvino
@needs_openvino
@pytest.mark.parametrize("budget", [16, 100])
def test_the_mirror_equals_the_real_scheduler_on_every_step(models: Path, budget: int) -> None:
    """`step` compares the requests of each batch and who puts out a token with the engine's own, or raises."""
    engine = OpenVinoEngine(llama("tiny"), budget, folder=models)
    rng = np.random.default_rng(budget)
    requests = [
        (int(step), int(prompt), int(output))
        for step, prompt, output in zip(
            np.sort(rng.integers(0, 150, 60)), rng.integers(1, 200, 60), rng.integers(1, 40, 60), strict=True
        )
    ]
    batches = run_episode(engine, Episode(tuple(requests)))
    forward = sum(prompt + output - 1 for _, prompt, output in requests)
    assert batches.sums[:, :2].sum() == forward
    assert batches.sums[:, :2].sum(axis=1).max() == budget
    assert (batches.seconds > 0).all()


@pytest.mark.openvino
@needs_openvino
def test_in_real_time_no_token_comes_before_its_request_and_all_come(models: Path) -> None:
    engine = OpenVinoEngine(llama("tiny"), 64, folder=models)
    drawn = ps.Workload.poisson(60.0, ps.Geometric(40, max=200), ps.Geometric(10, max=40), seed=1).requests(60)
    seen = drive(engine, *drawn[:3])
    assert (seen.first_token_s > seen.arrival_s).all()
    assert (seen.finish_s >= seen.first_token_s).all()
    assert seen.gaps_s.size == (drawn.output_tokens - 1).sum()
    assert (seen.batches.begin_s[1:] >= seen.batches.end_s[:-1]).all()


@pytest.mark.openvino
@needs_openvino
def test_a_model_is_made_once(models: Path) -> None:
    OpenVinoEngine(llama("tiny"), 32, folder=models)
    (place,) = models.iterdir()
    made = (place / "openvino_model.bin").stat().st_mtime_ns
    OpenVinoEngine(llama("tiny"), 32, folder=models)
    assert (place / "openvino_model.bin").stat().st_mtime_ns == made


def test_a_policy_for_openvino_is_refused_in_one_line() -> None:
    with pytest.raises(ps.InputError, match="scheduler of its own"):
        open_engine("openvino", llama("tiny"), 64, policy="orca")
