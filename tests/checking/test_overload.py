"""What `check` answers where requests are refused, or clients leave."""

import dataclasses
import json

import numpy as np
import pytest

import penstock as ps
from penstock.capacity.region import load_in_region
from penstock.checking.comparison import compare
from penstock.checking.storm import Storm, storm

TIMES = ps.hardware("codellama-34b-a100-tp1").batch_time
VLLM = ps.Server(TIMES, 512, 128, "vllm", kv_tokens=100_000)
CHAT = ps.Workload.poisson(8.0, 500, ps.Geometric(100))
HASTY = ps.Patience(ttft_ms=10_000)


def limited(server=VLLM, **limit):
    """Return a server with a limit on its queue."""
    return dataclasses.replace(server, queue_limit=ps.QueueLimit(**limit))


def test_what_is_offered_is_refused_left_or_carried():
    workload = CHAT.with_patience(dataclasses.replace(HASTY, retries=2, backoff_ms=500))
    answer = ps.check(workload, limited(requests=150), requests=4_000)
    assert isinstance(answer, ps.OverloadAnswer)
    rates, tries = answer.rates, answer.tries
    assert rates.arriving == pytest.approx(rates.carried + rates.refused + rates.left)
    assert tries.offered == pytest.approx(tries.admitted + tries.refused)
    assert tries.admitted == pytest.approx(tries.left + rates.carried)
    assert tries.offered > 1.5 * rates.arriving
    assert answer.lost == pytest.approx(1 - rates.carried / rates.arriving)
    assert answer.lost >= answer.lost_at_least > 0.25
    assert 0 < answer.wasted < 1


def test_no_more_is_carried_than_a_theorem_allows_and_the_right_limit_comes_near():
    answer = ps.check(CHAT.with_patience(HASTY), limited(prompt_tokens=8_000), requests=6_000)
    assert answer.most == pytest.approx(ps.certify(CHAT, VLLM).max_rate)
    assert 0.97 * answer.most < answer.rates.carried < 1.01 * answer.most
    assert answer.verdict == "stable"
    assert "a stable rate is not a good one" in answer.reason


def test_goodput_and_targets_are_of_those_who_are_served_in_time():
    answer = ps.check(CHAT, limited(requests=150), requests=8_000, targets=["e2e_p99<20s"])
    assert answer.missed
    rows = answer.run.rows.where(slice(2_000, 7_000))
    good = (rows.finish >= 0) & (rows.finish - rows.arrival <= 20 * 10**9)
    assert 0.3 < good.mean() < 0.7
    assert answer.goodput.value == pytest.approx(good.mean(), abs=0.02)


def test_no_more_than_a_theorem_allows_is_said_to_be_carried_however_short_the_run():
    """What is served while the queue drains, after the last arrival, is not of the long run."""
    for requests in (1_000, 3_000):
        answer = ps.check(CHAT, limited(requests=150), requests=requests)
        assert answer.lost > answer.lost_at_least - 0.02


def test_what_never_fits_and_is_left_out_counts_nowhere():
    memory = ps.Memory(100, 16, too_long="drop")
    server = ps.Server(TIMES, 512, 128, "vllm", memory=memory, queue_limit=ps.QueueLimit(requests=20))
    workload = ps.Workload.poisson(1.5, ps.LogNormal(500, 1), 60)
    answer = ps.check(workload, server, requests=3_000, targets=["ttft_p99<5s"])
    assert answer.run.dropped > 100
    assert answer.rates.arriving == pytest.approx(1.5 * (1 - answer.run.dropped / 3_000), rel=0.1)
    assert answer.rates.arriving == pytest.approx(answer.rates.carried + answer.rates.refused)
    limit = ps.recommend_queue(workload, server, targets=["ttft_p99<5s"], requests=1_000)
    assert limit.best.met


def test_of_a_full_queue_the_least_urgent_are_refused_first():
    rows = CHAT.requests(4_000)
    priority = np.arange(4_000) % 3
    workload = ps.Workload.from_arrays(rows.arrival_s, rows.prompt_tokens, rows.output_tokens, priority)
    server = limited(ps.Server(TIMES, 512, 64, order="priority"), waiting=20)
    answer = ps.check(workload, server)
    lost = [one.refused / one.arriving for one in answer.priorities]
    assert [one.name for one in answer.priorities] == ["priority 0", "priority 1", "priority 2"]
    assert lost[0] < 0.02 < lost[1] < lost[2]


def test_a_network_has_a_row_for_each_stage():
    calls = [("pool", 400, ps.Geometric(60)), ("pool", 300, 20)]
    flow = ps.Workflow.chain("two", CHAT.with_rate(12.0).with_patience(HASTY), calls)
    pool = ps.Pool(VLLM, 2, router_limit=ps.QueueLimit(requests=300))
    answer = ps.check(ps.Network({"pool": pool}, [flow]), jobs=2_500)
    first, second = answer.stages
    assert first.arriving == pytest.approx(answer.rates.arriving)
    assert second.arriving == pytest.approx(first.carried, rel=0.02)
    assert answer.rates.carried == pytest.approx(second.carried)
    assert answer.unit == "jobs"


