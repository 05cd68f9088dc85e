"""At vertex C one scheduler is stable, at one token budget (Section 6.2).

The load is exactly what can be carried, so no theorem judges it, and any randomness would let every backlog wander
without bound. Nothing is random here, so a backlog that has no new high goes round in a cycle.
"""

import dataclasses

import altair as alt
import polars as pl

import penstock as ps
from paper.item import Item
from paper.looks import lines_over_time
from paper.staircase import STAIRS

BUDGET, LARGER = 128, 1024
SERVER = ps.Server(STAIRS, BUDGET, max_batch_size=100, scope="batch", convention="paper")
WORKLOAD = ps.Workload.deterministic(1 / 0.4675, prompt=290, output=990)
SCOPES = ("batch", "running")  # what the max batch size counts
SECONDS = 20_000
PUBLISHED = {"fastertransformer": "grows", "vllm-vanilla": "grows", "orca": "grows", "sarathi": "bounded"}
WATCHED = "sarathi"  # its batches are looked at, and its backlog grows too at the larger budget
MIXED = (29, 99)  # prefill and decode tokens of the batches by which it holds vertex C

item = Item(__name__, __doc__)


def backlog(run, workload):
    """Return how the backlog of a run developed over its second half.

    It is looked at some thousand times only, so that a new high by less than a request is none.
    """
    tokens = run.series["uncompleted_tokens"]
    early, late = tokens.head(tokens.len() // 2), tokens.tail(-(tokens.len() // 2))
    offered = ps.certify(workload, run.server).load.offered_tokens_per_s
    return {
        "backlog": "bounded" if late.max() < early.max() + offered / workload.rate else "grows",
        "growth_percent_of_arrivals": 100 * run.growth_tokens_per_s / offered,
        "least_uncompleted_tokens": late.min(),
        "most_uncompleted_tokens": late.max(),
    }


# 1. The load of the operating point.
certificate = ps.certify(WORKLOAD, SERVER)
load = f"{WORKLOAD.rate / certificate.max_rate:.6f} ({certificate.verdict})"
critical = certificate.verdict == "critical"
item.claim("load of the operating point", "1: a vertex of the region", load, critical, certificate.reason)

# 2. Run each policy at both token budgets, in both scopes.
runs, rows = {}, []
for budget in (BUDGET, LARGER):
    for name in PUBLISHED:
        for scope in SCOPES:
            server = dataclasses.replace(SERVER, token_budget=budget, scope=scope).with_policy(name)
            run = ps.simulate(WORKLOAD, server, until=SECONDS)
            runs[budget, name, scope] = run
            rows.append({"token_budget": budget, "policy": name, "scope": scope} | backlog(run, WORKLOAD))
table = pl.DataFrame(rows)


def claim_backlog(budget, name, published):
    """Claim that a backlog grows, or is bounded: only if it is in every scope."""
    of = table.filter(token_budget=budget, policy=name)
    if (of["backlog"] == "bounded").all():
        measured = "bounded"
        lowest, highest = of["least_uncompleted_tokens"].min(), of["most_uncompleted_tokens"].max()
        shown = f"bounded: {lowest:,} to {highest:,} tokens"
    else:
        measured = "grows"
        low, high = (f"{of['growth_percent_of_arrivals'].sort()[i]:.1f}" for i in (0, -1))
        shown = f"grows by {low if low == high else f'{low} to {high}'}% of what arrives"
    reason = ps.certify(WORKLOAD, runs[budget, name, SCOPES[0]].server).reason
    item.claim(f"{name} at {budget:,} tokens", published, shown, measured == published, reason)


# 3. At the smaller budget one policy is bounded, and its batches are those that hold the vertex.
for name, published in PUBLISHED.items():
    claim_backlog(BUDGET, name, published)
batches = ps.simulate(WORKLOAD, SERVER.with_policy(WATCHED), until=SECONDS, record="batches").batches
late = batches.tail(-(batches.height // 2))
mixes = late.group_by("prefill_tokens", "decode_tokens").len().sort("len", "decode_tokens", descending=True)
prefill, decode, count = mixes.row(0)
item.claim(
    f"batches of {WATCHED} at {BUDGET:,}", f"{MIXED[0]} prefill + {MIXED[1]} decode tokens",
    f"{prefill} + {decode} in {count / late.height:.2%} of them",
    (prefill, decode) == MIXED and count == late.height,
    "another load or limit than the figure's needs another mix of batches",
)  # fmt: skip

# 4. At the larger budget it grows too.
claim_backlog(LARGER, WATCHED, "grows")

item.note(
    "The load is critical, so that no theorem judges it: growth is measured over the second half of the run, as a "
    "share of the tokens that arrive"
)
item.note(
    "A backlog is `bounded` if it has no new high, by a request or more, in the second half of the run; else it `grows`"
)
item.note(
    f"Scopes that were tried: {' and '.join(SCOPES)}. The max batch size counts the requests in a batch (paper) or "
    "those admitted and unfinished (engines). Where growth depends on the scope both are given"
)
item.note("The batches of sarathi are `same` if all of the second half are; the load is 1 to within rounding")

# 5. The figure's two halves, each to scale and on a log scale.
halves = (
    (f"All policies, token budget {BUDGET:,}", "Policy", {name: (BUDGET, name) for name in PUBLISHED}),
    ("Sarathi-Serve by token budget", "Token budget", {f"{b:,}": (b, WATCHED) for b in (BUDGET, LARGER)}),
)
charts = {}
for title, legend, lines in halves:
    drawn = {line: runs[*of, SCOPES[0]] for line, of in lines.items()}
    look = {"measure": "Unprocessed tokens", "legend": legend}
    panels = [
        lines_over_time(drawn, "unprocessed_tokens", title=title, **look),
        lines_over_time(drawn, "unprocessed_tokens", title="The same on a log scale", log=True, **look),
    ]
    charts[f"Unprocessed tokens over time, to scale and on a log scale. {title}."] = alt.hconcat(*panels)
item.show(
    table, charts,
    "The load is exactly what can be carried. Any randomness would let every backlog wander without bound, so that no "
    "test of random drift can judge it. Nothing is random here. A bounded backlog lies near zero on the left; the log "
    "scale shows that it stays level.",
)  # fmt: skip
