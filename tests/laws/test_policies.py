"""Laws that every policy obeys, in either scope and convention. A new policy is tested by being in `POLICIES`."""

import functools
from dataclasses import replace

import numpy as np
import pytest

from penstock.auditing.audit import Audit, audit
from penstock.simulation.run import Run
from penstock.simulation.simulate import simulate
from penstock.system.batch_time import Affine, PiecewiseConstant
from penstock.system.policies import POLICIES, Policy
from penstock.system.server import Server
from penstock.workload.lengths import Geometric, Uniform
from penstock.workload.workload import Workload
from tests.laws.test_engines import same_columns

STEPS = PiecewiseConstant(c=0.01, a=0.03, b0=16)  # 4 blocks of 16 tokens carry 492 tokens/s
LIMITS = (None, 6)

every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
every_scope = pytest.mark.parametrize("scope", ["batch", "running"])
every_convention = pytest.mark.parametrize("convention", ["engine", "paper"])
every_limit = pytest.mark.parametrize("limit", LIMITS)


def workload(rate=11.0, seed=1):
    """Offer 0.9 of the capacity: queues form, empty, and form again."""
    return Workload.poisson(rate, Uniform(1, 50), Geometric(15), seed=seed)


def server(policy, scope, convention, limit):
    return Server(STEPS, 64, limit, policy=policy, scope=scope, convention=convention)


HOW = {
    "drained": {"requests": 400, "drain": True},
    "stopped": {"until": 12.345},
    "overloaded": {"rate": 60.0, "requests": 400, "drain": False},
}
"""Ways to end a run: when all have left, in the middle, and under a load that no policy carries."""


@functools.cache
def served(policy, scope, convention, limit, how) -> Run:
    """Return a run that several tests look at."""
    how = dict(HOW[how])
    arriving = workload(how.pop("rate", 11.0))
    return simulate(arriving, server(policy, scope, convention, limit), record="allocations", **how)


@functools.cache
def audited(*what) -> Audit:
    return audit(served(*what))


@pytest.fixture(params=HOW)
def what(policy, scope, convention, limit, request):
    return policy.name, scope, convention, limit, request.param


@pytest.fixture
def run(what) -> Run:
    return served(*what)


@pytest.fixture
def found(what) -> Audit:
    return audited(*what)


def tokens_of(run):
    """Return forward tokens per request."""
    return run.rows.prompt_tokens.astype(int) + run.rows.output_tokens - (run.server.convention == "engine")


# ---------------------------------------------------------------- one run of any policy


