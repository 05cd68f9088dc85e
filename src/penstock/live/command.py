"""The command ``penstock watch``."""

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from penstock import checks
from penstock.errors import InputError
from penstock.show import progress
from penstock.show.commands import command
from penstock.show.options import EXIT_ANSWER_IS_NO, duration

if TYPE_CHECKING:
    from penstock.live.exporter import Exporter
    from penstock.live.reading import Answer
    from penstock.live.recording import Recorder
    from penstock.live.rounds import Round
    from penstock.live.screen import Screen
    from penstock.live.settings import Settings
    from penstock.live.watching import Watch

WATCHING = ("prometheus_client", "urllib3", "zmq", "msgspec")
"""What the extra `live` brings."""

EXIT_UNDECIDED = 3
"""With ``--strict``: neither known to be stable nor to be unstable."""

_Shown = Literal["lines", "pages", "end"]


@command()
def watch(
    places: list[str] | None = None,
    *,
    prometheus: str | None = None,
    match: str | None = None,
    arrivals: str | None = None,
    server: Path | None = None,
    batch_time: Path | None = None,
    hardware: str | None = None,
    token_budget: int | None = None,
    max_batch_size: int | None = None,
    kv_tokens: int | None = None,
    iterations: str | None = None,
    log: Path | None = None,
    every: str = "5s",
    queue_limit: float | None = None,
    ttft: str | None = None,
    target_load: float = 0.8,
    alpha: float = 0.05,
    export: str | None = None,
    record: Path | None = None,
    replay: Path | None = None,
    as_json: bool = False,
    once: bool = False,
    strict: bool = False,
) -> None:
    """Watch engines that run: is the load carried, until when.

    Say how much is left, and how many replicas are needed.

    It reads their metrics and sends nothing.

    Parameters
    ----------
    places : URL...
        Engines: host:8000 or a URL, with /metrics or without. Or saved pages of one engine.
    prometheus : URL
        Read what this Prometheus has scraped.
    match
        With --prometheus: which engines, such as 'namespace="prod"'.
    arrivals : URL[#METRIC]
        A gateway that counts arrivals: llm-d, Dynamo, TGI, or any counter by its name.
    server
        What each engine is: a scenario's server.
    batch_time
        Batch times of each engine.
    hardware
        Measured batch times: `penstock hardware`.
    token_budget
        Of each engine (max_num_batched_tokens).
    max_batch_size
        Of each engine (max_num_seqs).
    kv_tokens
        Of each engine; default: as it says itself.
    iterations : tcp://HOST:PORT
        Batch times from an engine's forward-pass metrics, which fit better and better.
    log
        The same, from a log of vLLM that grows.
    every
        Time between scrapes, such as 5s.
    queue_limit
        Requests that wait: how long until so many?
    ttft
        Time to first token, such as 2s: how long until it?
    target_load
        Load that the replicas needed are for.
    alpha
        Error rate of verdicts that you choose, over all looks.
    export : [ADDRESS:]PORT
        Be scraped by Prometheus; on loopback unless an address is given.
    record
        Keep all that is read.
    replay
        Read a recording, and no engine.
    as_json : --json
        Print a line of JSON each time, and nothing else.
    once
        Scrape twice, answer, and end. Of a recording: its end.
    strict
        Exit with status 1 if unstable, and 3 if not known yet.
    """
    checks.installed("`penstock watch`", "live", *WATCHING)
    from penstock.live.given_engine import described_engine
    from penstock.live.given_sources import Where, rounds_at
    from penstock.live.watching import Watch

    every_s = duration("--every", every)
    settings = _settings(alpha, queue_limit, ttft, target_load)
    limits = {"token_budget": token_budget, "max_batch_size": max_batch_size}
    limits["kv_tokens"] = kv_tokens
    is_told = iterations is not None or log is not None
    engine = described_engine(server, batch_time, hardware, limits, is_told=is_told)
    live: dict[str, object] = {"--prometheus": prometheus, "--arrivals": arrivals, "--match": match}
    live |= {"URL": places or None, "--iterations": iterations, "--log": log}
    _refuse_beside_replay(replay, {**live, "--record": record, "--export": export})
    if replay is not None:
        from penstock.live.recording import replayed

        ends = True
        rounds = replayed(replay)
    else:
        given = None if engine is None else engine.batch_time
        where = Where(places or [], prometheus, match, arrivals, iterations, log)
        rounds, ends = rounds_at(where, given, every_s, once=once)
    _refuse_export(export, once=once, ends=ends)
    with_lines = as_json and not once and (replay is not None or not ends)
    engines = Watch(engine, settings, limits)
    with contextlib.ExitStack() as stack:
        shown = _shown(with_lines, ends)
        outputs = _Outputs(stack, shown, record, export, every_s)
        if shown == "end":
            stack.enter_context(progress.bar("Reading what engines say"))
        try:
            for came in rounds:
                outputs.take(came, engines)
        except KeyboardInterrupt:
            if not engines.any_read:  # there is nothing to say
                raise
    answer = engines.answer()
    outputs.end(answer, as_json=as_json)
    if strict:
        _leave(answer)


