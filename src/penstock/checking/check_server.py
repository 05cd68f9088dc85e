"""What `penstock.check` simulates of a workload on a server, and what it notes of it."""

import dataclasses
from collections.abc import Sequence

from penstock.checking.answer import ROWS_UP_TO, Answer, latency_warnings, no_steady_state
from penstock.checking.doubt import beyond_rows, doubt_of
from penstock.checking.enough_requests import checked_precision, estimate
from penstock.checking.latency import SteadyState, judged
from penstock.checking.metastable import two_states
from penstock.checking.notes import kv_notes, load_warnings, memory_warnings
from penstock.checking.recordings import recording_notes
from penstock.checking.stability import Stability
from penstock.checking.targets import Target
from penstock.errors import InputError
from penstock.simulation.progress import Progress, part_of
from penstock.simulation.quick import MemoryEstimate, memory_is_full
from penstock.simulation.rows import Record
from penstock.simulation.run import TICK_S, Run, stop_tick
from penstock.simulation.simulate import RunOptions, length_of_run, run_server
from penstock.system.prefix_cache import cache_notes, doubts_of, unsaid
from penstock.system.server import Server
from penstock.theory.certificate import Certificate
from penstock.workload.workload import Workload


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

    @property
    def record(self) -> Record:
        """What the run keeps."""
        return "requests" if self.has_rows else "summary"

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
        return run_server(self.workload, server, length, options, self.record), None


def answer_of_server(
    asked: RunAsked,
    server: Server,
    estimate_memory: bool,
    stability: Stability,
    certificate: Certificate,
    progress: Progress,
) -> Answer:
    """Answer for a server: see `check`."""
    workload = asked.workload
    rho = None
    recorded, unsteady = recording_notes(workload, certificate)
    if unsteady is None and not no_steady_state(certificate, stability):
        # Under a backlog the server carries 1 / rho times what arrives.
        rho = 1 / (1 - min(stability.drift, 0.0))
    # A server that does not work off a backlog may hold from empty, which takes further runs.
    share = 0.5 if estimate_memory and stability.verdict == "unstable" else 1.0
    run, latency = asked.simulated(server, rho, part_of(progress, 0.0, share))
    certificate = certificate.with_found(run.found_share, run.server)
    full = memory_is_full(workload, server) if estimate_memory else None
    rest = part_of(progress, share, 1.0)
    both = two_states(workload, server, stability, certificate, full, rest)
    rest(1.0)
    kv, kv_doubt = kv_notes(workload, server, stability.verdict, search=estimate_memory)
    return Answer(
        (workload, server),
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
            *beyond_rows((workload, server)),
            *cache_notes(workload, server),
            *kv,
        ),
        full=full,
        metastable=both,
        calibration=doubt_of((workload, server)),
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
