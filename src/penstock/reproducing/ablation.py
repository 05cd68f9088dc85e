"""Latency of Sarathi-Serve on conversations by its token budget: end to end, and to the first
token.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import altair as alt
import polars as pl
from pydantic import Field

from penstock.checking import charts
from penstock.document import Section, Whole
from penstock.errors import InputError
from penstock.reproducing.item import Claim, Reproduction, Seeds, Setup, refuse, served_to_the_last
from penstock.show.charts import on_grid
from penstock.simulation.run import Run
from penstock.system.server import Server
from penstock.theory.certificate import certify
from penstock.workload.workload import Workload

SMALL, MODERATE, LARGE = 128, 512, 1024
"""Token budgets that the paper compares."""

Medians = Mapping[int, list[float]]
"""By token budget, of each seed, in seconds."""

_TIE = 0.01  # medians that lie no further apart than this share of the larger have no order


class _Settings(Section):
    trace: str = "azure-llm-2023-conv"
    rates: list[Annotated[float, Field(gt=0)]]
    budgets: list[Annotated[Whole, Field(ge=1)]]
    seeds: Seeds


def run(setup: Setup) -> Reproduction:
    """Compare median latencies by token budget, at each rate."""
    settings = setup.settings(_Settings)
    complete = {SMALL, MODERATE, LARGE} <= set(settings.budgets)
    refuse(
        not (complete and settings.rates and settings.seeds),
        f"fig-ablation compares token budgets {SMALL}, {MODERATE} and {LARGE}, at a rate and with "
        f"a seed at least; its settings are budgets {settings.budgets}, rates {settings.rates} and "
        f"seeds {settings.seeds}: add what is missing",
    )
    workload, origin, scenario = setup.traced(settings.trace)
    if scenario.requests is None:
        raise InputError(
            "fig-ablation compares as many requests at each budget; give `simulate: {requests: "
            "5000}`"
        )
    servers = {
        budget: dataclasses.replace(scenario.server, token_budget=budget)
        for budget in settings.budgets
    }
    claims: list[Claim] = []
    rows: list[dict[str, Any]] = []
    charts: dict[str, Any] = {}
    for index, rate in enumerate(settings.rates):
        poisson = workload.with_rate(rate, "poisson")
        medians: dict[str, dict[int, list[float]]] = {
            metric: {budget: [] for budget in servers} for metric in ("e2e_s", "ttft_s")
        }
        for seed in setup.each(settings.seeds, index, len(settings.rates)):
            runs = served_to_the_last(poisson.with_seed(seed), scenario.requests, servers)
            for budget, run in runs.items():
                latency = run.latency().filter(pl.col("metric") != "tbt_s").drop("p95")
                for row in latency.iter_rows(named=True):
                    medians[row["metric"]][budget].append(row["p50"])
                    rows.append({"rate": rate, "token_budget": budget, "seed": seed, **row})
            if seed == settings.seeds[0]:
                at = f"at most so much E2E and TTFT at {rate:g} requests/s, by budget."
                charts[f"Shares of requests with {at}"] = _cdfs(runs, rate)
        claims += _claims(rate, medians["e2e_s"], medians["ttft_s"], poisson, servers)
    return setup.answer(
        claims, pl.DataFrame(rows), charts,
        "Share of requests with at most so much latency, with the first seed; all budgets see the "
        "same requests.",
        assumed=(
            origin,
            "The paper gives neither the rate, nor the GPUs, nor how many requests: one A100, "
            f"{scenario.requests:,} requests and the rates "
            f"{', '.join(f'{rate:g}' for rate in settings.rates)} are assumed; its order holds "
            "from about 1.9 to 2.3 requests/s, where 128 tokens come to their limit",
            f"Measured medians are means over {len(settings.seeds)} seeds. Verdict `same`: the "
            f"order holds with every seed; the lowest E2E is more than {_TIE:.0%} below the next",
        ),
    )  # fmt: skip


def _claims(
    rate: float, e2e: Medians, ttft: Medians, workload: Workload, servers: Mapping[int, Server]
) -> list[Claim]:
    """Compare the orders of the medians with those of the paper; an order holds if it does with
    every seed.

    A tie for the lowest is no order, and one for the slowest no overhead.
    """
    seeds = range(len(e2e[SMALL]))
    by_seed = [{budget: e2e[budget][seed] for budget in (SMALL, MODERATE, LARGE)} for seed in seeds]
    lowest = [_lowest(medians) for medians in by_seed]
    better = [ttft[LARGE][seed] < ttft[MODERATE][seed] for seed in seeds]
    worst = [ttft[SMALL][seed] > max(ttft[MODERATE][seed], ttft[LARGE][seed]) for seed in seeds]
    at = f"{rate:g} requests/s"
    first = all(budget == MODERATE for budget in lowest)
    reason = "" if first else _no_order(by_seed) or _instead(lowest, workload, servers)
    disorder = "seeds disagree, or the load is so low that prompts hardly wait for one another"
    return [
        Claim(f"median E2E, {at}", f"{MODERATE} lowest", _shown(e2e), first, reason),
        Claim(
            f"median TTFT, {at}", f"{LARGE:,} below {MODERATE}", _shown(ttft), all(better),
            _unless(better, disorder)
        ),
        Claim(
            f"cost of chunking, {at}", f"{SMALL} incurs significant overhead from repeated "
                                       "chunked prefill iterations",
            f"median TTFT {sum(ttft[SMALL]) / sum(ttft[MODERATE]):,.1f} times that of {MODERATE}",
            all(worst), _unless(worst, disorder),
        ),
    ]  # fmt: skip


def _lowest(medians: Mapping[int, float]) -> int | None:
    """Return the budget whose median is the lowest, None for a tie."""
    best, second = sorted(medians, key=lambda budget: medians[budget])[:2]
    return best if medians[best] < (1 - _TIE) * medians[second] else None


def _no_order(by_seed: list[dict[int, float]]) -> str:
    """Say with how many seeds the lowest medians tie; nothing where they do with few."""
    tied = sum(_lowest(medians) is None for medians in by_seed)
    if all(min(medians.values()) >= (1 - _TIE) * max(medians.values()) for medians in by_seed):
        return f"no order: all within {_TIE:.0%}"
    ties = f"no order in {tied} of {len(by_seed)} seeds: the two lowest are within {_TIE:.0%}"
    return ties if 2 * tied >= len(by_seed) else ""


def _unless(held: list[bool], reason: str) -> str:
    return "" if all(held) else f"in {sum(held)} of {len(held)} seeds only: {reason}"


def _shown(medians: Medians) -> str:
    """Return the mean over seeds of each budget, the lowest first."""
    means = {budget: sum(seconds) / len(seconds) for budget, seconds in medians.items()}
    return ", ".join(
        f"{budget:,}: {means[budget]:#.3g} s" for budget in sorted(means, key=lambda b: means[b])
    )


def _instead(lowest: list[int | None], workload: Workload, servers: Mapping[int, Server]) -> str:
    """Say why another budget has the lowest median E2E."""
    best = max({budget for budget in lowest if budget is not None}, key=lowest.count)
    if best == MODERATE:
        return f"in {lowest.count(best)} of {len(lowest)} seeds only: more requests would decide"
    certificate = certify(workload, servers[best])
    ms = {
        budget: 1e3 * float(servers[budget].batch_time.by_tokens(budget))
        for budget in (best, MODERATE)
    }
    return (
        f"the order depends on the rate, which the paper does not give: a budget of {best:,} is at "
        f"rho {certificate.rho:.2f} here, and its batches of {ms[best]:.0f} ms, against "
        f"{ms[MODERATE]:.0f} ms, are faster for whoever decodes; the paper's order appears near "
        f"its limit of {certificate.max_rate:.2f} requests/s"
    )


def _cdfs(runs: Mapping[int, Run], rate: float) -> Any:
    """Draw E2E (left) and TTFT (right)."""
    ttft, _, e2e = charts.latency_panels(
        {f"{budget:,}": run for budget, run in runs.items()}, legend="Token budget"
    )
    panels = [
        panel.properties(title=f"{what}, {rate:g} requests/s")
        for panel, what in ((e2e, "End to end"), (ttft, "Time to first token"))
    ]
    return on_grid(alt.hconcat(*panels))
