"""What Penstock says of the paced server, and what it must be told: the time of its host."""

from collections.abc import Sequence

import numpy as np
import pace
from real_client import Call, calls, send
from real_server import BLOCK_SIZE, BLOCKS, BUDGET, MOST_REQUESTS, RealServer

import penstock as ps

PROMPT, OUTPUT = ps.Geometric(150, 1000), ps.Geometric(16, 100)
"""Lengths of the requests, in tokens."""

LATE_S = 0.002
"""A step that ends so much after its time is late: the machine was busy with something else."""


def paced(host_s: float, policy: str = "vllm", params: Sequence[float] = ()) -> ps.Server:
    """Return the server as Penstock has it: the worker's time and the host's for each batch."""
    batch_time = ps.Composition(ps.Affine(pace.STEP_S + host_s, pace.TOKEN_S), decode_attention=pace.CONTEXT_S)
    if policy != "vllm":  # a policy inside vLLM, whose memory is ample here
        return ps.Server(batch_time, BUDGET, MOST_REQUESTS, policy, policy_params=params)
    memory = ps.Memory(BLOCKS, BLOCK_SIZE)
    return ps.Server(batch_time, BUDGET, MOST_REQUESTS, policy, policy_params=synchronous(), memory=memory)


def synchronous() -> dict[str, bool]:
    """On a CPU vLLM composes no step ahead."""
    return {"async_scheduling": False} if "async_scheduling" in ps.ENGINES["vllm"].known else {}


def capacity(server: ps.Server) -> float:
    """Return the requests per second above which no scheduler is stable, by theory."""
    return min(bound.max_rate for bound in ps.certify(poisson(1.0), server).bounds)


def poisson(rate: float) -> ps.Workload:
    """Return the workload that `drawn` is a piece of."""
    return ps.Workload.poisson(rate, PROMPT, OUTPUT)


def drawn(rate: float, requests: int, seed: int) -> list[Call]:
    """Draw requests of that workload."""
    rng = np.random.default_rng(seed)
    at_s = np.cumsum(rng.exponential(1 / rate, requests))
    prompt = np.minimum(rng.geometric(1 / PROMPT.mean_tokens, requests), PROMPT.max)
    output = np.minimum(rng.geometric(1 / OUTPUT.mean_tokens, requests), OUTPUT.max)
    return calls(at_s, prompt, output)


def replayed(answered: list[Call]) -> ps.Workload:
    """Return exactly the arrivals and lengths as sent."""
    return ps.Workload.from_arrays(
        [call.sent_s - answered[0].sent_s for call in answered],
        [len(call.prompt) for call in answered],
        [call.output_tokens for call in answered],
    )


def simulated(answered: list[Call], server: ps.Server, front_s: float) -> dict[str, float]:
    """Return the mean latencies by simulation; the client sees the front end's time beside."""
    means = ps.simulate(replayed(answered), server).latency()
    mean = dict(zip(means["metric"], means["mean"], strict=True))
    return {"ttft_s": mean["ttft_s"] + front_s, "tbt_s": mean["tbt_s"], "e2e_s": mean["e2e_s"] + front_s}


def host_s(steps: dict[str, np.ndarray], answered: list[Call]) -> float:
    """Return the mean seconds from the end of a step's known time to the next step, while there is work.

    The host spends them on scheduling, messages between processes, and waking up. They come from the log of steps
    alone; the client's notes say only between which steps there was work.
    """
    start, following = steps["start_s"][:-1, None], steps["start_s"][1:, None]
    sent = np.array([call.sent_s for call in answered])
    done = np.array([call.token_s[-1] for call in answered])
    at_work = ((sent < start) & (done > following)).any(axis=1)
    return float(np.mean((following - start)[at_work, 0] - steps["known_s"][:-1][at_work]))


def late_steps(steps: dict[str, np.ndarray]) -> int:
    """Return how many steps were late."""
    return int(np.sum(steps["end_s"] - steps["start_s"] - steps["known_s"] > LATE_S))


def since(steps: dict[str, np.ndarray], moment_s: float) -> dict[str, np.ndarray]:
    """Return the steps that began after that moment."""
    return {name: column[steps["start_s"] > moment_s] for name, column in steps.items()}


def idle_host(server: RealServer) -> tuple[float, float]:
    """Send single requests to the idle server; return the seconds of the host per batch, and of the front end.

    The front end is what a client waits for its first token beyond the batch: HTTP, words to tokens, messages.
    """
    send(server.url, calls(np.zeros(4), [100] * 4, [20] * 4))  # what comes first takes longer
    alone = send(server.url, calls(np.arange(12) * 1.5, [100] * 12, [10] * 12))
    between_s = host_s(since(server.steps(), alone[0].sent_s), alone)
    first_s = np.median([call.token_s[0] - call.sent_s for call in alone])
    return between_s, float(first_s) - pace.known_s(100, 0) - between_s
