"""Figure 1: two schedulers lose a load that two carry, and requests in the system while a code
trace is served.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import polars as pl
from pydantic import Field

from penstock.checking.answer import Answer, check
from penstock.checking.charts import tokens_over_time
from penstock.document import Section, Whole
from penstock.reproducing.item import (
    Claim,
    Reproduction,
    Seeds,
    Setup,
    refuse,
    served_to_the_last,
)
from penstock.reproducing.looks import lines_over_time
from penstock.show.charts import on_grid
from penstock.simulation.run import Run
from penstock.system.policies import resolve
from penstock.system.server import Server

PUBLISHED = {
    "fastertransformer": "unstable",
    "vllm-vanilla": "unstable",
    "orca": "stable",
    "sarathi": "stable",
}
"""What Figure 1 says of each policy."""

BEST, RATE = "sarathi", 14.0
"""The policy with the fewest requests in the system, by Figure 1, and the requests/s of its left
half, the same.
"""


class _Verdicts(Section):
    policies: list[str]
    other_budgets: list[Whole]


def left(setup: Setup) -> Reproduction:
    """Check each policy at the published rate and at other token budgets."""
    settings = setup.settings(_Verdicts)
    scenario = setup.scenario()
    refuse(
        not any(name in PUBLISHED for name in settings.policies),
        f"fig-instable-left has the policies {', '.join(settings.policies) or 'none'}, of which "
        f"Figure 1 shows none, so nothing can be compared; add one of {', '.join(PUBLISHED)}",
    )
    budgets = list(dict.fromkeys([scenario.server.token_budget, *settings.other_budgets]))
    answers: dict[int, dict[str, Answer]] = {budget: {} for budget in budgets}
    for budget, name in setup.each(list(itertools.product(budgets, settings.policies))):
        server = dataclasses.replace(_under(setup, scenario.server, name), token_budget=budget)
        answers[budget][name] = check(
            scenario.workload, server, requests=scenario.requests, until=scenario.until
        )
    first = answers[budgets[0]]
    claims = [
        Claim(
            f"{name} at {budgets[0]:,} tokens",
            PUBLISHED[name],
            _judged(answer),
            *_same(answer, PUBLISHED[name]),
        )
        for name, answer in first.items()
        if name in PUBLISHED
    ]
    claims += [_at_budget(budget, answers[budget]) for budget in budgets[1:]]
    rho = next(iter(first.values())).certificate.rho
    lost = [
        f"{budget:,}"
        for budget in budgets
        if next(iter(answers[budget].values())).certificate.rho > 1
    ]
    because = ""
    if lost:
        because = (
            f", since at {' and '.join(lost)} tokens the load alone makes every policy unstable"
        )
    chart = tokens_over_time({name: answer.run for name, answer in first.items()})
    text = (
        f"Uncompleted tokens in the system over time at {scenario.workload.rate:g} requests/s, a "
        "line per policy."
    )
    return setup.answer(
        claims, _verdict_rows(answers), {text: chart},
        "A verdict is that of a theorem, or else of a sequential test that starts from large "
        "backlogs and is wrong with probability 1% at most. The slopes drawn decide nothing. A "
        "small backlog lies near zero on the left; the log scale on the right tells it from "
        "others.",
        assumed=(
            f"The paper gives no token budget: {budgets[0]:,} (rho {rho:.3f}) is assumed{because}",
            "The paper gives mean lengths: constant ones are assumed, and no max batch size",
        ),
    )  # fmt: skip


def _under(setup: Setup, server: Server, name: str) -> Server:
    """Return the server under a policy, by its name or one of the reader's own."""
    return server.with_policy(resolve(name, folder=setup.folder))


def _same(answer: Answer, published: str) -> tuple[bool, str]:
    """Return whether the verdict is the published one, and why not."""
    if answer.verdict == published:
        return True, ""
    if answer.disagreement:
        return False, answer.disagreement
    by_theorem = answer.certificate.verdict != "unknown"
    return False, answer.certificate.reason if by_theorem else answer.stability.reason


def _witness(answer: Answer) -> str:
    if answer.certificate.verdict == "unknown":
        return "sequential test"
    return answer.certificate.theorem or "theorem"


def _judged(answer: Answer) -> str:
    """Return the verdict with its witness."""
    if answer.certificate.verdict != "unknown":
        return f"{answer.verdict} ({_witness(answer)})"
    test = answer.stability
    size = f" by {abs(test.drift):.1%}" if test.interval else ""
    return f"{answer.verdict} (test: a backlog {'grows' if test.drift > 0 else 'shrinks'}{size})"


def _at_budget(budget: int, answers: Mapping[str, Answer]) -> Claim:
    """Compare the verdicts at another token budget with what the load allows."""
    rho = next(iter(answers.values())).certificate.rho
    overloaded = rho > 1
    expected = {
        name: "unstable" if overloaded else answer
        for name, answer in PUBLISHED.items()
        if name in answers
    }
    wrong = [name for name, answer in expected.items() if answers[name].verdict != answer]
    by_verdict: dict[str, list[str]] = {}
    for name in expected:
        by_verdict.setdefault(answers[name].verdict, []).append(name)
    measured = "; ".join(
        f"all {verdict}" if len(names) == len(expected) else f"{verdict}: {', '.join(names)}"
        for verdict, names in by_verdict.items()
    )
    published = "as in Figure 1"
    reason = ""
    if overloaded:
        published = "all unstable by Theorem 1(a)"
        reason = f"the load alone is too much, so the figure cannot be made with {budget:,} tokens"
    if wrong:
        reason = "; ".join(f"{name}: {_same(answers[name], expected[name])[1]}" for name in wrong)
    return Claim(f"all at {budget:,} tokens, rho {rho:.3f}", published, measured, not wrong, reason)


