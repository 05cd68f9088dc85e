"""What must be true of workflows: their arrivals, their means, and what is refused."""

import dataclasses
import itertools

import numpy as np
import pytest
from scipy import stats

import penstock as ps
from penstock.errors import InputError
from penstock.workload.arrivals import BLOCK
from penstock.workload.lengths import Empirical
from penstock.workload.routes import closed_loop
from penstock.workload.stage import Stage
from penstock.workload.workflow import Workflow

POISSON = ps.Workload.poisson(3.0, ps.Geometric(40), ps.Uniform(2, 30), seed=7)
RECORDED = ps.Workload.from_arrays([3.0, 3.5, 5.0, 13.0], [1, 2, 3, 4], [10, 20, 30, 40])


def call(then=None, **more):
    return Stage("pool", 10, 5, then=then, **more)


REFLECTION = {
    "write": Stage("big", ps.Geometric(50), ps.Uniform(1, 9), then="review"),
    "review": Stage("small", 20, 2, then={"write": 0.25, "end": 0.75}),
}
RESEARCH = {
    "plan": Stage("big", "job", 8, then=["read", "read", "search"]),
    "read": Stage("small", ps.Uniform(10, 20), 3, then={"read": 0.5, "write": 0.5}),
    "search": Stage("small", 5, 1, then="write"),
    "write": Stage("big", 30, "job", join=True, then={"plan": 0.2, "end": 0.8}),
}
MIXED_FORKS = {
    "ask": call({"two": 0.5, "three": 0.5}),
    "two": call(["vote", "vote"]),
    "three": call(["vote"] * 3),
    "vote": call({"vote": 0.5, "count": 0.5}),
    "count": call(join=True),
}
GRAPHS = {"reflection": REFLECTION, "research": RESEARCH, "mixed forks": MIXED_FORKS}
graphs = pytest.mark.parametrize("stages", GRAPHS.values(), ids=list(GRAPHS))


# Arrivals


@pytest.mark.parametrize("workload", [POISSON, RECORDED, ps.Workload.preset("azure-conv")], ids=lambda w: w.name)
@pytest.mark.parametrize("seed", [None, 11])
def test_a_workflow_of_one_call_is_its_workload(workload, seed):
    count = workload.rows or BLOCK + 1_000
    jobs = Workflow.single(workload, "pool").jobs(count, seed)
    requests = (workload if seed is None else workload.with_seed(seed)).requests(count)
    assert jobs.arrival_s.tolist() == requests.arrival_s.tolist()
    assert jobs.prompt.tolist() == requests.prompt_tokens.tolist()
    assert jobs.output.tolist() == requests.output_tokens.tolist()
    assert jobs.first_request.tolist() == list(range(count + 1))


def test_lengths_that_come_with_a_job_stay_together_at_every_stage():
    joint = ps.Workload.poisson(1.0, Empirical([5, 6, 7], [50, 60, 70]))
    jobs = Workflow.chain("w", joint, [("p", "job", 1), ("p", 3, "rest"), ("p", "job", "job")]).jobs(1_000)
    prompt, output = jobs.prompt.reshape(-1, 3), jobs.output.reshape(-1, 3)
    assert (prompt[:, 0] == prompt[:, 2]).all()
    assert (output[:, 2] == 10 * prompt[:, 0]).all()
    assert (output[:, 1] == output[:, 2] - 1).all()


def test_jobs_do_not_depend_on_the_pools_that_serve_them():
    elsewhere = {name: dataclasses.replace(stage, pool="other") for name, stage in RESEARCH.items()}
    one, other = (Workflow("w", POISSON, stages).jobs(500) for stages in (RESEARCH, elsewhere))
    for name, column in vars(one).items():
        assert np.array_equal(column, getattr(other, name)), name


