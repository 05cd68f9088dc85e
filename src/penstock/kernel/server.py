"""One server, iteration by iteration, in integer ticks: the loop that everything else waits for.

How it is fast, and still exact:

* Prompts are served in order of arrival, so the prefill queue is two indices into the workload.
* A request that decodes does so once per batch, and nearly every batch serves all that decode. So
  no request counts its tokens down: it lies in a calendar of due epochs, in
  `penstock.kernel.calendar`.
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

All state lives in arrays that the caller owns (`penstock.kernel.server_arrays`), so a run can stop
anywhere and go on: for more arrivals, for room, for a progress bar. The steps of the loop are
functions of their own, compiled into it.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from numba import types

from penstock.kernel.calendar import NEVER, at, chain, empty_bucket, next_due_epoch, unchain
from penstock.kernel.compiled_code import entry, uncounted
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
from penstock.kernel.counting import add
from penstock.kernel.gaps import count_run, count_stall
from penstock.kernel.server_arrays import (
    ARRAYS,
    MIX_TICKS,
    RECORD_ALLOCATIONS,
    RECORD_BATCHES,
    Arrays,
)
from penstock.kernel.signatures import (
    PREFILL_FIRST,
    SEES_BATCH,
    SEES_DECODES,
    Limits,
    Queue,
    policy_at,
)

# What `advance` returns:
DONE = 0  # everything that arrived is finished, or `until` is reached
MORE = 1  # the next arrival is not known yet
PAUSED = 2  # the step allowance is used up
FULL = 3  # a multiset or a row buffer needs room
IDLE_POLICY = 4  # the policy formed an empty batch although a non-empty one was possible
BAD_POLICY = 5  # the policy asked for a negative number of tokens


class _Choice(NamedTuple):
    """What the policy chose, cut to what there is."""

    prefill: int
    decode: int
    prompt_slots: int
    prefill_first: bool


class _Batch(NamedTuple):
    """What is in a batch; squares and pairs of prompts as in `cost_of`."""

    prefill: int
    decode: int
    prompts: int
    squares: int
    pairs: int


class _Run(NamedTuple):
    """Equal batches that follow each other: of the first its ticks and its cost, by how much that
    rises, how many they are, and the tick at which they end.
    """

    ticks: int
    cost: int
    rise: int
    batches: int
    end: int


def advance(arrays: Arrays, terms: Terms | None) -> int:
    """Run the server until it needs something; return why it stopped.

    Parameters
    ----------
    arrays
        What it works on.
    terms
        What batches cost, where that depends on more than their tokens.
    """
    options, state = arrays.options[0], arrays.state[0]
    while True:
        _arrive(arrays)
        if state.arrived == arrays.arrival.size and options.final == 0:
            return MORE
        if state.series_rows * state.series_step <= state.now:
            _note_instants(arrays, terms)
        if state.now >= options.until:
            return DONE
        if options.steps == 0:
            return PAUSED
        if _lacks_room(arrays):
            return FULL
        options.steps -= 1

        admissible = _show_prompts(arrays)
        if state.visible == state.head and state.decoding == 0:
            if _idle(arrays):
                continue
            return DONE
        choice = _ask_policy(arrays)
        if choice.prefill < 0:
            return BAD_POLICY
        if (choice.prefill == 0 or choice.prompt_slots == 0) and choice.decode == 0:
            return IDLE_POLICY

        head = state.head
        batch = _prefill(arrays, choice, terms)
        linked_before = min(state.linked, batch.decode)
        fresh_slot = _link_fresh(arrays, batch.decode, terms)
        if options.record >= RECORD_ALLOCATIONS:
            _note_decodes(arrays, batch.decode)
        run = _equal_batches(arrays, batch, admissible, terms)
        if options.record >= RECORD_BATCHES:
            _note_batches(arrays, batch, run)
        _take_off(arrays, batch, run)
        if run.end > options.until:  # in flight when the run stops
            state.busy += options.until - state.now
            state.now = options.until
            continue
        _land(arrays, batch, run, terms)
        if batch.decode > 0:
            _count_gaps(arrays, batch, run, linked_before, fresh_slot, terms)
            _move_epoch(arrays, batch.decode, run.batches)
            _finish_due(arrays, batch.decode, run.end, terms)
        _end_prompts(arrays, head, run.end)
        if options.clients > 0:
            _send_next(arrays, run.end)
        state.now = run.end


@uncounted(inline=True)
def _arrive(arrays: Arrays) -> None:
    """Let the requests come that have arrived by now."""
    state = arrays.state[0]
    while state.arrived < arrays.arrival.size and arrays.arrival[at(state.arrived)] <= state.now:
        tokens = arrays.prompt[at(state.arrived)]
        state.waiting_tokens += tokens
        state.arrived_tokens += tokens
        state.arrived += 1


@uncounted()
def _note_instants(arrays: Arrays, terms: Terms | None) -> None:
    """Write the series up to now: exact values, at instants within the last flight too."""
    state, series = arrays.state[0], arrays.series
    tick = state.series_rows * state.series_step
    while tick <= state.now:
        while state.seen < state.arrived and arrays.arrival[state.seen] <= tick:
            tokens = arrays.prompt[state.seen] + arrays.output[state.seen]
            state.seen_tokens += tokens - arrays.options[0].engine
            state.seen += 1
        if state.series_rows == series.size:  # full: keep every other instant
            for row in range(1, series.size // 2):
                series[row] = series[2 * row]
            state.series_rows = series.size // 2
            state.series_step *= 2
        else:
            instant = series[state.series_rows]
            instant.tick = tick
            instant.requests = state.dropped + state.seen - state.finished
            instant.unprocessed = state.seen_tokens - state.started
            instant.uncompleted = state.seen_tokens - state.completed
            if tick < state.flight_end:
                begun, ended = _batches_until(arrays, tick - state.flight_start, terms)
                begun_tokens = state.before_started + state.flight_tokens * begun
                ended_tokens = state.before_completed + state.flight_tokens * ended
                instant.requests = state.dropped + state.seen - state.before_finished
                instant.unprocessed = state.seen_tokens - begun_tokens
                instant.uncompleted = state.seen_tokens - ended_tokens
            state.series_rows += 1
        tick = state.series_rows * state.series_step


@uncounted(inline=True)
def _batches_until(arrays: Arrays, ticks: int, terms: Terms | None) -> Any:
    """Return how many batches of the last flight began before, and how many had ended, so many
    ticks after its start.
    """
    state = arrays.state[0]
    if terms is None:
        ended = ticks // state.flight_ticks
        rest = ticks - ended * state.flight_ticks
    else:
        cost, rise = state.flight_cost, state.flight_rise
        ended = batches_done(cost, rise, ticks, state.flight_batches - 1)
        rest = ticks - ticks_of_run(cost, rise, ended)
    return ended + (1 if rest > 0 else 0), ended


@uncounted(inline=True)
def _lacks_room(arrays: Arrays) -> Any:
    """Return whether a step could count or record more than there is room for."""
    options, state = arrays.options[0], arrays.state[0]
    if 4 * (state.stalls_used + arrays.slots.size) > arrays.stalls.size:
        return True
    if 4 * state.mixes_used + 8 > arrays.mixes.size:
        return True
    if options.record < RECORD_BATCHES:
        return False
    if state.batch_rows == arrays.batch_rows.size:
        return True
    rows = state.allocation_rows + options.token_budget
    return options.record >= RECORD_ALLOCATIONS and rows > arrays.allocation_rows.size


@uncounted(inline=True)
def _show_prompts(arrays: Arrays) -> Any:
    """Let the policy see all prompts that the max batch size admits; return where they would end.

    That never falls, so each prompt is added once.
    """
    options, state = arrays.options[0], arrays.state[0]
    admissible = state.head + options.batch_size
    if options.running_scope != 0:
        admissible -= state.decoding
    end = min(state.arrived, admissible)
    while state.visible < end:
        tokens = arrays.prompt[at(state.visible)]
        if tokens == 0:  # never; but of a loop with two ends LLVM makes no vectors, which would
            break  # have to be kept ready for its one or two turns over every call of the policy
        state.visible_tokens += tokens
        state.visible += 1
    return admissible


@uncounted(inline=True)
def _idle(arrays: Arrays) -> Any:
    """Wait for the next arrival, or for the end; return False if nothing more comes."""
    options, state = arrays.options[0], arrays.state[0]
    state.flight_end = state.now
    if state.arrived < arrays.arrival.size and arrays.arrival[state.arrived] <= options.until:
        state.now = arrays.arrival[state.arrived]
        return True
    if options.until < NEVER:
        state.now = options.until
        return True
    return False


@uncounted(inline=True)
def _ask_policy(arrays: Arrays) -> Any:
    """Return the policy's batch, cut to what there is; with -1 tokens if it asked for fewer than
    none.
    """
    options, state = arrays.options[0], arrays.state[0]
    budget, most = options.token_budget, options.batch_size
    prompts = state.visible - state.head
    head_tokens = 0
    if state.head < state.arrived:
        head_tokens = arrays.prompt[at(state.head)] - state.head_done
    queue = Queue(
        prompts,
        state.visible_tokens,
        state.decoding,
        state.arrived - state.head,
        state.waiting_tokens,
        head_tokens,
        state.decode_tokens,
        state.dropped + state.arrived,
        state.arrived_tokens,
        state.finished,
        state.finished_decodes,
    )
    prefill, decode, first = policy_at(options.policy)(queue, Limits(budget, most), arrays.params)
    if prefill < 0 or decode < 0:
        return _Choice(-1, 0, 0, False)
    decode = min(decode, state.decoding, most, budget)
    slots = most
    if first != PREFILL_FIRST:
        budget -= decode
        if options.running_scope == 0:
            slots -= decode
    prefill = min(prefill, state.visible_tokens, budget)
    return _Choice(prefill, decode, min(slots, prompts), first == PREFILL_FIRST)


@uncounted(inline=True)
def _prefill(arrays: Arrays, choice: _Choice, terms: Terms | None) -> Any:
    """Serve the oldest prompts first, the last of them cut anywhere; return the batch."""
    options, state = arrays.options[0], arrays.state[0]
    prompts, squares, pairs = 0, 0, 0
    left = choice.prefill
    while left > 0 and prompts < choice.prompt_slots:
        rest = arrays.prompt[at(state.head)] - state.head_done
        take = min(rest, left)
        if options.record >= RECORD_ALLOCATIONS:
            _note_allocation(arrays, state.head, take, 0)
        if terms is not None:
            squares += take * take
            pairs += take * state.head_done
        left -= take
        prompts += 1
        if take == rest:
            state.head += 1
            state.head_done = 0
        else:
            state.head_done += take
    prefill = choice.prefill - left
    state.visible_tokens -= prefill
    state.waiting_tokens -= prefill
    decode = choice.decode
    if choice.prefill_first:
        decode = min(decode, options.token_budget - prefill)
        if options.running_scope == 0:
            decode = min(decode, options.batch_size - prompts)
    return _Batch(prefill, decode, prompts, squares, pairs)


@uncounted(inline=True)
def _link_fresh(arrays: Arrays, decode: int, terms: Terms | None) -> Any:
    """Link as many requests that never decoded as the batch has room for; return the first slot.

    Slots are a list, so those of one batch follow each other in it.
    """
    state, slots = arrays.state[0], arrays.slots
    engine = arrays.options[0].engine
    first = state.free
    while state.linked < decode:
        while (
            arrays.output[at(state.fresh)] == engine
        ):  # its only token came with the end of prefill
            state.fresh += 1
        index = state.free
        slot = slots[at(index)]
        state.free = slot.chain
        slot.request = state.fresh
        slot.due = state.epoch + arrays.output[at(state.fresh)] - engine
        slot.previous = state.last
        slot.next = -1
        if state.last < 0:
            state.first = index
        else:
            slots[at(state.last)].next = index
        chain(slots, arrays.heads, arrays.bits, index)
        if terms is not None:
            state.context_base += arrays.prompt[at(state.fresh)] - state.epoch
        state.next_due = min(state.next_due, slot.due)
        state.last = index
        state.linked += 1
        state.fresh += 1
    return first


@uncounted(inline=True)
def _equal_batches(arrays: Arrays, batch: _Batch, admissible: int, terms: Terms | None) -> Any:
    """Return how often the batch follows itself: until a request finishes, an arrival is seen, or
    the run stops.
    """
    options, state = arrays.options[0], arrays.state[0]
    cost, rise = 0, 0
    ticks = arrays.duration[at(batch.prefill + batch.decode)]
    if terms is not None:
        requests = batch.prompts + batch.decode
        context = _context(arrays, batch.decode)
        cost = cost_of(
            terms, batch.prefill, batch.decode, requests, batch.squares, batch.pairs, context
        )
        rise = rise_of(terms, batch.decode)
        ticks = ticks_of(cost)
    if (
        batch.prefill > 0
        or batch.decode < state.linked
        or options.compress == 0
        or options.sees == SEES_DECODES
        or options.record >= RECORD_ALLOCATIONS
    ):
        return _Run(ticks, cost, rise, 1, state.now + ticks)
    batches = state.next_due - state.epoch
    seen = state.arrived < admissible or options.sees != SEES_BATCH
    if state.arrived < arrays.arrival.size and seen:
        left = arrays.arrival[at(state.arrived)] - state.now
        if terms is not None:
            batches = batches_begun(cost, rise, left, batches)
        elif ticks * batches > left:
            batches = (left + ticks - 1) // ticks
    if options.until < NEVER:
        left = options.until - state.now
        if terms is not None:
            batches = max(batches_done(cost, rise, left, batches), 1)
        else:
            batches = min(batches, max(left // ticks, 1))
    if options.record >= RECORD_BATCHES:
        batches = min(batches, arrays.batch_rows.size - state.batch_rows)
    end = state.now + ticks * batches
    if terms is not None:
        end = state.now + ticks_of_run(cost, rise, batches)
    return _Run(ticks, cost, rise, batches, end)


@uncounted(inline=True)
def _context(arrays: Arrays, decode: int) -> Any:
    """Return the tokens before the next decodes of the oldest so many linked requests: of these,
    or of all but the others, whichever are fewer.
    """
    state, slots = arrays.state[0], arrays.slots
    everything = state.context_base + state.linked * state.epoch
    if decode == state.linked:
        return everything
    since = state.epoch - arrays.options[0].engine
    if 2 * decode < state.linked:
        total = decode * since
        index = state.first
        for _ in range(decode):
            slot = slots[at(index)]
            total += arrays.prompt[at(slot.request)] + arrays.output[at(slot.request)] - slot.due
            index = slot.next
        return total
    others = (state.linked - decode) * since
    index = state.last
    for _ in range(state.linked - decode):
        slot = slots[at(index)]
        others += arrays.prompt[at(slot.request)] + arrays.output[at(slot.request)] - slot.due
        index = slot.previous
    return everything - others


@uncounted(inline=True)
def _take_off(arrays: Arrays, batch: _Batch, run: _Run) -> None:
    """Note the flight for instants within it, and count what starts."""
    state = arrays.state[0]
    tokens = batch.prefill + batch.decode
    state.flight_start = state.now
    state.flight_ticks = run.ticks
    state.flight_tokens = tokens
    state.flight_end = run.end
    state.flight_cost = run.cost
    state.flight_rise = run.rise
    state.flight_batches = run.batches
    state.before_started = state.started
    state.before_completed = state.completed
    state.before_finished = state.finished
    state.started += tokens * run.batches
    state.batches += run.batches


@uncounted(inline=True)
def _land(arrays: Arrays, batch: _Batch, run: _Run, terms: Terms | None) -> None:
    """Count what ended, by composition: in a cell where there is one, else in a multiset."""
    options, state = arrays.options[0], arrays.state[0]
    tokens = batch.prefill + batch.decode
    lasted = run.end - state.now
    state.busy += lasted
    state.completed += tokens * run.batches
    cell = batch.prefill * (arrays.slots.size + 1) + batch.decode
    key = (batch.prefill << 32) | batch.decode
    if cell < arrays.cells.size:
        arrays.cells[at(cell)] += run.batches
        if terms is not None:
            arrays.cell_ticks[at(cell)] += lasted
    elif terms is not None:
        state.mixes_used += add(arrays.mixes, key, run.batches)
        state.mixes_used += add(arrays.mixes, key | MIX_TICKS, lasted)
    elif tokens == options.token_budget:
        arrays.tallies[at(batch.decode)].full += run.batches
    else:
        state.mixes_used += add(arrays.mixes, key, run.batches)


@uncounted(inline=True)
def _count_gaps(
    arrays: Arrays,
    batch: _Batch,
    run: _Run,
    linked_before: int,
    slot: int,
    terms: Terms | None,
) -> None:
    """Count a time between tokens for each request that had one before; give the others their
    first.

    Those linked just now, from ``slot`` on, had one if it came with the end of their prefill.
    """
    state, segments = arrays.state[0], arrays.segments
    gap_bits = arrays.options[0].gap_bits
    end = state.now + run.ticks
    tally = arrays.tallies[at(batch.prefill + batch.decode)]
    usual = run.ticks
    if terms is not None:
        usual = -1  # no gap is that of the token load
    state.decode_tokens -= batch.decode * run.batches
    for _ in range(batch.decode - linked_before):
        request = arrays.slots[at(slot)].request
        before = arrays.first_token[at(request)]
        if before < 0:
            arrays.first_token[at(request)] = end
        elif end - before == usual:
            tally.gaps += 1
        else:
            count_stall(state, arrays.stalls, end - before, 1, gap_bits)
        slot = arrays.slots[at(slot)].next
    unserved = linked_before
    while unserved > 0:
        segment = segments[at(state.segments - 1)]
        count = min(segment.count, unserved)
        gap = end - segment.end
        if gap == usual:
            tally.gaps += count
        else:
            count_stall(state, arrays.stalls, gap, count, gap_bits)
        unserved -= count
        segment.count -= count
        if segment.count == 0:
            state.segments -= 1
    if terms is None:
        tally.gaps += batch.decode * (run.batches - 1)
    elif run.batches > 1:
        count_run(state, arrays.stalls, run.cost, run.rise, run.batches, batch.decode, gap_bits)


@uncounted(inline=True)
def _move_epoch(arrays: Arrays, decode: int, batches: int) -> None:
    """Let the epoch move on and put off those not served, or let those served come closer,
    whichever are fewer.
    """
    state = arrays.state[0]
    if decode == state.linked:
        state.epoch += batches
    elif 2 * decode < state.linked:
        state.context_base += decode
        index = state.first
        for _ in range(decode):
            _put_off(arrays, index, -1)
            index = arrays.slots[at(index)].next
    else:
        others = state.linked - decode
        state.epoch += 1
        state.context_base -= others
        index = state.last
        for _ in range(others):
            _put_off(arrays, index, 1)
            index = arrays.slots[at(index)].previous


@uncounted()
def _put_off(arrays: Arrays, index: int, epochs: int) -> None:
    """Move a linked request in the calendar."""
    unchain(arrays.slots, arrays.heads, arrays.bits, index)
    arrays.slots[index].due += epochs
    chain(arrays.slots, arrays.heads, arrays.bits, index)


@uncounted(inline=True)
def _finish_due(arrays: Arrays, decode: int, end: int, terms: Terms | None) -> None:
    """Let the requests leave that are due; the others that were served are a segment."""
    state, slots = arrays.state[0], arrays.slots
    engine = arrays.options[0].engine
    served = decode
    index = empty_bucket(arrays.heads, arrays.bits, state.epoch)
    while index >= 0:
        slot = slots[at(index)]
        output = arrays.output[at(slot.request)]
        arrays.finish[at(slot.request)] = end
        state.finished_decodes += output - engine
        if terms is not None:
            state.context_base -= arrays.prompt[at(slot.request)] + output - engine - state.epoch
        if slot.previous < 0:
            state.first = slot.next
        else:
            slots[at(slot.previous)].next = slot.next
        if slot.next < 0:
            state.last = slot.previous
        else:
            slots[at(slot.next)].previous = slot.previous
        following = slot.chain
        slot.chain = state.free
        state.free = index
        served -= 1
        index = following
    gone = decode - served
    if gone > 0 or decode < state.linked:
        state.linked -= gone
        state.decoding -= gone
        state.finished += gone
        state.next_due = NEVER
        if state.linked > 0:
            state.next_due = next_due_epoch(arrays.bits, state.epoch)
    if served > 0:
        segment = arrays.segments[at(state.segments)]
        segment.count = served
        segment.end = end
        state.segments += 1


@uncounted(inline=True)
def _end_prompts(arrays: Arrays, head: int, end: int) -> None:
    """Let the requests decode whose prompts are done: those from the head that was."""
    state = arrays.state[0]
    engine = arrays.options[0].engine
    for request in range(head, state.head):
        if engine != 0:
            arrays.first_token[at(request)] = end
            if arrays.output[at(request)] == 1:
                arrays.finish[at(request)] = end
                state.finished += 1
                continue
        state.decoding += 1
        state.decode_tokens += arrays.output[at(request)] - engine


@uncounted()
def _send_next(arrays: Arrays, end: int) -> None:
    """Let the clients whose requests finished send their next ones: those in order that are
    left.
    """
    options, state = arrays.options[0], arrays.state[0]
    request = state.before_finished + options.clients
    sent = min(state.finished + options.clients, arrays.arrival.size)
    while request < sent and arrays.arrival[request] == NEVER:
        arrays.arrival[request] = end + options.pause
        request += 1


@uncounted()
def _note_allocation(arrays: Arrays, request: int, prefill: int, decode: int) -> None:
    """Record what the next batch gives a request."""
    state = arrays.state[0]
    row = arrays.allocation_rows[state.allocation_rows]
    row.batch = state.batches
    row.request = state.dropped + request
    row.prefill = prefill
    row.decode = decode
    state.allocation_rows += 1


@uncounted()
def _note_decodes(arrays: Arrays, decode: int) -> None:
    """Record which requests the next batch decodes: the oldest."""
    index = arrays.state[0].first
    for _ in range(decode):
        _note_allocation(arrays, arrays.slots[index].request, 0, 1)
        index = arrays.slots[index].next


@uncounted()
def _note_batches(arrays: Arrays, batch: _Batch, run: _Run) -> None:
    """Record equal batches, one by one."""
    state = arrays.state[0]
    start = state.now
    ticks = run.ticks
    for index in range(run.batches):
        if run.cost > 0:
            ticks = ticks_of(run.cost + index * run.rise)
        row = arrays.batch_rows[state.batch_rows]
        row.start = start
        row.ticks = ticks
        row.prefill = batch.prefill
        row.decode = batch.decode
        row.requests = batch.prompts + batch.decode
        start += ticks
        state.batch_rows += 1


@functools.cache
def compiled_advance(composed: bool) -> Callable[[Arrays, Terms | None], int]:
    """Return `advance` compiled with terms or without: seconds the first time, from the disk cache
    after.
    """
    return entry(advance, types.int64(ARRAYS, TERMS if composed else types.none))
