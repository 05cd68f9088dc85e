"""The slow witness of KV memory and engine schedulers, worked by hand: every batch, and who was preempted for it."""

import pytest

from penstock.errors import InputError
from tests.reference.simulation import simulate_server as simulate


def one_tick(load):
    return 1


def schedule(history):
    return [(batch.allocation, batch.preempted) for batch in history.batches]


def batches(history):
    return [batch.allocation for batch in history.batches]


# ---------------------------------------------------------------- seam policies with memory

TWO = {"arrival": [0, 0], "prompt": [4, 4], "output": [3, 3], "batch_time": one_tick, "block_size": 2}
ONE_BLOCK_SHORT = [  # 5 blocks of 2 tokens: both prompts fit, but only one of them may grow
    ({0: 4, 1: 4}, []),
    ({0: 1}, [1]),
    ({0: 1}, []),
    ({1: 5}, []),  # its prompt and the output that was out, which yields the next one
    ({1: 1}, []),
]
ONE_AFTER_THE_OTHER = [({0: 4}, []), ({0: 1}, []), ({0: 1}, []), ({1: 4}, []), ({1: 1}, []), ({1: 1}, [])]


def test_without_a_block_for_every_decode_the_last_to_run_is_preempted_and_computed_again():
    history = simulate(**TWO, engine="sarathi", token_budget=8, kv_blocks=5)
    assert schedule(history) == ONE_BLOCK_SHORT
    assert [request.token_times for request in history.requests] == [[1, 2, 3], [1, 4, 5]]
    assert [request.preemptions for request in history.requests] == [0, 1]


def test_under_the_paper_convention_a_prefill_repeated_yields_no_token():
    """Each request ends with 6 tokens in memory; request 1 does its prompt twice, and has room beside request 0."""
    history = simulate(**TWO | {"output": [2, 2]}, engine="sarathi", token_budget=8, kv_blocks=5, convention="paper")
    assert schedule(history) == [
        ({0: 4, 1: 4}, []),
        ({0: 1}, [1]),
        ({0: 1, 1: 4}, []),
        ({1: 1}, []),
        ({1: 1}, []),
    ]
    assert [request.token_times for request in history.requests] == [[2, 3], [4, 5]]


def test_memory_reserved_to_completion_preempts_nobody():
    history = simulate(**TWO, engine="sarathi", token_budget=8, kv_blocks=5, admission="completion")
    assert schedule(history) == ONE_AFTER_THE_OTHER


@pytest.mark.parametrize(
    ("admission", "expected"),
    [
        ("input", [({0: 4}, []), ({0: 1}, []), ({0: 1}, []), ({1: 8}, [])]),
        ("completion", [({0: 4}, []), ({0: 1}, []), ({0: 1}, []), ({1: 8}, [])]),
        ("optimistic", [({0: 4, 1: 6}, []), ({0: 1}, [1]), ({0: 1, 1: 4}, []), ({1: 4}, [])]),
    ],
)
def test_optimistic_admission_begins_prompts_that_memory_cannot_hold_yet(admission, expected):
    """5 blocks of 2 tokens, prompts of 4 and 8: the second is cut to the 3 blocks that the first leaves."""
    two = TWO | {"prompt": [4, 8], "output": [3, 1]}
    assert schedule(simulate(**two, engine="sarathi", token_budget=12, kv_blocks=5, admission=admission)) == expected


LESS_URGENT_FIRST = {  # request 0 runs when the more urgent request 1 arrives
    "arrival": [0, 1],
    "prompt": [4, 4],
    "output": [4, 3],
    "priority": [1, 0],
    "order": "priority",
    "batch_time": one_tick,
    "block_size": 2,
}


def test_by_priority_the_least_urgent_is_preempted_wherever_it_stands_in_the_running_list():
    expected = [({0: 4}, []), ({0: 1, 1: 4}, []), ({1: 1}, [0]), ({1: 1}, []), ({0: 6}, []), ({0: 1}, [])]
    assert schedule(simulate(**LESS_URGENT_FIRST, engine="sarathi", token_budget=8, kv_blocks=5)) == expected
    assert schedule(simulate(**LESS_URGENT_FIRST, engine="vllm", token_budget=8, kv_blocks=6)) == expected


