"""Follow requests through an engine's iterations, of which only counts are logged.

Running requests come first and in order, so a prompt that a full batch has cut goes on in the next
one, and decodes that are missing in a batch have ended. Which of them is not logged: the oldest.
"""

import dataclasses
import functools

import numpy as np
import numpy.typing as npt

from penstock.measuring.fitting.batches import Array

_HELD = 0.5  # of the tokens of a prompt, from which on they are in memory already


@dataclasses.dataclass(frozen=True, eq=False)
class Iterations:
    """Iterations in the order of the log, by engine; each array has the shape (iterations,)."""

    seconds: Array
    prompts: Array  # requests in prefill
    new: Array  # tokens of them
    decodes: Array  # requests that decode
    out: Array  # tokens of them
    # Share of the KV cache in use after the iteration, without requests that it ended; NaN where it
    # is not logged.
    usage: Array
    joins: npt.NDArray[np.bool_]  # the line before is of the iteration before, of the same engine

    @functools.cached_property
    def starts(self) -> npt.NDArray[np.bool_]:
        """Whether an iteration finds an engine that was idle: nothing decodes, nothing is held."""
        empty = np.concatenate([[True], ~(self.usage[:-1] > 0)])
        starts: npt.NDArray[np.bool_] = (self.decodes == 0) & (empty | ~self.joins)
        return starts

    @property
    def busy(self) -> list[tuple[int, int]]:
        """Ranges of iterations between which the engine was never idle."""
        edges = np.flatnonzero(self.starts | ~self.joins).tolist()
        return list(zip(edges, [*edges[1:], self.seconds.size], strict=True))

    def ahead(self, capacity: float) -> bool:
        """Tell whether what is in use holds the next batch's prompts: that is composed ahead."""
        # Looked at: iterations that begin and end no prompt and no decode, before one with prompts:
        # they need no more memory of their own.
        grows = np.diff(self.usage)[:-1] * capacity
        steady = (self.new[1:-1] == 0) & (self.decodes[2:] == self.decodes[1:-1])
        chosen = steady & (self.new[2:] > 0) & self.joins[1:-1] & self.joins[2:]
        if not chosen.any():
            return False
        return bool(np.median(grows[chosen] / self.new[2:][chosen]) > _HELD)


@dataclasses.dataclass(frozen=True, eq=False)
class Followed:
    """What requests that were followed held."""

    tokens: Array  # shape (iterations,), tokens before all decodes of each
    lengths: list[Array]  # of each iteration the tokens of every request after it

    def blocks(self, block: float) -> float:
        """Return the sum over iterations of the KV blocks that the requests held."""
        return float(sum(np.ceil(lengths / block).sum() for lengths in self.lengths))


@dataclasses.dataclass(eq=False)  # two of equal length are two
class _Request:
    tokens: float = 0.0
    decodes: bool = False


def followed_context(told: Iterations) -> Followed | None:
    """Return the tokens before each iteration's decodes; None where they cannot be followed."""
    # So where the log begins with a busy engine or is cut, and where decodes bring several tokens.
    whole = (told.starts | told.joins).all() and (told.out == told.decodes).all()
    if not whole or not told.seconds.size:
        return None
    budget = float((told.new + told.out).max())
    running: list[_Request] = []
    tokens = np.zeros(told.seconds.size)
    lengths = []
    for row in range(told.seconds.size):
        if told.starts[row]:
            running = []
        decodes, prompts = int(told.decodes[row]), int(told.prompts[row])
        cut = [request for request in running if not request.decodes]
        if len(cut) > prompts or sum(request.decodes for request in running) < decodes:
            for request in cut:  # it had just ended with the full batch
                request.decodes = True
            cut = []
        ended = sum(request.decodes for request in running) - decodes
        if ended < 0:
            return None
        running = _without_oldest(running, ended)
        for request in running:
            if request.decodes:
                tokens[row] += request.tokens
                request.tokens += 1
        cut += [_Request() for _ in range(prompts - len(cut))]
        for request in cut:
            request.tokens += told.new[row] / prompts
            request.decodes = True
        if cut and told.new[row] + told.out[row] >= budget:
            cut[-1].decodes = False
        running += [request for request in cut if request not in running]
        lengths.append(np.array([request.tokens for request in running]))
    return Followed(tokens, lengths)


def _without_oldest(running: list[_Request], ended: int) -> list[_Request]:
    """Return the requests but for so many that decode, the oldest."""
    left = []
    for request in running:
        if request.decodes and ended:
            ended -= 1
        else:
            left.append(request)
    return left
