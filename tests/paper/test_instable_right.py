"""Figure 1, right: means are Little's law, and their order hinges on no seed."""

import numpy as np
import pytest


@pytest.fixture(scope="module")
def right():
    from paper import fig_instable_right

    return fig_instable_right


def test_the_mean_number_in_the_system_is_the_area_under_the_requests_that_came_less_those_that_left(right):
    runs = right.served(right.finite(1.2, "scaled", 0))
    means = right.item.rows.filter(rate=1.2, arrivals="scaled", seed=0)
    horizon = max(run.seconds for run in runs.values())
    for name, run in runs.items():
        at = np.concatenate([run.requests["arrival_ns"].to_numpy(), run.requests["finish_ns"].to_numpy()])
        order = np.argsort(at, kind="stable")
        there = np.cumsum(np.repeat([1, -1], right.REQUESTS)[order])
        area = there[:-1] @ np.diff(at[order]) * 1e-9
        assert means.filter(policy=name)["mean_requests_in_system"].item() == pytest.approx(area / horizon)


def test_sarathi_has_the_fewest_requests_in_the_system_with_every_seed(right):
    for _, rows in right.item.rows.group_by("rate", "arrivals", "seed"):
        assert rows.sort("mean_requests_in_system")["policy"][0] == "sarathi"
