"""Engines that nobody here wrote did exactly what Penstock says, request by request."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from engine_systems import assert_a_pool_does_the_same

import penstock as ps
from penstock.simulation.simulate import simulate_jobs
from tests.reference.simulation import simulate_server

GOLDEN = Path(__file__).parents[2].parent / "shared" / "data" / "golden"
RECORDED = Path(__file__).parent / "schedules"
TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
SETTINGS = (
    "chunked_prefill", "long_prefill_token_threshold", "long_prefill_token_threshold_adaptive",
    "prefill_schedule_interval", "scheduler_reserve_full_isl", "max_model_len",
)  # fmt: skip

QUEUED = {"requests": "max_num_queued_reqs", "prompt_tokens": "max_num_queued_tokens"}
OF_DRAFTERS = ("method", "parallel_drafting", "mtp_modules")
MORE = sorted((GOLDEN / "vllm-0.33.0-more").glob("*.json"))

with_golden_files = pytest.mark.skipif(not GOLDEN.exists(), reason="the golden schedules are not beside the repository")


def drafts_of(configuration):
    """Speculation as a recording has it: of so many drafts the first are accepted, always."""
    drafts = configuration.get("spec", configuration.get("drafts", 0))
    if drafts == 0:
        return {}
    accepted = configuration.get("accept", configuration.get("accepts"))
    told = {name: configuration[name] for name in OF_DRAFTERS if configuration.get(name)}
    return {"drafts": drafts, "acceptance": [1.0] * accepted + [0.0] * (drafts - accepted)} | told


def batch_time_of(configuration):
    """The batch time of a recording: that of a GPU, or nanoseconds for a batch and for each token."""
    costs = configuration.get("batch_time")
    return TP1 if costs is None else ps.Affine(costs["c"] / 1e9, costs["a"] / 1e9)


def ids_of(rows: pl.DataFrame, block: int):
    """What the requests of a recording have in common, under the names of `ps.Workload.from_arrays`."""
    names = [name for name in ("hash_ids", "hash_ids_with_output") if name in rows.columns]
    lists = {name: [[int(i) for i in (ids or "").split()] for ids in rows[name]] for name in names}
    return lists | {"hash_block": block}


def assert_vllm_did_this(configuration, rows: pl.DataFrame, record: str, compress: bool) -> None:
    """Every request has its first token and finish at the same nanosecond, and is preempted as often."""
    block_size, caching = configuration.get("block_size", 16), configuration.get("prefix_caching", False)
    workload = ps.Workload.from_arrays(
        rows["arrival_ns"].to_numpy() / 1e9, rows["prompt_tokens"], rows["output_tokens"], rows["priority"],
        **ids_of(rows, block_size) if caching else {},
    )  # fmt: skip
    server = ps.Server(
        batch_time_of(configuration),
        configuration["budget"],
        configuration["max_seqs"],
        policy="vllm",
        policy_params={
            "async_scheduling": configuration.get("async_scheduling", configuration.get("cls") == "async"),
            **{name: configuration[name] for name in SETTINGS if name in configuration},
            **drafts_of(configuration),
        },
        order=configuration.get("policy", "fcfs"),
        memory=ps.Memory(
            configuration["num_blocks"], block_size, configuration.get("watermark"), prefix_caching=caching
        ),
    )
    if "failed" in rows.columns:
        assert_the_same_clients_left(configuration, rows, workload, server, compress)
        return
    run = ps.simulate(workload, server, record=record, compress=compress)
    first = rows["arrival_ns"][0]
    for column in ("arrival_ns", "first_token_ns", "finish_ns"):
        assert (run.requests[column] + first).to_list() == rows[column].to_list(), column
    assert run.requests["preemptions"].to_list() == rows["preemptions"].to_list()
    assert run.preemptions == configuration["preemptions"]
    assert run.n_batches == configuration["steps"]
    assert_a_pool_does_the_same(workload, server, run, record, compress)


def assert_the_same_clients_left(configuration, rows, workload, server, compress) -> None:
    """Who is refused, who leaves, and when all others have their tokens: what vLLM's own check and aborts do."""
    told = {name: configuration[name] for name in QUEUED.values() if name in configuration}
    limits = {ours: told[theirs] for ours, theirs in QUEUED.items() if theirs in told}
    if limits:
        server = dataclasses.replace(server, queue_limit=ps.QueueLimit(**limits))
    waits = {
        f"{name}_limit_s": np.where(rows[f"{name}_limit_ns"] > 0, rows[f"{name}_limit_ns"] / 1e9, np.inf)
        for name in ("ttft", "e2e")
    }
    if any(np.isfinite(seconds).any() for seconds in waits.values()):
        workload = workload.with_patience(ps.Patience(ttft_ms=1))  # of each request it is recorded
    network = ps.Network.single(workload, server)
    jobs = dataclasses.replace(network.jobs(len(rows)), **waits)
    run = simulate_jobs(network, jobs, compress=compress, record="allocations")
    first = rows["arrival_ns"][0]
    for column in ("first_token_ns", "finish_ns"):
        ours = (run.requests[column] + first).fill_null(-1)
        assert ours.to_list() == rows[column].to_list(), column
    assert run.requests["failed"].fill_null("").to_list() == rows["failed"].fill_null("").to_list()
    assert run.preemptions == configuration["preemptions"]
    assert run.n_batches == configuration["steps"]


