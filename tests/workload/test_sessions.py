"""What must be true of recorded sessions of agents: chains of calls as they were made, or drawn as wholes."""

import itertools
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.errors import InputError
from penstock.workload.sessions import read_sessions

RECORDED = Path(__file__).parents[3] / "shared/data/traces/weka_claude_code_requests.parquet"
HEADER = "trace_id,agent,parent,idx,t_s,think_time_s,in_tokens,out_tokens,prefix_hit_blocks,block_size"
LINES = (
    "t2,main,,0,5.0,0.0,100,10,3,16",
    "t1,main,,1,9.0,2.5,300,0,7,16",  # out of order; prefill only
    "t1,main,,0,0.0,0.0,128,20,0,16",
    "t1,main,,2,30.0,,320,5,25,16",  # no think time: 30 - 9 s since the call before began; more blocks than its prompt
    "t1,main/9,main,0,5.0,1.0,64,6,0,16",  # a sub-agent
    "t1,main/9,main,1,7.0,0.5,80,7,4,16",
)


@pytest.fixture
def written(tmp_path):
    def write(*lines, header=HEADER, name="agents.csv"):
        path = tmp_path / name
        path.write_text("\n".join([header, *lines]) + "\n")
        return path

    return write


@pytest.fixture
def sessions(written):
    return read_sessions(written(*LINES), "gpus")


def test_each_agent_of_a_session_is_a_job_a_chain_of_its_calls_in_order(sessions):
    jobs = sessions.jobs(3)
    assert jobs.arrival_s.tolist() == [0, 5, 5]
    assert jobs.first_request.tolist() == [0, 3, 5, 6]
    assert jobs.prompt.tolist() == [128, 300, 320, 64, 80, 100]
    assert jobs.output.tolist() == [20, 0, 5, 6, 7, 10]
    assert jobs.pending.tolist() == [0, 1, 1, 0, 1, 0]
    assert jobs.child.tolist() == [1, 1, 0, 1, 0, 0]
    assert not jobs.sibling.any()
    assert not jobs.stage.any()


def test_the_delay_of_a_call_is_the_think_time_or_else_the_time_since_the_call_before_began(sessions):
    assert sessions.jobs(3).delay_s.tolist() == [0, 2.5, 21, 0, 0.5, 0]
    assert sessions.notices == ("1 call has no think_time_s: it is the time since the call before began",)


def test_what_a_call_reuses_is_of_the_call_before_and_at_most_its_prompt(sessions):
    jobs = sessions.jobs(3)
    assert jobs.reuse.tolist() == [0, 112, 320, 0, 64, 0], "the first call of a session has none before it"
    assert jobs.context.tolist() == [0, -1, -1, 0, -1, 0]


def test_without_a_rate_each_session_begins_once_when_it_was_recorded_to(sessions):
    assert sessions.ends
    assert sessions.rate == pytest.approx(2 / 5)
    assert sum(block.count for block in sessions.blocks()) == 3
    assert sessions.with_load(2).jobs(3).arrival_s.tolist() == pytest.approx([0, 2.5, 2.5])
    with pytest.raises(InputError, match="4 jobs asked for, but agents has 3"):
        sessions.jobs(4)


def whole(jobs):
    """Return each session as its calls' (prompt, output, delay, reuse)."""
    columns = [getattr(jobs, name).tolist() for name in ("prompt", "output", "delay_s", "reuse")]
    calls = list(zip(*columns, strict=True))
    bounds = jobs.first_request.tolist()
    return [tuple(calls[begin:end]) for begin, end in itertools.pairwise(bounds)]


def test_with_a_rate_whole_sessions_are_drawn_alike_without_end(sessions, written):
    drawn = read_sessions(written(*LINES), "gpus", rate=0.5, seed=3)
    jobs = drawn.jobs(3_000)
    assert not drawn.ends
    assert drawn.rate == 0.5
    kinds = whole(sessions.recorded)
    counts = [whole(jobs).count(kind) for kind in kinds]
    assert sum(counts) == 3_000
    assert counts == pytest.approx([1_000] * 3, abs=4 * np.sqrt(3_000 * 2 / 9))
    assert jobs.arrival_s[-1] == pytest.approx(6_000, rel=4 / np.sqrt(3_000))
    even = read_sessions(written(*LINES), "gpus", rate=0.5, arrivals="deterministic").jobs(3)
    assert even.arrival_s.tolist() == [0, 2, 4]


def test_the_same_sessions_come_however_many_are_asked_for_and_however_fast(written):
    drawn = read_sessions(written(*LINES), "gpus", rate=0.5, seed=3)
    jobs = drawn.jobs(2_500)
    for count in (1, 1_024, 1_500):
        assert whole(drawn.jobs(count)) == whole(jobs.first(count))
        assert drawn.jobs(count).coin.tolist() == jobs.first(count).coin.tolist()
    assert whole(drawn.with_load(3).jobs(2_500)) == whole(jobs)
    assert whole(drawn.jobs(2_500, seed=4)) != whole(jobs)


def test_means_are_those_of_the_recording(sessions):
    means = sessions.means()
    assert (means.external.tolist(), means.visits.tolist()) == ([1], [2])
    assert means.visits == pytest.approx(means.external + means.onward.T @ means.visits)
    assert means.prompt == pytest.approx([(128 + 300 + 320 + 64 + 80 + 100) / 6])
    assert means.output == pytest.approx([48 / 6])
    assert means.both == pytest.approx([5 / 6])
    assert (means.max_prompt.tolist(), means.max_output.tolist(), means.sampled) == ([320], [20], None)
    assert means.bounded


