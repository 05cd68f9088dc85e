"""Where batches are composed a step ahead, a request that ends before the outputs that it declares costs a token."""

import dataclasses

import numpy as np
import pytest

import penstock as ps
from penstock.theory.load import load
from penstock.theory.network.hypotheses import FORESEEN
from penstock.workload.lengths import Length

BATCH_TIME = ps.Affine(0.01, 1e-4)
AHEAD = ps.Server(BATCH_TIME, 64, 128, policy="vllm")
AT_ONCE = ps.Server(BATCH_TIME, 64, 128, policy="vllm", policy_params={"async_scheduling": False})
CAPACITY = BATCH_TIME.capacity(64)


def early(load: float = 0.95) -> ps.Workload:
    """Return prompts and outputs of two tokens that declare 16: four forward tokens, one of them for nothing."""
    return ps.Workload.poisson(load * CAPACITY / 3, 2, ps.Constant(2)).with_declared(ps.Constant(16))


def test_a_server_and_a_network_that_serve_a_token_for_nothing_are_not_certified_for_more_than_they_carry() -> None:
    """Without that token the load would be .95."""
    for certificate in (ps.certify(early(), AHEAD), ps.certify(ps.Network.single(early(), AHEAD))):
        assert certificate.verdict == "unstable"
        assert certificate.rho == pytest.approx(0.95 * 4 / 3)
    assert ps.verdict(early(), AHEAD).verdict == "unstable"
    assert ps.verdict(early(0.73), AHEAD).verdict == ps.certify(early(0.73), AHEAD).verdict == "stable"
    assert ps.certify(early(), AT_ONCE).verdict == ps.verdict(early(), AT_ONCE).verdict == "stable"


def chain(workload: ps.Workload, server: ps.Server) -> ps.Network:
    """Return a network in which each request is served twice, in pools of their own."""
    stages = {"first": ps.Stage("one", "job", "job", then="second"), "second": ps.Stage("two", "job", "job")}
    return ps.Network({"one": ps.Pool(server), "two": ps.Pool(server)}, [ps.Workflow("w", workload, stages)])


def test_networks_of_several_pools_count_it_too() -> None:
    certificate = ps.certify(chain(early(), AHEAD))
    assert certificate.verdict == "unstable"
    assert certificate.max_load == pytest.approx(1 / (0.95 * 4 / 3))
    assert certificate.certified_load == pytest.approx(certificate.max_load)
    assert ps.certify(chain(early(), AT_ONCE)).verdict == "stable"
    assert ps.verdict(chain(early(0.73), AHEAD)).verdict == ps.certify(chain(early(0.73), AHEAD)).verdict == "stable"


def test_where_a_network_does_not_know_how_often_it_happens_it_says_so() -> None:
    ample = dataclasses.replace(AHEAD, memory=ps.Memory(1000), max_batch_size=128)
    assert ps.certify(chain(early(0.7), ample)).verdict == "stable"
    twice = {"first": ps.Stage("one", "job", "job", then="second"), "second": ps.Stage("one", "job", "job")}
    certificate = ps.certify(ps.Network({"one": ps.Pool(ample)}, [ps.Workflow("w", early(0.3), twice)]))
    assert certificate.verdict == "unknown"
    assert FORESEEN in [h.name for h in certificate.hypotheses if not h.held]


@pytest.mark.parametrize(
    ("output", "declared"),
    [
        (ps.Constant(1), ps.Constant(16)),
        (ps.Constant(4), ps.Uniform(1, 8)),
        (ps.Geometric(5, max=60), ps.Constant(60)),
        (ps.Geometric(5, max=60), ps.Geometric(8, max=90)),
        (ps.Uniform(1, 9), ps.LogNormal(6, 1, max=40)),
        (ps.Geometric(5, max=60), ps.Constant(1)),
    ],
)
def test_what_it_costs_is_what_the_simulator_serves(output: Length, declared: Length) -> None:
    """To within the error of a sample of so many requests; exactly, counted by the requests that there were."""
    workload = ps.Workload.poisson(0.6 * CAPACITY / 20, ps.Geometric(7, max=50), output).with_declared(declared)
    count = 20_000
    rows = workload.requests(count)
    run = ps.simulate(workload, AHEAD, requests=count)
    own = int((rows.prompt_tokens + rows.output_tokens - 1).sum())
    wasted = run.tokens - own
    assert wasted == int((rows.declared > rows.output_tokens).sum())
    demand = load(workload, AHEAD)
    least, most = demand.wasted
    assert least == pytest.approx(most)
    assert wasted / count == pytest.approx(least, abs=4 * np.sqrt(max(least * (1 - least), 1e-12) / count))
    assert load(workload, AT_ONCE).wasted == (0.0, 0.0)


def test_recorded_requests_are_counted_one_by_one() -> None:
    workload = ps.Workload.from_arrays([0.0, 1.0, 2.0, 3.0], [5] * 4, [2, 3, 4, 5], declared=[2, 4, 4, 9])
    assert load(workload, AHEAD).wasted == (0.5, 0.5)
    assert load(workload, AHEAD).tokens_per_request == pytest.approx(5 + 3.5 - 1 + 0.5)


def test_memory_that_holds_all_has_room_for_that_token() -> None:
    """128 requests of three tokens and one for nothing fit into 128 blocks of four, not into 128 of three."""
    for size, verdict in ((4, "stable"), (3, "unknown")):
        server = dataclasses.replace(AHEAD, memory=ps.Memory(129, size))
        assert ps.certify(early(0.7), server).verdict == verdict
        undeclared = dataclasses.replace(early(0.7), declared=None)
        assert ps.certify(undeclared, server).verdict == "stable"


def test_attention_of_that_token_is_counted() -> None:
    workload = early(0.3)
    composed = dataclasses.replace(AHEAD, batch_time=ps.Composition(BATCH_TIME, 0.0, 0.0, decode_attention=1e-3))
    once = load(dataclasses.replace(workload, declared=None), composed).attention_s[1]
    assert load(workload, composed).attention_s[1] >= once + 1e-3 * 3


@pytest.mark.parametrize("context", [4, 5, 100])
def test_an_output_that_is_cut_ends_foreseen(context: int) -> None:
    """Contexts of four are full with the output, as all know; then the rest is no longer declared."""
    server = dataclasses.replace(AHEAD, policy_params={"max_model_len": context})
    assert load(early(), server).wasted == ((0.0, 1.0) if context == 4 else (1.0, 1.0))
    run = ps.simulate(early(0.5), server, requests=1000)
    assert run.tokens == 1000 * (3 if context == 4 else 4)
