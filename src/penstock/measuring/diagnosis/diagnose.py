"""The verdict on each load of benchmark results, and the sentences that say why."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from penstock.checking.batch_means import LEAST_REQUESTS, rounded_up
from penstock.measuring.calibration.benchmarks import read_with_refused
from penstock.measuring.diagnosis.load import Load, grows
from penstock.show.answers import Meaning, Shown, computed
from penstock.show.page import BAD
from penstock.words import counted, digits, duration, share, whole

VERDICTS = (
    "refused", "filling", "held back", "too short", "unknown", "saturated", "closed", "steady",
)  # fmt: skip
"""The worst first."""

SHORT, ENOUGH = 5, 10
"""Calls, one after the other, that a run must last to show its steady state, and should."""
FEWEST = 30
"""Requests below which not even a mean is told."""

_WAITS, _KEPT_WAITING = 0.2, 0.12  # share of a call before its first token; of a closed loop
_QUEUED = 20  # times between tokens before the first one, more than a prompt takes by itself
_PROVED, _CHANCE = 2.5, 1  # standard deviations of a Poisson count that a backlog is beyond
_ROSE = 1.4  # last quarter over second, of a wait that grows: 7/3 where it does from nothing
_AT_LIMIT, _LESS = 0.7, 0.9  # shares of its limit and of its rate, of a client that is held back
_MORE, _SAME = 1.3, 1.05  # times as many under way, but no more than so many times the rate


@dataclasses.dataclass(frozen=True, eq=False)
class Diagnosed:
    """What is said of a load."""

    run: Annotated[str, Meaning("The file that it was read from.")]
    load: Annotated[str, Meaning("Its rate, or its clients; empty if it was refused.")]
    verdict: Annotated[
        str,
        Meaning(
            "``refused``, ``filling``, ``held back``, ``too short``, ``unknown``, ``saturated``, "
            "``closed`` or ``steady``.",
            name="Verdict",
        ),
    ]
    said: Annotated[tuple[str, ...], Meaning("The reason, then what else to know of it.")]
    hides: Annotated[str, Meaning("What it does not show.")]
    shows: Annotated[str, Meaning("What it shows; empty: nothing.")] = ""
    shape: Annotated[str, Meaning("Its prompts and outputs.", name="Shape", spare=1)] = ""
    requests: Annotated[int | None, Meaning("Sent.", name="Requests", format=whole)] = None
    enough: Annotated[
        int | None,
        Meaning("How many would have been; null: these are.", name="Enough", format=whole),
    ] = None
    sent_per_s: Annotated[float | None, Meaning("Requests/s.", name="Sent/s", spare=4)] = None
    carried_per_s: Annotated[float | None, Meaning("Requests/s.", name="Carried/s")] = None
    interval: Annotated[tuple[float, float] | None, Meaning("Of what is carried.")] = None
    under_way: Annotated[
        float | None, Meaning("Requests, by Little's law.", name="Under\nway", spare=2)
    ] = None
    wait_share: Annotated[
        float | None,
        Meaning("Share of a call before its first token.", name="Wait", format=share),
    ] = None
    rounds: Annotated[
        float | None,
        Meaning("Calls, one after the other, that the run lasted.", name="Calls", spare=3),
    ] = None

    @computed()
    def worth(self) -> bool:
        """Whether its numbers are what they seem to be."""
        return self.verdict not in BAD

    @computed(name="Load", key=None)
    def name(self) -> str:
        """What a table calls it."""
        return self.load or self.run


@dataclasses.dataclass(frozen=True)
class Diagnosis(Shown):
    """What benchmark results are worth."""

    rows: Annotated[Sequence[Diagnosed], Meaning("What is said of each load.")]
    names: str = ""

    @computed()
    def worth(self) -> bool:
        """Whether all of them are worth their numbers."""
        return all(row.worth for row in self.rows)


def diagnose(
    paths: Sequence[str | Path] | str | Path,
    format: str | None = None,
    *,
    max_gib: float | None = None,
    names: str = "",
) -> Diagnosis:
    """Say what benchmark results are worth; the parameters are those of `read_benchmarks`."""
    table, refused = read_with_refused(paths, format, max_gib)
    loads = [Load(row) for row in table.iter_rows(named=True)]
    flat = set(_flat(loads))
    rows = [_diagnosed(load, number in flat) for number, load in enumerate(loads)]
    for one in refused:
        shows = (one.reason.rstrip("."),)
        rows.append(Diagnosed(one.run, "", "refused", shows, "anything until mended"))
    return Diagnosis(rows, names)


def _flat(loads: Sequence[Load]) -> Iterator[int]:
    """Yield closed loops that get no more than another load of fewer requests under way."""
    known = [
        (load.row["run"], load.row["shape"], load.under_way, load.left_per_s, number)
        for number, load in enumerate(loads)
        if load.under_way and not _short(load)
    ]
    for one, other in itertools.permutations(known, 2):
        if one[:2] == other[:2] and other[2] >= _MORE * one[2] and other[3] <= _SAME * one[3]:
            yield from (number for number in (one[-1], other[-1]) if loads[number].closed)


def _diagnosed(load: Load, flat: bool) -> Diagnosed:
    verdict = _verdict(load, flat)
    carried = load.carried if verdict != "steady" else None
    rate = load.left_per_s if carried is None else carried[0]
    if verdict == "steady":
        rate = min(load.sent_per_s, load.left_per_s) if load.row["incomplete"] else load.sent_per_s
    shows, hides = _shown(load, verdict, rate)
    return Diagnosed(
        load.row["run"],
        load.row["load"],
        verdict,
        (_reason(load, verdict, flat), *_besides(load, verdict)),
        hides,
        shows,
        load.row["shape"],
        load.sent,
        _enough(load, verdict),
        None if load.closed else load.sent_per_s,
        rate if shows else None,
        carried[1:] if carried is not None and shows else None,
        load.under_way or None,
        load.wait_share or None,
        load.rounds if load.rounds < math.inf else None,
    )


def _verdict(load: Load, flat: bool) -> str:
    short = _short(load)
    if load.closed and short:
        return "too short"
    if load.closed:
        return "saturated" if flat or _kept_waiting(load) else "closed"
    if load.under_way >= _AT_LIMIT * (load.clients or math.inf) and (
        load.sent_per_s < _LESS * load.row["rate"]
    ):
        return "too short" if short else "held back"
    backlog = _backlog(load)
    if backlog > _PROVED and load.completed >= FEWEST:
        return "filling"
    if short:
        return "too short"
    return "unknown" if backlog > _CHANCE and load.times is None else "steady"


def _short(load: Load) -> bool:
    few = load.completed < FEWEST
    if load.closed and _kept_waiting(load):  # as long as it waits a request warms nothing up
        return bool(few or load.row["duration_s"] < SHORT * (load.e2e - load.ttft))
    return bool(few or load.rounds < SHORT)


def _backlog(load: Load) -> float:
    """Return how far the backlog is beyond chance, in standard deviations of a Poisson count."""
    # A wait that grows from nothing is twice its mean at the end, and so is the backlog.
    proof = 2 * load.waiting / math.sqrt(load.sent)
    waits = load.wait_share >= _WAITS
    if load.times is None or load.times[0].size < FEWEST:
        return proof if waits and load.wait_in_tokens >= _QUEUED else 0.0
    _, ttft, e2e = load.times
    if waits and grows(ttft) >= _ROSE:
        return proof
    # batches that grow delay every token, before anybody waits for the first
    rose = load.rounds >= SHORT and grows(e2e - ttft) >= _ROSE
    return 2 * load.sent_per_s * load.e2e / math.sqrt(load.sent) if rose else 0.0


def _kept_waiting(load: Load) -> bool:
    queued = load.wait_share >= _KEPT_WAITING and load.wait_in_tokens >= _QUEUED
    return queued and load.left_per_s * load.ttft >= 2 and not load.lockstep


def _reason(load: Load, verdict: str, flat: bool) -> str:
    sent, clients = digits(load.sent_per_s), counted(load.clients, "client")
    wait = f"the first token takes {duration(load.ttft)}, {load.wait_share:.0%} of a call"
    if verdict == "filling":
        drain = load.row["duration_s"] - load.sending_s
        after = f", and {duration(drain)} went by after the last was sent" if drain > 0 else ""
        grew = wait if load.wait_share >= _WAITS else f"a call takes {duration(load.e2e)}"
        return f"{sent} requests/s came and fewer left, so the queue grew all along: {grew}{after}"
    if verdict == "held back":
        return (
            f"the client had {digits(load.under_way)} of its {load.clients:,} requests under way "
            f"and sent {sent} of {digits(load.row['rate'])} requests/s: a closed loop in effect. "
            "Raise its limit to see the rate"
        )
    if verdict == "too short":
        call = f" in {duration(load.sending_s)}, while a call takes {duration(load.e2e)}"
        many = f"{counted(load.completed, 'request')}{f' of {clients}' if load.closed else call}"
        return f"{many}: most of it is warm-up or chance"
    if verdict == "unknown":
        return f"{wait}: near its capacity or beyond it, which the summary does not tell"
    if verdict == "saturated":
        more = "more clients get no more" if flat else wait
        return f"{clients} are more than the server serves at once: {more}"
    if verdict == "closed":
        each = "each of whom sends" if load.clients > 1 else "who sends"
        return f"a closed loop of {clients}, {each} when the last call has ended"
    calls = f" in the time of {digits(load.rounds)} calls" if load.rounds < math.inf else ""
    return f"{sent} requests/s came{calls}, and no queue grew"


def _besides(load: Load, verdict: str) -> Iterator[str]:
    """Say how well its statistics are told, and what its tool counts oddly."""
    if load.closed and load.lockstep:
        yield (
            "the clients send in step: calls take equally long, first tokens do not, for prompts "
            "come all at once"
        )
    if load.row["load"].startswith("ramp@"):
        yield "its rate rises all along, so its latency is of no one rate"
    if verdict not in ("filling", "too short"):
        if load.completed < LEAST_REQUESTS:
            few = f"{load.completed:,} requests are too few for intervals"
            yield f"{few}, which need {LEAST_REQUESTS}"
        for name, of in load.estimates.items():
            parts = []
            for statistic, estimate in of.items():
                ends = [duration(end) for end in (estimate.low, estimate.high) if end is not None]
                within = f" ({' to '.join(ends)})" if len(ends) == 2 else ""
                parts.append(f"{statistic} {duration(estimate.value)}{within}")
            yield f"{name}: {', '.join(parts)}"
        if enough := load.enough_for_p99:
            beyond = counted(math.ceil(load.completed / 100), "request")
            rests = "" if load.estimates else f", which rests on {beyond}"
            yield f"nothing bounds the p99{rests}; {enough:,} requests would"
    if load.row["note"]:
        yield load.row["note"]


def _enough(load: Load, verdict: str) -> int | None:
    """Return how many requests would have been enough for what this load can show."""
    if verdict in ("filling", "held back"):
        return None  # more of them show no more
    calls = load.clients if load.closed else load.sent_per_s * load.e2e
    p99 = load.enough_for_p99 if verdict == "steady" else 0
    least = rounded_up(max(ENOUGH * calls, LEAST_REQUESTS, p99))
    return least if load.completed < least else None


def _shown(load: Load, verdict: str, rate: float) -> tuple[str, str]:
    """Say what a load shows, and what it does not."""
    carries = f"carries {'' if load.times else 'at least '}{digits(rate)} requests/s"
    gets = f"{digits(rate)} requests/s are what {counted(load.clients, 'client')} can get"
    looped = gets, "latency at a rate, and the most that is carried"
    shown = {
        "filling": (carries, "latency, which is as high as the run is long"),
        "held back": looped,
        "closed": looped,
        "saturated": (carries, "latency at a rate, for clients wait for each other"),
        "steady": (f"carries at least {digits(rate)} requests/s", "how much more is carried"),
    }
    return shown.get(verdict, ("", "latency, and what is carried"))
