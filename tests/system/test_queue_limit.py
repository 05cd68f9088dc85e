"""Limits on the queue: those that an engine has, and no others."""

import pytest

import penstock as ps
from penstock.scenario.scenario import build

TIMES = ps.Affine(0.01, 1e-4)


@pytest.mark.parametrize(
    ("policy", "limit"),
    [
        ("vllm", {"requests": 10}),
        ("vllm", {"prompt_tokens": 900}),
        ("sglang", {"waiting": 4}),
        ("sarathi", {"waiting": 4, "ttft_ms": 90}),
    ],
)
def test_an_engine_has_its_own_limits(policy, limit):
    server = ps.Server(TIMES, 512, 32, policy, queue_limit=ps.QueueLimit(**limit), kv_tokens=9_000)
    assert server.queue_limit.stated == limit
    assert "refuses beyond" in server.limits


@pytest.mark.parametrize(
    ("policy", "limit", "says"),
    [
        ("vllm", {"waiting": 4}, "queue_limit.waiting is no limit of vllm; it has requests and prompt_tokens"),
        ("sglang", {"requests": 4}, "queue_limit.requests is no limit of sglang; it has waiting"),
        ("tensorrt-llm", {"requests": 4}, "queue_limit.requests is no limit of tensorrt-llm; it has none"),
    ],
)
def test_a_limit_that_the_engine_does_not_have_is_refused(policy, limit, says):
    with pytest.raises(ps.InputError) as error:
        ps.Server(TIMES, 512, 32, policy, queue_limit=ps.QueueLimit(**limit))
    assert str(error.value).startswith(says)
    assert "router_limit" in str(error.value)


@pytest.mark.parametrize("limit", [{"requests": 0}, {"waiting": 0}, {"prompt_tokens": 0}, {"ttft_ms": 0}, {}])
def test_a_limit_that_lets_nobody_in_or_refuses_nobody_is_refused(limit):
    with pytest.raises(ps.InputError):
        ps.QueueLimit(**limit)


def document(**server):
    """Return a scenario of a server."""
    usual = {"batch_time": {"c_ms": 11.28, "a_ms": 35.47, "b0": 128}, "token_budget": 512, "policy": "vllm"}
    return {"workload": {"poisson": {"rate": 1, "prompt": 100, "output": 10}}, "server": usual | server}


def test_a_scenario_takes_the_names_of_engines_inside(tmp_path):
    scenario = build(document(queue_limit={"max_num_queued_reqs": 9}), tmp_path)
    assert scenario.server.queue_limit == ps.QueueLimit(requests=9)


def test_a_flag_beside_the_server_says_where_it_belongs(tmp_path):
    with pytest.raises(ps.InputError, match=r"of a server it is `queue_limit: \{max_num_queued_reqs: \.\.\.\}`"):
        build(document(max_num_queued_reqs=9), tmp_path)


def test_a_pool_of_a_scenario_has_a_limit_of_its_router(tmp_path):
    pools = {"chat": document()["server"] | {"replicas": 2, "router_limit": {"ttft_ms": 900}}}
    flows = {"chat": {"pool": "chat", "workload": document()["workload"], "patience": {"ttft_ms": {"geometric": 900}}}}
    scenario = build({"network": {"pools": pools, "workflows": flows}}, tmp_path)
    assert scenario.network.pools["chat"].router_limit == ps.QueueLimit(ttft_ms=900)
    assert scenario.network.workflows[0].patience.ttft_ms == ps.Geometric(900)
    assert scenario.network.guarded
    assert not scenario.network.unguarded.guarded
