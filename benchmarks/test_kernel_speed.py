"""How fast the kernel is: requests per second on one core, with a row per request, and what that
depends on.
"""

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path

import ciw
import pytest

import penstock as ps

FULL = os.environ.get("PENSTOCK_BENCHMARK") == "full"
REQUESTS = 1_000_000 if FULL else 20_000
ROUNDS = 5 if FULL else 2
TRACE = Path(__file__).parents[1].parent / "shared" / "data" / "traces" / "azure_llm_2023_conv.csv"
TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time

Record = Callable[[str, float, str], None]


def conversation(rate: float, requests: int) -> ps.Workload:
    """Poisson arrivals with the lengths of Azure's conversation trace (or its look-alike), drawn
    beforehand.
    """
    rows = ps.read_trace(TRACE) if TRACE.exists() else ps.Workload.preset("azure-conv")
    return ps.Workload.from_arrays(*rows.with_rate(rate, arrivals="poisson").requests(requests))


def server(policy: str) -> ps.Server:
    return ps.Server(TP1, 512, 128, policy=policy)


def own_capacity(policy: str) -> float:
    """Requests/s that a policy carries when its queue never empties."""
    run = ps.simulate(conversation(100.0, 20_000), server(policy), until=4_000.0)
    requests = run.requests
    tokens = requests["prompt_tokens"].mean() + requests["output_tokens"].mean() - 1  # type: ignore[operator]
    return run.tokens_per_s / float(tokens)


def seconds(call: Callable[[], object]) -> float:
    begun = time.process_time()
    call()
    return time.process_time() - begun


@pytest.mark.parametrize("policy", ps.POLICIES)
def test_requests_per_second_at_load_090(benchmark, record: Record, policy: str) -> None:  # type: ignore[no-untyped-def]
    rate = 0.9 * (
        ps.certify(conversation(1.0, 20_000), server(policy)).max_rate
        if policy in ("orca", "sarathi")
        else own_capacity(policy)
    )
    workload = conversation(rate, REQUESTS)
    ps.simulate(workload, server(policy), requests=1000)
    run = benchmark.pedantic(lambda: ps.simulate(workload, server(policy)), rounds=ROUNDS)
    assert run.unfinished == 0
    record("speed", REQUESTS / benchmark.stats["median"], "requests/s")


def test_requests_per_second_of_a_summary_with_the_drawing(benchmark, record: Record) -> None:  # type: ignore[no-untyped-def]
    """From a workload without end to quantiles: drawn, served and counted, by the clock on the
    wall.
    """
    requests = 10 * REQUESTS
    workload = ps.Workload.preset("azure-conv").with_rate(1.0, arrivals="poisson")
    rate = 0.9 * ps.certify(workload, server("sarathi")).max_rate
    workload = workload.with_rate(rate)
    ps.simulate(workload, server("sarathi"), requests=1000, record="summary")
    run = benchmark.pedantic(
        lambda: ps.simulate(workload, server("sarathi"), requests=requests, record="summary"),
        rounds=ROUNDS,
    )
    assert run.finished == requests
    record("speed", requests / benchmark.stats["median"], "requests/s")


def median_ratio(benchmark, one: Callable[[], object], other: Callable[[], object]) -> float:  # type: ignore[no-untyped-def]
    """Seconds of one over those of the other, which take turns."""
    for call in (one, other):
        call()

    def ratios() -> list[float]:
        return sorted(seconds(one) / seconds(other) for _ in range(2 * ROUNDS + 1))

    return float(benchmark.pedantic(ratios, rounds=1)[ROUNDS])


@pytest.mark.parametrize("policy", ["sarathi", "vllm-vanilla"])
def test_batch_times_by_composition_cost_little(benchmark, record: Record, policy: str) -> None:  # type: ignore[no-untyped-def]
    """The same server by its token load, and with terms for attention: requests/s of one over those
    of the other.
    """
    attention = ps.Composition(TP1, 1e-9, 2e-9, decode_attention=3e-8, per_request=1e-5)
    servers = [ps.Server(model, 512, 128, policy=policy) for model in (TP1, attention)]
    workload = conversation(
        0.6 * ps.certify(conversation(1.0, 20_000), server("sarathi")).max_rate, REQUESTS
    )
    by_load, composed = (functools.partial(ps.simulate, workload, each) for each in servers)
    record("speed", median_ratio(benchmark, by_load, composed), "x that by token load")


@pytest.mark.parametrize("blocks", [20_000, 4_000])
@pytest.mark.parametrize("load", [0.7, 0.9])
def test_requests_per_second_of_vllm_with_kv_memory(
    benchmark, record: Record, load: float, blocks: int
) -> None:  # type: ignore[no-untyped-def]
    """Blocks of 16 tokens: so many that none is ever lacking, and so few that requests preempt each
    other.
    """
    workload = conversation(
        load * ps.certify(conversation(1.0, 20_000), server("sarathi")).max_rate, REQUESTS
    )
    engine = ps.Server(TP1, 512, 128, policy="vllm", kv_blocks=blocks)
    ps.simulate(workload, engine, requests=1000)
    run = benchmark.pedantic(lambda: ps.simulate(workload, engine), rounds=ROUNDS)
    assert run.unfinished == 0
    record("speed", REQUESTS / benchmark.stats["median"], "requests/s")
    record("preemptions", run.preemptions / REQUESTS, "per request")


