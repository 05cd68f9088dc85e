"""Which fleet meets the targets, AIConfigurator's or Penstock's, where both are simulated alike?

    python benchmarks/aiconfigurator.py ANSWERS OUT.json

Six questions at three rates each. NVIDIA's AIConfigurator (`pip install aiconfigurator` in an
environment of its own, whose command is on the PATH; 0.12.0 was used) is asked for each GPU of a
question with `aiconfigurator cli recommend --target-request-rate`: the fewest GPUs that carry the
rate within its limits, which are of means. The folder ANSWERS keeps what it says; what is there is
not asked again. Of its rows those count that a question allows, replicas of so many GPUs in tensor
parallel; the cheapest by Penstock's prices is its fleet. Penstock is asked by `penstock plan
--model`. Both fleets get the same requests behind jsq, and each target is judged with an interval:

- with Penstock's batch times,
- with these scaled so that a replica carries, for as many clients as AIConfigurator's batch size
  says, what AIConfigurator says that it carries: what is then missed is missed by queueing.

AIConfigurator's fleet is simulated with the limits of the launch command that it writes, and where
that does not meet the targets, with its batch size as the limit, which counts if it meets them.
OUT.json gets a row for each question and rate; rows that it has are not simulated again.
"""

import csv
import dataclasses
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from penstock.document import read_document
from penstock.planning.aim import Aim
from penstock.planning.deployment import Deployment
from penstock.planning.evaluate import evaluate
from penstock.planning.space import search_space
from penstock.system.models.served import served_model, shaped_hardware

USERS = Path(__file__).parents[2] / "shared" / "data" / "user_cases"
_PRICES = Path(ps.__file__).parent / "planning" / "prices.yaml"
PRICES: dict[str, float] = read_document(_PRICES, "price file")["prices"]


@dataclasses.dataclass(frozen=True)
class Question:
    """A model, the GPUs that there may be, a load and targets."""

    name: str
    model: str
    asked: str  # of AIConfigurator: the name of a model, or of one in the nearest precision
    gpus: Sequence[str]
    parallel: Sequence[int]
    prompt: int
    output: int
    ttft_ms: int
    tpot_ms: int | None
    rate: float

    @property
    def targets(self) -> list[str]:
        """Targets as Penstock has them."""
        tpot = [] if self.tpot_ms is None else [f"tpot_p99<{self.tpot_ms}ms"]
        return [f"ttft_p99<{self.ttft_ms}ms", *tpot]

    @property
    def rates(self) -> list[float]:
        """A third of the rate, the rate, and three times it."""
        return [round(self.rate * times, 2) for times in (1 / 3, 1, 3)]


AS_LLAMA = "as Llama"
HOPPER = ("h100-sxm", "h200-sxm")
QUESTIONS = (
    Question(
        "Llama-3.1-70B", "meta-llama/Llama-3.1-70B", "meta-llama/Meta-Llama-3.1-70B",
        (*HOPPER, "a100-sxm"), (2, 4, 8), 1500, 300, 2000, 60, 60,
    ),
    Question(
        "gpt-oss-120b", "openai/gpt-oss-120b", "openai/gpt-oss-120b",
        (*HOPPER, "b200-sxm"), (1, 2, 4, 8), 1000, 300, 2000, 40, 30,
    ),
    Question(
        "DeepSeek-V3", "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3",
        ("h200-sxm", "b200-sxm"), (8,), 2000, 500, 3000, 80, 10,
    ),
    Question(
        "Qwen3-32B-AWQ", "Qwen/Qwen3-32B-AWQ", "Qwen/Qwen3-32B-FP8",
        ("h100-sxm", "l40s"), (1, 2, 4), 1000, 300, 2000, None, 15,
    ),
    Question(
        "Llama-3.1-8B", "meta-llama/Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B",
        ("l40s",), (1, 2, 4, 8), 1000, 200, 1000, 50, 10,
    ),
    Question(
        "EXAONE", str(USERS / "m_exaone.json"), AS_LLAMA,
        ("h100-sxm", "a100-sxm"), (1, 2), 1000, 200, 1000, None, 10,
    ),
)  # fmt: skip


def as_llama(config: Path, folder: Path) -> str:
    """Write a dense model as a Llama of its sizes: of its windows these lengths feel nothing."""
    said = json.loads(config.read_text())
    kept = {key: value for key, value in said.items() if "sliding" not in key}
    changed = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    (folder / "config.json").write_text(
        json.dumps(kept | changed | {"max_position_embeddings": 32_768})
    )
    return str(folder)


