"""The batch-time figures: what presets alone tell, what measured layers tell, and that a scenario decides."""

import copy
import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from penstock.errors import InputError
from penstock.reproducing.batch_times import RUN, _Stairs, room_for_composition
from penstock.reproducing.catalogue import item, reproduce
from penstock.reproducing.claims import Claim, Reproduction


def changed(name: str, folder: Path, data: Path | None = None, **settings: Any) -> Reproduction:
    """Reproduce an item with some settings changed."""
    document = copy.deepcopy(yaml.safe_load(item(name).text))
    document["reproduce"].update(settings)
    file = folder / "changed.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return reproduce(file, data=data)


def claim(found: Reproduction, what: str) -> Claim:
    """Return the only claim whose words begin so."""
    (each,) = [each for each in found.claims if each.what.startswith(what)]
    return each


def layers(file: Path, milliseconds: Mapping[int, Any]) -> None:
    """Write a layer profile as Vidur does, by tensor-parallel degree a function of tokens."""
    tokens = [1, *range(8, 513, 8)]
    rows = ["num_tensor_parallel_workers,num_tokens,time_stats.mlp.median"]
    rows += [f"{degree},{load},{of(load)}" for degree, of in milliseconds.items() for load in tokens]
    file.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(file, "wt", encoding="utf-8") as stream:
        stream.write("\n".join(rows) + "\n")


def test_both_items_run() -> None:
    assert set(RUN) == {"fig-batch-time-composition", "fig-batch-time-fit"}


def test_a_fit_of_r2_97_hundredths_leaves_about_7_percent_of_the_mean_batch_time() -> None:
    stairs = _Stairs(c_ms=11.28, a_ms=35.47, b0=128, largest=512, r2=0.97)
    seconds = 11.28 + 35.47 * np.repeat([1, 2, 3, 4], 128)
    assert room_for_composition(stairs) == pytest.approx(np.sqrt(0.03 / 0.97) * seconds.std() / seconds.mean())
    assert room_for_composition(stairs) == pytest.approx(0.07, abs=0.001)


def test_without_data_presets_say_that_a_larger_model_varies_less(tmp_path: Path) -> None:
    found = changed("fig-batch-time-composition", tmp_path, batches=400)
    assert claim(found, "CV of the larger model").same
    assert any("presets" in said for said in found.assumed)
    assert set(found.rows["model"]) == {"Llama-3.1-8B, RTX PRO 6000", "Qwen3-32B, RTX PRO 6000"}


def test_longer_requests_make_the_batch_time_vary_more(tmp_path: Path) -> None:
    short = changed("fig-batch-time-composition", tmp_path, batches=400)
    long = changed("fig-batch-time-composition", tmp_path, batches=400, longest_prompt=4096, longest=8192)
    assert (long.rows["cv"] > short.rows["cv"]).all()


def test_lengths_that_no_request_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="raise longest_prompt or longest"):
        changed("fig-batch-time-composition", tmp_path, longest=1)


def test_without_data_the_published_staircase_is_compared_with_presets() -> None:
    found = reproduce("fig-batch-time-fit")
    assert claim(found, "R^2 of the published constants, CodeLlama-34B TP1").same
    assert not [each for each in found.claims if each.what.startswith("constants")]
    assert any("fitted to loads up to 4,096" in said for said in found.assumed)


def test_a_staircase_in_the_layers_is_found_with_its_constants_and_width(tmp_path: Path) -> None:
    case = yaml.safe_load(item("fig-batch-time-fit").text)["reproduce"]["cases"][0]
    file = tmp_path / "data" / "profiling" / "vidur" / case["file"]
    rng = np.random.default_rng(0)
    layers(file, {1: lambda b: (11.28 + 35.47 * np.ceil(b / 128)) / 48 * (1 + 0.01 * rng.standard_normal())})
    found = changed("fig-batch-time-fit", tmp_path, tmp_path / "data", cases=[case])
    assert not found.differing
    assert "128" in claim(found, "tokens of a step").measured


def test_steps_of_64_tokens_differ_from_the_published_ones(tmp_path: Path) -> None:
    case = yaml.safe_load(item("fig-batch-time-fit").text)["reproduce"]["cases"][0]
    file = tmp_path / "data" / "profiling" / "vidur" / case["file"]
    layers(file, {1: lambda b: (20 + 10 * np.ceil(b / 64)) / 48})
    found = changed("fig-batch-time-fit", tmp_path, tmp_path / "data", cases=[case])
    step = claim(found, "tokens of a step")
    assert not step.same
    assert step.measured.startswith("64")
    assert not claim(found, "R^2 of the published constants").same


def test_a_pair_of_one_model_is_refused(tmp_path: Path) -> None:
    pairs = yaml.safe_load(item("fig-batch-time-composition").text)["reproduce"]["pairs"]
    with pytest.raises(InputError, match="a smaller and a larger model"):
        changed("fig-batch-time-composition", tmp_path, pairs=[pairs[0][:1]])
