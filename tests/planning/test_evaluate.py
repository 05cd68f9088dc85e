"""One deployment, simulated: shares of a stream, goodput by hand, and the same judgement as `estimate` gives."""

import dataclasses

import numpy as np
import pytest

import penstock as ps
from penstock.checking.latency import steady_state
from penstock.errors import InputError
from penstock.planning.aim import Aim
from penstock.planning.deployment import Deployment
from penstock.planning.evaluate import evaluate
from penstock.planning.share import share_of
from penstock.simulation.simulate import RunOptions, run_network
from penstock.system.routing import ROUTERS

SERVER = ps.Server(ps.Affine(c=0.01, a=1e-4), token_budget=256)
WORKLOAD = ps.Workload.poisson(12.0, ps.Geometric(300, max=2_000), ps.Geometric(50, max=300))
LONG = ps.Workload.poisson(1.0, ps.Uniform(392, 992), 5).lengths
PROCESSES = [
    WORKLOAD, ps.Workload.deterministic(12.0, 300, 50), ps.Workload.gamma(12.0, 3.0, 300, 50),
    ps.Workload.preset("azure-conv").with_rate(12.0),
]  # fmt: skip


@pytest.mark.parametrize("router", ["random", "round-robin"])
@pytest.mark.parametrize("workload", PROCESSES, ids=["poisson", "deterministic", "gamma", "bursts"])
def test_a_replica_gets_its_share_of_the_rate(workload: ps.Workload, router: str) -> None:
    share = share_of(workload, ROUTERS[router], 4)
    times = share.requests(20_000).arrival_s
    assert share.rate == pytest.approx(workload.rate / 4)
    whole = workload.requests(80_000).arrival_s  # a bursty stream is slow to show its rate: as much time passes
    assert times[-1] == pytest.approx(whole[-1], rel=0.1)
    assert np.all(np.diff(times) >= 0)


@pytest.mark.parametrize(("router", "squared_cv"), [("random", 1.0), ("round-robin", 0.25)])
def test_gaps_of_a_share_are_those_of_theory(router: str, squared_cv: float) -> None:
    """A fourth of a Poisson stream is Poisson by chance, Erlang in turns."""
    gaps = np.diff(share_of(WORKLOAD, ROUTERS[router], 4).requests(50_000).arrival_s)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(squared_cv, rel=0.05)


@pytest.mark.parametrize("router", ["random", "round-robin"])
def test_the_share_of_a_recording_is_some_of_its_requests_at_their_times(router: str) -> None:
    recorded = ps.Workload.from_arrays(np.arange(1000.0), np.arange(1, 1001), np.full(1000, 7))
    mine = share_of(recorded, ROUTERS[router], 5).requests(150)
    places = mine.prompt_tokens - 1
    assert np.array_equal(mine.arrival_s, places - places[0])
    assert np.all(mine.output_tokens == 7)
    if router == "round-robin":
        assert np.array_equal(places, 5 * np.arange(150))


def test_turns_among_very_many_replicas_draw_one_replica_only() -> None:
    """A sum of gamma gaps is gamma, so no time is spent on the requests of all others."""
    mine = share_of(ps.Workload.gamma(65_536 * 3.0, 3.0, 300, 50), ROUTERS["round-robin"], 65_536).requests(1_000)
    assert mine.arrival_s[-1] == pytest.approx(1_000 / 3.0, rel=0.01)


def test_a_recording_too_short_to_share_is_refused() -> None:
    with pytest.raises(InputError, match="3 recorded requests leave"):
        share_of(ps.Workload.from_arrays([0.0, 1.0, 2.0], [5, 5, 5], [5, 5, 5]), ROUTERS["round-robin"], 3)


def test_one_replica_is_judged_as_estimate_judges_it() -> None:
    target = ps.Target.parse("ttft_p99<2s")
    found = evaluate(WORKLOAD, Deployment(SERVER, 1), Aim.of([target], requests=4_000, most_requests=4_000))
    rho = ps.certify(WORKLOAD, SERVER).rho
    _, steady = ps.estimate(WORKLOAD, SERVER, requests=4_000, most_requests=4_000, targets=[target], rho=rho)
    assert found.verdict == "stable"
    assert found.estimates[0] == steady.estimates["ttft_s"]["p99"]
    assert found.judgements[0] == steady.judge(target)


