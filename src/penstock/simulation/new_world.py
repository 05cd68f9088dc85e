"""What the event loop needs of servers: records of pools, replicas and engines, with room for what
they change.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.inputs.arrays import Floats, Ints, Ints32
from penstock.kernel import counting, records
from penstock.kernel.composition import N_TERMS
from penstock.kernel.due_epochs import NEVER
from penstock.kernel.recording import MOST_CELLS
from penstock.kernel.records import World
from penstock.kernel.server_arrays import Arrays, new_arrays
from penstock.kernel.signatures import (
    ASKED_FIELDS,
    LINE_FIELDS,
    POLICY_SIGNATURE,
    SEEN_FIELDS,
    address_of,
)
from penstock.simulation.ticks import in_ticks, terms_of, ticks_of_batches
from penstock.system.queue_limit import QueueLimit
from penstock.system.server import Server
from penstock.workload.patience import Patience
from penstock.workload.prefixes import Prefixes

NO_LIMIT = 2**40
"""A max batch size that never binds."""

SERIES_INSTANTS = 2000
"""Most instants of a series; fewer where there are hundreds of replicas."""

_MOST_SERIES, _FEWEST_INSTANTS = 2**22, 64  # values of a series, instants
_PLACES = 2**17  # of a multiset: twice as many as there are times within 0.05% of each other
_FIRST_SLOTS = 256  # where nothing bounds how many requests run
_MOST_BARREN = 1_024  # batches that preempt somebody and bring nobody an output
_ROWS = 65_536  # that are kept of batches, and of who gets what, before they are moved away
_ADMISSIONS = {
    "input": records.INPUT,
    "completion": records.COMPLETION,
    "optimistic": records.OPTIMISTIC,
}
_CAME_AS = {
    "arrival": records.CAME_WITH_ARRIVAL,
    "number": records.CAME_BY_NUMBER,
    "tokens": records.CAME_BY_TOKENS,
}


def new_world(
    servers: Sequence[Server],
    replicas: Sequence[int],
    pools_of: Sequence[int],
    stages: Sequence[tuple[int, int]],
    tick_s: float,  # seconds per tick
    level: int,  # `records.NO_ROWS`, ...
    counts_compositions: bool,  # count batches by what is in them, of a single pool
) -> World:
    """Return pools of idle replicas, without requests."""
    # ``servers``: one of each kind, how many, and their pool; ``stages``: each one's pool, and
    # line.
    counts = np.array(replicas, np.int64)
    pools, stage_table = _pools(servers, counts, np.array(pools_of, np.int64), stages)
    times = _batch_times(servers, pools, tick_s)
    params = [_params(server) for server in servers]
    pools.policy.params = _starts(params)
    pools.policy.end = pools.policy.params + [part.size for part in params]

    table, lines = _replicas_and_lines(pools, counts)
    engines = _engines(servers, pools, table)
    planned = records.table(records.REPLICA, engines.size)
    planned.pool = engines.pool
    slots = np.array([_slots(server) for server in servers]) * counts * pools.lines
    clock = _clock(level, int(slots[pools.by_lines == 0].sum()))

    # The ends of batches are the leaves of a tree, whose root is the next one.
    leaves = 1 << max(table.size - 1, 1).bit_length()
    width = int(pools.lines.max())
    room = int(slots.sum())
    most = 0
    if counts_compositions:
        most = servers[0].most_tokens
        pools.cell_columns = room + 1
    return World(
        apart=np.zeros(len(records.FUNCTIONS), np.int64),
        clock=clock,
        pools=pools,
        servers=table,
        planned=planned,
        engines=engines,
        lines=lines,
        stages=stage_table,
        onward=np.zeros((len(stages), len(stages))),
        means=np.zeros((len(stages), 2)),
        listed=np.argsort(stage_table.pool, kind="stable"),
        **_no_outages(table.size),
        **times,
        params=frozen(np.concatenate(params)),
        slots=_free_slots(0, room),
        heads=np.full((lines.size, 64), -1, np.int64),
        bits=np.zeros((lines.size, 1), np.uint64),
        **_memory(engines, servers, pools, room),
        ends=np.full(2 * leaves, NEVER, np.int64),
        fronts=np.zeros(int((pools.first_front + pools.fronts).max()), np.int64),
        **_no_requests(),
        **_no_clients(len(stages)),
        touched=np.zeros(table.size, np.int64),
        seen=np.zeros((table.size, SEEN_FIELDS)),
        asked=np.zeros(ASKED_FIELDS),
        lookout=np.zeros((width, LINE_FIELDS)),
        weights=np.zeros((width, 2)),
        **_counters(clock[0], pools, table.size, room, most),
        series=_series(len(stages), table.size),
    )


def new_paper_server(server: Server, room: int, tick_s: float, level: int) -> Arrays:
    """Return the arrays of the loop of one server, to which nothing has come."""
    # ``room``: for so many requests that decode.
    counts = np.ones(1, np.int64)
    pools, _ = _pools([server], counts, np.zeros(1, np.int64), [(0, 0)])
    params = _params(server)
    pools.policy.end = params.size
    replicas, _ = _replicas_and_lines(pools, counts)
    pools.cell_columns = room + 1
    clock = _clock(level, 0)
    counters = _counters(clock[0], pools, 1, room, server.most_tokens)
    clock.engine_slots = room
    return new_arrays(
        room,
        clock=clock,
        pools=pools,
        servers=replicas,
        params=frozen(params),
        series=_series(1, 1),
        **_batch_times([server], pools, tick_s),
        **counters,
    )


def _replicas_and_lines(pools: Any, counts: Ints) -> tuple[Any, Any]:
    """Return a record for each replica, and for each line of it; engines are numbered besides."""
    table = records.table(records.REPLICA, int(counts.sum()))
    table.pool = np.repeat(np.arange(counts.size), counts)
    own = pools[table.pool]
    table.first_line = np.cumsum(own.lines) - own.lines
    table.engine = np.cumsum(own.by_lines == 0) - 1
    lines = records.table(records.LINE, int(own.lines.sum()))
    lines.linked.due = NEVER
    return table, lines


def _clock(level: int, engine_slots: int) -> Any:
    """Return the clock of a run that has not begun."""
    clock = records.table(records.CLOCK, 1)
    clock.series_step = 1
    clock.next_outage = clock.next_report = NEVER
    clock.record = level
    clock.engine_slots = engine_slots
    return clock


def _pools(
    servers: Sequence[Server],
    counts: Ints,
    pools_of: Ints,
    stages: Sequence[tuple[int, int]],
) -> tuple[Any, Any]:
    """Return the records of pools, one per kind of server, and of stages, which name the first."""
    stage_pool, lines = np.transpose(stages)
    stage_table = records.table(records.STAGE, len(stages))
    stage_table.pool = np.searchsorted(pools_of, stage_pool)
    stage_table.line = lines
    pools = records.table(records.POOL, len(servers))
    first_server = np.cumsum(counts) - counts
    for index, (pool, server) in enumerate(zip(pools, servers, strict=True)):
        _describe(pool, server)
        alike = pools_of == pools_of[index]
        pool.replicas = pool.up = counts[alike].sum()
        pool.first_server = first_server[alike][0]
        pool.lines = lines[stage_pool == pools_of[index]].max() + 1
        pool.first_stage = (stage_pool < pools_of[index]).sum()
        if server.front_end is not None:
            pool.fronts = pool.replicas * server.front_end.processes
    # A pool of several kinds is known by its first.
    first = np.unique(pools_of, return_index=True)[1]
    ends = np.cumsum(pools.fronts[first])
    pools.first_front = (ends - pools.fronts[first])[np.searchsorted(pools_of[first], pools_of)]
    pools.retention = pools.most_barren = NEVER
    # A batch composed late admits without asking for room in the one table of slots for all.
    bounded = pools.running_scope.astype(bool) & (pools.batch_size < NO_LIMIT)
    pools.plans_late &= (bounded | (pools.by_lines != 0)).all()
    return pools, stage_table


def _no_outages(replicas: int) -> dict[str, Any]:
    """Return what says that all replicas serve, always."""
    health = records.table(records.HEALTH, replicas)
    health.died, health.dies = -1, NEVER
    return {
        "serving": np.arange(replicas),
        "health": health,
        "outages": np.zeros((0, 4), np.int64),
        "idle_engines": records.table(records.ENGINE, 0),
        "idle_lines": records.table(records.LINE, 0),
        "tries": records.table(records.TRY, 0),
    }


def with_outages(world: World, outages: Ints) -> World:
    """Let replicas of an idle world die and come back: rows of tick, replica, what happens, 0."""
    for tick, server, what, _ in outages[::-1]:
        if what != records.RETURNS:
            world.health[server].dies = tick
    world.clock.next_outage = outages[0, 0]
    return world._replace(
        outages=np.ascontiguousarray(outages),
        idle_engines=world.engines.copy(),
        idle_lines=world.lines.copy(),
        seen=np.concatenate([world.seen, world.seen]),
    )


def _batch_times(servers: Sequence[Server], pools: Any, tick_s: float) -> dict[str, Ints]:
    """Return all pools' batch times in a row, and room to count such gaps; pools say where."""
    durations = [ticks_of_batches(server, tick_s) for server in servers]
    terms = [terms_of(server, tick_s) for server in servers]
    pools.duration = _starts(durations)
    linear = [
        np.zeros(ticks.size, np.int64) if term is None else term.linear
        for ticks, term in zip(durations, terms, strict=True)
    ]
    per = np.zeros((len(servers), N_TERMS), np.int64)
    for row, term in zip(per, terms, strict=True):
        row[:] = 0 if term is None else term.per
    duration = np.concatenate(durations)
    return {
        "duration": duration,
        "linear": np.concatenate(linear),
        "per": per,
        "gaps": np.zeros_like(duration),
    }


