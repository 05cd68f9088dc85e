"""`penstock plan` answers in words or JSON, and says in one line what is wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import penstock as ps
from penstock.planning import answers
from penstock.planning.scenario import read_plan
from tests.asked_once import asked_once
from tests.conftest import Said

SCENARIO = """
workload: {poisson: {rate: 20, prompt: {geometric: {mean: 400, max: 2000}}, output: {geometric: {mean: 50, max: 300}}}}
server: {batch_time: {affine: {c_ms: 10, a_ms_per_token: 0.1}}, token_budget: 256}
simulate: {requests: 400, seed: 1}
plan:
  targets: [ttft_p99<300ms]
  search: {token_budget: [128, 256], policy: [sarathi], replicas: {max: 16}}
  price: 2.5
"""


@pytest.fixture(autouse=True)
def _asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_once(monkeypatch, answers, "plan")


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(SCENARIO)
    return path


def changed(path: Path, **plan: object) -> Path:
    """Write the scenario with other keys of its plan."""
    document = yaml.safe_load(SCENARIO)
    document["plan"] |= plan
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    """What the library says of the scenario."""
    workload = ps.Workload.poisson(20.0, ps.Geometric(400, max=2_000), ps.Geometric(50, max=300), seed=1)
    server = ps.Server(ps.Affine(c=0.01, a=1e-4), 256)
    space = ps.search_space(server, token_budget=[128, 256], policy=["sarathi"], replicas=16, price=2.5)
    found = ps.plan(workload, space, ["ttft_p99<300ms"], requests=400)
    return json.loads(json.dumps(found.as_dict()))  # type: ignore[no-any-return]


def test_json_is_the_answer_of_the_library(
    penstock: Callable[..., Said], scenario: Path, answer: dict[str, Any]
) -> None:
    status, out, err = penstock("plan", scenario, "--json")
    assert (status, err) == (0, "")
    assert json.loads(out)["plan"] == answer


def test_words_begin_with_the_answer(penstock: Callable[..., Said], scenario: Path, answer: dict[str, Any]) -> None:
    status, out, _ = penstock("plan", scenario)
    best = answer["best"]["deployment"]
    assert status == 0
    replicas = f"{best['replicas']} replicas of the server behind jsq"
    assert f"\nCheapest     {replicas}" in out
    assert "\nMET          ttft_p99<0.3s: " in out
    assert f"{best['cost']:.2f} per hour" in out
    assert f"{answer['simulations']} of {answer['space']} deployments (" in penstock("plan", scenario, "--why")[1]
    assert max(map(len, out.splitlines())) <= 80


def test_the_command_line_goes_before_the_scenario(penstock: Callable[..., Said], scenario: Path) -> None:
    given = ("--target", "e2e_mean<9s", "--requests", 500, "--seed", 3, "--objective", "goodput", "--goodput", 0.9)
    found = json.loads(penstock("plan", scenario, *given, "--json")[1])["plan"]
    assert (found["targets"], found["objective"], found["goodput"]) == (["e2e_mean<9s"], "goodput", 0.9)


def test_strict_fails_where_no_deployment_does(penstock: Callable[..., Said], scenario: Path) -> None:
    impossible = ("plan", scenario, "--target", "tbt_p50<1ms")
    assert penstock(*impossible)[0] == 0
    status, out, _ = penstock(*impossible, "--strict")
    assert status == 1
    assert "UNREACHABLE  tbt_p50<0.001s: tbt_p50 is at least 10.1 ms" in " ".join(out.split("\n"))
    assert penstock("plan", scenario, "--strict")[0] == 0


def test_the_manifest_is_written_where_an_engine_can_run_the_answer(
    penstock: Callable[..., Said], scenario: Path, answer: dict[str, Any], tmp_path: Path
) -> None:
    written = tmp_path / "fleet-on-kubernetes.yaml"
    assert penstock("plan", scenario, "--manifest", written)[0] == 0
    deployment = next(each for each in yaml.safe_load_all(written.read_text()) if each["kind"] == "Deployment")
    assert deployment["spec"]["replicas"] == answer["best"]["deployment"]["replicas"]


def test_an_answer_is_said_before_a_manifest_that_no_engine_can_have_is_refused(
    penstock: Callable[..., Said], scenario: Path, tmp_path: Path
) -> None:
    path = changed(scenario, search={"disaggregation": "1:1", "replicas": {"max": 16}})
    status, out, err = penstock("plan", path, "--manifest", tmp_path / "m.yaml")
    assert status == 2
    assert "\nCheapest " in out
    assert "there is no deployment that an engine can run" in err


def test_a_server_needs_no_more_than_the_search_leaves_open(tmp_path: Path) -> None:
    path = tmp_path / "open.yaml"
    path.write_text(
        "workload: {preset: azure-conv, rate: 5, arrivals: poisson}\n"
        "plan: {targets: ttft_p99<2s, search: {hardware: codellama-34b-a100-tp2, token_budget: [256, 512]}}\n"
    )
    asked = read_plan(path)
    assert len(asked.space) == 2 * 32
    assert {d.kind.hardware for d in asked.space} == {"codellama-34b-a100-tp2"}


@pytest.mark.parametrize(
    ("plan", "wrong"),
    [
        ({"targets": []}, "names no target"),
        ({"targets": ["ttft_p99"]}, "has no '<'"),
        ({"search": {"router": ["jsq"], "kv_tokens": 1_000}}, "no deployment can be judged: a request with 2,000"),
        ({"serach": {}}, "plan.serach is not a key of a scenario; did you mean 'search'?"),
        ({"search": {"token_budgets": [1]}}, "plan.search.token_budgets is not a key"),
        ({"search": {"replicas": {"min": 5, "max": 2}}}, "search.replicas.min is 5"),
        ({"search": {"replicas": ["many"]}}, "must be a whole number"),
        ({"search": {"policy": ["sarathy"]}}, "sarathi"),
        ({"search": {"router": [None]}}, "plan.search.router.0 must be text, not null"),
        ({"search": {"token_budget": []}}, "plan.search.token_budget: the list is empty"),
        ({"price": {"a100": 2.0}}, "no price matches a server without a preset"),
        ({"goodput": 1.5, "objective": "goodput"}, "the goodput is 1.5"),
        ({"goodput": 0.9}, "the goodput is 0.9, but the objective is cost, by which only targets count; give"),
        ({"transfer_ms": 5}, "plan.transfer_ms is 5, but no replicas for prompts alone are searched, so nothing is"),
        ({"transfer_gb_per_s": 25, "search": {"disaggregation": [None]}}, "plan.transfer_gb_per_s is 25, but no"),
        ({"max_cost": float("nan")}, "max_cost is nan, but must be a number from 0"),
        ({"price": {"a100": "2"}}, "no price matches a server without a preset"),
        ({"price": "2"}, "price is '2', but must be a number"),
        ({"objective": "speed"}, "plan.objective must be 'cost' or 'goodput'"),
        ({"confidence": 2.0}, "confidence is 2"),
    ],
)
def test_what_cannot_be_planned_is_one_line(
    penstock: Callable[..., Said], scenario: Path, plan: dict[str, object], wrong: str
) -> None:
    status, out, err = penstock("plan", changed(scenario, **plan))
    assert (status, out) == (2, "")
    assert wrong in err
    assert err.count("\n") == 1


def test_a_scenario_without_a_plan_is_told_how_to_write_one(penstock: Callable[..., Said], tmp_path: Path) -> None:
    path = tmp_path / "plain.yaml"
    path.write_text("workload: {preset: azure-conv, rate: 5}\nserver: {hardware: codellama-34b-a100-tp2}\n")
    status, _, err = penstock("plan", path)
    assert status == 2
    assert "has no `plan`" in err
    path.write_text("network: {}\n")
    assert "describes a network" in penstock("plan", path)[2]


def test_a_day_that_is_not_planned_is_said(penstock: Callable[..., Said], scenario: Path) -> None:
    path = changed(scenario, day=[3, 400], search={"replicas": {"max": 2}})
    found = json.loads(penstock("plan", path, "--json")[1])
    assert found["day"] is None
    assert "no day is planned" in found["notices"][0]
    assert "Over the day  No day is planned" in penstock("plan", path)[1]


def test_the_day_and_the_job_keep_to_the_search_and_the_job_to_the_days_peak(
    penstock: Callable[..., Said], scenario: Path
) -> None:
    search = {"replicas": [2, 4, 8], "token_budget": 256}
    job = {"requests": 200, "deadline_h": 0.05, "online": True, "runs": 2}
    path = changed(scenario, targets=["ttft_p99<2s"], day={"rates": [2, 30], "check": False}, job=job, search=search)
    found = json.loads(penstock("plan", path, "--json")[1])
    best = found["plan"]["best"]["deployment"]["replicas"]
    assert {period["replicas"] for period in found["day"]["periods"]} <= {2, 4, 8}
    assert found["day"]["deployment"]["replicas"] == best
    assert found["job"]["online_rate"] == 30
    assert {result["deployment"]["replicas"] for result in found["job"]["results"]} <= {2, 4, 8}
    words = " ".join(penstock("plan", path, "--why")[1].split())
    assert "beside 30 online requests/s" in words


def test_a_job_takes_the_budgets_of_a_search_that_leaves_one_to_the_engine(tmp_path: Path) -> None:
    path = tmp_path / "written.yaml"
    path.write_text(
        "workload: {poisson: {rate: 5, prompt: 500, output: 100}}\n"
        "plan: {job: {requests: 2000, deadline_h: 1}, search: {token_budget: [null, 512], hardware: "
        "{model: Llama-3.1-8B, gpu: h100-sxm}}}\n"
    )
    asked = read_plan(path)
    assert asked.job is not None
    assert {one.smallest.server.token_budget for one in asked.space.families} == {512, 8192}


def test_a_job_is_not_given_more_replicas_than_the_plan_may_cost(penstock: Callable[..., Said], scenario: Path) -> None:
    path = changed(scenario, targets=None, max_cost=5.0, job={"requests": 20_000, "deadline_h": 0.02})
    found = json.loads(penstock("plan", path, "--json")[1])["job"]
    assert found["best"] is None
    assert "above 2; allow more (plan.search.replicas, plan.max_cost" in found["unreachable"]


def test_a_bad_day_or_job_is_refused_before_the_search(penstock, tmp_path, monkeypatch):
    """A search takes minutes, and would be lost."""

    def search(*args, **options):
        raise AssertionError("the search began")

    monkeypatch.setattr("penstock.planning.answers.plan", search)
    path = tmp_path / "bad.yaml"
    for section in (
        "job: {requests: 100}",
        "job: {requests: 0, deadline_h: 1}",
        "job: {requests: 100, deadline_h: 1, runs: 1}",
        "job: {requests: 100, deadline_h: 1, most_replicas: 0}",
        "job: {requests: 100, deadline_h: 1e5, online: true}",
        "day: {rates: [1, 2], startup: 3}",
        "day: {rates: [-1, 2]}",
    ):
        path.write_text(
            "{workload: {poisson: {rate: 100.0, prompt: 300, output: 50}}, server: {token_budget: 256, "
            "batch_time: {affine: {c_ms: 10, a_ms_per_token: .1}}}, plan: {targets: [ttft_p99<2s], " + section + "}}"
        )
        status, out, error = penstock("plan", path)
        assert (status, out) == (2, ""), section
        assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "outputs",
    [
        ["--manifest", "fleet.yaml"],
        ["--report", "day.csv"],
        ["--manifest", "m", "--report", "m"],
        ["--manifest", "m", "--report", "link"],
    ],
)
def test_no_output_overwrites_what_is_read_or_another_output(
    penstock: Callable[..., Said], scenario: Path, outputs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(scenario.parent)
    Path("day.csv").write_text("h,rate\n0,5\n")
    Path("link").symlink_to("m")
    changed(scenario, day={"file": "day.csv"})
    before = scenario.read_text()
    status, out, err = penstock("plan", "fleet.yaml", *outputs)
    assert (status, out) == (2, "")
    assert "be lost; give" in err
    assert scenario.read_text() == before
    assert Path("day.csv").read_text() == "h,rate\n0,5\n"
    assert not Path("m").exists()


def test_engines_with_kv_memory_behind_jsq_are_planned_within_the_limits_that_the_search_gives(
    penstock: Callable[..., Said], scenario: Path
) -> None:
    """The scenario says what is tried, so nobody is told that a limit is missing."""
    search = {"policy": "vllm", "router": "jsq", "max_batch_size": 64, "kv_tokens": 6_000, "replicas": {"max": 4}}
    status, out, _ = penstock("plan", changed(scenario, targets=["tbt_p99<500ms"], search=search))
    assert status == 0
    assert "behind jsq: " in out
    assert "MET          tbt_p99<0.5s" in out
    assert "max batch size is given" not in out


@pytest.mark.parametrize("option", [("--engine", "sglang"), ("--apart",), ("--rate", "3"), ("--gpus", "l4")])
def test_what_goes_with_a_model_is_refused_beside_a_scenario(
    penstock: Callable[..., Said], scenario: Path, option: tuple[str, ...]
) -> None:
    status, _, error = penstock("plan", scenario, *option)
    assert status == 2
    assert f"{option[0]} goes with --model" in error
