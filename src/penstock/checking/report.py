"""The report: what `check`, `compare`, `simulate` and `region` found, as a page with figures; verdict first."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from penstock.checking import figures
from penstock.checking.answer import Answer
from penstock.checking.latency import SteadyState
from penstock.checking.targets import Estimate, Target
from penstock.scenario.scenario import Scenario
from penstock.show import page
from penstock.show.page import Fact, Figure, Section, Table, Verdict
from penstock.simulation.run import Distribution, Run
from penstock.simulation.simulate import simulate
from penstock.theory.certificate import Certificate
from penstock.theory.load import Load
from penstock.theory.operating_point import OperatingPoint, operating_point
from penstock.theory.region import Region
from penstock.words import METRICS, STATISTICS, amount, gathered, seconds

_CDF_ROWS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)
_SERIES_ROWS, _MIX_ROWS = 20, 12
_GANTT_REQUESTS = 300


Cells = Mapping[str, Sequence[str]]
"""By metric, the text of each statistic."""


def report_answers(path: Path, scenario: Scenario, found: Mapping[str, Answer]) -> None:
    """Write the answers of ``check`` or ``compare``, one per policy.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    runs = {name: answer.run for name, answer in found.items()}
    refused = {name: answer.latency_refused for name, answer in found.items() if answer.latency_refused}
    notes = gathered({name: answer.warnings for name, answer in found.items()})
    known = {name: answer.latency or answer.run for name, answer in found.items() if name not in refused}
    latency = latency_figure(runs, refused)
    intervals = {
        f"In brackets: an interval that holds the value with {answer.latency.confidence:.0%} confidence; "
        "? where the run is too short to tell."
        for answer in found.values()
        if answer.latency
    }
    several, first = len(found) > 1, next(iter(found.values()))
    page.write(
        path,
        title=scenario.name,
        heading=_heading(scenario, list(found)),
        notes=gathered({name: answer.front for name, answer in found.items()}),
        verdicts=[verdict for name, answer in found.items() for verdict in _verdicts(name, answer, several)],
        sections=[
            *([Section("Targets", tables=[_targets_table(found)])] if several and first.targets else []),
            *_next_section(scenario, first, several),
            _load_section(scenario, first.certificate),
            *_hypotheses(found),
            Section("Simulated", tables=[_runs_table(runs, found)], notes=notes),
            Section("Tokens in the system", figures=[token_figure(runs)]),
            Section(
                "Latency of the steady state",
                [*(f"{name}: none. {reason[0].upper()}{reason[1:]}." for name, reason in refused.items()), *intervals],
                tables=latency_tables(known),
                figures=[latency] if latency else [],
            ),
            *_batch_sections(scenario, runs),
        ],
    )


