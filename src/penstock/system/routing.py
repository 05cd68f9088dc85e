"""Routers: which replica of a pool gets a request.

A router of your own is a function of the same form as those of `penstock.system.router_functions`:

>>> from penstock.kernel.signatures import SEEN_REQUESTS, SEEN_SPEED
>>> from penstock.system.routing import router
>>> @router
... def by_speed(replicas, request, params):
...     best = 0
...     for place in range(replicas.shape[0]):
...         time = replicas[place, SEEN_REQUESTS] / replicas[place, SEEN_SPEED]
...         if time < replicas[best, SEEN_REQUESTS] / replicas[best, SEEN_SPEED]:
...             best = place
...     return best
"""

import dataclasses
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, overload

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError
from penstock.fields import Range
from penstock.inputs.arrays import Floats
from penstock.kernel.signatures import (
    ASKED_FIELDS,
    ROUTE_BY_FUNCTION,
    ROUTE_POWER_OF_TWO,
    ROUTE_RANDOM,
    ROUTE_REQUESTS,
    ROUTE_ROUND_ROBIN,
    ROUTE_TOKENS,
    ROUTE_WORK,
    ROUTER_SIGNATURE,
    SEEN_FIELDS,
)
from penstock.system import router_functions
from penstock.system.own_functions import OwnFunction, rows_of

RouterFunction = Callable[[Floats, Floats, Floats], int]
Sends = Literal["", "to the least", "to the less of two", "at random", "in turns", "otherwise"]

_VANISHES = "a measure that is 0 at a busy replica sends it everything"
_WEIGHT = Range(1e-3, 1e6, "", _VANISHES)
_SETTING = Range(0, 1e6, "", "it weighs or limits")


