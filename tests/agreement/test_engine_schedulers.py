"""The kernel of engines and KV memory against the plain Python of `tests.reference`, event for event.

Systems are small and random: ties, cut prompts, memory for a request or two, preemptions in nearly every step.
"""

import dataclasses

import numpy as np
import pytest
from engine_systems import OF_THE_PAPER, System, draw, with_shared_prefixes

import penstock as ps
from penstock.errors import InputError
from penstock.simulation.run import Run
from penstock.system.engines import ENGINES


def assert_same(system, record="requests", compress=True) -> Run:
    """The run of the kernel, which is returned, equals the history of the reference."""
    run = system.kernel(record, compress)
    history = system.reference(instants=run.series_rows[:, 0].tolist())
    rows = run.rows
    counts = [[i.tick, i.prefill[0] + i.decode[0], i.unprocessed_tokens[0]] for i in history.instants]
    assert counts == run.series_rows[:, :3].tolist(), system
    for request in history.requests:
        i = request.index
        first = request.first_token
        if first is None or first > history.end:  # known ahead, but not out
            first = -1
        assert rows.first_token[i] == first, (system, i)
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
    return run


@pytest.mark.parametrize("systems", [50, pytest.param(1_700, marks=pytest.mark.slow)])
@pytest.mark.parametrize("policy", [*ENGINES, *OF_THE_PAPER])
def test_the_kernel_equals_the_plain_python_event_for_event(policy: str, systems: int) -> None:
    """First tokens, finishes, preemptions, times between tokens and batches, with compression and without."""
    rng = np.random.default_rng([4, sorted([*ENGINES, *OF_THE_PAPER]).index(policy)])
    preemptions = 0
    for i in range(systems):
        system = draw(rng, policy)
        run = assert_same(system, record=("requests", "batches", "allocations")[i % 3], compress=bool(i % 4))
        preemptions += run.preemptions
    assert preemptions


@pytest.mark.parametrize("systems", [20, pytest.param(4_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("policy", ["vllm", "sglang", *OF_THE_PAPER])
def test_with_prefix_caching_the_kernel_equals_the_plain_python_event_for_event(policy: str, systems: int) -> None:
    """Shared blocks, evicted ones, and a preempted request that finds its own again."""
    rng = np.random.default_rng([5, sorted([*ENGINES, *OF_THE_PAPER]).index(policy)])
    preemptions = reused = 0
    for i in range(systems):
        system = draw(rng, policy)
        if system.blocks is None:
            continue
        system = with_shared_prefixes(rng, system)
        run = assert_same(system, record=("requests", "batches", "allocations")[i % 3], compress=bool(i % 4))
        preemptions, reused = preemptions + run.preemptions, reused + run.reused_tokens
        if system.until is None and not dict(system.settings).get("drafts"):
            once = (
                sum(system.prompt)
                + int(run.requests["output_tokens"].sum())
                - (system.convention == "engine") * len(system.prompt)
            )
            assert run.tokens == once + run.recomputed_tokens - run.reused_tokens, system
    assert min(preemptions, reused) > 0


@pytest.mark.parametrize("systems", [5, pytest.param(300, marks=pytest.mark.slow)])
def test_where_requests_preempt_each_other_for_ever_both_end_and_say_so(systems: int) -> None:
    """Equal priorities and arrivals, admission by the first chunk, six blocks; where they do not, both agree."""
    rng = np.random.default_rng(6)
    ended = 0
    for i in range(systems):
        n, budget = int(rng.integers(2, 4)), int(rng.choice([16, 32]))
        threshold = int(rng.choice([4, 8, budget // n]))
        settings = {"reserve_prompt": False, "long_prefill_threshold": threshold, "async_scheduling": bool(i % 3)}
        system = System(
            policy="vllm",
            arrival=(0,) * n,
            prompt=tuple(rng.integers(40, 66, n).tolist()),
            output=tuple(rng.integers(2, 14, n).tolist()),
            priority=(int(rng.integers(0, 2)),) * n,
            ticks=(2, 3) * 16,
            budget=budget,
            max_batch_size=4,
            blocks=6,
            block_size=16,
            watermark=0.0,
            order="priority",
            settings=tuple(settings.items()),
        )
        said = ""
        try:
            assert_same(system, compress=bool(i % 2))
        except InputError as error:
            said = str(error)
        if said:
            ended += 1
            assert "preempts for ever" in said, system
            with pytest.raises(InputError, match="preempt each other for ever"):
                system.reference()
    assert ended > 0


@pytest.mark.parametrize("systems", [20, pytest.param(2_000, marks=pytest.mark.slow)])
def test_by_priority_and_admitted_by_the_first_chunk_both_agree(systems: int) -> None:
    """With drafts, too; these were left out as long as requests might preempt each other for ever."""
    rng = np.random.default_rng(7)
    for i in range(systems):
        assert_same(draw(rng, "vllm", circles=True), ("requests", "batches", "allocations")[i % 3], bool(i % 4))


def test_two_equal_requests_that_evict_each_other_for_ever_end_the_run() -> None:
    """Six blocks, of which each of the two needs five: of equal victims vLLM takes the first, by turns."""
    workload = ps.Workload.from_arrays([0.0, 0.0], [60, 60], [10, 10], [1, 1])
    settings = {"reserve_prompt": False, "long_prefill_threshold": 8}
    for ahead in (True, False):
        params = settings | {"async_scheduling": ahead}
        server = ps.Server(
            ps.Affine(1.0, 0.0), 16, 8, policy="vllm", policy_params=params, order="priority", memory=ps.Memory(6)
        )
        for run in (workload, server), (ps.Network.single(workload, server),):
            with pytest.raises(InputError, match=r"preempts for ever: .* let admission reserve whole prompts"):
                ps.simulate(*run)
        apart = dataclasses.replace(server, order="fcfs")
        assert ps.simulate(workload, apart).requests["finish_ns"].null_count() == 0


def test_whoever_comes_lowers_the_fair_share_of_the_first_that_waits() -> None:
    """Its first chunk then fits into memory, so a run of decodes ends with the arrival."""
    system = System(
        policy="vllm",
        arrival=(0, 42, 45, 63, 118, 174, 216),
        prompt=(29, 25, 1, 10, 6, 5, 18),
        output=(31, 26, 39, 7, 11, 36, 2),
        priority=(0,) * 7,
        ticks=tuple(5 + tokens % 2 for tokens in range(74)),
        budget=74,
        max_batch_size=5,
        blocks=5,
        block_size=16,
        watermark=0.0,
        settings=(
            ("chunked_prefill", False),
            ("long_prefill_threshold", 4),
            ("long_prefill_adaptive", True),
            ("reserve_prompt", False),
        ),
    )
    for ahead in (True, False):
        late = dataclasses.replace(system, settings=(*system.settings, ("async_scheduling", ahead)))
        assert_same(late, "batches")


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
