"""What every replica has in common: who is there, the batch in progress, what its end brings."""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.errors import InputError
from tests.reference.batch_time import Composition
from tests.reference.markov_chain import at_least
from tests.reference.network import Pool
from tests.reference.seam_policies import Queue

BARREN = 1_024  # batches without an output before preemptions are said to go on for ever
NO_LIMIT = 2**40  # what a policy sees where there is no limit


@dataclass(eq=False)
class Request:
    """One visit of a job to a stage: what it asks for, where it stands, and what became of it."""

    index: int  # its row
    job: int
    stage: int
    prompt: int
    output: int
    total: int  # tokens of it that go through batches, if none goes twice
    pending: int  # requests that must finish before it is released
    priority: int  # the smaller is served first
    hash_ids: Sequence[int]
    # tokens that its prefill brings into memory: the prompt, or all known ones after a preemption
    target: int
    named: int = 0  # tokens whose full blocks have hash ids; traces may name one that is not full
    computed: int = 0  # tokens in memory, those found there included
    taken: int = 0  # tokens in the batch that is formed or in progress
    ready: int | None = None  # tick of its arrival at its replica
    reached: int | None = None  # tick at which it came to the front end of its pool
    came: int | None = None  # tick of its first arrival at the pool
    tries: int = 0  # how often it was sent again
    refusals: int = 0
    wasted: int = 0  # tokens processed until its client left
    lost: bool = False  # with its replica, or with a request before it
    replica: int | None = None  # among those of all pools
    cached: int = 0  # prompt tokens found at its replica when it was first served
    decodes_from: int = 0  # tick at which it entered decode
    blocks: int = 0  # KV blocks held
    preemptions: int = 0
    finish: int | None = None
    in_flight: int = 0  # output tokens that the batch in progress brings, if that is known ahead
    rejected: int = 0  # drafts of the batch in progress that are not accepted, before that is known
    ends_unforeseen: bool = False  # in the batch in progress, and nobody knows that before its end
    # The tick at which each output token was complete.
    token_times: list[int] = field(default_factory=list)
    declared: int = 0  # most output tokens that it says it may make
    context: "Request | None" = None  # a request of its job that it goes on with
    reuse: int = 0  # tokens of its prompt that it shares with that one
    receives: bool = False  # whether it goes on with the KV memory of another request
    source: "Replica | None" = None  # whoever has that
    latency: int = 0  # ticks until that is there once the link is free again
    link: int = 0  # ticks that it takes the link
    lent: int = 0  # KV blocks kept for it at its sender's replica
    reserved: int = 0  # KV blocks kept for it at its own
    made_elsewhere: int = 0  # output tokens that were out before it came
    # How long its client waits for a first token, and for all, and until when this time.
    patience_first: float = math.inf
    patience_whole: float = math.inf
    first_until: float = math.inf
    whole_until: float = math.inf
    luck: int = 0  # 32 random bits
    gone: int | None = None  # when its client left
    found: int = 0  # tokens that it found in a cache when it was admitted last
    failed: str | None = None  # why it was given up at last

    @property
    def decoding(self) -> bool:
        """Whether its prefill is complete, up to the batches that have ended."""
        return self.computed >= self.target

    @property
    def is_done(self) -> bool:
        """Whether all of it is computed, up to the batch in progress where that is known ahead."""
        return self.computed == self.total

    @property
    def missing(self) -> int:
        """Tokens that must be in memory before its next output: a decode brings one."""
        return max(self.target - self.computed, 1)

    @property
    def unprocessed(self) -> int:
        """Tokens that are in no batch that has started; those lost by a preemption are again."""
        return self.total - self.computed - self.taken

    @property
    def P(self) -> int:
        """Unprocessed prefill tokens."""
        return max(self.target - self.computed - self.taken, 0)

    @property
    def outputs(self) -> int:
        """Output tokens that are out."""
        return len(self.token_times) + self.made_elsewhere

    @property
    def first_token(self) -> int | None:
        """The tick at which the first of them was complete."""
        return next(iter(self.token_times), None)


Allocation: TypeAlias = dict[Request, int]
"""The tokens of each request in a batch, in the order in which they were chosen."""


@dataclass(frozen=True)
class Batch:
    """One forward pass: it holds the replica over ticks [start, start + duration)."""

    start: int
    duration: int
    allocation: dict[int, int]  # tokens of each request
    preempted: list[int]  # requests preempted to form it, in that order
    replica: int
    died: bool = False  # before its end: nothing of it was computed

    @property
    def end(self) -> int:
        """The tick at which it finishes; past the end of the run if that was stopped before."""
        return self.start + self.duration

    @property
    def token_load(self) -> int:
        """Tokens in the batch."""
        return sum(self.allocation.values())


