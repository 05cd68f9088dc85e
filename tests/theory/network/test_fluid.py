"""Fluid paths keep the books, agree with the single server's, and spiral as the notes say."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from network_models import BAD_ORDER, GOOD_ORDER, branching, faster, network_model, route, routes, rybko_stolyar

import penstock as ps
from penstock.errors import InputError
from penstock.system.network_model import NetworkModel
from penstock.theory.fluid import fluid
from penstock.theory.network.fluid import NetworkPath, network_path
from penstock.theory.network.fluid_classes import fluid_classes
from penstock.theory.network.virtual_stations import priority_limit

TOKENS = 768
"""The Rybko-Stolyar servers process so many in a second."""


def alone(path: NetworkPath, stage: str) -> np.ndarray:
    """Levels of a stage at the breakpoints where all others are empty."""
    column = path.classes.index(stage)
    others = np.delete(path.requests, column, axis=1).sum(axis=1)
    return path.requests[(others == 0) & (path.requests[:, column] > 0), column]


@pytest.mark.parametrize(("rho", "factor"), [(0.5, 0.810), (0.7, 1.676), (0.9, 4.135)])
def test_a_flooded_first_stage_floods_the_other_by_the_amplification_of_the_notes(rho: float, factor: float) -> None:
    path = network_path(rybko_stolyar(rho), BAD_ORDER, "A.1", most_events=40)
    virtual = priority_limit(rybko_stolyar(rho), BAD_ORDER)
    assert virtual is not None
    there, back = alone(path, "A.1"), alone(path, "B.1")
    assert back[0] / there[0] == pytest.approx(factor, abs=5e-4)
    assert back[0] / there[0] == pytest.approx(virtual.amplification()[0])
    assert there[1:] / there[:-1] == pytest.approx(factor**2, rel=2e-3)
    assert path.growth == pytest.approx(np.prod(virtual.amplification()))


@pytest.mark.parametrize(("rho", "grows"), [(0.54, False), (0.5587, False), (0.5590, True), (0.58, True), (0.99, True)])
def test_paths_spiral_in_below_the_virtual_stations_limit_and_out_above(rho: float, grows: bool) -> None:
    for stage in BAD_ORDER:
        path = network_path(rybko_stolyar(rho), BAD_ORDER, stage)
        assert path.grows == grows
        assert (path.growth or 0) > 1 if grows else (path.growth or 0) < 1


def test_tokens_grow_by_524_a_slot_along_the_envelope_of_the_paths_at_load_90_percent() -> None:
    path = network_path(rybko_stolyar(0.9), BAD_ORDER, "A.1", most_events=60)
    rate = path.work_s * TOKENS / np.maximum(path.time_s, 1)
    assert rate[-20:].max() == pytest.approx(524, abs=0.5)


@pytest.mark.parametrize("rho", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("phases", [False, True])
def test_the_reversed_priority_drains_wherever_the_flood_is(rho: float, phases: bool) -> None:
    for stage in GOOD_ORDER:
        path = network_path(rybko_stolyar(rho), GOOD_ORDER, stage, phases=phases)
        assert path.drained
        assert not path.grows
        assert not path.slope[-1].any()


def test_decodes_before_prompts_are_whole_stages_in_the_same_order() -> None:
    """With no fluid in decode at the start, ranking the phases of each stage decode first changes nothing."""
    whole = network_path(rybko_stolyar(0.7), BAD_ORDER, "B.2", most_events=12)
    split = network_path(rybko_stolyar(0.7), BAD_ORDER, "B.2", phases=True, most_events=12)
    assert split.time_s == pytest.approx(whole.time_s)
    prompts = [split.classes.index(f"{name} prefill") for name in whole.classes]
    assert split.requests[:, prompts] == pytest.approx(whole.requests)
    assert split.requests.sum() == pytest.approx(whole.requests.sum())


def test_any_decode_before_any_prompt_is_the_static_order_of_whole_stages() -> None:
    """So the order decode-first, which ranks the prompts of stages as they are listed, can fail as any other."""
    ranking = [f"{name} decode" for name in BAD_ORDER] + [f"{name} prefill" for name in BAD_ORDER]
    split = network_path(rybko_stolyar(0.7), ranking, "A.1", phases=True, most_events=20)
    whole = network_path(rybko_stolyar(0.7), BAD_ORDER, "A.1", most_events=20)
    assert split.time_s == pytest.approx(whole.time_s)
    assert split.grows


@given(
    model=st.one_of(routes(2), routes(3), branching(3)),
    random=st.randoms(use_true_random=False),
    load=st.sampled_from([0.5, 0.9, 1.2]),
    phases=st.booleans(),
)
@settings(max_examples=60)
def test_paths_keep_the_books(model: NetworkModel, random: object, load: float, phases: bool) -> None:
    """Nothing is negative, lines meet at breakpoints, and what holds fluid gets all of its station's time."""
    model = faster(model, load / model.rho.max())
    classes = fluid_classes(model, phases)
    ranking = list(classes.names)
    random.shuffle(ranking)  # type: ignore[attr-defined]
    path = network_path(model, ranking, ranking[0], phases=phases, most_events=25)
    size = path.requests.max(axis=1)
    assert (path.requests >= 0).all()
    assert (np.diff(path.time_s) > 0).all()
    step = np.diff(path.time_s)[:, None]
    ends = path.requests[:-1] + path.slope[:-1] * step
    cut = len(step) - 1 if path.drained else len(step)
    assert np.abs(ends - path.requests[1:])[:cut] == pytest.approx(0, abs=1e-8 * size.max())
    for level, slope in zip(path.requests[: len(step)], path.slope, strict=False):
        served = np.linalg.solve(np.eye(len(ranking)) - classes.onward.T, classes.external - slope)
        busy = np.bincount(classes.station, served * classes.seconds, len(model.pools))
        held = np.bincount(classes.station, level > 0, len(model.pools)) > 0
        assert (served > -1e-9).all()
        assert (busy <= 1 + 1e-9).all()
        assert busy[held] == pytest.approx(1)
    assert path.at(path.time_s)[:cut] == pytest.approx(path.requests[:cut])


