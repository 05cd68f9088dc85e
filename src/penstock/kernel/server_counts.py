"""What one server counts: the series, batches by composition, times between tokens, and rows where
they are asked for.
"""

from typing import NamedTuple

from penstock.kernel.compiled_code import uncounted
from penstock.kernel.in_progress import begun_before, ended_by
from penstock.kernel.recording import (
    count_composition,
    note_allocation,
    note_gaps,
    note_gaps_within,
    thin_series,
)
from penstock.kernel.server_arrays import Arrays, Run


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
