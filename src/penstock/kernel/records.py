"""What the event loop works on: records with named fields, in arrays that the caller owns.

A run can stop anywhere and go on, for more arrivals, for room, for a progress bar: nothing that
lasts is kept elsewhere. Places in these arrays are whole numbers; -1 stands for none.
"""

import functools
from collections import namedtuple
from typing import Any

import numpy as np
from numba import from_dtype, types

from penstock.kernel.signatures import PARAMS

# What `advance` returns:
DONE = 0  # everything that arrived is finished, or `until` is reached
MORE = 1  # the next arrival is not known yet
PAUSED = 2  # the step allowance is used up
FULL = 3  # slots, a multiset or a row buffer need room
IDLE_POLICY = 4  # a policy formed an empty batch although a non-empty one was possible
BAD_POLICY = 5  # a policy asked for a negative number of tokens, or named no phase
STUCK = 6  # an engine runs nobody, and the first that waits can never be admitted
BAD_ORDER = 7  # an order gave a weight that is no number, a negative share, or an unknown mode
BAD_ROUTER = 8  # a router named a replica that there is not
ENDLESS = 9  # requests preempt each other, and nobody gets an output any more

NO_ROWS, BATCH_ROWS, ALLOCATION_ROWS = 0, 1, 2
"""What is recorded beside the times of requests."""

BY_POLICY = "form_by_policy"
"""The rule by which a policy chooses, and KV memory decides who may be served."""

APART = (
    BY_POLICY,
    *("form_from_lines", "end_of_lines", "join_line", "cached"),
    *("choose", "report", "follow", "come_due", "push_delayed", "wait_in_front"),
    *("take", "occupy", "name_blocks", "found_in_cache", "give_back", "give_back_of_finished"),
    *("name_known", "verify", "keep_accepted", "note_allocations"),
    *("keep_at_end", "keep_ahead", "leave", "give_up", "pages_found"),
    *("happen", "strand", "come", "land", "receive"),
    *("let_in", "next_leaving", "cut_runs", "let_leave", "dismiss", "leave_unserved"),
)
"""Functions that a system may lack (`penstock.kernel.apart`), in the order of `World.apart`: that
rule, lines, several replicas, workflows, a front end, a prefix cache, drafts, records of who got
what, a cache that is a tree, outages, transfers, queues with limits and clients who leave.
"""

FUNCTIONS = [*APART]
"""All of them by their numbers: rules of engines follow."""


def number_of(rule: str) -> int:
    """Return the number of a rule: of `APART`, or a function of `penstock.kernel.engines`."""
    if rule not in FUNCTIONS:
        FUNCTIONS.append(rule)
    return FUNCTIONS.index(rule)


INPUT, COMPLETION, OPTIMISTIC, STATIC = range(4)
"""What must be free before a request is admitted: its prompt; all it will ever need; a block; all,
and nobody runs.
"""

PLENTY = 2**60
"""Free blocks where memory has no limit."""

NOT_BY_LOAD = -1
"""In place of the ticks that every batch of a token load takes, where each takes its own."""

COMPOSED, LATER, COMPUTED = 0, 1, 2
"""A step ahead, the batch after the run in progress. ``COMPOSED``: it was composed when the run
started, and is like it (also where nothing is composed ahead). ``LATER``: it is composed when the
run ends, or just before somebody comes who must not be in it; until then nothing of the run is
computed. ``COMPUTED``: that has happened while the last batch goes on.
"""

IN_FLIGHT, EVICTED = -1, -2
"""In place of prefill tokens left, where batches are composed ahead: the last token of a request is
in flight; and its blocks have been taken meanwhile.
"""

NONE_YET, IN_STEP = -1, -2
"""In place of the tick of a request's last token: it had none; that of all who decode in step."""


def record(*parts: tuple[Any, str], of_rule: int = 0, **fields: str) -> np.dtype[np.void]:
    """Return a record of such fields; each string names several of a type, which for parts are
    records themselves. ``of_rule``: words of a last field of that name.
    """
    kinds = (*fields.items(), *parts)
    named: list[Any] = [(name, kind) for kind, names in kinds for name in names.split()]
    if of_rule:
        named.append(("of_rule", "i8", (of_rule,)))
    return np.dtype(named, align=True)


