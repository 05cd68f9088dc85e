"""What a full server carries, by a flood, is what larger floods and the highest stable rate say."""

from typing import Any

import numpy as np
import pytest

import penstock as ps

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
CHAT = ps.Workload.poisson(1.0, 129, 112)
GEOMETRIC = ps.Workload.poisson(1.0, ps.Geometric(129, max=2_000), ps.Geometric(112, max=2_000))
CONVERSATION = ps.Workload.preset("azure-conv").with_rate(1.0, "poisson")
CODE = ps.Workload.preset("azure-code").with_rate(1.0, "poisson")
LONG_OUTPUTS = ps.Workload.poisson(1.0, ps.Geometric(200, max=2_000), ps.Geometric(600, max=6_000))
RECORDED = ps.Workload.poisson(1.0, ps.Empirical(*CONVERSATION.lengths.sample(np.random.default_rng(5), 4_000)))


def server(kind: str, blocks: int, budget: int = 512, slots: int = 512) -> ps.Server:
    """Return a server whose memory admits as ``kind`` says, or as an engine of that name does."""
    if kind in ps.ENGINES:
        return ps.Server(TP1, budget, slots, kind, memory=ps.Memory(blocks, too_long="drop"))
    memory = ps.Memory(blocks, admission=kind, too_long="drop")  # type: ignore[arg-type]
    return ps.Server(TP1, budget, slots, "sarathi", memory=memory)


def under_backlog(workload: ps.Workload, server: ps.Server, count: int) -> tuple[float, ps.Run]:
    """Serve requests that are all there at once; return the rate at which the middle half of them leaves."""
    requests = workload.requests(count)
    at_once = ps.Workload.from_arrays(np.linspace(0, 1e-6, count), requests.prompt_tokens, requests.output_tokens)
    run = ps.simulate(at_once, server, drain=True)
    assert run.rows is not None
    finish = np.sort(run.rows.finish[run.rows.finish >= 0])
    low, high = finish.size // 4, 3 * finish.size // 4
    return (high - low) / float(finish[high] - finish[low]) * 1e9 * count / finish.size, run


NARROW = {
    "constant": 112,
    "uniform": ps.Uniform(101, 123),
    "two values": ps.Mixture([ps.Constant(100), ps.Constant(124)], [1, 1]),
}


@pytest.mark.parametrize("output", NARROW.values(), ids=NARROW)
@pytest.mark.parametrize(("kind", "budget"), [("input", 512), ("vllm", 512), ("input", 2_048)])
def test_outputs_that_are_alike_keep_step_and_are_estimated_too(output: Any, kind: str, budget: int) -> None:
    """Requests that are let in together end together, and are preempted in waves."""
    workload = ps.Workload.poisson(1.0, 129, output)
    engine = server(kind, 1_506, budget=budget)
    found = ps.memory_estimate(workload, engine)
    assert found.limit == "KV memory"
    assert found.rate == pytest.approx(under_backlog(workload.with_seed(7), engine, 150_000)[0], rel=0.016)


@pytest.mark.parametrize("kind", ["completion", "input", "optimistic", "vllm", "sglang", "orca"])
def test_any_policy_and_admission_has_an_estimate(kind: str) -> None:
    if kind == "orca":
        engine = ps.Server(TP1, 512, 512, "orca", memory=ps.Memory(1_506))
    else:
        engine = server(kind, 1_506)
    found = ps.memory_estimate(GEOMETRIC, engine)
    rate, run = under_backlog(GEOMETRIC.with_seed(3), engine, 100_000)
    assert found.rate == pytest.approx(rate, rel=0.02)
    assert found.token_load == pytest.approx(run.tokens / run.n_batches, rel=0.03)
    assert found.batch_time_s == pytest.approx(run.busy / run.n_batches / 1e9, rel=0.03)
    assert found.preemptions == pytest.approx(run.preemptions / run.finished, rel=0.1, abs=1e-3)
    assert found.recomputed_share == pytest.approx(run.recomputed_tokens / run.tokens, rel=0.1, abs=1e-3)


