"""What each pool of a network is asked for, what sets its limit, and what it did in a run."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np

from penstock.checking.notes import wasteful_budget
from penstock.show.answers import Meaning, computed
from penstock.simulation.run import Run
from penstock.system.network import Network
from penstock.system.pool import Pool
from penstock.theory.attention import prefill_at_least
from penstock.theory.certificate import Certificate
from penstock.theory.hypotheses import CRITICAL_BAND
from penstock.theory.kv_blocks import fits
from penstock.theory.limits import Limit, PoolLoad
from penstock.words import near, near_one, whole
from penstock.workload.workflow import Workflow


@dataclasses.dataclass(frozen=True)
class PoolAnswer:
    """What is asked of a pool, and what it did."""

    name: Annotated[str, Meaning("What the network calls it.", name="Pool")]
    replicas: Annotated[int, Meaning("How many it has.", name="Replicas", format=whole)]
    router: Annotated[str, Meaning("What sends requests to its replicas.")]
    policy: Annotated[str, Meaning("Of each kind of server.", name="Policy")]
    order: Annotated[str, Meaning("Between its stages.", name="Order")]
    rho: Annotated[
        float,
        Meaning(
            "Tokens that arrive over the most that batches of any size process. Where what "
            "requests find of their prompts depends on the run, it counts what is left by what "
            "they found in this one.",
            name="Load",
            format=near_one,
        ),
    ]
    margin: Annotated[
        float,
        Meaning(
            "What is left before the load above which no policy is stable under all limits, as a "
            "share of it; negative where none is stable. 1 - rho where the token budget binds.",
            name="Margin",
            format=near,
        ),
    ]
    binding: Annotated[
        tuple[str, ...],
        Meaning(
            "The limits that set it; `batch time` where none does.",
            name="Held by",
            format=lambda limits: " and ".join(limits) or "-",
        ),
    ]
    drain_s: Annotated[float | None, Meaning("As in `penstock.theory.limits.PoolLoad`.")]
    busy: Annotated[float, Meaning("Share of the simulated time in batches, over all replicas.")]
    tokens_per_s: Annotated[
        float, Meaning("Simulated, all replicas together.", name="Tokens/s", format=whole)
    ]
    tokens_per_batch: Annotated[
        float,
        Meaning(
            "Simulated, on average; 0 without batches. Replicas can be busy all the time at a low "
            "load: with small batches.",
            name="A batch",
            format=whole,
        ),
    ]
    limits: Annotated[tuple[Limit, ...], Meaning("How much of each is asked for.")]
    found_share: Annotated[
        float | None,
        Meaning(
            "Where what requests find of their prompts depends on the run: the share of the tokens "
            "of prompts that they found in this one."
        ),
    ] = None
    rho_at_least: Annotated[float | None, Meaning("Then the load if they found all they may.")] = (
        None
    )
    rho_without_cache: Annotated[float | None, Meaning("And the load if they found nothing.")] = (
        None
    )

    @computed(name="Router", key=None)
    def sends_by(self) -> str:
        """The router, where there is something to choose."""
        return self.router if self.replicas > 1 else "-"


def pool_answers(network: Network, certificate: Certificate, run: Run) -> tuple[PoolAnswer, ...]:
    """Return what each pool is asked for, and what it did."""
    counts = run.by_replica
    busy, tokens, batches = (
        np.bincount(counts.pool, of, len(network.pools))
        for of in (counts.busy, counts.tokens, counts.batches)
    )
    ticks = max(run.end, 1)
    return tuple(
        PoolAnswer(
            name=loaded.name,
            replicas=pool.replicas,
            router=pool.router.name + (" with affinity" if pool.affinity else ""),
            policy=" and ".join(dict.fromkeys(s.policy.name for s, _ in pool.servers)),
            order=pool.order_name,
            **_load_of(network, run, index, loaded),
            binding=loaded.binding,
            drain_s=loaded.drain_s,
            busy=float(busy[index]) / ticks / pool.replicas,
            tokens_per_s=float(tokens[index]) / (ticks * run.tick_s),
            tokens_per_batch=float(tokens[index]) / max(float(batches[index]), 1.0),
            limits=loaded.limits,
        )
        for index, (loaded, pool) in enumerate(
            zip(certificate.pools, network.pools.values(), strict=True)
        )
    )


def _load_of(network: Network, run: Run, index: int, loaded: PoolLoad) -> dict[str, Any]:
    """Return a pool's load and margin, named as in `PoolAnswer`: theory's, or the run's."""
    # Measured by the run where they depend on it.
    without = loaded.rho_without_cache
    if without is None or run.rows is None:
        return {"rho": loaded.rho, "margin": loaded.margin}
    prompts, found, spared = _found_at(network, run, index)
    measured = max(without - spared, loaded.rho)
    return {
        "rho": measured,
        "margin": min(loaded.margin, 1 - measured),
        "found_share": found / max(prompts, 1),
        "rho_at_least": loaded.rho,
        "rho_without_cache": without,
    }


