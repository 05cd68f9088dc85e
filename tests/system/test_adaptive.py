"""Adaptive policies choose the batch that they say they choose, with parameters that follow from the server."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
import pytest

import penstock as ps
from penstock.kernel.signatures import DECODE_FIRST, PREFILL_FIRST, Limits, Queue
from penstock.system.adaptive import MOST_BUDGETS, budgets, maxweight, maxweight_tokens, price_corners
from penstock.system.policies import fields_read
from penstock.theory.region import linear_program

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
SERVER = ps.Server(TP1, 1024, 100, scope="batch", convention="paper")
LIMITS = Limits(1024, 100)
SECONDS = TP1.table(1024).tolist()


def random_queues(seed: int, count: int, slots: int) -> Iterator[Queue]:
    """Draw what a policy may see in scope ``batch``; at least one request is there."""
    rng = np.random.default_rng(seed)
    while count:
        waiting, decoding, finished = (int(rng.integers(0, rng.choice([1, 3, 100, 300]))) for _ in range(3))
        if waiting + decoding == 0:
            continue
        count -= 1
        prompts = rng.integers(1, rng.choice([2, 30, 800]), waiting)
        seen, arrived = prompts[:slots], waiting + decoding + finished
        yield Queue(
            int(seen.size), int(seen.sum()), decoding, waiting, int(prompts.sum()), int(prompts[:1].sum()),
            decoding * int(rng.integers(1, 400)), arrived, int(prompts.sum()) + 90 * (decoding + finished),
            finished, finished * int(rng.integers(0, 300)),
        )  # fmt: skip


# ---------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("batch_time", "budget", "expected"),
    [
        (TP1, 512, [128, 256, 384, 512]),
        (TP1, 300, [128, 256, 300]),
        (TP1, 100, [100]),
        (ps.Hinge(c=0.01, a=0.001, b0=4), 8, [4, 5, 6, 7, 8]),
        (ps.Affine(c=0.01, a=0.001), 5, [1, 2, 3, 4, 5]),
    ],
)
def test_budgets_are_the_loads_at_which_one_more_token_takes_longer(
    batch_time: ps.BatchTime, budget: int, expected: list[int]
) -> None:
    assert budgets(batch_time, budget).tolist() == expected


@pytest.mark.parametrize("batch_time", [ps.PiecewiseConstant(0.01, 0.001, 1), ps.Affine(0.01, 0.001)])
@pytest.mark.parametrize("budget", [41, 100, 8192])
def test_many_budgets_are_thinned_from_the_smallest_to_the_largest(batch_time: ps.BatchTime, budget: int) -> None:
    found = budgets(batch_time, budget)
    assert MOST_BUDGETS / 2 < found.size <= MOST_BUDGETS
    assert (found[0], found[-1]) == (1, budget)
    assert (np.diff(found) > 0).all()
    assert (found[1:] / found[:-1])[20:].max() < 1.4


def rough_tables(seed: int, count: int) -> Iterator[ps.Server]:
    """Draw servers with batch times as measured: rough, some with dips, and more loads than budgets are weighed."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        budget = int(rng.integers(256, 2_048))
        rows = rng.choice(np.arange(2, budget), int(rng.integers(10, 250)), replace=False)
        loads = np.r_[1, np.sort(rows), budget]
        seconds = (0.01 + rng.uniform(2e-5, 4e-4) * loads) * np.exp(rng.normal(0, 0.2, loads.size))
        if rng.random() < 0.5:
            seconds = np.maximum.accumulate(seconds)
        yield ps.Server(ps.Measured(loads, seconds), budget, int(rng.integers(4, budget // 2)), scope="batch")


def test_the_loads_of_every_best_mix_are_weighed() -> None:
    """The region's own linear program says which loads a mix of batches needs, in any direction."""
    thinned = 0
    for server in rough_tables(1, 5):
        weighed = budgets(server.batch_time, server.token_budget, server.max_batch_size)
        thinned += weighed.size < server.token_budget / 2
        for angle in np.linspace(0.0, np.pi / 2, 9):
            direction = (np.cos(angle), abs(np.sin(angle)))
            mix = linear_program(server, direction, prompt=4 * server.token_budget).mix
            assert {batch.prefill_tokens + batch.decode_tokens for batch in mix} <= set(weighed.tolist())
    assert thinned == 5


def test_where_every_load_is_a_corner_a_few_are_weighed_and_lose_a_thousandth_at_most() -> None:
    loads = np.arange(1, 4_097)
    table = ps.Measured(loads, 0.01 + 1e-4 * loads + 1e-8 * loads**2)
    weighed = budgets(table, 4_096, 64)
    assert weighed.size <= 2 * MOST_BUDGETS
    for worth in np.geomspace(1, 1e5, 50):  # of 64 decodes beyond as many prefill tokens, in prefill tokens
        every, some = ((tokens + worth) / table(tokens) for tokens in (loads[63:], weighed[weighed >= 64]))
        assert some.max() >= every.max() * 0.999


def test_parameters_follow_from_the_server_and_those_given_replace_the_first() -> None:
    pool = SERVER.with_policy("pool-controlled")
    assert pool.params[:4] == (90.0, 120.0, 128.0, 256.0)
    assert dataclasses.replace(pool, token_budget=256).params == (90.0, 120.0, 128.0, 256.0)
    assert dataclasses.replace(pool, policy_params=(80, 130)).params[:3] == (80.0, 130.0, 128.0)
    assert dataclasses.replace(pool, policy_params=(80,)).params[:2] == (80.0, 120.0)
    assert SERVER.with_policy("maxweight").params[:4] == (0.0, 0.0, 128.0, 1 / 46.75e-3)
    assert SERVER.params == ()


def test_another_policy_gets_parameters_of_its_own() -> None:
    given = dataclasses.replace(SERVER.with_policy("pool-controlled"), policy_params=(80, 130))
    assert given.with_policy("maxweight").params == SERVER.with_policy("maxweight").params
    assert given.with_policy("pool-controlled").params == SERVER.with_policy("pool-controlled").params


# ---------------------------------------------------------------- MaxWeight


def worth_of_every_batch(queue: Queue, by_prefill: float, by_decode: float) -> Iterator[float]:
    """Yield what each number of decodes and budget is worth, with prompts and without, each as long as on average."""
    others = (queue.prompt_tokens - queue.head_tokens) / max(queue.prompts - 1, 1)
    for budget in range(128, 1025, 128):
        for y in range(min(queue.decoding, 100, budget) + 1):
            n = min(queue.prompts, 100 - y)
            x = min(budget - y, queue.head_tokens + (n - 1) * others) if n else 0
            for prefill in (0, x):
                yield (prefill * by_prefill + y * by_decode) / (SECONDS[math.ceil(prefill + y)] or 1)


@pytest.mark.parametrize("by_tokens", [False, True])
def test_no_batch_is_worth_more_than_that_of_maxweight(by_tokens: bool) -> None:
    """At the size of a real server, by trying all; the means are learnt from the totals."""
    params = np.array(SERVER.with_policy("maxweight").params)
    phases = set()
    for queue in random_queues(7, 150, 100):
        m_p = queue.arrived_tokens / queue.arrived
        m_d = queue.finished_decodes / queue.finished if queue.finished_decodes else 1.0
        z_p, z_d = float(queue.waiting), float(queue.decoding)
        by_prefill, by_decode = (z_p - z_d) / m_p, z_d / m_d
        if by_tokens:
            by_prefill, by_decode = float(queue.waiting_tokens), float(queue.decode_tokens)
        x, y, first = (maxweight_tokens if by_tokens else maxweight)(queue, LIMITS, params)
        others = (queue.prompt_tokens - queue.head_tokens) / max(queue.prompts - 1, 1)
        if first == PREFILL_FIRST:
            n = 1 + max(np.ceil((x - queue.head_tokens) / others - 1e-9), 0) if others and x else min(x, 1)
            y = min(y, queue.decoding, 100 - int(n))
        else:
            n = min(queue.prompts, 100 - y)
            x = min(x, queue.head_tokens + (n - 1) * others) if n else 0
        worth = (x * by_prefill + y * by_decode) / SECONDS[math.ceil(x + y - 1e-9)]
        best = max(worth_of_every_batch(queue, by_prefill, by_decode))
        assert worth >= best * (1 - 1e-9), queue
        phases.add((x > 0, y > 0, first))
    assert len(phases) >= 4, f"these queues are too tame: {phases}"


def test_maxweight_lets_prompts_wait_while_more_requests_decode_than_wait() -> None:
    params = SERVER.with_policy("maxweight").params
    seen = {"waiting": 40, "waiting_tokens": 8_000, "head_tokens": 200, "arrived": 140, "arrived_tokens": 28_000}
    balanced = Queue(40, 8_000, 40, **seen)
    assert ps.POLICIES["maxweight"](balanced, LIMITS, params) == (0, 40, DECODE_FIRST)
    few = balanced._replace(decoding=39)
    assert ps.POLICIES["maxweight"](few, LIMITS, params)[0] > 0


def test_mean_lengths_that_are_given_are_not_learnt() -> None:
    queue = next(queue for queue in random_queues(3, 100, 100) if queue.waiting > queue.decoding > 0 < queue.finished)
    learnt = SERVER.with_policy("maxweight").params
    m_p, m_d = queue.arrived_tokens / queue.arrived, queue.finished_decodes / queue.finished
    blind = queue._replace(arrived_tokens=1, finished_decodes=10**9)
    given = ps.POLICIES["maxweight"](blind, LIMITS, (m_p, m_d, *learnt[2:]))
    assert given == ps.POLICIES["maxweight"](queue, LIMITS, learnt)


def test_a_backlog_of_long_prompts_does_not_keep_maxweight_from_learning_how_short_outputs_are() -> None:
    """It learns from what finishes; were decodes taken to be as long as prompts until then, nothing would."""
    server = ps.Server(ps.PiecewiseConstant(c=6.4e-3, a=12.5e-3, b0=16), 64, 4, "maxweight", "batch", "paper")
    workload = ps.Workload.from_arrays(np.zeros(2_000), np.full(2_000, 2_718), np.full(2_000, 12))
    run = ps.simulate(workload, server, until=60.0)  # 1,061 batches of 60 to 64 prompt tokens: 24 prompts
    assert run.finished >= 10
    misled = dataclasses.replace(server, policy_params=(2_718.0, 2_718.0))
    assert ps.simulate(workload, misled, until=60.0).finished == 0


@pytest.mark.parametrize(
    ("policy", "scope", "slots", "warned"),
    [
        ("maxweight", "running", 64, True),
        ("maxweight-tokens", "running", 64, True),
        ("maxweight", "batch", 64, False),
        ("maxweight", "running", None, False),
        ("pool-controlled", "running", 64, False),
        ("vllm", "running", 64, False),
    ],
)
def test_back_pressure_is_out_of_place_where_the_limit_counts_running_requests(
    policy: str, scope: Literal["batch", "running"], slots: int | None, warned: bool
) -> None:
    warning = ps.Server(TP1, 1024, slots, policy=policy, scope=scope).scope_warning
    assert (warning is not None) == warned
    assert warning is None or warning.startswith(f"{policy} ")


# ---------------------------------------------------------------- pool-controlled budget


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        (89, (935, 89, DECODE_FIRST)),  # below L: the whole budget
        (90, (38, 90, DECODE_FIRST)),  # from L: the smallest budget that fits the decodes
        (99, (29, 99, DECODE_FIRST)),
        (119, (29, 99, DECODE_FIRST)),  # one slot is left to a prompt
        (120, (0, 100, DECODE_FIRST)),  # from U: decodes alone
    ],
)
def test_the_budget_falls_as_the_pool_grows(pool: int, expected: tuple[int, int, int]) -> None:
    params = SERVER.with_policy("pool-controlled").params
    assert ps.POLICIES["pool-controlled"](Queue(50, 9_000, pool), LIMITS, params) == expected


def test_without_prompts_no_slot_is_left_free() -> None:
    params = SERVER.with_policy("pool-controlled").params
    assert ps.POLICIES["pool-controlled"](Queue(0, 0, 110), LIMITS, params) == (0, 100, DECODE_FIRST)


@pytest.mark.parametrize("slots", [1024, 2**40])
def test_where_no_max_batch_size_binds_the_pool_is_not_controlled_whatever_the_parameters(slots: int) -> None:
    """So it is work-conserving there, as it claims."""
    for queue in random_queues(5, 200, slots):
        for params in ((1.0, 2.0, 128.0, 1024.0), SERVER.with_policy("pool-controlled").params):
            limits = Limits(1024, slots)
            assert ps.POLICIES["pool-controlled"](queue, limits, params) == ps.POLICIES["sarathi"](queue, limits)


# ---------------------------------------------------------------- at the prices of the region


def steps_and_tables() -> Iterator[ps.Server]:
    """Yield servers of steps and of rough tables."""
    yield SERVER
    for slots in (1, 4, 128, 200, 1_024):
        yield dataclasses.replace(SERVER, max_batch_size=slots)
    yield from rough_tables(5, 6)


def test_the_best_corner_of_the_prices_is_what_the_region_says_a_request_costs() -> None:
    """Whatever the lengths, as its linear program says; where loads are thinned, to within a thousandth."""
    for server in steps_and_tables():
        slots = min(server.max_batch_size or server.token_budget, server.token_budget)
        loads = budgets(server.batch_time, server.token_budget, slots)
        corners = price_corners(server.batch_time, slots, loads)
        for prompt, output in ((29, 990), (290, 990), (1_516, 30), (60, 15), (9_250, 990)):
            lengths = ps.Geometric(prompt, max=server.token_budget + 8 * prompt)
            scale = linear_program(server, (prompt, output), prompt=lengths).scale
            assert 1 / (corners @ [prompt, 1, output]).max() == pytest.approx(scale, rel=1e-3)


def test_at_no_corner_of_the_prices_a_batch_earns_more_than_its_time() -> None:
    for server in steps_and_tables():
        slots = min(server.max_batch_size or server.token_budget, server.token_budget)
        loads = budgets(server.batch_time, server.token_budget, slots)
        for token, end, step in price_corners(server.batch_time, slots, loads):
            for load in loads.tolist():
                decodes = np.arange(min(slots, load) + 1)
                prompts = np.minimum(slots - decodes, load - decodes)
                prefill = np.where(prompts > 0, load - decodes, 0)
                seconds = server.batch_time(np.maximum(prefill + decodes, 1))
                assert (prefill * token + prompts * end + decodes * step <= seconds * (1 + 1e-9)).all()


def priced_worth(queue: Queue, batch: tuple[float, int], prices: tuple[float, float, float]) -> float:
    """Return what so many prefill tokens and decodes are worth per second, prompts as long as on average."""
    x, y = batch
    others = max((queue.prompt_tokens - queue.head_tokens) / max(queue.prompts - 1, 1), 1)
    ends = (x >= queue.head_tokens) + max(x - queue.head_tokens, 0) / others if x else 0
    token, end, step = prices
    return (x * token + ends * end + y * step) / (SECONDS[math.ceil(x + y - 1e-9)] or 1)


def test_no_batch_is_worth_more_than_the_priced_one() -> None:
    """By trying all numbers of prompts and budgets at the size of a real server, under one corner of prices."""
    server = SERVER.with_policy("priced")
    dear_decodes = (277e-6, 0.0, 391e-6), (16e-6, 0.0, 467e-6), (0.0, 467e-6, 467e-6)
    for token, end, step in (*dear_decodes, (391e-6, 0.0, 277e-6), (300e-6, 9e-3, 200e-6)):
        params = np.array([*server.params[:2], 120.0, 0.0, 0.0, 1.0, token, end, step, *server.params[-16:]])
        queues = list(random_queues(8, 100, 100))
        queues += [Queue(1, n, d, 1, n, n, 0, 9, 900) for n in (1, 50, 290, 2_000) for d in (0, 30, 99, 150)]
        for queue in queues:
            others = max((queue.prompt_tokens - queue.head_tokens) / max(queue.prompts - 1, 1), 1)
            x, y, _ = ps.POLICIES["priced"](queue, LIMITS, params)
            n = 1 + max(math.ceil((x - queue.head_tokens) / others - 1e-6), 0) if x else 0
            worth = priced_worth(queue, (x, min(y, 100 - n)), (token, end, step))
            best = 0.0
            for budget in range(128, 1_025, 128):
                for n in range(min(queue.prompts, 100) + 1):
                    hold = queue.head_tokens + (n - 1) * others if n else 0.0
                    most = min(queue.decoding, 100 - n, budget)
                    for decodes in {most, max(min(most, budget - math.ceil(hold)), 0)}:
                        batch = (min(hold, budget - decodes), decodes)
                        best = max(best, priced_worth(queue, batch, (token, end, step)))
            assert worth >= best * (1 - 1e-2), (queue, x, y)


@pytest.mark.parametrize(
    ("decoding", "expected"),
    [
        (0, (1024, 0)),  # nobody decodes: prompts
        (80, (48, 80)),
        (105, (29, 99)),  # up to the stock, each batch has a prompt
        (150, (0, 100)),  # beyond it none has
    ],
)
def test_the_more_decode_the_less_prefill_a_priced_batch_has(decoding: int, expected: tuple[int, int]) -> None:
    params = dataclasses.replace(SERVER.with_policy("priced"), policy_params=(290, 2_000)).params
    queue = Queue(50, 14_500, decoding, head_tokens=290)
    assert ps.POLICIES["priced"](queue, LIMITS, params) == (*expected, PREFILL_FIRST)


def test_where_running_requests_count_decodes_leave_places_to_prompts() -> None:
    assert dataclasses.replace(SERVER.with_policy("priced"), scope="running").params[2] == 95.0
    assert dataclasses.replace(SERVER.with_policy("priced"), max_batch_size=4, scope="running").params[2] == 2.5
    assert SERVER.with_policy("priced").params[2] == 120.0


# ---------------------------------------------------------------- what a policy looks at


def helper(queue):  # type: ignore[no-untyped-def]
    return queue.decoding


def alias(queue, limits, params):  # type: ignore[no-untyped-def]
    q = queue
    return q.prompt_tokens, q.decoding, DECODE_FIRST


def passed_on(queue, limits, params):  # type: ignore[no-untyped-def]
    return queue.prompt_tokens, helper(queue), DECODE_FIRST


def unpacked(queue, limits, params):  # type: ignore[no-untyped-def]
    _, tokens, decoding, *_ = queue
    return tokens, decoding, DECODE_FIRST


def by_number(queue, limits, params):  # type: ignore[no-untyped-def]
    return queue[1], queue[2], DECODE_FIRST


def inner(queue, limits, params):  # type: ignore[no-untyped-def]
    return (lambda: queue.prompt_tokens)(), queue.decoding, DECODE_FIRST


def method(queue, limits, params):  # type: ignore[no-untyped-def]
    return queue.count(3), queue.decoding, DECODE_FIRST


@pytest.mark.parametrize("function", [alias, passed_on, unpacked, by_number, inner, method])
def test_what_cannot_be_told_is_taken_for_everything(function) -> None:  # type: ignore[no-untyped-def]
    assert fields_read(function) == set(Queue._fields)
    assert ps.Policy("odd", function).sees == 2


def test_a_policy_looks_at_the_fields_that_it_names() -> None:
    assert ps.POLICIES["sarathi"].reads == {"decoding", "prompt_tokens"}
    assert fields_read(lambda q, _, p: (q.waiting, q.finished, 0)) == {"waiting", "finished"}
    sees = {name: policy.sees for name, policy in ps.POLICIES.items()}
    assert (sees["orca"], sees["maxweight"], sees["maxweight-tokens"], sees["pool-controlled"]) == (0, 1, 2, 0)
