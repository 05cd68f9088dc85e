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
    """Return a replica's stable rates at every pair of limits of the space; None: one pair."""
    # All else is as in a deployment. Recorded arrivals keep their pattern, not thinned to a share.
    servers = [family.smallest.server for family in space.families]
    budgets = sorted({server.token_budget for server in servers})
    sizes = {server.max_batch_size for server in servers}
    if len(budgets) * len(sizes) < 2:
        return None
    return rate_map(workload, deployment.server, budgets, list(sizes), progress=progress)
