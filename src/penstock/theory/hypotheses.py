"""Hypotheses of the stability theorems, each with what was looked at: of a server and what arrives
there, which is each replica of any pool.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from penstock.system.server import Server
from penstock.theory.kv_blocks import SAMPLE, Longest, Served, at_once, largest
from penstock.theory.load import Load
from penstock.theory.unforeseen import with_wasted
from penstock.workload.lengths import Independent, Lengths
from penstock.workload.workload import Workload

if TYPE_CHECKING:
    from penstock.theory.drift import Drift

Verdict = Literal["stable", "unstable", "critical", "unknown"]

CRITICAL_BAND = 1e-9
"""Rates this close to a limit are called critical: the theorem says nothing there."""

BOUNDED = "bounded lengths"
AMPLE = "KV memory never binds"
FILLS = "work-conserving policy"
SLOTS = "max batch size never binds"
CARRIES = "full batches carry the load"
DRAINS = "every batch under a backlog drains"

OF_FULL_BATCHES = (FILLS, SLOTS, CARRIES)


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """A condition of a theorem."""

    name: str
    held: bool
    why: str  # what was looked at, and what to change where it fails
    checked: bool = True  # False: on the user's word: of a policy, or of a class of the user's own

    @property
    def state(self) -> str:
        """``fails``, ``held``, or ``on trust``: in one word."""
        if not self.held:
            return "fails"
        return "held" if self.checked else "on trust"


def if_trusted(hypotheses: tuple[Hypothesis, ...]) -> str:
    """Say what a conclusion from these takes on trust, if it takes anything so."""
    trusted = [hypothesis.name for hypothesis in hypotheses if not hypothesis.checked]
    return f", if what is taken on trust holds: {', '.join(trusted)}" if trusted else ""


def of_requests(workload: Workload) -> tuple[Hypothesis, ...]:
    """Return what every sufficient condition asks of requests."""
    return independent_arrivals(workload), independent_lengths(workload), bounded_lengths(workload)


def of_sample(load: Load) -> tuple[Hypothesis, ...]:
    """Return what of a load is as a sample of the lengths says."""
    return (*dropped(load.work), *cut(load.work), *sampled_attention(load))


def of_replica(
    load: Load, fills: Hypothesis | None = None, memory: Hypothesis | None = None
) -> tuple[Hypothesis, ...]:
    """Return what Theorem 1(b) asks of a server, but for what of it is known otherwise."""
    server = load.server
    if memory is None and server.memory is not None:
        memory = ample_memory(load)
    return (
        *(() if memory is None else (memory,)),
        *of_sample(load),
        fills or work_conserving(server),
        batch_size(server),
        full_batches_carry_it(load),
    )


class Proof(NamedTuple):
    """What is proved of a pool."""

    hypotheses: Mapping[str, Hypothesis]  # asked of it, by their names for single pools
    certified: float | None  # factor on all rates below which all of them hold; None: at none

    @property
    def by_drift(self) -> bool:
        """Whether every batch under a backlog is looked at, as some may have room."""
        return DRAINS in self.hypotheses


def others_hold(hypotheses: Mapping[str, Hypothesis]) -> bool:
    """Return whether all hold but those on full batches, which the drift can do without."""
    return all(h.held for name, h in hypotheses.items() if name not in OF_FULL_BATCHES)


def proof_of(load: Load, asked: Iterable[Hypothesis], *, sound: bool, by_arrival: bool) -> Proof:
    """Prove that a replica drains: by its full batches, or by the drift of every batch.

    ``sound``: what is asked of arrivals holds; ``by_arrival``: requests are served in that order.
    """
    hypotheses = {hypothesis.name: hypothesis for hypothesis in asked}
    if not (sound and others_hold(hypotheses)):
        return Proof(hypotheses, None)
    if hypotheses[FILLS].held and hypotheses[SLOTS].held:
        return Proof(hypotheses, load.full_batch_rate / load.arrival_rate or None)
    if not by_arrival:
        return Proof(hypotheses, None)
    from penstock.theory.drift import drift  # most servers fill their batches

    server = load.server
    if server.memory is not None:  # it holds all that may run, so batches are as without a limit
        server = dataclasses.replace(server, memory=None, gpu=None)
    backlog = drift(load.work.lengths, server)
    drains = every_batch_drains(load, backlog)
    if drains.held:
        hypotheses = {name: h for name, h in hypotheses.items() if name not in OF_FULL_BATCHES}
    hypotheses[DRAINS] = drains
    rate = backlog.certified_rate
    return Proof(hypotheses, None if rate is None else rate / load.arrival_rate)


def ample_memory(load: Load) -> Hypothesis:
    """All requests that may run at once fit into the KV memory, by the law of their lengths."""
    declares = load.workload.declared is not None
    longest = with_wasted(largest(load.work.lengths), load.server, declares=declares)
    return kv_memory(load.server, longest, reused=load.reused)


def independent_arrivals(workload: Workload) -> Hypothesis:
    """Arrivals are renewals: the gaps between them are independent and identically distributed."""
    process = workload.arrivals
    held = process is not None and process.iid
    name = workload.describe().split(": ")[-1]
    reason = f"{name} are renewals" if held else f"{name} are not i.i.d.; try arrivals 'poisson'"
    return Hypothesis("i.i.d. arrivals", held, reason, checked=not held or _of_penstock(process))


def independent_lengths(workload: Workload) -> Hypothesis:
    """Requests draw their lengths independently, from one distribution."""
    held = workload.lengths.iid
    reason = (
        "drawn anew for each request"
        if held
        else "recorded in order; resample them with arrivals 'poisson'"
    )
    return Hypothesis(
        "i.i.d. lengths", held, reason, checked=not held or _known_lengths(workload.lengths)
    )


def bounded_lengths(workload: Workload) -> Hypothesis:
    """No prompt and no output is longer than a limit."""
    lengths = workload.lengths
    if workload.bounded:
        reason = (
            f"prompts up to {lengths.max_prompt:,} tokens, outputs up to {lengths.max_output:,}"
        )
    else:
        what = "prompts" if lengths.max_prompt is None else "outputs"
        reason = f"{what} have no upper limit; give their distribution a `max`"
    checked = not workload.bounded or _known_lengths(lengths)
    return Hypothesis(BOUNDED, workload.bounded, reason, checked)


def dropped(work: Served) -> tuple[Hypothesis, ...]:
    """How many requests are dropped is what a sample says, where their lengths are drawn."""
    if not work.sampled:
        return ()
    reason = f"{1 - work.share:.3%} of {SAMPLE:,} draws"
    return (Hypothesis("share of the requests that are dropped", True, reason, checked=False),)


def sampled_attention(load: Load) -> tuple[Hypothesis, ...]:
    """What a mean request's attention takes is a sample's, if lengths are not Penstock's."""
    if not load.sampled:
        return ()
    low, high = load.attention_s
    reason = (
        f"from {low:.4g} to {high:.4g} s by {SAMPLE:,} draws, four standard errors on the safe side"
    )
    return (Hypothesis("mean attention of a request", True, reason, checked=False),)


