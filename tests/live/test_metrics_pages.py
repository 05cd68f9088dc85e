"""Pages of engines become scrapes: every number as the page has it, or not at all with a note."""

import dataclasses
import re
from pathlib import Path

import pytest

from penstock.live.metrics_pages import Pages, Read
from penstock.live.scrape import Scrape
from tests.live.vllm_page import page

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="no shared/data beside the repository")


def known(scrape: Scrape) -> dict[str, float]:
    fields = dataclasses.asdict(scrape)
    return {name: value for name, value in fields.items() if value is not None and name not in ("engine", "time_s")}


def read(*pages: bytes) -> Read:
    """Return what the last of several pages of one address says."""
    reader = Pages("a:1")
    return [reader.read(each, float(index)) for index, each in enumerate(pages)][-1]


def texts(of: Read) -> str:
    return "; ".join(note.text for note in of.notes)


def test_vllm_says_what_its_names_mean() -> None:
    [scrape] = read(page()).scrapes
    assert known(scrape) == {
        "running": 6, "waiting": 3, "finished": 100, "refused": 4, "first_tokens": 106, "ttft_s": 53,
        "prompt_tokens": 6360, "cached_tokens": 600, "output_tokens": 4560, "finished_prompt_tokens": 6000,
        "finished_output_tokens": 4500, "prompt_spread": pytest.approx(0.5, rel=0.4),
        "output_spread": pytest.approx(1 / 3, rel=0.2), "batches": 530, "batch_tokens": 10_920, "preemptions": 2,
        "kv_used": 0.25, "kv_tokens": 32_000, "kv_block": 16,
    }  # fmt: skip
    assert not read(page()).notes


def test_under_ray_the_same_is_said_under_other_names() -> None:
    plain, ray = read(page()), read(page().replace(b"vllm:", b"ray_vllm_"))
    assert plain == ray


def test_names_of_older_versions_are_known() -> None:
    older = page().replace(b"kv_cache_usage_perc", b"gpu_cache_usage_perc")
    older = b"\n".join(line for line in older.split(b"\n") if b"_by_" not in line)
    [scrape] = read(older).scrapes
    assert scrape.kv_used == 0.25
    assert scrape.cached_tokens is None  # not 0


@needs_data
def test_the_pages_of_a_real_vllm_say_all_that_it_has() -> None:
    reader = Pages("a:1")
    for path in sorted((DATA / "real_vllm_cpu" / "metrics").glob("*.txt")):
        said = reader.read(path.read_bytes(), 0.0)
        missing = {name for name, value in vars(said.scrapes[0]).items() if value is None}
        assert missing == {"arrived", "backlog_tokens", "preempted", "preempted_tokens", "context_tokens"}
        assert said.notes == ()
    [scrape] = read((DATA / "real_vllm_cpu" / "metrics" / "metrics_overload_2.txt").read_bytes()).scrapes
    assert (scrape.running, scrape.waiting, scrape.finished) == (38, 83, 1167)
    assert scrape.finished_prompt_tokens == 124_531


def test_several_engines_of_one_page_are_told_apart_and_share_what_has_no_label() -> None:
    first, second = read(page(("0", "1"))).scrapes
    assert (first.engine, second.engine) == ("a:1 m/0", "a:1 m/1")
    assert (first.finished, second.finished) == (100, 100)
    assert (first.refused, second.refused) == (2, 2)


def test_the_share_of_an_engine_does_not_fall_when_another_joins() -> None:
    reader = Pages("a:1")
    [alone] = reader.read(page(("0",)), 0.0).scrapes
    both = reader.read(page(("0", "1")), 1.0).scrapes
    assert (alone.engine, alone.refused) == ("a:1", 4)
    assert [scrape.engine for scrape in both] == ["a:1", "a:1 m/1"]
    assert both[0].refused == 4


SGLANG = b"""\
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 5.0
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="1"} 5.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 2.0
sglang:token_usage{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.5
sglang:max_total_num_tokens{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 100000.0
sglang:decode_sum_seq_lens{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 4321.0
sglang:realtime_tokens_total{engine_type="unified",mode="prefill_compute",model_name="m",pp_rank="0",tp_rank="0"} 700.0
sglang:realtime_tokens_total{engine_type="unified",mode="prefill_cache",model_name="m",pp_rank="0",tp_rank="0"} 300.0
sglang:realtime_tokens_total{engine_type="unified",mode="decode",model_name="m",pp_rank="0",tp_rank="0"} 250.0
sglang:num_requests_total{is_streaming="true",model_name="m"} 7.0
sglang:num_requests_total{is_streaming="false",model_name="m"} 3.0
sglang:prompt_tokens_total{is_streaming="true",model_name="m"} 900.0
sglang:generation_tokens_total{is_streaming="true",model_name="m"} 200.0
sglang:time_to_first_token_seconds_sum{is_streaming="true",model_name="m"} 4.5
sglang:time_to_first_token_seconds_count{is_streaming="true",model_name="m"} 12.0
"""


