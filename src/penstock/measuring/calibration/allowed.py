"""What the rows of a calibration allow: how far each cost may lie from its fitted value, with the
other costs as the rows then ask for, before a row is missed.

Priors choose among costs that the rows cannot tell apart, such as a cost of each request and one of
each token of context where all rows have the same lengths. Near the fitted values that does not
show: whichever cost was given the time looks certain. So here priors say nothing. The equations of
the rows (`penstock.measuring.calibration.equations`) are linear in the costs, and linear programs
find the least and the largest value of each cost that changes no row's time by more than the
tolerance.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linprog

from penstock.fields import in_keys
from penstock.inputs.arrays import Floats
from penstock.measuring.calibration.build import batch_time
from penstock.measuring.calibration.equations import LINEAR, equations_of
from penstock.measuring.calibration.loads import Row, streams_of
from penstock.measuring.calibration.priors import Prior
from penstock.measuring.calibration.quantities import COSTS
from penstock.system.batch_time import Composition
from penstock.system.server import Server
from penstock.system.uncertain import Allowed, Seen

TOLERANCE = {"itl": 0.05, "ttft": 0.1}
"""Relative change of a row's time by metric that is allowed: about what rows are off by that were
not used to fit (docs/calibrate.md).
"""

SPAN = 2.0
"""Factor between the least and the largest value of a cost beyond which the rows do not tell it."""

_BEYOND = 2.0  # deviations of its prior at which a cost ends that no row says anything of
_DIGITS = 5  # of a cost in an extreme
_LEAST_S = 1e-9  # of a batch


class Range(NamedTuple):
    """The least and the largest value of a cost, s, and all costs at either."""

    low: float
    high: float
    at_low: Mapping[str, float]
    at_high: Mapping[str, float]

    @property
    def open(self) -> bool:
        """Whether the rows do not tell the cost."""
        return self.high > SPAN * self.low


def ranges_of(
    rows: Sequence[Row],
    values: Mapping[str, float],
    priors: Mapping[str, Prior],
    *,
    ahead: bool,
    token_budget: int,
) -> dict[str, Range]:
    """Return the range of each cost that was fitted to some rows."""
    names = [name for name in LINEAR if name in values]
    knee = values.get("knee", 0.0)
    matrix, constant, metrics = equations_of(rows, knee, ahead, token_budget)
    matrix = matrix[:, [LINEAR.index(name) for name in names]]
    fitted = np.array([values[name] for name in names])
    times = matrix @ fitted + constant
    most = times * np.array([TOLERANCE[metric] for metric in metrics])
    # In units of the fitted values, as some costs are 10^9 times as large as others.
    scaled = matrix * fitted / times[:, None]
    bounds = np.concatenate([scaled.sum(axis=1) + most / times, most / times - scaled.sum(axis=1)])
    both = np.vstack([scaled, -scaled])
    ends = {}
    for index, name in enumerate(names):
        prior = priors[name]
        last = max(prior.centre * math.exp(_BEYOND * prior.deviation) / fitted[index], 1.0)
        low, high = (_extreme(both, bounds, index, sign, last) for sign in (1, -1))
        ends[name] = Range(
            float(low[index] * fitted[index]),
            float(high[index] * fitted[index]),
            dict(values) | dict(zip(names, (low * fitted).tolist(), strict=True)),
            dict(values) | dict(zip(names, (high * fitted).tolist(), strict=True)),
        )
    return ends


def _extreme(matrix: Floats, bounds: Floats, index: int, sign: int, last: float) -> Floats:
    """Return the costs where one is least (sign 1) or most (-1): ``last`` if it has no end."""
    aim = np.zeros(matrix.shape[1])
    aim[index] = sign
    limits: list[tuple[float, float | None]] = [(0.0, None)] * aim.size
    program = linprog(aim, matrix, bounds, bounds=limits)
    if program.status != 0:
        limits[index] = (0.0, last)
        program = linprog(aim, matrix, bounds, bounds=limits)
    return np.asarray(program.x) if program.status == 0 else np.ones(aim.size)


def allowed(ranges: Mapping[str, Range], seen: Seen) -> Allowed:
    """Return the batch times at the extremes of the costs."""
    extremes: dict[Composition, None] = {}
    for of in ranges.values():
        for costs in (of.at_low, of.at_high):
            rounded = {name: float(f"{value:.{_DIGITS}g}") for name, value in costs.items()}
            # Where other costs take all of the time, a batch of one token still takes some.
            rounded["step"] = max(rounded["step"], _LEAST_S)
            extremes[batch_time({**dict.fromkeys(COSTS, 0.0), **rounded})] = None
    return Allowed(tuple(extremes), seen)


def seen_in(rows: Sequence[Row], server: Server, values: Mapping[str, float]) -> Seen:
    """Return what some rows have seen of a server with these values."""
    prompt, output = (
        (min(row[name] for row in rows), max(row[name] for row in rows))
        for name in ("prompt_tokens", "output_tokens")
    )
    running = max(max(streams_of(row), float(row["in_flight"] or 0)) for row in rows)
    limits: dict[str, Any] = {}
    if server.memory is not None:
        limits["kv_tokens"] = server.memory.tokens
    if "max_batch_size" in values:
        limits["max_batch_size"] = server.max_batch_size
    if server.front_end is not None:
        times = in_keys(server.front_end)
        limits["front_end"] = {key: float(f"{value:.4g}") for key, value in times.items()}
    return Seen(server.policy.name, prompt, output, max(running, 1.0), limits)
