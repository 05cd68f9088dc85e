"""Pools of replicas that differ carry what the shares of their router let them, in theory and in simulations."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from network_models import loop, network_model, route, router_named

import penstock as ps
from penstock.errors import InputError
from penstock.system.network_model import NetworkModel, ReplicaRates
from penstock.system.routing import ROUTERS
from penstock.theory.certificate import DIFFER
from penstock.theory.network.certificate import of_pools
from penstock.theory.network.hypotheses import PoolRules
from penstock.theory.network.unequal_replicas import replica_loads

TO_THE_LEAST = [router for router in (*ROUTERS.values(), router_named("measure")) if router.sends == "to the least"]
RATES = st.lists(st.floats(0.1, 10.0), min_size=1, max_size=5)


def by_sets(offered: float, rates: list[float], share) -> float:  # type: ignore[no-untyped-def]
    """The largest load of any set of replicas, by going through all of them."""
    places = range(len(rates))
    sets = (m for size in range(1, len(rates) + 1) for m in itertools.combinations(places, size))
    return max(offered * share(m) / sum(rates[k] for k in m) for m in sets)


@given(rates=RATES, offered=st.floats(0.0, 50.0), weights=st.lists(st.floats(0.1, 5.0), min_size=5, max_size=5))
def test_the_worst_set_of_replicas_is_found_for_every_router(
    rates: list[float], offered: float, weights: list[float]
) -> None:
    count = len(rates)
    chances = np.array(weights[:count]) / sum(weights[:count])
    shares = {
        "jsq": lambda m: float(len(m) == count),
        "random": lambda m: len(m) / count,
        "power-of-two": lambda m: 1.0 if count == 1 else len(m) * (len(m) - 1) / (count * (count - 1)),
    }
    for router, share in shares.items():
        found = replica_loads(offered, rates, router)
        assert found.sufficient == pytest.approx(by_sets(offered, rates, share))
        assert found.necessary == pytest.approx(found.sufficient)
        in_set = sum(rates[k] for k in found.replicas)
        assert offered * share(found.replicas) / in_set == pytest.approx(found.sufficient)
    weighted = replica_loads(offered, rates, "round-robin", shares=weights[:count])
    assert weighted.sufficient == pytest.approx(by_sets(offered, rates, lambda m: float(chances[list(m)].sum())))


@given(rates=RATES, rho=st.floats(0.01, 0.999))
def test_shares_by_capacity_and_shortest_queues_carry_the_total(rates: list[float], rho: float) -> None:
    offered = rho * sum(rates)
    for found in (
        replica_loads(offered, rates, "random", shares=rates),
        *(replica_loads(offered, rates, router) for router in TO_THE_LEAST),
    ):
        assert found.sufficient == pytest.approx(rho)
        assert found.verdict == "stable"
    assert replica_loads(1.01 * sum(rates), rates, "jsq").verdict == "unstable"


def test_between_full_and_best_batches_nothing_is_said() -> None:
    found = replica_loads(22.0, [10.0, 10.0], "jsq", capacity=[12.0, 12.0])
    assert (found.verdict, found.sufficient, found.necessary) == ("unknown", 1.1, pytest.approx(22 / 24))
    assert replica_loads(25.0, [10.0, 10.0], "jsq", capacity=[12.0, 12.0]).verdict == "unstable"
    assert replica_loads(1.0, [10.0, 10.0], router_named("of-a-user")).verdict == "unknown"
    assert replica_loads(21.0, [10.0, 10.0], router_named("of-a-user")).verdict == "unstable"


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"full_batch": []}, "full_batch is"),
        ({"full_batch": [1.0, 0.0]}, "full_batch is"),
        ({"capacity": [1.0]}, "the capacities are"),
        ({"capacity": [0.5, 2.0]}, "the capacities are"),
        ({"shares": [1.0]}, "shares are"),
        ({"shares": [0.0, 0.0]}, "all shares are 0"),
        ({"shares": [1.0, 1.0], "router": "jsq"}, "goes by the state of the replicas"),
    ],
)
def test_numbers_that_cannot_be_are_refused(numbers: dict, said: str) -> None:  # type: ignore[type-arg]
    given_numbers = {"full_batch": [1.0, 2.0], "router": "random"} | numbers
    with pytest.raises(InputError, match=said):
        replica_loads(1.0, **given_numbers)


# ---------------------------------------------------------------- in certificates


def unequal(model: NetworkModel, *rates: list[float] | None, shares: list[float] | None = None) -> NetworkModel:
    """The same network with these replicas at its pools."""
    every = tuple(
        None if of is None else ReplicaRates(np.array(of), np.array(of), None if shares is None else np.array(shares))
        for of in rates
    )
    total = np.array([model.capacity[s] if of is None else sum(of) for s, of in enumerate(rates)])
    count = np.array([model.replicas[s] if of is None else len(of) for s, of in enumerate(rates)])
    return dataclasses.replace(model, unequal=every, capacity=total, full_batch=total, replicas=count)


@pytest.mark.parametrize(
    ("router", "shares", "verdict"),
    [("jsq", None, "stable"), ("work", None, "stable"), ("random", [1, 3], "stable"), ("random", None, "unstable"),
     ("round-robin", None, "unstable"), ("power-of-two", None, "stable")],
)  # fmt: skip
def test_a_pool_of_a_slow_and_a_fast_server_is_certified_by_its_router(router, shares, verdict) -> None:  # type: ignore[no-untyped-def]
    """Three servers' worth arrives at a server of one and one of three: half is too much for the slow one."""
    model = unequal(route([0], [3.0]), [1.0, 3.0], shares=shares)
    found = of_pools(model, [PoolRules(router=router_named(router))])
    assert found.verdict == verdict, found.reason
    assert DIFFER in (found.theorem or "")
    if verdict == "stable":
        assert found.certified_load == pytest.approx(4 / 3)
        assert found.pools[0].rho == pytest.approx(0.75)
    else:
        assert "replica 0 gets 0.5 of the requests and has 0.25 of the capacity" in found.reason
        half = of_pools(unequal(route([0], [1.9]), [1.0, 3.0]), [PoolRules(router=router_named(router))])
        assert half.verdict == "stable"
        assert half.certified_load == pytest.approx(2 / 1.9)


