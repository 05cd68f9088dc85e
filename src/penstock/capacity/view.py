"""Regions, highest rates and recommendations as pages."""

import itertools
from collections.abc import Mapping, Sequence

from penstock.capacity.heads import (
    head_of_loads,
    head_of_rates,
    head_of_recommendation,
    head_of_region,
)
from penstock.capacity.max_rate import MaxLoad, MaxRate
from penstock.capacity.recommendation import Candidate, Recommendation
from penstock.checking.doubt import known_within
from penstock.checking.figures import region_figure
from penstock.checking.view_network import network_heading
from penstock.checking.view_parts import (
    contradictions,
    heading_of_server,
    target_verdicts,
    with_interval,
)
from penstock.scenario.scenario import Scenario
from penstock.show.page import MOST_LINES, Fact, Page, Section, Table
from penstock.system.prefix_cache import front_notes
from penstock.system.server import Server
from penstock.theory.ends import Ends
from penstock.theory.operating_point import OperatingPoint
from penstock.words import METRICS, seconds


def region_page(point: OperatingPoint, scenario: Scenario) -> Page:
    """Show the region's corners, where the load lies, and what holds it back."""
    policy = scenario.server.policy.name
    corners = [(f"{x:,.1f}", f"{y:,.1f}") for x, y in point.region.vertices[1:]]
    mix = [
        (
            f"{use.prefill_tokens:,}",
            f"{use.decode_tokens:,}",
            f"{use.prefill_requests:,}",
            f"{use.share:.1%}",
        )
        for use in point.optimum.mix
    ]
    mixed = (
        "Most prompts: requests in prefill that a batch needs room for. Other batches may do as "
        "well."
    )

    own = {} if point.own is None else {policy: point.own}
    return Page(
        title=scenario.name,
        heading=heading_of_server(scenario.workload, scenario.server, policy),
        notes=[
            *known_within((scenario.workload, scenario.server)),
            *front_notes(scenario.workload, scenario.server),
        ],
        head=head_of_region(point, scenario),
        why="limits and assumptions",
        rest="corners and best batches",
        sections=[
            Section("Load", facts=_load_facts(point), notes=point.notes, why=True),
            Section(
                "Corners of the region",
                tables=[Table(("Prefill tokens/s", "Decode tokens/s"), corners)],
            ),
            Section(
                "Batches that carry the most along the load's ray",
                tables=[
                    Table(
                        ("Prefill tokens", "Decode tokens", "Most prompts", "Share of time"),
                        mix,
                        mixed,
                    )
                ],
            ),
            Section(
                "Stability region",
                figures=lambda: [region_figure(point.region, point=point.point, own=own)],
            ),
        ],
    )


def _load_facts(point: OperatingPoint) -> list[Fact]:
    prefill, decode = point.point
    best = point.optimum
    arrive = f"tokens/s: {prefill:,.0f} of prefill, {decode:,.0f} of decode"
    prices = {
        "Prefill token": best.seconds_per_prefill_token,
        "Decode token": best.seconds_per_decode_token,
    }
    return [
        Fact("Offered", f"{prefill + decode:,.0f}", arrive),
        *(Fact(name, f"{s * 1e3:.4g} ms", "of server time") for name, s in prices.items()),
    ]


def max_rate_page(
    rates: Mapping[str, MaxRate],
    scenario: Scenario,
    servers: Mapping[str, Server],
    notes: Sequence[str],
    notices: Sequence[str],
) -> Page:
    """Show each policy's highest stable rate beside its bound, after notes on KV memory."""
    rows = [
        (*_highest(name, rate.rate, rate, rate.certificate.certified_rate), rate.known)
        for name, rate in rates.items()
    ]
    caption = (
        "Requests/s. Up to 'certified to' a theorem says stable; above 'any policy' none is "
        "stable; between them the same requests were simulated at each rate. 'Share' is 'stable "
        "up to' over 'any policy'."
    )
    policies = f"{len(rates)} policies" if len(rates) > 1 else next(iter(rates))
    table = Table(("Policy", *_HIGHEST, "Known by"), rows, caption, spare=("Share", "Known by"))
    return Page(
        title=scenario.name,
        heading=heading_of_server(scenario.workload, scenario.server, policies),
        head=head_of_rates(rates, scenario, servers),
        why=_BEHIND,
        rest=_TRIED if any(one.trials or one.targets for one in rates.values()) else "",
        notes=notes,
        verdicts=contradictions(rates),
        sections=[
            Section("", tables=[table], notes=notices, why=True),
            *_tried(rates, "Requests/s"),
        ],
    )


