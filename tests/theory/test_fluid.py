"""Fluid paths solve the fluid model equations, keep to their order, and all drain their work at the same rate."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.theory.fluid import FluidPath, fluid
from tests.own_policies import own_policy

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
SERVER = ps.Server(TP1, 512, convention="paper")
FULL = 512 / float(TP1(512))
BOTH = ("decode-first", "prefill-first")

backlogs = st.one_of(st.just(0.0), st.floats(0.01, 1e4))
loads = st.one_of(st.floats(0.02, 0.97), st.floats(1.03, 3.0))


@dataclasses.dataclass
class Case:
    """Some classes, how they are routed, and in which order their buffers are served."""

    given: dict[str, Any]
    order: list[tuple[int, str]]

    def path(self, server: ps.Server = SERVER, **changed: Any) -> FluidPath:
        return fluid(server, **({"order": self.order} | self.given | changed))


@st.composite
def cases(draw: st.DrawFn, most: int = 3) -> Case:
    """Random classes with feedback, at a random load of the server, with random backlogs and a random order."""
    classes = draw(st.integers(1, most))

    def each(values: st.SearchStrategy[float]) -> Any:
        return np.array(draw(st.lists(values, min_size=classes, max_size=classes)))

    prompt, output = each(st.floats(1, 500)), each(st.floats(1, 500))
    routing = np.array([each(st.floats(0, 0.9 / classes)) for _ in range(classes)])
    shares = each(st.floats(0, 1)) + 0.01
    work = np.linalg.solve(np.eye(classes) - routing, prompt + output)
    rate = draw(loads) * FULL * shares / (shares @ work)
    order = draw(st.permutations(list(itertools.product(range(classes), ("prefill", "decode")))))
    state = {"prefill": each(backlogs), "decode": each(backlogs)}
    return Case({"arrival_rate": rate, "prompt": prompt, "output": output, "routing": routing} | state, order)


def some_times(path: FluidPath) -> Any:
    """Times before and after every breakpoint, and at them."""
    end = path.time_s[-1] or 1.0
    return np.unique(np.concatenate([path.time_s, np.linspace(0, 1.5 * end, 40)]))


class TestFluidModelEquations:
    @given(cases())
    def test_requests_are_what_there_was_and_came_in_less_what_was_served(self, case: Case) -> None:
        """eq:mf1, eq:mf2, eq:mf4: and never below 0."""
        path, asked = case.path(), case.given
        left_prefill = path.prefill_tokens_per_s / asked["prompt"]
        left_decode = path.decode_tokens_per_s / asked["output"]
        assert (path.prefill >= 0).all()
        assert (path.decode >= 0).all()
        scale = 1e-9 * FULL
        growth = asked["arrival_rate"] + left_decode @ asked["routing"] - left_prefill
        assert path.prefill_growth == pytest.approx(growth, abs=scale)
        assert path.decode_growth == pytest.approx(left_prefill - left_decode, abs=scale)
        for i, length in enumerate(np.diff(path.time_s)):
            assert length > 0
            for state, slope in ((path.prefill, path.prefill_growth), (path.decode, path.decode_growth)):
                assert state[i + 1] == pytest.approx(state[i] + slope[i] * length, rel=1e-9, abs=1e-7)

    @given(cases())
    def test_batches_are_full_while_there_is_work_and_carry_what_arrives_afterwards(self, case: Case) -> None:
        """eq:f7, and the sum of the phases, not each of them, is bounded by b_max / t_bmax."""
        path = case.path()
        rates = np.concatenate([path.prefill_tokens_per_s, path.decode_tokens_per_s], axis=1)
        assert (rates >= -1e-9 * FULL).all()
        expected = np.full(path.time_s.size, FULL)
        if path.drain_s < np.inf:
            expected[-1] = path.offered_tokens_per_s
        assert rates.sum(axis=1) == pytest.approx(expected)

    @given(cases())
    def test_a_buffer_is_served_only_if_all_before_it_in_the_order_stay_empty(self, case: Case) -> None:
        path = case.path()
        rates = {"prefill": path.prefill_tokens_per_s, "decode": path.decode_tokens_per_s}
        inside = np.append(path.time_s[:-1] + np.diff(path.time_s) / 2, path.time_s[-1] + 1)
        requests = dict(zip(("prefill", "decode"), path.at(inside), strict=True))
        for i in range(inside.size):
            waits = False
            for j, phase in case.order:
                if waits:
                    assert rates[phase][i, j] == 0
                waits |= bool(requests[phase][i, j] > 1e-9 * max(path.work[i], 1))

    @pytest.mark.parametrize("seed", range(12))
    def test_small_steps_that_serve_the_buffers_in_order_follow_the_same_path(self, seed: int) -> None:
        """No linear system: in each step tokens go to the first buffer that has requests, then to the next."""
        rng = np.random.default_rng(seed)
        classes = 1 + seed % 3
        prompt, output = rng.uniform(20, 60, (2, classes))
        routing = rng.uniform(0, 0.6 / classes, (classes, classes))
        work = np.linalg.solve(np.eye(classes) - routing, prompt + output)
        rate = rng.uniform(0.3, 1.3) * FULL / classes / work
        prefill, decode = rng.uniform(0, 100, (2, classes)) * (rng.random((2, classes)) < 0.7)
        decode[0] += 100
        buffers = list(itertools.product(range(classes), ("prefill", "decode")))
        order = [buffers[i] for i in rng.permutation(2 * classes)]
        given = {"arrival_rate": rate, "prompt": prompt, "output": output, "prefill": prefill, "decode": decode}
        path = fluid(SERVER, **given, routing=routing, order=order)  # type: ignore[arg-type]

        steps = 3000
        step = 1.1 * (path.time_s[-1] or path.work[0] / FULL) / steps
        left_in = {"prefill": prefill, "decode": decode}
        tokens = {"prefill": prompt, "decode": output}
        furthest = 0.0
        for i in range(steps):
            furthest = max(furthest, *np.abs(np.subtract([*left_in.values()], path.at(i * step))).ravel())
            left_in = {"prefill": left_in["prefill"] + rate * step, "decode": left_in["decode"].copy()}
            budget = FULL * step
            for j, phase in order:
                served = min(left_in[phase][j], budget / tokens[phase][j])
                budget -= served * tokens[phase][j]
                left_in[phase][j] -= served
                if phase == "prefill":
                    left_in["decode"][j] += served
                else:
                    left_in["prefill"] += served * routing[j]
        in_a_step = FULL * step / 20  # requests of at least 20 tokens; each comes back for at most 1 / (1 - 0.6) visits
        assert furthest <= in_a_step / (1 - 0.6)


class TestWork:
    @given(cases())
    def test_it_falls_at_the_full_rate_less_the_offered_one_until_nothing_is_left(self, case: Case) -> None:
        path = case.path()
        time = some_times(path)
        expected = path.work[0] + path.drift_tokens_per_s * time
        assert path.work_at(time) == pytest.approx(np.maximum(expected, 0), rel=1e-9, abs=1e-6 * (1 + path.work[0]))

    @given(cases())
    def test_it_drains_after_work_over_spare_rate_seconds_or_never(self, case: Case) -> None:
        path = case.path()
        spare = FULL - path.offered_tokens_per_s
        assert path.drain_s == (pytest.approx(path.work[0] / spare, rel=1e-9) if spare > 0 else np.inf)

    @given(cases(), st.randoms(use_true_random=False))
    def test_it_is_the_same_in_every_order(self, case: Case, random: Any) -> None:
        path = case.path()
        other = case.path(order=random.sample(case.order, len(case.order)))
        time = some_times(path)
        assert other.work_at(time) == pytest.approx(path.work_at(time), rel=1e-9, abs=1e-6 * (1 + path.work[0]))
        for order in BOTH:
            assert case.path(order=order).drain_s == pytest.approx(path.drain_s, rel=1e-9)

    @given(cases())
    def test_above_load_1_it_grows_for_ever_also_from_nothing(self, case: Case) -> None:
        for state in ({}, {"prefill": 0.0, "decode": 0.0}):
            path = case.path(**state)
            late = 10 * path.time_s[-1] + 1
            if path.drift_tokens_per_s > 0:
                assert path.drain_s == np.inf
                assert path.work_at(late) == pytest.approx(path.work[0] + path.drift_tokens_per_s * late)
            else:
                assert path.work_at(late + 2 * path.drain_s) == 0

    def test_of_one_class_it_is_the_papers_lyapunov_function(self) -> None:
        """eq:laypunov: (m_p + m_d) Z_p + m_d Z_d."""
        path = fluid(SERVER, arrival_rate=3.0, prompt=129, output=112, prefill=40, decode=7)
        assert path.work[0] == (129 + 112) * 40 + 112 * 7

    def test_of_several_classes_it_is_the_papers_lyapunov_function(self) -> None:
        """Section 5: e M_d (I - P')^-1 (Z_p + Z_d) + e M_p (Z_p + P' (I - P')^-1 (Z_p + Z_d))."""
        P = np.array([[0.1, 0.6, 0.0], [0.2, 0.0, 0.5], [0.0, 0.3, 0.3]])
        m_p, m_d = np.array([100.0, 20, 7]), np.array([50.0, 3, 90])
        Z_p, Z_d = np.array([4.0, 0, 11]), np.array([2.0, 30, 1])
        path = fluid(SERVER, arrival_rate=[1, 2, 0], prompt=m_p, output=m_d, prefill=Z_p, decode=Z_d, routing=P)
        to_come = np.linalg.inv(np.eye(3) - P.T) @ (Z_p + Z_d)
        assert path.work[0] == pytest.approx(m_d @ to_come + m_p @ (Z_p + P.T @ to_come))


class TestOneClass:
    @given(st.floats(0.02, 0.97), st.floats(1, 400), st.floats(1, 400), backlogs, backlogs)
    def test_decode_first_drains_the_decodes_then_keeps_none_waiting(
        self, load: float, prompt: float, output: float, prefill: float, decode: float
    ) -> None:
        rate = load * FULL / (prompt + output)
        path = fluid(SERVER, arrival_rate=rate, prompt=prompt, output=output, prefill=prefill, decode=decode)
        first = decode * output / FULL
        prompts, decodes = path.at(first)
        assert prompts == pytest.approx(prefill + rate * first)
        assert decodes == pytest.approx(0, abs=1e-9 * (1 + decode))
        assert path.decode[path.time_s > first * (1 + 1e-9)] == pytest.approx(0)
        if prefill > 0:
            balanced = path.time_s.size - 2  # the stretch before the last
            share = path.decode_tokens_per_s[balanced] / FULL
            assert share == pytest.approx(output / (prompt + output))

    @given(st.floats(0.02, 0.97), st.floats(1, 400), st.floats(1, 400), backlogs, backlogs)
    def test_prefill_first_turns_all_prompts_into_decodes_then_serves_prompts_as_they_come(
        self, load: float, prompt: float, output: float, prefill: float, decode: float
    ) -> None:
        rate = load * FULL / (prompt + output)
        state = {"prefill": prefill, "decode": decode, "order": "prefill-first"}
        path = fluid(SERVER, arrival_rate=rate, prompt=prompt, output=output, **state)  # type: ignore[arg-type]
        first = prefill * prompt / (FULL - rate * prompt)
        prompts, decodes = path.at(first)
        assert prompts == pytest.approx(0, abs=1e-9 * (1 + prefill))
        assert decodes == pytest.approx(decode + FULL / prompt * first)
        assert path.prefill[path.time_s > first * (1 + 1e-9)] == pytest.approx(0)
        assert path.prefill_tokens_per_s[-1] == pytest.approx(rate * prompt)

    def test_prefill_first_never_decodes_where_prompts_alone_exceed_the_capacity(self) -> None:
        path = fluid(SERVER, arrival_rate=FULL / 100, prompt=120, output=10, decode=5, order="prefill-first")
        assert path.time_s.tolist() == [0.0]
        assert path.decode_tokens_per_s == 0
        assert path.at(60.0)[0] == pytest.approx(60 * (FULL / 100 - FULL / 120))
        assert path.at(60.0)[1] == pytest.approx(5 + 60 * FULL / 120)

    @pytest.mark.parametrize("order", BOTH)
    def test_at_load_1_a_backlog_stays(self, order: Any) -> None:
        path = fluid(SERVER, arrival_rate=FULL / 200, prompt=80, output=120, prefill=9, decode=4, order=order)
        assert path.drain_s == np.inf
        assert path.work_at(1e6) == pytest.approx(path.work[0], rel=1e-6)

    def test_an_empty_server_below_load_1_stays_empty(self) -> None:
        path = fluid(SERVER, arrival_rate=1.0, prompt=80, output=120)
        assert (path.drain_s, path.work_at(1e6)) == (0, 0)
        assert (path.prefill_tokens_per_s, path.decode_tokens_per_s) == (pytest.approx(80), pytest.approx(120))

    def test_the_policy_gives_the_order(self) -> None:
        state = {"arrival_rate": 3.0, "prompt": 100, "output": 50, "prefill": 100, "decode": 20}
        for name, order in (("sarathi", "decode-first"), ("orca", "prefill-first")):
            own = fluid(SERVER.with_policy(name), **state)  # type: ignore[arg-type]
            named = fluid(SERVER, **state, order=order)  # type: ignore[arg-type]
            assert own.decode.tolist() == named.decode.tolist()
            assert own.time_s.tolist() == named.time_s.tolist()

    def test_an_engine_decodes_once_less(self) -> None:
        engine = dataclasses.replace(SERVER, convention="engine")
        state = {"arrival_rate": 3.0, "prompt": 100, "prefill": 10, "decode": 20}
        assert fluid(engine, **state, output=51).drain_s == fluid(SERVER, **state, output=50).drain_s  # type: ignore[arg-type]

    @pytest.mark.parametrize("order", BOTH)
    def test_where_the_last_prefill_yields_the_only_token_nothing_waits_to_decode(self, order: Any) -> None:
        engine = dataclasses.replace(SERVER, convention="engine")
        path = fluid(engine, arrival_rate=3.0, prompt=100, output=1, prefill=50, order=order)
        assert path.drain_s == pytest.approx(50 * 100 / (FULL - 300))
        assert not path.decode.any()


class TestManyClasses:
    @given(cases(), st.floats(1e-3, 1e3))
    def test_a_backlog_s_times_as_large_takes_s_times_as_long_on_the_same_path(self, case: Case, s: float) -> None:
        path = case.path()
        larger = case.path(prefill=s * case.given["prefill"], decode=s * case.given["decode"])
        time = some_times(path)
        for one, other in zip(path.at(time), larger.at(s * time), strict=True):
            assert other / s == pytest.approx(one, rel=1e-7, abs=1e-7 * (1 + path.work[0]))

    def test_a_class_that_is_split_in_two_adds_up_to_itself(self) -> None:
        whole = fluid(SERVER, arrival_rate=4.0, prompt=100, output=50, prefill=60, decode=30)
        parts = fluid(SERVER, arrival_rate=[1.0, 3.0], prompt=100, output=50, prefill=[50, 10], decode=[5, 25])
        time = some_times(whole)
        for one, two in zip(whole.at(time), parts.at(time), strict=True):
            assert two.sum(axis=1) == pytest.approx(one)

    def test_a_loop_of_three_visits_on_average_costs_three_times_the_work(self) -> None:
        once = fluid(SERVER, arrival_rate=3.0, prompt=100, output=50, prefill=6)
        loop = fluid(SERVER, arrival_rate=[1.0], prompt=100, output=50, prefill=[2], routing=[[2 / 3]])
        assert loop.offered_tokens_per_s == pytest.approx(once.offered_tokens_per_s)
        assert loop.drain_s == pytest.approx(once.drain_s)

    def test_shapes_follow_what_was_given(self) -> None:
        numbers = fluid(SERVER, arrival_rate=1.0, prompt=10, output=10, prefill=3)
        columns = fluid(SERVER, arrival_rate=[1.0, 2.0], prompt=10, output=10, prefill=3)
        assert numbers.prefill.shape == numbers.time_s.shape
        assert columns.prefill.shape == (*columns.time_s.shape, 2)
        assert numbers.at([[1.0, 2.0, 3.0]])[1].shape == (1, 3)
        assert columns.at([[1.0, 2.0, 3.0]])[1].shape == (1, 3, 2)
        assert columns.work_at([[1.0, 2.0, 3.0]]).shape == (1, 3)


@own_policy(work_conserving=True)
def own_policy(queue, limits, params):  # type: ignore[no-untyped-def]
    return queue.prompt_tokens, queue.decoding, ps.DECODE_FIRST


ASKED: dict[str, Any] = {"arrival_rate": 1.0, "prompt": 100, "output": 50}


@pytest.mark.parametrize(
    ("server", "changed", "says"),
    [
        (ps.Server(TP1, 512, 100), {}, "max batch size of 100 is below the token budget of 512, so batches"),
        (ps.Server(TP1, 512, 600), {}, "max batch size of 600 bounds the running requests"),
        (SERVER.with_policy("vllm-vanilla"), {}, "vllm-vanilla leaves room in batches"),
        (SERVER.with_policy("fastertransformer"), {"order": "decode-first"}, "fastertransformer leaves room"),
        (SERVER.with_policy(own_policy), {}, "which phase own-policy serves first is not known"),
        (SERVER, {"order": "decode-frist"}, "did you mean 'decode-first'"),
        (SERVER, {"order": [(0, "decode")]}, "must name each of the 2 buffers once"),
        (SERVER, {"order": [(0, "decode"), (1, "prefill")]}, "must name each of the 2 buffers once"),
        (SERVER, {"order": 7}, "must name each of the 2 buffers once"),
        (SERVER, {"arrival_rate": -1}, "the arrival rate is -1"),
        (SERVER, {"prefill": float("nan")}, "the prefill is nan"),
        (SERVER, {"decode": [1.0, 2.0], "prefill": [1.0, 2.0, 3.0]}, "the decode has 2 classes where 3 are given"),
        (SERVER, {"prompt": 0}, "a mean prompt is 0 tokens"),
        (SERVER, {"output": "many"}, "the output is 'many'"),
        (SERVER, {"routing": [[1.0]]}, "never leave the loop class 0 -> class 0, so"),
        (SERVER, {"decode": [0] * 3, "routing": [[0.5, 0.3, 0], [0, 0, 1], [0, 1, 0]]}, "loop class 1 -> class 2 -> "),
        (SERVER, {"routing": [[0, 0]]}, r"routing has the shape \(1, 2\), but must have \(1, 1\)"),
        (SERVER, {"routing": [[-0.1]]}, "the routing from class 0 to class 0 is -0.1"),
        (SERVER, {"routing": [[float("nan")]]}, "the routing from class 0 to class 0 is nan"),
        (SERVER, {"prefill": [0, 0], "routing": [[0.6, 0.6], [0, 0]]}, "the routing from class 0 adds up to 1.2"),
        (SERVER, {"routing": "all"}, "routing is 'all'"),
        (dataclasses.replace(SERVER, convention="engine"), {"output": 1, "decode": 2}, "2 requests are in decode"),
        ("a server", {}, "give a Server"),
    ],
)
def test_bad_input_is_told_in_one_line_with_the_value(server: Any, changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ps.InputError, match=says) as error:
        fluid(server, **(ASKED | changed))
    assert "\n" not in str(error.value)


@given(seed=st.integers(0, 10_000), classes=st.integers(1, 5))
def test_a_loop_is_refused_exactly_where_i_minus_p_is_not_invertible(seed: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    routing = np.zeros((classes, classes))
    for row in routing:  # halves and wholes: sums are exact
        for _ in range(2):
            row[rng.integers(classes)] += 0.5 * rng.integers(2)
    asked = ASKED | {"arrival_rate": np.ones(classes), "routing": routing}
    if abs(np.linalg.det(np.eye(classes) - routing)) < 1e-12:
        with pytest.raises(ps.InputError, match="never leave the loop"):
            fluid(SERVER, **asked)
    else:
        assert np.isfinite(fluid(SERVER, **asked).prefill_work).all()


def test_a_policy_of_ones_own_follows_the_order_that_it_is_given() -> None:
    path = fluid(SERVER.with_policy(own_policy), **ASKED, prefill=5, order="decode-first")
    assert path.decode.tolist() == [0, 0]


def test_a_max_batch_size_per_batch_that_never_binds_is_none() -> None:
    limited = dataclasses.replace(SERVER, max_batch_size=512, scope="batch")
    assert fluid(limited, **ASKED, prefill=5).drain_s == fluid(SERVER, **ASKED, prefill=5).drain_s


@pytest.mark.parametrize("time", [-1.0, float("nan")])
def test_the_path_starts_at_0_s(time: float) -> None:
    with pytest.raises(ps.InputError, match="the path starts at 0 s"):
        fluid(SERVER, **ASKED, prefill=5).at(time)
