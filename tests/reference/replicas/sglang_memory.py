"""The memory that SGLang foresees: outputs to come by a share of what requests may make, which
falls with every decode batch and rises when one is retracted.
"""

from dataclasses import dataclass
from typing import TypeAlias

from penstock import checks
from tests.reference.network import EnginePool
from tests.reference.replicas.engine import EngineReplica
from tests.reference.replicas.replica import Request

FIRST_RATIO = 0.7
LEAST_SHARE_OF_IT = 0.14  # to which the new token ratio decays


Verdict: TypeAlias = str
"""What follows for the next request once one was asked for: `GO_ON`, `NO_MEMORY` or `STOP`."""

GO_ON, NO_MEMORY, STOP = "go on", "no memory", "stop"


@dataclass
class Budget:
    """What the prefill batch that is being put together may still take (``PrefillAdder``)."""

    chunk: float  # tokens of the batch; inf without chunking
    prompts: int  # tokens of prompts
    foreseen: float  # tokens of memory that are spoken for, outputs to come included
    pending: float  # tokens of memory that are spoken for now
    # Under ``ignore_eos``: (outputs left, tokens held) of all who are to run together.
    lives: list[tuple[float, int]] | None = None

    def charge(self, paged: int, page: int, outputs: int) -> None:
        """Charge a prompt of whole pages, a page more for rounding, and the outputs to come."""
        self.foreseen += paged + page + outputs
        self.pending += paged + page
        self.prompts -= paged
        self.chunk -= paged


class SglangMemory(EngineReplica):
    """What those who run may take yet; options as `Sglang` has them."""

    def __init__(self, pool: EnginePool, index: int = 0) -> None:
        super().__init__(pool, index)
        scale = pool.options.get("schedule_conservativeness", 1.0)
        scale = checks.number("option schedule_conservativeness", scale, 0, 1e6, "", "it is a factor")
        first = min(FIRST_RATIO * scale, 1.0)
        self.new_token_ratio: float = self.option("new_token_ratio", first)
        least = min(self.new_token_ratio * LEAST_SHARE_OF_IT, 1.0)
        self.min_new_token_ratio: float = self.option("min_new_token_ratio", least)
        steps = self.option("decay_steps", 600)
        self.decay = (self.new_token_ratio - self.min_new_token_ratio) / steps
        self.clip: int = self.option("clip_new_tokens", 4096)
        self.retract_steps: int = self.option("retract_steps", 20)
        self.ignore_eos = self.option("ignore_eos", False)
        self.idle()

    def idle(self) -> None:
        """Forget the estimate: nobody is there."""
        self.ratio = self.new_token_ratio

    def lower_ratio(self) -> None:
        """Foresee less after a decode batch."""
        self.ratio = max(self.ratio - self.decay, self.min_new_token_ratio)

    def raise_ratio(self, left: list[Request]) -> None:
        """Foresee more after a retraction: what those who are left have made, and some steps."""
        done = sum(self.made(request) for request in left) + self.retract_steps * len(left)
        self.ratio = min(1.0, done / (sum(request.declared for request in left) + 1))

    def foreseen(self, request: Request) -> float:
        """Output tokens that a running request is expected to make yet."""
        ratio = 1.0 if self.ignore_eos else self.ratio
        return min(request.declared - self.made(request), self.clip) * ratio

    def clipped(self, outputs: int) -> int:
        """Outputs that a prompt is charged for."""
        return min(max(outputs, 0), self.clip)

    def paged(self, tokens: int) -> int:
        """Tokens of the pages that so many tokens take."""
        return self.blocks(tokens) * self.block_size

    @property
    def room(self) -> float:
        """Tokens of memory that nobody needs; those that a cache would give up are among them."""
        return self.free * self.block_size

    def foresee_ends(self, request: Request, others: list[Request], budget: Budget) -> list[tuple[float, int]]:
        """Return what all have left, in that order; the first who asks finds all others there.

        Who comes later and has the most left goes before the last, not behind it.
        """
        if budget.lives is None:
            lives = [self.life(one) for one in (request, *others)]
            budget.lives = sorted((one for one in lives if one[0] > 0), key=lambda one: one[0])
            return budget.lives
        left, held = self.life(request)
        if left > 0:
            longer = [i for i, (other, _) in enumerate(budget.lives) if left <= other]
            index = longer[0] if longer else max(len(budget.lives) - 1, 0)
            budget.lives.insert(index, (left, held))
        return budget.lives

    def life(self, request: Request) -> tuple[float, int]:
        """Outputs that a request has left, and tokens that it holds."""
        return float(request.declared - self.made(request)), request.prompt + self.made(request)

    @staticmethod
    def made(request: Request) -> int:
        """Output tokens that are out: not yet the one that the batch in progress brings."""
        return request.outputs - request.in_flight

    def most_outputs(self, request: Request) -> float:
        """Outputs to which memory cuts what a request may make: the pages of its prompt, one more
        and one token stay free.
        """
        return (self.usable - 1) * self.block_size - self.paged(request.prompt) - 1

    def verdict(self, budget: Budget) -> Verdict:
        """Whether there is anything left for one more."""
        if self.room - budget.foreseen <= 0 or self.room - budget.pending <= 0:
            return NO_MEMORY
        return STOP if min(budget.prompts, budget.chunk) <= 0 else GO_ON
