"""Latency targets such as ``ttft_p99<2s``, and the estimates that they are judged by."""

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Annotated, Literal, Self, TypedDict

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.show.answers import Meaning
from penstock.words import LIMITED, STATISTICS, duration
from penstock.workload.workload import Workload

UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6}  # so many to the second

_PERCENTILE = r"p[0-9]+(\.[0-9]+)?"

Judgement = Literal["met", "missed", "undecided"]
_WORDS: tuple[Judgement, ...] = ("met", "undecided", "missed")  # from good to bad


class EstimateData(TypedDict):
    """What JSON has of an estimate."""

    value: Annotated[float | None, Meaning("Null: there is no steady state, or no sample.")]
    interval: Annotated[
        list[float | None] | None,
        Meaning("Its ends, at the confidence asked for; null: the run is too short to tell."),
    ]


class JudgedData(EstimateData):
    """What JSON has of an estimate that a target limits, seconds."""

    answer: Annotated[Judgement, Meaning("``met``, ``missed`` or ``undecided``.")]


class TargetData(JudgedData):
    """What JSON has of a target."""

    target: Annotated[str, Meaning("The limit, as it was asked for.")]


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A value of the steady state, and an interval that holds it with the confidence asked for."""

    value: float | None  # seconds; None without samples
    # Seconds; None where the run is too short to tell.
    low: float | None = None
    high: float | None = None
    # Of a percentile: how many independent bursts of samples lie beyond it, as far as their spread
    # tells.
    bursts: float | None = dataclasses.field(default=None, compare=False)

    def as_dict(self) -> EstimateData:
        """Return the JSON form."""
        return {"value": self.value, "interval": [self.low, self.high]}


@dataclasses.dataclass(frozen=True)
class Target:
    """An upper limit on a latency.

    Attributes
    ----------
    metric
        ``ttft_s``, ``tbt_s`` (of each gap), ``e2e_s``, or ``tpot_s``: of each request (last token -
        first token) / (output tokens - 1), as vLLM's benchmark has it.
    statistic
        ``mean``, or a percentile such as ``p99`` or ``p99.9``.
    limit_s
        Seconds.
    """

    metric: str
    statistic: str
    limit_s: float

    def __post_init__(self) -> None:
        if not checks.named(self.metric, LIMITED):
            raise InputError(
                "a target has the metric "
                f"{checks.shown(self.metric)}{nearest(str(self.metric), LIMITED)}"
            )
        object.__setattr__(self, "statistic", _statistic(self.statistic, "a target"))
        limit = checks.number(
            "the limit of a target", self.limit_s, 1e-12, 1e12, "s", "no latency is out of it"
        )
        object.__setattr__(self, "limit_s", limit)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a target: metric, statistic, ``<`` or ``<=`` (latencies are continuous: the same),
        number, unit.

        >>> Target.parse("ttft_p99 < 200 ms")
        Target(metric='ttft_s', statistic='p99', limit_s=0.2)

        Raises
        ------
        InputError
            If it is something else; one line with what is wrong and how a target is written.
        """
        example = "write it like ttft_p99<2s"
        if not isinstance(text, str):
            raise InputError(f"a target is {checks.shown(text)}, but must be text; {example}")
        shown = f"the target {checks.shown(text)}"
        if ">" in text:
            raise InputError(f"{shown} is a lower limit, but latency has upper limits; {example}")
        left, sign, right = text.strip().lower().partition("<")
        if not sign:
            raise InputError(f"{shown} has no '<', so no limit can be read; {example}")
        name, _, statistic = left.strip().replace("_s_", "_", 1).partition("_")
        if name == "itl":
            raise InputError(
                f"{shown} has the metric 'itl' (inter-token latency), which is called tbt here; "
                f"write it like {text.strip().lower().replace('itl', 'tbt', 1)}"
            )
        if f"{name}_s" not in LIMITED:
            raise InputError(
                f"{shown} has an unknown metric {name!r}{nearest(name, [m[:-2] for m in LIMITED])}"
            )
        if statistic in ("", "s"):
            raise InputError(
                f"{shown} does not say of what its limit is; name the mean or a percentile: "
                f"{example}"
            )
        return cls(
            f"{name}_s",
            _statistic(statistic, shown),
            _seconds(right.removeprefix("=").strip(), shown),
        )

    def __str__(self) -> str:
        """Return what `parse` reads."""
        shortest = f"{self.limit_s:g}"
        return f"{self.name}<{shortest if float(shortest) == self.limit_s else self.limit_s}s"

    @property
    def name(self) -> str:
        """Metric and statistic as a target is written: ``ttft_p99``."""
        return f"{self.metric[:-2]}_{self.statistic}"

    @property
    def label(self) -> str:
        """Metric and statistic as a reader has them: ``TTFT p99``."""
        return f"{self.metric[:-2].upper()} {self.statistic}"

    def unit(self, seconds: float) -> tuple[float, str]:
        """Return in what to write a value beside the limit, and its number to the second: s where
        either has one.
        """
        return (1.0, "s") if max(self.limit_s, seconds) >= 1 else (UNITS["ms"], "ms")

    def judge(self, estimate: Estimate) -> Judgement:
        """Say whether the whole interval lies on one side of the limit."""
        if estimate.high is not None and estimate.high <= self.limit_s:
            return "met"
        if estimate.low is not None and estimate.low > self.limit_s:
            return "missed"
        return "undecided"


