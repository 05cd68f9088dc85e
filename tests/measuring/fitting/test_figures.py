"""Figures of a fit show every kind of batch, with units, in colours and shapes that a grey printer keeps apart."""

import json
from typing import Any

import altair as alt
import numpy as np
import pytest
import vl_convert as vlc

from penstock.measuring.fitting import figures as plotting_fit
from penstock.measuring.fitting.batches import MeasuredBatches
from penstock.measuring.fitting.fit import Fit, fit


@pytest.fixture(scope="module")
def fits() -> dict[str, Fit]:
    """Fit 8,000 decodes, a tenth of them three times too long, by steps and with their context."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 300, 8_000)
    context = tokens * rng.integers(100, 3_000, 8_000)
    seconds = (0.01 + 0.02 * np.ceil(tokens / 64) + 3e-8 * context) * np.where(rng.random(8_000) < 0.1, 3, 1)
    measured = MeasuredBatches(seconds, tokens, np.zeros(8_000), tokens, tokens, context=context)
    return {name: fit(measured, name, b0=64) for name in ("steps", "composition-steps")}


def datasets(chart: Any) -> list[list[dict[str, Any]]]:
    return [part["data"]["values"] for part in (chart, *chart["layer"]) if "data" in part]


@pytest.mark.parametrize("name", ["steps", "composition-steps"])
def test_axes_have_units_and_outliers_a_shape_of_their_own(name: str, fits: dict[str, Fit]) -> None:
    chart = plotting_fit.fitted_line(fits[name])
    measured = chart["layer"][0]["encoding"]
    assert measured["x"]["title"] == "Token load (tokens in the batch)"
    assert measured["y"]["title"] == "Batch time (ms)"
    scale = measured["shape"]["scale"]
    assert scale["domain"] == ["fitted", "left out"]
    assert len(set(scale["range"])) == 2
    alt.LayerChart.from_dict(chart)  # refuses what Vega-Lite does not know
    assert vlc.vegalite_to_svg(json.dumps(chart)).startswith("<svg")


@pytest.mark.parametrize(("name", "said"), [("steps", "the line"), ("composition-steps", "for each batch")])
def test_a_legend_says_what_is_black(name: str, said: str, fits: dict[str, Fit]) -> None:
    stroke = plotting_fit.fitted_line(fits[name])["layer"][1]["encoding"]["stroke"]
    assert stroke["scale"]["domain"] == [said]
    assert stroke["legend"]["title"] == "Model"


def test_thousands_of_batches_are_thinned_and_both_kinds_remain(fits: dict[str, Fit]) -> None:
    (rows,) = (rows for rows in datasets(plotting_fit.fitted_line(fits["steps"])) if "measured_ms" in rows[0])
    kinds = [row["batch"] for row in rows]
    assert 1_000 < kinds.count("fitted") <= 3_000
    assert kinds.count("left out") > 500


def test_errors_beyond_the_scale_stand_at_its_edge(fits: dict[str, Fit]) -> None:
    chart = plotting_fit.relative_errors(fits["steps"])
    low, high = chart["layer"][0]["encoding"]["y"]["scale"]["domain"]
    assert low == -high < 0
    (rows,) = (rows for rows in datasets(chart) if "error" in rows[0])
    assert min(row["error"] for row in rows) >= low


def test_the_line_of_a_model_by_load_is_the_model(fits: dict[str, Fit]) -> None:
    found = fits["steps"]
    data = datasets(plotting_fit.fitted_line(found))
    (line,) = (rows for rows in data if "predicted_ms" in rows[0] and "error" not in rows[0])
    tokens = np.array([row["tokens"] for row in line])
    assert np.allclose([row["predicted_ms"] for row in line], found.model(tokens) * 1e3)
