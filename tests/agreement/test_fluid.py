"""Simulated runs from large backlogs, scaled by their size, approach the fluid path."""

from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.simulation.paper_session import PaperSession
from penstock.simulation.running import Running
from penstock.theory.fluid import fluid
from penstock.workload.jobs import Jobs

PROMPT, OUTPUT = (1, 79), (2, 38)  # uniform; no output is a single token, so all that leaves prefill has to decode
SERVER = ps.Server(ps.PiecewiseConstant(c=0.01, a=0.02, b0=32), 64)
FULL = 64 / 0.05
SEEDS = range(6)
POLICIES = ("sarathi", "orca")


def mean_of(low_high: tuple[int, int]) -> float:
    return sum(low_high) / 2


def second_moment_of_tokens() -> tuple[float, float]:
    """Variance and mean square of a request's forward tokens, one less than prompt and output."""
    variance = sum(((high - low + 1) ** 2 - 1) / 12 for low, high in (PROMPT, OUTPUT))
    return variance, variance + (mean_of(PROMPT) + mean_of(OUTPUT) - 1) ** 2


def simulated(server: ps.Server, state: tuple[float, float], size: int, rate: float, until: float, seed: int) -> ps.Run:
    """Start with a backlog of ``size`` times the state in (prefill, decode), the oldest in decode."""
    rng = np.random.default_rng(seed)
    decoding = round(state[1] * size)
    later = np.sort(rng.uniform(0, until, rng.poisson(rate * until)))
    arrival = np.r_[np.zeros(decoding + round(state[0] * size)), later]
    prompt, output = (rng.integers(*limits, arrival.size, endpoint=True) for limits in (PROMPT, OUTPUT))
    workload = ps.Workload.from_arrays(arrival, prompt, output)
    session = PaperSession(server, "requests", 1e-9, True, round(until * 1e9))
    session.add(Jobs.of_requests(workload.requests(arrival.size)))
    session.prefilled(decoding)
    running = Running(session, whole=True, drain=True, total=None)
    running.through(iter(()))
    return running.finish(server)


def in_phases(run: ps.Run, time_s: Any) -> tuple[Any, Any]:
    """Requests in prefill and in decode: for engines the first token comes with the end of prefill."""
    rows = run.rows
    assert rows is not None
    ticks = time_s / run.tick_s
    came, began, left = (
        np.searchsorted(np.sort(column[column >= 0]), ticks, side="right")
        for column in (rows.arrival, rows.first_token, rows.finish)
    )
    return came - began, began - left


def unprocessed(run: ps.Run, time_s: Any) -> Any:
    return np.interp(time_s, run.series["time_s"], run.series["unprocessed_tokens"])


def distance(policy: str, load: float, state: tuple[float, float], size: int, seed: int) -> tuple[float, float]:
    """Furthest that the requests in a phase, and the tokens, are from the fluid path, per request of the backlog.

    Over 1.2 times the time that the fluid takes to drain.
    """
    server = SERVER.with_policy(policy)
    rate = load * FULL / (mean_of(PROMPT) + mean_of(OUTPUT) - 1)
    lengths = {"prompt": mean_of(PROMPT), "output": mean_of(OUTPUT)}
    path = fluid(server, arrival_rate=rate, prefill=state[0], decode=state[1], **lengths)
    time = np.linspace(0, 1.2 * path.drain_s, 300)
    run = simulated(server, state, size, rate, time[-1] * size, seed)
    phases = zip(in_phases(run, time * size), path.at(time), strict=True)
    requests = max(np.abs(counted / size - expected).max() for counted, expected in phases)
    return requests, np.abs(unprocessed(run, time * size) / size - path.work_at(time)).max()


def mean_distance(policy: str, load: float, state: tuple[float, float], size: int) -> tuple[float, float]:
    requests, tokens = zip(*(distance(policy, load, state, size, seed) for seed in SEEDS), strict=True)
    return float(np.mean(requests)), float(np.mean(tokens))


class TestOneClass:
    @pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
    @pytest.mark.parametrize("state", [(1.0, 0.0), (0.4, 0.6), (0.0, 1.0)])
    @pytest.mark.parametrize("policy", POLICIES)
    def test_sixteen_times_the_backlog_halves_the_distance_at_least_and_64_times_it_divides_it_by_4(
        self, policy: str, state: tuple[float, float], load: float
    ) -> None:
        """The law is 1 / sqrt(size): 4 and 8. Averages of 6 seeds, of each phase."""
        small, middle, large = (mean_distance(policy, load, state, size)[0] for size in (200, 3_200, 12_800))
        assert middle < small / 2
        assert large < min(small / 4, 0.1)

    @pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
    @pytest.mark.parametrize("policy", POLICIES)
    @pytest.mark.parametrize("size", [200, 800, 3_200, 12_800])
    def test_the_work_stays_within_what_chance_explains(self, policy: str, load: float, size: int) -> None:
        """Tokens that come in less b_max / t_bmax are a martingale: by Doob sup <= 2 sqrt(var) on average.

        The server adds what short batches lose: at most as much again, and what can wait while a batch is short.
        """
        variance, square = second_moment_of_tokens()
        rate = load * FULL / (mean_of(PROMPT) + mean_of(OUTPUT) - 1)
        drain = (mean_of(PROMPT) + mean_of(OUTPUT) - 1) / (FULL * (1 - load))
        chance = 2 * ((variance + rate * 1.2 * drain * square) / size) ** 0.5
        short = 64 * (1 + OUTPUT[1])
        assert mean_distance(policy, load, (1.0, 0.0), size)[1] < 2 * chance + (short + 64) / size


