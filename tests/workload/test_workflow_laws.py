"""Laws of workflows, on workflows drawn at random: forks inside loops inside branches, as long as they are legal."""

import collections
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.workload.means import released
from penstock.workload.stage import Stage
from penstock.workload.workflow import CONTEXTS, Workflow

ARRIVALS = ps.Workload.poisson(2.0, ps.Geometric(30), ps.Uniform(1, 9), seed=5)


def blocks_of(requests):
    """Unfold so many requests at a time, and sample means from fewer jobs: a fixture that lasts for the module."""

    @pytest.fixture(scope="module")
    def blocks():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("penstock.workload.drawing._REQUESTS", requests)
            patch.setattr("penstock.workload.drawing._FEWEST_AT_A_TIME", 1)
            patch.setattr("penstock.workload.means.MOST_SAMPLED", SAMPLED)
            yield

    return blocks


small_blocks, large_blocks = blocks_of(500), blocks_of(2**18)


SAMPLED = 4_096
lengths = st.sampled_from([0, 1, 7, "job", ps.Uniform(1, 5)])
parts = st.recursive(
    st.tuples(st.just("call"), lengths, st.sampled_from([0, 2, "job", "rest", ps.Geometric(3)])),
    lambda inner: st.one_of(
        st.tuples(st.just("branch"), st.lists(inner, min_size=2, max_size=3)),
        st.tuples(st.just("fork"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.just("chain"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.just("loop"), inner, st.sampled_from([0.2, 0.6])),
        st.tuples(st.just("at most"), inner, st.integers(1, 3)),
    ),
    max_leaves=6,
)


class Builder:
    """Writes a part of a workflow down as stages, from its end: each knows by name what comes after it."""

    def __init__(self):
        self.stages = {}
        self.number = itertools.count()

    def stage(self, prompt, output, **more):
        name = f"s{next(self.number)}"
        self.stages[name] = Stage("pool", prompt, output, **more)
        return name

    def build(self, part, then):
        kind, given, *more = part
        if kind == "call":
            return self.stage(given, more[0], then=then)
        if kind == "chain":
            for inner in reversed(given):
                then = self.build(inner, then)
            return then
        if kind == "branch":
            ways = collections.Counter()
            for way, inner in enumerate(given):
                ways[self.build(inner, then)] += [0.5, 0.3, 0.2][way]
            return self.stage(1, 1, then=dict(ways) | {"end" if then is None else then: 1 - sum(ways.values())})
        if kind == "fork":
            join = self.stage(2, 1, then=then, join=True)
            return self.stage(3, 1, then=[self.build(inner, join) for inner in given])
        again = self.stage(1, 2)
        entry = self.build(given, again)
        back, chance = entry, more[0]
        if kind == "at most":
            back, chance = self.stage(5, 0, then=entry, most_visits=more[0]), 0.9
        self.stages[again] = Stage("pool", 1, 2, then={back: chance, "end" if then is None else then: 1 - chance})
        return entry


@st.composite
def workflows(draw, context=None):
    builder = Builder()
    tail = None
    if draw(st.booleans()):  # tasks that end on their own
        tail = builder.stage(1, 1, then=[builder.stage(4, 1), builder.stage(0, 2)])
    first = builder.build(draw(parts), tail)
    return Workflow("task", ARRIVALS, builder.stages, first=first, context=context or draw(st.sampled_from(CONTEXTS)))


def families(jobs, job):
    """Return the children and the parents of each request of a job, followed link by link."""
    children, parents = collections.defaultdict(list), collections.defaultdict(list)
    for request in range(*jobs.first_request[job : job + 2].tolist()):
        child = request + jobs.child[request] if jobs.child[request] else None
        while child is not None:
            children[request].append(int(child))
            parents[int(child)].append(request)
            child = child + jobs.sibling[child] if jobs.sibling[child] else None
    return children, parents


@pytest.mark.usefixtures("small_blocks")
@settings(max_examples=60)
@given(workflows())
def test_every_job_is_a_walk_through_its_workflow(workflow):
    """The end of each request releases what its stage says, and a join waits for each branch of one fork."""
    names, stages = list(workflow.stages), list(workflow.stages.values())
    jobs = workflow.jobs(40)
    for job in range(jobs.count):
        children, parents = families(jobs, job)
        forks = {}  # of each request, the forks that are open, outermost first
        visits = collections.Counter()
        for request in range(*jobs.first_request[job : job + 2].tolist()):
            stage = stages[jobs.stage[request]]
            visits[stage] += 1
            assert jobs.pending[request] == len(parents[request])
            assert all(parent < request for parent in parents[request])
            after = [names[jobs.stage[child]] for child in children[request]]
            limited = any(workflow.stages[name].most_visits for name in names)
            if isinstance(stage.then, list):
                assert after == stage.then
            elif isinstance(stage.then, dict):
                assert len(after) == 1 or (after == [] and (stage.then.get("end", 0) > 0 or limited))
                assert all(stage.then[name] > 0 for name in after)
            else:
                assert after == ([] if stage.then is None else [stage.then])
            if not parents[request]:
                forks[request] = ()
                assert request == jobs.first_request[job]
                continue
            above = parents[request][0]
            inside = forks[above] + ((above,) if isinstance(stages[jobs.stage[above]].then, list) else ())
            if stage.join:
                assert {forks[parent] for parent in parents[request]} == {inside}, "branches of one fork"
                assert len(parents[request]) == len(children[inside[-1]])
                inside = inside[:-1]
            else:
                assert len(parents[request]) == 1
            forks[request] = inside
        assert all(count <= (stage.most_visits or count) for stage, count in visits.items())


def own_prompt(stage, prompt, context):
    return 0 if stage.prompt == 0 else prompt - context


@pytest.mark.usefixtures("small_blocks")
@settings(max_examples=50)
@given(workflows(context="reuse"))
def test_contexts_grow_by_what_is_made_on_the_way_and_reuse_is_what_another_request_holds(workflow):
    stages = list(workflow.stages.values())
    jobs = workflow.jobs(30)
    drawn = ARRIVALS.requests(30)
    for job in range(jobs.count):
        children, parents = families(jobs, job)
        before, after, forks = {}, {}, {}
        for request in range(*jobs.first_request[job : job + 2].tolist()):
            stage, above = stages[jobs.stage[request]], parents[request]
            if not above:
                before[request], forks[request] = 0, ()
            elif stage.join:
                fork = forks[above[0]][-1]
                before[request] = after[fork] + sum(after[parent] - after[fork] for parent in above)
                forks[request] = forks[above[0]][:-1]
            else:
                before[request] = after[above[0]]
                forks[request] = forks[above[0]] + (
                    (above[0],) if len(children[above[0]]) > 1 or _forks(stages, jobs, above[0]) else ()
                )
            own = own_prompt(stage, int(jobs.prompt[request]), before[request])
            if isinstance(stage.prompt, int):
                assert own == stage.prompt
            elif stage.prompt == "job":
                assert own == drawn.prompt_tokens[job]
            else:
                assert 1 <= own <= 5
            after[request] = before[request] + own + int(jobs.output[request])
            holder = request + int(jobs.context[request])
            if jobs.context[request]:
                assert jobs.prompt[holder] > 0
                assert 0 < jobs.reuse[request] == min(after[holder], before[request])
            else:
                assert jobs.reuse[request] == 0
            assert jobs.reuse[request] <= max(0, jobs.prompt[request])


def _forks(stages, jobs, request):
    return isinstance(stages[jobs.stage[request]].then, list)


def same(one, other, *but):
    return all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in one.__dataclass_fields__ if name not in but
    )


@pytest.mark.usefixtures("small_blocks")
@settings(max_examples=10)
@given(workflows(), st.integers(1, 300), st.floats(0.01, 100))
def test_the_same_jobs_come_however_many_are_asked_for_and_however_fast(workflow, count, factor):
    jobs = workflow.jobs(300)
    assert same(workflow.jobs(count), jobs.first(count))
    faster = workflow.with_load(factor).jobs(300)
    assert same(faster, jobs, "arrival_s")
    np.testing.assert_allclose(faster.arrival_s, jobs.arrival_s / factor, rtol=1e-9)


@pytest.mark.usefixtures("small_blocks")
@settings(max_examples=30)
@given(workflows(), st.integers(0, 99), st.data())
def test_a_flood_of_more_jobs_begins_with_the_same_ones(workflow, seed, data):
    stage = data.draw(st.sampled_from(list(workflow.stages)))
    flood = workflow.flooded(stage, 50, seed)
    assert same(workflow.flooded(stage, 20, seed), flood.first(20))
    roots = flood.first_request[:-1]
    assert (flood.stage[roots] == list(workflow.stages).index(stage)).all()
    assert not flood.pending[roots].any()
    assert not flood.arrival_s.any()
    parent, child = released(flood)
    assert np.bincount(child, minlength=flood.requests).tolist() == flood.pending.tolist(), (
        "a flood leaves none waiting"
    )
    assert (flood.job[parent] == flood.job[child]).all()


@pytest.mark.usefixtures("large_blocks")
@settings(max_examples=10)
@given(workflows(context="new"))
def test_mean_visits_and_tokens_are_those_of_the_jobs(workflow):
    """Within five standard errors of 8,192 jobs, and exactly where all jobs are alike."""
    means, jobs = workflow.means(), workflow.jobs(8_192)
    size, count = len(workflow.stages), jobs.count
    cell = jobs.job * size + jobs.stage
    for exact, weights in ((means.visits, None), (means.tokens, jobs.prompt + jobs.output.astype(float))):
        each = np.bincount(cell, weights, count * size).reshape(count, size)
        error = each.std(axis=0) / np.sqrt(count)
        spread = 0 if means.sampled is None else each.std(axis=0) / np.sqrt(SAMPLED)
        assert (np.abs(each.mean(axis=0) - exact) <= 5 * np.hypot(error, spread) + 1e-9).all()


@pytest.mark.usefixtures("large_blocks")
@settings(max_examples=25)
@given(workflows())
def test_visits_solve_the_traffic_equations_and_joins_take_one_in_k(workflow):
    means = workflow.means()
    assert means.external.sum() == 1
    assert means.visits == pytest.approx(means.external + means.onward.T @ means.visits, abs=1e-9)
    for join, stage in enumerate(workflow.stages.values()):
        if stage.join and means.sampled is None:
            arriving = [s for s in range(len(means.visits)) if means.onward[s, join] > 0]
            assert all(means.onward[s, join] <= 1 + 1e-12 for s in arriving)
