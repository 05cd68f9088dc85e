"""The kernel at its edges: what it refuses, very long times, and the same numbers with the compiler off."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from penstock.errors import InputError
from penstock.kernel.recording import CARRY
from penstock.kernel.signatures import DECODE_FIRST
from penstock.simulation.new_world import SERIES_INSTANTS
from penstock.simulation.simulate import simulate
from penstock.system.batch_time import Affine, Composition
from penstock.system.server import Server
from penstock.workload.workload import Workload
from tests.own_policies import own_policy

SCENARIO = {
    "arrival_s": [0, 0, 3, 4, 4, 40],
    "prompt_tokens": [5, 2, 9, 1, 1, 3],
    "output_tokens": [4, 1, 3, 70, 2, 1],
}


BY_LOAD = Affine(c=1.0, a=1.0)
BY_COMPOSITION = Composition(BY_LOAD, 0.3, 0.1, 0.07, 0.21, 0.4)


def outcome(compress, record, policy="orca", scope="batch", batch_time=BY_LOAD):
    """Run a small scenario that cuts prompts, passes decodes over, idles, and compresses."""
    server = Server(batch_time, 4, 3, policy=policy, scope=scope)
    run = simulate(Workload.from_arrays(**SCENARIO), server, tick_s=1.0, record=record, compress=compress)
    numbers = [run.end, run.n_batches, run.busy, run.tokens, run.gaps.total, run.ttft.total, run.e2e.total]
    return [numbers, run.gaps.values.tolist(), run.gaps.counts.tolist(), run.series_rows.tolist()]


def outcomes():
    return [
        outcome(compress, record, policy, scope, batch_time)
        for batch_time in (BY_LOAD, BY_COMPOSITION)
        for compress in (True, False)
        for record in ("summary", "allocations")
        for policy, scope in (("orca", "batch"), ("sarathi", "running"), ("vllm-vanilla", "batch"))
    ]


def test_with_the_compiler_off_every_number_is_the_same():
    """So that coverage and a debugger can look into the kernel, in a process of its own."""
    program = f"import json, runpy; print(json.dumps(runpy.run_path({__file__!r})['outcomes']()))"
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore::RuntimeWarning", "-c", program],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for interpreted, compiled in zip(json.loads(done.stdout), outcomes(), strict=True):
        assert interpreted == compiled


@own_policy
def never_decodes(queue, limits, params):
    return queue.prompt_tokens, 0, DECODE_FIRST


@own_policy
def negative(queue, limits, params):
    return queue.prompt_tokens - 1, -1, DECODE_FIRST


def served_by(rule):
    server = Server(Affine(c=1.0, a=0.0), 8, policy=rule)
    return simulate(Workload.from_arrays([0, 1], [3, 4], [2, 2]), server, tick_s=1.0)


def test_a_policy_that_serves_nobody_while_somebody_waits_is_refused_with_the_state_it_saw():
    with pytest.raises(
        InputError, match=r"'never-decodes' formed an empty batch at 2 s with 0 prompts .* and 2 decoding"
    ):
        served_by(never_decodes)


def test_a_policy_that_asks_for_less_than_nothing_is_refused_with_the_state_it_saw():
    with pytest.raises(
        InputError, match=r"'negative' asked for a negative number of tokens.* at 0 s with 1 prompt \(3 tok"
    ):
        served_by(negative)


@pytest.mark.parametrize("stalls", [False, True])
def test_gaps_whose_sum_is_beyond_64_bits_are_averaged_exactly(stalls):
    """500 requests decode in batches of 2**49 ticks; new prompts stop them in every other one, or never."""
    arrival, output = [0] * 500, [201] * 500
    if stalls:
        arrival, output = arrival + [1024 * i for i in range(1, 200)], output + [1] * 199
    server = Server(Affine(c=512.0, a=0.0), 500, policy="vllm-vanilla")
    workload = Workload.from_arrays(arrival, [1] * len(arrival), output)
    rows, summary = (simulate(workload, server, tick_s=2.0**-40, record=record) for record in ("requests", "summary"))
    total = sum((rows.rows.finish - rows.rows.first_token).tolist())
    assert rows.gaps.values[-1] == (2**50 if stalls else 2**49)
    assert rows.gaps.total == summary.gaps.total == total > 2**65 > CARRY
    assert rows.gaps.mean == total / (500 * 200)
    assert rows.e2e.total == summary.e2e.total == total + sum((rows.rows.first_token - rows.rows.arrival).tolist())


def test_a_series_of_a_long_run_is_thinned_to_equally_spaced_instants_that_span_it():
    """Every instant is a power of two apart, and there are more than half of 2,000."""
    rng = np.random.default_rng(0)
    server = Server(Affine(c=1.0, a=1.0), 8)
    arrival = np.append(0, np.cumsum(rng.integers(1, 100, 999)))
    run = simulate(Workload.from_arrays(arrival, *rng.integers(1, 20, (2, 1000))), server, tick_s=1.0)
    instants = run.series_rows[:, 0]
    step = int(instants[1])
    assert step & (step - 1) == 0
    assert instants.tolist() == list(range(0, run.end + 1, step))
    assert SERIES_INSTANTS // 2 <= instants.size <= SERIES_INSTANTS


@pytest.mark.parametrize("output", [1, 2, 63, 64, 65, 127, 128, 129, 4095, 4096])
def test_an_output_around_the_size_of_the_ring_of_due_epochs_takes_that_many_tokens(output):
    """Beside short ones that come and go; the ring has a power of two of places, at least 64."""
    arrival = [0, *range(1, 2 * output, 3)]
    lengths = [output] + [1 + i % 7 for i in range(len(arrival) - 1)]
    server = Server(Affine(c=1.0, a=0.0), 4, policy="sarathi")
    run = simulate(Workload.from_arrays(arrival, [1] * len(arrival), lengths), server, tick_s=1.0)
    assert run.rows.finish[0] == output, "the oldest is in every batch of one tick"
    assert run.gaps.size == sum(lengths) - len(lengths)
