"""A session on one server whose requests hold memory, come by priority, or are scheduled as an
engine does it: that of a network of one replica, whose jobs are one request each.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.errors import InputError
from penstock.inputs.arrays import Bools, Ints
from penstock.simulation.rows import Record, Rows
from penstock.simulation.run import Run
from penstock.simulation.servable import never_served
from penstock.simulation.session_network import NetworkSession
from penstock.simulation.session_server import OF_A_LINE, OneServer
from penstock.simulation.session_world import views
from penstock.simulation.ticks import arrivals_in_ticks, check_costs
from penstock.system.pool import Pool
from penstock.system.server import Server
from penstock.workload.jobs import Jobs
from penstock.workload.prefixes import Prefixes
from penstock.workload.workload import Requests

_REMEDY = "raise the limit or shorten the requests"
_OR_DROP = ", or drop them with `memory: {too_long: drop}`"


class _Alone:
    """What a session asks of a network, of one that is a server: each job is a request there."""

    stages = ("call",)
    stage_pool = stage_line = np.zeros(1, np.int64)
    replicas = np.ones(1, np.int64)
    order_params = (np.zeros(0),)
    router_weights = np.zeros((1, 2), np.int64)
    onward = np.zeros((1, 1))
    prefill_means = decode_means = np.zeros(1)
    retention_s = None
    sends_memory = False

    def __init__(self, server: Server, prefixes: Prefixes | None) -> None:
        self.pools = {"server": Pool(server)}
        self.prefixes = prefixes

    def within_context(self, jobs: Jobs) -> Jobs:
        """Return jobs as they are: `EngineSession.keep` cut their outputs."""
        return jobs

    def received(self, jobs: Jobs) -> Ints:
        """Return that no KV memory comes from elsewhere."""
        return np.zeros(jobs.requests, np.int64)


class EngineSession(OneServer, NetworkSession):
    """On an engine, or a policy with memory.

    A recording that follows itself has its own names ``renewals`` times, then the first again.
    """

    def __init__(
        self,
        server: Server,
        record: Record,
        tick_s: float,
        compress: bool,
        stop: int,
        prefixes: Prefixes | None = None,
        renewals: int = 1,
    ) -> None:
        alone: Any = _Alone(server, prefixes)
        NetworkSession.__init__(self, alone, tick_s, compress, stop, record, of_server=True)
        self._watch(server)
        self.line = self.engine = self.world.engines[0]
        self._line = views(
            self.world.engines, *OF_A_LINE, "waiting", "prefilling", "lost", "rejections",
            "reused",
        )  # fmt: skip
        self.left_out: list[tuple[Ints, Requests]] = []
        self.offered = 0
        self.prefix_rows = np.empty(0, np.int64)
        self.prefixes = prefixes
        self.named = self.prefixes.rows * renewals if self.prefixes else 0

    # -- what it knows

    @property
    def arrived(self) -> int:
        """Requests that have arrived."""
        return int(self._line.arrived.item())

    @property
    def waiting(self) -> tuple[int, int]:
        """Requests in prefill, and their unprocessed tokens."""
        line = self._line
        return line.waiting.item() + line.prefilling.item(), line.waiting_tokens.item()

    @property
    def started(self) -> int:
        """Tokens in batches that started."""
        replica = self._replica
        return int(replica.processed.item() + self.begun * replica.tokens.item())

    @property
    def useful(self) -> int:
        """Tokens in batches that bring requests on, and those found computed."""
        # Not those done again, wrong drafts, and what is served after an end nobody foresaw.
        line = self._line
        useless = line.lost.item() + line.rejections.item() - line.reused.item()
        return int(self.started - useless)

    # -- what it is given

    def keep(self, requests: Requests) -> Requests:
        """Return what can ever be served; name the first request that cannot, or leave such out."""
        prompt = requests.prompt_tokens.astype(np.int32)
        output = requests.output_tokens.astype(np.int32)
        told = requests.declared
        declared = output if told is None else told.astype(np.int32)
        limits = never_served(self.server, prompt, output, declared)
        fits = np.ones(prompt.size, bool)
        for over, _ in limits:
            fits &= ~over
        self._leave_out(requests, fits, limits)
        if self.named:
            self._name(self.offered + prompt.size)
            rows = (self.offered + np.flatnonzero(fits)) % self.named
            self.prefix_rows = np.concatenate([self.prefix_rows, rows])
        self.offered += prompt.size
        policy = self.server.policy
        kept = requests._replace(
            output_tokens=policy.outputs_of(prompt, output),
            declared=None if told is None else policy.outputs_of(prompt, declared),
        )
        return kept if fits.all() else kept.where(fits)

    def _leave_out(
        self, requests: Requests, fits: Bools, limits: Sequence[tuple[Bools, str]]
    ) -> None:
        """Take note of requests that never fit, if those are to be dropped."""
        too_long = np.flatnonzero(~fits)
        if not too_long.size:
            return
        memory = self.server.memory
        if memory is None or memory.too_long == "error":
            first = int(too_long[0])
            prompt, output = requests.prompt_tokens[first], requests.output_tokens[first]
            reason = next(reason for over, reason in limits if over[first])
            drop = _OR_DROP if memory is not None else ""
            raise InputError(
                f"request {self.offered + first} has {prompt:,} prompt and {output:,} output "
                f"tokens: {reason}; {_REMEDY}{drop}"
            )
        self.left_out.append((self.offered + too_long, requests.where(too_long)))

    def _name(self, requests: int) -> None:
        """Have names for so many requests: twice as many where those so far are too few."""
        so_far = self.world.bounds.size - 1
        if self.prefixes and so_far < min(requests, self.named):
            most = min(max(requests, 2 * so_far), self.named)
            again = self.prefixes.renewed(-(-most // self.prefixes.rows))
            self.world = self.world._replace(ids=again.ids, bounds=again.bounds)
            self._in_ticks.prefixes = again

    def add(self, requests: Requests) -> None:  # type: ignore[override]
        """Let these requests arrive after those known so far."""
        count = requests.arrival_s.size
        prefix = None
        if self.named:
            prefix, self.prefix_rows = self.prefix_rows[:count], self.prefix_rows[count:]
        NetworkSession.add(self, Jobs.of_requests(requests, prefix))

    def _check(self, jobs: Jobs) -> None:
        """Refuse requests too long for batches' costs to be counted; `keep` refused all others."""
        longest = int((jobs.prompt.astype(np.int64) + jobs.output).max(initial=1))
        check_costs(self.server, self.terms, self.tick_s, longest)

    def prefilled(self, count: int) -> None:
        """Begin with first requests decoding, up to ``count`` and to what slots and memory hold."""
        # The others up to ``count`` wait as prompts.
        most = min(int(self.pool.batch_size), int(self.clock.engine_slots), count)
        if not self.server.policy.by_phase:
            # No run of an engine leads to more decodes than fill a batch.
            most = min(most, self.server.most_tokens)
        self.clock.prefilled, self.clock.prefilled_most = count, most
        self._advance()

    # -- what it makes

    def fold(self, everything: bool) -> tuple[Rows, None]:
        """Drop the requests at the front that are done, or all, and return what became of them."""
        rows, _ = NetworkSession.fold(self, everything)
        return dataclasses.replace(rows, cached=None, replica=None), None

    def with_left_out(self, run: Run) -> Run:
        """Put requests that were left out back at their places, without times."""
        if not self.left_out:
            return run
        numbers = np.concatenate([numbers for numbers, _ in self.left_out])
        run = dataclasses.replace(run, dropped=numbers.size)
        if run.rows is None:
            return run
        out = Requests.joined([requests for _, requests in self.left_out])
        never = np.full(numbers.size, -1, np.int64)
        jobs = Jobs.of_requests(out)
        filling = Rows(
            arrivals_in_ticks(out.arrival_s, self.tick_s), jobs.prompt, jobs.output, never, never,
            np.zeros(numbers.size, np.int64), np.ones(numbers.size, bool), of_jobs=jobs,
        )  # fmt: skip
        served = dataclasses.replace(run.rows, dropped=np.zeros(run.rows.finish.size, bool))
        rows = Rows.joined([served, filling])
        place = np.append(np.delete(np.arange(rows.finish.size), numbers), numbers)
        if run.allocation_rows is not None:
            run.allocation_rows[:, 1] = place[run.allocation_rows[:, 1]]
        return dataclasses.replace(run, rows=rows.where(np.argsort(place)))
