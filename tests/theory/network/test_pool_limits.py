"""What a limit of a pool carries is what conservation says, and nothing within what theorems allow is called full."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.system.batch_time import Composition
from penstock.theory.hypotheses import AMPLE
from penstock.theory.limits import Limit
from penstock.theory.network.hypotheses import BY_TOKENS, LINKS_FREE

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
SECOND = ps.Affine(c=1.0, a=0.0)
"""Any batch takes a second."""
CHAT = ps.Workload.poisson(1.0, ps.Geometric(129, max=2_000), ps.Geometric(112, max=1_000))


def limits_of(network: ps.Network, pool: str = "pool") -> dict[str, Limit]:
    found = next(each for each in ps.certify(network).pools if each.name == pool)
    return {limit.name: limit for limit in found.limits}


def two_calls(server: ps.Server, rate: float, replicas: int = 1) -> ps.Network:
    """A call of a job's own lengths, and one time of two another one at the same pool."""
    stages = {
        "first": ps.Stage("pool", "job", "job", then={"again": 0.5, "end": 0.5}),
        "again": ps.Stage("pool", 300, ps.Geometric(80, max=800)),
    }
    return ps.Network({"pool": ps.Pool(server, replicas)}, [ps.Workflow("w", CHAT.with_rate(rate), stages)])


@pytest.mark.parametrize("policy", ["vllm", "sarathi", "tensorrt-llm"])
@pytest.mark.parametrize("lengths", [(129, 112), (ps.Geometric(129, max=300), ps.Geometric(112, max=200))])
def test_limits_of_replicas_that_serve_one_call_are_those_of_one_server(policy: str, lengths: tuple) -> None:  # type: ignore[type-arg]
    server = ps.Server(TP1, 512, 64, policy=policy, kv_tokens=20_000)
    alone = ps.certify(ps.Workload.poisson(1.0, *lengths), server)
    network = ps.Network.single(ps.Workload.poisson(3.0, *lengths), server, replicas=3)
    found = limits_of(network)
    assert list(found) == [bound.name for bound in alone.bounds]
    by_name = {bound.name: 1 / bound.max_rate for bound in alone.bounds}
    assert found["token budget"].load == pytest.approx(by_name["token budget"])
    assert found["max batch size"].load == pytest.approx(by_name["max batch size"])
    memory = found["KV memory"]
    assert (memory.load, memory.standard_error) == (pytest.approx(by_name["KV memory"]), 0)


def test_the_memory_of_calls_that_depend_on_their_job_is_that_of_all_stages_together() -> None:
    """E[g] of a call is known by formula where blocks are of one token, up to the sampling error."""
    server = ps.Server(TP1, 4_096, 256, policy="vllm", kv_tokens=40_000, block_size=1)
    found = limits_of(two_calls(server, 1.0))["KV memory"]

    def mean(prompt: np.ndarray, output: np.ndarray) -> float:
        decodes = output - 1.0
        return float((prompt + prompt * decodes + decodes * (decodes + 1) / 2).mean())

    outputs = ps.Geometric(80, max=800).sample(np.random.default_rng(5), 2**19)
    prompts, own = CHAT.lengths.sample(np.random.default_rng(6), 2**19)
    needed = mean(prompts, own) + 0.5 * mean(np.full(outputs.size, 300), outputs)
    asked = found.load * (40_000 - 1) / float(TP1.table(4_096)[1:].min())
    error = found.standard_error / found.load
    assert asked == pytest.approx(needed, rel=4 * error + 0.01)
    assert error < 0.02


