"""The sequential test calls stable what is stable and unstable what is not, as often as it promises."""

import dataclasses
from collections import Counter

import numpy as np
import pytest

import penstock as ps
from penstock.checking.backlog import Backlog
from penstock.checking.stability import Stability
from penstock.checking.verdict import verdict
from penstock.kernel.due_epochs import NEVER
from penstock.simulation.run import TICK_S
from penstock.simulation.running import Running
from penstock.simulation.simulate import open_session
from penstock.system.server import Convention
from penstock.workload.arrivals import OnOff
from penstock.workload.jobs import Jobs, Requests
from tests.policy_capacities import policy_capacity
from tests.saturated import saturated_rate

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
SERVER = ps.Server(TP1, 1024, policy="sarathi", convention="paper")
LENGTHS = ps.Geometric(129), ps.Geometric(112)


def at_load(rho: float, server: ps.Server = SERVER) -> ps.Workload:
    capacity = server.batch_time.capacity(server.token_budget)
    return ps.Workload.poisson(rho * capacity / 241, *LENGTHS)


def boundary(rho: float, seeds: int) -> list[Stability]:
    return [verdict(at_load(rho), SERVER, seed=seed) for seed in range(seeds)]


@pytest.mark.parametrize(("rho", "right"), [(0.95, "stable"), (0.98, "stable"), (1.02, "unstable"), (1.05, "unstable")])
def test_near_the_boundary_every_verdict_is_right(rho: float, right: str) -> None:
    assert Counter(found.verdict for found in boundary(rho, 6)) == {right: 6}


@pytest.mark.parametrize("policy", ["vllm", "maxweight"])
def test_slots_that_kv_memory_has_no_room_for_make_no_backlog_larger(policy: str) -> None:
    workload = ps.Workload.poisson(0.5, ps.Geometric(1_000, max=4_000), ps.Geometric(200, max=2_000))
    some, all_of_them = (
        verdict(workload, ps.Server(TP1, 8_192, slots, policy, scope="running", kv_blocks=2_000), seed=1)
        for slots in (64, None)
    )
    assert some.verdict == all_of_them.verdict == "stable"
    assert all_of_them.watches[0].initial == pytest.approx(some.watches[0].initial, rel=0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rho", "right", "noted"),
    [(0.95, "stable", 700), (0.98, "stable", 1500), (1.02, "unstable", 1500), (1.05, "unstable", 700)],
)
def test_of_200_verdicts_at_most_2_percent_are_wrong_and_few_arrivals_suffice(
    rho: float, right: str, noted: int
) -> None:
    found = boundary(rho, 200)
    assert sum(f.verdict != right for f in found) <= 4
    assert noted / 3 <= np.median([f.arrivals for f in found]) <= 3 * noted


@pytest.mark.parametrize("rho", [0.9, 0.97, 1.03, 1.2])
def test_the_drift_of_a_work_conserving_policy_is_1_less_1_over_rho(rho: float) -> None:
    found = verdict(at_load(rho), SERVER)
    for watch in found.watches:
        assert watch.drift == pytest.approx(1 - 1 / rho, abs=1e-6)


@pytest.mark.parametrize("policy", ["vllm-vanilla", "fastertransformer"])
@pytest.mark.parametrize("load", [0.95, 1.05])
def test_weaker_policies_are_judged_by_their_own_capacity(policy: str, load: float) -> None:
    server = ps.Server(TP1, 1024, policy=policy, convention="paper")
    rate = load * policy_capacity(server, prompt=129, output=112)
    found = verdict(ps.Workload.poisson(rate, 129, 112), server)
    assert found.verdict == ("stable" if load < 1 else "unstable")
    assert found.interval[0] - 0.02 < 1 - 1 / load < found.interval[1] + 0.02


def test_vanilla_vllm_at_load_point_nine_is_unstable_whatever_the_seed() -> None:
    """Prompts of 129 and outputs of 12: its backlog grows by 4-5%, though an all-prefill one first drains fast."""
    server = ps.Server(TP1, 1024, policy="vllm-vanilla", convention="paper")
    workload = ps.Workload.poisson(0.9 * TP1.capacity(1024) / 141, 129, 12)
    found = [verdict(workload, server, seed=seed) for seed in range(8)]
    assert {f.verdict for f in found} == {"unstable"}
    assert 0.03 < np.median([f.drift for f in found]) < 0.06


