"""The command line answers, in words or JSON, or says in one line what is wrong and writes nothing."""

import contextlib
import functools
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from penstock.checking.variants import variants
from penstock.cli import main
from penstock.scenario.scenario import build
from penstock.system.server import Server

EXAMPLE = Path(__file__).parents[1] / "examples" / "azure_code.yaml"
PENSTOCK = [sys.executable, "-m", "penstock"]
LATENCY = {"mean", "p50", "p90", "p95", "p99"}


def penstock(*arguments: object, width: int = 80, **more: object) -> subprocess.CompletedProcess[str]:
    """Run the command line: in this process, which has compiled already, unless it needs one of its own."""
    if not more:
        return in_this_process([*map(str, arguments)], width)
    environment = os.environ | {"COLUMNS": str(width), "NO_COLOR": "1"} | dict(more.pop("env", {}))  # type: ignore[call-overload]
    return subprocess.run(
        [*PENSTOCK, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
        **more,
    )  # type: ignore[call-overload, no-any-return]


def in_this_process(arguments: list[str], width: int) -> subprocess.CompletedProcess[str]:
    out, error = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(error),
    ):
        patch.setattr(sys, "argv", ["penstock", *arguments])
        patch.setenv("COLUMNS", str(width))
        patch.setenv("NO_COLOR", "1")
        with pytest.raises(SystemExit) as left:
            main()
    return subprocess.CompletedProcess(arguments, int(left.value.code or 0), out.getvalue(), error.getvalue())


