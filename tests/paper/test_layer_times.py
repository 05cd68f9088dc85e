"""Layer profiles become batch times: exact where measured, straight lines between, refused beyond."""

import gzip
import itertools
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paper.attention import Grid
from paper.batches import BatchContents, draw_batches
from paper.layer_times import LayerTimes, Link
from paper.profiles import read_llmservingsim, read_vidur

from penstock.errors import InputError
from penstock.system.batch_time_file import read_batch_time, write_batch_time

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "profiling"
with_profiles = pytest.mark.skipif(
    not SHARED.exists(), reason="the published layer profiles are not beside the repository"
)
PROFILED = (
    ("RTX4090/meta-llama/Llama-3.1-8B/bf16/tp1", 32, 256, 41_000),
    ("RTXPRO6000/meta-llama/Llama-3.1-8B/bf16/tp1", 32, 128, None),
    ("RTXPRO6000/Qwen/Qwen3-32B/bf16/tp2", 64, 128, None),
)
LINK = Link(bandwidth=16e9, latency=20e-6, token_bytes=10_240)

# What the planted profile costs, in microseconds: in one layer by tokens; attention at least, per pair of tokens, per
# token before a decode (alone, and beside a prompt), per token by which one request outlasts the others; per request.
DENSE, FLOOR, PAIR, ALONE, BESIDE, OUTLASTS, REQUEST = 0.5, 8.0, 1e-4, 0.004, 0.008, 0.02, 3.0
LAYERS = 10


def attention_us(chunk, before, n, each):
    read = max(PAIR * chunk, BESIDE) * before  # a few tokens take as long as reading those before them
    if not chunk:
        return FLOOR + ALONE * n * each
    return FLOOR + read + BESIDE * n * each + OUTLASTS * (max(before - each, 0) if n else 0)


def write_profile(folder: Path, *, experts: bool = False) -> Path:
    """Write a profile of which every time is known."""
    folder.mkdir(parents=True)
    loads = [1, 16, 64, 256, 1024, 2048]
    layers = {"qkv_proj": DENSE / 2, "mlp": DENSE / 2, "layernorm": 0.01, "embedding": 0.1, "final_layernorm": 0.1}
    dense = [f"{layer},{b},{us * b + 5}" for layer, us in layers.items() for b in loads]
    (folder / "dense.csv").write_text("\n".join(["layer,tokens,time_us", *dense]) + "\n")
    heads = [f"{layer},{k},{REQUEST / 2 * k + 50}" for layer in ("lm_head", "sampler") for k in (1, 64, 256)]
    with gzip.open(folder / "per_sequence.csv.gz", "wt") as file:
        file.write("\n".join(["layer,sequences,time_us", *heads]) + "\n")
    axes = (0, 16, 256, 2048), (0, 512, 1024, 2048, 4096, 8192), (0, 1, 16, 128), (0, 16, 512, 1024, 2048, 4096)
    at = list(itertools.product(*axes))
    at = [(c, p, n, e) for c, p, n, e in at if (c or n) and (c or not p) and bool(n) == bool(e)]
    rows = [",".join(map(str, (*row, attention_us(*row)))) for row in at]
    (folder / "attention.csv").write_text("\n".join(["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", *rows]))
    if experts:
        rows = [f"{t},{e},{2 * e + 0.1 * t}" for t in (2, 64, 2048) for e in (8, 64, 128)]
        (folder / "moe.csv").write_text("\n".join(["tokens,activated_experts,time_us", *rows]))
    return folder


@pytest.fixture
def profile(tmp_path: Path) -> LayerTimes:
    return read_llmservingsim(write_profile(tmp_path / "tp1"), LAYERS)


def dense_us(tokens: int) -> float:
    """Norms stand twice in a layer; embedding and last norm once in the model."""
    return LAYERS * (DENSE * tokens + 10 + 2 * (0.01 * tokens + 5)) + 0.2 * tokens + 10


