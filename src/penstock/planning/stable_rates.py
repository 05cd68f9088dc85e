"""What one replica carries at each token budget and max batch size of a search space."""

from collections.abc import Callable

from penstock.capacity.stable_rates import RateMap, rate_map
from penstock.planning.deployment import Deployment
from penstock.planning.space import Space
from penstock.workload.workload import Workload


def stable_rates(
    workload: Workload,
    space: Space,
    deployment: Deployment,
    *,
    progress: Callable[[float], None] | None = None,
) -> RateMap | None:
    """Return the stable rates of a replica at every pair of limits of the space, all else as in a
    deployment. Recorded arrivals keep their pattern, not thinned to a replica's share. None: the
    space has but one pair of limits.
    """
    servers = [family.smallest.server for family in space.families]
    budgets = sorted({server.token_budget for server in servers})
    sizes = {server.max_batch_size for server in servers}
    if len(budgets) * len(sizes) < 2:
        return None
    return rate_map(workload, deployment.server, budgets, list(sizes), progress=progress)
