"""Is this LLM deployment stable, how much can it carry, and with which scheduler?

By theorem where one applies, by simulation where none does. Start with `read_trace` or `Workload`, describe a
`Server`, then ask: `check`, or one witness at a time: `certify`, `verdict`, `max_rate`, `region`, `simulate`, `audit`.
"""

from penstock.analysis.answer import Answer, check
from penstock.analysis.audit import Audit, audit
from penstock.analysis.latency import SteadyState, estimate, steady_state
from penstock.analysis.max_rate import MaxRate, max_rate
from penstock.analysis.recommend import Recommendation, recommend
from penstock.analysis.stability import Stability, verdict
from penstock.analysis.targets import Target
from penstock.errors import InputError
from penstock.kernel.signatures import DECODE_FIRST, PREFILL_FIRST
from penstock.run import Run
from penstock.simulate import simulate
from penstock.system.batch_time import Affine, BatchTime, Hinge, Measured, PiecewiseConstant
from penstock.system.engines import ENGINES, engine_defaults
from penstock.system.memory import Memory
from penstock.system.policies import POLICIES, Policy, policy
from penstock.system.presets import HARDWARE, hardware
from penstock.system.server import Server
from penstock.theory.certificate import Certificate, certify
from penstock.theory.fluid import FluidPath, fluid
from penstock.theory.load import MulticlassLoad, multiclass_load, traffic
from penstock.theory.memory import MemoryEstimate, memory_estimate
from penstock.theory.region import Region, region
from penstock.workload.lengths import Constant, Gamma, Geometric, LogNormal, Mixture, Uniform
from penstock.workload.pairs import Empirical
from penstock.workload.workload import Workload, read_trace

__all__ = [
    "DECODE_FIRST",
    "ENGINES",
    "HARDWARE",
    "POLICIES",
    "PREFILL_FIRST",
    "Affine",
    "Answer",
    "Audit",
    "BatchTime",
    "Certificate",
    "Constant",
    "Empirical",
    "FluidPath",
    "Gamma",
    "Geometric",
    "Hinge",
    "InputError",
    "LogNormal",
    "MaxRate",
    "Measured",
    "Memory",
    "MemoryEstimate",
    "Mixture",
    "MulticlassLoad",
    "PiecewiseConstant",
    "Policy",
    "Recommendation",
    "Region",
    "Run",
    "Server",
    "Stability",
    "SteadyState",
    "Target",
    "Uniform",
    "Workload",
    "audit",
    "certify",
    "check",
    "engine_defaults",
    "estimate",
    "fluid",
    "hardware",
    "max_rate",
    "memory_estimate",
    "multiclass_load",
    "policy",
    "read_trace",
    "recommend",
    "region",
    "simulate",
    "steady_state",
    "traffic",
    "verdict",
]
