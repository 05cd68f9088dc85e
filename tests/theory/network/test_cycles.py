"""The linear program certifies what is stable under any order, virtual stations say where one fails, and they meet."""

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from network_models import (
    BAD_ORDER,
    GOOD_ORDER,
    branching,
    faster,
    long_calls_first,
    loop,
    lu_kumar,
    network_model,
    ring,
    route,
    routes,
    rybko_stolyar,
)

from penstock.errors import InputError
from penstock.system.network_model import NetworkModel
from penstock.theory.network.cycles import global_stability, priority_stability
from penstock.theory.network.fluid import network_path
from penstock.theory.network.fluid_classes import components, fluid_classes
from penstock.theory.network.virtual_stations import priority_limit, worst_priority

FOUND = 1e-5
"""Relative error of a load limit that is found by bisection."""


@pytest.mark.parametrize(("phases", "limit"), [(False, 608 / 1088), (True, 608 / 1120)])
def test_the_program_returns_both_limits_of_the_rybko_stolyar_network(phases: bool, limit: float) -> None:
    found = global_stability(rybko_stolyar(), phases)
    assert found.max_load == pytest.approx(limit, rel=FOUND)
    assert round(found.max_load, 4) == {False: 0.5588, True: 0.5429}[phases]
    assert found.exact
    assert found.cycles[0].pools == ("s0", "s1")


@pytest.mark.parametrize("phases", [False, True])
def test_what_is_stable_at_the_given_load_is_what_the_limit_says(phases: bool) -> None:
    limit = global_stability(rybko_stolyar(), phases).max_load
    assert global_stability(rybko_stolyar(limit * 0.9999), phases).stable
    assert not global_stability(rybko_stolyar(limit * 1.0001), phases).stable
    assert not global_stability(rybko_stolyar(1.01), phases).stable


@pytest.mark.parametrize(
    ("ranking", "phases", "limit"),
    [(BAD_ORDER, False, 608 / 1088), (BAD_ORDER, True, 608 / 1088), (GOOD_ORDER, False, 1.0), (GOOD_ORDER, True, 1.0)],
)
def test_each_priority_order_of_the_rybko_stolyar_network_is_certified_up_to_its_own_limit(
    ranking: tuple[str, ...], phases: bool, limit: float
) -> None:
    assert priority_stability(rybko_stolyar(), ranking, phases).max_load == pytest.approx(limit, rel=FOUND)
    virtual = priority_limit(rybko_stolyar(), ranking, phases)
    assert (virtual.max_load if virtual else 1.0) == pytest.approx(limit)


def test_the_virtual_station_names_pools_and_classes() -> None:
    found = priority_limit(rybko_stolyar(), BAD_ORDER)
    assert found is not None
    assert (found.pools, found.classes, found.pushes) == (("s0", "s1"), (("B.2",), ("A.2",)), ((), ()))


def test_the_worst_order_of_the_rybko_stolyar_network_is_a_push_start() -> None:
    found = worst_priority(rybko_stolyar(), phases=True)
    assert found is not None
    assert found.pushes == (("A.1 prefill",), ("B.1 prefill",))
    assert found.classes == (("B.2 prefill", "B.2 decode"), ("A.2 prefill", "A.2 decode"))
    assert found.max_load == pytest.approx(608 / 1120)
    assert priority_stability(rybko_stolyar(), found.ranking, phases=True).max_load == pytest.approx(
        608 / 1120, rel=FOUND
    )


@pytest.mark.parametrize(("rho", "factor"), [(0.5, 0.810), (0.7, 1.676), (0.9, 4.135)])
def test_half_a_cycle_amplifies_a_backlog_as_the_notes_say(rho: float, factor: float) -> None:
    found = priority_limit(rybko_stolyar(), BAD_ORDER)
    assert found is not None
    assert found.amplification(rho) == pytest.approx((factor, factor), abs=5e-4)
    assert priority_limit(rybko_stolyar(rho), BAD_ORDER).amplification() == pytest.approx((factor, factor), abs=5e-4)  # type: ignore[union-attr]


@pytest.mark.parametrize("servers", [2, 3, 4])
def test_a_ring_of_servers_with_long_calls_first_is_certified_up_to_where_its_paths_spiral_out(servers: int) -> None:
    """With three servers and more no two calls are a virtual station, and still the fluid paths know the limit."""
    model = ring(servers, long=0.9)
    order = long_calls_first(model)
    fixed, anyone = priority_stability(model, order), global_stability(model, phases=False)
    assert fixed.max_load == pytest.approx(1 / 1.8, rel=FOUND)
    assert 0.5 < anyone.max_load <= fixed.max_load * (1 + FOUND)
    assert (priority_limit(model, order) is None) == (servers > 2)
    for load, grows in ((0.55, False), (0.56, True)):
        path = network_path(faster(model, load), order, "A.1")
        assert path.grows == grows
        assert path.growth == pytest.approx((0.9 * load / (1 - 0.9 * load)) ** servers)


