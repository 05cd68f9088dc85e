"""From times of layers to times of batches, and to a batch-time model.

A profile gives seconds of every layer of a language model by token load, of attention by what is in a batch, of the
head by requests, and of experts by how many of them are at work. A batch takes the sum over all layers. What a profile
of one accelerator cannot hold, the exchange of activations between several, follows from the link between them.
"""

import dataclasses
import itertools

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from penstock import checks
from penstock.errors import InputError
from penstock.fitting.attention import Attention, Grid
from penstock.fitting.batches import Array, MeasuredBatches
from penstock.fitting.drawn import Compositions, draw_batches, one_batch
from penstock.system.batch_time import Composition, Measured
from penstock.system.batch_time_file import BatchTimeFile

QUANTILES = (0.01, 0.05, 0.5, 0.95, 0.99)


@dataclasses.dataclass(frozen=True)
class Link:
    """What joins accelerators.

    Parameters
    ----------
    bandwidth
        Bytes per second that each sends and receives at once.
    latency
        Seconds that each exchange takes, however small.
    token_bytes
        Bytes of a token's activations: hidden size times bytes of a number.
    """

    bandwidth: float
    latency: float
    token_bytes: float

    def __post_init__(self) -> None:
        checks.number("bandwidth", self.bandwidth, 1e3, 1e15, "bytes/s", "give bytes, not gigabytes, per second")
        checks.number("latency", self.latency, 0, 1, "s", "give seconds")
        checks.number("token_bytes", self.token_bytes, 1, 1e9, "bytes", "hidden size times bytes of a number")

    def exchange(self, tokens: Array) -> Array:
        """Return the seconds to send the activations of so many tokens."""
        return self.latency + tokens * (self.token_bytes / self.bandwidth)


