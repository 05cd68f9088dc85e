"""The kernel of engines and KV memory against the plain Python of `penstock.reference`, event for event.

Systems are small and random: ties, cut prompts, memory for a request or two, preemptions in nearly every step.
"""

import dataclasses

import numpy as np
import pytest

import penstock as ps
from penstock.reference import one_server
from penstock.simulation.simulate import simulate
from penstock.system.batch_time import BatchTime
from penstock.system.engines import ENGINES
from penstock.system.memory import Memory
from penstock.system.policies import resolve

OF_THE_PAPER = ("fastertransformer", "vllm-vanilla", "orca", "sarathi")


@dataclasses.dataclass(frozen=True)
class Ticks(BatchTime):
    """A batch of b tokens takes ticks[b - 1] seconds, which need not rise with b."""

    ticks: tuple[int, ...]

    def _seconds(self, tokens):
        return np.array(self.ticks, float)[tokens.astype(int) - 1]


@dataclasses.dataclass(frozen=True)
class System:
    """A small system: what arrives, the limits, and the settings of the scheduler."""

    policy: str
    arrival: tuple[int, ...]
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    priority: tuple[int, ...]
    ticks: tuple[int, ...]
    budget: int
    max_batch_size: int | None
    blocks: int | None
    block_size: int
    watermark: float | None
    admission: str | None = None
    preemption: str = "recompute"
    swap_ticks: int = 0
    order: str = "fcfs"
    scope: str = "running"
    convention: str = "engine"
    settings: tuple[tuple[str, object], ...] = ()
    until: int | None = None
    hash_ids: tuple[tuple[int, ...], ...] | None = None

    @property
    def batch_time(self):
        """The batch-time model of the kernel."""
        return Ticks(self.ticks)

    @property
    def ticks_of(self):
        """The batch time of the reference, which knows no seconds."""
        return lambda load: self.ticks[load - 1]

    def kernel(self, record="requests", compress=True):
        memory = None
        if self.blocks is not None:
            memory = Memory(
                self.blocks,
                self.block_size,
                self.watermark,
                self.admission,
                self.preemption,
                float(self.swap_ticks),
                prefix_caching=self.hash_ids is not None,
            )
        server = ps.Server(
            self.batch_time,
            self.budget,
            self.max_batch_size,
            policy=self.policy,
            scope=self.scope,
            convention=self.convention,
            policy_params=dict(self.settings) if self.policy in ENGINES else (),
            memory=memory,
            order=self.order,
        )
        workload = ps.Workload.from_arrays(
            self.arrival,
            self.prompt,
            self.output,
            self.priority,
            hash_ids=self.hash_ids,
            hash_block=None if self.hash_ids is None else self.block_size,
        )
        return simulate(workload, server, until=self.until, record=record, tick_s=1.0, compress=compress)

    def reference(self):
        return one_server.simulate(
            self.arrival,
            self.prompt,
            self.output,
            batch_time=self.ticks_of,
            engine=self.policy,
            token_budget=self.budget,
            max_batch_size=self.max_batch_size,
            kv_blocks=self.blocks,
            block_size=self.block_size if self.blocks else None,
            watermark=self.watermark if self.blocks else None,
            admission=self.admission,
            preemption=self.preemption,
            swap_ticks=self.swap_ticks,
            order=self.order,
            priority=self.priority,
            scope=self.scope,
            convention=self.convention,
            options=dict(self.settings),
            until=self.until,
            hash_ids=self.hash_ids,
        )


def draw_settings(rng, policy, longest):
    match policy:
        case "vllm":
            chunked, threshold = bool(rng.random() < 0.7), int(rng.choice([0, 0, 1, 4]))
            return {"chunked_prefill": chunked, "long_prefill_threshold": threshold}
        case "sglang":
            return {
                "mixed_chunk": bool(rng.random() < 0.5),
                "max_prefill_tokens": int(rng.choice([5, 20, 1000])),
                "decay_steps": int(rng.choice([1, 5, 600])),
                "retract_steps": int(rng.choice([1, 3, 20])),
                "clip_new_tokens": int(rng.choice([3, 4096])),
            }
        case "tensorrt-llm":
            return {
                "capacity": str(rng.choice(["guaranteed_no_evict", "max_utilization", "static_batch"])),
                "chunked_context": bool(rng.random() < 0.5),
            }
        case "vidur-orca" | "vidur-fastertransformer":
            return {"max_tokens": longest + int(rng.integers(0, 4))}
    return {}


