"""Capacities of policies: the requests/s up to which each keeps its queues finite, for requests of
one length.

Work-conserving policies share the capacity of Theorem 1. FasterTransformer and vanilla vLLM never
mix the phases in a batch, so their batches run partly empty, and each has a capacity of its own.
All of them without a max batch size, with prompts cut anywhere, and in the server's token
convention: a request is decoded ``output`` times (``paper``) or ``output - 1`` times (``engine``).
"""

import math
from typing import NamedTuple

import numpy as np
from scipy import stats
from scipy.optimize import brentq

from penstock import checks
from penstock.errors import InputError
from penstock.inputs.arrays import Floats, Ints
from penstock.system.server import Server
from penstock.theory.attention import refuse_composition
from penstock.workload.lengths import LONGEST

_RARE = 1e-12
"""Numbers of arrivals that are less likely than this are left out."""

_STATES = 1_200
"""Most states of the prefill queue, where deep queues force a choice; the matrix has its square."""


def policy_capacity(server: Server, *, prompt: float, output: float) -> float:
    """Return the capacity of the server's own policy, requests/s.

    Parameters
    ----------
    server
        One of the policies of the paper, or one that is known to be work-conserving, without a max
        batch size.
    prompt, output
        Tokens of every request.

    Raises
    ------
    InputError
        If no capacity is known for the policy, there is a max batch size, or a length cannot be
        used.
    """
    policy = server.policy
    if policy.phases == "decode-alone":
        return fastertransformer_capacity(server, prompt=prompt, output=output)
    if policy.phases == "prefill-alone":
        return vanilla_vllm_capacity(server, prompt=prompt, output=output)
    if server.work_conserving:
        return work_conserving_capacity(server, prompt=prompt, output=output)
    raise InputError(
        f"no capacity is known for the policy {policy.name!r}, which is not known to be "
        "work-conserving; simulate it, "
        "or if it is, say so with @policy(work_conserving=True)"
    )


def work_conserving_capacity(server: Server, *, prompt: float, output: float) -> float:
    """Return the capacity of every work-conserving policy, requests/s (Theorem 1(b)).

    Under a backlog each batch is full, so b_max / t_bmax tokens are served per second, and a
    request has prompt + output (``paper``) or prompt + output - 1 (``engine``) of them. Means
    suffice.

    Parameters
    ----------
    server
        Batch times, token budget and convention, without a max batch size.
    prompt, output
        Mean tokens of a request.
    """
    work = _work(server, prompt, output)
    return work.budget / work.full / (work.prompt + work.decodes)


def fastertransformer_capacity(server: Server, *, prompt: float, output: float) -> float:
    """Return the capacity of FasterTransformer, requests/s.

    Under a backlog of prompts it repeats a cycle: one full prefill batch, t_bmax seconds, then the
    n prompts completed in it decode together, t_n seconds for each of v_d iterations, while nothing
    else is served. Prompts are cut, so n is b_max / v_p on average, and only ever its floor or its
    ceiling. Hence, with t_0 = 0,

        capacity = E[n] / (t_bmax + v_d E[t_n]).

    Parameters
    ----------
    server
        Batch times, token budget and convention, without a max batch size.
    prompt, output
        Tokens of every request. (Outputs that vary leave slower: a cycle lasts until the longest of
        n is done.)
    """
    work = _work(server, prompt, output)
    completed = work.budget / work.prompt
    fewer = math.floor(completed)
    times = server.batch_time([fewer, fewer + 1])
    seconds = float(times[0] + (completed - fewer) * (times[1] - times[0])) if work.decodes else 0.0
    return completed / (work.full + work.decodes * seconds)


def vanilla_vllm_capacity(server: Server, *, prompt: float, output: float) -> float:
    """Return the capacity of vanilla vLLM under Poisson arrivals, requests/s.

    With a large pool of decoding requests, time falls into cycles: a decode batch of b_max
    requests, t_bmax seconds, of which b_max / v_d finish on average, then a busy period of prefill
    that serves the prompts that came in meanwhile and all that come in during it. At the capacity
    as many requests arrive in a cycle as leave,

        rate * (t_bmax + E[busy period]) = b_max / v_d.

    The busy period ends with the first batch during which nothing arrives to an empty queue; its
    expected length comes from the Markov chain of waiting prompt tokens (see `_busy_period`). Short
    batches in it are what is lost.

    Parameters
    ----------
    server
        Batch times, token budget and convention, without a max batch size.
    prompt, output
        Tokens of every request.
    """
    work = _work(server, prompt, output)
    if not work.decodes:
        return work.budget / work.full / work.prompt
    fastest = server.batch_time.capacity(work.budget) / (work.prompt + work.decodes)
    fastest = min(fastest, work.budget / work.full / work.prompt * (1 - 1e-6))

    def gain(rate: float) -> float:
        return rate * (work.full + _busy_period(server, work, rate)) - work.budget / work.decodes

    if gain(fastest) <= 0:  # nothing is lost but by rounding
        return fastest
    return float(brentq(gain, fastest * 1e-9, fastest, xtol=fastest * 1e-6))