def test_constant_lengths_have_no_error_however_jobs_branch() -> None:
    server = ps.Server(TP1, 512, 64, policy="vllm", kv_tokens=20_000)
    stages = {
        "first": ps.Stage("pool", 200, 100, then={"again": 0.4, "end": 0.6}),
        "again": ps.Stage("pool", 300, 50, then={"first": 0.5, "end": 0.5}),
    }
    network = ps.Network(
        {"pool": ps.Pool(server)}, [ps.Workflow("w", ps.Workload.poisson(1, 1, 1), stages, first="first")]
    )
    found = limits_of(network)["KV memory"]
    assert found.standard_error == pytest.approx(0, abs=1e-12)
    visits = 1 / (1 - 0.2)
    held = sum(
        n * (math.ceil(p / 16) + sum(math.ceil((p + j) / 16) for j in range(1, o)))
        for n, p, o in ((visits, 200, 100), (0.4 * visits, 300, 50))
    )
    assert found.load == pytest.approx(held * float(TP1.table(512)[1:].min()) / (20_000 // 16 - 1))


@pytest.mark.parametrize(("load", "expected"), [(0.9, "stable"), (1.1, "unstable")])
def test_memory_that_is_full_at_a_known_rate_is_certified_and_tested_so(load: float, expected: str) -> None:
    """Requests of 1 prompt and 20 output tokens reserve 20 blocks for 20 batches, of 200 that a replica has."""
    memory = ps.Memory(200, block_size=1, admission="completion")
    server = ps.Server(SECOND, 512, policy="sarathi", memory=memory)
    rate = load * 3 * 10 / 20
    network = ps.Network(
        {"pool": ps.Pool(server, 3)},
        [ps.Workflow("w", ps.Workload.poisson(rate, 1, 1), {"s": ps.Stage("pool", 1, 20)})],
    )
    found = ps.certify(network)
    assert limits_of(network)["KV memory"].load == pytest.approx(load)
    assert found.margin == pytest.approx(1 - load)
    assert found.bottleneck.binding == ("KV memory",)
    assert ps.verdict(network, resolution=0.05, seed=1).verdict == expected
    if expected == "unstable":
        assert found.verdict == "unstable"
        assert found.theorem == "KV memory (Nie, Si, Zhou; Little's law)"
        assert "KV memory lets pool pool carry at most 0.909 times what arrives" in found.reason
        assert found.certified_load is None
    else:
        assert found.verdict == "unknown"
        assert f"'{AMPLE}' (pool: any number of requests may hold memory" in found.reason


def test_memory_that_surely_holds_all_that_run_leaves_the_theorems_as_they_are() -> None:
    """The same certificate as without memory, and with one block less no certificate."""
    stages = {"s": ps.Stage("pool", ps.Uniform(10, 60), ps.Uniform(1, 41), then="t"), "t": ps.Stage("next", 100, 20)}
    workflow = ps.Workflow("w", ps.Workload.poisson(0.5, 1, 1), stages)

    def certified(blocks: int | None) -> ps.Certificate:
        server = ps.Server(SECOND, 64, 64, policy="sarathi", kv_blocks=blocks, block_size=10 if blocks else None)
        pools = {"pool": ps.Pool(server), "next": ps.Pool(ps.Server(SECOND, 512))}
        return ps.certify(ps.Network(pools, [workflow]))

    ample, plain = certified(64 * 10), certified(None)
    assert ample.verdict == plain.verdict == "stable"
    assert ample.certified_load == plain.certified_load
    assert AMPLE in [h.name for h in ample.hypotheses]
    tight = certified(64 * 10 - 1)
    assert tight.verdict == "unknown"
    assert "pool: 64 requests of up to 10 blocks need 640" in tight.reason


def test_attention_counts_in_loads_and_in_what_is_certified() -> None:
    """The token load alone is a tenth of what the server needs: no certificate may go by it."""
    slow = Composition(ps.Affine(0.01, 1e-5), self_attention=1e-7, cross_attention=1e-7, decode_attention=1e-7)
    server = ps.Server(slow, 512)
    long = ps.Workload.poisson(1.0, ps.Uniform(2_000, 3_000), ps.Uniform(100, 300))
    alone = ps.certify(long, server)
    assert alone.certified_rate is not None
    for scale, expected in ((0.4, "stable"), (0.9999, "unknown"), (1.1, "unstable")):
        workload = long.with_rate(2 * scale * alone.max_rate)
        workflow = ps.Workflow("w", workload, {"s": ps.Stage("pool", "job", "job", then="end")})
        found = ps.certify(ps.Network({"pool": ps.Pool(server, 2)}, [workflow]))
        assert found.rho == pytest.approx(scale)
        assert found.verdict == expected, found.reason
        assert found.certified_rate == pytest.approx(2 * alone.certified_rate)
        assert expected != "stable" or str(found.theorem).endswith(", with attention")


def test_beside_attention_several_stages_of_a_pool_or_a_cycle_are_not_certified() -> None:
    slow = Composition(ps.Affine(0.01, 1e-5), self_attention=1e-7, cross_attention=1e-7, decode_attention=1e-7)
    server = ps.Server(slow, 512)
    first = ps.Stage("one", 10, 10, then="2")
    there = {"1": first, "2": ps.Stage("two", 10, 10)}
    back = {"1": ps.Stage("two", 10, 10, then="2"), "2": ps.Stage("one", 10, 10)}
    again = {"1": first, "2": ps.Stage("two", 10, 10, then={"1": 0.5, "end": 0.5})}
    workload, pools = ps.Workload.poisson(0.1, 10, 1), {"one": ps.Pool(server), "two": ps.Pool(server)}
    crossed = [ps.Workflow("there", workload, there), ps.Workflow("back", workload, back)]
    around = [ps.Workflow("around", workload, again)]
    for network in (ps.Network(pools, crossed), ps.Network(pools, around), two_calls(server, 0.01)):
        found = ps.certify(network)
        assert found.verdict == "unknown"
        assert BY_TOKENS in [h.name for h in found.hypotheses if not h.held]


def test_engines_that_go_beyond_the_token_budget_are_not_called_full_at_it() -> None:
    """SGLang decodes all that run: 256 requests in batches of 64 tokens."""
    server = ps.Server(ps.Affine(0.01, 1e-4), 64, 256, policy="sglang", kv_tokens=200_000)
    workload = ps.Workload.poisson(1.0, 20, 200)
    within = server.batch_time.capacity(64) / 219
    found = ps.certify(ps.Network.single(workload.with_rate(1.2 * within), server, replicas=1))
    assert found.rho < 0.8
    assert found.verdict == "unknown"
    assert ps.certify(ps.Network.single(workload.with_rate(2.4 * within), server, replicas=2)).verdict == "unknown"


def test_drafts_that_bring_several_outputs_carry_so_many_times_the_decodes() -> None:
    plain = ps.Server(TP1, 512, 32, policy="vllm", kv_tokens=20_000)
    options = {"drafts": 3, "acceptance": 0.8}
    drafting = dataclasses.replace(plain, policy_params=options)
    more = drafting.policy.batching.outputs_per_decode
    assert more > 2
    few, many = (limits_of(ps.Network.single(CHAT, each, replicas=2)) for each in (plain, drafting))
    for name in ("max batch size", "KV memory"):
        assert many[name].load == pytest.approx(few[name].load / more, rel=1e-6)
    assert many["token budget"].load == few["token budget"].load


def test_engines_that_keep_nothing_process_contexts_anew_and_what_a_cache_finds_is_not_known() -> None:
    turns = [("pool", 100, 50)] * 3

    def found(context: str, memory: ps.Memory | None) -> ps.Certificate:
        server = ps.Server(SECOND, 64, 64, policy="vllm", memory=memory)
        workflow = ps.Workflow.chain("w", ps.Workload.poisson(0.01, 1, 1), turns, context=context)
        return ps.certify(ps.Network({"pool": ps.Pool(server, affinity=True)}, [workflow]))

    grown, anew = found("grow", None), found("reuse", None)
    assert anew.rho == pytest.approx(grown.rho)
    # A step ahead those who end keep their places, so slots may bind; nothing else fails.
    assert [h.name for h in anew.hypotheses if not h.held] == [h.name for h in grown.hypotheses if not h.held]
    cached = found("reuse", ps.Memory(10_000, prefix_caching=True))
    assert cached.verdict == "unknown"
    assert "what requests share by prefix caching is not known" in cached.reason
    # An engine finds a context in its cache whether it is said to be reused or only to grow.
    assert found("grow", ps.Memory(10_000)).reason == cached.reason
    for context in ("grow", "reuse"):
        told = found(context, ps.Memory(10_000, prefix_caching=False))
        assert "prefix caching" not in told.reason


@settings(max_examples=10, deadline=None)
@given(
    kv_blocks=st.integers(40, 400), slots=st.integers(1, 40), rate=st.floats(0.01, 3.0), replicas=st.integers(1, 4),
    policy=st.sampled_from(["vllm", "sarathi", "orca", "sglang"]),
)  # fmt: skip
def test_a_rate_is_unstable_by_theorem_exactly_if_it_exceeds_a_limit(
    kv_blocks: int, slots: int, rate: float, replicas: int, policy: str
) -> None:
    server = ps.Server(SECOND, 128, slots, policy=policy, kv_blocks=kv_blocks)
    stages = {"s": ps.Stage("pool", 100, 60, then={"t": 0.5, "end": 0.5}), "t": ps.Stage("pool", 40, 20)}
    network = ps.Network(
        {"pool": ps.Pool(server, replicas)}, [ps.Workflow("w", ps.Workload.poisson(rate, 1, 1), stages)]
    )
    found = ps.certify(network)
    loads = [limit.load for limit in found.pools[0].limits]
    assert found.max_load == pytest.approx(1 / max(loads))
    assert (found.verdict == "unstable") == (max(loads) > 1)
    assert found.verdict != "stable"
    twice = ps.certify(network.with_load(2.0))
    assert [limit.load for limit in twice.pools[0].limits] == pytest.approx([2 * load for load in loads])


# Prefix caches

TALKS = [("pool", 400, 100), ("pool", 20, 60), ("pool", 20, 60)]
"""Prompts are 400, 520 and 600 tokens, of which 500 and 580 are those of the calls before."""


def caching(policy: str, rate: float, **limits: object) -> ps.Network:
    memory = ps.Memory(limits.pop("blocks", 400_000), block_size=1 if policy == "sglang" else 16, prefix_caching=True)  # type: ignore[arg-type]
    server = ps.Server(SECOND, 512, policy=policy, memory=memory, **limits)  # type: ignore[arg-type]
    workflow = ps.Workflow.chain("w", ps.Workload.poisson(rate, 1, 1), TALKS, context="reuse")
    return ps.Network({"pool": ps.Pool(server, 2, "session")}, [workflow])


@pytest.mark.parametrize("policy", ["vllm", "sglang"])
def test_where_prefixes_are_cached_a_load_above_1_is_none_if_what_is_shared_is_found(policy: str) -> None:
    """In full a job is 1,737 tokens, of which 657 are computed in any case; two replicas give 1,024 a second."""
    full, least = 1_737, 657
    between = caching(policy, 2 * 512 / math.sqrt(full * least))
    found = ps.certify(between)
    assert found.rho == pytest.approx(math.sqrt(least / full), rel=1e-6)
    assert found.pools[0].rho_without_cache == pytest.approx(math.sqrt(full / least), rel=1e-6)
    assert limits_of(between)["token budget"].load == pytest.approx(math.sqrt(least / full), rel=1e-6)
    assert found.verdict == "unknown", found.reason
    assert "if replicas reuse nothing, the load of pool pool is 1.626" in found.reason
    assert ps.certify(caching(policy, 1.1 * 1_024 / least)).verdict == "unstable"


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "carried"), [("vllm", 0.6), ("sglang", 0.45)])
def test_a_cache_carries_more_than_prompts_in_full_and_no_more_than_all_that_is_shared(
    policy: str, carried: float
) -> None:
    """SGLang admits a whole backlog, which leaves the cache less room."""
    for load, expected in ((carried, "stable"), (1.2, "unstable")):
        network = caching(policy, load * 1_024 / 657)
        without = ps.certify(network).pools[0].rho_without_cache
        assert without is not None
        assert without > 1.15
        assert ps.verdict(network, resolution=0.1, seed=1, most_jobs=20_000).verdict == expected


