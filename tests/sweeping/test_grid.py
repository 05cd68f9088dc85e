"""Fields, their values, grids and samples."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.sweeping import fields, grid
from penstock.sweeping.grid import Range, Values


def values(field: str, text: object) -> tuple[object, ...]:
    found = grid.axis(field, text)
    assert isinstance(found, Values)
    return found.values


def test_text_gives_the_values_that_it_shows() -> None:
    assert values("server.token_budget", "128,512,1024") == (128, 512, 1024)
    assert values("server.max_batch_size", "null, 64") == (None, 64)
    assert values("server.policy", "orca,sarathi") == ("orca", "sarathi")
    assert values("workload.rate", "1e-1, 2") == (0.1, 2)
    assert values("workload.poisson.output", "{geometric: 112},112") == ({"geometric": 112}, 112)


def test_a_range_with_a_step_ends_where_it_says() -> None:
    assert values("workload.rate", "1:2:0.25") == (1, 1.25, 1.5, 1.75, 2)
    assert values("workload.rate", "0.1:0.3:0.1") == (0.1, 0.2, 0.3)
    assert values("workload.rate", "1:2:0.3") == (1, 1.3, 1.6, 1.9)
    assert values("server.token_budget", "64:1024:x2") == (64, 128, 256, 512, 1024)


def test_a_number_is_what_looks_like_one_and_no_other_text_is() -> None:
    assert values("server.token_budget", "0100,+6,.5,5.,1e3") == (100, 6, 0.5, 5.0, 1000.0)
    assert [type(value) for value in values("server.token_budget", "0100,5.,1e3")] == [int, float, float]
    assert values("workload.trace", "1:30,1_000,0x1F,'7'") == ("1:30", "1_000", "0x1F", "7")
    assert values("workload.trace", "2001-01-01,2001-12-14 21:59:43") == ("2001-01-01", "2001-12-14 21:59:43")
    assert values("server.policy", "=,<<,yes,~") == ("=", "<<", True, None)
    assert values("workload.poisson.output", "{geometric: 0100}") == ({"geometric": 100},)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1,.nan", "finite"),
        ("-.INF", "finite"),
        ("[1,{mean: .inf}]", "finite"),
        ("1e999,1", "finite"),
        ("1:1e999", "finite"),
        ("1:1e999:2", "finite"),
        ("9" * 5_000, "finite"),
        ("&a [*a]", "aliases"),
        ("&a 128", "anchors"),
        ("!!float 1_0", "tags"),
        ("!!timestamp 2001-99-99", "tags"),
        ("[" * 5_000, "no values"),
        ('"\\Uffffffff"', "no values"),
        ('"\\ud800"', "no table"),
    ],
)
def test_what_is_endless_infinite_or_no_number_is_refused_in_one_line(text: str, why: str) -> None:
    with pytest.raises(ps.InputError, match=why) as refused:
        grid.axis("workload.rate", text)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


def test_lists_and_arrays_of_the_library_are_checked_as_the_command_line_is() -> None:
    assert values("server.token_budget", np.array([64, 128])) == (64, 128)
    assert values("server.token_budget", list(np.array([64, 128]))) == (64, 128)
    assert type(values("server.token_budget", [np.int64(64)])[0]) is int
    assert values("server.token_budget", np.int64(64)) == (64,)
    assert values("server.policy_params", [[1, 2.5], {"a": None}]) == ([1, 2.5], {"a": None})
    itself: list[object] = []
    itself.append(itself)
    for bad in (math.nan, np.nan, np.float32("inf"), 10**400, 10**5_000, {1, 2}, itself, np.datetime64("2001-01-01")):
        with pytest.raises(ps.InputError, match="no table can hold") as refused:
            grid.axis("workload.rate", [1, bad])
        assert "\n" not in str(refused.value)
    with pytest.raises(ps.InputError, match="takes nan"):
        grid.axis("workload.rate", np.array([1.0, math.nan]))


@pytest.mark.parametrize("text", ["1_000", "2024-01-01", "1:30,2", "'7'", "128,+5x"])
def test_text_that_looks_like_a_number_where_only_numbers_belong_is_refused_before_any_work(text: str) -> None:
    for field in ("server.token_budget", "workload.rate", "workload.poisson.rate", "server.max_batch_size"):
        with pytest.raises(ps.InputError, match=r"is text, but only numbers belong there; write it as 1000"):
            grid.axis(field, text)


@pytest.mark.parametrize("text", ["128,128,128", "1000,1e3", "null,64,null", "'a','a'", "{a: 1},{a: 1}"])
def test_a_value_given_twice_is_refused(text: str) -> None:
    with pytest.raises(ps.InputError, match=r"twice.*--seeds"):
        grid.axis("workload.trace" if "a" in text else "server.max_batch_size", text)
    with pytest.raises(ps.InputError, match=r"twice.*--seeds"):
        grid.axis("server.token_budget", [512, 512])


def test_values_that_only_look_alike_are_kept() -> None:
    assert values("server.policy_params", "1,true,'1',null,'null'") == (1, True, "1", None, "null")


@given(st.integers(0, 50), st.integers(1, 400), st.integers(1, 7))
def test_a_range_of_tenths_has_as_many_values_as_one_of_whole_numbers(low: int, steps: int, by: int) -> None:
    tenths = values("workload.rate", f"{low / 10}:{(low + steps * by) / 10}:{by / 10}")
    assert np.allclose(tenths, [(low + i * by) / 10 for i in range(steps + 1)], rtol=1e-9, atol=0)


@pytest.mark.parametrize("text", ["2:1:0.5", "1:2:0", "1:2:-1", "0:8:x2", "1:8:x1", "1:1e9:0.001", "", ",", "[", "2:1"])
def test_what_gives_no_values_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ps.InputError, match=r"rate|range") as refused:
        grid.axis("workload.rate", text)
    assert "\n" not in str(refused.value)


def test_engine_names_lead_to_the_same_field_and_replace_what_stands_there() -> None:
    place = fields.resolved("server.max-num-batched-tokens")
    assert place == fields.resolved("server.chunked_prefill_size") == ("server", "token_budget")
    below = fields.resolved("server.memory.num_gpu_blocks")
    assert below == ("server", "memory", "blocks")
    document = {"server": {"memory": {"num-gpu-blocks": 9, "block_size": 16}}}
    assert fields.at(document, [below], [5]) == {"server": {"memory": {"blocks": 5, "block_size": 16}}}
    document = {"server": {"max_num_batched_tokens": 512, "policy": "orca"}}
    assert fields.at(document, [place], [128]) == {"server": {"token_budget": 128, "policy": "orca"}}
    assert document == {"server": {"max_num_batched_tokens": 512, "policy": "orca"}}


@pytest.mark.parametrize(
    ("field", "meant"),
    [
        ("server.token_budgt", "server.token_budget"),
        ("token_budget", "server.token_budget"),
        ("workload.poisson.rat", "workload.poisson.rate"),
        ("server.memory.block", "server.memory.blocks"),
        ("server.max_num_seq", "server.max_num_seqs"),
    ],
)
def test_a_misspelt_field_is_refused_with_the_nearest_that_there_is(field: str, meant: str) -> None:
    with pytest.raises(ps.InputError, match=meant.replace(".", r"\.")):
        grid.axes({field: [1, 2]})


def test_fields_that_are_one_or_lie_in_each_other_are_refused() -> None:
    for other in ("server.max_num_seqs", "server.max-running-requests"):
        with pytest.raises(ps.InputError, match="one field"):
            grid.axes({"server.max_batch_size": [1], other: [2]})
    with pytest.raises(ps.InputError, match="lies in the other"):
        grid.axes({"server.memory": [{"blocks": 9}], "server.memory.blocks": [2]})
    with pytest.raises(ps.InputError, match="holds one value"):
        grid.axes({"workload.rate.low": [1]})


def test_a_grid_has_every_combination_with_every_seed_once() -> None:
    chosen = grid.axes({"server.token_budget": [128, 512], "workload.rate": "1:2:0.5"})
    points = grid.points(chosen, None, [7, 8], 0)
    assert len(points) == len({(p.values, p.seed) for p in points}) == 2 * 3 * 2
    assert [p.index for p in points] == list(range(12))


def test_a_sample_repeats_itself_and_another_seed_draws_others() -> None:
    chosen = grid.axes({"workload.rate": "1:10:log", "server.token_budget": "64:128", "server.policy": "orca,sarathi"})
    one, again, other = (grid.points(chosen, 50, [0], seed) for seed in (3, 3, 4))
    assert one == again
    assert [p.values for p in one] != [p.values for p in other]
    assert all(isinstance(p.values[1], int) for p in one)


@pytest.mark.parametrize("log", [False, True])
def test_samples_fill_a_range_evenly_or_evenly_in_logarithms(log: bool) -> None:
    drawn = np.array(Range(1.0, 100.0, log=log).draw(np.random.default_rng(0), 4_000))
    share = (np.log(drawn) / math.log(100)) if log else (drawn - 1) / 99
    counts = np.histogram(share, 10, (0, 1))[0]
    chi_square = ((counts - 400) ** 2 / 400).sum()
    assert chi_square < 27.9  # 99.9% quantile with 9 degrees of freedom


def test_whole_numbers_are_drawn_with_their_ends_as_likely_as_the_others() -> None:
    drawn = Range(1, 4, whole=True).draw(np.random.default_rng(0), 4_000)
    counts = np.bincount(drawn)[1:]
    assert counts.size == 4
    assert ((counts - 1000) ** 2 / 1000).sum() < 16.3  # 99.9% with 3 degrees of freedom


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(("low", "high", "within"), [(1.5, 4.5, {2, 3, 4}), (0.2, 3, {1, 2, 3}), (1.5, 2.5, {2})])
def test_whole_numbers_are_drawn_inside_ends_that_are_not_whole(
    low: float, high: float, within: set[int], log: bool
) -> None:
    drawn = Range(low, high, log=log, whole=True).draw(np.random.default_rng(0), 500)
    assert set(drawn) == within
    assert all(type(value) is int for value in drawn)


@pytest.mark.parametrize(
    ("low", "high", "whole", "why"),
    [
        (1.2, 1.8, True, "no whole number"),
        (1, 1e17, True, "beyond 9.0072e\\+15"),
        (-1.7e308, 1.7e308, False, "beyond 1e\\+300"),
        (1, math.inf, False, "beyond"),
        (math.nan, 1, False, "beyond"),
    ],
)
def test_a_range_from_which_nothing_can_be_drawn_is_refused(low: float, high: float, whole: bool, why: str) -> None:
    with pytest.raises(ps.InputError, match=why):
        Range(low, high, whole=whole)


def test_a_step_that_is_proposed_fits_the_field() -> None:
    with pytest.raises(ps.InputError, match=r"add one \(1:5:1\)"):
        grid.points(grid.axes({"server.token_budget": "1:5"}), None, [0], 0)


def test_a_section_is_no_field_and_one_in_it_is_proposed() -> None:
    for section, field in (("server", "server.hardware"), ("workload", "workload.trace")):
        with pytest.raises(ps.InputError, match=f"whole section.*{field}"):
            grid.axes({section: [1]})


def test_the_kind_of_field_decides_whether_whole_numbers_are_drawn() -> None:
    assert grid.axis("workload.rate", "1:10") == Range(1, 10)
    assert grid.axis("server.token_budget", "64:2048:log") == Range(64, 2048, log=True, whole=True)
    assert grid.axis("server.max_num_seqs", (1, 9)) == Range(1, 9, whole=True)


def test_a_range_to_draw_from_is_no_grid_and_too_many_points_are_refused() -> None:
    with pytest.raises(ps.InputError, match="--sample"):
        grid.points(grid.axes({"workload.rate": "1:2"}), None, [0], 0)
    many = grid.axes({"workload.rate": "1:1000:1", "server.token_budget": "1:2000:1"})
    with pytest.raises(ps.InputError, match="2,000,000 points"):
        grid.points(many, None, [0], 0)
