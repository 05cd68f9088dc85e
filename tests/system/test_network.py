"""A network knows its stages, rates and means, draws its jobs in order, and refuses what cannot be served."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.system.network import Network, Pool
from penstock.system.orders import Order
from penstock.system.reuse import reused
from penstock.system.routing import Router
from penstock.workload.jobs import Jobs
from penstock.workload.stage import Stage
from penstock.workload.workflow import Workflow

SLOT = ps.PiecewiseConstant(1.0, 0.0, 768)  # a batch takes one second, whatever is in it
PAPER = ps.Server(SLOT, 768, convention="paper")
ENGINE = ps.Server(SLOT, 768)


def poisson(rate: float, seed: int = 0) -> ps.Workload:
    return ps.Workload.poisson(rate, ps.Geometric(40), ps.Uniform(1, 9), seed=seed)


def rybko_stolyar(rate: float = 1.0, server: ps.Server = PAPER) -> Network:
    """Two servers, two kinds of task in opposite directions; the long stages go first (paper, Section 5.4)."""
    pools = {
        "one": Pool(server, order=Order.priority(["complaint.2", "search.1"])),
        "two": Pool(server, order=Order.priority(["search.2", "complaint.1"])),
    }
    search = Workflow.chain("search", poisson(rate), [("one", 32, 32), ("two", 512, 32)])
    complaint = Workflow.chain("complaint", poisson(rate), [("two", 32, 32), ("one", 512, 32)])
    return Network(pools, [search, complaint])


def fork_join() -> Network:
    stages = {
        "plan": Stage("large", 100, 20, then=["web", "notes"]),
        "web": Stage("small", 300, 10, then="answer"),
        "notes": Stage("small", 50, 30, then="answer"),
        "answer": Stage("large", 200, 40, join=True),
    }
    pools = {"large": Pool(ENGINE, order="decode-first"), "small": Pool(ENGINE, 3, "work", "hlpps")}
    return Network(pools, [Workflow("research", poisson(0.5), stages)])


# What the theory sees


def test_rybko_stolyar_has_load_09_at_the_rate_of_the_paper() -> None:
    model = rybko_stolyar(0.9 * 768 / 608).model()
    assert model.stages == ("search.1", "search.2", "complaint.1", "complaint.2")
    assert model.pool.tolist() == [0, 1, 1, 0]
    assert model.prefill.tolist() == [32, 512, 32, 512]
    assert model.decode.tolist() == [32] * 4
    assert model.external.tolist() == pytest.approx([0.9 * 768 / 608, 0, 0.9 * 768 / 608, 0])
    np.testing.assert_allclose(model.rho, 0.9)
    assert model.sampled is None
    assert model.standard_error.tolist() == [0, 0]


def test_every_branch_of_a_fork_is_visited_and_its_join_once_a_job() -> None:
    model = fork_join().model()
    onward = np.zeros((4, 4))
    onward[0, [1, 2]] = 1
    onward[[1, 2], 3] = 1 / 2
    np.testing.assert_array_equal(model.onward, onward)
    np.testing.assert_allclose(model.visits, 0.5)
    assert model.joins.tolist() == [False, False, False, True]


def test_rates_solve_the_traffic_equations() -> None:
    loop = Workflow(
        "loop",
        poisson(2.0),
        {
            "write": Stage("one", 10, 5, then="judge"),
            "judge": Stage("two", 5, 2, then={"write": 0.25, "end": 0.75}),
        },
    )
    pools = {"one": Pool(PAPER), "two": Pool(PAPER)}
    model = Network(pools, [loop, Workflow.single(poisson(3.0, seed=1), "two", name="alone")]).model()
    expected = model.external + model.onward.T @ model.visits
    np.testing.assert_allclose(model.visits, expected)
    np.testing.assert_allclose(model.visits, [2 / 0.75, 2 / 0.75, 3])


def test_an_engine_decodes_once_less_where_prefill_yields_the_first_token() -> None:
    stages = {
        "both": Stage("p", 10, 5, then="prefill only"),
        "prefill only": Stage("p", 10, 0, then="one token"),
        "one token": Stage("p", 10, 1, then="decode only"),
        "decode only": Stage("p", 0, 5),
    }
    for server, expected in ((ENGINE, [4, 0, 0, 5]), (PAPER, [5, 0, 1, 5])):
        network = Network({"p": Pool(server)}, [Workflow("w", poisson(1), stages)])
        assert network.decode_means.tolist() == expected
        assert network.prefill_means.tolist() == [10, 10, 10, 0]


def test_a_disaggregated_pair_shares_the_tokens_of_a_request() -> None:
    workload = poisson(1)
    pools = {"p": Pool(ENGINE), "d": Pool(ENGINE)}
    model = Network(pools, [Workflow.disaggregated(workload, prefill="p", decode="d")]).model()
    np.testing.assert_allclose(model.prefill, [workload.mean_prompt, 0])
    np.testing.assert_allclose(model.decode, [0, workload.mean_output - 1])
    tokens = ENGINE.tokens_per_request(workload.mean_prompt, workload.mean_output)
    assert model.offered.sum() == pytest.approx(tokens)


def test_a_pool_has_the_capacity_of_all_its_replicas() -> None:
    tp1 = ps.hardware("codellama-34b-a100-tp1").batch_time
    server = ps.Server(tp1, 129)  # one token more than a block: a full batch is slower per token
    network = Network.single(poisson(1), server, replicas=8)
    model = network.model()
    assert model.capacity.tolist() == pytest.approx([8 * 128 / float(tp1(128))])
    assert model.full_batch.tolist() == pytest.approx([8 * 129 / float(tp1(129))])


def test_sampled_means_come_with_their_standard_error() -> None:
    stages = {
        "write": Stage("one", 50, ps.Geometric(20), then="judge", most_visits=3),
        "judge": Stage("two", 10, ps.Geometric(5), then={"write": 0.5, "end": 0.5}),
    }
    made = [Workflow(name, poisson(2.0), stages, context="grow") for name in ("a", "b")]
    pools = {"one": Pool(PAPER), "two": Pool(PAPER)}
    alone, network = Network(pools, made[:1]), Network(pools, made)
    model = alone.model()
    assert model.sampled is not None
    jobs = alone.jobs(60_000, seed=99)
    tokens = np.bincount(network.stage_pool[jobs.stage], jobs.prompt + jobs.output, 2) / jobs.count * 2.0
    error = np.hypot(model.standard_error, model.standard_error * np.sqrt(model.sampled / jobs.count))
    assert (np.abs(model.offered - tokens) < 4 * error).all()
    assert (error < 0.02 * tokens).all()
    np.testing.assert_allclose(network.model().standard_error, np.sqrt(2) * model.standard_error)


# What the kernel sees


def test_stages_have_lines_of_their_own_except_where_all_wait_in_one() -> None:
    network = rybko_stolyar()
    assert network.stage_line.tolist() == [0, 0, 1, 1]
    pools = {"one": Pool(PAPER), "two": Pool(PAPER, order="fcfs")}
    single = Network(pools, network.workflows)
    assert single.stage_line.tolist() == [0] * 4


def test_priorities_become_the_lines_of_their_pool_most_urgent_first() -> None:
    network = rybko_stolyar()
    assert network.priorities == ((3, 0), (1, 2))
    assert [params.tolist() for params in network.order_params] == [[1, 0], [0, 1]]
    assert fork_join().priorities == (None, None)


def test_routers_that_weigh_count_1024_times_the_expected_tokens() -> None:
    assert fork_join().router_weights.tolist() == [
        [0, 0],
        [1024 * 309, 1024 * 9],
        [1024 * 79, 1024 * 29],
        [0, 0],
    ]
    measure = Pool(ENGINE, 2, Router.measure(prefill=1, decode=2.5))
    network = Network({"pool": measure}, [Workflow.single(poisson(1), "pool")])
    assert network.router_weights.tolist() == [[1024, 2560]]


@given(
    prompt=st.integers(0, 300), output=st.integers(0, 300), mean=st.floats(1, 1.01), router=st.sampled_from(["w", "m"])
)
def test_the_measure_of_a_request_is_0_only_in_a_phase_that_it_does_not_have(
    prompt: int, output: int, mean: float, router: str
) -> None:
    chosen = "work" if router == "w" else Router.measure(prefill=0.001, decode=0.001)
    stages = {"a": Stage("p", prompt, output, then="b"), "b": Stage("p", prompt, ps.Geometric(mean))}
    network = Network({"p": Pool(ENGINE, 2, chosen)}, [Workflow("w", poisson(1), stages)])
    means = np.column_stack([network.prefill_means + network.decode_means, network.decode_means])
    assert ((network.router_weights > 0) >= (means > 0)).all()


# Jobs


def test_a_single_pool_gets_exactly_the_requests_of_the_workload() -> None:
    workload = poisson(3.0, seed=5)
    jobs, requests = Network.single(workload, ENGINE).jobs(3_000), workload.requests(3_000)
    np.testing.assert_array_equal(jobs.arrival_s, requests.arrival_s)
    np.testing.assert_array_equal(jobs.prompt, requests.prompt_tokens)
    np.testing.assert_array_equal(jobs.output, requests.output_tokens)


def test_jobs_come_in_order_of_arrival_with_the_stages_of_their_workflow() -> None:
    network = rybko_stolyar()
    jobs = network.jobs(5_000)
    assert (np.diff(jobs.arrival_s) >= 0).all()
    assert set(jobs.stage[jobs.workflow[jobs.job] == 1]) == {2, 3}
    assert 0.45 < jobs.workflow.mean() < 0.55
    for place, workflow in enumerate(network.workflows):
        mine = jobs.workflow == place
        assert mine.sum() > 0
        stages = np.arange(*network.first_stage[place : place + 2])
        assert set(jobs.stage[np.repeat(mine, np.diff(jobs.first_request))]) == set(stages)
        assert list(workflow.stages) == ["1", "2"]


def test_workflows_described_alike_do_not_repeat_each_other() -> None:
    network = rybko_stolyar()
    for seed in (None, 7):
        jobs = network.jobs(2_000, seed)
        first, second = (jobs.arrival_s[jobs.workflow == place][:500] for place in (0, 1))
        alone = network.workflows[0].jobs(500, seed)
        np.testing.assert_array_equal(first, alone.arrival_s)
        assert not np.isclose(first[1:], second[1:]).any()


def test_workflows_with_seeds_of_their_own_draw_what_they_would_alone() -> None:
    made = [Workflow.single(poisson(1.0, seed), "p", name=str(seed)) for seed in (3, 4)]
    jobs = Network({"p": Pool(ENGINE)}, made).jobs(1_000)
    for place, workflow in enumerate(made):
        found = jobs.arrival_s[jobs.workflow == place]
        np.testing.assert_array_equal(found, workflow.jobs(found.size).arrival_s)


def test_another_load_changes_arrivals_and_nothing_else() -> None:
    network = rybko_stolyar()
    busier = network.with_load(1.5)
    np.testing.assert_allclose(busier.model().visits, 1.5 * network.model().visits)
    for workflow, other in zip(network.workflows, busier.workflows, strict=True):
        one, two = workflow.jobs(2_000), other.jobs(2_000)
        np.testing.assert_array_equal(one.prompt, two.prompt)
        np.testing.assert_array_equal(one.coin, two.coin)
        np.testing.assert_allclose(one.arrival_s, 1.5 * two.arrival_s)


def test_a_flooded_stage_has_all_jobs_there_at_time_0() -> None:
    jobs = rybko_stolyar().flooded("complaint.2", 40)
    assert jobs.count == 40
    assert set(jobs.stage) == {3}
    assert set(jobs.workflow) == {1}
    assert set(jobs.arrival_s) == {0.0}
    upstream = rybko_stolyar().flooded("complaint.1", 40)
    assert set(upstream.stage) == {2, 3}


def test_a_stage_may_be_called_by_its_own_name_where_only_one_has_it() -> None:
    assert fork_join().stage_number("answer") == fork_join().stage_number("research.answer") == 3
    with pytest.raises(ps.InputError, match=r"names '1', which several workflows have; say which, such as 'search.1'"):
        rybko_stolyar().stage_number("1")
    with pytest.raises(ps.InputError, match=r"which is no stage; did you mean 'research.answer'"):
        fork_join().flooded("research.anser", 3)
    with pytest.raises(ps.InputError, match="a stage is 3; give its name"):
        fork_join().stage_number(3)  # type: ignore[arg-type]


# Reuse


def growing(pool: str = "a", context: str = "reuse") -> Workflow:
    stages = {
        "ask": Stage("a", 100, 10, then="look"),
        "look": Stage(pool, 50, 20, then="answer"),
        "answer": Stage("a", 30, 5),
    }
    return Workflow("talk", poisson(1), stages, context=context)


def test_reused_context_costs_nothing_where_all_of_a_job_is_on_one_replica() -> None:
    """Prompts are 100, 100 + 10 + 50 and 160 + 20 + 30 tokens; each has all but its own new ones in memory."""
    assert Network({"a": Pool(ENGINE)}, [growing(context="grow")]).prefill_means.tolist() == [100, 160, 210]
    for pool in (Pool(ENGINE), Pool(ENGINE, 4, affinity=True)):
        network = Network({"a": pool}, [growing()])
        assert network.reuse_is_certain
        assert network.prefill_means.tolist() == [100, 50, 30]


def test_a_replica_finds_what_it_computed_itself_and_no_more() -> None:
    """The answer's replica has the first 110 tokens, from the question; those of the look are in another pool."""
    network = Network({"a": Pool(ENGINE), "b": Pool(ENGINE)}, [growing("b")])
    assert network.prefill_means.tolist() == [100, 160, 100]


