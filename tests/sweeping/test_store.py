"""Journals that survive whatever happens between two bytes."""

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.sweeping import store
from penstock.sweeping.store import Journal


def written(folder: Path, count: int) -> Path:
    """Write a journal of so many points, and return its path."""
    out = folder / "t.csv"
    with Journal.opened(out, "digest", count, fresh=True) as journal:
        for place in range(count):
            assert journal.add({"point": place, "verdict": "stable", "rho": place / 7})
    return store.journal_of(out)


@given(cut=st.integers(0, 400))
def test_a_journal_cut_at_any_byte_keeps_the_whole_lines_before_it(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    path = written(folder, 9)
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    kept = max(whole[:cut].count(b"\n") - 1, 0)
    with Journal.opened(folder / "t.csv", "digest", 9) as journal:
        assert journal.rows == {place: {"point": place, "verdict": "stable", "rho": place / 7} for place in range(kept)}
        for place in range(9):
            assert journal.add({"point": place, "verdict": "stable", "rho": place / 7}) == (place >= kept)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "bad",
    [
        b'{"point": 9, "verdict": "stable"}',
        b'{"point": -1, "verdict": "stable"}',
        b'{"point": true, "verdict": "stable"}',
        b'{"point": 1.0, "verdict": "stable"}',
        b'{"point": "1", "verdict": "stable"}',
        b'{"point": 1}',
        b'{"point": 1, "verdict": "stable", "rho": NaN}',
        b'{"point": 1, "verdict": "stable", "rho": 1e999}',
        b'{"sweep": "digest"}',
        b"[1, 2]",
        b"[" * 5_000,
        b'{"point": ' + b"9" * 5_000 + b"}",
        b"\0\0\0\0",
        b"\xff",
        b"",
    ],
)
def test_a_whole_line_that_is_no_result_is_passed_over_and_its_point_run_again(tmp_path: Path, bad: bytes) -> None:
    path = written(tmp_path, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = bad + b"\n"
    path.write_bytes(b"".join(lines))
    for _ in range(2):
        with Journal.opened(tmp_path / "t.csv", "digest", 9) as journal:
            assert {0, 2} <= set(journal.rows) <= {0, 1, 2}
            assert journal.rows.get(1, {"rho": 1 / 7})["rho"] == 1 / 7
            journal.add({"point": 1, "verdict": "stable", "rho": 1 / 7})
    with Journal.opened(tmp_path / "t.csv", "digest", 9) as journal:
        assert journal.rows == {place: {"point": place, "verdict": "stable", "rho": place / 7} for place in range(3)}


def test_a_bad_point_is_a_result(tmp_path: Path) -> None:
    with Journal.opened(tmp_path / "t.csv", "digest", 9) as journal:
        journal.add({"point": 0, "error": "why"})
    with Journal.opened(tmp_path / "t.csv", "digest", 9) as journal:
        assert journal.rows == {0: {"point": 0, "error": "why"}}


def test_a_journal_without_results_belongs_to_any_sweep(tmp_path: Path) -> None:
    with Journal.opened(tmp_path / "t.csv", "digest", 9):
        pass
    assert store.journal_of(tmp_path / "t.csv").read_bytes() == b""
    with Journal.opened(tmp_path / "t.csv", "other", 9) as journal:
        assert not journal.rows


def test_results_of_another_sweep_are_refused_unless_one_begins_anew(tmp_path: Path) -> None:
    written(tmp_path, 3)
    with pytest.raises(ps.InputError, match="another sweep"), Journal.opened(tmp_path / "t.csv", "other", 9):
        pass
    with Journal.opened(tmp_path / "t.csv", "digest", 9) as journal:
        assert len(journal.rows) == 3
    with Journal.opened(tmp_path / "t.csv", "other", 9, fresh=True) as journal:
        assert not journal.rows


def test_a_table_that_no_journal_explains_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "t.csv"
    out.write_text("precious\n")
    with pytest.raises(ps.InputError, match="would be lost"), Journal.opened(out, "digest", 9):
        pass
    assert out.read_text() == "precious\n"
    assert not store.journal_of(out).exists()


def test_a_table_beside_an_empty_journal_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "t.csv"
    out.write_text("precious\n")
    store.journal_of(out).touch()
    with pytest.raises(ps.InputError, match="would be lost"), Journal.opened(out, "digest", 9):
        pass


@pytest.mark.parametrize("text", ["diary\nof a year\n", "diary without an end", '{"point": 0}', "[1]\n", "\n"])
def test_a_file_of_another_kind_under_the_name_of_the_journal_is_not_touched(tmp_path: Path, text: str) -> None:
    path = store.journal_of(tmp_path / "t.csv")
    path.write_text(text)
    with pytest.raises(ps.InputError, match="no journal of a sweep"), Journal.opened(tmp_path / "t.csv", "digest", 9):
        pass
    assert path.read_text() == text


def test_two_sweeps_do_not_write_one_table_at_a_time(tmp_path: Path) -> None:
    with (
        Journal.opened(tmp_path / "t.csv", "digest", 9),
        pytest.raises(ps.InputError, match="another sweep is writing"),
        Journal.opened(tmp_path / "t.csv", "digest", 9),
    ):
        pass


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_table_comes_back_as_it_was_written(tmp_path: Path, name: str) -> None:
    table = pl.DataFrame({"point": [0, 1], "rho": [0.1, None], "error": [None, 'no, "never"']})
    store.write_table(table, tmp_path / name)
    read = pl.read_csv if name.endswith("csv") else pl.read_parquet
    assert read(tmp_path / name).equals(table)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["t.xlsx", "t", "no_such_folder/t.csv", "a" * 250 + ".csv", "t.parquet"])
def test_a_table_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path, name: str) -> None:
    store.journal_of(tmp_path / "t.parquet").mkdir()
    with pytest.raises(ps.InputError, match=r"give|make"):
        store.checked_output(tmp_path / name)