@pytest.mark.parametrize(("watermark", "expected"), [(0.25, [{0: 4, 1: 2}]), (0.5, [{0: 4}, {1: 2}])])
def test_admission_leaves_the_watermark_free(watermark, expected):
    two = TWO | {"prompt": [4, 2], "output": [1, 1]}
    assert batches(simulate(**two, engine="sarathi", token_budget=8, kv_blocks=4, watermark=watermark)) == expected


def test_the_blocks_that_decodes_need_are_not_given_to_a_prompt():
    """Of three blocks one is free, and request 0 needs it for its next token."""
    two = TWO | {"arrival": [0, 1], "prompt": [4, 2], "output": [3, 1]}
    assert batches(simulate(**two, engine="sarathi", token_budget=8, kv_blocks=3)) == [{0: 4}, {0: 1}, {0: 1}, {1: 2}]


def test_a_victim_gives_back_the_block_that_it_was_to_have():
    """Request 0 had the free block, but the more urgent request 1 needs one too, and then goes on alone."""
    two = {"arrival": [0, 1], "prompt": [1, 1], "output": [3, 3], "priority": [1, 0], "batch_time": one_tick}
    rules = {"order": "priority", "kv_blocks": 4, "block_size": 1}
    history = simulate(**two, **rules, engine="sarathi", token_budget=8)
    assert schedule(history) == [({0: 1}, []), ({0: 1, 1: 1}, []), ({1: 1}, [0]), ({1: 1}, []), ({0: 3}, [])]


def test_in_scope_batch_prompts_take_slots_from_decodes():
    two = {"arrival": [0, 1], "prompt": [1, 3], "output": [3, 1], "batch_time": one_tick}
    history = simulate(**two, engine="orca", token_budget=12, max_batch_size=1, scope="batch", kv_blocks=9)
    assert batches(history) == [{0: 1}, {1: 3}, {0: 1}, {0: 1}]


def test_a_policy_of_ones_own_sees_what_may_be_served():
    seen = []

    def watched(queue, limits, params):
        seen.append((queue.prompts, queue.prompt_tokens, queue.decoding, queue.waiting, queue.head_tokens, *params))
        return queue.prompt_tokens, queue.decoding, 0

    simulate(**TWO, engine=watched, token_budget=8, kv_blocks=5, options={"params": (0.5,)})
    assert seen == [
        (2, 8, 0, 2, 4, 0.5),
        (0, 0, 1, 1, 5, 0.5),
        (0, 0, 1, 1, 5, 0.5),
        (1, 5, 0, 1, 5, 0.5),
        (0, 0, 1, 0, 0, 0.5),
    ]


def test_a_policy_that_leaves_the_server_idle_beside_a_request_is_caught():
    with pytest.raises(InputError, match="at tick 0 replica 0 serves none of 2 requests"):
        simulate(**TWO, engine=lambda queue, limits, params: (0, 0, 0), token_budget=8)


# ---------------------------------------------------------------- vLLM


def test_vllm_preempts_from_the_tail_and_admits_nobody_in_that_step():
    """One block of six is the engine's own."""
    assert schedule(simulate(**TWO, engine="vllm", token_budget=8, kv_blocks=6)) == ONE_BLOCK_SHORT


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [{0: 4, 1: 4}, {0: 1, 1: 2}, {0: 1}]),
        ({"chunked_prefill": False}, [{0: 4}, {0: 1, 1: 6}, {0: 1}]),
        ({"long_prefill_threshold": 3}, [{0: 3, 1: 3}, {0: 1, 1: 3}, {0: 1}, {0: 1}]),
    ],
)
def test_vllm_cuts_prompts_to_the_budget_or_not_at_all_or_to_the_threshold(options, expected):
    two = TWO | {"prompt": [4, 6], "output": [3, 1]}
    assert batches(simulate(**two, engine="vllm", token_budget=8, options=options)) == expected


def test_vllm_ignores_the_threshold_while_a_request_is_alone():
    one = {"arrival": [0], "prompt": [6], "output": [1], "batch_time": one_tick}
    assert batches(simulate(**one, engine="vllm", token_budget=8, options={"long_prefill_threshold": 3})) == [{0: 6}]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("priority", [({1: 1}, [0]), ({1: 1}, []), ({0: 7}, []), ({0: 1}, [])]),
        ("fcfs", [({0: 1}, [1]), ({0: 1}, []), ({1: 5}, []), ({1: 1}, [])]),
    ],
)
def test_vllm_goes_on_with_the_others_when_a_request_preempts_itself_by_priority(order, expected):
    two = LESS_URGENT_FIRST | {"prompt": [5, 4], "order": order}
    history = simulate(**two, engine="vllm", token_budget=8, kv_blocks=6)
    assert schedule(history) == [({0: 5}, []), ({0: 1, 1: 4}, []), *expected]


