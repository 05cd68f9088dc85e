"""Systems on which kernel and reference once differed, each with the rule that it is about; slow runs found them."""

import dataclasses

import pytest
from engine_systems import Composed
from network_systems import EngineSpec, Request, System
from test_every_member import least_of, witness_of
from test_network import assert_agree

from penstock.kernel.signatures import SEEN_WAITING
from penstock.system.routing import ROUTERS, Router
from tests.reference import network as reference
from tests.reference import routers as reference_routers
from tests.reference.running import Outage


def server(policy, ticks, *, budget, max_batch_size, blocks, block_size, watermark=0.0, **more):
    """Return a server with KV memory, whose batches take ``ticks`` by their tokens."""
    return Composed(
        policy, (0,), (1,), (1,), (0,), tuple(ticks), budget, max_batch_size, blocks, block_size, watermark, **more
    )


def network(pools, jobs, **more):
    """Return a network of a stage for each pool, with jobs of requests ``(arrival, request, ...)``."""
    stages = len(pools)
    return System(
        pools=tuple(pools),
        stage_pool=tuple(range(stages)),
        prefill=(1.0,) * stages,
        decode=(1.0,) * stages,
        onward=((0.0,) * stages,) * stages,
        retention=None,
        jobs=tuple((arrival, requests) for arrival, *requests in jobs),
        until=None,
        **more,
    )


# ---------------------------------------------------------------- SGLang, a step ahead, by priority

SGLANG = server(
    "sglang",
    (1, 3, 3, 2, 1, 3, 1, 3, 3, 1, 2, 1, 2, 3, 3, 2, 3, 1, 3, 3, 1, 3, 1, 3, 2, 2, 2, 2, 1),
    budget=29, max_batch_size=3, blocks=26, block_size=1, watermark=None, order="priority",
    hash_ids=((),),
    settings=(
        ("overlap_schedule", True), ("mixed_chunk", True), ("chunked_prefill", True), ("max_prefill_tokens", 1000),
        ("schedule_conservativeness", 1.0), ("decay_steps", 1), ("retract_steps", 20), ("clip_new_tokens", 3),
        ("schedule_policy", "fcfs"), ("ignore_eos", False), ("priority_preemption", True),
        ("priority_scheduling_preemption_threshold", 0), ("schedule_low_priority_values_first", False),
        ("retraction_policy", "priority"), ("new_token_ratio", 1.0), ("min_new_token_ratio", 1.0),
    ),
    self_attention=399088, cross_attention=555966, decode_attention=1037060, mixed_attention=922478,
    with_prefill=734141, odd=368697,
)  # fmt: skip
SLOW = (3, 5, 6, 3, 3, 4, 3, 9, 2, 9, 1, 9, 4, 5, 9, 2, 8, 4, 4, 3, 8, 9, 5, 1, 1, 3, 6, 9, 9)
SLOWER = (2, 1, 2, 7, 6, 8, 1, 1, 2, 9, 7, 1, 9, 3, 4, 5, 5, 1, 7, 5, 1, 2, 1, 2, 3, 6, 8, 1, 5)
FIVE = EngineSpec(
    SGLANG,
    replicas=3,
    router="round-robin",
    others=tuple(EngineSpec(dataclasses.replace(SGLANG, ticks=ticks)) for ticks in (SLOW, SLOWER)),
)
"""Five replicas of three kinds."""
SHARED = (1000, 1001, 1002, 1003, 1004)


def test_a_request_that_is_sent_again_is_new_to_the_replica_that_gets_it():
    """Preemption for it counts its prompt only once it has been looked at there."""
    jobs = [
        (0, Request(0, 5, 3, priority=1, hash_ids=SHARED)),
        (0, Request(0, 1, 1, delay=15)),
        (0, Request(0, 3, 1, delay=16)),
        (1, Request(0, 4, 3)),
        (4, Request(0, 5, 1, priority=1)),
        (6, Request(0, 2, 3), Request(0, 2, 1, (0,), priority=2)),
        (9, Request(0, 3, 1, delay=1)),
        (11, Request(0, 5, 4, hash_ids=SHARED)),
        (14, Request(0, 1, 1)),
        (19, Request(0, 1, 1)),
    ]
    outages = (Outage(0, 26, 30, False), Outage(1, 19, 28, False), Outage(2, 10, 64, False))
    assert_agree(network([FIVE], jobs, hash_block=1, outages=outages))


def test_who_gives_up_its_place_joins_no_cache_when_the_batch_ends():
    """Else another replica's request that has got its slot meanwhile would: this network once never ended."""
    jobs = [
        (0, Request(0, 5, 3, hash_ids=SHARED)),
        (0, Request(0, 3, 1, delay=15)),
        (0, Request(0, 5, 1, delay=16, priority=2)),
        (1, Request(0, 5, 2)),
        (4, Request(0, 3, 1, hash_ids=(*SHARED, 1005))),
        (6, Request(0, 5, 1)),
        (9, Request(0, 1, 1, delay=1)),
        (11, Request(0, 1, 1)),
        (14, Request(0, 5, 3, delay=3, priority=2)),
    ]
    outages = (Outage(1, 19, 28, False), Outage(2, 10, 64, False))
    assert_agree(network([FIVE], jobs, hash_block=1, outages=outages))


# ---------------------------------------------------------------- KV memory from elsewhere


