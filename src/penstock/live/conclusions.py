"""What follows from what is known of one engine, or of several that share what arrives."""

import dataclasses
import math
from collections.abc import Iterable

import numpy as np

from penstock.live.drift import FEWEST, Drift, drift, requests_to_decide
from penstock.live.horizon import Now, horizon
from penstock.live.lengths import Lengths
from penstock.live.limits import Carried
from penstock.live.notes import SILENT_S, notes
from penstock.live.pace import tokens_in_flight
from penstock.live.reading import TOGETHER, Z95, Estimate, LimitLoad, Reading, TimeUntil
from penstock.live.settings import Settings
from penstock.live.state import State

DAY_S = 86_400.0
_UNSURE = 7.5
"""Over the pairs of intervals that a scatter is known from: by how much it counts for more.

The quantile of Student's t at z = 3 is the normal one with the variance (1 + (z^2 + 1) / (2 k)); k
degrees of freedom are in 1.5 k pairs of neighbours.
"""

_LONGEST_WATCH_S = 30 * DAY_S
"""Nobody waits longer for a verdict."""


def conclude(states: list[State], settings: Settings, ahead: bool = True) -> Reading:
    """Return what follows for engines that share what arrives; one state of each."""
    # Without ``ahead`` nothing is said of the time until limits are reached.
    everyone, states = states, answering_states(states)
    arrivals, lengths = _Arrivals.of(states), _lengths(states)
    fitted_server = states[0].fitted_server  # of all, alike
    carried = _carried(states)
    binding = min(carried, key=lambda name: carried[name].rate, default=None)
    answer = Reading(
        engine=everyone[0].history.engine if len(everyone) == 1 else TOGETHER,
        engines=len(states),
        time_s=max(_last(states, "time_s"), default=0.0),
        watched_s=max(_watched(state) for state in states),
        scrapes=sum(state.history.scrapes for state in states),
        since_s=max(state.arrivals.since_s for state in states),
        verdict="unknown",
        reason=_why_unknown(arrivals, lengths, states),
        alpha=settings.alpha,
        changes=tuple(sorted((c for s in states for c in s.changes), key=lambda c: c.time_s)),
        running=_sum(_last(states, "running"), len(states)),
        waiting=_sum(_last(states, "waiting"), len(states)),
        kv_used=max(_last(states, "kv_used"), default=None),
        iterations=None if fitted_server.seen is None else fitted_server.seen.batches,
        preempted=_known_sum(_last(states, "preempted")),
        preemptions_per_s=_sum(
            _known(s.history.rate_of("preemptions") for s in states), len(states)
        ),
        refused_per_s=_known_sum(_known(s.history.refused_per_s for s in states)),
        left_per_s=_known_sum(_known(s.history.left_per_s for s in states)),
        notes=notes(everyone, states, lengths, settings),
    )
    if arrivals is not None:
        answer = dataclasses.replace(answer, arrival_rate=arrivals.rate)
    if lengths is None:
        return answer
    answer = dataclasses.replace(
        answer,
        prompt=lengths.prompt,
        output=lengths.output,
        cached_share=lengths.cached_share,
        backlog_tokens=_backlog(states, lengths),
        batch_s=_of_one(states, "batch_s"),
        host_s=_of_one(states, "host_s"),
        fitted=fitted_server.fitted,
    )
    if arrivals is None or binding is None:
        return answer
    case = _Case(states, settings, arrivals, lengths, carried, binding)
    answer = _judged(answer, case)
    if not ahead:
        return answer
    until, drain_s = _future(case)
    return dataclasses.replace(answer, until=until, drain_s=drain_s)