@pytest.mark.parametrize("retention_s", [None, 60.0])
def test_prompts_count_in_full_where_reuse_depends_on_the_run(retention_s: float | None) -> None:
    replicas = 4 if retention_s is None else 1
    network = Network({"a": Pool(ENGINE, replicas)}, [growing()], retention_s=retention_s)
    assert not network.reuse_is_certain
    assert network.prefill_means.tolist() == [100, 160, 210]


def found_one_by_one(jobs: Jobs, pool: npt.NDArray[np.int64]) -> list[int]:
    """What `reused` says, a request at a time."""
    found = []
    for request in range(jobs.requests):
        source, shared = request, 2**31
        cached = 0
        while jobs.context[source] != 0 and shared > 0:
            shared = min(shared, int(jobs.reuse[source]))
            source += int(jobs.context[source])
            if pool[jobs.stage[source]] == pool[jobs.stage[request]]:
                cached = shared
                break
        found.append(min(cached, max(int(jobs.prompt[request]) - 1, 0)))
    return found


@settings(max_examples=12)
@given(pools=st.lists(st.integers(0, 2), min_size=5, max_size=5), seed=st.integers(0, 100))
def test_what_is_reused_is_the_last_context_computed_in_the_same_pool(pools: list[int], seed: int) -> None:
    stages = {
        "a": Stage("p", ps.Uniform(1, 9), ps.Uniform(1, 9), then=["b", "c"]),
        "b": Stage("p", ps.Uniform(1, 9), 0, then="d"),
        "c": Stage("p", 0, ps.Uniform(1, 9), then="d"),
        "d": Stage("p", ps.Uniform(1, 9), 3, then={"e": 0.8, "end": 0.2}, join=True),
        "e": Stage("p", 5, 5, then={"a": 0.4, "end": 0.6}),
    }
    jobs = Workflow("w", poisson(1), stages, context="reuse").jobs(40, seed)
    pool = np.array(pools)
    assert reused(jobs, pool).tolist() == found_one_by_one(jobs, pool)


