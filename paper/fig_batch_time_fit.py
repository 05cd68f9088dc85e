"""The batch time is a staircase (Section 2.3).

c + a ceil(b / b0) is fitted to Vidur's times of all layers but attention on A100, by token load b. The paper does not
say what it measured; its constants fit loads up to 512 tokens best.
"""

import altair as alt
import numpy as np
import polars as pl

import penstock as ps
from paper.item import Item
from paper.layer_times import read_vidur
from paper.looks import SHAPES, STROKES, channels
from penstock.measuring.fitting.batches import MeasuredBatches
from penstock.measuring.fitting.fit import fit
from penstock.measuring.fitting.relative_errors import r2

LARGEST = 512  # tokens
B0 = 128
R2 = 0.97
PROFILES = {  # layers of each model, and their times
    "CodeLlama-34B": (48, "profiling/vidur/a100/codellama/CodeLlama-34b-Instruct-hf/mlp.csv.gz"),
    "Llama-70B": (80, "profiling/vidur/a100/meta-llama/Llama-2-70b-hf/mlp.csv.gz"),
}
CASES = {  # by model and tensor-parallel degree, the published staircase
    ("CodeLlama-34B", 1): ps.PiecewiseConstant(c=0.01128, a=0.03547, b0=B0),
    ("CodeLlama-34B", 2): ps.PiecewiseConstant(c=0.00724, a=0.01803, b0=B0),
    ("CodeLlama-34B", 4): ps.PiecewiseConstant(c=0.00696, a=0.00869, b0=B0),
    ("Llama-70B", 2): None,
    ("Llama-70B", 4): None,
}
SMALLER = "on more GPUs the times also have smaller steps, of 64 tokens (see the figure)"

item = Item(__name__, __doc__)
rows, missing = [], []
for (model, degree), published in CASES.items():
    name = f"{model} TP{degree}"
    layers, path = PROFILES[model]
    file = item.file(path)
    if file is None:
        missing.append(name)
        continue

    # 1. A staircase with steps of 128 tokens, and how well the published one does.
    profile = read_vidur(file, layers, degree)
    batches = MeasuredBatches(profile.by_load, profile.tokens, sweep=True, averaged=True).up_to(LARGEST)
    stairs = fit(batches, "steps", b0=B0)
    item.claim(f"R^2, {name}", f"above {R2:g}", f"{stairs.r2:.3f}", stairs.r2 > R2, SMALLER)
    if published is not None:
        said = published(batches.tokens)
        reached = r2(batches.seconds, said)
        item.claim(
            f"R^2 of the published constants, {name}", f"above {R2:g}", f"{reached:.3f}", reached > R2,
            f"summed, the published times are {said.sum() / batches.seconds.sum() - 1:+.1%} off these, of linear "
            f"layers only; fitted anew, R^2 is {stairs.r2:.3f}",
        )  # fmt: skip
        ms = {key: [1e3 * value for value in stairs.parameters[key]] for key in ("c", "a")}
        outside = [key for key, (_, low, high) in ms.items() if not low <= 1e3 * getattr(published, key) <= high]
        item.claim(
            f"constants, {name}", f"c {1e3 * published.c:.2f}, a {1e3 * published.a:.2f} ms",
            ", ".join(f"{key} {value:.2f} ({low:.2f}..{high:.2f})" for key, (value, low, high) in ms.items()) + " ms",
            not outside, f"{' and '.join(outside)} outside the 95% interval; {SMALLER}",
        )  # fmt: skip

    # 2. How wide a step is, if it may be of any width.
    free = fit(batches, "steps")
    width, low, high = free.parameters["b0"]
    item.claim(
        f"tokens of a step, {name}", f"{B0}", f"{width:.0f} ({low:.0f}..{high:.0f})", low <= B0 <= high,
        f"R^2 {free.r2:.3f} with this step, {stairs.r2:.3f} with {B0}: {SMALLER}",
    )  # fmt: skip

    # 3. Measured times, and those of the staircases at the ends of their steps.
    ends = np.arange(0.0, LARGEST + B0, B0)
    lines = {"measured": (batches.tokens, batches.seconds), "fitted": (ends, stairs.model(np.maximum(ends, 1)))}
    if published is not None:
        lines["published"] = (ends, published(np.maximum(ends, 1)))
    for kind, (tokens, seconds) in lines.items():
        points = zip(tokens.tolist(), (1e3 * seconds).tolist(), strict=True)
        rows += [(model, f"TP{degree}", kind, *point) for point in points]

item.note(
    f"Verdict `same`: R^2 is above {R2:g}; a published constant or step lies inside the 95% interval of the one fitted "
    "here. No batch is held out: each R^2 is of the same batches that were fitted"
)
if missing:
    item.note(f"Layer profiles of {', '.join(missing)} are not here (--data), so nothing is fitted to them")


def panel(here, degrees, slowest):
    """Draw the measured times of one model, and the staircases: those published thin and black."""
    look = channels("degree", degrees, "Tensor parallel", **STROKES)
    shape = alt.Shape("degree:N", scale=alt.Scale(domain=degrees, range=SHAPES[: len(degrees)]), legend=None)
    x = alt.X(
        "tokens:Q", title="Token load (tokens in the batch)", axis=alt.Axis(format=",d", tickCount=5),
        scale=alt.Scale(domain=[0, LARGEST], nice=False),
    )  # fmt: skip
    y = alt.Y(
        "ms:Q", title="Batch time (ms)", axis=alt.Axis(tickCount=6),
        scale=alt.Scale(domain=[0, 1.06 * slowest], nice=False),
    )  # fmt: skip
    measured, fitted, published = (
        alt.Chart(here.filter(kind=kind)).encode(x=x, y=y) for kind in ("measured", "fitted", "published")
    )
    layers = [
        measured.mark_point(size=22, opacity=0.8, strokeWidth=1).encode(color=look["color"], shape=shape),
        fitted.mark_line(strokeWidth=2.2, interpolate="step-before").encode(**look),
    ]
    if published.data.height:
        thin = alt.Legend(title="Thin black lines", symbolType="stroke", symbolStrokeColor="black", symbolSize=300)
        named = alt.Opacity("kind:N", scale=alt.Scale(domain=["published"], range=[1]), legend=thin)
        line = published.mark_line(strokeWidth=0.9, color="black", interpolate="step-before")
        layers.append(line.encode(detail="degree:N", opacity=named))
    return alt.layer(*layers).properties(width=330, height=300, title=here["model"][0])


# 4. The figure.
if rows:
    item.note(
        f"Batch times are Vidur's medians, summed over all layers without attention, up to {LARGEST:,} tokens. The "
        "paper does not say what it measured"
    )
    item.note("These times leave out attention and the exchange between GPUs, so those of TP2 and TP4 are too short")
    table = pl.DataFrame(rows, ["model", "degree", "kind", "tokens", "ms"], orient="row")
    degrees, slowest = sorted(table["degree"].unique()), table["ms"].max()
    panels = (panel(here, degrees, slowest) for here in table.partition_by("model", maintain_order=True))
    text = "Batch time by token load with the fitted staircases, by tensor-parallel degree, a panel per model."
    item.show(
        table, {text: alt.hconcat(*panels).resolve_scale(y="shared")},
        "Points: measured batch times. Coloured lines: the staircase fitted to these points. Thin black lines: the "
        "published staircase.",
    )  # fmt: skip
