"""Layer profiles become batch times: exact where measured, straight lines between, refused beyond.

So do those of deployments of several accelerators, which benchmarks/studies/real_runs.py makes of them.
"""

import gzip
import itertools
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.studies.real_runs import Deployment, Link, dealt
from paper.batches import Batches, draw_batches
from paper.layer_times import Grid, LayerTimes, read_llmservingsim, read_vidur

VIDUR = Path(__file__).parents[3] / "shared" / "data" / "profiling" / "vidur" / "a100"
LENGTHS = np.array([30, 700, 3_000]), np.array([400, 10, 90])
LINK = Link(bandwidth=16e9, latency=20e-6, token_bytes=10_240)

# What the planted profile costs, in microseconds: in one layer by tokens; attention at least, per pair of tokens, per
# token before a decode (alone, and beside a prompt), per token by which one request outlasts the others; per request.
DENSE, FLOOR, PAIR, ALONE, BESIDE, OUTLASTS, REQUEST = 0.5, 8.0, 1e-4, 0.004, 0.008, 0.02, 3.0
LAYERS = 10


def attention_us(chunk: int, before: int, n: int, each: int) -> float:
    read = max(PAIR * chunk, BESIDE) * before  # a few tokens take as long as reading those before them
    if not chunk:
        return FLOOR + ALONE * n * each
    return FLOOR + read + BESIDE * n * each + OUTLASTS * (max(before - each, 0) if n else 0)


def dense_us(tokens: int) -> float:
    """Norms stand twice in a layer; embedding and last norm once in the model."""
    return LAYERS * (DENSE * tokens + 10 + 2 * (0.01 * tokens + 5)) + 0.2 * tokens + 10