def test_json_and_page_have_the_answer():
    answer = ps.check(CHAT.with_patience(HASTY), limited(requests=150), requests=2_000)
    document = json.loads(json.dumps(answer.as_dict()))
    assert document["rates"]["carried"] == answer.rates.carried
    assert document["tries"].keys() == {"offered", "admitted", "refused", "left"}
    assert document["storm"] is None
    head = [line.label for line in answer.page().head]
    assert head[:4] == ["check", "stable", "Served", "Lost"]


@pytest.mark.parametrize(
    "question",
    [
        lambda w, s: ps.certify(w, s),
        lambda w, s: ps.verdict(w, s),
        lambda w, s: ps.max_rate(w, s),
        lambda w, s: ps.recommend(w, s),
        lambda w, s: ps.estimate(w, s),
        lambda w, s: ps.estimate_latency(w, s),
        lambda w, s: ps.lower_bounds(w, s),
        lambda w, s: ps.memory_estimate(w, s),
        lambda w, s: load_in_region(w, s),
        lambda w, s: load_in_region(w, s, exact=True),
        lambda w, s: compare({"one": (w, s), "other": (w, VLLM)}),
        lambda w, s: ps.compare_networks({"one": ps.Network.single(w, s), "other": ps.Network.single(w, VLLM)}),
        lambda w, s: ps.certify(ps.Network.single(w, s)),
        lambda w, s: ps.verdict(ps.Network.single(w, s)),
    ],
)
@pytest.mark.parametrize(("workload", "server"), [(CHAT.with_patience(HASTY), VLLM), (CHAT, limited(requests=150))])
def test_who_asks_of_the_long_run_without_is_told_so(question, workload, server):
    with pytest.raises(ps.InputError, match="`penstock check` says who is served"):
        question(workload, server)


@pytest.mark.parametrize("option", [{"precision": 0.1}, {"alpha": 0.05}, {"resolution": 0.05}])
def test_options_of_a_test_that_is_not_made_are_refused(option):
    with pytest.raises(ps.InputError, match="nothing is tested"):
        ps.check(CHAT, limited(requests=150), requests=500, **option)


RETRIES = ps.Patience(ttft_ms=10_000, retries=5, jitter=0.5)


def test_a_burst_brings_a_server_into_a_storm_of_retries_that_lasts():
    """Brute force finds both states: twice the burst that is named leaves it bad, half of it does not."""
    workload = CHAT.with_rate(4.6).with_patience(RETRIES)
    found = storm(workload, VLLM, lambda share: None)
    assert isinstance(found, Storm)
    assert found.lost_before < 0.02 < 0.8 < found.lost_after
    assert found.heals < 4.6 < found.holds

    def lost(burst, rate=4.6, seed=11):
        requests = workload.with_rate(rate).with_seed(seed).requests(10_000 + burst)
        at = requests.arrival_s[:10_000]
        at = np.insert(at, 2_500, np.full(burst, at[2_500]))
        whole = ps.Workload.from_arrays(at, requests.prompt_tokens, requests.output_tokens)
        run = ps.simulate(whole.with_patience(RETRIES), VLLM)
        return (run.rows.failed[-2_500:] < 0).mean()

    assert np.median([lost(2 * found.burst, seed=seed) for seed in range(3)]) > 0.5
    assert np.median([lost(found.burst // 2, seed=seed) for seed in range(3)]) < 0.1
    assert np.median([lost(2_500, 0.93 * found.heals, seed) for seed in range(3)]) < 0.3


def test_with_a_limit_on_the_queue_there_is_no_storm():
    workload = CHAT.with_rate(4.6).with_patience(RETRIES)
    assert "no burst" in storm(workload, limited(prompt_tokens=10_000), lambda share: None)


def test_a_storm_that_needs_no_burst_is_said_with_the_load_at_which_it_heals():
    """At a rate beyond what is carried retries begin by themselves; below what heals none lasts."""
    said = storm(CHAT.with_rate(8.0).with_patience(RETRIES), VLLM, lambda share: None)
    assert isinstance(said, str)
    heals = float(said.split("about ")[1].split()[0])
    assert 3.0 < heals < 4.6
    calm = storm(CHAT.with_rate(0.9 * heals).with_patience(RETRIES), VLLM, lambda share: None)
    assert calm == "no burst of up to 3,000 requests brings about a storm of retries that lasts"


def test_storms_of_networks_are_said_to_be_unknown():
    network = ps.Network.single(CHAT.with_rate(3.0).with_patience(RETRIES), VLLM)
    assert any("not known" in said for said in ps.check(network, jobs=2_000).warnings)
