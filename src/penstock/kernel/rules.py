"""How engines form a batch: one function each, over the running list and the waiting queue of
`running`.

Each says who is served: slots in prefill (`serve_prefill`) and the number of decoding requests
(``SERVED_DECODES``), which are the first of the list unless ``SLOT_TAKE`` marks them
(`vllm_in_order`). Memory is taken as requests are put into the batch, and who has to make room for
it leaves (`preempt`).

Where every decoding request is served, whether memory suffices is one comparison: who is preempted
comes from the end of the list, so making room one request at a time, as engines do, ends at the
same place as making room for all.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from penstock.kernel.blocks import Cache, blocks_of, found, name_prompt, take_for_prompt
from penstock.kernel.blocks import take as take_blocks
from penstock.kernel.legacy_server import (
    BATCH_SIZE,
    DROPPED,
    EPOCH,
    LAST_SLOT,
    SLOT_DUE,
    SLOT_NEXT,
    SLOT_PREV,
    SLOT_REQUEST,
    TOKEN_BUDGET,
)
from penstock.kernel.running import (
    ADMISSION,
    BLOCK_SIZE,
    BY_PRIORITY,
    CHUNKED,
    CLIP,
    COMPLETION,
    DECODING,
    FIRST_SLOT,
    FREE,
    IS_FULL,
    LONG_PREFILL,
    MIXED,
    MOST_PREFILL,
    PREEMPTED,
    PREFILLING,
    RATIO_STEPS,
    RESERVED,
    RESUME_ROW,
    RESUME_TIMES,
    RETRACT_STEPS,
    RULE,
    RUNNING,
    SERVED,
    SERVED_DECODES,
    SLOT_HELD,
    SLOT_LEFT,
    SLOT_OUTPUTS,
    SLOT_TAKE,
    SLOT_TARGET,
    STATIC,
    TENSORRT,
    VIDUR_ORCA,
    VIDUR_SARATHI,
    VIDUR_VLLM,
    WATERMARK,
    Ints,
    Tokens,
    Words,
    admit,
    append,
    done_by,
    first_waiting,
    growth_at,
    insert_before,
    keep_sorted,
    needs,
    outputs_of,
    peak_of,
    pop_waiting,
    preempt,
    serve_prefill,
    target_of,
    unlink,
    victim_of,
    wait_first,
    wait_last,
    waiting,
)


@njit(cache=True)
def _decode_all(
    state: Ints, options: Ints, slots: Ints, heads: Ints, bits: Words, growth: Ints, served: Ints,
    resume: Ints,
    ring: Ints, prompt: Tokens, spare: int,
) -> None:  # fmt: skip
    """Serve every decoding request that memory has room for; each must find ``spare`` blocks before
    its own.
    """
    while state[DECODING] > 0:
        grow = growth_at(options, growth, state[EPOCH])
        if spare > 0:
            last = state[LAST_SLOT]
            while slots[SLOT_LEFT, last] > 0:
                last = slots[SLOT_PREV, last]
            grow = max(grow, grow - needs(state, options, slots, last) + spare)
        if grow <= state[FREE]:
            break
        request = preempt(
            state, options, slots, heads, bits, growth, served, resume, state[LAST_SLOT]
        )
        wait_first(state, options, ring, resume, request)
    state[FREE] -= growth_at(options, growth, state[EPOCH])
    state[SERVED_DECODES] = state[DECODING]


@njit(cache=True, forceinline=True)
def vllm(
    state: Ints, options: Ints, slots: Ints, heads: Ints, bits: Words, growth: Ints, served: Ints,
    resume: Ints,
    ring: Ints, prompt: Tokens, output: Tokens, cache: Cache | None,
) -> Any:  # fmt: skip
    """VLLM V1: those that run, in order, then new ones. Return whether the decodes that are served
    are marked.
    """
    budget, size = options[TOKEN_BUDGET], options[BLOCK_SIZE]
    most = options[LONG_PREFILL]
    if most == 0 or state[RUNNING] + waiting(state) <= 1:
        most = budget
    last = state[LAST_SLOT]
    in_order = state[PREFILLING] == 0 or (state[PREFILLING] == 1 and slots[SLOT_LEFT, last] > 0)
    at_once = in_order and state[DECODING] <= budget and options[BY_PRIORITY] == 0
    if at_once:
        while True:
            left = budget - state[DECODING]
            grow = growth_at(options, growth, state[EPOCH])
            take = 0
            if state[PREFILLING] > 0:
                last = state[LAST_SLOT]
                take = min(slots[SLOT_LEFT, last], left, most)
                grow += blocks_of(done_by(state, slots, last) + take, size) - slots[SLOT_HELD, last]
            if grow <= state[FREE]:
                break
            if (
                cache is not None
            ):  # what is forgotten depends on who takes a block before another makes room
                at_once = False
                break
            request = preempt(
                state, options, slots, heads, bits, growth, served, resume, state[LAST_SLOT]
            )
            wait_first(state, options, ring, resume, request)
    if at_once:
        take_blocks(state, cache, growth_at(options, growth, state[EPOCH]))
        state[SERVED_DECODES] = state[DECODING]
        if take > 0:
            _hold_for(state, options, slots, resume, cache, last, take)
            serve_prefill(state, slots, served, last, take)
            left -= take
    else:
        left = _vllm_in_order(
            state, options, slots, heads, bits, growth, served, resume, ring, most, cache
        )
    if state[PREEMPTED] > 0:
        return not at_once
    while left > 0 and state[RUNNING] < options[BATCH_SIZE]:
        request = first_waiting(state, options, ring)
        if request < 0:
            break
        target = target_of(resume, prompt, request)
        spare = options[WATERMARK] if state[RUNNING] > 0 else 0
        hits = unused = 0
        if cache is not None:
            if spare >= state[FREE]:  # its last token needs a block
                break
            hits, unused = found_in_cache(state, options, resume, cache, request, target)
        take = min(target - hits * size, most)
        if options[CHUNKED] == 0 and take > left:
            break
        take = min(take, left)
        if blocks_of(target, size) - hits + unused + spare > state[FREE]:
            break
        pop_waiting(state, options, ring, resume)
        blocks = hits + blocks_of(take, size)
        slot = admit(state, options, slots, resume, prompt, output, request, blocks, cache, hits)
        if cache is not None:
            name_blocks(state, options, slots, resume, cache, slot, take)
        serve_prefill(state, slots, served, slot, take)
        left -= take
    return not at_once


@njit(cache=True, forceinline=True)
def found_in_cache(
    state: Ints, options: Ints, resume: Ints, cache: Cache, request: int, target: int
) -> Any:
    """Return how many blocks hold the beginning of a waiting request's prefill, and how many of
    them nobody uses.
    """
    again = resume[request, RESUME_TIMES] > 0
    return found(
        options, cache, state[DROPPED] + request, resume[request, RESUME_ROW], target, again
    )


@njit(cache=True, forceinline=True)
def name_blocks(
    state: Ints, options: Ints, slots: Ints, resume: Ints, cache: Cache, slot: int, take: int
) -> None:
    """Name the blocks that so many tokens of a prompt fill."""
    request, done = slots[SLOT_REQUEST, slot], done_by(state, slots, slot)
    first, end = done // options[BLOCK_SIZE], (done + take) // options[BLOCK_SIZE]
    name_prompt(cache, state[DROPPED] + request, resume[request, RESUME_ROW], slot, first, end)


@njit(cache=True, forceinline=True)
def _hold_for(
    state: Ints, options: Ints, slots: Ints, resume: Ints, cache: Cache | None, slot: int, take: int
) -> None:
    """Let a request in prefill hold the blocks for so many tokens more."""
    after = blocks_of(done_by(state, slots, slot) + take, options[BLOCK_SIZE])
    take_for_prompt(state, cache, slot, slots[SLOT_HELD, slot], after)
    slots[SLOT_HELD, slot] = after
    if cache is not None:
        name_blocks(state, options, slots, resume, cache, slot, take)


@njit(cache=True)
def _vllm_in_order(
    state: Ints, options: Ints, slots: Ints, heads: Ints, bits: Words, growth: Ints, served: Ints,
    resume: Ints,
    ring: Ints, most: int, cache: Cache | None,
) -> Any:  # fmt: skip
    """Go through those that run one by one; return the tokens left."""
    left = options[TOKEN_BUDGET]
    slot = state[FIRST_SLOT]
    while slot >= 0 and left > 0:
        following = slots[SLOT_NEXT, slot]
        prefill = slots[SLOT_LEFT, slot] > 0
        take = min(slots[SLOT_LEFT, slot], left, most) if prefill else 1
        gone = False
        while True:
            if prefill:
                after = blocks_of(done_by(state, slots, slot) + take, options[BLOCK_SIZE])
                need = after - slots[SLOT_HELD, slot]
            else:
                need = needs(state, options, slots, slot)
            if need <= state[FREE]:
                break
            victim = victim_of(state, options, slots, resume)
            left += slots[SLOT_TAKE, victim]
            request = preempt(
                state, options, slots, heads, bits, growth, served, resume, victim, cache
            )
            wait_first(state, options, ring, resume, request)
            gone = victim == slot
            if gone:
                break
            following = slots[SLOT_NEXT, slot]
        if gone:  # under priorities those behind it may still fit
            slot = following
            continue
        left -= take
        if prefill:
            _hold_for(state, options, slots, resume, cache, slot, take)
            serve_prefill(state, slots, served, slot, take)
        else:
            take_blocks(state, cache, need)
            slots[SLOT_TAKE, slot] = 1
            state[SERVED_DECODES] += 1
        slot = following
    return left


@njit(cache=True)
def prompts_or_decodes(
    state: Ints, options: Ints, slots: Ints, heads: Ints, bits: Words, growth: Ints, served: Ints,
    resume: Ints,
    ring: Ints, prompt: Tokens, output: Tokens,
) -> None:  # fmt: skip
    """VLLM V0, and Vidur's: whole prompts alone if any can be admitted, else all decodes."""
    budget, size = options[TOKEN_BUDGET], options[BLOCK_SIZE]
    padded = options[RULE] == VIDUR_VLLM
    tokens = longest = 0
    while state[RUNNING] < options[BATCH_SIZE]:
        request = first_waiting(state, options, ring)
        if request < 0:
            break
        target = target_of(resume, prompt, request)
        longest = max(longest, target)
        tokens = longest * (state[SERVED] + 1) if padded else tokens + target
        if tokens > budget or state[FREE] - blocks_of(target, size) < options[WATERMARK]:
            break
        pop_waiting(state, options, ring, resume)
        slot = admit(
            state, options, slots, resume, prompt, output, request, blocks_of(target, size)
        )
        serve_prefill(state, slots, served, slot, target)
        if padded:
            keep_sorted(state, slots, slot)
    if state[SERVED] == 0:
        _decode_all(state, options, slots, heads, bits, growth, served, resume, ring, prompt, 1)