@pytest.mark.slow
def test_a_load_that_runs_from_empty_and_never_works_a_burst_down_is_called_unstable() -> None:
    """934 jobs at once, as the flood puts them: what they hold, the cache lacks, and 1.59 times must be done anew."""
    rate, burst, jobs = 0.6 * 1_024 / 657, 934, 40_000

    def seconds(at_once: int) -> tuple[float, float]:
        """Mean time of the jobs behind a burst, of the second tenth and of the fourth."""
        after = 1 + np.cumsum(np.random.default_rng(1).exponential(1 / rate, jobs))
        arrivals = np.concatenate([np.linspace(0, 1, at_once), after])
        ones = np.ones(arrivals.size, int)
        workflow = ps.Workflow.chain("w", ps.Workload.from_arrays(arrivals, ones, ones), TALKS, context="reuse")
        run = ps.simulate(ps.Network(caching("sglang", 1.0).pools, [workflow]), drain=True)
        times = np.array_split(((run.finish - run.arrival) * run.tick_s)[at_once:], 10)
        return float(times[1].mean()), float(times[3].mean())

    empty, behind = seconds(0), seconds(burst)
    assert empty[1] == pytest.approx(empty[0], rel=0.05)
    assert behind[1] > 1.5 * behind[0] > 3 * empty[0]
    assert ps.verdict(caching("sglang", rate), resolution=0.1, seed=1, most_jobs=20_000).verdict == "unstable"


