"""Routers of one's own for `routers.py`: with what was sent since the last report, with what
waits, by the tokens that are left to do, and with sessions spread over equal replicas.
"""

from penstock.kernel.signatures import (
    ASKED_COIN,
    ASKED_HOME,
    ASKED_PROMPT,
    SEEN_CACHED,
    SEEN_MEMORY,
    SEEN_REQUESTS,
    SEEN_SENT,
    SEEN_TOKENS,
    SEEN_WAITING,
)
from penstock.system.routing import router


@router
def jsq_counting(replicas, request, params):  # type: ignore[no-untyped-def]
    """Fewest unfinished requests, with what was sent since the report."""
    best = 0
    for place in range(1, replicas.shape[0]):
        load = replicas[place, SEEN_REQUESTS] + replicas[place, SEEN_SENT]
        if load < replicas[best, SEEN_REQUESTS] + replicas[best, SEEN_SENT]:
            best = place
    return best


@router
def memory_counting(replicas, request, params):  # type: ignore[no-untyped-def]
    """Least KV memory, where each request that waits or was sent counts as much as one that runs
    has on average.
    """
    best = 0
    least = 0.0
    for place in range(replicas.shape[0]):
        outside = replicas[place, SEEN_WAITING] + replicas[place, SEEN_SENT]
        running = max(replicas[place, SEEN_REQUESTS] - replicas[place, SEEN_WAITING], 1.0)
        used = replicas[place, SEEN_MEMORY] * (1.0 + outside / running)
        if place == 0 or used < least:
            best, least = place, used
    return best


@router(mean_new=10_000.0)
def new_tokens(replicas, request, params):  # type: ignore[no-untyped-def]
    """Fewest tokens to do: those there, those of this prompt that are not computed yet, and
    ``mean_new`` for each request sent since the report.
    """
    best = 0
    least = 0.0
    for place in range(replicas.shape[0]):
        missing = request[ASKED_PROMPT] - replicas[place, SEEN_CACHED]
        sent = params[0] * replicas[place, SEEN_SENT]
        tokens = replicas[place, SEEN_TOKENS] + missing + sent
        if place == 0 or tokens < least:
            best, least = place, tokens
    return best


@router
def session_spread(replicas, request, params):  # type: ignore[no-untyped-def]
    """Where the session began; a session begins at a replica with the fewest requests, of equal
    ones at the next from one drawn at random.
    """
    home = int(request[ASKED_HOME])
    if home >= 0:
        return home
    count = replicas.shape[0]
    drawn = int(request[ASKED_COIN] * count)
    best = drawn
    for step in range(1, count):
        place = (drawn + step) % count
        load = replicas[place, SEEN_REQUESTS] + replicas[place, SEEN_SENT]
        if load < replicas[best, SEEN_REQUESTS] + replicas[best, SEEN_SENT]:
            best = place
    return best
