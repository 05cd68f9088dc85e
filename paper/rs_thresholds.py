"""Where each priority of the crossed servers fails (beyond the paper).

The loads above which priorities lose the two crossed servers of Section 5.4, and the mean E2E of other orders there.
"""

import altair as alt
import numpy as np
import polars as pl
from scipy import stats

import penstock as ps
from paper.crossed_servers import FIRST, PUBLISHED, RANKING, REVERSED, SLOT, claim_verdict, crossed
from paper.item import Item
from paper.looks import channels
from penstock.kernel.signatures import LINE_PREFILL_MEAN
from penstock.show.plot import COLOURS
from penstock.theory.network.cycles import priority_stability
from penstock.theory.network.fluid import network_path
from penstock.theory.network.virtual_stations import priority_limit, worst_priority

JOBS = 400_000  # docs/theory/many-servers.md has 4 million
ORDERS_AT = 0.9  # the load at which orders are compared: one of those in E2E
STABLE_AT, UNSTABLE_AT = 0.54, 0.58  # on either side of the limit of the paper's priorities
PUSH_AT = 0.556  # between that of a push start and that of the paper's priorities
LIMIT, PUSH_LIMIT, LIMITS_TO = 0.5588, 0.5429, 0.0005  # by formula
AMPLIFIED, AMPLIFIED_TO = {0.5: 0.810, 0.7: 1.676, 0.9: 4.135}, 0.001  # of a backlog, by half a cycle
E2E = {  # mean, s, by load, from an independent slotted program
    "reversed": {0.9: 70, 0.95: 74, 0.98: 82, 0.99: 93},
    "back-pressure": {0.9: 79, 0.95: 82, 0.98: 90, 0.99: 102},
    "back-pressure-phase": {0.9: 86, 0.95: 91, 0.98: 100, 0.99: 112},
    "hlpps": {0.9: 72, 0.95: 81, 0.98: 107, 0.99: 158},
    "fcfs": {0.9: 77, 0.95: 90, 0.98: 127, 0.99: 192},
}
NEAR = 0.05  # by which an interval of E2E is widened
WARMUP, BATCHES = 0.2, 30  # share of the jobs that is left out, and batches of the others

item = Item(__name__, __doc__)
item.note(
    "Rows marked formula compare formulas with a linear program or a fluid path; rows marked simulated are simulated "
    "here"
)
item.note(
    f"Verdict `same`: limits within {LIMITS_TO}, amplifications within {AMPLIFIED_TO}; of E2E, the other figure lies "
    f"in the 95% interval widened by {NEAR:.0%}"
)
item.note(
    "The E2E of the slotted program come from an independent program with slots of 1 s, where requests arrive and move "
    "on between slots; here they arrive at any time"
)


@ps.order
def push_start(lines, params, weights):
    """Prompts of the stage with the shortest ones first, then other stages, then the decodes of that stage."""
    short = 0
    for line in range(lines.shape[0]):
        if lines[line, LINE_PREFILL_MEAN] < lines[short, LINE_PREFILL_MEAN]:
            short = line
    for line in range(lines.shape[0]):
        weights[line, 0] = 2.0
        weights[line, 1] = 3.0
    weights[short, 0] = 4.0
    weights[short, 1] = 1.0
    return ps.BY_PHASE


def half_cycle(station, load):
    """Return by how much half a cycle multiplies a backlog."""
    return float(np.sqrt(np.prod(station.amplification(load))))


def mean_e2e(run):
    """Return the mean E2E of the jobs after a warm-up, and the half width of its 95% interval by batch means."""
    jobs = run.jobs.drop_nulls("finish_ns")
    e2e = (jobs["finish_ns"] - jobs["arrival_ns"]).to_numpy()[int(WARMUP * jobs.height) :] / 1e9
    means = [batch.mean() for batch in np.array_split(e2e, BATCHES)]
    return e2e.mean(), stats.t.ppf(0.975, BATCHES - 1) * stats.sem(means)


# 1. The limits by formula: of a virtual station, and of the linear program.
model = crossed(1.0, PUBLISHED).model()
stations = {"the paper's priorities": priority_limit(model, RANKING), "push start": worst_priority(model, phases=True)}
own, push = stations.values()
for what, station, program, limit in (
    ("the paper's priorities fail", own, priority_stability(model, RANKING), LIMIT),
    ("a push start fails", push, priority_stability(model, push.ranking, phases=True), PUSH_LIMIT),
):
    item.claim(
        f"formula: {what} above", f"a load of {limit} (formula)",
        f"{station.max_load:.4f} (virtual station), {program.max_load:.4f} (linear program)",
        max(abs(station.max_load - limit), abs(program.max_load - limit)) < LIMITS_TO,
        "formula, program or path is not the known one",
    )  # fmt: skip

# 2. What half a cycle does to a backlog: by formula, and along a fluid path.
for load, published in AMPLIFIED.items():
    formula = half_cycle(own, load)
    along = np.sqrt(network_path(crossed(load, PUBLISHED).model(), own.ranking, FIRST).growth)
    item.claim(
        f"formula: half a cycle multiplies a backlog, at {load:g}", f"{published:.3f} (formula)",
        f"{formula:.3f} by formula, {along:.3f} along a fluid path",
        max(abs(formula - published), abs(along - published)) < AMPLIFIED_TO,
        "the fluid path, or the formula, gives another figure",
    )  # fmt: skip

