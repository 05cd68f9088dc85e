"""Figures: one declarative chart each, written as SVG and PNG without a browser."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import polars as pl
import vl_convert as vlc

from penstock.errors import InputError
from penstock.run import Distribution, Run

# Okabe and Ito's colours, told apart by colour-blind readers; dashes tell the lines apart on a grey printer.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3), (10, 4), (4, 2, 1, 2), (1, 3))
GRID = "#ebebeb"
_CDF_POINTS = 400
_SERIES_POINTS = 500


def _policy_channels(names: list[str]) -> dict[str, Any]:
    """Colour and dash by policy, one legend for both."""
    count = range(len(names))
    legend = alt.Legend(title="Policy", symbolStrokeWidth=2.5, symbolSize=300)
    return {
        "color": alt.Color(
            "policy:N",
            scale=alt.Scale(domain=names, range=[COLOURS[i % len(COLOURS)] for i in count]),
            legend=legend,
        ),
        "strokeDash": alt.StrokeDash(
            "policy:N",
            scale=alt.Scale(domain=names, range=[list(DASHES[i % len(DASHES)]) for i in count]),
            legend=legend,
        ),
    }


def tokens_over_time(runs: Mapping[str, Run], about: str = "") -> alt.HConcatChart:
    """Uncompleted tokens in the system while requests arrive, a line per policy; to scale, and on a log scale."""
    parts = []
    for name, run in runs.items():
        series = run.series.filter(pl.col("time_s") <= run.last_arrival * run.tick_s)
        series = series.gather_every(max(1, series.height // _SERIES_POINTS))
        parts.append(series.select("time_s", pl.col("uncompleted_tokens").clip(1), policy=pl.lit(name)))
    lines = alt.Chart(pl.concat(parts)).mark_line(strokeWidth=1.5)
    panels = []
    for title, scale in (("Tokens in the system", "linear"), ("The same on a log scale", "log")):
        panels.append(
            lines.encode(
                x=alt.X("time_s:Q", title="Time (s)"),
                y=alt.Y(
                    "uncompleted_tokens:Q",
                    title="Uncompleted tokens",
                    axis=alt.Axis(format="~s", tickCount=6),
                    scale=alt.Scale(type=scale),  # type: ignore[arg-type]
                ),
                **_policy_channels(list(runs)),
            ).properties(width=380, height=280, title=title)
        )
    return _side_by_side(panels, about)


def latency_cdfs(runs: Mapping[str, Run], about: str = "") -> alt.HConcatChart:
    """Cumulative distributions of TTFT, TBT and E2E, a line per policy."""
    panels = []
    for title, metric in (("Time to first token", "ttft"), ("Time between tokens", "gaps"), ("End to end", "e2e")):
        parts = [_cdf(getattr(run, metric), run.tick_s).with_columns(policy=pl.lit(name)) for name, run in runs.items()]
        panels.append(
            alt.Chart(pl.concat(parts), title=title)
            .mark_line(strokeWidth=2, interpolate="step-after")
            .encode(
                x=alt.X(
                    "seconds:Q",
                    title="Seconds (log scale)",
                    scale=alt.Scale(type="log", padding=8, nice=False),
                    axis=alt.Axis(format="~g", tickCount=5),
                ),
                y=alt.Y("share:Q", title="Share at most", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%")),
                **_policy_channels(list(runs)),
            )
            .properties(width=250, height=260)
        )
    return _side_by_side(panels, about)


def _side_by_side(panels: list[alt.Chart], about: str) -> alt.HConcatChart:
    """Put panels in a row over one line that says what was simulated."""
    row: alt.HConcatChart = alt.hconcat(*panels).configure_axis(gridColor=GRID)
    title = alt.TitleParams(about, anchor="start", fontWeight="normal", fontSize=12, orient="bottom", offset=12)
    return row.properties(title=title) if about else row


def _cdf(samples: Distribution, tick_s: float) -> pl.DataFrame:
    """Thin a distribution to the points that a figure can show, its tail included."""
    share = np.cumsum(samples.counts) / max(samples.size, 1)
    keep = np.unique(np.searchsorted(share, np.linspace(0, 1, _CDF_POINTS)).clip(0, max(share.size - 1, 0)))
    keep = keep[keep < share.size]
    seconds = np.maximum(samples.values[keep], 1) * tick_s
    points = {
        "seconds": np.concatenate([seconds[:1], seconds]),
        "share": np.concatenate([share[:0], [0.0][: keep.size], share[keep]]),
    }
    return pl.DataFrame(points, schema={"seconds": pl.Float64, "share": pl.Float64})


def save(charts: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write each chart as ``name.svg`` and ``name.png``: all are drawn before the first is written.

    Raises
    ------
    InputError
        If the folder cannot be written to.
    """
    drawn: dict[Path, bytes] = {}
    for name, chart in charts.items():
        specification = chart.to_json()
        drawn[folder / f"{name}.svg"] = vlc.vegalite_to_svg(specification).encode()
        drawn[folder / f"{name}.png"] = vlc.vegalite_to_png(specification, scale=2)
    for path, content in drawn.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _write(path, content)
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}; give another folder to --figures") from None
    return list(drawn)


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=path.suffix)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
