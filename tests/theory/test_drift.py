"""The drift certificate covers every batch that a backlog leads to, and what it certifies is stable."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.theory.drift import backlog, backlog_batches, drift
from penstock.theory.region import region
from penstock.workload.lengths import Empirical, Independent, Length, Lengths
from tests.own_policies import own_policy
from tests.saturated import saturated_rate

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
PER_TOKEN = ps.Affine(0.0, 1e-3)
FOUR = ("fastertransformer", "vllm-vanilla", "orca", "sarathi")
CHAT = Independent(ps.Constant(129), ps.Constant(112))


@own_policy
def stingy(queue, limits, params):  # type: ignore[no-untyped-def]
    """Serve a third of what decodes, and prompts only in fives."""
    decode = (queue.decoding + 2) // 3
    return (queue.prompt_tokens + 4) // 5, decode, ps.DECODE_FIRST


@own_policy
def moody(queue, limits, params):  # type: ignore[no-untyped-def]
    """Turn on the parity of what waits."""
    if queue.prompt_tokens % 2 == 1 or queue.decoding == 0:
        return queue.prompt_tokens, queue.decoding // 2, ps.PREFILL_FIRST
    return 1, queue.decoding, ps.DECODE_FIRST


@own_policy
def idle(queue, limits, params):  # type: ignore[no-untyped-def]
    return 0, 0, ps.DECODE_FIRST


@own_policy
def idle_when_full(queue, limits, params):  # type: ignore[no-untyped-def]
    return queue.prompt_tokens, queue.decoding if queue.prompts > 0 else 0, ps.DECODE_FIRST


@own_policy
def owing(queue, limits, params):  # type: ignore[no-untyped-def]
    return queue.prompt_tokens, queue.decoding - 5, ps.DECODE_FIRST


@own_policy
def reads_params(queue, limits, params):  # type: ignore[no-untyped-def]
    return queue.prompt_tokens, int(params[3]), ps.DECODE_FIRST


def length(low: int, high: int) -> Length:
    return ps.Uniform(min(low, high), max(low, high))


def under_backlog(run: ps.Run, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Return prefill and decode tokens of the batches that start with at least so many requests in the system."""
    batches, requests = run.batches, run.requests
    start = batches["start_ns"].to_numpy()
    finish = np.sort(requests["finish_ns"].to_numpy())
    left = finish.size - np.searchsorted(finish, start, side="right")
    chosen = left >= least
    return batches["prefill_tokens"].to_numpy()[chosen], batches["decode_tokens"].to_numpy()[chosen]


@pytest.mark.parametrize("scope", ["batch", "running"])
@pytest.mark.parametrize("policy", [*FOUR, stingy, moody])
@given(
    budget=st.integers(1, 40),
    slots=st.integers(1, 30),
    prompt=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    output=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    convention=st.sampled_from(["paper", "engine"]),
    seed=st.integers(0, 5),
)
@settings(max_examples=20, deadline=None)
def test_every_batch_that_a_simulated_backlog_leads_to_is_among_those_that_were_covered(
    policy: str | ps.Policy,
    scope: str,
    budget: int,
    slots: int,
    prompt: tuple[int, int],
    output: tuple[int, int],
    convention: str,
    seed: int,
) -> None:
    server = ps.Server(PER_TOKEN, budget, slots, policy, scope, convention)  # type: ignore[arg-type]
    lengths = Independent(length(*prompt), length(*output))
    if isinstance(policy, ps.Policy) and scope == "batch":
        assert drift(lengths, server).certified_rate is None
        return
    fewest, most = backlog_batches(lengths, server)
    drawn = lengths.sample(np.random.default_rng(seed), 4 * (budget + slots))
    run = ps.simulate(ps.Workload.from_arrays(np.zeros(drawn[0].size), *drawn), server, record="batches")
    x, y = under_backlog(run, 2 * (budget + slots))
    assert x.size > 0
    assert (fewest[x + y] <= y).all()
    assert (y <= most[x + y]).all()


