"""The search space holds every combination once, each with its cost, and says what cannot exist."""

import dataclasses

import pytest

import penstock as ps
from penstock.errors import InputError
from penstock.planning.deployment import Deployment
from penstock.planning.evaluate import network_of
from penstock.planning.space import search_space
from penstock.system.models.gpus import SHEETS

SERVER = ps.Server(ps.Affine(c=0.01, a=1e-4), token_budget=256)


def test_every_combination_is_there_once() -> None:
    space = search_space(
        SERVER, hardware=["codellama-34b-a100-tp1", "codellama-34b-a100-tp2"], token_budget=[128, 512],
        policy=["sarathi", "orca"], max_batch_size=[None, 64], router=["random", "jsq"], replicas=5,
    )  # fmt: skip
    names = [deployment.name for deployment in space]
    assert len(names) == len(set(names)) == len(space) == 2 * 2 * 2 * 2 * 2 * 5


def test_what_is_not_searched_is_as_the_server_has_it() -> None:
    (deployment,) = search_space(SERVER, replicas=[3])
    assert deployment.server == SERVER
    assert (deployment.replicas, deployment.router.name, deployment.kind.hardware) == (3, "jsq", None)


def test_presets_bring_batch_times_and_accelerators() -> None:
    (deployment,) = search_space(SERVER, hardware=["codellama-34b-a100-tp4"], replicas=[2], price={"a100": 2.5})
    assert deployment.server.batch_time == ps.hardware("codellama-34b-a100-tp4").batch_time
    assert deployment.total_accelerators == 8
    assert deployment.cost == 2.5 * 8


def test_the_longest_name_that_matches_gives_the_price() -> None:
    (deployment,) = search_space(
        SERVER, hardware=["codellama-34b-a100-tp1"], replicas=[1], price={"a100": 2.0, "A100 80 GB": 3.0}
    )
    assert deployment.kind.price == 3.0


def test_without_prices_accelerators_are_counted() -> None:
    (deployment,) = search_space(SERVER, replicas=[3], accelerators=2)
    assert deployment.cost == deployment.total_accelerators == 6


def test_dearer_deployments_are_left_out() -> None:
    space = search_space(SERVER, replicas=9, price=2.0, max_cost=7.0)
    assert [deployment.replicas for deployment in space] == [1, 2, 3]


def test_a_ratio_divides_all_replicas_into_prompts_and_decodes() -> None:
    space = search_space(SERVER, disaggregation=["2:4"], replicas=9)
    assert [(d.replicas, d.prefill_replicas) for d in space] == [(3, 1), (6, 2), (9, 3)]
    assert next(iter(space)).ratio == (1, 2)
    with pytest.raises(InputError, match="4 replicas cannot be divided 1:2"):
        next(iter(space)).with_replicas(4)


def test_what_cannot_exist_is_refused_with_its_reason() -> None:
    """Of sglang it is not known how it goes on with what another replica has prefilled."""
    space = search_space(SERVER, policy=["sarathi", "vllm", "sglang"], disaggregation=["1:1"], replicas=4)
    assert [family.name.partition(", budget")[0] for family in space.families] == ["server, sarathi", "server, vllm"]
    assert [each.by for each in space.refused] == ["impossible"]
    assert space.refused[0].why.startswith("prefill and decode apart are not judged for sglang as its")
    with pytest.raises(InputError, match="no deployment of the search space can exist"):
        search_space(SERVER, policy=["sglang"], disaggregation=["1:1"])


def test_a_transfer_takes_the_bytes_of_a_token_over_the_bandwidth() -> None:
    tp1, tp2 = "codellama-34b-a100-tp1", "codellama-34b-a100-tp2"
    wanted = {"hardware": [tp1, tp2], "disaggregation": [None, "1:1"], "replicas": 2, "transfer_gb_per_s": 25.0}
    times = {d.transfer_ms_per_token for d in search_space(SERVER, **wanted) if d.prefill_replicas}  # type: ignore[arg-type]
    assert times == {196_608 / 25e6}
    given = search_space(SERVER, disaggregation=["1:1"], transfer_gb_per_s=25.0, kv_bytes_per_token=1e6)
    assert {d.transfer_ms_per_token for d in given} == {0.04}
    with pytest.raises(InputError, match="give kv_bytes_per_token"):
        search_space(SERVER, disaggregation=["1:1"], transfer_gb_per_s=25.0)
    with pytest.raises(InputError, match="transfer_gb_per_s is 0, but must be a number from"):
        search_space(SERVER, disaggregation=["1:1"], transfer_gb_per_s=0)


def test_engines_serve_behind_any_router() -> None:
    space = search_space(SERVER, policy=["sarathi", "vllm"], router=["random", "jsq"], replicas=4)
    names = [f"server, {policy}, budget 256{router}" for policy in ("sarathi", "vllm") for router in ("", ", jsq")]
    assert {family.name for family in space.families} == set(names)


