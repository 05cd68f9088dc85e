import numpy as np
import pytest

import penstock as ps
from penstock.checking.flood_test import useful_tokens
from penstock.errors import InputError
from penstock.kernel.due_epochs import NEVER
from penstock.simulation.event_session import EventSession
from tests.network_examples import DESTABILISING, REVERSED, dag, fork_join, rybko_stolyar, self_reflection

GEOMETRIC = ps.Geometric

NETWORKS = {
    "destabilising .50": (lambda: rybko_stolyar(0.50, DESTABILISING), "stable"),
    "destabilising .54": (lambda: rybko_stolyar(0.54, DESTABILISING), "stable"),
    "destabilising .58": (lambda: rybko_stolyar(0.58, DESTABILISING), "unstable"),
    "destabilising .70": (lambda: rybko_stolyar(0.70, DESTABILISING), "unstable"),
    "destabilising .90": (lambda: rybko_stolyar(0.90, DESTABILISING), "unstable"),
    "destabilising .54 geometric": (lambda: rybko_stolyar(0.54, DESTABILISING, GEOMETRIC), "stable"),
    "destabilising .58 geometric": (lambda: rybko_stolyar(0.58, DESTABILISING, GEOMETRIC), "unstable"),
    "reversed .90": (lambda: rybko_stolyar(0.90, REVERSED), "stable"),
    "reversed .97": (lambda: rybko_stolyar(0.97, REVERSED), "stable"),
    "fcfs .95": (lambda: rybko_stolyar(0.95), "stable"),
    "hlpps .95": (lambda: rybko_stolyar(0.95, "hlpps"), "stable"),
    "back-pressure .95": (lambda: rybko_stolyar(0.95, "back-pressure"), "stable"),
    "back-pressure-phase .95": (lambda: rybko_stolyar(0.95, "back-pressure-phase"), "stable"),
    "self-reflection .97": (lambda: self_reflection(0.97), "stable"),
    "self-reflection 1.03": (lambda: self_reflection(1.03), "unstable"),
}
"""On both sides of their limits: rho* is .5588 under the destabilising priorities, else 1."""