@pytest.mark.parametrize("policy", FOUR)
@given(
    budget=st.integers(1, 40),
    prompt=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    output=st.tuples(st.integers(1, 30), st.integers(1, 30)),
)
@settings(max_examples=15, deadline=None)
def test_without_a_max_batch_size_too_every_simulated_batch_is_covered(
    policy: str, budget: int, prompt: tuple[int, int], output: tuple[int, int]
) -> None:
    server = ps.Server(PER_TOKEN, budget, None, policy)
    lengths = Independent(length(*prompt), length(*output))
    fewest, most = backlog_batches(lengths, server)
    drawn = lengths.sample(np.random.default_rng(0), 6 * budget)
    run = ps.simulate(ps.Workload.from_arrays(np.zeros(drawn[0].size), *drawn), server, record="batches")
    x, y = under_backlog(run, 2 * budget)
    assert (fewest[x + y] <= y).all()
    assert (y <= most[x + y]).all()


@given(
    budget=st.integers(1, 300),
    slots=st.integers(1, 300),
    prompt=st.integers(1, 300),
    output=st.integers(1, 300),
    policy=st.sampled_from(FOUR),
    shares=st.lists(st.tuples(*[st.floats(0.001, 1)] * 3), min_size=5, max_size=5),
)
@settings(max_examples=100, deadline=None)
def test_its_weights_drain_every_batch_at_the_certified_rate_and_no_others_drain_them_faster(
    budget: int, slots: int, prompt: int, output: int, policy: str, shares: list[tuple[float, float, float]]
) -> None:
    server = ps.Server(TP1, budget, slots, policy, convention="paper")
    lengths = Independent(ps.Constant(prompt), ps.Constant(output))
    found = drift(lengths, server)
    contents, seconds = backlog(lengths, server)
    means = np.array([prompt, output, 1.0])
    assert min(found.weights[:2]) > 0
    assert found.weights[2] >= 0
    assert found.weights @ means == pytest.approx(1)
    drained = (contents @ found.weights / seconds).min()
    assert found.certified_rate == pytest.approx(drained, rel=1e-12)
    for share in shares:
        other = contents @ (np.array(share) / sum(share) / means) / seconds
        assert other.min() <= drained * (1 + 1e-6)


def worths(server: ps.Server, drawn: Any, declared: Any, weights: Any) -> np.ndarray:
    """Return what each batch of a flood takes from a backlog in a second, while all places are held."""
    workload = ps.Workload.from_arrays(np.zeros(drawn[0].size), *drawn, declared=declared)
    run = ps.simulate(workload, server, record="batches")
    start, x, y, lasted = (
        run.batches[name].to_numpy() for name in ("start_ns", "prefill_tokens", "decode_tokens", "duration_ns")
    )
    first, finish = (run.requests[name].to_numpy() for name in ("first_token_ns", "finish_ns"))

    def at(times: np.ndarray, when: np.ndarray) -> np.ndarray:
        times = np.sort(times)
        return np.searchsorted(times, when, "right") - np.searchsorted(times, when, "left")

    # A foreseen end is not in the batch composed before it, but holds a place; others are, for a token that nobody
    # needs.
    foreseen = finish if declared is None else finish[declared == drawn[1]]
    ends, held = at(first, start + lasted), at(foreseen, start) * server.policy.batching.ahead
    crowded = finish.size - np.searchsorted(np.sort(finish), start, side="right") >= (server.max_batch_size or 0)
    return (np.column_stack([x, y + held, ends]) @ weights / (lasted / 1e9))[crowded]


@pytest.mark.parametrize("policy", ["vllm", "sarathi", "orca", "tensorrt-llm"])
@given(
    budget=st.integers(2, 60),
    slots=st.integers(1, 40),
    prompt=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    output=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    ahead=st.booleans(),
    early=st.booleans(),
    order=st.sampled_from(["fcfs", "priority"]),
    seed=st.integers(0, 5),
)
@settings(max_examples=40, deadline=None)
def test_every_batch_of_a_work_conserving_backlog_is_worth_its_time(
    policy: str,
    budget: int,
    slots: int,
    prompt: tuple[int, int],
    output: tuple[int, int],
    ahead: bool,
    early: bool,
    order: ps.Order,
    seed: int,
) -> None:
    """In the weights of the certificate; a request that ended with the batch before may still hold its place."""
    slots = min(slots, budget)
    of = {"vllm": {"async_scheduling": ahead}, "tensorrt-llm": {"chunked_context": True}}
    order = order if policy == "vllm" else "fcfs"
    server = ps.Server(TP1, budget, slots, policy, policy_params=of.get(policy, ()), order=order)
    ahead = server.policy.batching.ahead
    lengths = Independent(length(*prompt), length(*output))
    found = drift(lengths, server, by_arrival=server.order == "fcfs", wasteful=early)
    assert found.fills
    rng = np.random.default_rng(seed)
    drawn = lengths.sample(rng, 6 * (budget + slots))
    declared = drawn[1] + rng.integers(0, 9, drawn[1].size) if early and policy not in FOUR else None
    if found.certified_rate is not None:
        assert worths(server, drawn, declared, found.weights).min() >= found.certified_rate * (1 - 1e-6)


