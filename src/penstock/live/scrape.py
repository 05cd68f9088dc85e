"""What one engine said of itself at one moment, whatever its metrics are called.

A file for each kind of engine (`penstock.live.engines`) turns a page of metrics into scrapes; all
that follows from them is worked out on these fields alone. None means that the engine did not say;
a reader never puts 0 in its place.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

LARGEST = 2.0**53
"""Counters are floats: beyond this they no longer count by ones."""

# It begins where the engine began and only grows; a smaller one says that it has started anew.
Counter = Annotated[float | None, "counter"]
# It is of the last batch that the engine formed.
Gauge = Annotated[float | None, "gauge"]


@dataclasses.dataclass(frozen=True)
class Scrape:
    """One engine at one moment."""

    engine: str  # of those watched: the address, and the label where an address has several
    time_s: float  # when it was read, Unix time
    running: Gauge = None  # requests in the batch that is served
    waiting: Gauge = None  # requests in the queue
    finished: Counter = None  # requests that have left, for whatever reason that the engine counts
    arrived: Counter = None  # requests that came, where a gateway or the engine counts them
    refused: Counter = None  # requests that were turned away at the door
    first_tokens: Counter = None  # requests whose first token is out
    prompt_tokens: Counter = None  # counted whole when the first token is out, cached too
    cached_tokens: Counter = None  # those of them that a prefix cache held
    output_tokens: Counter = None  # that came out, of requests still running too
    finished_prompt_tokens: Counter = None  # of requests that have finished
    finished_output_tokens: Counter = None  # of requests that have finished
    # Standard deviation over mean of the lengths of requests that have finished since the engine
    # began, as its histogram shows it.
    prompt_spread: float | None = None
    output_spread: float | None = None
    batches: Counter = None  # that were served
    batch_tokens: Counter = None  # tokens in them
    preemptions: Counter = None  # requests whose memory was taken back
    kv_used: Gauge = None  # share of the blocks of KV memory in use, 0 to 1
    kv_tokens: Gauge = None  # that the KV memory holds
    kv_block: Gauge = None  # tokens of one of its blocks
    ttft_s: Counter = None  # summed over the requests of `first_tokens`
    backlog_tokens: Gauge = None  # of prompts that wait, where the engine says
    preempted: Gauge = None  # requests whose memory was taken back and that wait
    preempted_tokens: Gauge = None  # their tokens, which are computed anew
    context_tokens: Gauge = None  # before the decodes of the batch that is served, where it says


def _of_kind(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(Scrape) if field.type == kind)


COUNTERS, GAUGES = _of_kind(Counter), _of_kind(Gauge)


def number_in(values: Mapping[str, Any], key: str, missing: Any = None) -> float | None:
    """Return what stands at a key of JSON, where it is a number that can be counted with."""
    value = values.get(key, missing)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < LARGEST else None
