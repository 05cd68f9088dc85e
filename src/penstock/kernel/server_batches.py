"""How one server forms a batch: what the policy sees, what it gets of what it asks for, and how
often the same batch follows itself.
"""

from typing import Any

from penstock.kernel.choice import Choice, ask, decodes_beside
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.composition import (
    Terms,
    cost_of,
    rise_of,
    ticks_of,
)
from penstock.kernel.due_epochs import NEVER, link
from penstock.kernel.in_progress import begun_before, ticks_of_batches, within_the_run
from penstock.kernel.recording import note_allocation
from penstock.kernel.records import ALLOCATION_ROWS, NOT_BY_LOAD
from penstock.kernel.server_arrays import Arrays, Batch, Run
from penstock.kernel.signatures import SEES_BATCH, SEES_DECODES, Limits, Queue


@uncounted(inline=True)
def show_prompts(arrays: Arrays) -> Any:
    """Let the policy see all prompts that the max batch size admits; return where they would end.

    That never falls, so each prompt is added once.
    """
    pool, state = arrays.pools[0], arrays.state[0]
    admissible = state.head + pool.batch_size
    if pool.running_scope != 0:
        admissible -= state.decoding
    end = min(state.arrived, admissible)
    while state.visible < end:
        tokens = arrays.prompt[state.visible]
        # Never so. But of a loop with two ends LLVM makes no vectors, whose constants it would
        # fetch again after every call of the policy, for the one or two turns of this one.
        if tokens == 0:
            break
        state.visible_tokens += tokens
        state.visible += 1
    return admissible


@uncounted(inline=True)
def ask_policy(arrays: Arrays, limits: Limits) -> Any:
    """Return what the policy chooses of those that wait and decode."""
    state = arrays.state[0]
    head_tokens = 0
    if state.head < state.arrived:
        head_tokens = arrays.prompt[state.head] - state.head_done
    queue = Queue(
        state.visible - state.head,
        state.visible_tokens,
        state.decoding,
        state.arrived - state.head,
        state.waiting_tokens,
        head_tokens,
        state.decode_tokens,
        arrays.clock[0].requests_before + state.arrived,
        state.arrived_tokens,
        arrays.clock[0].finished,
        state.finished_decodes,
    )
    return ask(arrays.pools[0].policy.address, queue, limits, arrays.params)


@uncounted(inline=True)
def prefill_oldest(arrays: Arrays, choice: Choice, limits: Limits, terms: Terms | None) -> Any:
    """Serve the oldest prompts first, the last of them cut anywhere; return the batch."""
    state = arrays.state[0]
    prompts, squares, pairs = 0, 0, 0
    left = choice.prefill
    while left > 0 and prompts < choice.prompts:
        rest = arrays.prompt[state.head] - state.head_done
        take = min(rest, left)
        if arrays.clock[0].record >= ALLOCATION_ROWS:
            note_allocation(arrays, 0, state.head, take, 0)
        if terms is not None:
            squares += take * take
            pairs += take * state.head_done
        left -= take
        prompts += 1
        if take == rest:
            state.head += 1
            state.head_done = 0
        else:
            state.head_done += take
    prefill = choice.prefill - left
    state.visible_tokens -= prefill
    state.waiting_tokens -= prefill
    decode = decodes_beside(choice, limits, prefill, prompts)
    return Batch(prefill, decode, prompts, squares, pairs)


@uncounted(inline=True)
def link_fresh(arrays: Arrays, decode: int, terms: Terms | None) -> Any:
    """Link as many requests that never decoded as the batch has room for; return the first slot.

    Slots are a list, so those of one batch follow each other in it.
    """
    state, slots = arrays.state[0], arrays.slots
    linked, engine = state.linked, arrays.pools[0].convention
    first = state.free
    while linked.count < decode:
        while arrays.output[state.fresh] == engine:  # its only token came with the end of prefill
            state.fresh += 1
        index = state.free
        state.free = slots[index].chain
        slots[index].request = state.fresh
        decodes = arrays.output[state.fresh] - engine
        link(slots, arrays.heads, arrays.bits, linked, index, decodes)
        if terms is not None:
            linked.context += arrays.prompt[state.fresh] - linked.epoch
        state.fresh += 1
    return first


@uncounted(inline=True)
def equal_batches(arrays: Arrays, batch: Batch, admissible: int, terms: Terms | None) -> Any:
    """Return the run of batches like this one: until a request finishes, an arrival is seen, or the
    run of the server stops.
    """
    clock, pool, state = arrays.clock[0], arrays.pools[0], arrays.state[0]
    prefill, decode = batch.prefill, batch.decode
    tokens, requests = prefill + decode, batch.prompts + decode
    cost, rise = 0, 0
    # The mask changes nothing, but tells LLVM that it is not `NOT_BY_LOAD`.
    ticks = plain = arrays.duration[tokens] & (NEVER - 1)
    if terms is not None:
        context = _context(arrays, decode)
        cost = cost_of(terms, prefill, decode, requests, batch.squares, batch.pairs, context)
        rise = rise_of(terms, decode)
        ticks = ticks_of(cost)
        plain = NOT_BY_LOAD
    start = clock.now
    run = Run(start, start + ticks, ticks, 1, tokens, prefill, decode, requests, plain, cost, rise)
    if (
        prefill > 0
        or decode < state.linked.count
        or clock.merges == 0
        or pool.sees == SEES_DECODES
        or clock.record >= ALLOCATION_ROWS
    ):
        return run
    batches = state.linked.due - state.linked.epoch
    seen = state.arrived < admissible or pool.sees != SEES_BATCH
    if state.arrived < arrays.arrival.size and seen:
        batches = begun_before(run, arrays.arrival[state.arrived], batches)
    batches = within_the_run(arrays, run, batches)
    end = start + ticks_of_batches(run, batches)
    return Run(start, end, ticks, batches, tokens, prefill, decode, requests, plain, cost, rise)


@uncounted(inline=True)
def _context(arrays: Arrays, decode: int) -> Any:
    """Return the tokens before the next decodes of the oldest so many linked requests: of these,
    or of all but the others, whichever are fewer.
    """
    state, slots = arrays.state[0], arrays.slots
    everything = state.linked.context + state.linked.count * state.linked.epoch
    if decode == state.linked.count:
        return everything
    since = state.linked.epoch - arrays.pools[0].convention
    if 2 * decode < state.linked.count:
        total = decode * since
        index = state.linked.first
        for _ in range(decode):
            slot = slots[index]
            total += arrays.prompt[slot.request] + arrays.output[slot.request] - slot.due
            index = slot.next
        return total
    others = (state.linked.count - decode) * since
    index = state.linked.last
    for _ in range(state.linked.count - decode):
        slot = slots[index]
        others += arrays.prompt[slot.request] + arrays.output[slot.request] - slot.due
        index = slot.previous
    return everything - others
