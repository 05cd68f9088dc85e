"""Which limit on the queue is right: the one with which most are served within the targets.

A queue without a limit serves requests that nobody waits for any more; too short a one refuses what
could be served. In between limits are tried at twice the load, on the same requests: a coarse
series, then a finer one around the best. Of those that keep the targets for whom they let in, the
one is right with which most are served at all loads together.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np

from penstock import checks
from penstock.capacity.recommend import REQUESTS
from penstock.checking.goodput import good_jobs, samples, statistic_s
from penstock.checking.targets import Target, parsed_targets
from penstock.errors import InputError
from penstock.show.answers import AsData, Meaning, Shown, computed
from penstock.simulation.progress import Progress, in_parts, part_of
from penstock.simulation.rows import recorded
from penstock.simulation.simulate import simulate
from penstock.system.engine_flags import QUEUE_LIMITS
from penstock.system.kinds import OfSystem, refuse_all_but_a_server
from penstock.system.prefix_cache import as_serving
from penstock.system.queue_limit import QueueLimit
from penstock.system.server import Server
from penstock.words import duration
from penstock.workload.workload import Workload

LOADS = (0.5, 1.0, 1.1, 1.3, 2.0)
"""Times the load, at which it is said what a limit does; at the last one it keeps the targets."""

_COARSE, _FINE = 1.5, 1.05  # ratios of limits that are tried
_STEPS = int(math.log(_COARSE) / math.log(_FINE))
_ROOM = 0.93  # of a target, up to which a limit is safe
_WARM_UP = 0.1  # share of the requests that are not counted
_MOST = 2**24


@dataclasses.dataclass(frozen=True)
class LimitAt(AsData):
    """What a limit does at a load."""

    kind: Annotated[
        str,
        Meaning("Of a `QueueLimit`, or ``as it is``: as the server is described.", name="limit on"),
    ]
    limit: Annotated[int | None, Meaning("Its value.", name="of", format="{:,}".format)]
    times: Annotated[float, Meaning("Times the load.", name="load x")]
    rate: Annotated[float, Meaning("Requests/s that come.", key="arriving")]
    refused: Annotated[float, Meaning("Share refused.", name="refused", format="{:.0%}".format)]
    goodput_rate: Annotated[
        float, Meaning("Requests/s that are served within the targets.", name="goodput /s")
    ]
    latency: Annotated[
        tuple[float, ...],
        Meaning("Of those served, what each target limits, seconds.", key="latency_s"),
    ]
    met: Annotated[
        bool,
        Meaning(
            "Whether those who are served have the targets.",
            name="targets",
            format=lambda met: "kept" if met else "missed",
        ),
    ]

    @computed(name="those served", key=None)
    def shown(self) -> str:
        """The latencies that targets limit."""
        return ", ".join(duration(of) if math.isfinite(of) else "-" for of in self.latency)


@dataclasses.dataclass(frozen=True, eq=False)
class RecommendedLimit(OfSystem, Shown):
    """The limit on the queue that is right, what it does, and what others do."""

    system: Annotated[tuple[Workload, Server], Meaning("What was asked about.", key=None)]
    targets: Annotated[tuple[Target, ...], Meaning("The targets.", data=lambda of: [*map(str, of)])]
    limit: Annotated[QueueLimit, Meaning("The limit.", data=lambda of: of.stated)]
    rows: Annotated[tuple[LimitAt, ...], Meaning("What it does at each load.")]
    thumb: Annotated[
        tuple[LimitAt, ...],
        Meaning(
            "The same of the rule of thumb, where the engine has it: target TTFT times the "
            "tokens/s of full batches, as a limit on prompt tokens."
        ),
    ]
    as_it_is: Annotated[tuple[LimitAt, ...], Meaning("The same of the server as it is described.")]
    curve: Annotated[
        tuple[LimitAt, ...], Meaning("All that were tried of its kind, at the largest load.")
    ]

    @property
    def best(self) -> LimitAt:
        """What the limit does at the load at which it was chosen."""
        return self.rows[-1]

    @computed()
    def flags(self) -> str:
        """How the engine is told: its option, or a line of a scenario."""
        ((kind, value),) = self.limit.stated.items()
        program = self.server.policy.program
        if program is None:
            return f"queue_limit: {{{kind}: {value:.0f}}}"
        return f"--{QUEUE_LIMITS[kind].replace('_', '-')} {value:.0f}"


def recommend_queue(
    workload: Workload,
    server: Server,
    *,
    targets: Sequence[Target | str] = (),
    requests: int | None = None,
    progress: Progress | None = None,
) -> RecommendedLimit:
    """Say which limit on the queue keeps targets for those who are served, and serves most.

    Parameters
    ----------
    workload, server
        What arrives, at a rate, with the patience of its clients, and what serves it. Retries are
        set aside: who comes again is part of the load.
    targets
        Upper limits of latencies, such as ``ttft_p99<2s``.
    requests
        Arrivals of each run; of a recording as many as it has, of others 20,000.
    progress
        Called now and then with the share that is done.

    Raises
    ------
    InputError
        If a value cannot be used, the engine has no limit, or none keeps the targets.
    """
    refuse_all_but_a_server("recommend", workload, server)
    limits = tuple(parsed_targets(targets))
    if not limits:
        raise InputError("a limit on the queue keeps a target; give one, such as ttft_p99<2s")
    if requests is None:
        requests = min(REQUESTS, workload.rows or REQUESTS)
    requests = checks.whole("requests", requests, 1_000, 10**6, "", "tails are to be told of them")
    # A limit on the predicted TTFT is what is asked for, not a value to look for.
    kinds = [kind for kind in server.policy.queue.limits if kind != "ttft_ms"]
    if not kinds:
        raise InputError(
            f"{server.policy.name} has no limit on its queue; let the router of its pool have one "
            "(router_limit)"
        )
    server = as_serving(workload, server)
    study = _Study(_without_retries(workload), server, limits, requests)
    tried = [
        at
        for kind, part in in_parts(part_of(progress, 0.0, 0.6), kinds)
        for at in study.curve(kind, part)
    ]
    kept = [at for at in tried if at.met]
    if not kept:
        raise InputError(
            f"no limit on the queue keeps {' and '.join(map(str, limits))} at {LOADS[-1]:g} times "
            f"this load: the nearest has {max(tried, key=_worth).shown}; raise the target, or "
            "change token budget or max batch size"
        )
    # With some room, as other requests have other tails.
    kept = [at for at in kept if study.room(at)] or kept
    over_loads = []
    for at, part in in_parts(part_of(progress, 0.6, 0.9), kept):
        over_loads.append(study.at_loads(at.kind, at.limit))
        part(1.0)
    rows = max(over_loads, key=total)
    thumb = study.rule_of_thumb if "prompt_tokens" in kinds else None
    return RecommendedLimit(
        system=(workload, server),
        targets=limits,
        limit=QueueLimit(**{rows[-1].kind: rows[-1].limit}),
        rows=rows,
        thumb=() if thumb is None else study.at_loads("prompt_tokens", thumb),
        as_it_is=study.at_loads("as it is", None),
        curve=tuple(at for at in tried if at.kind == rows[-1].kind),
    )


def _without_retries(workload: Workload) -> Workload:
    """Return a workload whose clients come once."""
    patience = workload.patience
    if patience is None or not patience.retries:
        return workload
    return workload.with_patience(patience.once)


def total(rows: Sequence[LimitAt]) -> float:
    """Return the goodput of a limit at all loads together: what it is worth."""
    return sum(at.goodput_rate for at in rows)


def _worth(at: LimitAt) -> tuple[bool, float]:
    """Return what a limit is worth: the targets first, then who is served within them."""
    return at.met, at.goodput_rate


@dataclasses.dataclass(frozen=True, eq=False)
class _Study:
    """Runs of a server with limits on its queue."""

    workload: Workload
    server: Server
    targets: tuple[Target, ...]
    requests: int

    @property
    def rule_of_thumb(self) -> int | None:
        """Prompt tokens that full batches take in the time to first token that a target allows."""
        seconds = [target.limit_s for target in self.targets if target.metric == "ttft_s"]
        return round(min(seconds) * self.server.full_batch_rate) if seconds else None

    def at_loads(self, kind: str, limit: int | None) -> tuple[LimitAt, ...]:
        """Return what a limit does at each load."""
        return tuple(self.at(kind, limit, times) for times in LOADS)

    def at(self, kind: str, limit: int | None, times: float) -> LimitAt:
        """Return what a limit does at so many times the load."""
        workload, server = self.workload.with_rate(times * self.workload.rate), self.server
        if limit is not None:
            server = dataclasses.replace(server, queue_limit=QueueLimit(**{kind: limit}))
        run = simulate(workload, server, requests=self.requests, drain=True).served
        rows = recorded(run.rows, "requests")
        counted = np.arange(run.finish.size) >= _WARM_UP * run.finish.size
        served = counted & (run.finish >= 0)
        good = good_jobs(run, self.targets) & served
        latency = tuple(
            statistic_s(samples(run, served, of.metric), of.statistic, run.tick_s)
            if served.any()
            else math.inf
            for of in self.targets
        )
        refused = 0.0
        if rows.refusals is not None and rows.tries is not None:
            refused = float(rows.refusals.sum() / (rows.tries + 1).sum())
        met = all(value <= of.limit_s for value, of in zip(latency, self.targets, strict=True))
        goodput = float(good.sum() / counted.sum()) * workload.rate
        return LimitAt(kind, limit, times, workload.rate, refused, goodput, latency, met)

    def room(self, at: LimitAt) -> bool:
        """Whether latencies are so far below the targets that other requests keep them, too."""
        values = zip(at.latency, self.targets, strict=True)
        return all(value <= _ROOM * target.limit_s for value, target in values)

    def curve(self, kind: str, progress: Progress) -> list[LimitAt]:
        """Return limits of a kind that were tried at the largest load."""
        tried: dict[int, LimitAt] = {}

        def look(limit: float) -> LimitAt:
            whole = max(round(limit), 1)
            if whole not in tried:
                tried[whole] = self.at(kind, whole, LOADS[-1])
            return tried[whole]

        # Ever larger ones, until targets are missed with less and less goodput, or nobody is
        # refused; then finer steps around the best.
        limit = self.workload.mean_prompt if kind == "prompt_tokens" else 1.0
        most, worse = 0.0, 0
        while worse < 3 and limit < _MOST:
            at = look(limit)
            worse = worse + 1 if not at.met and at.goodput_rate < most else 0
            most = max(most, at.goodput_rate)
            if not at.refused:
                break
            limit *= _COARSE
            progress(len(tried) / (2 * _STEPS))
        around = max(tried.values(), key=_worth).limit or 1
        for step, part in in_parts(part_of(progress, 0.5, 1.0), range(-_STEPS, _STEPS + 1)):
            look(around * _FINE**step)
            part(1.0)
        return [tried[limit] for limit in sorted(tried)]
