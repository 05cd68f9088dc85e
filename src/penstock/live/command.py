"""The command ``penstock watch``."""

import contextlib
import dataclasses
import json
import math
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock import checks
from penstock.errors import InputError
from penstock.show.options import EXIT_ANSWER_IS_NO, Strict

if TYPE_CHECKING:
    from penstock.live.exporter import Exporter
    from penstock.live.pages import Note
    from penstock.live.reading import Answer
    from penstock.live.recording import Recorder
    from penstock.live.rounds import Round
    from penstock.live.screen import Screen
    from penstock.live.settings import Settings
    from penstock.live.watching import Watch

EXIT_UNDECIDED = 3
"""With ``--strict``: neither known to be stable nor to be unstable."""

_DURATION = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(ms|s|min|m|h)?\s*")
_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, None: 1.0}

Places = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="URL...",
        help="Engines: host:8000 or a URL, with /metrics or without. Or saved pages of one engine.",
    ),
]
PrometheusUrl = Annotated[
    str | None,
    typer.Option("--prometheus", metavar="URL", help="Read what this Prometheus has scraped."),
]
Match = Annotated[
    str | None,
    typer.Option("--match", help="With --prometheus: which engines, such as 'namespace=\"prod\"'."),
]
Arrivals = Annotated[
    str | None,
    typer.Option(
        "--arrivals",
        metavar="URL[#METRIC]",
        help="A gateway that counts arrivals: llm-d, Dynamo, TGI, or any counter by its name.",
    ),
]
ServerFile = Annotated[
    Path | None,
    typer.Option("--server", metavar="FILE", help="What each engine is: a scenario's server."),
]
BatchTimeFile = Annotated[
    Path | None, typer.Option("--batch-time", metavar="FILE", help="Batch times of each engine.")
]
Hardware = Annotated[
    str | None, typer.Option("--hardware", help="Measured batch times: `penstock hardware`.")
]
Budget = Annotated[
    int | None, typer.Option("--token-budget", help="Of each engine (max_num_batched_tokens).")
]
BatchSize = Annotated[
    int | None, typer.Option("--max-batch-size", help="Of each engine (max_num_seqs).")
]
KVTokens = Annotated[
    int | None, typer.Option("--kv-tokens", help="Of each engine; default: as it says itself.")
]
Iterations = Annotated[
    str | None,
    typer.Option(
        "--iterations",
        metavar="tcp://HOST:PORT",
        help="Batch times from an engine's forward-pass metrics, which fit better and better.",
    ),
]
Log = Annotated[
    Path | None,
    typer.Option("--log", metavar="FILE", help="The same, from a log of vLLM that grows."),
]
Every = Annotated[str, typer.Option("--every", help="Time between scrapes, such as 5s.")]
QueueLimit = Annotated[
    float | None, typer.Option("--queue-limit", help="Requests that wait: how long until so many?")
]
Ttft = Annotated[
    str | None, typer.Option("--ttft", help="Time to first token, such as 2s: how long until it?")
]
TargetLoad = Annotated[
    float, typer.Option("--target-load", help="Load that the replicas needed are for.")
]
Alpha = Annotated[
    float, typer.Option("--alpha", help="Probability of a wrong verdict, over all looks.")
]
Export = Annotated[
    str | None,
    typer.Option(
        "--export",
        metavar="[ADDRESS:]PORT",
        help="Be scraped by Prometheus; on loopback unless an address is given.",
    ),
]
Record = Annotated[
    Path | None, typer.Option("--record", metavar="FILE", help="Keep all that is read.")
]
Replay = Annotated[
    Path | None, typer.Option("--replay", metavar="FILE", help="Read a recording, and no engine.")
]
JsonLines = Annotated[
    bool, typer.Option("--json", help="Print a line of JSON each time, and nothing else.")
]
Once = Annotated[
    bool, typer.Option("--once", help="Scrape twice, answer, and end. Of a recording: its end.")
]


