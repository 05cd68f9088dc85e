"""Forming batches at the replicas of a network."""

from typing import Any, NamedTuple

import numpy as np

from penstock.kernel import signatures as seam
from penstock.kernel.legacy_server import BAD_POLICY, IDLE_POLICY, NEVER
from penstock.kernel.lines import (
    DECODE,
    DECODES,
    DECODES_NOW,
    DECODING,
    IN_DECODE,
    LEFT,
    LINE_ARRIVED,
    LINE_ARRIVED_TOKENS,
    LINE_DECODE_TOKENS,
    LINE_DUE,
    LINE_EPOCH,
    LINE_FINISHED,
    LINE_FINISHED_DECODES,
    NEXT,
    OPEN,
    PARTIAL,
    PENDING,
    PREFILL,
    PROMPT_HEAD,
    PROMPT_TOKENS,
    PROMPTS,
    STARTED,
    WAITING,
    Ints,
    link,
    take_prompts,
    uncounted,
    visible_tokens,
)
from penstock.kernel.network_arrays import (
    BAD_ORDER,
    BATCHES,
    BUDGET,
    BY_AGE,
    COMPRESS,
    DURATION,
    FIRST_LINE,
    FIRST_STAGE,
    FREE_SLOT,
    FUTURE,
    IN_DECODES,
    IN_PREFILL,
    LINES,
    NOW,
    ORDER_INDEX,
    ORDER_PARAMS,
    ORDER_PARAMS_END,
    POLICY_INDEX,
    POLICY_PARAMS,
    POLICY_PARAMS_END,
    POOL,
    REPEAT,
    REPEATS,
    REPLICAS,
    RUNNING_SCOPE,
    SERVED,
    SLOTS,
    STAGE_POOL,
    START,
    TICKS,
    TOKENS,
    UNPROCESSED,
    UNTIL,
    Arrays,
    set_end,
)
from penstock.kernel.signatures import BY_LINE, BY_PHASE, PREFILL_FIRST, SPLIT, Limits, Queue


@uncounted(inline=True)
def _look(net: Arrays, server: int, pool: Ints) -> None:
    """Write down what an order sees of the lines of a replica."""
    first, n_stages = net.servers[server, FIRST_LINE], net.stages.shape[0]
    for index in range(pool[LINES]):
        line, stage = net.lines[first + index], net.listed[pool[FIRST_STAGE] + index]
        following = following_prompts = 0.0
        for other in range(n_stages):
            share = net.onward[stage, other]
            if share > 0:
                share /= net.pools[net.stages[other, STAGE_POOL], REPLICAS]
                following += share * (net.stages[other, IN_PREFILL] + net.stages[other, IN_DECODES])
                following_prompts += share * net.stages[other, IN_PREFILL]
        view = net.lookout[index]
        view[seam.LINE_PROMPTS] = line[PROMPTS]
        view[seam.LINE_PROMPT_TOKENS] = line[PROMPT_TOKENS]
        view[seam.LINE_DECODING] = line[DECODING]
        view[seam.LINE_PREFILL_MEAN] = net.means[stage, 0]
        view[seam.LINE_DECODE_MEAN] = net.means[stage, 1]
        view[seam.LINE_NEXT] = following
        view[seam.LINE_NEXT_PROMPTS] = following_prompts
        view[seam.LINE_BATCHES] = net.servers[server, BATCHES]


class _Room(NamedTuple):
    """What is left of a batch: tokens, requests, and requests that may start."""

    tokens: int
    slots: int
    starts: int


@uncounted(inline=True)
def _take(net: Arrays, line: Ints, room: _Room, want: int, most: int) -> Any:
    """Put prompt tokens into the batch; return what is left of it."""
    partial = line[PARTIAL] if line[OPEN] == 0 else 0
    taken, served = take_prompts(line, net.rows, want, most)
    started = served - partial if served > 0 else 0
    return _Room(room.tokens - taken, room.slots - served, room.starts - started), taken


@uncounted(inline=True)
def _visible(line: Ints, room: _Room, running_scope: int) -> Any:
    """Return how many prompts of a line may be served in what is left of a batch."""
    if running_scope != 0:
        return min(line[PROMPTS], line[PARTIAL] + max(room.starts, 0))
    return min(line[PROMPTS], max(room.slots, 0))


