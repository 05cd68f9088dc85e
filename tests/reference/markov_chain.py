"""The paper's Markov chain, transcribed literally: the specification of the simulator.

This is the basic LLM queueing model of Section 3 (``sec:markov-chain``) in plain Python, one time
slot after another, with the four policies of Section 4 (``sec:incumbent``) and the max batch size
of Section 6, and the adaptive policies that answer its open question. Batch times go by the token
load, or by what is in the batch (Appendix A). It is slow on purpose: every line should be checkable
against the paper. The fast kernel must equal it event for event.

Slots and ticks: slot ``n`` begins at tick ``n`` and ends at tick ``n + 1``. So a batch formed at
tick ``n`` that takes ``t_b`` slots finishes at tick ``n + t_b``, and an arrival stamped ``T`` is
the paper's arrival in slot ``T - 1``: the scheduler sees it at tick ``T``. At a tick the order is
finish, arrive, schedule.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from numbers import Integral
from typing import TypeAlias

from penstock.errors import InputError, nearest
from tests.reference.batch_time import Composition

SCOPES = ("running", "batch")
CONVENTIONS = ("engine", "paper")

Allocation: TypeAlias = dict[int, tuple[int, int]]
"""The paper's pi(x): request index -> (delta_p, delta_d). A request left out has (0, 0)."""


@dataclass
class Request:
    """Request i of the paper, with its unprocessed tokens ``P`` and ``D`` (``eq:state``) and what
    became of it.
    """

    index: int
    arrival: int
    prompt_tokens: int  # v_p(i)
    output_tokens: int
    decode_tokens: int  # v_d(i): decode iterations that it needs, by token convention
    P: int  # unprocessed prefill tokens
    D: int  # unprocessed decode tokens
    first_token: int | None = None
    finish: int | None = None
    # The tick at which each output token was complete.
    token_times: list[int] = field(default_factory=list)

    @property
    def admitted(self) -> bool:
        """Whether any token of it has been scheduled; prefill comes first, so a prompt token."""
        return self.prompt_tokens > self.P

    @property
    def processed(self) -> int:
        """Tokens of it that went into batches."""
        return self.prompt_tokens - self.P + self.decode_tokens - self.D


@dataclass(frozen=True)
class State:
    """What a policy sees: X(n) of ``eq:state`` when R(n) = 0, and the limits. To be read, not
    changed.
    """

    tick: int
    requests: tuple[Request, ...]  # Q_n, in arrival order
    token_budget: int  # b_max
    max_batch_size: int | None  # k_max; None: no limit
    scope: str
    batch_time: Callable[[int], int | Fraction] = lambda tokens: 1  # t_b
    arrived: tuple[Request, ...] = ()  # since tick 0, in arrival order; those that departed too

    @property
    def prompts(self) -> tuple[Request, ...]:
        """Requests in prefill (p_i > 0), oldest first."""
        return tuple(request for request in self.requests if request.P > 0)

    @property
    def decoding(self) -> tuple[Request, ...]:
        """Requests ready to decode (p_i = 0), oldest first."""
        return tuple(request for request in self.requests if request.P == 0)

    @property
    def candidates(self) -> tuple[Request, ...]:
        """Prompts (p_i > 0) that the max batch size lets into this batch, oldest first."""
        if self.max_batch_size is None:
            return self.prompts
        if self.scope == "batch":
            return self.prompts[: self.max_batch_size]
        room = self.max_batch_size - sum(request.admitted for request in self.requests)
        partial = tuple(request for request in self.prompts if request.admitted)
        new = tuple(request for request in self.prompts if not request.admitted)
        return partial + new[:room]


Policy: TypeAlias = Callable[[State], Allocation]


def fastertransformer(state: State) -> Allocation:
    """Serve decodes alone whenever there are any, else prompts (FasterTransformer)."""
    return fill(state, state.decoding or state.candidates)


def vllm_vanilla(state: State) -> Allocation:
    """Serve prompts alone whenever there are any, else decodes (vanilla vLLM)."""
    return fill(state, state.candidates or state.decoding)


