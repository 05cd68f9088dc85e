"""Every command says both ends of batch times that are not exact, and decides nothing that hinges on them."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import penstock as ps
from penstock.cli import command_line
from penstock.serving.controls import Controls
from penstock.serving.theory import theory
from penstock.system.batch_time import Affine, Composition
from penstock.system.batch_time_file import BatchTimeFile, read_batch_time, write_batch_time
from penstock.system.uncertain import PARAMETERS, Allowed, Seen, Uncertainty, Within
from penstock.theory.ends import server_ends

FACTOR = 1.25
WITHIN = Within(FACTOR, "of 9 throughputs, nine of ten")
MODEL = Composition(Affine(0.01, 1e-4), decode_attention=1e-9, uncertainty=WITHIN)
LENGTHS = {"prompt": 100, "output": 50}


def server() -> ps.Server:
    return ps.Server(MODEL, 512, None, "sarathi")


def workload(load: float) -> ps.Workload:
    w = ps.Workload.poisson(rate=1.0, **LENGTHS, seed=0)
    return w.with_rate(load * ps.certify(w, server()).max_rate)


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """Return a scenario at 1.05 of the middle of what any policy carries."""
    write_batch_time(tmp_path / "within.yaml", BatchTimeFile("a shape", MODEL, "a test"))
    document = {
        "workload": {"poisson": {"rate": float(workload(1.05).rate), **LENGTHS}},
        "server": {"batch_time": {"file": "within.yaml"}, "token_budget": 512},
        "simulate": {"requests": 200},
    }
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def asked(*words: str) -> tuple[dict[str, object], str]:
    """Return the JSON and the page of a command."""
    name, *others = words
    runner = CliRunner()
    results = [runner.invoke(command_line([name]), [name, *others, *more]) for more in (["--json"], [])]
    assert [result.exit_code for result in results] == [0, 0], results
    return json.loads(results[0].stdout), " ".join(results[1].stdout.split())


def test_a_file_keeps_how_well_batch_times_are_known(tmp_path: Path) -> None:
    seen = Seen("vllm", (100.0, 200.0), (10.0, 20.0), 64.0)
    extremes = tuple(MODEL.scaled(times) for times in (0.9, 1.1))
    for known in (dataclasses.replace(WITHIN, seen=seen), Allowed(extremes, seen)):
        model = dataclasses.replace(MODEL, uncertainty=known)
        write_batch_time(tmp_path / "known.yaml", BatchTimeFile("mine", model, "a test"))
        again = read_batch_time(tmp_path / "known.yaml").batch_time
        assert isinstance(again, Composition)
        assert again.uncertainty == known


class Own(ps.BatchTime):
    def _seconds(self, tokens: np.ndarray) -> np.ndarray:
        return 0.01 + 1e-4 * tokens


@pytest.mark.parametrize(
    "linear",
    [ps.PiecewiseConstant(0.01, 0.02, 64), ps.Hinge(0.01, 1e-4, 32), Own(), ps.Measured([1, 512], [0.01, 0.06])],
)
def test_any_times_by_load_have_both_ends(linear: ps.BatchTime) -> None:
    """Only affine and measured ones had."""
    one = dataclasses.replace(server(), batch_time=Composition(linear, per_request=1e-5, uncertainty=WITHIN))
    ends = server_ends(workload(0.5), one)
    assert ends is not None
    for end, factor in ((ends.slow, FACTOR), (ends.fast, 1 / FACTOR)):
        for decodes in (1, 40, 300):
            batch = [100] * decodes
            assert end.batch_time.of_batch([], batch) == pytest.approx(factor * one.batch_time.of_batch([], batch))


def test_what_a_shape_left_open_is_of_a_table_by_load() -> None:
    open_ = Uncertainty({PARAMETERS[0]: 1.0}, [[0.01]])
    one = dataclasses.replace(server(), batch_time=dataclasses.replace(MODEL, uncertainty=open_))
    with pytest.raises(ps.InputError, match="has a table by token load"):
        server_ends(workload(0.5), one)


def test_an_uncertainty_beside_what_is_no_composition_is_refused(tmp_path: Path) -> None:
    """It was left out in silence."""
    path = tmp_path / "hinge.yaml"
    hinge = {"hinge": {"c_ms": 10, "a_ms_per_token": 0.1, "b0": 32}}
    known = {"within": FACTOR, "judged": "of 9"}
    document = {"description": "mine", "source": "a test", "batch_time": hinge, "uncertainty": known}
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(ps.InputError, match="uncertainty, which is of a composition alone"):
        read_batch_time(path)
    path.write_text(yaml.safe_dump(document | {"batch_time": {"composition": {"linear": hinge}}}))
    ends = server_ends(workload(0.5), dataclasses.replace(server(), batch_time=read_batch_time(path).batch_time))
    assert ends is not None
    assert ends.slow.batch_time.table(64)[1:] == pytest.approx(FACTOR * ps.Hinge(0.01, 1e-4, 32).table(64)[1:])


def test_the_highest_rate_has_both_ends_and_the_map_of_rates_is_of_the_middle() -> None:
    found = ps.max_rate(workload(0.5), server(), precision=0.02)
    assert found.ends is not None
    assert found.ends.slow.rate == pytest.approx(found.rate / FACTOR, rel=0.04)
    assert found.ends.fast.rate == pytest.approx(found.rate * FACTOR, rel=0.04)
    said = found.as_dict()["ends"]
    assert said["bound"] == pytest.approx([found.bound / FACTOR, found.bound * FACTOR])
    exact = dataclasses.replace(server(), batch_time=dataclasses.replace(MODEL, uncertainty=None))
    assert ps.max_rate(workload(0.5), exact, precision=0.02).ends is None


def test_the_highest_load_of_a_network_has_both_ends() -> None:
    found = ps.max_rate(ps.Network.single(workload(0.5), server()), precision=0.1)
    assert found.ends is not None
    assert found.ends.slow.bound == pytest.approx(found.bound / FACTOR)
    assert found.ends.fast.rate > found.rate > found.ends.slow.rate


def test_networks_side_by_side_say_what_hinges() -> None:
    network = ps.Network.single(workload(0.9), server())
    comparison = ps.compare_networks({"one": network}, jobs=100)
    (said,) = comparison.page().verdicts
    assert (said.word, said.source, said.about) == ("undecided", "because of the batch times", "one")


def test_a_recommendation_compares_in_the_middle_and_says_the_ends() -> None:
    found = ps.recommend(workload(0.85), server(), policies=["orca"], requests=500, precision=0.05)
    assert found.recommended.answer.verdict == "stable"
    assert found.verdict == "undecided"
    assert found.as_dict()["calibration"]["slow"] == "unstable"
    assert "with the slow end it is unstable" in found.as_dict()["warnings"][0]


def test_check_region_and_max_rate_of_a_scenario_decide_nothing_that_hinges(scenario: Path) -> None:
    document, page = asked("check", str(scenario))
    assert document["verdict"] == "undecided"
    assert "Load 105% (84% to 131% as far as batch times are known)" in page
    assert "UNDECIDED because of the batch times" in page
    assert "STABLE " not in page.replace("UNSTABLE", "")
    document, page = asked("region", str(scenario))
    assert document["calibration"]["load"] == pytest.approx([1.05 / FACTOR, 1.05 * FACTOR], rel=1e-3)  # type: ignore[index]
    assert "UNDECIDED 58.94 requests/s arrive" in page
    assert "that limit is 44.9 to 70.16 as far as batch times are known" in page
    document, page = asked("max-rate", str(scenario))
    assert "not exact: as far as they are known it is 44.9 to 70.16 requests/s" in page
    assert "As far as batch times are known" in document["warnings"][0]  # type: ignore[index]
    document, page = asked("compare", str(scenario), "--policies", "sarathi,orca")
    assert {answer["verdict"] for answer in document["policies"].values()} == {"undecided"}  # type: ignore[attr-defined]
    assert page.count("undecided") == 2, page
    document, page = asked("simulate", str(scenario))
    assert "(84% to 131% as far as batch times are known)" in page, page


def test_a_sweep_has_both_ends_of_the_limit_and_no_verdict_between_them(scenario: Path) -> None:
    rates = [float(workload(load).rate) for load in (0.5, 1.05, 1.5)]
    rows = ps.sweep(scenario, {"workload.poisson.rate": rates}, jobs=1)
    assert rows["verdict"].to_list() == ["stable", "undecided", "unstable"]
    assert (rows["max_rate_low"] * FACTOR).to_list() == pytest.approx(rows["max_rate"].to_list())
    assert (rows["max_rate_high"] / FACTOR).to_list() == pytest.approx(rows["max_rate"].to_list())


def test_the_page_is_told_between_which_loads_a_state_lies(scenario: Path) -> None:
    controls = Controls(scenario)
    said = theory(controls.case(controls.values))["lines"]
    assert any(f"{1.05 / FACTOR:.0%} to {1.05 * FACTOR:.0%}" in text for _, text, _ in said)


@pytest.mark.slow
def test_a_fleet_has_the_size_of_either_end() -> None:
    space = ps.search_space(server(), replicas=range(1, 16))
    found = ps.plan(workload(8.3), space, ["ttft_p99<2s"], requests=400)
    assert found.best is not None
    assert found.ends is not None
    assert found.ends.slow is not None
    assert found.ends.fast is not None
    sizes = [end.deployment.replicas for end in (found.ends.fast, found.best, found.ends.slow)]
    assert sizes[0] < sizes[1] < sizes[2]
    said = found.as_dict()["ends"]
    assert said["slow"]["replicas"] == sizes[2]
    assert found.as_dict()["answer"] == found.answer == "undecided"
    page = found.page()
    assert page.head[2].text.startswith("because of the batch times: ")
    none = ps.plan(workload(8.3), ps.search_space(server(), replicas=[1, 2]), ["ttft_p99<2s"], requests=400)
    assert none.best is None
    assert none.ends is None
    assert "that nothing does is said of the middle ones" in none.notices[0]
    few = ps.plan(workload(8.3), ps.search_space(server(), replicas=range(1, sizes[2])), ["ttft_p99<2s"], requests=400)
    assert few.ends is not None
    assert few.ends.slow is None
    assert "more than are searched" in few.page().head[2].text