class Table(np.recarray):
    """Records whose fields are attributes, as those of Numpy, but looked up faster."""

    __getattribute__ = np.ndarray.__getattribute__

    def __getattr__(self, name: str) -> Any:
        if name in (self.dtype.names or ()):
            return self[name]
        raise AttributeError(f"{self.dtype} has no field {name}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in (self.dtype.names or ()):
            self[name] = value
        else:
            super().__setattr__(name, value)


def table(kind: np.dtype[np.void], count: int) -> Any:
    """Return so many records, all zero, whose fields are attributes in compiled code and in
    Python; lists are empty.
    """
    rows = np.zeros(count, kind)
    if ends := _ends_in(kind):
        rows.view(np.int64).reshape(count, kind.itemsize // 8)[:, ends] = -1
    return rows.view(Table)


@functools.cache
def _ends_in(kind: np.dtype[np.void]) -> list[int]:
    """Return which words of a record are the ends of its lists."""
    words: list[int] = []
    for name, (field, offset, *_) in (kind.fields or {}).items():
        first = offset // np.dtype(np.int64).itemsize
        if "first" in kind.names and name in ENDS.names and "last" in kind.names:  # type: ignore[operator]
            words.append(first)
        words += [first + word for word in _ends_in(field)]
    return words


def joined(*tables: Any) -> Any:
    """Put records after one another; they are not copied where there is one table of them."""
    filled = [part for part in tables if part.size] or tables[:1]
    if len(filled) == 1:
        return filled[0]
    return np.concatenate(filled).view(Table)


ENDS = record(i8="first last")
"""The ends of a list (`penstock.kernel.lists`), -1 where it is empty."""

LINKED = record(i8="count epoch due context first last")
"""Requests that decode in the order of a list, its first ones in each batch (`due_epochs`).

How many there are; decode batches so far, and the epoch at which the next one finishes if every
batch serves all; tokens before the next decodes of all, less count * epoch; the ends of the list.
"""

CLOCK = record(
    i8="""
    now final until steps merges
    record gap_bits line_slots
    clients pause next_sent
    next_job waiting_room ready ready_done touched formed failed
    future finished requests_before next_report bad_router
    next_outage outages_done stranded
    prefilled prefilled_most
    free_slot used_slots engine_slots
    series_rows series_step guarded impatient leaving
    stall_sum stall_carry stalls_used mixes_used
    batch_rows allocation_rows
    """
)
"""The one record of a run.

``now``, ``final`` (whether no further job is to come), ``until``, ``steps`` (batches that may still
be formed), ``merges`` (whether equal batches are one step). ``record``: what rows are kept;
``gap_bits``: leading digits kept of a time between tokens, 0: all; ``line_slots``: slots of lines,
0 where times between tokens are not counted there. Of a closed loop ``clients`` (0: open), their
``pause``, and the first request not sent. ``next_job``: first that has not arrived;
``waiting_room``: delayed requests; ``ready``, ``ready_done``: those that arrive now; ``touched``,
``formed``: replicas that may form a batch now, and how many have; ``failed``: the replica whose
policy or order did. ``future``: unprocessed tokens of the jobs that have arrived, requests to come
included. ``requests_before``: those dropped before the first row. ``next_report``: tick at which a
router learns next how its replicas are; ``bad_router``: 1 + a replica of the pool whose router
failed. ``next_outage``:
tick at which a replica dies or comes back next; ``outages_done``: rows of `World.outages` that have
happened; ``stranded``: requests that wait
until a replica of their pool is back. ``guarded``: whether requests may be refused, or clients
leave; ``impatient``: whether these do, and of how many `World.leaves` says when. The others count
what is used of arrays, and gaps.
"""

WORDS_OF_RULE = 32
"""Room for what a rule keeps of an engine, and for the settings that it is told."""

CAME_WITH_ARRIVAL, CAME_BY_NUMBER, CAME_BY_TOKENS = range(3)
"""What `AGAIN.came` says of those that wait at an engine: the tick of their arrival; their number
among those that have come to the queue; how many tokens had been processed when they did. In the
latter two a preempted request comes anew.
"""

FUNCTION = record(i8="address params end")
"""A function that a user may write: its address (0: there is none), and where its numbers begin and
end in `World.params`.
"""

ROUTING = record(
    (FUNCTION, "function"),
    i8="router turn affinity looks_up looks_at_memory report reported",
)
"""How requests are routed in a pool.

What chooses (`ROUTE_RANDOM` ...), and its turn; whether a job stays at a replica; whether a router
that is a function looks for prompts in caches, and at the memory in use; ticks between two times
that it learns how replicas are (0: it always knows), and when it last did.
"""

LIMITS = record(i8="requests waiting prompt_tokens ttft")
"""Who is refused on arrival (`NEVER`: nobody by that): the most requests, those that run included,
and the most that wait; the prompt tokens of requests without a first token from which on nobody
comes in; ticks until the first token, as far as it can be told.
"""

POOL = record(
    (FUNCTION, "policy order"),
    (ROUTING, "routing"),
    (LIMITS, "at_router at_server"),
    i8="""
    first_server replicas up retention first_front fronts
    budget batch_size running_scope convention sees duration composed
    by_lines lines repeats first_stage
    rule block_size watermark admission by_priority came_as waits_among_running
    grows reserves_last chunked caching radix ahead longest drafts
    names_ahead names_outputs most_barren hash_block plans_late cell_columns
    evicts full_batch
    """,
    of_rule=WORDS_OF_RULE,
)
"""One per pool.

Where a pool has servers of several kinds, one per kind, each with the replicas of all. ``up``: how
many of them serve, the first places of `World.serving` from ``first_server`` on; ``retention``:
ticks for which a replica keeps what a later request can reuse. ``fronts``: processes of its front
end, from ``first_front`` on in `World.fronts`. Limits, scope and convention (0: the
paper's); the ``policy``, of which only numbers count where none is asked, and what it looks at.
``duration``: where its batch times begin in the table; ``composed``: whether they depend on more
than the token load.

``by_lines``: whether lines, order and policy form batches, as in the paper, in place of an engine.
Of lines: how many there are, an ``order`` unless it is one; ``repeats``, whether equal batches may
be one step; ``first_stage``: where its stages begin in ``listed``.

Of engines: the number of the ``rule`` that forms batches; tokens of a block, blocks that an
admission leaves free, what must be free before it (`INPUT` ...), whether the queue goes by
priority, what says when a request came to it (`CAME_WITH_ARRIVAL` ...), whether requests wait among
those that run, too; whether requests take blocks as they decode, or need one for a last output that
is never computed, whether prompts may be cut, whether prefixes are reused, in blocks by name or in
a tree, whether a batch is composed when the one before it starts, the longest context, drafts that
a decode verifies. ``names_ahead``: tokens after a block that its name stands for, too;
``names_outputs``: whether recorded ids go on where prompts end; ``most_barren``: batches without an
output before preemptions are said to go on for ever. ``plans_late``: whether it may as well be
composed at the end of a run of decodes (`LATER`); then an arrival cuts the run whatever
``arrival_ends`` says. ``cell_columns``: of `World.cells`. ``evicts``: by which the ranks of two
neighbouring priorities differ where in a full queue the least urgent makes way, else 0;
``full_batch``: ticks of a batch filled to the budget. ``of_rule``: settings of a single engine, as
its rule names them (`part_of_rule`).
"""

REPLICA = record(
    i8="""
    pool first_line engine
    start ticks equal tokens prefill decodes verified rejected requests plain cost rise
    is_touched is_down
    batches busy processed
    count unprocessed work link_free
    """
)
"""One per replica.

The batch in progress: its ``start``, ``ticks`` of the first of ``equal`` ones like it (0: none is
in progress), tokens and requests; ``verified``: drafts among its decodes, ``rejected``: tokens
that they make useless. ``plain``: ticks of any batch of that load, -1 where each takes its own;
``cost`` and ``rise`` where they are composed. ``is_down``: it has died and is not back. What it
did: batches and tokens that ended, ticks. What routers measure: unfinished requests, tokens that
have not gone into a batch, work. ``link_free``: the tick from which its link can carry KV memory.
"""

HEALTH = record(i8="died dies")
"""One per replica: when it died last (-1: never), and when it will next (or NEVER). Apart, for
`REPLICA` fills three lines of a cache.
"""

LINE = record(
    (ENDS, "waiting fresh done"),
    (LINKED, "linked"),
    i8="""
    prompts prompt_tokens partial open decoding prefill decode
    arrived arrived_tokens finished finished_decodes decode_tokens
    """,
)
"""One per line of a replica.

Requests in prefill are ``waiting``, in order of arrival, without those whose last prompt token is
in the batch in progress, who are ``done``. Requests in decode are ``fresh`` until they have
decoded, then ``linked``, in slots.

Requests in prefill, and their unprocessed tokens; whether the first has been started, and cut in
the batch being formed; requests in decode; tokens of the line in the batch in progress. Then what
policies see of the past.
"""

BATCH = record(
    (ENDS, "served"),
    i8="""
    prompts decodes is_marked serves_all wasted wasted_on verified rejected preempted
    steady arrival_ends gone in_vain
    """,
)
"""The batch that an engine forms, or has in progress.

``served``: slots in prefill, and how many they are; decodes, which are the first of the running
list unless ``is_marked``: then those are whose `SLOT.taken` says so; whether they are all that
decode; decodes given for nothing to those who end unforeseen, and the first of these who have left
since; drafts, and tokens that they make useless; how many gave up memory for it. ``steady``:
whether the next batch is the same while nobody comes or goes; ``arrival_ends``: whether somebody
who comes ends a run of equal ones; ``gone``: decodes of those whose clients have left since;
``in_vain``: all tokens of those, where the batch has not started yet.
"""

AHEAD = record(
    (ENDS, "leaving"),
    i8="next_batch joins_until flight_end step_before all_fly some_fly unforeseen first_tokens",
)
"""What an engine knows of the batch in progress when the one after it is composed.

``leaving``: slots of those whose last token is in flight. The next batch is `COMPOSED` ...; of
`LATER`: who comes up to this tick is in it (`NEVER`: nobody has come). The tick at which the tokens
in flight are out (`NONE_YET`: none are), and at which those who decode had the ones before. Whether
all who decode have a token in flight, and whether `SLOT.flight` says of some that they have; how
many have their last token in flight though they may have more; prompt tokens of those whose first
one is in flight.
"""

CACHE = record(
    (ENDS, "unused"),
    i8="blocks nameless first free_record first_bucket buckets",
)
"""KV memory of an engine in which blocks are told apart (`blocks`).

``unused``: blocks with names. Blocks in all; those without a name, which are taken first; where its
records begin in `World.blocks`, and the first that stands for nothing; its `World.buckets`.
"""

TREE = record((ENDS, "leaves joined"), i8="root nodes free_node touches")
"""A cache that is a tree (`penstock.kernel.engines.sglang_cache`).

``leaves`` that may be given up; slots of those whose prefill is complete when the batch in progress
ends (``joined``). The root, nodes in use so far, the first that is free again, touches so far.
"""

TRANSFERS = record((ENDS, "coming landed"), i8="incoming lending")
"""KV memory on its way (`transfers`).

Requests that wait for room for it (``coming``), and those who have it and wait for a place; these,
and those on whose way it is, together; transfers from here, for which it keeps blocks.
"""

ENGINE = record(
    (ENDS, "slots queue"),
    (BATCH, "batch"),
    (AHEAD, "ahead"),
    (CACHE, "cache"),
    (TREE, "tree"),
    (TRANSFERS, "transfers"),
    i8="""
    server pool line index
    running prefilling decoding waiting
    epoch last_step out_of_step context_base
    uncomposed_prefill decode_tokens arrived arrived_tokens finished finished_decodes
    free evictable usable settled
    age repeats changed was_idle barren
    preemptions lost reused rejections
    without_first gone
    """,
    of_rule=WORDS_OF_RULE,
)
"""One per replica that is an engine.

Which replica, of which pool; its rows of ``heads`` and of ``growth``. ``slots``: the running list;
``queue``: those that wait, or with priorities the root of a heap; how many run, of
these in each phase, and wait. ``epoch``: decode batches; ``last_step``: tick at which those who
decode had their last token, all but those ``out_of_step``, which know theirs; ``context_base``:
tokens before the next decodes of all, less decoding * epoch. What policies see, with
``uncomposed_prefill``: tokens of all in prefill, begun or not, that are in no batch composed yet; a
step ahead they fall a batch before that starts, so what routers see is counted elsewhere
(`routing`).

KV blocks: free ones, those that a tree would give up, those that it can use (0: no limit), and
those that the decodes of the run in progress have taken already.

For the rule: ``age``, the number of those who have come to the queue, or tokens that it says are
processed (`POOL.came_as`); since it was asked last: batches that were like the one it formed
(``repeats``), whether somebody left or came to decode (``changed``), whether nobody was there
(``was_idle``). ``barren``: batches since the last output that preempted somebody.

Preemptions, tokens that they lost, tokens found computed, tokens that drafts made useless. Prompt
tokens of requests without a first token, and requests whose clients have left while they run.
``of_rule``: what the rule keeps, as it names that (`part_of_rule`).
"""

STAGE = record(i8="pool line prefill_weight decode_weight in_prefill in_decode")
"""One per stage: where it is served, what a request counts for routers, requests in each phase."""

ROW = record(i4="left decodes server next pending stage child sibling")
"""One per request.

``left``: unprocessed prompt tokens (at an engine: all of them); ``decodes``: decode iterations;
``server``: its replica, -1 before it is routed; ``next``: the one behind it in whatever queue it is
in; ``pending``: requests that must finish before it is released, then 0, or `IN_DECODE` in a line;
``child``, ``sibling``: offsets of the first request that its end releases, and of the next one that
its parent's end releases; 0: none.
"""

IN_DECODE = -1
"""In place of the requests that must finish before one in a line is released: it decodes."""

AGAIN = record(
    i8="last rank came",
    i4="""
    target outputs declared filled matched drafted times prefix named followed passed less more
    """,
)
"""One per request where there are engines, or times between tokens are counted in lines: what it
has to do when it is admitted, once preempted.

``last``: tick of its last token, or `NONE_YET`; its rank where the queue goes by it, the smaller
first, and its number among those that have come to the queue; tokens of its prefill, outputs still
to come, most outputs that it may make, its tokens when it was last looked at, and those of them
that a cache had; drafts of the decode that it was given for nothing; ``times`` that it was
preempted; ``prefix``: its row of recorded prefixes, and how many of its tokens those ids name,
outputs included; how many others go on with its context; whether another has passed it in the
queue; ``less``, ``more``: its children in the heap, or among the beginnings of those that wait.
"""

SENT = record(i8="link latency", i4="sender tokens lent lent_here")
"""One per request where KV memory is sent from pool to pool: of what it gets before it decodes, the
ticks on the links, and more until all is there; from which request, as an offset; how many tokens,
0 for none; and the blocks taken for them at either end.
"""

TRY = record(
    i8="came patience_first patience_whole first_until whole_until gone luck wasted",
    i4="left decodes times refusals is_stranded is_listed found",
)
"""One per request where replicas die, requests are refused or clients leave.

When it came to its pool first (-1: it has not been sent again), what it asked for, how often it was
sent again, and whether it waits until a replica is back. How often it was refused, and tokens that
were processed until its client left. How long its client waits for the first token and for all, and
until when this time; when it left although it still runs (-1: it has not); 32 random bits; whether
`World.leaves` has it; prompt tokens that it found computed.
"""

LOST, REFUSED, LEFT = -2, -3, -4
"""In place of the tick at which a request finished: it was lost with its replica, or comes after
one that did not finish; it was refused; its client left.
"""

DIES, DIES_WITH_REQUESTS, RETURNS = range(3)
"""What happens to a replica; whoever is there is sent again, or lost."""

SLOT = record(
    i8="due last before request",
    i4="""
    previous next chain left target total outputs blocks taken served_next
    drafted brings rejected flight grown
    shared named end_node joined previous_joined next_joined
    """,
)
"""One per request that runs at an engine, or has decoded in a line.

The epoch at which it is due; the list and the bucket that it is in. At engines also: tick of its
last token, and of the last that came apart from all others'; prefill tokens left (0: it decodes;
`IN_FLIGHT`) and in all; tokens that it has processed when it finishes; outputs to come when its
prefill began; blocks, while it does not grow by decodes; tokens in the batch being formed; the next
one in prefill that is served. With drafts: how many are in that batch; the tokens that it brings;
those of the batch in progress that it does not, and does, where the next one is composed before
that is known (without drafts 0 or 1, where `AHEAD.some_fly` says so); blocks. With a prefix cache,
the blocks held that have names. With SGLang's, the pages held that the tree has, the node that they
end with, and whether, and between whom, its prefill is complete when the batch in progress ends.
"""

SORTED_QUEUE = 128
"""Requests of a waiting queue that are sorted, or looked up in a tree; `World.lives` has room for
them."""

NODE = record(
    i8="number page touched born",
    i4="parent row named first length users children older newer next_named weight",
)
"""One per node of SGLang's cache: a run of pages.

What says what they hold: number of the request that they came from, its recorded row and the pages
of that; the name of the first one. When it was touched last, and when its parent got it. The first
of its pages, counted from
the beginning of the prompt, and their number;
users, children; its neighbours in the list of leaves that may be given up, and the next node whose
first page has a name of the same bucket; how many of the queue end with it or beyond, while that
is sorted.
"""

BLOCK = record(i8="name", i4="users count next_free previous_free next_named previous_named")
"""Where prefixes are reused: a block that has a name, or a run of so many that nobody will look
for. There are as many as KV blocks.
"""


World = namedtuple(
    "World",
    """
    apart clock pools servers planned engines lines stages onward means listed
    duration linear per params serving health outages idle_engines idle_lines tries
    slots heads bits growth lives nodes blocks buckets table hits ids bounds ends
    job_arrival job_root job_tokens rows again sent delay coin context reuse home cached ready
    front reached fronts first_token finish heap leaves backoffs jitter
    ready_now touched seen asked lookout weights gaps
    full cells stalls mixes series batch_rows allocation_rows
    """,
)
World.__doc__ = """All of it; of many names the records above say what they hold.

``apart``: where the functions of `APART` begin, 0 for those that nobody needs.

Of pools and replicas: ``planned``, one per engine, is the batch composed ahead, of 0 tokens where
there is none; ``onward`` (stages, stages) and ``means`` (stages, 2): requests released per finished
one, mean tokens of each phase; ``listed``: the stages of each pool, in order of its lines;
``serving``: of each pool the replicas that serve, in order; ``outages``: tick, replica, and what
happens to it (`DIES` ...), in order; ``idle_engines``, ``idle_lines``: as they were at first, where
replicas die. ``duration``, ``linear``: by tokens, pool after pool, ticks of a batch, or what it
costs; ``per`` (pools, 6): what is added (`composition`); ``params``: of policies, orders, engines.
``ends``: tournament tree over the replicas, when the batch in progress ends.

Of requests that decode: ``slots``; ``heads``, ``bits``: a row per line; ``growth`` (engines, block
size): how many by the epochs, modulo the block size, at which they need a block. ``lives``: of
those who are to run together, in order of that, outputs left and tokens held. ``nodes``: of caches
that are trees; ``blocks``, ``buckets``, ``table``, ``hits``, ``ids``, ``bounds``: of the
others (`blocks`), ``hits`` those just found for a prompt.

Per job ``job_arrival`` (tick), ``job_root`` (first request), ``job_tokens`` (forward tokens). Per
request ``rows`` to ``home``, as in `penstock.workload.jobs` (``home``: offset of the first request
of the job at the pool); what became of it: ``cached`` (tokens), ``ready``, ``first_token``,
``finish`` (ticks). Where pools have front ends, ``front``: ticks of its work there, and
``reached``: when it came there, before it is ``ready``; ``fronts``: when each process is free.
``heap``: delayed requests as (tick, request); ``leaves``: a heap of when clients may leave;
``backoffs`` (stages, retries), ``jitter``: ticks after which they come again (-1: no more), and
the share of these that chance may take off. ``ready_now``: those that arrive at this tick;
``touched``: replicas to be looked at. ``seen``, ``asked``: what routers see of each replica, and of
a request; ``lookout``, ``weights``: what an order sees and says.

Counted: ``gaps``, times between tokens that are one batch, by its place in ``duration``; ``full``,
batches filled to the budget, by their decodes; ``cells``, batches by composition (prefill * columns
+ decode), then their ticks; ``stalls``, ``mixes``, multisets of all others. ``series``, at each
instant: tick, requests by stage in prefill and in decode, unprocessed tokens by replica, tokens in
the batch in progress by replica, and all that the jobs in the network will still need.
``batch_rows``: replica, start, ticks, prefill, decodes, requests; ``allocation_rows``: replica,
batch, request, prefill, decode.
"""

_INTS, _INTS32, _TABLE = types.int64[::1], types.int32[::1], types.int64[:, ::1]
_REALS = types.float64[:, ::1]
_TYPES: dict[str, Any] = {
    "clock": from_dtype(CLOCK)[::1],
    "pools": from_dtype(POOL)[::1],
    "servers": from_dtype(REPLICA)[::1],
    "planned": from_dtype(REPLICA)[::1],
    "engines": from_dtype(ENGINE)[::1],
    "lines": from_dtype(LINE)[::1],
    "stages": from_dtype(STAGE)[::1],
    "health": from_dtype(HEALTH)[::1],
    "outages": _TABLE,
    "idle_engines": from_dtype(ENGINE)[::1],
    "idle_lines": from_dtype(LINE)[::1],
    "tries": from_dtype(TRY)[::1],
    "onward": _REALS,
    "means": _REALS,
    "per": _TABLE,
    "params": PARAMS,
    "slots": from_dtype(SLOT)[::1],
    "heads": _TABLE,
    "bits": types.uint64[:, ::1],
    "growth": _TABLE,
    "lives": _TABLE,
    "nodes": from_dtype(NODE)[::1],
    "blocks": from_dtype(BLOCK)[::1],
    "buckets": from_dtype(ENDS)[::1],
    "table": types.int32[:, ::1],
    "rows": from_dtype(ROW)[::1],
    "again": from_dtype(AGAIN)[::1],
    "sent": from_dtype(SENT)[::1],
    "coin": types.uint32[::1],
    "context": _INTS32,
    "reuse": _INTS32,
    "home": _INTS32,
    "cached": _INTS32,
    "heap": _TABLE,
    "leaves": _TABLE,
    "backoffs": _TABLE,
    "jitter": types.float64[::1],
    "seen": _REALS,
    "asked": types.float64[::1],
    "lookout": _REALS,
    "weights": _REALS,
    "series": _TABLE,
    "batch_rows": _TABLE,
    "allocation_rows": _TABLE,
}


def tuple_type(kind: Any, own: dict[str, Any]) -> Any:
    """Return the type of a named tuple of arrays, of which some are its ``own``; those that are
    named nowhere are of 64-bit integers.
    """
    fields = [(_TYPES | own).get(name, _INTS) for name in kind._fields]
    return types.NamedTuple(fields, kind)


WORLD = tuple_type(World, {})
"""The type of a `World`."""
