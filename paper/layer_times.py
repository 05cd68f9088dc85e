"""From published times of a model's layers, LLMServingSim's and Vidur's, to times of batches.

A profile gives seconds of each layer by token load, of attention by what is in a batch, and of the head by requests. A
batch takes the sum over all layers. What accelerators exchange, and what the engine does itself, is in no profile.
"""

import dataclasses

import numpy as np
import polars as pl
from scipy.interpolate import RegularGridInterpolator

ONCE = ("embedding", "final_layernorm", "emb", "lm_head", "sampler")  # layers that a model has once
TWICE = ("layernorm",)  # LLMServingSim profiles one of the two norms of a layer


class Grid:
    """Times measured at combinations of some values: straight lines between and beyond, but level below the first."""

    def __init__(self, at, seconds):
        """Take measurements, shape (measurements, axes) and (measurements,).

        Repeats are averaged. What is missing along the last axis lies on straight lines between and beyond the
        measurements beside it, since attention takes a time affine in the tokens before; values of other axes that were
        not measured with all the others are left out, the rarest first.
        """
        axes = [np.unique(column) for column in at.T]
        places = tuple(np.searchsorted(axis, column) for axis, column in zip(axes, at.T, strict=True))
        total, repeats = np.zeros((2, *(axis.size for axis in axes)))
        np.add.at(total, places, seconds)
        np.add.at(repeats, places, 1)
        with np.errstate(invalid="ignore"):
            table = np.apply_along_axis(filled, -1, total / repeats, axes[-1])
        while np.isnan(table).any():
            known = ~np.isnan(table)
            shares = [known.mean(axis=tuple(set(range(table.ndim)) - {i})) for i in range(table.ndim)]
            worst = min(range(table.ndim), key=lambda i: shares[i].min())
            keep = np.arange(axes[worst].size) != np.argmin(shares[worst])
            axes[worst], table = axes[worst][keep], np.compress(keep, table, axis=worst)
        self.axes, self.seconds = axes, table
        self.between = RegularGridInterpolator(axes, table, bounds_error=False, fill_value=None)

    def __call__(self, *at):
        """Return the seconds at some places, one array for each axis."""
        inside = [np.maximum(values, axis[0]) for values, axis in zip(at, self.axes, strict=True)]
        return np.maximum(self.between(np.column_stack(inside)), 0.0)


def filled(line, axis):
    """Fill what is missing on a line that was measured at two places at least."""
    known = np.flatnonzero(~np.isnan(line))
    if known.size in (0, 1, line.size):
        return line
    cell = np.clip(np.searchsorted(axis[known], axis) - 1, 0, known.size - 2)
    low, high = known[cell], known[cell + 1]
    slope = (line[high] - line[low]) / (axis[high] - axis[low])
    return np.where(np.isnan(line), np.maximum(line[low] + slope * (axis - axis[low]), 0.0), line)


@dataclasses.dataclass(frozen=True, eq=False)
class Attention:
    """Seconds of one layer's attention.

    ``prefill`` is by new tokens of a prompt and tokens before them, ``decode`` by decodes and tokens before each,
    ``mixed`` by all four. None: the engine runs two kernels, whose times add up.
    """

    prefill: Grid
    decode: Grid
    mixed: Grid | None = None

    def of(self, batches):
        """Return the seconds of each batch.

        Batches were measured with one prompt, and decodes that all have equally many tokens before them: the mean is
        put for those. Prompts but the costliest add what they take above an (almost) empty one.
        """
        alone = self.prefill(batches.new, batches.before)
        order = np.lexsort((-alone, batches.batch))
        costliest = order[np.unique(batches.batch[order], return_index=True)[1]]
        above = np.maximum(alone - self.prefill.seconds.flat[0], 0.0)
        above[costliest] = 0.0
        n, each = batches.decodes, batches.context / np.maximum(batches.decodes, 1)
        seconds = np.where(n > 0, self.decode(n, each), 0.0)
        if self.mixed is None:
            seconds[batches.batch[costliest]] += alone[costliest]
        else:
            seconds[batches.batch[costliest]] = alone[costliest]
            beside = costliest[n[batches.batch[costliest]] > 0]
            both = batches.batch[beside]
            seconds[both] = self.mixed(batches.new[beside], batches.before[beside], n[both], each[both])
            seconds[both] += self.spread(n[both], batches.context[both], batches.longest[both])
        return seconds + batches.per_batch(above)

    def spread(self, n, context, longest):
        """Return what it costs that the decodes beside a prompt do not all have equally many tokens before them.

        A kernel lasts until its longest request is done. The profile knows one request among shorter ones: a prompt of
        few tokens after many, which stands for the longest decode here. What it takes beside the others, above what it
        takes where all have the mean, is the cost.
        """
        few, others = np.full(n.size, self.mixed.axes[0][0]), np.maximum(n - 1, 1)
        mean, rest = context / n, np.maximum(context - longest, 0.0) / others
        uneven, even = self.mixed(few, longest, others, rest), self.mixed(few, mean, others, mean)
        return np.where(n > 1, np.maximum(uneven - even, 0.0), 0.0)


