"""What is known of a server: the sections of its page."""

from collections.abc import Mapping, Sequence

from penstock.checking.answer import Answer, Drawn
from penstock.checking.closed_loop import ClosedAnswer
from penstock.checking.figures import gantt_figure, latency_figure, region_figure, token_figure
from penstock.checking.head import SAME
from penstock.checking.latency import SteadyState
from penstock.checking.view_parts import (
    NO_LATENCY,
    batch_times,
    hypotheses_section,
    margin_fact,
    run_in_words,
)
from penstock.scenario.scenario import Scenario
from penstock.show.page import Fact, Figure, Section, Table
from penstock.simulation.run import Run
from penstock.system.server import Server
from penstock.theory.certificate import Certificate
from penstock.words import (
    LIMITED,
    METRICS,
    STATISTICS,
    near_one,
    seconds,
    sentence,
)


def sections_of_server(answer: Answer, scenario: Scenario | None) -> list[Section]:
    """Return what is known of a server behind the verdicts."""
    name = answer.server.policy.name
    load = load_facts(answer.certificate, answer.server, answer.verdict)
    step = answer.next_step(scenario.file if scenario else "SCENARIO")
    refused = [name] if answer.latency_refused else []  # whose head says the step
    return [
        *([Section("Next", [sentence(step)], why=True)] if step and not refused else []),
        Section("Load", facts=load, tables=limits_table(answer.certificate), why=True),
        *measured_section(scenario),
        *batch_times(answer),
        *hypotheses_section(answer.certificate),
        Section("Simulated", [run_in_words(answer.run)], notes=answer.warnings),
        latency_section(answer),
        *figure_sections({name: answer.run}, refused),
        *batch_sections({name: answer.run}, {name: answer.drawn}),
    ]


def measured_section(scenario: Scenario | None) -> list[Section]:
    """Say when and from what batch times were measured."""
    if scenario is None or scenario.measured is None or not scenario.measured.year:
        return []
    of = scenario.measured
    return [Section("Batch times", [f"Measured in {of.year}: {of.origin}."], why=True)]


def load_facts(certificate: Certificate, server: Server, verdict: str = "") -> list[Fact]:
    """Return what arrives and what can be carried."""
    load = certificate.load
    max_rate = certificate.max_rate
    capacity = load.capacity_in_words
    if server.max_batch_size is not None and server.max_batch_size < server.token_budget:
        capacity += f"; the max batch size of {server.max_batch_size:,} can only lower it"
    offered = (
        f"{load.offered_tokens_per_s:,.0f} tokens/s arrive, {load.tokens_per_request:,.0f} tokens "
        "a request"
    )
    offered += _cached(certificate)
    headroom = max_rate / load.arrival_rate - 1
    limit = f"no policy is stable above {max_rate:,.4g} requests/s ({headroom:+.1%} from here)"
    return [
        Fact("Load rho", near_one(certificate.rho), offered),
        Fact("Capacity", f"{load.capacity_tokens_per_s:,.0f}", capacity),
        margin_fact(certificate.margin, limit + _beside_the_limit(certificate, server), verdict),
    ]


def _cached(certificate: Certificate) -> str:
    """Say which load is shown beside a prefix cache, and which it could be."""
    if certificate.rho_at_least is None or certificate.rho_without_cache is None:
        return ""
    which = f"; {near_one(certificate.rho_without_cache)} without the prefix cache, this is "
    if certificate.measured is None:
        return which + "at least, if it kept everything"
    return (
        f"{which}with what it found in this run (measured), {near_one(certificate.rho_at_least)} "
        "is the least, if it kept everything"
    )


def limits_table(certificate: Certificate) -> list[Table]:
    """Lay out the limits of any policy, where there are several."""
    if len(certificate.bounds) < 2:
        return []
    rows = [(b.name, f"{b.max_rate:,.4g}", b.why, b.theorem) for b in certificate.bounds]
    title = "Above these rates no policy is stable"
    caption = "A scheduler may carry less: a limit can bind below the rate that it allows at most."
    columns = ("Limit", "Requests/s", "Why", "By")
    return [Table(columns, rows, caption, title=title, detail=True)]


def _beside_the_limit(certificate: Certificate, server: Server) -> str:
    """Say what any policy's limit leaves out: unbounded KV memory, and lower ones of schedulers."""
    certified = certificate.certified_rate or 0.0
    if certified >= (1 - SAME) * certificate.max_rate or certificate.margin < 0:
        return ""
    said = "; a scheduler's own limit may be lower: ask max-rate"
    bounded = any(bound.name == "KV memory" for bound in certificate.bounds)
    if server.memory is not None and not bounded:
        return f", KV memory not counted{said}"
    return said


def latency_section(answer: Answer | ClosedAnswer) -> Section:
    """Lay out the latency of the steady state, or of the run where it kept no rows."""
    if answer.latency_refused:
        return NO_LATENCY
    if answer.latency is None:
        return Section("Latency in this run", ["In seconds."], tables=[latency_of_run(answer.run)])
    said = f"In seconds, each with its {answer.latency.confidence:.0%} interval."
    return Section("Latency in the steady state", [said], tables=[_latency_of(answer.latency)])


def latency_of_run(run: Run) -> Table:
    """Lay out the latency of one run."""
    rows = [
        (METRICS[metric], *map(seconds, values)) for metric, *values in run.latency().iter_rows()
    ]
    return Table(("", *STATISTICS), rows)


def _latency_of(latency: SteadyState) -> Table:
    """Lay out each latency over the ends of its interval."""
    rows: list[tuple[str, ...]] = []
    strong = []
    for metric, of in latency.estimates.items():
        statistics = [of[name] for name in STATISTICS]
        strong.append(len(rows))
        rows.append((LIMITED[metric], *(seconds(estimate.value) for estimate in statistics)))
        if any((estimate.low, estimate.high) != (None, None) for estimate in statistics):
            rows.append(("  from", *(seconds(estimate.low) for estimate in statistics)))
            rows.append(("  to", *(seconds(estimate.high) for estimate in statistics)))
    return Table(("", *STATISTICS), rows, strong=strong)


def figure_sections(runs: Mapping[str, Run], refused: Sequence[str] = ()) -> list[Section]:
    """Draw tokens in the system, and latency but for those that have no steady state."""
    tokens = Section("Tokens in the system", figures=lambda: [token_figure(runs)])
    if len(refused) == len(runs):
        return [tokens]
    latency = Section("Distribution of latency", figures=lambda: [latency_figure(runs, refused)])
    return [tokens, latency]


def batch_sections(runs: Mapping[str, Run], drawn: Mapping[str, Drawn]) -> list[Section]:
    """Draw the batches in the region, and who was in the first of them, if there was any batch."""
    runs = {name: run for name, run in runs.items() if run.compositions.height}
    if not runs:
        return []

    def region() -> list[Figure]:
        point = next(iter(drawn.values())).point
        own = {name: region for name in runs if (region := drawn[name].point.own) is not None}
        return [region_figure(point.region, runs, point=point.point, own=own)]

    rated = all(of.workload.has_rate for of in drawn.values())
    return [
        *([Section("Batches in the region", figures=region)] if rated else []),
        Section(
            "The first batches",
            figures=lambda: [gantt_figure(drawn[name].first, name) for name in runs],
        ),
    ]
