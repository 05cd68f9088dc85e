"""The instant estimate obeys what must hold of any latency, and says where it knows nothing."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.theory.latency import estimate_latency
from penstock.theory.latency_bounds import lower_bounds, request_bounds
from penstock.workload.lengths import Length

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
SERVER = ps.Server(TP1, 512)
CHAT = ps.Workload.poisson(7.0, ps.Geometric(129), ps.Geometric(112))


def test_one_request_alone_takes_its_batches() -> None:
    """Next to no load: a prompt of 1,000 in batches of 512, then 9 decodes alone."""
    found = estimate_latency(ps.Workload.poisson(1e-7, 1_000, 10), SERVER)
    (point,) = found.points
    assert point.ttft_s == pytest.approx(float(TP1(512) + TP1(488)), rel=1e-4)
    assert point.tbt_s == pytest.approx(float(TP1(1)), rel=1e-4)
    assert point.e2e_s == pytest.approx(float(TP1(512) + TP1(488) + 9 * TP1(1)), rel=1e-4)


def test_one_request_alone_under_the_papers_convention_decodes_once_before_its_first_token() -> None:
    found = estimate_latency(ps.Workload.poisson(1e-7, 100, 10), ps.Server(TP1, 512, convention="paper"))
    assert found.ttft_s == pytest.approx(2 * float(TP1(1)), rel=1e-4)
    assert found.e2e_s == pytest.approx(11 * float(TP1(1)), rel=1e-4)


def test_one_request_alone_takes_its_attention() -> None:
    """Causal attention of a prompt of 400, then 20 decodes after 400 to 419 tokens."""
    attention = {"self_attention": 1e-7, "cross_attention": 2e-7, "decode_attention": 3e-6, "per_request": 1e-3}
    model = ps.Composition(ps.Affine(0.01, 1e-4), with_prefill=2e-3, **attention)  # type: ignore[arg-type]
    found = estimate_latency(ps.Workload.poisson(1e-7, 400, 21), ps.Server(model, 512))
    assert found.ttft_s == pytest.approx(model.of_batch(prefill=[(400, 0)]), rel=1e-4)
    assert found.tbt_s == pytest.approx(np.mean([model.of_batch(decode=[400 + j]) for j in range(20)]), rel=1e-4)


def test_little_holds_for_the_pool() -> None:
    """Requests in decode = rate times the time that they spend there."""
    found = estimate_latency(CHAT, SERVER)
    (point,) = found.points
    assert point.tbt_s is not None
    assert point.pool == pytest.approx(7.0 * (112 - 1) * point.tbt_s, rel=0.01)
    assert found.e2e_s == pytest.approx(point.ttft_s + 111 * point.tbt_s, rel=0.01)


def test_without_fixed_costs_and_waiting_the_mean_batch_time_follows_from_tokens_in_tokens_out() -> None:
    """t_b = c + a b while no batch is full and none empty: E[t] = c / (1 - a rate E[tokens])."""
    server = ps.Server(ps.Affine(0.02, 1e-5), 20_000)
    found = estimate_latency(ps.Workload.poisson(100.0, 200, ps.Geometric(101)), server)
    assert found.tbt_s == pytest.approx(0.02 / (1 - 1e-5 * 100 * 300), rel=5e-3)


@settings(max_examples=30)
@given(
    prompt=st.sampled_from([40, ps.Geometric(40), ps.Geometric(700), 3_000, ps.LogNormal(900, 1.2), ps.Uniform(1, 9)]),
    output=st.sampled_from([1, 2, 30, ps.Geometric(200), ps.Gamma(80, 2.0)]),
    preset=st.sampled_from(["codellama-34b-a100-tp1", "codellama-34b-a100-tp4", "llama-2-70b-h100-tp4"]),
    budget=st.sampled_from([130, 512, 2_048]),
    convention=st.sampled_from(["paper", "engine"]),
)
def test_latency_rises_with_the_rate_and_stays_above_what_none_undercuts(
    prompt: int | Length, output: int | Length, preset: str, budget: int, convention: str
) -> None:
    server = ps.Server(ps.hardware(preset).batch_time, budget, convention=convention)  # type: ignore[arg-type]
    workload = ps.Workload.poisson(1e-3, prompt, output)
    slow = estimate_latency(workload, server)
    before = [0.0, 0.0]
    for load in (0.05, 0.3, 0.6, 0.9):
        asked = workload.with_rate(1e-3 * load / slow.full_load)
        found, least = estimate_latency(asked, server), lower_bounds(asked, server)
        assert found.full_load == pytest.approx(load)
        assert found.points
        last = found.points[-1]
        assert found.ttft_s is not None
        assert found.e2e_s is not None
        assert found.e2e_s >= found.ttft_s * (1 - 1e-9)
        assert found.ttft_s > 0.85 * least["ttft_s"]["mean"]
        assert found.e2e_s > 0.85 * least["e2e_s"]["mean"]
        assert (found.tbt_s or 0.0) > 0.97 * least["tbt_s"]["mean"] or found.tbt_s is None
        assert last.ttft_s > before[0] * 0.98
        assert last.e2e_s > before[1] * 0.98
        before = [found.points[0].ttft_s, found.points[0].e2e_s]


def test_all_fixed_points_are_reported_and_several_are_flagged() -> None:
    """4.1 requests/s of 500 decodes: 96 of them are served in a block, which keeps them 96; 167 in two, 167."""
    found = estimate_latency(ps.Workload.poisson(4.1, 10, 501), SERVER)
    assert [point.attracts for point in found.points] == [True, False, True]
    pools = [point.pool for point in found.points]
    assert pools == sorted(pools)
    assert pools[0] < 128 < pools[-1]
    assert found.band is None
    assert "3 fixed points" in found.warnings[0]


@pytest.mark.parametrize("policy", ["orca", "vllm-vanilla", "fastertransformer", "maxweight", "sglang"])
def test_other_policies_get_the_reason_instead_of_an_estimate(policy: str) -> None:
    found = estimate_latency(CHAT, dataclasses.replace(SERVER, max_batch_size=64).with_policy(policy))
    assert found.points == ()
    assert found.ttft_s is found.tbt_s is found.e2e_s is found.band is None
    assert policy in found.warnings[0]
    assert found.rho == pytest.approx(ps.certify(CHAT, SERVER).rho, rel=0.01)


def test_a_policy_is_known_by_what_it_does_not_by_its_name() -> None:
    """A function of one's own may be called sarathi, and vLLM's options may leave room in batches."""

    def sarathi(queue, limits, params):  # type: ignore[no-untyped-def]
        return queue.prompt_tokens, queue.decoding, ps.PREFILL_FIRST

    whole = ps.Server(TP1, 512, 256, "vllm", policy_params={"long_prefill_threshold": 64})
    for server in (SERVER.with_policy(ps.policy(sarathi)), whole):
        assert "no mean field is known" in estimate_latency(CHAT, server).warnings[0]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"max_batch_size": 40}, "max batch size of 40"),
        ({"memory": ps.Memory(500)}, "KV memory has 8,000"),
        ({"order": "priority"}, "order of arrival"),
    ],
)
def test_a_limit_that_keeps_requests_waiting_gets_the_reason(changed: dict[str, object], words: str) -> None:
    found = estimate_latency(CHAT, dataclasses.replace(SERVER, **changed))  # type: ignore[arg-type]
    assert found.points == ()
    assert words in found.warnings[0]
    assert "\n" not in found.warnings[0]


@pytest.mark.parametrize("changed", [{"max_batch_size": 128}, {"memory": ps.Memory(5_000)}])
def test_a_limit_out_of_reach_changes_nothing(changed: dict[str, object]) -> None:
    found = estimate_latency(CHAT, dataclasses.replace(SERVER, **changed))  # type: ignore[arg-type]
    assert found.points == estimate_latency(CHAT, SERVER).points


def test_a_budget_that_the_pool_fills_gets_the_reason() -> None:
    found = estimate_latency(ps.Workload.poisson(0.1, 5, 30), ps.Server(TP1, 1))
    assert found.points == ()
    assert "the token budget of 1 leaves no room" in found.warnings[0]


def test_overload_has_no_estimate_and_other_arrivals_no_band() -> None:
    assert "1.4" in estimate_latency(CHAT.with_rate(20.0), SERVER).warnings[0]
    even = estimate_latency(ps.Workload.deterministic(7.0, 129, 112), SERVER)
    assert even.points
    assert even.band is None
    assert "Poisson" in even.warnings[0]


def test_the_band_widens_with_the_load() -> None:
    bands = [estimate_latency(CHAT.with_rate(rate), SERVER).band for rate in (5.0, 9.0, 11.0, 12.9)]
    assert None not in bands
    assert bands == sorted(bands)  # type: ignore[type-var]
    assert estimate_latency(CHAT.with_rate(13.5), SERVER).band is None


def test_the_band_is_the_largest_error_that_the_ranges_leave() -> None:
    estimate = estimate_latency(CHAT, SERVER)
    assert estimate.band is not None
    for name, (low, high) in estimate.ranges.items():
        mean = getattr(estimate, name)
        assert low < mean < high
        assert mean <= low * (1 + estimate.band) * (1 + 1e-9)
        assert mean >= high * (1 - estimate.band) * (1 - 1e-9)


def test_where_it_may_be_off_by_a_large_factor_it_gives_no_ranges() -> None:
    """A prompt takes 1.5 s, and a decode beside none a millisecond: hundreds of those in a row, then none."""
    server = ps.Server(ps.Affine(1e-4, 1e-3), 8_192)
    workload = ps.Workload.poisson(0.25, 1_500, ps.Geometric(200))
    found = estimate_latency(workload, server)
    assert found.points
    assert found.ranges == {}
    assert found.band is None
    assert "off by a factor" in found.warnings[0]


def test_decodes_beside_long_batches_are_seen_by_more_requests_than_the_mean_pool() -> None:
    """t = c + a b: the batches take c / (1 - a rate E[tokens]), and a decode sees longer ones."""
    server = ps.Server(ps.Affine(0.02, 1e-4), 20_000)
    (point,) = estimate_latency(ps.Workload.poisson(25.0, 200, ps.Geometric(101)), server).points
    assert point.batch_s == pytest.approx(0.02 / (1 - 1e-4 * 25 * 300), rel=5e-3)
    assert point.tbt_s is not None
    assert point.tbt_s > 1.01 * point.batch_s


def test_bad_input_is_told_in_one_line() -> None:
    for asked in (estimate_latency, lower_bounds):
        with pytest.raises(ps.InputError, match="takes a Workload and a Server, not Server"):
            asked(SERVER, CHAT)  # type: ignore[arg-type]
        with pytest.raises(ps.InputError, match="no arrival rate"):
            asked(ps.Workload.from_arrays([0.0], [10], [10]), SERVER)


def test_bounds_of_requests_are_reached_by_one_alone() -> None:
    """Whatever the model: a prompt within the budget takes one batch, each decode one more."""
    for model in (TP1, ps.Affine(0.01, 1e-4), ps.hardware("llama-2-70b-h100-tp4").batch_time):
        first, end = request_bounds(np.array([300]), np.array([3]), ps.Server(model, 512))
        prefill = model.of_batch(prefill=[(300, 0)])
        decodes = model.of_batch(decode=[300]) + model.of_batch(decode=[301])
        assert first[0] == pytest.approx(prefill, rel=0.02)
        assert first[0] <= prefill * (1 + 1e-12)
        assert end[0] == pytest.approx(prefill + decodes, rel=0.02)
        assert end[0] <= (prefill + decodes) * (1 + 1e-12)


def test_a_bound_does_not_assume_that_longer_batches_take_longer() -> None:
    """Batches of two tokens take a tenth of those of one, and four prompt tokens two of them."""
    odd = ps.Server(ps.Measured((1, 2), (1.0, 0.1)), 2)
    first, end = request_bounds(np.array([4]), np.array([2]), odd)
    assert 0.1 < first[0] <= 0.2 + 1e-12
    assert end[0] <= 0.3 + 1e-12


@given(rates=st.tuples(st.floats(0.01, 13.0), st.floats(0.01, 13.0)), policy=st.sampled_from(["sarathi", "vllm"]))
def test_bounds_rise_with_the_rate(rates: tuple[float, float], policy: str) -> None:
    low, high = (lower_bounds(CHAT.with_rate(rate), SERVER.with_policy(policy)) for rate in sorted(rates))
    for metric, found in low.items():
        assert all(found[name] <= high[metric][name] * (1 + 1e-9) for name in found)


def test_near_the_capacity_every_gap_lasts_as_long_as_the_best_batch() -> None:
    """Only batches of 512 carry that rate, so next to all gaps have their length, and no policy shortens them."""
    capacity = TP1.capacity(512) / 240
    found = lower_bounds(CHAT.with_rate(0.9999 * capacity), SERVER)["tbt_s"]
    assert found["mean"] == pytest.approx(float(TP1(512)), rel=1e-2)
    assert found["p50"] == pytest.approx(float(TP1(512)), rel=1e-6)
    assert lower_bounds(CHAT.with_rate(1.0001 * capacity), SERVER)["tbt_s"]["mean"] == np.inf


def test_where_prompts_come_with_next_to_no_outputs_the_mean_ttft_is_that_of_the_queue() -> None:
    """Pollaczek and Khinchine: batches of any size are as good, so a server of prompts alone is an M/G/1 queue."""
    server = ps.Server(ps.Affine(0.0, 1e-3), 1)
    workload = ps.Workload.poisson(0.8, 1_000, 1)
    assert lower_bounds(workload, server)["ttft_s"]["mean"] == pytest.approx(1 + 0.8 / (2 * (1 - 0.8)), rel=1e-3)
