"""Networks side by side get the same jobs, and a difference comes with how sure it is."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.checking.batch_means import BATCHES, Batches
from penstock.checking.comparison import compare, compare_networks, compare_orders
from penstock.checking.differences import Sample, difference
from penstock.checking.variants import own_order, variants, with_limits, with_order, with_policy, with_router
from penstock.errors import InputError
from penstock.simulation.distribution import Distribution
from tests.network_examples import DESTABILISING, REVERSED, UNIT, rybko_stolyar

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
TICKS = st.integers(0, 10**6)


def single(server: ps.Server, rate: float = 2.0, replicas: int = 1, router: str = "jsq") -> ps.Network:
    workload = ps.Workload.poisson(rate, ps.Geometric(20, max=200), ps.Geometric(20, max=200), seed=1)
    return ps.Network.single(workload, server, replicas, router)


CHAT = ps.Workload.poisson(18.0, ps.Geometric(400, max=4000), ps.Geometric(200, max=2000), seed=3)
FLEET = ps.Network.single(CHAT, ps.Server(TP1, 512), replicas=4)


def sample(ticks: np.ndarray) -> Sample:
    return Sample(Batches.of([Distribution.of(part) for part in ticks.reshape(BATCHES, -1)]))


@given(st.lists(TICKS, min_size=BATCHES, max_size=BATCHES), TICKS, st.sampled_from(["mean", "p50", "p99"]))
@settings(max_examples=50, deadline=None)
def test_a_constant_more_in_every_sample_is_a_difference_without_doubt(
    ticks: list[int], more: int, statistic: str
) -> None:
    first = np.repeat(np.array(ticks, np.int64), 10)
    found = difference(sample(first + more), sample(first), statistic, 0.95, 1.0, np.inf)
    assert found.value is not None
    assert found.low is not None
    assert found.high is not None
    assert found.value == pytest.approx(more, abs=1e-6)
    assert found.low == pytest.approx(more, abs=1e-3)
    assert found.high == pytest.approx(more, abs=1e-3)


def test_intervals_hold_the_difference_of_queues_that_share_their_arrivals() -> None:
    """Two M/M/1 queues, the one 5% faster: sojourn times are exponential, so the truth is known."""
    rng = np.random.default_rng(3)
    count, runs, load, faster = 12_000, 40, 0.7, 0.95
    gaps = rng.exponential(1 / load, (count, runs))
    works = rng.exponential(1.0, (count, runs))
    waits = {1.0: np.zeros(runs), faster: np.zeros(runs)}
    sojourns: dict[float, list[np.ndarray]] = {pace: [] for pace in waits}
    before = np.zeros(runs)
    for gap, work in zip(gaps, works, strict=True):
        for pace in waits:
            waits[pace] = np.maximum(waits[pace] + before * pace - gap, 0)
            sojourns[pace].append(waits[pace] + work * pace)
        before = work
    slow, quick = (np.rint(np.array(of[2_000:]) * 1e6).astype(np.int64) for of in sojourns.values())
    rates = {pace: 1 / pace - load for pace in waits}
    for statistic, scale in (("mean", 1.0), ("p50", np.log(2))):
        truth = scale / rates[faster] - scale / rates[1.0]
        held = 0
        for run in range(runs):
            found = difference(sample(quick[:, run]), sample(slow[:, run]), statistic, 0.95, 1e-6, np.inf)
            assert found.low is not None
            assert found.high is not None
            held += found.low <= truth <= found.high
        assert held >= 0.85 * runs


def test_routers_are_compared_on_the_same_jobs_and_the_first_is_what_others_differ_from() -> None:
    networks = {name: with_router(FLEET, name) for name in ("random", "jsq")}
    found = compare_networks(networks, jobs=15_000, targets=["ttft_p99<1s", "e2e_mean<40s"])
    random, jsq = found.rows
    assert (random.network, jsq.network) == ("random", "jsq") == tuple(found.answers)
    assert found.first == "random"
    assert random.difference is None
    assert jsq.difference is not None
    for metric, statistics in jsq.difference.items():
        for name, more in statistics.items():
            one, other = jsq.latency[metric][name], random.latency[metric][name]
            assert more.value == pytest.approx(one.value - other.value)
    mean = jsq.difference["ttft_s"]["mean"]
    assert mean.high < 0  # jsq is better
    # far surer than the two intervals tell
    unpaired = jsq.latency["ttft_s"]["mean"].high - random.latency["ttft_s"]["mean"].low
    assert mean.high < unpaired
    assert 0 < random.goodput.value < jsq.goodput.value < 1
    requests = [answer.run.requests for answer in found.answers.values()]
    same = ["job", "prompt_tokens", "output_tokens"]
    assert requests[0].select(same).equals(requests[1].select(same))


def test_a_network_beside_itself_differs_by_nothing() -> None:
    found = compare_networks({"one": FLEET, "again": FLEET}, jobs=10_000)
    differences = {
        (more.value, more.low, more.high) for of in found.rows[1].difference.values() for more in of.values()
    }
    assert differences == {(0, 0, 0), (0, None, None)}, "of means and medians, and of a tail with too few"


def test_goodput_is_the_share_of_jobs_all_of_whose_calls_are_within_the_limits() -> None:
    workload = ps.Workload.poisson(10.0, ps.Geometric(100, max=600), ps.Geometric(40, max=400), seed=2)
    server = ps.Server(ps.Affine(0.02, 2e-4), 512)
    apart = ps.Workflow.disaggregated(workload, prefill="p", decode="d", transfer_ms=200)
    network = ps.Network({"p": ps.Pool(server), "d": ps.Pool(server)}, [apart])
    found = compare_networks({"apart": network}, jobs=3_000, targets=["ttft_p99<100ms", "tbt_p99<25ms"])
    rows = found.answers["apart"].run.requests.select("job", "prompt_tokens", "output_tokens", "arrival_ns",
                                                      "first_token_ns", "finish_ns")  # fmt: skip
    good = np.ones(3_000, bool)
    for job, prompt, output, ready, first, finish in rows.iter_rows():
        if prompt:
            good[job] &= first - ready <= 100e6
        else:  # the call before it made the first token
            good[job] &= finish - ready <= 25e6 * max(output, 1)
    used = good[found.warmup_jobs : found.warmup_jobs + found.jobs]
    (row,) = found.rows
    assert 0.05 < used.mean() < 0.95
    assert row.goodput.value == pytest.approx(used.mean())


def test_a_router_of_the_same_name_keeps_the_settings_of_its_pool() -> None:
    mine = ps.ROUTERS["session"].with_settings(spill=3)
    pool = ps.Pool(UNIT, 3, mine)
    session = [("chat", 50, 10)] * 2
    flow = ps.Workflow.chain("s", ps.Workload.poisson(1.0, 1, 1), session, context="reuse")
    network = ps.Network({"chat": pool}, [flow])
    assert with_router(network, "session").pools["chat"].router is mine
    assert with_router(network, "jsq").pools["chat"].router.name == "jsq"


def test_networks_without_the_same_jobs_are_refused() -> None:
    other = dataclasses.replace(FLEET, workflows=[ps.Workflow.single(ps.Workload.poisson(9, 10, 10, seed=4), "pool")])
    with pytest.raises(InputError, match="had other jobs"):
        compare_networks({"a": FLEET, "b": other}, jobs=1_500, resolution=0.1)
    with pytest.raises(InputError, match="have other stages"):
        compare_networks({"a": FLEET, "b": rybko_stolyar(0.5, REVERSED)}, jobs=100)
    for wrong in ({}, [FLEET], {"a": "jsq"}):
        with pytest.raises(InputError, match="network"):
            compare_networks(wrong, jobs=100)  # type: ignore[arg-type]


def test_a_policy_and_an_order_are_put_at_all_pools() -> None:
    assert with_policy(FLEET, "orca").pools["pool"].policy.name == "orca"
    assert with_order(FLEET, "hlpps").pools["pool"].order.name == "hlpps"


def test_orders_are_compared_on_the_same_jobs() -> None:
    network = rybko_stolyar(0.9, DESTABILISING)
    found = compare_orders(network, ["fcfs", "hlpps", "back-pressure"], jobs=2000).answers
    assert list(found) == ["fcfs", "hlpps", "back-pressure"]
    assert {answer.verdict for answer in found.values()} == {"stable"}
    arrivals = [answer.run.arrival for answer in found.values()]
    lengths = [answer.run.requests["output_tokens"] for answer in found.values()]
    assert all((each == arrivals[0]).all() for each in arrivals)
    assert all(each.equals(lengths[0]) for each in lengths)
    assert len({answer.workflows[0].e2e["mean"].value for answer in found.values() if answer.workflows[0].e2e}) == 3


def test_orders_may_be_named_and_given_pool_by_pool() -> None:
    network = rybko_stolyar(0.7, DESTABILISING)
    reversed_order = dict(zip(network.pools, map(ps.Order.priority, REVERSED), strict=True))
    orders = {"as it is": {}, "reversed": reversed_order, "one fcfs": {"one": "fcfs"}}
    found = compare_orders(network, orders, jobs=300).answers
    assert [answer.verdict for answer in found.values()] == ["unstable", "stable", "stable"]
    assert [pool.order for pool in found["one fcfs"].pools] == ["fcfs", "priority"]
    assert found["as it is"].as_dict() == ps.check(network, jobs=300).as_dict()
    assert own_order(network) == "priority"
    assert own_order(found["one fcfs"].network) == "fcfs, priority"


def test_another_order_leaves_the_rest_of_a_pool_as_it_is() -> None:
    network = single(ps.Server(TP1, 512), replicas=3, router="power-of-two")
    changed = with_order(network, "hlpps")
    assert changed.pools["pool"].order.name == "hlpps"
    for field in dataclasses.fields(network.pools["pool"]):
        if field.name != "order":
            assert getattr(changed.pools["pool"], field.name) == getattr(network.pools["pool"], field.name)


@pytest.mark.parametrize(
    ("orders", "said"),
    [
        ("fcfs", "give a list"),
        ([], "give a list"),
        (["fcfs", "fcfs"], "two orders are called fcfs"),
        (["fcsf"], "did you mean 'fcfs'"),
        (["priority"], "priority without stages"),
        ({"mine": {"pond": "fcfs"}}, "known: pool"),
    ],
)
def test_orders_that_cannot_be_are_refused(orders: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        compare_orders(single(UNIT, 0.5), orders, jobs=100)  # type: ignore[arg-type]


def test_one_question_puts_servers_or_networks_side_by_side() -> None:
    policies = {"policies": "sarathi, tensorrt-llm, orca"}
    light = ps.Workload.poisson(1.0, ps.Geometric(400, max=4000), ps.Geometric(200, max=2000), seed=3)
    servers = variants((light, ps.Server(TP1, 512)), policies)
    assert list(servers) == ["sarathi", "tensorrt-llm", "orca"]
    found = compare(servers, requests=200, resolution=0.1, optional=("tensorrt-llm",))
    assert list(found.answers) == list(found.as_dict()["policies"]) == ["sarathi", "orca"]
    assert "never fits" in found.left_out["tensorrt-llm"]  # type: ignore[union-attr]
    page = found.page()
    assert page.title == "compare"
    assert any("tensorrt-llm is left out" in note for note in page.notes)
    with pytest.raises(InputError, match="never fits"):
        compare(servers, requests=200, resolution=0.1)
    networks = variants(FLEET, {"policies": None, "routers": "random", "orders": "fcfs"})
    assert list(compare(networks, jobs=200, resolution=0.1).answers) == list(networks) == ["random, fcfs"]


def test_a_variant_differs_in_what_is_chosen_and_a_policy_keeps_its_settings_alone() -> None:
    server = ps.Server(TP1, 512, policy="pool-controlled")
    assert with_limits(server, "pool-controlled", token_budget=256) == dataclasses.replace(server, token_budget=256)
    assert with_limits(server, "sarathi") == server.with_policy("sarathi")
    assert variants(FLEET, {"routers": None}) == {"as it is": FLEET}
    for choices, said in (({"routers": " ,"}, "names none"), ({"orders": "fcfs,fcfs"}, "have one name")):
        with pytest.raises(InputError, match=said):
            variants(FLEET, choices)
    with pytest.raises(InputError, match=r"--policies names none; give some of .*sarathi.*vllm, sglang"):
        variants(FLEET, {"policies": ""})