@pytest.mark.parametrize("policy", ["sarathi", "orca"])
def test_work_conserving_policies_at_load_point_95_are_stable_whatever_the_seed(policy: str) -> None:
    server = ps.Server(TP1, 1024, policy=policy, convention="paper")
    workload = ps.Workload.poisson(0.95 * TP1.capacity(1024) / 141, 129, 12)
    assert {verdict(workload, server, seed=seed).verdict for seed in range(8)} == {"stable"}


@pytest.mark.parametrize("limit", [None, 64])
@pytest.mark.parametrize("policy", ps.POLICIES)
def test_every_policy_is_stable_at_a_trickle_and_unstable_above_the_region(policy: str, limit: int | None) -> None:
    server = ps.Server(TP1, 512, limit, policy=policy)
    bound = ps.certify(ps.Workload.poisson(1.0, 300, 200), server).max_rate
    assert verdict(ps.Workload.poisson(0.02 * bound, 300, 200), server).verdict == "stable"
    assert verdict(ps.Workload.poisson(1.02 * bound, 300, 200), server).verdict == "unstable"


@pytest.mark.parametrize("workload", [
    ps.Workload.gamma(14.0, 4.0, 129, 112),
    ps.Workload.deterministic(14.0, 129, 112),
    ps.Workload.poisson(14.0, ps.LogNormal(129, 2.0, max=8000), ps.LogNormal(112, 2.0, max=8000)),
])  # fmt: skip
@pytest.mark.parametrize("rho", [0.97, 1.03])
def test_bursts_and_long_tails_change_no_verdict(workload: ps.Workload, rho: float) -> None:
    rate = rho * ps.certify(workload, SERVER).max_rate
    for seed in range(3):
        found = verdict(workload.with_rate(rate), SERVER, seed=seed)
        assert found.verdict == ("stable" if rho < 1 else "unstable")


def test_a_policy_of_the_users_own_is_judged_too() -> None:
    @ps.policy
    def cautious(queue, limits, params):  # type: ignore[no-untyped-def]
        return min(queue.prompt_tokens, 64), min(queue.decoding, 64), ps.PREFILL_FIRST

    # 64 prompt tokens to a batch of 46.75 ms: 10.6 prompts of 129 a second
    server = SERVER.with_policy(cautious)
    assert verdict(ps.Workload.poisson(10.0, 129, 6), server).verdict == "stable"
    assert verdict(ps.Workload.poisson(11.2, 129, 6), server).verdict == "unstable"


def test_at_the_critical_load_it_says_undecided() -> None:
    found = verdict(at_load(1.0), SERVER, most_arrivals=20_000)
    assert found.verdict == "undecided"
    assert found.as_dict()["verdict"] == "undecided"
    assert "too little to tell" in found.reason


def test_an_undecided_test_says_how_many_arrivals_it_would_need() -> None:
    found = verdict(at_load(0.99), SERVER, most_arrivals=500)
    assert found.verdict == "undecided"
    needed = found.deciding.needed
    assert needed is not None
    assert verdict(at_load(0.99), SERVER, most_arrivals=2 * needed).verdict == "stable"


def test_the_same_seed_gives_the_same_answer_and_another_one_other_arrivals() -> None:
    server = SERVER.with_policy("vllm-vanilla")
    workload = ps.Workload.poisson(11.0, *LENGTHS)
    first, again, other = (verdict(workload, server, seed=seed) for seed in (3, 3, 4))
    assert first.as_dict() == again.as_dict()
    assert first.as_dict() != other.as_dict()


def test_a_recording_is_judged_as_if_it_went_on_for_ever() -> None:
    times = np.sort(np.random.default_rng(0).uniform(0, 100, 1000))
    recording = ps.Workload.from_arrays(times, np.full(1000, 129), np.full(1000, 112))
    for rho, right in ((0.95, "stable"), (1.05, "unstable")):
        rate = rho * ps.certify(recording, SERVER).max_rate
        found = verdict(recording.with_rate(rate), SERVER)
        assert found.verdict == right
        assert found.deciding.warmup + found.arrivals > 1000


