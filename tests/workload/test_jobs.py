"""What must be true of tables of jobs: parts, orders and merged streams keep every job whole."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import InputError
from penstock.workload.jobs import Jobs, first_jobs, merged

DTYPES = {
    "arrival_s": np.float64, "workflow": np.int32, "first_request": np.int64, "stage": np.int32, "prompt": np.int32,
    "output": np.int32, "reuse": np.int32, "context": np.int32, "delay_s": np.float64, "pending": np.int32,
    "child": np.int32, "sibling": np.int32, "coin": np.uint32,
}  # fmt: skip


def chains(arrival_s, lengths, mark=0):
    """Jobs that are chains of so many requests; prompts number them from the mark on."""
    count = sum(lengths)
    begins = np.cumsum([0, *lengths])
    place = np.concatenate([np.arange(length) for length in lengths] or [[]])
    last = np.concatenate([np.arange(length) == length - 1 for length in lengths] or [np.zeros(0, bool)])
    columns = {
        "arrival_s": arrival_s, "workflow": [mark] * len(lengths), "first_request": begins, "stage": place,
        "prompt": mark + np.arange(count), "output": [1] * count, "reuse": place, "context": -(place > 0).astype(int),
        "delay_s": [0.5] * count, "pending": (place > 0).astype(int), "child": (~last).astype(int),
        "sibling": [0] * count, "coin": np.arange(count),
    }  # fmt: skip
    return Jobs(**{name: np.array(column, DTYPES[name]) for name, column in columns.items()})


def rows(jobs):
    """Return each job with its requests as plain tuples."""
    whole = []
    for job in range(jobs.count):
        requests = range(*jobs.first_request[job : job + 2])
        columns = [getattr(jobs, name) for name in list(DTYPES)[3:]]
        whole.append(
            (jobs.arrival_s[job], jobs.workflow[job], [tuple(column[r].item() for column in columns) for r in requests])
        )
    return whole


def test_every_column_has_its_type_and_jobs_know_their_requests():
    jobs = chains([0.0, 1.0, 5.0], [2, 1, 3])
    assert {name: getattr(jobs, name).dtype.type for name in DTYPES} == DTYPES
    assert (jobs.count, jobs.requests, jobs.job.tolist()) == (3, 6, [0, 0, 1, 2, 2, 2])


def test_the_first_jobs_are_these_jobs_with_all_their_requests():
    jobs = chains([0.0, 1.0, 5.0], [2, 1, 3])
    assert rows(jobs.first(2)) == rows(jobs)[:2]
    assert rows(jobs.first(99)) == rows(jobs)
    assert rows(jobs.span(1, 3)) == rows(jobs)[1:]
    assert jobs.span(1, 3).first_request.tolist() == [0, 1, 4]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.data())
def test_jobs_taken_in_any_order_stay_whole(lengths, data):
    jobs = chains(np.arange(len(lengths), dtype=float), lengths)
    places = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=8))
    assert rows(jobs.taken(np.array(places, np.int64))) == [rows(jobs)[place] for place in places]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(0, 6))
def test_a_table_cut_anywhere_and_joined_is_the_same_table(lengths, cut):
    jobs = chains(np.arange(len(lengths), dtype=float), lengths)
    cut = min(cut, jobs.count)
    assert rows(Jobs.joined([jobs.span(0, cut), jobs.span(cut, jobs.count)])) == rows(jobs)


def test_numbered_jobs_have_the_workflow_the_stages_and_the_recorded_prompts_of_the_network():
    recorded = dataclasses.replace(chains([0.0], [3]), prefix=np.array([0, -1, 4], np.int32))
    jobs = recorded.numbered(2, 10, 7)
    assert jobs.prefix.tolist() == [7, -1, 11]
    assert jobs.workflow.tolist() == [2]
    assert jobs.stage.tolist() == [10, 11, 12]
    assert (jobs.workflow.dtype, jobs.stage.dtype) == (np.int32, np.int32)


def test_streams_merge_by_arrival_and_the_earlier_stream_goes_first_on_ties():
    first = [chains([0.0, 2.0], [1, 2], 0), chains([2.0, 4.0], [1, 1], 0)]
    second = [chains([0.0, 1.0, 2.0], [2, 1, 1], 50), chains([3.0, 9.0], [1, 3], 50)]
    both = Jobs.joined(list(merged([iter(first), iter(second)])))
    assert both.arrival_s.tolist() == [0, 0, 1, 2, 2, 2, 3, 4, 9]
    assert both.workflow.tolist() == [0, 50, 50, 0, 0, 50, 50, 0, 50]


times = st.lists(st.integers(0, 6), max_size=12).map(sorted)


@given(st.lists(times, min_size=1, max_size=4), st.integers(1, 5))
def test_a_merged_stream_is_the_stable_sort_of_its_parts_however_they_are_cut_into_blocks(arrivals, size):
    streams, expected = [], []
    for mark, at in enumerate(arrivals):
        whole = chains([float(t) for t in at], [1 + t % 3 for t in at], mark) if at else None
        expected += rows(whole) if whole is not None else []
        streams.append(iter([whole.span(i, min(i + size, whole.count)) for i in range(0, len(at), size)] if at else []))
    found = [job for block in merged(streams) for job in rows(block)]
    assert found == sorted(expected, key=lambda job: job[0])


def test_merging_streams_without_end_takes_one_block_of_each_at_a_time():
    taken = {0: 0, 1: 0}

    def endless(mark, gap):
        for start in itertools.count():
            taken[mark] += 1
            yield chains([gap * (10 * start + i) for i in range(10)], [1] * 10, mark)

    stream = merged([endless(0, 1.0), endless(1, 100.0)])
    for _ in range(50):
        next(stream)
    assert taken[0] >= 49
    assert taken[1] <= 2, "the slow stream's blocks reach far: no more of them is needed"


def test_a_single_stream_is_handed_through():
    block = chains([0.0, 1.0], [1, 1])
    assert list(merged([iter([block])])) == [block]


def test_the_first_jobs_of_a_stream_may_come_from_several_blocks():
    blocks = [chains([0.0, 1.0], [2, 1]), chains([2.0, 3.0], [1, 4])]
    assert rows(first_jobs(iter(blocks), 3, "w")) == rows(Jobs.joined(blocks))[:3]


def test_more_jobs_than_there_are_is_an_error_with_the_remedy():
    with pytest.raises(InputError) as caught:
        first_jobs(iter([chains([0.0, 1.0], [2, 1])]), 5, "the recording")
    assert str(caught.value) == (
        "5 jobs asked for, but the recording has 2, as recorded arrivals are replayed once; ask for fewer, or resample "
        "them with arrivals 'poisson'"
    )


@pytest.mark.parametrize("count", [0, -1, 1.5, "all"])
def test_the_number_of_jobs_is_a_whole_number(count):
    with pytest.raises(ps.InputError, match="the number of jobs is"):
        first_jobs(iter([]), count, "w")


def test_a_part_of_a_table_does_not_change_with_another_part():
    jobs = chains([0.0, 1.0], [2, 2])
    moved = dataclasses.replace(jobs.taken(np.array([1, 0])), arrival_s=np.zeros(2))
    moved.delay_s[:] = 9
    assert jobs.delay_s.tolist() == [0.5] * 4