@dataclasses.dataclass(frozen=True)
class _Arrivals:
    """What came to all engines since the rate last changed.

    Requests (of several engines: as many as tell as much), requests/s with an interval, and the
    variance over mean of their number, with the pairs of intervals that it is known from.
    """

    requests: float
    rate: Estimate
    dispersion: float
    pairs: int

    @classmethod
    def of(cls, states: list[State]) -> "_Arrivals | None":
        """Add up what came to each; None while nothing is known of one."""
        parts = [state.arrivals for state in states]
        if any(part.seconds <= 0 for part in parts):
            return None
        came = sum(part.requests for part in parts)
        dispersion = sum(part.dispersion * part.requests for part in parts) / max(came, 1e-9)
        dispersion = max(dispersion, 1.0)
        rate = sum(part.requests / part.seconds for part in parts)
        requests, seconds = came, parts[0].seconds
        if len(parts) > 1 and rate > 0:
            # Stretches of unequal lengths tell as much as so many requests in one of them all.
            variance = sum(
                part.dispersion * max(part.requests, 1.0) / part.seconds**2 for part in parts
            )
            requests = dispersion * rate**2 / variance
            seconds = requests / rate
        # Wilson's interval: for few requests too
        middle = requests + dispersion * Z95**2 / 2
        reach = Z95 * math.sqrt(dispersion * (max(requests, 0.0) + dispersion * Z95**2 / 4))
        interval = Estimate(rate, max(middle - reach, 0.0) / seconds, (middle + reach) / seconds)
        return cls(requests, interval, dispersion, sum(part.pairs for part in parts))


@dataclasses.dataclass(frozen=True)
class _Case:
    """Everything that a verdict is reached from."""

    states: list[State]
    settings: Settings
    arrivals: _Arrivals
    lengths: Lengths
    carried: dict[str, Carried]
    binding: str

    @property
    def limit(self) -> Carried:
        """What the limit that binds carries."""
        return self.carried[self.binding]

    @property
    def variance(self) -> float:
        """Variance of the work that arrives, per request, in units of the mean work squared."""
        # More for lengths that few requests tell of, and arrivals that few intervals do.
        scatter = self.arrivals.dispersion * (1 + _UNSURE / (1 + self.arrivals.pairs))
        prompt = self.limit.by_prompt * self.lengths.prompt_spread
        output = self.limit.by_output * self.lengths.output_spread
        return scatter + self._windows * (prompt**2 + output**2)

    @property
    def error(self) -> float:
        """Standard error of what is carried, as a share of it."""
        errors = [state.pace.error for state in self.states if state.pace is not None]
        host = math.sqrt(sum(error**2 for error in errors)) / len(self.states)
        return math.hypot(host, self.states[0].fitted_server.error)

    @property
    def alpha(self) -> float:
        """What may be wrong now: past stretches had their part, so had lengths no longer seen."""
        stretch = self._windows + sum(state.stretches - 1 for state in self.states)
        return self.settings.alpha * 6 / (math.pi * stretch) ** 2

    @property
    def _windows(self) -> float:
        """How many times as many requests came as lengths are taken from; 1 at least."""
        return max(self.arrivals.requests / self.lengths.requests, 1.0)


def answering_states(states: list[State]) -> list[State]:
    """Return the engines that share what arrives now: a silent one has none of it."""
    newest = max(_last(states, "time_s"), default=0.0)
    answering = []
    for state in states:
        last = state.history.last
        if last is not None and state.history.intervals and last.time_s >= newest - SILENT_S:
            answering.append(state)
    return answering or states


def _judged(answer: Reading, case: _Case) -> Reading:
    """Return an answer with load, verdict and replicas."""
    load = case.arrivals.rate.value / case.limit.rate
    test = drift(load, case.arrivals.requests, case.variance, case.error, case.alpha)
    engines = len(case.states)
    loads = tuple(
        LimitLoad(name, test.load.times(case.limit.rate / limit.rate))
        for name, limit in case.carried.items()
    )
    carried = case.limit.rate
    surplus = Estimate(*(carried * (end - 1) for end in dataclasses.astuple(test.load)))
    margin = Estimate(1 - test.load.value, 1 - test.load.high, 1 - test.load.low)
    needed = [
        max(math.ceil(engines * value / case.settings.target_load), 1)
        for value in (test.load.value, test.load.low, test.load.high)
    ]
    watch_s = _more_to_watch(case, load, case.error)
    if test.verdict in ("stable", "unstable"):
        watch_s = 0.0
    return dataclasses.replace(
        answer,
        verdict=test.verdict,
        reason=_reason(test, case, watch_s),
        loads=loads,
        load=test.load,
        margin=margin,
        binding=case.binding,
        drift=surplus,
        replicas=needed[0],
        replicas_low=needed[1],
        replicas_high=needed[2],
        watch_s=watch_s,
    )