@pytest.mark.parametrize(
    ("policy", "budget", "slots"), [("sarathi", 2048, 1), ("vllm-vanilla", 2048, 1), ("sarathi", 2048, 8)]
)
def test_a_max_batch_size_far_below_the_budget_fools_no_test(policy: str, budget: int, slots: int) -> None:
    """The best batch of the budget is a hundred times what so few slots carry: it says nothing about the barrier."""
    server = ps.Server(TP1, budget, slots, policy=policy)
    bound = ps.certify(ps.Workload.poisson(1.0, 10, 20), server).max_rate
    for load, right in ((0.9, "stable"), (1.05, "unstable")):
        workload = ps.Workload.poisson(load * bound, 10, 20)
        assert {verdict(workload, server, seed=seed).verdict for seed in range(3)} == {right}


@pytest.mark.parametrize(("rate", "right"), [(9.5, "stable"), (13.3, "unstable")])
def test_a_lull_that_empties_the_backlog_is_no_proof_of_stability(rate: float, right: str) -> None:
    """On and off for as long as 1,000 arrivals take: the server carries 11.1 requests/s."""
    server = ps.Server(ps.PiecewiseConstant(0.01, 0.02, 8), 64, 8)
    bursts = OnOff(rate, 1.0, 100 / rate, 1.0, 900 / rate, 1.0, 0.0)
    workload = dataclasses.replace(ps.Workload.poisson(rate, 20, 10), arrivals=bursts)
    assert {verdict(workload, server, seed=seed).verdict for seed in range(6)} == {right}


def test_a_policy_that_locks_up_when_it_runs_empty_is_unstable() -> None:
    """With few decodes it leaves no room for prompts, so that few stay few; with many it would do well."""

    @ps.policy
    def locking(queue, limits, params):  # type: ignore[no-untyped-def]
        budget = limits.token_budget if queue.decoding >= 6 else limits.token_budget // 4
        decode = min(queue.decoding, limits.batch_size, budget)
        return min(queue.prompt_tokens, budget - decode), decode, ps.DECODE_FIRST

    server = ps.Server(ps.PiecewiseConstant(0.05, 0.01, 16), 20, 19, locking, "batch", "paper")
    rate = 0.5 * ps.certify(ps.Workload.poisson(1.0, 5, 300), server).max_rate
    workload = ps.Workload.poisson(rate, 5, ps.Geometric(300, max=15_010))
    found = verdict(workload, server)
    assert found.verdict == "unstable"
    assert found.deciding.start == "prefill"


@pytest.mark.parametrize("rate", [1e-9, 1e5, 1e9])
def test_extreme_rates_are_answered(rate: float) -> None:
    found = verdict(ps.Workload.poisson(rate, 129, 112), SERVER)
    assert found.verdict == ("stable" if rate < 1 else "unstable")


@pytest.mark.parametrize("convention", ["paper", "engine"])
@pytest.mark.parametrize(("prompt", "output"), [(1, 1), (1, 2), (2, 1)])
@pytest.mark.parametrize("rho", [0.3, 0.9, 1.1])
def test_requests_of_a_token_or_two_are_judged_right(
    prompt: int, output: int, rho: float, convention: Convention
) -> None:
    server = ps.Server(TP1, 64, convention=convention)
    rate = rho * ps.certify(ps.Workload.poisson(1.0, prompt, output), server).max_rate
    for seed in range(3):
        found = verdict(ps.Workload.poisson(rate, prompt, output), server, seed=seed)
        assert found.verdict == ("stable" if rho < 1 else "unstable")


@pytest.mark.parametrize("prompt", [129, ps.Geometric(16, max=320)])  # the latter's mean is 15.999999982823747
def test_requests_without_a_decode_phase_are_judged_from_prefill_alone(prompt: int | ps.Geometric) -> None:
    found = verdict(ps.Workload.poisson(10.0, prompt, 1), ps.Server(TP1, 512))
    assert [watch.start for watch in found.watches] == ["prefill"]
    assert found.verdict == "stable"


