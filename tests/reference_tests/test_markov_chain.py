"""The specification itself: worked by hand where it can be, and held to the paper's laws everywhere else."""

import doctest

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InputError
from tests.reference import markov_chain
from tests.reference.markov_chain import CONVENTIONS, POLICIES, SCOPES, fill, simulate

# Three requests, budget 4, two ticks a batch. Request 1's prompt is longer than a batch; request 2 wants one token.
THREE = {"arrival": [0, 1, 3], "prompt": [3, 6, 1], "output": [3, 2, 1]}


def two_ticks(load):
    return 2


def one_tick(load):
    return 1


def starts(history):
    return [(batch.start, batch.allocation) for batch in history.batches]


def token_times(history):
    return [request.token_times for request in history.requests]


# ---------------------------------------------------------------- each policy, worked by hand


def test_fastertransformer_serves_no_prompt_while_a_request_can_decode():
    history = simulate(**THREE, batch_time=two_ticks, token_budget=4, policy="fastertransformer")
    assert starts(history) == [
        (0, {0: (3, 0)}),
        (2, {0: (0, 1)}),
        (4, {0: (0, 1)}),
        (6, {1: (4, 0)}),
        (8, {1: (2, 0), 2: (1, 0)}),
        (10, {1: (0, 1)}),
    ]
    assert token_times(history) == [[2, 4, 6], [10, 12], [10]]
    assert history.end == 12


def test_vllm_vanilla_decodes_nothing_while_a_prompt_waits():
    history = simulate(**THREE, batch_time=two_ticks, token_budget=4, policy="vllm-vanilla")
    assert starts(history) == [
        (0, {0: (3, 0)}),
        (2, {1: (4, 0)}),
        (4, {1: (2, 0), 2: (1, 0)}),
        (6, {0: (0, 1), 1: (0, 1)}),
        (8, {0: (0, 1)}),
    ]
    assert token_times(history) == [[2, 8, 10], [6, 8], [6]]
    assert history.end == 10


def test_orca_decodes_with_the_tokens_that_prompts_leave():
    history = simulate(**THREE, batch_time=two_ticks, token_budget=4, policy="orca")
    assert starts(history) == [
        (0, {0: (3, 0)}),
        (2, {1: (4, 0)}),
        (4, {1: (2, 0), 2: (1, 0), 0: (0, 1)}),
        (6, {0: (0, 1), 1: (0, 1)}),
    ]
    assert token_times(history) == [[2, 6, 8], [6, 8], [6]]
    assert history.end == 8


def test_sarathi_prefills_with_the_tokens_that_decodes_leave():
    history = simulate(**THREE, batch_time=two_ticks, token_budget=4, policy="sarathi")
    assert starts(history) == [
        (0, {0: (3, 0)}),
        (2, {0: (0, 1), 1: (3, 0)}),
        (4, {0: (0, 1), 1: (3, 0)}),
        (6, {1: (0, 1), 2: (1, 0)}),
    ]
    assert token_times(history) == [[2, 4, 6], [6, 8], [8]]
    assert [request.first_token for request in history.requests] == [2, 6, 8]
    assert [request.finish for request in history.requests] == [6, 8, 8]
    assert history.end == 8


def test_under_the_paper_convention_prefill_yields_no_token_and_every_token_is_a_decode():
    history = simulate(**THREE, batch_time=two_ticks, token_budget=4, policy="sarathi", convention="paper")
    assert starts(history) == [
        (0, {0: (3, 0)}),
        (2, {0: (0, 1), 1: (3, 0)}),
        (4, {0: (0, 1), 1: (3, 0)}),
        (6, {0: (0, 1), 1: (0, 1), 2: (1, 0)}),
        (8, {1: (0, 1), 2: (0, 1)}),
    ]
    assert token_times(history) == [[4, 6, 8], [8, 10], [10]]


