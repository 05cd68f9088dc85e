"""What a command asks about: a scenario with the choices of the command line over it."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from penstock.errors import InputError
from penstock.show.answers import Meaning
from penstock.show.options import Form, files_of

if TYPE_CHECKING:
    from penstock.scenario.scenario import Scenario

_OF_SERVER = ("policy", "requests", "alpha")
_OF_NETWORK = ("routers", "orders", "jobs")
# the length of a run: requests of one server, jobs of a network
_INSTEAD = {"requests": "--jobs", "jobs": "--requests"}


def chosen_scenario(
    path: Path,
    form: Form,
    choices: dict[str, Any],
    *,
    of_network: tuple[str, ...] = (),
    server_alone: str = "",
) -> "tuple[Scenario, dict[str, Any]]":
    """Read a scenario with choices over it (None: not made), and return besides what is left to
    ask; refuse what only the other kind of system has.

    ``server_alone``: why a network is refused, and which command answers for one (``{path}``);
    empty: it is not.
    """
    from penstock.document import read_document
    from penstock.scenario.scenario import build, describes_network
    from penstock.system.policies import resolve

    form.check(files_of(path))
    options = {name: value for name, value in choices.items() if value is not None}
    document = read_document(path)
    is_network = describes_network(document)
    if is_network and server_alone:
        raise InputError(f"{path} describes a network, and {server_alone.format(path=path)}")
    if not server_alone:
        _refuse(path, options, is_network, (*_OF_NETWORK, *of_network))
    scenario = build(document, path.parent, path.name)
    if not is_network:
        workload, server = scenario.workload, scenario.server
        if "policy" in options:
            server = server.with_policy(resolve(options.pop("policy"), folder=scenario.folder))
        if "seed" in options:
            workload = workload.with_seed(options.pop("seed"))
        scenario = dataclasses.replace(scenario, system=(workload, server))
    unit = "jobs" if is_network else "requests"
    if unit in options:
        scenario = dataclasses.replace(scenario, arrivals=options[unit], until=None)
    return scenario, options | {unit: scenario.arrivals}


def _refuse(
    path: Path, options: dict[str, Any], is_network: bool, of_network: tuple[str, ...]
) -> None:
    """Refuse what only the other kind of system is asked."""
    for name in _OF_SERVER if is_network else of_network:
        if name in options:
            what = "a network" if is_network else "one server"
            remedy = f"give {_INSTEAD[name]}" if name in _INSTEAD else "leave it out"
            option = "target" if name == "targets" else name
            raise InputError(f"{path} describes {what}, which knows no --{option}; {remedy}")


class Measured(TypedDict):
    """Where batch times come from."""

    description: Annotated[str, Meaning("What was measured, in a line.")]
    source: Annotated[str, Meaning("Which measurements these were, or who published them.")]
    year: Annotated[int | None, Meaning("When they were made, or published.")]


def measured(scenario: "Scenario") -> Measured | None:
    """Return where the batch times come from, None where they stand in the scenario."""
    of = scenario.measured
    if of is None:
        return None
    return Measured(description=of.description, source=of.source, year=of.year)
