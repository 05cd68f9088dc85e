"""How long clients wait, and when they come again."""

import numpy as np
import pytest

import penstock as ps

POISSON = ps.Workload.poisson(2.0, 300, ps.Geometric(50), seed=3)


def first(workload, count=2_000):
    """Return the first requests as jobs."""
    return next(workload.jobs()).first(count)


def test_back_offs_grow_by_their_factor_up_to_the_longest():
    patience = ps.Patience(retries=5, backoff_ms=500, factor=3, longest_ms=9_000)
    assert patience.backoffs_s == [0.5, 1.5, 4.5, 9.0, 9.0]


def test_patience_is_drawn_by_itself():
    """Neither the requests nor one kind of patience change with another, nor with the blocks that are asked for."""
    one = first(POISSON.with_patience(ps.Patience(ttft_ms=ps.Geometric(3_000))))
    more = first(POISSON.with_patience(ps.Patience(ttft_ms=ps.Geometric(3_000), e2e_ms=9_000, retries=2)))
    assert np.array_equal(one.ttft_limit_s, more.ttft_limit_s)
    assert (more.e2e_limit_s == 9.0).all()
    assert one.luck is None
    assert len(np.unique(more.luck)) > 1_990
    plain = first(POISSON)
    assert np.array_equal(plain.output, one.output)
    assert one.ttft_limit_s.mean() == pytest.approx(3.0, rel=0.1)


def test_a_workflow_of_one_call_has_the_patience_of_its_workload():
    impatient = POISSON.with_patience(ps.Patience(ttft_ms=ps.Geometric(3_000), retries=1))
    server = ps.Server(ps.Affine(0.01, 1e-4), 512, 32)
    jobs = ps.Network.single(impatient, server).jobs(1_000)
    assert np.array_equal(jobs.ttft_limit_s, first(impatient, 1_000).ttft_limit_s)
    assert np.array_equal(jobs.luck, first(impatient, 1_000).luck)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ttft_ms": 0}, "the patience ttft_ms is 0, but must be a number from 0.001"),
        ({"e2e_ms": -5}, "the patience e2e_ms is -5"),
        ({"ttft_ms": "soon"}, "the patience ttft_ms is 'soon'"),
        ({}, "a patience without ttft_ms, e2e_ms or retries says nothing"),
        ({"retries": 1_000}, "retries is 1000, but must be a whole number from 0 to 100"),
        ({"retries": 2, "backoff_ms": 0}, "backoff_ms is 0"),
        ({"retries": 2, "longest_ms": float("inf")}, "longest_ms is inf"),
        ({"retries": 2, "factor": 0.5}, "factor is 0.5"),
        ({"retries": 2, "jitter": 1.5}, "jitter is 1.5"),
    ],
)
def test_patience_that_cannot_be_is_refused_in_one_line(given, says):
    with pytest.raises(ps.InputError) as error:
        ps.Patience(**given)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_who_is_refused_comes_as_often_as_it_does_and_no_more():
    patience = ps.Patience(retries=4, backoff_ms=10_000, factor=1, jitter=1.0)
    workload = ps.Workload.poisson(200.0, 100, 1).with_patience(patience)
    server = ps.Server(ps.Affine(1.0, 0.0), 100, 1, queue_limit=ps.QueueLimit(requests=1))
    run = ps.simulate(workload, server, requests=3_000)
    assert (run.rows.tries[run.rows.failed < 0] == 4).all()
