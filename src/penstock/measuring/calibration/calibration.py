"""What a calibration found: a server, how well it predicts, and how sure its parameters are."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import polars as pl

from penstock.fields import in_keys
from penstock.measuring.calibration.judge import JUDGED, MISSED, ROUGHLY
from penstock.measuring.calibration.priors import Prior
from penstock.measuring.calibration.quantities import Quantity, quantity, time_shown, with_units
from penstock.show.answers import Meaning, Shown, computed
from penstock.show.page import Page
from penstock.system.batch_time_file import BatchTimeFile
from penstock.system.server import Server

METRICS = {
    "ttft": "Time to first token",
    "itl": "Inter-token latency",
    "e2e": "End to end",
    "requests_per_s": "Requests per second",
    "ttft_p99": "Time to first token, p99",
    "e2e_p99": "End to end, p99",
}
"""What predictions are judged by (`MEASURES`), in words."""

LESS = 0.05
"""Share by which having no more KV memory than the rows held may lower a limit unwarned."""

_PARTS = {"fitted": True, "judged": False, "all": None}
_WORST = pl.max_horizontal(pl.col(f"{name}_error").abs() for name in JUDGED)


def _of_runs(values_of: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, Quantity]]:
    """Return what JSON has of the parameters of each run."""
    return {run: with_units(values) for run, values in values_of.items()}


@dataclasses.dataclass(frozen=True, eq=False)
class Calibration(Shown):
    """A calibrated server, and how well it predicts.

    Attributes
    ----------
    priors, deviations
        The prior of each of ``values``, and the standard deviation of its logarithm given the rows,
        too.
    strained
        The parameters that rows pull further from their priors than chance does.
    ranges
        The least and the largest value of each cost that the rows allow, with the other costs as
        they then ask for, s; only of those whose range is too wide to tell (`SPAN`).
    unsure
        The costs that the rows do not tell.
    limit_warning
        What is not certain of the limits; None: nothing.
    assumed
        Which of ``token_budget`` and ``max_batch_size`` were not given.
    tokens_held
        Most tokens that the requests of a row held at a time, by Little's law: the KV memory has
        room for them.
    common_rows
        The same, predicted by ``server`` and the common overhead.
    """

    server: Annotated[Server, Meaning(
        "With the batch times that were found, common to all runs: what a batch-time file holds.",
        key=None,
    )]  # fmt: skip
    values: Annotated[Mapping[str, float], Meaning(
        "The parameters that were fitted, in seconds and tokens; in JSON with their units.",
        key="parameters", data=with_units,
    )]  # fmt: skip
    held: Annotated[Mapping[str, str], Meaning("Why each of the other parameters was left out.")]
    priors: Mapping[str, Prior]
    deviations: Mapping[str, float]
    strained: Sequence[str]
    ranges: Mapping[str, tuple[float, float]]
    unsure: tuple[str, ...]
    limit_warning: str | None
    assumed: tuple[str, ...]
    values_of: Annotated[Mapping[str, Mapping[str, float]], Meaning(
        "``values`` as adjusted to each run.", key="parameters_of_runs",
        data=_of_runs,
    )]  # fmt: skip
    per_run: Annotated[str, Meaning("What was adjusted.")]
    tokens_held: float
    rows: Annotated[pl.DataFrame, Meaning(
        "One row per row of the benchmarks: row, run, shape, load, fitted; ``measured``, "
        "``predicted`` and relative ``error`` of each metric as ``ttft_measured`` and so "
        "on, in seconds and requests per second, null where not measured; ``limit_per_s``, the "
        "requests per second that the server carries of this shape, and ``limit_at_least_per_s``, "
        "with no more KV memory than the rows held, where no limit is known; ``beyond``, whether "
        "more than that arrive (null for a closed loop, which never offers more); ``missed``, "
        f"whether any of {', '.join(JUDGED)} is off by more than {MISSED:.0%}; "
        "``hinges_on``, the unidentified costs that its prediction hinges on; ``note``, what of "
        "the row is not simulated. Each is predicted by the server of its run."
    )]  # fmt: skip
    common_rows: pl.DataFrame

    def errors(
        self, fitted: bool | None = None, *, common: bool = False
    ) -> dict[str, float | None]:
        """Return the mean of the absolute relative errors of each metric.

        Parameters
        ----------
        fitted
            Over the rows that were used to fit, or those that were not; None: over all.
        common
            Of the one common server, in place of one for each run.
        """
        rows = self.common_rows if common else self.rows
        if fitted is not None:
            rows = rows.filter(pl.col("fitted") == fitted)
        means = rows.select(pl.col(f"{metric}_error").abs().mean() for metric in METRICS)
        return dict(zip(METRICS, means.row(0), strict=True))

    @computed(key="rows_fitted")
    def fitted(self) -> int:
        """Number of rows that were used to fit."""
        return int(self.rows["fitted"].sum())

    @property
    def adjusted(self) -> bool:
        """Whether any run has parameters of its own."""
        return any(values != self.values for values in self.values_of.values())

    @computed()
    def unidentified(self) -> dict[str, str]:
        """The costs that the rows do not identify, with their interval and the prior's reason."""
        return {name: f"{self.interval(name)}: {self.priors[name].reason}" for name in self.unsure}

    def interval(self, name: str) -> str:
        """Return in words between what a parameter lies: all that the rows allow, where that is too
        wide to tell, else the 95% interval given rows and priors.
        """
        factor = math.exp(2 * self.deviations[name])
        ends = self.ranges.get(name, (self.values[name] / factor, self.values[name] * factor))
        less, more = (quantity(name, float(f"{end:.2g}")) for end in ends)
        unit = more.rpartition(" ")[2]
        return f"{less.removesuffix(f' {unit}')} to {more}" if less != more else f"about {more}"

    @property
    def word(self) -> str:
        """What is known of it, in a word: ``missed``, ``not checked`` (no row judges it),
        ``uncertain`` (the rows say little about most costs), or ``calibrated``.
        """
        if self.missed:
            return "missed"
        if self.fitted == self.rows.height:
            return "not checked"
        if 2 * len(self.unidentified) > len(self.values):
            return "uncertain"
        return "calibrated"

    @computed()
    def missed(self) -> list[str]:
        """The rows that are missed, the worst first: by how much their worst metric is off."""
        words = []
        for row, names, metric, error in self._off(pl.col("missed")):
            predicted, known = (
                time_shown(metric, row[f"{metric}_{kind}"]) for kind in ("predicted", "measured")
            )
            which = ", ".join([*names, "used to fit"] if row["fitted"] else names)
            words.append(
                f"row {row['row']} ({which}): {METRICS[metric].lower()} off by {error} "
                f"(predicted {predicted}, measured {known})"
            )
        return words

    @property
    def met_roughly(self) -> list[str]:
        """The rows that were used to fit and are off all the same, the worst first."""
        return [
            f"row {row['row']} ({', '.join(names)}) {METRICS[metric].lower()} {error}"
            for row, names, metric, error in self._off(
                pl.col("fitted") & ~pl.col("missed") & (_WORST > ROUGHLY)
            )
        ]

    def _off(self, which: pl.Expr) -> Iterator[tuple[dict[str, Any], list[str], str, str]]:
        """Yield some rows, the worst first, with their names, worst metric and its error."""
        several = self.rows["run"].n_unique() > 1
        for row in self.rows.filter(which).sort(_WORST, descending=True).iter_rows(named=True):
            metric = max(JUDGED, key=lambda name: abs(row[f"{name}_error"] or 0.0))
            names = [row["run"], row["shape"], row["load"]][not several :]
            yield row, names, metric, f"{row[f'{metric}_error']:+,.0%}"

    @computed()
    def warnings(self) -> list[str]:
        """What a reader must know first: rows missed, costs and limits that no row tells."""
        words = []
        if self.missed:
            which = f"{len(self.missed):,} of {self.rows.height:,} benchmark results"
            if self.rows.height == 1:
                which = "the only benchmark result"
            words.append(f"the calibration missed {which} by more than {MISSED:.0%}")
        if self.met_roughly:
            words.append(
                f"benchmark results that were fitted are off by more than {ROUGHLY:.0%}: "
                f"{'; '.join(self.met_roughly)}"
            )
        words += self.untrusted
        if self.limit_warning is not None:
            words.append(self.limit_warning)
        if self.unidentified:
            costs = ", ".join(f"{name} ({self.interval(name)})" for name in self.unidentified)
            words.append(
                f"the benchmarks say little about {costs}, which were assumed within these ranges"
            )
        if self.memory_short:
            shapes = ", ".join(self.memory_short)
            words.append(
                "KV memory cannot be seen in these rows: what these shapes carry takes more than "
                f"the {self.tokens_held:,.0f} tokens that the rows held ({shapes} requests/s); "
                "give kv_tokens, which the engine logs"
            )
        hinging = self.rows.filter(pl.col("hinges_on").is_not_null())
        if hinging.height:
            loads = ", ".join(dict.fromkeys(hinging["shape"]))
            costs = ", ".join(dict.fromkeys(", ".join(hinging["hinges_on"]).split(", ")))
            words.append(
                f"predictions for other lengths than were fitted ({loads}) hinge on {costs}"
            )
        return words

    @property
    def memory_short(self) -> list[str]:
        """The shapes that need more memory than the rows held, and what is carried without."""
        short = pl.col("limit_at_least_per_s") < (1 - LESS) * pl.col("limit_per_s")
        rows = self.rows.filter(short).unique("shape", maintain_order=True)
        return [
            f"{shape}: at least {rate:,.4g}"
            for shape, rate in rows.select("shape", "limit_at_least_per_s").iter_rows()
        ]

    @property
    def untrusted(self) -> list[str]:
        """Say where nothing judges the calibration, and where it took a queue for an overhead."""
        words = []
        if self.fitted == self.rows.height:
            fewer = ""
            if self.rows["shape"].is_duplicated().any():
                fewer = ", or fit fewer (--fit-rows lowest:1)"
            words.append(
                "every row was used to fit, so no row was left to judge this by: the errors do not "
                f"say how well other loads are predicted; benchmark more loads{fewer}"
            )
        overhead = self.values.get("overhead", 0.0)
        prior = self.priors.get("overhead")
        if prior is not None and overhead > prior.centre * math.exp(2 * prior.deviation):
            words.append(
                f"an overhead of {quantity('overhead', overhead)} is more than front ends take: "
                "requests rather waited in a queue that this policy and these limits do not have; "
                "check --policy, --token-budget and --max-batch-size"
            )
        odd = [
            f"{name} of {quantity(name, self.values[name])}"
            for name in self.strained
            if name != "overhead"
        ]
        if odd:
            words.append(
                f"these rows ask for {' and '.join(odd)}, which servers hardly ever have: check "
                "what ran (model, GPU, precision, flags), and whether requests waited elsewhere"
            )
        return words

    @computed()
    def notes(self) -> list[str]:
        """What of the benchmarks was left out, or is not simulated."""
        counts = self.rows["note"].drop_nulls().value_counts()
        return [
            f"{note} ({count:,} rows)" if count > 1 else note
            for note, count in counts.sort("count", "note", descending=[True, False]).iter_rows()
        ]

    def batch_time_file(self, description: str, source: str) -> BatchTimeFile:
        """Return the common batch times as a file's content, with what is known of their errors."""
        judged = self.errors(False, common=True) if self.fitted < self.rows.height else {}
        fit: dict[str, Any] = {
            "method": "end-to-end benchmarks",
            "rows_fitted": self.fitted,
            "rows_judged": self.rows.height - self.fitted,
            "mean_relative_error_of_rows_judged": {
                name: round(error, 4) for name, error in judged.items() if error is not None
            },
            "overhead_ms": round(self.values.get("overhead", 0.0) * 1e3, 3),
            "overhead_per_stream_us": round(self.values.get("overhead_per_stream", 0.0) * 1e6, 3),
        }
        if "kv_tokens" not in self.values:
            fit["kv_tokens_at_least"] = round(self.tokens_held)
        if self.unidentified:
            fit["priors"] = self.unidentified
        left_out = (
            f"{name} was not fitted and counts as nothing: {self.held[name]}"
            for name in ("per_token", "decode_attention", "self_attention")
            if name in self.held
        )
        warnings = [*self.warnings, *left_out]
        if warnings:
            fit["warnings"] = warnings
        return BatchTimeFile(description, self.server.batch_time, source, fit=fit)

    def page(self, names: str = "") -> Page:
        """Return the calibration as a page; the names are those of the benchmarks."""
        return super().page(names)

    @computed(key="server")
    def served(self) -> dict[str, Any]:
        """Policy and limits of the server, and which of these were assumed."""
        server = self.server
        return {
            "policy": server.policy.name,
            "token_budget": server.token_budget,
            "max_batch_size": server.max_batch_size,
            "assumed": self.assumed,
            "kv_tokens": None if server.memory is None else server.memory.tokens,
            "front_end": None if server.front_end is None else in_keys(server.front_end),
        }

    @computed()
    def intervals(self) -> dict[str, str]:
        """Between what each parameter lies, in words."""
        return {name: self.interval(name) for name in self.values}

    @computed()
    def kv_tokens_at_least(self) -> int | None:
        """What the KV memory has room for; null where its size was fitted."""
        return None if "kv_tokens" in self.values else round(self.tokens_held)

    @computed(key="errors")
    def errors_of_parts(self) -> dict[str, dict[str, float | None]]:
        """Errors of the rows that were used to fit, of the others, and of all."""
        return {name: self.errors(fitted) for name, fitted in _PARTS.items()}

    @computed()
    def errors_of_common_server(self) -> dict[str, dict[str, float | None]]:
        """The same of the one common server."""
        return {name: self.errors(fitted, common=True) for name, fitted in _PARTS.items()}
