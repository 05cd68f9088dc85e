"""Unfolded by hand: which requests a job has, what each goes on with, and what its end releases."""

import numpy as np
import pytest

import penstock as ps
from penstock.errors import InputError
from penstock.workload.stage import Stage
from penstock.workload.workflow import Workflow

EVERY_SECOND = ps.Workload.deterministic(1.0, 100, 20)
SHARED = ("stage", "prompt", "output", "pending", "child", "sibling")


def unfolded(stages, *, context="new", count=1, arrivals=EVERY_SECOND, first=None):
    return Workflow("task", arrivals, stages, first=first, context=context).jobs(count)


def columns(jobs, *names):
    return [getattr(jobs, name).tolist() for name in names]


def test_a_chain_is_one_request_after_another_with_the_lengths_of_its_stages():
    calls = [("a", "job", 5), ("b", 7, "job"), ("c", 0, "rest"), ("d", 3, 0)]
    jobs = Workflow.chain("task", EVERY_SECOND, calls).jobs(2)
    assert jobs.arrival_s.tolist() == [0, 1]
    assert jobs.first_request.tolist() == [0, 4, 8]
    assert columns(jobs, *SHARED) == [
        [0, 1, 2, 3] * 2,
        [100, 7, 0, 3] * 2,
        [5, 20, 19, 0] * 2,
        [0, 1, 1, 1] * 2,
        [1, 1, 1, 0] * 2,
        [0] * 8,
    ]
    assert columns(jobs, "reuse", "context", "delay_s") == [[0] * 8] * 3


def test_a_branch_is_taken_as_its_probability_says_and_the_rest_ends():
    stages = {
        "ask": Stage("a", 1, 1, then={"search": 0.25, "answer": 0.5, "end": 0.25}),
        "search": Stage("a", 2, 1),
        "answer": Stage("a", 3, 1),
    }
    jobs = unfolded(stages, count=60_000)
    ways = np.bincount(jobs.stage, minlength=3) / jobs.count
    assert ways[0] == 1
    assert ways[1:] == pytest.approx([0.25, 0.5], abs=4 * 0.5 / np.sqrt(60_000))
    lengths = np.diff(jobs.first_request)
    assert set(lengths.tolist()) == {1, 2}
    roots = jobs.first_request[:-1]
    assert (jobs.child[roots] == lengths - 1).all(), "only a job of two requests has a root with a child"


FORK = {
    "plan": Stage("a", 10, 2, then=["read", "search", "read"]),
    "read": Stage("b", 5, 1, then="write"),
    "search": Stage("b", 7, 3, then="sum"),
    "sum": Stage("a", 4, 1, then="write"),
    "write": Stage("a", 6, 9, join=True),
}


def test_a_fork_releases_all_branches_and_its_join_waits_for_each():
    """plan releases read, search, read; sum follows search; write waits for read, read and sum."""
    jobs = unfolded(FORK, count=2)
    assert jobs.first_request.tolist() == [0, 6, 12]
    assert columns(jobs.first(1), *SHARED) == [
        [0, 1, 2, 1, 3, 4],
        [10, 5, 7, 5, 4, 6],
        [2, 1, 3, 1, 1, 9],
        [0, 1, 1, 1, 1, 3],
        [1, 4, 2, 2, 1, 0],
        [0, 1, 1, 0, 0, 0],
    ]
    assert columns(jobs.span(1, 2), *SHARED) == columns(jobs.first(1), *SHARED)


def test_after_a_join_the_context_is_that_at_the_fork_and_what_each_branch_added():
    """Context 12 at the fork; the branches add 6, 10 + 5 and 6: write goes on with 39, of which read has 18."""
    grown = unfolded(FORK, context="grow")
    assert grown.prompt.tolist() == [10, 17, 19, 17, 26, 45]
    assert columns(grown, "reuse", "context") == [[0] * 6] * 2
    reused = unfolded(FORK, context="reuse")
    assert reused.prompt.tolist() == grown.prompt.tolist()
    assert reused.reuse.tolist() == [0, 12, 12, 12, 22, 18]
    assert reused.context.tolist() == [0, -1, -2, -3, -2, -4]


