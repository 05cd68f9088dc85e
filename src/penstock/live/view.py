"""What watching found, as a Page."""

import datetime
from collections.abc import Sequence

from penstock.live.reading import Answer, Estimate, FittedTimes, LimitLoad, Reading, TimeUntil
from penstock.show.page import Fact, Page, Section, Table, Verdict
from penstock.words import counted, digits, gathered, sentence, span_of_time

_UNKNOWN = "?"
_LIMITS = ("token budget", "max batch size", "KV memory")
_AS_SEEN = "of what it was seen to carry"


def watch_page(answer: Answer) -> Page:
    """Show the verdict, the load and its limits, what comes, and how long until what."""
    reading = answer.together
    engines = counted(reading.engines, "engine")
    watched = f"{span_of_time(reading.watched_s)}, {counted(reading.scrapes, 'scrape')}"
    one = reading.engines == 1 and len(answer.engines) == 1
    name = answer.engines[0].engine if one else engines
    return Page(
        title=name,
        heading=f"watched for {watched}, until {_clock(answer.time_s)}",
        verdicts=[_verdict(reading)],
        sections=[
            Section("Load", facts=_load_facts(reading)),
            Section("What comes", facts=_arrival_facts(reading)),
            Section("If it stays so", facts=_future_facts(reading)),
            Section("Engines", tables=[] if one else [_engine_table(answer.engines)]),
            Section("", notes=_notes(answer)),
        ],
    )


def _verdict(reading: Reading) -> Verdict:
    decided = reading.verdict in ("stable", "unstable")
    source = f"by the drift test at alpha {reading.alpha:g}" if decided else ""
    return Verdict(reading.verdict, sentence(reading.reason.rstrip(".")), source)


def _load_facts(reading: Reading) -> list[Fact]:
    """Show the load of each limit, first those that bind: alike as far as they are shown."""
    alike = [load.limit for load in reading.loads if _value(load.load) == _value(reading.load)]
    first = " and the ".join(alike)
    of_limit = f"of the {first}, which {'bind' if len(alike) > 1 else 'binds'} first"
    facts = [
        _fact("Load", reading.load, of_limit if reading.binding in _LIMITS else _AS_SEEN),
        _fact("Margin", reading.margin, "left until no scheduler keeps up"),
    ]
    others = [load for load in reading.loads if load.limit not in alike]
    facts += [_limit_fact(load) for load in others]
    running = _amount(reading.running)
    facts.append(Fact("Running", running, f"requests; {_amount(reading.waiting)} wait"))
    if reading.kv_used is not None:
        facts.append(Fact("KV in use", f"{reading.kv_used:.0%}", "of its blocks"))
    if reading.batch_s is not None:
        facts.append(_milliseconds("Batch", reading.batch_s, "from one to the next"))
    if reading.host_s is not None:
        explanation = "of them that the batch time does not explain"
        facts.append(_milliseconds("Host", reading.host_s, explanation))
    if reading.fitted is not None:
        facts.append(_fitted_fact(reading.fitted, reading.iterations or 0))
    if reading.preempted:
        facts.append(Fact("Preempted", _amount(reading.preempted), "requests wait to go on"))
    if reading.preemptions_per_s:
        facts.append(Fact("Preemptions", digits(reading.preemptions_per_s), "per second"))
    return facts


def _fitted_fact(fitted: FittedTimes, iterations: int) -> Fact:
    """Show batch times that iterations told, and how far they are from those given."""
    words = f"of {fitted.tokens:,.0f} tokens, by the last {fitted.batches:,} of {iterations:,} seen"
    if fitted.given_over is not None:
        words += f"; times given are {fitted.given_over - 1:+.1%} off"
    return _milliseconds("Fitted", fitted.seconds, f"for a batch {words}")


def _limit_fact(load: LimitLoad) -> Fact:
    return _fact(f"  {load.limit}", load.load, "of what this limit carries")


