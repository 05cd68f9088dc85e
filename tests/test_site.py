"""The documentation site: built strictly, nothing missing, no link broken, readable on a phone."""

import functools
import http.server
import inspect
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

import pytest
import yaml

import penstock as ps
from paper import ITEMS
from penstock.measuring.diagnosis.diagnose import diagnose

pytest.importorskip("mkdocs", reason="the site needs pip install '.[docs]'")
ROOT = Path(__file__).parents[1]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site, built as a release builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return folder


class Page(HTMLParser):
    """What a page links to, loads from elsewhere, can be linked to, and says of its images."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.images: list[dict[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors.update(value for name in ("id", "name") if (value := given.get(name)))
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        if tag in ("img", "script") and given.get("src"):
            self.loaded.append(str(given["src"]))
        if tag == "source" and given.get("srcset"):
            self.loaded.append(str(given["srcset"]))
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload", "preconnect"):
            self.loaded.append(str(given["href"]))
        if tag == "img":
            self.images.append(given)


@functools.cache
def pages(site: Path) -> dict[str, Page]:
    """Return the pages by their address below the root."""
    return {"/" + path.relative_to(site).as_posix(): Page(path.read_text()) for path in site.rglob("*.html")}


def broken(site: Path, found: dict[str, Page], at: str, link: str) -> bool:
    """Whether a link of a page leads nowhere: no such file, or no such place in it."""
    address, place = urldefrag(urljoin(at, link))
    file = address + "index.html" if address.endswith("/") else address
    if not (site / unquote(file).lstrip("/")).is_file():
        return True
    return bool(place) and file in found and unquote(place) not in found[file].anchors


def test_the_site_builds_strictly_and_no_link_leads_nowhere(site: Path) -> None:
    found = pages(site)
    elsewhere = ("http:", "https:", "mailto:")
    for at, page in found.items():
        if at == "/404.html":
            continue  # its links begin at the root of a host
        for link in (*page.links, *page.loaded):
            assert link.startswith(elsewhere) or not broken(site, found, at, link), f"{at}: {link}"
        assert not [link for link in page.loaded if link.startswith(elsewhere) or link.startswith("//")], at
        for image in page.images:
            assert image.get("alt"), f"{at}: {image['src']} says nothing to those who cannot see it"
    for sheet in site.rglob("*.css"):
        assert not re.findall(r"(?:@import|url\()[\s\"']*https?:", sheet.read_text()), sheet.name


class Tables(HTMLParser):
    """The tables of a page by the anchor of the heading above: of each key what is in it, and the tables linked."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, dict[str, tuple[str, list[str]]]] = {}
        self.roots: dict[str, list[str]] = {}
        self.texts: dict[tuple[str, str], str] = {}
        self.heading = self.command = self.key = ""
        self.cell = -1
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("h2", "h3"):
            self.heading = str(given["id"])
            self.command = self.heading if tag == "h2" else self.command
            self.tables[self.heading] = {}
        self.cell = -1 if tag == "tr" else self.cell + (tag == "td")
        link = str(given.get("href", "")).partition("#")[2] if tag == "a" else ""
        if link and given.get("class") != "headerlink" and self.heading:
            if self.cell < 0 and self.heading == self.command:
                self.roots.setdefault(self.command, []).append(link)
            elif self.cell == 2:
                self.tables[self.heading][self.key][1].append(link)

    def handle_endtag(self, tag: str) -> None:
        self.cell = -1 if tag == "table" else self.cell

    def handle_data(self, data: str) -> None:
        if not self.heading or not data.strip():
            return
        if self.cell == 0:
            self.key = data
            self.tables[self.heading][data] = ("", [])
        elif self.cell == 1:
            self.texts[self.heading, self.key] = self.texts.get((self.heading, self.key), "") + data
        elif self.cell == 2:
            around, links = self.tables[self.heading][self.key]
            self.tables[self.heading][self.key] = (around + data, links)


@pytest.fixture(scope="module")
def keys_of_json(site: Path) -> Tables:
    text = (site / "reference" / "json" / "index.html").read_text()
    return Tables(text[text.index("<article") : text.index("</article>")])


