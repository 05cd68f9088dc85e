"""Hardware that has been measured: batch-time models by name, with their source."""

import dataclasses

from penstock.checks import shown
from penstock.errors import InputError, nearest
from penstock.system.batch_time import BatchTime, PiecewiseConstant


@dataclasses.dataclass(frozen=True)
class Hardware:
    """A model on a machine.

    Attributes
    ----------
    name
        What a scenario's ``hardware`` key says.
    description
        Model, accelerator, parallelism.
    batch_time
        Seconds of a batch given its tokens.
    source
        Where the numbers come from.
    """

    name: str
    description: str
    batch_time: BatchTime
    source: str


_PAPER = "Dai, Deng, Li, Peng: Throughput-Optimal Scheduling Algorithms for LLM Inference and AI Agents, Section 2.3"

HARDWARE: dict[str, Hardware] = {
    entry.name: entry
    for entry in (
        Hardware(
            f"codellama-34b-a100-tp{degree}",
            f"CodeLlama-34B on {degree} A100 80 GB, tensor parallel {degree}",
            PiecewiseConstant(c, a, 128),
            _PAPER,
        )
        for degree, c, a in ((1, 11.28e-3, 35.47e-3), (2, 7.24e-3, 18.03e-3), (4, 6.96e-3, 8.69e-3))
    )
}
"""Known hardware by name."""


def hardware(name: str) -> Hardware:
    """Return the preset of that name.

    Raises
    ------
    InputError
        If there is none; it says which there are.
    """
    if name not in list(HARDWARE):  # a list: the name may not be hashable
        raise InputError(f"unknown hardware {shown(name)}{nearest(str(name), HARDWARE)}; or give `batch_time` yourself")
    return HARDWARE[name]
