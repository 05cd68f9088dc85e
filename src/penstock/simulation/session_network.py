"""A network session: the kernel's arrays for a network, run until something is known, looked at,
and gone on with.
"""

import dataclasses
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
from numba.core.errors import NumbaExperimentalFeatureWarning

from penstock.errors import InputError
from penstock.inputs.arrays import Floats, Ints, Ints32
from penstock.kernel import lines as line_fields
from penstock.kernel import network_arrays as kernel
from penstock.kernel.legacy_server import (
    BAD_POLICY,
    DONE,
    MORE,
    N_SLOT_ROWS,
    NEVER,
    PAUSED,
    SERIES_INSTANTS,
    SLOT_CHAIN,
    SLOT_NEXT,
    SLOT_REQUEST,
    chain,
)
from penstock.kernel.network import compiled_advance
from penstock.simulation.ticks import ticks_of_batches
from penstock.system.network import Network, Pool
from penstock.system.orders import ORDERS
from penstock.workload.jobs import Jobs

_NO_LIMIT = 2**40  # a max batch size that never binds
_MOST_SERIES, _FEWEST_INSTANTS = 2**22, 64  # values of a series, instants
_PER_REQUEST = (
    "rows",
    "delay",
    "coin",
    "context",
    "reuse",
    "home",
    "cached",
    "ready",
    "first_token",
    "finish",
)
_PER_JOB = ("job_arrival", "job_root", "job_tokens")


@dataclasses.dataclass(frozen=True, eq=False)
class Passed:
    """Jobs of which everything is known, or that the run ended with; ticks, -1 for what did not
    happen.

    Attributes
    ----------
    jobs
        As they were drawn.
    arrival
        Shape (jobs,).
    server, ready, first_token, finish, cached
        Shape (requests,): replica over all pools, when it arrived there, and what became of it.
    """

    jobs: Jobs
    arrival: Ints
    server: Ints32
    ready: Ints
    first_token: Ints
    finish: Ints
    cached: Ints32


