"""Jobs as the event loop takes them: those that can be served, in ticks, request by request."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import InputError
from penstock.inputs.arrays import Bools, Floats, Ints, Ints32
from penstock.kernel import records
from penstock.kernel.due_epochs import NEVER
from penstock.simulation.new_world import declared_of
from penstock.simulation.ticks import check_costs, in_ticks, terms_of
from penstock.system.server import Server
from penstock.workload.jobs import Jobs

if TYPE_CHECKING:
    from penstock.system.network import Network


class JobsInTicks:
    """Turns jobs into the kernel's arrays."""

    def __init__(
        self,
        network: "Network",
        tick_s: float,
        *,
        counts_gaps: bool,
        has_tries: bool,
        of_server: bool = False,
    ) -> None:
        # ``counts_gaps``: whether times between tokens are counted; ``has_tries``: whether requests
        # may begin anew; ``of_server``: the one pool has no name that somebody gave it.
        self.network = network
        self.prefixes = network.prefixes
        self.tick_s = tick_s
        self.counts_gaps = counts_gaps
        self.has_tries = has_tries
        self.of_server = of_server
        self.pools = list(network.pools.values())
        self.kinds = [
            (index, server) for index, pool in enumerate(self.pools) for server, _ in pool.servers
        ]
        self.has_engines = any(not server.by_lines for _, server in self.kinds)

    def never_served(self, jobs: Jobs, first: int) -> Bools:
        """Return which requests can never be served, and are to be left out with their jobs.

        The ``first`` of them is called by that number where one is refused: where the memory of its
        pool does not say to drop it, or an engine cannot tell what to do with it.
        """
        never = np.zeros(jobs.requests, np.bool_)
        if not self.has_engines:
            return never
        pool_of, received = self.network.stage_pool[jobs.stage], self.network.received(jobs)
        alone = len(self.pools) == 1
        for index, server in self.kinds:
            if server.by_lines:
                continue
            here: Any = slice(None) if alone else np.flatnonzero(pool_of == index)
            prompt, output, brought = jobs.prompt[here], jobs.output[here], received[here]
            self._check_prefilled(jobs, here, server, brought)
            outputs = np.maximum(output, 1) + (brought > 0)
            declared = np.maximum(jobs.column("declared")[here], outputs)
            for over, reason in never_served(server, prompt + brought, outputs, declared):
                if not over.any():
                    continue
                memory = server.memory
                if memory is not None and memory.too_long == "drop":
                    never[here] |= over
                    continue
                place = int(np.arange(jobs.requests)[here][over][0])
                remedy, where = "raise the limit or shorten the requests", ""
                if memory is not None:
                    remedy += ", or drop them with `memory: {too_long: drop}`"
                if not self.of_server:
                    where = f", at pool {list(self.network.pools)[index]!r}"
                raise InputError(
                    f"request {first + place} has {jobs.prompt[place]:,} prompt and "
                    f"{jobs.output[place]:,} output tokens{where}: {reason}; {remedy}"
                )
        return never

    def _check_prefilled(self, jobs: Jobs, here: Any, server: Server, brought: Ints) -> None:
        """Refuse requests without a prompt that an engine cannot go on with."""
        without = (jobs.prompt[here] == 0) & (jobs.output[here] > 0)
        if not without.any():
            return
        stage_of, stages = jobs.stage[here], self.network.stages
        if (brought[without] == 0).any():
            raise InputError(
                f"a request of stage {stages[stage_of[without & (brought == 0)][0]]!r} has "
                "outputs, but neither a prompt nor a request before it, which "
                f"{server.policy.name} cannot serve; give it a prompt of at least 1 token"
            )
        if not server.policy.memory.receives:
            raise InputError(
                f"stage {stages[stage_of[without][0]]!r} only decodes, but that "
                f"{server.policy.name} goes on with KV memory from elsewhere is not modelled; take "
                "vllm without drafts, or a policy of the paper"
            )

    def check_costs(self, jobs: Jobs) -> None:
        """Refuse requests too long for batches' costs to be counted."""
        pool_of = self.network.stage_pool
        for index, server in self.kinds:
            terms = terms_of(server, self.tick_s)
            if terms is None:
                continue
            here = pool_of[jobs.stage] == index
            tokens = (jobs.prompt + self.network.received(jobs) + jobs.output)[here]
            check_costs(server, terms, self.tick_s, int(tokens.max(initial=1)))

    def arrays(self, jobs: Jobs) -> dict[str, Any]:
        """Return what the kernel needs of some jobs, by the names of `World`."""
        pool_of = self.network.stage_pool[jobs.stage]
        rows = records.table(records.ROW, jobs.requests)
        rows.left = jobs.prompt
        rows.decodes = self.network.decodes(jobs)
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
            again.target, again.outputs = (
                rows.left,
                rows.decodes + self.network.outputs_of_prefill[pool_of],
            )
            self._rank(jobs, pool_of, again)
            later = np.flatnonzero(jobs.context)
            if self.prefixes is not None or later.size:
                again.prefix, again.named = self._prefixes(jobs)
                np.add.at(again.followed, later + jobs.context[later], 1)
        delay = in_ticks("a delay", jobs.wait_s, self.tick_s)
        sent = records.table(records.SENT, jobs.requests if self.network.sends_memory else 0)
        if self.network.sends_memory:
            received = self.network.received(jobs)
            here = np.flatnonzero(received)
            delay[here] = 0  # what comes after it is its KV memory
            again.target[here] = received[here]
            sent.tokens = received
            sent.sender = jobs.column("sender")
            sent.link = in_ticks("a transfer", jobs.column("transfer_s"), self.tick_s)
            sent.latency = in_ticks("a delay", jobs.delay_s, self.tick_s)
        tries = records.table(records.TRY, jobs.requests if self.has_tries else 0)
        if self.has_tries:
            tries.came, tries.left, tries.decodes = -1, rows.left, rows.decodes
            tries.gone = -1
            tries.luck = jobs.column("luck")
            tries.patience_first = self._patience(jobs.column("ttft_limit_s"))
            tries.patience_whole = self._patience(jobs.column("e2e_limit_s"))
            if sent.tokens.any():
                raise InputError(
                    "outages, limits on queues and the patience of clients are not modelled in a "
                    "network that sends KV memory from pool to pool; leave them out, or let one "
                    "pool do both phases"
                )
        never = np.full(jobs.requests, -1, np.int64)
        front = self._front(jobs, pool_of)
        job_tokens = np.zeros(0, np.int64)
        if jobs.count:
            job_tokens = np.add.reduceat(tokens, jobs.first_request[:-1])
        return {
            "rows": rows,
            "again": again,
            "sent": sent,
            "tries": tries,
            "delay": delay,
            "coin": np.array(jobs.coin, np.uint32),
            "context": np.array(jobs.context, np.int32),
            "reuse": np.where(jobs.context < 0, jobs.reuse, 0).astype(np.int32),
            "home": self._homes(jobs),
            "cached": np.zeros(jobs.requests, np.int32),
            "ready": never,
            "front": front,
            "reached": np.full(front.size, -1, np.int64),
            "first_token": never.copy(),
            "finish": never.copy(),
            "job_arrival": in_ticks("an arrival", jobs.arrival_s, self.tick_s),
            "job_root": np.array(jobs.first_request[:-1], np.int64),
            "job_tokens": job_tokens,
        }

    def _patience(self, seconds: Floats) -> Ints:
        """Return how long clients wait; NEVER: for ever."""
        return np.clip(np.rint(seconds / self.tick_s), 1, NEVER).astype(np.int64)

    def _front(self, jobs: Jobs, pool_of: Ints) -> Ints:
        """Return the ticks of each request at its front end; nothing where no pool has one."""
        ends = [pool.server.front_end for pool in self.network.pools.values()]
        if not any(ends):
            return np.zeros(0, np.int64)
        seconds = np.zeros(jobs.requests)
        for index, end in enumerate(ends):
            if end is not None:
                here = pool_of == index
                seconds[here] = end.seconds(jobs.output[here].astype(np.float64))
        if self.network.sends_memory:  # who comes with it was taken in where its prompt was
            seconds[self.network.received(jobs) > 0] = 0.0
        return in_ticks("the work of a front end", seconds, self.tick_s)

    def _rank(self, jobs: Jobs, pool_of: Ints, again: Any) -> None:
        """Write down what requests declare and by what queues go before arrival, pool by pool."""
        priority = jobs.column("priority")
        declared = np.maximum(jobs.column("declared"), again.outputs)
        for index, pool in enumerate(self.pools):
            here = slice(None) if len(self.pools) == 1 else np.flatnonzero(pool_of == index)
            again.declared[here], again.rank[here] = declared_of(
                pool.server, jobs.prompt[here], declared[here], priority[here]
            )

    def _prefixes(self, jobs: Jobs) -> tuple[Ints32, Ints]:
        """Return whose recorded hash ids each request has, and how many of its tokens they name."""
        # Those that go on with a context have that one's, as far as it reaches.
        prefix = jobs.column("prefix").copy()
        named = np.zeros(jobs.requests, np.int64)
        recorded = self.prefixes
        if recorded is None:
            return prefix, named
        first = np.flatnonzero(prefix >= 0)
        named[first] = np.diff(recorded.bounds)[prefix[first]] * recorded.block_size
        later = np.flatnonzero((jobs.context < 0) & (prefix < 0))
        earlier = later + jobs.context[later]
        before = None
        while before is None or (before != named).any():  # a generation at a time
            before = named.copy()
            named[later] = np.minimum(named[earlier], jobs.reuse[later])
            prefix[later] = np.where(named[later] > 0, prefix[earlier], -1)
        return prefix, named

    def _homes(self, jobs: Jobs) -> Ints32:
        """Return offsets to the job's first request at the same pool, where a router may ask."""
        if not any(pool.affinity or pool.router.function for pool in self.pools):
            return np.zeros(jobs.requests, np.int32)
        key = jobs.job * len(self.network.pools) + self.network.stage_pool[jobs.stage]
        _, first, group = np.unique(key, return_index=True, return_inverse=True)
        return np.asarray(first[group] - np.arange(jobs.requests), np.int32)


