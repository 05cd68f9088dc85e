"""How fast networks are: stage-requests per second on one core, unfolding of jobs included, and
beside Ciw.
"""

import os
import time
from collections.abc import Callable

import ciw
import pytest

import penstock as ps

FULL = os.environ.get("PENSTOCK_BENCHMARK") == "full"
JOBS = 1_000_000 if FULL else 20_000
ROUNDS = 5 if FULL else 2
CIW_JOBS = 20_000 if FULL else 2_000
TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time

Record = Callable[[str, float, str], None]


def crossing(order: str, rho: float = 0.9) -> ps.Network:
    """Two servers that two workflows cross in opposite directions, each a short call and then a
    long one.
    """
    unit = ps.Server(ps.Affine(c=1.0, a=0.0), 768, convention="paper")
    rate = rho * 768 / 608
    workflows = [
        ps.Workflow(
            name,
            ps.Workload.poisson(rate, 1, 1, seed=seed),
            {"short": ps.Stage(first, 32, 32, then="long"), "long": ps.Stage(second, 512, 32)},
        )
        for seed, (name, first, second) in enumerate((("a", "one", "two"), ("b", "two", "one")))
    ]
    orders = [order, order]
    if order == "priority":
        orders = [
            ps.Order.priority(["a.short", "b.long"]),
            ps.Order.priority(["b.short", "a.long"]),
        ]  # type: ignore[list-item]
    return ps.Network(
        {
            name: ps.Pool(unit, order=each)
            for name, each in zip(("one", "two"), orders, strict=True)
        },
        workflows,
    )


@pytest.mark.parametrize("order", ["priority", "fcfs", "back-pressure", "hlpps"])
def test_stage_requests_per_second_of_two_servers_and_two_classes(
    benchmark, record: Record, order: str
) -> None:  # type: ignore[no-untyped-def]
    network = crossing(order)
    jobs = JOBS // 2
    ps.simulate(network, jobs=100, tick_s=1.0)
    run = benchmark.pedantic(lambda: ps.simulate(network, jobs=jobs, tick_s=1.0), rounds=ROUNDS)
    assert run.finished == jobs
    record("speed", 2 * jobs / benchmark.stats["median"], "stage-requests/s")


@pytest.mark.parametrize("router", ["jsq", "random", "tokens"])
def test_requests_per_second_of_64_replicas(benchmark, record: Record, router: str) -> None:  # type: ignore[no-untyped-def]
    server = ps.Server(TP1, 512)
    conversation = ps.Workload.preset("azure-conv")
    capacity = ps.certify(conversation.with_rate(1.0, "poisson"), server).max_rate
    network = ps.Network.single(
        conversation.with_rate(0.9 * 64 * capacity, "poisson"), server, 64, router
    )
    ps.simulate(network, jobs=100)
    run = benchmark.pedantic(lambda: ps.simulate(network, jobs=JOBS), rounds=ROUNDS)
    assert run.finished == JOBS
    record("speed", JOBS / benchmark.stats["median"], "requests/s")


def test_a_network_of_unit_batches_is_many_times_faster_than_in_ciw_and_equal(
    benchmark, record: Record
) -> None:  # type: ignore[no-untyped-def]
    """Two servers in a row, serving one request at a time for 0.4 s, and back to the first with
    probability 0.3.
    """
    unit = ps.Server(ps.Affine(c=0.4, a=0.0), token_budget=1)
    arrivals = ps.Workload.poisson(1.2, 1, 1, seed=1)
    stages = {
        "first": ps.Stage("one", 1, 1, then="second"),
        "second": ps.Stage("two", 1, 1, then={"first": 0.3, "end": 0.7}),
    }
    network = ps.Network(
        {"one": ps.Pool(unit), "two": ps.Pool(unit)}, [ps.Workflow("loop", arrivals, stages)]
    )
    ps.simulate(network, jobs=100)
    run = benchmark.pedantic(lambda: ps.simulate(network, jobs=JOBS), rounds=ROUNDS)
    described = ciw.create_network(
        arrival_distributions=[ciw.dists.Exponential(1.2), None],
        service_distributions=[ciw.dists.Deterministic(0.4), ciw.dists.Deterministic(0.4)],
        routing=[[0.0, 1.0], [0.3, 0.0]],
        number_of_servers=[1, 1],
    )
    ciw.seed(1)
    simulation = ciw.Simulation(described)
    begun = time.process_time()
    simulation.simulate_until_max_customers(CIW_JOBS, method="Finish")
    seconds = time.process_time() - begun
    visits = simulation.get_all_records()
    began, ended = {}, {}
    for visit in visits:
        who = visit.id_number
        began[who] = min(visit.arrival_date, began.get(who, visit.arrival_date))
        ended[who] = max(visit.exit_date, ended.get(who, visit.exit_date))
    theirs = sum(ended[who] - began[who] for who in ended) / len(ended)
    ours = float(run.workflows()["mean"][0])
    assert ours == pytest.approx(theirs, rel=0.25)
    record("mean sojourn over Ciw's", ours / theirs, "")
    record("speed", JOBS / benchmark.stats["median"], "jobs/s")
    record("speed over Ciw's", JOBS / benchmark.stats["median"] / (len(ended) / seconds), "")
