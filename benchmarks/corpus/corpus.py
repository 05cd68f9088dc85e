"""Ask the corpus again, and name each answer that is another than 5856ccd's.

Usage: ``python benchmarks/corpus/corpus.py`` asks this checkout all questions, and exits with 1
where an answer or a lost key of JSON is not listed in ``on_purpose.yaml``. ``--only 'check
server*'`` asks some; ``--against FILE`` compares answers that ``--keep FILE`` kept; ``--record
REVISION`` asks another revision and keeps what it says as the baseline.
"""

import argparse
import collections
import fnmatch
import json
import lzma
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import covered
import inventory
import yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DATA = ROOT.parent / "shared" / "data"
SCENARIOS, ANSWERS = HERE / "scenarios.tar.xz", HERE / "answers.json.xz"
ALMOST = 1e-9
"""Relative difference of two numbers that are the same: libraries differ in the last digits."""
SHOWN = 15
"""Differences that are printed of one answer."""
MADE = {"c07_ramp.py": (), "c18_dp_pages.py": (DATA / "real_vllm_cpu" / "metrics",)}
"""Programs of the user cases that write what scenarios beside them read, and what they are told."""

sys.path.insert(0, str(HERE.parent))
from old_version import checkout  # noqa: E402

Answers = dict[str, dict[str, Any]]


# ------------------------------------------------------------------------------------- to ask


def unpack(folder: Path) -> list[str]:
    """Put the files of the corpus into a folder, and return the questions about them.

    Data of other people is linked from ``shared/data``; where it is absent, so are its questions.
    """
    shutil.unpack_archive(SCENARIOS, folder)
    questions = (folder / "questions.txt").read_text(encoding="utf-8").splitlines()
    if not DATA.exists():
        return [each for each in questions if "data/" not in each and "user_cases/" not in each]
    (folder / "data").symlink_to(DATA)
    shutil.copytree(DATA / "user_cases", folder / "user_cases")
    for program, words in MADE.items():
        subprocess.run([sys.executable, program, *words], cwd=folder / "user_cases", check=True)
    for page in ("dq1", "dq2"):
        time = f"metrics_overload_{page[-1]}.time"
        shutil.copy(
            DATA / "real_vllm_cpu" / "metrics" / time, folder / "user_cases" / f"{page}.time"
        )
    return questions


def ask(source: Path, only: str, processes: int) -> Answers:
    """Return what the version in a folder of sources answers, with the seconds that it took."""
    environment = os.environ | {"PYTHONPATH": str(source)}
    answers: Answers = {}
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for place in range(processes):
            own = Path(folder) / str(place)
            own.mkdir()
            questions = [each for each in unpack(own) if fnmatch.fnmatch(each, only)]
            (own / "asked.txt").write_text("\n".join(questions[place::processes]))
            words = [sys.executable, str(HERE / "ask.py"), "asked.txt", "answers.jsonl"]
            running.append((own, subprocess.Popen(words, cwd=own, env=environment)))
        for own, process in running:
            if process.wait():
                raise SystemExit(f"asking ended with status {process.returncode}")
            for line in (own / "answers.jsonl").read_text().splitlines():
                answer = json.loads(line.replace(str(own.resolve()), "FOLDER"))
                answers[answer["question"]] = answer
    return answers


# --------------------------------------------------------------------------------- to compare