def test_where_every_batch_is_full_it_certifies_what_theorem_1_does() -> None:
    for policy in ("orca", "sarathi"):
        server = ps.Server(TP1, 512, None, policy)
        assert drift(CHAT, server).certified_rate == pytest.approx(512 / float(TP1(512)) / 240)
        wide = dataclasses.replace(server, max_batch_size=512, scope="batch")
        assert drift(CHAT, wide).certified_rate == pytest.approx(512 / float(TP1(512)) / 240)


def test_vanilla_vllm_without_a_limit_is_certified_as_if_each_prompt_token_had_its_own_batch() -> None:
    """A prompt may come in batches of one token at worst, then 512 requests decode at once."""
    server = ps.Server(PER_TOKEN, 512, None, "vllm-vanilla")
    assert drift(CHAT, server).certified_rate == pytest.approx(1 / 240e-3)
    server = ps.Server(ps.Affine(0.01, 0.0), 512, None, "vllm-vanilla")
    assert drift(CHAT, server).certified_rate == pytest.approx(1 / (129 * 0.01 + 111 / 512 * 0.01))


def test_requests_that_never_decode_are_certified_by_their_prompts() -> None:
    server = ps.Server(TP1, 512, 64)
    lengths = Independent(ps.Constant(1000), ps.Constant(1))
    assert drift(lengths, server).certified_rate == pytest.approx(512 / float(TP1(512)) / 1000)


def test_the_triangle_of_the_axes_is_not_safe_and_is_not_certified() -> None:
    """Sarathi under 100 slots, 40/400: at .95 of conv(O, A, D) the backlog grows by 5% of what arrives."""
    server = ps.Server(TP1, 1024, 100)
    prefill, decode = 1024 / float(TP1(1024)), 100 / float(TP1(100))
    workload = ps.Workload.poisson(0.95 / (40 / prefill + 399 / decode), 40, 400)
    run = ps.simulate(workload, server, requests=30_000, drain=False, record="summary")
    offered = workload.rate * 439
    assert run.growth_tokens_per_s > 0.04 * offered
    certificate = ps.certify(workload, server)
    assert certificate.verdict == "unknown"
    assert certificate.certified_rate is not None
    assert certificate.certified_rate < workload.rate
    assert certificate.margin > 0.05  # the necessary condition alone does not see it


CERTIFIED = [
    (ps.Server(TP1, 1024, 100), Independent(ps.Constant(40), ps.Constant(400))),
    (ps.Server(TP1, 512, 128), CHAT),
    (ps.Server(TP1, 512, 64, "orca", "batch"), CHAT),
    (ps.Server(TP1, 2048, 256, "orca"), Independent(ps.Geometric(200, max=2000), ps.Geometric(100, max=800))),
    (ps.Server(TP1, 512, 64, "sarathi", "batch", "paper"), Empirical([10, 900], [300, 20])),
    (ps.Server(TP1, 256, 64, stingy), Independent(ps.Constant(60), ps.Constant(60))),
    (ps.Server(TP1, 64, 32, "fastertransformer"), CHAT),
    (ps.Server(TP1, 64, 32, "vllm-vanilla"), CHAT),
    (ps.Server(TP1, 128, None, "vllm-vanilla"), Independent(ps.Constant(2), ps.Constant(90))),
]


