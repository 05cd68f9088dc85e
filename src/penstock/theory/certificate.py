"""Certificates: what a theorem says of pools and workflows, and whether its hypotheses hold.

A server is a network of one pool of one replica, and its requests are jobs of one stage.

*Unstable*: more is asked of a limit of a pool than it carries under any policy
(`penstock.theory.limits`); or the router sends some of its replicas more than they carry; or a
static priority order has a virtual station with a load above 1, or fluid paths that spiral out.
From a large backlog of that kind every cycle multiplies it, but for deviations that become ever
less likely; so it returns to nothing with a probability below 1. Replicas are as one server there
if their router is random, since all get the same shares; behind others some may run dry before the
rest, and then nothing is said.

*Stable*, below load 1 at every pool with full batches, for work-conserving policies:

* Theorem 1(b) of a server: a max batch size that is absent or at least the token budget, and less
  load than b_max / t_bmax. On one server with bounded lengths the total of unprocessed tokens is
  itself a Foster function (Appendix C, corrected), so the K-FCFS condition is not needed.
* thm:multi-class, thm:dag, thm:fork-join: where no job leaves a pool and comes back to it. The
  paper asks for K-FCFS, but any order between stages will do: the work of a pool depends on none,
  once the pools before it have drained, and what waits at a join has a sibling unfinished in some
  branch (`JoinBound`).
* the linear program of `penstock.theory.network.cycles`: where jobs go round. It needs jobs
  at a stage that are alike whichever way they came, and each stage to be served in order of
  arrival, as by every order between stages. A static order is looked at as such if all pools of
  cycles have one and serve the decodes of a stage before its prompts.
* pro:parallel and rem:jsq+ for pools of several replicas, and where they differ the shares that
  the router sends to each set of them (`penstock.theory.network.unequal_replicas`). Round robin
  gives each replica exactly its share of the only stage of a pool, but nothing is known of shares
  of several. Power of two choices: of what arrives, at most m (m - 1) / (R (R - 1)) <= m / R
  reaches the m replicas of R that hold fluid, so they drain as under random assignment. If requests
  come back to the pool, only the shortest of rem:jsq+ keeps them from busy replicas.

*Stable* by other means at pools outside cycles that serve one stage whose lengths have a known law
(`penstock.theory.load`):

* the drift certificate, where batches may have room: every batch that a backlog leads to drains it
  (see `penstock.theory.drift`), for any policy and any limits. Weighted tokens of a replica then
  fall wherever it has fluid, once the pools before it have drained, as its tokens do where batches
  are full; so the theorems on networks hold as they stand.
* Theorem 1(b), with attention (`penstock.theory.attention`), in which the seconds that full batches
  take for what is left stand in for its tokens, likewise. Necessary conditions count attention at
  its least, sufficient ones at its most, with ``unknown`` in the band between.

None of them knows KV memory, so with one all requests that may run at once have to fit into it.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypedDict

import numpy as np

from penstock.errors import InputError
from penstock.show.answers import AsData, Meaning, computed
from penstock.system.server import Server
from penstock.theory.attention import prefill_at_least
from penstock.theory.hypotheses import (
    CRITICAL_BAND,
    Hypothesis,
    Proof,
    Verdict,
    if_trusted,
    of_requests,
    of_sample,
    of_sampled_limit,
    proof_of,
)
from penstock.theory.kv_blocks import drawn
from penstock.theory.limits import Bound, Limit, PoolLoad, as_bounds, tightest
from penstock.theory.load import Load

if TYPE_CHECKING:
    from penstock.theory.mean_backlog import MeanBacklog
    from penstock.theory.network.cycles import GlobalStability
    from penstock.theory.network.loads import JoinBound
    from penstock.theory.network.virtual_stations import VirtualStation

__all__ = ["CRITICAL_BAND", "Bound", "Certificate", "Hypothesis", "Verdict"]

# As readers are told of the paper's theorems: thm:main (b), thm:multi-class, thm:dag,
# thm:fork-join, pro:parallel and rem:jsq+.
WORK_CONSERVING = "Theorem 1(b)"
DRIFT = "Foster's theorem (every batch shrinks a backlog)"
MULTICLASS, DAG, FORK_JOIN = "multi-class theorem", "DAG theorem", "fork-join theorem"
PARALLEL, REMARK = "parallel-server proposition", "its remark on routers"
DIFFER = "parallel-server proposition for servers that differ"
CYCLE = "linear program (Dai and Vande Vate 2000)"
SPIRAL = "fluid path of a static priority"
VIRTUAL = "virtual station (Rybko and Stolyar 1992; Dai and Vande Vate 2000)"

_ROUNDING = 1e-12


class Rho(TypedDict):
    """The load of a server or a pool."""

    rho: Annotated[
        float,
        Meaning(
            "Load: tokens that arrive over the most that batches of any size process, beside a "
            "prefix cache without what the run found there."
        ),
    ]
    rho_at_least: Annotated[float | None, Meaning("The load if a cache kept everything.")]
    rho_without_cache: Annotated[float | None, Meaning("The load if a cache found nothing.")]


class ServerLoad(Rho):
    """Load and limit of a server."""

    arrival_rate: Annotated[float, Meaning("Requests/s.")]
    tokens_per_request: Annotated[float, Meaning("Of batches, on average.")]
    offered_tokens_per_s: Annotated[float, Meaning("That arrive.")]
    capacity_tokens_per_s: Annotated[float, Meaning("That full batches process.")]
    max_rate: Annotated[float, Meaning("Requests/s above which no policy is stable.")]
    rho_measured: Annotated[float | None, Meaning("By what the run found in a cache.")]


@dataclasses.dataclass(frozen=True)
class Certificate(AsData):
    """What a theorem says of a server or a network.

    Attributes
    ----------
    pools
        Load and limits of each pool.
    rate
        Jobs that arrive per second, of a server its requests.
    measured
        Of a server beside a prefix cache, the load with what a run found there; None: not measured.
    of_server
        Whether it is that of one server.
    """

    verdict: Annotated[
        Verdict,
        Meaning(
            "``stable``, ``unstable``, ``critical`` (at a limit, where the theorems are silent) "
            "or ``unknown``."
        ),
    ]
    theorem: Annotated[str | None, Meaning("The theorem used, or None.")]
    reason: Annotated[str, Meaning("One sentence.")]
    hypotheses: Annotated[
        tuple[Hypothesis, ...],
        Meaning(
            "Every hypothesis of the theorem used, or, where none says anything, of those tried; "
            "none at a limit."
        ),
    ]
    pools: tuple[PoolLoad, ...]
    certified_load: Annotated[
        float | None,
        Meaning(
            "Factor on all rates below which a theorem says stable under these policies, for jobs "
            "as they come at that rate; None where none does at any."
        ),
    ]
    any_policy: Annotated[
        "GlobalStability | None",
        Meaning(
            "What is certified for every work-conserving policy that treats phases as these do; "
            "None where nothing arrives in a cycle of pools."
        ),
    ] = None
    virtual_station: Annotated[
        "VirtualStation | None",
        Meaning(
            "Where a static priority order fails first; None if it has no virtual station, or if "
            "nothing is said of it."
        ),
    ] = None
    order: Annotated[
        tuple[tuple[str, ...], ...],
        Meaning("Sets of pools in topological order; jobs can go round within a set of several."),
    ] = ()
    joins: Annotated["tuple[JoinBound, ...]", Meaning("Bounds on what waits at joins.")] = ()
    rate: float = 1.0
    measured: float | None = None
    of_server: bool = False

    @property
    def trusted(self) -> list[str]:
        """Hypotheses that nobody checked, where the verdict rests on them."""
        # An unstable network is so whatever the hypotheses that were tried.
        if not self.of_server and self.verdict != "stable":
            return []
        return [hypothesis.name for hypothesis in self.hypotheses if not hypothesis.checked]

    @property
    def bottleneck(self) -> PoolLoad:
        """The pool with the least margin."""
        return min(self.pools, key=lambda pool: round(pool.margin, 9))

    @property
    def load(self) -> Load:
        """Load and capacity of a server."""
        load = self.pools[0].load
        if not self.of_server or load is None:
            raise InputError(
                "a network has no load of its own; read the loads of its `pools`, or `bottleneck`"
            )
        return load

    @property
    def rho(self) -> float:
        """Load of the bottleneck: offered token rate over the capacity.

        Beside a prefix cache it counts the tokens that are computed: with what a run found there
        (`measured`), else `rho_at_least`. No verdict here goes by what was measured.
        """
        if self.measured is not None:
            return self.measured
        return self.bottleneck.rho

    @property
    def rho_at_least(self) -> float | None:
        """Beside a prefix cache, the load of the bottleneck if it kept everything; else None."""
        if self.rho_without_cache is None:
            return None
        return self.bottleneck.rho

    @property
    def rho_without_cache(self) -> float | None:
        """Beside a prefix cache, the load of the bottleneck if it found nothing; else None."""
        return self.bottleneck.rho_without_cache

    @computed()
    def margin(self) -> float:
        """What is left of the bottleneck, as a share: 1 - its load where the token budget binds,
        negative when overloaded. Where the load is `measured`, no more than that leaves.
        """
        if self.measured is None:
            return self.bottleneck.margin
        return min(self.bottleneck.margin, 1 - self.measured)

    @property
    def max_load(self) -> float:
        """Factor on all rates beyond which no policy is stable, at the bottleneck."""
        return self.bottleneck.max_load

    @property
    def max_rate(self) -> float:
        """Jobs/s above which no policy is stable, by the tightest necessary condition."""
        return self.rate * self.max_load

    @computed()
    def certified_rate(self) -> float | None:
        """Jobs/s below which a theorem says stable; None where none does at any rate."""
        if self.certified_load is None:
            return None
        return self.rate * self.certified_load

    @computed()
    def bounds(self) -> tuple[Bound, ...]:
        """Necessary conditions: jobs/s that each limit of the bottleneck can carry, the token
        budget first.
        """
        return as_bounds(self.bottleneck.limits, self.rate)

    @property
    def binding(self) -> Bound:
        """The tightest necessary condition; of equal ones the first."""
        (bound,) = as_bounds((tightest(self.bottleneck.limits),), self.rate)
        return bound

    @functools.cached_property
    def mean_backlog(self) -> "MeanBacklog":
        """Bounds of the long-run mean of the work that a server has left, tokens (Appendix C,
        corrected).
        """
        from penstock.theory.mean_backlog import mean_backlog  # the verdict does not need it

        return mean_backlog(self.load)

    @computed(key="mean_backlog")
    def _mean_backlog(self) -> "MeanBacklog | None":
        """Of a server: bounds of the long-run mean of the work that it has left, tokens."""
        return self.mean_backlog if self.of_server else None

    def with_found(self, share: float, server: Server) -> "Certificate":
        """Return the certificate of a server beside a run in which a prefix cache had a share of
        the prompt tokens: with the load that this leaves.
        """
        if self.rho_without_cache is None:
            return self
        work = self.load.work
        prompt, _ = drawn(work.lengths)
        spared = prefill_at_least(share * prompt.astype(np.float64), server).mean() * work.share
        measured = self.load.rho - self.load.arrival_rate * float(spared)
        return dataclasses.replace(self, measured=max(measured, self.bottleneck.rho))

    def load_as_dict(self) -> ServerLoad:
        """Return the JSON form of a server's load."""
        load = self.load
        return {
            "rho": self.rho,
            "arrival_rate": load.arrival_rate,
            "tokens_per_request": load.tokens_per_request,
            "offered_tokens_per_s": load.offered_tokens_per_s,
            "capacity_tokens_per_s": load.capacity_tokens_per_s,
            "max_rate": self.max_rate,
            "rho_at_least": self.rho_at_least,
            "rho_without_cache": self.rho_without_cache,
            "rho_measured": self.measured,
        }


