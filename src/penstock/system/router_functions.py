"""Routers that look at several things: each names the replica that a request goes to.

They see ``replicas``, ``request`` and ``params`` as `penstock.kernel.signatures` describes them,
and have loops in place of array expressions, because they are compiled.
"""

from penstock.kernel.signatures import (
    ASKED_COIN,
    ASKED_HOME,
    ASKED_PROMPT,
    SEEN_CACHED,
    SEEN_MEMORY,
    SEEN_REQUESTS,
    SEEN_SENT,
    SEEN_SPEED,
    SEEN_TOKENS,
    SEEN_WAITING,
)


def memory(replicas, request, params):  # type: ignore[no-untyped-def]
    """Least KV memory in use; of equal ones the fewest unfinished requests."""
    best = 0
    for place in range(1, replicas.shape[0]):
        used, least = replicas[place, SEEN_MEMORY], replicas[best, SEEN_MEMORY]
        fewer = replicas[place, SEEN_REQUESTS] < replicas[best, SEEN_REQUESTS]
        if used < least or (used == least and fewer):
            best = place
    return best


def fastest(replicas, request, params):  # type: ignore[no-untyped-def]
    """Least time to serve what is there: unprocessed tokens, this prompt among them, by the speed
    of the replica.
    """
    best = 0
    least = 0.0
    for place in range(replicas.shape[0]):
        tokens = replicas[place, SEEN_TOKENS] + request[ASKED_PROMPT]
        time = tokens / replicas[place, SEEN_SPEED]
        if place == 0 or time < least:
            best, least = place, time
    return best


def power_of_two_tokens(replicas, request, params):  # type: ignore[no-untyped-def]
    """Of two replicas drawn at random the one with fewer unprocessed tokens."""
    count = replicas.shape[0]
    bits = int(request[ASKED_COIN] * 4294967296.0)
    one = ((bits & 0xFFFF) * count) >> 16
    other = ((bits >> 16) * (count - 1)) >> 16
    if other >= one:
        other += 1
    return other if replicas[other, SEEN_TOKENS] < replicas[one, SEEN_TOKENS] else one


def session(replicas, request, params):  # type: ignore[no-untyped-def]
    """The replica that the job's first request went to, unless it has far more than the least:
    above it by more than ``spill`` requests and more than ``times`` as many. Then the least.
    """
    spill, times = params[0], params[1]
    emptiest = 0
    for place in range(1, replicas.shape[0]):
        load = replicas[place, SEEN_REQUESTS] + replicas[place, SEEN_SENT]
        if load < replicas[emptiest, SEEN_REQUESTS] + replicas[emptiest, SEEN_SENT]:
            emptiest = place
    home = int(request[ASKED_HOME])
    if home < 0:
        return emptiest
    least = replicas[emptiest, SEEN_REQUESTS] + replicas[emptiest, SEEN_SENT]
    load = replicas[home, SEEN_REQUESTS] + replicas[home, SEEN_SENT]
    return emptiest if load > least + spill and load > times * least else home


def prefix(replicas, request, params):  # type: ignore[no-untyped-def]
    """The replica that has computed the most of the prompt, if that is a share of ``match`` at
    least; else, or where replicas differ by more than ``spill`` requests and ``times`` as many, the
    one with the fewest.

    So does SGLang's router (``cache_aware``); what it sent itself it knows at once.
    """
    match, spill, times = params[0], params[1], params[2]
    emptiest = fullest = best = 0
    for place in range(1, replicas.shape[0]):
        load = replicas[place, SEEN_REQUESTS] + replicas[place, SEEN_SENT]
        if load < replicas[emptiest, SEEN_REQUESTS] + replicas[emptiest, SEEN_SENT]:
            emptiest = place
        if load > replicas[fullest, SEEN_REQUESTS] + replicas[fullest, SEEN_SENT]:
            fullest = place
        if replicas[place, SEEN_CACHED] > replicas[best, SEEN_CACHED]:
            best = place
    least = replicas[emptiest, SEEN_REQUESTS] + replicas[emptiest, SEEN_SENT]
    most = replicas[fullest, SEEN_REQUESTS] + replicas[fullest, SEEN_SENT]
    if most > least + spill and most > times * least:
        return emptiest
    cached = replicas[best, SEEN_CACHED]
    return best if cached > 0 and cached >= match * request[ASKED_PROMPT] else emptiest


def scored(replicas, request, params):  # type: ignore[no-untyped-def]
    """The highest sum of three scores from 0 to 1, times their weights: the share of the prompt
    that the replica has computed (``cached``), how short its queue is between the longest and the
    shortest (``queue``), and the share of its KV memory that is free (``memory``).

    So do the scorers of llm-d's scheduler; it knows queues and memory by reports alone.
    """
    shortest = longest = replicas[0, SEEN_WAITING]
    for place in range(1, replicas.shape[0]):
        waiting = replicas[place, SEEN_WAITING]
        if waiting < shortest:
            shortest = waiting
        if waiting > longest:
            longest = waiting
    best = 0
    highest = -1.0
    for place in range(replicas.shape[0]):
        cached = 0.0
        if request[ASKED_PROMPT] > 0:
            cached = replicas[place, SEEN_CACHED] / request[ASKED_PROMPT]
        queue = 1.0
        if longest > shortest:
            queue = (longest - replicas[place, SEEN_WAITING]) / (longest - shortest)
        free = 1.0 - replicas[place, SEEN_MEMORY]
        score = params[0] * cached + params[1] * queue + params[2] * free
        if score > highest:
            best, highest = place, score
    return best