@pytest.mark.parametrize("kv_blocks", [None, 900])
@pytest.mark.parametrize("convention", ["paper", "engine"])
def test_requests_ready_to_decode_decode_from_the_first_batch_on(convention: Convention, kv_blocks: int | None) -> None:
    """In either loop: of one server, and of engines or policies with KV memory."""
    output = np.array([1, 2, 5, 5])
    server = ps.Server(TP1, 1024, convention=convention, kv_blocks=kv_blocks)
    workload = ps.Workload.from_arrays(np.zeros(4), np.full(4, 300), output)
    session = open_session(workload, server, "requests", TICK_S, True, NEVER)
    session.add(Jobs.of_requests(Requests(np.zeros(4), np.full(4, 300), output)))
    session.prefilled(4)
    running = Running(session, whole=True, drain=True, total=4)
    running.through(iter(()))
    run = running.finish(server)
    tick = round(float(TP1(4)) / TICK_S)  # batches of 1 to 4 tokens take the same time
    decodes = output - (1 if convention == "engine" else 0)
    assert run.finish.tolist() == (decodes * tick).tolist()
    assert run.finished == 4
    assert run.tokens == 1200 + decodes.sum()


@pytest.mark.parametrize("policy", ["sarathi", "vllm"])
def test_a_mixed_start_fills_the_slots_with_requests_at_a_random_one_of_their_tokens(policy: str) -> None:
    """Or those that began at once could go on in step for ever."""
    server = ps.Server(TP1, 512, 64, policy=policy)
    workload = ps.Workload.poisson(5.0, 129, 400)
    session = (backlog := Backlog(workload, server, "mixed", 200, (0.0, 0.0), (1.0, 1.0))).session
    left = backlog.first.output[:64] - 1
    assert session.decoding == (left > 0).sum()
    assert session.decodes_left == left.sum()
    assert 0.4 < left.mean() / 399 < 0.6


@pytest.mark.parametrize(
    "options", [{"alpha": 0}, {"alpha": 0.9}, {"resolution": 0}, {"resolution": 1e-9}, {"most_arrivals": 0}]
)
def test_values_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ps.InputError, match="must be"):
        verdict(at_load(0.5), SERVER, **options)  # type: ignore[arg-type]


def test_other_things_than_a_workload_and_a_server_are_refused() -> None:
    with pytest.raises(ps.InputError, match="takes a Workload and a Server"):
        verdict(SERVER, at_load(0.5))  # type: ignore[arg-type]


@pytest.mark.parametrize("blocks", [2, 3, 8])
def test_requests_that_are_dropped_are_no_load(blocks: int) -> None:
    """A server that drops most of what arrives is hardly busy with the rest."""
    workload = ps.Workload.poisson(2, ps.Geometric(200, max=2000), ps.Geometric(50, max=500))
    server = ps.Server(TP1, 2048, policy="vllm", memory=ps.Memory(blocks, too_long="drop"))
    found = ps.verdict(workload, server)
    assert found.verdict == "stable"
    assert all(watch.warmup >= 0 for watch in found.watches)


@pytest.mark.parametrize("precision", [0.1, 0.02])
def test_a_policy_that_keeps_a_long_queue_is_given_a_longer_backlog(precision: float) -> None:
    """MaxWeight lets hundreds wait; a test that began with fewer would watch them come."""
    workload = ps.Workload.poisson(2, ps.Geometric(200, max=2000), ps.Geometric(50, max=500))
    found = ps.max_rate(workload, ps.Server(TP1, 512, 64, "maxweight"), precision=precision)
    assert found.rate / 1.01 < 10.72 < found.above * 1.01  # found to 1%: 10.70, and not at 10.76


@pytest.mark.parametrize("precision", [0.1, 0.01])
def test_a_prefix_cache_that_makes_short_work_of_prompts_is_seen(precision: float) -> None:
    count = 2_000
    alike = [[0, 1, 2, 3]] * count
    workload = ps.Workload.from_arrays(
        np.arange(count) / 4, [2058] * count, [20] * count, hash_ids=alike, hash_block=512
    )
    server = ps.Server(TP1, 1024, 64, "vllm", memory=ps.Memory(1000, 512, prefix_caching=True))
    found = ps.max_rate(workload, server, precision=precision)
    assert found.rate > 0.8 * found.bound


