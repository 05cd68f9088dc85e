"""Schedulers of real engines, by name."""

from penstock.system.engines.vllm import ENGINES as ENGINES
from penstock.system.engines.vllm import Defaults as Defaults
from penstock.system.engines.vllm import choosing as choosing
from penstock.system.engines.vllm import engine_defaults as engine_defaults
