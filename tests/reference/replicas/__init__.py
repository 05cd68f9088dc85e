"""What serves in a pool: servers of the paper, and engines by name.

``replica`` has what all have in common, ``paper`` the servers of the paper, ``engine`` what engines
have in common; the others are one family of schedulers each, which can be held against its
description line by line. Every step is checked for feasibility.
"""

from penstock.errors import InputError
from tests.reference.markov_chain import known
from tests.reference.network import EnginePool
from tests.reference.replicas.engine import EngineReplica
from tests.reference.replicas.prefix_cache import PrefixCachingSeamEngine, PrefixCachingVllmV1
from tests.reference.replicas.radix_cache import PrefixCachingSglang
from tests.reference.replicas.seam import SeamEngine
from tests.reference.replicas.sglang import Sglang
from tests.reference.replicas.tensorrt import TensorRtLlm
from tests.reference.replicas.vidur import (
    VidurFasterTransformer,
    VidurOrca,
    VidurSarathi,
    VidurVllm,
)
from tests.reference.replicas.vllm import VllmV1
from tests.reference.seam_policies import POLICIES

ENGINES: dict[str, type[EngineReplica]] = {
    "vllm": VllmV1,
    "sglang": Sglang,
    "tensorrt-llm": TensorRtLlm,
    "vidur-fastertransformer": VidurFasterTransformer,
    "vidur-orca": VidurOrca,
    "vidur-vllm": VidurVllm,
    "vidur-sarathi": VidurSarathi,
}
"""Schedulers by name; every other name is looked up among the seam policies."""

# Those that cache prefixes, where they do.
CACHING: dict[type[EngineReplica], type[EngineReplica]] = {
    VllmV1: PrefixCachingVllmV1,
    SeamEngine: PrefixCachingSeamEngine,
    Sglang: PrefixCachingSglang,
}


def make_engine(pool: EnginePool, index: int) -> EngineReplica:
    """Return a replica of a pool of engines."""
    kinds = ENGINES | dict.fromkeys(POLICIES, SeamEngine)
    kind: type[EngineReplica] = SeamEngine
    if isinstance(pool.engine, str):
        kind = kinds[known("engine", pool.engine, kinds)]
    if pool.prefix_caching:
        if kind not in CACHING:
            raise InputError(
                f"hash_ids are given, but {pool.engine!r} caches no prefixes here; leave them "
                "out, or take vllm, sglang or a policy"
            )
        kind = CACHING[kind]
    return kind(pool, index)