def _found_at(network: Network, run: Run, index: int) -> tuple[int, int, float]:
    """Return prompt tokens served at a pool, those of them found, and the load thus spared."""
    assert run.rows is not None
    rows, model = run.rows, network.model()
    pool = network.pool_list[index]
    here = np.flatnonzero((network.stage_pool[rows.jobs.stage] == index) & (rows.first_token >= 0))
    stage, found = rows.jobs.stage[here], rows.found[here].astype(np.float64)
    capacity = sum(n * s.batch_time.by_tokens.capacity(s.most_tokens) for s, n in pool.servers)
    tokens = np.min(
        [
            prefill_at_least(found, s) * s.batch_time.by_tokens.capacity(s.most_tokens)
            for s, _ in pool.servers
        ],
        axis=0,
    )
    prompts = np.bincount(stage, rows.jobs.prompt[here], len(network.stages))
    # By token of a prompt, for these requests may be longer than others.
    spared = np.bincount(stage, tokens, len(network.stages)) / np.maximum(prompts, 1)
    load = float(model.visits @ (model.prefill * spared)) / capacity
    return int(prompts.sum()), int(found.sum()), load


def pool_warnings(network: Network, pools: Sequence[PoolAnswer], run: Run) -> list[str]:
    """Say what limits waste, where they bind although tokens would fit, what loads leave out."""
    warnings = [*_idle_priorities(network), *reuse_warnings(network, run)]
    for answer, pool in zip(pools, network.pools.values(), strict=True):
        warnings += _server_warnings(answer.name, pool)
        warnings += _too_long(network, answer.name)
        if answer.margin < -CRITICAL_BAND and answer.rho < 1:
            tightest = max(answer.limits, key=lambda limit: limit.load).name
            slots = ""
            if tightest == "max batch size" and len(pool.servers) == 1:
                slots = f" of {pool.server.max_batch_size:,}"
            warnings.append(
                f"no policy is stable at pool {answer.name}: its load is {answer.rho:.3f}, but "
                f"its {tightest}{slots} lets it carry {1 / (1 - answer.margin):.3f} times "
                "what arrives; raise it"
            )
    return warnings


def reuse_warnings(network: Network, run: Run) -> list[str]:
    """Say how much of the prompts was found, where loads do not know it."""
    if network.reuse_is_certain or run.rows is None:
        return []
    return [
        f"in this run replicas had {run.found_share:.1%} of the prompt tokens already; loads and "
        "margins count what is left (measured)"
    ]


def _too_long(network: Network, name: str) -> list[str]:
    """Say which requests that never fit may come to a pool, though none has, as the run went on."""
    warnings = []
    kinds = [
        server
        for server, _ in network.pools[name].servers
        if server.memory is not None and server.memory.too_long == "error"
    ]
    for workflow in network.workflows if not network.ends else ():
        means = workflow.means()
        stages = workflow.stages.values()
        for stage, prompt, output in zip(stages, means.max_prompt, means.max_output, strict=True):
            if stage.pool != name or prompt == 0 or not np.isfinite(prompt + output):
                continue
            longest = np.array([prompt], np.int64), np.array([max(output, 1)], np.int64)
            if not all(fits(*longest, server).all() for server in kinds):
                warnings.append(
                    f"prompts of up to {prompt:,.0f} tokens and outputs of up to {output:,.0f} "
                    f"come to pool {name}: a request that has both never fits into its KV memory "
                    "and blocks a replica for ever, though none came here; raise the limit, or cut "
                    "the lengths"
                )
    return list(dict.fromkeys(warnings))


def _idle_priorities(network: Network) -> list[str]:
    """Say which workflows have a priority that no pool of theirs goes by."""
    ranks = {name for name, pool in network.pools.items() if pool.server.order == "priority"}
    return [
        f"workflow {workflow.name} has priority {workflow.priority}, but its pools serve in other "
        "orders, so it changes nothing; give a pool `order: priority`, or leave it out"
        for workflow in network.workflows
        if isinstance(workflow, Workflow)
        and workflow.priority != 0
        and ranks.isdisjoint(stage.pool for stage in workflow.stages.values())
    ]


def _server_warnings(name: str, pool: Pool) -> list[str]:
    """Say what budgets waste, and which policies are out of place, of each kind of server."""
    warnings = []
    for server, count in pool.servers:
        warnings += wasteful_budget(server, count, name)
        if server.scope_warning:
            warnings.append(f"pool {name}: {server.scope_warning}")
    return warnings
