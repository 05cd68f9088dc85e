"""What must be true of batch-time models."""

import gzip
import itertools
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import InputError
from penstock.system.batch_time import MOST_TOKENS, Affine, BatchTime, Composition, Hinge, PiecewiseConstant
from penstock.system.measured_times import Measured
from penstock.system.server import Server

STEPS = PiecewiseConstant(c=11.28e-3, a=35.47e-3, b0=128)
FAMILY = [
    STEPS,
    PiecewiseConstant(c=0, a=1, b0=1),
    PiecewiseConstant(c=0.02, a=0, b0=7),
    Affine(c=0.01, a=1e-4),
    Affine(c=0, a=1e-4),
    Hinge(c=0.02, a=1e-4, b0=100.5),
    Hinge(c=0.02, a=1e-4, b0=0),
    Measured([1, 8, 100, 400, 2_000], [0.02, 0.019, 0.03, 0.2, 0.4]),
    Measured([300, 2_000], [0.02, 0.03]),
    Measured([MOST_TOKENS], [0.5]),
    Composition(Affine(c=0.01, a=1e-4), 1e-8, 2e-8),
    Composition(STEPS, cross_attention=1e-9, decode_attention=4e-8, mixed_attention=6e-8, per_request=2e-5),
]
family = pytest.mark.parametrize("model", FAMILY, ids=repr)
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def write(tmp_path):
    def write(content, name="measured.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def refuse(make, *values):
    with pytest.raises(InputError) as caught:
        make(*values)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


# Laws of the family


@family
def test_an_empty_batch_takes_no_time_and_any_other_some(model):
    seconds = model.table(2_000)
    assert seconds.shape == (2_001,)
    assert seconds[0] == 0
    assert (seconds[1:] > 0).all()


@family
def test_arrays_are_answered_element_by_element_in_their_own_shape(model):
    loads = np.array([[0, 1, 5], [128, 129, 2_000]])
    assert model(loads).tolist() == [[float(model(int(b))) for b in row] for row in loads]
    assert model(loads.astype(float)).tolist() == model(loads).tolist()
    assert model([]).shape == (0,)
    assert model(7).shape == ()
    assert model.table(2_000)[loads].tolist() == model(loads).tolist()


@family
def test_the_capacity_is_the_largest_rate_of_any_batch_within_the_budget(model):
    for budget in (1, 2, 128, 129, 400, 2_000):
        rates = [b / float(model(b)) for b in range(1, budget + 1)]
        load, rate = model.best_load(budget)
        assert rate == model.capacity(budget) == pytest.approx(max(rates), rel=1e-12)
        assert rates[load - 1] == max(rates)


@family
def test_a_rising_budget_never_lowers_the_capacity(model):
    capacities = [model.capacity(budget) for budget in range(1, 700)]
    assert (np.diff(capacities) >= 0).all()


@family
def test_models_are_values_that_compare_and_hash(model):
    assert model == eval(repr(model))
    assert len({model, eval(repr(model))}) == 1


@family
@pytest.mark.parametrize("load", [-1, [3, -0.5], float("nan"), [1, float("inf")], "7", None, True, [[1], [2, 3]], 1j])
def test_what_is_no_token_load_is_refused(model, load):
    assert "a token load is" in refuse(model, load)


@family
@pytest.mark.parametrize("budget", [0, -1, 1.5, float("nan"), float("inf"), "512", None, True, MOST_TOKENS + 1])
def test_what_is_no_token_budget_is_refused(model, budget):
    for method in (model.table, model.capacity, model.best_load):
        method(1)  # that of 1 is remembered, which is no answer for True
        assert "the token budget is" in refuse(method, budget)


# Each model


@pytest.mark.parametrize(("load", "blocks"), [(1, 1), (127, 1), (128, 1), (129, 2), (256, 2), (257, 3), (2**20, 2**13)])
def test_a_step_begins_with_the_first_token_of_a_block(load, blocks):
    assert float(STEPS(load)) == pytest.approx(11.28e-3 + 35.47e-3 * blocks, rel=1e-15)


@given(st.integers(1, 5_000), st.integers(1, 200))
def test_the_number_of_blocks_is_exact(block, count):
    model = PiecewiseConstant(c=0, a=1, b0=block)
    assert model([block * count, block * count + 1, block * (count - 1) + 1]).tolist() == [count, count + 1, count]


def test_a_budget_just_above_a_block_fills_badly_but_the_capacity_stays():
    """A batch of 129 tokens carries 1,569 tokens/s; one of 128 still carries 2,738 (DESIGN: not to be fudged)."""
    assert 128 / float(STEPS(128)) == pytest.approx(2_738, abs=0.5)
    assert 129 / float(STEPS(129)) == pytest.approx(1_569, abs=0.5)
    assert STEPS.best_load(129) == (128, pytest.approx(2_738, abs=0.5))


def test_an_affine_batch_time_is_a_straight_line():
    model = Affine(c=0.01, a=2e-4)
    assert model([1, 100, 1_000]).tolist() == pytest.approx([0.0102, 0.03, 0.21], rel=1e-15)
    assert model.best_load(1_000) == (1_000, pytest.approx(1_000 / 0.21))


def test_a_hinge_is_flat_up_to_its_bend_and_a_line_beyond():
    model = Hinge(c=0.01, a=2e-4, b0=100)
    assert model([1, 99, 100, 101, 200]).tolist() == pytest.approx([0.01, 0.01, 0.01, 0.0102, 0.03], rel=1e-15)


def test_measurements_are_joined_by_straight_lines_and_flat_below_the_first():
    model = Measured([10, 20, 40], [1.0, 2.0, 1.0])
    assert model([1, 10, 15, 20, 30, 40]).tolist() == pytest.approx([1, 1, 1.5, 2, 1.5, 1])


def test_nothing_is_guessed_beyond_the_last_measurement():
    model = Measured([10, 20], [1.0, 2.0])
    message = refuse(model, [3, 21])
    assert "a batch of 21 tokens is beyond the last measurement, 20 tokens" in message
    assert "measure further or lower the token budget" in message
    assert "beyond the last measurement" in refuse(model.capacity, 21)
    assert model.capacity(20) == 10


def test_measurements_may_be_arrays():
    model = Measured(np.array([1, 2]), np.array([0.5, 1.0]))
    assert model == Measured((1, 2), (0.5, 1.0))


NOT_SECONDS = [-1e-3, float("nan"), float("inf"), "0.01", None, True, [0.01], 1e9]


@pytest.mark.parametrize("value", NOT_SECONDS, ids=repr)
@pytest.mark.parametrize("model", [STEPS, Affine(0.01, 1e-4), Hinge(0.01, 1e-4, 100)], ids=repr)
@pytest.mark.parametrize("name", ["c", "a"])
def test_what_is_no_number_of_seconds_is_refused(model, name, value):
    message = refuse(lambda: type(model)(**{**vars(model), name: value}))
    assert message.startswith(f"{name} is ")
    assert "from 0 to 1,000,000 s" in message
    assert "give seconds, not ms" in message


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: PiecewiseConstant(1, 1, 0), "b0 is 0, but must be a whole number from 1"),
        (lambda: PiecewiseConstant(1, 1, 1.5), "b0 is 1.5"),
        (lambda: PiecewiseConstant(1, 1, None), "b0 is None"),
        (lambda: PiecewiseConstant(1, 1, float("inf")), "b0 is inf"),
        (lambda: Hinge(1, 1, -1), "b0 is -1, but must be a number from 0"),
        (lambda: Hinge(1, 1, "x"), "b0 is 'x'"),
        (lambda: PiecewiseConstant(0, 0, 128), "takes no time for one token, so its capacity is infinite"),
        (lambda: Affine(0, 0), "takes no time"),
        (lambda: Hinge(0, 1, 1), "takes no time"),
        (lambda: Measured([], []), "tokens is empty"),
        (lambda: Measured([1, 2], [1]), "2 token loads and 1 batch times"),
        (lambda: Measured([[1, 2]], [1, 2]), "has the shape (1, 2), but must have one dimension"),
        (lambda: Measured(["a"], [1]), "but must be a number, or an array of numbers"),
        (lambda: Measured([0, 1], [1, 1]), "a measured token load is 0"),
        (lambda: Measured([1, math.nan], [1, 1]), "a measured token load is nan"),
        (lambda: Measured([2, 1], [1, 1]), "must rise, but 1 follows 2"),
        (lambda: Measured([2, 2], [1, 1]), "must rise, but 2 follows 2"),
        (lambda: Measured([1, 2], [1, 0]), "the measured batch time at 2 tokens is 0"),
        (lambda: Measured([1, 2], [1, -1]), "at 2 tokens is -1"),
        (lambda: Measured([1, 2], [1, math.inf]), "at 2 tokens is inf"),
    ],
)
def test_what_is_no_model_is_refused(make, part):
    assert part in refuse(make)