def test_a_batch_takes_the_sum_over_all_layers(profile) -> None:
    expected = dense_us(256 + 16) + LAYERS * attention_us(256, 512, 16, 1024) + REQUEST * 17 + 100
    assert profile.seconds([(256, 512)], [1024] * 16) == pytest.approx(expected / 1e6)


def test_decodes_alone_have_attention_times_of_their_own(profile) -> None:
    expected = dense_us(100) + LAYERS * attention_us(0, 0, 100, 700) + REQUEST * 100 + 100
    assert profile.seconds((), [600] * 50 + [800] * 50) == pytest.approx(expected / 1e6)


def test_prompts_add_up_above_one_empty_kernel(profile) -> None:
    expected = dense_us(512) + LAYERS * (FLOOR + PAIR * 256 * (512 + 4096)) + REQUEST * 2 + 100
    assert profile.seconds([(256, 512), (256, 4096)]) == pytest.approx(expected / 1e6)


def test_a_decode_that_outlasts_the_others_costs_what_the_profile_says_of_a_prompt_that_does(profile) -> None:
    even = profile.seconds([(16, 0)], [1024] * 16)
    uneven = profile.seconds([(16, 0)], [4096, *[819] * 14, 822])  # as many tokens in all
    outlasts = OUTLASTS * (4096 - 819) * LAYERS / 1e6
    assert uneven - even == pytest.approx(outlasts, rel=0.05)
    assert profile.seconds([(16, 0)], [1023, 1025] * 8) == pytest.approx(even, rel=2e-3)


def test_a_batch_beyond_the_profile_is_refused(profile) -> None:
    with pytest.raises(InputError, match="beyond"):
        profile.seconds([(2049, 0)])


def test_the_head_goes_on_in_a_straight_line_beyond_the_most_requests_that_were_profiled(profile) -> None:
    """256 requests were; each further one costs as much as those before."""
    more, fewer = profile.seconds((), [100] * 400), profile.seconds((), [100] * 300)
    assert more - fewer == pytest.approx((LAYERS * (DENSE + 0.02 + ALONE * 100) + 0.2 + REQUEST) * 100 / 1e6)


def test_experts_in_all_and_per_token_may_be_given_where_the_profile_does_not_begin_with_one_token(tmp_path) -> None:
    """The profile goes from 8 to 128 experts at work; each token is sent to 4 of 64."""
    folder = write_profile(tmp_path / "tp1", experts=True)
    told, guessed = (
        read_llmservingsim(folder, LAYERS, **counts) for counts in ({"experts": 64, "experts_per_token": 4}, {})
    )
    at_work = [e * (1 - (1 - k / e) ** 16) for e, k in ((64, 4), (128, 8))]
    assert told.seconds([(16, 0)]) - guessed.seconds([(16, 0)]) == pytest.approx(
        LAYERS * 2 * (at_work[0] - at_work[1]) / 1e6
    )
    with pytest.raises(InputError, match="experts_per_token"):
        read_llmservingsim(folder, LAYERS, experts_per_token=0)


def test_a_batch_time_file_names_the_profile_and_not_the_folders_above_it(profile, tmp_path) -> None:
    file = profile.composition([500, 900], [100, 50], max_batch_size=32, count=200).as_file("a planted profile")
    assert file.source == "tp1 (layer profile of LLMServingSim)"


def test_an_empty_batch_is_refused(profile) -> None:
    with pytest.raises(InputError, match="serves somebody"):
        profile.seconds()


def test_accelerators_that_share_layers_pass_activations_on_twice_in_each(profile, tmp_path) -> None:
    shared = read_llmservingsim(write_profile(tmp_path / "tp2"), LAYERS, link=LINK)
    passed_on = (2 * LAYERS + 1) * (LINK.latency + 1000 * LINK.token_bytes / LINK.bandwidth)
    assert shared.tensor_parallel == 2
    assert shared.seconds([(1000, 0)]) - profile.seconds([(1000, 0)]) == pytest.approx(passed_on)