@uncounted(inline=True)
def _fill_line(net: Arrays, line: Ints, pool: Ints, room: _Room, policy: Any, tokens: int) -> Any:
    """Let the policy choose tokens of a line, within what is left of a batch; return what then
    is.
    """
    running_scope = pool[RUNNING_SCOPE]
    prompts = _visible(line, room, running_scope)
    prompt_tokens = visible_tokens(line, net.rows, prompts)
    head = line[PROMPT_HEAD]
    queue = Queue(
        prompts,
        prompt_tokens,
        line[DECODING],
        line[PROMPTS],
        line[PROMPT_TOKENS],
        int(net.rows[head, LEFT]) if head >= 0 else 0,
        line[LINE_DECODE_TOKENS],
        line[LINE_ARRIVED],
        line[LINE_ARRIVED_TOKENS],
        line[LINE_FINISHED],
        line[LINE_FINISHED_DECODES],
    )
    params = net.params[pool[POLICY_PARAMS] : pool[POLICY_PARAMS_END]]
    x, y, first = policy(queue, Limits(tokens, room.slots), params)
    if x < 0 or y < 0:
        return room, BAD_POLICY
    y = min(y, line[DECODING], room.slots, tokens)
    most = prompts
    if first != PREFILL_FIRST:
        tokens -= y
        most = min(most, room.slots - y)
    room, taken = _take(net, line, room, min(x, prompt_tokens, tokens), most)
    if first == PREFILL_FIRST:
        y = min(y, tokens - taken, room.slots)
    line[DECODE] += y
    return _Room(room.tokens - y, room.slots - y, room.starts), 0


@uncounted(inline=True)
def _fill_decodes(line: Ints, room: _Room) -> Any:
    """Take all decodes of a line that fit."""
    y = min(line[DECODING] - line[DECODE], room.tokens, room.slots)
    if y <= 0:
        return room
    line[DECODE] += y
    return _Room(room.tokens - y, room.slots - y, room.starts)


@uncounted(inline=True)
def _fill_prompts(net: Arrays, line: Ints, room: _Room, running_scope: int) -> Any:
    """Take all prompt tokens of a line that fit."""
    prompts = _visible(line, room, running_scope)
    if running_scope == 0 and line[OPEN] != 0:
        prompts = min(line[PROMPTS], prompts + 1)  # the one cut in this batch needs no further slot
    if prompts <= 0 or room.tokens <= 0:
        return room
    want = min(visible_tokens(line, net.rows, prompts), room.tokens)
    room, _ = _take(net, line, room, want, min(prompts - line[OPEN], room.slots))
    return room


