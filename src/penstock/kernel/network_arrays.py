"""What the kernel of a network works on: its arrays and their fields."""

from typing import Any, NamedTuple

from penstock.kernel.lines import Ints, uncounted

BAD_ORDER = 7
"""Returned by `advance`: an order gave a weight that is no number, a negative share, or an unknown
mode.
"""

MOST_POLICIES = 4
"""Different policies, and different orders, in one network: each is an argument of the compiled
kernel.
"""

# State, an int64 array.
(
    NOW,
    FINAL,  # whether no further job is to come
    UNTIL,
    STEPS,
    COMPRESS,
    NEXT_JOB,  # first job that has not arrived
    WAITING_ROOM,  # requests in the heap of those that are delayed
    FREE_SLOT,
    FUTURE,  # unprocessed tokens of the jobs that have arrived, requests to come included
    SERIES_ROWS,
    SERIES_STEP,
    FINISHED,  # requests
    READY,  # requests that arrive now
    READY_DONE,
    TOUCHED,  # replicas that may form a batch now
    FAILED,  # replica whose policy or order failed
) = range(16)
N_STATE = 16

# One row per pool.
(
    FIRST_SERVER,
    REPLICAS,
    ROUTER,
    TURN,  # of round robin
    AFFINITY,
    BY_AGE,
    LINES,  # of each replica
    BUDGET,
    SLOTS,
    RUNNING_SCOPE,
    ENGINE,
    DURATION,  # where its batch times begin in the table
    POLICY_INDEX,
    POLICY_PARAMS,
    POLICY_PARAMS_END,
    REPEATS,  # whether equal batches may be one step
    ORDER_INDEX,  # -1: a single line
    ORDER_PARAMS,
    ORDER_PARAMS_END,
    RETENTION,  # ticks for which a replica keeps what a later request can reuse
    FIRST_STAGE,  # where its stages, in order of its lines, begin in the list of those
) = range(21)
N_POOL = 21

# One row per replica.
(
    POOL,
    FIRST_LINE,
    START,  # of the batch, or run of equal batches, in progress
    TICKS,
    TOKENS,
    REPEAT,  # 0: none is in progress
    BATCHES,
    BUSY,
    PROCESSED,
    UNPROCESSED,
    COUNT,  # unfinished requests
    WORK,  # what a router measures
    IS_TOUCHED,
    SERVED,  # by age: requests in the batch in progress
) = range(14)
N_SERVER = 14

# One row per stage.
STAGE_POOL, STAGE_LINE, PREFILL_WEIGHT, DECODE_WEIGHT, IN_PREFILL, IN_DECODES = range(6)
N_STAGE = 6


class Arrays(NamedTuple):
    """What the kernel works on.

    Attributes
    ----------
    state, pools, servers, stages, lines
        Fields as named above and in `lines`; one row each.
    onward, means
        Shapes (stages, stages) and (stages, 2): requests released per finished one; mean tokens of
        each phase.
    listed
        The stages of each pool, in order of its lines.
    duration
        Ticks of a batch by its tokens, pool after pool.
    params
        Parameters of policies and orders.
    slots, heads, bits
        Of requests that have decoded; one row of ``heads`` and ``bits`` per line.
    ends
        Tournament tree over the replicas: when the batch in progress ends.
    job_arrival, job_root, job_tokens
        Per job: tick, first request, forward tokens.
    rows, delay, coin, context, reuse, home
        Per request, as in `penstock.workload.jobs`; ``home``: offset of the first request of the
        job at the pool.
    cached, ready, first_token, finish
        Per request, what became of it.
    heap, ready_now, touched
        Delayed requests as (tick, request); requests that arrive at this tick; replicas to be
        looked at.
    lookout, weights
        What an order sees and says.
    series
        At each instant: tick, requests by stage in prefill and in decode, unprocessed tokens by
        replica, and all that the jobs in the network will still need.
    """

    state: Any
    pools: Any
    servers: Any
    stages: Any
    lines: Any
    onward: Any
    means: Any
    listed: Any
    duration: Any
    params: Any
    slots: Any
    heads: Any
    bits: Any
    ends: Any
    job_arrival: Any
    job_root: Any
    job_tokens: Any
    rows: Any
    delay: Any
    coin: Any
    context: Any
    reuse: Any
    home: Any
    cached: Any
    ready: Any
    first_token: Any
    finish: Any
    heap: Any
    ready_now: Any
    touched: Any
    lookout: Any
    weights: Any
    series: Any


@uncounted(inline=True)
def set_end(ends: Ints, server: int, tick: int) -> None:
    """Write down when the batch in progress at a replica ends."""
    place = (ends.size >> 1) + server
    ends[place] = tick
    place >>= 1
    while place > 0:
        ends[place] = min(ends[2 * place], ends[2 * place + 1])
        place >>= 1
