"""Penstock's SGLang did what the real scheduler of SGLang 0.5.23 did, to the nanosecond."""

import json
from pathlib import Path

import polars as pl
import pytest
from engine_systems import assert_a_pool_does_the_same
from recorded import FOLDER, HASH_BLOCK, batch_ns

import penstock as ps
from tests.reference.simulation import simulate_server

GOLDEN = Path(__file__).parents[2].parent / "shared" / "data" / "golden"
OF_PRIORITIES = (
    "priority_scheduling_preemption_threshold", "schedule_low_priority_values_first", "retraction_policy"
)  # fmt: skip

RECORDINGS = sorted([*GOLDEN.glob("sglang-0.5.23*/*.json"), *FOLDER.glob("sglang_*.json")])


def every_recording(marks=()):
    """The kernel serves all of them each time; plain Python takes seconds for those of two hundred requests."""
    long = {path: marks for path in RECORDINGS if path.parent.name == "sglang-0.5.23"}
    return pytest.mark.parametrize(
        "path", [pytest.param(path, marks=long.get(path, ()), id=path.stem) for path in RECORDINGS]
    )


def batch_time_of(configuration):
    """Nanoseconds of a batch by its tokens."""
    costs = configuration.get("batch_time")
    return batch_ns if costs is None else lambda tokens: costs["c"] + costs["a"] * tokens


def settings(configuration):
    """The settings of the reference that mean what a recording says."""
    chunk, page = configuration["chunked_prefill_size"], configuration.get("page_size", 1)
    options = {
        "overlap_schedule": configuration.get("overlap", False),
        "mixed_chunk": configuration.get("mixed", False),
        "chunked_prefill": chunk > 0,
        "max_prefill_tokens": configuration.get("max_prefill_tokens", 16_384),
        "schedule_conservativeness": configuration.get("conservativeness", 1.0),
        "ignore_eos": configuration["declared_max_new_tokens"] == "ignore_eos",
        "schedule_policy": configuration.get("policy", "fcfs"),
        **{name: configuration[name] for name in OF_PRIORITIES if name in configuration},
    }
    return {
        "engine": "sglang",
        "batch_time": batch_time_of(configuration),
        "token_budget": chunk if chunk > 0 else None,
        "max_batch_size": configuration["max_running"],
        "kv_blocks": configuration["kv_tokens"] // page,
        "block_size": page,
        "order": "priority" if configuration.get("enable_priority_scheduling") else "fcfs",
        "options": options,
    }


def assert_batches_are(path: Path, starts: list[int], tokens: list[int]) -> None:
    """Every batch starts at the same nanosecond and has as many tokens; of some only their number was written down."""
    assert len(starts) == json.loads(path.read_text())["steps"]
    written = path.with_suffix(".steps.jsonl.gz")
    if written.exists():
        steps = pl.read_ndjson(written)
        assert starts == steps["start_ns"].to_list()
        assert tokens == steps["tokens"].to_list()


def columns(configuration, rows):
    """What the requests of a recording declare, and what their prompts have in common."""
    declared = configuration["declared_max_new_tokens"]
    given = {"priority": rows["priority"].to_list()}
    if "declared_tokens" in rows.columns:
        given["declared"] = rows["declared_tokens"].to_list()
    elif isinstance(declared, int):
        given["declared"] = [max(declared, tokens) for tokens in rows["output_tokens"]]
    if configuration.get("radix"):
        name = "hash_ids_with_output" if "hash_ids_with_output" in rows.columns else "hash_ids"
        ids = rows[name] if name in rows.columns else [""] * len(rows)
        given[name] = [[int(i) for i in (text or "").split()] for text in ids]
        given["hash_block"] = HASH_BLOCK
    return given


@every_recording(pytest.mark.slow)
def test_the_reference_serves_every_request_at_the_same_nanosecond(path: Path) -> None:
    """First tokens, finishes, retractions, and the batches as far as they were written down."""
    configuration = json.loads(path.read_text())
    rows = pl.read_csv(path.with_suffix(".csv"))
    lengths = [rows[column].to_list() for column in ("arrival_ns", "prompt_tokens", "output_tokens")]
    given = columns(configuration, rows)
    if "hash_ids_with_output" in given:
        given |= {"hash_ids": given.pop("hash_ids_with_output"), "names_outputs": True}
    history = simulate_server(*lengths, **given, **settings(configuration))
    assert [request.first_token for request in history.requests] == rows["first_token_ns"].to_list()
    assert [request.finish for request in history.requests] == rows["finish_ns"].to_list()
    assert [request.preemptions for request in history.requests] == rows["preemptions"].to_list()
    batches = history.batches
    assert_batches_are(path, [batch.start for batch in batches], [batch.token_load for batch in batches])


def kernel_run(configuration, rows, compress):
    """The run of the kernel with the settings that mean what a recording says, alone and as a pool of one."""
    same = settings(configuration)
    options, given = same["options"], columns(configuration, rows)
    prompt, output = rows["prompt_tokens"].to_numpy(), rows["output_tokens"].to_numpy()
    whole = max(int((prompt + output).max()), options["max_prefill_tokens"])
    costs = configuration.get("batch_time")
    batch_time = ps.hardware("codellama-34b-a100-tp1").batch_time
    if costs is not None:
        batch_time = ps.Affine(costs["c"] / 1e9, costs["a"] / 1e9)
    server = ps.Server(
        batch_time,
        same["token_budget"] or whole,
        same["max_batch_size"],
        policy="sglang",
        policy_params=options,
        order=same["order"],
        memory=ps.Memory(same["kv_blocks"], same["block_size"], prefix_caching="hash_block" in given),
    )
    seconds = rows["arrival_ns"].to_numpy() / 1e9
    workload = ps.Workload.from_arrays(seconds, prompt, output, **given)
    run = ps.simulate(workload, server, record="batches", compress=compress)
    assert_a_pool_does_the_same(workload, server, run, "batches", compress)
    return run


@pytest.mark.parametrize("compress", [True, False])
@every_recording()
def test_the_kernel_serves_every_request_at_the_same_nanosecond(path: Path, compress: bool) -> None:
    """First tokens, finishes, retractions, and the batches as far as they were written down."""
    configuration = json.loads(path.read_text())
    rows = pl.read_csv(path.with_suffix(".csv"))
    run = kernel_run(configuration, rows, compress)
    first = rows["arrival_ns"][0]
    for column in ("first_token_ns", "finish_ns"):
        assert (run.requests[column] + first).to_list() == rows[column].to_list()
    assert run.requests["preemptions"].to_list() == rows["preemptions"].to_list()
    assert_batches_are(path, (run.batches["start_ns"] + first).to_list(), run.batch_rows[:, 2:4].sum(axis=1).tolist())
