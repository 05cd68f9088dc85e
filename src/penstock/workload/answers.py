"""What recorded answers hold, told by the prompts of later requests that go on with them."""

import numpy as np

from penstock.inputs.arrays import Ints


def with_answers(
    ids: Ints, counts: Ints, prompt_tokens: Ints, output_tokens: Ints, block: int
) -> tuple[Ints, Ints, int]:
    """Let the ids of prompts go on with those of their answers, where a later prompt says them.

    A prompt whose last full block nobody had before is of one conversation. The first later one
    that has this block too, at the same place, and is long enough for prompt and answer, is taken
    for its next turn: what follows the block there is the rest of the prompt, and the answer.

    The ids, shape (ids,), are those of full blocks of one request after another, in order of
    arrival; the others have shape (requests,): how many ids each has, and tokens. Returned are ids
    and counts with those of answers, and how many answers have some.

    >>> ids, counts, found = with_answers(  # 8 + 8 tokens in blocks of 4, then a prompt of 20
    ...     np.array([1, 2, 1, 2, 3, 4, 5]), np.array([2, 5]), np.array([8, 20]),
    ...     np.array([8, 3]), 4)
    >>> ids.tolist(), counts.tolist(), found
    ([1, 2, 3, 4, 1, 2, 3, 4, 5], [4, 5], 1)
    """
    starts = np.cumsum(counts) - counts
    rows = np.repeat(np.arange(counts.size), counts)
    # By id and its place, then by arrival: one id at two places names two blocks.
    depth = np.arange(ids.size) - starts[rows]
    order = np.lexsort((depth, ids))
    named_alike = (np.diff(ids[order]) == 0) & (np.diff(depth[order]) == 0)
    sorted_names, sorted_rows = np.cumsum(np.append(False, ~named_alike)), rows[order]

    # The last full block of each prompt that was new with it, among all of the same id.
    last = starts + counts - 1
    named = (counts > 0) & (counts == prompt_tokens // block)
    place = np.empty(ids.size, np.int64)
    place[order] = np.arange(ids.size)
    here = np.where(named, place[np.where(named, last, 0)], 0) if ids.size else last * 0
    new = named.copy()
    if ids.size:
        new &= (here == 0) | (sorted_names[here - 1] != sorted_names[here])

    # The next request with that block that is long enough.
    following = np.full(counts.size, -1)
    asking = np.flatnonzero(new)
    at = here[asking] + 1
    while asking.size:
        alike = at < ids.size
        alike[alike] = sorted_names[at[alike]] == sorted_names[here[asking[alike]]]
        asking, at = asking[alike], at[alike]
        later = sorted_rows[at]
        long = prompt_tokens[later] >= prompt_tokens[asking] + output_tokens[asking]
        following[asking[long]] = later[long]
        asking, at = asking[~long], at[~long] + 1

    whole = (prompt_tokens + output_tokens) // block
    known = np.where(following >= 0, np.minimum(whole, counts[following]), counts)
    more = np.maximum(known - counts, 0)
    total = counts + more
    within = np.arange(total.sum()) - np.repeat(np.cumsum(total) - total, total)
    own = within < np.repeat(counts, total)
    source = np.where(own, np.repeat(starts, total), np.repeat(starts[following], total))
    return ids[source + within], total, int((more > 0).sum())