@given(st.lists(st.floats(0.01, 2), min_size=4, max_size=4))
@settings(max_examples=30)
def test_lu_kumar_is_stable_under_any_order_where_the_second_and_fourth_stage_need_less_than_a_second(
    seconds: list[float],
) -> None:
    found = global_stability(lu_kumar(seconds), phases=False)
    overload = 1 / max(seconds[0] + seconds[3], seconds[1] + seconds[2])
    assert found.overload == pytest.approx(overload)
    assert found.max_load == pytest.approx(min(overload, 1 / (seconds[1] + seconds[3])), rel=FOUND)


@given(
    again=st.floats(0.05, 0.95), tokens=st.lists(st.integers(1, 2000), min_size=6, max_size=6), pools=st.integers(2, 3)
)
@settings(max_examples=25)
def test_self_reflection_loops_of_whole_stages_are_certified_at_load_99_percent(
    again: float, tokens: list[int], pools: int
) -> None:
    assert global_stability(loop(pools, again, tokens[:pools], tokens[3 : 3 + pools], 0.99), phases=False).stable


@pytest.mark.parametrize("again", [0.2, 0.35])
def test_a_writer_and_its_judge_are_certified_at_load_99_percent_whatever_the_phases(again: float) -> None:
    assert global_stability(loop(2, again, [400, 60], [250, 40], 0.99), phases=True).stable


@given(routes(2))
@settings(max_examples=30)
def test_on_two_servers_the_program_ends_where_the_worst_priority_order_begins_to_fail(model: NetworkModel) -> None:
    found, worst = global_stability(model, phases=False), worst_priority(model)
    assert found.exact
    assert found.max_load == pytest.approx(min(found.overload, worst.max_load if worst else np.inf), rel=FOUND)


@given(st.one_of(routes(2), branching(2, 5), routes(3)), st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=40)
def test_no_order_is_certified_beyond_its_virtual_station(model: NetworkModel, random: object, phases: bool) -> None:
    ranking = list(fluid_classes(model, phases).names)
    random.shuffle(ranking)  # type: ignore[attr-defined]
    anyone, fixed = global_stability(model, phases), priority_stability(model, ranking, phases)
    virtual = priority_limit(model, ranking, phases)
    assert anyone.max_load <= fixed.max_load * (1 + FOUND)
    if virtual is not None:
        assert fixed.max_load <= virtual.max_load * (1 + FOUND)


@given(st.one_of(routes(3), branching(3)), st.randoms(use_true_random=False), st.sampled_from([0.6, 0.8, 0.97]))
@settings(max_examples=40)
def test_what_is_certified_drains_and_what_spirals_out_is_not_certified(
    model: NetworkModel, random: object, load: float
) -> None:
    ranking = list(model.stages)
    random.shuffle(ranking)  # type: ignore[attr-defined]
    model = faster(model, load / model.rho.max())
    anyone, fixed = global_stability(model, phases=False), priority_stability(model, ranking)
    for stage in fluid_classes(model, False).names:
        path = network_path(model, ranking, stage)
        if path.grows:
            assert not anyone.stable
            assert not fixed.stable
        if fixed.stable:
            assert path.drained or (path.growth is not None and path.growth < 1)


@given(branching(3), st.sampled_from([0.25, 3.0]))
@settings(max_examples=15)
def test_limits_scale_with_rates_and_not_with_units(model: NetworkModel, factor: float) -> None:
    found = global_stability(model, phases=False)
    assert global_stability(faster(model, factor), False).max_load == pytest.approx(found.max_load / factor, rel=FOUND)
    tokens = dataclasses.replace(
        model,
        prefill=model.prefill * factor,
        decode=model.decode * factor,
        capacity=model.capacity * factor,
        full_batch=model.full_batch * factor,
    )
    assert global_stability(tokens, False).max_load == pytest.approx(found.max_load, rel=FOUND)


@given(branching(3))
@settings(max_examples=15)
def test_the_limit_does_not_depend_on_how_stages_and_pools_are_numbered(model: NetworkModel) -> None:
    turned = np.arange(len(model.stages))[::-1]
    other = dataclasses.replace(
        model,
        stages=model.stages[::-1],
        pool=2 - model.pool[turned],
        prefill=model.prefill[turned],
        decode=model.decode[turned],
        external=model.external[turned],
        onward=model.onward[np.ix_(turned, turned)],
        visits=model.visits[turned],
    )
    assert global_stability(other).max_load == pytest.approx(global_stability(model).max_load, rel=FOUND)