def test_another_distribution_of_one_length_changes_no_other_draw():
    shorter = {**RESEARCH, "read": dataclasses.replace(RESEARCH["read"], prompt=ps.Geometric(3))}
    one, other = (Workflow("w", POISSON, stages).jobs(2_000) for stages in (RESEARCH, shorter))
    for name in ("arrival_s", "first_request", "stage", "output", "pending", "child", "sibling", "coin"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist()
    reads = one.stage == 1
    assert one.prompt[~reads].tolist() == other.prompt[~reads].tolist()
    assert one.prompt[reads].tolist() != other.prompt[reads].tolist()


def test_another_seed_gives_other_jobs():
    workflow = Workflow("w", POISSON, RESEARCH)
    one, other = workflow.jobs(500), workflow.jobs(500, seed=8)
    for name in ("arrival_s", "stage", "prompt", "coin"):
        assert getattr(one, name).tolist() != getattr(other, name).tolist()
    assert workflow.jobs(500, seed=7).coin.tolist() == one.coin.tolist()


def test_coins_are_even_and_do_not_follow_lengths():
    jobs = Workflow.chain("w", POISSON, [("p", ps.Geometric(50), 1), ("p", ps.Geometric(50), 1)]).jobs(50_000)
    assert stats.chisquare(np.bincount(jobs.coin >> 28, minlength=16)).pvalue > 1e-3
    for one, other in itertools.combinations([*jobs.coin.reshape(-1, 2).T, *jobs.prompt.reshape(-1, 2).T], 2):
        assert abs(stats.spearmanr(one, other)[0]) < 4 / np.sqrt(50_000)


def test_a_recording_ends_and_asking_for_more_names_the_remedy():
    workflow = Workflow.single(RECORDED, "pool", name="replay")
    assert workflow.ends
    assert not Workflow.single(POISSON, "pool").ends
    assert [block.count for block in workflow.blocks()] == [4]
    with pytest.raises(InputError, match="5 jobs asked for, but replay has 4, as recorded arrivals are replayed once"):
        workflow.jobs(5)


def test_a_factor_on_the_load_is_one_on_the_rate():
    assert Workflow.single(POISSON, "pool").with_load(1.5).rate == pytest.approx(4.5)
    assert Workflow.single(RECORDED, "pool").with_load(2).jobs(4).arrival_s.tolist() == pytest.approx([0, 0.25, 1, 5])


def test_requests_have_the_priorities_declared_outputs_and_hash_ids_of_their_job():
    traced = ps.Workload.from_arrays([0.0, 1.0], [64, 64], [3, 1], [5, 6], [9, 2], hash_ids=[[1], [1]], hash_block=64)
    jobs = Workflow.single(traced, "p").jobs(2)
    assert jobs.priority.tolist() == [5, 6]
    assert jobs.declared.tolist() == [9, 2]
    assert jobs.prefix.tolist() == [0, 1]
    own = Workflow("w", POISSON, {"a": call("b"), "b": call()}, priority=-2).jobs(3)
    assert own.priority.tolist() == [-2] * 6


# Pools by the length of prompts


BY_LENGTH = {"long": None, "short": 30, "middle": 60}


@pytest.mark.parametrize(
    "workload",
    [
        POISSON, ps.Workload.gamma(3.0, 2.5, ps.Geometric(40), 5),
        ps.Workload.from_arrays([0.0, 0.5, 0.5, 9.0], [30, 31, 61, 60], [1, 2, 3, 4]),
    ],
    ids=["poisson", "gamma", "recorded"],
)  # fmt: skip
def test_jobs_by_length_are_the_requests_of_the_one_stream(workload):
    """Arrivals and lengths are those of the workload, to the last bit, and prompts alone say who goes where."""
    count = workload.rows or 5_000
    jobs, requests = Workflow.by_length(workload, BY_LENGTH).jobs(count), workload.requests(count)
    assert jobs.arrival_s.tolist() == requests.arrival_s.tolist()
    assert jobs.prompt.tolist() == requests.prompt_tokens.tolist()
    assert jobs.output.tolist() == requests.output_tokens.tolist()
    stages = np.array(["short", "middle", "long"])[np.searchsorted([30, 60], jobs.prompt)]
    assert [list(BY_LENGTH)[stage] for stage in jobs.stage] == stages.tolist()


def test_means_by_length_are_those_of_the_prompts_that_begin_there():
    """Uniform prompts on 1..100 and constant outputs, in closed form."""
    workload = ps.Workload.poisson(3.0, ps.Uniform(1, 100), 7)
    means = Workflow.by_length(workload, {"short": 25, "long": None}).means()
    expected = {"external": [0.25, 0.75], "visits": [0.25, 0.75], "prompt": [13, 63], "output": [7, 7]}
    for name, values in expected.items():
        np.testing.assert_allclose(getattr(means, name), values, rtol=0.03)
    assert means.max_prompt.tolist() == [25, 100]
    assert means.sampled is not None
    wrong = abs(means.tokens - np.array([0.25 * 20, 0.75 * 70]))
    assert (wrong <= 4 * means.standard_error).all()


def test_a_flood_by_length_has_prompts_that_begin_there():
    flow = Workflow.by_length(POISSON, BY_LENGTH)
    assert flow.flooded("short", 500, 1).prompt.max() <= 30
    assert flow.flooded("long", 500, 1).prompt.min() > 60
    nobody = Workflow.by_length(RECORDED, {"short": 9, "long": None})
    with pytest.raises(InputError, match="none of 4 prompts of arrays begins at 'long'"):
        nobody.flooded("long", 5, 1)


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        ({"a": 10, "b": 20}, "the longest prompts of workload are"),
        ({"a": None, "b": None}, "the longest prompts of workload are"),
        ({"a": 10, "b": 10, "c": None}, "the longest prompts of workload are"),
        ({"a": 0, "b": None}, "the longest prompt of a is 0, but must be a whole number from 1"),
        ({"a": "few", "b": None}, "the longest prompt of a is 'few'"),
        ("short", "pools by length are 'short'; give the longest prompt of each"),
        ({}, "the stages of workload are {}"),
    ],
)
def test_pools_by_length_that_leave_it_unclear_are_refused(pools, message):
    with pytest.raises(InputError) as caught:
        Workflow.by_length(POISSON, pools)
    assert str(caught.value).startswith(message)


