"""A front end is a server in series: what waits there is what a queue says, and its limit is one of the server's."""

from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.errors import InputError
from penstock.scenario.scenario import read_scenario
from penstock.system.front_end import FrontEnd

ENGINE = ps.Affine(c=1e-6, a=1e-9)  # hardly any time


def server(front_end: FrontEnd | None, policy: str = "vllm", **more: object) -> ps.Server:
    return ps.Server(ENGINE, 8192, 512, policy, front_end=front_end, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["vllm", "sarathi"])
@pytest.mark.parametrize(("rho", "per_token"), [(0.3, 0.0), (0.8, 0.0), (0.8, 1e-3)])
def test_requests_wait_in_front_as_in_an_m_d_1_queue(policy: str, rho: float, per_token: float) -> None:
    """Pollaczek and Khinchine: W = rho s / (2 (1 - rho)), and s for the request itself."""
    front_end = FrontEnd(0.1 - 20 * per_token, per_token)
    seconds = front_end.seconds(20)
    assert seconds == pytest.approx(0.1)
    workload = ps.Workload.poisson(rho / seconds, prompt=100, output=20, seed=3)
    run = ps.simulate(workload, server(front_end, policy), requests=200_000)
    assert run.rows is not None
    ttft = (run.rows.first_token - run.rows.arrival) * run.tick_s
    parts = np.array_split(ttft, 20)
    means = np.array([part.mean() for part in parts])
    expected = seconds + rho * seconds / (2 * (1 - rho))
    assert abs(means.mean() - expected) < 4 * means.std(ddof=1) / np.sqrt(len(parts)) + 1e-3


def test_its_processes_work_side_by_side_and_replicas_share_theirs() -> None:
    workload = ps.Workload.from_arrays(np.zeros(8), np.full(8, 10), np.full(8, 1))
    for front_end, replicas, waits in (
        (FrontEnd(1.0), 1, [1, 2, 3, 4, 5, 6, 7, 8]),
        (FrontEnd(1.0, processes=4), 1, [1, 1, 1, 1, 2, 2, 2, 2]),
        (FrontEnd(1.0, processes=2), 2, [1, 1, 1, 1, 2, 2, 2, 2]),
        (FrontEnd(0.5, 0.5), 1, [1, 2, 3, 4, 5, 6, 7, 8]),
    ):
        network = ps.Network.single(workload, server(front_end), replicas)
        run = ps.simulate(network)
        assert run.rows is not None
        assert np.rint(np.sort(run.rows.first_token - run.rows.arrival) * run.tick_s).tolist() == waits


def test_clients_of_a_closed_loop_wait_in_front_too() -> None:
    loop = ps.Workload.closed(3, prompt=10, output=2)
    run = ps.simulate(loop, server(FrontEnd(0.25)), requests=400)
    assert run.rows is not None
    assert run.rows.finish.max() * run.tick_s == pytest.approx(100, rel=0.01)  # four requests a second


@pytest.mark.parametrize("replicas", [1, 3])
def test_its_limit_has_a_name_and_no_policy_is_stable_beyond(replicas: int) -> None:
    for rate, verdict in ((7.9 * replicas, "stable"), (8.1 * replicas, "unstable")):
        workload = ps.Workload.poisson(rate, prompt=100, output=5)
        network = ps.Network.single(
            workload, ps.Server(ENGINE, 8192, None, "sarathi", front_end=FrontEnd(0.125)), replicas
        )
        certificate = ps.certify(network)
        assert certificate.verdict == verdict
        limit = next(limit for limit in certificate.pools[0].limits if limit.name == "front end")
        assert limit.load == pytest.approx(rate / (8 * replicas))
        assert certificate.max_rate == pytest.approx(8 * replicas)
    assert certificate.theorem == "conservation of the front end's time"
    assert certificate.certified_rate == pytest.approx(8 * replicas)


@pytest.mark.parametrize("replicas", [0, 1, 3])
def test_the_test_by_simulation_is_unstable_beyond_it_too(replicas: int) -> None:
    for rho, verdict in ((0.98, "stable"), (1.02, "unstable"), (2.0, "unstable")):
        workload = ps.Workload.poisson(8 * rho * max(replicas, 1), prompt=100, output=5)
        served = server(FrontEnd(0.125))
        test = ps.verdict(ps.Network.single(workload, served, replicas)) if replicas else ps.verdict(workload, served)
        assert test.verdict == verdict
        assert ("its front end has" in test.reason) == (verdict == "unstable")
        if verdict == "unstable":
            assert test.drift == pytest.approx(1 - 1 / rho)


def test_what_waits_in_front_grows_as_the_limit_says() -> None:
    workload = ps.Workload.poisson(10.0, prompt=100, output=5)
    run = ps.simulate(workload, server(FrontEnd(0.125)), requests=20_000)
    assert run.rows is not None
    left = run.rows.finish.max() * run.tick_s
    assert 20_000 / left == pytest.approx(8, rel=0.01)


def test_a_scenario_says_it_in_ms_and_us(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(
        "workload: {poisson: {rate: 2, prompt: 500, output: 100}}\n"
        "server: {token_budget: 512, batch_time: {c_ms: 1, a_ms: 0.1, b0: 64},\n"
        "  front_end: {per_request_ms: 22.7, per_token_us: 40, processes: 2}}\n"
    )
    front_end = read_scenario(path).server.front_end
    assert front_end is not None
    assert front_end.seconds(100) == pytest.approx(0.0227 + 100 * 40e-6)
    assert front_end.processes == 2
    path.write_text(path.read_text().replace("22.7", "0").replace("40", "0"))
    with pytest.raises(InputError, match="takes no time for requests nor tokens"):
        read_scenario(path)


def test_kinds_of_servers_of_a_pool_that_differ_in_it_are_refused() -> None:
    with pytest.raises(InputError, match="differ in their front end"):
        ps.Pool([(server(FrontEnd(0.1)), 1), (server(None), 1)])


def test_it_stands_in_the_words_for_a_server() -> None:
    front_end = FrontEnd(0.005, 2e-5, processes=2)
    assert front_end.words == "front end of 5 ms a request and 20 us an output token, 2 processes"
    assert server(FrontEnd(0.005)).limits.endswith(", front end of 5 ms a request")
    assert FrontEnd(per_token=2e-5).words == "front end of 20 us an output token"
