"""What the loop of one server works on: records and arrays that its caller owns."""

from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from penstock.kernel.counting import Multiset, new_multiset
from penstock.kernel.due_epochs import NEVER
from penstock.kernel.signatures import PARAMS

Ints = npt.NDArray[np.int64]
Ints32 = npt.NDArray[np.int32]
Words = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]
Records = Any
"""An array of records whose fields are attributes, in compiled code and in Python."""

# What `penstock.kernel.server.advance` records beside first and last token times.
RECORD_NONE, RECORD_BATCHES, RECORD_ALLOCATIONS = range(3)

SERIES_INSTANTS = 2000

MOST_CELLS = 2**17
"""Batch compositions that have a counter of their own; others share a multiset."""

MIX_TICKS = 1 << 62
"""Added to a composition's key in that multiset, counts the ticks of its batches instead of them.
"""

NO_LIMIT = 2**40
"""A max batch size that never binds."""


def _record(*fields: str) -> np.dtype[np.void]:
    return np.dtype([(field, np.int64) for field in fields], align=True)


OPTIONS = _record(
    "policy",  # its address
    "token_budget",
    "batch_size",
    "running_scope",
    "engine",  # 1 if the first token comes with the end of prefill, else 0
    "compress",
    "record",
    "gap_bits",  # leading digits that are kept of a time between tokens; 0: all
    "final",  # whether no arrivals come after those that are known
    "until",  # tick
    "steps",  # decisions left
    "sees",
    "clients",  # of a closed loop; 0: open
    "pause",  # of a client, ticks between an answer and the next request
)

# Requests are named by their index in the workload arrays handed in.
STATE = _record(
    "now",  # tick: the last batch ended, or an arrival ended an idle time
    "arrived",  # requests that have arrived by now
    "head",  # first request whose prompt is not yet wholly scheduled
    "head_done",  # tokens of that prompt already scheduled
    "visible",  # end of the prompts that the policy may see
    "visible_tokens",  # their unprocessed tokens
    "decoding",  # requests in decode: linked ones, and those that never decoded
    "fresh",  # first request that may be in decode without having decoded
    "linked",  # requests that have decoded and are not finished
    "first",  # slot of the oldest of them
    "last",  # slot of the youngest
    "free",  # first slot of a list of those that nobody has
    "epoch",  # decode batches so far
    "next_due",  # epoch at which the next linked request finishes, if every batch serves all
    "flight_start",  # the last run of equal batches within which there are instants of the series
    "flight_ticks",
    "flight_tokens",
    "flight_end",
    "flight_cost",  # of its first batch, where that depends on the composition
    "flight_rise",  # how much more each next one costs
    "flight_batches",
    "before_started",  # counts before that flight
    "before_completed",
    "before_finished",
    "started",  # tokens in batches that started
    "completed",  # tokens in batches that ended
    "finished",  # requests
    "batches",
    "busy",  # ticks
    "seen",  # arrivals counted into the series
    "seen_tokens",
    "dropped",  # requests before the first row of the workload arrays
    "series_rows",
    "series_step",  # ticks
    "segments",
    "stall_sum",  # see penstock.kernel.gaps
    "stall_carry",
    "stalls_used",
    "mixes_used",  # distinct compositions in their multiset
    "batch_rows",
    "allocation_rows",
    "waiting_tokens",  # unprocessed prompt tokens of all that wait
    "decode_tokens",  # decode iterations still to come of those in decode
    "arrived_tokens",  # prompt tokens of all that arrived
    "finished_decodes",  # decode iterations of all that finished
    "context_base",  # tokens before the next decodes of linked requests, less linked * epoch
)

SLOT = np.dtype(
    [
        ("request", np.int64),
        ("due", np.int64),  # epoch
        ("previous", np.int32),  # slot of the next older linked request, or -1
        ("next", np.int32),  # slot of the next younger one
        ("chain", np.int32),  # slot of another that is due at the same epoch, or the next free one
    ],
    align=True,
)

SEGMENT = _record("count", "end")
"""Requests served last at the same time, and when."""

TALLY = _record("gaps", "full")
"""Times between tokens that are a batch of so many tokens; full batches with so many decodes."""

INSTANT = _record("tick", "requests", "unprocessed", "uncompleted")
BATCH_ROW = _record("start", "ticks", "prefill", "decode", "requests")
ALLOCATION_ROW = _record("batch", "request", "prefill", "decode")