def _verdict_rows(by_budget: Mapping[int, Mapping[str, Answer]]) -> pl.DataFrame:
    rows = [
        {
            "token_budget": budget,
            "policy": name,
            "rho": answer.certificate.rho,
            "verdict": answer.verdict,
            "by": _witness(answer),
            "drift_of_the_test": answer.stability.drift if answer.stability.interval else None,
            "growth_of_the_run": answer.run.growth_tokens_per_s
            / answer.certificate.load.offered_tokens_per_s,
        }
        for budget, answers in by_budget.items()
        for name, answer in answers.items()
    ]
    return pl.DataFrame(rows)


class _Case(Section):
    rate: Annotated[float, Field(gt=0)]
    arrivals: Literal["scaled", "poisson", "deterministic"] = "poisson"


class _Finite(Section):
    trace: str = "azure-llm-2023-code"
    policies: list[str]
    cases: list[_Case]
    requests: Annotated[Whole, Field(ge=1, le=1_000_000)] = 500
    seeds: Seeds


_COLUMNS = [
    "rate", "arrivals", "seed", "policy", "mean_requests_in_system", "mean_e2e_s", "last_leaves_s",
]  # fmt: skip


def right(setup: Setup) -> Reproduction:
    """Serve the same finite workload under each policy, and count the requests in the system."""
    settings = setup.settings(_Finite)
    refuse(
        BEST not in settings.policies
        or len(settings.policies) < 2
        or not (settings.cases and settings.seeds),
        f"fig-instable-right compares {BEST} with other policies, in at least one case with "
        f"one seed; its settings are policies {settings.policies}, {len(settings.cases)} cases "
        f"and seeds {settings.seeds}: add what is missing",
    )
    workload, origin, scenario = setup.traced(settings.trace)
    servers = {name: _under(setup, scenario.server, name) for name in settings.policies}
    claims, rows = [], []
    charts: dict[str, Any] = {}
    for index, case in enumerate(settings.cases):
        means: dict[str, list[float]] = {name: [] for name in servers}
        for seed in setup.each(settings.seeds, index, len(settings.cases)):
            drawn = workload.with_rate(case.rate, case.arrivals).with_seed(seed)
            runs = served_to_the_last(drawn, settings.requests, servers)
            horizon = max(run.seconds for run in runs.values())
            for name, run in runs.items():
                mean = run.e2e.total * run.tick_s / horizon  # over the same time for all policies
                means[name].append(mean)
                e2e = run.e2e.mean * run.tick_s
                rows.append((case.rate, case.arrivals, seed, name, mean, e2e, run.seconds))
            if seed == settings.seeds[0]:
                charts |= _waiting(case, runs)
        claims.append(_least(case, means))
    return setup.answer(
        claims, pl.DataFrame(rows, _COLUMNS, orient="row"), charts,
        "Runs of the first seed. Marks show which lines lie on each other. When each policy has "
        "served the last "
        "request, of which the paper says nothing, is in the table (last leaves s).",
        assumed=(
            origin,
            "The paper says `a finite, fixed workload with the same arrival rate`, which is that "
            f"of the figure's left half, {RATE:g} requests/s, without the number of requests: "
            f"{settings.requests:,} requests are assumed. It claims nothing at other rates; they "
            "check whether its order holds there too",
            f"The paper gives no token budget: {scenario.server.token_budget:,} is assumed, as on "
            "the left",
            "A mean is over the time until every policy has served the last request, and over "
            f"{len(settings.seeds)} seeds. Verdict `same`: no policy has a lower mean than {BEST}",
        ),
    )  # fmt: skip


def _least(case: _Case, by_policy: Mapping[str, list[float]]) -> Claim:
    """Compare which policy has the fewest requests on average over the seeds, and say in how many
    of them.
    """
    means = {name: sum(values) / len(values) for name, values in by_policy.items()}
    best = min(means, key=lambda name: means[name])
    first = means[BEST] <= means[best]
    shown = ", ".join(
        f"{name} {means[name]:,.1f}" for name in sorted(means, key=lambda name: means[name])
    )
    count = len(by_policy[BEST])
    won = sum(
        mean == min(of_seed)
        for mean, *of_seed in zip(by_policy[BEST], *by_policy.values(), strict=True)
    )
    reasons = [f"{BEST} has the fewest in {won} of {count} seeds"] if won < count else []
    if not first:
        reasons.append(
            f"on average {best} has {means[BEST] - means[best]:,.3g} fewer: the order hinges on "
            "this case"
        )
    published = f"{BEST} the fewest"
    if case.rate != RATE:
        published += f" at {RATE:g} requests/s, checked at {case.rate:g}"
    what = f"mean requests in the system, {case.rate:g} requests/s, {case.arrivals}"
    return Claim(what, published, shown, first, "; ".join(reasons))


def _waiting(case: _Case, runs: Mapping[str, Run]) -> dict[str, Any]:
    """Draw the requests in the system over time, by what it shows in words."""
    pattern = (
        "the trace's own arrivals"
        if case.arrivals == "scaled"
        else f"{case.arrivals.capitalize()} arrivals"
    )
    title = f"{case.rate:g} requests/s, {pattern}"
    text = f"Requests in the system over time at {title}, a line per policy."
    chart = lines_over_time(
        runs, "requests", measure="Requests in the system", title=title, legend="Policy"
    )
    return {text: on_grid(chart)}
