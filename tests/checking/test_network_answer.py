"""An answer about a network puts theory, floods and a run side by side and refuses what has no meaning."""

import dataclasses
import itertools
import json
import re

import numpy as np
import polars as pl
import pytest

import penstock as ps
from penstock.checking.answer import MOST_JOBS, Answer
from penstock.checking.check import check
from penstock.checking.enough_requests import until_known
from penstock.checking.latency import SteadyState, steady_state
from penstock.errors import InputError
from penstock.system.batch_time import Composition
from penstock.system.measured_times import Measured
from penstock.theory.operating_point import operating_point
from tests.network_examples import DESTABILISING, UNIT, dag, fork_join, rybko_stolyar, self_reflection
from tests.own_policies import own_policy

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
ONE_BY_ONE = ps.Server(ps.Affine(c=1.0, a=0.0), 1, convention="paper")
"""A token at a time, a second each: a request is served to its end, in order of arrival."""


def single(server: ps.Server, rate: float = 10.0, **pool: object) -> ps.Network:
    return ps.Network.single(ps.Workload.poisson(rate, 129, 112), server, **pool)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def forked() -> Answer:
    return check(fork_join(0.6), jobs=6000, seed=1)


def test_a_stable_network_has_one_verdict_and_a_latency(forked: Answer) -> None:
    assert forked.certificate.verdict == "stable"
    assert forked.stability is not None
    assert forked.stability.verdict == forked.verdict == "stable"
    assert forked.latency_refused is None
    assert forked.disagreement is None
    for known in (forked.workflows[0].e2e, *(stage.latency["e2e_s"] for stage in forked.stages if stage.latency)):
        assert known is not None
        mean = known["mean"]
        assert mean.low is not None
        assert mean.high is not None
        assert mean.value is not None
        assert 0 < mean.low < mean.value < mean.high
        assert known["p50"].value < known["p99"].value  # type: ignore[operator]


def test_targets_of_a_network_are_judged_where_they_are_furthest_from_being_met() -> None:
    network, seed = fork_join(0.6), 1
    targets = ["ttft_p99<1ms", "e2e_mean<1000s", "tbt_p50<1000s"]
    found = check(network, jobs=4_000, seed=seed, targets=targets, resolution=0.1)
    assert [answer.judgement for answer in found.targets] == ["missed", "met", "met"]
    assert found.latency is not None
    first, whole, between = found.targets
    waits = {stage.name: stage.latency["ttft_s"]["p99"].value for stage in found.stages if stage.latency}
    assert first.place == max(waits, key=lambda name: waits[name] or 0.0)
    assert first.estimate == found.latency.stages[first.place]["ttft_s"]["p99"]
    assert (whole.place, between.place) == ("", ""), "there is one workflow"
    assert whole.estimate == found.workflows[0].e2e["mean"]  # type: ignore[index]
    assert found.missed
    with pytest.raises(InputError, match="limits tpot, which in jobs of several calls"):
        check(network, jobs=4_000, targets=["tpot_p99<1s"])
    with pytest.raises(InputError, match="give `jobs`, and no `until`"):
        check(network, until=100.0, targets=targets)


def test_jobs_that_never_fit_are_told_where_memory_drops_them() -> None:
    """And nothing is said to block a replica."""
    memory = ps.Memory(100, too_long="drop")
    server = ps.Server(TP1, 512, 64, "vllm", memory=memory)
    workload = ps.Workload.poisson(0.5, ps.Geometric(300, max=3_000), ps.Geometric(50, max=500))
    found = check(ps.Network.single(workload, server, 2), jobs=2_000, resolution=0.1)
    assert found.run.dropped > 0
    assert not [warning for warning in found.warnings if "blocks a replica" in warning]
    hypotheses = [h.why for h in found.certificate.hypotheses if not h.held]
    assert any("is dropped with its job" in why for why in hypotheses)
    page = found.page()
    assert any("never fit and are dropped" in line.text for line in page.head)
    (simulated,) = [section for section in page.sections if section.title == "Simulated"]
    assert f"dropped: {found.run.dropped} requests that can never fit" in simulated.paragraphs[0]


