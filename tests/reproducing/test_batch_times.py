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
from penstock.reproducing.batch_time_composition import _Stairs, room_for_composition
from penstock.reproducing.catalogue import item, measure, reproduce
from penstock.reproducing.item import Claim, Reproduction, Setup


def changed(name: str, folder: Path, data: Path | None = None, **settings: Any) -> Reproduction:
    """Reproduce an item with some settings changed."""
    document = copy.deepcopy(yaml.safe_load(item(name).text))
    document["reproduce"].update(settings)
    file = folder / "changed.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return reproduce(file, data=data)


def run(name: str, data: Path | None = None, **settings: Any) -> Reproduction:
    """Run an item's own function with some settings changed, its claims compared all the same."""
    document = yaml.safe_load(item(name).text)
    document["reproduce"].update(settings)
    return measure(Setup(item(name), document, Path(), data))


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


def test_a_fit_of_r2_97_hundredths_leaves_about_7_percent_of_the_mean_batch_time() -> None:
    stairs = _Stairs(c_ms=11.28, a_ms=35.47, b0=128, largest=512, r2=0.97)
    seconds = 11.28 + 35.47 * np.repeat([1, 2, 3, 4], 128)
    assert room_for_composition(stairs) == pytest.approx(np.sqrt(0.03 / 0.97) * seconds.std() / seconds.mean())
    assert room_for_composition(stairs) == pytest.approx(0.07, abs=0.001)


def test_without_data_presets_say_that_a_larger_model_varies_less() -> None:
    found = run("fig-batch-time-composition", batches=400)
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


def test_without_data_nothing_is_fitted_and_the_profiles_that_are_missing_are_named() -> None:
    found = run("fig-batch-time-fit")
    assert not found.claims
    assert not found.charts
    assert "Llama-70B TP4 are not here (--data), so nothing is fitted" in found.assumed[-1]


def test_a_staircase_in_the_layers_is_found_with_its_constants_and_width(tmp_path: Path) -> None:
    case = yaml.safe_load(item("fig-batch-time-fit").text)["reproduce"]["cases"][0]
    file = tmp_path / "data" / "profiling" / "vidur" / case["file"]
    rng = np.random.default_rng(0)
    layers(file, {1: lambda b: (11.28 + 35.47 * np.ceil(b / 128)) / 48 * (1 + 0.01 * rng.standard_normal())})
    found = run("fig-batch-time-fit", tmp_path / "data", cases=[case])
    assert not found.differing
    assert claim(found, "R^2, CodeLlama-34B TP1").same
    assert "128" in claim(found, "tokens of a step").measured


def test_steps_of_64_tokens_differ_from_the_published_ones(tmp_path: Path) -> None:
    case = yaml.safe_load(item("fig-batch-time-fit").text)["reproduce"]["cases"][0]
    file = tmp_path / "data" / "profiling" / "vidur" / case["file"]
    layers(file, {1: lambda b: (20 + 10 * np.ceil(b / 64)) / 48})
    found = run("fig-batch-time-fit", tmp_path / "data", cases=[case])
    step = claim(found, "tokens of a step")
    assert not step.same
    assert step.measured.startswith("64")
    assert not claim(found, "R^2 of the published constants").same


def test_a_pair_of_one_model_is_refused(tmp_path: Path) -> None:
    pairs = yaml.safe_load(item("fig-batch-time-composition").text)["reproduce"]["pairs"]
    with pytest.raises(InputError, match="a smaller and a larger model"):
        changed("fig-batch-time-composition", tmp_path, pairs=[pairs[0][:1]])


def test_published_constants_keep_their_own_width(tmp_path: Path) -> None:
    case = yaml.safe_load(item("fig-batch-time-fit").text)["reproduce"]["cases"][0]
    layers(tmp_path / "profiling" / "vidur" / case["file"], {1: lambda b: (11.28 + 35.47 * np.ceil(b / 128)) / 48})
    own, wide = (
        claim(run("fig-batch-time-fit", tmp_path, cases=[case], b0=b0), "R^2 of the published constants").measured
        for b0 in (128, 64)
    )
    assert own == wide


