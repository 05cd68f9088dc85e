"""KV memory: how many tokens the requests that run may hold together, and who waits or leaves when
it is short.
"""

import dataclasses
from typing import Annotated, Literal

from penstock.errors import InputError
from penstock.fields import Checked, Range
from penstock.system.engine_flags import key

Admission = Literal["input", "completion", "optimistic"]
TooLong = Literal["error", "drop"]

MOST_BLOCKS = 2**40

BLOCKS = Range(1, MOST_BLOCKS, "blocks", "it is what the KV cache holds", "kv_blocks")
TOKENS = Range(1, MOST_BLOCKS, "tokens", "it is what the KV cache holds", "kv_tokens")
BLOCK_SIZE = Range(1, 2**20, "tokens", "it is the tokens of one block")
_FREE = Range(0.0, 0.9, "", "it is the share of the blocks that stays free")

MOST_CACHED_BLOCKS = 2**24
"""With prefix caching each block is kept account of."""


@dataclasses.dataclass(frozen=True)
class Memory(Checked):
    """KV memory in blocks, and the rules of its use.

    A request holds blocks for the tokens it has processed. A decoding request takes another block
    when its last one is full; if none is free, the last of the running requests (under
    ``order="priority"`` the one of lowest priority) is preempted: it loses its tokens and does them
    again.

    Parameters
    ----------
    blocks
        Blocks in all (vLLM's num_gpu_blocks).
    block_size
        Tokens in a block.
    watermark
        Share of the blocks that an admission must leave free. Default: what the policy's engine
        does, else 0.
    admission
        What must be free before a request is admitted: its ``input`` (held from then on), all that
        it needs to ``completion`` (no preemption), or ``optimistic``: the next block. Default:
        ``input``; engines have their own.
    too_long
        What to do about a request that can never fit: ``error`` names it; ``drop`` leaves it out
        and counts it.
    prefix_caching
        Whether blocks of prompts that begin alike are reused, where the workload says which do.
        Default: what the engine does where the workload says so (vLLM and SGLang reuse them);
        policies reuse none.
    names_known
        Whether the workload says which prompts begin alike. A server and a workload that meet set
        it.
    estimated
        Whether ``blocks`` stands for what the ``gpu`` of a server leaves, which the server puts in
        its place.
    """

    blocks: Annotated[int, BLOCKS, key("kv_blocks", "blocks")]
    block_size: Annotated[int, BLOCK_SIZE, key("block_size")] = 16
    watermark: Annotated[float, _FREE] | None = None
    admission: Admission | None = None
    too_long: TooLong = "error"
    prefix_caching: bool | None = None
    names_known: bool = dataclasses.field(default=False, repr=False)
    estimated: bool = dataclasses.field(default=False, compare=False, repr=False)

    @classmethod
    def of_tokens(cls, tokens: int, block_size: int = 16) -> "Memory":
        """Return the memory that holds so many tokens, in whole blocks."""
        tokens = TOKENS.whole(tokens)
        one = cls(1, block_size)
        if tokens < one.block_size:
            raise InputError(
                f"kv_tokens is {tokens:,}, less than one block of {one.block_size:,}, so nothing "
                "fits; raise it"
            )
        return cls(tokens // one.block_size, one.block_size)

    @property
    def tokens(self) -> int:
        """Tokens that the blocks hold."""
        return self.blocks * self.block_size

    def blocks_of(self, tokens: int) -> int:
        """Return the blocks that so many tokens of one request need."""
        return -(-tokens // self.block_size)