@dataclasses.dataclass(frozen=True)
class Router(OwnFunction):
    """A rule that chooses among the replicas of a pool; ties go to the lowest replica.

    Attributes
    ----------
    name
        How tables and messages call it.
    code
        What the kernel calls it (``ROUTE_...`` in `penstock.kernel.signatures`).
    function
        Where it is a function: as written.
    settings
        Numbers that its function is told, by name, in order.
    prefill_weight, decode_weight
        For a `measure`: what a request in each phase counts.
    sends
        How it chooses, as far as theorems go by it. ``to the least``: of a measure of what is at a
        replica that vanishes only at an empty one and rises with its work (rem:jsq+), up to the
        tokens of the request that is sent. ``to the less of two``: of two replicas drawn at random,
        by such a measure. ``at random`` and ``in turns``: in fixed shares. ``otherwise``, and
        empty, where it is not said: nothing is known.
    seeks
        What must be somewhere for it to do what its name says: ``prompts`` that replicas have
        computed, KV ``memory`` with a limit, or jobs of several ``calls``. Empty: nothing.
    """

    name: str
    code: int = ROUTE_BY_FUNCTION
    function: RouterFunction | None = None
    settings: tuple[tuple[str, float], ...] = ()
    prefill_weight: float | None = None
    decode_weight: float | None = None
    sends: Sends = ""
    seeks: Literal["", "prompts", "memory", "calls"] = ""
    word = "router"
    arguments = ("replicas", "request", "params")
    signature = ROUTER_SIGNATURE
    form = (
        f"a router is plain arithmetic on the arrays replicas (replicas, {SEEN_FIELDS}), request "
        f"({ASKED_FIELDS},) and params, and returns a row of replicas"
    )

    def __post_init__(self) -> None:
        if self.sends not in typing.get_args(Sends):
            known = ", ".join(word for word in typing.get_args(Sends) if word)
            raise InputError(
                f"router {self.name} sends {checks.shown(self.sends)}, but theorems know routers "
                f"that send {known}; give one of these, or leave it out"
            )
        numbers = (
            (name, _SETTING.number(value, f"{name} of router {self.name}"))
            for name, value in self.settings
        )
        vars(self)["settings"] = tuple(numbers)

    @staticmethod
    def measure(
        *, prefill: Annotated[float, _WEIGHT], decode: Annotated[float, _WEIGHT]
    ) -> "Router":
        """Return the router to the replica with the least ``prefill`` x prompts + ``decode`` x
        decoding requests.

        Parameters
        ----------
        prefill, decode
            What a request counts while it is in prefill, and in decode; both above 0, because a
            measure that vanishes at a busy replica would send it everything (rem:jsq+ holds for
            measures that vanish only at empty ones).
        """
        weights = (
            _WEIGHT.number(prefill, "the prefill weight of a measure"),
            _WEIGHT.number(decode, "the decode weight of a measure"),
        )
        return Router("measure", ROUTE_WORK, None, (), *weights, sends="to the least")

    def with_settings(self, **settings: float) -> "Router":
        """Return the same router with other numbers, by the names in `settings`."""
        known = dict(self.settings)
        for name in settings:
            if name not in known:
                has = f"has {', '.join(known)}" if known else "has none"
                raise InputError(f"router {self.name} has no setting {name!r}; it {has}")
        return dataclasses.replace(self, settings=tuple((known | settings).items()))

    @property
    def by_shares(self) -> bool:
        """Whether replicas get fixed shares of what comes, whatever is at them."""
        return self.sends in ("at random", "in turns")

    @property
    def is_own(self) -> bool:
        """Whether it is one of the user's own, whatever its name, so that nobody checked how it
        ``sends``.
        """
        namesake = ROUTERS.get(self.name)
        return self.function is not None and (
            namesake is None or namesake.function is not self.function
        )

    @property
    def in_words(self) -> str:
        """Its name, and that it is one of the user's own."""
        return f"{self.name} (one of the user's own)" if self.is_own else self.name

    @property
    def looks_up(self) -> bool:
        """Whether it asks which replicas have computed the beginning of a prompt."""
        return self._reads("SEEN_CACHED")

    @property
    def looks_at_memory(self) -> bool:
        """Whether it asks how much of the KV memory is in use."""
        return self._reads("SEEN_MEMORY")

    def _reads(self, column: str) -> bool:
        """Return whether its function may look at a column: one of its names, or any if unclear."""
        # Unclear: it names none, or calls another function that may.
        if self.function is None:
            return False
        names = self.function.__code__.co_names
        known = self.function.__globals__
        calls = any(hasattr(known.get(name), "__code__") for name in names)
        calls = calls or any(hasattr(known.get(name), "py_func") for name in names)
        return column in names or calls or not any(name.startswith("SEEN_") for name in names)

    @property
    def params(self) -> Floats:
        """The numbers that its function is told."""
        return np.array([value for _, value in self.settings], np.float64)

    def __call__(self, replicas: npt.ArrayLike, request: npt.ArrayLike) -> int:
        """Return the replica for one state of the replicas, shape (replicas, `SEEN_FIELDS`), and
        one request, shape (`ASKED_FIELDS`,).
        """
        if self.function is None:
            raise InputError(f"router {self.name!r} is built in; take one that is a function")
        rows = rows_of(f"replicas of router {self.name!r}", replicas, SEEN_FIELDS, "SEEN_")
        what = f"request of router {self.name!r}"
        asked = rows_of(what, checks.array(what, request)[None], ASKED_FIELDS, "ASKED_")
        return int(self.function(rows, asked[0], self.params))


