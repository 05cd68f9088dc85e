"""The policies of the seam, transcribed: what each sees of the requests, and which tokens it asks
for.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

DECODE_FIRST, PREFILL_FIRST = 0, 1


class Queue(NamedTuple):
    """What a policy sees of a server, or of one line of it: requests, and their tokens."""

    prompts: int  # that may be served in this batch
    prompt_tokens: int  # their unprocessed tokens
    decoding: int
    waiting: int  # all prompts
    waiting_tokens: int
    head_tokens: int
    decode_tokens: int
    arrived: int  # since the start
    arrived_tokens: int
    finished: int
    finished_decodes: int


class Limits(NamedTuple):
    """The limits of one batch, or what is left of them for the line that is offered it."""

    token_budget: int
    batch_size: int


Policy: TypeAlias = Callable[[Any, Any, Any], tuple[int, int, int]]
"""``(queue, limits, params) -> (prefill tokens, decode tokens, `DECODE_FIRST` or
`PREFILL_FIRST`)``.
"""


def fastertransformer(queue: Queue, limits: Limits, params: object) -> tuple[int, int, int]:
    """Decodes alone while there are any, else prompts."""
    return (0 if queue.decoding else queue.prompt_tokens), queue.decoding, DECODE_FIRST


def vllm_vanilla(queue: Queue, limits: Limits, params: object) -> tuple[int, int, int]:
    """Prompts alone while there are any, else decodes."""
    return queue.prompt_tokens, (0 if queue.prompts else queue.decoding), PREFILL_FIRST


def orca(queue: Queue, limits: Limits, params: object) -> tuple[int, int, int]:
    """Prompts first, then as many decodes as fit beside the prompts that are seen."""
    return queue.prompt_tokens, max(limits.token_budget - queue.prompt_tokens, 0), PREFILL_FIRST


def sarathi(queue: Queue, limits: Limits, params: object) -> tuple[int, int, int]:
    """Decodes first, then prompts."""
    return queue.prompt_tokens, queue.decoding, DECODE_FIRST


POLICIES: dict[str, Policy] = {
    "fastertransformer": fastertransformer,
    "vllm-vanilla": vllm_vanilla,
    "orca": orca,
    "sarathi": sarathi,
}
