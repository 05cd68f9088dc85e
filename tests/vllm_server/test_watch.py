"""`penstock watch` beside a real server that is sent known loads: the load, the verdict, and a step that it notices."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prediction import measure_between_s, measure_idle_host, server_model, steps_of
from real_client import Call, make_calls, send
from real_server import BLOCK_SIZE, BLOCKS, BUDGET, MOST_REQUESTS, RealServer, serve

import penstock as ps

pytestmark = pytest.mark.vllm_server

EVERY_S = 5
LARGEST_ERROR = 0.05
SERVER = f"""
workload: {{prompt: 100, output: 42, rate: 1, arrivals: poisson}}
server:
  batch_time: {{composition: {{linear: {{affine: {{c_ms: 40, a_ms_per_token: 0.5}}}}, decode_attention_ns: 10000}}}}
  token_budget: {BUDGET}
  max_batch_size: {MOST_REQUESTS}
  policy: vllm
  policy_params: {{async_scheduling: false}}
  memory: {{blocks: {BLOCKS}, block_size: {BLOCK_SIZE}}}
"""
"""What the server is; the time of its host is left out, and has to be found."""
FIXED = (ps.Constant(100), ps.Constant(42))
SPREAD = (ps.LogNormal(100, 0.8, max=1_000), ps.LogNormal(42, 0.8, max=400))
Lengths = tuple[ps.Constant | ps.LogNormal, ps.Constant | ps.LogNormal]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with serve(tmp_path_factory.mktemp("vllm")) as running:
        measure_idle_host(running)  # the first requests take longer
        yield running


def draw(rates: list[float], seconds: float, lengths: Lengths, seed: int) -> list[Call]:
    """Draw requests at each rate in turn, each for so many seconds."""
    rng = np.random.default_rng(seed)
    at_s = np.concatenate(
        [np.sort(rng.uniform(0, seconds, rng.poisson(rate * seconds))) + k * seconds for k, rate in enumerate(rates)]
    )
    prompts, outputs = (length.sample(rng, len(at_s)) for length in lengths)
    return make_calls(at_s, prompts, outputs)


def watch(server: RealServer, calls: list[Call], folder: Path) -> list[dict[str, Any]]:
    """Send requests while the command watches; return its lines meanwhile, with the seconds since it began."""
    known = folder / "server.yaml"
    known.write_text(SERVER)
    command = [sys.executable, "-m", "penstock", "watch", server.url, "--server", str(known), "--json"]
    sending = threading.Thread(target=send, args=(server.url, calls))
    with subprocess.Popen([*command, "--every", f"{EVERY_S}s"], stdout=subprocess.PIPE, text=True) as watching:
        sending.start()
        begin_s, lines = time.time(), []
        assert watching.stdout is not None
        for line in watching.stdout:
            together = json.loads(line)["together"]
            at_s = together["time_s"] - begin_s
            if at_s > calls[-1].at_s:
                break
            lines.append(together | {"at_s": at_s})
        watching.send_signal(signal.SIGINT)
    sending.join()
    return lines


@pytest.mark.parametrize("lengths", [FIXED, SPREAD], ids=["fixed", "lognormal"])
@pytest.mark.parametrize(
    ("load", "seconds", "verdict"), [(0.6, 240, "stable"), (0.85, 300, "stable"), (1.2, 180, "unstable")]
)
def test_the_load_and_the_verdict_are_right(
    server: RealServer,
    lengths: Lengths,
    load: float,
    seconds: int,
    verdict: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The load as it was sent within 5%, in its interval; no verdict that is wrong, at any look."""
    idle = measure_idle_host(server)
    calls = draw([load * carried(lengths, idle.between_s)], seconds, lengths, seed=int(load * 100))
    lines = watch(server, calls, tmp_path)
    between_s = measure_between_s(steps_of(server, calls), calls)
    sent = real_load(calls, seconds, between_s)
    loads = lines[-1]["load"]
    first = next((round(line["at_s"]) for line in lines if line["verdict"] == verdict), None)
    with capsys.disabled():
        host_s, watched = lines[-1]["host_s"]["value"], "{value:.3f} ({low:.3f} to {high:.3f})".format(**loads)
        print(f"\nload {sent:.3f} was sent ({load}); watched {watched}; {verdict} after {first} s")
        print(f"host {between_s * 1e3:.2f} ms by the log of steps, {host_s * 1e3:.2f} ms watched")
    assert abs(loads["value"] / sent - 1) < LARGEST_ERROR
    assert loads["low"] < sent < loads["high"]
    assert {line["verdict"] for line in lines} <= {"unknown", "undecided", verdict}
    assert first is not None or load == 0.85


def test_a_step_is_noticed(server: RealServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    idle = measure_idle_host(server)
    most = carried(FIXED, idle.between_s)
    calls = draw([0.6 * most, 1.2 * most], 150, FIXED, seed=1)
    lines = watch(server, calls, tmp_path)
    changed = [round(line["at_s"]) for line in lines if line["changes"]]
    unstable = [round(line["at_s"]) for line in lines if line["verdict"] == "unstable"]
    with capsys.disabled():
        print(f"\na step after 150 s: noticed after {changed[:1]} s, unstable after {unstable[:1]} s")
    assert 150 <= min(changed) <= 200
    assert unstable
    assert min(unstable) > 150


def carried(lengths: Lengths, between_s: float) -> float:
    """Return the requests/s that the server carries, by theory."""
    workload = ps.Workload.poisson(1.0, *lengths)
    return min(bound.max_rate for bound in ps.certify(workload, server_model(between_s)).bounds)


def real_load(calls: list[Call], seconds: float, between_s: float) -> float:
    """Return the load of the requests as they were drawn."""
    prompts, outputs = [len(call.prompt) for call in calls], [call.output_tokens for call in calls]
    workload = ps.Workload.from_arrays([call.at_s for call in calls], prompts, outputs)
    demand = ps.certify(workload.with_rate(len(calls) / seconds), server_model(between_s))
    return demand.rho
