"""Is it stable? By simulation alone; theorem or test is chosen in `penstock.checking.answer`.

The test of a server starts from large backlogs, that of a network from floods.
"""

from typing import TYPE_CHECKING

from penstock import checks
from penstock.simulation.progress import Progress, part_of
from penstock.system.kinds import as_network, refuse, refuse_guarded
from penstock.system.prefix_cache import as_serving
from penstock.system.server import Server
from penstock.workload.workload import Workload

if TYPE_CHECKING:
    from penstock.checking.stability import Stability
    from penstock.system.network import Network

RESOLUTION_OF_NETWORKS = 0.02
"""Of the flood test, unless another is asked for."""


def verdict(
    workload: "Workload | Network",
    server: Server | None = None,
    alpha: float | None = None,
    resolution: float | None = None,
    seed: int = 0,
    *,
    most_arrivals: int | None = None,
    most_jobs: int | None = None,
    progress: Progress | None = None,
) -> "Stability":
    """Say by simulation whether a workload on a server, or a network, is stable.

    Parameters
    ----------
    workload, server
        What arrives (its own seed is not used) and what serves, under any policy and any limits; or
        a network alone, under any policies, orders and routers. Backlogs are put behind front
        ends, whose limit is exact: what has more work than one can do is unstable.
    alpha
        Of a server: error rate of the test, which you choose. Default: 0.01. It is meant where the
        load is at least ``resolution`` away from the largest that is stable. No theorem holds
        it; ``docs/verdicts.md`` says how often the test was right.
    resolution
        Smallest distance from a critical load that must be told, as a share of it. Default: 0.01,
        of a network 0.02.
    seed
        For everything random.
    most_arrivals
        Of a server: arrivals under watch, from each backlog, after which the answer is
        ``undecided``. Default: four times those that the test without a control variate needs on
        average at the resolution.
    most_jobs
        Of a network: jobs that may arrive during one flood before it is undecided. Default: as many
        as bring ten times the initial work over the resolution; where the work stays level before,
        the flood is too small to tell, and a larger one is tried. All floods together stop at some
        forty million requests.
    progress
        Called now and then with the share that is done.

    Raises
    ------
    InputError
        If a value cannot be used, what arrives has no rate or comes to an end, or a policy forms an
        empty batch.
    """
    report = part_of(progress, 0.0, 1.0)
    if isinstance(workload, Workload) and isinstance(server, Server):
        refuse(most_jobs=most_jobs)
        refuse_guarded((workload, server))
        from penstock.checking.drift_test import drift_test

        alpha, resolution = checked(False, alpha, resolution)
        if most_arrivals is not None:
            most = "so many are watched at most"
            checks.whole("most_arrivals", most_arrivals, 1, 10**9, "", most)
        server = as_serving(workload, server)
        return drift_test(
            workload.with_seed(seed), server, alpha, resolution, most_arrivals, report
        )
    network = as_network("verdict", workload, server)
    refuse(alpha=alpha, most_arrivals=most_arrivals)
    refuse_guarded(network)
    network.check_rates()
    from penstock.checking.flood_test import flood_test

    _, resolution = checked(True, None, resolution)
    if most_jobs is not None:
        checks.whole("most_jobs", most_jobs, 1, 10**9, "", "so many arrive at most")
    return flood_test(network, resolution, seed, most_jobs, report)


def checked(is_network: bool, alpha: float | None, resolution: float | None) -> tuple[float, float]:
    """Return what the test of a server or a network goes by, or refuse it."""
    alpha = 0.01 if alpha is None else alpha
    why = "it is the error rate that you choose for the test"
    alpha = checks.number("alpha", alpha, 1e-9, 0.25, "", why)
    default, least = (RESOLUTION_OF_NETWORKS, 1e-3) if is_network else (0.01, 1e-4)
    resolution = default if resolution is None else resolution
    why = "it is a share of the load; finer takes days"
    return alpha, checks.number("resolution", resolution, least, 0.5, "", why)
