"""Files of the user are read through one door: regular files or standard input, of bounded size."""

import gzip
import io
import os
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

import penstock as ps
from penstock.document import read_document
from penstock.errors import InputError
from penstock.inputs.source import Source
from penstock.planning.rates import RateProfile
from penstock.scenario.scenario import read_scenario
from penstock.system.measured_times import Measured
from penstock.workload import traces

KIB = 2**10 / 2**30
ROWS = "prompt,output\n" + "120,30\n" * 400  # 2.8 KB
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
    monkeypatch.setattr("penstock.inputs.source._bounded", lambda *_: pytest.fail("kept"))
    with pytest.raises(InputError, match="unpacks to more than"):
        Source.at(path, max_gib=4 * KIB)


def test_a_parquet_file_of_few_bytes_and_many_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pl.DataFrame({"prompt": [7] * 200_000, "output": [7] * 200_000}).write_parquet(path)
    assert path.stat().st_size < 200_000
    with pytest.raises(InputError, match="unpacks to more than"):
        ps.read_trace(path, max_gib=200 * KIB)


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
