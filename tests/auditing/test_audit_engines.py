"""The audit of engines and of servers with memory: their runs pass, and whatever is tampered with is found."""

import dataclasses

import numpy as np
import pytest

from penstock.auditing.audit import audit
from penstock.errors import InputError
from penstock.simulation.simulate import simulate
from penstock.system.batch_time import Affine, BatchTime
from penstock.system.engines import ENGINES
from penstock.system.memory import Memory
from penstock.system.policies import POLICIES
from penstock.system.server import Server
from penstock.workload.workload import Workload

ONE_TICK = Affine(c=1.0, a=0.0)
HOLDS_8 = Memory(9, 1)  # vLLM keeps a block for itself


@dataclasses.dataclass(frozen=True)
class Ticks(BatchTime):
    """A batch of b tokens takes ticks[b - 1] seconds."""

    ticks: tuple[int, ...]

    def _seconds(self, tokens):
        return np.array(self.ticks, float)[tokens.astype(int) - 1]


def simulated(arrival, prompt, output, server, **how):
    return simulate(Workload.from_arrays(arrival, prompt, output), server, record="allocations", tick_s=1.0, **how)


def some_settings(rng, policy):
    """Return settings of an engine, or none for a policy."""
    flag = bool(rng.random() < 0.5)
    return {
        "vllm": {"chunked_prefill": flag, "long_prefill_threshold": int(rng.choice([0, 3]))},
        "sglang": {
            "mixed_chunk": flag,
            "max_prefill_tokens": int(rng.choice([5, 1000])),
            "clip_new_tokens": 3,
            "overlap_schedule": False,  # a step ahead, retractions lose tokens in flight too
        },
        "tensorrt-llm": {
            "capacity": str(rng.choice(["guaranteed_no_evict", "max_utilization", "static_batch"])),
            "chunked_context": flag,
        },
    }.get(policy, ())


def some_run(rng, policy, tight, stopped=0.3):
    """Simulate up to ten requests; where memory is tight, the longest request just fits, or twice."""
    n = int(rng.integers(1, 11))
    arrival = np.cumsum(rng.integers(0, rng.choice([1, 4]) + 1, n))
    prompt, output = rng.integers(1, [[10], [12]], (2, n))
    longest = int((prompt + output).max())
    budget = longest + int(rng.integers(0, 9))  # so that whatever an engine does not cut fits
    memory, block_size = None, int(rng.choice([1, 2, 4]))
    rules = {}
    if policy in POLICIES:
        rules["admission"] = str(rng.choice(["input", "completion", "optimistic"]))
    if tight:
        spare = 1 + 2 * (policy == "sglang")  # it keeps pages free beside a prompt
        memory = Memory(int(rng.choice([1, 2])) * -(-longest // block_size) + spare, block_size, **rules)
    settings = some_settings(rng, policy)
    ticks = Ticks(tuple(rng.integers(1, 4, budget).tolist()))
    server = Server(ticks, budget, 4, policy=policy, policy_params=settings, memory=memory)
    until = int(rng.integers(1, 60)) if rng.random() < stopped else None
    return simulated(arrival - arrival[0], prompt, output, server, until=until)


@pytest.mark.parametrize("tight", [True, False], ids=["tight", "ample"])
@pytest.mark.parametrize("policy", [*ENGINES, *POLICIES])
def test_runs_of_engines_and_of_servers_with_memory_are_found_feasible(policy, tight):
    """What is computed again, held, or decoded beyond the budget is no violation."""
    rng = np.random.default_rng([tight, *policy.encode()])
    preemptions = 0
    for _ in range(60):
        run = some_run(rng, policy, tight)
        found = audit(run)
        assert found.violations == ()
        assert found.idle_periods == 0
        preemptions += run.preemptions
    assert (preemptions > 0) == tight


@pytest.mark.parametrize("policy", [*ENGINES, *POLICIES])
def test_what_is_moved_to_another_place_in_a_run_with_preemptions_is_found(policy):
    """Any one token more or less, a batch or a request exchanged for the next, a preemption more or less."""
    rng = np.random.default_rng([7, *policy.encode()])
    for _ in range(60):
        run = some_run(rng, policy, tight=True, stopped=0.0)  # else the last batch might have served another
        row, column = int(rng.integers(run.allocation_rows.shape[0])), int(rng.integers(4))
        changed = run.allocation_rows.copy()
        changed[row, column] += int(rng.choice([-1, 1]))
        assert not audit(dataclasses.replace(run, allocation_rows=changed)).feasible
        lost = np.delete(run.allocation_rows, row, axis=0)
        assert not audit(dataclasses.replace(run, allocation_rows=lost)).feasible
        if run.preemptions:
            assert not audit(dataclasses.replace(run, preemptions=run.preemptions + 1)).feasible


def preempted(memory=HOLDS_8, policy="vllm", settings=()):
    """Serve two requests of 3 + 5 tokens where 8 are held at most: request 1 leaves in batch 2, and comes back."""
    if policy == "vllm":
        settings = {"async_scheduling": False} | dict(settings)
    server = Server(ONE_TICK, 8, 4, policy=policy, policy_params=settings, memory=memory)
    return simulated([0, 0], [3, 3], [5, 5], server)


def test_the_preempted_request_does_its_prompt_and_its_outputs_again():
    run = preempted()
    assert audit(run).feasible
    assert (run.rows.preemptions.tolist(), run.recomputed_tokens) == ([0, 1], 4)
    assert run.allocation_rows.tolist() == [
        [0, 0, 3, 0],
        [0, 1, 3, 0],
        [1, 0, 0, 1],
        [1, 1, 0, 1],
        *([b, 0, 0, 1] for b in (2, 3, 4)),
        [5, 1, 5, 0],  # its prompt and two outputs
        [6, 1, 0, 1],
        [7, 1, 0, 1],
    ]


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"preemptions": 2}, "the run counts 2 preemptions, but its allocations 1 (totals)"),
        ({"recomputed_tokens": 5}, "the run counts 5 tokens computed again, but its allocations 4 (totals)"),
        ({"times": [0, 0]}, "request 1: its allocations cannot come from the 0 preemptions that it records"),
        ({"times": [1, 1]}, "request 0: its allocations cannot come from the 1 preemptions that it records"),
        ({"times": [0, 2]}, "request 1: its allocations cannot come from the 2 preemptions that it records"),
        ({"cell": (7, 2, 6)}, "batch 5 (tick 5): request 1 prefills 6 tokens, but has 5 left (eq:prefill-unprocess)"),
        ({"cell": (7, 2, 4)}, "batch 6 (tick 6): request 1 decodes with 1 prompt tokens to go (eq:prefill-pre-decode)"),
        ({"cell": (7, 1, 0)}, "batch 5 (tick 5): request 0 is served after it has finished (finish)"),
        ({"cell": (5, 1, 1)}, "batch 3 (tick 3) holds 10 KV blocks, of 8 (memory)"),
        ({"blocks": 8}, "batch 1 (tick 1) holds 8 KV blocks, of 7 (memory)"),
        ({"blocks": None}, "request 1 prefills 5 tokens, but has 0 left (eq:prefill-unprocess)"),
    ],
)
def test_tampering_with_a_preemption_is_named_with_its_place_and_value(changed, complaint):
    run = preempted()
    if "times" in changed:
        rows = dataclasses.replace(run.rows, preemptions=np.array(changed["times"]))
        run = dataclasses.replace(run, rows=rows)
    elif "cell" in changed:
        row, column, value = changed["cell"]
        run.allocation_rows[row, column] = value
    elif "blocks" in changed:
        memory = None if changed["blocks"] is None else Memory(changed["blocks"], 1)
        run = dataclasses.replace(run, system=dataclasses.replace(run.server, memory=memory))
    else:
        run = dataclasses.replace(run, **changed)
    violations = audit(run).violations
    assert any(complaint in sentence for sentence in violations), violations