POISSON = "workload: {poisson: {rate: 5, prompt: {geometric: 600}, output: {geometric: 50}}}\n"
CLIENTS = "workload: {closed: {clients: 4, prompt: {geometric: 600}, output: {geometric: 50}}}\n"
SERVER = "server: {hardware: codellama-34b-a100-tp2, token_budget: 512, max_batch_size: 128}\n"
SHAPED = "server: {hardware: {model: Llama-3.1-8B, gpu: h100-sxm, engine: vllm}}\n"
RUN = "simulate: {requests: 2000}\n"
PLAN = """plan:
  targets: [ttft_p99<2s]
  search: {replicas: {max: 3}, router: random}
  day: [3, 9]
  job: {requests: 500, deadline_h: 1}
"""
NETWORK = """network:
  pools:
    a: {batch_time: {c_ms: 10, a_ms: 5, b0: 128}, token_budget: 512, replicas: 2}
    b: {batch_time: {c_ms: 10, a_ms: 5, b0: 128}, token_budget: 512}
  workflows:
    job:
      arrivals: {poisson: 5}
      priority: 1
      stages:
        first: {pool: a, prompt: {geometric: 60}, output: {geometric: 20}, then: [left, right]}
        left: {pool: b, prompt: {geometric: 60}, output: {geometric: 20}, then: last}
        right: {pool: a, prompt: {geometric: 60}, output: {geometric: 20}, then: last}
        last: {pool: b, prompt: {geometric: 60}, output: {geometric: 20}}
simulate: {jobs: 3000, seed: 0, outages: [{pool: a, replica: 0, from: 20, to: 30}]}
"""
ASKED = {
    "check": (
        (POISSON + SERVER + RUN, "--target ttft_p99<2s"),
        (POISSON + SHAPED + RUN, ""),
        (CLIENTS + SERVER + RUN, "--target ttft_p99<2s"),
        (NETWORK, "--target ttft_p99<2s"),
        ((ROOT / "examples" / "rybko_stolyar.yaml").read_text(), "--jobs 4000"),
    ),
    "compare": (
        (POISSON + SERVER + RUN, "--policies sarathi,orca"),
        (NETWORK.partition(", outages")[0] + "}", "--routers jsq,random --target ttft_p99<2s"),
    ),
    "region": ((POISSON + SERVER + RUN, ""),),
    "max-rate": ((POISSON + SERVER + RUN, "--target ttft_p99<2s"), (NETWORK, "")),
    "recommend": ((POISSON + SERVER + RUN, "--target ttft_p99<2s --policies sarathi,orca"),),
    "simulate": ((POISSON + SERVER + RUN, ""),),
    "plan": (
        (POISSON + SERVER + RUN + PLAN, ""),
        (POISSON + SERVER + RUN + PLAN.partition("  job")[0].replace("2s", "1us"), ""),
    ),
    "sweep": ((POISSON + SERVER + RUN, "--vary workload.poisson.rate=4,5 --jobs 1"),),
}
"""By command: scenarios, and options."""


def unlisted(page: Tables, value: object, around: str, places: list[str], seen: set[tuple[str, str]]) -> Iterator[str]:
    """Yield the keys of a value that the tables linked do not list, at any depth."""
    if isinstance(value, list):
        for one in value:
            yield from unlisted(page, one, around.replace("list", "", 1), places, seen)
    elif "as in scenarios" in around:
        return
    elif isinstance(value, dict) and "by name" in around:
        for one in value.values():
            yield from unlisted(page, one, around.replace("by name", "", 1), places, seen)
    elif isinstance(value, dict):
        place = max(places, key=lambda place: len(value.keys() & page.tables[place].keys()), default="")
        listed = page.tables.get(place, {})
        for key, one in value.items():
            if key not in listed:
                yield f"{key} of {place or 'no table'}"
                continue
            seen.add((place, key))
            yield from (f"{inner} in {key}" for inner in unlisted(page, one, *listed[key], seen))


def of_root(page: Tables, document: dict[str, object], command: str, seen: set[tuple[str, str]]) -> list[str]:
    """Return what the page does not list of a command's document, whose own keys stand beside those of the answer."""
    own = page.tables[f"penstock-{command}-json"]
    answer = {key: value for key, value in document.items() if key not in own}
    places = page.roots.get(f"penstock-{command}-json", [])
    beside = unlisted(
        page, {key: document[key] for key in own if key in document}, "", [f"penstock-{command}-json"], seen
    )
    return [*unlisted(page, answer, "", places, seen), *beside] if answer else [*beside]


