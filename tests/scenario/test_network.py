"""A scenario of a network means what it says, or is refused in one line that names the key."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

import penstock as ps
from penstock.scenario.scenario import Scenario, build, describes_network, read_scenario
from penstock.system.orders import ORDERS
from penstock.workload.sessions import Sessions
from penstock.workload.workflow import Workflow

EXAMPLES = sorted(
    path
    for path in (Path(__file__).parents[2] / "examples").glob("*.yaml")
    if "\nnetwork:" in path.read_text(encoding="utf-8")
)

SERVER = {"hardware": "codellama-34b-a100-tp1", "token_budget": 512}
CALL = {"pool": "p", "prompt": 100, "output": 50}
POISSON = {"arrivals": {"poisson": 2}}


def made(
    pool: dict[str, object] | None = None, workflow: dict[str, object] | None = None, folder: Path | None = None
) -> Scenario:
    """A network of one pool and one workflow, with some keys of them changed."""
    flow = workflow or POISSON | {"stages": {"call": CALL}}
    document = {"network": {"pools": {"p": SERVER | (pool or {})}, "workflows": {"w": flow}}}
    return build(document, folder or Path())


def workflow(scenario: Scenario) -> Workflow:
    found = scenario.network.workflows[0]
    assert isinstance(found, Workflow)
    return found


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_networks_below_capacity_that_can_be_unfolded(path: Path) -> None:
    scenario = read_scenario(path)
    assert scenario.arrivals >= 5_000
    assert (scenario.network.model().rho < 1).all()
    assert scenario.network.jobs(100).requests >= 100


def test_the_example_of_rybko_and_stolyar_is_that_of_the_paper() -> None:
    network = read_scenario(Path(__file__).parents[2] / "examples" / "rybko_stolyar.yaml").network
    model = network.model()
    np.testing.assert_allclose(model.rho, 0.9, rtol=1e-4)
    assert model.prefill.tolist() == pytest.approx([32, 512, 32, 512])
    assert [network.stages[ranking[0]] for ranking in network.priorities if ranking] == [
        "complaint.look_into",
        "search.reply",
    ]


def test_a_pool_has_the_keys_of_a_server_and_its_own() -> None:
    keys = {"max_num_seqs": 64, "policy": "orca", "replicas": 4, "router": "tokens", "order": "hlpps", "affinity": True}
    twice = POISSON | {"stages": {"call": CALL | {"then": "again"}, "again": CALL}}
    pool = made(keys, twice).network.pools["p"]
    assert (pool.server.max_batch_size, pool.policy.name) == (64, "orca")
    assert (pool.replicas, pool.router.name, pool.order.name, pool.affinity) == (4, "tokens", "hlpps", True)
    usual = made().network.pools["p"]
    assert (usual.replicas, usual.router.name, usual.order.name, usual.affinity) == (1, "jsq", "fcfs", False)


def test_a_router_may_be_a_measure() -> None:
    router = made({"replicas": 2, "router": {"measure": {"prefill": 1, "decode": 2.5}}}).network.pools["p"].router
    assert (router.name, router.prefill_weight, router.decode_weight) == ("measure", 1, 2.5)


def test_an_order_may_be_a_ranking_or_a_function_beside_the_file(tmp_path: Path) -> None:
    flow = POISSON | {"stages": {"a": CALL | {"then": "b"}, "b": CALL}}
    scenario = made({"order": {"priority": ["w.b", "a"]}}, flow)
    assert scenario.network.priorities == ((1, 0),)
    (tmp_path / "own_ranking.py").write_text(
        "def last(lines, params, weights):\n    weights[-1, 0] = 1\n    return 0\n"
    )
    (tmp_path / "s.yaml").write_text(
        yaml.safe_dump(
            {"network": {"pools": {"p": SERVER | {"order": "own_ranking.py:last"}}, "workflows": {"w": flow}}}
        )
    )
    order = read_scenario(tmp_path / "s.yaml").network.pools["p"].order
    assert order.name == "last"
    assert order(np.zeros((2, 8)))[1].tolist() == [[0, 0], [1, 0]]
    assert made({"order": "fcfs"}).network.pools["p"].order is ORDERS["fcfs"]


@pytest.mark.parametrize(
    ("arrivals", "described"),
    [
        ({"poisson": 2}, "Poisson arrivals"),
        ({"deterministic": 2}, "evenly spaced"),
        ({"gamma": {"rate": 2, "cv": 3}}, "cv 3"),
    ],
)
def test_arrivals_are_named_by_their_process(arrivals: object, described: str) -> None:
    found = workflow(made(workflow={"arrivals": arrivals, "stages": {"call": CALL}}))
    assert found.rate == 2
    assert described in found.describe()


def test_lengths_and_delays_of_stages_can_be_any_distribution_or_none() -> None:
    stages = {
        "a": CALL | {"prompt": {"geometric": 40}, "output": 0, "then": {"b": 0.5, "end": 0.5}},
        "b": CALL | {"prompt": 0, "delay_ms": {"uniform": [10, 90]}, "then": ["c", "d"], "transfer_ms_per_token": 0.5},
        "c": CALL | {"delay_ms": 2.5, "then": "e"},
        "d": CALL | {"then": "e"},
        "e": CALL | {"join": True, "most_visits": None},
    }
    found = workflow(made(workflow=POISSON | {"context": "grow", "stages": stages})).stages
    assert (found["a"].prompt, found["a"].output) == (ps.Geometric(40), 0)
    assert (found["b"].prompt, found["b"].output, found["b"].delay_ms) == (0, 50, ps.Uniform(10, 90))
    assert (found["b"].then, found["b"].transfer_ms_per_token, found["c"].delay_ms) == (["c", "d"], 0.5, 2.5)
    assert found["e"].join


def test_stages_may_take_the_lengths_of_a_trace(tmp_path: Path) -> None:
    (tmp_path / "calls.csv").write_text("arrival_s,prompt,output\n0,10,5\n1,20,6\n4,30,7\n")
    flow = {
        "workload": {"trace": "calls.csv"},
        "first": "b",
        "stages": {
            "c": {"pool": "p", "prompt": 0, "output": "rest"},
            "b": {"pool": "p", "prompt": "job", "output": 1, "then": "c"},
        },
    }
    scenario = made(workflow=flow, folder=tmp_path)
    assert scenario.arrivals is None  # the recording, whole
    jobs = scenario.network.jobs(3)
    assert jobs.prompt.tolist() == [10, 0, 20, 0, 30, 0]
    assert jobs.output.tolist() == [1, 4, 1, 5, 1, 6]
    assert jobs.stage.tolist() == [1, 0] * 3


def test_requests_may_go_to_one_pool_or_to_a_disaggregated_pair() -> None:
    requests = {"poisson": {"rate": 2, "prompt": 100, "output": 50}}
    assert workflow(made(workflow={"workload": requests, "pool": "p"})).stages["call"].prompt == "job"
    pair = {"workload": requests, "prefill": "p", "decode": "d", "transfer_ms": 5}
    for how, seconds in (
        ({"transfer_ms_per_token": 0.01}, 1e-5),
        ({"transfer_gb_per_s": 25}, 196_608 / 25e9),  # CodeLlama-34B: 2 x 48 layers x 8 heads x 128 x 2 bytes
        ({"transfer_gb_per_s": 25, "kv_bytes_per_token": 1e6}, 4e-5),
    ):
        document = {"pools": {"p": SERVER, "d": SERVER}, "workflows": {"w": {"disaggregated": pair | how}}}
        jobs = build({"network": document}, Path()).network.jobs(1)
        assert (jobs.prompt.tolist(), jobs.output.tolist()) == ([100, 0], [1, 49])
        assert jobs.delay_s.tolist() == pytest.approx([0, 0.005])
        assert jobs.column("transfer_s").tolist() == pytest.approx([0, 100 * seconds])


VLLM = SERVER | {"policy": "vllm", "memory": {"tokens": 20_000}}


@pytest.mark.parametrize(
    ("pair", "complaint"),
    [
        (
            {"transfer_gb_per_s": 0},
            "transfer_gb_per_s is 0.0, but must be a number from 0.001 to 1,000,000 GB/s: what a",
        ),
        ({"transfer_gb_per_s": 25, "transfer_ms_per_token": 1}, "but both say how long a token takes a link; give one"),
        (
            {"kv_bytes_per_token": 9},
            "says how long a transfer takes only beside the bandwidth of a link; add transfer_",
        ),
        ({"transfer_gb_per_s": 25, "kv_bytes_per_token": 0}, "kv_bytes_per_token is 0.0, but must be a number from 1"),
        ({"prefill": "q", "transfer_gb_per_s": 25}, "prefill is at pool 'q', which there is not; known: p, d"),
        ({"transfer_ms": -1}, "network.workflows.w.disaggregated: transfer_ms is -1, but must be a number from 0"),
        ({"decode": "p"}, "prefill and decode are both at pool 'p', so nothing is apart; name two pools"),
    ],
)
def test_a_transfer_that_cannot_be_is_one_clear_line(pair: dict[str, object], complaint: str) -> None:
    requests = {"poisson": {"rate": 2, "prompt": 100, "output": 50}}
    flow = {"disaggregated": {"workload": requests, "prefill": "p", "decode": "d"} | pair}
    with pytest.raises(ps.InputError) as caught:
        build({"network": {"pools": {"p": VLLM, "d": VLLM}, "workflows": {"w": flow}}}, Path())
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_how_much_a_token_takes_has_to_be_known() -> None:
    server = {"batch_time": {"c_ms": 11, "a_ms": 35, "b0": 128}, "token_budget": 512}
    requests = {"poisson": {"rate": 2, "prompt": 100, "output": 50}}
    flow = {"disaggregated": {"workload": requests, "prefill": "p", "decode": "d", "transfer_gb_per_s": 25}}
    with pytest.raises(ps.InputError, match="is not known without the model; give kv_bytes_per_token"):
        build({"network": {"pools": {"p": server, "d": server}, "workflows": {"w": flow}}}, Path())


@pytest.mark.parametrize("before", ["nothing", "the same pool", "a decode"])
def test_a_stage_that_only_decodes_needs_a_prefill_of_another_pool(before: str) -> None:
    prefill = {"pool": "p", "prompt": 100, "output": 1, "then": "decode"}
    decode = {"pool": "d", "prompt": 0, "output": 49}
    flow = {
        "nothing": {"decode": decode | {"then": "after"}, "after": {"pool": "p", "prompt": 9, "output": 1}},
        "the same pool": {"prefill": prefill | {"pool": "d", "then": ["decode", "other"]}, "decode": decode,
                          "other": {"pool": "p", "prompt": 9, "output": 1}},
        "a decode": {"prefill": prefill | {"then": "first"}, "first": decode | {"then": "decode"}, "decode": decode},
    }[before]  # fmt: skip
    workflows = {"w": POISSON | {"stages": flow}}
    with pytest.raises(ps.InputError) as caught:
        build({"network": {"pools": {"p": VLLM, "d": VLLM}, "workflows": workflows}}, Path())
    assert str(caught.value).startswith("network: stage 'w.decode' only decodes (its prompt is 0) at pool 'd'")
    by_lines = {"p": SERVER, "d": SERVER}  # where no KV memory is sent
    assert build({"network": {"pools": by_lines, "workflows": workflows}}, Path()).network.stages


def test_memory_smaller_than_a_request_is_said_with_its_pool() -> None:
    small = VLLM | {"memory": {"tokens": 64}}
    with pytest.raises(ps.InputError) as caught:
        ps.simulate(made(pool=small).network, jobs=5)
    assert "request 0 has 100 prompt and 50 output tokens, at pool 'p': it needs 10 blocks of 16" in str(caught.value)


def test_a_pool_has_several_kinds_of_server_behind_a_router_with_settings() -> None:
    pool = {
        "router": {"session": {"spill": 8, "times": 2}}, "report_ms": 50, "order": "priority",
        "servers": [VLLM | {"replicas": 2}, VLLM | {"hardware": "codellama-34b-a100-tp2"}],
    }  # fmt: skip
    stages = {"a": CALL | {"then": "b"}, "b": CALL}
    flow = POISSON | {"priority": -3, "stages": stages}
    network = build({"network": {"pools": {"p": pool}, "workflows": {"w": flow}}}, Path()).network
    (made,) = network.pools.values()
    assert [count for _, count in made.servers] == [2, 1]
    assert {server.order for server, _ in made.servers} == {"priority"}
    assert made.servers[0][0].batch_time != made.servers[1][0].batch_time
    assert (made.router.name, dict(made.router.settings)) == ("session", {"spill": 8, "times": 2})
    assert (made.order.name, made.report_ms) == ("fcfs", 50)
    assert set(network.jobs(9).column("priority").tolist()) == {-3}


def test_the_order_priority_is_that_of_the_queue_under_either_name() -> None:
    for name in ("order", "scheduling_policy", "scheduling-policy"):
        (pool,) = made(pool=VLLM | {name: "priority"}).network.pools.values()
        assert pool.server.order == "priority"
        assert pool.order.name == "fcfs"


@pytest.mark.parametrize(
    ("pool", "context"),
    [
        (SERVER | {"router": "prefix"}, "reuse"),
        (VLLM | {"router": "prefix", "memory": {"tokens": 20_000, "prefix_caching": True}}, "reuse"),
        (SERVER | {"router": {"scored": {"cached": 0}}}, "new"), (VLLM | {"router": "memory"}, "new"),
        (SERVER | {"router": "session"}, "new"), (SERVER | {"router": "prefix", "replicas": 1}, "new"),
    ],
)  # fmt: skip
def test_a_router_that_may_see_what_it_looks_for_is_taken(pool: dict[str, object], context: str) -> None:
    stages = {"a": CALL | {"then": "b"}, "b": CALL}
    flow = POISSON | {"stages": stages, "context": context}
    assert ps.simulate(made(pool={"replicas": 2} | pool, workflow=flow).network, jobs=20).finished == 20


def test_a_router_of_ones_own_may_lie_beside_the_file(tmp_path: Path) -> None:
    lines = "def last(replicas, request, params):\n    return replicas.shape[0] - 1\n"
    (tmp_path / "own.py").write_text(lines, encoding="utf-8")
    network = made(pool={"replicas": 3, "router": "own.py:last"}, folder=tmp_path).network
    run = ps.simulate(network, jobs=20)
    assert set(run.requests["replica"]) == {2}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_engines_of_a_pool_choose_their_limits_by_the_gpu_as_one_server_does(engine: str) -> None:
    keys = {"hardware": "codellama-34b-a100-tp1", "policy": engine, "gpu": {"memory_gib": 80}}
    document = {"network": {"pools": {"p": keys}, "workflows": {"w": POISSON | {"stages": {"call": CALL}}}}}
    (pool,) = build(document, Path()).network.pools.values()
    workload = {"poisson": {"rate": 1, "prompt": 9, "output": 5}}
    alone = build({"workload": workload, "server": keys}, Path(), "one").server
    assert pool.server == alone


def test_prompts_of_a_length_go_to_a_pool_of_their_own() -> None:
    requests = {"poisson": {"rate": 2, "prompt": {"uniform": [1, 4000]}, "output": 50}}
    flow = {"by_length": {"workload": requests, "pools": {"long": None, "short": 1000}}, "priority": 2}
    document = {"network": {"pools": {"short": SERVER, "long": SERVER}, "workflows": {"w": flow}}}
    network = build(document, Path()).network
    jobs = network.jobs(2_000)
    by_stage = np.array([network.stages.index("w.long"), network.stages.index("w.short")])
    assert (jobs.stage == by_stage[(jobs.prompt <= 1000).astype(int)]).all()
    assert set(jobs.column("priority").tolist()) == {2}


def test_hash_ids_of_a_trace_are_found_in_a_pool_whatever_the_size_of_its_blocks(tmp_path: Path) -> None:
    rows = [{"timestamp": 9_000 * i, "input_length": 1024, "output_length": 5, "hash_ids": [1, 2]} for i in range(4)]
    (tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    flow = {"workload": {"trace": "trace.jsonl", "format": "mooncake"}, "pool": "p"}
    memory = {"tokens": 40_960, "prefix_caching": True, "block_size": 512}
    pool = SERVER | {"policy": "vllm", "memory": memory, "replicas": 2, "router": "prefix"}
    network = made(pool=pool, workflow=flow, folder=tmp_path).network
    run = ps.simulate(network)
    assert run.requests["cached_tokens"].to_list() == [0, 512, 512, 512]  # the last block makes the first token
    assert run.requests["replica"].n_unique() == 1
    small = made(pool=pool | {"memory": memory | {"block_size": 16}}, workflow=flow, folder=tmp_path).network
    assert ps.simulate(small).requests["cached_tokens"].to_list() == [0, 1008, 1008, 1008]
    kinds = [(each.pools["p"].server, 1) for each in (network, small)]
    with pytest.raises(ps.InputError, match="cached in blocks of 16 and 512 tokens"):
        ps.Network({"p": ps.Pool(kinds)}, network.workflows)


SESSIONS = (
    "trace_id,agent,idx,t_s,think_time_s,in_tokens,out_tokens,prefix_hit_blocks,block_size\n"
    "t1,main,0,0,,100,10,0,64\nt1,main,1,5,2,180,10,1,64\nt2,main,0,3,,50,5,0,64\n"
)


def test_sessions_are_read_from_beside_the_file_and_keep_their_context(tmp_path: Path) -> None:
    (tmp_path / "sessions.csv").write_text(SESSIONS)
    scenario = made(workflow={"sessions": {"trace": "sessions.csv"}, "pool": "p"}, folder=tmp_path)
    assert isinstance(scenario.network.workflows[0], Sessions)
    assert scenario.network.stages == ("w.call",)
    assert scenario.arrivals is None
    assert scenario.network.reuse_is_certain
    assert scenario.network.prefill_means.tolist() == pytest.approx([(100 + 180 - 64 + 50) / 3])
    endless = {"sessions": {"trace": "sessions.csv", "rate": 0.5, "most_requests": 1}, "pool": "p"}
    drawn = made(workflow=endless, folder=tmp_path)
    assert drawn.arrivals == 20_000
    assert drawn.network.model().external.tolist() == [0.5]
    assert drawn.network.jobs(50).requests == 50


def test_retention_and_length_of_the_run_are_read() -> None:
    flow = POISSON | {"context": "reuse", "stages": {"a": CALL | {"then": "b"}, "b": CALL}}
    document = {"network": {"pools": {"p": SERVER}, "workflows": {"w": flow}, "retention_s": 60}}
    scenario = build(document | {"simulate": {"until": 500, "seed": 3}}, Path(), "talk.yaml")
    assert (scenario.name, scenario.arrivals, scenario.until) == ("talk", None, 500)
    assert scenario.network.retention_s == 60
    assert workflow(scenario).arrivals.seed == 3
    assert build(document | {"simulate": {"jobs": 1e3}}, Path()).arrivals == 1000


def test_a_join_that_may_be_forgotten_is_among_the_warnings_of_the_answer() -> None:
    branch = CALL | {"then": "answer"}
    stages = {"plan": CALL | {"then": ["read", "search"]}, "read": branch, "search": branch, "answer": CALL}
    found = ps.check(made(workflow={"arrivals": {"poisson": 0.2}, "stages": stages}).network, jobs=300)
    assert found.warnings[0].startswith("stage 'answer' of w is reached by 2 branches of 'plan' and is no join")


def test_a_scenario_of_a_network_is_known_by_its_first_key() -> None:
    assert describes_network({"network": {}})
    assert not describes_network({"workload": {}, "server": {}})
    assert not describes_network(None)


def test_a_scenario_for_one_server_is_told_from_one_of_a_network() -> None:
    with pytest.raises(ps.InputError, match="workload is not a key of a scenario"):
        build({"workload": {}, "network": {}}, Path())
    with pytest.raises(ps.InputError, match="describes a network, not a server"):
        _ = made().server


def test_a_scenario_of_a_server_is_one_of_a_network_of_one_pool() -> None:
    workload = {"poisson": {"rate": 1, "prompt": 100, "output": 10}}
    scenario = build({"workload": workload, "server": SERVER}, Path())
    assert ps.certify(scenario.network).max_load == pytest.approx(ps.certify(*scenario.system).max_rate)


POOLS = "{p: {hardware: codellama-34b-a100-tp1, token_budget: 512}}"
WORKFLOWS = "{w: {arrivals: {poisson: 2}, stages: {call: {pool: p, prompt: 9, output: 5}}}}"


def said(*, pools: str = POOLS, workflows: str = WORKFLOWS, more: str = "", simulate: str = "{}") -> str:
    """A scenario with one part of it changed."""
    return f"network: {{pools: {pools}, workflows: {workflows}{more}}}\nsimulate: {simulate}\n"


def pool(keys: str) -> str:
    return said(pools=f"{{p: {{hardware: codellama-34b-a100-tp1, {keys}}}}}")


def flow(keys: str) -> str:
    return said(workflows=f"{{w: {{{keys}}}}}")


def stages(keys: str) -> str:
    return flow(f"arrivals: {{poisson: 2}}, stages: {{{keys}}}")


REQUESTS = "{poisson: {rate: 1, prompt: 9, output: 5}}"
CALLED = "pool: p, prompt: 9, output: 5"
REUSING = f"{{w: {{arrivals: {{poisson: 2}}, context: reuse, stages: {{a: {{{CALLED}, then: b}}, b: {{{CALLED}}}}}}}}}"
BAD = {
    "nothing": ("", "holds nothing, but a scenario is a mapping with `workload` and `server`, or `network`"),
    "a misspelt network": ("netwrk: {}", "netwrk is not a key of a scenario; did you mean 'network'"),
    "no pools": ("network: {workflows: {}}", "network.pools is missing"),
    "pools in a list": (said(pools="[p]"), "network.pools must be a mapping of keys, not ['p']"),
    "a pool called 1": (said(pools="{1: {}}"), "network.pools has the name 1, but a name is text; put it in quotes"),
    "an unknown key of the network": (said(more=", retention: 5"), "did you mean 'retention_s'"),
    "an unknown key of a pool": (
        pool("token_budget: 512, replica: 2"),
        "network.pools.p.replica is not a key of a scenario; did you mean 'replicas'",
    ),
    "a setting of an engine": (pool("token_budget: 512, watermark: 0.1"), "network.pools.p.watermark is not a key of"),
    "two names of one limit": (
        pool("token_budget: 5, max_num_batched_tokens: 6"),
        "network.pools.p.max_num_batched_tokens says again what another key of network.pools.p says",
    ),
    "a missing budget": (
        pool("replicas: 2"),
        "network.pools.p.token_budget is missing; add it (vLLM's max_num_batched_tokens), or for vllm and sglang",
    ),
    "limits by the GPU for a policy of the paper": (
        pool("token_budget: 512, gpu: {memory_gib: 80}"),
        "network.pools.p.gpu is for the schedulers of engines (",
    ),
    "no kinds of servers": (
        said(pools="{p: {servers: []}}"),
        "network.pools.p: servers is an empty list, so the pool serves nothing; give one",
    ),
    "a server beside the kinds": (
        pool("servers: [{hardware: codellama-34b-a100-tp1, token_budget: 512}]"),
        "network.pools.p: hardware stands beside `servers`, which each have keys of their own",
    ),
    "an unknown key of a kind": (
        said(pools="{p: {servers: [{hardware: codellama-34b-a100-tp1, token_budget: 512, replica: 2}]}}"),
        "network.pools.p.servers.0.replica is not a key of a scenario; did you mean 'replicas'",
    ),
    "a kind without a budget": (
        said(pools="{p: {servers: [{hardware: codellama-34b-a100-tp1}]}}"),
        "network.pools.p.servers.0.token_budget is missing",
    ),
    "a kind with an order of its own": (
        said(pools="{p: {servers: [{hardware: codellama-34b-a100-tp1, token_budget: 9, order: fcfs}]}}"),
        "network.pools.p.servers.0: order is fcfs, but all servers of a pool have one; give it beside `servers`",
    ),
    "reports before now": (
        pool("token_budget: 512, report_ms: -5"),
        "network.pools.p: report_ms is -5.0, but must be a number from 0",
    ),
    "no replicas": (pool("token_budget: 512, replicas: 0"), "network.pools.p: replicas is 0"),
    "replicas in words": (pool("token_budget: 512, replicas: many"), "network.pools.p.replicas must be a whole number"),
    "an unknown router": (
        pool("token_budget: 512, router: jsk"),
        "network.pools.p.router: unknown router 'jsk'; did you mean 'jsq'",
    ),
    "a measure of 0": (
        pool("token_budget: 512, router: {measure: {prefill: 0, decode: 1}}"),
        "network.pools.p.router.measure.prefill is 0",
    ),
    "half a measure": (
        pool("token_budget: 512, router: {measure: {prefill: 1}}"),
        "network.pools.p.router.measure.decode is missing",
    ),
    "settings of an unknown router": (
        pool("token_budget: 512, router: {mesure: {}}"),
        "network.pools.p.router: unknown router 'mesure'",
    ),
    "an unknown setting of a router": (
        pool("token_budget: 512, router: {prefix: {mach: 1}}"),
        "network.pools.p.router: router prefix has no setting 'mach'; it has match, spill, times",
    ),
    "a setting in words": (
        pool("token_budget: 512, router: {session: {spill: few}}"),
        "network.pools.p.router: spill of router session is 'few', but must be a number from 0",
    ),
    "a router that is a number": (
        pool("token_budget: 512, router: {prefix: 3}"),
        "network.pools.p.router: a router is {'prefix': 3}, but must be a name such as jsq, or one name with",
    ),
    "prefixes at a pool that caches none": (
        pool("token_budget: 512, policy: vllm, replicas: 2, router: prefix"),
        "network: router prefix of pool 'p' looks for prompts that replicas have computed, but they never have "
        "any: no server caches prefixes; give them `memory: {prefix_caching: true}`; or take jsq",
    ),
    "prefixes of prompts with nothing in common": (
        pool("token_budget: 512, replicas: 2, router: scored"),
        "no workflow has prompts in common; give one `context: reuse`, sessions, or a trace with hash ids; or set its",
    ),
    "memory that has no limit": (
        pool("token_budget: 512, replicas: 2, router: memory"),
        "network: router memory of pool 'p' looks at KV memory, but that of its servers has no limit",
    ),
    "sessions of one request": (
        pool("token_budget: 512, replicas: 2, router: session"),
        "network: router session of pool 'p' sends later requests of a job where its first one went, but no job",
    ),
    "affinity of one request": (
        pool("token_budget: 512, replicas: 2, affinity: true"),
        "network: affinity of pool 'p' sends later requests of a job where its first one went, but no job has",
    ),
    "a match of more than a prompt": (
        said(
            pools="{p: {hardware: codellama-34b-a100-tp1, token_budget: 9, replicas: 2, router: {prefix: {match: 1}}}}",
            workflows=REUSING,
        ),
        "network: router prefix of pool 'p' looks for replicas that have computed a share of 1 of a prompt, but none",
    ),
    "scores of no weight": (
        pool("token_budget: 512, replicas: 2, router: {scored: {cached: 0, queue: 0, memory: 0}}"),
        "network: router scored of pool 'p' weighs nothing (cached, queue, memory are 0), so all requests would go to",
    ),
    "an unknown order": (pool("token_budget: 512, order: hlps"), "network.pools.p.order: unknown order 'hlps'"),
    "an order that is a number": (pool("token_budget: 512, order: 3"), "network.pools.p.order: an order is 3"),
    "a priority that is a name": (
        pool("token_budget: 512, order: {priority: call}"),
        "network.pools.p.order: priority has 'call'",
    ),
    "an unknown stage in an order": (
        pool("token_budget: 512, order: {priority: [cal]}"),
        "network: the priority order of pool 'p' names 'cal', which is no stage",
    ),
    "a stage of another pool in an order": (
        said(
            pools=POOLS[:-1] + ", q: {hardware: codellama-34b-a100-tp1, token_budget: 5, order: {priority: [b, a]}}}",
            workflows="{w: {arrivals: {poisson: 2}, stages: {a: {pool: p, prompt: 9, output: 5, then: b}, "
            "b: {pool: q, prompt: 9, output: 5}}}}",
        ),
        "network: the priority order of pool 'q' names 'a', which pool 'p' serves; leave it out",
    ),
    "an order of stages at an engine": (
        pool("token_budget: 512, policy: vllm, order: hlpps"),
        "network.pools.p: the order of the pool is hlpps, but vllm",
    ),
    "no workflows": (said(workflows="{}"), "network: workflows are [], so nothing arrives"),
    "a workflow in words": (
        said(workflows="{w: fast}"),
        "network.workflows.w must be a mapping of keys (arrivals, workload, context, first, ",
    ),
    "an empty workflow": (
        flow(""),
        "network.workflows.w: give one of stages, sessions, disaggregated, by_length, pool, not none",
    ),
    "two kinds of workflow": (
        flow(f"pool: p, workload: {REQUESTS}, stages: {{}}"),
        "network.workflows.w: give one of stages, sessions, disaggregated, by_length, pool, not stages and pool",
    ),
    "no arrivals": (
        flow("stages: {call: {pool: p, prompt: 9, output: 5}}"),
        "network.workflows.w: give either `arrivals`",
    ),
    "two arrivals": (
        flow("arrivals: {poisson: 1, deterministic: 1}, stages: {call: {pool: p, prompt: 9, output: 5}}"),
        "network.workflows.w.arrivals: give one of poisson, deterministic, gamma, not poisson and deterministic",
    ),
    "an unknown process": (
        flow("arrivals: {poison: 1}, stages: {}"),
        "network.workflows.w.arrivals.poison is not a key of a scenario; did you mean 'poisson'",
    ),
    "a rate without a process": (
        flow("arrivals: 3.0, stages: {}"),
        "network.workflows.w.arrivals: arrivals are 3.0, but need a process; give {poisson: 3.0}, in jobs/s",
    ),
    "a process without a rate": (
        flow("arrivals: poisson, stages: {}"),
        "network.workflows.w.arrivals: arrivals are 'poisson', but need a process; give {poisson: 3}, in jobs/s",
    ),
    "a rate as in a workload": (
        flow("arrivals: {poisson: {rate: 2.5, prompt: 9}}, stages: {}"),
        "but must be a bare number of jobs/s, such as 2.5; lengths are those of the stages",
    ),
    "an unknown key of a process": (
        flow("arrivals: {gamma: {rate: 2, cv2: 3}}, stages: {}"),
        "network.workflows.w.arrivals.gamma.cv2 is not a key of a scenario; did you mean 'cv'",
    ),
    "a negative rate": (
        flow("arrivals: {poisson: -1}, stages: {call: {pool: p, prompt: 9, output: 5}}"),
        "network.workflows.w.arrivals: ",
    ),
    "lengths that arrivals lack": (
        stages("call: {pool: p, prompt: job, output: 5}"),
        "network.workflows.w: stage 'call' takes lengths of the job, but `arrivals` bring none; give a `workload`",
    ),
    "a bad workload": (
        flow("workload: {presett: azure-conv}, pool: p"),
        "network.workflows.w.workload.presett is not a key of a scenario; did you mean 'preset'",
    ),
    "two workloads": (
        flow("workload: {preset: azure-conv, trace: x.csv}, stages: {call: {pool: p, prompt: 9, output: 5}}"),
        "network.workflows.w.workload: give one of trace, recording, preset",
    ),
    "a missing trace": (flow("workload: {trace: nope.csv}, pool: p"), "network.workflows.w.workload: "),
    "arrivals without lengths": (
        flow("arrivals: {poisson: 1}, pool: p"),
        "network.workflows.w: `arrivals` says nothing beside `pool`",
    ),
    "a pool without requests": (flow("pool: p"), "network.workflows.w: a `pool` needs the `workload`"),
    "a context beside sessions": (
        flow("sessions: {trace: x.csv}, pool: p, context: grow"),
        "network.workflows.w: `context` says nothing beside `sessions`; leave it out",
    ),
    "sessions without a pool": (
        flow("sessions: {trace: x.csv}"),
        "network.workflows.w.sessions: their requests need a `pool`",
    ),
    "sessions that are missing": (flow("sessions: {trace: nope.csv}, pool: p"), "nope.csv"),
    "sessions without a name": (flow("sessions: {trace: ''}, pool: p"), "network.workflows.w.sessions.trace is ''"),
    "half a pair": (
        flow(f"disaggregated: {{workload: {REQUESTS}, prefill: p}}"),
        "network.workflows.w.disaggregated.decode is missing",
    ),
    "a bad workload of a pair": (
        flow("disaggregated: {workload: {}, prefill: p, decode: p}"),
        "network.workflows.w.disaggregated.workload: give one of trace, recording, preset",
    ),
    "a stage without a pool": (
        stages("call: {prompt: 9, output: 5}"),
        "network.workflows.w.stages.call.pool is missing; add it",
    ),
    "an unknown key of a stage": (
        stages("call: {pool: p, prompt: 9, output: 5, next: call}"),
        "network.workflows.w.stages.call.next is not a key of a scenario",
    ),
    "an unknown pool": (
        stages("call: {pool: q, prompt: 9, output: 5}"),
        "network: stage 'w.call' is served by pool 'q', which there is not",
    ),
    "an idle pool": (
        said(pools=POOLS[:-1] + ", q: {hardware: codellama-34b-a100-tp1, token_budget: 5}}"),
        "network: pool 'q' serves no stage",
    ),
    "a length in words": (
        stages("call: {pool: p, prompt: long, output: 5}"),
        "network.workflows.w.stages.call.prompt: a length is 'long'",
    ),
    "an unknown distribution": (
        stages("call: {pool: p, prompt: {geometrc: 4}, output: 5}"),
        "network.workflows.w.stages.call.prompt: length: unexpected ['geometrc']; did you mean 'geometric'",
    ),
    "a negative delay": (
        stages("call: {pool: p, prompt: 9, output: 5, delay_ms: -1}"),
        "network.workflows.w: delay_ms of stage 'call' of w is -1",
    ),
    "a delay with a unit": (
        stages("call: {pool: p, prompt: 9, output: 5, delay_ms: 400ms}"),
        "network.workflows.w: delay_ms of stage 'call' of w is '400ms', but must be a number from 0 to "
        "1,000,000,000,000 ms: give a bare number, which counts ms, or for a random delay a distribution",
    ),
    "an unknown stage": (
        stages("call: {pool: p, prompt: 9, output: 5, then: cal}"),
        "network.workflows.w: stage 'call' of w goes on to the unknown stage 'cal'; did you mean 'call'",
    ),
    "a loop without end": (
        stages("a: {pool: p, prompt: 9, output: 5, then: b}, b: {pool: p, prompt: 9, output: 5, then: a}"),
        "network.workflows.w: w never ends: no path leads out of the loop a -> b -> a",
    ),
    "chances that do not add up": (
        stages("a: {pool: p, prompt: 9, output: 5, then: {end: 0.5}}"),
        "network.workflows.w: the probabilities after stage 'a' of w add up to 0.5",
    ),
    "a join without a fork": (
        stages("a: {pool: p, prompt: 9, output: 5, then: b}, b: {pool: p, prompt: 9, output: 5, join: true}"),
        "network.workflows.w: stage 'a' of w reaches the join 'b' outside of a fork",
    ),
    "an unknown context": (flow("context: gro, stages: {}"), "network.workflows.w.context must be 'new', 'grow' or"),
    "retention without reuse": (said(more=", retention_s: 5"), "network: retention_s is 5, but no workflow reuses"),
    "retention at engines": (
        said(
            pools="{p: {hardware: codellama-34b-a100-tp1, token_budget: 512, policy: vllm}}",
            workflows=REUSING,
            more=", retention_s: 5",
        ),
        "network: retention_s is 5, but contexts are reused at engines only, which keep them for as long as their KV",
    ),
    "no jobs": (said(simulate="{jobs: 0}"), "simulate.jobs is 0"),
    "jobs and until": (said(simulate="{jobs: 5, until: 5}"), "simulate: `jobs` and `until` both say when to stop"),
    "no time": (said(simulate="{until: 0}"), "simulate.until is 0"),
    "a negative seed": (said(simulate="{seed: -1}"), "simulate.seed is -1"),
    "requests for jobs": (said(simulate="{requests: 5}"), "simulate.requests is not a key of a scenario"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_is_said_in_one_line_that_names_the_key(what: str, tmp_path: Path) -> None:
    text, complaint = BAD[what]
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(ps.InputError) as caught:
        read_scenario(tmp_path / "s.yaml")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_sorted_keys_do_not_change_where_jobs_begin() -> None:
    """A program that dumps YAML may sort the keys; what the graph does not say has to be said by `first`."""
    stages = {"plan": CALL | {"then": "act"}, "act": CALL | {"then": {"act": 0.3, "end": 0.7}}}
    for order in (list(stages), sorted(stages)):
        assert workflow(made(workflow=POISSON | {"stages": {name: stages[name] for name in order}})).begins == ("plan",)
    loop = {"plan": CALL | {"then": "act"}, "act": CALL | {"then": {"plan": 0.3, "end": 0.7}}}
    for order in (list(loop), sorted(loop)):
        flow = POISSON | {"stages": {name: loop[name] for name in order}}
        with pytest.raises(ps.InputError, match=r"may begin at (plan or act|act or plan).*`first: "):
            made(workflow=flow)
        assert workflow(made(workflow=flow | {"first": "plan"})).begins == ("plan",)


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        ({"affinity": 1}, "affinity must be true or false, not 1"),
        ({"order": {"priority": []}}, "give `order: {priority: [w.call]}`, most urgent first"),
        ({"max_batch_size": 0}, "leave it out for no limit"),
    ],
)
def test_messages_are_in_the_words_of_the_file(pool: dict[str, object], words: str) -> None:
    with pytest.raises(ps.InputError) as refused:
        made(pool)
    assert words in str(refused.value)
    assert not any(python in str(refused.value) for python in ("None", "Order."))
