"""From times of layers to times of batches, and to a batch-time model.

A profile gives seconds of every layer of a language model by token load, of attention by what is in
a batch, of the head by requests, and of experts by how many of them are at work. A batch takes the
sum over all layers. What a profile of one accelerator cannot hold, the exchange of activations
between several, follows from the link between them.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from paper.attention import Attention, Grid
from paper.batches import BatchContents, draw_batches, one_batch
from penstock import checks
from penstock.errors import InputError
from penstock.measuring.fitting.batches import Array, MeasuredBatches
from penstock.measuring.fitting.families import Linear, known_terms
from penstock.measuring.fitting.relative_errors import Judged, seconds_of
from penstock.measuring.fitting.robust import apply, solve
from penstock.system.batch_time import Composition
from penstock.system.batch_time_file import BatchTimeFile
from penstock.system.measured_times import Measured


@dataclasses.dataclass(frozen=True)
class Link:
    """What joins accelerators."""

    bandwidth: float  # bytes per second that each sends and receives at once
    latency: float  # seconds that each exchange takes, however small
    token_bytes: float  # bytes of a token's activations: hidden size times bytes of a number

    def __post_init__(self) -> None:
        checks.number(
            "bandwidth",
            self.bandwidth,
            1e3,
            1e15,
            "bytes/s",
            "give bytes, not gigabytes, per second",
        )
        checks.number("latency", self.latency, 0, 1, "s", "give seconds")
        checks.number("token_bytes", self.token_bytes, 1, 1e9, "bytes", "hidden size times bytes of a number")

    def exchange(self, tokens: Array) -> Array:
        """Return the seconds to send the activations of so many tokens."""
        return self.latency + tokens * (self.token_bytes / self.bandwidth)


@dataclasses.dataclass(frozen=True, eq=False)
class LayerTimes:
    """Times of a model's layers, from which the time of any batch follows."""

    layers: int  # how many of the repeated ones the model has
    # Shape (n,): rising token loads, and seconds of all layers but attention and experts, in the
    # whole model.
    tokens: Array
    by_load: Array
    # Shape (m,): numbers of requests, and seconds of what is done once for each (head, sampler); or
    # None.
    requests: Array | None = None
    by_request: Array | None = None
    # Seconds of one layer's attention; None: not profiled, and left out.
    attention: Attention | None = None
    # Seconds of one layer's experts by tokens and experts at work; None: the model has none.
    experts: Grid | None = None
    tensor_parallel: int = 1  # accelerators that share every layer. The profile is of one of them
    # Accelerators that share the experts, each with requests of its own, all in step. A batch is
    # then what all of them do in one step.
    data_parallel: int = 1
    link: Link | None = None  # between accelerators
    source: str = "a layer profile"  # where it was read
    # Of a layer, and how many of them each token is sent to. None: the most and the fewest that
    # were profiled at work, as in profiles that go from one token to all experts.
    experts_in_all: int | None = None
    experts_per_token: int | None = None

    def __post_init__(self) -> None:
        for name in ("tensor_parallel", "data_parallel"):
            checks.whole(name, getattr(self, name), 1, 4_096, "accelerators", "so many work together")
        for name in ("experts_in_all", "experts_per_token"):
            if getattr(self, name) is not None:
                checks.whole(
                    name,
                    getattr(self, name),
                    1,
                    100_000,
                    "experts",
                    "a layer of experts has so many",
                )
        if self.data_parallel > 1 and self.experts is None:
            raise InputError(
                f"data_parallel is {self.data_parallel}, but {self.source} has no experts to "
                "share, so its ranks are servers on their own; simulate a pool of them"
            )
        if self.tensor_parallel * self.data_parallel > 1 and self.link is None:
            raise InputError(
                f"{self.tensor_parallel * self.data_parallel} accelerators exchange activations in "
                f"every layer, but {self.source} does not say how fast; give link=Link(bandwidth, "
                "latency, token_bytes)"
            )

    def seconds(self, prefill: npt.ArrayLike = (), decode: npt.ArrayLike = ()) -> float:
        """Return the seconds of one batch. ``prefill`` has (new tokens, tokens before them) of each
        prompt, ``decode`` the tokens before each decode.
        """
        return float(self.of(one_batch(prefill, decode))[0])

    def of(self, batches: BatchContents) -> Array:
        """Return the seconds of each batch."""
        ranks = batches.dealt(self.data_parallel)
        loads = ranks.prefill + ranks.decodes
        seconds = self._dense(loads)
        if self.attention is not None:
            seconds += self.layers * self.attention.seconds(ranks)
        if self.requests is not None and self.by_request is not None:
            seconds += _line(ranks.decodes + ranks.prompts, self.requests, self.by_request)
        slowest = np.asarray(seconds.reshape(-1, self.data_parallel).max(axis=1))
        per_rank = loads.reshape(-1, self.data_parallel)
        return slowest + self._experts(per_rank.sum(axis=1), per_rank.max(axis=1))

    def _dense(self, loads: Array) -> Array:
        """Return the seconds of all layers but attention and experts, exchange between shares of a
        layer included.
        """
        most = float(loads.max(initial=0.0))
        if most > self.tokens[-1]:
            raise InputError(
                f"a batch of {most:,.0f} tokens is beyond {self.source}, which ends at "
                f"{self.tokens[-1]:,.0f}, and "
                "nothing is known there; lower the token budget, or profile further"
            )
        seconds = np.interp(loads, self.tokens, self.by_load)
        p = self.tensor_parallel
        if p > 1 and self.link is not None:  # a ring: each passes 2 (p - 1)/p of the activations on, after two layers
            seconds = seconds + (2 * self.layers + 1) * self.link.exchange(2 * (p - 1) / p * loads)
        return seconds

    def _experts(self, total: Array, largest: Array) -> Array:
        """Return the seconds of all layers' experts given tokens in all, and on the fullest rank.

        Routing is taken as uniform: of E experts of which each token takes k, E (1 - (1 -
        k/E)^tokens) are at work, on each of r ranks the r-th part of them, with the r-th part of
        the work.
        """
        if self.experts is None:
            return np.zeros(total.size)
        r, known = self.data_parallel, self.experts.axes[1]
        per_token = float(known[0]) if self.experts_per_token is None else self.experts_per_token
        experts = float(known[-1]) if self.experts_in_all is None else self.experts_in_all
        at_work = experts * (1 - (1 - per_token / experts) ** total)
        seconds = self.experts(total / r, at_work / r)
        if r > 1 and self.link is not None:  # activations go to all ranks, and results come back
            seconds = seconds + 2 * self.link.exchange((r - 1) * largest)
        return self.layers * seconds

    def measured(self, batches: BatchContents) -> MeasuredBatches:
        """Return batches with their seconds, as if they had been measured."""
        prefill = batches.prefill
        return MeasuredBatches(
            self.of(batches),
            prefill + batches.decodes,
            prefill_tokens=prefill,
            decode_tokens=batches.decodes,
            requests=batches.prompts + batches.decodes,
            squares=batches.per_batch(batches.new**2),
            pairs=batches.per_batch(batches.new * batches.before),
            context=batches.context,
            source=self.source,
            sweep=True,
            averaged=True,
        )

    def without_attention(self) -> MeasuredBatches:
        """Return the profiled token loads with the seconds of all layers but attention: what is
        linear in tokens.
        """
        loads = self.tokens * self.data_parallel
        return MeasuredBatches(self._linear(loads), loads, source=self.source, sweep=True, averaged=True)

    def _linear(self, loads: Array) -> Array:
        share = loads / self.data_parallel
        return self._dense(share) + self._experts(loads, share)

    def composition(
        self,
        prompt: npt.ArrayLike,  # shape (requests,), tokens of requests such as will come
        output: npt.ArrayLike,  # shape (requests,), tokens of requests such as will come
        *,
        max_batch_size: int,
        token_budget: int | None = None,
        kv_tokens: int | None = None,
        count: int = 4_000,
        seed: int = 0,
    ) -> "LayerFit":
        """Fit a `Composition` to batches that a server with these limits forms (`draw_batches`).

        Its linear part is the profile's own by token load, plus what a line with bends at powers of
        two explains of the rest: what attention takes at least, the head. The costs are those of
        least squared relative error, none negative; then all are scaled, so that the seconds of the
        batches drawn are right in sum.
        """
        budget = int(self.tokens[-1]) if token_budget is None else token_budget
        drawn, others = (
            self.measured(
                draw_batches(
                    prompt,
                    output,
                    token_budget=budget,
                    max_batch_size=max_batch_size,
                    kv_tokens=kv_tokens,
                    count=count,
                    seed=each,
                )
            )
            for each in (2 * seed, 2 * seed + 1)
        )
        profiled = self.tokens * self.data_parallel
        loads = np.append(profiled[profiled < budget], budget)
        linear = self._linear(loads)
        bent = Linear("table", (*(2.0 ** np.arange(np.ceil(np.log2(budget)))).tolist(), float(budget)))
        terms = known_terms(drawn, split=True)
        del terms["with_prefill"]  # what graphs save is in no profile of layers
        line = bent.columns(drawn.tokens)
        columns = np.column_stack((line, *terms.values()))
        known = np.interp(drawn.tokens, loads, linear)
        costs = solve(columns, drawn.seconds - known, 1 / drawn.seconds)
        in_sum = float(drawn.seconds.sum() / (known + apply(columns, costs)).sum())
        with_line = in_sum * (linear + apply(bent.columns(loads), costs[: line.shape[1]]))
        named = dict(zip(terms, (in_sum * costs[line.shape[1] :]).tolist(), strict=True))
        model = Composition(Measured(loads.tolist(), with_line.tolist()), **named)
        return LayerFit(model, others, seconds_of(model, others), self)


