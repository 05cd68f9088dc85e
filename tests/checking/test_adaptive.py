"""Adaptive policies carry nearly all of the stability region's boundary where no fixed budget does."""

import dataclasses

import numpy as np
import pytest

import penstock as ps
from penstock.capacity.max_rate import max_rate

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
SERVER = ps.Server(TP1, 1024, 100, scope="batch", convention="paper")
LENGTHS = {"geometric": ps.Geometric, "constant": ps.Constant}

# Prompt and output tokens; the share of the boundary that the pool-controlled budget carries, geometric and constant.
POINTS = {
    (144, 990): (0.999, 0.999),  # middle of CD
    (290, 990): (0.991, 0.999),  # C
    (740, 990): (0.986, 0.984),  # a quarter of CB
    (1516, 990): (0.989, 0.986),  # middle of CB
    (9250, 990): (0.994, 0.996),  # B
}


def at_the_boundary(point: tuple[int, int], lengths: str) -> ps.Workload:
    prompt, output = point
    bound = ps.region(SERVER, prompt=prompt, output=output).max_rate
    return ps.Workload.poisson(bound, LENGTHS[lengths](prompt), LENGTHS[lengths](output))


def stable_share(point: tuple[int, int], lengths: str, policy: str) -> float:
    """Return the share of the boundary at which the policy turns unstable, within 0.2%."""
    workload = at_the_boundary(point, lengths)
    found = max_rate(workload, SERVER.with_policy(policy), precision=0.004)
    return float(np.sqrt(found.rate * found.above)) / workload.rate


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["maxweight", "maxweight-tokens", "priced"])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("point", POINTS)
def test_maxweight_and_priced_carry_the_whole_boundary(point: tuple[int, int], lengths: str, policy: str) -> None:
    assert stable_share(point, lengths, policy) >= 0.995


@pytest.mark.slow
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("point", POINTS)
def test_the_pool_controlled_budget_carries_98_percent_of_it(point: tuple[int, int], lengths: str) -> None:
    found = stable_share(point, lengths, "pool-controlled")
    assert found >= 0.98
    assert found == pytest.approx(POINTS[point][list(LENGTHS).index(lengths)], abs=0.01)


@pytest.mark.parametrize(
    ("policy", "budget", "verdict"),
    [
        ("maxweight", 1024, "stable"),
        ("maxweight-tokens", 1024, "stable"),
        ("pool-controlled", 1024, "stable"),
        ("priced", 1024, "stable"),
        ("sarathi", 128, "unstable"),
        ("sarathi", 1024, "unstable"),
    ],
)
def test_near_the_middle_of_cb_adaptive_policies_are_stable_and_sarathi_at_a_fixed_budget_is_not(
    policy: str, budget: int, verdict: str
) -> None:
    workload = at_the_boundary((1516, 990), "geometric")
    server = dataclasses.replace(SERVER.with_policy(policy), token_budget=budget)
    assert ps.verdict(workload.with_rate(0.97 * workload.rate), server).verdict == verdict


def test_near_c_priced_batches_have_prompts_wait_for_less_time_and_requests_end_no_later() -> None:
    """At 0.93 of the boundary, the end of prefill yielding the first token; five seeds, of which none is against it."""
    workload = at_the_boundary((290, 990), "geometric")
    times = {}
    for policy in ("priced", "pool-controlled"):
        server = dataclasses.replace(SERVER.with_policy(policy), convention="engine")
        runs = [ps.simulate(workload.with_rate(0.93 * workload.rate).with_seed(seed), server, requests=30_000).requests
                for seed in range(5)]  # fmt: skip
        times[policy] = np.array([
            [float((run[end] - run["arrival_ns"]).mean()) / 1e9 for end in ("first_token_ns", "finish_ns")]  # type: ignore[arg-type]
            for run in runs
        ])  # fmt: skip
    assert (times["priced"] < times["pool-controlled"]).all()
    assert times["priced"][:, 0].mean() < 3.5


def at_the_boundary_of_a_rough_table(seed: int) -> tuple[ps.Workload, ps.Server]:
    """Draw batch times with noise of 20% at up to 250 loads, limits, and lengths; prompts are longer than a batch."""
    rng = np.random.default_rng(seed)
    budget = int(rng.integers(300, 1_500))
    loads = np.unique(np.r_[1, rng.integers(2, budget, int(rng.integers(40, 250))), budget])
    seconds = (0.02 + 2e-4 * loads) * np.exp(rng.normal(0, 0.2, loads.size))
    server = ps.Server(ps.Measured(loads, seconds), budget, int(rng.integers(20, 120)), "maxweight", "batch", "paper")
    prompt, output = (ps.Geometric(float(rng.integers(low, 2_000)), max=16_000) for low in (budget, 30))
    return ps.Workload.poisson(ps.region(server, prompt=prompt, output=output).max_rate, prompt, output), server


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 40))])
def test_maxweight_carries_nine_tenths_of_a_rough_table_or_more(seed: int) -> None:
    """All but a tenth: where fewer tokens take longer, the last piece of a prompt costs some 5% at two of the forty."""
    workload, server = at_the_boundary_of_a_rough_table(seed)
    assert ps.verdict(workload.with_rate(0.9 * workload.rate), server).verdict == "stable"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompt", "output", "budget", "slots"),
    [(2000, 200, 1024, 64), (500, 200, 512, 64), (1516, 990, 1024, 100), (1000, 100, 2048, 128)],
)
def test_where_the_limit_counts_running_requests_maxweight_carries_less_than_a_controlled_pool(
    prompt: int, output: int, budget: int, slots: int
) -> None:
    server = ps.Server(TP1, budget, slots)
    lengths = ps.Geometric(prompt, max=8 * prompt), ps.Geometric(output, max=8 * output)
    workload = ps.Workload.poisson(0.97 * ps.region(server, prompt=lengths[0], output=lengths[1]).max_rate, *lengths)
    assert ps.verdict(workload, server.with_policy("pool-controlled")).verdict == "stable"
    assert ps.verdict(workload, server.with_policy("maxweight")).verdict == "unstable"


def test_a_prompt_that_is_cut_short_costs_a_slot_and_maxweight_fills_the_budget_all_the_same() -> None:
    """A backlog at C: batches of 29 prefill and 99 decode tokens, or 30 and 98 of two prompts, but never room left."""
    run = ps.simulate(
        ps.Workload.poisson(4.0, ps.Geometric(290), ps.Geometric(990), seed=1),
        SERVER.with_policy("maxweight"),
        requests=4_000,
        record="batches",
        drain=False,
    )
    tokens, requests = run.batch_rows[2_000:, 2:4].sum(axis=1), run.batch_rows[2_000:, 4]
    with_prompts = run.batch_rows[2_000:, 2] > 0
    assert (requests[with_prompts] == 100).mean() > 0.99
    assert (tokens[with_prompts] % 128 == 0).mean() > 0.97
