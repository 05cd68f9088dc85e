"""Journals that survive whatever happens between two bytes."""

import json
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
    with Journal.opened(folder / "t.csv", "digest") as journal:
        assert journal.rows == {place: {"point": place, "verdict": "stable", "rho": place / 7} for place in range(kept)}
        for place in range(9):
            assert journal.add({"point": place, "verdict": "stable", "rho": place / 7}) == (place >= kept)
    assert path.read_bytes() == whole


RESULTS = {place: {"point": place, "verdict": "stable", "rho": place / 7} for place in range(3)}


def mended(path: Path, lost: int) -> None:
    """Check that a journal lost one point, and takes it again for good."""
    out = path.with_suffix("")
    with Journal.opened(out, "digest") as journal:
        assert journal.rows == {place: row for place, row in RESULTS.items() if place != lost}
        assert journal.add(RESULTS[lost])
    with Journal.opened(out, "digest") as journal:
        assert journal.rows == RESULTS


@given(place=st.integers(0, 2), at=st.integers(0, 70), byte=st.integers(0, 255))
def test_a_line_in_which_any_byte_changed_is_passed_over_and_its_point_run_again(
    tmp_path_factory: pytest.TempPathFactory, place: int, at: int, byte: int
) -> None:
    path = written(tmp_path_factory.mktemp("changed"), 3)
    lines = path.read_bytes().splitlines(keepends=True)
    line = bytearray(lines[1 + place])
    at %= len(line) - 1
    line[at] = byte if byte != line[at] else byte ^ 1
    lines[1 + place] = bytes(line)
    path.write_bytes(b"".join(lines))
    mended(path, place)


def sealed_for(digest: str) -> bytes:
    return store._sealed(json.dumps({"point": 1, "verdict": "unstable"}).encode(), digest)


@pytest.mark.parametrize(
    "bad",
    [
        b'{"point": 1, "verdict": "stable", "rho": 0.14285714285714285}\n',
        sealed_for("other"),
        sealed_for("digest").replace(b"\n", b"\r\n"),
        sealed_for("digest")[:-2] + b"\n",
        sealed_for("digest").upper(),
        b"\t00000000\n",
        b"[" * 5_000 + b"\n",
        b"\0\0\0\0\n",
        b"\xff\n",
        b"\n",
        b"",
    ],
)
def test_a_line_that_is_not_as_this_sweep_wrote_it_is_passed_over(tmp_path: Path, bad: bytes) -> None:
    path = written(tmp_path, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = bad
    path.write_bytes(b"".join(lines))
    mended(path, 1)


def test_a_journal_of_an_older_penstock_or_with_a_changed_head_is_refused_in_words(tmp_path: Path) -> None:
    path = written(tmp_path, 3)
    _, *lines = path.read_bytes().splitlines(keepends=True)
    for head in (b'{"sweep": "older"}\n', b'{"sweep": "digest" }\n', b'{"sweep": "digest"}\t12345678\n'):
        path.write_bytes(b"".join([head, *lines]))
        with pytest.raises(ps.InputError, match="older Penstock"), Journal.opened(tmp_path / "t.csv", "digest"):
            pass
        assert path.read_bytes() == b"".join([head, *lines])


def test_a_bad_point_is_a_result(tmp_path: Path) -> None:
    with Journal.opened(tmp_path / "t.csv", "digest") as journal:
        journal.add({"point": 0, "error": "why"})
    with Journal.opened(tmp_path / "t.csv", "digest") as journal:
        assert journal.rows == {0: {"point": 0, "error": "why"}}


def test_a_journal_without_results_belongs_to_any_sweep(tmp_path: Path) -> None:
    with Journal.opened(tmp_path / "t.csv", "digest"):
        pass
    assert store.journal_of(tmp_path / "t.csv").read_bytes() == b""
    with Journal.opened(tmp_path / "t.csv", "other") as journal:
        assert not journal.rows


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


def test_a_table_beside_an_empty_journal_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "t.csv"
    out.write_text("precious\n")
    store.journal_of(out).touch()
    with pytest.raises(ps.InputError, match="would be lost"), Journal.opened(out, "digest"):
        pass


@pytest.mark.parametrize("text", ["diary\nof a year\n", "diary without an end", '{"point": 0}', "[1]\n", "\n"])
def test_a_file_of_another_kind_under_the_name_of_the_journal_is_not_touched(tmp_path: Path, text: str) -> None:
    path = store.journal_of(tmp_path / "t.csv")
    path.write_text(text)
    with pytest.raises(ps.InputError, match="no journal of a sweep"), Journal.opened(tmp_path / "t.csv", "digest"):
        pass
    assert path.read_text() == text


def test_two_sweeps_do_not_write_one_table_at_a_time(tmp_path: Path) -> None:
    with (
        Journal.opened(tmp_path / "t.csv", "digest"),
        pytest.raises(ps.InputError, match="another sweep is writing"),
        Journal.opened(tmp_path / "t.csv", "digest"),
    ):
        pass


def test_only_a_full_disk_is_called_one(tmp_path: Path) -> None:
    with pytest.raises(ConnectionResetError), store.named_if_full(tmp_path / "t.csv"):
        raise ConnectionResetError("a worker is gone")


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


def test_a_table_that_is_a_link_is_written_where_it_leads_and_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "t.csv", tmp_path / "there" / "real.csv"
    for existed in (False, True):
        target.write_text("") if existed else link.symlink_to(target)
        assert store.checked_output(link) == target.resolve()
        store.write_table(pl.DataFrame({"point": [0]}), store.checked_output(link))
        assert link.is_symlink()
        assert target.read_text() == "point\n0\n"


def test_a_link_that_leads_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").symlink_to(tmp_path / "t.csv")
    with pytest.raises(ps.InputError, match="link that leads nowhere"):
        store.checked_output(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("name", "said"),
    [(".csv", "ending without a name; give .*sweep.csv"), ("j.csv", "j.csv.journal, where .* is a folder; move it")],
)
def test_a_name_that_cannot_be_used_is_refused_with_what_to_do(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "j.csv.journal").mkdir()
    with pytest.raises(ps.InputError, match=said):
        store.checked_output(tmp_path / name)
