"""Laws of routers: what each says of how it sends is what theorems take it for, and what it does in simulations; a new
one in `ROUTERS` joins by itself.
"""

import itertools
import typing

import pytest

import penstock as ps
from penstock.kernel.signatures import SEEN_REQUESTS
from penstock.system.routing import ROUTERS, Router, Sends

KINDS = [kind for kind in typing.get_args(Sends) if kind]
NAMED = [*ROUTERS.values(), Router.measure(prefill=1, decode=2)]
KNOWN = [router for router in NAMED if router.sends != "otherwise"]
TWINS = [(one, other) for one, other in itertools.combinations(KNOWN, 2) if one.sends == other.sends]
SLOW, FAST = ps.Server(ps.Affine(c=1.0, a=0.0), 30), ps.Server(ps.Affine(c=1.0, a=0.0), 450)
TOKENS = 60


def of_kinds(router: Router, tokens_per_s: float) -> ps.Network:
    """Two slow servers and one that is fifteen times as fast."""
    arrivals = ps.Workload.poisson(tokens_per_s / TOKENS, 1, 1, seed=1)
    pool = ps.Pool([(SLOW, 2), (FAST, 1)], router=router)
    return ps.Network({"pool": pool}, [ps.Workflow("jobs", arrivals, {"call": ps.Stage("pool", 40, 21)})])


def asked_twice(router: Router, affinity: bool, back: bool) -> ps.Network:
    """Two calls of a pool of three, one after the other, or with one elsewhere between them."""
    first = {"one": ps.Stage("pool", 40, 21, then="two"), "two": ps.Stage("other" if back else "pool", 30, 11)}
    if back:
        first["two"] = ps.Stage("other", 30, 11, then="three")
        first["three"] = ps.Stage("pool", 20, 5)
    pools = {"pool": ps.Pool(FAST, 3, router, affinity=affinity)}
    if back:
        pools["other"] = ps.Pool(FAST)
    return ps.Network(pools, [ps.Workflow("jobs", ps.Workload.poisson(2.0, 1, 1), first)])


def networks(router: Router) -> list[ps.Network]:
    """Networks that theorems know by their routers' kinds."""
    floods = [of_kinds(router, tokens) for tokens in (50, 130, 300, 490, 600)]
    calls = [asked_twice(router, affinity, back) for affinity in (False, True) for back in (False, True)]
    return [*floods, *calls]


@pytest.mark.parametrize("router", NAMED, ids=lambda router: router.name)
def test_a_router_says_how_it_sends_in_the_words_that_theorems_know_or_that_none_does(router: Router) -> None:
    assert router.sends in KINDS
    verdicts = {ps.certify(network).verdict for network in networks(router)}
    assert ("stable" in verdicts) == (router in KNOWN)


@pytest.mark.parametrize(("one", "other"), TWINS, ids=lambda router: router.name)
def test_routers_that_send_alike_are_certified_alike(one: Router, other: Router) -> None:
    for network, twin in zip(networks(one), networks(other), strict=True):
        first, second = ps.certify(network), ps.certify(twin)
        assert first.verdict == second.verdict
        assert first.certified_load == second.certified_load


def by_number(replicas, request, params):  # type: ignore[no-untyped-def]
    """The fewest unfinished requests."""
    best = 0
    for place in range(1, replicas.shape[0]):
        if replicas[place, SEEN_REQUESTS] < replicas[best, SEEN_REQUESTS]:
            best = place
    return best


def test_what_a_router_of_a_users_own_says_of_how_it_sends_is_taken_on_trust() -> None:
    """It is certified as its twin is, and the certificate says on what word; no word proves it unstable."""
    own, unsaid = ps.router(sends="to the least")(by_number), ps.router(by_number)
    for network, twin, other in zip(networks(own), networks(ROUTERS["jsq"]), networks(unsaid), strict=True):
        told, usual = ps.certify(network), ps.certify(twin)
        assert (told.verdict, told.certified_load) == (usual.verdict, usual.certified_load)
        assert not usual.trusted
        assert bool(told.trusted) == (told.verdict == "stable")
        assert ps.certify(other).verdict in ("unknown", "unstable")
    wrong = ps.certify(of_kinds(ps.router(sends="at random")(by_number), 300.0))
    assert wrong.verdict == "unknown"
    with pytest.raises(ps.InputError, match="router by-number sends 'fairly', but theorems know"):
        ps.router(sends="fairly")(by_number)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_each_way_to_send_has_a_router(kind: str) -> None:
    assert any(router.sends == kind for router in ROUTERS.values())


@pytest.mark.parametrize("scale", [0.85, 1.7])
@pytest.mark.parametrize("router", KNOWN, ids=lambda router: router.name)
def test_a_router_carries_what_the_way_in_which_it_sends_lets_servers_that_differ(router: Router, scale: float) -> None:
    """A router that said another way would be certified where its slow servers flood, or called unstable where they do
    not.
    """
    limit = ps.certify(of_kinds(router, 100.0)).certified_load
    assert limit is not None
    network = of_kinds(router, scale * 100.0 * limit)
    expected = "stable" if scale < 1 else "unstable"
    assert ps.certify(network).verdict == expected
    assert ps.verdict(network, resolution=0.1, seed=1).verdict == expected
