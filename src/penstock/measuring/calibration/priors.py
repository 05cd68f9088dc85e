"""What costs are likely to be before any row is read, so that one which no row identifies is not
taken for nothing.

All follow from one time, the shortest inter-token latency of the rows: about what it takes to read
the weights once. This is the place for better ones, such as the bytes of keys and values that a
model's shape tells.
"""

import math
from typing import NamedTuple


class Prior(NamedTuple):
    """A log-normal prior."""

    centre: float  # its median, in seconds
    # One standard deviation: two thirds of its mass lie within this factor of the median.
    factor: float
    reason: str  # where it comes from

    @property
    def deviation(self) -> float:
        """Standard deviation of the logarithm."""
        return math.log(self.factor)


def priors(shortest_s: float) -> dict[str, Prior]:
    """Return each cost's prior, given the shortest inter-token latency of the rows, seconds."""
    return {
        "step": Prior(shortest_s, 2, "the shortest inter-token latency measured"),
        "per_token": Prior(
            shortest_s / 250, 2, "accelerators compute 80 to 500 tokens while they read the weights"
        ),
        "per_token_below": Prior(
            shortest_s / 1000, 3, "below the knee reading the weights covers the computing"
        ),
        "per_request": Prior(
            shortest_s / 400,
            4,
            "sampling and scheduling take tens of us beside steps of 5 to 10 ms",
        ),
        "decode_attention": Prior(
            shortest_s * 8e-6,
            4,
            "a token's keys and values are 2 to 40 millionths of the weights of 7B to 70B models",
        ),
        "self_attention": Prior(
            shortest_s * 1.2e-7,
            3,
            "beside a token's linear layers, 1 / (12 hidden size) for each token before it",
        ),
        "with_prefill": Prior(
            shortest_s / 10, 3, "launches of kernels that CUDA graphs save decodes"
        ),
        "overhead": Prior(
            5e-3, 5, "HTTP, tokenizer and queues between processes take milliseconds"
        ),
        "overhead_per_stream": Prior(
            5e-5, 10, "a front end handles a token of a stream in tens of us"
        ),
        "idle": Prior(1e-3, 4, "loops and processes that sleep wake up in about a millisecond"),
    }