def test_intervals_hold_what_a_long_flood_finds() -> None:
    """Of 16 intervals of 95% each at most two do not."""
    held = 0
    for workload, engine in (
        (CHAT, server("vllm", 1_506)),
        (GEOMETRIC, server("optimistic", 1_506)),
        (CONVERSATION, server("vllm", 2_573)),
        (LONG_OUTPUTS, server("completion", 5_011)),
    ):
        long = ps.memory_estimate(workload.with_seed(7), engine, requests=250_000)
        for seed in (1, 2):
            found = ps.memory_estimate(workload.with_seed(seed), engine)
            held += found.rate_interval[0] <= long.rate <= found.rate_interval[1]
            held += found.preemptions_interval[0] <= long.preemptions <= found.preemptions_interval[1]
            assert found.rate_interval[1] - found.rate_interval[0] < 0.05 * found.rate
    assert held >= 14


@pytest.mark.parametrize(
    ("slots", "blocks", "limit"),
    [(20, 1_506, "max batch size"), (512, 1_506, "KV memory"), (512, 60_000, "token budget")],
)
def test_the_limit_is_memory_only_where_more_memory_would_carry_more(slots: int, blocks: int, limit: str) -> None:
    assert ps.memory_estimate(GEOMETRIC, server("vllm", blocks, slots=slots)).limit == limit


def test_slots_of_equal_size_turn_over_once_in_a_request() -> None:
    """Constant lengths and batch times, memory reserved: six requests of 15 blocks, 112 batches each and one before."""
    memory = ps.Memory(100, admission="completion")
    found = ps.memory_estimate(CHAT, ps.Server(ps.Affine(0.02, 0.0), 512, memory=memory))
    assert found.rate == pytest.approx(6 / 112 / 0.02, rel=2e-3)
    assert found.batch_time_s == pytest.approx(0.02)
    assert found.running == pytest.approx(6, rel=0.02)
    assert (found.preemptions, found.recomputed_share, found.limit) == (0.0, 0.0, "KV memory")


def test_requests_that_are_dropped_count_in_the_rate() -> None:
    half = ps.Workload.poisson(1.0, ps.Mixture([ps.Constant(100), ps.Constant(9_000)], [1, 1]), 20)
    found = ps.memory_estimate(half, server("vllm", 200))
    served = ps.memory_estimate(ps.Workload.poisson(1.0, 100, 20), server("vllm", 200))
    assert found.rate == pytest.approx(2 * served.rate, rel=0.02)


def test_more_requests_are_sent_where_more_run_at_once() -> None:
    """Some 3,000 run at once, each for 3,000 batches: 60,000 requests would leave only 20 times."""
    long = ps.Workload.poisson(1.0, 10, ps.Uniform(1_000, 2_000))
    engine = ps.Server(ps.Affine(0.01, 1e-5), 8_192, memory=ps.Memory(400_000, admission="completion"))
    found = ps.memory_estimate(long, engine)
    assert found.running > 2_500
    assert found.rate == pytest.approx(under_backlog(long.with_seed(5), engine, 300_000)[0], rel=0.016)


def test_what_requests_declare_takes_memory_that_the_flood_knows() -> None:
    """SGLang lets in what may come; with 4,000 outputs declared where 100 come, a third is carried."""
    server = ps.Server(ps.Affine(0.01, 1e-4), 2_048, 256, policy="sglang", kv_tokens=20_000)
    chat = ps.Workload.poisson(1.0, 200, 100)
    declared = chat.with_declared(4_000)
    rows = 2_000
    recorded = ps.Workload.from_arrays(np.arange(rows), [200] * rows, [100] * rows, declared=[4_000] * rows)
    rates = [ps.memory_estimate(each, server).rate for each in (chat, declared, recorded)]
    assert rates[1] < 0.4 * rates[0]
    assert rates[2] == pytest.approx(rates[1], rel=0.01)


def test_drafts_are_no_requests() -> None:
    """With 3 drafts to a decode some 60 run at once, as without, and never more than the max batch size."""
    prompt, output = ps.Geometric(400, max=4_000), ps.Geometric(250, max=3_000)
    drafts = {"drafts": 3, "acceptance": 0.7, "method": "eagle3"}
    a100 = ps.hardware("codellama-34b-a100-tp1").batch_time
    server = ps.Server(a100, 512, 128, "vllm", policy_params=drafts, kv_tokens=41_000)
    estimate = ps.memory_estimate(ps.Workload.poisson(1.0, prompt, output), server)
    assert 45 < estimate.running < 75


