"""Scrapes in, an answer out: everything that watching knows of engines, folded scrape by scrape."""

import dataclasses
from collections.abc import Mapping

from penstock.errors import InputError
from penstock.live.conclusions import answering_states, conclude
from penstock.live.fitted_server import FittedServer
from penstock.live.iterations_seen import Seen
from penstock.live.metrics_pages import Note
from penstock.live.reading import Answer, Reading
from penstock.live.rounds import Round
from penstock.live.scrape import Scrape
from penstock.live.settings import Settings
from penstock.live.state import Engine, State
from penstock.live.worst_engine import with_worst, worst_of
from penstock.system.server import Server


class Watch:
    """Engines that are watched.

    Without a server there is no load and no future, until iterations tell how long batches take:
    then ``limits`` are ``token_budget``, ``max_batch_size``, ``kv_tokens``.
    """

    def __init__(
        self,
        server: Server | None,
        settings: Settings,
        limits: Mapping[str, int | None] | None = None,
    ) -> None:
        self._settings = settings
        self._fitted_server = FittedServer(server, limits or {})
        self._engines: dict[str, Engine] = {}
        self._silent: dict[Note, int] = {}  # on those that were never read, and how often

    @property
    def unread(self) -> list[str]:
        """What is to be said of those that were never read: they are no engines yet."""
        return [
            f"{note.engine}: {note.text}" + (f" ({times:,} times)" if times > 1 else "")
            for note, times in self._silent.items()
        ]

    @property
    def any_read(self) -> bool:
        """Whether an engine was read."""
        return bool(self._engines)

    def take_round(self, came: Round) -> None:
        """Take what came within a round."""
        if came.seen is not None:
            self.refine(came.seen)
        for scrape in came.scrapes:
            self.take(scrape)
        for note in came.notes:
            self.note(note)

    def take(self, scrape: Scrape) -> None:
        """Take one scrape; those of an engine that come out of order are left out, with a note."""
        name = scrape.engine
        if name not in self._engines:
            self._engines[name] = Engine(name, self._fitted_server)
        self._engines[name].take(scrape)

    def note(self, note: Note) -> None:
        """Keep what a source met (a page torn, nobody answered): a note on an address's engines."""
        # Or on one that was never read.
        at_address = f"{note.engine} "
        engines = [
            engine
            for name, engine in self._engines.items()
            if name == note.engine or name.startswith(at_address)
        ]
        for engine in engines:
            engine.history.note(note.text)
        if not engines:
            self._silent[note] = self._silent.get(note, 0) + 1

    def refine(self, seen: Seen) -> None:
        """Take the batch times that iterations tell, for every engine."""
        self._fitted_server.refine(seen)

    def answer(self, *, ahead: bool = True) -> Answer:
        """Return what follows from all scrapes so far; most of the work is for ``ahead``."""
        # That is the time until limits are reached.
        if not self._engines:
            raise InputError(
                "no engine could be read, so there is nothing to say "
                f"({'; '.join(self.unread) or 'nothing came'}); check the addresses, and that the "
                "engine shows its metrics"
            )
        states = [engine.state() for engine in self._engines.values()]
        readings = tuple(conclude([state], self._settings, ahead) for state in states)
        together = readings[0]
        if len(states) > 1:
            together = self._together(states, readings, ahead)
        notes = (*together.notes, *self.unread)
        return Answer(together.time_s, dataclasses.replace(together, notes=notes), readings)

    def _together(self, states: list[State], readings: tuple[Reading, ...], ahead: bool) -> Reading:
        """Return what follows for all engines; where one fares worse, for that."""
        together = conclude(states, self._settings, ahead)
        answering = answering_states(states)
        own = [
            reading for state, reading in zip(states, readings, strict=True) if state in answering
        ]
        place = worst_of(answering, own, together)
        if place is None or len(answering) < 2:
            return together
        # Any of them might have been the worst: each has its part of alpha.
        alpha = self._settings.alpha / len(answering)
        settings = dataclasses.replace(self._settings, alpha=alpha)
        worst = conclude([answering[place]], settings, ahead)
        return with_worst(together, worst, self._settings.target_load)
