"""Policies and token budgets worth simulating on a server, and those that theory rules out."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np

from penstock.checking.variants import with_limits
from penstock.errors import InputError
from penstock.inputs.arrays import Ints
from penstock.show.answers import Meaning
from penstock.system.batch_time import MOST_TOKENS, BatchTime
from penstock.system.policies import resolve
from penstock.system.scheduler import Scheduler
from penstock.system.server import Server
from penstock.theory.certificate import Certificate
from penstock.theory.certify import certify
from penstock.theory.region import sarathi_region
from penstock.workload.workload import Workload

FROM_SIMPLE_TO_SUBTLE = (
    *("sarathi", "orca", "pool-controlled", "priced", "maxweight", "maxweight-tokens"),
)
"""The policies that are tried beside the current one, in the order in which a tie is settled."""

SAFE = 0.9
"""Share of its stable rate at which a server is still said to carry a load safely."""

_TIMES = (0.25, 0.5, 1, 2, 4)  # the current token budget
_SMALLEST = (
    64  # tokens: down to it budgets are halved where short gaps between tokens are asked for
)
_FLUID_ERROR = 0.03  # of the fluid argument for Sarathi-Serve, and then some
_SAME = 0.01  # bounds that are so close are equal

_STARVES = "it starves decodes where the max batch size counts running requests, as in engines"


class Pruned(NamedTuple):
    """What was ruled out without simulation, and by what."""

    policy: Annotated[str, Meaning("Its name.")]
    token_budget: Annotated[int, Meaning("Tokens of a batch.")]
    why: Annotated[str, Meaning("What rules it out.")]


class Candidates(NamedTuple):
    """What is worth simulating (the current server, then simple to subtle), and what is not.

    ``bound``: requests/s that no policy exceeds at any of the token budgets looked at.
    """

    servers: tuple[Server, ...]
    pruned: tuple[Pruned, ...]
    bound: float


class _Budget(NamedTuple):
    """What theory says about a token budget, in requests/s.

    ``carried``: what Sarathi-Serve carries by Theorem 1(b) or, for long prompts under a max batch
    size, by a fluid argument; None: not known. ``proved``: the theorem says that no policy could
    carry more.
    """

    certificate: Certificate
    carried: float | None
    proved: bool

    @property
    def bound(self) -> float:
        return self.certificate.max_rate


def candidates(
    workload: Workload,
    server: Server,
    policies: Sequence[str | Scheduler] = FROM_SIMPLE_TO_SUBTLE,
    *,
    most_stable: bool = False,
    short_gaps: bool = False,
) -> Candidates:
    """Return the servers worth simulating: other policies and token budgets, all else as it is."""
    # Budgets from a quarter of the current one to four times it, near those that waste nothing, and
    # the one at which Sarathi-Serve carries most. Ruled out is what cannot carry the load, or as
    # much as is known to be carried, by `penstock.theory.limits` and, for Sarathi-Serve under a max
    # batch size, its own region (`sarathi_region`). ``policies``: simple to subtle.
    # ``most_stable``: only the most that can be carried matters. ``short_gaps``: so does the
    # batch's time, so smaller budgets are tried.
    budgets = _budgets(workload, server, short_gaps)
    carried = max((b.carried for b in budgets.values() if b.carried), default=0.0)
    wanted = carried if most_stable else min(workload.rate / SAFE, carried)
    kept, pruned = [server], []
    nearest_first = sorted(budgets, key=lambda budget: abs(math.log(budget / server.token_budget)))
    for policy, budget in itertools.product(_policies(server, policies), nearest_first):
        if policy is server.policy and budget == server.token_budget:
            continue
        only_policy = budget == server.token_budget  # what that alone would bring is worth knowing
        least = min(wanted, workload.rate) if only_policy else wanted
        bound, impossible = budgets[budget].bound, ""
        try:
            slots, program = server.max_batch_size, policy.program
            if slots and program and program.capped:  # or the engine does not start
                slots = min(slots, budget)
            tried = with_limits(server, policy, token_budget=budget, max_batch_size=slots)
            if policy is server.policy:  # whose drafts may let it carry more
                bound = certify(workload, tried).max_rate
        except InputError as error:  # an engine may not go with such limits
            impossible = str(error)
        why = _ruled_out(policy, budget, budgets, server, bound, least) or impossible
        if not impossible and tried.scope_warning:
            why = _STARVES
        if why:
            pruned.append(Pruned(policy.name, budget, why))
        else:
            kept.append(tried)
    return Candidates(tuple(kept), tuple(pruned), max(b.bound for b in budgets.values()))


def _policies(server: Server, names: Sequence[str | Scheduler]) -> list[Scheduler]:
    """Return the current policy, then the others in the order given."""
    policies = {server.policy.name: server.policy}
    for policy in map(resolve, names):
        policies.setdefault(policy.name, policy)
    return list(policies.values())


def _budgets(workload: Workload, server: Server, short_gaps: bool) -> dict[int, _Budget]:
    """Return the token budgets looked at, and what theory says about each."""
    current = server.token_budget
    linear = server.batch_time.by_tokens
    most = _most_tokens(linear, min(int(max(_TIMES) * current), MOST_TOKENS))
    efficient = _efficient_loads(linear, most)
    wanted = [min(max(round(times * current), 1), most) for times in _TIMES]
    if short_gaps:
        wanted += [half for n in range(1, 31) if (half := min(wanted) >> n) >= _SMALLEST]
    loads = [current, *(_near(load, efficient) for load in wanted if load != current)]
    if server.max_batch_size is not None and efficient.size:
        fluid = [_sarathi(workload, server, int(load)) or 0.0 for load in efficient]
        if max(fluid) > 0:
            loads.append(int(efficient[int(np.argmax(fluid))]))
    return {budget: _budget(workload, server, budget) for budget in sorted(set(loads))}


def _most_tokens(batch_time: BatchTime, most: int) -> int:
    """Return the largest batch up to so many tokens with a known time: measured tables end."""
    known, unknown = 1, most + 1
    while unknown - known > 1:
        middle = most if unknown > most else (known + unknown) // 2
        try:
            batch_time(middle)
        except InputError:
            unknown = middle
        else:
            known = middle
    return known


def _efficient_loads(batch_time: BatchTime, most: int) -> Ints:
    """Return the token loads at which a token more or less lowers b / t_b.

    Multiples of b0 for steps.
    """
    loads = np.arange(1, _most_tokens(batch_time, most + 1) + 1)
    rates = np.r_[0.0, loads / batch_time(loads), 0.0]
    peaks = (rates[1:-1] > rates[:-2]) & (rates[1:-1] > rates[2:]) & (loads <= most)
    found: Ints = loads[peaks]
    return found


def _near(load: int, efficient: Ints) -> int:
    """Return the efficient load within half an octave that is nearest, else the load itself."""
    distance = np.abs(np.log2(efficient / load))
    if distance.min(initial=np.inf) > 0.5:
        return load
    return int(efficient[np.argmin(distance)])


def _sarathi(workload: Workload, server: Server, budget: int) -> float | None:
    """Return what Sarathi-Serve carries by a fluid argument.

    It is known for long prompts and under a max batch size; None elsewhere.
    """
    slots = server.max_batch_size
    prompt = workload.mean_prompt
    if slots is None or slots >= budget or server.memory is not None or prompt < budget - slots + 1:
        return None
    if not server.batch_time.by_load:
        return None
    region = sarathi_region(dataclasses.replace(server.with_policy("sarathi"), token_budget=budget))
    return region.scale((prompt, server.tokens_per_request(prompt, workload.mean_output) - prompt))


def _budget(workload: Workload, server: Server, budget: int) -> _Budget:
    tried = dataclasses.replace(server.with_policy("sarathi"), token_budget=budget)
    certificate = certify(workload, tried)
    certified = certificate.certified_rate
    if certified is not None and certified >= certificate.max_rate * (1 - _SAME):
        return _Budget(certificate, certified, True)
    fluid = _sarathi(workload, server, budget)
    return _Budget(certificate, None if fluid is None else min(fluid, certificate.max_rate), False)


def _ruled_out(
    policy: Scheduler,
    budget: int,
    budgets: dict[int, _Budget],
    server: Server,
    bound: float,
    wanted: float,
) -> str | None:
    """Say by what a policy at a token budget, and under a bound, is ruled out, or None."""
    here = budgets[budget]
    if bound < wanted * (1 - _SAME):
        return (
            f"no policy carries more than {bound:,.4g} requests/s at this token budget; "
            f"{wanted:,.4g} are wanted"
        )
    if (
        policy.batching.phases == "decode-first"
        and here.carried is not None
        and here.carried < wanted * (1 - _FLUID_ERROR)
    ):
        carried = f"{here.carried:,.4g} requests/s by a fluid argument"
        return f"its region at this token budget ends at {carried}; {wanted:,.4g} are wanted"
    if policy is server.policy:
        return None
    if policy.batching.own_budget and here.proved:
        return "Theorem 1(b): sarathi carries all that any policy can"
    current, largest = budgets[server.token_budget], max(budgets)
    if policy.batching.own_budget and budget != server.token_budget:
        if budget < largest:
            return (
                "it chooses the budget of each batch itself, so only the current and the largest "
                "are tried"
            )
        if here.bound < current.bound * (1 + _SAME):
            return f"a larger token budget lets no policy carry {_SAME:.0%} more"
    best = max(budgets, key=lambda b: budgets[b].carried or budgets[b].bound)
    if policy.batching.phases == "prefill-first" and budget not in (server.token_budget, best):
        return "tried at the current token budget and at the one that carries most"
    return None