def report_run(path: Path, scenario: Scenario, certificate: Certificate, run: Run, warnings: Sequence[str]) -> None:
    """Write what happened in one finite run, without a verdict.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    name = scenario.server.policy.name
    runs = {name: run}
    latency = latency_figure(runs)
    page.write(
        path,
        title=scenario.name,
        heading=_heading(scenario, [name]),
        notes=scenario.server.kv_notes,
        verdicts=[Verdict("no verdict", "one finite run, from empty; for a verdict ask penstock check")],
        sections=[
            _load_section(scenario, certificate),
            Section("Simulated", tables=[_runs_table(runs, {})], notes=warnings),
            Section("Tokens in the system", figures=[token_figure(runs)]),
            Section(
                "Latency in this run",
                tables=latency_tables(runs),
                figures=[latency] if latency else [],
            ),
            *_batch_sections(scenario, runs),
        ],
    )


def report_region(path: Path, scenario: Scenario, found: OperatingPoint) -> None:
    """Write the stability region of a server, where a workload lies in it, and what holds it back.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    best, point, policy = found.optimum, found.point, scenario.server.policy.name
    side = "inside" if found.inside else "outside"
    reason = (
        f"{found.arrival_rate:,.4g} requests/s arrive, and no policy is stable above {found.max_rate:,.4g}: "
        f"the margin is {found.margin:.3f}. Inside, some policy may be stable; whether {policy} is, check says."
    )
    facts = [
        Fact("Offered", f"{sum(point):,.0f}", f"tokens/s: {point[0]:,.0f} of prefill, {point[1]:,.0f} of decode"),
        Fact("Most", f"{found.max_rate:,.4g}", "requests/s: above it no policy is stable"),
        Fact("Bound by", " and ".join(found.binding), "with a little less of it the server carries less"),
        Fact("Prefill token", f"{best.seconds_per_prefill_token * 1e3:.4g} ms", "of server time is what it costs"),
        Fact("Decode token", f"{best.seconds_per_decode_token * 1e3:.4g} ms", "of server time is what it costs"),
        Fact("One more slot", f"{best.slot_price:,.4g}", "tokens/s more for the best policy; others may carry less"),
    ]
    if found.own_max_rate is not None:
        own_rate = f"requests/s for {policy} at this token budget (a fluid argument, no theorem)"
        facts.insert(2, Fact(f"Most, {policy}", f"{found.own_max_rate:,.4g}", own_rate))
    mix = Table(
        ("Prefill tokens", "Decode tokens", "Prompts at most", "Share of time"),
        [(f"{x:,}", f"{y:,}", f"{prompts:,}", f"{share:.1%}") for x, y, prompts, share in best.mix],
        "Batches that carry the most; others may do as well",
    )
    own = {} if found.own is None else {policy: found.own}
    figure = region_figure(found.region, point=point, own=own)
    page.write(
        path,
        title=scenario.name,
        heading=_heading(scenario, [policy]),
        notes=scenario.server.kv_notes,
        verdicts=[Verdict(side, reason, "the condition of Section 6, necessary for every policy")],
        sections=[
            Section("Stability region", figures=[figure]),
            Section("What holds it back", facts=facts, tables=[mix]),
        ],
    )


def _heading(scenario: Scenario, policies: list[str]) -> str:
    workload, server = scenario.workload, scenario.server
    return (
        f"{workload.describe()}, {workload.rate:,.4g} requests/s, "
        f"{workload.mean_prompt:,.0f} prompt + {workload.mean_output:,.0f} output tokens; "
        f"{', '.join(policies)}, {server.limits}"
    )


def _verdicts(name: str, answer: Answer, several: bool) -> list[Verdict]:
    """Return what theorem and test say, and the targets; for one of several policies one line where the two agree."""
    certificate, test = answer.certificate, answer.stability
    about = name if several else ""
    by_theorem = Verdict(certificate.verdict, f"{certificate.reason}.", certificate.theorem or "no theorem", about)
    by_test = Verdict(test.verdict, f"{test.reason}.", "simulation", about)
    both = [by_test, by_theorem] if certificate.verdict == "unknown" else [by_theorem, by_test]
    if answer.disagreement:
        both.insert(0, Verdict("contradiction", f"{answer.disagreement}.", "theorem and simulation", about))
    elif several:
        both = both[:1]
    if several:
        return both
    return both + [Verdict(word, f"{text}.", "target", str(given)) for given, word, text in _targets(answer)]


def _targets(answer: Answer) -> list[tuple[Target, str, str]]:
    """Return each target, whether it is met, and the estimate that says so."""
    return [
        (given, judgement, f"{with_interval(estimate)} s" if estimate else "no steady state")
        for given, estimate, judgement in answer.targets
    ]


def _targets_table(found: Mapping[str, Answer]) -> Table:
    targets = [str(given) for given, _, _ in next(iter(found.values())).targets]
    rows = [(name, *(f"{word}\n{text}" for _, word, text in _targets(answer))) for name, answer in found.items()]
    return Table(("Policy", *targets), rows)


def _next_section(scenario: Scenario, answer: Answer, several: bool) -> list[Section]:
    step = None if several else answer.next_step(scenario.file)
    return [Section("What to do next", [f"{step[0].upper()}{step[1:]}."])] if step else []


def _load_section(scenario: Scenario, certificate: Certificate) -> Section:
    facts = _load_facts(certificate.load)
    most = f"no policy is stable above {certificate.max_rate:,.4g} requests/s"
    facts.append(Fact("Margin", f"{certificate.margin:.3f}", most))
    if scenario.measured and scenario.measured.year:
        facts.append(Fact("Measured", str(scenario.measured.year), scenario.measured.origin))
    if len(certificate.bounds) > 1:
        facts += [
            Fact(f"Limit: {bound.name}", f"{bound.max_rate:,.4g}", f"requests/s at most: {bound.why} ({bound.theorem})")
            for bound in certificate.bounds
        ]
    return Section("Load", facts=facts)


