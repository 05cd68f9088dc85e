"""The stability region is exact: it agrees with the corrected theorem, with enumeration, and with what is simulated."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import penstock as ps
from penstock.system.batch_time import BatchTime
from penstock.theory.region import Region, linear_program, region, sarathi_region
from penstock.workload.lengths import Empirical
from tests.long_prompt_corners import closed_form

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
LONG = 1_000_000
DIRECTIONS = [(1, 0), (0, 1), (1, 1), (29, 99), (5, 1), (1, 40)]
quick = settings(max_examples=60, deadline=None)


def tp1(budget: int = 1024, slots: int | None = 100, **options: str) -> ps.Server:
    return ps.Server(TP1, budget, slots, **options)  # type: ignore[arg-type]


def spread(mean: float, longest: int) -> ps.Mixture:
    """Prompts of 1 or ``longest`` tokens."""
    share = (mean - 1) / (longest - 1)
    return ps.Mixture((ps.Constant(1), ps.Constant(longest)), (1 - share, share))


def same(one: Region, other: Region) -> bool:
    return one.vertices.shape == other.vertices.shape and np.allclose(
        one.vertices, other.vertices, rtol=1e-9, atol=1e-9
    )


def test_the_region_has_the_corners_of_the_corrected_theorem_wherever_its_hypotheses_hold() -> None:
    rng = np.random.default_rng(0)
    with_c = 0
    for case in range(1_000):
        b0 = int(rng.integers(1, 257))
        budget = b0 * int(rng.integers(1, 17))
        slots = int(rng.integers(1, b0 + 1))
        c = 0.0 if case % 10 == 0 else float(rng.exponential(0.02))
        model = ps.PiecewiseConstant(c, float(rng.exponential(0.02)) + 1e-4, b0)
        named = closed_form(model, budget, slots)
        vertices = region(ps.Server(model, budget, slots), prompt=LONG).vertices
        with_c += "C" in named
        assert vertices.shape == (len(named), 2), (model, budget, slots)
        np.testing.assert_allclose(vertices, list(named.values()), rtol=1e-9, atol=1e-9)
    assert 300 < with_c < 950


def test_beyond_b0_slots_the_decode_axis_ends_at_the_best_batch_and_not_at_k_max() -> None:
    """200 decodes take two blocks: 2,432 tokens/s; 128 of them take one: 2,738."""
    decode = region(tp1(slots=200), prompt=LONG).scale((0, 1))
    assert decode == pytest.approx(128 / 46.75e-3, rel=1e-12)
    assert decode == pytest.approx(2738, abs=0.5)
    assert 200 / float(TP1(200)) == pytest.approx(2432, abs=0.5)


@pytest.mark.parametrize("budget", [128, 256, 1024])
@pytest.mark.parametrize(("direction", "share"), [((29, 99), 0.9412), ((4, 14), 0.9425)])
def test_short_prompts_take_slots_and_reach_less(budget: int, direction: tuple[int, int], share: float) -> None:
    """(v_p, v_d) = (4, 14) with 100 slots: 29 prefill tokens need 8 prompts, so 99 decodes do not fit beside them."""
    short, long = (region(tp1(budget), prompt=prompt) for prompt in (4, LONG))
    assert short.scale(direction) / long.scale(direction) == pytest.approx(share, abs=5e-5)


@pytest.mark.parametrize("slots", [1, 7, 100, 300, None])
@pytest.mark.parametrize("prompt", [1, 3, 129, 5_000])
def test_prompts_of_one_length_give_one_region_however_they_are_described(prompt: int, slots: int | None) -> None:
    given_as = [ps.Constant(prompt), ps.Uniform(prompt, prompt), Empirical(np.full(3, prompt), np.full(3, 9))]
    plain = region(tp1(slots=slots), prompt=prompt)
    for lengths in given_as:
        assert same(region(tp1(slots=slots), prompt=lengths), plain)
        optimum = linear_program(tp1(slots=slots), (129, 112), prompt=lengths)
        assert optimum.scale == pytest.approx(plain.scale((129, 112)), rel=1e-9)
        assert optimum.prices.seconds_per_prefill_request == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    "model", [TP1, ps.Affine(0.01, 3e-4), ps.Hinge(0.04, 3e-4, 100), ps.Measured([1, 500], [2, 3])]
)
@pytest.mark.parametrize("budget", [1, 100, 129, 500])
def test_without_a_max_batch_size_the_region_is_the_triangle_below_the_capacity(model: BatchTime, budget: int) -> None:
    capacity = model.capacity(budget)
    for slots in (None, budget, budget + 50):
        vertices = region(ps.Server(model, budget, slots), prompt=129).vertices
        np.testing.assert_allclose(vertices, [(0, 0), (capacity, 0), (0, capacity)], rtol=1e-12)


@given(
    times=st.lists(st.floats(0.1, 10), min_size=2, max_size=9),
    slots=st.integers(1, 6),
    longest=st.integers(2, 5),
    where=st.floats(0, 1),
    direction=st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(any),
)
@quick
def test_the_region_is_what_enumerating_every_batch_gives_for_any_batch_times_and_prompts(
    times: list[float], slots: int, longest: int, where: float, direction: tuple[int, int]
) -> None:
    mean = 1 + where * (longest - 1)
    server = ps.Server(ps.Measured(range(1, len(times) + 1), times), len(times), slots)
    prompt = spread(mean, longest)
    best = enumerated(times, slots, longest, mean, direction)
    found = region(server, prompt=prompt)
    assert found.scale(direction) == pytest.approx(best, rel=1e-7)
    assert linear_program(server, direction, prompt=prompt).scale == pytest.approx(best, rel=1e-7)


def enumerated(times: list[float], slots: int, longest: int, mean: float, direction: tuple[int, int]) -> float:
    """Solve the condition over every (x, y, k_p), with nothing left out."""
    rows = [
        (x / times[x + y - 1], y / times[x + y - 1], k / times[x + y - 1])
        for y in range(slots + 1)
        for k in range(slots - y + 1)
        for x in range(k, min(k * longest, len(times) - y) + 1)
        if x + y
    ]
    rates = np.array(rows).T
    towards = np.array([direction[0], direction[1], direction[0] / mean])
    solved = linprog(
        np.r_[-1, np.zeros(len(rows))],
        A_ub=np.vstack([np.column_stack([towards, -rates]), np.r_[0, np.ones(len(rows))]]),
        b_ub=[0, 0, 0, 1],
    )
    return float(solved.x[0])


@given(
    blocks=st.integers(1, 12),
    slots=st.integers(1, 300),
    longest=st.integers(2, 600),
    direction=st.tuples(st.floats(0, 1e3), st.floats(0, 1e3)).filter(lambda d: sum(d) > 1e-3),
)
@quick
def test_more_blocks_of_budget_more_slots_and_more_varied_prompts_never_carry_less(
    blocks: int, slots: int, longest: int, direction: tuple[float, float]
) -> None:
    server = tp1(128 * blocks, slots)
    prompt = spread(1.5, longest)
    here = region(server, prompt=prompt).scale(direction) * (1 - 1e-11)
    assert region(tp1(128 * (blocks + 1), slots), prompt=prompt).scale(direction) >= here
    assert region(tp1(128 * blocks, slots + 1), prompt=prompt).scale(direction) >= here
    assert region(server, prompt=spread(1.5, longest + 1)).scale(direction) >= here
    assert TP1.capacity(server.token_budget) >= here * sum(direction)


@given(
    slots=st.integers(1, 300),
    prompt=st.integers(1, 600),
    direction=st.tuples(st.floats(0, 1e9), st.floats(0, 1e9)).filter(lambda d: sum(d) > 1e-9),
    share=st.floats(0.01, 3).filter(lambda s: abs(s - 1) > 1e-9),
)
@quick
def test_scale_margin_and_contains_tell_one_story(
    slots: int, prompt: int, direction: tuple[float, float], share: float
) -> None:
    found = region(tp1(slots=slots), prompt=prompt)
    edge = found.scale(direction) * np.array(direction)
    assert found.contains(edge)
    assert found.margin(edge) == pytest.approx(0, abs=1e-12)
    assert found.margin(share * edge) == pytest.approx(1 - share, abs=1e-9)
    assert found.contains(share * edge) == (share < 1)
    assert found.scale(share * edge) == pytest.approx(1 / share)


def test_the_origin_and_the_corners_lie_in_the_region() -> None:
    found = region(tp1(), prompt=4)
    assert found.margin((0, 0)) == 1
    assert all(found.contains(corner) for corner in found.vertices)


@pytest.mark.parametrize("prompt", [4, 129, ps.LogNormal(129, 2), ps.LogNormal(3, 2, max=100), ps.Geometric(7)])
@pytest.mark.parametrize(
    "server", [tp1(), tp1(1000, 300), tp1(300, None), ps.Server(ps.Hinge(0.04, 3e-4, 99), 900, 50)]
)
def test_the_linear_program_finds_the_boundary_with_a_mix_that_carries_it_and_prices_that_no_batch_beats(
    server: ps.Server, prompt: int | ps.LogNormal
) -> None:
    lengths = ps.Constant(prompt) if isinstance(prompt, int) else prompt
    found, t = region(server, prompt=prompt), server.batch_time.table(server.token_budget)
    prefill, decode, requests = every_batch(server, lengths.max or LONG)
    for direction in DIRECTIONS:
        best = linear_program(server, direction, prompt=prompt)
        assert best.scale == pytest.approx(found.scale(direction), rel=1e-9)
        used = np.array(best.mix)
        seconds = t[used[:, :2].sum(axis=1).astype(int)]
        wanted = best.scale * np.array([*direction, direction[0] / lengths.mean])
        assert used[:, 3].sum() == pytest.approx(1)
        assert (used[:, :3].T @ (used[:, 3] / seconds) >= wanted * (1 - 1e-9)).all()
        prices = (
            best.prices.seconds_per_prefill_token,
            best.prices.seconds_per_decode_token,
            best.prices.seconds_per_prefill_request,
        )
        assert float(np.dot(prices, wanted)) == pytest.approx(1, rel=1e-9)
        worth = prices[0] * prefill + prices[1] * decode + prices[2] * requests
        assert (worth <= t[prefill + decode] * (1 + 1e-8)).all()


def every_batch(server: ps.Server, longest: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return prefill tokens, decode tokens and the most prefill requests of every batch."""
    slots = server.max_batch_size or server.token_budget
    y, x = np.meshgrid(np.arange(slots + 1), np.arange(server.token_budget + 1))
    requests = np.minimum(slots - y, x)
    feasible = (x + y > 0) & (x + y <= server.token_budget) & (x <= requests * longest)
    return x[feasible], y[feasible], requests[feasible]


