"""Batch times that depend on what is in a batch: engines, KV memory and priorities against plain Python.

Costs are whole multiples of 2^-20 ticks, so that seconds hold them exactly and the two must agree event for event.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from engine_systems import OF_THE_PAPER, composed, draw, with_shared_prefixes
from test_engine_schedulers import assert_same

import penstock as ps
from penstock.system.batch_time import Affine, Composition
from penstock.system.engines import ENGINES
from tests.reference import batch_time as plain_batch_time

FAMILY = (*ENGINES, *OF_THE_PAPER)


@pytest.mark.parametrize("systems", [20, pytest.param(1_700, marks=pytest.mark.slow)])
@pytest.mark.parametrize("policy", FAMILY)
def test_the_kernel_equals_the_plain_python_event_for_event(policy: str, systems: int) -> None:
    """With memory that binds, preemption, priorities, cut prompts and early stops."""
    rng = np.random.default_rng([11, FAMILY.index(policy)])
    preemptions = 0
    for i in range(systems):
        system = composed(rng, draw(rng, policy))
        run = assert_same(system, record=("requests", "batches", "allocations")[i % 3], compress=bool(i % 4))
        preemptions += run.preemptions
    assert preemptions


@pytest.mark.parametrize("systems", [40, pytest.param(1_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("policy", ["vllm", "sglang", *OF_THE_PAPER])
def test_tokens_found_in_the_prefix_cache_count_as_processed_before(policy: str, systems: int) -> None:
    rng = np.random.default_rng([7, FAMILY.index(policy)])
    preemptions = reused = 0
    for i in range(4 * systems):
        if i >= systems and min(preemptions, reused):
            break
        system = draw(rng, policy)
        if system.blocks is None:
            continue
        system = composed(rng, with_shared_prefixes(rng, system))
        run = assert_same(system, record=("requests", "batches", "allocations")[i % 3], compress=bool(i % 4))
        preemptions, reused = preemptions + run.preemptions, reused + run.reused_tokens
    assert min(preemptions, reused) > 0


def small_runs():
    """Every number of two small runs of each scheduler."""
    runs = []
    for policy in FAMILY:
        rng = np.random.default_rng([8, FAMILY.index(policy)])
        for compress in (True, False):
            run = composed(rng, draw(rng, policy)).kernel("batches", compress)
            rows = [run.batch_rows, run.series_rows, run.rows.first_token, run.rows.finish, *run.mixes, run.mix_ticks]
            runs.append([run.end, run.busy, run.gaps.total, *(array.tolist() for array in (*rows, run.gaps.counts))])
    return runs


@pytest.mark.slow
def test_with_the_compiler_off_every_number_is_the_same() -> None:
    folder = str(Path(__file__).parent)
    program = f"import json, sys; sys.path.insert(0, {folder!r})\n"
    program += "from test_composition_engines import small_runs; print(json.dumps(small_runs()))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore::RuntimeWarning", "-c", program],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == small_runs()


def test_the_plain_python_is_appendix_a() -> None:
    """Prompts of 3 tokens after none and 2 after 5, and a decode after 7: by hand, then as the model says."""
    costs = {"self_attention": 2, "cross_attention": 3, "decode_attention": 5, "mixed_attention": 11, "per_request": 13}
    costs["with_prefill"] = 19
    plain = plain_batch_time.Composition(lambda load: 17 * load, **costs, per_tick=10)
    assert plain.ticks([(3, 0), (2, 5)], [7]) == round(
        (17 * 6 + 2 * (9 + 4 + 1) + 3 * (2 * 5) + 11 * 7 + 13 * 3 + 19) / 10
    )
    assert plain.ticks([], [7, 1]) == round((17 * 2 + 2 * 2 + 5 * 8 + 13 * 2) / 10)
    model = Composition(Affine(0, 1.7), **{name: cost / 10 for name, cost in costs.items()})
    rng = np.random.default_rng(0)
    for _ in range(200):
        prefill = [tuple(row) for row in rng.integers(1, 50, (int(rng.integers(0, 4)), 2)).tolist()]
        decode = rng.integers(1, 500, int(rng.integers(0 if prefill else 1, 5))).tolist()
        assert plain.ticks(prefill, decode) == np.floor(model.of_batch(prefill, decode) + 0.5 + 1e-9)


# ---------------------------------------------------------------- larger systems

MANY = ps.Workload.poisson(rate=3.0, prompt=ps.Geometric(300, max=900), output=ps.Geometric(60, max=200), seed=3)
LINEAR = Affine(c=0.01, a=1e-4)
ATTENTION = Composition(LINEAR, 1.3e-8, 2.7e-8, 4.7e-7, 6.1e-7, 1.1e-5)


def server(policy, batch_time, blocks=300, **more):
    budget = 256 if policy in ("vllm", "sglang", *OF_THE_PAPER) else 2048
    return ps.Server(batch_time, budget, 24, policy=policy, kv_blocks=blocks, block_size=16, **more)


def assert_equal(one, other):
    """Two runs are the same to the bit, in all that both recorded."""
    for name in (
        "end",
        "busy",
        "tokens",
        "started_tokens",
        "n_batches",
        "finished",
        "preemptions",
        "recomputed_tokens",
    ):
        assert getattr(one, name) == getattr(other, name), name
    np.testing.assert_array_equal(one.rows.first_token, other.rows.first_token)
    np.testing.assert_array_equal(one.rows.finish, other.rows.finish)
    assert one.gaps.total == other.gaps.total
    assert one.series.equals(other.series)
    assert one.compositions.equals(other.compositions)


@pytest.mark.parametrize("policy", FAMILY)
def test_compression_changes_nothing_to_the_bit(policy: str) -> None:
    """Times in runs of equal batches rise by fractions of a tick; the gaps of a run are counted in groups."""
    for how in ({"requests": 600}, {"until": 100.123}):
        usual, step_by_step = (
            ps.simulate(MANY, server(policy, ATTENTION), record="batches", compress=compress, **how)
            for compress in (True, False)
        )
        assert_equal(usual, step_by_step)
        np.testing.assert_array_equal(usual.batch_rows, step_by_step.batch_rows)
        np.testing.assert_array_equal(usual.gaps.values, step_by_step.gaps.values)
        np.testing.assert_array_equal(usual.gaps.counts, step_by_step.gaps.counts)


def test_the_series_within_runs_of_batches_is_what_the_batches_say() -> None:
    """Tokens of arrivals up to an instant, less those of batches that began before it, or had ended by it."""
    reserved = ps.Memory(80, admission="completion")
    run = ps.simulate(MANY, ps.Server(ATTENTION, 256, 24, memory=reserved), requests=600, record="batches")
    tick, requests, unprocessed, uncompleted = run.series_rows.T
    start, ticks, load = run.batch_rows[:, 0], run.batch_rows[:, 1], run.batch_rows[:, 2:4].sum(axis=1)
    tokens = run.rows.prompt_tokens.astype(int) + run.rows.output_tokens - 1
    for instant, there, *left in zip(tick, requests, unprocessed, uncompleted, strict=True):
        arrived = run.rows.arrival <= instant
        assert there == (arrived & (run.rows.finish > instant)).sum()
        begun, ended = load[start < instant].sum(), load[start + ticks <= instant].sum()
        assert left == [tokens[arrived].sum() - begun, tokens[arrived].sum() - ended]


@pytest.mark.parametrize("policy", FAMILY)
def test_without_attention_a_batch_takes_what_its_linear_part_takes(policy: str) -> None:
    linear, composition = (
        ps.simulate(MANY, server(policy, model), requests=2_000) for model in (LINEAR, Composition(LINEAR))
    )
    assert_equal(linear, composition)


@pytest.mark.parametrize("policy", ["vllm", "sarathi", "tensorrt-llm"])
def test_a_summary_of_a_streamed_run_equals_the_run_with_rows(policy: str) -> None:
    rows, summary = (
        ps.simulate(MANY, server(policy, ATTENTION), requests=15_000, record=r) for r in ("requests", "summary")
    )
    for name in ("end", "busy", "tokens", "n_batches", "preemptions"):
        assert getattr(rows, name) == getattr(summary, name), name
    assert rows.e2e.total == summary.e2e.total
    assert rows.gaps.total == summary.gaps.total
    np.testing.assert_array_equal(rows.gaps.counts, summary.gaps.counts)
    assert rows.series.equals(summary.series)
    assert rows.compositions.equals(summary.compositions)


def test_memory_that_never_binds_changes_nothing() -> None:
    """The loop for engines and the plain one are two programs; where limits do not bind they agree to the tick."""
    for policy in ("sarathi", "orca", "vllm-vanilla", "fastertransformer", "maxweight", "pool-controlled"):
        for scope in ("running", "batch"):
            plain = ps.Server(ATTENTION, 256, 24, policy=policy, scope=scope)
            ample = ps.Server(ATTENTION, 256, 24, policy=policy, scope=scope, kv_blocks=10**6)
            assert_equal(*(ps.simulate(MANY, one, requests=1_500) for one in (plain, ample)))


@pytest.mark.parametrize("policy", ["vllm", "orca"])
def test_recorded_batches_take_what_the_model_says_within_half_a_tick(policy: str) -> None:
    run = ps.simulate(MANY, server(policy, ATTENTION, blocks=10**6), requests=100, record="allocations")
    prompts = run.rows.prompt_tokens
    done = np.zeros(run.arrived, int)
    for index, (_, ticks, *_) in enumerate(run.batch_rows.tolist()):
        rows = run.allocation_rows[run.allocation_rows[:, 0] == index]
        requests, tokens = rows[:, 1], rows[:, 2] + rows[:, 3]
        prefill = done[requests] < prompts[requests]
        seconds = ATTENTION.of_batch(
            list(zip(tokens[prefill].tolist(), done[requests[prefill]].tolist(), strict=True)), done[requests[~prefill]]
        )
        assert abs(ticks - seconds / run.tick_s) <= 0.501, index
        done[requests] += tokens
