"""Counter-examples to bounded overtaking (corrects the paper).

Where K-FCFS holds, the paper's lem:bounded-overtaking lets no request get K' = K + v_max b_max places ahead of an older
one. K-FCFS: beside the decode of a request, all that are at least K places older and in the system get tokens, too.
"""

import random

import altair as alt
import polars as pl

import penstock as ps
from paper.item import Item
from paper.overtaking import (
    any_order,
    newest_prompt_first,
    overtaking,
    overtaking_in,
    places,
    prefilled,
    serve,
    serve_far_ahead,
)
from penstock.show.plot import COLOURS

REQUESTS, PROMPT, OUTPUT, BUDGET = 1000, 2, 3, 8  # of a burst whose newest prompts go first
SLACK = 101  # K of another burst; odd
SYSTEMS, SEED = 300, 0  # that serve in random orders
POLICIES = ("sarathi", "orca")

item = Item(__name__, __doc__)
item.note("Every batch takes one tick: batch times do not change who overtakes whom here")

# 1. A burst of prompts, the newest first: the lemma is false for prefill.
newest = serve([0] * REQUESTS, [PROMPT] * REQUESTS, [OUTPUT] * REQUESTS, BUDGET, newest_prompt_first)
of_newest, farthest = overtaking_in(newest, BUDGET), places(prefilled(newest))
bound = of_newest.k + PROMPT * BUDGET
item.claim(
    f"prefill: farthest ahead of an older one, K = {of_newest.k}", f"fewer than K' = {bound} places",
    f"{farthest:,} places", farthest < bound,
    f"the lemma is false for prefill: K-FCFS holds with K = {of_newest.k}, but says nothing of batches without "
    "decodes, so the newest prompts of a burst may all go first. For departures (f = d) it holds",
)  # fmt: skip

# 2. Departures, under usual policies and in random orders: the count in the proof of the lemma holds.
usual = {}
for name in POLICIES:
    server = ps.Server(ps.Affine(c=1.0, a=0.0), 8, policy=name, convention="paper")
    workload = ps.Workload.poisson(1.0, ps.Uniform(1, 3), ps.Uniform(1, 5), seed=SEED)
    run = ps.simulate(workload, server, requests=2000, record="allocations")
    longest = run.requests["prompt_tokens"].max() + run.requests["output_tokens"].max()
    usual[f"{name}: most ahead of an older one"] = overtaking(
        max(ps.audit(run).overtake_k, 1), longest, server.token_budget, run.requests["finish_ns"].to_numpy()
    )
draw, drawn = random.Random(SEED), []
for _ in range(SYSTEMS):
    count, longest = draw.randint(2, 60), draw.randint(1, 4)
    arrival = sorted(draw.choices(range(draw.randint(1, 40)), k=count))
    prompt, output = ([draw.randint(1, longest) for _ in range(count)] for _ in range(2))
    budget = draw.randint(1, 6)
    drawn.append(overtaking_in(serve(arrival, prompt, output, budget, any_order(draw)), budget))
closest = max(drawn, key=lambda run: run.overtakers / run.lemma)
for what, run in (*usual.items(), (f"{SYSTEMS:,} random orders: the closest", closest)):
    item.claim(
        f"departures, {what}", f"fewer than K' = {run.lemma} (K = {run.k})", f"{run.overtakers} requests",
        run.overtakers < run.lemma, "the count in the proof of the lemma is wrong too",
    )  # fmt: skip

# 3. Departures counted in places, as the lemma says: its constant is too small, and another one holds.
ahead = serve_far_ahead(SLACK)
far = overtaking_in(ahead, 2)
item.claim(
    f"departures: farthest ahead of an older one, K = {far.k}", f"fewer than K' = {far.lemma} places",
    f"{far.places:,} places", far.places < far.lemma,
    "the lemma holds for departures, with another constant: its proof counts the requests that overtake "
    f"({far.overtakers} here), but the lemma speaks of places. The {far.k - 1} requests just before the overtaker may "
    "wait too. 2(K - 1) + (v_max - 1)(b_max - 1) places are the most",
)  # fmt: skip
everyone = [of_newest, far, *usual.values(), *drawn]
held = sum(run.places <= run.corrected for run in everyone)
worst = max(everyone, key=lambda run: run.places - run.corrected)
item.claim(
    "departures, corrected", "proved: 2(K - 1) + (v_max - 1)(b_max - 1) places at most",
    f"in {held:,} of {len(everyone):,} runs; closest: {worst.places} of {worst.corrected}", held == len(everyone),
    "the correction is wrong too",
)  # fmt: skip


# 4. The figure: when each request was through its phases, in either burst.
def through(name, history):
    """Return a row per request and phase."""
    phases = {"prefill": prefilled(history), "departure": [request.finish for request in history.requests]}
    parts = (pl.DataFrame({"burst": name, "done": phase, "at_batch": done}) for phase, done in phases.items())
    return pl.concat(part.with_row_index("request") for part in parts)


def panel(burst, large=()):
    """Draw a burst, a few hundred of its requests, and those that are large with their names."""
    scale = alt.Scale(domain=[0, 1.06 * burst["at_batch"].max()], nice=False)
    where = {
        "x": alt.X("request:Q", title="Request, in order of arrival", axis=alt.Axis(tickCount=5)),
        "y": alt.Y("at_batch:Q", title="Done after batch", axis=alt.Axis(tickCount=5), scale=scale),
    }
    phases = ["prefill", "departure"]
    looks = where | {
        "color": alt.Color("done:N", scale=alt.Scale(domain=phases, range=COLOURS[:2]), title="Done"),
        "shape": alt.Shape("done:N", scale=alt.Scale(domain=phases, range=["circle", "triangle-up"]), title="Done"),
    }
    some = burst.filter(pl.col("request") % max(burst.height // 400, 1) == 0)
    layers = [alt.Chart(some).mark_point(size=14, filled=True, opacity=1).encode(**looks)]
    for request, right in large:
        point = alt.Chart(burst.filter(request=request, done="departure"))
        layers.append(point.mark_point(size=110, filled=True, opacity=1).encode(**looks))
        layers.append(point.mark_text(dx=right, dy=-14, fontSize=12, text=f"request {request}").encode(**where))
    return alt.layer(*layers).properties(width=290, height=250, title=burst["burst"][0])


overtaker = 2 * SLACK - 1
first, second = through("Newest prompt first", newest), through(f"Departures, K = {SLACK}", ahead)
drawing = alt.hconcat(panel(first), panel(second, ((0, 40), (overtaker, -20))))
text = "When each prompt was done and each request left, by order of arrival, in the two bursts."
item.show(
    pl.concat([first, second]).select("burst", "request", "done", "at_batch"), {text: drawing},
    "All requests of a burst arrive together. Where a curve falls, younger requests are done before older ones. The "
    f"two large marks: request {overtaker} leaves before request 0.",
)  # fmt: skip