def test_prices_along_the_edges_are_the_normals_of_the_region() -> None:
    """On AB a token costs t/b_max whatever its phase; on CD prompts cost more: their slot keeps a decode out."""
    along_ab = linear_program(tp1(), (10, 1), prompt=LONG)
    per_token = float(TP1(1024)) / 1024
    assert along_ab.prices.seconds_per_prefill_token == pytest.approx(per_token)
    assert along_ab.prices.seconds_per_decode_token == pytest.approx(per_token)
    along_cd = linear_program(tp1(), (10, 90), prompt=LONG)
    block = float(TP1(128))
    assert along_cd.prices.seconds_per_decode_token == pytest.approx(block / 100)
    assert along_cd.prices.seconds_per_prefill_token == pytest.approx(block / 100 / 29)


@pytest.mark.parametrize(
    ("direction", "binding"),
    [
        ((1, 0), ("token budget",)),
        ((925, 99), ("token budget", "max batch size")),
        ((29, 99), ("max batch size",)),
        ((0, 1), ("max batch size",)),
    ],
)
def test_it_says_which_limit_holds_the_rates_back(direction: tuple[int, int], binding: tuple[str, ...]) -> None:
    """At A the budget, at B both, at C and D only the slots: there fuller batches take another block."""
    assert linear_program(tp1(), direction, prompt=LONG).binding == binding