@pytest.mark.parametrize(("server", "lengths"), CERTIFIED)
def test_at_98_percent_of_the_certified_rate_a_large_backlog_drains_in_simulation(
    server: ps.Server, lengths: Lengths
) -> None:
    """In n arrivals it drains by .02 n mean requests at least: n makes that 5 standard deviations of what arrives."""
    found = drift(lengths, server)
    assert found.certified_rate is not None
    rng = np.random.default_rng(1)
    weight = found.weights
    last = 1 if server.convention == "engine" else 0
    prompt, output = lengths.sample(rng, 200_000)
    spread = float(np.std(weight[0] * prompt + weight[1] * (output - last)))
    n = math.ceil((5 * math.sqrt(1 + spread**2) / 0.02) ** 2)
    waiting = math.ceil(0.04 * n) + 4 * (server.token_budget + (server.max_batch_size or 0))
    gaps = rng.exponential(1 / (0.98 * found.certified_rate), n)
    arrival = np.concatenate([np.zeros(waiting), np.cumsum(gaps)])
    prompt, output = lengths.sample(rng, arrival.size)
    run = ps.simulate(ps.Workload.from_arrays(arrival, prompt, output), server, record="requests", drain=False)
    gone = run.requests["finish_ns"].is_not_null().to_numpy()
    weights = weight[0] * prompt + weight[1] * (output - last)
    assert weights[~gone].sum() < weights[:waiting].sum()


@pytest.mark.parametrize("name", ["batch", "running"])
def test_certified_rates_lie_in_the_region_and_rise_as_batches_get_faster(name: str) -> None:
    for slots in (16, 64, 100, 200):
        server = ps.Server(TP1, 512, slots, scope=name)  # type: ignore[arg-type]
        rate = drift(CHAT, server).certified_rate
        assert rate is not None
        assert 0.3 * region(server, prompt=129, output=112).max_rate < rate
        assert rate < region(server, prompt=129, output=112).max_rate
        faster = dataclasses.replace(server, batch_time=ps.PiecewiseConstant(c=5.64e-3, a=35.47e-3 / 2, b0=128))
        assert drift(CHAT, faster).certified_rate == pytest.approx(2 * rate)


@pytest.mark.parametrize(
    ("server", "lengths", "part"),
    [
        (ps.Server(TP1, 64, 32, idle), CHAT, "idle forms an empty batch with"),
        (ps.Server(TP1, 64, 32, idle_when_full), CHAT, "empty batch with 0 prompts (0 tokens) and 32 decoding"),
        (ps.Server(TP1, 64, 32, owing), CHAT, "owing asks for a negative number of tokens"),
        (ps.Server(TP1, 64, 32, reads_params), CHAT, "reads-params failed: IndexError"),
        (ps.Server(TP1, 64, None, stingy), CHAT, "have no limit"),
        (ps.Server(TP1, 64, 32, stingy, "batch"), CHAT, "have no limit"),
        (
            ps.Server(TP1, 64, 32, "vllm-vanilla"),
            Independent(ps.Geometric(9), ps.Constant(9)),
            "prompts have no upper limit",
        ),
        (ps.Server(TP1, 512, 256, stingy), Independent(ps.Uniform(1, 32_000), ps.Constant(9)), "more than the"),
    ],
)
def test_where_the_batches_of_a_backlog_cannot_all_be_tried_it_certifies_nothing_and_says_why(
    server: ps.Server, lengths: Lengths, part: str
) -> None:
    found = drift(lengths, server)
    assert found.certified_rate is None
    assert part in found.why
    assert "\n" not in found.why


def test_a_policy_that_the_user_names_after_one_of_the_paper_is_not_taken_for_it() -> None:
    impostor = ps.policy(name="sarathi")(stingy.function)
    assert drift(CHAT, ps.Server(TP1, 64, 32, impostor, "batch")).certified_rate is None


def work_conserving_server(seed: int) -> tuple[ps.Workload, ps.Server]:
    """Draw a server under a max batch size, and what comes to it."""
    rng = np.random.default_rng([46, seed])
    budget = int(2 ** rng.uniform(4, 12))
    slots = max(int(budget * 10 ** rng.uniform(-1.5, 0)), 1)
    batch_time = rng.choice(
        [TP1, ps.hardware("llama-2-70b-h100-tp4").batch_time, ps.hardware("qwen3-32b-rtxpro6000-tp2").batch_time]
    ) if budget <= 2048 else TP1  # fmt: skip
    policy = str(rng.choice(["vllm", "vllm", "sarathi", "orca"]))
    settings_of = {"async_scheduling": bool(rng.integers(2))} if policy == "vllm" else ()
    lengths = [ps.Uniform(*sorted(int(10 ** rng.uniform(0, most)) for _ in range(2))) for most in (3.5, 2.7)]
    return ps.Workload.poisson(1.0, *lengths), ps.Server(batch_time, budget, slots, policy, policy_params=settings_of)


