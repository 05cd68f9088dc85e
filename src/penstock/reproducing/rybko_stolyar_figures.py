"""Figures of the crossed servers: requests and tokens over time, amplification by load, and E2E by
order.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from penstock.reproducing.looks import channels, on_grid
from penstock.show import charts
from penstock.theory.network.virtual_stations import VirtualStation

_SHOWN = (0.3, 10.0)


def panels(table: pl.DataFrame, kinds: Sequence[str]) -> Any:
    """Draw requests and tokens over time, a row per priority, a line per kind of lengths."""
    rows = []
    look = channels("lengths", kinds, "Lengths")
    for name in dict.fromkeys(table["order"]):
        here = table.filter(order=name)
        thin = -(-here.height // (400 * len(kinds)))
        thinned = pl.concat([here.filter(lengths=kind).gather_every(thin) for kind in kinds])
        side_by_side = [
            alt.Chart(thinned)
            .mark_line(strokeWidth=1.5)
            .encode(
                x=alt.X(
                    "time_s:Q", title="Time (s)", axis=alt.Axis(tickCount=5, format="~s", offset=5)
                ),
                y=alt.Y(f"{of}:Q", title=unit, axis=alt.Axis(format="~s", tickCount=6, offset=5)),
                **look,
            )
            .properties(width=330, height=200)
            for of, unit in (
                ("requests", "Requests in the network"),
                ("tokens", "Tokens still needed"),
            )
        ]
        rows.append(
            alt.hconcat(*side_by_side).properties(
                title=alt.TitleParams(f"Priorities {name}", anchor="start")
            )
        )
    return on_grid(alt.vconcat(*rows))


def curves(stations: Mapping[str, VirtualStation], amplified: Mapping[float, float]) -> Any:
    """Draw the amplification by half a cycle over the load, with the threshold of each."""
    rows = [
        (name, float(load), float(np.sqrt(np.prod(virtual.amplification(load)))))
        for name, virtual in stations.items()
        for load in np.linspace(0.3, 0.9, 121)
    ]
    table = pl.DataFrame(rows, ["order", "load", "amplification"], orient="row")
    table = table.filter(pl.col("amplification").is_between(*_SHOWN))
    limits = pl.DataFrame(
        [(name, virtual.max_load) for name, virtual in stations.items()],
        ["order", "load"],
        orient="row",
    )
    look = channels("order", list(stations), "Order")
    x = alt.X(
        "load:Q",
        title="Load of each server",
        scale=alt.Scale(domain=[0.3, 0.9]),
        axis=alt.Axis(values=[0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9], format=".1f"),
    )
    y = alt.Y(
        "amplification:Q",
        title="Amplification by half a cycle (log scale)",
        scale=alt.Scale(type="log", domain=_SHOWN, nice=False),
        axis=alt.Axis(values=[0.3, 0.5, 1, 2, 3, 5, 10], minExtent=40),
    )
    lines = alt.Chart(table).mark_line(strokeWidth=2).encode(x=x, y=y, **look)
    one = alt.Chart(pl.DataFrame({"amplification": [1.0]})).mark_rule(color="black").encode(y=y)
    rules = alt.Chart(limits).mark_rule(strokeWidth=1.2).encode(x=x, **look)
    published = [(at, value) for at, value in amplified.items() if _SHOWN[0] <= value <= _SHOWN[1]]
    points = alt.Chart(pl.DataFrame(published, ["load", "amplification"], orient="row")).mark_point(
        size=60, filled=True, fill="white", stroke="black", opacity=1
    )
    texts = [
        alt.Chart(
            limits.filter(order=name).with_columns(text=pl.format("{}", pl.col("load").round(4)))
        )
        .mark_text(align="right" if index else "left", dx=-5 if index else 5, fontSize=11)
        .encode(x=x, y=alt.value(12), text="text:N")
        for index, name in enumerate(stations)
    ]
    return on_grid(
        alt.layer(one, rules, lines, points.encode(x=x, y=y), *texts).properties(
            width=430, height=280
        )
    )


def dots(table: pl.DataFrame) -> Any:
    """Draw mean E2E by order with its interval, and what is known."""
    names = ["simulated here", "slotted program"]
    rows = [
        {"order": name, "low": mean - half, "high": mean + half, "mean": mean, "of": names[0]}
        for name, mean, half, _ in table.iter_rows()
    ]
    rows += [
        {"order": name, "low": None, "high": None, "mean": float(expected), "of": names[1]}
        for name, _, _, expected in table.iter_rows()
        if expected is not None
    ]
    base = alt.Chart(pl.DataFrame(rows))
    y = alt.Y(
        "order:N",
        sort=list(table["order"]),
        title=None,
        axis=alt.Axis(labelLimit=300, minExtent=150),
    )
    x = alt.X(
        "mean:Q", title="Mean E2E (s)", scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=6)
    )
    legend = alt.Legend(title=None, labelLimit=300, columns=1)
    marks = base.mark_point(opacity=1, strokeWidth=2).encode(
        x=x,
        y=y,
        size=alt.Size("of:N", scale=alt.Scale(domain=names, range=[150, 45]), legend=legend),
        color=alt.Color(
            "of:N", scale=alt.Scale(domain=names, range=list(charts.COLOURS[:2])), legend=legend
        ),
        shape=alt.Shape(
            "of:N", scale=alt.Scale(domain=names, range=["circle", "cross"]), legend=legend
        ),
    )
    bars = base.transform_filter("datum.low != null").mark_rule(
        strokeWidth=2, color=charts.COLOURS[0]
    )
    return on_grid(
        alt.layer(bars.encode(x=alt.X("low:Q"), x2="high:Q", y=y), marks).properties(
            width=430, height=200
        )
    )
