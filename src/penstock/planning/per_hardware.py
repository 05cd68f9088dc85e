"""What differs from hardware to hardware: KV memory, accelerators and their price."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from penstock import checks
from penstock.errors import InputError
from penstock.system.batch_time_file import BatchTimeFile
from penstock.system.server import Server, with_kv_tokens


def with_memory(
    server: Server, hardware: Sequence[str | None], kv_tokens: int | Mapping[str, int] | None
) -> dict[str | None, Server]:
    """Return the server with each hardware's KV memory; refuse sizes that none takes."""
    servers = {name: _with_memory(server, name, kv_tokens) for name in hardware}
    if isinstance(kv_tokens, Mapping):
        used = {_matching("kv_tokens", kv_tokens, name or "") for name in hardware}
        if idle := [key for key in kv_tokens if key not in used]:
            raise InputError(
                f"kv_tokens names {checks.shown(idle[0])}, which no hardware of the search takes "
                "(the longest part of "
                "its name counts); mend it, or leave it out"
            )
    return servers


def _with_memory(
    server: Server, hardware: str | None, kv_tokens: int | Mapping[str, int] | None
) -> Server:
    """Return the server with the KV memory of a kind of hardware."""
    if kv_tokens is None:
        return server
    tokens: Any = kv_tokens
    if isinstance(kv_tokens, Mapping):
        tokens = kv_tokens[_matching("kv_tokens", kv_tokens, hardware or "")]
    if isinstance(tokens, str | list | bool):
        raise InputError(
            f"kv_tokens is {checks.shown(tokens)}, but must be the tokens of a replica, or those "
            "of each hardware by a "
            "part of its name, such as {tp1: 40000, tp4: 400000}"
        )
    return with_kv_tokens(server, tokens)


def _matching(what: str, values: Mapping[str, Any], kind: str) -> str:
    """Return the key that is the longest part of a name."""
    key = matching_key(values, kind)
    if key is None:
        raise InputError(
            f"no {what} matches {kind.strip() or 'a server without a preset'}: "
            f"{', '.join(map(str, values)) or 'none'} "
            "given; add one, or give one number for all"
        )
    return key


def matching_key(values: Mapping[str, Any], kind: str) -> str | None:
    """Return the key that is the longest part of a name, None where none is."""
    plain = _plain(kind)
    parts = [key for key in values if _plain(str(key)) and _plain(str(key)) in plain]
    return sorted(parts, key=lambda part: len(str(part)))[-1] if parts else None


def named_as(hardware: BatchTimeFile) -> str:
    """Return the names of hardware that a part may be of: its accelerator's, and its own."""
    return f"{hardware.accelerator or ''} {hardware.name}"


def accelerators_and_price(
    hardware: BatchTimeFile | None, price: float | Mapping[str, float] | None, accelerators: int
) -> tuple[int, float]:
    """Return the accelerators of a replica, and what each costs."""
    kind = ""
    if hardware is not None:
        kind = named_as(hardware)
        accelerators = hardware.tensor_parallel or accelerators
    if price is None:
        return accelerators, 1.0
    if not isinstance(price, Mapping):
        return accelerators, checks.number(
            "price", price, 1e-9, 1e9, "", "it is money for an accelerator for an hour"
        )
    key = _matching("price", price, kind)
    return accelerators, checks.number(
        f"price.{key}", price[key], 1e-9, 1e9, "", "it is money for an hour"
    )


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
