"""Is this LLM deployment stable, how much can it carry, and with which scheduler?

By theorem where one applies, by simulation where none does. Start with `read_trace` or `Workload`, describe a
`Server`, then ask: `certify`, `verdict`, `max_rate`, `region`, `simulate`, `audit`.
"""

from penstock.analysis.audit import Audit, audit
from penstock.analysis.max_rate import MaxRate, max_rate
from penstock.analysis.stability import Stability, verdict
from penstock.errors import InputError
from penstock.kernel.signatures import DECODE_FIRST, PREFILL_FIRST
from penstock.run import Run
from penstock.simulate import simulate
from penstock.system.batch_time import Affine, BatchTime, Hinge, Measured, PiecewiseConstant
from penstock.system.policies import POLICIES, Policy, policy
from penstock.system.presets import HARDWARE, hardware
from penstock.system.server import Server
from penstock.theory.certificate import Certificate, certify
from penstock.theory.region import Region, region
from penstock.workload.lengths import Constant, Gamma, Geometric, LogNormal, Mixture, Uniform
from penstock.workload.pairs import Empirical
from penstock.workload.workload import Workload, read_trace

__all__ = [
    "DECODE_FIRST",
    "HARDWARE",
    "POLICIES",
    "PREFILL_FIRST",
    "Affine",
    "Audit",
    "BatchTime",
    "Certificate",
    "Constant",
    "Empirical",
    "Gamma",
    "Geometric",
    "Hinge",
    "InputError",
    "LogNormal",
    "MaxRate",
    "Measured",
    "Mixture",
    "PiecewiseConstant",
    "Policy",
    "Region",
    "Run",
    "Server",
    "Stability",
    "Uniform",
    "Workload",
    "audit",
    "certify",
    "hardware",
    "max_rate",
    "policy",
    "read_trace",
    "region",
    "simulate",
    "verdict",
]