def test_in_a_nested_fork_each_join_waits_for_the_branches_of_its_own_fork():
    """top -> (left -> (x, y) -> inner, right) -> outer: inner waits for x and y, outer for inner and right."""
    stages = {
        "top": Stage("a", 10, 1, then=["left", "right"]),
        "left": Stage("a", 20, 1, then=["x", "y"]),
        "right": Stage("a", 30, 1, then="outer"),
        "x": Stage("b", 1, 1, then="inner"),
        "y": Stage("b", 2, 1, then="inner"),
        "inner": Stage("b", 3, 1, join=True, then="outer"),
        "outer": Stage("a", 4, 1, join=True),
    }
    jobs = unfolded(stages, context="reuse")
    assert columns(jobs, "stage", "pending", "child", "sibling") == [
        [0, 1, 2, 3, 4, 5, 6],
        [0, 1, 1, 1, 1, 2, 2],
        [1, 2, 4, 2, 1, 1, 0],
        [0, 1, 0, 1, 0, 0, 0],
    ]
    # contexts after: top 11, left 32, right 42, x 34, y 35, inner 32 + 2 + 3 + 4 = 41; outer goes on with 11 + 30 + 31
    assert jobs.prompt.tolist() == [10, 31, 41, 33, 34, 40, 76]
    assert jobs.reuse.tolist() == [0, 11, 11, 32, 32, 34, 42], "inner goes on with x, outer with right"
    assert jobs.context.tolist() == [0, -1, -2, -2, -3, -2, -4]


def test_a_fork_without_a_join_leaves_tasks_that_end_on_their_own():
    stages = {
        "ask": Stage("a", 1, 1, then=["answer", "log"]),
        "answer": Stage("a", 2, 1),
        "log": Stage("b", 3, 1, then="store"),
        "store": Stage("b", 4, 1),
    }
    jobs = unfolded(stages)
    assert columns(jobs, "stage", "pending", "child", "sibling") == [
        [0, 1, 2, 3],
        [0, 1, 1, 1],
        [1, 0, 1, 0],
        [0, 1, 0, 0],
    ]


def test_a_loop_ends_when_its_stage_has_been_visited_as_often_as_it_may():
    stages = {
        "write": Stage("a", 10, 4, then="review", most_visits=3),
        "review": Stage("b", 2, 1, then={"write": 0.999, "end": 0.001}),
    }
    jobs = unfolded(stages, count=200, context="reuse")
    visits = np.bincount(jobs.job[jobs.stage == 0])
    assert set(visits.tolist()) <= {1, 2, 3}
    assert (visits == 3).sum() > 190
    longest = jobs.span(*(int(np.argmax(visits == 3)) + np.array([0, 1])))
    assert longest.stage.tolist() == [0, 1, 0, 1, 0, 1]
    assert longest.prompt.tolist() == [10, 16, 27, 33, 44, 50]
    assert longest.reuse.tolist() == [0, 14, 17, 31, 34, 48]
    assert longest.context.tolist() == [0, -1, -1, -1, -1, -1]


def test_what_a_limit_forbids_goes_to_the_other_ways_in_proportion():
    """After one visit to rare, the ways left have chances .3 and .2: three in five go to x."""
    stages = {
        "ask": Stage("a", 1, 1, then={"rare": 0.5, "x": 0.3, "y": 0.2}),
        "rare": Stage("a", 2, 1, then="ask", most_visits=1),
        "x": Stage("a", 3, 1),
        "y": Stage("a", 4, 1),
    }
    jobs = unfolded(stages, count=40_000)
    again = np.isin(jobs.job, jobs.job[jobs.stage == 1])
    x, y = ((jobs.stage[again] == stage).sum() for stage in (2, 3))
    assert x + y == np.unique(jobs.job[again]).size
    assert x / (x + y) == pytest.approx(0.6, abs=4 * 0.5 / np.sqrt(x + y))
    assert np.bincount(jobs.job[jobs.stage == 1]).max() == 1


def test_where_every_way_is_forbidden_the_branch_ends():
    jobs = unfolded({"a": Stage("p", 1, 1, then="b"), "b": Stage("p", 1, 1, then="a", most_visits=2)})
    assert jobs.stage.tolist() == [0, 1, 0, 1, 0]


def test_branches_of_one_job_share_its_limit():
    """Three branches, and two visits to deep allowed: only two of them go there."""
    stages = {
        "ask": Stage("a", 1, 1, then=["find", "find", "find"]),
        "find": Stage("a", 2, 1, then={"deep": 1.0}),
        "deep": Stage("b", 3, 1, most_visits=2),
    }
    jobs = unfolded(stages, count=3)
    assert jobs.stage.tolist() == [0, 1, 1, 1, 2, 2] * 3
    assert jobs.child.tolist() == [1, 3, 3, 0, 0, 0] * 3


def test_a_join_waits_for_no_branch_that_a_limit_forbids():
    """Two rounds of three votes, four votes allowed: the join of the second round waits for the one that is left."""
    stages = {
        "ask": Stage("a", 1, 1, then=["vote", "vote", "vote"], most_visits=2),
        "vote": Stage("b", 1, 1, then="count", most_visits=4),
        "count": Stage("a", 1, 1, join=True, then="ask"),
    }
    jobs = unfolded(stages)
    assert columns(jobs, "stage", "pending") == [[0, 1, 1, 1, 2, 0, 1, 2], [0, 1, 1, 1, 3, 1, 1, 1]]


