"""Who may ask a server of this machine: programs, and pages of its own.

A page elsewhere can have its name lead here and read the answers (DNS rebinding); the header Host
has that name then. It can also ask without reading. Where a request is from, its browser says:
Sec-Fetch-Site, Origin and Referer. A page may hide all three, but can forge none.
"""

import ipaddress
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

_PRIVATE = (".local", ".internal", ".svc")
"""Ends of names that no public name server gives."""


class Refusal(NamedTuple):
    """A status of HTTP, and why."""

    status: int
    reason: str


def refusal(
    pairs: Iterable[tuple[str, str]],
    name: str,
    *,
    private_names: bool = False,
    proof: bool = False,
) -> Refusal | None:
    """Return why a request, with these headers, is not answered; None: it is."""
    # This machine may be asked by ``name``, besides ``localhost`` and its addresses, and with
    # ``private_names`` by any name that is not public, as in a cluster. For ``proof`` a browser
    # must say that the request is from a page of this server.
    headers: dict[str, str] = {}
    for key, value in pairs:
        key = key.strip().lower()
        headers[key] = f"{headers[key]}, {value.strip()}" if key in headers else value.strip()
    host = headers.get("host", "")
    if not _is_here(host, name, private_names=private_names):
        return Refusal(421, "this server answers to localhost and to addresses alone")
    site = headers.get("sec-fetch-site", "")
    froms = [headers[key] for key in ("origin", "referer") if key in headers]
    if site not in ("", "none", "same-origin") or any(_place(url) != host for url in froms):
        return Refusal(403, "pages elsewhere may not ask; open the page itself")
    is_browser = headers.get("user-agent", "").startswith("Mozilla")
    if proof and is_browser and not site and not froms:
        return Refusal(403, "this is for the page alone; open the page itself")
    return None


def _place(url: str) -> str:
    """Return host and port of an address; of what is none, what no host is."""
    try:
        return urlsplit(url).netloc or "?"
    except ValueError:
        return "?"


def _is_here(host: str, name: str, *, private_names: bool) -> bool:
    """Return whether a header Host names this machine by something that no stranger can give."""
    bare = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    bare = bare.removeprefix("[").removesuffix("]")
    if bare in ("localhost", name):
        return True
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        is_one = bool(bare) and "," not in bare
        return private_names and is_one and ("." not in bare or bare.endswith(_PRIVATE))
    return True
