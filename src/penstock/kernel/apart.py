"""Functions that a system may lack: compiled and kept by themselves, and called by their address.

What all systems need is one function with its parts inside. A rule of an engine, outages or a cache
that is a tree are compiled when a system has them, and not before. Such a function is called as any
other; the address stands in `World.apart`.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

from numba import from_dtype, types
from numba.core.typing.templates import builtin_registry, make_concrete_template
from numba.extending import lower_builtin

from penstock.kernel.by_reference import Reference, item_of
from penstock.kernel.compiled_code import allocating_nothing, uncounted
from penstock.kernel.records import (
    ALLOCATION_ROWS,
    APART,
    BY_POLICY,
    ENGINE,
    FUNCTIONS,
    LINE,
    POOL,
    WORLD,
    World,
)
from penstock.kernel.signatures import address_of, call_at, function_at, interpreted

__all__ = [
    *("AN_ENGINE", "A_LINE", "A_POOL", "A_RULE", "A_WORLD", "NUMBER"),
    *("address", "apart", "form_by_rule", "load", "settings_of"),
]

A_WORLD, AN_ENGINE, A_POOL = Reference(WORLD), from_dtype(ENGINE), from_dtype(POOL)
A_LINE = from_dtype(LINE)
NUMBER = types.int64

A_RULE = NUMBER(A_WORLD, AN_ENGINE, A_POOL)
"""The signature of a rule, which forms the batch of an engine; it returns what failed, or 0.

A rule works on the running list and the waiting queue. It says in `ENGINE.batch` who is served:
slots in prefill (`serve_prefill`) and the number of decoding requests, which are the first of the
list unless ``taken`` marks them. Memory is taken as requests are put into the batch, and who has to
make room for it leaves (`preempt`).
"""

_FUNCTIONS: dict[str, tuple[Any, Any]] = {}  # each with its signature, by its name

OF_LINES = ("form_from_lines", "end_of_lines", "join_line", "cached")
OF_CACHES = (
    *("take", "occupy", "name_blocks", "found_in_cache", "give_back", "give_back_of_finished"),
    "name_known",
)
OF_TREES = ("keep_at_end", "keep_ahead", "leave", "give_up", "pages_found")
OF_DRAFTS = ("verify", "keep_accepted")
OF_WORKFLOWS = ("follow", "come_due", "push_delayed")
OF_FRONT_ENDS = ("wait_in_front", "come_due", "push_delayed")
OF_OUTAGES = ("happen", "strand")
OF_TRANSFERS = ("come", "land", "receive")
OF_CLIENTS = (
    *("let_in", "next_leaving", "cut_runs", "let_leave", "dismiss", "leave_unserved"),
    *("come_due", "push_delayed"),
)


def apart(signature: Any) -> Callable[[Any], Any]:
    """Compile a function by itself under one signature; return what calls it, world first."""

    def made(function: Any) -> Any:
        _FUNCTIONS[function.__name__] = function, signature
        if signature is A_RULE:  # called by the number of its pool's rule
            return function
        return _call(APART.index(function.__name__), signature)

    return made


def _call(number: int, signature: Any) -> Callable[..., Any]:
    """Return what calls a function of `World.apart`."""

    def call(world: Any, *rest: Any) -> Any:
        return interpreted(world.apart[number])(world, *rest)

    template = make_concrete_template(call.__name__, call, [signature])
    builtin_registry.register_global(call, types.Function(template))

    @lower_builtin(call, *signature.args)
    def _(context: Any, builder: Any, _: Any, args: Any) -> Any:
        address = item_of(context, builder, A_WORLD, args[0], "apart", number)
        return call_at(context, builder, signature, address, args)

    return call


def load(world: World, workflows: bool, outages: bool, transfers: bool) -> None:
    """Let a world have the functions that its pools need, and those of workflows, outages and
    transfers.
    """
    pools = world.pools
    engines = pools[pools.by_lines == 0]
    records_all = world.clock[0].record >= ALLOCATION_ROWS
    needed = [FUNCTIONS[rule] for rule in set(engines.rule.tolist())]
    needed += OF_LINES if pools.by_lines.any() else ()
    needed += ("choose",) if (pools.replicas > 1).any() else ()
    needed += ("report",) if (pools.routing.report > 0).any() else ()
    needed += OF_CACHES if pools.caching.any() else ()
    needed += OF_TREES if pools.radix.any() else ()
    needed += OF_DRAFTS if (pools.drafts > 0).any() else ()
    needed += ("note_allocations",) if records_all and engines.size else ()
    needed += OF_WORKFLOWS if workflows else ()
    needed += OF_FRONT_ENDS if world.fronts.size else ()
    needed += OF_OUTAGES if outages else ()
    needed += OF_TRANSFERS if transfers else ()
    needed += OF_CLIENTS if world.clock[0].guarded else ()
    for name in needed:
        world.apart[FUNCTIONS.index(name)] = address(name)


_rule_at = function_at(types.FunctionType(A_RULE))


@uncounted(inline=True)
def form_by_rule(world: World, engine: Any, pool: Any) -> Any:
    """Form a batch by the pool's rule; return what failed, or 0."""
    return _rule_at(world.apart[pool.rule])(world, engine, pool)


def settings_of(rule: str) -> Any:
    """Return the record of the settings that a rule is told, or None."""
    return getattr(_module_of(rule), "SETTINGS", None)


def _module_of(rule: str) -> Any:
    """Return the module of a rule, which is loaded when it is needed."""
    place = "seam" if rule == BY_POLICY else f"engines.{rule}"
    return importlib.import_module(f"penstock.kernel.{place}")


@functools.cache
def address(name: str) -> int:
    """Return where a function begins: seconds the first time, from the disk cache after."""
    if name not in _FUNCTIONS:
        _module_of(name)
    return address_of(_compiled(name), _FUNCTIONS[name][1])


@functools.cache  # kept alive while it may be called
def _compiled(name: str) -> Any:
    """Return a function, compiled."""
    function, signature = _FUNCTIONS[name]
    compiled = allocating_nothing(
        function, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True
    )
    if compiled is not function:  # nothing is compiled where Numba is told so
        compiled.compile(signature)
    return compiled
