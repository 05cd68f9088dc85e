"""Loads of the links between two pools, in bytes."""

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError


@dataclasses.dataclass(frozen=True)
class TransferLoads:
    """How much of the links between two pools is asked for, on either side."""

    bytes_per_s: float  # that cross
    # Loads: those bytes over what all links of that side carry. Above 1 what waits for the transfer
    # grows for ever.
    sending: float
    receiving: float

    @property
    def load(self) -> float:
        """The higher of the two."""
        return max(self.sending, self.receiving)

    @property
    def max_scale(self) -> float:
        """Factor on the rate above which no policy is stable."""
        return math.inf if self.load == 0 else 1 / self.load


def transfer_loads(
    rate: float,
    prompt_tokens: float,
    bytes_per_token: float,
    sending: npt.ArrayLike,
    receiving: npt.ArrayLike,
) -> TransferLoads:
    """Return the loads of the links over which a prefill pool hands KV entries to a decode pool.

    Each request moves ``prompt_tokens`` x ``bytes_per_token`` bytes on average, out of one replica
    and into another. A link carries at most its bandwidth, so by conservation of bytes a load
    above 1 on either side means that requests whose transfer is not done pile up without end,
    whatever the policy, the routers and the order of transfers. Below 1 on both sides nothing
    follows: routers may still send too much over one link.

    Parameters
    ----------
    rate
        Requests/s whose KV entries move; long-run averages suffice.
    prompt_tokens
        Tokens whose entries a request moves, on average.
    bytes_per_token
        Of KV entries in all layers.
    sending, receiving
        Shape (replicas,), bytes/s that the link of each replica of the prefill pool, and of the
        decode pool, carries; infinite: no limit.

    Raises
    ------
    InputError
        If a number cannot be used.

    >>> found = transfer_loads(10, 2_000, 131_072, [2e9, 2e9], [4e9])
    >>> found.bytes_per_s, found.sending, found.receiving
    (2621440000.0, 0.65536, 0.65536)
    """
    reason = "what moves per second follows from it"
    moved = (
        checks.number("the rate", rate, 0, 1e12, "requests/s", reason)
        * checks.number("prompt_tokens", prompt_tokens, 0, 1e12, "tokens", reason)
        * checks.number("bytes_per_token", bytes_per_token, 0, 1e15, "bytes", reason)
    )
    return TransferLoads(
        moved, moved / _bandwidth("sending", sending), moved / _bandwidth("receiving", receiving)
    )


def _bandwidth(side: str, links: npt.ArrayLike) -> float:
    """Return what all links of a side carry together, bytes/s."""
    carried = np.atleast_1d(np.asarray(links, np.float64))
    if carried.ndim != 1 or carried.size == 0 or not (carried > 0).all():
        raise InputError(
            f"the bandwidths of the {side} replicas are {checks.shown(links)}, but each is above 0 "
            "bytes/s; give one for every replica"
        )
    return float(carried.sum())