class Statement(NamedTuple):
    """The first four fields of a certificate."""

    verdict: Verdict
    theorem: str | None
    reason: str
    hypotheses: tuple[Hypothesis, ...]


def of_server(
    load: Load, hypotheses: tuple[Hypothesis, ...], *, by_arrival: bool, name: str = "pool"
) -> Certificate:
    """Certify a server by its load and what is asked of it, beside requests."""
    requests = of_requests(load.workload)
    sound = all(hypothesis.held for hypothesis in requests)
    proof = proof_of(load, hypotheses, sound=sound, by_arrival=by_arrival)
    pool = PoolLoad.of_server(name, load, fills=not proof.by_drift)
    return Certificate(
        *_statement_of_server(load, pool, proof, (*requests, *proof.hypotheses.values())),
        pools=(pool,),
        certified_load=certified_load((pool,), proof.certified),
        order=((name,),),
        rate=load.arrival_rate,
        of_server=True,
    )


def certified_load(pools: Sequence[PoolLoad], certified: float | None) -> float | None:
    """Return what is certified, at most what every limit carries, a front end's among them; where
    theorems meet, the same, but rounding.
    """
    most = min(pool.max_load for pool in pools)
    if certified and (certified > most or math.isclose(certified, most, rel_tol=_ROUNDING)):
        return most
    return certified or None


