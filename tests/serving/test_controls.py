"""A state of the page is a scenario that `penstock check` reads."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.errors import InputError
from penstock.scenario.scenario import Scenario
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
    assert controls.values == {
        "rate": 2.0, "prompt": 300, "output": 20, "target": "", "replicas": 1, "router": "jsq", "policy": "sarathi",
        "token_budget": 512, "max_batch_size": 64,
    }  # fmt: skip


def test_a_scenario_that_nobody_changed_is_downloaded_as_it_was(controls: Controls) -> None:
    assert document_of(controls) == ENGINE


def test_what_is_changed_stands_in_the_scenario_and_the_rest_stays(controls: Controls) -> None:
    changed = document_of(controls, rate="2.5", prompt="400", token_budget="256", max_batch_size="", policy="orca")
    assert changed["workload"]["poisson"] == {"rate": 2.5, "prompt": 400, "output": 20}
    assert changed["server"] == {
        "batch_time": ENGINE["server"]["batch_time"], "max-num-batched-tokens": 256, "policy": "orca",
    }  # fmt: skip
    assert changed["simulate"] == ENGINE["simulate"]


def test_several_replicas_are_a_network_of_one_pool(controls: Controls) -> None:
    case = controls.case(controls.values_of({"replicas": "3", "router": "random"}))
    assert isinstance(case.scenario, Scenario)
    assert (case.replicas, case.scenario.arrivals, case.server.token_budget) == (3, 500, 512)
    assert case.scenario.network.pools["pool"].router.name == "random"


def test_the_scenario_of_several_replicas_can_be_served_again(controls: Controls, tmp_path: Path) -> None:
    again = Controls(written(tmp_path, document_of(controls, replicas="3", rate="4")))
    assert again.values == controls.values | {"rate": 4.0, "replicas": 3}
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
        ({"router": "jqs"}, "router"),
        ({"rate": "0"}, "rate"),
        ({"prompt": "1.5"}, "prompt"),
        ({"output": "0"}, "output"),
        ({"target": "ttft<2s"}, "target"),
        ({"target": "ttft_p99>2s"}, "target"),
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
    choices = controls.choices
    for name in controls.values.keys() - {"target"}:
        assert controls.values[name] in choices[name]
    assert choices["max_batch_size"][-1] is None


SHAPED = {
    "workload": {"gamma": {"rate": 2.0, "cv": 2.0, "prompt": {"lognormal": {"mean": 900, "cv": 1.0}},
                           "output": {"geometric": 150}}},
    "server": {"hardware": {"model": "Llama-3.1-8B", "gpu": "h100-sxm", "tp": 2}, "kv_tokens": 100_000},
    "plan": {"targets": ["ttft_p99<2s"]},
}  # fmt: skip


@pytest.fixture
def shaped(tmp_path: Path) -> Controls:
    return Controls(written(tmp_path, SHAPED))


def test_model_gpus_lengths_and_targets_are_changed_where_the_scenario_has_them(shaped: Controls) -> None:
    begun = {name: shaped.values[name] for name in ("model", "gpu", "tensor_parallel", "prompt", "output", "target")}
    assert begun == {
        "model": "Llama-3.1-8B", "gpu": "h100-sxm", "tensor_parallel": 2, "prompt": 900, "output": 150,
        "target": "ttft_p99<2s",
    }  # fmt: skip
    changed = document_of(
        shaped, model="Qwen3-8B", gpu="l40s", tensor_parallel="4", prompt="1200", output="80.5", policy="sglang",
        target="tpot_p99<60ms, e2e_mean < 9s",
    )  # fmt: skip
    drawn = changed["workload"]["gamma"]
    assert (drawn["prompt"], drawn["output"]) == ({"lognormal": {"mean": 1200, "cv": 1.0}}, {"geometric": 80.5})
    # KV memory of the hardware before does not stay
    hardware = {"model": "Qwen3-8B", "gpu": "l40s", "tp": 4, "engine": "sglang"}
    assert changed["server"] == {"hardware": hardware, "policy": "sglang"}
    assert changed["plan"] == {"targets": ["tpot_p99<0.06s", "e2e_mean<9s"]}


def test_limits_that_are_left_out_are_those_of_the_gpu(shaped: Controls) -> None:
    assert shaped.values["token_budget"] is None
    assert shaped.choices["token_budget"][-1] is None
    limits = [shaped.case(shaped.values_of({"gpu": gpu})).server.token_budget for gpu in ("h100-sxm", "a100-sxm")]
    assert limits == [8_192, 2_048]
    assert shaped.case(shaped.values_of({"policy": "orca"})).server.token_budget == 8_192  # which chooses none


def test_what_a_scenario_has_no_meaning_for_is_left_out(tmp_path: Path) -> None:
    recorded = Controls(written(tmp_path, {**ENGINE, "workload": {"preset": "azure-conv", "rate": 1.0}}))
    assert not recorded.values.keys() & {"model", "gpu", "tensor_parallel", "prompt", "output"}


@pytest.mark.parametrize(
    ("query", "field", "said"),
    [
        (
            {"model": "Llama-3.1-70B", "tensor_parallel": "1"},
            "tensor_parallel",
            r"tensor_parallel: 2 has room for them",
        ),
        ({"gpu": "h100"}, "gpu", "did you mean 'h100-sxm'"),
        ({"model": "/etc/config.json"}, "model", "model is '/etc/config.json'"),
        ({"tensor_parallel": "3"}, "tensor_parallel", "take a number that divides 32"),
    ],
)
def test_a_model_that_a_gpu_does_not_serve_is_refused_with_what_would_do(
    shaped: Controls, query: dict[str, str], field: str, said: str
) -> None:
    with pytest.raises(InputError, match=said) as refused:
        shaped.case(shaped.values_of(query))
    assert field_of(str(refused.value)) == field


def test_a_page_takes_only_the_schedulers_that_it_offers(controls: Controls) -> None:
    """A scheduler of one's own is code, which whoever reaches the page must not choose."""
    with pytest.raises(InputError, match="policy is 'this:x'"):
        controls.values_of({"policy": "this:x"})


@pytest.mark.parametrize("document", [None, [1], "text", {"workload": 3}, {"network": 3}, {"server": {}}])
def test_what_is_no_scenario_is_refused(tmp_path: Path, document: Any) -> None:
    with pytest.raises(InputError):
        Controls(written(tmp_path, document))
