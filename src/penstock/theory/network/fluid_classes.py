"""The classes of a network's fluid model: whole stages, or the two phases of each."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from penstock.errors import InputError
from penstock.inputs.arrays import Bools, Floats, Ints
from penstock.system.network_model import NetworkModel

PREFILL, DECODE, BOTH = 0, 1, 2
_PHASES = (" prefill", " decode", "")


@dataclasses.dataclass(frozen=True, eq=False)
class FluidClasses:
    """Classes of fluid, each served at one station."""

    names: tuple[str, ...]  # `workflow.stage`, then the phase where a stage has two classes
    stage: Ints  # shape (classes,)
    phase: Ints  # shape (classes,): PREFILL, DECODE or BOTH
    station: Ints  # shape (classes,), the pool
    # Shape (classes,), mean tokens over what full batches of the pool carry per second: its time
    # for one request. Above 0.
    seconds: Floats
    # Shape (classes,), the same in the batches that carry the most: those of a pool without a
    # backlog may stop short of the token budget, and be faster.
    fastest: Floats
    external: Floats  # shape (classes,), requests/s from outside
    # Shape (classes, classes), mean number of requests of the second class that follow one of the
    # first.
    onward: Floats
    rate: Floats  # shape (classes,), effective requests/s, above 0
    # Shape (classes,), whether requests of the class wait for others of their job before they come
    # into being.
    joins: Bools
    pools: tuple[str, ...]  # names of the stations
    # Names of the stages without fluid: those without a token, and those that no job visits.
    left_out: tuple[str, ...]

    @property
    def load(self) -> Floats:
        """Shape (classes,), share of its station's time that each class needs."""
        return self.rate * self.seconds

    @property
    def rho(self) -> Floats:
        """Shape (pools,)."""
        return np.asarray(np.bincount(self.station, self.load, len(self.pools)), np.float64)

    @property
    def leads(self) -> Bools:
        """Shape (pools, pools), whether requests go on from the first to the second."""
        leads = np.zeros((len(self.pools),) * 2, np.bool_)
        i, j = np.nonzero(self.onward > 0)
        leads[self.station[i], self.station[j]] = True
        return leads

    def at(self, stations: Iterable[int]) -> "FluidClasses":
        """Return the classes of some stations; what reaches them from others comes from outside."""
        here = np.isin(self.station, np.array(list(stations), np.int64))
        onward = self.onward[np.ix_(here, here)]
        per_class = ("stage", "phase", "station", "seconds", "fastest", "rate", "joins")
        return dataclasses.replace(
            self,
            names=tuple(itertools.compress(self.names, here)),
            external=np.maximum(self.rate[here] - self.rate[here] @ onward, 0.0),
            onward=onward,
            left_out=(),
            **{name: getattr(self, name)[here] for name in per_class},
        )


def fluid_classes(model: NetworkModel, phases: bool | Sequence[bool] = True) -> FluidClasses:
    """Return the classes of a network's fluid model.

    A pool that serves a stage's decodes before its prompts keeps no fluid in decode (but what it
    starts with), so there a whole stage is one class; where a policy may choose (``phases``, one
    for all or shape (pools,)), each phase is. Phases without tokens hold no fluid and are left out,
    as are stages that no job visits. Under a work-conserving policy batches are full while there is
    fluid, so the pool's rate is that of full batches.
    """
    chooses = np.atleast_1d(np.asarray(phases, np.bool_))
    if chooses.size not in (1, len(model.pools)):
        raise InputError(
            f"{chooses.size} values of phases for {len(model.pools)} pools; give one per pool, or "
            "one"
        )
    if not model.external.any():
        raise InputError(
            "no jobs arrive at this network, so it has no load; give a workflow an arrival rate"
        )
    # First the classes of a stage's prompts, or of all it has, then those of its decodes.
    count = len(model.stages)
    split = np.broadcast_to(chooses, len(model.pools))[model.pool]
    stage, phase = np.arange(count), np.where(split, PREFILL, BOTH)
    tokens = np.where(split, model.prefill, model.prefill + model.decode)
    external, joins, rate, onward = model.external, model.joins, model.visits, model.onward
    if split.any():
        stage, phase = np.concatenate([stage, stage]), np.concatenate([phase, [DECODE] * count])
        tokens = np.concatenate([tokens, split * model.decode])
        onward = np.zeros((2 * count, 2 * count))
        onward[np.arange(count), np.arange(count) + count] = 1.0
        onward[count:, :count] = model.onward
        external = np.concatenate([external, np.zeros(count)])
        joins = np.concatenate([joins, np.zeros(count, np.bool_)])
        rate = np.concatenate([rate, rate])

    # Classes without tokens or requests are left out; what follows them comes, and waits, as it
    # would.
    fluid = (tokens > 0) & (rate > 0)
    if not fluid.any():
        raise InputError(
            "no stage that jobs visit has a token, so there is no load; give one a prompt or an "
            "output"
        )
    left_out = set(range(count)) - set(stage[fluid].tolist())
    if not fluid.all():
        among, past = np.ix_(~fluid, ~fluid), np.ix_(~fluid, fluid)
        through = np.linalg.solve(np.eye((~fluid).sum()) - onward[among], onward[past])
        external = external[fluid] + external[~fluid] @ through
        joins = joins[fluid] | (joins[~fluid] @ through > 0)
        onward = onward[np.ix_(fluid, fluid)] + onward[np.ix_(fluid, ~fluid)] @ through
        stage, phase, tokens, rate = stage[fluid], phase[fluid], tokens[fluid], rate[fluid]

    station = model.pool[stage]
    return FluidClasses(
        names=tuple(
            model.stages[s] + _PHASES[p]
            for s, p in zip(stage.tolist(), phase.tolist(), strict=True)
        ),
        stage=stage,
        phase=phase,
        station=station,
        seconds=tokens / model.full_batch[station],
        fastest=tokens / model.capacity[station],
        external=external,
        onward=onward,
        rate=rate,
        joins=joins,
        pools=model.pools,
        left_out=tuple(model.stages[s] for s in sorted(left_out)),
    )


def components(classes: FluidClasses) -> list[tuple[int, ...]]:
    """Return the strongly connected components of stations, in topological order."""
    # Stations that no job can leave and come back to by way of another are components of one.
    reaches: Bools = classes.leads | np.eye(len(classes.pools), dtype=np.bool_)
    for _ in classes.pools:
        reaches = reaches @ reaches
    before = reaches & ~reaches.T
    left, order = set(range(len(classes.pools))), []
    while left:  # the first that nothing still left leads to
        first = min(s for s in left if not before[list(left), s].any())
        together = np.flatnonzero(reaches[first] & reaches[:, first]).tolist()
        order.append(tuple(together))
        left -= set(together)
    return order
