"""The audit: it agrees with what a scheduler saw, and it finds whatever is tampered with."""

import copy
import dataclasses

import numpy as np
import pytest

from penstock.auditing.audit import MOST_KEPT, audit
from penstock.auditing.conservation import Shortfall
from penstock.errors import InputError
from penstock.simulation.distribution import Distribution
from penstock.simulation.rows import ReplicaCounts, Rows
from penstock.simulation.run import Run
from penstock.simulation.simulate import simulate
from penstock.system.batch_time import Affine, BatchTime, Composition, PiecewiseConstant
from penstock.system.memory import Memory
from penstock.system.server import Server
from penstock.workload.workload import Workload
from tests.reference import markov_chain

ONE_TICK = Affine(c=1.0, a=0.0)
NOTHING = np.empty(0, np.int64)


@dataclasses.dataclass(frozen=True)
class Ticks(BatchTime):
    """A batch of b tokens takes ticks[b - 1] seconds."""

    ticks: tuple[int, ...]

    def _seconds(self, tokens):
        return np.array(self.ticks, float)[tokens.astype(int) - 1]


def served_by(choose, server, arrival, prompt, output, until=None):
    """Serve requests under any policy per request, in the reference, and return that as a recorded run."""
    table = server.batch_time.table(server.token_budget)
    history = markov_chain.simulate(
        arrival,
        prompt,
        output,
        batch_time=lambda load: int(table[load]),
        token_budget=server.token_budget,
        max_batch_size=server.max_batch_size,
        policy=choose,
        scope=server.scope,
        convention=server.convention,
        until=until,
    )
    ticks = [[-1 if t is None else t for t in (r.arrival, r.first_token, r.finish)] for r in history.requests]
    arrived, first, finish = np.array(ticks, np.int64).reshape(-1, 3).T
    lengths = [np.array(column[: arrived.size], np.int32) for column in (prompt, output)]
    allocations = [(n, i, *given) for n, batch in enumerate(history.batches) for i, given in batch.allocation.items()]
    batches = [(b.start, b.duration, b.prefill_tokens, b.decode_tokens, b.requests) for b in history.batches]
    loads = [b.prefill_tokens + b.decode_tokens for b in history.batches]
    return Run(
        system=server,
        by_replica=ReplicaCounts(*[NOTHING] * 9),
        tick_s=1.0,
        arrived=arrived.size,
        finished=int((finish >= 0).sum()),
        n_batches=len(batches),
        end=history.end,
        last_arrival=int(arrived[-1]),
        busy=sum(min(b.end, history.end) - b.start for b in history.batches),
        tokens=sum(load for load, b in zip(loads, history.batches, strict=True) if b.end <= history.end),
        started_tokens=sum(loads),
        counted_gaps=Distribution.of(NOTHING),
        mixes=(NOTHING, NOTHING),
        mix_ticks=NOTHING,
        series_rows=np.empty((0, 4), np.int64),
        rows=Rows(arrived, *lengths, first, finish),
        folded=None,
        batch_rows=np.array(batches, np.int64).reshape(-1, 5),
        allocation_rows=np.array(allocations, np.int64).reshape(-1, 4),
    )


def simulated(arrival, prompt, output, server, **how):
    return simulate(Workload.from_arrays(arrival, prompt, output), server, record="allocations", tick_s=1.0, **how)


# ---------------------------------------------------------------- worked by hand


@pytest.mark.parametrize(
    ("policy", "breaches", "first"),
    [
        ("fastertransformer", 3, Shortfall(batch=1, start=1, tokens=1, supply=4)),
        ("vllm-vanilla", 1, Shortfall(batch=1, start=1, tokens=3, supply=4)),
        ("orca", 0, None),
        ("sarathi", 0, None),
    ],
)
def test_work_conservation_breaks_where_the_papers_figure_says(policy, breaches, first):
    """Figure sec3-ill: budget 4; the second batch of vanilla vLLM, the second to fourth of FasterTransformer."""
    server = Server(ONE_TICK, 4, policy=policy, convention="paper")
    found = audit(simulated([0, 1], [4, 3], [3, 1], server))
    assert found.feasible
    assert found.paper == (first is None, breaches, first)
    assert found.strong == found.paper


def test_the_strong_predicate_also_asks_for_all_of_a_supply_below_the_budget():
    """Budget 8, so the paper's predicate has nothing to say; FasterTransformer leaves a prompt of 3 waiting 3 times."""
    found = audit(
        simulated([0, 1], [4, 3], [3, 1], Server(ONE_TICK, 8, policy="fastertransformer", convention="paper"))
    )
    assert found.paper == (True, 0, None)
    assert found.strong == (False, 3, Shortfall(batch=1, start=1, tokens=1, supply=4))


