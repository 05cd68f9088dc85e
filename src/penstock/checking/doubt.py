"""What batch times that are not exact do to an answer.

A shape that no row corrects, and a calibration on a few rows, have an interval (see
`penstock.system.uncertain`). The theory is asked at its slow and at its fast end
(`penstock.theory.ends`), and where no theorem speaks the test; short runs with the same requests
say how far latencies move. Everything else here takes batch times as exact, so this is where it is
said what that hides.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from penstock.checking.verdict import RESOLUTION_OF_NETWORKS, verdict
from penstock.show.answers import AsData, Meaning, computed
from penstock.simulation.progress import silent
from penstock.simulation.simulate import RunOptions, run_server
from penstock.system.server import Server
from penstock.theory.certificate import Certificate
from penstock.theory.certify import certify
from penstock.theory.ends import Ends, known_of, network_ends, server_ends
from penstock.words import METRICS, sentence
from penstock.workload.workload import ClosedLoop, Workload

if TYPE_CHECKING:
    from penstock.system.kinds import System
    from penstock.system.network import Network

    _Known = tuple[Ends[Any], Certificate, Certificate]


_REQUESTS = 1_000  # of a run that says how far latencies move


class Interval(NamedTuple):
    """Between what a number lies by the batch times alone: docs/how-far-off.md says how often."""

    low: float
    high: float


class End(NamedTuple):
    """The verdict at an end of the interval, and the theorem that says so; None: the test does."""

    verdict: str
    theorem: str | None


FACTOR = (
    "By metric, between which multiples of its mean batch times that may be the true ones would "
    "have it; empty where that is not known."
)


def interval_by_name(intervals: Mapping[str, Interval]) -> dict[str, list[float]]:
    """Return what JSON has of intervals."""
    return {name: list(ends) for name, ends in intervals.items()}


def _verdict_of(end: End) -> str:
    """Return what JSON has of an end."""
    return end.verdict


@dataclasses.dataclass(frozen=True)
class Reach(AsData):
    """Between which loads a system lies as far as its batch times are known."""

    # Requests/s, of a network times its load.
    max_rate: Annotated[
        Interval,
        Meaning("Rates that no policy exceeds, at the slow and at the fast end.", data=list),
    ]
    load: Annotated[Interval, Meaning("What arrives over that, the fast end first.", data=list)]
    origin: Annotated[str, Meaning("What the interval comes from, as a clause.")]
    unit: str  # of the max rate
    cached: bool  # load and max rate are those of a prefix cache that keeps everything

    @property
    def undecided(self) -> bool:
        """Whether some batch times that may be true are overloaded, and others not."""
        return self.load.low < 1 <= self.load.high

    @property
    def interval(self) -> str:
        """The interval in words, and what it comes from."""
        load, rate = self.load, self.max_rate
        kept = ", if prefix caches kept everything" if self.cached else ""
        return (
            f"the load is {load.low:.3f} to {load.high:.3f} as far as batch times are known{kept}, "
            f"and no policy carries more than {rate.low:,.4g} to {rate.high:,.4g} {self.unit} "
            f"({self.origin})"
        )


@dataclasses.dataclass(frozen=True)
class Doubt(Reach):
    """What an answer would be with other batch times that may be the true ones."""

    # By `ttft_s`, `tbt_s`, `e2e_s`: 1.1 is 10% longer. Empty where the slow end is not stable, and
    # of networks.
    latency: Annotated[
        dict[str, Interval], Meaning(FACTOR, key="latency_factor", data=interval_by_name)
    ]
    slow: Annotated[End, Meaning("The verdict at the slow end.", data=_verdict_of)]
    fast: Annotated[End, Meaning("The verdict at the fast end.", data=_verdict_of)]
    calibrated: bool  # rows of the deployment corrected the batch times

    @computed(data=list)
    def margin(self) -> Interval:
        """1 - load, the low end first."""
        return Interval(1 - self.load.high, 1 - self.load.low)

    @computed()
    def by_theorem(self) -> bool:
        """Whether a theorem says what the verdict is at both ends."""
        return self.slow.theorem is not None and self.fast.theorem is not None

    def holds(self, answer: str) -> bool:
        """Return whether a verdict is the same over the interval."""
        return {answer, self.slow.verdict, self.fast.verdict} == {answer}

    @property
    def held(self) -> str:
        """Say that a verdict is the same at both ends."""
        how = "by theorem" if self.by_theorem else "though not by theorem at both"
        return f"it is {self.slow.verdict} at their slow and at their fast end, {how}"

    @property
    def remedy(self) -> str:
        """How to know more."""
        if self.calibrated:
            return "benchmark more loads, near this one, and calibrate again"
        return "calibrate on a few rows of a benchmark (penstock calibrate)"

    def reason(self, answer: str) -> str:
        """Say in a sentence what the verdict hinges on, or that it holds."""
        if self.holds(answer):
            return f"{self.held}: {self.interval}"
        return (
            f"{self.interval}; with the slow end it is {self.slow.verdict}, with the fast end "
            f"{self.fast.verdict}; {self.remedy}"
        )


def doubt_of(
    system: "System", seed: int | None = None, resolution: float | None = None
) -> Doubt | None:
    """Return what is not known of a system's batch times; None where they are taken as exact."""
    known = ends_of(system)
    if known is None:
        return None
    ends, *certificates = known
    slow, fast = (
        end_of(one, certificate, seed, resolution)
        for one, certificate in zip((ends.slow, ends.fast), certificates, strict=True)
    )
    latency: dict[str, Interval] = {}
    if isinstance(system, tuple) and slow.verdict == "stable":
        workload, server = system
        latency = _factors(workload, server, [one for _, one in ends.others], ends.quantiles)
    of = vars(_reach(ends.origin, *certificates))
    return Doubt(**of, latency=latency, slow=slow, fast=fast, calibrated=ends.calibrated)


