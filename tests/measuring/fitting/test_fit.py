"""A fit finds the parameters that made the batches, says how sure it is, and which family they come from."""

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InputError
from penstock.measuring.fitting.batches import MeasuredBatches, joined
from penstock.measuring.fitting.choose import choose
from penstock.measuring.fitting.fit import fit
from penstock.measuring.fitting.relative_errors import seconds_of
from penstock.system.batch_time import Affine, BatchTime, Composition, Hinge, PiecewiseConstant
from penstock.system.batch_time_file import read_batch_time, write_batch_time
from penstock.system.measured_times import Measured

AFFINE, HINGE = Affine(c=9e-3, a=7e-5), Hinge(c=12e-3, a=9e-5, b0=200)
STEPS = PiecewiseConstant(c=11.28e-3, a=35.47e-3, b0=128)
COMPOSED = Composition(AFFINE, 1e-8, 2.5e-8, 3e-8, 5e-8, 2e-5, 2e-3)


def batches(model: BatchTime, count: int, seed: int, noise: float = 0.0, outliers: float = 0.0) -> MeasuredBatches:
    """Return batches as an engine forms them, with relative noise, some of them several times too long."""
    rng = np.random.default_rng(seed)
    prompts = rng.binomial(2, 0.3, count)
    new = prompts * rng.integers(1, 400, count)
    before = prompts * rng.integers(0, 2_000, count)
    decodes = rng.integers(1, 200, count)
    columns = {
        "tokens": new + decodes,
        "prefill_tokens": new,
        "decode_tokens": decodes,
        "requests": prompts + decodes,
        "squares": new**2 / np.maximum(prompts, 1),
        "pairs": new * before / np.maximum(prompts, 1),
        "context": decodes * rng.integers(100, 3_000, count),
    }
    seconds = seconds_of(model, MeasuredBatches(np.ones(count), **columns))
    seconds = seconds * np.maximum(1 + noise * rng.standard_normal(count), 0.1)
    seconds = np.where(rng.random(count) < outliers, seconds * rng.uniform(1.5, 5, count), seconds)
    return MeasuredBatches(seconds, **columns)


def by_load(model: BatchTime, tokens: npt.ArrayLike) -> MeasuredBatches:
    return MeasuredBatches(model(tokens), np.asarray(tokens))


FAMILIES = {"affine": AFFINE, "hinge": HINGE, "steps": STEPS, "composition-affine": COMPOSED}


def same(found: BatchTime, planted: BatchTime, rtol: float) -> bool:
    """Say whether every parameter is the planted one."""
    if isinstance(found, Composition):
        assert isinstance(planted, Composition)
        ours = (found.self_attention, found.cross_attention, *found.of_decodes, found.per_request, found.with_prefill)
        theirs = (
            planted.self_attention,
            planted.cross_attention,
            *planted.of_decodes,
            planted.per_request,
            planted.with_prefill,
        )
        return same(found.linear, planted.linear, rtol) and np.allclose(ours, theirs, rtol=rtol)
    assert type(found) is type(planted)
    return np.allclose(list(vars(found).values()), list(vars(planted).values()), rtol=rtol)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("outliers", [0.0, 0.1])
def test_clean_batches_give_back_every_parameter_with_and_without_outliers(name: str, outliers: float) -> None:
    found = fit(batches(FAMILIES[name], 400, seed=1, outliers=outliers), name)
    assert same(found.model, FAMILIES[name], rtol=1e-5)
    assert found.outliers.mean() == pytest.approx(outliers, abs=0.03)
    assert found.r2_without_outliers > 1 - 1e-9


@settings(max_examples=15, deadline=None)
@given(c=st.floats(1e-4, 0.1), a=st.floats(1e-6, 1e-3), seed=st.integers(0, 100))
def test_any_affine_time_is_found_exactly(c: float, a: float, seed: int) -> None:
    found = fit(batches(Affine(c, a), 60, seed), "affine")
    assert same(found.model, Affine(c, a), rtol=1e-5)


@pytest.mark.parametrize("b0", [16, 48, 100, 128, 256])
@pytest.mark.parametrize("family", ["steps", "hinge"])
def test_a_planted_step_width_or_bend_is_found_among_noise_and_outliers(b0: int, family: str) -> None:
    planted = PiecewiseConstant(5e-3, b0 * 1e-4, b0) if family == "steps" else Hinge(12e-3, 9e-5, b0)
    found = fit(batches(planted, 800, seed=b0, noise=0.02, outliers=0.1), family)
    value, low, high = found.parameters["b0"]
    assert low <= b0 <= high
    assert value == pytest.approx(b0, rel=0.01 if family == "steps" else 0.2)