@pytest.mark.parametrize("policy", [*ps.POLICIES, *ps.ENGINES])
def test_no_scheduler_is_certified_for_more_than_it_carries_under_a_flood(policy: str) -> None:
    """Of any family, with and without KV memory that is ample, prompts cut to its blocks or not."""
    rng = np.random.default_rng([46, 3])
    for memory in ({}, {"kv_blocks": 4_000})[: 1 + (policy in ps.ENGINES)]:
        for _ in range(6):
            budget = int(2 ** rng.uniform(5, 8))
            slots = max(int(budget * 10 ** rng.uniform(-1, 0)), 2)
            lengths = [ps.Uniform(*sorted(int(10 ** rng.uniform(0, most)) for _ in range(2))) for most in (2.6, 1.8)]
            batch_time = ps.Affine(*rng.uniform(1e-5, 3e-2, 2) * (1, 0.01))
            chunks = {"policy_params": {"chunked_context": True}} if policy == "tensorrt-llm" else {}
            server = ps.Server(batch_time, budget, slots, policy, **chunks, **memory)
            workload = ps.Workload.poisson(1.0, *lengths)
            certified = ps.certify(workload, server).certified_rate
            if certified is not None:
                carried, error = saturated_rate(workload, server)
                assert certified <= 1.01 * carried + 4 * error, (server, lengths)


@pytest.mark.parametrize(
    ("server", "lengths"),
    [
        (ps.Server(ps.Affine(0.01, 1e-4), 64, 8, "pool-controlled", policy_params=[1, 2]), (100, 50)),
        (ps.Server(ps.Affine(0.028779, 1.4393e-4), 21, 11, "pool-controlled"), (2, 44)),
        (
            ps.Server(
                ps.Affine(0.01, 1e-4), 40, 8, "tensorrt-llm",
                policy_params={"chunked_context": True}, kv_blocks=4_000, block_size=32,
            ),
            (320, 3),
        ),
    ],
)  # fmt: skip
def test_who_chooses_budgets_or_cuts_to_blocks_is_not_taken_for_one_who_fills(
    server: ps.Server, lengths: tuple[int, int]
) -> None:
    """Each of these was certified for up to five times what it carries."""
    workload = ps.Workload.poisson(1.0, *lengths)
    certified = ps.certify(workload, server).certified_rate or 0.0
    carried, error = saturated_rate(workload, server)
    assert certified <= carried + 4 * error


@pytest.mark.slow
def test_what_is_certified_is_never_more_than_300_servers_carry_under_a_flood() -> None:
    shares = []
    for seed in range(300):
        workload, server = work_conserving_server(seed)
        certified = ps.certify(workload, server).certified_rate
        assert certified is not None, seed
        carried, error = saturated_rate(workload, server)
        shares.append(certified / carried)
        assert certified <= carried + 4 * error, seed
    assert np.median(shares) > 0.8


@pytest.mark.slow
def test_no_sequential_test_contradicts_what_is_certified_of_300_servers() -> None:
    for seed in range(300, 600):
        workload, server = work_conserving_server(seed)
        certified = ps.certify(workload, server).certified_rate
        assert certified is not None, seed
        rate = certified * np.random.default_rng(seed).uniform(0.9, 0.99)
        assert ps.verdict(workload.with_rate(rate), server).verdict != "unstable", seed


@pytest.mark.slow
def test_a_million_batches_of_crowded_servers_are_worth_their_time() -> None:
    seen = 0
    for seed in itertools.count():
        workload, server = work_conserving_server(seed)
        if not server.batch_time.by_load:  # what attention takes of each batch is not recorded
            continue
        found = drift(workload.lengths, server)
        drawn = workload.lengths.sample(np.random.default_rng(seed), 30 * (server.max_batch_size or 0))
        worth = worths(server, drawn, None, found.weights)
        assert found.certified_rate is not None
        assert worth.min() >= found.certified_rate * (1 - 1e-6), seed
        seen += worth.size
        if seen > 1_000_000:
            break
