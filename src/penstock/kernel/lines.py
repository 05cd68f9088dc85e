"""Lines: where requests wait and are served in order, at one replica of the paper.

Prompts wait in order of arrival, and requests that decode are due at an epoch, so that none counts
its tokens down. Those that wait are linked through their rows; those that have decoded have slots.
Order and policy fill batches from the lines of a replica, as in the paper.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import types

from penstock.kernel import signatures
from penstock.kernel.apart import A_LINE, A_POOL, A_WORLD, NUMBER, apart
from penstock.kernel.choice import ask, decodes_beside
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.due_epochs import NEVER, empty_bucket, find_due, link, move_epoch
from penstock.kernel.in_progress import before_it_dies, start, within_the_run
from penstock.kernel.lists import append_row, give_up_slot, take_slot, unlink
from penstock.kernel.recording import note_allocation, note_gaps, note_gaps_within
from penstock.kernel.records import (
    ALLOCATION_ROWS,
    BAD_ORDER,
    BAD_POLICY,
    IDLE_POLICY,
    IN_DECODE,
    World,
)
from penstock.kernel.releases import finish
from penstock.kernel.signatures import BY_LINE, BY_PHASE, SPLIT, Limits, Queue, order_at

# -- what a line gives


@uncounted(inline=True)
def visible_tokens(world: World, line: Any, prompts: int) -> Any:
    """Return the unprocessed tokens of the first prompts."""
    if prompts == line.prompts:
        return line.prompt_tokens
    tokens = 0
    request = line.waiting.first
    for _ in range(prompts):
        tokens += world.rows[request].left
        request = world.rows[request].next
    return tokens


@uncounted()
def take_prompts(world: World, line: Any, server: int, tokens: int, most: int) -> Any:
    """Put up to so many prompt tokens, of at most so many requests, into the batch; return both
    counts.

    A request that this batch has cut already is not counted again.
    """
    taken = served = 0
    counted = line.open
    while tokens > taken and line.prompts > 0 and (served < most or counted != 0):
        request = line.waiting.first
        row = world.rows[request]
        take = min(row.left, tokens - taken)
        if world.clock[0].record >= ALLOCATION_ROWS:
            note_allocation(world, server, request, take, 0)
        row.left -= take
        taken += take
        served += 1 - counted
        counted = 0
        line.open = row.left > 0
        line.partial = line.open
        if row.left == 0:
            line.prompts -= 1
            line.waiting.first = row.next
            append_row(world.rows, line.done, request)
    line.prompt_tokens -= taken
    line.prefill += taken
    return taken, served


@uncounted()
def link_fresh(world: World, index: int, end: int) -> None:
    """Give slots to fresh requests until the batch's decodes have one each."""
    line = world.lines[index]
    while line.linked.count < line.decode:
        request = line.fresh.first
        line.fresh.first = world.rows[request].next
        if world.first_token[request] < 0:
            world.first_token[request] = end
        place = take_slot(world)
        slot = world.slots[place]
        slot.request = request
        slot.left = 0  # it may have been an engine's
        decodes = world.rows[request].decodes
        link(world.slots, world.heads[index], world.bits[index], line.linked, place, decodes)


@uncounted(inline=True)
def leave_line(world: World, line: Any, place: int) -> None:
    """Take a request that is done out of those of its line, and give up its slot."""
    unlink(world.slots, line.linked, place)
    line.linked.count -= 1
    give_up_slot(world, place)


@uncounted()
def count_tokens(world: World, server: int, pool: Any) -> None:
    """Count the times between tokens of the batches that have ended at a replica."""
    replica = world.servers[server]
    note_gaps_within(world, replica, pool)
    for index in range(replica.first_line, replica.first_line + pool.lines):
        line = world.lines[index]
        place = line.linked.first
        for _ in range(line.decode):
            _count_token(world, replica, pool, world.slots[place].request)
            place = world.slots[place].next


@uncounted(inline=True)
def _count_token(world: World, replica: Any, pool: Any, request: int) -> None:
    """Count the time between the first token of the batches that have ended and the one before."""
    again = world.again[request]
    before = again.last
    if before < 0:  # its first one may be of this batch
        before = world.first_token[request]
    if before < replica.start + replica.ticks:
        note_gaps(world, replica, pool, before, 1)
    again.last = world.clock[0].now


# -- a batch is formed