def test_a_block_of_whole_tokens_may_come_as_a_float():
    assert PiecewiseConstant(1, 1, 128.0) == PiecewiseConstant(1, 1, 128)
    assert isinstance(PiecewiseConstant(1, 1, 128.0).b0, int)


# Files


@pytest.mark.parametrize(("unit", "scale"), [("seconds", 1), ("ms", 1_000), ("us", 1_000_000)])
def test_measurements_are_read_in_any_unit_and_order_beside_other_columns(write, unit, scale):
    model = Measured.read(write(f"note,{unit},tokens\nx,{3 * scale},20\ny,{scale}, 10 \n"))
    assert model == Measured((10, 20), (1, 3))


def test_repeated_measurements_are_averaged(write):
    rows = "".join(f"{load},{time}\n" for load, time in itertools.product((8, 4), (2.0, 3.0, 4.0)))
    found = Measured.read(write("tokens,ms\n" + rows))
    assert found == Measured((4, 8), (0.003, 0.003))
    (said,) = found.doubts
    assert "has 2 token loads more than once, the first of 4 tokens" in said


@pytest.mark.parametrize(("rows", "part"), [
    ("1,50\n64,40\n256,20\n", "a batch of 64 tokens takes 40 ms, and one of 1 takes 50 ms"),
    ("1,10\n64,11\n64,99\n", "has 64 tokens with 11 and with 99 ms"),
])  # fmt: skip
def test_times_that_fall_and_one_load_with_two_times_are_refused(write, rows, part):
    with pytest.raises(InputError, match=part):
        Measured.read(write("tokens,ms\n" + rows))


