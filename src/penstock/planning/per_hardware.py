"""Numbers that differ from hardware to hardware, found by a part of its name: KV memory of a
replica, money for an accelerator, accelerators at hand.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from penstock import checks
from penstock.errors import InputError
from penstock.planning.deployment import Kind
from penstock.system.batch_time_file import BatchTimeFile

_MOST_AT_HAND = 10_000_000


def longest_part(parts: Iterable[str], name: str) -> str | None:
    """Return the longest of some texts that is a part of a name, None where none is."""
    plain = {part: re.sub(r"[^a-z0-9]", "", str(part).lower()) for part in parts}
    whole = re.sub(r"[^a-z0-9]", "", name.lower())
    fits = [part for part, letters in plain.items() if letters and letters in whole]
    return max(reversed(fits), key=lambda part: len(str(part)), default=None)


def named(hardware: BatchTimeFile | None) -> str:
    """Return the names of hardware that a part may be of: its accelerator's, and its own."""
    return "" if hardware is None else f"{hardware.accelerator or ''} {hardware.name}"


def number_for(what: str, numbers: Any, hardware: BatchTimeFile | None) -> Any:
    """Return the number for some hardware: one for all, or by the longest part of its name."""
    if not isinstance(numbers, Mapping):
        return numbers
    part = longest_part(numbers, named(hardware))
    if part is None:
        raise InputError(
            f"no {what} matches {named(hardware).strip() or 'a server without a preset'}: "
            f"{', '.join(map(str, numbers)) or 'none'} given; add one, or give one number for all"
        )
    return numbers[part]


def refuse_idle(what: str, numbers: Any, hardware: Sequence[BatchTimeFile | None]) -> None:
    """Refuse numbers by parts of names that no hardware has."""
    if not isinstance(numbers, Mapping):
        return
    used = {longest_part(numbers, named(machine)) for machine in hardware}
    if idle := [part for part in numbers if part not in used]:
        raise InputError(
            f"{what} names {checks.shown(idle[0])}, which no hardware of the search takes (the "
            "longest part of its name counts); mend it, or leave it out"
        )


@dataclasses.dataclass(frozen=True)
class Stock:
    """How many accelerators there are, by a part of the hardware's name; of others no end."""

    at_hand: Mapping[str, int]

    @classmethod
    def of(
        cls, at_hand: Mapping[str, int] | None, hardware: Sequence[BatchTimeFile | None]
    ) -> Self:
        """Check and return what is at hand for a search over some hardware."""
        if at_hand is not None and not isinstance(at_hand, Mapping):
            raise InputError(
                f"at_hand is {checks.shown(at_hand)}, but must be accelerators by a part of the "
                "hardware's name, such as {a100: 4}; what it leaves out has no end"
            )
        refuse_idle("at_hand", at_hand, hardware)
        reason = "it is a number of accelerators; 0 leaves that hardware out"
        return cls(
            {
                part: checks.whole(f"at_hand.{part}", count, 0, _MOST_AT_HAND, "", reason)
                for part, count in (at_hand or {}).items()
            }
        )

    def has(self, kinds: Sequence[tuple[Kind, int]]) -> bool:
        """Return whether there are accelerators for so many replicas of each kind."""
        left = dict(self.at_hand)
        for kind, count in kinds:
            if part := longest_part(left, named(kind.known)):
                left[part] -= kind.accelerators * count
        return all(count >= 0 for count in left.values())

    def limits(self, kind: Kind) -> str:
        """Say what there is, where it says how many there are of a kind."""
        if longest_part(self.at_hand, named(kind.known)) is None:
            return ""
        counts = ", ".join(f"{count:,} of {part}" for part, count in self.at_hand.items())
        return f", with {counts} at hand"