def test_two_slow_of_four_get_too_much_by_power_of_two_and_not_by_jsq() -> None:
    """Of six pairs one is the two slow ones: they get a sixth, and have a tenth."""
    rates = [0.5, 4.5, 0.5, 4.5]
    model = unequal(route([0], [7.0]), rates)
    found = of_pools(model, [PoolRules(router=ROUTERS["power-of-two"])])
    assert found.verdict == "unstable"
    assert "the 2 slowest of 4 replicas get 0.1667 of the requests and have 0.1 of the capacity" in found.reason
    assert of_pools(model, [PoolRules()]).verdict == "stable"


def test_what_a_router_of_a_users_own_or_a_cycle_does_to_unequal_replicas_is_not_known() -> None:
    model = unequal(route([0], [1.0]), [1.0, 3.0])
    found = of_pools(model, [PoolRules(router=router_named("own"))])
    assert found.verdict == "unknown"
    assert "nothing is known of what own (one of the user's own) sends to each replica" in found.reason
    cycle = loop(2, 0.5, [1.0, 1.0], [0.0, 0.0], 0.5)
    found = of_pools(unequal(cycle, [1.0, 3.0], None), [PoolRules(), PoolRules()])
    assert found.verdict == "unknown"
    assert "in a cycle of pools nothing is shown of replicas that differ" in found.reason
    assert found.certified_load is None


def test_turns_among_several_stages_prove_no_overload() -> None:
    """One replica may get all the short calls."""
    onward = [[0, 0], [0, 0]]
    model = unequal(network_model([0, 0], [1.0, 3.0], [0, 0], [0.7, 0.7], onward), [1.0, 3.0])
    assert of_pools(model, [PoolRules(router=ROUTERS["round-robin"])]).verdict == "unknown"
    assert of_pools(model, [PoolRules(router=ROUTERS["random"])]).verdict == "unstable"


def test_replicas_that_are_alike_are_certified_as_if_nothing_were_said_of_them() -> None:
    plain = dataclasses.replace(route([0], [3.0]), capacity=np.array([4.0]), full_batch=np.array([4.0]))
    plain = dataclasses.replace(plain, replicas=np.array([4]))
    for router in ("jsq", "random", "round-robin", "power-of-two"):
        one = of_pools(plain, [PoolRules(router=router_named(router))])
        other = of_pools(unequal(plain, [1.0] * 4), [PoolRules(router=router_named(router))])
        assert one.verdict == other.verdict == "stable"
        assert one.certified_load == pytest.approx(other.certified_load)


# ---------------------------------------------------------------- against simulation

SLOW, FAST = ps.Server(ps.Affine(c=1.0, a=0.0), 100), ps.Server(ps.Affine(c=1.0, a=0.0), 300)


