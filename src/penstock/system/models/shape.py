"""The shape of a language model: what decides its FLOPs, its weights and its KV cache.

A shape is read from a `config.json` as Hugging Face has it (`penstock.system.models.config`), or
taken from the catalogue. Weights are counted matrix by matrix; norms, biases and routers' biases,
which are less than a thousandth, are left out.
"""

import dataclasses
from typing import NamedTuple

from penstock import checks
from penstock.errors import InputError

BYTES: dict[str, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "w8a16": 1.0,  # widened before it is computed with, where int8 and fp8 are not
    "int8": 1.0,
    "fp8": 1.0,
    "fp8-block": 1.0 + 4 / 128**2,  # and 32 bits for each 128 x 128
    "fp4": 0.5 + 1 / 16,  # a scale of 8 bits for each 16 numbers
    "mxfp4": 0.5 + 1 / 32,  # and for each 32
    "int4": 0.5 + 2 / 32,  # a scale of 16 bits for each 32
    "int4-128": 0.5 + 2.5 / 128,  # and a zero point of 4, for each 128
}
"""Bytes of a number in weights, its share of the scales included."""

ASKED = {"bf16": "bf16", "fp8": "fp8", "fp4": "fp4", "int4": "int4-128"}
"""Precisions that may be asked for, and the numbers that they are; a model may be published in
others.
"""


@dataclasses.dataclass(frozen=True)
class Latent:
    """Latent attention (MLA): keys and values of all heads from one vector of each token."""

    query_rank: int  # numbers through which queries are made; 0: straight from the hidden state
    kv_rank: int  # numbers that a token leaves in the KV cache: compressed,
    rope_dim: int  # and with positions
    plain_dim: int  # dimensions of a head, without positions,
    value_dim: int  # and of its values


@dataclasses.dataclass(frozen=True)
class Global:
    """Heads of the layers that look at all tokens, where those with a window have others."""

    heads: int
    kv_heads: int
    head_dim: int
    values: bool = True  # have a projection of their own; else they are the keys


