"""One server, iteration by iteration, in integer ticks: the loop that everything else waits for.

How it is fast, and still exact:

* Prompts are served in order of arrival, so the prefill queue is two indices into the workload.
* A request that decodes does so once per batch, and nearly every batch serves all that decode. So
  no request counts its tokens down: an *epoch* counts decode batches, and a request with r
  iterations left is due at epoch + r. A ring of buckets indexed by due epoch, with a bitmap over
  it, gives the next one to finish in O(1).
* A batch too small for all of them serves the oldest. Then either the epoch moves on and the
  others' due epochs are put off, or it stays and those served come closer, whichever touches fewer
  requests.
* Requests are *linked* (in a list, in order of arrival) from their first decode on. Those that
  never decoded are a third index into the workload, so a backlog of a million costs nothing per
  batch.
* Linked requests served last at the same time are neighbours: a stack of *segments* (how many,
  when) is all that the times between tokens need.
* When a batch has no prefill, the next one is the same until a request finishes or an arrival can
  change what the policy sees: those iterations are one step (*compression*).
* Where a batch's time depends on its context, what all linked requests hold is a sum that moves
  with the epoch, and equal decode batches rise by the same cost from one to the next: closed forms,
  in `penstock.kernel.composition`.

All state lives in arrays that the caller owns, so a run can stop anywhere and go on: for more
arrivals, for room, for a progress bar.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, types

from penstock.kernel.composition import (
    BITS,
    HALF,
    TERMS,
    Terms,
    batches_begun,
    batches_done,
    cost_of,
    rise_of,
    ticks_of,
    ticks_of_run,
)
from penstock.kernel.counting import Multiset, add
from penstock.kernel.signatures import (
    POLICY,
    PREFILL_FIRST,
    SEES_BATCH,
    SEES_DECODES,
    Limits,
    Queue,
)

# What `advance` returns:
DONE = 0  # everything that arrived is finished, or `until` is reached
MORE = 1  # the next arrival is not known yet
PAUSED = 2  # the step allowance is used up
FULL = 3  # a multiset or a row buffer needs room
IDLE_POLICY = 4  # the policy formed an empty batch although a non-empty one was possible
BAD_POLICY = 5  # the policy asked for a negative number of tokens

NEVER = 2**62
"""A tick, an epoch or a limit that is never reached."""

# What `advance` records beside first and last token times.
RECORD_NONE, RECORD_BATCHES, RECORD_ALLOCATIONS = 0, 1, 2

# Options, an int64 array.
(
    TOKEN_BUDGET,
    BATCH_SIZE,
    RUNNING_SCOPE,
    ENGINE,
    COMPRESS,
    RECORD,
    GAP_BITS,
    FINAL,
    UNTIL,
    STEPS,
    SEES,
) = range(11)
# Of a closed loop: how many, and ticks between an answer and the next request; 0: open.
CLIENTS, PAUSE = (
    11,
    12,
)
N_OPTIONS = 13

# State, an int64 array. Requests are named by their place in the workload arrays handed in.
(
    NOW,  # tick: the last batch ended, or an arrival ended an idle time
    ARRIVED,  # requests that have arrived by NOW
    HEAD,  # first request whose prompt is not yet wholly scheduled
    VISIBLE,  # end of the prompts the policy may see
    VISIBLE_TOKENS,  # their unprocessed tokens
    HEAD_DONE,  # tokens of the HEAD prompt already scheduled
    DECODING,  # requests in decode: linked ones, and those that never decoded
    FRESH,  # first request that may be in decode without having decoded
    LINKED,  # requests that have decoded and are not finished
    EPOCH,  # decode batches so far
    NEXT_DUE,  # epoch at which the next linked request finishes, if every batch serves all
    FIRST_SLOT,  # list of linked requests, oldest first
    LAST_SLOT,
    FREE_SLOT,
    FLIGHT_START,  # the last batch, or run of equal batches: for the series
    FLIGHT_TICKS,
    FLIGHT_TOKENS,
    FLIGHT_END,
    BEFORE_STARTED,  # token and request counts before that flight
    BEFORE_COMPLETED,
    BEFORE_FINISHED,
    STARTED,  # tokens in batches that started
    COMPLETED,  # tokens in batches that ended
    FINISHED,  # requests
    BATCHES,
    BUSY,  # ticks
    SEEN,  # arrivals counted into the series
    SEEN_TOKENS,
    DROPPED,  # requests before the workload arrays' first row
    SERIES_ROWS,
    SERIES_STEP,
    SEGMENTS,
    STALL_SUM,  # ticks, below CARRY
    STALL_SUM_CARRY,  # units of CARRY ticks
    STALLS_USED,  # distinct stalls in the multiset
    MIXES_USED,  # distinct mixes in the multiset
    BATCH_ROWS,
    ALLOCATION_ROWS,
    WAITING_TOKENS,  # unprocessed prompt tokens of all that wait
    DECODE_TOKENS,  # decode iterations still to come of those in decode
    ARRIVED_TOKENS,  # prompt tokens of all that arrived
    FINISHED_DECODES,  # decode iterations of all that finished
    CONTEXT_BASE,  # tokens before the next decodes of all linked requests, less LINKED * EPOCH
    # where the batch time depends on the composition: of the first batch of that flight,
    FLIGHT_COST,
    FLIGHT_RISE,  # how much more each next one costs,
    FLIGHT_BATCHES,  # and how many there are
) = range(46)
N_STATE = 46

# Slots, one column per linked request.
SLOT_REQUEST, SLOT_DUE, SLOT_PREV, SLOT_NEXT, SLOT_CHAIN = range(5)
N_SLOT_ROWS = 5

# Tallies, one column per token load or number of decode tokens: what nearly every batch adds to.
TALLY_GAPS, TALLY_FULL = range(2)
N_TALLIES = 2

MOST_CELLS = 2**17
"""Batch compositions that have a counter of their own; others share a multiset."""

MIX_TICKS = 1 << 62
"""Added to a composition's key in that multiset, counts the ticks of its batches instead of them.
"""

# Segments, one column each, the oldest requests on top of the stack.
SEGMENT_COUNT, SEGMENT_TIME = range(2)

CARRY_BITS = 31
CARRY = 2**CARRY_BITS
SERIES_INSTANTS = 2000

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_ONE = np.uint64(1)
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_BIT_INDEX = np.zeros(64, np.int64)
for _bit in range(64):
    _BIT_INDEX[(((1 << _bit) * 0x03F79D71B4CB0A89) % 2**64) >> 58] = _bit


@njit(cache=True)
def _lowest_bit(word: int) -> Any:
    """Index of the lowest bit that is set in a non-zero word."""
    lone = word & (~word + _ONE)
    return _BIT_INDEX[(lone * _DE_BRUIJN) >> np.uint64(58)]


@njit(cache=True)
def next_due_epoch(bits: Words, epoch: int) -> Any:
    """Return the first epoch after ``epoch`` whose bucket is not empty, or NEVER."""
    size = bits.size * 64
    start = (epoch + 1) & (size - 1)
    index = start >> 6
    word = (bits[index] >> np.uint64(start & 63)) << np.uint64(start & 63)
    for _ in range(bits.size + 1):
        if word != 0:
            place = (index << 6) + _lowest_bit(word)
            return epoch + 1 + ((place - start) & (size - 1))
        index = (index + 1) & (bits.size - 1)
        word = bits[index]
    return NEVER


@njit(cache=True)
def chain(slots: Ints, heads: Ints, bits: Words, slot: int) -> None:
    """Put a slot into the bucket of its due epoch."""
    place = slots[SLOT_DUE, slot] & (heads.size - 1)
    slots[SLOT_CHAIN, slot] = heads[place]
    heads[place] = slot
    bits[place >> 6] |= _ONE << np.uint64(place & 63)


@njit(cache=True)
def unchain(slots: Ints, heads: Ints, bits: Words, slot: int) -> None:
    """Take a slot out of the bucket of its due epoch."""
    place = slots[SLOT_DUE, slot] & (heads.size - 1)
    if heads[place] == slot:
        heads[place] = slots[SLOT_CHAIN, slot]
        if heads[place] < 0:
            bits[place >> 6] &= ~(_ONE << np.uint64(place & 63))
        return
    other = heads[place]
    while slots[SLOT_CHAIN, other] != slot:
        other = slots[SLOT_CHAIN, other]
    slots[SLOT_CHAIN, other] = slots[SLOT_CHAIN, slot]


@njit(cache=True)
def send_next(options: Ints, arrival: Ints, before: int, finished: int, end: int) -> None:
    """Let the clients whose requests finished at ``end`` send their next ones: those in order that
    are left.
    """
    clients = options[CLIENTS]
    for request in range(before + clients, min(finished + clients, arrival.size)):
        arrival[request] = end + options[PAUSE]


@njit(cache=True)
def count_stall(state: Ints, stalls: Multiset, gap: int, count: int, bits: int) -> None:
    """Count a time between two tokens; keep only its leading ``bits`` binary digits if that is not
    0.
    """
    # In two parts: the product itself could overflow.
    low = state[STALL_SUM] + (gap & (CARRY - 1)) * count
    state[STALL_SUM] = low & (CARRY - 1)
    state[STALL_SUM_CARRY] += (gap >> CARRY_BITS) * count + (low >> CARRY_BITS)
    if bits > 0:
        shift = 0
        while (gap >> shift) >= (1 << bits):
            shift += 1
        if shift > 0:
            # The middle of what they stand for.
            gap = ((gap >> shift) << shift) + (1 << (shift - 1))
    state[STALLS_USED] += add(stalls, gap, count)


@njit(cache=True)
def count_run(
    state: Ints, stalls: Multiset, cost: int, rise: int, first: int, end: int, count: int, bits: int
) -> None:
    """Count the times of the batches first .. end - 1 of a run, ``count`` gaps each, as
    `count_stall` would.

    Batch i costs ``cost + i rise``; those whose times share their leading digits are counted at
    once.
    """
    ticks = ticks_of_run(cost + first * rise, rise, end - first)
    low = state[STALL_SUM] + (ticks & (CARRY - 1)) * count
    state[STALL_SUM] = low & (CARRY - 1)
    state[STALL_SUM_CARRY] += (ticks >> CARRY_BITS) * count + (low >> CARRY_BITS)
    while first < end:
        gap = ticks_of(cost + first * rise)
        shift = 0
        while (gap >> shift) >= (1 << bits):
            shift += 1
        place = gap >> shift
        beyond = end
        if rise > 0:  # the first batch that takes (place + 1) << shift ticks
            least = ((((place + 1) << shift) << BITS) - HALF - cost + rise - 1) // rise
            beyond = min(least, end)
        middle = (place << shift) + (1 << (shift - 1)) if shift > 0 else place
        state[STALLS_USED] += add(stalls, middle, count * (beyond - first))
        first = beyond


@njit(cache=True)
def _context(
    slots: Ints, prompt: npt.NDArray[np.int32], output: npt.NDArray[np.int32], engine: int,
    slot: int, along: int,
    count: int, epoch: int,
) -> Any:  # fmt: skip
    """Return the tokens before the next decodes of so many linked requests, from a slot along the
    list.
    """
    total = count * (epoch - engine)
    for _ in range(count):
        request = slots[SLOT_REQUEST, slot]
        total += prompt[request] + output[request] - slots[SLOT_DUE, slot]
        slot = slots[along, slot]
    return total


def advance(
    policy: Callable[[Queue, Limits, npt.NDArray[np.float64]], tuple[int, int, int]],
    params: npt.NDArray[np.float64],
    options: Ints,
    duration: Ints,
    terms: Terms | None,
    arrival: Ints,
    prompt: npt.NDArray[np.int32],
    output: npt.NDArray[np.int32],
    first_token: Ints,
    finish: Ints,
    state: Ints,
    slots: Ints,
    heads: Ints,
    bits: Words,
    segments: Ints,
    tallies: Ints,
    cells: Ints,
    stalls: Multiset,
    mixes: Multiset,
    series: Ints,
    batch_rows: Ints,
    allocation_rows: Ints,
) -> int:
    """Run the server until it needs something; return why it stopped.

    Parameters
    ----------
    policy, params
        The policy under its explicit type, and its parameters.
    options
        Limits, scope, convention, what to record, how far to run.
    duration
        Shape (token budget + 1,), ticks of a batch with so many tokens.
    terms
        What batches cost, where that depends on more than their tokens.
    arrival, prompt, output
        Shape (requests known,), ticks and tokens, in order of arrival.
    first_token, finish
        Shape (requests known,), ticks, written; -1 while unknown.
    state, slots, heads, bits, segments
        What the server remembers: see the constants above.
    tallies
        Shape (2, token budget + 1): times between tokens that are one batch, by its token load;
        batches filled to the token budget, by their decode tokens. Not with ``terms``.
    cells
        Shape (at most MOST_CELLS,): batches by composition, at prefill * (slots + 1) + decode. With
        ``terms`` twice as many: then their ticks.
    stalls, mixes
        Multisets of all other times between tokens (ticks) and batch compositions (prefill << 32 |
        decode).
    series
        Shape (2000, 4): tick, requests in system, tokens unprocessed, tokens uncompleted.
    batch_rows, allocation_rows
        Shape (room, 5) and (room, 4), written where asked for.
    """
    budget = options[TOKEN_BUDGET]
    batch_size = options[BATCH_SIZE]
    running_scope = options[RUNNING_SCOPE] != 0
    engine = options[ENGINE]
    compress = options[COMPRESS] != 0
    record = options[RECORD]
    gap_bits = options[GAP_BITS]
    final = options[FINAL] != 0
    until = options[UNTIL]
    steps = options[STEPS]
    sees = options[SEES]
    limits = Limits(budget, batch_size)
    known = arrival.size
    most_slots = slots.shape[1]
    n_cells = cells.size
    if terms is not None:
        n_cells = cells.size // 2

    now = state[NOW]
    arrived = state[ARRIVED]
    head = state[HEAD]
    visible = state[VISIBLE]
    visible_tokens = state[VISIBLE_TOKENS]
    head_done = state[HEAD_DONE]
    decoding = state[DECODING]
    fresh = state[FRESH]
    linked = state[LINKED]
    epoch = state[EPOCH]
    next_due = state[NEXT_DUE]
    first_slot = state[FIRST_SLOT]
    last_slot = state[LAST_SLOT]
    free_slot = state[FREE_SLOT]
    flight_start = state[FLIGHT_START]
    flight_ticks = state[FLIGHT_TICKS]
    flight_tokens = state[FLIGHT_TOKENS]
    flight_end = state[FLIGHT_END]
    before_started = state[BEFORE_STARTED]
    before_completed = state[BEFORE_COMPLETED]
    before_finished = state[BEFORE_FINISHED]
    started = state[STARTED]
    completed = state[COMPLETED]
    finished = state[FINISHED]
    batches = state[BATCHES]
    busy = state[BUSY]
    seen = state[SEEN]
    seen_tokens = state[SEEN_TOKENS]
    dropped = state[DROPPED]
    series_rows = state[SERIES_ROWS]
    series_step = state[SERIES_STEP]
    top = state[SEGMENTS] - 1
    mixes_used = state[MIXES_USED]
    batch_used = state[BATCH_ROWS]
    allocation_used = state[ALLOCATION_ROWS]
    waiting_tokens = state[WAITING_TOKENS]
    decode_tokens = state[DECODE_TOKENS]
    arrived_tokens = state[ARRIVED_TOKENS]
    finished_decodes = state[FINISHED_DECODES]
    context_base = state[CONTEXT_BASE]
    flight_cost = state[FLIGHT_COST]
    flight_rise = state[FLIGHT_RISE]
    flight_batches = state[FLIGHT_BATCHES]

    while True:
        # -- arrivals up to now
        while arrived < known and arrival[arrived] <= now:
            waiting_tokens += prompt[arrived]
            arrived_tokens += prompt[arrived]
            arrived += 1
        if arrived == known and not final:
            status = MORE
            break

        # -- the series: exact values at its instants up to now
        tick = series_rows * series_step
        while tick <= now:
            while seen < arrived and arrival[seen] <= tick:
                seen_tokens += prompt[seen] + output[seen] - engine
                seen += 1
            if series_rows == SERIES_INSTANTS:  # full: keep every other instant
                for row in range(1, SERIES_INSTANTS // 2):
                    for column in range(4):
                        series[row, column] = series[2 * row, column]
                series_rows = SERIES_INSTANTS // 2
                series_step *= 2
            else:
                begun, ended, gone = started, completed, finished
                if tick < flight_end:
                    if terms is not None:
                        whole = batches_done(
                            flight_cost, flight_rise, tick - flight_start, flight_batches - 1
                        )
                        part = (tick - flight_start) - ticks_of_run(flight_cost, flight_rise, whole)
                    else:
                        whole = (tick - flight_start) // flight_ticks
                        part = (tick - flight_start) - whole * flight_ticks
                    begun = before_started + flight_tokens * (whole + (1 if part > 0 else 0))
                    ended = before_completed + flight_tokens * whole
                    gone = before_finished
                series[series_rows, 0] = tick
                series[series_rows, 1] = dropped + seen - gone
                series[series_rows, 2] = seen_tokens - begun
                series[series_rows, 3] = seen_tokens - ended
                series_rows += 1
            tick = series_rows * series_step

        # -- is there something to do, and room to note it?
        if now >= until:
            status = DONE
            break
        if steps == 0:
            status = PAUSED
            break
        if (
            4 * (state[STALLS_USED] + most_slots) > stalls.size
            or 4 * mixes_used + 8 > mixes.size
            or (record >= RECORD_BATCHES and batch_used == batch_rows.shape[0])
            or (
                record >= RECORD_ALLOCATIONS and allocation_used + budget > allocation_rows.shape[0]
            )
        ):
            status = FULL
            break
        steps -= 1

        # -- what the policy may see: the max batch size bounds the prompts (monotone, so each is
        # added once)
        admissible = head + batch_size - (decoding if running_scope else 0)
        end_visible = min(arrived, admissible)
        while visible < end_visible:
            visible_tokens += prompt[visible]
            visible += 1
        prompts = visible - head
        if prompts == 0 and decoding == 0:
            flight_end = now
            if arrived < known and arrival[arrived] <= until:
                now = arrival[arrived]
                continue
            if until < NEVER:
                now = until
                continue
            status = DONE
            break

        # -- the policy's batch, cut to what there is
        queue = Queue(
            prompts,
            visible_tokens,
            decoding,
            arrived - head,
            waiting_tokens,
            prompt[head] - head_done if head < arrived else 0,
            decode_tokens,
            dropped + arrived,
            arrived_tokens,
            finished,
            finished_decodes,
        )
        x, y, first = policy(queue, limits, params)
        if x < 0 or y < 0:
            status = BAD_POLICY
            break
        y = min(y, decoding, batch_size, budget)
        room = budget
        prefill_slots = batch_size
        if first != PREFILL_FIRST:
            room -= y
            if not running_scope:
                prefill_slots -= y
        wanted = min(x, visible_tokens, room)
        prefill_slots = min(prefill_slots, prompts)
        if (wanted == 0 or prefill_slots == 0) and y == 0:
            status = IDLE_POLICY
            break

        # -- prefill, oldest prompt first, cut anywhere
        prefilled_from = head
        prefill_requests = 0
        squares, pairs = 0, 0
        left = wanted
        while left > 0 and prefill_requests < prefill_slots:
            rest = prompt[head] - head_done
            take = min(rest, left)
            if record >= RECORD_ALLOCATIONS:
                allocation_rows[allocation_used, 0] = batches
                allocation_rows[allocation_used, 1] = dropped + head
                allocation_rows[allocation_used, 2] = take
                allocation_rows[allocation_used, 3] = 0
                allocation_used += 1
            if terms is not None:
                squares += take * take
                pairs += take * head_done
            left -= take
            prefill_requests += 1
            if take == rest:
                head += 1
                head_done = 0
            else:
                head_done += take
        x = wanted - left
        visible_tokens -= x
        waiting_tokens -= x
        if first == PREFILL_FIRST:
            y = min(y, budget - x)
            if not running_scope:
                y = min(y, batch_size - prefill_requests)

        # -- decode: link as many fresh requests as the batch has room for
        already = min(linked, y)
        first_fresh = free_slot
        while linked < y:
            while output[fresh] == engine:  # its only token came with the end of prefill
                fresh += 1
            slot = free_slot
            free_slot = slots[SLOT_CHAIN, slot]
            slots[SLOT_REQUEST, slot] = fresh
            slots[SLOT_DUE, slot] = epoch + output[fresh] - engine
            slots[SLOT_PREV, slot] = last_slot
            slots[SLOT_NEXT, slot] = -1
            if last_slot < 0:
                first_slot = slot
            else:
                slots[SLOT_NEXT, last_slot] = slot
            chain(slots, heads, bits, slot)
            if terms is not None:
                context_base += prompt[fresh] - epoch
            next_due = min(next_due, slots[SLOT_DUE, slot])
            last_slot = slot
            linked += 1
            fresh += 1
        if record >= RECORD_ALLOCATIONS:
            slot = first_slot
            for _ in range(y):
                allocation_rows[allocation_used, 0] = batches
                allocation_rows[allocation_used, 1] = dropped + slots[SLOT_REQUEST, slot]
                allocation_rows[allocation_used, 2] = 0
                allocation_rows[allocation_used, 3] = 1
                allocation_used += 1
                slot = slots[SLOT_NEXT, slot]

        # -- how many equal batches follow each other
        ticks = duration[x + y]
        cost, rise = 0, 0
        if terms is not None:
            context = context_base + linked * epoch
            if 2 * y < linked:
                context = _context(slots, prompt, output, engine, first_slot, SLOT_NEXT, y, epoch)
            elif y < linked:
                context -= _context(
                    slots, prompt, output, engine, last_slot, SLOT_PREV, linked - y, epoch
                )
            cost = cost_of(terms, x, y, prefill_requests + y, squares, pairs, context)
            rise = rise_of(terms, y)
            ticks = ticks_of(cost)
        repeat = 1
        if x == 0 and compress and record < RECORD_ALLOCATIONS:
            repeat = next_due - epoch
            if y < linked or sees == SEES_DECODES:
                repeat = 1
            if arrived < known and (
                arrived < admissible or sees != SEES_BATCH
            ):  # the next arrival would be seen
                if terms is not None:
                    repeat = batches_begun(cost, rise, arrival[arrived] - now, repeat)
                else:
                    repeat = min(repeat, (arrival[arrived] - now + ticks - 1) // ticks)
            if until < NEVER:
                if terms is not None:
                    repeat = max(batches_done(cost, rise, until - now, repeat), 1)
                else:
                    repeat = min(repeat, max((until - now) // ticks, 1))
            if record >= RECORD_BATCHES:
                repeat = min(repeat, batch_rows.shape[0] - batch_used)
        end = now + ticks * repeat
        if terms is not None:
            end = now + ticks_of_run(cost, rise, repeat)
        if record >= RECORD_BATCHES:
            begin, lasts = now, ticks
            for i in range(repeat):
                if terms is not None:
                    lasts = ticks_of(cost + i * rise)
                batch_rows[batch_used, 0] = begin
                batch_rows[batch_used, 1] = lasts
                begin += lasts
                batch_rows[batch_used, 2] = x
                batch_rows[batch_used, 3] = y
                batch_rows[batch_used, 4] = prefill_requests + y
                batch_used += 1

        tokens = (x + y) * repeat
        flight_start = now
        flight_ticks = ticks
        flight_tokens = x + y
        flight_end = end
        flight_cost, flight_rise, flight_batches = cost, rise, repeat
        before_started = started
        before_completed = completed
        before_finished = finished
        started += tokens
        batches += repeat
        if end > until:  # in flight when the run stops
            busy += until - now
            now = until
            continue
        busy += end - now
        completed += tokens

        cell = x * (most_slots + 1) + y
        if cell < n_cells:
            cells[cell] += repeat
            if terms is not None:
                cells[n_cells + cell] += end - now
        elif terms is not None:
            mixes_used += add(mixes, (x << 32) | y, repeat)
            mixes_used += add(mixes, (x << 32) | y | MIX_TICKS, end - now)
        elif x + y == budget:
            tallies[TALLY_FULL, y] += repeat
        else:
            mixes_used += add(mixes, (x << 32) | y, repeat)

        # -- tokens out: a gap for each request that had one before, a first token for the others
        if y > 0:
            decode_tokens -= y * repeat
            first_end = now + ticks
            usual = ticks
            if terms is not None:
                usual = -1  # no gap is that of the token load
            slot = first_fresh
            for _ in range(y - already):
                request = slots[SLOT_REQUEST, slot]
                gap = first_end - first_token[request]
                if first_token[request] < 0:
                    first_token[request] = first_end
                elif gap == usual:
                    tallies[TALLY_GAPS, x + y] += 1
                else:
                    count_stall(state, stalls, gap, 1, gap_bits)
                slot = slots[SLOT_NEXT, slot]
            unserved = already
            while unserved > 0:
                count = min(segments[SEGMENT_COUNT, top], unserved)
                gap = first_end - segments[SEGMENT_TIME, top]
                if gap == usual:
                    tallies[TALLY_GAPS, x + y] += count
                else:
                    count_stall(state, stalls, gap, count, gap_bits)
                unserved -= count
                segments[SEGMENT_COUNT, top] -= count
                if segments[SEGMENT_COUNT, top] == 0:
                    top -= 1
            if terms is None:
                tallies[TALLY_GAPS, x + y] += y * (repeat - 1)
            elif repeat > 1:
                count_run(state, stalls, cost, rise, 1, repeat, y, gap_bits)

            # -- due epochs
            if y == linked:
                epoch += repeat
            elif 2 * y < linked:
                slot = first_slot
                for _ in range(y):
                    unchain(slots, heads, bits, slot)
                    slots[SLOT_DUE, slot] -= 1
                    chain(slots, heads, bits, slot)
                    slot = slots[SLOT_NEXT, slot]
                context_base += y
            else:
                epoch += 1
                context_base -= linked - y
                slot = last_slot
                for _ in range(linked - y):
                    unchain(slots, heads, bits, slot)
                    slots[SLOT_DUE, slot] += 1
                    chain(slots, heads, bits, slot)
                    slot = slots[SLOT_PREV, slot]

            # -- the requests that are due leave
            place = epoch & (heads.size - 1)
            slot = heads[place]
            served = y
            while slot >= 0:
                chained = slots[SLOT_CHAIN, slot]
                request = slots[SLOT_REQUEST, slot]
                finish[request] = end
                finished_decodes += output[request] - engine
                if terms is not None:
                    context_base -= prompt[request] + output[request] - engine - epoch
                previous = slots[SLOT_PREV, slot]
                following = slots[SLOT_NEXT, slot]
                if previous < 0:
                    first_slot = following
                else:
                    slots[SLOT_NEXT, previous] = following
                if following < 0:
                    last_slot = previous
                else:
                    slots[SLOT_PREV, following] = previous
                slots[SLOT_CHAIN, slot] = free_slot
                free_slot = slot
                linked -= 1
                served -= 1
                slot = chained
            if served < y:
                decoding -= y - served
                finished += y - served
                heads[place] = -1
                bits[place >> 6] &= ~(_ONE << np.uint64(place & 63))
            if served < y or y < linked + y - served:
                next_due = next_due_epoch(bits, epoch) if linked > 0 else NEVER
            if served > 0:
                top += 1
                segments[SEGMENT_COUNT, top] = served
                segments[SEGMENT_TIME, top] = end

        # -- prompts that are done
        for request in range(prefilled_from, head):
            if engine != 0:
                first_token[request] = end
                if output[request] == 1:
                    finish[request] = end
                    finished += 1
                    continue
            decoding += 1
            decode_tokens += output[request] - engine
        if options[CLIENTS] > 0:
            send_next(options, arrival, before_finished, finished, end)
        now = end

    state[NOW] = now
    state[ARRIVED] = arrived
    state[HEAD] = head
    state[VISIBLE] = visible
    state[VISIBLE_TOKENS] = visible_tokens
    state[HEAD_DONE] = head_done
    state[DECODING] = decoding
    state[FRESH] = fresh
    state[LINKED] = linked
    state[EPOCH] = epoch
    state[NEXT_DUE] = next_due
    state[FIRST_SLOT] = first_slot
    state[LAST_SLOT] = last_slot
    state[FREE_SLOT] = free_slot
    state[FLIGHT_START] = flight_start
    state[FLIGHT_TICKS] = flight_ticks
    state[FLIGHT_TOKENS] = flight_tokens
    state[FLIGHT_END] = flight_end
    state[BEFORE_STARTED] = before_started
    state[BEFORE_COMPLETED] = before_completed
    state[BEFORE_FINISHED] = before_finished
    state[STARTED] = started
    state[COMPLETED] = completed
    state[FINISHED] = finished
    state[BATCHES] = batches
    state[BUSY] = busy
    state[SEEN] = seen
    state[SEEN_TOKENS] = seen_tokens
    state[DROPPED] = dropped
    state[SERIES_ROWS] = series_rows
    state[SERIES_STEP] = series_step
    state[SEGMENTS] = top + 1
    state[MIXES_USED] = mixes_used
    state[BATCH_ROWS] = batch_used
    state[ALLOCATION_ROWS] = allocation_used
    state[WAITING_TOKENS] = waiting_tokens
    state[DECODE_TOKENS] = decode_tokens
    state[ARRIVED_TOKENS] = arrived_tokens
    state[FINISHED_DECODES] = finished_decodes
    state[CONTEXT_BASE] = context_base
    state[FLIGHT_COST] = flight_cost
    state[FLIGHT_RISE] = flight_rise
    state[FLIGHT_BATCHES] = flight_batches
    return status


_I64 = types.int64[::1]


def _signature(terms: Any) -> Any:
    return types.int64(
        POLICY,
        types.Array(types.float64, 1, "C", readonly=True),
        _I64,
        _I64,
        terms,
        _I64,
        types.int32[::1],
        types.int32[::1],
        _I64,
        _I64,
        _I64,
        types.int64[:, ::1],
        _I64,
        types.uint64[::1],
        types.int64[:, ::1],
        types.int64[:, ::1],
        _I64,
        _I64,
        _I64,
        types.int64[:, ::1],
        types.int64[:, ::1],
        types.int64[:, ::1],
    )


@functools.cache
def compiled_advance(composed: bool) -> Callable[..., int]:
    """Return `advance` compiled with terms or without: seconds the first time, from the disk cache
    after.
    """
    compiled: Callable[..., int] = njit(_signature(TERMS if composed else types.none), cache=True)(
        advance
    )
    return compiled
