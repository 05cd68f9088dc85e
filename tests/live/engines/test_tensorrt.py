"""Iterations of TensorRT-LLM are added up; those that somebody else took are missed and said."""

from typing import Any

import pytest

from penstock.live.engines.tensorrt import TensorRT


def iteration(number: int, **changes: Any) -> dict[str, Any]:
    batch = {"numContextRequests": 1, "numCtxTokens": 100, "numGenRequests": 7, "numQueuedContextRequests": 2,
             "numQueuedGenRequests": 0, "numQueuedCtxTokens": 555, "numGenKvTokens": 9000}  # fmt: skip
    cache = {"maxNumBlocks": 1000, "usedNumBlocks": 250, "tokensPerBlock": 32}
    rest = {"numNewActiveRequests": 1, "numCompletedRequests": 2}
    return {"iter": number, **rest, "inflightBatchingStats": batch, "kvCacheStats": cache, **changes}


def test_iterations_are_added_up_from_page_to_page() -> None:
    engine = TensorRT("a:1")
    engine.read([iteration(1), iteration(2)], 1.0)
    scrape, notes = engine.read([iteration(3)], 2.0)
    assert notes == []
    assert scrape is not None
    assert (scrape.batches, scrape.prompt_tokens, scrape.output_tokens) == (3, 300, 21)
    assert (scrape.running, scrape.waiting, scrape.backlog_tokens) == (8, 2, 555)
    assert (scrape.kv_used, scrape.kv_tokens, scrape.context_tokens) == (0.25, 32_000, 9000)
    assert (scrape.arrived, scrape.finished) == (5, 6)


def test_without_a_batch_counters_stay_and_gauges_are_not_known() -> None:
    engine = TensorRT("a:1")
    engine.read([iteration(1)], 1.0)
    scrape, _ = engine.read([], 2.0)
    assert scrape is not None
    assert (scrape.batches, scrape.arrived, scrape.running, scrape.kv_used) == (1, 3, None, None)


def test_iterations_that_another_reader_took_are_said() -> None:
    engine = TensorRT("a:1")
    engine.read([iteration(1)], 1.0)
    _, notes = engine.read([iteration(9)], 2.0)
    assert "somebody else reads this page too" in notes[0]


def test_an_engine_that_starts_again_counts_from_nothing() -> None:
    engine = TensorRT("a:1")
    engine.read([iteration(41), iteration(42)], 1.0)
    scrape, notes = engine.read([iteration(1)], 2.0)
    assert scrape is not None
    assert scrape.batches == 1
    assert "started again" in notes[0]


def test_arrivals_never_fall_when_a_request_leaves_the_queue_before_it_is_counted() -> None:
    engine = TensorRT("a:1")
    engine.read([iteration(1, numQueuedRequests=5)], 1.0)
    scrape, _ = engine.read([iteration(2, numQueuedRequests=0, numNewActiveRequests=0)], 2.0)
    assert scrape is not None
    assert scrape.arrived == 6


@pytest.mark.parametrize("broken", [{"iter": "x"}, {"iter": -1}, {"inflightBatchingStats": []}, {"kvCacheStats": 3}])
def test_a_broken_iteration_is_left_out_and_said(broken: dict[str, Any]) -> None:
    scrape, notes = TensorRT("a:1").read([iteration(1), iteration(2, **broken)], 1.0)
    assert scrape is not None
    assert scrape.batches == 1
    assert notes == ["some iterations are broken, and are left out"]
