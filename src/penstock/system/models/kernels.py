"""Times of one GPU's kernels: a smooth roofline for each operation.

A kernel moves bytes and computes. Where one of the two takes much longer it decides; in between
both count: t = floor + (memory^p + compute^p)^(1/p), a maximum with a rounded corner.

Each operation has a few parameters for each GPU, fitted to measured kernel times (the study
`kernel_fits.py`): the shares of the sheet values that it reaches, the time of the smallest call,
and how sharp the corner is. A GPU whose kernels nobody measured gets the roofline of its sheet with
usual shares.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from penstock.inputs.arrays import Floats

Shares = Mapping[str, float]
"""Parameters of one operation."""

_ACTIVATION = 2.0  # bytes of a number between layers
_TILE = 64  # tokens that attention looks at together


@dataclasses.dataclass(frozen=True)
class Sheet:
    """What the maker says of a GPU."""

    memory_gib: float  # as its driver reports it
    bandwidth: float  # bytes/s of memory
    flops: Mapping[str, float]  # FLOP/s without sparsity, by precision; it computes in no other
    link: float  # bytes/s to the other GPUs of its machine, one way
    watts: float | None = None  # that it takes at most


def smooth(sharpness: float, *times: Floats) -> Floats:
    """Return about the largest of some times; where two are near, somewhat more."""
    # At a sharpness of 1 times add up; the higher, the more only the largest counts.
    most = np.maximum.reduce(np.broadcast_arrays(*times))
    parts = sum((time / most) ** sharpness for time in times)
    return np.asarray(most * parts ** (1.0 / sharpness))


def gemm(
    sheet: Sheet, p: Shares, flops: float, weight_bytes: float, m: Floats, n: Floats, k: Floats
) -> Floats:
    """Return the seconds of m x k times k x n."""
    # Activations in 8 bits or less must be written anew first (``activation``), and one tile goes
    # through all of k (``tile_ns``), however few there are.
    moved = n * k * weight_bytes + (m * k + m * n) * _ACTIVATION
    memory = moved / (sheet.bandwidth * p["memory"])
    compute = 2.0 * m * n * k / (flops * p["compute"])
    tile = k * p["tile_ns"] * 1e-9
    seconds = p["floor_us"] * 1e-6 + smooth(p["sharpness"], memory, compute, tile)
    if "activation" in p:
        seconds = seconds + 1.5 * m * k * _ACTIVATION / (sheet.bandwidth * p["activation"])
    return np.asarray(seconds)


class ExpertLayer(NamedTuple):
    """Experts of a layer, 1 / ``parallel`` of them on this GPU; ``width``: one's inner width."""

    hidden: Floats
    width: Floats
    per_token: Floats
    total: Floats
    parallel: Floats


def experts(
    sheet: Sheet, p: Shares, flops: float, weight_bytes: float, tokens: Floats, layer: ExpertLayer
) -> Floats:
    """Return the seconds of the experts of one layer on one GPU."""
    # A batch visits, and reads, 1 - (1 - k / E)^n of the experts. Some are liked better, so fewer
    # are visited: as many as ``spread`` times the tokens would visit at random.
    hidden, width, per_token, count, parallel = layer
    visited = count / parallel * (1.0 - (1.0 - per_token / count) ** (p["spread"] * tokens))
    pairs = tokens * per_token / parallel
    moved = visited * 3.0 * hidden * width * weight_bytes
    memory = moved / (sheet.bandwidth * p["memory"])
    compute = 6.0 * pairs * hidden * width / (flops * p["compute"])
    between = pairs * (2.0 * hidden + 3.0 * width) * _ACTIVATION
    shuffled = between / (sheet.bandwidth * p["activation"])
    return np.asarray(p["floor_us"] * 1e-6 + smooth(p["sharpness"], memory, compute) + shuffled)


def prefill_attention(
    sheet: Sheet,
    p: Shares,
    tokens: Floats,
    pairs: Floats,
    heads: Floats,
    kv_heads: Floats,
    head_dim: Floats,
) -> Floats:
    """Return the seconds of prompts' attention; ``pairs`` are of new tokens and those they see."""
    pairs = pairs + tokens * p["block"] * _TILE
    reached = p["compute"] * 2.0 * head_dim / (128.0 + head_dim)  # narrow heads leave units idle
    compute = 4.0 * pairs * heads * head_dim / (sheet.flops["bf16"] * reached)
    moved = tokens * 2.0 * (heads + kv_heads) * head_dim * _ACTIVATION
    memory = moved / (sheet.bandwidth * p["memory"])
    return np.asarray(p["floor_us"] * 1e-6 + smooth(p["sharpness"], compute, memory))


def decode_attention(
    sheet: Sheet,
    p: Shares,
    kv_bytes: float,
    requests: Floats,
    context: Floats,  # tokens that each of them looks at
    heads: Floats,
    kv_heads: Floats,
    head_dim: Floats,
) -> Floats:
    """Return the seconds of decodes' attention; ``context``: the tokens that each looks at."""
    moved = requests * context * 2.0 * kv_heads * head_dim * kv_bytes
    memory = moved / (sheet.bandwidth * p["memory"])
    alone = p["walk_ns"] * 1e-9 * context  # one request, which few units share
    heads_s = requests * heads * p["head_ns"] * 1e-9
    return np.asarray(p["floor_us"] * 1e-6 + smooth(p["sharpness"], memory, alone) + heads_s)


def latent_attention(
    sheet: Sheet,
    p: Shares,
    flops: float,
    weights: Floats,
    moved: Floats,
    tokens: Floats,
    pairs: Floats,
    flops_per_pair: Floats,
) -> Floats:
    """Return the seconds of a whole module of latent attention, its projections included."""
    # ``weights`` are of its projections, on this GPU; ``moved`` bytes are read, of weights and of
    # the KV cache; ``flops_per_pair`` are of a new token and one that it looks at.
    memory = moved / (sheet.bandwidth * p["memory"])
    projected = 2.0 * tokens * weights / (flops * p["compute"])
    looked = pairs * flops_per_pair / (sheet.flops["bf16"] * p["attention"])
    busy = smooth(p["sharpness"], memory, projected + looked)
    return np.asarray(p["floor_us"] * 1e-6 + busy + tokens * p["token_ns"] * 1e-9)


def all_reduce(sheet: Sheet, p: Shares, message_bytes: Floats, gpus: Floats) -> Floats:
    """Return the seconds in which so many GPUs add up what each of them has."""
    # Long messages use links better: seconds grow as bytes to a power below 1 (``growth``) and
    # reach the share ``link`` at 64 MiB. What goes over a link grows with (G - 1) / G, to a power
    # that depends on the switch (``partners``).
    long = 2.0**26
    moved = long * (message_bytes / long) ** p["growth"] * ((gpus - 1.0) / gpus) ** p["partners"]
    start = p["floor_us"] * 1e-6 * (1.0 + p["per_gpu"] * gpus)
    return np.asarray(np.where(gpus > 1, start + 2.0 * moved / (sheet.link * p["link"]), 0.0))