@pytest.mark.parametrize(
    ("scope", "supplies"),
    [
        ("running", [2, 2, 1, 1]),  # both slots are taken until request 0 and 1 leave
        ("batch", [2, 2, 2]),  # the first two prompts; then the third one and a decode; then two decodes
    ],
)
def test_a_max_batch_size_bounds_the_supply(scope, supplies):
    """Three prompts of one token, two slots, budget 4: every batch carries what the slots allow."""
    server = Server(ONE_TICK, 4, 2, policy="orca", scope=scope)
    run = simulated([0, 0, 0], [1, 1, 1], [2, 2, 2], server)
    assert run.batch_rows[: len(supplies), 2:4].sum(axis=1).tolist() == supplies
    assert audit(run).strong.held


def test_in_scope_batch_decodes_first_is_not_work_conserving_when_decodes_take_the_slots():
    """Two decodes fill both slots of Sarathi's batch, where a prompt of 5 tokens and one decode would carry 4."""
    server = Server(ONE_TICK, 4, 2, policy="sarathi", scope="batch")
    found = audit(simulated([0, 0, 1], [1, 1, 5], [3, 3, 1], server))
    assert found.paper.first == Shortfall(batch=1, start=1, tokens=2, supply=6)


def test_the_smallest_k_of_k_fcfs_is_one_more_than_the_furthest_overtaking():
    """Budget 1, newest first: request 3 decodes beside requests 0, 1 and 2, none of which gets a token."""

    def newest_first(state):
        return markov_chain.fill(state, reversed(state.requests))

    server = Server(ONE_TICK, 1)
    assert audit(served_by(newest_first, server, [0, 0, 0, 0], [1] * 4, [2] * 4)).overtake_k == 4
    assert audit(served_by(newest_first, server, [0, 0, 0, 0], [1] * 4, [1] * 4)).overtake_k == 0, (
        "prefill is no trigger"
    )
    assert audit(served_by(newest_first, server, [0, 2, 4, 6], [1] * 4, [2] * 4)).overtake_k == 0


def test_a_server_that_idles_beside_a_request_is_found_out():
    """The second batch waits from tick 1 to tick 4; then a stop with nothing in flight and a request unfinished."""
    run = simulated([0], [1], [3], Server(ONE_TICK, 4))
    batches = run.batch_rows.copy()
    batches[1:, 0] += 3
    rows = dataclasses.replace(run.rows, finish=run.rows.finish + 3)
    late = audit(dataclasses.replace(run, batch_rows=batches, rows=rows, end=run.end + 3))
    assert (late.feasible, late.idle_periods, late.idle_from) == (True, 1, 1)

    stopped = simulated([0, 7], [1, 1], [3, 1], Server(ONE_TICK, 4), until=2)
    assert audit(stopped).idle_periods == 0
    found = audit(dataclasses.replace(stopped, end=9))
    assert (found.idle_periods, found.idle_from) == (1, 2)


def test_an_empty_server_may_idle():
    found = audit(simulated([0, 100], [1, 1], [1, 1], Server(ONE_TICK, 4)))
    assert (found.idle_periods, found.idle_from) == (0, None)


def test_a_batch_in_flight_when_the_run_stops_has_completed_nothing_and_breaks_no_rule():
    slow = Server(Affine(c=10.0, a=0.0), 4)
    run = simulated([0, 3], [4, 2], [1, 5], slow, until=15)
    assert run.batch_rows[-1, :2].sum() > run.end
    assert audit(run).feasible


def test_a_run_that_stopped_before_its_first_batch_is_feasible():
    run = simulated([0], [4], [1], Server(ONE_TICK, 4), drain=False)
    assert run.n_batches == 0
    found = audit(run)
    assert (found.feasible, found.strong.held, found.overtake_k, found.idle_periods) == (True, True, 0, 0)


@pytest.mark.parametrize("record", ["summary", "requests", "batches"])
def test_a_run_without_allocations_is_refused_with_the_remedy(record):
    run = simulate(Workload.from_arrays([0], [1], [1]), Server(ONE_TICK, 4), record=record)
    with pytest.raises(InputError, match="record='allocations'"):
        audit(run)


# ---------------------------------------------------------------- against what the scheduler saw


