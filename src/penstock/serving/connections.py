"""Connections that are closed where a request takes long to come: half of one would hold it."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE_S = 5.0
"""Until a request has come, from the connection or from its first byte on."""


class Impatient(H11Protocol):
    """Uvicorn's protocol, with a time limit on each request."""

    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for a request."""
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Wait on where it is a part of a request, but no longer than at first."""
        super().data_received(data)
        if self.conn.our_state is h11.IDLE:
            self._expect()
        else:
            self._stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop()
        super().connection_lost(exc)

    def _expect(self) -> None:
        if self._limit is None:
            self._limit = self.loop.call_later(PATIENCE_S, self.transport.close)

    def _stop(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
