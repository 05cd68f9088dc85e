"""What is known of a network: the sections of its page."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from penstock.checking.answer import Answer
from penstock.checking.batch_means import Statistics
from penstock.checking.outages import outages_section
from penstock.checking.pools import PoolAnswer
from penstock.checking.stages import StageAnswer, WorkflowAnswer
from penstock.checking.view_parts import (
    ALL_CACHED,
    NO_LATENCY,
    Parts,
    limits_table,
    margin_fact,
    with_interval,
)
from penstock.show.answers import table
from penstock.show.page import Fact, Figure, Section, Table
from penstock.theory.certificate import Certificate
from penstock.words import digits, near_one, seconds

_POOLS = (
    "Load: tokens that arrive, over the most that batches filled up to the token budget process. "
    "Margin: what is left up to the load that no policy carries within all limits of a batch, so "
    "the two need not add up to 1. A batch: tokens in it, on average."
)
_MEASURED = " Load and margin count what is left of prompts by what was found in this run."
_STATISTICS = ("mean", "p50", "p90", "p99")
_COLUMNS = ("E2E", "from", "to", "p99", "TTFT", "TTFT p99")
_LATENCY = {"ttft_s": "TTFT", "e2e_s": "E2E", "join_wait_s": "Wait at the join"}


def parts_of_network(answer: Answer) -> Parts:
    """Return the load, what pools and stages are asked, and latency with outages and floods."""

    def graph() -> list[Figure]:
        from penstock.checking.figures_network import graph_figure

        return [graph_figure(answer.network, answer.certificate, answer.loads)]

    def floods_and_queues() -> list[Figure]:
        from penstock.checking.figures_network import flood_figure, queue_figure

        floods = [flood_figure(answer.stability)] if answer.stability else []
        return [*floods, queue_figure(answer.run)]

    load = Section("Load", facts=_load_facts(answer), why=True)
    tables = [_pools_table(answer), *limits_table(answer.certificate)]
    pools = [
        Section("Pools", tables=tables, why=True),
        Section("The network", figures=graph),
    ]
    asked = "In the long run, tokens a visit."
    stages = [Section("Workflows and stages", [asked], tables=[_asked(answer)])]
    latency = [
        _latency_section(answer),
        *outages_section(answer.outages),
        Section("Floods and queues", figures=floods_and_queues),
    ]
    return load, pools, stages, latency


def _load_facts(answer: Answer) -> list[Fact]:
    """Return bottleneck, margin, cycles, virtual station and joins."""
    certificate, tightest = answer.certificate, answer.bottleneck
    limiting = tightest if tightest.found_share is None else certificate.bottleneck
    held = f", held by the {' and '.join(limiting.binding)}" if limiting.binding else ""
    cached = "" if tightest.found_share is None else ALL_CACHED
    limit = (
        f"{cached}no policy is stable above {certificate.max_load:,.4g} times this load, at pool "
        f"{limiting.name}{held}"
    )
    load = f"load {near_one(tightest.rho)}, the least margin of all{_cached(tightest)}"
    facts = [
        Fact("Bottleneck", tightest.name, load),
        margin_fact(tightest.margin, limit, answer.verdict),
    ]
    if certificate.certified_load is not None:
        certified = f"{certificate.certified_load:,.4g} x"
        facts.append(Fact("Certified", certified, "up to so many times this load, by theorem"))
    facts += [
        Fact("Cycle", f"{factor:,.4g} x", meaning) for factor, meaning in answer.cycles_in_words()
    ]
    # where the order fails that counts, and not what is left to another one
    virtual = _virtual_station(certificate)
    facts = virtual + facts if answer.order_fails else facts + virtual
    facts += [
        Fact("Join", join.stage, f"{join.branches} branches; {join.bound}")
        for join in certificate.joins
    ]
    return facts


def _cached(pool: PoolAnswer) -> str:
    """Say which load is shown where it depends on the run, and which it could be."""
    if pool.found_share is None or pool.rho_at_least is None or pool.rho_without_cache is None:
        return ""
    return (
        f": with the {pool.found_share:.1%} of the prompt tokens that requests found in this run "
        f"(measured); {near_one(pool.rho_without_cache)} if they find nothing, "
        f"{near_one(pool.rho_at_least)} if all that they may"
    )


def _virtual_station(certificate: Certificate) -> list[Fact]:
    """Return up to which load a priority order is not known to fail."""
    virtual = certificate.virtual_station
    if not virtual:
        return []
    starving = zip(virtual.classes, virtual.loads, virtual.pools, strict=True)
    both = " and ".join(
        f"{', '.join(stages)} ({load:.3f} of {pool})" for stages, load, pool in starving
    )
    grows = digits(math.prod(virtual.amplification()))
    meaning = (
        f"fails above so many times this load: {both} are never served at once, and each round "
        f"between them multiplies a backlog by {grows} at this load"
    )
    return [Fact("This order", f"{virtual.max_load:,.4g} x", meaning)]


def _pools_table(answer: Answer) -> Table:
    # What is the same everywhere, or nowhere asked, goes before what tells pools apart.
    routed = any(pool.replicas > 1 for pool in answer.pools)
    ordered = any(pool.order != "fcfs" for pool in answer.pools)
    spare = ["Policy", "Tokens/s", *([] if ordered else ["Order"]), "A batch"]
    spare.insert(len(spare) if routed else 0, "Router")
    measured = any(pool.found_share is not None for pool in answer.pools)
    order = "name rho margin tokens_per_batch replicas tokens_per_s order sends_by policy binding"
    return table(answer.pools, _POOLS + _MEASURED * measured, order=order, spare=spare)


def _asked(answer: Answer) -> Table:
    """Lay out what each workflow and stage asks for."""
    columns = ("", "Pool", "Visits/s", "Prefill tokens", "Decode tokens")
    return _by_workflow(
        answer,
        columns,
        lambda workflow: ("", f"{workflow.jobs_per_s:,.4g}", "", ""),
        lambda stage: (
            stage.pool,
            f"{stage.visits_per_s:,.4g}",
            f"{stage.prefill_tokens:,.0f}",
            f"{stage.decode_tokens:,.0f}",
        ),
    )


def _by_workflow(
    answer: Answer,
    columns: Sequence[str],
    of_workflow: Callable[[WorkflowAnswer], Sequence[str]],
    of_stage: Callable[[StageAnswer], Sequence[str]],
) -> Table:
    """Lay out each workflow over its stages."""
    rows: list[tuple[str, ...]] = []
    strong = []
    for workflow in answer.workflows:
        strong.append(len(rows))
        rows.append((workflow.name, *of_workflow(workflow)))
        for stage in answer.stages:
            whose, _, name = stage.name.partition(".")
            if whose == workflow.name:
                rows.append((f"  {name}", *of_stage(stage)))
    return Table(columns, rows, strong=strong)


def _latency_section(answer: Answer) -> Section:
    """Lay out E2E of workflows and stages with intervals, TTFT, and waits at joins."""
    steady = answer.latency
    if steady is None:
        return NO_LATENCY
    caption = "Stages: from arrival at a replica to the last token (E2E) and the first (TTFT)"
    joins = any("join_wait_s" in (stage.latency or {}) for stage in answer.stages)
    if joins:
        caption += "; join wait: what a branch that is done waits for the others"
    table = _by_workflow(
        answer,
        ("", *_COLUMNS, "Join wait"),
        lambda workflow: _cells({"e2e_s": workflow.e2e} if workflow.e2e else {}),
        lambda stage: _cells(stage.latency or {}),
    )
    if steady.too_short or any("-" in row[2:4] for row in table.rows):
        caption += "; -: the run is too short to tell"
    table = dataclasses.replace(table, caption=f"{caption}.")
    return Section(
        "Latency in the steady state",
        [f"In seconds: means, with the {steady.confidence:.0%} interval of E2E."],
        tables=[
            table if joins else table.without("Join wait"),
            *_by_priority(answer),
            *_intervals(answer),
        ],
    )


def _by_priority(answer: Answer) -> list[Table]:
    """Lay out the latency of each priority, where requests have several."""
    if not answer.priorities:
        return []
    rows: list[tuple[str, ...]] = []
    strong = [at for at, of in enumerate(answer.priorities) if of.stage is None]
    for of in answer.priorities:
        name = of.workflow if of.stage is None else f"  {of.stage.partition('.')[2]}"
        rows.append((name, f"{of.priority:,}", *_cells(of.latency)[:-1]))
    caption = (
        "The smaller priority is served first. Jobs by the priority of their first request, stages "
        "by that of the request there."
    )
    return [Table(("", "Priority", *_COLUMNS), rows, caption, title="By priority", strong=strong)]


def _cells(latency: Mapping[str, Statistics]) -> list[str]:
    """Return mean, interval and p99 of E2E, mean and p99 of TTFT, and the mean wait at a join."""
    known: dict[str, tuple[str, ...]] = {"ttft_s": ("", ""), "join_wait_s": ("", "")}
    known |= {m: (seconds(of["mean"].value), seconds(of["p99"].value)) for m, of in latency.items()}
    e2e = ["-"] * 4
    if "e2e_s" in latency:
        mean, p99 = known["e2e_s"]
        whole = latency["e2e_s"]["mean"]
        e2e = [mean, seconds(whole.low), seconds(whole.high), p99]
    return [*e2e, *known["ttft_s"], known["join_wait_s"][0]]


def _intervals(answer: Answer) -> list[Table]:
    """Lay out all statistics with their intervals, which a terminal has no room for."""
    jobs = [
        (of.name, f"{of.jobs:,}", *_with_intervals(of.e2e), seconds(of.earliest_s))
        for of in answer.workflows
        if of.e2e
    ]
    stages = [
        (stage.name, _LATENCY[metric], *_with_intervals(of))
        for stage in answer.stages
        for metric, of in (stage.latency or {}).items()
        if metric in _LATENCY and of["mean"].value is not None
    ]
    return [
        Table(
            ("Workflow", "Jobs", *_STATISTICS, "At least"),
            jobs,
            "At least: the mean that no scheduler and no more replicas can bring these jobs below.",
            title="From the arrival of a job to its end",
            detail=True,
        ),
        Table(
            ("Stage", "Latency", *_STATISTICS),
            stages,
            title="At a stage, from arrival at a replica",
            detail=True,
        ),
    ]


def _with_intervals(of: Statistics) -> list[str]:
    return [with_interval(of[name]) for name in _STATISTICS]