@every_policy
@every_scope
@every_convention
@every_limit
class TestEveryRun:
    def test_the_audit_finds_every_run_feasible(self, found):
        """Feasibility, token budget, max batch size, batch times, token times and totals, by replay."""
        assert found.violations == ()

    def test_the_server_never_idles_beside_a_request(self, run, found):
        assert found.idle_periods == 0
        assert run.batch_rows[:, 2:4].sum(axis=1).min() >= 1

    def test_tokens_in_are_tokens_processed_plus_tokens_left(self, run):
        given = np.bincount(run.allocation_rows[:, 1], run.allocation_rows[:, 2:].sum(axis=1), run.arrived)
        left = tokens_of(run) - given
        assert left.min() >= 0
        assert (left[run.rows.finish >= 0] == 0).all()
        assert tokens_of(run).sum() == run.started_tokens + left.sum()
        in_flight = run.batch_rows[run.batch_rows[:, :2].sum(axis=1) > run.end, 2:4].sum()
        assert run.started_tokens == run.tokens + in_flight
        assert run.unfinished == (run.rows.finish < 0).sum() == run.arrived - run.finished

    def test_at_every_instant_of_the_series_tokens_in_are_tokens_processed_plus_tokens_left(self, run):
        """Unprocessed tokens fall when a batch starts (|X(n)| of Theorem 1), uncompleted ones when it ends."""
        tick, requests, unprocessed, uncompleted = run.series_rows.T
        arrived = np.searchsorted(run.rows.arrival, tick, side="right")
        tokens = np.append(0, np.cumsum(tokens_of(run)))[arrived]
        start, duration, prefill, decode, _ = run.batch_rows.T
        processed = np.append(0, np.cumsum(prefill + decode))
        assert np.array_equal(unprocessed, tokens - processed[np.searchsorted(start, tick, side="left")])
        assert np.array_equal(uncompleted, tokens - processed[np.searchsorted(start + duration, tick, side="right")])
        departures = np.sort(run.rows.finish[run.rows.finish >= 0])
        assert np.array_equal(requests, arrived - np.searchsorted(departures, tick, side="right"))

    def test_no_batch_is_above_the_token_budget_or_the_max_batch_size(self, run, limit):
        assert run.batch_rows[:, 2:4].sum(axis=1).max() <= 64
        assert limit is None or run.batch_rows[:, 4].max() <= limit

    def test_each_phase_is_served_in_order_of_arrival(self, run, found):
        """Prompts one after the other; and beside a request that decodes, every older one that can does (K = 0)."""
        batch, request, prefill, _ = run.allocation_rows[np.lexsort(run.allocation_rows[:, [1, 0]].T)].T
        assert (np.diff(request[prefill > 0]) >= 0).all()
        per_batch = np.bincount(batch, prefill > 0)
        whole = np.bincount(request, prefill) == run.rows.prompt_tokens[: request.max() + 1]
        assert per_batch.max() > 1, "no batch took several prompts, so this says little"
        assert (np.diff(whole.astype(int)) <= 0).all(), "a prompt was begun before the one ahead of it was done"
        assert found.overtake_k == 0

    def test_a_request_arrives_starts_and_finishes_in_that_order(self, run):
        rows = run.rows
        started, finished = rows.first_token >= 0, rows.finish >= 0
        assert (np.diff(rows.arrival) >= 0).all()
        assert (rows.first_token > rows.arrival)[started].all()
        assert (rows.finish >= rows.first_token)[finished].all()
        assert started[finished].all()
        single = rows.output_tokens == 1
        assert ((rows.finish == rows.first_token) == single)[finished].all()
        assert rows.finish.max() <= run.end

    def test_batches_follow_one_another_and_tokens_come_at_the_end_of_one(self, run):
        start, duration = run.batch_rows[:, 0], run.batch_rows[:, 1]
        assert (start[1:] >= (start + duration)[:-1]).all()
        assert duration.min() >= 1
        for ticks in (run.rows.first_token, run.rows.finish):
            assert np.isin(ticks[ticks >= 0], start + duration).all()

    def test_there_is_one_gap_fewer_than_there_are_tokens(self, run):
        """Gaps are pooled over requests; those that finished have all of theirs, from first token to finish."""
        rows, finished = run.rows, run.rows.finish >= 0
        gaps = (rows.output_tokens - 1)[finished].sum()
        assert run.gaps.size >= gaps
        assert run.gaps.total >= (rows.finish - rows.first_token)[finished].sum()
        if finished.all():
            assert run.gaps.size == gaps
            assert run.gaps.total == (rows.finish - rows.first_token).sum()


# ---------------------------------------------------------------- work conservation


@every_policy
@every_scope
@every_convention
def test_what_a_policy_claims_about_work_conservation_is_so(policy: Policy, scope, convention):
    """Without a max batch size: b = min(supply, b_max) in every batch, or a batch found that refutes it."""
    assert policy.work_conserving is not None, "a policy of the library says what it is, or is left out of Theorem 1"
    wasteful = replace(server(policy, scope, convention, None), token_budget=70)  # its last step is hardly used
    audits = (
        audit(simulate(workload(rate, seed), wasteful, requests=300, record="allocations"))
        for seed in range(10)
        for rate in (8.0, 14.0)
    )
    if policy.work_conserving:
        assert all(found.paper.held and found.strong.held for found in audits)
    else:
        refuted = next((found for found in audits if not found.paper.held), None)
        assert refuted is not None, "no counter-example in 20 runs"
        assert refuted.paper.first.tokens < 70 <= refuted.paper.first.supply
        assert refuted.strong.held is False, "the strong predicate implies the paper's"


# ---------------------------------------------------------------- all policies, one workload


def drained(policy, scope="running", convention="engine", limit=None, record="requests", **how):
    arriving = how.pop("arriving", workload())
    return simulate(arriving, server(policy, scope, convention, limit), drain=True, record=record, **how)