@uncounted(inline=True)
def _heaviest(weights: Any, count: int, columns: int) -> Any:
    """Return the place of the largest weight that is left, as columns * row + column, and cross it
    out.

    Of equal ones the first row, and there the last column: decode before prefill.
    """
    best, place = -np.inf, -1
    for row in range(count):
        for column in range(columns - 1, -1, -1):
            if weights[row, column] > best:
                best, place = weights[row, column], columns * row + column
    weights[place // columns, place % columns] = -np.inf
    return place


@uncounted(inline=True)
def _fill_by_order(
    net: Arrays, server: int, pool: Ints, room: _Room, policy: Any, order: Any
) -> Any:
    """Fill a batch from several lines, as the order says."""
    first, count = net.servers[server, FIRST_LINE], pool[LINES]
    _look(net, server, pool)
    weights = net.weights[:count]
    for row in range(count):
        weights[row, 0] = weights[row, 1] = 0.0
    mode = order(
        net.lookout[:count], net.params[pool[ORDER_PARAMS] : pool[ORDER_PARAMS_END]], weights
    )
    total = 0.0
    for row in range(count):
        if not (np.isfinite(weights[row, 0]) and np.isfinite(weights[row, 1])) or (
            mode == SPLIT and weights[row, 0] < 0
        ):
            return room, BAD_ORDER
        total += weights[row, 0]
    if mode == SPLIT and total > 0:
        budget = room.tokens
        for row in range(count):
            line = net.lines[first + row]
            share = min(int(np.floor(budget * weights[row, 0] / total)), room.tokens)
            if share > 0 and room.slots > 0 and line[PROMPTS] + line[DECODING] > 0:
                room, failed = _fill_line(net, line, pool, room, policy, share)
                if failed != 0:
                    return room, failed
        for row in range(count):
            room = _fill_decodes(net.lines[first + row], room)
            room = _fill_prompts(net, net.lines[first + row], room, pool[RUNNING_SCOPE])
        return room, 0
    if mode == BY_PHASE:
        for _ in range(2 * count):
            place = _heaviest(weights, count, 2)
            if place & 1:
                room = _fill_decodes(net.lines[first + (place >> 1)], room)
            else:
                room = _fill_prompts(
                    net, net.lines[first + (place >> 1)], room, pool[RUNNING_SCOPE]
                )
            if room.tokens == 0:
                break
        return room, 0
    if mode != BY_LINE and mode != SPLIT:
        return room, BAD_ORDER
    for _ in range(count):
        line = net.lines[first + _heaviest(weights, count, 1)]
        if line[PROMPTS] + line[DECODING] > 0:
            room, failed = _fill_line(net, line, pool, room, policy, room.tokens)
            if failed != 0:
                return room, failed
            if room.tokens == 0 or room.slots <= 0:
                break
    return room, 0


@uncounted(inline=True)
def _fill_by_age(net: Arrays, server: int, line: Ints, room: _Room, running_scope: int) -> Any:
    """Serve the oldest jobs first, prefill and decode alike; return what is left, and the fewest
    decodes to come.
    """
    rows = net.rows
    served = fewest = 0
    request = line[PROMPT_HEAD]
    while request >= 0 and room.tokens > 0 and room.slots > 0:
        if rows[request, PENDING] == IN_DECODE:
            rows[request, PENDING] = DECODES_NOW
            if net.first_token[request] < 0:
                net.first_token[request] = 0  # set when the length of the batch is known
            decodes = int(rows[request, DECODES])
            fewest = decodes if fewest == 0 else min(fewest, decodes)
            line[DECODE] += 1
            served += 1
            room = _Room(room.tokens - 1, room.slots - 1, room.starts)
        elif rows[request, PENDING] == STARTED or running_scope == 0 or room.starts > 0:
            take = min(int(rows[request, LEFT]), room.tokens)
            starts = 1 if rows[request, PENDING] == WAITING else 0
            rows[request, PENDING] = STARTED
            rows[request, LEFT] -= take
            line[PREFILL] += take
            line[PROMPT_TOKENS] -= take
            line[PARTIAL] += starts
            if rows[request, LEFT] == 0:
                line[PROMPTS] -= 1
                line[PARTIAL] -= 1
                served += 1
            room = _Room(room.tokens - take, room.slots - 1, room.starts - starts)
        request = rows[request, NEXT]
    net.servers[server, SERVED] = served
    return room, fewest


@uncounted(inline=True)
def _date_by_age(net: Arrays, line: Ints, end: int) -> None:
    """Give first tokens in a line by age their time."""
    left = line[DECODE]
    request = line[PROMPT_HEAD]
    while left > 0:
        if net.rows[request, PENDING] == DECODES_NOW:
            left -= 1
            if net.first_token[request] == 0:
                net.first_token[request] = end
        request = net.rows[request, NEXT]


@uncounted(inline=True)
def form_batch(net: Arrays, server: int, policies: Any, orders: Any) -> Any:
    """Form a batch, or a run of equal ones, at a free replica; return what failed, or 0."""
    replica, state = net.servers[server], net.state
    pool = net.pools[replica[POOL]]
    first, count = replica[FIRST_LINE], pool[LINES]
    running = prompts = decoding = 0
    for index in range(first, first + count):
        line = net.lines[index]
        prompts += line[PROMPTS]
        decoding += line[DECODING]
        running += line[DECODING] + line[PARTIAL]
        line[OPEN] = 0
    if prompts + decoding == 0:
        return 0
    room = _Room(pool[BUDGET], pool[SLOTS], pool[SLOTS] - running)
    fewest, failed = NEVER, 0
    if pool[BY_AGE] != 0:
        room, fewest = _fill_by_age(net, server, net.lines[first], room, pool[RUNNING_SCOPE])
    elif pool[ORDER_INDEX] < 0:
        policy = policies[pool[POLICY_INDEX]]
        room, failed = _fill_line(net, net.lines[first], pool, room, policy, room.tokens)
    else:
        order = orders[pool[ORDER_INDEX]]
        room, failed = _fill_by_order(net, server, pool, room, policies[pool[POLICY_INDEX]], order)
    if failed != 0:
        return failed
    tokens = pool[BUDGET] - room.tokens
    if tokens == 0:
        return IDLE_POLICY
    ticks = net.duration[pool[DURATION] + tokens]
    end = state[NOW] + ticks
    decodes = 0
    if pool[BY_AGE] != 0:
        decodes = net.lines[first, DECODE]
        _date_by_age(net, net.lines[first], end)
    else:
        for index in range(first, first + count):
            line = net.lines[index]
            if line[DECODE] > 0:
                decodes += line[DECODE]
                state[FREE_SLOT] = link(
                    line,
                    net.rows,
                    net.slots,
                    net.heads[index],
                    net.bits[index],
                    state[FREE_SLOT],
                    net.first_token,
                    end,
                )
                fewest = min(fewest, line[LINE_DUE] - line[LINE_EPOCH])

    # Equal batches follow each other while all that decode are served and nothing else could be.
    repeat = 1
    if decodes == tokens and decodes == decoding and state[COMPRESS] != 0 and pool[REPEATS] != 0:
        # no prompt may start before a request finishes
        held = pool[RUNNING_SCOPE] != 0 and room.starts <= 0 and running == decoding
        if prompts == 0 or (pool[ORDER_INDEX] < 0 and pool[BY_AGE] == 0) or held:
            repeat = fewest
            if state[UNTIL] < NEVER:
                repeat = min(repeat, max((state[UNTIL] - state[NOW]) // ticks, 1))
    replica[START] = state[NOW]
    replica[TICKS] = ticks
    replica[TOKENS] = tokens
    replica[REPEAT] = repeat
    replica[UNPROCESSED] -= tokens
    state[FUTURE] -= tokens
    set_end(net.ends, server, state[NOW] + repeat * ticks)
    return 0
