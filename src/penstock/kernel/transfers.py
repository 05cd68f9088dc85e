"""KV memory that comes from another replica, where a request was prefilled.

A request that only decodes here waits, in order of arrival, until its replica has the blocks for
what it brings. Then they are taken, and the transfer begins as soon as the links of both replicas
are free: each carries one at a time. When all of it is there, and the time that each transfer takes
besides has passed, the sender's blocks are free, and the request runs from the next batch composed
on, as soon as there is a place for it.
"""

from typing import Any

import numpy as np
from numba import types

from penstock.kernel.apart import A_POOL, A_WORLD, AN_ENGINE, NUMBER, apart
from penstock.kernel.blocks import blocks_of
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.engine_ends import settle
from penstock.kernel.engines.sglang_cache import give_up
from penstock.kernel.in_progress import cut, touch
from penstock.kernel.lists import append_row
from penstock.kernel.records import World
from penstock.kernel.releases import push_delayed
from penstock.kernel.running import admit, begin_decode, change_phase


@apart(types.void(A_WORLD, AN_ENGINE, A_POOL, NUMBER))
def come(world: World, engine: Any, pool: Any, request: int) -> None:
    """Let a request wait for its KV memory; whoever has that keeps it."""
    clock, sent = world.clock[0], world.sent[request]
    source = world.servers[world.rows[request + sent.sender].server]
    kind = world.pools[source.pool]
    if kind.by_lines == 0 and world.engines[source.engine].usable > 0:
        sender = world.engines[source.engine]
        blocks = min(blocks_of(sent.tokens, kind.block_size), sender.free + sender.evictable)
        sender.free -= blocks
        sent.lent = blocks
        sender.transfers.lending += blocks > 0
    world.again[request].came = clock.now
    # Whether there is room for it hangs on what decodes of the run in progress have taken.
    settle(world, world.servers[engine.server], engine, pool)
    engine.transfers.incoming += 1
    engine.arrived += 1
    append_row(world.rows, engine.transfers.coming, request)
    start_transfers(world, engine, pool)


@uncounted()
def start_transfers(world: World, engine: Any, pool: Any) -> None:
    """Begin the transfers for which there are blocks."""
    clock, here = world.clock[0], world.servers[engine.server]
    while engine.transfers.coming.first >= 0:
        request = engine.transfers.coming.first
        row, sent = world.rows[request], world.sent[request]
        tokens = np.int64(sent.tokens)
        if pool.grows == 0:  # what it will ever hold
            tokens += row.decodes
        blocks = blocks_of(tokens, pool.block_size)
        spare = pool.watermark if engine.running > 0 else 0
        if blocks + spare > engine.free + engine.evictable:
            return
        engine.transfers.coming.first = row.next
        if pool.radix != 0:
            give_up(world, engine, pool, blocks)
        engine.free -= blocks
        sent.lent_here = blocks
        source = world.servers[world.rows[request + sent.sender].server]
        begin = max(clock.now, max(here.link_free, source.link_free))
        here.link_free = source.link_free = begin + sent.link
        push_delayed(world, max(begin + sent.link + sent.latency, clock.now + 1), request)


@apart(types.void(A_WORLD, NUMBER))
def land(world: World, request: int) -> None:
    """Note that all KV memory of a request is there."""
    sent, row = world.sent[request], world.rows[request]
    engine = world.engines[world.servers[row.server].engine]
    append_row(world.rows, engine.transfers.landed, request)
    _look_again(world, row.server)
    source = np.int64(world.rows[request + sent.sender].server)
    if sent.lent > 0:
        sender = world.engines[world.servers[source].engine]
        sender.free += sent.lent
        sender.transfers.lending -= 1
        _look_again(world, source)


@uncounted(inline=True)
def _look_again(world: World, server: int) -> None:
    """Let a replica form another batch, at once or after the one in progress."""
    if world.servers[server].equal == 0:
        touch(world, server)
    elif world.servers[server].equal > 1:
        cut(world, server)


@apart(types.void(A_WORLD, AN_ENGINE, A_POOL))
def receive(world: World, engine: Any, pool: Any) -> None:
    """Let those run whose KV memory is there, while there are places, and begin more transfers."""
    while engine.transfers.landed.first >= 0:
        if pool.running_scope != 0 and engine.running >= pool.batch_size:
            break
        request = engine.transfers.landed.first
        engine.transfers.landed.first = world.rows[request].next
        engine.transfers.incoming -= 1
        blocks = np.int64(world.sent[request].lent_here)
        engine.free += blocks
        if pool.caching != 0 and pool.drafts == 0 and engine.ahead.all_fly != 0:
            _note_flights(world, engine)
        place = admit(world, engine, pool, request, blocks, 0)
        slot = world.slots[place]
        slot.end_node = engine.tree.root
        engine.prefilling -= 1
        engine.out_of_step += 1
        engine.changed = 1
        change_phase(world, engine, request, -1)  # it came in decode
        begin_decode(world, engine, pool, place, np.int64(world.rows[request].decodes))
    start_transfers(world, engine, pool)


@uncounted(inline=True)
def _note_flights(world: World, engine: Any) -> None:
    """Note of all who decode that a token of theirs is in flight: of who comes now none is."""
    engine.ahead.all_fly = 0
    engine.ahead.some_fly = 1
    place = engine.slots.first
    while place >= 0:
        slot = world.slots[place]
        if slot.left <= 0:
            slot.flight = 1
        place = slot.next