def cut(work: Served) -> tuple[Hypothesis, ...]:
    """Outputs that the longest context cuts are as long as a sample says, if lengths are drawn."""
    if not work.cut:
        return ()
    reason = f"{work.lengths.mean_output:,.4g} tokens on average, by {SAMPLE:,} draws"
    return (Hypothesis("outputs that max_model_len leaves", True, reason, checked=False),)


def sampled_limit(name: str, *, sampled: bool) -> tuple[Hypothesis, ...]:
    """What a limit carries is what a sample of the lengths says, where no formula does."""
    if not sampled:
        return ()
    reason = f"from {SAMPLE:,} draws, four standard errors on the safe side"
    return (Hypothesis(f"what the {name} carries", True, reason, checked=False),)


def kv_memory(server: Server, longest: Longest | None, *, reused: bool) -> Hypothesis:
    """All requests that may run at once fit into the KV memory, however long they are."""
    # ``longest``: (prompt, output) tokens of which one is largest; None: lengths have no limit.
    # ``reused``: prompts may share what begins alike.
    name = AMPLE
    policy, slots = server.policy, server.most_requests
    if not policy.admits_what_fits:
        return Hypothesis(
            name, False, f"{policy.name} may let requests wait although memory is free"
        )
    held = at_once(server, longest)
    if slots is None or server.scope == "batch":
        reason = "any number of requests may hold memory; set a max batch size in scope 'running'"
    elif held is None:
        reason = (
            "lengths have no upper limit, so no memory is sure to hold them; give their "
            "distributions a `max`"
        )
    elif reused:
        reason = "what requests share by prefix caching is not known"
    else:
        spare = server.watermark_blocks
        beside = f" beside a watermark of {spare:,}" if spare else ""
        reason = (
            f"{held.requests:,} requests of up to {held.blocks:,} blocks need "
            f"{held.requests * held.blocks:,}{beside}, the KV memory has {held.usable:,}"
        )
        fitting = (held.usable - held.kept) // held.blocks
        reason += "" if held.fits or not fitting else f"; up to {fitting:,} at once surely fit"
        return Hypothesis(name, held.fits, reason)
    return Hypothesis(name, False, reason)


