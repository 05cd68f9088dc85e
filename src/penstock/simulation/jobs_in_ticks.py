"""Jobs of a network as the event loop takes them: in ticks, request by request."""

import functools
from typing import Any

import numpy as np

from penstock.errors import InputError
from penstock.inputs.arrays import Bools, Floats, Ints, Ints32
from penstock.kernel import records
from penstock.kernel.due_epochs import NEVER
from penstock.simulation.new_world import declared_of
from penstock.simulation.servable import never_served
from penstock.simulation.ticks import check_costs, terms_of
from penstock.system.network import Network
from penstock.workload.jobs import Jobs


class JobsInTicks:
    """Turns jobs into the kernel's arrays."""

    def __init__(
        self, network: Network, tick_s: float, *, counts_gaps: bool, has_outages: bool
    ) -> None:
        # ``counts_gaps``: whether times between tokens are counted; ``has_outages``: replicas die.
        self.network = network
        self.prefixes = network.prefixes
        self.tick_s = tick_s
        self.counts_gaps = counts_gaps
        self.has_outages = has_outages
        self.pools = list(network.pools.values())
        self.kinds = [
            (index, server) for index, pool in enumerate(self.pools) for server, _ in pool.servers
        ]
        self.has_engines = any(not server.by_lines for _, server in self.kinds)

    def check(self, jobs: Jobs) -> None:
        """Refuse requests that an engine could never serve, or cannot tell what to do with."""
        if not self.has_engines:
            return
        pool_of, received = self.network.stage_pool[jobs.stage], self.network.received(jobs)
        names = list(self.network.pools)
        for index, server in self.kinds:
            if server.by_lines:
                continue
            name = names[index]
            here = np.flatnonzero(pool_of == index)
            prompt, output = jobs.prompt[here] + received[here], jobs.output[here]
            alone = (prompt == 0) & (output > 0)
            stages = self.network.stages
            if alone.any():
                raise InputError(
                    f"a request of stage {stages[jobs.stage[here[alone][0]]]!r} has outputs, but "
                    f"neither a prompt nor a request before it, which {server.policy.name} of pool "
                    f"{name!r} cannot serve; give it a prompt of at least 1 token"
                )
            if received[here].any() and not server.policy.memory.receives:
                raise InputError(
                    f"stage {stages[jobs.stage[here[received[here] > 0][0]]]!r} only decodes, but "
                    f"that {server.policy.name} goes on with KV memory from elsewhere is not "
                    "modelled; take vllm without drafts, or a policy of the paper"
                )
            outputs = np.maximum(output, 1) + (received[here] > 0)
            declared = np.maximum(jobs.column("declared")[here], outputs)
            for over, reason in never_served(server, prompt, outputs, declared):
                if over.any():
                    first = int(here[over][0])
                    raise InputError(
                        f"a request of {jobs.prompt[first]:,} prompt and {jobs.output[first]:,} "
                        f"output tokens comes to pool {name!r}: {reason}; raise the limit or "
                        "shorten the requests"
                    )
            longest = int((prompt + output).max(initial=1))
            check_costs(server, terms_of(server, self.tick_s), self.tick_s, longest)

    def arrays(self, jobs: Jobs) -> dict[str, Any]:
        """Return what the kernel needs of some jobs, by the names of `World`."""
        pool_of = self.network.stage_pool[jobs.stage]
        engine = self._by_convention[pool_of]
        rows = records.table(records.ROW, jobs.requests)
        rows.left = jobs.prompt
        rows.decodes = self._decodes(jobs)
        rows.server = rows.next = -1
        for field in ("pending", "stage", "child", "sibling"):
            column = getattr(jobs, field)
            if column.any():  # the table holds zeros
                rows[field] = column
        goes_on = self.has_engines or self.counts_gaps
        tokens = rows.left.astype(np.int64) + rows.decodes
        again = records.table(records.AGAIN, jobs.requests if goes_on else 0)
        again.last = records.NONE_YET
        if self.has_engines:
            again.target, again.outputs = rows.left, rows.decodes + engine
            self._rank(jobs, pool_of, again)
            later = np.flatnonzero(jobs.context)
            if self.prefixes is not None or later.size:
                again.prefix, again.named = self._prefixes(jobs)
                np.add.at(again.followed, later + jobs.context[later], 1)
        delay = self._counted("a delay", jobs.wait_s)
        sent = records.table(records.SENT, jobs.requests if self.network.sends_memory else 0)
        if self.network.sends_memory:
            received = self.network.received(jobs)
            here = np.flatnonzero(received)
            delay[here] = 0  # what comes after it is its KV memory
            again.target[here] = received[here]
            sent.tokens = received
            sent.sender = jobs.column("sender")
            sent.link = self._counted("a transfer", jobs.column("transfer_s"))
            sent.latency = self._counted("a delay", jobs.delay_s)
        tries = records.table(records.TRY, jobs.requests if self.has_outages else 0)
        if self.has_outages:
            tries.came, tries.left, tries.decodes = -1, rows.left, rows.decodes
            if sent.tokens.any():
                raise InputError(
                    "outages of a network that sends KV memory from pool to pool are not modelled; "
                    "leave out the outages, or let one pool do both phases"
                )
        never = np.full(jobs.requests, -1, np.int64)
        job_tokens = np.zeros(0, np.int64)
        if jobs.count:
            job_tokens = np.add.reduceat(tokens, jobs.first_request[:-1])
        return {
            "rows": rows,
            "again": again,
            "sent": sent,
            "tries": tries,
            "delay": delay,
            "coin": np.asarray(jobs.coin, np.uint32),
            "context": np.asarray(jobs.context, np.int32),
            "reuse": np.where(jobs.context < 0, jobs.reuse, 0).astype(np.int32),
            "home": self._homes(jobs),
            "cached": np.zeros(jobs.requests, np.int32),
            "ready": never,
            "first_token": never.copy(),
            "finish": never.copy(),
            "job_arrival": self._counted("an arrival", jobs.arrival_s),
            "job_root": np.array(jobs.first_request[:-1], np.int64),
            "job_tokens": job_tokens,
        }

    def _rank(self, jobs: Jobs, pool_of: Ints, again: Any) -> None:
        """Write down what requests declare and by what queues go before arrival, pool by pool."""
        priority = jobs.column("priority")
        declared = np.maximum(jobs.column("declared"), again.outputs)
        for index, pool in enumerate(self.pools):
            here = slice(None) if len(self.pools) == 1 else np.flatnonzero(pool_of == index)
            again.declared[here], again.priority[here] = declared_of(
                pool.server, jobs.prompt[here], declared[here], priority[here]
            )

    def _decodes(self, jobs: Jobs) -> Ints:
        """Return each request's decode iterations: at engines a prompt yields the first output."""
        engine = self._by_convention[self.network.stage_pool[jobs.stage]]
        return np.asarray(jobs.output - (engine & (jobs.prompt > 0) & (jobs.output > 0)))

    @functools.cached_property
    def _by_convention(self) -> Bools:
        """Shape (pools,): whether a pool counts as engines do."""
        return np.array([pool.server.convention == "engine" for pool in self.pools])

    def _prefixes(self, jobs: Jobs) -> tuple[Ints32, Ints]:
        """Return whose recorded hash ids each request has, and how many of its tokens they name."""
        # Those that go on with a context have that one's, as far as it reaches.
        prefix = jobs.column("prefix").copy()
        named = np.zeros(jobs.requests, np.int64)
        recorded = self.prefixes
        if recorded is None:
            return prefix, named
        own = np.flatnonzero(prefix >= 0)
        named[own] = np.diff(recorded.bounds)[prefix[own]] * recorded.block_size
        later = np.flatnonzero((jobs.context < 0) & (prefix < 0))
        earlier = later + jobs.context[later]
        before = None
        while before is None or (before != named).any():  # a generation at a time
            before = named.copy()
            named[later] = np.minimum(named[earlier], jobs.reuse[later])
            prefix[later] = np.where(named[later] > 0, prefix[earlier], -1)
        return prefix, named

    def _counted(self, what: str, seconds: Floats) -> Ints:
        """Round to ticks."""
        longest = float(seconds.max(initial=0.0))
        if longest == 0:  # as delays usually are
            return np.zeros(seconds.size, np.int64)
        if longest / self.tick_s >= NEVER / 4:
            raise InputError(
                f"{what} of {longest:g} s is more ticks of {self.tick_s:g} s than can be counted; "
                "give a larger "
                "tick_s, or ask for less"
            )
        return np.rint(seconds / self.tick_s).astype(np.int64)

    def _homes(self, jobs: Jobs) -> Ints32:
        """Return offsets to the job's first request at the same pool, where a router may ask."""
        if not any(pool.affinity or pool.router.function for pool in self.pools):
            return np.zeros(jobs.requests, np.int32)
        key = jobs.job * len(self.network.pools) + self.network.stage_pool[jobs.stage]
        _, first, group = np.unique(key, return_index=True, return_inverse=True)
        return np.asarray(first[group] - np.arange(jobs.requests), np.int32)
