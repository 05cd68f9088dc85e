"""A batch-time model held against batches: its relative errors."""

import numpy as np

from penstock.measuring.fitting.batches import Array, MeasuredBatches
from penstock.show.answers import computed
from penstock.show.page import Section
from penstock.system.batch_time import BatchTime, Composition
from penstock.words import whole

QUANTILES = (0.01, 0.05, 0.5, 0.95, 0.99)


QUALITY = Section("How well it fits", why=True)


class Judged:
    """What a model says of batches (``predicted``, in seconds), and what they took."""

    batches: MeasuredBatches
    predicted: Array

    @property
    def errors(self) -> Array:
        """Relative errors, predicted / measured - 1; shape (n,)."""
        return self.predicted / self.batches.seconds - 1

    @computed(QUALITY, "Batches", key="batches", format=whole, words=lambda of: of.far_off)
    def n(self) -> int:
        """Number of batches."""
        return len(self.batches)

    @computed(
        QUALITY, "Error", format="{:.2%}".format,
        words="mean of |predicted / measured - 1|, all batches",
    )  # fmt: skip
    def mean_absolute_error(self) -> float:
        """Mean of |predicted / measured - 1|, outliers included."""
        return float(np.mean(np.abs(self.errors)))

    @property
    def quantiles(self) -> dict[float, float]:
        """Quantiles of the relative error, outliers included."""
        return dict(zip(QUANTILES, np.quantile(self.errors, QUANTILES).tolist(), strict=True))

    @computed()
    def error_quantiles(self) -> dict[str, float]:
        """Quantiles of the relative error by percent, outliers included."""
        return {f"p{share * 100:g}": value for share, value in self.quantiles.items()}

    @computed(
        QUALITY, "Range", key=None,
        words=lambda of: f"in nine batches of ten; median {of.quantiles[0.5]:+.2%}",
    )  # fmt: skip
    def nine_of_ten(self) -> str:
        """Between which relative errors nine batches of ten lie."""
        return f"{self.quantiles[0.05]:+.1%} .. {self.quantiles[0.95]:+.1%}"

    @computed(
        QUALITY, "All seconds", format="{:+.2%}".format,
        words="predicted against measured, all batches together",
    )  # fmt: skip
    def bias(self) -> float:
        """Seconds predicted over seconds measured, of all batches together, less 1."""
        return float(self.predicted.sum() / self.batches.seconds.sum() - 1)

    @computed(
        QUALITY, "R^2", format="{:.4f}".format, words=lambda of: (
            f"of seconds, all batches; {of.r2_without_outliers:.4f} without those left out"
        ),
    )  # fmt: skip
    def r2(self) -> float:
        """Share of the variance of the seconds that the model explains, outliers included."""
        return r2(self.batches.seconds, self.predicted)


def r2(measured: Array, predicted: Array) -> float:
    """Return the share of the variance of what was measured that is explained."""
    total = float(((measured - measured.mean()) ** 2).sum())
    return 1 - float(((measured - predicted) ** 2).sum()) / total if total else 0.0


def seconds_of(model: BatchTime, batches: MeasuredBatches) -> Array:
    """Return what a model says of batches, shape (n,); what is not known of them counts as none."""
    if not isinstance(model, Composition):
        return model(batches.tokens)
    none = np.zeros(len(batches))
    prefill = none if batches.prefill_tokens is None else batches.prefill_tokens
    known = (batches.requests, batches.squares, batches.pairs, batches.context)
    return model.of_batches(
        prefill, batches.tokens - prefill, *(none if v is None else v for v in known)
    )
