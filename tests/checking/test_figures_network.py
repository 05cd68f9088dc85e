"""Figures of networks show every pool, stage and route, and their numbers are those of the theory and of the run."""

import itertools
import re
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pytest

import penstock as ps
from penstock.checking import flood_test
from penstock.checking.figures_network import flood_figure, flood_paths, queue_figure, stage_queues
from penstock.checking.graph import CYCLE, CYCLE_DASH, DARK, LOADS, PLAIN, load_in_words, network_graph, pool_loads
from penstock.checking.graph_layout import BAR, HEADER, HEIGHT, STUB, Layout, network_layout, network_ways, pool_cycles
from penstock.checking.verdict import verdict
from penstock.scenario.scenario import read_scenario
from penstock.show import charts
from penstock.show.page import Page, Section
from penstock.simulation.simulate import simulate
from penstock.system.network import Network, Pool
from penstock.theory.certify import certify
from penstock.workload.stage import Stage
from penstock.workload.workflow import Workflow

EXAMPLES = Path(__file__).parents[2] / "examples"
SERVER = ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, 512)
ARRIVALS = ps.Workload.poisson(0.3, 100, 100)

BAD = ["complaint.look_into", "search.look_up", "search.reply", "complaint.understand"]
GOOD = ["search.look_up", "complaint.look_into", "complaint.understand", "search.reply"]


def rybko_stolyar() -> Network:
    return read_scenario(EXAMPLES / "rybko_stolyar.yaml").network


def nested() -> Network:
    """Return forks inside a fork."""
    stages = {
        "plan": Stage("big", 300, 100, then=["left", "right"]),
        "left": Stage("small", 200, 100, then=["first", "second"]),
        "first": Stage("small", 100, 100, then="both"),
        "second": Stage("small", 100, 100, then="both"),
        "both": Stage("small", 200, 50, join=True, then="final"),
        "right": Stage("small", 100, 200, then="final"),
        "final": Stage("big", 300, 100, join=True),
    }
    pools = {"big": Pool(SERVER, 2), "small": Pool(SERVER, 4)}
    return Network(pools, [Workflow("nested", ARRIVALS, stages)])


def eight() -> Network:
    """Return a graph of eight stages without loops at six pools."""
    stages = {
        "triage": Stage("a", 300, 50, then={"search": 0.5, "code": 0.3, "end": 0.2}),
        "search": Stage("b", 200, 100, then={"summary": 0.6, "rank": 0.4}),
        "code": Stage("c", 400, 200, then="test"),
        "rank": Stage("b", 200, 10, then="summary"),
        "test": Stage("d", 200, 50, then={"review": 0.8, "fix": 0.2}),
        "fix": Stage("d", 200, 50, then="review"),
        "summary": Stage("e", 500, 100, then="review"),
        "review": Stage("f", 500, 100),
    }
    return Network({name: Pool(SERVER) for name in "abcdef"}, [Workflow("agent", ARRIVALS, stages)])


def loops() -> Network:
    """Return two workflows with loops: of one stage, between two pools, and through three."""
    essay = {
        "write": Stage("writer", 300, 200, then="judge"),
        "judge": Stage("judge", 300, 20, then={"write": 0.3, "tool": 0.3, "judge": 0.1, "end": 0.3}),
        "tool": Stage("tools", 100, 20, then={"write": 0.5, "polish": 0.5}),
        "polish": Stage("writer", 200, 200),
    }
    chat = {"ask": Stage("tools", 100, 100, then={"ask": 0.5, "end": 0.5})}
    pools = {"writer": Pool(SERVER), "judge": Pool(SERVER), "tools": Pool(SERVER, 2)}
    return Network(pools, [Workflow("essay", ARRIVALS, essay), Workflow("chat", ARRIVALS, chat)])


def ladder() -> Network:
    """Return twelve stages in a row, with short cuts, at four pools."""
    stages = {
        f"s{i}": Stage(f"p{i % 4}", 100, 50, then={f"s{i + 1}": 0.5, f"s{i + 3}": 0.5} if i < 9 else [f"s{i + 1}"])
        for i in range(11)
    }
    stages["s11"] = Stage("p3", 100, 50)
    return Network({f"p{i}": Pool(SERVER) for i in range(4)}, [Workflow("ladder", ARRIVALS, stages)])


