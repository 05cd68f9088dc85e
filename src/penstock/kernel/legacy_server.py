"""What the older loops take from the loop of one server as it was: places in int64 arrays, and
functions on them.

`penstock.kernel.server` has the same on records.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from penstock.kernel.composition import BITS, HALF, ticks_of, ticks_of_run
from penstock.kernel.counting import Multiset, add

# What `advance` returns:
DONE = 0  # everything that arrived is finished, or `until` is reached
MORE = 1  # the next arrival is not known yet
PAUSED = 2  # the step allowance is used up
FULL = 3  # a multiset or a row buffer needs room
IDLE_POLICY = 4  # the policy formed an empty batch although a non-empty one was possible
BAD_POLICY = 5  # the policy asked for a negative number of tokens

NEVER = 2**62
"""A tick, an epoch or a limit that is never reached."""

# What `advance` records beside first and last token times.
RECORD_NONE, RECORD_BATCHES, RECORD_ALLOCATIONS = 0, 1, 2

# Options, an int64 array.
(
    TOKEN_BUDGET,
    BATCH_SIZE,
    RUNNING_SCOPE,
    ENGINE,
    COMPRESS,
    RECORD,
    GAP_BITS,
    FINAL,
    UNTIL,
    STEPS,
    SEES,
) = range(11)
# Of a closed loop: how many, and ticks between an answer and the next request; 0: open.
CLIENTS, PAUSE = (
    11,
    12,
)
N_OPTIONS = 13

# State, an int64 array. Requests are named by their place in the workload arrays handed in.
(
    NOW,  # tick: the last batch ended, or an arrival ended an idle time
    ARRIVED,  # requests that have arrived by NOW
    HEAD,  # first request whose prompt is not yet wholly scheduled
    VISIBLE,  # end of the prompts the policy may see
    VISIBLE_TOKENS,  # their unprocessed tokens
    HEAD_DONE,  # tokens of the HEAD prompt already scheduled
    DECODING,  # requests in decode: linked ones, and those that never decoded
    FRESH,  # first request that may be in decode without having decoded
    LINKED,  # requests that have decoded and are not finished
    EPOCH,  # decode batches so far
    NEXT_DUE,  # epoch at which the next linked request finishes, if every batch serves all
    FIRST_SLOT,  # list of linked requests, oldest first
    LAST_SLOT,
    FREE_SLOT,
    FLIGHT_START,  # the last batch, or run of equal batches: for the series
    FLIGHT_TICKS,
    FLIGHT_TOKENS,
    FLIGHT_END,
    BEFORE_STARTED,  # token and request counts before that flight
    BEFORE_COMPLETED,
    BEFORE_FINISHED,
    STARTED,  # tokens in batches that started
    COMPLETED,  # tokens in batches that ended
    FINISHED,  # requests
    BATCHES,
    BUSY,  # ticks
    SEEN,  # arrivals counted into the series
    SEEN_TOKENS,
    DROPPED,  # requests before the workload arrays' first row
    SERIES_ROWS,
    SERIES_STEP,
    SEGMENTS,
    STALL_SUM,  # ticks, below CARRY
    STALL_SUM_CARRY,  # units of CARRY ticks
    STALLS_USED,  # distinct stalls in the multiset
    MIXES_USED,  # distinct mixes in the multiset
    BATCH_ROWS,
    ALLOCATION_ROWS,
    WAITING_TOKENS,  # unprocessed prompt tokens of all that wait
    DECODE_TOKENS,  # decode iterations still to come of those in decode
    ARRIVED_TOKENS,  # prompt tokens of all that arrived
    FINISHED_DECODES,  # decode iterations of all that finished
    CONTEXT_BASE,  # tokens before the next decodes of all linked requests, less LINKED * EPOCH
    # where the batch time depends on the composition: of the first batch of that flight,
    FLIGHT_COST,
    FLIGHT_RISE,  # how much more each next one costs,
    FLIGHT_BATCHES,  # and how many there are
) = range(46)
N_STATE = 46

# Slots, one column per linked request.
SLOT_REQUEST, SLOT_DUE, SLOT_PREV, SLOT_NEXT, SLOT_CHAIN = range(5)
N_SLOT_ROWS = 5

# Tallies, one column per token load or number of decode tokens: what nearly every batch adds to.
TALLY_GAPS, TALLY_FULL = range(2)
N_TALLIES = 2

MOST_CELLS = 2**17
"""Batch compositions that have a counter of their own; others share a multiset."""

MIX_TICKS = 1 << 62
"""Added to a composition's key in that multiset, counts the ticks of its batches instead of them.
"""

# Segments, one column each, the oldest requests on top of the stack.
SEGMENT_COUNT, SEGMENT_TIME = range(2)

CARRY_BITS = 31
CARRY = 2**CARRY_BITS
SERIES_INSTANTS = 2000

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_ONE = np.uint64(1)
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_BIT_INDEX = np.zeros(64, np.int64)
for _bit in range(64):
    _BIT_INDEX[(((1 << _bit) * 0x03F79D71B4CB0A89) % 2**64) >> 58] = _bit


@njit(cache=True)
def _lowest_bit(word: int) -> Any:
    """Index of the lowest bit that is set in a non-zero word."""
    lone = word & (~word + _ONE)
    return _BIT_INDEX[(lone * _DE_BRUIJN) >> np.uint64(58)]


@njit(cache=True)
def next_due_epoch(bits: Words, epoch: int) -> Any:
    """Return the first epoch after ``epoch`` whose bucket is not empty, or NEVER."""
    size = bits.size * 64
    start = (epoch + 1) & (size - 1)
    index = start >> 6
    word = (bits[index] >> np.uint64(start & 63)) << np.uint64(start & 63)
    for _ in range(bits.size + 1):
        if word != 0:
            place = (index << 6) + _lowest_bit(word)
            return epoch + 1 + ((place - start) & (size - 1))
        index = (index + 1) & (bits.size - 1)
        word = bits[index]
    return NEVER


@njit(cache=True)
def chain(slots: Ints, heads: Ints, bits: Words, slot: int) -> None:
    """Put a slot into the bucket of its due epoch."""
    place = slots[SLOT_DUE, slot] & (heads.size - 1)
    slots[SLOT_CHAIN, slot] = heads[place]
    heads[place] = slot
    bits[place >> 6] |= _ONE << np.uint64(place & 63)


@njit(cache=True)
def unchain(slots: Ints, heads: Ints, bits: Words, slot: int) -> None:
    """Take a slot out of the bucket of its due epoch."""
    place = slots[SLOT_DUE, slot] & (heads.size - 1)
    if heads[place] == slot:
        heads[place] = slots[SLOT_CHAIN, slot]
        if heads[place] < 0:
            bits[place >> 6] &= ~(_ONE << np.uint64(place & 63))
        return
    other = heads[place]
    while slots[SLOT_CHAIN, other] != slot:
        other = slots[SLOT_CHAIN, other]
    slots[SLOT_CHAIN, other] = slots[SLOT_CHAIN, slot]


@njit(cache=True)
def send_next(options: Ints, arrival: Ints, before: int, finished: int, end: int) -> None:
    """Let the clients whose requests finished at ``end`` send their next ones: those in order that
    are left.
    """
    clients = options[CLIENTS]
    for request in range(before + clients, min(finished + clients, arrival.size)):
        arrival[request] = end + options[PAUSE]


@njit(cache=True)
def count_stall(state: Ints, stalls: Multiset, gap: int, count: int, bits: int) -> None:
    """Count a time between two tokens; keep only its leading ``bits`` binary digits if that is not
    0.
    """
    # In two parts: the product itself could overflow.
    low = state[STALL_SUM] + (gap & (CARRY - 1)) * count
    state[STALL_SUM] = low & (CARRY - 1)
    state[STALL_SUM_CARRY] += (gap >> CARRY_BITS) * count + (low >> CARRY_BITS)
    if bits > 0:
        shift = 0
        while (gap >> shift) >= (1 << bits):
            shift += 1
        if shift > 0:
            # The middle of what they stand for.
            gap = ((gap >> shift) << shift) + (1 << (shift - 1))
    state[STALLS_USED] += add(stalls, gap, count)


@njit(cache=True)
def count_run(
    state: Ints, stalls: Multiset, cost: int, rise: int, first: int, end: int, count: int, bits: int
) -> None:
    """Count the times of the batches first .. end - 1 of a run, ``count`` gaps each, as
    `count_stall` would.

    Batch i costs ``cost + i rise``; those whose times share their leading digits are counted at
    once.
    """
    ticks = ticks_of_run(cost + first * rise, rise, end - first)
    low = state[STALL_SUM] + (ticks & (CARRY - 1)) * count
    state[STALL_SUM] = low & (CARRY - 1)
    state[STALL_SUM_CARRY] += (ticks >> CARRY_BITS) * count + (low >> CARRY_BITS)
    while first < end:
        gap = ticks_of(cost + first * rise)
        shift = 0
        while (gap >> shift) >= (1 << bits):
            shift += 1
        place = gap >> shift
        beyond = end
        if rise > 0:  # the first batch that takes (place + 1) << shift ticks
            least = ((((place + 1) << shift) << BITS) - HALF - cost + rise - 1) // rise
            beyond = min(least, end)
        middle = (place << shift) + (1 << (shift - 1)) if shift > 0 else place
        state[STALLS_USED] += add(stalls, middle, count * (beyond - first))
        first = beyond
