"""Work-conserving priorities that lose a stable load (Section 5.4).

The published priorities of the two crossed servers let the queues grow without end; turned around they do not. The
paper gives no numbers, so tokens are compared with the fluid path: their waves grow as its spiral does.
"""

import altair as alt
import numpy as np
import polars as pl
from scipy import stats

import penstock as ps
from paper.crossed_servers import FIRST, LENGTHS, PUBLISHED, RANKING, REVERSED, SERVER, SLOT, claim_verdict, crossed
from paper.item import Item
from paper.looks import channels
from penstock.theory.network.fluid import network_path

LOAD = 0.9
UNTIL_S = 20_000
GROW, RESTORED = "tokens grow without bound", "stability is restored"  # the paper's words
CASES = (("as published", PUBLISHED, "unstable", GROW), ("reversed", REVERSED, "stable", RESTORED))
NEAR = 0.05  # relative distance from the fluid path that is noise
LEVEL = 1.5  # of requests, late in a run to earlier, below which they do not grow; 2 if they grow as time does

item = Item(__name__, __doc__)
item.note(
    "Verdict `same`: the flood test says what the paper says, and no theorem says otherwise; tokens grow by more than "
    f"half of what the fluid path gives; the most tokens over time are within {NEAR:.0%} of the fluid path; the mean "
    f"number of requests in the later half is below {LEVEL:g} times that in the second quarter"
)
item.note("The paper gives means only; each kind of lengths is simulated")
item.note(
    "A fixed priority between classes is not K-FCFS, so the figure shows what work conservation alone cannot do, and "
    "contradicts none of the paper's theorems"
)


def totals(run):
    """Return requests in the network, and tokens that its jobs still need, while jobs arrive."""
    until, queued = run.last_arrival * run.tick_s, pl.col("what").is_in(["prefill", "decode"])
    there = run.series.filter(pl.col("time_s") <= until).group_by("time_s", maintain_order=True)
    return there.agg(
        requests=pl.col("value").filter(queued).sum(),
        tokens=pl.col("value").filter(pl.col("what") == "job_tokens").sum(),
    )


def fluid_envelope(load):
    """Return the most tokens over time, per second, along the fluid path; 0 where that does not grow for ever."""
    path = network_path(crossed(load, PUBLISHED).model(), RANKING, FIRST)
    late = slice(path.time_s.size // 2, None)
    tokens = path.work_s[late] * SERVER.token_budget
    return float((tokens / path.time_s[late]).max()) * path.grows


# 1. Each order with each kind of lengths: verdicts, and a run.
series = {}
for name, orders, answer, words in CASES:
    for kind, lengths in LENGTHS.items():
        network = crossed(LOAD, orders, lengths)
        claim_verdict(item, network, f"{name}, {kind} lengths", answer, words)
        series[name, kind] = totals(ps.simulate(network, until=UNTIL_S, seed=0, record="jobs", drain=False))

# 2. As published: how tokens grow, in all and at the crests of their waves.
envelope = fluid_envelope(LOAD)
for kind in LENGTHS:
    time, _, tokens = series["as published", kind].to_numpy().T
    slope = stats.linregress(time, tokens).slope
    item.claim(
        f"growth, {kind} lengths", GROW, f"{slope:,.0f} tokens/s", slope > envelope / 2 > 0,
        "waves grow ever longer, so a slope depends on where in a wave the run ends",
    )  # fmt: skip
    late = time > time[-1] / 2
    most = np.max(tokens[late] / time[late])
    item.claim(
        f"most tokens over time, {kind} lengths", GROW,
        f"{most:,.0f} tokens/s simulated, {envelope:,.0f} by the fluid path", abs(most - envelope) <= NEAR * envelope,
        "the run has too few waves to come near the fluid path",
    )  # fmt: skip

# 3. Turned around: requests do not grow.
for kind in LENGTHS:
    run = series["reversed", kind]
    end, parts = run["time_s"][-1], ((0.25, 0.5), (0.5, 1.0))
    inside = (pl.col("time_s").is_between(start * end, stop * end) for start, stop in parts)
    early, late = (run.filter(part)["requests"].mean() for part in inside)
    item.claim(
        f"requests when reversed, {kind} lengths", RESTORED,
        f"{early:,.0f} in the second quarter, {late:,.0f} in the later half", late < LEVEL * early,
        "the run is too short for its means to settle",
    )  # fmt: skip

# 4. The figure: requests and tokens over time, a row per order, a line per kind of lengths.
rows = pl.concat(each.with_columns(order=pl.lit(name), lengths=pl.lit(kind)) for (name, kind), each in series.items())
drawn = []
for name, *_ in CASES:
    here = rows.filter(order=name)
    thin = -(-here.height // (400 * len(LENGTHS)))
    thinned = pl.concat(here.filter(lengths=kind).gather_every(thin) for kind in LENGTHS)
    lines = alt.Chart(thinned, width=330, height=200).mark_line(strokeWidth=1.5)
    panels = [
        lines.encode(
            alt.X("time_s:Q", title="Time (s)", axis=alt.Axis(tickCount=5, format="~s", offset=5)),
            alt.Y(f"{of}:Q", title=title, axis=alt.Axis(format="~s", tickCount=6, offset=5)),
            **channels("lengths", list(LENGTHS), "Lengths"),
        )
        for of, title in (("requests", "Requests in the network"), ("tokens", "Tokens still needed"))
    ]
    drawn.append(alt.hconcat(*panels, title=alt.TitleParams(f"Priorities {name}", anchor="start")))
text = "Requests and tokens over time under the published priorities and under the reversed ones, by kind of lengths."
item.show(
    rows.select("order", "lengths", "time_s", "requests", "tokens"), {text: alt.vconcat(*drawn)},
    f"{SLOT} Tokens: all that the tasks in the network still need, their later stages included.",
)  # fmt: skip