def chain() -> Network:
    calls = [("a", 200, 50), ("b", 300, 80), ("c", 100, 100)]
    return Network(
        {"a": Pool(SERVER), "b": Pool(SERVER, 4), "c": Pool(SERVER)}, [Workflow.chain("line", ARRIVALS, calls)]
    )


def example(name: str) -> Network:
    return read_scenario(EXAMPLES / f"{name}.yaml").network


def by_length() -> Network:
    """Return two stages at which jobs begin by their prompts, and one that both lead to."""
    workload = ps.Workload.poisson(1.0, ps.Uniform(1, 1_000), 50)
    stages = {
        "long": Stage("large", "job", "job", then="sum_up"), "short": Stage("small", "job", "job", then="sum_up"),
        "sum_up": Stage("small", 50, 20),
    }  # fmt: skip
    first = {"long": None, "short": 400}
    return Network({"small": Pool(SERVER), "large": Pool(SERVER)}, [Workflow("w", workload, stages, first=first)])


NETWORKS = {
    "by_length": by_length,
    "single": lambda: Network.single(ARRIVALS, SERVER, 3),
    "chain": chain,
    "nested": nested,
    "eight": eight,
    "loops": loops,
    "ladder": ladder,
    "rybko_stolyar": rybko_stolyar,
    "research_fork_join": lambda: example("research_fork_join"),
    "self_reflection": lambda: example("self_reflection"),
    "disaggregated": lambda: example("disaggregated"),
}
each_network = pytest.mark.parametrize("network", [pytest.param(make(), id=name) for name, make in NETWORKS.items()])


def layers(chart: Any) -> list[dict[str, Any]]:
    """Return the layers of a chart, the rows of each under ``rows``."""
    return [layer | {"rows": layer.get("data", chart.get("data"))["values"]} for layer in chart["layer"]]


def words(chart: Any) -> list[str]:
    return [row["text"] for layer in layers(chart) if layer["mark"]["type"] == "text" for row in layer["rows"]]


def boxes(layout: Layout) -> dict[str, tuple[float, float, float, float]]:
    half = layout.stage_width / 2
    return {s: (x - half, x + half, y - HEIGHT / 2, y + HEIGHT / 2) for s, (x, y) in layout.stages.items()}


@each_network
def test_stages_do_not_overlap_and_each_lies_in_the_lane_of_its_pool(network: Network) -> None:
    layout = network_layout(network)
    places = boxes(layout)
    assert set(places) == set(network.stages)
    for one, (left, right, top, bottom) in places.items():
        for other, (left2, right2, top2, bottom2) in places.items():
            assert one == other or right < left2 or right2 < left or bottom < top2 or bottom2 < top
    lanes = {lane.pool: lane for lane in layout.lanes}
    assert set(lanes) == set(network.pools)
    for stage, place in zip(network.stages, network.stage_pool, strict=True):
        lane = lanes[list(network.pools)[place]]
        assert lane.left < places[stage][0] < places[stage][1] < lane.right
        assert places[stage][2] > HEADER
    ends = sorted((lane.left, lane.right) for lane in layout.lanes)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ends))


@each_network
def test_no_route_runs_through_a_stage_and_each_begins_and_ends_at_its_own(network: Network) -> None:
    layout = network_layout(network)
    places = boxes(layout)
    for route in layout.routes:
        points = np.concatenate([np.linspace(a, b, 20) for a, b in itertools.pairwise(route.path)])
        for stage, (left, right, top, bottom) in places.items():
            inside = (points > [left + 1, top + 1]).all(axis=1) & (points < [right - 1, bottom - 1]).all(axis=1)
            assert not inside.any(), (route.source, route.target, stage)
        if route.source is not None:
            left, right, _, bottom = places[route.source]
            assert left < route.path[0, 0] < right
            assert route.path[0, 1] == pytest.approx(bottom + (BAR if route.source in layout.forks else 0))
        if route.target is not None:
            left, right, top, _ = places[route.target]
            assert left < route.path[-1, 0] < right
            assert route.path[-1, 1] == pytest.approx(top - (BAR if route.target in layout.joins else 0))
        assert route.path.min() >= 0
        assert (route.path <= [layout.width, layout.height]).all()


