"""Lines: where requests wait and are served in order, at one replica of a network.

As in `server`, prompts wait in order of arrival, and requests that decode are due at an epoch, so
that none counts its tokens down. A network has many lines and no contiguous prompts, so those that
wait are linked through their rows.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.kernel.compiled_code import uncounted as uncounted
from penstock.kernel.legacy_server import (
    NEVER,
    SLOT_CHAIN,
    SLOT_DUE,
    SLOT_NEXT,
    SLOT_PREV,
    SLOT_REQUEST,
    chain,
    next_due_epoch,
    unchain,
)

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]
Words = npt.NDArray[np.uint64]


# One row per request.
(
    LEFT,  # unprocessed prompt tokens
    DECODES,  # decode iterations; in a line by age those still to come
    SERVER,  # replica, -1 before it is routed
    NEXT,  # the one behind it in whatever queue it is in, or -1
    PENDING,  # requests that must finish before it is released; once released, its phase
    STAGE,
    CHILD,  # offset of the first request that its end releases; 0: none
    SIBLING,  # offset of the next one that its parent's end releases; 0: none
) = range(8)
N_ROW = 8

# Phases of a request, kept in PENDING once it is released.
WAITING, STARTED, IN_DECODE, DECODES_NOW = 0, -1, -2, -3

# One row per line.
(
    # requests in prefill, without those whose last prompt token is in the batch in progress
    PROMPTS,
    PROMPT_TOKENS,  # their unprocessed tokens
    PROMPT_HEAD,  # queue of those, in order of arrival; by age: of all requests
    PROMPT_TAIL,
    PARTIAL,  # whether the first of them has been started
    OPEN,  # whether it has been cut in the batch being formed
    DECODING,  # requests in decode
    FRESH_HEAD,  # queue of those that have not decoded yet
    FRESH_TAIL,
    LINKED,  # requests that have decoded: in slots, in order of arrival
    FIRST_LINKED,
    LAST_LINKED,
    LINE_EPOCH,  # decode batches of the line
    LINE_DUE,  # epoch at which the next linked one finishes, if all are served
    PREFILL,  # tokens of the line in the batch in progress
    DECODE,
    DONE_HEAD,  # queue of prompts whose last token is in it
    DONE_TAIL,
    LINE_ARRIVED,
    LINE_ARRIVED_TOKENS,
    LINE_FINISHED,
    LINE_FINISHED_DECODES,
    LINE_DECODE_TOKENS,  # decode iterations still to come
) = range(23)
N_LINE = 23

_LINKS = (
    PROMPT_HEAD,
    PROMPT_TAIL,
    FRESH_HEAD,
    FRESH_TAIL,
    FIRST_LINKED,
    LAST_LINKED,
    DONE_HEAD,
    DONE_TAIL,
)
REQUEST_LINKS = (PROMPT_HEAD, PROMPT_TAIL, FRESH_HEAD, FRESH_TAIL, DONE_HEAD, DONE_TAIL)
"""Fields of a line that hold requests; they move when rows are dropped."""


def new_lines(count: int) -> Ints:
    """Return so many empty lines."""
    lines = np.zeros((count, N_LINE), np.int64)
    lines[:, _LINKS] = -1
    lines[:, LINE_DUE] = NEVER
    return lines


@uncounted(inline=True)
def append(line: Ints, rows: Rows, head: int, request: int) -> None:
    """Put a request at the end of the queue whose head and tail are two neighbouring fields."""
    rows[request, NEXT] = -1
    if line[head] < 0:
        line[head] = request
    else:
        rows[line[head + 1], NEXT] = request
    line[head + 1] = request


@uncounted(inline=True)
def pop(line: Ints, rows: Rows, head: int) -> Any:
    """Take the first request off such a queue."""
    request = line[head]
    line[head] = rows[request, NEXT]
    return request


@uncounted()
def insert_by_age(line: Ints, rows: Rows, request: int) -> None:
    """Put a request into its place in a line by age: jobs are numbered in order of arrival,
    requests by job.
    """
    if line[PROMPT_HEAD] < 0 or line[PROMPT_TAIL] < request:
        append(line, rows, PROMPT_HEAD, request)
        return
    before, after = -1, line[PROMPT_HEAD]
    while after < request:
        before, after = after, rows[after, NEXT]
    rows[request, NEXT] = after
    if before < 0:
        line[PROMPT_HEAD] = request
    else:
        rows[before, NEXT] = request


@uncounted()
def visible_tokens(line: Ints, rows: Rows, prompts: int) -> Any:
    """Return the unprocessed tokens of the first prompts."""
    if prompts == line[PROMPTS]:
        return line[PROMPT_TOKENS]
    tokens = 0
    request = line[PROMPT_HEAD]
    for _ in range(prompts):
        tokens += rows[request, LEFT]
        request = rows[request, NEXT]
    return tokens


@uncounted()
def take_prompts(line: Ints, rows: Rows, tokens: int, most: int) -> Any:
    """Put up to so many prompt tokens, of at most so many requests, into the batch; return both
    counts.

    A request that this batch has cut already is not counted again.
    """
    taken = served = 0
    counted = line[OPEN]
    while tokens > taken and line[PROMPTS] > 0 and (served < most or counted != 0):
        request = line[PROMPT_HEAD]
        take = min(rows[request, LEFT], tokens - taken)
        rows[request, LEFT] -= take
        taken += take
        served += 1 - counted
        counted = 0
        line[PARTIAL] = line[OPEN] = rows[request, LEFT] > 0
        if rows[request, LEFT] == 0:
            line[PROMPTS] -= 1
            pop(line, rows, PROMPT_HEAD)
            append(line, rows, DONE_HEAD, request)
    line[PROMPT_TOKENS] -= taken
    line[PREFILL] += taken
    return taken, served


@uncounted()
def link(
    line: Ints,
    rows: Rows,
    slots: Ints,
    heads: Ints,
    bits: Words,
    free: int,
    first_token: Ints,
    end: int,
) -> Any:
    """Give slots to fresh requests until the batch's decodes have one each; return the next free
    slot.
    """
    while line[LINKED] < line[DECODE]:
        request = pop(line, rows, FRESH_HEAD)
        if first_token[request] < 0:
            first_token[request] = end
        slot = free
        free = slots[SLOT_CHAIN, slot]
        last = line[LAST_LINKED]
        slots[SLOT_REQUEST, slot] = request
        slots[SLOT_DUE, slot] = line[LINE_EPOCH] + rows[request, DECODES]
        slots[SLOT_PREV, slot] = last
        slots[SLOT_NEXT, slot] = -1
        if last < 0:
            line[FIRST_LINKED] = slot
        else:
            slots[SLOT_NEXT, last] = slot
        line[LAST_LINKED] = slot
        chain(slots, heads, bits, slot)
        line[LINE_DUE] = min(line[LINE_DUE], slots[SLOT_DUE, slot])
        line[LINKED] += 1
    return free


@uncounted()
def serve_decodes(line: Ints, slots: Ints, heads: Ints, bits: Words, repeat: int) -> Any:
    """Move due epochs on by a batch, or equal ones; return the first slot that is due, or -1, and
    empty its bucket.
    """
    served = line[DECODE]
    if served == line[LINKED]:
        line[LINE_EPOCH] += repeat
    elif 2 * served < line[LINKED]:  # nearer for those served: fewer than the others
        slot = line[FIRST_LINKED]
        for _ in range(served):
            unchain(slots, heads, bits, slot)
            slots[SLOT_DUE, slot] -= 1
            chain(slots, heads, bits, slot)
            slot = slots[SLOT_NEXT, slot]
    else:
        line[LINE_EPOCH] += 1
        slot = line[LAST_LINKED]
        for _ in range(line[LINKED] - served):
            unchain(slots, heads, bits, slot)
            slots[SLOT_DUE, slot] += 1
            chain(slots, heads, bits, slot)
            slot = slots[SLOT_PREV, slot]
    place = line[LINE_EPOCH] & (heads.size - 1)
    due = heads[place]
    if due >= 0:
        heads[place] = -1
        bits[place >> 6] &= ~(np.uint64(1) << np.uint64(place & 63))
    return due


@uncounted()
def unlink(line: Ints, slots: Ints, slot: int) -> None:
    """Take a slot out of the list."""
    previous, following = slots[SLOT_PREV, slot], slots[SLOT_NEXT, slot]
    if previous < 0:
        line[FIRST_LINKED] = following
    else:
        slots[SLOT_NEXT, previous] = following
    if following < 0:
        line[LAST_LINKED] = previous
    else:
        slots[SLOT_PREV, following] = previous
    line[LINKED] -= 1


@uncounted()
def find_due(line: Ints, bits: Words) -> None:
    """Find anew when the next linked request is due."""
    line[LINE_DUE] = next_due_epoch(bits, line[LINE_EPOCH]) if line[LINKED] > 0 else NEVER
