"""Figures of a page on a server: charts, what they show in words, and their figures as a table."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from penstock.checking.metastable import Metastable
from penstock.checking.storm import Storm
from penstock.inputs.arrays import Floats
from penstock.show.page import Figure, Table
from penstock.show.plot import COLOURS, GANTT_WIDTH, Axis, By, Chart, Mark, mark, plot
from penstock.simulation.distribution import Distribution
from penstock.simulation.run import Run
from penstock.theory.region import Region
from penstock.words import METRICS, amount, seconds

PHASES = {"prefill": "#0072B2", "decode": "#F0E442"}
"""Dark and light, so that a grey printer keeps them apart; prefill is drawn taller besides."""

MOST_REQUESTS = 60
"""Rows that a Gantt chart can show."""

SAMPLES = dict(zip(METRICS.values(), ("ttft", "gaps", "e2e"), strict=True))
"""Of a `Run`: its samples of each of the `METRICS`."""

Samples = Mapping[str, tuple[Distribution, float]]
"""Latencies by name, with the seconds of a tick."""

TIME = Axis("Time (s)")

_CDF_POINTS = 400
_CDF_ROWS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)
_SERIES_POINTS = 500
_SERIES_ROWS = 20
_MIX_ROWS = 12
_CELLS = 48  # batches of a region chart are gathered on a grid of so many cells each way
_BATCHES = 40  # of a Gantt chart
_DIGIT_WIDTH = 6.5  # px
_RATES = Axis("Prefill (tokens/s)"), Axis("Decode (tokens/s)")
_OUTLINES = {
    "stability region": (COLOURS[0], [1, 0]),
    "policy's own region": (COLOURS[1], [7, 3]),
    "exact region": (COLOURS[2], [4, 2, 1, 2]),
    "ray of the load": ("#555555", [2, 2]),
}
_ENDS = {"offered load": ("diamond", "black"), "most along its ray": ("circle", "white")}


def token_figure(runs: Mapping[str, Run]) -> Figure:
    """Draw the tokens in the system over time, a line per policy, to scale and on a log scale."""
    series = series_while_arriving(runs)
    ends = "; ".join(
        f"{name} ends with {of['uncompleted_tokens'][-1]:,}" for name, of in series.items()
    )
    texts = {
        f"Lines of uncompleted tokens over time, while requests arrive: {ends}.": False,
        f"The same on a log scale: {ends}.": True,
    }
    parts = [
        of.gather_every(-(-of.height // _SERIES_POINTS)).select(
            "time_s", pl.col("uncompleted_tokens").clip(1), policy=pl.lit(name)
        )
        for name, of in series.items()
    ]
    lines = mark("line", "time_s", "uncompleted_tokens", By("policy", list(runs), "Policy"))
    last = max(of["time_s"][-1] for of in series.values())
    rows = [
        (amount(float(time)), *(_nearest(of, time) for of in series.values()))
        for time in np.linspace(0, last, _SERIES_ROWS + 1)
    ]
    charts = {
        text: plot(pl.concat(parts), lines, x=TIME, y=Axis("Uncompleted tokens", log=log))
        for text, log in texts.items()
    }
    table = Table(("Time (s)", *runs), rows, "Uncompleted tokens at or just before a time")
    caption = (
        "Uncompleted tokens while requests arrive. A line that keeps rising is a backlog that "
        "never drains."
    )
    return Figure("tokens_over_time", "Tokens in the system", charts, [table], caption)


def both_states_figure(of: Metastable | Storm) -> Figure:
    """Draw a server with two states, from empty and after a burst."""
    paths = {"from empty": of.calm, f"with {of.shown:,} at once": of.tipped}
    parts = [
        pl.DataFrame({"time_s": path[:, 0], "value": path[:, 1], "run": [name] * len(path)})
        for name, path in paths.items()
    ]
    lines = mark("line", "time_s", "value", By("run", list(paths), "Run"))
    ends = "; ".join(f"{name} {path[-1, 1]:,.0f} at the end" for name, path in paths.items())
    text = f"Lines over time, {of.what[0].lower()}{of.what[1:]}: {ends}."
    last = min(path[-1, 0] for path in paths.values())
    rows = [
        (amount(float(time)), *(f"{np.interp(time, *path.T):,.0f}" for path in paths.values()))
        for time in np.linspace(0, last, _SERIES_ROWS + 1)
    ]
    table = Table(("Time (s)", *paths), rows, of.what)
    chart = plot(pl.concat(parts), lines, x=TIME, y=Axis(of.what))
    return Figure("both_states", "Two states at one rate", {text: chart}, [table], of.caption)


def series_while_arriving(runs: Mapping[str, Run]) -> dict[str, pl.DataFrame]:
    """Return each run's series up to the first of their last arrivals, to be compared."""
    until = min(run.last_arrival * run.tick_s for run in runs.values())
    return {name: run.series.filter(pl.col("time_s") <= until) for name, run in runs.items()}


