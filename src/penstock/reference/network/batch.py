"""How one replica forms a batch: the order ranks its lines, the policy chooses for each line,
limits cut.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import InputError
from penstock.reference.network.orders import BY_LINE, BY_PHASE, SPLIT, Weights
from penstock.reference.seam_policies import PREFILL_FIRST, Limits, Queue

if TYPE_CHECKING:
    from penstock.reference.network.model import Pool

NO_LIMIT = 2**40
PREFILL, DECODE = 0, 1


@dataclass(eq=False)
class Request:
    """One visit of a job to a stage, its unprocessed tokens, and what became of it."""

    index: int
    job: int
    stage: int
    prompt: int
    decode_tokens: int  # decode iterations that it needs, by token convention
    pending: int  # requests that must finish before it is released
    P: int  # unprocessed prefill tokens
    D: int  # unprocessed decode tokens
    ready: int | None = None  # tick of its arrival at the pool
    replica: int | None = None  # among those of all pools
    cached: int = 0  # prompt tokens found at the replica
    decodes_from: int | None = (
        None  # tick at which it enters decode: its last prompt token is through, or it has none
    )
    first_token: int | None = None
    finish: int | None = None

    @property
    def prefilling(self) -> bool:
        """Whether a prompt token of it is not yet through."""
        return self.decodes_from is None

    @property
    def running(self) -> bool:
        """Whether a token of it has been scheduled, or it decodes from the start."""
        prefilled = self.prompt - self.cached - self.P
        return prefilled > 0 or not self.prefilling


@dataclass(frozen=True)
class LineAt:
    """Where requests of some stages wait at one replica, in order of arrival there."""

    stages: Sequence[int]
    arrived: list[Request]  # since the start

    @property
    def requests(self) -> list[Request]:
        """Return those that are there."""
        return [request for request in self.arrived if request.finish is None]


class Forming:
    """A batch while it is formed at a replica: who is served, and what is left for others.

    Parameters
    ----------
    pool
        Its limits and its policy.
    requests
        Those at the replica.
    """

    def __init__(self, pool: "Pool", requests: Sequence[Request]) -> None:
        self.pool, self.requests = pool, requests
        self.tokens = pool.token_budget  # left
        self.k_max = NO_LIMIT if pool.max_batch_size is None else pool.max_batch_size
        self.served: dict[
            Request, tuple[int, int]
        ] = {}  # request -> (prefill tokens, decode tokens)

    @property
    def slots(self) -> int:
        """How many more requests the batch may serve."""
        return self.k_max - len(self.served)

    def prompts(self, line: Iterable[Request]) -> list[Request]:
        """Return the requests in prefill, oldest first."""
        return [request for request in line if request.P > 0]

    def decoding(self, line: Iterable[Request]) -> list[Request]:
        """Return the requests in decode that the batch does not serve yet, in the order in which
        they entered it.
        """
        decoding = [
            (r.decodes_from, index, r) for index, r in enumerate(line) if r.decodes_from is not None
        ]
        return [request for _, _, request in sorted(decoding) if request not in self.served]

    def candidates(self, line: Iterable[Request]) -> list[Request]:
        """Return the prompts that may be served: those served or begun anyway, and new ones while
        there is room.
        """
        if self.pool.scope == "batch":
            room, inside = (
                self.slots,
                [request for request in self.prompts(line) if request in self.served],
            )
        else:
            room = self.k_max - sum(request.running for request in self.requests)
            inside = [request for request in self.prompts(line) if request.running]
        new = [request for request in self.prompts(line) if request not in inside]
        return inside + new[: max(room, 0)]

    def serve_prefill(self, line: Iterable[Request], tokens: int) -> None:
        """Serve so many prompt tokens of a line, if it has them and they fit; the last prompt is
        cut.
        """
        for request in self.candidates(line):
            share = min(request.P, tokens, self.tokens)
            if share > 0 and (self.slots > 0 or request in self.served):
                request.P -= share
                tokens -= share
                self.tokens -= share
                self.served[request] = (self.served.get(request, (0, 0))[PREFILL] + share, 0)

    def serve_decode(self, line: Iterable[Request], tokens: int) -> None:
        """Serve so many decodes of a line, if it has them and they fit."""
        for request in self.decoding(line)[: min(tokens, self.tokens, self.slots)]:
            request.D -= 1
            self.tokens -= 1
            self.served[request] = (0, 1)

    def offer(self, line: LineAt, tokens: int) -> None:
        """Let the policy choose what is served of a line within so many tokens."""
        if tokens == 0 or self.slots == 0 or not line.requests:
            return
        limits = Limits(tokens, self.slots)
        x, y, first = self.pool.policy(self.queue(line), limits, self.pool.policy_params)
        if x < 0 or y < 0:
            raise InputError(
                f"the policy asks for {x} prefill and {y} decode tokens; ask for none or more"
            )
        before = self.tokens
        if first == PREFILL_FIRST:
            self.serve_prefill(line.requests, min(x, tokens))
            self.serve_decode(line.requests, min(y, tokens - (before - self.tokens)))
        else:
            self.serve_decode(line.requests, min(y, tokens))
            self.serve_prefill(line.requests, min(x, tokens - (before - self.tokens)))

    def queue(self, line: LineAt) -> Queue:
        """Return what the policy sees of a line."""
        prompts, candidates = self.prompts(line.requests), self.candidates(line.requests)
        decoding = self.decoding(line.requests)
        return Queue(
            prompts=len(candidates),
            prompt_tokens=sum(request.P for request in candidates),
            decoding=len(decoding),
            waiting=len(prompts),
            waiting_tokens=sum(request.P for request in prompts),
            head_tokens=prompts[0].P if prompts else 0,
            decode_tokens=sum(request.D for request in decoding),
            arrived=len(line.arrived),
            arrived_tokens=sum(request.prompt - request.cached for request in line.arrived),
            finished=sum(request.finish is not None for request in line.arrived),
            finished_decodes=sum(
                request.decode_tokens for request in line.arrived if request.finish is not None
            ),
        )

    def in_mode(self, lines: Sequence[LineAt], mode: int, weights: Weights) -> None:
        """Serve the lines as an order ranks them; of equals, the first."""
        total = sum(first for first, _ in weights)
        if mode == BY_PHASE:
            buffers = [(index, phase) for index in range(len(lines)) for phase in (DECODE, PREFILL)]
            for index, phase in sorted(buffers, key=lambda buffer: -weights[buffer[0]][buffer[1]]):
                serve = self.serve_decode if phase == DECODE else self.serve_prefill
                serve(lines[index].requests, self.tokens)
        elif mode == SPLIT and total > 0:
            for line, (weight, _) in zip(lines, weights, strict=True):
                self.offer(
                    line, min(math.floor(self.pool.token_budget * weight / total), self.tokens)
                )
            for line in lines:
                self.serve_decode(line.requests, self.tokens)
                self.serve_prefill(line.requests, self.tokens)
        elif mode in (BY_LINE, SPLIT):
            for index in sorted(range(len(lines)), key=lambda index: -weights[index][0]):
                self.offer(lines[index], self.tokens)
        else:
            raise InputError(
                f"an order gives the mode {mode}; give BY_LINE 0, BY_PHASE 1 or SPLIT 2"
            )

    def by_age(self) -> None:
        """Serve requests by the age of their jobs, whatever their phase."""
        for request in sorted(self.requests, key=lambda request: request.index):
            serve = self.serve_prefill if request.prefilling else self.serve_decode
            serve([request], self.tokens)
