"""An order weighs the lines of a replica as its rule says, and means the same however it is named."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import penstock as ps
from penstock.kernel.signatures import BY_LINE, BY_PHASE, LINE_BATCHES, LINE_FIELDS, SPLIT
from penstock.system.orders import ORDERS, Order, order, resolve_order

# prompts, prompt tokens, decoding, m_p, m_d, next, next prompts, batches
TWO_LINES = np.array([[5, 900, 3, 30, 10, 12, 2, 7], [4, 80, 6, 100, 25, 0, 0, 7]], np.float64)

FUNCTIONS = [name for name, known in ORDERS.items() if known.function is not None]


def weights_of(name: str, lines: npt.ArrayLike = TWO_LINES, params: tuple[float, ...] = ()) -> tuple[int, list[object]]:
    mode, weights = ORDERS[name](lines, params)
    return mode, weights.tolist()


def test_priority_ranks_the_lines_as_its_parameters_list_them() -> None:
    mode, weights = ORDERS["priority"](np.zeros((3, LINE_FIELDS)), [2, 0, 1])
    assert mode == BY_LINE
    assert np.argsort(-weights[:, 0]).tolist() == [2, 0, 1]


def test_decode_first_puts_every_decode_above_every_prefill() -> None:
    mode, weights = ORDERS["decode-first"](TWO_LINES)
    assert mode == BY_PHASE
    assert weights[:, 1].min() > weights[:, 0].max()


def test_back_pressure_is_requests_less_those_of_the_next_stage_by_the_tokens_of_a_request() -> None:
    assert weights_of("back-pressure") == (BY_LINE, [[(8 - 12) / 40, 0], [10 / 125, 0]])


def test_back_pressure_by_phase_has_a_difference_for_each_phase() -> None:
    expected = [[(5 - 3) / 30, (3 - 2) / 10], [(4 - 6) / 100, 6 / 25]]
    assert weights_of("back-pressure-phase") == (BY_PHASE, expected)


def test_back_pressure_of_a_phase_without_tokens_is_0() -> None:
    lines = TWO_LINES.copy()
    lines[0, 3] = lines[1, 4] = 0
    assert weights_of("back-pressure-phase", lines) == (BY_PHASE, [[0, 1 / 10], [-2 / 100, 0]])
    lines[:, 3:5] = 0
    assert weights_of("back-pressure", lines) == (BY_LINE, [[0, 0], [0, 0]])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_order_says_whether_it_leaves_the_phases_of_a_stage_to_the_policy(name: str) -> None:
    """Theorems go by what it says."""
    mode, _ = ORDERS[name](TWO_LINES, [1, 0])
    assert ORDERS[name].whole_stages == (mode != BY_PHASE)


def test_hlpps_splits_the_budget_by_the_work_of_each_stage() -> None:
    assert weights_of("hlpps") == (SPLIT, [[8 * 40, 0], [10 * 125, 0]])


@pytest.mark.parametrize(("batches", "expected"), [(0, [0, 1, 2]), (1, [1, 2, 0]), (2, [2, 0, 1]), (7, [1, 2, 0])])
def test_round_robin_begins_each_batch_one_line_further(batches: int, expected: list[int]) -> None:
    lines = np.zeros((3, LINE_FIELDS))
    lines[:, LINE_BATCHES] = batches
    mode, weights = ORDERS["round-robin"](lines)
    assert mode == BY_LINE
    assert np.argsort(-weights[:, 0]).tolist() == expected


COUNTS = st.integers(1, 6).flatmap(
    lambda n: arrays(np.float64, (n, LINE_FIELDS), elements=st.integers(0, 1000).map(float))
)


@pytest.mark.parametrize("name", FUNCTIONS)
@given(lines=COUNTS)
def test_the_compiled_order_is_the_written_one(name: str, lines: npt.NDArray[np.float64]) -> None:
    params = np.arange(len(lines))[::-1].astype(np.float64)
    params.flags.writeable = False
    mode, weights = ORDERS[name](lines, params)
    found = np.zeros((len(lines), 2))
    assert ORDERS[name].compiled(lines, params, found) == mode
    np.testing.assert_array_equal(found, weights)


@pytest.mark.parametrize("name", FUNCTIONS)
@given(lines=COUNTS)
def test_weights_are_finite_and_shares_not_negative(name: str, lines: npt.NDArray[np.float64]) -> None:
    mode, weights = ORDERS[name](lines, np.arange(len(lines), dtype=np.float64))
    assert np.isfinite(weights).all()
    assert mode != SPLIT or weights[:, 0].min() >= 0


@pytest.mark.parametrize("name", ["back-pressure", "back-pressure-phase", "hlpps"])
@given(lines=COUNTS, factor=st.integers(2, 50))
def test_ten_times_the_requests_are_ranked_alike(name: str, lines: npt.NDArray[np.float64], factor: int) -> None:
    """Queues grow in the fluid limit, and their order must not depend on the scale."""
    more = lines.copy()
    more[:, [0, 1, 2, 5, 6]] *= factor
    weights, scaled = ORDERS[name](lines)[1], ORDERS[name](more)[1]
    np.testing.assert_allclose(scaled, factor * weights, rtol=1e-12)


def test_an_order_with_one_line_for_all_stages_has_no_function() -> None:
    assert [name for name, known in ORDERS.items() if known.single_line] == ["fcfs"]
    assert ORDERS["fcfs"].compiled is None
    with pytest.raises(ps.InputError, match="'fcfs' has a single line"):
        ORDERS["fcfs"](TWO_LINES)


def test_an_order_of_ones_own_is_none_of_penstocks_whatever_its_name() -> None:
    @ps.order(name="priority")
    def first_come(lines, params, weights):  # type: ignore[no-untyped-def]
        weights[0, 0] = lines[0, LINE_BATCHES]
        return BY_LINE

    assert Order.priority(["a.late"]).ranks_stages
    assert not first_come.ranks_stages
    stages = {"1": ps.Stage("pool", 10, 10, then="2"), "2": ps.Stage("pool", 10, 10)}
    workflow = ps.Workflow("task", ps.Workload.poisson(1, 1, 1), stages)
    network = ps.Network({"pool": ps.Pool(ps.Server(ps.Affine(1.0, 0.0), 64), order=first_come)}, [workflow])
    assert network.priorities == (None,)


def test_priority_takes_stages_by_name() -> None:
    assert Order.priority(["a.late", "a.early"]).stages == ("a.late", "a.early")
    for bad in ("a.late", 3, [1, 2], None):
        with pytest.raises(ps.InputError, match="orders stages by name"):
            Order.priority(bad)  # type: ignore[arg-type]


OWN = """
from penstock.kernel.signatures import BY_LINE, LINE_DECODING, LINE_PROMPTS


