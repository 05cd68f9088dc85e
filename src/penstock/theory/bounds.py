"""Necessary conditions: request rates above which no policy is stable, whichever limit sets them.

Three limits, each with a rate that follows from conservation of what it limits.

* **Token budget** (Theorem 1(a)): no batch carries more than max over b of b / t_b tokens per second.
* **Max batch size** (paper, Section 6, Condition stable_condition, corrected): see `penstock.theory.region`.
* **KV memory** (after Nie, Si, Zhou): with M tokens of KV cache, t the least batch time and g the KV tokens that a
  request holds, summed over the iterations that serve it, rate * E[g] * t <= M (Little's law for KV tokens). Each
  forward token leaves one KV entry, which is held from its own iteration on. The least g of a request is counted:
  its prompt in ceil(prompt / b_max) iterations, the short one first, then prompt + j tokens in the j-th decode
  iteration (output of them in convention ``paper``, output - 1 in ``engine``). Iterations that leave it out while it
  holds memory, and prompts processed anew after an eviction, only add to it; requests share no KV entries.
"""

import dataclasses
from typing import Literal

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError
from penstock.system.server import Server
from penstock.theory.load import Load
from penstock.theory.region import region
from penstock.workload.pairs import Empirical, Independent, Lengths
from penstock.workload.workload import Workload

Limit = Literal["token budget", "max batch size", "KV memory"]

MOST_KV_TOKENS = 2**48
"""Largest KV cache, tokens."""


@dataclasses.dataclass(frozen=True)
class Bound:
    """A request rate that no policy can exceed.

    Attributes
    ----------
    name
        The limit that sets it: ``token budget``, ``max batch size`` or ``KV memory``.
    max_rate
        Requests/s above which the backlog grows for ever.
    theorem
        Where it is proved.
    why
        The numbers that it comes from.
    """

    name: Limit
    max_rate: float
    theorem: str
    why: str


def bounds(workload: Workload, server: Server, asked: Load, kv_tokens: int | None = None) -> tuple[Bound, ...]:
    """Return what each limit can carry, the token budget first.

    Parameters
    ----------
    workload, server
        What arrives and what serves.
    asked
        Load of the workload on the server.
    kv_tokens
        Tokens that the KV cache holds; None: it is not looked at.

    Raises
    ------
    InputError
        If ``kv_tokens`` is no whole number, or less than one request needs.
    """
    found = [
        Bound(
            "token budget",
            asked.max_rate,
            "Theorem 1(a)",
            f"the best batch ({asked.best_token_load:,} tokens) carries {asked.capacity_tokens_per_s:,.0f} tokens/s, "
            f"and a request has {asked.tokens_per_request:,.6g} of them",
        )
    ]
    slots = server.max_batch_size
    if slots is not None and slots < server.token_budget:
        found.append(
            Bound(
                "max batch size",
                region(server, prompt=workload.lengths).max_rate,
                "Section 6 (stability region under a max batch size)",
                f"the best mix of batches of at most {slots:,} requests and {server.token_budget:,} tokens",
            )
        )
    if kv_tokens is not None:
        found.append(_kv_memory(workload.lengths, server, kv_tokens))
    return tuple(found)


def most_kv_tokens(lengths: Lengths, server: Server) -> int | None:
    """Return the KV tokens that the largest request holds in its last iteration; None where there is no limit."""
    last = 1 if server.convention == "engine" else 0
    if isinstance(lengths, Empirical):
        return int((lengths.prompt_tokens + lengths.output_tokens).max()) - last
    if lengths.max_prompt is None or lengths.max_output is None:
        return None
    return lengths.max_prompt + lengths.max_output - last


def _kv_memory(lengths: Lengths, server: Server, kv_tokens: int) -> Bound:
    kv_tokens = checks.whole("kv_tokens", kv_tokens, 1, MOST_KV_TOKENS, "tokens", "give what the KV cache holds")
    largest = most_kv_tokens(lengths, server)
    drawn = isinstance(lengths, Empirical) or (isinstance(lengths, Independent) and lengths.correlation > -1)
    if drawn and largest is not None and largest > kv_tokens:  # else the longest prompt and output may never meet
        raise InputError(
            f"a request grows to {largest:,} tokens (prompt and output), but kv_tokens is {kv_tokens:,}, so it never "
            "fits and blocks the server; raise kv_tokens, or cut the lengths with their `max`"
        )
    held = kv_token_iterations(lengths, server)
    shortest = float(server.batch_time.table(server.token_budget)[1:].min())
    return Bound(
        "KV memory",
        kv_tokens / (shortest * held),
        "KV memory (Nie, Si, Zhou; Little's law)",
        f"{kv_tokens:,} tokens of KV cache, of which a request holds at least {held:,.6g} summed over its iterations, "
        f"each of at least {shortest:.4g} s",
    )


def kv_token_iterations(lengths: Lengths, server: Server) -> float:
    """Return E[g], or a lower bound of it: KV tokens held by a request, summed over the iterations that serve it.

    With D decode iterations, g = sum over i >= 0 of (prompt - i b_max)+, plus D prompt + D (D + 1) / 2. The mean is
    exact for recorded rows. Else g is convex in each length, so that means of the lengths give a lower bound
    (Jensen); under a negative or unknown dependence the shortest prompt, or output, stands in for one factor of
    D * prompt.

    Parameters
    ----------
    lengths
        Prompts and outputs.
    server
        Token budget and convention.
    """
    last = 1 if server.convention == "engine" else 0
    if isinstance(lengths, Empirical):
        prompt = lengths.prompt_tokens.astype(np.float64)
        decodes = lengths.output_tokens.astype(np.float64) - last
        product = prompt * decodes
    else:
        prompt, decodes = np.array([lengths.mean_prompt]), np.array([lengths.mean_output - last])
        product = prompt * decodes
        if not isinstance(lengths, Independent) or lengths.correlation < 0:
            product = np.maximum(lengths.min_prompt * decodes, prompt * (lengths.min_output - last))
    held = _prefill_held(prompt, server.token_budget) + product + decodes * (decodes + 1) / 2
    return float(held.mean())


def _prefill_held(prompt: npt.NDArray[np.float64], budget: int) -> npt.NDArray[np.float64]:
    """Return the sum over i >= 0 of (prompt - i budget)+."""
    iterations: npt.NDArray[np.float64] = np.ceil(prompt / budget)
    return iterations * prompt - budget * iterations * (iterations - 1) / 2
