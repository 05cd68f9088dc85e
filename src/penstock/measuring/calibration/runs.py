"""What each run says of its own, beside the one server of all runs."""

import math
from collections.abc import Sequence

import numpy as np

from penstock.measuring.calibration.loads import Row, column_of, measured
from penstock.measuring.calibration.posterior import Fit, Sent, fit_of
from penstock.measuring.calibration.predict import Overhead, predict
from penstock.measuring.calibration.priors import Priors
from penstock.system.server import Server

_SURE = 4.0  # times what a first token strays least, up to which others count beside it
_NEAR = 0.1  # standard deviation of a parameter's logarithm between runs of one server


def values_of_runs(rows: Sequence[Row], fit: Fit, per_run: str) -> dict[str, dict[str, float]]:
    """Return the values of each run: those of all, but for what its own rows say."""
    values_of = {row["run"]: fit.values for row in rows}
    if len(values_of) == 1 or per_run == "nothing":
        return values_of
    near = fit.priors.near(fit.values, math.exp(_NEAR), "the server of all runs")
    for run in values_of:
        own = [(row, load) for row, load in fit.sent if row["run"] == run]
        if len(own) < 2:
            continue
        if per_run == "all":
            values_of[run] = fit_of(own, fit.build, near).values
        if "overhead" in fit.values:
            overhead = _own_overhead(own, *fit.build(values_of[run]), fit.priors)
            values_of[run] = values_of[run] | {"overhead": overhead}
    return values_of


def _own_overhead(
    rows: Sequence[Sent], server: Server, overhead: Overhead, priors: Priors
) -> float:
    """Return the overhead, s, with the median of what the fitted rows of a run lack."""
    # Little is known to a millisecond of long times to first token, most of which are queues.
    lacks = []
    for row, load in rows:
        known = measured(row, "ttft")
        predicted = predict(load, server, overhead)[column_of(row, "ttft")]
        if known is not None and np.isfinite(predicted):
            lacks.append((priors.noise["ttft"] * known, known - predicted))
    usual = priors.of["overhead"]
    least = min((scale for scale, _ in lacks), default=0.0)
    within = min(_SURE * least, usual.centre * usual.factor)
    lack = [lack for scale, lack in lacks if scale <= within] or [0.0]
    return max(overhead.fixed + float(np.median(lack)), 0.0)