def test_a_budget_is_called_wasteful_at_pools_as_at_servers() -> None:
    """Not where attention takes time, which grows with a batch."""
    steps = Measured([1, 64, 65, 80], [0.01, 0.0101, 0.03, 0.031])
    said = []
    for batch_time in (steps, Composition(steps, self_attention=1e-6, cross_attention=2e-6)):
        network = ps.Network.single(ps.Workload.poisson(1.0, 100, 10), ps.Server(batch_time, 80))
        warnings = check(network, jobs=1_000, resolution=0.2).warnings
        said.append([warning for warning in warnings if "set the budget to 64" in warning])
    assert [len(of) for of in said] == [1, 0]


@pytest.mark.parametrize("engine", [False, True])
def test_times_between_tokens_hold_the_one_after_which_another_replica_goes_on(engine: bool) -> None:
    """Over all jobs they add up to what passes from the first token of a job to its last."""
    server = ps.Server(TP1, 512, 64, "vllm", memory=ps.Memory(4_000)) if engine else ps.Server(TP1, 512)
    workload = ps.Workload.poisson(2.0, ps.Geometric(300, max=2000), ps.Uniform(2, 60))
    flow = ps.Workflow.disaggregated(workload, prefill="p", decode="d", transfer_ms=200)
    network = ps.Network({"p": ps.Pool(server), "d": ps.Pool(server)}, [flow])
    found = check(network, jobs=4_000, targets=["tbt_mean<10s"], resolution=0.1)
    assert found.latency is not None
    run, used = found.run, slice(found.latency.warmup_jobs, None)
    assert run.rows is not None
    jobs = run.rows.jobs
    first = run.rows.first_token[jobs.first_request[:-1]]
    output = np.bincount(jobs.job, jobs.output)
    decoding = (run.finish - first)[used].sum() * run.tick_s
    tokens = (output - 1)[used].sum()
    assert found.latency.estimates["tbt_s"]["mean"].value == pytest.approx(decoding / tokens, rel=0.03)


def test_an_undecided_target_of_a_network_makes_the_run_longer() -> None:
    network = single(ps.Server(TP1, 512), replicas=2)
    short = check(network, jobs=2_000, resolution=0.1)
    assert short.latency is not None
    mean = short.latency.estimates["e2e_s"]["mean"].value
    found = check(network, jobs=2_000, targets=[ps.Target("e2e_s", "mean", 1.001 * mean)], resolution=0.1)  # type: ignore[operator]
    assert found.run.arrived > 2_000
    precise = check(network, jobs=2_000, precision=0.01, resolution=0.1)
    assert precise.latency is not None
    assert short.latency.precision > 0.01
    assert precise.latency.precision <= 0.01
    assert 2_000 < precise.run.arrived <= 32_000


def test_no_longer_run_is_made_or_told_where_none_would_decide() -> None:
    """Where no less arrives than is carried, and beyond the jobs that a run may have."""
    network = single(ps.Server(TP1, 512), replicas=2)
    made: list[int] = []

    def simulated(jobs: int, _: object) -> ps.Run:
        made.append(jobs)
        return ps.simulate(network, jobs=jobs)

    until_known(simulated, 1_000, 16_000, [ps.Target("e2e_s", "p99.9", 1.0)], [1.0])
    assert made == [1_000]
    found = check(network, jobs=2_000, resolution=0.1)
    assert found.longer_run == 32_000
    long = dataclasses.replace(found, run=dataclasses.replace(found.run, arrived=9_000_000))
    assert long.longer_run == MOST_JOBS
    longest = dataclasses.replace(found, run=dataclasses.replace(found.run, arrived=MOST_JOBS))
    assert longest.longer_run is None


@pytest.fixture(scope="module")
def replicated() -> Answer:
    """Three replicas before one, of which the router keeps one busier than the others."""
    workload = ps.Workload.poisson(4.0, ps.Geometric(900, max=8000), ps.Geometric(60, max=600))
    pools = {"prefill": ps.Pool(ps.Server(TP1, 1024), 3, "tokens"), "decode": ps.Pool(ps.Server(TP1, 512))}
    workflow = ps.Workflow.disaggregated(workload, prefill="prefill", decode="decode", transfer_ms=5)
    return check(ps.Network(pools, [workflow]), jobs=1000, resolution=0.1)


