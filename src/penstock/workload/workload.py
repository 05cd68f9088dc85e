"""What arrives: an arrival process, lengths, and a seed."""

import copy
import dataclasses
import functools
import math
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.fields import Key
from penstock.inputs.caching import cached
from penstock.words import counted
from penstock.workload import arrivals as processes
from penstock.workload.arrivals import Arrivals, Replay
from penstock.workload.jobs import Jobs, Requests
from penstock.workload.lengths import (
    Length,
    Lengths,
    Recorded,
    Tokens,
    as_length,
    checked_lengths,
    pair_of,
)
from penstock.workload.lookalikes import lookalike
from penstock.workload.patience import Clients, Patience
from penstock.workload.prefixes import Prefixes, checked_prefixes

IDS_LEFT_OUT = (
    "hash ids are left out: requests drawn at random do not go on with each other's prompts"
)
"""A notice of workloads that had hash ids."""


@dataclasses.dataclass(frozen=True, eq=False)
class Workload:
    """Requests to come: the same ones, under every policy and at every rate, for the same seed.

    Arrivals and lengths draw from streams of their own, so a change of the rate leaves the lengths
    as they are.

    Parameters
    ----------
    arrivals
        When requests arrive; None for recorded lengths without times (give a rate with
        `with_rate`).
    lengths
        How long they are.
    seed
        For everything random.
    name
        For tables and figures.
    notices
        What reading the data brought up.
    priority
        Shape (requests,), of recorded requests: smaller numbers are served first by servers that
        look at it.
    prefixes
        What recorded prompts have in common, for servers that cache prefixes.
    declared
        The most output tokens that requests say they may make (``max_tokens``), for engines whose
        admission goes by that: shape (requests,) of recorded ones, or a distribution, of which each
        has at least its output. None: each declares the output that it makes.
    doubts
        What rows look like that are no requests, or have other lengths.
    patience
        How long clients wait, and whether they come again; None: they wait for ever.
    """

    arrivals: Arrivals | None
    lengths: Lengths
    seed: int = 0
    name: str = "workload"
    notices: tuple[str, ...] = ()
    priority: Tokens | None = None
    prefixes: Prefixes | None = None
    declared: Tokens | Length | None = None
    doubts: tuple[str, ...] = ()
    patience: Patience | None = None

    def __post_init__(self) -> None:
        _seeds(self.seed)  # or refused
        rows = self.rows or 0
        if self.prefixes is not None and self.prefixes.rows != rows:
            raise InputError(
                f"{self.name} has hash ids of {self.prefixes.rows:,} recorded requests, but "
                f"{rows:,} of those; every "
                "recorded request has a list of ids, and no others have"
            )
        if not isinstance(self.lengths, Recorded):
            return
        if self.arrivals is not None and not isinstance(self.arrivals, Replay):
            raise InputError(
                f"{self.name} has recorded lengths for arrivals without end; draw them from "
                "Empirical rows"
            )
        if (
            self.arrivals is not None
            and self.arrivals.times_s.size != self.lengths.prompt_tokens.size
        ):
            raise InputError(
                f"{self.arrivals.times_s.size:,} arrival times for "
                f"{self.lengths.prompt_tokens.size:,} requests: "
                "every request has one, so give as many of both"
            )

    @classmethod
    def poisson(
        cls,
        rate: float,
        prompt: int | Length | Lengths,
        output: int | Length | None = None,
        *,
        seed: int = 0,
    ) -> Self:
        """Return Poisson arrivals.

        Parameters
        ----------
        rate
            Requests per second.
        prompt, output
            A number of tokens, a distribution each, or one joint distribution (`Empirical`) as
            ``prompt``.
        seed
            For arrivals and lengths.
        """
        return cls(processes.Poisson(rate), pair_of(prompt, output), seed)

    @classmethod
    def deterministic(
        cls,
        rate: float,
        prompt: int | Length | Lengths,
        output: int | Length | None = None,
        *,
        seed: int = 0,
    ) -> Self:
        """Return evenly spaced arrivals; parameters as in `poisson`."""
        return cls(processes.Deterministic(rate), pair_of(prompt, output), seed)

    @classmethod
    def gamma(
        cls,
        rate: float,
        cv: float,
        prompt: int | Length | Lengths,
        output: int | Length | None = None,
        *,
        seed: int = 0,
    ) -> Self:
        """Return gamma renewal arrivals whose gaps have coefficient of variation ``cv``; else as
        `poisson`.
        """
        return cls(processes.GammaRenewal(rate, cv), pair_of(prompt, output), seed)

    @classmethod
    def burst(
        cls,
        requests: int,
        prompt: int | Length | Lengths,
        output: int | Length | None = None,
        *,
        seed: int = 0,
    ) -> Self:
        """Return so many requests, all at once; lengths as in `poisson`."""
        count = checks.whole("the requests of a burst", requests, 1, 10**7, "", "all are kept")
        drawn = pair_of(prompt, output).sample(np.random.default_rng(_seeds(seed)[1]), count)
        return cls.from_arrays(np.zeros(count), *drawn, seed=seed, name="burst")

    @classmethod
    def closed(
        cls,
        clients: int,
        prompt: int | Length | Lengths,
        output: int | Length | None = None,
        *,
        pause_s: Annotated[float, Key("pause")] = 0.0,
        seed: int = 0,
    ) -> "ClosedLoop":
        """Return the requests of clients that each wait for an answer before they ask again.

        Parameters
        ----------
        clients
            How many there are: no more requests are under way at a time.
        prompt, output
            As in `poisson`.
        pause_s
            Seconds from an answer to the client's next request.
        seed
            For lengths.
        """
        return cls(None, pair_of(prompt, output), seed).with_clients(clients, pause_s)

    @classmethod
    def preset(cls, name: str, *, seed: int = 0) -> Self:
        """Return a look-alike of a public trace: ``azure-code`` or ``azure-conv``."""
        process, lengths = lookalike(name)
        return cls(process, lengths, seed, name)

    @classmethod
    def from_arrays(
        cls,
        arrival_s: npt.ArrayLike | None,
        prompt_tokens: npt.ArrayLike,
        output_tokens: npt.ArrayLike,
        priority: npt.ArrayLike | None = None,
        declared: npt.ArrayLike | Length | None = None,
        *,
        hash_ids: Sequence[Sequence[int]] | None = None,
        hash_block: int | None = None,
        hash_ids_with_output: Sequence[Sequence[int]] | None = None,
        seed: int = 0,
        name: str = "arrays",
    ) -> Self:
        """Return recorded requests, to be replayed once or resampled.

        Parameters
        ----------
        arrival_s
            Shape (requests,), seconds, not falling; None if only lengths are known.
        prompt_tokens, output_tokens
            Shape (requests,), tokens, at least 1.
        priority
            Shape (requests,), whole numbers: smaller ones are served first where a server's order
            is ``priority``.
        hash_ids, hash_block
            One list per request with an id for each block of so many tokens of its prompt, for
            servers that cache prefixes. Two requests with the same id at the same place have equal
            prompts up to the end of that block; where an id stands behind different ones, with the
            same ids up to there. Where lists are longer than that, all of them go on
            with the output, as ``hash_ids_with_output`` does.
        hash_ids_with_output
            One list per request with an id for each full block of its prompt and its output
            together, so that a later prompt finds what an answer left in the cache.
        declared
            Shape (requests,), the most output tokens that each says it may make, at least those
            that it makes; or one number or distribution for all. None: those that it makes.
        seed
            For resampling, see `with_rate`.
        name
            For tables and figures.
        """
        replay = None if arrival_s is None else Replay(arrival_s)  # type: ignore[arg-type]
        lengths = Recorded(prompt_tokens, output_tokens)  # type: ignore[arg-type]
        urgent = checked_priority(priority, lengths.prompt_tokens.size)
        prefixes = checked_prefixes(
            hash_ids,
            hash_ids_with_output,
            hash_block,
            lengths.prompt_tokens,
            lengths.output_tokens,
        )
        return cls(
            replay, lengths, seed, name, prefixes.notices if prefixes else (), urgent, prefixes,
            declared=checked_declared(declared, lengths.output_tokens),
        )  # fmt: skip

    def with_declared(self, declared: int | Length) -> Self:
        """Return the same requests, which say that they may make so many output tokens, or as many
        as a distribution gives; at least those that they make.
        """
        return dataclasses.replace(self, declared=as_length("declared", declared))

    def with_patience(self, patience: Patience | None) -> Self:
        """Return the same requests, whose clients wait so long, and come so often."""
        return dataclasses.replace(self, patience=patience)

    def with_rate(self, rate: float, arrivals: str = "scaled", *, cv: float | None = None) -> Self:
        """Return the same requests at another rate.

        Parameters
        ----------
        rate
            Requests per second.
        arrivals
            ``scaled``: the present pattern, stretched. ``poisson``, ``deterministic`` or ``gamma``
            (with ``cv``): such a process instead; recorded requests are then drawn at random from
            the rows, as many as asked for, and their prompts have nothing in common.
        cv
            Coefficient of variation of gamma gaps.
        """
        kinds: dict[str, Callable[[float], Arrivals]] = {
            "poisson": processes.Poisson,
            "deterministic": processes.Deterministic,
        }
        known = ("scaled", *kinds, "gamma")
        if not checks.named(arrivals, known):
            raise InputError(
                f"unknown arrivals {checks.shown(arrivals)}{nearest(str(arrivals), known)}"
            )
        if (cv is not None) != (arrivals == "gamma"):
            raise InputError(
                f"arrivals {arrivals!r} with cv {cv}: gamma arrivals need a cv, and no others "
                "take one"
            )
        if arrivals == "scaled":
            return dataclasses.replace(self, arrivals=self._arrivals().with_rate(rate))
        lengths = self.lengths
        if isinstance(lengths, Recorded):
            if self.priority is not None:
                raise InputError(
                    f"arrivals {arrivals!r} draw requests at random, but {self.name} has "
                    "priorities of its own; "
                    "use arrivals 'scaled'"
                )
            if self.declared is not None and not isinstance(self.declared, Length):
                raise InputError(
                    f"arrivals {arrivals!r} draw requests at random, but {self.name} has declared "
                    "outputs of its own; use arrivals 'scaled', or `with_declared` a distribution"
                )
            lengths = lengths.at_random()
        process = kinds[arrivals](rate) if cv is None else processes.GammaRenewal(rate, cv)
        notices = self.notices
        if self.prefixes is not None:
            notices = (*notices, IDS_LEFT_OUT)
        return dataclasses.replace(
            self, arrivals=process, lengths=lengths, prefixes=None, notices=notices
        )

    def with_clients(self, clients: int, pause_s: float = 0.0) -> "ClosedLoop":
        """Return the same requests, in order, sent by clients as in `closed`."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(Workload)}
        return ClosedLoop(**fields | {"arrivals": None}, clients=clients, pause_s=pause_s)

    def with_seed(self, seed: int) -> Self:
        """Return the same workload drawn from another seed."""
        return dataclasses.replace(self, seed=seed)

    @property
    def front(self) -> list[str]:
        """What to know of recorded requests before an answer is read."""
        if self.arrivals is None:
            return [*self.doubts]
        return [*self.doubts, *self.arrivals.doubts]

    @property
    def rate(self) -> float:
        """Long-run requests per second."""
        return self._arrivals().rate

    @property
    def has_rate(self) -> bool:
        """Whether requests arrive at a rate: not all at once, and not when others are answered."""
        return self.rate > 0

    @property
    def pace(self) -> str:
        """How requests come, in a few words: their rate, or what sends them."""
        if not self.has_rate:
            return f"{counted(self.rows or 0, 'request')} at once"
        return f"{self.rate:,.4g} requests/s"

    @property
    def loop(self) -> "ClosedLoop | None":
        """The clients who send the requests; None: these come by themselves."""
        return None

    @property
    def rows(self) -> int | None:
        """Number of requests there are, or None where they never end."""
        return self.lengths.rows

    @property
    def mean_prompt(self) -> float:
        """Mean prompt, tokens."""
        return self.lengths.mean_prompt

    @functools.cached_property
    def least_mean_prompt(self) -> float:
        """Mean tokens of a prompt that have to be computed whatever a prefix cache keeps."""
        if self.prefixes is None or not isinstance(self.lengths, Recorded):
            return self.mean_prompt
        return float(self.prefixes.computed_once(self.lengths.prompt_tokens).mean())

    @property
    def mean_output(self) -> float:
        """Mean output, tokens."""
        return self.lengths.mean_output

    @property
    def bounded(self) -> bool:
        """Whether lengths have an upper limit."""
        return self.lengths.max_prompt is not None and self.lengths.max_output is not None

    def describe(self) -> str:
        """Say in a few words what arrives."""
        if self.arrivals is None:
            return f"{self.name}: lengths without arrival times"
        return f"{self.name}: {self.arrivals.describe()}"

    def blocks(self) -> Iterator[Requests]:
        """Yield the requests, a block at a time, for ever or until a recording ends."""
        arrival_seed, _, declared_seed = _seeds(self.seed)
        declaring = np.random.default_rng(declared_seed)
        rng: np.random.Generator | None = None
        origin: float | None = None
        done = 0
        for times in self._times(np.random.default_rng(arrival_seed)):
            origin = float(times[0]) if origin is None else origin
            priority = None
            if isinstance(self.lengths, Recorded):
                rows = slice(done, done + times.size)
                prompt, output = self.lengths.prompt_tokens[rows], self.lengths.output_tokens[rows]
                priority = None if self.priority is None else self.priority[rows]
            elif rng is None:
                prompt, output, generator = _first_lengths(self.lengths, self.seed, times.size)
                rng = copy.deepcopy(generator)  # the next caller goes on from there, too
            else:
                prompt, output = self.lengths.sample(rng, times.size)
            declared = self.declared
            if isinstance(declared, Length):
                declared = np.maximum(declared.sample(declaring, times.size), output)
            elif declared is not None:
                declared = declared[done : done + times.size]
            done += times.size
            yield Requests(times - origin, prompt, output, priority, declared)

    def jobs(self) -> Iterator[Jobs]:
        """Yield the requests as jobs of one request each, by blocks as `blocks` does."""
        first = 0
        clients = Clients(self.patience, self.seed)
        for requests in self.blocks():
            prefix = None
            if self.prefixes is not None:
                prefix = np.arange(first, first + requests.arrival_s.size)
            first += requests.arrival_s.size
            yield clients.of(Jobs.of_requests(requests, prefix))

    def requests(self, count: int) -> Requests:
        """Return the first ``count`` requests."""
        count = checks.whole("the number of requests", count, 1, 2**40, "", "that many are made")
        if self.rows is not None and count > self.rows:
            raise InputError(
                f"{count:,} requests asked for, but {self.name} has {self.rows:,} and is replayed "
                "once; "
                "ask for fewer, or resample it with arrivals 'poisson'"
            )
        parts: list[Requests] = []
        missing = count
        for block in self.blocks():
            parts.append(block.first(missing))
            missing -= parts[-1].arrival_s.size
            if not missing:
                break
        return Requests.joined(parts)

    def _times(self, rng: np.random.Generator) -> Iterator[npt.NDArray[np.float64]]:
        return self._arrivals().blocks(rng)

    def _arrivals(self) -> Arrivals:
        if self.arrivals is None:
            raise InputError(
                f"{self.name} has lengths but no arrival times; give a rate and an arrival "
                "process (poisson)"
            )
        return self.arrivals


@dataclasses.dataclass(frozen=True, eq=False)
class ClosedLoop(Workload):
    """Requests of clients that each wait for an answer, and pause, before they ask again.

    `penstock.simulate` and `penstock.check` take it, and `penstock.simulate` of a network that has
    no other workflow, where a client waits for its whole job. It has no arrival rate, for that is
    what the server makes of it, and no load: it is stable on any server, since no more requests
    than ``clients`` are under way. Made by `Workload.closed` and `Workload.with_clients`.

    Parameters
    ----------
    clients
        How many there are.
    pause_s
        Seconds from an answer to the client's next request.
    """

    clients: int = 1
    pause_s: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.arrivals is not None:
            raise InputError(
                f"{self.name} has arrivals beside {self.pace}, but clients ask when they are "
                "answered; give one of the two"
            )
        tells = "each has one request under way"
        checks.whole("the clients of a closed loop", self.clients, 1, 10**6, "", tells)
        checks.number("the pause of a closed loop", self.pause_s, 0, 1e6, "s", "0 is none")

    @property
    def has_rate(self) -> bool:
        """Whether requests arrive at a rate: they do not."""
        return False

    @property
    def loop(self) -> "ClosedLoop":
        """Its own clients."""
        return self

    @property
    def pace(self) -> str:
        """How many clients there are."""
        pause = f" with pauses of {self.pause_s:g} s" if self.pause_s else ""
        return f"{counted(self.clients, 'client')}{pause}"

    @property
    def front(self) -> list[str]:
        """What to know before an answer: requests of one length keep clients in step."""
        of = self.lengths
        if self.clients == 1 or (of.min_prompt, of.min_output) != (of.max_prompt, of.max_output):
            return super().front
        return [
            *super().front,
            "All requests are of one length, so the clients, who begin together, go on asking "
            "together, and wait longer for first tokens than users whose answers differ in length "
            "(`output: {geometric: 300}`).",
        ]

    def describe(self) -> str:
        """Say in a few words what arrives."""
        return f"{self.name}: a closed loop"

    def at_rate(self, rate: float) -> Workload:
        """Return the same requests, which come at a rate and wait for no answer."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(Workload)}
        arrivals: Arrivals = processes.Poisson(rate)
        if self.rows is not None:
            arrivals = Replay(np.arange(self.rows) / rate)
        return Workload(**fields | {"arrivals": arrivals})

    def _times(self, rng: np.random.Generator) -> Iterator[npt.NDArray[np.float64]]:
        """Yield zeros: a request may be sent as soon as there is a client for it."""
        left = self.rows or math.inf
        while left > 0:
            yield np.zeros(int(min(processes.BLOCK, left)))
            left -= processes.BLOCK

    def _arrivals(self) -> Arrivals:
        raise InputError(
            f"{self.name} is a closed loop of {self.pace}, who ask as fast as they are answered: "
            "it has no arrival rate, and is stable on any server. `penstock check` and `simulate` "
            "say at what throughput and latency; for what needs a rate give arrivals that have "
            "one (poisson)"
        )


