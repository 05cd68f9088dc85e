"""One question, two kinds of system: a workload on a server, or a network."""

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock import checks
from penstock.errors import InputError
from penstock.system.server import Server
from penstock.workload.workload import Workload

if TYPE_CHECKING:
    from penstock.system.network import Network

System: TypeAlias = "Network | tuple[Workload, Server]"
"""What is asked about; a workload and a server are short for a network of one."""


class OfSystem:
    """What is about a system: a network, or a workload and a server, which are short for one."""

    system: "System"

    @property
    def is_network(self) -> bool:
        """Whether the system is described as pools and workflows."""
        return not isinstance(self.system, tuple)

    @property
    def workload(self) -> Workload:
        """What arrives at the server."""
        return self._of_server[0]

    @property
    def server(self) -> Server:
        """What serves it."""
        return self._of_server[1]

    @property
    def _of_server(self) -> "tuple[Workload, Server]":
        if isinstance(self.system, tuple):
            return self.system
        raise InputError(self._has_no_server)

    @property
    def _has_no_server(self) -> str:
        """What to say where a server is asked for."""
        return "this is about a network, which has `pools` and `workflows`, and not one server"

    @functools.cached_property
    def network(self) -> "Network":
        """The network; a workload and a server are short for one pool and one workflow."""
        from penstock.system.network import Network  # questions about a server need not wait for it

        return Network.single(*self.system) if isinstance(self.system, tuple) else self.system


def asked_about(system: "System") -> "tuple[Any, ...]":
    """Return a system as questions take it: a workload and a server, or a network alone."""
    return system if isinstance(system, tuple) else (system,)


def is_guarded(system: "System | Server") -> bool:
    """Whether requests may be refused, or their clients leave."""
    if isinstance(system, Server):
        return system.queue_limit is not None
    if isinstance(system, tuple):
        return system[0].patience is not None or system[1].queue_limit is not None
    return system.guarded


def unguarded(system: "System") -> "System":
    """Return the same system with nobody refused, whose clients wait for ever."""
    if not is_guarded(system):
        return system
    if isinstance(system, tuple):
        workload, server = system
        return workload.with_patience(None), dataclasses.replace(server, queue_limit=None)
    return system.unguarded


def refuse_guarded(*systems: "System | Server") -> None:
    """Refuse limits on queues, and clients who leave, where only the long run without is known."""
    if any(map(is_guarded, systems)):
        raise InputError(
            "with queue_limit, router_limit or patience every rate is stable, and `penstock check` "
            "says who is served; this is answered of requests that are all let in and wait for "
            "ever: leave these three out"
        )


_REFUSED = {
    "jobs": "a server has requests, not jobs; give requests=...",
    "most_jobs": "a server has arrivals of requests, not of jobs; give most_arrivals=...",
    "seed": "a server draws by the seed of its workload, not by another; give "
    "workload.with_seed(...)",
    "requests": "a network has jobs, not requests; give jobs=...",
    "most_arrivals": "a network has arrivals of jobs, not of requests; give most_jobs=...",
    "alpha": "the test of a network has a resolution, not an alpha; give resolution=...",
    "outages": "a server has no others that go on without it; ask about a network of one pool",
    "estimate_memory": "a network has no estimate of its KV memory; leave estimate_memory out",
}


def as_network(verb: str, system: object, server: object) -> "Network":
    """Return the system where it is a network: what was asked of is no workload on a server."""
    from penstock.system.network import Network  # questions about a server need not wait for it

    if isinstance(system, Network) and server is None:
        return system
    raise InputError(
        f"{verb} takes a Workload and a Server, or a Network alone, not {checks.shown(system)} and "
        f"{checks.shown(server)}"
    )


def refuse_all_but_a_server(verb: str, workload: object, server: object) -> None:
    """Refuse what is no workload on a server, where networks cannot be asked about."""
    if not isinstance(workload, Workload) or not isinstance(server, Server):
        raise InputError(
            f"{verb} takes a Workload and a Server, not {checks.shown(workload)} and "
            f"{checks.shown(server)}"
        )


OF_CLIENTS = (
    "a closed loop is stable by construction, and its run is as long as `requests` says; leave it "
    "out"
)
OF_GUARDED = (
    "with limits on the queue, or clients who leave, nothing is tested: who is served is "
    "simulated; leave it out"
)
"""Why options of tests are refused where there is nothing to test."""


def refuse(because: str = "", **options: object) -> None:
    """Refuse what only the other kind of system has, or for a reason; None is not given."""
    for name, value in options.items():
        if value is not None:
            raise InputError(f"{name} is {checks.shown(value)}, but {because or _REFUSED[name]}")
