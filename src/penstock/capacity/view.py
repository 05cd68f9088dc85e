"""Regions, highest rates and recommendations as pages."""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence

import polars as pl

from penstock.capacity.heads import head_of_rates, head_of_recommendation, head_of_region
from penstock.capacity.max_rate import MaxRate
from penstock.capacity.queue_limit import LOADS, LimitAt, RecommendedLimit
from penstock.capacity.recommendation import Candidate, Recommendation
from penstock.capacity.region import LoadInRegion
from penstock.capacity.side_by_side import MaxRates
from penstock.checking.figures import region_figure
from penstock.checking.head import asked_of
from penstock.checking.view_parts import (
    contradictions,
    heading_of,
    target_verdicts,
    with_interval,
)
from penstock.scenario.scenario import Scenario
from penstock.show.answers import cell, page_of, table
from penstock.show.page import MOST_LINES, Fact, Figure, Line, Page, Section, Table
from penstock.show.plot import COLOURS, Axis, By, mark, plot
from penstock.system.prefix_cache import front_notes
from penstock.theory.exact_region import ExactRegion
from penstock.theory.operating_point import OperatingPoint
from penstock.words import METRICS, seconds, sentence


@page_of.register
def region_page(answer: LoadInRegion, scenario: Scenario) -> Page:
    """Show the region's corners, where the load lies, and what holds it back."""
    point = answer.point
    policy = scenario.server.policy.name
    corners = [(f"{x:,.1f}", f"{y:,.1f}") for x, y in point.region.vertices[1:]]
    mix = Table.of(
        {
            "Prefill tokens": lambda use: f"{use.prefill_tokens:,}",
            "Decode tokens": lambda use: f"{use.decode_tokens:,}",
            "Most prompts": lambda use: f"{use.prefill_requests:,}",
            "Share of time": lambda use: f"{use.share:.1%}",
        },
        point.optimum.mix,
        caption="Most prompts: requests in prefill that a batch needs room for. Other batches may "
        "do as well.",
    )
    own = {} if point.own is None else {policy: point.own}
    return Page(
        title=scenario.name,
        heading=heading_of(scenario.system),
        notes=answer.warnings,
        head=head_of_region(answer, scenario),
        why="limits and assumptions",
        rest="corners and best batches",
        sections=[
            Section("Load", facts=_load_facts(point), notes=point.notes, why=True),
            Section(
                "Corners of the region",
                tables=[Table(("Prefill tokens/s", "Decode tokens/s"), corners)],
            ),
            Section("Batches that carry the most along the load's ray", tables=[mix]),
            *_prices_of_pieces(answer.exact),
            Section(
                "Stability region",
                figures=lambda: [
                    region_figure(
                        point.region,
                        point=point.point,
                        own=own,
                        exact=answer.exact_outline,
                        most=point.most,
                        not_drawn=point.not_drawn,
                    )
                ],
            ),
        ],
    )


def _prices_of_pieces(exact: ExactRegion | None) -> list[Section]:
    """Lay out what pieces of prompts cost, each twice as large as the one before."""
    if exact is None:
        return []
    sizes = [2**power for power in range((exact.piece_prices.size - 1).bit_length())]
    rows = [(f"{size:,}", f"{exact.piece_prices[size] * 1e3:,.4g}") for size in sizes]
    caption = "Of server time; no batch earns more at these prices than it takes."
    return [Section("Pieces of prompts", tables=[Table(("Tokens", "ms"), rows, caption)])]


def _load_facts(point: OperatingPoint) -> list[Fact]:
    prefill, decode = point.point
    arrive = f"tokens/s: {prefill:,.0f} of prefill, {decode:,.0f} of decode"
    prices = {
        "Prefill token": point.prices.seconds_per_prefill_token,
        "Decode token": point.prices.seconds_per_decode_token,
    }
    return [
        Fact("Offered", f"{prefill + decode:,.0f}", arrive),
        *(Fact(name, f"{s * 1e3:.4g} ms", "of server time") for name, s in prices.items()),
    ]


@page_of.register
def max_rates_page(answer: MaxRates, scenario: Scenario, what: str = "Policy") -> Page:
    """Show the highest stable rates or loads, by what varies, each beside its bound."""
    rates = answer.rates
    names = f"{len(rates)} policies" if len(rates) > 1 else next(iter(rates))
    if scenario.is_network:
        unit = "Times"
        caption = (
            "In times this load, that is all arrival rates as the scenario has them. Above 'any "
            "policy' none is stable; up to 'certified to' a theorem says stable; between them "
            "floods were simulated, of the same jobs at each load."
        )
    else:
        what, unit = "Policy", "Requests/s"
        caption = (
            "Requests/s. Up to 'certified to' a theorem says stable; above 'any policy' none is "
            "stable; between them the same requests were simulated at each rate. 'Share' is "
            "'stable up to' over 'any policy'."
        )
    columns = "rate above bound share certified known"
    highest = table(list(rates.values()), caption, order=columns).named(what, rates)
    tried = _tried(rates, unit)
    return Page(
        title=scenario.name,
        heading=heading_of(scenario.system, names),
        head=head_of_rates(answer, scenario),
        why="limits and assumptions",
        rest="every rate that was tried" if tried else "",
        notes=answer.notes,
        verdicts=contradictions(rates),
        sections=[Section("", tables=[highest], notes=answer.notices, why=True), *tried],
    )


