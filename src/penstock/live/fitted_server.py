"""The server that a watched engine is taken for, with batch times fitted to its iterations."""

import dataclasses
from collections.abc import Mapping

from penstock.live.iterations_seen import Seen, notes_on
from penstock.live.reading import FittedTimes
from penstock.system.memory import Memory
from penstock.system.server import Server


class FittedServer:
    """A server whose batch times are those of the iterations seen, once these tell them.

    ``limits``: ``token_budget``, ``max_batch_size``, ``kv_tokens``, where there is no server.
    """

    def __init__(self, server: Server | None, limits: Mapping[str, int | None]) -> None:
        self.server = server
        self.seen: Seen | None = None
        self._given = server
        self._limits = limits

    @property
    def is_fitted(self) -> bool:
        """Whether the batch times are those of iterations."""
        return self.server is not self._given

    @property
    def fitted(self) -> FittedTimes | None:
        """What the fit says of large batches; None where batch times are as given."""
        return self.seen.fitted if self.seen is not None and self.is_fitted else None

    @property
    def gap_s(self) -> float:
        """Seconds between two batches that the batch times leave out, as far as is known."""
        return self.seen.gap_s if self.seen is not None and self.is_fitted else 0.0

    @property
    def error(self) -> float:
        """Standard error of the batch times, as a share of them; given ones are taken for right."""
        return self.seen.error if self.seen is not None and self.is_fitted else 0.0

    @property
    def notes(self) -> list[str]:
        """What is to be minded of iterations."""
        return [] if self.seen is None else notes_on(self.seen, self._token_budget(self.seen))

    def refine(self, seen: Seen) -> None:
        """Take what is known of iterations now."""
        before, self.seen = self.seen, seen
        if before is not None and before.fitted == seen.fitted and before.model == seen.model:
            return
        self.server = self._refined(seen)

    def _refined(self, seen: Seen) -> Server | None:
        budget = self._token_budget(seen)
        if seen.model is None or budget is None or not seen.tells(budget):
            return self._given
        if self._given is not None:
            return dataclasses.replace(self._given, batch_time=seen.model)
        kv_tokens = self._limits.get("kv_tokens")
        memory = None if kv_tokens is None else Memory.of_tokens(kv_tokens, 16)
        size = self._limits.get("max_batch_size")
        return Server(seen.model, budget, size, "vllm", memory=memory)

    def _token_budget(self, seen: Seen) -> int | None:
        if self._given is not None:
            return self._given.token_budget
        return self._limits.get("token_budget") or seen.token_budget
