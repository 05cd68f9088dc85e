"""Requests that run and requests that wait, where both can change places: the parts of the loop in
`engines`.

Running requests are *slots* in a list, in the order in which the engine keeps them. One in prefill
knows how many tokens are left; one in decode only the *epoch* (number of decode batches) at which
it is due, so that a batch that serves all of them touches none. Memory follows the same idea: a
decoding request takes a block every ``block size`` epochs, so counting requests by the remainder of
their epoch (*growth*) says what the next batch needs.

A request that is preempted leaves its slot and waits again, with what it must do anew in its row of
``resume``.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from penstock.kernel import blocks as memory
from penstock.kernel import legacy_server as server
from penstock.kernel.blocks import Cache, blocks_of, give_back, occupy
from penstock.kernel.legacy_server import (
    CONTEXT_BASE,
    DECODE_TOKENS,
    DROPPED,
    ENGINE,
    EPOCH,
    FREE_SLOT,
    HEAD,
    LAST_SLOT,
    SLOT_CHAIN,
    SLOT_DUE,
    SLOT_NEXT,
    SLOT_PREV,
    SLOT_REQUEST,
    WAITING_TOKENS,
    chain,
    unchain,
)

ARRIVED, DECODING, FIRST_SLOT, SEEN_TOKENS = (
    server.ARRIVED,
    server.DECODING,
    server.FIRST_SLOT,
    server.SEEN_TOKENS,
)
BLOCK_SIZE, FREE, REUSED = memory.BLOCK_SIZE, memory.FREE, memory.REUSED

# Options beyond those of `blocks`.
(
    RULE,  # which engine's rule forms batches: see below
    WATERMARK,  # blocks that an admission leaves free
    ADMISSION,  # of a policy of the seam: see below
    SWAP_TICKS,  # per block that is moved out or in; -1: preempted requests are computed again
    BY_PRIORITY,  # the queue is in order of priority, and the lowest of those that run is preempted
    GROWS,  # decoding requests take blocks as they go
    CHUNKED,  # prompts may be cut
    LONG_PREFILL,  # most tokens of a prompt in a batch beside others; 0: no limit (vllm)
    RESERVED,  # blocks that every request holds (vidur-orca, vidur-fastertransformer)
    MIXED,  # prefill and decode share batches (sglang)
    MOST_PREFILL,  # tokens of new prompts in a batch (sglang)
    CLIP,  # most future tokens counted for a request (sglang)
    RETRACT_STEPS,  # tokens that must be free for each request when others had to leave (sglang)
    CELL_COLUMNS,  # of `cells`: one more than there were slots at first
) = range(memory.N_OPTIONS, memory.N_OPTIONS + 14)
N_OPTIONS = memory.N_OPTIONS + 14

(
    SEAM,
    VLLM,
    VLLM_V0,
    SGLANG,
    TENSORRT,
    VIDUR_FASTERTRANSFORMER,
    VIDUR_ORCA,
    VIDUR_VLLM,
    VIDUR_SARATHI,
) = range(9)

INPUT, COMPLETION, OPTIMISTIC, STATIC = range(4)
"""What must be free before a request is admitted: its prompt; all it will ever need; a block; all,
and nobody runs.
"""

# State beyond that of `blocks`.
(
    RUNNING,  # requests, in prefill or decode
    PREFILLING,  # of them, in prefill
    SERVED,  # slots in prefill that the batch being formed serves
    SERVED_DECODES,  # decoding requests that it serves
    PREEMPTED,  # requests that forming it has preempted
    MOVED,  # blocks that it moves out or in
    # tick at which the decoding requests had their last token, all but those that know their own
    LAST_STEP,
    OWN,  # decoding requests that know their own
    RING_START,  # the ring of preempted requests that wait
    RING_SIZE,
    HEAP_SIZE,  # the heap of waiting requests, in order of priority
    QUEUED,  # first arrival that is not in the heap
    PREEMPTIONS,
    LOST,  # tokens that preempted requests had done and do again
    IS_FULL,  # admission has paused until a request finishes (sglang)
    RATIO_STEPS,  # decode batches since the ratio was set (sglang)
) = range(memory.N_STATE, memory.N_STATE + 16)
N_STATE = memory.N_STATE + 16

# Slots beyond those of `server`.
(
    SLOT_LEFT,  # prefill tokens left; 0: it decodes
    SLOT_TARGET,  # tokens of its prefill in all
    SLOT_TOTAL,  # tokens it has processed when it finishes
    SLOT_OUTPUTS,  # output tokens still to come when its prefill began
    SLOT_HELD,  # blocks, while it does not grow by decodes
    SLOT_LAST,  # tick of its last token, if it knows; NONE_YET; IN_STEP
    SLOT_TAKE,  # tokens in the batch being formed
) = range(server.N_SLOT_ROWS, server.N_SLOT_ROWS + 7)
N_SLOT_ROWS = server.N_SLOT_ROWS + 7

NONE_YET, IN_STEP = -1, -2

# Rows of `resume`, one per request.
(
    RESUME_TARGET, RESUME_OUTPUTS, RESUME_LAST, RESUME_DONE, RESUME_TIMES, RESUME_PRIORITY,
    RESUME_ARRIVAL, RESUME_ROW,
) = range(8)  # fmt: skip
N_RESUME = 8

PLENTY = 2**60
"""Free blocks where memory has no limit."""

Ints = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.int32]
Words = npt.NDArray[np.uint64]


@njit(cache=True, forceinline=True)
def done_by(state: Ints, slots: Ints, slot: int) -> Any:
    """Return the tokens that a running request has processed."""
    if slots[SLOT_LEFT, slot] > 0:
        return slots[SLOT_TARGET, slot] - slots[SLOT_LEFT, slot]
    return slots[SLOT_TOTAL, slot] - (slots[SLOT_DUE, slot] - state[EPOCH])


@njit(cache=True, forceinline=True)
def held_by(state: Ints, options: Ints, slots: Ints, slot: int) -> Any:
    """Return the blocks that a running request holds."""
    if options[GROWS] == 0 or slots[SLOT_LEFT, slot] > 0:
        return slots[SLOT_HELD, slot]
    # Its block is taken, its token not yet counted.
    growing = 1 if slots[SLOT_TAKE, slot] > 0 else 0
    return blocks_of(done_by(state, slots, slot) + growing, options[BLOCK_SIZE])


@njit(cache=True, forceinline=True)
def needs(state: Ints, options: Ints, slots: Ints, slot: int) -> Any:
    """Return the blocks, 0 or 1, that the next token of a decoding request needs."""
    if options[GROWS] == 0 or done_by(state, slots, slot) % options[BLOCK_SIZE] != 0:
        return 0
    return 1


@njit(cache=True, forceinline=True)
def growth_at(options: Ints, growth: Ints, epoch: int) -> Any:
    """Return the blocks that all decoding requests need together."""
    return growth[epoch % options[BLOCK_SIZE]] if options[GROWS] != 0 else 0


@njit(cache=True, forceinline=True)
def count_growth(options: Ints, slots: Ints, growth: Ints, slot: int, change: int) -> None:
    """Count a decoding request under the epochs at which it needs a block, or no longer."""
    growth[(slots[SLOT_DUE, slot] - slots[SLOT_TOTAL, slot]) % options[BLOCK_SIZE]] += change


@njit(cache=True, forceinline=True)
def append(state: Ints, slots: Ints, slot: int) -> None:
    """Put a slot at the end of the list."""
    last = state[LAST_SLOT]
    slots[SLOT_PREV, slot] = last
    slots[SLOT_NEXT, slot] = -1
    if last < 0:
        state[FIRST_SLOT] = slot
    else:
        slots[SLOT_NEXT, last] = slot
    state[LAST_SLOT] = slot


@njit(cache=True)
def insert_before(state: Ints, slots: Ints, slot: int, following: int) -> None:
    """Put a slot before another of the list."""
    previous = slots[SLOT_PREV, following]
    slots[SLOT_PREV, slot] = previous
    slots[SLOT_NEXT, slot] = following
    slots[SLOT_PREV, following] = slot
    if previous < 0:
        state[FIRST_SLOT] = slot
    else:
        slots[SLOT_NEXT, previous] = slot


@njit(cache=True, forceinline=True)
def unlink(state: Ints, slots: Ints, slot: int) -> None:
    """Take a slot out of the list."""
    previous = slots[SLOT_PREV, slot]
    following = slots[SLOT_NEXT, slot]
    if previous < 0:
        state[FIRST_SLOT] = following
    else:
        slots[SLOT_NEXT, previous] = following
    if following < 0:
        state[LAST_SLOT] = previous
    else:
        slots[SLOT_PREV, following] = previous


@njit(cache=True, forceinline=True)
def release(state: Ints, slots: Ints, slot: int) -> None:
    """Give up the slot of a request that leaves the list."""
    unlink(state, slots, slot)
    slots[SLOT_CHAIN, slot] = state[FREE_SLOT]
    state[FREE_SLOT] = slot
    state[RUNNING] -= 1


# -- the waiting queue: a ring of preempted requests before the arrivals, or one heap of all


@njit(cache=True)
def _comes_before(resume: Ints, one: int, other: int) -> Any:
    a, b = resume[one, RESUME_PRIORITY], resume[other, RESUME_PRIORITY]
    return a < b or (a == b and one < other)


@njit(cache=True)
def heap_push(state: Ints, heap: Ints, resume: Ints, request: int) -> None:
    """Put a request into the heap."""
    place = state[HEAP_SIZE]
    state[HEAP_SIZE] = place + 1
    while place > 0:
        parent = (place - 1) // 2
        if not _comes_before(resume, request, heap[parent]):
            break
        heap[place] = heap[parent]
        place = parent
    heap[place] = request


@njit(cache=True)
def _heap_pop(state: Ints, heap: Ints, resume: Ints) -> Any:
    first = heap[0]
    size = state[HEAP_SIZE] - 1
    state[HEAP_SIZE] = size
    request = heap[size]
    place = 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _comes_before(resume, heap[child + 1], heap[child]):
            child += 1
        if not _comes_before(resume, heap[child], request):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = request
    return first


@njit(cache=True, forceinline=True)
def waiting(state: Ints) -> Any:
    """Return how many requests wait."""
    return state[ARRIVED] - state[HEAD] + state[RING_SIZE] + state[HEAP_SIZE]


@njit(cache=True, forceinline=True)
def first_waiting(state: Ints, options: Ints, ring: Ints) -> Any:
    """Return the request that is served next, or -1."""
    if options[BY_PRIORITY] != 0:
        return ring[0, 0] if state[HEAP_SIZE] > 0 else -1
    if state[RING_SIZE] > 0:
        place = state[RING_START]
        if ring[1, place] <= state[HEAD]:  # it stands before the arrivals from its ticket on
            return ring[0, place]
    return state[HEAD] if state[HEAD] < state[ARRIVED] else -1


@njit(cache=True, forceinline=True)
def pop_waiting(state: Ints, options: Ints, ring: Ints, resume: Ints) -> Any:
    """Take the request that is served next out of the queue."""
    if options[BY_PRIORITY] != 0:
        return _heap_pop(state, ring[0], resume)
    request = first_waiting(state, options, ring)
    if request == state[HEAD]:
        state[HEAD] += 1
    else:
        state[RING_START] = (state[RING_START] + 1) & (ring.shape[1] - 1)
        state[RING_SIZE] -= 1
    return request


@njit(cache=True)
def wait_first(state: Ints, options: Ints, ring: Ints, resume: Ints, request: int) -> None:
    """Put a request at the head of the queue, or where its priority puts it."""
    if options[BY_PRIORITY] != 0:
        heap_push(state, ring[0], resume, request)
        return
    state[RING_START] = (state[RING_START] - 1) & (ring.shape[1] - 1)
    state[RING_SIZE] += 1
    ring[0, state[RING_START]] = request
    ring[1, state[RING_START]] = 0


@njit(cache=True)
def wait_last(state: Ints, ring: Ints, request: int) -> None:
    """Put a request behind all that have arrived."""
    place = (state[RING_START] + state[RING_SIZE]) & (ring.shape[1] - 1)
    state[RING_SIZE] += 1
    ring[0, place] = request
    ring[1, place] = state[ARRIVED]


# -- admission, service and preemption


@njit(cache=True, forceinline=True)
def target_of(resume: Ints, prompt: Tokens, request: int) -> Any:
    """Return the tokens that the prefill of a waiting request has: its prompt, and the outputs it
    lost.
    """
    return resume[request, RESUME_TARGET] if resume[request, RESUME_TIMES] > 0 else prompt[request]


@njit(cache=True, forceinline=True)
def outputs_of(resume: Ints, output: Tokens, request: int) -> Any:
    """Return the output tokens that a waiting request still has to bring."""
    return resume[request, RESUME_OUTPUTS] if resume[request, RESUME_TIMES] > 0 else output[request]


@njit(cache=True, forceinline=True)
def peak_of(options: Ints, resume: Ints, prompt: Tokens, output: Tokens, request: int) -> Any:
    """Return the most tokens that a waiting request will ever hold."""
    return (
        target_of(resume, prompt, request) + outputs_of(resume, output, request) - options[ENGINE]
    )


@njit(cache=True, forceinline=True)
def admit(
    state: Ints,
    options: Ints,
    slots: Ints,
    resume: Ints,
    prompt: Tokens,
    output: Tokens,
    request: int,
    blocks: int,
    cache: Cache | None = None,
    hits: int = 0,
) -> Any:
    """Put a request that has left the queue at the end of the running list, holding so many blocks.

    ``hits`` of them have the beginning of its prompt already.
    """
    slot = state[FREE_SLOT]
    state[FREE_SLOT] = slots[SLOT_CHAIN, slot]
    target = target_of(resume, prompt, request)
    slots[SLOT_REQUEST, slot] = request
    slots[SLOT_TARGET, slot] = target
    slots[SLOT_LEFT, slot] = target
    slots[SLOT_OUTPUTS, slot] = outputs_of(resume, output, request)
    slots[SLOT_TOTAL, slot] = peak_of(options, resume, prompt, output, request)
    slots[SLOT_HELD, slot] = blocks
    slots[SLOT_LAST, slot] = resume[request, RESUME_LAST]
    slots[SLOT_TAKE, slot] = 0
    append(state, slots, slot)
    state[RUNNING] += 1
    state[PREFILLING] += 1
    if cache is None:
        state[FREE] -= blocks
    else:
        occupy(
            state, cache, state[DROPPED] + request, resume[request, RESUME_ROW], slot, hits, blocks
        )
        tokens = hits * options[BLOCK_SIZE]
        slots[SLOT_LEFT, slot] -= tokens
        state[WAITING_TOKENS] -= tokens
        state[SEEN_TOKENS] -= tokens
        state[REUSED] += tokens
    return slot


@njit(cache=True, forceinline=True)
def serve_prefill(state: Ints, slots: Ints, served: Ints, slot: int, tokens: int) -> None:
    """Put so many prompt tokens into the batch."""
    slots[SLOT_TAKE, slot] = tokens
    state[WAITING_TOKENS] -= tokens
    served[state[SERVED]] = slot
    state[SERVED] += 1


@njit(cache=True, forceinline=True)
def begin_decode(
    state: Ints,
    options: Ints,
    slots: Ints,
    heads: Ints,
    bits: Words,
    growth: Ints,
    slot: int,
    iterations: int,
) -> None:
    """Let a request decode from the next batch on."""
    slots[SLOT_LEFT, slot] = 0
    slots[SLOT_DUE, slot] = state[EPOCH] + iterations
    chain(slots, heads, bits, slot)
    count_growth(options, slots, growth, slot, 1)
    state[DECODING] += 1
    state[DECODE_TOKENS] += iterations
    state[CONTEXT_BASE] += slots[SLOT_TOTAL, slot] - slots[SLOT_DUE, slot]


@njit(cache=True, forceinline=True)
def end_decode(
    state: Ints, options: Ints, slots: Ints, heads: Ints, bits: Words, growth: Ints, slot: int
) -> None:
    """Take a request that decodes out of the calendar."""
    unchain(slots, heads, bits, slot)
    count_growth(options, slots, growth, slot, -1)
    state[DECODING] -= 1
    state[CONTEXT_BASE] -= slots[SLOT_TOTAL, slot] - slots[SLOT_DUE, slot]
    if slots[SLOT_LAST, slot] == IN_STEP:
        slots[SLOT_LAST, slot] = state[LAST_STEP]
    else:
        state[OWN] -= 1


@njit(cache=True)
def preempt(
    state: Ints,
    options: Ints,
    slots: Ints,
    heads: Ints,
    bits: Words,
    growth: Ints,
    served: Ints,
    resume: Ints,
    slot: int,
    cache: Cache | None = None,
) -> Any:
    """Take a running request out, with what it has to do again in `resume`; return it, to be
    queued.
    """
    request = slots[SLOT_REQUEST, slot]
    done = done_by(state, slots, slot)
    held = held_by(state, options, slots, slot)
    # What is in the batch has its name already.
    full = (done + slots[SLOT_TAKE, slot]) // options[BLOCK_SIZE]
    swaps = options[SWAP_TICKS] >= 0
    resume[request, RESUME_TARGET] = slots[SLOT_TARGET, slot]
    resume[request, RESUME_OUTPUTS] = slots[SLOT_OUTPUTS, slot]
    resume[request, RESUME_DONE] = done if swaps else 0
    resume[request, RESUME_TIMES] += 1
    if slots[SLOT_LEFT, slot] > 0:
        state[PREFILLING] -= 1
        state[WAITING_TOKENS] += slots[SLOT_TAKE, slot] - slots[SLOT_LEFT, slot]
        if slots[SLOT_TAKE, slot] > 0:  # it was served in this batch already
            place = 0
            while served[place] != slot:
                place += 1
            state[SERVED] -= 1
            while place < state[SERVED]:
                served[place] = served[place + 1]
                place += 1
        if (
            options[RULE] == VIDUR_SARATHI
        ):  # what it had not processed becomes output: a defect of Vidur's
            resume[request, RESUME_TARGET] = done
            resume[request, RESUME_OUTPUTS] = (
                slots[SLOT_TARGET, slot] + slots[SLOT_OUTPUTS, slot] - done
            )
    else:
        left = slots[SLOT_DUE, slot] - state[EPOCH]
        state[DECODE_TOKENS] -= left
        end_decode(state, options, slots, heads, bits, growth, slot)
        if not swaps:
            resume[request, RESUME_TARGET] = slots[SLOT_TOTAL, slot] + options[ENGINE] - left
            resume[request, RESUME_OUTPUTS] = left
        else:
            resume[request, RESUME_OUTPUTS] = left + options[ENGINE]
            resume[request, RESUME_TARGET] = slots[SLOT_TOTAL, slot] - left
        if slots[SLOT_TAKE, slot] > 0:
            state[SERVED_DECODES] -= 1
    resume[request, RESUME_LAST] = slots[SLOT_LAST, slot]
    state[WAITING_TOKENS] += resume[request, RESUME_TARGET] - resume[request, RESUME_DONE]
    slots[SLOT_TAKE, slot] = 0
    if cache is None:
        state[FREE] += held
    else:
        row = resume[request, RESUME_ROW]
        give_back(
            state, cache, state[DROPPED] + request, row, slot, slots[SLOT_HELD, slot], held, full
        )
    release(state, slots, slot)
    state[PREEMPTED] += 1
    state[PREEMPTIONS] += 1
    if swaps:
        state[MOVED] += held
    else:
        state[LOST] += done
        state[SEEN_TOKENS] += done
    return request


@njit(cache=True)
def victim_of(state: Ints, options: Ints, slots: Ints, resume: Ints) -> Any:
    """Return who is preempted next: the last of the list, or the one whose priority puts it
    last.
    """
    if options[BY_PRIORITY] == 0:
        return state[LAST_SLOT]
    victim = state[FIRST_SLOT]
    slot = slots[SLOT_NEXT, victim]
    while slot >= 0:
        one, other = slots[SLOT_REQUEST, victim], slots[SLOT_REQUEST, slot]
        tie = resume[one, RESUME_PRIORITY] == resume[other, RESUME_PRIORITY]
        tie = tie and resume[one, RESUME_ARRIVAL] == resume[other, RESUME_ARRIVAL]
        if _comes_before(resume, one, other) and not (
            tie and options[RULE] == VLLM
        ):  # its first of equal ones leaves
            victim = slot
        slot = slots[SLOT_NEXT, slot]
    return victim


@njit(cache=True)
def keep_sorted(state: Ints, slots: Ints, slot: int) -> None:
    """Move the last slot of the list to where its arrival puts it."""
    following = slots[SLOT_PREV, slot]
    if following < 0 or slots[SLOT_REQUEST, following] < slots[SLOT_REQUEST, slot]:
        return
    unlink(state, slots, slot)
    while slots[SLOT_PREV, following] >= 0 and (
        slots[SLOT_REQUEST, slots[SLOT_PREV, following]] > slots[SLOT_REQUEST, slot]
    ):
        following = slots[SLOT_PREV, following]
    insert_before(state, slots, slot, following)
