"""Vertex C of the region under a max batch size: one scheduler is stable there, at one token
budget.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import altair as alt
import numpy as np
import polars as pl

from penstock.document import Section, Whole
from penstock.errors import InputError
from penstock.reproducing.item import Claim, Reproduction, Setup, refuse
from penstock.reproducing.looks import lines_over_time
from penstock.scenario.scenario import Scenario
from penstock.show.charts import on_grid
from penstock.simulation.run import Run
from penstock.simulation.simulate import simulate
from penstock.system.policies import resolve
from penstock.system.server import Server
from penstock.theory.certificate import certify
from penstock.workload.arrivals import Deterministic
from penstock.workload.workload import Workload

PUBLISHED = {
    "fastertransformer": "grows",
    "vllm-vanilla": "grows",
    "orca": "grows",
    "sarathi": "bounded",
}
"""What Section 6.2 shows of each policy at the smaller budget."""

WATCHED = "sarathi"
"""The policy whose batches are looked at, and whose backlog grows too at the larger budget."""

MIXED = (29, 99)
"""Prefill and decode tokens of the batches by which Sarathi-Serve holds vertex C."""

_FIRST = 1_000  # requests whose lengths are looked at
_DECODES = 10  # of one request, in a run that is long enough to settle and then go round in cycles


class _Settings(Section):
    policies: list[str]
    larger_budget: Whole
    scopes: list[Literal["batch", "running"]]


class _Backlog(NamedTuple):
    """Of a run: its growth as a share of what arrives, and the backlog's span over its second half
    and highest before.

    Nothing here is random, so a backlog with no new high in the second half goes round in a cycle.
    As it is looked at some thousand times only, a new high by less than a request is none.
    """

    run: Run
    growth: float
    low: int
    high: int
    before: int
    request: float

    @classmethod
    def of(cls, run: Run, offered: float, rate: float) -> "_Backlog":
        tokens = run.series["uncompleted_tokens"].to_numpy()
        early, late = tokens[: tokens.size // 2], tokens[tokens.size // 2 :]
        growth = run.growth_tokens_per_s / offered
        return cls(run, growth, int(late.min()), int(late.max()), int(early.max()), offered / rate)

    @property
    def verdict(self) -> str:
        return "bounded" if self.high < self.before + self.request else "grows"


def run(setup: Setup) -> Reproduction:
    """Compare how the backlog of each policy develops at vertex C, at two token budgets."""
    settings = setup.settings(_Settings)
    scenario = setup.scenario()
    until = _checked_until(settings, scenario)
    workload, server = scenario.workload, scenario.server
    small, large = server.token_budget, settings.larger_budget
    backlogs, reasons = _simulated(setup, settings, scenario, until)

    claims = [_critical(workload, server)]
    claims += [
        _grows(
            f"{name} at {small:,} tokens",
            PUBLISHED[name],
            backlogs[small, name],
            reasons[small, name],
        )
        for name in settings.policies
        if name in PUBLISHED
    ]
    claims.append(_mixed(workload, server.with_policy(WATCHED), until))
    wide = large, WATCHED
    claims.append(_grows(f"{WATCHED} at {large:,} tokens", "grows", backlogs[wide], reasons[wide]))
    return setup.answer(
        claims, _rows(backlogs, settings.scopes),
        _charts(backlogs, settings, (small, large)),
        "The load is exactly what can be carried. Any randomness would let every backlog wander "
        "without bound, so that no test of random drift can judge it. Nothing is random here. A "
        "bounded backlog lies near zero on the left; the log scale shows that it stays level.",
        assumed=(
            "The load is critical, so that no theorem judges it: growth is measured over the "
            "second half of the run, as a share of the tokens that arrive",
            "A backlog is `bounded` if it has no new high, by a request or more, in the second "
            "half of the run; else it `grows`",
            f"Scopes that were tried: {' and '.join(settings.scopes)}. The max batch size counts "
            "the requests in a batch (paper) or those admitted and unfinished (engines). Where "
            "growth depends on the scope both are given",
            "The batches of sarathi are `same` if all of the second half are; the load is 1 to "
            "within rounding",
        ),
    )  # fmt: skip


def _simulated(
    setup: Setup, settings: _Settings, scenario: Scenario, until: float
) -> tuple[dict[tuple[int, str], list[_Backlog]], dict[tuple[int, str], str]]:
    """Return the backlog of each policy at both budgets, in every scope, and what theory says."""
    workload, server = scenario.workload, scenario.server
    offered = certify(workload, server).load.offered_tokens_per_s
    backlogs: dict[tuple[int, str], list[_Backlog]] = {}
    reasons: dict[tuple[int, str], str] = {}
    for index, budget in enumerate((server.token_budget, settings.larger_budget)):
        for name in settings.policies:
            policy = resolve(name, folder=setup.folder)
            limited = dataclasses.replace(server, token_budget=budget).with_policy(policy)
            for scope in settings.scopes:
                scoped = dataclasses.replace(limited, scope=scope).with_policy(policy)
                run = simulate(workload, scoped, until=until)
                backlog = _Backlog.of(run, offered, workload.rate)
                backlogs.setdefault((budget, name), []).append(backlog)
            reasons[budget, name] = certify(workload, limited).reason
        setup.progress((index + 1) / 3)
    return backlogs, reasons


def _checked_until(settings: _Settings, scenario: Scenario) -> float:
    """Return the seconds to simulate, once all that is asked can show whether a backlog grows."""
    workload, server, until = scenario.workload, scenario.server, scenario.until
    if until is None or not settings.scopes or WATCHED not in settings.policies:
        raise InputError(
            f"fig-kmax watches {WATCHED} and other policies for so many simulated seconds in one "
            "or two scopes; give "
            "`simulate: {until: 20000}`, `scopes: [batch]`, and sarathi among the policies"
        )
    refuse(
        _random(workload),
        "fig-kmax measures growth, which only tells where nothing is random, but arrivals or "
        "lengths are; give `workload: {deterministic: ...}` with constant lengths, or ask "
        "`penstock check` about random ones",
    )
    refuse(
        settings.larger_budget <= server.token_budget,
        f"reproduce.larger_budget is {settings.larger_budget:,} tokens, but server.token_budget is "
        f"{server.token_budget:,}, so it is no larger one to compare with; raise larger_budget",
    )
    shortest = (
        _DECODES * workload.mean_output * float(server.batch_time.by_tokens(server.token_budget))
    )
    refuse(
        until < shortest,
        f"simulate.until is {until:g} s, but a request decodes for {shortest / _DECODES:,.1f} "
        "s, so the backlog has no time to settle and show whether it grows; give at least "
        f"{math.ceil(shortest):,} s",
    )
    return until


def _random(workload: Workload) -> bool:
    """Whether arrivals are not evenly spaced, or the first lengths differ."""
    first = workload.requests(_FIRST) if isinstance(workload.arrivals, Deterministic) else None
    return first is None or bool(np.ptp(first.prompt_tokens) or np.ptp(first.output_tokens))


def _critical(workload: Workload, server: Server) -> Claim:
    certificate = certify(workload, server)
    load = workload.rate / certificate.max_rate
    return Claim.judged(
        "load of the operating point", "1: a vertex of the region", f"{load:.6f} "
                                                                    f"({certificate.verdict})",
        certificate.verdict == "critical", certificate.reason,
    )  # fmt: skip


def _grows(what: str, published: str, backlogs: list[_Backlog], reason: str) -> Claim:
    """Compare whether a backlog grows; bounded only if it is in every scope."""
    measured = "bounded" if all(backlog.verdict == "bounded" for backlog in backlogs) else "grows"
    if measured == "grows":
        low, high = (round(100 * f(backlog.growth for backlog in backlogs), 1) for f in (min, max))
        shares = f"{low:.1f}%" if low == high else f"{low:.1f} to {high:.1f}%"
        shown = f"grows by {shares} of what arrives"
    else:
        lowest = min(backlog.low for backlog in backlogs)
        highest = max(backlog.high for backlog in backlogs)
        shown = f"bounded: {lowest:,} to {highest:,} tokens"
    reason = f"not the figure's operating point: {reason}"
    return Claim.judged(what, published, shown, measured == published, reason)


def _mixed(workload: Workload, server: Server, until: float) -> Claim:
    """Compare the batches of Sarathi-Serve, once it has settled, with those that hold the
    vertex.
    """
    batches = simulate(workload, server, until=until, record="batches").batches
    late = batches.slice(batches.height // 2)
    most = (
        late.group_by("prefill_tokens", "decode_tokens")
        .len()
        .sort("len", "decode_tokens", descending=True)
        .row(0)
    )
    same = most[:2] == MIXED and most[2] == late.height
    return Claim.judged(
        f"batches of sarathi at {server.token_budget:,}", f"{MIXED[0]} prefill + {MIXED[1]} "
                                                          "decode tokens",
        f"{most[0]} + {most[1]} in {most[2] / late.height:.2%} of them", same,
        "another load or limit than the figure's needs another mix of batches",
    )  # fmt: skip


def _rows(backlogs: Mapping[tuple[int, str], list[_Backlog]], scopes: list[Any]) -> pl.DataFrame:
    rows = [
        {
            "token_budget": budget,
            "policy": name,
            "scope": scope,
            "backlog": backlog.verdict,
            "growth_percent_of_arrivals": 100 * backlog.growth,
            "least_uncompleted_tokens": backlog.low,
            "most_uncompleted_tokens": backlog.high,
        }
        for (budget, name), by_scope in backlogs.items()
        for scope, backlog in zip(scopes, by_scope, strict=True)
    ]
    return pl.DataFrame(rows)


def _charts(
    backlogs: Mapping[tuple[int, str], list[_Backlog]],
    settings: _Settings,
    budgets: tuple[int, int],
) -> dict[str, Any]:
    """Draw the figure's two halves, in the first scope, each to scale and on a log scale."""
    small = budgets[0]
    policies = {name: (small, name) for name in settings.policies}
    both = {f"{budget:,}": (budget, WATCHED) for budget in budgets}
    halves = (
        (f"All policies, token budget {small:,}", "Policy", policies),
        ("Sarathi-Serve by token budget", "Token budget", both),
    )
    drawings: dict[str, Any] = {}
    for title, legend, lines in halves:
        runs = {name: backlogs[key][0].run for name, key in lines.items()}
        panels = [
            lines_over_time(
                runs,
                "unprocessed_tokens",
                measure="Unprocessed tokens",
                title=panel,
                legend=legend,
                log=log,
            )
            for panel, log in ((title, False), ("The same on a log scale", True))
        ]
        drawings[f"Unprocessed tokens over time, to scale and on a log scale. {title}."] = on_grid(
            alt.hconcat(*panels)
        )
    return drawings
