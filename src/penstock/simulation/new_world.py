"""What the event loop needs of servers: records of pools, replicas and engines, with room for what
they change.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.inputs.arrays import Floats, Ints
from penstock.kernel import blocks, counting, records
from penstock.kernel.due_epochs import NEVER
from penstock.kernel.recording import MOST_CELLS
from penstock.kernel.records import World
from penstock.kernel.signatures import POLICY_SIGNATURE, address_of
from penstock.simulation.run import LEADING_BITS
from penstock.simulation.ticks import terms_of, ticks_of_batches
from penstock.system.server import Server

NO_LIMIT = 2**40
"""A max batch size that never binds."""

SERIES_INSTANTS = 2000
"""Most instants of a series; fewer where there are hundreds of replicas."""

_MOST_SERIES, _FEWEST_INSTANTS = 2**22, 64  # values of a series, instants
_PLACES = 2**17  # of a multiset: twice as many as there are times within 0.05% of each other
_FIRST_SLOTS = 256  # where nothing bounds how many requests run
_ROWS = 65_536  # that are kept of batches, and of who gets what, before they are moved away
_ADMISSIONS = {
    "input": records.INPUT,
    "completion": records.COMPLETION,
    "optimistic": records.OPTIMISTIC,
}


def by_lines(server: Server) -> bool:
    """Return whether lines, order and policy form its batches, rather than an engine's rules."""
    return server.by_phase and server.batch_time.by_load


