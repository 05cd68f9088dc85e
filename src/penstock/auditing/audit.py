"""Audit: what a recorded run did, worked out again from its allocations.

Nothing here comes from the simulator: batches, token times, queues, preemptions and memory are
rebuilt from who got how many tokens in which batch, and held against the rules of the paper's
Section 3 and against what the run recorded.
"""

import dataclasses

import numpy as np

from penstock.auditing.conservation import Conservation, supply_of, work_conservation
from penstock.auditing.replay import Replay, replay
from penstock.errors import InputError
from penstock.inputs.arrays import Bools, Ints
from penstock.simulation.rows import Rows
from penstock.simulation.run import Run
from penstock.system.batch_time import Composition
from penstock.system.server import Server

MOST_KEPT = 20  # violations that are put into words; the others are counted


@dataclasses.dataclass(frozen=True)
class Audit:
    """What the allocations of a run prove about it.

    The supply of a batch is what the requests in the system at its start, after the finishes and
    arrivals at that tick, could put into it. Where batches are composed a step ahead it is what
    those could that were known then, at the start of the batch before: who came since is not
    counted, and who finished with that one keeps a place. Without a max batch size that is the
    paper's: p_i for a request with p_i > 0 prompt tokens left, 1 for any other. A max batch size of
    k matters where more than k requests are there. In scope ``running`` it leaves what those that
    run have left, and the next prompts in order of arrival, up to k requests. In scope ``batch``
    the first k prompts, then decodes, up to k requests. It is not defined there if requests were
    admitted (in scope ``batch``: served) out of order of arrival, or if some were preempted, which
    order the queue as they please; nor if some came without a prompt, as they may in networks.

    Of a replica of a network (`Run.at`) requests come in the order in which they arrived
    there, whatever their stage and the age of their job, and K compares them all: an order that
    ranks stages or jobs makes it large. Requests without a prompt were admitted elsewhere, so they
    take part in the max batch size of scope ``running`` with the batches that serve them only.

    Memory takes no part in it, although it makes any policy leave room: audit work conservation
    where memory is ample. A request that is preempted counts as the prompt that it will do again
    from the batch that leaves it out.

    Attributes
    ----------
    feasible
        Whether no violation was found. If some were, the other findings say little.
    violations, n_violations
        The first violations in words, each with the name of its rule, and how many there are.
        ``arrival``: requests come in order of arrival, and are served from then on. ``allocation``:
        each names a batch and a request, once, and gives it something. ``finish``: nothing after
        it. ``eq:prefill-pre-decode``: the whole prompt first. ``eq:prefill-unprocess``,
        ``eq:decode-unprocess``: no more tokens than are left, decode one at a time.
        ``eq:batch-constraint``: the token budget, which some engines apply to batches with prefill
        only, or not at all. ``eq:batch-size-constraint``: the max batch size in its scope.
        ``preemption``: what requests do again agrees with how often they were preempted.
        ``memory``: the blocks that requests surely hold, for the tokens they have processed or what
        their admission reserves, are there. ``batch``: they follow one another, take what the
        batch-time model says, and equal their rows. ``times``: first
        tokens and finishes are where the allocations put them. ``totals``: the run's counts are
        theirs.
    paper, strong
        Work conservation as the paper has it (a batch carries b_max tokens whenever the supply is
        at least that), and strong (it always carries min(supply, b_max)). Engines without a token
        budget may carry more.
    idle_periods, idle_from
        Times without a batch beside a request in the system, and the tick at which the first began.
        Some request can always be served, so a sound policy has none.
    overtake_k
        Smallest K for which the paper's K-FCFS condition held: beside a request j that decodes,
        every request i <= j - K in the system gets a token. 0: no request that decoded passed an
        older one by.
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
    """Check a run against the rules, and find out whether its policy was work-conserving and K-FCFS
    in it.

    Parameters
    ----------
    run
        Simulated with ``record="allocations"``.

    Raises
    ------
    InputError
        If the run did not keep its allocations, left requests out or refused some, was left by
        clients, reused blocks of others, or lost tokens in flight.
    """
    if not isinstance(run, Run):
        raise InputError(
            f"audit takes a Run, not {type(run).__name__}; give it what simulate returned"
        )
    if run.rows is None or run.batch_rows is None or run.allocation_rows is None:
        raise InputError(
            "an audit needs to know who was served in every batch; simulate with "
            "record='allocations'"
        )
    if run.dropped:
        raise InputError(
            f"{run.dropped:,} requests were left out of this run as too long, so its queues "
            "cannot be rebuilt; "
            "simulate and audit a workload without them"
        )
    if run.rows.refusals is not None:
        raise InputError(
            "an audit rebuilds queues of requests that wait until they are served, but these may "
            "be refused, or left by their clients; audit without queue_limit and patience"
        )
    if run.server.policy.memory.drafted_tokens:
        raise InputError(
            "an audit counts one token for each decode, but some of these verify drafts; audit a "
            "server without drafts"
        )
    if run.server.caches_prefixes:
        raise InputError(
            "an audit counts every token of a prompt, but prefix_caching skips some; audit "
            "without it"
        )
    if run.preemptions and run.server.policy.batching.loses_in_flight:
        raise InputError(
            "an audit follows what preempted requests do again, but "
            f"{run.server.policy.name} loses tokens in flight too when it retracts; audit with "
            "overlap_schedule: false"
        )
    findings = _Findings()
    r = replay(
        run,
        run.rows,
        run.batch_rows,
        _real(run.rows, run.batch_rows, run.allocation_rows, findings),
    )
    _check_service(r, run.server.policy.batching.ahead, findings)
    _check_batches(run, run.batch_rows, r, findings)
    _check_memory(run.server, r, findings)
    _check_times(run, run.rows, r, findings)
    budget = run.server.token_budget
    supply = supply_of(run, r)
    idle = _idle_since(run, r)
    return Audit(
        feasible=findings.count == 0,
        violations=tuple(findings.sentences),
        n_violations=findings.count,
        paper=work_conservation(r, supply, lambda s: (s >= budget) & (r.load < budget)),
        strong=work_conservation(r, supply, lambda s: r.load < np.minimum(s, budget)),
        idle_periods=idle.size,
        idle_from=int(idle[0]) if idle.size else None,
        overtake_k=_overtake_k(r),
    )


class _Findings:
    """Violations: all counted, the first in words."""

    def __init__(self) -> None:
        self.count = 0
        self.sentences: list[str] = []

    def note(self, columns: dict[str, Ints], rules: dict[str, Bools]) -> None:
        """Add a sentence, filled in from the columns, for each place that breaks its rule."""
        for sentence, broken in rules.items():
            indices = np.flatnonzero(broken)
            self.count += indices.size
            self.sentences += [
                sentence.format(**{name: column[i] for name, column in columns.items()})
                for i in indices[: MOST_KEPT - len(self.sentences)]
            ]


def _real(rows: Rows, batch_rows: Ints, allocation_rows: Ints, findings: _Findings) -> Ints:
    """Return the allocations that name a batch and a request that there are."""
    n, m = rows.arrival.size, batch_rows.shape[0]
    early = np.diff(rows.arrival, prepend=0) < 0
    findings.note(
        {"i": np.arange(n)}, {"request {i} arrived before the one ahead of it (arrival)": early}
    )
    batch, request = allocation_rows[:, 0], allocation_rows[:, 1]
    real = (batch >= 0) & (batch < m) & (request >= 0) & (request < n)
    strange = f"an allocation names batch {{b}} of {m} and request {{i}} of {n} (allocation)"
    findings.note({"b": batch, "i": request}, {strange: ~real})
    return np.asarray(allocation_rows[real], np.int64)


def _check_service(r: Replay, ahead: bool, findings: _Findings) -> None:
    """Check each allocation against what its request had been given before."""
    i, b, x, y = r.request, r.batch, r.prefill, r.decode
    p, d = r.left, np.maximum(r.total[i] - r.target - r.decoded, 0)
    arrival, start = r.arrival[i], r.start[b]
    # A step ahead, the batch after the last is composed before an end that nobody foresees.
    done = (p == 0) & (d == 0)
    for_nothing = ahead & done & (b == r.finished_in[i] + 1)
    twice = (np.diff(i, prepend=-1) == 0) & (np.diff(b, prepend=-1) == 0)
    columns = {"b": b, "i": i, "x": x, "y": y, "p": p, "d": d, "start": start, "arrival": arrival}
    who = "batch {b} (tick {start}): request {i} "
    rules = {
        who + "has two allocations (allocation)": twice,
        who + "gets {x} prefill and {y} decode tokens (allocation)": (np.minimum(x, y) < 0)
        | (x + y == 0),
        who + "is served before its arrival at tick {arrival} (arrival)": arrival > start,
        who + "is served after it has finished (finish)": done & ~for_nothing,
        who + "decodes with {p} prompt tokens to go (eq:prefill-pre-decode)": (y > 0) & (p > 0),
        who + "prefills {x} tokens, but has {p} left (eq:prefill-unprocess)": x > p,
        who + "decodes {y} tokens, but has {d} left, one at a time (eq:decode-unprocess)": y
        > np.where(for_nothing, 1, np.minimum(d, 1)),
    }
    findings.note(columns, rules)


def _check_batches(run: Run, rows: Ints, r: Replay, findings: _Findings) -> None:
    """Check each batch against the limits, the batch-time model and its row."""
    server, m = run.server, r.start.size
    requests = np.bincount(r.batch, minlength=m)
    counted = requests
    if server.scope == "running":
        # Who comes without a prompt to a replica of a network was admitted elsewhere.
        admitted = (r.prompt[r.request] > 0).astype(np.int64)
        counted = np.maximum(counted, r.over(admitted, r.batch, r.until))
    sums = {
        "prefill tokens": np.bincount(r.batch, r.prefill, m),
        "decode tokens": np.bincount(r.batch, r.decode, m),
    }
    budget = _token_limits(server, sums["prefill tokens"] > 0)
    limit = server.most_requests or m + r.request.size  # that there are
    free = np.append(0, r.end)[:m]
    expected, error = _ticks(run, r, requests)
    off = np.abs(r.end - r.start - expected)
    columns = {
        "b": np.arange(m), "start": r.start, "ticks": r.end - r.start, "free": free,
        "expected": expected, "load": r.load, "counted": counted, "budget": budget,
    }  # fmt: skip
    which = "batch {b} (tick {start}) "
    over = (
        f"has {{counted}} requests in scope {server.scope}, over the limit of {limit} "
        "(eq:batch-size-constraint)"
    )
    rules = {
        which + "has {load} tokens, over the budget of {budget} (eq:batch-constraint)": r.load
        > budget,
        which + over: counted > limit,
        which + "starts before the one ahead ends at tick {free} (batch)": r.start < free,
        which + "takes {ticks} ticks for {load} tokens instead of {expected} (batch)": off > error,
    }
    for column, (name, total) in enumerate((sums | {"requests": requests}).items(), start=2):
        columns |= {f"row{column}": rows[:, column], f"sum{column}": total.astype(np.int64)}
        differs = (
            f"has {{row{column}}} {name} in its row, but {{sum{column}}} by its allocations (batch)"
        )
        rules[which + differs] = rows[:, column] != total
    findings.note(columns, rules)


def _token_limits(server: Server, prefills: Bools) -> Ints:
    """Return the most tokens of each batch: the budget, beyond which some engines decode."""
    policy = server.policy
    most = np.full(prefills.size, policy.most_prefill(server.token_budget), np.int64)
    if policy.batching.decodes_beyond:
        most[~prefills] = server.most_tokens
    return most


def _ticks(run: Run, r: Replay, requests: Ints) -> tuple[Ints, Ints]:
    """Return the ticks that each batch takes, and by how much they may differ."""
    # Terms of a `Composition` are rounded to 2^-20 ticks once, then multiplied and added up. Where
    # a preempted request began anew is not certain, so its batches may take any time.
    model, most, m = run.server.batch_time, run.server.most_tokens, r.start.size
    if not isinstance(model, Composition):
        table = np.rint(model.table(most) / run.tick_s).astype(np.int64)
        expected = table[np.clip(r.load, 0, most)]
        return expected, np.zeros_like(expected)
    before = r.prefilled + r.decoded
    sums = (r.prefill, r.decode, r.prefill**2, r.prefill * before, r.decode * before)
    x, y, squares, pairs, context = (np.bincount(r.batch, values, m) for values in sums)
    x = np.clip(x, 0, most)
    seconds = model.of_batches(x, np.clip(y, 0, most - x), requests, squares, pairs, context)
    terms = 2 + requests + squares + y + pairs + context
    error = np.ceil(terms * 2.0**-21).astype(np.int64)
    error[r.batch[r.preempted[r.request]]] = np.iinfo(np.int64).max
    return np.rint(seconds / run.tick_s).astype(np.int64), error


def _check_memory(server: Server, r: Replay, findings: _Findings) -> None:
    """Check the blocks that requests hold in each batch, as far as they are certain."""
    if server.memory is None or server.usable_blocks is None:
        return
    blocks = r.over(-(-r.stored // server.memory.block_size), r.batch, r.until)
    reserved = ""
    if server.holds == "completion":
        reserved = ", reserved to completion"
    sentence = (
        f"batch {{b}} (tick {{start}}) holds {{blocks}} KV blocks{reserved}, of "
        f"{server.usable_blocks} (memory)"
    )
    columns = {"b": np.arange(r.start.size), "start": r.start, "blocks": blocks}
    findings.note(columns, {sentence: blocks > server.usable_blocks})


def _check_times(run: Run, rows: Rows, r: Replay, findings: _Findings) -> None:
    """Check recorded times, preemptions and totals; a batch still in flight completed nothing."""
    n = r.arrival.size
    completed = r.end <= run.end
    ends = np.append(np.where(completed, r.end, -1), -1)
    last = ends[r.finished_in]
    for name, was, due in (
        ("first token", rows.first_token, ends[r.first_in]),
        ("finish", rows.finish, last),
    ):
        sentence = (
            f"request {{i}}: {name} at tick {{was}}, by its allocations {{due}}; -1 is never "
            "(times)"
        )
        findings.note({"i": np.arange(n), "was": was, "due": due}, {sentence: was != due})
    times = rows.preempted
    sentence = (
        "request {i}: its allocations cannot come from the {times} preemptions that it records "
        "(preemption)"
    )
    findings.note({"i": np.arange(n), "times": times}, {sentence: r.unexplained})
    counts = {
        "requests arrived": (run.arrived, n),
        "requests finished": (run.finished, np.count_nonzero(last >= 0)),
        "batches": (run.n_batches, r.start.size),
        "completed tokens": (run.tokens, int(r.load[completed].sum())),
        "started tokens": (run.started_tokens, int(r.load.sum())),
        "preemptions": (run.preemptions, int(times.sum())),
    }
    if (last >= 0).all():  # else some may wait to do theirs again
        counts["tokens computed again"] = (run.recomputed_tokens, int(r.load.sum() - r.total.sum()))
    for name, (recorded, implied) in counts.items():
        sentence = f"the run counts {recorded} {name}, but its allocations {implied} (totals)"
        findings.note({}, {sentence: np.array([recorded != implied])})


def _idle_since(run: Run, r: Replay) -> Ints:
    """Return the tick, one per idle period, since which a request waited beside an idle server."""
    free, taken = np.append(0, r.end), np.append(r.start, run.end)
    gone = np.searchsorted(np.sort(r.finished_in), np.arange(free.size))
    waiting = gone < np.searchsorted(r.arrival, taken)  # someone arrived before the period ended
    idle = np.flatnonzero((free < taken) & waiting)
    return np.asarray(np.maximum(free[idle], r.arrival[gone[idle]]), np.int64)


def _overtake_k(r: Replay) -> int:
    """Return the smallest K of the K-FCFS condition."""
    # Each request has stretches without service between its batches; the youngest that decoded in a
    # stretch overtook it the furthest. (Before a request arrived, nobody younger was there.)
    n, m = r.arrival.size, r.start.size
    last_served = np.full(n, -1, np.int64)
    np.maximum.at(last_served, r.request, r.batch)
    is_first = np.diff(r.request, prepend=-1) != 0
    # The second part: after the last service, if it did not finish.
    request = np.append(r.request, np.arange(n))
    since = np.append(np.where(is_first, 0, np.roll(r.batch, 1) + 1), last_served + 1)
    until = np.append(r.batch, r.finished_in)
    stretch = since < until
    if not stretch.any():
        return 0
    youngest = np.full(m, -1, np.int64)
    decoding = r.decode > 0
    np.maximum.at(youngest, r.batch[decoding], r.request[decoding])
    return max(
        int((_largest(youngest, since[stretch], until[stretch]) - request[stretch]).max()) + 1, 0
    )


def _largest(values: Ints, since: Ints, until: Ints) -> Ints:
    """Return the largest of ``values[since:until]`` of each pair, by maxima over powers of two."""
    levels = [values]
    while 2 ** len(levels) <= values.size:
        half = 2 ** (len(levels) - 1)
        levels.append(np.maximum(levels[-1], np.append(levels[-1][half:], np.full(half, -1))))
    k = np.frexp((until - since).astype(np.float64))[1] - 1
    table = np.stack(levels)
    return np.asarray(np.maximum(table[k, since], table[k, until - (1 << k)]), np.int64)
