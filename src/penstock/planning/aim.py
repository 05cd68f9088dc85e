"""What a deployment has to do: which targets it meets, how surely, by how many requests."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from penstock.checking.batch_means import LEAST_REQUESTS
from penstock.checking.enough_requests import MOST_TIMES_LONGER
from penstock.checking.stability import Outcome
from penstock.checking.targets import Estimate, Judgement, Target, parsed_targets
from penstock.errors import InputError
from penstock.fields import Checked, Range

REQUESTS = 5_000
"""Of one replica, to begin with."""

MOST_ROWS = 20_000_000
"""Requests of a run at most, each of which keeps a row in memory."""

_GOODPUT = Range(0.01, 0.9999, "", "it is a share of the requests; 0.99 is 99%", "the goodput")
CONFIDENCE = Range(0.5, 0.99999, "", "it is how often an interval holds its value")
_ROWS = "fewer give no interval, and each keeps a row in memory"
_REQUESTS = Range(LEAST_REQUESTS, MOST_ROWS, "", _ROWS, "requests")


@dataclasses.dataclass(frozen=True)
class Aim(Checked):
    """What a deployment has to do."""

    targets: tuple[Target, ...]
    # `cost`: meet every target; `goodput`: let a share stay within all limits.
    objective: Literal["cost", "goodput"] = "cost"
    # That share: of requests whose own TTFT, mean time per output token and E2E are within the
    # limits given, whatever the statistic of the target.
    goodput: Annotated[float, _GOODPUT] = 0.99
    # How often an interval holds its value, whenever the simulation stops.
    confidence: Annotated[float, CONFIDENCE] = 0.95
    # To begin with, and at most, on the replica that is simulated, or in a network on average on
    # each (fewer where all replicas together would have more than four million).
    requests: Annotated[int, _REQUESTS] = REQUESTS
    most_requests: int = REQUESTS * MOST_TIMES_LONGER

    def settle(self) -> None:
        """Read targets that are text; refuse none, and two of one latency."""
        if isinstance(self.targets, str) or not self.targets:
            raise InputError(
                "no target is given, so any stable fleet would do; give a list such as "
                "['ttft_p99<2s']"
            )
        targets = tuple(parsed_targets(self.targets))
        names = [target.name for target in targets]
        twice = next((name for index, name in enumerate(names) if name in names[:index]), None)
        if twice is not None:
            raise InputError(f"two targets limit {twice}; keep the lower one")
        reason = "the first run already has `requests`, and each keeps a row in memory"
        rows = Range(self.requests, MOST_ROWS, "", reason, "most_requests")
        vars(self).update(targets=targets, most_requests=rows.whole(self.most_requests))

    @classmethod
    def of(
        cls,
        targets: Sequence[Target | str],
        requests: int | None = None,
        most_requests: int | None = None,
        **asked: Any,
    ) -> Self:
        """Return an aim; targets may be text such as ``ttft_p99<2s``, what is None is as usual."""
        first = _REQUESTS.whole(REQUESTS if requests is None else requests)
        if most_requests is None:
            most_requests = min(MOST_TIMES_LONGER * max(first, REQUESTS), MOST_ROWS)
        return cls(targets, requests=first, most_requests=most_requests, **asked)  # type: ignore[arg-type]

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
