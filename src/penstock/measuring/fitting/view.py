"""A fit as a page: the model, its parameters, how well it fits, and what it was chosen from."""

from collections.abc import Sequence

from penstock.measuring.fitting.families import COMPOSED
from penstock.measuring.fitting.figures import fit_figures
from penstock.measuring.fitting.fit import Fit
from penstock.measuring.fitting.relative_errors import QUALITY
from penstock.show.answers import filled, page_of, table
from penstock.show.page import Line, Page, Section, Table
from penstock.words import sentence

# Formulas by token load b.
_FORMULAS = {
    "affine": "c + a b",
    "hinge": "c + a max(b - b0, 0)",
    "steps": "c + a ceil(b / b0)",
    "table": "linear between measured loads",
}

_COSTS = {
    "per_request": ("us", 1e6, "each request in the batch"),
    "self_attention": ("ns", 1e9, "each pair of new tokens of a request"),
    "cross_attention": ("ns", 1e9, "each new token of a prompt and token before it"),
    "decode_attention": ("ns", 1e9, "each token before a decode"),
    "mixed_attention": ("ns", 1e9, "the same in a batch with prefill"),
    "with_prefill": ("ms", 1e3, "each batch with prefill"),
    "gap": ("ms", 1e3, "each batch, until the next one begins"),
}

_HELD_OUT = (
    "Error: the mean of |predicted / measured - 1| on batches held out of the fit, block by block. "
    "Of the models whose error is at most one standard error above the least, the one with the "
    "fewest parameters is taken."
)
_PLAIN = 1e4  # from here on four digits would need an exponent
_MOST_COSTS = 4  # in a line
_KNOTS = 12  # rows of a table of batch times that are shown at first


@page_of.register
def fit_page(fit: Fit) -> Page:
    """Show a fit: model, parameters, errors, candidates."""
    rows = _parameters(fit)
    shown = _some(rows)
    spoken = f"Least squares of relative errors, with {fit.confidence:.0%} intervals"
    if len(shown) < len(rows):
        loads = [sum(row[0].startswith("t_") for row in some) for some in (shown, rows)]
        spoken += f"; {loads[0]} of {loads[1]} token loads"
    sections = [
        Section("Parameters", [f"{spoken}."], tables=[_table(shown)], notes=fit.warnings, why=True),
        filled(fit, QUALITY),
    ]
    if fit.candidates:
        strong = [index for index, one in enumerate(fit.candidates) if one.chosen]
        compared = table(fit.candidates, strong=strong)
        sections.append(Section("Candidates", [_HELD_OUT], tables=[compared]))
    every = [_table(rows)] if len(shown) < len(rows) else []
    sections.append(Section("Measured and fitted", figures=lambda: fit_figures(fit, every)))
    return Page(
        title=f"Batch time of {fit.batches.source}",
        sections=sections,
        head=_head(fit),
        why="parameters with intervals, errors",
        rest="what it was chosen from" if fit.candidates else "",
    )


def _head(fit: Fit) -> list[Line]:
    """Say the model, how far off it is, on which batches, and what to mind."""
    least, most = fit.tokens
    low, high = (fit.quantiles[share] for share in (0.05, 0.95))
    rows = _parameters(fit)
    costs = [f"{name} {value} {unit}" for name, value, _, _, unit, _ in rows[:_MOST_COSTS]]
    more = f", {len(rows) - _MOST_COSTS:,} more" if len(rows) > _MOST_COSTS else ""
    held_out = [f" (batches held out: {one.error:.2%})" for one in fit.candidates if one.chosen]
    off = (
        f"{fit.mean_absolute_error:.2%} on average{''.join(held_out)}, {low:+.1%} to "
        f"{high:+.1%} in nine batches of ten"
    )
    left_out = ""
    if fit.left_out:
        left_out = f", of which {fit.left_out:,} far from similar ones were left out"
    batches = f"{fit.n:,} batches of {least:,.0f} to {most:,.0f} tokens{left_out}"
    return [
        Line(fit.batches.source, f"{batches}."),
        Line("fitted", f"{fit.name}: the time of b tokens is {_formula(fit)}.", judges=True),
        Line("Costs", f"{', '.join(costs)}{more}."),
        Line("Error", f"{off}."),
        *(Line("Mind", sentence(text)) for text in fit.warnings[:1]),
    ]


def _formula(fit: Fit) -> str:
    """Return the formula of a fit, its linear part first."""
    formula = _FORMULAS[fit.name.removeprefix(COMPOSED)]
    if fit.name.startswith(COMPOSED):
        formula += " + attention and requests"
    return formula if fit.batches.gap is None else f"{formula} + gap"


def _parameters(fit: Fit) -> list[tuple[str, ...]]:
    """Return a row for each parameter, in the units of people; knots of a table as they are."""
    steps = fit.name.endswith("steps")
    rows = []
    for name, ends in fit.parameters.items():
        unit, scale, meaning = _COSTS.get(name, ("ms", 1e3, ""))
        if name == "c":
            meaning = "every batch"
        elif name == "a" and steps:
            meaning = f"each step of {fit.parameters['b0'][0]:,.0f} tokens"
        elif name == "a":
            unit, scale = "us", 1e6
            meaning = "each token beyond b0" if "b0" in fit.parameters else "each token"
        elif name == "b0":
            unit, scale = "tokens", 1.0
            others = "; others fit as well" if ends[1] < ends[2] else ""
            meaning = f"width of a step{others}" if steps else "tokens at no extra cost"
        elif name.startswith("t_"):
            meaning = f"a batch of {float(name[2:]):,.0f} tokens"
        rows.append((name, *(_digits(end * scale) for end in ends), unit, meaning))
    return rows


def _some(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the parameters with some of a table's knots, the first and the last among them."""
    loads = [row for row in rows if row[0].startswith("t_")]
    every = -(-len(loads) // _KNOTS) or 1
    return [*loads[:-1:every], *loads[-1:], *rows[len(loads) :]]


def _table(rows: Sequence[tuple[str, ...]]) -> Table:
    return Table(("Parameter", "Value", "From", "To", "Unit", "Cost of"), rows)


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= _PLAIN else f"{value:,.4g}"
