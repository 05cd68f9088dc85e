"""What one engine said of itself at one moment, whatever its metrics are called.

A file for each kind of engine (`penstock.live.engines`) turns a page of metrics into scrapes; all
that follows from them is worked out on these fields alone. None means that the engine did not say;
a reader never puts 0 in its place.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Scrape:
    """One engine at one moment.

    Counters begin where the engine began and only grow; a smaller one says that it has started
    anew. Gauges are of the last batch that it formed.
    """

    engine: str  # of those watched: the address, and the label where an address has several
    time_s: float  # when it was read, Unix time
    running: float | None = None  # gauge: requests in the batch that is served
    waiting: float | None = None  # gauge: requests in the queue
    # Counter: requests that have left, for whatever reason that the engine counts.
    finished: float | None = None
    # Counter: requests that came, where a gateway or the engine counts them.
    arrived: float | None = None
    refused: float | None = None  # counter: requests that were turned away at the door
    first_tokens: float | None = None  # counter: requests whose first token is out
    # Counter: counted whole when the first token is out, cached too.
    prompt_tokens: float | None = None
    cached_tokens: float | None = None  # counter: those of them that a prefix cache held
    output_tokens: float | None = None  # counter: that came out, of requests still running too
    finished_prompt_tokens: float | None = None  # counter: of requests that have finished
    finished_output_tokens: float | None = None  # counter: of requests that have finished
    # Standard deviation over mean of the lengths of requests that have finished since the engine
    # began, as its histogram shows it.
    prompt_spread: float | None = None
    output_spread: float | None = None
    batches: float | None = None  # counter: that were served
    batch_tokens: float | None = None  # counter: tokens in them
    preemptions: float | None = None  # counter: requests whose memory was taken back
    kv_used: float | None = None  # gauge: share of the blocks of KV memory in use, 0 to 1
    kv_tokens: float | None = None  # tokens that the KV memory holds
    kv_block: float | None = None  # tokens of one of its blocks
    ttft_s: float | None = None  # counter: summed over the requests of `first_tokens`
    backlog_tokens: float | None = None  # gauge: tokens of prompts that wait, where the engine says
    preempted: float | None = None  # gauge: requests whose memory was taken back and that wait
    preempted_tokens: float | None = None  # gauge: their tokens, which are computed anew
    # Gauge: before the decodes of the batch that is served, where it says.
    context_tokens: float | None = None