def _memory(engines: Any, servers: Sequence[Server], pools: Any, room: int) -> dict[str, Any]:
    """Return what says who holds which blocks: those that reuse prefixes tell them apart."""
    none = np.zeros(0, np.int64)
    caching = [engine for engine in engines if pools[engine.pool].caching]
    # With the one that waits, and those who gave up their places meanwhile.
    knows_ends = any(server.policy.queue.knows_outputs for server in servers)
    lives = 2 * room + 1 if knows_ends else 0
    trees = [engine for engine in engines if pools[engine.pool].radix]
    if trees:
        lives = max(lives, records.SORTED_QUEUE)
    return {
        "growth": np.zeros((engines.size, int(pools.block_size.max())), np.int64),
        "lives": np.zeros((lives, 2), np.int64),
        # Every page may be a node of its own, and for a moment one more is.
        "nodes": records.table(records.NODE, int(sum(engine.cache.blocks + 2 for engine in trees))),
        "blocks": _free_blocks(caching),
        "buckets": records.table(records.ENDS, int(engines.cache.buckets.sum())),
        "table": np.zeros((room if caching else 0, 0), np.int32),
        "hits": np.zeros(0, np.int64),
        "ids": none,
        "bounds": none,
    }


def _no_requests() -> dict[str, Any]:
    """Return the arrays of jobs and requests, of which there are none yet."""
    wide = ("job_arrival", "job_root", "job_tokens", "delay")
    arrays: dict[str, Any] = dict.fromkeys(wide, np.zeros(0, np.int64))
    ticks = ("ready", "front", "reached", "first_token", "finish", "ready_now")
    arrays |= dict.fromkeys(ticks, np.zeros(0, np.int64))
    arrays |= dict.fromkeys(("context", "reuse", "home", "cached"), np.zeros(0, np.int32))
    return arrays | {
        "rows": records.table(records.ROW, 0),
        "again": records.table(records.AGAIN, 0),
        "sent": records.table(records.SENT, 0),
        "coin": np.zeros(0, np.uint32),
        "heap": np.zeros((0, 2), np.int64),
    }