@each_network
def test_every_way_that_jobs_can_take_is_a_route_with_its_probability(network: Network) -> None:
    drawn = {(r.source, r.target): r.chance for r in network_layout(network).routes if r.source and r.target}
    ends = {r.source: r.chance for r in network_layout(network).routes if r.kind == "end"}
    onward = network.model().onward
    for i, source in enumerate(network.stages):
        for j, target in enumerate(network.stages):
            assert ((source, target) in drawn) == (onward[i, j] > 0)
    for source, (fork, targets) in network_ways(network).items():
        assert {target: drawn[source, target] for target in targets} == targets
        leaving = 0.0 if fork else 1 - sum(targets.values())
        assert ends.get(source, 0.0) == pytest.approx(leaving)
    arrivals = [r.target for r in network_layout(network).routes if r.kind == "arrival"]
    assert sorted(arrivals) == sorted(np.array(network.stages)[network.model().external > 0])


def test_jobs_go_down_except_where_they_go_back() -> None:
    layout = network_layout(loops())
    back = {
        (r.source, r.target)
        for r in layout.routes
        if r.source and r.target and layout.stages[r.target][1] <= layout.stages[r.source][1]
    }
    assert back == {
        ("essay.judge", "essay.write"),
        ("essay.judge", "essay.judge"),
        ("essay.tool", "essay.write"),
        ("chat.ask", "chat.ask"),
    }


def test_routes_of_one_stage_leave_it_at_different_places() -> None:
    routes = [r for r in network_layout(eight()).routes if r.source == "agent.triage"]
    places = [r.path[0, 0] for r in routes]
    assert len(places) == 3
    assert min(np.diff(sorted(places))) >= 2 * STUB / 3


@each_network
def test_the_graph_says_every_pool_with_its_load_and_every_stage_with_its_rate(network: Network) -> None:
    chart, model = network_graph(network), network.model()
    said = words(chart)
    for pool, rho in zip(model.pools, model.rho, strict=True):
        assert pool in said
        assert f"load {rho:.2f}" in said
    for k, stage in enumerate(network.stages):
        own = stage if len(network.workflows) > 1 else stage.split(".", 1)[1]
        assert own in said
        tokens = model.prefill[k] + model.decode[k]
        rates = [re.fullmatch(r"([\d.,]+)/s, ([\d.,]+) tokens", text) for text in said]
        numbers = [tuple(float(n.replace(",", "")) for n in found.groups()) for found in rates if found]
        assert any(
            np.isclose(rate, model.visits[k], rtol=5e-3) and np.isclose(of, tokens, rtol=5e-3) for rate, of in numbers
        )
    chances = [c for _, targets in network_ways(network).values() for c in targets.values() if c < 1]
    for chance in chances:
        assert f"{chance:.3g}" in said
    heads = [row for layer in layers(chart) if "fill" in layer["encoding"] for row in layer["rows"]]
    assert {row["load"] for row in heads} == {min(float(rho), 1.0) for rho in model.rho}


def test_forks_and_joins_have_bars_and_words() -> None:
    chart, layout = network_graph(nested()), network_layout(nested())
    assert layout.forks == {"nested.plan", "nested.left"}
    assert layout.joins == {"nested.both", "nested.final"}
    (bars,) = [layer for layer in layers(chart) if layer["mark"]["type"] == "rule"]
    below = [row["y"] for row in bars["rows"] if row["y"] > layout.stages["nested.plan"][1]]
    assert len(bars["rows"]) == 4
    assert len(below) == 4
    assert words(chart).count("fork") == words(chart).count("join") == 2


def test_pools_in_a_cycle_are_marked_by_colour_dash_and_word_and_others_are_not() -> None:
    network = loops()
    assert pool_cycles(network) == [{"writer", "judge", "tools"}]
    chart = network_graph(network)
    assert words(chart).count("in a cycle of pools") == 3
    (lines,) = [layer for layer in layers(chart) if layer["mark"]["type"] == "line"]
    stroke = lines["encoding"]["stroke"]["scale"]
    assert stroke["range"] == [PLAIN, CYCLE]
    assert lines["encoding"]["strokeDash"]["scale"]["range"] == [[1, 0], list(CYCLE_DASH)]
    routes = network_layout(network).routes
    marked = {row["route"] for row in lines["rows"] if row["kind"] == "route in a cycle of pools"}
    assert {(routes[i].source, routes[i].target) for i in marked} == {
        ("essay.write", "essay.judge"),
        ("essay.judge", "essay.write"),
        ("essay.judge", "essay.tool"),
        ("essay.tool", "essay.write"),
        ("essay.tool", "essay.polish"),
    }
    assert pool_cycles(eight()) == []
    assert "in a cycle of pools" not in words(network_graph(eight()))


