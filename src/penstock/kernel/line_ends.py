"""What ends with a batch of lines: tokens, prompts and requests."""

from typing import Any

from numba import types

from penstock.kernel.apart import A_LINE, A_POOL, A_WORLD, NUMBER, apart
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.due_epochs import empty_bucket, find_due, move_epoch
from penstock.kernel.lines import count_tokens, release
from penstock.kernel.lists import append_row
from penstock.kernel.records import IN_DECODE, World
from penstock.kernel.releases import finish


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
            release(world, line, place)
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
