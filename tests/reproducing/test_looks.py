"""Lines over time: those that lie on each other are told apart."""

import penstock as ps
from penstock.reproducing.looks import lines_over_time


def marks(runs, **kwargs):
    """Return the marked times of each line, and the chart."""
    chart = lines_over_time(runs, "requests", measure="Requests", title="Both", legend="Policy", **kwargs)
    drawn = chart.data
    return {name: set(drawn.filter(line=name, marked=True)["time_s"]) for name in runs}, chart


def run(policy="orca"):
    server = ps.Server(ps.PiecewiseConstant(c=0.01, a=0.02, b0=64), 64, policy=policy)
    return ps.simulate(ps.Workload.poisson(2.0, 100, 50, seed=0), server, requests=300)


def test_equal_lines_have_marks_at_different_times() -> None:
    same = run()
    times, chart = marks({"one": same, "two": same, "three": same})
    assert all(len(each) >= 9 for each in times.values())
    assert not times["one"] & times["two"]
    assert not times["two"] & times["three"]
    shapes = chart.to_dict()["layer"][1]["encoding"]["shape"]["scale"]["range"]
    assert len(set(shapes)) == 3


def test_on_a_log_scale_an_empty_system_is_drawn_at_1() -> None:
    _, chart = marks({"one": run()}, log=True)
    assert chart.data["value"].min() == 1
    assert chart.to_dict()["layer"][0]["encoding"]["y"]["scale"]["type"] == "log"
