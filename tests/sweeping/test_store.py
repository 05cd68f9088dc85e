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
    with Journal.opened(out, "digest", fresh=True) as journal:
        for place in range(count):
            assert journal.add({"point": place, "rho": place / 7})
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
    with Journal.opened(folder / "t.csv", "digest") as journal:
        assert journal.rows == {place: {"point": place, "rho": place / 7} for place in range(kept)}
        for place in range(9):
            assert journal.add({"point": place, "rho": place / 7}) == (place >= kept)
    assert path.read_bytes() == whole


def test_results_of_another_sweep_are_refused_unless_one_begins_anew(tmp_path: Path) -> None:
    written(tmp_path, 3)
    with pytest.raises(ps.InputError, match="another sweep"), Journal.opened(tmp_path / "t.csv", "other"):
        pass
    with Journal.opened(tmp_path / "t.csv", "digest") as journal:
        assert len(journal.rows) == 3
    with Journal.opened(tmp_path / "t.csv", "other", fresh=True) as journal:
        assert not journal.rows


def test_a_table_that_no_journal_explains_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "t.csv"
    out.write_text("precious\n")
    with pytest.raises(ps.InputError, match="would be lost"), Journal.opened(out, "digest"):
        pass
    assert out.read_text() == "precious\n"
    assert not store.journal_of(out).exists()


def test_a_file_of_another_kind_under_the_name_of_the_journal_is_not_touched(tmp_path: Path) -> None:
    path = store.journal_of(tmp_path / "t.csv")
    path.write_text("diary\nof a year\n")
    with pytest.raises(ps.InputError, match="no journal of a sweep"), Journal.opened(tmp_path / "t.csv", "digest"):
        pass
    assert path.read_text() == "diary\nof a year\n"


def test_two_sweeps_do_not_write_one_table_at_a_time(tmp_path: Path) -> None:
    with (
        Journal.opened(tmp_path / "t.csv", "digest"),
        pytest.raises(ps.InputError, match="another sweep is writing"),
        Journal.opened(tmp_path / "t.csv", "digest"),
    ):
        pass


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_table_comes_back_as_it_was_written(tmp_path: Path, name: str) -> None:
    table = pl.DataFrame({"point": [0, 1], "rho": [0.1, None], "error": [None, 'no, "never"']})
    store.write_table(table, tmp_path / name)
    read = pl.read_csv if name.endswith("csv") else pl.read_parquet
    assert read(tmp_path / name).equals(table)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["t.xlsx", "t", "no_such_folder/t.csv"])
def test_a_table_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path, name: str) -> None:
    with pytest.raises(ps.InputError, match=r"give|make"):
        store.checked_output(tmp_path / name)