def new_world(
    servers: Sequence[Server],
    replicas: Sequence[int],
    stages: Sequence[tuple[int, int]],
    tick_s: float,
    level: int,
    counts_compositions: bool,
) -> World:
    """Return pools of idle replicas, without requests.

    Parameters
    ----------
    servers, replicas
        One replica of each pool, and how many there are.
    stages
        The pool of each stage, and its line at each replica there.
    tick_s
        Seconds per tick.
    level
        What is recorded: `records.NO_ROWS`, ...
    counts_compositions
        Whether to count batches by what is in them, of a single pool.
    """
    stage_table = records.table(records.STAGE, len(stages))
    stage_table.pool, stage_table.line = np.transpose(stages)
    pools = records.table(records.POOL, len(servers))
    for index, (pool, server) in enumerate(zip(pools, servers, strict=True)):
        _describe(pool, server, tick_s)
        pool.replicas = replicas[index]
        pool.lines = stage_table.line[stage_table.pool == index].max() + 1
        pool.first_stage = (stage_table.pool < index).sum()
    pools.first_server = np.cumsum(pools.replicas) - pools.replicas
    pools.retention = NEVER

    # Batch times and parameters of all pools lie one after another; a pool says where its own
    # begin.
    durations = [ticks_of_batches(server, tick_s) for server in servers]
    terms = [terms_of(server, tick_s) for server in servers]
    pools.duration = _starts(durations)
    linear = [
        np.zeros(ticks.size, np.int64) if term is None else term.linear
        for ticks, term in zip(durations, terms, strict=True)
    ]
    per = np.zeros((len(servers), 6), np.int64)
    for row, term in zip(per, terms, strict=True):
        row[:] = 0 if term is None else term.per
    params = [_params(server) for server in servers]
    pools.params = _starts(params)
    pools.params_end = pools.params + [part.size for part in params]

    # A record for each replica, and of those that are engines another.
    table = records.table(records.REPLICA, int(pools.replicas.sum()))
    table.pool = np.repeat(np.arange(len(servers)), pools.replicas)
    own = pools[table.pool]
    table.first_line = np.cumsum(own.lines) - own.lines
    engines = _engines(servers, pools, table)
    table.engine = np.cumsum(own.rule != records.BY_LINES) - 1
    room = sum(
        _slots(server) * int(pool.replicas * pool.lines)
        for server, pool in zip(servers, pools, strict=True)
    )
    n_lines = int(own.lines.sum())
    lines = records.table(records.LINE, n_lines)
    for field in ("prompt_head", "fresh_head", "first_linked", "last_linked", "done_head"):
        lines[field] = -1
    lines.due = NEVER
    clock = records.table(records.CLOCK, 1)
    clock.series_step = 1
    clock.record = level
    engine_room = sum(
        _slots(server) * int(pool.replicas)
        for server, pool in zip(servers, pools, strict=True)
        if pool.rule != records.BY_LINES
    )
    clock.engine_slots = engine_room

    # The ends of batches are the leaves of a tree, whose root is the next one.
    leaves = 1 << max(table.size - 1, 1).bit_length()
    columns = 2 + 2 * len(stages) + 2 * table.size
    instants = min(SERIES_INSTANTS, max(_MOST_SERIES // columns, _FEWEST_INSTANTS)) // 2 * 2
    most = max(server.most_tokens for server in servers)
    cells = 0
    if counts_compositions:
        pools.cell_columns = room + 1
        cells = min((most + 1) * (room + 1), MOST_CELLS) * (2 if terms[0] else 1)
    cache = [engine for engine in engines if pools[engine.pool].caching]
    width = int(pools.lines.max())
    none = np.zeros(0, np.int64)
    return World(
        clock=clock,
        pools=pools,
        servers=table,
        engines=engines,
        lines=lines,
        stages=stage_table,
        onward=np.zeros((len(stages), len(stages))),
        means=np.zeros((len(stages), 2)),
        listed=np.argsort(stage_table.pool, kind="stable"),
        duration=np.concatenate(durations),
        linear=np.concatenate(linear),
        per=per,
        params=frozen(np.concatenate(params)),
        slots=_free_slots(0, room),
        heads=np.full((n_lines, 64), -1, np.int64),
        bits=np.zeros((n_lines, 1), np.uint64),
        growth=np.zeros((engines.size, int(pools.block_size.max())), np.int64),
        blocks=_free_blocks(cache),
        buckets=np.full((2, int(sum(engine.buckets for engine in cache))), -1, np.int64),
        table=np.zeros((room if cache else 0, 0), np.int32),
        pile=np.zeros(int(sum(engine.blocks + 1 for engine in cache)), np.int64),
        ids=none,
        bounds=none,
        ends=np.full(2 * leaves, NEVER, np.int64),
        job_arrival=none,
        job_root=none,
        job_tokens=none,
        rows=records.table(records.ROW, 0),
        again=records.table(records.AGAIN, 0),
        delay=none,
        coin=np.zeros(0, np.uint32),
        context=np.zeros(0, np.int32),
        reuse=np.zeros(0, np.int32),
        home=np.zeros(0, np.int32),
        cached=np.zeros(0, np.int32),
        ready=none,
        first_token=none,
        finish=none,
        heap=np.zeros((0, 2), np.int64),
        ready_now=none,
        touched=np.zeros(table.size, np.int64),
        lookout=np.zeros((width, 8)),
        weights=np.zeros((width, 2)),
        gaps=np.zeros(sum(ticks.size for ticks in durations), np.int64),
        full=np.zeros(most + 1, np.int64),
        cells=np.zeros(cells, np.int64),
        stalls=counting.new_multiset(_PLACES if any(terms) else _power_of_two(8 * engine_room)),
        mixes=counting.new_multiset(_power_of_two(16 * table.size)),
        series=np.zeros((instants, columns), np.int64),
        batch_rows=np.zeros((max(_ROWS, 4 * table.size) if level else 0, 6), np.int64),
        allocation_rows=np.zeros((max(_ROWS, 4 * room) if level > 1 else 0, 5), np.int64),
    )


def _power_of_two(least: int) -> int:
    return max(1024, 1 << least.bit_length())


def _starts(parts: Sequence[npt.NDArray[np.generic]]) -> Ints:
    """Return where each part begins when they lie one after another."""
    return np.array([0, *itertools.accumulate(part.size for part in parts)][:-1], np.int64)


def frozen(params: Floats) -> Floats:
    """Return parameters as the kernel takes them: nobody may change them."""
    params.flags.writeable = False
    return params


def _params(server: Server) -> Floats:
    """Return the numbers of a policy of the seam, or those that an engine's rule is told."""
    numbers = server.params if server.policy.by_phase else server.policy.kernel_numbers
    return np.array(numbers, np.float64)


def _describe(pool: Any, server: Server, tick_s: float) -> None:
    """Write down what the kernel's rules read of a server: limits, settings, memory."""
    policy, memory = server.policy, server.memory
    block_size = memory.block_size if memory else 1
    pool.budget = server.token_budget
    pool.batch_size = server.most_requests or NO_LIMIT
    pool.running_scope = server.scope == "running"
    pool.convention = server.convention == "engine"
    pool.policy = address_of(policy.compiled, POLICY_SIGNATURE)
    pool.sees = policy.sees
    pool.composed = not server.batch_time.by_load
    pool.rule = records.BY_LINES if by_lines(server) else policy.rule
    pool.block_size = block_size
    pool.watermark = server.watermark_blocks
    pool.by_priority = server.order == "priority"
    pool.chunked = policy.cuts_prompts
    pool.swap_ticks = -1
    if memory is not None:
        pool.reserved = -(-policy.reserved_tokens // block_size)
        pool.admission = _ADMISSIONS[memory.admission or "input"]
        pool.grows = server.holds != "completion"
        pool.caching = memory.prefix_caching and server.usable_blocks is not None
        if memory.preemption == "swap":
            pool.swap_ticks = round(memory.swap_s / tick_s)
    for name, value in policy.kernel_options.items():
        pool[name] = value


def _slots(server: Server) -> int:
    """Return for how many requests in service there is room at first, at each line of a replica."""
    in_a_batch = min(server.token_budget, server.max_batch_size or NO_LIMIT)
    if by_lines(server):
        return in_a_batch
    if server.scope == "running" and server.most_requests is not None:
        return server.most_requests
    return max(_FIRST_SLOTS, 2 * in_a_batch)


def _free_slots(first: int, count: int) -> Any:
    """Return slots that are free, each chained to the next."""
    slots = records.table(records.SLOT, count)
    slots.chain = np.arange(first + 1, first + count + 1)
    return slots


def _engines(servers: Sequence[Server], pools: Any, table: Any) -> Any:
    """Return a record for each replica that is an engine."""
    places = np.flatnonzero(pools.rule[table.pool] != records.BY_LINES)
    engines = records.table(records.ENGINE, places.size)
    first_block = first_bucket = 0
    for index, (engine, place) in enumerate(zip(engines, places, strict=True)):
        server = servers[table.pool[place]]
        engine.server, engine.pool = place, table.pool[place]
        engine.line, engine.index = table.first_line[place], index
        engine.first_slot = engine.last_slot = engine.head = engine.tail = -1
        usable = server.usable_blocks
        engine.free = records.PLENTY if usable is None else usable
        engine.ratio = server.policy.kernel_numbers[0]
        if pools[engine.pool].caching and usable is not None:
            engine.first_block, engine.blocks = first_block, usable
            engine.first_bucket, engine.buckets = first_bucket, 1 << usable.bit_length()
            first_block += usable + 1
            first_bucket += 1 << usable.bit_length()
    return engines


def _free_blocks(engines: Sequence[Any]) -> Any:
    """Return the blocks of some engines, none in use and none with a name; those of each in a
    ring.
    """
    parts = [records.table(records.BLOCK, 0)]
    for engine in engines:
        count, first = int(engine.blocks) + 1, int(engine.first_block)
        part = records.table(records.BLOCK, count)
        part.name = blocks.NAMELESS
        part.next_free = first + np.roll(np.arange(count), -1)
        part.previous_free = first + np.roll(np.arange(count), 1)
        parts.append(part)
    return records.joined(*parts)


def more_slots(world: World) -> World:
    """Double the room for requests that run at engines."""
    room = world.slots.size
    more = _free_slots(room, room)
    more.chain[-1] = world.clock[0].free_slot
    world.clock[0].free_slot = room
    world.clock[0].engine_slots += room
    world = world._replace(slots=records.joined(world.slots, more))
    if world.allocation_rows.shape[0]:
        world = world._replace(allocation_rows=np.zeros((8 * room, 5), np.int64))
    return wider_table(world, 0)


def wider_table(world: World, blocks_each: int) -> World:
    """Give the table of blocks, where there is one, room for all slots, and for so many blocks of
    each.
    """
    before, columns = world.table.shape
    if not before or (before == world.slots.size and columns >= blocks_each):
        return world
    table = np.zeros((world.slots.size, max(blocks_each, columns)), np.int32)
    table[:before, :columns] = world.table
    return world._replace(table=table)


def gap_bits(record: str, servers: Sequence[Server]) -> int:
    """Return how many leading digits are kept of times between tokens; 0: all."""
    composed = any(not server.batch_time.by_load for server in servers)
    return LEADING_BITS if record == "summary" or composed else 0
