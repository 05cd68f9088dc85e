"""A state of the page is a scenario that `penstock check` reads."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.errors import InputError
from penstock.serving.controls import Controls, field_of

ENGINE = {
    "workload": {"poisson": {"rate": 2.0, "prompt": 300, "output": 20}},
    "server": {
        "batch_time": {"c_ms": 10, "a_ms": 20, "b0": 128},
        "max-num-batched-tokens": 512,
        "policy": "sarathi",
        "max_num_seqs": 64,
    },
    "simulate": {"requests": 500, "seed": 3},
}


@pytest.fixture
def controls(tmp_path: Path) -> Controls:
    return Controls(written(tmp_path, ENGINE))


def written(folder: Path, document: Any) -> Path:
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def document_of(controls: Controls, **query: str) -> Any:
    return yaml.safe_load(controls.case(controls.values_of(query)).text)


def test_the_values_are_those_of_the_scenario_under_whatever_names_it_has_them(controls: Controls) -> None:
    assert controls.values == (2.0, 512, 64, "sarathi", 1)


def test_a_scenario_that_nobody_changed_is_downloaded_as_it_was(controls: Controls) -> None:
    assert document_of(controls) == ENGINE


def test_what_is_changed_stands_in_the_scenario_and_the_rest_stays(controls: Controls) -> None:
    changed = document_of(controls, rate="2.5", token_budget="256", max_batch_size="", policy="orca")
    assert changed["workload"]["poisson"] == {"rate": 2.5, "prompt": 300, "output": 20}
    assert changed["server"] == {"batch_time": ENGINE["server"]["batch_time"], "token_budget": 256, "policy": "orca"}
    assert changed["simulate"] == ENGINE["simulate"]


def test_several_replicas_are_a_network_of_one_pool(controls: Controls) -> None:
    case = controls.case(controls.values_of({"replicas": "3"}))
    assert case.network is not None
    assert (case.replicas, case.length, case.server.token_budget) == (3, 500, 512)


def test_the_scenario_of_several_replicas_can_be_served_again(controls: Controls, tmp_path: Path) -> None:
    again = Controls(written(tmp_path, document_of(controls, replicas="3", rate="4")))
    assert again.values == (4.0, 512, 64, "sarathi", 3)
    assert again.case(again.values_of({"replicas": "1", "rate": "1"})).network is not None


def test_files_are_found_wherever_the_scenario_is_read(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,3\n1,20,4\n2,9,5\n")
    path = written(tmp_path, {**ENGINE, "workload": {"trace": "rows.csv", "rate": 2.0, "arrivals": "poisson"}})
    assert document_of(Controls(path))["workload"]["trace"] == str(tmp_path / "rows.csv")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"rate": "abc"}, "rate"),
        ({"rate": "-1"}, "rate"),
        ({"rate": "nan"}, "rate"),
        ({"token_budget": "0"}, "token_budget"),
        ({"token_budget": "1.5"}, "token_budget"),
        ({"max_batch_size": "[]"}, "max_batch_size"),
        ({"replicas": "9999"}, "replicas"),
        ({"policy": "sarati"}, "policy"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_beside_its_field(
    controls: Controls, query: dict[str, str], field: str
) -> None:
    with pytest.raises(InputError) as refused:
        controls.case(controls.values_of(query))
    assert field_of(str(refused.value)) == field


def test_networks_that_the_sliders_do_not_describe_are_refused() -> None:
    with pytest.raises(InputError, match="no sliders; ask `penstock check`"):
        Controls(Path(__file__).parents[2] / "examples" / "self_reflection.yaml")


@pytest.mark.parametrize("network", [None, 3, {"pools": {"a": 3}, "workflows": {"b": None}}, {"pools": []}])
def test_what_is_no_network_is_refused_in_one_line(tmp_path: Path, network: Any) -> None:
    with pytest.raises(InputError):
        Controls(written(tmp_path, {"network": network}))


def test_each_slider_offers_the_value_of_the_scenario(controls: Controls) -> None:
    choices = controls.choices()
    for name, value in controls.values._asdict().items():
        assert value in choices[name]
    assert choices["max_batch_size"][-1] is None


def test_a_page_takes_only_the_schedulers_that_it_offers(controls: Controls) -> None:
    """A scheduler of one's own is code, which whoever reaches the page must not choose."""
    with pytest.raises(InputError, match="policy is 'this:x'"):
        controls.values_of({"policy": "this:x"})


@pytest.mark.parametrize("document", [None, [1], "text", {"workload": 3}, {"network": 3}, {"server": {}}])
def test_what_is_no_scenario_is_refused(tmp_path: Path, document: Any) -> None:
    with pytest.raises(InputError):
        Controls(written(tmp_path, document))
