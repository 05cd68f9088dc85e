"""The page in a real browser: sliders moved, figures read, the scenario downloaded and checked."""

import json
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytestmark = pytest.mark.browser
sync_api = pytest.importorskip("playwright.sync_api", reason="pip install '.[test]'")

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE_MS = 300_000  # the first simulation compiles the kernel
Penstock = Callable[..., tuple[int, str, str]]
Open = Callable[..., "Page"]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    command = [sys.executable, "-m", "penstock", "serve", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    yield server.stdout.readline().split()[0]
    server.terminate()
    server.wait(10)


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here; apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: "Browser", address: str) -> Iterator[Open]:
    """Return what opens the page; whatever it asks of another address, or complains of, fails the test."""
    wrong: list[str] = []

    def start(query: str = "", width: int = 1280, scheme: Any = "light") -> "Page":
        context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("request", lambda request: request.url.startswith(address) or wrong.append(request.url))
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(address + query)
        answered(page)
        return page

    yield start
    assert wrong == []


def answered(page: "Page") -> None:
    page.wait_for_selector("body[data-state=answered], body[data-state=refused]")


def changed(page: "Page", move: Callable[[], Any]) -> None:
    """Move something, and wait until theory, test and simulation of it are there."""
    move()
    page.wait_for_selector("body[data-state=computing]")
    answered(page)


def dragged(page: "Page", slider: str, to: float) -> None:
    """Drag a slider with the mouse to a share of its width."""
    box = page.locator(slider).bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 2, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * to, middle, steps=12)
    page.mouse.up()


def shown(page: "Page") -> dict[str, Any]:
    cells = page.locator("#latencies tr[data-metric]").evaluate_all(
        "rows => rows.map(row => [row.dataset.metric, [...row.querySelectorAll('td')].map(td => td.dataset.value)])"
    )
    return {
        "words": page.locator("#words .word").evaluate_all("words => words.map(word => word.textContent)"),
        "lines": page.locator("#lines dd").evaluate_all("lines => lines.map(line => line.textContent)"),
        "latency": {metric: [value and float(value) for value in values] for metric, values in cells},
        "run": page.inner_text("#queue-said"),
    }


def compared(page: "Page", penstock: Penstock, folder: Path) -> dict[str, Any]:
    """Download the scenario, check it on the command line, and compare every figure of the page."""
    with page.expect_download() as waiting:
        page.click("#download")
    path = folder / waiting.value.suggested_filename
    waiting.value.save_as(path)
    _, out, err = penstock("check", path, "--json")
    said = json.loads(out)
    figures = shown(page)
    assert figures["words"][0] == said["verdict"], err
    printed = "".join(penstock("check", path)[1].split()).replace(str(path), path.name)
    assert [line for line in figures["lines"] if "".join(line.split()) not in printed] == []
    latency = (said["stages"][0] if "stages" in said else said)["latency"]
    for metric, values in figures["latency"].items():
        of = (latency or {}).get(metric)
        assert values == ([of[name] for name in ("mean", "p50", "p90", "p95", "p99")] if of else [None] * 5)
    run = said["simulation"]
    assert figures["run"].startswith(f"{run.get('requests' if 'jobs' not in run else 'jobs'):,} requests")
    return said


def test_what_the_page_shows_after_sliders_were_dragged_is_what_check_says(
    opened: Open, penstock: Penstock, tmp_path: Path
) -> None:
    page = opened("?target=")
    changed(page, lambda: dragged(page, "#rate-slider", 0.47))
    one = compared(page, penstock, tmp_path)
    assert one["load"]["arrival_rate"] != 5
    changed(page, lambda: page.select_option("#model", "Qwen3-32B"))
    changed(page, lambda: dragged(page, "#tensor_parallel-slider", 0.5))
    changed(page, lambda: dragged(page, "#prompt-slider", 0.5))
    changed(page, lambda: page.select_option("#policy", "orca"))
    changed(page, lambda: dragged(page, "#token_budget-slider", 0.7))
    compared(page, penstock, tmp_path)
    changed(page, lambda: dragged(page, "#rate-slider", 0.9))
    assert compared(page, penstock, tmp_path)["verdict"] == "unstable"


