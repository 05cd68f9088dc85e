"""Real clients of a real server wait as long as the simulation says, and their backlog grows when it says so."""

from collections.abc import Iterator

import numpy as np
import pytest
from prediction import capacity, drawn, host_s, idle_host, late_steps, paced, poisson, simulated, since
from real_client import Call, latencies, send
from real_server import RealServer, serve

import penstock as ps

pytestmark = pytest.mark.vllm_server

LARGEST_ERROR = 0.05
GROWS = 0.05
"""A backlog grows if more of the requests than this share stay."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with serve(tmp_path_factory.mktemp("vllm")) as running:
        yield running


@pytest.fixture(scope="module")
def idle(server: RealServer) -> tuple[float, float]:
    """Seconds of the host per batch, and of the front end, on an idle server."""
    return idle_host(server)


def staying(answered: list[Call]) -> float:
    """Return the share of the arriving requests by which the backlog grew: its slope over the rate."""
    sent = np.array([call.sent_s for call in answered])
    done = np.sort([call.token_s[-1] for call in answered])
    instants = np.linspace(sent[0], sent[-1], 1000)
    backlog = np.searchsorted(sent, instants) - np.searchsorted(done, instants)
    return float(np.polyfit(instants, backlog, 1)[0] * (sent[-1] - sent[0]) / len(sent))


@pytest.mark.parametrize(
    ("load", "requests", "seed", "verdict"),
    [(0.6, 220, 0, "stable"), (1.15, 420, 14, "unstable")],  # of these seeds the load drawn is 1% off at most
)
def test_latencies_and_verdict_are_those_of_the_real_server(
    server: RealServer,
    idle: tuple[float, float],
    load: float,
    requests: int,
    seed: int,
    verdict: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rate = load * capacity(paced(idle[0]))
    answered = send(server.url, drawn(rate, requests, seed))
    steps = since(server.steps(), answered[0].sent_s)
    told = paced(host_s(steps, answered))
    real, expected = latencies(answered), simulated(answered, told, idle[1])
    errors = {metric: expected[metric] / real[metric] - 1 for metric in real}
    with capsys.disabled():
        print(f"\nload {load}: {rate:.3f} requests/s; {late_steps(steps)} of {len(steps['start_s'])} steps were late")
        print(f"host {host_s(steps, answered) * 1e3:.2f} ms per batch, front end {idle[1] * 1e3:.2f} ms")
        print("\n".join(f"{m}: real {real[m]:.4f}, simulated {expected[m]:.4f}, {errors[m]:+.1%}" for m in real))
        print(f"backlog: {staying(answered):+.1%} of the requests stay")
    assert all(len(call.tokens) == call.output_tokens for call in answered)
    assert (staying(answered) > GROWS) == (verdict == "unstable")
    assert ps.check(poisson(rate), told, requests=3_000).verdict == verdict
    assert max(map(abs, errors.values())) <= LARGEST_ERROR, errors
