"""Who gets ahead of whom: orders of service in which requests overtake older ones, and how far they do."""

from typing import NamedTuple

import numpy as np

from tests.reference import markov_chain
from tests.reference.markov_chain import fill


class Overtaking(NamedTuple):
    """How far requests passed older ones, beside what bounds it."""

    k: int  # the smallest K of K-FCFS that held, 1 at least
    lemma: int  # K'
    corrected: int  # most places that are proved
    places: int
    overtakers: int


def serve(arrival, prompt, output, budget, policy):
    """Serve requests, a batch a tick."""
    return markov_chain.simulate(
        arrival, prompt, output, batch_time=lambda load: 1, token_budget=budget, policy=policy, convention="paper"
    )


def fcfs_slack(history):
    """Return the smallest K of K-FCFS: beside j that decodes, every i <= j - K in the system gets a token."""
    left = {request.index: request.prompt_tokens + request.decode_tokens for request in history.requests}
    came = {request.index: request.arrival for request in history.requests}
    slack = 1
    for batch in history.batches:
        youngest = max((i for i, (_, decode) in batch.allocation.items() if decode), default=-1)
        unserved = (i for i in left if came[i] <= batch.start and i not in batch.allocation)
        slack = max(slack, youngest - next(unserved, youngest) + 1)
        for i, tokens in batch.allocation.items():
            left[i] -= sum(tokens)
            if not left[i]:
                del left[i]
    return slack


def places(done):
    """Return the most places in the order of arrival by which a request was done ahead of an older one."""
    latest = np.maximum.accumulate(done)  # of all as old
    ahead = (j - int(np.argmax(done > done[j])) for j in np.flatnonzero(done < latest).tolist())
    return max(ahead, default=0)


def overtakers(done):
    """Return the most younger requests that were done ahead of the same one."""
    return max((int((done[i + 1 :] < done[i]).sum()) for i in range(done.size)), default=0)


def overtaking(k, v_max, b_max, finish):
    """Count who left ahead of whom.

    Where j leaves before the older i, all between them but the K - 1 next to either share a batch with i: that bounds
    the places where each output has a token at least.
    """
    corrected = 2 * (k - 1) + (v_max - 1) * (b_max - 1)
    return Overtaking(k, k + v_max * b_max, corrected, places(finish), overtakers(finish))


def overtaking_in(history, budget):
    """Count who left ahead of whom in a run of the Markov chain."""
    v_max = max(r.prompt_tokens for r in history.requests) + max(r.decode_tokens for r in history.requests)
    return overtaking(fcfs_slack(history), v_max, budget, np.array([r.finish for r in history.requests]))


def prefilled(history):
    """Return the tick at which each prompt was done, by request."""
    done = np.zeros(len(history.requests), np.int64)
    for batch in history.batches:
        for i, (prefill, _) in batch.allocation.items():
            if prefill:
                done[i] = batch.end
    return done


def newest_prompt_first(state):
    """Serve prompts, the newest first, then decodes, the oldest first: work-conserving, and K = 1 in every state."""
    return fill(state, [*reversed(state.prompts), *state.decoding])


def any_order(draw):
    """Return a policy that serves whoever is in the system in an order drawn anew for each batch."""
    return lambda state: fill(state, draw.sample(state.requests, len(state.requests)))


def far_ahead(slack):
    """Return a work-conserving policy that keeps K-FCFS and lets request 2K - 1 leave before request 0.

    Prompts first, all but that of request 0; then requests 1 to K - 1, which may pass it without serving it; then
    request 2K - 1 beside a token of request 0: all others that are old enough to be owed one have left.
    """

    def rank(request):
        if request.P > 0 and request.index > 0:
            return 0
        if 0 < request.index < slack:
            return 1
        return 2 if request.index == 2 * slack - 1 else 3

    return lambda state: fill(state, sorted(state.requests, key=rank))


def serve_far_ahead(slack):
    """Serve a burst of requests of two tokens, two tokens a batch, such that one gets far ahead."""
    count = 2 * slack + 1
    return serve([0] * count, [1] * count, [1] * count, 2, far_ahead(slack))
