"""Statements of the paper that fail as they stand: counter-examples, and what holds instead."""

import random
from collections.abc import Callable

import numpy as np
import pytest

import penstock as ps
from paper.overtaking import fcfs_slack, newest_prompt_first
from tests.reference.markov_chain import Allocation, State, fill, token_load
from tests.reference.markov_chain import simulate as simulate_slots


def shortest_prompt_first(state: State) -> Allocation:
    """Serve prompts, the shortest first, then decodes, the oldest first."""
    return fill(state, [*sorted(state.prompts, key=lambda request: request.prompt_tokens), *state.decoding])


@pytest.mark.parametrize("policy", [newest_prompt_first, shortest_prompt_first])
def test_the_counter_examples_are_work_conserving_and_first_come_first_served_in_every_state(
    policy: Callable[[State], Allocation],
) -> None:
    """On 200 random systems: every batch holds all that waits or is full, and K = 1."""
    draw = random.Random(5)
    for _ in range(200):
        n, budget = draw.randint(1, 30), draw.randint(1, 9)
        lengths = [[draw.randint(1, 9) for _ in range(n)] for _ in range(2)]
        full: list[bool] = []

        def watched(state: State, budget: int = budget, full: list[bool] = full) -> Allocation:
            chosen = policy(state)
            waiting = sum(request.P for request in state.requests) + len(state.decoding)
            full.append(token_load(chosen) == min(budget, waiting))
            return chosen

        history = simulate_slots(
            sorted(draw.choices(range(40), k=n)), *lengths, batch_time=lambda load: 1 + load // 4,
            token_budget=budget, policy=watched, convention="paper",
        )  # fmt: skip
        assert all(full)
        assert fcfs_slack(history) == 1


def test_the_fluid_equation_of_prefill_fails_though_the_policy_conserves_work_and_is_1_fcfs() -> None:
    """lem:fl, eq:f4 with f = p, says F_p = B_p / m_p; prompts of 1 and 9 tokens, the shortest first, break it."""
    prompts = [1, 9] * 300  # m_p = 5
    history = simulate_slots(
        [0] * 600, prompts, [3] * 600, batch_time=lambda load: 1, token_budget=8,
        policy=shortest_prompt_first, convention="paper",
    )  # fmt: skip
    tokens = np.zeros(600, int)
    for batch in history.batches[:31]:
        for request, (prefill, _) in batch.allocation.items():
            tokens[request] += prefill
    assert (tokens == prompts).sum() == 248  # F_p
    assert tokens.sum() / 5 == 49.6  # B_p / m_p


def test_more_than_a_full_batch_may_be_completed_while_one_takes() -> None:
    """eq:B allows b_max = 8 tokens from slot 3 to slot 6, as long as a full batch takes; 12 are completed."""
    history = simulate_slots(
        [1], [12], [1], batch_time=lambda load: 1 + -(-load // 4), token_budget=8,
        policy=lambda state: fill(state, state.requests), convention="paper",
    )  # fmt: skip
    ends = [(batch.end, token_load(batch.allocation)) for batch in history.batches]
    assert ends == [(4, 8), (6, 4), (8, 1)]
    assert sum(tokens for end, tokens in ends if 3 < end <= 6) == 12


def test_prefill_overtakes_without_bound_though_k_fcfs_holds() -> None:
    """lem:bounded-overtaking is false for f = p: K-FCFS is triggered by decoding alone.

    With K = 1, prompts of 2 tokens and b_max = 8 the lemma bounds overtaking in prefill by K' <= 1 + 2 * 8 = 17. In a
    burst of 1,000 the last to come finishes its prefill first, 999 places early, and no batch violates the condition.
    """
    burst = 1_000
    history = simulate_slots(
        [0] * burst, [2] * burst, [3] * burst, batch_time=lambda load: 1, token_budget=8,
        policy=newest_prompt_first, convention="paper",
    )  # fmt: skip
    assert fcfs_slack(history) == 1
    prefilled = {}  # request -> batch in which its prompt was done: the last that holds tokens of it
    for number, batch in enumerate(history.batches):
        prefilled |= {request: number for request, (prefill, _) in batch.allocation.items() if prefill}
    overtaken = max(sum(prefilled[j] < prefilled[0] for j in range(1, burst)), 0)
    assert overtaken >= burst - 4  # the last batch of prefill holds four
    assert overtaken > 17


def departures_overtaken(finish: np.ndarray) -> int:
    """Most places by which a request leaves ahead of an older one."""
    earliest_later = np.minimum.accumulate(finish[::-1])[::-1]
    return max(int((finish[i + 1 :] < finish[i]).sum()) for i in np.flatnonzero(finish > earliest_later)) if (
        finish > earliest_later
    ).any() else 0  # fmt: skip


def test_departures_overtake_within_the_bound() -> None:
    """lem:bounded-overtaking, f = d: K + v_max b_max, the constant of its proof, bounds how many overtake a request."""
    rng = np.random.default_rng(0)
    workload = ps.Workload.from_arrays(
        np.sort(rng.uniform(0, 2_000, 2_000)), rng.integers(1, 4, 2_000), rng.integers(1, 6, 2_000)
    )
    for policy in ("sarathi", "orca"):
        server = ps.Server(ps.Affine(c=1.0, a=0.0), 8, policy=policy, convention="paper")
        run = ps.simulate(workload, server, record="allocations")
        k = max(ps.audit(run).overtake_k, 1)
        assert departures_overtaken(run.requests["finish_ns"].to_numpy()) <= k + (3 + 5) * 8


def test_a_join_buffer_outgrows_the_bound_of_the_lemma_and_keeps_the_corrected_one() -> None:
    """lem:join-bound-gen is false: completion *orders* stay within 2K', completion *times* do not.

    Two fork servers, first come first served, one prompt and one decode token a request, two tokens a batch: K = 1,
    K' = 1 + 2 * 2 = 5, and the lemma bounds all join buffers by 2 K' * 2 = 20. One server is nearly idle, the other at
    load .96: what the first has done waits for the queue of the second. The sum of the buffers is at most
    (n_fork - 1)(max_l Q_l + 2K') instead.
    """
    rate, k_prime = 0.96, 5
    arrivals = np.cumsum(np.random.default_rng(1).exponential(1 / rate, 20_000))
    forked = ps.Workload.from_arrays(arrivals, np.ones(20_000, int), np.ones(20_000, int))
    finishes = []
    for seconds in (0.1, 1.0):  # a batch carries one request's worth of tokens
        server = ps.Server(ps.Affine(c=seconds, a=0.0), 2, policy="sarathi", convention="paper")
        run = ps.simulate(forked, server, record="allocations")
        assert ps.audit(run).overtake_k <= 1
        finishes.append(run.requests["finish_ns"].to_numpy())
    came = run.requests["arrival_ns"].to_numpy()
    instants = np.sort(np.concatenate(finishes))

    def count(times: np.ndarray) -> np.ndarray:
        return np.searchsorted(np.sort(times), instants, side="right")

    released = count(np.maximum(*finishes))
    buffers = sum(count(finish) - released for finish in finishes)
    queues = np.maximum(*(count(came) - count(finish) for finish in finishes))
    assert buffers.max() > 2 * 20
    assert (buffers <= queues + 2 * k_prime).all()
