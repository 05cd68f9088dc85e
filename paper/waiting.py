"""What waited before each batch of a run without a max batch size, rebuilt from who got how many tokens in which."""

import numpy as np
import polars as pl


def waiting(run):
    """Return a row per batch: its tokens, and those that waited and could have been served.

    A batch is short, and so not work-conserving, if it has less than the token budget although that much waited. It
    resumes if it goes on with a prompt of which a batch before served a part.
    """
    batch, request, *tokens = run.allocation_rows.T
    served = np.zeros((2, run.batch_rows.shape[0], run.rows.arrival.size), np.int64)
    served[:, batch, request] = tokens
    prefilled, decoded = served.cumsum(axis=1) - served
    there = run.rows.arrival <= run.batch_rows[:, :1]
    prompts = np.where(there, run.rows.prompt_tokens - prefilled, 0)
    decodes = there & (prefilled == run.rows.prompt_tokens) & (decoded < run.rows.output_tokens)
    prefill, decode = served.sum(axis=2)
    table = pl.DataFrame(
        {
            "prefill_tokens": prefill,
            "decode_tokens": decode,
            "prompt_tokens_waiting": prompts.sum(axis=1),
            "decodes_waiting": decodes.sum(axis=1),
            "resumes": ((served[0] > 0) & (prefilled > 0)).any(axis=1),
        }
    )
    budget = run.server.token_budget
    could = pl.min_horizontal(pl.col("prompt_tokens_waiting") + pl.col("decodes_waiting"), budget)
    load = pl.col("prefill_tokens") + pl.col("decode_tokens")
    return table.with_columns(token_budget=budget, could=could, short=(could == budget) & (load < budget))