@pytest.mark.parametrize(
    ("policy", "batches", "not_work_conserving"),
    [
        (
            "fastertransformer",
            [{0: (4, 0)}, {0: (0, 1)}, {0: (0, 1)}, {0: (0, 1)}, {1: (3, 0)}, {1: (0, 1)}],
            [1, 2, 3],
        ),
        ("vllm-vanilla", [{0: (4, 0)}, {1: (3, 0)}, {0: (0, 1), 1: (0, 1)}, {0: (0, 1)}, {0: (0, 1)}], [1]),
        ("orca", [{0: (4, 0)}, {1: (3, 0), 0: (0, 1)}, {0: (0, 1), 1: (0, 1)}, {0: (0, 1)}], []),
        ("sarathi", [{0: (4, 0)}, {0: (0, 1), 1: (3, 0)}, {0: (0, 1), 1: (0, 1)}, {0: (0, 1)}], []),
    ],
)
def test_work_conservation_breaks_where_figure_sec3_ill_says(policy, batches, not_work_conserving):
    """Vanilla vLLM fails it in batch 2 (prompts too short), FasterTransformer in batches 2 to 4 (prompts blocked)."""
    supply = []

    def watched(state):
        supply.append(sum(request.P + (request.P == 0) for request in state.requests))
        return POLICIES[policy](state)

    history = simulate([0, 1], [4, 3], [3, 1], batch_time=one_tick, token_budget=4, policy=watched, convention="paper")
    assert [batch.allocation for batch in history.batches] == batches
    loads = [batch.prefill_tokens + batch.decode_tokens for batch in history.batches]
    assert [n for n in range(len(loads)) if supply[n] >= 4 > loads[n]] == not_work_conserving


# ---------------------------------------------------------------- time


def test_a_batch_of_t_slots_finishes_t_ticks_after_its_start_and_the_next_starts_then():
    """Prompt 10, budget 4, t_b = b: chunks of 4, 4 and 2 tokens, then one decode."""
    history = simulate([0], [10], [2], batch_time=lambda load: load, token_budget=4)
    assert [(b.start, b.duration, b.end, b.prefill_tokens, b.decode_tokens, b.requests) for b in history.batches] == [
        (0, 4, 4, 4, 0, 1),
        (4, 4, 8, 4, 0, 1),
        (8, 2, 10, 2, 0, 1),
        (10, 1, 11, 0, 1, 1),
    ]
    assert token_times(history) == [[10, 11]]


def test_an_arrival_at_the_tick_of_a_finish_joins_the_batch_formed_then():
    history = simulate([0, 3, 4], [1, 1, 1], [2, 1, 1], batch_time=lambda load: 3, token_budget=8)
    assert starts(history) == [(0, {0: (1, 0)}), (3, {0: (0, 1), 1: (1, 0)}), (6, {2: (1, 0)})]


def test_an_idle_server_starts_at_the_tick_of_an_arrival():
    history = simulate([5, 20], [1, 1], [1, 1], batch_time=two_ticks, token_budget=8)
    assert starts(history) == [(5, {0: (1, 0)}), (20, {1: (1, 0)})]
    assert [request.finish for request in history.requests] == [7, 22]


def test_requests_that_arrive_together_are_served_in_the_order_of_their_index():
    orca = simulate([0, 0], [1, 1], [2, 2], batch_time=one_tick, token_budget=1, policy="orca")
    assert [batch.allocation for batch in orca.batches] == [{0: (1, 0)}, {1: (1, 0)}, {0: (0, 1)}, {1: (0, 1)}]
    sarathi = simulate([0, 0], [1, 1], [2, 2], batch_time=one_tick, token_budget=1, policy="sarathi")
    assert [batch.allocation for batch in sarathi.batches] == [{0: (1, 0)}, {0: (0, 1)}, {1: (1, 0)}, {1: (0, 1)}]


def test_one_output_token_departs_with_its_prefill_in_the_engine_convention_only():
    engine = simulate([0], [5], [1], batch_time=two_ticks, token_budget=4, convention="engine")
    paper = simulate([0], [5], [1], batch_time=two_ticks, token_budget=4, convention="paper")
    assert (engine.requests[0].first_token, engine.requests[0].finish, len(engine.batches)) == (4, 4, 2)
    assert (paper.requests[0].first_token, paper.requests[0].finish, len(paper.batches)) == (6, 6, 3)


def test_without_requests_nothing_happens():
    history = simulate([], [], [], batch_time=one_tick, token_budget=1)
    assert (history.requests, history.batches, history.end) == ([], [], 0)
    assert simulate([], [], [], batch_time=one_tick, token_budget=1, until=7).end == 7