def test_times_may_fall_as_measurements_do(write):
    assert Measured.read(write("tokens,ms\n1,10\n64,9.2\n256,20\n")).doubts == ()


def test_compressed_files_and_json_lines_are_read_too(write):
    assert Measured.read(write(gzip.compress(b"tokens,seconds\n4,1\n"), "m.csv.gz")) == Measured([4], [1])
    assert Measured.read(write('{"tokens": 4, "seconds": 1}\n', "m.jsonl")) == Measured([4], [1])


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("", "measured.csv: is empty"),
        ("tokens,ms\n", "has no rows"),
        ("a,b\n1,2\n", "has the columns 'a, b', but batch times need tokens and seconds, ms or us"),
        ("tokens,minutes\n1,2\n", "has the columns"),
        ("ms\n1\n", "has the columns 'ms'"),
        ("tokens,ms\n1,2\n2,x\n", "line 3 has the ms 'x', which is no number from"),
        ("tokens,ms\n1,2\ny,3\n", "line 3 has the tokens 'y', which is no number from 1"),
        ("tokens,ms\n1,2\n2,\n", "line 3 has the ms None"),
        ("tokens,ms\n1,2\n2,-4\n", "line 3 has the ms '-4'"),
        ("tokens,ms\n1,2\n2,0\n", "line 3 has the ms '0'"),
        ("tokens,ms\n1,2\n2,nan\n", "line 3 has the ms 'nan'"),
        ("tokens,ms\n1,2\n2,inf\n", "line 3 has the ms 'inf'"),
        ("tokens,ms\n1,2\n0,4\n", "line 3 has the tokens '0'"),
        ("tokens,ms\n1,2\n2000000,4\n", "line 3 has the tokens '2000000'"),
        ("tokens,ms\n1,2,3\n", "line 2 has 3 fields"),
        ("tokens,ms\n1,2\n\n3,4\n", "line 3 is blank. Delete it."),
        ("tokens,ms,tokens\n1,2,3\n", "two columns called 'tokens'"),
        (b"tokens,ms\n1,\xff\n", "line 2 is not UTF-8"),
    ],
)
def test_a_file_that_holds_no_batch_times_is_refused_in_one_line(write, content, part):
    message = refuse(Measured.read, write(content))
    assert part in message
    assert ".." not in message