def work_conserving(server: Server) -> Hypothesis:
    """The policy fills the token budget whenever what waits allows it."""
    policy = server.policy
    conserves = server.work_conserving
    if policy.memory.drafted_tokens:
        reason = f"{policy.name} fills batches with drafts, some of which are wrong"
    elif conserves:
        reason = f"{policy.name} fills the token budget whenever what waits allows it"
    elif conserves is None:
        reason = (
            f"nothing is known of {policy.name}; if it is, say so with "
            "@policy(work_conserving=True)"
        )
    elif policy.batching.work_conserving:
        reason = f"{policy.name} cuts prompts to whole blocks, so batches may have room for a part"
    else:
        reason = f"{policy.name} leaves room in batches while requests wait"
    checked = not conserves or policy.is_proved
    if not checked:
        reason += ", as its author claims; `audit` can refute it"
    return Hypothesis(FILLS, bool(conserves), reason, checked)


def batch_size(server: Server) -> Hypothesis:
    """The max batch size cannot keep a batch from filling."""
    limit = server.max_batch_size
    held = limit is None or limit >= server.filling_requests
    if limit is None:
        reason = "there is none"
    elif held:
        reason = f"{limit:,} is at least the token budget of {server.token_budget:,}"
    elif limit < server.token_budget:
        reason = (
            f"{limit:,} is below the token budget of {server.token_budget:,}, so it can keep "
            "batches from filling"
        )
    else:
        reason = (
            f"{limit:,} is below twice the token budget of {server.token_budget:,}, and a step "
            "ahead those who end with the batch in progress keep their places"
        )
    return Hypothesis(SLOTS, held, reason)


def full_batches_carry_it(load: Load) -> Hypothesis:
    """Batches filled to the token budget carry the load; ones that stop short may carry more."""
    held = load.arrival_rate < load.full_batch_rate * (1 - CRITICAL_BAND)
    attention = load.attention_s[1]
    most = (
        f" even with the most that attention takes, {attention:.4g} s a request"
        if attention
        else ""
    )
    reason = (
        f"{load.arrival_rate * load.most_tokens_per_request:,.0f} tokens/s arrive, batches of "
        f"{load.server.token_budget:,} tokens carry {load.full_batch_tokens_per_s:,.0f}{most}"
    )
    if load.wasted[1]:
        reason += f", with up to {load.wasted[1]:.3g} of a request after an end not foreseen"
    falls = load.filled_batch_tokens_per_s < load.best_batch_tokens_per_s * (1 - CRITICAL_BAND)
    if not held and falls and not attention:
        reason += (
            f" but batches of {load.best_token_load:,} would carry "
            f"{load.best_batch_tokens_per_s:,.0f}: lower it"
        )
    return Hypothesis(CARRIES, held, reason)


def every_batch_drains(load: Load, drift: "Drift") -> Hypothesis:
    """Every batch that a backlog leads to takes more weighted tokens than arrive while it lasts."""
    rate = drift.certified_rate
    held = rate is not None and load.arrival_rate < rate * (1 - CRITICAL_BAND)
    reason = drift.why if rate is None else f"{drift.why}, and {load.arrival_rate:.4g} arrive"
    return Hypothesis(DRAINS, held, reason)


def _known_lengths(lengths: Lengths) -> bool:
    parts = (
        (lengths, lengths.prompt, lengths.output)
        if isinstance(lengths, Independent)
        else (lengths,)
    )
    return all(_of_penstock(part) for part in parts)


def _of_penstock(thing: object) -> bool:
    """Whether what it says of itself is Penstock's own statement."""
    return type(thing).__module__.partition(".")[0] == "penstock"
