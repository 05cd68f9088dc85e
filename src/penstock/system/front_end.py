"""What takes requests in before an engine, and puts their outputs out: a server in series.

HTTP, the tokenizer and the streams of all answers are often one process, which works on one request
at a time. It has a limit of its own, however fast the GPU is.
"""

import dataclasses
from typing import Annotated

import numpy as np

from penstock.errors import InputError
from penstock.fields import Checked, Key, Range
from penstock.inputs.arrays import Floats
from penstock.words import digits

_TIME = Range(0, 1e3, "s", "it is the work of one request; give ms")
_TOKEN = Range(0, 1e3, "s", "it is the work of one token; give us")
_PROCESSES = Range(1, 4096, "processes", "without one nothing comes in")


@dataclasses.dataclass(frozen=True)
class FrontEnd(Checked):
    """The front end of one replica: first come, first served, before the router.

    The work of a request is done when it comes, that of its output tokens included, so TTFT has
    somewhat more of it than it really has, and the rate that it carries is exact. Replicas of a
    pool share their processes. Who comes with KV memory of another pool was taken in there, and
    who is sent again after an outage was taken in before. What waits there is not in a run's series
    of what a server holds.

    Parameters
    ----------
    per_request
        Seconds of each request: HTTP, tokenizer, first and last answer.
    per_token
        Seconds of each output token: detokenizer, and the stream to the client.
    processes
        How many requests it works on at a time (vLLM's ``api_server_count``).
    """

    per_request: Annotated[float, _TIME, Key("per_request_ms", 1e3, "ms")] = 0.0
    per_token: Annotated[float, _TOKEN, Key("per_token_us", 1e6, "us")] = 0.0
    processes: Annotated[int, _PROCESSES, Key("processes", others=("api_server_count",))] = 1

    def settle(self) -> None:
        """Refuse one that takes no time."""
        if not self.per_request and not self.per_token:
            raise InputError(
                "front_end takes no time for requests nor tokens, so it limits nothing; give "
                "per_request_ms or per_token_us, or leave it out"
            )

    @property
    def words(self) -> str:
        """What it takes, in words."""
        times = [f"{digits(self.per_request * 1e3)} ms a request"] if self.per_request else []
        if self.per_token:
            times.append(f"{digits(self.per_token * 1e6)} us an output token")
        many = f", {self.processes:,} processes" if self.processes > 1 else ""
        return f"front end of {' and '.join(times)}{many}"

    def seconds(self, output_tokens: Floats | float) -> Floats:
        """Return the work of requests with so many output tokens each."""
        return np.asarray(self.per_request + self.per_token * output_tokens)
