"""What one engine said of itself at one moment, whatever its metrics are called.

A file for each kind of engine (`penstock.live.engines`) turns a page of metrics into scrapes; all
that follows from them is worked out on these fields alone. None means that the engine did not say;
a reader never puts 0 in its place.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Scrape:
    """One engine at one moment.

    Counters begin where the engine began and only grow; one that is smaller than before says that
    the engine has started anew. Gauges are of the last batch that it formed.

    Attributes
    ----------
    engine
        Which engine of those watched: the address, and the label where an address has several.
    time_s
        When it was read, Unix time in seconds.
    running, waiting
        Gauges: requests in the batch that is served, and requests in the queue.
    finished
        Counter: requests that have left, for whatever reason that the engine counts.
    arrived
        Counter: requests that came, where a gateway or the engine counts them.
    refused
        Counter: requests that were turned away at the door.
    first_tokens
        Counter: requests whose first token is out.
    prompt_tokens
        Counter: tokens of prompts, counted whole when the first token is out, cached ones too.
    cached_tokens
        Counter: those of them that a prefix cache held.
    output_tokens
        Counter: tokens that came out, of requests still running too.
    finished_prompt_tokens, finished_output_tokens
        Counters: tokens of requests that have finished.
    prompt_spread, output_spread
        Standard deviation over mean of the lengths of requests that have finished since the engine
        began, as its histogram shows it.
    batches, batch_tokens
        Counters: batches that were served, and tokens in them.
    preemptions
        Counter: requests whose memory was taken back.
    kv_used
        Gauge: share of the blocks of KV memory in use, 0 to 1.
    kv_tokens, kv_block
        Tokens that the KV memory holds, and those of one of its blocks.
    ttft_s
        Counter: seconds to the first token, summed over the requests of ``first_tokens``.
    backlog_tokens
        Gauge: tokens of prompts that wait, where the engine says.
    preempted, preempted_tokens
        Gauges: requests whose memory was taken back and that wait, and their tokens, which are
        computed anew.
    context_tokens
        Gauge: tokens before the decodes of the batch that is served, where the engine says.
    """

    engine: str
    time_s: float
    running: float | None = None
    waiting: float | None = None
    finished: float | None = None
    arrived: float | None = None
    refused: float | None = None
    first_tokens: float | None = None
    prompt_tokens: float | None = None
    cached_tokens: float | None = None
    output_tokens: float | None = None
    finished_prompt_tokens: float | None = None
    finished_output_tokens: float | None = None
    prompt_spread: float | None = None
    output_spread: float | None = None
    batches: float | None = None
    batch_tokens: float | None = None
    preemptions: float | None = None
    kv_used: float | None = None
    kv_tokens: float | None = None
    kv_block: float | None = None
    ttft_s: float | None = None
    backlog_tokens: float | None = None
    preempted: float | None = None
    preempted_tokens: float | None = None
    context_tokens: float | None = None
