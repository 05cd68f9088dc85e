"""Batch times from a model's shape and a GPU's kernels: its layers, added up.

A layer is what reads weights or caches (GEMMs, attention, experts), what adds up over GPUs, and
small kernels between. A batch is its layers, the logits of the requests that need a token, and what
the host adds. All of it is then written as a `Composition`: a table by token load, and costs of
attention beside, so that kernel, reference and theory need to know nothing new.
"""

import dataclasses

import numpy as np

from penstock.inputs.arrays import Floats
from penstock.system.batch_time import Composition
from penstock.system.measured_times import Measured
from penstock.system.models import kernels
from penstock.system.models.gpus import KnownGpu
from penstock.system.models.hosts import Host
from penstock.system.models.shape import BYTES, Attention, Experts, ModelShape, Numbers

_MOST_TOKENS = 2**20
_SMALL_KERNEL_SHARE = 0.7  # of the memory's bandwidth, where kernels only read and write
_LONG = 8192.0  # tokens of context at which costs per token of context are taken
_MANY = 32.0  # requests at which they are
_LOGITS = 64.0  # requests that need a token, for the time of logits
_START_SHARPNESS = 4.0
_READ_AGAIN = 0.25
"""Share of the time of a decode's attention that each further query head of a KV head adds where
FlashAttention 2 has prompts and decodes in one call: it reads keys and values for each anew.
Medians of some 5,000 calls each on an RTX PRO 6000 (llmservingsim): 1.6 times the time of decodes
alone with 4 query heads to a KV head, 2.8 times with 8; on an RTX 4090 2.0 with 4."""
_LATENT_FLOOR_US = 10.0
"""Least time of latent attention from a CUDA graph. Kernels were measured without, where starting
them takes 60 to 100 us; this is fitted to DeepSeek-R1 on H200 under SGLang."""
_NO_HOST = Host()
MOST_WINDOW = 2_048
"""Tokens of a sliding window which most requests are longer than, so that each looks at all of it;
a layer with a longer one is timed as if it looked at all tokens."""


