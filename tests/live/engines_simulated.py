"""A small engine with known batch times, and what it would have said of itself."""

import dataclasses
import functools
from typing import Any

import numpy as np

import penstock as ps
from penstock.live.reading import Answer
from penstock.live.scrape import Scrape
from penstock.live.settings import Settings
from penstock.live.watching import Watch
from tests.live.simulated_scrapes import simulated_scrapes

HOST_S = 0.005
FIXED = (ps.Constant(100), ps.Constant(42))
SPREAD = (ps.LogNormal(100, 0.8, max=1_000), ps.LogNormal(42, 0.8, max=400))


def engine(host_s: float = 0.0, blocks: int = 250) -> ps.Server:
    """An engine of 40 ms a batch, .5 ms a token and 10 us a token of context, and its host's time."""
    times = ps.Composition(ps.Affine(0.040 + host_s, 0.0005), decode_attention=1e-5)
    memory = ps.Memory(blocks, 128)
    return ps.Server(times, 128, 64, "vllm", policy_params={"async_scheduling": False}, memory=memory)


def capacity(lengths: tuple[ps.LogNormal | ps.Constant, ...] = FIXED) -> float:
    """Requests/s that the engine carries, its host's time included."""
    return min(bound.max_rate for bound in ps.certify(ps.Workload.poisson(1.0, *lengths), engine(HOST_S)).bounds)


def scrapes(
    load: float,
    seconds: float,
    seed: int = 0,
    every: float = 5.0,
    lengths: tuple[ps.LogNormal | ps.Constant, ...] = FIXED,
) -> list[Scrape]:
    """What it says at a load, every so many seconds."""
    workload = ps.Workload.poisson(load * capacity(lengths), *lengths, seed=seed)
    run = ps.simulate(workload, engine(HOST_S), until=seconds, record="batches")
    return simulated_scrapes(run, np.arange(every, seconds, every))


@functools.cache
def answer(load: float, until_s: float, name: str = "a:1") -> Answer:
    """What is said at a load, after ten minutes that end then."""
    watching = Watch(engine(), Settings(queue_limit=200))
    for scrape in scrapes(load, 600.0):
        watching.take(dataclasses.replace(scrape, engine=name, time_s=until_s - 595.0 + scrape.time_s))
    return watching.answer()


@functools.cache
def passes(load: float = 0.6, seconds: float = 120.0) -> list[dict[str, Any]]:
    """The forward-pass metrics that the engine publishes; the context of decodes is what its batch times tell."""
    workload = ps.Workload.poisson(load * capacity(SPREAD), *SPREAD, seed=1)
    batches = ps.simulate(workload, engine(), until=seconds, record="batches").batches
    times, messages = engine().batch_time, []
    for number, batch in enumerate(batches.iter_rows(named=True)):
        prefill, decodes, took = batch["prefill_tokens"], batch["decode_tokens"], batch["duration_ns"] * 1e-9
        context = (took - float(times.linear(prefill + decodes))) / times.decode_attention
        scheduled = {
            "num_prefill_requests": batch["requests"] - decodes,
            "sum_prefill_tokens": prefill,
            "num_decode_requests": decodes,
            "sum_decode_kv_tokens": round(context),
        }
        messages.append(published(number, took, scheduled))
    return messages


def published(
    number: int, seconds: float, scheduled: dict[str, float] | None = None, queued: dict[str, float] | None = None
) -> dict[str, Any]:
    """One message of forward-pass metrics."""
    return {
        "version": 1,
        "worker_id": "w",
        "dp_rank": 0,
        "counter_id": number,
        "wall_time": seconds,
        "scheduled_requests": scheduled or {},
        "queued_requests": queued or {},
    }
