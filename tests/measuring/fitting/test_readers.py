"""Measured batches are read as engines and people write them; what cannot be used is said in one line."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from penstock.errors import InputError
from penstock.measuring.fitting.fit import fit
from penstock.measuring.fitting.readers import FORMATS, read_batches

LINE = (
    "INFO 11-02 10:00:00 [core.py:99] Engine 000: Iteration({i}): {p} context requests, {x} context tokens, "
    "{k} generation requests, {y} generation tokens, iteration elapsed time: {ms} ms, GPU KV cache usage: {use}%"
)


def written(tmp_path: Path, text: str, name: str = "batches.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def forward_pass(**scheduled: float) -> dict[str, Any]:
    """Return what SGLang publishes of one pass."""
    seconds = scheduled.pop("wall_time", 0.02)
    return {"version": 1, "worker_id": "w", "dp_rank": 0, "counter_id": 1, "wall_time": seconds,
            "scheduled_requests": scheduled, "queued_requests": {}}  # fmt: skip


# --- the real samples ---


def test_vllms_own_log_gives_every_iteration(shared_data: Path) -> None:
    found = read_batches(shared_data / "metrics" / "vllm_0.33.0_iteration_log.txt")
    assert len(found) == 44
    assert found.left_out == 0
    assert (found.tokens[3], found.requests[3], found.seconds[3]) == (256, 4, pytest.approx(7.52e-3))
    assert (found.prefill_tokens[3], found.decode_tokens[3]) == (254, 2)
    assert found.context is not None
    assert (found.context[0], found.context[-1]) == (0, 263), "one request was followed to its end"
    assert any("no KV cache size is there" in note for note in found.notes)
    assert "vllm" in found.source


def test_tensorrt_llms_statistics_are_read(shared_data: Path) -> None:
    found = read_batches(shared_data / "metrics" / "trtllm_serve_iteration_stats.json")
    assert (len(found), found.tokens[0], found.requests[0]) == (1, 13, 1)
    assert found.seconds[0] == pytest.approx(67.526, abs=1e-3)
    assert found.context is None, "0 throughout: this backend does not count it"


def test_metrics_families_without_batches_are_refused(shared_data: Path) -> None:
    for name in ("sglang_0.5.23_families_headless.txt", "vllm_0.33.0_metrics.txt", "llama_cpp_server_under_load.txt"):
        with pytest.raises(InputError, match="page of Prometheus metrics") as raised:
            read_batches(shared_data / "metrics" / name)
        assert "\n" not in str(raised.value)


# --- tables ---


@pytest.mark.parametrize(("unit", "factor"), [("seconds", 1), ("ms", 1e3), ("us", 1e6)])
def test_a_table_gives_seconds_in_any_unit(unit: str, factor: float, tmp_path: Path) -> None:
    found = read_batches(written(tmp_path, f"tokens,{unit}\n100,{0.01 * factor}\n200,{0.02 * factor}\n"))
    assert found.seconds.tolist() == pytest.approx([0.01, 0.02])
    assert found.tokens.tolist() == [100, 200]
    assert found.prefill_tokens is None


def test_a_table_of_compositions_gives_every_column_in_any_kind_of_file(tmp_path: Path) -> None:
    columns = {"prefill_tokens": [512, 0], "decode_tokens": [3, 4], "requests": [4, 4], "squares": [512**2, 0],
               "pairs": [0, 0], "context": [300, 404], "ms": [12.5, 8.0], "host": ["a", "b"]}  # fmt: skip
    table = pl.DataFrame(columns)
    table.write_parquet(tmp_path / "b.parquet")
    table.write_ndjson(tmp_path / "b.jsonl")
    table.write_csv(tmp_path / "b.csv")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress((tmp_path / "b.csv").read_bytes()))
    for name in ("b.parquet", "b.jsonl", "b.csv", "b.csv.gz"):
        found = read_batches(tmp_path / name)
        assert found.tokens.tolist() == [515, 4]
        assert found.context is not None
        assert found.context.tolist() == [300, 404]
        assert found.seconds.tolist() == pytest.approx([12.5e-3, 8e-3])
    assert len(read_batches(tmp_path / "b.csv", where={"host": "b"})) == 1


# --- logs and metrics ---


def test_a_log_is_read_among_other_lines_and_what_is_cut_is_counted(tmp_path: Path) -> None:
    lines = ["INFO starting up"] * 3_000
    lines.append(LINE.format(i=0, p=2, x=100, k=0, y=0, ms=8.5, use=1.0))
    lines.append(
        LINE.format(i=1, p=0, x=0, k=2, y=2, ms=4.5, use=1.0)[: -len("ration elapsed time: 4.5 ms, KV usage: 1%")]
    )
    lines.append("Iteration(2): 1 context requests, iteration elapsed time: 3 ms")
    lines.append(LINE.format(i=3, p=0, x=0, k=2, y=2, ms=4.25, use=1.0))
    found = read_batches(written(tmp_path, "\n".join(lines), "server.log"))
    assert found.tokens.tolist() == [100, 2]
    assert found.squares is not None
    assert found.squares.tolist() == [2 * 50**2, 0]
    assert found.left_out == 1, "the first that is cut does not even say that it is an iteration"
    assert any("equally long" in note for note in found.notes)


def test_the_context_is_known_where_the_log_says_what_the_cache_holds(tmp_path: Path) -> None:
    text = "INFO GPU KV cache size: 100,000 tokens\n" + LINE.format(i=0, p=1, x=200, k=3, y=3, ms=8.5, use=2.5)
    found = read_batches(written(tmp_path, text + "\n", "server.log"))
    assert found.context is not None
    assert found.context.tolist() == [pytest.approx(2_500 - 200)]


def test_half_a_block_of_each_request_is_no_context_where_the_log_shows_blocks(tmp_path: Path) -> None:
    """A block of 128 tokens is 0.4% of this cache; 1% of a large one may be any number of blocks."""
    shares = [0.4, 0.8, 1.2, 1.6, 2.0, 2.4, 2.8, 3.2]
    lines = [LINE.format(i=i, p=0, x=0, k=i + 1, y=i + 1, ms=8.5, use=use) for i, use in enumerate(shares)]
    text = "INFO CPU KV cache size: 32,000 tokens\n" + "\n".join(lines)
    batches = read_batches(written(tmp_path, text, "server.log"))
    assert batches.context_block == pytest.approx(128)
    assert batches.context is not None
    # the first by what is in use after it, the others by what was in use before them
    assert batches.context == pytest.approx([64.0, *(128 * i - 64 * (i + 1) for i in range(1, 8))])
    odd = text.replace("usage: 2.8%", "usage: 2.7%")
    assert read_batches(written(tmp_path, odd, "server.log")).context_block is None


GAP_S = 0.005


def simulated_log(engine: int = 0, block: int = 128, ahead: bool = False) -> tuple[list[str], list[float]]:
    """Return the log of an engine of known batch times and gaps, and the context of each iteration.

    Composed a batch ahead, what is in use has the new blocks of the next batch, too.
    """
    rng = np.random.default_rng(engine)
    lines: list[dict[str, Any]] = []
    contexts, in_use, grown = [], [], []
    now = 0.0
    for _ in range(6):
        now += 3.7  # idle
        waiting = [(int(rng.integers(80, 300)), int(rng.integers(60, 120))) for _ in range(25)]
        running: list[list[int]] = []  # tokens before, prompt, output
        while waiting or running:
            budget, new, prompts = 128, 0, 0
            held = blocks_of(running, block)
            decodes = [one for one in running if one[0] >= one[1]]
            context = sum(one[0] for one in decodes)
            budget -= len(decodes)
            for one in decodes:
                one[0] += 1
            cut = [one for one in running if one[0] < one[1]]
            room = 12 if not running or rng.random() < 0.3 else 0  # they come now and then
            while budget and (cut or (waiting and len(running) < room)):
                if cut:
                    one = cut.pop()
                else:
                    one = [0, *waiting.pop(0)]
                    running.append(one)
                piece = min(budget, one[1] - one[0])
                one[0] += piece
                new, prompts, budget = new + piece, prompts + 1, budget - piece
            grown.append(blocks_of(running, block) - held)
            running = [one for one in running if one[0] < one[1] + one[2] - 1]
            in_use.append(blocks_of(running, block))
            seconds = 0.04 + 0.5e-3 * (len(decodes) + new) + 10e-6 * context
            now += seconds + GAP_S
            stamp = f"11-02 10:{int(now // 60):02}:{int(now % 60):02}"
            counts = {"p": prompts, "x": new, "k": len(decodes), "y": len(decodes)}
            lines.append({"stamp": stamp, "ms": f"{seconds * 1e3:.2f}", "i": len(lines), **counts})
            contexts.append(float(context))
    shares = [(use + soon * ahead) / 2.5 for use, soon in zip(in_use, [*grown[1:], 0], strict=True)]
    text = [
        LINE.format(**line, use=f"{share * block / 128:.1f}").replace("11-02 10:00:00", line["stamp"])
        for line, share in zip(lines, shares, strict=True)
    ]
    return [line.replace("Engine 000", f"Engine {engine:03}") for line in text], contexts


def blocks_of(running: list[list[int]], block: int) -> int:
    return sum(-(-one[0] // block) for one in running)


@pytest.mark.parametrize("ahead", [False, True])
def test_short_blocks_tell_the_context_before_each_batch(ahead: bool, tmp_path: Path) -> None:
    lines, contexts = simulated_log(block=16, ahead=ahead)
    text = "INFO GPU KV cache size: 32,000 tokens\n" + "\n".join(lines)
    batches = read_batches(written(tmp_path, text, "server.log"))
    assert batches.context is not None
    decodes = np.array(contexts) > 0
    off = np.abs(batches.context - contexts)[decodes] / np.array(contexts)[decodes]
    assert np.median(off) < 0.05
    assert batches.context.sum() == pytest.approx(sum(contexts), rel=0.06), "prompts that are cut are held, too"


def test_a_log_whose_blocks_are_long_tells_contexts_and_gaps_by_following_requests(tmp_path: Path) -> None:
    lines, contexts = simulated_log()
    text = "INFO CPU KV cache size: 32,000 tokens\n" + "\n".join(lines)
    batches = read_batches(written(tmp_path, text, "server.log"))
    assert batches.context is not None
    assert batches.context_block is None, "nothing is blurred"
    assert batches.context.sum() == pytest.approx(sum(contexts), rel=0.05)
    assert batches.gap is not None
    assert batches.gap.seconds == pytest.approx(GAP_S, rel=0.2)
    assert batches.gap.low <= GAP_S <= batches.gap.high
    found = fit(batches, "composition-affine")
    c, a, attention = (found.parameters[name][0] for name in ("c", "a", "decode_attention"))
    assert [c, a, attention] == pytest.approx([0.04, 0.5e-3, 10e-6], rel=0.15)
    plain = fit(batches, "affine")
    c, a, gap = (plain.parameters[name][0] for name in ("c", "a", "gap"))
    assert plain.model(np.array([1.0]))[0] == pytest.approx(c + a + gap), "a batch takes its gap, too"
    assert plain.predicted.min() < c + 3 * a, "what was measured is without it"


def test_engines_in_one_log_are_told_apart(tmp_path: Path) -> None:
    logs = [simulated_log(engine=engine) for engine in (0, 1)]
    mixed = [line for both in zip(*(lines for lines, _ in logs), strict=False) for line in both]
    count = len(mixed) // 2
    batches = read_batches(written(tmp_path, "\n".join(mixed), "server.log"))
    assert batches.context is not None
    alone = sum(sum(contexts[:count]) for _, contexts in logs)
    assert batches.context.sum() == pytest.approx(alone, rel=0.05)
    assert batches.gap is not None
    assert batches.gap.seconds == pytest.approx(GAP_S, rel=0.3)


def test_contexts_are_not_followed_through_a_log_that_was_cut(tmp_path: Path) -> None:
    lines, _ = simulated_log()
    batches = read_batches(written(tmp_path, "\n".join(lines[3:]), "server.log"))
    assert batches.context is None


def test_a_log_without_timestamps_says_that_gaps_are_left_out(tmp_path: Path) -> None:
    lines, _ = simulated_log()
    bare = [line.partition("] ")[2] for line in lines]
    batches = read_batches(written(tmp_path, "\n".join(bare), "server.log"))
    assert batches.gap is None
    assert any("leave out what lies between two iterations" in note for note in batches.notes)


@pytest.mark.parametrize("wrapped", [False, True])
def test_forward_pass_metrics_are_read_as_published_and_as_dynamo_traces_them(wrapped: bool, tmp_path: Path) -> None:
    passes = [
        forward_pass(num_prefill_requests=1, sum_prefill_tokens=100, sum_prefill_kv_tokens=50),
        forward_pass(num_decode_requests=4, sum_decode_kv_tokens=900, wall_time=0.01),
        forward_pass(wall_time=0.0),
    ]
    told = [{"schema": "dynamo.fpm.trace.v1", "fpm": one} if wrapped else one for one in passes]
    lines = [*(json.dumps(one) for one in told), '{"wall_time": 1, "sched', '{"other": 1}']
    found = read_batches(written(tmp_path, "\n".join(lines), "passes.jsonl"))
    assert found.tokens.tolist() == [100, 4]
    assert found.seconds.tolist() == [0.02, 0.01]
    assert [c.tolist() for c in (found.squares, found.pairs, found.context)] == [[10_000, 0], [5_000, 0], [0, 900]]  # type: ignore[union-attr]
    assert found.left_out == 2


def test_tensorrt_llm_statistics_are_read_from_many_answers(tmp_path: Path) -> None:
    def stat(**batch: float) -> dict[str, Any]:
        return {"iter": 1, "iterLatencyMS": 12.0, "inflightBatchingStats": batch}

    first = [stat(numContextRequests=1, numCtxTokens=64, numCtxKvTokens=0, numGenRequests=0, numGenKvTokens=0)]
    later = [stat(numGenRequests=3, numGenKvTokens=600), stat(numGenRequests=0)]
    text = f"{json.dumps(first)}\n\n[]\n{json.dumps(later)}\n"
    found = read_batches(written(tmp_path, text, "stats.jsonl"))
    assert found.tokens.tolist() == [64, 3]
    assert found.context is not None
    assert found.context.tolist() == [0, 600]
    assert read_batches(written(tmp_path, json.dumps(first, indent=2), "one.json")).tokens.tolist() == [64]


# --- what cannot be used ---

BAD = {
    "neither tokens nor times": ("a,b\n1,2\n", None, "batches need tokens"),
    "two units": ("tokens,ms,seconds\n1,2,3\n", None, "ms"),
    "a word": ("tokens,ms\n1,2\nx,3\n", None, "line 3 has the tokens 'x'"),
    "a negative time": ("tokens,ms\n1,-2\n", None, "line 2 has the ms '-2'"),
    "a time of zero": ("tokens,ms\n1,0\n", None, "line 2 has the ms '0'"),
    "not a number": ("tokens,ms\n1,nan\n", None, "line 2 has the ms 'nan'"),
    "infinite": ("tokens,ms\ninf,1\n", None, "line 2 has the tokens 'inf'"),
    "no tokens in a batch": ("tokens,ms\n0,1\n", None, "has 0 tokens"),
    "no rows": ("tokens,ms\n", None, "no rows"),
    "a row too long": ("tokens,ms\n1,2,3\n", None, "line 2 has 3 fields"),
    "a load that does not add up": ("tokens,prefill_tokens,decode_tokens,ms\n9,1,2,3\n", None, "but 9 in all"),
    "empty": ("", None, "is empty"),
    "an unknown format": ("tokens,ms\n1,2\n", "vlm", "did you mean 'vllm'"),
    "a table that is no log": ("tokens,ms\n1,2\n", "vllm", "no batch that can be read as vllm"),
    "a table that is no metrics": ("tokens,ms\n1,2\n", "sglang", "no batch that can be read as sglang, 2 lines cannot"),
    "JSON of something else": ('{"a": 1}\n', None, "batches need tokens"),
    "an idle engine": ('{"wall_time": 0, "scheduled_requests": {}}\n', None, "no batch that can be read as sglang"),
    "a time of nothing": ("tokens,ms\n1,1e-300\n", None, "line 2 has the ms '1e-300'"),
    "more tokens than can be": ("tokens,ms\n1e12,1\n", None, "line 2 has the tokens '1e12'"),
    "a record of a huge batch": (
        '{"iterLatencyMS": 9, "inflightBatchingStats": {"numContextRequests": 1, "numCtxTokens": 1e150}}\n',
        None,
        "record 1: numCtxTokens is 1e+150, but must be from",
    ),
    "a record of no time": (
        '{"wall_time": 1e-308, "scheduled_requests": {"num_decode_requests": 1}}\n',
        None,
        "record 1: wall_time is 1e-308 s, but must be from 1e-09",
    ),
    "a log of a huge batch": (
        LINE.format(i=0, p=1, x="9" * 400, k=0, y=0, ms=8.5, use=1.0) + "\n",
        None,
        "line 1: context tokens is inf",
    ),
    "a nonsense number": ('{"wall_time": "x", "scheduled_requests": {}}\n', None, "1 line"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_gives_one_line(name: str, tmp_path: Path) -> None:
    text, format, words = BAD[name]
    with pytest.raises(InputError) as raised:
        read_batches(written(tmp_path, text, "measured.csv"), format)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("format", [None, *FORMATS])
def test_a_file_that_is_not_there_or_is_no_text_gives_one_line(format: str | None, tmp_path: Path) -> None:
    (tmp_path / "noise.csv").write_bytes(bytes(range(256)) * 8)
    for path in (tmp_path / "none.csv", tmp_path / "noise.csv", tmp_path):
        with pytest.raises(InputError) as raised:
            read_batches(path, format)
        assert "\n" not in str(raised.value)


def test_rows_that_no_value_has_are_refused_and_the_values_named(tmp_path: Path) -> None:
    path = written(tmp_path, "tokens,ms,host\n1,2,a\n2,3,b\n")
    assert len(read_batches(path, where={"host": " b "})) == 1
    with pytest.raises(InputError, match=r"no row whose 'host' is 'c', as `where` asks, but 'a, b'"):
        read_batches(path, where={"host": "c"})
    with pytest.raises(InputError, match=r"no column 'hots', by which `where` chooses rows; did you mean 'host'"):
        read_batches(path, where={"hots": "a"})


def test_a_line_with_an_odd_time_is_no_iteration_and_costs_only_itself(tmp_path: Path) -> None:
    line = "Iteration({}): 0 context requests, 0 context tokens, {} generation requests, {} generation tokens, "
    line += "iteration elapsed time: {} ms\n"
    log = tmp_path / "vllm.log"
    log.write_text(line.format(1, 2, 2, "7.5") + line.format(2, 3, 3, "1.2.3") + line.format(3, 4, 4, "8"))
    assert read_batches(log).tokens.tolist() == [2.0, 4.0]
