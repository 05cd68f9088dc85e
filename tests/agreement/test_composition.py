"""Batch times that depend on what is in a batch: the fast kernel against the specification, and against itself.

Costs are whole multiples of 2^-20 ticks, which seconds hold exactly, so kernel and reference must agree to the tick.
"""

import dataclasses

import numpy as np
import pytest
from test_kernel_reference import ODD, System, Ticks, assert_same, assert_summary, check, draw, some_params

import penstock.simulation.running
from penstock.auditing.audit import audit
from penstock.simulation.simulate import simulate
from penstock.system.batch_time import Affine, BatchTime, Composition, Hinge
from penstock.system.policies import POLICIES
from penstock.system.server import Server
from penstock.workload import arrivals
from penstock.workload.workload import Workload
from tests.reference import markov_chain

UNITS = 2**20  # to the tick
FINE = Composition(
    Hinge(11e-3, 9e-5, 96), 3.1e-9, 7.3e-9, 4.7e-8, 5.9e-8, 1.3e-5, 7.1e-4
)  # no term a whole number of ticks


@dataclasses.dataclass(frozen=True)
class Composed(System):
    """A small system whose batches cost ``ticks`` by token load, and so many units more for what is in them."""

    costs: tuple[int, ...] = (0, 0, 0, 0, 0, 0)  # self-, cross-, decode, mixed attention; per request; with prefill
    odd: int = 0  # units of every batch

    @property
    def batch_time(self):
        linear = Ticks(tuple(ticks + self.odd / UNITS for ticks in self.ticks))
        return Composition(linear, *(cost / UNITS for cost in self.costs))

    @property
    def ticks_of(self):
        linear = [0, *(ticks * UNITS + self.odd for ticks in self.ticks)]
        return markov_chain.Composition(linear.__getitem__, *self.costs, per_tick=UNITS)