@given(
    tokens=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=3, max_size=3),
    again=st.lists(st.lists(st.sampled_from([0.0, 0.2, 0.3]), min_size=3, max_size=3), min_size=3, max_size=3),
    order=st.permutations([(j, phase) for j in range(3) for phase in ("prefill", "decode")]),
    start=st.lists(st.integers(0, 5), min_size=6, max_size=6).filter(any),
    load=st.sampled_from([0.3, 0.9, 1.3]),
)
@settings(max_examples=40)
def test_one_pool_drains_as_the_fluid_model_of_a_server(
    tokens: list[tuple[int, int]],
    again: list[list[float]],
    order: list[tuple[int, str]],
    start: list[int],
    load: float,
) -> None:
    prompt, output = zip(*tokens, strict=True)
    onward = np.tril(again)  # at most .9 goes on
    model = network_model([0, 0, 0], prompt, output, [1.0, 0.5, 0.25], onward, 100)
    model = faster(model, load / model.rho[0])
    server = ps.Server(ps.PiecewiseConstant(c=0, a=1, b0=100), token_budget=100, convention="paper")
    single = fluid(
        server,
        arrival_rate=model.external,
        prompt=prompt,
        output=output,
        prefill=start[:3],
        decode=start[3:],
        routing=onward,
        order=order,
    )
    names = {(j, phase): f"w.{j} {phase}" for j in range(3) for phase in ("prefill", "decode")}
    levels = {names[(j, phase)]: start[3 * i + j] for i, phase in enumerate(("prefill", "decode")) for j in range(3)}
    path = network_path(model, [names[pair] for pair in order], levels, phases=True)
    last = min(path.time_s[-1], single.time_s[-1])
    for time in np.linspace(0, last, 7):
        prefill, decode = single.at(time)
        expected = dict(zip([names[(j, "prefill")] for j in range(3)], prefill, strict=True))
        expected |= dict(zip([names[(j, "decode")] for j in range(3)], decode, strict=True))
        found = dict(zip(path.classes, path.at(time), strict=True))
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(st.one_of(routes(2), branching(3)), st.sampled_from([1e-3, 50.0]))
@settings(max_examples=25)
def test_paths_scale_with_their_start(model: NetworkModel, factor: float) -> None:
    model = faster(model, 0.8 / model.rho.max())
    stage = fluid_classes(model, False).names[-1]
    one = network_path(model, model.stages, {stage: 1.0}, most_events=15)
    more = network_path(model, model.stages, {stage: factor}, most_events=15)
    assert more.time_s == pytest.approx(one.time_s * factor)
    assert more.requests == pytest.approx(one.requests * factor)
    assert more.slope == pytest.approx(one.slope)


def test_a_single_stage_drains_in_its_work_over_the_spare_rate() -> None:
    path = network_path(faster(route([0], [30], [20]), 0.015), ["w.0"], "w.0")
    assert (path.drained, path.growth) == (True, None)
    assert path.time_s.tolist() == pytest.approx([0, 50 / (1 - 0.75)])
    assert path.work_s.tolist() == pytest.approx([50, 0])


def test_an_overloaded_pool_grows_without_a_cycle() -> None:
    path = network_path(route([0, 1], [1, 2]), ["w.0", "w.1"], "w.0")
    assert path.grows
    assert path.growth == np.inf


def test_a_feeding_class_is_held_back_by_what_it_feeds_above_it() -> None:
    """w.3 sends to w.4, which ranks above it at the same server: w.3 gets what w.4 and w.0 leave, in proportion."""
    model = faster(route([1, 0, 2, 1, 1], [20, 14, 7, 1, 15]), 0.97 / 36)
    path = network_path(model, ["w.2", "w.1", "w.4", "w.0", "w.3"], "w.1", most_events=1)
    rate = 0.97 / 36
    passed = (1 - 20 * rate) / 16
    assert path.slope[0].tolist() == pytest.approx([0, rate - 1 / 14, 0, 1 / 14 - passed, 0])


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("A.3", "the fluid starts in 'A.3', which is no class of this network; did you mean 'A.2'?"),
        ({"A.1": 0.0}, "the fluid starts with nothing, so nothing moves; give one class some requests"),
        ({"A.1": -1.0}, "the fluid in A.1 is -1.0, but must be a number from 0 to"),
    ],
)
def test_starts_that_cannot_be_used_are_refused(start: object, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        network_path(rybko_stolyar(0.5), BAD_ORDER, start)  # type: ignore[arg-type]


def test_joins_and_times_before_the_start_are_refused() -> None:
    forked = network_model(
        [0, 1, 1, 0], [1] * 4, [1] * 4, [0.1, 0, 0, 0], [[0, 1, 1, 0], [0, 0, 0, 0.5], [0, 0, 0, 0.5], [0] * 4],
        joins=[False, False, False, True],
    )  # fmt: skip
    with pytest.raises(InputError, match=r"w\.3 waits at a join, of which fluid paths know nothing"):
        network_path(forked, forked.stages, "w.0")
    with pytest.raises(InputError, match="before its start at 0 s"):
        network_path(rybko_stolyar(0.5), BAD_ORDER, "A.1").at(-1.0)