def within_ends(found: MaxRate | MaxLoad) -> list[str]:
    """Say between what the highest rate or load lies, where batch times are not exact."""
    ends: Ends[MaxRate] | Ends[MaxLoad] | None = found.ends
    if ends is None:
        return []
    low, high = (
        end.rate if isinstance(end, MaxRate) else end.load for end in (ends.slow, ends.fast)
    )
    unit = "requests/s" if isinstance(found, MaxRate) else "times this load"
    return [
        f"As far as batch times are known, it is stable up to {low:,.4g} to {high:,.4g} {unit}, "
        f"and no policy carries more than {ends.slow.bound:,.4g} to {ends.fast.bound:,.4g} "
        f"({ends.origin}). Below are the middle batch times."
    ]


def _tried(found: Mapping[str, MaxRate] | Mapping[str, MaxLoad], unit: str) -> list[Section]:
    """Lay out what was simulated, in order."""
    rows: list[tuple[str, ...]] = [
        (name, f"{trial.rate:,.5g}", trial.stability.verdict, f"{trial.stability.drift:+.3f}")
        for name, search in found.items()
        for trial in search.trials
    ]
    rows += [
        (name, f"{one.rate:,.5g}", one.judgement, f"{one.worst}: {one.answers[one.worst].value}")
        for name, search in found.items()
        for one in (search.targets.trials if search.targets else ())
    ]
    if not rows:
        return []
    caption = (
        "Drift: share of the arriving work by which a large backlog grows; below 0 it shrinks."
    )
    drift = "Drift" if not any(one.targets for one in found.values()) else "Drift, or what decides"
    table = Table(("", unit, "Test", drift), rows, caption)
    return [Section("What was simulated", tables=[table])]


_BEHIND = "limits and assumptions"
_TRIED = "every rate that was tried"
_HIGHEST = ("Stable up to", "Not at", "Any policy", "Share", "Certified to")


def _highest(
    name: str, value: float, search: MaxRate | MaxLoad, certified: float | None
) -> tuple[str, ...]:
    """Return the row of the highest stable rate or load, beside its bound."""
    return (
        name,
        f"{value:,.4g}",
        f"{search.above:,.4g}",
        f"{search.bound:,.4g}",
        f"{search.share:.1%}",
        "-" if certified is None else f"{certified:,.4g}",
    )


def max_load_page(
    loads: Mapping[str, MaxLoad],
    scenario: Scenario,
    what: str,
    notes: Sequence[str],
) -> Page:
    """Show a network's highest stable load, as it is or by what varies, beside its bound."""
    rows = [
        (*_highest(name, load.load, load, load.certified_load), load.known)
        for name, load in loads.items()
    ]
    caption = (
        "In times this load, that is all arrival rates as the scenario has them. Above 'any "
        "policy' none is stable; up to 'certified to' a theorem says stable; between them floods "
        "were simulated, of the same jobs at each load."
    )
    table = Table((what, *_HIGHEST, "Known by"), rows, caption, spare=("Known by", "Share"))
    return Page(
        title=scenario.name,
        heading=network_heading(scenario.network),
        head=head_of_loads(loads, scenario),
        why=_BEHIND,
        rest=_TRIED if any(one.trials or one.targets for one in loads.values()) else "",
        verdicts=contradictions(loads),
        sections=[Section("", tables=[table], notes=notes, why=True), *_tried(loads, "Times")],
    )


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
        heading=heading_of_server(scenario.workload, server, server.policy.name),
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
    columns = (
        "  Policy", "Budget", "Max batch", "Stable", "TTFT", "TTFT p99", "TBT", "TBT p99", "E2E",
        "E2E p99",
    )  # fmt: skip
    candidates = recommendation.candidates
    best = candidates.index(recommendation.recommended)
    rows = [
        _candidate(one, "> " if index == best else "  ") for index, one in enumerate(candidates)
    ]
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
    table = Table(columns, rows, caption, strong=[best], spare=("E2E p99", "TBT p99", "TTFT p99"))
    return Section("What was simulated", [spoken], tables=[table])


def _candidate(candidate: Candidate, mark: str) -> tuple[str, ...]:
    server, latency = candidate.server, candidate.answer.latency
    values = ["refused", *[""] * (2 * len(METRICS) - 1)]
    if latency:
        values = [
            seconds(latency.estimates[metric][of].value)
            for metric in METRICS
            for of in ("mean", "p99")
        ]
    return (
        f"{mark}{server.policy.name}",
        f"{server.token_budget:,}",
        "-" if server.max_batch_size is None else f"{server.max_batch_size:,}",
        f"{candidate.stable_rate:,.4g}",
        *values,
    )


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
