"""Pools of engines in the specification of networks, worked by hand."""

import pytest

from penstock.errors import InputError
from tests.reference.network import EnginePool, Jobs, Network, PaperPool
from tests.reference.simulation import simulate


def engines(engine="vllm", ticks=1, **more):
    """Return a pool of engines with blocks of two tokens."""
    limits = {"token_budget": 8, "block_size": 2} | more
    return EnginePool(batch_time=lambda tokens: ticks, engine=engine, **limits)


def calls(*requests, **columns):
    """Return jobs of one request of stage 0 each: (arrival, prompt, output)."""
    return Jobs.chains([(tick, [(0, prompt, output)]) for tick, prompt, output in requests], **columns)


def served(history, replica=0):
    """Return (start, allocation, preempted) of each batch of a replica."""
    return [(b.start, b.allocation, b.preempted) for b in history.batches if b.replica == replica]


def of(history, what):
    return [getattr(request, what) for request in history.requests]


TIGHT = {"kv_blocks": 6}  # of vLLM, which keeps one: prompts of 4 and 4 fit, but only one of them may grow


def test_two_engines_behind_jsq_preempt_each_for_itself():
    """At tick 1 both have two requests; at tick 3 request 0 has left replica 0, but 2 and 4 are there, and only 3."""
    jobs = calls((0, 4, 3), (0, 4, 3), (0, 4, 3), (0, 4, 4), (1, 2, 1), (3, 2, 1))
    history = simulate(jobs, Network([engines(**TIGHT, replicas=2)], [0]))
    assert of(history, "replica") == [0, 1, 0, 1, 0, 1]
    assert served(history, 0) == [
        (0, {0: 4, 2: 4}, []),
        (1, {0: 1}, [2]),
        (2, {0: 1}, []),  # the three blocks of request 2 are not free
        (3, {2: 5, 4: 2}, []),  # it stands before request 4
        (4, {2: 1}, []),
    ]
    assert served(history, 1) == [
        (0, {1: 4, 3: 4}, []),
        (1, {1: 1}, [3]),
        (2, {1: 1}, []),
        (3, {3: 5, 5: 2}, []),
        (4, {3: 1}, []),
        (5, {3: 1}, []),
    ]
    assert of(history, "preemptions") == [0, 0, 1, 1, 0, 0]
    assert of(history, "token_times") == [[1, 2, 3], [1, 2, 3], [1, 4, 5], [1, 4, 5, 6], [4], [4]]


def test_a_preempted_request_weighs_as_one_in_prefill_until_its_prefill_has_been_repeated():
    """Stage 0 weighs 4 and then 1, stage 1 weighs 8 and then 3, and only request 1 is of that.

    Request 2 is preempted at tick 1. At tick 2 replica 0 weighs 1 + 4, at tick 3 4 (request 0 has left), at tick 4 1.
    """
    chains = [(0, [(0, 4, 3)]), (0, [(1, 1, 9)]), (0, [(0, 4, 3)]), *((tick, [(0, 1, 1)]) for tick in (2, 3, 4))]
    pool = engines(**TIGHT, replicas=2, router="work", weights={0: (4, 1), 1: (8, 3)})
    history = simulate(Jobs.chains(chains), Network([pool], [0, 0]), instants=range(5))
    assert of(history, "replica") == [0, 1, 0, 1, 1, 0]
    assert served(history)[:4] == [
        (0, {0: 4, 2: 4}, []),
        (1, {0: 1}, [2]),
        (2, {0: 1}, []),
        (3, {2: 5}, []),
    ]
    assert [(i.prefill, i.decode) for i in history.instants] == [
        ([2, 1], [0, 0]),
        ([0, 0], [2, 1]),
        ([2, 0], [1, 1]),  # 2 again, and 3, which arrives
        ([2, 0], [0, 1]),
        ([1, 0], [1, 1]),
    ]
    # at tick 1 replica 0 loses 4 tokens, and serves one
    assert [i.unprocessed_tokens for i in history.instants] == [[12, 9], [4, 8], [7, 8], [6, 7], [2, 5]]
    assert [i.future_tokens for i in history.instants] == [21, 12, 15, 13, 7]


