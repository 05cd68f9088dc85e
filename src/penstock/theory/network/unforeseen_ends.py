"""What the requests of each stage of a network cost after ends that nobody foresees: see
`penstock.theory.unforeseen`.
"""

from penstock.system.network import Network
from penstock.system.server import Server
from penstock.theory.unforeseen import NONE, Share, share, wastes_each
from penstock.workload.sessions import Sessions
from penstock.workload.stage import Stage
from penstock.workload.workflow import Workflow


def wasted_at_stages(network: Network) -> list[Share]:
    """Return least and most mean tokens a request costs after its end; shape (stages,)."""
    shares = []
    for workflow in network.workflows:
        for stage in workflow.stages.values():
            servers = [server for server, _ in network.pools[stage.pool].servers]
            shares.append(_at_stage(workflow, stage, servers))
    return shares


def declares(workflow: Workflow | Sessions) -> bool:
    """Return whether requests of a workflow may declare more outputs than they make."""
    if isinstance(workflow, Sessions):
        return workflow.recorded.declared is not None
    return workflow.arrivals.declared is not None


def _at_stage(workflow: Workflow | Sessions, stage: Stage, servers: list[Server]) -> Share:
    ahead = any(server.policy.batching.ahead for server in servers)
    if not (ahead and declares(workflow)):
        return NONE
    if isinstance(workflow, Sessions):
        return 0.0, 1.0
    lengths, declared = workflow.arrivals.lengths, workflow.arrivals.declared
    if declared is None or stage.output not in ("job", "rest"):
        return NONE
    low, high = share(lengths, declared)
    each = all(wastes_each(server, lengths) and server.memory is None for server in servers)
    return (low if each and (stage.prompt, stage.output) == ("job", "job") else 0.0), high
