"""Two lemmas of the paper: what is counted, by hand and by definition."""

import random

import numpy as np
import pytest

from paper import overtaking
from tests.reference import markov_chain


def test_places_and_overtakers_are_counted_as_they_are_said() -> None:
    assert overtaking.places(np.array([5, 3, 4, 4, 6])) == 3  # 3 is done ahead of 0
    assert overtaking.overtakers(np.array([5, 3, 4, 4, 6])) == 3
    assert overtaking.places(np.array([1, 1, 2])) == overtaking.overtakers(np.array([1, 1, 2])) == 0


def test_the_slack_of_k_fcfs_agrees_with_the_definition() -> None:
    draw = random.Random(3)
    for _ in range(30):
        n = draw.randint(2, 12)
        prompt, output = ([draw.randint(1, 3) for _ in range(n)] for _ in range(2))
        arrival = sorted(draw.choices(range(8), k=n))
        seen, order = [1], overtaking.any_order(draw)

        def watched(state, seen=seen, order=order):
            chosen = order(state)
            there = [request.index for request in state.requests]
            decoding = [j for j, (_, decode) in chosen.items() if decode]
            seen += [j - i + 1 for j in decoding for i in there if i < j and i not in chosen]
            return chosen

        history = markov_chain.simulate(
            arrival, prompt, output, batch_time=lambda load: 2, token_budget=draw.randint(1, 4), policy=watched,
            convention="paper",
        )  # fmt: skip
        assert overtaking.fcfs_slack(history) == max(seen)


@pytest.mark.parametrize("slack", [1, 3, 9, 31])
def test_the_bound_on_places_is_reached_by_a_work_conserving_order(slack: int) -> None:
    history = overtaking.serve_far_ahead(slack)
    far = overtaking.overtaking_in(history, 2)
    assert far.k == slack
    assert far.places == far.corrected == 2 * slack - 1
    assert far.overtakers < far.lemma
    loads = [markov_chain.token_load(batch.allocation) for batch in history.batches]
    assert loads[:-1] == [2] * (len(loads) - 1)


@pytest.fixture(scope="module")
def lemma_join():
    from paper import lemma_join

    return lemma_join


def test_the_buffers_of_a_join_by_hand(lemma_join) -> None:
    """Two jobs at once: one server has done both after 1 s, one a job a second, and the slow one both after 3 s."""
    instants, buffers, queue = lemma_join.at_the_join(np.array([0, 0]), [np.array(d) for d in ([1, 1], [1, 2], [3, 3])])
    assert instants.tolist() == [1, 2, 3]
    assert buffers.tolist() == [3, 4, 0]
    assert queue.tolist() == [2, 2, 0]


def test_branches_that_end_in_another_order_are_places_apart(lemma_join) -> None:
    assert lemma_join.places_apart([np.array([1, 2, 3]), np.array([3, 1, 2])]) == 2
    assert lemma_join.places_apart([np.array([1, 2, 3]), np.array([4, 5, 6])]) == 0
