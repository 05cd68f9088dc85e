"""How long clients wait, and whether they come again when they were refused or gave up."""

import dataclasses
import functools
from typing import Annotated

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError
from penstock.fields import Checked, Range
from penstock.words import counted
from penstock.workload.jobs import Jobs
from penstock.workload.lengths import Length

_LONGEST_MS = 1e9
_RETRIES = Range(0, 100, "", "a client that comes for ever is lost to nobody; give how often")
_BACKOFF = Range(1e-3, 3.6e6, "ms", "a client comes again after some time, within an hour")
_FACTOR = Range(1, 100, "", "each back-off is so many times the one before it")
_JITTER = Range(0, 1, "", "it is the share of a back-off that chance may take off")


@dataclasses.dataclass(frozen=True)
class Patience(Checked):
    """How long the client of a request waits, and how often it comes again.

    A client that leaves gets nothing: neither its times nor its tokens count among those of served
    requests. One that comes again sends the same request anew, with the same patience.

    Parameters
    ----------
    ttft_ms
        Milliseconds after which it leaves if it has no first token: a number, or a distribution of
        lengths; None: it waits.
    e2e_ms
        Milliseconds after which it leaves if it has not all of the output.
    retries
        How often it comes again after it was refused or left.
    backoff_ms
        Milliseconds until it comes for the first time again.
    factor
        How many times the last one each further back-off is.
    longest_ms
        Milliseconds beyond which back-offs grow no more.
    jitter
        Share of each back-off that chance may take off, evenly.
    """

    ttft_ms: float | Length | None = None
    e2e_ms: float | Length | None = None
    retries: Annotated[int, _RETRIES] = 0
    backoff_ms: Annotated[float, _BACKOFF] = 1000.0
    factor: Annotated[float, _FACTOR] = 2.0
    longest_ms: Annotated[float, _BACKOFF] = 60_000.0
    jitter: Annotated[float, _JITTER] = 0.0

    def settle(self) -> None:
        """Refuse clients who wait for no time, or of whom nothing is said."""
        for name in ("ttft_ms", "e2e_ms"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Length):
                why = "who waits for no time is never served; leave it out for no limit"
                checks.number(f"the patience {name}", value, 1e-3, _LONGEST_MS, "ms", why)
        if self.retries == 0:
            for name in ("backoff_ms", "factor", "longest_ms", "jitter"):
                if getattr(self, name) != getattr(type(self), name):
                    raise InputError(
                        f"{name} is {getattr(self, name):g}, but nobody comes again, so it says "
                        "nothing; give retries, or leave it out"
                    )
        if self.longest_ms < self.backoff_ms:
            raise InputError(
                f"longest_ms is {self.longest_ms:g}, but the first back-off is {self.backoff_ms:g} "
                "ms; raise longest_ms, or lower backoff_ms"
            )
        if not self.ends and self.retries == 0:
            raise InputError(
                "a patience without ttft_ms, e2e_ms or retries says nothing; give one of them, or "
                "leave it out"
            )

    @property
    def words(self) -> str:
        """How long clients wait, in words."""
        waits = {"a first token": self.ttft_ms, "the whole answer": self.e2e_ms}
        parts = []
        for what, ms in waits.items():
            if ms is not None:
                mean, about = (ms.mean, "about ") if isinstance(ms, Length) else (ms, "")
                parts.append(f"{about}{mean / 1e3:,.4g} s without {what}")
        words = [f"clients leave after {' or '.join(parts)}"] if parts else []
        if self.retries:
            first, last = self.backoffs_s[0], self.backoffs_s[-1]
            to = f" to {last:,.3g}" if last > first else ""
            times = counted(self.retries, "time")
            words.append(f"clients come again up to {times}, after {first:,.3g}{to} s")
        return ", ".join(words)

    @property
    def once(self) -> "Patience | None":
        """The patience of clients who do not come again."""
        return Patience(self.ttft_ms, self.e2e_ms) if self.ends else None

    @property
    def ends(self) -> bool:
        """Whether clients leave."""
        return self.ttft_ms is not None or self.e2e_ms is not None

    @property
    def backoffs_s(self) -> list[float]:
        """Seconds after which a client comes again, try by try, before chance takes some off."""
        waits = (self.backoff_ms * self.factor**n for n in range(self.retries))
        return [min(wait, self.longest_ms) / 1e3 for wait in waits]


@dataclasses.dataclass(frozen=True)
class Clients:
    """Clients who have some patience, and what it is drawn from."""

    patience: Patience | None
    seed: int

    @functools.cached_property
    def _streams(self) -> list[np.random.Generator]:
        spawned = np.random.SeedSequence((self.seed, 4)).spawn(3)
        return [np.random.default_rng(each) for each in spawned]

    def of(self, jobs: Jobs) -> Jobs:
        """Return jobs that they send."""
        patience = self.patience
        if patience is None:
            return jobs
        ttft, e2e, luck = self._streams
        count = jobs.requests
        return dataclasses.replace(
            jobs,
            ttft_limit_s=_seconds(patience.ttft_ms, ttft, count),
            e2e_limit_s=_seconds(patience.e2e_ms, e2e, count),
            luck=luck.integers(0, 2**32, count, np.uint32) if patience.retries else None,
        )


def _seconds(
    ms: float | Length | None, rng: np.random.Generator, count: int
) -> npt.NDArray[np.float64] | None:
    """Return how long each client waits."""
    if ms is None:
        return None
    if isinstance(ms, Length):
        return ms.sample(rng, count) / 1e3
    return np.full(count, ms / 1e3)
