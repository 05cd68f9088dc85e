"""Measure seven routers, and what late reports do to them, on recorded traffic.

Eight replicas of vLLM (token budget 2,048, 256 running requests), with the KV memory that the
weights leave:

* Azure conversations, drawn at random from the recording, Poisson, on CodeLlama-34B (one A100);
* Mooncake conversations with their hash ids, replayed at a scaled rate on Llama-2-70B (four H100).
  The times of that trace are steps of 3 s: within a step arrivals are spread at random;
* agents' sessions (WEKA), drawn whole, on Llama-2-70B (eight H100), where each call goes on with
  the context of the call before. Counted are the calls of the second half of the time.

Rates are 0.8 of what jsq carries with a queue that never empties. Intervals are 95%, by Student's t
over runs with other seeds.

Run ``python benchmarks/studies/routers.py FOLDER``, where FOLDER has azure_llm_2023_conv.csv,
mooncake_fast25_conversation_trace.jsonl.gz and weka_claude_code_requests.parquet; it prints the
tables as Markdown and writes ``docs/figures/routers.svg``.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import altair as alt
import numpy as np
import polars as pl
from routers_counting import jsq_counting, memory_counting, new_tokens, session_spread

import penstock as ps
from penstock.show import charts
from penstock.show.plot import COLOURS, DASHES
from penstock.simulation.intervals import student
from penstock.system.routing import Router
from penstock.workload.arrivals import Replay

REPLICAS = 8
LOAD = 0.8  # of what jsq carries
NAMED = ("random", "round-robin", "jsq", "tokens", "memory", "prefix", "scored")
BLIND = ("random", "round-robin")  # which read no report
STEP_S = 3.0  # of the times in the Mooncake trace


@dataclasses.dataclass(frozen=True)
class Case:
    """A server and what arrives: ``workflow(rate, seed)``."""

    title: str
    server: ps.Server
    workflow: Callable[[float, int], ps.Workflow | ps.Sessions]
    flood: float  # jobs/s, more than can be carried
    jobs: int | None
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    reports_ms: tuple[int, ...] = (0, 50, 500)
    sessions: bool = False

    def run(self, choice: str | Router, rate: float, report_ms: float, seed: int) -> ps.Run:
        """Return a run behind a router."""
        pool = ps.Pool(self.server, REPLICAS, choice, report_ms=report_ms)
        network = ps.Network({"pool": pool}, [self.workflow(rate, seed)])
        return ps.simulate(network, jobs=self.jobs, seed=seed, drain=not self.sessions)

    def most(self) -> float:
        """Return the jobs/s that jsq carries while a queue waits."""
        run = self.run("jsq", self.flood, 0, 0)
        assert run.rows is not None
        half = run.last_arrival / 2
        calls = ((run.rows.finish > half) & (run.rows.finish <= run.last_arrival)).sum()
        calls_of_job = run.rows.arrival.size / run.arrived
        return float(calls) / calls_of_job / (half * run.tick_s)


def engine(name: str, block_size: int, memory: int = 1) -> ps.Server:
    """Return vLLM on known hardware that caches prefixes, with so many times the memory that the
    weights leave.
    """
    known = ps.hardware(name)
    estimate = ps.Server(known.batch_time, 2048, 256, policy="vllm", gpu=known.gpu).kv_estimate
    assert estimate is not None
    blocks = memory * estimate.tokens // block_size
    kv = ps.Memory(blocks, block_size, prefix_caching=True)
    return ps.Server(known.batch_time, 2048, 256, policy="vllm", memory=kv)


def cases(folder: Path) -> tuple[Case, ...]:
    """Return what is simulated."""
    azure = ps.read_trace(folder / "azure_llm_2023_conv.csv")
    mooncake = ps.read_trace(folder / "mooncake_fast25_conversation_trace.jsonl.gz")
    assert isinstance(mooncake.arrivals, Replay)
    steps = mooncake.arrivals.times_s

    def conversation(rate: float, seed: int) -> ps.Workflow:
        return ps.Workflow.single(azure.with_rate(rate, "poisson"), "pool")

    def replayed(rate: float, seed: int) -> ps.Workflow:
        spread = np.random.default_rng(seed).uniform(0, STEP_S, steps.size)
        times = Replay(np.sort(steps + spread))
        workload = dataclasses.replace(mooncake, arrivals=times).with_rate(rate)
        return ps.Workflow.single(workload, "pool")

    def agents(rate: float, seed: int) -> ps.Sessions:
        return ps.read_sessions(folder / "weka_claude_code_requests.parquet", "pool", rate=rate)

    small = engine("codellama-34b-a100-tp1", 16)
    middle = engine("llama-2-70b-h100-tp4", 512)
    large = engine("llama-2-70b-h100-tp8", 512)
    return (
        Case("Azure conversations", small, conversation, 40.0, 20_000),
        Case("Mooncake conversations", middle, replayed, 8.0, None),
        Case("Agents' sessions", large, agents, 0.04, 400, (0, 1, 2, 3), sessions=True),
    )


def measured(run: ps.Run, second_half: bool) -> dict[str, float]:
    """Return what a run shows."""
    rows = run.rows
    assert rows is not None
    assert rows.preemptions is not None
    counted = rows.first_token >= 0
    if second_half:
        counted &= rows.arrival >= run.last_arrival / 2
    ttft = (rows.first_token - rows.arrival)[counted] * run.tick_s
    routed = np.flatnonzero(rows.arrival >= 0)
    order = routed[np.argsort(rows.arrival[routed], kind="stable")]
    return {
        "p50": float(np.median(ttft)),
        "p99": float(np.quantile(ttft, 0.99)),
        "found": float(rows.cached[counted].sum() / rows.jobs.prompt[counted].sum()),
        "preemptions": float(rows.preemptions.sum()),
        "same": float((np.diff(rows.replica[order]) == 0).mean()),
        "first": float((rows.replica[routed] == 0).mean()),
    }


def study(case: Case, rate: float, routers: Iterable[str | Router]) -> list[dict[str, object]]:
    """Simulate and print a table; return its rows."""
    print(f"\n{case.title}, {rate:.3g}/s\n")
    print("| router | report, ms | p50 TTFT, s | p99, s | found | preempted | as before | first |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    rows: list[dict[str, object]] = []
    for choice in routers:
        name = choice.name if isinstance(choice, Router) else choice
        for report_ms in case.reports_ms:
            if name in BLIND and report_ms:
                rows.append(rows[-1] | {"report": str(report_ms)})
                continue
            runs = [case.run(choice, rate, report_ms, seed) for seed in case.seeds]
            table = pl.DataFrame([measured(run, case.sessions) for run in runs])
            mean = {key: float(table[key].mean()) for key in table.columns}  # type: ignore[arg-type]
            half = student(0.95, len(runs)) * table["p99"].std() / len(runs) ** 0.5  # type: ignore[operator]
            print(
                f"| `{name}` | {report_ms} | {mean['p50']:.2f} | {mean['p99']:.1f} ± {half:.1f} "
                f"| {mean['found']:.1%} | {mean['preemptions']:.0f} | {mean['same']:.0%} "
                f"| {mean['first']:.0%} |",
                flush=True,
            )
            rows.append({"case": case.title, "router": name, "report": str(report_ms), **mean})
    return rows


def drawn(rows: list[dict[str, object]]) -> alt.HConcatChart:
    """Draw the p99 by the time between reports, a panel a case."""
    names = [*NAMED, jsq_counting.name]
    table = pl.DataFrame(rows).filter(pl.col("router").is_in(names))
    colour = alt.Scale(domain=names, range=[*COLOURS, "#999999"])
    dashes = alt.Scale(domain=names, range=[*DASHES, [1, 3]])
    panels = [
        alt.Chart(table.filter(pl.col("case") == title), title=title)
        .mark_line(point=True)
        .encode(
            x=alt.X("report:O", title="ms between reports", sort=None, axis=alt.Axis(labelAngle=0)),
            y=alt.Y("p99:Q", title="p99 TTFT, s", scale=alt.Scale(type="log", zero=False)),
            color=alt.Color("router:N", title="Router", sort=names, scale=colour),
            strokeDash=alt.StrokeDash("router:N", title="Router", sort=names, scale=dashes),
        )
        .properties(width=210, height=260)
        for title in table["case"].unique(maintain_order=True)
    ]
    chart: alt.HConcatChart = alt.hconcat(*panels).configure_legend(orient="right")
    return chart


def main(folder: Path) -> None:
    """Simulate, print and draw."""
    azure, mooncake, agents = cases(folder)
    counting = (jsq_counting, memory_counting)
    rows = study(azure, LOAD * azure.most(), (*NAMED, *counting))
    rows += study(mooncake, LOAD * mooncake.most(), (*NAMED, *counting, new_tokens))
    rate = LOAD * agents.most()
    rows += study(agents, rate, (*NAMED, "session", session_spread, new_tokens))
    ample = dataclasses.replace(
        agents, title="Agents' sessions, ten times the memory", reports_ms=(0,),
        server=engine("llama-2-70b-h100-tp8", 512, memory=10),
    )  # fmt: skip
    study(ample, rate, ("jsq", "session", "scored"))
    charts.save({"routers": drawn(rows)}, Path(__file__).parents[2] / "docs" / "figures")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