def never_served(
    server: Server, prompt: Ints32, output: Ints32, declared: Ints32
) -> Iterator[tuple[Bools, str]]:
    """Yield which requests can never be served, and for which reason."""
    policy, memory, usable = server.policy, server.memory, server.usable_blocks
    most_tokens = prompt.astype(np.int64) + policy.outputs_of(prompt, output)
    most_tokens -= server.outputs_of_prefill
    if longest := policy.memory.longest_context:
        yield (
            prompt >= longest,
            f"{policy.name} has no room for an output, for its max_model_len is {longest:,}",
        )
    if policy.queue.knows_outputs:
        yield (
            declared != output,
            f"it declares other outputs than it makes, which {policy.name} (ignore_eos) does not",
        )
    if memory is not None and usable is not None:
        size = memory.block_size
        yield from _cut_for_memory(server, usable, size, prompt, output)
        yield from _beyond_memory(server, usable, size, most_tokens)
    if policy.batching.cuts_prompts:
        return
    whole, takes = prompt.astype(np.int64), f"{policy.name} takes a prompt whole"
    if memory is not None and server.holds != "completion":  # what is preempted comes back longer
        whole, takes = most_tokens, f"{takes}, with outputs that it lost"
    yield (
        whole > server.token_budget - policy.batching.beside_prompt,
        f"{takes}, but a batch holds {server.token_budget:,} tokens, so it never fits and blocks "
        "the server",
    )


