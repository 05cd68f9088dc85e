"""Theorem 1, with attention: batches that take t = t_b + (what their requests' attention takes)
(Appendix A).

t_b is the time by token load (the linear layers). Attention is additive over requests, and what a
request's takes in all hardly depends on how its tokens are spread over batches. With n new tokens
and l before them a request costs s n^2 + p n l in prefill (s: `self_attention`, p:
`cross_attention`), s + d l for a decode (d: `decode_attention`, or `mixed_attention` beside
prefill), and e, `per_request`, each time. A batch with prefill takes w, `with_prefill`, more.

* **Prompt.** v tokens cut into n_1, ..., n_m have sum n_i l_i = (v^2 - sum n_i^2) / 2, so they cost

      p v^2 / 2 + g sum n_i^2 + m e,    g = s - p / 2.

  For causal attention g = 0, and cuts cost nothing. Else v^2 / m <= sum n_i^2, at least v (single
  tokens), and at most q b^2 + r^2, where v = q b + r and b is the most tokens in a batch (pieces as
  large as batches allow).
* **Decodes.** The j-th of D, j = 0 .. D - 1, has v + j tokens before it: in all d (D v + D (D - 1)
  / 2) + D (s + e).

Let a request's attention be at least A- and at most A+ on average, over all the ways to cut and to
mix.

**Theorem 1(a), with attention.** If lambda (E[tokens] min over b of t_b / b + A-) > 1, no policy is
stable. Proof. Until T the server has been busy for at most T seconds, and each request that is done
has taken at least its own tokens min t_b / b + A-. So the requests in the system have at least the
sum of that over all arrivals until T, less T, which grows like T. As it is integrable, no few
requests can make it up: their number grows.

**Theorem 1(b), with attention.** For i.i.d. arrivals and lengths, bounded lengths and a
work-conserving policy that no max batch size keeps from filling batches: if lambda (E[tokens]
(t_bmax + e + w) / b_max + A+) < 1, the queues stay finite. Proof. Let V be the tokens left of all
requests times (t_bmax + e + w) / b_max, plus the most that the attention of what is left of each
may take. A piece of a prompt costs no more than the most with that piece less the most without it.
Batches cut at most one prompt, so a batch serves as many pieces of prompts as end prompts, and one
more: that one's e is in t_bmax + e + w, all others are counted once per prompt. Hence a full batch
takes V down by at least the seconds that it lasts. While V is large all batches are full, and V
changes by lambda (...) - 1 < 0 per second on average. Batch times are bounded as lengths are, so
the rest is as in `penstock.theory.drift`. That one cut is enough is so for all policies of the
seam, where the server takes prompts in order, and for the engines that are known to be
work-conserving.

Between the two nothing is known: a band, that is narrow where g = 0 and decodes cost the same
beside prefill.

Where memory is short, a request may be preempted, and then computes c tokens (and one new) anew in
place of a decode with c before it. It takes c / max(b / t_b) seconds at least, or if it finds them
in a prefix cache p c, so A- counts no more than that for a decode. Tokens of a prompt that are
found in a cache cost nothing themselves.
"""

from typing import NamedTuple

import numpy as np

from penstock.errors import InputError
from penstock.inputs.arrays import Floats, Ints
from penstock.inputs.caching import cached
from penstock.system.batch_time import BatchTime, Composition
from penstock.system.server import Server
from penstock.theory.kv_blocks import STANDARD_ERRORS, drawn, reserves
from penstock.theory.moments import mean_of, mean_product
from penstock.workload.lengths import Empirical, Independent, Lengths

Pair = tuple[float, float]

WITH_ATTENTION = ", with attention"
"""Added to the names of theorems where batches take longer for what is in them."""


def in_name(seconds: float) -> str:
    """Return what the name of a theorem has added to it where attention takes some time."""
    return WITH_ATTENTION if seconds else ""


class Attention(NamedTuple):
    """Seconds of a mean request beside those by token load (A-, A+); whether a sample says so."""

    least: float
    most: float
    sampled: bool = False


NONE = Attention(0.0, 0.0)


@cached(64)
def attention(lengths: Lengths, server: Server, *, reused: bool = False) -> Attention:
    """Return what the attention of a mean request takes, at least and at most.

    ``reused``: prompts may be found in a prefix cache, all but a token. Exact for recorded rows,
    and for Penstock's distributions up to 131,072 tokens; of a sample, four standard errors are
    taken off the least and added to the most. The least has a share of w for each token of a
    prompt, as at most b of them are in a batch; the most has none, see `beside_prefill`.
    """
    model = server.batch_time
    if model.by_load:
        return NONE
    if not isinstance(model, Composition):
        return Attention(0.0, np.inf)
    shared = model.with_prefill * lengths.mean_prompt / server.most_tokens
    if reused:
        shared = 0.0
    if not isinstance(lengths, Empirical):
        exact = _of_distribution(lengths, server, model, reused)
        if exact is not None:
            return exact._replace(least=exact.least + shared)
    least, most = attention_of(*drawn(lengths), server, reused=reused)
    low, high = float(least.mean()), float(most.mean())
    if isinstance(lengths, Empirical):
        return Attention(low + shared, max(low, high))
    low -= STANDARD_ERRORS * float(least.std()) / np.sqrt(least.size)
    high += STANDARD_ERRORS * float(most.std()) / np.sqrt(most.size)
    return Attention(max(low, 0.0) + shared, high, sampled=True)


