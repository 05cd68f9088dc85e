"""The highest stable load of a network: theorems where they leave no gap, floods of the same jobs where they do."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock as ps
from penstock.errors import InputError
from tests.conftest import Said
from tests.network_examples import DESTABILISING, REVERSED, dag, rybko_stolyar

SERVER = ps.Server(ps.Affine(c=0.01, a=1e-4), 256, 64)
WORKLOAD = ps.Workload.poisson(12.0, ps.Geometric(300, max=2_000), ps.Geometric(50, max=300))

POOL = """
network:
  pools:
    small: {batch_time: {c_ms: 10, a_ms: 0.1, b0: 1}, token_budget: 256, max_batch_size: 64, POLICY replicas: 4}
  workflows:
    chat:
      workload:
        poisson: {rate: 12, prompt: {geometric: {mean: 300, max: 2000}}, output: {geometric: {mean: 50, max: 300}}}
      stages: {answer: {pool: small, prompt: job, output: job}}
simulate: {jobs: 1000, seed: 0}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "pool.yaml"
    path.write_text(POOL.replace("POLICY", "policy: vllm, memory: {tokens: 6000},"))
    return path


def test_where_theorems_leave_no_gap_nothing_is_simulated() -> None:
    """An acyclic network carries whatever its fullest pool does."""
    found = ps.max_rate(dag(0.5))
    assert found.trials == ()
    assert found.known == "DAG theorem"
    assert found.rate == found.bound == pytest.approx(2.0)
    assert found.as_dict()["share"] == pytest.approx(1.0)
    (section,) = found.page().sections
    figures = {fact.name: fact.figure for fact in section.facts}
    assert (figures["Stable up to"], figures["Share"], figures["Known by"]) == ("2", "100.0%", found.known)


