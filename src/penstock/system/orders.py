"""Orders: which line of a replica is served first, where requests of several stages meet.

Each stage has a line of its own at a replica; ``fcfs`` has one for all. Before each batch an order
weighs the lines, and the pool's policy chooses the tokens of each. An order of your own is a
function of the same form:

>>> from penstock.kernel.signatures import BY_LINE, LINE_DECODING, LINE_PROMPTS
>>> from penstock.system.orders import order
>>> @order
... def longest_line_first(lines, params, weights):
...     for line in range(lines.shape[0]):
...         weights[line, 0] = lines[line, LINE_PROMPTS] + lines[line, LINE_DECODING]
...     return BY_LINE
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import overload

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError
from penstock.inputs.arrays import Floats
from penstock.kernel.signatures import (
    BY_LINE,
    BY_PHASE,
    LINE_BATCHES,
    LINE_DECODE_MEAN,
    LINE_DECODING,
    LINE_FIELDS,
    LINE_NEXT,
    LINE_NEXT_PROMPTS,
    LINE_PREFILL_MEAN,
    LINE_PROMPTS,
    ORDER_SIGNATURE,
    SPLIT,
)
from penstock.system.own_functions import OwnFunction, rows_of

OrderFunction = Callable[[Floats, Floats, Floats], int]


@dataclasses.dataclass(frozen=True, eq=False)
class Order(OwnFunction):
    """An order between the lines of a replica, compiled when it is first needed.

    Attributes
    ----------
    name
        How tables and messages call it.
    function
        The function as written; None for ``fcfs``, which has a single line.
    params
        Numbers handed to the function.
    stages
        For ``priority``: the stages of the pool, most urgent first; `Network` turns them into
        ``params``.
    fills
        Whether a batch is filled with all that waits, whatever the pool's policy does: because the
        policy is not asked, or because what it leaves is filled. Else the pool is work-conserving
        if its policy is.
    whole_stages
        Whether it puts stages before stages and leaves it to the pool's policy which phase of one
        comes first. Theorems know such a stage by one queue, and any other by two.
    """

    name: str
    function: OrderFunction | None
    params: tuple[float, ...] = ()
    stages: tuple[str, ...] = ()
    fills: bool = False
    whole_stages: bool = False
    word = "order"
    arguments = ("lines", "params", "weights")
    signature = ORDER_SIGNATURE
    form = (
        f"an order is plain arithmetic on the arrays lines (lines, {LINE_FIELDS}) and params, "
        "fills weights (lines, 2) and returns BY_LINE, BY_PHASE or SPLIT"
    )

    @staticmethod
    def priority(stages: Sequence[str]) -> "Order":
        """Return the static priority order that serves the first of these stages first."""
        if (
            isinstance(stages, str)
            or not isinstance(stages, Sequence)
            or not all(isinstance(s, str) for s in stages)
        ):
            raise InputError(
                f"priority has {checks.shown(stages)}, but orders stages by name; give a list, "
                "most urgent first"
            )
        return dataclasses.replace(ORDERS["priority"], stages=tuple(stages))

    @property
    def single_line(self) -> bool:
        """Whether all stages of a pool wait in one line."""
        return self.function is None

    @property
    def ranks_stages(self) -> bool:
        """Whether it is ``priority``, and no order of the user's own by that name."""
        return self.function is priority

    def __call__(
        self, lines: npt.ArrayLike, params: Sequence[float] | None = None
    ) -> tuple[int, Floats]:
        """Return the mode and the weights, shape (lines, 2), for one state of the lines, shape
        (lines, `LINE_FIELDS`).
        """
        if self.function is None:
            raise InputError(
                f"order {self.name!r} has a single line, so it weighs none; take another"
            )
        rows = rows_of(f"lines of order {self.name!r}", lines, LINE_FIELDS, "LINE_")
        weights = np.zeros((rows.shape[0], 2))
        mode = self.function(
            rows, np.asarray(self.params if params is None else params, np.float64), weights
        )
        return int(mode), weights


