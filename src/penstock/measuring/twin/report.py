"""A page about a twin: what was said before the runs, what the engine did, and what the simulation says."""

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.checking import figures
from penstock.measuring.twin import figures as plotting_twin
from penstock.measuring.twin import terminal as terminal_twin
from penstock.show import page
from penstock.show.page import Figure, Section, Table, Verdict

if TYPE_CHECKING:
    from penstock.measuring.twin.experiment import Twin


def report_twin(path: Path, found: "Twin") -> None:
    """Write the page."""
    tables = [Table(header, rows, title) for title, header, rows in terminal_twin.tables(found)]
    page.write(
        path,
        title="Twin",
        heading=f"{found.description}; {terminal_twin.in_words(found.facts)}",
        verdicts=_verdicts(found),
        sections=[
            Section("Measured beside simulated", tables=tables, notes=terminal_twin.notes(found)),
            Section("Tokens in the system", figures=[_tokens(found)]),
            Section("Latency", figures=_latencies(found)),
        ],
    )


def _verdicts(found: "Twin") -> list[Verdict]:
    """Say for each load what was predicted and what was seen."""
    said = []
    for rho in dict.fromkeys(found.settings.loads):
        trials = found.at(rho)
        about = f"rho {rho:g}"
        errors = ", ".join(f"{trial.error('e2e_s'):+.1%}" for trial in trials)
        if not trials[0].backlog:
            reason = f"Mean end-to-end latency, simulated over measured: {errors}."
            said.append(Verdict("compared", reason, "measurement", about))
            continue
        word = trials[0].prediction.direction
        seen = [trial.drift.direction if trial.drift else "drains" for trial in trials]
        reason = f"Predicted before the runs: a backlog {word}. Seen: {', '.join(seen)}."
        kept = all(each == word for each in seen)
        said.append(Verdict("met" if kept else "missed", reason, "measurement", about))
    return said


def _tokens(found: "Twin") -> Figure:
    drawings, rows = {}, []
    for rho, panel in plotting_twin.token_panels(found).items():
        ends = []
        for trial in found.at(rho):
            cells = []
            for side, run in plotting_twin.runs_of(trial).items():
                series = figures.series_while_arriving({side: run})[side]["uncompleted_tokens"]
                cells += [f"{series[0]:,}", f"{series[-1]:,}"]
                ends.append(f"{side} ends with {series[-1]:,}")
            rows.append((f"{rho:g}", f"{trial.seed}", *cells))
        drawings[f"Lines of uncompleted tokens over time at rho {rho:g}: {'; '.join(ends)}."] = panel
    columns = ("rho", "Seed", "Measured, first", "Measured, last", "Simulated, first", "Simulated, last")
    return Figure(
        "Tokens in the system",
        drawings,
        [Table(columns, rows, "Uncompleted tokens")],
        "While requests arrive.",
        wide=True,
    )


def _latencies(found: "Twin") -> list[Figure]:
    drawn: list[Figure] = []
    for rho in dict.fromkeys(found.settings.loads):
        trial = found.at(rho)[0]
        runs = plotting_twin.runs_of(trial)
        panels = figures.latency_panels(runs, legend=None)
        rows = []
        for metric in ("ttft_s", "tbt_s", "e2e_s"):
            for statistic in ("mean", "p50", "p99"):
                measured, simulated = trial.latency(metric, statistic)
                rows.append((f"{metric[:-2].upper()} {statistic}", f"{measured:.4f}", f"{simulated:.4f}"))
        texts = [
            f"Cumulative distributions of {name} at rho {rho:g}, measured and simulated."
            for name in ("TTFT", "TBT", "E2E")
        ]
        table = Table(("Seconds", "Measured", "Simulated"), rows)
        drawn.append(Figure(f"rho {rho:g}, seed {trial.seed}", dict(zip(texts, panels, strict=True)), [table]))
    return drawn