# 3. Floods below and above the limits.
for what, load, orders, answer in (
    ("the paper's priorities", STABLE_AT, PUBLISHED, "stable"),
    ("the paper's priorities", UNSTABLE_AT, PUBLISHED, "unstable"),
    ("a push start", PUSH_AT, (push_start, push_start), "unstable"),
):
    claim_verdict(item, crossed(load, orders), f"simulated: {what} at {load:g}", answer, f"{answer} (formula)")

# 4. Mean E2E under each order.
means = []
for name, known in E2E.items():
    network = crossed(ORDERS_AT, REVERSED if name == "reversed" else (name, name))
    mean, half = mean_e2e(ps.simulate(network, jobs=JOBS, seed=0, record="jobs"))
    expected = known[ORDERS_AT]
    means.append((name, mean, half, float(expected)))
    item.claim(
        f"simulated: mean E2E at {ORDERS_AT:g}, {name}", f"{expected} s (slotted program)",
        f"{mean:.1f} +- {half:.1f} s", abs(mean - expected) <= half + NEAR * mean,
        f"outside the 95% interval widened by {NEAR:.0%}: the run is too short",
    )  # fmt: skip
rows = pl.DataFrame(means, ["order", "mean_e2e_s", "half_width_s", "known_s"], orient="row")


# 5. The figures: the amplification over the load, and the mean E2E of each order.
def amplifications():
    """Draw the amplification by half a cycle over the load, with the limit of each priority."""
    shown = (0.3, 10.0)
    curves = [
        (name, load, half_cycle(station, load))
        for name, station in stations.items()
        for load in np.linspace(0.3, 0.9, 121).tolist()
    ]
    table = pl.DataFrame(curves, ["order", "load", "amplification"], orient="row")
    known = pl.DataFrame(list(AMPLIFIED.items()), ["load", "amplification"], orient="row")
    limits = pl.DataFrame([(name, each.max_load) for name, each in stations.items()], ["order", "load"], orient="row")
    ticks = alt.Axis(values=[0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9], format=".1f")
    x = alt.X("load:Q", title="Load of each server", scale=alt.Scale(domain=[0.3, 0.9]), axis=ticks)
    y = alt.Y(
        "amplification:Q", title="Amplification by half a cycle (log scale)",
        scale=alt.Scale(type="log", domain=shown, nice=False),
        axis=alt.Axis(values=[0.3, 0.5, 1, 2, 3, 5, 10], minExtent=40),
    )  # fmt: skip
    look = channels("order", list(stations), "Order")
    inside = table.filter(pl.col("amplification").is_between(*shown))
    points = alt.Chart(known).mark_point(size=60, filled=True, fill="white", stroke="black", opacity=1)
    words = (
        alt.Chart(limits.filter(order=name))
        .mark_text(align=align, dx=dx, fontSize=11, text=f"{station.max_load:.4f}")
        .encode(x=x, y=alt.value(12))
        for (name, station), (align, dx) in zip(stations.items(), (("left", 5), ("right", -5)), strict=True)
    )
    return alt.layer(
        alt.Chart(pl.DataFrame({"amplification": [1.0]})).mark_rule(color="black").encode(y=y),
        alt.Chart(limits).mark_rule(strokeWidth=1.2).encode(x=x, **look),
        alt.Chart(inside).mark_line(strokeWidth=2).encode(x=x, y=y, **look),
        points.encode(x=x, y=y),
        *words,
    ).properties(width=430, height=280)


def dots():
    """Draw the mean E2E of each order with its interval, and what is known."""
    names = ["simulated here", "slotted program"]
    mean, half = pl.col("mean_e2e_s"), pl.col("half_width_s")
    here = rows.select("order", of=pl.lit(names[0]), mean=mean, low=mean - half, high=mean + half)
    known = rows.select("order", of=pl.lit(names[1]), mean="known_s")
    x = alt.X("mean:Q", title="Mean E2E (s)", scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=6))
    y = alt.Y("order:N", sort=list(E2E), title=None, axis=alt.Axis(labelLimit=300, minExtent=150))
    legend = alt.Legend(title=None, labelLimit=300, columns=1)
    looks = [
        kind("of:N", scale=alt.Scale(domain=names, range=pair), legend=legend)
        for kind, pair in ((alt.Size, [150, 45]), (alt.Color, COLOURS[:2]), (alt.Shape, ["circle", "cross"]))
    ]
    marks = alt.Chart(pl.concat([here, known], how="diagonal")).mark_point(opacity=1, strokeWidth=2)
    bars = alt.Chart(here).mark_rule(strokeWidth=2, color=COLOURS[0])
    interval = bars.encode(x=alt.X("low:Q"), x2="high:Q", y=y)
    return alt.layer(interval, marks.encode(x, y, *looks)).properties(width=430, height=200)


item.show(
    rows,
    {
        "Amplification of a backlog by half a cycle, over the load, for two priorities: each passes 1 at its limit.":
        amplifications(),
        f"Mean E2E by order at a load of {ORDERS_AT:g}, with intervals, beside that of a slotted program.":
        dots(),
    },
    "First figure: where half a cycle multiplies a backlog by more than 1, right of the vertical line, queues grow "
    "without end; the dots are the formula's figures. Second figure: E2E of an independent slotted program beside "
    f"those simulated here. {SLOT}",
)  # fmt: skip
