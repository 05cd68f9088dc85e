"""How long a step of the paced worker takes, and what the worker writes of each step."""

STEP_S, TOKEN_S, CONTEXT_S = 0.040, 0.0005, 0.000_010
"""Seconds of a step, of each of its tokens, and of each token before one of its decodes."""

COLUMNS = ("start_s", "end_s", "known_s", "requests", "prefill", "decodes", "context")
"""When a step began and ended (`time.monotonic`), the seconds that it should take, and what was in it."""


def known_s(tokens: int, context: int) -> float:
    """Return the seconds that a step takes."""
    return STEP_S + TOKEN_S * tokens + CONTEXT_S * context