def test_vllm_leaves_the_watermark_free_only_while_somebody_runs():
    """Ten blocks of one token, three of them to be left free: request 0 needs eight, and comes alone."""
    two = {"arrival": [0, 0], "prompt": [8, 1], "output": [2, 1], "batch_time": one_tick, "block_size": 1}
    history = simulate(**two, engine="vllm", token_budget=12, kv_blocks=11, watermark=0.3)
    assert batches(history) == [{0: 8}, {0: 1}, {1: 1}]


def test_vidurs_vllm_admits_a_prompt_if_the_watermark_stays_free():
    two = {"arrival": [0, 0], "prompt": [2, 6], "output": [3, 1], "batch_time": one_tick, "block_size": 1}
    known = {"engine": "vidur-vllm", "token_budget": 12, "kv_blocks": 10}
    assert batches(simulate(**two, **known, watermark=0.3)) == [{0: 2}, {0: 1}, {0: 1}, {1: 6}]
    assert batches(simulate(**two, **known, watermark=0.2)) == [{0: 2, 1: 6}, {0: 1}, {0: 1}]


def test_vidurs_vllm_never_mixes_prefill_and_decode():
    two = {"arrival": [0, 1], "prompt": [4, 4], "output": [3, 1], "batch_time": one_tick}
    assert batches(simulate(**two, engine="vidur-vllm", token_budget=8)) == [{0: 4}, {1: 4}, {0: 1}, {0: 1}]


def test_vidurs_vllm_asks_for_a_free_block_even_where_none_is_needed():
    """The request holds both blocks, the second half empty: it is preempted, and comes back at the same tick."""
    one = {"arrival": [0], "prompt": [6], "output": [2], "batch_time": one_tick, "block_size": 4}
    history = simulate(**one, engine="vidur-vllm", token_budget=8, kv_blocks=2)
    assert schedule(history) == [({0: 6}, []), ({0: 7}, [0])]
    assert history.requests[0].token_times == [1, 2]


# ---------------------------------------------------------------- vLLM with prefix caching

A, B = list(range(10)), list(range(100, 115))  # prompts of 10 and 15 blocks that have nothing in common


@pytest.mark.parametrize(
    ("arrival", "prompt", "hash_ids", "expected"),
    [
        ([0, 5], [160, 160], [A, A], [{0: 160}, {1: 16}]),  # all of it is there, but its last token is computed
        ([0, 0], [165, 165], [A, A], [{0: 165, 1: 5}]),  # in the same step
        ([0, 5], [160, 160], [A, B[:10]], [{0: 160}, {1: 160}]),
        ([0, 5, 10], [160, 240, 160], [A, B, A], [{0: 160}, {1: 240}, {2: 80}]),  # B takes the blocks of A's tail
    ],
)
def test_vllm_computes_only_what_no_block_holds(arrival, prompt, hash_ids, expected):
    """20 blocks of 16 tokens beside the engine's own."""
    system = {"arrival": arrival, "prompt": prompt, "output": [1] * len(prompt), "batch_time": one_tick}
    assert batches(simulate(**system, engine="vllm", token_budget=512, kv_blocks=21, hash_ids=hash_ids)) == expected


def test_vllm_takes_blocks_that_hold_no_full_prefix_before_others():
    """Of three blocks request 2 takes the one that request 1 left half full, so that of request 0 is still there."""
    four = {"arrival": [0, 5, 10, 15], "prompt": [16, 20, 16, 17], "output": [1] * 4, "batch_time": one_tick}
    history = simulate(**four, engine="vllm", token_budget=512, kv_blocks=4, hash_ids=[[0], [1], [2], [0]])
    assert batches(history) == [{0: 16}, {1: 20}, {2: 16}, {3: 1}]


# ---------------------------------------------------------------- SGLang


