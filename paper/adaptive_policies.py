"""Policies that adapt, along the region's boundary (beyond the paper).

Shares of the stability region's boundary that policies carry under a max batch size (the open question of Section 6.2).
Each is searched for, without what is known of it.
"""

import dataclasses

import altair as alt
import polars as pl

import penstock as ps
from paper.item import Item
from paper.looks import SHAPES
from paper.staircase import STAIRS
from penstock.show.plot import COLOURS

SERVER = ps.Server(STAIRS, 1024, max_batch_size=100, scope="batch", convention="paper")
POLICIES = {
    "sarathi-128": {"policy": "sarathi", "token_budget": 128},
    "sarathi-256": {"policy": "sarathi", "token_budget": 256},
    "sarathi-1024": {"policy": "sarathi"},
    "maxweight": {"policy": "maxweight"},
    "pool-controlled": {"policy": "pool-controlled"},
}
LENGTHS = {"geometric": ps.Geometric, "constant": ps.Constant}
POINTS = {"middle of CD": 144, "C": 290, "quarter of CB": 740, "middle of CB": 1516, "B": 9250}  # mean prompt tokens
OUTPUT = 990
PRECISION = 0.01  # relative distance from the largest share found stable to the next, found not to be
KNOWN_TO = 0.005
KNOWN = {  # by an independent program, to within KNOWN_TO: by policy, with geometric and with constant lengths
    "middle of CD": ((0.999, 1.001), (0.921, 0.934), (0.909, 0.924), (1.001, 0.999), (1.001, 0.999)),
    "C": ((0.971, 0.999), (0.871, 0.876), (0.849, 0.859), (1.001, 1.001), (0.991, 0.999)),
    "quarter of CB": ((0.936, 0.936), (0.929, 0.926), (0.881, 0.879), (1.001, 0.999), (0.986, 0.984)),
    "middle of CB": ((0.881, 0.881), (0.984, 0.989), (0.919, 0.921), (1.001, 0.999), (0.989, 0.986)),
    "B": ((0.789, 0.789), (0.896, 0.896), (0.996, 0.999), (0.999, 0.999), (0.994, 0.996)),
}
BACKLOGS = {"prefill": "a backlog of prompts", "mixed": "a mixed backlog", "decode": "a backlog of decodes"}

item = Item(__name__, __doc__)


def why(workload, server, share):
    """Say which backlogs grow just below the known share, and which shrink."""
    share -= 2 * KNOWN_TO
    watches = ps.verdict(workload.with_rate(share * workload.rate), server).watches
    grow, shrink = (
        [f"{BACKLOGS[watch.start]} {does} by {abs(watch.drift):.1%}" for watch in watches if watch.outcome == outcome]
        for outcome, does in (("unstable", "grows"), ("stable", "shrinks"))
    )
    where = f"at {share:.3f}, just below the known share,"
    if not (grow and shrink):
        return f"{where} {' and '.join(grow or shrink) or 'the test is undecided'}"
    drifts = f"{' and '.join(shrink)}, but {' and '.join(grow)}: the answer depends on the start"
    return f"{where} {drifts}, and the test asks that no backlog grows"


# 1. Each policy at each point, with each kind of lengths: the share of the boundary up to which it is stable.
servers = {name: dataclasses.replace(SERVER, **choice) for name, choice in POLICIES.items()}
cells = []
for point, prompt in POINTS.items():
    for (name, server), known in zip(servers.items(), KNOWN[point], strict=True):
        published, measured, reasons = [], [], []
        for (kind, lengths), share in zip(LENGTHS.items(), known, strict=True):
            boundary = ps.region(SERVER, prompt=lengths(prompt), output=lengths(OUTPUT)).max_rate
            workload = ps.Workload.poisson(boundary, lengths(prompt), lengths(OUTPUT), seed=0)
            most = ps.max_rate(workload, server, precision=PRECISION)
            stable, unstable = most.rate / boundary, most.above / boundary
            cells.append((point, name, kind, share, stable, unstable))
            published.append(f"{kind} {share:.3f}")
            measured.append(f"{kind} {stable:.3f} to {unstable:.3f}")
            if not stable - KNOWN_TO <= share <= unstable + KNOWN_TO:
                reasons.append(f"{kind} lengths: {why(workload, server, share)}")
        item.claim(f"{point}, {name}", ", ".join(published), ", ".join(measured), not reasons, "; ".join(reasons))

# 2. What has to be said.
item.note(
    f"Every share was searched for, to a precision of {PRECISION:g}; the known one plays no part in the search. The "
    "test of stability asks that no backlog grows: it tries one of prompts, a mixed one and one of decodes"
)
item.note(
    f"Verdict `same`: the known share lies between the two measured ones, or at most {KNOWN_TO} beside them, since it "
    f"is known to within {KNOWN_TO}"
)
item.note(
    f"Arrivals are Poisson. Mean prompt tokens by point: {', '.join(f'{at} {n:,}' for at, n in POINTS.items())}. Mean "
    f"output tokens: {OUTPUT:,}"
)
described = []
for name, server in servers.items():
    policy = "" if name == server.policy.name else f"{server.policy.name}, "
    described.append(f"{name} ({policy}token budget {server.token_budget:,})")
item.note(f"Policies: {', '.join(described)}")

# 3. The figure: bars from the largest share found stable to the next, found not to be; white marks for the known ones.
rows = pl.DataFrame(cells, ["point", "policy", "lengths", "known", "stable_at", "unstable_at"], orient="row")
names = list(servers)
legend = alt.Legend(title="Policy", symbolSize=130)
scale = alt.Scale(domain=[min(0.75, rows["stable_at"].min() - 0.02), 1.01], zero=False, nice=False)
x = alt.X("point:N", sort=list(POINTS), title="Point of the boundary", axis=alt.Axis(labelAngle=-30))
offset = alt.XOffset("policy:N", sort=names)
colour, shape = (
    kind("policy:N", sort=names, scale=alt.Scale(domain=names, range=looks[: len(names)]), legend=legend)
    for kind, looks in ((alt.Color, COLOURS), (alt.Shape, SHAPES))
)
rule = alt.Chart(pl.DataFrame({"y": [1.0]})).mark_rule(strokeDash=[4, 3]).encode(y="y:Q")
panels = []
for kind in LENGTHS:
    base = alt.Chart(rows.filter(lengths=kind), title=f"{kind.capitalize()} lengths").encode(x=x, xOffset=offset)
    bars = base.mark_bar(size=12, stroke="#333333", strokeWidth=0.7).encode(
        y=alt.Y("stable_at:Q", title="Share of the boundary", scale=scale), y2="unstable_at:Q", color=colour
    )
    dots = base.mark_point(size=26, filled=True, fill="white", stroke="black", strokeWidth=1, opacity=1).encode(
        y=alt.Y("known:Q"), shape=shape
    )
    panels.append(alt.layer(rule, bars, dots).properties(width=66 * len(POINTS), height=300))
text = "Share of the region's boundary that each policy carries, by point of the boundary, beside what is known."
item.show(
    rows, {text: alt.hconcat(*panels)},
    "A bar goes from the largest share of the boundary that was found stable to the least above it that was not. A "
    "white mark is the known share, from an independent program. Beyond 1 no policy is stable.",
)  # fmt: skip
