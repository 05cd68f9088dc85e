"""The report on a fit, as a page with figures."""

from pathlib import Path

from penstock.measuring.fitting import figures as plotting_fit
from penstock.measuring.fitting.description import formula, parameters, quality
from penstock.measuring.fitting.fit import Fit
from penstock.show import page
from penstock.show.page import Fact, Figure, Section, Table, Verdict


def report_fit(path: Path, fit: Fit) -> None:
    """Write a fit: model, parameters, errors, candidates.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    facts = [Fact(name or "Range", figure, why) for name, figure, why in quality(fit)]
    sections = [Section("The model", facts=facts, tables=[_parameters(fit)], notes=fit.warnings)]
    if fit.candidates:
        sections.append(Section("Candidates", [_HELD_OUT], tables=[_candidates(fit)]))
    sections.append(Section("Measured and fitted", figures=[_figure(fit)]))
    page.write(
        path,
        title=f"Batch time of {fit.batches.source}",
        heading=f"{fit.n:,} batches of {fit.batches.tokens.min():,.0f} to {fit.batches.tokens.max():,.0f} tokens",
        verdicts=[Verdict(fit.name, f"Batch time of b tokens: {formula(fit)}.", "least squares of relative errors")],
        sections=sections,
    )


_HELD_OUT = (
    "The mean of |predicted / measured - 1| on batches held out of the fit, block by block. Of the models whose error "
    "is at most one standard error above the least, the one with the fewest parameters is taken."
)


def _parameters(fit: Fit) -> Table:
    rows = [
        (p.name, *(f"{value:,.4g}" for value in (p.value, p.low, p.high)), p.unit, p.meaning) for p in parameters(fit)
    ]
    caption = f"With {fit.confidence:.0%} intervals."
    return Table(("Parameter", "Value", "From", "To", "Unit", "Cost of"), rows, caption)


def _candidates(fit: Fit) -> Table:
    rows = [
        (one.name, str(one.parameters), f"{one.error:.2%}", f"{one.standard_error:.2%}", "yes" if one.chosen else "")
        for one in fit.candidates
    ]
    return Table(("Model", "Parameters", "Error", "Standard error", "Chosen"), rows)


def _figure(fit: Fit) -> Figure:
    return Figure(
        "Batch times and relative errors",
        {
            "Measured batch times over token load, with the model": plotting_fit.fitted_line(fit),
            "Relative error of each batch over its token load": plotting_fit.relative_errors(fit),
        },
        [],
        "Black: the model; of a composition, what it predicts for each batch. Crosses: batches left out of the fit.",
    )