def test_targets_are_judged_and_what_no_scheduler_reaches_is_said_beside_the_field(opened: Open) -> None:
    page = opened("?target=ttft_p99%3C9s")
    assert shown(page)["words"] == ["stable", "met"]
    changed(page, lambda: page.fill("#target", "ttft_p99<1ms"))
    assert shown(page)["words"] == ["stable", "missed"]
    assert page.inner_text("#target-wrong").startswith("target ttft_p99<0.001s asks for less than a request alone")
    page.fill("#target", "ttft")
    page.wait_for_selector("#target[aria-invalid=true]")
    assert "has no '<'" in page.inner_text("#target-wrong")


def test_everything_can_be_done_by_keyboard(opened: Open, penstock: Penstock, tmp_path: Path) -> None:
    page = opened("?target=")
    page.focus("#replicas-slider")
    changed(page, lambda: page.keyboard.press("ArrowRight"))
    assert page.input_value("#replicas") == "2"
    page.focus("#rate-slider")
    changed(page, lambda: [page.keyboard.press("ArrowRight") for _ in range(5)])
    compared(page, penstock, tmp_path)
    page.focus("#tab-scenario")
    page.keyboard.press("ArrowRight")
    assert page.is_visible("#live-none")
    page.keyboard.press("ArrowLeft")
    assert page.is_visible("#rate")


def test_a_value_that_is_refused_says_so_beside_its_field(opened: Open) -> None:
    page = opened(width=390)
    page.fill("#token_budget", "0")
    page.wait_for_selector("#token_budget[aria-invalid=true]")
    assert re.match("token_budget is 0, but must be", page.inner_text("#token_budget-wrong"))
    assert page.is_visible("#answers.stale")
    assert page.is_visible("#summary.stale")
    assert page.inner_text("#source") == "Of the values before, not of these."
    changed(page, lambda: page.fill("#token_budget", "2048"))
    assert page.inner_text("#token_budget-wrong") == ""
    assert page.query_selector("#answers.stale, #summary.stale") is None


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_or_scrolls_sideways_and_no_field_moves_while_one_drags(
    opened: Open, width: int, scheme: str
) -> None:
    page = opened("?target=ttft_p99%3C2s,tpot_p99%3C60ms", width=width, scheme=scheme)
    tops = "[...document.querySelectorAll('.field')].map(one => Math.round(one.getBoundingClientRect().top + scrollY))"
    cut = """[...document.querySelectorAll('#answers *, #summary *')].filter(one => one.offsetParent
      && getComputedStyle(one).overflow !== 'visible'
      && (one.scrollWidth > one.clientWidth || one.scrollHeight > one.clientHeight)).map(one => one.outerHTML)"""
    before = page.evaluate(tops)
    for move in (lambda: dragged(page, "#rate-slider", 0.55), lambda: dragged(page, "#rate-slider", 0.9)):
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(cut) == []
        changed(page, move)
    assert page.evaluate(tops) == before


def test_theory_is_redrawn_while_one_drags(opened: Open, capsys: pytest.CaptureFixture[str]) -> None:
    """How fast is printed, and not asserted: it is the machine's."""
    page = opened()
    page.evaluate("""() => {
      window.redrawn = [];
      document.addEventListener('theory', (event) => requestAnimationFrame(() => window.redrawn.push(event.detail)));
    }""")
    for name in ("rate", "token_budget"):
        page.evaluate("window.redrawn.length = 0")
        for drag in range(30):
            page.locator(f"#{name}-slider").press("ArrowRight" if drag % 2 else "ArrowLeft")
            page.wait_for_function("count => window.redrawn.length > count", arg=drag)
        times = page.evaluate("window.redrawn")
        assert len(times) >= 30
        with capsys.disabled():
            print(f"\n{name}: median {statistics.median(times):.0f} ms, worst {max(times):.0f} ms of {len(times)}")