def test_where_neither_limit_holds_the_rates_back_it_is_the_batch_time() -> None:
    best = linear_program(ps.Server(ps.Hinge(0.01, 3e-4, 100), 1024, 200), (1, 1), prompt=LONG)
    assert best.binding == ("batch time",)
    assert best.prices.tokens_per_s_per_slot == 0


def test_one_more_slot_is_worth_what_it_adds() -> None:
    """At D a slot adds a decode to each batch of one block; without a max batch size, or above b_max, nothing."""
    assert linear_program(tp1(), (0, 1), prompt=LONG).prices.tokens_per_s_per_slot == pytest.approx(1 / float(TP1(128)))
    at_c, more = linear_program(tp1(), (29, 99), prompt=LONG), region(tp1(slots=101), prompt=LONG)
    assert at_c.prices.tokens_per_s_per_slot == pytest.approx((more.scale((29, 99)) - at_c.scale) * 128, rel=1e-6)
    assert linear_program(tp1(), (1, 0), prompt=LONG).prices.tokens_per_s_per_slot == 0
    assert linear_program(tp1(slots=None), (29, 99), prompt=LONG).prices.tokens_per_s_per_slot == 0
    assert linear_program(tp1(128, 128), (29, 99), prompt=LONG).prices.tokens_per_s_per_slot == 0


@pytest.mark.parametrize(("convention", "decodes"), [("paper", 112), ("engine", 111)])
def test_with_an_output_length_the_region_knows_the_largest_request_rate(convention: str, decodes: int) -> None:
    server = tp1(convention=convention)
    found = region(server, prompt=129, output=112)
    assert found.max_rate == found.scale((129, decodes))
    joint = Empirical(np.array([100, 158]), np.array([112, 112]))
    assert region(server, prompt=joint).request == (129, decodes)
    assert region(tp1(slots=None, convention=convention), prompt=129, output=112).max_rate == pytest.approx(
        ps.certify(ps.Workload.poisson(1, 129, 112), tp1(slots=None, convention=convention)).max_rate
    )


