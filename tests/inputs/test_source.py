"""Files of the user are read through one door: regular files or standard input, of bounded size."""

import gzip
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

import penstock as ps
from penstock.document import read_document
from penstock.errors import InputError
from penstock.inputs.recording import read_recording
from penstock.inputs.source import Source
from penstock.planning.rates import RateProfile
from penstock.scenario.scenario import read_scenario
from penstock.system.measured_times import Measured
from penstock.system.models.config import read_shape
from penstock.workload import traces

KIB = 2**10 / 2**30
MIB = 2**20
SMALL = 8 * MIB / 2**30
"""A limit in GiB under which a line, a cell and a document of one value have at most 1 MiB."""
ROWS = "prompt,output\n" + "120,30\n" * 400  # 2.8 KB
Reader = Callable[..., object]
READERS = [
    Source.at,
    ps.read_trace,
    ps.read_batches,
    ps.read_benchmarks,
    Measured.read,
    RateProfile.read,
    read_document,
]


@pytest.mark.parametrize("read", READERS)
def test_pipes_and_devices_are_refused_at_once(read, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    for path in (tmp_path / "pipe.csv", Path("/dev/zero")):
        with pytest.raises(InputError, match="no regular file, so reading it may never end"):
            read(path)


@pytest.mark.parametrize("read", [Source.at, ps.read_trace, ps.read_batches, ps.read_benchmarks])
@pytest.mark.parametrize("packed", [False, True])
def test_no_more_is_unpacked_than_the_limit(read, packed: bool, tmp_path: Path) -> None:
    path = tmp_path / ("a.csv.gz" if packed else "a.csv")
    path.write_bytes(gzip.compress(ROWS.encode()) if packed else ROWS.encode())
    with pytest.raises(InputError, match=r"more than 9.53674e-07 GiB, the most that is read"):
        read(path, max_gib=KIB)


def test_a_larger_limit_reads_what_the_smaller_one_refuses(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(ROWS.encode()))
    assert traces.load(path, max_gib=4 * KIB).prompt_tokens.size == 400


def test_a_bomb_is_counted_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(ROWS.encode() * 400))
    monkeypatch.setattr("penstock.inputs.source._in_memory", lambda *_: pytest.fail("kept"))
    with pytest.raises(InputError, match="unpacks to more than"):
        Source.at(path, max_gib=4 * KIB)


def test_a_parquet_file_of_few_bytes_and_many_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pl.DataFrame({"prompt": [7] * 200_000, "output": [7] * 200_000}).write_parquet(path)
    assert path.stat().st_size < 200_000
    with pytest.raises(InputError, match="unpacks to more than"):
        ps.read_trace(path, max_gib=200 * KIB)