@pytest.mark.parametrize("name", ["forked", "replicated"])
def test_tables_say_what_model_and_run_say(name: str, request: pytest.FixtureRequest) -> None:
    found: Answer = request.getfixturevalue(name)
    model, replicas = found.network.model(), found.run.replicas()
    for place, pool in enumerate(found.pools):
        of_pool = replicas.filter(pl.col("pool") == pool.name)
        assert pool.rho == pytest.approx(model.rho[place])
        assert pool.margin == pytest.approx(1 - pool.rho)  # no max batch size
        assert pool.busy == pytest.approx(of_pool["busy"].mean())
        assert pool.tokens_per_s == pytest.approx(of_pool["tokens_per_s"].sum())
        assert pool.tokens_per_batch == pytest.approx(pool.tokens_per_s * found.run.seconds / of_pool["batches"].sum())
    assert max(found.pools, key=lambda pool: pool.rho).name == found.certificate.bottleneck.name
    for place, stage in enumerate(found.stages):
        assert stage.name == model.stages[place]
        assert stage.pool == model.pools[model.pool[place]]
        assert stage.visits_per_s == model.visits[place]
        assert (stage.prefill_tokens, stage.decode_tokens) == (model.prefill[place], model.decode[place])
    of_run = found.run.workflows().select("workflow", "jobs", "unfinished").rows()
    assert [(w.name, w.jobs, w.unfinished) for w in found.workflows] == of_run


def test_without_a_warm_up_the_means_are_those_of_the_run() -> None:
    """Of so few jobs all are used, so what is estimated and what the run says of itself must agree."""
    stages = {
        "plan": ps.Stage("pool", 100, 20, then=["search", "read"]),
        "search": ps.Stage("pool", 300, 40, then="answer", delay_ms=300),
        "read": ps.Stage("pool", 900, 90, then="answer"),
        "answer": ps.Stage("pool", 200, 50, join=True, delay_ms=700),
    }
    workflow = ps.Workflow("research", ps.Workload.poisson(2.0, 1, 1), stages)
    run = ps.simulate(ps.Network({"pool": ps.Pool(ps.Server(TP1, 512), 2)}, [workflow]), jobs=150)
    found = steady_state(run)
    assert (found.jobs, found.warmup_jobs, found.too_short) == (150, 0, True)
    assert found.workflows["research"]["mean"].value == pytest.approx(run.workflows()["mean"][0])
    seen = 0
    for stage, _, metric, _, mean, *_ in run.stages().iter_rows():
        if metric in found.stages[stage]:
            assert found.stages[stage][metric]["mean"].value == pytest.approx(mean)
            assert found.stages[stage][metric]["mean"].high is None
            seen += 1
    assert seen == 2 * 4 + 1  # TTFT and E2E at each stage, waits at the join
    assert found.stages["research.answer"]["join_wait_s"]["mean"].value > 1  # type: ignore[operator]


@pytest.mark.parametrize("load", [None, 0.7])
def test_the_steady_state_of_one_pool_is_that_of_its_server(load: float | None) -> None:
    workload, server = ps.Workload.poisson(8.0, 129, ps.Geometric(112)), ps.Server(TP1, 1024)
    run_of_network = ps.simulate(ps.Network.single(workload, server), jobs=4000)
    found = steady_state(run_of_network, rho=None if load is None else [load])
    run = ps.simulate(workload, server, requests=4000)
    assert run.rows is not None
    rows = run.rows.where(slice(found.warmup_jobs, None))
    alone = ps.steady_state(dataclasses.replace(run, rows=rows), rho=load)
    assert (found.jobs, 0) == (alone.jobs, alone.warmup_jobs)
    (stage,) = found.stages.values()
    (workflow,) = found.workflows.values()
    for metric, known in (("ttft_s", stage["ttft_s"]), ("e2e_s", stage["e2e_s"]), ("e2e_s", workflow)):
        for statistic, estimate in known.items():
            expected = alone.estimates[metric][statistic]
            assert estimate.value == pytest.approx(expected.value)
            assert estimate.low == pytest.approx(expected.low)
            # with a load the variability of arrivals counts, which is that of the warm-up too in a network
            precision = 1e-6 if load is None else 0.02
            assert estimate.high == (expected.high and pytest.approx(expected.high, rel=precision))


