"""Vertex C: a backlog is bounded below it and grows beyond; tests/agreement/test_paper.py has the growth there."""

import pytest

import penstock as ps


@pytest.mark.parametrize(("rate", "backlog"), [(1.5, "bounded"), (2.3, "grows")])
def test_a_backlog_is_bounded_below_the_vertex_and_grows_beyond_it(rate, backlog):
    from paper import fig_kmax

    workload = ps.Workload.deterministic(rate, prompt=290, output=990)
    run = ps.simulate(workload, fig_kmax.SERVER.with_policy("sarathi"), until=2_000)
    assert fig_kmax.backlog(run, workload)["backlog"] == backlog
