"""Lines over time: those that lie on each other are told apart."""

import penstock as ps
from paper.looks import lines_over_time

SERVER = ps.Server(ps.PiecewiseConstant(c=0.01, a=0.02, b0=64), 64, policy="orca")
RUN = ps.simulate(ps.Workload.poisson(2.0, 100, 50, seed=0), SERVER, requests=300)


def drawn(names, **kwargs):
    return lines_over_time(
        dict.fromkeys(names, RUN), "requests", measure="Requests", title="All", legend="Policy", **kwargs
    )


def test_equal_lines_have_marks_at_different_times():
    chart = drawn(["one", "two", "three"])
    times = [set(chart.data.filter(line=name, marked=True)["time_s"]) for name in ("one", "two", "three")]
    assert all(len(each) >= 9 for each in times)
    assert not times[0] & times[1]
    assert not times[1] & times[2]


def test_on_a_log_scale_an_empty_system_is_drawn_at_1():
    chart = drawn(["one"], log=True)
    assert chart.data["value"].min() == 1
    assert chart.to_dict()["layer"][0]["encoding"]["y"]["scale"]["type"] == "log"
