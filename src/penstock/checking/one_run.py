"""What happened in one finite run of a server, whatever theory says of it."""

import dataclasses
from collections.abc import Callable

from penstock.checking.answer import Drawn, Simulation
from penstock.checking.check_server import RunAsked
from penstock.checking.doubt import known_within
from penstock.checking.notes import load_warnings
from penstock.checking.recordings import recording_notes
from penstock.show.answers import Shown, computed
from penstock.simulation.progress import Progress
from penstock.simulation.run import Run
from penstock.simulation.simulate import simulate
from penstock.system.kinds import is_guarded
from penstock.system.prefix_cache import front_notes, unsaid
from penstock.system.server import Server
from penstock.theory.certificate import Certificate, ServerLoad
from penstock.theory.certify import certify
from penstock.theory.kv_blocks import served
from penstock.workload.workload import Workload


@dataclasses.dataclass(frozen=True, eq=False)
class OneRun(Shown):
    """What happened in a run, without a verdict."""

    workload: Workload
    # The load is said beside the run, where there is a rate.
    certificate: Certificate | None
    run: Run
    front: tuple[str, ...]
    notices: tuple[str, ...]

    @computed()
    def load(self) -> ServerLoad | None:
        """Load and limit of the server; null: there is no rate."""
        return None if self.certificate is None else self.certificate.load_as_dict()

    @computed()
    def simulation(self) -> Simulation:
        """What was simulated from empty; no verdict is drawn from one run."""
        return {"verdict": None, **self.run.as_dict()}

    @computed()
    def latency(self) -> dict[str, dict[str, float | None]]:
        """Of the requests of the run, by metric and statistic."""
        return self.run.latency_as_dict()

    @computed()
    def latency_refused(self) -> None:
        """Null: it is of this run alone."""

    @computed()
    def warnings(self) -> list[str]:
        """What to know."""
        return [*self.front, *self.notices]

    @property
    def drawn(self) -> Drawn:
        """What only figures show."""
        return Drawn(self.workload, self.run.server, self.run.arrived)


def one_run(
    workload: Workload,
    server: Server,
    requests: int | None,
    until: float | None,
    progress: Progress | None,
    certified: Callable[[Certificate | None], object],
) -> OneRun:
    """Simulate once; ``certified`` is called before."""
    asked = RunAsked(workload, requests, until)
    certificate = None
    if workload.has_rate and not is_guarded((workload, server)):
        certificate = certify(workload, server)
    else:
        served(workload, server)  # or refused
    certified(certificate)
    run = simulate(
        workload, server, requests=requests, until=until, record=asked.record, progress=progress
    )
    front, warnings = front_notes(workload, run.server), []
    if certificate is not None:
        certificate = certificate.with_found(run.found_share, run.server)
        recorded, _ = recording_notes(workload, certificate)
        front = [*known_within((workload, run.server)), *recorded, *front]
        warnings = load_warnings(certificate.load, server)
    warnings = [*unsaid(workload.notices, front), *warnings]
    return OneRun(workload, certificate, run, tuple(front), tuple(warnings))