def test_ranks_that_share_experts_take_their_batches_in_step(tmp_path) -> None:
    """Two ranks with half of the decodes each, half of the experts each, and the activations of the other."""
    folder = write_profile(tmp_path / "tp1", experts=True)
    link = Link(16e9, 20e-6, 4096)
    two = read_llmservingsim(folder, LAYERS, data_parallel=2, link=link)
    at_work = 128 * (1 - (1 - 8 / 128) ** 64) / 2
    one_rank = dense_us(32) + LAYERS * attention_us(0, 0, 32, 1024) + REQUEST * 32 + 100
    experts = LAYERS * (2 * at_work + 0.1 * 32)
    exchange = LAYERS * 2 * (20 + 32 * 4096 / 16e9 * 1e6)
    assert two.seconds((), [1024] * 64) == pytest.approx((one_rank + experts + exchange) / 1e6)


def test_a_step_of_ranks_lasts_until_the_slowest_is_done(tmp_path) -> None:
    two = read_llmservingsim(write_profile(tmp_path / "tp1", experts=True), LAYERS, data_parallel=2, link=LINK)
    assert two.seconds([(1000, 0), (10, 0)]) > two.seconds([(505, 0), (505, 0)])


def test_the_composition_fitted_to_a_profile_has_the_costs_that_were_planted(profile) -> None:
    """Beside prompts decodes cost more than planted, by what the one that outlasts the others adds on average."""
    rng = np.random.default_rng(0)
    prompt, output = rng.integers(100, 3_000, 200), rng.integers(100, 900, 200)
    fit = profile.composition(prompt, output, max_batch_size=100, token_budget=1_024, count=2_000)
    model = fit.model
    assert model.per_request == pytest.approx(REQUEST / 1e6, rel=0.2)
    assert model.decode_attention == pytest.approx(LAYERS * ALONE / 1e6, rel=0.03)
    assert model.cross_attention == pytest.approx(LAYERS * PAIR / 1e6, rel=0.05)
    assert 1 < model.mixed_attention / (LAYERS * BESIDE / 1e6) < 1.1
    assert np.abs(np.quantile(fit.errors, [0.01, 0.99])).max() < 0.03


def test_a_fitted_composition_is_kept_in_a_batch_time_file(profile, tmp_path) -> None:
    fit = profile.composition([500, 900], [100, 50], max_batch_size=32, count=400)
    write_batch_time(tmp_path / "fit.yaml", fit.as_file("a planted profile"))
    again = read_batch_time(tmp_path / "fit.yaml")
    of = ([(300, 0)], [1_000, 2_000])
    assert again.batch_time.of_batch(*of) == pytest.approx(fit.model.of_batch(*of))
    assert again.fit["layers"] == LAYERS
    assert set(again.fit["relative_error"]) == {"1%", "5%", "50%", "95%", "99%"}


def test_the_same_seed_gives_the_same_composition(profile) -> None:
    first, again, other = (
        profile.composition([500, 900], [100, 50], max_batch_size=32, count=200, seed=seed).model for seed in (3, 3, 4)
    )
    assert first == again != other


@given(
    st.integers(2, 600), st.integers(1, 80), st.one_of(st.none(), st.integers(1, 20_000)), st.integers(0, 5),
)  # fmt: skip
def test_drawn_batches_keep_to_the_limits(budget, slots, kv_tokens, seed) -> None:
    drawn = draw_batches([30, 700, 3_000], [400, 10, 90], token_budget=budget, max_batch_size=slots,
                         kv_tokens=kv_tokens, count=64, seed=seed)  # fmt: skip
    assert (drawn.prefill + drawn.decodes <= budget).all()
    assert (drawn.prefill + drawn.decodes > 0).all()
    assert (drawn.decodes <= slots).all()
    assert (drawn.longest * drawn.decodes >= drawn.context).all()
    assert (drawn.new >= 1).all()
    assert kv_tokens is None or (drawn.context <= kv_tokens).all()


