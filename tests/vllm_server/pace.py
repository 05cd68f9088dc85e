"""How long a step of the paced worker takes, and what the worker writes down of each step."""

STEP_S = 0.040
TOKEN_S = 0.0005
CONTEXT_S = 0.000_010
"""Seconds of a step, of each of its tokens, and of each token before one of its decodes."""

COLUMNS = ("start_s", "end_s", "pace_s", "requests", "prefill", "decodes", "context")
"""When a step began and ended (`time.monotonic`), the seconds that it should take, and what was in it."""


def step_seconds(tokens: int, context: int) -> float:
    """Return the seconds that a step takes."""
    return STEP_S + TOKEN_S * tokens + CONTEXT_S * context