def orders(rng):
    """Return orders in which to fill batches: the paper's four, and some that overtake."""
    return {
        **markov_chain.POLICIES,
        "newest first": lambda s: markov_chain.fill(s, reversed(s.candidates + s.decoding)),
        "any order": lambda s: markov_chain.fill(s, [all_of(s)[i] for i in rng.permutation(len(all_of(s)))]),
        "one at a time": lambda s: markov_chain.fill(s, [all_of(s)[rng.integers(len(all_of(s)))]]),
        "some in order": lambda s: markov_chain.fill(s, all_of(s)[: rng.integers(1, len(all_of(s)) + 1)]),
    }


def all_of(state):
    return state.decoding + state.candidates


def supply_seen(state):
    """Sum over the requests what they could put into a batch, as the state shows them."""
    prompts, decodes = sum(request.P for request in state.candidates), len(state.decoding)
    if state.max_batch_size is not None and state.scope == "batch":
        decodes = min(decodes, state.max_batch_size - len(state.candidates))
    return prompts + decodes


def overtaking_seen(state, allocation):
    """Largest j - i + 1 over requests j that decode and older ones i that get nothing."""
    decoding = [i for i, (_, delta_d) in allocation.items() if delta_d > 0]
    passed = [request.index for request in state.requests if request.index not in allocation]
    return max((j - i + 1 for j in decoding for i in passed if i < j), default=0)


def out_of_order(state, allocation):
    """Whether the queue was not served in order of arrival: prompts begun, in scope batch each to its end."""
    if state.scope == "running":
        begun = [request.index in allocation for request in state.prompts if not request.admitted]
        return begun != sorted(begun, reverse=True)
    prompts = [(request.P, allocation.get(request.index, (0, 0))[0]) for request in state.prompts]
    served = [n for n, (_, delta_p) in enumerate(prompts) if delta_p > 0]
    return any(delta_p < p for p, delta_p in prompts[: max(served, default=0)])


@pytest.mark.parametrize("name", orders(None))
def test_the_audit_finds_what_the_scheduler_saw_before_each_batch(name):
    """Supply, shortfalls and overtaking, over random systems, also under policies that serve out of order."""
    rng = np.random.default_rng(list(name.encode()))
    choose = orders(rng)[name]
    decided = overtaken = short = 0
    for _ in range(150):
        n, budget = int(rng.integers(1, 12)), int(rng.integers(1, 10))
        limit = None if rng.random() < 0.5 else int(rng.integers(1, 5))
        scope, convention = rng.choice(markov_chain.SCOPES), rng.choice(markov_chain.CONVENTIONS)
        ticks = Ticks(tuple(rng.integers(1, 6, budget).tolist()))
        server = Server(ticks, budget, limit, scope=scope, convention=convention)
        seen, strange, crowded = [], [], []

        def watched(state, seen=seen, strange=strange, crowded=crowded):
            allocation = choose(state)
            strange.append(out_of_order(state, allocation))
            crowded.append(state.max_batch_size is not None and len(state.requests) > state.max_batch_size)
            seen.append((supply_seen(state), markov_chain.token_load(allocation), overtaking_seen(state, allocation)))
            return allocation

        arrival = np.cumsum(rng.integers(0, 4, n)) * (rng.random() < 0.8)
        until = None if rng.random() < 0.7 else int(rng.integers(1, 60))
        run = served_by(watched, server, arrival - arrival[0], *rng.integers(1, [[9], [7]], (2, n)), until)
        found = audit(run)
        assert found.violations == ()
        assert found.idle_periods == 0
        assert found.overtake_k == max((k for _, _, k in seen), default=0)
        undecided = any(crowded) and any(strange)
        assert (found.strong.held is None) == (found.paper.held is None) == undecided
        if found.strong.held is not None:
            owed = {"paper": [s >= budget and b != budget for s, b, _ in seen]}
            owed["strong"] = [b != min(s, budget) for s, b, _ in seen]
            for predicate, broken in owed.items():
                at = broken.index(True) if any(broken) else None
                first = None if at is None else Shortfall(at, int(run.batch_rows[at, 0]), seen[at][1], seen[at][0])
                assert getattr(found, predicate) == (at is None, sum(broken), first)
                short += sum(broken)
        decided += found.strong.held is not None
        overtaken += found.overtake_k > 0
    assert decided > 50
    assert (overtaken > 10) == (name in ("newest first", "any order", "one at a time"))
    assert (short > 10) == (name != "orca"), "prompts first leaves nothing out, in either scope"


# ---------------------------------------------------------------- tampering