def attention_of(
    prompt: Ints, output: Ints, server: Server, *, reused: bool = False
) -> tuple[Floats, Floats]:
    """Return the least and the most seconds of each request's attention, shape (rows,) each."""
    # ``prompt`` and ``output``: tokens, shape (rows,). ``reused``: as in `attention`.
    model, v = server.batch_time, prompt.astype(np.float64)
    if not isinstance(model, Composition):
        return np.zeros_like(v), np.zeros_like(v)
    decodes = output.astype(np.float64) - server.outputs_of_prefill
    before = decodes * v + decodes * (decodes - 1) / 2  # tokens before all decodes, summed
    once = decodes * (model.self_attention + model.per_request)
    least, most = prefill_seconds(v, model, server.most_tokens)
    if reused:
        least = np.full_like(v, model.self_attention + model.per_request)
    low, high = _of_decodes(server, model)
    return least + once + low * before, most + once + high * before


def attention_of_a_decode(lengths: Lengths, server: Server) -> float:
    """Return the most mean seconds that the attention of a decode after all outputs takes."""
    model = server.batch_time
    if not isinstance(model, Composition):
        return 0.0
    context = lengths.mean_prompt + lengths.mean_output
    once = model.self_attention + model.per_request
    return once + _of_decodes(server, model)[1] * context


def prefill_at_least(tokens: Floats, server: Server) -> Floats:
    """Return the least seconds, with attention, of prompts' first tokens; shape (requests,)."""
    # A request that finds these tokens in a cache spares them.
    model = server.batch_time
    seconds = tokens / model.by_tokens.capacity(server.most_tokens)
    if isinstance(model, Composition):
        alone, _ = prefill_seconds(np.maximum(tokens, 1.0), model, server.most_tokens)
        spared = np.maximum(alone - model.per_request, 0.0)  # a piece of its own is left
        seconds = seconds + np.where(tokens > 0, spared, 0.0)
        seconds = seconds + model.with_prefill * tokens / server.most_tokens
    return np.asarray(seconds, np.float64)


def beside_prefill(batch_time: BatchTime) -> float:
    """Return the seconds by which prefill may lengthen a batch: w, and e for the prompt it cuts."""
    if not isinstance(batch_time, Composition):
        return 0.0
    return batch_time.per_request + batch_time.with_prefill


def slowed(rate: float, seconds: float) -> float:
    """Return the requests/s where each takes so many seconds more than 1 / rate."""
    if not seconds or rate <= 0:
        return rate
    return 1 / (1 / rate + seconds)


def refuse_composition(server: Server, what: str, instead: str) -> None:
    """Raise where batch times depend on more than the token load, which is all that is known."""
    if not server.batch_time.by_load:
        raise InputError(
            f"batch times depend on what is in a batch ({type(server.batch_time).__name__}), so "
            f"{what} is not known; {instead}"
        )


def prefill_seconds(prompt: Floats, model: Composition, budget: int) -> tuple[Floats, Floats]:
    """Return the least and most seconds of prompts beside t_b, however cut; shape (n,) each."""
    # Where g > 0 many small pieces cost least, but each costs e: g v^2 / m + m e is least for m = v
    # sqrt(g / e). The most counts e once; `beside_prefill` has further pieces, and w.
    per_piece = model.per_request
    pair = model.cross_attention / 2
    excess = model.self_attention - pair
    fewest = np.ceil(prompt / budget)
    rest = prompt - (fewest - 1) * budget
    largest = (fewest - 1) * float(budget) ** 2 + rest**2  # sum n_i^2 of the fewest pieces
    whole = pair * prompt**2
    if excess <= 0:
        return whole + excess * largest + per_piece * fewest, whole + excess * prompt + per_piece
    pieces = prompt
    if per_piece:
        pieces = np.clip(prompt * np.sqrt(excess / per_piece), fewest, prompt)
    cheapest = whole + excess * prompt**2 / pieces + per_piece * pieces
    return cheapest, whole + excess * largest + per_piece


def _of_decodes(server: Server, model: Composition) -> Pair:
    """Return the least and the most seconds for each token before a decode."""
    low, high = min(model.of_decodes), max(model.of_decodes)
    if server.memory is not None and not reserves(server):
        low = min(low, 1 / model.linear.capacity(server.most_tokens))
        if server.caches_prefixes:
            low = min(low, model.cross_attention)
    return low, high


def _of_distribution(
    lengths: Lengths, server: Server, model: Composition, reused: bool
) -> Attention | None:
    """Return the same from moments, or None where they are not known."""
    if not isinstance(lengths, Independent):
        return None
    last, budget = server.outputs_of_prefill, server.most_tokens
    cheapest = mean_of(lambda v: prefill_seconds(v, model, budget)[0], lengths.prompt)
    dearest = mean_of(lambda v: prefill_seconds(v, model, budget)[1], lengths.prompt)
    pairs = mean_of(lambda out: (out - last) * (out - last - 1) / 2, lengths.output)
    if cheapest is None or dearest is None or pairs is None:
        return None
    once = model.self_attention + model.per_request
    decodes = (lengths.mean_output - last) * once
    products = mean_product(lengths)
    fewest, most = (
        product - last * lengths.mean_prompt + two
        for product, two in zip(products, pairs, strict=True)
    )
    low, high = _of_decodes(server, model)
    prefill = cheapest[0]
    if reused:
        prefill = once
    least = prefill + decodes + low * max(fewest, 0.0)
    return Attention(least, max(least, dearest[1] + decodes + high * most))
