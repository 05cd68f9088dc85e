"""Batches that leave waiting tokens out (Section 4)."""

import altair as alt
import polars as pl

import penstock as ps
from paper.item import Item
from paper.waiting import waiting
from penstock.checking.figures import gantt
from penstock.show.plot import COLOURS

SERVER = ps.Server(ps.PiecewiseConstant(c=1.0, a=0.0, b0=8), 8, convention="paper")  # a batch takes a second
REQUESTS = ps.Workload.from_arrays([0, 0, 1], [4, 3, 6], [3, 3, 2])  # at s, prompt and output tokens
SHORT = {  # batches, counted from 1, that are not work-conserving
    "vllm-vanilla": "2",
    "fastertransformer": "2, 3, 4",
    "sarathi": "none (by Table 1; not in the figure)",
}

item = Item(__name__, __doc__)


def drawing(run, table, name):
    """Draw the batches of a run, shade those that are short, and number all."""
    load = pl.col("prefill_tokens") + pl.col("decode_tokens")
    number = pl.col("batch").cast(pl.String)
    drawn = table.with_columns(
        middle_s=(pl.col("start_s") + pl.col("end_s")) / 2,
        words=pl.when("short").then(pl.format("{}: {}/{}", number, load, "could")).otherwise(number),
    )
    short = alt.Chart(drawn.filter("short")).mark_rect(color=COLOURS[1], opacity=0.3)
    over = alt.Chart(drawn).mark_text(baseline="bottom", dy=-4, fontSize=11)
    layers = [
        short.encode(x="start_s:Q", x2="end_s:Q"),
        *alt.LayerChart.from_dict(gantt(run)).layer,
        over.encode(x="middle_s:Q", y=alt.value(0), text="words:N"),
    ]
    title = alt.TitleParams(name, anchor="start", offset=14)
    return alt.LayerChart(layer=layers).properties(width=480, height={"step": 30}, title=title)


# Serve the same requests under each policy, and hold each batch against what waited before it.
tables, panels = [], []
for name, published in SHORT.items():
    run = ps.simulate(REQUESTS, SERVER.with_policy(name), record="allocations")
    start, end = pl.col("start_ns") * 1e-9, (pl.col("start_ns") + pl.col("duration_ns")) * 1e-9
    times = run.batches.select(policy=pl.lit(name), batch=pl.int_range(1, run.n_batches + 1), start_s=start, end_s=end)
    table = pl.concat([times, waiting(run)], how="horizontal")
    tables.append(table)
    panels.append(drawing(run, table, name))
    short = table.filter("short")["batch"].to_list()
    assert ps.audit(run).paper.breaches == len(short)
    measured = ", ".join(map(str, short)) or "none"
    item.claim(
        f"{name}: batches left short", published, measured, published.partition(" (")[0] == measured,
        "these requests and this token budget are not the paper's, which gives no numbers",
    )  # fmt: skip

item.note("The paper draws its example without numbers: 3 requests and a token budget of 8 were chosen here")
text = f"Batches of {', '.join(SHORT)} over time, each request's tokens by phase; short batches shaded."
item.show(
    pl.concat(tables).drop("could", "resumes"),
    {text: alt.vconcat(*panels).resolve_scale(x="shared")},
    "Above each batch its number. Shaded: a batch with fewer tokens than the budget although as many waited. There, "
    "2: 6/8 says that batch 2 has 6 of the 8 tokens that it could have.",
)
