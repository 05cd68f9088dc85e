"""A server of the paper: the order ranks its lines, the policy chooses for each line, limits cut.

Prompts of a line are served in order of arrival, decodes in the order in which they entered decode;
of those that entered at one tick first the ones whose prompt was processed here.
"""

import math
from collections.abc import Callable, Sequence

from penstock.errors import InputError
from tests.reference.network import PaperPool
from tests.reference.orders import BY_LINE, BY_PHASE, ORDERS, SPLIT, Line, Weights
from tests.reference.replicas.replica import Allocation, Replica, Request, queue_of
from tests.reference.seam_policies import PREFILL_FIRST, Limits

PREFILL, DECODE = 0, 1


class PaperReplica(Replica):
    """Lines of requests, each of some of the stages; a line is given as all that joined it.

    ``ahead`` says of a stage: its m_p and m_d, and the expected successors of a request of it that
    are in their pools already, per replica of these: all of them, and those in prefill.
    """

    pool: PaperPool

    def __init__(
        self,
        pool: PaperPool,
        index: int,
        stages: Sequence[int],
        ahead: Callable[[int], tuple[float, float, float, float]],
    ) -> None:
        super().__init__(pool, index)
        self.stages, self.ahead = stages, ahead
        self.served: Allocation = {}  # in the batch that is formed
        self.left = 0  # tokens left in it

    @property
    def slots(self) -> int:
        """How many more requests the batch may serve."""
        return self.k_max - len(self.served)

    def prompts(self, line: Sequence[Request]) -> list[Request]:
        """Return the requests in prefill, oldest first."""
        return [request for request in line if request.P > 0]

    def decoding(self, line: Sequence[Request]) -> list[Request]:
        """Return the requests in decode that the batch does not serve yet, in the order in which
        they entered it.
        """
        decoding = [r for r in line if r.decoding and r.finish is None and r not in self.served]
        return sorted(decoding, key=lambda request: request.decodes_from)

    def running(self, request: Request) -> bool:
        """Whether a token of it has been scheduled, or it decodes from the start."""
        return request.decoding or request.computed + request.taken > request.cached

    def candidates(self, line: Sequence[Request]) -> list[Request]:
        """Return the prompts that may be served: those served or begun anyway, and new ones while
        there is room.
        """
        prompts = self.prompts(line)
        if self.pool.scope == "batch":
            room = self.slots
            inside = [request for request in prompts if request in self.served]
        else:
            room = self.k_max - sum(map(self.running, self.requests))
            inside = [request for request in prompts if self.running(request)]
        return inside + [r for r in prompts if r not in inside][: max(room, 0)]

    def serve(self, request: Request, tokens: int) -> None:
        """Put so many tokens of a request into the batch."""
        request.taken += tokens
        self.left -= tokens
        self.served[request] = request.taken

    def serve_prefill(self, line: Sequence[Request], tokens: int) -> None:
        """Serve so many prompt tokens of a line, if it has them and they fit; the last prompt is
        cut.
        """
        for request in self.candidates(line):
            share = min(request.P, tokens, self.left)
            if share > 0 and (self.slots > 0 or request in self.served):
                tokens -= share
                self.serve(request, share)

    def serve_decode(self, line: Sequence[Request], tokens: int) -> None:
        """Serve so many decodes of a line, if it has them and they fit."""
        for request in self.decoding(line)[: min(tokens, self.left, self.slots)]:
            self.serve(request, 1)

    def offer(self, line: Sequence[Request], tokens: int) -> None:
        """Let the policy choose what is served of a line within so many tokens."""
        if tokens == 0 or self.slots == 0 or all(r.finish is not None for r in line):
            return
        candidates = {request: request.P for request in self.candidates(line)}
        queue = queue_of(candidates, self.prompts(line), self.decoding(line), line)
        limits = Limits(tokens, self.slots)
        x, y, first = self.pool.policy(queue, limits, self.pool.policy_params)
        if x < 0 or y < 0:
            raise InputError(f"the policy asks for {x} prefill and {y} decode tokens; ask for none or more")
        end = self.left - tokens  # what must remain
        if first == PREFILL_FIRST:
            self.serve_prefill(line, min(x, tokens))
        self.serve_decode(line, min(y, self.left - end))
        if first != PREFILL_FIRST:
            self.serve_prefill(line, min(x, self.left - end))

    def step(self) -> Allocation:
        """Let the order rank the lines of stages, which then are served."""
        self.left, self.served = self.b_max, {}
        if self.pool.order == "fcfs":
            self.offer(self.arrived, self.left)
        else:
            params = self.pool.order_params
            if self.pool.order == "priority":
                params = [self.stages.index(stage) for stage in self.pool.priority]
            order = ORDERS[self.pool.order] if isinstance(self.pool.order, str) else self.pool.order
            self.serve_lines(*order([self.view(stage) for stage in self.stages], params))
        return self.served

    def view(self, stage: int) -> Line:
        """Return what an order sees of the line of a stage."""
        requests = [request for request in self.requests if request.stage == stage]
        prompts = self.prompts(requests)
        return Line(
            len(prompts),
            sum(request.P for request in prompts),
            len(requests) - len(prompts),
            *self.ahead(stage),
            len(self.batches),
        )

    def serve_lines(self, mode: int, weights: Weights) -> None:
        """Serve the lines as an order ranks them; of equals, the first."""
        lines = [[r for r in self.arrived if r.stage == stage] for stage in self.stages]
        total = sum(first for first, _ in weights)
        if mode == BY_PHASE:
            buffers = [(index, phase) for index in range(len(lines)) for phase in (DECODE, PREFILL)]
            for index, phase in sorted(buffers, key=lambda buffer: -weights[buffer[0]][buffer[1]]):
                serve = self.serve_decode if phase == DECODE else self.serve_prefill
                serve(lines[index], self.left)
        elif mode == SPLIT and total > 0:
            for line, (weight, _) in zip(lines, weights, strict=True):
                self.offer(line, min(math.floor(self.b_max * weight / total), self.left))
            for line in lines:
                self.serve_decode(line, self.left)
                self.serve_prefill(line, self.left)
        elif mode in (BY_LINE, SPLIT):
            for index in sorted(range(len(lines)), key=lambda index: -weights[index][0]):
                self.offer(lines[index], self.left)
        else:
            raise InputError(f"an order gives the mode {mode}; give BY_LINE 0, BY_PHASE 1 or SPLIT 2")