class NetworkSession:
    """The kernel's arrays, and the calls that run it.

    Parameters
    ----------
    network
        What serves.
    tick_s
        Seconds per tick.
    compress
        Whether equal batches are one step.
    stop
        Tick at which to stop, or NEVER.
    """

    def __init__(self, network: Network, tick_s: float, compress: bool, stop: int) -> None:
        self.network, self.tick_s, self.stop = network, tick_s, stop
        pools = list(network.pools.values())
        self.policies = _distinct([pool.policy for pool in pools], "policies")
        self.orders = _distinct(
            [pool.order for pool in pools if not pool.order.single_line], "orders"
        )
        state = np.zeros(kernel.N_STATE, np.int64)
        state[kernel.COMPRESS], state[kernel.UNTIL], state[kernel.SERIES_STEP] = compress, stop, 1
        # A row per pool, replica and stage; a line per stage at a replica, or one for all.
        duration, params, table = self._pools(pools)
        servers = self._servers(table)
        n_lines = int((network.replicas * network.pool_lines).sum())
        stages = np.zeros((len(network.stages), kernel.N_STAGE), np.int64)
        stages[:, kernel.STAGE_POOL], stages[:, kernel.STAGE_LINE] = (
            network.stage_pool,
            network.stage_line,
        )
        stages[:, [kernel.PREFILL_WEIGHT, kernel.DECODE_WEIGHT]] = network.router_weights
        # Ends of batches are the leaves of a tree, whose root is the next one.
        leaves = 1 << max(len(servers) - 1, 1).bit_length()
        width = int(network.pool_lines.max())
        params.flags.writeable = False
        self.net = kernel.Arrays(
            state=state,
            pools=table,
            servers=servers,
            stages=stages,
            lines=line_fields.new_lines(n_lines),
            onward=np.ascontiguousarray(network.onward),
            means=np.column_stack([network.prefill_means, network.decode_means]),
            listed=np.argsort(network.stage_pool, kind="stable"),
            duration=duration,
            params=params,
            slots=self._slots(),
            heads=np.full((n_lines, 64), -1, np.int64),
            bits=np.zeros((n_lines, 1), np.uint64),
            ends=np.full(2 * leaves, NEVER, np.int64),
            touched=np.zeros(len(servers), np.int64),
            lookout=np.zeros((width, 8)),
            weights=np.zeros((width, 2)),
            series=_series(2 + 2 * len(stages) + len(servers)),
            **self._arrays(_no_jobs()),
            heap=np.zeros((0, 2), np.int64),
            ready_now=np.zeros(0, np.int64),
        )
        self.jobs = _no_jobs()

    def _pools(self, pools: list[Pool]) -> tuple[Ints, Floats, Ints]:
        """Return batch times in ticks, parameters of policies and orders, and the table of
        pools.
        """
        network = self.network
        table = np.zeros((len(pools), kernel.N_POOL), np.int64)
        durations: list[Ints] = []
        params: list[Floats] = []
        retention = (
            NEVER if network.retention_s is None else round(network.retention_s / self.tick_s)
        )
        for index, (row, pool) in enumerate(zip(table, pools, strict=True)):
            server = pool.server
            row[kernel.FIRST_SERVER] = network.replicas[:index].sum()
            row[kernel.REPLICAS] = pool.replicas
            row[kernel.ROUTER] = pool.router.code
            row[kernel.AFFINITY] = pool.affinity
            row[kernel.BY_AGE] = pool.order.by_age
            row[kernel.LINES] = network.pool_lines[index]
            row[kernel.BUDGET] = server.token_budget
            row[kernel.SLOTS] = server.max_batch_size or _NO_LIMIT
            row[kernel.RUNNING_SCOPE] = server.scope == "running"
            row[kernel.ENGINE] = server.convention == "engine"
            # Batch times and parameters of all pools lie one after another; a row says where its
            # own begin.
            row[kernel.DURATION] = sum(part.size for part in durations)
            durations.append(ticks_of_batches(server, self.tick_s))
            row[kernel.POLICY_INDEX] = _index(self.policies, pool.policy)
            row[kernel.REPEATS] = pool.repeats
            row[kernel.ORDER_INDEX] = (
                -1 if pool.order.single_line else _index(self.orders, pool.order)
            )
            for field, own in (
                (kernel.POLICY_PARAMS, np.array(server.params, np.float64)),
                (kernel.ORDER_PARAMS, network.order_params[index]),
            ):
                row[field] = sum(part.size for part in params)
                row[field + 1] = row[field] + own.size
                params.append(own)
            row[kernel.RETENTION] = retention
            row[kernel.FIRST_STAGE] = (network.stage_pool < index).sum()
        return np.concatenate(durations), np.concatenate(params), table

    def _servers(self, table: Ints) -> Ints:
        servers = np.zeros((int(self.network.replicas.sum()), kernel.N_SERVER), np.int64)
        servers[:, kernel.POOL] = np.repeat(np.arange(len(table)), table[:, kernel.REPLICAS])
        lines = table[servers[:, kernel.POOL], kernel.LINES]
        servers[:, kernel.FIRST_LINE] = np.cumsum(lines) - lines
        return servers

    def _slots(self) -> Ints:
        """Return a slot for every request that may have decoded: as many as a batch takes, in each
        line.
        """
        room = 0
        for pool, replicas, lines in zip(
            self.network.pools.values(), self.network.replicas, self.network.pool_lines, strict=True
        ):
            most = min(pool.server.token_budget, pool.server.max_batch_size or _NO_LIMIT)
            room += int(replicas * lines) * most
        slots = np.full((N_SLOT_ROWS, room), -1, np.int64)
        slots[SLOT_CHAIN] = np.arange(1, room + 1)
        return slots

    @property
    def now(self) -> int:
        """Tick."""
        return int(self.net.state[kernel.NOW])

    @property
    def finished(self) -> int:
        """Requests that have finished."""
        return int(self.net.state[kernel.FINISHED])

    @property
    def future_tokens(self) -> int:
        """Unprocessed tokens of the jobs that have arrived, their requests to come included."""
        return int(self.net.state[kernel.FUTURE])

    def add(self, jobs: Jobs) -> None:
        """Let these jobs arrive after those known so far."""
        before = self.jobs.count
        arrays = self._arrays(jobs)
        if before:
            for name in (*_PER_REQUEST, *_PER_JOB):
                arrays[name] = np.concatenate([getattr(self.net, name), arrays[name]])
            arrays["job_root"][before:] += self.jobs.requests
        waiting = int(self.net.state[kernel.WAITING_ROOM])
        count = len(arrays["ready"])
        heap = np.zeros((count, 2), np.int64)
        heap[:waiting] = self.net.heap[:waiting]
        self.jobs = Jobs.joined([self.jobs, jobs]) if before else jobs
        self.net = self.net._replace(**arrays, heap=heap, ready_now=np.zeros(count, np.int64))
        self._fit(int(arrays["rows"][:, line_fields.DECODES].max(initial=1)))

    def _arrays(self, jobs: Jobs) -> dict[str, npt.NDArray[Any]]:
        """Return what the kernel needs of some jobs."""
        engine = np.array(
            [pool.server.convention == "engine" for pool in self.network.pools.values()]
        )
        rows = np.zeros((jobs.requests, line_fields.N_ROW), np.int32)
        rows[:, line_fields.LEFT] = jobs.prompt
        first_comes_with_prefill = (
            engine[self.network.stage_pool[jobs.stage]] & (jobs.prompt > 0) & (jobs.output > 0)
        )
        rows[:, line_fields.DECODES] = jobs.output - first_comes_with_prefill
        rows[:, line_fields.SERVER] = rows[:, line_fields.NEXT] = -1
        rows[:, line_fields.PENDING] = jobs.pending
        rows[:, line_fields.STAGE] = jobs.stage
        rows[:, line_fields.CHILD] = jobs.child
        rows[:, line_fields.SIBLING] = jobs.sibling
        tokens = rows[:, line_fields.LEFT].astype(np.int64) + rows[:, line_fields.DECODES]
        never = np.full(jobs.requests, -1, np.int64)
        return {
            "rows": rows,
            "delay": self._counted("a delay", jobs.delay_s),
            "coin": jobs.coin,
            "context": jobs.context,
            "reuse": jobs.reuse,
            "home": self._homes(jobs),
            "cached": np.zeros(jobs.requests, np.int32),
            "ready": never,
            "first_token": never.copy(),
            "finish": never.copy(),
            "job_arrival": self._counted("an arrival", jobs.arrival_s),
            "job_root": jobs.first_request[:-1].copy(),
            "job_tokens": np.add.reduceat(tokens, jobs.first_request[:-1])
            if jobs.count
            else np.zeros(0, np.int64),
        }

    def _counted(self, what: str, seconds: Floats) -> Ints:
        """Round to ticks."""
        longest = float(seconds.max(initial=0.0))
        if longest / self.tick_s >= NEVER / 4:
            raise InputError(
                f"{what} of {longest:g} s is more ticks of {self.tick_s:g} s than can be counted; "
                "give a larger "
                "tick_s, or ask for less"
            )
        return np.rint(seconds / self.tick_s).astype(np.int64)

    def _homes(self, jobs: Jobs) -> Ints32:
        """Return the offset to the first request of the same job at the same pool, where a pool has
        affinity.
        """
        if not any(pool.affinity for pool in self.network.pools.values()):
            return np.zeros(jobs.requests, np.int32)
        key = jobs.job * len(self.network.pools) + self.network.stage_pool[jobs.stage]
        _, first, group = np.unique(key, return_index=True, return_inverse=True)
        return np.asarray(first[group] - np.arange(jobs.requests), np.int32)

    def _fit(self, longest: int) -> None:
        """Make the rings of due epochs larger than the longest output, and put the linked requests
        in anew.
        """
        size = max(64, 1 << longest.bit_length())
        if size <= self.net.heads.shape[1]:
            return
        n_lines = len(self.net.lines)
        heads, bits = (
            np.full((n_lines, size), -1, np.int64),
            np.zeros((n_lines, size // 64), np.uint64),
        )
        for line in np.flatnonzero(self.net.lines[:, line_fields.LINKED]):
            slot = int(self.net.lines[line, line_fields.FIRST_LINKED])
            while slot >= 0:
                chain(self.net.slots, heads[line], bits[line], slot)
                slot = int(self.net.slots[SLOT_NEXT, slot])
        self.net = self.net._replace(heads=heads, bits=bits)

    def run(self, final: bool, until: int | None = None, steps: int = NEVER) -> bool:
        """Call the kernel until the jobs known are used up, or for so many batches; return whether
        they are.
        """
        state = self.net.state
        state[kernel.FINAL], state[kernel.STEPS] = final, steps
        state[kernel.UNTIL] = self.stop if until is None else until
        policies = _functions(self.policies)
        orders = _functions(self.orders or [ORDERS["round-robin"]])
        try:
            with (
                warnings.catch_warnings()
            ):  # functions as arguments: Numba calls them experimental at every first call
                warnings.simplefilter("ignore", NumbaExperimentalFeatureWarning)
                status = compiled_advance()(policies, orders, self.net)
        except (
            ArithmeticError,
            LookupError,
            TypeError,
            ValueError,
            AssertionError,
            SystemError,
        ) as error:
            names = ", ".join(repr(rule.name) for rule in (*self.policies, *self.orders))
            raise InputError(
                f"one of {names} failed: {type(error).__name__}: {error}; a policy or an order "
                "must answer for every "
                "queue"
            ) from error
        if status not in (DONE, MORE, PAUSED):
            self._refuse(status)
        return status in (DONE, MORE)

    def _refuse(self, status: int) -> None:
        failed = int(self.net.servers[self.net.state[kernel.FAILED], kernel.POOL])
        name, pool = list(self.network.pools.items())[failed]
        if status == kernel.BAD_ORDER:
            raise InputError(
                f"order {pool.order.name!r} of pool {name!r} gave a weight that is not finite, a "
                "share below 0, or an "
                "unknown mode; give finite weights, and return BY_LINE, BY_PHASE or SPLIT"
            )
        policy = f"policy {pool.policy.name!r} of pool {name!r}"
        if status == BAD_POLICY:
            raise InputError(f"{policy} asked for a negative number of tokens; return at least 0")
        raise InputError(
            f"{policy} formed an empty batch while requests wait, so they would wait for ever; "
            "let it serve something "
            "whenever it can"
        )

    def fold(self, everything: bool) -> Passed:
        """Drop the jobs at the front that are done, or all, and return what became of them."""
        net = self.net
        if everything:
            net.first_token[net.first_token > self.now] = -1  # of batches still in progress
        open_requests = np.flatnonzero(net.finish < 0)
        jobs = self.jobs.count
        if open_requests.size and not everything:
            jobs = int(np.searchsorted(self.jobs.first_request, open_requests[0], side="right")) - 1
        count = int(self.jobs.first_request[jobs])
        passed = Passed(
            self.jobs.span(0, jobs),
            net.job_arrival[:jobs],
            net.rows[:count, line_fields.SERVER].copy(),
            net.ready[:count],
            net.first_token[:count],
            net.finish[:count],
            net.cached[:count],
        )
        if everything:
            return passed
        kept = {name: getattr(net, name)[count:].copy() for name in _PER_REQUEST}
        kept |= {name: getattr(net, name)[jobs:].copy() for name in _PER_JOB}
        kept["job_root"] -= count
        following = kept["rows"][:, line_fields.NEXT]
        following[following >= 0] -= count
        for field in line_fields.REQUEST_LINKS:
            column = net.lines[:, field]
            column[column >= 0] -= count
        net.slots[SLOT_REQUEST] -= count
        net.heap[: net.state[kernel.WAITING_ROOM], 1] -= count
        net.state[kernel.NEXT_JOB] -= jobs
        self.net = net._replace(**kept)
        self.jobs = self.jobs.span(jobs, self.jobs.count)
        return passed

    def busy(self) -> Ints:
        """Return the ticks that each replica has been busy, up to now."""
        servers = self.net.servers
        partly = servers[:, kernel.REPEAT] > 0
        running = np.where(partly, np.maximum(self.now - servers[:, kernel.START], 0), 0)
        return np.asarray(servers[:, kernel.BUSY] + running)


def _functions(rules: list[Any]) -> tuple[Any, ...]:
    """Return compiled policies or orders, as many as the kernel takes."""
    compiled = [rule.compiled for rule in rules]
    return (*compiled, *[compiled[0]] * (kernel.MOST_POLICIES - len(compiled)))


def _distinct(rules: list[Any], what: str) -> list[Any]:
    """Return one of those that have a function in common."""
    distinct = list({rule.function: rule for rule in rules}.values())
    if len(distinct) > kernel.MOST_POLICIES:
        names = ", ".join(rule.name for rule in distinct)
        raise InputError(
            f"the pools have {len(distinct)} different {what} ({names}), but a network takes up to "
            f"{kernel.MOST_POLICIES}; let some pools share one"
        )
    return distinct


def _index(rules: list[Any], wanted: Any) -> int:
    return next(index for index, rule in enumerate(rules) if rule.function is wanted.function)


def _series(columns: int) -> Ints:
    """Return room for the series: fewer instants where there are many replicas."""
    instants = min(SERIES_INSTANTS, max(_MOST_SERIES // columns, _FEWEST_INSTANTS))
    return np.zeros((instants // 2 * 2, columns), np.int64)


def _no_jobs() -> Jobs:
    none, reals = np.zeros(0, np.int32), np.zeros(0)
    return Jobs(reals, none, np.zeros(1, np.int64), none, none, none, none, none, reals, none,
    none, none,
                np.zeros(0, np.uint32))  # fmt: skip
