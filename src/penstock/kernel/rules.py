"""Which rule forms the batch of an engine.

A rule is a function of a file ``rules_ENGINE.py``, over the running list and the waiting queue. It
says who is served: slots in prefill (`serve_prefill`) and the number of decoding requests
(``served_decodes``), which are the first of the list unless ``taken`` marks them (``marked``).
Memory is taken as requests are put into the batch, and who has to make room for it leaves
(`preempt`).
"""

from typing import Any

from penstock.kernel.compiled_code import uncounted
from penstock.kernel.records import SGLANG, VLLM, World
from penstock.kernel.rules_sglang import sglang
from penstock.kernel.rules_tensorrt import tensorrt
from penstock.kernel.rules_vllm import vllm


@uncounted(inline=True)
def form_by_rule(world: World, engine: Any, pool: Any) -> None:
    """Form a batch by the pool's rule."""
    if pool.rule == VLLM:
        vllm(world, engine, pool)
    elif pool.rule == SGLANG:
        sglang(world, engine, pool)
    else:
        tensorrt(world, engine, pool)
