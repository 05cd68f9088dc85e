"""What must be true of lengths: whole tokens, exact means, limits that hold."""

import dataclasses
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from penstock.errors import InputError
from penstock.workload.lengths import (
    BY_MEAN,
    LONGEST,
    Constant,
    Empirical,
    Gamma,
    Geometric,
    Independent,
    Length,
    LogNormal,
    Mixture,
    Recorded,
    Tabulated,
    Uniform,
)


def with_mean(kind: type[Length], limit: int | None) -> Length:
    """A distribution of this kind with what it needs."""
    needs = [field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING]
    return kind(**{name: {"mean_tokens": 300.0, "cv": 0.7}[name] for name in needs}, max=limit)


FAMILY = [
    Constant(129),
    Uniform(1, 1),
    Uniform(5, 400),
    Geometric(1),
    Geometric(112),
    Geometric(112, max=150),
    Geometric(2, max=2),
    Geometric(1e7),
    LogNormal(1.2, 2),
    LogNormal(200, 0.8),
    LogNormal(200, 2, max=300),
    LogNormal(50_000, 1.5),
    LogNormal(100_000, 1, max=150_000),
    Gamma(1, 1),
    Gamma(200, 0.5),
    Gamma(200, 3, max=1_000),
    Gamma(100_000, 1, max=150_000),
    Gamma(1e7, 1),
    Mixture((Constant(10), Geometric(100, max=300)), (3, 1)),
    Tabulated(7, np.array([1.0, 0, 3, 4])),
    *(with_mean(kind, limit) for kind in BY_MEAN.values() for limit in (None, 500)),
]
SAMPLES = 400_000
quick = settings(max_examples=60, deadline=None, derandomize=True)


@pytest.mark.parametrize("length", FAMILY, ids=repr)
def test_the_exact_mean_agrees_with_the_mean_of_a_sample(length):
    drawn = length.sample(np.random.default_rng(3), SAMPLES)
    assert drawn.mean() == pytest.approx(length.mean, abs=4 * stats.sem(drawn) + 1e-9)
    assert stats.sem(drawn) < 0.01 * length.mean


@pytest.mark.parametrize("length", FAMILY, ids=repr)
def test_lengths_are_whole_tokens_from_1_to_the_limit(length):
    drawn = length.sample(np.random.default_rng(4), SAMPLES)
    assert drawn.shape == (SAMPLES,)
    assert drawn.dtype == np.int64
    assert drawn.min() >= length.min >= 1
    assert drawn.max() <= (length.max or LONGEST)


@pytest.mark.parametrize("length", FAMILY, ids=repr)
def test_what_a_distribution_says_of_its_tail_is_what_is_drawn_and_adds_up_to_its_mean(length):
    drawn = length.sample(np.random.default_rng(6), SAMPLES)
    tokens = np.unique(np.quantile(drawn, [0, 0.01, 0.2, 0.5, 0.9, 0.999, 1])) + np.array([[0.0], [1.0]])
    chance = length.reaches(tokens.ravel())
    share = (drawn[:, None] >= tokens.ravel()).mean(axis=0)
    assert share == pytest.approx(chance, abs=5 * 0.5 / math.sqrt(SAMPLES))
    if length.max is not None:
        assert length.reaches(np.arange(1.0, length.max + 2)).sum() == pytest.approx(length.mean, rel=1e-9)


def test_the_smallest_value_of_each_distribution_is_known():
    assert (Constant(129).min, Uniform(5, 400).min, Tabulated(7, np.array([1.0, 0, 3])).min) == (129, 5, 7)
    assert [length.min for length in (Geometric(112), LogNormal(200, 0.8), Gamma(200, 0.5))] == [1, 1, 1]
    assert Mixture((Constant(10), Uniform(4, 20)), (3, 1)).min == 4


@pytest.mark.parametrize("length", FAMILY, ids=repr)
def test_the_same_generator_state_gives_the_same_lengths(length):
    first, again = (length.sample(np.random.default_rng(5), 1_000).tolist() for _ in range(2))
    assert first == again


def test_an_unbounded_distribution_says_so_and_is_cut_only_at_the_longest_length():
    assert Geometric(1e7).max is None
    assert Geometric(1e7).mean == pytest.approx(1e7 * (1 - math.exp(-LONGEST / 1e7)), rel=1e-6)
    assert Geometric(1e7).sample(np.random.default_rng(0), 1_000).max() == LONGEST
    assert Mixture([Constant(3), Geometric(9)], [1, 1]).max is None
    assert Mixture([Constant(3), Geometric(7, max=9)], [1, 1]).max == 9


