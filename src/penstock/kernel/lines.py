"""Lines: where requests wait and are served in order, at one replica of the paper.

Prompts wait in order of arrival, and requests that decode are due at an epoch, so that none counts
its tokens down. Those that wait are linked through their rows; those that have decoded have slots.
"""

from typing import Any

from penstock.kernel.compiled_code import uncounted
from penstock.kernel.due_epochs import NEVER, chain, empty_bucket, next_due_epoch, unchain
from penstock.kernel.recording import note_allocation, note_gaps
from penstock.kernel.records import ALLOCATION_ROWS, World


@uncounted(inline=True)
def joined(world: World, head: int, tail: int, request: int) -> Any:
    """Put a request at the end of a queue, given its first and last; return the first."""
    world.rows[request].next = -1
    if head < 0:
        return request
    world.rows[tail].next = request
    return head


@uncounted(inline=True)
def append_prompt(world: World, line: Any, request: int) -> None:
    """Put a request at the end of those in prefill."""
    line.prompt_head = joined(world, line.prompt_head, line.prompt_tail, request)
    line.prompt_tail = request


@uncounted(inline=True)
def append_fresh(world: World, line: Any, request: int) -> None:
    """Put a request at the end of those that are to decode for the first time."""
    line.fresh_head = joined(world, line.fresh_head, line.fresh_tail, request)
    line.fresh_tail = request


@uncounted(inline=True)
def visible_tokens(world: World, line: Any, prompts: int) -> Any:
    """Return the unprocessed tokens of the first prompts."""
    if prompts == line.prompts:
        return line.prompt_tokens
    tokens = 0
    request = line.prompt_head
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
        request = line.prompt_head
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
            line.prompt_head = row.next
            line.done_head = joined(world, line.done_head, line.done_tail, request)
            line.done_tail = request
    line.prompt_tokens -= taken
    line.prefill += taken
    return taken, served


@uncounted()
def link(world: World, index: int, end: int) -> None:
    """Give slots to fresh requests until the batch's decodes have one each."""
    line, clock = world.lines[index], world.clock[0]
    while line.linked < line.decode:
        request = line.fresh_head
        line.fresh_head = world.rows[request].next
        if world.first_token[request] < 0:
            world.first_token[request] = end
        place = clock.free_slot
        slot = world.slots[place]
        clock.free_slot = slot.chain
        last = line.last_linked
        slot.request = request
        slot.left = 0  # it may have been an engine's
        slot.due = line.epoch + world.rows[request].decodes
        slot.previous = last
        slot.next = -1
        if last < 0:
            line.first_linked = place
        else:
            world.slots[last].next = place
        line.last_linked = place
        chain(world.slots, world.heads[index], world.bits[index], place)
        line.due = min(line.due, slot.due)
        line.linked += 1


@uncounted()
def serve_decodes(world: World, index: int, repeat: int) -> Any:
    """Move due epochs on by a batch, or equal ones; return the first slot that is due, or -1, and
    empty its bucket.
    """
    line, slots = world.lines[index], world.slots
    heads, bits = world.heads[index], world.bits[index]
    served = line.decode
    if served == line.linked:
        line.epoch += repeat
    elif 2 * served < line.linked:  # nearer for those served: fewer than the others
        place = line.first_linked
        for _ in range(served):
            unchain(slots, heads, bits, place)
            slots[place].due -= 1
            chain(slots, heads, bits, place)
            place = slots[place].next
    else:
        line.epoch += 1
        place = line.last_linked
        for _ in range(line.linked - served):
            unchain(slots, heads, bits, place)
            slots[place].due += 1
            chain(slots, heads, bits, place)
            place = slots[place].previous
    return empty_bucket(heads, bits, line.epoch)


@uncounted(inline=True)
def unlink(world: World, line: Any, place: int) -> None:
    """Take a request that is done out of the list of its line, and give up its slot."""
    clock = world.clock[0]
    previous, following = world.slots[place].previous, world.slots[place].next
    if previous < 0:
        line.first_linked = following
    else:
        world.slots[previous].next = following
    if following < 0:
        line.last_linked = previous
    else:
        world.slots[following].previous = previous
    line.linked -= 1
    world.slots[place].chain = clock.free_slot
    clock.free_slot = place


@uncounted(inline=True)
def find_due(world: World, index: int) -> None:
    """Find anew when the next linked request is due."""
    line = world.lines[index]
    line.due = NEVER
    if line.linked > 0:
        line.due = next_due_epoch(world.bits[index], line.epoch)


@uncounted()
def count_tokens(world: World, server: int, pool: Any) -> None:
    """Count the times between tokens of the batches that have ended at a replica."""
    replica = world.servers[server]
    world.gaps[pool.duration + replica.tokens] += replica.decodes * (replica.equal - 1)
    for index in range(replica.first_line, replica.first_line + pool.lines):
        line = world.lines[index]
        place = line.first_linked
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