def orca(state: State) -> Allocation:
    """Serve prompts first, then decodes with what is left (Orca)."""
    return fill(state, state.candidates + state.decoding)


def sarathi(state: State) -> Allocation:
    """Serve decodes first, then prompts with what is left, from as few requests as possible
    (Sarathi-Serve).
    """
    return fill(state, state.decoding + state.candidates)


def maxweight(state: State) -> Allocation:
    """Serve the batch that is worth most per second, by the requests in each phase (MaxWeight
    back-pressure).
    """
    m_p, m_d = mean_tokens(state)
    Zp, Zd = len(state.prompts), len(state.decoding)
    return worth_most(state, (Zp - Zd) * m_d, Zd * m_p)  # m_p m_d times that of a token


def maxweight_tokens(state: State) -> Allocation:
    """Serve the batch that is worth most per second, by the tokens in each phase."""
    return worth_most(
        state,
        sum(request.P for request in state.prompts),
        sum(request.D for request in state.decoding),
    )


def mean_tokens(state: State) -> tuple[float, float]:
    """Return m_p of the requests that arrived and m_d of those that departed, 1 while no decode is
    known.
    """
    departed = [request.decode_tokens for request in state.arrived if request.finish is not None]
    m_p = sum(request.prompt_tokens for request in state.arrived) / len(state.arrived)
    return m_p, sum(departed) / len(departed) if sum(departed) > 0 else 1.0


def worth_most(state: State, prefill_worth: float, decode_worth: float) -> Allocation:
    """Serve the batch of the greatest (x prefill_worth + y decode_worth) / t_{x+y}; of equals, the
    first found.

    Every budget is tried that one more token would give another batch time, and every split of it.
    Prefill tokens fill a budget from as many prompts as hold them; only where slots run out before
    the budget does, prompts are counted.
    """
    prompts = state.candidates if prefill_worth > 0 else ()
    k = len(state.requests) if state.max_batch_size is None else state.max_batch_size
    best, chosen = -1.0, (0, 0.0, 0)
    for b in range(1, state.token_budget + 1):
        if b < state.token_budget and state.batch_time(b) == state.batch_time(b + 1):
            continue
        for x, y in splits(prompts, min(len(state.decoding), k), b, k, prefill_first=prefill_worth > decode_worth):
            load = math.ceil(x + y)
            worth = (x * prefill_worth + y * decode_worth) / float(state.batch_time(load)) if load > 0 else -1.0
            if worth > best + 1e-12 * best:  # apart by more than rounding errors
                best, chosen = worth, (b, x, y)
    b, x, y = chosen
    if x < b - y and prefill_worth <= decode_worth:
        return fill(state, state.decoding[:y] + prompts[: k - y], b)
    allocation = fill(state, prompts, math.floor(x))
    return allocation | fill(state, state.decoding, b - math.floor(x), k - len(allocation))


def splits(
    prompts: Sequence[Request], decodes: int, b: int, k: int, prefill_first: bool
) -> Iterator[tuple[float, int]]:
    """Yield the prefill and decode tokens that can share b tokens and k slots.

    n prompts hold as many tokens as are left of the oldest, and of the others on average.
    """
    oldest = prompts[0].P if prompts else 0
    others, tokens_of_others = len(prompts) - 1, sum(request.P for request in prompts) - oldest
    if prefill_first:
        x, n = min(oldest + tokens_of_others, b), min(len(prompts), 1)
        while n < len(prompts) and (n - 1) * tokens_of_others < (x - oldest) * others:
            n += 1
        yield x, min(decodes, b - x, k - n)
        return
    for y in range(min(decodes, b), -1, -1):
        n = min(len(prompts), k - y)
        yield min(b - y, oldest + (n - 1) * (tokens_of_others / max(others, 1)) if n > 0 else 0), y


