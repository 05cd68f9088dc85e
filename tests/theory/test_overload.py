"""Queues with limits, clients who leave and come again: theory, simulation, and Ciw beside them."""

import math

import ciw
import numpy as np
import pytest

import penstock as ps
from penstock.theory.overload import least_lost, lost_in_queue, offered_with_retries

RUNS = range(10)
BATCH_S = 1e-3


def one_at_a_time(rate, service_s, most):
    """Requests that are served one after another for geometric times: nearly M/M/1/K."""
    batch_time = ps.Affine(0.0, BATCH_S)
    workload = ps.Workload.poisson(rate, ps.Geometric(service_s / BATCH_S), 1)
    return workload, ps.Server(batch_time, 1, 1, queue_limit=ps.QueueLimit(requests=most))


def slots_alone(rate, service_s, servers, patience_s):
    """Batches that take as long whatever is in them, with so many slots: nearly M/M/c+M."""
    batch_time = ps.Affine(BATCH_S, 0.0)
    workload = ps.Workload.poisson(rate, 1, ps.Geometric(service_s / BATCH_S))
    patience = ps.Patience(ttft_ms=ps.Geometric(patience_s * 1e3))
    return workload.with_patience(patience), ps.Server(batch_time, 1_000, servers)


def shares(workload, server, requests=20_000):
    """Share that is lost in each of some runs."""
    runs = (ps.simulate(workload.with_seed(seed), server, requests=requests) for seed in RUNS)
    return np.array([(run.rows.failed < 0).mean() for run in runs])


def assert_within(values, expected, step=0.0):
    """The expected value lies in the interval of some runs, five standard errors wide, and what steps of time bring."""
    wide = 5 * values.std(ddof=1) / math.sqrt(len(values)) + step * expected
    assert abs(values.mean() - expected) <= wide, (values.mean(), expected, wide)


def ciw_lost(rate, service_s, servers, seed, **limits):
    """Share that Ciw loses, of a queue with a capacity, or of customers who renege."""
    network = ciw.create_network(
        arrival_distributions=[ciw.dists.Exponential(rate)],
        service_distributions=[ciw.dists.Exponential(1 / service_s)],
        number_of_servers=[servers],
        **limits,
    )
    ciw.seed(seed)
    simulation = ciw.Simulation(network)
    simulation.simulate_until_max_time(600)
    records = simulation.get_all_records()
    kinds = [record.record_type for record in records]
    lost = sum(kind in ("rejection", "renege") for kind in kinds)
    return lost / (lost + kinds.count("service"))


@pytest.mark.parametrize(("rate", "most"), [(3.0, 4), (5.0, 8), (9.0, 3)])
def test_a_queue_with_a_limit_loses_what_mm1k_says(rate, most):
    workload, server = one_at_a_time(rate, 0.2, most)
    expected = lost_in_queue(rate, 0.2, 1, most=most)
    assert_within(shares(workload, server), expected, 0.01)
    assert_within(np.array([ciw_lost(rate, 0.2, 1, s, queue_capacities=[most - 1]) for s in RUNS]), expected)


@pytest.mark.parametrize(("rate", "servers", "patience_s"), [(18.0, 4, 1.0), (30.0, 4, 0.5), (12.0, 4, 2.0)])
def test_clients_leave_as_erlang_a_says(rate, servers, patience_s):
    workload, server = slots_alone(rate, 0.2, servers, patience_s)
    expected = lost_in_queue(rate, 0.2, servers, patience_s=patience_s)
    assert_within(shares(workload, server), expected, 0.02)
    reneging = {"reneging_time_distributions": [ciw.dists.Exponential(1 / patience_s)]}
    assert_within(np.array([ciw_lost(rate, 0.2, servers, seed, **reneging) for seed in RUNS]), expected)


def test_a_large_limit_and_great_patience_lose_what_cannot_be_carried():
    """With rate 1.5 times what is carried, a third is lost at least, and nearly that with ample room."""
    assert least_lost(7.5, 5.0) == pytest.approx(1 / 3)
    assert lost_in_queue(7.5, 0.2, 1, most=400) == pytest.approx(1 / 3, rel=1e-9)
    assert lost_in_queue(7.5, 0.2, 1, patience_s=1e4) == pytest.approx(1 / 3, rel=1e-6)
    assert lost_in_queue(4.0, 0.2, 1, most=400) == pytest.approx(0, abs=1e-12)


def test_mm1k_is_known_in_closed_form():
    rho, most = 0.8, 6
    lost = (1 - rho) * rho**most / (1 - rho ** (most + 1))
    assert lost_in_queue(4.0, 0.2, 1, most=most) == pytest.approx(lost)


def test_retries_without_end_have_a_fixed_point_where_what_arrives_is_carried():
    def carried(offered):
        return min(offered, 5.0)

    assert offered_with_retries(4.0, carried) == pytest.approx((4.0,))
    assert offered_with_retries(6.0, carried) == ()
    (point,) = offered_with_retries(6.0, carried, retries=2)
    lost = 1 - 5 / point
    assert point == pytest.approx(6 * (1 + lost + lost**2))


def test_work_in_vain_makes_three_fixed_points_of_which_the_middle_one_tips():
    def carried(offered):  # each try that leaves has taken half of a request's work
        return min(offered, max(5.0 - 0.5 * max(offered - 5.0, 0.0), 0.5))

    points = offered_with_retries(4.5, carried, retries=5)
    assert len(points) == 3
    assert points[0] == pytest.approx(4.5)
    assert points[1] < points[2]


@pytest.mark.parametrize("jitter", [0.0, 1.0])
def test_clients_who_come_again_offer_the_fixed_point(jitter):
    """At twice what is carried each of two retries is refused like the first try, as back-offs are long."""
    workload, server = one_at_a_time(10.0, 0.2, 20)
    patience = ps.Patience(retries=2, backoff_ms=40_000, factor=1, jitter=jitter)
    run = ps.simulate(workload.with_patience(patience), server, requests=20_000)
    (point,) = offered_with_retries(10.0, lambda offered: min(offered, 5.0), retries=2)
    seconds = run.last_arrival * run.tick_s
    assert (run.rows.tries + 1).sum() / seconds == pytest.approx(point, rel=0.03)
    meanwhile = (run.rows.finish >= 0) & (run.rows.finish <= run.last_arrival)
    assert meanwhile.sum() / seconds == pytest.approx(5.0, rel=0.03)