@pytest.mark.parametrize("runs", [30, pytest.param(100, marks=pytest.mark.slow)])
def test_few_upper_ends_of_mean_e2e_lie_below_the_exact_one_in_a_network_near_saturation(runs: int) -> None:
    """M/G/1 at 0.9, some 40 relaxation times of its queue: 1 + rho (1 + cv^2) / 2 (1 - rho) service times."""
    server = ps.Server(ps.Affine(c=0.0, a=1.0), 1, convention="paper")
    rate, mean, square = 0.09, 1 + 9, 10**2 + 9 * 8
    exact = mean + rate * square / 2 / (1 - rate * mean)
    below, given = 0, 0
    for seed in range(runs):
        network = ps.Network.single(ps.Workload.poisson(rate, 1, ps.Geometric(9), seed=seed), server)
        found = steady_state(ps.simulate(network, jobs=12_000), rho=[rate * mean])
        (workflow,) = found.workflows.values()
        given += workflow["mean"].high is not None
        below += workflow["mean"].high is not None and workflow["mean"].high < exact
    assert given >= 0.9 * runs
    assert below <= 0.04 * given


def two_queues(seed: int) -> SteadyState:
    """Two workflows share a server that serves token after token: an M/G/1 queue with two kinds of customers."""
    short = ps.Workflow.single(ps.Workload.poisson(0.1, 1, ps.Geometric(2)), "server", name="short")
    long = ps.Workflow.single(ps.Workload.poisson(0.04, 1, ps.Geometric(9)), "server", name="long")
    network = ps.Network({"server": ps.Pool(ONE_BY_ONE)}, [short, long])
    return steady_state(ps.simulate(network, jobs=10_000, seed=seed), rho=[0.7])


def test_intervals_hold_the_e2e_of_two_classes_by_pollaczek_khinchine_nineteen_times_of_twenty() -> None:
    service = {"short": 1 + 2, "long": 1 + 9}
    squares = {"short": 3**2 + 2 * 1, "long": 10**2 + 9 * 8}  # mean squared and variance m (m - 1) of the output
    rates = {"short": 0.1, "long": 0.04}
    rho = sum(rates[name] * service[name] for name in rates)
    assert rho == pytest.approx(0.7)
    wait = sum(rates[name] * squares[name] for name in rates) / 2 / (1 - rho)
    found = [two_queues(seed) for seed in range(20)]
    assert not any(each.too_short for each in found)
    for name in rates:
        held = [f.workflows[name]["mean"] for f in found]
        inside = sum(e.low <= service[name] + wait <= e.high for e in held)  # type: ignore[operator]
        assert inside >= 16  # of 20 with probability .95 each: fewer has probability .0003


def test_a_run_too_short_for_its_load_says_so_and_has_no_upper_end() -> None:
    run = ps.simulate(fork_join(0.97), jobs=2500)
    found = steady_state(run, rho=[0.1, 0.97, 0.1, 0.1])
    assert found.too_short
    assert any("pool searcher" in notice and "relaxation" in notice for notice in found.notices)
    assert found.workflows["research"]["mean"].high is None
    assert found.workflows["research"]["mean"].low is not None


def test_jobs_that_begin_within_twice_the_mean_e2e_of_the_start_are_left_out() -> None:
    """Those of an empty network are quicker, and of jobs that take so long nothing else tells."""
    run = ps.simulate(fork_join(0.6), jobs=6000)
    found = steady_state(run)
    assert found.warmup_jobs > 0
    e2e = (run.finish - run.arrival).mean()
    assert run.arrival[found.warmup_jobs] - run.arrival[0] >= 2 * e2e


@pytest.mark.parametrize("jobs", [200, 1100])
def test_no_interval_is_given_below_a_thousand_jobs_after_the_warm_up(jobs: int) -> None:
    found = steady_state(ps.simulate(fork_join(0.6), jobs=jobs), rho=[0.3, 0.6, 0.3, 0.3])
    mean = found.workflows["research"]["mean"]
    assert (mean.low, mean.high) == (None, None)
    assert any("which need 1,000" in notice for notice in found.notices)