@dataclasses.dataclass(frozen=True)
class TargetAnswer:
    """A latency target, its estimate (None: there is no steady state), and the judgement."""

    target: Target
    estimate: Estimate | None
    judgement: Judgement
    place: str = ""  # the stage or workflow whose latency it is; empty: of all requests

    def __str__(self) -> str:
        """Return the target, and where."""
        return f"{self.target} of {self.place}" if self.place else str(self.target)

    @property
    def excess(self) -> tuple[int, float]:
        """How far it is from being met."""
        latency = (self.estimate and self.estimate.value) or 0.0
        return _WORDS.index(self.judgement), latency / self.target.limit_s

    @property
    def value(self) -> str:
        """The latency in words, with its interval where that decides nothing."""
        if self.estimate is None:
            return "no steady state"
        value, low, high = self.estimate.value, self.estimate.low, self.estimate.high
        if value is None:
            return "not known"
        if self.judgement != "undecided" or low is None:
            return duration(value)
        return f"{duration(value)}, {duration(low)} to {'?' if high is None else duration(high)}"

    def as_dict(self) -> TargetData:
        """Return the JSON form."""
        unknown: EstimateData = {"value": None, "interval": None}
        known = self.estimate.as_dict() if self.estimate else unknown
        return {"target": str(self.target), "answer": self.judgement, **known}


def share(statistic: str) -> float:
    """Return the share of samples below a percentile: 0.99 for ``p99``."""
    return float(statistic[1:]) / 100


def _statistic(name: object, shown: str) -> str:
    if name == "mean":
        return "mean"
    if not isinstance(name, str) or not re.fullmatch(_PERCENTILE, name):
        raise InputError(
            f"{shown} has an unknown statistic {checks.shown(name)}; take mean, or a percentile "
            "such as p99 or p99.9"
        )
    if not 0 < share(name) < 1:
        raise InputError(
            f"{shown} has the percentile {name!r}, but percentiles lie between p0 and p100; take "
            "p99"
        )
    return f"p{float(name[1:]):.12g}"


def _seconds(text: str, shown: str) -> float:
    match = re.fullmatch(r"([-+.\deE]*?)\s*([a-z]*)", text)
    try:
        number = float(match[1]) if match else math.nan
    except ValueError:
        number = math.nan
    if match is None or math.isnan(number):
        raise InputError(
            f"{shown} has the limit {text!r}, which is no number with a unit; write it like 2s or "
            "200ms"
        )
    if match[2] not in UNITS:
        unit = f"the unit {match[2]!r}" if match[2] else "no unit"
        raise InputError(f"{shown} has {unit}; write s, ms or us, as in {match[1]}s")
    seconds = number / UNITS[match[2]]
    if not 0 < seconds < math.inf:
        raise InputError(
            f"{shown} has the limit {text!r}, but no latency is below 0 or needs no limit; write "
            "it like 2s"
        )
    return seconds


def parsed_targets(targets: Sequence[Target | str]) -> list[Target]:
    """Return targets, those that are text read."""
    listed = isinstance(targets, Sequence) and not isinstance(targets, str)
    if not listed or not all(isinstance(target, Target | str) for target in targets):
        raise InputError(
            f"targets are {checks.shown(targets)}, but must be a list such as ['ttft_p99<2s']"
        )
    return [Target.parse(target) if isinstance(target, str) else target for target in targets]


def refuse_gaps_of_one_token(targets: Sequence[Target], workload: Workload) -> None:
    """Refuse a limit on times between tokens where no request makes two."""
    between = [target for target in targets if target.metric in ("tbt_s", "tpot_s")]
    if between and workload.lengths.max_output == 1:
        raise InputError(
            f"{between[0]} limits times between tokens, but every request makes one token, so "
            "there are none; leave it out"
        )


def statistics_of(metric: str, targets: Sequence[Target]) -> list[str]:
    """Return the usual statistics, and those of a metric that targets limit besides."""
    wanted = [target.statistic for target in targets if target.metric == metric]
    return list(dict.fromkeys([*STATISTICS, *wanted]))
