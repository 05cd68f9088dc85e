"""What an engine would have said of itself during a simulated run: scrapes at given times.

With them everything that watching says can be held against a truth that is known. Gauges and
counters are those of the last batch that ended before a scrape, as of a real engine.
"""

import dataclasses

import numpy as np

from penstock.inputs.arrays import Floats, Ints
from penstock.live.scrape import Scrape
from penstock.simulation.run import Run

_BUCKETS = np.array([1, 2, 5])[None, :] * 10.0 ** np.arange(7)[:, None]
"""Ends of the buckets of an engine's histograms of lengths: 1, 2, 5, 10, 20, 50 ... tokens."""


def simulated_scrapes(run: Run, times_s: Floats, engine: str = "simulated") -> list[Scrape]:
    """Return scrapes of a run with ``record="batches"`` at rising times since it began."""
    batches, requests = run.batches, run.requests
    ends = (batches["start_ns"] + batches["duration_ns"]).to_numpy() * 1e-9
    decodes = np.cumsum(batches["decode_tokens"].to_numpy())
    tokens = np.cumsum((batches["prefill_tokens"] + batches["decode_tokens"]).to_numpy())
    served = batches["requests"].to_numpy()
    columns = ("arrival_ns", "first_token_ns", "finish_ns", "prompt_tokens", "output_tokens")
    arrival, first, finish, prompt, output = (
        requests[name].fill_null(np.iinfo(np.int64).max).to_numpy() for name in columns
    )
    first_tokens = _Events(first, prompt)
    finished = _Events(finish, output)
    finished_prompts = _Events(finish, prompt)
    scrapes = []
    for time in times_s:
        ended = int(np.searchsorted(ends, time, side="right"))
        if ended == 0:
            scrapes.append(Scrape(engine, float(time), **dict.fromkeys(_COUNTED, 0.0)))
            continue
        now = round(float(ends[ended - 1]) * 1e9)
        present = np.searchsorted(arrival, now, side="right") - finished.count(now)
        running = min(float(served[ended - 1]), float(present))
        scrapes.append(
            Scrape(
                engine,
                float(time),
                running=running,
                waiting=float(present) - running,
                finished=finished.count(now),
                first_tokens=first_tokens.count(now),
                prompt_tokens=first_tokens.tokens(now),
                cached_tokens=0.0,
                output_tokens=float(decodes[ended - 1]) + first_tokens.count(now),
                finished_prompt_tokens=finished_prompts.tokens(now),
                finished_output_tokens=finished.tokens(now),
                prompt_spread=finished_prompts.spread(now),
                output_spread=finished.spread(now),
                batches=float(ended),
                batch_tokens=float(tokens[ended - 1]),
            )
        )
    return scrapes


_COUNTED = (
    "running", "waiting", "finished", "first_tokens", "prompt_tokens", "cached_tokens",
    "output_tokens", "finished_prompt_tokens", "finished_output_tokens", "batches", "batch_tokens",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Events:
    """When something happened to each request, and the tokens that it counts."""

    ns: Ints
    weights: Ints

    def __post_init__(self) -> None:
        order = np.argsort(self.ns, kind="stable")
        lengths = self.weights[order]
        bucket = np.searchsorted(_BUCKETS.ravel(), lengths)
        middles = np.convolve(np.r_[0.0, _BUCKETS.ravel()], [0.5, 0.5], "valid")[bucket]
        vars(self).update(
            ns=self.ns[order],
            sums=np.r_[0, np.cumsum(lengths)],
            squares=np.r_[0.0, np.cumsum(middles**2)],
            middles=np.r_[0.0, np.cumsum(middles)],
        )

    def count(self, now: int) -> float:
        """Return how many happened until then."""
        return float(np.searchsorted(self.ns, now, side="right"))

    def tokens(self, now: int) -> float:
        """Return the tokens that they count."""
        return float(vars(self)["sums"][int(self.count(now))])

    def spread(self, now: int) -> float | None:
        """Return standard deviation over mean, as the middles of buckets show it."""
        count = int(self.count(now))
        if count == 0:
            return None
        mean = float(vars(self)["middles"][count]) / count
        return float(np.sqrt(max(vars(self)["squares"][count] / count - mean**2, 0.0)) / mean)