def pool_controlled(state: State) -> Allocation:
    """Serve decodes first, with a budget that falls as more requests decode, where a max batch size
    binds.
    """
    b_max, k, pool = state.token_budget, state.max_batch_size, len(state.decoding)
    if k is None or k >= b_max or pool < 0.9 * k:
        return sarathi(state)
    if pool >= 1.2 * k:
        return fill(state, state.decoding)
    slots = k - 1 if state.candidates and k > 1 else k  # a slot for a prompt
    decoding = state.decoding[: min(slots, b_max)]
    changes = [b for b in range(1, b_max) if state.batch_time(b) != state.batch_time(b + 1)]
    return fill(state, decoding + state.candidates, min(b for b in [*changes, b_max] if b >= len(decoding)))


def fill(state: State, requests: Iterable[Request], tokens: int | None = None, slots: int | None = None) -> Allocation:
    """Serve the requests in the order given while tokens and slots last; a prompt is cut to fit.

    So many tokens and slots as given, else as many as a batch may have. In scope ``running`` slots
    never bind: decodes and candidates together are at most the max batch size.
    """
    allocation: Allocation = {}
    tokens_left = state.token_budget if tokens is None else tokens
    slots_left = state.max_batch_size if slots is None else slots
    if slots_left is None:
        slots_left = len(state.requests)
    for request in requests:
        if tokens_left == 0 or slots_left == 0:
            break
        delta_p = min(request.P, tokens_left)
        delta_d = 1 if request.P == 0 else 0
        allocation[request.index] = (delta_p, delta_d)
        tokens_left -= delta_p + delta_d
        slots_left -= 1
    return allocation


POLICIES: dict[str, Policy] = {
    "fastertransformer": fastertransformer,
    "vllm-vanilla": vllm_vanilla,
    "orca": orca,
    "sarathi": sarathi,
    "maxweight": maxweight,
    "maxweight-tokens": maxweight_tokens,
    "pool-controlled": pool_controlled,
}


def assert_feasible(state: State, allocation: Allocation) -> None:
    """Assert ``eq:feasibility-constraint`` (a) to (d), the max batch size, and no idling beside a
    request.

    Some request of a non-empty system can always be served: an admitted one, or, if there is none,
    a new one.
    """
    p = {request.index: request.P for request in state.requests}
    at = f"at tick {state.tick}"
    for i, (delta_p, delta_d) in allocation.items():
        assert i in p, f"{at} request {i} is served, but is not in the system"
        assert min(delta_p, delta_d) >= 0, f"{at} request {i} gets {delta_p} prefill and {delta_d} decode tokens"
        assert p[i] == 0 or delta_d == 0, f"{at} request {i} decodes before its prefill (eq:prefill-pre-decode)"
        assert delta_p <= p[i], f"{at} request {i} prefills {delta_p} of {p[i]} tokens (eq:prefill-unprocess)"
        assert delta_d <= 1, f"{at} request {i} decodes {delta_d} tokens at once (eq:decode-unprocess)"
    b, b_max = token_load(allocation), state.token_budget
    assert b <= b_max, f"{at} {b} tokens exceed the budget of {b_max} (eq:batch-constraint)"
    assert b > 0 or not p, f"{at} the batch is empty, but one of {len(p)} requests can be served"
    if state.max_batch_size is not None:
        counted = {i for i, (delta_p, delta_d) in allocation.items() if delta_p + delta_d > 0}
        if state.scope == "running":
            counted |= {request.index for request in state.requests if request.admitted}
        k, k_max = len(counted), state.max_batch_size
        assert k <= k_max, f"{at} {k} requests exceed {k_max} in scope {state.scope} (eq:batch-size-constraint)"


def token_load(allocation: Allocation) -> int:
    """Return b, the sum over i of delta_p + delta_d (``eq:batch-constraint``)."""
    return sum(delta_p + delta_d for delta_p, delta_d in allocation.values())


@dataclass(frozen=True)
class Batch:
    """One forward pass: it holds the server over ticks [start, start + duration)."""

    start: int
    duration: int
    allocation: Allocation  # of the requests that it serves, in the policy's order

    @property
    def end(self) -> int:
        """Its finish; past `History.end` if the run was stopped before."""
        return self.start + self.duration

    @property
    def prefill_tokens(self) -> int:
        """The paper's x."""
        return sum(delta_p for delta_p, _ in self.allocation.values())

    @property
    def decode_tokens(self) -> int:
        """The paper's y."""
        return sum(delta_d for _, delta_d in self.allocation.values())

    @property
    def requests(self) -> int:
        """The paper's k."""
        return len(self.allocation)


