"""Draw what speculative decoding does to latency, by load.

CodeLlama-34B on one A100 (80 GB): a batch takes 11.28 ms and 35.47 ms for every 128 tokens that it
begins. Geometric lengths, means of 129 prompt and 112 output tokens; vLLM, token budget 2,048, 256
running requests, ample memory. Each draft is right with chance .7 if those before it are; what
drafts them takes no time (n-grams).

Run ``python benchmarks/studies/speculation.py``; it prints the table, the loads at which drafts
begin to hurt and the highest stable rates, and writes ``docs/figures/speculation.svg``.
"""

from pathlib import Path

import altair as alt
import polars as pl

import penstock as ps
from penstock.show import charts

DRAFTS = (0, 1, 3, 7)
RATES = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 12.5)
ACCEPTANCE = 0.7
REQUESTS = 20_000
COLOURS = ["#000000", "#0072B2", "#E69F00", "#D55E00"]


def server(drafts: int) -> ps.Server:
    """Return the server with so many drafts for each decode."""
    params = {"drafts": drafts, "acceptance": ACCEPTANCE} if drafts else {}
    batch_time = ps.hardware("codellama-34b-a100-tp1").batch_time
    return ps.Server(batch_time, 2048, 256, policy="vllm", policy_params=params)


def workload(rate: float) -> ps.Workload:
    """Return what arrives at so many requests/s."""
    return ps.Workload.poisson(rate, ps.Geometric(129, max=1000), ps.Geometric(112, max=1000))


def latency_s(drafts: int, rate: float, stable: float) -> float | None:
    """Return the mean time of a request, None where the server does not carry the rate."""
    if rate > stable:
        return None
    run = ps.simulate(workload(rate), server(drafts), requests=REQUESTS, drain=False)
    return run.e2e.mean * run.tick_s


def main() -> None:
    """Simulate, print and draw."""
    stable = {drafts: ps.max_rate(workload(1.0), server(drafts)).rate for drafts in DRAFTS}
    rows = [
        {"drafts": str(drafts), "rate": rate, "seconds": seconds}
        for drafts in DRAFTS
        for rate in RATES
        if (seconds := latency_s(drafts, rate, stable[drafts])) is not None
    ]
    table = pl.DataFrame(rows)
    with pl.Config(tbl_rows=-1):
        print(table.pivot("drafts", index="rate", values="seconds"))
    plain = table.filter(pl.col("drafts") == "0")
    for drafts in map(str, DRAFTS[1:]):
        both = plain.join(table.filter(pl.col("drafts") == drafts), on="rate", how="left")
        slower = both.filter(pl.col("seconds_right").fill_null(1e9) > pl.col("seconds"))
        said = f"from {slower['rate'].min():g} requests/s on" if slower.height else "nowhere here"
        print(f"{drafts} drafts hurt {said}")
    for drafts, rate in stable.items():
        print(f"{drafts} drafts: stable up to {rate:.2f} requests/s")
    colours = alt.Scale(domain=[str(drafts) for drafts in DRAFTS], range=COLOURS)
    chart = (
        alt.Chart(table)
        .mark_line(point=True)
        .encode(
            x=alt.X("rate:Q", title="Requests/s that arrive"),
            y=alt.Y("seconds:Q", title="Mean time of a request, s", scale=alt.Scale(type="log")),
            color=alt.Color("drafts:N", title="Drafts", scale=colours),
            strokeDash=alt.StrokeDash("drafts:N", legend=None),
        )
        .properties(width=460, height=260)
        .configure_legend(orient="top")
    )
    charts.save({"speculation": chart}, Path(__file__).parents[2] / "docs" / "figures")


if __name__ == "__main__":
    main()
