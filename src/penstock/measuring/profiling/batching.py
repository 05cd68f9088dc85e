"""Batches as a policy forms them, request by request.

Beside an engine with a scheduler of its own this is a mirror, which knows what the engine does not
tell: the chunk of each prompt and the tokens before each decode. For an engine without one it
decides.
"""

import dataclasses
from collections import deque
from collections.abc import Sequence

import numpy as np

from penstock import checks
from penstock.errors import InputError
from penstock.kernel.signatures import PREFILL_FIRST, SEES_BATCH, Limits, Queue
from penstock.system.policies import resolve
from penstock.system.scheduler import Scheduler

_NO_LIMIT = 2**62
_NO_PARAMS = np.empty(0)
_NO_PARAMS.flags.writeable = False


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """What one batch holds.

    Attributes
    ----------
    prefill
        (request, new tokens, tokens before them) of each prompt.
    decode
        (request, tokens before) of each decode.
    puts_out
        Requests that put out a token at its end.
    """

    prefill: tuple[tuple[int, int, int], ...]
    decode: tuple[tuple[int, int], ...]
    puts_out: tuple[int, ...]

    @property
    def requests(self) -> int:
        """Requests in it."""
        return len(self.prefill) + len(self.decode)

    @property
    def sums(self) -> tuple[int, int, int, int, int, int]:
        """What its time may depend on.

        Prefill tokens, decode tokens, requests, squares, pairs and context, as
        `Composition.of_batches` takes them.
        """
        return (
            sum(new for _, new, _ in self.prefill),
            len(self.decode),
            self.requests,
            sum(new * new for _, new, _ in self.prefill),
            sum(new * before for _, new, before in self.prefill),
            sum(before for _, before in self.decode),
        )


@dataclasses.dataclass(slots=True)
class _Request:
    number: int
    prompt: int
    output: int
    processed: int = 0


class Batching:
    """Requests in order of arrival, and the batches of a policy (scope running, convention engine).

    Parameters
    ----------
    policy
        One that looks at nothing but the requests that it may serve, such as the four of the paper.
    token_budget
        Most tokens in a batch.
    max_running
        Most requests that are admitted and unfinished; None: no limit.

    Raises
    ------
    InputError
        If the policy is an engine's scheduler or looks at more.
    """

    def __init__(
        self, policy: str | Scheduler, token_budget: int, max_running: int | None = None
    ) -> None:
        chosen = resolve(policy)
        if chosen.sees != SEES_BATCH:
            raise InputError(
                f"policy {chosen.name!r} is an engine's or looks at more than the next batch, and "
                "cannot be timed here; take sarathi, orca, vllm-vanilla or fastertransformer"
            )
        self.policy = chosen
        self.token_budget = checks.whole(
            "the token budget", token_budget, 1, 2**20, "tokens", "it is a batch's size"
        )
        self.max_running = max_running or _NO_LIMIT
        self._prompts: deque[_Request] = deque()
        self._prompt_tokens = 0
        self._decodes: dict[int, _Request] = {}
        self.left: list[int] = []
        """Requests that leave at the end of the last batch."""

    @property
    def busy(self) -> bool:
        """Whether anything is left to do."""
        return bool(self._prompts or self._decodes)

    def add(self, request: int, prompt: int, output: int) -> None:
        """Put a request at the end of the queue."""
        self._prompts.append(_Request(request, prompt, output))
        self._prompt_tokens += prompt

    def next_batch(self) -> Batch:
        """Form a batch, and take it as done."""
        prompts, tokens = self._in_reach()
        queue = Queue(len(prompts), tokens, len(self._decodes))
        x, y, first = self.policy.compiled(
            queue, Limits(self.token_budget, self.max_running), _NO_PARAMS
        )
        x, y = min(x, tokens), min(y, queue.decoding)
        if first == PREFILL_FIRST:
            x = min(x, self.token_budget)
            y = min(y, self.token_budget - x)
        else:
            y = min(y, self.token_budget)
            x = min(x, self.token_budget - y)
        if x + y <= 0:
            raise InputError(
                f"policy {self.policy.name!r} forms an empty batch at {queue}; mend it"
            )
        decode = tuple(
            (r.number, r.processed) for r, _ in zip(self._decodes.values(), range(y), strict=False)
        )
        prefill, ended = self._chunks(x)
        puts_out = (*(request.number for request in ended), *(number for number, _ in decode))
        self._process(decode, ended)
        return Batch(prefill, decode, puts_out)

    def _in_reach(self) -> tuple[Sequence[_Request], int]:
        """Return the prompts that may be served, one begun among them, and their tokens."""
        count = self.max_running - len(self._decodes)
        if count >= len(self._prompts):
            return self._prompts, self._prompt_tokens
        reach = [request for request, _ in zip(self._prompts, range(count), strict=False)]
        return reach, sum(request.prompt - request.processed for request in reach)

    def _chunks(self, tokens: int) -> tuple[tuple[tuple[int, int, int], ...], list[_Request]]:
        """Cut tokens from the oldest prompts; return chunks, and requests whose prompt ended."""
        chunks, ended = [], []
        self._prompt_tokens -= tokens
        while tokens:
            request = self._prompts[0]
            new = min(tokens, request.prompt - request.processed)
            chunks.append((request.number, new, request.processed))
            request.processed += new
            tokens -= new
            if request.processed == request.prompt:
                ended.append(self._prompts.popleft())
        return tuple(chunks), ended

    def _process(self, decode: Sequence[tuple[int, int]], ended: Sequence[_Request]) -> None:
        self.left = [request.number for request in ended if request.output == 1]
        for number, _ in decode:
            request = self._decodes[number]
            request.processed += 1
            if request.processed == request.prompt + request.output - 1:
                del self._decodes[number]
                self.left.append(number)
        for request in ended:
            if request.output > 1:
                self._decodes[request.number] = request
