"""What is asked of a watch."""

import dataclasses
import math
from typing import Annotated

from penstock.errors import InputError
from penstock.fields import Checked, Range


@dataclasses.dataclass(frozen=True)
class Settings(Checked):
    """What is asked of a watch."""

    # Share of watches with a wrong verdict that the test aims at, over all looks.
    alpha: Annotated[float, Range(1e-9, 0.5, "", "it is a share of watches")] = 0.05
    queue_limit: float | None = None  # requests in the queue until which the time is wanted
    ttft_s: float | None = None  # to the first token, until which the time is wanted
    # At which replicas needed are counted.
    target_load: Annotated[float, Range(0.01, 0.99, "", "an engine needs some room")] = 0.8

    def settle(self) -> None:
        """Refuse limits that nothing meets."""
        for name in ("queue_limit", "ttft_s"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise InputError(f"{name} is {value}; give a number above 0, or leave it out")
