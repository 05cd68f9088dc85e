"""What is known of a network: the sections of its page."""

import math

from penstock.checking.answer import Answer
from penstock.checking.batch_means import Statistics
from penstock.checking.figures_network import flood_figure, graph_figure, queue_figure
from penstock.checking.outages import outages_section
from penstock.checking.pools import PoolAnswer
from penstock.checking.stages import StageAnswer
from penstock.checking.view_parts import (
    NO_LATENCY,
    batch_times,
    hypotheses_section,
    margin_fact,
    run_in_words,
    with_interval,
)
from penstock.show.answers import table
from penstock.show.page import Fact, Figure, Section, Table
from penstock.system.network import Network
from penstock.theory.certificate import Certificate
from penstock.words import counted, digits, near_one, seconds

_POOLS = (
    "Load: tokens that arrive, over the most that batches filled up to the token budget process. "
    "Margin: what is left "
    "up to the load that no policy carries within all limits of a batch, so the two need not add "
    "up to 1. A batch: tokens in it, on average."
)
_MEASURED = " Load and margin count what is left of prompts by what was found in this run."
_LIMITS = (
    "What arrives over what a limit lets any policy carry: above 1 the backlog grows for ever. "
    "Below 1 a limit may still "
    "bind: see the verdict, and the hypotheses below"
)
_STATISTICS = ("mean", "p50", "p90", "p99")
_LATENCY = {"ttft_s": "TTFT", "e2e_s": "E2E", "join_wait_s": "Wait at the join"}


def sections_of_network(answer: Answer) -> list[Section]:
    """Return what is known of a network behind the verdicts."""
    certificate = answer.certificate
    return [
        Section("Load", facts=_load_facts(answer), why=True),
        *batch_times(answer),
        Section("Pools", tables=[_pools_table(answer), *_limits_tables(answer)], why=True),
        Section(
            "The network",
            figures=lambda: [graph_figure(answer.network, certificate, answer.loads)],
        ),
        *hypotheses_section(certificate),
        Section(
            "Workflows and stages", ["In the long run, tokens a visit."], tables=[_asked(answer)]
        ),
        Section("Simulated", [run_in_words(answer.run)], notes=answer.warnings),
        _latency_section(answer),
        *outages_section(answer.outages),
        Section("Floods and queues", figures=lambda: _floods_and_queues(answer)),
    ]


def network_heading(network: Network) -> str:
    """Say how many pools and replicas there are, and what visits them."""
    replicas = int(network.replicas.sum())
    pools = counted(len(network.pools), "pool")
    if replicas > len(network.pools):
        pools += f" of {replicas:,} replicas in all"
    workflows = [
        f"{workflow.name}: {workflow.rate:,.4g} jobs/s, {counted(len(workflow.stages), 'stage')}"
        for workflow in network.workflows
    ]
    return "; ".join([pools, *workflows])