def test_blocks_that_others_may_have_are_not_counted_and_those_of_outputs_are() -> None:
    """Blocks of one token: of the second prompt 20 are its own, and then its outputs."""
    network = caching("sglang", 0.1)
    own = [(400, 100), (20, 60), (20, 60)]
    held = sum(p + sum(p + j for j in range(1, o)) for p, o in own)
    load = limits_of(network)["KV memory"].load
    usable = next(iter(network.pools.values())).server.usable_blocks or 0
    assert load == pytest.approx(0.1 * held / (2 * usable), rel=1e-6)


def test_recorded_prompts_count_once_what_they_have_in_common_where_it_is_cached() -> None:
    rows = 40
    ids = ps.Workload.from_arrays(
        np.arange(rows) / 10, np.full(rows, 1_030), np.full(rows, 10), hash_ids=[[1, 2]] * rows, hash_block=512
    )
    server = ps.Server(SECOND, 512, 64, policy="vllm", memory=ps.Memory(5_000, prefix_caching=True))
    found = ps.certify(ps.Network.single(ids, server, 2))
    assert found.pools[0].rho_without_cache is not None
    assert found.pools[0].rho_without_cache > 4
    assert found.verdict == "unknown"
    assert found.rho == pytest.approx(found.pools[0].limits[0].load)
    plain = dataclasses.replace(server, memory=ps.Memory(5_000, prefix_caching=False))
    assert ps.certify(ps.Network.single(ids, plain, 2)).verdict == "unstable"


