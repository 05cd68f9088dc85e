"""Batches as a server with given limits forms them, drawn at random."""

import dataclasses

import numpy as np

MOST_PROMPTS = 64  # of a batch that they ought to fill


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
    """What is in some batches: an array each.

    By batch: requests in decode, the sum of tokens before them, and the most before one. By prompt, sorted by batch: in
    which batch a prompt has so many new tokens, and tokens before them.
    """

    decodes: np.ndarray
    context: np.ndarray
    longest: np.ndarray
    batch: np.ndarray
    new: np.ndarray
    before: np.ndarray

    def per_batch(self, values):
        """Return the sums over the prompts of each batch."""
        return np.bincount(self.batch, values, minlength=self.decodes.size).astype(np.float64)

    @property
    def prefill(self):
        return self.per_batch(self.new)

    @property
    def tokens(self):
        return self.prefill + self.decodes

    @property
    def requests(self):
        return self.decodes + self.per_batch(np.ones(self.batch.size))

    @property
    def squares(self):
        """Sums of n^2 over prompts of n new tokens."""
        return self.per_batch(self.new**2)

    @property
    def pairs(self):
        """Sums of n l over prompts of n new tokens after l."""
        return self.per_batch(self.new * self.before)

    def take(self, chosen):
        """Return those batches that are chosen, by a mask."""
        inside = chosen[self.batch]
        renamed = np.cumsum(chosen) - 1
        return Batches(
            self.decodes[chosen], self.context[chosen], self.longest[chosen],
            renamed[self.batch[inside]], self.new[inside], self.before[inside],
        )  # fmt: skip


def draw_batches(prompt, output, *, token_budget, max_batch_size, count, seed, kv_tokens=np.inf):
    """Draw batches of decodes alone, of prefill alone and of both, of every size that the limits allow.

    A decode belongs to a request found in decode at a random time: drawn with its output tokens as weight, any of them
    being next. Prompts are whole, the first one perhaps begun before and the last one cut; every other batch with
    prefill is full, unless `MOST_PROMPTS` prompts are too short for that.
    """
    rng = np.random.default_rng(seed)
    weights = output / output.sum()
    decodes, context, longest = np.zeros((3, count))
    prompts = []  # batch, new tokens, tokens before them
    for i in range(count):
        decodes_alone, full, prefill_alone = i % 4 < 2, i % 4 == 2, i % 16 == 3  # else a few prompts beside decodes
        most = 0 if prefill_alone else int(rng.integers(1, min(max_batch_size, token_budget - 1) + 1))
        who = rng.choice(prompt.size, most, p=weights)
        held = prompt[who] + np.floor(rng.random(most) * output[who])
        fit = int(np.searchsorted(np.cumsum(held), kv_tokens, side="right"))
        decodes[i], context[i], longest[i] = fit, held[:fit].sum(), held[:fit].max(initial=0.0)
        if decodes_alone and fit:
            continue
        room = token_budget - fit
        for j, length in enumerate(rng.choice(prompt, MOST_PROMPTS if full else int(rng.geometric(0.5))).tolist()):
            begun = int(rng.integers(length)) if j == 0 and rng.random() < 0.3 else 0
            new = min(length - begun, room)
            prompts.append((i, new, begun))
            room -= new
            if room == 0:
                break
    batch, new, before = np.array(prompts).T
    return Batches(decodes, context, longest, batch, new.astype(float), before.astype(float))
