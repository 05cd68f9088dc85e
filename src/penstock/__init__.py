"""Is this LLM deployment stable, how much can it carry, and with which scheduler?

By theorem where one applies, by simulation where none does. Start with `read_trace` or `Workload`, describe a
`Server`, then ask: `check`, or one witness at a time: `certify`, `verdict`, `max_rate`, `region`, `simulate`, `audit`.
"""

from penstock.analysis.answer import Answer, check
from penstock.analysis.audit import Audit, audit
from penstock.analysis.latency import SteadyState, estimate, steady_state
from penstock.analysis.max_rate import MaxRate, max_rate
from penstock.analysis.network_answer import NetworkAnswer, check_network
from penstock.analysis.network_orders import compare_orders
from penstock.analysis.network_stability import NetworkStability, network_verdict
from penstock.analysis.recommend import Recommendation, recommend
from penstock.analysis.stability import Stability, verdict
from penstock.analysis.targets import Target
from penstock.calibration.benchmarks import read_benchmarks
from penstock.calibration.calibrate import Calibration, calibrate
from penstock.errors import InputError
from penstock.fitting.batches import MeasuredBatches
from penstock.fitting.fit import Fit, fit
from penstock.fitting.readers import read_batches
from penstock.kernel.signatures import BY_LINE, BY_PHASE, DECODE_FIRST, PREFILL_FIRST, SPLIT
from penstock.network_run import NetworkRun
from penstock.planning.plan import Plan, plan
from penstock.planning.space import Deployment, search_space
from penstock.run import Run
from penstock.simulate import simulate
from penstock.simulate_network import simulate_network
from penstock.sweeping.sweep import sweep
from penstock.system.batch_time import Affine, BatchTime, Composition, Hinge, Measured, PiecewiseConstant
from penstock.system.batch_time_file import BatchTimeFile, read_batch_time, write_batch_time
from penstock.system.engines import ENGINES, engine_defaults
from penstock.system.memory import Memory
from penstock.system.network import Network
from penstock.system.orders import ORDERS, Order, order
from penstock.system.policies import POLICIES, Policy, policy
from penstock.system.pool import Pool
from penstock.system.presets import HARDWARE, hardware
from penstock.system.routing import ROUTERS, Router
from penstock.system.server import Server
from penstock.theory.certificate import Certificate, certify
from penstock.theory.fluid import FluidPath, fluid
from penstock.theory.latency import InstantEstimate, estimate_latency
from penstock.theory.latency_bounds import lower_bounds
from penstock.theory.load import MulticlassLoad, multiclass_load, traffic
from penstock.theory.memory import MemoryEstimate, memory_estimate
from penstock.theory.network import NetworkCertificate, certify_network
from penstock.theory.region import Region, region
from penstock.workload.lengths import Constant, Gamma, Geometric, LogNormal, Mixture, Uniform
from penstock.workload.pairs import Empirical
from penstock.workload.sessions import Sessions, read_sessions
from penstock.workload.stage import Stage
from penstock.workload.workflow import Workflow
from penstock.workload.workload import Workload, read_trace

__all__ = [
    "BY_LINE",
    "BY_PHASE",
    "DECODE_FIRST",
    "ENGINES",
    "HARDWARE",
    "ORDERS",
    "POLICIES",
    "PREFILL_FIRST",
    "ROUTERS",
    "SPLIT",
    "Affine",
    "Answer",
    "Audit",
    "BatchTime",
    "BatchTimeFile",
    "Calibration",
    "Certificate",
    "Composition",
    "Constant",
    "Deployment",
    "Empirical",
    "Fit",
    "FluidPath",
    "Gamma",
    "Geometric",
    "Hinge",
    "InputError",
    "InstantEstimate",
    "LogNormal",
    "MaxRate",
    "Measured",
    "MeasuredBatches",
    "Memory",
    "MemoryEstimate",
    "Mixture",
    "MulticlassLoad",
    "Network",
    "NetworkAnswer",
    "NetworkCertificate",
    "NetworkRun",
    "NetworkStability",
    "Order",
    "PiecewiseConstant",
    "Plan",
    "Policy",
    "Pool",
    "Recommendation",
    "Region",
    "Router",
    "Run",
    "Server",
    "Sessions",
    "Stability",
    "Stage",
    "SteadyState",
    "Target",
    "Uniform",
    "Workflow",
    "Workload",
    "audit",
    "calibrate",
    "certify",
    "certify_network",
    "check",
    "check_network",
    "compare_orders",
    "engine_defaults",
    "estimate",
    "estimate_latency",
    "fit",
    "fluid",
    "hardware",
    "lower_bounds",
    "max_rate",
    "memory_estimate",
    "multiclass_load",
    "network_verdict",
    "order",
    "plan",
    "policy",
    "read_batch_time",
    "read_batches",
    "read_benchmarks",
    "read_sessions",
    "read_trace",
    "recommend",
    "region",
    "search_space",
    "simulate",
    "simulate_network",
    "steady_state",
    "sweep",
    "traffic",
    "verdict",
    "write_batch_time",
]
