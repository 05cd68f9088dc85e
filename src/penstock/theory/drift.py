"""A sufficient condition for any policy under any limits: every batch that a backlog leads to
drains it.

Theorem (Foster, weighted tokens). Let arrivals be renewals of rate lambda, lengths i.i.d. and
bounded, m_p and m_d the mean prefill and decode tokens of a request, in the server's convention. If
there are w_p, w_d > 0, w_f >= 0 and eps > 0 with

    w_p x + w_d y + w_f f  >=  (lambda (w_p m_p + w_d m_d + w_f) + eps) t_{x+y}

for every batch that the policy forms while at least L requests are in the system, of x prefill and
y decode tokens, in which f prompts end, the queues stay finite.

Proof. Let V = w_p W_p + w_d W_d + w_f F, with W_p and W_d the prefill and decode tokens yet to be
processed of every request in the system: those of waiting prompts, and decodes to come after a
prefill, included; and F the prompts that have not ended. As lengths are bounded, there is an M such
that V > M means at least L requests. Fix s > 0 and follow the batches that start within s seconds,
the last ending before s + t_max, with t_min and t_max the least and the greatest batch time. There
are at most s / t_min + 1 of them, and each takes away a bounded amount, so from V > M' (M' = M plus
what they can take) all of them are formed under a backlog. They take at least (lambda (w_p m_p +
w_d m_d + w_f) + eps) s from V. At most N arrivals in s + t_max seconds add w_p m_p + w_d m_d + w_f
each on average (Wald), and E[N] <= 1 + U(s + t_max), whatever the age of the gap at the start, with
U the renewal function. U(s) / s -> lambda, so for large s the mean change of V is below -1, from
every state with V > M'. By Foster's criterion V returns to {V <= M'}, a bounded queue, in finite
mean time. Batch times that are random with mean t_b, drawn anew for each batch from a bounded
range, change nothing.

Where batches take longer for what is in them (`penstock.theory.attention`), let t_{x+y} be the time
by token load, with `per_request` and `with_prefill` more where x > 0. Let w_p x + w_d y + w_f f
>= t_{x+y} for all those batches. Let V be

    V = w_p W_p + w_d W_d + w_f F + (the most that the attention of what is left may take).

Each batch takes away at least as many seconds as it lasts, and lambda (w_p m_p + w_d m_d + w_f +
A+) arrive per second, A+ the most that the attention of a mean request may take. So below 1 the
queues stay finite, as before.

Which batches a backlog leads to is known in two ways.

*Full or all.* A scheduler that fills a budget of b tokens whenever what waits allows it, and lets
in up to B requests as places are free (`vllm`, `sarathi`, `orca`, `tensorrt-llm` that cuts
prompts), forms while at least B are in the system either a batch of b tokens, or one that has all B
that hold a place, each with a decode or with all that is left of its prompt. In a full batch there
are at most B - 1 decodes (b, where B >= b), and all prompts end but one: no fewer than x tokens of
the longest prompts make. Else y + f = B, and f is the less the longer prompts are, the more the
shorter, as in order of arrival all but one are whole (in another order x >= f). Only the ends of
each line count, at each load. Where a batch is composed a step ahead, a request
holds its place for one batch after its end, in which it may have a token or none. That is a decode
more of each, which W_d counts, so m_d + 1 takes the place of m_d; and as the batch may be smaller
than what is counted, the most that any smaller one takes takes that of t. Policies that choose
budgets of their own are none of these, nor are those that cut prompts to whole blocks of memory.

*One by one.* Every queue that a policy of the paper, or of the user's own, may see while L requests
are in the system is tried, and what the policy and the server make of it; f counts for nothing.
Under a max batch size k in scope ``running``, d decoding requests leave k - d prompts to be seen,
so such queues are finitely many. Elsewhere queues grow without limit, and only the policies of the
paper are known to look no further than their limits.

The weights are those with the highest rate, by a linear program.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from penstock.inputs.arrays import Floats, Ints
from penstock.inputs.caching import cached
from penstock.kernel.compiled_code import entry
from penstock.kernel.signatures import (
    BATCH_FIELDS,
    DECODE_FIRST,
    NOT_ASKED_FOR,
    PARAMS,
    POLICY,
    PREFILL_FIRST,
    Limits,
    Queue,
)
from penstock.system.server import Server
from penstock.theory.attention import attention, attention_of_a_decode, beside_prefill, slowed
from penstock.workload.lengths import Lengths

MOST_QUEUES = 50_000_000
"""So many queues are tried at most: about a second."""

_NO_LIMIT = 2**40
_LEAST_SHARE = 1e-9  # of either phase in the weight of a request: both weights are positive
_NONE = (0.0, 0.0, 0.0)
_FORMED, _IDLE, _NEGATIVE = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class Drift:
    """How far the condition certifies a policy."""

    certified_rate: float | None  # requests/s below which it holds; None: not tried, or at no rate
    weights: tuple[float, float, float]  # w_p, w_d, w_f, for which an average request weighs 1
    worst: tuple[int, int]  # (prefill, decode) tokens of the batch that drains least
    why: str
    fills: bool = False  # by what work-conserving schedulers do


@cached(32)
def drift(
    lengths: Lengths, server: Server, *, by_arrival: bool = True, wasteful: bool = False
) -> Drift:
    """Find the weights under which a backlog drains at the highest rate.

    ``by_arrival``: requests are served in that order. ``wasteful``: they may have a token after
    their end that nobody foresees.
    """
    fills = server.memory is None and full_or_all(server)
    if not (by_arrival or fills):
        return Drift(None, _NONE, (0, 0), f"{server.policy.name} does not serve as requests come")
    try:
        contents, seconds = backlog(lengths, server, by_arrival=by_arrival)
    except _Unknown as unknown:
        return Drift(None, _NONE, (0, 0), str(unknown))
    # With shares a of the weight of a mean request, w = a / means, a batch drains f(a) = (w_p x +
    # w_d y + w_f f) / t requests/s. The certified rate is the largest over a of the least f over
    # the batches, and with attention 1 / (1 / f + A+).
    prompt = lengths.mean_prompt
    decodes = server.tokens_per_request(prompt, lengths.mean_output) - prompt
    means = np.array([prompt, decodes + (fills and server.policy.batching.ahead), 1.0])
    worth = np.divide(contents, means, out=np.zeros_like(contents), where=means > 0)
    seconds = seconds + (contents[:, 0] > 0) * beside_prefill(server.batch_time)
    rates = worth / seconds[:, None]
    shares = _best_shares(rates)
    drained = rates @ shares
    worst = int(np.argmin(drained))
    x, y = int(contents[worst, 0]), int(contents[worst, 1])
    weights = np.divide(shares, means, out=np.zeros(3), where=means > 0)
    most_attention = attention(lengths, server).most
    if wasteful:
        most_attention += attention_of_a_decode(lengths, server)
    rate = slowed(float(drained[worst]), most_attention)
    enough = "enough"
    if most_attention:
        enough += f", with up to {most_attention:.4g} s of attention per request,"
    why = (
        f"of the batches that a backlog leads to, the one of {x:,} prefill and {y:,} decode "
        f"tokens drains least: {enough} for {rate:.4g} requests/s"
    )
    return Drift(rate if rate > 0 else None, tuple(weights.tolist()), (x, y), why, fills)


def _best_shares(rates: Floats) -> Floats:
    """Return the shares a, positive and 1 together, with the greatest least of ``rates @ a``."""
    # What is feasible, in the first two shares and that least, has few corners, of which one is
    # best. It is cut off below a point inside.
    from scipy.spatial import HalfspaceIntersection  # few servers need it

    rates = rates / rates.max()
    even = np.full(3, 1 / 3)
    least = float((rates @ even).min())
    below = np.column_stack([rates[:, 2:] - rates[:, :2], np.ones(len(rates)), -rates[:, 2]])
    bounds = np.array(
        [(-1, 0, 0, _LEAST_SHARE), (0, -1, 0, _LEAST_SHARE), (1, 1, 0, -1), (0, 0, -1, least - 1)]
    )
    inside = np.array([*even[:2], least - 0.5])
    corners = HalfspaceIntersection(np.vstack([below, bounds]), inside).intersections
    one, other, _ = corners[np.argmax(corners[:, 2])]
    shares = np.maximum([one, other, 1 - one - other], [_LEAST_SHARE, _LEAST_SHARE, 0.0])
    return np.asarray(shares / shares.sum())


def backlog(lengths: Lengths, server: Server, *, by_arrival: bool = True) -> tuple[Floats, Floats]:
    """Return the batches that a backlog leads to, of which some drain least under any weights.

    Prefill and decode tokens and ends of prompts of each, shape (batches, 3), and the most that its
    token load takes, s.
    """
    if server.memory is not None or not full_or_all(server):
        return _one_by_one(lengths, server)
    # In order of arrival no more than one prompt is partly done.
    return _full_or_all(lengths, server, lengths.min_prompt if by_arrival else 1)


def full_or_all(server: Server) -> bool:
    """Return whether its batches are full, or have all requests that hold a place, with ample KV
    memory.
    """
    return (
        server.scope == "running"
        and server.max_batch_size is not None
        and server.work_conserving is True
        and server.policy.is_proved
        and not (server.policy.batching.decodes_beyond or server.policy.batching.own_budget)
    )


def _full_or_all(lengths: Lengths, server: Server, shortest: int) -> tuple[Floats, Floats]:
    """Return the batches of such a scheduler that drain least, and what they take."""
    budget, places = server.token_budget, server.max_batch_size or 0
    ahead = server.policy.batching.ahead
    longest = min(lengths.max_prompt or budget, budget)
    # 1. Full: x tokens are of so many prompts, of which all but one end. Between two numbers of
    # prompts all lie on a line.
    prompts = np.arange(1, -(-budget // longest) + 1)
    fewest = 0 if places >= budget else budget - places + 1
    x = np.concatenate(
        [[fewest], (prompts - 1) * longest + 1, np.minimum(prompts * longest, budget)]
    )
    x = np.maximum(x, fewest)
    ends = np.maximum(-(-x // longest) - 1, 0)
    contents = [np.column_stack([x, budget - x, ends]), np.array([(0, places, 0)])]
    # 2. All that hold a place: at each load the fewest prompts that end, and the most.
    loads = np.arange(min(places, budget - 1), budget)
    beyond = np.maximum(loads - places, 0)
    few = np.clip(-(-beyond // max(longest - 1, 1)), 1, places)
    many = np.minimum(places, loads)
    if shortest > 1:
        many = np.clip(1 + beyond // (shortest - 1), few, many)
    for ends in (few, many):
        contents.append(np.column_stack([ends + beyond, places - ends, ends]))
    batches = np.concatenate(contents)
    if not ahead and lengths.max_output == server.outputs_of_prefill:  # nobody decodes
        batches = batches[batches[:, 1] == 0]
    table = np.asarray(server.batch_time.by_tokens.table(budget), np.float64)
    if ahead:
        table = np.maximum.accumulate(table)
    seconds = table[np.minimum(batches[:, 0] + batches[:, 1], budget)]
    return batches.astype(np.float64), seconds


def _one_by_one(lengths: Lengths, server: Server) -> tuple[Floats, Floats]:
    """Return the batches that a policy was seen to form, and what they take."""
    fewest, most = backlog_batches(lengths, server)
    # Of the batches of each token load those with the fewest and the most decodes count.
    loads = np.flatnonzero(most >= 0)
    load = np.tile(loads, 2)
    decode = np.concatenate([fewest[loads], most[loads]])
    contents = np.column_stack([load - decode, decode, np.zeros_like(load)])
    return contents.astype(np.float64), np.asarray(server.batch_time.by_tokens(load), np.float64)


def backlog_batches(lengths: Lengths, server: Server) -> tuple[Ints, Ints]:
    """Return the fewest and most decodes by token load of a backlog's batches; most -1: none."""
    # Shape (token budget + 1,). Batches of a token load lie on a line between these two, so no
    # weights can be beaten by any other.
    if not server.policy.by_phase:
        raise _Unknown(
            f"what {server.policy.name} puts into a batch depends on every single request, which "
            "makes more cases than a proof can go through"
        )
    if server.memory is not None or server.order != "fcfs":
        raise _Unknown(
            "with KV memory or priorities a batch depends on every single request, which makes "
            "more cases than a proof can go through"
        )
    rows = _queues(lengths, server)
    tried = int((rows[:, 3] - rows[:, 2] + 1).sum())
    if tried > MOST_QUEUES:
        raise _Unknown(
            f"a backlog may look in {tried:,} ways, more than the {MOST_QUEUES:,} that the proof "
            "goes through"
        )
    policy, budget = server.policy, server.token_budget
    fewest, most = np.full(budget + 1, budget + 1), np.full(budget + 1, -1)
    slots = server.max_batch_size or _NO_LIMIT
    options = np.array(
        [budget, slots, server.scope == "running", lengths.min_prompt, lengths.max_prompt or 1],
        np.int64,
    )
    stuck = np.zeros(3, np.int64)
    starts, ends = np.full((2, budget + 1), budget + 1), np.full((2, budget + 1), -1)
    try:
        params = np.array(server.params, np.float64)
        params.flags.writeable = False
        status = compiled_form()(
            policy.compiled, params, options, rows, fewest, most, stuck, starts, ends
        )
    except Exception as error:  # whatever a user's policy raises
        raise _Unknown(f"{policy.name} failed: {type(error).__name__}: {error}") from error
    if status != _FORMED:
        prompts, tokens, decoding = stuck.tolist()
        what = f"asks for {NOT_ASKED_FOR}"
        if status == _IDLE:
            what = "forms an empty batch"
        raise _Unknown(
            f"{policy.name} {what} with {prompts:,} prompts ({tokens:,} tokens) and {decoding:,} "
            "decoding"
        )
    return fewest, most


