"""Kernel times are smooth rooflines: never faster than the sheet by more than a cache explains, and rising."""

import dataclasses
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InputError
from penstock.system.models import kernels
from penstock.system.models.gpus import SHEET_ALONE, SHEETS, TYPICAL, KnownGpu, known_gpu
from penstock.system.models.served import served_model
from penstock.system.models.shape import BYTES

GPUS = [known_gpu(name) for name in SHEETS]
MEASURED = [gpu for gpu in GPUS if gpu.measured]
CACHED = 1.3  # small matrices come from the L2 cache
TOKENS = st.integers(1, 16_384)
WIDTHS = st.sampled_from([512, 1024, 4096, 8192, 28672])
OF_GPU = st.sampled_from(GPUS)


def of(*numbers: float) -> list[np.ndarray]:
    return [np.array(float(number)) for number in numbers]


@given(st.floats(1, 8), st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=4))
def test_a_smooth_maximum_lies_between_the_largest_and_the_sum(sharpness: float, times: list[float]) -> None:
    seconds = float(kernels.smooth(sharpness, *of(*times)))
    assert max(times) * (1 - 1e-12) <= seconds <= sum(times) * (1 + 1e-12)


@given(OF_GPU, TOKENS, WIDTHS, WIDTHS)
def test_a_gemm_takes_no_less_than_its_bytes_and_its_flops_and_more_for_more_tokens(
    gpu: KnownGpu, tokens: int, n: int, k: int
) -> None:
    for precision, flops in gpu.sheet.flops.items():
        p, each = gpu.shares("gemm", precision), BYTES[precision]
        now, next_one = (float(kernels.gemm(gpu.sheet, p, flops, each, *of(m, n, k))) for m in (tokens, tokens + 1))
        assert now >= n * k * each / (gpu.sheet.bandwidth * CACHED)
        assert now >= 2 * tokens * n * k / (flops * 1.2)
        assert next_one >= now * (1 - 1e-12)


@given(OF_GPU, TOKENS)
def test_experts_cost_more_the_more_are_visited_and_no_more_than_all_of_them(gpu: KnownGpu, tokens: int) -> None:
    """128 experts of 4096 x 1536, eight for each token."""
    p = gpu.shares("experts")
    layer = kernels.ExpertLayer(*of(4096, 1536, 8, 128, 1))
    times = [
        float(kernels.experts(gpu.sheet, p, gpu.sheet.flops["bf16"], 2.0, *of(n), layer)) for n in (tokens, 2 * tokens)
    ]
    assert times[0] <= times[1] <= 2 * times[0]
    one = 3 * 4096 * 1536 * 2.0 / (gpu.sheet.bandwidth * CACHED)
    assert times[0] >= 8 * (1 - 7 / 128) ** 8 * one * 0.5


@given(OF_GPU, st.integers(1, 256), st.integers(1, 100_000))
def test_decodes_read_their_context(gpu: KnownGpu, requests: int, context: int) -> None:
    p = gpu.shares("decode_attention")
    seconds = float(kernels.decode_attention(gpu.sheet, p, 2.0, *of(requests, context, 32, 8, 128)))
    assert seconds >= requests * context * 2 * 8 * 128 * 2 / (gpu.sheet.bandwidth * CACHED)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_a_prompt_twice_as_long_takes_up_to_four_times_as_long(gpu: KnownGpu) -> None:
    p = gpu.shares("prefill_attention")
    lengths = 2.0 ** np.arange(8, 18)
    seconds = kernels.prefill_attention(gpu.sheet, p, lengths, lengths**2 / 2, *of(32, 8, 128))
    grows = seconds[1:] / seconds[:-1]
    assert (grows >= 1).all()
    assert (grows <= 4).all()
    assert grows[-1] == pytest.approx(4, rel=0.02)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_one_gpu_has_nothing_to_add_up(gpu: KnownGpu) -> None:
    p = gpu.shares("all_reduce")
    alone, pair, eight = kernels.all_reduce(gpu.sheet, p, np.array(2.0**20), np.array([1.0, 2.0, 8.0]))
    assert alone == 0
    assert 0 < pair < eight


@pytest.mark.parametrize("gpu", MEASURED, ids=lambda gpu: gpu.name)
def test_what_is_shipped_says_how_far_off_it_is(gpu: KnownGpu) -> None:
    for version, tables in gpu.fits.items():
        for operation, answers in tables.items():
            for precision, answer in answers.items():
                errors = answer["errors"]
                assert 0 < errors["median"] < 0.25, (version, operation, precision)
                assert errors["median"] < errors["p90"] < 0.7, (version, operation, precision)
                assert answer.keys() - {"errors"} <= TYPICAL.keys()


def test_the_nearest_version_is_taken_and_what_it_lacks_comes_from_the_others() -> None:
    newest, older = known_gpu("h100"), known_gpu("h100", "0.16")
    assert list(newest.fits) == ["0.24", "0.19"]
    assert list(older.fits) == ["0.19", "0.24"]
    assert newest.shares("gemm") is newest.fits["0.24"]["gemm"]["bf16"]
    assert older.shares("gemm") is newest.fits["0.19"]["gemm"]["bf16"]
    # 0.24's blocks of fp8 were measured with the host, 0.19 had no table of MXFP4
    assert newest.shares("gemm", "fp8-block") is newest.fits["0.19"]["gemm"]["fp8-block"]
    assert older.shares("experts", "mxfp4") is newest.fits["0.24"]["experts"]["mxfp4"]