def test_a_workflow_says_what_it_is():
    assert Workflow("agent", POISSON, RESEARCH).describe() == "agent: workload: Poisson arrivals, 4 stages"


# Means


def test_means_of_a_loop_are_worked_by_hand():
    """A quarter of the reviews go back: 1 / (1 - 1/4) visits to both."""
    means = Workflow("w", POISSON, REFLECTION).means()
    assert means.sampled is None
    assert means.external.tolist() == [1, 0]
    assert means.onward.tolist() == [[0, 1], [0.25, 0]]
    assert means.visits == pytest.approx([4 / 3, 4 / 3])
    assert means.prompt == pytest.approx([50, 20])
    assert means.output.tolist() == [5, 2]
    assert means.both.tolist() == [1, 1]
    assert means.tokens == pytest.approx([4 / 3 * 55, 4 / 3 * 22])
    assert (means.max_prompt.tolist(), means.max_output.tolist()) == ([np.inf, 20], [9, 2])
    assert not means.bounded
    assert not means.standard_error.any()


def test_means_of_a_fork_and_its_join_are_worked_by_hand():
    """Rounds are geometric, 1/.8; in each plan, 2 reads of 1/(1 - .5) visits, search and write, which three release."""
    means = Workflow("w", POISSON, RESEARCH).means()
    assert means.visits == pytest.approx(np.array([1, 4, 1, 1]) / 0.8)
    assert means.onward == pytest.approx(
        np.array([[0, 2, 1, 0], [0, 0.5, 0, 0.5 / 3], [0, 0, 0, 1 / 3], [0.2, 0, 0, 0]])
    )
    assert means.prompt == pytest.approx([POISSON.mean_prompt, 15, 5, 30])
    assert means.output == pytest.approx([8, 3, 1, 16])


def test_a_stage_in_forks_of_different_size_is_an_average_of_them():
    """Two or three votes of two visits each, equally likely: of 5 visits 5/2 end a branch, and these make one join."""
    means = Workflow("w", POISSON, MIXED_FORKS).means()
    assert means.sampled is None
    assert means.visits == pytest.approx([1, 0.5, 0.5, 5, 1])
    assert means.onward[3] == pytest.approx([0, 0, 0, 0.5, 0.2])


def test_means_of_a_disaggregated_pair_leave_no_first_token_to_the_decode():
    means = Workflow.disaggregated(POISSON, prefill="p", decode="d").means()
    assert means.prompt == pytest.approx([40, 0])
    assert means.output == pytest.approx([1, 15])
    assert means.both.tolist() == [1, 0]
    assert means.max_output.tolist() == [1, 29]