@given(st.one_of(routes(2), branching(3)))
@settings(max_examples=30)
def test_the_weights_are_a_lyapunov_function_along_fluid_paths(model: NetworkModel) -> None:
    """Max over stations of G falls between any two breakpoints, under any priority order."""
    model = faster(model, 0.95 * min(global_stability(model, False).max_load, 1 / model.rho.max()))
    found = global_stability(model, phases=False)
    assume(found.cycles)
    classes = fluid_classes(model, False)
    cycle = found.cycles[0]
    inside = [model.pools.index(name) for name in cycle.pools]
    part = classes.at(inside)
    assume(len(part.names) == len(classes.names))
    own, common = np.array([cycle.weights[name] for name in part.names]).T
    for ranking in (model.stages, model.stages[::-1]):
        path = network_path(model, ranking, classes.names[-1], most_events=30)
        g = [path.requests @ np.where(part.station == s, own, common) for s in inside]
        phi = np.max(g, axis=0)
        assert (np.diff(phi) <= 1e-9 * phi[0]).all()


@given(routes(4, 7))
@settings(max_examples=20)
def test_components_come_after_all_that_lead_to_them(model: NetworkModel) -> None:
    classes = fluid_classes(model, False)
    place = {s: i for i, stations in enumerate(components(classes)) for s in stations}
    assert sorted(place) == list(range(len(model.pools)))
    for i, j in np.argwhere(classes.onward > 0):
        assert place[int(classes.station[i])] <= place[int(classes.station[j])]


def test_without_cycles_only_overload_limits() -> None:
    found = global_stability(route([0, 1, 2, 2], [3, 1, 2, 5]))
    assert found.max_load == found.overload == pytest.approx(1 / 7)
    assert found.cycles == ()


@pytest.mark.parametrize("replicas", [2, 8, 64])
def test_replicas_behind_the_shortest_queue_are_certified_no_further_than_one_server(replicas: int) -> None:
    found = global_stability(rybko_stolyar(replicas=replicas), phases=False)
    assert 0.5 < found.max_load <= 608 / 1088 * (1 + FOUND)
    assert not found.exact


def test_of_many_replicas_some_can_be_empty_which_costs_part_of_the_certificate() -> None:
    limits = [global_stability(rybko_stolyar(replicas=replicas), phases=False).max_load for replicas in (1, 8, 64)]
    assert limits[0] == pytest.approx(limits[1], rel=FOUND)
    assert 0.5 < limits[2] < 0.99 * limits[1]


def test_replicas_that_are_not_balanced_are_not_certified_in_a_cycle() -> None:
    found = global_stability(rybko_stolyar(0.1, replicas=2), balanced=[True, False])
    assert found.max_load == 0
    assert not found.stable
    assert global_stability(rybko_stolyar(0.1), balanced=[False, False]).stable  # one replica needs no router


def test_priority_orders_of_several_replicas_are_not_certified() -> None:
    assert priority_stability(rybko_stolyar(0.1, replicas=2), GOOD_ORDER).max_load == 0


def test_a_cycle_of_many_pools_is_certified_less_far_but_not_searched_for_ever() -> None:
    """Each of nine stations alone, whatever the others do: sums of loads below 1 are always certified."""
    found = global_stability(loop(9, 0.5, [1] * 9, [0] * 9, 0.1))
    assert found.stable
    assert 1 <= found.max_load < found.overload


def test_a_join_inside_a_cycle_is_certified_below_some_load_and_never_beyond_overload() -> None:
    """Planned at one pool, searched twice at another, joined at the first."""
    forked = network_model(
        [0, 1, 1, 0],
        [100, 300, 200, 400],
        [50] * 4,
        [1, 0, 0, 0],
        [[0, 1, 1, 0], [0, 0, 0, 0.5], [0, 0, 0, 0.5], [0] * 4],
        1000,
        joins=[False, False, False, True],
    )
    found = global_stability(forked, phases=False)
    assert 0 < found.max_load <= found.overload
    assert not found.exact or found.max_load == found.overload
    plain = dataclasses.replace(forked, branches=np.zeros(4, np.int64))
    assert found.max_load <= global_stability(plain, phases=False).max_load * (1 + FOUND)


def test_what_waits_at_joins_inside_a_cycle_costs_part_of_the_certificate() -> None:
    """Two workflows in opposite directions, each forked at the other pool: a waiting request counts at both pools."""
    onward = np.zeros((8, 8))
    onward[0, 1:3], onward[1:3, 3], onward[4, 5:7], onward[5:7, 7] = 1, 0.5, 1, 0.5
    joins = [k in (3, 7) for k in range(8)]
    external = [float(k in (0, 4)) for k in range(8)]
    forked = network_model([0, 1, 1, 0, 1, 0, 0, 1], [5, 5, 8, 7, 2, 9, 9, 11], [0] * 8, external, onward, joins=joins)
    plain = global_stability(dataclasses.replace(forked, branches=np.zeros(8, np.int64)), phases=False)
    assert 0 < global_stability(forked, phases=False).max_load < 0.65 * plain.max_load