@uncounted(inline=True)
def _look(world: World, server: int, pool: Any) -> None:
    """Write down what an order sees of the lines of a replica."""
    first, n_stages = world.servers[server].first_line, world.stages.size
    for index in range(pool.lines):
        line, stage = world.lines[first + index], world.listed[pool.first_stage + index]
        following = following_prompts = 0.0
        for other in range(n_stages):
            share = world.onward[stage, other]
            if share > 0:
                share /= world.pools[world.stages[other].pool].replicas
                following += share * (
                    world.stages[other].in_prefill + world.stages[other].in_decode
                )
                following_prompts += share * world.stages[other].in_prefill
        view = world.lookout[index]
        view[signatures.LINE_PROMPTS] = line.prompts
        view[signatures.LINE_PROMPT_TOKENS] = line.prompt_tokens
        view[signatures.LINE_DECODING] = line.decoding
        view[signatures.LINE_PREFILL_MEAN] = world.means[stage, 0]
        view[signatures.LINE_DECODE_MEAN] = world.means[stage, 1]
        view[signatures.LINE_NEXT] = following
        view[signatures.LINE_NEXT_PROMPTS] = following_prompts
        view[signatures.LINE_BATCHES] = world.servers[server].batches


class _Room(NamedTuple):
    """What is left of a batch: tokens, requests, and requests that may start."""

    tokens: int
    slots: int
    starts: int


@uncounted(inline=True)
def _take(world: World, server: int, line: Any, room: _Room, want: int, most: int) -> Any:
    """Put prompt tokens into the batch; return what is left of it."""
    partial = line.partial if line.open == 0 else 0
    taken, served = take_prompts(world, line, server, want, most)
    started = served - partial if served > 0 else 0
    return _Room(room.tokens - taken, room.slots - served, room.starts - started), taken


@uncounted(inline=True)
def _visible(line: Any, room: _Room, running_scope: int) -> Any:
    """Return how many prompts of a line may be served in what is left of a batch."""
    if running_scope != 0:
        return min(line.prompts, line.partial + max(room.starts, 0))
    return min(line.prompts, max(room.slots, 0))


@uncounted(inline=True)
def _fill_line(world: World, server: int, line: Any, pool: Any, room: _Room, tokens: int) -> Any:
    """Let the policy choose tokens of a line, within what is left of a batch; return what then
    is.
    """
    prompts = _visible(line, room, pool.running_scope)
    prompt_tokens = visible_tokens(world, line, prompts)
    head = line.waiting.first
    queue = Queue(
        prompts,
        prompt_tokens,
        line.decoding,
        line.prompts,
        line.prompt_tokens,
        int(world.rows[head].left) if head >= 0 else 0,
        line.decode_tokens,
        line.arrived,
        line.arrived_tokens,
        line.finished,
        line.finished_decodes,
    )
    limits = Limits(tokens, room.slots)
    params = world.params[pool.policy.params : pool.policy.end]
    choice = ask(pool.policy.address, queue, limits, params)
    if choice.prefill < 0:
        return room, BAD_POLICY
    room, taken = _take(world, server, line, room, choice.prefill, choice.prompts)
    decodes = decodes_beside(choice, limits, taken, limits.batch_size - room.slots)
    line.decode += decodes
    return _Room(room.tokens - decodes, room.slots - decodes, room.starts), 0


@uncounted(inline=True)
def _fill_decodes(line: Any, room: _Room) -> Any:
    """Take all decodes of a line that fit."""
    y = min(line.decoding - line.decode, room.tokens, room.slots)
    if y <= 0:
        return room
    line.decode += y
    return _Room(room.tokens - y, room.slots - y, room.starts)


@uncounted(inline=True)
def _fill_prompts(world: World, server: int, line: Any, pool: Any, room: _Room) -> Any:
    """Take all prompt tokens of a line that fit."""
    prompts = _visible(line, room, pool.running_scope)
    if pool.running_scope == 0 and line.open != 0:
        prompts = min(line.prompts, prompts + 1)  # the one cut in this batch needs no further slot
    if prompts <= 0 or room.tokens <= 0:
        return room
    want = min(visible_tokens(world, line, prompts), room.tokens)
    room, _ = _take(world, server, line, room, want, min(prompts - line.open, room.slots))
    return room


