"""Lists of records that are linked by fields of their own.

A list belongs to whoever has its two ends: a record with the fields ``first`` and ``last``, both -1
where it is empty (`penstock.kernel.records.ENDS`). What is in it is named by its place among
``rows``, an array of records. One record may be in several lists, each linked by another field.
"""

from collections.abc import Callable
from typing import Any

from penstock.kernel.compiled_code import uncounted


def _one_way(following: str) -> Callable[[Any, Any, int], None]:
    """Return what puts a record at the end of a list that is linked by one field."""

    @uncounted(inline=True)
    def append_to(rows: Any, ends: Any, place: int) -> None:
        rows[place][following] = -1
        if ends.first < 0:
            ends.first = place
        else:
            rows[ends.last][following] = place
        ends.last = place

    return append_to  # type: ignore[no-any-return]


def _two_ways(previous: str, following: str) -> tuple[Callable[..., None], ...]:
    """Return what puts a record at the end of a list that is linked by two fields, what puts it
    before another (-1: the end), and what takes it out.
    """

    @uncounted(inline=True)
    def append_to(rows: Any, ends: Any, place: int) -> None:
        last = ends.last
        rows[place][previous] = last
        rows[place][following] = -1
        if last < 0:
            ends.first = place
        else:
            rows[last][following] = place
        ends.last = place

    @uncounted(inline=True)
    def insert(rows: Any, ends: Any, place: int, after: int) -> None:
        before = rows[after][previous]
        rows[place][previous] = before
        rows[place][following] = after
        rows[after][previous] = place
        if before < 0:
            ends.first = place
        else:
            rows[before][following] = place

    @uncounted(inline=True)
    def take_out(rows: Any, ends: Any, place: int) -> None:
        before = rows[place][previous]
        after = rows[place][following]
        if before < 0:
            ends.first = after
        else:
            rows[before][following] = after
        if after < 0:
            ends.last = before
        else:
            rows[after][previous] = before

    return append_to, insert, take_out


# Requests that wait, in whatever queue; slots of the batch that is being formed, and of those who
# leave when it ends.
append_row = _one_way("next")
append_served = _one_way("served_next")
append_leaving = _one_way("chain")

# Slots in their order, and those who join when the batch ends; blocks that nobody uses, and those
# whose names fall into the same bucket; nodes that may be given up.
append, insert_before, unlink = _two_ways("previous", "next")
append_joined, _, unlink_joined = _two_ways("previous_joined", "next_joined")
append_unused, _, unlink_unused = _two_ways("previous_free", "next_free")
append_named, _, unlink_named = _two_ways("previous_named", "next_named")
append_leaf, insert_leaf, unlink_leaf = _two_ways("older", "newer")


# -- what is not linked


@uncounted(inline=True)
def insert_in_order(values: Any, begin: int, end: int, value: int) -> None:
    """Put a number among those between two places of an array, which rise; few are larger."""
    place = end
    while place > begin and values[place - 1] > value:
        values[place] = values[place - 1]
        place -= 1
    values[place] = value


@uncounted()
def push(heap: Any, size: int, tick: int, request: int) -> None:
    """Put a request that is due at a tick into a heap of so many."""
    place = size
    while place > 0:
        above = (place - 1) >> 1
        if heap[above, 0] < tick or (heap[above, 0] == tick and heap[above, 1] < request):
            break
        heap[place, 0], heap[place, 1] = heap[above, 0], heap[above, 1]
        place = above
    heap[place, 0], heap[place, 1] = tick, request


@uncounted()
def pop(heap: Any, size: int) -> Any:
    """Take the first request out of a heap in which so many are left."""
    first = heap[0, 1]
    tick, request = heap[size, 0], heap[size, 1]
    place = 0
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        if below + 1 < size and (
            heap[below + 1, 0] < heap[below, 0]
            or (heap[below + 1, 0] == heap[below, 0] and heap[below + 1, 1] < heap[below, 1])
        ):
            below += 1
        if tick < heap[below, 0] or (tick == heap[below, 0] and request < heap[below, 1]):
            break
        heap[place, 0], heap[place, 1] = heap[below, 0], heap[below, 1]
        place = below
    heap[place, 0], heap[place, 1] = tick, request
    return first


@uncounted(inline=True)
def take_slot(world: Any) -> Any:
    """Return a slot that nobody has; there is room (`events`)."""
    place = world.clock[0].free_slot
    world.clock[0].free_slot = world.slots[place].chain
    return place


@uncounted(inline=True)
def give_up_slot(world: Any, place: int) -> None:
    """Let nobody have a slot."""
    world.slots[place].chain = world.clock[0].free_slot
    world.clock[0].free_slot = place
