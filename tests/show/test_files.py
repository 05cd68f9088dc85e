"""Files are written whole, and what stands under their names stays what it is."""

import os
import threading
from pathlib import Path

import polars as pl
import pytest

from penstock.show.files import write_whole
from penstock.sweeping.store import write_table


def test_a_pipe_is_written_into_and_stays_one(tmp_path: Path) -> None:
    """It was replaced by a file; so was a device, where root wrote."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()), daemon=True)
    reader.start()
    write_whole(path, b"text")
    assert path.is_fifo()
    reader.join(10)
    assert read == [b"text"]


@pytest.mark.parametrize("there", [True, False])
def test_what_a_link_leads_to_is_written_and_the_link_stays(there: bool, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    file, link = tmp_path / "folder" / "file.html", tmp_path / "link.html"
    if there:
        file.write_text("old")
    link.symlink_to(file)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert file.read_text() == "new"
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "folder", file, link]


def test_a_file_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    write_whole(path, b"text")
    assert path.stat().st_mode & 0o777 == 0o644
    path.chmod(0o600)
    write_whole(path, b"more")
    assert path.stat().st_mode & 0o777 == 0o600
    write_table(pl.DataFrame({"a": [1]}), path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_folder_is_not_written_and_left_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path, b"text")
    assert tmp_path.is_dir()
