"""Fleets of two kinds of GPU are planned as simulating every fleet plans them."""

import random

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as some

import penstock as ps
from penstock.errors import InputError
from penstock.planning.aim import Aim
from penstock.planning.day import plan_day
from penstock.planning.deployment import Deployment, Kind
from penstock.planning.evaluate import Evaluation, evaluate, network_of
from penstock.planning.launch import launch, launches
from penstock.planning.mixed_fleets import no_worse
from penstock.planning.plan import Plan, plan
from penstock.planning.rates import RateProfile
from penstock.planning.search import Search
from penstock.planning.space import Space, search_space
from penstock.planning.targets_at_rate import TargetsAtRate

PAIRS = [
    ("codellama-34b-a100-tp1", "codellama-34b-a100-tp2"), ("codellama-34b-a100-tp1", "codellama-34b-a100-tp4"),
    ("codellama-34b-a100-tp2", "codellama-34b-a100-tp4"),
    ("llama-2-70b-a100-tp4", "llama-2-70b-h100-tp4"),
    ("llama-3.1-8b-rtx4090-tp1", "llama-3.1-8b-rtxpro6000-tp1"),
]  # fmt: skip
ROUTERS = [name for name, router in ps.ROUTERS.items() if router.sends != "otherwise"]
FAST = (7, 15)
"""Spaces that are always planned; the others are slow together."""

OLD, NEW = PAIRS[0]
SERVER = ps.Server(ps.hardware(OLD).batch_time, 512)


def drawn_space(seed: int) -> tuple[ps.Workload, Space, Aim]:
    """Return a small space with two kinds of GPU, and what a fleet of it has to do."""
    rng = random.Random(seed)
    pair = PAIRS[seed % len(PAIRS)]
    prompt, output = rng.choice([200, 600, 1_200]), rng.choice([30, 100, 200])
    lengths = ps.Geometric(prompt, max=4 * prompt), ps.Geometric(output, max=4 * output)
    kinds = [ps.Server(ps.hardware(name).batch_time, 512) for name in pair]
    speeds = [server.full_batch_rate for server in kinds]
    degrees = [ps.hardware(name).tensor_parallel or 1 for name in pair]
    workload = ps.Workload.poisson(rng.uniform(0.6, 1.4) * sum(speeds) / (prompt + output), *lengths)
    fair = speeds[1] / degrees[1] / speeds[0] * degrees[0]  # what the second kind would be worth
    slots = rng.choice([None, 64]) if kinds[0].by_lines else 64
    space = search_space(
        ps.Server(kinds[0].batch_time, 512, slots), hardware=pair, mix=True,
        token_budget=rng.choice([[512], [256, 512]]), policy=[rng.choice(["sarathi", "vllm", "orca"])],
        router=[rng.choice(ROUTERS)], replicas=rng.choice([4, 5]),
        kv_tokens=rng.choice([None, {name: rng.choice([30_000, 90_000]) for name in pair}]),
        at_hand=rng.choice([None, {pair[0]: 2 * degrees[0]}, {pair[1]: degrees[1]}]),
        price={pair[0]: 1.0, pair[1]: rng.choice([0.8, 1.0, 1.3]) * fair},
    )  # fmt: skip
    limit = rng.choice([0.6, 1.5, 4.0])
    targets = [f"{rng.choice(['ttft_p90', 'ttft_p99', 'ttft_mean'])}<{limit}s", "tbt_p99<400ms"]
    return workload, space, Aim.of(targets[: rng.choice([1, 2])], requests=500, most_requests=2_000)


def exhaustive(workload: ps.Workload, space: Space, aim: Aim) -> Evaluation | None:
    """Simulate every deployment; the least of those that do, by cost, latency of the first target, name."""
    found = [evaluate(workload, deployment, aim) for deployment in space]
    return min(
        (e for e in found if e.answer == "met"),
        key=lambda e: (e.deployment.cost, e.estimates[0].value, e.deployment.name), default=None,
    )  # fmt: skip


def assert_same(found: Plan, best: Evaluation | None, space: Space) -> None:
    assert (found.best and found.best.deployment.name) == (best and best.deployment.name)
    if found.best is not None and best is not None:
        assert found.best.estimates == best.estimates
    impossible = sum(each.count for each in space.refused)
    assert found.simulations + sum(each.count for each in found.discarded) - impossible == len(space)


@pytest.mark.parametrize(
    "seed", [*FAST, *(pytest.param(n, marks=pytest.mark.slow) for n in range(20) if n not in FAST)]
)
def test_a_fleet_of_two_kinds_is_planned_as_simulating_every_fleet_plans_it(seed: int) -> None:
    workload, space, aim = drawn_space(seed)
    assert any(deployment.others for deployment in space)
    found = plan(workload, space, aim=aim)
    assert_same(found, exhaustive(workload, space, aim), space)
    assert found.simulations < len(space) / 1.5


