"""When vllm bench sends: its own random numbers, up to their seed."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from penstock.inputs.arrays import Floats
from penstock.measuring.calibration.result_row import Row

_SEEDS = 100  # people give small ones
_ALIKE = 0.8  # correlation of gaps from which on they are of one seed
_FEWEST = 16  # gaps: of fewer, some seed is alike by chance
_USUAL = 0  # its default


@dataclasses.dataclass(frozen=True, eq=False)
class Schedule:
    """Gamma-distributed gaps of NumPy's legacy generator, one before each request."""

    rates: Floats  # shape (requests,), requests/s before each
    shape: float  # of the gamma distribution: the burstiness
    within_s: float | None  # time of the last request, to which all gaps are stretched

    def times(self, seed: int) -> Floats:
        """Return when requests are sent, in seconds after the first; shape (requests,)."""
        gaps = np.random.RandomState(seed).gamma(self.shape, 1 / (self.rates * self.shape))
        times = np.cumsum(gaps)
        if self.within_s is not None:
            times *= self.within_s / times[-1]
        return np.asarray(times - times[0], np.float64)


def ramp(kind: str, start: float | None, end: float | None, count: int) -> Floats | None:
    """Return the rate before each request, from ``start`` to ``end``; None: it is not known."""
    if not start or not end or count < 2:
        return None
    share = np.arange(count) / (count - 1)
    if kind == "linear":
        return np.asarray(start + (end - start) * share)
    return np.asarray(start * (end / start) ** share) if kind == "exponential" else None


def settle(rows: Sequence[Row]) -> None:
    """Take the arrivals of rows that record none from their tool's schedule."""
    # Rows that record them show the seed; else the usual one is taken: if it was another, these
    # arrivals are random ones like any others.
    scheduled = [row for row in rows if row.get("schedule") is not None]
    witness = max(
        (row for row in scheduled if row.get("arrival_s")),
        key=lambda row: len(row["arrival_s"]),
        default=None,
    )
    seed: int | None = _USUAL
    if witness is not None and len(witness["arrival_s"]) > _FEWEST:
        seed = _seed_of(witness)
    for row in scheduled:
        if seed is not None and not row.get("arrival_s"):
            row["arrival_s"] = row["schedule"].times(seed).tolist()


def _seed_of(row: Row) -> int | None:
    """Return the seed whose gaps are those that a row records; None: it is none of the small."""
    recorded = np.diff(row["arrival_s"])
    schedule = row["schedule"]
    if schedule.rates.size != recorded.size + 1:
        return None
    alike = [np.corrcoef(np.diff(schedule.times(seed)), recorded)[0, 1] for seed in range(_SEEDS)]
    best = int(np.argmax(alike))
    return best if alike[best] > _ALIKE else None
