"""The corrected Foster-Lyapunov function falls in every large state of the paper's chain; the printed one need not."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from tests.foster import Foster, foster
from tests.reference import markov_chain

State = tuple[int, tuple[tuple[int, int], ...]]
"""The paper's X: slots left of the batch, and (prefill left, decode left) of each request (eq:state)."""

CONVENTIONS = ("paper", "engine")


def next_state(server: ps.Server, state: State) -> State:
    """One slot of the paper's chain, without the arrivals at its end (eq:r-transition)."""
    left, requests = state
    if left > 0:
        return left - 1, requests
    queue = tuple(markov_chain.Request(i, 0, 1, 1, 1, P=p, D=d) for i, (p, d) in enumerate(requests))
    batch = markov_chain.POLICIES[server.policy.name](markov_chain.State(0, queue, server.token_budget, None, "batch"))
    served = [batch.get(i, (0, 0)) for i in range(len(requests))]
    slots = round(float(server.batch_time(markov_chain.token_load(batch))))
    return max(slots - 1, 0), tuple((p - x, d - y) for (p, d), (x, y) in zip(requests, served, strict=True))


def value(found: Foster, state: State) -> float:
    left, requests = state
    prefill, decode = zip(*requests, strict=True) if requests else ((), ())
    return found.value(prefill, decode, left)


def drift(server: ps.Server, found: Foster, state: State, rate: float, pairs: list[tuple[int, int]]) -> float:
    """The exact mean change of V over the next slot: arrivals add a mean of their own, whatever their number's law."""
    arrival = np.mean([found.value([p], [o - (server.convention == "engine")]) for p, o in pairs])
    return value(found, next_state(server, state)) - value(found, state) + rate * float(arrival)


def can_start(server: ps.Server, state: State) -> int | None:
    """Tokens that a batch could carry now without a budget (eq:conserv), or None while one runs."""
    left, requests = state
    return None if left else sum(p or 1 for p, d in requests if p or d)


servers = st.builds(
    lambda budget, c, a, policy, convention: ps.Server(
        ps.PiecewiseConstant(c=c, a=a, b0=budget), budget, policy=policy, convention=convention
    ),
    st.integers(1, 12),
    st.integers(0, 3),
    st.integers(1, 3),
    st.sampled_from(["sarathi", "orca"]),
    st.sampled_from(CONVENTIONS),
)
lengths = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=4)
requests = st.tuples(st.integers(0, 30), st.integers(0, 400)).filter(any)


@given(servers, lengths, st.floats(0.05, 0.99), st.lists(requests, max_size=14), st.integers(0, 5))
def test_it_falls_at_the_stated_rate_outside_a_set_of_small_states(
    server: ps.Server, pairs: list[tuple[int, int]], load: float, there: list[tuple[int, int]], left: int
) -> None:
    prompt, output = np.array(pairs).T
    full = server.token_budget / float(server.batch_time(server.token_budget))
    rate = load * full / server.tokens_per_request(prompt.mean(), output.mean())
    found = foster(server, arrival_rate=rate, prompt=prompt, output=output)
    left = min(left, round(float(server.batch_time(server.token_budget))) - 1)
    state: State = left, tuple(there)
    supply = can_start(server, state)
    large = supply is None or supply >= server.token_budget or value(found, state) >= found.level
    rounding = 1e-9 * (1 + value(found, state))
    if large:
        assert drift(server, found, state, rate, pairs) <= found.drift_tokens_per_s + rounding
    assert drift(server, found, state, rate, pairs) <= server.token_budget + rounding  # finite in the others


@pytest.mark.parametrize("policy", ["sarathi", "orca"])
def test_the_level_is_not_far_above_what_one_long_request_needs(policy: str) -> None:
    """A batch with one decode, as slow as a full one: only the square falls, enough from the level on, not at half."""
    server = ps.Server(ps.PiecewiseConstant(c=1, a=1, b0=4), 4, policy=policy, convention="paper")
    found = foster(server, arrival_rate=0.3, prompt=2, output=2)

    def drift_at(level: float) -> float:
        decode = next(d for d in range(10**6) if found.value([0], [d]) >= level)
        return drift(server, found, (0, ((0, decode),)), 0.3, [(2, 2)])

    assert drift_at(found.level) <= found.drift_tokens_per_s < drift_at(found.level / 2)


