"""A page of metrics is read line by line: what is broken is left out and said, and the rest is read."""

from penstock.live.exposition import Samples, read_page


def read(page: bytes) -> Samples:
    return read_page(page, {"a", "b"}.__contains__)


def test_samples_are_read_with_their_labels_and_nothing_else_is() -> None:
    samples = read(b'# HELP a what\na{x="1",y="q\\"}"} 3\nc{x="1"} 4\nb 1e3 1700000000\n')
    assert [(sample.labels, sample.value) for sample in samples.of("a")] == [({"x": "1", "y": 'q"}'}, 3.0)]
    assert [sample.value for sample in samples.of("b")] == [1000.0]
    assert samples.of("c") == []
    assert samples.faults == ()


def test_a_page_that_ends_in_the_middle_of_a_number_does_not_give_it() -> None:
    samples = read(b"a 5\nb 12")
    assert samples.of("b") == []
    assert samples.faults == ("the page ends in the middle of a line, which is left out",)


def test_a_wanted_line_that_is_broken_is_left_out_and_named() -> None:
    for line in (b"a{", b'a{x="1} 3', b"a", b"a x", b"a{x=\xff} 1", b"a " + b"9" * 9999, b"a{" + b"x," * 50_000):
        samples = read(line + b"\nb 1\n")
        assert samples.faults == ("a line that begins with 'a' is no metric",) or samples.of("a")[0].value > 1e300
        assert [sample.value for sample in samples.of("b")] == [1.0]


def test_a_series_with_two_values_has_none() -> None:
    samples = read(b'a{x="1"} 1\na{x="1"} 2\na{x="2"} 5\na{x="2"} 5\n')
    assert [sample.value for sample in samples.of("a")] == [5.0]
    assert samples.faults == ("a stands twice with two values, and is left out",)