def test_delays_are_drawn_in_milliseconds_and_a_transfer_takes_time_for_each_token_of_the_prompt():
    stages = {
        "a": Stage("p", 100, 1, then="b", delay_ms=5),
        "b": Stage("p", 40, 1, then="c", delay_ms=ps.Uniform(10, 20)),
        "c": Stage("p", 1, 1, delay_ms=2.5, transfer_ms_per_token=0.5),
    }
    a, b, c = unfolded(stages, count=1_000).wait_s.reshape(-1, 3).T
    assert set(a.tolist()) == {0.005}
    assert set((b * 1e3).round(9).tolist()) == set(range(10, 21))
    assert c == pytest.approx(0.0225), "2.5 ms and 40 tokens of half a millisecond"


def test_a_disaggregated_call_prefills_at_one_pool_and_decodes_the_rest_at_another():
    workflow = Workflow.disaggregated(
        EVERY_SECOND, prefill="p", decode="d", transfer_ms=3, transfer_ms_per_token=0.25, name="pair"
    )
    assert {name: stage.pool for name, stage in workflow.stages.items()} == {"prefill": "p", "decode": "d"}
    jobs = workflow.jobs(2)
    assert columns(jobs, *SHARED) == [[0, 1] * 2, [100, 0] * 2, [1, 19] * 2, [0, 1] * 2, [1, 0] * 2, [0] * 4]
    assert jobs.delay_s.tolist() == pytest.approx([0, 0.003] * 2)
    assert jobs.column("transfer_s").tolist() == pytest.approx([0, 0.025] * 2)
    assert jobs.column("sender").tolist() == [0, -1] * 2


def test_a_stage_without_a_prompt_hands_the_context_on_from_where_it_was_computed():
    """The second prefill goes on with 100 + 1 + 19 tokens; the first one's replica has the first 101 of them."""
    stages = {
        "prefill": Stage("p", "job", 1, then="decode"),
        "decode": Stage("d", 0, "rest", then="prefill", most_visits=1),
    }
    jobs = unfolded(stages, context="reuse")
    assert jobs.prompt.tolist() == [100, 0, 220]
    assert jobs.reuse.tolist() == [0, 0, 101]
    assert jobs.context.tolist() == [0, 0, -2]


def test_flooded_jobs_are_all_there_at_once_and_begin_at_their_stage_with_forks_around_it_done():
    """Flooded at sum, inside of the fork: write has nobody else to wait for."""
    workflow = Workflow("task", EVERY_SECOND, FORK)
    jobs = workflow.flooded("sum", 3, seed=0)
    assert jobs.arrival_s.tolist() == [0, 0, 0]
    assert columns(jobs, "stage", "pending", "child") == [[3, 4] * 3, [0, 1] * 3, [1, 0] * 3]
    at_join = workflow.flooded("write", 2, seed=0)
    assert columns(at_join, "stage", "pending", "child") == [[4, 4], [0, 0], [0, 0]]
    at_fork = workflow.flooded("plan", 1, seed=0)
    assert columns(at_fork, *SHARED) == columns(workflow.jobs(1), *SHARED)


def test_a_flood_waits_for_no_tool_but_later_calls_do():
    workflow = Workflow(
        "t", EVERY_SECOND, {"a": Stage("p", 1, 1, then="b", delay_ms=9), "b": Stage("p", 1, 1, delay_ms=7)}
    )
    assert workflow.flooded("a", 2, seed=0).delay_s.tolist() == [0, 0.007] * 2


def test_flooded_jobs_of_a_recording_have_its_lengths_together():
    recorded = ps.Workload.from_arrays([0, 1, 2], [1, 2, 3], [10, 20, 30])
    jobs = Workflow.single(recorded, "p").flooded("call", 500, seed=4)
    assert (jobs.output == 10 * jobs.prompt).all()
    assert set(jobs.prompt.tolist()) == {1, 2, 3}


def test_a_job_begins_at_the_stage_it_is_told_to():
    stages = {"b": Stage("p", 2, 1), "a": Stage("p", 1, 1, then="b")}
    assert unfolded(stages, first="a").stage.tolist() == [1, 0]


def test_a_prompt_that_outgrows_the_longest_is_an_error_with_the_remedy():
    stages = {"a": Stage("p", 9_000_000, 1, then="b"), "b": Stage("p", 9_000_000, 1)}
    with pytest.raises(InputError) as caught:
        unfolded(stages, context="grow")
    assert str(caught.value) == (
        "a prompt grows with its context to 18,000,001 tokens, but the longest is 16,777,215; shorten the requests, or "
        "limit loops with most_visits"
    )


def test_jobs_without_an_end_in_sight_are_an_error_with_the_remedy(monkeypatch):
    monkeypatch.setattr("penstock.workload.unfold.MOST_REQUESTS", 10_000)
    stages = {"a": Stage("p", 1, 1, then={"a": 0.999, "end": 0.001})}
    with pytest.raises(InputError, match="more than 10,000 requests, with no end in sight; lower the probabilities"):
        unfolded(stages)
