"""Compare prefill and decode on replicas of their own with all on the same ones.

Eight replicas of vLLM with Llama-2-70B on four H100 each: all serve both (token budgets 256, 512,
1,024 and 2,048), or 1 to 7 of them the prompts and the others the decodes (2,048). A token's keys
and values take 2 x 80 layers x 8 heads x 128 numbers x 2 bytes = 328 kB; they go over one link of
50 GB/s (400 Gbit/s) a replica, after 5 ms. Poisson arrivals of

* long prompts: geometric, means of 4,000 prompt (at most 16,000) and 50 output tokens (500),
* conversations: the look-alike of the Azure trace,
* long outputs: 200 prompt (at most 2,000) and 800 output tokens (4,000).

A load of 1 is what the eight finish per second behind a queue, all serving both with a budget of
2,048. In front of the eight stands jsq, or the router by tokens, which stands in front of the
replicas for prompts too. Counted are the jobs that arrive in the last three quarters of 300 s; the
times between tokens of all.

Run ``python benchmarks/studies/apart.py``; it prints the tables as Markdown and writes
``docs/figures/apart.svg``.
"""

from collections.abc import Mapping
from pathlib import Path

import altair as alt
import numpy as np
import polars as pl
from apart_designs import REPLICAS, Design, most, p99s

import penstock as ps
from penstock.show import charts
from penstock.simulation.intervals import student

LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
SEEDS = (0, 1, 2)
TTFT_S = 3.0  # the target, for the first token and for the pause at the handover
GAPS_MS = (40, 50, 60, 75, 100, 150, 200, 250)
WORKLOADS = {
    "Long prompts": ps.Workload.poisson(
        1.0, ps.Geometric(4_000, max=16_000), ps.Geometric(50, max=500)
    ),
    "Conversations": ps.Workload.preset("azure-conv").with_rate(1.0, "poisson"),
    "Long outputs": ps.Workload.poisson(
        1.0, ps.Geometric(200, max=2_000), ps.Geometric(800, max=4_000)
    ),
}
BUDGETS = (256, 512, 1024, 2048)
CHOICES = {
    "2,048, jsq": [Design()],
    "any, jsq": [Design(budget=budget) for budget in BUDGETS],
    "any, tokens": [Design(budget=budget, router="tokens") for budget in BUDGETS],
}
SPLITS = [Design(prompts) for prompts in range(1, REPLICAS)]
WHO = {"both": "#009E73", "together": "#0072B2", "apart": "#E69F00", "neither": "#dddddd"}


def measured(design: Design, workload: ps.Workload) -> pl.DataFrame:
    """Return p99s with a row for each seed."""
    return pl.DataFrame([p99s(design, workload, seed) for seed in SEEDS])


def grid(workload: ps.Workload, full: float) -> pl.DataFrame:
    """Return mean p99s of all designs and loads, up to the first where first tokens are late."""
    rows = []
    for design in [*CHOICES["any, jsq"], *CHOICES["any, tokens"], *SPLITS]:
        for load in LOADS:
            means = measured(design, workload.with_rate(load * full)).mean().row(0, named=True)
            rows.append({"design": design.name, "load": load, **means})
            if max(means["ttft"], means["pause"]) > TTFT_S:
                break
    return pl.DataFrame(rows)


def carried(points: pl.DataFrame, gap_ms: float) -> Mapping[str, float]:
    """Return the highest load within the targets of each design; 0: none."""
    within = (pl.max_horizontal("ttft", "pause") <= TTFT_S) & (pl.col("gap") <= gap_ms)
    so_far = within.cast(pl.Int8).cum_min() == 1
    highest = pl.col("load").filter(so_far).max().fill_null(0.0)
    return dict(points.group_by("design", maintain_order=True).agg(highest).iter_rows())


def best(designs: list[Design], loads: Mapping[str, float]) -> tuple[float, str]:
    """Return the highest load that one of the designs carries, and a cell that names it."""
    design = max(designs, key=lambda one: loads[one.name])
    load = loads[design.name]
    said = design.name if design.prompts else f"{design.budget:,}"
    return load, f"{load:.1f} ({said})" if load else "-"


