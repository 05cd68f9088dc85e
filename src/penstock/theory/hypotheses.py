"""Hypotheses of the stability theorems, each with what was looked at."""

import dataclasses

from penstock.system.policies import POLICIES, Policy
from penstock.system.server import Server
from penstock.theory.bounds import most_kv_tokens
from penstock.theory.drift import Drift
from penstock.theory.load import Load
from penstock.workload.pairs import Independent, Lengths
from penstock.workload.workload import Workload

CRITICAL_BAND = 1e-9
"""Rates this close to a limit are called critical: the theorem says nothing there."""


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """A condition of a theorem.

    Attributes
    ----------
    name
        What must hold.
    held
        Whether it does.
    why
        What was looked at, and what to change where it fails.
    checked
        False where it holds on the user's word: a claim about a policy, or about a class of the user's own.
    """

    name: str
    held: bool
    why: str
    checked: bool = True


def shared(workload: Workload, server: Server, kv_tokens: int | None) -> tuple[Hypothesis, ...]:
    """Return the hypotheses of every sufficient condition."""
    found = (independent_arrivals(workload), independent_lengths(workload), bounded_lengths(workload))
    return found if kv_tokens is None else (*found, kv_memory(workload, server, kv_tokens))


def independent_arrivals(workload: Workload) -> Hypothesis:
    """Arrivals are renewals: the gaps between them are independent and identically distributed."""
    process = workload.arrivals
    held = process is not None and process.iid
    name = workload.describe().split(": ")[-1]
    why = f"{name} are renewals" if held else f"{name} are not i.i.d.; try arrivals 'poisson'"
    return Hypothesis("i.i.d. arrivals", held, why, checked=not held or _of_penstock(process))


def independent_lengths(workload: Workload) -> Hypothesis:
    """Requests draw their lengths independently, from one distribution."""
    held = workload.lengths.iid
    why = "drawn anew for each request" if held else "recorded in order; resample them with arrivals 'poisson'"
    return Hypothesis("i.i.d. lengths", held, why, checked=not held or _known_lengths(workload.lengths))


def bounded_lengths(workload: Workload) -> Hypothesis:
    """No prompt and no output is longer than a limit."""
    lengths = workload.lengths
    if workload.bounded:
        why = f"prompts up to {lengths.max_prompt:,} tokens, outputs up to {lengths.max_output:,}"
    else:
        what = "prompts" if lengths.max_prompt is None else "outputs"
        why = f"{what} have no upper limit; give their distribution a `max`"
    checked = not workload.bounded or _known_lengths(lengths)
    return Hypothesis("bounded lengths", workload.bounded, why, checked)


def kv_memory(workload: Workload, server: Server, kv_tokens: int) -> Hypothesis:
    """All requests that may run at once fit into the KV cache, however long they are."""
    largest, slots = most_kv_tokens(workload.lengths, server), server.max_batch_size
    held = False
    if slots is None or server.scope == "batch":
        why = "any number of requests may hold memory; set a max batch size in scope 'running'"
    elif largest is None:
        why = "lengths have no upper limit, so no cache is sure to hold them; give their distributions a `max`"
    else:
        held = slots * largest <= kv_tokens
        why = f"{slots:,} requests of up to {largest:,} tokens need {slots * largest:,}, the cache holds {kv_tokens:,}"
        why += "" if held else f"; a max batch size of {kv_tokens // largest:,} is sure to fit"
    return Hypothesis("KV memory never binds", held, why)


def work_conserving(server: Server) -> Hypothesis:
    """The policy fills the token budget whenever what waits allows it."""
    policy = server.policy
    if policy.work_conserving:
        why = f"{policy.name} fills the token budget whenever what waits allows it"
    elif policy.work_conserving is None:
        why = f"nothing is known of {policy.name}; if it is, say so with @policy(work_conserving=True)"
    else:
        why = f"{policy.name} leaves room in batches while requests wait"
    checked = not policy.work_conserving or _proved(policy)
    if not checked:
        why += ", as its author claims; `audit` can refute it"
    return Hypothesis("work-conserving policy", bool(policy.work_conserving), why, checked)


def batch_size(server: Server) -> Hypothesis:
    """The max batch size cannot keep a batch from filling."""
    limit = server.max_batch_size
    held = limit is None or limit >= server.token_budget
    if limit is None:
        why = "there is none"
    elif held:
        why = f"{limit:,} is at least the token budget of {server.token_budget:,}"
    else:
        why = f"{limit:,} is below the token budget of {server.token_budget:,}, so it can keep batches from filling"
    return Hypothesis("max batch size never binds", held, why)


def full_batches_carry_it(server: Server, asked: Load) -> Hypothesis:
    """Batches filled to the token budget carry the load, although batches that stop short might carry more."""
    held = asked.offered_tokens_per_s < asked.full_batch_tokens_per_s * (1 - CRITICAL_BAND)
    why = (
        f"{asked.offered_tokens_per_s:,.0f} tokens/s arrive, batches of {server.token_budget:,} tokens carry "
        f"{asked.full_batch_tokens_per_s:,.0f}"
    )
    if not held and asked.full_batch_tokens_per_s < asked.capacity_tokens_per_s * (1 - CRITICAL_BAND):
        why += f" but batches of {asked.best_token_load:,} would carry {asked.capacity_tokens_per_s:,.0f}: lower it"
    return Hypothesis("full batches carry the load", held, why)


def every_batch_drains(asked: Load, found: Drift) -> Hypothesis:
    """Every batch that a backlog leads to takes more weighted tokens than arrive while it lasts."""
    rate = found.certified_rate
    held = rate is not None and asked.arrival_rate < rate * (1 - CRITICAL_BAND)
    why = found.why if rate is None else f"{found.why}, and {asked.arrival_rate:.4g} arrive"
    return Hypothesis("every batch under a backlog drains", held, why)


def _proved(policy: Policy) -> bool:
    """Whether the policy is one of the paper, which is work-conserving by its definition."""
    return any(policy.function is known.function and known.work_conserving for known in POLICIES.values())


def _known_lengths(lengths: Lengths) -> bool:
    parts = (lengths, lengths.prompt, lengths.output) if isinstance(lengths, Independent) else (lengths,)
    return all(_of_penstock(part) for part in parts)


def _of_penstock(thing: object) -> bool:
    """Whether what it says of itself is Penstock's own statement."""
    return type(thing).__module__.partition(".")[0] == "penstock"
