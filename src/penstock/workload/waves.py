"""What is under way while jobs are unfolded: tokens that make their next visit, and open forks."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from penstock.inputs.arrays import Ints


class Context(NamedTuple):
    """What requests go on with."""

    tokens: Ints
    holder: Ints  # the request whose replica has it in memory, -1 if there is none
    held: Ints  # how many tokens of it

    def of(self, places: Ints) -> "Context":
        """Return that of some of them, by their places."""
        return Context(self.tokens[places], self.holder[places], self.held[places])


class Wave(NamedTuple):
    """The tokens that make their next visit, by job; what the plan has no use for is None."""

    job: Ints
    stage: Ints
    pending: Ints
    frame: Ints | None  # innermost open fork, -1 outside of all
    context: Context | None
    released_by: Ints | None  # prompt tokens of the request that releases it

    def of(self, places: Ints) -> "Wave":
        """Return some of them, by their places."""
        context, optional = self.context, (self.frame, self.released_by)
        frame, released_by = (None if each is None else each[places] for each in optional)
        return Wave(
            self.job[places], self.stage[places], self.pending[places], frame,
            None if context is None else context.of(places), released_by,
        )  # fmt: skip


NONE = np.empty(0, np.int64)


class Frames:
    """Forks whose branches are under way, or were; a column of each, a place for each fork.

    up: the frame around it. size, left: its branches, and those yet to come to the join. forked,
    tokens: the context at the fork, and with what branches added. holder, held: of the branch that
    came first. join: the request that waits for it.
    """

    columns = ("up", "size", "left", "forked", "tokens", "holder", "held", "join")

    def __init__(self) -> None:
        self.up = self.size = self.left = self.forked = self.tokens = self.holder = self.held = (
            self.join
        ) = NONE

    def opened(self, up: Ints, size: Ints, context: Ints) -> Ints:
        """Add frames; return their places."""
        none = np.full(size.size, -1)
        for name, new in zip(
            self.columns, (up, size, size, context, context, none, none, none), strict=True
        ):
            setattr(self, name, np.concatenate([getattr(self, name), new]))
        return np.arange(self.up.size - size.size, self.up.size)


def by_stage(stage: Ints) -> Iterator[tuple[int, slice | Ints]]:
    """Yield each stage that tokens are at, and their places."""
    if stage.size and (stage == stage[0]).all():
        yield int(stage[0]), slice(None)
        return
    for which in np.flatnonzero(np.bincount(stage)).tolist():
        yield which, np.flatnonzero(stage == which)


def rank_in_job(job: Ints) -> Ints:
    """Return how many tokens of the same job stand before each."""
    starts = np.flatnonzero(np.diff(job, prepend=-1))
    rank: Ints = np.arange(job.size) - np.repeat(starts, np.diff(starts, append=job.size))
    return rank
