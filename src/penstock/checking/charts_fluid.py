"""Charts of fluid paths: what a large backlog does, beside runs that began with one."""

from collections.abc import Mapping

import altair as alt
import numpy as np
import polars as pl

from penstock.errors import InputError
from penstock.inputs.arrays import Floats
from penstock.show.charts import COLOURS, DASHES, side_by_side
from penstock.simulation.run import Run
from penstock.theory.fluid import FluidPath

_POINTS = 500


def fluid_trajectories(
    path: FluidPath, runs: Mapping[int, Run], about: str = ""
) -> alt.HConcatChart:
    """Requests in prefill and in decode, and tokens: a fluid path, and runs scaled to lie on it."""
    # The path starts from the runs' state over their size, by engines' token convention. Classes
    # are added up.
    fluid = "fluid"
    end = 1.15 * path.drain_s
    if not 0 < end < float("inf"):
        ends = [run.seconds / size for size, run in runs.items()]
        end = max(ends, default=1.15 * path.time_s[-1] or 1.0)
    names = [f"{size:,}" for size in runs] + [fluid]
    time = np.union1d(np.linspace(0, end, _POINTS), path.time_s[path.time_s <= end])
    prefill, decode = (phase.reshape(time.size, -1).sum(axis=1) for phase in path.at(time))
    columns = {"time": time, "prefill": prefill, "decode": decode, "tokens": path.work_at(time)}
    parts = [
        pl.DataFrame(columns | {"size": fluid}),
        *(_scaled(run, size, time) for size, run in runs.items()),
    ]
    legend = alt.Legend(
        title=["Requests at the start", "(the scale of a run)"], symbolStrokeWidth=2, symbolSize=300
    )
    colours = [*(COLOURS[i % 6] for i in range(len(runs))), "#000000"]
    dashes = [*(list(DASHES[1 + i % 6]) for i in range(len(runs))), [1, 0]]
    shared = {
        "x": alt.X(
            "time:Q",
            title="Time over size (s per request)",
            scale=alt.Scale(domain=[0, end], nice=False),
            axis=alt.Axis(tickCount=5, labelFlush=False),
        ),
        "color": alt.Color("size:N", scale=alt.Scale(domain=names, range=colours), legend=legend),
        "strokeDash": alt.StrokeDash(
            "size:N", scale=alt.Scale(domain=names, range=dashes), legend=legend
        ),
        "strokeWidth": alt.condition(alt.datum.size == fluid, alt.value(2.5), alt.value(1.4)),
    }
    lines = alt.Chart(pl.concat(parts)).mark_line()
    panels = [
        lines.encode(y=alt.Y(f"{column}:Q", title=title), **shared).properties(
            width=250, height=260
        )
        for column, title in (
            ("prefill", "Requests in prefill over size"),
            ("decode", "Requests in decode over size"),
            ("tokens", "Tokens not yet in a batch over size"),
        )
    ]
    return side_by_side(panels, about)


def _scaled(run: Run, size: int, time: Floats) -> pl.DataFrame:
    """Return a run's requests by phase and tokens over its size, at times over it, while it ran."""
    if run.server.convention != "engine" or run.rows is None:
        raise InputError(
            f"the run of size {size:,} does not tell when requests leave prefill; simulate it in "
            "the token convention "
            "'engine', with record='requests'"
        )
    time = time[time * size <= run.seconds]
    came, began, left = (
        np.searchsorted(np.sort(column[column >= 0]), time * size / run.tick_s, side="right")
        for column in (run.rows.arrival, run.rows.first_token, run.rows.finish)
    )
    tokens = np.interp(time * size, run.series["time_s"], run.series["unprocessed_tokens"])
    phases = {"prefill": (came - began) / size, "decode": (began - left) / size}
    return pl.DataFrame({"time": time, **phases, "tokens": tokens / size, "size": f"{size:,}"})