# ---------------------------------------------------------------- the max batch size, worked by hand


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_scope_running_admits_nobody_while_k_requests_are_unfinished(policy):
    """Three prompts of 2 tokens, outputs of 3, k = 2: request 2 is admitted when 0 and 1 have departed, at tick 3."""
    history = simulate(
        [0] * 3, [2] * 3, [3] * 3, batch_time=one_tick, token_budget=8, max_batch_size=2, policy=policy, scope="running"
    )
    both, last = {0: (0, 1), 1: (0, 1)}, {2: (0, 1)}
    assert [b.allocation for b in history.batches] == [{0: (2, 0), 1: (2, 0)}, both, both, {2: (2, 0)}, last, last]


def test_scope_batch_counts_only_the_requests_of_one_batch():
    """The same three requests: prompts may run ahead of decodes, two requests at a time."""
    three = {"arrival": [0] * 3, "prompt": [2] * 3, "output": [3] * 3}
    limits = {"batch_time": one_tick, "token_budget": 8, "max_batch_size": 2, "scope": "batch"}
    orca = simulate(**three, **limits, policy="orca")
    assert [batch.allocation for batch in orca.batches] == [
        {0: (2, 0), 1: (2, 0)},
        {2: (2, 0), 0: (0, 1)},
        {0: (0, 1), 1: (0, 1)},
        {1: (0, 1), 2: (0, 1)},
        {2: (0, 1)},
    ]
    vllm = simulate(**three, **limits, policy="vllm-vanilla")
    both = {0: (0, 1), 1: (0, 1)}
    assert [batch.allocation for batch in vllm.batches] == [
        {0: (2, 0), 1: (2, 0)},
        {2: (2, 0)},
        both,
        both,
        {2: (0, 1)},
        {2: (0, 1)},
    ]


def test_a_partial_prefill_counts_as_running():
    """Budget 3, k = 2, prompts of 2: at tick 0 request 1 is cut, so that request 2 waits until 0 has departed.

    In scope `batch` Orca would start request 2 at tick 1, beside the rest of request 1.
    """
    requests = {"arrival": [0] * 3, "prompt": [2] * 3, "output": [2, 2, 1]}
    limits = {"batch_time": one_tick, "token_budget": 3, "max_batch_size": 2, "policy": "orca"}
    running = simulate(**requests, **limits, scope="running")
    assert [batch.allocation for batch in running.batches] == [
        {0: (2, 0), 1: (1, 0)},
        {1: (1, 0), 0: (0, 1)},
        {2: (2, 0), 1: (0, 1)},
    ]
    batch = simulate(**requests, **limits, scope="batch")
    assert [batch.allocation for batch in batch.batches] == [
        {0: (2, 0), 1: (1, 0)},
        {1: (1, 0), 2: (2, 0)},
        {0: (0, 1), 1: (0, 1)},
    ]


@pytest.mark.parametrize(
    ("scope", "limit", "candidates"),
    [
        ("batch", None, [1, 2, 3]),
        ("batch", 2, [1, 2]),  # the first k prompts
        ("running", None, [1, 2, 3]),
        ("running", 2, [1]),  # the partial prompt, and no new one beside it and the decoding request
        ("running", 3, [1, 2]),
    ],
)
def test_the_prompts_that_may_be_served_depend_on_the_scope(scope, limit, candidates):
    """Request 0 is decoding, request 1 is partly prefilled, requests 2 and 3 are new."""
    requests = tuple(markov_chain.Request(i, 0, 5, 4, 3, P=p, D=3) for i, p in enumerate([0, 2, 5, 5]))
    state = markov_chain.State(9, requests, token_budget=4, max_batch_size=limit, scope=scope)
    assert [request.index for request in state.candidates] == candidates
    assert [request.index for request in state.decoding] == [0]


# ---------------------------------------------------------------- stopping early, and the counts


def test_until_lets_finishes_and_arrivals_at_that_tick_count_and_nothing_after():
    run = {**THREE, "batch_time": two_ticks, "token_budget": 4}  # sarathi: batches at 0, 2, 4 and 6
    stopped = simulate(**run, until=5)
    assert [(batch.start, batch.end) for batch in stopped.batches] == [(0, 2), (2, 4), (4, 6)]
    assert token_times(stopped) == [[2, 4], [], []]
    assert [request.finish for request in stopped.requests] == [None, None, None]

    at_a_finish = simulate(**run, until=6)
    assert [batch.start for batch in at_a_finish.batches] == [0, 2, 4], "the batch formed at the stop is not formed"
    assert [request.finish for request in at_a_finish.requests] == [6, None, None]

    assert len(simulate(**run, until=2).requests) == 2
    assert len(simulate(**run, until=3).requests) == 3, "an arrival at the stop counts"
    assert simulate(**run, until=20).end == 20