class Arrays(NamedTuple):
    """All that the loop reads and writes.

    Attributes
    ----------
    options, state
        Shape (1,): one record each.
    params
        Of the policy; read-only.
    duration
        Shape (token budget + 1,), ticks of a batch with so many tokens.
    arrival, prompt, output
        Shape (requests known,), ticks and tokens, in order of arrival.
    first_token, finish
        Shape (requests known,), ticks, written; -1 while unknown.
    slots
        A record for each linked request.
    heads, bits
        Their calendar: see `penstock.kernel.due_epochs`.
    segments
        A stack, the oldest requests on top.
    tallies
        By token load, and by decode tokens: what nearly every batch adds to. Not with terms.
    cells, cell_ticks
        Shape (at most `MOST_CELLS`,): batches by composition, at prefill * (slots + 1) + decode;
        with terms also their ticks.
    stalls, mixes
        Multisets of all other times between tokens (ticks) and batch compositions (prefill << 32 |
        decode).
    series, batch_rows, allocation_rows
        Rows, written where asked for.
    """

    options: Records
    state: Records
    params: Floats
    duration: Ints
    arrival: Ints
    prompt: Ints32
    output: Ints32
    first_token: Ints
    finish: Ints
    slots: Records
    heads: Ints
    bits: Words
    segments: Records
    tallies: Records
    cells: Ints
    cell_ticks: Ints
    stalls: Multiset
    mixes: Multiset
    series: Records
    batch_rows: Records
    allocation_rows: Records


class Batch(NamedTuple):
    """What is in a batch; squares and pairs of prompts as in `cost_of`."""

    prefill: int
    decode: int
    prompts: int
    squares: int
    pairs: int


class Run(NamedTuple):
    """Equal batches that follow each other: of the first its ticks and its cost, by how much that
    rises, how many they are, and the tick at which they end.
    """

    ticks: int
    cost: int
    rise: int
    batches: int
    end: int


def records(dtype: np.dtype[np.void], count: int) -> Records:
    """Return so many records, all zero."""
    return np.zeros(count, dtype).view(np.recarray)


def rows_of(table: Records) -> Ints:
    """Return records of whole numbers as rows of a matrix."""
    rows: Ints = table.view(np.int64, np.ndarray).reshape(table.size, len(table.dtype))
    return rows


def new_arrays(params: Floats, duration: Ints, room: int, terms: bool) -> Arrays:
    """Return the arrays of a server to which nothing has come, with slots for so many requests."""
    nothing, nothing32 = np.empty(0, np.int64), np.empty(0, np.int32)
    state = records(STATE, 1)
    state.first = state.last = -1
    state.next_due = NEVER
    state.series_step = 1
    slots = records(SLOT, room)
    slots.chain = np.arange(1, room + 1)
    cells = np.zeros(min(duration.size * (room + 1), MOST_CELLS), np.int64)
    return Arrays(
        options=records(OPTIONS, 1),
        state=state,
        params=params,
        duration=duration,
        arrival=nothing,
        prompt=nothing32,
        output=nothing32,
        first_token=nothing,
        finish=nothing,
        slots=slots,
        heads=nothing,
        bits=np.empty(0, np.uint64),
        segments=records(SEGMENT, room + 1),
        tallies=records(TALLY, duration.size),
        cells=cells,
        cell_ticks=np.zeros_like(cells) if terms else nothing,
        stalls=new_multiset(),
        mixes=new_multiset(),
        series=records(INSTANT, SERIES_INSTANTS),
        batch_rows=records(BATCH_ROW, 0),
        allocation_rows=records(ALLOCATION_ROW, 0),
    )


def _array(item: Any) -> Any:
    if isinstance(item, np.dtype):
        item = numba.from_dtype(item)
    return item if isinstance(item, types.Array) else types.Array(item, 1, "C")


ARRAYS = types.NamedTuple(  # type: ignore[no-untyped-call]
    [
        _array(item)
        for item in (
            *(OPTIONS, STATE, PARAMS, types.int64),
            *(types.int64, types.int32, types.int32, types.int64, types.int64),
            *(SLOT, types.int64, types.uint64, SEGMENT),
            *(TALLY, types.int64, types.int64, types.int64, types.int64),
            *(INSTANT, BATCH_ROW, ALLOCATION_ROW),
        )
    ],
    Arrays,
)