@overload
def router(function: RouterFunction, /) -> Router: ...
@overload
def router(
    *, name: str | None = None, sends: Sends = "", **settings: float
) -> Callable[[RouterFunction], Router]: ...
def router(
    function: RouterFunction | None = None,
    /,
    *,
    name: str | None = None,
    sends: Sends = "",
    **settings: float,
) -> Router | Callable[[RouterFunction], Router]:
    """Make a router of a function ``(replicas, request, params) -> place``.

    Parameters
    ----------
    function
        Plain arithmetic on ``replicas``, float64 of shape (replicas, `SEEN_FIELDS`) with the
        columns ``SEEN_...`` of `penstock.kernel.signatures`, on ``request``, float64 of shape
        (`ASKED_FIELDS`,) with ``ASKED_...``, and on the float64 array ``params``. It returns a row
        of ``replicas``. Call the columns by these names: what is not named is not worked out, and
        not a number.
    name
        Default: the function's name.
    sends
        How it chooses, as `Router` has it. Theorems take it on trust, and say so.
    settings
        Numbers handed to the function as ``params``, in this order.

    Raises
    ------
    InputError
        If the function cannot be compiled to the router type, or it says that it sends as no
        router is known to.
    """
    made: Router | Callable[[RouterFunction], Router]
    made = Router.of(function, name, sends=sends, settings=tuple(settings.items()))
    return made


_SPILL = (("spill", 64.0), ("times", 1.5))

ROUTERS: dict[str, Router] = {
    r.name: r
    for r in (
        Router("random", ROUTE_RANDOM, sends="at random"),
        Router("round-robin", ROUTE_ROUND_ROBIN, sends="in turns"),
        Router("jsq", ROUTE_REQUESTS, sends="to the least"),
        Router("tokens", ROUTE_TOKENS, sends="to the least"),
        Router("work", ROUTE_WORK, sends="to the least"),
        Router("power-of-two", ROUTE_POWER_OF_TWO, sends="to the less of two"),
        Router(
            "power-of-two-tokens",
            function=router_functions.power_of_two_tokens,
            sends="to the less of two",
        ),
        Router("memory", function=router_functions.memory, sends="otherwise", seeks="memory"),
        Router("fastest", function=router_functions.fastest, sends="to the least"),
        Router(
            "session",
            function=router_functions.session,
            settings=_SPILL,
            sends="otherwise",
            seeks="calls",
        ),
        Router(
            "prefix",
            function=router_functions.prefix,
            settings=(("match", 0.3), *_SPILL),
            sends="otherwise",
            seeks="prompts",
        ),
        Router(
            "scored",
            function=router_functions.scored,
            settings=(("cached", 3.0), ("queue", 2.0), ("memory", 2.0)),
            sends="otherwise",
            seeks="prompts",
        ),
    )
}
"""The routers that have a name.

``random``; ``round-robin``, in turns; ``jsq``, fewest unfinished requests; ``tokens``, fewest
unprocessed tokens; ``work``, least expected work by the mean lengths of the stages;
``power-of-two`` and ``power-of-two-tokens``, the one of two replicas drawn at random with fewer
unfinished requests, or unprocessed tokens. The others are the functions of
`penstock.system.router_functions`. `Router.measure` and `router` make more.
"""


Router.known, Router.family = ROUTERS, Router


def resolve_router(
    choice: "str | Router | RouterFunction | Mapping[str, Any]", *, folder: Path | None = None
) -> Router:
    """Return the router of a name, a ``module:function`` or a function, and given settings."""
    # Settings: ``{"prefix": {"match": 0.5}}``.
    if isinstance(choice, Mapping):
        return _with_named_settings(choice, folder)
    router: Router = Router.named(choice, folder)
    return router


def _with_named_settings(choice: Mapping[str, Any], folder: Path | None) -> Router:
    """Return the router that ``{"prefix": {"match": 0.5}}`` stands for."""
    if len(choice) != 1 or not all(isinstance(settings, Mapping) for settings in choice.values()):
        raise InputError(
            f"a router is {checks.shown(choice)}, but must be a name such as jsq, or one name with "
            "its settings, such as {prefix: {match: 0.5}}"
        )
    ((name, settings),) = choice.items()
    named = {str(setting): value for setting, value in settings.items()}
    return resolve_router(name, folder=folder).with_settings(**named)
