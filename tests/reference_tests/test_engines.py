"""The slow witness of KV memory and engine schedulers: recorded schedules, laws of every engine, bad input."""

import csv
import gzip
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InputError
from penstock.system.engines.sglang import QUEUE_ORDERS
from tests.reference import markov_chain
from tests.reference.replicas import ENGINES
from tests.reference.replicas.sglang_queue import CACHE_AGNOSTIC, CACHE_AWARE
from tests.reference.seam_policies import POLICIES
from tests.reference.simulation import simulate_server as simulate

GOLDEN = Path(__file__).parents[2].parent / "shared" / "data" / "golden"
RECORDED = Path(__file__).parent / "agreement" / "schedules"

needs_golden = pytest.mark.skipif(not GOLDEN.exists(), reason="the golden schedules are not beside the repository")


def piecewise(load):
    """The batch time under which the schedules were recorded, in nanoseconds."""
    return 11_280_000 + 35_470_000 * math.ceil(load / 128)


def one_tick(load):
    return 1


def schedule(history):
    return [(batch.allocation, batch.preempted) for batch in history.batches]


def columns(path):
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in rows[0]}


# ---------------------------------------------------------------- what engines really did


OPTIONS_OF_VLLM = {
    "chunked_prefill": "chunked_prefill",
    "async_scheduling": "async_scheduling",
    "long_prefill_token_threshold": "long_prefill_threshold",
    "long_prefill_token_threshold_adaptive": "long_prefill_adaptive",
    "prefill_schedule_interval": "prefill_interval",
    "scheduler_reserve_full_isl": "reserve_prompt",
}


def options_of(configuration):
    """The settings of a recording, with its drafts, of which the first are always accepted."""
    options = {ours: configuration[theirs] for theirs, ours in OPTIONS_OF_VLLM.items() if theirs in configuration}
    if "drafts" in configuration:
        accepted = configuration["accepts"]
        options["drafts"] = configuration["drafts"]
        options["acceptance"] = [1.0] * accepted + [0.0] * (configuration["drafts"] - accepted)
    return options


def replay_vllm(configuration, rows):
    """Run the requests of a recording of vLLM's scheduler; return the history, and what it should be."""
    table = {name: [int(value) for value in values] for name, values in rows.items() if name != "hash_ids"}
    hash_ids = [[int(name) for name in ids.split()] for ids in rows.get("hash_ids", [])]
    history = simulate(
        table["arrival_ns"],
        table["prompt_tokens"],
        table["output_tokens"],
        priority=table["priority"],
        batch_time=piecewise,
        engine="vllm",
        token_budget=configuration["budget"],
        max_batch_size=configuration["max_seqs"],
        kv_blocks=configuration["num_blocks"],
        block_size=configuration.get("block_size", 16),
        order=configuration.get("policy", "fcfs"),
        hash_ids=hash_ids if configuration.get("prefix_caching") else None,
        watermark=configuration.get("watermark"),
        options=options_of(configuration),
    )
    return history, list(zip(table["first_token_ns"], table["finish_ns"], table["preemptions"], strict=True))


def outcomes(history):
    return [(request.first_token, request.finish, request.preemptions) for request in history.requests]


@needs_golden
@pytest.mark.parametrize("name", ["conv_ample", "code_16_seqs", "conv_kv_limited", "conv_priority"])
def test_vllm_forms_every_batch_as_the_real_scheduler_did(name):
    """Start, tokens of each request, and who was preempted, step by step; times and preemptions of each request."""
    folder = GOLDEN / "vllm-0.33.0"
    configuration = json.loads((folder / f"{name}.json").read_text())
    history, theirs = replay_vllm(configuration, columns(folder / f"{name}.requests.csv"))
    assert outcomes(history) == theirs
    with gzip.open(folder / f"{name}.steps.jsonl.gz", "rt") as file:
        steps = [json.loads(line) for line in file]
    assert len(history.batches) == len(steps) == configuration["steps"]
    for batch, step in zip(history.batches, steps, strict=True):
        assert batch.start == step["start_ns"]
        assert batch.allocation == {int(request): tokens for request, tokens in step["scheduled"].items()}
        assert batch.preempted == [int(request) for request in step["preempted"]]


