"""The public traces worth knowing, and how to fetch them.

Penstock ships no trace. A download is kept in a cache folder with its SHA-256 sum, so that a file
that changes at its publisher is noticed and never replaces the one that earlier results came from.
"""

import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import platformdirs

from penstock import checks
from penstock.checks import shown
from penstock.errors import InputError, nearest

_CHUNK = 1 << 20
_TIMEOUT_S = 60


@dataclass(frozen=True)
class Entry:
    """One public trace file."""

    name: str
    description: str
    rows: int | None  # as published, rounded where the publisher rounds; None: not stated
    format: str  # in `penstock.workload.trace_formats.FORMATS`
    url: str  # official download
    home: str  # the page that describes it
    licence: str
    cite: str
    # Of the published file; None: not known, and the first download is then the reference.
    sha256: str | None = None


_SPLITWISE = (
    "Patel et al., Splitwise: Efficient Generative LLM Inference Using Phase Splitting, ISCA 2024"
)
_DYNAMOLLM = (
    "Stojkovic et al., DynamoLLM: Designing LLM Inference Clusters for Performance and Energy, "
    "HPCA 2025"
)
_BURSTGPT = (
    "Wang et al., BurstGPT: A Real-world Workload Dataset to Optimize LLM Serving Systems, arXiv "
    "2401.17644"
)
_MOONCAKE = "Qin et al., Mooncake: Trading More Storage for Less Computation, FAST 2025"
_QWEN = "Wang et al., KVCache Cache in the Wild, USENIX ATC 2025"
_RAGPULSE = "Wang et al., RAGPulse: An Open-Source RAG Workload Trace, arXiv 2511.12979"
_VIDUR = "Agrawal et al., Vidur: A Large-Scale Simulation Framework for LLM Inference, MLSys 2024"


_SHA256 = {
    "azure-llm-2023-code": "54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6",
    "azure-llm-2023-conv": "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
    "mooncake-conversation": "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
    "ragpulse": "cd371571bef3320907147f8901729e37f412aafb067ec8eb153e2828e1801e65",
}
"""Of the files as downloaded, uncompressed."""


def _azure(year: int, kind: str, what: str, rows: int) -> Entry:
    repository = "https://github.com/Azure/AzurePublicDataset"
    if year == 2023:
        raw = "https://raw.githubusercontent.com/Azure/AzurePublicDataset/master/data"
        url, span, cite = f"{raw}/AzureLLMInferenceTrace_{kind}.csv", "an hour", _SPLITWISE
    else:
        release = f"{repository}/releases/download/dataset-llm-2024"
        url, span, cite = (
            f"{release}/AzureLLMInferenceTrace_{kind}_1week.csv",
            "a week",
            _DYNAMOLLM,
        )
    home = f"{repository}/blob/master/AzureLLMInferenceDataset{year}.md"
    description = f"{what} on Azure, {span} of {year}"
    name = f"azure-llm-{year}-{kind}"
    return Entry(name, description, rows, "azure", url, home, "CC-BY-4.0", cite, _SHA256.get(name))


def _burstgpt(number: int, months: str, rows: int) -> Entry:
    home = "https://github.com/HPMLL/BurstGPT"
    url = f"{home}/releases/download/v1.1/BurstGPT_{number}.csv"
    description = f"GPT on Azure, months {months}, with failures"
    return Entry(
        f"burstgpt-{number}", description, rows, "burstgpt", url, home, "CC-BY-4.0", _BURSTGPT
    )


def _mooncake(kind: str, what: str, rows: int) -> Entry:
    home = "https://github.com/kvcache-ai/Mooncake"
    url = f"https://raw.githubusercontent.com/kvcache-ai/Mooncake/main/FAST25-release/traces/{kind}_trace.jsonl"
    name = f"mooncake-{kind}"
    return Entry(
        name,
        f"Kimi, {what}",
        rows,
        "mooncake",
        url,
        home,
        "Apache-2.0",
        _MOONCAKE,
        _SHA256.get(name),
    )


def _qwen(kind: str, what: str) -> Entry:
    home = "https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon"
    # not raw.githubusercontent.com: the files are in Git LFS
    url = f"{home}/raw/main/qwen_{kind}_blksz_16.jsonl"
    description = f"Qwen on Bailian, two hours, {what}"
    return Entry(f"qwen-bailian-{kind}", description, None, "qwen", url, home, "Apache-2.0", _QWEN)


CATALOGUE = (
    _azure(2023, "code", "Code completion", 8_819),
    _azure(2023, "conv", "Conversation", 19_366),
    _azure(2024, "code", "Code completion", 16_803_695),
    _azure(2024, "conv", "Conversation", 27_303_999),
    _burstgpt(1, "1 and 2", 1_429_700),
    _burstgpt(2, "3 and 4", 3_858_400),
    _mooncake("conversation", "conversations", 12_031),
    _mooncake("toolagent", "tool calls and agents", 23_608),
    _mooncake("synthetic", "synthesised from public data sets", 3_993),
    _qwen("traceA", "consumers"),
    _qwen("traceB", "businesses"),
    _qwen("thinking", "reasoning"),
    _qwen("coder", "coding"),
    Entry(
        "ragpulse",
        "RAG at a university, a week",
        7_106,
        "ragpulse",
        "https://github.com/flashserve/RAGPulse/raw/main/data/0_trace.jsonl",
        "https://github.com/flashserve/RAGPulse",
        "MIT",
        _RAGPULSE,
        _SHA256["ragpulse"],
    ),
    Entry(
        "arxiv-summarization",
        "arXiv papers, summaries; lengths, no times",
        28_257,
        "lengths",
        "https://github.com/microsoft/vidur/raw/main/data/processed_traces/"
        "arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv",
        "https://github.com/microsoft/vidur",
        "MIT",
        _VIDUR,
    ),
)


