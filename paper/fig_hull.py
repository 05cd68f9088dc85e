"""The stability region under a max batch size (Section 6.1).

Theorem 4 gives the vertices A to D of what can be carried, where the token budget is a multiple of b0 and the max batch
size is at most b0. Only the prompt of a request plays a part: it decides whether so many requests fill a batch.
"""

import dataclasses

import altair as alt
import numpy as np
import polars as pl

import penstock as ps
from paper.item import Item
from paper.staircase import STAIRS
from penstock.show.plot import COLOURS

SERVER = ps.Server(STAIRS, 1024, max_batch_size=100, scope="batch", convention="paper")
PROMPT = 290
BEYOND_B0 = 200  # a max batch size above b0, where the vertices fail

item = Item(__name__, __doc__)


def published_vertices(server):
    """Return the vertices A to D of the theorem, prefill and decode tokens/s."""
    model, budget, slots = server.batch_time, server.token_budget, server.max_batch_size
    full, step, decodes = (float(model.by_tokens(load)) for load in (budget, model.b0, slots))
    return {
        "A": (budget / full, 0.0),
        "B": ((budget - slots + 1) / full, (slots - 1) / full),
        "C": ((model.b0 - slots + 1) / step, (slots - 1) / step),
        "D": (0.0, slots / decodes),
    }


def tokens(at):
    return f"({at[0]:,.1f}, {at[1]:,.1f}) tokens/s"


# 1. How far the region reaches in the direction of each vertex.
region = ps.region(SERVER, prompt=PROMPT)
vertices = published_vertices(SERVER)
for name, at in vertices.items():
    reached = region.scale(at)
    short = (
        "no error of the paper, which calls its region necessary: one prompt is to fill the batch beside k_max - 1 "
        f"decodes, and one of {PROMPT:,} tokens is too short for that; more prompts take the places of decodes"
    )
    inside = "the set is that of the theorem, but this point is no corner of it: it holds more in that direction"
    same = abs(reached - 1) < 1e-9
    item.claim(f"vertex {name}", tokens(at), tokens(reached * np.array(at)), same, short if reached < 1 else inside)

# 2. C is a corner only under a condition.
model, slots = SERVER.batch_time, SERVER.max_batch_size
condition = (slots - 1) * (model.b0 - slots) > model.b0 * model.c / model.a
is_corner = bool(np.any(np.all(np.isclose(region.vertices, vertices["C"], rtol=1e-6), axis=1)))
item.claim(
    "C is a vertex of the hull", "yes, of conv(O, A, B, C, D)", "yes" if is_corner else "no", is_corner,
    "the set is that of the theorem, but C is a corner only where (k_max - 1)(b0 - k_max) > b0 c / a, which "
    f"{'holds' if condition else 'does not hold'} here",
)  # fmt: skip

# 3. A max batch size above b0.
wide = dataclasses.replace(SERVER, max_batch_size=BEYOND_B0)
vertex = published_vertices(wide)["D"][1]
best = ps.region(wide, prompt=PROMPT).scale((0.0, 1.0))
item.claim(
    f"D at k_max {BEYOND_B0}, above b0", f"{vertex:,.0f} decode tokens/s", f"{best:,.0f} decode tokens/s",
    abs(best / vertex - 1) < 1e-9,
    "no error of the paper, whose theorem asks for k_max of at most b0: above, a batch that is filled to a step of the "
    "batch time carries more",
)  # fmt: skip
item.note(
    f"Prompts are {PROMPT:,} tokens. Measured: where the region ends in the direction of each published vertex. "
    "Verdict `same`: the two differ by rounding only"
)

# 4. The figure: the region, and the vertices of the paper with their names.
axes = {
    "x": alt.X("prefill:Q", title="Prefill tokens/s", axis=alt.Axis(tickCount=6)),
    "y": alt.Y("decode:Q", title="Decode tokens/s", axis=alt.Axis(tickCount=6)),
}
corners = pl.DataFrame(region.vertices, ["prefill", "decode"])
outline = pl.concat([corners, corners.head(1)]).with_row_index("order")
area = alt.Chart(outline).mark_line(
    filled=True, fill=COLOURS[0], fillOpacity=0.15, stroke=COLOURS[0], strokeWidth=2
).encode(order="order:Q", **axes)  # fmt: skip
named = pl.DataFrame([(name, *at) for name, at in vertices.items()], ["vertex", "prefill", "decode"], orient="row")
points = alt.Chart(named).mark_point(filled=True, size=70, color=COLOURS[1], opacity=1).encode(**axes)
words = alt.Chart(named).mark_text(dx=14, dy=-8, fontSize=14, fontWeight="bold").encode(text="vertex:N", **axes)
drawing = alt.LayerChart(layer=[area, points, words]).properties(width=430, height=360)
text = "Stability region: prefill tokens per second against decode tokens per second, with the vertices A, B, C and D."
rows = [
    *(("paper", name, *at) for name, at in vertices.items()),
    *(("region", "", *at) for at in region.vertices.tolist()),
]
item.show(
    pl.DataFrame(rows, ["of", "vertex", "prefill_tokens_per_s", "decode_tokens_per_s"], orient="row"), {text: drawing},
    "Outside no policy is stable. Whether every point inside can be carried is the open problem.",
)  # fmt: skip