def test_tokens_counts_those_that_a_preemption_lets_be_computed_again():
    """At tick 2 replica 0 has 12 - 8 - 1 and the 4 of request 2 again, replica 1 8 - 2."""
    jobs = calls((0, 4, 3), (0, 1, 8), (0, 4, 3), (2, 1, 1))
    pool = engines(**TIGHT, replicas=2, router="tokens")
    history = simulate(jobs, Network([pool], [0]), instants=[2])
    assert of(history, "replica") == [0, 1, 0, 1]
    assert history.instants[0].unprocessed_tokens == [7, 7]


def test_a_chain_comes_to_an_engine_in_the_order_in_which_it_is_released():
    """Request 3 finishes its first stage at tick 2, request 1 at tick 4, so 3 is served first."""
    jobs = Jobs.chains([(0, [(0, 3, 2), (1, 4, 2)]), (0, [(0, 1, 1), (1, 4, 2)])])
    paper = PaperPool(batch_time=lambda tokens: 2, token_budget=4)
    history = simulate(jobs, Network([paper, engines(ticks=3, **TIGHT)], [0, 1]))
    assert served(history, 0) == [(0, {0: 3, 2: 1}, []), (2, {0: 1}, [])]
    assert served(history, 1) == [(2, {3: 4}, []), (5, {3: 1, 1: 4}, []), (8, {1: 1}, [])]
    assert of(history, "ready") == [0, 4, 0, 2]
    assert of(history, "first_token") == [2, 8, 2, 5]
    assert of(history, "finish") == [4, 11, 2, 8]


def test_after_a_delay_an_engine_finds_nothing_of_what_a_server_of_the_paper_holds():
    """The second request shares 4 tokens with the first, and comes 3 ticks after it; the third goes back."""
    columns = {"delay": [0, 3, 0], "reuse": [0, 4, 5], "context": [0, -1, -2]}
    jobs = Jobs.chains([(0, [(0, 4, 1), (1, 5, 2), (0, 6, 1)])], **columns)
    paper = PaperPool(batch_time=lambda tokens: 1, token_budget=8)
    history = simulate(jobs, Network([paper, engines(ticks=2, **TIGHT)], [0, 1]))
    assert of(history, "ready") == [0, 4, 8]
    assert of(history, "cached") == [0, 0, 5]
    assert served(history, 0) == [(0, {0: 4}, []), (8, {2: 1}, [])]
    assert served(history, 1) == [(4, {1: 5}, []), (6, {1: 1}, [])]


def test_by_priority_the_queue_goes_by_that_then_by_arrival_at_the_replica_then_by_row():
    """One at a time. Request 0 arrives at tick 1, with the priority of 3; 2 is more urgent than both."""
    jobs = calls((0, 1, 1), (0, 1, 2), (0, 1, 1), (0, 1, 1), priority=[1, 1, 0, 1], delay=[1, 0, 0, 0])
    pool = engines(order="priority", max_batch_size=1)
    history = simulate(jobs, Network([pool], [0]))
    assert [allocation for _, allocation, _ in served(history)] == [{2: 1}, {1: 1}, {1: 1}, {3: 1}, {0: 1}]


@pytest.mark.parametrize(("engine", "convention"), [("vllm", "engine"), ("sarathi", "engine"), ("sarathi", "paper")])
def test_a_request_of_a_prompt_alone_finishes_with_it_and_one_of_no_tokens_on_arrival(engine, convention):
    pool = engines(engine, kv_blocks=6, convention=convention, token_budget=3)
    history = simulate(calls((0, 4, 0), (1, 0, 0)), Network([pool], [0]))
    assert served(history) == [(0, {0: 3}, []), (1, {0: 1}, [])]
    assert of(history, "first_token") == [2, None]
    assert of(history, "finish") == [2, 1]


@pytest.mark.parametrize(
    ("prompt", "output", "reason"),
    [
        (0, 2, "request 1 of 0 prompt and 2 output tokens has no prompt, with which an engine begins"),
        (9, 4, "request 1 of 9 prompt and 4 output tokens needs 6 KV blocks, but 5 can be used"),
    ],
)
def test_who_could_never_finish_at_an_engine_is_refused_before_the_clock_starts(prompt, output, reason):
    jobs = Jobs.chains([(0, [(0, 1, 1), (1, prompt, output)])])
    paper = PaperPool(batch_time=lambda tokens: pytest.fail("it started"))
    with pytest.raises(InputError, match=reason):
        simulate(jobs, Network([paper, engines(**TIGHT)], [0, 1]))
