"""The exact region is that of the program with all batches and residual lengths written out, and below the region."""

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import linprog

import penstock as ps
from penstock.errors import InputError
from penstock.inputs.arrays import Floats
from penstock.theory.exact_region import exact_outline, exact_region, solve


def written_out(seconds: Floats, slots: int, chances: Floats, decodes: float) -> float:
    """Return the requests/s of the program over every batch and what is left of every prompt."""
    longest, budget = chances.size - 1, seconds.size - 1
    pieces = [(left, size) for left in range(1, longest + 1) for size in range(1, min(left, budget) + 1)]
    columns = []
    for places in range(slots + 1):
        for chosen in itertools.combinations_with_replacement(pieces, places):
            tokens = sum(size for _, size in chosen)
            for beside in range(min(slots - places, budget - tokens) + 1):
                if tokens + beside:
                    column = np.zeros(longest + 1)
                    for left, size in chosen:
                        column[left - 1] -= 1
                        if left > size:
                            column[left - size - 1] += 1
                        else:
                            column[longest] += decodes
                    column[longest] -= beside
                    columns.append(column / seconds[tokens + beside])
    rows = np.column_stack([np.append(chances[1:], 0.0), np.array(columns).T])
    rows = np.vstack([rows, np.append(0.0, np.ones(len(columns)))])
    limits = np.append(np.zeros(longest + 1), 1.0)
    return -float(linprog(np.append(-1.0, np.zeros(len(columns))), A_ub=rows, b_ub=limits, method="highs").fun)


def system(seed: int) -> tuple[Floats, int, Floats, float]:
    """Draw a small system: seconds by token load, places, chances of prompts, mean decodes."""
    rng = np.random.default_rng([46, seed])
    longest, budget = int(rng.integers(1, 7)), int(rng.integers(1, 6))
    seconds = np.append(0.0, np.sort(rng.uniform(0.1, 3, budget)))
    return seconds, int(rng.integers(1, 4)), np.append(0.0, rng.dirichlet(np.ones(longest))), float(rng.uniform(0.2, 8))


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 240), marks=pytest.mark.slow)], ids=["40", "200"])
def test_columns_that_are_generated_find_the_rate_of_the_program_that_has_all_of_them(seeds: range) -> None:
    for seed in seeds:
        drawn = system(seed)
        exact = solve(*drawn, gap=1e-10)
        assert exact.rate == pytest.approx(written_out(*drawn), rel=1e-9), seed
        assert exact.rate <= exact.upper * (1 + 1e-9)
        assert exact.upper == pytest.approx(exact.rate, rel=1e-8)


def test_no_batch_earns_more_than_its_time_at_its_prices() -> None:
    for seed in range(20):
        seconds, slots, chances, decodes = system(seed)
        exact = solve(seconds, slots, chances, decodes, gap=1e-10)
        prices = exact.piece_prices
        assert (np.diff(prices) >= -1e-9).all()
        for places in range(slots + 1):
            for chosen in itertools.combinations_with_replacement(range(1, prices.size), places):
                for beside in range(slots - places + 1):
                    load = sum(chosen) + beside
                    if 0 < load < seconds.size:
                        assert prices[list(chosen)].sum() + exact.decode_price * beside <= seconds[load] * (1 + 1e-9)
        for tokens in range(1, chances.size):
            whole = [
                prices[size] + exact.prompt_prices[tokens - size] for size in range(1, min(tokens, prices.size - 1) + 1)
            ]
            assert exact.prompt_prices[tokens] == pytest.approx(min(whole))
        assert chances @ exact.prompt_prices + exact.decode_price * decodes == pytest.approx(1 / exact.upper)


def test_a_prompt_of_three_tokens_takes_two_batches_of_two_where_the_region_says_one_and_a_half() -> None:
    server = ps.Server(ps.Affine(1.0, 0.0), 2, 1, scope="batch", convention="paper")
    lengths = {"prompt": 3, "output": 1}
    assert ps.region(server, **lengths).max_rate == pytest.approx(1 / 2.5)
    assert exact_region(server, **lengths).rate == pytest.approx(1 / 3)


def test_as_lengths_grow_the_region_becomes_exact() -> None:
    server = ps.Server(ps.PiecewiseConstant(c=1.5e-3, a=4.2e-3, b0=16), 16, 4, scope="batch", convention="paper")
    shares = []
    for times in (4, 16, 64):
        lengths = {"prompt": 7 * times, "output": 6 * times}
        region = ps.region(server, **lengths).max_rate
        exact = exact_region(server, **lengths, gap=1e-6)
        assert exact.rate <= region * (1 + 1e-9)
        assert exact.upper >= region * 7 * times / (7 * times + 15)  # (c): no piece is larger than a batch
        shares.append(exact.rate / region)
    assert shares == sorted(shares)
    assert shares[-1] > 0.995


def test_where_a_larger_batch_is_faster_the_bounds_lie_on_both_sides_of_what_is_carried() -> None:
    falling = ps.Measured([1, 2, 3, 4, 8], [0.01, 0.01, 0.01, 0.01, 0.005])
    server = ps.Server(falling, 8, 8, scope="batch", convention="paper")
    exact = exact_region(server, prompt=8, output=1)
    region = ps.region(server, prompt=8, output=1).max_rate
    assert exact.rate < region
    assert exact.upper == pytest.approx(region)


