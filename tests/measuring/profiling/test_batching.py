"""Batches formed request by request are those of the simulator, and are told with all that their time depends on."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.measuring.profiling.batching import Batching

POLICIES = ["sarathi", "orca", "vllm-vanilla", "fastertransformer"]
TIME = ps.Affine(c=1.0, a=0.0)

lengths = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 12)), min_size=1, max_size=25)


@settings(max_examples=40)
@given(lengths, st.sampled_from(POLICIES), st.integers(1, 40), st.sampled_from([None, 1, 3, 8]))
def test_each_batch_is_the_simulators(
    requests: list[tuple[int, int]], policy: str, budget: int, slots: int | None
) -> None:
    prompt, output = np.array(requests).T
    run = ps.simulate(
        ps.Workload.from_arrays(np.zeros(len(requests)), prompt, output),
        ps.Server(TIME, budget, slots, policy=policy),
        record="batches",
    )
    batching = Batching(policy, budget, slots)
    for number, (before, after) in enumerate(requests):
        batching.add(number, before, after)
    found = []
    while batching.busy:
        found.append(batching.next_batch().sums[:3])
    assert found == run.batches.select("prefill_tokens", "decode_tokens", "requests").rows()


@given(lengths, st.sampled_from(POLICIES), st.integers(1, 40))
def test_every_request_gets_its_prompt_and_its_tokens_and_leaves_once(
    requests: list[tuple[int, int]], policy: str, budget: int
) -> None:
    batching = Batching(policy, budget)
    for number, (prompt, output) in enumerate(requests):
        batching.add(number, prompt, output)
    prefilled, tokens, left = np.zeros(len(requests)), np.zeros(len(requests)), []
    while batching.busy:
        batch = batching.next_batch()
        for request, new, before in batch.prefill:
            assert before == prefilled[request]
            prefilled[request] += new
        for request, before in batch.decode:
            assert before == requests[request][0] + tokens[request] - 1
        for request in batch.puts_out:
            tokens[request] += 1
        left += batching.left
    assert prefilled.tolist() == [prompt for prompt, _ in requests]
    assert tokens.tolist() == [output for _, output in requests]
    assert sorted(left) == list(range(len(requests)))


def test_the_sums_of_a_batch_are_those_of_appendix_a() -> None:
    batching = Batching("sarathi", 10)
    batching.add(0, 4, 5)
    batching.next_batch()
    batching.add(1, 12, 1)
    assert batching.next_batch().sums == (9, 1, 2, 81, 0, 4)
    assert batching.next_batch().sums == (3, 1, 2, 9, 27, 5)


@pytest.mark.parametrize("policy", ["maxweight", "vllm"])
def test_a_policy_that_looks_further_is_refused_in_one_line(policy: str) -> None:
    with pytest.raises(ps.InputError, match="take sarathi"):
        Batching(policy, 128)
