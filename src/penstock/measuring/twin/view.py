"""A twin as a page: what was said before the runs, what the engine did, and what the simulation
says.
"""

import itertools
from typing import TYPE_CHECKING

from penstock.measuring.profiling.view import in_words
from penstock.show.page import Fact, Figure, Page, Section, Table, Verdict
from penstock.words import METRICS, seconds

if TYPE_CHECKING:
    from penstock.measuring.twin.records import Trial, Twin

_DRIFTED = 0.05  # A machine whose speed moved by more is said to have drifted


def twin_page(twin: "Twin") -> Page:
    """Show an engine beside its simulation: what became of each prediction first."""
    sections = [
        Section("Runs", tables=[_runs(twin)]),
        Section("Latency", ["In seconds, measured and simulated."], tables=[_latency(twin)]),
    ]
    if any(trial.backlog for trial in twin.trials):
        sections.append(Section("Under a backlog", ["In tokens/s."], tables=[_drifts(twin)]))
    return Page(
        title=f"Twin of {twin.description}",
        heading=in_words(twin.facts),
        verdicts=[_verdict(rho, trials) for rho, trials in twin.by_load.items()],
        sections=[
            *sections,
            Section("Batch times and clock", facts=_facts(twin), notes=_warnings(twin)),
            Section("Tokens in the system", figures=lambda: [_tokens_figure(twin)]),
            Section("Distribution of latency", figures=lambda: _latency_figures(twin)),
        ],
    )


def _verdict(rho: float, trials: "list[Trial]") -> Verdict:
    """Say what was predicted at a load, and what was seen."""
    errors = [trial.error("e2e_s") for trial in trials]
    mean = f"mean E2E predicted {sum(errors) / len(errors):+.1%} off"
    if len(errors) > 1:
        mean += f", {min(errors):+.1%} to {max(errors):+.1%}"
    about = f"rho {rho:g}"
    if not trials[0].backlog:
        return Verdict("compared", f"{mean}.", "by measurement", about)
    direction = trials[0].prediction.direction
    seen = [trial.drift.direction if trial.drift else "drains" for trial in trials]
    word = "met" if set(seen) == {direction} else "missed"
    reason = f"predicted before the runs: a backlog {direction}; seen: {', '.join(seen)}; {mean}."
    return Verdict(word, reason, "by measurement", about)


def _runs(twin: "Twin") -> Table:
    rows = []
    for trial in twin.trials:
        run = trial.measured
        rate = f"{trial.prediction.rate:.3g}"
        counts = (f"{run.arrived:,}", f"{run.n_batches:,}", f"{run.tokens / run.n_batches:.1f}")
        rows.append(
            (*_start(trial), rate, trial.prediction.theory, *counts, f"{trial.batch_error:+.1%}")
        )
    columns = ("rho", "Seed", "Requests/s", "Theory", "Requests", "Batches", "Tokens each", "Model")
    caption = (
        "Theory: the certificate. Model: its time for the very batches of the run, over theirs: an "
        "error of the batch times, and none of the queueing."
    )
    return Table(columns, rows, caption)


def _latency(twin: "Twin") -> Table:
    rows = []
    for trial in twin.trials:
        for metric in METRICS:
            cells = []
            for statistic in ("mean", "p99"):
                measured, simulated = trial.latency(metric, statistic)
                cells += [
                    seconds(measured),
                    seconds(simulated),
                    f"{trial.error(metric, statistic):+.1%}",
                ]
            rows.append((*_start(trial), metric[:-2].upper(), *cells))
    columns = ("rho", "Seed", "", "Mean", "Sim.", "Error", "p99", "Sim.", "Error")
    return Table(columns, rows, "Sim.: the same requests, with batch times measured before.")


def _drifts(twin: "Twin") -> Table:
    """Lay out whether backlogs drained or grew, of the runs that began with one."""
    columns = (
        "rho", "Seed", "Backlog", "Predicted", "Measured", "Offered", "Carried", "95%", "Sim.",
    )  # fmt: skip
    return Table(columns, [_drift(trial) for trial in twin.trials if trial.backlog])


