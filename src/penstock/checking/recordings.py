"""What to doubt of a recording on a server: a load that is seldom one, a rate that changes."""

import math

from penstock.theory.certificate import Certificate
from penstock.workload.arrivals import Replay
from penstock.workload.recorded_times import overloaded
from penstock.workload.workload import Workload

_SELDOM = (0.001, 10.0)  # loads of a recording


def recording_notes(workload: Workload, certificate: Certificate) -> tuple[list[str], str | None]:
    """Return what to know of a recording on this server before the verdict, and why it has no
    steady state, or None.
    """
    if not isinstance(workload.arrivals, Replay) or not math.isfinite(workload.rate):
        return [], None
    notes, unsteady = [], None
    rho, most = certificate.rho, certificate.max_rate
    if not _SELDOM[0] <= rho <= _SELDOM[1] and not workload.front:
        notes.append(
            f"The load is {rho:.3g}, which a recording seldom has: check the unit of its times, "
            "and that of the batch times."
        )
    if workload.rate >= most:
        return notes, unsteady
    times = workload.arrivals.times_s
    stretch = overloaded(times, most) or overloaded(times)
    if stretch is not None:
        load = stretch.rate / most
        said = (
            f"The rate changes: {stretch.seconds:,.0f} s from {stretch.begin_s:,.0f} s on bring "
            f"{stretch.rate:.3g} requests/s, a load of {load:.3g}, where the mean is "
            f"{workload.rate:.3g}"
        )
        if load > 1:
            unsteady = f"{said}; there is no steady state whose latency could be told"
        notes.append(
            f"{unsteady or said}. `penstock simulate` tells the latency of this recording, and "
            "`penstock plan` with `day: trace` what its busiest hour needs."
        )
    return notes, unsteady
