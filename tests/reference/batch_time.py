"""How long a batch takes where what is in it decides, not its token load alone (paper, Appendix
A).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Composition:
    """t_b = c + a_1 sum n + a_2 sum n^2 + a_3 sum n l over requests with n new tokens and l before
    them (Appendix A).

    A decode has n = 1, and a cost of its own for each of its l tokens. All are whole numbers of 1 /
    ``per_tick`` ticks.
    """

    linear: Callable[[int], int]  # c + a_1 b, by token load b
    self_attention: int = 0  # a_2
    cross_attention: int = 0  # a_3, in prefill
    decode_attention: int = 0  # a_3, in decode
    mixed_attention: int = 0  # the same, in a batch with prefill
    per_request: int = 0
    with_prefill: int = 0  # in a batch with prefill
    per_tick: int = 1

    def __call__(self, b: int) -> Fraction:
        """Return the ticks of b tokens by their number alone: what a policy goes by."""
        return Fraction(self.linear(b), self.per_tick)

    def ticks(self, prefill: Sequence[tuple[int, int]], decode: Sequence[int]) -> int:
        """Return the nearest whole number of ticks.

        ``prefill``: (n, l) of each prompt; ``decode``: l of each decode.
        """
        decode_attention = self.mixed_attention if prefill else self.decode_attention
        cost = self.linear(sum(n for n, _ in prefill) + len(decode)) + self.per_request * (len(prefill) + len(decode))
        cost += self.with_prefill if prefill else 0
        for n, before in prefill:
            cost += self.self_attention * n**2 + self.cross_attention * n * before
        for before in decode:
            cost += self.self_attention + decode_attention * before
        return (2 * cost + self.per_tick) // (2 * self.per_tick)