def latency_figure(runs: Mapping[str, Run], refused: Iterable[str] = ()) -> Figure:
    """Draw the distributions of latency of the policies that have one."""
    left_out = [name for name in runs if name in set(refused)]
    kept = {name: run for name, run in runs.items() if name not in left_out}
    caption = "Share of requests, or of gaps between tokens, that took at most so long."
    if left_out:
        caption += f" Left out, since there may be no steady state: {', '.join(left_out)}."
    samples = {
        title: {name: (getattr(run, pick), run.tick_s) for name, run in kept.items()}
        for title, pick in SAMPLES.items()
    }
    return distributions(samples, list(runs), "Policy", caption)


def distributions(
    samples: Mapping[str, Samples], names: Sequence[str], what: str, caption: str, columns: int = 3
) -> Figure:
    """Draw distributions of latency, a chart each, a line for each of the names that has one."""
    charts, tables = {}, []
    for title, of in samples.items():
        medians = "; ".join(
            f"{name} {_quantile(one, 0.5)} s at the median, {_quantile(one, 0.99)} s at the 99th "
            "percentile"
            for name, one in of.items()
            if one[0].size
        )
        text = f"{title}, cumulative distribution: {medians or 'no samples'}."
        charts[text] = cdf(title, of, names, what)
        rows = [
            (f"{100 * share:g}%", *(_quantile(one, share) for one in of.values()))
            for share in _CDF_ROWS
        ]
        tables.append(Table(("Share", *of), rows, f"{title}: at most so many seconds"))
    return Figure("latency_cdfs", "Latency", charts, tables, caption, columns)


def cdf(title: str, samples: Samples, names: Sequence[str], what: str) -> Chart:
    """Draw cumulative distributions, a line each; ``names`` are all that a line may have."""
    # So that it keeps its colour and its dash where some have no latency.
    parts = [_points(*of).with_columns(name=pl.lit(name)) for name, of in samples.items()]
    by = By("name", names, what)
    return plot(
        pl.concat(parts),
        mark("line", "seconds", "share", by, interpolate="step-after"),
        x=Axis("Seconds", log=True, ticks=5),
        y=Axis("Share at most", kind="share", domain=(0, 1)),
        size=(250, 260),
        title=title,
    )


def _points(samples: Distribution, tick_s: float) -> pl.DataFrame:
    """Thin a distribution to the points that a figure can show, its tail included."""
    share = np.cumsum(samples.counts) / max(samples.size, 1)
    keep = np.unique(
        np.searchsorted(share, np.linspace(0, 1, _CDF_POINTS)).clip(0, max(share.size - 1, 0))
    )
    keep = keep[keep < share.size]
    times = np.maximum(samples.values[keep], 1) * tick_s
    columns = {
        "seconds": np.concatenate([times[:1], times]),
        "share": np.concatenate([[0.0][: keep.size], share[keep]]),
    }
    return pl.DataFrame(columns, schema={"seconds": pl.Float64, "share": pl.Float64})


def region_figure(
    region: Region,
    runs: Mapping[str, Run] | None = None,
    *,
    point: tuple[float, float] | None = None,
    own: Mapping[str, Region] | None = None,
    exact: Floats | None = None,
    most: float | None = None,
    not_drawn: str = "",
) -> Figure:
    """Draw a region, what is asked of it, and a panel per policy with the batches of its run."""
    # The regions of policies of their own are drawn where ``own`` has them, and what the best of
    # all carries where ``exact`` is given. ``most``: how many times the point no policy exceeds, by
    # all limits; None: the region's; ``not_drawn``: what the region does not know of them.
    if point is not None and most is None:
        most = region.scale(point)
    said = _region_in_words(region, point, most)
    own = own or {}
    if not runs:
        mine = next(iter(own.values()), None)
        chart = region_chart(region, point, mine, most=most, exact=exact)
        tables = [_vertices(region, own)]
        caption = f"No policy is stable outside. {not_drawn}".rstrip()
        return Figure("region", "Stability region", {said: chart}, tables, caption)
    drawings = {
        f"{name}: {_most_used(run)}. {said}": region_chart(
            region, point, own.get(name), run.compositions, most
        )
        | {"title": name}
        for name, run in runs.items()
    }
    caption = (
        "Each batch stands at the tokens/s that it carries; its area is its share of the busy "
        f"time. No policy is stable outside the region. {not_drawn}"
    ).rstrip()
    tables = [_mix_table(name, run.compositions) for name, run in runs.items()]
    return Figure("region", "Batches in the region", drawings, tables, caption)