@njit(cache=True)
def sglang(
    state: Ints, options: Ints, slots: Ints, heads: Ints, bits: Words, growth: Ints, served: Ints,
    resume: Ints,
    ring: Ints, prompt: Tokens, output: Tokens, params: npt.NDArray[np.float64],
    ratio: npt.NDArray[np.float64],
) -> Any:  # fmt: skip
    """SGLang: a batch of prompts when one can be formed, at most one of them cut, else all decodes.

    Return whether the decodes that are served are marked.

    ``params``: the ratio of a request's future output that admission counts, its least, its fall
    per decode batch. ``ratio``: what it fell from last.
    """
    decoding = state[DECODING]
    if not (
        (state[IS_FULL] != 0 or first_waiting(state, options, ring) < 0) and state[PREFILLING] == 0
    ):
        _sglang_prompts(
            state, options, slots, growth, served, resume, ring, prompt, output, params, ratio
        )
    if state[SERVED] > 0:
        if options[MIXED] != 0 and decoding > 0:
            return _ride_along(state, options, slots, growth)
        return False
    if decoding > 0:
        _decode_or_retract(
            state, options, slots, heads, bits, growth, served, resume, ring, prompt, output, ratio
        )
        if state[PREEMPTED] == 0:
            state[RATIO_STEPS] += 1
    return False


