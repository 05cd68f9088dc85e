"""Orders between the lines of a replica: before each batch they say which line is served first."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

BY_LINE = 0  # lines by falling first weight; each is offered what is left
BY_PHASE = 1  # buffers (line, phase) by falling weight; each takes what it can
SPLIT = 2  # the budget in proportion to the first weights, then what is left in the order of the lines


class Line(NamedTuple):
    """What an order sees of a line; counts are as of the last batches that ended."""

    prompts: float  # requests in prefill
    prompt_tokens: float  # their unprocessed tokens
    decoding: float  # requests in decode
    prefill_mean: float  # m_p of the stage
    decode_mean: float  # m_d
    next_requests: float  # expected successors already in their pools, per replica of these
    next_prompts: float  # those of them in prefill
    batches: float  # that this replica has formed


Weights: TypeAlias = list[tuple[float, float]]
"""One row per line, for prefill and decode; where lines are ranked as a whole, the first of both
counts.
"""

Order: TypeAlias = Callable[[Sequence[Line], Sequence[float]], tuple[int, Weights]]


def priority(lines: Sequence[Line], params: Sequence[float]) -> tuple[int, Weights]:
    """Serve the lines in the order that params name them."""
    return BY_LINE, [(-list(params).index(line), 0) for line in range(len(lines))]


def decode_first(lines: Sequence[Line], params: Sequence[float]) -> tuple[int, Weights]:
    """Serve any decode before any prefill, and inside a phase the lines as they come."""
    return BY_PHASE, [(0, 1) for _ in lines]


def back_pressure(lines: Sequence[Line], params: Sequence[float]) -> tuple[int, Weights]:
    """Serve lines by their requests less those at the next stage, for each token of a request."""
    return BY_LINE, [
        (
            per(
                line.prompts + line.decoding - line.next_requests,
                line.prefill_mean + line.decode_mean,
            ),
            0,
        )
        for line in lines
    ]


def back_pressure_phase(lines: Sequence[Line], params: Sequence[float]) -> tuple[int, Weights]:
    """The same between phases: decode comes next after prefill, the prefill of the next stage after
    decode.
    """
    return BY_PHASE, [
        (
            per(line.prompts - line.decoding, line.prefill_mean),
            per(line.decoding - line.next_prompts, line.decode_mean),
        )
        for line in lines
    ]


def hlpps(lines: Sequence[Line], params: Sequence[float]) -> tuple[int, Weights]:
    """Share the budget in proportion to requests times their mean tokens (head-of-line proportional
    sharing).
    """
    return SPLIT, [((line.prompts + line.decoding) * (line.prefill_mean + line.decode_mean), 0) for line in lines]


def round_robin(lines: Sequence[Line], params: Sequence[float]) -> tuple[int, Weights]:
    """Begin each batch one line further."""
    return BY_LINE, [(-((index - line.batches) % len(lines)), 0) for index, line in enumerate(lines)]


def per(count: float, tokens: float) -> float:
    """Divide; 0 where there are no tokens."""
    return count / tokens if tokens > 0 else 0.0


ORDERS: dict[str, Order] = {
    "priority": priority,
    "decode-first": decode_first,
    "back-pressure": back_pressure,
    "back-pressure-phase": back_pressure_phase,
    "hlpps": hlpps,
    "round-robin": round_robin,
}
