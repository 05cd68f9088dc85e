"""What networks record of batches, of who is in them and of times between tokens, against the reference."""

import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
from engine_systems import OF_THE_PAPER
from network_systems import ORDER_NAMES, POLICIES, draw_system
from test_network import A100, assert_endless, kernel

from penstock.auditing.audit import audit
from penstock.errors import InputError
from penstock.simulation.simulate import simulate
from penstock.system.batch_time import Composition
from penstock.system.engines import ENGINES
from penstock.system.network import Network
from penstock.system.server import Server
from penstock.workload.lengths import Geometric, LogNormal
from penstock.workload.workload import Workload

FAMILY = (*ENGINES, *OF_THE_PAPER)


def assert_records_agree(system):
    """Compare batches, allocations and times between tokens; return the run."""
    run, history = kernel(system, compress=True, record="allocations"), system.reference()
    batches = [(batch.replica, batch.start, batch.duration) for batch in history.batches]
    assert run.batch_rows[:, [5, 0, 1]].tolist() == [list(batch) for batch in batches], system
    numbers, allocations = Counter(), []
    for batch in history.batches:
        for request, tokens in sorted(batch.allocation.items()):
            allocations.append([batch.replica, numbers[batch.replica], request, tokens])
        numbers[batch.replica] += 1
    number, request, prefill, decode, replica = run.allocation_rows.T
    assert np.column_stack([replica, number, request, prefill + decode]).tolist() == allocations, system
    engines = [dict(spec.system.settings) for spec in system.pools if hasattr(spec, "system")]
    if not any(settings.get("drafts") for settings in engines):  # they may stand beside the last token of a prompt
        assert (np.minimum(prefill, decode) == 0).all()
    gaps = [after - before for r in history.requests for before, after in pairwise(tokens_of(system, history, r))]
    assert (run.gaps.size, run.gaps.total) == (len(gaps), sum(gaps)), system
    if not any(isinstance(spec.server.batch_time, Composition) for spec in system.pools):  # else they are rounded
        assert run.gaps.values.tolist() == sorted(set(gaps)), system
    assert (run.gaps.size, run.gaps.total) == of_equal_batches(system)
    return run


def tokens_of(system, history, request):
    """Return the ticks of a request's tokens; the last of the request whose KV memory it goes on with comes first."""
    sender = [history.requests[request.index + system.columns["sender"][request.index]]] if request.receives else []
    return [*(r.finish for r in sender if request.token_times), *request.token_times]


def of_equal_batches(system):
    """Return how many times between tokens there are, and their sum, where equal batches are one step."""
    gaps = kernel(system, compress=True, record="batches").gaps
    return gaps.size, gaps.total


def receives(run, name, replica):
    """Whether a replica of engines goes on with KV memory from elsewhere."""
    pools, jobs = run.network.pools, run.rows.jobs
    here = (run.network.stage_pool[jobs.stage] == list(pools).index(name)) & (run.rows.replica == replica)
    alone = (jobs.prompt == 0) & (jobs.output > 0) & (run.rows.arrival >= 0)
    return not pools[name].server.by_lines and bool((here & alone).any())


def sends(run, name, replica):
    """Whether a replica keeps KV memory for others: it may then be idle although a request waits for room."""
    jobs = run.rows.jobs
    senders = (np.arange(jobs.requests) + jobs.column("sender"))[jobs.column("sender") < 0]
    here = run.network.stage_pool[jobs.stage[senders]] == list(run.network.pools).index(name)
    return bool((here & (run.rows.replica[senders] == replica)).any())