def test_weights_of_any_size_are_scaled_to_shares():
    assert Mixture([Constant(2), Constant(4)], [1.5e308, 1.5e308]).mean == 3
    assert Tabulated(2, np.array([5e-324, 0, 5e-324])).mean == 3


# Exact means, by another way


def by_summation(law, limit):
    """E[min(N, limit)] of the rounded law, the sum of P(N >= n), from SciPy's own distribution."""
    return 1 + law.sf(np.arange(2, limit + 1) - 0.5).sum()


def lognormal(mean, cv):
    sigma = math.sqrt(math.log1p(cv**2))
    return stats.lognorm(s=sigma, scale=mean * math.exp(-(sigma**2) / 2))


def gamma(mean, cv):
    return stats.gamma(1 / cv**2, scale=mean * cv**2)


@quick
@given(st.floats(1, 1e4), st.floats(0.05, 5), st.integers(1, 5_000))
def test_means_of_rounded_and_cut_distributions_are_exact(mean, cv, limit):
    limit += math.ceil(mean)
    assert LogNormal(mean, cv, max=limit).mean == pytest.approx(by_summation(lognormal(mean, cv), limit), rel=1e-9)
    assert Gamma(mean, cv, max=limit).mean == pytest.approx(by_summation(gamma(mean, cv), limit), rel=1e-9)


@pytest.mark.parametrize("cv", [0.001, 0.01, 1, 3])
def test_means_stay_exact_where_the_far_tail_is_integrated(cv):
    """Terms beyond 2^16 come from an integral; here up to 200,000 of them are summed instead."""
    for mean in (60_000, 66_000, 150_000):
        assert LogNormal(mean, cv, max=200_000).mean == pytest.approx(
            by_summation(lognormal(mean, cv), 200_000), rel=1e-9
        )
        assert Gamma(mean, cv, max=200_000).mean == pytest.approx(by_summation(gamma(mean, cv), 200_000), rel=1e-9)


@quick
@given(st.floats(1, 1e4), st.integers(1, 2_000))
def test_the_mean_of_a_cut_geometric_is_the_sum_of_its_tail(mean, limit):
    limit += math.ceil(mean)
    tail = (1 - 1 / mean) ** np.arange(limit)
    assert Geometric(mean, max=limit).mean == pytest.approx(tail.sum(), rel=1e-9)


@quick
@given(st.floats(1, 1e5), st.floats(0.01, 3), st.integers(1, 10**5), st.integers(1, 10**5))
def test_a_lower_limit_never_raises_the_mean(mean, cv, one, other):
    low, high = sorted(limit + math.ceil(mean) for limit in (one, other))
    for length in (LogNormal(mean, cv, low), Gamma(mean, cv, low), Geometric(mean, low)):
        higher = type(length)(*([mean, cv, high] if not isinstance(length, Geometric) else [mean, high]))
        assert 1 - 1e-12 <= length.mean <= min(higher.mean, low) * (1 + 1e-12)


def test_a_long_lognormal_has_the_mean_asked_for_since_rounding_hardly_matters():
    assert LogNormal(2_000, 0.9).mean == pytest.approx(2_000, rel=1e-6)
    assert Gamma(2_000, 0.9).mean == pytest.approx(2_000, rel=1e-3)


# Shapes


def test_a_sample_is_distributed_as_the_rounded_law():
    for length, law in ((LogNormal(300, 0.7), lognormal(300, 0.7)), (Gamma(300, 0.7), gamma(300, 0.7))):
        drawn = length.sample(np.random.default_rng(6), 50_000)
        for share in (0.05, 0.5, 0.95):
            below = np.mean(drawn <= round(law.ppf(share)))
            exact = law.cdf(round(law.ppf(share)) + 0.5)
            assert below == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 50_000))


def test_every_value_of_a_uniform_length_is_as_likely_as_the_others():
    counts = np.bincount(Uniform(3, 12).sample(np.random.default_rng(0), 50_000))[3:]
    assert counts.size == 10
    assert stats.chisquare(counts).pvalue > 1e-3


def test_a_mixture_takes_each_part_as_often_as_its_weight():
    drawn = Mixture([Constant(1), Constant(2), Constant(3)], [2, 0, 6]).sample(np.random.default_rng(0), SAMPLES)
    shares = np.bincount(drawn, minlength=4)[1:] / SAMPLES
    assert shares[1] == 0
    assert shares[0] == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / SAMPLES))


