"""Batch times that were calibrated on a few rows, and how uncertain that leaves them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock import checks
from penstock.errors import InputError
from penstock.inputs.arrays import Floats
from penstock.system.batch_time import Composition
from penstock.system.measured_times import Measured
from penstock.system.models.adjusted import Adjustment

PARAMETERS = tuple(field.name for field in dataclasses.fields(Adjustment))
_SECONDS = ("host", "per_stream")


@dataclasses.dataclass(frozen=True)
class Uncertainty:
    """What a calibration left open: a normal distribution of logarithms.

    Attributes
    ----------
    values
        The most probable value of each parameter of `Adjustment`.
    covariance
        Of their logarithms, in the same order.
    """

    values: Mapping[str, float]
    covariance: Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        unknown = [name for name in self.values if name not in PARAMETERS]
        square = np.shape(self.covariance) == (len(self.values), len(self.values))
        if unknown or not square or not np.isfinite(self.covariance).all():
            raise InputError(
                f"the uncertainty of batch times has the parameters "
                f"{checks.shown(', '.join(self.values))} and a covariance of shape "
                f"{np.shape(self.covariance)}, which say nothing together; write the file again "
                "with `penstock calibrate`"
            )

    def draws(self, count: int, seed: int = 0) -> Floats:
        """Return changes of the logarithms, drawn at random in pairs that cancel.

        Parameters
        ----------
        count
            How many; rounded up to an even number.
        seed
            Of the random numbers.
        """
        half = np.random.default_rng(seed).multivariate_normal(
            np.zeros(len(self.values)), np.asarray(self.covariance), -(-count // 2), method="eigh"
        )
        return np.concatenate([half, -half])

    def moved(self, batch_time: Composition, change: Floats) -> Composition:
        """Return batch times at other values: the most probable ones changed by some logarithms."""
        changes = dict(zip(self.values, change.tolist(), strict=True))
        factors = {
            name: float(np.exp(move)) for name, move in changes.items() if name not in _SECONDS
        }
        now = {name: self.values.get(name, 0.0) for name in _SECONDS}
        then = {name: value * np.exp(changes.get(name, 0.0)) for name, value in now.items()}
        linear = batch_time.linear
        assert isinstance(linear, Measured)
        bare = Measured(linear.tokens, [s - now["host"] for s in linear.seconds])
        per_request = max(batch_time.per_request - now["per_stream"], 0.0)
        shape = dataclasses.replace(
            batch_time, linear=bare, per_request=per_request, uncertainty=None
        )
        return Adjustment(**factors, **then).of(shape)

    def as_dict(self) -> dict[str, Any]:
        """Return it as a batch-time file holds it."""
        rows = [[round(float(cell), 8) for cell in row] for row in self.covariance]
        return {"values": dict(self.values), "covariance": rows}