@uncounted(inline=True)
def _heaviest(weights: Any, count: int, columns: int) -> Any:
    """Return the place of the largest weight that is left, as columns * row + column, and cross it
    out.

    Of equal ones the first row, and there the last column: decode before prefill.
    """
    best, place = -np.inf, -1
    for row in range(count):
        for column in range(columns - 1, -1, -1):
            if weights[row, column] > best:
                best, place = weights[row, column], columns * row + column
    weights[place // columns, place % columns] = -np.inf
    return place


@uncounted(inline=True)
def _fill_by_order(world: World, server: int, pool: Any, room: _Room) -> Any:
    """Fill a batch from several lines, as the order says; return what is left, and what failed."""
    first, count = world.servers[server].first_line, pool.lines
    _look(world, server, pool)
    weights = world.weights[:count]
    weights[:] = 0.0
    params = world.params[pool.order.params : pool.order.end]
    mode = order_at(pool.order.address)(world.lookout[:count], params, weights)
    total = 0.0
    for row in range(count):
        finite = np.isfinite(weights[row, 0]) and np.isfinite(weights[row, 1])
        if not finite or (mode == SPLIT and weights[row, 0] < 0):
            return room, BAD_ORDER
        total += weights[row, 0]
    failed = 0
    if mode == SPLIT and total > 0:
        room, failed = _fill_in_proportion(world, server, pool, room, total)
    elif mode == BY_PHASE:
        for _ in range(2 * count):
            place = _heaviest(weights, count, 2)
            line = world.lines[first + (place >> 1)]
            if place & 1:
                room = _fill_decodes(line, room)
            else:
                room = _fill_prompts(world, server, line, pool, room)
            if room.tokens == 0:
                break
    elif mode in (BY_LINE, SPLIT):
        for _ in range(count):
            line = world.lines[first + _heaviest(weights, count, 1)]
            if line.prompts + line.decoding > 0:
                room, failed = _fill_line(world, server, line, pool, room, room.tokens)
                if failed != 0 or room.tokens == 0 or room.slots <= 0:
                    break
    else:
        failed = BAD_ORDER
    return room, failed


@uncounted(inline=True)
def _fill_in_proportion(world: World, server: int, pool: Any, room: _Room, total: float) -> Any:
    """Let each line fill its share of the batch, then whoever can fill what is left."""
    first, count, budget = world.servers[server].first_line, pool.lines, room.tokens
    for row in range(count):
        line = world.lines[first + row]
        share = min(int(np.floor(budget * world.weights[row, 0] / total)), room.tokens)
        if share > 0 and room.slots > 0 and line.prompts + line.decoding > 0:
            room, failed = _fill_line(world, server, line, pool, room, share)
            if failed != 0:
                return room, failed
    for row in range(count):
        line = world.lines[first + row]
        room = _fill_decodes(line, room)
        room = _fill_prompts(world, server, line, pool, room)
    return room, 0


@uncounted(inline=True)
def _link_decodes(world: World, server: int, pool: Any, end: int) -> Any:
    """Give slots to those that decode for the first time; return all decodes of the batch, and how
    many batches from now the first request is done.
    """
    first = world.servers[server].first_line
    records = world.clock[0].record >= ALLOCATION_ROWS
    decodes, fewest = 0, NEVER
    for index in range(first, first + pool.lines):
        line = world.lines[index]
        if line.decode > 0:
            decodes += line.decode
            link_fresh(world, index, end)
            fewest = min(fewest, line.linked.due - line.linked.epoch)
            if records:
                place = line.linked.first
                for _ in range(line.decode):
                    note_allocation(world, server, world.slots[place].request, 0, 1)
                    place = world.slots[place].next
    return decodes, fewest


@apart(NUMBER(A_WORLD, NUMBER, A_POOL))
def form_from_lines(world: World, server: int, pool: Any) -> Any:
    """Form a batch, or a run of equal ones, at a free replica; return what failed, or 0."""
    replica, clock = world.servers[server], world.clock[0]
    first = replica.first_line
    running = prompts = decoding = 0
    for index in range(first, first + pool.lines):
        line = world.lines[index]
        prompts += line.prompts
        decoding += line.decoding
        running += line.decoding + line.partial
        line.open = 0
    if prompts + decoding == 0:
        return 0
    # -- who is in it
    room = _Room(pool.budget, pool.batch_size, pool.batch_size - running)
    if pool.order.address == 0:
        line = world.lines[first]
        room, failed = _fill_line(world, server, line, pool, room, room.tokens)
    else:
        room, failed = _fill_by_order(world, server, pool, room)
    if failed != 0:
        return failed
    tokens = pool.budget - room.tokens
    if tokens == 0:
        return IDLE_POLICY
    # -- how long it takes: here by its tokens alone
    ticks = world.duration[pool.duration + tokens]
    decodes, fewest = _link_decodes(world, server, pool, clock.now + ticks)
    replica.start = clock.now
    replica.ticks = replica.plain = ticks
    replica.tokens = tokens
    replica.decodes = decodes
    replica.prefill = tokens - decodes
    replica.requests = pool.batch_size - room.slots
    # -- equal batches follow each other while all that decode are served and nothing else could be
    repeat = 1
    if decodes == tokens and decodes == decoding and clock.merges != 0 and pool.repeats != 0:
        # No prompt may start before a request finishes.
        full = pool.running_scope != 0 and room.starts <= 0 and running == decoding
        if prompts == 0 or pool.order.address == 0 or full:
            repeat = within_the_run(world, replica, fewest)
            repeat = before_it_dies(world, server, repeat)
    start(world, server, repeat)
    return 0


# -- a batch ends


@apart(types.void(A_WORLD, NUMBER, A_POOL))
def end_of_lines(world: World, server: int, pool: Any) -> None:
    """Hand out the tokens of the batches that have ended at a replica."""
    first = world.servers[server].first_line
    if world.clock[0].line_slots > 0:
        count_tokens(world, server, pool)
    for index in range(first, first + pool.lines):
        line = world.lines[index]
        if line.decode > 0 or line.done.first >= 0 or line.prefill > 0:
            _end_of_line(world, server, index, pool)


@uncounted(inline=True)
def _leave(world: World, server: int, line: Any, request: int) -> None:
    """Let a request that has had all its decodes go."""
    replica, stage = world.servers[server], world.stages[world.rows[request].stage]
    stage.in_decode -= 1
    replica.count -= 1
    replica.work -= stage.decode_weight
    line.decoding -= 1
    line.finished += 1
    finish(world, request)


@uncounted(inline=True)
def _end_prefill(world: World, server: int, line: Any, pool: Any, request: int) -> None:
    """Move a request whose prompt is done into decode, which it leaves if it has none."""
    row = world.rows[request]
    stage = world.stages[row.stage]
    if pool.convention != 0 or row.decodes == 0:
        world.first_token[request] = world.clock[0].now
    stage.in_prefill -= 1
    stage.in_decode += 1
    world.servers[server].work += stage.decode_weight - stage.prefill_weight
    row.pending = IN_DECODE
    line.decoding += 1
    line.decode_tokens += row.decodes
    if row.decodes == 0:
        _leave(world, server, line, request)
    else:
        append_row(world.rows, line.fresh, request)


@uncounted(inline=True)
def _end_of_line(world: World, server: int, index: int, pool: Any) -> None:
    """Hand out the tokens in one line."""
    line, repeat = world.lines[index], world.servers[server].equal
    if line.decode > 0:
        line.decode_tokens -= line.decode * repeat
        slots, heads, bits = world.slots, world.heads[index], world.bits[index]
        move_epoch(slots, heads, bits, line.linked, line.decode, repeat)
        place = empty_bucket(heads, bits, line.linked.epoch)
        while place >= 0:
            following = world.slots[place].chain
            request = world.slots[place].request
            leave_line(world, line, place)
            line.finished_decodes += world.rows[request].decodes
            _leave(world, server, line, request)
            place = following
        find_due(bits, line.linked)
        line.decode = 0
    line.prefill = 0
    while line.done.first >= 0:
        request = line.done.first
        line.done.first = world.rows[request].next
        _end_prefill(world, server, line, pool, request)


@apart(types.void(A_WORLD, A_LINE, NUMBER))
def join_line(world: World, line: Any, request: int) -> None:
    """Put a request that has arrived into its line."""
    row = world.rows[request]
    line.arrived += 1
    line.arrived_tokens += row.left
    if row.left > 0:
        line.prompts += 1
        line.prompt_tokens += row.left
        append_row(world.rows, line.waiting, request)
    else:
        line.decoding += 1
        line.decode_tokens += row.decodes
        row.pending = IN_DECODE
        append_row(world.rows, line.fresh, request)