def _arrival_facts(reading: Reading) -> list[Fact]:
    since = f"requests/s, since {_clock(reading.since_s)}"
    facts = [_fact("Arrivals", reading.arrival_rate, since)]
    for change in reading.changes[-3:]:
        before, after = digits(change.before), digits(change.after)
        facts.append(Fact("  changed", after, f"from {before}, at {_clock(change.time_s)}"))
    facts.append(_fact("Prompt", reading.prompt, "tokens"))
    facts.append(_fact("Output", reading.output, "tokens, with those that still run"))
    if reading.cached_share is not None:
        facts.append(Fact("From cache", f"{reading.cached_share:.0%}", "of prompt tokens"))
    return facts


def _future_facts(reading: Reading) -> list[Fact]:
    """Show how long until limits are reached, and what is needed."""
    facts = [Fact("Backlog", _amount(reading.backlog_tokens), "tokens still to be computed")]
    facts += [_until_fact(until) for until in reading.until]
    if reading.drain_s is not None:
        facts.append(_time_fact("Drained", reading.drain_s))
    if reading.replicas is not None:
        facts.append(Fact("Replicas", f"{reading.replicas:,}", _replica_words(reading)))
    if reading.watch_s:
        words = "more at least, until a verdict can be reached"
        facts.append(Fact("Watch for", span_of_time(reading.watch_s), words))
    return facts


def _replica_words(reading: Reading) -> str:
    low, high = reading.replicas_low, reading.replicas_high
    interval = "" if low is None or high is None or low == high else f"({low:,} to {high:,}) "
    return f"{interval}needed; {reading.engines:,} watched"


def _until_fact(until: TimeUntil) -> Fact:
    name = f"{until.limit[0].upper()}{until.limit[1:]}"
    return _time_fact(name, until.seconds)


def _time_fact(name: str, estimate: Estimate) -> Fact:
    """Show after how long something comes about, with both ends where they differ."""
    low, high = _from_now(estimate.low), _from_now(estimate.high)
    between = f"({low} to {high}) from now" if low != high else ""
    return Fact(name, _from_now(estimate.value), between)


def _from_now(seconds: float) -> str:
    return "already" if seconds <= 0 else span_of_time(seconds)


def _milliseconds(name: str, estimate: Estimate, words: str) -> Fact:
    low, high = digits(estimate.low * 1e3), digits(estimate.high * 1e3)
    return Fact(name, digits(estimate.value * 1e3), f"ms ({low} to {high}) {words}")


def _fact(name: str, estimate: Estimate | None, words: str) -> Fact:
    if estimate is None:
        return Fact(name, _UNKNOWN, "not known; the notes say why")
    interval = f"({digits(estimate.low)} to {digits(estimate.high)})"
    return Fact(name, digits(estimate.value), f"{interval} {words}")


def _engine_table(readings: Sequence[Reading]) -> Table:
    columns = ("Engine", "Verdict", "Load", "Requests/s", "Running", "Waiting", "KV", "Backlog")
    rows = [
        (
            reading.engine,
            reading.verdict,
            _value(reading.load),
            _value(reading.arrival_rate),
            _amount(reading.running),
            _amount(reading.waiting),
            _UNKNOWN if reading.kv_used is None else f"{reading.kv_used:.0%}",
            _amount(reading.backlog_tokens),
        )
        for reading in readings
    ]
    return Table(columns, rows, spare=("Backlog", "Running"))


def _value(estimate: Estimate | None) -> str:
    return _UNKNOWN if estimate is None else digits(estimate.value)


def _amount(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:,.0f}"


def _notes(answer: Answer) -> list[str]:
    """Return what happened, each once with the engines that it happened to."""
    said = {reading.engine: reading.notes for reading in answer.engines}
    known = {note for notes in said.values() for note in notes}
    known |= {f"{engine}: {note}" for engine, notes in said.items() for note in notes}
    own = [note for note in answer.together.notes if note not in known]
    return [*dict.fromkeys([*own, *gathered(said)])]


def _clock(time_s: float) -> str:
    """Return a Unix time as the clock here shows it."""
    try:
        return datetime.datetime.fromtimestamp(time_s).astimezone().strftime("%H:%M:%S")
    except (OSError, OverflowError, ValueError):  # a recording with times that are none
        return _UNKNOWN