def _cut_for_memory(
    server: Server, usable: int, size: int, prompt: Ints32, output: Ints32
) -> Iterator[tuple[Bools, str]]:
    """Yield the requests whose outputs an engine would cut for want of KV memory."""
    policy = server.policy
    most = policy.most_outputs(prompt, usable, size)
    if most is None:
        return
    # A page of one that comes back may be less full.
    spare = 1 + policy.queue.knows_outputs
    yield (
        output > most - (spare - 1) * size,
        f"{policy.name} would cut its output for want of memory: of {usable:,} blocks of {size:,} "
        f"its prompt, {spare} more and a token stay free",
    )


def _beyond_memory(
    server: Server, usable: int, size: int, most_tokens: Ints
) -> Iterator[tuple[Bools, str]]:
    """Yield the requests that need more blocks than there are."""
    memory, spare = server.policy.memory, server.spare_blocks
    needed = -(-(most_tokens + memory.drafted_tokens + memory.reserves_last_token) // size)
    over = needed + spare > usable
    if not over.any():
        return
    blocks = f"{int(needed[over][0]):,} blocks of {size:,}"
    if spare:
        blocks += f" beside a watermark of {spare:,}"
    yield (
        over,
        f"it needs {blocks}, but the KV memory has {usable:,}, so it never fits and blocks the "
        "server",
    )
