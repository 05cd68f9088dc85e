"""Batches as a server with given limits forms them, drawn at random: compositions to fit a model
on.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError
from penstock.inputs.arrays import Ints
from penstock.measuring.fitting.batches import Array
from penstock.system.batch_time import MOST_TOKENS

_MOST_PROMPTS = 64


@dataclasses.dataclass(frozen=True, eq=False)
class BatchContents:
    """What is in some batches."""

    # Shape (batches,): requests in decode, the sum of tokens before them, and the most before one.
    decodes: Array
    context: Array
    longest: Array
    # Shape (prompts,), sorted by batch: in which batch a prompt has so many new tokens, and tokens
    # before them.
    batch: Ints
    new: Array
    before: Array

    def __len__(self) -> int:
        return int(self.decodes.size)

    def per_batch(self, values: Array) -> Array:
        """Return the sums over the prompts of each batch; shape (batches,)."""
        return np.bincount(self.batch, values, minlength=len(self)).astype(np.float64)

    @property
    def prefill(self) -> Array:
        """Prefill tokens, shape (batches,)."""
        return self.per_batch(self.new)

    @property
    def prompts(self) -> Array:
        """Requests in prefill, shape (batches,)."""
        return self.per_batch(np.ones(self.batch.size))

    def dealt(self, ranks: int) -> "BatchContents":
        """Deal each batch out to so many ranks: prompts in turn, decodes evenly; ``ranks`` batches
        for one.
        """
        if ranks == 1:
            return self
        first = np.searchsorted(self.batch, np.arange(len(self)))
        turn = np.arange(self.batch.size) - first[self.batch]
        batch = self.batch * ranks + turn % ranks
        order = np.argsort(batch, kind="stable")
        share = np.floor((self.decodes[:, None] + np.arange(ranks)) / ranks)
        each = (self.context / np.maximum(self.decodes, 1))[:, None]
        longest = np.where(np.arange(ranks) == 0, self.longest[:, None], each)
        longest = np.where(share > 0, longest, 0.0)
        sums = share.ravel(), (share * each).ravel(), longest.ravel()
        return BatchContents(*sums, batch[order], self.new[order], self.before[order])


def one_batch(prefill: npt.ArrayLike, decode: npt.ArrayLike) -> BatchContents:
    """Return one batch: (new tokens, tokens before them) of each prompt, and the tokens before each
    decode.
    """
    pairs, decodes = (
        checks.array("prefill", prefill).astype(float),
        checks.array("decode", decode).astype(float),
    )
    if (pairs.size and pairs.shape[1:] != (2,)) or decodes.ndim != 1:
        raise InputError(
            f"prefill has the shape {pairs.shape} and decode {decodes.shape}; give (new tokens, "
            "tokens before) of each prompt, and the tokens before each decode"
        )
    new, before = pairs.reshape(-1, 2).T
    if not new.size + decodes.size or (new < 1).any() or (before < 0).any() or (decodes < 0).any():
        raise InputError(
            f"a batch of prefill {checks.shown(prefill)} and decode {checks.shown(decode)}: a "
            "batch serves somebody, a "
            "prompt has new tokens, and none has negative ones before them; correct it"
        )
    sums = np.array([[decodes.size], [decodes.sum()], [decodes.max(initial=0.0)]], np.float64)
    return BatchContents(sums[0], sums[1], sums[2], np.zeros(new.size, np.int64), new, before)


def draw_batches(
    prompt: npt.ArrayLike,  # shape (requests,), tokens of requests such as will come
    output: npt.ArrayLike,  # shape (requests,), tokens of requests such as will come
    *,
    token_budget: int,
    max_batch_size: int,
    kv_tokens: int | None = None,  # most tokens in memory; None: no limit
    count: int = 4_000,
    seed: int = 0,
) -> BatchContents:
    """Draw batches of decodes alone, of prefill alone and of both, of every size that the limits
    allow.

    A decode belongs to a request found in decode at a random time: drawn with its output tokens as
    weight, any of them being next. Prompts are whole, the first one perhaps begun before and the
    last one cut; every other batch with prefill is full.
    """
    prompt, output = checks.column("prompt", prompt), checks.column("output", output)
    if prompt.size != output.size or min(prompt.min(), output.min()) < 1:
        raise InputError(
            f"{prompt.size:,} prompts from {prompt.min():g} and {output.size:,} outputs from "
            f"{output.min():g} tokens: give one of each per request, of at least one token"
        )
    budget = checks.whole("token_budget", token_budget, 2, MOST_TOKENS, "tokens", "a batch has tokens")
    slots = checks.whole("max_batch_size", max_batch_size, 1, MOST_TOKENS, "requests", "a batch serves requests")
    memory = np.inf if kv_tokens is None else checks.whole("kv_tokens", kv_tokens, 1, 2**40, "tokens", "so many fit")
    rng = np.random.default_rng(seed)
    weights = output / output.sum()
    decodes, context, longest = np.zeros((3, count))
    batch: list[int] = []
    chunks: list[tuple[int, int]] = []
    for i in range(count):
        kind = i % 4  # decodes alone twice, mixed, mixed or prefill alone
        most = 0 if kind == 3 and i % 16 == 3 else int(rng.integers(1, min(slots, budget - 1) + 1))
        who = rng.choice(prompt.size, most, p=weights)
        held = prompt[who] + np.floor(rng.random(most) * output[who])
        fit = int(np.searchsorted(np.cumsum(held), memory, side="right"))
        decodes[i], context[i], longest[i] = fit, held[:fit].sum(), held[:fit].max(initial=0.0)
        if kind < 2 and fit:
            continue
        found = _prompts(rng, prompt, budget - fit, full=kind == 2)
        batch += [i] * len(found)
        chunks += found
    new, before = np.array(chunks, np.float64).reshape(-1, 2).T
    return BatchContents(decodes, context, longest, np.array(batch, np.int64), new, before)


def _prompts(rng: np.random.Generator, prompt: Array, room: int, *, full: bool) -> list[tuple[int, int]]:
    """Return (new, before) of prompts that fill the room, or of one or a few."""
    most = _MOST_PROMPTS if full else int(rng.geometric(0.5))
    found: list[tuple[int, int]] = []
    for length in rng.choice(prompt, most).astype(int).tolist():
        begun = int(rng.integers(length)) if not found and rng.random() < 0.3 else 0
        new = min(length - begun, room)
        found.append((new, begun))
        room -= new
        if room == 0:
            break
    return found
