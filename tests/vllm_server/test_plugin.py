"""Penstock's policies serve inside a real vLLM server: the answers are vLLM's, the times are the simulation's."""

from pathlib import Path

import numpy as np
import pytest
from prediction import (
    compare,
    disturbance,
    measure_between_s,
    measure_idle_host,
    predict_latencies,
    send_undisturbed,
    server_model,
)
from real_client import Call, make_calls, mean_latencies, send
from real_server import serve

pytestmark = pytest.mark.vllm_server

PLUGIN = ("--scheduler-cls", "penstock.vllm_plugin.PenstockScheduler")
LARGEST_ERROR = 0.05


def make_crowd() -> list[Call]:
    """More requests than the server can take at once."""
    rng = np.random.default_rng(1)
    return make_calls(np.sort(rng.uniform(0, 8, 60)), rng.integers(10, 400, 60), rng.integers(2, 40, 60))


Answers = dict[tuple[int, ...], list[int]]
"""The tokens that follow each prompt."""


def answers(calls: list[Call]) -> Answers:
    return {tuple(call.prompt): call.tokens for call in calls}


@pytest.fixture(scope="module")
def own_answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """The greedy answers under vLLM's own scheduler."""
    with serve(tmp_path_factory.mktemp("own")) as server:
        return answers(send(server.url, make_crowd()))


@pytest.mark.parametrize(("policy", "params"), [("orca", ()), ("maxweight", (205, 20))])
def test_a_policy_gives_the_answers_of_vllms_own_scheduler_at_the_times_of_the_simulation(
    own_answers: Answers,
    policy: str,
    params: tuple[float, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """MaxWeight is given mean lengths: else it would learn them from whatever the server served before."""
    numbers = ",".join(map(str, server_model(0.002, policy, params).params))
    with serve(tmp_path, *PLUGIN, PENSTOCK_POLICY=policy, PENSTOCK_POLICY_PARAMS=numbers) as server:
        idle = measure_idle_host(server)
        calls, steps = send_undisturbed(server, make_crowd)
    assert f"Using custom scheduler class {PLUGIN[1]}" in server.log.read_text()
    assert answers(calls) == own_answers
    model = server_model(measure_between_s(steps, calls), policy, params)
    real = mean_latencies(calls)
    errors = compare(predict_latencies(calls, model, idle.front_s), real)
    with capsys.disabled():
        print(f"\n{policy}: " + ", ".join(f"{m} {real[m]:.4f} {errors[m]:+.1%}" for m in real))
        print(disturbance(steps, calls))
    assert max(map(abs, errors.values())) <= LARGEST_ERROR, disturbance(steps, calls)
