"""Where a workload lies in the region of a server, what holds it back, and what more would bring."""

import dataclasses
from typing import Any

from penstock.system.server import Server
from penstock.theory.load import load
from penstock.theory.region import Optimum, Region, linear_program, region, sarathi_region
from penstock.workload.workload import Workload


@dataclasses.dataclass(frozen=True, eq=False)
class OperatingPoint:
    """A workload in the region of a server.

    Attributes
    ----------
    region
        Prefill and decode tokens/s that some policy may carry.
    point
        Those that arrive.
    optimum
        How the server carries the most in the same proportion, and what binds.
    own
        The region of the policy itself, where it is another and known, else None: of Sarathi-Serve under a max batch
        size, for prompts so long that one of them fills what the decodes leave of a batch.
    arrival_rate
        Requests/s.
    """

    region: Region
    point: tuple[float, float]
    optimum: Optimum
    own: Region | None
    arrival_rate: float

    @property
    def margin(self) -> float:
        """What is left before the boundary, as a share of it; negative outside."""
        return self.region.margin(self.point)

    @property
    def max_rate(self) -> float:
        """Requests/s at the boundary: above it no policy is stable."""
        return self.arrival_rate / (1 - self.margin)

    @property
    def own_max_rate(self) -> float | None:
        """Requests/s at the boundary of the policy's own region, at most those of any policy; for long prompts."""
        return None if self.own is None else min(self.arrival_rate / (1 - self.own.margin(self.point)), self.max_rate)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form of ``region``."""
        best = self.optimum
        return {
            "vertices": self.region.vertices.tolist(),
            "point": {"prefill_tokens_per_s": self.point[0], "decode_tokens_per_s": self.point[1]},
            "arrival_rate": self.arrival_rate,
            "inside": self.region.contains(self.point),
            "margin": self.margin,
            "max_rate": self.max_rate,
            "binding": list(best.binding),
            "prices": {
                "seconds_per_prefill_token": best.seconds_per_prefill_token,
                "seconds_per_decode_token": best.seconds_per_decode_token,
                "seconds_per_prefill_request": best.seconds_per_prefill_request,
                "tokens_per_s_per_slot": best.slot_price,
            },
            "mix": [use._asdict() for use in best.mix],
            "own": None
            if self.own is None
            else {"vertices": self.own.vertices.tolist(), "max_rate": self.own_max_rate},
        }


def operating_point(workload: Workload, server: Server) -> OperatingPoint:
    """Return where a workload lies in the region of a server.

    Parameters
    ----------
    workload, server
        What arrives and what serves.

    Raises
    ------
    InputError
        If the workload has no arrival rate.
    """
    asked = load(workload, server)
    decode = asked.tokens_per_request - workload.mean_prompt
    budget, slots = server.token_budget, server.max_batch_size
    long_prompts = slots is not None and slots < budget and workload.mean_prompt >= budget - slots + 1
    direction = (workload.mean_prompt, decode)
    return OperatingPoint(
        region=region(server, prompt=workload.lengths),
        point=(asked.arrival_rate * direction[0], asked.arrival_rate * direction[1]),
        optimum=linear_program(server, direction, prompt=workload.lengths),
        own=sarathi_region(server) if long_prompts and server.policy.name == "sarathi" else None,
        arrival_rate=asked.arrival_rate,
    )
