"""Write a random Llama of 3.3 million parameters, with a tokenizer that knows its words as t8, t9, ...

    python tests/vllm_server/tiny_llama.py FOLDER

Nothing is downloaded. The weights are random but always the same, so greedy outputs can be compared.
"""

import sys
from pathlib import Path

VOCABULARY = 1024
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
SHAPE = {
    "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 4096,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.2,
}  # fmt: skip
"""With weights this far apart one word is clearly the likeliest, so rounding seldom changes a greedy output."""


def make_model(folder: Path) -> Path:
    """Write the model and its tokenizer into the folder, and return it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(folder)
    make_tokenizer(folder)
    return folder


def make_tokenizer(folder: Path) -> None:
    """Write a tokenizer of words between spaces."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: index for index, word in enumerate(SPECIAL)}
    words |= {f"t{index}": index for index in range(len(SPECIAL), VOCABULARY)}
    pad, begin, end, unknown = SPECIAL
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, bos_token=begin, eos_token=end, unk_token=unknown
    ).save_pretrained(folder)


if __name__ == "__main__":
    print(make_model(Path(sys.argv[1])))
