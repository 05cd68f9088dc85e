"""Penstock's policies serve inside a real vLLM server, and what it answers is what its own scheduler answers."""

from pathlib import Path

import numpy as np
import pytest
from prediction import host_s, idle_host, paced, simulated, since
from real_client import Call, calls, latencies, send
from real_server import serve

pytestmark = pytest.mark.vllm_server

PLUGIN = ("--scheduler-cls", "penstock.vllm_plugin.PenstockScheduler")
LARGEST_ERROR = 0.05


def crowd() -> list[Call]:
    """More requests than the server can take at once."""
    rng = np.random.default_rng(1)
    return calls(np.sort(rng.uniform(0, 8, 60)), rng.integers(10, 400, 60), rng.integers(2, 40, 60))


def tokens(answered: list[Call]) -> list[list[int]]:
    return [call.tokens for call in answered]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """The greedy answers under vLLM's own scheduler."""
    with serve(tmp_path_factory.mktemp("own")) as server:
        return tokens(send(server.url, crowd()))


@pytest.mark.parametrize(("policy", "params"), [("orca", ()), ("maxweight", (205, 20))])
def test_a_policy_serves_the_same_answers_as_vllms_own_scheduler_at_the_times_that_are_simulated(
    own: list[list[int]], policy: str, params: tuple[float, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """MaxWeight is given the mean lengths: it would learn them from whatever the server served before."""
    numbers = ",".join(map(str, paced(0.002, policy, params).params))
    with serve(tmp_path, *PLUGIN, PENSTOCK_POLICY=policy, PENSTOCK_POLICY_PARAMS=numbers) as server:
        _, front_s = idle_host(server)
        answered = send(server.url, crowd())
        steps = since(server.steps(), answered[0].sent_s)
    assert "penstock.vllm_plugin.PenstockScheduler" in server.log.read_text()
    assert tokens(answered) == own
    told = paced(host_s(steps, answered), policy, params)
    real, expected = latencies(answered), simulated(answered, told, front_s)
    errors = {metric: expected[metric] / real[metric] - 1 for metric in real}
    with capsys.disabled():
        print(f"\n{policy}: " + ", ".join(f"{m} {real[m]:.4f} {errors[m]:+.1%}" for m in real))
    assert max(map(abs, errors.values())) <= LARGEST_ERROR, errors