def _load_facts(load: Load) -> list[Fact]:
    offered = f"{load.offered_tokens_per_s:,.0f} tokens/s arrive, {load.tokens_per_request:,.0f} to process a request"
    return [
        Fact("Load rho", f"{load.rho:.{3 if abs(1 - load.rho) > 0.01 else 5}f}", offered),
        Fact("Capacity", f"{load.capacity_tokens_per_s:,.0f}", load.capacity_in_words),
    ]


def _hypotheses(found: Mapping[str, Answer]) -> list[Section]:
    """List the hypotheses: first those that are alike for all policies, then what is left for each."""
    told = {
        name: [page.Hypothesis(h.name, h.state, h.why) for h in answer.certificate.hypotheses]
        for name, answer in found.items()
    }
    first, *others = told.values()
    shared = [h for h in first if all(h in rows for rows in others)]
    sections = [Section("Hypotheses", hypotheses=shared)] if shared else []
    for name, rows in told.items():
        if own := [h for h in rows if h not in shared]:
            sections.append(Section(f"Hypotheses: {name}", hypotheses=own))
    return sections


def _runs_table(runs: Mapping[str, Run], found: Mapping[str, Answer]) -> Table:
    """Lay out what was simulated: a row per policy, or for one policy a row per figure."""
    rows = []
    limited = any(run.server.memory for run in runs.values())
    for name, run in runs.items():
        growth = run.growth_tokens_per_s
        backlog = "-" if np.isnan(growth) else f"{round(growth) or 0:+,}"
        numbers = (run.arrived, run.unfinished, run.n_batches, run.tokens_per_s)
        verdicts = (found[name].certificate.verdict, found[name].stability.verdict) if len(found) > 1 else ()
        again = (f"{run.preemptions:,}", f"{run.recomputed_tokens:,}") if limited else ()
        rows.append((name, *verdicts, *(f"{n:,.0f}" for n in numbers), f"{run.utilisation:.0%}", backlog, *again))
    words = ("Theorem", "Test") if len(found) > 1 else ()
    columns = ("Policy", *words, "Requests", "Unfinished", "Batches", "Tokens/s", "Busy", "Backlog, tokens/s")
    columns += ("Preemptions", "Tokens done again") if limited else ()
    if len(rows) == 1:
        first, *others = zip(columns, rows[0], strict=True)
        return Table(first, others)
    return Table(columns, rows)


def _batch_sections(scenario: Scenario, runs: Mapping[str, Run]) -> list[Section]:
    """Return the batches in the region, and who was in the first of them, where there was any batch."""
    workload = scenario.workload
    runs = {name: run for name, run in runs.items() if run.compositions.height}
    if not runs:
        return []
    places = {name: operating_point(workload, run.server) for name, run in runs.items()}
    place = next(iter(places.values()))
    own = {name: each.own for name, each in places.items() if each.own is not None}
    count = min(_GANTT_REQUESTS, workload.rows or _GANTT_REQUESTS)
    first = [
        gantt_figure(simulate(workload, run.server, requests=count, record="allocations"), name)
        for name, run in runs.items()
    ]
    return [
        Section("Batches in the region", figures=[region_figure(place.region, runs, point=place.point, own=own)]),
        Section("The first batches", figures=first),
    ]


def _run_cells(run: Run) -> Cells:
    return {m: ["-" if v is None else seconds(v) for v in values] for m, *values in run.latency().iter_rows()}


def _steady_cells(steady: SteadyState) -> Cells:
    return {m: [with_interval(of[name], "\n") for name in STATISTICS] for m, of in steady.estimates.items()}


def with_interval(estimate: Estimate, gap: str = " ") -> str:
    """Return an estimate and its interval as text; ? for an end that is not known."""
    if estimate.value is None:
        return "-"
    value, low, high = seconds(estimate.value), estimate.low, estimate.high
    if low is None:
        return value
    return f"{value}{gap}({seconds(low)} to {'?' if high is None else seconds(high)})"