@pytest.mark.parametrize("stages", ["chain", "loop"])
def test_a_recorded_prompt_counts_once_in_a_pool_where_several_stages_have_it(stages: str) -> None:
    """1.3 times what replicas without a cache carry; the second stage finds all but a block."""
    rows = 300
    own = np.arange(16 * rows).reshape(rows, 16).tolist()
    ids = ps.Workload.from_arrays(
        np.arange(rows) / 2.5,
        [256] * rows,
        [4] * rows,
        hash_ids=own,
        hash_block=16,
    )
    server = ps.Server(ps.Affine(1e-3, 1e-3), 512, 64, policy="vllm", memory=ps.Memory(40_000))
    same = {"a": ps.Stage("pool", "job", "job", then="b"), "b": ps.Stage("pool", "job", "job")}
    loop = {"a": ps.Stage("pool", "job", "job", then={"a": 0.5, "end": 0.5})}
    network = ps.Network({"pool": ps.Pool(server)}, [ps.Workflow("w", ids, same if stages == "chain" else loop)])
    certificate, run = ps.certify(network), ps.simulate(network, drain=True)
    assert certificate.verdict == "unknown"
    assert certificate.pools[0].rho <= float(run.busy * run.tick_s) * 2.5 / rows < 0.75


# Pools of several kinds

