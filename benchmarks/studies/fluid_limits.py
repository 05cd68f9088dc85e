"""Draw simulated backlogs over the fluid path that they approach:
``docs/figures/fluid_limits_*.svg``.

Requests that wait for prefill at the start, scaled by their number, at load .8, under the two
orders that f1-f7 do not tell apart: decode first (Sarathi-Serve) and prefill first (Orca). Run
``python benchmarks/studies/fluid_limits.py``.
"""

from pathlib import Path

import altair as alt
import numpy as np
import polars as pl

import penstock as ps
from penstock.show import charts
from penstock.show.plot import COLOURS, DASHES

LOAD, PROMPT, OUTPUT = 0.8, 129, 112
SIZES = (100, 400, 3_200)
POINTS = 500


def trajectories(path: ps.FluidPath, runs: dict[int, ps.Run], about: str) -> alt.HConcatChart:
    """Requests in prefill and in decode, and tokens: a fluid path, and runs scaled to lie on it."""
    # The path starts from the runs' state over their size.
    fluid = "fluid"
    end = 1.15 * path.drain_s
    names = [f"{size:,}" for size in runs] + [fluid]
    time = np.union1d(np.linspace(0, end, POINTS), path.time_s[path.time_s <= end])
    prefill, decode = path.at(time)
    columns = {"time": time, "prefill": prefill, "decode": decode, "tokens": path.work_at(time)}
    parts = [
        pl.DataFrame(columns | {"size": fluid}),
        *(scaled(run, size, time) for size, run in runs.items()),
    ]
    legend = alt.Legend(
        title=["Requests at the start", "(the scale of a run)"], symbolStrokeWidth=2, symbolSize=300
    )
    colours = [*(COLOURS[i % 6] for i in range(len(runs))), "#000000"]
    dashes = [*(DASHES[1 + i % 6] for i in range(len(runs))), [1, 0]]
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
    under = alt.TitleParams(
        about, anchor="start", fontWeight="normal", fontSize=12, orient="bottom", offset=12
    )
    return alt.hconcat(*panels, title=under)


def scaled(run: ps.Run, size: int, time: np.ndarray) -> pl.DataFrame:
    """Return a run's requests by phase and tokens over its size, at times over it, while it ran."""
    time = time[time * size <= run.seconds]
    came, began, left = (
        np.searchsorted(np.sort(column[column >= 0]), time * size / run.tick_s, side="right")
        for column in (run.rows.arrival, run.rows.first_token, run.rows.finish)
    )
    tokens = np.interp(time * size, run.series["time_s"], run.series["unprocessed_tokens"])
    phases = {"prefill": (came - began) / size, "decode": (began - left) / size}
    return pl.DataFrame({"time": time, **phases, "tokens": tokens / size, "size": f"{size:,}"})


def main() -> None:
    """Simulate from three initial states each, and draw."""
    batch_time = ps.hardware("codellama-34b-a100-tp1").batch_time
    for policy in ("sarathi", "orca"):
        server = ps.Server(batch_time, 1024, policy=policy)
        rate = LOAD * ps.certify(ps.Workload.poisson(1.0, PROMPT, OUTPUT), server).max_rate
        path = ps.fluid(server, arrival_rate=rate, prompt=PROMPT, output=OUTPUT, prefill=1.0)
        runs = {}
        for size in SIZES:
            rng = np.random.default_rng(size)
            after = np.cumsum(rng.exponential(1 / rate, 6 * size))
            arrivals = np.concatenate([np.zeros(size), after])
            lengths = [rng.geometric(1 / mean, arrivals.size) for mean in (PROMPT, OUTPUT)]
            runs[size] = ps.simulate(ps.Workload.from_arrays(arrivals, *lengths), server)
        about = (
            f"{policy}, load {LOAD}, geometric lengths of {PROMPT} and {OUTPUT} tokens, token "
            "budget 1,024"
        )
        chart = trajectories(path, runs, about)
        charts.save(
            {f"fluid_limits_{policy}": chart}, Path(__file__).parents[2] / "docs" / "figures"
        )


if __name__ == "__main__":
    main()
