"""The page and what it asks for, over HTTP.

It reads nothing but addresses of this server, and changes nothing. Names other than ``localhost``
in the header Host are refused, or a page elsewhere could have its name lead here and read the
answers (DNS rebinding); so are requests of other pages.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from penstock.errors import InputError
from penstock.live.callers import refusal
from penstock.serving.answering import Answers, TooMany
from penstock.serving.controls import Controls
from penstock.show.answers import plain

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from penstock.serving.watched import Watched

_FILES = Path(__file__).with_name("page")
_COMPUTE = frozenset({"/state", "/answer", "/scenario.yaml", "/live"})
"""Where there is more than a file: for the page alone, and for programs."""
_LOOK_S = 0.25  # how often a round that ended is looked for
_HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # by which a request shows that it is from here
    "cache-control": "no-store",
}


def application(
    controls: Controls, watched: "Watched | None" = None, name: str = "localhost"
) -> "ASGIApp":
    """Return the application. ``watched`` are the engines of the second tab; this machine may be
    asked by ``name``, besides ``localhost`` and its addresses.
    """
    answers = Answers(controls)
    answers.warm()

    async def state(_: Request) -> Response:
        return JSONResponse(
            {
                "name": controls.name,
                "values": controls.values,
                "choices": controls.choices,
                "watches": watched is not None,
            }
        )

    async def answer(request: Request) -> Response:
        try:
            return _Lines(answers.parts(dict(request.query_params)))
        except TooMany as error:
            return PlainTextResponse(str(error), 503, headers={"retry-after": "1"})

    async def scenario(request: Request) -> Response:
        try:
            case = controls.case(controls.values_of(request.query_params))
        except InputError as error:
            return PlainTextResponse(str(error), 400)
        attached = {"content-disposition": f'attachment; filename="{controls.file_name}"'}
        return Response(case.text, media_type="application/yaml", headers=attached)

    async def live(_: Request) -> Response:
        return _Lines(_rounds(watched))

    routes = [
        Route("/state", state),
        Route("/answer", answer),
        Route("/scenario.yaml", scenario),
        Route("/live", live),
        Mount("/", StaticFiles(directory=_FILES, html=True)),
    ]
    return _Guard(Starlette(routes=routes), name)


class _Guard:
    """Refuses other hosts and other pages, and says what the page may load."""

    def __init__(self, app: "ASGIApp", name: str) -> None:
        self._app = app
        self._name = name

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        pairs = (
            (key.decode("latin-1"), value.decode("latin-1")) for key, value in scope["headers"]
        )
        refused = refusal(pairs, self._name, proof=scope["path"] in _COMPUTE)
        if refused is not None:
            await PlainTextResponse(refused.reason, refused.status)(scope, receive, send)
            return

        async def with_headers(message: "Message") -> None:
            if message["type"] == "http.response.start":
                added = [(key.encode(), value.encode()) for key, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        await self._app(scope, receive, with_headers)


class _Lines(StreamingResponse):
    """Sends each part as a line of JSON when it comes; null is what is infinite."""

    def __init__(self, parts: AsyncGenerator[dict[str, Any]]) -> None:
        lines = (json.dumps(plain(part), allow_nan=False) + "\n" async for part in parts)
        super().__init__(lines, media_type="application/x-ndjson")
        self._parts = parts

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:  # whoever left, even before the first
            await self._parts.aclose()


async def _rounds(watched: "Watched | None") -> AsyncGenerator[dict[str, Any]]:
    """Yield what is known of the engines, each time that a round has ended."""
    seen = -1
    while watched is not None:
        if watched.rounds != seen:
            seen = watched.rounds
            yield watched.last
        await asyncio.sleep(_LOOK_S)