def test_one_replica_says_what_a_network_of_replicas_behind_chance_says() -> None:
    """The same pool, simulated as a network: their intervals of TTFT overlap."""
    aim = Aim.of(["ttft_mean<1s"], requests=4_000, most_requests=4_000)
    alone = evaluate(WORKLOAD.with_rate(30.0), Deployment(SERVER, 4), aim)
    network = ps.Network.single(WORKLOAD.with_rate(30.0), SERVER, 4, "random")
    run = ps.simulate(network, jobs=16_000, seed=3)
    together = float(run.stages().filter(metric="ttft_s")["mean"][0])
    assert alone.estimates[0].low <= together <= alone.estimates[0].high  # type: ignore[operator]


def test_goodput_is_the_share_of_the_requests_within_all_limits() -> None:
    """Counted by hand in the same run."""
    limits = {"ttft": 0.15, "tbt": 0.02213, "e2e": 1.5}
    aim = Aim.of([f"{name}_p99<{limit}s" for name, limit in limits.items()], requests=4_000, most_requests=4_000)
    found = evaluate(WORKLOAD, Deployment(SERVER, 1), aim)
    run, steady = ps.estimate(
        WORKLOAD, SERVER, requests=4_000, most_requests=4_000, rho=ps.certify(WORKLOAD, SERVER).rho
    )
    rows = run.requests[steady.warmup_jobs :]
    ttft, e2e = rows["first_token_ns"] - rows["arrival_ns"], rows["finish_ns"] - rows["arrival_ns"]
    gap = (rows["finish_ns"] - rows["first_token_ns"]) / (rows["output_tokens"] - 1).clip(1)
    good = (ttft <= limits["ttft"] * 1e9) & (gap <= limits["tbt"] * 1e9) & (e2e <= limits["e2e"] * 1e9)
    assert 0.05 < good.mean() < 0.95  # type: ignore[operator]
    assert found.goodput.value == pytest.approx(good.mean())
    assert found.goodput.low < found.goodput.value < found.goodput.high  # type: ignore[operator]


@pytest.mark.parametrize(
    "deployment",
    [Deployment(SERVER, 2), Deployment(SERVER, 2, router="jsq"), Deployment(SERVER, 2, prefill_replicas=1)],
    ids=["alone", "network", "prompts alone"],
)
def test_what_theory_knows_unstable_is_not_simulated(deployment: Deployment) -> None:
    found = evaluate(WORKLOAD.with_rate(200.0), deployment, Aim.of(["ttft_p99<2s"], requests=500))
    assert (found.verdict, found.answer, found.requests) == ("unstable", "missed", 0)
    assert found.throughput == 0


def test_an_undecided_run_becomes_longer_until_it_decides_or_the_requests_are_spent() -> None:
    aim = Aim.of(["ttft_p99<2s"], requests=500, most_requests=32_000)
    found = evaluate(WORKLOAD, Deployment(SERVER, 1), aim)
    assert found.answer != "undecided"
    near = Aim.of([f"ttft_p99<{found.estimates[0].value}s"], requests=500, most_requests=2_000)
    again = evaluate(WORKLOAD, Deployment(SERVER, 1), near)
    assert (again.answer, again.requests) == ("undecided", 2_000)


@pytest.mark.parametrize("kind", ["vllm", "sglang", "sarathi", "lines"])
def test_replicas_behind_chance_are_judged_alike_alone_and_together(kind: str) -> None:
    """One replica with its share, or a pool of all: intervals of every target overlap, those of TBT among them."""
    policy = "sarathi" if kind == "lines" else kind
    server = ps.Server(SERVER.batch_time, 256, 64, policy=policy, kv_tokens=None if kind == "lines" else 20_000)
    aim = Aim.of(["ttft_mean<9s", "tbt_mean<9s", "tbt_p99<9s", "e2e_mean<9s"], requests=16_000, most_requests=16_000)
    alone = evaluate(WORKLOAD.with_rate(30.0), Deployment(server, 4), aim)
    network = ps.Network.single(WORKLOAD.with_rate(30.0), server, 4, "random")
    run = run_network(network, 64_000, 1, RunOptions(drain=True), gap_sections=40)
    steady = steady_state(run, rho=[0.7], targets=aim.targets)
    together = [
        steady.stages[network.stages[0]]["ttft_s"]["mean"],
        steady.estimates["tbt_s"]["mean"],
        steady.estimates["tbt_s"]["p99"],
    ]
    for one, all_of_them in zip(alone.estimates, together, strict=False):
        assert one.low <= all_of_them.high  # type: ignore[operator]
        assert all_of_them.low <= one.high  # type: ignore[operator]


