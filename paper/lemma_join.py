"""A counter-example to the bound on join buffers (corrects the paper).

Jobs come to q_1, fork to other servers, and wait for all of them, first come, first served throughout. The paper's
lem:join-bound-gen bounds how many branches are done and wait; here they outgrow that.
"""

import altair as alt
import numpy as np
import polars as pl

import penstock as ps
from paper.item import Item
from paper.looks import drawn_with

BATCH_S = (0.1, 0.1, 1.0)  # seconds of a batch of q_1, then of each server of the fork
BUDGET = 2  # such that a batch carries a request's tokens, and a load is the rate times the seconds of a batch
JOBS = ps.Workload.poisson(0.96, 1, 1, seed=0)
COUNT = 20_000
SHOWN_S = 2000  # of the figure, about the largest join buffer
MOST_POINTS = 1_200

item = Item(__name__, __doc__)


def server(batch_s):
    return ps.Server(ps.Affine(c=batch_s, a=0.0), BUDGET, policy="sarathi", convention="paper")


def at_the_join(came, done):
    """Return when branches end and, just after each, how many are done and wait (the sum of J_l), and how many requests
    are at the fullest server (the largest Q_l).

    ``came``: when each job forks; ``done``: when each of its branches ends, an array per server.
    """
    instants = np.unique(np.concatenate(done))

    def count(times):
        return np.searchsorted(np.sort(times), instants, side="right")

    released = count(np.max(done, axis=0))
    buffers = np.sum([count(times) - released for times in done], axis=0)
    return instants, buffers, np.max([count(came) - count(times) for times in done], axis=0)


def places_apart(done):
    """Return by how many places in the order of completion any two branches of a job differ, at most."""
    ranks = [np.argsort(np.argsort(times, kind="stable"), kind="stable") for times in done]
    return int(np.ptp(ranks, axis=0).max())


# 1. The servers one after another, since the network feeds forward.
first, *forks = map(server, BATCH_S)
run = ps.simulate(JOBS, first, requests=COUNT, record="allocations")
came = np.sort(run.requests["finish_ns"].to_numpy())
forked = ps.Workload.from_arrays(came * 1e-9, np.ones(COUNT, int), np.ones(COUNT, int))
runs = [ps.simulate(forked, fork, requests=COUNT, record="allocations") for fork in forks]
done = [run.requests["finish_ns"].to_numpy() + came[0] for run in runs]
instants, buffers, queue = at_the_join(came, done)
apart = places_apart(done)

# 2. The bound of the lemma, and the corrected one, in which the queues count.
k = max(1, *(ps.audit(each).overtake_k for each in (run, *runs)))
k_prime = k + 2 * BUDGET
bound = 2 * k_prime * len(forks)
corrected = (len(forks) - 1) * (queue + 2 * k_prime)
largest, spare = int(buffers.max()), int((corrected - buffers).min())
item.claim(
    "join buffers, sum J", f"at most 2K'(k - 1) = {bound}", f"{largest:,}", largest <= bound,
    "the lemma is false: its proof bounds the order in which branches end, not when. Branches that the fast server has "
    f"done wait for the queue of the slow one, which reaches {queue.max():,} here",
)  # fmt: skip
item.claim(
    "places between completions of a job's branches", f"at most 2K' = {2 * k_prime}", f"{apart}", apart <= 2 * k_prime,
    "the lemma is false: bounded overtaking fails here",
)  # fmt: skip
item.claim(
    "join buffers, corrected", "(n_fork - 1)(max Q_l + 2K') at most",
    f"{'holds' if spare >= 0 else 'fails'} at {buffers.size:,} instants, by {spare:,} at least", spare >= 0,
    "the corrected bound is wrong too",
)  # fmt: skip

# 3. The theorem that rests on the lemma, of the same as a network, with a last server at the join.
names = [f"q_{index}" for index in range(1, len(BATCH_S) + 2)]
stages = {
    names[0]: ps.Stage(names[0], 1, 1, then=names[1:-1]),
    **{name: ps.Stage(name, 1, 1, then=names[-1]) for name in names[1:-1]},
    names[-1]: ps.Stage(names[-1], 1, 1, join=True),
}
pools = {name: ps.Pool(each) for name, each in zip(names, (first, *forks, first), strict=True)}
theorem = ps.certify(ps.Network(pools, [ps.Workflow("job", JOBS, stages)]))
loads = [JOBS.rate * batch_s for batch_s in BATCH_S]
stable = theorem.verdict == "stable"
no_need = "the theorem does not need the lemma: in the fluid limit the buffers are empty once the forks are"
item.claim(
    f"thm:fork-join, load {max(loads):.3g}", "stable", theorem.verdict, stable,
    known=no_need if stable else theorem.reason,
)  # fmt: skip
item.note(
    f"Loads {', '.join(f'{load:.3g}' for load in loads)} of q_1 and of the fork; K-FCFS held with K = {k}, so K' = K + "
    f"v_max b_max = {k_prime}. How large the buffers get depends on the seed and on the number of jobs"
)

# 4. The figure: the time about the largest buffers, thinned to the largest of each part.
time_s = instants * 1e-9
rows = pl.DataFrame({"time_s": time_s, "join_buffer": buffers, "lemma": bound, "corrected": corrected})
rows = rows.filter((pl.col("time_s") - time_s[buffers.argmax()]).abs() <= SHOWN_S / 2)
parts = (pl.int_range(pl.len()) * MOST_POINTS // pl.len()).alias("part")
thinned = rows.group_by(parts, maintain_order=True).agg(pl.all().sort_by("join_buffer").last()).drop("part")
lines = {"join_buffer": "join buffers", "lemma": "lemma's bound", "corrected": "corrected bound"}
drawing = (
    alt.Chart(thinned.rename(lines).unpivot(index="time_s", variable_name="line", value_name="branches"))
    .mark_line(interpolate="step-after", strokeWidth=1.6)
    .encode(
        x=alt.X("time_s:Q", title="Time (s)", axis=alt.Axis(tickCount=8), scale=alt.Scale(zero=False, nice=False)),
        y=alt.Y("branches:Q", title="Branches that wait at the join"),
        **drawn_with("line", list(lines.values()), alt.Legend(title=None)),
    )
    .properties(width=620, height=280)
)
item.show(
    rows, {"Join buffers over time, with the bound of the lemma and the corrected one.": drawing},
    f"{SHOWN_S} s about the largest of {time_s[-1]:,.0f} s: the join buffer, the lemma's bound, and the corrected one.",
)  # fmt: skip