@overload
def order(function: OrderFunction) -> Order: ...
@overload
def order(
    *, name: str | None = None, params: Sequence[float] = ()
) -> Callable[[OrderFunction], Order]: ...
def order(
    function: OrderFunction | None = None, *, name: str | None = None, params: Sequence[float] = ()
) -> Order | Callable[[OrderFunction], Order]:
    """Make an order of a function ``(lines, params, weights) -> mode``.

    Parameters
    ----------
    function
        Plain arithmetic on ``lines``, float64 of shape (lines, `LINE_FIELDS`) with the columns
        ``LINE_...`` of `penstock.kernel.signatures`, and on the float64 array ``params``. It fills
        ``weights``, float64 of shape (lines, 2), and returns `BY_LINE`, `BY_PHASE` or `SPLIT`.
    name
        Default: the function's name.
    params
        Numbers handed to the function.

    Raises
    ------
    InputError
        If the function cannot be compiled to the order type.
    """
    numbers = checks.array("the params of an order", params).ravel() if len(params) else ()
    made: Order | Callable[[OrderFunction], Order]
    made = Order.of(function, name, params=tuple(float(number) for number in numbers))
    return made


def priority(lines, params, weights):  # type: ignore[no-untyped-def]
    """Static priority between stages; ``params`` has the lines, most urgent first."""
    # By the Rybko-Stolyar network it can be unstable although no server is overloaded (Section 5).
    for rank in range(lines.shape[0]):
        weights[int(params[rank]), 0] = -rank
    return BY_LINE


def decode_first(lines, params, weights):  # type: ignore[no-untyped-def]
    """Any decode before any prefill, then by the order of stages: Sarathi-Serve over all stages."""
    weights[:, 0] = 0
    weights[:, 1] = 1
    return BY_PHASE


def back_pressure(lines, params, weights):  # type: ignore[no-untyped-def]
    """Stages by (Z - Z of what comes next) / (m_p + m_d), the largest first."""
    # MaxWeight back-pressure (Tassiulas and Ephremides 1992): a token there lowers the squared
    # queue lengths the most.
    for line in range(lines.shape[0]):
        tokens = lines[line, LINE_PREFILL_MEAN] + lines[line, LINE_DECODE_MEAN]
        pressure = lines[line, LINE_PROMPTS] + lines[line, LINE_DECODING] - lines[line, LINE_NEXT]
        weights[line, 0] = pressure / tokens if tokens > 0 else 0.0
    return BY_LINE


def back_pressure_phase(lines, params, weights):  # type: ignore[no-untyped-def]
    """Back-pressure by phase: (Zp - Zd) / m_p, and (Zd - Zp of what comes next) / m_d."""
    for line in range(lines.shape[0]):
        prompts, decoding = lines[line, LINE_PROMPTS], lines[line, LINE_DECODING]
        prefill, decode = lines[line, LINE_PREFILL_MEAN], lines[line, LINE_DECODE_MEAN]
        weights[line, 0] = (prompts - decoding) / prefill if prefill > 0 else 0.0
        weights[line, 1] = (
            (decoding - lines[line, LINE_NEXT_PROMPTS]) / decode if decode > 0 else 0.0
        )
    return BY_PHASE


def hlpps(lines, params, weights):  # type: ignore[no-untyped-def]
    """Head-of-the-line processor sharing (Bramson 1996): the budget by each one's Z (m_p + m_d)."""
    for line in range(lines.shape[0]):
        requests = lines[line, LINE_PROMPTS] + lines[line, LINE_DECODING]
        weights[line, 0] = requests * (
            lines[line, LINE_PREFILL_MEAN] + lines[line, LINE_DECODE_MEAN]
        )
    return SPLIT


def round_robin(lines, params, weights):  # type: ignore[no-untyped-def]
    """Each stage in turn is first, for one batch; the others follow it in their order."""
    stages = lines.shape[0]
    for line in range(stages):
        weights[line, 0] = -float((line - int(lines[line, LINE_BATCHES])) % stages)
    return BY_LINE


ORDERS: dict[str, Order] = {
    o.name: o
    for o in (
        Order("fcfs", None, whole_stages=True),
        Order("priority", priority, whole_stages=True),
        Order("decode-first", decode_first, fills=True),
        Order("back-pressure", back_pressure, whole_stages=True),
        Order("back-pressure-phase", back_pressure_phase, fills=True),
        Order("hlpps", hlpps, fills=True, whole_stages=True),
        Order("round-robin", round_robin, whole_stages=True),
    )
}
"""The orders that have a name.

``fcfs``: all stages in one line, in order of arrival at the replica. The others see the functions
of this module.
"""


Order.known, Order.family = ORDERS, Order


def resolve_order(choice: str | Order | OrderFunction, *, folder: Path | None = None) -> Order:
    """Return the order that a name, a ``module:function`` or a function stands for."""
    # ``folder``: where ``module`` and ``file.py`` are looked for first, the scenario's own.
    order: Order = Order.named(choice, folder)
    return order
