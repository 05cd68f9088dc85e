"""Charts of a server: tokens over time, latencies, the region, batches, fluid paths."""

from collections.abc import Iterable, Mapping
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from penstock.show.charts import (
    COLOURS,
    FILL,
    GANTT_WIDTH,
    GRID,
    OUTLINE,
    RAY,
    SHORT,
    line_channels,
    side_by_side,
    with_line_under,
)
from penstock.simulation.distribution import Distribution
from penstock.simulation.run import Run
from penstock.theory.region import Region
from penstock.words import METRICS

PHASES = {"prefill": "#0072B2", "decode": "#F0E442"}
"""Dark and light, so that a grey printer keeps them apart; prefill is drawn taller besides."""


MOST_REQUESTS = 60
"""Rows that a Gantt chart can show."""

SAMPLES = ("ttft", "gaps", "e2e")
"""Of a `Run`: its samples of each of the `METRICS`."""

_CDF_POINTS = 400
_SERIES_POINTS = 500
_CELLS = 48  # batches of a region chart are gathered on a grid of so many cells each way
_DIGIT_WIDTH = 6.5  # px


def _policy_channels(names: list[str], title: str | None = "Policy") -> dict[str, Any]:
    """Colour and dash by policy, or whatever the legend says."""
    legend = alt.Legend(title=title, symbolStrokeWidth=2.5, symbolSize=300)
    return line_channels("policy", names, legend)


def tokens_over_time(runs: Mapping[str, Run], about: str = "") -> alt.HConcatChart:
    """Uncompleted tokens while requests arrive, a line per policy; to scale, and on a log scale."""
    return side_by_side(token_panels(runs), about)


