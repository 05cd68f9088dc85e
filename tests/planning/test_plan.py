"""The plan is the one that simulating every deployment gives, and accounts for each of them."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as some

import penstock as ps
from penstock.errors import InputError
from penstock.planning.aim import Aim
from penstock.planning.evaluate import Evaluation, evaluate
from penstock.planning.plan import Plan, plan
from penstock.planning.scenario import read_plan
from penstock.planning.space import Space, search_space

TRACES = Path(__file__).parents[2].parent / "shared" / "data" / "traces"
HARDWARE = [f"codellama-34b-a100-tp{degree}" for degree in (1, 2, 4)]
SMALL = ps.Server(ps.Affine(c=0.01, a=1e-4), token_budget=256)


def azure(name: str, rate: float) -> ps.Workload:
    path = TRACES / f"azure_llm_2023_{name}.csv"
    if not path.exists():
        pytest.skip(f"no {path.name} in shared/data/traces beside the repository")
    return ps.read_trace(path).with_rate(rate, arrivals="poisson")


def exhaustive(workload: ps.Workload, space: Space, aim: Aim) -> Evaluation | None:
    """Simulate every deployment; the least of those that do, by cost, latency of the first target, name."""
    found = [evaluate(workload, deployment, aim) for deployment in space]
    return min(
        (e for e in found if e.answer == "met"),
        key=lambda e: (e.deployment.cost, e.estimates[0].value, e.deployment.name), default=None,
    )  # fmt: skip


def assert_same(found: Plan, best: Evaluation | None) -> None:
    if best is None:
        assert found.best is None
        assert found.unreachable is not None
    else:
        assert found.best is not None
        assert found.best.deployment.name == best.deployment.name
        assert found.best.estimates == best.estimates


def assert_accounted(found: Plan, space: Space) -> None:
    impossible = sum(each.count for each in space.refused)
    assert found.simulations + sum(each.count for each in found.discarded) - impossible == len(space) == found.space


@pytest.mark.parametrize(
    ("trace", "rate", "targets"),
    [
        pytest.param("code", 12.0, ["ttft_p90<1.5s"], marks=pytest.mark.slow),
        ("conv", 6.0, ["tbt_p99<100ms", "ttft_p99<2s"]),
    ],
)
def test_pruning_finds_what_simulating_everything_finds(trace: str, rate: float, targets: list[str]) -> None:
    """On the Azure traces with the paper's presets, with at most a tenth of the simulations."""
    workload = azure(trace, rate)
    server = ps.Server(ps.hardware(HARDWARE[0]).batch_time, 512)
    space = search_space(server, hardware=HARDWARE, token_budget=[512, 1024], replicas=24, price={"a100": 2.0})
    aim = Aim.of(targets, requests=1_000, most_requests=4_000)
    found = plan(workload, space, aim=aim)
    assert_same(found, exhaustive(workload, space, aim))
    assert_accounted(found, space)
    assert found.best is not None
    assert found.simulations <= len(space) / 10


@pytest.mark.slow
@pytest.mark.parametrize("trace", ["code", "conv"])
@pytest.mark.parametrize(
    ("rate", "targets", "objective"),
    [
        (4.0, ["ttft_p99<3s"], "cost"), (10.0, ["e2e_p90<15s", "ttft_mean<1s"], "cost"),
        (20.0, ["tbt_p99<150ms", "ttft_p99<2s"], "cost"), (10.0, ["ttft_p99<300ms"], "cost"),
        (10.0, ["ttft_p99<1s", "tbt_p99<90ms"], "goodput"),
    ],
)  # fmt: skip
def test_pruning_finds_the_same_with_more_kinds_of_deployment(
    trace: str, rate: float, targets: list[str], objective: str
) -> None:
    """Policies and token budgets on the Azure traces, with at most a tenth of the simulations."""
    workload = azure(trace, rate)
    server = ps.Server(ps.hardware(HARDWARE[0]).batch_time, 512)
    space = search_space(server, hardware=HARDWARE, token_budget=[256, 1024], policy=["sarathi", "orca"], replicas=24)
    aim = Aim.of(targets, objective=objective, goodput=0.95, requests=1_000, most_requests=16_000)
    found = plan(workload, space, aim=aim)
    assert_same(found, exhaustive(workload, space, aim))
    assert_accounted(found, space)
    assert found.simulations <= len(space) / 10