@pytest.mark.parametrize(
    ("mixed_chunk", "expected"),
    [
        (False, [{0: 6, 1: 2}, {1: 4, 2: 2}, {0: 1}, {0: 1}]),
        (True, [{0: 6, 1: 2}, {1: 4, 2: 2, 0: 1}, {0: 1}]),
    ],
)
def test_sglang_has_one_request_in_mid_prefill_and_decodes_wait_or_ride_along(mixed_chunk, expected):
    three = {"arrival": [0] * 3, "prompt": [6, 6, 2], "output": [3, 1, 1], "batch_time": one_tick}
    assert batches(simulate(**three, engine="sglang", token_budget=8, options={"mixed_chunk": mixed_chunk})) == expected


TEN_OUTPUTS = {"arrival": [0, 0], "prompt": [4, 4], "output": [10, 10], "batch_time": one_tick, "engine": "sglang"}


def test_sglang_admits_only_with_room_for_the_outputs_to_come():
    """20 tokens: 4 + 10 of the first leave 6, less than 4 + 10; then the server is full until the first has left."""
    history = simulate(**TEN_OUTPUTS, token_budget=8, kv_blocks=20)
    assert schedule(history) == [({0: 4}, []), *[({0: 1}, [])] * 9, ({1: 4}, []), *[({1: 1}, [])] * 9]


def test_sglang_retracts_when_the_outputs_to_come_were_clipped_too_short():
    """2 + 2 outputs are foreseen; after 6 decode batches all 20 tokens are taken, and the last to run goes."""
    history = simulate(**TEN_OUTPUTS, token_budget=16, kv_blocks=20, options={"clip_new_tokens": 2})
    assert schedule(history) == [
        ({0: 4, 1: 4}, []),
        *[({0: 1, 1: 1}, [])] * 6,
        ({0: 1}, [1]),
        *[({0: 1}, [])] * 2,
        ({1: 11}, []),
        *[({1: 1}, [])] * 2,
    ]


def test_sglang_retracts_the_longest_prompt_of_those_with_the_fewest_outputs():
    two = TEN_OUTPUTS | {"prompt": [6, 4]}
    history = simulate(**two, token_budget=10, kv_blocks=22, options={"clip_new_tokens": 2})
    assert [batch.preempted for batch in history.batches if batch.preempted] == [[0]]
    assert schedule(history)[:8] == [({0: 6, 1: 4}, []), *[({0: 1, 1: 1}, [])] * 6, ({1: 1}, [0])]


def test_sglang_puts_the_retracted_behind_those_that_wait():
    """Request 2 waits for a place; request 1 loses its own and comes after it."""
    three = TEN_OUTPUTS | {"arrival": [0, 0, 1], "prompt": [4, 4, 1], "output": [10, 10, 1]}
    limits = {"token_budget": 8, "kv_blocks": 20, "max_batch_size": 2, "options": {"clip_new_tokens": 2}}
    history = simulate(**three, **limits)
    assert schedule(history)[7:9] == [({0: 1}, [1]), ({2: 1}, [])]
    assert history.requests[2].finish < history.requests[1].finish


@pytest.mark.parametrize("retract_steps", [1, 20])
def test_sglang_retracts_until_the_others_can_decode_once(retract_steps):
    """Three requests grow from 12 to all 24 tokens in four steps; to retract one of them frees eight."""
    three = {"arrival": [0] * 3, "prompt": [4] * 3, "output": [10] * 3, "batch_time": one_tick, "engine": "sglang"}
    options = {"clip_new_tokens": 1, "retract_steps": retract_steps}
    history = simulate(**three, token_budget=16, kv_blocks=24, options=options)
    assert schedule(history)[5] == ({0: 1, 1: 1}, [2])


def test_sglang_foresees_more_outputs_after_a_retraction():
    """With a ratio of 1 request 0 leaves 7 tokens, which 6 + 1 of request 2 may not use up; with .69 it left 7.6."""
    three = TEN_OUTPUTS | {"arrival": [0, 0, 1], "prompt": [4, 4, 6], "output": [10, 10, 1]}
    limits = {"token_budget": 16, "kv_blocks": 20, "max_batch_size": 2, "options": {"clip_new_tokens": 2}}
    assert schedule(simulate(**three, **limits))[7:] == [
        ({0: 1}, [1]),
        *[({0: 1}, [])] * 2,
        ({2: 6}, []),
        ({1: 11}, []),
        *[({1: 1}, [])] * 2,
    ]


