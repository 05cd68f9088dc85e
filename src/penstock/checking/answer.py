"""The answer to "is it stable, what can it carry, at what latency": theorem, sequential test and
run side by side.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

from penstock import checks
from penstock.checking.any_answer import AnyAnswer, latency_warnings, no_steady_state
from penstock.checking.doubt import Doubt, beyond_rows, doubt_of_server
from penstock.checking.enough_requests import checked_precision, estimate
from penstock.checking.json_documents import latency_as_dict, load_as_dict, run_as_dict
from penstock.checking.latency import SteadyState, judged
from penstock.checking.notes import kv_notes, load_warnings, memory_warnings
from penstock.checking.recordings import recording_notes
from penstock.checking.stability import Stability
from penstock.checking.targets import (
    Target,
    TargetAnswer,
    parsed_targets,
    refuse_gaps_of_one_token,
)
from penstock.checking.verdict import checked_of_server, verdict
from penstock.errors import InputError
from penstock.show.page import Page
from penstock.simulation.progress import Progress, part_of
from penstock.simulation.quick import MemoryEstimate, memory_is_full
from penstock.simulation.rows import Record
from penstock.simulation.run import TICK_S, Run, stop_tick
from penstock.simulation.simulate import RunOptions, length_of_run, run_server, simulate
from penstock.system.kinds import as_network, refuse, refuse_of_clients
from penstock.system.outages import Outage, listed
from penstock.system.prefix_cache import as_serving, cache_notes, doubts_of, unsaid
from penstock.system.server import Server
from penstock.theory.certificate import Certificate, certify
from penstock.workload.workload import ClosedLoop, Workload

if TYPE_CHECKING:
    from penstock.checking.closed_loop import ClosedAnswer
    from penstock.checking.network_answer import NetworkAnswer
    from penstock.scenario.scenario import Scenario
    from penstock.system.network import Network
    from penstock.theory.operating_point import OperatingPoint

ROWS_UP_TO = 1_000_000
"""Longer runs keep a summary instead of a row per request, and latency has no intervals."""

_TIMES_LONGER = 16  # where a target is undecided
_FIRST_REQUESTS = 300
_TEST_SHARE = 0.2  # of the work, for the progress bar


@dataclasses.dataclass(frozen=True, eq=False)
class Answer(AnyAnswer):
    """What is known about a workload on a server.

    Attributes
    ----------
    workload, server
        What was asked about.
    certificate, stability, latency, warnings
        As in `AnyAnswer`; the sequential test is never skipped, and no latency is known where the
        run kept no rows.
    run
        What was simulated from empty.
    targets
        The targets given, judged.
    front
        What to know before the verdict is read: what no row has seen, the prefix cache, KV memory.
    calibration
        As in `AnyAnswer`.
    full
        What the server carries once KV memory is full, by an estimate; None where something else
        is, or none is known.
    unsteady
        Why what was recorded has no steady state; None: nothing says so.
    kv_doubt
        Why the verdict hinges on KV memory that is estimated, as a clause; empty where it does not.
    """

    workload: Workload
    server: Server
    certificate: Certificate
    stability: Stability
    run: Run
    latency: SteadyState | None
    targets: tuple[TargetAnswer, ...]
    warnings: tuple[str, ...]
    front: tuple[str, ...] = ()
    full: MemoryEstimate | None = None
    calibration: Doubt | None = None
    unsteady: str | None = None
    kv_doubt: str = ""

    audited = "; audit a run to find out"

    @property
    def missed(self) -> bool:
        """Whether a target is not known to be met."""
        return any(target.judgement != "met" for target in self.targets)

    @functools.cached_property
    def drawn(self) -> "Drawn":
        """What only figures show."""
        return Drawn(self.workload, self.server)

    def page(self, scenario: "Scenario | None" = None) -> Page:
        """Return the answer as a page; a scenario says how the question is called."""
        from penstock.checking.view import answer_page

        return answer_page(self, scenario)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form of ``check``."""
        steady = self.latency.as_dict() if self.latency else {"latency": None, "intervals": None}
        return {
            "verdict": self.verdict,
            "load": load_as_dict(self.certificate),
            "certificate": self.certificate.as_dict(),
            "stability": self.stability.as_dict(),
            "simulation": run_as_dict(self.run) | {"verdict": self.stability.verdict},
            "latency": None
            if self.latency_refused
            else steady["latency"] or latency_as_dict(self.run),
            "latency_interval": steady["intervals"],
            "latency_refused": self.latency_refused,
            "targets": [target.as_dict() for target in self.targets],
            "calibration": self.calibration.as_dict() if self.calibration else None,
            "disagreement": self.disagreement,
            "warnings": [*self.front, *self.warnings],
        }

    def next_step(self, file: str) -> str | None:
        """Return what to do about targets that are not met, or too much load, or None."""
        if self.verdict == "unstable" and not self.targets:
            return self._less_load(file)
        if not self.missed:
            return None
        targets = " ".join(f"--target '{answer.target}'" for answer in self.targets)
        if all(answer.judgement != "missed" for answer in self.targets):
            longer = longer_run(self)
            if longer is None:
                return left_open(self)
            return (
                f"a longer run may decide it: `penstock check {file} --requests {longer} {targets}`"
            )
        return (
            f"`penstock recommend {file} {targets}` looks for limits with which this server meets "
            "it; where none do, "
            "`penstock plan` finds how many replicas, and of which hardware, do"
        )

    def _less_load(self, file: str) -> str:
        """Say what holds an overloaded server back, and what to do."""
        rate = self.certificate.load.arrival_rate
        bound = self.certificate.binding
        plan = (
            f"with a `plan` in the scenario, `penstock plan {file}` finds how many replicas carry "
            "it"
        )
        if rate >= bound.max_rate:
            cause = (
                f"the {bound.name} lets no policy carry more than {bound.max_rate:,.4g} requests/s"
            )
            return f"{cause}: `penstock recommend {file}` looks for other limits, and {plan}"
        cause = f"the policy, {self.server.policy.name}, does not carry it, though another may"
        if self.full is not None and self.full.rate < rate:
            cause = (
                f"KV memory holds it back, which carries about {self.full.rate:,.4g} requests/s "
                "once it is full"
            )
        return (
            f"{cause}: `penstock max-rate {file}` says how much it carries, `penstock recommend "
            f"{file}` with which "
            f"limits it carries more, and {plan}"
        )