def who(together: float, apart: float, load: float) -> str:
    """Return which of two that carry so much carry a load."""
    if min(together, apart) >= load:
        return "both"
    if max(together, apart) < load:
        return "neither"
    return "together" if together > apart else "apart"


def compared(title: str, points: pl.DataFrame) -> list[dict[str, object]]:
    """Print the highest load within each target, and return who carries which."""
    rows: list[dict[str, object]] = []
    print(f"| p99 between tokens, ms | {' | '.join(CHOICES)} | apart |")
    print(f"|---:|{'---:|' * len(CHOICES)}---:|")
    for gap_ms in GAPS_MS:
        loads = carried(points, gap_ms)
        apart, cell = best(SPLITS, loads)
        cells = []
        for choice, designs in CHOICES.items():
            together, said = best(designs, loads)
            cells.append(said)
            label = {"workload": title, "choice": choice, "gap": gap_ms}
            rows += [label | {"load": load, "who": who(together, apart, load)} for load in LOADS]
        print(f"| {gap_ms} | {' | '.join([*cells, cell])} |")
    return rows


def shown(values: pl.Series, digits: int) -> str:
    """Return mean and 95% interval, by Student's t over the seeds."""
    seconds = values.to_numpy()
    if not np.isfinite(seconds).all():
        return "grows"
    half = student(0.95, seconds.size) * seconds.std(ddof=1) / seconds.size**0.5
    return f"{seconds.mean():.{digits}f} ± {half:.{digits}f}"


def look_at(workload: ps.Workload, rate: float, designs: Mapping[str, Design]) -> None:
    """Print p99s of designs at a rate."""
    print(f"\nat {rate:.1f} requests/s\n")
    print("| design | p99 TTFT, s | p99 pause, s | p99 between tokens, ms |")
    print("|---|---:|---:|---:|")
    for name, design in designs.items():
        table = measured(design, workload.with_rate(rate))
        pause = shown(table["pause"], 2) if design.prompts else "-"
        print(f"| {name} | {shown(table['ttft'], 2)} | {pause} | {shown(table['gap'], 0)} |")


def drawn(rows: list[dict[str, object]]) -> alt.VConcatChart:
    """Draw who carries which load within which target: a row for each choice of those together."""
    table = pl.DataFrame(rows)
    colour = alt.Scale(domain=list(WHO), range=list(WHO.values()))
    lines = []
    for choice in CHOICES:
        panels = []
        for title in WORKLOADS:
            here = (pl.col("workload") == title) & (pl.col("choice") == choice)
            panels.append(
                alt.Chart(table.filter(here), title=f"{title}; {choice}")
                .mark_rect(stroke="white")
                .encode(
                    x=alt.X("load:O", title="Load", axis=alt.Axis(labelAngle=0)),
                    y=alt.Y("gap:O", title="p99 between tokens, ms", sort="descending"),
                    color=alt.Color("who:N", title="Within the targets", scale=colour),
                )
                .properties(width=230, height=140)
            )
        lines.append(alt.hconcat(*panels))
    chart: alt.VConcatChart = alt.vconcat(*lines)
    legend: alt.VConcatChart = chart.configure_legend(orient="top")
    return legend


def main() -> None:
    """Simulate, print and draw."""
    rows: list[dict[str, object]] = []
    for title, workload in WORKLOADS.items():
        full = most(workload)
        print(f"\n## {title}: a load of 1 is {full:.1f} requests/s\n", flush=True)
        rows += compared(title, grid(workload, full))
        chosen = [Design(budget=512), Design(), SPLITS[1], SPLITS[4], SPLITS[6]]
        look_at(workload, 0.3 * full, {design.name: design for design in chosen})
        split = SPLITS[6] if title == "Long prompts" else SPLITS[3]
        removed = {
            split.name: split,
            "transfers take no time": split._replace(transfers=0.0),
            "batches composed at once": split._replace(asynchronous=False),
            "both": split._replace(transfers=0.0, asynchronous=False),
            "up to 1,024 running": split._replace(slots=1024),
        }
        look_at(workload, 0.6 * full, removed)
    charts.save({"apart": drawn(rows)}, Path(__file__).parents[2] / "docs" / "figures")


if __name__ == "__main__":
    main()
