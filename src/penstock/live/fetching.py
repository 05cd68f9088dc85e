"""Pages over HTTP: one request, no more than it may take and hold, and one plain reason if none
comes.
"""

import dataclasses
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from penstock import checks
from penstock.errors import InputError

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

MOST_BYTES = 16 * 2**20
"""What is read of one page, unpacked."""

_REDIRECTS = 3
_CHUNK = 65_536


class FetchFault(Exception):
    """Why there is no page, as a clause whose subject is the address: ``has not answered ...``."""


@dataclasses.dataclass(frozen=True)
class Page:
    """What came, and when it was true: Unix time in the middle of request and answer, s."""

    content: bytes
    time_s: float


@dataclasses.dataclass(frozen=True)
class Address:
    """Where a page is."""

    url: str  # without user, password and fragment
    name: str  # what it is called in answers
    fragment: str = ""  # what stands behind `#`
    # `user:password`, where the URL has them; never shown or written.
    user: str = dataclasses.field(default="", repr=False)


def address(text: str, path: str = "/metrics") -> Address:
    """Return the address that a user gives, such as ``host:8000``; without a path it gets this."""
    # Or ``https://user:password@host/some/path#fragment``.
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or not text.isprintable():
        raise InputError(
            f"{checks.shown(text)} is no address and no file, so nothing can be read; give one "
            "such as http://localhost:8000"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    place = host if port is None else f"{host}:{port}"
    own = parts.path if parts.path not in ("", "/") else path
    query = f"?{parts.query}" if parts.query else ""
    user = parts.netloc.rpartition("@")[0]
    name = place if own == path else f"{place}{own}"
    return Address(f"{parts.scheme}://{place}{own}{query}", name, parts.fragment, user)


class Fetcher:
    """Reads pages of one address over a lasting connection, in at most ``limit_s`` seconds each."""

    def __init__(self, address: Address, limit_s: float) -> None:
        import urllib3

        self._address = address
        self._limit_s = limit_s
        self._pool = urllib3.PoolManager(num_pools=2, maxsize=1)
        self._headers = {"Accept": "text/plain, application/json", "Accept-Encoding": "gzip"}
        if address.user:
            from urllib.parse import unquote

            self._headers |= urllib3.make_headers(basic_auth=unquote(address.user))

    def get(self, query: str = "") -> Page:
        """Return the page; with a query, that of the address with it."""
        import urllib3

        try:
            return self._get(self._address.url + query)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise FetchFault(_reason(error, self._limit_s)) from None

    def _get(self, url: str) -> Page:
        deadline = time.monotonic() + self._limit_s
        for _ in range(_REDIRECTS + 1):
            began = time.time()
            answer = self._request(url)
            came = time.time()
            try:
                target = answer.get_redirect_location()
                if not target:
                    return Page(_content(answer, deadline), (began + came) / 2)
                url = self._followed(url, target)
            finally:
                answer.close()
        raise FetchFault("sends from one address to another without end")

    def _request(self, url: str) -> "BaseHTTPResponse":
        import urllib3

        # A connection that was kept open may have been closed meanwhile: a second try opens one.
        again = urllib3.Retry(1, connect=0, read=1, redirect=0, status=0)
        return self._pool.request(
            "GET",
            url,
            headers=self._headers,
            timeout=urllib3.Timeout(total=self._limit_s),
            retries=again,
            redirect=False,
            preload_content=False,
        )

    def _followed(self, url: str, target: str) -> str:
        """Return where a redirect leads, if that is the same server."""
        full = urljoin(url, target)
        here, there = urlsplit(url), urlsplit(full)
        if (here.scheme, here.netloc) != (there.scheme, there.netloc):
            raise FetchFault(
                f"sends to another server, {checks.shown(there.netloc)}, which is not asked"
            )
        return full


def _content(answer: "BaseHTTPResponse", deadline: float) -> bytes:
    """Read the body, no longer and no more than may be."""
    if answer.status != 200:
        raise FetchFault(f"answers with status {answer.status}{_said(answer)}")
    parts: list[bytes] = []
    size = 0
    while part := answer.read1(_CHUNK, decode_content=True):  # what is there, without waiting
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            raise FetchFault(f"sends more than {MOST_BYTES >> 20} MiB, which is no page of metrics")
        if time.monotonic() > deadline:
            raise FetchFault("sends its page so slowly that it is not waited for")
    return b"".join(parts)


def _said(answer: "BaseHTTPResponse") -> str:
    """Return what Prometheus says of a query that it refuses."""
    import json

    if "json" not in answer.headers.get("Content-Type", ""):
        return ""
    try:
        document: Any = json.loads(answer.read(4096, decode_content=True))
        return f": {checks.shown(document['error'])}"
    except (LookupError, TypeError, ValueError):
        return ""


def _reason(error: Exception, limit_s: float) -> str:
    """Return in a few words why a request failed."""
    from urllib3 import exceptions

    if isinstance(error, exceptions.MaxRetryError) and error.reason is not None:
        error = error.reason
    if isinstance(error, exceptions.NameResolutionError):
        return "has a name that no name server knows"
    if isinstance(error, exceptions.TimeoutError) and not isinstance(
        error, exceptions.NewConnectionError
    ):
        return f"has not answered within {limit_s:g} s"
    if isinstance(error, exceptions.NewConnectionError):
        return "takes no connections"
    if isinstance(error, exceptions.SSLError):
        return "has a certificate that is not trusted, or speaks no TLS"
    if isinstance(error, exceptions.ProtocolError | exceptions.DecodeError):
        return "sent a torn page, which is left out"
    return f"cannot be read ({type(error).__name__})"