def test_of_step_widths_that_fit_as_well_the_one_of_the_tiling_is_taken() -> None:
    """Loads that are multiples of 32 cannot tell a width of 128 from one of 130."""
    found = fit(by_load(STEPS, np.repeat(np.arange(32, 385, 32), 3)), "steps")
    value, low, high = found.parameters["b0"]
    assert value == 128
    assert low <= 128 < high


@pytest.mark.parametrize("name", ["affine", "composition-affine"])
def test_intervals_hold_the_planted_values_as_often_as_they_say_with_a_tenth_of_outliers(name: str) -> None:
    """40 seeds, so the share of 95% intervals that hold has a standard error of 3.4%, less over several parameters."""
    planted = FAMILIES[name]
    true = {"c": AFFINE.c, "a": AFFINE.a}
    if isinstance(planted, Composition):
        costs = ("self_attention", "cross_attention", "decode_attention", "mixed_attention", "per_request")
        true |= {cost: getattr(planted, cost) for cost in (*costs, "with_prefill")}
    found = [fit(batches(planted, 300, seed, noise=0.05, outliers=0.1), name).parameters for seed in range(40)]
    held = [low <= true[cost] <= high for one in found for cost, (_, low, high) in one.items()]
    assert np.mean(held) >= 0.87
    for cost in true:
        values, low, high = np.array([one[cost] for one in found]).T
        spread = np.ptp(np.quantile(values, [0.1, 0.9])) / 2.56  # standard deviations from the middle 80%
        assert 0.6 < np.median(high - low) / (4 * spread) < 1.5, cost


@pytest.mark.parametrize("name", FAMILIES)
def test_cross_validation_finds_the_family_that_made_the_batches(name: str) -> None:
    found = fit(batches(FAMILIES[name], 500, seed=3, noise=0.03, outliers=0.05))
    assert found.name == name
    assert [one.chosen for one in found.candidates].count(True) == 1
    assert len(found.candidates) == 8


def test_a_table_is_chosen_where_no_formula_holds() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.choice([1, 8, 32, 64, 128, 256, 512], 500)
    odd = Measured([1, 8, 32, 64, 128, 256, 512], [5e-3, 5.1e-3, 9e-3, 9.2e-3, 20e-3, 21e-3, 60e-3])
    seconds = odd(tokens) * (1 + 0.02 * rng.standard_normal(500))
    found = fit(MeasuredBatches(seconds, tokens))
    assert found.name == "table"
    assert np.allclose(found.model([1, 32, 512]), odd([1, 32, 512]), rtol=0.01)


def test_the_mean_is_fitted_and_not_the_median_or_what_is_short() -> None:
    """Noise that is skewed, but has no outliers: predicted and measured seconds agree in sum."""
    rng = np.random.default_rng(5)
    exact = batches(AFFINE, 4_000, seed=5)
    noisy = MeasuredBatches(exact.seconds * rng.gamma(25, 1 / 25, 4_000), exact.tokens)
    assert fit(noisy, "affine").bias == pytest.approx(0, abs=0.01)


def test_a_few_batches_of_a_kind_are_no_outliers_because_the_model_is_wrong_for_them() -> None:
    """Five prefills among 400 decodes, three times what a line through the decodes says."""
    decodes, prefills = np.tile(np.arange(1, 101), 4), np.arange(400, 405)
    tokens = np.concatenate((decodes, prefills))
    seconds = np.where(tokens < 200, 0.01 + 1e-5 * tokens, 0.04)
    found = fit(MeasuredBatches(seconds, tokens), "affine")
    assert not found.outliers[-5:].any()


@pytest.mark.parametrize("name", ["affine", "hinge", "steps", "table", "composition-affine", "composition-table"])
def test_the_model_says_what_the_fit_predicts(name: str) -> None:
    measured = batches(COMPOSED, 300, seed=2, noise=0.05)
    found = fit(measured, name)
    assert np.allclose(seconds_of(found.model, measured), found.predicted, rtol=1e-9)