def most_requests(workload: Workload) -> int:
    """Return of how many requests a run may keep a row of each: a recording has no more of them."""
    return min(ROWS_UP_TO, workload.rows or ROWS_UP_TO)


def longer_run(answer: Answer) -> int | None:
    """Return how many requests may decide what a run left open; None: no longer one is kept."""
    longer = min(_TIMES_LONGER * answer.run.arrived, most_requests(answer.workload))
    return longer if longer > answer.run.arrived else None


def left_open(answer: Answer) -> str:
    """Say that no run decides a target."""
    return f"{answer.run.arrived:,} requests leave it open, and no longer run is kept"


@overload
def check(  # type: ignore[overload-overlap]
    workload: ClosedLoop,
    server: Server,
    *,
    requests: int | None = None,
    targets: Sequence[Target | str] = (),
    progress: Progress | None = None,
    certified: Callable[[None], object] | None = None,
) -> "ClosedAnswer": ...
@overload
def check(
    workload: Workload,
    server: Server,
    *,
    requests: int | None = None,
    until: float | None = None,
    targets: Sequence[Target | str] = (),
    precision: float | None = None,
    alpha: float | None = None,
    resolution: float | None = None,
    estimate_memory: bool = True,
    progress: Progress | None = None,
    stability: Stability | None = None,
    certified: Callable[[Certificate], object] | None = None,
) -> Answer: ...
@overload
def check(
    network: "Network",
    /,
    *,
    jobs: int | None = None,
    until: float | None = None,
    seed: int | None = None,
    resolution: float | None = None,
    progress: Progress | None = None,
    outages: Sequence[Outage] = (),
    stability: Stability | None = None,
    certified: Callable[[Certificate], object] | None = None,
) -> "NetworkAnswer": ...
def check(
    workload: "Workload | Network",
    server: Server | None = None,
    *,
    requests: int | None = None,
    jobs: int | None = None,
    until: float | None = None,
    seed: int | None = None,
    targets: Sequence[Target | str] = (),
    precision: float | None = None,
    alpha: float | None = None,
    resolution: float | None = None,
    estimate_memory: bool = True,
    progress: Progress | None = None,
    outages: Sequence[Outage] = (),
    stability: Stability | None = None,
    certified: Callable[[Any], object] | None = None,
) -> "Answer | ClosedAnswer | NetworkAnswer":
    """Certify a system, test it, simulate it, and refuse the latency of a steady state that it has
    not.

    Clients who wait for their answers (`Workload.closed`) are stable by construction: of them it
    says at what throughput and latency they are served.

    Parameters
    ----------
    workload, server, requests, jobs, until, seed
        As in `penstock.simulate`. Runs of networks keep their requests, so they have up to ten
        million jobs.
    targets
        Of a server: upper limits of latencies, to be judged; as text such as ``ttft_p99<2s``, see
        `Target.parse`. While one is undecided the run becomes longer, up to 16 times.
    precision
        Of a server: largest half-width of the interval of any mean latency, over its value: 0.05 is
        5%. Until then the run becomes longer, up to 16 times. Default: as it comes.
    alpha, resolution
        As in `penstock.verdict`.
    estimate_memory
        Of a server: whether to note what is carried once KV memory is full, where there is an
        estimate, and at which KV memory the verdict on an engine would turn, where none was given
        (it may take seconds).
    progress
        Called now and then with the share that is done.
    outages
        Of a network: replicas that die and come back, in a further run of the same jobs, which says
        what they do to latency. Verdicts and the steady state are without them: what ends does not
        change whether a backlog grows for ever.
    stability
        What `penstock.verdict` says with this alpha, this resolution and the seed of the workload,
        where that is known: the test is not run again.
    certified
        Called with the certificate, before anything is simulated; None of a closed loop.

    Raises
    ------
    InputError
        If a value cannot be used.
    """
    limits = parsed_targets(targets)
    estimate_memory = checks.truth("estimate_memory", estimate_memory)
    if isinstance(workload, Workload) and isinstance(server, Server):
        refuse(jobs=jobs, seed=seed, outages=listed(outages) or None)
        refuse_gaps_of_one_token(limits, workload)
        if isinstance(workload, ClosedLoop):
            refuse_of_clients(until=until, precision=precision, alpha=alpha, resolution=resolution)
            from penstock.checking.closed_loop import closed_answer

            return closed_answer(workload, server, requests, limits, progress, certified)
        # The length is refused before the test, not after it.
        asked = RunAsked(workload, requests, until, limits, precision)
        checked_of_server(alpha, resolution)
        server = as_serving(workload, server)
        certificate = certify(workload, server)
        if certified is not None:
            certified(certificate)
        if stability is None:
            tested = part_of(progress, 0.0, _TEST_SHARE)
            stability = verdict(workload, server, alpha, resolution, workload.seed, progress=tested)
        simulated = part_of(progress, _TEST_SHARE, 1.0)
        return _of_server(server, asked, stability, certificate, estimate_memory, simulated)
    network = as_network("check", workload, server)
    refuse(
        requests=requests,
        targets=limits or None,
        precision=precision,
        alpha=alpha,
        estimate_memory=None if estimate_memory else False,
    )
    from penstock.checking.network_answer import of_network

    return of_network(
        network, jobs, until, seed, resolution, progress, outages, stability, certified
    )