class TestClassesServedFirstComeFirstServed:
    """Which class is served when depends on how they are mixed, but the total work does not."""

    rates, prompt, output = np.array([6.0, 2.0]), np.array([20, 100]), np.array([30, 6])
    state = np.array([0.3, 0.7])

    @pytest.mark.parametrize("policy", [*POLICIES])
    @pytest.mark.parametrize("mixed", [True, False])
    def test_the_work_approaches_the_path_whatever_the_mix(self, policy: str, mixed: bool) -> None:
        server = SERVER.with_policy(policy)
        path = fluid(server, arrival_rate=self.rates, prompt=self.prompt, output=self.output, prefill=self.state)
        time = np.linspace(0, 1.2 * path.drain_s, 300)
        mean = []
        for size in (200, 3_200):
            furthest = []
            for seed in SEEDS:
                rng = np.random.default_rng(seed)
                kind = np.repeat([0, 1], np.round(size * self.state).astype(int))
                later = np.sort(rng.uniform(0, time[-1] * size, rng.poisson(self.rates.sum() * time[-1] * size)))
                kinds = np.r_[rng.permutation(kind) if mixed else kind, rng.choice(2, later.size, p=self.rates / 8)]
                arrival = np.r_[np.zeros(size), later]
                workload = ps.Workload.from_arrays(arrival, self.prompt[kinds], self.output[kinds])
                run = ps.simulate(workload, server, until=time[-1] * size)
                furthest.append(np.abs(unprocessed(run, time * size) / size - path.work_at(time)).max())
            mean.append(np.mean(furthest) / path.work[0])
        assert mean[1] < min(mean[0] / 2, 0.05)


class TestManyClasses:
    """Answers are judged, and half of the judged ones are written anew; buffers are served in a fixed order."""

    arrival_rate, prompt, output = np.array([3.0, 1.0]), np.array([40, 15]), np.array([20, 5])
    routing = np.array([[0.0, 1.0], [0.5, 0.0]])
    state = np.array([[0.6, 0.0], [0.0, 0.4]])  # (phase, class)

    def simulated(self, order: Any, size: int, until: float, seed: int) -> tuple[Any, Any]:
        """Batches of 64 tokens one after another; counts[i] holds at times[i] the requests by (phase, class)."""
        rng = np.random.default_rng(seed)
        # a buffer is a list of the tokens that its requests have left, oldest first
        left = {(0, phase): [] for phase in ("prefill", "decode")} | {(1, phase): [] for phase in ("prefill", "decode")}
        for i, phase in enumerate(("prefill", "decode")):
            for j in (0, 1):
                left[j, phase] = [(self.prompt, self.output)[i][j]] * round(size * self.state[i, j])
        now, times, counts = 0.0, [], []
        while now < until:
            times.append(now)
            counts.append([[len(left[j, phase]) for j in (0, 1)] for phase in ("prefill", "decode")])
            budget, batch = 64, []
            for j, phase in order:
                queue = left[j, phase]
                if phase == "decode":
                    count = min(budget, len(queue))
                    queue[:count] = [tokens - 1 for tokens in queue[:count]]
                    budget -= count
                else:
                    count = 0
                    while budget and count < len(queue):
                        taken = min(budget, queue[count])
                        queue[count] -= taken
                        budget -= taken
                        count += 1
                batch.append((j, phase, count))
            length = float(SERVER.batch_time(64 - budget)) or 1e-3
            for j, phase, count in batch:
                done = left[j, phase][:count].count(0)
                left[j, phase] = [tokens for tokens in left[j, phase] if tokens]
                if phase == "prefill":
                    left[j, "decode"] += [self.output[j]] * done
                else:
                    for k in (0, 1):
                        on = rng.binomial(done, self.routing[j, k])
                        left[k, "prefill"] += [self.prompt[k]] * on
            for j in (0, 1):
                left[j, "prefill"] += [self.prompt[j]] * rng.poisson(self.arrival_rate[j] * length)
            now += length
        return np.array(times), np.array(counts)

    @pytest.mark.parametrize(
        "order",
        [
            [(0, "decode"), (1, "decode"), (0, "prefill"), (1, "prefill")],
            [(0, "prefill"), (1, "prefill"), (0, "decode"), (1, "decode")],
            [(1, "decode"), (0, "prefill"), (1, "prefill"), (0, "decode")],
        ],
    )
    def test_the_requests_of_each_class_and_phase_approach_the_path(self, order: Any) -> None:
        server = ps.Server(SERVER.batch_time, 64, convention="paper")
        path = fluid(
            server,
            arrival_rate=self.arrival_rate,
            prompt=self.prompt,
            output=self.output,
            prefill=self.state[0],
            decode=self.state[1],
            routing=self.routing,
            order=order,
        )
        mean = []
        for size in (100, 900):
            furthest = []
            for seed in range(4):
                times, counts = self.simulated(order, size, 1.2 * path.drain_s * size, seed)
                expected = np.stack(path.at(times / size), axis=1)
                furthest.append(np.abs(counts / size - expected).max())
            mean.append(np.mean(furthest))
        assert mean[1] < min(mean[0] / 3, 0.15)