@settings(max_examples=2, phases=[Phase.explicit, Phase.generate])  # each takes seconds: no shrinking
@given(
    rate=some.floats(1, 40),
    prompt=some.integers(20, 800),
    output=some.integers(5, 200),
    faster=some.floats(0.3, 0.9),
    price=some.sampled_from([1.0, 1.5, 2.0]),
    budgets=some.lists(some.sampled_from([128, 256, 512]), min_size=1, max_size=2, unique=True),
    policies=some.lists(some.sampled_from(["sarathi", "orca", "vllm"]), min_size=1, max_size=2, unique=True),
    router=some.sampled_from(["random", "round-robin"]),
    limit=some.floats(0.05, 3),
    metric=some.sampled_from(["ttft_p99", "ttft_mean", "e2e_p90"]),
    objective=some.sampled_from(["cost", "goodput"]),
)
def test_pruning_finds_the_same_in_small_spaces(
    rate: float, prompt: int, output: int, faster: float, price: float, budgets: list[int], policies: list[str],
    router: str, limit: float, metric: str, objective: str,
) -> None:  # fmt: skip
    """Whatever arrives and whatever is asked for."""
    workload = ps.Workload.poisson(rate, ps.Geometric(prompt, max=4 * prompt), ps.Geometric(output, max=4 * output))
    slow = ps.Server(ps.Affine(c=0.01, a=1e-4), token_budget=256)
    quick = ps.Server(ps.Affine(c=0.01 * faster, a=1e-4 * faster), token_budget=256)
    both = [
        search_space(server, token_budget=budgets, policy=policies, router=[router], replicas=8, price=each)
        for server, each in ((slow, 1.0), (quick, price))
    ]
    aim = Aim.of([f"{metric}<{limit}s"], objective=objective, goodput=0.9, requests=200, most_requests=400)
    for space in both:
        found = plan(workload, space, aim=aim)
        assert_same(found, exhaustive(workload, space, aim))
        assert_accounted(found, space)


def test_the_answer_says_what_binds_and_what_comes_next() -> None:
    workload = ps.Workload.poisson(20.0, ps.Geometric(400, max=2_000), ps.Geometric(50, max=300))
    space = search_space(SMALL, token_budget=[128, 256, 512], replicas=16, price=3.0)
    found = plan(workload, space, ["ttft_p99<250ms"], requests=2_000)
    assert found.best is not None
    assert found.next_best is not None
    best = found.best.deployment
    fewer = evaluate(workload, best.with_replicas(best.replicas - 1), found.aim)
    assert fewer.answer != "met"
    assert found.binding.startswith(f"with {best.replicas - 1} replica")
    assert found.margins[0] == 1 - found.best.estimates[0].value / 0.25  # type: ignore[operator]
    assert found.next_best.answer == "met"
    assert found.next_best.deployment.cost >= best.cost
    assert found.best in found.frontier
    costs = [each.deployment.cost for each in found.frontier]
    latencies = [each.estimates[0].value for each in found.frontier]
    assert costs == sorted(costs)
    assert latencies == sorted(latencies, reverse=True)  # type: ignore[type-var]


def test_a_target_that_none_reaches_is_explained_with_the_nearest_value() -> None:
    """A decode takes 10.1 ms at least, so no fleet of any size has gaps of 5 ms."""
    workload = ps.Workload.poisson(5.0, 400, 50)
    space = search_space(SMALL, token_budget=[128, 256], replicas=64)
    found = plan(workload, space, ["tbt_p50<5ms"], requests=500)
    assert found.best is None
    assert found.unreachable is not None
    assert found.unreachable.target == "tbt_p50<0.005s"
    assert "at least 10.1 ms" in found.unreachable.why
    assert found.unreachable.nearest == pytest.approx(0.0101, rel=0.05)
    assert found.simulations == 1


