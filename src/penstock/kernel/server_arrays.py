"""What the loop of one server works on: records and arrays that its caller owns.

Those that the event loop has too are in `penstock.kernel.records`.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import from_dtype, types

from penstock.kernel.due_epochs import NEVER
from penstock.kernel.records import LINKED, record, table, tuple_type

# Requests are named by their index in the workload arrays handed in.
STATE = record(
    (LINKED, "linked"),
    i8="""
    arrived head head_done visible visible_tokens
    decoding fresh free
    started seen seen_tokens segments
    waiting_tokens decode_tokens arrived_tokens finished_decodes
    """,
)
"""The one record of what waits and what is served.

Requests that have ``arrived``; the ``head``: first whose prompt is not yet wholly scheduled, and
its tokens that are; the end of the prompts that the policy may see, and their unprocessed tokens.

Requests ``decoding``: the ``linked``, which have decoded, and those from ``fresh`` on, which never
did. The first slot of a list of those that nobody has.

Tokens in batches that ``started``; arrivals ``seen`` by the series, and their tokens; ``segments``
on the stack. Unprocessed prompt tokens of all that wait, decode iterations still to come of those
in decode, prompt tokens of all that arrived, decode iterations of all that finished.
"""

FLIGHT = record(
    i8="""
    start end ticks equal tokens plain cost rise
    started_before processed_before finished_before
    """
)
"""The last run of equal batches within which there are instants of the series, see `Run`, and what
had been counted before it.
"""

SLOT = record(i8="request due", i4="previous next chain")
"""One per linked request: the epoch at which it is due; slots of the next older and younger linked
request, or -1, and of another that is due at the same epoch, or the next free one.
"""

SEGMENT = record(i8="count end")
"""Requests served last at the same time, and when."""


class Arrays(NamedTuple):
    """All that the loop reads and writes; what is not explained is as in
    `penstock.kernel.records.World`, of one pool of one replica.
    """

    clock: Any
    pools: Any
    servers: Any
    params: Any
    duration: Any
    state: Any  # shape (1,): one record
    flight: Any  # the same
    arrival: Any  # shape (requests known,), ticks, in order
    prompt: Any  # tokens
    output: Any
    first_token: Any  # shape (requests known,), ticks, written; -1 while unknown
    finish: Any
    slots: Any  # a record for each linked request
    heads: Any  # their calendar: see `penstock.kernel.due_epochs`
    bits: Any
    segments: Any  # a stack, the oldest requests on top
    gaps: Any
    full: Any
    cells: Any
    stalls: Any
    mixes: Any
    series: Any
    batch_rows: Any
    allocation_rows: Any


class Batch(NamedTuple):
    """What is in a batch; squares and pairs of prompts as in `cost_of`."""

    prefill: int
    decode: int
    prompts: int
    squares: int
    pairs: int


class Run(NamedTuple):
    """Equal batches that follow each other, with the fields of `penstock.kernel.records.REPLICA`;
    and the tick at which they end.
    """

    start: int
    end: int
    ticks: int
    equal: int
    tokens: int
    prefill: int
    decodes: int
    requests: int
    plain: int
    cost: int
    rise: int


def new_arrays(room: int, **others: Any) -> Arrays:
    """Return the arrays of a server to which nothing has come, with slots for so many requests."""
    # ``others``: those that `World` has too, and some that only it has.
    state = table(STATE, 1)
    state.linked.due = NEVER
    slots = table(SLOT, room)
    slots.chain = np.arange(1, room + 1)
    nothing, nothing32 = np.empty(0, np.int64), np.empty(0, np.int32)
    of_requests = {
        "state": state,
        "flight": table(FLIGHT, 1),
        "arrival": nothing,
        "prompt": nothing32,
        "output": nothing32,
        "first_token": nothing,
        "finish": nothing,
        "slots": slots,
        "heads": nothing,
        "bits": np.empty(0, np.uint64),
        "segments": table(SEGMENT, room + 1),
    }
    others = {name: array for name, array in others.items() if name in Arrays._fields}
    return Arrays(**others, **of_requests)


ARRAYS = tuple_type(
    Arrays,
    {
        "state": from_dtype(STATE)[::1],
        "flight": from_dtype(FLIGHT)[::1],
        "prompt": types.int32[::1],
        "output": types.int32[::1],
        "slots": from_dtype(SLOT)[::1],
        "heads": types.int64[::1],
        "bits": types.uint64[::1],
        "segments": from_dtype(SEGMENT)[::1],
    },
)
