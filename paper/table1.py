"""Which schedulers are work-conserving, by audit (Table 1).

A scheduler is work-conserving if a batch carries the whole token budget whenever that much waits. Every batch of many
systems is held against what waited: of small ones, the smallest first, until one refutes it, then of random ones.
"""

import itertools
from typing import NamedTuple

import altair as alt
import polars as pl

import penstock as ps
from paper.item import Item
from paper.small_systems import random_systems, small_systems
from paper.waiting import waiting
from penstock.show.page import Table
from penstock.show.plot import COLOURS

SMALL = {"requests": 3, "tokens": 7, "gap": 2}
RANDOM = {"systems": 300, "requests": 12, "tokens": 30, "gap": 8, "token_budget": 40, "seed": 0}


class Published(NamedTuple):
    """What Table 1 says of a scheduler."""

    name: str
    priority: str
    batching: str
    work_conserving: str


PUBLISHED = {
    "fastertransformer": Published("FasterTransformer", "decode-first", "not mixed", "No"),
    "vllm-vanilla": Published("vanilla vLLM", "prefill-first", "not mixed", "No"),
    "orca": Published("Orca", "prefill-first", "mixed", "Yes"),
    "sarathi": Published("Sarathi-Serve", "decode-first", "chunked prefill, mixed", "Yes"),
}

item = Item(__name__, __doc__)


def audited(policy):
    """Return all batches of a policy in all systems, and the first system and batch that refute each notion."""
    batches, refuted = [], {"paper": None, "strong": None}
    small = itertools.takewhile(lambda system: refuted["paper"] is None, small_systems(**SMALL))
    for system in itertools.chain(small, random_systems(**RANDOM)):
        run = system.run(policy)
        audit = ps.audit(run)
        assert audit.feasible, audit.violations
        for notion, breaches in (("paper", audit.paper), ("strong", audit.strong)):
            if refuted[notion] is None and breaches.first is not None:
                refuted[notion] = system, breaches.first.batch
        batches.append(waiting(run))
    return batches, refuted


def refutation(by):
    """Say which batch refutes a policy."""
    if by is None:
        return ""
    example = "A 1+2 at 0: one prompt and two output tokens, tick 0"
    return f"batch {by[1] + 1} refutes it, of {by[0]} ({example})"


rows, examples = [], []
for policy, published in PUBLISHED.items():
    # 1. Audit the policy in small and in random systems.
    batches, refuted = audited(policy)
    verdict = {notion: "Yes" if by is None else "No" for notion, by in refuted.items()}
    if refuted["paper"]:
        system, batch = refuted["paper"]
        at = waiting(system.run(policy)).row(batch, named=True)
        examples.append(
            (
                policy, str(system), f"{batch + 1}",
                f"{at['prefill_tokens']} prefill, {at['decode_tokens']} decode",
                f"{at['prompt_tokens_waiting']} prefill, {at['decodes_waiting']} decode",
            )
        )  # fmt: skip

    # 2. What it does where prompts and decodes waited: which come first, and whether a batch has both.
    table = pl.concat(batches)
    both = table.filter(pl.col("prompt_tokens_waiting") > 0, pl.col("decodes_waiting") > 0)
    mixed = both.filter(pl.col("prefill_tokens") > 0, pl.col("decode_tokens") > 0)
    # Whether decodes always got all of the budget that they could take, and whether prompts did.
    firsts = tuple(
        both.select((pl.col(tokens) >= pl.min_horizontal(waits, "token_budget")).all()).item()
        for tokens, waits in (("decode_tokens", "decodes_waiting"), ("prefill_tokens", "prompt_tokens_waiting"))
    )
    priority = {(True, False): "decode-first", (False, True): "prefill-first"}.get(firsts, "neither alone")
    cuts = bool(table["resumes"].any())
    rows.append(
        {
            "policy": policy,
            "systems": len(batches),
            "batches": table.height,
            "could_be_full": table.filter(pl.col("could") == pl.col("token_budget")).height,
            "left_short": table.filter("short").height,
            "both_waited": both.height,
            "mixed": mixed.height,
            "priority": priority,
            "cuts": cuts,
            **verdict,
        }
    )

    # 3. Its row of Table 1, then what Appendix C needs.
    seen_in = f"so in {both.height:,} batches, in {len(batches):,} systems, before which both phases waited"
    name = published.name
    item.claim(f"{name}: priority", published.priority, priority, priority == published.priority, seen_in)
    batching = "mixed" if mixed.height else "not mixed"
    if cuts and published.batching.startswith("chunked prefill"):  # all four cut prompts here
        batching = f"chunked prefill, {batching}"
    item.claim(f"{name}: batching", published.batching, batching, batching == published.batching, seen_in)
    item.claim(
        f"{name}: work-conserving", published.work_conserving, verdict["paper"],
        verdict["paper"] == published.work_conserving,
        known=refutation(refuted["paper"]) or f"no batch refutes it, in {len(batches):,} systems",
    )  # fmt: skip
    if published.work_conserving == "Yes":
        item.claim(
            f"{name}: strong, min(supply, b_max)", "Yes, for Appendix C", verdict["strong"],
            verdict["strong"] == "Yes", refutation(refuted["strong"]),
        )  # fmt: skip

heads = ("Policy", "Requests: prompt + output, tick", "Batch", "Served", "Could have been")
about = "The smallest system that refutes each: the first batch with fewer tokens than the budget and the supply."
item.tables.append(Table(heads, examples, about))
item.note("An audit can refute, not prove: Yes means that no system audited refutes it")
item.note("The paper's four cut prompts to fit the budget, since it states them in tokens; no max batch size")

# 4. Draw how many batches of each policy are left short, and how many mix phases.
of_among = (("left short", "left_short", "could_be_full"), ("mixed", "mixed", "both_waited"))
shares = [
    {"policy": row["policy"], "what": what, "share": row[of] / row[among]}
    for row in rows
    for what, of, among in of_among
]
kinds = [what for what, *_ in of_among]
percent = alt.Axis(format="%", values=[0, 0.2, 0.4, 0.6, 0.8, 1])
room = alt.Axis(labelLimit=300, minExtent=130)  # for names in a browser's letters, which are wider
key = alt.Legend(title="Batches", symbolStrokeColor="#333333")
colours = alt.Scale(domain=kinds, range=[COLOURS[1], COLOURS[5]])
base = alt.Chart(pl.DataFrame(shares)).encode(
    x=alt.X("share:Q", title="Share of batches", axis=percent, scale=alt.Scale(domain=[0, 1.1])),
    y=alt.Y("policy:N", title=None, sort=list(PUBLISHED), axis=room),
    yOffset=alt.YOffset("what:N", sort=kinds),
)
bars = base.mark_bar(stroke="#333333", strokeWidth=0.5).encode(color=alt.Color("what:N", scale=colours, legend=key))
words = base.mark_text(align="left", dx=4, fontSize=11).encode(text=alt.Text("share:Q", format=".0%"))
drawing = alt.LayerChart(layer=[bars, words]).properties(width=430, height={"step": 19})
item.show(
    pl.DataFrame(rows),
    {"Share of batches left short and of batches that mix phases, by policy.": drawing},
    "Left short: of the batches for which enough waited, those below the token budget. Mixed: of the batches before "
    "which prompts and decodes waited, those that serve both. Over all systems audited.",
)