@graphs
def test_65536_jobs_agree_with_the_means(stages):
    workflow = Workflow("w", POISSON, stages)
    jobs, means = workflow.jobs(65_536), workflow.means()
    size = len(stages)
    for exact, weights in (
        (means.visits, None), (means.visits * means.prompt, jobs.prompt), (means.visits * means.output, jobs.output),
    ):  # fmt: skip
        each = np.bincount(jobs.job * size + jobs.stage, weights, jobs.count * size).reshape(-1, size)
        assert (np.abs(each.mean(axis=0) - exact) <= 4 * each.std(axis=0) / 256 + 1e-9).all()


def test_means_with_a_limit_are_sampled_within_their_standard_error():
    """write up to 3 times, each followed by another with 1/2: 1 + 1/2 + 1/4 visits to both."""
    stages = {"write": Stage("p", 8, 2, then="review", most_visits=3), "review": call({"write": 0.5, "end": 0.5})}
    means = Workflow("w", POISSON, stages).means()
    assert means.sampled == 65_536
    assert means.visits == pytest.approx([1.75, 1.75], abs=4 * np.sqrt(11 / 16) / 256)
    assert means.standard_error == pytest.approx([10 * np.sqrt(11 / 16) / 256, 15 * np.sqrt(11 / 16) / 256], rel=0.05)
    assert means.prompt.tolist() == [8, 10]
    assert means.bounded


def test_means_with_limited_branches_count_each_edge_into_a_join_by_the_branches_that_came():
    """Rounds of three votes and of the one left: of four votes, three make a third of a count each, and one a whole."""
    stages = {
        "ask": call(["vote"] * 3, most_visits=2),
        "vote": call("count", most_visits=4),
        "count": call("ask", join=True),
    }
    means = Workflow("w", POISSON, stages).means()
    assert means.onward == pytest.approx(np.array([[0, 2, 0], [0, 0, 0.5], [0.5, 0, 0]]))
    assert means.visits == pytest.approx([2, 4, 2])


def test_means_of_a_growing_context_are_sampled_and_bounded_where_loops_are():
    """Prompts 10, 10 + 15, 10 + 15 + 15 with chances 1, 1/2, 1/4 over 7/4 visits: 70/7 + 15 (1/2 + 2/4) / (7/4)."""
    loop = {"a": call({"a": 0.5, "end": 0.5}, most_visits=3)}
    means = Workflow("w", POISSON, loop, context="grow").means()
    assert means.prompt == pytest.approx([10 + 15 / 1.75], rel=0.01)
    assert means.bounded
    assert means.max_prompt[0] >= 40
    endless = {"a": call({"a": 0.5, "end": 0.5})}
    assert not Workflow("w", POISSON, endless, context="grow").means().bounded
    chain = Workflow.chain("w", POISSON, [("p", 10, 5), ("p", 10, 5)], context="reuse").means()
    assert chain.prompt.tolist() == [10, 25]
    assert chain.bounded


def test_a_rest_after_a_prompt_has_a_share_without_a_first_token_that_is_sampled():
    """One output in four is a single token, of which nothing is left."""
    workload = ps.Workload.poisson(1.0, 5, ps.Uniform(1, 4))
    means = Workflow("w", workload, {"a": Stage("p", 3, "rest")}).means()
    assert means.output == pytest.approx([1.5])
    assert means.both == pytest.approx([0.75], abs=4 * np.sqrt(3 / 16) / 256)


# Long jobs


def looping(chance, most_visits=None):
    return Workflow("w", POISSON, {"a": call({"a": chance, "end": 1 - chance}, most_visits=most_visits)})


def test_the_longer_jobs_are_the_fewer_are_sampled_for_their_means():
    few, many = looping(0.99, 150).means(), looping(0.9, 20).means()
    requests = (1 - 0.99**150) / 0.01
    assert few.sampled == pytest.approx(2**21 / requests, rel=0.2), "256 jobs say how long they are"
    assert many.sampled == 65_536
    error = np.sqrt(few.covariance[0, 0]) / 15  # of the mean visits, each of 15 tokens
    assert few.visits[0] == pytest.approx(requests, abs=4 * error)


@pytest.mark.slow
def test_means_of_ten_thousand_visits_come_from_256_jobs():
    means = looping(1.0, 10_000).means()
    assert means.visits == pytest.approx([10_000])
    assert means.sampled == 256


def test_jobs_of_thousands_of_requests_are_drawn_and_their_first_do_not_depend_on_how_many():
    few, more = (looping(1.0, 2_000).jobs(count) for count in (3, 4))
    assert np.diff(few.first_request).tolist() == [2_000] * 3
    assert more.first(3).coin.tolist() == few.coin.tolist()