@pytest.mark.slow
def test_requests_that_all_end_with_one_batch_have_a_rate() -> None:
    server = ps.Server(ps.Affine(0.01, 1e-6), 2**20, memory=ps.Memory(2**30))
    assert ps.memory_estimate(ps.Workload.poisson(1.0, 1, 1), server).rate > 1e5


def test_the_same_estimate_twice() -> None:
    assert ps.memory_estimate(CODE, server("vllm", 995)) == ps.memory_estimate(CODE, server("vllm", 995))


@pytest.mark.parametrize(
    ("engine", "message"),
    [(ps.Server(TP1, 512), "no KV memory"), (ps.Server(TP1, 512, kv_blocks=14), "needs 15 blocks")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_it_cannot_tell_is_an_error(engine: ps.Server, message: str) -> None:
    with pytest.raises(ps.InputError, match=message):
        ps.memory_estimate(CHAT, engine)


def test_prompts_that_share_their_beginnings_have_no_estimate() -> None:
    replay = ps.Workload.from_arrays([0.0, 1.0], [64, 64], [9, 9], hash_ids=[[1], [1]], hash_block=64)
    engine = ps.Server(TP1, 512, memory=ps.Memory(500, prefix_caching=True))
    with pytest.raises(ps.InputError, match="prefix caching"):
        ps.memory_estimate(replay, engine)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "blocks"),
    [(CHAT, 451), (GEOMETRIC, 452), (GEOMETRIC, 1_506), (CONVERSATION, 887), (CONVERSATION, 2_573), (CODE, 995),
     (LONG_OUTPUTS, 1_503), (LONG_OUTPUTS, 5_011), (RECORDED, 2_636)],
    ids=["constant", "geometric", "many geometric", "few conversations", "conversation", "code", "long outputs",
         "many long outputs", "recorded"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["completion", "input", "vllm"])
def test_the_estimate_is_within_2_percent_of_the_highest_stable_rate(
    workload: ps.Workload, blocks: int, kind: str
) -> None:
    """By the sequential test."""
    found = ps.max_rate(workload, server(kind, blocks))
    estimate = ps.memory_estimate(workload, server(kind, blocks)).rate
    print(f"{found.rate:.3f} to {found.above:.3f}, estimate {estimate:.3f} ({estimate / found.rate - 1:+.1%})")
    assert estimate == pytest.approx(found.rate, rel=0.02)


LONG = ps.Workload.poisson(1.4, ps.Geometric(500, max=4_000), ps.Geometric(2_000, max=20_000))
TP2 = ps.hardware("codellama-34b-a100-tp2").batch_time


@pytest.mark.parametrize(("slots", "carried"), [(1_024, 1.19), (128, 2.09)])
def test_a_smaller_max_batch_size_can_carry_more_and_the_estimate_knows(slots: int, carried: float) -> None:
    """With 1,024 requests are preempted all the time; 128 fit. The rates are of the sequential test."""
    engine = ps.Server(TP2, 2_048, slots, "vllm", kv_blocks=24_000)
    assert ps.memory_estimate(LONG, engine).rate == pytest.approx(carried, rel=0.03)
    assert ps.verdict(LONG.with_rate(0.95 * carried), engine, resolution=0.02).verdict == "stable"
    assert ps.verdict(LONG.with_rate(1.05 * carried), engine, resolution=0.02).verdict == "unstable"


def test_a_server_that_starts_empty_carries_more_than_one_that_is_full() -> None:
    engine = ps.Server(TP2, 2_048, 1_024, "vllm", kv_blocks=24_000)
    run = ps.simulate(LONG, engine, requests=4_000, record="summary")
    assert run.preemptions == 0
    assert ps.verdict(LONG, engine).verdict == "unstable"


def test_letting_prompts_in_by_the_piece_halves_what_a_full_server_carries() -> None:
    """vLLM's pull request 37307."""
    pieces, whole = (
        under_backlog(CONVERSATION, server(kind, 2_500, budget=2_048), 4_000) for kind in ("optimistic", "input")
    )
    assert pieces[0] < 0.55 * whole[0]
    assert pieces[1].recomputed_tokens > 0.6 * pieces[1].tokens
    assert whole[1].recomputed_tokens < 0.15 * whole[1].tokens
