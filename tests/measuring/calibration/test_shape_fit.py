"""A shape is the prior of a calibration: few rows move it, and what they leave open stays in the answer."""

import dataclasses
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import penstock as ps
from penstock.errors import InputError
from penstock.measuring.calibration.benchmarks import COLUMNS
from penstock.measuring.calibration.build import Build
from penstock.measuring.calibration.posterior import WholeRequests
from penstock.measuring.calibration.predict import predict, requests_of
from penstock.measuring.calibration.priors import shape_priors
from penstock.measuring.calibration.quantities import ADJUSTMENTS
from penstock.measuring.calibration.shape import possible_shapes
from penstock.system.batch_time_file import read_batch_time, write_batch_time

HARDWARE = {"model": "Llama-3.1-8B", "gpu": "h100-sxm", "kv_precision": "bf16"}
STATED = Build(2048, 256, "vllm", None)
SEEN = ("ttft_mean_s", "tpot_mean_s", "e2e_mean_s", "requests_per_s")
PRIORS = shape_priors("vllm")
TRUE = PRIORS.values(PRIORS.normal.mean) | {"small_batches": 1.2, "medium_batches": 1.2}


def row(number: int, flying: int, prompt: int = 500, output: int = 100) -> dict[str, object]:
    return dict.fromkeys(COLUMNS) | {
        "row": number, "run": "mine", "shape": f"{prompt}+{output}", "load": f"closed@{flying}", "pattern": "closed",
        "in_flight": flying, "completed": 5 * flying, "incomplete": 0, "duration_s": 10.0, "note": None,
        "prompt_tokens": float(prompt), "prompt_low": 0.8 * prompt, "prompt_high": 1.2 * prompt,
        "output_tokens": float(output), "output_low": 0.8 * output, "output_high": 1.2 * output,
    }  # fmt: skip


@pytest.fixture(scope="module")
def benchmarks() -> pl.DataFrame:
    """What a server would have measured whose small batches take a fifth longer than its shape says."""
    (build,) = possible_shapes(HARDWARE, STATED)
    server, overhead = build(TRUE)
    rows = []
    for number, flying in enumerate((1, 4, 16, 64)):
        asked = row(number, flying)
        times = predict(requests_of(asked, server), server, overhead)
        rows.append(asked | {name: times[name] for name in SEEN})
    return pl.DataFrame(rows, schema=COLUMNS)


@pytest.fixture(scope="module")
def found(benchmarks: pl.DataFrame) -> ps.Calibration:
    return ps.calibrate(benchmarks, hardware=HARDWARE, fit_rows="spread:2", token_budget=2048, max_batch_size=256)


def test_rows_move_the_factors_that_they_tell(found: ps.Calibration) -> None:
    assert found.values["small_batches"] == pytest.approx(1.2, rel=0.05)
    assert found.errors(False)["itl"] == pytest.approx(0, abs=0.03)


def test_requests_whose_tokens_were_not_streamed_move_them_too(benchmarks: pl.DataFrame) -> None:
    rows = benchmarks.with_columns(ttft_mean_s=None, tpot_mean_s=None).cast(COLUMNS)
    whole = ps.calibrate(rows, hardware=HARDWARE, fit_rows="spread:3", token_budget=2048, max_batch_size=256)
    assert whole.values["small_batches"] == pytest.approx(1.2, rel=0.1)
    assert whole.errors(False)["e2e"] == pytest.approx(0, abs=0.03)
    assert "prompt_kernel" in whole.unidentified


def test_time_that_moves_from_the_first_token_to_the_others_is_no_misfit_of_the_request() -> None:
    requests = WholeRequests.of(np.array([[3.0, 0.1]]), np.array([11.0]))  # 3 s and then 1 s
    assert requests.misfits(np.log([[2.5 / 3, 1.5]])) == pytest.approx([np.log(2.5 / 3), np.log(1.5), 0.0])
    assert requests.misfits(np.log([[1.1, 1.1]])) == pytest.approx(np.log([1.1] * 3))


def test_a_request_that_is_hardly_more_than_its_tokens_says_little_beside_them() -> None:
    requests = WholeRequests.of(np.array([[0.1, 0.1], [99.9, 0.1], [np.nan, 0.1]]), np.array([1000.0] * 3))
    ttft, itl = (PRIORS.noise[metric] for metric in ("ttft", "itl"))
    noise = requests.noise(PRIORS.noise).reshape(3, 3)
    assert noise[:, :2].tolist() == [[ttft, itl]] * 3
    assert noise[0, 2] > 30 * itl
    assert noise[1, 2] == pytest.approx(itl * np.sqrt(2), rel=0.01)
    assert np.isnan(requests.misfits(np.full((3, 2), 0.1)).reshape(3, 3)[2, 2])


def test_an_end_to_end_latency_counts_where_not_both_of_its_parts_were_measured() -> None:
    requests = WholeRequests.of(np.array([[1.0, 0.1], [np.nan, 0.1], [np.nan, np.nan]]), np.array([9.0, 9.0, 9.0]))
    off = np.log([[1.1, 1.1], [np.nan, 1.1], [np.nan, np.nan]])
    whole = requests.misfits(off, np.log([1.2, 1.2, 1.2])).reshape(3, 3)[:, 2]
    assert whole == pytest.approx(np.log([1.1, 1.2, 1.2]))


