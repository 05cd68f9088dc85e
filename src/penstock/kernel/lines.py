"""Lines: where requests wait and are served in order, at one replica of the paper.

Prompts wait in order of arrival, and requests that decode are due at an epoch, so that none counts
its tokens down. Those that wait are linked through their rows; those that have decoded have slots.
"""

from typing import Any

from penstock.kernel.compiled_code import uncounted
from penstock.kernel.due_epochs import link
from penstock.kernel.lists import append_row, unlink
from penstock.kernel.recording import note_allocation, note_gaps
from penstock.kernel.records import ALLOCATION_ROWS, World


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
    line, clock = world.lines[index], world.clock[0]
    while line.linked.count < line.decode:
        request = line.fresh.first
        line.fresh.first = world.rows[request].next
        if world.first_token[request] < 0:
            world.first_token[request] = end
        place = clock.free_slot
        slot = world.slots[place]
        clock.free_slot = slot.chain
        slot.request = request
        slot.left = 0  # it may have been an engine's
        decodes = world.rows[request].decodes
        link(world.slots, world.heads[index], world.bits[index], line.linked, place, decodes)


@uncounted(inline=True)
def release(world: World, line: Any, place: int) -> None:
    """Take a request that is done out of those of its line, and give up its slot."""
    unlink(world.slots, line.linked, place)
    line.linked.count -= 1
    world.slots[place].chain = world.clock[0].free_slot
    world.clock[0].free_slot = place


@uncounted()
def count_tokens(world: World, server: int, pool: Any) -> None:
    """Count the times between tokens of the batches that have ended at a replica."""
    replica = world.servers[server]
    world.gaps[pool.duration + replica.tokens] += replica.decodes * (replica.equal - 1)
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
