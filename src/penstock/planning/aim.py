"""What a deployment has to do: which targets it meets, how surely, by how many requests."""

import dataclasses
from collections.abc import Sequence
from typing import Literal, Self

from penstock import checks
from penstock.checking.batch_means import LEAST_REQUESTS, checked_confidence
from penstock.checking.targets import Estimate, Judgement, Target, parsed_targets
from penstock.checking.verdict import Outcome
from penstock.errors import InputError, nearest

Objective = Literal["cost", "goodput"]
OBJECTIVES: tuple[Objective, ...] = ("cost", "goodput")

REQUESTS = 5_000
"""Of one replica, to begin with."""

MOST_TIMES_LONGER = 16
"""How many times longer a run becomes while it decides nothing."""

MOST_ROWS = 20_000_000
"""Requests of a run at most, each of which keeps a row in memory."""


@dataclasses.dataclass(frozen=True)
class Aim:
    """What a deployment has to do."""

    targets: tuple[Target, ...]
    # `cost`: meet every target; `goodput`: let a share stay within all limits.
    objective: Objective = "cost"
    # That share: of requests whose own TTFT, mean time per output token and E2E are within the
    # limits given, whatever the statistic of the target.
    goodput: float = 0.99
    confidence: float = 0.95  # how often an interval holds its value, whenever the simulation stops
    # To begin with, and at most, on the replica that is simulated, or in a network on average on
    # each (fewer where all replicas together would have more than four million).
    requests: int = REQUESTS
    most_requests: int = REQUESTS * MOST_TIMES_LONGER

    @classmethod
    def of(
        cls,
        targets: Sequence[Target | str],
        *,
        objective: str = "cost",
        goodput: float = 0.99,
        confidence: float = 0.95,
        requests: int | None = None,
        most_requests: int | None = None,
    ) -> Self:
        """Check and return an aim; targets may be text such as ``ttft_p99<2s``."""
        if isinstance(targets, str) or not targets:
            raise InputError(
                "no target is given, so any stable fleet would do; give a list such as "
                "['ttft_p99<2s']"
            )
        limits = tuple(parsed_targets(targets))
        names = [target.name for target in limits]
        twice = next((name for index, name in enumerate(names) if name in names[:index]), None)
        if twice is not None:
            raise InputError(f"two targets limit {twice}; keep the lower one")
        if objective not in OBJECTIVES:
            raise InputError(
                f"unknown objective {checks.shown(objective)}{nearest(str(objective), OBJECTIVES)}"
            )
        share = checks.number(
            "the goodput", goodput, 0.01, 0.9999, "", "it is a share of the requests; 0.99 is 99%"
        )
        sure = checked_confidence(confidence)
        first = REQUESTS if requests is None else requests
        reason = "fewer give no interval, and each keeps a row in memory"
        first = checks.whole("requests", first, LEAST_REQUESTS, MOST_ROWS, "", reason)
        most = (
            min(MOST_TIMES_LONGER * max(first, REQUESTS), MOST_ROWS)
            if most_requests is None
            else most_requests
        )
        reason = "the first run already has `requests`, and each keeps a row in memory"
        most = checks.whole("most_requests", most, first, MOST_ROWS, "", reason)
        return cls(limits, objective, share, sure, first, most)

    @property
    def looks(self) -> tuple[int, ...]:
        """Requests of each look."""
        sizes = [self.requests]
        while sizes[-1] < self.most_requests:
            sizes.append(min(2 * sizes[-1], self.most_requests))
        return tuple(sizes)

    def judge(
        self, outcome: Outcome, judgements: Sequence[Judgement], goodput: Estimate
    ) -> Judgement:
        """Return whether a deployment does what it has to."""
        if outcome == "unstable":
            return "missed"
        answer = together(judgements)
        if self.objective == "goodput":
            answer = "undecided"
            if goodput.low is not None and goodput.low >= self.goodput:
                answer = "met"
            elif goodput.high is not None and goodput.high < self.goodput:
                answer = "missed"
        return "undecided" if answer == "met" and outcome != "stable" else answer


def together(judgements: Sequence[Judgement]) -> Judgement:
    """Return the judgement of several targets together."""
    return next((word for word in ("missed", "undecided") if word in judgements), "met")
