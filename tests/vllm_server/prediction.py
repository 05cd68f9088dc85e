"""What Penstock says of the paced server, and what it must know for that: the time of the server's host."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pace
from real_client import Call, make_calls, send
from real_server import BLOCK_SIZE, BLOCKS, BUDGET, MOST_REQUESTS, RealServer

import penstock as ps

PROMPT, OUTPUT = ps.Geometric(150, 1000), ps.Geometric(16, 100)
"""Lengths of the requests, in tokens."""

LATE_S = 0.002
"""A step that ends so much after its time is late: the machine was busy with something else."""
STALL_S = 0.020
"""If the next batch takes longer to come, the machine stood still."""
MOST_STALLED = 0.005
"""If the machine stood still for a larger share of the time, the traffic is sent again."""
ATTEMPTS = 4

Steps = dict[str, np.ndarray]


class Host(NamedTuple):
    """What the host of an idle server adds, in seconds."""

    between_s: float
    """From the end of a batch to the next one."""
    front_s: float
    """What a client waits beyond the batches: HTTP, words to tokens and back, messages between processes."""


def server_model(between_s: float, policy: str = "vllm", params: Sequence[float] = ()) -> ps.Server:
    """Return the server as Penstock has it: a batch takes the worker's time and the host's."""
    batch_time = ps.Composition(ps.Affine(pace.STEP_S + between_s, pace.TOKEN_S), decode_attention=pace.CONTEXT_S)
    if policy != "vllm":  # a policy inside vLLM, whose memory is ample here
        return ps.Server(batch_time, BUDGET, MOST_REQUESTS, policy, policy_params=params)
    synchronous = {"async_scheduling": False}  # on a CPU vLLM composes no step ahead
    memory = ps.Memory(BLOCKS, BLOCK_SIZE)
    return ps.Server(batch_time, BUDGET, MOST_REQUESTS, policy, policy_params=synchronous, memory=memory)


def capacity(server: ps.Server) -> float:
    """Return the requests per second above which no scheduler is stable, by theory."""
    return min(bound.max_rate for bound in ps.certify(workload(1.0), server).bounds)


def workload(rate: float) -> ps.Workload:
    """Return what arrives at the server at that rate."""
    return ps.Workload.poisson(rate, PROMPT, OUTPUT)


def draw_calls(rate: float, requests: int, seed: int) -> list[Call]:
    """Draw requests of that workload."""
    rng = np.random.default_rng(seed)
    at_s = np.cumsum(rng.exponential(1 / rate, requests))
    prompts = np.minimum(rng.geometric(1 / PROMPT.mean_tokens, requests), PROMPT.max)
    outputs = np.minimum(rng.geometric(1 / OUTPUT.mean_tokens, requests), OUTPUT.max)
    return make_calls(at_s, prompts, outputs)


def predict_latencies(calls: list[Call], server: ps.Server, front_s: float) -> dict[str, float]:
    """Simulate exactly the arrivals and lengths as sent; return the mean latencies that clients see."""
    arrivals = [call.sent_s - calls[0].sent_s for call in calls]
    prompts, outputs = [len(call.prompt) for call in calls], [call.output_tokens for call in calls]
    table = ps.simulate(ps.Workload.from_arrays(arrivals, prompts, outputs), server).latency()
    mean = dict(zip(table["metric"], table["mean"], strict=True))
    return {"ttft_s": mean["ttft_s"] + front_s, "tbt_s": mean["tbt_s"], "e2e_s": mean["e2e_s"] + front_s}


def compare(predicted: dict[str, float], real: dict[str, float]) -> dict[str, float]:
    """Return by how much of the real latency each prediction is off."""
    return {metric: predicted[metric] / real[metric] - 1 for metric in real}


def waits_between(steps: Steps, calls: list[Call]) -> np.ndarray:
    """Return the seconds from the end of each step's known time to the next step, while there is work.

    The host spends them on scheduling, on messages between processes, and on waking up. They are taken from the log
    of steps; what the clients noted only says between which steps there was work.
    """
    start, following = steps["start_s"][:-1], steps["start_s"][1:]
    sent = np.array([call.sent_s for call in calls])
    done = np.array([call.token_s[-1] for call in calls])
    at_work = ((sent < start[:, None]) & (done > following[:, None])).any(axis=1)
    waits: np.ndarray = (following - start - steps["pace_s"][:-1])[at_work]
    return waits


def measure_between_s(steps: Steps, calls: list[Call]) -> float:
    """Return the mean seconds that the host takes from one batch to the next."""
    return float(np.mean(waits_between(steps, calls)))


def stalled_share(steps: Steps, calls: list[Call]) -> float:
    """Return the share of the time in which the whole machine seems to have stood still."""
    waits = waits_between(steps, calls)
    return float(waits[waits > STALL_S].sum() / (steps["end_s"][-1] - steps["start_s"][0]))


def send_undisturbed(server: RealServer, draw: Callable[[], list[Call]]) -> tuple[list[Call], Steps]:
    """Send requests and return them and their steps; send them again if the machine stood still meanwhile.

    One mean of the host's time cannot tell when a machine stood still for a second. Whether it did is judged by the
    log of steps alone, before any latency is compared.
    """
    for _ in range(ATTEMPTS):
        calls = send(server.url, draw())
        steps = steps_of(server, calls)
        if stalled_share(steps, calls) < MOST_STALLED:
            break
    return calls, steps


def measure_idle_host(server: RealServer) -> Host:
    """Send single requests to the idle server."""
    send(server.url, make_calls(np.zeros(4), [100] * 4, [20] * 4))  # the first requests take longer
    calls = send(server.url, make_calls(np.arange(12) * 1.5, [100] * 12, [10] * 12))
    between_s = float(np.median(waits_between(steps_of(server, calls), calls)))
    first_token_s = np.median([call.token_s[0] - call.sent_s for call in calls])
    return Host(between_s, float(first_token_s) - pace.step_seconds(100, 0) - between_s)


def steps_of(server: RealServer, calls: list[Call]) -> Steps:
    """Return the steps from the first of these requests on."""
    steps = server.steps()
    return {name: column[steps["start_s"] > calls[0].sent_s] for name, column in steps.items()}


def disturbance(steps: Steps, calls: list[Call]) -> str:
    """Say how far the machine was busy with something else."""
    late = steps["end_s"] - steps["start_s"] - steps["pace_s"] > LATE_S
    stalled = stalled_share(steps, calls)
    return f"{late.sum()} of {len(late)} steps were late, and the machine stood still for {stalled:.2%} of the time"