def test_the_reference_lists_every_key_of_json_at_every_level(
    keys_of_json: Tables, tmp_path: Path, penstock: Callable[..., tuple[int, str, str]]
) -> None:
    missing: dict[tuple[str, int], list[str]] = {}
    seen: set[tuple[str, str]] = set()
    keys_of_json.tables["sweep-point"]["workload.poisson.rate"] = ("", [])  # what varies has any name
    keys_of_json.texts["sweep-point", "workload.poisson.rate"] = "Varies."
    for command, asked in ASKED.items():
        for index, (scenario, options) in enumerate(asked):
            file = tmp_path / f"{command}{index}.yaml"
            file.write_text(scenario)
            status, out, error = penstock(command, file, *options.split(), "--json")
            assert status == 0, error
            missing[command, index] = of_root(keys_of_json, json.loads(out), command, seen)
    for index, options in enumerate((["codellama-34b-a100-tp2"], ["Llama-3.1-8B", "--gpu", "h100-sxm"])):
        _, out, _ = penstock("hardware", *options, "--json")
        missing["hardware", index] = of_root(keys_of_json, json.loads(out), "hardware", seen)
    table = tmp_path / "mine.csv"
    heads = "in_flight,prompt,output,ttft_mean_s,itl_mean_s,completed,incomplete,duration_s"
    table.write_text(f"{heads}\n8,100,101,0.05,0.02,1000,0,256")
    missing["diagnose", 0] = of_root(keys_of_json, diagnose(table).as_dict(), "diagnose", seen)
    batches = tmp_path / "batches.csv"
    batches.write_text("tokens,ms\n" + "".join(f"{n},{10 + n / 100 + n % 3}\n" for n in range(1, 200)))
    fit = ps.fit(ps.read_batches(batches)).as_dict()
    missing["fit", 0] = of_root(keys_of_json, fit, "fit", seen)
    assert {where: keys for where, keys in missing.items() if keys} == {}
    looked = {place for place, _ in seen}
    rows = {(place, key) for place in looked for key in keys_of_json.tables[place]}
    assert rows - seen == set()
    every = {(place, key) for place, keys in keys_of_json.tables.items() for key in keys}
    assert {row for row in every if not keys_of_json.texts.get(row)} == set()
    told = " ".join(keys_of_json.texts.values())
    assert not re.search(r"\b(None|NaN|[A-Z]+_[A-Z]+|UNITS|METRICS|VERDICTS|JUDGED|MISSED)\b", told)


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    anchors = set().union(*(page.anchors for at, page in pages(site).items() if at.startswith("/reference/")))
    ends = {anchor.rsplit(".", 1)[-1]: anchor for anchor in anchors if anchor.startswith("penstock.")}
    for name in ps.__all__:
        made = getattr(ps, name)
        if inspect.isclass(made) or inspect.isfunction(made):
            assert f"{made.__module__}.{made.__qualname__}" in anchors, name
        else:
            assert name in ends, name


def test_the_gallery_has_every_item_of_the_paper_and_every_figure(site: Path) -> None:
    (gallery,) = (page for at, page in pages(site).items() if at == "/gallery/index.html")
    assert {*ITEMS} <= gallery.anchors
    shown = {Path(address).name for address in gallery.loaded}
    assert {path.name for path in (ROOT / "docs" / "figures").rglob("*.svg")} <= shown


def test_every_item_of_the_paper_is_kept_and_none_differs_without_a_reason() -> None:
    folder = ROOT / "docs" / "figures" / "reproduced"
    kept = json.loads((folder / "claims.json").read_text(encoding="utf-8"))
    assert tuple(kept) == ITEMS
    for item in kept.values():
        assert all(claim["same"] or claim["why"] for claim in item["claims"])
        assert all((folder / name).is_file() for name in item["figures"])


def test_every_page_is_in_the_navigation() -> None:
    text = re.search(r"^nav:\n.*", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE | re.DOTALL)
    assert text is not None

    def files(entry: object) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        for inner in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
            yield from files(inner)

    listed = list(files(yaml.safe_load(text[0])["nav"]))
    assert sorted(listed) == sorted(path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md"))


PHONE = """<!DOCTYPE html><title>Phone</title><body><script>
const pages = PAGES, found = {};
async function look(page) {
  const frame = document.createElement("iframe");
  frame.width = 390;
  document.body.append(frame);
  await new Promise(done => { frame.onload = done; frame.src = page; });
  const root = frame.contentDocument.documentElement, images = [...frame.contentDocument.images];
  found[page] = [root.scrollWidth, images.filter(image => image.complete && !image.naturalWidth).length];
  frame.remove();
}
(async () => {
  for (const page of pages) await look(page);
  await fetch("/found", { method: "POST", body: JSON.stringify(found) });
})();
</script>"""


class Seen(http.server.SimpleHTTPRequestHandler):
    """Serves the site, and takes what the browser found."""

    found: queue.Queue[bytes] = queue.Queue()

    def do_POST(self) -> None:
        Seen.found.put(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_every_page_fits_a_phone_and_no_browser_complains(site: Path, tmp_path: Path) -> None:
    """All pages in a headless browser, 390 px wide: none is wider, no figure is missing, the console stays empty."""
    addresses = sorted(at.removesuffix("index.html") for at in pages(site) if at != "/404.html")
    (site / "phone.html").write_text(PHONE.replace("PAGES", json.dumps(addresses)))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Seen, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    options = (
        "--headless --no-sandbox --disable-gpu --no-first-run --disable-sync --disable-background-networking "
        "--disable-component-update --enable-logging=stderr"
    )
    command = [str(CHROMIUM), *options.split(), f"--user-data-dir={tmp_path / 'profile'}"]
    with (tmp_path / "said").open("w") as said:
        browser = subprocess.Popen(
            [*command, f"http://127.0.0.1:{server.server_port}/phone.html"],
            stdout=said, stderr=said, start_new_session=True,
        )  # fmt: skip
        try:
            found = json.loads(Seen.found.get(timeout=120))
        finally:
            os.killpg(browser.pid, signal.SIGKILL)
            browser.wait()
            server.shutdown()
            server.server_close()
            (site / "phone.html").unlink()
    assert not re.findall(r".*CONSOLE.*", (tmp_path / "said").read_text())
    assert sorted(found) == addresses
    assert {page: seen for page, seen in found.items() if seen[0] > 390 or seen[1]} == {}
