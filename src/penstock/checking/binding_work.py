"""What requests ask of the limit of a server that binds, since that is what its queue is made of.

How long a queue remembers goes by the spread of the work (`relaxation_requests`). By tokens it is
too small where KV memory binds: a request of twice the output holds four times as many blocks times
batches.
"""

import numpy as np

from penstock.checking.batch_means import relaxation_requests, variability
from penstock.inputs.arrays import Floats, Ints, Ints32
from penstock.system.server import Server
from penstock.theory.attention import attention_of

_EXPLAINED = 0.9
"""Share of a load that seconds of batches must make up to be what binds."""


def works(server: Server, prompt: Ints | Ints32, output: Ints | Ints32) -> list[Floats]:
    """Return what each request asks of each limit, shape (requests,) each."""
    # First seconds of the best batches, attention included; then, where they are limited, batches
    # in a place, and batches times tokens of KV memory.
    prompt, output = prompt.astype(np.int64), output.astype(np.int64)
    decodes = np.maximum(output - server.outputs_of_prefill, 0).astype(np.float64)
    tokens = prompt + decodes
    least, most = attention_of(np.maximum(prompt, 1), np.maximum(output, 1), server)
    asked = [tokens / server.capacity + (least + most) / 2]
    if server.max_batch_size is not None:
        asked.append(decodes + 1)
    if server.memory is not None:
        asked.append((decodes + 1) * (prompt + decodes / 2))
    return asked


def relaxation_of(load: float, arrival: Ints, asked: list[Floats], seconds: float) -> float:
    """Return the relaxation time of a queue, in arrivals."""
    # ``load`` is that of the limit that binds; ``arrival`` in ticks; ``asked`` of each limit
    # (`works`), in so many seconds times the replicas. Where the seconds of batches make up the
    # load they bind, else whichever limit has the most memory is taken.
    if seconds > 0 and asked[0].sum() >= _EXPLAINED * load * seconds:
        asked = asked[:1]
    return max(relaxation_requests(load, variability(arrival, work)) for work in asked)