@pytest.mark.parametrize("policy", ["sarathi", "orca", "vllm-vanilla", "fastertransformer"])
def test_a_backlog_of_short_decodes_keeps_no_prompts_out_until_the_verdict(policy: str) -> None:
    """Two slots and one decode to a request: as much work in decodes would hold the slots for 27,000 arrivals."""
    server = ps.Server(ps.Affine(4.2e-3, 2.7e-6), 256, 2, policy)
    workload = ps.Workload.poisson(1.0, ps.Uniform(333, 1002), 2)
    assert {verdict(workload.with_rate(39.0), server, seed=seed).verdict for seed in range(3)} == {"stable"}
    bound = ps.certify(workload, server).max_rate
    assert verdict(workload.with_rate(1.04 * bound), server).verdict == "unstable"


def test_slots_of_a_batch_that_decodes_hold_alone_are_given_back() -> None:
    server = ps.Server(ps.Affine(4.2e-3, 2.7e-6), 256, 128, "sarathi", "batch")
    workload = ps.Workload.poisson(1.0, ps.Uniform(333, 1002), ps.Geometric(2, max=20))
    certificate = ps.certify(workload, server)
    assert certificate.certified_rate is not None
    assert verdict(workload.with_rate(0.95 * certificate.certified_rate), server).verdict == "stable"
    assert verdict(workload.with_rate(1.04 * certificate.max_rate), server).verdict == "unstable"


def test_what_grows_after_a_backlog_is_gone_is_no_backlog() -> None:
    """Orca serves prompts first; decodes are few tokens, so the warm-up leaves next to nothing, which then varies."""
    server = ps.Server(ps.PiecewiseConstant(0.0184, 0.0223, 64), 256, 2, "orca", "batch")
    workload = ps.Workload.poisson(1.0, ps.Uniform(200, 602), 2)
    rate = ps.certify(workload, server).certified_rate
    assert rate is not None
    assert {verdict(workload.with_rate(0.95 * rate), server, seed=seed).verdict for seed in range(4)} == {"stable"}


@pytest.mark.parametrize(("policy", "budget"), [("vllm-vanilla", 4096), ("orca", 512)])
def test_a_backlog_that_is_gone_equally_fast_from_every_start_tells_how_fast(policy: str, budget: int) -> None:
    """With a budget of 4,096 vanilla vLLM is through with prompts and decodes alike in a few batches; the last two of
    them tell nothing of how fast, but the whole way down does."""
    server = ps.Server(TP1, budget, policy=policy, convention="paper")
    found = verdict(ps.Workload.poisson(9.0, 129, 112), server)
    assert found.verdict == "stable"
    assert not found.deciding.measured
    assert 1 - found.drift == pytest.approx(policy_capacity(server, prompt=129, output=112) / 9.0, rel=0.05)
    assert found.reason.endswith("seen until it was gone")


def test_backlogs_that_are_gone_at_speeds_of_their_own_tell_no_speed() -> None:
    """FasterTransformer leaves slots empty until the last decode is through; a backlog of decodes fills them all. Each
    is gone before the server settles, so nothing is said of how much it does."""
    server = ps.Server(ps.Affine(c=0.01, a=1e-4), 4096, 16, "fastertransformer", "batch", "paper")
    found = verdict(ps.Workload.poisson(0.58, ps.Geometric(1500), ps.Geometric(30)), server)
    assert found.verdict == "stable"
    assert found.interval is None
    assert found.as_dict()["drift"] is None
    assert "before its rate could be measured" in found.reason


def test_work_is_counted_in_seconds_of_the_best_batches() -> None:
    """16 decodes to a batch of 4,096 tokens: by tokens a backlog of prompts goes fast and one of decodes slowly; by
    seconds all go at the pace at which 3.4 times as much is carried."""
    server = ps.Server(ps.Affine(c=0.01, a=1e-4), 4096, 16, "orca", "batch", "paper")
    workload = ps.Workload.poisson(1.706, ps.Geometric(1500), ps.Geometric(30))
    found = verdict(workload, server)
    assert found.verdict == "stable"
    for watch in found.watches:
        assert 1 - watch.drift == pytest.approx(ps.certify(workload, server).max_rate / 1.706, rel=0.05)


