"""How long until a limit is reached, or the queue is gone: a fluid of waiting and running requests,
with noise.

Requests wait (w) and decode (R). A batch of t seconds gives each decode a token and the prompts
what the token budget leaves, x = min(B - R, what waits); so per second x / (p t) requests begin to
decode and R / (o t) leave, with p and o the mean tokens of a prompt and of decode. Slots and KV
memory let no more in. Arrivals are normal with the variance of the work that they bring. Rates and
lengths are drawn from their intervals, once for each of `DRAWS` paths: what is not known and what
happens by chance both widen the answer. It is an estimate: phases, priorities and requests that
finish together are left out.
"""

import dataclasses
import math

import numpy as np

from penstock.inputs.arrays import Floats
from penstock.live.reading import Z95, Estimate
from penstock.system.server import Server

DRAWS = 400
_STEPS = 280
_FIRST_S = 0.5
_GROWTH = 1.03  # of a step: within 3% of the time that has passed
_PASSES = 4  # before the first step: a batch takes longer for the prompts that come meanwhile
_FULL = 0.98  # of KV memory: full, but for the last request that does not fit
_EMPTY = 1.0  # requests in the queue
_LEVELS = (0.05, 0.5, 0.95)


@dataclasses.dataclass(frozen=True)
class Now:
    """Where an engine stands: requests that wait and run, and what arrives."""

    waiting: float
    running: float
    # Requests/s, and mean tokens, each with its interval of 95%.
    rate: Estimate
    prompt: Estimate
    output: Estimate
    # Of the work that arrives, per request, in units of the mean work of a request squared.
    variance: float
    output_spread: float  # standard deviation over mean of outputs


@dataclasses.dataclass(frozen=True)
class Horizon:
    """Paths of what waits, the share of KV memory in use, and the seconds to a first token."""

    time_s: Floats  # shape (steps,)
    waiting: Floats  # shape (steps, draws) as all that follow
    kv_used: Floats
    ttft_s: Floats

    def until_queue(self, requests: float) -> Estimate:
        """Return the seconds until so many requests wait."""
        return self._first(self.waiting >= requests)

    def until_kv_full(self) -> Estimate:
        """Return the seconds until the KV memory is full."""
        return self._first(self.kv_used >= _FULL)

    def until_ttft(self, seconds: float) -> Estimate:
        """Return the seconds until a request that comes waits so long for its first token."""
        return self._first(self.ttft_s >= seconds)

    def until_empty(self) -> Estimate:
        """Return the seconds until nothing waits."""
        return self._first(self.waiting < _EMPTY)

    def _first(self, reached: np.ndarray) -> Estimate:
        times = np.where(reached.any(axis=0), self.time_s[reached.argmax(axis=0)], math.inf)
        low, median, high = np.quantile(times, _LEVELS, method="inverted_cdf").tolist()
        return Estimate(median, low, high)


def horizon(server: Server, now: Now) -> Horizon:
    """Return how it goes on for an engine. The host's time is in the server's batch times."""
    rng = np.random.default_rng(0)
    rate, prompt, output = (_drawn(rng, each) for each in (now.rate, now.prompt, now.output))
    decodes = np.maximum(output - 1.0, 1e-3)
    held = prompt + output * (1 + now.output_spread**2) / 2  # tokens of one that runs, on average
    memory = math.inf if server.memory is None else float(server.memory.tokens)
    most = np.minimum(server.max_batch_size or math.inf, memory / held)
    waiting = np.full(DRAWS, now.waiting)
    running = np.full(DRAWS, now.running)
    batch_s = np.full(DRAWS, float(server.batch_time(1)))
    steps = _FIRST_S * _GROWTH ** np.arange(_STEPS)
    paths = np.zeros((3, _STEPS + 1, DRAWS))
    paths[0, 0], paths[1, 0] = waiting, running * held / memory
    standing = waiting
    for index, seconds in enumerate(steps, start=1):
        noise = rng.standard_normal(DRAWS) * np.sqrt(now.variance * rate * seconds)
        waiting = np.maximum(waiting + rate * seconds + noise, 0.0)
        room = np.maximum(server.token_budget - running, 0.0)
        for _ in range(_PASSES if index == 1 else 1):
            prefill = np.minimum(room, waiting * prompt / seconds * batch_s)
            batch_s = _batch_seconds(server, prefill, running, prompt, held)
        leaving = seconds / (decodes * batch_s)
        slots = np.maximum(most * (1 + leaving) - running, 0.0)
        begun = np.minimum(np.minimum(prefill * seconds / (prompt * batch_s), slots), waiting)
        # implicit in what leaves: steps may be longer than a request stays
        running = np.maximum((running + begun) / (1 + leaving), 0.0)
        waiting = waiting - begun
        delay = waiting * seconds / np.maximum(begun, 1e-9)
        if index == 1:  # who comes now waits for those that stand there
            paths[2, 0] = standing * seconds / np.maximum(begun, 1e-9) + batch_s
        paths[:, index] = waiting, running * held / memory, delay + batch_s
    return Horizon(np.cumsum(np.r_[0.0, steps]), *paths)


def _batch_seconds(
    server: Server, prefill: Floats, running: Floats, prompt: Floats, held: Floats
) -> Floats:
    """Return the seconds of batches; one token at least, of whatever comes next."""
    decodes = np.maximum(np.minimum(running, server.most_tokens - prefill), 0.0)
    prefill = np.where(prefill + decodes < 1.0, 1.0, prefill)
    requests = decodes + prefill / prompt
    pairs = prefill * prompt / 2
    return server.batch_time.of_batches(
        prefill, decodes, requests, prefill**2, pairs, decodes * held
    )


def _drawn(rng: np.random.Generator, estimate: Estimate) -> Floats:
    """Return draws from the interval of an estimate, on a logarithmic scale."""
    value = max(estimate.value, 1e-9)
    spread = math.log(max(estimate.high, value) / max(estimate.low, value / 10)) / (2 * Z95)
    return np.asarray(value * np.exp(max(spread, 0.0) * rng.standard_normal(DRAWS)))