def checked_priority(priority: npt.ArrayLike | None, rows: int) -> Tokens | None:
    """Return priorities as integers, one per request."""
    if priority is None:
        return None
    try:
        values = np.asarray(priority)
    except ValueError:  # lists of unequal lengths
        values = np.array(None)
    whole = values.shape == (rows,) and values.dtype.kind in "iu"
    if not whole or values.max(initial=0) >= 2**31 or values.min(initial=0) <= -(2**31):
        raise InputError(
            f"priority is {checks.shown(priority)}, but each of the {rows:,} requests has one, a "
            "whole number below 2^31"
        )
    return values.astype(np.int32)


def checked_declared(
    declared: npt.ArrayLike | Length | None, output: Tokens
) -> Tokens | Length | None:
    """Return declared outputs as integers, one per request, or as a distribution."""
    if declared is None:
        return None
    if isinstance(declared, Length | numbers.Integral):
        return as_length("declared", declared)
    values = checked_lengths("declared", declared)
    if values.size != output.size:
        raise InputError(
            f"{values.size:,} declared outputs for {output.size:,} requests: each has one, so give "
            "as many of both"
        )
    if (values < output).any():
        first = int(np.argmax(values < output))
        raise InputError(
            f"request {first} declares {values[first]:,} output tokens at most, but makes "
            f"{output[first]:,}; declare at least as many"
        )
    return values


