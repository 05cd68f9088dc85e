"""What must be true of the look-alikes: they look like the traces that they were fitted to."""

import functools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from penstock.errors import InputError
from penstock.workload.lengths import Tabulated
from penstock.workload.lookalikes import LOOKALIKES, lookalike
from penstock.workload.workload import Workload, read_trace

TRACES = Path(__file__).parents[2].parent / "shared" / "data" / "traces"
KINDS = [name.removeprefix("azure-") for name in LOOKALIKES]
SIDES = [("prefill", "prompt"), ("decode", "output")]
HOUR_S = 3600
STATISTICS = ["rate", "iat_cv", "idc1", "idc10", "idc60", "idc300"]


def fitted(kind):
    path = TRACES / "azure_2023_synth_params.json"
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    return json.loads(path.read_text())[kind]


def real(kind):
    path = TRACES / f"azure_llm_2023_{kind}.csv"
    if not path.exists():
        pytest.skip(f"the real trace ({path.name}) is not here")
    return read_trace(path)


def summary(length: Tabulated):
    """Exact mean, cv, median and 99th percentile."""
    values = length.low + np.arange(length.probabilities.size)
    second = float(values.astype(float) ** 2 @ length.probabilities)
    p50, p99 = length.quantile(np.array([0.5, 0.99]))
    return {"mean": length.mean, "cv": math.sqrt(second / length.mean**2 - 1), "p50": p50, "p99": p99}


def arrival_statistics(times_s, span_s):
    """Rate, cv of the gaps, and index of dispersion of the counts in windows of 1, 10, 60 and 300 s."""
    gaps = np.diff(times_s)
    found = [times_s.size / span_s, gaps.std() / gaps.mean()]
    for window in (1, 10, 60, 300):
        counts = np.histogram(times_s, np.arange(int(span_s // window) + 1) * window)[0]
        found.append(counts.var(ddof=1) / counts.mean())
    return found


@functools.cache
def hours(kind):
    """Statistics of the first hour of sixty look-alikes; shape (60, 6)."""
    found = []
    for seed in range(60):
        times = next(Workload.preset(f"azure-{kind}", seed=seed).blocks()).arrival_s
        assert times[-1] > HOUR_S
        found.append(arrival_statistics(times[times < HOUR_S], HOUR_S))
    return np.array(found)


# Lengths


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("side", "name"), SIDES)
def test_lengths_have_nearly_the_mean_median_tail_and_spread_of_the_trace(kind, side, name):
    target = fitted(kind)[side]["target"]
    found = summary(getattr(lookalike(f"azure-{kind}")[1], name))
    widest = {"mean": 0.05, "p50": 0.03, "cv": 0.1, "p99": 0.05}
    if (kind, side) == ("conv", "prefill"):
        widest["p99"] = 0.35  # the fitted mixture has a longer tail than the trace: 5,553 tokens against 4,142
    for key, width in widest.items():
        assert found[key] == pytest.approx(target[key], rel=width), key


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("side", "name"), SIDES)
def test_the_distribution_is_as_close_to_the_trace_as_the_fit_was(kind, side, name):
    """Kolmogorov-Smirnov distance; the published one is that of one sample, so a little more is allowed."""
    recorded = getattr(real(kind).lengths, f"{name}_tokens")
    length = getattr(lookalike(f"azure-{kind}")[1], name)
    values = np.arange(length.low, length.max + 1)
    cumulative = np.searchsorted(np.sort(recorded), values, side="right") / recorded.size
    assert np.abs(cumulative - np.cumsum(length.probabilities)).max() < fitted(kind)[side]["ks"] + 0.01
    assert (recorded.min(), recorded.max()) == (length.low, length.max)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_has_the_exact_means_and_the_copula_that_was_fitted(kind):
    lengths = lookalike(f"azure-{kind}")[1]
    prompt, output = lengths.sample(np.random.default_rng(0), 200_000)
    assert prompt.mean() == pytest.approx(lengths.mean_prompt, abs=4 * stats.sem(prompt))
    assert output.mean() == pytest.approx(lengths.mean_output, abs=4 * stats.sem(output))
    exact = 6 / math.pi * math.asin(lengths.correlation / 2)
    assert stats.spearmanr(prompt, output)[0] == pytest.approx(exact, abs=4 / math.sqrt(200_000))
    assert lengths.correlation == fitted(kind)["copula_rho"]


# Arrivals


@pytest.mark.parametrize("kind", KINDS)
def test_an_hour_of_arrivals_is_as_bursty_as_the_fit_was_at_every_time_scale(kind):
    """Eight hours of ten should fall between the published 10th and 90th percentiles; six are asked for."""
    low, high = (np.array(band) for band in fitted(kind)["arrivals"]["check"]["synth_p10_p90"])
    found = hours(kind)
    within = ((found >= low) & (found <= high)).mean(axis=0)
    for name, share in zip(STATISTICS, within, strict=True):
        assert share >= 0.6, f"{name}: only {share:.0%} of the hours are in the band"
    middle = np.median(found, axis=0)
    assert ((middle > low) & (middle < high)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_real_hour_could_be_one_of_the_look_alikes(kind):
    times = real(kind).arrivals.times_s
    recorded = arrival_statistics(times - times[0], times[-1] - times[0])
    assert recorded == pytest.approx(fitted(kind)["arrivals"]["check"]["real"], rel=1e-3)
    rank = (hours(kind) < recorded).mean(axis=0)
    for name, share in zip(STATISTICS, rank, strict=True):
        assert 0.025 <= share <= 0.975, f"{name} of the real trace is at rank {share:.0%}"


@pytest.mark.parametrize(("kind", "rate"), [("code", 2.567), ("conv", 5.53)])
def test_the_rate_is_that_of_the_trace(kind, rate):
    assert Workload.preset(f"azure-{kind}").rate == pytest.approx(rate, rel=0.03)


@pytest.mark.parametrize("name", ["azure", "", None, 3, ["azure-code"]])
def test_an_unknown_look_alike_is_refused_with_the_names_there_are(name):
    with pytest.raises(InputError, match="unknown workload preset") as caught:
        Workload.preset(name)
    assert "azure-co" in str(caught.value)