FAST = ps.Server(ps.Affine(c=0.01, a=1e-4), 512)
SLOW = ps.Server(ps.Affine(c=0.01, a=6e-4), 256)
FAST_RATE, SLOW_RATE = 512 / 0.0612, 256 / 0.1636


def mixed(load: float, router: str, servers: list[tuple[ps.Server, int]]) -> ps.Network:
    """A pool at this load, by what all of its full batches carry."""
    capacity = sum(n * s.token_budget / float(s.batch_time(s.token_budget)) for s, n in servers)
    workload = ps.Workload.poisson(load * capacity / 149, ps.Uniform(50, 150), ps.Uniform(1, 99), seed=3)
    return ps.Network({"pool": ps.Pool(servers, router=router)}, [ps.Workflow.single(workload, "pool")])


KINDS = [(FAST, 2), (SLOW, 1)]
TOTAL = 2 * FAST_RATE + SLOW_RATE
AT_RANDOM = 3 * SLOW_RATE / TOTAL
"""Load at which the slow one of three gets as much as it carries."""


@pytest.mark.parametrize(
    ("router", "load", "expected"),
    [
        ("jsq", 0.9, "stable"), ("fastest", 0.9, "stable"), ("jsq", 1.1, "unstable"),
        ("random", 0.9 * AT_RANDOM, "stable"), ("random", 1.15 * AT_RANDOM, "unstable"),
        ("power-of-two-tokens", 0.9, "stable"),
    ],
)  # fmt: skip
def test_kinds_of_servers_carry_what_their_router_lets_them(router: str, load: float, expected: str) -> None:
    network = mixed(load, router, KINDS)
    found = ps.certify(network)
    assert found.rho == pytest.approx(load)
    assert found.verdict == expected, found.reason
    assert "servers that differ" in str(found.theorem) or found.theorem == "Theorem 1(a)"
    assert ps.verdict(network, resolution=0.05, seed=1).verdict == expected


@pytest.mark.parametrize("router", ["memory", "session", "prefix", "scored"])
def test_of_other_routers_nothing_is_known_below_what_all_carry(router: str) -> None:
    found = ps.certify(mixed(0.5, router, KINDS))
    assert (found.verdict, found.certified_load) == ("unknown", None)
    assert f"nothing is known of what {router} sends to each replica" in found.reason
    assert ps.certify(mixed(1.1, router, KINDS)).verdict == "unstable"


def test_a_router_of_ones_own_is_not_taken_for_its_namesake() -> None:
    @ps.system.routing.router(name="jsq")
    def always_the_last(replicas, request, params):  # type: ignore[no-untyped-def]
        return replicas.shape[0] - 1

    pool = ps.Pool(KINDS, router=always_the_last)
    workflow = ps.Workflow.single(ps.Workload.poisson(1.0, 100, 50), "pool")
    assert ps.certify(ps.Network({"pool": pool}, [workflow])).verdict == "unknown"