@with_golden_files
@pytest.mark.parametrize("record", ["requests", "allocations"])
@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("name", ["conv_ample", "code_16_seqs", "conv_kv_limited", "conv_priority"])
def test_the_real_vllm_scheduler_serves_every_request_at_the_same_nanosecond(
    name: str, compress: bool, record: str
) -> None:
    folder = GOLDEN / "vllm-0.33.0"
    configuration = json.loads((folder / f"{name}.json").read_text())
    assert_vllm_did_this(configuration, pl.read_csv(folder / f"{name}.requests.csv"), record, compress)


@with_golden_files
@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("path", sorted((GOLDEN / "vllm-0.33.0-settings").glob("*.json")), ids=lambda path: path.stem)
def test_every_setting_of_vllm_is_met_to_the_nanosecond(path: Path, compress: bool) -> None:
    """A step ahead, admission by the first chunk, adaptive thresholds, prefill intervals, longest contexts."""
    configuration = json.loads(path.read_text())
    assert_vllm_did_this(configuration, pl.read_csv(path.with_suffix(".csv")), "requests", compress)


@with_golden_files
@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("path", MORE, ids=lambda path: path.stem)
def test_answers_in_the_cache_and_who_drafts_are_met_to_the_nanosecond(path: Path, compress: bool) -> None:
    """A next prompt finds what an answer left; a block is named by the token after it; a draft model takes slots."""
    configuration = json.loads(path.read_text())
    assert_vllm_did_this(configuration, pl.read_csv(path.with_suffix(".csv")), "requests", compress)


@with_golden_files
@pytest.mark.parametrize("path", MORE, ids=lambda path: path.stem)
def test_the_reference_meets_answers_in_the_cache_and_who_drafts_to_the_nanosecond(path: Path) -> None:
    configuration = json.loads(path.read_text())
    rows = pl.read_csv(path.with_suffix(".csv"))
    time = batch_time_of(configuration)
    size = configuration["block_size"]
    ids = {}
    if configuration["prefix_caching"]:
        given = ids_of(rows, size)
        ids["names_outputs"] = "hash_ids_with_output" in given
        ids["hash_ids"] = given.get("hash_ids_with_output", given["hash_ids"])
    history = simulate_server(
        rows["arrival_ns"].to_list(),
        rows["prompt_tokens"].to_list(),
        rows["output_tokens"].to_list(),
        priority=rows["priority"].to_list(),
        engine="vllm",
        batch_time=lambda tokens: round(time(tokens) * 1e9),
        token_budget=configuration["budget"],
        max_batch_size=configuration["max_seqs"],
        kv_blocks=configuration["num_blocks"],
        block_size=size,
        order=configuration["policy"],
        options={"async_scheduling": configuration["async_scheduling"], **drafts_of(configuration)},
        **ids,
    )
    for column, ours in (("first_token_ns", "first_token"), ("finish_ns", "finish"), ("preemptions", "preemptions")):
        assert [getattr(request, ours) for request in history.requests] == rows[column].to_list(), column
    assert len(history.batches) == configuration["steps"]


@with_golden_files
def test_a_trace_of_answers_is_read_from_its_table() -> None:
    """The ids that go on with outputs, as they stand in the table of a recording, are those that arrays give."""
    path = GOLDEN / "vllm-0.33.0-more" / "turns_ample.csv"
    rows = pl.read_csv(path)
    read = ps.read_trace(path, columns={"arrival_ns": "arrival_ns"}, hash_block=16)
    given = ps.Workload.from_arrays(
        rows["arrival_ns"].to_numpy() / 1e9, rows["prompt_tokens"], rows["output_tokens"], **ids_of(rows, 16)
    )
    assert read.prefixes.names_outputs
    assert read.prefixes.ids.tolist() == given.prefixes.ids.tolist()
    assert read.prefixes.bounds.tolist() == given.prefixes.bounds.tolist()


@pytest.mark.parametrize("path", sorted(RECORDED.glob("vllm_*.json")), ids=lambda path: path.stem)
@pytest.mark.parametrize("compress", [True, False])
def test_recorded_schedules_of_the_real_vllm_are_met_to_the_nanosecond(path: Path, compress: bool) -> None:
    """Chunking off, long-prefill threshold, priorities, tight memory, prefix caching, aborts, limits on the queue."""
    configuration = json.loads(path.read_text())
    assert_vllm_did_this(configuration, pl.read_csv(path.with_suffix(".csv")), "requests", compress)


@with_golden_files
@pytest.mark.parametrize("name", ["conv_ample", "code_16_seqs"])
def test_with_ample_memory_vllm_is_sarathi(name: str) -> None:
    """The policy of the paper, in scope running and convention engine, does the same to the nanosecond."""
    configuration = json.loads((GOLDEN / "vllm-0.33.0" / f"{name}.json").read_text())
    rows = pl.read_csv(GOLDEN / "vllm-0.33.0" / f"{name}.requests.csv")
    seconds = rows["arrival_ns"].to_numpy() / 1e9
    workload = ps.Workload.from_arrays(seconds, rows["prompt_tokens"], rows["output_tokens"])
    run = ps.simulate(workload, ps.Server(TP1, configuration["budget"], configuration["max_seqs"]))
    assert (run.requests["finish_ns"] + rows["arrival_ns"][0]).to_list() == rows["finish_ns"].to_list()