def mixture(extra: float, share: float, seed: int = 0, **known: bool) -> MeasuredBatches:
    """Return decodes among which some batches hold a short prompt, too, and take ``extra`` seconds more for it."""
    rng = np.random.default_rng(seed)
    beside = rng.random(3_000) < share
    decodes = rng.integers(1, 200, 3_000)
    new = np.where(beside, rng.integers(10, 120, 3_000), 0)
    context = decodes * rng.integers(200, 1_500, 3_000)
    seconds = 0.008 + 3e-5 * (new + decodes) + 3e-8 * context + extra * beside
    seconds = seconds * (1 + 0.015 * rng.standard_normal(3_000))
    if known:
        return MeasuredBatches(seconds, new + decodes, new)
    return MeasuredBatches(seconds, new + decodes, new, decodes, decodes + beside, new**2, 0 * new, context)


@pytest.mark.parametrize("share", [0.03, 0.08, 0.15])
def test_what_a_batch_with_a_prompt_takes_beside_is_found_and_none_is_left_out_for_it(share: float) -> None:
    """CUDA graphs hold decodes alone: 6 ms more are no stalls, and nothing that attention costs."""
    measured = mixture(6e-3, share)
    found = fit(measured, "composition-affine")
    beside = measured.prefill_tokens > 0  # type: ignore[operator]
    assert found.outliers[beside].mean() < 0.01
    assert found.errors[beside].mean() == pytest.approx(0, abs=0.01)
    value, low, high = found.parameters["with_prefill"]
    assert low <= value <= high
    assert value == pytest.approx(6e-3, rel=0.03)
    assert found.parameters["self_attention"][0] < 5e-8  # 6 ms would be 4e-7


def test_batches_with_prompts_are_no_outliers_of_decodes_even_where_the_model_has_no_term_for_them() -> None:
    measured = mixture(6e-3, 0.08, only_tokens=True)
    found = fit(measured, "affine")
    beside = measured.prefill_tokens > 0  # type: ignore[operator]
    assert found.outliers[beside].mean() < 0.01
    assert abs(found.bias) < 0.01


def test_stalls_are_found_among_prompts_and_among_decodes() -> None:
    exact = mixture(6e-3, 0.15)
    stalled = np.arange(3_000) % 25 == 0
    found = fit(dataclasses.replace(exact, seconds=exact.seconds * np.where(stalled, 3, 1)), "composition-affine")
    assert (found.outliers == stalled).mean() > 0.998


def test_where_batches_with_prompts_are_left_out_for_the_most_part_it_is_said() -> None:
    """Half of those with prompts stall."""
    exact = mixture(6e-3, 0.1)
    stalled = (exact.prefill_tokens > 0) & (np.arange(3_000) % 3 == 0)  # type: ignore[operator]
    found = fit(dataclasses.replace(exact, seconds=exact.seconds * np.where(stalled, 4, 1)), "composition-affine")
    assert any("of the batches with prefill were left out" in said for said in found.warnings)
    assert not any("with prefill were left out" in said for said in fit(exact, "composition-affine").warnings)


def test_seconds_that_the_model_lacks_are_the_first_warning_and_stand_in_the_file() -> None:
    """5% of the batches five times as long: a fifth more time in all, whatever the model says."""
    exact = batches(AFFINE, 2_000, seed=1, noise=0.03)
    stalled = np.arange(2_000) % 20 == 0
    found = fit(dataclasses.replace(exact, seconds=exact.seconds * np.where(stalled, 5, 1)), "affine")
    longer = 1 / (1 + found.bias) - 1
    assert longer == pytest.approx(0.2, abs=0.03)
    assert found.warnings[0].startswith(f"all batches together took {longer:.1%} longer")
    assert found.as_file().fit["warnings"][0] == found.warnings[0]
    assert not any("together took" in said for said in fit(exact, "affine").warnings)


def test_noise_is_no_fall_of_times_with_load() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        tokens = rng.integers(1, 500, 1_000)
        seconds = AFFINE(tokens) * (1 + 0.1 * rng.standard_normal(1_000))
        assert not any("less time" in said for said in fit(MeasuredBatches(seconds, tokens), "affine").warnings)


def test_up_to_which_lengths_attention_was_measured_is_said() -> None:
    found = fit(mixture(0.0, 0.1), "composition-affine")
    (said,) = (said for said in found.warnings if said.startswith("attention was measured"))
    assert "119 tokens of a prompt at once, 1,499 tokens before a decode" in said
    assert not any(said.startswith("attention") for said in fit(mixture(0.0, 0.1), "affine").warnings)