LINE_READERS = {
    "trace": lambda path: ps.read_trace(path, max_gib=SMALL),
    "batches": lambda path: ps.read_batches(path, max_gib=SMALL),
    "benchmarks": lambda path: ps.read_benchmarks(path, max_gib=SMALL),
}
BEGINNINGS = {
    "a.csv": b"prompt,output\n1,2\n",
    "a.jsonl": b'{"prompt": 1, "output": "',
    "a.json": b'{"backend": "',
    "a.log": b"INFO iteration elapsed time: ",
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", BEGINNINGS)
@pytest.mark.parametrize("read", LINE_READERS.values(), ids=LINE_READERS)
def test_a_line_without_end_is_refused_before_it_is_taken_apart(
    read: Reader, name: str, packed: bool, tmp_path: Path
) -> None:
    """Python takes a line of 1.9 GiB into memory seven times."""
    content = BEGINNINGS[name] + b"7" * (3 * MIB)
    path = tmp_path / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(InputError, match=r"more than 1 MiB"):
        read(path)


def sessions(path: Path) -> object:
    return ps.read_sessions(path, "pool")


@pytest.mark.parametrize("read", [Measured.read, RateProfile.read, read_recording, sessions])
def test_every_reader_of_lines_has_the_limit(read: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.inputs.source.MOST_GIB", SMALL)
    path = tmp_path / "a.csv"
    path.write_bytes(b"rate\n1\n" + b"7" * (3 * MIB))
    with pytest.raises(InputError, match=r"a line or a cell of more than 1 MiB"):
        read(path)


def test_a_cell_of_many_lines_is_as_long_as_a_line_at_most(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'prompt,output,text\n1,2,"' + b"word\n" * MIB + b'"\n')
    with pytest.raises(InputError, match=r"a line or a cell of more than 1 MiB"):
        ps.read_trace(path, max_gib=SMALL)


def test_cells_in_quotes_with_line_ends_in_them_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"prompt,output,text\n" + b'1,2,"two\nlines"\n' * (MIB // 8))
    assert ps.read_trace(path, max_gib=SMALL).lengths.prompt_tokens.size == MIB // 8


def test_a_document_of_few_bytes_and_many_values_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.inputs.source._MOST_VALUES", 1_000)
    path = tmp_path / "a.json"
    path.write_bytes(b"[0" + b",{}" * 600 + b"]")
    with pytest.raises(InputError, match=r"1,000 values in one document"):
        ps.read_benchmarks(path)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_table_of_a_million_columns_is_refused_at_once(name: str, tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(100_000)]
    text = ",".join(names) if name == "a.csv" else json.dumps(dict.fromkeys(names, 1))
    (tmp_path / name).write_text(f"{text}\n")
    with pytest.raises(InputError, match=r"has 100,000 columns, more than the 10,000"):
        ps.read_trace(tmp_path / name)


def test_a_parquet_file_of_one_row_and_a_long_list_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    columns = {"timestamp": [0], "input_length": [7], "output_length": [7], "hash_ids": [[7] * 3_000_000]}
    pl.DataFrame(columns).write_parquet(path)
    assert path.stat().st_size < 10_000
    with pytest.raises(InputError, match="unpacks to more than"):
        ps.read_trace(path, max_gib=SMALL)


@pytest.mark.parametrize("value", ["1, ", "[], ", "a: , "])
def test_a_scenario_of_more_values_than_it_may_have_is_refused_before_it_is_composed(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read, to 200,000 of them, for half a minute."""
    path = tmp_path / "s.yaml"
    path.write_text(f"workload: [{value * 100_001}]")
    monkeypatch.setattr("yaml.load", lambda *_: pytest.fail("composed"))
    with pytest.raises(InputError, match="more than 100,000 keys and values"):
        read_document(path)


def test_a_long_scenario_of_few_values_is_read(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("name: " + "a, " * 100_000)
    assert len(read_document(path)["name"]) == 299_999


def test_a_config_is_read_through_the_same_door(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(InputError, match="no regular file"):
        read_shape(tmp_path / "config.json")


@pytest.mark.parametrize("packed", [False, True])
def test_zeros_are_no_text_and_are_not_unpacked(packed: bool, tmp_path: Path) -> None:
    path = tmp_path / "zeros.csv"
    path.write_bytes(gzip.compress(bytes(10_000_000)) if packed else bytes(10_000))
    with pytest.raises(InputError, match="holds bytes of zero, so it is not text"):
        Source.at(path)


def standard_input(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content)))


@pytest.mark.parametrize("packed", [False, True])
def test_a_dash_is_standard_input(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    content = gzip.compress(ROWS.encode()) if packed else ROWS.encode()
    standard_input(content, monkeypatch)
    assert traces.load("-").prompt_tokens.size == 400
    standard_input(content, monkeypatch)
    with pytest.raises(InputError, match=r"standard input: .* more than"):
        ps.read_trace("-", max_gib=KIB)
    standard_input(b"", monkeypatch)
    with pytest.raises(InputError, match="standard input: is empty"):
        ps.read_batches("-")


def test_a_scenario_has_the_limit_as_a_field(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(ROWS)
    workload = "{{trace: a.csv, rate: 1, arrivals: poisson, max_gib: {}}}"
    server = "{{max_num_batched_tokens: 9, batch_time: {{c_ms: 1, a_ms: 1, b0: 9}}}}"
    text = f"workload: {workload}\nserver: {server}\n"
    (tmp_path / "s.yaml").write_text(text.format(KIB))
    with pytest.raises(InputError, match="more than"):
        read_scenario(tmp_path / "s.yaml")
    (tmp_path / "s.yaml").write_text(text.format(1))
    assert read_scenario(tmp_path / "s.yaml").workload.rate == pytest.approx(1)
