"""Draw what preemption costs once the KV memory is full.

Two servers, of CodeLlama-34B on one and on two A100 (80 GB): what the weights leave holds about
2,500 and 24,000 blocks of 16 tokens. Conversations (the look-alike of the Azure trace, resampled)
on the one, long outputs (geometric, means of 500 prompt and 2,000 output tokens) on the other;
token budget 2,048. Four ways to let requests in, the first three of vLLM's scheduler (its settings
``scheduler_reserve_full_isl`` and ``watermark``, each of them equal to recordings of it):

* first chunk: when what goes into the next batch fits,
* input: when the whole prompt fits,
* input, and 5% of the blocks stay free,
* completion: when prompt and output fit (the policy sarathi).

Drawn are the requests that finish per second and the share of the tokens that is processed anew,
against the requests that arrive; then, of the second server with admission by input and more
arriving than it can carry, against the max batch size. Counted over the second half of the
arrivals.

Run ``python benchmarks/studies/memory_cliff.py``; it writes ``docs/figures/memory_cliff.svg`` and
``memory_batch_size.svg``.
"""

from pathlib import Path
from typing import NamedTuple

import altair as alt
import polars as pl

import penstock as ps
from penstock.show import charts

BUDGET = 2048
LOADS = (
    0.3,
    0.4,
    0.5,
    0.6,
    0.8,
    0.9,
    1.0,
    1.1,
    1.2,
    1.3,
    1.4,
    1.5,
    1.75,
    2.0,
)  # of what memory is estimated to carry, admission by input
SLOTS = (40, 80, 120, 128, 140, 150, 160, 170, 180, 200, 250, 300)


class Way(NamedTuple):
    """How requests are let in: by whom, with which settings, and what memory adds."""

    policy: str = "vllm"
    reserve_prompt: bool = True
    watermark: float | None = None
    admission: str | None = None


WAYS = {
    "first chunk": Way(reserve_prompt=False),
    "input": Way(),
    "input, 5% stay free": Way(watermark=0.05),
    "completion": Way("sarathi", admission="completion"),
}
COLOURS = ["#D55E00", "#000000", "#0072B2", "#E69F00"]


class Case(NamedTuple):
    """A server, what arrives, and how many of it."""

    title: str
    batch_time: ps.BatchTime
    blocks: int
    workload: ps.Workload
    requests: int

    def server(self, way: Way, max_batch_size: int | None = None) -> ps.Server:
        """Return the server with one way to let requests in."""
        memory = ps.Memory(self.blocks, 16, way.watermark, way.admission, too_long="drop")
        params = {"reserve_prompt": way.reserve_prompt} if way.policy == "vllm" else ()
        slots = max_batch_size or BUDGET
        return ps.Server(
            self.batch_time, BUDGET, slots, way.policy, policy_params=params, memory=memory
        )


CASES = (
    Case(
        "Conversations, one A100",
        ps.hardware("codellama-34b-a100-tp1").batch_time,
        2_500,
        ps.Workload.preset("azure-conv"),
        8_000,
    ),
    Case(
        "Long outputs, two A100",
        ps.hardware("codellama-34b-a100-tp2").batch_time,
        24_000,
        ps.Workload.poisson(1.0, ps.Geometric(500, max=4_000), ps.Geometric(2_000, max=20_000)),
        8_000,
    ),
)


def served(case: Case, server: ps.Server, rate: float) -> dict[str, float]:
    """Return what a server does while so many requests arrive per second."""
    run = ps.simulate(
        case.workload.with_rate(rate, "poisson"), server, requests=case.requests, drain=False
    )
    assert run.rows is not None
    finish, half = run.rows.finish, run.last_arrival / 2
    counted = (finish > half) & (finish <= run.last_arrival)
    seconds = half * run.tick_s
    return {
        "arriving": float((run.rows.arrival > half).sum()) / seconds,
        "finishing": float(counted.sum()) / seconds,
        "output_tokens_per_s": float(run.rows.output_tokens[counted].sum()) / seconds,
        "recomputed": run.recomputed_tokens / run.tokens,
        "preemptions": run.preemptions / run.finished,
        "busy": run.utilisation,
    }


def main() -> None:
    """Simulate, print and draw."""
    rows: list[dict[str, object]] = []
    for case in CASES:
        carried = ps.memory_estimate(case.workload, case.server(WAYS["input"])).rate
        print(f"{case.title}: memory is estimated to carry {carried:.3f} requests/s")
        for name_of_way, way in WAYS.items():
            for load in LOADS:
                found = served(case, case.server(way), load * carried)
                rows.append({"case": case.title, "admission": name_of_way, **found})
                print(
                    f"{name_of_way:20} "
                    + "  ".join(f"{name} {value:.3f}" for name, value in found.items()),
                    flush=True,
                )
    case = CASES[1]
    rate = 1.5 * ps.memory_estimate(case.workload, case.server(WAYS["input"])).rate
    slots = [
        {"slots": most, **served(case, case.server(WAYS["input"], most), rate)} for most in SLOTS
    ]
    for row in slots:
        print("  ".join(f"{name} {value:.3f}" for name, value in row.items()))

    table = pl.DataFrame(rows)
    colours = alt.Scale(domain=list(WAYS), range=COLOURS)
    panels = []
    for case in CASES:
        base = alt.Chart(table.filter(pl.col("case") == case.title)).encode(
            x=alt.X("arriving:Q", title="Requests/s that arrive", scale=alt.Scale(zero=True)),
            color=alt.Color("admission:N", title="Admission", sort=list(WAYS), scale=colours),
        )
        panels.append(
            alt.vconcat(
                base.mark_line(point=True)
                .encode(y=alt.Y("finishing:Q", title="Requests/s that finish"))
                .properties(width=300, height=190, title=case.title),
                base.mark_line(point=True)
                .encode(
                    y=alt.Y(
                        "recomputed:Q", title="Tokens processed anew", axis=alt.Axis(format="%")
                    )
                )
                .properties(width=300, height=130),
            )
        )
    cliff = alt.hconcat(*panels)
    sweep = alt.Chart(pl.DataFrame(slots)).encode(x=alt.X("slots:Q", title="Max batch size"))
    black = COLOURS[1]
    batch_size = alt.hconcat(
        sweep.mark_line(point=alt.OverlayMarkDef(color=black), color=black)
        .encode(y=alt.Y("finishing:Q", title="Requests/s that finish", scale=alt.Scale(zero=True)))
        .properties(width=300, height=170),
        sweep.mark_line(point=alt.OverlayMarkDef(color=black), color=black)
        .encode(y=alt.Y("recomputed:Q", title="Tokens processed anew", axis=alt.Axis(format="%")))
        .properties(width=300, height=170),
    )
    drawn = {
        name: chart.configure_legend(orient="top")
        for name, chart in {"memory_cliff": cliff, "memory_batch_size": batch_size}.items()
    }
    charts.save(drawn, Path(__file__).parents[2] / "docs" / "figures")


if __name__ == "__main__":
    main()