@dataclasses.dataclass(frozen=True)
class RunAsked:
    """The run that a user wants: how long, and what it should decide."""

    workload: Workload
    requests: int | None
    until: float | None
    targets: Sequence[Target] = ()
    precision: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be simulated."""
        length_of_run(self.workload, self.requests, self.until)
        stop_tick(self.until, TICK_S)
        checked_precision(self.precision)
        if (self.targets or self.precision is not None) and not self.has_rows:
            raise InputError(
                f"targets and precision need a run with a row per request, up to {ROWS_UP_TO:,}; "
                "give `requests` up to that, and no `until`"
            )

    @property
    def has_rows(self) -> bool:
        """Whether it keeps a row per request, from which the latency of a steady state follows."""
        return self.until is None and (self.requests or self.workload.rows or 0) <= ROWS_UP_TO

    def simulated(
        self, server: Server, rho: float | None, progress: Progress
    ) -> tuple[Run, SteadyState | None]:
        """Simulate it, with the steady state's latency at a load ``rho``; None: no steady state."""
        requests, until = self.requests, self.until
        if rho is not None and self.has_rows:
            return estimate(
                self.workload, server, requests=requests, precision=self.precision,
                targets=self.targets, rho=rho, progress=progress,
            )  # fmt: skip
        length = length_of_run(self.workload, requests, until)
        options = RunOptions(stop_tick(until, TICK_S), progress=progress)
        record = record_for(requests, until)
        return run_server(self.workload, server, length, options, record), None