def test_a_missing_file_suggests_the_closest_name_and_a_directory_is_refused(tmp_path, write):
    write("tokens,ms\n1,2\n", "a100.csv")
    assert "did you mean 'a100.csv'?" in refuse(Measured.read, tmp_path / "a10.csv")
    assert "is a directory" in refuse(Measured.read, tmp_path)


@quick
@given(st.binary(max_size=200), st.sampled_from([b"", b"tokens,ms\n", b"tokens,ms\n1,2\n"]))
def test_random_bytes_give_a_model_or_one_line_and_nothing_else(write, content, head):
    refusals = []
    try:
        Measured.read(write(head + content))
    except InputError as error:
        refusals = str(error).splitlines()
    assert len(refusals) <= 1


@pytest.mark.parametrize(
    "returned",
    [0.0, -1.0, np.inf, np.nan, None, "1", [1.0], lambda tokens: 0 * tokens, lambda tokens: tokens[:-1]],
    ids=["zero", "negative", "infinite", "NaN", "None", "text", "another shape", "all zero", "one too few"],
)
def test_a_model_of_ones_own_that_returns_no_times_is_refused(returned):
    class Mine(BatchTime):
        def _seconds(self, tokens):
            return returned(tokens) if callable(returned) else returned

    assert "Mine._seconds" in refuse(lambda: Mine().table(8))


def test_times_in_two_units_are_refused(write):
    assert "seconds and ms" in refuse(Measured.read, write("tokens,seconds,ms\n1,1,1\n"))


def test_what_is_no_path_of_measurements_is_refused():
    assert "path" in refuse(Measured.read, None)


# Times by composition


tokens = st.integers(1, 5_000)
before = st.integers(0, 50_000)
seconds = st.floats(0, 1e-3)
prompts = st.lists(st.tuples(tokens, before), max_size=5)
decodes = st.lists(before, max_size=5)


@quick
@given(c=st.floats(1e-6, 1), a=st.tuples(seconds, seconds, seconds), prefill=prompts, decode=decodes)
def test_a_composition_is_the_formula_of_appendix_a(c, a, prefill, decode):
    model = Composition(Affine(c, a[0]), a[1], a[2])
    requests = [*prefill, *((1, past) for past in decode)]  # (r - l + 1, l - 1) of each request in the batch
    formula = c + sum(a[0] * n + a[1] * n * n + a[2] * n * past for n, past in requests)
    assert model.of_batch(prefill, decode) == pytest.approx(formula if requests else 0, rel=1e-9)


