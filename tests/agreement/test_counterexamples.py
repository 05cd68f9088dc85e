"""Two lemmas of the paper fail as stated: counter-examples, and what holds instead."""

import numpy as np

import penstock as ps
from penstock.reference import Allocation, State, fill
from penstock.reference import simulate as simulate_slots


def newest_prompt_first(state: State) -> Allocation:
    """Serve prompts, the newest first, and decodes, the oldest first, only when no prompt is left."""
    prompts = [request for request in reversed(state.requests) if request.P > 0]
    return fill(state, prompts or state.decoding)


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
    left = dict.fromkeys(range(burst), 3)
    prefilled: dict[int, int] = {}  # request -> batch in which its prompt was done
    tokens = dict.fromkeys(range(burst), 2)
    for number, batch in enumerate(history.batches):
        decoding = [request for request, (_, decode) in batch.allocation.items() if decode]
        for newest in decoding:  # K-FCFS with K = 1: every older one still there gets a token
            assert all(older in batch.allocation for older in range(newest) if left[older])
        for request, (prefill, decode) in batch.allocation.items():
            tokens[request] -= prefill
            left[request] -= decode
            if prefill and not tokens[request]:
                prefilled[request] = number
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
    """lem:bounded-overtaking holds for f = d: K' <= K + v_max b_max."""
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
