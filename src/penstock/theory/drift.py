"""A sufficient condition for any policy under any limits: every batch that a backlog leads to
drains it.

Theorem (Foster, weighted tokens). Let arrivals be renewals of rate lambda, lengths i.i.d. and
bounded, m_p and m_d the mean prefill and decode tokens of a request, in the server's convention. If
there are w_p, w_d > 0 and eps > 0 with

    w_p x + w_d y  >=  (lambda (w_p m_p + w_d m_d) + eps) t_{x+y}

for every batch (x, y) that the policy forms while at least L requests are in the system, the queues
stay finite.

Proof. Let V = w_p W_p + w_d W_d, with W_p and W_d the prefill and decode tokens yet to be processed
of every request in the system: those of waiting prompts, and decodes to come after a prefill,
included. As lengths are bounded, there is an M such that V > M means at least L requests. Fix s > 0
and follow the batches that start within s seconds, the last ending before s + t_max, with t_min and
t_max the least and the greatest batch time. There are at most s / t_min + 1 of them, and each takes
away a bounded amount, so from V > M' (M' = M plus what they can take) all of them are formed under
a backlog. They take at least (lambda (w_p m_p + w_d m_d) + eps) s from V. At most N arrivals in s +
t_max seconds add w_p m_p + w_d m_d each on average (Wald), and E[N] <= 1 + U(s + t_max), whatever
the age of the gap at the start, with U the renewal function. U(s) / s -> lambda, so for large s the
mean change of V is below -1, from every state with V > M'. By Foster's criterion V returns to {V <=
M'}, a bounded queue, in finite mean time. Batch times that are random with mean t_b, drawn anew for
each batch from a bounded range, change nothing.

Where batches take longer for what is in them (`penstock.theory.attention`), let t_{x+y} be the time
by token load, with `per_request` and `with_prefill` more where x > 0. Let w_p x + w_d y >= t_{x+y}
for all those batches. Let V be

    V = w_p W_p + w_d W_d + (the most that the attention of what is left may take).

Each batch takes away at least as many seconds as it lasts, and lambda (w_p m_p + w_d m_d + A+)
arrive per second, A+ the most that the attention of a mean request may take. So below 1 the queues
stay finite, as before.

Which batches a backlog leads to is enumerated: every queue that a policy may see while L requests
are in the system, and what the policy and the server make of it. Under a max batch size k in scope
``running``, d decoding requests leave k - d prompts to be seen, so such queues are finitely many,
for a policy of the user's own too. Elsewhere queues grow without limit, and only the policies of
the paper are known to look no further than their limits.
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
from penstock.theory.attention import attention, beside_prefill, slowed
from penstock.workload.lengths import Lengths

MOST_QUEUES = 50_000_000
"""So many queues are tried at most: about a second."""

_NO_LIMIT = 2**40
_LEAST_SHARE = 1e-9  # of either phase in the weight of a request: both weights are positive
_FORMED, _IDLE, _NEGATIVE = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class Drift:
    """How far the condition certifies a policy."""

    certified_rate: float | None  # requests/s below which it holds; None: not tried, or at no rate
    # w_p and w_d, for which an average request weighs 1.
    prefill_weight: float
    decode_weight: float
    worst: tuple[int, int]  # (prefill, decode) tokens of the batch that drains least
    why: str


@cached(32)
def drift(lengths: Lengths, server: Server) -> Drift:
    """Find the weights under which a backlog drains at the highest rate."""
    # With w = (a / m_p, (1 - a) / m_d) a request weighs 1, and a batch drains f(a) = (w_p x + w_d
    # y) / t requests/s. The certified rate is the largest over a of the least f over the batches,
    # and with attention 1 / (1 / f + A+).
    try:
        fewest, most = backlog_batches(lengths, server)
    except _Unknown as unknown:
        return Drift(None, 0.0, 0.0, (0, 0), str(unknown))
    # Of the batches of each token load those with the fewest and the most decodes count.
    loads = np.flatnonzero(most >= 0)
    load = np.tile(loads, 2)
    decode = np.concatenate([fewest[loads], most[loads]])
    lengthened = np.tile(fewest[loads] < loads, 2) * beside_prefill(server.batch_time)
    seconds = server.batch_time.by_tokens(load) + lengthened
    prompt = lengths.mean_prompt
    decodes = server.tokens_per_request(prompt, lengths.mean_output) - prompt
    by_prefill = (load - decode) / prompt / seconds
    if decodes > 0:
        by_decode = decode / decodes / seconds
        share = _best_share(by_prefill, by_decode)
        weights = share / prompt, (1 - share) / decodes
    else:  # engines have nothing to decode of outputs of one token
        by_decode, share = by_prefill, 1.0
        weights = 1 / prompt, 1 / prompt
    drained = share * by_prefill + (1 - share) * by_decode
    worst = int(np.argmin(drained))
    x, y = int(load[worst] - decode[worst]), int(decode[worst])

    most_attention = attention(lengths, server).most
    rate = slowed(float(drained[worst]), most_attention)
    enough = "enough"
    if most_attention:
        enough += f", with up to {most_attention:.4g} s of attention per request,"
    why = (
        f"of the batches that a backlog leads to, the one of {x:,} prefill and {y:,} decode "
        f"tokens drains least: {enough} for {rate:.4g} requests/s"
    )
    if rate <= 0:
        return Drift(None, *weights, (x, y), why)
    return Drift(rate, *weights, (x, y), why)


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


def _best_share(by_prefill: Floats, by_decode: Floats) -> float:
    """Return the a in (0, 1) that maximises the least of a by_prefill + (1 - a) by_decode."""
    # The least of lines is concave: it rises along one, then falls along another. Where they cross,
    # either they are lowest, or a lower line takes the place of one of them.
    slope = by_prefill - by_decode
    first, last = _LEAST_SHARE, 1 - _LEAST_SHARE
    rising, falling = (int(np.argmin(by_decode + share * slope)) for share in (first, last))
    if slope[rising] <= 0:
        return first
    if slope[falling] >= 0:
        return last
    while True:
        share = (by_decode[falling] - by_decode[rising]) / (slope[rising] - slope[falling])
        drained = by_decode + share * slope
        lowest = int(np.argmin(drained))
        if lowest in (rising, falling) or drained[lowest] >= drained[rising] * (1 - 1e-12):
            return float(share)
        if slope[lowest] > 0:
            rising = lowest
        else:
            falling = lowest


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