def test_medians_of_a_profile_have_no_outliers() -> None:
    """Steps of a kernel's tiling are what the times are."""
    tokens = np.arange(1, 200)
    jumps = AFFINE(tokens) * np.where(tokens % 24 == 0, 1.3, 1)
    assert fit(MeasuredBatches(jumps, tokens), "affine").outliers.any()
    assert not fit(MeasuredBatches(jumps, tokens, averaged=True), "affine").outliers.any()


def test_of_prefill_and_decode_tokens_one_gives_the_other_and_the_model_says_what_is_predicted() -> None:
    whole = batches(COMPOSED, 300, seed=2)
    for name in ("prefill_tokens", "decode_tokens"):
        part = dataclasses.replace(whole, **{name: None})
        assert np.allclose(getattr(part, name), getattr(whole, name))
        found = fit(part, "composition-affine")
        assert np.allclose(seconds_of(found.model, part), found.predicted, rtol=1e-9)


def test_terms_that_cannot_be_told_apart_are_left_out_and_named() -> None:
    """In decodes alone every request is a token."""
    rng = np.random.default_rng(0)
    decodes = rng.integers(1, 200, 300)
    context = decodes * rng.integers(100, 3_000, 300)
    none = np.zeros(300)
    seconds = 0.01 + 5e-5 * decodes + 3e-8 * context
    measured = MeasuredBatches(seconds, decodes, none, decodes, decodes, none, none, context)
    found = fit(measured, "composition-affine")
    assert set(found.parameters) == {"c", "a", "decode_attention"}
    assert found.parameters["decode_attention"][0] == pytest.approx(3e-8, rel=1e-6)
    assert any(said.startswith("The cost of a request is left out: it cannot be told") for said in found.warnings)
    assert any("no batch has any" in said for said in found.warnings)


def test_a_few_decodes_beside_prefill_cost_what_others_do() -> None:
    """Six such batches cannot tell a cost of their own, but their context is not free."""
    rng = np.random.default_rng(0)
    new = np.where(np.arange(300) < 6, 50, 0)
    decodes = rng.integers(1, 200, 300)
    context = decodes * rng.integers(100, 3_000, 300)
    seconds = 0.01 + 5e-5 * (new + decodes) + 3e-8 * context
    found = fit(MeasuredBatches(seconds, new + decodes, new, decodes, context=context), "composition-affine")
    assert set(found.parameters) == {"c", "a", "decode_attention"}
    assert found.parameters["decode_attention"][0] == pytest.approx(3e-8, rel=1e-6)


def test_any_batches_give_a_model_that_says_what_is_predicted_or_one_line() -> None:
    """And most give a model."""
    assert sum(gives_a_model(seed) for seed in range(12)) >= 8


def gives_a_model(seed: int) -> bool:
    rng = np.random.default_rng(seed)
    count = int(rng.choice([5, 9, 30, 100]))
    new = np.where(rng.random(count) < 0.3, rng.integers(1, int(rng.choice([2, 50, 5_000])), count), 0)
    decodes = rng.integers(0, int(rng.choice([2, 50, 500])), count) + (new == 0)
    seconds = [np.ones(count), rng.exponential(1, count) + 1e-3, 1 / (new + decodes), rng.choice([1e-3, 1e3], count)]
    context = decodes * rng.integers(0, 2_000, count)
    columns = (new, decodes, decodes + (new > 0), new**2, new * rng.integers(0, 900, count), context)
    measured = MeasuredBatches(seconds[seed % 4] * 10.0 ** rng.uniform(-6, 2), new + decodes, *columns)
    name = ["composition-affine", "composition-hinge", "composition-steps", "composition-table", "hinge", "table"]
    try:
        found = fit(measured, name[seed % 6])
    except InputError as error:
        said = str(error)
    else:
        said = ""
    assert "\n" not in said
    if said:
        return False
    assert np.allclose(seconds_of(found.model, measured), found.predicted, rtol=1e-6)
    assert all(0 <= low <= value <= high for value, low, high in found.parameters.values())
    return True


def test_times_that_fall_give_no_negative_cost_but_a_warning() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 500, 400)
    found = fit(MeasuredBatches(0.03 - 2e-5 * tokens, tokens), "affine")
    assert found.parameters["a"][0] == 0
    assert any("less time" in said for said in found.warnings)
    assert found.warnings[0].startswith("a token costs nothing")


def test_what_was_measured_and_what_is_extrapolated_is_said() -> None:
    found = fit(batches(AFFINE, 100, seed=0), "affine")
    tokens = found.batches.tokens
    expected = f"batches of {tokens.min():,.0f} to {tokens.max():,.0f} tokens were measured"
    assert any(said.startswith(expected) for said in found.warnings)
    assert any("few" in said for said in fit(batches(AFFINE, 15, seed=0), "affine").warnings)


