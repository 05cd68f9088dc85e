"""The bound on join buffers: a counter-example, and what holds instead."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import altair as alt
import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field

from penstock.auditing.audit import audit
from penstock.document import Section
from penstock.inputs.arrays import Ints
from penstock.reproducing.item import Claim, Reproduction, Setup, refuse
from penstock.reproducing.looks import DASHES, cycled
from penstock.scenario.scenario import Scenario
from penstock.show.charts import COLOURS, on_grid
from penstock.simulation.run import Run
from penstock.simulation.simulate import simulate
from penstock.system.batch_time import Affine
from penstock.system.network import Network
from penstock.system.pool import Pool
from penstock.theory.certificate import certify
from penstock.theory.network.certificate import NetworkCertificate
from penstock.workload.stage import Stage
from penstock.workload.workflow import Workflow
from penstock.workload.workload import Workload

_MOST_POINTS = 1_200


class _Join(Section):
    batch_ms: list[Annotated[float, Field(ge=0.001, le=1e6)]] = Field(max_length=20)
    shown_s: float = Field(2000.0, gt=0, le=1e9)


class Joined(NamedTuple):
    """A fork-join, just after each finish of a branch: its join buffers and queues, and the orders
    of completion.

    Attributes
    ----------
    time_s
        Of the finishes.
    buffers
        Branches that are done and wait, in all buffers (the sum of J_l).
    queue
        Requests at the fullest server of the fork (the largest Q_l).
    apart
        By how many places in the order of completion any two branches of a job differ, at most.
    k
        Smallest K of K-FCFS that held at all servers, 1 at least.
    """

    time_s: npt.NDArray[np.float64]
    buffers: Ints
    queue: Ints
    apart: int
    k: int


def fork_join(workload: Workload, runs: Callable[[int, Workload], Run], forks: int) -> Joined:
    """Serve jobs at server 0, then their branches at each server of the fork; see `Joined`.

    The network feeds forward, so its servers can be simulated one after the other.
    """
    first = runs(0, workload)
    ready = _finishes(first)
    order = np.argsort(ready, kind="stable")
    ones = np.ones(ready.size, np.int64)
    branches = [
        runs(index, Workload.from_arrays(ready[order] * first.tick_s, ones, ones))
        for index in range(1, forks + 1)
    ]
    came = ready[order]
    done = [_finishes(run) + came[0] for run in branches]
    instants = np.unique(np.concatenate(done))

    def count(times: Ints) -> Ints:
        return np.searchsorted(np.sort(times), instants, side="right")

    released = count(np.max(done, axis=0))
    buffers = np.sum([count(times) - released for times in done], axis=0)
    queue = np.max([count(came) - count(times) for times in done], axis=0)
    ranks = np.array(
        [np.argsort(np.argsort(times, kind="stable"), kind="stable") for times in done]
    )
    apart = int(np.ptp(ranks, axis=0).max())
    k = max(1, *(audit(run).overtake_k for run in (first, *branches)))
    return Joined(instants * first.tick_s, buffers, queue, apart, k)


def _network(scenario: Scenario, batch_ms: Sequence[float]) -> Network:
    """Return the same as a network: q_1, the servers of the fork, and a last one, as fast as the
    first, at the join.
    """
    names = [f"q_{index}" for index in range(1, len(batch_ms) + 2)]
    models = [Affine(c=ms / 1e3, a=0.0) for ms in (*batch_ms, batch_ms[0])]
    pools = {
        name: Pool(dataclasses.replace(scenario.server, batch_time=model))
        for name, model in zip(names, models, strict=True)
    }
    first, *forks, last = names
    stages = {
        first: Stage(first, 1, 1, then=forks),
        **{name: Stage(name, 1, 1, then=last) for name in forks},
        last: Stage(last, 1, 1, join=True),
    }
    return Network(pools, [Workflow("job", scenario.workload, stages)])


def _finishes(run: Run) -> Ints:
    assert run.rows is not None
    return run.rows.finish


def _server_of_joins(setup: Setup) -> Scenario:
    """Return the scenario, once nothing in its server is refused; batch times are set by server."""
    server = setup.document.get("server")
    for key in ("batch_time", "hardware"):
        refuse(
            isinstance(server, Mapping) and key in server,
            f"server.{key} would change nothing, since reproduce.batch_ms says how long a batch of "
            "each server takes; leave it out",
        )
    scenario = setup.scenario(
        server={"batch_time": {"affine": {"c_ms": 1000, "a_ms_per_token": 0}}}
    )
    refuse(
        scenario.server.policy.work_conserving is not True,
        f"server.policy is {scenario.server.policy.name}, which is not known to be "
        "work-conserving, as the lemma and its theorem ask; give one that is, such as sarathi",
    )
    refuse(
        scenario.server.convention != "paper",
        f"server.convention is {scenario.server.convention}, in which a request of one output "
        "token has no decode, but the lemma counts one; give convention: paper",
    )
    refuse(
        scenario.server.max_batch_size is not None or scenario.server.memory is not None,
        "server has a max batch size or KV memory, which the lemma and the loads here leave "
        "out; leave both out",
    )
    return scenario


def _carried_loads(settings: _Join, scenario: Scenario) -> list[float]:
    """Return the load of each server, once all requests are as the lemma has them and each load is
    carried.
    """
    refuse(
        scenario.until is not None
        or scenario.workload.mean_prompt != 1
        or scenario.workload.mean_output != 1,
        "lemma-join serves requests of one prompt and one output token, to the last; set "
        "prompt and output to 1, and give simulate.requests",
    )
    loads = [
        2 * scenario.workload.rate * ms / 1e3 / scenario.server.token_budget
        for ms in settings.batch_ms
    ]
    refuse(
        max(loads) >= 1,
        f"a server has load {max(loads):.3g}, so its queue and the join buffers grow for ever; "
        "lower workload.rate or reproduce.batch_ms until each load is below 1",
    )
    return loads


def run(setup: Setup) -> Reproduction:
    """Serve a fork and join, and compare its buffers with both bounds."""
    settings = setup.settings(_Join)
    forks = len(settings.batch_ms) - 1
    refuse(
        forks < 2,
        f"reproduce.batch_ms has {len(settings.batch_ms)} values, but a fork and join has "
        "three servers at least: q_1 and two of the fork; give a time for each",
    )
    scenario = _server_of_joins(setup)
    loads = _carried_loads(settings, scenario)
    setup.progress(0.1)

    def run(index: int, workload: Workload) -> Run:
        server = dataclasses.replace(
            scenario.server, batch_time=Affine(c=settings.batch_ms[index] / 1e3, a=0.0)
        )
        joined = simulate(workload, server, requests=scenario.requests, record="allocations")
        setup.progress((index + 1) / (forks + 2))
        return joined

    # the bound of the lemma, and the corrected one, in which the queues count
    joined = fork_join(scenario.workload, run, forks)
    k_prime = joined.k + 2 * scenario.server.token_budget
    bound = 2 * k_prime * forks
    corrected = (forks - 1) * (joined.queue + 2 * k_prime)
    certified = certify(_network(scenario, settings.batch_ms))
    claims = _of_joins(joined, k_prime, bound, corrected, certified, max(loads))
    table = pl.DataFrame(
        {
            "time_s": joined.time_s,
            "join_buffer": joined.buffers,
            "lemma": [bound] * joined.buffers.size,
            "corrected": corrected,
        }
    )
    # only the time about the largest buffers is drawn
    middle = joined.time_s[int(joined.buffers.argmax())]
    shown = table.filter((pl.col("time_s") - middle).abs() <= settings.shown_s / 2)
    text = "Join buffers over time, with the bound of the lemma and the corrected one."
    return setup.answer(
        claims, shown, {text: _buffers(shown)},
        f"{settings.shown_s:g} s about the largest of {joined.time_s[-1]:,.0f} s: the join buffer, "
        "the lemma's bound, and the corrected one.",
        assumed=(
            f"Loads {', '.join(f'{load:.3g}' for load in loads)} of q_1 and of the fork; K-FCFS "
            f"held with K = {joined.k}, so K' = K + v_max b_max = {k_prime}. How large the buffers "
            "get depends on the seed and on the number of jobs.",
        ),
    )  # fmt: skip


def _of_joins(
    joined: Joined,
    k_prime: int,
    bound: int,
    corrected: Ints,
    theorem: NetworkCertificate,
    load: float,
) -> tuple[Claim, ...]:
    largest = int(joined.buffers.max())
    slack = int((corrected - joined.buffers).min())
    stable = theorem.verdict == "stable"
    return (
        Claim.judged(
            "join buffers, sum J", f"at most 2K'(k - 1) = {bound}", f"{largest:,}",
            largest <= bound,
            "the lemma is false: its proof bounds the order in which branches end, not when. "
            "Branches that the fast server has done wait for the queue of the slow one, which "
            f"reaches {joined.queue.max():,} here",
        ),
        Claim.judged(
            "places between completions of a job's branches", f"at most 2K' = {2 * k_prime}",
            f"{joined.apart}", joined.apart <= 2 * k_prime,
            "the lemma is false: bounded overtaking fails here",
        ),
        Claim.judged(
            "join buffers, corrected", "(n_fork - 1)(max Q_l + 2K') at most",
            f"{'holds' if slack >= 0 else 'fails'} at {joined.buffers.size:,} instants, by "
            f"{slack:,} at least",
            slack >= 0, "the corrected bound is wrong too",
        ),
        Claim(
            f"thm:fork-join, load {load:.3g}", "stable", theorem.verdict, stable,
            "the theorem does not need the lemma: in the fluid limit the buffers are empty once "
            "the forks are"
            if stable else theorem.reason,
        ),
    )  # fmt: skip


def _buffers(shown: pl.DataFrame) -> Any:
    """Draw the join buffers and both bounds as steps over time, thinned to the largest buffers."""
    bins = (pl.int_range(pl.len()) * _MOST_POINTS // pl.len()).alias("bin")
    shown = (
        shown.group_by(bins, maintain_order=True)
        .agg(pl.all().sort_by("join_buffer").last())
        .drop("bin")
    )
    names = {
        "join_buffer": "join buffers",
        "lemma": "lemma's bound",
        "corrected": "corrected bound",
    }
    long = shown.rename(names).unpivot(index="time_s", variable_name="line", value_name="branches")
    return on_grid(
        alt.Chart(long)
        .mark_line(interpolate="step-after", strokeWidth=1.6)
        .encode(
            x=alt.X(
                "time_s:Q",
                title="Time (s)",
                axis=alt.Axis(tickCount=8),
                scale=alt.Scale(zero=False, nice=False),
            ),
            y=alt.Y("branches:Q", title="Branches that wait at the join"),
            color=alt.Color("line:N", title=None, scale=cycled([*names.values()], COLOURS)),
            strokeDash=alt.StrokeDash(
                "line:N", title=None, scale=cycled([*names.values()], DASHES)
            ),
        )
        .properties(width=620, height=280)
    )
