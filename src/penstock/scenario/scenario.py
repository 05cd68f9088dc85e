"""A scenario: one YAML file that says what arrives, what serves, and how long to look."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from penstock import checks
from penstock.document import Section, Whole, parsed, read_document, stays_in
from penstock.scenario.run_section import COUNT, DEFAULT_ARRIVALS, RunSection
from penstock.scenario.server import ServerSection
from penstock.scenario.workload import WorkloadSection
from penstock.system.batch_time_file import BatchTimeFile
from penstock.system.kinds import OfSystem
from penstock.system.server import Server
from penstock.workload.workload import Workload

if TYPE_CHECKING:
    from penstock.system.network import Network
    from penstock.system.outages import Outage


class SimulateSection(RunSection):
    """How much to simulate: so many ``requests``, or ``until`` so many simulated seconds."""

    requests: Annotated[Whole, stays_in(COUNT)] | None = None


class _Document(Section):
    workload: WorkloadSection
    server: ServerSection
    simulate: SimulateSection = SimulateSection()
    plan: Any = None  # what `penstock plan` looks for, and
    sweep: Any = None  # what `penstock sweep` varies: each reads its own

    @classmethod
    def known_keys(cls) -> list[str]:
        """Return the keys of a scenario, that of networks too."""
        return [*super().known_keys(), "network"]


@dataclasses.dataclass(frozen=True)
class Scenario(OfSystem):
    """What a scenario file describes, ready to use."""

    name: str  # the file's
    system: "Network | tuple[Workload, Server]"
    # How much to simulate: arrivals of requests or jobs, or seconds since the first; one of them is
    # None, both for whole recordings of a network.
    arrivals: int | None
    until: float | None
    folder: Path  # where the file's own paths are looked for
    file: str = "scenario.yaml"  # its path, for commands that name it
    # Where the batch times of a server are from; None: they stand in the scenario.
    measured: BatchTimeFile | None = None
    # How the file calls what each pool runs on, a server under ``server``; empty: it has no name.
    hardware: Mapping[str, str] = dataclasses.field(default_factory=dict)
    outages: "tuple[Outage, ...]" = ()  # replicas that die and come back while it is simulated

    @property
    def _has_no_server(self) -> str:
        return f"{self.file} describes a network, not a server; ask `penstock check {self.file}`"


def read_scenario(path: str | Path) -> Scenario:
    """Read a scenario file."""
    path = checks.path("the name of a scenario", path)
    return build(read_document(path), path.parent, path.name)


def build(document: Any, folder: Path, name: str = "scenario") -> Scenario:
    """Return the scenario that a parsed YAML document describes, of a server or of a network."""
    if describes_network(document):
        # Imported here, as a server alone does without networks.
        from penstock.scenario.network import network_of

        described = network_of(document, folder, name)
    else:
        described = _server_of(document, folder, name)
    return Scenario(name=Path(name).stem, folder=folder, file=str(folder / name), **described)


def _server_of(document: Any, folder: Path, name: str) -> dict[str, Any]:
    """Return the workload and the server of a scenario, as its fields."""
    sections = parsed(document, _Document, name, "`workload` and `server`, or `network`")
    simulate = sections.simulate
    arrivals = simulate.arrivals("requests")
    workload = sections.workload.build(folder, simulate.seed)
    server = sections.server.build(folder)
    notices = [*workload.notices]
    if server.order == "priority" and workload.priority is None:
        notices.append(
            "no request has a priority (a trace has them with `columns: {priority: NAME}`): first "
            "come, first served"
        )
    if server.policy.queue.reads_declared and workload.declared is None:
        notices.append(
            f"no request declares its most output tokens (`declared` of the workload, or a trace's "
            f"`columns: {{declared_tokens: NAME}}`), by which {server.policy.name} admits: each is "
            "taken to declare the output that it makes"
        )
    notices += sections.server.notes(folder, server)
    if arrivals is None and simulate.until is None:
        arrivals = workload.rows or DEFAULT_ARRIVALS
    return {
        "system": (dataclasses.replace(workload, notices=tuple(notices)), server),
        "arrivals": arrivals,
        "until": simulate.until,
        "measured": sections.server.measured(folder),
        "hardware": {"server": sections.server.hardware_name},
    }


def describes_network(document: Any) -> bool:
    """Return whether a parsed YAML document is a scenario of a network, and not of a server."""
    return isinstance(document, dict) and "network" in document
