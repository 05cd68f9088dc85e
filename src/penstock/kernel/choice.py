"""A policy is asked what a batch is to be, and its answer cut to what there is.

Each loop counts what the policy sees in its own way. What a policy may answer, and what of that
can be served, is the same in all of them.
"""

from typing import Any, NamedTuple

from penstock.kernel.compiled_code import uncounted
from penstock.kernel.records import BAD_POLICY, IDLE_POLICY
from penstock.kernel.signatures import DECODE_FIRST, PREFILL_FIRST, Limits, Queue, policy_at


class Choice(NamedTuple):
    """What a policy chose, cut to what there is; tokens of -1 where that is no batch."""

    prefill: int  # tokens
    decode: int
    prompts: int  # most of them that these tokens may be of
    prefill_first: bool


@uncounted(inline=True)
def ask(policy: int, queue: Queue, limits: Limits, params: Any) -> Any:
    """Return the choice of the policy at an address."""
    prefill, decode, first = policy_at(policy)(queue, limits, params)
    if prefill < 0 or decode < 0 or not DECODE_FIRST <= first <= PREFILL_FIRST:
        return Choice(-1, 0, 0, False)
    tokens, slots = limits.token_budget, limits.batch_size
    decode = min(decode, queue.decoding, slots, tokens)
    if first != PREFILL_FIRST:
        tokens -= decode
        # Where all that run count, no more prompts are seen than there are slots beside all
        # decodes.
        slots -= decode
    prefill = min(prefill, queue.prompt_tokens, tokens)
    return Choice(prefill, decode, min(slots, queue.prompts), first == PREFILL_FIRST)


@uncounted(inline=True)
def failure_of(choice: Choice) -> Any:
    """Return what is wrong with a choice that must be a batch of somebody, or 0."""
    if choice.prefill < 0:
        return BAD_POLICY
    if (choice.prefill == 0 or choice.prompts <= 0) and choice.decode == 0:
        return IDLE_POLICY
    return 0


@uncounted(inline=True)
def decodes_beside(choice: Choice, limits: Limits, tokens: int, prompts: int) -> Any:
    """Return the decodes that a batch has beside so many tokens of so many prompts."""
    if choice.prefill_first:
        return min(choice.decode, limits.token_budget - tokens, limits.batch_size - prompts)
    return choice.decode
