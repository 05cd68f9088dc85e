"""Laws that every scheduler of an engine obeys, with memory and without; a new one in `ENGINES` joins by itself."""

import dataclasses
import importlib.util
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.auditing.audit import audit
from penstock.simulation.run import Run
from penstock.simulation.simulate import simulate
from penstock.system.batch_time import PiecewiseConstant
from penstock.system.engines import ENGINES
from penstock.system.engines.sglang import QUEUE_ORDERS
from penstock.system.memory import Memory
from penstock.system.server import Server
from penstock.workload.lengths import Geometric, Uniform
from penstock.workload.workload import Workload

STEPS = PiecewiseConstant(c=0.01, a=0.03, b0=16)
MORE_SETTINGS = {
    "vllm": [{"chunked_prefill": False}, {"long_prefill_threshold": 5}],
    "sglang": [
        {"mixed_chunk": True, "overlap_schedule": False},
        # makes no room for outputs to come
        {"new_token_ratio": 0.0, "min_new_token_ratio": 0.0, "overlap_schedule": False},
        # an audit does not follow a cache
        *(
            {"schedule_policy": name, "overlap_schedule": False}
            for name, order in QUEUE_ORDERS.items()
            if name != "fcfs" and not order.wants_cache
        ),
    ],
    "tensorrt-llm": [
        {"capacity": capacity, "chunked_context": chunked}
        for capacity in ("guaranteed_no_evict", "max_utilization", "static_batch")
        for chunked in (False, True)
    ][1:],
}
USUAL = {"sglang": {"overlap_schedule": False}}  # an audit does not follow tokens in flight that it loses
SCHEDULERS = [(name, USUAL.get(name, {})) for name in ENGINES]
SCHEDULERS += [(name, settings) for name, more in MORE_SETTINGS.items() for settings in more]
MIXES = {"vllm": True, "sglang": "mixed_chunk", "tensorrt-llm": True}
"""Whether prefill and decode share batches in the engine itself, or the setting that says so."""
TIGHT = Memory(40, 4)  # two requests of the longest fit, or a handful of usual ones
HOW = {
    "drained": {"rate": 6.0, "requests": 200, "drain": True},
    "stopped": {"rate": 6.0, "until": 12.345},
    "overloaded": {"rate": 60.0, "requests": 200, "drain": False},
}


def named(scheduler):
    name, settings = scheduler
    return "-".join([name, *(str(value) for value in settings.values())])


every_scheduler = pytest.mark.parametrize("scheduler", SCHEDULERS, ids=named)
every_memory = pytest.mark.parametrize("memory", [None, TIGHT], ids=["ample", "tight"])


def workload(rate=6.0, seed=1):
    """Offer requests of at most 59 tokens, which fit even where prompts and what is computed again go whole."""
    return Workload.poisson(rate, Uniform(1, 30), Geometric(12, max=30), seed=seed)


def server(scheduler, memory=None, slots: int | None = 6):
    name, settings = scheduler
    return Server(STEPS, 64, slots, policy=name, policy_params=settings, memory=memory)


def same(one: Run, other: Run) -> bool:
    """Whether two runs agree in each request's times and preemptions, and in each batch."""
    return np.array_equal(one.batch_rows, other.batch_rows) and same_columns(one.rows, other.rows)


def same_columns(one: Any, other: Any) -> bool:
    """Whether two tables agree in each column, and in the table of jobs that is one of them."""
    names = [field.name for field in dataclasses.fields(one)]
    pairs = [(getattr(one, name), getattr(other, name)) for name in names if name != "of_jobs"]
    agree = all(np.array_equal(*pair) for pair in pairs)
    return agree and ("of_jobs" not in names or same_columns(one.jobs, other.jobs))


def tokens_of(run):
    """Return forward tokens per request, preemptions apart."""
    return run.rows.prompt_tokens.astype(int) + run.rows.output_tokens - 1


# ---------------------------------------------------------------- one run of any scheduler


CASES = list(itertools.product(SCHEDULERS, [None, TIGHT], HOW))


@pytest.fixture(
    scope="module",
    params=CASES,
    ids=[f"{named(scheduler)}-{'tight' if memory else 'ample'}-{how}" for scheduler, memory, how in CASES],
)
def run(request) -> Run:
    scheduler, memory, how = request.param
    how = dict(HOW[how])
    return simulate(workload(how.pop("rate")), server(scheduler, memory), record="allocations", **how)


