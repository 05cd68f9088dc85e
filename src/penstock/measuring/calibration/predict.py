"""What a benchmark would have measured on a server: its load, simulated, as clients see it."""

import dataclasses
import heapq
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats

from penstock.inputs.arrays import Floats, Ints
from penstock.measuring.calibration.loads import MEASURES, spread_of
from penstock.simulation.run import Run
from penstock.simulation.simulate import simulate
from penstock.system.server import Server
from penstock.workload.prefixes import Prefixes
from penstock.workload.workload import Workload

_MOST_AT_ONCE = 1_000_000  # requests of one row: a benchmark sends fewer
_ERRORS = 3  # standard errors that a mean may be off
_ROUNDS = 10  # in which a client's limit settles, beside those for each time that all are sent
_SAME_S = 1e-3  # by which the times of requests may still move
_IN_QUEUE = 8_000  # requests that wait at first: several times those that run


@dataclasses.dataclass(frozen=True)
class Overhead:
    """Seconds that a client sees beside the engine's: network, tokenizer, HTTP, others' streams."""

    fixed: float = 0.0  # of every request, up to its first token
    # Of each request that streams tokens at that moment: front ends and clients handle them in
    # turn.
    per_stream: float = 0.0
    # More of a request that nobody else is beside when it comes: what sleeps must wake up.
    idle: float = 0.0


NOTHING = Overhead()


@dataclasses.dataclass(frozen=True, eq=False)
class Requests:
    """The requests of one row of a benchmark."""

    arrival_s: Floats  # shape (requests,), since the first; all 0 where the loop is closed
    prompt_tokens: Ints  # shape (requests,)
    output_tokens: Ints  # shape (requests,)
    # That a closed loop keeps under way; None: arrivals do not wait for departures.
    in_flight: int | None
    # At which the benchmark stopped; what had not finished by then was left out. None: it waited
    # for all.
    until_s: float | None
    # Requests that the client does not exceed: it sends others later than they come. None: no
    # limit.
    most_under_way: int | None = None
    declared_tokens: Ints | None = None  # outputs that each says it may make; None: as made
    prefixes: Prefixes | None = None  # what prompts have in common, of a server that caches it


def requests_of(
    row: Mapping[str, Any], server: Server, seed: int = 0, most: int | None = None
) -> Requests:
    """Return requests as the benchmark drew them; after ``most`` it is taken to stop."""
    # Lengths and arrivals are those that the row records. Where it does not, lengths are spread
    # evenly over their quantiles, or else their distribution, in random order, then scaled so that
    # those of the requests that finish on ``server`` have the row's means, but by no more than so
    # few requests stray.
    rng = np.random.default_rng([seed, int(row["row"])])
    until = row["duration_s"] if row["incomplete"] is None or row["incomplete"] > 0 else None
    if most is not None and row["completed"] > most:
        until = row["duration_s"] * most / row["completed"]
    arrival = _arrivals(row, until, rng)
    closed = row["in_flight"] if arrival is None else None
    count = _count(row, until) if arrival is None else arrival.size
    times = np.zeros(count) if arrival is None else arrival

    def sent(prompt: Ints, output: Ints) -> Requests:
        declared, prefixes = _declared(row, output), _prefixes(row, server, prompt)
        # requests whose sending is recorded were held back before
        limit = None if closed or row.get("e2e_each_s") else row["client_limit"]
        return Requests(times, prompt, output, closed, until, limit, declared, prefixes)

    names = ("prompt", "output")
    if row.get("prompt_lengths"):
        return sent(*(np.resize(np.array(row[f"{name}_lengths"]), count) for name in names))
    quantiles = {name: rng.permutation((np.arange(count) + 0.5) / count) for name in names}
    scale = {"prompt": 1.0, "output": 1.0}

    def drawn() -> Requests:
        return sent(*(_lengths(row, name, quantiles[name], scale[name]) for name in names))

    requests = drawn()
    finished = _rows_of(simulated(requests, server))
    if finished.size < 2:
        return requests
    for name, tokens in (("prompt", requests.prompt_tokens), ("output", requests.output_tokens)):
        stray = _ERRORS * np.sqrt(spread_of(row, name) / row["completed"])
        off = row[f"{name}_tokens"] / tokens[finished].mean()
        scale[name] = float(np.clip(off, 1 - stray, 1 + stray))
    return drawn()


def simulated(sent: Requests, server: Server, overhead: Overhead = NOTHING) -> Run:
    """Run the requests through a server."""
    # In a closed loop a client's next request comes as long after the last one's end as the
    # overhead is.
    if sent.in_flight is not None:
        return _closed(sent, sent.in_flight, server, overhead)
    if sent.most_under_way is None:
        return _replayed(sent, sent.arrival_s, server)
    return _limited(sent, sent.most_under_way, server, overhead)


def _closed(sent: Requests, clients: int, server: Server, overhead: Overhead) -> Run:
    pause_s = overhead.fixed + (overhead.idle if clients == 1 else 0.0)
    return simulate(_sent(sent).with_clients(clients, pause_s), server, until=sent.until_s)


