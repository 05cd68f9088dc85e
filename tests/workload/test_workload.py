"""What must be true of workloads: the same requests for the same seed, whatever else is asked."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import penstock as ps
from penstock.errors import InputError
from penstock.workload.arrivals import BLOCK, Poisson
from penstock.workload.lengths import Empirical, Recorded
from penstock.workload.workload import Workload

LONG = 2 * BLOCK + 1_000  # across blocks
ENDLESS = {
    "poisson": Workload.poisson(14, 129, 112),
    "deterministic": Workload.deterministic(14, ps.Geometric(129), ps.LogNormal(112, 1)),
    "gamma": Workload.gamma(14, 3, ps.Gamma(129, 1), ps.Uniform(1, 9)),
    "joint": Workload.poisson(14, Empirical([5, 6, 7], [50, 60, 70])),
    "azure-code": Workload.preset("azure-code"),
    "azure-conv": Workload.preset("azure-conv"),
}
endless = pytest.mark.parametrize("workload", ENDLESS.values(), ids=list(ENDLESS))


def columns(requests):
    return [column.tolist() for column in requests if column is not None]


@pytest.fixture
def recording():
    return Workload.from_arrays([3.0, 3.5, 5.0, 13.0], [1, 2, 3, 4], [10, 20, 30, 40])


# The same requests


@endless
def test_the_same_seed_gives_the_same_requests_and_another_seed_others(workload):
    again = workload.with_seed(workload.seed)
    assert columns(workload.requests(1_000)) == columns(again.requests(1_000))
    other = workload.with_seed(1).requests(1_000)
    assert columns(workload.requests(1_000)) != columns(other)


@endless
def test_the_first_requests_do_not_depend_on_how_many_are_asked_for(workload):
    long = workload.requests(LONG)
    for count in (1, 1_000, BLOCK, BLOCK + 1):
        assert columns(workload.requests(count)) == columns(long.first(count))


@endless
def test_changing_the_rate_leaves_the_lengths_unchanged(workload):
    before = workload.requests(LONG)
    for changed in (workload.with_rate(0.3), workload.with_rate(99, "poisson"), workload.with_rate(7, "gamma", cv=4)):
        after = changed.requests(LONG)
        assert after.prompt_tokens.tolist() == before.prompt_tokens.tolist()
        assert after.output_tokens.tolist() == before.output_tokens.tolist()


@endless
def test_changing_the_rate_stretches_the_arrivals(workload):
    before, after = workload.requests(LONG).arrival_s, workload.with_rate(workload.rate / 4).requests(LONG).arrival_s
    np.testing.assert_allclose(after, 4 * before, rtol=1e-9, atol=1e-9)


@endless
def test_requests_come_in_order_from_time_zero_with_lengths_of_at_least_1(workload):
    for requests in (workload.requests(LONG), *itertools.islice(workload.blocks(), 2)):
        assert len({column.size for column in requests if column is not None}) == 1
        assert (np.diff(requests.arrival_s) >= 0).all()
        assert min(requests.prompt_tokens.min(), requests.output_tokens.min()) >= 1
    assert workload.requests(1).arrival_s.tolist() == [0]


@endless
def test_the_means_that_theory_uses_are_those_of_the_requests(workload):
    found = workload.requests(LONG)
    for drawn, exact in ((found.prompt_tokens, workload.mean_prompt), (found.output_tokens, workload.mean_output)):
        assert drawn.mean() == pytest.approx(exact, abs=4 * stats.sem(drawn) + 1e-9)


@pytest.mark.parametrize("rate", [0.5, 14.0])
def test_poisson_arrivals_have_their_rate(rate):
    span = Workload.poisson(rate, 1, 1, seed=5).requests(100_000).arrival_s[-1]
    assert 99_999 / span == pytest.approx(rate, rel=4 / np.sqrt(99_999))


def test_prompt_and_output_do_not_follow_each_other_or_the_gaps():
    """Gamma lengths of cv 1 are exponential as the gaps are: one stream for both would give the same draws."""
    requests = Workload.poisson(3, ps.Gamma(50, 1), ps.Gamma(50, 1)).requests(100_000)
    series = [np.diff(requests.arrival_s), requests.prompt_tokens[1:], requests.output_tokens[1:]]
    for one, other in itertools.combinations(series, 2):
        assert abs(stats.spearmanr(one, other)[0]) < 4 / np.sqrt(100_000)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 2**70), st.floats(1e-3, 1e3), st.integers(1, 2_000), st.integers(1, 2_000))
def test_any_seed_rate_and_counts_give_one_stream(seed, rate, few, more):
    few, more = sorted((few, more))
    workload = Workload.poisson(rate, ps.Geometric(9), 5, seed=seed)
    assert columns(workload.requests(few)) == columns(workload.requests(more).first(few))


# Recordings


def test_a_recording_is_replayed_in_order_from_its_first_arrival(recording):
    assert recording.rows == 4
    assert columns(recording.requests(4)) == [[0, 0.5, 2, 10], [1, 2, 3, 4], [10, 20, 30, 40]]
    assert columns(recording.requests(2)) == [[0, 0.5], [1, 2], [10, 20]]
    assert (recording.rate, recording.mean_prompt, recording.mean_output) == (pytest.approx(0.3), 2.5, 25)


def test_a_long_recording_keeps_times_and_lengths_together_across_blocks():
    count = np.arange(1, LONG + 1)
    requests = Workload.from_arrays(count, count, count).requests(LONG)
    assert (requests.arrival_s == count - 1).all()
    assert (requests.prompt_tokens == count).all()
    assert (requests.output_tokens == count).all()


def test_a_scaled_recording_keeps_its_rows_and_stretches_its_pattern(recording):
    faster = recording.with_rate(3)
    assert faster.rate == pytest.approx(3)
    requests = faster.requests(4)
    np.testing.assert_allclose(requests.arrival_s, [0, 0.05, 0.2, 1], rtol=1e-12)
    assert requests.prompt_tokens.tolist() == [1, 2, 3, 4]
    assert columns(recording.with_rate(3, arrivals="scaled").requests(4)) == columns(requests)


@pytest.mark.parametrize(("arrivals", "cv"), [("poisson", None), ("deterministic", None), ("gamma", 2.0)])
def test_another_process_resamples_whole_rows_without_end(recording, arrivals, cv):
    resampled = recording.with_rate(1.2, arrivals=arrivals, cv=cv)
    assert (resampled.rows, resampled.rate, resampled.lengths.iid) == (None, 1.2, True)
    requests = resampled.requests(40_000)
    assert (requests.output_tokens == 10 * requests.prompt_tokens).all(), "pairs stay pairs"
    assert stats.chisquare(np.bincount(requests.prompt_tokens)[1:]).pvalue > 1e-3
    assert requests.arrival_s[-1] == pytest.approx(39_999 / 1.2, rel=4 * (cv or 1) / np.sqrt(39_999))


def test_more_rows_than_were_recorded_are_refused_with_the_remedy(recording):
    with pytest.raises(InputError) as caught:
        recording.requests(5)
    assert str(caught.value) == (
        "5 requests asked for, but arrays has 4 and is replayed once; ask for fewer, "
        "or resample it with arrivals 'poisson'"
    )
    assert recording.with_rate(1, "poisson").requests(5).arrival_s.size == 5


def test_lengths_without_times_need_a_rate_and_a_process():
    lengths = Workload.from_arrays(None, [1, 2], [3, 4])
    assert lengths.describe() == "arrays: lengths without arrival times"
    assert lengths.mean_prompt == 1.5
    for use in (lambda: lengths.rate, lambda: lengths.requests(1), lambda: lengths.with_rate(2)):
        with pytest.raises(InputError, match="has lengths but no arrival times; give a rate"):
            use()
    assert lengths.with_rate(2, "poisson").requests(100).arrival_s.size == 100


def test_recorded_rows_belong_to_recorded_times():
    with pytest.raises(InputError, match="recorded lengths for arrivals without end"):
        Workload(Poisson(1), Recorded([1], [1]))


def test_a_trace_becomes_a_workload_with_its_name_and_its_notices(tmp_path: Path):
    path = tmp_path / "my.trace.csv"
    path.write_text("arrival_s,prompt,output\n2,1,10\n1,2,20\n")
    workload = ps.read_trace(path, seed=3)
    assert (workload.name, workload.seed, workload.rows) == ("my", 3, 2)
    assert workload.notices == ("1 row was out of order; sorted by arrival",)
    assert columns(workload.requests(2)) == [[0, 1], [2, 1], [20, 10]]


def test_whether_lengths_are_bounded_is_known(recording):
    assert recording.bounded
    assert Workload.poisson(1, 5, ps.Geometric(9, max=99)).bounded
    assert not Workload.poisson(1, 5, ps.Geometric(9)).bounded


def test_workloads_describe_themselves(recording):
    assert recording.describe() == "arrays: recorded arrivals, replayed once"
    assert recording.with_rate(1, "gamma", cv=2.5).describe() == "arrays: gamma arrivals (cv 2.5)"


# Refusals


def refuse(make):
    with pytest.raises(InputError) as caught:
        make()
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: Workload.poisson(0, 1, 1), "the arrival rate is 0, but must be"),
        (lambda: Workload.poisson("14", 1, 1), "the arrival rate is '14', but must be a number"),
        (lambda: Workload.gamma(1, 0, 1, 1), "the cv of gamma arrivals is 0"),
        (lambda: Workload.poisson(1, "a", 1), "prompt is 'a', but must be a whole number"),
        (lambda: Workload.poisson(1, 1, 2.5), "output is 2.5, but must be a whole number"),
        (lambda: Workload.poisson(1, None, 1), "prompt is None"),
        (lambda: Workload.poisson(1, 1), "no output length given"),
        (lambda: Workload.poisson(1, Empirical([1], [1]), 5), "leave `output` out"),
        (lambda: Workload.poisson(1, 5, Empirical(np.arange(1, 99), np.arange(1, 99))), "output is Empirical("),
        (lambda: Workload.poisson(1, 1, 1, seed=-1), "the seed is -1"),
        (lambda: Workload.poisson(1, 1, 1, seed=None), "the seed is None"),
        (lambda: Workload.poisson(1, 1, 1, seed=True), "the seed is True"),
        (lambda: Workload.poisson(1, 1, 1, seed=1.0), "the seed is 1.0"),
        (lambda: Workload.poisson(1, 1, 1).with_seed("x"), "the seed is 'x'"),
        (lambda: Workload.burst(2, 1, 1, seed=-1), "the seed is -1"),
        (lambda: Workload.burst(2, 1, 1, seed=1.5), "the seed is 1.5"),
        (lambda: Workload.from_arrays([0, 1], [1], [1]), "2 arrival times for 1 requests"),
        (lambda: Workload.from_arrays([0, 1], [1, 1], [1]), "2 prompts and 1 outputs"),
        (lambda: Workload.from_arrays([[0, 1]], [1, 1], [1, 1]), "arrival_s has the shape (1, 2)"),
        (lambda: Workload.from_arrays([0, float("nan")], [1, 1], [1, 1]), "arrival_s[1] is nan"),
        (lambda: Workload.from_arrays([1, 0], [1, 1], [1, 1]), "sort by arrival"),
        (lambda: Workload.from_arrays([], [], []), "arrival_s is empty"),
        (lambda: Workload.from_arrays(None, [], []), "prompt_tokens is empty"),
        (lambda: Workload.from_arrays([0], [0], [1]), "prompt_tokens[0] is 0"),
    ],
)
def test_what_is_no_workload_is_refused_in_one_line(make, part):
    assert part in refuse(make)


@pytest.mark.parametrize("count", [0, -5, 2.5, "3", None, True, float("nan"), float("inf"), 2**41])
def test_what_is_no_number_of_requests_is_refused(count):
    message = refuse(lambda: Workload.poisson(1, 1, 1).requests(count))
    assert "the number of requests is" in message
    assert "must be a whole number from 1" in message


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"rate": 0}, "the arrival rate is 0"),
        ({"rate": None, "arrivals": "poisson"}, "the arrival rate is None"),
        ({"rate": 1, "arrivals": "poison"}, "unknown arrivals 'poison'; did you mean 'poisson'?"),
        ({"rate": 1, "arrivals": None}, "unknown arrivals None"),
        ({"rate": 1, "arrivals": "gamma"}, "gamma arrivals need a cv"),
        ({"rate": 1, "arrivals": "poisson", "cv": 2}, "no others take one"),
        ({"rate": 1, "arrivals": "gamma", "cv": "2"}, "the cv of gamma arrivals is '2'"),
    ],
)
def test_what_is_no_rate_or_process_is_refused(recording, options, part):
    assert part in refuse(lambda: recording.with_rate(**options))
