"""A router is known by its name, or is a measure that vanishes at empty replicas only."""

import pytest

import penstock as ps
from penstock.kernel.signatures import ROUTE_REQUESTS, ROUTE_WORK
from penstock.system.routing import ROUTERS, Router, resolve_router


def test_routers_have_codes_of_their_own() -> None:
    assert len({router.code for router in ROUTERS.values()}) == len(ROUTERS) == 6


def test_routers_are_found_by_name() -> None:
    assert resolve_router("jsq") is ROUTERS["jsq"]
    assert resolve_router("jsq").code == ROUTE_REQUESTS
    assert resolve_router(ROUTERS["random"]) is ROUTERS["random"]


def test_a_measure_keeps_its_weights() -> None:
    router = Router.measure(prefill=1, decode=2.5)
    assert (router.code, router.prefill_weight, router.decode_weight) == (ROUTE_WORK, 1.0, 2.5)


@pytest.mark.parametrize("choice", ["jsk", 3, None, ["jsq"]])
def test_an_unknown_router_is_said_in_one_line(choice: object) -> None:
    with pytest.raises(ps.InputError, match="unknown router") as caught:
        resolve_router(choice)  # type: ignore[arg-type]
    assert "jsq" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("weights", [(0, 1), (1, 0), (-1, 1), (1, float("nan")), (1, "2"), (1e9, 1)])
def test_a_measure_that_vanishes_at_a_busy_replica_is_refused(weights: tuple[float, float]) -> None:
    with pytest.raises(ps.InputError, match=r"weight of a measure is .* sends it everything"):
        Router.measure(prefill=weights[0], decode=weights[1])