def _reason(test: Drift, case: _Case, watch_s: float | None) -> str:
    """Return why the verdict is what it is."""
    low, high = test.always
    load = f"the load is {test.load.value:.3g}, between {low:.3g} and {high:.3g} at every look"
    if test.verdict == "stable":
        return f"{load}: below 1"
    if test.verdict == "unstable":
        growth = case.arrivals.rate.value - case.limit.rate
        return f"{load}: above 1, so the queue grows by {growth:.3g} requests/s"
    if case.arrivals.requests < FEWEST:
        return f"{case.arrivals.requests:.0f} requests came, and nothing is said before {FEWEST}"
    if watch_s is not None:
        return f"{load}: 1 cannot be excluded yet"
    if _more_to_watch(case, test.load.value, 0.0) is None:
        return f"{load}: so near to 1 that {_LONGEST_WATCH_S / DAY_S:.0f} days would not tell"
    return (
        f"{load}: 1 cannot be excluded while what the engine carries is known to "
        f"{Z95 * case.error:.0%} only; more scrapes of a busy engine, or its iterations, tell more"
    )


def _more_to_watch(case: _Case, load: float, error: float) -> float | None:
    """Return the seconds until a load may be told from 1, None if that is too long to wait for."""
    wait = requests_to_decide(load, case.variance, error, case.alpha)
    rate = case.arrivals.rate.value
    more = max(wait - case.arrivals.requests, 0.0)
    return more / rate if more <= rate * _LONGEST_WATCH_S else None


def _why_unknown(arrivals: _Arrivals | None, lengths: Lengths | None, states: list[State]) -> str:
    """Return what is missing for a load."""
    if arrivals is None and all(state.history.scrapes < 2 for state in states):
        return "two scrapes of each engine are needed to know what arrives"
    if arrivals is None:
        return "no two scrapes tell what arrives; the notes say why"
    if lengths is None and all(first is None for first in _first_tokens(states)):
        return "the engine does not count first tokens, so lengths and load are not known"
    if lengths is None:
        return "too few requests have finished to know how long they are"
    if any(state.server is None for state in states):
        return (
            "no batch time was given, and no queue was long enough to see what the engine "
            "carries; give a batch time or hardware"
        )
    return "what the engine carries is not known; the notes say why"


def _first_tokens(states: list[State]) -> list[float | None]:
    scrapes = [state.history.last for state in states if state.history.last is not None]
    return [scrape.first_tokens for scrape in scrapes]


def _future(case: _Case) -> tuple[tuple[TimeUntil, ...], Estimate | None]:
    """Return the time until limits are reached, and until the queue is gone."""
    server, engines = case.states[0].server, len(case.states)
    waiting = _last(case.states, "waiting")
    running = _last(case.states, "running")
    if server is None or not waiting or not running:
        return (), None
    computed = case.lengths.prompt.times(case.lengths.computed / case.lengths.prompt.value)
    now = Now(
        waiting=sum(waiting) / engines,
        running=sum(running) / engines,
        rate=case.arrivals.rate.times(1 / engines),
        prompt=computed,
        output=case.lengths.output,
        variance=case.variance / engines,
        output_spread=case.lengths.output_spread,
    )
    ahead = horizon(server, now)
    until = []
    queue, ttft = case.settings.queue_limit, case.settings.ttft_s
    if queue is not None:
        name = f"queue of {queue:g}"
        until.append(TimeUntil(name, ahead.until_queue(queue / engines)))
    if ttft is not None:
        is_reached = sum(waiting) >= 1 and _seen_ttft(case.states) >= ttft
        when = Estimate(0.0, 0.0, 0.0) if is_reached else ahead.until_ttft(ttft)
        until.append(TimeUntil(f"TTFT of {ttft:g} s", when))
    if server.memory is not None:
        until.append(TimeUntil("KV memory full", ahead.until_kv_full()))
    drain = ahead.until_empty() if sum(waiting) >= 1 else None
    return tuple(until), drain