def test_stages_without_tokens_and_stages_that_nobody_visits_change_nothing() -> None:
    """A tool call that computes nothing, between the two calls of each task, and a stage without arrivals."""
    plain = rybko_stolyar()
    onward = np.zeros((7, 7))
    onward[0, 4] = onward[4, 1] = onward[2, 5] = onward[5, 3] = onward[6, 6] = 1
    onward[6, 6] = 0.5
    longer = network_model(
        [0, 1, 1, 0, 0, 1, 1],
        [*plain.prefill, 0, 0, 9],
        [*plain.decode, 0, 0, 9],
        [*plain.external, 0, 0, 0],
        onward,
        768,
        stages=(*plain.stages, "A.tool", "B.tool", "C.never"),
    )
    onward = np.zeros((6, 6))
    onward[0, 1] = onward[2, 3] = onward[4, 0] = onward[5, 2] = 1
    rates = [0, 0, 0, 0, *plain.external[[0, 2]]]  # jobs begin with the tool call
    tokens = [*plain.prefill, 0, 0], [*plain.decode, 0, 0]
    later = network_model([0, 1, 1, 0, 0, 1], *tokens, rates, onward, 768)
    for phases in (False, True):
        expected = global_stability(plain, phases).max_load
        assert global_stability(longer, phases).max_load == pytest.approx(expected, rel=FOUND)
        assert global_stability(later, phases).max_load == pytest.approx(expected, rel=FOUND)


@pytest.mark.parametrize(
    ("ranking", "message"),
    [
        (("A.2", "B.2", "A.1", "b.1"), "the ranking has 'b.1', which is no class of this network; did you mean 'B.1'?"),
        (("A.2", "B.2", "A.1"), "the ranking lacks B.1, so its priority is not known; rank all stages"),
        (("A.2", "B.2", "A.1", "B.1", "A.2"), "the ranking has A.2 twice, so its priority is not known; name it once"),
    ],
)
def test_rankings_that_do_not_rank_each_class_once_are_refused(ranking: tuple[str, ...], message: str) -> None:
    for answer in (priority_limit, priority_stability):
        with pytest.raises(InputError, match=re.escape(message)):
            answer(rybko_stolyar(), ranking)


def test_networks_without_load_and_flags_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="no jobs arrive at this network"):
        global_stability(faster(rybko_stolyar(), 0.0))
    with pytest.raises(InputError, match="3 values of phases for 2 pools; give one per pool, or one"):
        global_stability(rybko_stolyar(), phases=[True, True, False])
    with pytest.raises(InputError, match="no stage that jobs visit has a token"):
        global_stability(route([0, 1], [0, 0]))


def test_what_pools_without_a_backlog_pass_on_faster_than_full_batches_counts() -> None:
    """Where smaller batches carry more than full ones, a pool that holds nothing may flood the next at their rate."""
    onward = np.eye(5, k=1)
    onward[4, 0] = 0.5
    model = network_model([0, 1, 2, 2, 0], [3, 9, 4, 4, 7], [0] * 5, [1, 0, 0, 0, 0], onward)
    assert global_stability(model, phases=False).max_load == pytest.approx(0.05)
    faster_in_part = dataclasses.replace(model, capacity=2 * model.full_batch)
    found = global_stability(faster_in_part, phases=False)
    assert 0.03 < found.max_load < 0.045
    assert not found.exact


def test_no_limit_is_called_exact_where_jobs_fork_or_meet() -> None:
    """What is proved of two servers is of jobs that each follow a route of their own."""
    onward = np.array([[0, 1, 0, 0], [0] * 4, [0, 0, 0, 1], [0] * 4], np.float64)
    apart = network_model([0, 1, 1, 0], [1, 3, 1, 3], [0] * 4, [1, 0, 1, 0], onward)
    assert global_stability(apart, phases=False).exact
    forked = np.zeros((5, 5))
    forked[:4, :4], forked[0, 4] = onward, 1
    both = network_model([0, 1, 1, 0, 1], [1, 3, 1, 3, 1], [0] * 5, [1, 0, 1, 0, 0], forked)
    found = global_stability(both, phases=False)
    assert found.max_load < found.overload
    assert not found.exact
    met = global_stability(network_model([0, 1, 1, 0], [1, 3, 1, 3], [0] * 4, [1, 0.1, 1, 0], onward), phases=False)
    assert met.max_load < met.overload
    assert not met.exact