def test_counts_are_taken_after_finishes_and_arrivals_and_before_the_batch_formed_then():
    """Sarathi's batches of 3, 4, 4 and 2 tokens at ticks 0, 2, 4 and 6; tokens arrive 5 + 7 + 1 at ticks 0, 1 and 3."""
    history = simulate(**THREE, batch_time=two_ticks, token_budget=4)
    ticks = range(9)
    assert [history.requests_in_system(n) for n in ticks] == [1, 2, 2, 3, 3, 3, 2, 2, 0]
    assert [history.unprocessed_tokens(n) for n in ticks] == [5, 9, 9, 6, 6, 2, 2, 0, 0]
    assert [history.uncompleted_tokens(n) for n in ticks] == [5, 12, 9, 10, 6, 6, 2, 2, 0]


def test_a_count_outside_the_run_is_refused():
    history = simulate(**THREE, batch_time=two_ticks, token_budget=4)
    with pytest.raises(InputError, match="tick 9 is outside this run, which covers ticks 0 to 8"):
        history.unprocessed_tokens(9)


# ---------------------------------------------------------------- a policy of one's own


def test_any_function_of_the_state_is_a_policy():
    """Last come, first served; requests given (0, 0) are not in the batch."""

    def newest_first(state):
        nobody = {request.index: (0, 0) for request in state.requests}
        return nobody | fill(state, reversed(state.requests))

    history = simulate([0, 1], [2, 2], [2, 2], batch_time=two_ticks, token_budget=2, policy=newest_first)
    assert starts(history) == [(0, {0: (2, 0)}), (2, {1: (2, 0)}), (4, {1: (0, 1), 0: (0, 1)})]


@pytest.mark.parametrize(
    ("scope", "allocation", "complaint"),
    [
        ("batch", {0: (1, 1)}, "eq:prefill-pre-decode"),
        ("batch", {0: (3, 0)}, "prefills 3 of 2 tokens .eq:prefill-unprocess"),
        ("batch", {2: (0, 2)}, "decodes 2 tokens at once .eq:decode-unprocess"),
        ("batch", {0: (2, 0), 1: (2, 0), 2: (0, 1)}, "5 tokens exceed the budget of 4 .eq:batch-constraint"),
        ("batch", {0: (1, 0), 1: (1, 0), 2: (0, 1)}, "3 requests exceed 2 in scope batch .eq:batch-size-constraint"),
        ("running", {0: (1, 0), 1: (1, 0)}, "3 requests exceed 2 in scope running .eq:batch-size-constraint"),
        ("batch", {0: (-1, 0), 1: (2, 0)}, "request 0 gets -1 prefill"),
        ("batch", {7: (1, 0)}, "request 7 is served, but is not in the system"),
        ("batch", {}, "the batch is empty, but one of 3 requests can be served"),
        ("batch", {0: (0, 0)}, "the batch is empty"),
    ],
)
def test_an_infeasible_batch_is_named_by_the_constraint_that_it_breaks(scope, allocation, complaint):
    """Requests 0 and 1 have 2 prompt tokens to go, request 2 is decoding."""
    fresh = {"arrival": 0, "prompt_tokens": 2, "output_tokens": 4, "decode_tokens": 3}
    requests = (
        markov_chain.Request(0, P=2, D=3, **fresh),
        markov_chain.Request(1, P=2, D=3, **fresh),
        markov_chain.Request(2, P=0, D=3, **fresh),
    )
    state = markov_chain.State(9, requests, token_budget=4, max_batch_size=2, scope=scope)
    with pytest.raises(AssertionError, match=f"at tick 9 .*{complaint}"):
        markov_chain.assert_feasible(state, allocation)


