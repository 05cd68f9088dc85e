"""Pages that were damaged on the way: never a traceback, and no wrong number without a note.

Each example damages the second of three pages of one engine. A number is wrong if no undamaged page of that time
could have held it: a counter below that of the page before or above that of the page after, another value of a
gauge, a spread that is off by a third (its buckets are counters of a hundred requests). Of three gauges the page has
one line and nothing that contradicts it: what a changed digit makes of them, nobody can know.
"""

import dataclasses
import re
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.live.metrics_pages import Pages
from tests.live.vllm_page import page

BEFORE, TRUE, AFTER = (page(requests=n, waiting=waiting) for n, waiting in ((100, 3), (104, 5), (106, 4)))
LINES = TRUE.split(b"\n")[:-1]
AROUND = [Pages("a:1").read(each, 0.0).scrapes[0] for each in (BEFORE, TRUE, AFTER)]
READ = [index for index, line in enumerate(LINES) if line.startswith(b"vllm:") and b"_created" not in line]
GAUGES = {"running", "waiting", "kv_used", "kv_tokens", "kv_block"}
SPREADS = {"prompt_spread", "output_spread"}
ALONE = {"running", "kv_used", "kv_tokens", "kv_block"}

places = st.sampled_from(READ)
seeds = st.integers(0, 2**32)


def cut(place: int, seed: int) -> bytes:
    """Cut the page off somewhere in a line."""
    return b"\n".join([*LINES[:place], LINES[place][: seed % len(LINES[place])]])


def cut_at_a_line(place: int, seed: int) -> bytes:
    return b"\n".join(LINES[:place]) + b"\n"


def drop(place: int, seed: int) -> bytes:
    return b"\n".join([*LINES[:place], *LINES[place + 1 + seed % 3 :]]) + b"\n"


def replace(place: int, line: bytes) -> bytes:
    return b"\n".join([*LINES[:place], line, *LINES[place + 1 :]]) + b"\n"


def change_a_digit(place: int, seed: int) -> bytes:
    name, value = LINES[place].rsplit(b" ", 1)
    digits = [match.start() for match in re.finditer(rb"\d", value)]
    at = digits[seed % len(digits)]
    other = str((value[at] - 48 + 1 + seed // 7 % 9) % 10).encode()
    return replace(place, name + b" " + value[:at] + other + value[at + 1 :])


def no_number(place: int, seed: int) -> bytes:
    odd = (b"NaN", b"+Inf", b"-Inf", b"-7.0", b"1e400", b"-0.5", b"", b"0x10", b"1_000", b"12,5", b"9" * 5000)
    return replace(place, LINES[place].rsplit(b" ", 1)[0] + b" " + odd[seed % len(odd)])


def twice(place: int, seed: int) -> bytes:
    name, value = LINES[place].rsplit(b" ", 1)
    other = value if seed % 3 == 0 else str(seed % 1000).encode()
    return replace(place, LINES[place] + b"\n" + name + b" " + other)


def swap_labels(place: int, seed: int) -> bytes:
    odd = (b'engine="1"', b'engine=""', b"engine=0", b'engine="0",engine="1"', b'motor="0"', b'engine="0')
    return replace(place, LINES[place].replace(b'engine="0"', odd[seed % len(odd)]))


def swap_two_lines_values(place: int, seed: int) -> bytes:
    other = READ[seed % len(READ)]
    (name, value), (_, second) = LINES[place].rsplit(b" ", 1), LINES[other].rsplit(b" ", 1)
    return replace(place, name + b" " + (second or value))


def binary(place: int, seed: int) -> bytes:
    noise = bytes((seed >> shift) & 255 for shift in range(0, 32, 3))
    line = LINES[place]
    at = seed % len(line)
    return replace(place, line[:at] + noise + line[at:])


def rename(place: int, seed: int) -> bytes:
    letters = string.ascii_lowercase.encode()
    line = LINES[place]
    at = 5 + seed % 6
    return replace(place, line[:at] + letters[seed % 26 : seed % 26 + 1] + line[at + 1 :])


MUTATIONS = (
    cut, cut_at_a_line, drop, change_a_digit, no_number, twice, swap_labels, swap_two_lines_values, binary, rename,
)  # fmt: skip
VALUES = (change_a_digit, swap_two_lines_values)
"""Those that put another plausible number in the place of a value."""


def wrong(field: str, value: float) -> bool:
    before, true, after = (getattr(scrape, field) for scrape in AROUND)
    if field in SPREADS:
        return abs(value - true) > true / 3
    if field in GAUGES:
        return value != true
    return not before <= value <= after


def check(mutation: object, place: int, seed: int) -> None:
    damaged = mutation(place, seed)  # type: ignore[operator]
    reader = Pages("a:1")
    reads = [reader.read(each, float(n)) for n, each in enumerate((BEFORE, damaged, AFTER))]
    notes = [note.text for read in reads for note in read.notes]
    assert reads[0].notes == ()
    for scrape in reads[1].scrapes:
        assert scrape.engine == "a:1"
        for field, value in dataclasses.asdict(scrape).items():
            if value is None or field in ("engine", "time_s"):
                continue
            excused = mutation in VALUES and field in ALONE
            assert notes or excused or not wrong(field, value), (field, value, damaged)


@settings(max_examples=75)
@given(mutation=st.sampled_from(MUTATIONS), place=places, seed=seeds)
def test_a_damaged_page_gives_no_wrong_number_without_a_note(mutation: object, place: int, seed: int) -> None:
    check(mutation, place, seed)


@pytest.mark.slow
@settings(max_examples=10_000)
@given(mutation=st.sampled_from(MUTATIONS), place=places, seed=seeds)
def test_ten_thousand_damaged_pages_give_no_wrong_number_without_a_note(
    mutation: object, place: int, seed: int
) -> None:
    check(mutation, place, seed)


@settings(max_examples=100)
@given(parts=st.lists(st.one_of(st.binary(max_size=30), st.sampled_from(LINES)), max_size=12))
def test_whatever_the_bytes_no_page_raises(parts: list[bytes]) -> None:
    for joint in (b"", b"\n"):
        read = Pages("a:1").read(joint.join(parts), 0.0)
        assert all(value is None or value >= 0 for s in read.scrapes for value in list(vars(s).values())[1:])
