"""TensorRT-LLM: the iterations that trtllm-serve gives as JSON at `/metrics`.

They are drained on read: what one reader took, another does not see. So counters begin with the
first page that was read, and iterations that somebody else took are missing in them. Prompt tokens
are those that were computed, as they are; a first token is not told from others.
"""

import math
from collections.abc import Mapping
from typing import Any

from penstock.live.scrape import Scrape, number_in

NAME = "TensorRT-LLM"

_BATCH = "inflightBatchingStats"
_CACHE = "kvCacheStats"
_NEEDED = ("numCtxTokens", "numGenRequests")  # of a batch, by counters


class TensorRT:
    """The iterations of one engine, added up."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last: float | None = None
        self._counts: dict[str, float] = {}

    def read(self, document: Any, time_s: float) -> tuple[Scrape | None, list[str]]:
        """Return what a page of iterations says, and notes."""
        rows = document if isinstance(document, list) else [document]
        whole = [row for row in rows if _is_iteration(row)]
        notes = []
        if len(whole) < len(rows):
            notes.append("some iterations are broken, and are left out")
        if rows and not whole:
            return None, [*notes, "the page is JSON, but no iterations of TensorRT-LLM"]
        for row in whole:
            notes += self._add(row)
        return self._scrape(whole[-1] if whole else {}, time_s), list(dict.fromkeys(notes))

    def _add(self, row: Mapping[str, Any]) -> list[str]:
        """Count one iteration; say what is missing before it."""
        notes = []
        number = row["iter"]
        if self._last is not None and number <= self._last:
            self._counts.clear()
            notes.append("its iterations began anew: it was started again")
        elif self._last is not None and number > self._last + 1:
            notes.append(
                "iterations are missing: somebody else reads this page too, and takes them; "
                "counters are too low"
            )
        self._last = number
        batch = row[_BATCH]
        decoded = number_in(batch, "avgNumDecodedTokensPerIter") or 1.0  # more with drafts
        for count, more in (
            ("batches", 1.0),
            ("prompt_tokens", batch["numCtxTokens"]),
            ("output_tokens", batch["numGenRequests"] * max(1.0, decoded)),
            ("begun", number_in(row, "numNewActiveRequests")),
            ("finished", number_in(row, "numCompletedRequests")),
        ):
            if more is not None:
                self._counts[count] = self._counts.get(count, 0.0) + more
        return notes

    def _scrape(self, row: Mapping[str, Any], time_s: float) -> Scrape:
        """Return what is known; without an iteration, gauges are not."""
        batch, cache = row.get(_BATCH, {}), row.get(_CACHE) or {}
        waiting = number_in(row, "numQueuedRequests")
        if waiting is None:
            waiting = _sum_in(batch, "numQueuedContextRequests", "numQueuedGenRequests")
        counts = self._counts
        if "begun" in counts and waiting is not None:
            # Those that begin leave the queue a moment before or after they are counted.
            counts["arrived"] = max(counts.get("arrived", 0.0), counts["begun"] + waiting)
        blocks, used = number_in(cache, "maxNumBlocks"), number_in(cache, "usedNumBlocks")
        size = number_in(cache, "tokensPerBlock")
        prompt_tokens, output_tokens = (
            counts.get("prompt_tokens", 0.0),
            counts.get("output_tokens", 0.0),
        )
        return Scrape(
            self._name,
            time_s,
            running=_sum_in(batch, "numContextRequests", "numGenRequests"),
            waiting=waiting,
            finished=counts.get("finished"),
            arrived=counts.get("arrived"),
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            batches=counts.get("batches", 0.0),
            batch_tokens=prompt_tokens + output_tokens,
            kv_used=used / blocks if blocks and used is not None and used <= blocks else None,
            kv_tokens=blocks * size if blocks and size else None,
            kv_block=size or None,
            backlog_tokens=number_in(batch, "numQueuedCtxTokens"),
            context_tokens=number_in(batch, "numGenKvTokens"),
        )


def _is_iteration(row: Any) -> bool:
    """Return whether it is a whole iteration, with numbers where counters need them."""
    batch = row.get(_BATCH) if isinstance(row, Mapping) else None
    if not isinstance(batch, Mapping) or not isinstance(row.get(_CACHE) or {}, Mapping):
        return False
    return None not in (number_in(row, "iter"), *(number_in(batch, key) for key in _NEEDED))


def _sum_in(values: Mapping[str, Any], *keys: str) -> float | None:
    """Return the sum of what is known; None if nothing is."""
    known = [value for key in keys if (value := number_in(values, key)) is not None]
    return math.fsum(known) if known else None
