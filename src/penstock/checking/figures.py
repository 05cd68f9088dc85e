"""Figures of a page on a server: charts, what they show in words, and their figures as a table.

Charts are imported when one is drawn: a terminal never waits for that.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import polars as pl

from penstock.show.page import Figure, Table
from penstock.simulation.distribution import Distribution
from penstock.simulation.run import Run
from penstock.theory.region import Region
from penstock.words import METRICS, amount, seconds

_CDF_ROWS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)
_SERIES_ROWS = 20
_MIX_ROWS = 12


def token_figure(runs: Mapping[str, Run]) -> Figure:
    """Draw the tokens in the system over time, a line per policy."""
    from penstock.checking import charts

    ends = charts.series_while_arriving(runs)
    said = "; ".join(
        f"{name} ends with {series['uncompleted_tokens'][-1]:,}" for name, series in ends.items()
    )
    to_scale, log = charts.token_panels(runs)
    return Figure(
        "Tokens in the system",
        {
            f"Lines of uncompleted tokens over time, while requests arrive: {said}.": to_scale,
            f"The same on a log scale: {said}.": log,
        },
        [
            Table(
                ("Time (s)", *runs),
                [
                    (
                        amount(float(time)),
                        *(_nearest(series, time) for series in ends.values()),
                    )
                    for time in np.linspace(
                        0, max(s["time_s"][-1] for s in ends.values()), _SERIES_ROWS + 1
                    )
                ],
                "Uncompleted tokens at or just before a time",
            )
        ],
        "Uncompleted tokens while requests arrive. A line that keeps rising is a backlog that "
        "never drains.",
    )


def latency_figure(runs: Mapping[str, Run], refused: Iterable[str] = ()) -> Figure:
    """Draw the distributions of latency of the policies that have one."""
    from penstock.checking import charts

    left_out = [name for name in runs if name in set(refused)]
    kept = {name: run for name, run in runs.items() if name not in left_out}
    panels = charts.latency_panels(kept, runs)
    texts, tables = [], []
    for name, pick in zip(METRICS.values(), charts.SAMPLES, strict=True):
        samples = {policy: getattr(run, pick) for policy, run in kept.items()}
        medians = "; ".join(
            f"{policy} {_quantile(d, 0.5, kept[policy].tick_s)} s at the median, "
            f"{_quantile(d, 0.99, kept[policy].tick_s)} s at the 99th percentile"
            for policy, d in samples.items()
            if d.size
        )
        texts.append(f"{name}, cumulative distribution: {medians or 'no samples'}.")
        rows = [
            (
                f"{100 * share:g}%",
                *(_quantile(d, share, kept[policy].tick_s) for policy, d in samples.items()),
            )
            for share in _CDF_ROWS
        ]
        tables.append(Table(("Share", *kept), rows, f"{name}: at most so many seconds"))
    caption = "Share of requests, or of gaps between tokens, that took at most so long."
    if left_out:
        caption += f" Left out, since there may be no steady state: {', '.join(left_out)}."
    return Figure("Latency", dict(zip(texts, panels, strict=True)), tables, caption)


def region_figure(
    region: Region,
    runs: Mapping[str, Run] | None = None,
    *,
    point: tuple[float, float] | None = None,
    own: Mapping[str, Region] | None = None,
) -> Figure:
    """Draw a region, what is asked of it, and a panel per policy with the batches of its run."""
    # The regions of policies of their own are drawn where ``own`` has them.
    from penstock.checking import charts

    said = _region_in_words(region, point)
    own = own or {}
    if not runs:
        chart = charts.region_chart(region, point, next(iter(own.values()), None))
        tables = [_vertices(region, own)]
        return Figure("Stability region", {said: chart}, tables, "No policy is stable outside.")
    drawings = {
        f"{name}: {_most_used(run)}. {said}": charts.region_chart(
            region, point, own.get(name), run.compositions
        ).properties(title=name)
        for name, run in runs.items()
    }
    caption = (
        "Each batch stands at the tokens/s that it carries; its area is its share of the busy "
        "time. "
        "No policy is stable outside the region."
    )
    return Figure(
        "Batches in the region",
        drawings,
        [_mix_table(name, run.compositions) for name, run in runs.items()],
        caption,
    )


def gantt_figure(run: Run, name: str) -> Figure:
    """Draw the first batches of a run with ``record="allocations"``, coloured by phase."""
    from penstock.checking import charts

    window = charts.first_batches(run)
    text = (
        f"Gantt chart of {window.height} batches from {seconds(window['start_s'][0])} s: a row "
        "per request, a bar per "
        f"batch that it is in; {window['prefill_tokens'].sum():,} prefill and "
        f"{window['decode_tokens'].sum():,} decode "
        "tokens in all."
    )
    caption = (
        "Prefill is dark and tall, decode light and low; a thin line is a request that waits "
        "between batches."
    )
    there = run.allocations.filter(pl.col("batch").is_in(window["batch"].implode()))[
        "request"
    ].n_unique()
    if there > charts.MOST_REQUESTS:
        caption += f" The first {charts.MOST_REQUESTS} of {there:,} requests are drawn."
    rows = [
        (f"{b:,}", f"{start:.3f}", f"{(end - start) * 1e3:.2f}", f"{x:,}", f"{y:,}", f"{n:,}")
        for b, start, end, x, y, n in window.iter_rows()
    ]
    columns = ("Batch", "Start (s)", "Duration (ms)", "Prefill tokens", "Decode tokens", "Requests")
    chart = {f"{name}: {text}": charts.gantt(run)}
    title = f"{name}: {window.height} batches"
    return Figure(title, chart, [Table(columns, rows)], caption, wide=True)


def _nearest(series: pl.DataFrame, time: float) -> str:
    """Return the tokens at or just before a time, or a dash after the last one."""
    if time > series["time_s"][-1] * 1.05 + 1e-9:
        return "-"
    index = int(np.searchsorted(series["time_s"].to_numpy(), time * (1 + 1e-12), side="right")) - 1
    return f"{series['uncompleted_tokens'][max(index, 0)]:,}"


def _region_in_words(region: Region, point: tuple[float, float] | None) -> str:
    said = f"The stability region has {len(region.vertices) - 1} corners besides the origin"
    if point is None:
        return f"{said}."
    side = "inside" if region.contains(point) else "outside"
    return (
        f"{said}; the offered load of {point[0]:,.0f} prefill and {point[1]:,.0f} decode tokens/s "
        f"lies {side}, at "
        f"{1 - region.margin(point):.3f} of the way to the boundary."
    )


def _most_used(run: Run) -> str:
    top = run.compositions.row(0, named=True)
    return (
        f"the most used batch has {top['prefill_tokens']:,} prefill and {top['decode_tokens']:,} "
        "decode tokens, "
        f"{top['share']:.0%} of the busy time"
    )


def _vertices(region: Region, own: Mapping[str, Region]) -> Table:
    regions = {"region": region} | {f"{name}'s own": policys for name, policys in own.items()}
    rows = [(name, f"{x:,.1f}", f"{y:,.1f}") for name in regions for x, y in regions[name].vertices]
    return Table(("Corner of", "Prefill (tokens/s)", "Decode (tokens/s)"), rows)


def _mix_table(name: str, mix: pl.DataFrame) -> Table:
    """List the compositions used longest, and the rest in one row."""
    rows = [
        (f"{prefill:,}", f"{decode:,}", f"{batches:,}", f"{share:.1%}")
        for prefill, decode, batches, _, share in mix.head(_MIX_ROWS).iter_rows()
    ]
    rest = mix.slice(_MIX_ROWS)
    if rest.height:
        rows.append(
            (
                f"{rest.height:,} others",
                "",
                f"{rest['batches'].sum():,}",
                f"{rest['share'].sum():.1%}",
            )
        )
    return Table(("Prefill tokens", "Decode tokens", "Batches", "Share of busy time"), rows, name)


def _quantile(samples: Distribution, share: float, tick_s: float) -> str:
    return seconds(samples.quantile(share) * tick_s) if samples.size else "-"