@pytest.mark.parametrize(("workflow", "many"), [(looping(1 - 1e-6), "1,000,000"), (looping(1, 10**6), "more than")])
def test_jobs_too_long_to_draw_are_refused_with_how_many_requests_they_have(workflow, many):
    with pytest.raises(InputError, match=f"^a job of w has {many} .*requests on average, .* most_visits$"):
        workflow.jobs(3)


def test_means_of_jobs_too_long_to_draw_are_still_exact_without_limits():
    assert looping(1 - 1e-6).means().visits == pytest.approx([1e6])


# Refused


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (
            {"a": call("b"), "b": call("a")},
            "agent never ends: no path leads out of the loop a -> b -> a; let one of its stages end with some "
            "probability, or limit one with most_visits",
        ),
        (
            {"s": call({"a": 0.5, "end": 0.5}), "a": call("b"), "b": call({"a": 0.1, "b": 0.9})},
            "agent never ends: no path leads out of the loop b -> b; let",
        ),
        (
            {"a": call(["b", "c"]), "b": call(), "c": call("a")},
            "agent never ends: no path leads out of the loop a -> c -> a; let",
        ),
        (
            {"a": call(["b", "b"]), "b": call({"a": 0.6, "end": 0.4})},
            "agent never ends on average: in the loop a -> b -> a each request is followed by 1.095 more, so they "
            "multiply; lower a probability, or limit a stage with most_visits",
        ),
        (
            {"a": call({"a": 1 - 1e-9, "end": 1e-9})},
            "agent never ends on average: in the loop a -> a each request is followed by one more, or so nearly that a "
            "job has over 1,000,000,000 of them; lower a probability, or limit a stage with most_visits",
        ),
        (
            {"a": call({"b": 0.5, "c": 0.5}), "b": call("a", most_visits=2), "c": call("a")},
            "agent never ends: no path leads out of the loop a -> c -> a; let",
        ),
        (
            {"a": call(["b", "c"]), "b": call("j"), "c": call({"j": 0.5, "end": 0.5}), "j": call(join=True)},
            "stage 'a' of agent forks, and its branch 'b' may come to the join 'j' while its branch 'c' may end, so a "
            "join would wait for ever; let all branches come to the same join on every path, or none to any",
        ),
        (
            {"a": call(["b"]), "b": call({"j": 0.5, "k": 0.5}), "j": call(join=True), "k": call(join=True)},
            "stage 'a' of agent forks, and its branch 'b' may come to the join 'j' or come to the join 'k', so",
        ),
        (
            {"a": call(["b", "b"]), "b": call("c"), "c": call("j", most_visits=1), "j": call(join=True)},
            "stage 'a' of agent forks, and its branch 'b' may end or come to the join 'j', so",
        ),
        (
            {"a": call("j"), "j": call(join=True)},
            "stage 'a' of agent reaches the join 'j' outside of a fork, so there is nothing to wait for; make it no "
            "join, or fork before it",
        ),
        (
            {"a": call(["b", "b"]), "b": call("j"), "j": call({"b": 0.5, "end": 0.5}, join=True)},
            "stage 'b' of agent comes back to the join 'j' outside of a fork, so there is nothing to wait for; let the "
            "loop come back to the fork, or to a stage of its own that is no join",
        ),
        (
            {"a": call({"d": 0.5, "f": 0.5}), "f": call(["b", "b"]), "b": call("j"), "d": call("j"),
             "j": call(join=True)},
            "stage 'd' of agent reaches the join 'j' outside of a fork, so there is nothing to wait for; make it no "
            "join, or fork before it",
        ),
        (
            {"a": call(["b", "c"]), "b": call("j"), "c": call("j"), "j": call("d", join=True),
             "d": call({"j": 0.5, "end": 0.5}, most_visits=3)},
            "stage 'd' of agent comes back to the join 'j' outside of a fork, so there is nothing to wait for; let the "
            "loop come back to the fork, or to a stage of its own that is no join",
        ),
        (
            {"a": call(["b", "j"]), "b": call("j"), "j": call(join=True)},
            "stage 'a' of agent forks straight to the join 'j', so that branch has no request to wait for; leave it "
            "out, as the join waits for the other branches",
        ),
        (
            {"a": call(), "j": call(join=True)},
            "stage 'j' of agent is a join that nothing reaches; name it in `then` of the forks' branches",
        ),
        (
            {"j": call(join=True)},
            "stage 'j' of agent is a join, and jobs begin there, where no fork is open; begin elsewhere",
        ),
        (
            {"a": call(["b"]), "b": call("j"), "j": call(join=True, most_visits=2)},
            "stage 'j' of agent is a join with most_visits, and past it branches would never join; let a loop come "
            "back to a stage of its own that is no join, and limit that one",
        ),
        (
            {"a": call("f"), "f": call(["b", "b"]), "b": call("j"),
             "j": call({"f": 0.5, "end": 0.5}, join=True, most_visits=2)},
            "stage 'j' of agent is a join with most_visits, and past it branches would never join; limit the fork 'f' "
            "instead",
        ),
        (
            {"a": call(["b", "b", "c"]), "b": call(), "c": call(), "d": call()},
            "stage 'a' of agent forks to 'b' twice, and no path leads to 'd'; put 'd' in place of one, name it in "
            "another `then`, or leave it out",
        ),
        ({"a": call(["b"] * 3), "b": call(), "d": call()}, "stage 'a' of agent forks to 'b' 3 times, and no path"),
        ({"a": call(), "b": call()}, "stage 'b' of agent is reached by no path from 'a'; name it in `then`, or leave"),
        (
            {"a": call("serach"), "search": call()},
            "stage 'a' of agent goes on to the unknown stage 'serach'; did you mean 'search'?",
        ),
        ({"a": call(["x"])}, "stage 'a' of agent goes on to the unknown stage 'x'; known: a, end"),
        (
            {"a": call({"b": 0.5, "end": 0.4}), "b": call()},
            "the probabilities after stage 'a' of agent add up to 0.9, but one of its ways is always taken, so they "
            "must add up to 1; give what is missing to 'end', or scale them",
        ),
        (
            {"a": call({"b": 1.5, "end": -0.5}), "b": call()},
            "the probability of 'b' after stage 'a' of agent is 1.5, but must be a number from 0 to 1",
        ),
        ({"a": call(["end", "b"]), "b": call()}, "stage 'a' of agent forks to 'end', which is no branch; leave it out"),
        ({"a": call([])}, "`then` of stage 'a' of agent is []; give a stage, 'end', a list of stages (all of them)"),
        ({"a": call(3)}, "`then` of stage 'a' of agent is 3; give a stage"),
        ({"end": call()}, "stage 'end' of agent has the name that ends a branch in `then`; give it another"),
        ({"a.b": call()}, "the name of a stage of agent is 'a.b', but must be a text without full stops"),
        ({"a": "call"}, "stage 'a' of agent is 'call', but must be a Stage with pool, prompt and output"),
        ({"a": Stage("", 1, 1)}, "the pool of stage 'a' of agent is ''; give the name of one"),
        ({"a": Stage("p", -1, 1)}, "the prompt of stage 'a' of agent is -1, but must be a whole number from 0 to 16"),
        ({"a": Stage("p", "rest", 1)}, "the prompt of stage 'a' of agent is 'rest', but must be"),
        ({"a": Stage("p", 1, 2.5)}, "the output of stage 'a' of agent is 2.5, but must be a whole number"),
        ({"a": call(join="yes")}, "join of stage 'a' of agent is 'yes', but must be true or false; give one"),
        ({"a": call(delay_ms=-1)}, "delay_ms of stage 'a' of agent is -1, but must be a number from 0"),
        (
            {"a": call(delay_ms="400ms")},
            "delay_ms of stage 'a' of agent is '400ms', but must be a number from 0 to 1,000,000,000,000 ms: give a "
            "bare number, which counts ms, or for a random delay a distribution",
        ),
        ({"a": call(transfer_ms_per_token=-1)}, "transfer_ms_per_token of stage 'a' of agent is -1, but must be"),
        (
            {"a": call(["b"]), "b": call("j"), "j": call(join=True, transfer_ms_per_token=1)},
            "stage 'j' of agent is a join with transfer_ms_per_token 1, but which branch comes last, and so what is",
        ),
        ({"a": call(most_visits=0)}, "most_visits of stage 'a' of agent is 0, but must be a whole number from 1"),
        ({}, "the stages of agent are {}, so its jobs do nothing; give at least one by name"),
        (None, "the stages of agent are None, so its jobs do nothing; give at least one by name"),
    ],
)  # fmt: skip
def test_a_workflow_that_cannot_be_is_one_clear_line(stages, message):
    with pytest.raises(InputError) as caught:
        Workflow("agent", POISSON, stages)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "a.b"}, "the name of a workflow is 'a.b', but must be a text without full stops"),
        ({"name": ""}, "the name of a workflow is '', but must be a text"),
        ({"arrivals": 3}, "the arrivals of agent are 3; give a Workload"),
        ({"arrivals": ps.Workload.from_arrays(None, [1], [1], name="lengths")}, "lengths has lengths but no arrival"),
        ({"priority": 0.5}, "the priority of agent is 0.5"),
        ({"context": "reused"}, "unknown context 'reused' of agent; did you mean 'reuse'?"),
        ({"first": "b"}, "agent begins at the unknown stage 'b'; known: a"),
    ],
)
def test_what_else_a_workflow_cannot_have_is_one_clear_line(given, message):
    with pytest.raises(InputError) as caught:
        Workflow(**{"name": "agent", "arrivals": POISSON, "stages": {"a": call()}} | given)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "repaired",
    [
        {"j": call({"f": 0.5, "end": 0.5}, join=True), "f": call(["b", "c"], most_visits=2)},
        {"j": call({"r": 0.5, "end": 0.5}, join=True), "r": call({"r": 0.5, "end": 0.5}, most_visits=2)},
        {"j": call("d", join=True), "d": call({"r": 0.5, "end": 0.5}), "r": call("d", most_visits=2)},
    ],
    ids=["the fork limited", "a limited stage of its own", "a stage of its own in the loop"],
)
def test_a_loop_after_a_join_can_be_limited_as_messages_say(repaired):
    stages = {"a": call("f"), "f": call(["b", "c"]), "b": call("j"), "c": call("j")} | repaired
    jobs = Workflow("w", POISSON, stages).jobs(500)
    limited = next(name for name, stage in stages.items() if stage.most_visits)
    job = np.repeat(np.arange(jobs.count), np.diff(jobs.first_request))
    visits = np.bincount(job[jobs.stage == list(stages).index(limited)], minlength=jobs.count)
    assert visits.max() == 2