@pytest.mark.parametrize("policy", ["vllm", "sarathi", "tensorrt-llm"])
def test_limits_of_two_kinds_that_are_the_same_are_those_of_one_kind(policy: str) -> None:
    pairs = Composition(ps.Affine(0.01, 1e-5), self_attention=1e-7, cross_attention=1e-7, decode_attention=1e-7)
    for time in (TP1, pairs):
        server = ps.Server(time, 512, 64, policy=policy, kv_tokens=20_000)
        one = two_calls(server, 2.0, 3)
        two = ps.Network({"pool": ps.Pool([(server, 1), (server, 2)])}, one.workflows)
        expected, found = limits_of(one), limits_of(two)
        assert list(found) == list(expected)
        for name, limit in found.items():
            if name == "max batch size" and time is pairs:  # of kinds it is counted without attention
                assert limit.load < expected[name].load * (1 + 1e-9)
            else:
                assert limit.load == pytest.approx(expected[name].load, rel=1e-6), name


def test_a_kind_without_a_limit_lifts_it_and_another_adds_what_it_has() -> None:
    small = ps.Server(TP1, 512, 16, policy="vllm", kv_tokens=20_000)
    large = ps.Server(TP1, 512, 16, policy="vllm", kv_tokens=60_000)
    free = ps.Server(TP1, 512, policy="vllm")
    workflows = two_calls(small, 1.0).workflows

    def limits(*servers: ps.Server) -> dict[str, Limit]:
        pairs = [(server, 1) for server in servers]
        return limits_of(ps.Network({"pool": ps.Pool(pairs)}, workflows))

    alone, both = limits(small)["KV memory"].load, limits(small, large)["KV memory"].load
    usable = [server.usable_blocks or 0 for server in (small, large)]
    assert both == pytest.approx(alone * usable[0] / sum(usable))
    assert list(limits(small, free)) == ["token budget", "max batch size"]
    slots = [limits(*servers)["max batch size"].load for servers in ((small,), (small, large), (small, free))]
    assert slots[1] == pytest.approx(slots[0] / 2)
    assert limits(free)["token budget"].load / 2 <= slots[2] * (1 + 1e-9) < slots[1]


# Transfers of KV memory


def apart(
    rate: float, per_token: float, *, kv_tokens: int | None = 40_000, prompt: int = 200, output: int = 51
) -> ps.Network:
    server = ps.Server(ps.Affine(c=0.01, a=1e-4), 512, 64, policy="vllm", kv_tokens=kv_tokens)
    workflow = ps.Workflow.disaggregated(
        ps.Workload.poisson(rate, prompt, output, seed=4), prefill="p", decode="d", transfer_ms=2,
        transfer_ms_per_token=per_token,
    )  # fmt: skip
    return ps.Network({"p": ps.Pool(server, 3, "tokens"), "d": ps.Pool(server, 2)}, [workflow])


def test_links_carry_a_transfer_at_a_time_on_both_sides() -> None:
    """10 transfers a second, of 200 tokens at 0.5 ms: a second of links, of three that send and two that get."""
    network = apart(10, 0.5)
    senders, receivers = limits_of(network, "p")["transfers"], limits_of(network, "d")["transfers"]
    assert (senders.load, senders.standard_error) == (pytest.approx(1 / 3), 0)
    assert receivers.load == pytest.approx(1 / 2)


