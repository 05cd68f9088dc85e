"""Batch time depends on the token load (Section 2.3).

At each token load, batches are drawn from requests' lengths that hold exactly so many tokens, from nearly all prefill
to nearly all decodes, and timed by measured layers.
"""

from typing import NamedTuple

import altair as alt
import numpy as np
import polars as pl

import penstock as ps
from paper.batches import draw_batches
from paper.item import Item
from paper.layer_times import read_llmservingsim, read_vidur
from paper.looks import STROKES, channels
from paper.staircase import STAIRS

LENGTHS, ALIKE = "traces/sharegpt_8k_lengths.csv.gz", "azure-conv"  # in the data; what stands for it
LONGEST_PROMPT, LONGEST = 1024, 2048  # as vLLM's and SGLang's ShareGPT benchmark cuts them
LOADS = (128, 256, 512, 1024, 2048)
FULL = LOADS[-1]
MAX_BATCH_SIZE = 128
DRAWN = 2_000  # batches at each load: a fifth or more hold exactly so many tokens
LARGEST, R2 = 512, 0.97  # tokens up to which the staircase is fitted, and how well


class Model(NamedTuple):
    """A language model on a card, and its layer profile in the data."""

    model: str
    card: str
    layers: int
    profile: str

    @property
    def name(self):
        return f"{self.model}, {self.card}"


PRO, A100 = "RTX PRO 6000", "2 A100"
VIDUR, LLMSERVINGSIM = "profiling/vidur/a100", "profiling/llmservingsim/RTXPRO6000"
LLAMA_8B = Model("Llama-3.1-8B", PRO, 32, f"{LLMSERVINGSIM}/meta-llama/Llama-3.1-8B/bf16/tp1")
QWEN_32B = Model("Qwen3-32B", PRO, 64, f"{LLMSERVINGSIM}/Qwen/Qwen3-32B/bf16/tp1")
CODELLAMA_34B = Model("CodeLlama-34B", A100, 48, f"{VIDUR}/codellama/CodeLlama-34b-Instruct-hf/mlp.csv.gz")
LLAMA_70B = Model("Llama-2-70B", A100, 80, f"{VIDUR}/meta-llama/Llama-2-70b-hf/mlp.csv.gz")
PAIRS = (LLAMA_8B, QWEN_32B), (CODELLAMA_34B, LLAMA_70B)  # a smaller and a larger model on the same card
ATTENTION = f"{VIDUR}/attention_gqa64q8kv_tp2.csv.gz"  # of both on A100
PRESETS = {LLAMA_8B: "llama-3.1-8b-rtxpro6000-tp1", QWEN_32B: "qwen3-32b-rtxpro6000-tp1"}

item = Item(__name__, __doc__)


def by_preset(preset):
    """Return what gives the seconds of batches by a preset."""
    model = ps.hardware(preset).batch_time
    return lambda b: model.of_batches(b.prefill, b.decodes, b.requests, b.squares, b.pairs, b.context)


# 1. What gives the seconds of batches: a layer profile, else a preset, else nothing.
times, how = {}, {}
for model in (*PAIRS[0], *PAIRS[1]):
    profile, attention = item.file(model.profile), item.file(ATTENTION)
    said = "by {}'s layer profiles, without exchange between GPUs and the engine's own work"
    if model.card == A100 and None not in (profile, attention):
        times[model] = read_vidur(profile, model.layers, tensor_parallel=2, attention=attention).of
        said = said.format("Vidur")
    elif model.card == PRO and profile is not None:
        times[model] = read_llmservingsim(profile, model.layers).of
        said = said.format("LLMServingSim")
    elif model in PRESETS:
        times[model] = by_preset(PRESETS[model])
        said = "by presets of `penstock hardware`, as their layer profiles are not here (--data)"
    else:
        said = "left out, as a layer profile or a preset is missing"
    how.setdefault(said, []).append(f"{model.model} on {model.card}")
pairs = [pair for pair in PAIRS if times.keys() >= set(pair)]
models = [model for pair in pairs for model in pair]
item.note(
    "The paper does not publish its times (SGLang): batches are timed for "
    + "; ".join(f"{' and '.join(those)} {said}" for said, those in how.items())
)

