"""Declared outputs: what requests say they may make at most."""

import numpy as np
import pytest

import penstock as ps
from penstock.errors import InputError
from penstock.scenario.scenario import read_scenario

SERVER = "server: {hardware: codellama-34b-a100-tp1, token_budget: 512, max_batch_size: 16, policy: sglang}\n"


def test_a_distribution_of_declared_outputs_gives_each_request_at_least_its_output() -> None:
    drawn = ps.Workload.poisson(2.0, 100, ps.Geometric(50)).with_declared(40).requests(500)
    assert (drawn.declared == np.maximum(drawn.output_tokens, 40)).all()


def test_declared_outputs_do_not_change_what_else_is_drawn() -> None:
    plain = ps.Workload.poisson(2.0, 100, ps.Geometric(50))
    one, other = plain.requests(500), plain.with_declared(ps.Geometric(90)).requests(500)
    np.testing.assert_array_equal(one.arrival_s, other.arrival_s)
    np.testing.assert_array_equal(one.output_tokens, other.output_tokens)


def test_a_request_that_declares_less_than_it_makes_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="request 1 declares 4 output tokens at most, but makes 5"):
        ps.Workload.from_arrays([0, 1], [3, 3], [5, 5], declared=[9, 4])


@pytest.mark.parametrize("column", ["max_tokens", "declared_tokens"])
def test_a_column_of_a_trace_may_say_what_requests_declare(column: str, tmp_path) -> None:
    (tmp_path / "calls.csv").write_text("arrival_s,prompt_tokens,output_tokens,most\n0,10,5,20\n1,10,5,30\n")
    path = tmp_path / "scenario.yaml"
    path.write_text(f"workload: {{trace: calls.csv, columns: {{{column}: most}}}}\n{SERVER}")
    scenario = read_scenario(path)
    assert scenario.workload.declared.tolist() == [20, 30]
    assert not any("declares" in notice for notice in scenario.workload.notices)


def test_without_declared_outputs_a_scenario_of_sglang_says_what_it_takes(tmp_path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(f"workload: {{poisson: {{rate: 2, prompt: 100, output: 50}}}}\n{SERVER}")
    assert any("declares its most output tokens" in notice for notice in read_scenario(path).workload.notices)
