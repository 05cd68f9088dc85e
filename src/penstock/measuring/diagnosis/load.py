"""What one row of `read_benchmarks` says of its load: counts, rates, waits, by Little's law."""

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.checking.batch_means import BATCHES, LEAST_REQUESTS, Batches, enough_for_bursts
from penstock.checking.targets import Estimate
from penstock.inputs.arrays import Floats
from penstock.simulation import intervals
from penstock.simulation.distribution import Distribution

CONFIDENCE = 0.95
_TICK_S = 1e-9


class Load:
    """A load that was measured: seconds, requests; what is not known of it is 0."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self.row = row
        self.closed = row["pattern"] == "closed"
        self.clients = int((row["in_flight"] if self.closed else row["client_limit"]) or 0)
        self.completed = int(row["completed"])
        self.sent = self.completed + (row["incomplete"] or 0)
        self.left_per_s = row["requests_per_s"] or self.completed / row["duration_s"]
        self.times = _times(row)  # of each request: when it was sent, its TTFT, its E2E
        self.ttft = row["ttft_mean_s"] or row["ttft_p50_s"] or 0.0
        gaps, gap = row["output_tokens"] - 1, row["itl_mean_s"] or row["tpot_mean_s"] or 0.0
        self.e2e = row["e2e_mean_s"] or row["e2e_p50_s"] or 0.0
        if not self.e2e:
            by_little = row["in_flight"] / self.left_per_s if self.closed else 0.0
            self.e2e = self.ttft + gap * gaps if self.ttft and gap else by_little
        if not gap and self.ttft and gaps > 0:
            gap = max(self.e2e - self.ttft, 0.0) / gaps
        self.sending_s = self._sending_s()  # from the first to the last
        self.sent_per_s = (self.sent - 1) / self.sending_s
        self.under_way = self.left_per_s * self.e2e
        self.waiting = self.sent_per_s * self.ttft  # for their first token
        self.wait_share = self.ttft / self.e2e if self.e2e else 0.0  # of a call, before that token
        self.wait_in_tokens = self.ttft / gap if gap else 0.0
        # calls, one after the other, that the sending lasts
        self.rounds = self.sending_s / self.e2e if self.e2e else math.inf
        if self.closed:
            self.rounds = self.completed / self.clients

    def _sending_s(self) -> float:
        row = self.row
        recorded = row["arrival_s"][-1] if row["arrival_s"] else None
        if self.closed or row["incomplete"] != 0:
            return float(recorded or row["duration_s"])
        nominal = min((self.sent - 1) / row["rate"], row["duration_s"])
        seconds = float(row["sending_s"] or recorded or nominal)
        if self.clients and self.times is None and self.e2e:  # a client that is held back is late
            seconds = max(seconds, row["duration_s"] - self.e2e)
        return max(seconds, 1e-6)

    @property
    def lockstep(self) -> bool:
        """Whether the clients of a closed loop send together: calls alike, first tokens not."""
        ttft, high, e2e, longest = (
            self.row[f"{metric}_{name}_s"] or math.nan
            for metric in ("ttft", "e2e")
            for name in ("p50", "p99")
        )
        return bool(longest - e2e < 0.3 * (high - ttft) and high > 1.5 * ttft)

    @functools.cached_property
    def estimates(self) -> dict[str, dict[str, Estimate]]:
        """Mean and p99 of TTFT and E2E with intervals, where enough requests are recorded."""
        if self.times is None:
            return {}
        removed = max(intervals.warmup(seconds)[0] for seconds in self.times[1:])
        used = (self.times[0].size - removed) // BATCHES * BATCHES
        if used < LEAST_REQUESTS:
            return {}
        of = {}
        for name, seconds in zip(("TTFT", "E2E"), self.times[1:], strict=True):
            ticks = np.round(seconds[-used:] / _TICK_S).astype(np.int64)
            batches = Batches.of([Distribution.of(part) for part in np.split(ticks, BATCHES)])
            of[name] = {
                statistic: batches.estimate(statistic, CONFIDENCE, _TICK_S, False)
                for statistic in ("mean", "p99")
            }
        return of

    @property
    def enough_for_p99(self) -> int:
        """Requests that would bound the p99, as far as this run tells; 0: it does."""
        if self.estimates:
            return enough_for_bursts(self.estimates, CONFIDENCE, self.sent) or 0
        least = 100 * intervals.bursts_needed(CONFIDENCE, BATCHES)
        return least if self.sent < least else 0

    @property
    def carried(self) -> tuple[float, float, float] | None:
        """Requests that left per second in the later half of the sending, and its interval."""
        if self.times is None:
            return None
        edges = np.linspace(self.sending_s / 2, self.sending_s, BATCHES + 1)
        counts = np.histogram(self.times[0] + self.times[2], edges)[0].astype(np.float64)
        if counts.sum() < LEAST_REQUESTS / 2:
            return None
        low, high = intervals.ratio_interval(counts, np.diff(edges), CONFIDENCE)
        return float(counts.sum() / (edges[-1] - edges[0])), max(low, 0.0), high


def grows(seconds: Floats) -> float:
    """Return the mean over the last quarter of what was sent, over that of the second."""
    quarters = np.array_split(seconds, 4)
    return float(quarters[3].mean() / max(quarters[1].mean(), 1e-9))


def _times(row: Mapping[str, Any]) -> tuple[Floats, Floats, Floats] | None:
    if not row["e2e_each_s"]:
        return None
    names = ("arrival_s", "ttft_each_s", "e2e_each_s")
    arrival, ttft, e2e = (np.array(row[name], np.float64) for name in names)
    ended = np.isfinite(ttft) & np.isfinite(e2e)
    return (arrival[ended], ttft[ended], e2e[ended]) if ended.any() else None