def _no_clients(stages: int) -> dict[str, Any]:
    """Return what says that clients neither leave nor come again."""
    return {
        "leaves": np.zeros((0, 2), np.int64),
        "backoffs": np.full((stages, 1), -1, np.int64),
        "jitter": np.zeros(stages),
    }


def with_clients(world: World, patience: Sequence[Patience | None], tick_s: float) -> World:
    """Let requests be refused, and clients leave who have some ``patience`` at each stage."""
    world.clock.guarded = 1
    world.clock.impatient = any(of is not None and of.ends for of in patience)
    if world.clock[0].impatient:  # who is in a batch that is composed late is not known in time
        world.pools.plans_late = 0
    waits = [[] if of is None else of.backoffs_s for of in patience]
    most = max(map(len, waits))
    backoffs = np.full((len(patience), most + 1), -1, np.int64)
    for row, seconds in zip(backoffs, waits, strict=True):
        row[: len(seconds)] = np.maximum(in_ticks("a back-off", np.array(seconds), tick_s), 1)
    jitter = np.array([0.0 if of is None else of.jitter for of in patience])
    return world._replace(backoffs=backoffs, jitter=jitter)


def limit(at: Any, limits: QueueLimit | None, tick_s: float) -> None:
    """Write down whom a router, or a server, lets in."""
    for name in records.LIMITS.names or ():
        at[name] = NEVER
    for name, value in (limits.stated if limits else {}).items():
        if name == "ttft_ms":
            at.ttft = in_ticks("a TTFT", np.array([value / 1e3]), tick_s)[0]
        else:
            at[name] = value


