"""Routers that look at several things, as functions of what they know.

``replicas`` is a list of `Seen`, ``asked`` the request as `Asked`; each returns a place in the
list, of equals the first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Seen:
    """A replica as its router sees it, now or at the last report.

    What it has computed of a prompt, its speed and what was sent there are known at once.
    """

    requests: int  # unfinished
    waiting: int  # not admitted yet; at a server of the paper all
    tokens: int  # that have not gone into a batch
    work: int
    memory: float  # share of the KV memory in use
    cached: int  # tokens of the prompt that it has computed before
    speed: float  # tokens per tick of a full batch
    sent: int  # requests sent since the last report; 0 where there are none

    @property
    def load(self) -> int:
        """Unfinished requests, with those sent since the last report."""
        return self.requests + self.sent


@dataclass(frozen=True)
class Asked:
    """The request."""

    prompt: int
    home: int | None  # the replica that the first request of its job here went to
    coin: int  # 32 random bits
    turn: int  # requests that the pool has got before


Router: TypeAlias = Callable[[Sequence[Seen], Asked, Sequence[float]], int]


def _first(values: Sequence[object]) -> int:
    """Return the place of the least value, of equals the first."""
    return min(range(len(values)), key=values.__getitem__)  # type: ignore[arg-type]


def memory(replicas: Sequence[Seen], asked: Asked, params: Sequence[float]) -> int:
    """Least KV memory in use, then fewest requests."""
    return _first([(seen.memory, seen.requests) for seen in replicas])


def fastest(replicas: Sequence[Seen], asked: Asked, params: Sequence[float]) -> int:
    """Least time for what is there and this prompt."""
    return _first([(seen.tokens + asked.prompt) / seen.speed for seen in replicas])


def power_of_two_tokens(replicas: Sequence[Seen], asked: Asked, params: Sequence[float]) -> int:
    """Of two drawn at random the one with fewer tokens."""
    count = len(replicas)
    first, second = ((asked.coin & 0xFFFF) * count) >> 16, ((asked.coin >> 16) * (count - 1)) >> 16
    second += second >= first
    return second if replicas[second].tokens < replicas[first].tokens else first


def _uneven(most: int, least: int, spill: float, times: float) -> bool:
    return most > least + spill and most > times * least


def session(replicas: Sequence[Seen], asked: Asked, params: Sequence[float]) -> int:
    """Where the job is at home, unless that is too full."""
    loads = [seen.load for seen in replicas]
    emptiest = _first(loads)
    if asked.home is None or _uneven(loads[asked.home], loads[emptiest], *params):
        return emptiest
    return asked.home


def prefix(replicas: Sequence[Seen], asked: Asked, params: Sequence[float]) -> int:
    """Where most of the prompt is computed, if that is enough and nobody is too full."""
    match, spill, times = params
    loads = [seen.load for seen in replicas]
    best = _first([-seen.cached for seen in replicas])
    enough = replicas[best].cached > 0 and replicas[best].cached >= match * asked.prompt
    if enough and not _uneven(max(loads), min(loads), spill, times):
        return best
    return _first(loads)


def scored(replicas: Sequence[Seen], asked: Asked, params: Sequence[float]) -> int:
    """The highest weighted sum of what is computed, how short the queue is and what memory is
    free.
    """
    of_cached, of_queue, of_memory = params
    waiting = [seen.waiting for seen in replicas]
    spread = max(waiting) - min(waiting)
    scores = []
    for seen in replicas:
        cached = seen.cached / asked.prompt if asked.prompt else 0.0
        queue = (max(waiting) - seen.waiting) / spread if spread else 1.0
        scores.append(of_cached * cached + of_queue * queue + of_memory * (1.0 - seen.memory))
    return _first([-score for score in scores])


ROUTERS: dict[str, Router] = {
    "power-of-two-tokens": power_of_two_tokens,
    "memory": memory,
    "fastest": fastest,
    "session": session,
    "prefix": prefix,
    "scored": scored,
}
