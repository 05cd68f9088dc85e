"""The report on a network, as a page with figures: verdict first."""

from pathlib import Path

import numpy as np

from penstock.checking import figures_network as plotting_network
from penstock.checking import graph as plotting_graph
from penstock.checking.batches import Statistics
from penstock.checking.flood_test import NetworkStability
from penstock.checking.graph_layout import network_ways, pool_cycles
from penstock.checking.network_answer import ANOTHER_ORDER, POOLS_IN_WORDS, NetworkAnswer
from penstock.checking.report import with_interval
from penstock.scenario.network import NetworkScenario
from penstock.show import page
from penstock.show.page import Fact, Figure, Section, Table, Verdict
from penstock.simulation.network_run import NetworkRun
from penstock.system.network import Network
from penstock.theory.network.certificate import NetworkCertificate
from penstock.words import amount

_ROWS = 20
"""Of a table of values over time."""
_PHONE = 480
"""Px; a wider drawing scrolls on a phone."""
_LATENCY = {"ttft_s": "TTFT", "e2e_s": "E2E", "join_wait_s": "Wait at the join"}


def report_network(path: Path, scenario: NetworkScenario, answer: NetworkAnswer) -> None:
    """Write the answer of ``network``.

    Parameters
    ----------
    path
        File to write; its folder is made where it is missing.
    scenario
        What was asked about.
    answer
        What was found.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    floods = [Section("Floods", [_FLOODS], figures=[flood_figure(answer.stability)])] if answer.stability else []
    page.write(
        path,
        title=scenario.name,
        heading=_heading(answer),
        verdicts=_verdicts(answer),
        sections=[
            Section("The network", figures=[graph_figure(answer.network, answer.certificate)]),
            Section("Pools", facts=_load_facts(answer), tables=[_pools_table(answer)]),
            _hypotheses(answer.certificate),
            _latency_section(answer),
            *floods,
            Section(
                "Queues from empty",
                [_run_in_words(answer.run)],
                figures=[queue_figure(answer.run)],
                notes=answer.warnings,
            ),
        ],
    )


_FLOODS = (
    "Each stage in turn is flooded with jobs that begin there, beside those that arrive; the network is stable if its "
    "work falls from every flood, and unstable if it rises from any."
)


def _heading(answer: NetworkAnswer) -> str:
    pools = [f"{name}: {pool.describe()}" for name, pool in answer.network.pools.items()]
    workflows = [f"{workflow.name}: {workflow.jobs_per_s:,.4g} jobs/s" for workflow in answer.workflows]
    return "; ".join([*pools, *workflows])


def _verdicts(answer: NetworkAnswer) -> list[Verdict]:
    certificate, test = answer.certificate, answer.stability
    said = [Verdict(certificate.verdict, f"{certificate.reason}.", certificate.theorem or "no theorem")]
    if test:
        said.append(Verdict(test.verdict, f"{test.reason}.", "simulation"))
    elif answer.stability_skipped:
        said.append(Verdict("not tested", f"{answer.stability_skipped}.", "simulation"))
    if certificate.verdict == "unknown":
        said.reverse()
    if answer.disagreement:
        said.insert(0, Verdict("contradiction", f"{answer.disagreement}.", "theorem and simulation"))
    return said


def _load_facts(answer: NetworkAnswer) -> list[Fact]:
    certificate, tightest = answer.certificate, answer.bottleneck
    held = f"; it is held by the {' and '.join(tightest.binding)}" if tightest.binding else ""
    load = f"{tightest.rho:.{3 if abs(1 - tightest.rho) > 0.01 else 5}f}"
    facts = [
        Fact("Bottleneck", tightest.name, f"load {load}, the least margin of all"),
        Fact(
            "Margin",
            f"{tightest.margin:.3f}",
            f"no policy is stable above {answer.max_load:,.4g} times this load, at pool {tightest.name}{held}",
        ),
    ]
    if certificate.certified_load is not None:
        facts.append(Fact("Certified", f"{certificate.certified_load:,.4g} x", "up to so many times this load"))
    facts += [Fact("Cycle", f"{factor:,.4g} x", said) for factor, said in answer.cycles_in_words()]
    if virtual := certificate.virtual_station:
        classes = " and ".join(", ".join(of) for of in virtual.classes)
        why = f"above so many times this load this order fails, since {classes} are never served at once"
        facts.append(Fact("This order", f"{virtual.max_load:,.4g} x", why))
    if answer.order_fails:
        facts.append(Fact("To try", "another order", ANOTHER_ORDER))
    facts += [Fact(f"Join {join.stage}", f"{join.branches} branches", join.bound) for join in certificate.joins]
    return facts


def _pools_table(answer: NetworkAnswer) -> Table:
    rows = [
        (
            pool.name,
            f"{pool.rho:.3f}",
            f"{pool.margin:.3f}",
            f"{pool.busy:.0%}",
            f"{pool.tokens_per_s:,.0f}",
            f"{pool.tokens_per_batch:,.0f}",
            f"{pool.replicas:,}",
            pool.router if pool.replicas > 1 else "-",
            pool.order,
            pool.policy,
            " and ".join(pool.binding) or "-",
        )
        for pool in answer.pools
    ]
    columns = ("Pool", "Load", "Margin", "Busy", "Tokens/s", "Tokens a batch", "Replicas", "Router", "Order")
    return Table((*columns, "Policy", "Held by"), rows, POOLS_IN_WORDS)


def _hypotheses(certificate: NetworkCertificate) -> Section:
    return Section(
        "Hypotheses",
        hypotheses=[
            page.Hypothesis(h.name, h.state, h.why) for h in sorted(certificate.hypotheses, key=lambda h: h.held)
        ],
    )


def _latency_section(answer: NetworkAnswer) -> Section:
    """Lay out what each workflow and stage asks for, and how long it takes in the steady state."""
    asked = Table(
        ("Stage", "Pool", "Requests/s", "Prefill tokens", "Decode tokens"),
        [
            (s.name, s.pool, f"{s.visits_per_s:,.4g}", f"{s.prefill_tokens:,.0f}", f"{s.decode_tokens:,.0f}")
            for s in answer.stages
        ],
        "What each stage asks for, tokens of a request on average",
    )
    steady = answer.latency
    if steady is None:
        reason = answer.latency_refused or "there is none"
        return Section("Workflows and stages", [f"No latency. {reason[0].upper()}{reason[1:]}."], tables=[asked])
    said = (
        f"Latency of the steady state. In brackets: an interval that holds the value with {steady.confidence:.0%} "
        "confidence; ? where the run is too short to tell."
    )
    jobs = [
        (w.name, f"{w.jobs_per_s:,.4g}", f"{w.jobs:,}", *_cells(w.e2e)) for w in answer.workflows if w.e2e is not None
    ]
    stages = [
        (stage.name, _LATENCY[metric], *_cells(known))
        for stage in answer.stages
        for metric, known in (stage.latency or {}).items()
        if metric in _LATENCY and known["mean"].value is not None
    ]
    statistics = ("Mean", "P50", "P90", "P99")
    tables = [
        Table(("Workflow", "Jobs/s", "Jobs", *statistics), jobs, "From the arrival of a job to its end, seconds"),
        asked,
        Table(("Stage", "Latency", *statistics), stages, "At a stage, from arrival at a replica, seconds"),
    ]
    return Section("Workflows and stages", [said], tables=tables)


def _cells(known: Statistics) -> list[str]:
    return [with_interval(known[name], "\n") for name in ("mean", "p50", "p90", "p99")]


def _run_in_words(run: NetworkRun) -> str:
    growth = run.growth_tokens_per_s
    grew = (
        ""
        if np.isnan(growth)
        else (
            f" Over the second half of the arrivals the work that is left changed by {round(growth) or 0:+,} tokens/s."
        )
    )
    return (
        f"{run.arrived:,} jobs arrived in one run of {run.seconds:,.0f} s that began empty; "
        f"{run.arrived - run.finished:,} had not ended.{grew}"
    )


def graph_figure(network: Network, certificate: NetworkCertificate | None = None) -> Figure:
    """Draw pools, stages and the ways of jobs."""
    names, ways, model = list(network.pools), network_ways(network), network.model()
    loads = plotting_graph.pool_loads(network)
    cycles = pool_cycles(network)
    pools = "; ".join(f"{name}, {plotting_graph.load_in_words(load)}" for name, load in loads.items())
    round_trips = "; ".join(" - ".join(name for name in names if name in of) for of in cycles)
    cycle = f"jobs can go round between {round_trips}" if cycles else "no job comes back to a pool that it has left"
    text = f"Graph of {len(names)} pools and {len(network.stages)} stages: {pools}; {cycle}."
    rows = [
        (
            stage,
            names[network.stage_pool[k]],
            f"{model.visits[k]:,.4g}",
            f"{model.prefill[k] + model.decode[k]:,.0f}",
            _then_in_words(*ways[stage]),
        )
        for k, stage in enumerate(network.stages)
    ]
    columns = ("Stage", "Pool", "Requests/s", "Tokens", "What follows")
    caption = (
        "A column is a pool, darker where its load is higher; jobs go down, and a number is the share of them that "
        "takes a way. A bar below a stage: all that follow begin; above: it waits for all. "
    )
    marked = any(name in of for of in cycles for name in names)
    caption += "Dashed: pools between which jobs can go round, where load below 1 is not enough." if marked else ""
    chart = plotting_graph.network_graph(network, certificate)
    wide = chart.width > _PHONE
    return Figure("The network", {text: chart}, [Table(columns, rows)], caption.strip(), wide=wide)


def _then_in_words(fork: bool, targets: dict[str, float]) -> str:
    if fork:
        return f"all of {', '.join(targets)}"
    said = [to if chance == 1 else f"{to} {chance:.3g}" for to, chance in targets.items()]
    ends = 1 - sum(targets.values())
    return ", ".join(said + ([f"end {ends:.3g}"] if 1e-9 < ends < 1 else [])) or "end"


def flood_figure(stability: NetworkStability) -> Figure:
    """Draw how the work went after each flood."""
    told = "; ".join(
        f"with {flood.stage} flooded it went to {flood.ratio:.2f} times, at most {flood.highest:.2f}"
        for flood in stability.floods
    )
    rows = [
        (flood.stage, flood.outcome, f"{flood.initial:,}", f"{flood.arrivals:,}", f"{flood.ratio:.2f}",
         f"{flood.highest:.2f}", f"{flood.path[-1, 0]:,.4g}")
        for flood in stability.floods
    ]  # fmt: skip
    columns = (
        "Flooded stage",
        "Outcome",
        "Jobs at the start",
        "Jobs that arrived",
        "Work at the end",
        "Most",
        "Seconds",
    )
    return Figure(
        "Floods",
        {f"Lines of work over that at the start, against time: {told}.": plotting_network.flood_paths(stability)},
        [Table(columns, rows, "Work: all that jobs in the network still need, over that at the start")],
        "Work that jobs in the network still need, calls to come included. It may rise before it falls.",
    )


def queue_figure(run: NetworkRun) -> Figure:
    """Draw the requests at each stage over time, a chart per pool."""
    stages = run.network.stages
    wide = plotting_network.stage_queues(run).pivot(on="stage", index="time_s", values="requests")
    charts = {}
    for pool, panel in plotting_network.queue_panels(run).items():
        here = [s for s, k in zip(stages, run.network.stage_pool, strict=True) if list(run.network.pools)[k] == pool]
        most = "; ".join(f"{s} at most {wide[s].to_numpy().max():,}" for s in here)
        charts[f"Lines of requests at pool {pool} over time: {most}."] = panel
    picked = np.unique(np.linspace(0, wide.height - 1, _ROWS + 1).astype(int)).tolist()
    rows = [(amount(time), *(f"{n:,}" for n in of)) for time, *of in wide.select("time_s", *stages)[picked].iter_rows()]
    return Figure(
        "Queues",
        charts,
        [Table(("Time (s)", *stages), rows, "Requests, waiting and served")],
        "Requests at each stage, waiting and served, while jobs arrive.",
    )