def test_sglang_counts_tokens_as_they_are_computed_and_ranks_once() -> None:
    said = read(SGLANG)
    assert said.notes == ()
    [scrape] = said.scrapes
    assert known(scrape) == {
        "running": 5, "waiting": 2, "finished": 10, "first_tokens": 12, "ttft_s": 4.5, "prompt_tokens": 1000,
        "cached_tokens": 300, "output_tokens": 250, "finished_prompt_tokens": 900, "finished_output_tokens": 200,
        "kv_used": 0.5, "kv_tokens": 100_000, "context_tokens": 4321,
    }  # fmt: skip
    assert read(SGLANG.replace(b"sglang:", b"sglang_")) == said


def test_metrics_of_requests_that_sglang_has_not_seen_yet_are_no_fault() -> None:
    idle = b"\n".join(line for line in SGLANG.split(b"\n") if b"total" not in line and b"first" not in line)
    said = read(idle)
    assert said.notes == ()
    assert said.scrapes[0].finished is None
    assert read(idle, SGLANG).scrapes[0].finished == 10


def test_a_page_of_no_engine_says_so() -> None:
    for other in (b"", b"go_goroutines 7\n", b"<html>", b"{}", b"[1, 2]", b"[", b"\xff\x00\x00" * 99):
        said = read(other)
        assert said.scrapes == ()
        assert said.notes[-1].text.startswith("the page"), other


def without(start: bytes, whole: bytes) -> bytes:
    return b"\n".join(line for line in whole.split(b"\n") if not line.startswith(start))


def test_a_series_that_is_gone_makes_its_sum_unknown_and_not_smaller() -> None:
    gone = without(b'vllm:request_success_total{engine="0",model_name="m",finished_reason="stop"', page())
    for said in (read(gone), read(page(), gone)):  # told by when it was created, and by the page before
        assert said.scrapes[0].finished is None
        assert "`finished` cannot be right" in texts(said)


def test_an_engine_that_starts_again_may_lack_series_that_it_had() -> None:
    young = re.sub(rb"(_total|_sum|_count)({.*}) .*", rb"\1\2 1.0", SGLANG)
    said = read(SGLANG, without(b'sglang:num_requests_total{is_streaming="false"', young))
    assert said.scrapes[0].finished == 1
    assert said.notes == ()


def test_a_counter_that_falls_while_the_others_grow_is_damaged() -> None:
    damaged = re.sub(rb"(preemptions_total{.*}) 2.0", rb"\1 1.0", page(requests=110))
    said = read(page(requests=100), damaged)
    assert said.scrapes[0].preemptions is None
    assert said.scrapes[0].finished == 110
    assert "`preemptions` cannot be right" in texts(said)


def test_what_the_page_says_twice_must_agree() -> None:
    said = read(page().replace(b'vllm:num_requests_waiting{engine="0",model_name="m"} 3.0',
                               b'vllm:num_requests_waiting{engine="0",model_name="m"} 8.0'))  # fmt: skip
    assert said.scrapes[0].waiting is None
    assert "two things of `waiting`" in texts(said)


@pytest.mark.parametrize("value", [b"NaN", b"-3.0", b"+Inf", b"-Inf"])
def test_values_that_no_engine_has_are_not_given(value: bytes) -> None:
    said = read(
        page().replace(b'usage_perc{engine="0",model_name="m"} 0.25', b'usage_perc{engine="0",model_name="m"} ' + value)
    )
    assert said.scrapes[0].kv_used is None
    assert said.scrapes[0].running == 6
    assert "`kv_used` cannot be right" in texts(said)


def test_a_metric_that_every_version_has_is_missed() -> None:
    said = read(without(b"vllm:generation_tokens_total", page()))
    assert said.scrapes[0].output_tokens is None
    assert "`output_tokens`" in texts(said)


def test_a_series_with_the_label_of_another_engine_is_no_engine() -> None:
    old = b'vllm:generation_tokens_total{engine="0"'
    said = read(page().replace(old, old.replace(b"0", b"7")))
    assert [scrape.engine for scrape in said.scrapes] == ["a:1"]
    assert said.scrapes[0].output_tokens is None
    assert "an engine without num_requests_running" in texts(said)