def test_too_few_replicas_are_the_reason_where_more_would_do() -> None:
    workload = ps.Workload.poisson(40.0, ps.Geometric(400, max=2_000), ps.Geometric(50, max=300))
    few, many = (plan(workload, search_space(SMALL, replicas=n), ["ttft_p99<500ms"], requests=1_000) for n in (2, 32))
    assert few.best is None
    assert few.unreachable is not None
    assert few.unreachable.target == "stability"
    assert many.best is not None


def test_goodput_counts_the_requests_that_stay_within_all_limits() -> None:
    """Half of the prompts take 0.1 s and half 2 s and more: half of the requests can be within 1 s."""
    workload = ps.Workload.poisson(0.002, ps.Mixture([ps.Constant(100), ps.Constant(50_000)], [0.5, 0.5]), 10)
    space = search_space(SMALL, replicas=2)
    found = plan(workload, space, ["ttft_p99<1s"], objective="goodput", goodput=0.45, requests=2_000)
    assert found.best is not None
    assert found.best.goodput.value == pytest.approx(0.5, abs=0.03)
    assert found.best.judgements == ("missed",)
    unreached = plan(workload, space, ["ttft_p99<1s"], objective="goodput", goodput=0.6, requests=2_000)
    assert unreached.best is None
    assert unreached.unreachable is not None
    assert unreached.unreachable.nearest == pytest.approx(0.5, abs=0.03)


def test_routers_that_look_at_queues_need_no_more_replicas_than_chance() -> None:
    workload = ps.Workload.poisson(30.0, ps.Geometric(400, max=2_000), ps.Geometric(50, max=300))
    space = search_space(SMALL, router=["random", "jsq"], replicas=16)
    found = plan(workload, space, ["ttft_p99<400ms"], requests=1_000)
    assert found.best is not None
    assert found.best.deployment.router.name == "jsq"


def test_replicas_for_prompts_alone_keep_their_ratio() -> None:
    workload = ps.Workload.poisson(20.0, ps.Geometric(400, max=2_000), ps.Geometric(50, max=300))
    space = search_space(SMALL, disaggregation=["1:1", "2:1"], replicas=12)
    found = plan(workload, space, ["e2e_p90<3s"], requests=1_000)
    assert found.best is not None
    assert found.best.deployment.ratio in ((1, 1), (2, 1))
    assert_accounted(found, space)


@pytest.mark.parametrize(
    ("policy", "replicas", "target", "apart"),
    [("vllm", 3, "tbt_p99<30ms", True), *(pytest.param(name, 6, *target, marks=pytest.mark.slow)
     for name in ("sarathi", "vllm") for target in (("tbt_p99<100ms", False), ("tbt_p99<30ms", True)))],
)  # fmt: skip
def test_prefill_and_decode_apart_are_planned_beside_both_together_with_kv_memory(
    policy: str, replicas: int, target: str, apart: bool
) -> None:
    """The answer is that of simulating every split; short times between tokens ask for one."""
    rate = 20.0 * replicas / 6
    workload = ps.Workload.poisson(rate, ps.Geometric(400, max=2_000), ps.Geometric(50, max=300))
    server = ps.Server(SMALL.batch_time, 256, 64, policy=policy, kv_tokens=8_000)
    splits = [None, "1:1", "2:1", "1:2"]
    space = search_space(server, router=["jsq"], disaggregation=splits, replicas=replicas, transfer_ms_per_token=0.001)
    aim = Aim.of(["ttft_p95<1s", target], requests=500, most_requests=2_000)
    found = plan(workload, space, aim=aim)
    assert_same(found, exhaustive(workload, space, aim))
    assert_accounted(found, space)
    assert not any(each.by == "impossible" for each in found.discarded)
    assert found.best is not None
    assert (found.best.deployment.ratio is not None) == apart