COLUMNS = [field.name for field in dataclasses.fields(Rows)]
GOOD = {"arrival": [0, 1, 3, 30], "prompt": [3, 6, 1, 4], "output": [3, 2, 1, 3]}


def tampered(*, allocations=(), batches=(), requests=(), **totals):
    """Change single cells of a good run: (row, column, value) of allocations and batches, (column, row, value)."""
    run = simulated(*GOOD.values(), Server(Affine(c=2.0, a=0.0), 4, 2, policy="sarathi", scope="running"))
    by_batch_and_request = np.lexsort((run.allocation_rows[:, 1], run.allocation_rows[:, 0]))
    allocation_rows, batch_rows = run.allocation_rows[by_batch_and_request], run.batch_rows.copy()
    for row, column, value in allocations:
        allocation_rows[row, column] = value
    for row, column, value in batches:
        batch_rows[row, column] = value
    columns = {name: copy.copy(getattr(run.rows, name)) for name in COLUMNS}
    for column, row, value in requests:
        columns[column][row] = value
    return dataclasses.replace(
        run, allocation_rows=allocation_rows, batch_rows=batch_rows, rows=Rows(**columns), **totals
    )


def test_the_run_that_is_tampered_with_is_as_the_tests_below_take_it_to_be():
    run = tampered()
    assert audit(run).feasible
    assert run.allocation_rows.tolist() == [
        [0, 0, 3, 0],  # 0: tick 0
        [1, 0, 0, 1],  # 1: tick 2
        [1, 1, 3, 0],
        [2, 0, 0, 1],  # 3: tick 4
        [2, 1, 3, 0],
        [3, 1, 0, 1],  # 5: tick 6
        [3, 2, 1, 0],
        [4, 3, 4, 0],  # 7: tick 30
        [5, 3, 0, 1],
        [6, 3, 0, 1],
    ]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"allocations": [(6, 1, 3)]}, "request 3 is served before its arrival at tick 30 (arrival)"),
        ({"requests": [("arrival", 2, 0)]}, "request 2 arrived before the one ahead of it (arrival)"),
        ({"allocations": [(0, 0, 99)]}, "names batch 99 of 7 and request 0 of 4 (allocation)"),
        ({"allocations": [(0, 1, -1)]}, "names batch 0 of 7 and request -1 of 4 (allocation)"),
        ({"allocations": [(2, 1, 0)]}, "batch 1 (tick 2): request 0 has two allocations (allocation)"),
        ({"allocations": [(6, 2, 0)]}, "request 2 gets 0 prefill and 0 decode tokens (allocation)"),
        ({"allocations": [(6, 2, -1)]}, "request 2 gets -1 prefill and 0 decode tokens (allocation)"),
        ({"allocations": [(9, 1, 0)]}, "batch 6 (tick 34): request 0 is served after it has finished (finish)"),
        ({"allocations": [(2, 3, 1)]}, "request 1 decodes with 6 prompt tokens to go (eq:prefill-pre-decode)"),
        ({"allocations": [(4, 2, 4)]}, "request 1 prefills 4 tokens, but has 3 left (eq:prefill-unprocess)"),
        (
            {"allocations": [(8, 3, 2)]},
            "request 3 decodes 2 tokens, but has 2 left, one at a time (eq:decode-unprocess)",
        ),
        ({"allocations": [(4, 2, 9)]}, "batch 2 (tick 4) has 10 tokens, over the budget of 4 (eq:batch-constraint)"),
        ({"batches": [(1, 0, 1)]}, "batch 1 (tick 1) starts before the one ahead ends at tick 2 (batch)"),
        ({"batches": [(1, 1, 1)]}, "batch 1 (tick 2) takes 1 ticks for 4 tokens instead of 2 (batch)"),
        (
            {"batches": [(1, 2, 2)]},
            "batch 1 (tick 2) has 2 prefill tokens in its row, but 3 by its allocations (batch)",
        ),
        ({"batches": [(1, 3, 2)]}, "batch 1 (tick 2) has 2 decode tokens in its row, but 1 by its allocations (batch)"),
        ({"batches": [(1, 4, 3)]}, "batch 1 (tick 2) has 3 requests in its row, but 2 by its allocations (batch)"),
        ({"requests": [("first_token", 1, 7)]}, "request 1: first token at tick 7, by its allocations 6"),
        ({"requests": [("first_token", 1, -1)]}, "request 1: first token at tick -1, by its allocations 6"),
        ({"requests": [("finish", 0, 8)]}, "request 0: finish at tick 8, by its allocations 6"),
        ({"requests": [("output_tokens", 0, 4)]}, "request 0: finish at tick 6, by its allocations -1"),
        ({"end": 35}, "request 3: finish at tick 36, by its allocations -1"),
        ({"arrived": 5}, "the run counts 5 requests arrived, but its allocations 4 (totals)"),
        ({"finished": 3}, "the run counts 3 requests finished, but its allocations 4 (totals)"),
        ({"n_batches": 8}, "the run counts 8 batches, but its allocations 7 (totals)"),
        ({"tokens": 18}, "the run counts 18 completed tokens, but its allocations 19 (totals)"),
        ({"started_tokens": 20}, "the run counts 20 started tokens, but its allocations 19 (totals)"),
    ],
)
def test_whatever_is_tampered_with_is_named_with_its_place_and_value(change, complaint):
    found = audit(tampered(**change))
    assert not found.feasible
    assert any(complaint in sentence for sentence in found.violations), found.violations