@dataclass
class History:
    """What happened up to tick ``end``: every request that arrived by then, every batch formed
    before.

    The three counts are exact after the finishes and arrivals at a tick, and before the batch
    formed then.
    """

    requests: list[Request]
    batches: list[Batch]
    end: int

    def requests_in_system(self, tick: int) -> int:
        """Count requests that have arrived and not departed, |Q_n|."""
        return sum(request.finish is None or request.finish > tick for request in self._arrived(tick))

    def unprocessed_tokens(self, tick: int) -> int:
        """Count tokens not yet put into a batch, |X(n)| of Theorem 1: they leave it when their
        batch starts.
        """
        return self._arrived_tokens(tick) - sum(token_load(b.allocation) for b in self.batches if b.start < tick)

    def uncompleted_tokens(self, tick: int) -> int:
        """Count tokens not yet through a batch: they leave it when their batch ends."""
        return self._arrived_tokens(tick) - sum(token_load(b.allocation) for b in self.batches if b.end <= tick)

    def _arrived(self, tick: int) -> list[Request]:
        if not 0 <= tick <= self.end:
            raise InputError(f"tick {tick} is outside this run, which covers ticks 0 to {self.end}; ask within it")
        return [request for request in self.requests if request.arrival <= tick]

    def _arrived_tokens(self, tick: int) -> int:
        return sum(request.prompt_tokens + request.decode_tokens for request in self._arrived(tick))


def simulate(
    arrival: Sequence[int],
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    batch_time: Callable[[int], int] | Composition,
    token_budget: int,
    max_batch_size: int | None = None,
    policy: str | Policy = "sarathi",
    scope: str = "running",
    convention: str = "engine",
    until: int | None = None,
) -> History:
    """Run the system dynamics of ``sec:markov-chain``, slot by slot, from an empty server at tick
    0.

    Parameters
    ----------
    arrival, prompt, output
        One entry per request, in arrival order: arrival tick, prompt tokens, output tokens.
    batch_time
        Token load -> ticks, at least 1. (t_0 = 0: an empty batch is no batch.) Or what a batch
        costs by what is in it.
    token_budget, max_batch_size
        The limits b_max and k_max (None: no limit).
    policy
        A name in `POLICIES`, or a function from a `State` to ``{request: (delta_p, delta_d)}``.
    scope
        What the max batch size counts: requests in one ``batch``, or ``running`` ones, admitted and
        unfinished.
    convention
        ``engine``: the end of prefill completes output token 1, then come output - 1 decode
        iterations. ``paper``: output decode iterations, each of which completes a token.
    until
        Stop at this tick, after its finishes and arrivals; None: when every request has departed.

    Returns
    -------
    History
        With `until`, a batch in flight stays in ``batches`` but completes nothing.

    Raises
    ------
    InputError, AssertionError
        If an argument cannot be used; if the policy forms an infeasible batch, or an empty one
        without need.

    >>> history = simulate([0, 1], [3, 2], [2, 1], batch_time=lambda b: 2, token_budget=4)
    >>> [(batch.start, batch.allocation) for batch in history.batches]
    [(0, {0: (3, 0)}), (2, {0: (0, 1), 1: (2, 0)})]
    >>> [(request.first_token, request.finish) for request in history.requests]
    [(2, 4), (4, 4)]
    """
    known("scope", scope, SCOPES)
    known("convention", convention, CONVENTIONS)
    choose = POLICIES[known("policy", policy, POLICIES)] if isinstance(policy, str) else policy
    b_max = at_least("token_budget", token_budget, 1)
    k_max = None if max_batch_size is None else at_least("max_batch_size", max_batch_size, 1)
    requests = arrivals(arrival, prompt, output, convention)
    arriving: dict[int, list[Request]] = {}  # by the tick at which the scheduler first sees them
    for request in requests:
        arriving.setdefault(request.arrival, []).append(request)
    horizon = max(arriving, default=0) if until is None else at_least("until", until, 0)

    n, R, Q = 0, 0, arriving.get(0, [])
    batches: list[Batch] = []
    while n < horizon or (until is None and Q):
        # 1. Scheduling
        t_b = 0
        if R == 0 and Q:
            arrived = tuple(request for request in requests if request.arrival <= n)
            state = State(n, tuple(Q), b_max, k_max, scope, batch_time, arrived)
            pi = choose(state)
            assert_feasible(state, pi)
            served = {i: (delta_p, delta_d) for i, (delta_p, delta_d) in pi.items() if delta_p + delta_d > 0}
            b = token_load(served)
            t_b = ticks_of(served, Q, batch_time) if isinstance(batch_time, Composition) else batch_time(b)
            at_least(f"batch_time({b})", t_b, 1)
            batches.append(Batch(n, t_b, served))
            for request in Q:
                delta_p, delta_d = served.get(request.index, (0, 0))
                request.P -= delta_p
                request.D -= delta_d

        # 2. Processing (eq:r-transition)
        R_next = max(R, t_b, 1) - 1  # of the batch in progress, or of the one that starts

        # 3. Departures, at the end of the slot
        if R_next == 0 and (R > 0 or t_b > 0):
            complete(batches[-1], Q, convention)
            Q = [request for request in Q if request.finish is None]

        # 4. Arrivals
        Q = Q + arriving.get(n + 1, [])
        n, R = n + 1, R_next

    return History([request for request in requests if request.arrival <= n], batches, end=n)