@dataclasses.dataclass(frozen=True, eq=False)
class LayerTimes:
    """Times of a model's layers, from which the time of any batch follows.

    Parameters
    ----------
    layers
        How many of the repeated ones the model has.
    tokens, by_load
        Shape (n,): rising token loads, and seconds of all layers but attention and experts, in the whole model.
    requests, by_request
        Shape (m,): numbers of requests, and seconds of what is done once for each (head, sampler); or None.
    attention
        Seconds of one layer's attention; None: not profiled, and left out.
    experts
        Seconds of one layer's experts by tokens and experts at work; None: the model has none.
    tensor_parallel
        Accelerators that share every layer. The profile is of one of them.
    data_parallel
        Accelerators that share the experts, each with requests of its own, all in step. A batch is then what all of
        them do in one step.
    link
        Between accelerators.
    source
        Where it was read.
    """

    layers: int
    tokens: Array
    by_load: Array
    requests: Array | None = None
    by_request: Array | None = None
    attention: Attention | None = None
    experts: Grid | None = None
    tensor_parallel: int = 1
    data_parallel: int = 1
    link: Link | None = None
    source: str = "a layer profile"

    def __post_init__(self) -> None:
        for name in ("tensor_parallel", "data_parallel"):
            checks.whole(name, getattr(self, name), 1, 4_096, "accelerators", "so many work together")
        if self.data_parallel > 1 and self.experts is None:
            raise InputError(
                f"data_parallel is {self.data_parallel}, but {self.source} has no experts to share, so its ranks are "
                "servers on their own; simulate a pool of them"
            )
        if self.tensor_parallel * self.data_parallel > 1 and self.link is None:
            raise InputError(
                f"{self.tensor_parallel * self.data_parallel} accelerators exchange activations in every layer, but "
                f"{self.source} does not say how fast; give link=Link(bandwidth, latency, token_bytes)"
            )

    def seconds(self, prefill: npt.ArrayLike = (), decode: npt.ArrayLike = ()) -> float:
        """Return the seconds of one batch.

        Parameters
        ----------
        prefill
            (new tokens, tokens before them) of each prompt.
        decode
            Tokens before each decode.
        """
        return float(self.of(one_batch(prefill, decode))[0])

    def of(self, batches: Compositions) -> Array:
        """Return the seconds of each batch.

        Raises
        ------
        InputError
            If one has more tokens than the profile covers.
        """
        ranks = batches.dealt(self.data_parallel)
        loads = ranks.prefill + ranks.decodes
        seconds = self._dense(loads)
        if self.attention is not None:
            seconds += self.layers * self.attention.seconds(ranks)
        if self.requests is not None and self.by_request is not None:
            seconds += np.interp(ranks.decodes + ranks.prompts, self.requests, self.by_request)
        slowest = np.asarray(seconds.reshape(-1, self.data_parallel).max(axis=1))
        per_rank = loads.reshape(-1, self.data_parallel)
        return slowest + self._experts(per_rank.sum(axis=1), per_rank.max(axis=1))

    def _dense(self, loads: Array) -> Array:
        """Return the seconds of all layers but attention and experts, exchange between shares of a layer included."""
        most = float(loads.max(initial=0.0))
        if most > self.tokens[-1]:
            raise InputError(
                f"a batch of {most:,.0f} tokens is beyond {self.source}, which ends at {self.tokens[-1]:,.0f}, and "
                "nothing is known there; lower the token budget, or profile further"
            )
        seconds = np.interp(loads, self.tokens, self.by_load)
        p = self.tensor_parallel
        if p > 1 and self.link is not None:  # a ring: each passes 2 (p - 1)/p of the activations on, after two layers
            seconds = seconds + (2 * self.layers + 1) * self.link.exchange(2 * (p - 1) / p * loads)
        return seconds

    def _experts(self, total: Array, largest: Array) -> Array:
        """Return the seconds of all layers' experts given tokens in all, and on the fullest rank.

        Routing is taken as uniform: of E experts of which each token takes k, E (1 - (1 - k/E)^tokens) are at work, on
        each of r ranks the r-th part of them, with the r-th part of the work.
        """
        if self.experts is None:
            return np.zeros(total.size)
        r, known = self.data_parallel, self.experts.axes[1]
        per_token, experts = known[0], known[-1]
        at_work = experts * (1 - (1 - per_token / experts) ** total)
        seconds = self.experts(total / r, at_work / r)
        if r > 1 and self.link is not None:  # activations go to all ranks, and results come back
            seconds = seconds + 2 * self.link.exchange((r - 1) * largest)
        return self.layers * seconds

    def measured(self, batches: Compositions) -> MeasuredBatches:
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
        )

    def without_attention(self) -> MeasuredBatches:
        """Return the profiled token loads with the seconds of all layers but attention: what is linear in tokens."""
        loads = self.tokens * self.data_parallel
        return MeasuredBatches(self._linear(loads), loads, source=self.source)

    def _linear(self, loads: Array) -> Array:
        share = loads / self.data_parallel
        return self._dense(share) + self._experts(loads, share)

    def composition(
        self,
        prompt: npt.ArrayLike,
        output: npt.ArrayLike,
        *,
        max_batch_size: int,
        token_budget: int | None = None,
        kv_tokens: int | None = None,
        count: int = 4_000,
        seed: int = 0,
    ) -> "LayerFit":
        """Fit a `Composition` to batches that a server with these limits forms (`draw_batches`).

        Its linear part is the profile's own by token load, plus what a line with bends at powers of two explains of
        the rest: what attention takes at least, the head. The costs are those of least squared relative error, none
        negative.

        Parameters
        ----------
        prompt, output
            Shape (requests,), tokens of requests such as will come.
        max_batch_size, token_budget, kv_tokens
            Limits; the token budget is by default the largest load profiled, which one accelerator may get alone.
        count, seed
            Batches drawn to fit, and as many again, of which the errors are.
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
        bends = np.append(2.0 ** np.arange(np.ceil(np.log2(budget))), budget)
        columns = np.column_stack([*_bent(drawn.tokens, bends), *_terms(drawn)])
        rest = drawn.seconds - np.interp(drawn.tokens, loads, linear)
        costs, _ = nnls(columns / drawn.seconds[:, None], rest / drawn.seconds)
        line = costs[: bends.size]
        named = dict(zip(_COSTS, costs[bends.size :].tolist(), strict=True))
        with_line = linear + np.column_stack(_bent(loads, bends)) @ line
        model = Composition(Measured(loads.tolist(), with_line.tolist()), **named)
        return LayerFit(model, others, self)


_COSTS = ("per_request", "self_attention", "cross_attention", "decode_attention", "mixed_attention")


def _terms(batches: MeasuredBatches) -> list[Array]:
    """Return what each of `_COSTS` is paid for, in each batch."""
    known = [batches.prefill_tokens, batches.decode_tokens, batches.requests, batches.squares, batches.pairs]
    x, y, k, squares, pairs = (np.asarray(values) for values in known)
    context = np.asarray(batches.context)
    return [k, squares + y, pairs, np.where(x > 0, 0.0, context), np.where(x > 0, context, 0.0)]


def _bent(tokens: Array, bends: Array) -> list[Array]:
    """Return a constant, and the share done of the way from each bend to the next."""
    ways = itertools.pairwise(bends)
    return [np.ones(tokens.size), *(np.clip((tokens - low) / (high - low), 0, 1) for low, high in ways)]


@dataclasses.dataclass(frozen=True, eq=False)
class LayerFit:
    """A `Composition` fitted to a layer profile.

    Attributes
    ----------
    model
        The batch-time model.
    batches
        Batches that were not used to fit it, with the seconds that the profile gives.
    profile
        What it was fitted to.
    """

    model: Composition
    batches: MeasuredBatches
    profile: LayerTimes

    @property
    def errors(self) -> Array:
        """Relative errors on those batches, the model's seconds over the profile's, less one."""
        b = self.batches
        of = (b.prefill_tokens, b.decode_tokens, b.requests, b.squares, b.pairs, b.context)
        return self.model.of_batches(*of) / b.seconds - 1  # type: ignore[arg-type]

    @property
    def quantiles(self) -> dict[float, float]:
        """Quantiles of the relative error."""
        return dict(zip(QUANTILES, np.quantile(self.errors, QUANTILES).tolist(), strict=True))

    @property
    def bias(self) -> float:
        """Error of the sum of seconds, relative: what adds up over a run."""
        return float(np.sum(self.errors * self.batches.seconds) / self.batches.seconds.sum())

    def as_file(self, description: str, licence: str | None = None) -> BatchTimeFile:
        """Return what a batch-time file holds: the model, and how far it is from the profile."""
        errors = {f"{share:.0%}": round(error, 5) for share, error in self.quantiles.items()}
        told = {"layers": self.profile.layers, "relative_error": errors, "bias": round(self.bias, 5)}
        together = self.profile.tensor_parallel * self.profile.data_parallel
        return BatchTimeFile(
            description,
            self.model,
            self.profile.source,
            licence,
            tensor_parallel=together if together > 1 else None,
            fit=told,
        )
