"""The engine with the highest load, where requests are not shared evenly: a sum would hide it."""

import dataclasses
import math
from collections.abc import Sequence

from penstock.live.reading import Reading
from penstock.live.state import State

_SIGMAS = 4.0
"""Standard deviations of an even share beyond which chance does not explain it, at all looks."""
_MATERIAL = 1.1
"""Times the load of all together; below, it makes no difference."""


def worst_of(states: Sequence[State], readings: Sequence[Reading], together: Reading) -> int | None:
    """Return the place of the engine that a verdict on all is about; None: they share evenly."""
    # ``together`` is the reading of all of them, as if each had the mean.
    if together.verdict == "unstable":  # however requests are shared
        return None
    came = max(sum(state.arrivals.requests for state in states), 1.0)
    dispersion = max(state.arrivals.dispersion for state in states)
    chance = _SIGMAS * math.sqrt(dispersion * (len(states) - 1) / came)
    places = []
    for place, reading in enumerate(readings):
        if reading.load is None:
            continue
        even = 0.0 if together.load is None else together.load.value
        is_above = reading.load.value > even * max(1 + chance, _MATERIAL)
        if together.load is None or reading.verdict == "unstable" or is_above:
            places.append(place)

    def how_bad(place: int) -> tuple[bool, float]:
        load = readings[place].load
        return readings[place].verdict == "unstable", 0.0 if load is None else load.value

    return max(places, key=how_bad, default=None)


def with_worst(together: Reading, worst: Reading, target_load: float) -> Reading:
    """Return what follows for all, with load, verdict and times of the worst of them."""
    # ``worst`` is at its part of alpha; replicas are for ``target_load``, if sharing stays as it
    # is.
    assert worst.load is not None
    ends = (worst.load.value, worst.load.low, worst.load.high)
    needed = [max(math.ceil(together.engines * load / target_load), 1) for load in ends]
    even = "not known"
    if together.load is not None:
        even = f"{together.load.value:.3g}"
    front = f"of {worst.engine}, the worst of {together.engines} engines (load of all: {even}),"
    note = (
        f"requests are not shared evenly: load, margin, verdict, times and replicas are those of "
        f"{worst.engine}, if they stay shared so; an even share would be a load of {even}"
    )
    return dataclasses.replace(
        together,
        worst=worst.engine,
        even_load=together.load,
        verdict=worst.verdict,
        reason=f"{front} {worst.reason}",
        loads=worst.loads,
        load=worst.load,
        margin=worst.margin,
        binding=worst.binding,
        drift=worst.drift,
        until=worst.until,
        drain_s=worst.drain_s,
        watch_s=worst.watch_s,
        replicas=needed[0],
        replicas_low=needed[1],
        replicas_high=needed[2],
        notes=(note, *together.notes),
    )
