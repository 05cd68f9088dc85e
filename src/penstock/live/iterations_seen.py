"""What is known of an engine's batches from its own account of each iteration."""

import dataclasses
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from penstock.errors import InputError
from penstock.live.reading import Z95, FittedTimes
from penstock.system.batch_time import BatchTime
from penstock.system.batch_time_file import BatchTimeSection
from penstock.words import counted

_REACH = 0.5  # share of a full batch that batches must have reached to say how long it takes
_SURE = 0.05  # standard error of the largest batches, as a share, beyond which they are not used
_LEAST = 0.02  # by which two batch times may differ without a word


@dataclasses.dataclass(frozen=True)
class Queued:
    """Requests that wait, as the last iteration found them."""

    prompt_tokens: float  # of prompts that wait
    # Requests whose memory was taken back, and their tokens, which are computed anew.
    preempted: float
    preempted_tokens: float


@dataclasses.dataclass(frozen=True)
class Seen:
    """Iterations that were seen, and the batch times fitted to the last of them."""

    source: str  # where they came from
    # How many came since the engine began, were lost on the way, and could not be read.
    batches: int = 0
    lost: int = 0
    unreadable: int = 0
    # Batch times without what is between two batches, and how well they are known; None: not yet.
    model: BatchTime | None = None
    fitted: FittedTimes | None = None
    gap_s: float = 0.0  # between two batches, where the source tells
    # What full batches have in common; None: none was full, as far as one can tell.
    token_budget: int | None = None
    reason: str = ""  # why there are no batch times, if they were tried
    queued: Queued | None = None  # what waits; None: not known

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True, extra="ignore")

    @property
    def error(self) -> float:
        """Standard error of the largest batches, as a share of them."""
        assert self.fitted is not None
        return self.fitted.seconds.error / self.fitted.seconds.value

    def tells(self, token_budget: int) -> bool:
        """Return whether it is known how long full batches take."""
        if self.fitted is None:
            return False
        return self.fitted.tokens >= _REACH * token_budget and self.error <= _SURE

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for a recording."""
        model = None if self.model is None else self.model.as_section()
        return dataclasses.asdict(dataclasses.replace(self, model=None)) | {"model": model}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Seen | None":
        """Return what a recording has of it, None where that is broken."""
        try:
            model = BatchTimeSection.model_validate(values["model"]) if values["model"] else None
            seen = TypeAdapter(cls).validate_python(values | {"model": None})
            built = None if model is None else model.build(Path())
            known = seen.fitted is None or min(seen.fitted.seconds.value, seen.fitted.mean_s) > 0
        except (InputError, KeyError, TypeError, ValueError, AttributeError):
            return None
        return dataclasses.replace(seen, model=built) if known else None


def notes_on(seen: Seen, token_budget: int | None) -> list[str]:
    """Return what is to be minded of iterations."""
    if not seen.batches:
        return [f"no iteration has come from {seen.source} yet; check that the engine writes them"]
    notes = [f"batch times cannot be fitted: {seen.reason}"] if seen.reason else []
    if seen.lost:
        whole = seen.batches + seen.lost
        notes.append(f"{seen.lost:,} of {whole:,} iterations were lost on the way")
    if seen.unreadable:
        notes.append(f"{counted(seen.unreadable, 'iteration')} cannot be read, and left out")
    fitted = seen.fitted
    if fitted is None:
        return notes
    if token_budget is None:
        notes.append(
            "batch times are fitted, but no batch was full and no token budget was given, so the "
            "load is not known; give --token-budget"
        )
    elif not seen.tells(token_budget):
        notes.append(
            f"batches of up to {fitted.tokens:,.0f} tokens were seen, which do not tell how long "
            f"full ones of {token_budget:,} take, so the fitted batch times are not used"
        )
    if fitted.given_over is not None and _differs(seen, fitted.given_over):
        notes.append(
            f"by the batch time given, the batches seen take {fitted.given_over:.3g} times as long "
            "as they did; check it"
        )
    return notes


def _differs(seen: Seen, given_over: float) -> bool:
    """Return whether the given batch time is off beyond error."""
    # It may hold the gap between two batches, too.
    assert seen.fitted is not None
    room = Z95 * seen.error + _LEAST
    longest = 1 + seen.gap_s / seen.fitted.mean_s
    return not 1 - room <= given_over <= longest + room