def their_answer(question: Question, rate: float, gpu: str, answers: Path) -> dict[str, Any]:
    """Return what AIConfigurator says of a GPU, from the folder or from its command."""
    kept = answers / f"{question.name}-{rate:g}-{gpu}.json"
    if kept.exists():
        said: dict[str, Any] = json.loads(kept.read_text())
        return said
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as config:
        model = question.asked
        if model == AS_LLAMA:
            model = as_llama(Path(question.model), Path(config))
        limits = {"ttft": question.ttft_ms, "tpot": question.tpot_ms or 10_000}
        options = {
            "model": model, "system": gpu.replace("-", "_"), "backend": "vllm",
            "target-request-rate": rate, "isl": question.prompt, "osl": question.output,
            **limits, "top-n": 30, "save-dir": folder,
        }  # fmt: skip
        command = [f"--{key}={value}" for key, value in options.items()]
        begun, cpu = time.monotonic(), cpu_of_children()
        ended = subprocess.run(
            ["aiconfigurator", "cli", "recommend", "--no-color", *command],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        said = {
            "wall_s": time.monotonic() - begun, "cpu_s": cpu_of_children() - cpu, "rows": [],
        }  # fmt: skip
        for table in Path(folder).rglob("agg/best_config_topn.csv"):
            for place, row in enumerate(csv.DictReader(table.open()), 1):
                start = table.parent / f"top{place}" / "run_0.sh"
                said["rows"].append(row | {"start": limits_of(start)})
        if not said["rows"]:
            said["error"] = (ended.stdout + ended.stderr)[-2000:]
    kept.write_text(json.dumps(said, indent=1))
    return said


def limits_of(start: Path) -> dict[str, int]:
    """Return token budget and max batch size of the launch command that it writes."""
    text = start.read_text() if start.exists() else ""
    options = {"token_budget": "max-num-batched-tokens", "max_batch_size": "max-num-seqs"}
    found = {name: re.search(rf'--{option} "?(\d+)', text) for name, option in options.items()}
    return {name: int(match[1]) for name, match in found.items() if match}


def cpu_of_children() -> float:
    """Return the CPU seconds of processes that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def their_fleet(question: Question, rate: float, answers: Path) -> dict[str, Any]:
    """Return the cheapest row that the question allows, with what asking all GPUs took."""
    said = {gpu: their_answer(question, rate, gpu, answers) for gpu in question.gpus}
    rows = [
        {
            "gpu": gpu, "parallel": int(row["tp"]), "experts": int(row["moe_ep"]),
            "replicas": int(row["replicas_needed"]), "start": row["start"],
            "batch_size": int(row["bs"]), "carried": float(row["seq/s"]),
            "tpot_ms": float(row["tpot"]), "ttft_ms": float(row["ttft"]),
            "cost": int(row["total_gpus_needed"]) * PRICES[gpu],
        }
        for gpu, of in said.items() for row in of["rows"]
        if row["pp"] == row["dp"] == "1" and int(row["tp"]) in question.parallel
    ]  # fmt: skip
    spent = {name: sum(of[name] for of in said.values()) for name in ("wall_s", "cpu_s")}
    best = min(rows, key=lambda row: (row["cost"], -row["carried"] / row["parallel"]), default=None)
    return {"best": best, "rows": rows, **spent}


def our_fleet(question: Question, rate: float) -> dict[str, Any]:
    """Return the answer of `penstock plan --model`, and what it took."""
    options = {
        "model": question.model, "gpus": ",".join(question.gpus),
        "tp": ",".join(map(str, question.parallel)), "rate": rate, "prompt": question.prompt,
        "output": question.output,
    }  # fmt: skip
    command = [f"--{key}={value}" for key, value in options.items()]
    command += [f"--target={target}" for target in question.targets]
    begun, cpu = time.monotonic(), cpu_of_children()
    ended = subprocess.run(
        [sys.executable, "-m", "penstock", "plan", "--json", *command],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    spent = {"wall_s": time.monotonic() - begun, "cpu_s": cpu_of_children() - cpu}
    plan = json.loads(ended.stdout)["plan"]
    if plan["best"] is None:
        return {"best": None, **spent}
    one = plan["best"]["deployment"]
    many, _, gpu = one["hardware"].rpartition(" on ")[2].rpartition(" x ")
    limits = {name: one[name] for name in ("token_budget", "max_batch_size")}
    best = {
        "gpu": gpu, "parallel": int(many or 1), "experts": 1, "replicas": one["replicas"],
        "start": limits, "cost": one["cost"],
    }  # fmt: skip
    return {"best": best, "said": plan["answer"], "ends": plan.get("ends"), **spent}


def deployed(question: Question, fleet: dict[str, Any], limits: dict[str, int]) -> Deployment:
    """Return a fleet as Penstock knows it, behind jsq."""
    served = served_model(question.model, fleet["gpu"], fleet["parallel"], fleet["experts"])
    kind = shaped_hardware(served)
    space = search_space(
        ps.Server(kind.batch_time, 2048, 256, "vllm"), hardware=[kind], policy=[None],
        token_budget=[limits["token_budget"]], max_batch_size=[limits["max_batch_size"]],
        replicas=[fleet["replicas"]], price=PRICES,
    )  # fmt: skip
    (one,) = space
    return one


def judged(question: Question, rate: float, one: Deployment, slower: float) -> dict[str, Any]:
    """Return what a fleet does at a rate, with batch times so many times as long."""
    server = dataclasses.replace(one.server, batch_time=one.server.batch_time.scaled(slower))
    workload = ps.Workload.poisson(rate, question.prompt, question.output, seed=0)
    aim = Aim.of(question.targets, requests=2_000, most_requests=128_000)
    found = evaluate(
        workload, dataclasses.replace(one, kind=dataclasses.replace(one.kind, server=server)), aim
    )
    values = {
        target.name: estimate.value
        for target, estimate in zip(aim.targets, found.estimates, strict=True)
    }
    return {"answer": found.answer, "verdict": found.verdict, "values": values}


def slower_than_theirs(question: Question, row: dict[str, Any]) -> dict[str, float]:
    """Return what Penstock's times give at a row's own clients, and how they are to be scaled."""
    asked = question.model if question.asked == AS_LLAMA else question.asked
    named = dataclasses.replace(question, model=asked)
    one = deployed(named, row | {"replicas": 1}, row["start"])
    clients = row["batch_size"]
    loop = ps.Workload.closed(clients, question.prompt, question.output)
    run = ps.simulate(loop, one.server, requests=max(2_000, 20 * clients))
    assert run.rows is not None
    left = np.sort(run.rows.finish)
    low, high = left.size // 4, 3 * left.size // 4
    carried = float((high - low) / (left[high] - left[low]) / run.tick_s)
    decoding = (run.e2e.mean - run.ttft.mean) * run.tick_s
    return {
        "our_tpot_ms": 1e3 * decoding / (question.output - 1), "our_carried": carried,
        "slower": carried / row["carried"],
    }  # fmt: skip


def compared(question: Question, rate: float, answers: Path) -> dict[str, Any]:
    """Return both answers to a question at a rate, and what each fleet does."""
    theirs, ours = their_fleet(question, rate, answers), our_fleet(question, rate)
    row: dict[str, Any] = {"question": question.name, "rate": rate}
    for tool, answer in (("aiconfigurator", theirs), ("penstock", ours)):
        best = answer["best"]
        row[tool] = {"fleet": best} | {
            name: answer[name] for name in ("said", "ends", "wall_s", "cpu_s") if name in answer
        }
        if best is None:
            continue
        # of the GPU and tensor parallelism of this fleet, whosever it is
        alike = [
            one for one in theirs["rows"]
            if (one["gpu"], one["parallel"]) == (best["gpu"], best["parallel"])
        ]  # fmt: skip
        same = (
            best
            if tool == "aiconfigurator"
            else next(iter(sorted(alike, key=lambda one: one["experts"])), None)
        )
        paces = {"our times": 1.0}
        if same is not None:
            row[tool]["pace"] = slower_than_theirs(question, same)
            paces["their times"] = row[tool]["pace"]["slower"]
        limits = [best["start"]]
        if tool == "aiconfigurator":
            limits.append(best["start"] | {"max_batch_size": best["batch_size"]})
        for name, slower in paces.items():
            for chosen in limits:
                does = judged(question, rate, deployed(question, best, chosen), slower)
                if name not in row[tool] or does["answer"] == "met":
                    row[tool][name] = does | {"limits": chosen}
                if does["answer"] == "met":
                    break
    return row


HEAD = ("question", "rate", "AIConfigurator", "an hour", "our times", "their times", "Penstock",
        "an hour", "our times", "their times")  # fmt: skip


def cells(row: dict[str, Any]) -> list[str]:
    """Return a row of the table."""
    shown = [row["question"], f"{row['rate']:g}"]
    for tool in ("aiconfigurator", "penstock"):
        of = row[tool]
        fleet = of["fleet"]
        if fleet is None:
            shown += ["none", "", "", ""]
            continue
        many = "" if fleet["parallel"] == 1 else f"{fleet['parallel']} "
        shown += [f"{fleet['replicas']} x {many}{fleet['gpu']}", f"{fleet['cost']:.2f}"]
        for name in ("our times", "their times"):
            if name not in of:
                shown.append("")
                continue
            does = of[name]
            values = ", ".join(
                f"{value:.2f}" if "ttft" in what else f"{1e3 * value:.0f} ms"
                for what, value in does["values"].items() if value is not None
            )  # fmt: skip
            said = "unstable" if does["verdict"] == "unstable" else f"{does['answer']} ({values})"
            shown.append(said)
    return shown


def main() -> None:
    """Compare, and print."""
    answers, out = Path(sys.argv[1]), Path(sys.argv[2])
    answers.mkdir(parents=True, exist_ok=True)
    rows = json.loads(out.read_text()) if out.exists() else []
    done = {(row["question"], row["rate"]) for row in rows}
    for question in QUESTIONS:
        for rate in question.rates:
            if (question.name, rate) not in done:
                rows.append(compared(question, rate, answers))
                out.write_text(json.dumps(rows, indent=1))
    for row in (HEAD, *map(cells, rows)):
        print(f"| {' | '.join(row)} |")
    for tool in ("aiconfigurator", "penstock"):
        wall, cpu = (sum(row[tool][name] for row in rows) for name in ("wall_s", "cpu_s"))
        print(f"{tool}: {wall:.0f} s, {cpu:.0f} s of CPU")


if __name__ == "__main__":
    main()
