"""Clients of a real server wait as long as the simulation says, and their backlog grows when Penstock says so."""

from collections.abc import Iterator

import numpy as np
import pytest
from prediction import (
    Host,
    capacity,
    compare,
    disturbance,
    draw_calls,
    measure_between_s,
    measure_idle_host,
    predict_latencies,
    send_undisturbed,
    server_model,
    workload,
)
from real_client import Call, mean_latencies
from real_server import RealServer, serve

import penstock as ps

pytestmark = pytest.mark.vllm_server

LARGEST_ERROR = 0.05
GROWS = 0.05
"""A backlog grows if more than this share of the arriving requests stay."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with serve(tmp_path_factory.mktemp("vllm")) as running:
        yield running


@pytest.fixture(scope="module")
def idle(server: RealServer) -> Host:
    return measure_idle_host(server)


def staying_share(calls: list[Call]) -> float:
    """Return the slope of the real backlog while requests arrive, over their rate."""
    sent = np.array([call.sent_s for call in calls])
    done = np.sort([call.token_s[-1] for call in calls])
    instants = np.linspace(sent[0], sent[-1], 1000)
    backlog = np.searchsorted(sent, instants) - np.searchsorted(done, instants)
    rate = len(sent) / (sent[-1] - sent[0])
    return float(np.polyfit(instants, backlog, 1)[0] / rate)


@pytest.mark.parametrize(
    ("load", "requests", "seed", "verdict"),
    [(0.6, 220, 0, "stable"), (1.15, 420, 14, "unstable")],  # with these seeds the load as drawn is within 1% of that
)
def test_latencies_and_verdict_are_those_of_the_real_server(
    server: RealServer,
    idle: Host,
    load: float,
    requests: int,
    seed: int,
    verdict: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The time between batches comes from the log of steps; nothing is fitted to the latencies."""
    rate = load * capacity(server_model(idle.between_s))
    calls, steps = send_undisturbed(server, lambda: draw_calls(rate, requests, seed))
    between_s = measure_between_s(steps, calls)
    model = server_model(between_s)
    real, predicted = mean_latencies(calls), predict_latencies(calls, model, idle.front_s)
    errors = compare(predicted, real)
    with capsys.disabled():
        print(f"\nload {load}: {rate:.3f} requests/s, {staying_share(calls):+.1%} of them stay")
        print(disturbance(steps, calls))
        print(f"host: {between_s * 1e3:.2f} ms between batches, {idle.front_s * 1e3:.2f} ms in the front end")
        print(*(f"{m}: real {real[m]:.4f}, simulated {predicted[m]:.4f}, {errors[m]:+.1%}" for m in real), sep="\n")
    assert all(len(call.tokens) == call.output_tokens for call in calls)
    assert (staying_share(calls) > GROWS) == (verdict == "unstable")
    assert ps.check(workload(rate), model, requests=3_000).verdict == verdict
    assert max(map(abs, errors.values())) <= LARGEST_ERROR, disturbance(steps, calls)
