"""Shapes of random Llamas: a measurement needs the layers of a model, not its weights."""

import dataclasses
import hashlib
from typing import Any

from penstock import checks
from penstock.errors import InputError, nearest

LONGEST_CONTEXT = 8192


@dataclasses.dataclass(frozen=True)
class LlamaShape:
    """Sizes of a Llama.

    Parameters
    ----------
    hidden
        Width of a layer; a multiple of ``heads``.
    layers, heads, kv_heads
        Layers, attention heads, and heads of keys and values (a divisor of ``heads``).
    intermediate
        Width of the feed-forward part.
    vocab
        Tokens.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            checks.whole(f"model: {field.name}", value, 1, 2**20, "", "it is a size of the model")
        if self.hidden % (2 * self.heads) or self.heads % self.kv_heads:
            raise InputError(
                f"a model of hidden size {self.hidden:,} with {self.heads} heads and "
                f"{self.kv_heads} of keys and values: each head has an even width, and heads share "
                "keys evenly; mend hidden, heads or kv_heads"
            )
        checks.whole("model: vocab", self.vocab, 8, 2**20, "tokens", "some are set aside")

    @property
    def head_size(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads

    @property
    def parameters(self) -> int:
        """Weights in all."""
        attention = 2 * self.hidden * (self.heads + self.kv_heads) * self.head_size
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return self.layers * layer + 2 * self.vocab * self.hidden + self.hidden

    @property
    def kv_values(self) -> int:
        """Numbers kept for each token in the KV cache."""
        return 2 * self.layers * self.kv_heads * self.head_size

    @property
    def key(self) -> str:
        """A name of its own for this shape."""
        return hashlib.sha256(repr(dataclasses.astuple(self)).encode()).hexdigest()[:16]

    def describe(self) -> str:
        """Say how large it is."""
        size = self.parameters
        scale, unit = (1e9, "B") if size >= 1e9 else (1e6, "M")
        return (
            f"random Llama of {size / scale:.3g}{unit} parameters, {self.layers} layers of "
            f"{self.hidden:,}"
        )

    def config(self) -> dict[str, Any]:
        """Return the arguments of `transformers.LlamaConfig`."""
        return {
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.intermediate,
            "vocab_size": self.vocab,
            "max_position_embeddings": LONGEST_CONTEXT,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        }


MODELS = {
    "tiny": LlamaShape(hidden=128, layers=2, heads=4, kv_heads=2, intermediate=352, vocab=1024),
    "small": LlamaShape(hidden=512, layers=6, heads=8, kv_heads=4, intermediate=1408, vocab=4096),
    "medium": LlamaShape(
        hidden=768, layers=12, heads=12, kv_heads=4, intermediate=2048, vocab=8192
    ),
    "llama-8b": LlamaShape(
        hidden=4096, layers=32, heads=32, kv_heads=8, intermediate=14336, vocab=128256
    ),
}


def llama(text: str) -> LlamaShape:
    """Return a model by its name, or by sizes such as ``small,layers=8,hidden=768``.

    Raises
    ------
    InputError
        If there is no such model or size.
    """
    name, *changes = (part.strip() for part in text.split(","))
    if "=" in name:
        name, changes = "small", [name, *changes]
    if name not in MODELS:
        raise InputError(
            f"--model {checks.shown(text)}: no such model{nearest(name, tuple(MODELS))}"
        )
    sizes = dataclasses.asdict(MODELS[name])
    for change in changes:
        field, _, value = change.partition("=")
        if field not in sizes or not value.isdecimal():
            raise InputError(
                f"--model {checks.shown(text)}: {change!r} is no size; give some of "
                f"{', '.join(sizes)}, as layers=8"
            )
        sizes[field] = int(value)
    return LlamaShape(**sizes)