def _seen_ttft(states: list[State]) -> float:
    """Return mean seconds to the first tokens between the last scrapes; 0: the engines say none."""
    last = [state.history.intervals[-1] for state in states if state.history.intervals]
    seconds = sum(interval.change("ttft_s") or 0.0 for interval in last)
    return seconds / max(sum(interval.change("first_tokens") or 0.0 for interval in last), 1.0)


def _carried(states: list[State]) -> dict[str, Carried]:
    """Return what all engines carry together, by limits that are known of each."""
    names = [name for name in states[0].carried if all(name in s.carried for s in states)]
    together = {}
    for name in names:
        limits = [state.carried[name] for state in states]
        together[name] = Carried(
            sum(limit.rate for limit in limits),
            float(np.mean([limit.by_prompt for limit in limits])),
            float(np.mean([limit.by_output for limit in limits])),
        )
    return together


def _lengths(states: list[State]) -> Lengths | None:
    """Return the lengths of what comes to all engines: those of each, by how much comes to it."""
    known = [(state.lengths, _rate(state)) for state in states if state.lengths]
    if not known:
        return None
    if len(known) == 1:
        return known[0][0]
    weights = np.array([max(rate, 1e-9) for _, rate in known])
    weights /= weights.sum()
    parts = [part for part, _ in known]
    cached = [part.cached_share for part in parts if part.cached_share is not None]

    def mean(values: Iterable[float]) -> float:
        return float(np.average(list(values), weights=weights))

    def pooled(estimates: list[Estimate]) -> Estimate:
        value = mean(each.value for each in estimates)
        reach = float(np.hypot.reduce(weights * [each.high - each.value for each in estimates]))
        return Estimate(value, max(value - reach, 0.0), value + reach)

    return Lengths(
        pooled([part.prompt for part in parts]),
        pooled([part.output for part in parts]),
        mean(part.prompt_spread for part in parts),
        mean(part.output_spread for part in parts),
        mean(cached) if len(cached) == len(parts) else None,
        sum(part.requests for part in parts),
    )


def _rate(state: State) -> float:
    return state.arrivals.requests / state.arrivals.seconds if state.arrivals.seconds > 0 else 0.0


def _of_one(states: list[State], name: str) -> Estimate | None:
    """Return what the pace of the engine says, where there is one only."""
    if len(states) > 1 or states[0].pace is None:
        return None
    estimate: Estimate | None = getattr(states[0].pace, name)
    return estimate


def _backlog(states: list[State], lengths: Lengths) -> float | None:
    """Return the tokens still to be computed: of requests that wait, and of those that run."""
    # Of the latter as many as have come out. Where an engine tells how long the waiting prompts
    # are, and what was preempted, that counts.
    waiting = _sum(_last(states, "waiting"), len(states))
    if waiting is None:
        return None
    prompts = waiting * lengths.computed
    queued = _sum(_last(states, "backlog_tokens"), len(states))
    if queued is not None:
        prompts = queued * lengths.computed / lengths.prompt.value
        prompts += sum(_last(states, "preempted_tokens"))
    tokens = prompts + waiting * (lengths.output.value - 1)
    known = [state.history.last for state in states if state.history.last is not None]
    return tokens + sum(tokens_in_flight(scrape) or 0.0 for scrape in known)


def _last(states: list[State], name: str) -> list[float]:
    """Return what the last scrapes say, where they say it."""
    scrapes = [state.history.last for state in states if state.history.last is not None]
    return _known(getattr(scrape, name) for scrape in scrapes)


def _sum(values: list[float], engines: int) -> float | None:
    """Return a sum, if every engine has its part in it."""
    return sum(values) if len(values) == engines else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _known_sum(values: list[float]) -> float | None:
    """Return the sum over the engines that have a part in it, None if none has."""
    return sum(values) if values else None


def _watched(state: State) -> float:
    first, last = state.history.first, state.history.last
    return 0.0 if first is None or last is None else last.time_s - first.time_s
