"""How often a verdict from simulation is wrong (beyond the paper).

Three ways to ask "is it stable?", near the critical load of a server of which Theorem 1 says what is right, since it
has no max batch size, and a work-conserving policy.
"""

import math

import altair as alt
import numpy as np
import polars as pl
from scipy import stats

import penstock as ps
from paper.item import Item
from paper.staircase import STAIRS

SEEDS = 24  # docs/verdicts.md has 200
LOADS = (0.9, 0.95, 0.98, 0.99, 1.01, 1.02, 1.05)
NEAR = 0.02  # loads so close below 1 are compared with what is known
ALPHA = 0.01  # significance of a slope above 0, and alpha of the sequential test
BATCHES = (20, 200)  # whose means are taken
REQUESTS = 20_000
SERVER = ps.Server(STAIRS, 1024, policy="sarathi", convention="paper")
WORKLOAD = ps.Workload.poisson(1.0, ps.Geometric(129), ps.Geometric(112))  # the rate is set by the load

LEAST_SQUARES, SEQUENTIAL = "least squares", "sequential test"
MEANS = [f"batch means, {count}" for count in BATCHES]
WAYS = [LEAST_SQUARES, *MEANS, SEQUENTIAL]
PUBLISHED = {LEAST_SQUARES: (0.80, 0.97), **dict.fromkeys(MEANS, (0.60, 0.90))}
"""Known shares of stable runs near the critical load that are called unstable."""

item = Item(__name__, __doc__)
item.note(
    f"{SEEDS} seeds at each load, so that a share is known to within about "
    f"{100 * 1.96 * math.sqrt(0.25 / SEEDS):.0f} percentage points; docs/verdicts.md has 200 seeds"
)
item.note(
    f"Loads below 1 and at most {NEAR:g} from it are compared with what is known. Verdict `same` of a slope: its 95% "
    "interval, in brackets, and the known range have a share in common"
)
item.note(
    "Verdict `same` of the sequential test: so many wrong verdicts have a probability above 1% if each is wrong with "
    f"probability {ALPHA:g}, its alpha"
)


def rises(values):
    """Whether a line through values at equal distances rises significantly, its residuals taken for independent."""
    fitted = stats.linregress(np.arange(float(values.size)), values, alternative="greater")
    return bool(fitted.pvalue < ALPHA)


def wrong(workload, stable):
    """Return whether each way is wrong about one workload; an undecided test is wrong too."""
    run = ps.simulate(workload, SERVER, requests=REQUESTS, record="summary", drain=False)
    tokens = run.series["uncompleted_tokens"].to_numpy().astype(float)
    means = (np.array([part.mean() for part in np.array_split(tokens, count)]) for count in BATCHES)
    slopes = [rises(values) == stable for values in (tokens, *means)]
    answer = ps.verdict(workload, SERVER, alpha=ALPHA, seed=workload.seed).verdict
    return [*slopes, answer != ("stable" if stable else "unstable")]


# 1. Each way is asked about the same workloads.
limit = ps.certify(WORKLOAD, SERVER).max_rate  # up to which Theorem 1 says stable
counts = []
for load in LOADS:
    runs = [wrong(WORKLOAD.with_rate(load * limit).with_seed(seed), load < 1) for seed in range(SEEDS)]
    counts += [(load, way, int(count)) for way, count in zip(WAYS, np.sum(runs, axis=0), strict=True)]
rows = pl.DataFrame(counts, ["load", "way", "wrong"], orient="row")
rows = rows.with_columns(verdicts=SEEDS, share=pl.col("wrong") / SEEDS)

# 2. Slopes at stable loads near 1, beside what is known.
near = rows.filter(pl.col("load").is_between(1 - NEAR - 1e-9, 1, closed="left"))
for way, (low, high) in PUBLISHED.items():
    count, asked = near.filter(way=way).select(pl.sum("wrong", "verdicts")).row(0)
    least, most = stats.binomtest(count, asked).proportion_ci()
    item.claim(
        f"stable runs called unstable by {way}", f"known: {low:.0%} to {high:.0%}",
        f"{count / asked:.0%} ({least:.0%} to {most:.0%}) of {asked}", least <= high and most >= low,
        "the load, the length of the runs, or chance: see the figure" if way == LEAST_SQUARES else
        "the known shares come from a number of batches that is not stated; more batches give more wrong verdicts, so "
        "that another number than theirs gives another share, and this is no contradiction",
    )  # fmt: skip

# 3. The sequential test at all loads, beside its alpha.
count, asked = rows.filter(way=SEQUENTIAL).select(pl.sum("wrong", "verdicts")).row(0)
chance = stats.binomtest(count, asked, ALPHA, alternative="greater").pvalue
item.claim(
    "wrong verdicts by the sequential test", f"at most {ALPHA:.0%}, its alpha", f"{count:,} of {asked:,}",
    chance > 0.01, "alpha holds where a load is at least the test's resolution of 1% away from 1",
)  # fmt: skip

# 4. The figure.
colours = ["#56B4E9", "#E69F00", "#F0E442", "#000000"]
bars = alt.Chart(rows.with_columns(load=pl.col("load").map_elements("{:g}".format, pl.String))).encode(
    x=alt.X("load:O", title="Load (stable below 1)", sort=None, axis=alt.Axis(labelAngle=0)),
    xOffset=alt.XOffset("way:N", sort=WAYS),
    y=alt.Y(
        "share:Q", title=f"Share of {SEEDS} verdicts that is wrong", axis=alt.Axis(format="%"),
        scale=alt.Scale(domain=[0, 1]),
    ),
)  # fmt: skip
legend = alt.Legend(title="Way to ask", symbolStrokeWidth=0.6)
colour = alt.Color("way:N", sort=WAYS, scale=alt.Scale(domain=WAYS, range=colours), legend=legend)
drawing = alt.layer(
    bars.mark_bar(stroke="#333333", strokeWidth=0.6).encode(color=colour),
    bars.mark_text(dy=-6, fontSize=9).encode(text=alt.Text("share:Q", format=".0%")),
).properties(width=640, height=280)
text = "Share of verdicts that are wrong, by load: slopes from an empty system, and the sequential test."
item.show(
    rows, {text: drawing},
    "By Theorem 1 the server is stable below load 1 and unstable above. Least squares and batch means fit a slope to "
    "the tokens in a run that starts empty, batch means after averages over so many parts of it. They say unstable if "
    f"the slope is above 0 at a significance of {ALPHA:g}. The sequential test starts from large backlogs.",
)  # fmt: skip