@pytest.fixture
def profile(tmp_path: Path) -> LayerTimes:
    """Write a profile of which every time is known, and read it."""
    layers = {"qkv_proj": DENSE / 2, "mlp": DENSE / 2, "layernorm": 0.01, "embedding": 0.1, "final_layernorm": 0.1}
    axes = (0, 16, 256, 2048), (0, 512, 1024, 2048, 4096, 8192), (0, 1, 16, 128), (0, 16, 512, 1024, 2048, 4096)
    at = [(c, p, n, e) for c, p, n, e in itertools.product(*axes) if (c or n) and (c or not p) and bool(n) == bool(e)]
    for name, columns, rows in (
        ("dense", ["layer", "tokens"],
         [(layer, b, us * b + 5) for layer, us in layers.items() for b in (1, 16, 64, 256, 1024, 2048)]),
        ("per_sequence", ["layer", "sequences"],
         [(layer, k, REQUEST / 2 * k + 50) for layer in ("lm_head", "sampler") for k in (1, 64, 256)]),
        ("attention", ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode"], [(*x, attention_us(*x)) for x in at]),
    ):  # fmt: skip
        text = pl.DataFrame(rows, [*columns, "time_us"], orient="row").write_csv()
        (tmp_path / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
    return read_llmservingsim(tmp_path, LAYERS)


def batch(prefill=(), decode=()) -> Batches:
    """Return one batch: (new tokens, tokens before them) of each prompt, and the tokens before each decode."""
    new, before = np.array(prefill, float).reshape(-1, 2).T
    held = np.array(decode, float)
    sums = (np.array([float(value)]) for value in (held.size, held.sum(), held.max(initial=0.0)))
    return Batches(*sums, np.zeros(new.size, np.int64), new, before)


def seconds(times: LayerTimes | Deployment, prefill=(), decode=()) -> float:
    return float(times.of(batch(prefill, decode))[0])


def test_a_batch_takes_the_sum_over_all_layers(profile) -> None:
    expected = dense_us(256 + 16) + LAYERS * attention_us(256, 512, 16, 1024) + REQUEST * 17 + 100
    assert seconds(profile, [(256, 512)], [1024] * 16) == pytest.approx(expected / 1e6)


def test_decodes_alone_have_attention_times_of_their_own(profile) -> None:
    expected = dense_us(100) + LAYERS * attention_us(0, 0, 100, 700) + REQUEST * 100 + 100
    assert seconds(profile, (), [600] * 50 + [800] * 50) == pytest.approx(expected / 1e6)


def test_prompts_add_up_above_one_empty_kernel(profile) -> None:
    expected = dense_us(512) + LAYERS * (FLOOR + PAIR * 256 * (512 + 4096)) + REQUEST * 2 + 100
    assert seconds(profile, [(256, 512), (256, 4096)]) == pytest.approx(expected / 1e6)


def test_a_decode_that_outlasts_the_others_costs_what_the_profile_says_of_a_prompt_that_does(profile) -> None:
    even = seconds(profile, [(16, 0)], [1024] * 16)
    uneven = seconds(profile, [(16, 0)], [4096, *[819] * 14, 822])  # as many tokens in all
    assert uneven - even == pytest.approx(OUTLASTS * (4096 - 819) * LAYERS / 1e6, rel=0.05)
    assert seconds(profile, [(16, 0)], [1023, 1025] * 8) == pytest.approx(even, rel=2e-3)


def test_a_batch_beyond_the_profile_is_refused(profile) -> None:
    with pytest.raises(ValueError, match="beyond"):
        seconds(profile, [(2049, 0)])


def test_the_head_goes_on_in_a_straight_line_beyond_the_most_requests_that_were_profiled(profile) -> None:
    """256 requests were; each further one costs as much as those before."""
    more, fewer = seconds(profile, (), [100] * 400), seconds(profile, (), [100] * 300)
    assert more - fewer == pytest.approx((LAYERS * (DENSE + 0.02 + ALONE * 100) + 0.2 + REQUEST) * 100 / 1e6)


def test_accelerators_that_share_layers_pass_activations_on_twice_in_each(profile) -> None:
    passed_on = (2 * LAYERS + 1) * (LINK.latency + 1000 * LINK.token_bytes / LINK.bandwidth)
    two = Deployment(profile, tensor_parallel=2, link=LINK)
    assert seconds(two, [(1000, 0)]) - seconds(profile, [(1000, 0)]) == pytest.approx(passed_on)


def test_ranks_that_share_experts_take_their_batches_in_step(profile) -> None:
    """Two ranks with half of the decodes each, half of the experts each, and the activations of the other."""
    at = np.array(list(itertools.product((2, 64, 2048), (8, 64, 128))), float)
    experts = Grid(at, (2 * at[:, 1] + 0.1 * at[:, 0]) / 1e6)
    two = Deployment(profile, data_parallel=2, link=Link(16e9, 20e-6, 4096), experts=experts)
    at_work = 128 * (1 - (1 - 8 / 128) ** 64) / 2
    one_rank = dense_us(32) + LAYERS * attention_us(0, 0, 32, 1024) + REQUEST * 32 + 100
    exchange = LAYERS * 2 * (20 + 32 * 4096 / 16e9 * 1e6)
    expected = one_rank + LAYERS * (2 * at_work + 0.1 * 32) + exchange
    assert seconds(two, (), [1024] * 64) == pytest.approx(expected / 1e6)
    assert seconds(two, [(1000, 0), (10, 0)]) > seconds(two, [(505, 0), (505, 0)]), "the slower rank is waited for"


@given(st.integers(2, 600), st.integers(1, 80), st.sampled_from([np.inf, 50, 3_000, 20_000]), st.integers(0, 5))
def test_drawn_batches_keep_to_the_limits(budget, slots, kv_tokens, seed) -> None:
    drawn = draw_batches(
        *LENGTHS, token_budget=budget, max_batch_size=slots, kv_tokens=kv_tokens, count=64, seed=seed
    )  # fmt: skip
    assert (drawn.tokens <= budget).all()
    assert (drawn.tokens > 0).all()
    assert (drawn.decodes <= slots).all()
    assert (drawn.longest * drawn.decodes >= drawn.context).all()
    assert (drawn.new >= 1).all()
    assert (drawn.context <= kv_tokens).all()


@given(st.integers(1, 5), st.integers(0, 5))
def test_dealing_a_batch_out_to_ranks_loses_nothing(ranks, seed) -> None:
    drawn = draw_batches(*LENGTHS, token_budget=500, max_batch_size=50, count=32, seed=seed)
    parts = dealt(drawn, ranks)
    for name in ("prefill", "decodes", "context"):
        assert getattr(parts, name).reshape(-1, ranks).sum(axis=1) == pytest.approx(getattr(drawn, name))
    assert np.ptp(parts.decodes.reshape(-1, ranks), axis=1).max() <= 1


def test_a_grid_fills_what_is_missing_along_its_last_axis_and_drops_what_else_is() -> None:
    rows = [(x, y) for x in (1, 2, 4) for y in (0, 10, 20, 40) if (x, y) not in ((2, 20), (4, 40))] + [(3, 15)]
    at = np.array(rows, float)
    grid = Grid(at, at[:, 0] * (1 + at[:, 1]))
    assert grid.axes[0].tolist() == [1, 2, 4]
    assert grid(np.array([2.0, 4.0, 1.0]), np.array([20.0, 80.0, -5.0])) == pytest.approx([42, 324, 1])


def test_batches_count_what_a_model_needs_and_those_chosen_keep_their_prompts() -> None:
    batches = Batches(np.array([2.0, 0.0]), np.array([50.0, 0.0]), np.array([40.0, 0.0]), np.array([0, 1, 1]),
                      np.array([5.0, 7.0, 2.0]), np.array([0.0, 3.0, 0.0]))  # fmt: skip
    assert batches.prefill.tolist() == [5, 9]
    assert batches.requests.tolist() == [3, 2]
    assert batches.squares.tolist() == [25, 53]
    assert batches.pairs.tolist() == [0, 21]
    second = batches.take(np.array([False, True]))
    assert (second.tokens.tolist(), second.new.tolist(), second.batch.tolist()) == ([9], [7, 2], [0, 0])


@pytest.mark.skipif(not VIDUR.exists(), reason="the published layer profiles are not beside the repository")
def test_vidurs_attention_kernels_add_up() -> None:
    mlp = VIDUR / "codellama" / "CodeLlama-34b-Instruct-hf" / "mlp.csv.gz"
    plain = read_vidur(mlp, 48, 2)
    whole = read_vidur(mlp, 48, 2, VIDUR / "attention_gqa64q8kv_tp2.csv.gz")
    prefill, decode = [(512, 1024)], [1000] * 32
    both = seconds(whole, prefill, decode) - seconds(plain, prefill, decode)
    apart = seconds(whole, prefill) - seconds(plain, prefill) + seconds(whole, (), decode) - seconds(plain, (), decode)
    assert both == pytest.approx(apart)
    assert 0.01 < both / seconds(plain, prefill, decode) < 0.5