@pytest.mark.parametrize("rho", [0.4, 0.8])
def test_as_many_jobs_as_a_short_run_says_would_do_do(rho: float) -> None:
    network, loads = fork_join(rho), [0.3, rho, 0.3, 0.3]
    for seed in range(2):
        said = steady_state(ps.simulate(network, jobs=1000, seed=seed), rho=loads).notices
        told = {notice.split("; ")[-1] for notice in said}
        assert len(told) == 1  # the same of every reason
        would_do = "".join(re.findall(r"\d", told.pop()))
        found = steady_state(ps.simulate(network, jobs=int(would_do), seed=seed), rho=loads)
        assert not found.too_short, found.notices


def test_the_bottleneck_is_the_pool_with_the_least_margin_although_another_has_more_load() -> None:
    """A small batch size makes decodes fill few of the slots that the token budget would have room for."""
    stages = {"plan": ps.Stage("slots", 50, 200, then="read"), "read": ps.Stage("tokens", 1500, 5)}
    pools = {"slots": ps.Pool(ps.Server(TP1, 512, 8)), "tokens": ps.Pool(ps.Server(TP1, 512))}
    found = check(
        ps.Network(pools, [ps.Workflow("w", ps.Workload.poisson(1.0, 1, 1), stages)]), jobs=200, resolution=0.1
    )
    slots, tokens = found.pools
    assert slots.rho < tokens.rho
    assert slots.margin < tokens.margin
    assert found.bottleneck is slots
    load = found.as_dict()["load"]
    assert (load["bottleneck"], load["rho"], load["margin"]) == ("slots", slots.rho, slots.margin)
    assert load["max_load"] == pytest.approx(1 / (1 - slots.margin))


def test_cycles_are_certified_in_words_only_where_all_other_hypotheses_hold() -> None:
    certain = check(self_reflection(0.9), jobs=100, resolution=0.1)
    ((factor, said),) = certain.cycles_in_words()
    assert certain.certificate.any_policy is not None
    assert factor == certain.certificate.any_policy.cycles[0].max_load
    assert "the linear program certifies every work-conserving order of the stages" in said
    open_ended = rybko_stolyar(0.5, "fcfs", ps.Geometric)
    ((_, doubtful),) = check(open_ended, jobs=100, resolution=0.1).cycles_in_words()
    assert "would, if the other hypotheses held, certify every work-conserving order of the stages" in doubtful
    assert "certifies" not in doubtful


def test_the_warm_up_of_quick_jobs_is_found_beside_slow_ones() -> None:
    """The first 400 of 2,000 jobs are far quicker, where they belong to a workflow a million times as quick."""
    quick = ps.Workflow.single(ps.Workload.poisson(0.1, 1, 1), "server", name="quick")
    slow = ps.Workflow.single(ps.Workload.poisson(0.1, 1, 1), "server", name="slow")
    run = ps.simulate(ps.Network({"server": ps.Pool(ONE_BY_ONE)}, [quick, slow]), jobs=2000)
    e2e = np.where(np.arange(2000) < 400, 100, 1000)
    e2e[run.workflow == 1] = np.random.default_rng(0).exponential(1e9, (run.workflow == 1).sum())
    found = steady_state(dataclasses.replace(run, ends=dataclasses.replace(run.ends, finish=run.arrival + e2e)))
    assert 400 <= found.warmup_jobs <= 440
    assert found.workflows["quick"]["p50"].value == pytest.approx(1000 * run.tick_s)


def test_near_the_limit_of_its_priorities_a_run_must_be_long_although_no_pool_is_near_its_own() -> None:
    found = check(rybko_stolyar(0.5, DESTABILISING), jobs=400)
    assert found.verdict == "stable"
    assert any(f"at {0.5 / 0.5588:.3f} of what pool one can carry" in warning for warning in found.warnings)


def test_jobs_from_the_first_unfinished_one_on_are_left_out() -> None:
    run = ps.simulate(fork_join(0.6), until=500.0)
    found = steady_state(run)
    first = int(np.flatnonzero(run.finish < 0)[0])
    assert found.jobs + found.warmup_jobs == first < run.arrived


