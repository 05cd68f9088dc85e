"""A limit is inferred only where rows identify it: no queue of prompts is taken for a full memory."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import penstock as ps
from penstock.errors import InputError
from penstock.fields import in_keys
from penstock.measuring.calibration.benchmarks import COLUMNS
from penstock.measuring.calibration.build import Build
from penstock.measuring.calibration.calibrate import Calibration, calibrate
from penstock.measuring.calibration.predict import Overhead, Requests, predict
from penstock.measuring.calibration.priors import shape_priors
from penstock.measuring.calibration.result_row import TIMES
from penstock.measuring.calibration.shape import possible_shapes
from penstock.system.batch_time_file import read_batch_time, write_batch_time
from penstock.system.front_end import FrontEnd

BATCH_TIME = ps.Composition(ps.Affine(0.008, 3e-5), decode_attention=6e-8, per_request=4e-5)
HEAVY, EVEN, LONG = (1500, 30), (200, 100), (900, 250)
H100 = {"model": "Llama-3.1-8B", "gpu": "h100"}
LOOPS = (1, 16, 64, 160)
COSTS = ("step", "per_token", "decode_attention", "per_request", "overhead")


def benchmarked(
    server: ps.Server, shapes: tuple[tuple[int, int], ...], rounds: int = 2, loops: tuple[int, ...] = LOOPS
) -> pl.DataFrame:
    """Benchmark a server by closed loops, in which each client has so many requests."""
    rows: list[dict[str, Any]] = []
    for prompt, output in shapes:
        for clients in loops:
            rng = np.random.default_rng([prompt, clients])
            count = max(rounds * clients, 50)
            lengths = [rng.integers(mean // 2, 3 * mean // 2, count) for mean in (prompt, output)]
            seen = predict(Requests(np.zeros(count), *lengths, clients, None), server, Overhead(0.006))
            known = {name: seen[name] for name in ("ttft_mean_s", "itl_mean_s", "e2e_mean_s", "requests_per_s")}
            limits = {"prompt_low": prompt // 2, "prompt_high": 3 * prompt // 2 - 1}
            limits |= {"output_low": output // 2, "output_high": 3 * output // 2 - 1}
            rows.append(
                {"row": len(rows), "run": "a", "shape": f"{prompt}+{output}", "load": f"closed@{clients}"}
                | {"pattern": "closed", "in_flight": clients, "completed": count, "incomplete": 0}
                | {"duration_s": count / seen["requests_per_s"]}
                | {name: float(limit) for name, limit in limits.items()}
                | {"prompt_tokens": lengths[0].mean(), "output_tokens": lengths[1].mean()}
                | known
            )
    return pl.DataFrame([{name: row.get(name) for name in COLUMNS} for row in rows], schema=COLUMNS)


def calibrated(shapes: tuple[tuple[int, int], ...], fit_rows: str = "spread:3", **limits: Any) -> Calibration:
    """Calibrate on benchmarks of a server, whose max batch size is said to be 256."""
    places, rounds, loops = limits.pop("places", 256), limits.pop("rounds", 2), limits.pop("loops", LOOPS)
    told = {"fit_rows": fit_rows, "parameters": limits.pop("parameters", None)}
    server = ps.Server(BATCH_TIME, limits.pop("budget", 2048), places, policy="vllm", **limits)
    table = benchmarked(server, shapes, rounds, loops)
    return calibrate(table, **told, token_budget=server.token_budget, max_batch_size=256)


@pytest.mark.parametrize("budget", [512, 2048])
def test_a_closed_loop_whose_prompts_wait_for_the_token_budget_says_nothing_of_memory(budget: int) -> None:
    found = calibrated((HEAVY,), budget=budget)
    assert set(found.values) & {"kv_tokens", "max_batch_size"} == set()
    assert found.held["kv_tokens"].startswith("no limit seen: at least ")
    assert found.server.memory is None
    assert found.missed == []


def test_a_memory_that_holds_two_shapes_back_is_found() -> None:
    found = calibrated((EVEN, LONG), kv_tokens=8_000, loops=(1, 8, 32, 80), parameters=(*COSTS, "kv_tokens"))
    assert found.values["kv_tokens"] == pytest.approx(8_000, rel=0.1)
    assert found.missed == []


def test_a_memory_that_sixteen_requests_fill_is_found() -> None:
    found = calibrated((EVEN, LONG), kv_tokens=15_000, parameters=(*COSTS, "kv_tokens"))
    assert found.values["kv_tokens"] == pytest.approx(15_000, rel=0.05)
    assert found.missed == []


def test_one_shape_that_cannot_tell_memory_from_a_limit_on_requests_says_so() -> None:
    """Forty of the 256 requests that may run do run: memory for as many of this one shape looks much the same."""
    found = calibrated((LONG,), places=40)
    assert len(found.values.keys() & {"kv_tokens", "max_batch_size", "front_end"}) == 1
    (doubt,) = (words for words in found.warnings if "they cannot tell which" in words)
    assert "as if at most 40 requests ran" in doubt
    assert "as if KV memory held" in doubt
    assert "front end" not in doubt
    assert found.missed == []


@pytest.mark.slow
def test_fewer_requests_than_stated_are_not_taken_for_a_full_memory() -> None:
    found = calibrated((EVEN, LONG), places=40, rounds=3)
    assert "kv_tokens" not in found.values
    assert found.values["max_batch_size"] == pytest.approx(40, rel=0.05)
    assert any("fewer than 256" in words for words in found.warnings)


def test_what_shapes_carry_is_said_to_hinge_on_memory_that_no_row_has_seen() -> None:
    """Sixteen requests at a time hold little of the memory that hundreds would need."""
    server = ps.Server(BATCH_TIME, 2048, 256, policy="vllm", kv_tokens=40_000)
    table = benchmarked(server, (LONG,)).filter(pl.col("in_flight") <= 16)
    found = calibrate(table, fit_rows="all", token_budget=2048, max_batch_size=256)
    row = found.rows.row(0, named=True)
    assert row["limit_at_least_per_s"] < 0.8 * row["limit_per_s"]
    assert any("KV memory cannot be seen in these rows" in words for words in found.warnings)
    assert found.batch_time_file("a server", "a.csv").fit["kv_tokens_at_least"] < 20_000


def test_two_output_lengths_tell_what_a_front_end_takes_for_a_request_and_for_a_token(tmp_path: Path) -> None:
    found = calibrated(((64, 16), (64, 64)), front_end=FrontEnd(0.004, 1e-4))
    assert found.values["front_end"] == pytest.approx(0.004, rel=0.05)
    assert found.values["front_end_per_token"] == pytest.approx(1e-4, rel=0.05)
    assert found.limit_warning is None
    assert found.missed == []
    write_batch_time(tmp_path / "found.yaml", found.batch_time_file("a server", "a.csv"))
    batch_time = read_batch_time(tmp_path / "found.yaml").batch_time
    for front_end, told in ((found.server.front_end, False), (None, True)):
        server = dataclasses.replace(found.server, batch_time=batch_time, front_end=front_end)
        assert any("add `front_end: {per_request_ms: " in doubt for doubt in server.time_doubts) == told


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ("{max_batch_size: '32'}", "server_limits: max_batch_size"),
        ("{kv_tokens: -5}", "server_limits: kv_tokens is -5"),
        ("{front_end: abc}", "limits are kv_tokens, max_batch_size and a front_end"),
        ("{front_end: {per_request_ms: none}}", "server_limits: front_end: per_request_ms"),
        ("{places: 3}", "server_limits: places"),
    ],
)
def test_limits_of_a_file_that_say_nothing_are_refused_in_one_line(limits: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "odd.yaml").write_text(
        "description: a\nsource: b\nbatch_time: {composition: {linear: {affine: {c_ms: 8, a_ms_per_token: 0.01}}}}\n"
        "uncertainty: {extremes: [{composition: {linear: {affine: {c_ms: 8, a_ms_per_token: 0.01}}}}],\n"
        f"  seen: {{policy: vllm, prompt: [1, 2], output: [1, 2], running: 3, server_limits: {limits}}}}}\n"
    )
    with pytest.raises(InputError) as refused:
        read_batch_time(tmp_path / "odd.yaml")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_one_length_tells_how_many_requests_a_front_end_takes_in_under_a_shape_too() -> None:
    """What of that is for each token, one length cannot tell."""
    (build, *_) = possible_shapes(H100, Build(2048, 256, "vllm", 400_000))
    server, _ = build(shape_priors("vllm").values(shape_priors("vllm").normal.mean))
    table = benchmarked(dataclasses.replace(server, front_end=FrontEnd(0.02)), (EVEN,), loops=(1, 16, 64))
    told = {"fit_rows": "all", "token_budget": 2048, "max_batch_size": 256, "policy": "vllm"}
    for more in ({}, {"hardware": H100, "kv_tokens": 400_000}):
        front_end = calibrate(table, **told, **more).server.front_end
        assert front_end is not None
        assert front_end.seconds(100) == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("lacks", ["ttft", "itl tpot", "ttft itl tpot"])
def test_whole_requests_tell_a_front_end_where_parts_of_them_were_not_measured(lacks: str) -> None:
    (build, *_) = possible_shapes(H100, Build(2048, 256, "vllm", 400_000))
    server, _ = build(shape_priors("vllm").values(shape_priors("vllm").normal.mean))
    table = benchmarked(dataclasses.replace(server, front_end=FrontEnd(0.05)), (EVEN,), loops=(1, 16, 64))
    times = [name for name in TIMES if name.split("_")[0] in lacks.split()]
    table = table.with_columns(pl.lit(None, pl.Float64).alias(name) for name in times)
    told = {"fit_rows": "all", "token_budget": 2048, "max_batch_size": 256, "policy": "vllm"}
    found = calibrate(table, **told, hardware=H100, kv_tokens=400_000)
    assert found.server.front_end is not None
    assert found.server.front_end.seconds(100) == pytest.approx(0.05, rel=0.05)
    assert any("half is assumed" in words for words in found.warnings)
    assert found.as_dict()["server"]["front_end"] == in_keys(found.server.front_end)


def test_factors_that_servers_hardly_have_are_named() -> None:
    """Ten times as slow as its shape: another GPU ran, or another model."""
    (build, *_) = possible_shapes(H100, Build(2048, 256, "vllm", 400_000))
    server, _ = build(shape_priors("vllm").values(shape_priors("vllm").normal.mean))
    table = benchmarked(dataclasses.replace(server, batch_time=server.batch_time.scaled(10)), (EVEN,), loops=(1, 16))
    told = {"fit_rows": "all", "token_budget": 2048, "max_batch_size": 256, "policy": "vllm"}
    found = calibrate(table, **told, hardware=H100, kv_tokens=400_000)
    assert any("which servers hardly ever have" in words for words in found.warnings)


def test_a_front_end_is_named_where_closed_loops_of_one_length_cannot_tell_it_from_other_limits() -> None:
    found = calibrated(((100, 8),), front_end=FrontEnd(0.0105))
    assert any("as if a front end worked" in words and "they cannot tell which" in words for words in found.warnings)
    assert found.missed == []


def test_a_few_places_are_told_to_the_one() -> None:
    """The search sees what one place more does: within less nothing changes."""
    found = calibrated((EVEN,), "all", places=8, loops=(1, 4, 8, 16, 32), parameters=(*COSTS, "max_batch_size"))
    assert found.values["max_batch_size"] == pytest.approx(8, abs=0.5)
    assert found.missed == []


def test_short_prompts_that_wait_are_calibrated_although_they_fill_no_block_of_memory() -> None:
    """A memory that is tried is never less than a block, which would be refused as what nobody gave."""
    assert "step" in calibrated(((10, 4),), "all", places=1, loops=(1, 2, 4)).values
