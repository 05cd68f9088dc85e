"""Every row of a sweep gets the highest stable rate of its server, whatever rate arrives there."""

import dataclasses

import polars as pl

import penstock as ps
from penstock.sweeping import stable_rates
from penstock.sweeping.sweep import set_up, sweep

DOCUMENT = {
    "workload": {"poisson": {"rate": 1.0, "prompt": 400, "output": 60}},
    "server": {"hardware": "codellama-34b-a100-tp1", "token_budget": 512},
    "simulate": {"requests": 100},
}
SERVER = ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, 512)
WORKLOAD = ps.Workload.poisson(1.0, 400, 60)


def test_rows_of_one_server_have_one_limit_and_it_is_that_of_the_server() -> None:
    vary = {"workload.poisson.rate": [1, 2], "server.max-num-seqs": [8, None, 0]}
    rows = stable_rates.with_stable_rates(set_up(DOCUMENT, vary), sweep(DOCUMENT, vary, jobs=1))
    for slots in (8, None):
        found = rows.filter(pl.col("server.max-num-seqs").eq_missing(slots))
        server = dataclasses.replace(SERVER, max_batch_size=slots)
        expected = ps.max_rate(WORKLOAD, server, precision=stable_rates.PRECISION)
        assert found["stable_rate"].to_list() == [expected.rate] * 2
        assert found["stable_rate_known"].to_list() == [expected.known] * 2
    bad = rows.filter(pl.col("server.max-num-seqs") == 0)
    assert bad["stable_rate"].null_count() == 2
    assert all("max_batch_size" in why for why in bad["stable_rate_known"])


def test_a_sweep_of_too_many_servers_is_left_as_it_is() -> None:
    vary = {"server.token_budget": list(range(1, stable_rates.MOST + 2))}
    rows = pl.DataFrame({"point": [0]})
    assert stable_rates.with_stable_rates(set_up(DOCUMENT, vary), rows) is rows


def test_the_rate_is_known_as_such_in_every_form_of_workload() -> None:
    assert stable_rates.is_rate("workload.rate")
    assert stable_rates.is_rate("workload.poisson.rate")
    assert not stable_rates.is_rate("server.token_budget")