@pytest.mark.parametrize(
    ("scope", "policy", "limit", "complaint"),
    [
        ("batch", "orca", 2, "batch 0 (tick 0) has 3 requests in scope batch, over the limit of 2"),
        ("running", "orca", 2, "batch 0 (tick 0) has 3 requests in scope running, over the limit of 2"),
        # one at a time into the batch, all three running by the third
        ("running", "vllm-vanilla", 2, "batch 2 (tick 2) has 3 requests in scope running, over the limit of 2"),
    ],
)
def test_too_many_requests_are_found_in_either_scope(scope, policy, limit, complaint):
    budget = 1 if policy == "vllm-vanilla" else 8
    run = simulated([0, 0, 0], [1, 1, 1], [2, 2, 2], Server(ONE_TICK, budget, policy=policy))
    found = audit(dataclasses.replace(run, system=Server(ONE_TICK, budget, limit, policy=policy, scope=scope)))
    assert found.violations[0].startswith(complaint)
    assert found.violations[0].endswith("(eq:batch-size-constraint)")


def test_one_request_a_batch_is_within_a_limit_on_the_batch_even_if_three_are_running():
    run = simulated([0, 0, 0], [1, 1, 1], [2, 2, 2], Server(ONE_TICK, 1, policy="vllm-vanilla"))
    limited = Server(ONE_TICK, 1, 1, policy="vllm-vanilla", scope="batch")
    assert audit(dataclasses.replace(run, system=limited)).feasible


def test_every_violation_is_counted_and_only_the_first_are_put_into_words():
    run = simulated([0] * 50, [1] * 50, [1] * 50, Server(ONE_TICK, 1))
    late = dataclasses.replace(run.rows, finish=run.rows.finish + 1)
    found = audit(dataclasses.replace(run, rows=late))
    assert (found.n_violations, len(found.violations)) == (50, MOST_KEPT)


def test_the_order_in_which_allocations_were_written_down_does_not_matter():
    rng = np.random.default_rng(3)
    arrival = np.cumsum(rng.integers(0, 5, 60))
    server = Server(ONE_TICK, 7, 5, policy="orca")
    run = simulated(arrival, rng.integers(1, 20, 60), rng.integers(1, 20, 60), server)
    shuffled = dataclasses.replace(run, allocation_rows=rng.permutation(run.allocation_rows))
    assert audit(shuffled) == audit(run)


@pytest.mark.parametrize(
    ("policy", "budget", "memory", "params"),
    [
        ("vllm", 16, Memory(24, 4), {"long_prefill_threshold": 5}),
        ("sarathi", 64, Memory(24, 4, admission="optimistic"), ()),
        ("vllm", 16, None, ()),
    ],
)
def test_batches_take_as_long_as_what_is_in_them_says_where_that_is_certain(policy, budget, memory, params):
    """Of a request preempted in the middle of its prefill it is not: its batches are not judged."""
    model = Composition(PiecewiseConstant(0.002, 0.008, 8), 1e-5, 2e-5, 1e-3, 1.3e-3, 1e-4, 5e-4)
    rng = np.random.default_rng(1)
    arrival = np.cumsum(rng.exponential(1 / 6, 300))
    workload = Workload.from_arrays(arrival - arrival[0], rng.integers(1, 31, 300), rng.integers(1, 31, 300))
    run = simulate(
        workload, Server(model, budget, 6, policy, policy_params=params, memory=memory), record="allocations"
    )
    assert (run.preemptions > 0) == (memory is not None)
    assert audit(run).feasible
    slower = dataclasses.replace(run, system=dataclasses.replace(run.server, batch_time=Affine(1.0, 0.0)))
    assert not audit(slower).feasible
