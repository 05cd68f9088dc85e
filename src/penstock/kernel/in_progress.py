"""The batch in progress at a replica, or the run of equal ones, which an arrival may cut short."""

from typing import Any

from penstock.kernel.compiled_code import uncounted
from penstock.kernel.composition import batches_begun, batches_done, ticks_of_run
from penstock.kernel.due_epochs import NEVER
from penstock.kernel.lists import insert_in_order
from penstock.kernel.records import World


@uncounted(inline=True)
def set_end(world: World, server: int, tick: int) -> None:
    """Write down when the batch in progress at a replica ends."""
    ends = world.ends
    place = (ends.size >> 1) + server
    ends[place] = tick
    place >>= 1
    while place > 0:
        ends[place] = min(ends[2 * place], ends[2 * place + 1])
        place >>= 1


@uncounted(inline=True)
def first_ending(world: World) -> Any:
    """Return the replica whose batch ends first; of equal ones the first."""
    ends = world.ends
    place = 1
    while place < ends.size >> 1:
        place *= 2
        if ends[place] > ends[place >> 1]:
            place += 1
    return place - (ends.size >> 1)


@uncounted(inline=True)
def ticks_of_batches(replica: Any, repeat: int) -> Any:
    """Return the ticks of the first batches of a run."""
    if replica.plain < 0 and repeat > 1:  # later ones take longer
        return ticks_of_run(replica.cost, replica.rise, repeat)
    return replica.ticks * repeat


@uncounted(inline=True)
def begun_before(run: Any, tick: int, most: int) -> Any:
    """Return how many of at most so many batches of a run start before a tick after its
    beginning.
    """
    passed = tick - run.start
    if run.plain < 0:
        return batches_begun(run.cost, run.rise, passed, most)
    if run.ticks * most > passed:  # seldom: divisions are slow
        return (passed + run.ticks - 1) // run.ticks
    return most


@uncounted(inline=True)
def ended_by(replica: Any, tick: int, most: int) -> Any:
    """Return how many of at most so many batches of a run have ended at a tick."""
    passed = tick - replica.start
    if replica.plain < 0:
        return batches_done(replica.cost, replica.rise, passed, most)
    return min(passed // replica.ticks, most)


@uncounted(inline=True)
def begun_again(replica: Any, tick: int) -> Any:
    """Return how many batches of the run in progress start before a tick, but for the first."""
    if replica.equal <= 1 or tick <= replica.start:
        return 0
    return begun_before(replica, tick, replica.equal) - 1


@uncounted(inline=True)
def set_length(world: World, server: int, repeat: int) -> None:
    """Let the run in progress have so many batches."""
    replica = world.servers[server]
    replica.equal = repeat
    set_end(world, server, replica.start + ticks_of_batches(replica, repeat))


@uncounted(inline=True)
def start(world: World, server: int, repeat: int) -> None:
    """Start a run of so many equal batches, of which all else is written down."""
    replica = world.servers[server]
    useful = replica.tokens - replica.rejected
    replica.unprocessed -= useful
    world.clock[0].future -= useful
    set_length(world, server, repeat)


@uncounted(inline=True)
def cut(world: World, server: int) -> None:
    """Let the run in progress end with the batch that is in progress now."""
    replica = world.servers[server]
    repeat = max(begun_before(replica, world.clock[0].now, replica.equal), 1)
    if repeat < replica.equal:
        set_length(world, server, repeat)


@uncounted(inline=True)
def touch(world: World, server: int) -> None:
    """Let a replica form a batch at this tick, in the order of replicas."""
    clock = world.clock[0]
    if world.servers[server].is_touched == 0:
        world.servers[server].is_touched = 1
        insert_in_order(world.touched, clock.formed, clock.touched, server)
        clock.touched += 1


@uncounted(inline=True)
def before_it_dies(world: World, server: int, repeat: int) -> Any:
    """Return how many of so many equal batches are one step: those that end before the replica
    dies.
    """
    if world.clock[0].next_outage < NEVER and world.health[server].dies < NEVER:
        repeat = max(ended_by(world.servers[server], world.health[server].dies, repeat), 1)
    return repeat


@uncounted(inline=True)
def within_the_run(world: World, replica: Any, repeat: int) -> Any:
    """Return how many of so many equal batches are one step: those that end before the
    simulation is to stop, and for whose rows there is room.
    """
    clock = world.clock[0]
    if clock.until < NEVER:
        repeat = max(ended_by(replica, clock.until, repeat), 1)
    if clock.record > 0:
        # Half of the rows is kept for what is in progress, shared out among the replicas.
        repeat = min(repeat, world.batch_rows.shape[0] // (2 * world.servers.size))
    return repeat
