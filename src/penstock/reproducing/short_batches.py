"""Which batches of a few requests leave tokens waiting that they had room for (Section 4)."""

import dataclasses
from typing import Any

import altair as alt
import polars as pl
from pydantic import Field

from penstock.auditing.audit import audit
from penstock.checking.charts import first_batches, gantt
from penstock.document import Section, Whole, parsed
from penstock.reproducing.item import Claim, Different, Reproduction, Setup, refuse
from penstock.reproducing.small_systems import waiting
from penstock.scenario.server import ServerSection
from penstock.show import charts
from penstock.show.charts import on_grid
from penstock.simulation.run import Run
from penstock.simulation.simulate import simulate
from penstock.system.policies import resolve
from penstock.system.server import Server
from penstock.words import counted
from penstock.workload.workload import Workload


class _Request(Section):
    at_s: float = Field(ge=0, le=1e6)
    prompt: Whole = Field(ge=1, le=1000)
    output: Whole = Field(ge=1, le=1000)


class _Settings(Section):
    policies: Different[str]
    requests: list[_Request] = Field(max_length=50)


SHORT = {"vllm-vanilla": [2], "fastertransformer": [2, 3, 4], "orca": [], "sarathi": []}
"""Batches, counted from 1, that are not work-conserving: the figure's two, and by Table 1 those
that it leaves out.
"""

_DRAWN = ("vllm-vanilla", "fastertransformer")  # those that the paper's figure shows


def run(setup: Setup) -> Reproduction:
    """Serve a few requests under each policy, and shade the batches that are left short."""
    settings = setup.settings(_Settings, sections=("server",))
    refuse(
        not settings.policies or not settings.requests,
        "reproduce.policies or reproduce.requests is empty, so nothing can be drawn; give "
        "some of each",
    )
    server = _paper_server(setup)
    arrival, prompt, output = (
        [getattr(r, name) for r in sorted(settings.requests, key=lambda r: r.at_s)]
        for name in ("at_s", "prompt", "output")
    )
    # the same few requests under each policy, each batch beside what waited before it
    workload = Workload.from_arrays(arrival, prompt, output)
    claims, rows, panels = [], [], []
    for name in setup.each(settings.policies):
        chosen = dataclasses.replace(server, policy=resolve(name, folder=setup.folder))
        served = simulate(workload, chosen, record="allocations")
        table = _batches(name, served, prompt, output)
        rows.append(table)
        panels.append(_marked(served, table, name))
        if name in SHORT:
            short, breaches = table.filter("short")["batch"].to_list(), audit(served).paper.breaches
            drawn = "" if name in _DRAWN else " (by Table 1; not in the figure)"
            claims.append(
                Claim.judged(
                    f"{name}: batches left short", _numbers(SHORT[name]) + drawn, _numbers(short),
                    short == SHORT[name] and breaches == len(short),
                    "these requests and this token budget are not the paper's, which gives no "
                    "numbers",
                )
            )  # fmt: skip
    text = (
        f"Batches of {', '.join(settings.policies)} over time, each request's tokens by phase; "
        "short batches shaded."
    )
    together = alt.vconcat(*panels).resolve_scale(x="shared")
    return setup.answer(
        claims, pl.concat(rows),
        {text: on_grid(together)},
        "Above each batch its number. Shaded: a batch with fewer tokens than the budget although "
        "as many waited. There, 2: 6/8 says that batch 2 has 6 of the 8 tokens that it could have.",
        assumed=(
            f"The paper draws its example without numbers: {counted(len(prompt), 'request')} and a "
            f"token budget of {server.token_budget} were chosen here.",
        ),
    )  # fmt: skip


def _paper_server(setup: Setup) -> Server:
    """Return the server, once it is one for which the paper defines work conservation."""
    server = parsed(
        setup.document.get("server"), ServerSection, "server", "`batch_time`, `token_budget`"
    ).build(setup.folder)
    refuse(
        server.max_batch_size is not None,
        f"server.max_batch_size is {server.max_batch_size}, but the paper defines work "
        "conservation without one; leave it out",
    )
    refuse(
        server.convention != "paper",
        f"server.convention is {server.convention}, in which the first output token needs no "
        "batch, but the paper counts one for each; give convention: paper",
    )
    return server


def _numbers(batches: list[int]) -> str:
    return ", ".join(map(str, batches)) or "none"


def _batches(name: str, run: Run, prompt: list[int], output: list[int]) -> pl.DataFrame:
    """Return a row per batch, counted from 1: what it has, what waited, and whether it is short."""
    assert run.rows is not None
    budget = run.server.token_budget
    s = waiting(run, run.rows.arrival.tolist(), prompt, output)
    return run.batches.select(
        policy=pl.lit(name),
        batch=pl.int_range(1, s.load.size + 1),
        start_s=pl.col("start_ns") * 1e-9,
        end_s=(pl.col("start_ns") + pl.col("duration_ns")) * 1e-9,
        prefill_tokens="prefill_tokens",
        decode_tokens="decode_tokens",
        prompt_tokens_waiting=pl.Series(s.prompt_tokens),
        decodes_waiting=pl.Series(s.decodes),
        token_budget=pl.lit(budget),
        short=pl.Series(s.short(budget)),
    )


def _marked(run: Run, table: pl.DataFrame, name: str) -> alt.LayerChart:
    """Draw the batches of a run, shade those that are short, and number all."""
    drawn = first_batches(run)["batch"] + 1
    could = pl.min_horizontal(
        pl.col("prompt_tokens_waiting") + pl.col("decodes_waiting"), "token_budget"
    )
    has = pl.col("prefill_tokens") + pl.col("decode_tokens")
    table = table.filter(pl.col("batch").is_in(drawn.implode())).with_columns(
        middle_s=(pl.col("start_s") + pl.col("end_s")) / 2,
        words=pl.when("short")
        .then(pl.format("{}: {}/{}", "batch", has, could))
        .otherwise(pl.col("batch").cast(pl.String)),
    )
    short = alt.Chart(table.filter("short")).mark_rect(color=charts.COLOURS[1], opacity=0.3)
    over = alt.Chart(table).mark_text(baseline="bottom", dy=-4, fontSize=11)
    chart = gantt(run)
    layers: list[Any] = [
        short.encode(x="start_s:Q", x2="end_s:Q"),
        *chart.layer,
        over.encode(x="middle_s:Q", y=alt.value(0), text="words:N"),
    ]
    titled: alt.LayerChart = alt.LayerChart(layer=layers).properties(
        width=480, height={"step": 30}, title=alt.TitleParams(name, anchor="start", offset=14)
    )
    return titled