def _seeds(seed: int) -> list[np.random.SeedSequence]:
    """Return the seeds of arrivals, of lengths, and of declared lengths."""
    if (
        not isinstance(seed, numbers.Integral)
        or isinstance(seed, bool | np.timedelta64)
        or seed < 0
    ):
        raise InputError(
            f"the seed is {checks.shown(seed)}, but must be a whole number of at least 0; take any"
        )
    return np.random.SeedSequence(seed).spawn(3)


@cached(2)  # a verdict and a simulation begin with the same block five times
def _first_lengths(
    lengths: Lengths, seed: int, size: int
) -> tuple[Tokens, Tokens, np.random.Generator]:
    """Return the lengths of the first block, and the generator of those that follow."""
    rng = np.random.default_rng(_seeds(seed)[1])
    prompt, output = (tokens.view() for tokens in lengths.sample(rng, size))
    prompt.flags.writeable = output.flags.writeable = False  # they are everybody's
    return prompt, output, rng


def read_trace(
    path: str | Path,
    *,
    format: str | None = None,
    columns: Mapping[str, str] | None = None,
    hash_block: int | None = None,
    seed: int = 0,
    max_gib: float | None = None,
    where: Mapping[str, Any] | None = None,
) -> Workload:
    """Read a request trace.

    Parameters
    ----------
    path
        CSV, JSONL or Parquet, also ``.gz``. ``-``: standard input.
    format
        Its name, such as ``mooncake``; None: detected from the header.
    columns
        For plain files: which columns are ``arrival_s``, ``prompt_tokens``, ``output_tokens``,
        ``priority``, ``declared_tokens`` (or ``max_tokens``: see `Workload.declared`), ``hash_ids``
        and ``hash_ids_with_output`` (lists such as ``[3, 1]`` or ``3 1``: see
        `Workload.from_arrays`).
    hash_block
        For plain files: tokens in a block that such an id names. Where ids end with the prompts,
        those of answers are inferred from later prompts that go on with them, as far as there are
        any; a notice says so.
    seed
        For resampling, see `Workload.with_rate`.
    max_gib
        What the file may hold, unpacked, in GiB; None: 2. All of it must fit into memory.
    where
        Values by column, of the rows to read: ``{"http_code": 200}``. None: all rows.

    Raises
    ------
    InputError
        If the file cannot be read; one line that names file, row, column, value and remedy.
    """
    from penstock.workload import traces  # tables take a while to load

    trace = traces.load(
        path, format=format, columns=columns, hash_block=hash_block, max_gib=max_gib, where=where
    )
    workload = Workload.from_arrays(
        trace.arrival_s, trace.prompt_tokens, trace.output_tokens, trace.priority,
        declared=trace.declared, seed=seed, name=Path(path).name.split(".")[0],
    )  # fmt: skip
    arrivals = workload.arrivals
    if isinstance(arrivals, Replay):
        arrivals = dataclasses.replace(arrivals, unit=trace.unit, fractions=trace.fractions)
    return dataclasses.replace(
        workload, arrivals=arrivals, notices=trace.notices, prefixes=trace.prefixes,
        doubts=trace.doubts,
    )  # fmt: skip