class Replica:
    """One server of a pool; `step` chooses the requests of a batch."""

    def __init__(self, pool: Pool, index: int = 0) -> None:
        self.pool = pool
        self.index = index  # among the replicas of all pools
        self.b_max = pool.token_budget or NO_LIMIT
        self.k_max = pool.max_batch_size or NO_LIMIT
        self.arrived: list[Request] = []  # since the start, in order of arrival
        self.requests: list[Request] = []  # those that are there
        self.batches: list[Batch] = []
        self.batch: Allocation = {}  # in progress
        self.leaving: list[Request] = []  # those who finish when it ends
        self.link_free = 0  # the tick from which on its link can carry KV memory
        self.drafts = 0  # tokens that are drafted for each decode
        self.composes_ahead = False  # whether a batch is composed when the one before it starts
        self.planned: Allocation = {}  # composed so, not yet started
        self.preempted: list[Request] = []  # in this step
        self.preempted_for: list[int] = []  # requests preempted to form the batch
        self.barren = 0  # batches since the last output, for each of which somebody was preempted

    def refusal(self, request: Request) -> str | None:
        """Say why a request could never finish here, or return None if it could."""
        return None

    def outputs_of(self, prompt: int, output: int) -> int:
        """Return how many of its output tokens a request gets here."""
        return output

    def arrive(self, request: Request) -> None:
        """Take in a new request."""
        self.arrived.append(request)
        self.requests.append(request)

    def step(self) -> Allocation:
        """Choose who is served in the next batch; a step may also only preempt."""
        raise NotImplementedError

    def idle(self) -> None:
        """Take note that nobody is there."""

    def receive(self, now: int) -> None:
        """Let those run whose KV memory has come from elsewhere, and begin more transfers."""

    @property
    def has_work(self) -> bool:
        """Whether anybody is there who needs nothing from elsewhere."""
        return True

    @property
    def waits_for_transfers(self) -> bool:
        """Whether the end of a transfer may let somebody be served."""
        return False

    def form(self, now: int) -> None:
        """Begin the next batch, if anybody is there or one was composed for those who were, and
        compose the one after it, if that is done ahead.
        """
        if not self.requests and not self.planned:
            self.idle()
            return
        self.batch, self.planned = self.planned, {}
        while not self.batch:
            # A step that only preempts leaves the replica idle with work to do: it looks again, and
            # what is on its way may have the memory.
            self.receive(now)
            if not self.has_work:
                return
            self.batch = self.next_batch()
            if not self.batch and not self.preempted and self.waits_for_transfers:
                return
            if not self.batch and not self.preempted:
                raise InputError(
                    f"at tick {now} replica {self.index} serves none of {len(self.requests)} "
                    "requests; let its policy serve one"
                )
        self.begin(now)
        if self.composes_ahead:
            self.advance(self.batches[-1].end)
            self.receive(now)
            self.planned = self.next_batch()

    def next_batch(self) -> Allocation:
        """Return the next batch, whose tokens can be computed."""
        self.preempted = []
        batch = self.step()
        self.assert_feasible(batch)
        self.preempted_for += [request.index for request in self.preempted]
        self.barren += len(self.preempted) > 0
        if self.barren > BARREN + 16 * max((r.total for r in self.requests), default=0):
            raise InputError(
                f"requests of replica {self.index} preempt each other for ever: {self.barren} "
                "batches preempted somebody, and brought nobody an output; give it more memory"
            )
        return batch

    def begin(self, now: int) -> None:
        """Start the batch that was composed."""
        duration = at_least("batch_time of a batch", self.ticks(), 1)
        allocation = {request.index: tokens for request, tokens in self.batch.items()}
        self.batches.append(Batch(now, duration, allocation, self.preempted_for, self.index))
        self.preempted_for = []
        for request, tokens in self.batch.items():
            if request.finish is None:  # else it is served for nothing
                request.taken = self.useful(request, tokens)

    def useful(self, request: Request, tokens: int) -> int:
        """Return how many of the tokens that a request gets in a batch stay in memory."""
        return tokens

    def assert_feasible(self, batch: Allocation) -> None:
        """Assert that each request gets tokens of its phase, as many as it has."""
        for request, tokens in batch.items():
            most = max(request.missing, 1 + self.drafts)
            assert request in self.requests, f"request {request.index} is served, but is not there"
            assert 0 < tokens <= most, f"request {request.index} gets {tokens} of {most} tokens"

    def ticks(self) -> int:
        """Return how long the batch takes, before any of its tokens is computed."""
        batch, batch_time = self.batch, self.pool.batch_time
        if not isinstance(batch_time, Composition):
            return batch_time(token_load(batch))
        # What verifies drafts is like a prompt.
        whole = [r for r in batch if not r.decoding or self.drafts]
        prompts = [(batch[r], r.computed) for r in whole]
        return batch_time.ticks(prompts, [r.computed for r in batch if r not in whole])

    def advance(self, end: int) -> None:
        """Compute the batch, which ends at a tick: tokens are in memory, outputs are out."""
        for request, tokens in self.batch.items():
            if request.finish is not None:
                continue
            was_decoding = request.decoding
            missing = request.missing
            useful = self.useful(request, tokens)
            request.computed += useful
            request.taken = 0
            if not was_decoding:
                request.decodes_from = end  # if this was the last of its prefill
            # The end of a prefill is an output by convention, or where nothing follows it.
            yields = self.pool.convention == "engine" or request.total == request.prompt
            outputs = 0
            if was_decoding or (request.decoding and yields):
                outputs = useful + 1 - missing
            request.token_times += [end] * outputs
            if outputs:
                self.barren = 0
            if self.composes_ahead:
                request.in_flight = outputs
                request.rejected = tokens - useful
                surely_out = request.outputs - outputs + min(outputs, 1)
                request.ends_unforeseen = surely_out < request.declared
            if request.is_done:
                self.leaving.append(request)

    def complete(self, now: int) -> list[Request]:
        """End the batch; return those who finish."""
        if not self.composes_ahead:  # else its scheduler took it for computed when it started
            self.advance(now)
        for request in self.batch:
            request.in_flight = request.rejected = 0
        self.batch = {}
        finished, self.leaving = self.leaving, []
        for request in finished:
            request.finish = now
            self.leave(request)
        return finished

    def leave(self, request: Request) -> None:
        """Strike a finished request from those that are there."""
        self.requests.remove(request)

    def drop(self, request: Request) -> None:
        """Strike a request whose client has left: it gets nothing of the batch in progress, and the
        one composed ahead serves it for nothing.
        """
        as_it_was = copy.copy(request)
        self.arrived[self.arrived.index(request)] = as_it_was
        self.batch.pop(request, None)
        if request in self.planned:
            ghost = copy.copy(request)
            ghost.finish = -1
            self.planned = {ghost if r is request else r: tokens for r, tokens in self.planned.items()}
        if request in self.leaving:
            self.leaving.remove(request)
        self.strike(request)

    def strike(self, request: Request) -> None:
        """Strike a request from those that are there, before it is done."""
        self.requests.remove(request)

    def less_urgent(self, request: Request) -> int:
        """Return its priority: the larger it is, the sooner others go first."""
        return request.priority

    def urgency(self, request: Request) -> tuple[int, int, int]:
        """Return by what the one is found that would be served last."""
        return self.less_urgent(request), request.ready or 0, request.index

    @property
    def unprocessed_tokens(self) -> int:
        """Tokens that are there and not yet in a batch that has started."""
        return sum(request.unprocessed for request in self.requests)


def token_load(batch: Allocation) -> int:
    """Tokens in a batch."""
    return sum(batch.values())


def queue_of(
    visible: Mapping[Request, int],
    prompts: Sequence[Request],
    decoding: Iterable[Request],
    arrived: Sequence[Request],
) -> Queue:
    """Return what a policy sees.

    Of the prompts that may be served, with how much of each; of all prompts, the oldest first; of
    those that decode; of all since the start.
    """
    decodes_left = [request.total - request.computed for request in decoding]
    finished = [request for request in arrived if request.finish is not None]
    return Queue(
        prompts=len(visible),
        prompt_tokens=sum(visible.values()),
        decoding=len(decodes_left),
        waiting=len(prompts),
        waiting_tokens=sum(request.P for request in prompts),
        head_tokens=prompts[0].P if prompts else 0,
        decode_tokens=sum(decodes_left),
        arrived=len(arrived),
        arrived_tokens=sum(r.prompt - r.cached for r in arrived if not r.receives),
        finished=len(finished),
        finished_decodes=sum(request.total - request.prompt for request in finished),
    )