def _drift(trial: "Trial") -> tuple[str, ...]:
    start = (*_start(trial), f"{trial.backlog:,}", trial.prediction.direction)
    drift, other = trial.drift, trial.simulated_drift
    if drift is None:
        return (*start, "drains at once", "", "", "", "")
    return (
        *start, drift.direction, f"{drift.offered:,.0f}", f"{drift.carried:,.0f}",
        f"±{drift.carried - drift.low:,.0f}", "" if other is None else f"{other.carried:,.0f}",
    )  # fmt: skip


def _start(trial: "Trial") -> tuple[str, str]:
    """Return the cells that name a run."""
    return f"{trial.prediction.rho:g}", f"{trial.seed}"


def _facts(twin: "Twin") -> list[Fact]:
    """Return how well batch times were fitted, and how steady the machine was."""
    facts = [
        Fact(
            f"Calibration {number}",
            f"{fit.mean_absolute_error:.1%}",
            f"mean error of {fit.n:,} batches, {fit.name}",
        )
        for number, fit in enumerate(twin.fits, start=1)
    ]
    if twin.pace:
        low, middle, high = twin.pace
        spread = (
            f"real time in the median, {low:.2f} to {high:.2f} nine times of ten: all times go by "
            "the paced clock"
        )
        facts.append(Fact("A paced second", f"{middle:.2f} s", spread))
    explanation = "time of the same batches after the last run, over before"
    facts.append(Fact("Speed", f"{twin.speed - 1:+.1%}", explanation))
    return facts


def _warnings(twin: "Twin") -> list[str]:
    """Say what keeps the figures from being read as errors of the queueing."""
    words = []
    worst = max((trial.batch_error for trial in twin.trials), key=abs)
    if abs(worst) > _DRIFTED:
        words.append(
            f"the batch times themselves were off by up to {worst:+.1%}, which queues multiply: do "
            "not read those latencies as errors of the queueing; measure for longer (--calibrate), "
            "on a quieter machine"
        )
    if abs(twin.speed - 1) > _DRIFTED:
        words.append(
            "the machine drifted: the same batches took another time after the last run than "
            "before the first"
        )
    return words


def _tokens_figure(twin: "Twin") -> Figure:
    from penstock.checking.charts import series_while_arriving
    from penstock.measuring.twin import charts

    panels = {}
    rows = []
    for rho, panel in charts.token_panels(twin).items():
        ends = []
        for trial in twin.by_load[rho]:
            cells = []
            for side, run in charts.runs_of(trial).items():
                series = series_while_arriving({side: run})[side]["uncompleted_tokens"]
                cells += [f"{series[0]:,}", f"{series[-1]:,}"]
                ends.append(f"{side} ends with {series[-1]:,}")
            rows.append((*_start(trial), *cells))
        panels[f"Lines of uncompleted tokens over time at rho {rho:g}: {'; '.join(ends)}."] = panel
    columns = (
        "rho",
        "Seed",
        "Measured, first",
        "Measured, last",
        "Simulated, first",
        "Simulated, last",
    )
    table = Table(columns, rows, "Uncompleted tokens")
    return Figure("Tokens in the system", panels, [table], "While requests arrive.")


def _latency_figures(twin: "Twin") -> list[Figure]:
    from penstock.checking.charts import latency_panels
    from penstock.measuring.twin.charts import runs_of

    drawn = []
    for rho, (trial, *_) in twin.by_load.items():
        rows = []
        for metric, statistic in itertools.product(METRICS, ("mean", "p50", "p99")):
            times = (f"{seconds:.4f}" for seconds in trial.latency(metric, statistic))
            rows.append((f"{metric[:-2].upper()} {statistic}", *times))
        texts = (
            f"Cumulative distributions of {metric[:-2].upper()} at rho {rho:g}, measured and "
            "simulated."
            for metric in METRICS
        )
        panels = dict(zip(texts, latency_panels(runs_of(trial), legend=None), strict=True))
        table = Table(("Seconds", "Measured", "Simulated"), rows)
        drawn.append(Figure(f"rho {rho:g}, seed {trial.seed}", panels, [table]))
    return drawn
