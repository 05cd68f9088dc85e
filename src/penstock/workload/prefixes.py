"""What recorded prompts have in common: hash ids of their blocks, as traces have them."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from penstock import checks
from penstock.errors import InputError
from penstock.inputs.arrays import Ints

LARGEST_BLOCK = 2**20

MOST_NAMES = 2**27
"""Of blocks of all prompts: a GiB of memory."""


@dataclasses.dataclass(frozen=True, eq=False)
class Prefixes:
    """Hash ids of the full blocks of recorded prompts.

    Two prompts with the same id at the same place are equal up to the end of that block.

    Attributes
    ----------
    ids
        Shape (ids,), numbered from 0.
    bounds
        Shape (requests + 1,): the ids of request r are ``ids[bounds[r] : bounds[r + 1]]``.
    block_size
        Tokens in a block.
    """

    ids: Ints
    bounds: Ints
    block_size: int

    @property
    def rows(self) -> int:
        """Number of recorded requests."""
        return self.bounds.size - 1

    @classmethod
    def of(cls, ids: Ints, counts: Ints, prompt_tokens: Ints, block_size: int) -> "Prefixes":
        """Keep the ids of full blocks: traces name a last one that is not full, too.

        Parameters
        ----------
        ids
            Shape (ids,), any whole numbers, those of one request after another.
        counts, prompt_tokens
            Shape (requests,): how many ids each has, and its prompt.
        block_size
            Tokens in a block.
        """
        full = np.minimum(counts, prompt_tokens // block_size)
        places = np.arange(ids.size) - np.repeat(np.cumsum(counts) - counts, counts)
        _, numbered = np.unique(ids[places < np.repeat(full, counts)], return_inverse=True)
        bounds = np.concatenate([[0], np.cumsum(full)]).astype(np.int64)
        return cls(numbered.astype(np.int64), bounds, block_size)

    def taken(self, rows: Ints) -> "Prefixes":
        """Return those of some requests, in any order and as often as asked for.

        Parameters
        ----------
        rows
            Shape (chosen,), places of the requests.
        """
        counts = np.diff(self.bounds)[rows]
        bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        within = np.arange(bounds[-1]) - np.repeat(bounds[:-1], counts)
        return Prefixes(
            self.ids[np.repeat(self.bounds[rows], counts) + within], bounds, self.block_size
        )

    def in_blocks(self, size: int) -> "Prefixes":
        """Return the same in blocks of another size, as far as it is known.

        A block is named by the id that reaches up to its last token, and by its place there: equal
        names are equal tokens up to its end.
        """
        if size == self.block_size:
            return self
        known = np.diff(self.bounds) * self.block_size // size
        bounds = np.concatenate([[0], np.cumsum(known)]).astype(np.int64)
        if bounds[-1] > MOST_NAMES:
            raise InputError(
                f"prompts have {bounds[-1]:,} blocks of {size:,} tokens in all, of which "
                f"{MOST_NAMES:,} can have names; set block_size to {self.block_size:,}, that of "
                "the hash ids, or prefix_caching to false"
            )
        index = np.arange(bounds[-1]) - np.repeat(bounds[:-1], known)
        within = ((index + 1) * size - 1) // self.block_size
        names = self.ids[np.repeat(self.bounds[:-1], known) + within]
        names = names * -(-self.block_size // size) + index - within * self.block_size // size
        return Prefixes(names, bounds, size)

    def renewed(self, times: int) -> "Prefixes":
        """Return the recording so many times, each time with names of its own."""
        own = int(self.ids.max(initial=-1)) + 1
        ids = self.ids + own * np.arange(times)[:, None]
        bounds = self.bounds[1:] + self.ids.size * np.arange(times)[:, None]
        return Prefixes(ids.ravel(), np.concatenate([[0], bounds.ravel()]), self.block_size)

    @classmethod
    def joined(cls, parts: Sequence["Prefixes"]) -> "Prefixes":
        """Put recordings after one another; what one has in common with another is not known.

        Raises
        ------
        InputError
            If their blocks are not of one size.
        """
        sizes = {part.block_size for part in parts}
        if len(sizes) > 1:
            raise InputError(
                f"hash ids name blocks of {' and '.join(f'{size:,}' for size in sorted(sizes))} "
                "tokens, but those of one network must be alike; leave out those of all but one"
            )
        first_id = first = 0
        ids, bounds = [], [np.zeros(1, np.int64)]
        for part in parts:
            ids.append(part.ids + first_id)
            bounds.append(part.bounds[1:] + first)
            first_id += int(part.ids.max(initial=-1)) + 1
            first += part.ids.size
        return cls(np.concatenate(ids), np.concatenate(bounds), parts[0].block_size)


def checked_prefixes(
    hash_ids: Sequence[Sequence[int]] | None, hash_block: int | None, prompt_tokens: Ints
) -> Prefixes | None:
    """Return what was given for each request, once it is sound; None for nothing."""
    if hash_ids is None and hash_block is None:
        return None
    if hash_ids is None or hash_block is None:
        raise InputError(
            f"hash_ids is {checks.shown(hash_ids)} and hash_block is {checks.shown(hash_block)}: "
            "ids name blocks of so "
            "many tokens; give both or none"
        )
    block = checks.whole(
        "hash_block", hash_block, 1, LARGEST_BLOCK, "tokens", "it is the tokens of one block"
    )
    if not isinstance(hash_ids, Sequence) or len(hash_ids) != prompt_tokens.size:
        raise InputError(
            f"hash_ids is {checks.shown(hash_ids)}, but each of the {prompt_tokens.size:,} "
            "requests has a list of its "
            "own; give as many, empty ones too"
        )
    rows = [_whole_numbers(request, ids) for request, ids in enumerate(hash_ids)]
    counts = np.array([row.size for row in rows], np.int64)
    return Prefixes.of(np.concatenate(rows), counts, prompt_tokens, block)


def _whole_numbers(request: int, ids: Sequence[int]) -> Ints:
    try:
        row = np.asarray(ids)
    except (ValueError, OverflowError):
        row = np.array(None)
    if row.size == 0 and row.ndim == 1:
        return np.empty(0, np.int64)
    if row.ndim != 1 or row.dtype.kind != "i":
        raise InputError(
            f"hash_ids[{request}] is {checks.shown(ids)}, but the blocks of a prompt are named by "
            "whole numbers "
            "below 2^63; give a list of them"
        )
    return row.astype(np.int64)
