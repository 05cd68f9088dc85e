"""What must be true of the catalogue of public traces and of downloading them."""

import gzip
import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock.errors import InputError
from penstock.traces.catalogue import CATALOGUE, cache_dir, download, is_pinned, path_of
from penstock.workload import trace_formats, traces

NAME = "azure-llm-2024-code"  # of which no checksum is known
BODY = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"


class Site(BaseHTTPRequestHandler):
    """Serves `body`; /truncated promises more than it sends, /missing is not there."""

    body = BODY

    def do_GET(self):
        if self.path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        if self.path != "/no-length":
            self.send_header("Content-Length", str(len(self.body) + (10 if self.path == "/truncated" else 0)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_):
        pass


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def site(cache, monkeypatch):
    monkeypatch.setattr(Site, "body", BODY)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def refusal(name=NAME, **options):
    with pytest.raises(InputError) as caught:
        download(name, **options)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_every_entry_can_be_fetched_by_https_and_read_by_a_known_format():
    formats = {format.name for format in trace_formats.FORMATS}
    assert len({entry.name for entry in CATALOGUE}) == len(CATALOGUE)
    for entry in CATALOGUE:
        assert urlsplit(entry.url).scheme == urlsplit(entry.home).scheme == "https"
        assert entry.url.endswith((".csv", ".jsonl"))
        assert entry.format in formats
        assert entry.licence
        assert entry.cite


def test_a_download_is_kept_readable_and_recorded_with_its_sum(site, cache):
    assert path_of(NAME) is None
    seen = []
    path, digest, first_time = download(NAME, url=f"{site}/ok", progress=lambda done, total: seen.append((done, total)))
    assert path == path_of(NAME) == cache / f"{NAME}.csv"
    assert path.read_bytes() == BODY
    assert digest == hashlib.sha256(BODY).hexdigest() == (cache / f"{NAME}.sha256").read_text().strip()
    assert first_time
    assert seen[-1] == (len(BODY), len(BODY))
    assert traces.load(path).prompt_tokens.tolist() == [4808]
    assert download(NAME, url=f"{site}/ok") == (path, digest, False)


def test_a_server_that_does_not_state_the_length_is_accepted(site):
    seen = []
    download(NAME, url=f"{site}/no-length", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(BODY), None)


@pytest.mark.parametrize("recorded", [True, False])
def test_changed_content_keeps_the_old_file_until_it_is_deleted(site, cache, monkeypatch, recorded):
    path, old, _ = download(NAME, url=f"{site}/ok")
    if not recorded:  # as if interrupted between the file and its sum
        (cache / f"{NAME}.sha256").unlink()
    monkeypatch.setattr(Site, "body", BODY + b"2023-11-16 18:17:04,1,1\n")
    new = hashlib.sha256(Site.body).hexdigest()
    message = refusal(url=f"{site}/ok")
    assert old in message
    assert new in message
    assert f"Delete {path}" in message
    assert path.read_bytes() == BODY
    path.unlink()
    assert download(NAME, url=f"{site}/ok") == (path, new, True)
    assert (cache / f"{NAME}.sha256").read_text().strip() == new


def test_a_missing_page_and_a_truncated_body_leave_nothing(site, cache):
    assert f"{site}/missing could not be downloaded (HTTP status 404)" in refusal(url=f"{site}/missing")
    message = refusal(url=f"{site}/truncated")
    assert f"{site}/truncated could not be downloaded" in message
    assert f"{len(BODY)} of {len(BODY) + 10} bytes" in message
    assert "download it by hand and pass the file" in message
    assert list(cache.iterdir()) == []


def test_an_unreachable_server_is_one_line(cache):
    assert "could not be downloaded" in refusal(url="http://127.0.0.1:9/nothing")
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, RuntimeError])
def test_an_interruption_leaves_nothing_half_written_and_keeps_what_was_there(site, cache, interruption):
    def interrupt(done, total):
        raise interruption

    with pytest.raises(interruption):
        download(NAME, url=f"{site}/ok", progress=interrupt)
    assert list(cache.iterdir()) == []
    path, _, _ = download(NAME, url=f"{site}/ok")
    with pytest.raises(interruption):
        download(NAME, url=f"{site}/ok", progress=interrupt)
    assert sorted(file.name for file in cache.iterdir()) == [f"{NAME}.csv", f"{NAME}.sha256"]
    assert path.read_bytes() == BODY


def test_unknown_names_and_addresses_that_are_not_http_are_refused(cache):
    assert f"did you mean '{NAME}'?" in refusal("azure-llm-2024-cod")
    with pytest.raises(InputError, match="not in the catalogue"):
        path_of("nothing")
    for url in ("file:///etc/passwd", "ftp://127.0.0.1/x", "relative.csv"):
        assert "neither an http nor an https address" in refusal(url=url)
    assert not cache.exists()


def test_the_cache_is_the_users_unless_the_environment_says_otherwise(cache, monkeypatch):
    assert cache_dir() == cache
    monkeypatch.delenv("PENSTOCK_CACHE")
    assert cache_dir().name == "traces"
    assert "penstock" in str(cache_dir())


def test_a_cache_that_cannot_be_written_says_how_to_choose_another(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file" / "cache"))
    assert "Set PENSTOCK_CACHE" in refusal()


def test_an_address_or_a_cache_folder_that_makes_no_sense_is_refused(cache, monkeypatch):
    assert "no address" in refusal(url="http://[bad")
    monkeypatch.setenv("PENSTOCK_CACHE", "~nosuchuser/x")
    assert "PENSTOCK_CACHE" in refusal()


def test_a_mirror_with_another_content_is_refused_where_the_checksum_is_known(site, cache):
    pinned = next(entry.name for entry in CATALOGUE if entry.sha256)
    message = refusal(pinned, url=f"{site}/ok")
    assert f"what came is not {pinned} as published: its SHA-256 is {hashlib.sha256(BODY).hexdigest()}, not " in message
    assert list(cache.iterdir()) == []


REAL = {
    "azure-llm-2023-code": "azure_llm_2023_code.csv",
    "azure-llm-2023-conv": "azure_llm_2023_conv.csv",
    "mooncake-conversation": "mooncake_fast25_conversation_trace.jsonl.gz",
    "ragpulse": "ragpulse_0_trace.jsonl.gz",
}


def test_every_checksum_is_held_against_a_file_here():
    assert {entry.name for entry in CATALOGUE if entry.sha256} == set(REAL)


@pytest.mark.parametrize("name", REAL)
def test_the_checksums_are_those_of_the_real_files(name):
    path = Path(__file__).parents[3] / "shared" / "data" / "traces" / REAL[name]
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    content = path.read_bytes()
    content = gzip.decompress(content) if path.suffix == ".gz" else content
    assert is_pinned(name)
    assert {entry.name: entry.sha256 for entry in CATALOGUE}[name] == hashlib.sha256(content).hexdigest()


def test_the_list_has_a_row_for_each_trace_and_their_addresses_behind_all(penstock):
    _, listed, _ = penstock("traces")
    for entry in CATALOGUE:
        (row,) = (line for line in listed.splitlines() if line.startswith(f"{entry.name} "))
        assert entry.description in row
    assert "https://" not in listed
    _, everything, _ = penstock("traces", "--all")
    assert all(entry.home in re.sub(r"\s+", "", everything) for entry in CATALOGUE)
    assert all(entry.licence in everything for entry in CATALOGUE)