# Pools


def test_a_pool_is_work_conserving_by_its_order_or_by_its_policy() -> None:
    idle = PAPER.with_policy("vllm-vanilla")
    assert Pool(PAPER).work_conserving is True
    assert Pool(idle).work_conserving is False
    assert Pool(idle, order="decode-first").work_conserving is True  # which asks no policy
    assert Pool(idle, order="hlpps").work_conserving is True  # which fills what the policy leaves


def test_a_network_says_what_it_is() -> None:
    said = fork_join().describe()
    assert said == (
        "large: 1 replica, decode-first; small: 3 replicas behind work, hlpps; research: workload: Poisson arrivals, "
        "4 stages"
    )
    assert "2 replicas behind jsq with affinity" in Pool(PAPER, 2, affinity=True).describe()


# Mistakes

ONE = {"p": Pool(ENGINE)}
CALL = Workflow.single(poisson(1), "p", name="w")


def other_priority(*stages: str) -> Callable[[], Network]:
    pools = {"one": Pool(PAPER, order=Order.priority(stages)), "two": Pool(PAPER)}
    return lambda: Network(pools, rybko_stolyar().workflows)


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "an unknown pool": (
        lambda: Network({"small": Pool(ENGINE)}, [Workflow.single(poisson(1), "smal", name="w")]),
        "stage 'w.call' is served by pool 'smal', which there is not; did you mean 'small'?",
    ),
    "no replicas": (lambda: Pool(ENGINE, 0), "replicas is 0, but must be a whole number from 1"),
    "half a replica": (lambda: Pool(ENGINE, 1.5), "replicas is 1.5"),  # type: ignore[arg-type]
    "a pool without a stage": (
        lambda: Network({**ONE, "spare": Pool(ENGINE)}, [CALL]),
        "pool 'spare' serves no stage, so it would stand idle",
    ),
    "stages by order at an engine": (
        lambda: Pool(ps.Server(SLOT, 768, 64, policy="vllm"), order="hlpps"),
        "the order of the pool is hlpps, but vllm",
    ),
    "late reports from the future": (
        lambda: Pool(ENGINE, report_ms=-1),
        "report_ms is -1, but must be a number from 0",
    ),
    "no kinds of servers": (lambda: Pool([]), "the servers of a pool are []; give pairs (Server, how many)"),
    "no server": (lambda: Pool("tp1"), "the server of a pool is 'tp1'; give a Server"),  # type: ignore[arg-type]
    "an unknown router": (lambda: Pool(ENGINE, 2, "jsk"), "unknown router 'jsk'; did you mean 'jsq'"),
    "an unknown order": (lambda: Pool(ENGINE, order="fcsf"), "unknown order 'fcsf'; did you mean 'fcfs'"),
    "affinity in words": (lambda: Pool(ENGINE, affinity="yes"), "affinity is 'yes'"),  # type: ignore[arg-type]
    "priority without stages": (
        lambda: Network({"p": Pool(ENGINE, order="priority")}, [CALL]),
        "is priority without stages, so which goes first is unclear; give `order: {priority: [w.call]}`",
    ),
    "an unknown stage": (other_priority("search.1", "complant.2"), "did you mean 'complaint.2'"),
    "a stage of another pool": (other_priority("search.2", "search.1"), "names 'search.2', which pool 'two' serves"),
    "a stage left out": (other_priority("search.1"), "leaves out 'complaint.2'"),
    "a stage twice": (other_priority("search.1", "complaint.2", "search.1"), "has 'search.1' twice"),
    "two workflows of one name": (lambda: Network(ONE, [CALL, CALL]), "two workflows are called 'w'"),
    "retention without reuse": (lambda: Network(ONE, [CALL], retention_s=5), "no workflow reuses its context"),
    "a negative retention": (lambda: Network({"a": Pool(ENGINE)}, [growing()], retention_s=-1), "retention_s is -1"),
    "no pools": (lambda: Network({}, [CALL]), "so nothing serves"),
    "pools in a list": (lambda: Network([Pool(ENGINE)], [CALL]), "so nothing serves"),  # type: ignore[arg-type]
    "a pool without a name": (lambda: Network({"": Pool(ENGINE)}, [CALL]), "a pool is called ''"),
    "a server for a pool": (lambda: Network({"p": ENGINE}, [CALL]), "pool 'p' is Server("),  # type: ignore[dict-item]
    "no workflows": (lambda: Network(ONE, []), "so nothing arrives"),
    "a workflow alone": (lambda: Network(ONE, CALL), "so nothing arrives"),  # type: ignore[arg-type]
    "a workload": (lambda: Network(ONE, [poisson(1)]), "a workflow is Workload("),  # type: ignore[list-item]
    "no load": (lambda: Network(ONE, [CALL]).with_load(0), "the factor on the load is 0"),
    "no jobs": (lambda: Network(ONE, [CALL]).jobs(0), "the number of jobs is 0"),
    "too many replicas": (lambda: Pool(ENGINE, 65_537), "a router cannot tell more apart"),
    "a seed below 0": (lambda: Network(ONE, [CALL]).jobs(3, -1), "the seed is -1, but must be a whole number from 0"),
    "half a seed": (lambda: Network(ONE, [CALL]).flooded("call", 3, 1.5), "the seed is 1.5, but"),  # type: ignore[arg-type]
    "a seed of 130 bits": (lambda: Network(ONE, [CALL]).blocks(2**129), "the seed is 68056"),
    "a seed for a run": (lambda: ps.simulate(Network(ONE, [CALL]), jobs=1, seed=-1), "the seed is -1, but"),
    "a seed for a verdict": (lambda: ps.verdict(Network(ONE, [CALL]), seed=-1), "the seed is -1, but"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_is_said_in_one_line(what: str) -> None:
    make, complaint = BAD[what]
    with pytest.raises(ps.InputError) as caught:
        make()
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_more_jobs_than_recorded_are_refused() -> None:
    recorded = ps.Workload.from_arrays([0, 1, 4], [10, 20, 30], [5, 5, 5])
    with pytest.raises(ps.InputError, match="4 jobs asked for, but the network has 3"):
        Network.single(recorded, ENGINE).jobs(4)


def test_a_stage_that_only_decodes_at_an_engine_without_a_prefill_elsewhere_is_refused() -> None:
    engine = ps.Server(ps.Affine(0.02, 2e-4), 512, 64, policy="vllm", memory=ps.Memory(4096))
    stages = {"ask": ps.Stage("p", 100, 10, then="go_on"), "go_on": ps.Stage("p", 0, 20)}
    workflow = ps.Workflow("w", ps.Workload.poisson(2, 1, 1), stages)
    with pytest.raises(ps.InputError, match=r"'w\.go_on' only decodes"):
        ps.Network({"p": ps.Pool(engine)}, [workflow])


def test_a_longest_context_counts_the_token_that_came_with_the_prefill_elsewhere() -> None:
    engine = ps.Server(
        ps.Affine(0.02, 2e-4), 512, 64, policy="vllm", policy_params={"max_model_len": 100}, memory=ps.Memory(4096)
    )
    workload = ps.Workload.poisson(2, ps.Uniform(1, 99), ps.Uniform(1, 300), seed=1)
    apart = ps.Workflow.disaggregated(workload, prefill="p", decode="d")
    for pools, flow in (
        ({"p": ps.Pool(engine), "d": ps.Pool(engine)}, apart),
        ({"all": ps.Pool(engine)}, ps.Workflow.single(workload, "all")),
    ):
        network = ps.Network(pools, [flow])
        jobs = network.within_context(network.jobs(2_000))
        tokens = np.bincount(jobs.job, jobs.prompt + jobs.output)
        assert tokens.max() == 100