class _Unknown(Exception):
    """The condition cannot be tried, or holds at no rate; the message says why."""


def _queues(lengths: Lengths, server: Server) -> Ints:
    """Return a backlog's queues: prompts seen, decoding, fewest and most prompt tokens seen."""
    # The first prompt may be partly done, so n hold from (n - 1) shortest + 1 to n longest tokens.
    # Policies of the paper act on min(prompt tokens, b_max), min(decoding, b_max, k_max) and on
    # whether there are prompts, so larger numbers are tried once, at these limits.
    budget, slots = server.token_budget, server.max_batch_size
    longest = lengths.max_prompt
    never_decodes = lengths.max_output == server.outputs_of_prefill
    if longest is None:
        raise _Unknown("prompts have no upper limit")
    if beyond := sorted(server.policy.reads - set(BATCH_FIELDS)):
        raise _Unknown(
            f"{server.policy.name} decides also by {', '.join(beyond)}, which the proof does not "
            "take into account"
        )
    of_paper = server.policy.batching.phases is not None
    if not of_paper and (slots is None or server.scope == "batch"):
        raise _Unknown(
            f"queues that {server.policy.name} may see have no limit, so not all can be tried; "
            "set a max batch size in scope 'running'"
        )
    most = min(budget, slots or budget)
    if slots is None:  # many prompts and any number that decode, or the other way round
        decoding = np.arange(most + 1)
        many = np.column_stack(
            [np.full_like(decoding, budget), decoding, *np.full((2, most + 1), budget)]
        )
        rows = np.vstack([many, [(0, most, 0, 0), (budget, most, 1, budget)]])
    else:
        if server.scope == "running":
            prompts = np.arange(slots + 1)
            decoding = slots - prompts
        else:
            prompts = np.concatenate([np.full(most + 1, slots), np.arange(slots)])
            decoding = np.concatenate([np.arange(most + 1), np.full(slots, most)])
        low = np.maximum((prompts - 1) * lengths.min_prompt + 1, 0) * (prompts > 0)
        rows = np.column_stack([prompts, decoding, low, prompts * longest])
        if of_paper:
            rows[:, 2:] = np.minimum(rows[:, 2:], budget)
    if never_decodes:
        rows = rows[rows[:, 1] == 0]
    return np.asarray(rows)