def test_a_tabulated_length_takes_the_values_of_its_table_only():
    length = Tabulated(7, np.array([1.0, 0, 3, 4]))
    assert (length.max, length.mean) == (10, pytest.approx((7 + 3 * 9 + 4 * 10) / 8))
    shares = np.bincount(length.sample(np.random.default_rng(0), SAMPLES), minlength=11)[7:] / SAMPLES
    assert shares[1] == 0
    assert shares[2] == pytest.approx(3 / 8, abs=4 * math.sqrt(15 / 64 / SAMPLES))


def test_a_quantile_is_the_smallest_length_whose_share_reaches_it():
    quantiles = Tabulated(1, np.array([1.0, 1, 2])).quantile(np.array([0.1, 0.25, 0.26, 0.5, 0.51, 1.0]))
    assert quantiles.tolist() == [1, 1, 2, 2, 3, 3]


# Prompt and output together


def test_prompt_and_output_drawn_apart_have_the_means_and_limits_of_their_parts():
    both = Independent(Geometric(50), Uniform(1, 9))
    assert (both.mean_prompt, both.mean_output) == (pytest.approx(50), 5)
    assert (both.max_prompt, both.max_output) == (None, 9)
    assert (Independent(Constant(7), Uniform(3, 9)).min_prompt, both.min_prompt, both.min_output) == (7, 1, 1)
    prompt, output = both.sample(np.random.default_rng(0), 100_000)
    assert abs(np.corrcoef(prompt, output)[0, 1]) < 4 / math.sqrt(100_000)


@pytest.mark.parametrize("correlation", [-0.9, -0.3, 0.5, 1])
def test_a_copula_gives_the_rank_correlation_of_a_gaussian_pair_and_leaves_the_margins(correlation):
    fine = Tabulated(1, np.ones(5_000))
    prompt, output = Independent(fine, fine, correlation).sample(np.random.default_rng(1), 100_000)
    exact = 6 / math.pi * math.asin(correlation / 2)  # Spearman's, Kruskal 1958
    assert stats.spearmanr(prompt, output)[0] == pytest.approx(exact, abs=4 / math.sqrt(100_000))
    for drawn in (prompt, output):
        assert drawn.mean() == pytest.approx(fine.mean, abs=4 * stats.sem(drawn))


def test_recorded_pairs_stay_pairs_when_they_are_drawn():
    rows = Empirical([1, 2, 3, 4], [10, 20, 30, 40])
    prompt, output = rows.sample(np.random.default_rng(0), 1_000)
    assert (output == 10 * prompt).all()
    assert stats.chisquare(np.bincount(prompt)[1:]).pvalue > 1e-3
    assert (rows.mean_prompt, rows.mean_output, rows.max_prompt, rows.max_output) == (2.5, 25, 4, 40)
    assert (rows.min_prompt, rows.min_output) == (1, 10)
    assert rows.iid
    assert not Recorded([1], [1]).iid


def test_whole_numbers_may_come_as_floats_and_lists():
    assert Constant(129.0).max == 129
    assert isinstance(Uniform(1.0, 3.0).max, int)
    assert Empirical([1.0, 2.0], np.array([3, 4], np.uint8)).prompt_tokens.dtype == np.int64


# Refusals

NOT_TOKENS = ["9", None, True, np.bool_(True), [9], 0, -1, 1.5, float("nan"), float("inf"), LONGEST + 1, 10**400]
NOT_MEANS = ["9", None, False, 0, 0.5, -1, float("nan"), float("inf"), LONGEST + 1]
NOT_CVS = ["1", None, True, 0, 1e-200, -1, float("nan"), float("inf"), 1e6]


def refuse(make, *values):
    with pytest.raises(InputError) as caught:
        make(*values)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


@pytest.mark.parametrize("value", NOT_TOKENS, ids=repr)
@pytest.mark.parametrize(
    "make",
    [
        Constant, lambda low: Uniform(low, 9), lambda high: Uniform(1, high), lambda low: Tabulated(low, [1.0]),
        lambda limit: Geometric(5, limit or 0), lambda limit: LogNormal(5, 1, limit or 0),
        lambda limit: Gamma(5, 1, limit or 0),
    ],
)  # fmt: skip
def test_what_is_no_whole_number_of_tokens_is_refused(make, value):
    assert "but must be a whole number from 1 to 16,777,215 tokens" in refuse(make, value)


