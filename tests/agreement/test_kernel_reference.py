"""The fast kernel against the specification, event for event, on thousands of small random systems.

Batch times are whole ticks and arrivals whole seconds with ``tick_s=1``, so the two must agree exactly.
"""

import dataclasses
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from engine_systems import Ticks

import penstock.simulation.running
from penstock.kernel.signatures import DECODE_FIRST, PREFILL_FIRST, Limits, Queue
from penstock.simulation.simulate import simulate
from penstock.system.policies import POLICIES, Policy, resolve
from penstock.system.server import Server
from penstock.workload import arrivals
from penstock.workload.workload import Workload
from tests.own_policies import own_policy
from tests.reference import markov_chain


@dataclasses.dataclass(frozen=True)
class System:
    """A small system, and how long to run it (until a tick, or None: until everything has left)."""

    arrival: tuple[int, ...]
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    ticks: tuple[int, ...]
    max_batch_size: int | None
    scope: str
    convention: str
    until: int | None
    params: tuple[float, ...] = ()

    @property
    def batch_time(self):
        return Ticks(self.ticks)

    def ticks_of(self, load):
        return self.ticks[load - 1]

    def server(self, rule):
        return Server(
            self.batch_time,
            len(self.ticks),
            self.max_batch_size,
            policy=rule,
            scope=self.scope,
            convention=self.convention,
            policy_params=self.params if resolve(rule).takes is None else (),
        )

    def kernel(self, rule, record, **how):
        workload = Workload.from_arrays(self.arrival, self.prompt, self.output)
        return simulate(workload, self.server(rule), until=self.until, record=record, tick_s=1.0, **how)

    def reference(self, choose):
        return markov_chain.simulate(
            self.arrival,
            self.prompt,
            self.output,
            batch_time=self.ticks_of,
            token_budget=len(self.ticks),
            max_batch_size=self.max_batch_size,
            policy=choose,
            scope=self.scope,
            convention=self.convention,
            until=self.until,
        )


def draw(rng, scope, *, most_requests=12, longest_output=60, params=()):
    """Draw a system: ties, idle times, cut prompts, single outputs, tight limits and early stops are all likely."""
    n = int(rng.integers(1, most_requests + 1))
    gaps = rng.integers(0, rng.choice([0, 1, 3, 10, 60]) + 1, n)
    gaps[0] = 0
    arrival = np.cumsum(gaps)
    budget = int(rng.choice([rng.integers(1, 9), rng.integers(8, 40)]))
    return System(
        arrival=tuple(arrival.tolist()),
        prompt=tuple(rng.integers(1, rng.choice([1, 3, 9, 4 * budget]) + 1, n).tolist()),
        output=tuple(rng.integers(1, rng.choice([1, 2, 5, longest_output]) + 1, n).tolist()),
        ticks=tuple(rng.integers(1, rng.choice([1, 3, 10, 50, 50]) + 1, budget).tolist()),
        max_batch_size=None if rng.random() < 0.3 else int(rng.integers(1, 6)),
        scope=scope,
        convention=str(rng.choice(["engine", "paper"])),
        until=None if rng.random() < 0.6 else int(rng.integers(1, arrival[-1] + 150)),
        params=params,
    )