@pytest.mark.parametrize("path", sorted(RECORDED.glob("vllm_*.json")), ids=lambda path: path.stem)
def test_vllm_serves_every_recorded_request_as_the_real_scheduler_did(path):
    configuration = json.loads(path.read_text())
    history, theirs = replay_vllm(configuration, columns(path.with_suffix(".csv")))
    assert outcomes(history) == theirs
    assert len(history.batches) == configuration["steps"]


VIDUR = [
    pytest.param(f"{tag}_{scheduler}", marks=pytest.mark.slow if tag in ("code200", "burst200") else ())
    for tag in ("conv200", "code200", "burst200", "burst200-mem", "burst200-blk800")
    for scheduler in ("sarathi", "vllm", "orca", "faster_transformer")
    if tag != "burst200-blk800" or scheduler in ("sarathi", "vllm")
]


@needs_golden
@pytest.mark.parametrize("name", VIDUR)
def test_vidurs_schedulers_serve_every_request_at_the_same_time_with_the_same_restarts(name):
    tag, scheduler = name.split("_", 1)
    theirs = columns(GOLDEN / "vidur" / f"{name}.csv")
    reserving = scheduler in ("orca", "faster_transformer")  # these are bounded by slots of the longest request
    history = simulate(
        [round(float(second) * 1e9) for second in theirs["arrived_at"]],
        [int(tokens) for tokens in theirs["prefill"]],
        [int(tokens) for tokens in theirs["decode"]],
        batch_time=piecewise,
        engine=f"vidur-{scheduler.replace('_', '')}",
        token_budget={"sarathi": 512, "vllm": 4096}.get(scheduler),
        max_batch_size=13 if reserving and tag.endswith("mem") else 128,
        kv_blocks={"burst200-mem": 3328, "burst200-blk800": 800}.get(tag),
    )
    for ours, seconds in (("first_token", "first_token_at"), ("finish", "completed_at")):
        found = [getattr(request, ours) / 1e9 for request in history.requests]
        assert found == pytest.approx([float(second) for second in theirs[seconds]], rel=0, abs=1e-6)
    assert [request.preemptions for request in history.requests] == [int(n) for n in theirs["num_restarts"]]


# ---------------------------------------------------------------- random systems


@st.composite
def requests(draw, most=10):
    n = draw(st.integers(1, most))
    arrival = sorted(draw(st.lists(st.integers(0, 30), min_size=n, max_size=n)))
    prompt = draw(st.lists(st.integers(1, 20), min_size=n, max_size=n))
    output = draw(st.lists(st.integers(1, 12), min_size=n, max_size=n))
    return arrival, prompt, output