@given(st.integers(1, 5), st.integers(0, 5))
def test_dealing_a_batch_out_to_ranks_loses_nothing(ranks, seed) -> None:
    drawn = draw_batches([30, 700], [400, 10], token_budget=500, max_batch_size=50, count=32, seed=seed)
    dealt = drawn.dealt(ranks)
    for whole, parts in (
        (drawn.prefill, dealt.prefill),
        (drawn.decodes, dealt.decodes),
        (drawn.context, dealt.context),
    ):
        assert parts.reshape(-1, ranks).sum(axis=1) == pytest.approx(whole)
    assert np.ptp(dealt.decodes.reshape(-1, ranks), axis=1).max() <= 1


def test_a_grid_fills_what_is_missing_along_its_last_axis_and_drops_what_else_is() -> None:
    rows = [(x, y) for x in (1, 2, 4) for y in (0, 10, 20, 40) if (x, y) not in ((2, 20), (4, 40))] + [(3, 15)]
    at = np.array(rows, float)
    grid = Grid.of(at, at[:, 0] * (1 + at[:, 1]), "a plane in each line")
    assert grid.axes[0].tolist() == [1, 2, 4]
    assert grid(np.array([2.0, 4.0, 1.0]), np.array([20.0, 80.0, -5.0])) == pytest.approx([42, 324, 1])


def test_a_grid_without_enough_measurements_is_refused() -> None:
    with pytest.raises(InputError, match="too few"):
        Grid.of(np.array([[1.0, 2.0], [2.0, 4.0]]), np.array([1.0, 2.0]), "attention.csv")


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("dense.csv", None, "has no dense.csv"),
        ("dense.csv", "layer,tokens\nmlp,1\n", "not time_us"),
        ("dense.csv", "layer,tokens,time_us\n", "has no rows"),
        ("dense.csv", "layer,tokens,time_us\nmlp,1,-3\n", "line 2 has the time_us '-3'"),
        ("dense.csv", "layer,tokens,time_us\nmlp,1,2\nmlp,two,3\n", "line 3 has the tokens 'two'"),
        ("attention.csv", "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n16,0,0,0,5\n", "too few"),
    ],
)
def test_a_bad_profile_is_refused_in_one_line_that_says_where(tmp_path, file, text, says) -> None:
    folder = write_profile(tmp_path / "tp1")
    if text is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(text)
    with pytest.raises(InputError, match=says) as caught:
        read_llmservingsim(folder, LAYERS)
    assert "\n" not in str(caught.value)


def test_several_accelerators_without_a_link_are_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="give link"):
        read_llmservingsim(write_profile(tmp_path / "tp4"), LAYERS)


def test_ranks_without_experts_to_share_are_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="no experts"):
        read_llmservingsim(write_profile(tmp_path / "tp1"), LAYERS, data_parallel=2, link=LINK)


@pytest.mark.parametrize(("new", "before"), [(0, 10), (5, -1)])
def test_impossible_prompts_are_refused(profile, new, before) -> None:
    with pytest.raises(InputError, match="correct it"):
        profile.seconds([(new, before)])


@pytest.mark.parametrize(("prefill", "decode"), [([5, 0], []), ([(5, 0, 1)], []), ([(5, 0)], 7)])
def test_a_batch_of_another_shape_is_refused(profile, prefill, decode) -> None:
    with pytest.raises(InputError, match="give \\(new tokens"):
        profile.seconds(prefill, decode)


def test_ranks_are_fitted_up_to_the_load_that_one_of_them_may_get(tmp_path) -> None:
    two = read_llmservingsim(write_profile(tmp_path / "tp1", experts=True), LAYERS, data_parallel=2, link=LINK)
    fit = two.composition([500, 900], [100, 50], max_batch_size=64, count=400)
    assert fit.model.linear.tokens[-1] == 2_048
    assert abs(fit.bias) < 0.02


def test_compositions_count_what_a_model_needs() -> None:
    batches = BatchContents(np.array([2.0, 0.0]), np.array([50.0, 0.0]), np.array([40.0, 0.0]), np.array([0, 1, 1]),
                           np.array([5.0, 7.0, 2.0]), np.array([0.0, 3.0, 0.0]))  # fmt: skip
    assert batches.prefill.tolist() == [5, 9]
    assert batches.prompts.tolist() == [1, 2]


