"""Batch times on a machine that is slower or faster, or whose host takes longer."""

import dataclasses
from typing import Any, overload

from penstock import checks
from penstock.errors import InputError
from penstock.inputs.arrays import Floats
from penstock.system.batch_time import (
    COSTS,
    Affine,
    BatchTime,
    Composition,
    Hinge,
    PiecewiseConstant,
)
from penstock.system.measured_times import Measured


@dataclasses.dataclass(frozen=True)
class _Scaled(BatchTime):
    """A model of the user's own, so many times as long."""

    model: BatchTime
    factor: float

    def _seconds(self, tokens: Floats) -> Floats:
        return self.factor * self.model._seconds(tokens)


@overload
def scaled(model: Composition, factor: float) -> Composition: ...
@overload
def scaled(model: BatchTime, factor: float) -> BatchTime: ...
def scaled(model: BatchTime, factor: float) -> BatchTime:
    """Return batch times times a factor, as of another machine, without what is known of them."""
    match model:
        case PiecewiseConstant() | Affine() | Hinge():
            return dataclasses.replace(model, c=model.c * factor, a=model.a * factor)
        case Measured():
            return dataclasses.replace(
                model, seconds=[seconds * factor for seconds in model.seconds]
            )
        case Composition():
            known = {name: getattr(model, name) for name in COSTS}
            costs: dict[str, Any] = {n: s if s is None else s * factor for n, s in known.items()}
            linear = scaled(model.linear, factor)
            return dataclasses.replace(model, linear=linear, uncertainty=None, **costs)
        case _:
            return _Scaled(model, factor)


def with_host(model: BatchTime, seconds: float) -> BatchTime:
    """Return batch times so many seconds longer: the host's between two batches."""
    match model:
        case PiecewiseConstant() | Affine() | Hinge():
            return dataclasses.replace(model, c=model.c + seconds)
        case Measured():
            return dataclasses.replace(model, seconds=[each + seconds for each in model.seconds])
        case Composition():
            return dataclasses.replace(model, linear=with_host(model.linear, seconds))
        case _:
            raise InputError(
                f"{checks.shown(model)} is a model of your own, to which you alone can add the "
                "host's time; give another"
            )