def _of_server(
    server: Server,
    asked: RunAsked,
    stability: Stability,
    certificate: Certificate,
    estimate_memory: bool,
    progress: Progress,
) -> Answer:
    """Answer for a server: see `check`."""
    workload = asked.workload
    rho = None
    recorded, unsteady = recording_notes(workload, certificate)
    if unsteady is None and not no_steady_state(certificate, stability):
        # Under a backlog the server carries 1 / rho times what arrives.
        rho = 1 / (1 - min(stability.drift, 0.0))
    run, latency = asked.simulated(server, rho, progress)
    certificate = certificate.with_found(run.found_share, run.server)
    full = memory_is_full(workload, server) if estimate_memory else None
    kv, kv_doubt = kv_notes(workload, server, stability.verdict, search=estimate_memory)
    return Answer(
        workload,
        server,
        certificate,
        stability,
        run,
        latency,
        targets=tuple(judged(target, latency) for target in asked.targets),
        warnings=(
            *_warnings(workload, server, certificate, full),
            *latency_warnings(certificate, stability, latency),
        ),
        front=(
            *doubts_of(workload, server),
            *recorded,
            *beyond_rows(workload, server),
            *cache_notes(workload, server),
            *kv,
        ),
        full=full,
        calibration=doubt_of_server(workload, server),
        unsteady=unsteady,
        kv_doubt=kv_doubt,
    )


def _warnings(
    workload: Workload, server: Server, certificate: Certificate, full: MemoryEstimate | None
) -> list[str]:
    """Return what the user should know of the workload and the limits; ``full`` as in `Answer`."""
    warnings = unsaid(workload.notices, cache_notes(workload, server))
    if workload.rows is not None:
        warnings.append(
            "the test repeats the recording without end; for requests that are independent, "
            "draw them from it with arrivals 'poisson'"
        )
    warnings += load_warnings(certificate.load, server)
    return warnings + memory_warnings(certificate.load, workload, server, full)


@dataclasses.dataclass(frozen=True, eq=False)
class Drawn:
    """What only figures show of a workload on a server, worked out when they are drawn."""

    workload: Workload
    server: Server

    @functools.cached_property
    def first(self) -> Run:
        """A short run that tells who was in each batch."""
        requests = min(_FIRST_REQUESTS, self.workload.rows or _FIRST_REQUESTS)
        return simulate(self.workload, self.server, requests=requests, record="allocations")

    @functools.cached_property
    def point(self) -> "OperatingPoint":
        """Where the workload lies in the region of the server."""
        from penstock.theory.operating_point import operating_point

        return operating_point(self.workload, self.server)


def record_for(requests: int | None, until: float | None) -> Record:
    """Return what a run of that length keeps: a row per request where that is no burden."""
    return "requests" if until is None and (requests or 0) <= ROWS_UP_TO else "summary"
