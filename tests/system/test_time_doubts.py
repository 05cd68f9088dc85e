"""Batch times that no engine has, and limits with which none starts."""

from pathlib import Path

import pytest

from penstock import Affine, Measured, Server, Workload, check
from penstock.errors import InputError
from penstock.scenario.scenario import build
from penstock.system.prefix_cache import front_notes


@pytest.mark.parametrize(("c_s", "a_s", "said"), [
    (11e-6, 0.1e-6, "give ms, not seconds"), (11e-3, 0.1e-3, ""), (11.0, 0.1, "give seconds, not ms"),
    (2e-3, 1e-9, ""), (1e-9, 50e-6, ""), (0.4, 1e-3, ""),
])  # fmt: skip
def test_the_unit_of_batch_times_is_questioned_where_no_engine_has_such(c_s, a_s, said):
    found = Server(Affine(c_s, a_s), 512).time_doubts
    assert (said in found[0]) if said else not found


def test_doubts_of_a_table_stand_before_the_answer():
    times = Measured((1, 1024), (0.01, 0.05), ("It is doubted.",))
    workload, server = Workload.poisson(1, 100, 20), Server(times, 512)
    assert check(workload, server, requests=50).front[0] == "It is doubted."
    assert front_notes(workload, server)[0] == "It is doubted."


@pytest.mark.parametrize(
    ("policy", "slots", "starts"), [("vllm", 128, True), ("vllm", 129, False), ("sarathi", 129, True)]
)
def test_vllm_does_not_start_with_more_requests_than_tokens(policy, slots, starts):
    server = {"batch_time": {"c_ms": 10, "a_ms": 1, "b0": 64}, "max_num_batched_tokens": 128, "policy": policy}
    document = {
        "workload": {"poisson": {"rate": 1, "prompt": 9, "output": 9}}, "server": {**server, "max_num_seqs": slots},
    }  # fmt: skip
    if starts:
        assert build(document, Path()).server.max_batch_size == slots
        return
    with pytest.raises(InputError, match=r"max_batch_size is 129 \(max_num_seqs\), but token_budget is 128"):
        build(document, Path())


def test_a_default_of_vllm_ends_at_the_token_budget_that_is_given():
    server = {
        "gpu": {"memory_gib": 80},
        "batch_time": {"c_ms": 10, "a_ms": 1, "b0": 64},
        "token_budget": 128,
        "policy": "vllm",
    }
    document = {"workload": {"poisson": {"rate": 1, "prompt": 9, "output": 9}}, "server": server}
    assert build(document, Path()).server.max_batch_size == 128