def test_priorities_that_fail_are_refused_with_the_cycle_and_its_stages() -> None:
    found = check(rybko_stolyar(0.9, DESTABILISING), jobs=500)
    assert found.verdict == found.certificate.verdict == "unstable"
    assert found.latency is None
    assert "no steady state" in str(found.latency_refused)
    assert found.certificate.virtual_station is not None
    assert set(itertools.chain(*found.certificate.virtual_station.classes)) == {"a.long", "b.long"}
    document = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert document["certificate"]["virtual_station"]["max_load"] == pytest.approx(0.5588 / 0.9, abs=1e-4)
    assert document["certificate"]["any_policy"]["cycles"][0]["pools"] == ["one", "two"]
    assert document["load"]["margin"] == pytest.approx(0.1)
    assert document["steady_state"] is None
    assert all(each["e2e_s"] is None and each["e2e_interval"] is None for each in document["workflows"])
    assert all(each["latency"] is None and each["latency_interval"] is None for each in document["stages"])


def test_where_no_theorem_speaks_the_test_refuses_latency() -> None:
    """Prompts before decodes leave room in batches: no theorem, and here the batches are too small to keep up."""
    found = check(single(ps.Server(TP1, 1024, policy="vllm-vanilla"), rate=13.0), jobs=500)
    assert found.certificate.verdict == "unknown"
    assert found.stability is not None
    assert found.stability.verdict == found.verdict == "unstable"
    assert str(found.latency_refused).startswith("with ")


def test_an_overload_is_refused_by_theorem() -> None:
    found = check(self_reflection(1.1), jobs=300)
    assert found.verdict == "unstable"
    assert "fast as any policy" in str(found.latency_refused)
    assert all(pool.margin < 0 for pool in found.pools)
    assert found.workflows[0].unfinished > 0