@njit(cache=True)
def ratio_now(state: Ints, params: npt.NDArray[np.float64], ratio: npt.NDArray[np.float64]) -> Any:
    """Return the share of a request's future output that SGLang counts when it admits another."""
    return max(ratio[0] - state[RATIO_STEPS] * params[2], params[1])


@njit(cache=True)
def _sglang_prompts(
    state: Ints, options: Ints, slots: Ints, growth: Ints, served: Ints, resume: Ints, ring: Ints,
    prompt: Tokens,
    output: Tokens, params: npt.NDArray[np.float64], ratio: npt.NDArray[np.float64],
) -> None:  # fmt: skip
    size, clip, most_requests = options[BLOCK_SIZE], options[CLIP], options[BATCH_SIZE]
    beside = state[DECODING] if options[MIXED] != 0 else 0
    chunk = options[TOKEN_BUDGET] - beside
    tokens = options[MOST_PREFILL] - beside
    future = 0
    slot = state[FIRST_SLOT]
    while slot >= 0:
        if slots[SLOT_LEFT, slot] == 0:
            future += min(slots[SLOT_DUE, slot] - state[EPOCH], clip)
        slot = slots[SLOT_NEXT, slot]
    total = state[FREE] * size - future * ratio_now(state, params, ratio)
    if state[PREFILLING] > 0:
        slot = state[LAST_SLOT]
        while slots[SLOT_LEFT, slot] == 0:
            slot = slots[SLOT_PREV, slot]
        room = (slots[SLOT_HELD, slot] + state[FREE]) * size - done_by(state, slots, slot)
        take = min(slots[SLOT_LEFT, slot], chunk, room)
        if take <= 0:
            return
        _take_blocks(state, options, slots, slot, take)
        serve_prefill(state, slots, served, slot, take)
        whole = take == slots[SLOT_LEFT, slot]
        total -= blocks_of(take, size) * size + (
            min(slots[SLOT_OUTPUTS, slot], clip) if whole else 0
        )
        tokens -= take
        chunk -= take
        if not whole:
            return
    while True:
        request = first_waiting(state, options, ring)
        if request < 0:
            break
        if state[RUNNING] >= most_requests:
            state[IS_FULL] = 1
            break
        target = target_of(resume, prompt, request)
        to_come = min(outputs_of(resume, output, request), clip)
        if blocks_of(target, size) * size + to_come >= total and state[RUNNING] > 0:
            state[IS_FULL] = 1
            break
        if target >= tokens and state[SERVED] > 0:
            break
        take = target
        if target > chunk:
            take = chunk // size * size
            if take <= 0:
                break
        pop_waiting(state, options, ring, resume)
        slot = admit(state, options, slots, resume, prompt, output, request, 0)
        _take_blocks(state, options, slots, slot, take)
        serve_prefill(state, slots, served, slot, take)
        total -= blocks_of(take, size) * size + (to_come if take == target else 0)
        tokens -= take
        chunk -= take
        if total <= 0:
            state[IS_FULL] = 1
            break
        if tokens <= 0 or chunk <= 0:
            break