def _tried(rates: Mapping[str, MaxRate], unit: str) -> list[Section]:
    """Lay out what was simulated, in order."""
    rows = [
        (name, f"{trial.rate:,.5g}", trial.verdict, f"{trial.drift:+.3f}")
        for name, search in rates.items()
        for trial in search.trials
    ]
    rows += [
        (name, f"{one.rate:,.5g}", one.judgement, f"{one.worst}: {one.answers[one.worst].value}")
        for name, search in rates.items()
        for one in (search.targets.trials if search.targets else ())
    ]
    if not rows:
        return []
    caption = (
        "Drift: share of the arriving work by which a large backlog grows; below 0 it shrinks."
    )
    drift = "Drift, or what decides" if any(one.targets for one in rates.values()) else "Drift"
    tried = Table(("", unit, "Test", drift), rows, caption)
    return [Section("What was simulated", tables=[tried])]


@page_of.register
def recommend_page(recommendation: Recommendation, scenario: Scenario) -> Page:
    """Show what to use, what that gains, and what else was looked at."""
    server = scenario.server
    said = head_of_recommendation(recommendation, scenario)
    sections = [Section(line.label, [line.text], why=True) for line in said[MOST_LINES:]]
    sections.append(Section("What it brings", tables=[_gains(recommendation)], why=True))
    sections.append(_candidates(recommendation))
    if recommendation.pruned:
        sections.append(Section("What was ruled out", tables=[_pruned(recommendation)]))
    return Page(
        title=scenario.name,
        heading=heading_of((scenario.workload, server)),
        head=said[:MOST_LINES],
        why="latencies with intervals",
        rest="all that was tried or ruled out",
        notes=[*recommendation.doubts, *front_notes(scenario.workload, server)],
        verdicts=target_verdicts(recommendation.recommended.targets),
        sections=[*sections, Section("", notes=recommendation.warnings)],
    )


def _gains(recommendation: Recommendation) -> Table:
    """Lay out what there is now beside what is recommended."""
    now, then = recommendation.current, recommendation.recommended
    candidates = (now, then) if recommendation.change else (now,)
    rows = [["Stable up to", *(f"{one.stable_rate:,.4g} requests/s" for one in candidates)]]
    gains = [recommendation.gains["stable_rate"]]
    for metric, statistic in itertools.product(METRICS, ("mean", "p99")):
        steady = [one.answer.latency for one in candidates]
        cells = [
            f"{with_interval(of.estimates[metric][statistic])} s" if of else "refused"
            for of in steady
        ]
        rows.append([f"{metric[:-2].upper()} {statistic}", *cells])
        gains.append(recommendation.gains[metric] if statistic == "mean" else None)
    if not recommendation.change:
        return Table(("", "Now"), rows)
    for row, gain in zip(rows, gains, strict=True):
        row.append("" if gain is None else _in_words(gain))
    caption = ""
    if now.answer.latency and then.answer.latency:
        caption = (
            "Compared are means: a p99 is known less well, see its interval (?: no upper end)."
        )
    return Table(("", "Now", "Recommended", "It is"), rows, caption)


def _in_words(gain: float) -> str:
    """Say whether a figure gets better or worse, and by which share."""
    if abs(gain) < 0.0005:
        return "the same"
    return f"{abs(gain):.1%} {'better' if gain > 0 else 'worse'}"


def _candidates(recommendation: Recommendation) -> Section:
    best = recommendation.recommended
    cells: dict[str, Callable[[Candidate], str]] = {
        "  Policy": lambda one: f"{'> ' if one is best else '  '}{one.server.policy.name}",
        "Budget": lambda one: f"{one.server.token_budget:,}",
        "Max batch": lambda one: cell(one.server.max_batch_size, "{:,}".format),
        "Stable": lambda one: f"{one.stable_rate:,.4g}",
    }
    for metric, of in itertools.product(METRICS, ("mean", "p99")):
        name = metric[:-2].upper() + (" p99" if of == "p99" else "")
        cells[name] = functools.partial(_latency, metric, of)
    candidates = recommendation.candidates
    caption = (
        "The same requests for all; the first is the current one, > is the recommended one. No "
        "policy exceeds "
        f"{recommendation.bound:,.4g} requests/s at any of these token budgets."
    )
    if any(one.answer.latency is None for one in candidates):
        caption += " Refused: not stable at this rate."
    if recommendation.only_with_plugin:
        names = ", ".join(recommendation.only_with_plugin)
        caption += f" Only with the plugin, penstock.vllm_plugin: {names}."
    spoken = f"Stable rate (requests/s), and latency (s) at {recommendation.rate:,.4g} requests/s."
    strong, spare = [candidates.index(best)], ("E2E p99", "TBT p99", "TTFT p99")
    rows = Table.of(cells, candidates, caption=caption, strong=strong, spare=spare)
    return Section("What was simulated", [spoken], tables=[rows])


