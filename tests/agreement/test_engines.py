"""Engines that nobody here wrote did exactly what Penstock says, request by request."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import penstock as ps

GOLDEN = Path(__file__).parents[2].parent / "shared" / "data" / "golden"
TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time

pytestmark = pytest.mark.skipif(not GOLDEN.exists(), reason="the golden schedules are not beside the repository")


@pytest.mark.parametrize("record", ["requests", "allocations"])
@pytest.mark.parametrize("name", ["conv_ample", "code_16_seqs"])
def test_the_real_vllm_scheduler_serves_every_request_at_the_same_nanosecond(name: str, record: str) -> None:
    """vLLM V1 with ample memory is Sarathi, scope running, convention engine."""
    configuration = json.loads((GOLDEN / "vllm-0.33.0" / f"{name}.json").read_text())
    golden = pl.read_csv(GOLDEN / "vllm-0.33.0" / f"{name}.requests.csv")
    workload = ps.Workload.from_arrays(
        golden["arrival_ns"].to_numpy() / 1e9, golden["prompt_tokens"].to_numpy(), golden["output_tokens"].to_numpy()
    )
    server = ps.Server(TP1, configuration["budget"], configuration["max_seqs"], policy="sarathi")
    run = ps.simulate(workload, server, record=record)
    first = golden["arrival_ns"][0]
    for column in ("arrival_ns", "first_token_ns", "finish_ns"):
        assert (run.requests[column] + first).to_list() == golden[column].to_list(), column
    assert run.n_batches == configuration["steps"]


@pytest.mark.parametrize("name", ["conv200", "code200", "burst200"])
def test_vidurs_sarathi_serves_every_request_at_the_same_time(name: str) -> None:
    """With unlimited memory and a cap that never binds its rules are the same; its times are floats of seconds."""
    golden = pl.read_csv(GOLDEN / "vidur" / f"{name}_sarathi.csv")
    workload = ps.Workload.from_arrays(
        golden["arrived_at"].to_numpy(), golden["prefill"].to_numpy(), golden["decode"].to_numpy()
    )
    requests = ps.simulate(workload, ps.Server(TP1, 512, 128)).requests
    for ours, theirs in (("first_token_ns", "first_token_at"), ("finish_ns", "completed_at")):
        seconds = requests[ours].to_numpy() / 1e9 + golden["arrived_at"][0]
        np.testing.assert_allclose(seconds, golden[theirs].to_numpy(), rtol=0, atol=1e-9)