SOON_LOW = {
    "batch_time": one_tick,
    "engine": "sglang",
    "token_budget": 8,
    "kv_blocks": 11,
    "options": {"decay_steps": 2},
}


def test_sglang_foresees_fewer_outputs_with_every_decode_batch():
    """After two of them .098 of the 4 outputs left are foreseen, and the 6 tokens of request 1 fit into 7.6."""
    history = simulate([0, 3], [1, 4], [7, 2], **SOON_LOW)
    assert batches(history) == [{0: 1}, {0: 1}, {0: 1}, {1: 4}, {0: 1, 1: 1}, {0: 1}, {0: 1}, {0: 1}]


def test_sglang_foresees_as_at_the_start_once_the_server_was_empty():
    """At tick 11 .7 of the 6 outputs left are foreseen again, and 6 tokens do not fit into 5.8."""
    history = simulate([0, 10, 11], [1, 1, 4], [3, 7, 2], **SOON_LOW)
    assert batches(history) == [*[{0: 1}] * 3, *[{1: 1}] * 7, {2: 4}, {2: 1}]


def test_sglang_retracts_the_prompt_in_mid_prefill_if_the_last_decode_lacks_memory():
    """Decodes ride along, a token of each in a batch; when 14 tokens are taken neither can go on."""
    two = {"arrival": [0, 0], "prompt": [1, 8], "output": [10, 1], "batch_time": one_tick, "engine": "sglang"}
    options = {"mixed_chunk": True, "clip_new_tokens": 1}
    assert schedule(simulate(**two, token_budget=2, kv_blocks=14, options=options)) == [
        ({0: 1, 1: 1}, []),
        *[({1: 1, 0: 1}, [])] * 6,
        ({0: 1}, [1]),
        *[({0: 1}, [])] * 2,
        *[({1: 2}, [])] * 4,
    ]


def test_sglang_lets_decodes_sit_out_where_a_prompt_takes_their_memory():
    """After six batches 12 of 13 tokens are taken, and the last of the prompt takes the other."""
    two = {"arrival": [0, 0], "prompt": [1, 7], "output": [10, 1], "batch_time": one_tick, "engine": "sglang"}
    options = {"mixed_chunk": True, "clip_new_tokens": 1}
    assert batches(simulate(**two, token_budget=2, kv_blocks=13, options=options))[5:8] == [
        {1: 1, 0: 1},
        {1: 1},
        {0: 1},
    ]


@pytest.mark.parametrize(("kv_blocks", "expected"), [(6, [{0: 1, 1: 1}, {2: 1}]), (7, [{0: 1, 1: 1, 2: 1}])])
def test_sglang_charges_a_page_more_than_a_prompt_takes(kv_blocks, expected):
    """Of six pages of four tokens two requests leave 24 - 2 (4 + 4 + 1) = 6, and 1 + 1 + 4 must be less."""
    three = {"arrival": [0] * 3, "prompt": [1] * 3, "output": [1] * 3, "batch_time": one_tick, "engine": "sglang"}
    assert batches(simulate(**three, token_budget=12, kv_blocks=kv_blocks, block_size=4)) == expected


@pytest.mark.parametrize(
    ("chunked_prefill", "expected"), [(True, [{0: 4, 1: 2}, {2: 1}]), (False, [{0: 4}, {1: 2, 2: 1}])]
)
def test_sglang_reaches_the_most_prefill_tokens_with_chunks_and_stays_below_them_without(chunked_prefill, expected):
    three = {"arrival": [0] * 3, "prompt": [4, 2, 1], "output": [1] * 3, "batch_time": one_tick, "engine": "sglang"}
    options = {"max_prefill_tokens": 6, "chunked_prefill": chunked_prefill}
    assert batches(simulate(**three, token_budget=12, options=options)) == expected


@pytest.mark.parametrize("chunked_prefill", [True, False])
def test_sglang_lets_the_first_prompt_pass_the_most_prefill_tokens(chunked_prefill):
    three = {"arrival": [0] * 3, "prompt": [8, 2, 1], "output": [1] * 3, "batch_time": one_tick, "engine": "sglang"}
    options = {"max_prefill_tokens": 6, "chunked_prefill": chunked_prefill}
    assert batches(simulate(**three, token_budget=12, options=options)) == [{0: 8}, {1: 2, 2: 1}]