def token_figure(runs: Mapping[str, Run]) -> Figure:
    """Draw the tokens in the system over time, a line per policy."""
    ends = figures.series_while_arriving(runs)
    said = "; ".join(f"{name} ends with {series['uncompleted_tokens'][-1]:,}" for name, series in ends.items())
    to_scale, log = figures.token_panels(runs)
    return Figure(
        "Tokens in the system",
        {
            f"Lines of uncompleted tokens over time, while requests arrive: {said}.": to_scale,
            f"The same on a log scale: {said}.": log,
        },
        [
            Table(
                ("Time (s)", *runs),
                [
                    (
                        amount(float(time)),
                        *(_nearest(series, time) for series in ends.values()),
                    )
                    for time in np.linspace(0, max(s["time_s"][-1] for s in ends.values()), _SERIES_ROWS + 1)
                ],
                "Uncompleted tokens at or just before a time",
            )
        ],
        "Uncompleted tokens while requests arrive. A line that keeps rising is a backlog that never drains.",
    )


def latency_figure(runs: Mapping[str, Run], refused: Iterable[str] = ()) -> Figure | None:
    """Draw the distributions of latency of the policies that have one; None if none has."""
    left_out = [name for name in runs if name in set(refused)]
    kept = {name: run for name, run in runs.items() if name not in left_out}
    if not kept:
        return None
    panels = figures.latency_panels(kept, runs)
    texts, tables = [], []
    for name, pick in zip(METRICS.values(), ("ttft", "gaps", "e2e"), strict=True):
        samples = {policy: getattr(run, pick) for policy, run in kept.items()}
        medians = "; ".join(
            f"{policy} {_quantile(d, 0.5, kept[policy].tick_s)} s at the median, "
            f"{_quantile(d, 0.99, kept[policy].tick_s)} s at the 99th percentile"
            for policy, d in samples.items()
            if d.size
        )
        texts.append(f"{name}, cumulative distribution: {medians or 'no samples'}.")
        rows = [
            (f"{100 * share:g}%", *(_quantile(d, share, kept[policy].tick_s) for policy, d in samples.items()))
            for share in _CDF_ROWS
        ]
        tables.append(Table(("Share", *kept), rows, f"{name}: at most so many seconds"))
    caption = "Share of requests, or of gaps between tokens, that took at most so long."
    if left_out:
        caption += f" Left out, since there may be no steady state: {', '.join(left_out)}."
    return Figure("Latency", dict(zip(texts, panels, strict=True)), tables, caption)


def region_figure(
    region: Region,
    runs: Mapping[str, Run] | None = None,
    *,
    point: tuple[float, float] | None = None,
    own: Mapping[str, Region] | None = None,
) -> Figure:
    """Draw the stability region, what is asked of it, and a panel per policy with the batches of its run.

    Parameters
    ----------
    region, point
        As in `plotting.region_chart`.
    runs
        A run per policy, whose batch compositions are drawn; without any, the region alone.
    own
        Regions of policies of their own, where one is known.
    """
    said = _region_in_words(region, point)
    own = dict(own or {})
    if not runs:
        shown = next(iter(own.items()), ("", None))
        chart = figures.region_chart(region, point, shown[1])
        return Figure("Stability region", {said: chart}, [_vertices(region, own)], "No policy is stable outside.")
    drawings = {}
    for name, run in runs.items():
        chart = figures.region_chart(region, point, own.get(name), run.compositions).properties(title=name)
        drawings[f"{name}: {_most_used(run)}. {said}"] = chart
    caption = (
        "Each batch stands at the tokens/s that it carries; its area is its share of the busy time. "
        "No policy is stable outside the region."
    )
    return Figure(
        "Batches in the region", drawings, [_mix_table(name, run.compositions) for name, run in runs.items()], caption
    )