def test_the_stages_of_a_virtual_station_are_named_with_their_rank() -> None:
    network = rybko_stolyar()
    certificate = certify(network)
    assert certificate.virtual_station is not None
    chart = network_graph(network, certificate)
    assert words(chart).count("served 1st") == words(chart).count("served 2nd") == 2
    (marked,) = virtual_stations(chart)
    layout = network_layout(network)
    places = {stage: ((x + x2) / 2, (y + y2) / 2) for stage, (x, x2, y, y2) in boxes(layout).items()}
    centres = {((row["x"] + row["x2"]) / 2, (row["y"] + row["y2"]) / 2) for row in marked["rows"]}
    stages = {stage for of in certificate.virtual_station.classes for stage in of}
    assert centres == {places[stage] for stage in stages}
    assert marked["encoding"]["stroke"]["legend"] is not None
    assert not virtual_stations(network_graph(network))


def virtual_stations(chart: Any) -> list[Any]:
    """Return the layers of a virtual station's stages."""
    return [
        layer
        for layer in layers(chart)
        if layer["encoding"].get("stroke", {}).get("scale", {}).get("domain") == ["stage of a virtual station"]
    ]


def parts(colour: str) -> np.ndarray:
    """Return red, green and blue of a colour, 0 to 1."""
    return np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])


