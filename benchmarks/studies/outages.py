"""Draw what a replica that dies for five minutes does to the time to first token, by load.

Azure conversations, drawn anew with Poisson arrivals, at eight replicas of CodeLlama-34B on one
A100 (80 GB) each behind jsq: vLLM, token budget 512, 65,536 tokens of KV memory. A replica dies 20
minutes into the run and is back after five; its requests are sent again at once.

Run ``python benchmarks/studies/outages.py``; it prints how long the queue takes to recover, and
writes ``docs/figures/outages.svg``.
"""

from pathlib import Path

import altair as alt
import polars as pl

import penstock as ps
from penstock.show import charts

RATES = (12, 13, 14, 15)
REPLICAS = 8
SECONDS = 3600.0
AWAY = (1200.0, 1500.0)
EVERY_S = 60
CASES = ("a replica is away", "nothing happens")


def network(rate: float) -> ps.Network:
    """Return the replicas and what comes to them."""
    batch_time = ps.hardware("codellama-34b-a100-tp1").batch_time
    memory = ps.Memory(4096, 16)
    server = ps.Server(batch_time, 512, policy="vllm", memory=memory)
    workload = ps.Workload.preset("azure-conv").with_rate(rate, arrivals="poisson")
    return ps.Network.single(workload, server, REPLICAS, "jsq")


def ttft_by_minute(rate: float, outages: list[ps.Outage]) -> pl.DataFrame:
    """Return the p99 of the time to first token of those who came in each minute."""
    run = ps.simulate(network(rate), jobs=round(rate * SECONDS), seed=1, outages=outages)
    came = pl.col("arrival_ns") / 1e9
    return (
        run.requests.filter(pl.col("first_token_ns").is_not_null())
        .with_columns(
            minute=(came / EVERY_S).floor().cast(pl.Int64),
            ttft=(pl.col("first_token_ns") - pl.col("arrival_ns")) / 1e9,
        )
        .group_by("minute")
        .agg(pl.col("ttft").quantile(0.99))
        .sort("minute")
    )


def recovery_s(calm: pl.DataFrame, hit: pl.DataFrame) -> float:
    """Return how long after the return of the replica the first minute begins that is less than
    twice as slow as without the outage.
    """
    both = calm.join(hit, on="minute", suffix="_hit")
    after = both.filter(pl.col("minute") * EVERY_S >= AWAY[1])
    over = after.filter(pl.col("ttft_hit") < 2 * pl.col("ttft"))["minute"].min()
    return float(over) * EVERY_S - AWAY[1]


def main() -> None:
    """Simulate, print and draw."""
    outage = ps.Outage("pool", 3, *AWAY)
    tables = []
    for rate in RATES:
        calm, hit = ttft_by_minute(rate, []), ttft_by_minute(rate, [outage])
        load = ps.certify(network(rate)).pools[0].rho
        print(
            f"{rate} requests/s, load {load:.2f}, with one less {load * REPLICAS / 7:.2f}: worst "
            f"minute {hit['ttft'].max():.1f} s against {calm['ttft'].max():.1f} s, recovered after "
            f"{recovery_s(calm, hit):.0f} s"
        )
        for name, table in zip(CASES, (hit, calm), strict=True):
            at = pl.lit(f"{rate} requests/s, load {load:.2f}")
            tables.append(table.with_columns(rate=at, outage=pl.lit(name)))
    lines = pl.concat(tables).with_columns(x=pl.col("minute") + 0.5)
    colours = alt.Scale(domain=CASES, range=["#000000", "#0072B2"])
    dashes = alt.Scale(domain=CASES, range=[[1, 0], [4, 2]])
    curves = (
        alt.Chart()
        .mark_line()
        .encode(
            x=alt.X("x:Q", title="Minute of arrival"),
            y=alt.Y("ttft:Q", title="p99 of TTFT, s", scale=alt.Scale(type="log")),
            color=alt.Color("outage:N", title=None, scale=colours),
            strokeDash=alt.StrokeDash("outage:N", title=None, scale=dashes),
        )
    )
    away = pl.DataFrame({"from": [AWAY[0] / 60], "to": [AWAY[1] / 60]})
    shade = alt.Chart(away).mark_rect(color="#dddddd").encode(x="from:Q", x2="to:Q")
    chart = (
        alt.layer(shade, curves, data=lines)
        .properties(width=250, height=150)
        .facet(alt.Facet("rate:N", title=None), columns=2)
        .configure_legend(orient="top")
    )
    charts.save({"outages": chart}, Path(__file__).parents[2] / "docs" / "figures")


if __name__ == "__main__":
    main()