def test_sglang_makes_room_for_the_outputs_that_a_request_declares():
    """20 tokens: both fit with the 2 outputs that they make, but not with the 8 that they declare."""
    two = {"arrival": [0, 0], "prompt": [4, 4], "output": [2, 2], "batch_time": one_tick, "engine": "sglang"}
    limits = {"token_budget": 8, "kv_blocks": 20}
    assert batches(simulate(**two, **limits)) == [{0: 4, 1: 4}, {0: 1, 1: 1}]
    assert batches(simulate(**two, **limits, declared=[8, 8])) == [{0: 4}, {0: 1}, {1: 4}, {1: 1}]


@pytest.mark.parametrize(("output", "least"), [([6, 4], 21), ([4, 6], 25)])
def test_sglang_admits_those_whose_ends_are_known_if_memory_lasts_until_each_of_them(output, least):
    """Prompts take 10 tokens, each a page more than it has; both grow by a token up to the end of the first.

    Who comes later goes before the last even if it has the most outputs left, so twice its six must fit.
    """
    two = {"arrival": [0, 0], "prompt": [4, 4], "output": output, "batch_time": one_tick, "engine": "sglang"}
    known = two | {"token_budget": 8, "options": {"ignore_eos": True}}
    assert batches(simulate(**known, kv_blocks=least - 1))[0] == {0: 4}
    assert batches(simulate(**known, kv_blocks=least))[0] == {0: 4, 1: 4}


def test_sglang_serves_the_longest_declared_output_first():
    three = {"arrival": [0] * 3, "prompt": [2] * 3, "output": [1] * 3, "batch_time": one_tick, "engine": "sglang"}
    options = {"schedule_policy": "lof"}
    history = simulate(**three, token_budget=2, declared=[1, 3, 2], options=options)
    assert batches(history) == [{1: 2}, {2: 2}, {0: 2}]


@pytest.mark.parametrize(
    ("threshold", "expected"), [(4, [{0: 2}, {0: 1}, {1: 2}, {0: 4}]), (5, [{0: 2}, {0: 1}, {0: 1}, {1: 2}])]
)
def test_sglang_takes_the_place_of_who_has_a_much_lower_priority(threshold, expected):
    """The first has the only place; the second comes while it decodes, and its priority is 5 better."""
    two = {"arrival": [0, 2], "prompt": [2, 2], "output": [3, 1], "batch_time": one_tick, "engine": "sglang"}
    options = {"priority_scheduling_preemption_threshold": threshold}
    limits = {"token_budget": 8, "max_batch_size": 1, "order": "priority", "priority": [5, 0]}
    assert batches(simulate(**two, **limits, options=options)) == expected


SHARING = {
    "arrival": [0, 1],
    "prompt": [6, 6],
    "output": [1, 1],
    "batch_time": one_tick,
    "engine": "sglang",
    "token_budget": 8,
    "hash_ids": [[1, 2, 3], [1, 2, 4]],
    "hash_block": 2,
}


@pytest.mark.parametrize(("block_size", "computed"), [(1, 2), (2, 2), (3, 3), (4, 2)])
def test_sglang_computes_of_a_prompt_what_no_page_of_the_cache_holds(block_size, computed):
    """Four tokens are there, of which a cache has full pages; what follows is computed."""
    assert batches(simulate(**SHARING, block_size=block_size, kv_blocks=16)) == [{0: 6}, {1: computed}]


def test_sglang_gives_up_the_leaf_that_was_used_the_longest_ago():
    """Prompt 2 needs the room of one of the two that are cached; 1 is asked for after 0 and stays."""
    four = SHARING | {"arrival": [0, 1, 2, 3], "prompt": [4] * 4, "output": [1] * 4}
    four |= {"hash_ids": [[1, 2], [3, 4], [5, 6], [3, 4]]}
    assert batches(simulate(**four, kv_blocks=10)) == [{0: 4}, {1: 4}, {2: 4}, {3: 1}]


def test_sglang_serves_the_longest_prefix_first():
    """Prompt 0 is cached when 1, 2 and 3 come; 3 shares all but its last token, 2 its first block."""
    four = SHARING | {"arrival": [0, 2, 2, 2], "prompt": [4] * 4, "output": [1] * 4, "token_budget": 3}
    four |= {"hash_ids": [[1, 2], [3, 4], [1, 5], [1, 2]]}
    history = simulate(**four, kv_blocks=100, options={"schedule_policy": "lpm"})
    assert batches(history)[2:] == [{3: 1, 2: 2}, {1: 3}, {1: 1}]