def cache_dir() -> Path:
    """Return the folder of downloaded traces: ``$PENSTOCK_CACHE``, else the user's cache folder."""
    override = os.environ.get("PENSTOCK_CACHE")
    if override:
        return checks.path("the cache folder PENSTOCK_CACHE", override)
    return Path(platformdirs.user_cache_dir("penstock")) / "traces"


def path_of(name: str) -> Path | None:
    """Return the downloaded file, or None if it has not been downloaded."""
    path = _target(_entry(name))
    return path if path.is_file() else None


def is_pinned(name: str) -> bool:
    """Return whether a trace's checksum is known, so whether a mirror has the published one."""
    return _entry(name).sha256 is not None


def download(
    name: str, *, url: str | None = None, progress: Callable[[int, int | None], None] | None = None
) -> tuple[Path, str, bool]:
    """Fetch a trace into `cache_dir`; return file, SHA-256, and whether it is the first time."""
    # An interruption leaves nothing half-written. ``progress`` gets the bytes received and, where
    # the server says so, all there are. Later sums must be the first's, kept in ``NAME.sha256``.
    entry = _entry(name)
    address = url or entry.url
    try:
        scheme = urlsplit(address).scheme
    except ValueError as error:
        raise InputError(
            f"{shown(address)} is no address ({error}), so it cannot be fetched. Correct it"
        ) from None
    if scheme not in ("http", "https"):
        raise InputError(
            f"{shown(address)} is neither an http nor an https address, so it cannot be fetched. "
            "Correct it"
        )
    target = _target(entry)
    record = target.with_name(f"{name}.sha256")
    first_time = not target.exists()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=target.parent, prefix=f".{name}.", suffix=".part")
    except OSError as error:
        raise InputError(
            f"the cache folder {target.parent} cannot be written ({_reason(error)}). "
            "Set PENSTOCK_CACHE to a folder that can"
        ) from None
    try:
        with os.fdopen(handle, "wb") as file:
            digest = _fetch(address, file.write, progress)
        _refuse_change(entry, target, record, digest)
        os.replace(partial, target)
        record.write_text(f"{digest}\n", encoding="ascii")
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise _failed(address, _reason(error)) from None
    finally:
        with suppress(FileNotFoundError):
            os.unlink(partial)
    return target, digest, first_time


def _entry(name: str) -> Entry:
    for entry in CATALOGUE:
        if entry.name == name:
            return entry
    raise InputError(
        f"trace {shown(name)} is not in the "
        f"catalogue{nearest(str(name), [entry.name for entry in CATALOGUE])}"
    )


def _target(entry: Entry) -> Path:
    return cache_dir() / (entry.name + PurePosixPath(urlsplit(entry.url).path).suffix)


def _fetch(
    address: str,
    write: Callable[[bytes], object],
    progress: Callable[[int, int | None], None] | None,
) -> str:
    """Stream the address to `write` and return the SHA-256 sum."""
    request = urllib.request.Request(address, headers={"User-Agent": "penstock"})
    digest, received = hashlib.sha256(), 0
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else None
        while chunk := response.read(_CHUNK):
            write(chunk)
            digest.update(chunk)
            received += len(chunk)
            if progress:
                progress(received, total)
    if total is not None and received != total:
        raise _failed(address, f"{received:,} of {total:,} bytes came")
    return digest.hexdigest()


def _refuse_change(entry: Entry, target: Path, record: Path, digest: str) -> None:
    """Raise if the content is neither the published one nor that of the first download."""
    if entry.sha256 is not None and digest != entry.sha256:
        raise InputError(
            f"what came is not {entry.name} as published: its SHA-256 is {digest}, not "
            f"{entry.sha256}; nothing was "
            "kept. Fetch it from another place, or download it by hand and give its path in the "
            "scenario"
        )
    if entry.sha256 is not None or not target.exists():
        return
    if record.exists():
        expected = record.read_text(encoding="ascii").strip()
    else:
        expected = hashlib.sha256(target.read_bytes()).hexdigest()
    if digest != expected:
        raise InputError(
            f"{entry.name} has changed: SHA-256 {digest} now, {expected} expected, so earlier "
            "results would not "
            f"repeat; nothing was replaced. Delete {target} to accept the new one"
        )


def _failed(address: str, reason: str) -> InputError:
    return InputError(
        f"{address} could not be downloaded ({reason}). Try again, or download it by hand and "
        "pass the file."
    )


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP status {error.code}"
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return " ".join(str(cause).split()) or type(error).__name__