def test_what_cannot_be_priced_is_refused_in_one_line() -> None:
    small = ps.Server(ps.Affine(1.0, 0.0), 64, 8, scope="batch")
    large = ps.Server(ps.Affine(1.0, 0.0), 8192, 1024, scope="batch")
    for server, prompt, said in (
        (small, ps.Geometric(9), "no upper limit"),
        (large, ps.Uniform(1, 9000), "takes too long"),
    ):
        with pytest.raises(InputError, match=said):
            exact_region(server, prompt=prompt, output=9)


def best_of_all_policies(seconds: Floats, slots: int, prompt: int, decodes: float, most: int = 10) -> float:
    """Return what the best policy carries of prompts of one length and geometric outputs, from a store of prompts
    without end, that keeps up to 3 prompts of each length partly done, and ``most`` decoding.

    Relative value iteration of the semi-Markov decision process, each batch a step, in units of the shortest batch.
    """
    budget = seconds.size - 1
    states = list(itertools.product(*[range(4)] * (prompt - 1), range(most + 1)))
    index = {state: number for number, state in enumerate(states)}
    shortest = seconds[1:].min() / 2
    choices: list[list[tuple[float, list[tuple[int, float]]]]] = []
    pieces = [(left, size) for left in range(1, prompt + 1) for size in range(1, min(left, budget) + 1)]
    for state in states:
        here = []
        for places in range(slots + 1):
            for chosen in itertools.combinations_with_replacement(pieces, places):
                tokens = sum(size for _, size in chosen)
                left = list(state)
                for before, size in chosen:
                    if before < prompt:
                        left[before - 1] -= 1
                    left[before - size - 1 if before > size else -1] += 1
                taken = [sum(before == each for before, _ in chosen) for each in range(1, prompt)]
                short = any(used > there for used, there in zip(taken, state[:-1], strict=True))
                if tokens > budget or short or any(count > 3 for count in left[:-1]):
                    continue
                for beside in range(min(slots - places, budget - tokens, state[-1]) + 1):
                    if tokens + beside == 0:
                        continue
                    nexts = []
                    for ended in range(beside + 1):
                        chance = (
                            math.comb(beside, ended) * (1 / decodes) ** ended * (1 - 1 / decodes) ** (beside - ended)
                        )
                        then = (*left[:-1], left[-1] - ended)
                        if then[-1] <= most:
                            nexts.append((index[then], chance))
                    if sum(chance for _, chance in nexts) > 1 - 1e-12:
                        lasted = float(seconds[tokens + beside])
                        here.append((beside / decodes / lasted, [(then, p * shortest / lasted) for then, p in nexts]))
        choices.append(here)
    wide = max(map(len, choices))
    reward, moves = np.full((len(states), wide), -np.inf), np.zeros((len(states), wide, len(states)))
    for number, here in enumerate(choices):
        for place, (earned, nexts) in enumerate(here):
            reward[number, place] = earned
            for then, chance in nexts:
                moves[number, place, then] += chance
            moves[number, place, number] += 1 - sum(chance for _, chance in nexts)
    value = np.zeros(len(states))
    for _ in range(20_000):
        new = (reward * shortest + moves @ value).max(axis=1)
        change = new - value
        value = new - new[0]
        if np.ptp(change) < 1e-7 * shortest:
            break
    return float(change.min() / shortest)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_the_best_of_all_policies_of_a_tiny_server_comes_near_it_and_is_never_above(seed: int) -> None:
    rng = np.random.default_rng([46, 1, seed])
    budget, slots, prompt = int(rng.integers(2, 4)), int(rng.integers(1, 3)), int(rng.integers(2, 4))
    seconds = np.append(0.0, np.sort(rng.uniform(0.5, 2, budget)))
    decodes = float(rng.uniform(1.2, 3))
    chances = np.zeros(prompt + 1)
    chances[prompt] = 1.0
    exact = solve(seconds, slots, chances, decodes, gap=1e-9)
    best = best_of_all_policies(seconds, slots, prompt, decodes)
    assert best <= exact.upper * (1 + 1e-5)
    assert best > 0.97 * exact.rate


def test_the_outline_is_convex_below_the_region_and_through_what_is_known() -> None:
    batch_time = ps.PiecewiseConstant(2.8e-3, 1.1e-3, 16)
    server = ps.Server(batch_time, 64, 4, scope="batch", convention="paper")
    workload = ps.Workload.poisson(40.0, ps.Geometric(17, max=136), ps.Geometric(11, max=88))
    known = ps.exact_region(server, prompt=workload.lengths)
    outline = exact_outline(server, workload.lengths, known)
    region = ps.region(server, prompt=workload.lengths)
    for prefill, decode in outline:
        assert region.margin((prefill, decode)) >= -1e-9
    along = known.rate * np.array([workload.mean_prompt, workload.mean_output])
    assert np.isclose(outline, along).all(axis=1).any()
    steps = np.diff(outline, axis=0)
    turns = steps[:-1, 0] * steps[1:, 1] - steps[:-1, 1] * steps[1:, 0]
    assert (turns > -1e-2 * np.prod(outline.max(axis=0))).all(), "to within the gap, it turns to one side"
