"""What policies of the seam may serve, and how their batch is formed, over `running`'s list and
queue.

A policy sees prompts that memory and slots admit, with room kept for the decodes: `see` counts
them, `fill` serves as many of their tokens as the policy asked for.
"""

from typing import Any

from numba import njit

from penstock.kernel.blocks import Cache, blocks_of
from penstock.kernel.legacy_server import (
    BATCH_SIZE,
    ENGINE,
    EPOCH,
    HEAD,
    LAST_SLOT,
    RUNNING_SCOPE,
    SLOT_NEXT,
    SLOT_PREV,
    WAITING_TOKENS,
)
from penstock.kernel.rules import found_in_cache, name_blocks
from penstock.kernel.running import (
    ADMISSION,
    ARRIVED,
    BLOCK_SIZE,
    BY_PRIORITY,
    COMPLETION,
    DECODING,
    FIRST_SLOT,
    FREE,
    HEAP_SIZE,
    INPUT,
    MOVED,
    OPTIMISTIC,
    OWN,
    PLENTY,
    PREEMPTED,
    PREFILLING,
    RESUME_DONE,
    RESUME_TIMES,
    RING_SIZE,
    RING_START,
    RUNNING,
    SLOT_HELD,
    SLOT_LEFT,
    SLOT_OUTPUTS,
    SWAP_TICKS,
    WATERMARK,
    Ints,
    Tokens,
    Words,
    admit,
    begin_decode,
    done_by,
    first_waiting,
    growth_at,
    peak_of,
    pop_waiting,
    preempt,
    serve_prefill,
    target_of,
    victim_of,
    wait_first,
    waiting,
)


@njit(cache=True)
def _come_back(
    state: Ints, options: Ints, slots: Ints, heads: Ints, bits: Words, growth: Ints, resume: Ints,
    ring: Ints,
    prompt: Tokens, output: Tokens,
) -> None:  # fmt: skip
    """Let requests that were swapped out run again while memory has room for them and their next
    token.
    """
    size = options[BLOCK_SIZE]
    while state[RUNNING] < options[BATCH_SIZE] or options[RUNNING_SCOPE] == 0:
        request = first_waiting(state, options, ring)
        if request < 0 or resume[request, RESUME_TIMES] == 0 or resume[request, RESUME_DONE] == 0:
            break
        done = resume[request, RESUME_DONE]
        target = target_of(resume, prompt, request)
        decodes = done == target
        tokens = target if options[ADMISSION] == INPUT else done
        blocks = blocks_of(tokens, size)
        wanted = blocks_of(done + 1, size) if decodes else blocks
        if wanted + options[WATERMARK] > state[FREE] - growth_at(options, growth, state[EPOCH]):
            break
        pop_waiting(state, options, ring, resume)
        slot = admit(state, options, slots, resume, prompt, output, request, blocks)
        slots[SLOT_LEFT, slot] = target - done
        state[MOVED] += blocks
        if decodes:
            state[PREFILLING] -= 1
            state[OWN] += 1
            iterations = slots[SLOT_OUTPUTS, slot] - options[ENGINE]
            begin_decode(state, options, slots, heads, bits, growth, slot, iterations)


@njit(cache=True)
def see(
    state: Ints, options: Ints, slots: Ints, heads: Ints, bits: Words, growth: Ints, served: Ints,
    resume: Ints,
    ring: Ints, prompt: Tokens, output: Tokens, cache: Cache | None,
) -> Any:  # fmt: skip
    """Make room for the decoding requests; return what a policy of the seam may serve besides.

    Prompts, their tokens, and whether the next arrival could be served too.
    """
    while growth_at(options, growth, state[EPOCH]) > state[FREE]:
        victim = victim_of(state, options, slots, resume)
        request = preempt(state, options, slots, heads, bits, growth, served, resume, victim, cache)
        wait_first(state, options, ring, resume, request)
    if options[SWAP_TICKS] >= 0 and state[PREEMPTED] == 0:
        _come_back(state, options, slots, heads, bits, growth, resume, ring, prompt, output)
    prompts, tokens, free = _begun(state, options, slots, growth)
    while (
        prompts == 0 and state[DECODING] == 0 and state[RUNNING] > 0
    ):  # each holds what the others lack
        victim = victim_of(state, options, slots, resume)
        request = preempt(state, options, slots, heads, bits, growth, served, resume, victim, cache)
        wait_first(state, options, ring, resume, request)
        prompts, tokens, free = _begun(state, options, slots, growth)
    if state[PREEMPTED] > 0:
        return prompts, tokens, False
    limit = options[BATCH_SIZE] - (state[RUNNING] if options[RUNNING_SCOPE] != 0 else prompts)
    if (
        cache is None and state[FREE] > PLENTY // 2 and limit >= waiting(state)
    ):  # neither memory nor slots bind
        return prompts + waiting(state), state[WAITING_TOKENS], limit > waiting(state)
    fresh, place, popped, blocked = state[HEAD], 0, 0, False
    while limit > 0:
        if options[BY_PRIORITY] != 0:
            if state[HEAP_SIZE] == 0:
                break
            request = pop_waiting(state, options, ring, resume)
            ring[2, popped] = request
            popped += 1
        elif place < state[RING_SIZE]:
            request = ring[0, (state[RING_START] + place) & (ring.shape[1] - 1)]
            place += 1
        elif fresh < state[ARRIVED]:
            request = fresh
            fresh += 1
        else:
            break
        may, blocks, _ = _admissible(state, options, resume, prompt, output, request, free, cache)
        if may == 0:
            blocked = True
            break
        free -= blocks
        prompts += 1
        tokens += may
        limit -= 1
        if options[ADMISSION] == OPTIMISTIC and may < target_of(resume, prompt, request):
            blocked = True
            break
    while popped > 0:
        popped -= 1
        wait_first(state, options, ring, resume, ring[2, popped])
    return prompts, tokens, limit > 0 and not blocked