def complete(batch: Batch, requests: Iterable[Request], convention: str) -> None:
    """End a batch: output tokens are complete, and requests without any unprocessed token
    finish.
    """
    for request in requests:
        delta_p, delta_d = batch.allocation.get(request.index, (0, 0))
        prefill_ended = delta_p > 0 and request.P == 0
        if delta_d > 0 or (prefill_ended and convention == "engine"):
            request.token_times.append(batch.end)
            request.first_token = request.token_times[0]
        if request.P == 0 and request.D == 0:
            request.finish = batch.end


def ticks_of(allocation: Allocation, requests: Iterable[Request], batch_time: Composition) -> int:
    """Return the ticks of a batch of requests, as they are before it (Appendix A)."""
    served = [request for request in requests if request.index in allocation]
    prefill = [(allocation[request.index][0], request.processed) for request in served if request.P > 0]
    return batch_time.ticks(prefill, [request.processed for request in served if request.P == 0])


def arrivals(arrival: Sequence[int], prompt: Sequence[int], output: Sequence[int], convention: str) -> list[Request]:
    """Return the requests in their initial state, P_i = v_p(i) and D_i = v_d(i)."""
    if not len(arrival) == len(prompt) == len(output):
        lengths = f"{len(arrival)} arrivals, {len(prompt)} prompts and {len(output)} outputs"
        raise InputError(f"{lengths} do not pair; pass one of each per request")
    requests: list[Request] = []
    for i in range(len(arrival)):
        a = at_least(f"arrival[{i}]", arrival[i], 0)
        v_p = at_least(f"prompt[{i}]", prompt[i], 1)
        out = at_least(f"output[{i}]", output[i], 1)
        if requests and a < requests[-1].arrival:
            raise InputError(f"arrival[{i}] = {a} is before arrival[{i - 1}] = {arrival[i - 1]}; sort by arrival")
        v_d = out - 1 if convention == "engine" else out
        requests.append(Request(i, a, v_p, out, v_d, P=v_p, D=v_d))
    return requests


def known(what: str, name: str, names: Iterable[str]) -> str:
    """Return `name`, which must be one of `names`."""
    if name not in names:
        raise InputError(f"there is no {what} {name!r}{nearest(name, names)}")
    return name


def at_least(name: str, value: int, least: int) -> int:
    """Return `value`, which must be a whole number of at least `least`."""
    if not isinstance(value, Integral) or value < least:
        raise InputError(f"{name} = {value!r}, but ticks and tokens are counted: pass a whole number from {least} up")
    return int(value)
