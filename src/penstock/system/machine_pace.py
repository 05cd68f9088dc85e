"""Batch times on a machine that is slower or faster, or whose host takes longer."""

import dataclasses

from penstock import checks
from penstock.errors import InputError
from penstock.system.batch_time import (
    COSTS,
    Affine,
    BatchTime,
    Composition,
    Hinge,
    PiecewiseConstant,
)
from penstock.system.measured_times import Measured


def scaled(model: BatchTime, factor: float) -> BatchTime:
    """Return batch times so many times as long: the same work on a machine that is slower or
    faster.

    Raises
    ------
    InputError
        If the model is one of the user's own.
    """
    match model:
        case PiecewiseConstant() | Affine() | Hinge():
            return dataclasses.replace(model, c=model.c * factor, a=model.a * factor)
        case Measured():
            return dataclasses.replace(
                model, seconds=[seconds * factor for seconds in model.seconds]
            )
        case Composition():
            costs = {name: getattr(model, name) for name in COSTS}
            costs |= dict(
                zip(("decode_attention", "mixed_attention"), model.of_decodes, strict=True)
            )
            longer = {name: cost * factor for name, cost in costs.items()}
            return dataclasses.replace(model, linear=scaled(model.linear, factor), **longer)
        case _:
            raise InputError(
                f"{checks.shown(model)} is a model of your own, which is scaled by you alone; "
                "give another"
            )


def with_host(model: BatchTime, seconds: float) -> BatchTime:
    """Return batch times that are so many seconds longer each: what the host takes from one batch
    to the next.

    Raises
    ------
    InputError
        If the model is one of the user's own.
    """
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
