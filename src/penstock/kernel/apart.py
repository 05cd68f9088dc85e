"""Functions that a system may lack: compiled and kept by themselves, and called by their address.

What all systems need is one function with its parts inside. A rule of an engine, outages or a cache
that is a tree are compiled when a system has them, and not before. Such a function is called as any
other; the address stands in `World.apart`.
"""

import functools
from collections.abc import Callable
from typing import Any

from numba import from_dtype, types

from penstock.kernel.by_reference import Reference
from penstock.kernel.compiled_code import allocating_nothing, uncounted
from penstock.kernel.records import (
    APART,
    BY_LINES,
    ENGINE,
    POOL,
    SEAM,
    SGLANG,
    TENSORRT,
    VLLM,
    WORLD,
    World,
)
from penstock.kernel.signatures import address_of, function_at

__all__ = ["AN_ENGINE", "A_POOL", "A_WORLD", "NUMBER", "address", "apart", "load"]

A_WORLD, AN_ENGINE, A_POOL = Reference(WORLD), from_dtype(ENGINE), from_dtype(POOL)
NUMBER = types.int64

_FUNCTIONS: dict[str, tuple[Any, Any]] = {}  # each with its signature, by its name in `APART`

# Of an engine whose rule is not here, the rule is a part of the event loop.
OF_RULE = {
    BY_LINES: {"form_from_lines", "end_of_lines"},
    SEAM: {"form_by_policy"},
    VLLM: {"vllm"},
    SGLANG: {"sglang"},
    TENSORRT: {"tensorrt"},
}
OF_TREES = {"keep_at_end", "keep_ahead", "leave", "give_up", "pages_found"}
OF_OUTAGES = {"happen", "hold"}
OF_TRANSFERS = {"come", "land", "receive"}


def apart(signature: Any) -> Callable[[Any], Any]:
    """Compile a function by itself under one signature; return what calls it, world first."""

    def made(function: Any) -> Any:
        number = APART.index(function.__name__)
        _FUNCTIONS[function.__name__] = function, signature
        at = function_at(types.FunctionType(signature))

        @uncounted(inline=True)
        def call(world: Any, *rest: Any) -> Any:
            return at(world.apart[number])(world, *rest)

        return call

    return made


def load(world: World, outages: bool, transfers: bool) -> None:
    """Let a world have the functions that its pools need, and those of outages and transfers."""
    needed = {name for rule in set(world.pools.rule.tolist()) for name in OF_RULE.get(rule, ())}
    needed |= OF_TREES if world.pools.radix.any() else set()
    needed |= OF_OUTAGES if outages else set()
    needed |= OF_TRANSFERS if transfers else set()
    for name in needed:
        world.apart[APART.index(name)] = address(name)


@functools.cache
def address(name: str) -> int:
    """Return where a function begins: seconds the first time, from the disk cache after."""
    return address_of(_compiled(name), _FUNCTIONS[name][1])


@functools.cache  # kept alive while it may be called
def _compiled(name: str) -> Any:
    """Return a function of a module that has been imported with the event loop."""
    function, signature = _FUNCTIONS[name]
    compiled = allocating_nothing(
        function, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True
    )
    if compiled is not function:  # nothing is compiled where Numba is told so
        compiled.compile(signature)
    return compiled