@pytest.mark.parametrize("policy", ["sglang", *(pytest.param(n, marks=pytest.mark.slow) for n in ("sarathi", "vllm"))])
def test_engines_with_kv_memory_are_planned_behind_any_router(policy: str) -> None:
    """Every deployment is judged, by times between tokens and by any percentile, and the answer is that of all."""
    workload = ps.Workload.poisson(20.0, ps.Geometric(400, max=2_000), ps.Geometric(50, max=300))
    server = ps.Server(SMALL.batch_time, 256, 64, policy=policy, kv_tokens=4_000)
    space = search_space(server, router=["jsq", "tokens"], replicas=6)
    aim = Aim.of(["ttft_p95<1s", "tbt_p75<100ms"], requests=500, most_requests=2_000)
    found = plan(workload, space, aim=aim)
    assert found.best is not None
    assert_same(found, exhaustive(workload, space, aim))
    assert_accounted(found, space)
    assert not any(each.by == "impossible" for each in found.discarded)


def test_a_router_that_can_never_see_what_it_looks_for_is_named_and_left_out() -> None:
    workload = ps.Workload.poisson(20.0, ps.Geometric(400, max=2_000), ps.Geometric(50, max=300))
    space = search_space(SMALL, router=["prefix", "session", "memory", "jsq"], replicas=[2, 3])
    found = plan(workload, space, ["ttft_p95<1s"], requests=500)
    assert found.best is not None
    assert found.best.deployment.router.name == "jsq"
    reasons = [each.why for each in found.discarded if each.by == "impossible"]
    assert [reason.split(" of pool")[0] for reason in reasons] == ["router prefix", "router session", "router memory"]
    assert_accounted(found, space)
    # with one replica no router is asked; a family of which that is the smallest is refused as well
    space = search_space(SMALL, router=["prefix"], replicas=[1, 2])
    with pytest.raises(ps.InputError, match="no deployment can be judged: router prefix of pool"):
        plan(workload, space, ["ttft_p95<1s"], requests=500)


def test_where_kv_memory_is_too_small_for_any_policy_theory_discards() -> None:
    """A request holds its blocks for so many iterations, so fewer replicas have no room for all (Little's law)."""
    workload = ps.Workload.poisson(20.0, ps.Geometric(400, max=2_000), ps.Geometric(200, max=1_000))
    server = ps.Server(SMALL.batch_time, 512, policy="vllm", kv_tokens=4_000)
    space = search_space(server, router=["jsq"], replicas=[4, 12, 24])
    found = plan(workload, space, ["ttft_p95<20s"], requests=500)
    (theory,) = (each for each in found.discarded if each.by == "theory")
    assert theory.replicas == (4, 4)
    assert theory.why.startswith("KV memory (Nie, Si, Zhou; Little's law)")


def test_a_goodput_of_unusual_percentiles_is_known_behind_any_router() -> None:
    workload = ps.Workload.poisson(20.0, ps.Geometric(400, max=2_000), ps.Geometric(50, max=300))
    space = search_space(SMALL, router=["jsq"], replicas=8)
    found = plan(workload, space, ["tbt_p99<25ms", "ttft_p99.9<2s"], objective="goodput", goodput=0.9, requests=500)
    assert found.best is not None
    assert found.best.goodput.low >= 0.9  # type: ignore[operator]
    assert None not in found.as_dict()["margins"]


def test_the_same_seed_gives_the_same_plan() -> None:
    workload = ps.Workload.poisson(20.0, ps.Geometric(400, max=2_000), ps.Geometric(50, max=300))
    space = search_space(SMALL, replicas=[2, 4])
    first, second = (plan(workload, space, ["ttft_p99<500ms"], requests=500).as_dict() for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("targets", "wrong"),
    [([], "no target is given"), (["ttft_p99<2s", "ttft_p99<3s"], "two targets limit ttft_p99"), (["ttft"], "no '<'")],
)
def test_targets_that_cannot_be_used_are_refused_in_one_line(targets: list[str], wrong: str) -> None:
    with pytest.raises(InputError, match=wrong):
        plan(ps.Workload.poisson(1.0, 10, 10), search_space(SMALL), targets)