def composed(rng, scope, **how):
    """Draw a system: fractions of a tick and many ticks for each token, some terms without a cost."""
    system = draw(rng, scope, **how)
    most = rng.choice([1, 1_000, 30_000, UNITS // 2, 3 * UNITS])
    costs = np.where(rng.random(6) < 0.25, 0, rng.integers(0, most + 1, 6))
    until = None if system.until is None else int(system.until * rng.choice([1, 4]))
    fields = {field.name: getattr(system, field.name) for field in dataclasses.fields(System)} | {"until": until}
    return Composed(**fields, costs=tuple(costs.tolist()), odd=int(rng.choice([0, rng.integers(0, UNITS)])))


def some_workload(rng, count, *, longest_prompt=3_000, longest_output=600, rate=4.0):
    arrival = np.cumsum(rng.exponential(1 / rate, count))
    prompt, output = rng.integers(1, longest_prompt, count), rng.integers(1, longest_output, count)
    return Workload.from_arrays(arrival - arrival[0], prompt, output)


# ---------------------------------------------------------------- the kernel is the specification


@pytest.mark.parametrize("scope", markov_chain.SCOPES)
@pytest.mark.parametrize("name", sorted(markov_chain.POLICIES))
@pytest.mark.parametrize("systems", [6, pytest.param(200, marks=pytest.mark.slow)])
def test_the_kernel_equals_the_reference_event_for_event(name, scope, systems):
    """On so many systems each: tokens, finishes, batches, allocations, series, gaps, totals; in every record mode."""
    rng = np.random.default_rng([6, *name.encode(), *scope.encode()])
    compositions = 0
    for _ in range(systems):
        run = check(composed(rng, scope), POLICIES[name], markov_chain.POLICIES[name], rng)
        by_load = {}
        for ticks, *load in run.batch_rows[:, 1:4].tolist():
            by_load.setdefault(sum(load), set()).add(ticks)
        compositions += any(len(ticks) > 1 for ticks in by_load.values())
        assert audit(run).feasible, audit(run).violations
    assert compositions >= systems // 8, "nearly all of these batches went by their token load"


@pytest.mark.parametrize("rule", [*POLICIES.values(), *ODD], ids=lambda rule: rule.name)
def test_compression_changes_nothing_to_the_bit(rule):
    """Also for rules that serve some of those who decode, whose context is then a sum over some of them."""
    rng = np.random.default_rng([17, *rule.name.encode()])
    for i in range(5):
        system = composed(
            rng, markov_chain.SCOPES[i % 2], most_requests=80, longest_output=300, params=some_params(rng)
        )
        whole = system.kernel(rule, "batches", compress=False)
        assert_same(system.kernel(rule, "batches"), whole)
        assert_same(system.kernel(rule, "requests"), whole, but=("batch_rows",))
        assert_summary(system.kernel(rule, "summary"), whole)
        assert audit(system.kernel(rule, "allocations")).n_violations == 0


@pytest.mark.parametrize("policy", ["sarathi", "vllm-vanilla", "fastertransformer"])
@pytest.mark.parametrize("tick_s", [1e-9, 1e-6])
def test_compression_changes_nothing_with_long_contexts_and_terms_that_are_no_whole_ticks(policy, tick_s):
    """Runs of hundreds of batches, each some ticks longer than the one before."""
    workload = some_workload(np.random.default_rng(3), 80, longest_prompt=60_000, longest_output=3_000, rate=0.7)
    server = Server(FINE, 2_048, 64, policy=policy)
    whole = simulate(workload, server, record="batches", compress=False, tick_s=tick_s)
    assert_same(simulate(workload, server, record="batches", tick_s=tick_s), whole)
    summary = simulate(workload, server, record="summary", tick_s=tick_s)
    assert_same(summary, whole, but=("rows", "folded", "batch_rows", "allocation_rows"))
    decodes = whole.batch_rows[whole.batch_rows[:, 2] == 0]
    rises = np.diff(decodes[:, 1])
    assert (rises > 0).sum() > 500 or tick_s == 1e-6


@pytest.mark.parametrize("block", [1, 7, 50])
def test_the_size_of_the_blocks_in_which_requests_stream_in_changes_nothing(block, monkeypatch):
    rng = np.random.default_rng(23)
    rules = [*POLICIES.values(), *ODD]
    systems = [
        composed(rng, markov_chain.SCOPES[i % 2], most_requests=80, longest_output=200, params=some_params(rng))
        for i in range(len(rules))
    ]
    whole = [system.kernel(rules[i % len(rules)], "requests") for i, system in enumerate(systems)]
    monkeypatch.setattr(arrivals, "BLOCK", block)
    monkeypatch.setattr(penstock.simulation.running, "_STEPS", 5 * block)
    for i, system in enumerate(systems):
        assert_summary(system.kernel(rules[i % len(rules)], "summary"), whole[i])
        assert_same(system.kernel(rules[i % len(rules)], "requests"), whole[i])


# ---------------------------------------------------------------- against the model


@pytest.mark.parametrize("policy", ["sarathi", "orca", "vllm-vanilla", "fastertransformer", "maxweight"])
@pytest.mark.parametrize("convention", markov_chain.CONVENTIONS)
def test_without_attention_a_server_is_that_of_its_linear_part(policy, convention):
    """Also in the times between tokens, which are only kept less finely."""
    workload = some_workload(np.random.default_rng(5), 200)
    linear = Affine(7.77e-3, 3.3e-5)
    by_load, by_composition = (
        simulate(workload, Server(model, 512, 64, policy=policy, convention=convention), record="batches")
        for model in (linear, Composition(linear))
    )
    assert_same(by_composition, by_load, but=("counted_gaps",))
    assert by_composition.gaps.total == by_load.gaps.total
    assert by_composition.gaps.size == by_load.gaps.size
    for share in (0, 0.01, 0.5, 0.9, 0.99, 1):
        assert by_composition.gaps.quantile(share) == pytest.approx(by_load.gaps.quantile(share), rel=5e-4)


def contexts(run):
    """Return what each batch adds up to, request by request: squares, pairs, context."""
    before = dict.fromkeys(range(run.rows.arrival.size), 0)
    sums = np.zeros((run.n_batches, 3))
    for batch, request, prefill, decode in run.allocation_rows.tolist():
        sums[batch] += prefill**2, prefill * before[request], decode * before[request]
        before[request] += prefill + decode
    return sums.T


@pytest.mark.parametrize("policy", ["sarathi", "orca", "vllm-vanilla", "fastertransformer", "maxweight", "halving"])
@pytest.mark.parametrize("scope", markov_chain.SCOPES)
def test_every_batch_takes_what_the_model_says_of_it_to_half_a_tick(policy, scope):
    """And the rounding of its terms, 2^-21 ticks each. Halving serves some of those that decode."""
    rule = {rule.name: rule for rule in ODD}.get(policy, policy)
    model = Composition(Affine(7.77e-3, 3.3e-5), 3.1e-6, 7.3e-6, 4.7e-6, 5.9e-6, 1.3e-3)
    run = simulate(
        some_workload(np.random.default_rng(9), 200, longest_prompt=700, longest_output=150, rate=9.0),
        Server(model, 256, 16, policy=rule, scope=scope),
        record="allocations",
        tick_s=1e-4,
    )
    _, duration, prefill, decode, requests = run.batch_rows.T
    squares, pairs, context = contexts(run)
    ticks = model.of_batches(prefill, decode, requests, squares, pairs, context) / 1e-4
    terms = 1 + requests + squares + decode + pairs + context
    assert (np.abs(duration - ticks) <= 0.5 + terms / 2**21).all()
    assert (context > 400).any()
    assert (pairs > 400).any()
    found = audit(run)
    assert found.feasible, found.violations
    late = dataclasses.replace(run, batch_rows=run.batch_rows + np.array([0, 3, 0, 0, 0]))
    assert not audit(late).feasible, "an audit notices batches that take three ticks too long"


def test_prompts_and_outputs_of_one_token():
    """Worked by hand: 1 s for a batch, 0.5 s a new token, 0.25 s for a token before a decode."""
    server = Server(Composition(Affine(1.0, 0.0), 0.5, 0.0, 0.25), 2)
    run = simulate(Workload.from_arrays([0.0, 0.0, 0.0], [1, 1, 1], [1, 2, 3]), server, record="batches", tick_s=0.01)
    assert run.batch_rows.tolist() == [
        [0, 200, 2, 0, 2],  # two prompts, 1 + 2 * 0.5 s
        [200, 225, 1, 1, 2],  # a decode after one token beside the third prompt
        [425, 175, 0, 1, 1],
        [600, 200, 0, 1, 1],
    ]
    assert run.rows.finish.tolist() == [200, 425, 800]
    assert run.gaps.total == 225 + 175 + 200
    assert run.compositions["seconds"].to_list() == [3.75, 2.25, 2.0]


@pytest.mark.parametrize("until", [1, 150, 425, 426, 599, 600, 601, 10_000])
def test_a_run_stops_where_it_is_told_in_the_middle_of_equal_batches(until):
    server = Server(Composition(Affine(1.0, 0.0), 0.0, 0.0, 0.01), 8)
    workload = Workload.from_arrays([0.0, 1.0], [5, 3], [40, 30])
    one, other = (
        simulate(workload, server, until=until * 0.01, record="batches", tick_s=0.01, compress=compress)
        for compress in (True, False)
    )
    assert_same(one, other)
    assert one.end == min(until, 10_000)


# ---------------------------------------------------------------- what cannot be counted


@dataclasses.dataclass(frozen=True)
class Seconds(BatchTime):
    seconds: float

    def _seconds(self, tokens):
        return np.full_like(tokens, self.seconds)


@pytest.mark.parametrize(
    ("model", "tick_s", "said"),
    [
        (
            Composition(Seconds(1e-9)),
            1e-6,
            "a batch of 1 tokens takes 1e-09 s, less than half a tick of 1e-06 s; lower",
        ),
        (Composition(Seconds(1.0), cross_attention=1.0), 1e-15, "a term of 1 s, more ticks of 1e-15 s than can be"),
        (Composition(Seconds(1.0), decode_attention=1e-3), 1e-9, "64 tokens, each after 110,000 of its request, could"),
        (Composition(Seconds(1.0), self_attention=1.0), 1e-9, "could take 4,097 s, more ticks of 1e-09 s than are"),
        (Composition(Seconds(1.0), cross_attention=1.4e-9), 1e-3, "by up to 0.3%; lower tick_s"),
    ],
)
def test_what_cannot_be_counted_in_ticks_is_refused_in_one_line(model, tick_s, said):
    workload = Workload.from_arrays([0.0], [100_000], [10_000])
    with pytest.raises(penstock.errors.InputError) as error:
        simulate(workload, Server(model, 64), tick_s=tick_s)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
