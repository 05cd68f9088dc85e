"""A file for each kind of engine: what its metrics are called."""

from penstock.live.engines.sglang import SGLANG
from penstock.live.engines.vllm import VLLM

KINDS = (VLLM, SGLANG)
"""Engines whose pages are Prometheus' text; another one is one file that maps its names."""
