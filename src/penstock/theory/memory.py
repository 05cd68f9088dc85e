"""How much KV memory carries: an estimate of the rate at which a memory-bound server is full (after
Nie, Si, Zhou).

A server with M usable blocks under a large backlog finishes a requests per batch, and as many
enter. Counted per batch, batch times cancel (Little's law):

    M = a (E[g] + E[h]) + F,        rate = a / E[t_b],

g blocks that a request holds, summed over its batches, h the same for prompts that are processed
anew after a preemption, F blocks that lie free. The right side rises with a, so there is one
solution; the batch time follows from it. With P prompt tokens, D decode iterations, blocks of s
tokens, n = a E[D] requests that decode at a time:

* **g** = sum over j = 1 .. D of ceil((P + j) / s) + ceil(P / s) T, and where memory is reserved to
  completion ceil((P + D) / s) (D + T). T is the number of batches from when memory lets a prompt in
  until it is done: ceil((W + P) / (b_max - n)), with W prompt tokens ahead. W is the queue of
  prompts that enter as a Poisson number per batch and leave b_max - n at a time (Lindley's
  recursion), drawn.
* **F**: the next request waits until it fits. With B blocks needed, free memory is uniform between
  0 and the B of the one that waits, and a large one waits longer: F = (E[B^2] / E[B] - 1) / 2. If
  all reserve the same, F = M mod B.
* **Preemptions.** A request runs while Y, what those admitted before it leave of the memory, less
  its own, is not below 0: then it is preempted, and it returns when Y does. In u batches that it
  runs, Y falls by growth and rises by what those before it give back at their end:

      mean  m(u) = a E[P min(D, u) + min(D, u)^2 / 2],
      variance  v(u) = a E[(P + D)^3 - (P + (D - u)+)^3] / 3,     growth  n(u) = a E[(D - u)+]

  (P stands for P + (s - 1) / 2 here: a last block is half empty). While Y is below 0, others of
  those before it are kept out too, and memory is as full as ever: only time above 0 brings the end
  nearer. So Y is a process reflected at 0, and by Spitzer's identity its minimum falls by E[X-] / u
  per batch, with X of mean m and variance v. For a path of variance v / u per batch that means 2
  n(u) k E[X-] / v crossings per batch. Finishes of the same batch come first: k = E[(n - G)+] / n,
  G what a Poisson number of mean a of requests give back. A watermark is added to m. Preemptions
  count after the prompt is done (before, next to nothing is lost) and before the end. For many
  requests that finish one by one this comes to E[D] / E[P] preemptions of each.
* **Attention**, where batch times depend on it: a times that of a mean request, halfway between
  the least and the most that it may take (`penstock.theory.attention`).
* **Token load**: n, with the variance of a renewal count (as many as fill M), and prompts of
  Lindley's recursion.

Where a max batch size keeps more out first, it pins n, nothing is preempted, and a follows from it
likewise.

What it leaves out: requests that finish together. With outputs that are alike those that are
admitted together also finish together, and preemption makes such groups grow: there it would be 11%
to 21% too high, and refuses. And it takes numbers for large: where memory holds fewer than about 8
requests it can be off by a quarter.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from penstock.errors import InputError
from penstock.inputs import special_functions as special
from penstock.inputs.arrays import Floats, Ints
from penstock.system.memory import Memory
from penstock.system.prefix_cache import as_serving
from penstock.system.server import Server
from penstock.theory.attention import attention
from penstock.theory.kv_blocks import decode_blocks, drawn, peak_blocks, reserves, reuses, served
from penstock.workload.workload import Workload

ALIKE = 0.25
"""Standard deviation of outputs over their mean below which requests keep step."""

_BATCHES = 2**15  # drawn
_REQUESTS = 2**11  # drawn, for integrals over the life of a request
_POINTS = 128  # of those integrals
_PASSES = 3  # how long prompts wait depends on what is done anew, and the other way round
_PRECISION = 1e-4


class FullServer(NamedTuple):
    """A server that is full, as estimated.

    Attributes
    ----------
    rate
        Requests/s that it carries, those that are dropped included.
    limit
        What it is full of: ``KV memory`` (or, where ``token_load`` comes close to the token budget,
        prompts that wait for it), or requests: ``max batch size``.
    token_load
        Mean tokens of a batch.
    """

    rate: float
    limit: Literal["KV memory", "max batch size"]
    token_load: float


def full_server(workload: Workload, server: Server) -> FullServer:
    """Estimate the rate that a server's KV memory carries without a simulation, for pages that are
    worked out anew every few seconds; `penstock.memory_estimate` simulates.

    For servers that decode first and fill the rest of the token budget with prompts cut to fit:
    ``sarathi`` with admission ``input`` or ``completion``, ``vllm``, and ``tensorrt-llm`` with
    chunked context. Mostly within 5% of a simulated flood.

    Parameters
    ----------
    workload
        Its lengths; at whatever rate.
    server
        With a memory.

    Raises
    ------
    InputError
        If the server has no memory, or one that this is not known for, a request never fits, or
        outputs are so much alike that requests keep step.
    """
    server = as_serving(workload, server)
    memory = _known_for(workload, server)
    work = served(workload, server)
    beside = attention(work.lengths, server)
    lengths = drawn(work.lengths)
    _refuse_alike(lengths[1], server)
    full = _Full(*lengths, server, memory, (beside.least + beside.most) / 2)
    limit: Literal["KV memory", "max batch size"] = "KV memory"
    usable = server.usable_blocks or 0
    room = max(usable - full.free, 0.0)
    state = full.solve(lambda state: state.held > room, short=True)
    slots = server.max_batch_size
    if slots is not None and state.running > slots:
        limit = "max batch size"
        state = full.solve(lambda state: state.running > slots or state.held > usable, short=False)
    seconds, tokens = full.batch(state)
    return FullServer(state.entering / seconds / work.share, limit, tokens)


@dataclasses.dataclass(frozen=True)
class _State:
    """What goes on when so many requests enter per batch."""

    entering: float
    held: float  # blocks, mean
    running: float  # requests, mean
    preemptions: float  # of a request, mean
    redone: float  # tokens that it processes anew, mean
    load: Floats  # shape (_BATCHES,), tokens


class _Full:
    """A server under a backlog that does not end."""

    def __init__(
        self, prompt: Ints, output: Ints, server: Server, memory: Memory, attention_s: float
    ) -> None:
        self.server, self.memory = server, memory
        self.attention_s = attention_s  # of a mean request
        decodes = output - (server.convention == "engine")
        self.decodes, self.tokens = float(decodes.mean()), float((prompt + decodes).mean())
        peak = peak_blocks(prompt, output, server, memory)
        reserved = peak if reserves(server) else -(-prompt // memory.block_size)
        held = (
            decodes * peak
            if reserves(server)
            else decode_blocks(prompt, decodes, memory.block_size)
        )
        self.held, self.least = float(held.mean()), float((held + reserved).mean())
        spare = server.watermark_blocks
        self.free = spare + _free(reserved, (server.usable_blocks or 0) - spare, reserves(server))
        self.spread = _spread(prompt, decodes, peak if reserves(server) else None)

        drawn_row = np.random.default_rng(0).integers(0, prompt.size, _BATCHES)
        self.prompt, self.reserved = prompt[drawn_row], reserved[drawn_row]
        self.returned = (prompt + decodes + (memory.block_size - 1) // 2)[drawn_row]
        few = drawn_row[:_REQUESTS]
        self.lives = decodes[few]
        longest = max(int(decodes.max()), 1)
        edges = longest * np.linspace(0.0, 1.0, _POINTS + 1) ** 3  # most preemptions come early
        self.width, self.age = np.diff(edges), ((edges[1:] + edges[:-1]) / 2)[:, None]
        p, d = prompt[few] + (memory.block_size - 1) / 2, decodes[few].astype(float)
        done, left = np.minimum(d, self.age), np.maximum(d - self.age, 0.0)
        self.rise = (p * done + done**2 / 2).mean(axis=1)
        variance = ((p + d) ** 3 - (p + left) ** 3).mean(axis=1) / 3
        # 0 only if none of the few decodes: nor do they grow
        self.variance = np.maximum(variance, np.finfo(float).tiny)
        self.growth = left.mean(axis=1)

    def solve(self, over: Callable[[_State], bool], *, short: bool) -> _State:
        """Return the state at the most requests per batch that are not too many."""
        low, high = (
            0.0,
            min(
                self.server.token_budget / self.tokens,
                (self.server.usable_blocks or 0) / self.least,
            ),
        )
        while high - low > _PRECISION * high:
            middle = (low + high) / 2
            if over(self.at(middle, short=short)):
                high = middle
            else:
                low = middle
        return self.at(low, short=short)

    def at(self, entering: float, *, short: bool) -> _State:
        """Return what goes on when so many requests enter per batch, and whether memory is what
        keeps more out.
        """
        preempts = short and not reserves(self.server)
        decoding = entering * self.decodes
        room = self.server.token_budget - decoding
        waits: Floats = np.zeros(_BATCHES)
        preemptions = redone = 0.0
        for _ in range(_PASSES if preempts else 1):
            if preempts:
                preemptions, redone = self._preemptions(entering, waits[:_REQUESTS])
            rng = np.random.default_rng(1)
            tokens: Floats = _batchwise(self.prompt, entering, rng).astype(float)
            again = redone / preemptions if preemptions else 0.0
            tokens += again * rng.poisson(entering * preemptions, _BATCHES)
            ahead, served_tokens = _queue(tokens, room)
            waits = np.ceil((ahead + self.prompt) / room) - 1
        held = entering * (self.held + float((self.reserved * (waits + 1)).mean()))
        running = decoding + entering * float(waits.mean() + 1)
        later = entering * preemptions * float(np.ceil((ahead + again) / room).mean())
        held, running = held + later * again / self.memory.block_size, running + later
        # Else the max batch size pins their number.
        spread = decoding * self.spread if short else 0.0
        load = decoding + np.sqrt(spread) * rng.standard_normal(_BATCHES) + served_tokens
        return _State(
            entering,
            held,
            running,
            preemptions,
            redone,
            np.clip(load, 1.0, self.server.token_budget),
        )

    def batch(self, state: _State) -> tuple[float, float]:
        """Return the mean (seconds, tokens) of a batch."""
        by_tokens = self.server.batch_time.by_tokens.table(self.server.token_budget)
        seconds = by_tokens[np.ceil(state.load).astype(np.int64)]
        attention_s = state.entering * self.attention_s * (1 + state.redone / self.tokens)
        return float(seconds.mean()) + attention_s, float(state.load.mean())

    def _preemptions(self, entering: float, waits: Floats) -> tuple[float, float]:
        """Return the preemptions of a request, and the tokens that it holds at each, added up."""
        decoding = entering * self.decodes
        if not decoding:
            return 0.0, 0.0
        returned = _batchwise(self.returned, entering, np.random.default_rng(2))
        falls = float(np.maximum(decoding - returned, 0.0).mean()) / decoding
        spare = self.server.watermark_blocks * self.memory.block_size
        mean, variance = entering * self.rise + spare, entering * self.variance
        z = mean / np.sqrt(variance)
        # E[X-] over the standard deviation.
        below = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) - z * special.ndtr(-z)
        times = 2 * entering * self.growth * falls * below / np.sqrt(variance) * self.width
        age = self.age - waits
        decodes = (age > 0) & (age < self.lives)
        tokens = (self.prompt[:_REQUESTS] + age) * decodes
        return float(times @ decodes.mean(axis=1)), float(times @ tokens.mean(axis=1))


def _known_for(workload: Workload, server: Server) -> Memory:
    """Return the memory, or say why nothing is known of it."""
    memory, policy = server.memory, server.policy
    if memory is None:
        raise InputError("the server has no KV memory, so memory limits nothing; give kv_blocks")
    if not policy.decode_first or memory.admission == "optimistic":
        raise InputError(
            "what memory carries is estimated for sarathi with admission input or completion, "
            "and for vllm and "
            f"tensorrt-llm with chunked prompts, not for {policy.name} as it is here; ask max_rate"
        )
    if reuses(workload, server):
        raise InputError(
            "what requests share by prefix caching is not known, so there is no estimate; ask "
            "max_rate"
        )
    return memory


def _refuse_alike(output: Ints, server: Server) -> None:
    """Refuse outputs so much alike that those who were let in together finish together."""
    spread = float(output.std() / output.mean())
    if spread < ALIKE and not reserves(server):
        raise InputError(
            f"outputs vary by {spread:.1%} of their mean only, so requests keep step and are "
            "preempted together, which the formula does not know; ask `penstock.memory_estimate`"
        )


def _free(reserved: Ints, usable: int, kept: bool) -> float:
    """Return the blocks that lie free because the next request does not fit, on average."""
    if kept and reserved.min() == reserved.max():
        return float(usable % reserved[0])
    needed = reserved.astype(float)
    return float((needed**2).mean() / needed.mean() - 1) / 2


def _spread(prompt: Ints, decodes: Ints, reserved: Ints | None) -> float:
    """Return the variance of the decoding requests that fill a memory, over their mean (a renewal
    count).
    """
    p, d = prompt.astype(float), decodes.astype(float)
    if not d.any():
        return 0.0
    first = p * d + d**2 / 2 if reserved is None else d * reserved
    second = ((p + d) ** 3 - p**3) / 3 if reserved is None else d * reserved.astype(float) ** 2
    return max(float(second.mean() * d.mean() / first.mean() ** 2) - 1, 0.0)


def _batchwise(tokens: Ints, rate: float, rng: np.random.Generator) -> Ints:
    """Draw the tokens of a Poisson number of requests per batch; shape (_BATCHES,)."""
    count = rng.poisson(rate, _BATCHES)
    total = np.concatenate([[0], np.cumsum(tokens[rng.integers(0, tokens.size, int(count.sum()))])])
    return np.asarray(np.diff(total[np.concatenate([[0], np.cumsum(count)])]))


def _queue(tokens: Floats, room: float) -> tuple[Floats, Floats]:
    """Return the tokens (that wait before, that are served in) each batch; Lindley's recursion,
    shape (_BATCHES,).
    """
    net = np.cumsum(tokens - room)
    left = net - np.minimum(np.minimum.accumulate(net), 0.0)
    ahead = np.concatenate([[0.0], left[:-1]])
    return ahead, np.minimum(ahead + tokens, room)