@pytest.mark.parametrize("arriving", [workload(), Workload.gamma(9.0, 2.0, Uniform(1, 50), 20, seed=3)])
def test_every_policy_meets_the_same_requests(arriving):
    """Same seed, same arrivals and lengths, whatever serves them and whatever is recorded."""
    first, *others = [
        drained(policy, arriving=arriving, requests=300, limit=limit)
        for policy in POLICIES.values()
        for limit in LIMITS
    ]
    for other in others:
        for column in ("arrival", "prompt_tokens", "output_tokens"):
            assert np.array_equal(getattr(other.rows, column), getattr(first.rows, column))
        assert (other.tokens, other.finished) == (first.tokens, first.finished) == (tokens_of(first).sum(), 300)


@every_policy
@every_scope
@every_limit
def test_requests_of_equal_lengths_leave_in_order_of_arrival(policy, scope, limit):
    arriving = Workload.poisson(10.0, 30, 20, seed=5)
    run = drained(policy, scope, limit=limit, arriving=arriving, requests=500)
    assert (np.diff(run.rows.finish) >= 0).all()
    assert (np.diff(run.rows.first_token) >= 0).all()


@every_policy
@every_limit
def test_a_slower_clock_changes_nothing_but_the_clock(policy, limit):
    """Arrivals and batch times thrice as long, to the tick: so is every time in the run."""
    rng = np.random.default_rng(4)
    arrival = np.append(0, np.cumsum(rng.integers(0, 4, 199)))
    lengths = rng.integers(1, 30, (2, 200))

    def run(scale):
        timing = Server(Affine(c=3.0 * scale, a=2.0 * scale), 16, limit, policy=policy)
        return simulate(Workload.from_arrays(arrival * scale, *lengths), timing, record="batches", tick_s=1.0)

    slow, fast = run(3), run(1)
    for column in ("arrival", "first_token", "finish"):
        assert np.array_equal(getattr(slow.rows, column), 3 * getattr(fast.rows, column))
    assert np.array_equal(slow.batch_rows, fast.batch_rows * [3, 3, 1, 1, 1])
    assert (slow.end, slow.busy, slow.gaps.total) == (3 * fast.end, 3 * fast.busy, 3 * fast.gaps.total)


@every_policy
@every_scope
def test_a_max_batch_size_that_cannot_bind_changes_nothing(policy, scope):
    free, wide = (drained(policy, scope, limit=limit, record="batches", requests=300) for limit in (None, 10_000))
    assert np.array_equal(free.batch_rows, wide.batch_rows)
    assert np.array_equal(free.rows.finish, wide.rows.finish)


# ---------------------------------------------------------------- summary and rows


@every_policy
@every_scope
@every_convention
@every_limit
def test_a_summary_says_what_the_rows_say(policy, scope, convention, limit):
    """Counts, totals, means and the series exactly; quantiles within 0.1%."""
    summary, rows = (
        drained(policy, scope, convention, limit, record=record, requests=2_000) for record in ("summary", "requests")
    )
    assert_summary_equals_rows(summary, rows)


@every_policy
def test_a_summary_of_a_long_run_says_what_the_rows_say(policy):
    """More requests than the workload hands over at a time, so that those that have left are dropped on the way."""
    arriving = Workload.poisson(20.0, Uniform(1, 3), Geometric(2), seed=6)
    summary, rows = (
        drained(policy, limit=40, arriving=arriving, requests=70_000, record=record)
        for record in ("summary", "requests")
    )
    assert_summary_equals_rows(summary, rows)


def assert_summary_equals_rows(summary, rows):
    for field in ("arrived", "finished", "n_batches", "end", "last_arrival", "busy", "tokens", "started_tokens"):
        assert getattr(summary, field) == getattr(rows, field), field
    assert np.array_equal(summary.series_rows, rows.series_rows)
    assert summary.compositions.equals(rows.compositions)
    for name in ("ttft", "e2e", "gaps"):
        rounded, exact = getattr(summary, name), getattr(rows, name)
        assert (rounded.size, rounded.total) == (exact.size, exact.total), name
        for share in (0.5, 0.9, 0.99):
            assert rounded.quantile(share) == pytest.approx(exact.quantile(share), rel=1e-3)


@every_policy
def test_the_same_run_twice_is_the_same_run(policy):
    one, two = (drained(policy, record="batches", requests=300) for _ in range(2))
    assert np.array_equal(one.batch_rows, two.batch_rows)
    assert same_columns(one.rows, two.rows)
