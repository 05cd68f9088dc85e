"""What a scheduler with a bounded window carries is what it earns against a backlog, in the prices of the exact region
(Theorem 3 of docs/theory/open-problem.md).
"""

import dataclasses

import numpy as np
import pytest

import penstock as ps

PROMPT, OUTPUT = ps.Geometric(17, max=80), ps.Geometric(11, max=60)
STEPS = ps.PiecewiseConstant(c=2.8e-3, a=1.1e-3, b0=16)
SERVER = ps.Server(STEPS, 64, 4, scope="batch", convention="paper")


def earned(server: ps.Server, seed: int, requests: int = 60_000) -> float:
    """Return the seconds' worth that a server with a backlog does in a second, at the prices of the exact region."""
    _, prompt, output, *_ = ps.Workload.poisson(1.0, PROMPT, OUTPUT, seed=seed).requests(requests)
    exact = ps.exact_region(server, prompt=PROMPT, output=OUTPUT)
    worth = exact.prompt_prices[prompt] + exact.decode_price * output
    backlog = ps.Workload.from_arrays(np.zeros(requests), prompt, output)
    ends = ps.simulate(backlog, server).requests["finish_ns"].to_numpy() * 1e-9
    middle = np.argsort(ends, kind="stable")[requests // 4 : -requests // 4]
    return float(worth[middle[1:]].sum() / (ends[middle[-1]] - ends[middle[0]]))


@pytest.mark.parametrize(
    ("policy", "budget", "given"),
    [("priced", 64, True), ("priced", 64, False), ("sarathi", 64, True), ("sarathi", 16, True), ("sarathi", 32, True)],
)
def test_a_policy_is_stable_below_what_it_earns_and_unstable_above(policy: str, budget: int, given: bool) -> None:
    """In times of the exact region, to within 2%; `priced` learns the mean lengths where they are not given."""
    server = dataclasses.replace(SERVER, policy=policy, token_budget=budget)
    if policy == "priced" and given:
        server = dataclasses.replace(server, policy_params=(PROMPT.mean, OUTPUT.mean))
    exact = ps.exact_region(server, prompt=PROMPT, output=OUTPUT)
    shares = np.array([earned(server, seed) for seed in range(3)])
    share = float(shares.mean())
    assert np.ptp(shares) < 0.01, "measured in prices, long requests and short ones make no difference"
    assert share < 1.005, "no batch earns more than its time"
    below, above = (
        ps.verdict(ps.Workload.poisson(times * share * exact.rate, PROMPT, OUTPUT), server, resolution=0.005).verdict
        for times in (0.98, 1.02)
    )
    assert (below, above) == ("stable", "unstable")