# ---------------------------------------------------------------- published profiles


@with_profiles
@pytest.mark.parametrize(("folder", "layers", "max_batch_size", "kv_tokens"), PROFILED)
def test_a_composition_is_within_three_percent_of_a_published_profile(
    folder, layers, max_batch_size, kv_tokens
) -> None:
    """Of nine batches in ten, not used to fit it; and the sum of their times within .5%."""
    profile = read_llmservingsim(SHARED / "llmservingsim" / folder, layers, link=LINK)
    rng = np.random.default_rng(1)
    prompt, output = rng.lognormal(6.5, 0.7, 300).astype(int) + 1, rng.integers(500, 800, 300)
    fit = profile.composition(prompt, output, max_batch_size=max_batch_size, kv_tokens=kv_tokens, count=2_000)
    assert np.abs(np.quantile(fit.errors, [0.05, 0.95])).max() < 0.03
    assert abs(fit.bias) < 0.005


@with_profiles
@pytest.mark.parametrize(("degree", "least"), [(1, 0.97), (2, 0.97)])
def test_the_papers_constants_come_out_of_vidurs_profile_of_its_model(degree, least) -> None:
    """t_b = c + a ceil(b/128) with (c, a) of Section 5, up to 512 tokens; eq:batch-processing-time."""
    c, a = {1: (11.28e-3, 35.47e-3), 2: (7.24e-3, 18.03e-3)}[degree]
    mlp = SHARED / "vidur" / "a100" / "codellama" / "CodeLlama-34b-Instruct-hf" / "mlp.csv.gz"
    profiled = read_vidur(mlp, layers=48, tensor_parallel=degree).without_attention()
    within = profiled.take(profiled.tokens <= 512)
    left = within.seconds - (c + a * np.ceil(within.tokens / 128))
    assert 1 - np.sum(left**2) / np.sum((within.seconds - within.seconds.mean()) ** 2) > least


@with_profiles
def test_vidurs_attention_kernels_add_up() -> None:
    folder = SHARED / "vidur" / "a100"
    mlp = folder / "codellama" / "CodeLlama-34b-Instruct-hf" / "mlp.csv.gz"
    plain = read_vidur(mlp, layers=48, tensor_parallel=2)
    whole = read_vidur(mlp, folder / "attention_gqa64q8kv_tp2.csv.gz", layers=48, tensor_parallel=2)
    prefill, decode = [(512, 1024)], [1000] * 32
    linear = plain.seconds(prefill, decode)
    both = whole.seconds(prefill, decode) - linear
    apart = whole.seconds(prefill) - plain.seconds(prefill) + whole.seconds((), decode) - plain.seconds((), decode)
    assert both == pytest.approx(apart)
    assert 0.01 < both / linear < 0.5


@with_profiles
def test_saving_keys_and_values_counts_where_the_profile_has_it(tmp_path) -> None:
    """Half a millisecond in each of 48 layers."""
    folder = SHARED / "vidur" / "a100"
    mlp = folder / "codellama" / "CodeLlama-34b-Instruct-hf" / "mlp.csv.gz"
    attention = folder / "attention_gqa64q8kv_tp2.csv.gz"
    saving = pl.lit(0.5).alias("time_stats.attn_kv_cache_save.median")
    pl.read_csv(attention).with_columns(saving).write_csv(tmp_path / "attention.csv")
    without, with_it = (
        read_vidur(mlp, file, layers=48, tensor_parallel=2).seconds((), [1_000] * 32)
        for file in (attention, tmp_path / "attention.csv")
    )
    assert with_it - without == pytest.approx(48 * 0.5e-3, rel=1e-6)


@with_profiles
def test_vidurs_rows_of_another_degree_are_refused() -> None:
    mlp = SHARED / "vidur" / "a100" / "codellama" / "CodeLlama-34b-Instruct-hf" / "mlp.csv.gz"
    with pytest.raises(InputError, match="for 1, 2, 4, 8"):
        read_vidur(mlp, layers=48, tensor_parallel=3)
