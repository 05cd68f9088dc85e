"""A session on one server whose requests hold memory, come by priority, or are scheduled as an
engine does it.
"""

import dataclasses

import numpy as np

from penstock.errors import InputError
from penstock.inputs.arrays import Ints
from penstock.kernel import blocks, counting, records, running
from penstock.kernel.due_epochs import NEVER
from penstock.kernel.recording import MIX_TICKS
from penstock.simulation.new_world import gap_bits, new_world, wider_table
from penstock.simulation.run import Distribution, Fold, Record, Rows, Run
from penstock.simulation.servable import never_served
from penstock.simulation.session_server import RECORDS, Session
from penstock.simulation.session_world import WorldSession
from penstock.simulation.ticks import check_costs, terms_of
from penstock.simulation.window import Window
from penstock.system.server import Server
from penstock.workload.prefixes import Prefixes

_REMEDY = "raise the limit or shorten the requests"
_OR_DROP = ", or drop them with `memory: {too_long: drop}`"

MOST_CACHED_BLOCKS = 2**24
"""Blocks that are told apart: 28 bytes each."""


def open_session(
    server: Server,
    record: Record,
    tick_s: float,
    compress: bool,
    stop: int,
    prefixes: Prefixes | None = None,
) -> Session:
    """Return the session that a server needs."""
    if server.by_phase:
        return Session(server, record, tick_s, compress, stop)
    return EngineSession(server, record, tick_s, compress, stop, prefixes)
