"""The requests of an item that the paper drives by a recorded trace, whose rate and number it does
not give.
"""

from collections.abc import Mapping
from typing import TypeVar

from penstock.reproducing.setup import Setup
from penstock.scenario.scenario import Scenario
from penstock.simulation.run import Run
from penstock.simulation.simulate import simulate
from penstock.system.server import Server
from penstock.workload.workload import Workload

Name = TypeVar("Name")


def traced(setup: Setup, trace: str) -> tuple[Workload, str, Scenario]:
    """Return the workload of a scenario file, else the recorded trace that the item names, or its
    look-alike.

    Returns
    -------
    tuple of Workload, str and Scenario
        What arrives, what has to be said of it, and the file as a scenario, for its server and how
        much to simulate.
    """
    if "workload" in setup.document:
        scenario = setup.scenario()
        return (
            scenario.workload,
            f"the requests are those of the scenario: {scenario.workload.name}",
            scenario,
        )
    workload, origin = setup.recorded(trace)
    # A scenario has one; its seed is the file's.
    scenario = setup.scenario(workload={"preset": "azure-code"})
    return workload.with_seed(scenario.workload.seed), origin, scenario


def served_to_the_last(
    workload: Workload, count: int, servers: Mapping[Name, Server]
) -> dict[Name, Run]:
    """Return a run of each server with the same first requests, all of which are served, overloaded
    or not.
    """
    first = workload.requests(count)
    finite = Workload.from_arrays(first.arrival_s, first.prompt_tokens, first.output_tokens)
    return {name: simulate(finite, server, requests=count) for name, server in servers.items()}
