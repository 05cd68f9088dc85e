"""The highest stable rate agrees with theory where theory knows it, and with the notes where simulation found it."""

import numpy as np
import pytest

import penstock as ps
from penstock.capacity.max_rate import max_rate
from tests.policy_capacities import policy_capacity, work_conserving_capacity

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
FIGURE_1 = ps.Workload.poisson(14.0, 129, 112)


@pytest.mark.parametrize("policy", ps.POLICIES)
@pytest.mark.parametrize("budget", [512, *(pytest.param(b, marks=pytest.mark.slow) for b in (1024, 2048)), 4096])
def test_the_capacities_of_figure_1_come_out_of_simulation(budget: int, policy: str) -> None:
    server = ps.Server(TP1, budget, policy=policy, convention="paper")
    found = max_rate(FIGURE_1, server)
    # These choose the budget, so no theorem gives their capacity; they reach that of a work-conserving policy
    chooses = policy == "priced" or policy.startswith("maxweight")
    capacity = work_conserving_capacity if chooses else policy_capacity
    assert found.rate == pytest.approx(capacity(server, prompt=129, output=112), rel=0.02)
    assert found.rate <= found.above <= found.rate * 1.0101
    assert found.rate <= found.bound
    assert found.trials or found.known.startswith("Theorem 1(b)")


def test_every_rate_is_judged_and_the_two_around_the_limit_are_told_apart() -> None:
    found = max_rate(FIGURE_1, ps.Server(TP1, 1024, policy="vllm-vanilla"), precision=0.05)
    outcomes = {trial.rate: trial.stability.verdict for trial in found.trials}
    assert outcomes[found.rate] == "stable"
    assert outcomes[found.above] != "stable"
    assert found.as_dict()["share"] == pytest.approx(found.rate / found.bound)


# Stable share of the boundary of the region at b_max 1024, k_max 100, of Sarathi at a budget of 128, 256, 1024.
POINTS = {
    (144, 990): (0.999, 0.921, 0.909),  # middle of CD
    (290, 990): (0.971, 0.871, 0.849),  # C
    (740, 990): (0.936, 0.929, 0.881),  # a quarter of CB
    (1516, 990): (0.881, 0.984, 0.919),  # middle of CB
    (9250, 990): (0.789, 0.896, 0.996),  # B
}


def stable_share(prompt: int, output: int, budget: int, precision: float) -> float:
    whole = ps.Server(TP1, 1024, 100, convention="paper", scope="batch")
    bound = ps.region(whole, prompt=prompt, output=output).max_rate
    workload = ps.Workload.poisson(bound, ps.Geometric(prompt), ps.Geometric(output))
    server = ps.Server(TP1, budget, 100, convention="paper", scope="batch")
    found = max_rate(workload, server, precision=precision)
    return float(np.sqrt(found.rate * found.above)) / bound


@pytest.mark.slow
@pytest.mark.parametrize("budget", [128, 256, 1024])
@pytest.mark.parametrize("point", POINTS)
def test_sarathi_at_a_fixed_budget_carries_its_share_of_the_boundary(point: tuple[int, int], budget: int) -> None:
    noted = POINTS[point][(128, 256, 1024).index(budget)]
    assert stable_share(*point, budget, 0.004) == pytest.approx(noted, abs=0.01)


def test_at_vertex_c_a_larger_budget_carries_less() -> None:
    small, large = (stable_share(290, 990, budget, 0.01) for budget in (128, 1024))
    assert large < small - 0.1


def test_a_precision_that_cannot_be_had_is_refused() -> None:
    with pytest.raises(ps.InputError, match="the precision"):
        max_rate(FIGURE_1, ps.Server(TP1, 1024), precision=0)


def decodes_first(queue, limits, params):  # type: ignore[no-untyped-def]
    """Do as sarathi, in a function of one's own, of which nothing is proved."""
    decode = min(queue.decoding, limits.batch_size, limits.token_budget)
    return min(queue.prompt_tokens, limits.token_budget - decode), decode, ps.DECODE_FIRST


def test_what_is_proved_is_the_highest_rate_and_is_not_simulated() -> None:
    server = ps.Server(TP1, 512)
    found = max_rate(ps.Workload.poisson(1.0, ps.Geometric(129, max=1000), 112), server)
    assert (found.rate, found.known) == (found.certificate.certified_rate, "Theorem 1(b)")
    assert (found.above, found.trials) == (found.bound, ())


@pytest.mark.parametrize(
    "server",
    [
        ps.Server(TP1, 1024, 100),
        ps.Server(TP1, 129),
        ps.Server(ps.Affine(0.01, 1e-4), 256, 512, "vllm", policy_params={"max_model_len": 100}),
        ps.Server(TP1, 512, policy=ps.Policy("claimed", decodes_first, work_conserving=True)),
    ],
)
def test_no_highest_rate_is_below_what_a_theorem_certifies(server: ps.Server) -> None:
    found = max_rate(ps.Workload.poisson(1.0, 50, ps.Geometric(150, max=1000)), server, precision=0.05)
    certified = found.certificate.certified_rate
    assert certified is not None
    assert certified <= found.rate <= found.above
    assert certified < found.rate or found.known == found.certificate.theorem


def test_what_is_taken_on_trust_is_tried() -> None:
    """A policy that claims to fill its batches, and serves half of them, carries what the test finds."""

    @ps.policy(work_conserving=True)
    def half(queue, limits, params):  # type: ignore[no-untyped-def]
        decode = min(queue.decoding, limits.token_budget // 2)
        return min(queue.prompt_tokens, limits.token_budget // 2 - decode), decode, ps.DECODE_FIRST

    found = max_rate(ps.Workload.poisson(1.0, 129, 112), ps.Server(TP1, 512, policy=half), precision=0.05)
    assert found.rate < found.certificate.certified_rate
    assert found.known == "simulation"
    assert found.disagreement


def test_the_length_of_runs_that_judge_targets_plays_no_part_without_targets() -> None:
    """A scenario may ask more requests of `simulate` than its recording has."""
    recorded = ps.Workload.from_arrays(np.arange(50.0), np.full(50, 100), np.full(50, 10))
    server = ps.Server(ps.Affine(0.01, 1e-4), 512)
    assert ps.max_rate(recorded, server, requests=3000).rate == ps.max_rate(recorded, server).rate
    with pytest.raises(ps.InputError, match="has 50"):
        ps.max_rate(recorded, server, requests=3000, targets=["ttft_p99<1s"])