def gantt_figure(run: Run, name: str = "", batches: int = 40) -> Figure:
    """Draw the first batches of a run, simulated with ``record="allocations"``, coloured by phase."""
    window = figures.first_batches(run, batches)
    text = (
        f"Gantt chart of {window.height} batches from {seconds(window['start_s'][0])} s: a row per request, a bar per "
        f"batch that it is in; {window['prefill_tokens'].sum():,} prefill and {window['decode_tokens'].sum():,} decode "
        "tokens in all."
    )
    caption = "Prefill is dark and tall, decode light and low; a thin line is a request that waits between batches."
    there = run.allocations.filter(pl.col("batch").is_in(window["batch"].implode()))["request"].n_unique()
    if there > figures.MOST_REQUESTS:
        caption += f" The first {figures.MOST_REQUESTS} of {there:,} requests are drawn."
    rows = [
        (f"{b:,}", f"{start:.3f}", f"{(end - start) * 1e3:.2f}", f"{x:,}", f"{y:,}", f"{n:,}")
        for b, start, end, x, y, n in window.iter_rows()
    ]
    columns = ("Batch", "Start (s)", "Duration (ms)", "Prefill tokens", "Decode tokens", "Requests")
    title = f"{name}: " if name else ""
    chart = {f"{title}{text}": figures.gantt(run, batches)}
    return Figure(f"{title}{window.height} batches", chart, [Table(columns, rows)], caption, wide=True)


def latency_tables(known: Mapping[str, Run | SteadyState]) -> list[Table]:
    """Lay out latency by policy, seconds: a row per metric, or for several policies a table per metric."""
    cells = {name: _run_cells(each) if isinstance(each, Run) else _steady_cells(each) for name, each in known.items()}
    if len(cells) == 1:
        (only,) = cells.values()
        return [Table(("Seconds", *STATISTICS), [(name, *only[metric]) for metric, name in METRICS.items()])]
    return [
        Table(("Policy", *STATISTICS), [(policy, *of[metric]) for policy, of in cells.items()], f"{name}, seconds")
        for metric, name in METRICS.items()
        if cells
    ]


def _nearest(series: pl.DataFrame, time: float) -> str:
    """Return the tokens at or just before a time, or a dash after the last one."""
    place = int(np.searchsorted(series["time_s"].to_numpy(), time * (1 + 1e-12), side="right")) - 1
    ended = time > series["time_s"][-1] * 1.05 + 1e-9
    return "-" if ended else f"{series['uncompleted_tokens'][max(place, 0)]:,}"


def _region_in_words(region: Region, point: tuple[float, float] | None) -> str:
    said = f"The stability region has {len(region.vertices) - 1} corners besides the origin"
    if point is None:
        return f"{said}."
    side = "inside" if region.contains(point) else "outside"
    return (
        f"{said}; the offered load of {point[0]:,.0f} prefill and {point[1]:,.0f} decode tokens/s lies {side}, at "
        f"{1 - region.margin(point):.3f} of the way to the boundary."
    )


def _most_used(run: Run) -> str:
    top = run.compositions.row(0, named=True)
    return (
        f"the most used batch has {top['prefill_tokens']:,} prefill and {top['decode_tokens']:,} decode tokens, "
        f"{top['share']:.0%} of the busy time"
    )


def _vertices(region: Region, own: Mapping[str, Region]) -> Table:
    regions = {"region": region} | {f"{name}'s own": policys for name, policys in own.items()}
    rows = [(name, f"{x:,.1f}", f"{y:,.1f}") for name, drawn in regions.items() for x, y in drawn.vertices]
    return Table(("Corner of", "Prefill (tokens/s)", "Decode (tokens/s)"), rows)


def _mix_table(name: str, mix: pl.DataFrame) -> Table:
    """List the compositions used longest, and the rest in one row."""
    rows = [
        (f"{prefill:,}", f"{decode:,}", f"{batches:,}", f"{share:.1%}")
        for prefill, decode, batches, _, share in mix.head(_MIX_ROWS).iter_rows()
    ]
    rest = mix.slice(_MIX_ROWS)
    if rest.height:
        rows.append((f"{rest.height:,} others", "", f"{rest['batches'].sum():,}", f"{rest['share'].sum():.1%}"))
    return Table(("Prefill tokens", "Decode tokens", "Batches", "Share of busy time"), rows, name)


def _quantile(samples: Distribution, share: float, tick_s: float) -> str:
    return seconds(samples.quantile(share) * tick_s) if samples.size else "-"
