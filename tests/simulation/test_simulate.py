"""Simulate turns what a user says into a run, or says what is wrong with it."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.kernel.due_epochs import NEVER
from penstock.simulation.paper_session import PaperSession
from penstock.simulation.running import drawn_ahead
from penstock.workload.jobs import Jobs, Requests
from tests.own_policies import own_policy

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
SERVER = ps.Server(TP1, 512, 128)
WORKLOAD = ps.Workload.poisson(rate=2.0, prompt=ps.LogNormal(800, 1.0), output=ps.Geometric(150), seed=3)


@own_policy
def lazy(queue, limits, params):  # type: ignore[no-untyped-def]
    return 0, queue.decoding, ps.DECODE_FIRST


@own_policy
def negative(queue, limits, params):  # type: ignore[no-untyped-def]
    return -1, 1, ps.DECODE_FIRST


@own_policy
def greedy(queue, limits, params):  # type: ignore[no-untyped-def]
    return 1_000_000, 1_000_000, ps.DECODE_FIRST


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    first, again = (ps.simulate(WORKLOAD, SERVER, requests=500).requests for _ in range(2))
    assert first.equals(again)
    assert not first.equals(ps.simulate(WORKLOAD.with_seed(4), SERVER, requests=500).requests)


def test_every_policy_serves_the_same_requests() -> None:
    runs = [ps.simulate(WORKLOAD, SERVER.with_policy(name), requests=300).requests for name in ps.POLICIES]
    given = ["request", "arrival_ns", "prompt_tokens", "output_tokens"]
    for run in runs[1:]:
        assert run.select(given).equals(runs[0].select(given))


def test_all_requests_leave_and_their_tokens_are_all_processed() -> None:
    run = ps.simulate(WORKLOAD, SERVER, requests=1000)
    assert (run.arrived, run.finished, run.unfinished) == (1000, 1000, 0)
    assert run.tokens == run.requests["prompt_tokens"].sum() + run.requests["output_tokens"].sum() - 1000
    assert run.requests["finish_ns"].max() == run.end


def test_an_endless_workload_above_capacity_stops_at_the_last_arrival_and_counts_the_rest() -> None:
    run = ps.simulate(WORKLOAD.with_rate(20.0), SERVER, requests=1000)
    assert run.end == run.last_arrival == run.requests["arrival_ns"].max()
    assert run.unfinished == run.requests["finish_ns"].null_count() > 0


def test_a_recording_above_capacity_is_served_to_its_end() -> None:
    recording = ps.Workload.from_arrays(*WORKLOAD.with_rate(20.0).requests(200))
    assert ps.simulate(recording, SERVER).unfinished == 0


def test_until_stops_there_and_counts_what_had_arrived() -> None:
    run = ps.simulate(WORKLOAD, SERVER, until=100.0)
    assert run.seconds == 100.0
    arrivals = WORKLOAD.requests(1000).arrival_s
    assert run.arrived == int((arrivals <= 100.0).sum())
    assert run.requests["finish_ns"].drop_nulls().max() <= 100e9


@pytest.mark.parametrize("record", ["requests", "summary"])
def test_until_stops_there_above_capacity_too(record: str) -> None:
    run = ps.simulate(WORKLOAD.with_rate(20.0), SERVER, until=100.0, record=record)  # type: ignore[arg-type]
    assert run.seconds == 100.0


@pytest.mark.parametrize("more", [0, 1, 2])
def test_a_summary_stops_at_the_last_arrival_however_its_blocks_end(more: int) -> None:
    overload = ps.Workload.poisson(rate=500.0, prompt=100, output=20)
    rows, summary = (
        ps.simulate(overload, SERVER, requests=65_536 + more, record=record)  # type: ignore[arg-type]
        for record in ("requests", "summary")
    )
    assert summary.end == rows.end == rows.last_arrival == summary.last_arrival
    assert (summary.finished, summary.tokens, summary.n_batches) == (rows.finished, rows.tokens, rows.n_batches)
    assert np.array_equal(summary.series_rows, rows.series_rows)


def test_the_first_requests_do_not_depend_on_how_many_follow() -> None:
    few, many = (ps.simulate(WORKLOAD, SERVER, requests=n).requests for n in (200, 2000))
    done = few.filter(few["finish_ns"] < few["arrival_ns"].max())
    assert done.height > 100
    assert many.head(200).filter(few["finish_ns"] < few["arrival_ns"].max()).equals(done)


def test_ticks_may_be_coarse_and_times_are_rounded_once() -> None:
    recording = ps.Workload.from_arrays([5.0, 5.26, 7.0], [10, 10, 10], [2, 2, 2])
    server = ps.Server(ps.PiecewiseConstant(c=0.31, a=0.0, b0=1), 100)
    run = ps.simulate(recording, server, tick_s=0.1)
    assert run.requests["arrival_ns"].to_list() == [0, 300_000_000, 2_000_000_000]
    assert run.requests["first_token_ns"].to_list() == [300_000_000, 600_000_000, 2_300_000_000]


def test_the_summary_keeps_no_rows_and_says_how_to_keep_them() -> None:
    run = ps.simulate(WORKLOAD, SERVER, requests=100, record="summary")
    for table in ("requests", "batches", "allocations"):
        with pytest.raises(ps.InputError, match=f"record='{table}'"):
            getattr(run, table)


def test_a_policy_that_asks_for_more_than_there_is_gets_what_there_is() -> None:
    cut = ps.simulate(WORKLOAD, SERVER.with_policy(greedy), requests=300).requests
    assert cut.equals(ps.simulate(WORKLOAD, SERVER.with_policy("sarathi"), requests=300).requests)


def test_progress_rises_to_at_most_one() -> None:
    shares: list[float] = []
    ps.simulate(WORKLOAD, SERVER, requests=1_500_000, record="summary", progress=shares.append)
    assert shares
    assert shares == sorted(shares)
    assert all(0 <= share <= 1 for share in shares)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "never ends"),
        ({"requests": 0}, "requests is 0"),
        ({"requests": 1.5}, "requests is 1.5"),
        ({"requests": 5, "until": 1.0}, "give one of them"),
        ({"until": -1.0}, "until is -1.0"),
        ({"until": float("nan")}, "until is nan"),
        ({"requests": 5, "record": "reqests"}, "did you mean 'requests'"),
        ({"requests": 5, "tick_s": 0}, "tick_s is 0"),
        ({"requests": 5, "tick_s": 1.0}, "lower tick_s"),
        ({"requests": 5, "tick_s": 1e-18}, "raise tick_s"),
        ({"requests": 5, "tick_s": 0.0}, "tick_s is 0"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(ps.InputError) as caught:
        ps.simulate(WORKLOAD, SERVER, **arguments)  # type: ignore[arg-type]
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_recording_is_replayed_once() -> None:
    recording = ps.Workload.from_arrays([0.0, 1.0], [5, 5], [5, 5])
    with pytest.raises(ps.InputError, match="replayed once"):
        ps.simulate(recording, SERVER, requests=3)


@pytest.mark.parametrize(("policy", "said"), [(lazy, "empty batch"), (negative, "negative number of tokens")])
def test_a_policy_that_cannot_go_on_is_named_with_what_waited(policy: ps.Policy, said: str) -> None:
    with pytest.raises(ps.InputError, match=said) as caught:
        ps.simulate(WORKLOAD, SERVER.with_policy(policy), requests=10)
    assert policy.name in str(caught.value)


@own_policy
def not_a_number(queue, limits, params):  # type: ignore[no-untyped-def]
    return (queue.prompt_tokens if queue.decoding == 0 else np.nan), queue.decoding, ps.DECODE_FIRST


@own_policy
def third_phase(queue, limits, params):  # type: ignore[no-untyped-def]
    return queue.prompt_tokens, queue.decoding, 7


@own_policy
def half_a_phase(queue, limits, params):  # type: ignore[no-untyped-def]
    return queue.prompt_tokens, queue.decoding, 0.5


@pytest.mark.parametrize("policy", [not_a_number, third_phase, half_a_phase])
@pytest.mark.parametrize("memory", [None, ps.Memory(1_000)])
def test_a_policy_that_asks_for_what_is_no_number_or_no_phase_is_refused(
    policy: ps.Policy, memory: ps.Memory | None
) -> None:
    """In the loop of a server, in that of engines, in networks, and by theory; nothing is cut to a whole number."""
    server = dataclasses.replace(SERVER.with_policy(policy), memory=memory)
    network = ps.Network.single(WORKLOAD, server, 2, "jsq")
    for run in (lambda: ps.simulate(WORKLOAD, server, requests=50), lambda: ps.simulate(network, jobs=50)):
        with pytest.raises(ps.InputError, match="no number, or another phase first"):
            run()
    assert ps.certify(WORKLOAD, dataclasses.replace(server, memory=None)).verdict == "unknown"


@own_policy
def endless(queue, limits, params):  # type: ignore[no-untyped-def]
    return np.inf, 0.5 + queue.decoding, ps.DECODE_FIRST


@own_policy
def everything(queue, limits, params):  # type: ignore[no-untyped-def]
    return queue.prompt_tokens, queue.decoding, ps.DECODE_FIRST


def test_a_policy_may_ask_for_more_than_there_is_in_any_numbers() -> None:
    runs = [ps.simulate(WORKLOAD, SERVER.with_policy(p), requests=500) for p in (endless, everything)]
    assert runs[0].rows.finish.tolist() == runs[1].rows.finish.tolist()  # type: ignore[union-attr]


@own_policy
def reads_too_far(queue, limits, params):  # type: ignore[no-untyped-def]
    return int(params[3]), queue.decoding, ps.DECODE_FIRST


@own_policy
def divides(queue, limits, params):  # type: ignore[no-untyped-def]
    return limits.token_budget // queue.decoding, queue.decoding, ps.DECODE_FIRST


@pytest.mark.parametrize(("policy", "said"), [(reads_too_far, "IndexError"), (divides, "ZeroDivisionError")])
def test_a_policy_that_fails_is_named_with_its_mistake(policy: ps.Policy, said: str) -> None:
    with pytest.raises(ps.InputError, match=f"{policy.name}.*{said}") as caught:
        ps.simulate(WORKLOAD, SERVER.with_policy(policy), requests=10)
    assert "\n" not in str(caught.value)


def test_a_low_rate_is_simulated_as_far_as_asked() -> None:
    run = ps.simulate(WORKLOAD.with_rate(1e-5), SERVER, until=1e6)
    assert run.seconds == 1e6
    assert 1 <= run.arrived < 40


@pytest.mark.parametrize("given", [5, "x", [], {}, math.nan, np.array([1, 2]), object()])
def test_values_of_a_wrong_kind_are_refused_in_one_line_whatever_they_are(given: Any) -> None:
    def simulated(**settings: Any) -> Callable[[], object]:
        return lambda: ps.simulate(WORKLOAD, SERVER, requests=9, **settings)

    asked: dict[str, Callable[[], object]] = {
        "targets are": lambda: ps.check(WORKLOAD, SERVER, requests=9, targets=[given]),
        "estimate_memory is": lambda: ps.check(WORKLOAD, SERVER, requests=9, estimate_memory=given),
        "compress is": simulated(compress=given),
        "drain is": simulated(drain=given),
        "unknown record": simulated(record=given),
        "progress is": simulated(progress=given),
        "progress is  ": lambda: ps.max_rate(WORKLOAD, SERVER, progress=given),
        "unknown arrivals": lambda: WORKLOAD.with_rate(1.0, given),
        "unknown workload preset": lambda: ps.Workload.preset(given),
        "unknown hardware": lambda: ps.hardware(given),
    }
    if isinstance(given, str):
        del asked["targets are"]
    for said, ask in asked.items():
        with pytest.raises(ps.InputError, match=said.strip()) as refused:
            ask()
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("given", [None, 5, math.nan, np.array(["ttft_p99<2s"])])
def test_targets_that_are_no_list_are_refused(given: Any) -> None:
    with pytest.raises(ps.InputError, match=r"targets are .*, but must be a list"):
        ps.check(WORKLOAD, SERVER, requests=9, targets=given)


@pytest.mark.parametrize("last", [4e9, 9e9, 1e12])
def test_arrivals_later_than_ticks_can_count_are_refused_and_none_is_dropped(last: float) -> None:
    workload = ps.Workload.from_arrays([0, last, last], [1, 1, 1], [1, 1, 1])
    with pytest.raises(ps.InputError, match=r"an arrival of .* s is more ticks of 1e-09 s than can be counted"):
        ps.simulate(workload, SERVER)
    assert ps.simulate(workload, SERVER, until=1.0).arrived == 1


def test_times_beyond_64_bits_of_nanoseconds_are_refused_not_wrapped() -> None:
    run = ps.simulate(ps.Workload.from_arrays([0, 1e10], [1, 1], [1, 1]), SERVER, tick_s=1e-2)
    with pytest.raises(ps.InputError, match="64 bits"):
        _ = run.requests


def test_what_is_no_workload_or_server_is_refused() -> None:
    for call in (ps.simulate, ps.certify):
        with pytest.raises(ps.InputError, match="a Workload and a Server"):
            call(None, SERVER)  # type: ignore[arg-type]
        with pytest.raises(ps.InputError, match="a Workload and a Server"):
            call(WORKLOAD, None)  # type: ignore[arg-type]
    with pytest.raises(ps.InputError, match="takes a Run"):
        ps.audit(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("odd", ["sarathy", 5, None, max, int, [1]])
def test_what_is_no_policy_is_refused(odd: object) -> None:
    with pytest.raises(ps.InputError, match="policy"):
        SERVER.with_policy(odd)  # type: ignore[arg-type]


def test_a_claim_to_conserve_work_is_true_or_false() -> None:
    with pytest.raises(ps.InputError, match="work_conserving is 'no'; known: True, False"):
        ps.policy(work_conserving="no")(greedy.function)  # type: ignore[call-overload]


def test_a_function_that_is_no_policy_is_refused() -> None:
    with pytest.raises(ps.InputError, match="takes 1 argument "):
        SERVER.with_policy(lambda queue: (0, 0, 0))  # type: ignore[arg-type, misc]
    with pytest.raises(ps.InputError, match="cannot be compiled") as caught:
        SERVER.with_policy(lambda queue, limits, params: "all of them")  # type: ignore[arg-type, return-value]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"token_budget": 0}, "token_budget is 0"),
        ({"token_budget": -5}, "token_budget is -5"),
        ({"token_budget": 2.5}, "token_budget is 2.5"),
        ({"token_budget": 10**9}, "1,048,576"),
        ({"token_budget": 8, "max_batch_size": 0}, "max_batch_size is 0"),
        ({"token_budget": 8, "policy": "sarthi"}, "did you mean 'sarathi'"),
        ({"token_budget": 8, "scope": "running?"}, "did you mean 'running'"),
        ({"token_budget": 8, "convention": "papr"}, "did you mean 'paper'"),
    ],
)
def test_a_server_that_cannot_be_is_refused(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(ps.InputError) as caught:
        ps.Server(TP1, **arguments)  # type: ignore[arg-type]
    assert said in str(caught.value)


def test_long_and_short_outputs_together_are_served_exactly_as_long_as_they_are() -> None:
    """The ring of due epochs grows when a longer output comes in a later block of a summary."""
    output = np.ones(200_000, np.int64)
    output[-1] = 100_000
    recording = ps.Workload.from_arrays(np.arange(200_000) * 0.05, np.ones(200_000, np.int64), output)
    run = ps.simulate(recording, SERVER, record="summary")
    assert run.tokens == 200_000 + 99_999
    assert run.gaps.size == 99_999


def test_a_run_that_would_take_days_is_refused() -> None:
    with pytest.raises(ps.InputError, match="more arrivals take days; give fewer"):
        ps.simulate(WORKLOAD, SERVER, requests=10**12)


def counted(drawn: list[int], most: int) -> Iterator[int]:
    """Yield numbers, write each down, and fail in the end."""
    for number in range(most):
        drawn.append(number)
        yield number
    raise ValueError("no more")


def settled(drawn: list[int], count: int) -> list[int]:
    """Return what was drawn, once as many were; and give a thread that draws too many time to."""
    deadline = time.monotonic() + 10
    while len(drawn) < count and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.01)
    return drawn


def test_a_thread_draws_one_block_ahead_and_never_two() -> None:
    drawn: list[int] = []
    with contextlib.closing(drawn_ahead(counted(drawn, 9))) as coming:
        for number in (0, 1, 2):
            assert next(coming) == number
            assert settled(drawn, number + 2) == list(range(number + 2))
    assert settled(drawn, 4) == [0, 1, 2, 3]


def test_an_error_of_a_block_comes_when_that_block_would() -> None:
    coming = drawn_ahead(counted([], 2))
    assert [next(coming), next(coming)] == [0, 1]
    with pytest.raises(ValueError, match="no more"):
        next(coming)


def test_nothing_is_drawn_after_a_run_that_fails() -> None:
    before = ps.simulate(WORKLOAD, SERVER, requests=200_000, record="summary")
    for record in ("summary", "requests"):
        with pytest.raises(ps.InputError, match="empty batch"):
            ps.simulate(WORKLOAD, SERVER.with_policy(lazy), requests=200_000, record=record)  # type: ignore[arg-type]
    again = ps.simulate(WORKLOAD, SERVER, requests=200_000, record="summary")
    assert again.latency().equals(before.latency())


def test_compiled_code_gets_arrays_of_just_the_types_that_it_takes_on_trust() -> None:
    """Whatever they were: other numbers, every other item, a read-only list of Python."""
    ticks = np.arange(20, dtype=np.int32)[::2]
    session = PaperSession(SERVER, "requests", 1e-3, True, NEVER)
    session.add(Jobs.of_requests(Requests(ticks, np.arange(10)[::-1], np.ones(10))))  # type: ignore[arg-type]
    columns = [getattr(session.world, name) for name in PaperSession.of_jobs]
    assert [column.dtype for column in columns] == [np.int64, np.int32, np.int32, np.int64, np.int64]
    assert all(column.flags.c_contiguous for column in columns)
    assert session.arrivals.tolist() == list(range(0, 20_000, 2_000))