def reach_of(system: "System") -> Reach | None:
    """Return between which loads a system lies; None where its batch times are taken as exact."""
    known = ends_of(system)
    if known is None:
        return None
    ends, *certificates = known
    return _reach(ends.origin, *certificates)


def ends_of(system: "System") -> "_Known | None":
    """Return the slow and the fast end of a system, and what theory says of both."""
    if not isinstance(system, tuple):
        return _ends_of_network(system)
    workload, server = system
    ends = server_ends(workload, server)
    if ends is None:
        return None
    slow, fast = (workload, ends.slow), (workload, ends.fast)
    others = [(workload, other) for other in ends.others]
    of_system = Ends(slow, fast, ends.origin, ends.calibrated, others, ends.quantiles)
    return of_system, certify(*slow), certify(*fast)


@functools.lru_cache(maxsize=4)  # the first lines of an answer say it, then the doubt, then a page
def _ends_of_network(network: "Network") -> "_Known | None":
    ends = network_ends(network)
    return None if ends is None else (ends, certify(ends.slow), certify(ends.fast))


def _reach(origin: str, slow: Certificate, fast: Certificate) -> Reach:
    """Return between which loads a system lies, by what theory says of its ends."""
    rates, unit = Interval(slow.max_rate, fast.max_rate), "requests/s"
    if not slow.of_server:
        rates, unit = Interval(slow.max_load, fast.max_load), "times this load"
    load = Interval(1 / fast.max_load, 1 / slow.max_load)
    cached = any(pool.rho_without_cache is not None for pool in slow.pools)
    return Reach(rates, load, origin, unit, cached)


def end_of(
    system: "System",
    certificate: Certificate,
    seed: int | None = None,
    resolution: float | None = None,
) -> End:
    """Return what a theorem says, or else the test; nothing where all jobs are recorded."""
    if certificate.verdict != "unknown" or (not isinstance(system, tuple) and system.ends):
        return End(certificate.verdict, certificate.theorem)
    if isinstance(system, tuple):
        workload, server = system
        return End(verdict(workload, server, seed=workload.seed).verdict, None)
    from penstock.checking.flood_test import flood_test
    from penstock.system.network import own_seed

    seed = own_seed(system.workflows[0]) if seed is None else seed
    # One flood: an end so near its limit that it stays level is undecided, and soon known to be.
    test = flood_test(system, resolution or RESOLUTION_OF_NETWORKS, seed, None, silent, tries=1)
    return End(test.verdict, None)


def beyond_rows(system: "System") -> list[str]:
    """Say what is asked of batch times that no row has seen, in a sentence for each pool."""
    if isinstance(system, tuple):
        workload, server = system
        extrapolated = beyond(server, workload.mean_prompt, workload.mean_output)
        return [f"Batch times are extrapolated: {'; '.join(extrapolated)}."] if extrapolated else []
    model = system.model()
    notes = []
    for place, (name, pool) in enumerate(system.pools.items()):
        here = (model.pool == place) & (model.visits > 0)
        extrapolated = [
            what
            for prompt, decode in zip(model.prefill[here], model.decode[here], strict=True)
            for server, _ in pool.servers
            for what in beyond(server, float(prompt), float(decode))
        ]
        if extrapolated:
            said = "; ".join(dict.fromkeys(extrapolated))
            notes.append(f"Batch times of pool {name} are extrapolated: {said}.")
    return notes


def beyond(server: Server, prompt: float, output: float) -> list[str]:
    """Say what no row has seen of a server that gets requests of such mean lengths."""
    known = known_of(server)
    if known is None or known.seen is None:
        return []
    running = float(server.most_requests or server.token_budget)
    if server.memory is not None:
        running = min(running, max(server.memory.tokens / max(prompt + output, 1.0), 1.0))
    return known.seen.beyond(server.policy.name, prompt, output, running)


def known_within(system: "System") -> list[str]:
    """Say what is unknown of a system's batch times: what no row has seen, and the load's range."""
    # Where no verdict says it.
    reach = reach_of(system)
    said = [] if reach is None else [sentence(reach.interval)]
    return [*beyond_rows(system), *said]


def latency_factors(workload: ClosedLoop, server: Server) -> dict[str, Interval]:
    """Return by which factors mean latencies may be off; empty: batch times are taken as exact."""
    ends = server_ends(workload.at_rate(1.0), server)
    return {} if ends is None else _factors(workload, server, ends.others, ends.quantiles)


def _factors(
    workload: Workload, server: Server, others: Sequence[Server], quantiles: tuple[float, float]
) -> dict[str, Interval]:
    """Return by which factors mean latencies move, with the same requests throughout."""
    usual = _means(workload, server)
    moved = [_means(workload, one) for one in others]
    return {
        metric: Interval(
            *np.quantile([of[metric] / usual[metric] for of in moved], quantiles).tolist()
        )
        for metric in METRICS
        if usual.get(metric)
    }


def _means(workload: Workload, server: Server) -> dict[str, float]:
    requests = min(_REQUESTS, workload.rows or _REQUESTS)
    run = run_server(workload, server, requests, RunOptions(drain=True))
    return {metric: of["mean"] or 0.0 for metric, of in run.latency_as_dict().items()}