def test_the_first_output_of_one_that_came_with_its_memory_is_known_when_its_block_is_named():
    """So its block is found again when it is preempted a step ahead, right after the decode that filled it."""
    slow = (26, 33, 35, 30, 45, 42, 45, 6, 22, 24, 25, 18, 25, 28, 29, 32, 42, 3, 47, 13, 33, 33, 24, 49, 45, 17, 32)
    quick = (3, 4, 7, 4, 4, 7, 2, 3, 4, 7, 2, 1, 9, 4, 3, 9, 4, 1, 5, 2, 3, 7, 6, 2, 3, 9, 8, 9)
    prompts = server(
        "vllm", (*slow, 9), budget=28, max_batch_size=4, blocks=50, block_size=1,
        settings=(
            ("chunked_prefill", True), ("long_prefill_threshold", 4), ("async_scheduling", False),
            ("long_prefill_adaptive", True), ("prefill_interval", 1), ("reserve_prompt", True), ("max_model_len", 16),
            ("drafts", 4), ("acceptance", [0.0, 1.0, 1.0, 1.0]), ("method", "mtp"), ("mtp_modules", 2),
        ),
    )  # fmt: skip
    decodes = server(
        "vllm", (2, 7, 8, 5), budget=4, max_batch_size=4, blocks=6, block_size=16, hash_ids=((),), declared=(1,),
        names_outputs=True, cross_attention=341817, decode_attention=245496, odd=424547,
        settings=(
            ("chunked_prefill", True), ("long_prefill_threshold", 0), ("async_scheduling", True),
            ("long_prefill_adaptive", False), ("prefill_interval", 1), ("reserve_prompt", False), ("max_model_len", 54),
        ),
    )  # fmt: skip
    others = (EngineSpec(dataclasses.replace(prompts, ticks=quick), replicas=2),)
    pools = [
        EngineSpec(prompts, replicas=2, router="round-robin", others=others),
        EngineSpec(decodes, replicas=2, router="round-robin"),
    ]
    jobs = [
        (6, Request(1, 5, 26), Request(1, 1, 1, (0,))),
        (
            6, Request(0, 5, 1), Request(1, 0, 10, (0,), sender=-1), Request(0, 3, 1, (1,)), Request(1, 1, 18, (2,)),
            Request(1, 19, 5, (3,)), Request(1, 1, 14, (3,)), Request(0, 15, 1, (5,)),
            Request(1, 0, 2, (6,), sender=-1),
        ),
        (
            46, Request(0, 5, 1), Request(0, 1, 1, (0,)), Request(1, 1, 1, (1,)), Request(0, 5, 1, (2,)),
            Request(1, 0, 12, (3,), sender=-1),
        ),
    ]  # fmt: skip
    assert_agree(network(pools, jobs, hash_block=16))


def test_memory_that_a_step_frees_without_serving_anybody_may_be_sent_to_at_once():
    """Not only when something else happens; else requests may be said to wait for ever."""
    prompts = server("sarathi", [1] * 13, budget=13, max_batch_size=6, blocks=32, block_size=4)
    decodes = server("sarathi", [1] * 6, budget=6, max_batch_size=5, blocks=2, block_size=16, order="priority")
    jobs = [
        (6, Request(0, 1, 1), Request(0, 1, 1, (0,), delay=22), Request(1, 0, 1, (1,), sender=-1, link=15)),
        (24, Request(1, 1, 17)),
        (34, Request(0, 1, 1), Request(0, 1, 1, (0,)), Request(1, 0, 1, (1,), sender=-1)),
    ]
    assert_agree(network([EngineSpec(prompts), EngineSpec(decodes)], jobs))


# ---------------------------------------------------------------- what a router is told


def test_who_gave_up_its_memory_with_its_last_token_in_flight_waits_to_a_router(monkeypatch: pytest.MonkeyPatch):
    """Until that token is out, as in vLLM's metrics."""
    monkeypatch.setitem(ROUTERS, "by-waiting", Router.of(least_of(SEEN_WAITING), "by-waiting"))
    monkeypatch.setitem(reference_routers.ROUTERS, "by-waiting", witness_of("waiting"))
    monkeypatch.setattr(reference, "ROUTERS", (*reference.ROUTERS, "by-waiting"))
    ticks = (7, 34, 2, 7, 6, 35, 4, 48, 18, 8, 1, 49, 23, 5, 9, 2, 42, 14, 3, 42, 12, 48, 44, 48, 15, 10)
    vllm = server(
        "vllm", (*ticks, *[40] * 25), budget=51, max_batch_size=4, blocks=19, block_size=4, hash_ids=((),),
        declared=(1,),
        settings=(
            ("chunked_prefill", False), ("long_prefill_threshold", 0), ("async_scheduling", True),
            ("long_prefill_adaptive", False), ("prefill_interval", 1), ("reserve_prompt", True), ("max_model_len", 43),
            ("drafts", 4), ("acceptance", [0.0, 0.0, 0.0, 1.0]), ("method", "mtp"), ("mtp_modules", 2),
        ),
    )  # fmt: skip
    jobs = [
        (32, Request(0, 2, 9, delay=4)),
        (42, Request(0, 2, 7)),
        (65, Request(0, 3, 3, delay=35)),
        (111, Request(0, 5, 0), Request(0, 1, 1, (0,))),
    ]
    assert_agree(network([EngineSpec(vllm, replicas=2, router="by-waiting", report=20)], jobs))