# ---------------------------------------------------------------- TensorRT-LLM


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [
        ("guaranteed_no_evict", ONE_AFTER_THE_OTHER),
        ("max_utilization", ONE_BLOCK_SHORT),
        ("static_batch", ONE_AFTER_THE_OTHER),
    ],
)
def test_tensorrt_llm_reserves_to_completion_or_pauses_the_last(capacity, expected):
    history = simulate(**TWO, engine="tensorrt-llm", token_budget=8, kv_blocks=5, options={"capacity": capacity})
    assert schedule(history) == expected


@pytest.mark.parametrize(
    ("capacity", "blocks", "expected"),
    [
        ("guaranteed_no_evict", 7, [{0: 4, 1: 4}, {0: 1, 1: 1}, {1: 1, 2: 2}]),
        ("max_utilization", 6, [{0: 4, 1: 4}, {0: 1, 1: 1}, {1: 1, 2: 2}]),
        ("static_batch", 7, [{0: 4, 1: 4}, {0: 1, 1: 1}, {1: 1}, {2: 2}]),
    ],
)
def test_tensorrt_llm_lets_nobody_join_a_static_batch(capacity, blocks, expected):
    three = TWO | {"arrival": [0, 0, 1], "prompt": [4, 4, 2], "output": [2, 3, 1], "kv_blocks": blocks}
    history = simulate(**three, engine="tensorrt-llm", token_budget=8, options={"capacity": capacity})
    assert batches(history) == expected


@pytest.mark.parametrize(
    ("chunked_context", "expected"), [(False, [{0: 6}, {1: 4, 2: 2}]), (True, [{0: 6, 1: 2}, {1: 2, 2: 2}])]
)
def test_tensorrt_llm_stops_at_a_prompt_that_does_not_fit_or_cuts_it(chunked_context, expected):
    three = {"arrival": [0] * 3, "prompt": [6, 4, 2], "output": [1] * 3, "batch_time": one_tick}
    options = {"chunked_context": chunked_context}
    assert batches(simulate(**three, engine="tensorrt-llm", token_budget=8, options=options)) == expected


def test_tensorrt_llm_serves_no_prompt_of_a_static_batch_beside_decodes():
    two = {"arrival": [0, 0], "prompt": [6, 4], "output": [2, 1], "batch_time": one_tick}
    history = simulate(**two, engine="tensorrt-llm", token_budget=8, options={"capacity": "static_batch"})
    assert batches(history) == [{0: 6}, {0: 1}, {1: 4}]


def test_tensorrt_llm_stops_in_a_static_batch_at_a_prompt_that_does_not_fit():
    three = {"arrival": [0] * 3, "prompt": [6, 4, 1], "output": [1] * 3, "batch_time": one_tick}
    history = simulate(**three, engine="tensorrt-llm", token_budget=8, options={"capacity": "static_batch"})
    assert batches(history) == [{0: 6}, {1: 4, 2: 1}]


IN_BLOCKS = {"batch_time": one_tick, "engine": "tensorrt-llm", "block_size": 4}
CHUNKED = {"chunked_context": True}


def test_tensorrt_llm_cuts_a_prompt_to_whole_blocks_unless_its_end_fits():
    """Of a budget of 7 it takes a block of 4, twice, and then the 5 tokens that are left."""
    one = IN_BLOCKS | {"arrival": [0], "prompt": [13], "output": [1]}
    assert batches(simulate(**one, token_budget=7, kv_blocks=9, options=CHUNKED)) == [{0: 4}, {0: 4}, {0: 5}]
    assert batches(simulate(**one, token_budget=7, options=CHUNKED)) == [{0: 7}, {0: 6}]  # without a limit: no blocks


def test_tensorrt_llm_has_blocks_of_32_tokens_by_default():
    one = {"arrival": [0], "prompt": [70], "output": [1], "batch_time": one_tick, "engine": "tensorrt-llm"}
    assert batches(simulate(**one, token_budget=65, kv_blocks=3, options=CHUNKED)) == [{0: 64}, {0: 6}]


