"""Layer profiles as they are published: LLMServingSim's and Vidur's."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

from paper.attention import Attention, Grid
from paper.layer_times import LayerTimes, Link
from penstock import checks
from penstock.errors import InputError
from penstock.inputs.source import Source
from penstock.inputs.tables import ROW, Table, as_numbers, open_table
from penstock.measuring.fitting.batches import Array

_US, _MS = 1e6, 1e3
_LONGEST = 1e12

_TWICE = ("layernorm",)  # LLMServingSim profiles one of the two norms of a layer
_ONCE = ("embedding", "final_layernorm", "emb")  # layers that a model has once


def read_llmservingsim(
    folder: str | Path,
    layers: int,
    *,
    tensor_parallel: int | None = None,
    data_parallel: int = 1,
    link: Link | None = None,
    experts: int | None = None,
    experts_per_token: int | None = None,
) -> LayerTimes:
    """Read LLMServingSim's ``dense.csv``, ``per_sequence.csv``, ``attention.csv``, ``moe.csv``."""
    folder = checks.path("the folder of a layer profile", folder)
    layers = _count(layers)
    dense = _file(folder, "dense")
    if dense is None:
        raise InputError(
            f"{folder} has no dense.csv, so it is no layer profile of LLMServingSim; name a folder tp1, tp2"
        )
    tokens, by_load = _summed(dense, "tokens", lambda name: 1 if name in _ONCE else layers * (1 + (name in _TWICE)))
    head = _file(folder, "per_sequence")
    requests = by_request = None
    if head is not None:
        requests, by_request = _summed(head, "sequences", lambda _: 1)
    return LayerTimes(
        layers,
        tokens,
        by_load,
        requests,
        by_request,
        _attention(_file(folder, "attention")),
        _experts(_file(folder, "moe")),
        degree_of(folder) if tensor_parallel is None else tensor_parallel,
        data_parallel,
        link,
        f"{folder.name} (layer profile of LLMServingSim)",
        experts,
        experts_per_token,
    )


def degree_of(folder: Path) -> int:
    """Return the tensor-parallel degree that a folder is named after: 2 for ``tp2``, else 1."""
    named = re.fullmatch(r"tp(\d+)", folder.name)
    return int(named[1]) if named else 1