def _limited(sent: Requests, limit: int, server: Server, overhead: Overhead) -> Run:
    """Run requests of a client that has no more than ``limit`` under way."""
    # When it sends follows from when others end, and that from when it sends: both are worked out
    # in turn until nothing moves. Each round settles about as many more as may be under way.
    run = _closed(dataclasses.replace(sent, until_s=None), limit, server, overhead)
    times = np.full(sent.arrival_s.size, -1.0)
    for _ in range(_ROUNDS + 2 * sent.arrival_s.size // limit):
        assert run.rows is not None
        finish = np.where(run.rows.finish < 0, np.inf, run.rows.finish * run.tick_s)
        later = held_back_by_client(sent.arrival_s, finish + overhead.fixed, limit)
        if np.abs(later - times).max() < _SAME_S:
            break
        times = later
        run = _replayed(sent, times, server)
    return run


def _replayed(sent: Requests, arrival_s: Floats, server: Server) -> Run:
    return simulate(_sent(sent, arrival_s), server, until=sent.until_s)


def _sent(sent: Requests, arrival_s: Floats | None = None) -> Workload:
    workload = Workload.from_arrays(
        arrival_s, sent.prompt_tokens, sent.output_tokens, declared=sent.declared_tokens
    )
    return dataclasses.replace(workload, prefixes=sent.prefixes)


def held_back_by_client(wanted_s: Floats, finish_s: Floats, limit: int) -> Floats:
    """Return when a client sends, in order, that has no more than so many requests under way."""
    # Wanted times do not fall; ends are infinite where they never come.
    under_way: list[float] = []
    times = np.empty(wanted_s.size)
    now = 0.0
    for request, wanted in enumerate(wanted_s.tolist()):
        now = max(now, wanted)
        if len(under_way) == limit:
            now = max(now, heapq.heappop(under_way))
        if not math.isfinite(now):  # nobody makes room any more before the benchmark stops
            now = float(finish_s[np.isfinite(finish_s)].max(initial=wanted)) + 1.0
        times[request] = now
        heapq.heappush(under_way, float(finish_s[request]))
    return times


def predict(sent: Requests, server: Server, overhead: Overhead) -> dict[str, float]:
    """Return what the client measures, by the columns of `MEASURES`; NaN: none finished in time."""
    # ``itl_mean_s`` and ``itl_p50_s`` are over all gaps between tokens, ``tpot_mean_s`` over
    # requests.
    run = simulated(sent, server, overhead)
    assert run.rows is not None
    chosen = _rows_of(run)
    if not chosen.size:
        return {name: float("nan") for names in MEASURES.values() for name in names}
    first, finish = (
        np.multiply(ticks, run.tick_s, dtype=np.float64)
        for ticks in (run.rows.first_token, run.rows.finish)
    )
    arrival = run.rows.arrival * run.tick_s
    gaps = run.rows.output_tokens.astype(np.float64) - 1
    begun, ended = np.sort(first[first >= 0]), np.sort(finish[finish >= 0])
    streams = np.searchsorted(begun, first[chosen]) - np.searchsorted(ended, first[chosen], "right")
    gone = np.searchsorted(ended, arrival[chosen], "right")
    alone = np.searchsorted(np.sort(arrival), arrival[chosen], "left") == gone
    ttft = (
        first[chosen]
        - arrival[chosen]
        + overhead.fixed
        + overhead.per_stream * streams
        + overhead.idle * alone
    )
    decode, gaps = (finish - first)[chosen], gaps[chosen]
    several = gaps > 0
    per_request = float((decode[several] / gaps[several]).mean()) if several.any() else float("nan")
    pooled = float(decode.sum() / gaps.sum()) if several.any() else float("nan")
    e2e = ttft + decode
    seconds = sent.until_s or float(finish.max())
    return {
        "ttft_mean_s": float(ttft.mean()),
        "ttft_p50_s": float(np.median(ttft)),
        "ttft_p99_s": float(np.quantile(ttft, 0.99)),
        "itl_mean_s": pooled,
        "tpot_mean_s": per_request,
        "itl_p50_s": run.gaps.quantile(0.5) * run.tick_s if run.gaps.size else float("nan"),
        "e2e_mean_s": float(e2e.mean()),
        "e2e_p50_s": float(np.median(e2e)),
        "e2e_p99_s": float(np.quantile(e2e, 0.99)),
        "requests_per_s": chosen.size / seconds,
    }


def sustained_rate(sent: Requests, server: Server) -> float:
    """Return the requests per second that leave a server while many more of such lengths wait."""
    many = np.resize(np.arange(sent.prompt_tokens.size), _IN_QUEUE)
    many_sent = dataclasses.replace(
        sent,
        arrival_s=np.zeros(many.size),
        prompt_tokens=sent.prompt_tokens[many],
        output_tokens=sent.output_tokens[many],
        until_s=None,
        declared_tokens=None if sent.declared_tokens is None else sent.declared_tokens[many],
        prefixes=None if sent.prefixes is None else sent.prefixes.taken(many),
    )
    run = _replayed(many_sent, many_sent.arrival_s, server)
    assert run.rows is not None
    left = np.sort(run.rows.finish) * run.tick_s
    low, high = many.size // 4, 3 * many.size // 4
    return float((high - low) / max(left[high] - left[low], run.tick_s))


def _rows_of(run: Run) -> Ints:
    """Return the places of the requests that finished."""
    assert run.rows is not None
    return np.flatnonzero(run.rows.finish >= 0)


def _count(row: Mapping[str, Any], until: float | None) -> int:
    """Return how many requests a closed loop may need, in case the prediction is faster."""
    sent = row["completed"] + (row["incomplete"] or 0)
    return int(sent if until is None else min(2 * sent + row["in_flight"], _MOST_AT_ONCE))


def _arrivals(
    row: Mapping[str, Any], until: float | None, rng: np.random.Generator
) -> Floats | None:
    """Return arrival times, or None where arrivals follow departures."""
    # Those that the row records are repeated. A short run of random arrivals strays from its
    # nominal rate: how many came, and within which time, are the row's own.
    if row["pattern"] == "closed":
        return None
    if row.get("arrival_s"):
        times = np.array(row["arrival_s"], np.float64)
        return times if until is None else times[times <= until]
    rate, burst = row["rate"], int(row["burst"] or 0)
    sent = row["completed"] + (row["incomplete"] or 0)
    if row["pattern"] != "poisson":
        count = sent if until is None else int(until * rate) + 1
        times = np.concatenate(
            [np.zeros(burst), (np.arange(max(count - burst, 1)) + (burst > 0)) / rate]
        )
        return times if until is None else times[times <= until]
    if until is not None:
        told = row["incomplete"] is not None  # else what had not finished was not counted
        sent = round(sent * until / row["duration_s"]) if told else round(until * rate)
    count = max(int(sent) - burst, 1)
    shape = row["burstiness"] or 1.0
    gaps = rng.gamma(shape, 1 / (shape * rate), count + 1)
    times = np.cumsum(gaps) - (0 if burst else gaps[0])
    if until is None:
        times *= _sending_s(row, count) / (times[count - 1] or 1.0)
    else:
        times *= until / times[count]
    return np.concatenate([np.zeros(burst), times[:count]])


def _sending_s(row: Mapping[str, Any], count: int) -> float:
    """Return how long requests were sent, for a run that waited for all."""
    if row["sending_s"] is not None:
        return float(row["sending_s"])
    latency = row["e2e_mean_s"]
    if latency is None and row["itl_mean_s"] is not None and row["ttft_p50_s"] is not None:
        latency = row["ttft_p50_s"] + row["itl_mean_s"] * row["output_tokens"]
    nominal = float(count / row["rate"])
    worked_out = math.isclose(row["duration_s"], row["completed"] / row["rate"])
    if latency is None or worked_out:
        return nominal
    earliest = row["duration_s"] - max(row["e2e_p99_s"] or 0.0, 2 * latency)
    latest = max(row["duration_s"] - latency / 2, nominal / 2)
    return float(np.clip(nominal, earliest, latest))


def _lengths(row: Mapping[str, Any], name: str, quantiles: Floats, scale: float) -> Ints:
    """Return lengths at quantiles: between those stated, or gamma, uniform in limits, or equal."""
    mean = row[f"{name}_tokens"]
    low, high, deviation = row[f"{name}_low"], row[f"{name}_high"], row[f"{name}_std"]
    if row[f"{name}_quantiles"]:
        tokens = np.interp(quantiles, *np.array(row[f"{name}_quantiles"]).T)
        tokens *= mean / tokens.mean()
    elif deviation:
        shape = (mean / deviation) ** 2
        tokens = stats.gamma.ppf(quantiles, shape, scale=mean / shape)
        tokens = tokens if low is None else np.clip(tokens, low, high)
    elif low is not None and high > low:
        tokens = low + quantiles * (high - low)
    else:
        tokens = np.full(quantiles.size, float(mean))
    whole: Ints = np.maximum(np.rint(tokens * scale), 1).astype(np.int64)
    return whole


def _declared(row: Mapping[str, Any], output: Ints) -> Ints | None:
    if row["declared_tokens"] is None:
        return None
    declared: Ints = np.maximum(output, round(row["declared_tokens"]))
    return declared


def _prefixes(row: Mapping[str, Any], server: Server, prompt: Ints) -> Prefixes | None:
    """Return one beginning that all prompts share, as long as their cache hits were on average."""
    if not row["prefix_hits"] or server.memory is None or not server.caches_prefixes:
        return None
    size = server.memory.block_size
    blocks = np.floor(row["prefix_hits"] * prompt / size).astype(np.int64)
    ids = np.concatenate([np.arange(count) for count in blocks])
    return Prefixes.of(ids, blocks, prompt, size)