def requests_in_order(rule, params):
    """Turn a rule ``(queue, limits, params) -> (x, y, first)`` into a choice per request, first come first served."""

    def choose(state):
        departed = [request for request in state.arrived if request.finish is not None]
        queue = Queue(
            prompts=len(state.candidates),
            prompt_tokens=sum(request.P for request in state.candidates),
            decoding=len(state.decoding),
            waiting=len(state.prompts),
            waiting_tokens=sum(request.P for request in state.prompts),
            head_tokens=state.prompts[0].P if state.prompts else 0,
            decode_tokens=sum(request.D for request in state.decoding),
            arrived=len(state.arrived),
            arrived_tokens=sum(request.prompt_tokens for request in state.arrived),
            finished=len(departed),
            finished_decodes=sum(request.decode_tokens for request in departed),
        )
        limits = Limits(state.token_budget, 2**40 if state.max_batch_size is None else state.max_batch_size)
        x, y, first = rule(queue, limits, np.array(params, float))
        prefill = [(request, request.P, "prefill") for request in state.candidates]
        decode = [(request, 1, "decode") for request in state.decoding]
        tokens, slots, wanted, allocation = limits.token_budget, limits.batch_size, {"prefill": x, "decode": y}, {}
        for request, most, phase in prefill + decode if first == PREFILL_FIRST else decode + prefill:
            share = min(most, wanted[phase], tokens)
            if share > 0 and slots > 0:
                allocation[request.index] = (share, 0) if phase == "prefill" else (0, share)
                wanted[phase] -= share
                tokens -= share
                slots -= 1
        return allocation

    return choose


# ---------------------------------------------------------------- odd policies of a user's own


@own_policy
def capped(queue, limits, params):
    """Never more than so many decodes and so many prompt tokens."""
    return min(queue.prompt_tokens, int(params[1])), min(queue.decoding, int(params[0])), int(params[2])