def test_a_flood_of_an_unknown_stage_suggests_the_nearest():
    with pytest.raises(
        InputError, match=r"w cannot be flooded at the unknown stage 'reveiw'; did you mean 'review'\?$"
    ):
        Workflow("w", POISSON, REFLECTION).flooded("reveiw", 10, seed=0)
    with pytest.raises(InputError, match="the number of jobs is 0"):
        Workflow("w", POISSON, REFLECTION).flooded("review", 0, seed=0)


def test_a_chance_of_zero_is_a_way_that_is_never_taken():
    """So a probability may be swept down to 0."""
    jobs = Workflow("w", POISSON, {"a": call({"b": 0.0, "end": 1.0}), "b": call("a")}).jobs(1_000)
    assert jobs.requests == 1_000


def test_a_long_chain_after_a_fork_is_not_taken_for_a_loop():
    """The eigenvalues of a long nilpotent matrix are all 0, but not when they are computed."""
    stages = {f"s{i}": call([f"s{i + 1}"] * 2 if i < 6 else f"s{i + 1}") for i in range(299)}
    workflow = Workflow("w", POISSON, stages | {"s299": call()})
    assert workflow.means().visits[-1] == pytest.approx(64)


# The search for closed loops


def test_a_closed_loop_is_found_and_one_that_can_be_left_is_none():
    chances = np.array([[0, 1.0, 0], [0.5, 0, 0.5], [0, 0, 0]])
    assert closed_loop(chances, np.array([False, False, True])) == []
    assert closed_loop(chances[:2, :2], np.array([False, False])) == [0, 1, 0]


def test_a_fork_leads_out_only_if_all_its_branches_do():
    paths = np.array([[0, 1.0, 1.0], [0, 0, 0], [1.0, 0, 0]])
    leaves, forks = np.array([False, True, False]), np.array([True, False, False])
    assert closed_loop(paths, leaves) == []
    assert closed_loop(paths, leaves, forks) == [0, 2, 0]