class TestEveryRun:
    def test_the_audit_finds_every_run_feasible(self, run):
        """Feasibility, limits, memory, preemptions, batch times, token times and totals, by replay."""
        found = audit(run)
        assert found.violations == ()
        assert found.idle_periods == 0

    def test_a_drained_run_has_served_everybody_and_all_tokens_once_but_those_of_the_preempted(self, run):
        if run.finished == run.arrived:
            assert run.tokens == run.started_tokens == tokens_of(run).sum() + run.recomputed_tokens
        else:
            assert (run.rows.finish < 0).sum() == run.unfinished == run.arrived - run.finished
        assert (run.recomputed_tokens > 0) <= (run.preemptions > 0)

    def test_requests_run_in_at_most_the_slots_there_are(self, run):
        assert run.batch_rows[:, 4].max() <= 6

    def test_a_request_arrives_starts_and_finishes_in_that_order(self, run):
        rows = run.rows
        started, finished = rows.first_token >= 0, rows.finish >= 0
        assert (rows.first_token > rows.arrival)[started].all()
        assert (rows.finish >= rows.first_token)[finished].all()
        assert started[finished].all()
        assert ((rows.finish == rows.first_token) == (rows.output_tokens == 1))[finished].all()

    def test_batches_follow_one_another_and_tokens_come_at_the_end_of_one(self, run):
        start, duration = run.batch_rows[:, 0], run.batch_rows[:, 1]
        assert (start[1:] >= (start + duration)[:-1]).all()
        for ticks in (run.rows.first_token, run.rows.finish):
            assert np.isin(ticks[ticks >= 0], start + duration).all()

    def test_a_prompt_is_cut_only_by_those_that_say_so(self, run):
        """Each attempt of the others is one allocation: as many as preemptions and one."""
        if not run.server.policy.batching.cuts_prompts:
            chunks = np.bincount(run.allocation_rows[:, 1], run.allocation_rows[:, 2] > 0, run.arrived)
            times = 0 if run.rows.preemptions is None else run.rows.preemptions
            assert (chunks <= times + 1).all()

    def test_prefill_and_decode_share_no_batch_where_the_engine_keeps_them_apart(self, run):
        mixed = (run.batch_rows[:, 2:4] > 0).all(axis=1)
        policy = run.server.policy
        mixes = MIXES.get(policy.name, mixed.any())
        if policy.options.get("capacity") == "static_batch":
            mixes = False
        assert mixed.any() == policy.options.get(mixes, mixes)

    def test_what_reserves_memory_to_completion_preempts_nobody(self, run):
        if run.server.memory is None or run.server.holds == "completion":
            assert run.preemptions == 0


# ---------------------------------------------------------------- several runs


@every_scheduler
@every_memory
def test_the_same_run_twice_is_the_same_run_and_compression_changes_nothing(scheduler, memory):
    usual, again, step_by_step = (
        simulate(workload(), server(scheduler, memory), requests=200, record="batches", compress=compress)
        for compress in (True, True, False)
    )
    assert usual.finished == 200
    assert same(usual, again)
    assert same(usual, step_by_step)


@every_scheduler
def test_memory_that_cannot_bind_changes_nothing(scheduler):
    tokens = 1 if server(scheduler).policy.memory.whole_blocks else 4  # some cut prompts to whole blocks
    ample, none = (
        simulate(workload(40.0), server(scheduler, memory), requests=200, record="batches")
        for memory in (Memory(10_000, tokens), None)
    )
    assert ample.preemptions == 0
    assert np.array_equal(ample.batch_rows, none.batch_rows)
    assert np.array_equal(ample.rows.finish, none.rows.finish)


def test_tight_memory_preempts_under_every_scheduler_that_does_not_reserve_it():
    """Else the laws above say little."""
    preempted = {
        scheduler[0]
        for scheduler in SCHEDULERS
        if simulate(workload(40.0), server(scheduler, TIGHT), requests=200).preemptions
    }
    assert preempted == {scheduler[0] for scheduler in SCHEDULERS if server(scheduler, TIGHT).holds != "completion"}
    assert preempted >= {"vllm", "sglang", "tensorrt-llm"}


# ---------------------------------------------------------------- work conservation


@every_scheduler
def test_what_an_engine_claims_about_work_conservation_is_so(scheduler):
    """With ample memory and slots: b = min(supply, b_max) in every batch, or a batch found that refutes it."""
    name, settings = scheduler
    claims = ENGINES[name].with_options(settings).batching.work_conserving
    audits, most = [], 0
    for seed, rate in itertools.product(range(10), (8.0, 16.0)):
        serving = server(scheduler, slots=None)
        run = simulate(workload(rate, seed), serving, requests=200, record="allocations")
        audits.append(audit(run))
        most = max(most, run.batch_rows[:, 2:4].sum(axis=1).max())
    if claims:
        assert all(found.paper.held and found.strong.held for found in audits)
        assert most <= 64
    elif not settings.get("mixed_chunk"):  # these leave room beside prompts of thousands of tokens only
        refuted = next((found for found in audits if not found.paper.held), None)
        assert refuted is not None, "no counter-example in 20 runs"
        assert refuted.paper.first.tokens < 64 <= refuted.paper.first.supply


def test_sglangs_mixed_chunks_fill_the_budget_beside_a_prompt_of_max_prefill_tokens():
    """With chunks that limit is for batches: a prompt as long is cut to fit as any other."""
    held = []
    for longest in (16_383, 16_382):
        two = Workload.from_arrays([0.0, 0.0], [1, longest], [1, 1])
        mixed = Server(STEPS, 512, policy="sglang", policy_params={"mixed_chunk": True, "overlap_schedule": False})
        held.append(audit(simulate(two, mixed, record="allocations")).paper.held)
    assert held == [True, True]


@pytest.mark.slow
def test_the_page_about_engines_shows_what_audits_find():
    """All small systems and thousands of larger ones; the smallest counter-examples, and the highest stable rates."""
    root = Path(__file__).parents[2]
    script = root / "benchmarks" / "studies" / "engine_audits.py"
    specification = importlib.util.spec_from_file_location("engine_audits", script)
    audits = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(audits)
    page = (root / "docs" / "engines.md").read_text()
    findings = [audits.search(*scheduler) for scheduler in audits.SCHEDULERS]
    for table in (*audits.tables(findings).split("\n\n"), audits.max_rates()):
        assert table in page
    for found in findings:
        claims = ENGINES[found.name].with_options(found.settings).batching.work_conserving
        assert not (claims and found.system), found
