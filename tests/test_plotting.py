"""Figures are whole files that show every policy, or are not there."""

import struct
from pathlib import Path

import pytest

import penstock as ps
from penstock import plotting

SERVER = ps.Server(ps.hardware("codellama-34b-a100-tp1").batch_time, 512)
WORKLOAD = ps.Workload.poisson(rate=1.0, prompt=500, output=20)


@pytest.fixture(scope="module")
def runs() -> dict[str, ps.Run]:
    return {name: ps.simulate(WORKLOAD, SERVER.with_policy(name), requests=200) for name in ps.POLICIES}


@pytest.mark.parametrize("draw", [plotting.tokens_over_time, plotting.latency_cdfs])
def test_a_figure_is_written_as_svg_and_png_with_units_and_every_policy(draw, runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    svg, png = plotting.save({"figure": draw(runs)}, tmp_path / "new" / "folder")
    text = svg.read_text()
    assert text.startswith("<svg")
    assert all(name in text for name in ps.POLICIES)
    assert "(s)" in text or "Seconds" in text
    width, height = struct.unpack(">II", png.read_bytes()[16:24])
    assert width > 1000
    assert height > 400
    assert sorted(p.name for p in svg.parent.iterdir()) == ["figure.png", "figure.svg"]


def test_a_run_without_gaps_can_be_drawn(tmp_path: Path) -> None:
    run = ps.simulate(ps.Workload.poisson(1.0, 10, 1), SERVER, requests=50)
    plotting.save({"figure": plotting.latency_cdfs({"sarathi": run})}, tmp_path)


def test_a_folder_that_cannot_be_written_is_said_and_nothing_is_left(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ps.InputError, match="cannot write"):
        plotting.save({"figure": plotting.tokens_over_time(runs)}, tmp_path / "file")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
