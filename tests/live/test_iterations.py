"""Batch times follow from an engine's iterations as they come, whatever else comes with them."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import InputError
from penstock.inputs.source import Source as File
from penstock.live.forward_passes import Passes, _decoded
from penstock.live.iterations import IterationSource, fitted_times
from penstock.live.iterations_seen import Queued, Seen
from penstock.live.reading import Answer, Estimate, FittedTimes
from penstock.live.recording import Recorder, replayed
from penstock.live.rounds import Round, _with_iterations
from penstock.live.scrape import Scrape
from penstock.live.settings import Settings
from penstock.live.view import watch_page
from penstock.live.watching import Watch
from penstock.measuring.fitting.engine_logs import PASSES
from tests.live.conftest import Server, Told
from tests.live.engines_simulated import engine, passes, published, scrapes
from tests.live.publishing import Publisher, read_until
from tests.live.vllm_page import page

SOME = {"num_decode_requests": 2, "sum_decode_kv_tokens": 200}
BAD = {"garbage": b"\xc1", "nothing": b"", "a list": [1, 2], "another version": published(9, 0.1) | {"version": 2},
       "no numbers": published(9, 0.1) | {"wall_time": "long"}, "below zero": published(9, -0.1),
       "not finite": published(9, float("nan")), "no batch": published(9, 0.1) | {"scheduled_requests": [1]},
       "deep": b"\x91" * 100_000 + b"\x01", "a strange number": published(9, 0.1) | {"counter_id": "nine"}}  # fmt: skip


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    publisher = Publisher()
    yield publisher
    publisher.close()


@pytest.fixture
def subscribed(publisher: Publisher) -> Iterator[Callable[..., IterationSource]]:
    feeds = []

    def subscribe(batch_time: ps.BatchTime | None = None) -> IterationSource:
        publisher.expect_subscriber()
        feeds.append(Passes(publisher.url))
        return IterationSource(feeds[-1], batch_time)

    yield subscribe
    for feed in feeds:
        feed.close()


Subscribed = Callable[..., IterationSource]


def seen_of(publisher: Publisher, source: IterationSource, messages: list[Any]) -> Seen:
    """What is known once all of some messages have come."""
    publisher.send(messages)
    return read_until(source, lambda seen: seen.batches + seen.unreadable >= len(messages))


def test_the_batch_times_of_the_engine_are_found(publisher: Publisher, subscribed: Subscribed) -> None:
    seen = seen_of(publisher, subscribed(), passes())
    assert seen.fitted is not None
    assert (seen.lost, seen.unreadable, seen.token_budget) == (0, 0, 128)
    truth = {"c": 0.040, "a": 0.0005, "decode_attention": 1e-5}
    assert {name: seen.fitted.parameters[name].value for name in truth} == pytest.approx(truth, rel=0.02)
    of_full = seen.fitted.seconds
    assert of_full.low <= of_full.value <= of_full.high < 1.01 * of_full.value


@pytest.mark.parametrize(
    ("given_times", "name"),
    [
        (ps.Affine(0.03, 0.001), "affine"),
        (ps.PiecewiseConstant(0.03, 0.01, 16), "steps"),
        (ps.Hinge(0.03, 0.001, 8), "hinge"),
        (ps.Composition(ps.Affine(0.03, 0.001), decode_attention=1e-6), "composition-affine"),
    ],
)
def test_the_family_of_the_given_batch_time_is_fitted(
    publisher: Publisher, subscribed: Subscribed, given_times: ps.BatchTime, name: str
) -> None:
    seen = seen_of(publisher, subscribed(given_times), passes()[:400])
    assert seen.fitted is not None
    assert type(seen.model) is type(given_times), name
    assert seen.fitted.given_over is not None
    if "b0" in vars(given_times):
        assert seen.fitted.parameters["b0"].value == vars(given_times)["b0"]


def test_messages_that_were_dropped_are_counted(publisher: Publisher, subscribed: Subscribed) -> None:
    kept = [message for message in passes()[:300] if message["counter_id"] % 10 != 5]
    seen = seen_of(publisher, subscribed(), kept)
    assert (seen.batches, seen.lost) == (270, 30)
    assert "30 of 300 iterations were lost" in said(seen)


def said(seen: Seen) -> str:
    watching = Watch(engine(), Settings())
    watching.take(scrapes(0.6, 100.0)[0])
    watching.refine(seen)
    return " ".join(watching.answer().together.notes)


def test_who_comes_late_has_lost_nothing(publisher: Publisher, subscribed: Subscribed) -> None:
    assert seen_of(publisher, subscribed(), passes()[200:350]).lost == 0


def test_an_engine_that_begins_anew_is_looked_at_anew(publisher: Publisher, subscribed: Subscribed) -> None:
    source = subscribed()
    seen_of(publisher, source, passes()[:200])
    publisher.send(passes()[:20])
    seen = read_until(source, lambda seen: seen.batches == 20)
    assert (seen.lost, seen.fitted) == (0, None)


def test_heartbeats_are_no_batches_and_say_that_nothing_waits(publisher: Publisher, subscribed: Subscribed) -> None:
    source = subscribed()
    publisher.send([published(0, 0.05, SOME, {"num_decode_requests": 3}), published(1, 0.0)])
    seen = read_until(source, lambda seen: seen.queued is not None and seen.queued.preempted == 0)
    assert (seen.batches, seen.lost) == (1, 0)
    assert source.read().seen == seen  # still, while the engine is silent


def test_what_waits_is_not_known_once_a_busy_engine_is_silent(publisher: Publisher, subscribed: Subscribed) -> None:
    source = subscribed()
    publisher.send([published(0, 0.05, SOME, {"num_decode_requests": 3, "sum_prefill_tokens": 70})])
    seen = read_until(source, lambda seen: seen.batches == 1)
    assert seen.queued is not None
    assert (seen.queued.preempted, seen.queued.prompt_tokens) == (3, 70)
    silent = source.read().seen
    assert silent is not None
    assert silent.queued is None


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_messages_that_are_none_are_left_out_and_counted(
    publisher: Publisher, subscribed: Subscribed, bad: Any
) -> None:
    seen = seen_of(publisher, subscribed(), [*passes()[:120], bad])
    assert (seen.batches, seen.unreadable) == (120, 1)
    assert "1 iteration cannot be read" in said(seen)


def test_a_number_that_cannot_be_spoils_no_other(publisher: Publisher, subscribed: Subscribed) -> None:
    impossible = published(120, 1e9, SOME)
    seen = seen_of(publisher, subscribed(), [*passes()[:120], impossible, *passes()[121:300]])
    assert seen.fitted is not None
    assert (seen.batches, seen.unreadable) == (299, 1)


@given(st.binary(max_size=60), st.integers(0, 200), st.integers(0, 255))
def test_no_bytes_whatever_are_an_error(garbage: bytes, index: int, value: int) -> None:
    assert isinstance(_decoded(garbage), dict)
    message = bytearray(msgspec.msgpack.encode(passes()[30]))
    message[index % len(message)] = value
    assert isinstance(_decoded(bytes(message)), dict)


def test_batches_that_are_all_alike_are_too_few_to_tell(publisher: Publisher, subscribed: Subscribed) -> None:
    seen = seen_of(publisher, subscribed(), [published(number, 0.05, SOME) for number in range(150)])
    assert seen.fitted is None
    assert "every batch has 2 tokens" in said(seen)


@pytest.mark.parametrize("url", ["http://a:1", "tcp://a", "a:1", "tcp://a:x", "tcp://a:1\n"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="tcp://localhost:20380"):
        Passes(url)


@pytest.mark.slow
@pytest.mark.parametrize("count", [150, 400])
def test_the_interval_of_large_batches_holds_what_they_take(count: int) -> None:
    """Batch times with 5% of noise; a hundred stretches of so many iterations."""
    lines = b"\n".join(json.dumps(message).encode() for message in passes(0.6, 1_500.0))
    batches = PASSES.read(File(Path("passes"), lines))
    rng = np.random.default_rng(0)
    inside = 0
    for start in rng.integers(0, len(batches) - count, 100):
        some = batches.take(np.arange(start, start + count))
        noise = rng.lognormal(-(0.05**2) / 2, 0.05, count)
        _, fitted = fitted_times(dataclasses.replace(some, seconds=some.seconds * noise), engine().batch_time)
        truth = float(some.seconds[some.tokens >= 0.9 * some.tokens.max()].mean())
        inside += fitted.seconds.low <= truth <= fitted.seconds.high
        assert fitted.given_over == pytest.approx(1.0, abs=0.02)
    assert inside >= 88


# What follows from them


@pytest.fixture
def fitted(publisher: Publisher, subscribed: Subscribed) -> Callable[..., Seen]:
    return lambda batch_time=None, count=None: seen_of(publisher, subscribed(batch_time), passes()[:count])


def watched(server: ps.Server | None, seen: Seen, **limits: int) -> Any:
    watching = Watch(server, Settings(), limits)
    watching.refine(seen)
    for scrape in scrapes(0.6, 300.0):
        watching.take(scrape)
    return watching.answer(ahead=False).together


def test_without_a_batch_time_the_load_becomes_known(fitted: Callable[..., Seen]) -> None:
    together = watched(None, fitted(), max_batch_size=64, kv_tokens=32_000)
    assert together.load.low <= 0.6 <= together.load.high
    assert together.verdict == "stable"
    assert together.fitted.given_over is None
    shown = str(watch_page(Answer(0.0, together, (together,))))
    assert f"by the last {together.iterations:,} of {together.iterations:,} seen" in shown


def test_a_batch_time_that_is_wrong_is_noticed_and_replaced(fitted: Callable[..., Seen]) -> None:
    wrong = dataclasses.replace(engine(), batch_time=ps.Composition(ps.Affine(0.020, 0.0002), decode_attention=1e-5))
    together = watched(wrong, fitted(wrong.batch_time))
    assert together.load.low <= 0.6 <= together.load.high
    assert together.fitted.given_over < 0.7
    assert any("by the batch time given" in note for note in together.notes)
    right = watched(engine(), fitted(engine().batch_time))
    assert not any("by the batch time given" in note for note in right.notes)


def test_batches_far_from_full_replace_nothing(fitted: Callable[..., Seen]) -> None:
    large = dataclasses.replace(engine(), token_budget=2_048)
    together = watched(large, fitted(large.batch_time))
    assert together.fitted is None
    assert together.iterations > 100
    assert any("do not tell how long full ones of 2,048 take" in note for note in together.notes)


def test_a_recording_has_what_was_fitted(fitted: Callable[..., Seen], tmp_path: Path) -> None:
    rounds = [Round(1.0, tuple(scrapes(0.6, 10.0)), seen=fitted(engine().batch_time))]
    with Recorder(tmp_path / "w.jsonl", 5.0) as recorder:
        recorder.write(rounds[0])
    [again] = replayed(tmp_path / "w.jsonl")
    assert again.seen is not None
    assert again.seen.fitted == rounds[0].seen.fitted  # type: ignore[union-attr]


@given(st.sampled_from(["source", "batches", "lost", "model", "fitted", "gap_s", "queued", "token_budget"]),
       st.sampled_from([None, 3, -1.5, "x", [], {}, {"affine": 3}, {"seconds": 0}, float("nan")]))  # fmt: skip
def test_what_is_broken_in_a_recording_is_no_error(field: str, value: Any) -> None:
    estimate = Estimate(0.1, 0.09, 0.11)
    fitted = FittedTimes(200, 0.05, 128.0, estimate, {"c": estimate}, 1.5)
    seen = Seen("s", 200, 3, 1, ps.Affine(0.04, 0.001), fitted, 0.0, 128)
    assert Seen.from_dict(seen.as_dict()) == seen
    broken = Seen.from_dict(seen.as_dict() | {field: value})
    assert broken is None or isinstance(said(broken), str)


def test_what_waits_is_in_the_scrapes_and_the_recording(
    penstock: Callable[..., tuple[int, str, str]], publisher: Publisher, serve: Callable[..., Server], tmp_path: Path
) -> None:
    """The engine publishes when its page is asked for the first time."""
    counts = iter(range(100, 1_000, 10))
    queue = {"num_decode_requests": 3, "sum_decode_kv_tokens": 1_000, "sum_prefill_tokens": 70}

    def answer(_: str) -> Told:
        requests = next(counts)
        if requests == 100:
            publisher.send([published(number, 0.05, SOME, queue) for number in range(30)])
        return Told(page(requests=requests))

    asked = ("watch", serve(answer).name, "--iterations", publisher.url, "--every", "300ms", "--once")
    status, out, err = penstock(*asked, "--json", "--record", tmp_path / "w.jsonl")
    assert (status, err) == (0, "")
    assert json.loads(out)["together"]["iterations"] == 30
    told = [scrape for taken in replayed(tmp_path / "w.jsonl") for scrape in taken.scrapes if scrape.preempted]
    assert told
    assert all((s.preempted, s.preempted_tokens, s.backlog_tokens) == (3, 1_000, 70) for s in told)


def test_of_several_engines_the_one_at_the_same_host_has_what_waits() -> None:
    seen = Seen("tcp://b:20380", 20, 2, 1, queued=Queued(70.0, 3.0, 1_000.0))
    one, two = Scrape("a:8000", 1.0), Scrape("b:8000", 1.0)
    assert [scrape.preempted for scrape in _with_iterations([one, two], seen)] == [None, 3]
    assert [scrape.preempted for scrape in _with_iterations([one, one], seen)] == [None, 3]
    assert _with_iterations([two, Scrape("b:8001", 1.0)], seen) == [two, Scrape("b:8001", 1.0)]


def test_an_engine_that_counts_no_batches_has_those_that_it_tells_of() -> None:
    seen = Seen("tcp://b:20380", 20, 2, 1)
    assert [scrape.batches for scrape in _with_iterations([Scrape("b:8000", 1.0)], seen)] == [23]
    assert [scrape.batches for scrape in _with_iterations([Scrape("b:8000", 1.0, batches=7.0)], seen)] == [7]
    assert [scrape.batches for scrape in _with_iterations([Scrape("b:8000", 1.0)], Seen("s"))] == [None]


def test_what_is_preempted_is_backlog_and_is_shown() -> None:
    last = scrapes(1.5, 200.0)[-1]
    told = dataclasses.replace(last, backlog_tokens=5_000.0, preempted=3.0, preempted_tokens=1_000.0)
    none = dataclasses.replace(told, preempted=0.0, preempted_tokens=0.0)
    answers = []
    for end in (told, none):
        watching = Watch(engine(), Settings())
        for scrape in [*scrapes(1.5, 200.0)[:-1], end]:
            watching.take(scrape)
        answers.append(watching.answer(ahead=False))
    assert answers[0].together.backlog_tokens - answers[1].together.backlog_tokens == 1_000
    assert "requests wait to go on" in str(watch_page(answers[0]))
    assert "requests wait to go on" not in str(watch_page(answers[1]))


def test_two_ways_to_tell_batch_times_are_one_too_many(
    penstock: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    (tmp_path / "engine.log").touch()
    status, _, err = penstock("watch", "a:1", "--iterations", "tcp://a:2", "--log", tmp_path / "engine.log")
    assert status == 2
    assert "give one of them" in err