@njit(cache=True)
def _begun(state: Ints, options: Ints, slots: Ints, growth: Ints) -> Any:
    """Return how many requests in mid-prefill may be served, the tokens they may be given, and the
    blocks then left.
    """
    free = state[FREE] - growth_at(options, growth, state[EPOCH])
    prompts = tokens = 0
    if state[PREFILLING] > 0:
        slot = state[LAST_SLOT] if state[PREFILLING] == 1 else state[FIRST_SLOT]
        step = SLOT_PREV if state[PREFILLING] == 1 else SLOT_NEXT  # a single one is near the end
        found = 0
        while found < state[PREFILLING] and (
            options[RUNNING_SCOPE] != 0 or prompts < options[BATCH_SIZE]
        ):
            if slots[SLOT_LEFT, slot] > 0:
                found += 1
                may = _may_take(state, options, slots, slot, free)
                if may > 0:
                    free -= _blocks_for(state, options, slots, slot, may)
                    prompts += 1
                    tokens += may
            slot = slots[step, slot]
    return prompts, tokens, free


@njit(cache=True)
def _may_take(state: Ints, options: Ints, slots: Ints, slot: int, free: int) -> Any:
    """Return the most tokens that a request in mid-prefill may be given."""
    room = (slots[SLOT_HELD, slot] + free) * options[BLOCK_SIZE] - done_by(state, slots, slot)
    return min(slots[SLOT_LEFT, slot], room)


@njit(cache=True)
def _blocks_for(state: Ints, options: Ints, slots: Ints, slot: int, take: int) -> Any:
    """Return the blocks that so many more tokens of a prompt need."""
    return max(
        blocks_of(done_by(state, slots, slot) + take, options[BLOCK_SIZE]) - slots[SLOT_HELD, slot],
        0,
    )


@njit(cache=True)
def _admissible(
    state: Ints, options: Ints, resume: Ints, prompt: Tokens, output: Tokens, request: int,
    free: int,
    cache: Cache | None,
) -> Any:  # fmt: skip
    """Return the most tokens that a waiting request may be given, 0 if none, and the blocks that it
    takes.

    And how many blocks hold the beginning of its prefill.
    """
    if resume[request, RESUME_TIMES] > 0 and resume[request, RESUME_DONE] > 0:
        return 0, 0, 0  # swapped out: it comes back as it was, or not at all
    size = options[BLOCK_SIZE]
    target = target_of(resume, prompt, request)
    spare = free - options[WATERMARK]
    if options[ADMISSION] == OPTIMISTIC:
        may = min(target, spare * size)
        return (may, blocks_of(may, size), 0) if may > 0 else (0, 0, 0)
    whole = (
        peak_of(options, resume, prompt, output, request)
        if options[ADMISSION] == COMPLETION
        else target
    )
    blocks = blocks_of(whole, size)
    hits = unused = 0
    if cache is not None and spare > 0:
        hits, unused = found_in_cache(state, options, resume, cache, request, target)
    taken = blocks - hits + unused
    return (target - hits * size, taken, hits) if taken <= spare else (0, 0, 0)


@njit(cache=True)
def fill(
    state: Ints, options: Ints, slots: Ints, growth: Ints, served: Ints, resume: Ints, ring: Ints,
    prompt: Tokens,
    output: Tokens, wanted: int, requests: int, cache: Cache | None,
) -> Any:  # fmt: skip
    """Serve so many prompt tokens of at most so many requests, those that run first; return the
    tokens served.
    """
    size = options[BLOCK_SIZE]
    grow = growth_at(options, growth, state[EPOCH])
    free = state[FREE] - grow
    left = wanted
    if state[PREFILLING] > 0 and left > 0 and requests > 0:
        slot = state[LAST_SLOT] if state[PREFILLING] == 1 else state[FIRST_SLOT]
        step = SLOT_PREV if state[PREFILLING] == 1 else SLOT_NEXT
        begun, found = state[PREFILLING], 0
        while found < begun and left > 0 and requests > 0:
            if slots[SLOT_LEFT, slot] > 0:
                found += 1
                take = min(_may_take(state, options, slots, slot, free), left)
                if take > 0:
                    blocks = _blocks_for(state, options, slots, slot, take)
                    slots[SLOT_HELD, slot] += blocks
                    state[FREE] -= (
                        blocks  # none where blocks are cached: its prompt has all of them
                    )
                    free -= blocks
                    if cache is not None:
                        name_blocks(state, options, slots, resume, cache, slot, take)
                    serve_prefill(state, slots, served, slot, take)
                    left -= take
                    requests -= 1
            slot = slots[step, slot]
    while left > 0 and requests > 0:
        request = first_waiting(state, options, ring)
        if request < 0:
            break
        may, blocks, hits = _admissible(
            state, options, resume, prompt, output, request, free, cache
        )
        take = min(may, left)
        if take == 0:
            break
        if options[ADMISSION] == OPTIMISTIC:
            blocks = blocks_of(take, size)
        if cache is not None:
            blocks = blocks_of(target_of(resume, prompt, request), size)
        pop_waiting(state, options, ring, resume)
        slot = admit(state, options, slots, resume, prompt, output, request, blocks, cache, hits)
        free = state[FREE] - grow
        if cache is not None:
            name_blocks(state, options, slots, resume, cache, slot, take)
        serve_prefill(state, slots, served, slot, take)
        left -= take
        requests -= 1
    return wanted - left