def watch(
    places: Places = None,
    prometheus: PrometheusUrl = None,
    match: Match = None,
    arrivals: Arrivals = None,
    server: ServerFile = None,
    batch_time: BatchTimeFile = None,
    hardware: Hardware = None,
    token_budget: Budget = None,
    max_batch_size: BatchSize = None,
    kv_tokens: KVTokens = None,
    iterations: Iterations = None,
    log: Log = None,
    every: Every = "5s",
    queue_limit: QueueLimit = None,
    ttft: Ttft = None,
    target_load: TargetLoad = 0.8,
    alpha: Alpha = 0.05,
    export: Export = None,
    record: Record = None,
    replay: Replay = None,
    as_json: JsonLines = False,
    once: Once = False,
    strict: Strict = False,
) -> None:
    """Watch engines that run: is the load carried, how much is left, until when, and with how many
    replicas.

    It reads their metrics and sends nothing. With --strict the exit status is 1 if they are
    unstable, and 3 if that is not known yet.
    """
    from penstock.live.engine_limits import described_engine
    from penstock.live.places import Where, rounds_at
    from penstock.live.watching import Watch

    every_s = duration("--every", every)
    settings = _settings(alpha, queue_limit, ttft, target_load)
    limits = {"token_budget": token_budget, "max_batch_size": max_batch_size}
    limits["kv_tokens"] = kv_tokens
    is_told = iterations is not None or log is not None
    engine = described_engine(server, batch_time, hardware, limits, is_told=is_told)
    live: dict[str, Any] = {
        "--prometheus": prometheus,
        "--arrivals": arrivals,
        "URL": places or None,
    }
    live |= {"--iterations": iterations, "--log": log, "--match": match}
    _refuse_beside_replay(replay, {**live, "--record": record, "--export": export})
    _refuse_once(once, export)
    ends = replay is not None
    if replay is not None:
        from penstock.live.recording import replayed

        rounds = replayed(replay)
    else:
        given = None if engine is None else engine.batch_time
        where = Where(places or [], prometheus, match, arrivals, iterations, log)
        rounds, ends = rounds_at(where, given, every_s, once=once)
    lines = as_json and not once and not (ends and replay is None)
    following = _Following(Watch(engine, settings, limits))
    with contextlib.ExitStack() as stack:
        following.open(stack, record, export, every_s, lines=lines, screen=not ends and not once)
        with contextlib.suppress(KeyboardInterrupt):
            for taken in rounds:
                following.take(taken)
    following.end(as_json=as_json, lines=lines)
    if strict:
        _leave(following.answer)


class _Following:
    """Rounds that come, and all that is done with them."""

    def __init__(self, watch: "Watch") -> None:
        self._watch = watch
        self.answer: Answer | None = None
        self._engines: set[str] = set()
        self._silent: dict[Note, int] = {}  # of those that were never read, and how often
        self._recorder: Recorder | None = None
        self._exporter: Exporter | None = None
        self._screen: Screen | None = None
        self._lines = False
        self._pages = False

    def open(
        self,
        stack: contextlib.ExitStack,
        record: Path | None,
        export: str | None,
        every_s: float,
        *,
        lines: bool,
        screen: bool,
    ) -> None:
        """Open what answers go to; the stack closes it."""
        self._lines = lines
        if record is not None:
            from penstock.live.recording import Recorder

            self._recorder = stack.enter_context(Recorder(record, every_s))
        if export is not None:
            from penstock.live.exporter import Exporter

            self._exporter = Exporter(export, every_s)
            stack.callback(self._exporter.close)
        self._pages = screen and not lines
        if self._pages and sys.stdout.isatty():
            from penstock.live.screen import Screen

            self._screen = stack.enter_context(Screen())

    def take(self, taken: "Round") -> None:
        """Take a round, and say what follows."""
        if self._recorder is not None:
            self._recorder.write(taken)
        if taken.seen is not None:
            self._watch.refine(taken.seen)
        for scrape in taken.scrapes:
            self._engines.add(scrape.engine)
            self._watch.take(scrape)
        for note in taken.notes:
            self._note(note)
        if not self._engines:
            self._wait()
            return
        answer = self._watch.answer()
        notes = (*answer.together.notes, *self._said())
        together = dataclasses.replace(answer.together, notes=notes)
        self.answer = dataclasses.replace(answer, together=together)
        if self._exporter is not None:
            self._exporter.show(self.answer)
        self._say()

    def _note(self, note: "Note") -> None:
        """Keep a note on the engines of an address, or on one that was never read: that one is no
        engine yet, and the figures are of the others.
        """
        name = note.engine
        engines = [own for own in self._engines if own == name or own.startswith(f"{name} ")]
        for engine in engines:
            self._watch.note(engine, note.text)
        if not engines:
            self._silent[note] = self._silent.get(note, 0) + 1

    def _said(self) -> list[str]:
        """Return what is said of those that were never read."""
        return [
            f"{note.engine}: {note.text}" + (f" ({times:,} times)" if times > 1 else "")
            for note, times in self._silent.items()
        ]

    def end(self, *, as_json: bool, lines: bool) -> None:
        """Say the last answer, where it was not said.

        Raises
        ------
        InputError
            If there is none.
        """
        if self.answer is None:
            said = "; ".join(self._said())
            raise InputError(
                f"no engine could be read, so there is nothing to say ({said or 'nothing came'}); "
                "check the addresses, and that the engine shows its metrics"
            )
        if as_json and not lines:
            _print_line(self.answer)
        elif not as_json and (self._screen is not None or not self._pages):
            _print_page(self.answer)

    def _say(self) -> None:
        assert self.answer is not None
        if self._lines:
            _print_line(self.answer)
        elif self._screen is not None:
            from penstock.live.view import watch_page

            self._screen.show(watch_page(self.answer))
        elif self._pages:
            _print_page(self.answer)

    def _wait(self) -> None:
        """Say why there is nothing yet."""
        said = self._said()
        if self._screen is not None:
            from penstock.show.page import Page

            self._screen.show(Page("No engine could be read yet", "", notes=said))
        elif self._lines or self._pages:
            for line in said:
                print(f"penstock: {line}", file=sys.stderr, flush=True)