def test_what_rows_do_not_tell_is_named_with_its_interval(found: ps.Calibration) -> None:
    assert "kv_memory" in found.unidentified
    assert "small_batches" not in found.unidentified
    assert any("kv_memory" in warning for warning in found.warnings)


def test_kv_tokens_that_are_given_are_not_fitted(benchmarks: pl.DataFrame) -> None:
    asked = {"hardware": HARDWARE, "fit_rows": "spread:2", "token_budget": 2048, "max_batch_size": 256}
    given = ps.calibrate(benchmarks, kv_tokens=20_000, **asked)  # type: ignore[arg-type]
    assert "kv_memory" not in given.values
    assert "kv_memory" not in given.unidentified
    assert given.held["kv_memory"] == "20,000 tokens were given"
    assert given.server.memory is not None
    assert given.server.memory.tokens == 20_000


def test_intervals_hold_what_was_measured(found: ps.Calibration) -> None:
    for metric in ("ttft", "itl", "requests_per_s"):
        measured = found.rows[f"{metric}_measured"]
        assert ((found.rows[f"{metric}_low"] < measured) & (measured < found.rows[f"{metric}_high"])).all()


def test_a_length_of_which_no_row_was_fitted_has_a_wider_interval(benchmarks: pl.DataFrame) -> None:
    asked = {"hardware": HARDWARE, "fit_rows": [True, True, True, False], "token_budget": 2048, "max_batch_size": 256}
    other = pl.when(pl.col("row") == 3).then(pl.lit("another")).otherwise("shape").alias("shape")
    seen, unseen = (
        ps.calibrate(rows, **asked).rows.row(3, named=True)  # type: ignore[arg-type]
        for rows in (benchmarks, benchmarks.with_columns(other))
    )
    for metric in ("ttft", "itl"):
        assert unseen[f"{metric}_high"] / unseen[f"{metric}_low"] > 1.1 * seen[f"{metric}_high"] / seen[f"{metric}_low"]
    assert unseen["ttft_predicted"] == seen["ttft_predicted"]


def test_the_file_carries_what_is_left_open(found: ps.Calibration, tmp_path: Path) -> None:
    write_batch_time(tmp_path / "server.yaml", found.batch_time_file("mine", "a test"))
    batch_time = read_batch_time(tmp_path / "server.yaml").batch_time
    known = getattr(batch_time, "uncertainty", None)
    assert known is not None
    assert known.values["small_batches"] == pytest.approx(found.values["small_batches"])


def test_the_precision_of_the_cache_may_be_unknown() -> None:
    open_ended = {name: value for name, value in HARDWARE.items() if name != "kv_precision"}
    precisions = [build.served.numbers.kv for build in possible_shapes(open_ended, STATED)]
    assert precisions == ["bf16", "fp8"]
    assert len(possible_shapes(HARDWARE, STATED)) == 1


def test_an_engine_in_the_hardware_is_the_scheduler() -> None:
    (build,) = possible_shapes(HARDWARE | {"engine": "sglang"}, STATED)
    assert build.policy == "sglang"


def test_priors_cover_every_parameter_of_every_engine() -> None:
    for engine in ("vllm", "sglang", "tensorrt-llm"):
        priors = shape_priors(engine)
        assert set(priors.of) == set(ADJUSTMENTS)
        assert min(priors.unseen["ttft"], priors.unseen["itl"]) >= 1
        assert (np.linalg.eigvalsh(priors.normal.covariance) > 0).all()
    assert shape_priors("orca") == shape_priors("vllm")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpu": "h900"}, "h900"),
        ({"speed": 3}, "speed"),
    ],
)
def test_hardware_that_is_not_known_is_refused(
    benchmarks: pl.DataFrame, change: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        ps.calibrate(benchmarks, hardware=HARDWARE | change)


def test_a_name_for_hardware_is_refused_with_what_it_needs(benchmarks: pl.DataFrame) -> None:
    with pytest.raises(InputError, match="a mapping with model and gpu"):
        ps.calibrate(benchmarks, hardware="h100-sxm")  # type: ignore[arg-type]


def test_a_policy_that_is_no_engine_is_refused(benchmarks: pl.DataFrame) -> None:
    with pytest.raises(InputError, match="served by an engine"):
        ps.calibrate(benchmarks, hardware=HARDWARE, policy="orca")


def test_parameters_are_not_chosen_beside_a_shape(benchmarks: pl.DataFrame) -> None:
    with pytest.raises(InputError, match="leave one of them out"):
        ps.calibrate(benchmarks, hardware=HARDWARE, parameters=["step"])


def test_a_server_with_doubt_is_equal_to_one_without(found: ps.Calibration) -> None:
    plain = dataclasses.replace(found.server.batch_time, uncertainty=None)  # type: ignore[call-arg]
    assert plain == found.server.batch_time


def test_kv_memory_that_holds_no_request_is_refused(benchmarks: pl.DataFrame) -> None:
    with pytest.raises(InputError, match="kv_tokens is 100, but requests of the rows have 600 tokens"):
        ps.calibrate(benchmarks, hardware=HARDWARE, kv_tokens=100)


def test_a_row_without_any_latency_is_not_fitted(benchmarks: pl.DataFrame) -> None:
    empty = [pl.when(pl.col("row") > 0).then(name).alias(name) for name in SEEN]
    rows = benchmarks.with_columns(empty)
    kept = ps.calibrate(rows, hardware=HARDWARE, fit_rows="lowest:1", token_budget=2048, max_batch_size=256)
    assert kept.rows.filter("fitted")["row"].to_list() == [1]
