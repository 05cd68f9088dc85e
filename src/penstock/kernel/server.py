"""One server, iteration by iteration, in integer ticks: the loop that everything else waits for.

How it is fast, and still exact:

* Prompts are served in order of arrival, so the prefill queue is two indices into the workload.
* A request decodes once in every batch that serves decodes at all, unless the batch is too small for all.
  So the requests served in the last decode batch (the *active* ones) need no counter of their own: an
  *epoch* counts decode batches, and a request with r iterations left is due at epoch + r. A ring of buckets
  indexed by due epoch, with a bitmap over it, gives the next one to finish in O(1).
* A batch that serves fewer decodes than the last one *pauses* the youngest active requests, and one that
  serves more resumes them before it takes fresh ones: active and paused requests form one list in order of
  arrival, cut at a boundary that moves. Requests that never decoded are a third index into the workload, so
  a backlog of a million costs nothing per batch.
* When a batch has no prefill, the next one is the same until a request finishes or an arrival can change what
  the policy sees: those iterations are one step (*compression*).

All state lives in arrays that the caller owns, so a run can stop anywhere and go on: for more arrivals,
for room, for a progress bar.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, types

from penstock.kernel.counting import add
from penstock.kernel.signatures import POLICY, PREFILL_FIRST, Limits, Queue

# What `advance` returns.
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
TOKEN_BUDGET, BATCH_SIZE, RUNNING_SCOPE, ENGINE, COMPRESS, RECORD, GAP_BITS, FINAL, UNTIL, STEPS = range(10)
N_OPTIONS = 10

# State, an int64 array. Requests are named by their place in the workload arrays handed in.
(
    NOW,  # tick: the last batch ended, or an arrival ended an idle time
    ARRIVED,  # requests that have arrived by NOW
    HEAD,  # first request whose prompt is not yet wholly scheduled
    VISIBLE,  # end of the prompts the policy may see
    VISIBLE_TOKENS,  # their unprocessed tokens
    HEAD_DONE,  # tokens of the HEAD prompt already scheduled
    DECODING,  # requests in decode: active, paused, fresh
    FRESH,  # first request that may be in decode without having decoded
    ACTIVE,  # requests served in the last decode batch
    EPOCH,  # decode batches so far
    EPOCH_END,  # tick at which the last of them ended
    NEXT_DUE,  # epoch at which the next active request finishes
    FIRST_SLOT,  # list of active then paused requests, oldest first
    LAST_ACTIVE,  # the boundary in it
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
    GAPS_USED,
    MIXES_USED,
    GAP_SUM,  # ticks, below 2**61
    GAP_SUM_CARRY,  # units of 2**61 ticks
    GAPS,
    BATCH_ROWS,
    ALLOCATION_ROWS,
) = range(40)
N_STATE = 40

# Slots, one column per active or paused request.
SLOT_REQUEST, SLOT_DUE, SLOT_LAST, SLOT_PREV, SLOT_NEXT, SLOT_CHAIN = range(6)
N_SLOT_ROWS = 6

CARRY = 2**61
SERIES_INSTANTS = 2000

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_ONE = np.uint64(1)
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_BIT_INDEX = np.zeros(64, np.int64)
for _bit in range(64):
    _BIT_INDEX[(((1 << _bit) * 0x03F79D71B4CB0A89) % 2**64) >> 58] = _bit


@njit(types.int64(types.uint64), cache=True)
def _lowest_bit(word: int) -> Any:
    """Index of the lowest bit that is set in a non-zero word."""
    lone = word & (~word + _ONE)
    return _BIT_INDEX[(lone * _DE_BRUIJN) >> np.uint64(58)]


@njit(types.int64(types.uint64[::1], types.int64), cache=True)
def _next_due(bits: Words, epoch: int) -> Any:
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


@njit(types.void(types.int64[:, ::1], types.int64[::1], types.uint64[::1], types.int64), cache=True)
def chain(slots: Ints, heads: Ints, bits: Words, slot: int) -> None:
    """Put a slot into the bucket of its due epoch."""
    place = slots[SLOT_DUE, slot] & (heads.size - 1)
    slots[SLOT_CHAIN, slot] = heads[place]
    heads[place] = slot
    bits[place >> 6] |= _ONE << np.uint64(place & 63)


@njit(types.boolean(types.int64[:, ::1], types.int64[::1], types.uint64[::1], types.int64), cache=True)
def _unchain(slots: Ints, heads: Ints, bits: Words, slot: int) -> Any:
    """Take a slot out of its bucket; return whether that left the bucket empty."""
    place = slots[SLOT_DUE, slot] & (heads.size - 1)
    if heads[place] == slot:
        heads[place] = slots[SLOT_CHAIN, slot]
        if heads[place] < 0:
            bits[place >> 6] &= ~(_ONE << np.uint64(place & 63))
            return True
        return False
    other = heads[place]
    while slots[SLOT_CHAIN, other] != slot:
        other = slots[SLOT_CHAIN, other]
    slots[SLOT_CHAIN, other] = slots[SLOT_CHAIN, slot]
    return False


@njit(types.int64(types.int64, types.int64), cache=True)
def _rounded(gap: int, bits: int) -> Any:
    """Keep the leading ``bits`` binary digits of a gap, and the middle of what they stand for."""
    shift = 0
    while (gap >> shift) >= (1 << bits):
        shift += 1
    if shift == 0:
        return gap
    return ((gap >> shift) << shift) + (1 << (shift - 1))


def advance(
    policy: Callable[[Queue, Limits, npt.NDArray[np.float64]], tuple[int, int, int]],
    params: npt.NDArray[np.float64],
    options: Ints,
    duration: Ints,
    arrival: Ints,
    prompt: npt.NDArray[np.int32],
    output: npt.NDArray[np.int32],
    first_token: Ints,
    finish: Ints,
    state: Ints,
    slots: Ints,
    heads: Ints,
    bits: Words,
    gap_keys: Ints,
    gap_counts: Ints,
    mix_keys: Ints,
    mix_counts: Ints,
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
    arrival, prompt, output
        Shape (requests known,), ticks and tokens, in order of arrival.
    first_token, finish
        Shape (requests known,), ticks, written; -1 while unknown.
    state, slots, heads, bits
        What the server remembers: see the constants above.
    gap_keys, gap_counts, mix_keys, mix_counts
        Multisets of gaps between tokens (ticks) and of batch compositions (prefill << 32 | decode).
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
    limits = Limits(budget, batch_size)
    known = arrival.size

    now = state[NOW]
    arrived = state[ARRIVED]
    head = state[HEAD]
    visible = state[VISIBLE]
    visible_tokens = state[VISIBLE_TOKENS]
    head_done = state[HEAD_DONE]
    decoding = state[DECODING]
    fresh = state[FRESH]
    active = state[ACTIVE]
    epoch = state[EPOCH]
    epoch_end = state[EPOCH_END]
    next_due = state[NEXT_DUE]
    first_slot = state[FIRST_SLOT]
    last_active = state[LAST_ACTIVE]
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
    gaps_used = state[GAPS_USED]
    mixes_used = state[MIXES_USED]
    gap_sum = state[GAP_SUM]
    gap_sum_carry = state[GAP_SUM_CARRY]
    gaps = state[GAPS]
    batch_used = state[BATCH_ROWS]
    allocation_used = state[ALLOCATION_ROWS]

    # Most batches repeat the gap and the composition of the last one: count those before the multiset is touched.
    held_gap = np.int64(-1)
    held_gap_count = np.int64(0)
    held_mix = np.int64(-1)
    held_mix_count = np.int64(0)

    while True:
        # -- arrivals up to now
        while arrived < known and arrival[arrived] <= now:
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
            2 * gaps_used + 2 * budget > gap_keys.size
            or 2 * mixes_used + 2 > mix_keys.size
            or (record >= RECORD_BATCHES and batch_used == batch_rows.shape[0])
            or (record >= RECORD_ALLOCATIONS and allocation_used + budget > allocation_rows.shape[0])
        ):
            status = FULL
            break
        steps -= 1

        # -- what the policy may see: the max batch size bounds the prompts (monotone, so each is added once)
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
        x, y, first = policy(Queue(prompts, visible_tokens, decoding), limits, params)
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
            left -= take
            prefill_requests += 1
            if take == rest:
                head += 1
                head_done = 0
            else:
                head_done += take
        x = wanted - left
        visible_tokens -= x
        if first == PREFILL_FIRST:
            y = min(y, budget - x)
            if not running_scope:
                y = min(y, batch_size - prefill_requests)

        # -- decode: move the boundary so that exactly y requests are active
        newly_active = np.int64(-1)
        already_active = min(active, y)
        if y > 0:
            while active > y:
                slot = last_active
                if _unchain(slots, heads, bits, slot) and slots[SLOT_DUE, slot] == next_due:
                    next_due = _next_due(bits, epoch)
                slots[SLOT_DUE, slot] -= epoch
                slots[SLOT_LAST, slot] = epoch_end
                last_active = slots[SLOT_PREV, slot]
                active -= 1
            while active < y:
                if last_active != last_slot:  # the oldest paused request
                    slot = first_slot if last_active < 0 else slots[SLOT_NEXT, last_active]
                    slots[SLOT_DUE, slot] += epoch
                else:
                    while output[fresh] == engine:  # its only token came with the end of prefill
                        fresh += 1
                    slot = free_slot
                    free_slot = slots[SLOT_CHAIN, slot]
                    slots[SLOT_REQUEST, slot] = fresh
                    slots[SLOT_DUE, slot] = epoch + output[fresh] - engine
                    slots[SLOT_LAST, slot] = first_token[fresh]
                    slots[SLOT_PREV, slot] = last_slot
                    slots[SLOT_NEXT, slot] = -1
                    if last_slot < 0:
                        first_slot = slot
                    else:
                        slots[SLOT_NEXT, last_slot] = slot
                    last_slot = slot
                    fresh += 1
                chain(slots, heads, bits, slot)
                next_due = min(next_due, slots[SLOT_DUE, slot])
                last_active = slot
                active += 1
                if newly_active < 0:
                    newly_active = slot
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
        repeat = np.int64(1)
        if x == 0 and compress and record < RECORD_ALLOCATIONS:
            repeat = next_due - epoch
            if arrived < admissible and arrived < known:  # the next arrival would be seen
                repeat = min(repeat, (arrival[arrived] - now + ticks - 1) // ticks)
            if until < NEVER:
                repeat = min(repeat, max((until - now) // ticks, 1))
            if record >= RECORD_BATCHES:
                repeat = min(repeat, batch_rows.shape[0] - batch_used)
        if record >= RECORD_BATCHES:
            for i in range(repeat):
                batch_rows[batch_used, 0] = now + i * ticks
                batch_rows[batch_used, 1] = ticks
                batch_rows[batch_used, 2] = x
                batch_rows[batch_used, 3] = y
                batch_rows[batch_used, 4] = prefill_requests + y
                batch_used += 1

        tokens = (x + y) * repeat
        end = now + ticks * repeat
        flight_start = now
        flight_ticks = ticks
        flight_tokens = x + y
        flight_end = end
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

        mix = (x << 32) | y
        if mix != held_mix:
            if held_mix_count > 0:
                mixes_used += add(mix_keys, mix_counts, held_mix, held_mix_count)
            held_mix = mix
            held_mix_count = 0
        held_mix_count += repeat

        # -- tokens out: one gap for each request served before, first tokens for the others
        if y > 0:
            first_end = now + ticks
            slot = newly_active
            for _ in range(y - already_active):
                last = slots[SLOT_LAST, slot]
                if last < 0:
                    first_token[slots[SLOT_REQUEST, slot]] = first_end
                else:
                    gap = first_end - last
                    gaps += 1
                    gap_sum += gap
                    if gap_bits > 0:
                        gap = _rounded(gap, gap_bits)
                    if gap == held_gap:
                        held_gap_count += 1
                    else:
                        gaps_used += add(gap_keys, gap_counts, gap, 1)
                slot = slots[SLOT_NEXT, slot]
            for group in range(2):  # the first of the equal batches, then the others
                gap = first_end - epoch_end if group == 0 else ticks
                count = already_active if group == 0 else y * (repeat - 1)
                if count > 0:
                    gaps += count
                    gap_sum += gap * count
                    if gap_bits > 0:
                        gap = _rounded(gap, gap_bits)
                    if gap != held_gap:
                        if held_gap_count > 0:
                            gaps_used += add(gap_keys, gap_counts, held_gap, held_gap_count)
                        held_gap = gap
                        held_gap_count = 0
                    held_gap_count += count
            if gap_sum >= CARRY:
                gap_sum_carry += gap_sum // CARRY
                gap_sum %= CARRY
            epoch += repeat
            epoch_end = end

            # -- the requests that are due leave
            if epoch == next_due:
                place = epoch & (heads.size - 1)
                slot = heads[place]
                while slot >= 0:
                    chained = slots[SLOT_CHAIN, slot]
                    finish[slots[SLOT_REQUEST, slot]] = end
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
                    if last_active == slot:
                        last_active = previous
                    slots[SLOT_CHAIN, slot] = free_slot
                    free_slot = slot
                    active -= 1
                    decoding -= 1
                    finished += 1
                    slot = chained
                heads[place] = -1
                bits[place >> 6] &= ~(_ONE << np.uint64(place & 63))
                next_due = _next_due(bits, epoch) if active > 0 else NEVER

        # -- prompts that are done
        for request in range(prefilled_from, head):
            if engine != 0:
                first_token[request] = end
                if output[request] == 1:
                    finish[request] = end
                    finished += 1
                    continue
            decoding += 1
        now = end

    if held_gap_count > 0:
        gaps_used += add(gap_keys, gap_counts, held_gap, held_gap_count)
    if held_mix_count > 0:
        mixes_used += add(mix_keys, mix_counts, held_mix, held_mix_count)

    state[NOW] = now
    state[ARRIVED] = arrived
    state[HEAD] = head
    state[VISIBLE] = visible
    state[VISIBLE_TOKENS] = visible_tokens
    state[HEAD_DONE] = head_done
    state[DECODING] = decoding
    state[FRESH] = fresh
    state[ACTIVE] = active
    state[EPOCH] = epoch
    state[EPOCH_END] = epoch_end
    state[NEXT_DUE] = next_due
    state[FIRST_SLOT] = first_slot
    state[LAST_ACTIVE] = last_active
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
    state[GAPS_USED] = gaps_used
    state[MIXES_USED] = mixes_used
    state[GAP_SUM] = gap_sum
    state[GAP_SUM_CARRY] = gap_sum_carry
    state[GAPS] = gaps
    state[BATCH_ROWS] = batch_used
    state[ALLOCATION_ROWS] = allocation_used
    return status


_I64 = types.int64[::1]
_SIGNATURE = types.int64(
    POLICY,
    types.Array(types.float64, 1, "C", readonly=True),
    _I64,
    _I64,
    _I64,
    types.int32[::1],
    types.int32[::1],
    _I64,
    _I64,
    _I64,
    types.int64[:, ::1],
    _I64,
    types.uint64[::1],
    _I64,
    _I64,
    _I64,
    _I64,
    types.int64[:, ::1],
    types.int64[:, ::1],
    types.int64[:, ::1],
)


@functools.cache
def compiled_advance() -> Callable[..., int]:
    """Return `advance` compiled under its one signature: seconds the first time, from the disk cache after."""
    compiled: Callable[..., int] = njit(_SIGNATURE, cache=True)(advance)
    return compiled