# With a budget of 5, prompt 0 leaves 2 tokens: less than a block of prompt 1, but all of prompt 2.
SKIPPED = IN_BLOCKS | {"arrival": [0] * 3, "prompt": [3, 8, 2], "token_budget": 5}


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        (6, [{0: 3, 2: 2}, {0: 1, 1: 4}, {0: 1, 1: 4}, {0: 1}]),
        (5, [{0: 3}, {0: 1, 1: 4}, {0: 1, 1: 4}, {0: 1, 2: 2}]),
    ],
)
def test_tensorrt_llm_serves_a_prompt_behind_one_that_got_no_chunk_if_memory_for_both_is_free(blocks, expected):
    """To completion, the last output included, they need 2, 3 and 1 blocks."""
    history = simulate(**SKIPPED, output=[4, 1, 1], kv_blocks=blocks, options=CHUNKED)
    assert batches(history) == expected


def test_tensorrt_llm_pauses_one_that_overtook_when_the_prompt_before_it_lacks_memory():
    """In batch 2 request 0 takes a second block, so prompt 1 lacks one, and 2 behind it, which has started, is paused.

    Request 2 keeps its place; it waits for a block until 0 and 1 are done.
    """
    history = simulate(**SKIPPED, output=[4, 1, 4], kv_blocks=4, options=CHUNKED | {"capacity": "max_utilization"})
    assert schedule(history) == [
        ({0: 3, 2: 2}, []),
        ({0: 1, 2: 1}, []),
        ({0: 1, 1: 4}, [2]),
        ({0: 1, 1: 4}, []),
        ({2: 4}, []),
        ({2: 1}, []),
    ]


def test_tensorrt_llm_reserves_a_block_for_an_output_that_is_never_computed():
    one = IN_BLOCKS | {"arrival": [0], "prompt": [4], "output": [1], "token_budget": 8, "kv_blocks": 1}
    assert batches(simulate(**one, options={"capacity": "max_utilization"})) == [{0: 4}]
    with pytest.raises(InputError, match="needs 2 KV blocks, but 1 can be used"):
        simulate(**one)


# ---------------------------------------------------------------- Vidur's schedulers


THREE = {"arrival": [0, 0, 1], "prompt": [2, 3, 2], "output": [2, 3, 1], "batch_time": one_tick}


def test_vidurs_fastertransformer_runs_a_batch_to_its_last_member():
    assert batches(simulate(**THREE, engine="vidur-fastertransformer")) == [{0: 2, 1: 3}, {0: 1, 1: 1}, {1: 1}, {2: 2}]


def test_vidurs_orca_serves_those_that_run_and_then_whole_new_prompts():
    assert batches(simulate(**THREE, engine="vidur-orca")) == [{0: 2, 1: 3}, {0: 1, 1: 1, 2: 2}, {1: 1}]


@pytest.mark.parametrize("engine", ["vidur-orca", "vidur-fastertransformer"])
def test_vidurs_orca_and_fastertransformer_reserve_the_longest_request(engine):
    """4 blocks of 4 tokens hold two reservations of 8; the third request waits for one."""
    three = THREE | {"arrival": [0] * 3}
    history = simulate(**three, engine=engine, kv_blocks=4, block_size=4, options={"max_tokens": 8})
    assert history.batches[0].allocation == {0: 2, 1: 3}


def test_vidurs_vllm_pads_every_prompt_to_the_longest():
    """Budget 8: beside a prompt of 2 one of 6 counts for 12; the three of them go one after the other."""
    three = {"arrival": [0] * 3, "prompt": [2, 6, 4], "output": [2, 1, 1], "batch_time": one_tick}
    assert batches(simulate(**three, engine="vidur-vllm", token_budget=8)) == [{0: 2}, {1: 6}, {2: 4}, {0: 1}]


def test_vidurs_sarathi_takes_a_prompt_that_it_cut_short_for_outputs():
    """Request 1 is preempted with 2 of 6 prompt tokens done, and comes back as a prompt of 2 with 5 outputs."""
    two = {"arrival": [0, 0], "prompt": [4, 6], "output": [3, 1], "batch_time": one_tick, "block_size": 2}
    history = simulate(**two, engine="vidur-sarathi", token_budget=6, kv_blocks=5)
    assert schedule(history) == [
        ({0: 4, 1: 2}, []),
        ({0: 1, 1: 2}, [1]),
        ({0: 1, 1: 1}, []),
        *[({1: 1}, [])] * 3,
    ]
    assert [request.token_times for request in history.requests] == [[1, 2, 3], [2, 3, 4, 5, 6]]
