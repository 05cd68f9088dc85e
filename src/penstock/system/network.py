"""A network: pools of identical replicas, and the workflows whose requests go through them."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.fields import Checked, Range
from penstock.inputs.arrays import Bools, Floats, Ints, Ints32
from penstock.kernel.signatures import ROUTE_BY_FUNCTION, ROUTE_WORK
from penstock.system.batch_time import Composition
from penstock.system.kv_transfer import received_tokens
from penstock.system.network_model import NetworkModel, StageTokens, unequal_rates
from penstock.system.pool import Pool as Pool
from penstock.system.prefix_cache import names_for
from penstock.system.reuse import computed_once, reused, shared_at_most
from penstock.system.routing import Router
from penstock.system.server import Server
from penstock.workload.jobs import Jobs, checked_seed, first_jobs, merged
from penstock.workload.means import MOST_SAMPLED, Means
from penstock.workload.patience import Patience
from penstock.workload.prefixes import Prefixes
from penstock.workload.sessions import Sessions
from penstock.workload.stage import released
from penstock.workload.workflow import Workflow, sample
from penstock.workload.workload import ClosedLoop, Workload

_KEPT = (
    "a replica keeps nothing for less than no time; give seconds, or leave it out to keep it always"
)
_RETENTION = Range(0, 1e9, "s", _KEPT)
_WEIGHT = 1024  # routers weigh requests in whole numbers: mean tokens times this


@dataclasses.dataclass(frozen=True, eq=False)
class Network(Checked):
    """Pools and the workflows that visit them.

    Parameters
    ----------
    pools
        Pools by name.
    workflows
        What visits them: `Workflow` and `Sessions`, each with a name of its own.
    retention_s
        How long a replica keeps what it computed for a finished request, for those that go on with
        its context; None: always. Only where contexts are reused.
    """

    pools: Mapping[str, Pool]
    workflows: Sequence[Workflow | Sessions]
    retention_s: Annotated[float, _RETENTION] | None = None

    def settle(self) -> None:
        """Refuse what does not go together, and let engines cache what prompts have in common."""
        vars(self).update(
            pools=_checked_pools(self.pools), workflows=_checked_workflows(self.workflows)
        )
        self._refuse_unserved_stages()
        if self.retention_s is not None and not any(each.reuses for each in self.workflows):
            raise InputError(
                f"retention_s is {self.retention_s:g}, but no workflow reuses its context, so "
                "nothing is kept; leave it out, or give a workflow context 'reuse'"
            )
        self._let_engines_cache()
        _ = self.order_params, self.prefixes  # which refuse orders and blocks that do not fit
        for workflow in self.workflows:
            if isinstance(workflow, Workflow):
                self._refuse_unfed_decodes(workflow)

    @functools.cached_property
    def patience_of_stages(self) -> tuple[Patience | None, ...]:
        """The patience of the clients at each stage."""
        return tuple(w.patience for w in self.workflows for _ in w.stages)

    @functools.cached_property
    def guarded(self) -> bool:
        """Whether requests may be refused, or their clients leave."""
        limits = [pool.router_limit for pool in self.pools.values()]
        limits += [server.queue_limit for pool in self.pools.values() for server, _ in pool.servers]
        return any(part is not None for part in (*limits, *self.patience_of_stages))

    @functools.cached_property
    def unguarded(self) -> "Network":
        """The same network with nobody refused, whose clients wait for ever."""
        pools = {
            name: dataclasses.replace(pool.with_servers(without_limit), router_limit=None)
            for name, pool in self.pools.items()
        }
        workflows = [workflow.with_patience(None) for workflow in self.workflows]
        return dataclasses.replace(self, pools=pools, workflows=workflows)

    @functools.cached_property
    def served_by_queues(self) -> "Network":
        """The same network, of whose replicas each has one queue, from which requests can be
        taken: with policies of the paper too.
        """
        for name, pool in self.pools.items():
            if pool.server.by_lines and not pool.order.single_line:
                raise InputError(
                    f"the order of pool {name!r} is {pool.order.name}, whose lines have no limits "
                    "and whose clients do not leave here; leave out the order, or limits and "
                    "patience"
                )
        self._refuse_who_cannot_leave()
        pools = {name: pool.with_servers(with_queue) for name, pool in self.pools.items()}
        return dataclasses.replace(self, pools=pools)

    def _refuse_who_cannot_leave(self) -> None:
        """Refuse clients who leave where it is not known what the engine does then."""
        for name, patience in zip(self.pool_names, self.patience_of_stages, strict=True):
            for server, _ in self.pools[name].servers:
                policy = server.policy
                if patience is None or not patience.ends or policy.queue.lets_leave:
                    continue
                drafts = " with drafts" if policy.memory.drafted_tokens else ""
                raise InputError(
                    f"clients leave before the end, but what {policy.name}{drafts} does then is "
                    "not modelled; leave out ttft_ms and e2e_ms of their patience"
                )

    @classmethod
    def single(
        cls, workload: Workload, server: Server, replicas: int = 1, router: str | Router = "jsq"
    ) -> "Network":
        """Return one pool, called ``pool``, whose requests each are a job of their own."""
        return cls({"pool": Pool(server, replicas, router)}, [Workflow.single(workload, "pool")])

    @property
    def behind_front_ends(self) -> "Network":
        """The network without front ends: what comes to pools comes at the same rates."""
        if not any(server.front_end for pool in self.pools.values() for server, _ in pool.servers):
            return self
        pools = {
            name: pool.with_servers(lambda server: server.behind_front_end)
            for name, pool in self.pools.items()
        }
        return dataclasses.replace(self, pools=pools)

    def _let_engines_cache(self) -> None:
        """Let engines cache prefixes where hash ids or the context of calls say what is common."""
        # Whether contexts ``grow`` or are to be reused is no matter: that is for the paper's
        # policies.
        pools = dict(self.pools)
        workflows = list(self.workflows)
        for index, workflow in enumerate(workflows):
            visited = {stage.pool for stage in workflow.stages.values()}
            known = workflow.goes_on or workflow.prefixes is not None
            serving = functools.partial(Server.serving, names=known)
            pools |= {name: pools[name].with_servers(serving) for name in visited}
            by_engines = not any(pools[name].server.by_lines for name in visited)
            caches = any(pools[name].caches_prefixes for name in visited)
            if isinstance(workflow, Workflow):
                finds = workflow.goes_on and by_engines and caches
                workflows[index] = workflow.served_by_engines(finds)
        vars(self).update(pools=pools, workflows=tuple(workflows))

    def _refuse_unserved_stages(self) -> None:
        """Refuse stages at pools that there are not, and pools without a stage."""
        for name, pool in self.pool_of_stage.items():
            if pool not in self.pools:
                raise InputError(
                    f"stage {name!r} is served by pool {checks.shown(pool)}, which there is not"
                    f"{nearest(str(pool), self.pools)}"
                )
        for pool in self.pools:
            if pool not in self.pool_names:
                raise InputError(
                    f"pool {pool!r} serves no stage, so it would stand idle; send it a stage or "
                    "drop it"
                )

    def _refuse_unfed_decodes(self, workflow: Workflow) -> None:
        """Refuse a stage that would wait at an engine for KV memory that nobody sends: it only
        decodes, and no prefill of another pool comes before.
        """
        for name, stage in workflow.stages.items():
            if stage.prompt != 0 or stage.output == 0 or self.pools[stage.pool].server.by_lines:
                continue
            before = [
                other
                for other in workflow.stages.values()
                if name in {target for target, _ in released(other)}
            ]
            feeds = [other for other in before if other.prompt != 0 and other.pool != stage.pool]
            if name in workflow.begins or stage.join or len(feeds) < len(before):
                raise InputError(
                    f"stage '{workflow.name}.{name}' only decodes (its prompt is 0) at pool "
                    f"{stage.pool!r}, but goes on with KV memory that no prefill of another pool "
                    "sends it; give it a prompt, or let stages with a prompt at another pool go "
                    "before it"
                )

    @functools.cached_property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages of all workflows, ``workflow.stage``, in order of workflows."""
        return tuple(
            f"{workflow.name}.{stage}" for workflow in self.workflows for stage in workflow.stages
        )

    @functools.cached_property
    def pool_names(self) -> tuple[str, ...]:
        """The name of the pool of each stage, in order of stages."""
        return tuple(
            stage.pool for workflow in self.workflows for stage in workflow.stages.values()
        )

    @property
    def pool_of_stage(self) -> dict[str, str]:
        """The name of the pool that serves each stage, in order of stages."""
        return dict(zip(self.stages, self.pool_names, strict=True))

    @functools.cached_property
    def pool_list(self) -> tuple[Pool, ...]:
        """The pools by number, in the order of `pools`."""
        return tuple(self.pools.values())

    @functools.cached_property
    def stage_pool(self) -> Ints:
        """Shape (stages,), the pool that serves each stage, in order of `pools`."""
        numbers = {name: index for index, name in enumerate(self.pools)}
        return np.array([numbers[name] for name in self.pool_names], np.int64)

    @functools.cached_property
    def first_stage(self) -> Ints:
        """Shape (workflows + 1,): the stages of workflow w are ``first_stage[w]:first_stage[w +
        1]``.
        """
        return np.cumsum([0, *(len(workflow.stages) for workflow in self.workflows)])

    @functools.cached_property
    def replicas(self) -> Ints:
        """Shape (pools,)."""
        return np.array([pool.replicas for pool in self.pools.values()], np.int64)

    @functools.cached_property
    def stage_line(self) -> Ints:
        """Shape (stages,), the line of each stage at a replica of its pool: 0 for all in a single
        line.
        """
        line = np.zeros(len(self.stages), np.int64)
        for index, pool in enumerate(self.pools.values()):
            if not pool.order.single_line:
                here = np.flatnonzero(self.stage_pool == index)
                line[here] = np.arange(here.size)
        return line

    @functools.cached_property
    def router_weights(self) -> Ints:
        """Shape (stages, 2): what a request in prefill, and in decode, counts for routers that
        weigh; 0 for others.
        """
        expected = np.column_stack([self.prefill_means + self.decode_means, self.decode_means])
        weights: Floats = np.zeros(expected.shape)
        for stage, name in enumerate(self.pool_names):
            router = self.pools[name].router
            if router.code in (ROUTE_WORK, ROUTE_BY_FUNCTION):
                weights[stage] = expected[stage]
                if router.prefill_weight is not None:
                    weights[stage] = router.prefill_weight, router.decode_weight
        # what is above 0 stays so: a measure vanishes at empty replicas only
        return np.maximum(np.rint(_WEIGHT * weights), weights > 0).astype(np.int64)

    @functools.cached_property
    def order_params(self) -> tuple[Floats, ...]:
        """The parameters of each pool's order; for ``priority`` its lines, most urgent first."""
        return tuple(
            np.array(pool.order.params, np.float64)
            if ranked is None
            else np.asarray(self.stage_line[list(ranked)], np.float64)
            for pool, ranked in zip(self.pools.values(), self.priorities, strict=True)
        )

    @functools.cached_property
    def priorities(self) -> tuple[tuple[int, ...] | None, ...]:
        """The stages of each pool under ``priority``, most urgent first, by their numbers; None for
        other orders.
        """
        return tuple(
            self._ranking(name, pool.order.stages) if pool.order.ranks_stages else None
            for name, pool in self.pools.items()
        )

    def _ranking(self, pool: str, order: Sequence[str]) -> tuple[int, ...]:
        """Return the numbers of a pool's stages, most urgent first, of which an order has names."""
        here = np.flatnonzero([name == pool for name in self.pool_names]).tolist()
        names = [self.stages[stage] for stage in here]
        if not order:
            raise InputError(
                f"the order of pool {pool!r} is priority without stages, so which goes first is "
                f"unclear; give `order: {{priority: [{', '.join(names)}]}}`, most urgent first"
            )
        where = f"the priority order of pool {pool!r}"
        ranked = tuple(here[self._place(stage, names, where)] for stage in order)
        for stage in ranked:
            if ranked.count(stage) > 1:
                raise InputError(
                    f"{where} has {self.stages[stage]!r} twice, so its rank is unclear; drop one"
                )
        left_out = [self.stages[stage] for stage in here if stage not in ranked]
        if left_out:
            raise InputError(
                f"{where} leaves out {left_out[0]!r}, so its rank is unclear; add it, last if it "
                "may always wait"
            )
        return ranked

    @functools.cached_property
    def prefixes(self) -> Prefixes | None:
        """What recorded prompts of all workflows have in common; None: nothing is known."""
        known = (workflow.prefixes for workflow in self.workflows)
        parts = [prefixes for prefixes in known if prefixes is not None]
        servers = [server for pool in self.pools.values() for server, _ in pool.servers]
        if parts:
            return names_for(Prefixes.joined(parts), servers)
        return None

    def stage_number(self, stage: str) -> int:
        """Return the number of a stage by its name, ``workflow.stage``, or ``stage`` where only one
        is called so.
        """
        if not isinstance(stage, str):
            raise InputError(
                f"a stage is {checks.shown(stage)}; give its name, one of {', '.join(self.stages)}"
            )
        return self._place(stage, self.stages, "the network")

    def _place(self, stage: str, names: Sequence[str], where: str) -> int:
        """Return which of some full names is meant; ``where`` says what calls it so, for errors."""
        if stage in names:
            return names.index(stage)
        short = [index for index, name in enumerate(names) if name.endswith(f".{stage}")]
        if len(short) == 1:
            return short[0]
        if short:
            raise InputError(
                f"{where} names {stage!r}, which several workflows have; say which, such as "
                f"{names[short[0]]!r}"
            )
        for name, pool in self.pool_of_stage.items():
            if name == stage or name.endswith(f".{stage}"):
                raise InputError(
                    f"{where} names {stage!r}, which pool {pool!r} serves; leave it out"
                )
        raise InputError(
            f"{where} names {checks.shown(stage)}, which is no stage{nearest(stage, names)}"
        )

    def blocks(self, seed: int | None = None) -> Iterator[Jobs]:
        """Yield jobs in order of arrival, a block at a time, for ever or until all recordings end.

        Parameters
        ----------
        seed
            For all workflows; None: their own. Of workflows with the same seed only the first draws
            what it would draw alone: two that are described alike are not to repeat each other.
        """
        # checked here, as what follows is not run before the first block
        seeds = [
            own_seed(workflow) if seed is None else checked_seed(seed)
            for workflow in self.workflows
        ]
        streams = [
            w.blocks(stream_seed)
            for w, stream_seed in zip(self.workflows, _apart(seeds), strict=True)
        ]
        return merged([self._numbered(*stream) for stream in enumerate(streams)])

    def _numbered(self, workflow: int, blocks: Iterator[Jobs]) -> Iterator[Jobs]:
        return (self.numbered(block, workflow) for block in blocks)

    def numbered(self, jobs: Jobs, workflow: int) -> Jobs:
        """Return jobs of a workflow, by its number, as jobs of the network."""
        before = (earlier.prefixes for earlier in self.workflows[:workflow])
        first_prefix = sum(prefixes.rows for prefixes in before if prefixes is not None)
        return jobs.numbered(workflow, int(self.first_stage[workflow]), first_prefix)

    def jobs(self, count: int, seed: int | None = None) -> Jobs:
        """Return the first ``count`` jobs."""
        return first_jobs(self.blocks(seed), count, "the network")

    def flooded(self, stage: str, count: int, seed: int = 0) -> Jobs:
        """Return ``count`` jobs that are all there at time 0 and begin at a stage.

        At an engine a stage that only decodes goes on with the KV memory of the request before it,
        so its jobs begin there (`begin_of_flood`).
        """
        number = self.begin_of_flood(self.stage_number(stage))
        index = int(np.searchsorted(self.first_stage, number, "right")) - 1
        workflow = self.workflows[index]
        name = list(workflow.stages)[number - self.first_stage[index]]
        return workflow.flooded(name, count, seed).numbered(index, int(self.first_stage[index]), 0)

    def begin_of_flood(self, stage: int) -> int:
        """Return the stage at which jobs begin that are to flood one: itself, or the one that sends
        it KV memory most often.
        """
        tried = {stage}
        while (senders := self.senders[stage]) and not tried.issuperset(senders):
            visits = self.stacked("visits")
            new = [sender for sender in senders if sender not in tried]
            stage = max(new, key=lambda s: visits[s] * self.onward[s, stage])
            tried.add(stage)
        return stage

    @functools.cached_property
    def sends_memory(self) -> bool:
        """Whether KV memory goes from pool to pool."""
        return any(self.senders)

    @functools.cached_property
    def senders(self) -> tuple[tuple[int, ...], ...]:
        """For each stage those whose KV memory its requests go on with, because they only decode,
        at an engine.
        """
        stages = [stage for workflow in self.workflows for stage in workflow.stages.values()]
        receives = [
            stage.prompt == 0 and not stage.join and by_engine
            for stage, by_engine in zip(stages, self.by_engines[self.stage_pool], strict=True)
        ]
        return tuple(
            tuple(np.flatnonzero(self.onward[:, number]).tolist()) if receives[number] else ()
            for number in range(len(stages))
        )

    @functools.cached_property
    def by_engines(self) -> Bools:
        """Shape (pools,), whether its replicas are served as engines are, not by lines alone."""
        return np.array([not pool.server.by_lines for pool in self.pools.values()])

    @functools.cached_property
    def outputs_of_prefill(self) -> Ints32:
        """Shape (pools,), output tokens that the end of a prefill yields there."""
        return np.array([p.server.outputs_of_prefill for p in self.pools.values()], np.int32)

    def decodes(self, jobs: Jobs) -> Ints32:
        """Return each request's decode iterations, by the convention of its pool."""
        of_prefill = self.outputs_of_prefill[self.stage_pool[jobs.stage]]
        return np.asarray(jobs.output - of_prefill * ((jobs.prompt > 0) & (jobs.output > 0)))

    def received(self, jobs: Jobs) -> Ints:
        """Return the tokens of KV memory that requests get which only decode at an engine, 0 for
        all others; shape (requests,).
        """
        return received_tokens(jobs, self.decodes(jobs), self.by_engines[self.stage_pool])

    def with_load(self, factor: float) -> "Network":
        """Return the same network with all arrival rates times ``factor``."""
        return dataclasses.replace(
            self, workflows=[workflow.with_load(factor) for workflow in self.workflows]
        )

    def check_rates(self) -> None:
        """Raise an `InputError` if a workflow has no arrival rate: the jobs it has recorded all
        begin at once, or come from clients who wait for their answers.
        """
        if self.loop is not None:
            raise InputError(
                f"the jobs of {self.workflows[0].name} come from {self.loop.pace}, who send them "
                "as fast as they are answered: there is no arrival rate, and it is stable by "
                "construction. `penstock.simulate` says at what latency; for what needs a rate "
                "give arrivals that have one (poisson)"
            )
        for workflow in self.workflows:
            if not workflow.rate > 0:
                raise InputError(
                    f"workflow {workflow.name} has no arrival rate, since all its recorded jobs "
                    "begin at one instant; give it a `rate`"
                )

    @functools.cached_property
    def loop(self) -> ClosedLoop | None:
        """The clients whose jobs come when others end; None: jobs come at a rate."""
        loops = [workflow.loop for workflow in self.workflows if isinstance(workflow, Workflow)]
        loop = next(filter(None, loops), None)
        if loop is not None and len(self.workflows) > 1:
            raise InputError(
                f"the jobs of {loop.name} come from {loop.pace}, beside those of other workflows, "
                "but clients of a network know of no other jobs; leave out the others, or give all "
                "arrivals that have a rate"
            )
        return loop

    @property
    def ends(self) -> bool:
        """Whether all that arrives is recorded, so that it comes to an end."""
        return all(workflow.ends for workflow in self.workflows)

    @functools.cached_property
    def means(self) -> tuple[Means, ...]:
        """The means of each workflow."""
        return tuple(workflow.means() for workflow in self.workflows)

    @functools.cached_property
    def visits(self) -> Floats:
        """Shape (stages,), requests/s of each stage."""
        pairs = zip(self.workflows, self.means, strict=True)
        return np.concatenate([workflow.rate * means.visits for workflow, means in pairs])

    def stacked(self, field: str) -> Floats:
        """Return a mean of all stages, shape (stages,)."""
        return np.asarray(np.concatenate([getattr(means, field) for means in self.means]))

    @functools.cached_property
    def onward(self) -> Floats:
        """Shape (stages, stages): requests of the second stage that the end of one of the first
        releases, on average.

        An edge into a join of k branches counts 1/k.
        """
        matrix = np.zeros((len(self.stages), len(self.stages)))
        for first, means in zip(self.first_stage, self.means, strict=False):
            here = slice(first, first + len(means.visits))
            matrix[here, here] = means.onward
        return matrix

    @functools.cached_property
    def prefill_means(self) -> Floats:
        """Shape (stages,), prompt tokens that a request has processed, on average (m_p).

        Less what is surely reused; in full where that depends on the run (`reuse_depends`).
        """
        return self.stacked("prompt") - self._found_means(self._keeps_all, self.surely_found)

    @property
    def least_prefill_means(self) -> Floats:
        """Shape (stages,), prompt tokens that a request has processed, on average, if its replica
        has all that it may have.
        """
        anywhere = np.ones(len(self.pools), np.bool_)
        return self.stacked("prompt") - self._found_means(anywhere, self.found_at_most)

    @functools.cached_property
    def decode_means(self) -> Floats:
        """Shape (stages,), decode iterations of a request, on average (m_d), by the convention of
        its pool's server.
        """
        of_prefill = self.outputs_of_prefill[self.stage_pool]
        mean = self.stacked("output") - of_prefill * self.stacked("both")
        for workflow in range(len(self.workflows) if self.cuts_outputs.any() else 0):
            mean -= self._sampled_means(
                workflow, lambda jobs: jobs.output - self._outputs_left(jobs, jobs.output)
            )
        return mean

    @functools.cached_property
    def cuts_outputs(self) -> Bools:
        """Shape (pools,), whether its engines cut outputs to a longest context."""
        return np.array([p.server.policy.memory.longest_context > 0 for p in self.pools.values()])

    def within_context(self, jobs: Jobs) -> Jobs:
        """Return jobs whose outputs are what the longest contexts of engines leave of them."""
        if not self.cuts_outputs.any():
            return jobs
        output = self._outputs_left(jobs, jobs.output)
        declared = jobs.declared
        if declared is not None:
            declared = self._outputs_left(jobs, declared)
        return dataclasses.replace(jobs, output=output, declared=declared)

    def _outputs_left(self, jobs: Jobs, outputs: Ints32) -> Ints32:
        """Return what longest contexts leave of the outputs of requests, or of those declared."""
        output = outputs.astype(np.int64)
        received = self.received(jobs)
        pool = self.stage_pool[jobs.stage]
        for index in np.flatnonzero(self.cuts_outputs):
            policy = [*self.pools.values()][index].server.policy
            here = np.flatnonzero((pool == index) & (output > 0))
            most = policy.outputs_of(jobs.prompt[here].astype(np.int64), output[here])
            # What comes from elsewhere has a token already, which is not in its KV memory yet.
            room = np.maximum(policy.memory.longest_context - received[here] - 1, 0)
            output[here] = np.where(received[here] > 0, np.minimum(output[here], room), most)
        return output.astype(outputs.dtype)

    @property
    def reuse_is_certain(self) -> bool:
        """Whether what requests find of their prompts does not depend on the run."""
        return not self.reuse_depends.any()

    @functools.cached_property
    def reuse_depends(self) -> Bools:
        """Shape (pools,), whether what requests find there of their prompts depends on the run.

        It does at engines that cache prefixes, as these may be evicted; and in pools by lines,
        where all that a job computed is not kept on one replica. It does not where no prompts have
        anything in common, or an engine keeps nothing for others.
        """
        return np.array([self._reuse_depends(*pool) for pool in self.pools.items()])

    def _reuse_depends(self, name: str, pool: Pool) -> bool:
        visitors = self.visitors(name)
        reuses = any(workflow.reuses for workflow in visitors)
        if pool.server.by_lines:
            stays = self.retention_s is None and (pool.replicas == 1 or pool.affinity)
            return reuses and not stays
        recorded = any(workflow.prefixes is not None for workflow in visitors)
        return pool.caches_prefixes and (reuses or recorded)

    def visitors(self, pool: str) -> list[Workflow | Sessions]:
        """Return the workflows that visit a pool."""
        return [
            workflow
            for workflow in self.workflows
            if pool in {stage.pool for stage in workflow.stages.values()}
        ]

    @property
    def _keeps_all(self) -> Bools:
        """Shape (pools,), whether all that a job computes there surely stays on one replica."""
        return ~self.by_engines & ~self.reuse_depends

    def surely_found(self, jobs: Jobs) -> Ints:
        """Return the tokens of each prompt that its replica has already in any run; shape
        (requests,).
        """
        return self._found(jobs, self._keeps_all)

    def found_at_most(self, jobs: Jobs) -> Ints:
        """Return the most tokens of each prompt that its replica may have already; shape
        (requests,).
        """
        most = shared_at_most(jobs) - computed_once(jobs, self.stage_pool)
        recorded = np.flatnonzero(jobs.column("prefix") >= 0)
        if recorded.size:
            most[recorded] = jobs.prompt[recorded] - self._computed_of_recorded(jobs, recorded)
        most = np.clip(most, 0, np.maximum(jobs.prompt - 1, 0))
        caches = (self.by_engines & self.reuse_depends)[self.stage_pool[jobs.stage]]
        return np.where(caches, most, self._found(jobs, ~self.by_engines))

    def _computed_of_recorded(self, jobs: Jobs, recorded: Ints) -> Ints:
        """Return tokens of recorded prompts that no earlier one has; shape (recorded,)."""
        # Counted once where several requests of a job have one prompt in one pool.
        assert self.prefixes is not None
        rows = jobs.column("prefix")[recorded]
        prompt = np.zeros(self.prefixes.rows, np.int64)
        np.maximum.at(prompt, rows, jobs.prompt[recorded])
        places = rows.astype(np.int64) * len(self.pools) + self.stage_pool[jobs.stage[recorded]]
        first = np.unique(places, return_index=True)[1]
        computed = np.zeros(recorded.size, np.int64)
        computed[first] = self.prefixes.computed_once(prompt)[rows[first]]
        return computed

    def _found(self, jobs: Jobs, pools: Bools) -> Ints:
        """Return what requests find in pools if one replica keeps all that their job computed."""
        here = pools[self.stage_pool[jobs.stage]]
        if not here.any():
            return np.zeros(jobs.requests, np.int64)
        return np.where(here, reused(jobs, self.stage_pool), 0)

    def _found_means(self, pools: Bools, tokens: Callable[[Jobs], Ints]) -> Floats:
        """Return mean tokens that a request may find in pools, in a sample; shape (stages,)."""
        means = np.zeros(len(self.stages))
        for index, workflow in enumerate(self.workflows):
            shares = workflow.reuses or workflow.prefixes is not None
            first, last = self.first_stage[index : index + 2].tolist()
            if shares and pools[self.stage_pool[first:last]].any():
                means += self._sampled_means(index, tokens)
        return means

    def _sampled_means(self, index: int, tokens: Callable[[Jobs], Ints]) -> Floats:
        """Return means over a workflow's requests, by stage, in a sample; shape (stages,)."""
        most = self.means[index].sampled or MOST_SAMPLED
        stages = len(self.stages)
        requests, total = np.zeros(stages), np.zeros(stages)
        for jobs in self._numbered(index, iter(sample(self.workflows[index], most))):
            requests += np.bincount(jobs.stage, minlength=stages)
            total += np.bincount(jobs.stage, tokens(jobs), stages)
        return total / np.maximum(requests, 1)

    def tokens(self) -> StageTokens:
        """Return mean tokens of requests, as means of its jobs say."""
        least = None if self.reuse_is_certain else self.least_prefill_means
        return StageTokens(self.prefill_means, self.decode_means, least)

    def model(self, tokens: StageTokens | None = None) -> NetworkModel:
        """Return what the theory sees: mean tokens (these, or its own), routes, rates and more."""
        prefill, decode, least = tokens or self.tokens()
        pairs = zip(self.workflows, self.means, strict=True)
        external = [workflow.rate * means.external for workflow, means in pairs]
        sampled = [means.sampled for means in self.means if means.sampled is not None]
        pools = self.pools.values()
        full = [sum(n * s.full_batch_rate for s, n in pool.servers) for pool in pools]
        return NetworkModel(
            stages=self.stages,
            pools=tuple(self.pools),
            pool=self.stage_pool,
            prefill=prefill,
            decode=decode,
            external=np.concatenate(external),
            onward=self.onward,
            visits=self.visits,
            replicas=self.replicas,
            capacity=np.array([sum(n * s.capacity for s, n in pool.servers) for pool in pools]),
            full_batch=np.array(full),
            branches=np.concatenate([workflow.branches for workflow in self.workflows]),
            sampled=min(sampled, default=None),
            standard_error=self._standard_error(),
            unequal=tuple(unequal_rates(pool.servers) for pool in pools),
            least_prefill=least,
        )

    def _standard_error(self) -> Floats:
        """Return that of each pool's offered tokens/s, shape (pools,)."""
        variance = np.zeros(len(self.pools))
        if all(means.sampled is None for means in self.means):
            return variance
        for workflow, first, means in zip(
            self.workflows, self.first_stage, self.means, strict=False
        ):
            at = np.eye(len(self.pools))[self.stage_pool[first : first + len(means.visits)]]
            variance += workflow.rate**2 * np.diag(at.T @ means.covariance @ at)
        return np.sqrt(np.maximum(variance, 0))

    def describe(self) -> str:
        """Say in a few words what serves and what arrives."""
        pools = "; ".join(f"{name}: {pool.describe()}" for name, pool in self.pools.items())
        return f"{pools}; {'; '.join(workflow.describe() for workflow in self.workflows)}"


