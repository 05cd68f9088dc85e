"""Batch times of a shape, moved by what a deployment was measured to do.

A few physical factors say where kernels of this deployment differ from those that the shape was
added up of, and what its host adds.
"""

import dataclasses

import numpy as np

from penstock.inputs.arrays import Floats
from penstock.system.batch_time import Composition
from penstock.system.measured_times import Measured

KNOTS = {"small_batches": 8.0, "medium_batches": 64.0, "large_batches": 2048.0}
"""Token loads at which a factor says how far off the times of such batches are: most decodes wait
for weights, many decodes fill the tiles of a kernel, prompts compute. Between them the factor's
logarithm is a straight line over that of the load; beyond them it stays."""


@dataclasses.dataclass(frozen=True)
class Adjustment:
    """What a deployment does to the batch times of a shape."""

    # Factors on what goes by token load, at the loads of `KNOTS`.
    small_batches: float = 1.0
    medium_batches: float = 1.0
    large_batches: float = 1.0
    # Factors on the attention of decodes, and of prompts, to tokens before.
    decode_kernel: float = 1.0
    prompt_kernel: float = 1.0
    # Seconds of each batch outside the model: composing it, and the gap before it.
    host: float = 0.0
    per_stream: float = 0.0  # seconds of the host for each request in a batch

    def of(self, shape: Composition) -> Composition:
        """Return the batch times of the deployment."""
        linear = shape.linear
        assert isinstance(linear, Measured)
        loads = np.array(linear.tokens, np.float64)
        seconds = linear(loads) * self._by_load(loads) + self.host
        decode, mixed = shape.of_decodes
        return dataclasses.replace(
            shape,
            linear=Measured(loads.tolist(), seconds.tolist()),
            self_attention=shape.self_attention * self.prompt_kernel,
            cross_attention=shape.cross_attention * self.prompt_kernel,
            decode_attention=decode * self.decode_kernel,
            mixed_attention=None if mixed == decode else mixed * self.decode_kernel,
            per_request=shape.per_request + self.per_stream,
        )

    def _by_load(self, loads: Floats) -> Floats:
        """Return the factor of each token load."""
        factors = np.log([getattr(self, name) for name in KNOTS])
        return np.asarray(np.exp(np.interp(np.log(loads), np.log(list(KNOTS.values())), factors)))