@pytest.mark.parametrize("replicas", [1, 8])
@pytest.mark.parametrize("blocks", [20_000, 2_500])
@pytest.mark.parametrize(
    ("policy", "setting"), [("vllm", "async_scheduling"), ("sglang", "overlap_schedule")]
)
def test_a_step_ahead_costs_little(  # type: ignore[no-untyped-def]
    benchmark, record: Record, policy: str, setting: str, blocks: int, replicas: int
) -> None:
    """Requests/s of an engine that composes batches ahead over those of one that does not, alone
    and as a pool.
    """
    workload = conversation(1.2 * replicas, REQUESTS)

    def run(ahead: bool) -> object:
        engine = ps.Server(
            TP1, 2_048, 128, policy=policy, policy_params={setting: ahead},
            memory=ps.Memory(blocks),
        )  # fmt: skip
        if replicas == 1:
            return ps.simulate(workload, engine, record="summary")
        network = ps.Network.single(workload, engine, replicas, "jsq")
        return ps.simulate(network, jobs=REQUESTS, record="summary")

    at_once, ahead = (functools.partial(run, value) for value in (False, True))
    record("speed", median_ratio(benchmark, at_once, ahead), "x that at once")


@pytest.mark.parametrize("policy", ["maxweight", "maxweight-tokens", "pool-controlled", "priced"])
def test_an_adaptive_policy_takes_at_most_three_times_as_long(
    benchmark, record: Record, policy: str
) -> None:  # type: ignore[no-untyped-def]
    workload = conversation(
        0.9 * ps.certify(conversation(1.0, 20_000), server("sarathi")).max_rate, REQUESTS
    )
    adaptive, sarathi = (
        functools.partial(ps.simulate, workload, server(name)) for name in (policy, "sarathi")
    )
    record("time", median_ratio(benchmark, adaptive, sarathi), "x that of Sarathi-Serve")


@pytest.mark.parametrize("policy", ["orca", "sarathi"])
def test_overload_costs_at_most_twice_as_much(benchmark, record: Record, policy: str) -> None:  # type: ignore[no-untyped-def]
    """rho 1.2 for so long that (at full size) a million requests are queued in the end."""
    limit = ps.certify(conversation(1.0, 20_000), server(policy)).max_rate
    count = 6 * REQUESTS
    light, heavy = conversation(0.9 * limit, REQUESTS), conversation(1.2 * limit, count)
    ps.simulate(light, server(policy), requests=1000)
    per_request = (
        min(seconds(lambda: ps.simulate(light, server(policy))) for _ in range(ROUNDS)) / REQUESTS
    )
    run = benchmark.pedantic(lambda: ps.simulate(heavy, server(policy), drain=False), rounds=ROUNDS)
    record("queued in the end", run.unfinished, "requests")
    record(
        "time per finished request",
        benchmark.stats["min"] / run.finished / per_request,
        "x that at load .9",
    )


def test_time_is_linear_in_requests(benchmark, record: Record) -> None:  # type: ignore[no-untyped-def]
    workload = ps.Workload.preset("azure-conv").with_rate(2.2, arrivals="poisson")
    sizes = [10**4, 10**5, 10**6, 10**7] if FULL else [10**4, 10**5]

    def per_request(size: int) -> float:
        return (
            seconds(
                lambda: ps.simulate(workload, server("sarathi"), requests=size, record="summary")
            )
            / size
        )

    per_request(1000)
    times = benchmark.pedantic(lambda: [per_request(size) for size in sizes], rounds=1)
    for size, each in zip(sizes, times, strict=True):
        record(f"{size:,} requests", each / times[0], "x the time per request of the smallest")


def test_a_familiar_yardstick(benchmark, record: Record) -> None:  # type: ignore[no-untyped-def]
    """Ciw, a general discrete-event simulator in Python: customers of an M/M/1 queue per second."""
    customers = 200_000 if FULL else 5_000

    def mm1() -> None:
        network = ciw.create_network(
            arrival_distributions=[ciw.dists.Exponential(0.9)],
            service_distributions=[ciw.dists.Exponential(1.0)],
            number_of_servers=[1],
        )
        ciw.seed(0)
        ciw.Simulation(network).simulate_until_max_customers(customers)

    benchmark.pedantic(mm1, rounds=ROUNDS)
    ciw_speed = customers / benchmark.stats["median"]
    workload = conversation(2.2, REQUESTS)
    ps.simulate(workload, server("sarathi"), requests=1000)
    speed = REQUESTS / min(
        seconds(lambda: ps.simulate(workload, server("sarathi"))) for _ in range(ROUNDS)
    )
    record("Ciw, M/M/1", ciw_speed, "customers/s")
    record("Penstock, Sarathi", speed, "requests/s")
    record("ratio", speed / ciw_speed, "requests per customer")
