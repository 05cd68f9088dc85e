"""TensorRT-LLM: the iterations that trtllm-serve gives as JSON at `/metrics`.

They are drained on read: what one reader took, another does not see. So counters begin with the
first page that was read, and iterations that somebody else took are missing in them. Prompt tokens
are those that were computed, as they are; a first token is not told from others.
"""

import math
from collections.abc import Mapping
from typing import Any

from penstock.live.scrape import Scrape

NAME = "TensorRT-LLM"

_LARGEST = 2.0**53  # of which floats still count by ones
_BATCH = "inflightBatchingStats"
_CACHE = "kvCacheStats"


class TensorRT:
    """The iterations of one engine, added up."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._start()

    def _start(self) -> None:
        self._last: float | None = None
        self._batches = 0.0
        self._prompt_tokens = 0.0
        self._decode_tokens = 0.0
        self._begun: float | None = None
        self._finished: float | None = None
        self._arrived: float | None = None

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
        last = whole[-1] if whole else None
        return self._scrape(last, time_s), list(dict.fromkeys(notes))

    def _add(self, row: Mapping[str, Any]) -> list[str]:
        """Count one iteration; say what is missing before it."""
        notes = []
        number = row["iter"]
        if self._last is not None and number <= self._last:
            self._start()
            notes.append("its iterations began anew: it was started again")
        elif self._last is not None and number > self._last + 1:
            notes.append(
                "iterations are missing: somebody else reads this page too, and takes them; "
                "counters are too low"
            )
        self._last = number
        batch = row[_BATCH]
        self._batches += 1
        self._prompt_tokens += batch["numCtxTokens"]
        decoded = _number(batch, "avgNumDecodedTokensPerIter") or 1.0  # more with drafts
        self._decode_tokens += batch["numGenRequests"] * max(1.0, decoded)
        self._begun = _plus(self._begun, _number(row, "numNewActiveRequests"))
        self._finished = _plus(self._finished, _number(row, "numCompletedRequests"))
        return notes

    def _scrape(self, row: Mapping[str, Any] | None, time_s: float) -> Scrape:
        """Return what is known; without an iteration, gauges are not."""
        batch: Mapping[str, Any] = {} if row is None else row[_BATCH]
        cache: Mapping[str, Any] = {} if row is None else row.get(_CACHE) or {}
        waiting = None if row is None else _number(row, "numQueuedRequests")
        if waiting is None:
            phases = ("numQueuedContextRequests", "numQueuedGenRequests")
            waiting = _plus(*(_number(batch, phase) for phase in phases))
        if self._begun is not None and waiting is not None:
            # Those that begin leave the queue a moment before or after they are counted.
            self._arrived = max(self._arrived or 0.0, self._begun + waiting)
        blocks, used = _number(cache, "maxNumBlocks"), _number(cache, "usedNumBlocks")
        size = _number(cache, "tokensPerBlock")
        return Scrape(
            self._name,
            time_s,
            running=_plus(_number(batch, "numContextRequests"), _number(batch, "numGenRequests")),
            waiting=waiting,
            finished=self._finished,
            arrived=self._arrived,
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._decode_tokens,
            batches=self._batches,
            batch_tokens=self._prompt_tokens + self._decode_tokens,
            kv_used=used / blocks if blocks and used is not None and used <= blocks else None,
            kv_tokens=blocks * size if blocks and size else None,
            kv_block=size or None,
            backlog_tokens=_number(batch, "numQueuedCtxTokens"),
            context_tokens=_number(batch, "numGenKvTokens"),
        )


def _is_iteration(row: Any) -> bool:
    """Return whether it is a whole iteration, with numbers where counters need them."""
    batch = row.get(_BATCH) if isinstance(row, Mapping) else None
    if not isinstance(batch, Mapping) or not isinstance(row.get(_CACHE) or {}, Mapping):
        return False
    needed = (_number(row, "iter"), _number(batch, "numCtxTokens"),
              _number(batch, "numGenRequests"))  # fmt: skip
    return None not in needed


def _number(values: Mapping[str, Any], key: str) -> float | None:
    """Return a number that is one, and not negative."""
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if 0 <= number < _LARGEST else None


def _plus(one: float | None, other: float | None) -> float | None:
    """Return the sum of what is known; None if nothing is."""
    known = [value for value in (one, other) if value is not None]
    return math.fsum(known) if known else None