class Attention(NamedTuple):
    """Layers whose attention is alike."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    values: bool  # have a projection of their own
    window: int  # tokens that they look back; 0: all

    def on_gpu(self, tensor_parallel: int) -> tuple[float, float, float]:
        """Return heads, KV heads and the dimensions of a head, on one of so many GPUs."""
        tp = tensor_parallel
        return self.heads / tp, max(self.kv_heads / tp, 1.0), float(self.head_dim)

    def projected(self, tensor_parallel: int) -> float:
        """Return the numbers of queries, keys and values of a token, on one of so many GPUs."""
        heads, kv_heads, dim = self.on_gpu(tensor_parallel)
        return (heads + (1 + self.values) * kv_heads) * dim

    def kv_numbers(self, tensor_parallel: int = 1) -> int:
        """Return the numbers that a token leaves in one layer, on one of so many GPUs."""
        # KV heads are shared, and copied where fewer than GPUs.
        return 2 * -(-self.kv_heads // tensor_parallel) * self.head_dim


@dataclasses.dataclass(frozen=True)
class Experts:
    """A mixture of experts."""

    count: int  # in a layer
    per_token: int  # how many of them each token visits
    width: int  # inner width of one expert
    shared_width: int  # inner width of what every token visits beside; 0: nothing
    layers: int  # that have experts; the others are dense

    def visited(self, tokens: float) -> float:
        """Return the mean share of experts that so many tokens visit: 1 - (1 - k / E)^n."""
        return 1.0 - float((1.0 - self.per_token / self.count) ** tokens)


@dataclasses.dataclass(frozen=True)
class Numbers:
    """How numbers are stored: of dense layers, of experts, of attention, and of the KV cache."""

    dense: str
    experts: str
    attention: str
    kv: str = "bf16"


@dataclasses.dataclass(frozen=True)
class ModelShape:
    """What decides the time and the memory of a language model."""

    name: str
    layers: int
    hidden: int  # width of the hidden state
    vocabulary: int  # tokens known
    # Of attention; latent attention has its own dimensions.
    heads: int
    kv_heads: int
    head_dim: int
    width: int  # inner width of dense layers
    tied: bool = False  # embeddings and logits share their weights
    matrices: int = 3  # of one MLP: 3 where a gate stands beside (SwiGLU), else 2
    window: int = 0  # tokens that a sliding window looks back
    windowed_layers: int = 0  # the layers that have one
    full: Global | None = None  # the heads of the others, where they differ
    latent: Latent | None = None
    experts: Experts | None = None
    stored: Numbers = Numbers("bf16", "bf16", "bf16")  # how its maker publishes the numbers
    published_gb: float | None = None  # 10^9 bytes of the weights so published; None: as counted

    @property
    def expert_layers(self) -> int:
        """Layers with experts."""
        return self.experts.layers if self.experts else 0

    @property
    def dense_layers(self) -> int:
        """Layers without experts."""
        return self.layers - self.expert_layers

    @property
    def attention(self) -> tuple[Attention, ...]:
        """Its layers by their attention: those that look at all tokens, and those with a window."""
        near = Attention(
            self.windowed_layers, self.heads, self.kv_heads, self.head_dim, True, self.window
        )
        widths = {} if self.full is None else vars(self.full)
        far = near._replace(layers=self.layers - self.windowed_layers, window=0, **widths)
        return tuple(kind for kind in (far, near) if kind.layers)

    @property
    def looking(self) -> tuple[Attention, ...]:
        """The layers that look at all tokens."""
        return tuple(kind for kind in self.attention if not kind.window)

    @property
    def latent_parameters(self) -> int:
        """Weights of one layer of latent attention."""
        latent = self.latent
        assert latent is not None
        query = self.heads * (latent.plain_dim + latent.rope_dim)
        if latent.query_rank:
            queries = latent.query_rank * (self.hidden + query)
        else:
            queries = self.hidden * query
        compressed = self.hidden * (latent.kv_rank + latent.rope_dim)
        expanded = latent.kv_rank * self.heads * (latent.plain_dim + latent.value_dim)
        return queries + compressed + expanded + self.heads * latent.value_dim * self.hidden

    def attention_parameters(self, tensor_parallel: int = 1) -> float:
        """Return the weights of the attention of all layers, on one of so many GPUs."""
        # Latent compression is copied to each GPU, and KV heads where there are fewer than GPUs.
        tp = tensor_parallel
        if self.latent is not None:
            ranks = self.latent.query_rank + self.latent.kv_rank + self.latent.rope_dim
            copied = self.hidden * ranks
            return self.layers * (copied + (self.latent_parameters - copied) / tp)
        return sum(
            kind.layers * self.hidden * (kind.projected(tp) + kind.heads / tp * kind.head_dim)
            for kind in self.attention
        )

    @property
    def dense_parameters(self) -> int:
        """Weights of the MLP of one dense layer."""
        return self.matrices * self.hidden * self.width

    @property
    def expert_parameters(self) -> int:
        """Weights of one expert."""
        return self.matrices * self.hidden * self.experts.width if self.experts else 0

    @property
    def shared_parameters(self) -> int:
        """Weights of an expert layer that every token visits: shared experts, and the router."""
        if self.experts is None:
            return 0
        shared = self.matrices * self.hidden * self.experts.shared_width
        return shared + self.hidden * self.experts.count

    @property
    def embedding_parameters(self) -> int:
        """Weights of embeddings and logits."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """All weights."""
        return self._parameters(self.experts.count if self.experts else 0)

    @property
    def active_parameters(self) -> int:
        """Weights that one token goes through, embeddings included."""
        return self._parameters(self.experts.per_token if self.experts else 0)

    def _parameters(self, experts: int) -> int:
        mixture = self.expert_layers * (experts * self.expert_parameters + self.shared_parameters)
        dense = self.dense_layers * self.dense_parameters
        attention = round(self.attention_parameters())
        return self.embedding_parameters + attention + dense + mixture

    def numbers(self, precision: str | None = None, kv: str | None = None) -> Numbers:
        """Return how a server that is told such a precision stores numbers."""
        # A model published in several numbers has them as they are, or none of them.
        checks.word("precision", precision, (None, *ASKED))
        checks.word("kv_precision", kv, (None, "bf16", "fp8"))
        stored = self.stored
        parts = {stored.dense, stored.experts, stored.attention}
        same = {part for part in parts if part.removeprefix("mx").partition("-")[0] == precision}
        if precision is None or same == parts or (same and precision != "bf16"):
            numbers = stored
        elif precision == "fp4" and self.experts is not None and stored.experts != "bf16":
            # As NVIDIA converts them: the experts, and dense layers where these had fewer bits.
            dense = "bf16" if stored.dense == "bf16" else "fp4"
            numbers = Numbers(dense, "fp4", "bf16", "fp8")
        elif len(parts) > 1 and precision != "bf16":
            raise InputError(
                f"precision is {precision}, but {self.name} is published with experts in "
                f"{stored.experts} and the rest in {stored.dense}, and no engine converts that; "
                "leave precision out"
            )
        else:
            number = ASKED[precision]
            cache = "fp8" if precision == "fp4" else stored.kv  # as NVIDIA publishes them
            numbers = Numbers(number, number, number, cache)
        return numbers if kv is None else dataclasses.replace(numbers, kv=kv)

    def weights_bytes(self, numbers: Numbers, tensor_parallel: int = 1) -> float:
        """Return the bytes of weights on one of the GPUs that share them."""
        # Every layer is split; whole experts (expert parallelism) are as many bytes as slices of
        # each. Embeddings, logits and routers stay in 16 bits.
        share = 1.0 / tensor_parallel
        attention = self.attention_parameters(tensor_parallel) * BYTES[numbers.attention]
        dense = self.dense_layers * self.dense_parameters * share * BYTES[numbers.dense]
        embeddings = self.embedding_parameters * share * BYTES["bf16"]
        if self.experts is None:
            return attention + dense + embeddings
        routed = self.experts.count * self.expert_parameters * BYTES[numbers.experts]
        shared = self.matrices * self.hidden * self.experts.shared_width * BYTES[numbers.dense]
        router = self.hidden * self.experts.count * BYTES["bf16"]
        mixture = self.expert_layers * ((routed + shared) * share + router)
        return attention + dense + embeddings + mixture

    def kv_bytes_per_token(self, numbers: Numbers, tensor_parallel: int = 1) -> float:
        """Return the bytes that a token takes on one GPU for as long as its request runs."""
        # Layers with a sliding window do not count: they keep `window_bytes` of each request.
        if self.latent is not None:  # what it keeps is copied to each GPU
            return self.layers * (self.latent.kv_rank + self.latent.rope_dim) * BYTES[numbers.kv]
        count = sum(kind.layers * kind.kv_numbers(tensor_parallel) for kind in self.looking)
        return count * BYTES[numbers.kv]

    def window_bytes(self, numbers: Numbers, tensor_parallel: int = 1) -> float:
        """Return the bytes that the sliding windows of one long request take on one GPU."""
        count = sum(
            kind.layers * kind.window * kind.kv_numbers(tensor_parallel) for kind in self.attention
        )
        return count * BYTES[numbers.kv]

    def flops_per_token(self, context: float = 0.0) -> float:
        """Return the FLOPs of one token with so many before it, logits included."""
        embedded = self.vocabulary * self.hidden  # a look-up costs none
        weights = self.active_parameters - (0 if self.tied else embedded)
        if self.latent is not None:
            dims = self.heads * (2 * self.latent.kv_rank + self.latent.rope_dim)
            seen = dims * self.layers * context
        else:
            seen = sum(
                2 * kind.heads * kind.head_dim * kind.layers * min(context, kind.window or context)
                for kind in self.attention
            )
        return 2.0 * weights + 2.0 * seen

    def check_split(self, tensor_parallel: int, expert_parallel: int = 1) -> None:
        """Refuse numbers of GPUs over which the model cannot be split."""
        why = "it is a number of GPUs"
        checks.whole("tensor_parallel", tensor_parallel, 1, 1024, "", why)
        checks.whole("expert_parallel", expert_parallel, 1, 1024, "", why)
        heads = [("attention heads", kind.heads, False) for kind in self.attention]
        kv_heads = [("KV heads", kind.kv_heads, True) for kind in self.attention]
        for what, count, copied in heads + kv_heads:
            copied = copied and (self.latent is not None or tensor_parallel % count == 0)
            if count % tensor_parallel and not copied:
                raise InputError(
                    f"tensor_parallel is {tensor_parallel}, but {self.name} has {count} {what}, "
                    f"which so many GPUs cannot share; take a number that divides {count}"
                )
        if expert_parallel == 1:
            return
        if self.experts is None:
            raise InputError(
                f"expert_parallel is {expert_parallel}, but {self.name} has no experts; leave it "
                "out"
            )
        if tensor_parallel % expert_parallel or self.experts.count % expert_parallel:
            raise InputError(
                f"expert_parallel is {expert_parallel}, but must divide tensor_parallel, "
                f"{tensor_parallel}, and the {self.experts.count} experts of {self.name}; change "
                "one of them"
            )
