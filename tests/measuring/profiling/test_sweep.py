"""A sweep visits what it says, in an order that the seed decides, and a fit to it finds what the engine takes."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.measuring.fitting.fit import fit
from penstock.measuring.fitting.readers import read_batches
from penstock.measuring.profiling.driving import Episode, run_episode
from penstock.measuring.profiling.measurements import measured, write_measurements
from penstock.measuring.profiling.sweep import Sweep, measure

SWEEP = Sweep(token_budget=96, decodes=24, prompt=200, context=300)
MODEL = ps.Composition(ps.Affine(c=4e-3, a=1.2e-4), 2e-8, 5e-8, 6e-7, 9e-7, 3e-5)


def test_the_same_seed_gives_the_same_episodes_and_another_others() -> None:
    first, again = (list(islice(SWEEP.episodes(), 5)) for _ in range(2))
    assert first == again
    assert first != list(islice(Sweep(96, 24, 200, 300, seed=1).episodes(), 5))


def test_no_request_is_longer_than_asked_for_and_all_scales_are_visited() -> None:
    requests = [request for episode in islice(SWEEP.episodes(), 60) for request in episode.requests]
    prompts = np.array([prompt for _, prompt, output in requests if output == 1])
    contexts = np.array([prompt for _, prompt, output in requests if output > 1])
    assert prompts.max() <= 200
    assert contexts.max() <= 300
    for scale in (2, 10, 100):
        assert ((prompts >= scale) & (prompts < 2 * scale)).any()
        assert ((contexts >= scale) & (contexts < 2 * scale)).any()


def test_a_sweep_has_batches_of_prompts_of_decodes_and_of_both(model_engine: Callable[..., Any]) -> None:
    batches = measure(model_engine(MODEL, 96), SWEEP, 10.0, warm=False)
    prefill, decode = batches.sums[:, 0], batches.sums[:, 1]
    assert ((prefill > 0) & (decode == 0)).sum() > 20
    assert ((prefill == 0) & (decode > 0)).sum() > 20
    assert ((prefill > 0) & (decode > 0)).sum() > 20
    assert (prefill + decode).max() == 96
    assert decode.max() >= 20


def test_the_warm_up_visits_each_token_load(model_engine: Callable[..., Any]) -> None:
    engine = model_engine(MODEL, 96)
    loads = {int(n) for e in SWEEP.warm_up() for n in run_episode(engine, e).sums[:, :2].sum(axis=1)}
    assert loads >= set(range(1, 97))


def test_a_fit_to_a_sweep_finds_what_each_part_of_a_batch_costs(model_engine: Callable[..., Any]) -> None:
    batches = measure(model_engine(MODEL, 96), SWEEP, 20.0, warm=False)
    found = fit(measured(batches, "test"), "composition-affine")
    assert found.mean_absolute_error < 1e-3
    for name, value in (("decode_attention", 6e-7), ("mixed_attention", 9e-7), ("per_request", 3e-5)):
        assert found.parameters[name][0] == pytest.approx(value, rel=0.05), name


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_measurements_are_read_back_by_fit(model_engine: Callable[..., Any], tmp_path: Path, ending: str) -> None:
    batches = run_episode(model_engine(MODEL, 96), Episode(((0, 50, 3), (1, 200, 4))))
    write_measurements(tmp_path / f"m.{ending}", batches)
    back = read_batches(tmp_path / f"m.{ending}")
    assert back.seconds == pytest.approx(batches.seconds, rel=1e-12)
    assert back.context is not None
    assert back.context.tolist() == batches.sums[:, 5].tolist()


def test_measurements_of_an_unknown_ending_are_refused(model_engine: Callable[..., Any], tmp_path: Path) -> None:
    batches = run_episode(model_engine(MODEL, 96), Episode(((0, 50, 3),)))
    with pytest.raises(ps.InputError, match=r"are \.csv or"):
        write_measurements(tmp_path / "m.xlsx", batches)


def test_an_episode_submits_each_request_before_its_step(model_engine: Callable[..., Any]) -> None:
    sums = run_episode(model_engine(MODEL, 96), Episode(((0, 10, 4), (2, 20, 1)))).sums
    assert sums[:, 0].tolist() == [10, 0, 20, 0]
    assert sums[:, 1].tolist() == [0, 1, 1, 1]


def test_a_sweep_longer_than_the_engine_takes_is_refused_in_one_line(model_engine: Callable[..., Any]) -> None:
    with pytest.raises(ps.InputError, match="lower the longest"):
        measure(model_engine(MODEL, 96), Sweep(96, 8, 5000, 100), 1.0)