@given(
    requests(),
    st.sampled_from(sorted(POLICIES)),
    st.integers(1, 24),
    st.none() | st.integers(1, 6),
    st.sampled_from(markov_chain.SCOPES),
    st.sampled_from(markov_chain.CONVENTIONS),
    st.none() | st.integers(0, 60),
    st.sampled_from([{}, {"kv_blocks": 10_000}, {"kv_blocks": 10_000, "admission": "completion"}]),
)
def test_seam_policies_with_ample_memory_are_the_papers_markov_chain_event_for_event(
    system, policy, token_budget, max_batch_size, scope, convention, until, memory
):
    """The same batches, their requests in the same order, and every output token at the same tick."""
    limits = {"token_budget": token_budget, "max_batch_size": max_batch_size, "scope": scope, "convention": convention}
    known = {"batch_time": lambda load: 1 + load // 4, "until": until} | limits
    theirs = markov_chain.simulate(*system, policy=policy, **known)
    ours = simulate(*system, engine=policy, **known, **memory)
    assert [(b.start, b.duration, list(b.allocation.items())) for b in ours.batches] == [
        (b.start, b.duration, [(i, sum(deltas)) for i, deltas in b.allocation.items()]) for b in theirs.batches
    ]
    assert [r.token_times for r in ours.requests] == [r.token_times for r in theirs.requests]
    assert [r.finish for r in ours.requests] == [r.finish for r in theirs.requests]
    assert ours.end == theirs.end


ENGINE_OPTIONS = {
    "vllm": {
        "chunked_prefill": st.booleans(),
        "long_prefill_threshold": st.sampled_from([0, 2, 5]),
        "long_prefill_adaptive": st.booleans(),
        "prefill_interval": st.sampled_from([1, 1, 3]),
        "reserve_prompt": st.booleans(),
    },
    "sglang": {
        "mixed_chunk": st.booleans(),
        "chunked_prefill": st.booleans(),
        "max_prefill_tokens": st.integers(1, 30),
        "schedule_conservativeness": st.sampled_from([0.3, 1.0]),
        "decay_steps": st.just(5),
        "clip_new_tokens": st.sampled_from([2, 4096]),
        "retract_steps": st.sampled_from([1, 5, 20]),
        "schedule_policy": st.sampled_from(CACHE_AGNOSTIC),
        "ignore_eos": st.booleans(),
        "priority_scheduling_preemption_threshold": st.sampled_from([0, 10]),
    },
    "tensorrt-llm": {
        "capacity": st.sampled_from(["guaranteed_no_evict", "max_utilization", "static_batch"]),
        "chunked_context": st.booleans(),
    },
    "vidur-orca": {"max_tokens": st.just(32)},
    "vidur-fastertransformer": {"max_tokens": st.just(32)},
}
FAMILY = [*sorted(ENGINES), *sorted(POLICIES)]


@st.composite
def servers(draw, engine, prompt, output):
    """Limits under which memory is tight: a few blocks more than the longest request needs."""
    seam = engine in POLICIES
    block_size = draw(st.integers(1, 4))
    longest = 32 if engine.startswith("vidur-") else max(p + o for p, o in zip(prompt, output, strict=True))
    chosen = {
        "engine": engine,
        "token_budget": draw(st.integers(32, 40) if draw(st.booleans()) else st.integers(1, 24)),
        "max_batch_size": draw(st.none() | st.integers(1, 6)),
        "block_size": block_size,
        "kv_blocks": draw(st.none() | st.integers(0, 6).map(lambda spare: 1 + spare + -(-longest // block_size))),
        "options": draw(st.fixed_dictionaries(ENGINE_OPTIONS.get(engine, {}))),
    }
    if seam or engine in ("vllm", "sglang"):
        chosen["order"] = draw(st.sampled_from(["fcfs", "priority"]))
        chosen["priority"] = draw(st.lists(st.integers(0, 2), min_size=len(prompt), max_size=len(prompt)))
    if engine == "sglang" and not chosen["options"]["ignore_eos"]:
        chosen["declared"] = [tokens + draw(st.sampled_from([0, 0, 3, 40])) for tokens in output]
    if seam or engine == "vllm":
        chosen["watermark"] = draw(st.none() | st.just(0.1))
    if seam:
        chosen["admission"] = draw(st.sampled_from(["input", "completion", "optimistic"]))
        chosen["scope"] = draw(st.sampled_from(["running", "batch"]))
        chosen["convention"] = draw(st.sampled_from(["engine", "paper"]))
    return chosen


@pytest.mark.parametrize("engine", FAMILY)
@given(data=st.data())
@settings(max_examples=20)
def test_every_engine_serves_every_token_of_every_request_within_memory(engine, data):
    """Everything finishes; no output is lost; tokens served are those asked for and those computed again."""
    system = data.draw(requests())
    server = data.draw(servers(engine, *system[1:]))
    try:
        history = simulate(*system, batch_time=lambda load: 1 + load // 4, **server)
    except InputError:  # somebody can never fit: told before anything runs
        return
    yields_with_prefill = server.get("convention", "engine") == "engine"
    lengths = {r.index: system[1][r.index] + system[2][r.index] - yields_with_prefill for r in history.requests}
    computed, in_memory = dict.fromkeys(lengths, 0), dict.fromkeys(lengths, 0)
    served, again, preempted, free_at = 0, 0, 0, 0
    for batch in history.batches:
        assert batch.start == free_at or (batch.start > free_at and batch.start in system[0])
        free_at = batch.end
        for i in batch.preempted:
            in_memory[i] = 0
            again, computed[i] = again + computed[i], 0
        for i, tokens in batch.allocation.items():
            assert system[0][i] <= batch.start
            computed[i] += tokens
            in_memory[i] = computed[i]
        if server["kv_blocks"] is not None:
            held = sum(-(-tokens // server["block_size"]) for tokens in in_memory.values())
            assert held <= server["kv_blocks"] - (engine == "vllm")
        for i in batch.allocation:
            if computed[i] == lengths[i]:
                in_memory[i] = 0  # it finishes
        served += batch.token_load
        preempted += len(batch.preempted)
    assert computed == lengths
    assert served == sum(lengths.values()) + again
    assert preempted == sum(request.preemptions for request in history.requests)
    for request in history.requests:
        assert len(request.token_times) == request.output
        if engine != "vidur-sarathi":  # which takes a prompt that it cut short for outputs
            assert request.output == system[2][request.index]
        assert request.token_times == sorted(set(request.token_times))
        assert (request.first_token, request.finish) == (request.token_times[0], request.token_times[-1])


@given(requests(), st.integers(1, 24), st.none() | st.integers(1, 6), st.integers(1, 4))
def test_prompts_that_share_nothing_are_served_as_without_a_prefix_cache(system, token_budget, slots, block_size):
    known = {"batch_time": one_tick, "engine": "vllm", "token_budget": token_budget, "max_batch_size": slots}
    known |= {"kv_blocks": 500, "block_size": block_size}
    own = [[100 * i + j for j in range(tokens // block_size)] for i, tokens in enumerate(system[1])]
    assert schedule(simulate(*system, **known, hash_ids=own)) == schedule(simulate(*system, **known))


def test_each_order_of_the_queue_has_its_witness():
    """One that goes by a cache among those, and beside priorities exactly the others."""
    by_cache = {name for name, order in QUEUE_ORDERS.items() if not order.takes_priorities}
    assert (by_cache, set(QUEUE_ORDERS) - by_cache) == (set(CACHE_AWARE), set(CACHE_AGNOSTIC))


SGLANG_CACHES = st.sampled_from([*CACHE_AGNOSTIC, *CACHE_AWARE])


@given(requests(), st.integers(4, 24), st.integers(0, 6), st.integers(1, 4), SGLANG_CACHES, st.booleans())
def test_a_tight_radix_cache_loses_no_output_and_no_page(system, token_budget, spare, block_size, policy, mixed_chunk):
    """Prompts begin alike, in blocks of two tokens whatever the pages; their ends part where there are no ids."""
    _, prompt, output = system
    longest = max(p + o for p, o in zip(prompt, output, strict=True))
    history = simulate(
        *system,
        batch_time=one_tick,
        engine="sglang",
        token_budget=token_budget,
        max_batch_size=4,
        kv_blocks=3 + spare + longest // block_size,
        block_size=block_size,
        hash_ids=[range(tokens // 2 - i % 2) for i, tokens in enumerate(prompt)],
        hash_block=2,
        options={"schedule_policy": policy, "mixed_chunk": mixed_chunk, "schedule_conservativeness": 0.1},
    )
    assert [len(request.token_times) for request in history.requests] == output
    server = history.replicas[0]
    assert server.tree.size == server.tree.unused <= server.usable, "who has finished still holds pages"
    if not any(request.preemptions for request in history.requests):
        assert sum(batch.token_load for batch in history.batches) <= sum(prompt) + sum(output) - len(output)


@given(requests(), st.integers(4, 24), st.integers(0, 30), st.booleans())
def test_with_a_radix_cache_prompts_that_share_nothing_are_served_as_without(system, token_budget, spare, mixed_chunk):
    longest = max(p + o for p, o in zip(*system[1:], strict=True))
    limits = {"token_budget": token_budget, "max_batch_size": 4, "kv_blocks": 2 + longest + spare}
    known = {"batch_time": one_tick, "engine": "sglang", "options": {"mixed_chunk": mixed_chunk}} | limits
    without = simulate(*system, **known)
    if any(request.preemptions for request in without.requests):
        return  # a retracted request finds its own tokens again
    own = [[100 * i + j for j in range(tokens)] for i, tokens in enumerate(system[1])]
    assert schedule(simulate(*system, **known, hash_ids=own)) == schedule(without)


@given(requests(), st.integers(1, 24), st.integers(0, 6), st.integers(1, 4), st.sampled_from(["fcfs", "priority"]))
def test_a_tight_prefix_cache_loses_no_output_and_no_block(system, token_budget, spare, block_size, order):
    """All prompts begin alike; that every block is used as often as it is held is asserted in each step."""
    arrival, prompt, output = system
    longest = max(p + o for p, o in zip(prompt, output, strict=True))
    history = simulate(
        *system,
        batch_time=one_tick,
        engine="vllm",
        token_budget=token_budget,
        kv_blocks=2 + spare + longest // block_size,
        block_size=block_size,
        order=order,
        priority=[i % 2 for i in range(len(arrival))],
        hash_ids=[range(tokens // block_size) for tokens in prompt],
    )
    assert [len(request.token_times) for request in history.requests] == output
    again = sum(request.preemptions for request in history.requests)
    if not again:
        assert sum(batch.token_load for batch in history.batches) <= sum(prompt) + sum(output) - len(output)


# ---------------------------------------------------------------- what cannot be used


TWO = {"arrival": [0, 0], "prompt": [4, 4], "output": [3, 3], "batch_time": one_tick, "block_size": 2}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"engine": "sglan"}, "no engine 'sglan'; did you mean 'sglang'"),
        ({"engine": "vllm", "options": {"chunked": True}}, "there is no vllm option 'chunked'"),
        ({"engine": "vllm", "options": {"chunked_prefill": 1}}, "option chunked_prefill is 1"),
        ({"engine": "tensorrt-llm", "options": {"capacity": "static"}}, "there is no capacity 'static'"),
        ({"engine": "tensorrt-llm", "order": "priority"}, "there is no tensorrt-llm order 'priority'"),
        ({"engine": "vllm", "admission": "input"}, "there is no vllm admission 'input'"),
        ({"engine": "tensorrt-llm", "watermark": 0.1}, "watermark 0.1 has no effect"),
        ({"admission": "inputs"}, "there is no sarathi admission 'inputs'; did you mean 'input'"),
        ({"engine": "tensorrt-llm", "hash_ids": [[], []]}, "'tensorrt-llm' caches no prefixes here"),
        ({"engine": "sglang", "hash_ids": [[], []]}, "kv_blocks is not, so nothing says what the cache holds"),
        ({"engine": "sglang", "options": {"schedule_policy": "random"}}, "there is no sglang schedule_policy 'random'"),
        (
            {"engine": "sglang", "options": {"schedule_policy": "shortest-prefill-first"}},
            "which SGLang itself refuses without its cache",
        ),
        (
            {"engine": "sglang", "options": {"schedule_policy": "lpm"}, "order": "priority"},
            "SGLang has priorities with 'fcfs' and 'lof' only",
        ),
        ({"engine": "sglang", "declared": [3, 2]}, "declares 2 output tokens, which it does not make"),
        ({"engine": "sglang", "declared": [3, 4], "options": {"ignore_eos": True}}, "declares 4 output tokens"),
        ({"engine": "sglang", "kv_blocks": 4}, "would be cut to 1 output tokens for want of memory"),
        ({"engine": "vllm", "hash_ids": [[], []]}, "kv_blocks is not, so nothing says what the cache holds"),
        ({"token_budget": 0}, "token_budget = 0"),
        ({"priority": [0]}, "1 priority and 2 arrival do not pair"),
        ({"arrival": [1, 0]}, "arrival\\[1\\] = 0 is before"),
        ({"kv_blocks": 2}, "request 0 of 4 prompt and 3 output tokens needs 3 KV blocks, but 2 can be used"),
        ({"kv_blocks": 3, "watermark": 0.4}, "needs 3 KV blocks beside 1 kept free, but 3 can be used"),
        ({"engine": "vllm", "kv_blocks": 3}, "needs 3 KV blocks, but 2 can be used"),
        ({"engine": "vidur-vllm", "token_budget": 3}, "a prefill of 4 tokens at once, but the token budget is 3"),
        ({"engine": "vidur-vllm", "token_budget": 5, "kv_blocks": 9}, "a prefill of 6 tokens at once"),
        ({"engine": "tensorrt-llm", "token_budget": 3}, "may need a prefill of 4 tokens at once"),
        (
            {"engine": "tensorrt-llm", "token_budget": 1, "kv_blocks": 9, "options": {"chunked_context": True}},
            "would get chunks of whole blocks of 2 tokens, but the token budget is 1",
        ),
        ({"engine": "vidur-orca", "options": {"max_tokens": 6}}, "has 7 tokens, but max_tokens is 6"),
        ({"engine": "sglang", "token_budget": 1}, "a chunk of 1 tokens is less than a page of 2"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(given, said):
    with pytest.raises(InputError, match=said) as caught:
        simulate(**TWO | {"token_budget": 8} | given)
    assert "\n" not in str(caught.value)