@njit(cache=True)
def _take_blocks(state: Ints, options: Ints, slots: Ints, slot: int, take: int) -> None:
    after = blocks_of(done_by(state, slots, slot) + take, options[BLOCK_SIZE])
    state[FREE] -= after - slots[SLOT_HELD, slot]
    slots[SLOT_HELD, slot] = after


@njit(cache=True)
def _ride_along(state: Ints, options: Ints, slots: Ints, growth: Ints) -> Any:
    """Serve the decodes for which memory is left beside the prompts; return whether they are
    marked.
    """
    grow = growth_at(options, growth, state[EPOCH])
    if grow <= state[FREE]:
        state[FREE] -= grow
        state[SERVED_DECODES] = state[DECODING]
        return False
    slot = state[FIRST_SLOT]
    while slot >= 0:
        if slots[SLOT_LEFT, slot] == 0:
            need = needs(state, options, slots, slot)
            if need <= state[FREE]:
                state[FREE] -= need
                slots[SLOT_TAKE, slot] = 1
                state[SERVED_DECODES] += 1
        slot = slots[SLOT_NEXT, slot]
    return True


@njit(cache=True)
def _decode_or_retract(
    state: Ints, options: Ints, slots: Ints, heads: Ints, bits: Words, growth: Ints, served: Ints,
    resume: Ints,
    ring: Ints, prompt: Tokens, output: Tokens, ratio: npt.NDArray[np.float64],
) -> None:  # fmt: skip
    """Decode all; where memory is short, those with the fewest outputs (of them the longest prompt)
    wait again.
    """
    if growth_at(options, growth, state[EPOCH]) > state[FREE]:
        while state[DECODING] > 1:
            chosen, fewest, longest = -1, 0, 0
            slot = state[FIRST_SLOT]
            while slot >= 0:
                if slots[SLOT_LEFT, slot] == 0:
                    request = slots[SLOT_REQUEST, slot]
                    out = output[request] - (slots[SLOT_DUE, slot] - state[EPOCH])
                    if chosen < 0 or out < fewest or (out == fewest and prompt[request] >= longest):
                        chosen, fewest, longest = slot, out, prompt[request]
                slot = slots[SLOT_NEXT, slot]
            request = preempt(state, options, slots, heads, bits, growth, served, resume, chosen)
            wait_last(state, ring, request)
            enough = state[FREE] * options[BLOCK_SIZE] >= state[DECODING] * options[RETRACT_STEPS]
            if enough and growth_at(options, growth, state[EPOCH]) <= state[FREE]:
                break
        if (
            growth_at(options, growth, state[EPOCH]) > state[FREE]
        ):  # a single one is left beside a cut prompt
            slot = state[FIRST_SLOT]
            while slots[SLOT_LEFT, slot] == 0:
                slot = slots[SLOT_NEXT, slot]
            request = preempt(state, options, slots, heads, bits, growth, served, resume, slot)
            wait_last(state, ring, request)
        so_far = in_all = 0
        slot = state[FIRST_SLOT]
        while slot >= 0:
            if slots[SLOT_LEFT, slot] == 0:
                request = slots[SLOT_REQUEST, slot]
                so_far += output[request] - (slots[SLOT_DUE, slot] - state[EPOCH])
                in_all += output[request]
            slot = slots[SLOT_NEXT, slot]
        ratio[0] = min(1.0, (so_far + options[RETRACT_STEPS] * state[DECODING]) / in_all)
        state[RATIO_STEPS] = 0
        state[IS_FULL] = 0
    state[FREE] -= growth_at(options, growth, state[EPOCH])
    state[SERVED_DECODES] = state[DECODING]


