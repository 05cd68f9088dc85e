"""The stability region under a max batch size: the four vertices of the paper, and the region
itself.
"""

import dataclasses
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from penstock.document import Section, Whole
from penstock.errors import InputError
from penstock.inputs.arrays import Floats
from penstock.reproducing.item import Claim, Reproduction, Setup, refuse
from penstock.show import charts
from penstock.show.charts import on_grid
from penstock.system.batch_time import PiecewiseConstant
from penstock.system.server import Server
from penstock.theory.region import region

_EQUAL = 1e-9


class _Settings(Section):
    # A max batch size above b0, at most the token budget, where the paper's vertices are not those
    # of the region.
    beyond_b0: Whole = 200


def run(setup: Setup) -> Reproduction:
    """Compare the published vertices with the region itself."""
    settings = setup.settings(_Settings)
    scenario = setup.scenario()
    server, prompt = scenario.server, round(scenario.workload.mean_prompt)
    model, slots = _staircase(server)
    _refuse_other_hypotheses(server, model, slots, settings.beyond_b0)
    hull = region(server, prompt=prompt)
    vertices = published_vertices(server)
    rows, claims = [], []
    for name, at in vertices.items():
        reached = hull.scale(at)
        same = abs(reached - 1) < _EQUAL
        reason = _SHORT.format(prompt) if reached < 1 else _INSIDE
        carried = _tokens(tuple(reached * np.array(at)))
        claims.append(Claim.judged(f"vertex {name}", _tokens(at), carried, same, reason))
        rows.append(("paper", name, *at))
    rows += [("region", "", *at) for at in hull.vertices.tolist()]
    claims.append(_extreme(server, vertices, hull.vertices))
    claims.append(_beyond(server, settings.beyond_b0, prompt))
    chart = _chart(hull.vertices, vertices)
    text = (
        "Stability region: prefill tokens per second against decode tokens per second, with the "
        "vertices A, B, C and D."
    )
    table = pl.DataFrame(
        rows, ["of", "vertex", "prefill_tokens_per_s", "decode_tokens_per_s"], orient="row"
    )
    return setup.answer(
        claims, table, {text: chart},
        "Outside no policy is stable. Whether every point inside can be carried is the open "
        "problem.",
        assumed=(
            f"Prompts are {prompt:,} tokens. Measured: where the region ends in the direction of "
            "each published vertex. Verdict `same`: the two differ by rounding only",
        ),
    )  # fmt: skip


_SHORT = (
    "no error of the paper, which calls its region necessary: one prompt is to fill the batch "
    "beside k_max - 1 "
    "decodes, and one of {:,} tokens is too short for that; more prompts take the places of decodes"
)
_INSIDE = (
    "the set is that of the theorem, but this point is no corner of it: it holds more in that "
    "direction"
)


def _staircase(server: Server) -> tuple[PiecewiseConstant, int]:
    """Return the batch time and the max batch size of a server that has those of the theorem."""
    model, slots = server.batch_time, server.max_batch_size
    if not isinstance(model, PiecewiseConstant) or slots is None:
        raise InputError(
            "fig-hull needs batch_time with c_ms, a_ms and b0, and a max_batch_size; give them"
        )
    return model, slots


def _refuse_other_hypotheses(
    server: Server, model: PiecewiseConstant, slots: int, beyond: int
) -> None:
    """Refuse what the theorem does not speak of: k_max <= b0, b0 divides b_max, a > 0."""
    budget, b0 = server.token_budget, model.b0
    refuse(
        slots > b0,
        f"max_batch_size is {slots:,}, but Theorem 4 asks for at most batch_time.b0, {b0:,}, "
        "and its vertices are not those of the region beyond it; lower max_batch_size, or ask "
        "for it as reproduce.beyond_b0",
    )
    refuse(
        budget % b0 != 0,
        f"token_budget is {budget:,}, but Theorem 4 asks for a multiple of batch_time.b0, {b0:,}, "
        f"and its vertices are not those of the region else; give {max(budget // b0, 1) * b0:,}",
    )
    refuse(model.a <= 0, "batch_time.a_ms is 0, but Theorem 4 asks for steps, a_ms > 0; raise it")
    refuse(
        not b0 < beyond <= budget,
        f"reproduce.beyond_b0 is {beyond:,}, but is a max batch size above batch_time.b0, "
        f"{b0:,}, that a batch of "
        f"token_budget, {budget:,}, can hold, so that the vertices fail; give one between",
    )


