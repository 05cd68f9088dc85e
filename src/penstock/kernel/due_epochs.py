"""A calendar of requests that decode: when each is due, so that none counts its tokens down.

An *epoch* counts decode batches. A request with r iterations left is due at epoch + r, and lies in
a ring of buckets by due epoch; a bitmap over the ring gives the next one to finish in O(1).
``slots`` is any array of records with the fields ``due`` and ``chain``. Where all of them decode
at every batch but now and then, they are `LINKED`: in a list, the oldest first, of whom a batch
serves the first ones.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.kernel.compiled_code import uncounted
from penstock.kernel.lists import append

NEVER = 2**62
"""A tick, an epoch or a limit that is never reached."""

at: Any = np.uintp
"""Of an index that is not negative, as an unsigned number: of others Numba asks whether they count
from the end, which costs a tenth of a loop's time. Columns (`by_reference`) need none.
"""

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Slots = npt.NDArray[np.void]

_ONE = np.uint64(1)
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_BIT_INDEX = np.zeros(64, np.int64)
for _bit in range(64):
    _BIT_INDEX[(((1 << _bit) * 0x03F79D71B4CB0A89) % 2**64) >> 58] = _bit


@uncounted(inline=True)
def _lowest_bit(word: int) -> Any:
    """Index of the lowest bit that is set in a non-zero word."""
    lone = word & (~word + _ONE)
    return _BIT_INDEX[(lone * _DE_BRUIJN) >> np.uint64(58)]


@uncounted()
def next_due_epoch(bits: Words, epoch: int) -> Any:
    """Return the first epoch after ``epoch`` whose bucket is not empty, or NEVER."""
    size = bits.size * 64
    start = (epoch + 1) & (size - 1)
    index = start >> 6
    word = (bits[at(index)] >> np.uint64(start & 63)) << np.uint64(start & 63)
    for _ in range(bits.size + 1):
        if word != 0:
            bucket = (index << 6) + _lowest_bit(word)
            return epoch + 1 + ((bucket - start) & (size - 1))
        index = (index + 1) & (bits.size - 1)
        word = bits[at(index)]
    return NEVER


@uncounted(inline=True)
def chain(slots: Slots, heads: Ints, bits: Words, slot: int) -> None:
    """Put a slot into the bucket of its due epoch."""
    bucket = slots[at(slot)].due & (heads.size - 1)
    slots[at(slot)].chain = heads[at(bucket)]
    heads[at(bucket)] = slot
    bits[at(bucket >> 6)] |= _ONE << np.uint64(bucket & 63)


@uncounted(inline=True)
def empty_bucket(heads: Ints, bits: Words, epoch: int) -> Any:
    """Return the first slot that is due at an epoch, or -1, and leave its bucket empty."""
    bucket = epoch & (heads.size - 1)
    first = heads[at(bucket)]
    if first >= 0:
        heads[at(bucket)] = -1
        bits[at(bucket >> 6)] &= ~(_ONE << np.uint64(bucket & 63))
    return first


@uncounted()
def unchain(slots: Slots, heads: Ints, bits: Words, slot: int) -> None:
    """Take a slot out of the bucket of its due epoch."""
    bucket = slots[at(slot)].due & (heads.size - 1)
    if heads[at(bucket)] == slot:
        heads[at(bucket)] = slots[at(slot)].chain
        if heads[at(bucket)] < 0:
            bits[at(bucket >> 6)] &= ~(_ONE << np.uint64(bucket & 63))
        return
    other = heads[at(bucket)]
    while slots[at(other)].chain != slot:
        other = slots[at(other)].chain
    slots[at(other)].chain = slots[at(slot)].chain


@uncounted()
def put_off(slots: Slots, heads: Ints, bits: Words, slot: int, epochs: int) -> None:
    """Let a slot be due so many epochs later, or, below 0, earlier."""
    unchain(slots, heads, bits, slot)
    slots[at(slot)].due += epochs
    chain(slots, heads, bits, slot)


# -- those that are linked


@uncounted(inline=True)
def link(slots: Slots, heads: Ints, bits: Words, linked: Any, slot: int, decodes: int) -> None:
    """Put a slot behind those that are linked, with so many decodes to come."""
    due = linked.epoch + decodes
    slots[at(slot)].due = due
    append(slots, linked, slot)
    chain(slots, heads, bits, slot)
    linked.due = min(linked.due, due)
    linked.count += 1


@uncounted(inline=True)
def move_epoch(
    slots: Slots, heads: Ints, bits: Words, linked: Any, served: int, batches: int
) -> None:
    """Let the epoch move on by a batch that serves the first ones, or by equal ones that serve all.

    Of a batch too small for all, either the others are put off, or the epoch stays and those served
    come closer, whichever are fewer.
    """
    if served == linked.count:
        linked.epoch += batches
    elif 2 * served < linked.count:
        linked.context += served
        slot = linked.first
        for _ in range(served):
            put_off(slots, heads, bits, slot, -1)
            slot = slots[at(slot)].next
    else:
        others = linked.count - served
        linked.epoch += 1
        linked.context -= others
        slot = linked.last
        for _ in range(others):
            put_off(slots, heads, bits, slot, 1)
            slot = slots[at(slot)].previous


@uncounted(inline=True)
def find_due(bits: Words, linked: Any) -> None:
    """Find anew when the next one is due."""
    linked.due = NEVER
    if linked.count > 0:
        linked.due = next_due_epoch(bits, linked.epoch)
