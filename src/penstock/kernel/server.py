"""One server, iteration by iteration, in integer ticks: the loop that everything else waits for.

How it is fast, and still exact:

* Prompts are served in order of arrival, so the prefill queue is two indices into the workload.
* A request that decodes does so once per batch, and nearly every batch serves all that decode. So
  no request counts its tokens down: it lies in a calendar of due epochs, in
  `penstock.kernel.due_epochs`.
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
functions of their own, compiled into it: those that form a batch are in
`penstock.kernel.server_batches`, those that count in `penstock.kernel.server`. What it
counts as the event loop does is in `penstock.kernel.recording`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from numba import types

from penstock.kernel.by_reference import reference_at
from penstock.kernel.choice import failure_of
from penstock.kernel.compiled_code import entry, uncounted
from penstock.kernel.composition import TERMS, Terms
from penstock.kernel.due_epochs import NEVER, empty_bucket, find_due, move_epoch
from penstock.kernel.in_progress import begun_before, ended_by
from penstock.kernel.lists import unlink
from penstock.kernel.recording import (
    count_composition,
    has_room,
    note_allocation,
    note_gaps,
    note_gaps_within,
    note_run,
    thin_series,
)
from penstock.kernel.records import ALLOCATION_ROWS, BATCH_ROWS, DONE, FULL, MORE, PAUSED
from penstock.kernel.server_arrays import ARRAYS, Arrays, Run
from penstock.kernel.server_batches import (
    ask_policy,
    equal_batches,
    link_fresh,
    prefill_oldest,
    show_prompts,
)
from penstock.kernel.signatures import Limits

_arrays_at = reference_at(ARRAYS)


def advance(arrays: int, terms: Terms | None) -> int:
    """Serve until something is needed: see `_advance`."""
    status: int = _advance(_arrays_at(arrays), terms)
    return status


@uncounted(inline=True)
def _advance(arrays: Arrays, terms: Terms | None) -> int:
    """Run the server until it needs something; return why it stopped: `DONE`, ...

    ``terms``: what batches cost, where that depends on more than their tokens.
    """
    clock, state, pool = arrays.clock[0], arrays.state[0], arrays.pools[0]
    limits = Limits(pool.budget, pool.batch_size)
    while True:
        _arrive(arrays)
        if state.arrived == arrays.arrival.size and clock.final == 0:
            return MORE
        if clock.series_rows * clock.series_step <= clock.now:
            note_instants(arrays)
        if clock.now >= clock.until:
            return DONE
        if clock.steps == 0:
            return PAUSED
        if not has_room(arrays, arrays.slots.size):
            return FULL
        clock.steps -= 1

        # -- a batch is formed
        admissible = show_prompts(arrays)
        if state.visible == state.head and state.decoding == 0:
            if _idle(arrays):
                continue
            return DONE
        choice = ask_policy(arrays, limits)
        failed = failure_of(choice)
        if failed != 0:
            return failed  # type: ignore[no-any-return]

        head = state.head
        batch = prefill_oldest(arrays, choice, limits, terms)
        linked_before = min(state.linked.count, batch.decode)
        fresh_slot = link_fresh(arrays, batch.decode, terms)
        if clock.record >= ALLOCATION_ROWS:
            note_decodes(arrays, batch.decode)
        # -- how many like it follow
        run = equal_batches(arrays, batch, admissible, terms)
        if clock.record >= BATCH_ROWS:
            note_run(arrays, 0, run)
        if clock.series_rows * clock.series_step < run.end:  # seldom
            note_flight(arrays, run)
        finished = clock.finished
        state.started += run.tokens * run.equal
        arrays.servers[0].batches += run.equal
        if run.end > clock.until:  # in flight when the run stops
            arrays.servers[0].busy += clock.until - clock.now
            clock.now = clock.until
            continue
        # -- they end: first who decodes, so that those whose prompt ends now are not among them
        land(arrays, run)
        if run.decodes > 0:
            count_gaps(arrays, run, linked_before, fresh_slot)
            slots, heads, bits = arrays.slots, arrays.heads, arrays.bits
            move_epoch(slots, heads, bits, state.linked, run.decodes, run.equal)
            _finish_due(arrays, run.decodes, run.end, terms)
        _end_prompts(arrays, head, run.end)
        if clock.clients > 0:
            _send_next(arrays, finished, run.end)
        clock.now = run.end


@uncounted(inline=True)
def _arrive(arrays: Arrays) -> None:
    """Let the requests come that have arrived by now."""
    clock, state = arrays.clock[0], arrays.state[0]
    while state.arrived < arrays.arrival.size and arrays.arrival[state.arrived] <= clock.now:
        tokens = arrays.prompt[state.arrived]
        state.waiting_tokens += tokens
        state.arrived_tokens += tokens
        state.arrived += 1


@uncounted(inline=True)
def _idle(arrays: Arrays) -> Any:
    """Wait for the next arrival, or for the end; return False if nothing more comes."""
    clock, state = arrays.clock[0], arrays.state[0]
    arrays.flight[0].end = clock.now
    if state.arrived < arrays.arrival.size and arrays.arrival[state.arrived] <= clock.until:
        clock.now = arrays.arrival[state.arrived]
        return True
    if clock.until < NEVER:
        clock.now = clock.until
        return True
    return False


@uncounted(inline=True)
def _finish_due(arrays: Arrays, decode: int, end: int, terms: Terms | None) -> None:
    """Let the requests leave that are due; the others that were served are a segment."""
    state, slots = arrays.state[0], arrays.slots
    linked, engine = state.linked, arrays.pools[0].convention
    served = decode
    index = empty_bucket(arrays.heads, arrays.bits, linked.epoch)
    while index >= 0:
        slot = slots[index]
        output = arrays.output[slot.request]
        arrays.finish[slot.request] = end
        state.finished_decodes += output - engine
        if terms is not None:
            linked.context -= arrays.prompt[slot.request] + output - engine - linked.epoch
        unlink(slots, linked, index)
        following = slot.chain
        slot.chain = state.free
        state.free = index
        served -= 1
        index = following
    gone = decode - served
    if gone > 0 or decode < linked.count:
        linked.count -= gone
        state.decoding -= gone
        arrays.clock[0].finished += gone
        find_due(arrays.bits, linked)
    if served > 0:
        segment = arrays.segments[state.segments]
        segment.count = served
        segment.end = end
        state.segments += 1


@uncounted(inline=True)
def _end_prompts(arrays: Arrays, head: int, end: int) -> None:
    """Let the requests decode whose prompts are done: those from the head that was."""
    state = arrays.state[0]
    engine = arrays.pools[0].convention
    for request in range(head, state.head):
        if engine != 0:
            arrays.first_token[request] = end
            if arrays.output[request] == 1:
                arrays.finish[request] = end
                arrays.clock[0].finished += 1
                continue
        state.decoding += 1
        state.decode_tokens += arrays.output[request] - engine


@uncounted()
def _send_next(arrays: Arrays, before: int, end: int) -> None:
    """Let the clients send their next requests whose own ones finished after the first ``before``:
    those in order that are left.
    """
    clock = arrays.clock[0]
    request = before + clock.clients
    sent = min(clock.finished + clock.clients, arrays.arrival.size)
    while request < sent and arrays.arrival[request] == NEVER:
        arrays.arrival[request] = end + clock.pause
        request += 1


@functools.cache
def compiled_advance(composed: bool) -> Callable[[Any, Terms | None], int]:
    """Return `advance` compiled, with terms or without."""
    kinds = types.int64, TERMS if composed else types.none
    return entry(advance, types.int64(*kinds))


# -- what it counts


class _Alone(NamedTuple):
    """The only pool, whose batch times begin the table: as a constant, which is never loaded."""

    duration: int = 0


@uncounted()
def note_instants(arrays: Arrays) -> None:
    """Write the series up to now: exact values, at instants within the last flight too."""
    clock, state, flight = arrays.clock[0], arrays.state[0], arrays.flight[0]
    tick = clock.series_rows * clock.series_step
    while tick <= clock.now:
        while state.seen < state.arrived and arrays.arrival[state.seen] <= tick:
            tokens = arrays.prompt[state.seen] + arrays.output[state.seen]
            state.seen_tokens += tokens - arrays.pools[0].convention
            state.seen += 1
        if clock.series_rows == arrays.series.shape[0]:
            thin_series(arrays)
        else:
            finished = clock.finished
            started = state.started
            processed = arrays.servers[0].processed
            if tick < flight.end:
                finished = flight.finished_before
                begun = begun_before(flight, tick, flight.equal)
                started = flight.started_before + flight.tokens * begun
                ended = ended_by(flight, tick, flight.equal)
                processed = flight.processed_before + flight.tokens * ended
            row = arrays.series[clock.series_rows]
            row[0] = tick
            row[1] = clock.requests_before + state.seen - finished
            row[3] = state.seen_tokens - started
            row[4] = started - processed
            clock.series_rows += 1
        tick = clock.series_rows * clock.series_step


@uncounted()
def note_flight(arrays: Arrays, run: Run) -> None:
    """Note what a run is and what came before it, for instants within it."""
    flight = arrays.flight[0]
    flight.start = run.start
    flight.end = run.end
    flight.ticks = run.ticks
    flight.equal = run.equal
    flight.tokens = run.tokens
    flight.plain = run.plain
    flight.cost = run.cost
    flight.rise = run.rise
    flight.started_before = arrays.state[0].started
    flight.processed_before = arrays.servers[0].processed
    flight.finished_before = arrays.clock[0].finished


@uncounted()
def note_decodes(arrays: Arrays, decode: int) -> None:
    """Record which requests the next batch decodes: the oldest."""
    index = arrays.state[0].linked.first
    for _ in range(decode):
        note_allocation(arrays, 0, arrays.slots[index].request, 0, 1)
        index = arrays.slots[index].next


@uncounted(inline=True)
def land(arrays: Arrays, run: Run) -> None:
    """Count what ended."""
    replica = arrays.servers[0]
    lasted = run.end - run.start
    replica.busy += lasted
    replica.processed += run.tokens * run.equal
    count_composition(arrays, run, arrays.pools[0], lasted)


@uncounted(inline=True)
def count_gaps(arrays: Arrays, run: Run, linked_before: int, slot: int) -> None:
    """Count a time between tokens for each request that had one before; give the others their
    first.

    Those linked just now, from ``slot`` on, had one if it came with the end of their prefill.
    """
    state, pool = arrays.state[0], _Alone(0)
    state.decode_tokens -= run.decodes * run.equal
    for _ in range(run.decodes - linked_before):
        request = arrays.slots[slot].request
        before = arrays.first_token[request]
        if before < 0:
            arrays.first_token[request] = run.start + run.ticks
        else:
            note_gaps(arrays, run, pool, before, 1)
        slot = arrays.slots[slot].next
    unserved = linked_before
    while unserved > 0:
        segment = arrays.segments[state.segments - 1]
        count = min(segment.count, unserved)
        note_gaps(arrays, run, pool, segment.end, count)
        unserved -= count
        segment.count -= count
        if segment.count == 0:
            state.segments -= 1
    note_gaps_within(arrays, run, pool)
