"""A verdict holds over what is not known of the batch times, or hinges on it."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.checking.doubt import doubt_of
from penstock.checking.head import BECAUSE, MIDDLE
from penstock.scenario.server import ServerSection
from penstock.system.batch_time import Affine, Composition
from penstock.system.measured_times import Measured
from penstock.system.uncertain import PARAMETERS, Seen, Uncertainty, Within

VALUES = dict.fromkeys(PARAMETERS, 1.0) | {"host": 1e-4, "per_stream": 1e-6}
LOADS = (1, 64, 512, 2048)


def server(deviation: float) -> ps.Server:
    seconds = tuple(0.01 + 1e-4 * load for load in LOADS)
    model = Composition(Measured(LOADS, seconds), decode_attention=1e-9, per_request=1e-6)
    known = Uncertainty(VALUES, (np.eye(len(VALUES)) * deviation**2).tolist())
    return ps.Server(dataclasses.replace(model, uncertainty=known), 1024, None, "sarathi")


def workload(rate: float) -> ps.Workload:
    return ps.Workload.poisson(rate=rate, prompt=100, output=50, seed=0)


def test_nothing_is_said_of_batch_times_that_were_not_calibrated() -> None:
    plain = ps.Server(Affine(0.01, 1e-4), 1024, None, "sarathi")
    assert doubt_of((workload(10), plain)) is None


@pytest.mark.parametrize(("rate", "verdict"), [(20, "stable"), (200, "unstable")])
def test_far_from_the_limit_the_verdict_holds(rate: float, verdict: str) -> None:
    answer = ps.check(workload(rate), server(0.05), requests=2000)
    assert answer.calibration is not None
    assert answer.calibration.holds(verdict)
    assert answer.verdict == verdict


def test_beside_a_prefix_cache_the_interval_says_that_it_is_of_a_cache_that_keeps_everything() -> None:
    """The load that is shown beside is what a run measured."""
    rows = 400
    ids = [[*range(60), 1_000 + row] for row in range(rows)]
    alike = ps.Workload.from_arrays(np.arange(rows) / 7, [976] * rows, [8] * rows, hash_ids=ids, hash_block=16)
    batch_time = Composition(Affine(1e-3, 1e-4), uncertainty=Within(1.2, "judged"))
    answer = ps.check(alike, ps.Server(batch_time, 512, 16, "vllm", memory=ps.Memory(1_200)), requests=rows)
    assert answer.calibration is not None
    assert answer.calibration.cached
    assert "if prefix caches kept everything" in answer.calibration.interval
    assert "a prefix cache that keeps everything" in repr(answer.page())


def test_near_the_limit_it_is_undecided_because_of_the_calibration() -> None:
    usual = ps.certify(workload(10), server(0.2)).max_rate
    answer = ps.check(workload(0.97 * usual), server(0.2), requests=2000)
    assert answer.verdict == "undecided"
    assert "with the slow end it is unstable" in answer.reason
    assert answer.as_dict()["calibration"]["slow"] == "unstable"


def test_a_verdict_that_flips_within_the_interval_is_undecided_and_each_end_has_its_own() -> None:
    """One factor is uncertain, so the ends of its 90% interval are known: 1.645 deviations away."""
    deviation = 0.2
    only = np.zeros((len(VALUES), len(VALUES)))
    index = list(VALUES).index("large_batches")
    only[index, index] = deviation**2
    usual = server(deviation)
    model = usual.batch_time
    assert isinstance(model, Composition)
    known = Uncertainty(VALUES, only.tolist())
    asked = workload(0.97 * ps.certify(workload(10), usual).max_rate)
    ends = []
    for sign in (1, -1):
        change = np.zeros(len(VALUES))
        change[index] = sign * 1.645 * deviation
        moved = dataclasses.replace(known.moved(model, change), uncertainty=None)
        end = ps.check(asked, dataclasses.replace(usual, batch_time=moved), requests=2000)
        ends.append(end.verdict)
    assert ends == ["unstable", "stable"]
    doubtful = dataclasses.replace(usual, batch_time=dataclasses.replace(model, uncertainty=known))
    answer = ps.check(asked, doubtful, requests=2000)
    assert answer.calibration is not None
    assert [answer.calibration.slow.verdict, answer.calibration.fast.verdict] == ends
    assert answer.verdict == "undecided"
    assert answer.page().verdicts[0].source == "because of the batch times"


def test_more_uncertainty_widens_the_interval_around_the_same_limit() -> None:
    narrow, wide = (doubt_of((workload(20), server(spread))) for spread in (0.02, 0.2))
    assert narrow is not None
    assert wide is not None
    usual = ps.certify(workload(20), server(0.1)).max_rate
    assert wide.max_rate.low < narrow.max_rate.low < usual < narrow.max_rate.high < wide.max_rate.high
    assert narrow.latency["ttft_s"].low < 1 < narrow.latency["ttft_s"].high


def shaped(rate: float) -> tuple[ps.Workload, ps.Server]:
    """Return a model on GPUs of which no row is at hand, and what arrives there."""
    section = {"model": "Llama-3.1-70B", "gpu": "h100-sxm", "tensor_parallel": 4, "engine": "vllm"}
    server = ServerSection.model_validate(
        {"hardware": section, "policy": "sarathi", "memory": "unlimited"} | {"token_budget": 8192}
    )
    return ps.Workload.poisson(rate=rate, prompt=1500, output=300, seed=0), server.build(Path())


def test_what_nobody_measured_is_not_decided_by_theorem_near_the_limit() -> None:
    w, s = shaped(1.0)
    limit = ps.certify(w, s).max_rate
    answer = ps.check(w.with_rate(1.012 * limit), s, requests=500)
    assert answer.certificate.verdict == "unstable"
    assert answer.verdict == "undecided"
    said = answer.as_dict()["calibration"]
    assert said["load"] == pytest.approx([1.012 / 1.3, 1.012 * 1.3], rel=0.01)
    assert (said["slow"], said["fast"]) == ("unstable", "stable")
    first, *others = answer.page().verdicts
    assert (first.word, first.source) == ("undecided", BECAUSE)
    assert all(verdict.source.endswith(MIDDLE) for verdict in others)


@pytest.mark.parametrize(("load", "verdict"), [(0.5, "stable"), (2.0, "unstable")])
def test_by_theorem_is_said_where_the_theorem_holds_at_both_ends(load: float, verdict: str) -> None:
    w, s = shaped(1.0)
    answer = ps.check(w.with_rate(load * ps.certify(w, s).max_rate), s, requests=500)
    assert answer.verdict == verdict
    assert answer.calibration is not None
    assert answer.calibration.by_theorem
    assert not any(said.source.endswith(MIDDLE) for said in answer.page().verdicts)


def test_a_network_of_one_has_the_ends_of_its_server_and_pools_that_are_exact_have_none() -> None:
    w, s = shaped(1.0)
    near = w.with_rate(0.8 * ps.certify(w, s).max_rate)
    answer = ps.check(ps.Network.single(near, s), jobs=200, resolution=0.1)
    alone = doubt_of((near, s))
    assert answer.verdict == "undecided"
    assert answer.calibration is not None
    assert alone is not None
    assert answer.calibration.load == pytest.approx(alone.load, rel=1e-6)
    assert answer.as_dict()["calibration"]["slow"] == "unstable"
    assert answer.page().verdicts[0].source == BECAUSE
    exact = ps.Server(Affine(0.01, 1e-4), 1024, None, "sarathi")
    assert doubt_of(ps.Network.single(workload(10), exact)) is None


def test_pools_go_by_their_own_limit_and_are_slow_at_once() -> None:
    """Of two pools, one exact, the network is as doubtful as its bottleneck."""
    w, s = shaped(1.0)
    limit = ps.certify(w, s).max_rate
    flow = ps.Workflow(
        "chain",
        w.with_rate(0.9 * limit),
        {"first": ps.Stage("shape", 1500, 300, then="second"), "second": ps.Stage("exact", 100, 100)},
    )
    exact = ps.Server(Affine(1e-3, 1e-6), 1024, None, "sarathi")
    doubt = doubt_of(ps.Network({"shape": ps.Pool(s), "exact": ps.Pool(exact)}, [flow]))
    assert doubt is not None
    assert doubt.load == pytest.approx((0.9 / 1.3, 0.9 * 1.3), rel=0.02)
    assert (doubt.slow.verdict, doubt.fast.verdict) == ("unstable", "stable")


def test_what_no_row_has_seen_is_said_in_front() -> None:
    seen = Seen("sarathi", (90, 110), (45, 60), 2000)
    model = server(0.05).batch_time
    assert isinstance(model, Composition)
    assert model.uncertainty is not None
    known = dataclasses.replace(model.uncertainty, seen=seen)  # type: ignore[type-var]
    rows = dataclasses.replace(server(0.05), batch_time=dataclasses.replace(model, uncertainty=known))
    assert ps.check(workload(20), rows, requests=500).front == ()
    longer = ps.Workload.poisson(rate=5, prompt=400, output=50, seed=0)
    other = rows.with_policy("orca")
    answer = ps.check(longer, other, requests=500)
    assert "prompts have 400 tokens, those of the rows 90 to 110" in answer.front[0]
    assert "no row was of orca, all were of sarathi" in answer.front[0]
    assert answer.as_dict()["warnings"][0] == answer.front[0] == answer.page().notes[0]
    network = ps.check(ps.Network.single(longer, other), jobs=200)
    assert "pool pool are extrapolated" in network.as_dict()["warnings"][0]
    crowded = dataclasses.replace(seen, running=10)
    assert (
        "up to 1,024 requests run at the limit, in no row more than 10" in crowded.beyond("sarathi", 100, 50, 1024)[0]
    )