def test_a_gpu_without_kernel_times_gets_its_sheet_with_usual_shares_and_says_so() -> None:
    gpu = known_gpu("L40")
    assert not gpu.measured
    assert gpu.shares("gemm", "fp8") is TYPICAL
    assert gpu.error("gemm") is None


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("H100", "h100-sxm"),
        ("h200_sxm", "h200-sxm"),
        ("B200 SXM", "b200-sxm"),
        ("h100-80gb", "h100-sxm"),
        ("A10080GB", "a100-sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H200 Tensor Core GPU", "h200-sxm"),
        ("Tesla V100-SXM2-32GB", "v100-sxm"),
        ("NVIDIA L4 24GB", "l4"),
        ("NVIDIA RTX PRO 6000 Blackwell", "rtxpro6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtxpro6000"),
        ("RTX_PRO_6000_Blackwell_Workstation_Edition", "rtxpro6000"),
        ("NVIDIA GeForce RTX 5090", "rtx5090"),
    ],
)
def test_gpus_go_by_the_names_that_people_use(name: str, known: str) -> None:
    assert known_gpu(name).name == known


@pytest.mark.parametrize(
    "name",
    [
        "Tesla V100-SXM2-16GB",
        "NVIDIA A100-PCIE-40GB",
        "NVIDIA A10G",
        "NVIDIA RTX 6000 Ada Generation",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    ],
)
def test_another_memory_or_another_card_is_no_spelling(name: str) -> None:
    with pytest.raises(InputError, match="whose times are not known"):
        known_gpu(name)


@pytest.mark.parametrize("name", SHEETS)
def test_a_gpu_is_known_by_its_name_in_capitals_without_dashes(name: str) -> None:
    assert known_gpu(f"NVIDIA {name.upper().replace('-', ' ')}").name == name


def test_a_gpu_that_is_not_known_is_refused_with_the_nearest_that_is() -> None:
    with pytest.raises(InputError, match=r"gpu is 'h200-sxmm'.*did you mean 'h200-sxm'.*batch_time"):
        known_gpu("h200-sxmm")


BY_SHEET = [gpu.name for gpu in GPUS if not gpu.measured]


@pytest.mark.parametrize("name", [*BY_SHEET, "v100", "h20", "NVIDIA-L4", "RTX_4090", "Tesla-T4"])
def test_gpus_by_their_sheets_are_known_and_marked(name: str) -> None:
    gpu = known_gpu(name)
    assert not gpu.measured
    served = served_model("gpt-oss-20b" if gpu.sheet.memory_gib > 20 else "Llama-3.1-8B", name, 2)
    assert "only the sheet is known, not its kernels" in served.caution
    measured = dataclasses.replace(served, gpu=known_gpu("h100"))
    assert (served.known.factor, measured.known.factor) == (1.71, 1.3)


def test_the_page_about_shapes_names_the_gpus_that_are_known_by_their_sheets_and_those_that_were_measured() -> None:
    page = (Path(__file__).parents[3] / "docs" / "shapes.md").read_text()
    sentence = page.split("## GPUs by their sheets")[1].split("only the sheet is known")[0]
    assert sorted(re.findall("`(.*?)`", sentence)) == sorted(BY_SHEET)
    row = page.split("| `gpu` | ")[1].split("whose kernels were measured")[0]
    assert re.findall("`(.*?)`", row) == [gpu.name for gpu in MEASURED]


@pytest.mark.parametrize(
    ("name", "maker"),
    [
        ("mi300x", "AMD"), ("MI-325X", "AMD"), ("gaudi3", "Intel"), ("tpu-v5e", "Google"), ("trn2", "AWS"),
        ("ascend-910b", "Huawei"), ("m4-max", "Apple"),
    ],
)  # fmt: skip
def test_other_makers_are_refused_with_the_reason(name: str, maker: str) -> None:
    with pytest.raises(InputError, match=f"kernels of {maker} are other ones"):
        known_gpu(name)


def test_a_sheet_alone_is_within_its_factor_of_nine_in_ten_batch_times_by_kernels() -> None:
    """The measured GPUs, with their kernels taken away."""
    off = []
    models = ("Llama-3.1-8B", "Llama-3.1-70B", "gpt-oss-120b")
    for model, gpu in itertools.product(models, ("a100", "h100", "h200", "b200")):
        served = served_model(model, gpu, 4)
        bare = dataclasses.replace(served, gpu=dataclasses.replace(served.gpu, fits={}))
        loads = np.array([1.0, 64.0, 256.0, 2048.0])
        both = [each.times.composition(2048).linear(loads) for each in (served, bare)]
        off += np.abs(np.log(both[0] / both[1])).tolist()
    assert np.exp(np.quantile(off, 0.9)) < SHEET_ALONE