def _print_page(answer: "Answer") -> None:
    from penstock.live.view import watch_page
    from penstock.show.terminal import print_page

    print_page(watch_page(answer))


def _print_line(answer: "Answer") -> None:
    """Print an answer as one line of JSON; null stands for what is infinite."""
    print(json.dumps(finite(answer.as_dict()), allow_nan=False), flush=True)


def finite(value: Any) -> Any:
    """Return plain data with null in place of what is infinite or no number, which JSON has not."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _leave(answer: "Answer | None") -> None:
    """Exit with the status of a verdict that is not ``stable``."""
    assert answer is not None
    verdict = answer.together.verdict
    if verdict != "stable":
        raise typer.Exit(EXIT_ANSWER_IS_NO if verdict == "unstable" else EXIT_UNDECIDED)


def _settings(
    alpha: float, queue_limit: float | None, ttft: str | None, target_load: float
) -> "Settings":
    from penstock.live.settings import Settings

    checks.number("--alpha", alpha, 1e-6, 0.5, "", "it is the probability of a wrong verdict")
    checks.number("--target-load", target_load, 0.01, 0.99, "", "at 1 queues grow without end")
    if queue_limit is not None:
        checks.number("--queue-limit", queue_limit, 1, 1e9, "requests", "it is a queue's length")
    ttft_s = None if ttft is None else duration("--ttft", ttft)
    return Settings(alpha, queue_limit, ttft_s, target_load)


def duration(option: str, text: str) -> float:
    """Return seconds from a text such as ``5s``, ``500ms``, ``2min`` or ``5``."""
    match = _DURATION.fullmatch(text)
    seconds = float(match[1]) * _UNITS[match[2]] if match else math.nan
    if not 0.1 <= seconds <= 86_400:
        raise InputError(
            f"{option} is {checks.shown(text)}, but must be a time from 100ms to 24h, such as 5s"
        )
    return seconds


def _refuse_beside_replay(replay: Path | None, others: dict[str, Any]) -> None:
    beside = [option for option, value in others.items() if value is not None]
    if replay is not None and beside:
        raise InputError(
            f"--replay reads a recording and no engine, so {beside[0]} would not be used; leave "
            "one out"
        )


def _refuse_once(once: bool, export: str | None) -> None:
    if once and export is not None:
        raise InputError("--once ends before anything is scraped from --export; leave one out")
