"""Is it stable by theorem? Of a workload on a server, or of a network."""

from typing import TYPE_CHECKING, overload

from penstock.system.kinds import as_network, refuse_guarded
from penstock.system.server import Server
from penstock.theory.certificate import Certificate, of_server
from penstock.theory.hypotheses import of_replica
from penstock.theory.load import load, refuse_no_rate
from penstock.workload.workload import Workload

if TYPE_CHECKING:
    from penstock.system.network import Network


@overload
def certify(workload: Workload, server: Server) -> Certificate: ...
@overload
def certify(network: "Network", /) -> Certificate: ...
def certify(workload: "Workload | Network", server: Server | None = None) -> Certificate:
    """Say by theorem whether a workload on a server, or a network, is stable, where a theorem can.

    A server is a network of one pool of one replica. Which theorems say *stable* and *unstable*,
    and what they ask for, heads `penstock.theory.certificate`.

    Parameters
    ----------
    workload, server
        What arrives and what serves; or a network alone.

    Returns
    -------
    Certificate
        ``unknown`` where hypotheses fail, naming them, with the margin of the necessary condition.

    Raises
    ------
    InputError
        If something has no arrival rate, or a request of a server can never be served.
    """
    if isinstance(workload, Workload) and isinstance(server, Server):
        refuse_no_rate(workload)
        alone = load(workload, server)
        return of_server(alone, of_replica(alone), by_arrival=server.order == "fcfs")
    network = as_network("certify", workload, server)
    refuse_guarded(network)
    from penstock.theory.network.certificate import of_network  # servers need not wait for it

    return of_network(network)