def region_chart(
    region: Region,
    point: tuple[float, float] | None = None,
    own: Region | None = None,
    mix: pl.DataFrame | None = None,
    most: float | None = None,
    exact: Floats | None = None,
) -> Chart:
    """Stability region, what is asked of it, the policy's own reach, and the batches of a run."""
    # The point is offered prefill and decode tokens/s, with its ray from the origin to ``most``
    # times the point; None: to where it leaves the region.
    marks = [] if mix is None else [_batches(mix, region)]
    lines = {"stability region": region.vertices[1:]}
    if exact is not None:
        lines["exact region"] = exact
    if own is not None:
        lines["policy's own region"] = own.vertices[1:]
    if point is not None:
        edge = (region.scale(point) if most is None else most) * np.array(point)
        far = max(edge, np.array(point), key=np.linalg.norm)
        lines["ray of the load"] = np.array([(0.0, 0.0), far])
    by = By("line", {name: _OUTLINES[name] for name in lines})
    parts = [_path(path).with_columns(line=pl.lit(name)) for name, path in lines.items()]
    along = {"order": "order"}
    marks.append(mark("line", "prefill", "decode", by, table=pl.concat(parts), more=along))
    if point is not None:
        ends = np.array([point, edge], float)
        at = pl.DataFrame({"prefill": ends[:, 0], "decode": ends[:, 1], "at": list(_ENDS)})
        ring: dict[str, Any] = {"size": 110, "filled": False, "stroke": "black", "strokeWidth": 1.5}
        on_ray = By("at", _ENDS, look="shape fill")
        marks.append(mark("point", "prefill", "decode", on_ray, table=at, **ring))
    inside = mark(
        "line", "prefill", "decode", more=along, fill=COLOURS[0], fillOpacity=0.12, strokeWidth=0
    )
    x, y = _RATES
    return plot(_path(region.vertices), inside, *marks, x=x, y=y, size=(430, 360))


def _path(points: Any) -> pl.DataFrame:
    columns = {"prefill": points[:, 0], "decode": points[:, 1], "order": np.arange(len(points))}
    return pl.DataFrame(columns)


def _batches(mix: pl.DataFrame, region: Region) -> Mark:
    """Draw batches at their rates, those in one cell of a grid at their mean over time."""
    # One of x prefill and y decode tokens in t is at (x / t, y / t), its area its share of the busy
    # time.
    cell = np.maximum(region.vertices.max(axis=0) / _CELLS, 1e-9)
    rates = mix.select(
        "share",
        *(
            (pl.col(f"{phase}_tokens") * pl.col("batches") / pl.col("seconds")).alias(phase)
            for phase in PHASES
        ),
    )
    cells = [
        (pl.col(phase) / size).floor().alias(f"{phase}_cell")
        for phase, size in zip(PHASES, cell, strict=True)
    ]
    share = pl.col("share")
    means = [((pl.col(phase) * share).sum() / share.sum()).alias(phase) for phase in PHASES]
    gathered = rates.group_by(cells, maintain_order=True).agg(*means, time=share.sum())
    title = "Batches: share of busy time"
    legend = {"title": title, "format": "%", "values": [0.01, 0.1, 0.5]}
    scale = {"range": [6, 500], "domain": [0, 1]}
    area = {"field": "time", "type": "quantitative", "scale": scale, "legend": legend}
    look = {"color": COLOURS[2], "opacity": 0.65, "stroke": "#00513c", "strokeWidth": 0.5}
    largest_first = gathered.sort("time", descending=True, maintain_order=True)
    return mark("circle", "prefill", "decode", table=largest_first, more={"size": area}, **look)


