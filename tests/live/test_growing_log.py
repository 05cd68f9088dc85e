"""A log is followed as it grows: cut lines are waited for, and rotation loses nothing that can be known."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import InputError
from penstock.live.growing_log import GrowingLog
from penstock.live.iterations import IterationSource
from penstock.live.iterations_seen import Seen
from tests.live.conftest import Server
from tests.live.vllm_page import page

REAL = Path(__file__).parents[3] / "shared" / "data" / "real_vllm_cpu" / "log" / "vllm_0.32.0_iterations.log.gz"
SIZE = "INFO 11-22 10:00:00 GPU KV cache size: 32,000 tokens\n"


def line(number: int, ms: float = 50.0) -> str:
    """The line of an iteration of some decodes, and of a prompt now and then, 40 ms and .5 ms a token."""
    prompt, decodes = (100 if number % 7 == 0 else 0), 1 + number % 13
    ms = 40 + 0.5 * (prompt + decodes) if ms == 50.0 else ms
    return (
        f"INFO 11-22 10:00:{number % 60:02} Engine 000: Iteration({number}): {prompt // 100} context requests, "
        f"{prompt} context tokens, {decodes} generation requests, {decodes} generation tokens, "
        f"iteration elapsed time: {ms:.2f} ms, GPU KV cache usage: {decodes / 10:.1f}%\n"
    )


def lines(first: int, end: int) -> str:
    return "".join(line(number) for number in range(first, end))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "engine.log"
    path.write_text(SIZE + lines(0, 150))
    return path


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def read(source: IterationSource) -> Seen:
    seen = source.read().seen
    assert seen is not None
    return seen


def test_what_is_there_is_read_and_then_what_comes(log: Path) -> None:
    source = IterationSource(GrowingLog(log), None)
    first = read(source)
    assert first.fitted is not None
    assert first.fitted.parameters["c"].value == pytest.approx(0.04, rel=0.02)
    assert first.batches == 150
    append(log, lines(150, 160))
    assert read(source).batches == 160


def test_a_line_that_is_half_written_is_waited_for(log: Path) -> None:
    source = IterationSource(GrowingLog(log), None)
    append(log, line(150)[:80])
    assert read(source).batches == 150
    append(log, line(150)[80:])
    assert read(source).batches == 151


@pytest.mark.parametrize("way", ["moved", "cut"])
def test_a_log_that_is_rotated_goes_on(log: Path, way: str) -> None:
    source = IterationSource(GrowingLog(log), None)
    read(source)
    append(log, lines(150, 155))
    if way == "moved":
        log.rename(log.with_suffix(".1"))
        assert read(source).batches == 155  # while there is no new one
        log.write_text(lines(155, 160))
        text = "the log was rotated"
    else:
        log.write_text(lines(155, 160))
        text = "followed from the new one's beginning"
    taken = source.read()
    assert any(text in note.text for note in taken.notes)
    assert taken.seen is not None
    assert taken.seen.batches == (160 if way == "moved" else 155)


def test_an_engine_that_begins_anew_in_the_same_log_is_looked_at_anew(log: Path) -> None:
    source = IterationSource(GrowingLog(log), None)
    read(source)
    append(log, SIZE + lines(0, 3))
    assert (read(source).batches, read(source).fitted) == (3, None)


def test_lines_that_are_broken_are_counted(log: Path) -> None:
    append(log, "x iteration elapsed time: soon\n" + line(150, ms=1e12) + lines(151, 160))
    seen = read(IterationSource(GrowingLog(log), None))
    assert seen.fitted is not None
    assert (seen.batches, seen.unreadable) == (159, 2)


def test_a_log_that_is_still_empty_may_grow(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    path.touch()
    source = IterationSource(GrowingLog(path), None)
    assert read(source).batches == 0
    append(path, SIZE + lines(0, 120))
    assert read(source).batches == 120


def test_a_log_that_does_not_grow_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "engine.log.gz"
    path.write_bytes(gzip.compress(b"INFO"))
    with pytest.raises(InputError, match="is compressed, and so does not grow"):
        GrowingLog(path)
    with pytest.raises(InputError, match="does not exist"):
        GrowingLog(tmp_path / "none.log")


def test_the_command_follows_a_log(
    penstock: Callable[..., tuple[int, str, str]], serve: Callable[..., Server], log: Path
) -> None:
    engine = serve(page()).name
    asked = ("watch", engine, "--log", log, "--token-budget", 128, "--every", "500ms", "--once", "--json")
    status, out, err = penstock(*asked)
    assert (status, err) == (0, "")
    together = json.loads(out)["together"]
    assert together["iterations"] == 150
    assert together["fitted"]["parameters"]["c"]["value"] == pytest.approx(0.04, rel=0.02)


@pytest.mark.skipif(not REAL.exists(), reason="the recordings of real engines are not here")
def test_a_real_log_tells_the_true_batch_times_while_it_grows(tmp_path: Path) -> None:
    """40 ms, .5 ms a token and 10 us a token before a decode, and what the engine takes beside them."""
    written = gzip.decompress(REAL.read_bytes())
    path = tmp_path / "engine.log"
    path.touch()
    source = IterationSource(GrowingLog(path), None)
    middle = written.index(b"Iteration(1200)")
    for part in (written[:middle], written[middle:]):
        with path.open("ab") as file:
            file.write(part)
        seen = read(source)
        assert seen.fitted is not None
        values = {name: estimate.value for name, estimate in seen.fitted.parameters.items()}
        assert (values["c"], values["a"]) == pytest.approx((0.0415, 0.0005), rel=0.15)
        assert seen.token_budget == 128
    assert values["decode_attention"] == pytest.approx(9e-6, rel=0.15)  # what it is, few requests hide
    assert seen.batches == 2_017
    assert 0.002 < seen.gap_s < 0.006
