"""What an outage does: the same jobs with it and without, before, while, and after it lasts."""

import dataclasses
from typing import Annotated, TypedDict, cast

import numpy as np

from penstock.inputs.arrays import Ints
from penstock.show.answers import AsData, Meaning
from penstock.show.page import Section, Table
from penstock.simulation.rows import recorded
from penstock.simulation.run import Run
from penstock.system.outages import LOST, Outage
from penstock.words import counted, seconds

LEVELS = {"p50": 0.5, "p99": 0.99}


class OutageData(TypedDict):
    """What JSON has of an outage."""

    pool: Annotated[str, Meaning("Whose replica dies.")]
    replica: Annotated[int, Meaning("Its place there, from 0, kind by kind.")]
    start_s: Annotated[float, Meaning("Seconds from the beginning of the run.")]
    end_s: Annotated[float, Meaning("Seconds from the beginning of the run.")]
    requests: Annotated[
        str,
        Meaning("``sent-again``: those there begin anew; ``lost``: with all that came after them."),
    ]


def _of_outage(of: Outage) -> OutageData:
    """Return what JSON has of an outage."""
    return cast(OutageData, vars(of))


@dataclasses.dataclass(frozen=True)
class OutageWindow(AsData):
    """Requests that came to a pool in a span of time around an outage."""

    outage: Annotated[Outage, Meaning("Which replica dies, and when.", data=_of_outage)]
    hit: Annotated[int, Meaning("Requests that were at its replica when it died.")]
    when: Annotated[
        str,
        Meaning(
            "``before`` it, ``away``: while it lasts, or ``after`` it: each as long as it lasts."
        ),
    ]
    from_s: Annotated[float, Meaning("When the span begins, seconds of the run.")]
    to_s: Annotated[float, Meaning("When it ends, seconds of the run.")]
    requests: Annotated[int, Meaning("That came to the pool.")]
    sent_again: Annotated[int, Meaning("Of these, by this outage or another.")]
    lost: Annotated[int, Meaning("Of these, by this outage or another.")]
    ttft_s: Annotated[
        dict[str, float | None],
        Meaning(
            "From the first arrival at the pool, by statistic; None where nobody has finished."
        ),
    ]
    e2e_s: Annotated[dict[str, float | None], Meaning("The same until the last token.")]
    ttft_without_s: Annotated[
        dict[str, float | None],
        Meaning("As `ttft_s`, in the run of the same jobs without any outage."),
    ]
    e2e_without_s: Annotated[
        dict[str, float | None],
        Meaning("As `e2e_s`, in the run of the same jobs without any outage."),
    ]


def outage_windows(run: Run, undisturbed: Run) -> tuple[OutageWindow, ...]:
    """Return what outages do, by the run that has them and one of the same jobs without."""
    windows = []
    for outage, hit in zip(run.outages, run.hits, strict=True):
        length = outage.end_s - outage.start_s
        spans = {
            "before": (max(outage.start_s - length, 0.0), outage.start_s),
            "away": (outage.start_s, outage.end_s),
            "after": (outage.end_s, outage.end_s + length),
        }
        windows += [_window(run, undisturbed, outage, hit, when, *spans[when]) for when in spans]
    return tuple(windows)


def _window(
    run: Run, undisturbed: Run, outage: Outage, hit: int, when: str, from_s: float, to_s: float
) -> OutageWindow:
    here = _came(run, outage.pool, from_s, to_s)
    as_planned = _came(undisturbed, outage.pool, from_s, to_s)
    rows = recorded(run.rows, "requests")
    assert rows.tries is not None
    assert rows.failed is not None
    return OutageWindow(
        outage=outage,
        hit=hit,
        when=when,
        from_s=from_s,
        to_s=to_s,
        requests=here.size,
        sent_again=int((rows.tries[here] > 0).sum()),
        lost=int((rows.failed[here] < 0).sum()),
        ttft_s=_quantiles(run, "first_token", here),
        e2e_s=_quantiles(run, "finish", here),
        ttft_without_s=_quantiles(undisturbed, "first_token", as_planned),
        e2e_without_s=_quantiles(undisturbed, "finish", as_planned),
    )


def _came(run: Run, pool: str, from_s: float, to_s: float) -> Ints:
    """Return the requests that came to a pool in a span of time."""
    rows = recorded(run.rows, "requests")
    place = tuple(run.network.pools).index(pool)
    at_pool = run.network.stage_pool[rows.jobs.stage] == place
    came = (rows.arrival >= from_s / run.tick_s) & (rows.arrival < to_s / run.tick_s)
    return np.flatnonzero(at_pool & came & (rows.arrival >= 0))


def _quantiles(run: Run, event: str, requests: Ints) -> dict[str, float | None]:
    """Return quantiles of the seconds up to an event, over the requests that have it."""
    rows = recorded(run.rows, "requests")
    tick: Ints = getattr(rows, event)[requests]
    passed = (tick - rows.arrival[requests])[tick >= 0]
    if not passed.size:
        return dict.fromkeys(LEVELS)
    values = np.quantile(passed, list(LEVELS.values())) * run.tick_s
    return {name: float(value) for name, value in zip(LEVELS, values, strict=True)}


_CAPTION = (
    "In seconds, from the first arrival to the last try; requests by when they came to the pool, "
    "in spans as long as the outage; in brackets the same jobs without outages. Hit, in a row: "
    "they were at a replica when it died, in this outage or another."
)


def outages_section(windows: tuple[OutageWindow, ...]) -> list[Section]:
    """Lay out what outages do; nothing where there are none."""
    if not windows:
        return []
    rows: dict[str, list[tuple[str, ...]]] = {}
    for window in windows:
        hit = f"{window.sent_again + window.lost:,}"
        latency = [
            f"{seconds(value)} ({seconds(without[statistic])})"
            for those, without in (
                (window.ttft_s, window.ttft_without_s),
                (window.e2e_s, window.e2e_without_s),
            )
            for statistic, value in those.items()
        ]
        cells = (window.when, f"{window.requests:,}", hit, *latency)
        rows.setdefault(_title(window), []).append(cells)
    columns = ("", "Came", "Hit", "TTFT p50", "TTFT p99", "E2E p50", "E2E p99")
    tables = [Table(columns, those, title=title) for title, those in rows.items()]
    return [Section("Outages", [_CAPTION], tables=tables)]


def _title(window: OutageWindow) -> str:
    outage = window.outage
    fate = "lost" if outage.requests == LOST else "sent again"
    hit = f"hit {counted(window.hit, 'request')}, {fate}"
    return f"{outage.name} from {outage.start_s:g} to {outage.end_s:g} s: {hit}"