# 2. Requests that are short enough.
file = item.file(LENGTHS)
workload = ps.Workload.preset(ALIKE) if file is None else ps.read_trace(file)
requests = workload.with_rate(1.0, "poisson").with_seed(0).requests(20_000)
prompt, output = (tokens.astype(np.int64) for tokens in (requests.prompt_tokens, requests.output_tokens))
short = (prompt <= LONGEST_PROMPT) & (prompt + output <= LONGEST)
prompt, output = prompt[short], output[short]
absent = "" if file else f" are not here (--data), so those of {ALIKE} were drawn"
item.note(
    f"ShareGPT's lengths{absent}, prompts of at most {LONGEST_PROMPT:,} and requests of at most {LONGEST:,} tokens: "
    f"{prompt.size:,} of them, means {prompt.mean():,.0f} and {output.mean():,.0f}"
)

# 3. How much the time of the same batches varies, at each load and for each model.
rows, variation = [], {}
for load in LOADS:
    batches = draw_batches(prompt, output, token_budget=load, max_batch_size=MAX_BATCH_SIZE, count=DRAWN, seed=0)
    batches = batches.take(batches.tokens == load)
    for model in models:
        seconds = times[model](batches)
        variation[model, load] = seconds.std() / seconds.mean()
        rows.append((model.name, load, seconds.size, seconds.mean(), variation[model, load]))

# 4. At full load that is little, and less for a larger model.
seconds = STAIRS(np.arange(1, LARGEST + 1))
most = np.sqrt((1 - R2) / R2) * seconds.std() / seconds.mean()
item.note(
    f"The paper gives no number for 'relatively constant'. Here it means a CV of at most {most:.1%}: the error of a "
    f"staircase with R^2 = {R2:g}, divided by the mean batch time. Full load means {FULL:,} tokens"
)
item.note("The number of decodes in a batch is drawn evenly from 1 to the max batch size; in one run it varies less")
for model in models:
    cv = variation[model, FULL]
    item.claim(
        f"CV at {FULL:,} tokens, {model.name}", f"relatively constant (up to {most:.1%})", f"{cv:.1%}", cv <= most,
        "attention, which reads the tokens before each decode, takes too much of the batch time",
    )  # fmt: skip
for smaller, larger in pairs:
    small, large = variation[smaller, FULL], variation[larger, FULL]
    item.claim(
        f"CV of the larger model, {smaller.card}", "smaller",
        f"{larger.model} {large:.1%}, {smaller.model} {small:.1%}", large < small,
        "attention grew at least as much as the linear layers from one model to the other",
    )  # fmt: skip

# 5. The figure.
table = pl.DataFrame(rows, ["model", "token_load", "batches", "mean_s", "cv"], orient="row")
x = alt.X(
    "token_load:Q", title="Token load (tokens in the batch)", scale=alt.Scale(type="log", base=2),
    axis=alt.Axis(values=LOADS, format=",d"),
)  # fmt: skip
y = alt.Y("cv:Q", title="CV of the batch time", axis=alt.Axis(format="%"), scale=alt.Scale(domainMin=0))
names = table["model"].unique(maintain_order=True).to_list()
lines = alt.Chart(table).mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=45, filled=True))
rule = alt.Chart(pl.DataFrame({"cv": [most]})).mark_rule(strokeWidth=1.2).encode(y=y)
drawn = alt.layer(rule, lines.encode(x=x, y=y, **channels("model", names, "Model", **STROKES)))
worst, at = max(variation, key=variation.get)
text = "Coefficient of variation of the batch time by token load, a line per model."
item.show(
    table, {text: drawn.properties(width=420, height=300)},
    "All batches at one token load have the same number of tokens, in other mixes of prefill and decode. CV: standard "
    f"deviation over mean. Black line: {most:.1%}, the most that counts as relatively constant. The paper speaks of "
    f"the full token load only. Over all loads, the batch time of {worst.model} on {worst.card} varies most: "
    f"{variation[worst, at]:.1%} at {at:,} tokens. There attention, which reads the tokens before each decode, takes "
    "much of the time.",
)  # fmt: skip
