"""Servers with KV memory and the schedulers of engines, transcribed literally: the witness of the
fast kernel.

Plain Python over explicit lists of requests, one event after another; a step of each scheduler can
be held against its description line by line, and every step is checked for feasibility. ``server``
has what all schedulers share, ``simulation`` the clock; the others are one family of schedulers
each.
"""

from penstock.reference.batch_time import Composition
from penstock.reference.engines.server import Batch, Request
from penstock.reference.engines.simulation import ENGINES, History, simulate

__all__ = ["ENGINES", "Batch", "Composition", "History", "Request", "simulate"]
