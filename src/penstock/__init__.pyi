"""The public names, and where they are: `penstock/__init__.py` loads each when it is first used."""

from .auditing.audit import Audit, audit
from .capacity.max_rate import MaxRate, max_rate
from .capacity.queue_limit import RecommendedLimit, recommend_queue
from .capacity.recommend import recommend
from .capacity.recommendation import Recommendation
from .checking.answer import Answer
from .checking.check import check
from .checking.closed_loop import ClosedAnswer
from .checking.comparison import NetworkComparison, compare_networks, compare_orders
from .checking.enough_requests import estimate, estimate_latency
from .checking.latency import SteadyState, steady_state
from .checking.overload import OverloadAnswer
from .checking.stability import Stability
from .checking.targets import Target
from .checking.verdict import verdict
from .errors import InputError
from .kernel.signatures import BY_LINE, BY_PHASE, DECODE_FIRST, PREFILL_FIRST, SPLIT
from .measuring.calibration.benchmarks import read_benchmarks
from .measuring.calibration.calibrate import Calibration, calibrate
from .measuring.fitting.batches import MeasuredBatches
from .measuring.fitting.fit import Fit, fit
from .measuring.fitting.readers import read_batches
from .planning.deployment import Deployment
from .planning.plan import Plan, plan
from .planning.space import search_space
from .simulation.quick import MemoryEstimate, memory_estimate
from .simulation.run import Run
from .simulation.simulate import simulate
from .sweeping.sweep import sweep
from .system.batch_time import Affine, BatchTime, Composition, Hinge, PiecewiseConstant
from .system.batch_time_file import BatchTimeFile, read_batch_time, write_batch_time
from .system.engines import ENGINES, engine_defaults
from .system.front_end import FrontEnd
from .system.gpu_memory import Gpu
from .system.measured_times import Measured
from .system.memory import Memory
from .system.network import Network
from .system.orders import ORDERS, Order, order
from .system.outages import Outage
from .system.policies import POLICIES, Policy, policy
from .system.pool import Pool
from .system.presets import HARDWARE, hardware
from .system.queue_limit import QueueLimit
from .system.routing import ROUTERS, Router, router
from .system.server import Server
from .theory.certificate import Certificate
from .theory.certify import certify
from .theory.exact_region import ExactRegion, exact_region
from .theory.fluid import FluidPath, fluid
from .theory.latency_bounds import lower_bounds
from .theory.mean_backlog import MeanBacklog
from .theory.region import Region, region
from .workload.lengths import Constant, Empirical, Gamma, Geometric, LogNormal, Mixture, Uniform
from .workload.patience import Patience
from .workload.sessions import Sessions, read_sessions
from .workload.stage import Stage
from .workload.workflow import Workflow
from .workload.workload import ClosedLoop, Workload, read_trace

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
    "ClosedAnswer",
    "ClosedLoop",
    "Composition",
    "Constant",
    "Deployment",
    "Empirical",
    "ExactRegion",
    "Fit",
    "FluidPath",
    "FrontEnd",
    "Gamma",
    "Geometric",
    "Gpu",
    "Hinge",
    "InputError",
    "LogNormal",
    "MaxRate",
    "MeanBacklog",
    "Measured",
    "MeasuredBatches",
    "Memory",
    "MemoryEstimate",
    "Mixture",
    "Network",
    "NetworkComparison",
    "Order",
    "Outage",
    "OverloadAnswer",
    "Patience",
    "PiecewiseConstant",
    "Plan",
    "Policy",
    "Pool",
    "QueueLimit",
    "Recommendation",
    "RecommendedLimit",
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
    "check",
    "compare_networks",
    "compare_orders",
    "engine_defaults",
    "estimate",
    "estimate_latency",
    "exact_region",
    "fit",
    "fluid",
    "hardware",
    "lower_bounds",
    "max_rate",
    "memory_estimate",
    "order",
    "plan",
    "policy",
    "read_batch_time",
    "read_batches",
    "read_benchmarks",
    "read_sessions",
    "read_trace",
    "recommend",
    "recommend_queue",
    "region",
    "router",
    "search_space",
    "simulate",
    "steady_state",
    "sweep",
    "verdict",
    "write_batch_time",
]
