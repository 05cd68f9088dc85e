"""What attention adds to a request, however its tokens are spread over batches."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.theory.attention import attention, prefill_seconds
from penstock.theory.fluid import fluid
from penstock.theory.load import load
from penstock.theory.moments import mean_of, mean_product
from penstock.theory.operating_point import operating_point
from penstock.theory.region import sarathi_region
from penstock.workload.lengths import Constant, Independent, Length, Mixture, Tabulated, Uniform
from tests.foster import foster
from tests.policy_capacities import policy_capacity

STEPS = ps.PiecewiseConstant(c=11.28e-3, a=35.47e-3, b0=128)
CAUSAL = ps.Composition(STEPS, self_attention=5e-8, cross_attention=1e-7)
"""A cut costs nothing, and decodes cost the same beside prefill: the work of a request is known exactly."""
UNEVEN = ps.Composition(
    STEPS, 4e-8, 2e-8, decode_attention=3e-7, mixed_attention=5e-7, per_request=1e-5, with_prefill=2e-3
)
CHAT = ps.Workload.poisson(5.0, 129, 112)

costs = st.sampled_from([0.0, 1e-4, 3e-4, 1e-3])


@st.composite
def compositions(draw: st.DrawFn) -> ps.Composition:
    """Attention that matters: a step of 8 tokens takes 10 ms, a request with 100 tokens before it up to 100 ms."""
    optional = st.none() | costs
    linear = ps.PiecewiseConstant(0.002, 0.008, 8)
    return ps.Composition(linear, draw(costs), draw(costs), draw(optional), draw(optional), draw(costs))


def ways_to_cut(tokens: int, largest: int) -> Iterator[list[int]]:
    """Yield every list of pieces that a prompt may be cut into."""
    if tokens == 0:
        yield []
    for first in range(1, min(tokens, largest) + 1):
        for rest in ways_to_cut(tokens - first, largest):
            yield [first, *rest]


def seconds_of_pieces(model: ps.Composition, pieces: list[int]) -> float:
    """Return what the pieces take beside the time by token load, by the model itself, one batch each."""
    starts = np.cumsum([0, *pieces[:-1]])
    alone = (model.of_batch([(n, int(done))]) - model.linear(n) for n, done in zip(pieces, starts, strict=True))
    return float(sum(alone))


@given(model=compositions(), prompt=st.integers(1, 7), budget=st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_a_prompt_costs_between_the_ends_whichever_way_it_is_cut(
    model: ps.Composition, prompt: int, budget: int
) -> None:
    """Both ends are attained; further cuts, which cost `per_request` each, are counted with the batches."""
    ways = list(ways_to_cut(prompt, budget))
    taken = np.array([seconds_of_pieces(model, way) for way in ways])
    cuts = np.array([len(way) - 1 for way in ways])
    (least,), (most,) = prefill_seconds(np.array([float(prompt)]), model, budget)
    assert taken.min() >= least * (1 - 1e-12)
    assert (taken - cuts * model.per_request).max() == pytest.approx(most)
    if model.per_request == 0 or model.self_attention <= model.cross_attention / 2:
        assert taken.min() == pytest.approx(least)


def test_where_small_pieces_cost_less_but_each_costs_something_the_least_is_close() -> None:
    model = ps.Composition(STEPS, self_attention=1e-4, per_request=2e-3)
    taken = min(seconds_of_pieces(model, way) for way in ways_to_cut(9, 9))
    (least,), _ = prefill_seconds(np.array([9.0]), model, 9)
    assert 0.95 * taken < least <= taken


@given(model=compositions(), rows=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), min_size=2, max_size=6))
@settings(max_examples=60, deadline=None)
def test_of_recorded_rows_it_is_the_sum_over_their_batches(model: ps.Composition, rows: list[tuple[int, int]]) -> None:
    """Prompts in one piece here; decodes at the cheaper and at the dearer of the two costs."""
    prompts, outputs = (np.array(column) for column in zip(*rows, strict=True))
    recorded = ps.Workload.from_arrays(np.arange(len(rows)), prompts, outputs)
    server = ps.Server(model, 40)
    found = load(recorded, server).attention_s
    low, high = sorted(model.of_decodes)
    sums = np.zeros(2)
    for prompt, output in rows:
        decodes = np.array([prompt + j for j in range(output - 1)])
        once = len(decodes) * (model.self_attention + model.per_request)
        ends = prefill_seconds(np.array([float(prompt)]), model, 40)
        cut = (prompt + output - 1) / 40 * model.per_request
        sums += [ends[0][0] + once + low * decodes.sum(), ends[1][0] + once + high * decodes.sum() + cut]
    assert found == pytest.approx(tuple(sums / len(rows)))
    assert dataclasses.replace(load(recorded, dataclasses.replace(server, convention="paper"))).attention_s >= found


LENGTHS: list[Length] = [
    Constant(7),
    Uniform(3, 50),
    ps.Geometric(12),
    ps.Geometric(112, max=150),
    ps.LogNormal(300, 1.2, max=2000),
    ps.Gamma(60, 0.5),
    Tabulated(5, np.array([1.0, 2, 3, 0, 1])),
    Mixture([Constant(5), ps.Geometric(10, max=40)], [1, 2]),
]


@pytest.mark.parametrize("length", LENGTHS, ids=lambda length: type(length).__name__)
def test_moments_are_those_of_the_distribution(length: Length) -> None:
    low, high = mean_of(lambda n: n, length) or (0, 0)
    assert low == pytest.approx(length.mean, rel=1e-9)
    assert high == pytest.approx(length.mean, rel=1e-9)
    squares = length.sample(np.random.default_rng(0), 200_000).astype(float) ** 2
    low, high = mean_of(lambda n: n**2, length) or (0, 0)
    error = 5 * squares.std() / np.sqrt(squares.size) + 1e-9
    assert squares.mean() - error <= low <= high <= squares.mean() + error


def test_moments_of_lengths_beyond_what_is_counted_one_by_one_are_bounded_closely() -> None:
    longest = 2_000_000
    low, high = mean_of(lambda n: n**2, Uniform(1, longest)) or (0, 0)
    exact = (longest + 1) * (2 * longest + 1) / 6
    assert low < exact < high < 1.002 * low


@pytest.mark.parametrize("correlation", [-0.9, -0.3, 0.0, 0.5, 0.8])
def test_the_mean_product_of_correlated_lengths_is_that_of_a_sample(correlation: float) -> None:
    rng = np.random.default_rng(1)
    lengths = Independent(Tabulated(1, rng.random(60)), Tabulated(4, rng.random(30) ** 3), correlation)
    prompt, output = lengths.sample(rng, 400_000)
    product = prompt * output.astype(float)
    low, high = mean_product(lengths)
    error = 5 * product.std() / np.sqrt(product.size)
    assert product.mean() - error <= low <= high <= product.mean() + error
    assert high - low < 0.002 * low


def test_distributions_of_ones_own_are_sampled_and_said_to_be_so() -> None:
    class Mine(Length):
        max, min, mean = 40, 20, 30.0

        def sample(self, rng: np.random.Generator, size: int) -> Any:
            return rng.choice([20, 40], size)

    shares = np.zeros(21)
    shares[[0, 20]] = 1.0
    own, known = (ps.Workload.poisson(5.0, length, 9) for length in (Mine(), Tabulated(20, shares)))
    server = ps.Server(UNEVEN, 64)
    sampled, exact = load(own, server), load(known, server)
    assert sampled.sampled
    assert not exact.sampled
    assert sampled.attention_s[0] < exact.attention_s[0] < exact.attention_s[1] < sampled.attention_s[1]
    assert sampled.attention_s == pytest.approx(exact.attention_s, rel=0.01)
    certificate = ps.certify(own, server)
    assert "mean attention of a request" in {h.name for h in certificate.hypotheses if not h.checked}


def test_without_attention_the_certificate_is_the_one_by_token_load() -> None:
    """But for the mean backlog, which is bounded where batch times are given by token load."""
    for limits in ((1024,), (1024, 100), (512, 30, "orca"), (512, None, "vllm-vanilla")):
        for rate in (3.0, 11.0, 20.0):
            workload = CHAT.with_rate(rate)
            plain, composed = (
                ps.certify(workload, ps.Server(model, *limits)) for model in (STEPS, ps.Composition(STEPS))
            )
            assert composed == plain
            assert composed.mean_backlog.low is None


def test_where_cuts_and_mixing_cost_nothing_the_certificate_has_no_band() -> None:
    certificate = ps.certify(CHAT, ps.Server(CAUSAL, 1024))
    assert certificate.certified_rate == pytest.approx(certificate.max_rate, rel=1e-12)
    assert certificate.verdict == "stable"
    assert certificate.theorem == "Theorem 1(b), with attention"
    assert certificate.max_rate < ps.certify(CHAT, ps.Server(STEPS, 1024)).max_rate
    above = ps.certify(CHAT.with_rate(1.001 * certificate.max_rate), ps.Server(CAUSAL, 1024))
    assert above.verdict == "unstable"
    assert above.theorem == "Theorem 1(a), with attention"
    assert above.rho == pytest.approx(1.001)


def test_in_the_band_it_says_unknown_and_what_fails() -> None:
    server = ps.Server(UNEVEN, 1024)
    certificate = ps.certify(CHAT, server)
    assert certificate.certified_rate is not None
    assert certificate.certified_rate < certificate.max_rate
    between = ps.certify(CHAT.with_rate((certificate.certified_rate + certificate.max_rate) / 2), server)
    assert between.verdict == "unknown"
    assert [h.name for h in between.hypotheses if not h.held] == ["full batches carry the load"]


@given(
    model=compositions(),
    more=st.sampled_from(["self_attention", "cross_attention", "decode_attention", "mixed_attention", "per_request"]),
    slots=st.none() | st.integers(2, 20),
    prompt=st.integers(1, 60),
    output=st.integers(1, 20),
)
@settings(max_examples=60, deadline=None)
def test_dearer_attention_lowers_both_ends(
    model: ps.Composition, more: str, slots: int | None, prompt: int, output: int
) -> None:
    workload = ps.Workload.poisson(1.0, prompt, output)
    dearer = dataclasses.replace(model, **{more: (getattr(model, more) or 0.0) + 1e-3})
    if more == "cross_attention" or (more == "decode_attention" and model.decode_attention is None):
        alone, mixed = model.of_decodes  # hold what followed from the other
        model = dataclasses.replace(model, decode_attention=alone, mixed_attention=mixed)
        dearer = dataclasses.replace(model, **{more: getattr(model, more) + 1e-3})
    if more == "mixed_attention" and model.mixed_attention is None:
        dearer = dataclasses.replace(model, mixed_attention=model.of_decodes[1] + 1e-3)
    before, after = (ps.certify(workload, ps.Server(m, 16, slots)) for m in (model, dearer))
    assert after.max_rate <= before.max_rate * (1 + 1e-12)
    assert (after.certified_rate or 0.0) <= (before.certified_rate or 0.0) * (1 + 1e-12)


POLICIES = ["sarathi", "orca", "vllm-vanilla", "fastertransformer", "maxweight", "pool-controlled", "vllm", "sglang"]


def at_once(rows: int, prompt: int, output: int, seed: int) -> tuple[ps.Workload, ps.Workload]:
    """Return requests that are all there at the start, and the same with a rate of one per second."""
    lengths = (ps.Geometric(prompt, max=4 * prompt), ps.Geometric(output, max=4 * output))
    requests = ps.Workload.poisson(1.0, *lengths, seed=seed).requests(rows)
    arrays = requests._replace(arrival_s=np.linspace(0.0, 1e-6, rows))
    return ps.Workload.from_arrays(*arrays), ps.Workload.from_arrays(np.arange(rows), *requests[1:])


@given(
    model=compositions(),
    policy=st.sampled_from(POLICIES),
    prompt=st.integers(1, 60),
    output=st.integers(1, 20),
    budget=st.integers(4, 80),
    slots=st.none() | st.integers(1, 30),
    seed=st.integers(0, 9),
)
@settings(max_examples=50, deadline=None)
def test_no_policy_takes_less_time_than_the_bounds_say(
    model: ps.Composition, policy: str, prompt: int, output: int, budget: int, slots: int | None, seed: int
) -> None:
    """All requests are there at the start: seconds are at least requests over the bound of these very requests."""
    flood, recorded = at_once(60, prompt, output, seed)
    server = ps.Server(model, budget, min(slots or budget, budget), policy)
    run = ps.simulate(flood, server, drain=True)
    for bound in ps.certify(recorded, server).bounds:
        assert 60 / bound.max_rate <= run.seconds * (1 + 1e-6), bound


@given(
    model=compositions(),
    policy=st.sampled_from(["sarathi", "orca", "vllm", "tensorrt-llm"]),
    prompt=st.integers(1, 60),
    output=st.integers(1, 20),
    budget=st.integers(4, 40),
    seed=st.integers(0, 9),
)
@settings(max_examples=50, deadline=None)
def test_full_batches_take_no_longer_than_the_work_that_they_take_away(
    model: ps.Composition, policy: str, prompt: int, output: int, budget: int, seed: int
) -> None:
    """Their seconds add up to less than the most that all requests bring: the drift of Theorem 1(b), with attention."""
    flood, recorded = at_once(60, prompt, output, seed)
    options = {"policy_params": {"chunked_context": True}} if policy == "tensorrt-llm" else {}
    server = ps.Server(model, budget, budget, policy, **options)  # type: ignore[arg-type]
    run = ps.simulate(flood, server, drain=True, record="batches")
    assert run.batches is not None
    full = run.batches["prefill_tokens"] + run.batches["decode_tokens"] == budget
    seconds = run.batches["duration_ns"].filter(full).sum() / 1e9
    asked = load(recorded, server)
    brought = 60 * asked.tokens_per_request / asked.full_batch_tokens_per_s
    assert seconds <= brought * (1 + 1e-6)


def test_a_worst_batch_that_drains_nothing_gives_no_certificate_and_no_error() -> None:
    server = ps.Server(ps.Composition(ps.Affine(2e-3, 1e-4), 1e-6), 64, 8, "orca")
    found = ps.certify(ps.Workload.poisson(1.0, 50, ps.Geometric(1, max=6)), server)
    assert found.verdict in ("unknown", "stable")


def test_the_bound_by_slots_counts_no_attention_where_tokens_may_be_computed_anew() -> None:
    model = ps.Composition(ps.Hinge(1e-3, 1e-9, 8192), decode_attention=1e-3 / 8192)
    ample = ps.Server(model, 8192, 2)
    short = dataclasses.replace(ample, memory=ps.Memory(600, 16))
    chat = ps.Workload.poisson(1.0, 4_000, 300)
    bound, other = (
        next(b for b in ps.certify(chat, server).bounds if b.name == "max batch size") for server in (ample, short)
    )
    assert "attention" in bound.theorem
    assert "attention" not in other.theorem
    assert other.max_rate > bound.max_rate


def test_where_requests_are_preempted_what_they_compute_anew_may_be_cheaper_than_decodes() -> None:
    """Decodes so dear that to prefill their context again costs less: the bound counts no more than that."""
    model = ps.Composition(ps.Affine(1e-3, 1e-5), decode_attention=1e-3)
    ample = ps.Server(model, 64, 8)
    short = dataclasses.replace(ample, memory=ps.Memory(30, 4))
    lengths = ps.Workload.poisson(1.0, 20, 30).requests(60)[1:]
    flood, recorded = (ps.Workload.from_arrays(np.linspace(0, last, 60), *lengths) for last in (1e-6, 59))
    run = ps.simulate(flood, short, drain=True)
    assert run.preemptions > 60
    assert 60 / ps.certify(recorded, short).max_rate <= run.seconds < 60 / ps.certify(recorded, ample).max_rate
    assert attention(CHAT.lengths, short).most == attention(CHAT.lengths, ample).most


def test_what_is_known_by_token_load_only_is_refused_in_one_line() -> None:
    server = ps.Server(CAUSAL, 512)
    refused = [
        lambda: policy_capacity(server, prompt=100, output=100),
        lambda: foster(server, arrival_rate=1.0, prompt=100, output=100),
        lambda: fluid(server, arrival_rate=1.0, prompt=100, output=100),
        lambda: sarathi_region(dataclasses.replace(server, max_batch_size=100)),
    ]
    for ask in refused:
        with pytest.raises(
            ps.InputError, match=r"depend on what is in a batch \(Composition\), so .* is not known; ask"
        ):
            ask()


def test_the_region_counts_tokens_alone_and_is_no_smaller() -> None:
    """It is an outer bound; the rate of a workload counts attention, too."""
    plain, composed = (ps.Server(model, 1024, 100) for model in (STEPS, UNEVEN))
    point = operating_point(CHAT, composed)
    assert point.max_rate < operating_point(CHAT, plain).max_rate
    assert point.max_rate < point.region.scale((129, 111))
    assert any("attention" in note for note in point.notes)
    assert point.own is None