def _line(at: Array, known: Array, values: Array) -> Array:
    """Return values on straight lines between those known, and on the last one beyond."""
    inside = np.interp(at, known, values)
    if known.size < 2:
        return np.asarray(inside)
    slope = (values[-1] - values[-2]) / (known[-1] - known[-2])
    return np.asarray(inside + max(slope, 0.0) * np.maximum(at - known[-1], 0.0))


@dataclasses.dataclass(frozen=True, eq=False)
class LayerFit(Judged):
    """A `Composition` fitted to a layer profile."""

    model: Composition  # the batch-time model
    # Batches that were not used to fit it, with the seconds that the profile gives.
    batches: MeasuredBatches
    predicted: Array  # what the model says of those, in seconds
    profile: LayerTimes  # what it was fitted to

    def as_file(self, description: str, licence: str | None = None) -> BatchTimeFile:
        """Return what a batch-time file holds: the model, and how far it is from the profile."""
        errors = {f"{share:.0%}": round(error, 5) for share, error in self.quantiles.items()}
        told = {
            "layers": self.profile.layers,
            "relative_error": errors,
            "bias": round(self.bias, 5),
        }
        together = self.profile.tensor_parallel * self.profile.data_parallel
        return BatchTimeFile(
            description,
            self.model,
            self.profile.source,
            licence,
            tensor_parallel=together if together > 1 else None,
            fit=told,
        )