def luminance(shade: np.ndarray) -> float:
    """Return the relative luminance of a colour (WCAG 2)."""
    linear = np.where(shade <= 0.04045, shade / 12.92, ((shade + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_loads_darken_steadily_so_that_a_grey_print_tells_them() -> None:
    shades = [parts(colour) @ [0.299, 0.587, 0.114] for colour in LOADS]
    assert min(-np.diff(shades)) > 0.1


def test_words_on_the_colour_of_any_load_can_be_read() -> None:
    colours = np.array([parts(colour) for colour in LOADS])
    for load in np.linspace(0, 1, 201):
        of = [np.interp(load, np.linspace(0, 1, len(LOADS)), colours[:, i]) for i in range(3)]
        shade = luminance(np.array(of)) + 0.05
        contrast = 1.05 / shade if load > DARK else shade / 0.05
        assert contrast > 4.5, load


def test_a_load_near_one_has_digits_that_tell_it_from_one() -> None:
    assert load_in_words(0.9) == "load 0.90"
    assert load_in_words(0.9991) == "load 0.9991"
    assert load_in_words(1.2) == "load 1.20, overloaded"
    assert load_in_words(None) == "load not known"


def test_an_overloaded_pool_is_drawn_as_dark_as_a_full_one() -> None:
    network = Network.single(ARRIVALS.with_rate(1000.0), SERVER)
    (load,) = pool_loads(network).values()
    assert load is not None
    assert load > 1
    assert f"load {load:.2f}, overloaded" in words(network_graph(network))


def test_a_graph_is_written_with_all_its_words(tmp_path: Path) -> None:
    svg, png = charts.save({"graph": network_graph(nested())}, tmp_path)
    text = svg.read_text()
    assert all(stage.split(".")[1] in text for stage in nested().stages)
    assert png.stat().st_size > 10_000


@pytest.fixture(scope="module")
def stability() -> flood_test.Stability:
    return verdict(chain(), resolution=0.3)


def test_every_flood_is_a_line_between_the_barriers_of_the_test(stability: flood_test.Stability) -> None:
    drawn = layers(flood_paths(stability))
    (lines,) = [layer for layer in drawn if layer["mark"]["type"] == "line"]
    assert [f.stage for f in stability.floods] == lines["encoding"]["color"]["scale"]["domain"]
    assert {f.stage for f in stability.floods} == set(chain().stages)
    low = lines["encoding"]["y"]["scale"]["domain"][0]
    for flood in stability.floods:
        path = [(row["time"], row["work"]) for row in lines["rows"] if row["stage"] == flood.stage]
        np.testing.assert_allclose(path, np.column_stack([flood.path[:, 0], flood.path[:, 1].clip(low)]))
    rules = [layer for layer in drawn if layer["mark"]["type"] == "rule"]
    assert [row["y"] for layer in rules for row in layer["rows"]] == [
        flood_test.FALLEN,
        min(flood.barrier for flood in stability.floods),
    ]
    assert lines["encoding"]["y"]["title"] == "Work over that at the start (log scale)"
    assert lines["encoding"]["x"]["title"] == "Time (s)"


def test_queues_are_drawn_by_pool_with_the_requests_of_the_run() -> None:
    network = nested()
    run = simulate(network, jobs=300, seed=1)
    panels = list(queue_figure(run).charts.values())
    assert [panel["title"] for panel in panels] == [f"Requests at {pool}" for pool in network.pools]
    shown = [stage for panel in panels for stage in panel["layer"][0]["encoding"]["color"]["scale"]["domain"]]
    assert sorted(shown) == sorted(network.stages)
    queues = stage_queues(run)
    rows = run.requests
    for time in queues["time_s"].unique().sort()[[5, 100, 200]]:
        ns = round(time * 1e9)
        for stage in network.stages:
            own = rows.filter(rows["stage"] == stage)
            there = ((own["arrival_ns"] <= ns) & (own["finish_ns"] > ns)).sum()
            drawn = queues.filter((queues["stage"] == stage) & (queues["time_s"] == time))["requests"].item()
            assert drawn == there
    assert queues["time_s"].max() <= run.last_arrival * run.tick_s


def test_figures_of_networks_are_written(stability: flood_test.Stability, tmp_path: Path) -> None:
    run = simulate(chain(), jobs=200, seed=1)
    section = Section("Floods and queues", figures=lambda: [flood_figure(stability), queue_figure(run)])
    for figure in section.figures():
        for chart in figure.charts.values():
            alt.LayerChart.from_dict(chart)  # refuses what Vega-Lite does not know
    alt.LayerChart.from_dict(network_graph(chain()))
    written = charts.save_page(Page("chain", sections=[section]), tmp_path)
    assert len(written) == 4
    text = (tmp_path / "queue_lengths.svg").read_text()
    assert all(words in text for words in ("Requests at a", "Requests at c", "Time (s)", "line.2"))


def test_more_stages_than_colours_still_look_different() -> None:
    calls = [("a", 10, 10)] * 12
    run = simulate(Network({"a": Pool(SERVER)}, [Workflow.chain("long", ARRIVALS, calls)]), jobs=20, seed=1)
    (panel,) = queue_figure(run).charts.values()
    encoding = panel["layer"][0]["encoding"]
    looks = zip(encoding["color"]["scale"]["range"], map(tuple, encoding["strokeDash"]["scale"]["range"]), strict=True)
    assert len(set(looks)) == 12


def test_networks_of_any_size_can_be_drawn() -> None:
    network = Network({"a": Pool(SERVER)}, [Workflow.chain("long", ARRIVALS, [("a", 10, 10)] * 200)])
    (lines,) = [layer for layer in layers(network_graph(network)) if layer["mark"]["type"] == "line"]
    assert len(lines["rows"]) > 5_000
    assert len({row["route"] for row in lines["rows"]}) == 199 + 2


def test_many_floods_are_thinned_to_what_a_chart_holds() -> None:
    looks = np.column_stack([np.linspace(0, 9, 500), np.linspace(1, 0.4, 500)])
    floods = [flood_test.Flood(f"w.s{i}", "stable", 1, 1, 0.4, 1.0, 8.0, looks) for i in range(30)]
    drawn = layers(flood_paths(flood_test.Stability("stable", 0.02, floods=tuple(floods))))
    (lines,) = [layer for layer in drawn if layer["mark"]["type"] == "line"]
    for flood in floods:
        own = [row for row in lines["rows"] if row["stage"] == flood.stage]
        assert (own[0]["time"], own[-1]["time"]) == (0, 9)


def test_the_graph_is_scrolled_on_a_phone_and_never_squeezed() -> None:
    """Its boxes are placed in pixels, so a narrower drawing would put words over each other."""
    chart = network_graph(example("research_fork_join"))
    assert charts.stacked(chart) is chart