def _form(
    policy: Callable[[Queue, Limits, Floats], tuple[int, int, int]],
    params: Floats,
    options: Ints,
    rows: Ints,
    fewest: Ints,
    most: Ints,
    stuck: Ints,
    starts: Ints,
    ends: Ints,
) -> int:
    """Form the batch of each queue in the rows, cut as the server cuts it.

    Return a status: that of the first queue without a batch, or that there is none. ``starts`` and
    ``ends`` are of ranges of y by x, and of x by y.
    """
    budget, slots, running, shortest, longest = options
    limits = Limits(budget, slots)
    for row in range(rows.shape[0]):
        prompts, decoding = rows[row, 0], rows[row, 1]
        for tokens in range(rows[row, 2], rows[row, 3] + 1):
            # 1. What the policy asks for, x prefill and y decode tokens, cut as the server cuts it.
            x, y, first = policy(
                Queue(prompts, tokens, decoding, 0, 0, 0, 0, 0, 0, 0, 0), limits, params
            )
            stuck[0], stuck[1], stuck[2] = prompts, tokens, decoding
            if x < 0 or y < 0 or not DECODE_FIRST <= first <= PREFILL_FIRST:
                return _NEGATIVE
            y = min(y, decoding, slots, budget)
            x = min(x, tokens, budget if first == PREFILL_FIRST else budget - y)
            open_slots = prompts
            if running == 0 and first != PREFILL_FIRST:
                open_slots = min(prompts, slots - y)
            if (x == 0 or open_slots == 0) and y == 0:
                return _IDLE
            # 2. How many that may be in fact: prompts that are let in may be short.
            x_start = x_end = x
            if open_slots < prompts:  # the oldest prompts alone may be shorter than what is asked
                x_start = min(x, (open_slots - 1) * shortest + 1) if open_slots > 0 else 0
                x_end = min(x, open_slots * longest)
            y_start = y_end = y
            if first == PREFILL_FIRST:
                y_start = y_end = min(y, budget - x)
                if running == 0 and x > 0:  # x tokens lie in so many prompts, the first partly done
                    in_most = min(1 if x == 1 else (x - 2) // shortest + 2, prompts)
                    y_start = min(y_start, slots - in_most)
                    y_end = min(y_end, slots - (x + longest - 1) // longest)
            # 3. The batch, or a range of batches, which the end widens all at once.
            if x_start < x_end:
                starts[1, y] = min(starts[1, y], x_start)
                ends[1, y] = max(ends[1, y], x_end)
            elif y_start < y_end:
                starts[0, x] = min(starts[0, x], y_start)
                ends[0, x] = max(ends[0, x], y_end)
            else:
                load = x_start + y_start
                fewest[load] = min(fewest[load], y_start)
                most[load] = max(most[load], y_start)
    for key in range(budget + 1):
        for y in range(starts[0, key], ends[0, key] + 1):
            fewest[key + y] = min(fewest[key + y], y)
            most[key + y] = max(most[key + y], y)
        for x in range(starts[1, key], ends[1, key] + 1):
            fewest[key + x] = min(fewest[key + x], key)
            most[key + x] = max(most[key + x], key)
    return _FORMED


_ROW, _ROWS = types.int64[::1], types.int64[:, ::1]
_SIGNATURE = types.int64(POLICY, PARAMS, _ROW, _ROWS, _ROW, _ROW, _ROW, _ROWS, _ROWS)


@functools.cache
def compiled_form() -> Callable[..., Any]:
    """Return `_form` compiled, with one signature: seconds the first time, then from the disk."""
    return entry(_form, _SIGNATURE)
