"""The stable rate of a server is the theorem's where theorems leave no gap, and found by simulation where they do."""

import dataclasses

import pytest

import penstock as ps
from penstock.capacity.stable_rates import SIMULATION, rate_map, stable_rate

SERVER = ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, 512)
WORKLOAD = ps.Workload.poisson(1.0, prompt=ps.Geometric(300), output=ps.Uniform(50, 150))
BOUNDED = ps.Workload.poisson(1.0, prompt=300, output=ps.Uniform(50, 150))


def limited(budget: int, size: int | None) -> ps.Server:
    return dataclasses.replace(SERVER, token_budget=budget, max_batch_size=size)


def test_where_a_theorem_certifies_all_that_any_policy_carries_nothing_is_simulated() -> None:
    found = stable_rate(BOUNDED, SERVER)
    certificate = ps.certify(BOUNDED, SERVER)
    assert found.by_theorem
    assert found.known == "Theorem 1(b)"
    assert found.rate == certificate.certified_rate == pytest.approx(certificate.max_rate)


def test_where_theorems_leave_a_gap_the_rate_is_the_one_that_bisection_finds() -> None:
    server = limited(512, 16)
    found, searched = stable_rate(BOUNDED, server), ps.max_rate(BOUNDED, server, precision=0.02)
    assert found.known == SIMULATION
    assert found.rate == searched.rate
    assert found.above == searched.above


def test_the_rate_does_not_depend_on_the_rate_that_arrives() -> None:
    for server in (SERVER, limited(512, 16)):
        assert stable_rate(BOUNDED.with_rate(7.0), server) == stable_rate(BOUNDED, server)


def test_unbounded_lengths_are_simulated_since_no_theorem_covers_them() -> None:
    assert stable_rate(WORKLOAD, SERVER).known == SIMULATION


def test_a_map_has_every_pair_and_its_best_is_the_highest() -> None:
    shares: list[float] = []
    limits = [(512, None), (128, 16), (128, 512)]
    found = rate_map(BOUNDED, SERVER, [limited(*each) for each in limits], shares.append)
    assert found is not None
    assert list(found.cells) == [(b, k) for b in (128, 512) for k in (16, 512, None)]
    assert found.best is not None
    assert found.cells[found.best].rate == max(cell.rate or 0.0 for cell in found.cells.values())
    assert any(cell.known == SIMULATION for cell in found.cells.values())
    assert shares == sorted(shares)
    assert shares[-1] == 1
    for pair, cell in found.cells.items():
        assert (cell.rate or 0.0) <= ps.certify(BOUNDED, limited(*pair)).max_rate * (1 + 1e-9)
    assert rate_map(BOUNDED, SERVER, [SERVER, SERVER]) is None


def test_a_cell_that_cannot_serve_says_why_and_the_others_have_their_rate() -> None:
    engine = SERVER.with_policy("tensorrt-llm")
    found = rate_map(BOUNDED, engine, [limited(512, size) for size in (256, 1024)])
    assert found is not None
    assert found.cells[512, 1024].rate is None
    assert "max_batch_size is 1,024" in found.cells[512, 1024].known
    assert found.best == (512, 256)
