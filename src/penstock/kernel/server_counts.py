"""What one server counts and records: the series, batches by composition, times between tokens, and
rows where they are asked for.
"""

from typing import Any

from penstock.kernel.compiled_code import uncounted
from penstock.kernel.composition import Terms, batches_done, ticks_of, ticks_of_run
from penstock.kernel.counting import add
from penstock.kernel.due_epochs import at
from penstock.kernel.gaps import count_run, count_stall
from penstock.kernel.server_arrays import (
    MIX_TICKS,
    RECORD_ALLOCATIONS,
    RECORD_BATCHES,
    Arrays,
    Batch,
    Run,
)


@uncounted(inline=True)
def lacks_room(arrays: Arrays) -> Any:
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


@uncounted()
def note_instants(arrays: Arrays, terms: Terms | None) -> None:
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


@uncounted()
def note_allocation(arrays: Arrays, request: int, prefill: int, decode: int) -> None:
    """Record what the next batch gives a request."""
    state = arrays.state[0]
    row = arrays.allocation_rows[state.allocation_rows]
    row.batch = state.batches
    row.request = state.dropped + request
    row.prefill = prefill
    row.decode = decode
    state.allocation_rows += 1


@uncounted()
def note_decodes(arrays: Arrays, decode: int) -> None:
    """Record which requests the next batch decodes: the oldest."""
    index = arrays.state[0].first
    for _ in range(decode):
        note_allocation(arrays, arrays.slots[index].request, 0, 1)
        index = arrays.slots[index].next


@uncounted()
def note_batches(arrays: Arrays, batch: Batch, run: Run) -> None:
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


@uncounted(inline=True)
def note_flight(arrays: Arrays, batch: Batch, run: Run) -> None:
    """Note what a run is and what came before it, for instants within it."""
    state = arrays.state[0]
    state.flight_start = state.now
    state.flight_ticks = run.ticks
    state.flight_tokens = batch.prefill + batch.decode
    state.flight_end = run.end
    state.flight_cost = run.cost
    state.flight_rise = run.rise
    state.flight_batches = run.batches
    state.before_started = state.started
    state.before_completed = state.completed
    state.before_finished = state.finished


@uncounted(inline=True)
def land(arrays: Arrays, batch: Batch, run: Run, terms: Terms | None) -> None:
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
def count_gaps(
    arrays: Arrays,
    batch: Batch,
    run: Run,
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