def _latency(metric: str, of: str, candidate: Candidate) -> str:
    if candidate.answer.latency is None:
        return "refused" if (metric, of) == ("ttft_s", "mean") else ""
    return seconds(candidate.answer.latency.estimates[metric][of].value)


def _pruned(recommendation: Recommendation) -> Table:
    """Lay out what was ruled out, by its reason."""
    by_reason: dict[str, dict[str, list[int]]] = {}
    for policy, budget, reason in recommendation.pruned:
        by_reason.setdefault(reason, {}).setdefault(policy, []).append(budget)
    rows = []
    for reason, budgets in by_reason.items():
        alike: dict[str, list[str]] = {}
        for policy, at in budgets.items():
            alike.setdefault(", ".join(f"{budget:,}" for budget in sorted(at)), []).append(policy)
        rows += [(", ".join(names), at, reason) for at, names in alike.items()]
    return Table(("Policy", "Budget", "Why"), rows, prose=True)


@page_of.register
def queue_page(answer: RecommendedLimit, scenario: Scenario) -> Page:
    """Show the limit on the queue, what it does at each load, and what others do."""
    kept = "are kept" if len(answer.targets) > 1 else "is kept"
    loads = "up to" if all(row.met for row in answer.rows) else "at"
    refused = _by_load([f"{row.refused:.0%}" for row in answer.rows], " are refused")
    said = (
        f"{answer.flags}: {' and '.join(map(str, answer.targets))} {kept} for those who are served "
        f"{loads} twice this load; {refused}"
    )
    head = [*asked_of(scenario.name, scenario.system, scenario.hardware), Line("Limit", f"{said}.")]
    lines = {"Serves": _served(answer.rows)}
    lines["Without" if answer.server.queue_limit is None else "As it is"] = _served(answer.as_it_is)
    if answer.thumb:
        tokens = f"{answer.thumb[0].limit:,} prompt tokens"
        lines["Thumb"] = f"{_served(answer.thumb)}, with {tokens} by the rule of thumb"
    head += [Line(label, sentence(text)) for label, text in lines.items()]
    at_loads = [*answer.rows, *answer.thumb, *answer.as_it_is]
    return Page(
        title=scenario.name,
        heading=heading_of(scenario.system),
        head=head,
        why="each load",
        rest="all limits that were tried",
        sections=[
            Section("At each load", tables=[table(at_loads)], why=True),
            Section("Limits that were tried", figures=lambda: [_curve(answer)]),
            Section("All of them", tables=[table(answer.curve)]),
        ],
    )


def _served(rows: Sequence[LimitAt]) -> str:
    """Say how many are served within the targets."""
    return _by_load([f"{row.goodput_rate:,.4g}" for row in rows], " requests/s within the targets")


def _by_load(shown: Sequence[str], what: str) -> str:
    """Say what a limit does at half the load, at the load and at twice the load."""
    by_load = dict(zip(LOADS, shown, strict=True))
    return f"{by_load[0.5]}{what} at half of this load, {by_load[1]} at it, {by_load[2]} at twice"


def _curve(answer: RecommendedLimit) -> Figure:
    """Draw the goodput of limits, which of them keep the targets, and the one that is right."""
    tried, named = answer.curve, answer.best
    points = [
        {"limit": at.limit, "goodput": at.goodput_rate, "targets": "kept" if at.met else "missed"}
        for at in tried
    ]
    points.append(
        {"limit": named.limit, "goodput": named.goodput_rate, "targets": "kept: the right one"}
    )
    looks = {
        "kept": (COLOURS[0], "circle"),
        "missed": (COLOURS[1], "cross"),
        "kept: the right one": (COLOURS[2], "diamond"),
    }
    by = By("targets", looks, "Targets", look="color shape")
    marks = (
        mark("line", "limit", "goodput", color="#888"),
        mark("point", "limit", "goodput", by),
    )
    what = named.kind.replace("_", " ")
    x, y = Axis(f"Limit on {what}", log=True), Axis("Served within the targets (requests/s)")
    chart = plot(pl.DataFrame(points), *marks, x=x, y=y)
    targets = " and ".join(map(str, answer.targets))
    caption = f"At {LOADS[-1]:g} times the load, on the same requests; targets: {targets}."
    most = max(at.goodput_rate for at in tried)
    text = f"Goodput by the limit on {what}; the most is {most:,.4g}/s."
    return Figure("queue_limits", "Limits on the queue", {text: chart}, [table(tried)], caption)