class _Work(NamedTuple):
    """A request, and a full batch: prompt tokens and decode iterations; tokens and seconds."""

    prompt: float
    decodes: float
    budget: int
    full: float


def _work(server: Server, prompt: float, output: float) -> _Work:
    """Check the lengths, and that no max batch size binds."""
    if server.max_batch_size is not None:
        raise InputError(
            f"the max batch size is {server.max_batch_size:,}, but these capacities are known "
            "without one only; "
            "leave it out, or ask `region`"
        )
    if server.memory is not None:
        raise InputError(
            f"the KV memory has {server.usable_blocks:,} blocks, but these capacities are known "
            "without a limit only; "
            "leave it out, or ask `certify`"
        )
    refuse_composition(server, "what a policy carries", "ask `certify`, or `max_rate`, which simulates")
    least = "a request has at least one token"
    prompt = checks.number("the prompt", prompt, 1, LONGEST, "tokens", least)
    output = checks.number("the output", output, 1, LONGEST, "tokens", least)
    decodes = server.tokens_per_request(prompt, output) - prompt
    return _Work(prompt, decodes, server.token_budget, float(server.batch_time(server.token_budget)))


def _busy_period(server: Server, work: _Work, rate: float) -> float:
    """Return the expected seconds of prefill after a decode batch of t_bmax seconds.

    With W prompt tokens waiting a batch takes min(W, b_max) of them and t seconds, Poisson(rate t)
    prompts arrive, and it is over when W = 0. W counts whole prompts, but for what full batches cut
    off: after m of them in a row it is r_m + n v_p with r_m = -m b_max mod v_p. The states are (m,
    n); a batch that is not full leads back to m = 0.
    """
    prompt, budget, full = work.prompt, work.budget, work.full
    remainder, following, most = _states(work, rate)
    prompts = np.arange(most)
    waiting = np.round(remainder[:, None] + prompt * prompts, 6).ravel()
    seconds = server.batch_time(np.minimum(waiting, budget))
    chance = stats.poisson.pmf(prompts, rate * seconds[:, None])
    chance[waiting == 0] = 0.0  # over
    cut = waiting > budget
    m = np.where(cut, np.repeat(following, most), 0)
    position = np.round(np.where(cut, np.maximum(waiting - budget - remainder[m], 0) / prompt, 0.0), 6)
    near = np.floor(position).astype(np.int64)
    states = np.arange(waiting.size)
    moves = np.zeros(waiting.size**2)
    # After the last m that is told apart W lies between two states, which share it. Far out the
    # solution is linear,
    # t_bmax seconds for every b_max - rate v_p t_bmax tokens, and is continued so.
    per_prompt = full * prompt / (budget - rate * prompt * full)
    for start, weight in ((near, 1 - (position - near)), (near + 1, position - near)):
        share = chance * weight[:, None]
        beyond = np.maximum(start[:, None] + prompts - (most - 1), 0)
        to = (m * most + start)[:, None] + prompts - beyond
        moves += np.bincount((states[:, None] * waiting.size + to).ravel(), share.ravel(), moves.size)
        seconds = seconds + (share * beyond).sum(axis=1) * per_prompt
    left = np.linalg.solve(np.eye(waiting.size) - moves.reshape(waiting.size, -1), seconds)
    return float(stats.poisson.pmf(prompts, rate * full) @ left[:most])


def _states(work: _Work, rate: float) -> tuple[Floats, Ints, int]:
    """Return the remainders r_m that are told apart, the m that follows each, and how many numbers
    of prompts.
    """
    most = int(stats.poisson.isf(_RARE, rate * work.full)) + 2
    if most * work.prompt <= work.budget:
        rounds = 1  # a full batch is next to impossible
    else:
        most += math.ceil(work.budget / work.prompt) + 40
        rounds = max(min(math.ceil(work.prompt / work.budget) + 8, _STATES // most), 1)
    if most > _STATES:
        raise InputError(
            f"about {most:,} prompts of {work.prompt:g} tokens may arrive during a batch of "
            f"{work.budget:,}, more than "
            f"the {_STATES:,} that are told apart; simulate instead"
        )
    remainder: Floats = np.round(np.mod(-float(work.budget) * np.arange(rounds + 1), work.prompt), 6)
    again = np.flatnonzero(remainder[1:] == 0)
    if again.size or rounds == 1:
        rounds = int(again[0]) + 1 if again.size else 1
        nearest = 0
    else:  # some m > 0, as m = 0 with n = 0 is the end
        nearest = int(np.argmin(np.abs(remainder[1:rounds] - remainder[rounds]))) + 1
    return remainder[:rounds], np.r_[1:rounds, nearest], most