class TestAsPrinted:
    """Appendix C: |X| + eps / (4 L rate) sum (1{p > 0} + d)^2, eps = min(full - offered, L rate), L = E[v_d^2]."""

    @staticmethod
    def printed_drift(server: ps.Server, state: State, rate: float, v_p: int, v_d: int, full: float) -> float:
        L = v_d**2
        eps = min(full - rate * (v_p + v_d), L * rate)
        printed = Foster(0.0, 0.0, eps / (4 * L * rate), 0.0, (0.0, 0.0))  # no term for the slots left
        return drift(server, printed, state, rate, [(v_p, v_d)]) + eps / 2  # at most 0, if the appendix holds

    @pytest.mark.parametrize("v_d", [1, 2])
    def test_the_drift_of_a_full_batch_is_above_minus_eps_2_for_outputs_of_1_and_2_tokens(self, v_d: int) -> None:
        """(d + 1)^2 <= 2 d^2 fails. One slot per batch, which takes a part of a long prompt: no square falls."""
        server = ps.Server(ps.PiecewiseConstant(c=0, a=1, b0=4), 4, policy="orca", convention="paper")
        rate = 3 / (1 + v_d)
        assert self.printed_drift(server, (0, ((1000, v_d),)), rate, 1, v_d, full=4) > 0.01

    def test_outputs_of_3_tokens_are_long_enough(self) -> None:
        server = ps.Server(ps.PiecewiseConstant(c=0, a=1, b0=4), 4, policy="orca", convention="paper")
        assert self.printed_drift(server, (0, ((1000, 3),)), 3 / 4, 1, 3, full=4) <= 0

    def test_while_a_batch_runs_it_rises_in_every_state_even_with_the_full_rate_put_right(
        self,
    ) -> None:
        server = ps.Server(ps.PiecewiseConstant(c=1, a=2, b0=4), 4, policy="orca", convention="paper")
        for prompts in (1, 100, 10_000):
            assert self.printed_drift(server, (1, ((1000, 5),) * prompts), 0.1, 1, 5, full=4 / 3) > 0.1 * 6

    def test_a_square_falls_by_2_d_plus_1_with_d_what_is_left_after_the_batch_is_scheduled(self) -> None:
        one = Foster(0.0, 0.0, 1.0, 0.0, (0.0, 0.0))
        for before, after in (((0, 7), (0, 6)), ((3, 7), (0, 7))):
            fall = one.value(*([x] for x in before)) - one.value(*([x] for x in after)) - sum(before) + sum(after)
            assert fall == 2 * (after[1] if before[0] == 0 else 7) + 1


TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
ASKED: dict[str, Any] = {"arrival_rate": 1.0, "prompt": 100, "output": 50}


@pytest.mark.parametrize(
    ("server", "changed", "says"),
    [
        (ps.Server(TP1, 512), {"arrival_rate": 30.0}, "so the backlog does not fall"),
        (ps.Server(TP1, 512), {"arrival_rate": 0.0}, "the arrival rate is 0"),
        (ps.Server(TP1, 512), {"prompt": [1, 2]}, "2 prompts for 1 outputs"),
        (ps.Server(TP1, 512), {"prompt": 1.5}, "a prompt has 1.5 tokens"),
        (ps.Server(TP1, 512, policy="vllm-vanilla"), {}, "vllm-vanilla is not known to be work-conserving"),
        (ps.Server(TP1, 512, 100), {}, "max batch size of 100"),
        (ps.Server(TP1, 129), {}, "lower the token budget to 128"),
    ],
)
def test_bad_input_is_told_in_one_line_with_the_value(server: ps.Server, changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ps.InputError, match=says) as error:
        foster(server, **(ASKED | changed))
    assert "\n" not in str(error.value)