@dataclasses.dataclass(frozen=True)
class LayerTimes:
    """Times of a model's layers on GPUs that share them."""

    shape: ModelShape
    gpu: KnownGpu
    numbers: Numbers
    tensor_parallel: int = 1  # GPUs that share each layer
    expert_parallel: int = 1  # how many of them have whole experts
    host: Host = _NO_HOST

    @property
    def attention(self) -> list[Attention]:
        """The layers by their attention, as they are timed."""
        kinds = self.shape.attention
        return [kind._replace(window=kind.window * (kind.window <= MOST_WINDOW)) for kind in kinds]

    @property
    def looking(self) -> list[Attention]:
        """The layers that are timed as looking at all tokens."""
        return [kind for kind in self.attention if not kind.window]

    def composition(self, token_budget: int) -> Composition:
        """Return the time of batches of up to so many tokens."""
        loads = _loads(token_budget, self.host.graph_tokens)
        linear = Measured(loads.tolist(), self.by_tokens(loads).tolist())
        decode = self.seconds_per_context()
        pair = self.seconds_per_pair()
        return Composition(
            linear,
            self_attention=pair / 2.0,
            cross_attention=pair,
            decode_attention=decode,
            mixed_attention=self.seconds_per_context(beside_prefill=True),
            per_request=self.per_request(),
        )

    def by_tokens(self, tokens: Floats) -> Floats:
        """Return the seconds of batches of so many tokens that look at nothing before them."""
        shape = self.shape
        seconds = shape.layers * self._between(tokens)
        for kind in self.attention:
            seconds = seconds + kind.layers * self._attention_layer(tokens, kind)
        if shape.dense_layers:
            seconds = seconds + shape.dense_layers * self._mlp(tokens, float(shape.width))
        if shape.experts is not None:
            beside = self._small(tokens * self.host.expert_token_bytes)
            mixture = self._mixture(shape.experts, tokens) + beside
            seconds = seconds + shape.expert_layers * mixture
        share = shape.vocabulary / self.tensor_parallel
        logits = self._gemm("bf16", np.minimum(tokens, _LOGITS), share, float(shape.hidden))
        return np.asarray(self._started(tokens, seconds + logits) + self.host.batch_s)

    def _started(self, tokens: Floats, seconds: Floats) -> Floats:
        """Return the seconds of batches whose kernels the host starts singly if they are large."""
        # It starts kernels while others run, so the slower of the two decides.
        host, shape = self.host, self.shape
        start = shape.dense_layers * host.launch_s + shape.expert_layers * host.launch_experts_s
        if not start:
            return seconds
        both = kernels.smooth(_START_SHARPNESS, seconds, np.array(start))
        return np.asarray(np.where(tokens > host.graph_tokens, both, seconds))

    def seconds_per_pair(self) -> float:
        """Return the seconds that each pair of a prompt's token and one before it takes."""
        shape, tp = self.shape, self.tensor_parallel
        few, many = np.array([_LONG]), np.array([2.0 * _LONG])
        if shape.latent is not None:
            near = self._latent_prefill(np.array([_LONG]), np.array([0.0]))
            far = self._latent_prefill(np.array([_LONG]), np.array([_LONG**2]))
            return float((far - near)[0] * shape.layers / _LONG**2)
        p = self.gpu.shares("prefill_attention", self.numbers.kv)
        seconds = 0.0
        for kind in self.looking:
            heads = _arrays(kind.on_gpu(tp))
            near, far = (
                kernels.prefill_attention(self.gpu.sheet, p, few, pairs, *heads)
                for pairs in (few * few, few * many)
            )
            seconds += float(((far - near) / (few * (many - few)))[0]) * kind.layers
        return seconds

    def seconds_per_context(self, *, beside_prefill: bool = False) -> float:
        """Return the seconds of each token before a decode, in layers that look at all of them."""
        seconds = 0.0
        for kind in self.looking:
            near, far = self._decode(_LONG / 8, kind), self._decode(_LONG, kind)
            again = self._read_again(kind) if beside_prefill else 0.0
            seconds += (1.0 + again) * kind.layers * float(far - near) / (_MANY * _LONG * 7 / 8)
        return seconds

    def _read_again(self, kind: Attention) -> float:
        """Return by how much decodes beside prefill take longer, as a share."""
        if not self.gpu.reads_again or self.numbers.kv != "bf16" or self.shape.latent is not None:
            return 0.0
        heads, kv_heads, _ = kind.on_gpu(self.tensor_parallel)
        return _READ_AGAIN * (heads / kv_heads - 1.0)

    def per_request(self) -> float:
        """Return the seconds of each request: host, units that start, and sliding windows."""
        shape = self.shape
        seconds = self.host.request_s
        if shape.latent is None:
            p = self.gpu.shares("decode_attention", self.numbers.kv)
            heads = sum(kind.layers * kind.heads for kind in self.attention)
            seconds += heads / self.tensor_parallel * p.get("head_ns", 0.0) * 1e-9
        for kind in self.attention:
            if kind.window:
                looked = self._decode(float(kind.window), kind) - self._decode(1.0, kind)
                seconds += kind.layers * float(looked) / _MANY
        return seconds

    # ------------------------------------------------------------------ parts of a layer

    def _flops(self, precision: str) -> float:
        """Return FLOP/s: those of 16 bits where weights alone are smaller."""
        flops = self.gpu.sheet.flops
        return flops.get(precision.partition("-")[0], flops["bf16"])

    def _gemm(self, precision: str, tokens: Floats, n: float, k: float) -> Floats:
        p = self.gpu.shares("gemm", precision)
        flops, weight_bytes = self._flops(precision), BYTES[precision]
        return kernels.gemm(self.gpu.sheet, p, flops, weight_bytes, tokens, *_arrays((n, k)))

    def _mlp(self, tokens: Floats, width: float) -> Floats:
        shape, part = self.shape, width / self.tensor_parallel
        into = part * (shape.matrices - 1)
        first = self._gemm(self.numbers.dense, tokens, into, float(shape.hidden))
        second = self._gemm(self.numbers.dense, tokens, float(shape.hidden), part)
        moved = tokens * part * shape.matrices * BYTES["bf16"]
        return np.asarray(first + second + self._small(moved) + self._all_reduce(tokens))

    def _mixture(self, experts: Experts, tokens: Floats) -> Floats:
        shape, precision = self.shape, self.numbers.experts
        tp, ep = self.tensor_parallel, self.expert_parallel
        p = self.gpu.shares("experts", precision)
        seconds = self._gemm("bf16", tokens, float(experts.count), float(shape.hidden))
        width = experts.width * ep / tp
        layer = kernels.ExpertLayer(
            *_arrays((shape.hidden, width, experts.per_token, experts.count, ep))
        )
        flops, weight_bytes = self._flops(precision), BYTES[precision]
        seconds = seconds + kernels.experts(self.gpu.sheet, p, flops, weight_bytes, tokens, layer)
        if not experts.shared_width:
            return np.asarray(seconds + self._all_reduce(tokens))
        return np.asarray(seconds + self._mlp(tokens, float(experts.shared_width)))

    def _all_reduce(self, tokens: Floats) -> Floats:
        message = tokens * self.shape.hidden * BYTES["bf16"]
        if self.tensor_parallel == 1:
            return np.zeros_like(message)
        p, gpus = self.gpu.shares("all_reduce"), np.array(float(self.tensor_parallel))
        return np.asarray(kernels.all_reduce(self.gpu.sheet, p, message, gpus) + self.host.reduce_s)

    def _small(self, moved: Floats) -> Floats:
        """Return the seconds of kernels that read and write so many bytes."""
        return np.asarray(moved / (self.gpu.sheet.bandwidth * _SMALL_KERNEL_SHARE))

    def _between(self, tokens: Floats) -> Floats:
        """Return the seconds of a layer's small kernels: each norm reads two and writes two."""
        norms = tokens * self.shape.hidden * 8 * BYTES["bf16"]
        return np.asarray(self.host.layer_s + self._small(norms))

    def _attention_layer(self, tokens: Floats, kind: Attention) -> Floats:
        """Return the seconds of the attention of a layer without anything before its tokens."""
        shape, tp = self.shape, self.tensor_parallel
        if shape.latent is not None:
            few = self._latent_decode(tokens, 1.0)
            many = self._latent_prefill(tokens, tokens)
            return np.asarray(np.minimum(few, many) + self._all_reduce(tokens))
        precision, hidden = self.numbers.attention, float(shape.hidden)
        projected = self._gemm(precision, tokens, kind.projected(tp), hidden)
        out = self._gemm(precision, tokens, hidden, kind.heads / tp * kind.head_dim)
        floor = self.gpu.shares("decode_attention", self.numbers.kv)["floor_us"] * 1e-6
        p = self.gpu.shares("prefill_attention", self.numbers.kv)
        pairs = tokens * max(kind.window, 1)
        widths = _arrays(kind.on_gpu(tp))
        near = kernels.prefill_attention(self.gpu.sheet, p, tokens, pairs, *widths)
        near = near - p["floor_us"] * 1e-6
        return np.asarray(projected + out + floor + near + self._all_reduce(tokens))

    def _decode(self, context: float, kind: Attention) -> Floats:
        """Return the seconds of the attention of one layer, for `_MANY` decodes."""
        shape, tp = self.shape, self.tensor_parallel
        if shape.latent is not None:
            return self._latent_decode(np.array(_MANY), context)
        p = self.gpu.shares("decode_attention", self.numbers.kv)
        numbers = (_MANY, context, *kind.on_gpu(tp))
        kv_bytes = BYTES[self.numbers.kv]
        return kernels.decode_attention(self.gpu.sheet, p, kv_bytes, *_arrays(numbers))

    # ------------------------------------------------------------------ latent attention

    def _latent_decode(self, tokens: Floats, context: float) -> Floats:
        shape, latent = self.shape, self.shape.latent
        assert latent is not None
        cached = latent.kv_rank + latent.rope_dim
        per_pair = shape.heads / self.tensor_parallel * 2.0 * (cached + latent.kv_rank)
        return self._latent("latent_decode", tokens, tokens * context, cached, per_pair)

    def _latent_prefill(self, tokens: Floats, pairs: Floats) -> Floats:
        shape, latent = self.shape, self.shape.latent
        assert latent is not None
        cached = latent.kv_rank + latent.rope_dim
        wide = latent.plain_dim + latent.rope_dim + latent.value_dim
        per_pair = shape.heads / self.tensor_parallel * 2.0 * wide
        return self._latent("latent_prefill", tokens, pairs, cached, per_pair, read=tokens)

    def _latent(
        self,
        operation: str,
        tokens: Floats,
        pairs: Floats,
        cached: int,
        per_pair: float,
        read: Floats | None = None,
    ) -> Floats:
        assert self.shape.latent is not None
        precision = self.numbers.attention
        parameters = self.shape.attention_parameters(self.tensor_parallel)
        weights = np.array(parameters / self.shape.layers)
        cached_bytes = (pairs if read is None else read) * cached * BYTES[self.numbers.kv]
        p = dict(self.gpu.shares(operation, precision))
        p["floor_us"] = min(p["floor_us"], _LATENT_FLOOR_US)
        read_bytes = weights * BYTES[precision] + cached_bytes
        units = tokens, pairs, np.array(per_pair)
        flops = self._flops(precision)
        return kernels.latent_attention(self.gpu.sheet, p, flops, weights, read_bytes, *units)


def _arrays(numbers: tuple[float, ...]) -> list[Floats]:
    return [np.array(float(number)) for number in numbers]


def _loads(token_budget: int, graph_tokens: int) -> Floats:
    """Return token loads to work out: eight to an octave, and both sides of a CUDA graph's end."""
    most = min(max(token_budget, 2), _MOST_TOKENS)
    steps = np.rint(2.0 ** np.arange(0, np.log2(most) + 0.125, 0.125))
    loads = np.unique(np.append(steps, [graph_tokens, graph_tokens + 1]))
    return np.append(loads[loads < most], most)
