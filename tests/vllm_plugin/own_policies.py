"""Policies of a user's own, for the tests beside this file."""

from penstock import DECODE_FIRST, PREFILL_FIRST


def shares(queue, limits, params):
    """At most params[0] prefill and params[1] decode tokens; params[2]: prompts first."""
    first = PREFILL_FIRST if params[2] > 0 else DECODE_FIRST
    return min(queue.prompt_tokens, int(params[0])), min(queue.decoding, int(params[1])), first


def curious(queue, limits, params):
    """Sarathi, but looks at everything."""
    decode = min(queue.decoding + 0 * (queue.waiting_tokens + queue.decode_tokens), limits.token_budget)
    return min(queue.prompt_tokens, limits.token_budget - decode), decode, DECODE_FIRST


def lonely(queue, limits, params):
    """Divides by the requests in decode, and so fails when there are none."""
    return queue.prompt_tokens // queue.decoding, queue.decoding, DECODE_FIRST


def backwards(queue, limits, params):
    """Asks for less than nothing."""
    return -1, queue.decoding, DECODE_FIRST


def idle(queue, limits, params):
    """Wants no step at all."""
    return 0, 0, DECODE_FIRST