@quick
@given(terms=st.tuples(*[seconds] * 5), prefill=prompts, decode=decodes)
def test_no_batch_takes_less_than_its_token_load_says(terms, prefill, decode):
    model = Composition(STEPS, *terms)
    load = sum(n for n, _ in prefill) + len(decode)
    assert model.of_batch(prefill, decode) >= float(model(load)) * (1 - 1e-12)


@quick
@given(prefill=prompts, decode=decodes)
def test_without_attention_the_token_load_decides(prefill, decode):
    load = sum(n for n, _ in prefill) + len(decode)
    assert Composition(STEPS).of_batch(prefill, decode) == STEPS.of_batch(prefill, decode) == float(STEPS(load))
    assert STEPS.by_load
    assert not Composition(STEPS).by_load


def test_decodes_beside_a_prompt_have_a_cost_of_their_own():
    model = Composition(Affine(0.01, 0), decode_attention=1e-6, mixed_attention=3e-6)
    assert model.of_batch(decode=[1_000]) == pytest.approx(0.011)
    assert model.of_batch(prefill=[(10, 0)], decode=[1_000]) == pytest.approx(0.013)


def test_decodes_cost_what_prefill_does_unless_told_otherwise():
    model = Composition(Affine(0.01, 0), cross_attention=1e-6)
    assert model.of_batch(decode=[1_000]) == pytest.approx(0.011)
    assert model.of_batch(prefill=[(1, 0)], decode=[1_000]) == pytest.approx(0.011)


def test_many_batches_are_answered_at_once():
    model = Composition(STEPS, 1e-8, 2e-8, 3e-8, 4e-8, 5e-6)
    batches = [([(512, 0), (100, 40)], [7, 900]), ([], [30]), ([(64, 64)], []), ([], [])]
    sums = []
    for prefill, decode in batches:
        new = sum(n for n, _ in prefill)
        pairs = sum(n * past for n, past in prefill)
        counts = new, len(decode), len(prefill) + len(decode)
        sums.append((*counts, sum(n * n for n, _ in prefill), pairs, sum(decode)))
    assert model.of_batches(*np.array(sums).T).tolist() == [model.of_batch(p, d) for p, d in batches]


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: Composition(Composition(STEPS)), "linear layers take a time by token load"),
        (lambda: Composition(3), "linear is 3"),
        (lambda: Composition(STEPS, -1e-9), "self_attention"),
        (lambda: Composition(STEPS, None), "self_attention"),
        (lambda: Composition(STEPS, decode_attention=math.nan), "decode_attention"),
        (lambda: Composition(STEPS, per_request="1"), "per_request"),
    ],
)
def test_what_is_no_composition_is_refused(make, part):
    assert part in refuse(make)


def test_the_kernel_follows_no_composition_of_ones_own():
    class Mine(Composition):
        def of_batches(self, *sums):
            return 2 * super().of_batches(*sums)

    assert "of your own" in refuse(lambda: Server(Mine(STEPS), 512))


def test_policies_weigh_the_budgets_of_the_linear_part():
    server = Server(Composition(STEPS, self_attention=1e-12), 1024, 128, policy="pool-controlled")
    assert server.params == Server(STEPS, 1024, 128, policy="pool-controlled").params


@family
def test_a_machine_half_as_fast_takes_twice_as_long_for_any_batch(model):
    most = 8 if isinstance(model, Measured) else 300
    for prefill, decode in (([], [5, 9]), ([(most - 2, 3)], [7, 2])):
        assert model.scaled(2.0).of_batch(prefill, decode) == pytest.approx(2 * model.of_batch(prefill, decode))


@pytest.mark.parametrize(
    "batch",
    [{"decode": [-5]}, {"decode": "abc"}, {"prefill": [(1, 2, 3)]}, {"prefill": [5]}, {"prefill": [(1, math.nan)]}],
)
def test_what_is_no_batch_is_refused(batch):
    assert "must be" in refuse(lambda: Composition(STEPS).of_batch(**batch))
