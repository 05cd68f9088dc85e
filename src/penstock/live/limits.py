"""What each limit of an engine carries, for requests of the lengths that were seen."""

import dataclasses
import math
from collections.abc import Mapping

from penstock.errors import InputError
from penstock.simulation.quick import memory_estimate, saturated
from penstock.system.server import Server
from penstock.theory.limits import bounds
from penstock.theory.load import load
from penstock.workload.lengths import Constant, Length, LogNormal
from penstock.workload.workload import Workload

_MOVED = 0.05  # share by which a mean may move before the limits are worked out anew
_STEP = 0.1  # share by which it is moved to see what follows
_REQUESTS = 20_000  # of a flood: what it says is worked out while one waits
_ROOMY = 0.7  # share of slots and memory below which they are far from full
_SHORT = 1.5  # tokens
_LEAST_SPREAD = 0.02
_LONGEST = 40  # standard deviations above the mean: longer ones do not change it


@dataclasses.dataclass(frozen=True)
class Carried:
    """What one limit carries."""

    rate: float  # requests/s
    # By how many percent it falls where the mean prompt or output is 1% longer.
    by_prompt: float
    by_output: float

    def at(self, prompt_ratio: float, output_ratio: float) -> "Carried":
        """Return it for means that are a little longer."""
        factor = prompt_ratio**-self.by_prompt * output_ratio**-self.by_output
        return dataclasses.replace(self, rate=self.rate * factor)


class Limits:
    """What the limits of a server carry, by mean lengths; worked out anew only where these move."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._at: tuple[float, float] | None = None
        self._carried: dict[str, Carried] = {}

    def carried(
        self, prompt: float, output: float, spreads: tuple[float, float]
    ) -> Mapping[str, Carried]:
        """Return what each limit carries: token budget, max batch size, KV memory."""
        # ``prompt``, ``output``: mean tokens, at least 1; spreads: standard deviation over mean.
        at = self._at
        if at is None or max(abs(prompt / at[0] - 1), abs(output / at[1] - 1)) > _MOVED:
            at = self._at = (prompt, output)
            self._carried = self._work_out(prompt, output, spreads)
        ratios = (prompt / at[0], output / at[1])
        return {name: carried.at(*ratios) for name, carried in self._carried.items()}

    def _work_out(
        self, prompt: float, output: float, spreads: tuple[float, float]
    ) -> dict[str, Carried]:
        """Work it out; how it changes with the means is wanted of what is near to binding."""
        rates = _rates(self.server, prompt, output, spreads, estimated=True)
        estimated = min(rates, key=rates.__getitem__) != "token budget"
        before = rates
        if not estimated:
            before = _rates(self.server, prompt, output, spreads, estimated)
        longer = _rates(self.server, prompt * (1 + _STEP), output, spreads, estimated)
        further = _rates(self.server, prompt, output * (1 + _STEP), spreads, estimated)
        return {
            name: Carried(
                rate, _slope(before[name], longer[name]), _slope(before[name], further[name])
            )
            for name, rate in rates.items()
            if name in before and name in longer and name in further
        }


def _slope(rate: float, further: float) -> float:
    return -math.log(further / rate) / math.log1p(_STEP)


def _rates(
    server: Server, prompt: float, output: float, spreads: tuple[float, float], estimated: bool
) -> dict[str, float]:
    """Return requests/s of full batches, and of memory and slots: estimated, or as bounded."""
    workload = Workload.poisson(1.0, _length(prompt, spreads[0]), _length(output, spreads[1]))
    demand = load(workload, server)
    rates: dict[str, float] = {bound.name: bound.max_rate for bound in bounds(demand)}
    rates["token budget"] = min(rates["token budget"], demand.full_batch_rate)
    if not estimated or _is_ample(server, prompt, output):
        return rates
    try:
        full = (saturated if server.memory is None else memory_estimate)(
            workload, server, requests=_REQUESTS
        )
    except InputError:
        return rates
    if full.limit != "token budget":
        rates[full.limit] = min(rates.get(full.limit, math.inf), full.rate)
    return rates


def _is_ample(server: Server, prompt: float, output: float) -> bool:
    """Return whether slots and memory surely hold what fills the budget: none is estimated."""
    decodes = server.token_budget * output / (prompt + output)
    slots = server.max_batch_size or math.inf
    memory = math.inf if server.memory is None else server.memory.tokens
    return decodes + 1 <= _ROOMY * slots and (decodes + 1) * (prompt + output) <= _ROOMY * memory


def _length(mean: float, spread: float) -> Length:
    """Return lengths of that mean and spread; a little of it, so that means need not be whole."""
    if mean < _SHORT:
        return Constant(1)
    spread = max(spread, _LEAST_SPREAD)
    return LogNormal(mean, spread, max=math.ceil(mean * (1 + _LONGEST * spread)))