def own_seed(workflow: Workflow | Sessions) -> int:
    """Return the seed by which a workflow draws its jobs."""
    if isinstance(workflow, Workflow):
        return workflow.arrivals.seed
    return workflow.seed


def _apart(seeds: Sequence[int]) -> list[int]:
    """Return the seeds with those that stood before changed to others."""
    return [
        seed
        if seed not in seeds[:index]
        else int(np.random.SeedSequence((seed, index)).generate_state(1, np.uint64)[0])
        for index, seed in enumerate(seeds)
    ]


def _checked_pools(pools: Any) -> dict[str, Pool]:
    """Return the pools of a network by name, if they are such."""
    if not isinstance(pools, Mapping) or not pools:
        raise InputError(
            f"pools are {checks.shown(pools)}, so nothing serves; give at least one, by name"
        )
    for name, pool in pools.items():
        if not isinstance(name, str) or not name:
            raise InputError(f"a pool is called {checks.shown(name)}; give it a name, as text")
        if not isinstance(pool, Pool):
            raise InputError(
                f"pool {name!r} is {checks.shown(pool)}; give a Pool, as Pool(server, replicas=2)"
            )
    return dict(pools)


def _checked_workflows(workflows: Any) -> tuple[Workflow | Sessions, ...]:
    """Return the workflows of a network, if they are such, each with a name of its own."""
    if isinstance(workflows, str | Mapping) or not isinstance(workflows, Sequence) or not workflows:
        raise InputError(
            f"workflows are {checks.shown(workflows)}, so nothing arrives; give a list of at "
            "least one"
        )
    for workflow in workflows:
        if not isinstance(workflow, Workflow | Sessions):
            raise InputError(
                f"a workflow is {checks.shown(workflow)}; give a Workflow, or what read_sessions "
                "returns"
            )
    names = [workflow.name for workflow in workflows]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(
            f"two workflows are called {twice!r}, so which is meant is unclear; rename one of them"
        )
    return tuple(workflows)


def without_limit(server: Server) -> Server:
    """Return a server that refuses nobody."""
    return dataclasses.replace(server, queue_limit=None)


def with_queue(server: Server) -> Server:
    """Return a server that is served as an engine is, its batch times as they are."""
    if not server.by_lines:
        return server
    return dataclasses.replace(server, batch_time=Composition(server.batch_time))