EASY = (
    "destabilising .50", "destabilising .70", "destabilising .90", "destabilising .54 geometric",
    "destabilising .58 geometric", "reversed .90", "fcfs .95", "back-pressure-phase .95",
)  # fmt: skip
"""Farther from them than others are, or like others."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in EASY else name for name in NETWORKS]
)
def test_verdicts_of_networks_are_right(name: str) -> None:
    make, expected = NETWORKS[name]
    found = ps.verdict(make(), seed=3)
    assert found.verdict == expected, found.reason


@pytest.mark.slow
@pytest.mark.parametrize("make", [fork_join, dag])
@pytest.mark.parametrize(("rho", "expected"), [(0.97, "stable"), (1.03, "unstable")])
def test_acyclic_networks_are_stable_up_to_load_1_and_not_beyond(make, rho: float, expected: str) -> None:  # type: ignore[no-untyped-def]
    """By certificate (thm:dag, thm:fork-join and its remark) and by verdict alike."""
    network = make(rho)
    certificate = ps.certify(network)
    assert certificate.verdict == expected, certificate.reason
    assert certificate.rho == pytest.approx(rho, abs=0.003)
    found = ps.verdict(network, seed=1)
    assert found.verdict == expected, found.reason


@pytest.mark.parametrize("router", ["jsq", "random", "work"])
@pytest.mark.parametrize(
    "replicas", [2, pytest.param(8, marks=pytest.mark.slow), pytest.param(64, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("rho", "expected"), [(0.95, "stable"), (1.05, "unstable")])
def test_replicas_carry_their_summed_capacity(router: str, replicas: int, rho: float, expected: str) -> None:
    """pro:parallel: at an aggregate load of .95 stable, at 1.05 not."""
    server = ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, 512)
    conversation = ps.Workload.preset("azure-conv").with_rate(1.0, "poisson")
    rate = rho * replicas * ps.certify(conversation, server).max_rate
    network = ps.Network.single(conversation.with_rate(rate), server, replicas, router)
    assert ps.verdict(network, seed=2).verdict == expected
    assert ps.certify(network).verdict == expected


def test_heavy_later_work_behind_a_light_flood_is_no_growth() -> None:
    """A small classifier before large models: loads of .6 and .49, first come, first served, no cycle."""
    gate = ps.Server(ps.Affine(c=0.01, a=0.0001), 512)
    models = ps.Server(ps.Affine(c=0.01, a=0.00001), 2048)
    rate = 0.6 * gate.batch_time.capacity(512) / 2 / 200
    chat = {"call": ps.Stage("gate", 150, 50)}
    research = {"classify": ps.Stage("gate", 199, 1, then="work"), "work": ps.Stage("models", 20_000, 1_000)}
    network = ps.Network(
        {"gate": ps.Pool(gate), "models": ps.Pool(models, replicas=8)},
        [
            ps.Workflow(name, ps.Workload.poisson(rate, 1, 1, seed=seed), stages)
            for seed, (name, stages) in enumerate({"chat": chat, "research": research}.items())
        ],
    )
    assert ps.certify(network).verdict == "stable"
    for seed in range(3):
        assert ps.verdict(network, seed=seed).verdict == "stable"


@pytest.mark.parametrize(("rho", "expected"), [(0.95, "stable"), (1.05, "unstable")])
def test_a_slow_pool_is_judged_beside_a_large_one_that_drains(rho: float, expected: str) -> None:
    """The large pool has 20 times the tokens of the one at its limit."""
    slow = ps.Server(ps.Affine(c=1.0, a=0.0), 64)
    fast = ps.Server(ps.Affine(c=0.01, a=0.0001), 512)
    rate = rho * 64 / 32
    pools = {"slow": ps.Pool(slow), "fast": ps.Pool(fast)}
    workflows = [
        ps.Workflow("a", ps.Workload.poisson(rate, 1, 1, seed=0), {"s": ps.Stage("slow", 32, 1)}),
        ps.Workflow("b", ps.Workload.poisson(rate, 1, 1, seed=1), {"s": ps.Stage("fast", 640, 1)}),
    ]
    for seed in range(3):
        assert ps.verdict(ps.Network(pools, workflows), seed=seed).verdict == expected


def test_far_overload_is_said_at_once() -> None:
    found = ps.verdict(self_reflection(1e6))
    assert found.verdict == "unstable"
    assert found.deciding.arrivals < 100_000


def test_a_flood_that_drains_says_how_high_the_work_rose_before() -> None:
    """Under FCFS the work of a network with a cycle rises before it drains: barriers, and no slope, judge it."""
    found = ps.verdict(rybko_stolyar(0.95), seed=3)
    assert {flood.stage for flood in found.floods} == {"a.short", "a.long", "b.short", "b.long"}
    assert max(flood.highest for flood in found.floods) > 1.3
    assert "after rising to" in found.reason
    for flood in found.floods:
        assert flood.path[0].tolist() == [0.0, 1.0]
        assert (np.diff(flood.path[:, 0]) > 0).all()
        assert flood.path[-1, 1] == flood.ratio <= 0.65  # half, and what such a network holds anyway
        assert flood.highest >= flood.path[:, 1].max()


def test_the_same_seed_gives_the_same_verdict_to_the_last_digit() -> None:
    once, again = (ps.verdict(self_reflection(0.9), seed=5).as_dict() for _ in range(2))
    assert once == again
    assert ps.verdict(self_reflection(0.9), seed=6).as_dict() != once


def test_too_few_jobs_leave_it_undecided() -> None:
    found = ps.verdict(rybko_stolyar(0.95, "hlpps"), most_jobs=300)
    assert found.verdict == "undecided"
    assert "too little to tell" in found.reason


def test_progress_ends_at_one() -> None:
    shares: list[float] = []
    ps.verdict(self_reflection(0.5), progress=shares.append)
    assert shares == sorted(shares)
    assert 0 <= shares[0] <= shares[-1] <= 1


def test_what_cannot_be_judged_is_refused_in_one_line() -> None:
    server = ps.Server(ps.Affine(0.01, 0.0), 64)
    recorded = ps.Workload.from_arrays([0.0, 1.0], [5, 5], [5, 5])
    for make, said in (
        (lambda: ps.verdict(server), "or a Network alone"),  # type: ignore[call-overload]
        (lambda: ps.verdict(ps.Network.single(recorded, server)), "give them a rate"),
        (lambda: ps.verdict(self_reflection(0.9), resolution=0.0), "resolution is 0"),
        (lambda: ps.verdict(self_reflection(0.9), most_jobs=0), "most_jobs is 0"),
    ):
        with pytest.raises(InputError, match=said) as caught:
            make()
        assert "\n" not in str(caught.value)


TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
SHORT = ps.Workload.poisson(1.0, ps.Geometric(129, max=500), ps.Geometric(112, max=1_000))

TIGHT = {
    "vllm": (3.0, 5.0), "sglang": (3.0, 6.5), "tensorrt-llm": (2.0, 5.0), "sarathi": (3.0, 5.0), "orca": (3.0, 5.0),
    "vllm-vanilla": (2.0, 5.0), "fastertransformer": (None, 2.0),
}  # fmt: skip
"""Rates of `SHORT` on either side of what each carries with KV memory for 7,000 tokens, by the test of one server."""


ALIKE = ("sarathi", "orca", "vllm-vanilla", "fastertransformer")
"""Of those, what others are near."""


@pytest.mark.parametrize(
    "policy", [pytest.param(name, marks=pytest.mark.slow) if name in ALIKE else name for name in TIGHT]
)
def test_floods_of_engines_with_tight_memory_end_as_their_servers_do(policy: str) -> None:
    """In a pool alone, and in one before a pool of the paper: preempted work counts again, in its own pool."""
    server = ps.Server(TP1, 2048, 128, policy=policy, kv_tokens=7_000)
    behind = ps.Pool(ps.Server(TP1, 512))
    for rate, expected in zip(TIGHT[policy], ("stable", "unstable"), strict=True):
        if rate is None:
            continue
        workload = SHORT.with_rate(rate)
        assert ps.verdict(workload, server, resolution=0.05).verdict == expected
        stages = {"call": ps.Stage("pool", "job", "job", then="more"), "more": ps.Stage("behind", 50, 5)}
        pools = {"pool": ps.Pool(server), "behind": behind}
        for network in (
            ps.Network.single(workload, server),
            ps.Network(pools, [ps.Workflow("w", workload, stages)]),
        ):
            found = ps.verdict(network, resolution=0.05, seed=1)
            assert found.verdict == expected, found.reason
            assert all((flood.path[:, 1] >= 0).all() for flood in found.floods)


def test_a_server_that_does_all_its_work_again_does_not_seem_to_drain() -> None:
    """At 1.4 requests/s it never preempts from empty, and never again works down a backlog (docs/memory.md)."""
    long = ps.Workload.poisson(1.4, ps.Geometric(500, max=4_000), ps.Geometric(2_000, max=20_000))
    server = ps.Server(ps.hardware("codellama-34b-a100-tp2").batch_time, 2048, 1024, policy="vllm", kv_blocks=24_000)
    found = ps.verdict(ps.Network.single(long, server), resolution=0.05, seed=1)
    assert found.verdict == ps.verdict(long, server, resolution=0.05).verdict == "unstable"
    assert (found.deciding.path[:, 1] > 0).all()


def test_drafts_that_are_wrong_are_no_work_done() -> None:
    """The same verdicts as without drafts, which bring nothing where the first one is always wrong."""
    options = {"drafts": 4, "acceptance": 0.0}
    for rate, expected in ((2.0, "stable"), (5.0, "unstable")):
        workload = SHORT.with_rate(rate)
        for params in ({}, options):
            server = ps.Server(TP1, 2048, 128, policy="vllm", kv_tokens=7_000, policy_params=params)
            found = ps.verdict(ps.Network.single(workload, server), resolution=0.05, seed=1)
            assert found.verdict == expected, found.reason
            assert (found.deciding.path[:, 1] >= 0).all()


def test_a_flood_of_prompts_that_hides_decodes_is_followed_by_one_of_decodes() -> None:
    """Vanilla vLLM works a flood of prompts down to half and never its decodes (129 prompt, 12 output tokens)."""
    server = ps.Server(TP1, 512, policy="vllm-vanilla")
    capacity = ps.certify(ps.Workload.poisson(1.0, 129, 12), server).max_rate
    for share, expected in ((0.7, "stable"), (0.9, "unstable")):
        workload = ps.Workload.poisson(share * capacity, 129, 12)
        found = ps.verdict(ps.Network.single(workload, server), resolution=0.05)
        assert found.verdict == ps.verdict(workload, server, resolution=0.05).verdict == expected
        assert [flood.decodes for flood in found.floods] == [False, True]
        assert found.floods[0].outcome == "stable"
    assert "decodes alone" in found.reason
    bounded = ps.Server(TP1, 512, 64, policy="vllm-vanilla", kv_tokens=20_000)
    floods = ps.verdict(ps.Network.single(SHORT, bounded), resolution=0.1).floods
    assert [flood.decodes for flood in floods] == [False]


@pytest.mark.parametrize("policy", ["vllm", "sarathi"])
def test_what_preempted_requests_lose_is_no_useful_work_where_their_prompts_came_from_elsewhere(policy: str) -> None:
    """A received prompt that is computed anew here is not among the tokens that jobs bring."""
    roomy = ps.Server(ps.Affine(c=0.01, a=1e-4), 512, 64, policy="vllm", kv_tokens=40_000)
    tight = ps.Server(ps.Affine(c=0.01, a=1e-4), 512, 64, policy=policy, kv_tokens=640)
    workflow = ps.Workflow.disaggregated(
        ps.Workload.poisson(20.0, 100, ps.Uniform(100, 200), seed=4), prefill="p", decode="d"
    )
    network = ps.Network({"p": ps.Pool(roomy), "d": ps.Pool(tight)}, [workflow])
    jobs = network.jobs(200, 1)
    session = EventSession(network, 1e-9, True, NEVER)
    session.add(jobs)
    session.run(True)
    assert session.by_replica("preemptions")[1] > 20
    brought = [100 * jobs.count, int(jobs.output[network.stage_pool[jobs.stage] == 1].sum())]
    assert useful_tokens(session).tolist() == brought
    assert session.processed[1] > brought[1]
