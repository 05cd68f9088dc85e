"""The stable rate over both limits, as a heat map."""

import altair as alt
import polars as pl

from penstock.capacity.stable_rates import RateMap
from penstock.show.heat_map import heat_map, significant
from penstock.words import NO_LIMIT


def rate_cells(rates: RateMap) -> pl.DataFrame:
    """Return a row per cell; rates are in requests/s, limits are text."""
    rows = []
    for limits, found in rates.cells.items():
        budget, size = limits
        note = "theorem" if found.by_theorem else "simulated"
        if found.rate is None:
            note = "not served"
        row = {
            "token_budget": f"{budget:,}",
            "max_batch_size": NO_LIMIT if size is None else f"{size:,}",
        }
        rows.append(
            row
            | {
                "rate": found.rate,
                "above": found.above,
                "text": significant(found.rate),
                "note": note,
            }
            | {"best": limits == rates.best, "known": found.known}
        )
    return pl.DataFrame(rows, schema_overrides={"rate": pl.Float64, "above": pl.Float64})


def rate_heat_map(rates: RateMap) -> alt.LayerChart:
    """Stable rate by token budget and max batch size, and if a theorem or simulation says so."""
    rows = rate_cells(rates)
    budgets = list(dict.fromkeys(rows["token_budget"]))
    sizes = list(dict.fromkeys(rows["max_batch_size"]))[::-1]
    return heat_map(
        rows,
        x=alt.X(
            "token_budget:N",
            sort=budgets,
            title="Token budget (tokens)",
            axis=alt.Axis(labelAngle=0),
        ),
        y=alt.Y("max_batch_size:N", sort=sizes, title="Max batch size (requests)"),
        value="rate",
        title="Requests/s",
        name=f"Highest stable rate of a replica: {rates.server.policy.name}",
        cells=(len(budgets), len(sizes)),
    )
