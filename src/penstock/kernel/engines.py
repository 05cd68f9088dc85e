"""One server whose requests hold memory or come by priority, or that forms batches as a real engine
does.

The loop of `server` serves prompts in order of arrival, for ever. Here requests may be preempted
and wait again, so those that wait and those that run are kept as `running` says, `rules` forms the
batches, and this loop does what they have in common: arrivals, time, tokens out, finishes, rows and
the series. Equal batches are one step here too.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, types

from penstock.kernel import rules, seam
from penstock.kernel.blocks import Cache, blocks_of, give_back, take
from penstock.kernel.composition import (
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
from penstock.kernel.legacy_server import (
    ALLOCATION_ROWS,
    ARRIVED,
    ARRIVED_TOKENS,
    BAD_POLICY,
    BATCH_ROWS,
    BATCH_SIZE,
    BATCHES,
    BEFORE_COMPLETED,
    BEFORE_FINISHED,
    BEFORE_STARTED,
    BUSY,
    CLIENTS,
    COMPLETED,
    COMPRESS,
    CONTEXT_BASE,
    DECODE_TOKENS,
    DONE,
    DROPPED,
    ENGINE,
    EPOCH,
    FINAL,
    FINISHED,
    FINISHED_DECODES,
    FLIGHT_BATCHES,
    FLIGHT_COST,
    FLIGHT_END,
    FLIGHT_RISE,
    FLIGHT_START,
    FLIGHT_TICKS,
    FLIGHT_TOKENS,
    FULL,
    GAP_BITS,
    HEAD,
    IDLE_POLICY,
    LAST_SLOT,
    MIX_TICKS,
    MIXES_USED,
    MORE,
    NEVER,
    NOW,
    PAUSED,
    RECORD,
    RECORD_ALLOCATIONS,
    RECORD_BATCHES,
    RUNNING_SCOPE,
    SEEN,
    SEEN_TOKENS,
    SEES,
    SERIES_INSTANTS,
    SERIES_ROWS,
    SERIES_STEP,
    SLOT_CHAIN,
    SLOT_DUE,
    SLOT_NEXT,
    SLOT_PREV,
    SLOT_REQUEST,
    STALLS_USED,
    STARTED,
    STEPS,
    TALLY_FULL,
    TALLY_GAPS,
    TOKEN_BUDGET,
    UNTIL,
    WAITING_TOKENS,
    chain,
    count_run,
    count_stall,
    next_due_epoch,
    send_next,
    unchain,
)
from penstock.kernel.running import (
    BLOCK_SIZE,
    BY_PRIORITY,
    CELL_COLUMNS,
    DECODING,
    FIRST_SLOT,
    FREE,
    GROWS,
    HEAP_SIZE,
    IN_STEP,
    IS_FULL,
    LAST_STEP,
    MOVED,
    NONE_YET,
    OWN,
    PLENTY,
    PREEMPTED,
    PREFILLING,
    QUEUED,
    RATIO_STEPS,
    RESUME_DONE,
    RESUME_ROW,
    RING_SIZE,
    RULE,
    RUNNING,
    SEAM,
    SERVED,
    SERVED_DECODES,
    SGLANG,
    SLOT_HELD,
    SLOT_LAST,
    SLOT_LEFT,
    SLOT_OUTPUTS,
    SLOT_TAKE,
    SLOT_TARGET,
    SLOT_TOTAL,
    SWAP_TICKS,
    VIDUR_FASTERTRANSFORMER,
    VIDUR_SARATHI,
    VIDUR_VLLM,
    VLLM,
    VLLM_V0,
    Ints,
    Tokens,
    Words,
    begin_decode,
    count_growth,
    done_by,
    end_decode,
    first_waiting,
    growth_at,
    heap_push,
    held_by,
    release,
    target_of,
    waiting,
)
from penstock.kernel.signatures import (
    POLICY,
    PREFILL_FIRST,
    SEES_BATCH,
    SEES_DECODES,
    Limits,
    Queue,
)

NOT_BY_LOAD = -1
"""In place of the ticks that every batch of a token load takes, where each takes its own."""

STUCK = 6
"""Returned by `advance`: nothing runs, and the first that waits can never be admitted."""


@njit(cache=True)
def _note_series(
    state: Ints,
    arrival: Ints,
    prompt: Tokens,
    output: Tokens,
    engine: int,
    terms: Terms | None,
    series: Ints,
) -> None:
    """Write the exact values at the instants of the series up to now."""
    tick = state[SERIES_ROWS] * state[SERIES_STEP]
    while tick <= state[NOW]:
        seen = state[SEEN]
        while seen < state[ARRIVED] and arrival[seen] <= tick:
            state[SEEN_TOKENS] += prompt[seen] + output[seen] - engine
            seen += 1
        state[SEEN] = seen
        row = state[SERIES_ROWS]
        if row == SERIES_INSTANTS:  # full: keep every other instant
            for row in range(1, SERIES_INSTANTS // 2):
                for column in range(4):
                    series[row, column] = series[2 * row, column]
            state[SERIES_ROWS] = SERIES_INSTANTS // 2
            state[SERIES_STEP] *= 2
        else:
            begun, ended, gone = state[STARTED], state[COMPLETED], state[FINISHED]
            if tick < state[FLIGHT_END]:
                passed = tick - state[FLIGHT_START]
                if terms is None:
                    whole = passed // state[FLIGHT_TICKS]
                    part = passed - whole * state[FLIGHT_TICKS]
                else:
                    cost, rise = state[FLIGHT_COST], state[FLIGHT_RISE]
                    # The last one goes on.
                    whole = batches_done(cost, rise, passed, state[FLIGHT_BATCHES] - 1)
                    part = passed - ticks_of_run(cost, rise, whole)
                begun = state[BEFORE_STARTED] + state[FLIGHT_TOKENS] * (
                    whole + (1 if part > 0 else 0)
                )
                ended = state[BEFORE_COMPLETED] + state[FLIGHT_TOKENS] * whole
                gone = state[BEFORE_FINISHED]
            series[row, 0] = tick
            series[row, 1] = state[DROPPED] + seen - gone
            series[row, 2] = state[SEEN_TOKENS] - begun
            series[row, 3] = state[SEEN_TOKENS] - ended
            state[SERIES_ROWS] = row + 1
        tick = state[SERIES_ROWS] * state[SERIES_STEP]


@njit(cache=True)
def _put_off(
    state: Ints, options: Ints, slots: Ints, heads: Ints, bits: Words, growth: Ints, marked: bool
) -> Any:
    """Put off the due epochs of decoding requests that this batch leaves out: all but the first, or
    those unmarked.

    Return the tokens before the decodes that it serves.
    """
    served = context = 0
    slot = state[FIRST_SLOT]
    while slot >= 0:
        if slots[SLOT_LEFT, slot] == 0:
            taken = slots[SLOT_TAKE, slot] > 0 if marked else served < state[SERVED_DECODES]
            if taken:
                served += 1
                context += done_by(state, slots, slot)
                slots[SLOT_TAKE, slot] = 1
            else:
                count_growth(options, slots, growth, slot, -1)
                unchain(slots, heads, bits, slot)
                slots[SLOT_DUE, slot] += 1
                state[CONTEXT_BASE] -= 1
                chain(slots, heads, bits, slot)
                count_growth(options, slots, growth, slot, 1)
                if slots[SLOT_LAST, slot] == IN_STEP:
                    slots[SLOT_LAST, slot] = state[LAST_STEP]
                    state[OWN] += 1
        slot = slots[SLOT_NEXT, slot]
    return context


@njit(cache=True)
def _grow_first(state: Ints, options: Ints, slots: Ints, cache: Cache | None) -> None:
    """Take the blocks that the first decoding requests of the list need."""
    served = blocks = 0
    slot = state[FIRST_SLOT]
    while served < state[SERVED_DECODES]:
        if slots[SLOT_LEFT, slot] == 0:
            served += 1
            if options[GROWS] != 0 and done_by(state, slots, slot) % options[BLOCK_SIZE] == 0:
                blocks += 1
        slot = slots[SLOT_NEXT, slot]
    take(state, cache, blocks)


@njit(cache=True)
def _give_back_of_finished(
    state: Ints, options: Ints, slots: Ints, resume: Ints, cache: Cache, epoch: int
) -> None:
    """Give back the blocks of requests that finish when this batch ends, at that epoch, in the
    order of the list.
    """
    slot = state[FIRST_SLOT]
    while slot >= 0:
        done = -1
        if slots[SLOT_LEFT, slot] == 0:
            if slots[SLOT_DUE, slot] == epoch:
                done = slots[SLOT_TOTAL, slot]
        elif (
            slots[SLOT_LEFT, slot] == slots[SLOT_TAKE, slot]
            and slots[SLOT_OUTPUTS, slot] == options[ENGINE]
        ):
            done = slots[SLOT_TARGET, slot]
        if done >= 0:
            request, size = slots[SLOT_REQUEST, slot], options[BLOCK_SIZE]
            row, listed = resume[request, RESUME_ROW], slots[SLOT_HELD, slot]
            held, full = blocks_of(done, size), done // size
            give_back(state, cache, state[DROPPED] + request, row, slot, listed, held, full)
        slot = slots[SLOT_NEXT, slot]


@njit(cache=True)
def _own_gaps(
    state: Ints, slots: Ints, tallies: Ints, stalls: Multiset, first_token: Ints, everyone: bool,
    first_end: int,
    plain: int, load: int, gap_bits: int,
) -> Any:  # fmt: skip
    """Count the times between tokens of requests that know when they had their last; return how
    many are served.
    """
    found = 0
    owners = state[OWN]
    slot = state[LAST_SLOT]
    while owners > 0:
        if slots[SLOT_LEFT, slot] == 0 and slots[SLOT_LAST, slot] != IN_STEP:
            owners -= 1
            if everyone or slots[SLOT_TAKE, slot] > 0:
                last = slots[SLOT_LAST, slot]
                request = slots[SLOT_REQUEST, slot]
                if last == NONE_YET:
                    first_token[request] = first_end
                elif first_end - last == plain:
                    tallies[TALLY_GAPS, load] += 1
                else:
                    count_stall(state, stalls, first_end - last, 1, gap_bits)
                slots[SLOT_LAST, slot] = IN_STEP
                state[OWN] -= 1
                found += 1
        slot = slots[SLOT_PREV, slot]
    return found


@njit(cache=True)
def _unmark_decodes(state: Ints, slots: Ints) -> None:
    slot = state[FIRST_SLOT]
    while slot >= 0:
        if slots[SLOT_LEFT, slot] == 0:
            slots[SLOT_TAKE, slot] = 0
        slot = slots[SLOT_NEXT, slot]


@njit(cache=True)
def _head_tokens(
    state: Ints, options: Ints, slots: Ints, ring: Ints, resume: Ints, prompt: Tokens
) -> Any:
    """Return the unprocessed prompt tokens of the first request in prefill."""
    if state[PREFILLING] > 0:
        slot = state[FIRST_SLOT]
        while slots[SLOT_LEFT, slot] == 0:
            slot = slots[SLOT_NEXT, slot]
        return slots[SLOT_LEFT, slot]
    request = first_waiting(state, options, ring)
    return target_of(resume, prompt, request) - resume[request, RESUME_DONE] if request >= 0 else 0


@njit(cache=True, forceinline=True)
def _attention(state: Ints, slots: Ints, served: Ints) -> Any:
    """Return the sums of n^2 and of n l over the prompts of a batch: n tokens in it, l processed
    before.
    """
    squares = pairs = 0
    for place in range(state[SERVED]):
        slot = served[place]
        squares += slots[SLOT_TAKE, slot] ** 2
        pairs += slots[SLOT_TAKE, slot] * done_by(state, slots, slot)
    return squares, pairs


@njit(cache=True, forceinline=True)
def _grown(state: Ints, options: Ints, growth: Ints, repeat: int) -> Any:
    """Return the blocks that all decoding requests take in the batches after the first of so
    many.
    """
    if options[GROWS] == 0:
        return 0
    size = options[BLOCK_SIZE]
    cycles = (repeat - 1) // size
    blocks = cycles * state[DECODING]
    place = state[EPOCH] % size
    for _ in range(1 + cycles * size, repeat):
        place += 1
        if place == size:
            place = 0
        blocks += growth[place]
    return blocks


@njit(cache=True, forceinline=True)
def _repeats(state: Ints, options: Ints, growth: Ints, bits: Words, most: int, spare: int) -> Any:
    """Return how many equal decode batches memory has room for and no request finishes in, this one
    included.
    """
    most = min(most, next_due_epoch(bits, state[EPOCH]) - state[EPOCH])
    if options[GROWS] == 0:
        return most
    size = options[BLOCK_SIZE]
    free = state[FREE] - spare
    cycles = (most - 1) // size  # in each, every request takes one block
    if (cycles + 1) * state[DECODING] <= free:
        return most
    repeat = 1
    cycles = min(cycles, free // state[DECODING] - 1)
    if cycles > 0:
        repeat += cycles * size
        free -= cycles * state[DECODING]
    place = state[EPOCH] % size
    while repeat < most:
        place += 1
        if place == size:
            place = 0
        free -= growth[place]
        if free < 0:
            break
        repeat += 1
    return repeat


def advance(
    policy: Callable[[Queue, Limits, npt.NDArray[np.float64]], tuple[int, int, int]],
    params: npt.NDArray[np.float64],
    options: Ints,
    duration: Ints,
    terms: Terms | None,
    arrival: Ints,
    prompt: Tokens,
    output: Tokens,
    first_token: Ints,
    finish: Ints,
    resume: Ints,
    state: Ints,
    slots: Ints,
    heads: Ints,
    bits: Words,
    growth: Ints,
    served: Ints,
    ring: Ints,
    ratio: npt.NDArray[np.float64],
    cache: Cache | None,
    tallies: Ints,
    cells: Ints,
    stalls: Multiset,
    mixes: Multiset,
    series: Ints,
    batch_rows: Ints,
    allocation_rows: Ints,
) -> int:
    """Run the server until it needs something; return why it stopped.

    Parameters are those of `penstock.kernel.server.advance`, and

    Parameters
    ----------
    terms
        What batches cost, where more than their token load decides.
    resume
        Shape (requests known, 8): what a preempted request has to do again, and its priority.
    growth
        Shape (block size,): decoding requests by the epochs, modulo the block size, at which they
        need a block.
    served
        Shape (slots,), scratch.
    ring
        Shape (3, a power of two): preempted requests and what they stand before, or the heap;
        scratch.
    ratio
        Shape (1,): SGLang's ratio when it was set last.
    cache
        Which blocks there are, where prefixes are reused.
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
    rule = options[RULE]
    by_priority = options[BY_PRIORITY] != 0
    limits = Limits(budget, batch_size)
    grows_slots = not running_scope or batch_size > slots.shape[1]
    known = arrival.size
    most_slots = slots.shape[1]
    most_cells = cells.size if terms is None else cells.size // 2
    cell_columns = options[CELL_COLUMNS]
    spare = 1 if rule in (VLLM_V0, VIDUR_VLLM, VIDUR_SARATHI) else 0
    status = PAUSED

    while True:
        # -- arrivals up to now, and the series
        now = state[NOW]
        arrived = state[ARRIVED]
        while arrived < known and arrival[arrived] <= now:
            state[WAITING_TOKENS] += prompt[arrived]
            state[ARRIVED_TOKENS] += prompt[arrived]
            arrived += 1
        state[ARRIVED] = arrived
        if arrived == known and not final:
            status = MORE
            break
        if state[SERIES_ROWS] * state[SERIES_STEP] <= now:
            _note_series(state, arrival, prompt, output, engine, terms, series)

        # -- is there something to do, and room to note it?
        if now >= until:
            status = DONE
            break
        if steps == 0:
            status = PAUSED
            break
        if (
            4 * (state[STALLS_USED] + most_slots) > stalls.size
            or 4 * state[MIXES_USED] + 8 > mixes.size
            or (record >= RECORD_BATCHES and state[BATCH_ROWS] == batch_rows.shape[0])
            or (
                record >= RECORD_ALLOCATIONS
                and state[ALLOCATION_ROWS] + 2 * most_slots > allocation_rows.shape[0]
            )
            or (grows_slots and state[RUNNING] + min(batch_size, budget) > most_slots)
            or state[RING_SIZE] + most_slots > ring.shape[1]
            or (
                by_priority
                and state[HEAP_SIZE] + arrived - state[QUEUED] + most_slots > ring.shape[1]
            )
        ):
            status = FULL
            break
        steps -= 1
        if by_priority:
            while state[QUEUED] < arrived:
                heap_push(state, ring[0], resume, state[QUEUED])
                state[QUEUED] += 1
            state[HEAD] = arrived
        if state[RUNNING] == 0 and waiting(state) == 0:
            state[FLIGHT_END] = now
            state[IS_FULL] = 0
            state[RATIO_STEPS] = 0
            if rule == SGLANG:
                ratio[0] = params[0]
            if arrived < known and arrival[arrived] <= until:
                state[NOW] = arrival[arrived]
                continue
            if until < NEVER:
                state[NOW] = until
                continue
            status = DONE
            break

        # -- who is in the batch
        state[SERVED] = 0
        state[SERVED_DECODES] = 0
        state[PREEMPTED] = 0
        marked = False
        arrival_seen = True
        steady = True  # what the policy sees stays as it is while nobody comes or goes
        if rule == SEAM:
            prompts, tokens, arrival_seen = seam.see(
                state,
                options,
                slots,
                heads,
                bits,
                growth,
                served,
                resume,
                ring,
                prompt,
                output,
                cache,
            )
            decoding = state[DECODING]
            if prompts == 0 and decoding == 0:
                if state[PREEMPTED] > 0:  # all made room: begin anew with them
                    continue
                status = STUCK
                break
            steady = prompts == 0 or options[GROWS] == 0 or state[FREE] > PLENTY // 2
            queue = Queue(
                prompts,
                tokens,
                decoding,
                waiting(state) + state[PREFILLING],
                state[WAITING_TOKENS],
                _head_tokens(state, options, slots, ring, resume, prompt),
                state[DECODE_TOKENS],
                state[DROPPED] + arrived,
                state[ARRIVED_TOKENS],
                state[FINISHED],
                state[FINISHED_DECODES],
            )
            x, y, order = policy(queue, limits, params)
            if x < 0 or y < 0:
                status = BAD_POLICY
                break
            y = min(y, decoding, batch_size, budget)
            room = budget
            requests = batch_size
            if order != PREFILL_FIRST:
                room -= y
                if not running_scope:
                    requests -= y
            wanted = min(x, tokens, room)
            if (wanted == 0 or requests == 0 or prompts == 0) and y == 0:
                status = IDLE_POLICY
                break
            requests = min(requests, prompts)
            x = seam.fill(
                state,
                options,
                slots,
                growth,
                served,
                resume,
                ring,
                prompt,
                output,
                wanted,
                requests,
                cache,
            )
            if order == PREFILL_FIRST:
                y = min(y, budget - x)
                if not running_scope:
                    y = min(y, batch_size - state[SERVED])
            state[SERVED_DECODES] = y
            if y == decoding:
                take(state, cache, growth_at(options, growth, state[EPOCH]))
            elif y > 0:
                _grow_first(state, options, slots, cache)
        else:
            if rule == VLLM:
                marked = rules.vllm(
                    state,
                    options,
                    slots,
                    heads,
                    bits,
                    growth,
                    served,
                    resume,
                    ring,
                    prompt,
                    output,
                    cache,
                )
            elif rule in (VLLM_V0, VIDUR_VLLM):
                rules.prompts_or_decodes(
                    state, options, slots, heads, bits, growth, served, resume, ring, prompt, output
                )
            elif rule == SGLANG:
                marked = rules.sglang(
                    state,
                    options,
                    slots,
                    heads,
                    bits,
                    growth,
                    served,
                    resume,
                    ring,
                    prompt,
                    output,
                    params,
                    ratio,
                )
            elif rule == VIDUR_FASTERTRANSFORMER:
                rules.static_batch(
                    state, options, slots, heads, bits, growth, served, resume, ring, prompt, output
                )
            else:
                rules.decodes_then_prompts(
                    state, options, slots, heads, bits, growth, served, resume, ring, prompt, output
                )
            arrival_seen = waiting(state) == 0 or by_priority
            x = 0
            for place in range(state[SERVED]):
                x += slots[SLOT_TAKE, served[place]]
        y = state[SERVED_DECODES]
        load = x + y
        if load == 0:
            if state[PREEMPTED] > 0:  # all made room: begin anew with them
                continue
            status = STUCK
            break

        # -- how long it takes
        cost = rise = 0
        everyone = y == state[DECODING]
        context = 0  # tokens before the decodes
        if everyone:
            context = state[CONTEXT_BASE] + y * state[EPOCH]
        elif y > 0:
            context = _put_off(state, options, slots, heads, bits, growth, marked)
        if terms is None:
            plain = ticks = duration[load]
        else:
            squares, pairs = _attention(state, slots, served)
            cost = cost_of(terms, x, y, state[SERVED] + y, squares, pairs, context)
            rise = rise_of(terms, y)
            plain, ticks = NOT_BY_LOAD, ticks_of(cost)
        moved = state[MOVED] > 0
        if moved:
            ticks += state[MOVED] * options[SWAP_TICKS]
            state[MOVED] = 0

        # -- how many equal batches follow each other
        repeat = 1
        equal = x == 0 and everyone and steady and compress and state[PREEMPTED] == 0 and not moved
        if (
            cache is not None and waiting(state) > 0
        ):  # a block that a decode takes may have been one's prefix
            equal = False
        if equal and record < RECORD_ALLOCATIONS and (rule != SEAM or sees != SEES_DECODES):
            most = NEVER
            arrival_ends = arrived < known and (
                arrival_seen or by_priority or (rule == SEAM and sees != SEES_BATCH)
            )
            if arrival_ends:
                most = (arrival[arrived] - now + ticks - 1) // ticks
            if until < NEVER:
                most = min(most, max((until - now) // ticks, 1))
            if record >= RECORD_BATCHES:
                most = min(most, batch_rows.shape[0] - state[BATCH_ROWS])
            if most > 1:
                repeat = _repeats(state, options, growth, bits, most, spare)
            if terms is not None and repeat > 1:  # later ones take longer
                if arrival_ends:
                    repeat = batches_begun(cost, rise, arrival[arrived] - now, repeat)
                if until < NEVER:
                    repeat = max(batches_done(cost, rise, until - now, repeat), 1)
        end = now + ticks * repeat
        if terms is not None and repeat > 1:
            end = now + ticks_of_run(cost, rise, repeat)
        if record >= RECORD_BATCHES:
            start = now
            for i in range(repeat):
                row = state[BATCH_ROWS]
                batch_rows[row, 0] = start
                batch_rows[row, 1] = ticks if terms is None or i == 0 else ticks_of(cost + i * rise)
                batch_rows[row, 2] = x
                batch_rows[row, 3] = y
                batch_rows[row, 4] = state[SERVED] + y
                start += batch_rows[row, 1]
                state[BATCH_ROWS] += 1
        if record >= RECORD_ALLOCATIONS:
            row = state[ALLOCATION_ROWS]
            for place in range(state[SERVED]):
                allocation_rows[row, 0] = state[BATCHES]
                allocation_rows[row, 1] = state[DROPPED] + slots[SLOT_REQUEST, served[place]]
                allocation_rows[row, 2] = slots[SLOT_TAKE, served[place]]
                allocation_rows[row, 3] = 0
                row += 1
            slot = state[FIRST_SLOT] if y > 0 else -1
            while slot >= 0:
                if slots[SLOT_LEFT, slot] == 0 and (everyone or slots[SLOT_TAKE, slot] > 0):
                    allocation_rows[row, 0] = state[BATCHES]
                    allocation_rows[row, 1] = state[DROPPED] + slots[SLOT_REQUEST, slot]
                    allocation_rows[row, 2] = 0
                    allocation_rows[row, 3] = 1
                    row += 1
                slot = slots[SLOT_NEXT, slot]
            state[ALLOCATION_ROWS] = row
        state[FLIGHT_START] = now
        state[FLIGHT_TICKS] = ticks
        if terms is not None:
            state[FLIGHT_COST], state[FLIGHT_RISE], state[FLIGHT_BATCHES] = cost, rise, repeat
        state[FLIGHT_TOKENS] = load
        state[FLIGHT_END] = end
        state[BEFORE_STARTED] = state[STARTED]
        state[BEFORE_COMPLETED] = state[COMPLETED]
        state[BEFORE_FINISHED] = state[FINISHED]
        state[STARTED] += load * repeat
        state[BATCHES] += repeat
        if end > until:  # in flight when the run stops
            state[BUSY] += until - now
            state[NOW] = until
            continue
        state[BUSY] += end - now
        state[COMPLETED] += load * repeat
        cell = x * cell_columns + y
        if y < cell_columns and cell < most_cells:
            cells[cell] += repeat
            if terms is not None:
                cells[most_cells + cell] += end - now
        elif terms is not None:
            state[MIXES_USED] += add(mixes, (x << 32) | y, repeat)
            state[MIXES_USED] += add(mixes, MIX_TICKS | (x << 32) | y, end - now)
        elif load == budget:
            tallies[TALLY_FULL, y] += repeat
        else:
            state[MIXES_USED] += add(mixes, (x << 32) | y, repeat)

        # -- blocks: those taken after the first of equal batches, and those of who finishes, where
        # they are told apart
        if repeat > 1:
            take(state, cache, _grown(state, options, growth, repeat))
        if cache is not None:
            epoch = state[EPOCH] + (repeat if y > 0 else 0)
            if x > 0 or heads[epoch & (heads.size - 1)] >= 0:
                _give_back_of_finished(state, options, slots, resume, cache, epoch)

        # -- decode: times between tokens, due epochs, finishes
        alone = state[DECODING] == 0
        if y > 0:
            first_end = now + ticks
            in_step = y
            if state[OWN] > 0:
                in_step -= _own_gaps(
                    state,
                    slots,
                    tallies,
                    stalls,
                    first_token,
                    everyone,
                    first_end,
                    plain,
                    load,
                    gap_bits,
                )
            if in_step > 0:
                gap = first_end - state[LAST_STEP]
                if gap == plain:
                    tallies[TALLY_GAPS, load] += in_step
                else:
                    count_stall(state, stalls, gap, in_step, gap_bits)
            if terms is None:
                tallies[TALLY_GAPS, load] += y * (repeat - 1)
            elif repeat > 1:
                count_run(state, stalls, cost, rise, 1, repeat, y, gap_bits)
            state[LAST_STEP] = end
            state[DECODE_TOKENS] -= y * repeat
            state[EPOCH] += repeat
            state[RATIO_STEPS] += repeat - 1
            if marked or not everyone:
                _unmark_decodes(state, slots)
            place = state[EPOCH] & (heads.size - 1)
            slot = heads[place]
            while slot >= 0:
                chained = slots[SLOT_CHAIN, slot]
                request = slots[SLOT_REQUEST, slot]
                finish[request] = end
                if cache is None:
                    state[FREE] += held_by(state, options, slots, slot)
                end_decode(state, options, slots, heads, bits, growth, slot)
                release(state, slots, slot)
                state[FINISHED] += 1
                state[FINISHED_DECODES] += output[request] - engine
                state[IS_FULL] = 0
                slot = chained

        # -- prompts that are done
        for place in range(state[SERVED]):
            slot = served[place]
            slots[SLOT_LEFT, slot] -= slots[SLOT_TAKE, slot]
            slots[SLOT_TAKE, slot] = 0
            if slots[SLOT_LEFT, slot] > 0:
                continue
            state[PREFILLING] -= 1
            request = slots[SLOT_REQUEST, slot]
            if engine != 0:
                if first_token[request] < 0:
                    first_token[request] = end
                else:
                    gap = end - slots[SLOT_LAST, slot]
                    if gap == plain:
                        tallies[TALLY_GAPS, load] += 1
                    else:
                        count_stall(state, stalls, gap, 1, gap_bits)
                if slots[SLOT_OUTPUTS, slot] == 1:
                    finish[request] = end
                    if cache is None:
                        state[FREE] += slots[SLOT_HELD, slot]
                    release(state, slots, slot)
                    state[FINISHED] += 1
                    state[FINISHED_DECODES] += output[request] - 1
                    state[IS_FULL] = 0
                    continue
                if y > 0 or alone:
                    slots[SLOT_LAST, slot] = IN_STEP
                    state[LAST_STEP] = end
                else:
                    slots[SLOT_LAST, slot] = end
                    state[OWN] += 1
            else:
                state[OWN] += 1
            begin_decode(
                state, options, slots, heads, bits, growth, slot, slots[SLOT_OUTPUTS, slot] - engine
            )
        if options[CLIENTS] > 0:
            send_next(options, arrival, state[BEFORE_FINISHED], state[FINISHED], end)
        state[NOW] = end

    return status


_I64 = types.int64[::1]
_I64_2 = types.int64[:, ::1]
_CACHE = types.NamedTuple((_I64_2, _I64_2, types.int32[:, ::1], _I64, _I64, _I64), Cache)  # type: ignore[no-untyped-call]


def _signature(cache: Any, terms: Any) -> Any:
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
        _I64_2,
        _I64,
        _I64_2,
        _I64,
        types.uint64[::1],
        _I64,
        _I64,
        _I64_2,
        types.float64[::1],
        cache,
        _I64_2,
        _I64,
        _I64,
        _I64,
        _I64_2,
        _I64_2,
        _I64_2,
    )


@functools.cache
def compiled_advance(caching: bool, composed: bool) -> Callable[..., int]:
    """Return `advance` compiled with a cache or without, and with terms or without.

    Seconds the first time, from the disk cache after.
    """
    signature = _signature(_CACHE if caching else types.none, TERMS if composed else types.none)
    compiled: Callable[..., int] = njit(signature, cache=True)(advance)
    return compiled