def test_what_a_network_takes_on_trust_is_tried_as_of_a_server() -> None:
    """A policy that claims to fill its batches, and serves half of them, carries what floods find."""

    @ps.policy(work_conserving=True)
    def half(queue, limits, params):  # type: ignore[no-untyped-def]
        decode = min(queue.decoding, limits.token_budget // 2)
        return min(queue.prompt_tokens, limits.token_budget // 2 - decode), decode, ps.DECODE_FIRST

    server = ps.Server(SERVER.batch_time, 256, policy=half)
    found = ps.max_rate(ps.Network.single(ps.Workload.poisson(5.0, 129, 112), server), precision=0.2)
    assert found.certified is not None
    assert found.rate < found.certified
    assert found.known == "simulation"
    said = str(found.disagreement)
    assert f"stable up to {found.certified:,.4g} times this load" in said
    assert said.endswith("in doubt is what was taken on trust: work-conserving policy")
    assert found.as_dict()["certified_load"] == found.certified


def test_the_order_that_a_virtual_station_makes_unstable_is_not_searched_above_it() -> None:
    """Rybko and Stolyar: both orders have a load below 1 at every pool, and one fails far below it."""
    good, bad = (ps.max_rate(rybko_stolyar(0.9, order)) for order in (REVERSED, DESTABILISING))
    limits = sorted(found.rate for found in (good, bad))
    stations = [ps.certify(rybko_stolyar(0.9, order)).virtual_station for order in (REVERSED, DESTABILISING)]
    lowest = min(station.max_load for station in stations if station is not None)
    assert limits[0] == pytest.approx(lowest, rel=1e-6)
    assert limits[1] == pytest.approx(1 / 0.9)
    assert good.trials == bad.trials == ()


def test_floods_go_on_where_the_linear_program_ends() -> None:
    found = ps.max_rate(rybko_stolyar(0.9, "fcfs"))
    assert found.known == "simulation"
    assert found.certified is not None
    assert found.bound is not None
    assert found.certified < 0.7 < 1.05 < found.rate < found.above <= found.bound
    assert found.above <= found.rate * 1.05 * (1 + 1e-9)
    assert found.disagreement is None


@pytest.mark.parametrize("policy", ["sarathi", "orca", pytest.param("vllm", marks=pytest.mark.slow), "sglang"])
def test_a_pool_behind_chance_carries_as_much_per_replica_as_one_server(policy: str) -> None:
    """The two searches rest on two tests: floods of a network, and the drift of one server."""
    memory = None if policy in ("sarathi", "orca") else 4_000
    server = ps.Server(SERVER.batch_time, 256, 64, policy=policy, kv_tokens=memory)
    pool = ps.max_rate(ps.Network.single(WORKLOAD, server, 3, "random"), precision=0.05)
    alone = ps.max_rate(WORKLOAD, server, precision=0.02)
    assert pool.rate * 12.0 / 3 <= alone.above * 1.02
    assert pool.above * 12.0 / 3 >= alone.rate * 0.98
    assert pool.bound == pytest.approx(alone.bound * 3 / 12.0, rel=1e-3)


def test_tokens_that_preemptions_waste_do_not_count_as_work_done() -> None:
    """Near the limit of KV memory replicas do much of their work anew; the flood must not seem to drain by that."""
    server = ps.Server(SERVER.batch_time, 256, 64, policy="vllm", kv_tokens=2_500)
    limit = ps.max_rate(WORKLOAD, server, precision=0.02)
    for share, verdict in ((0.93, "stable"), (1.07, "unstable")):
        rate = share * 4 * limit.rate
        test = ps.verdict(ps.Network.single(WORKLOAD.with_rate(rate), server, 4, "jsq"))
        assert test.verdict == verdict
        assert test.deciding.ratio > 0


def test_the_bound_of_what_may_be_found_computed_is_the_load_if_all_of_it_is() -> None:
    """A session's calls go on with its context; behind jsq nobody knows how often they come to the same replica."""
    turns = [("chat", ps.Geometric(300, max=2_000), ps.Geometric(50, max=300))] * 3
    sessions = ps.Workflow.chain("session", ps.Workload.poisson(1.0, 1, 1), turns, context="reuse")
    found = ps.max_rate(ps.Network({"chat": ps.Pool(SERVER, 2, "random")}, [sessions]), precision=0.2)
    full = ps.max_rate(ps.Network({"chat": ps.Pool(SERVER, 2, affinity=True)}, [sessions]), precision=0.2)
    assert found.rate < full.rate * 1.25
    assert found.bound == pytest.approx(full.bound, rel=0.02)
    assert 0.3 < found.share < 1


def test_how_much_pools_for_prompts_and_for_decodes_carry_is_found_by_floods() -> None:
    """Engines with KV memory that is sent from one to the other; the links carry 10 requests a second."""
    server = ps.Server(ps.Affine(c=0.01, a=1e-4), 512, 64, policy="vllm", kv_tokens=40_000)
    pair = ps.Workflow.disaggregated(
        ps.Workload.poisson(5.0, 200, 51, seed=4), prefill="p", decode="d", transfer_ms_per_token=0.5
    )
    found = ps.max_rate(ps.Network({"p": ps.Pool(server), "d": ps.Pool(server)}, [pair]), precision=0.1)
    assert found.bound == pytest.approx(2.0)
    assert 0.8 * found.bound < found.rate <= found.bound


def test_recorded_jobs_have_no_highest_load() -> None:
    rows = WORKLOAD.requests(50)
    recorded = ps.Workload.from_arrays(rows.arrival_s, rows.prompt_tokens, rows.output_tokens)
    with pytest.raises(InputError, match="all jobs are recorded"):
        ps.max_rate(ps.Network.single(recorded, SERVER, 2))
    with pytest.raises(InputError, match="the test of a network has a resolution, not an alpha"):
        ps.max_rate(ps.Network.single(WORKLOAD, SERVER, 2), alpha=0.1)


def test_routers_and_policies_stand_side_by_side(penstock: Callable[..., Said], scenario: Path) -> None:
    _, said, _ = penstock(
        "max-rate", scenario, "--routers", "jsq,random", "--policies", "vllm,sarathi", "--precision", 0.2, "--json"
    )
    found = json.loads(said)["networks"]
    assert list(found) == ["vllm, jsq", "vllm, random", "sarathi, jsq", "sarathi, random"]
    assert all(0 < load["load"] < load["above"] <= load["bound"] for load in found.values())


def test_a_router_of_ones_own_is_looked_for_beside_the_scenario_and_outages_are_said_to_be_left_out(
    penstock: Callable[..., Said], scenario: Path
) -> None:
    (scenario.parent / "mine.py").write_text("def last(replicas, request, params):\n    return replicas.shape[0] - 1\n")
    scenario.write_text(scenario.read_text().replace("seed: 0", "outages: [{pool: small, from: 5, to: 9}], seed: 0"))
    _, said, _ = penstock("max-rate", scenario, "--routers", "mine.py:last", "--precision", "0.3", "--json")
    found = json.loads(said)
    assert list(found["networks"]) == ["last"]
    assert [note for note in found["warnings"] if note.startswith("outages are left out: they end")]


def test_orders_stand_side_by_side_for_pools_of_lines(penstock: Callable[..., Said], scenario: Path) -> None:
    scenario.write_text(POOL.replace("POLICY", ""))
    _, said, _ = penstock("max-rate", scenario, "--orders", "fcfs,decode-first", "--json")
    assert list(json.loads(said)["networks"]) == ["fcfs", "decode-first"]
    _, table, _ = penstock("max-rate", scenario, "--orders", "fcfs,decode-first", "--why")
    assert "Order" in table
    assert "decode-first" in table
    _, said, _ = penstock("max-rate", scenario, "--json")
    assert list(json.loads(said)["networks"]) == ["as it is"]


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (["--alpha", "0.1"], "describes a network, which knows no --alpha"),
        (["--routers", ","], "--routers names none"),
        (["--routers", "jqs"], "did you mean 'jsq'"),
        (["--routers", "jsq,prefix"], "router prefix of pool 'small' looks for prompts that replicas have computed"),
        (["--orders", "hlpps"], "the order of the pool is hlpps, but vllm"),
        (["--policies", "vlm"], "vllm"),
    ],
)
def test_what_a_network_cannot_vary_is_refused_in_one_line(
    penstock: Callable[..., Said], scenario: Path, options: list[str], wrong: str
) -> None:
    code, said, reason = penstock("max-rate", scenario, *options)
    assert code == 2
    assert said == ""
    assert wrong in reason