def differences(before: Any, after: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Yield the places of two documents that differ, and how."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            place = f"{where}.{key}".removeprefix(".")
            if key not in after:
                yield place, f"{_short(before[key])} is gone"
            elif key not in before:
                yield place, f"{_short(after[key])} is new"
            else:
                yield from differences(before[key], after[key], place)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from differences(old, new, f"{where}[{index}]")
    elif not _same(before, after):
        yield where, f"{_short(before)} is now {_short(after)}"


def _same(before: Any, after: Any) -> bool:
    numbers = all(type(each) in (int, float) for each in (before, after))
    return math.isclose(before, after, rel_tol=ALMOST) if numbers else before == after


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else f"{text[:150]} ..."


class OnPurpose:
    """What later changes changed on purpose, by question, scenario and key; and what was met."""

    def __init__(self, entries: Iterable[Mapping[str, str]], folder: Path) -> None:
        self.entries = list(entries)
        self.met = collections.Counter[int]()
        self._folder = folder

    def explain(self, question: str, place: str) -> bool:
        """Return whether a difference is listed, and count it there."""
        key = re.sub(r"\[\d+\]", "[]", place)
        for index, entry in enumerate(self.entries):
            if (
                fnmatch.fnmatch(question, entry.get("question", "*"))
                and any(fnmatch.fnmatchcase(key, each) for each in entry["keys"])
                and re.search(entry.get("scenario", ""), self._scenario(question))
            ):
                self.met[index] += 1
                return True
        return False

    def _scenario(self, question: str) -> str:
        file = next(
            (self._folder / word for word in question.split() if word.endswith(".yaml")), None
        )
        return file.read_text(encoding="utf-8") if file is not None and file.exists() else ""


def unlisted(before: Answers, after: Answers, purpose: OnPurpose) -> int:
    """Print the differences that are not listed, by question, and return how many there are."""
    count = 0
    for question, new in after.items():
        old = before.get(question, {})
        accidents = []
        for part in ("status", "refusal", "answer"):
            where = "" if part == "answer" else part
            for place, text in differences(old.get(part), new[part], where):
                if not purpose.explain(question, place):
                    accidents.append(f"    {place}: {text}\n")
        count += len(accidents)
        if accidents:
            print(f"penstock {question}\n{''.join(accidents[:SHOWN])}", end="")
        if len(accidents) > SHOWN:
            print(f"    and {len(accidents) - SHOWN:,} more")
    return count


def lost_keys(before: Answers, after: Answers, folder: Path) -> list[str]:
    """Return the keys of JSON that no answer has any more, unlisted."""
    named = covered.names_in(folder)
    asked = {question: before[question] for question in after if question in before}
    old, new = (
        {f"json {key}" for key in inventory.json_keys(answers, named)} for answers in (asked, after)
    )
    said = {entry: change for entry, change in inventory.changes(old).items() if entry in old}
    return inventory.lost(old, new, said)


def report(before: Answers, after: Answers, folder: Path, whole: bool) -> int:
    """Print what differs, and return how many differences and lost keys are not listed."""
    listed = yaml.safe_load(inventory.ON_PURPOSE.read_text(encoding="utf-8"))
    purpose = OnPurpose(listed["answers"] or (), folder)
    count = unlisted(before, after, purpose)
    for index, entry in enumerate(purpose.entries):
        met = purpose.met[index]
        if met or whole:
            stale = "" if met else " - MATCHES NOTHING: take it out"
            print(f"{met:6} on purpose: {entry['reason']}{stale}")
    gone = lost_keys(before, after, folder)
    print("".join(f"lost: {each}\n" for each in gone), end="")
    seconds = sum(each["seconds"] for each in after.values())
    print(f"{len(after)} questions, {seconds:,.0f} s; {count} differences are not listed, "
          f"{len(gone)} keys are lost")  # fmt: skip
    return count + len(gone)


def read(path: Path) -> Answers:
    """Return kept answers."""
    return json.loads(lzma.decompress(path.read_bytes()))


def write(path: Path, answers: Answers) -> None:
    """Keep answers."""
    text = json.dumps(answers, ensure_ascii=False, separators=(",", ":"))
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def main() -> int:
    """Do what is asked for, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--record", metavar="REVISION")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--against", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        unpack(folder)
        if chosen.record:
            with checkout(chosen.record) as source:
                write(ANSWERS, ask(source, chosen.only, chosen.processes))
            return int(covered.report(read(ANSWERS), folder) > 0)
        if chosen.against:
            answers = read(chosen.against)
        else:
            answers = ask(ROOT / "src", chosen.only, chosen.processes)
        if chosen.keep:
            write(chosen.keep, answers)
        faults = report(read(ANSWERS), answers, folder, chosen.only == "*")
        if chosen.only == "*":
            faults += covered.report(read(ANSWERS), folder)
        return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