@own_policy(work_conserving=True)
def lazy(queue, limits, params):  # type: ignore[no-untyped-def]
    return min(queue.prompt_tokens, 64), min(queue.decoding, limits.token_budget // 8), ps.PREFILL_FIRST


def test_theorem_and_test_in_contradiction_put_what_was_taken_on_trust_in_doubt() -> None:
    found = check(single(ps.Server(TP1, 1024, policy=lazy), rate=12.0), jobs=300)
    assert found.certificate.verdict == "stable"
    assert found.stability is not None
    assert found.stability.verdict == "unstable"
    assert found.verdict == "contradiction"
    assert "work-conserving policy" in str(found.disagreement)
    assert found.latency_refused


SLOW = [pytest.param(make, rho, marks=pytest.mark.slow) for make, rho in ((fork_join, 0.9), (dag, 1.1))]
SLOW += [pytest.param(make, 0.3, marks=pytest.mark.slow) for make in (fork_join, dag, self_reflection)]
"""As others are."""


@pytest.mark.parametrize(
    ("make", "rho"), [(dag, 0.9), (fork_join, 1.1), (self_reflection, 0.9), (self_reflection, 1.1), *SLOW]
)
def test_theorem_and_test_never_contradict_each_other(make, rho: float) -> None:  # type: ignore[no-untyped-def]
    found = check(make(rho), jobs=300)
    assert found.disagreement is None
    assert found.verdict == ("unstable" if rho > 1 else "stable")


def test_a_recording_is_not_tested_for_stability_and_says_so() -> None:
    recorded = ps.Workload.from_arrays(np.arange(400.0), np.full(400, 100), np.full(400, 20))
    found = check(ps.Network.single(recorded, ps.Server(TP1, 512), replicas=2))
    assert found.most_arrivals == found.run.arrived
    assert found.stability is None
    assert "come to an end" in str(found.stability_skipped)
    assert found.verdict == found.certificate.verdict == "unknown"
    assert found.run.finished == 400
    assert found.as_dict()["simulation"]["verdict"] is None
    assert any("recording" in warning for warning in found.warnings)


def test_the_margin_under_a_max_batch_size_is_that_of_the_server_alone() -> None:
    workload = ps.Workload.poisson(2.0, ps.Geometric(129), ps.Geometric(112))
    for slots in (8, 64):
        server = ps.Server(TP1, 512, slots)
        (pool,) = check(ps.Network.single(workload, server), jobs=300).pools
        alone = operating_point(workload, server)
        assert pool.margin == pytest.approx(alone.margin)
        assert pool.binding == alone.binding
        assert pool.margin < 1 - pool.rho - 1e-3 or slots == 64


def test_a_pool_held_back_by_its_max_batch_size_is_warned_of() -> None:
    workload = ps.Workload.poisson(4.0, ps.Geometric(129), ps.Geometric(112))
    found = check(ps.Network.single(workload, ps.Server(TP1, 512, 8)), jobs=300)
    (pool,) = found.pools
    assert pool.rho < 1
    assert pool.margin < 0
    assert "max batch size" in pool.binding
    assert found.verdict == "unstable"
    assert any("max batch size of 8" in warning for warning in found.warnings)


def test_a_budget_that_wastes_capacity_is_warned_of_with_the_better_one() -> None:
    wasteful = check(single(ps.Server(TP1, 129), rate=1.0), jobs=300)
    assert any("set the budget to 128" in warning for warning in wasteful.warnings)
    assert not any("budget" in warning for warning in check(single(ps.Server(TP1, 128), 1.0), jobs=300).warnings)


def test_prompts_that_replicas_may_reuse_are_said_to_be_counted_in_full() -> None:
    stages = {"ask": ps.Stage("pool", 400, 50, then="again"), "again": ps.Stage("pool", 100, 50)}
    workflow = ps.Workflow("chat", ps.Workload.poisson(2.0, 1, 1), stages, context="reuse")
    found = check(ps.Network({"pool": ps.Pool(ps.Server(TP1, 512), 2)}, [workflow]), jobs=300)
    rows = found.run.requests
    share = rows["cached_tokens"].sum() / rows["prompt_tokens"].sum()
    assert 0 < share < 1
    assert any(f"{share:.1%} of the prompt tokens" in warning for warning in found.warnings)


def test_the_same_seed_gives_the_same_answer_and_another_another() -> None:
    once, again, other = (check(self_reflection(0.5), jobs=150, seed=seed).as_dict() for seed in (1, 1, 2))
    assert once == again
    assert once["workflows"] != other["workflows"]


def test_the_work_that_is_done_only_grows_up_to_all_of_it() -> None:
    shares: list[float] = []
    check(fork_join(0.6), jobs=2000, progress=shares.append)
    assert shares == sorted(shares)
    assert shares[0] > 0
    assert shares[-1] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, "never end"),
        ({"jobs": 0}, "jobs is 0"),
        ({"jobs": 10, "until": 5.0}, "give one of them"),
        ({"jobs": 10**8}, "a row per request"),
        ({"until": 1e9}, "a row per request"),
        ({"jobs": 10, "resolution": 0.0}, "resolution is 0"),
    ],
)
def test_a_run_that_cannot_be_is_refused_in_one_line(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        check(fork_join(0.5), **wrong)  # type: ignore[call-overload]
    assert "\n" not in str(error.value)


def test_a_server_alone_is_refused() -> None:
    with pytest.raises(InputError, match="takes a Workload and a Server, or a Network alone"):
        check(UNIT, jobs=10)  # type: ignore[call-overload]


def test_jobs_that_all_begin_at_one_instant_have_no_rate() -> None:
    recorded = ps.Workload.from_arrays(np.zeros(10), np.full(10, 100), np.full(10, 20))
    with pytest.raises(InputError, match="rate"):
        check(ps.Network.single(recorded, ps.Server(TP1, 512)))


@pytest.mark.parametrize(("blocks", "said"), [(30, 1), (200, 0)])
def test_a_request_that_never_fits_is_said_though_none_came(blocks: int, said: int) -> None:
    rare = ps.Geometric(20, max=2_000)
    server = ps.Server(TP1, 512, 64, policy="vllm", memory=ps.Memory(blocks, 16))
    network = ps.Network.single(ps.Workload.poisson(0.5, rare, 10), server, 2)
    answer = check(network, jobs=30, resolution=0.5)
    notes = [
        text for text in answer.warnings if text.startswith("prompts of up to 2,000 tokens and outputs of up to 10")
    ]
    assert len(notes) == said