def gantt_figure(run: Run, name: str) -> Figure:
    """Draw the first batches of a run with ``record="allocations"``, coloured by phase."""
    window = first_batches(run)
    said = f"{window.height} batches from {seconds(window['start_s'][0])} s"
    text = (
        f"Gantt chart of {said}: a row per request, a bar per batch that it is in; "
        f"{window['prefill_tokens'].sum():,} prefill and {window['decode_tokens'].sum():,} decode "
        "tokens in all."
    )
    caption = (
        "Prefill is dark and tall, decode light and low; a thin line is a request that waits "
        "between batches."
    )
    here = pl.col("batch").is_in(window["batch"].implode())
    there = run.allocations.filter(here)["request"].n_unique()
    if there > MOST_REQUESTS:
        caption += f" The first {MOST_REQUESTS} of {there:,} requests are drawn."
    rows = [
        (f"{b:,}", f"{start:.3f}", f"{(end - start) * 1e3:.2f}", f"{x:,}", f"{y:,}", f"{n:,}")
        for b, start, end, x, y, n in window.iter_rows()
    ]
    columns = ("Batch", "Start (s)", "Duration (ms)", "Prefill tokens", "Decode tokens", "Requests")
    charts, tables = {f"{name}: {text}": gantt(run)}, [Table(columns, rows)]
    title = f"{name}: {said} on"
    return Figure(f"first_batches_{name}", title, charts, tables, caption, wide=True)


def gantt(run: Run, batches: int = _BATCHES) -> Chart:
    """Who was in each of the first batches: a bar per request and batch, coloured by phase."""
    # Of a run with ``record="allocations"``, from the first batch with two requests: the first 60
    # of them, a thin line from arrival to finish for each.
    window = first_batches(run, batches)
    start, end = window["start_s"][0], window["end_s"][-1]
    bars = _bars(run, window)
    shown = bars["request"].unique()
    waits = run.requests.filter(pl.col("request").is_in(shown.implode())).select(
        "request",
        start_s=(pl.col("arrival_ns") * 1e-9).clip(start, end),
        end_s=(pl.col("finish_ns") * 1e-9).fill_null(end).clip(start, end),
    )
    by = By("phase", {name: [ink] for name, ink in PHASES.items()}, "Tokens in a batch", "color")
    until = {"x2": "end_s"}
    grey: dict[str, Any] = {"color": "#777777", "strokeWidth": 0.8}
    marks = [
        mark("rule", "start_s", table=window, color="#d0d0d0", strokeWidth=0.7),
        mark("rule", "start_s", "request", table=waits, more=until, **grey),
    ]
    for phase, height in (("decode", 0.55), ("prefill", 0.95)):
        look = {"height": {"band": height}, "stroke": "#333333", "strokeWidth": 0.4}
        there = bars.filter(phase=phase)
        marks.append(mark("bar", "start_s", "request", by, table=there, more=until, **look))
    for phase, ink in (("decode", "black"), ("prefill", "white")):
        roomy = bars.filter(pl.col("label") != "", phase=phase)
        words = {"text": "label"}
        look = {"color": ink, "fontSize": 9}
        marks.append(mark("text", "middle_s", "request", table=roomy, more=words, **look))
    return plot(
        bars.clear(),
        *marks,
        x=Axis("Time (s)", domain=(start, end), grid=False),
        y=Axis("Request", names=sorted(shown)),
        size=(GANTT_WIDTH, {"step": min(22.0, max(7.5, 460 / shown.len()))}),
    )


def first_batches(run: Run, batches: int = _BATCHES) -> pl.DataFrame:
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


def _nearest(series: pl.DataFrame, time: float) -> str:
    """Return the tokens at or just before a time, or a dash after the last one."""
    if time > series["time_s"][-1] * 1.05 + 1e-9:
        return "-"
    index = int(np.searchsorted(series["time_s"].to_numpy(), time * (1 + 1e-12), side="right")) - 1
    return f"{series['uncompleted_tokens'][max(index, 0)]:,}"


def _region_in_words(region: Region, point: tuple[float, float] | None, most: float | None) -> str:
    said = f"The stability region has {len(region.vertices) - 1} corners besides the origin"
    if point is None or most is None:
        return f"{said}."
    side = "inside" if region.contains(point) else "outside"
    return (
        f"{said}; the offered load of {point[0]:,.0f} prefill and {point[1]:,.0f} decode tokens/s "
        f"lies {side}, at {1 / most:.3f} of the most along its ray."
    )


def _most_used(run: Run) -> str:
    top = run.compositions.row(0, named=True)
    return (
        f"the most used batch has {top['prefill_tokens']:,} prefill and {top['decode_tokens']:,} "
        f"decode tokens, {top['share']:.0%} of the busy time"
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
        batches, share = f"{rest['batches'].sum():,}", f"{rest['share'].sum():.1%}"
        rows.append((f"{rest.height:,} others", "", batches, share))
    return Table(("Prefill tokens", "Decode tokens", "Batches", "Share of busy time"), rows, name)


def _quantile(latencies: tuple[Distribution, float], share: float) -> str:
    samples, tick_s = latencies
    return seconds(samples.quantile(share) * tick_s) if samples.size else "-"
