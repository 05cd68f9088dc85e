"""Draw how often three ways to ask "is it stable?" are wrong near the critical load.

The system is Sarathi-Serve with a token budget of 1,024, no max batch size, geometric lengths (means 129 and 112), so
by Theorem 1 it is stable below load 1 and unstable above. Each way sees 200 seeds at each load:

* a line fitted by ordinary least squares to the tokens in a run of 20,000 arrivals that starts empty; unstable if its
  slope is above 0 at 1% significance,
* the same with the run cut into 20 batches and the slope fitted to their means,
* `penstock.verdict` with its defaults.

Run ``python docs/verdict_errors.py``; it writes ``docs/figures/verdict_errors.svg``.
"""

from pathlib import Path

import altair as alt
import numpy as np
import polars as pl
from scipy import stats

import penstock as ps
from penstock import plotting

LOADS = (0.9, 0.95, 0.98, 0.99, 1.01, 1.02, 1.05)
SEEDS = 200
ARRIVALS = 20_000
SIGNIFICANCE = 0.01

SERVER = ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, 1024, policy="sarathi", convention="paper")
RATE = ps.certify(ps.Workload.poisson(1.0, ps.Geometric(129), ps.Geometric(112)), SERVER).max_rate


def rising(time: np.ndarray, tokens: np.ndarray) -> bool:
    """Return whether a fitted line rises significantly, taking its residuals for independent."""
    fitted = stats.linregress(time, tokens, alternative="greater")
    return bool(fitted.pvalue < SIGNIFICANCE)


def wrong(load: float, seed: int) -> dict[str, bool]:
    """Return which of the ways is wrong about one run; an undecided test is wrong too."""
    workload = ps.Workload.poisson(load * RATE, ps.Geometric(129), ps.Geometric(112), seed=seed)
    run = ps.simulate(workload, SERVER, requests=ARRIVALS, record="summary", drain=False)
    time, tokens = run.series_rows[:, 0].astype(float), run.series_rows[:, 3].astype(float)
    batches = [part.mean() for part in np.array_split(tokens, 20)]
    truth = "stable" if load < 1 else "unstable"
    return {
        "least squares from empty": rising(time, tokens) == (load < 1),
        "batch means from empty": rising(np.arange(20.0), np.array(batches)) == (load < 1),
        "sequential test from backlogs": ps.verdict(workload, SERVER, seed=seed).verdict != truth,
    }


def main() -> None:
    """Count, print and draw."""
    rows = []
    for load in LOADS:
        found = [wrong(load, seed) for seed in range(SEEDS)]
        for way in found[0]:
            share = sum(f[way] for f in found) / SEEDS
            rows.append({"load": f"{load:.2f}", "way": way, "wrong": share})
            print(f"load {load:.2f}  {way:32} wrong {share:6.1%}")
    ways = [row["way"] for row in rows[:3]]
    axis = alt.Axis(format="%")
    colours = alt.Scale(domain=ways, range=["#56B4E9", "#E69F00", "#000000"])
    bars = alt.Chart(pl.DataFrame(rows)).encode(
        x=alt.X("load:O", title="Load (stable below 1)", axis=alt.Axis(labelAngle=0)),
        xOffset=alt.XOffset("way:N", sort=ways),
        y=alt.Y("wrong:Q", title=f"Share of {SEEDS} verdicts that is wrong", axis=axis, scale=alt.Scale(domain=[0, 1])),
    )
    chart = (
        alt.layer(
            bars.mark_bar(stroke="#333333", strokeWidth=0.6).encode(
                color=alt.Color("way:N", title=None, sort=ways, scale=colours)
            ),
            bars.mark_text(dy=-6, fontSize=9).encode(text=alt.Text("wrong:Q", format=".0%")),
        )
        .properties(width=620, height=260, title="Wrong verdicts near the critical load")
        .configure_axis(gridColor=plotting.GRID)
        .configure_legend(orient="top", labelLimit=300)
    )
    plotting.save({"verdict_errors": chart}, Path(__file__).parent / "figures")


if __name__ == "__main__":
    main()
