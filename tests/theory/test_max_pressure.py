"""Steps of the proof that max-pressure is stable inside the exact region (docs/theory/open-problem.md), on random
states of small systems.
"""

import itertools
from typing import NamedTuple

import numpy as np
import pytest

from penstock.inputs.arrays import Floats
from penstock.theory.exact_region import solve

MOST_DECODES = 4


class System(NamedTuple):
    """A small server and its lengths."""

    seconds: Floats
    slots: int
    chances: Floats
    decodes: float

    @classmethod
    def draw(cls, rng: np.random.Generator) -> "System":
        longest, budget = int(rng.integers(1, 6)), int(rng.integers(1, 6))
        seconds = np.append(0.0, np.sort(rng.uniform(0.1, 3, budget)))
        chances = np.append(0.0, rng.dirichlet(np.ones(longest)))
        return cls(seconds, int(rng.integers(1, 4)), chances, float(rng.uniform(0.5, MOST_DECODES)))

    def batches(self) -> list[tuple[tuple[tuple[int, int], ...], int]]:
        """Return all batches: pieces as (tokens left, tokens of the piece), and decodes."""
        longest, budget = self.chances.size - 1, self.seconds.size - 1
        pieces = [(left, size) for left in range(1, longest + 1) for size in range(1, min(left, budget) + 1)]
        return [
            (chosen, beside)
            for places in range(self.slots + 1)
            for chosen in itertools.combinations_with_replacement(pieces, places)
            for beside in range(min(self.slots - places, budget - sum(size for _, size in chosen)) + 1)
            if chosen or beside
        ]


def per_second(system: System, waiting: Floats, left: float, batch: tuple[tuple[tuple[int, int], ...], int]) -> float:
    """Return the pressure of a batch over its time; ``waiting`` by tokens left, ``left`` decodes."""
    chosen, beside = batch
    weight = 1 / system.decodes**2
    ahead = np.append(weight * system.decodes * left, waiting[1:])  # where a piece sends its prompt
    pressure = sum(waiting[before] - ahead[before - size] for before, size in chosen) + beside * weight * left
    return float(pressure / system.seconds[sum(size for _, size in chosen) + beside])


@pytest.mark.parametrize("seed", range(40))
def test_what_can_be_formed_has_nearly_the_pressure_of_all_and_that_has_what_slack_promises(seed: int) -> None:
    rng = np.random.default_rng([46, 2, seed])
    system = System.draw(rng)
    longest, budget, slots = system.chances.size - 1, system.seconds.size - 1, system.slots
    batches, weight = system.batches(), 1 / system.decodes**2
    shortest, slowest = system.seconds[1], system.seconds[-1]
    lost = slots * max(slots, weight * slots * MOST_DECODES)
    rate = solve(*system, gap=1e-9).rate
    load = rng.uniform(0.3, 0.99) * rate
    times = sum(-(-left // budget) + MOST_DECODES for left in range(1, longest + 1)) + 1
    slack = (1 - load / rate) / (times * slowest)
    for _ in range(50):
        waiting = np.append(0.0, rng.integers(0, int(10 ** rng.uniform(0, 3)) + 1, longest)).astype(float)
        decoding = int(rng.integers(0, int(10 ** rng.uniform(0, 3)) + 1))
        left = decoding * float(rng.uniform(0.5, 1) * system.decodes)
        pressures = [per_second(system, waiting, left, batch) for batch in batches]
        here = [
            pressure
            for pressure, (chosen, beside) in zip(pressures, batches, strict=True)
            if beside <= decoding
            and all(sum(before == each for before, _ in chosen) <= waiting[each] for each, _ in chosen)
        ]
        if not here:
            assert not waiting.any()
            assert decoding == 0
            continue
        assert max(here) >= max(0.0, max(pressures) - lost / shortest) - 1e-9  # step 2
        promised = (load * system.chances + slack) @ np.append(0.0, waiting[1:]) + weight * slack * left
        assert max(pressures) >= promised - 1e-9 * (1 + promised)  # step 4