def draw(rng, policy):
    """Draw a system in which every request fits: by as little as may be, often."""
    engine = policy in ENGINES
    n = int(rng.integers(1, 14))
    gaps = rng.integers(0, rng.choice([0, 1, 3, 10, 60]) + 1, n)
    gaps[0] = 0
    arrival = np.cumsum(gaps)
    prompt = rng.integers(1, rng.choice([1, 3, 9, 30]) + 1, n)
    output = rng.integers(1, rng.choice([1, 2, 5, 40]) + 1, n)
    longest = int((prompt + output).max())
    settings = draw_settings(rng, policy, longest)
    scheduler, _ = resolve(policy).configured(settings if engine else [])
    budget = int(rng.choice([rng.integers(1, 9), rng.integers(8, 40)]))
    if scheduler.has_token_budget and not scheduler.cuts_prompts:
        budget += longest
    within = budget if scheduler.decodes_at_once else 6  # the others may have more slots than budget
    slots = None if rng.random() < 0.2 and policy not in ENGINES else int(rng.integers(1, min(6, within) + 1))
    block_size = int(rng.choice([1, 2, 4, 16]))
    if scheduler.whole_blocks:
        budget = max(budget, block_size)
    watermark = float(rng.choice([0.0, 0.0, 0.1])) if scheduler.has_watermark else None
    blocks = None
    if rng.random() < 0.85:
        reserved = settings.get("max_tokens", longest)
        least = -(-reserved // block_size) + scheduler.own_blocks
        blocks = int(least * rng.choice([1.0, 1.3, 2.0, 4.0]))
        while blocks - int((watermark or 0) * blocks) < least:
            blocks += 1
    most = max(budget, slots or budget, (slots or 0) * settings.get("max_tokens", 0))
    swaps = not engine and rng.random() < 0.3 and blocks is not None
    return System(
        policy,
        tuple(arrival.tolist()),
        tuple(prompt.tolist()),
        tuple(output.tolist()),
        tuple(rng.integers(0, 3, n).tolist()),
        tuple(rng.integers(1, rng.choice([1, 3, 10, 50]) + 1, most).tolist()),
        budget,
        slots,
        blocks,
        block_size,
        watermark,
        admission=None if engine or blocks is None else str(rng.choice(["input", "completion", "optimistic"])),
        preemption="swap" if swaps else "recompute",
        swap_ticks=int(rng.integers(0, 3)) if swaps else 0,
        order="priority" if rng.random() < 0.4 and "priority" in scheduler.orders else "fcfs",
        scope="running" if engine or rng.random() < 0.5 else "batch",
        convention="engine" if engine or rng.random() < 0.5 else "paper",
        settings=tuple(settings.items()),
        until=None if rng.random() < 0.7 else int(rng.integers(1, arrival[-1] + 150)),
    )


def with_shared_prefixes(rng, system):
    """Cache the prefixes of prompts that go on from each other, as turns of few conversations; some have no ids."""
    told = [tuple(100 * c + i for i in range(40)) for c in range(int(rng.integers(1, 4)))]
    ids = []
    for index, prompt in enumerate(system.prompt):
        shared = int(rng.integers(0, 41))
        whole = (*told[int(rng.integers(len(told)))][:shared], *range(10_000 * (index + 1), 10_000 * (index + 1) + 40))
        ids.append(whole[: 0 if rng.random() < 0.1 else prompt // system.block_size + int(rng.integers(0, 2))])
    return dataclasses.replace(system, admission=None, preemption="recompute", swap_ticks=0, hash_ids=tuple(ids))


def assert_same(system, record="requests", compress=True):
    """The run of the kernel equals the history of the reference."""
    run, history = system.kernel(record, compress), system.reference()
    rows = run.rows
    for request in history.requests:
        i = request.index
        assert rows.first_token[i] == (-1 if request.first_token is None else request.first_token), (system, i)
        assert rows.finish[i] == (-1 if request.finish is None else request.finish), (system, i)
        if run.preemptions:
            assert rows.preemptions[i] == request.preemptions, (system, i)
    assert run.n_batches == len(history.batches), system
    gaps = [b - a for r in history.requests for a, b in zip(r.token_times, r.token_times[1:], strict=False)]
    assert run.gaps.total == sum(gaps), system
    assert run.gaps.size == len(gaps), system
    if record == "batches":
        found = run.batches.select("start_ns", "duration_ns").rows()
        assert [(s // 10**9, d // 10**9) for s, d in found] == [(b.start, b.duration) for b in history.batches], system
    if record == "allocations":
        for index, batch in enumerate(history.batches):
            of = run.allocation_rows[run.allocation_rows[:, 0] == index]
            assert dict(zip(of[:, 1].tolist(), (of[:, 2] + of[:, 3]).tolist(), strict=True)) == batch.allocation, system


@pytest.mark.parametrize("policy", [*ENGINES, *OF_THE_PAPER])
def test_the_kernel_equals_the_plain_python_event_for_event(policy: str) -> None:
    """First tokens, finishes, preemptions, times between tokens and batches, with compression and without."""
    rng = np.random.default_rng([4, sorted([*ENGINES, *OF_THE_PAPER]).index(policy)])
    preemptions = 0
    for i in range(150):
        system = draw(rng, policy)
        assert_same(system, record=("requests", "batches", "allocations")[i % 3], compress=bool(i % 4))
        preemptions += system.kernel().preemptions
    assert preemptions or resolve(policy).reserved_tokens  # these reserve what they will need


@pytest.mark.parametrize("policy", ["vllm", *OF_THE_PAPER])
def test_with_prefix_caching_the_kernel_equals_the_plain_python_event_for_event(policy: str) -> None:
    """Shared blocks, evicted ones, and a preempted request that finds its own again."""
    rng = np.random.default_rng([5, sorted([*ENGINES, *OF_THE_PAPER]).index(policy)])
    preemptions = reused = 0
    for i in range(200):
        system = draw(rng, policy)
        if system.blocks is None:
            continue
        system = with_shared_prefixes(rng, system)
        assert_same(system, record=("requests", "batches", "allocations")[i % 3], compress=bool(i % 4))
        run = system.kernel()
        preemptions, reused = preemptions + run.preemptions, reused + run.reused_tokens
        if system.until is None:
            once = sum(system.prompt) + sum(system.output) - (system.convention == "engine") * len(system.prompt)
            assert run.tokens == once + run.recomputed_tokens - run.reused_tokens, system
    assert min(preemptions, reused) > 0


def test_a_decode_that_takes_the_elder_of_two_equal_blocks_lets_a_waiting_request_in() -> None:
    """Two blocks hold one prefix, the elder unused; once that is taken the younger counts, which costs no block."""
    system = System(
        policy="sarathi",
        arrival=(0, 2, 5, 11, 19, 29, 34, 34, 34, 36, 45, 53, 58),
        prompt=(3, 3, 3, 1, 3, 3, 2, 1, 1, 3, 1, 2, 3),
        output=(2, 2, 1, 1, 1, 2, 1, 2, 1, 1, 1, 2, 2),
        priority=(0,) * 13,
        ticks=(3, 3),
        budget=2,
        max_batch_size=None,
        blocks=3,
        block_size=2,
        watermark=0.0,
        convention="paper",
        hash_ids=((), (0, 1), (0, 1), (), (0, 1), (0, 1), (0, 1), (0,), (), (0,), (), (0,), (0,)),
    )
    for compress in (True, False):
        assert_same(system, "batches", compress)
