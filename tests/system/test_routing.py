"""A router is known by its name, or is a measure that vanishes at empty replicas only."""

import numpy as np
import pytest
from numba import njit

import penstock as ps
from penstock.kernel.signatures import (
    ASKED_FIELDS,
    ROUTE_REQUESTS,
    ROUTE_WORK,
    SEEN_CACHED,
    SEEN_FIELDS,
    SEEN_REQUESTS,
    SEEN_SENT,
)
from penstock.simulation.new_world import frozen
from penstock.system.routing import ROUTERS, Router, resolve_router, router
from tests.reference import routers as reference
from tests.reference.routers import Asked, Seen


def test_routers_have_codes_or_functions_of_their_own() -> None:
    kinds = {(router.code, router.function) for router in ROUTERS.values()}
    assert len(kinds) == len(ROUTERS)


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


FUNCTIONS = {name: router for name, router in ROUTERS.items() if router.function is not None}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_router_that_is_a_function_does_what_its_specification_says(name: str) -> None:
    """As written, compiled, and as the reference has it: on many random states of the replicas, ties included."""
    rng, chosen = np.random.default_rng(1), ROUTERS[name]
    for _ in range(300):
        count = int(rng.integers(2, 6))
        counts = rng.integers(0, 200, (count, 4)) // rng.integers(1, 60)
        coin, home = int(rng.integers(0, 2**32)), int(rng.integers(-1, count))
        prompt = int(rng.integers(0, 100))
        cached = rng.integers(0, prompt + 1, count)
        seen = [
            Seen(int(r), int(w), int(t), 0, float(m) / 8, int(c), float(s), int(sent))
            for (r, w, t, sent), m, c, s in zip(
                counts.tolist(), rng.integers(0, 9, count), cached, rng.integers(1, 4, count), strict=True
            )
        ]
        asked = Asked(prompt, None if home < 0 else home, coin, 0)
        rows = [[s.requests, s.waiting, s.tokens, s.work, s.memory, s.cached, s.speed, s.sent] for s in seen]
        request = [prompt, home, coin / 2**32, 0]
        place = reference.ROUTERS[name](seen, asked, chosen.params.tolist())
        assert chosen(rows, request) == place
        assert chosen.compiled(np.array(rows, float), np.array(request, float), frozen(chosen.params)) == place


@pytest.mark.parametrize("width", [SEEN_FIELDS - 1, SEEN_FIELDS + 1, 2 * SEEN_FIELDS])
def test_rows_of_another_width_are_refused_and_no_others_are_made_of_them(width: int) -> None:
    """As those are that somebody wrote before a column was added."""
    rows, asked = np.zeros((SEEN_FIELDS, width)), np.zeros(ASKED_FIELDS)
    with pytest.raises(
        ps.InputError,
        match=rf"'memory'.* \({SEEN_FIELDS}, {width}\), but each row has {SEEN_FIELDS} numbers.* SEEN_\.\.\.",
    ):
        ROUTERS["memory"](rows, asked)
    with pytest.raises(ps.InputError, match=rf"'memory'.* \({SEEN_FIELDS},\), but"):
        ROUTERS["memory"](np.zeros(SEEN_FIELDS), asked)
    with pytest.raises(ps.InputError, match=r"request of router 'memory'.* has 4 numbers.* ASKED_\.\.\."):
        ROUTERS["memory"](np.zeros((2, SEEN_FIELDS)), asked[1:])


def test_settings_of_a_router_have_names_and_others_are_refused() -> None:
    chosen = ROUTERS["prefix"].with_settings(match=0.5)
    assert chosen.params.tolist() == [0.5, 64.0, 1.5]
    with pytest.raises(ps.InputError, match="router prefix has no setting 'mach'; it has match, spill, times"):
        ROUTERS["prefix"].with_settings(mach=0.5)
    with pytest.raises(ps.InputError, match="it has none"):
        ROUTERS["jsq"].with_settings(spill=1)


def test_a_router_that_numba_cannot_read_is_said_in_one_line_without_colours() -> None:
    def imports(replicas, request, params):  # type: ignore[no-untyped-def]
        import math

        return math.floor(replicas[0, 0])

    def misnamed(replicas, request, params):  # type: ignore[no-untyped-def]
        return replicas.requests

    for function, reason in ((imports, "IMPORT_NAME"), (misnamed, "Unknown attribute 'requests'")):
        with pytest.raises(ps.InputError, match=f"cannot be compiled: .*{reason}") as caught:
            router(function)
        assert "\n" not in str(caught.value)
        assert "\x1b" not in str(caught.value)


def test_a_router_works_out_only_what_its_function_names() -> None:
    reads = {name for name, each in FUNCTIONS.items() if each.looks_up}
    assert reads == {"prefix", "scored"}
    assert {name for name, each in FUNCTIONS.items() if each.looks_at_memory} == {"memory", "scored"}

    def by_number(replicas, request, params):  # type: ignore[no-untyped-def]
        return int(replicas[0, 5] > 0)

    assert router(by_number).looks_up
    assert router(by_another).looks_up


@njit
def first_cached(replicas):  # type: ignore[no-untyped-def]
    return replicas[0, SEEN_CACHED] > 0


def by_another(replicas, request, params):  # type: ignore[no-untyped-def]
    return int(first_cached(replicas) and replicas[0, SEEN_REQUESTS] > 0)


def test_settings_of_a_router_of_ones_own_are_numbers() -> None:
    def any_place(replicas, request, params):  # type: ignore[no-untyped-def]
        return 0

    with pytest.raises(ps.InputError, match="looks_up of router any-place is True"):
        router(looks_up=True)(any_place)


def test_a_router_of_ones_own_is_asked_and_what_it_names_must_be_there() -> None:
    def last(replicas, request, params):  # type: ignore[no-untyped-def]
        return replicas.shape[0] - 1

    def beyond(replicas, request, params):  # type: ignore[no-untyped-def]
        return replicas.shape[0]

    server = ps.Server(ps.Affine(c=0.1, a=0.0), 64)
    workload = ps.Workload.poisson(5.0, 10, 5)
    run = ps.simulate(ps.Network.single(workload, server, 3, router(last)), jobs=20, record="requests")
    assert set(run.rows.replica.tolist()) == {2}
    with pytest.raises(ps.InputError, match="router 'beyond' of pool 'pool' named no replica of the 3"):
        ps.simulate(ps.Network.single(workload, server, 3, router(beyond)), jobs=20)


def test_reports_come_at_multiples_of_their_time_and_a_router_knows_what_it_sent_since() -> None:
    """Before the first report all replicas look empty, so jsq sends everything to the first; one that counts what it
    sent does not.
    """

    def counts(replicas, request, params):  # type: ignore[no-untyped-def]
        best = 0
        for place in range(replicas.shape[0]):
            mine = replicas[place, SEEN_REQUESTS] + replicas[place, SEEN_SENT]
            if mine < replicas[best, SEEN_REQUESTS] + replicas[best, SEEN_SENT]:
                best = place
        return best

    server = ps.Server(ps.Affine(c=0.1, a=0.0), 64)
    workload = ps.Workload.deterministic(100.0, 10, 5)
    by_router = {}
    for name, chosen in (("jsq", "jsq"), ("counts", router(counts))):
        pool = ps.Pool(server, 4, chosen, report_ms=1000.0)
        network = ps.Network({"pool": pool}, [ps.Workflow.single(workload, "pool")])
        by_router[name] = ps.simulate(network, jobs=80, record="requests").rows.replica
    assert set(by_router["jsq"].tolist()) == {0}
    assert np.bincount(by_router["counts"]).tolist() == [20] * 4