@pytest.mark.parametrize("kind", ["lines", "sarathi", "vllm"])
def test_the_time_that_a_transfer_takes_is_one_between_tokens(kind: str) -> None:
    """Of 11 output tokens the first comes from the one replica, ten from the other."""
    workload = ps.Workload.poisson(10.0, ps.Geometric(300, max=2_000), 11)
    policy = "sarathi" if kind == "lines" else kind
    server = ps.Server(SERVER.batch_time, 256, policy=policy, kv_tokens=None if kind == "lines" else 20_000)
    apart = Deployment(server, 2, prefill_replicas=1, router="jsq", transfer_ms=1_000.0)
    aim = Aim.of(["ttft_mean<9s", "tbt_mean<9s", "e2e_mean<9s", "tbt_p95<900ms"], requests=4_000, most_requests=4_000)
    found = evaluate(workload, apart, aim)
    ttft, tbt, e2e, longest = (estimate.value for estimate in found.estimates)
    assert 10 * tbt == pytest.approx(e2e - ttft, rel=0.01)  # type: ignore[operator]
    assert longest > 1.0  # type: ignore[operator]
    assert found.judgements == ("met", "met", "met", "missed")


@pytest.mark.parametrize("policy", ["sarathi", "vllm"])
def test_decodes_whose_kv_memory_is_too_small_for_what_prefills_send_are_unstable(policy: str) -> None:
    """One replica decodes alone: with 700 tokens of memory one or two requests at a time, of 200 iterations each."""
    workload = ps.Workload.poisson(4.0, 300, 200)
    aim = Aim.of(["e2e_p90<60s"], requests=1_000, most_requests=1_000)
    verdicts = []
    for tokens in (704, 40_000):
        server = ps.Server(SERVER.batch_time, 256, 64, policy=policy, kv_tokens=tokens)
        verdicts.append(evaluate(workload, Deployment(server, 2, prefill_replicas=1, router="jsq"), aim).verdict)
    assert verdicts == ["unstable", "stable"]


def test_a_longest_context_cuts_outputs_behind_any_router() -> None:
    server = ps.Server(
        SERVER.batch_time, 256, 64, policy="vllm", policy_params={"max_model_len": 400}, kv_tokens=20_000
    )
    workload = ps.Workload.poisson(10.0, 390, ps.Geometric(50, max=300))
    aim = Aim.of(["e2e_p90<1s"], requests=2_000, most_requests=2_000)
    one, cut = (evaluate(workload, Deployment(server, 2, router=router), aim) for router in ("random", "jsq"))
    assert cut.estimates[0].value < one.estimates[0].value  # type: ignore[operator]
    whole = dataclasses.replace(server, policy_params={})
    uncut = evaluate(workload, Deployment(whole, 2, router="jsq"), aim)
    assert cut.estimates[0].value < uncut.estimates[0].value / 2  # type: ignore[operator]
    long = dataclasses.replace(workload, lengths=LONG)
    with pytest.raises(InputError, match="no room for an output: its max_model_len is 400"):
        evaluate(long, Deployment(server, 2, router="jsq"), aim)
    drops = dataclasses.replace(server, memory=ps.Memory(1_250, too_long="drop"))
    with pytest.raises(InputError, match=r"98\.\d+% of the requests are never served, and none can be left out"):
        evaluate(long, Deployment(drops, 2, router="jsq"), aim)


def test_a_longest_context_does_to_recorded_requests_what_cutting_their_outputs_does() -> None:
    rng = np.random.default_rng(1)
    prompt, output = rng.integers(1, 400, 1_500), rng.integers(1, 300, 1_500)
    arrival = np.cumsum(rng.exponential(0.1, 1_500))
    server = ps.Server(
        SERVER.batch_time, 256, 64, policy="vllm", policy_params={"max_model_len": 400}, kv_tokens=20_000
    )
    whole = ps.Workload.from_arrays(arrival, prompt, output)
    cut = ps.Workload.from_arrays(arrival, prompt, np.minimum(output, 400 - prompt))
    unlimited = dataclasses.replace(server, policy_params={})
    aim = Aim.of(["e2e_p90<1s"], requests=1_500, most_requests=1_500)
    for prefill in (0, 1):
        limited = evaluate(whole, Deployment(server, 2, prefill_replicas=prefill, router="jsq"), aim)
        by_hand = evaluate(cut, Deployment(unlimited, 2, prefill_replicas=prefill, router="jsq"), aim)
        assert limited.latency == by_hand.latency
        assert limited.goodput == by_hand.goodput


@pytest.mark.parametrize("policy", ["vllm", "orca"])
def test_kv_memory_and_engines_are_simulated_behind_routers_that_split_the_stream(policy: str) -> None:
    server = ps.Server(SERVER.batch_time, 256, 64, policy=policy, kv_tokens=20_000)
    found = evaluate(WORKLOAD.with_rate(20.0), Deployment(server, 2), Aim.of(["ttft_p99<5s"], requests=1_000))
    assert found.verdict == "stable"
    assert found.answer == "met"