def _counters(clock: Any, pools: Any, replicas: int, room: int, most: int) -> dict[str, Ints]:
    """Return what counts gaps between tokens, compositions (0 tokens: none), and rows."""
    composed = bool(pools.composed.any())
    cells = 0
    if most:
        cells = min((most + 1) * (room + 1), MOST_CELLS) * (2 if composed else 1)
    stalls = _PLACES if composed else _power_of_two(8 * int(clock.engine_slots))
    batches = max(_ROWS, 4 * replicas) if clock.record >= records.BATCH_ROWS else 0
    allocations = max(_ROWS, 4 * room) if clock.record >= records.ALLOCATION_ROWS else 0
    return {
        "full": np.zeros(most + 1, np.int64),
        "cells": np.zeros(cells, np.int64),
        "stalls": counting.new_multiset(stalls),
        "mixes": counting.new_multiset(_power_of_two(16 * replicas)),
        "batch_rows": np.zeros((batches, 6), np.int64),
        "allocation_rows": np.zeros((allocations, 5), np.int64),
    }


def _series(stages: int, replicas: int) -> Ints:
    """Return room for the series: fewer instants where there are many replicas."""
    columns = 2 + 2 * stages + 2 * replicas
    instants = min(SERIES_INSTANTS, max(_MOST_SERIES // columns, _FEWEST_INSTANTS)) // 2 * 2
    return np.zeros((instants, columns), np.int64)


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


def _describe(pool: Any, server: Server) -> None:
    """Write down what the kernel's rules read of a server: limits, settings, memory."""
    policy, memory = server.policy, server.memory
    block_size = memory.block_size if memory else 1
    pool.budget = server.token_budget
    pool.batch_size = server.most_requests or NO_LIMIT
    pool.running_scope = server.scope == "running"
    pool.convention = server.convention == "engine"
    if policy.compiled is not None:
        pool.policy.address = address_of(policy.compiled, POLICY_SIGNATURE)
    pool.sees = policy.sees
    pool.composed = not server.batch_time.by_load
    pool.by_lines = server.by_lines
    pool.block_size = pool.hash_block = block_size
    pool.watermark = server.watermark_blocks
    pool.by_priority = policy.queue.by_rank or server.order == "priority"
    pool.chunked = policy.batching.cuts_prompts
    if memory is not None:
        pool.admission = _ADMISSIONS[memory.admission or "input"]
        pool.grows = server.holds != "completion"
        caches = server.caches_prefixes and server.usable_blocks is not None
        pool.caching = caches and not policy.memory.caches_in_tree
        pool.radix = caches and policy.memory.caches_in_tree
    pool.ahead, pool.longest = policy.batching.ahead, policy.memory.longest_context
    pool.reserves_last = policy.memory.reserves_last_token
    pool.drafts = policy.batching.drafts
    pool.came_as = _CAME_AS[policy.queue.came_as]
    pool.waits_among_running = policy.queue.waits_among_running
    if pool.caching:
        pool.names_ahead = policy.memory.names_ahead
    if pool.radix:  # sorted where it stands, in place of a heap
        pool.by_priority = False
    if not server.by_lines:
        _tell_rule(pool, server)
    # Not where composing a batch looks into a cache, or takes others back.
    preempts = policy.queue.takes_places and server.order == "priority"
    at_once = not pool.ahead or pool.caching or pool.radix or preempts
    pool.plans_late = policy.batching.foreseen and not at_once


def _tell_rule(pool: Any, server: Server) -> None:
    """Say which rule forms batches, and the settings that it reads."""
    from penstock.kernel.apart import settings_of

    pool.rule = records.number_of(server.policy.rule)
    settings = settings_of(server.policy.rule)
    if settings is not None:
        words = settings.itemsize // pool.of_rule.itemsize
        told = pool.of_rule[:words].view(settings)
        for name in settings.names:
            told[name] = server.policy.told_to_rule(name, server)


def _slots(server: Server) -> int:
    """Return for how many requests in service there is room at first, at each line of a replica."""
    in_a_batch = min(server.token_budget, server.max_batch_size or NO_LIMIT)
    if server.by_lines:
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
    places = np.flatnonzero(pools.by_lines[table.pool] == 0)
    engines = records.table(records.ENGINE, places.size)
    first_block = first_bucket = first_node = 0
    for index, (engine, place) in enumerate(zip(engines, places, strict=True)):
        server = servers[table.pool[place]]
        engine.server, engine.pool = place, table.pool[place]
        engine.line, engine.index = table.first_line[place], index
        engine.batch.wasted_on = engine.tree.free_node = -1
        engine.was_idle = 1
        usable = server.usable_blocks
        engine.free = records.PLENTY if usable is None else usable
        engine.usable = usable or 0
        if pools[engine.pool].caching and usable is not None:
            engine.cache.first, engine.cache.blocks = first_block, usable
            engine.cache.first_bucket, engine.cache.buckets = first_bucket, 1 << usable.bit_length()
            engine.cache.free_record, engine.cache.nameless = first_block, usable
            first_block += usable
            first_bucket += 1 << usable.bit_length()
        if pools[engine.pool].radix and usable is not None:
            engine.tree.root, engine.cache.blocks, engine.tree.nodes = first_node, usable, 1
            engine.cache.first_bucket, engine.cache.buckets = first_bucket, 1 << usable.bit_length()
            first_node += usable + 2
            first_bucket += 1 << usable.bit_length()
    return engines


def _free_blocks(engines: Sequence[Any]) -> Any:
    """Return the records of blocks of some engines, which stand for nothing yet."""
    parts = [records.table(records.BLOCK, 0)]
    for engine in engines:
        count, first = int(engine.cache.blocks), int(engine.cache.first)
        part = records.table(records.BLOCK, count)
        part.next_named = np.arange(first + 1, first + count + 1)
        parts.append(part)
    return records.joined(*parts)


def more_slots(world: World) -> World:
    """Double the room for requests that run at engines."""
    room = world.slots.size
    added = _free_slots(room, room)
    added.chain[-1] = world.clock[0].free_slot
    world.clock[0].free_slot = room
    world.clock[0].engine_slots += room
    world = world._replace(slots=records.joined(world.slots, added))
    if world.allocation_rows.shape[0]:
        world = world._replace(allocation_rows=np.zeros((8 * room, 5), np.int64))
    if world.lives.shape[0]:
        lives = max(world.lives.shape[0], 4 * room + 1)
        world = world._replace(lives=np.zeros((lives, 2), np.int64))
    return wider_table(world, 0)


def wider_table(world: World, blocks_each: int) -> World:
    """Give the table of blocks, if any, room for all slots, and for so many blocks of each."""
    before, columns = world.table.shape
    if not before or (before == world.slots.size and columns >= blocks_each):
        return world
    table = np.zeros((world.slots.size, max(blocks_each, columns)), np.int32)
    table[:before, :columns] = world.table
    return world._replace(table=table, hits=np.zeros(table.shape[1], np.int64))


def name_recorded(pools: Any, prefixes: Prefixes) -> None:
    """Say what the ids of recorded prompts name."""
    pools.hash_block = prefixes.block_size
    pools.names_outputs = pools.caching * prefixes.names_outputs


def be_patient(pools: Any, longest: int) -> None:
    """Say for how many batches without output requests may preempt each other."""
    # The first of a running list that nobody passes has its prefill done after as many batches as
    # tokens.
    pools.most_barren = _MOST_BARREN + 16 * longest


def declared_of(
    server: Server, prompt: Ints32, declared: Ints32, priority: Ints32
) -> tuple[Ints, Ints]:
    """Return the most outputs that requests may make at a server, and what its queue sorts by."""
    usable, policy = server.usable_blocks, server.policy
    tokens = np.asarray(declared, np.int64)
    if usable is not None and server.memory is not None:
        most = policy.most_outputs(prompt, usable, server.memory.block_size)
        if most is not None:
            tokens = np.minimum(tokens, most)
    return tokens, policy.ranks_of(priority, prompt, tokens, server.order)
