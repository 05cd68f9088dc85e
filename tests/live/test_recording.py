"""What is recorded is replayed as it came, to the last bit; what is broken in a recording is said."""

from pathlib import Path

import pytest

from penstock.errors import InputError
from penstock.live.metrics_pages import Note
from penstock.live.recording import Recorder, replayed
from penstock.live.rounds import Round
from penstock.live.scrape import Scrape

ROUNDS = [
    Round(10.5, (Scrape("a:1", 10.1, running=3.0, finished=0.1 + 0.2),), (Note("b:1", "takes no connections"),),
          {"a:1": "vLLM"}),
    Round(15.5, (Scrape("a:1", 15.1, running=4.0), Scrape("b:1", 15.2)), (), {"a:1": "vLLM", "b:1": "SGLang"}),
]  # fmt: skip


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "watch.jsonl"
    with Recorder(path, 5.0) as recorder:
        for each in ROUNDS:
            recorder.write(each)
    return path


def test_a_replay_is_what_came(recording: Path) -> None:
    assert [*replayed(recording)] == ROUNDS


def test_every_round_is_in_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "watch.jsonl"
    with Recorder(path, 5.0) as recorder:
        recorder.write(ROUNDS[0])
        assert [*replayed(path)] == ROUNDS[:1]


def test_a_recording_is_never_written_over(recording: Path) -> None:
    with pytest.raises(InputError, match="exists, and would be lost"):
        Recorder(recording, 5.0)


def test_a_recording_in_a_folder_that_is_not_there_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no folder .*; make it, or give another file to --record"):
        Recorder(tmp_path / "none" / "watch.jsonl", 5.0)


def test_what_fails_before_an_engine_is_read_leaves_no_file_behind(tmp_path: Path) -> None:
    """It could not be recorded again under that name."""
    path = tmp_path / "watch.jsonl"
    silent = Round(9.0, (), (Note("b:1", "takes no connections"),))
    with Recorder(path, 5.0) as recorder:
        recorder.write(silent)
    assert not path.exists()
    with Recorder(path, 5.0) as recorder:
        for each in (silent, *ROUNDS):
            recorder.write(each)
    assert [each.notes for each in replayed(path)] == [silent.notes, *(each.notes for each in ROUNDS)]


def test_rounds_without_an_engine_are_kept_in_bounded_number(tmp_path: Path) -> None:
    path = tmp_path / "watch.jsonl"
    with Recorder(path, 5.0) as recorder:
        for second in range(1_500):
            recorder.write(Round(second, (), (Note("b:1", "takes no connections"),)))
        recorder.write(ROUNDS[0])
    kept = [*replayed(path)]
    assert len(kept) == 1_000
    assert kept[-1] == ROUNDS[0]


@pytest.mark.parametrize("line", ["{", "[]", '{"time_s": 1}', '{"time_s": "x", "scrapes": [], "notes": []}', "x" * 99,
                                  '{"time_s": 1, "scrapes": [{"engine": "a"}], "notes": []}',
                                  '{"time_s": 1, "scrapes": [{"engine": "a", "time_s": NaN}], "notes": []}',
                                  '{"time_s": 1, "scrapes": [{"engine": "a", "time_s": 1e300}], "notes": []}',
                                  '{"time_s": 1.7e12, "scrapes": [], "notes": []}',
                                  '{"time_s": 1, "scrapes": [], "notes": [3]}'])  # fmt: skip
def test_broken_lines_are_left_out_and_said(recording: Path, line: str) -> None:
    header, first, second = recording.read_text().splitlines()
    recording.write_text("\n".join((header, first, line, second)))
    *before, last = replayed(recording)
    assert before == ROUNDS[:1]
    assert last.scrapes == ROUNDS[1].scrapes
    assert last.notes[-1] == Note("watch.jsonl", "1 broken lines of the recording are left out")


def test_numbers_that_only_a_newer_version_knows_are_left_out(recording: Path) -> None:
    recording.write_text(recording.read_text().replace('"running": 3.0', '"running": 3.0, "warp": 9.0'))
    assert [*replayed(recording)] == ROUNDS


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("hello\n", "is no recording"),
        ('{"penstock_recording": 2}\n', "Take a newer Penstock"),
        ('{"penstock_recording": 1}\n', "without a round"),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        [*replayed(path)]
