"""A stage that branches of a fork come to without a join, which may have been forgotten, is noted."""

import numpy as np
import pytest

import penstock as ps
from penstock.workload.stage import Stage
from penstock.workload.workflow import Workflow

POISSON = ps.Workload.poisson(3.0, 1, 1, seed=7)


def call(then=None, **more):
    return Stage("pool", 10, 5, then=then, **more)


def noted(stages):
    return [(notice.split("'")[1], notice) for notice in Workflow("w", POISSON, stages).notices]


def test_a_stage_that_all_branches_reach_without_a_join_is_noted_and_runs_once_for_each():
    """Its successors run as often, but the note is of the one that would wait."""
    stages = {
        "plan": call(["web", "code", "docs"]),
        "web": call("draft"),
        "code": call("draft"),
        "docs": call("draft"),
        "draft": call("critic"),
        "critic": call({"revise": 0.4, "end": 0.6}),
        "revise": call("critic", most_visits=2),
    }
    assert noted(stages) == [
        (
            "draft",
            "stage 'draft' of w is reached by 3 branches of 'plan' and is no join, so it runs once for each that "
            "comes; give it join: true if it is to wait for them",
        )
    ]
    assert np.bincount(Workflow("w", POISSON, stages).jobs(100).stage)[4] == 300
    waiting = stages | {"draft": call("critic", join=True)}
    assert noted(waiting) == []
    assert np.bincount(Workflow("w", POISSON, waiting).jobs(100).stage)[4] == 100


@pytest.mark.parametrize(
    ("stages", "names"),
    [
        # copies of one branch are meant
        ({"a": call(["b"] * 3), "b": call({"b": 0.5, "c": 0.5}), "c": call()}, []),
        ({"a": call(["b", "b", "c"]), "b": call("j"), "c": call("j"), "j": call("d", join=True), "d": call()}, []),
        ({"a": call(["b", "c"]), "b": call({"d": 0.5, "e": 0.5}), "c": call({"d": 0.5, "end": 0.5}), "d": call("e"),
          "e": call()}, ["d", "e"]),
        ({"a": call(["b", "c"]), "b": call({"a": 0.3, "end": 0.7}), "c": call()}, []),  # a fork begun anew
        ({"a": call(["b", "c"]), "b": call("c"), "c": call()}, ["c"]),
        ({"a": call(["b", "c"]), "b": call({"c": 0.3, "end": 0.7}), "c": call({"b": 0.3, "end": 0.7})}, ["b", "c"]),
        ({"a": call(["b", "b", "c"]), "b": call("d"), "c": call("d"), "d": call()}, ["d"]),
        ({"a": call(["b", "c"]), "b": call("d"), "c": call("d"), "d": call("j"), "j": call(join=True)}, ["d"]),
        ({"a": call({"b": 0.5, "c": 0.5}), "b": call("d"), "c": call("d"), "d": call()}, []),  # no fork
        # each branch forks and joins in itself, and what comes then waits for neither
        ({"a": call(["b", "c"]), "b": call(["d", "e"]), "c": call(["e", "d"]), "d": call("j"), "e": call("j"),
          "j": call("k", join=True), "k": call("l"), "l": call()}, ["d", "e", "k"]),
        ({"a": call(["b", "c"]), "b": call({"d": 0.0, "end": 1.0}), "c": call("d"), "d": call()}, []),  # no chance
    ],
)  # fmt: skip
def test_only_what_different_branches_of_a_fork_reach_first_is_noted(stages, names):
    assert [name for name, _ in noted(stages)] == names