@pytest.mark.parametrize("scale", [0.93, 1.07])
@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.25, 0.75), (0.1, 0.9)])
def test_random_shares_are_carried_as_split_streams_are(shares: tuple[float, float], scale: float) -> None:
    """A random router splits Poisson arrivals into independent ones: each server is a pool of its own."""
    limit = 1 / replica_loads(1.0, [100.0, 300.0], "random", shares=shares).sufficient
    offered = scale * limit
    workflows = [
        ps.Workflow(name, ps.Workload.poisson(share * offered / 60, 1, 1, seed=seed), {"s": ps.Stage(name, 40, 21)})
        for seed, (name, share) in enumerate(zip(("slow", "fast"), shares, strict=True))
    ]
    split = ps.Network({"slow": ps.Pool(SLOW), "fast": ps.Pool(FAST)}, workflows)
    expected = replica_loads(offered, [100.0, 300.0], "random", shares=shares).verdict
    assert ps.verdict(split, resolution=0.05, seed=2).verdict == expected == ps.certify(split).verdict


def backlogs(rates: list[int], offered: float, router: str, slots: int, seed: int) -> np.ndarray:
    """Return the tokens in all replicas after each slot, from a flood of the slowest one, which serves `rates` a slot.

    A server of its own for what the kernel has no pools for: requests of 20 prompt tokens and 10 decodes, decodes
    first, one each a slot, and prompts cut to fill the batch.
    """
    rng = np.random.default_rng(seed)
    prompts = [0] * len(rates)  # tokens
    decodes: list[np.ndarray] = [np.zeros(10, np.int64) for _ in rates]  # requests by decodes left
    partial = [0] * len(rates)
    turn = 0
    prompts[int(np.argmin(rates))] = 20 * 600
    path = []
    for _ in range(slots):
        for _ in range(rng.poisson(offered / 30)):
            requests = [-(-p // 20) + int(d.sum()) for p, d in zip(prompts, decodes, strict=True)]
            if router == "jsq":
                chosen = int(np.argmin(requests))
            elif router == "power-of-two":
                pair = rng.choice(len(rates), 2, replace=False)
                chosen = int(pair[np.argmin([requests[k] for k in pair])])
            elif router == "round-robin":
                chosen, turn = turn, (turn + 1) % len(rates)
            else:
                chosen = int(rng.integers(len(rates)))
            prompts[chosen] += 20
        for k, budget in enumerate(rates):
            left = np.zeros(10, np.int64)
            for due in range(10):  # nearest to their end first
                taken = min(budget, int(decodes[k][due]))
                budget -= taken
                left[due] += decodes[k][due] - taken
                if due:
                    left[due - 1] += taken
            served = min(budget, prompts[k])
            prompts[k] -= served
            partial[k] += served
            done, partial[k] = divmod(partial[k], 20)
            left[9] += done
            decodes[k] = left
        weights = np.arange(1, 11)
        path.append(sum(p + 10 * (-(-p // 20)) + int(weights @ d) for p, d in zip(prompts, decodes, strict=True)))
    return np.array(path)


@pytest.mark.parametrize(
    ("router", "rates"),
    [("jsq", [20, 100]), ("random", [20, 60]), ("round-robin", [20, 60]), ("power-of-two", [20, 60]),
     *(pytest.param(*each, marks=pytest.mark.slow) for each in
       (("jsq", [10, 10, 100]), ("power-of-two", [10, 10, 90, 90])))],
)  # fmt: skip
@pytest.mark.parametrize(("scale", "drains"), [(0.9, True), (1.12, False)])
def test_servers_that_differ_drain_a_flood_of_the_slowest_up_to_the_load_that_is_certified(
    router: str, rates: list[int], scale: float, drains: bool
) -> None:
    limit = 1 / replica_loads(1.0, rates, router).sufficient
    found = replica_loads(scale * limit, rates, router)
    assert found.verdict == ("stable" if drains else "unstable")
    path = backlogs(rates, scale * limit, router, 12_000, seed=4)
    if drains:
        assert path.min() < 0.2 * path[0]
        assert path[-1_000:].mean() < 0.2 * path[0]
    else:
        half = len(path) // 2
        slope = np.polyfit(np.arange(half), path[half:], 1)[0]
        grows = (scale - 1) / scale * found.sufficient * sum(rates[k] for k in found.replicas)
        assert slope == pytest.approx(grows, rel=0.35)
