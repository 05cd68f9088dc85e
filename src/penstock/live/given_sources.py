"""Who is asked: what the user names on the command line, as rounds."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock.errors import InputError
from penstock.live import rounds
from penstock.live.fetching import address
from penstock.live.rounds import Round
from penstock.live.sources import EnginePage, GatewayPage, Prometheus, Source
from penstock.system.batch_time import BatchTime

_SAVED = frozenset({".txt", ".prom", ".json", ".metrics", ".gz"})
_LONGEST_REQUEST_S = 10.0


@dataclasses.dataclass(frozen=True)
class Where:
    """What the user names."""

    engines: Sequence[str]  # addresses, or files of saved pages
    # A Prometheus that scrapes engines, and which of them.
    prometheus: str | None = None
    match: str | None = None
    arrivals: str | None = None  # a gateway that counts arrivals
    # Where an engine publishes its iterations, or writes them.
    iterations: str | None = None
    log: Path | None = None


def rounds_at(
    where: Where, batch_time: BatchTime | None, every_s: float, *, once: bool
) -> tuple[Iterator[Round], bool]:
    """Return rounds of engines or saved pages, and whether they end; two if ``once``."""
    if where.match is not None and where.prometheus is None:
        raise InputError(
            f"--match {where.match} chooses engines of a Prometheus; add --prometheus URL"
        )
    pages = [Path(place) for place in where.engines if _is_saved(place)]
    if pages:
        if dataclasses.replace(where, engines=()) != Where(()) or len(pages) < len(where.engines):
            raise InputError(
                f"{pages[0]} is a saved page, and cannot be watched beside addresses or logs; "
                "give one or the other"
            )
        return rounds.saved(pages), True
    limit_s = min(every_s, _LONGEST_REQUEST_S)
    sources = [*_engines(where, limit_s), *_iterations(where, batch_time)]
    endless = rounds.asked(sources, every_s, limit_s)
    return (itertools.islice(endless, 2), True) if once else (endless, False)


def _engines(where: Where, limit_s: float) -> list[Source]:
    """Return the engines, and the gateway in front of them."""
    addresses = [address(place) for place in where.engines]
    names = [place.name for place in addresses]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{name} is given twice, and would count twice; give it once")
    sources: list[Source] = [EnginePage(place, limit_s) for place in addresses]
    if where.prometheus is not None:
        api = address(where.prometheus, "/api/v1/query")
        sources.append(Prometheus(api, where.match or "", limit_s))
    if not sources:
        raise InputError(
            "there is nothing to watch; give an engine such as http://localhost:8000, "
            "--prometheus URL or --replay FILE"
        )
    if where.arrivals is not None:
        sources.append(GatewayPage(address(where.arrivals), limit_s))
    return sources


def _iterations(where: Where, batch_time: BatchTime | None) -> list[Source]:
    """Return what tells how long batches take."""
    if where.iterations is None and where.log is None:
        return []
    from penstock.live.forward_passes import Passes
    from penstock.live.growing_log import GrowingLog
    from penstock.live.iterations import IterationSource

    if where.iterations is not None and where.log is not None:
        raise InputError("--iterations and --log each say how long batches took; give one of them")
    if where.iterations is not None:
        return [IterationSource(Passes(where.iterations), batch_time)]
    assert where.log is not None
    return [IterationSource(GrowingLog(where.log), batch_time)]


def _is_saved(place: str) -> bool:
    """Return whether this is the name of a file, even of one that is not there."""
    return "://" not in place and (Path(place).suffix in _SAVED or Path(place).is_file())