def longest(lines, params, weights):
    for line in range(lines.shape[0]):
        weights[line, 0] = lines[line, LINE_PROMPTS] + lines[line, LINE_DECODING]
    return BY_LINE


def two_arguments(lines, weights):
    return BY_LINE


def prints(lines, params, weights):
    open("file")
    return BY_LINE


def raises(lines, params, weights):
    raise ValueError("not yet written")


def half(lines, params, weights):
    return 0.5


def sometimes_half(lines, params, weights):
    return BY_LINE if lines[0, 0] > 1 else 0.5
"""


def test_an_order_of_ones_own_is_found_in_a_file_or_given_as_a_function(tmp_path: Path) -> None:
    (tmp_path / "own_order.py").write_text(OWN)
    found = resolve_order("own_order.py:longest", folder=tmp_path)
    assert found.name == "longest"
    assert found(TWO_LINES)[1][:, 0].tolist() == [8, 10]
    assert resolve_order("own_order:longest", folder=tmp_path).name == "longest"
    assert found.function is not None
    assert resolve_order(found.function)(TWO_LINES)[0] == BY_LINE
    assert resolve_order(found) is found
    assert resolve_order("hlpps") is ORDERS["hlpps"]


def test_an_order_gets_the_params_it_was_made_with() -> None:
    @order(name="weighed", params=[3, 1])
    def mine(lines, params, weights):  # type: ignore[no-untyped-def]
        for line in range(lines.shape[0]):
            weights[line, 0] = params[line]
        return 0

    assert mine.name == "weighed"
    assert mine(TWO_LINES)[1][:, 0].tolist() == [3, 1]


@pytest.mark.parametrize(
    ("choice", "complaint"),
    [
        ("hlps", "unknown order 'hlps'; did you mean 'hlpps'"),
        ("own_order:longes", "has no function 'longes'; did you mean 'longest'"),
        ("nowhere:f", "cannot import the order module 'nowhere'"),
        ("own_order:two_arguments", "takes 2 arguments (lines, weights), but an order takes 3"),
        ("own_order:prints", "order 'prints' cannot be compiled"),
        ("own_order:raises", "order 'raises' cannot be used: it never returns; an order is plain arithmetic"),
        ("own_order:half", "order 'half' cannot be used: it returns float64, no whole number; an order is plain"),
        ("own_order:sometimes_half", "order 'sometimes-half' cannot be used: it returns float64, no whole number"),
        (3, "unknown order 3; known: fcfs, priority"),
        (int, "an order is a function of lines, params, weights, not"),
    ],
)
def test_what_is_no_order_is_said_in_one_line(choice: object, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "own_order.py").write_text(OWN)
    with pytest.raises(ps.InputError) as caught:
        resolve_order(choice, folder=tmp_path)  # type: ignore[arg-type]
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_order_may_raise_on_some_states_if_it_returns_on_others() -> None:
    def careful(lines, params, weights):  # type: ignore[no-untyped-def]
        if lines[0, 0] < 0:
            raise ValueError
        return 0

    assert order(careful)(TWO_LINES)[0] == BY_LINE


def test_the_name_and_params_of_an_order_are_checked() -> None:
    def mine(lines, params, weights):  # type: ignore[no-untyped-def]
        return 0

    with pytest.raises(ps.InputError, match="order name 3: give a text"):
        order(name=3)(mine)  # type: ignore[arg-type]
    with pytest.raises(ps.InputError, match="the params of an order"):
        order(params=["a"])(mine)  # type: ignore[list-item]


@pytest.mark.parametrize("width", [LINE_FIELDS - 1, LINE_FIELDS + 1])
def test_lines_of_another_width_are_refused_and_no_others_are_made_of_them(width: int) -> None:
    with pytest.raises(ps.InputError, match=rf"'hlpps'.* each row has {LINE_FIELDS} numbers.* LINE_\.\.\."):
        ORDERS["hlpps"](np.zeros((LINE_FIELDS, width)))
