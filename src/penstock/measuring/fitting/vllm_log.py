"""The log that vLLM writes with ``--enable-logging-iteration-details``: a line for each iteration.

A line says how many prompts and decodes were in the batch, and how long it took; not how long the
contexts of the decodes were, nor what lies between two iterations. Both follow from the lines
together: contexts from the share of the KV cache in use, or from following the requests; the gap
from the timestamps, over stretches in which the engine was never idle.
"""

import dataclasses
import datetime
import math
import re

import numpy as np

from penstock.inputs.source import Source
from penstock.measuring.fitting.batches import Array, Gap, MeasuredBatches
from penstock.measuring.fitting.engine_logs import batches_of, check_possible
from penstock.measuring.fitting.follow_requests import Iterations, followed_context

ITERATION = b"iteration elapsed time"
"""What stands in a line about an iteration."""

_ITERATION = re.compile(
    r"(?:Engine (\d+): )?(?:Iteration\((\d+)\): )?(\d+) context requests, (\d+) context tokens, "
    r"(\d+) generation requests, (\d+) generation tokens, "
    r"iteration elapsed time: (\d+(?:\.\d+)?) ms(?:.*?KV cache usage: (\d+(?:\.\d+)?)%)?"
)
_TIME = re.compile(r"(?:(\d{4})-)?(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?(?!\d)")
_KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
_LOGGED = (
    "elapsed time", "context requests", "context tokens",
    "generation requests", "generation tokens",
)  # fmt: skip
_ROUNDED = 0.00051  # share of the KV cache by which the log may be off
_SHOWN = 3 * _ROUNDED  # from one more block, where rounding does not hide it
_DISTINCT = 8  # shares that must be whole numbers of a block, or it is by chance
_TICKS = 5  # whole seconds that a stretch must span to say anything of gaps
_AGREES = 0.1  # share of the blocks in use by which those of requests that are followed may be off
_BLURS = 0.25  # share of the mean context that a block must be for half of one to be a bad guess
_ROUNDED_SHARE = (
    "context is taken from the share of the KV cache in use, which the log rounds to 0.1%"
)
_FOLLOWED = (
    "context is that of requests followed from iteration to iteration, the oldest of which are "
    "taken to end first"
)
_NO_GAP = (
    "the log's times leave out what lies between two iterations, and it has no busy stretch with "
    "timestamps that is long enough to tell how long that is: batches take longer than this says"
)


def has_iterations(source: Source) -> bool:
    """Return whether a file has lines on iterations, perhaps after lines about something else."""
    source.refuse_long_lines()
    with source.open() as file:
        return any(ITERATION in line for line in file)


def is_size(line: bytes) -> bool:
    """Return whether a line says what the KV cache holds, as an engine writes when it begins."""
    return _KV_TOKENS.search(line.decode("utf-8", "replace")) is not None


def find_iterations(source: Source) -> MeasuredBatches:
    """Read a log; the iterations of several engines in it are told apart."""
    # The context is known where the log says how many tokens the KV cache holds (``GPU KV cache
    # size``, ``CPU KV cache size``): the share in use before an iteration, less half a block per
    # request where a block's length is known; shared prefixes share memory. Where half of a long
    # block is a bad guess, or the cache's size is not said, requests are followed instead.
    rows: list[tuple[float, ...]] = []
    bad = 0
    capacity = None
    source.refuse_long_lines()
    with source.open() as file:
        for number, raw in enumerate(file, 1):
            line = raw.decode("utf-8", "replace")
            if size := _KV_TOKENS.search(line):
                capacity = float(size[1].replace(",", ""))
            if ITERATION not in raw:
                continue
            iteration = _ITERATION.search(line)
            if iteration is None:
                bad += 1
                continue
            of_engine, nth, *counts, ms, share = (float(v or "nan") for v in iteration.groups())
            values = [ms / 1e3, *counts]
            check_possible(source, f"line {number:,}", _LOGGED, values)
            rows.append((of_engine, nth, *values, share / 100, *_seconds_of(line)))
    table = np.array(rows, float).reshape(-1, 10)
    table = table[np.argsort(np.nan_to_num(table[:, 0]), kind="stable")]
    engine, place, seconds, prompts, new, decodes, out, usage, logged, step = table.T
    joins = np.diff(place, prepend=np.nan) == 1  # follows the line before it, of the same engine
    joins[1:] &= np.diff(np.nan_to_num(engine)) == 0
    told = Iterations(seconds, prompts, new, decodes, out, usage, joins)
    columns = {
        "seconds": seconds, "prompts": prompts, "new": new, "decodes": decodes, "out": out,
    }  # fmt: skip
    context, block, note = _context(told, capacity)
    if context is not None:
        columns["context"] = context
    gap = _gap(told, logged, step) if rows else None
    notes = [note, None if gap else _NO_GAP]
    batches = batches_of(source, "vllm", bad, columns, *filter(None, notes))
    return dataclasses.replace(batches, context_block=block, gap=gap)


