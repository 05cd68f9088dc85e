"""The highest load at which a network is stable: by theorem where theorems leave no gap, else by a
search over floods, on the same jobs at every load.
"""

import dataclasses
from typing import Any

from penstock.capacity.max_rate import Trial, searched, trials_as_dicts
from penstock.capacity.stable_rates import SIMULATION
from penstock.checking.flood_test import NetworkStability, flood_test
from penstock.checking.network_answer import RECORDED
from penstock.errors import InputError
from penstock.simulation.progress import Progress
from penstock.system.network import Network
from penstock.theory.certificate import certify
from penstock.theory.network.certificate import NetworkCertificate


@dataclasses.dataclass(frozen=True, eq=False)
class MaxLoad:
    """How much a network carries under its policies, orders and routers.

    Loads are factors on all arrival rates.

    Attributes
    ----------
    load
        Highest load known to be stable.
    above
        Lowest load above it that is not: unstable, or too close to the limit to tell.
    known
        The theorem that says stable at ``load``, or ``simulation``.
    bound
        Load above which no policy is stable, even if requests find all of their prompts that they
        may.
    certificate
        What theory says of the network as it is.
    trials
        The loads tried, in order.
    """

    load: float
    above: float
    known: str
    bound: float
    certificate: NetworkCertificate = dataclasses.field(repr=False)
    trials: tuple[Trial[NetworkStability], ...] = dataclasses.field(repr=False)

    @property
    def certified_load(self) -> float | None:
        """Load up to which a theorem says stable, None where none does at any."""
        return self.certificate.certified_load

    @property
    def disagreement(self) -> str | None:
        """What to doubt where a theorem certifies a load that the test found unstable, or None."""
        unstable = [trial.rate for trial in self.trials if trial.stability.verdict == "unstable"]
        certified = self.certified_load
        if certified is None or not unstable or min(unstable) >= certified:
            return None
        return (
            f"{self.certificate.theorem} says stable up to {certified:,.4g} times this load, but "
            f"the test found {min(unstable):,.4g} unstable; try another seed and a finer precision"
        )

    @property
    def share(self) -> float:
        """The load as a share of the bound."""
        return self.load / self.bound

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "load": self.load,
            "above": self.above,
            "known": self.known,
            "bound": self.bound,
            "share": self.share,
            "certified_load": self.certified_load,
            "disagreement": self.disagreement,
            "trials": trials_as_dicts(self.trials, "load"),
        }


def max_load(
    network: Network, precision: float, seed: int, progress: Progress | None = None
) -> MaxLoad:
    """Find the highest stable load of a network: see `penstock.max_rate`."""
    certificate = certify(network)
    bound = high = certificate.max_load
    low = certificate.certified_load or 0.0
    # above the load of a virtual station this order of the stages is unstable, though others be not
    if certificate.virtual_station is not None:
        high = min(high, max(certificate.virtual_station.max_load, low))
    load = low
    trials: tuple[Trial[NetworkStability], ...] = ()
    if low * (1 + precision) < high:
        load, high, trials = _tested(network, low, high, precision, seed, progress)
    known = SIMULATION
    if load == low:
        known = certify(network.with_load(low / 2)).theorem or SIMULATION
    return MaxLoad(load, high, known, bound, certificate, trials)


def _tested(
    network: Network,
    low: float,
    high: float,
    precision: float,
    seed: int,
    progress: Progress | None,
) -> tuple[float, float, tuple[Trial[NetworkStability], ...]]:
    """Search between a load that is stable by theorem, if there is one, and the least that is
    not.
    """
    if network.ends:
        raise InputError(RECORDED)

    def judge(load: float, part: Progress) -> NetworkStability:
        return flood_test(network.with_load(load), precision / 2, seed, None, part, tries=1)

    low, high, trials = searched(judge, low, high, precision, progress)
    if not low:
        raise InputError(
            f"the network is not stable at {high:g} times this load, far below what its pools "
            "could carry; mend its policies or orders"
        )
    return low, high, trials