@dataclasses.dataclass(frozen=True, eq=False)
class LayerTimes:
    """Times of a model's layers, from which the time of any batch follows.

    ``by_load`` are seconds of all layers but attention by token load, ``by_request`` of what is done once for each
    request; ``attention`` is of one of so many layers.
    """

    layers: int
    tokens: np.ndarray
    by_load: np.ndarray
    requests: np.ndarray | None = None
    by_request: np.ndarray | None = None
    attention: Attention | None = None

    def of(self, batches):
        """Return the seconds of each batch."""
        seconds = self.without_attention(batches.tokens)
        if self.attention is not None:
            seconds = seconds + self.layers * self.attention.of(batches)
        if self.requests is not None:
            seconds = seconds + on_line(batches.requests, self.requests, self.by_request)
        return seconds

    def without_attention(self, loads):
        """Return the seconds of all layers but attention: kernels change, so nothing is known beyond the profile."""
        if loads.max() > self.tokens[-1]:
            raise ValueError(f"a batch of {loads.max():,.0f} tokens is beyond the profile, {self.tokens[-1]:,.0f}")
        return np.interp(loads, self.tokens, self.by_load)


def on_line(at, known, values):
    """Return values on straight lines between those known, and on the last one beyond."""
    slope = max((values[-1] - values[-2]) / (known[-1] - known[-2]), 0.0)
    return np.interp(at, known, values) + slope * np.maximum(at - known[-1], 0.0)


def read_llmservingsim(folder, layers):
    """Read LLMServingSim's profile of a model with so many repeated layers, from a folder ``.../bf16/tp1``."""
    rows = pl.read_csv(folder / "attention.csv.gz")
    at = rows.select("prefill_chunk", "kv_prefill", "n_decode", "kv_decode").to_numpy()
    seconds = rows["time_us"].to_numpy() / 1e6
    prefill, decode = at[:, 0] > 0, at[:, 2] > 0
    attention = Attention(
        Grid(at[prefill & ~decode][:, :2], seconds[prefill & ~decode]),
        Grid(at[decode & ~prefill][:, 2:], seconds[decode & ~prefill]),
        Grid(at[decode & prefill], seconds[decode & prefill]),
    )
    tokens, by_load = all_layers(pl.read_csv(folder / "dense.csv.gz").pivot("layer", index="tokens"), layers)
    requests, by_request = all_layers(pl.read_csv(folder / "per_sequence.csv.gz").pivot("layer", index="sequences"), 1)
    return LayerTimes(layers, tokens, by_load / 1e6, requests, by_request / 1e6, attention)


def read_vidur(mlp, layers, tensor_parallel, attention=None):
    """Read Vidur's profile of one tensor-parallel degree, its medians: ``mlp.csv`` and perhaps ``attention.csv``."""
    rows = pl.read_csv(mlp).filter(num_tensor_parallel_workers=tensor_parallel)
    medians = {name: name.split(".")[1] for name in rows.columns if name.endswith(".median")}
    by_load = rows.rename(medians).group_by("num_tokens").agg(pl.col(*medians.values()).mean())
    tokens, ms = all_layers(by_load, layers)
    if attention is None:
        return LayerTimes(layers, tokens, ms / 1e3)
    rows = pl.read_csv(attention, infer_schema_length=None).filter(num_tensor_parallel_workers=tensor_parallel)
    prefill = kernel(rows.filter(pl.col("is_prefill")), "prefill", ("prefill_chunk_size", "kv_cache_size"))
    decode = kernel(rows.filter(~pl.col("is_prefill")), "decode", ("batch_size", "kv_cache_size"))
    return LayerTimes(layers, tokens, ms / 1e3, attention=Attention(prefill, decode))


def kernel(rows, name, lengths):
    """Return the times of one of Vidur's kernels, and of what is done around it."""
    parts = [f"time_stats.attn_{part}.median" for part in ("input_reshape", "output_reshape", name)]
    ms = rows.select(pl.sum_horizontal(parts, ignore_nulls=False)).to_series()
    return Grid(rows.select(lengths).to_numpy(), ms.to_numpy() / 1e3)


def all_layers(by_load, layers):
    """Return rising loads, the first column, and the times of all layers, one in each other column, together."""
    loads, *times = by_load.sort(by_load.columns[0])
    often = {**dict.fromkeys(ONCE, 1), **dict.fromkeys(TWICE, 2 * layers)}
    return loads.to_numpy().astype(float), sum(often.get(each.name, layers) * each.to_numpy() for each in times)