@pytest.mark.parametrize(("load", "expected"), [(0.5, "stable"), (1.1, "unstable")])
def test_links_that_cannot_carry_the_load_are_called_so_and_the_flood_agrees(load: float, expected: str) -> None:
    network = apart(10 * load, 1.0)
    found = ps.certify(network)
    assert found.margin == pytest.approx(1 - load)
    assert found.bottleneck.binding == ("transfers",)
    assert ps.verdict(network, resolution=0.05, seed=1).verdict == expected
    if expected == "unstable":
        assert (found.verdict, found.theorem) == ("unstable", "conservation of link time")
        assert "the time that transfers take its links lets pool d carry at most 0.909" in found.reason
    else:
        assert found.verdict == "unknown"
        assert f"'{LINKS_FREE}' (p: a link carries one transfer at a time" in found.reason
        assert f"'{AMPLE}' (p: requests hold memory while theirs is sent to another pool" in found.reason


def test_a_transfer_that_waits_for_nothing_is_a_delay_to_the_theorems() -> None:
    """No memory, no time on the links, and slots for all: nothing can bind."""
    server = ps.Server(ps.Affine(c=0.01, a=1e-4), 64, 128, policy="vllm")
    workflow = ps.Workflow.disaggregated(
        ps.Workload.poisson(2.0, 100, ps.Uniform(2, 30)), prefill="p", decode="d", transfer_ms=20
    )
    found = ps.certify(ps.Network({"p": ps.Pool(server), "d": ps.Pool(server, 2)}, [workflow]))
    assert found.verdict == "stable", found.reason
    assert LINKS_FREE not in [h.name for h in found.hypotheses]


def test_memory_counts_what_came_with_requests() -> None:
    """At the pool that decodes a request holds its prompt and each output, and its prompt while that comes."""
    found = limits_of(apart(1.0, 0.5), "d")["KV memory"]
    held = sum(math.ceil((200 + j) / 16) for j in range(1, 51)) * 0.0101 + math.ceil(200 / 16) * 0.102
    assert found.load == pytest.approx(held / (2 * (40_000 // 16 - 1)), rel=1e-6)


@pytest.mark.parametrize(("load", "expected"), [(0.8, "stable"), (1.3, "unstable")])
def test_a_pool_that_decodes_is_flooded_by_way_of_the_one_that_prefills(load: float, expected: str) -> None:
    """Prompts of 40 tokens are no work for the first pool; 50 decodes each are for the second."""
    decode = ps.Server(ps.Affine(c=0.1, a=1e-4), 32, 32, policy="vllm", kv_tokens=20_000)
    prefill = ps.Server(ps.Affine(c=0.01, a=1e-4), 512, 64, policy="vllm", kv_tokens=20_000)
    rate = load * 32 / 0.1032 / 50
    workflow = ps.Workflow.disaggregated(
        ps.Workload.poisson(rate, 40, 51, seed=4), prefill="p", decode="d", transfer_ms_per_token=0.01
    )
    network = ps.Network({"p": ps.Pool(prefill), "d": ps.Pool(decode)}, [workflow])
    assert ps.certify(network).bottleneck.name == "d"
    found = ps.verdict(network, resolution=0.05, seed=1)
    assert found.verdict == expected


def test_outputs_that_a_longest_context_cuts_count_as_they_are_made():
    """Cut outputs are less load, and what a run serves."""
    workload = ps.Workload.poisson(2.0, ps.Uniform(50, 300), ps.Geometric(200, max=2000), seed=2)
    times = ps.Affine(0.02, 1e-4)

    def network(**settings):
        server = ps.Server(times, 512, 64, policy="vllm", policy_params=settings, memory=ps.Memory(4096))
        return ps.Network.single(workload, server, 2)

    cut, whole = network(max_model_len=400), network()
    run = ps.simulate(cut, jobs=20_000)
    made = run.requests["output_tokens"] - 1
    assert (run.requests["prompt_tokens"] + run.requests["output_tokens"]).max() == 400
    error = made.std() / run.arrived**0.5
    assert abs(cut.model().decode[0] - made.mean()) < 5 * error
    assert cut.model().decode[0] < 0.8 * whole.model().decode[0]
    assert ps.certify(cut).pools[0].rho < 0.95 * ps.certify(whole).pools[0].rho