def _seconds_of(line: str) -> tuple[float, float]:
    """Return the time of a line in seconds, and the step in which the log counts; NaN: none."""
    stamp = _TIME.search(line)
    if stamp is None:
        return math.nan, math.nan
    fraction = stamp[7]
    year, month, day, hour, minute, second = (int(part or 2000) for part in stamp.groups()[:6])
    try:  # a leap year where none is stated, as only differences count
        moment = datetime.datetime(year, month, day, hour, minute, second)
    except ValueError:
        return math.nan, math.nan
    since = (moment - datetime.datetime(2000, 1, 1)).total_seconds()
    if fraction is None:
        return since, 1.0
    return since + float(f"0.{fraction}"), 10.0 ** -len(fraction)


def _context(
    told: Iterations, capacity: float | None
) -> tuple[Array | None, float | None, str | None]:
    """Return the tokens before decodes, the KV block that blurs them, and what to say of both."""
    followed = followed_context(told)
    if capacity is None or not np.isfinite(told.usage).all():
        if followed is None:
            return None, None, None
        note = f"{_FOLLOWED}; tokens of cached prefixes are not in it, as no KV cache size is there"
        return followed.tokens, None, note
    block = _block(told.usage, capacity)
    before = np.where(told.joins, np.roll(told.usage, 1), told.usage) * capacity
    # A step ahead, what is in use already holds the prompts of the next batch.
    counted = ~told.joins | told.ahead(capacity)
    held = before - told.new * counted - (told.decodes + told.prompts * counted) * (block or 0) / 2
    context = np.where(told.decodes > 0, np.maximum(held, 0), 0.0)
    mean = float(context.sum() / max(told.decodes.sum(), 1.0))
    if block is None or block < _BLURS * mean:
        return context, block, _ROUNDED_SHARE
    if followed is not None:
        seen = told.usage.sum() * capacity / block
        if abs(followed.blocks(block) / seen - 1) < _AGREES:
            return followed.tokens, None, _FOLLOWED
    return context, block, _ROUNDED_SHARE


def _block(usage: Array, capacity: float) -> float | None:
    """Return how many tokens a KV block holds; None where a block is less than rounding shows."""
    shares = np.unique(usage)
    steps = np.diff(shares)
    if shares.size < _DISTINCT or steps.min() < _SHOWN:
        return None
    # each step is rounded by itself, so a block is the slope over all of them
    blocks = np.rint(shares / steps[steps < 1.5 * steps.min()].mean())
    block = float(blocks @ shares / (blocks @ blocks))
    whole = np.abs(blocks * block - shares).max() <= _ROUNDED
    return block * capacity if whole else None


def _gap(told: Iterations, logged: Array, step: Array) -> Gap | None:
    """Return the time between two iterations of a busy engine."""
    # In a busy stretch timestamps run ahead of the sum of elapsed times by a gap for each
    # iteration. Whole seconds are known to within the iteration in which they begin, so the slope
    # is taken between such: the median over pairs of a stretch, which a stall does not bend,
    # weighted by distance.
    slopes: list[Array] = []
    weights: list[Array] = []
    ticks = 0
    for start, stop in told.busy:
        time, rows = logged[start:stop], np.arange(stop - start)
        if not np.isfinite(time).all():
            continue
        begins = np.flatnonzero(np.diff(time) > 0) + 1
        if begins.size < _TICKS:
            continue
        took = told.seconds[start:stop]
        # The line is written when the iteration ends, somewhere within it after the second began.
        late = np.where(step[start:stop] >= 1.0, took / 2, 0.0)
        ahead = (time + late - np.cumsum(took))[begins]
        first, second = np.triu_indices(begins.size, 1)
        apart = rows[begins][second] - rows[begins][first]
        slopes.append((ahead[second] - ahead[first]) / apart)
        weights.append(apart.astype(float))
        ticks += begins.size
    if not slopes:
        return None
    slope, weight = np.concatenate(slopes), np.concatenate(weights)
    order = np.argsort(slope)
    share = (np.cumsum(weight[order]) - weight[order] / 2) / weight.sum()
    low, middle, high = np.interp((0.25, 0.5, 0.75), share, slope[order])
    error = 2 * (high - low) / math.sqrt(ticks)
    return Gap(*(max(float(value), 0.0) for value in (middle, middle - error, middle + error)))