def _statement_of_server(
    load: Load, pool: PoolLoad, proof: Proof, hypotheses: tuple[Hypothesis, ...]
) -> Statement:
    """Say whether a server is stable: by its limits first, above which no hypothesis matters."""
    exceeded = [limit for limit in pool.limits if limit.exceeded]
    if exceeded:
        reason = _why_unstable(load, exceeded)
        return Statement("unstable", exceeded[0].theorem, reason, _overload(load, exceeded[0]))

    binds = tightest(pool.limits)
    if binds.load >= 1 - CRITICAL_BAND:
        what = (
            f"the arrival rate is exactly what the {binds.name} can carry, where no theorem applies"
        )
        if binds.name == "token budget":
            what = "the load is exactly 1, where Theorem 1 says nothing"
        reason = f"{what}: any randomness lets the queues wander without bound"
        return Statement("critical", None, reason, ())

    failed = ", ".join(f"'{h.name}' ({h.why})" for h in hypotheses if not h.held)
    if failed:
        reason = (
            f"the arrival rate is {1 - binds.load:.1%} below what the {binds.name} can carry, "
            f"{load.arrival_rate / binds.load:,.4g} requests/s, but no theorem says stable, "
            f"because these hypotheses fail: {failed}"
        )
        return Statement("unknown", None, reason, hypotheses)

    policy = load.server.policy.name
    theorem = WORK_CONSERVING
    reason = f"the load is {load.rho:.3f} and {policy} is work-conserving"
    if proof.by_drift:
        up_to = (proof.certified or 0.0) * load.arrival_rate
        theorem = DRIFT
        reason = (
            f"every batch that {policy} forms under a backlog drains it, at up to {up_to:,.4g} "
            "requests/s"
        )
    reason = f"{reason}, so the queues stay finite and have a steady state{if_trusted(hypotheses)}"
    return Statement("stable", theorem + load.extended, reason, hypotheses)


