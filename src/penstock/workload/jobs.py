"""Jobs: passes of a workflow with everything random in them drawn, as a table of requests that
release one another.

A job is unfolded before it is simulated: which stages it visits, how long each request is, each
delay, and a coin per request for routers that toss one. What is left is a fixed graph of requests,
so neither paths nor lengths can depend on how the requests are served, and every simulator gets the
same table.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError
from penstock.inputs.arrays import Ints
from penstock.workload.lengths import Tokens

MOST_JOBS = 2**40


class Requests(NamedTuple):
    """A block of requests in order of arrival."""

    arrival_s: npt.NDArray[np.float64]  # shape (requests,), since the first arrival of the workload
    prompt_tokens: Tokens  # shape (requests,), tokens
    output_tokens: Tokens  # shape (requests,), tokens
    priority: Tokens | None = None  # shape (requests,), smaller numbers first; None: all the same
    # Shape (requests,), most outputs that they may make; None: as made.
    declared: Tokens | None = None

    def first(self, count: int) -> "Requests":
        """Return the first ``count`` of them."""
        return self.where(slice(count))

    def where(self, chosen: slice | Tokens) -> "Requests":
        """Return some of them, by their places."""
        return Requests(*(None if column is None else column[chosen] for column in self))  # type: ignore[arg-type]

    @classmethod
    def joined(cls, parts: Sequence["Requests"]) -> "Requests":
        """Put blocks after one another; one alone is not copied."""
        if len(parts) == 1:
            return parts[0]
        columns = zip(*parts, strict=True)
        return cls(*(None if one[0] is None else np.concatenate(one) for one in columns))  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True, eq=False)
class Jobs:
    """Jobs in order of arrival; requests by job, then by visit: parents stand before children."""

    arrival_s: npt.NDArray[np.float64]  # shape (jobs,): since the first arrival, not falling
    workflow: npt.NDArray[np.int32]  # shape (jobs,): place in the network
    # Shape (jobs + 1,): the requests of job j are `first_request[j]` up to `first_request[j + 1]`,
    # and the first of them is its root.
    first_request: Ints
    stage: npt.NDArray[np.int32]  # shape (requests,) as all that follow: place in the network
    prompt: npt.NDArray[np.int32]  # tokens, with the context that it goes on with; 0: only decodes
    output: npt.NDArray[np.int32]  # tokens; 0 where a stage only prefills
    reuse: npt.NDArray[np.int32]  # tokens that it has in common with its context
    context: npt.NDArray[np.int32]  # that request, as an offset from this one (< 0); 0: none
    delay_s: npt.NDArray[np.float64]  # from release to arrival at the pool, but for `transfer_s`
    # Requests of the job that must finish before it is released: 0 for the root, k at a join of k
    # branches.
    pending: npt.NDArray[np.int32]
    # The first request that its finish releases, or counts down, as an offset (> 0); 0: none.
    child: npt.NDArray[np.int32]
    sibling: npt.NDArray[np.int32]  # the next with the same parent, as an offset (> 0); 0: none
    coin: npt.NDArray[np.uint32]  # uniform: for routers that choose at random
    # At an engine whose queue goes by priority, the smaller is served first; None: all 0.
    priority: npt.NDArray[np.int32] | None = None
    # Most output tokens that it may make; None: as it makes.
    declared: npt.NDArray[np.int32] | None = None
    # The recorded prompt of the network whose hash ids it has, -1: none; None: none has. Requests
    # that go on with a context have that one's as far as it reaches.
    prefix: npt.NDArray[np.int32] | None = None
    # The request that it gets its KV memory from, as an offset from this one (< 0), because it only
    # decodes; 0: none; None: none does.
    sender: npt.NDArray[np.int32] | None = None
    transfer_s: npt.NDArray[np.float64] | None = None  # what that takes a link
    # How long its client waits for the first token, and for all, each time that it comes; None: for
    # ever. 32 random bits, for when it comes again.
    ttft_limit_s: npt.NDArray[np.float64] | None = None
    e2e_limit_s: npt.NDArray[np.float64] | None = None
    luck: npt.NDArray[np.uint32] | None = None

    @classmethod
    def of_requests(cls, requests: Requests, prefix: Ints | None = None) -> "Jobs":
        """Return jobs of one request each, as they are, at the first stage of a network.

        ``prefix``: which recorded prompt each has.
        """
        count = requests.arrival_s.size
        zeros = _constant(np.int32(0), count)
        optional: list[Any] = [requests.priority, requests.declared, prefix]
        optional = [None if column is None else column.astype(np.int32) for column in optional]
        return cls(
            requests.arrival_s, zeros, np.arange(count + 1), zeros,
            requests.prompt_tokens.astype(np.int32), requests.output_tokens.astype(np.int32),
            zeros, zeros, _constant(np.float64(0), count), zeros, zeros, zeros,
            _constant(np.uint32(0), count), *optional,
        )  # fmt: skip

    @classmethod
    def none(cls) -> "Jobs":
        """Return no jobs."""
        none = np.zeros(0, np.int64)
        return cls.of_requests(Requests(np.zeros(0), none, none))

    @property
    def count(self) -> int:
        """Number of jobs."""
        return self.arrival_s.size

    @property
    def requests(self) -> int:
        """Number of requests of all jobs."""
        return self.stage.size

    @property
    def job(self) -> Ints:
        """Shape (requests,), the job of each request."""
        return np.repeat(np.arange(self.count), np.diff(self.first_request))

    def _columns(self, chosen: Ints | slice) -> dict[str, Any]:
        """Return the columns of some requests."""
        columns = ((name, getattr(self, name)) for name in _PER_REQUEST)
        return {name: column[chosen] for name, column in columns if column is not None}

    @property
    def wait_s(self) -> npt.NDArray[np.float64]:
        """Shape (requests,), seconds from release to arrival at the pool if no transfer queues."""
        if self.transfer_s is None:
            return self.delay_s
        return self.delay_s + self.transfer_s

    def span(self, start: int, stop: int) -> "Jobs":
        """Return the jobs from ``start`` up to ``stop``, as views of these."""
        jobs, requests = slice(start, stop), slice(*self.first_request[[start, stop]].tolist())
        first = self.first_request[start : stop + 1] - self.first_request[start]
        return Jobs(self.arrival_s[jobs], self.workflow[jobs], first, **self._columns(requests))

    def first(self, count: int) -> "Jobs":
        """Return the first ``count`` of them, or all if there are fewer."""
        return self if count >= self.count else self.span(0, count)

    def taken(self, chosen: Ints) -> "Jobs":
        """Return the jobs of these numbers, in this order."""
        counts = np.diff(self.first_request)[chosen]
        columns = self._columns(self.requests_of(chosen))
        return Jobs(self.arrival_s[chosen], self.workflow[chosen], _bounds(counts), **columns)

    def requests_of(self, chosen: Ints) -> Ints:
        """Return the places of the requests of the jobs of these numbers, in this order."""
        counts = np.diff(self.first_request)[chosen]
        first = _bounds(counts)
        return np.arange(first[-1]) + np.repeat(
            self.first_request[:-1][chosen] - first[:-1], counts
        )

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column of the requests; one that is None is what that stands for."""
        values = getattr(self, name)
        if values is not None:
            return np.asarray(values)
        if name == "declared":
            return self.output
        if name == "transfer_s":
            return np.zeros(self.requests)
        if name in ("ttft_limit_s", "e2e_limit_s"):
            return np.full(self.requests, np.inf)
        return np.full(self.requests, -1 if name == "prefix" else 0, np.int32)

    def numbered(self, workflow: int, first_stage: int, first_prefix: int) -> "Jobs":
        """Return them as jobs of a network, with stages and recorded prompts counted from these."""
        prefix = self.prefix
        if prefix is not None:
            prefix = np.where(prefix < 0, prefix, prefix + np.int32(first_prefix))
        return dataclasses.replace(
            self,
            workflow=self.workflow + np.int32(workflow),
            stage=self.stage + np.int32(first_stage),
            prefix=prefix,
        )

    @classmethod
    def joined(cls, parts: Sequence["Jobs"]) -> "Jobs":
        """Put blocks after one another."""
        if len(parts) == 1:
            return parts[0]
        columns = {
            name: _end_to_end([part.column(name) for part in parts])
            for name in _PER_REQUEST
            if any(getattr(part, name) is not None for part in parts)
        }
        arrival_s, workflow = (
            _end_to_end([getattr(part, name) for part in parts]) for name in _PER_JOB
        )
        if all(part.requests == part.count for part in parts):
            return cls(arrival_s, workflow, np.arange(arrival_s.size + 1), **columns)
        counts = np.concatenate([np.diff(part.first_request) for part in parts])
        return cls(arrival_s, workflow, _bounds(counts), **columns)