REACHED = {
    "middle of CD": (1.001, 0.934, 0.924),
    "C": (0.999, 0.876, 0.859),
    "quarter of CB": (0.936, 0.926, 0.879),
    "middle of CB": (0.881, 0.989, 0.921),
    "B": (0.789, 0.896, 0.999),
}
"""Simulated stable share of the boundary, constant lengths, at budgets 128, 256 and 1024."""


@pytest.mark.parametrize("place", REACHED)
def test_sarathis_own_region_predicts_how_far_it_was_simulated_to_reach(place: str) -> None:
    b, c, d = (np.array(closed_form(TP1, 1024, 100)[name]) for name in "BCD")
    points = dict(zip(REACHED, ((c + d) / 2, c, 0.75 * c + 0.25 * b, (c + b) / 2, b), strict=True))
    whole = region(tp1(), prompt=LONG)
    assert whole.scale(points[place]) == pytest.approx(1, rel=1e-12)
    for budget, share in zip((128, 256, 1024), REACHED[place], strict=True):
        own = sarathi_region(tp1(budget))
        assert own.scale(points[place]) == pytest.approx(share, abs=0.017)
        assert all(whole.contains(corner) for corner in own.vertices)


def test_without_a_max_batch_size_sarathi_has_the_whole_region() -> None:
    assert same(sarathi_region(tp1(slots=None)), region(tp1(slots=None), prompt=129))


@pytest.mark.parametrize(("prompt", "output"), [(4, 14), (290, 990), (ps.Geometric(20, max=200), 60)])
@pytest.mark.parametrize("policy", ps.POLICIES)
def test_no_policy_carries_rates_outside_the_region(policy: str, prompt: int | ps.Geometric, output: int) -> None:
    for scope in ("batch", "running"):
        server = tp1(256, 100, policy=policy, scope=scope)
        found = region(server, prompt=prompt, output=output)
        workload = ps.Workload.poisson(1.05 * found.max_rate, prompt, output)
        run = ps.simulate(workload, server, requests=3_000, drain=True, record="summary")
        batches = run.compositions
        carried = [float((batches[name] * batches["batches"]).sum()) for name in ("prefill_tokens", "decode_tokens")]
        assert found.margin(np.array(carried) / run.seconds) > (-1e-6 if isinstance(prompt, int) else -0.02)


def test_large_limits_take_well_under_a_second() -> None:
    start = time.perf_counter()
    for prompt in (129, ps.LogNormal(5, 2)):
        region(tp1(8192, 1024), prompt=prompt)
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize(
    ("model", "budget", "slots", "hypothesis"),
    [
        (ps.Affine(0.01, 3e-4), 1024, 100, "piecewise constant"),
        (ps.PiecewiseConstant(0.01, 0.0, 128), 1024, 100, "a > 0"),
        (TP1, 1000, 100, "b_0 | b_max"),
        (TP1, 1024, 129, "k_max <= b_0"),
    ],
)
def test_the_closed_form_refuses_what_its_theorem_does_not_cover_and_names_the_hypothesis(
    model: BatchTime, budget: int, slots: int, hypothesis: str
) -> None:
    with pytest.raises(ps.InputError) as error:
        closed_form(model, budget, slots)
    assert hypothesis in str(error.value)
    assert "use `region`" in str(error.value)


JOINT = Empirical(np.array([3]), np.array([4]))


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: region(tp1(), prompt=0), "the prompt is 0|prompt is 0"),
        (lambda: region(tp1(), prompt="long"), "prompt is 'long'"),
        (lambda: region(tp1(), prompt=5, output=2.5), "output is 2.5"),
        (lambda: region(tp1(), prompt=JOINT, output=3), "leave `output` out"),
        (lambda: region(tp1(), prompt=5).max_rate, "give `output`"),
        (lambda: region(tp1(), prompt=5).scale((0, 0)), "points nowhere"),
        (lambda: region(tp1(), prompt=5).scale((1, 2, 3)), "the direction is"),
        (lambda: region(tp1(), prompt=5).scale("up"), "the direction is 'up'"),
        (lambda: region(tp1(), prompt=5).contains((-1, 2)), "the point is"),
        (lambda: region(tp1(), prompt=5).margin((np.nan, 2)), "the point is"),
        (lambda: linear_program(tp1(), (np.inf, 1), prompt=5), "the direction is"),
        (lambda: closed_form(TP1, 0, 1), "the token budget is 0"),
        (lambda: closed_form(TP1, 128, 0), "the max batch size is 0"),
    ],
)
def test_bad_input_is_told_in_one_line_with_the_value(ask, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ps.InputError, match=says) as error:
        ask()
    assert "\n" not in str(error.value)