def _overload(load: Load, limit: Limit) -> tuple[Hypothesis, ...]:
    """Return what an overload rests on: the numbers, and that averages exist."""
    most = load.arrival_rate / limit.load
    if limit.name == "token budget" and math.isclose(most, load.max_rate):
        name = "load above 1"
        reason = (
            f"{load.offered_tokens_per_s:,.0f} tokens/s arrive, the best batch "
            f"({load.best_token_load:,} tokens) carries {load.capacity_tokens_per_s:,.0f}"
        )
        if load.attention_s[0]:
            reason += (
                f" of such requests, each with {load.attention_s[0]:.4g} s of attention at least"
            )
    else:
        name = f"arrival rate above the {limit.name}'s"
        reason = (
            f"{load.arrival_rate:,.4g} requests/s arrive, at most {most:,.4g} are carried: "
            f"{limit.why}"
        )
    averages = Hypothesis("long-run averages exist", True, "the arrival process has a rate")
    if load.workload.rows is not None:
        why = "the recording, gone on with at this pattern"
        averages = dataclasses.replace(averages, why=why, checked=False)
    overload = Hypothesis(name, True, reason), averages, *of_sample(load)
    if limit.sampled:
        return (*overload, of_sampled_limit(limit.name))
    return overload


def _why_unstable(load: Load, exceeded: list[Limit]) -> str:
    """Return which limits are exceeded, and by how much."""
    first, *others = exceeded
    rate = load.arrival_rate
    reason = (
        f"{rate:,.4g} requests/s arrive, but the {first.name} lets no policy carry more than "
        f"{rate / first.load:,.4g}"
    )
    if first.name == "token budget":
        reason = f"tokens arrive {first.load:.3f} times as fast as any policy can process them"
    for limit in others:
        reason += f" (the {limit.name} allows {rate / limit.load:,.4g} requests/s at most)"
    return f"{reason}, so the backlog grows for ever"
