"""Load: how much is asked of a server, and how much it can give."""

import dataclasses

from penstock.errors import InputError
from penstock.system.server import Server
from penstock.workload.workload import Workload


@dataclasses.dataclass(frozen=True)
class Load:
    """What a workload asks of a server.

    Attributes
    ----------
    arrival_rate
        Requests/s.
    tokens_per_request
        Forward tokens of a request, on average: prompt + output (convention ``paper``), or prompt + output - 1
        (``engine``: the end of prefill yields the first output token).
    capacity_tokens_per_s
        max over 1 <= b <= token budget of b / t_b: no policy processes more (Theorem 1(a)).
    best_token_load
        The b at which that maximum is attained.
    full_batch_tokens_per_s
        b_max / t_bmax: what batches filled to the token budget process.
    """

    arrival_rate: float
    tokens_per_request: float
    capacity_tokens_per_s: float
    best_token_load: int
    full_batch_tokens_per_s: float

    @property
    def offered_tokens_per_s(self) -> float:
        """Forward tokens that arrive per second."""
        return self.arrival_rate * self.tokens_per_request

    @property
    def rho(self) -> float:
        """Offered token rate over the capacity (eq:load>, eq:load<)."""
        return self.offered_tokens_per_s / self.capacity_tokens_per_s

    @property
    def max_rate(self) -> float:
        """Requests/s above which no policy is stable."""
        return self.capacity_tokens_per_s / self.tokens_per_request


def load(workload: Workload, server: Server) -> Load:
    """Return what a workload asks of a server.

    Raises
    ------
    InputError
        If the workload has no arrival rate.
    """
    if not workload.rate > 0:
        raise InputError(
            f"{workload.name} has no arrival rate (its requests span no time, or next to none), so it has no load; "
            "give a rate with arrivals 'poisson'"
        )
    best, capacity = server.batch_time.best_load(server.token_budget)
    return Load(
        arrival_rate=workload.rate,
        tokens_per_request=server.tokens_per_request(workload.mean_prompt, workload.mean_output),
        capacity_tokens_per_s=capacity,
        best_token_load=best,
        full_batch_tokens_per_s=server.token_budget / float(server.batch_time(server.token_budget)),
    )
