"""Batch times that nobody gave as exact: which others are as likely to be true, and on what they
were judged.

There are three kinds: what a calibration of a shape left open (`Uncertainty`), what the rows of a
calibration without a shape allow (`Allowed`), and how far off shapes without rows were (`Within`).
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from penstock import checks
from penstock.errors import InputError
from penstock.inputs.arrays import Floats
from penstock.inputs.special_functions import ndtri
from penstock.system.batch_time import Composition
from penstock.system.measured_times import Measured
from penstock.system.models.adjusted import Adjustment

_DRAWS = 40
_NEAR = 1.2  # factor beyond what rows have seen that is no extrapolation yet

PARAMETERS = tuple(field.name for field in dataclasses.fields(Adjustment))
_SECONDS = ("host", "per_stream")


@dataclasses.dataclass(frozen=True)
class Seen:
    """What the rows have seen that batch times were calibrated on, or judged by."""

    policy: str  # what formed the batches
    # Least and largest mean of a row, tokens.
    prompt: Sequence[float]
    output: Sequence[float]
    running: float  # most requests that a row had decoding at a time, on average
    # What their server was limited by beside its flags, as a scenario's server says it.
    server_limits: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("prompt", "output"):
            ends = checks.column(name, getattr(self, name)).tolist()
            if len(ends) != 2 or ends[0] > ends[1]:
                raise InputError(
                    f"the {name} that rows have seen is {checks.shown(ends)}, but must be its "
                    "least and its largest mean; write the file again with `penstock calibrate`"
                )
            object.__setattr__(self, name, tuple(ends))
        for name, value in self.server_limits.items():
            what = f"server_limits: {name}"
            if name == "front_end" and isinstance(value, Mapping):
                for key, time in value.items():
                    checks.number(f"{what}: {key}", time, 0, 1e6, "", "it is a time")
            elif name in ("kv_tokens", "max_batch_size"):
                checks.whole(what, value, 1, 2**40, "", "it is how much there is room for")
            else:
                raise InputError(
                    f"{what} is {checks.shown(value)}, but limits are kv_tokens, max_batch_size "
                    "and a front_end; write the file again with `penstock calibrate`"
                )

    def beyond(self, policy: str, prompt: float, output: float, running: float) -> list[str]:
        """Say what no row has seen: the policy, mean lengths, the most that run at its limit."""
        gaps = []
        if policy != self.policy:
            gaps.append(f"no row was of {policy}, all were of {self.policy}")
        for what, value, (low, high) in (
            ("prompts", prompt, self.prompt),
            ("outputs", output, self.output),
        ):
            if not low / _NEAR <= value <= high * _NEAR:
                rows = f"{low:,.0f} to {high:,.0f}" if round(low) < round(high) else f"{high:,.0f}"
                gaps.append(f"{what} have {value:,.0f} tokens, those of the rows {rows}")
        if running > _NEAR * self.running:
            gaps.append(
                f"up to {running:,.0f} requests run at the limit, in no row more than "
                f"{self.running:,.0f} did"
            )
        return gaps

    def as_dict(self) -> dict[str, Any]:
        """Return it as a batch-time file holds it."""
        fields = {name: getattr(self, name) for name in ("prompt", "output")}
        ends = {name: [round(end, 1) for end in of] for name, of in fields.items()}
        limits = {"server_limits": dict(self.server_limits)} if self.server_limits else {}
        return {"policy": self.policy, **ends, "running": round(self.running, 1), **limits}


class Known(Protocol):
    """How well batch times are known."""

    ends: tuple[float, float]  # which quantiles of `others` are the ends of the interval
    calibrated: bool  # rows of this deployment corrected the batch times

    @property
    def seen(self) -> Seen | None:
        """What rows have seen; None: that is not known."""

    @property
    def origin(self) -> str:
        """What the interval comes from, as a clause."""

    def others(self, batch_time: Composition) -> list[Composition]:
        """Return other batch times that may be the true ones."""

    def as_dict(self) -> dict[str, Any]:
        """Return it as a batch-time file holds it."""


@dataclasses.dataclass(frozen=True)
class Within:
    """All batch times within one factor: the model of a shape that no row corrects."""

    factor: float  # of which nine of ten were within
    judged: str  # what was: a clause
    seen: Seen | None = None
    ends = (0.0, 1.0)
    calibrated = False

    @property
    def origin(self) -> str:
        """What the interval comes from, as a clause."""
        return f"nobody measured them; {self.judged} within a factor of {self.factor:g}"

    def others(self, batch_time: Composition) -> list[Composition]:
        """Return the slowest and the fastest."""
        return [batch_time.scaled(times) for times in (self.factor, 1 / self.factor)]

    def as_dict(self) -> dict[str, Any]:
        """Return it as a batch-time file holds it."""
        return {"within": self.factor, "judged": self.judged, **_seen(self)}


@dataclasses.dataclass(frozen=True)
class Allowed:
    """What the rows of a calibration allow: batch times at the extremes of each cost.

    With all other costs as the rows then ask for.
    """

    extremes: tuple[Composition, ...]
    seen: Seen | None = None
    ends = (0.0, 1.0)
    calibrated = True
    origin = "what the rows of the calibration allow"

    def others(self, batch_time: Composition) -> list[Composition]:
        """Return the extremes."""
        return list(self.extremes)

    def as_dict(self) -> dict[str, Any]:
        """Return it as a batch-time file holds it."""
        return {"extremes": [extreme.as_section() for extreme in self.extremes], **_seen(self)}


@dataclasses.dataclass(frozen=True)
class Uncertainty:
    """What a calibration of a shape left open: a normal distribution of logarithms."""

    values: Mapping[str, float]  # the most probable value of each parameter of `Adjustment`
    covariance: Sequence[Sequence[float]]  # of their logarithms, in the same order
    # Standard deviation of the logarithm of all times that no parameter explains.
    noise: float = 0.0
    seen: Seen | None = None
    ends = (0.05, 0.95)
    calibrated = True
    origin = "what the rows of the calibration leave open"

    def __post_init__(self) -> None:
        unknown = [name for name in self.values if name not in PARAMETERS]
        square = np.shape(self.covariance) == (len(self.values), len(self.values))
        if unknown or not square or not np.isfinite(self.covariance).all():
            raise InputError(
                f"the uncertainty of batch times has the parameters "
                f"{checks.shown(', '.join(self.values))} and a covariance of shape "
                f"{np.shape(self.covariance)}, which say nothing together; write the file again "
                "with `penstock calibrate`"
            )

    def draws(self, count: int) -> Floats:
        """Return random changes of the logarithms, in pairs that cancel; an even number of them."""
        half = np.random.default_rng(0).multivariate_normal(
            np.zeros(len(self.values)), np.asarray(self.covariance), -(-count // 2), method="eigh"
        )
        return np.concatenate([half, -half])

    def others(self, batch_time: Composition) -> list[Composition]:
        """Return draws of what the rows leave open, and of what no parameter explains."""
        draws = self.draws(_DRAWS)
        noise = np.random.default_rng(1).permutation(_normal_quantiles(len(draws))) * self.noise
        return [
            self.moved(batch_time, change).scaled(math.exp(shift))
            for change, shift in zip(draws, noise.tolist(), strict=True)
        ]

    def moved(self, batch_time: Composition, change: Floats) -> Composition:
        """Return batch times at other values: the most probable ones changed by some logarithms."""
        changes = dict(zip(self.values, change.tolist(), strict=True))
        factors = {
            name: float(np.exp(move)) for name, move in changes.items() if name not in _SECONDS
        }
        now = {name: self.values.get(name, 0.0) for name in _SECONDS}
        then = {name: value * np.exp(changes.get(name, 0.0)) for name, value in now.items()}
        linear = batch_time.linear
        if not isinstance(linear, Measured):
            raise InputError(
                "the uncertainty of batch times has values of a shape, which has a table by token "
                f"load and not {checks.shown(linear)}; write the file again with `penstock "
                "calibrate`"
            )
        bare = Measured(linear.tokens, [s - now["host"] for s in linear.seconds])
        per_request = max(batch_time.per_request - now["per_stream"], 0.0)
        shape = dataclasses.replace(
            batch_time, linear=bare, per_request=per_request, uncertainty=None
        )
        return Adjustment(**factors, **then).of(shape)

    def as_dict(self) -> dict[str, Any]:
        """Return it as a batch-time file holds it."""
        rows = [[round(float(cell), 8) for cell in row] for row in self.covariance]
        noise = {"noise": round(self.noise, 4)} if self.noise else {}
        return {"values": dict(self.values), "covariance": rows, **noise, **_seen(self)}


def _normal_quantiles(count: int) -> Floats:
    """Return so many equally likely values of a standard normal distribution."""
    return np.asarray(ndtri((np.arange(count) + 0.5) / count))


def _seen(known: Known) -> dict[str, Any]:
    return {} if known.seen is None else {"seen": known.seen.as_dict()}