def test_each_case_without_a_profile_is_named_as_not_here(tmp_path: Path) -> None:
    first, second = yaml.safe_load(item("fig-batch-time-fit").text)["reproduce"]["cases"][:2]
    second["file"] = "elsewhere.csv.gz"
    layers(tmp_path / "profiling" / "vidur" / first["file"], {1: lambda b: (11.28 + 35.47 * np.ceil(b / 128)) / 48})
    found = run("fig-batch-time-fit", tmp_path, cases=[first, second])
    (said,) = [said for said in found.assumed if "not here" in said]
    assert "CodeLlama-34B TP2" in said
    assert "CodeLlama-34B TP1" not in said


def test_an_empty_folder_of_profiles_times_nothing(tmp_path: Path) -> None:
    (tmp_path / "profiling" / "llmservingsim").mkdir(parents=True)
    said = run("fig-batch-time-composition", tmp_path, batches=400).assumed[0]
    assert "presets" in said
    assert "LLMServingSim's" not in said


def test_the_largest_variation_at_any_load_is_told_but_no_claim_of_the_paper() -> None:
    found = run("fig-batch-time-composition", batches=400)
    assert not [each for each in found.claims if "any load" in each.what]
    assert "varies most" in found.caption


@pytest.mark.parametrize(
    ("name", "settings", "wrong"),
    [
        ("fit", {"cases": []}, "has 0 cases"),
        ("fit", {"largest": 128}, "a largest above b0"),
        ("fit", {"source": "../../metrics"}, "source must be 'vidur'"),
        ("fit", {"r2": 2.0}, "r2 must be "),
        ("fit", {"r2": float("nan")}, "r2 must be "),
        ("composition", {"batches": 1}, "batch of .* tokens was drawn.*raise batches"),
        ("composition", {"token_loads": [1]}, "token_loads"),
        *(
            ("composition", {"relatively_constant": {"c_ms": 11, "a_ms": 35, "b0": 128, "largest": 512, "r2": r2}},
             "relatively_constant.r2 must be ")
            for r2 in (2.0, float("nan"), 0.0)
        ),
    ],
)  # fmt: skip
def test_settings_that_measure_nothing_are_refused_in_one_line(name: str, settings: Any, wrong: str) -> None:
    with pytest.raises(InputError, match=wrong) as error:
        run(f"fig-batch-time-{name}", **settings)
    assert "\n" not in str(error.value)


def test_a_section_that_would_change_nothing_is_refused() -> None:
    document = yaml.safe_load(item("fig-batch-time-fit").text) | {"workload": {"preset": "azure-code"}}
    with pytest.raises(InputError, match="workload is no section that fig-batch-time-fit reads"):
        measure(Setup(item("fig-batch-time-fit"), document, Path()))


def test_the_fit_says_what_counts_as_same_and_that_nothing_is_held_out() -> None:
    said = run("fig-batch-time-fit", r2=0.9).assumed[0]
    assert "R^2 is above 0.9;" in said
    assert "inside the 95% interval" in said
    assert "No batch is held out" in said


@pytest.mark.parametrize("file", ["x" * 300, "", "a100"])
def test_a_profile_that_is_no_file_is_refused_by_its_key(tmp_path: Path, file: str) -> None:
    first, second = yaml.safe_load(item("fig-batch-time-fit").text)["reproduce"]["cases"][:2]
    (tmp_path / "profiling" / "vidur" / "a100").mkdir(parents=True)
    with pytest.raises(InputError, match=r"^reproduce\.cases\.1\.file is ") as error:
        run("fig-batch-time-fit", tmp_path, cases=[first, second | {"file": file}])
    assert "\n" not in str(error.value)


def test_the_thin_lines_of_the_published_staircase_are_in_the_legend_if_there_are_any(tmp_path: Path) -> None:
    case = yaml.safe_load(item("fig-batch-time-fit").text)["reproduce"]["cases"][0]
    layers(tmp_path / "profiling" / "vidur" / case["file"], {1: lambda b: (11.28 + 35.47 * np.ceil(b / 128)) / 48})
    unpublished = {key: value for key, value in case.items() if key != "published"}
    for chosen, there in ((case, True), (unpublished, False)):
        (chart,) = run("fig-batch-time-fit", tmp_path, cases=[chosen]).charts.values()
        assert ("Thin black lines" in chart.to_json()) == there
