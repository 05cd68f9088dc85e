"""Latency of a network by priority: of jobs, at stages, in runs, answers and pages."""

import dataclasses
from collections.abc import Iterator
from typing import Literal

import numpy as np
import polars as pl
import pytest

import penstock as ps
from penstock.checking.answer import Answer
from penstock.checking.check import check
from penstock.checking.variants import own_order, with_order
from penstock.workload.jobs import Jobs

SERVER = ps.Server(ps.Affine(c=0.05, a=1e-4), 512, 16, policy="vllm", kv_tokens=40_000)


class Ranked(ps.Network):
    """A network some of whose jobs are more urgent than others: one of four has priority 0, the others 7."""

    def blocks(self, seed: int | None = None) -> Iterator[Jobs]:
        for block in super().blocks(seed):
            of_job = np.where(np.arange(block.count) % 4 == 0, 0, 7).astype(np.int32)
            yield dataclasses.replace(block, priority=of_job[block.job])


def ranked(kind: type[ps.Network] = Ranked) -> ps.Network:
    """An engine that serves by priority, and one that does not."""
    first = ps.Pool(dataclasses.replace(SERVER, order="priority"))
    stages = {"plan": ps.Stage("urgent", 200, 60, then="write"), "write": ps.Stage("plain", 100, 20)}
    workflow = ps.Workflow("agent", ps.Workload.poisson(4.2, 1, 1), stages)
    return kind({"urgent": first, "plain": ps.Pool(SERVER)}, [workflow])


@pytest.fixture(scope="module")
def answer() -> Answer:
    return check(ranked(), jobs=4_000, seed=1, resolution=0.1)


def test_runs_tell_latency_by_workflow_stage_and_priority(answer: Answer) -> None:
    run = answer.run
    table, requests = run.priorities(), run.requests
    assert table["priority"].unique().sort().to_list() == [0, 7]
    for row in table.filter(pl.col("stage").is_not_null()).iter_rows(named=True):
        mine = requests.filter((pl.col("stage") == row["stage"]) & (pl.col("priority") == row["priority"]))
        end = "first_token_ns" if row["metric"] == "ttft_s" else "finish_ns"
        mean = ((mine[end] - mine["arrival_ns"]).mean() or 0.0) / 1e9  # type: ignore[operator]
        assert row["mean"] == pytest.approx(mean)
        assert row["requests"] == mine.height
    jobs = table.filter(pl.col("stage").is_null())
    assert jobs["requests"].sum() == run.finished
    whole = run.workflows()["mean"][0]
    assert (jobs["mean"] * jobs["requests"]).sum() / run.finished == pytest.approx(whole)


def test_the_urgent_wait_less_where_the_queue_goes_by_priority_and_not_elsewhere(answer: Answer) -> None:
    found = {(of.stage, of.priority): of.latency for of in answer.priorities}
    assert set(found) == {(stage, value) for stage in (None, "agent.plan", "agent.write") for value in (0, 7)}
    urgent, others = (found["agent.plan", value]["ttft_s"]["mean"] for value in (0, 7))
    assert urgent.high is not None
    assert others.low is not None
    assert urgent.high < others.low
    one, two = (found["agent.write", value]["ttft_s"]["mean"] for value in (0, 7))
    low, high = (max(one.low or 0, two.low or 0), min(one.high or np.inf, two.high or np.inf))
    assert low < high  # the intervals overlap
    stage = next(of for of in answer.stages if of.name == "agent.plan").latency
    assert stage is not None
    assert urgent.value < stage["ttft_s"]["mean"].value < others.value  # type: ignore[operator]


def test_pages_and_json_show_each_priority_with_its_latency(answer: Answer) -> None:
    tables = [table for section in answer.page().sections for table in section.tables]
    table = next(table for table in tables if table.title == "By priority")
    assert [row[:2] for row in table.rows] == [
        ("agent", "0"), ("agent", "7"), ("  plan", "0"), ("  plan", "7"), ("  write", "0"), ("  write", "7"),
    ]  # fmt: skip
    told = answer.as_dict()["priorities"]
    assert [(of["stage"], of["priority"]) for of in told] == [(of.stage, of.priority) for of in answer.priorities]
    assert told[2]["latency"]["ttft_s"]["mean"] == answer.priorities[2].latency["ttft_s"]["mean"].value


def test_nothing_is_said_of_priorities_where_there_are_none_or_one_for_each_request() -> None:
    plain = ps.simulate(ranked(ps.Network), jobs=300, seed=1)
    assert plain.priorities().is_empty()
    assert "priority" not in plain.requests.columns
    answer = check(ranked(ps.Network), jobs=300, seed=1, resolution=0.2)
    assert answer.priorities == ()
    assert "By priority" not in [table.title for section in answer.page().sections for table in section.tables]

    class Numbered(ps.Network):
        def blocks(self, seed: int | None = None) -> Iterator[Jobs]:
            for block in super().blocks(seed):
                yield dataclasses.replace(block, priority=block.job.astype(np.int32))

    assert check(ranked(Numbered), jobs=300, seed=1, resolution=0.2).priorities == ()


@pytest.mark.parametrize("own", ["fcfs", "priority"])
def test_engines_take_another_order_of_requests_and_none_of_stages(own: Literal["fcfs", "priority"]) -> None:
    pool = ps.Pool(dataclasses.replace(SERVER, order=own), 2)
    network = ps.Network({"p": pool}, [ps.Workflow.single(ps.Workload.poisson(1, 100, 20), "p")])
    assert own_order(network) == own
    for name in ("fcfs", "priority"):
        changed = with_order(network, name).pools["p"]
        assert (changed.server.order, changed.order.name, changed.order_name) == (name, "fcfs", name)
        assert changed.describe().endswith(f", {name}")
    with pytest.raises(
        ps.InputError, match=r"the order of the pool is hlpps, but vllm, .* give the Server order='priority'"
    ):
        with_order(network, "hlpps")


@pytest.mark.parametrize("order", ["fcfs", "priority"])
def test_a_priority_by_which_no_pool_goes_is_said_to_change_nothing(order: Literal["fcfs", "priority"]) -> None:
    workflow = ps.Workflow.single(ps.Workload.poisson(1, 100, 20), "p", name="late")
    pool = ps.Pool(dataclasses.replace(SERVER, order=order))
    network = ps.Network({"p": pool}, [dataclasses.replace(workflow, priority=3)])
    answer = check(network, jobs=200, resolution=0.2)
    said = [text for text in answer.warnings if text.startswith("workflow late has priority 3, but its pools serve in")]
    assert len(said) == (order == "fcfs")
    assert answer.pools[0].order == order
