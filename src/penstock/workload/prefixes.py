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
    """Hash ids of the full blocks of recorded prompts, and of what was answered.

    Two requests with the same id at the same place are equal up to the end of that block.
    """

    ids: Ints  # shape (ids,), numbered from 0
    bounds: Ints  # shape (requests + 1,): those of request r are `ids[bounds[r] : bounds[r + 1]]`
    block_size: int  # tokens in a block
    # The ids go on where prompts end, so that a later prompt finds what it has in common with an
    # answer.
    names_outputs: bool = False
    # Ids that were given behind different ones, so that all were of blocks alone and not of what is
    # before them; here each is of both.
    of_blocks: int = 0

    @property
    def rows(self) -> int:
        """Number of recorded requests."""
        return self.bounds.size - 1

    @classmethod
    def of(
        cls,
        ids: Ints,
        counts: Ints,
        prompt_tokens: Ints,
        block_size: int,
        output_tokens: Ints | None = None,
    ) -> "Prefixes":
        """Keep the ids of full blocks: traces name a last one that is not full, too."""
        # The ids, shape (ids,), are any whole numbers, one request after another; ``counts``, shape
        # (requests,), says how many each has. With ``output_tokens`` they go on with outputs.
        tokens = prompt_tokens if output_tokens is None else prompt_tokens + output_tokens
        full = np.minimum(counts, tokens // block_size)
        places = np.arange(ids.size) - np.repeat(np.cumsum(counts) - counts, counts)
        in_full = places < np.repeat(full, counts)
        _, numbered = np.unique(ids[in_full], return_inverse=True)
        places = places[in_full]
        bounds = np.concatenate([[0], np.cumsum(full)]).astype(np.int64)

        # An id that stands behind two others names a block whatever is before it.
        before = np.where(places > 0, np.roll(numbered, 1), -1)
        of_id = np.empty(int(numbered.max(initial=-1)) + 1, np.int64)
        of_id[numbered] = before
        of_blocks = np.unique(numbered[of_id[numbered] != before]).size
        if of_blocks:
            numbered = _with_all_before(numbered, places)
        return cls(
            numbered.astype(np.int64), bounds, block_size, output_tokens is not None, of_blocks
        )

    @property
    def notices(self) -> tuple[str, ...]:
        """What there is to say of the ids as they were given."""
        if not self.of_blocks:
            return ()
        return (
            f"hash ids are of blocks alone, {self.of_blocks:,} of them behind different ones: "
            "prompts have in common what their ids, from the first on, have",
        )

    def taken(self, rows: Ints) -> "Prefixes":
        """Return those of some requests, in any order and as often as asked for."""
        counts = np.diff(self.bounds)[rows]
        bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        within = np.arange(bounds[-1]) - np.repeat(bounds[:-1], counts)
        ids = self.ids[np.repeat(self.bounds[rows], counts) + within]
        return dataclasses.replace(self, ids=ids, bounds=bounds)

    def computed_once(self, prompt_tokens: Ints) -> Ints:
        """Return tokens of prompts that none computed before, if all is kept; shape (requests,)."""
        # However requests are served, no less is computed in all: each block that prompts name
        # once, unless an answer brings it, all tokens beyond the named ones, and the last of a
        # prompt.
        counts = np.diff(self.bounds)
        asked = np.minimum(counts, prompt_tokens // self.block_size)
        within = np.arange(self.ids.size) - np.repeat(self.bounds[:-1], counts)
        in_prompt = within < np.repeat(asked, counts)
        answered = np.zeros(int(self.ids.max(initial=-1)) + 1, np.bool_)
        answered[self.ids[~in_prompt]] = True
        new = np.zeros(self.ids.size, np.bool_)
        new[np.unique(self.ids, return_index=True)[1]] = True
        new &= in_prompt & ~answered[self.ids]
        row = np.repeat(np.arange(self.rows), counts)
        blocks = np.bincount(row[new], minlength=self.rows)
        left = prompt_tokens - asked * self.block_size
        return np.asarray(np.maximum(blocks * self.block_size + left, 1), np.int64)

    def in_blocks(self, size: int) -> "Prefixes":
        """Return the same in blocks of another size, as far as it is known."""
        # The id that reaches up to a block's last token, and its place there, name it: equal names
        # are equal tokens.
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
        return dataclasses.replace(self, ids=names, bounds=bounds, block_size=size)

    def renewed(self, times: int) -> "Prefixes":
        """Return the recording so many times, each time with names of its own."""
        names = int(self.ids.max(initial=-1)) + 1
        ids = self.ids + names * np.arange(times)[:, None]
        bounds = self.bounds[1:] + self.ids.size * np.arange(times)[:, None]
        bounds = np.concatenate([[0], bounds.ravel()])
        return dataclasses.replace(self, ids=ids.ravel(), bounds=bounds)

    @classmethod
    def joined(cls, parts: Sequence["Prefixes"]) -> "Prefixes":
        """Put recordings after one another; what one has in common with another is not known."""
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
        answers = any(part.names_outputs for part in parts)
        return cls(np.concatenate(ids), np.concatenate(bounds), parts[0].block_size, answers)


def _with_all_before(ids: Ints, places: Ints) -> Ints:
    """Return ids that are equal where given ones and all before them are."""
    # ``places``: of each id in its list, from 0. By random sums of 64 bits: for a million lists two
    # that differ have one id with a chance of about 1e-7.
    rng = np.random.default_rng(0)
    words = [
        rng.integers(0, 2**64, int(index.max()) + 1, np.uint64)[index] for index in (ids, places)
    ]
    sums = np.cumsum(words[0] * words[1])
    starts = np.flatnonzero(places == 0)
    before = np.concatenate([[np.uint64(0)], sums])[starts]
    sums -= np.repeat(before, np.diff(np.append(starts, ids.size)))
    return np.unique(sums, return_inverse=True)[1]


def checked_prefixes(
    hash_ids: Sequence[Sequence[int]] | None,
    with_output: Sequence[Sequence[int]] | None,
    hash_block: int | None,
    prompt_tokens: Ints,
    output_tokens: Ints,
) -> Prefixes | None:
    """Return what was given for each request, once it is sound; None for nothing."""
    # Where ids are of more blocks than the prompt has, those of all requests go on with outputs.
    named = {"hash_ids": hash_ids, "hash_ids_with_output": with_output}
    lists = {name: ids for name, ids in named.items() if ids is not None}
    if not lists and hash_block is None:
        return None
    if not lists or hash_block is None:
        name = next(iter(lists), "hash_ids")
        raise InputError(
            f"{name} is {checks.shown(named[name])} and hash_block is {checks.shown(hash_block)}: "
            "ids name blocks of so many tokens; give both or none"
        )
    block = checks.whole(
        "hash_block", hash_block, 1, LARGEST_BLOCK, "tokens", "it is the tokens of one block"
    )
    rows = {name: _rows(name, ids, prompt_tokens.size) for name, ids in lists.items()}
    if len(rows) > 1:
        _refuse_other_prompts(*rows.values(), full=prompt_tokens // block)
    name, chosen = list(rows.items())[-1]
    counts = np.array([row.size for row in chosen], np.int64)
    whole = name == "hash_ids_with_output" or go_on(counts, prompt_tokens, block)
    outputs = output_tokens if whole else None
    return Prefixes.of(np.concatenate(chosen), counts, prompt_tokens, block, outputs)


def _rows(name: str, hash_ids: Sequence[Sequence[int]], requests: int) -> list[Ints]:
    """Return the ids that were given under a name, one list for each request."""
    if not isinstance(hash_ids, Sequence) or len(hash_ids) != requests:
        raise InputError(
            f"{name} is {checks.shown(hash_ids)}, but each of the {requests:,} requests has a "
            "list of its own; give as many, empty ones too"
        )
    return [_whole_numbers(name, request, ids) for request, ids in enumerate(hash_ids)]


def go_on(counts: Ints, prompt_tokens: Ints, block: int) -> bool:
    """Return whether some request has ids beyond its full blocks and the one that traces add."""
    return bool((counts > prompt_tokens // block + 1).any())


def _refuse_other_prompts(prompts: list[Ints], whole: list[Ints], *, full: Ints) -> None:
    """Refuse ids of prompts that are not the beginning of those with outputs, as far as both go."""
    # Shape (requests,) each; ``full``: blocks that a prompt fills.
    for request, (ids, with_output) in enumerate(zip(prompts, whole, strict=True)):
        both = min(ids.size, with_output.size, int(full[request]))
        if (ids[:both] != with_output[:both]).any():
            raise InputError(
                f"hash_ids[{request}] and hash_ids_with_output[{request}] begin with other ids, "
                "but both name the blocks of one prompt; leave hash_ids out"
            )


def _whole_numbers(name: str, request: int, ids: Sequence[int]) -> Ints:
    try:
        row = np.asarray(ids)
    except (ValueError, OverflowError):
        row = np.array(None)
    if row.size == 0 and row.ndim == 1:
        return np.empty(0, np.int64)
    if row.ndim != 1 or row.dtype.kind != "i":
        raise InputError(
            f"{name}[{request}] is {checks.shown(ids)}, but the blocks of a prompt are named by "
            "whole numbers below 2^63; give a list of them"
        )
    return row.astype(np.int64)


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
    of_answer = np.maximum(known - counts, 0)
    total = counts + of_answer
    within = np.arange(total.sum()) - np.repeat(np.cumsum(total) - total, total)
    of_prompt = within < np.repeat(counts, total)
    source = np.where(of_prompt, np.repeat(starts, total), np.repeat(starts[following], total))
    return ids[source + within], total, int((of_answer > 0).sum())
