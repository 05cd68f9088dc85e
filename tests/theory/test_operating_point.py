"""Where a load lies in the region agrees with the bounds of the certificate, also where memory or a cache matters."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.checking.figures import region_figure
from penstock.scenario.scenario import read_scenario
from penstock.show.answers import plain_fields
from penstock.theory.operating_point import operating_point

TP1 = ps.hardware("codellama-34b-a100-tp1").batch_time
CHAT = ps.Workload.poisson(2, ps.Geometric(200, max=2000), ps.Geometric(50, max=500))
ALIKE = ps.Workload.from_arrays(
    np.arange(2_000) / 4, [2058] * 2_000, [20] * 2_000, hash_ids=[[0, 1, 2, 3]] * 2_000, hash_block=512
)


@pytest.mark.parametrize(
    ("workload", "server"),
    [
        (CHAT, ps.Server(TP1, 512)),
        (CHAT, ps.Server(TP1, 512, 64)),
        (CHAT, ps.Server(TP1, 512, 64, kv_blocks=400)),
        (CHAT, ps.Server(TP1, 512, memory=ps.Memory(60, too_long="drop"))),
        (ALIKE, ps.Server(TP1, 1024, 64, "vllm", memory=ps.Memory(1000, 512, prefix_caching=True))),
    ],
)
def test_no_other_rate_is_said_than_by_the_certificate(workload: ps.Workload, server: ps.Server) -> None:
    found, certificate = operating_point(workload, server), ps.certify(workload, server)
    assert found.max_rate == pytest.approx(certificate.max_rate)
    assert found.margin == pytest.approx(certificate.margin)
    assert found.inside == (certificate.verdict != "unstable")


def test_memory_that_only_the_estimate_counts_is_named_with_what_it_carries() -> None:
    """The region knows no KV memory, and its corners are no reason to ask for faster hardware."""
    server = ps.Server(ps.hardware("llama-2-70b-a100-tp2").batch_time, 8_192, 256, "vllm", kv_tokens=60_000)
    long = ps.Workload.poisson(0.5, ps.Geometric(1_000, max=8_000), ps.Geometric(250, max=2_000))
    carried = ps.memory_estimate(long, server).rate
    found = operating_point(long, server, memory_rate=carried)
    assert found.binding == ("KV memory",)
    assert found.without_estimate != found.binding
    assert plain_fields(found)["kv_memory_rate"] == carried < found.max_rate
    assert any("KV memory is not counted in the region" in note for note in found.notes)
    ample = operating_point(long, dataclasses.replace(server, memory=ps.Memory(10**6)), memory_rate=1e6)
    assert (ample.kv_memory_rate, ample.binding) == (None, ample.without_estimate)


def test_memory_is_named_where_it_binds() -> None:
    found = operating_point(CHAT, ps.Server(TP1, 512, memory=ps.Memory(60, too_long="drop")))
    assert found.binding == ("KV memory",)
    assert "dropped" in found.notes[0]
    prompt, decode = found.point
    assert 0.9 < prompt / (0.989 * 2 * 200) < 1
    assert 0.9 < decode / (0.989 * 2 * 49) < 1.01


def test_what_cached_prompts_have_in_common_counts_once() -> None:
    server = ps.Server(TP1, 1024, 64, "vllm", memory=ps.Memory(1000, 512, prefix_caching=True))
    found = operating_point(ALIKE, server)
    assert found.point[0] == pytest.approx(ALIKE.rate * ALIKE.least_mean_prompt)
    assert ALIKE.least_mean_prompt < ALIKE.mean_prompt / 10
    assert "counts once" in found.notes[0]


def test_what_the_limit_counts_and_the_region_does_not_is_named() -> None:
    assert operating_point(CHAT, ps.Server(TP1, 512, 64)).not_drawn == ""
    memory = operating_point(CHAT, ps.Server(TP1, 512, memory=ps.Memory(60, too_long="drop")))
    assert memory.not_drawn == "The outline leaves out KV memory, which the mark on the ray counts."
    assert memory.most == pytest.approx(memory.max_rate / memory.arrival_rate)
    shape = read_scenario(Path(__file__).parents[2] / "examples" / "vllm_8b_h100.yaml")
    attention = operating_point(shape.workload, shape.server)
    assert attention.not_drawn == "The outline leaves out attention, which the mark on the ray counts."
    figure = region_figure(attention.region, point=attention.point, most=attention.most, not_drawn=attention.not_drawn)
    (chart,) = figure.charts.values()
    load, most = next(
        layer["data"]["values"] for layer in chart["layer"] if "at" in layer.get("data", {}).get("values", [{}])[0]
    )
    assert load["prefill"] / most["prefill"] == pytest.approx(8 / attention.max_rate), "the dot is at its own share"