def published_vertices(server: Server) -> dict[str, tuple[float, float]]:
    """Return the vertices A to D of the paper's theorem, prefill and decode tokens/s."""
    model, slots = _staircase(server)
    budget, b0 = server.token_budget, model.b0
    full, step, decodes = (float(model.by_tokens(load)) for load in (budget, b0, slots))
    return {
        "A": (budget / full, 0.0),
        "B": ((budget - slots + 1) / full, (slots - 1) / full),
        "C": ((b0 - slots + 1) / step, (slots - 1) / step),
        "D": (0.0, slots / decodes),
    }


def _extreme(server: Server, vertices: dict[str, tuple[float, float]], corners: Floats) -> Claim:
    """Compare whether C is a vertex with the condition that decides it."""
    model, slots = _staircase(server)
    condition = (slots - 1) * (model.b0 - slots) > model.b0 * model.c / model.a
    is_vertex = bool(np.any(np.all(np.isclose(corners, vertices["C"], rtol=1e-6), axis=1)))
    return Claim.judged(
        "C is a vertex of the hull", "yes, of conv(O, A, B, C, D)", "yes" if is_vertex else "no",
        is_vertex,
        "the set is that of the theorem, but C is a corner only where (k_max - 1)(b0 - k_max) > b0 "
        f"c / a, which {'holds' if condition else 'does not hold'} here",
    )  # fmt: skip


def _beyond(server: Server, slots: int, prompt: int) -> Claim:
    """Compare vertex D with the region where the max batch size is above b0."""
    wide = dataclasses.replace(server, max_batch_size=slots)
    vertex = published_vertices(wide)["D"][1]
    best = region(wide, prompt=prompt).scale((0.0, 1.0))
    return Claim.judged(
        f"D at k_max {slots}, above b0", f"{vertex:,.0f} decode tokens/s",
        f"{best:,.0f} decode tokens/s", abs(best / vertex - 1) < _EQUAL,
        "no error of the paper, whose theorem asks for k_max of at most b0: above, a batch that is "
        "filled to a step of the batch time carries more",
    )  # fmt: skip


def _chart(region: Floats, vertices: dict[str, tuple[float, float]]) -> Any:
    """Draw the region, and the vertices of the paper with their names."""
    axes: dict[str, Any] = {
        "x": alt.X("prefill:Q", title="Prefill tokens/s", axis=alt.Axis(tickCount=6)),
        "y": alt.Y("decode:Q", title="Decode tokens/s", axis=alt.Axis(tickCount=6)),
    }
    outline = pl.DataFrame(
        {"prefill": region[:, 0], "decode": region[:, 1], "order": range(len(region))}
    )
    filled = alt.Chart(
        pl.concat([outline, outline.head(1).with_columns(order=len(region) + 0 * pl.col("order"))])
    )
    line = filled.mark_line(
        filled=True, fill=charts.FILL, fillOpacity=0.15, stroke=charts.FILL, strokeWidth=2
    )
    named = alt.Chart(
        pl.DataFrame(
            [(name, *at) for name, at in vertices.items()],
            ["vertex", "prefill", "decode"],
            orient="row",
        )
    ).encode(**axes)
    points = named.mark_point(filled=True, size=70, color=charts.OUTLINE, opacity=1)
    words = named.mark_text(dx=14, dy=-8, fontSize=14, fontWeight="bold").encode(text="vertex:N")
    layers = [line.encode(order="order:Q", **axes), points, words]
    return on_grid(alt.LayerChart(layer=layers).properties(width=430, height=360))


def _tokens(at: tuple[float, ...]) -> str:
    return f"({at[0]:,.1f}, {at[1]:,.1f}) tokens/s"