def test_a_router_with_other_settings_is_another_deployment() -> None:
    session = ps.ROUTERS["session"].with_settings(spill=3)
    space = search_space(SERVER, router=["prefix", {"prefix": {"match": 0.5, "times": 1.5}}, session], replicas=2)
    names = ["prefix", "prefix (match 0.5)", "session (spill 3)"]
    assert [family.name for family in space.families] == [f"server, sarathi, budget 256, {name}" for name in names]
    plain, matched, spilling = (family.at(2) for family in space.families)
    assert plain.router == ps.ROUTERS["prefix"]
    assert dict(matched.router.settings) == {"match": 0.5, "spill": 64, "times": 1.5}
    assert spilling.router == session
    assert matched.as_dict()["router_settings"] == {"match": 0.5}


def test_the_settings_of_a_router_reach_the_network_that_is_simulated() -> None:
    engine = ps.Server(ps.Affine(c=0.01, a=1e-4), 256, policy="vllm", kv_tokens=20_000)
    (family,) = search_space(engine, router=[{"scored": {"cached": 0, "memory": 5}}], replicas=2).families
    router = network_of(ps.Workload.poisson(1.0, 10, 10), family.at(2)).pools["pool"].router
    assert dict(router.settings) == {"cached": 0, "queue": 2, "memory": 5}


def test_a_policy_that_is_out_of_place_is_called_unsuited_and_that_of_the_scenario_is_kept() -> None:
    space = search_space(SERVER, policy=["sarathi", "maxweight"], max_batch_size=[64])
    assert [family.name for family in space.families] == ["server, sarathi, budget 256, at most 64, jsq"]
    assert [each.by for each in space.refused] == ["unsuited"]
    assert "starves decodes" in space.refused[0].why
    with pytest.raises(InputError, match="no deployment of the search space is worth judging: maxweight starves"):
        search_space(SERVER, policy=["maxweight"], max_batch_size=[64])
    own = search_space(SERVER.with_policy("maxweight"), max_batch_size=[64])
    assert [family.smallest.server.scope_warning is None for family in own.families] == [False]
    assert own.refused == ()


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"hardware": ["a100-of-nobody"]}, "unknown hardware"),
        ({"token_budget": [0]}, "token_budget is 0"),
        ({"policy": ["sarahti"]}, "sarathi"),
        ({"policy": ["maxweight"], "max_batch_size": [64]}, "maxweight starves decodes"),
        ({"router": ["rnadom"]}, "random"),
        ({"router": ["jsq", "rnadom"]}, "random"),
        ({"router": [{"prefix": {"mtach": 0.5}}]}, "router prefix has no setting 'mtach'; it has match, spill, times"),
        ({"router": [{"prefix": 0.5}]}, "one name with its settings, such as {prefix: {match: 0.5}}"),
        ({"disaggregation": ["1/2"]}, "search.disaggregation is '1/2'"),
        ({"disaggregation": ["0:2"]}, "search.disaggregation is '0:2'"),
        ({"replicas": 0}, "search.replicas.max is 0"),
        ({"replicas": []}, "search.replicas is empty"),
        ({"router": []}, "search.router is empty"),
        ({"price": -1.0}, "price is -1"),
        ({"price": {"h100": 4.0}, "hardware": ["codellama-34b-a100-tp1"]}, "no price matches A100 80 GB"),
        ({"max_cost": 0.5}, "no number of replicas is allowed, costs at most 0.5"),
        ({"token_budget": range(1, 1000), "max_batch_size": range(1, 1000)}, "the search space has 998,001"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_one_line(given: dict[str, object], wrong: str) -> None:
    with pytest.raises(InputError) as error:
        search_space(SERVER, **given)  # type: ignore[arg-type]
    assert wrong in str(error.value)
    assert "\n" not in str(error.value)


def test_a_deployment_needs_a_replica_that_decodes() -> None:
    with pytest.raises(InputError, match="at least one replica must decode"):
        Deployment(SERVER, 2, prefill_replicas=2)


def test_the_kv_memory_of_an_engine_is_that_of_each_hardware() -> None:
    names = ["llama-2-70b-a100-tp2", "llama-2-70b-a100-tp4"]
    preset = ps.hardware(names[0])
    server = ps.Server(preset.batch_time, 2048, 256, policy="vllm", gpu=preset.gpu)
    space = search_space(server, hardware=names, replicas=1)
    held = {d.kind.hardware: d.server.memory.tokens for d in space}  # type: ignore[union-attr]
    for name in names:
        known = ps.Server(ps.hardware(name).batch_time, 2048, 256, policy="vllm", gpu=ps.hardware(name).gpu)
        assert held[name] == known.memory.tokens  # type: ignore[union-attr]
    assert held[names[1]] > 10 * held[names[0]]


def test_hardware_that_cannot_hold_the_weights_is_refused_and_a_number_of_tokens_goes_before_the_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(SHEETS, "a100-sxm", dataclasses.replace(SHEETS["a100-sxm"], memory_gib=72.0))
    names = ["llama-2-70b-a100-tp2", "llama-2-70b-a100-tp4"]
    preset = ps.hardware(names[1])
    server = ps.Server(preset.batch_time, 2048, 256, policy="vllm", gpu=preset.gpu)
    space = search_space(server, hardware=names, replicas=1)
    assert [d.kind.hardware for d in space] == names[1:]
    assert "would not start" in space.refused[0].why
    (given,) = search_space(server, hardware=names[1:], replicas=1, kv_tokens=16_000)
    assert given.server.memory == ps.Memory(1_000)
