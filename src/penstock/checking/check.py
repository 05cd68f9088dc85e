"""Is it stable, what can it carry, at what latency: theorem, test and run of one system."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from penstock import checks
from penstock.checking.answer import Answer
from penstock.checking.stability import Stability
from penstock.checking.targets import Target, parsed_targets, refuse_gaps_of_one_token
from penstock.checking.verdict import checked, verdict
from penstock.simulation.progress import Progress, part_of
from penstock.system.kinds import (
    OF_CLIENTS,
    OF_GUARDED,
    as_network,
    is_guarded,
    refuse,
)
from penstock.system.outages import Outage, listed
from penstock.system.prefix_cache import as_serving
from penstock.system.server import Server
from penstock.theory.certify import certify
from penstock.workload.workload import ClosedLoop, Workload

if TYPE_CHECKING:
    from penstock.checking.closed_loop import ClosedAnswer
    from penstock.checking.overload import OverloadAnswer
    from penstock.system.network import Network


# Of the work, for the progress bar: the test of a server, and that of a network.
_TEST_SHARE, _FLOOD_SHARE = 0.2, 0.5


@overload
def check(  # type: ignore[overload-overlap]
    workload: ClosedLoop,
    server: Server,
    *,
    requests: int | None = None,
    targets: Sequence[Target | str] = (),
    progress: Progress | None = None,
    certified: Callable[[None], object] | None = None,
) -> "ClosedAnswer": ...
@overload
def check(
    workload: "Workload | Network",
    server: Server | None = None,
    *,
    requests: int | None = None,
    jobs: int | None = None,
    until: float | None = None,
    seed: int | None = None,
    targets: Sequence[Target | str] = (),
    precision: float | None = None,
    alpha: float | None = None,
    resolution: float | None = None,
    estimate_memory: bool = True,
    progress: Progress | None = None,
    outages: Sequence[Outage] = (),
    stability: Stability | None = None,
    certified: Callable[[Any], object] | None = None,
) -> Answer: ...
def check(
    workload: "Workload | Network",
    server: Server | None = None,
    *,
    requests: int | None = None,
    jobs: int | None = None,
    until: float | None = None,
    seed: int | None = None,
    targets: Sequence[Target | str] = (),
    precision: float | None = None,
    alpha: float | None = None,
    resolution: float | None = None,
    estimate_memory: bool = True,
    progress: Progress | None = None,
    outages: Sequence[Outage] = (),
    stability: Stability | None = None,
    certified: Callable[[Any], object] | None = None,
) -> "Answer | ClosedAnswer | OverloadAnswer":
    """Certify a system, test it, simulate it, and refuse the latency of a steady state that it has
    not.

    Clients who wait for their answers (`Workload.closed`) are stable by construction: of them it
    says at what throughput and latency they are served. So is what refuses requests, or whose
    clients leave (`QueueLimit`, `Patience`): of that it says who is served.

    Parameters
    ----------
    workload, server, requests, jobs, until, seed
        As in `penstock.simulate`. Runs of networks keep their requests, so they have up to ten
        million jobs.
    targets
        Upper limits of latencies, such as ``ttft_p99<2s``. See `Target.parse`. Of several stages
        or workflows the one furthest from its limit counts. While one is undecided the run becomes
        longer, up to 16 times.
    precision
        Simulate until mean latencies are known to it: 0.05 is 5%. It is the largest half-width of
        their intervals, over the value; until then the run becomes longer, up to 16 times.
    alpha, resolution
        As in `penstock.verdict`.
    estimate_memory
        Of a server: whether to note what is carried once KV memory is full, where there is an
        estimate, and at which KV memory the verdict on an engine would turn, where none was given
        (it may take seconds).
    progress
        Called now and then with the share that is done.
    outages
        Of a network: replicas that die and come back, in a further run of the same jobs, which says
        what they do to latency. Verdicts and the steady state are without them: what ends does not
        change whether a backlog grows for ever.
    stability
        What `penstock.verdict` says with this alpha, this resolution and the seed of the workload,
        where that is known: the test is not run again.
    certified
        Called with the certificate, before anything is simulated; None of a closed loop.

    Raises
    ------
    InputError
        If a value cannot be used.
    """
    limits = parsed_targets(targets)
    estimate_memory = checks.truth("estimate_memory", estimate_memory)
    if isinstance(workload, Workload) and isinstance(server, Server):
        refuse(jobs=jobs, seed=seed, outages=listed(outages) or None)
        refuse_gaps_of_one_token(limits, workload)
        if is_guarded((workload, server)):
            refuse(OF_GUARDED, precision=precision, alpha=alpha, resolution=resolution)
            from penstock.checking import overload

            server = as_serving(workload, server)
            return overload.overload_answer(
                (workload, server), requests, until, None, limits, progress, certified
            )
        if isinstance(workload, ClosedLoop):
            refuse(OF_CLIENTS, until=until, precision=precision, alpha=alpha, resolution=resolution)
            from penstock.checking.closed_loop import closed_answer

            return closed_answer(workload, server, requests, limits, progress, certified)
        from penstock.checking.check_server import RunAsked, answer_of_server

        asked = RunAsked(workload, requests, until, limits, precision)
        checked(False, alpha, resolution)
        server = as_serving(workload, server)
        system: tuple[Any, ...] = (workload, server)
        ends, share = False, _TEST_SHARE
        test = partial(verdict, workload, server, alpha, resolution, workload.seed)
        answer: Callable[..., Answer] = partial(answer_of_server, asked, server, estimate_memory)
    else:
        network = as_network("check", workload, server)
        refuse(requests=requests, alpha=alpha, estimate_memory=None if estimate_memory else False)
        if network.guarded:
            refuse(OF_GUARDED, precision=precision, resolution=resolution, outages=outages or None)
            from penstock.checking import overload

            return overload.overload_answer(network, jobs, until, seed, limits, progress, certified)
        from penstock.checking.check_network import JobsAsked, answer_of_network
        from penstock.system.network import own_seed

        of_jobs = JobsAsked(network, jobs, until, seed, limits, precision, outages)
        checked(True, None, resolution)
        system = (network,)
        ends, share = network.ends, _FLOOD_SHARE
        of_floods = own_seed(network.workflows[0]) if seed is None else seed
        test = partial(verdict, network, resolution=resolution, seed=of_floods)
        answer = partial(answer_of_network, of_jobs, resolution)
    # What cannot be done was refused before the test, not after.
    certificate = certify(*system)
    if certified is not None:
        certified(certificate)
    if stability is None and not ends:
        stability = test(progress=part_of(progress, 0.0, share))
    return answer(stability, certificate, part_of(progress, share, 1.0))