def test_a_flood_is_of_whole_sessions_that_all_begin_at_once(sessions):
    flood = sessions.flooded("call", 200, seed=1)
    assert flood.count == 200
    assert not flood.arrival_s.any()
    assert set(whole(flood)) == set(whole(sessions.recorded))
    with pytest.raises(InputError, match=r"agents has no stage 'cal'; did you mean 'call'\?"):
        sessions.flooded("cal", 1, seed=1)


def test_sessions_may_be_cut_to_their_first_calls(written):
    cut = read_sessions(written(*LINES), "gpus", most_requests=2)
    assert cut.jobs(3).first_request.tolist() == [0, 2, 4, 5]
    assert cut.jobs(3).prompt.tolist() == [128, 300, 64, 80, 100]
    assert cut.jobs(3).child.tolist() == [1, 0, 1, 0, 0]
    assert cut.notices == (
        "1 call has no think_time_s: it is the time since the call before began",
        "1 call beyond the first 2 of a session is left out",
    )


def test_sessions_that_all_begin_at_one_instant_have_no_rate(written):
    together = read_sessions(written("a,main,,0,0,0,5,5,0,16", "b,main,,0,0,0,6,5,0,16"), "gpus")
    assert np.isnan(together.rate)
    assert together.jobs(2).arrival_s.tolist() == [0, 0]


def test_sessions_say_what_they_are(sessions):
    assert sessions.describe() == "agents: recorded arrivals, replayed once, sessions of 2 calls"
    assert sessions.stages["call"].pool == "gpus"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "t1,main,,0,0,0,0,5,0,16",
            "agents.csv: line 2, column 'in_tokens': '0', but it must be a whole number of tok",
        ),
        ("t1,main,,0,0,0,9,,0,16", "agents.csv: line 2, column 'out_tokens': None, but it must be a whole number of"),
        ("t1,main,,0,0,-1,9,5,0,16", "agents.csv: line 2, column 'think_time_s': '-1', but it must be a number of sec"),
        ("t1,main,,0,x,0,9,5,0,16", "agents.csv: line 2, column 't_s': 'x', but it must be a number of seconds of at"),
        ("t1,main,,.5,0,0,9,5,0,16", "agents.csv: line 2, column 'idx': '.5', but it must be a whole number of at lea"),
        (
            "t1,main,,0,0,0,9,5,0,0",
            "agents.csv: line 2, column 'block_size': '0', but it must be a whole number of tok",
        ),
        ("t1,main,,0,0,0,9,5,nan,16", "agents.csv: line 2, column 'prefix_hit_blocks': 'nan', but it must be a whole"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_with_its_line(written, line, message):
    with pytest.raises(InputError) as caught:
        read_sessions(written(line), "gpus")
    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith("Correct or delete the row.")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["t1,main,,0,0,0,9,5,0,16", "t2,main,,0,0,0,9,5,0,16", "t1,main,,0,3,0,9,5,0,16"],
            "agents.csv: line 4 is the second call with idx 0 of agent 'main' in session 't1', so which comes first is "
            "unclear. Correct or delete the row.",
        ),
        (
            ["t1,main,,0,0,0,9,5,0,16", ",main,,1,0,0,9,5,0,16"],
            "agents.csv: line 3 has an empty trace_id, so which session the call belongs to is unclear. Correct or "
            "delete the row.",
        ),
    ],
)
def test_a_call_whose_place_in_a_session_is_unclear_is_refused(written, lines, message):
    with pytest.raises(InputError) as caught:
        read_sessions(written(*lines), "gpus")
    assert str(caught.value) == message


def test_a_file_without_sessions_says_which_column_it_lacks(written):
    with pytest.raises(InputError, match=r"agents\.csv: has no column 'trace_id', so these are no recorded sessions"):
        read_sessions(written("1,2", header="a,b"), "gpus")
    with pytest.raises(InputError, match=r"agents\.csv: has no rows, so it says nothing"):
        read_sessions(written(), "gpus")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pool": ""}, "the pool of the sessions is ''; give the name of one"),
        ({"arrivals": "poison"}, "unknown arrivals 'poison' of sessions; did you mean 'poisson'?"),
        ({"rate": 0}, "the arrival rate is 0, but must be a number from"),
        ({"most_requests": 0}, "most_requests is 0, but must be a whole number from 1"),
        ({"seed": -1}, "the seed is -1, but must be a whole number from 0"),
    ],
)
def test_what_else_cannot_be_used_is_one_clear_line(written, given, message):
    with pytest.raises(ps.InputError) as caught:
        read_sessions(**{"path": written(*LINES), "pool": "gpus"} | given)
    assert str(caught.value).startswith(message)


@pytest.mark.skipif(not RECORDED.exists(), reason=f"the recorded sessions are not at {RECORDED.name} in shared data")
def test_the_recorded_claude_code_sessions_are_read_whole():
    """49,334 calls of 773 agents, 27 without output, 116 without think time, 96% of prompt tokens in common."""
    read = read_sessions(RECORDED, "gpus", rate=0.1)
    jobs = read.recorded
    assert (jobs.count, jobs.requests) == (773, 49_334)
    assert (jobs.output == 0).sum() == 27
    assert read.notices == ("116 calls have no think_time_s: it is the time since the call before began",)
    assert jobs.prompt.mean() == pytest.approx(122_379, abs=1)
    assert jobs.output.mean() == pytest.approx(440.06, abs=0.01)
    assert jobs.reuse.sum() / jobs.prompt.sum() == pytest.approx(0.963, abs=0.001)
    assert np.isfinite(jobs.delay_s).all()
    assert (jobs.delay_s >= 0).all()
    assert read.jobs(100).count == 100