@own_policy
def scattered(queue, limits, params):
    """Batches that jump about with the state: few decodes, then many, prefill first, then last."""
    mark = (queue.prompts * 7919 + queue.prompt_tokens * 104729 + queue.decoding * 1299709 + int(params[0])) % 1009
    prefill, decode = (mark // 7) % (queue.prompt_tokens + 1), mark % (queue.decoding + 1)
    if prefill + decode == 0:
        prefill, decode = queue.prompt_tokens, queue.decoding
    return prefill, decode, mark % 2


@own_policy
def greedy(queue, limits, params):
    """Ask for far more than there is."""
    return 10 * limits.token_budget, 10 * limits.token_budget, int(params[2])


@own_policy
def alternating(queue, limits, params):
    """All decodes at some pool sizes, a third of them at others; half the prompt tokens, first."""
    decode = queue.decoding if queue.decoding % 3 == 0 else (queue.decoding + 2) // 3
    return (queue.prompt_tokens + 1) // 2, decode, PREFILL_FIRST


@own_policy
def pooled(queue, limits, params):
    """Decode alone once the pool is large or no prompt waits, else prefill alone."""
    decode = queue.decoding if queue.decoding >= int(params[0]) or queue.prompts == 0 else 0
    return (0 if decode > 0 else queue.prompt_tokens), decode, DECODE_FIRST


@own_policy
def curious(queue, limits, params):
    """A mark of all that a policy can see, so that no field can be wrong unnoticed."""
    mark = int(params[0])
    for field in queue:
        mark = (mark * 31 + field) % 1009
    decode = mark % (queue.decoding + 1)
    return (queue.prompt_tokens if decode == 0 else mark % (queue.prompt_tokens + 1)), max(decode, 1), mark % 2


@own_policy
def impatient(queue, limits, params):
    """Half the decodes while an odd number of prompts waits, also of those that may not be served yet."""
    return queue.prompt_tokens, max(queue.decoding // (1 + queue.waiting % 2), 1), DECODE_FIRST


@own_policy
def halving(queue, limits, params):
    """Half of those that decode, when an odd number of tokens is still to come."""
    return queue.prompt_tokens, (queue.decoding + 1) // (1 + queue.decode_tokens % 2), DECODE_FIRST


ODD = (capped, scattered, greedy, alternating, pooled, curious, impatient, halving)


def some_params(rng):
    return (float(rng.integers(1, 5)), float(rng.integers(1, 12)), float(rng.integers(0, 2)))


# ---------------------------------------------------------------- comparisons


def leading_digits(time):
    """Round a time to its 11 leading binary digits, and to the middle of what they stand for."""
    unit = 2 ** max(time.bit_length() - 11, 0)
    return time // unit * unit + unit // 2


def assert_equals_reference(run, history, rng):
    """Compare what both record: requests, batches, allocations, gaps, series and totals."""
    never = [-1 if tick is None else tick for r in history.requests for tick in (r.first_token, r.finish)]
    assert np.stack([run.rows.first_token, run.rows.finish], axis=1).ravel().tolist() == never
    assert run.rows.arrival.tolist() == [request.arrival for request in history.requests]

    batches = [(b.start, b.duration, b.prefill_tokens, b.decode_tokens, b.requests) for b in history.batches]
    assert list(map(tuple, run.batch_rows.tolist())) == batches
    allocations = [{} for _ in batches]
    for batch, request, prefill, decode in run.allocation_rows.tolist():
        assert request not in allocations[batch]
        allocations[batch][request] = (prefill, decode)
    assert allocations == [batch.allocation for batch in history.batches]

    gaps = [later - token for r in history.requests for token, later in pairwise(r.token_times)]
    kept = Counter(gaps if run.server.batch_time.by_load else map(leading_digits, gaps))
    assert dict(zip(run.gaps.values.tolist(), run.gaps.counts.tolist(), strict=True)) == kept
    assert run.gaps.total == sum(gaps)

    ended = [b for b in history.batches if b.end <= history.end]
    mixes = Counter((b.prefill_tokens << 32) + b.decode_tokens for b in ended)
    assert dict(zip(*(column.tolist() for column in run.mixes), strict=True)) == mixes
    seconds = Counter()
    for b in ended:
        seconds[(b.prefill_tokens << 32) + b.decode_tokens] += b.duration
    assert dict(zip(run.mixes[0].tolist(), run.mix_ticks.tolist(), strict=True)) == seconds
    totals = (run.end, run.n_batches, run.arrived, run.finished, run.busy, run.tokens, run.started_tokens)
    assert totals == (
        history.end,
        len(batches),
        len(history.requests),
        sum(request.finish is not None for request in history.requests),
        sum(min(b.end, history.end) - b.start for b in history.batches),
        sum(b.prefill_tokens + b.decode_tokens for b in ended),
        sum(b.prefill_tokens + b.decode_tokens for b in history.batches),
    )

    instants = run.series_rows[:, 0]
    step = int(instants[1]) if instants.size > 1 else 1
    assert instants.tolist() == list(range(0, history.end + 1, step))[:2000]
    assert instants[-1] + step > history.end or instants.size == 2000
    some = {0, instants.size - 1, *rng.integers(0, instants.size, 12).tolist()}
    for tick, requests, unprocessed, uncompleted in run.series_rows[sorted(some)].tolist():
        assert requests == history.requests_in_system(tick), f"requests at tick {tick}"
        assert unprocessed == history.unprocessed_tokens(tick), f"unprocessed tokens at tick {tick}"
        assert uncompleted == history.uncompleted_tokens(tick), f"uncompleted tokens at tick {tick}"


def plain(value):
    """Turn arrays, and what holds them, into lists that can be compared."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if dataclasses.is_dataclass(value):
        return [plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
    return [plain(part) for part in value] if isinstance(value, tuple) else value


def assert_same(one, other, *, but=()):
    """Compare all that two runs hold, but for some fields that one of them did not record."""
    for field in dataclasses.fields(one):
        if field.name not in ("system", "workload", *but):
            equal = plain(getattr(one, field.name)) == plain(getattr(other, field.name))
            assert equal, f"{field.name} differs"  # thousands of rows: pytest's own comparison would take minutes


def assert_summary(summary, run):
    """A summary counts and averages exactly; its quantiles are within 0.1%."""
    assert_same(summary, run, but=("rows", "folded", "counted_gaps", "batch_rows", "allocation_rows"))
    for name in ("ttft", "counted_gaps", "e2e"):
        rounded, exact = getattr(summary, name), getattr(run, name)
        assert (rounded.size, rounded.total) == (exact.size, exact.total), name
        for share in (0, 0.5, 0.9, 0.99, 1) if exact.size else ():
            assert rounded.quantile(share) == pytest.approx(exact.quantile(share), rel=1e-3), name


def check(system, rule, choose, rng):
    """Compare kernel and reference on one system, and the ways to run the kernel with each other."""
    try:
        run = system.kernel(rule, "allocations")
        assert_equals_reference(run, system.reference(choose), rng)
        batches = system.kernel(rule, "batches")
        assert_same(batches, run, but=("allocation_rows",))
        assert_same(system.kernel(rule, "batches", compress=False), batches)
        assert_same(system.kernel(rule, "requests"), batches, but=("batch_rows",))
        assert_summary(system.kernel(rule, "summary"), batches)
    except AssertionError as error:
        error.add_note(f"{rule.name} on {system}")
        raise
    return run


# ---------------------------------------------------------------- the kernel is the specification


@pytest.mark.parametrize("scope", markov_chain.SCOPES)
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("systems", [10, pytest.param(2_000, marks=pytest.mark.slow)])
def test_the_kernel_equals_the_reference_event_for_event(name, scope, systems):
    """On so many systems each: tokens, finishes, batches, allocations, series, gaps, totals; in every record mode."""
    rule = POLICIES[name]
    own = markov_chain.POLICIES.get(name)
    rng = np.random.default_rng([2026, *name.encode(), *scope.encode()])
    seen = Counter()
    for _ in range(systems):
        system = draw(rng, scope)
        choose = own or requests_in_order(rule.function, system.server(rule).params)
        run = check(system, rule, choose, rng)
        seen["stopped early"] += run.unfinished > 0
        seen["thinned series"] += int(run.series_rows[-1, 0]) > 2000
        seen["cut prompts"] += run.batch_rows[:, 4].sum() > sum(system.output) + len(system.prompt)
        seen["ties"] += len(set(system.arrival)) < len(system.arrival)
        seen["idle times"] += run.busy < run.end
        seen["limits"] += system.max_batch_size is not None
    assert min(seen.values()) >= systems // 100, f"these systems are too tame: {seen}"
    assert len(seen) == 6


@pytest.mark.parametrize("scope", markov_chain.SCOPES)
@pytest.mark.parametrize("rule", ODD, ids=lambda rule: rule.name)
@pytest.mark.parametrize("systems", [6, pytest.param(400, marks=pytest.mark.slow)])
def test_the_kernel_serves_any_rule_as_its_translation_per_request_does(rule, scope, systems):
    rng = np.random.default_rng([7, *rule.name.encode(), *scope.encode()])
    for _ in range(systems):
        params = some_params(rng)
        check(draw(rng, scope, params=params), rule, requests_in_order(rule.function, params), rng)


@pytest.mark.parametrize("name", sorted(markov_chain.POLICIES))
def test_the_rules_of_the_kernel_say_what_the_paper_says_per_request(name):
    """The aggregate formula, served first come first served, is the policy as the reference transcribes Section 4."""
    rng = np.random.default_rng(11)
    for i in range(25):
        system = draw(rng, markov_chain.SCOPES[i % 2])
        server = Server(Ticks(system.ticks), len(system.ticks), system.max_batch_size, policy=name)
        translated = system.reference(requests_in_order(POLICIES[name].function, server.params))
        literal = system.reference(name)
        assert translated.requests == literal.requests, system
        assert [b.allocation for b in translated.batches] == [b.allocation for b in literal.batches], system


@pytest.mark.parametrize("drain", [True, False])
def test_a_run_ends_at_the_last_departure_or_without_draining_at_the_last_arrival(drain):
    rng = np.random.default_rng(13)
    for i in range(40):
        system = dataclasses.replace(draw(rng, markov_chain.SCOPES[i % 2]), until=None)
        stop = None if drain else system.arrival[-1]
        run = system.kernel("sarathi", "allocations", drain=drain)
        assert_equals_reference(run, dataclasses.replace(system, until=stop).reference("sarathi"), rng)
        assert_summary(system.kernel("sarathi", "summary", drain=drain), run)


# ---------------------------------------------------------------- the ways to run the kernel give one result

LARGE = {"most_requests": 120, "longest_output": 300}


def large_systems(seed, rule, count):
    """Draw systems that the reference would be slow on: many requests, long outputs, so that rings and pools fill."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        yield draw(rng, markov_chain.SCOPES[i % 2], **LARGE, params=some_params(rng))


@pytest.mark.parametrize("rule", [*POLICIES.values(), *ODD], ids=lambda rule: rule.name)
@pytest.mark.parametrize("systems", [8, pytest.param(400, marks=pytest.mark.slow)])
def test_compression_changes_nothing_to_the_bit(rule: Policy, systems: int):
    """Also for rules that serve some of those who decode, so that the others' due epochs are put off."""
    passed_over = 0
    for system in large_systems(17, rule, systems):
        whole = system.kernel(rule, "batches", compress=False)
        assert_same(system.kernel(rule, "batches"), whole)
        assert_same(system.kernel(rule, "requests"), whole, but=("batch_rows",))
        assert_summary(system.kernel(rule, "summary"), whole)
        passed_over += whole.gaps.values.size > 1 and whole.gaps.values[-1] > max(system.ticks)
    assert passed_over > 0 or rule not in ODD, "no decode ever waited, so this says little"


@pytest.mark.parametrize("steps", [1, 7])
def test_stopping_and_going_on_after_any_number_of_steps_changes_nothing(steps, monkeypatch):
    rules = [*POLICIES.values(), *ODD]
    systems = list(large_systems(19, None, len(rules)))
    for record in ("summary", "batches", "allocations"):
        whole = [system.kernel(rules[i % len(rules)], record) for i, system in enumerate(systems)]
        with monkeypatch.context() as patch:
            patch.setattr(penstock.simulation.running, "_STEPS", steps)
            for i, system in enumerate(systems):
                assert_same(system.kernel(rules[i % len(rules)], record), whole[i])


@pytest.mark.parametrize("block", [1, 5, 50])
def test_the_size_of_the_blocks_in_which_requests_stream_in_changes_nothing(block, monkeypatch):
    """In a summary, requests that have finished are dropped from the front of the window at each block."""
    rules = [*POLICIES.values(), *ODD]
    systems = list(large_systems(23, None, len(rules)))
    whole = [system.kernel(rules[i % len(rules)], "requests") for i, system in enumerate(systems)]
    monkeypatch.setattr(arrivals, "BLOCK", block)
    for i, system in enumerate(systems):
        for compress in (True, False):
            assert_summary(system.kernel(rules[i % len(rules)], "summary", compress=compress), whole[i])
        assert_same(system.kernel(rules[i % len(rules)], "requests"), whole[i])


def test_row_buffers_that_fill_up_lose_nothing():
    """More batches and allocations than the first buffers hold (65,536 rows each)."""
    rng = np.random.default_rng(29)
    n, budget = 2_500, 16
    system = System(
        arrival=tuple(np.cumsum(rng.integers(0, 3, n)).tolist()),
        prompt=tuple(rng.integers(1, 30, n).tolist()),
        output=tuple(rng.integers(1, 120, n).tolist()),
        ticks=(3,) * budget,
        max_batch_size=2,
        scope="running",
        convention="engine",
        until=None,
    )
    run = system.kernel("orca", "allocations")
    assert run.batch_rows.shape[0] == run.n_batches > 65_536
    assert run.allocation_rows[:, 2:].sum() == run.tokens
    assert np.array_equal(np.bincount(run.allocation_rows[:, 0]), run.batch_rows[:, 4])
    assert_same(system.kernel("orca", "batches"), run, but=("allocation_rows",))
