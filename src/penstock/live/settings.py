"""What is asked of a watch."""

import dataclasses
import math

from penstock import checks
from penstock.errors import InputError


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is asked of a watch."""

    # Share of watches with a wrong verdict that the test aims at, over all looks.
    alpha: float = 0.05
    queue_limit: float | None = None  # requests in the queue until which the time is wanted
    ttft_s: float | None = None  # to the first token, until which the time is wanted
    target_load: float = 0.8  # at which replicas needed are counted

    def __post_init__(self) -> None:
        checks.number("alpha", self.alpha, 1e-9, 0.5, "", "it is a share of watches")
        above = "an engine needs some room"
        checks.number("target_load", self.target_load, 0.01, 0.99, "", above)
        for name in ("queue_limit", "ttft_s"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise InputError(f"{name} is {value}; give a number above 0, or leave it out")
