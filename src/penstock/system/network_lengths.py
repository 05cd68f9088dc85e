"""What pools make of requests: cut outputs, prompts that are there already, weights of routers."""

from typing import TYPE_CHECKING

import numpy as np

from penstock.inputs.arrays import Ints
from penstock.kernel.signatures import ROUTE_BY_FUNCTION, ROUTE_WORK
from penstock.system.pool import Pool
from penstock.workload.jobs import Jobs

if TYPE_CHECKING:
    from penstock.system.network import Network

_WEIGHT = 1024  # routers weigh requests in whole numbers: mean tokens times this


def router_weights(network: "Network") -> Ints:
    """Return `Network.router_weights`."""
    expected = _WEIGHT * np.column_stack(
        [network.prefill_means + network.decode_means, network.decode_means]
    )
    weights = np.zeros_like(expected)
    for stage, name in enumerate(network.pool_names):
        router = network.pools[name].router
        if router.code in (ROUTE_WORK, ROUTE_BY_FUNCTION):
            weights[stage] = (
                _WEIGHT * np.array([router.prefill_weight, router.decode_weight])
                if router.prefill_weight is not None
                else expected[stage]
            )
    # what is above 0 stays so: a measure vanishes at empty replicas only
    return np.maximum(np.rint(weights), weights > 0).astype(np.int64)


def outputs_left(network: "Network", jobs: Jobs) -> Ints:
    """Return the outputs that longest contexts leave of those of requests, shape (requests,)."""
    output = jobs.output.astype(np.int64)
    received = network.received(jobs)
    pool = network.stage_pool[jobs.stage]
    for index, each in enumerate(network.pools.values()):
        if not network.cuts_outputs[index]:
            continue
        policy = each.server.policy
        here = np.flatnonzero((pool == index) & (output > 0))
        most = policy.outputs_of(jobs.prompt[here].astype(np.int64), output[here])
        # What comes from elsewhere has a token already, which is not in its KV memory yet.
        room = np.maximum(policy.memory.longest_context - received[here] - 1, 0)
        output[here] = np.where(received[here] > 0, np.minimum(output[here], room), most)
    return output


def reuse_depends(network: "Network", index: int, pool: Pool) -> bool:
    """Return whether what requests find of their prompts in a pool depends on the run."""
    visitors = [
        workflow
        for workflow, first, last in zip(
            network.workflows, network.first_stage[:-1], network.first_stage[1:], strict=True
        )
        if index in network.stage_pool[first:last]
    ]
    reuses = any(workflow.reuses for workflow in visitors)
    if pool.server.by_lines:
        kept = network.retention_s is None and (pool.replicas == 1 or pool.affinity)
        return reuses and not kept
    recorded = any(workflow.prefixes is not None for workflow in visitors)
    return pool.caches_prefixes and (reuses or recorded)