@pytest.mark.slow  # test_plan.py compares splits of one kind each time, and fleets of two kinds are compared above
@pytest.mark.parametrize("policy", ["sarathi", "vllm"])
def test_prompts_and_decodes_on_different_hardware_are_planned_as_simulating_every_split_does(policy: str) -> None:
    workload = ps.Workload.poisson(4.0, ps.Geometric(800, max=3_000), ps.Geometric(60, max=240))
    server = ps.Server(ps.hardware(OLD).batch_time, 512, 64, policy=policy, kv_tokens=60_000)
    sides = set()
    for target in ("tbt_p95<80ms", "tbt_p95<40ms"):
        space = search_space(
            server, hardware=[OLD, NEW], router=["jsq"], disaggregation=["1:1", "2:1"], replicas=3, mix=True,
            transfer_ms_per_token=0.001,
        )  # fmt: skip
        aim = Aim.of(["ttft_p90<3s", target], requests=500, most_requests=1_000)
        found = plan(workload, space, aim=aim)
        assert_same(found, exhaustive(workload, space, aim), space)
        assert found.best is not None
        sides.add(tuple(kind.hardware for kind, _ in found.best.deployment.kinds))
    assert (NEW, OLD) in sides or (OLD, NEW) in sides


def test_more_slow_machines_may_harm_so_that_is_not_taken_for_granted() -> None:
    """Behind a router that tosses coins a slow machine gets its share, and one in four is more than p90 forgives."""
    slow, quick = (Kind(ps.Server(ps.hardware(name).batch_time, 512)) for name in (OLD, "codellama-34b-a100-tp4"))
    workload = ps.Workload.poisson(2.0, ps.Constant(400), ps.Constant(50))
    aim = Aim.of(["e2e_p90<2s"], requests=1_000, most_requests=2_000)
    alone = Deployment(quick.server, 3, router="random")
    beside = Deployment(quick.server, 3, router="random", other=slow, others=1)
    assert evaluate(workload, alone, aim).answer == "met"
    assert evaluate(workload, beside, aim).answer == "missed"


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("ordered", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_fewer_than_theory_allows_are_certified_unstable(router: str, ordered: bool) -> None:
    """The load that is worked out family by family is that of the certificate of the network."""
    workload = ps.Workload.poisson(30.0 if ordered else 150.0, ps.Geometric(600, max=2_400), ps.Geometric(100, max=400))
    pair = PAIRS[0] if ordered else PAIRS[4]
    server = ps.Server(ps.hardware(pair[0]).batch_time, 512)
    space = search_space(server, hardware=pair, router=[router], replicas=12, mix=True)
    search = Search(TargetsAtRate(workload, Aim.of(["ttft_mean<60s"])), space.families)
    mixed = [prospect for prospect in search.prospects if prospect.family.smallest.others]
    ruled_out = [prospect for prospect in mixed if prospect.least]
    assert ruled_out
    for prospect in ruled_out:
        assert prospect.why_not_fewer.startswith("parallel-server proposition for servers that differ: ")
        few = network_of(workload, prospect.family.at(prospect.family.counts[prospect.least - 1]))
        assert ps.certify(few).verdict == "unstable"
    for prospect in mixed if ordered and router != "round-robin" else ():
        enough = network_of(workload, prospect.family.at(prospect.family.counts[prospect.least]))
        assert ps.certify(enough).verdict != "unstable"


def test_a_mixed_space_holds_every_fleet_once_with_what_it_costs() -> None:
    space = search_space(SERVER, hardware=[OLD, NEW], replicas=4, mix=True, price={"tp1": 1.0, "tp2": 3.0})
    fleets = {tuple((kind.hardware, count) for kind, count in each.kinds): each for each in space}
    assert len(fleets) == len({each.name for each in space}) == len(space) == 4 + 4 + 6
    both = fleets[(NEW, 1), (OLD, 3)]
    assert (both.total_replicas, both.total_accelerators, both.cost) == (4, 5, 2 * 3.0 + 3 * 1.0)
    assert both.fleet == f"1 replica of {NEW} and 3 of {OLD} behind jsq"
    assert both.as_dict()["other"] | {"price": 1.0} == {
        "hardware": OLD, "kv_tokens": None, "replicas": 3, "accelerators": 3, "price": 1.0,
    }  # fmt: skip
    apart = search_space(SERVER, hardware=[OLD, NEW], disaggregation=["1:2"], replicas=3, mix=True)
    assert {each.fleet for each in apart if each.other} == {
        f"1 replica of {NEW} for prompts and 2 of {OLD} that decode behind jsq",
        f"1 replica of {OLD} for prompts and 2 of {NEW} that decode behind jsq",
    }


def test_each_kind_has_its_own_memory() -> None:
    memory = {"tp1": 16_000, "tp2": 64_000}
    space = search_space(SERVER, hardware=[OLD, NEW], replicas=[2], mix=True, kv_tokens=memory)
    (both,) = (each for each in space if each.others)
    assert both.limits.endswith(f"KV memory of 4,000 blocks of 16, 1,000 of these blocks on {OLD}")
    assert both.as_dict()["kv_tokens"] == 64_000
    assert both.as_dict()["other"]["kv_tokens"] == 16_000
    pool = network_of(ps.Workload.poisson(1.0, 100, 10), both).pools["pool"]
    assert [server.memory.tokens for server, _ in pool.servers if server.memory] == [64_000, 16_000]


def test_no_fleet_has_more_accelerators_than_are_at_hand() -> None:
    """Both kinds stand on A100s here, so they share what there is."""
    space = search_space(SERVER, hardware=[OLD, NEW], replicas=9, mix=True, at_hand={"a100": 5})
    used = [each.total_accelerators for each in space]
    assert max(used) == 5
    assert len(space) == 5 + 2 + 3 + 1
    few = search_space(SERVER, hardware=[OLD, NEW], replicas=9, at_hand={"tp2": 0})
    assert [each.why for each in few.refused] == [
        "no number of replicas is allowed, with 0 of tp2 at hand; allow others"
    ]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hardware": [OLD]}, "search.mix is true, but search.hardware has 1 name, so no two kinds can stand together"),
        ({"hardware": [OLD, "llama-2-70b-a100-tp4"]}, "run different models, and all replicas behind a router serve"),
        ({"at_hand": {"l40s": 4}}, "at_hand names 'l40s', which no hardware of the search takes"),
        ({"at_hand": {"a100": -1}}, "at_hand.a100 is -1"),
        ({"at_hand": 4}, "at_hand is 4, but must be accelerators by a part of the hardware's name"),
    ],
)
def test_what_cannot_be_mixed_is_refused_in_one_line(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        search_space(SERVER, **{"hardware": [OLD, NEW], "mix": True} | wrong)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_kinds_that_do_not_count_batches_alike_cannot_stand_together() -> None:
    by_load, by_contents = (
        Kind(ps.Server(ps.hardware(name).batch_time, 512)) for name in (OLD, "llama-2-70b-a100-tp4")
    )
    with pytest.raises(InputError, match="do not count the same"):
        Deployment(by_load.server, 1, other=by_contents, others=1)


@settings(max_examples=30)
@given(
    pair=some.sampled_from(PAIRS),
    prompts=some.lists(some.tuples(some.integers(1, 200), some.integers(0, 3_000)), max_size=4),
    decodes=some.lists(some.integers(1, 3_999), max_size=60),
)
def test_the_better_of_two_kinds_takes_no_longer_for_any_batch(
    pair: tuple[str, str], prompts: list[tuple[int, int]], decodes: list[int]
) -> None:
    prompts = prompts or [(10, 0)]
    servers = [ps.Server(ps.hardware(name).batch_time, 1_024) for name in pair]
    one, other = (server.batch_time.of_batch(prompts, decodes) for server in servers)
    if no_worse(servers[1], servers[0], 4_000):
        assert other <= one
    if no_worse(servers[0], servers[1], 4_000):
        assert one <= other


def test_memory_counts_for_which_kind_is_better() -> None:
    large, small = (ps.Server(SERVER.batch_time, 512, kv_tokens=tokens) for tokens in (90_000, 30_000))
    assert no_worse(SERVER, large, 4_000)
    assert no_worse(large, small, 4_000)
    assert not no_worse(small, large, 4_000)


def test_both_kinds_are_started_and_no_day_is_planned_for_them() -> None:
    space = search_space(SERVER, hardware=[OLD, NEW], router=["jsq"], replicas=[3], mix=True)
    fleet = next(each for each in space if each.others == 2)
    starts = launches(fleet)
    assert [(start.kind, start.replicas, start.accelerators) for start in starts] == [(NEW, 1, 2), (OLD, 2, 1)]
    names = {each["metadata"]["name"] for start in starts for each in yaml.safe_load_all(start.manifest)}
    assert len(names) == 2
    assert all("one router, jsq, stands before all 3 of the plan" in start.notes[0] for start in starts)
    with pytest.raises(InputError, match="each with a command of its own"):
        launch(fleet)
    with pytest.raises(InputError, match="a day is planned for one kind of replica"):
        plan_day(RateProfile([1.0, 2.0]), ps.Workload.poisson(2.0, 300, 30), fleet, ["ttft_p99<2s"])
