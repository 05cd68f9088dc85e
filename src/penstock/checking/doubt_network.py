"""What inexact batch times do to the answer for a network: see `penstock.checking.doubt`."""

import functools

from penstock.checking.doubt import Doubt, End, Interval, Reach, beyond, in_words
from penstock.checking.flood_test import flood_test
from penstock.checking.verdict import RESOLUTION_OF_NETWORKS
from penstock.simulation.progress import silent
from penstock.system.network import Network, own_seed
from penstock.theory.certificate import Certificate, certify
from penstock.theory.ends import Ends, network_ends

_UNIT = "times this load"


def doubt_of_network(
    network: Network, seed: int | None = None, resolution: float | None = None
) -> Doubt | None:
    """Return what is not known of a network's batch times; None: they are taken as exact."""
    known = _ends(network)
    if known is None:
        return None
    ends, slow_certificate, fast_certificate = known
    slow = _end_of_network(ends.slow, slow_certificate, seed, resolution)
    fast = _end_of_network(ends.fast, fast_certificate, seed, resolution)
    reach = _reach(*known)
    return Doubt(
        max_rate=reach.max_rate,
        load=reach.load,
        latency={},
        slow=slow,
        fast=fast,
        origin=ends.origin,
        calibrated=ends.calibrated,
        unit=_UNIT,
        cached=reach.cached,
    )


def reach_of_network(network: Network) -> Reach | None:
    """Return between which loads a network lies; None where all batch times are taken as exact."""
    known = _ends(network)
    return None if known is None else _reach(*known)


@functools.lru_cache(maxsize=4)  # the first lines of an answer say it, then the doubt, then a page
def _ends(
    network: Network,
) -> tuple[Ends[Network], Certificate, Certificate] | None:
    """Return the slow and the fast end of a network, and what theory says of both."""
    ends = network_ends(network)
    return None if ends is None else (ends, certify(ends.slow), certify(ends.fast))


def _reach(ends: Ends[Network], slow: Certificate, fast: Certificate) -> Reach:
    most = Interval(slow.max_load, fast.max_load)
    load = Interval(1 / most.high, 1 / most.low)
    cached = any(pool.rho_without_cache is not None for pool in slow.pools)
    return Reach(load, most, in_words(load, most, _UNIT, ends.origin, cached), cached)


def beyond_rows_of_network(network: Network) -> list[str]:
    """Say what is asked of batch times that no row has seen, in a sentence for each pool."""
    model = network.model()
    notes = []
    for place, (name, pool) in enumerate(network.pools.items()):
        here = (model.pool == place) & (model.visits > 0)
        said = [
            what
            for prompt, decode in zip(model.prefill[here], model.decode[here], strict=True)
            for server, _ in pool.servers
            for what in beyond(server, float(prompt), float(decode))
        ]
        if said:
            notes.append(
                f"Batch times of pool {name} are extrapolated: {'; '.join(dict.fromkeys(said))}."
            )
    return notes


def _end_of_network(
    network: Network,
    certificate: Certificate,
    seed: int | None,
    resolution: float | None,
) -> End:
    """Return what a theorem says, or else the test; nothing where all jobs are recorded."""
    if certificate.verdict != "unknown" or network.ends:
        return End(certificate.verdict, certificate.theorem)
    seed = own_seed(network.workflows[0]) if seed is None else seed
    # One flood: an end so near its limit that it stays level is undecided, and soon known to be.
    test = flood_test(network, resolution or RESOLUTION_OF_NETWORKS, seed, None, silent, tries=1)
    return End(test.verdict, None)
