"""Measure the batch times of a real engine: requests planned so that all kinds come about.

An episode begins with requests that are to decode side by side, with like contexts. While they
decode, prompts come one by one. So there are batches of prompts alone, of decodes alone, and mixed
ones, full and not. How many decode, how long their contexts are and how long the prompts are is
drawn from a low-discrepancy sequence, on log scales, so that any number of episodes covers what was
asked for evenly and in no order.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
from scipy.stats import qmc

from penstock import checks
from penstock.errors import InputError
from penstock.measuring.profiling.driving import (
    Batches,
    Episode,
    joined,
    run_episode,
    without_garbage_collection,
)
from penstock.measuring.profiling.engine import RealEngine
from penstock.simulation.progress import Progress

_PROMPTS = 6
_STEPS_BETWEEN = 4
_PREFILL_BATCHES = 64  # no episode takes more full batches to get ready
_EACH = 256  # of the warm-up: each token load up to this, and as many beyond


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What to visit.

    Parameters
    ----------
    token_budget
        Most tokens in a batch.
    decodes
        Most requests that decode side by side.
    prompt
        Longest prompt, tokens.
    context
        Most tokens before a decode.
    seed
        For the order and for what is drawn.
    """

    token_budget: int
    decodes: int
    prompt: int
    context: int
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("token_budget", "decodes", "prompt", "context"):
            value = getattr(self, name)
            reason = "batches of no size take no time"
            checks.whole(f"the sweep's {name}", value, 1, 2**20, "", reason)
        checks.whole("seed", self.seed, 0, 2**63, "", "take any")

    def episodes(self) -> Iterator[Episode]:
        """Yield episodes without end."""
        sequence = qmc.Halton(d=2 + _PROMPTS, rng=np.random.default_rng(self.seed))
        rng = np.random.default_rng((self.seed, 1))
        while True:
            (point,) = sequence.random(1)
            decodes = int((self.decodes + 1) ** point[0])
            # contexts about a mean: their sum varies between episodes, not only their number
            middle = min(
                self.context ** point[1], _PREFILL_BATCHES * self.token_budget / max(decodes, 1)
            )
            contexts = (
                np.rint(middle * rng.uniform(0.6, 1.4, decodes)).clip(1, self.context).astype(int)
            )
            prompts = np.rint(self.prompt ** point[2:]).astype(int)
            ready = int(np.ceil(contexts.sum() / max(self.token_budget - decodes / 2, 1)))
            steps = _STEPS_BETWEEN * (_PROMPTS + 1)
            requests = [(0, int(before), steps) for before in contexts]
            requests += [
                (ready + _STEPS_BETWEEN * (i + 1), int(n), 1) for i, n in enumerate(prompts)
            ]
            yield Episode(tuple(requests))

    def warm_up(self) -> Iterator[Episode]:
        """Yield episodes of each token load and number of decodes: first times are slow."""
        few = min(self.token_budget, _EACH)
        large = np.linspace(few, self.token_budget, _EACH).astype(int)
        for tokens in np.unique([*range(1, few + 1), *large]).tolist():
            yield Episode(((0, tokens, 1),))
        most = min(self.decodes, self.token_budget)
        yield Episode(tuple((0, 1, 2 + i) for i in range(most)))


def measure(
    engine: RealEngine,
    sweep: Sweep,
    seconds: float,
    *,
    warm: bool = True,
    progress: Progress | None = None,
) -> Batches:
    """Run episodes until they have taken so many seconds of batches.

    Raises
    ------
    InputError
        If the engine does not take requests as long as the sweep wants.
    """
    checks.number("seconds", seconds, 0.01, 86_400, "s", "so long batches are measured")
    longest = max(sweep.prompt + 1, sweep.context + _STEPS_BETWEEN * (_PROMPTS + 1))
    if longest > engine.longest:
        raise InputError(
            f"the sweep has requests of {longest:,} tokens, but the engine takes "
            f"{engine.longest:,}; lower the longest prompt or context"
        )
    with without_garbage_collection():
        if warm:
            for episode in sweep.warm_up():
                run_episode(engine, episode)
        parts: list[Batches] = []
        done = 0.0
        for episode in sweep.episodes():
            parts.append(run_episode(engine, episode))
            done += float(parts[-1].seconds.sum())
            if progress is not None:
                progress(min(done / seconds, 1.0))
            if done >= seconds:
                break
    return joined(parts)