@pytest.mark.parametrize("capacity", ["guaranteed_no_evict", "static_batch"])
def test_memory_reserved_to_completion_is_held_from_the_first_batch_on(capacity):
    """Two requests that hold 7 tokens each in the end share 8 by preemption, but not by reservation of 8 each."""
    run = preempted(Memory(8, 1), "tensorrt-llm", {"capacity": "max_utilization"})
    assert audit(run).feasible
    claimed = run.server.policy.with_options({"capacity": capacity})
    found = audit(dataclasses.replace(run, system=dataclasses.replace(run.server, policy=claimed)))
    assert "batch 0 (tick 0) holds 16 KV blocks, reserved to completion, of 8 (memory)" in found.violations


@pytest.mark.parametrize("policy", ["vllm", "tensorrt-llm", "sarathi"])
def test_decodes_beyond_the_budget_are_sglangs_to_make_but_not_everybodys(policy):
    """Two prompts of a token, then one of two, a prefill batch each: three decode under a budget of 2."""
    server = Server(ONE_TICK, 2, 4, policy="sglang")
    run = simulated([0, 0, 0], [1, 1, 2], [4, 4, 4], server)
    assert run.batch_rows[2, 2:4].tolist() == [0, 3]
    assert audit(run).feasible
    other = dataclasses.replace(run, system=Server(ONE_TICK, 2, 2, policy=policy))
    assert "batch 2 (tick 2) has 3 tokens, over the budget of 2 (eq:batch-constraint)" in audit(other).violations


def test_a_cache_of_prefixes_and_dropped_requests_are_refused_with_the_remedy():
    cached = Server(ONE_TICK, 8, 4, policy="vllm", memory=Memory(9, 1, prefix_caching=True))
    with pytest.raises(InputError, match="audit without it"):
        audit(simulated([0], [3], [5], cached))
    small = Server(ONE_TICK, 8, 4, policy="vllm", memory=Memory(9, 1, too_long="drop"))
    with pytest.raises(InputError, match="simulate and audit a workload without them"):
        audit(simulated([0, 0], [3, 9], [5, 1], small))


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_a_token_for_nothing_after_an_end_that_nobody_foresaw_breaks_no_rule(name):
    """Those who declared more are in the batch that was composed before their end was known, and in no later one."""
    workload = Workload.from_arrays([0, 0, 1], [5, 9, 3], [5, 3, 4], declared=[8, 9, 4])
    run = simulate(workload, Server(ONE_TICK, 32, policy=name), record="allocations", tick_s=1.0)
    assert audit(run).feasible
    late = run.allocation_rows.copy()
    late[np.flatnonzero(late[:, 1] == 1)[-1], 0] += 1
    assert not audit(dataclasses.replace(run, allocation_rows=late)).feasible
