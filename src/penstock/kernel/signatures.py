"""The policy seam: what a policy sees, what it returns, and the one type under which it is compiled.

Every policy has the same explicit Numba type, so one compiled and disk-cached kernel serves them all,
a user's own included. The named tuples live here, in an importable module, because a class defined in
``__main__`` would defeat that cache.
"""

from typing import NamedTuple

from numba import types

DECODE_FIRST = 0
"""The kernel serves the decode tokens first; prefill gets the tokens and slots really left."""

PREFILL_FIRST = 1
"""The kernel serves the prefill tokens first; decode gets the tokens and slots really left."""


class Queue(NamedTuple):
    """What a policy sees of the requests that wait.

    Attributes
    ----------
    prompts
        Requests in prefill that may be served in this batch (the max batch size bounds them).
    prompt_tokens
        Unprocessed prompt tokens of those requests.
    decoding
        Requests in decode; each can contribute one token to a batch.
    """

    prompts: int
    prompt_tokens: int
    decoding: int


class Limits(NamedTuple):
    """The limits of one batch.

    Attributes
    ----------
    token_budget
        Most tokens in a batch (the paper's b_max).
    batch_size
        Most requests (the paper's k_max), a very large number where there is no limit.
    """

    token_budget: int
    batch_size: int


QUEUE = types.NamedUniTuple(types.int64, 3, Queue)  # type: ignore[no-untyped-call]
LIMITS = types.NamedUniTuple(types.int64, 2, Limits)  # type: ignore[no-untyped-call]
PARAMS = types.Array(types.float64, 1, "C", readonly=True)
COMPOSITION = types.UniTuple(types.int64, 3)  # type: ignore[no-untyped-call]
POLICY_SIGNATURE = COMPOSITION(QUEUE, LIMITS, PARAMS)
"""``policy(queue, limits, params) -> (prefill_tokens, decode_tokens, which phase is filled first)``."""

POLICY = types.FunctionType(POLICY_SIGNATURE)