@pytest.mark.parametrize("value", NOT_MEANS, ids=repr)
@pytest.mark.parametrize("make", [Geometric, lambda mean: LogNormal(mean, 1), lambda mean: Gamma(mean, 1)])
def test_what_is_no_mean_is_refused(make, value):
    assert f"is {value!r}, but must be a number from 1 to 16,777,215 tokens" in refuse(make, value)


@pytest.mark.parametrize("value", NOT_CVS, ids=repr)
@pytest.mark.parametrize("make", [LogNormal, Gamma])
def test_what_is_no_cv_is_refused(make, value):
    assert "but must be a number from 0.001 to 10" in refuse(make, 100, value)


@pytest.mark.parametrize(
    ("make", "values", "part"),
    [
        (Uniform, (5, 4), "ends below where it begins"),
        (Mixture, ([], []), "mixture weights is empty"),
        (Mixture, ([Constant(1)], [0.5, 0.5]), "1 parts with 2 weights"),
        (Mixture, ([Constant(1)], [0]), "are all 0"),
        (Mixture, ([Constant(1)], [-1]), "mixture weights[0] is -1.0"),
        (Mixture, ([Constant(1)], [math.nan]), "mixture weights[0] is nan"),
        (Mixture, ([Constant(1)], ["a"]), "but must be a number, or an array of numbers"),
        (Mixture, ([100], [1]), "a part of a mixture is 100"),
        (Tabulated, (1, []), "probabilities is empty"),
        (Tabulated, (1, [1, -1]), "probabilities[1] is -1.0"),
        (Tabulated, (1, [1, math.inf]), "probabilities[1] is inf"),
        (Tabulated, (LONGEST, [1, 1]), "the largest tabulated length is 16777216"),
        (Independent, (Constant(1), 5), "output is 5, but must be a distribution"),
        (Independent, (Constant(1), Constant(1), 0.5), "only tabulated prompts and outputs can be joined"),
        (Independent, (Tabulated(1, [1]), Tabulated(1, [1]), 1.5), "the correlation is 1.5, but must be"),
        (Empirical, ([], []), "prompt_tokens is empty"),
        (Empirical, ([1, 2], [1]), "2 prompts and 1 outputs"),
        (Empirical, ([[1, 2]], [1, 2]), "prompt_tokens has the shape (1, 2), but must have one dimension"),
        (Empirical, ([1, 2], [1, 0]), "output_tokens[1] is 0"),
        (Empirical, ([1, math.nan], [1, 1]), "prompt_tokens[1] is nan"),
        (Empirical, ([1, 2.5], [1, 1]), "prompt_tokens[1] is 2.5"),
        (Empirical, ([1, LONGEST + 1], [1, 1]), "from 1 to 16,777,215 tokens"),
        (Empirical, ([1, None], [1, 1]), "prompt_tokens is [1, None]"),
        (Empirical, ([True], [1]), "prompt_tokens is [True]"),
        (Empirical, (["a"], [1]), "but must be a number, or an array of numbers"),
    ],
)
def test_what_is_no_distribution_is_refused(make, values, part):
    assert part in refuse(make, *values)


@pytest.mark.parametrize("parts", [None, 5])
def test_a_mixture_needs_a_list_of_parts(parts):
    assert "give a list" in refuse(Mixture, parts, [1])


def test_a_span_of_time_and_a_giant_integer_are_no_numbers_of_tokens():
    assert "1" in refuse(Constant, np.timedelta64(1, "s"))
    assert "bits" in refuse(Constant, 10**5000)


def test_a_mean_does_not_depend_on_the_threads_of_blas() -> None:
    """A mean one bit off can make another backlog decide a verdict, and so change what is printed."""
    code = "from penstock.workload.workload import Workload; print(Workload.preset('azure-conv').mean_prompt.hex())"
    means = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "OPENBLAS_NUM_THREADS": threads},
            capture_output=True,
            check=True,
        ).stdout
        for threads in ("1", "2")
    }
    assert len(means) == 1


@pytest.mark.parametrize("cut", [
    lambda: LogNormal(10_000, 1.5, 1_000), lambda: Gamma(1_001, 1, 1_000), lambda: Geometric(1_000.5, 1_000),
])  # fmt: skip
def test_a_max_below_the_mean_is_refused(cut):
    message = refuse(cut)
    assert "the max of a length is 1,000 tokens, below its mean of" in message


@pytest.mark.parametrize("percent", [11, 150])
def test_a_percentage_is_no_cv(percent):
    assert "no percentage" in refuse(LogNormal, 100, percent)