def test_a_policy_that_breaks_a_constraint_stops_the_run():
    with pytest.raises(AssertionError, match="eq:prefill-unprocess"):
        simulate([0], [2], [1], batch_time=one_tick, token_budget=8, policy=lambda state: {0: (3, 0)})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"policy": "sarati"}, "there is no policy 'sarati'; did you mean 'sarathi'"),
        ({"scope": "batches"}, "there is no scope 'batches'; did you mean 'batch'"),
        ({"convention": "x"}, "there is no convention 'x'; known: engine, paper"),
        ({"output": [1, 0]}, r"output\[1\] = 0"),
        ({"prompt": [0, 1]}, r"prompt\[0\] = 0"),
        ({"prompt": [1, 1.5]}, r"prompt\[1\] = 1.5"),
        ({"prompt": [1]}, "2 arrivals, 1 prompts and 2 outputs do not pair"),
        ({"arrival": [3, 2]}, r"arrival\[1\] = 2 is before arrival\[0\] = 3; sort"),
        ({"arrival": [-1, 2]}, r"arrival\[0\] = -1"),
        ({"batch_time": lambda load: 0}, r"batch_time\(2\) = 0"),
        ({"batch_time": lambda load: 1.5}, r"batch_time\(2\) = 1.5"),
        ({"token_budget": 0}, "token_budget = 0"),
        ({"max_batch_size": 0}, "max_batch_size = 0"),
        ({"until": -1}, "until = -1"),
    ],
)
def test_bad_input_is_refused_with_its_value(change, complaint):
    good = {"arrival": [0, 0], "prompt": [1, 1], "output": [1, 1], "batch_time": one_tick, "token_budget": 8}
    with pytest.raises(InputError, match=complaint):
        simulate(**(good | change))


def test_arrays_of_numpy_integers_are_as_good_as_lists():
    arrays = {name: np.array(values) for name, values in THREE.items()}
    limits = {"batch_time": lambda load: np.int64(2), "token_budget": np.int64(4)}
    assert simulate(**arrays, **limits) == simulate(**THREE, batch_time=two_ticks, token_budget=4)


def test_the_examples_in_the_docstrings_are_true():
    result = doctest.testmod(markov_chain)
    assert result.attempted > 0
    assert result.failed == 0


# ---------------------------------------------------------------- laws

positive = st.integers(1, 9)


@st.composite
def systems(draw, policies=tuple(POLICIES)):
    """Draw a small system: everything that `simulate` takes, with ties, cuts and limits all likely."""
    requests = draw(st.lists(st.tuples(st.integers(0, 6), positive, st.integers(1, 5)), min_size=1, max_size=8))
    gaps, prompt, output = zip(*requests, strict=True)
    budget = draw(positive)
    ticks = draw(st.lists(st.integers(1, 5), min_size=budget, max_size=budget))
    return {
        "arrival": [sum(gaps[: i + 1]) for i in range(len(gaps))],
        "prompt": prompt,
        "output": output,
        "batch_time": lambda load: ticks[load - 1],
        "token_budget": budget,
        "max_batch_size": draw(st.none() | st.integers(1, 4)),
        "policy": draw(st.sampled_from(policies)),
        "scope": draw(st.sampled_from(SCOPES)),
        "convention": draw(st.sampled_from(CONVENTIONS)),
    }


def watch(system):
    """Run the system and return its history with what the policy saw before each batch, as plain numbers."""
    seen = []
    choose = POLICIES[system["policy"]]

    def watched(state):
        seen.append(
            {
                "tick": state.tick,
                "decoding": [request.index for request in state.decoding],
                "candidates": {request.index: request.P for request in state.candidates},
                "admitted": sum(request.admitted for request in state.requests),
                "requests": len(state.requests),
                "tokens": sum(request.P + request.D for request in state.requests),
                "prompt_tokens": sum(request.P for request in state.requests),
            }
        )
        return choose(state)

    return simulate(**(system | {"policy": watched})), seen


@given(systems())
def test_every_token_is_processed_once_and_every_request_gets_its_output(system):
    history = simulate(**system)
    for request in history.requests:
        shares = [batch.allocation.get(request.index, (0, 0)) for batch in history.batches]
        decodes = request.output_tokens - (system["convention"] == "engine")
        assert sum(delta_p for delta_p, _ in shares) == request.prompt_tokens
        assert sum(delta_d for _, delta_d in shares) == decodes
        assert (request.P, request.D) == (0, 0)
        assert len(request.token_times) == request.output_tokens


@given(systems())
def test_times_are_monotone_and_every_token_ends_with_a_batch_that_served_its_request(system):
    history = simulate(**system)
    for request in history.requests:
        times = request.token_times
        assert request.arrival < request.first_token == times[0]
        assert request.finish == times[-1] <= history.end
        assert times == sorted(set(times))
        assert set(times) <= {batch.end for batch in history.batches if request.index in batch.allocation}
    assert history.end == history.batches[-1].end


@given(systems())
def test_batches_follow_one_another_and_the_server_idles_only_when_it_is_empty(system):
    history = simulate(**system)
    free = 0
    for batch in history.batches:
        assert batch.start >= free
        assert all(history.requests_in_system(n) == 0 for n in range(free, batch.start))
        free = batch.end


