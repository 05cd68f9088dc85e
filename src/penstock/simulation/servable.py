"""Which requests can a server ever serve?"""

import numpy as np

from penstock.inputs.arrays import Bools, Ints32
from penstock.system.server import Server


def never_served(
    server: Server, prompt: Ints32, output: Ints32, declared: Ints32
) -> list[tuple[Bools, str]]:
    """Return which requests can never be served, for each reason."""
    policy, memory = server.policy, server.memory
    size = memory.block_size if memory else 1
    outputs = policy.outputs_of(prompt, output)
    peak = prompt.astype(np.int64) + outputs - (server.convention == "engine")
    limits = []
    if longest := policy.memory.longest_context:
        reason = f"{policy.name} has no room for an output, for its max_model_len is {longest:,}"
        limits.append((prompt >= longest, reason))
    if policy.queue.knows_outputs:
        reason = (
            f"it declares other outputs than it makes, which {policy.name} (ignore_eos) does not"
        )
        limits.append((declared != output, reason))
    usable = server.usable_blocks
    if usable is not None:
        if (most := policy.most_outputs(prompt, usable, size)) is not None:
            # A page of one that comes back may be less full.
            kept = 1 + policy.queue.knows_outputs
            short = output > most - (kept - 1) * size
            reason = (
                f"{policy.name} would cut its output for want of memory: of {usable:,} blocks of "
                f"{size:,} its prompt, {kept} more and a token stay free"
            )
            limits.append((short, reason))
        beyond = policy.memory.drafted_tokens + policy.memory.reserves_last_token
        needed = -(-(peak + beyond) // size)
        spare = server.spare_blocks
        over = needed + spare > usable
        beside = f" beside a watermark of {spare:,}" if spare else ""
        worst = int(needed[over][0]) if over.any() else 0
        reason = (
            f"it needs {worst:,} blocks of {size:,}{beside}, but the KV memory has {usable:,}, so "
            "it never fits and blocks the server"
        )
        limits.append((over, reason))
    if not policy.batching.cuts_prompts:
        # What is preempted comes back longer.
        again = memory is not None and server.holds != "completion"
        lost = ", with outputs that it lost" if again else ""
        reason = (
            f"{policy.name} takes a prompt whole{lost}, but a batch holds "
            f"{server.token_budget:,} tokens, so it never fits and blocks the server"
        )
        room = server.token_budget - policy.batching.beside_prompt
        limits.append(((peak if again else prompt) > room, reason))
    return limits