def answer(*arguments: object) -> dict[str, object]:
    done = penstock(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def assert_answer(found: dict[str, object]) -> None:
    """The contract of `check --json`."""
    load, certificate, simulation = found["load"], found["certificate"], found["simulation"]
    assert isinstance(load, dict)
    assert isinstance(certificate, dict)
    assert isinstance(simulation, dict)
    assert set(load) == {
        "rho", "rho_measured", "rho_at_least", "rho_without_cache", "arrival_rate", "tokens_per_request",
        "offered_tokens_per_s", "capacity_tokens_per_s", "max_rate",
    }  # fmt: skip
    assert set(certificate) == {
        "verdict", "theorem", "reason", "margin", "hypotheses", "bounds", "certified_load", "certified_rate",
        "mean_backlog", "any_policy", "virtual_station", "order", "joins",
    }  # fmt: skip
    assert all(set(h) == {"name", "held", "checked", "why"} for h in certificate["hypotheses"])
    assert certificate["margin"] == pytest.approx(1 - load["arrival_rate"] / load["max_rate"])
    assert set(simulation) >= {
        "verdict", "requests", "unfinished", "batches", "seconds", "tokens_per_s", "growth_tokens_per_s",
    }  # fmt: skip
    assert simulation["verdict"] in ("stable", "unstable", "undecided")
    assert found["stability"]["verdict"] == simulation["verdict"]  # type: ignore[index]
    assert found["disagreement"] is None
    assert (found["latency"] is None) == isinstance(found["latency_refused"], str)
    if found["latency"] is not None:
        assert {name: set(row) for name, row in found["latency"].items()} == dict.fromkeys(  # type: ignore[attr-defined]
            ("ttft_s", "tbt_s", "e2e_s"), LATENCY
        )
    assert isinstance(found["warnings"], list)


def test_check_answers_in_json_as_agreed() -> None:
    found = answer("check", EXAMPLE)
    assert_answer(found)
    assert found["certificate"]["verdict"] == "stable"  # type: ignore[index]
    assert found["simulation"]["requests"] == 20_000  # type: ignore[index]


def test_recommend_answers_in_json_as_agreed() -> None:
    found = answer("recommend", EXAMPLE, "--requests", 500, "--precision", 0.2, "--policies", "orca")
    assert list(found) == [
        "current", "change", "gains", "reason", "binding", "warnings", "rate", "objective", "candidates", "recommended",
        "pruned", "bound", "with_plugin", "calibration",
    ]  # fmt: skip
    assert found["current"] == found["candidates"][0]  # type: ignore[index]
    assert list(found["recommended"]) == ["policy", "token_budget", "max_batch_size", "policy_params"]  # type: ignore[call-overload]
    assert list(found["gains"]) == ["stable_rate", "ttft_s", "tbt_s", "e2e_s"]  # type: ignore[call-overload]


ENGINE = """
workload:
  poisson: {rate: 1.2, prompt: {geometric: {mean: 1000, max: 4000}}, output: {geometric: {mean: 200, max: 999}}}
server: {hardware: llama-2-70b-h100-tp2, policy: vllm, token_budget: 2048, max_batch_size: 256}
simulate: {requests: 400}
"""


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    path = tmp_path / "engine.yaml"
    path.write_text(ENGINE)
    return path


def test_check_names_kv_memory_before_the_verdict_and_what_to_do_after_a_target_is_missed(engine: Path) -> None:
    said = penstock("check", engine, "--target", "ttft_p99<1ms", "--why")
    text = " ".join(said.stdout.split())
    assert text.index("KV memory holds about") < text.index("STABLE by simulation:", text.index("Note"))
    assert text.index("MISSED ttft_p99") < text.index("Next `penstock recommend")
    assert f"penstock recommend {engine} --target 'ttft_p99<0.001s'".replace(" ", "") in text.replace(" ", "")
    assert "Measured in 2024: Llama-2-70B on 2 H100 80 GB" in text
    assert all(len(line) <= 80 for line in said.stdout.splitlines())


def test_check_gives_one_capacity_where_attention_takes_time(engine: Path) -> None:
    """Two numbers of tokens/s beside those that arrive: at most, and what full batches are sure to carry."""
    text = " ".join(penstock("check", engine, "--why").stdout.split())
    assert "with the least that attention takes" in text
    assert "even with the most that attention takes" in text
    assert "set the budget to" not in text
    assert "without attention" not in text


def test_check_in_json_says_where_batch_times_come_from_and_what_to_do_next(engine: Path) -> None:
    found = answer("check", engine, "--target", "ttft_p99<1ms")
    assert found["measured"]["year"] == 2024  # type: ignore[index]
    assert "KV memory holds about" in found["warnings"][0]  # type: ignore[index]
    assert "penstock recommend" in found["next"]  # type: ignore[operator]
    assert answer("check", engine)["next"] is None


@pytest.mark.parametrize("command", ["simulate", "region", "max-rate"])
def test_every_command_says_on_what_kv_memory_an_engine_counts(command: str, engine: Path) -> None:
    more = ["--precision", "0.1"] if command == "max-rate" else []
    found = answer(command, engine, *more)
    assert "KV memory holds about" in found["warnings"][0]  # type: ignore[index]


def under(document: str, policies: str) -> dict[str, Server]:
    """The server of a scenario under policies."""
    system = build(yaml.safe_load(document), Path()).system
    return {name: server for name, (_, server) in variants(system, {"policies": policies}).items()}  # type: ignore[misc]


def test_policies_compared_with_an_engine_have_its_kv_memory_whichever_stands_in_the_file() -> None:
    compared = [under(ENGINE.replace("vllm", name), "sarathi,vllm,sglang,orca") for name in ("vllm", "sarathi", "orca")]
    for servers in compared:
        assert servers == compared[0]
        engine = servers["vllm"]
        for name in ("sarathi", "orca"):
            assert (servers[name].memory, servers[name].kv_note) == (engine.memory, engine.kv_note)
            assert servers[name].kv_note is not None
    alone = under(ENGINE.replace("vllm", "orca"), "sarathi,orca")
    assert [server.memory for server in alone.values()] == [None, None]


def test_recommend_says_what_to_change_and_why() -> None:
    said = penstock(
        "recommend",
        EXAMPLE,
        "--requests",
        2000,
        "--policies",
        "sarathi",
        "--precision",
        0.2,
        "--objective",
        "ttft",
        "--all",
    )
    assert said.returncode == 0
    assert all(len(line) <= 80 for line in said.stdout.splitlines())
    for words in ("CHANGE to policy sarathi, token budget 2,048", "held by the", "What was simulated"):
        assert words in " ".join(said.stdout.split())


def test_recommend_shows_each_target_and_after_a_miss_what_to_do_next() -> None:
    asked = (
        "--requests",
        2000,
        "--precision",
        0.2,
        "--policies",
        "sarathi",
        "--target",
        "e2e_mean<1ms",
        "--target",
        "e2e_mean<1000s",
    )
    said = " ".join(penstock("recommend", EXAMPLE, *asked).stdout.split())
    assert "MISSED e2e_mean<0.001s and e2e_mean<1000s: nothing that was tried meets all" in said
    assert "CHANGE" not in said
    assert "Next `plan: {targets: [e2e_mean<0.001s, e2e_mean<1000s]}` in the scenario" in said


def test_without_a_scenario_it_is_said_where_one_is_shown() -> None:
    done = penstock("check")
    assert (done.returncode, done.stdout) == (2, "")
    assert "`penstock check --help` shows what one looks like" in done.stderr


def test_an_overloaded_engine_is_told_that_kv_memory_holds_it_back(tmp_path: Path) -> None:
    path = tmp_path / "full.yaml"
    path.write_text(ENGINE.replace("rate: 1.2", "rate: 3").replace("256}", "256, num_gpu_blocks: 2000}"))
    said = " ".join(penstock("check", path, "--why").stdout.split())
    assert "UNSTABLE by simulation" in said
    assert "Next KV memory holds it back, which carries about" in said
    assert "a scheduler's own limit may be lower: ask max-rate" in said


def test_compare_answers_for_each_policy() -> None:
    found = answer("compare", EXAMPLE, "--requests", 300)["policies"]
    assert isinstance(found, dict)
    assert list(found) == ["sarathi", "vllm", "sglang", "pool-controlled"]  # one that cannot serve it is left out
    for one in found.values():
        assert_answer(one)
    alone = answer("compare", EXAMPLE, "--requests", 100, "--policies", "orca,sarathi")["policies"]
    assert isinstance(alone, dict)
    assert list(alone) == ["orca", "sarathi"]
    assert alone["sarathi"]["certificate"]["verdict"] == "stable"
    assert found["sarathi"]["certificate"]["verdict"] == "unknown"  # with the KV memory that engines have


@pytest.fixture
def overloaded(tmp_path: Path) -> Path:
    path = tmp_path / "overloaded.yaml"
    path.write_text(EXAMPLE.read_text().replace("rate: 1.2", "rate: 3"))
    return path


def test_check_refuses_the_latency_of_an_unstable_system_and_simulate_does_not(overloaded: Path) -> None:
    found = answer("check", overloaded)
    assert_answer(found)
    assert found["certificate"]["verdict"] == "unstable"  # type: ignore[index]
    assert found["latency"] is None
    assert found["simulation"]["unfinished"] > 0  # type: ignore[index]
    ran = answer("simulate", overloaded)
    assert set(ran) == {"load", "simulation", "latency", "latency_refused", "warnings"}
    assert ran["latency"]["e2e_s"]["p99"] > 0  # type: ignore[index]
    words = penstock("check", overloaded, "--figures", overloaded.parent / "f").stdout
    names = {p.stem for p in (overloaded.parent / "f").iterdir()}
    assert names == {"first_batches_sarathi", "region", "tokens_over_time"}, "there is no latency to be drawn"
    assert "\nUNSTABLE     179% of the most that any scheduler can carry" in words
    assert "First token" not in words


def test_strict_makes_unstable_an_exit_status(overloaded: Path) -> None:
    assert penstock("check", overloaded, "--requests", 100, "--strict").returncode == 1
    assert penstock("check", EXAMPLE, "--requests", 100, "--strict").returncode == 0
    assert penstock("compare", overloaded, "--requests", 100, "--policies", "orca", "--strict").returncode == 1


@functools.cache
def words(command: str, width: int) -> str:
    """Return what a command says of the example in so many columns, once for all tests."""
    more = () if command in ("region", "max-rate") else ("--requests", 500)
    if command == "compare":
        more = (*more, "--policies", "sarathi,orca", "--all")
    done = penstock(command, EXAMPLE, *more, width=width)
    assert done.returncode == 0
    return done.stdout


@pytest.mark.parametrize("width", [40, 120])
@pytest.mark.parametrize("command", ["check", "compare", "simulate", "region", "max-rate"])
def test_words_fit_the_terminal(command: str, width: int) -> None:
    said = words(command, width)
    assert max(map(len, said.splitlines())) <= width
    assert "requests/s" in " ".join(said.split())
    assert "…" not in said


def test_no_column_is_lost_on_a_narrow_terminal() -> None:
    """A table that is too wide is printed row by row, with the name of each column beside its value."""
    wide, narrow = words("compare", 120), words("compare", 40)
    for column in ("Theory", "Test", "Can do", "Tokens/s", "A batch", "TTFT p99", "TBT p50", "E2E p99"):
        assert column in wide
        assert narrow.count(f"  {column} ") == 2


def test_region_says_where_the_load_lies() -> None:
    found = answer("region", EXAMPLE)
    assert found["inside"] is True
    assert found["max_rate"] == pytest.approx(1.2 / (1 - found["margin"]))  # type: ignore[operator]
    assert found["binding"] == ["token budget"]
    assert found["vertices"][0] == [0.0, 0.0]  # type: ignore[index]


def test_max_rate_of_a_work_conserving_policy_is_proved_to_be_the_bound() -> None:
    found = answer("max-rate", EXAMPLE, "--precision", 0.1, "--policies", "sarathi,fastertransformer")["policies"]
    sarathi, weak = found["sarathi"], found["fastertransformer"]  # type: ignore[index]
    assert sarathi["share"] == pytest.approx(1)
    assert not sarathi["trials"]
    assert weak["rate"] < sarathi["rate"]
    assert sarathi["certified_rate"] == pytest.approx(sarathi["bound"])


def test_max_rate_repeats_what_a_preset_does_not_know(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(
        "workload: {poisson: {rate: 2, prompt: 300, output: 100}}\n"
        "server: {hardware: llama-2-70b-a100-tp4, token_budget: 512}\n"
    )
    warnings = answer("max-rate", scenario, "--precision", 0.1)["warnings"]
    assert any("no prompt was cut" in said for said in warnings)  # type: ignore[attr-defined]
    assert answer("max-rate", EXAMPLE, "--precision", 0.1)["warnings"] == []


def test_targets_are_answered_and_with_strict_a_missed_one_is_an_exit_status() -> None:
    easy, hard = "ttft_p90<1000s", "e2e_mean < 1 ms"
    found = answer("check", EXAMPLE, "--requests", 1000, "--target", easy, "--target", hard)
    assert [target["answer"] for target in found["targets"]] == ["met", "missed"]  # type: ignore[attr-defined]
    assert penstock("check", EXAMPLE, "--requests", 1000, "--target", easy, "--strict").returncode == 0
    assert penstock("check", EXAMPLE, "--requests", 1000, "--target", hard, "--strict").returncode == 1


@pytest.mark.parametrize("command", ["check", "compare", "region", "simulate"])
def test_a_report_is_one_page_that_needs_nothing_else(command: str, tmp_path: Path) -> None:
    more = () if command == "region" else ("--requests", 300)
    if command == "compare":
        more = (*more, "--policies", "sarathi,orca")
    page = tmp_path / "folder" / "report.html"
    assert penstock(command, EXAMPLE, *more, "--report", page).returncode == 0
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert "<script" not in text
    assert "https://" not in text.replace("http://www.w3.org", "")


def test_figures_are_written_where_asked(tmp_path: Path) -> None:
    assert (
        penstock("compare", EXAMPLE, "--requests", 500, "--policies", "orca", "--figures", tmp_path / "f").returncode
        == 0
    )
    names = ("first_batches_orca", "latency_cdfs", "region", "tokens_over_time")
    assert sorted(p.name for p in (tmp_path / "f").iterdir()) == [
        f"{name}.{end}" for name in names for end in ("png", "svg")
    ]


def test_a_trace_is_checked_end_to_end(tmp_path: Path) -> None:
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    rows += [f"2024-05-10 00:{i // 60:02d}:{i % 60:02d}.009930+00:00,{100 + i},{5 + i % 7}" for i in range(200)]
    (tmp_path / "calls.csv").write_text("\n".join(rows))
    (tmp_path / "s.yaml").write_text(
        "workload: {trace: calls.csv}\nserver: {hardware: codellama-34b-a100-tp1, max_num_batched_tokens: 512}\n"
    )
    found = answer("check", tmp_path / "s.yaml")
    assert found["simulation"]["requests"] == 200  # type: ignore[index]
    assert found["certificate"]["verdict"] == "unknown"  # type: ignore[index]
    assert penstock("check", tmp_path / "s.yaml", "--requests", 201).returncode == 2


BAD = [
    ("check", "none.yaml"),
    ("check",),
    ("chekc", EXAMPLE),
    ("check", EXAMPLE, "--polcy", "orca"),
    ("check", EXAMPLE, "--policy", "orka"),
    ("check", EXAMPLE, "--requests", "-3"),
    ("check", EXAMPLE, "--requests", "many"),
    ("check", EXAMPLE, "--seed", "-1"),
    ("compare", EXAMPLE, "--policies", "orca,nonesuch"),
    ("compare", EXAMPLE, "--policies", ","),
    ("compare", EXAMPLE, "--policies", "orca,orca"),
    ("traces", "get", "nonesuch"),
]


@pytest.mark.parametrize("arguments", BAD, ids=lambda a: " ".join(str(x).rpartition("/")[2] for x in a))
def test_bad_input_is_one_clear_line_and_status_2(
    arguments: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    figures = ["--figures", tmp_path / "figures"] if arguments[0] in ("check", "compare") and len(arguments) > 1 else []
    done = penstock(*arguments, *figures)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("penstock: ")
    assert list(tmp_path.iterdir()) == []


def test_in_a_process_of_its_own_bad_input_is_one_line_too(tmp_path: Path) -> None:
    done = penstock("check", "none.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.strip().splitlines()) == 1


BAD_TRACES = {
    "empty": b"",
    "header-only": b"arrival_s,prompt_tokens,output_tokens\n",
    "negative": b"arrival_s,prompt_tokens,output_tokens\n0,5,5\n1,-5,5\n",
    "nan": b"arrival_s,prompt_tokens,output_tokens\n0,5,5\n1,nan,5\n",
    "bytes": bytes(range(256)) * 8,
    "missing": None,
}


@pytest.mark.parametrize("kind", BAD_TRACES)
def test_a_bad_trace_is_one_clear_line_and_status_2(kind: str, tmp_path: Path) -> None:
    content = BAD_TRACES[kind]
    if content is not None:
        (tmp_path / "calls.csv").write_bytes(content)
    (tmp_path / "s.yaml").write_text(
        "workload: {trace: calls.csv}\nserver: {hardware: codellama-34b-a100-tp1, token_budget: 512}\n"
    )
    done = penstock("check", tmp_path / "s.yaml", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.strip().splitlines()) == 1
    assert "calls.csv" in done.stderr


def test_names_are_shown_as_they_are_and_what_a_policy_file_prints_spoils_no_json(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import penstock as ps\nprint('hello')\n\n\n@ps.policy(name='[/x]')\ndef f(queue, limits, params):\n"
        "    return queue.prompt_tokens, queue.decoding, ps.PREFILL_FIRST\n"
    )
    path = tmp_path / "[red]hot.yaml"
    path.write_text(EXAMPLE.read_text().replace("sarathi", "'mine:f'").replace("20000", "200"))
    assert answer("check", path)["simulation"]["requests"] == 200  # type: ignore[index]
    for command in ("check", "compare"):
        done = penstock(command, path, *(("--policies", "mine:f") if command == "compare" else ()))
        assert done.returncode == 0, done.stderr
        assert "[red]hot" in done.stdout
        assert "[/x]" in done.stdout


def test_a_full_disk_is_said() -> None:
    command = [*PENSTOCK, "check", str(EXAMPLE), "--requests", "100"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert "cannot write the answer" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [("traces",), ("traces", "--json"), ("--help",)])
def test_who_reads_only_the_beginning_makes_no_failure(arguments: tuple[str, ...]) -> None:
    process = subprocess.Popen([*PENSTOCK, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert (process.wait(timeout=60), process.stderr.read()) == (0, "")


def test_a_closed_standard_output_is_said_in_one_line() -> None:
    done = subprocess.run(
        f"{sys.executable} -m penstock traces >&-", shell=True, stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("penstock: standard output is closed")
    assert len(done.stderr.splitlines()) == 1


def test_a_closed_standard_error_puts_no_message_among_the_answer() -> None:
    command = f"{sys.executable} -m penstock check none.yaml 2>&-"
    done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")


def test_h_is_help_everywhere() -> None:
    commands = ["check", "sweep", "plan", "watch", "serve", "calibrate", "traces"]
    for command in ((), *((name,) for name in commands), ("traces", "get")):
        short, long = penstock(*command, "-h"), penstock(*command, "--help")
        assert short.returncode == 0
        assert short.stdout == long.stdout
        assert "-h, --help" in short.stdout
        assert "\\b" not in short.stdout


def test_alone_it_explains_itself_and_says_its_version() -> None:
    alone = penstock()
    assert alone.returncode == 0
    assert "compare" in alone.stdout
    assert len(alone.stdout.splitlines()) > 5
    version = penstock("--version").stdout.strip()
    assert version.count(".") == 2


def test_traces_are_listed_with_host_and_licence() -> None:
    done = penstock("traces", width=120)
    assert done.returncode == 0
    assert "azure-llm-2023-code" in done.stdout
    assert "CC-BY-4.0" in done.stdout
    listed = answer("traces")["traces"]
    assert {"name", "url", "licence", "home"} <= set(listed[0])  # type: ignore[index]


def test_interrupting_is_one_line_and_leaves_no_file(tmp_path: Path) -> None:
    """While it runs; test_interrupts.py has the moments before."""
    (tmp_path / "s.yaml").write_text(EXAMPLE.read_text().replace("requests: 20000", "requests: 300000000"))
    process = subprocess.Popen(
        [*PENSTOCK, "check", str(tmp_path / "s.yaml"), "--figures", str(tmp_path / "figures")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "First token" not in out  # nothing but the lines that come before the run
    assert [line for line in err.splitlines() if not line.startswith("Compiling")] == ["penstock: interrupted"]
    assert [p.name for p in tmp_path.iterdir()] == ["s.yaml"]


def test_no_report_overwrites_a_file_that_the_scenario_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    held = {
        "tr.csv": "arrived_at,num_prefill_tokens,num_decode_tokens\n0,9,9\n1,9,9\n",
        "times.csv": "tokens,ms\n1,5\n512,20\n",
        "times.yaml": "description: x\nsource: y\nbatch_time: {table: times.csv}\n",
        "s.yaml": "workload: {trace: tr.csv}\nserver: {token_budget: 512, batch_time: {file: times.yaml}}\n",
    }
    for name, text in held.items():
        Path(name).write_text(text)
    for name, text in held.items():
        done = penstock("simulate", "s.yaml", "--report", name)
        assert done.returncode == 2
        assert "is what is read, which would be lost" in done.stderr
        assert Path(name).read_text() == text


SMALL = """workload: {poisson: {rate: 10000, prompt: 100, output: 20}}
server: {hardware: codellama-34b-a100-tp1, token_budget: 512}
"""


@pytest.mark.parametrize(("command", "length"), [("check", "requests: 300"), ("simulate", "until: 0.01")])
def test_a_run_without_a_recorded_batch_has_a_report(tmp_path: Path, command: str, length: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(f"{SMALL}simulate: {{{length}}}\n")
    done = penstock(command, path, "--report", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    assert "Tokens in the system" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("width", [0, 1])
def test_a_terminal_without_width_is_taken_for_a_narrow_one(tmp_path: Path, width: int) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SMALL)
    usual = penstock("simulate", path, "--requests", 300, width=20)
    assert usual.stdout
    assert penstock("simulate", path, "--requests", 300, width=width).stdout == usual.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
def test_bad_input_is_status_2_where_no_message_can_be_written(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*PENSTOCK, "check", "none.yaml"], stderr=full, cwd=tmp_path, timeout=300, check=False)
    assert done.returncode == 2


@pytest.mark.parametrize("command", ["check", "sweep", "serve", "plan"])
@pytest.mark.parametrize(("text", "holds"), [("", "holds nothing,"), ("[1]", "holds no keys but")])
def test_a_file_without_keys_is_refused_in_the_same_words(command: str, text: str, holds: str, tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(text)
    done = penstock(command, str(file))
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert holds in said
    assert "but a scenario is a mapping with `workload`" in said


def test_an_error_is_wrapped_on_a_terminal_and_one_line_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["simulate", str(EXAMPLE.with_name("agent_with_caches.yaml"))]
    (line,) = in_this_process(arguments, 60).stderr.splitlines()
    monkeypatch.setattr(io, "StringIO", type("Terminal", (io.StringIO,), {"isatty": lambda _: True}))
    lines = in_this_process(arguments, 60).stderr.splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 60 + len(str(EXAMPLE.parent))  # a path stays whole
    assert " ".join(" ".join(lines).split()) == line


def test_no_command_is_described_by_more_than_a_line_of_the_help() -> None:
    commands = penstock("--help", width=80).stdout.partition("Commands:\n")[2].splitlines()
    assert len(commands) > 10
    assert not [line for line in commands if line.endswith("...")]