_PER_JOB = ("arrival_s", "workflow")
_PER_REQUEST = tuple(field.name for field in dataclasses.fields(Jobs))[3:]


def _constant(value: np.generic, count: int) -> npt.NDArray[Any]:
    """Return a column of one value, which takes no memory however long it is."""
    return np.broadcast_to(value, count)


def _end_to_end(columns: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Put columns after one another; those of one value stay one."""
    first = columns[0]
    if all(column.strides == (0,) and column.size and column[0] == first[0] for column in columns):
        return _constant(first[0], sum(column.size for column in columns))
    return np.concatenate(columns)


def _bounds(counts: Ints) -> Ints:
    """Return where groups of so many begin, and where the last one ends."""
    bounds = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    return bounds


def merged(streams: Sequence[Iterator[Jobs]]) -> Iterator[Jobs]:
    """Merge streams of jobs in order of arrival; of ties the earlier stream's goes first."""
    # Holds a block of each stream at a time; one of the result ends where the first in hand does.
    if len(streams) == 1:
        yield from streams[0]
        return
    blocks = [next(stream, None) for stream in streams]
    while any(block is not None for block in blocks):
        in_hand = [(number, block) for number, block in enumerate(blocks) if block is not None]
        # up to the end of the block that ends first; what another block of that stream may bring
        # there comes after it
        ends, last = min((float(block.arrival_s[-1]), number) for number, block in in_hand)
        parts = []
        for number, block in in_hand:
            stop = block.count
            if number != last:
                stop = int(
                    np.searchsorted(block.arrival_s, ends, "right" if number < last else "left")
                )
            parts.append(block.span(0, stop))
            rest = block.span(stop, block.count)
            blocks[number] = rest if rest.count else next(streams[number], None)
        joined = Jobs.joined(parts)
        yield joined.taken(np.argsort(joined.arrival_s, kind="stable"))


def checked_seed(seed: Any) -> int:
    """Return a seed, if it is one."""
    return checks.whole("the seed", seed, 0, 2**128, "", "take any")


def first_jobs(blocks: Iterator[Jobs], count: int, name: str) -> Jobs:
    """Return the first ``count`` jobs of a stream."""
    missing = checks.whole("the number of jobs", count, 1, MOST_JOBS, "", "that many are made")
    parts: list[Jobs] = []
    for block in blocks:
        parts.append(block.first(missing))
        missing -= parts[-1].count
        if not missing:
            return Jobs.joined(parts)
    raise InputError(
        f"{count:,} jobs asked for, but {name} has {count - missing:,}, as recorded arrivals are "
        "replayed once; ask for fewer, or resample them with arrivals 'poisson'"
    )