@njit(cache=True)
def decodes_then_prompts(
    state: Ints, options: Ints, slots: Ints, heads: Ints, bits: Words, growth: Ints, served: Ints,
    resume: Ints,
    ring: Ints, prompt: Tokens, output: Tokens,
) -> None:  # fmt: skip
    """TensorRT-LLM, and Vidur's Orca and Sarathi: all decodes, prompts that were begun, then new
    ones.
    """
    rule, size, static = options[RULE], options[BLOCK_SIZE], options[ADMISSION] == STATIC
    nobody_runs = state[RUNNING] == 0
    spare = 1 if rule == VIDUR_SARATHI else 0
    _decode_all(state, options, slots, heads, bits, growth, served, resume, ring, prompt, spare)
    left = max(options[TOKEN_BUDGET] - state[SERVED_DECODES], 0)
    if state[PREFILLING] > 0:
        left = _go_on(state, options, slots, served, left)
    if (state[PREEMPTED] > 0 and rule == TENSORRT) or (static and not nobody_runs):
        return
    while state[RUNNING] < options[BATCH_SIZE]:
        request = first_waiting(state, options, ring)
        if request < 0:
            break
        target = target_of(resume, prompt, request)
        take = target
        if rule != VIDUR_ORCA and not static:
            if left == 0 or (options[CHUNKED] == 0 and target > left):
                break
            take = min(target, left)
        blocks = options[RESERVED]
        if blocks == 0:
            completes = options[ADMISSION] == COMPLETION or static
            blocks = blocks_of(
                peak_of(options, resume, prompt, output, request) if completes else target, size
            )
        if state[FREE] - blocks < options[WATERMARK]:
            break
        pop_waiting(state, options, ring, resume)
        slot = admit(state, options, slots, resume, prompt, output, request, blocks)
        if not static:
            serve_prefill(state, slots, served, slot, take)
            left -= take
    if static:
        _go_on(state, options, slots, served, left)


@njit(cache=True)
def _go_on(state: Ints, options: Ints, slots: Ints, served: Ints, left: int) -> Any:
    """Serve prompts of those that run, in order; return the tokens left."""
    slot = state[FIRST_SLOT]
    end = state[LAST_SLOT]
    reorders = options[RULE] == VIDUR_SARATHI
    front = slot
    while slot >= 0:
        following = slots[SLOT_NEXT, slot] if slot != end else -1
        if slots[SLOT_LEFT, slot] > 0:
            take = min(slots[SLOT_LEFT, slot], left)
            if options[CHUNKED] == 0 and take < slots[SLOT_LEFT, slot]:
                break
            if take > 0:
                serve_prefill(state, slots, served, slot, take)
                left -= take
            if (
                reorders
            ):  # those in the batch stand at the end from now on, those that are not at the front
                if take > 0:
                    unlink(state, slots, slot)
                    append(state, slots, slot)
                elif slot == front:
                    front = following
                else:
                    unlink(state, slots, slot)
                    insert_before(state, slots, slot, front)
        slot = following
    return left


@njit(cache=True)
def static_batch(
    state: Ints, options: Ints, slots: Ints, heads: Ints, bits: Words, growth: Ints, served: Ints,
    resume: Ints,
    ring: Ints, prompt: Tokens, output: Tokens,
) -> None:  # fmt: skip
    """Vidur's FasterTransformer: all prompts that fit in one batch; then their decodes until the
    last is done.
    """
    if state[RUNNING] > 0:
        state[SERVED_DECODES] = state[DECODING]
        return
    while state[RUNNING] < options[BATCH_SIZE] and state[FREE] >= options[RESERVED]:
        request = first_waiting(state, options, ring)
        if request < 0:
            break
        pop_waiting(state, options, ring, resume)
        slot = admit(state, options, slots, resume, prompt, output, request, options[RESERVED])
        serve_prefill(state, slots, served, slot, slots[SLOT_TARGET, slot])
