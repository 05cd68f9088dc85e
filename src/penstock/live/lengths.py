"""How long the requests are that come, while many of them have not finished yet.

Prompts are counted when their first token is out, whatever becomes of the request. Outputs are seen
whole only where they end, and those that end first are short. But all tokens that come out are
counted: of the requests that began in a window, the tokens that came out in it, and those still to
come. In a queue that goes on, a request in service has on average as many tokens before it as
behind it, so what is still to come is taken for what has come out of those that run:

    mean output = (change of tokens out + change of tokens of those in flight) / first tokens.
"""

import dataclasses
import math
from collections.abc import Sequence

from penstock.live.history import History, Interval
from penstock.live.pace import tokens_in_flight
from penstock.live.reading import Z95, Estimate

_WINDOW = 3_000.0  # requests that lengths are taken from, the latest
_FEWEST = 20.0  # requests that have finished, for their lengths to say anything
_UNKNOWN_SPREAD = 1.0


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Mean tokens of the requests that come, and what they were taken from."""

    # Mean tokens; the prompt with what a cache held.
    prompt: Estimate
    output: Estimate
    # Standard deviation over mean.
    prompt_spread: float
    output_spread: float
    cached_share: float | None  # of prompt tokens, that the prefix cache held
    requests: float  # from which they were taken

    @property
    def computed(self) -> float:
        """Mean tokens of a prompt that are processed; one at least."""
        return max(self.prompt.value * (1 - (self.cached_share or 0.0)), 1.0)


def lengths(history: History) -> Lengths | None:
    """Return the lengths of what comes to an engine, None while too few have finished."""
    last = history.last
    if last is None or (last.finished or 0.0) < _FEWEST:
        return None
    sums = _Sums.of(_latest(history.intervals))
    if sums.first < max(_FEWEST, last.running or 0.0):
        sums = _Sums.of_life(history)  # a short watch: what the engine has counted since it began
    if sums.first < _FEWEST or not sums.prompt > 0 or not sums.output > 0:
        return None
    prompt = sums.prompt / sums.first
    output = max(sums.output / sums.first, 1.0)
    spreads = [last.prompt_spread, last.output_spread]
    known = [_UNKNOWN_SPREAD if spread is None else spread for spread in spreads]
    return Lengths(
        prompt=_around(prompt, known[0], sums.first),
        output=_around(output, known[1], sums.first),
        prompt_spread=known[0],
        output_spread=known[1],
        cached_share=None if sums.cached is None else min(sums.cached / sums.prompt, 1.0),
        requests=sums.first,
    )


@dataclasses.dataclass(frozen=True)
class _Sums:
    """Requests whose first token came out, tokens of their prompts and of their outputs."""

    first: float
    prompt: float
    output: float
    cached: float | None

    @classmethod
    def of(cls, intervals: Sequence[Interval]) -> "_Sums":
        """Add up what happened in intervals."""
        # An interval counts with all of its counters or not at all: requests without their tokens
        # would make lengths, and the load with them, too small.
        known = [each for each in intervals if _is_whole(each)]
        cached = [each.change("cached_tokens") for each in known]
        return cls(
            sum(each.change("first_tokens") or 0.0 for each in known),
            sum(each.change("prompt_tokens") or 0.0 for each in known),
            sum((each.change("output_tokens") or 0.0) + _growth(each) for each in known),
            None if None in cached else sum(value or 0.0 for value in cached),
        )

    @classmethod
    def of_life(cls, history: History) -> "_Sums":
        """Return what an engine has counted since it began."""
        last = history.last
        assert last is not None
        return cls(
            last.first_tokens or 0.0,
            last.prompt_tokens or 0.0,
            (last.output_tokens or 0.0) + (tokens_in_flight(last) or 0.0),
            last.cached_tokens,
        )


def _latest(intervals: Sequence[Interval]) -> Sequence[Interval]:
    """Return the last intervals, with as many requests as lengths are taken from."""
    requests = 0.0
    for index in range(len(intervals) - 1, -1, -1):
        requests += intervals[index].change("first_tokens") or 0.0
        if requests >= _WINDOW:
            return intervals[index:]
    return intervals


def _is_whole(interval: Interval) -> bool:
    """Return whether requests and their tokens are known."""
    counted = ("first_tokens", "prompt_tokens", "output_tokens")
    return all(interval.change(name) is not None for name in counted)


def _growth(interval: Interval) -> float:
    """Return by how much the tokens of those in flight grew."""
    before, after = tokens_in_flight(interval.begin), tokens_in_flight(interval.end)
    if before is None or after is None:
        return 0.0
    return after - before


def _around(mean: float, spread: float, requests: float) -> Estimate:
    reach = Z95 * spread * mean / math.sqrt(requests)
    return Estimate(mean, max(mean - reach, 0.0), mean + reach)