def _load_facts(answer: Answer) -> list[Fact]:
    """Return bottleneck, margin, cycles, virtual station and joins."""
    certificate, tightest = answer.certificate, answer.bottleneck
    limiting = tightest if tightest.found_share is None else certificate.bottleneck
    held = f", held by the {' and '.join(limiting.binding)}" if limiting.binding else ""
    limit = (
        f"no policy is stable above {certificate.max_load:,.4g} times this load, at pool "
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
        "between them "
        f"multiplies a backlog by {grows} at this load"
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


def _limits_tables(answer: Answer) -> list[Table]:
    """Lay out what is asked of each limit, where a pool has one besides its token budget."""
    if all(len(pool.limits) < 2 for pool in answer.pools):
        return []
    limits = [(pool.name, limit) for pool in answer.pools for limit in pool.limits]
    sampled = any(limit.standard_error > 0 for _, limit in limits)
    rows = []
    for name, limit in limits:
        error = f"{limit.standard_error:.1g}" if limit.standard_error else "-"
        rows.append((name, limit.name, near_one(limit.load), error, limit.why))
    caption = _LIMITS + (". Error: standard error of a load that is sampled" if sampled else "")
    columns = ("Pool", "Limit", "Load", "Error", "From")
    title = "Load by limit"
    table = Table(columns, rows, f"{caption}.", title=title, spare=("From", "Error"), detail=True)
    return [table if sampled else table.without("Error")]


def _asked(answer: Answer) -> Table:
    """Lay out what each workflow and stage asks for."""
    rows: list[tuple[str, ...]] = []
    strong = []
    for workflow in answer.workflows:
        strong.append(len(rows))
        rows.append((workflow.name, "", f"{workflow.jobs_per_s:,.4g}", "", ""))
        rows += [
            (
                f"  {_short(stage.name)}",
                stage.pool,
                f"{stage.visits_per_s:,.4g}",
                f"{stage.prefill_tokens:,.0f}",
                f"{stage.decode_tokens:,.0f}",
            )
            for stage in _of(answer, workflow.name)
        ]
    return Table(("", "Pool", "Visits/s", "Prefill tokens", "Decode tokens"), rows, strong=strong)


def _latency_section(answer: Answer) -> Section:
    """Lay out E2E of workflows and stages with intervals, TTFT, and waits at joins."""
    steady = answer.latency
    if steady is None:
        return NO_LATENCY
    joins = any("join_wait_s" in (stage.latency or {}) for stage in answer.stages)
    columns = ("", "E2E", "from", "to", "p99", "TTFT", "TTFT p99", "Join wait")
    rows: list[tuple[str, ...]] = []
    strong = []
    for workflow in answer.workflows:
        assert workflow.e2e is not None
        strong.append(len(rows))
        rows.append((workflow.name, *_interval(workflow.e2e), "", "", ""))
        rows += [_latency_of(stage) for stage in _of(answer, workflow.name)]
    caption = "Stages: from arrival at a replica to the last token (E2E) and the first (TTFT)"
    if joins:
        caption += "; join wait: what a branch that is done waits for the others"
    if steady.too_short or any("-" in row[2:4] for row in rows):
        caption += "; -: the run is too short to tell"
    table = Table(columns, rows, f"{caption}.", strong=strong)
    if not joins:
        table = table.without("Join wait")
    return Section(
        "Latency in the steady state",
        [f"In seconds: means, with the {steady.confidence:.0%} interval of E2E."],
        tables=[table, *_by_priority(answer), *_intervals(answer)],
    )


def _by_priority(answer: Answer) -> list[Table]:
    """Lay out the latency of each priority, where requests have several."""
    if not answer.priorities:
        return []
    rows: list[tuple[str, ...]] = []
    strong = []
    for of in answer.priorities:
        if of.stage is None:
            strong.append(len(rows))
        name = of.workflow if of.stage is None else f"  {_short(of.stage)}"
        e2e = of.latency.get("e2e_s")
        whole = _interval(e2e) if e2e else ("-", "-", "-", "-")
        first = _mean_and_p99(of.latency.get("ttft_s"))
        rows.append((name, f"{of.priority:,}", *whole, *first))
    caption = (
        "The smaller priority is served first. Jobs by the priority of their first request, stages "
        "by that of the request there."
    )
    columns = ("", "Priority", "E2E", "from", "to", "p99", "TTFT", "TTFT p99")
    return [Table(columns, rows, caption, title="By priority", strong=strong)]


def _latency_of(stage: StageAnswer) -> tuple[str, ...]:
    assert stage.latency is not None
    wait, _ = _mean_and_p99(stage.latency.get("join_wait_s"))
    first = _mean_and_p99(stage.latency["ttft_s"])
    return (f"  {_short(stage.name)}", *_interval(stage.latency["e2e_s"]), *first, wait)


def _mean_and_p99(of: Statistics | None) -> tuple[str, str]:
    return (seconds(of["mean"].value), seconds(of["p99"].value)) if of else ("", "")


def _intervals(answer: Answer) -> list[Table]:
    """Lay out all statistics with their intervals, which a terminal has no room for."""
    jobs = [
        (
            workflow.name,
            f"{workflow.jobs:,}",
            *_cells(workflow.e2e),
            seconds(workflow.earliest_s),
        )
        for workflow in answer.workflows
        if workflow.e2e
    ]
    stages = [
        (stage.name, _LATENCY[metric], *_cells(of))
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


def _cells(of: Statistics) -> list[str]:
    return [with_interval(of[name]) for name in _STATISTICS]


def _interval(of: Statistics) -> tuple[str, str, str, str]:
    mean, p99 = _mean_and_p99(of)
    return mean, seconds(of["mean"].low), seconds(of["mean"].high), p99


def _of(answer: Answer, workflow: str) -> list[StageAnswer]:
    """Return the stages of a workflow."""
    index = [one.name for one in answer.workflows].index(workflow)
    first, last = answer.network.first_stage[index : index + 2].tolist()
    return list(answer.stages[first:last])


def _short(stage: str) -> str:
    """Return a stage's own name."""
    return stage.partition(".")[2]


def _floods_and_queues(answer: Answer) -> list[Figure]:
    floods = [flood_figure(answer.stability)] if answer.stability else []
    return [*floods, queue_figure(answer.run)]