def _attention(file: Path | None) -> Attention | None:
    if file is None:
        return None
    table = _numbers(file, ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"))
    at, seconds = table[:, :4], table[:, 4] / _US
    prefill, decode = at[:, 0] > 0, at[:, 2] > 0
    return Attention(
        Grid.of(at[prefill & ~decode][:, :2], seconds[prefill & ~decode], f"{file.name}: prefill alone"),
        Grid.of(at[decode & ~prefill][:, 2:], seconds[decode & ~prefill], f"{file.name}: decode alone"),
        Grid.of(at[decode & prefill], seconds[decode & prefill], f"{file.name}: prefill beside decode"),
    )


def _experts(file: Path | None) -> Grid | None:
    if file is None:
        return None
    table = _numbers(file, ("tokens", "activated_experts", "time_us"))
    return Grid.of(table[:, :2], table[:, 2] / _US, file.name)


def read_vidur(
    mlp: str | Path,
    attention: str | Path | None = None,
    *,
    layers: int,
    tensor_parallel: int = 1,
    link: Link | None = None,
) -> LayerTimes:
    """Read a profile of Vidur: times of all layers but attention, and of the attention kernels.

    Medians are taken; decode and prefill are separate kernels, whose times add up. Without a link
    the accelerators of a tensor-parallel group exchange in no time, as in Vidur's own tables of
    layers.
    """
    layers = _count(layers)
    source = Source.at(mlp)
    header = open_table(source).header
    names = [name for name in header if re.fullmatch(r"time_stats\..*\.median", name)]
    if not names:
        raise source.fault("has no columns time_stats.LAYER.median, so it is no layer profile of Vidur. Check the file")
    table = _of_degree(Path(mlp), ("num_tokens", *names), tensor_parallel)
    tokens = np.unique(table[:, 0])
    by_load = np.zeros(tokens.size)
    for name, ms in zip(names, table[:, 1:].T, strict=True):
        times = 1 if name.split(".")[1] in _ONCE else layers
        by_load += times * _averaged(table[:, 0], ms, tokens) / _MS
    return LayerTimes(
        layers,
        tokens,
        by_load,
        attention=None if attention is None else _kernels(Path(attention), tensor_parallel),
        tensor_parallel=tensor_parallel if link is not None else 1,  # one of them stands for all
        link=link,
        source=f"{source.name} (layer profile of Vidur)",
    )


def _kernels(file: Path, degree: int) -> Attention:
    """Return Vidur's attention: kernels of prefill and of decode, and what is done around both."""
    header = open_table(Source.at(file)).header
    parts = ("prefill", "decode", "input_reshape", "output_reshape", "kv_cache_save")
    names = [f"time_stats.attn_{part}.median" for part in parts]
    if names[-1] not in header:
        names.pop()
    lengths = ("batch_size", "prefill_chunk_size", "kv_cache_size")
    rows = _of_degree(file, (*lengths, *names), degree, (*names[:2], *names[4:]))
    around = rows[:, 5:].sum(axis=1)
    prefill = rows[:, 1] > 0
    grids = (
        Grid.of(rows[kind][:, axes], (around + rows[:, time])[kind] / _MS, f"{file.name}: {phase}")
        for phase, kind, axes, time in (
            ("prefill", prefill, [1, 2], 3),
            ("decode", ~prefill, [0, 2], 4),
        )
    )
    return Attention(*grids)


def _of_degree(file: Path, names: tuple[str, ...], degree: int, may_lack: tuple[str, ...] = ()) -> Array:
    """Return these columns of the rows of one tensor-parallel degree."""
    table = _numbers(file, ("num_tensor_parallel_workers", *names), may_lack)
    rows = np.asarray(table[table[:, 0] == degree][:, 1:])
    if not rows.size:
        known = ", ".join(f"{value:g}" for value in np.unique(table[:, 0]))
        raise InputError(f"{file.name} has no rows for tensor_parallel {degree}, but for {known}; give one of those")
    return rows


def _count(layers: int) -> int:
    return checks.whole("layers", layers, 1, 10_000, "layers", "a model has so many repeated layers")


def _file(folder: Path, name: str) -> Path | None:
    return next((folder / end for end in (f"{name}.csv", f"{name}.csv.gz") if (folder / end).exists()), None)


def _summed(file: Path, by: str, times: Callable[[str], int]) -> tuple[Array, Array]:
    """Return rising values of a column, and seconds of all layers, each as often as it occurs."""
    layer = np.array(_text(file, ("layer",))[2]["layer"].to_list())
    at, us = _numbers(file, (by, "time_us")).T
    known = np.unique(at)
    total = np.zeros(known.size)
    for name in np.unique(layer):
        here = layer == name
        total += times(str(name)) * _averaged(at[here], us[here], known) / _US
    return known, total


def _averaged(at: Array, values: Array, known: Array) -> Array:
    """Return values at known places, repeats averaged, straight lines between."""
    places, which = np.unique(at, return_inverse=True)
    return np.asarray(np.interp(known, places, np.bincount(which, values) / np.bincount(which)))


def _text(file: Path, names: tuple[str, ...]) -> tuple[Source, Table, pl.DataFrame]:
    source = Source.at(file)
    table = open_table(source)
    missing = [name for name in names if name not in table.header]
    if missing:
        columns = checks.shown(", ".join(table.header))
        raise source.fault(f"has the columns {columns}, but not {', '.join(missing)}. Check that it is the right file")
    text = table.read(names).with_row_index(ROW)
    if text.is_empty():
        raise source.fault("has no rows, so no time is known. Check that the file was written completely")
    return source, table, text


def _numbers(file: Path, names: tuple[str, ...], may_lack: tuple[str, ...] = ()) -> Array:
    """Return columns of a table, shape (rows, columns): numbers of at least 0."""
    limits = dict.fromkeys(names, (0.0, _LONGEST))
    numbers = as_numbers(*_text(file, names), limits, "of at least 0", may_lack)
    return np.asarray(numbers.to_numpy(), np.float64)
