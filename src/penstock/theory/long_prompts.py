"""What Sarathi-Serve carries of the region, for long prompts."""

import numpy as np

from penstock.system.server import Server
from penstock.theory.attention import refuse_composition
from penstock.theory.region import Region, outline


def sarathi_region(server: Server) -> Region:
    """Return the rates that Sarathi-Serve carries at its fixed token budget b, for long prompts."""
    # conv(O, A_b, Q_b, D): Sarathi fills every batch. Below k_max decoding requests a batch lies on
    # the segment from A_b, prefill alone, to Q_b, k_max - 1 decodes and b - k_max + 1 prefill
    # tokens; with k_max of them no prompt is let in and the batch is D. A fluid argument, no
    # theorem; simulation agrees within .02.
    refuse_composition(
        server, "the region of sarathi", "ask `certify`, or `max_rate`, which simulates"
    )
    b = server.token_budget
    k = min(server.max_batch_size or b, b)
    full, decodes = float(server.batch_time(b)), float(server.batch_time(k))
    return Region(
        outline(
            np.array([(b / full, 0.0), ((b - k + 1) / full, (k - 1) / full), (0.0, k / decodes)])
        )
    )