def test_a_deployment_that_cannot_be_judged_does_not_stop_the_plan() -> None:
    """A recording leaves nothing for one of many replicas: those are undecided, and no reason to give up."""
    recorded = ps.Workload.poisson(4.0, 300, 20).requests(60)
    few = "too few to see anything"
    workload = ps.Workload.from_arrays(recorded.arrival_s, recorded.prompt_tokens, recorded.output_tokens)
    found = plan(workload, search_space(SMALL, router=["round-robin"], replicas=[40, 50, 60]), ["ttft_mean<1s"])
    assert found.answer == "undecided"
    assert any(few in each.known_by for each in found.evaluated)
    assert not any(few in each.known_by for each in found.undecided), "longer runs would tell nothing of those"
    assert str(found).startswith("undecided: ")


def test_the_answer_is_a_sentence() -> None:
    workload = ps.Workload.poisson(10.0, ps.Geometric(300), ps.Geometric(50))
    found = plan(workload, search_space(SMALL, replicas=4), ["ttft_mean<1s"], requests=1_000, seed=5)
    assert found.best is not None
    assert str(found).startswith(f"{found.best.deployment.name}; ttft_mean<1s: ")
    assert found.workload.seed == 5


def test_what_no_replica_has_the_memory_for_is_said() -> None:
    workload = ps.Workload.poisson(10.0, ps.Constant(300), ps.Geometric(50, max=90))
    small, large = (ps.Server(SMALL.batch_time, 256, policy="vllm", kv_tokens=tokens) for tokens in (320, 9_000))
    both = search_space(small, router=["jsq"], replicas=[2, 3]).families
    both += search_space(dataclasses.replace(large, token_budget=512), router=["jsq"], replicas=[2, 3]).families
    found = plan(workload, Space(both), ["tbt_p99<1s"], requests=1_000)
    assert found.best is not None
    assert any("2 deployments are left out" in notice for notice in found.notices)
    with pytest.raises(InputError, match="no deployment can be judged: a request"):
        plan(workload, Space(both[:1]), ["tbt_p99<1s"], requests=1_000)


def test_memory_may_differ_by_hardware() -> None:
    server = ps.Server(ps.hardware(HARDWARE[0]).batch_time, 512, kv_tokens=1_000)
    space = search_space(server, hardware=HARDWARE[:2], kv_tokens={"tp1": 20_000, "tp2": 90_000}, replicas=1)
    assert [each.server.memory and each.server.memory.tokens for each in space] == [20_000, 90_000]
    with pytest.raises(InputError, match="no kv_tokens matches"):
        search_space(server, hardware=HARDWARE[:1], kv_tokens={"h100": 20_000})
    for wrong in ({"tp1": 20_000, "tp9": 5}, [1_000, 2_000], "20000", True, 3):
        with pytest.raises(InputError, match="kv_tokens") as error:
            search_space(server, hardware=HARDWARE[:1], kv_tokens=wrong)
        assert "\n" not in str(error.value)


def test_a_plan_for_an_engine_says_on_what_kv_memory_it_counts() -> None:
    preset = ps.hardware("llama-2-70b-a100-tp4")
    server = ps.Server(preset.batch_time, 2048, 256, policy="vllm", gpu=preset.gpu)
    space = ps.search_space(server, hardware=["llama-2-70b-a100-tp4"], replicas=1)
    workload = ps.Workload.poisson(0.2, 500, 100)
    found = ps.plan(workload, space, ["ttft_p99<60s"], requests=300)
    assert found.notices[0].startswith("KV memory holds about")


@pytest.mark.slow
def test_without_a_router_fleets_stand_behind_jsq_which_takes_fewer_replicas_than_chance() -> None:
    """Ten of Llama-3.1-70B on four H100 each; behind random it would be thirteen."""
    asked = read_plan(Path(__file__).parents[3] / "shared" / "data" / "user_cases" / "fleet.yaml")
    assert asked.aim is not None
    best = plan(asked.workload, asked.space, aim=asked.aim).best
    assert best is not None
    assert (best.deployment.replicas, best.deployment.router.name) == (10, "jsq")
