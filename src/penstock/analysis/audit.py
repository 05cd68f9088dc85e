"""Audit: what a recorded run did, worked out again from its allocations.

Nothing here comes from the simulator: batches, token times and queues are rebuilt from who got how many tokens in which
batch, and held against the rules of the paper's Section 3 and against what the run recorded.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import InputError
from penstock.run import Rows, Run

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MOST_KEPT = 20  # violations that are put into words; the others are counted


class Shortfall(NamedTuple):
    """A batch that carried less than it should: its index, its start (tick), its tokens, what they could have been."""

    batch: int
    start: int
    tokens: int
    supply: int


class Conservation(NamedTuple):
    """Whether every batch carried what it should (None: prompts out of order under a limit), and which did not."""

    held: bool | None
    breaches: int
    first: Shortfall | None


@dataclasses.dataclass(frozen=True)
class Audit:
    """What the allocations of a run prove about it.

    The supply of a batch is what the requests in the system at its start, after the finishes and arrivals at that tick,
    could put into it. Without a max batch size that is the paper's: p_i for a request with p_i > 0 prompt tokens left,
    1 for any other. Under a max batch size k it is the most that a policy can take which serves prompts in order of
    arrival. In scope ``running``: all decodes, and the prompts admitted or the next to be, up to k requests running.
    In scope ``batch``: the first k prompts, then decodes, up to k requests.

    Attributes
    ----------
    feasible
        Whether no violation was found. If some were, the other findings say little.
    violations, n_violations
        The first violations in words, each with the name of its rule, and how many there are. ``arrival``: requests
        come in order of arrival, and are served from then on. ``allocation``: each names a batch and a request, once,
        and gives it something. ``finish``: nothing after it. ``eq:prefill-pre-decode``: the whole prompt first.
        ``eq:prefill-unprocess``, ``eq:decode-unprocess``: no more tokens than are left, decode one at a time.
        ``eq:batch-constraint``: the token budget. ``eq:batch-size-constraint``: the max batch size in its scope.
        ``batch``: they follow one another, take what the batch-time model says, and equal their rows. ``times``: first
        tokens and finishes are where the allocations put them. ``totals``: the run's counts are theirs.
    paper, strong
        Work conservation as the paper has it (a batch carries b_max tokens whenever the supply is at least that), and
        strong (it always carries min(supply, b_max)).
    idle_periods, idle_from
        Times without a batch beside a request in the system, and the tick at which the first began. Some request can
        always be served, so a sound policy has none.
    overtake_k
        Smallest K for which the paper's K-FCFS condition held: beside a request j that decodes, every request
        i <= j - K in the system gets a token. 0: no request that decoded passed an older one by.
    """

    feasible: bool
    violations: tuple[str, ...]
    n_violations: int
    paper: Conservation
    strong: Conservation
    idle_periods: int
    idle_from: int | None
    overtake_k: int


def audit(run: Run) -> Audit:
    """Check a run against the rules, and find out whether its policy was work-conserving and K-FCFS in it.

    Parameters
    ----------
    run
        Simulated with ``record="allocations"``.

    Raises
    ------
    InputError
        If the run did not keep its allocations.
    """
    if not isinstance(run, Run):
        raise InputError(f"audit takes a Run, not {type(run).__name__}; give it what simulate returned")
    if run.rows is None or run.batch_rows is None or run.allocation_rows is None:
        raise InputError("an audit needs to know who was served in every batch; simulate with record='allocations'")
    found = _Findings()
    replay = _replay(run.rows, run.batch_rows, run.allocation_rows, run.server.convention == "engine", found)
    _check_service(replay, found)
    _check_batches(run, run.batch_rows, replay, found)
    _check_times(run, run.rows, replay, found)
    budget, supply = run.server.token_budget, _supply(run, replay)
    idle = _idle_since(run, replay)
    return Audit(
        feasible=found.count == 0,
        violations=tuple(found.kept),
        n_violations=found.count,
        paper=_conservation(replay, supply, lambda s: (s >= budget) & (replay.load != budget)),
        strong=_conservation(replay, supply, lambda s: replay.load != np.minimum(s, budget)),
        idle_periods=idle.size,
        idle_from=int(idle[0]) if idle.size else None,
        overtake_k=_overtake_k(replay),
    )


class _Findings:
    """Violations: all counted, the first in words."""

    def __init__(self) -> None:
        self.count = 0
        self.kept: list[str] = []

    def note(self, columns: dict[str, Ints], rules: dict[str, Bools]) -> None:
        """Add a sentence, filled in from the columns, for each place at which its rule is broken."""
        for sentence, broken in rules.items():
            places = np.flatnonzero(broken)
            self.count += places.size
            for i in places[: MOST_KEPT - len(self.kept)]:
                self.kept.append(sentence.format(**{name: column[i] for name, column in columns.items()}))


@dataclasses.dataclass(frozen=True)
class _Replay:
    """The run again, from its allocations.

    Per request: arrival, prompt, decodes (iterations needed), and the batch in which it was admitted, ended its
    prefill, decoded first, finished (the number of batches: in none). Per batch: start, end, load. Per allocation, by
    request and then by batch: request, batch, prefill, decode, and what its request had been given before.
    """

    arrival: Ints
    prompt: Ints
    decodes: Ints
    admitted_in: Ints
    prefilled_in: Ints
    decoded_in: Ints
    finished_in: Ints
    start: Ints
    end: Ints
    load: Ints
    request: Ints
    batch: Ints
    prefill: Ints
    decode: Ints
    prefilled: Ints
    decoded: Ints

    def before(self, happened_in: Ints) -> Ints:
        """Return, for each batch, how many of these happened in an earlier one."""
        return np.searchsorted(np.sort(happened_in), np.arange(self.start.size))


def _replay(rows: Rows, batch_rows: Ints, allocation_rows: Ints, engine: bool, found: _Findings) -> _Replay:
    n, m = rows.arrival.size, batch_rows.shape[0]
    early = np.diff(rows.arrival, prepend=0) < 0
    found.note({"i": np.arange(n)}, {"request {i} arrived before the one ahead of it (arrival)": early})
    batch, request = allocation_rows[:, 0], allocation_rows[:, 1]
    real = (batch >= 0) & (batch < m) & (request >= 0) & (request < n)
    strange = f"an allocation names batch {{b}} of {m} and request {{i}} of {n} (allocation)"
    found.note({"b": batch, "i": request}, {strange: ~real})
    kept = allocation_rows[real]
    batch, request, prefill, decode = kept[np.lexsort((kept[:, 0], kept[:, 1]))].T
    first = np.searchsorted(request, np.arange(n))

    def given_before(tokens: Ints) -> Ints:
        total = np.append(0, np.cumsum(tokens))
        return np.asarray(total[:-1] - total[first[request]], np.int64)

    def batch_of(chosen: Bools) -> Ints:
        """Return, for each request, the batch of its first chosen allocation."""
        where = np.full(n, m, np.int64)
        np.minimum.at(where, request[chosen], batch[chosen])
        return where

    prompt = rows.prompt_tokens.astype(np.int64)
    decodes = rows.output_tokens.astype(np.int64) - engine
    prefilled, decoded = given_before(prefill), given_before(decode)
    prefilled_in = batch_of(prefilled + prefill >= prompt[request])
    return _Replay(
        arrival=rows.arrival, prompt=prompt, decodes=decodes,
        admitted_in=batch_of(prefill + decode > 0), prefilled_in=prefilled_in, decoded_in=batch_of(decode > 0),
        finished_in=np.where(decodes == 0, prefilled_in, batch_of(decoded + decode >= decodes[request])),
        start=batch_rows[:, 0], end=batch_rows[:, 0] + batch_rows[:, 1],
        load=np.bincount(batch, prefill + decode, m).astype(np.int64),
        request=request, batch=batch, prefill=prefill, decode=decode, prefilled=prefilled, decoded=decoded,
    )  # fmt: skip


def _check_service(r: _Replay, found: _Findings) -> None:
    """Check each allocation against what its request had been given before."""
    i, b, x, y = r.request, r.batch, r.prefill, r.decode
    p, d = np.maximum(r.prompt[i] - r.prefilled, 0), np.maximum(r.decodes[i] - r.decoded, 0)
    arrival, start = r.arrival[i], r.start[b]
    again = (np.diff(i, prepend=-1) == 0) & (np.diff(b, prepend=-1) == 0)
    columns = {"b": b, "i": i, "x": x, "y": y, "p": p, "d": d, "start": start, "arrival": arrival}
    who = "batch {b} (tick {start}): request {i} "
    rules = {
        who + "has two allocations (allocation)": again,
        who + "gets {x} prefill and {y} decode tokens (allocation)": (np.minimum(x, y) < 0) | (x + y == 0),
        who + "is served before its arrival at tick {arrival} (arrival)": arrival > start,
        who + "is served after it has finished (finish)": (p == 0) & (d == 0),
        who + "decodes with {p} prompt tokens to go (eq:prefill-pre-decode)": (y > 0) & (p > 0),
        who + "prefills {x} tokens, but has {p} left (eq:prefill-unprocess)": x > p,
        who + "decodes {y} tokens, but has {d} left, one at a time (eq:decode-unprocess)": y > np.minimum(d, 1),
    }
    found.note(columns, rules)


def _check_batches(run: Run, rows: Ints, r: _Replay, found: _Findings) -> None:
    """Check each batch against the limits, the batch-time model and its row."""
    server, m = run.server, r.start.size
    budget, limit = server.token_budget, server.max_batch_size
    requests = np.bincount(r.batch, minlength=m)
    counted = requests
    if server.scope == "running":  # admitted up to this batch, and not finished before it
        counted = r.before(r.admitted_in - 1) - r.before(r.finished_in)
    free = np.append(0, r.end)[:m]
    ticks = np.rint(server.batch_time.table(budget) / run.tick_s).astype(np.int64)
    expected = ticks[np.clip(r.load, 0, budget)]
    columns = {"b": np.arange(m), "start": r.start, "ticks": r.end - r.start, "free": free, "expected": expected}
    columns |= {"load": r.load, "counted": counted}
    which = "batch {b} (tick {start}) "
    over = f"has {{counted}} requests in scope {server.scope}, over the limit of {limit} (eq:batch-size-constraint)"
    rules = {
        which + f"has {{load}} tokens, over the budget of {budget} (eq:batch-constraint)": r.load > budget,
        which + over: counted > (m + r.request.size if limit is None else limit),
        which + "starts before the one ahead ends at tick {free} (batch)": r.start < free,
        which + "takes {ticks} ticks for {load} tokens instead of {expected} (batch)": r.end - r.start != expected,
    }
    sums = {"prefill tokens": np.bincount(r.batch, r.prefill, m), "decode tokens": np.bincount(r.batch, r.decode, m)}
    for column, (name, total) in enumerate((sums | {"requests": requests}).items(), start=2):
        columns |= {f"row{column}": rows[:, column], f"sum{column}": total.astype(np.int64)}
        differs = f"has {{row{column}}} {name} in its row, but {{sum{column}}} by its allocations (batch)"
        rules[which + differs] = rows[:, column] != total
    found.note(columns, rules)


def _check_times(run: Run, rows: Rows, r: _Replay, found: _Findings) -> None:
    """Check recorded times and totals; a batch in flight when the run stopped completed nothing."""
    completed = r.end <= run.end
    ends = np.append(np.where(completed, r.end, -1), -1)
    first = ends[r.prefilled_in if run.server.convention == "engine" else r.decoded_in]
    last = ends[r.finished_in]
    for name, was, due in (("first token", rows.first_token, first), ("finish", rows.finish, last)):
        sentence = f"request {{i}}: {name} at tick {{was}}, by its allocations {{due}}; -1 is never (times)"
        found.note({"i": np.arange(was.size), "was": was, "due": due}, {sentence: was != due})
    counts = {
        "requests arrived": (run.arrived, r.arrival.size),
        "requests finished": (run.finished, np.count_nonzero(last >= 0)),
        "batches": (run.n_batches, r.start.size),
        "completed tokens": (run.tokens, int(r.load[completed].sum())),
        "started tokens": (run.started_tokens, int(r.load.sum())),
    }
    for name, (recorded, implied) in counts.items():
        sentence = f"the run counts {recorded} {name}, but its allocations {implied} (totals)"
        found.note({}, {sentence: np.array([recorded != implied])})


def _supply(run: Run, r: _Replay) -> Ints | None:
    """Return what each batch could have carried (see `Audit`), or None if that is not defined."""
    limit, m = run.server.max_batch_size, r.start.size
    arrived = np.searchsorted(r.arrival, r.start, side="right")
    prompt_ends = np.append(0, np.cumsum(r.prompt))
    done = np.append(0, np.cumsum(np.bincount(r.batch, r.prefill, m).astype(np.int64)))[:m]
    decodes = r.decodes > 0
    decoding = r.before(r.prefilled_in[decodes]) - r.before(r.finished_in[decodes])
    last, slots = arrived, decoding  # the prompts are those up to `last`
    if limit is not None:
        if not _prompts_in_order(r, prompt_ends):
            return None
        head = np.searchsorted(prompt_ends, done, side="right") - 1  # the oldest prompt, perhaps cut
        if run.server.scope == "running":
            last = np.clip(head + limit - decoding, head, arrived)
        else:
            last = np.minimum(head + limit, arrived)
            slots = limit - (last - head)
    return np.asarray(prompt_ends[last] - done + np.minimum(decoding, slots), np.int64)


def _prompts_in_order(r: _Replay, prompt_ends: Ints) -> bool:
    """Whether prompt tokens were served in order of arrival, each prompt to its end before the next."""
    served = np.flatnonzero(r.prefill > 0)
    served = served[np.lexsort((r.request[served], r.batch[served]))]
    request, tokens = r.request[served], r.prefill[served]
    until = np.cumsum(tokens)
    return bool(((until - tokens >= prompt_ends[request]) & (until <= prompt_ends[request + 1])).all())


def _conservation(r: _Replay, supply: Ints | None, short: Callable[[Ints], Bools]) -> Conservation:
    breaches = np.flatnonzero(short(supply)) if supply is not None else np.empty(0, np.int64)
    if supply is None or not breaches.size:
        return Conservation(None if supply is None else True, 0, None)
    b = int(breaches[0])
    return Conservation(False, breaches.size, Shortfall(b, int(r.start[b]), int(r.load[b]), int(supply[b])))


def _idle_since(run: Run, r: _Replay) -> Ints:
    """Return the ticks since which a request waited beside a server without a batch, one per idle period."""
    free, taken = np.append(0, r.end), np.append(r.start, run.end)
    gone = np.searchsorted(np.sort(r.finished_in), np.arange(free.size))
    waiting = gone < np.searchsorted(r.arrival, taken)  # someone arrived before the period ended
    since = np.maximum(free, r.arrival[np.minimum(gone, r.arrival.size - 1)])
    return np.asarray(since[(free < taken) & waiting], np.int64)


def _overtake_k(r: _Replay) -> int:
    """Return the smallest K of the K-FCFS condition.

    Each request passes through its batches in stretches without service; the youngest request that decoded during a
    stretch overtook it the furthest. (Before a request arrived, nobody younger was there.)
    """
    n, m = r.arrival.size, r.start.size
    last_served = np.full(n, -1, np.int64)
    np.maximum.at(last_served, r.request, r.batch)
    is_first = np.diff(r.request, prepend=-1) != 0
    request = np.append(r.request, np.arange(n))  # the second part: after the last service, if it did not finish
    since = np.append(np.where(is_first, 0, np.roll(r.batch, 1) + 1), last_served + 1)
    until = np.append(r.batch, r.finished_in)
    stretch = since < until
    if not stretch.any():
        return 0
    youngest = np.full(m, -1, np.int64)
    decoding = r.decode > 0
    np.maximum.at(youngest, r.batch[decoding], r.request[decoding])
    return max(int((_largest(youngest, since[stretch], until[stretch]) - request[stretch]).max()) + 1, 0)


def _largest(values: Ints, since: Ints, until: Ints) -> Ints:
    """Return the largest of ``values[since:until]`` for each pair, from maxima over powers of two."""
    levels = [values]
    while 2 ** len(levels) <= values.size:
        half = 2 ** (len(levels) - 1)
        levels.append(np.maximum(levels[-1], np.append(levels[-1][half:], np.full(half, -1))))
    k = np.frexp((until - since).astype(np.float64))[1] - 1
    table = np.stack(levels)
    return np.asarray(np.maximum(table[k, since], table[k, until - (1 << k)]), np.int64)