def assert_audits_hold(system, run):
    """Audit every replica, but for those whose allocations do not tell what became of them."""
    for name, pool in run.network.pools.items():
        policy, memory = pool.server.policy, pool.server.memory
        if memory is not None and memory.prefix_caching:  # of which audits know nothing
            continue
        for replica in range(pool.replicas):
            if receives(run, name, replica):
                with pytest.raises(InputError, match="from elsewhere"):
                    run.at(name, replica)
                continue
            alone = run.at(name, replica)
            if policy.memory.drafted_tokens or (policy.batching.loses_in_flight and alone.preemptions):
                continue
            report = audit(alone)
            assert report.feasible, (report.violations, name, replica, system)
            assert report.idle_periods == 0 or sends(run, name, replica)


@pytest.mark.parametrize("systems", [5, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("order", ORDER_NAMES)
def test_batches_allocations_and_token_times_of_networks_are_those_of_the_reference(order, systems):
    for seed in range(systems):
        system = draw_system(Random(f"{order} {seed}"), orders=(order,))
        assert_audits_hold(system, assert_records_agree(system))


@pytest.mark.parametrize("systems", [4, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("engine", FAMILY)
def test_batches_allocations_and_token_times_of_networks_of_engines_are_those_of_the_reference(engine, systems):
    for seed in range(systems):
        system = draw_system(Random(f"{engine} {seed} rows"), engines=(engine,))
        try:
            run = assert_records_agree(system)
        except InputError as error:
            assert_endless(system, error)
        else:
            assert_audits_hold(system, run)


def test_requests_in_scope_running_may_decode_alone_beyond_the_max_batch_size_and_audits_know():
    """Where some come without a prompt, that they decode at once is no breach, and the supply is not defined."""
    decode_alone = 0
    for seed in (18, 19, 161, 175, 194, 564, 604, 651):
        system = draw_system(Random(seed))
        run = assert_records_agree(system)
        decode_alone += (run.rows.jobs.prompt == 0).sum()
        assert_audits_hold(system, run)
    assert decode_alone


def test_with_the_compiler_off_networks_record_the_same():
    """Fields of records must not be called like attributes that NumPy has."""
    folder = str(Path(__file__).parent)
    program = f"import sys; sys.path.insert(0, {folder!r}); import test_network_records as own; own.few_systems()"
    command = [sys.executable, "-W", "ignore::RuntimeWarning", "-c", program]
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def few_systems():
    """Compare what some systems of lines and of an engine record."""
    for seed in range(2):
        assert_records_agree(draw_system(Random(seed)))
        assert_records_agree(draw_system(Random(seed), engines=("vllm",)))


@pytest.mark.parametrize("policy", POLICIES)
def test_one_replica_records_what_the_single_server_does(policy):
    """Batches, who is in them, times between tokens and compositions, both conventions and both scopes."""
    workload = Workload.poisson(rate=8.0, prompt=LogNormal(300, 1.0), output=Geometric(60), seed=7)
    for scope, convention in [("running", "engine"), ("batch", "paper")]:
        server = Server(A100, 512, 64, policy=policy, scope=scope, convention=convention)
        network = simulate(Network.single(workload, server), jobs=500, drain=True, record="allocations")
        single = simulate(workload, server, requests=500, drain=True, record="allocations")
        (pool,) = network.network.pools
        run = network.at(pool, 0)
        for what in ("arrived", "finished", "n_batches", "end", "busy", "tokens", "started_tokens", "last_arrival"):
            assert getattr(run, what) == getattr(single, what), what
        assert run.batches.equals(single.batches)
        assert run.allocations.equals(single.allocations.sort("batch", "request"))
        assert run.requests.drop("preemptions", strict=False).equals(single.requests)
        assert run.compositions.equals(single.compositions)
        assert audit(run) == audit(single)
        assert network.gaps.values.tolist() == single.gaps.values.tolist()
        assert network.gaps.counts.tolist() == single.gaps.counts.tolist()
        assert network.gaps.total == single.gaps.total
        stages = network.queue_rows
        assert run.series["requests"].to_list() == (stages[:, 1] + stages[:, 2]).tolist()
        in_progress = run.series["uncompleted_tokens"] - run.series["unprocessed_tokens"]
        assert in_progress.to_list() == stages[:, -2].tolist()
