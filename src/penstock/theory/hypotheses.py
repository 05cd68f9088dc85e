"""Hypotheses of the stability theorems, each with what was looked at: of a server and what arrives
there, which is each replica of any pool.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from penstock.show.answers import AsData, Meaning
from penstock.system.server import Server
from penstock.theory.kv_blocks import SAMPLE, Longest, at_once, largest
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

_SAFE = "four standard errors on the safe side"


@dataclasses.dataclass(frozen=True)
class Hypothesis(AsData):
    """A condition of a theorem."""

    name: Annotated[str, Meaning("What is asked for.")]
    held: Annotated[bool, Meaning("Whether it holds.")]
    why: Annotated[str, Meaning("What was looked at, and what to change where it fails.")]
    checked: Annotated[
        bool, Meaning("False: on the user's word: of a policy, or of a class of the user's own.")
    ] = True
    instead: Annotated[str, Meaning("What would be proved with another limit.", key=None)] = ""

    @classmethod
    def unless(cls, name: str, failure: str | None) -> "Hypothesis":
        """Return a hypothesis that holds unless there is a reason why it fails."""
        return cls(name, failure is None, failure or "")

    @property
    def state(self) -> str:
        """``fails``, ``held``, or ``on trust``: in one word."""
        if not self.held:
            return "fails"
        if not self.checked:
            return "on trust"
        return "held"


def if_trusted(hypotheses: tuple[Hypothesis, ...]) -> str:
    """Say what a conclusion from these takes on trust, if it takes anything so."""
    trusted = [hypothesis.name for hypothesis in hypotheses if not hypothesis.checked]
    if not trusted:
        return ""
    return f", if what is taken on trust holds: {', '.join(trusted)}"


def of_requests(workload: Workload) -> tuple[Hypothesis, ...]:
    """Return what every sufficient condition asks of requests."""
    return independent_arrivals(workload), independent_lengths(workload), bounded_lengths(workload)


def of_sample(load: Load) -> tuple[Hypothesis, ...]:
    """Return what of a load is as a sample of the lengths says, where no formula does."""
    work = load.work
    sampled = []
    if work.sampled:
        why = f"{1 - work.share:.3%} of {SAMPLE:,} draws"
        sampled.append(("share of the requests that are dropped", why))
    if work.cut:
        why = f"{work.lengths.mean_output:,.4g} tokens on average, by {SAMPLE:,} draws"
        sampled.append(("outputs that max_model_len leaves", why))
    if load.sampled:
        low, high = load.attention_s
        why = f"from {low:.4g} to {high:.4g} s by {SAMPLE:,} draws, {_SAFE}"
        sampled.append(("mean attention of a request", why))
    return tuple(Hypothesis(name, True, why, checked=False) for name, why in sampled)


def of_sampled_limit(name: str) -> Hypothesis:
    """What a limit carries is what a sample of the lengths says, where no formula does."""
    why = f"from {SAMPLE:,} draws, {_SAFE}"
    return Hypothesis(f"what the {name} carries", True, why, checked=False)


def of_replica(
    load: Load, fills: Hypothesis | None = None, memory: Hypothesis | None = None
) -> tuple[Hypothesis, ...]:
    """Return what Theorem 1(b) asks of a server, but for what of it is known otherwise."""
    server, hypotheses = load.server, []
    if memory is not None:
        hypotheses.append(memory)
    elif server.memory is not None:
        hypotheses.append(ample_memory(load))
    hypotheses += of_sample(load)
    hypotheses.append(fills or work_conserving(server))
    return (*hypotheses, batch_size(server), full_batches_carry_it(load))


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
        ample = hypotheses.get(AMPLE)
        besides = {name: h for name, h in hypotheses.items() if name != AMPLE}
        if ample is not None and not ample.held and sound and others_hold(besides):
            hypotheses[AMPLE] = _with_places_that_fit(load, ample, by_arrival=by_arrival)
        return Proof(hypotheses, None)
    if hypotheses[FILLS].held and hypotheses[SLOTS].held:
        return Proof(hypotheses, load.full_batch_rate / load.arrival_rate or None)
    from penstock.theory.drift import drift  # most servers fill their batches

    server = load.server
    if server.memory is not None:
        # It holds all that may run, so batches are as without a limit, unless prompts are cut to
        # its blocks.
        ample_server = dataclasses.replace(server, memory=None, gpu=None)
        if ample_server.work_conserving is not server.work_conserving:
            return Proof(hypotheses, None)
        server = ample_server
    wasteful = load.wasted[1] > 0
    backlog = drift(load.work.lengths, server, by_arrival=by_arrival, wasteful=wasteful)
    drains = every_batch_drains(load, backlog)
    if drains.held:
        instead = set(OF_FULL_BATCHES) - ({FILLS} if backlog.fills else set())
        hypotheses = {name: h for name, h in hypotheses.items() if name not in instead}
    hypotheses[DRAINS] = drains
    if backlog.certified_rate is None:
        return Proof(hypotheses, None)
    return Proof(hypotheses, backlog.certified_rate / load.arrival_rate)


def ample_memory(load: Load) -> Hypothesis:
    """All requests that may run at once fit into the KV memory, by the law of their lengths."""
    return kv_memory(load.server, _longest(load), reused=load.reused)


def _longest(load: Load) -> Longest | None:
    """Return the longest requests as they hold memory; None: lengths have no limit."""
    declares = load.workload.declared is not None
    return with_wasted(largest(load.work.lengths), load.server, declares=declares)


def _with_places_that_fit(load: Load, ample: Hypothesis, *, by_arrival: bool) -> Hypothesis:
    """Say with which max batch size memory would be ample, and up to which rate that is proved."""
    running = at_once(load.server, _longest(load))
    from penstock.theory.drift import drift, full_or_all  # most servers fill their batches

    known = running is not None and not running.fits and not load.reused
    if not (running and known and running.fitting and full_or_all(load.server)):
        return ample
    fewer = dataclasses.replace(load.server, max_batch_size=running.fitting, memory=None, gpu=None)
    wasteful = load.wasted[1] > 0
    backlog = drift(load.work.lengths, fewer, by_arrival=by_arrival, wasteful=wasteful)
    rate = backlog.certified_rate or 0.0
    proved = f"proved stable to {rate:.4g} requests/s"
    why = f"{ample.why}, and with that max batch size each is {proved}"
    instead = f"with max batch size {running.fitting:,} it is {proved}" if rate else ""
    return dataclasses.replace(ample, why=why, instead=instead)


def independent_arrivals(workload: Workload) -> Hypothesis:
    """Arrivals are renewals: the gaps between them are independent and identically distributed."""
    process = workload.arrivals
    words = workload.describe().split(": ")[-1]
    if process is None or not process.iid:
        why = f"{words} are not i.i.d.; try arrivals 'poisson'"
        return Hypothesis("i.i.d. arrivals", False, why)
    why = f"{words} are renewals"
    return Hypothesis("i.i.d. arrivals", True, why, checked=_of_penstock(process))


def independent_lengths(workload: Workload) -> Hypothesis:
    """Requests draw their lengths independently, from one distribution."""
    if not workload.lengths.iid:
        why = "recorded in order; resample them with arrivals 'poisson'"
        return Hypothesis("i.i.d. lengths", False, why)
    checked = _known_lengths(workload.lengths)
    return Hypothesis("i.i.d. lengths", True, "drawn anew for each request", checked)


def bounded_lengths(workload: Workload) -> Hypothesis:
    """No prompt and no output is longer than a limit."""
    lengths = workload.lengths
    if workload.bounded:
        why = f"prompts up to {lengths.max_prompt:,} tokens, outputs up to {lengths.max_output:,}"
        return Hypothesis(BOUNDED, True, why, _known_lengths(lengths))
    unbounded = "outputs"
    if lengths.max_prompt is None:
        unbounded = "prompts"
    why = f"{unbounded} have no upper limit; give their distribution a `max`"
    return Hypothesis(BOUNDED, False, why)


def kv_memory(server: Server, longest: Longest | None, *, reused: bool) -> Hypothesis:
    """All requests that may run at once fit into the KV memory, however long they are."""
    # ``longest``: (prompt, output) tokens of which one is largest; None: lengths have no limit.
    # ``reused``: prompts may share what begins alike.
    policy = server.policy
    if not policy.admits_what_fits:
        why = f"{policy.name} may let requests wait although memory is free"
        return Hypothesis(AMPLE, False, why)
    if server.most_requests is None or server.scope == "batch":
        why = "any number of requests may hold memory; set a max batch size in scope 'running'"
        return Hypothesis(AMPLE, False, why)
    running = at_once(server, longest)
    if running is None:
        why = (
            "lengths have no upper limit, so no memory is sure to hold them; give their "
            "distributions a `max`"
        )
        return Hypothesis(AMPLE, False, why)
    if reused:
        return Hypothesis(AMPLE, False, "what requests share by prefix caching is not known")
    needed = f"{running.requests * running.blocks:,}"
    if server.watermark_blocks:
        needed += f" beside a watermark of {server.watermark_blocks:,}"
    why = (
        f"{running.requests:,} requests of up to {running.blocks:,} blocks need {needed}, the KV "
        f"memory has {running.usable:,}"
    )
    if running.fitting and not running.fits:
        why += f"; up to {running.fitting:,} at once surely fit"
    return Hypothesis(AMPLE, running.fits, why)


def work_conserving(server: Server) -> Hypothesis:
    """The policy fills the token budget whenever what waits allows it."""
    policy = server.policy
    conserves = server.work_conserving
    if policy.memory.drafted_tokens:
        why = f"{policy.name} fills batches with drafts, some of which are wrong"
    elif conserves:
        why = f"{policy.name} fills the token budget whenever what waits allows it"
    elif conserves is None:
        why = (
            f"nothing is known of {policy.name}; if it is, say so with "
            "@policy(work_conserving=True)"
        )
    elif policy.batching.work_conserving:
        why = f"{policy.name} cuts prompts to whole blocks, so batches may have room for a part"
    else:
        why = f"{policy.name} leaves room in batches while requests wait"
    checked = not conserves or policy.is_proved
    if not checked:
        why += ", as its author claims; `audit` can refute it"
    return Hypothesis(FILLS, bool(conserves), why, checked)


def batch_size(server: Server) -> Hypothesis:
    """The max batch size cannot keep a batch from filling."""
    limit, budget = server.max_batch_size, server.token_budget
    if limit is None:
        return Hypothesis(SLOTS, True, "there is none")
    if limit >= server.filling_requests:
        why = f"{limit:,} is at least the token budget of {budget:,}"
        return Hypothesis(SLOTS, True, why)
    if limit < budget:
        why = (
            f"{limit:,} is below the token budget of {budget:,}, so it can keep batches from "
            "filling"
        )
    else:
        why = (
            f"{limit:,} is below twice the token budget of {budget:,}, and a step ahead those who "
            "end with the batch in progress keep their places"
        )
    return Hypothesis(SLOTS, False, why)


def full_batches_carry_it(load: Load) -> Hypothesis:
    """Batches filled to the token budget carry the load; ones that stop short may carry more."""
    carry = load.arrival_rate < load.full_batch_rate * (1 - CRITICAL_BAND)
    attention = load.attention_s[1]
    why = (
        f"{load.arrival_rate * load.most_tokens_per_request:,.0f} tokens/s arrive, batches of "
        f"{load.server.token_budget:,} tokens carry {load.full_batch_tokens_per_s:,.0f}"
    )
    if attention:
        why += f" even with the most that attention takes, {attention:.4g} s a request"
    if load.wasted[1]:
        why += f", with up to {load.wasted[1]:.3g} of a request after an end not foreseen"
    falls = load.filled_batch_tokens_per_s < load.best_batch_tokens_per_s * (1 - CRITICAL_BAND)
    if not carry and falls and not attention:
        why += (
            f" but batches of {load.best_token_load:,} would carry "
            f"{load.best_batch_tokens_per_s:,.0f}: lower it"
        )
    return Hypothesis(CARRIES, carry, why)


def every_batch_drains(load: Load, drift: "Drift") -> Hypothesis:
    """Every batch that a backlog leads to takes more weighted tokens than arrive while it lasts."""
    rate = drift.certified_rate
    if rate is None:
        return Hypothesis(DRAINS, False, drift.why)
    drains = load.arrival_rate < rate * (1 - CRITICAL_BAND)
    return Hypothesis(DRAINS, drains, f"{drift.why}, and {load.arrival_rate:.4g} arrive")


def _known_lengths(lengths: Lengths) -> bool:
    """Whether what lengths say of themselves is Penstock's own statement."""
    if isinstance(lengths, Independent):
        return all(map(_of_penstock, (lengths, lengths.prompt, lengths.output)))
    return _of_penstock(lengths)


def _of_penstock(thing: object) -> bool:
    """Whether what it says of itself is Penstock's own statement."""
    return type(thing).__module__.partition(".")[0] == "penstock"