@given(systems())
def test_each_phase_is_served_first_come_first_served_and_only_the_last_prompt_is_cut(system):
    history, seen = watch(system)
    for batch, saw in zip(history.batches, seen, strict=True):
        decodes = [i for i, (_, delta_d) in batch.allocation.items() if delta_d]
        prefill = {i: delta_p for i, (delta_p, _) in batch.allocation.items() if delta_p}
        assert decodes == saw["decoding"][: len(decodes)]
        assert list(prefill) == list(saw["candidates"])[: len(prefill)]
        assert list(saw["candidates"]) == sorted(saw["candidates"])
        assert all(prefill[i] == saw["candidates"][i] for i in list(prefill)[:-1])


@given(systems(("fastertransformer", "vllm-vanilla", "orca", "sarathi")))
def test_each_policy_totals_what_its_aggregate_formula_says(system):
    """The composition (x, y) as the paper's Section 6 would write it, from counts alone."""
    history, seen = watch(system)
    b, k = system["token_budget"], system["max_batch_size"] or 10**9
    for batch, saw in zip(history.batches, seen, strict=True):
        waiting, decoding = sum(saw["candidates"].values()), len(saw["decoding"])
        x, y = min(waiting, b), min(decoding, k, b)
        if system["policy"] == "fastertransformer":
            x = 0 if decoding else x
        elif system["policy"] == "vllm-vanilla":
            y = 0 if waiting else y
        elif system["policy"] == "orca":
            y = min(decoding, b - x, k - sum(delta_p > 0 for delta_p, _ in batch.allocation.values()))
        else:
            slots = len(saw["candidates"]) if system["scope"] == "running" else k - y
            x = min(sum(list(saw["candidates"].values())[:slots]), b - y)
        assert (batch.prefill_tokens, batch.decode_tokens) == (x, y)


@given(systems(policies=("orca", "sarathi")))
def test_orca_and_sarathi_are_work_conserving_without_a_max_batch_size(system):
    history, seen = watch(system | {"max_batch_size": None})
    for batch, saw in zip(history.batches, seen, strict=True):
        supply = saw["prompt_tokens"] + len(saw["decoding"])
        assert batch.prefill_tokens + batch.decode_tokens == min(supply, system["token_budget"])


@given(systems(policies=("fastertransformer", "sarathi")))
def test_a_policy_that_decodes_first_does_not_notice_the_scope(system):
    """It takes in a prompt only beside every unfinished request that it has admitted, so the two limits coincide."""
    assert simulate(**(system | {"scope": "running"})) == simulate(**(system | {"scope": "batch"}))


@given(systems())
def test_a_max_batch_size_that_cannot_bind_changes_nothing(system):
    assert simulate(**(system | {"max_batch_size": 8})) == simulate(**(system | {"max_batch_size": None}))


@given(systems())
def test_the_max_batch_size_holds_in_its_scope(system):
    history, seen = watch(system)
    if system["max_batch_size"] is not None:
        assert all(batch.requests <= system["max_batch_size"] for batch in history.batches)
        if system["scope"] == "running":
            assert all(saw["admitted"] <= system["max_batch_size"] for saw in seen)


@given(systems())
def test_the_counts_are_those_of_the_state_that_the_scheduler_saw(system):
    history, seen = watch(system)
    for saw in seen:
        assert history.requests_in_system(saw["tick"]) == saw["requests"]
        assert history.unprocessed_tokens(saw["tick"]) == saw["tokens"]
        assert history.uncompleted_tokens(saw["tick"]) == saw["tokens"], "no batch is in flight when one is formed"
    assert history.requests_in_system(history.end) == 0
    assert history.uncompleted_tokens(history.end) == 0


@settings(max_examples=50)
@given(systems(), st.integers(0, 60))
def test_stopping_early_gives_the_beginning_of_the_whole_run(system, until):
    whole, part = simulate(**system), simulate(**system, until=until)
    assert part.end == until
    assert part.batches == [batch for batch in whole.batches if batch.start < until]
    assert len(part.requests) == sum(request.arrival <= until for request in whole.requests)
    for early, late in zip(part.requests, whole.requests, strict=False):
        assert early.token_times == [n for n in late.token_times if n <= until]
        assert early.finish == (late.finish if late.finish <= until else None)
