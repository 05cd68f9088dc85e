"""What JSON has of a run, beside what the test says."""

from typing import Annotated

from penstock.show.answers import Meaning
from penstock.simulation.run import Run
from penstock.simulation.run_data import RunData


class Simulation(RunData):
    """What was simulated from empty."""

    verdict: Annotated[str | None, Meaning("That of the test; null where there is none.")]


def simulation(run: Run, verdict: str | None) -> Simulation:
    """Return what JSON has of a run."""
    return {"verdict": verdict, **run.as_dict()}
