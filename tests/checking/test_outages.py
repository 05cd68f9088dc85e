"""What a replica that dies does, beside the same jobs without that."""

from pathlib import Path

import pytest

import penstock as ps
from penstock.checking.outages import outages_section
from penstock.scenario.scenario import build

RATE = 20.0


def network(replicas=4):
    server = ps.Server(ps.Affine(0.02, 2e-4), 512, 64)
    workload = ps.Workload.poisson(RATE, ps.Geometric(200, max=2000), ps.Geometric(50, max=500), seed=3)
    return ps.Network.single(workload, server, replicas, "jsq")


def test_everybody_waits_longer_while_a_replica_is_away_and_nobody_long_before_it_died():
    outage = ps.Outage("pool", 1, 50, 100)
    answer = ps.check(network(), jobs=4_000, outages=[outage], resolution=0.2)
    before, away, after = answer.outages
    assert [window.when for window in answer.outages] == ["before", "away", "after"]
    assert (before.from_s, away.from_s, after.from_s, after.to_s) == (0, 50, 100, 150)
    assert before.sent_again > 0
    assert away.sent_again == away.lost == after.sent_again == 0
    assert away.requests == pytest.approx(RATE * 50, rel=0.15)
    assert away.e2e_s["p50"] > away.e2e_without_s["p50"]
    assert answer.as_dict()["outages"][0]["outage"]["pool"] == "pool"


def test_the_table_of_an_outage_says_that_requests_may_be_hit_by_another_one():
    outages = [ps.Outage("pool", 1, 20, 40), ps.Outage("pool", 2, 50, 60)]
    answer = ps.check(network(), jobs=2_000, outages=outages, resolution=0.2)
    one, _, after, two, *_ = answer.outages
    assert one.hit > 0
    assert two.hit > 0
    hit = sum(window.sent_again for window in answer.outages[:3])
    assert hit == one.hit + two.hit  # nobody by both
    (section,) = outages_section(answer.outages)
    assert section.tables[1].title == f"pool/2 from 50 to 60 s: hit {two.hit} requests, sent again"
    assert (after.outage, after.when) == (outages[0], "after")
    assert after.sent_again > 0  # at the other replica
    (section,) = outages_section(answer.outages)
    assert "Hit, in a row: they were at a replica when it died, in this outage or another." in section.paragraphs[0]


def test_lost_requests_never_end_and_are_counted():
    outage = ps.Outage("pool", 1, 100, 200, requests="lost")
    run = ps.simulate(network(), jobs=4_000, outages=[outage])
    lost = int((run.requests["failed"] == "lost").sum())
    assert lost > 0
    assert run.hits == (lost,)
    assert run.finished == 4_000 - lost
    assert run.requests["tries"].sum() == 0
    assert run.requests.filter(failed="lost")["finish_ns"].null_count() == lost


def test_where_nobody_serves_requests_wait_until_a_replica_is_back():
    run = ps.simulate(network(replicas=1), jobs=400, drain=True, outages=[ps.Outage("pool", 0, 5, 9)])
    away = run.requests.filter((run.requests["arrival_ns"] >= 5e9) & (run.requests["arrival_ns"] < 9e9))
    assert away.height > 0
    assert away["first_token_ns"].min() > 9e9
    assert run.finished == 400


def test_what_can_not_be_told_of_outages_is_refused():
    outage = ps.Outage("pool", 0, 50, 60)
    with pytest.raises(ps.InputError, match=r"begins at 50 s, but the last job of the run arrives at .* s"):
        ps.simulate(network(), jobs=100, outages=[outage])
    run = ps.simulate(network(), jobs=2_000, outages=[outage], record="batches")
    with pytest.raises(ps.InputError, match="replica 0 of pool 'pool' died in this run"):
        run.at("pool", 0)
    assert run.at("pool", 1).finished > 0
    workload, server = ps.Workload.poisson(1, 10, 10), ps.Server(ps.Affine(0.02, 2e-4), 512)
    with pytest.raises(ps.InputError, match="outages"):
        ps.simulate(workload, server, requests=10, outages=[outage])


@pytest.mark.parametrize("length", [{"jobs": 100}, {"until": 5.0}])
def test_an_outage_after_the_last_arrival_is_refused_before_the_test_and_the_run(length, monkeypatch):
    def no_work(*_, **__):
        raise AssertionError("work before the refusal")

    for name in ("check.certify", "check.verdict", "check_network.run_network"):
        monkeypatch.setattr(f"penstock.checking.{name}", no_work)
    with pytest.raises(ps.InputError, match=r"begins at 50 s, but the last job of the run arrives at .* s"):
        ps.check(network(), **length, outages=[ps.Outage("pool", 0, 50, 60)])


def test_outages_with_transfers_are_refused():
    engine = ps.Server(ps.Affine(0.02, 2e-4), 512, 64, policy="vllm", memory=ps.Memory(4096))
    workload = ps.Workload.poisson(2, 200, 50)
    apart = ps.Workflow.disaggregated(workload, prefill="p", decode="d", transfer_ms_per_token=0.01)
    pools = {"p": ps.Pool(engine), "d": ps.Pool(engine)}
    with pytest.raises(ps.InputError, match="sends KV memory from pool to pool"):
        ps.simulate(ps.Network(pools, [apart]), jobs=100, outages=[ps.Outage("p", 0, 5, 6)])


def test_a_scenario_names_its_outages():
    times = {"affine": {"c_ms": 20, "a_ms_per_token": 0.2}}
    document = {
        "network": {
            "pools": {"chat": {"batch_time": times, "token_budget": 512, "replicas": 2}},
            "workflows": {"w": {"pool": "chat", "workload": {"poisson": {"rate": 1, "prompt": 10, "output": 10}}}},
        },
        "simulate": {"outages": [{"pool": "chat", "replica": 1, "from": 5, "to": 8, "requests": "lost"}]},
    }
    assert build(document, Path()).outages == (ps.Outage("chat", 1, 5, 8, "lost"),)
    document["simulate"]["outages"][0]["to"] = 4
    with pytest.raises(ps.InputError, match=r"simulate\.outages\.0: an outage ends at 4 s, but begins at 5 s"):
        build(document, Path())
    document["simulate"]["outages"] = [{"pool": "chat", "start": 5, "end": 8}]
    with pytest.raises(
        ps.InputError, match=r"outages\.0\.start is not a key .* known: pool, replica, from, to, requests"
    ):
        build(document, Path())