def _shown(with_lines: bool, ends: bool) -> _Shown:
    if with_lines:
        return "lines"
    return "end" if ends else "pages"


class _Outputs:
    """What answers go to: ``lines`` of JSON or ``pages``, one a round, or one at the ``end``."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        shown: "_Shown",
        record: Path | None,
        export: str | None,
        every_s: float,
    ) -> None:
        self._shown = shown
        self._recorder: Recorder | None = None
        self._exporter: Exporter | None = None
        self._screen: Screen | None = None
        if record is not None:
            from penstock.live import recording

            self._recorder = stack.enter_context(recording.Recorder(record, every_s))
        if export is not None:
            from penstock.live import exporter

            self._exporter = exporter.Exporter(export, every_s)
            stack.callback(self._exporter.close)
        if shown == "pages" and sys.stdout.isatty():
            from penstock.live import screen

            self._screen = stack.enter_context(screen.Screen())

    def take(self, came: "Round", engines: "Watch") -> None:
        """Keep a round, and say what follows."""
        if self._recorder is not None:
            self._recorder.write(came)
        engines.take_round(came)
        if self._shown == "end":
            return
        if not engines.any_read:
            self._wait(engines.unread)
            return
        answer = engines.answer()
        if self._exporter is not None:
            self._exporter.show(answer)
        if self._shown == "lines":
            _print_line(answer)
        elif self._screen is None:
            _print_page(answer)
        else:
            self._screen.show(answer.page())

    def _wait(self, unread: list[str]) -> None:
        """Say why there is nothing yet."""
        if self._screen is not None:
            from penstock.show.page import Page

            self._screen.show(Page("No engine could be read yet", notes=unread))
            return
        for line in unread:
            print(f"penstock: {line}", file=sys.stderr, flush=True)

    def end(self, answer: "Answer", *, as_json: bool) -> None:
        """Say the last answer, where it does not stand there yet."""
        if self._shown == "end" and as_json:
            _print_line(answer)
        elif self._shown == "end" or self._screen is not None:
            _print_page(answer)


def _print_page(answer: "Answer") -> None:
    from penstock.show.terminal import print_page

    print_page(answer.page())


def _print_line(answer: "Answer") -> None:
    """Print an answer as one line of JSON; null stands for what is infinite."""
    print(json.dumps(answer.as_dict(), allow_nan=False), flush=True)


def _leave(answer: "Answer") -> None:
    """Exit with the status of a verdict that is not ``stable``."""
    verdict = answer.together.verdict
    if verdict == "stable":
        return
    raise typer.Exit(EXIT_ANSWER_IS_NO if verdict == "unstable" else EXIT_UNDECIDED)


def _settings(
    alpha: float, queue_limit: float | None, ttft: str | None, target_load: float
) -> "Settings":
    from penstock.live.settings import Settings

    checks.number(
        "--alpha", alpha, 1e-6, 0.5, "", "it is the error rate that you choose for all looks"
    )
    checks.number("--target-load", target_load, 0.01, 0.99, "", "at 1 queues grow without end")
    if queue_limit is not None:
        checks.number("--queue-limit", queue_limit, 1, 1e9, "requests", "it is a queue's length")
    ttft_s = None if ttft is None else duration("--ttft", ttft)
    return Settings(alpha, queue_limit, ttft_s, target_load)


def _refuse_beside_replay(replay: Path | None, others: dict[str, Any]) -> None:
    beside = [option for option, value in others.items() if value is not None]
    if replay is not None and beside:
        raise InputError(
            f"--replay reads a recording and no engine, so {beside[0]} would not be used; leave "
            "one out"
        )


def _refuse_export(export: str | None, *, once: bool, ends: bool) -> None:
    if export is not None and (once or ends):
        what = "--once ends" if once else "saved pages end"
        raise InputError(f"{what} before anything is scraped from --export; leave one out")