def token_panels(runs: Mapping[str, Run]) -> list[alt.Chart]:
    """Return the panels of `tokens_over_time`."""
    parts = [
        series.gather_every(-(-series.height // _SERIES_POINTS)).select(
            "time_s", pl.col("uncompleted_tokens").clip(1), policy=pl.lit(name)
        )
        for name, series in series_while_arriving(runs).items()
    ]
    lines = alt.Chart(pl.concat(parts)).mark_line(strokeWidth=1.5)
    return [
        lines.encode(
            x=alt.X("time_s:Q", title="Time (s)", axis=alt.Axis(tickCount=5)),
            y=alt.Y(
                "uncompleted_tokens:Q",
                title="Uncompleted tokens",
                axis=alt.Axis(labelExpr=SHORT, tickCount=6),
                scale=alt.Scale(type=scale),  # type: ignore[arg-type]
            ),
            **_policy_channels(list(runs)),
        ).properties(width=380, height=280, title=title)
        for title, scale in (("Tokens in the system", "linear"), ("The same on a log scale", "log"))
    ]


def series_while_arriving(runs: Mapping[str, Run]) -> dict[str, pl.DataFrame]:
    """Return each run's series up to the first of their last arrivals, to be compared."""
    until = min(run.last_arrival * run.tick_s for run in runs.values())
    return {name: run.series.filter(pl.col("time_s") <= until) for name, run in runs.items()}


def latency_cdfs(
    runs: Mapping[str, Run], about: str = "", policies: Iterable[str] | None = None
) -> alt.HConcatChart:
    """Distributions of TTFT, TBT and E2E, a line per policy of the runs."""
    # ``policies`` are all of the comparison: colours and dashes stay where some have no latency.
    return side_by_side(latency_panels(runs, policies), about)


def latency_panels(
    runs: Mapping[str, Run], policies: Iterable[str] | None = None, legend: str | None = "Policy"
) -> list[alt.Chart]:
    """Return the panels of `latency_cdfs`."""
    return [
        cdf_panel(
            title,
            {name: (getattr(run, samples), run.tick_s) for name, run in runs.items()},
            list(policies or runs),
            legend,
        )
        for title, samples in zip(METRICS.values(), SAMPLES, strict=True)
    ]


def cdf_panel(
    title: str,
    samples: Mapping[str, tuple[Distribution, float]],
    names: list[str],
    legend: str | None,
) -> alt.Chart:
    """Draw cumulative distributions, a line each, of samples and the seconds of a tick."""
    # ``names`` are all that a line may have, so that it keeps its colour and its dash.
    parts = [_cdf(*of).with_columns(policy=pl.lit(name)) for name, of in samples.items()]
    drawn: alt.Chart = (
        alt.Chart(pl.concat(parts), title=title)
        .mark_line(strokeWidth=2, interpolate="step-after")
        .encode(
            x=alt.X(
                "seconds:Q",
                title="Seconds (log scale)",
                scale=alt.Scale(type="log", padding=8, nice=False),
                axis=alt.Axis(format="~g", tickCount=5),
            ),
            y=alt.Y(
                "share:Q",
                title="Share at most",
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(format="%"),
            ),
            **_policy_channels(names, legend),
        )
        .properties(width=250, height=260)
    )
    return drawn


def region_chart(
    region: Region,
    point: tuple[float, float] | None = None,
    own: Region | None = None,
    mix: pl.DataFrame | None = None,
    about: str = "",
) -> alt.LayerChart:
    """Stability region, what is asked of it, the policy's own reach, and the batches of a run."""
    # The point is offered prefill and decode tokens/s, with its ray from the origin to where it
    # leaves the region. A batch of the mix (`Run.compositions`), x prefill and y decode tokens in
    # t, is drawn at (x / t, y / t), its area the share of busy time; close ones as one, at their
    # mean.
    lines = {"stability region": region.vertices[1:]}
    if own is not None:
        lines["policy's own region"] = own.vertices[1:]
    layers = [_outlines({"stability region": region.vertices}, filled=True)]
    if mix is not None:
        layers.append(_batches(mix, region))
    if point is not None:
        edge = region.scale(point) * np.array(point)
        lines["ray of the load"] = np.array(
            [(0.0, 0.0), max(edge, np.array(point), key=np.linalg.norm)]
        )
    layers.append(_outlines(lines))
    if point is not None:
        layers.append(_points({"offered load": point, "most along its ray": (edge[0], edge[1])}))
    chart: alt.LayerChart = (
        alt.LayerChart(layer=layers)
        .properties(width=430, height=360)
        .configure_axis(gridColor=GRID)
    )
    return with_line_under(chart, about)


def _rate_axes() -> dict[str, Any]:
    axis = alt.Axis(format=",~f", tickCount=6)
    return {
        "x": alt.X("prefill:Q", title="Prefill (tokens/s)", axis=axis),
        "y": alt.Y("decode:Q", title="Decode (tokens/s)", axis=axis, stack=None),
    }


def _outlines(lines: Mapping[str, Any], filled: bool = False) -> Any:
    """Draw lines through points of the plane, or fill what is inside."""
    parts = [
        pl.DataFrame(
            {"prefill": path[:, 0], "decode": path[:, 1], "order": np.arange(len(path))}
        ).with_columns(line=pl.lit(name))
        for name, path in lines.items()
    ]
    chart = alt.Chart(pl.concat(parts)).encode(**_rate_axes(), order="order:Q")
    if filled:
        return chart.mark_line(fill=FILL, fillOpacity=0.12, strokeWidth=0)
    looks = {
        "stability region": (FILL, [1, 0]),
        "policy's own region": (OUTLINE, [7, 3]),
        "ray of the load": (RAY, [2, 2]),
    }
    legend = alt.Legend(title=None, symbolStrokeWidth=2.5, symbolSize=300)
    colours, dashes = ([looks[name][part] for name in lines] for part in (0, 1))
    return chart.mark_line(strokeWidth=2).encode(
        color=alt.Color(
            "line:N", scale=alt.Scale(domain=list(lines), range=colours), legend=legend
        ),
        strokeDash=alt.StrokeDash(
            "line:N", scale=alt.Scale(domain=list(lines), range=dashes), legend=legend
        ),
    )


def _batches(mix: pl.DataFrame, region: Region) -> Any:
    """Draw batches at their rates, those in one cell of a grid at their mean over time."""
    cell = np.maximum(region.vertices.max(axis=0) / _CELLS, 1e-9)
    rates = mix.select(
        "seconds",
        "share",
        prefill=pl.col("prefill_tokens") * pl.col("batches") / pl.col("seconds"),
        decode=pl.col("decode_tokens") * pl.col("batches") / pl.col("seconds"),
    )
    gathered = (
        rates.group_by(
            (pl.col("prefill") / cell[0]).floor().alias("i"),
            (pl.col("decode") / cell[1]).floor().alias("j"),
        )
        .agg(
            *(
                (pl.col(name) * pl.col("share")).sum() / pl.col("share").sum()
                for name in ("prefill", "decode")
            ),
            pl.col("share").sum().alias("time"),
        )
        .sort("time", "i", "j", descending=[True, False, False])
    )
    legend = alt.Legend(title="Batches: share of busy time", format="%", values=[0.01, 0.1, 0.5])
    return (
        alt.Chart(gathered)
        .mark_circle(color=COLOURS[2], opacity=0.65, stroke="#00513c", strokeWidth=0.5)
        .encode(
            **_rate_axes(),
            size=alt.Size("time:Q", scale=alt.Scale(range=[6, 500], domain=[0, 1]), legend=legend),
        )
    )


def _points(points: Mapping[str, tuple[float, float]]) -> Any:
    data = pl.DataFrame(
        [{"prefill": float(x), "decode": float(y), "at": name} for name, (x, y) in points.items()]
    )
    names, legend = list(points), alt.Legend(title=None, symbolSize=110)
    shapes = alt.Scale(domain=names, range=["diamond", "circle"])
    fills = alt.Scale(domain=names, range=["black", "white"])
    return (
        alt.Chart(data)
        .mark_point(size=110, stroke="black", strokeWidth=1.5, opacity=1)
        .encode(
            **_rate_axes(),
            shape=alt.Shape("at:N", scale=shapes, legend=legend),
            fill=alt.Fill("at:N", scale=fills, legend=legend),
        )
    )


def gantt(run: Run, batches: int = 40, about: str = "") -> alt.LayerChart:
    """Who was in each of the first batches: a bar per request and batch, coloured by phase."""
    # Of a run with ``record="allocations"``, from the first batch with two requests: the first 60
    # of them, a thin line from arrival to finish for each.
    window = first_batches(run, batches)
    start, end = window["start_s"][0], window["end_s"][-1]
    bars = _bars(run, window)
    shown = bars["request"].unique()
    rows = run.requests.filter(pl.col("request").is_in(shown.implode())).select(
        "request",
        start_s=(pl.col("arrival_ns") * 1e-9).clip(start, end),
        end_s=(pl.col("finish_ns") * 1e-9).fill_null(end).clip(start, end),
    )
    time = alt.X(
        "start_s:Q",
        title="Time (s)",
        scale=alt.Scale(domain=[start, end], nice=False),
        axis=alt.Axis(grid=False),
    )
    row = alt.Y("request:O", title="Request", axis=alt.Axis(labelOverlap=True, ticks=False))
    colour = alt.Color(
        "phase:N",
        scale=alt.Scale(domain=list(PHASES), range=list(PHASES.values())),
        legend=alt.Legend(
            title="Tokens in a batch", symbolType="square", symbolStrokeColor="#333333"
        ),
    )
    tooltip = ["request:O", "batch:Q", "phase:N", alt.Tooltip("tokens:Q"), "start_s:Q", "end_s:Q"]
    layers: list[alt.Chart] = [
        alt.Chart(window).mark_rule(color="#d0d0d0", strokeWidth=0.7).encode(x=time),
        alt.Chart(rows)
        .mark_rule(color="#777777", strokeWidth=0.8)
        .encode(x=time, x2="end_s:Q", y=row),
    ]
    layers += [
        alt.Chart(bars.filter(pl.col("phase") == phase))
        .mark_bar(height={"band": height}, stroke="#333333", strokeWidth=0.4)
        .encode(x=time, x2="end_s:Q", y=row, color=colour, tooltip=tooltip)
        for phase, height in (("decode", 0.55), ("prefill", 0.95))
    ]
    roomy = bars.filter(pl.col("label") != "")
    layers += [
        alt.Chart(roomy.filter(pl.col("phase") == phase))
        .mark_text(color=ink, fontSize=9)
        .encode(x=alt.X("middle_s:Q"), y=row, text="label:N")
        for phase, ink in (("decode", "black"), ("prefill", "white"))
    ]
    step = min(22.0, max(7.5, 460 / shown.len()))
    return with_line_under(
        alt.LayerChart(layer=layers).properties(width=GANTT_WIDTH, height={"step": step}), about
    )


def first_batches(run: Run, batches: int = 40) -> pl.DataFrame:
    """Return a row per batch of a Gantt chart: times in s, tokens by phase, requests."""
    table = run.batches.with_row_index("batch").with_columns(pl.col("batch").cast(pl.Int64))
    crowded = table.filter(pl.col("requests") > 1)["batch"]
    first = int(crowded[0]) if crowded.len() else 0
    return table.slice(first, batches).select(
        "batch",
        (pl.col("start_ns") * 1e-9).alias("start_s"),
        ((pl.col("start_ns") + pl.col("duration_ns")) * 1e-9).alias("end_s"),
        "prefill_tokens",
        "decode_tokens",
        "requests",
    )


def _bars(run: Run, window: pl.DataFrame) -> pl.DataFrame:
    """Return a row per request and batch of the window: place, phase, and tokens if they fit."""
    bars = run.allocations.join(window.select("batch", "start_s", "end_s"), on="batch", how="inner")
    shown = bars["request"].unique().sort().head(MOST_REQUESTS)
    px_per_s = GANTT_WIDTH / (window["end_s"][-1] - window["start_s"][0])
    prefill = pl.col("prefill_tokens") > 0
    tokens = pl.col("prefill_tokens") + pl.col("decode_tokens")
    room = (pl.col("end_s") - pl.col("start_s")) * px_per_s
    fits = (room > _DIGIT_WIDTH * tokens.cast(pl.String).str.len_chars()) & (shown.len() <= 45)
    return bars.filter(pl.col("request").is_in(shown.implode())).select(
        "request",
        "batch",
        "start_s",
        "end_s",
        middle_s=(pl.col("start_s") + pl.col("end_s")) / 2,
        tokens=tokens,
        phase=pl.when(prefill).then(pl.lit("prefill")).otherwise(pl.lit("decode")),
        label=pl.when(fits & prefill).then(tokens.cast(pl.String)).otherwise(pl.lit("")),
    )


def _cdf(samples: Distribution, tick_s: float) -> pl.DataFrame:
    """Thin a distribution to the points that a figure can show, its tail included."""
    share = np.cumsum(samples.counts) / max(samples.size, 1)
    keep = np.unique(
        np.searchsorted(share, np.linspace(0, 1, _CDF_POINTS)).clip(0, max(share.size - 1, 0))
    )
    keep = keep[keep < share.size]
    seconds = np.maximum(samples.values[keep], 1) * tick_s
    return pl.DataFrame(
        {
            "seconds": np.concatenate([seconds[:1], seconds]),
            "share": np.concatenate([share[:0], [0.0][: keep.size], share[keep]]),
        },
        schema={"seconds": pl.Float64, "share": pl.Float64},
    )