def test_the_same_seed_gives_the_same_fit() -> None:
    measured = batches(COMPOSED, 200, seed=4, noise=0.05)
    assert (
        fit(measured, "composition-affine", seed=7).as_dict() == fit(measured, "composition-affine", seed=7).as_dict()
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_a_batch_time_file_gives_back_the_model_and_how_well_it_fits(name: str, tmp_path) -> None:
    found = fit(batches(FAMILIES[name], 200, seed=1, noise=0.02), name)
    write_batch_time(tmp_path / "fitted.yaml", found.as_file("a model on a machine"))
    again = read_batch_time(tmp_path / "fitted.yaml")
    assert same(again.batch_time, found.model, rtol=1e-12)
    assert again.description == "a model on a machine"
    assert again.source == found.batches.source
    assert again.fit["r2"] == found.r2


def test_batches_held_out_are_neighbours_in_time_but_dealt_out_in_a_sweep() -> None:
    run = batches(AFFINE, 100, seed=0)
    assert not run.is_sweep
    assert all((np.diff(block) == 1).all() for block in run.blocks(5))
    sweep = by_load(AFFINE, np.arange(1, 101))
    nested = by_load(AFFINE, np.tile(2 ** np.arange(8), 12))
    chosen = dataclasses.replace(run, sweep=True)
    for measured in (sweep, nested, chosen):
        assert measured.is_sweep
        assert all(block.max() - block.min() > 50 for block in measured.blocks(5))
    assert not dataclasses.replace(sweep, sweep=False).is_sweep
    for measured in (run, sweep):
        assert sorted(np.concatenate(measured.blocks(5)).tolist()) == list(range(100))


def test_files_put_together_keep_what_all_of_them_know() -> None:
    known, loads = batches(AFFINE, 50, seed=0), by_load(AFFINE, [1, 2, 3])
    both = joined([known, loads])
    assert len(both) == 53
    assert both.context is None
    assert both.tokens[-1] == 3


GOOD = batches(AFFINE, 50, seed=0)
ONE_LOAD = MeasuredBatches(np.full(20, 0.01), np.full(20, 64.0))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: fit(GOOD, "afine"), "did you mean 'affine'"),
        (lambda: fit(GOOD.take(np.arange(3)), "affine"), "too few"),
        (lambda: fit(ONE_LOAD, "affine"), "every batch has 64 tokens"),
        (lambda: fit(ONE_LOAD), "every batch has 64 tokens"),
        (lambda: fit(by_load(AFFINE, np.arange(1, 20)), "composition"), "nothing but the token load"),
        (lambda: fit(by_load(AFFINE, [1, 2] * 10), "steps"), "no step or bend"),
        (lambda: fit(GOOD, "affine", b0=64), "no step or bend"),
        (lambda: fit(GOOD, b0=64), "which model has it is open"),
        (lambda: fit(GOOD, "steps", b0=0), "b0 is 0"),
        (lambda: fit(GOOD, "affine", confidence=2), "confidence is 2"),
        (lambda: choose(GOOD, folds=1), "folds is 1"),
        (lambda: MeasuredBatches(np.ones(1), np.ones(1), np.full(1, 2.0)), "has 2 prefill tokens, but 1 in all"),
        (lambda: MeasuredBatches(np.ones(1), np.ones(1), squares=np.ones(1)), "give prefill_tokens, too"),
        (lambda: GOOD.up_to(0), "the largest token load is 0"),
        (lambda: ONE_LOAD.up_to(10), "none is left"),
        (lambda: MeasuredBatches(np.ones(2), np.ones(3)), "3 values of tokens for 2 batches"),
        (lambda: MeasuredBatches(np.zeros(2), np.ones(2)), "takes 0 s"),
        (lambda: MeasuredBatches(np.ones(2), np.zeros(2)), "has 0 tokens"),
        (lambda: MeasuredBatches(np.ones(2), np.ones(2), context=np.array([1, np.nan])), "context of batch 2 is nan"),
        (lambda: MeasuredBatches(np.ones(1), np.ones(1), np.ones(1), np.ones(1)), "1 prefill and 1 decode tokens"),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_one_line(wrong: Callable[[], object], words: str) -> None:
    with pytest.raises(InputError) as raised:
        wrong()
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