def cheap_prompts(policy: str | ps.Policy) -> tuple[ps.Server, ps.Workload]:
    """Four slots and a budget of 64: a batch of prompts does 16 times the tokens of one of decodes in its time."""
    server = ps.Server(ps.Affine(c=0.08, a=0.0001), 64, 4, policy, scope="batch")
    return server, ps.Workload.poisson(1.0, ps.LogNormal(120, 2, max=2400), ps.LogNormal(18, 2, max=360))


def turns_of_maxweight(load: float, seeds: int) -> list[Stability]:
    server, workload = cheap_prompts("maxweight")
    rate = load * ps.certify(workload, server).max_rate
    return [verdict(workload.with_rate(rate), server, seed=seed) for seed in range(seeds)]


@pytest.mark.parametrize(("load", "right"), [(0.8, "stable"), (0.95, "stable"), (1.05, "unstable")])
def test_a_turn_of_maxweight_to_one_phase_is_no_drift(load: float, right: str) -> None:
    """It serves decodes alone for hundreds of arrivals, in which the tokens that wait rise steeply, then prompts."""
    for found in turns_of_maxweight(load, 3):
        assert found.verdict == right
        assert found.drift == pytest.approx(1 - 1 / load, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.8, 0.9, 0.95, 1.05, 1.1, 1.3])
def test_a_turn_of_maxweight_to_one_phase_is_no_drift_whatever_the_seed(load: float) -> None:
    right = "stable" if load < 1 else "unstable"
    assert Counter(found.verdict for found in turns_of_maxweight(load, 40)) == {right: 40}


def test_work_that_rises_while_one_phase_is_done_faster_than_it_comes_is_no_verdict() -> None:
    """A few prompts of 2,230 tokens keep MaxWeight by tokens at prompts for long, beyond what its best batches do. It
    is stable, within 1% of its limit: a run of 600,000 arrivals empties 4,000 requests."""
    server = ps.Server(ps.Affine(0.084, 4.6e-5), 512, 29, "maxweight-tokens", "batch", "paper")
    prompt = ps.Mixture([ps.Constant(111), ps.Constant(2230)], [0.95, 0.05])
    workload = ps.Workload.poisson(19.74, prompt, ps.Geometric(12, max=240))
    assert "unstable" not in {verdict(workload, server, seed=seed).verdict for seed in range(1067, 1071)}


@pytest.mark.parametrize("policy", ["sarathi", "maxweight", "pool-controlled"])
def test_no_interval_is_narrower_than_a_batch(policy: str) -> None:
    server, workload = cheap_prompts(policy)
    for rate in (0.5, 4.0):
        for watch in verdict(workload.with_rate(rate), server).watches:
            low, high = watch.interval
            assert high - low > 2 * 4 / (watch.arrivals or watch.warmup) / 140  # four of 138 tokens a request


@pytest.mark.parametrize("kv_blocks", [None, 700])
@pytest.mark.parametrize("ahead", [True, False])
def test_drafts_that_are_wrong_are_no_work_done(ahead: bool, kv_blocks: int | None) -> None:
    """With three drafts the queue of docs/speculation.md grows at 12 requests/s, though batches are full."""
    params = {"drafts": 3, "acceptance": 0.7, "async_scheduling": ahead}
    server = ps.Server(TP1, 2048, 256, "vllm", policy_params=params, kv_blocks=kv_blocks)
    lengths = ps.Geometric(129, max=1000), ps.Geometric(112, max=1000)
    limit, _ = saturated_rate(ps.Workload.poisson(1.0, *lengths), server)
    for load, right in ((0.95, "stable"), (1.05, "unstable")):
        assert verdict(ps.Workload.poisson(load * limit, *lengths), server).verdict == right


@pytest.mark.parametrize(("load", "right"), [(0.5, "stable"), (0.95, "stable"), (1.05, "unstable")])
def test_outputs_are_those_that_the_longest_context_leaves(load: float, right: str) -> None:
    """Prompts of 50 and outputs of 200 in contexts of 100 make outputs of 50, to the theorem and to the test."""
    cut = {"max_model_len": 100}
    server = ps.Server(ps.Affine(0.01, 1e-4), 256, 512, "vllm", policy_params=cut)
    rate = load * ps.certify(ps.Workload.poisson(1.0, 50, 50), server).max_rate
    workload = ps.Workload.poisson(rate, 50, 200)
    assert ps.certify(workload, server).verdict == right
    assert verdict(workload, server).verdict == right
