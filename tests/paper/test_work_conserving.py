"""What waited before a batch, held against the audit, and the systems that are audited."""

import math

import pytest

import penstock as ps
from paper.small_systems import random_systems, small_systems
from paper.waiting import waiting


@pytest.mark.parametrize("policy", ["fastertransformer", "vllm-vanilla", "orca", "sarathi"])
def test_what_waited_agrees_with_the_audit(policy):
    for system in random_systems(systems=40, requests=12, tokens=30, gap=8, token_budget=40, seed=5):
        run = system.run(policy)
        assert waiting(run)["short"].sum() == ps.audit(run).paper.breaches


def test_what_waited_is_what_one_counts_by_hand():
    """Prompts of 4 and 3 tokens at 0 and of 6 at 1, batches of 8 tokens, decodes first."""
    workload = ps.Workload.from_arrays([0, 0, 1], [4, 3, 6], [3, 3, 2])
    server = ps.Server(ps.Affine(c=1.0, a=0.0), 8, policy="sarathi", convention="paper")
    table = waiting(ps.simulate(workload, server, record="allocations", tick_s=1.0))
    columns = ("prefill_tokens", "decode_tokens", "prompt_tokens_waiting", "decodes_waiting", "resumes")
    assert table.select(columns).rows() == [
        (7, 0, 7, 0, False),
        (6, 2, 6, 2, False),
        (0, 3, 0, 3, False),
        (0, 3, 0, 3, False),
    ]


@pytest.mark.parametrize(("requests", "tokens", "gap"), [(3, 7, 2), (2, 6, 3), (30, 5, 1)])
def test_small_systems_come_smallest_first_once_and_all(requests, tokens, gap):
    systems = list(small_systems(requests, tokens, gap))
    sizes = [(len(s.arrival), sum(s.prompt) + sum(s.output)) for s in systems]
    assert sizes == sorted(sizes)
    assert len(set(systems)) == len(systems) == sum(
        total * (gap + 1) ** (n - 1) * math.comb(total - 1, 2 * n - 1)
        for n in range(1, requests + 1)
        for total in range(2 * n, tokens + 1)
    )  # fmt: skip
