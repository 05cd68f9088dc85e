"""The capacities of the policies are the rates at which simulated queues turn from finite to growing."""

import pytest

import penstock as ps
from penstock.system.batch_time import BatchTime
from tests.own_policies import own_policy
from tests.policy_capacities import (
    fastertransformer_capacity,
    policy_capacity,
    vanilla_vllm_capacity,
    work_conserving_capacity,
)

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
BUDGETS = [512, 1024, 2048, 4096]
WITH_A_CAPACITY = ["fastertransformer", "vllm-vanilla", "sarathi"]


def growth(server: ps.Server, rate: float, prompt: int, output: int, requests: int) -> float:
    """Growth of the backlog over the second half of a run, as a share of what arrives."""
    workload = ps.Workload.poisson(rate, prompt, output)
    run = ps.simulate(workload, server, requests=requests, record="summary", drain=False)
    return run.growth_tokens_per_s / (rate * server.tokens_per_request(prompt, output))


@pytest.mark.parametrize(
    ("policy", "published"),
    [
        ("fastertransformer", (0.74, 1.44, 2.73, 4.97)),
        ("vllm-vanilla", (None, 11.4, 12.4, 13.2)),
        ("orca", (13.87, 14.40, 14.68, 14.83)),
    ],
)
def test_figure_1_has_the_capacities_that_were_checked(policy: str, published: tuple[float | None, ...]) -> None:
    for budget, rate in zip(BUDGETS, published, strict=True):
        if rate is not None:
            server = ps.Server(TP1, budget, policy=policy, convention="paper")
            one_digit = 0.1 if policy == "vllm-vanilla" else 0.0075
            assert policy_capacity(server, prompt=129, output=112) == pytest.approx(rate, abs=one_digit)


def test_vanilla_vllm_carries_a_little_more_at_512_tokens_than_the_notes_say() -> None:
    """10.69 requests/s instead of 10.5: at 10.55 the simulated backlog is level, at 10.85 it grows."""
    server = ps.Server(TP1, 512, policy="vllm-vanilla", convention="paper")
    assert vanilla_vllm_capacity(server, prompt=129, output=112) == pytest.approx(10.69, abs=0.01)
    assert abs(growth(server, 10.55, 129, 112, 400_000)) < 0.002
    assert growth(server, 10.85, 129, 112, 400_000) > 0.01


@pytest.mark.parametrize("convention", ["paper", pytest.param("engine", marks=pytest.mark.slow)])
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("policy", WITH_A_CAPACITY)
def test_the_backlog_is_level_just_below_the_capacity_and_grows_just_above(
    policy: str, budget: int, convention: str
) -> None:
    server = ps.Server(TP1, budget, policy=policy, convention=convention)  # type: ignore[arg-type]
    capacity = policy_capacity(server, prompt=129, output=112)
    requests = 60_000 if policy == "fastertransformer" else 400_000
    assert abs(growth(server, 0.975 * capacity, 129, 112, requests)) < 0.006
    assert growth(server, 1.025 * capacity, 129, 112, requests) > 0.01


@pytest.mark.parametrize(
    ("prompt", "output", "budget", "model"),
    [
        (129, 12, 512, TP1),
        (129, 12, 300, TP1),
        (10, 100, 1024, TP1),
        (128, 50, 512, TP1),
        (3000, 20, 512, TP1),
        (129, 112, 512, ps.Affine(0.01, 3e-4)),
    ],
)
@pytest.mark.parametrize("policy", ["fastertransformer", "vllm-vanilla"])
def test_so_it_does_for_other_lengths_budgets_and_batch_times(
    policy: str, prompt: int, output: int, budget: int, model: BatchTime
) -> None:
    server = ps.Server(model, budget, policy=policy)
    capacity = policy_capacity(server, prompt=prompt, output=output)
    assert abs(growth(server, 0.975 * capacity, prompt, output, 100_000)) < 0.006
    assert growth(server, 1.025 * capacity, prompt, output, 100_000) > 0.01


@pytest.mark.parametrize("convention", ["paper", "engine"])
@pytest.mark.parametrize("budget", [100, pytest.param(129, marks=pytest.mark.slow), 512])
@pytest.mark.parametrize(("prompt", "output"), [(1, 30), (129, 112), (129, 1), (900, 2), (33.3, 44.4)])
def test_no_policy_carries_more_than_the_best_batch_allows(
    prompt: float, output: float, budget: int, convention: str
) -> None:
    server = ps.Server(TP1, budget, convention=convention)  # type: ignore[arg-type]
    limit = TP1.capacity(budget) / server.tokens_per_request(prompt, output)
    for policy in WITH_A_CAPACITY:
        found = policy_capacity(server.with_policy(policy), prompt=prompt, output=output)
        assert 0 < found <= limit * (1 + 1e-9)


def test_the_work_conserving_capacity_is_where_the_load_reaches_1() -> None:
    server = ps.Server(TP1, 1024)
    capacity = work_conserving_capacity(server, prompt=129, output=112)
    assert ps.certify(ps.Workload.poisson(capacity, 129, 112), server).rho == pytest.approx(1, rel=1e-12)


def test_where_the_last_prefill_yields_the_only_token_all_policies_serve_prompts_alone() -> None:
    server = ps.Server(TP1, 1024, convention="engine")
    expected = 1024 / float(TP1(1024)) / 129
    for policy in WITH_A_CAPACITY:
        assert policy_capacity(server.with_policy(policy), prompt=129, output=1) == pytest.approx(expected)


def test_an_engine_decodes_once_less_than_the_paper() -> None:
    paper, engine = (ps.Server(TP1, 1024, convention=name) for name in ("paper", "engine"))  # type: ignore[arg-type]
    for capacity in (work_conserving_capacity, fastertransformer_capacity, vanilla_vllm_capacity):
        assert capacity(engine, prompt=129, output=113) == pytest.approx(capacity(paper, prompt=129, output=112))


@own_policy
def unlabelled(queue, limits, params):  # type: ignore[no-untyped-def]
    return queue.prompt_tokens, queue.decoding, ps.DECODE_FIRST


@pytest.mark.parametrize(
    ("server", "prompt", "output", "says"),
    [
        (ps.Server(TP1, 512, 100), 129, 112, "the max batch size is 100"),
        (ps.Server(TP1, 512), 0, 112, "the prompt is 0"),
        (ps.Server(TP1, 512), 129, float("nan"), "the output is nan"),
        (ps.Server(TP1, 512, policy=unlabelled), 129, 112, "no capacity is known for the policy 'unlabelled'"),
        (ps.Server(TP1, 2**20, policy="vllm-vanilla"), 1, 2, "simulate instead"),
    ],
)
def test_bad_input_is_told_in_one_line_with_the_value(
    server: ps.Server, prompt: float, output: float, says: str
) -> None:
    with pytest.raises(ps.InputError, match=says) as error:
        policy_capacity(server, prompt=prompt, output=output)
    assert "\n" not in str(error.value)


def test_a_policy_of_ones_own_by_the_name_of_a_papers_has_not_its_capacity() -> None:
    namesake = ps.policy(name="fastertransformer")(unlabelled.function)
    with pytest.raises(ps.InputError, match="no capacity is known"):
        policy_capacity(ps.Server(TP1, 512, policy=namesake), prompt=129, output=112)
