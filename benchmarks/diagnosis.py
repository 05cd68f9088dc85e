"""How often `penstock diagnose` is right on benchmarks whose truth is known, because they are made.

Usage: ``python benchmarks/diagnosis.py [FIRST] [LAST] [FILE]``: seeds (default: 100 to 299), one
benchmark each, of six kinds in turn, on servers and lengths drawn at random. Half of the files have
a time for each request (``--save-detailed``), half only the summary. Prints a table; the file gets
every benchmark with its truth and its verdict as JSON. Thresholds were chosen on seeds 0 to 99.
"""

import collections
import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from penstock.measuring.calibration.predict import Requests, simulated, sustained_rate
from penstock.measuring.diagnosis.diagnose import diagnose
from penstock.system.models.served import served_model

KINDS = ("steady", "filling", "closed", "held back", "saturated", "too short")
SHAPES = (
    ("Llama-3.1-8B", 1), ("Llama-3.1-70B", 4), ("Qwen3-32B", 2), ("Mistral-7B-v0.3", 1),
)  # fmt: skip
MOST = 12_000  # requests of a file


class Unfit(Exception):
    """What was drawn has not the truth that was asked for."""


@dataclasses.dataclass(frozen=True)
class World:
    """A server, lengths, and what it carries of them."""

    rng: np.random.Generator
    server: ps.Server
    prompt: tuple[float, float]  # mean, coefficient of variation
    output: tuple[float, float]
    burstiness: float  # of arrivals

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> "World":
        budget, places = int(rng.choice([512, 2048, 8192])), int(rng.choice([32, 64, 128, 256]))
        if rng.random() < 0.5:
            times: Any = ps.Affine(rng.uniform(0.005, 0.04), 10 ** rng.uniform(-5.5, -4.3))
        else:
            name, split = SHAPES[rng.integers(len(SHAPES))]
            times = served_model(name, "h100-sxm", split).times.composition(budget)
        spread = float(rng.choice([0.0, 0.3, 1.0]))
        prompt, output = 10 ** rng.uniform(1.8, 3.5), 10 ** rng.uniform(1.3, 2.8)
        memory = None
        if rng.random() < 0.3:  # of some of the requests that may run
            held = places * (prompt + output) * rng.uniform(0.3, 1.0) + 30 * (prompt + output)
            memory = ps.Memory(int(held / 16) + 1, 16)
        server = ps.Server(times, budget, places, policy="vllm", memory=memory)
        burstiness = float(rng.choice([0.5, 1.0, 1.0, 4.0]))
        return cls(rng, server, (prompt, spread), (output, spread), burstiness)

    def lengths(self, count: int, mean: float, spread: float) -> Any:
        if not spread:
            return np.full(count, round(mean))
        scale = np.log1p(spread**2)
        drawn = self.rng.lognormal(np.log(mean) - scale / 2, np.sqrt(scale), count)
        return np.clip(drawn.round(), 1, 10 * mean).astype(np.int64)

    def run(
        self,
        count: int,
        rate: float | None = None,
        limit: int | None = None,
        closed: bool = False,
    ) -> dict[str, Any]:
        """Return what a client records of a load: open with a limit that never binds, or closed, as
        a client in effect is that is told a higher rate than its limit allows.
        """
        if count > MOST:
            raise Unfit
        times = np.zeros(count)
        if rate is not None:
            times = np.cumsum(self.rng.gamma(self.burstiness, 1.0, count))
            times *= count / rate / times[-1]
        sent = Requests(
            times,
            self.lengths(count, *self.prompt),
            self.lengths(count, *self.output),
            limit if closed else None,
            None,
        )
        rows = (run := simulated(sent, self.server)).rows
        assert rows is not None
        arrival, first, finish = (
            column * run.tick_s for column in (rows.arrival, rows.first_token, rows.finish)
        )
        ended = np.searchsorted(np.sort(finish), np.sort(arrival), "right")
        if rate and limit and not closed and (np.arange(count) - ended).max() >= limit:
            raise Unfit
        return {
            "rate": rate, "limit": limit, "burstiness": self.burstiness, "arrival": arrival,
            "prompts": rows.prompt_tokens, "outputs": rows.output_tokens,
            "ttft": first - arrival + 0.005, "e2e": finish - arrival + 0.005,
            "duration": float(finish.max()) + 0.005,
        }  # fmt: skip

    def carried(self) -> float:
        """Return the rate that leaves while many wait."""
        count = 1_000
        lengths = self.lengths(count, *self.prompt), self.lengths(count, *self.output)
        return sustained_rate(Requests(np.zeros(count), *lengths, None, None), self.server)

    def closed(self, clients: int) -> float:
        """Return the rate at which so many clients are answered."""
        run = self.run(max(12 * clients, 200), None, clients, closed=True)
        left = np.sort(run["arrival"] + run["e2e"])
        low, high = left.size // 4, 3 * left.size // 4
        return float((high - low) / (left[high] - left[low]))


def benchmark(world: World, kind: str) -> dict[str, Any]:
    """Return a benchmark of a kind; its truth is known by more runs than the file shows."""
    rng, places = world.rng, world.server.max_batch_size
    assert places is not None
    if kind in ("closed", "saturated", "held back") or (kind == "too short" and rng.random() < 0.4):
        few, many = {"saturated": (0.1, 0.7), "held back": (-1.5, 0.3)}.get(kind, (-1.5, 0.0))
        clients = max(1, int(places * 10 ** rng.uniform(few, many)))
        carried = world.closed(clients)
        more = world.closed(2 * clients) / carried
        if (kind == "saturated" and more > 1.05) or (
            kind in ("closed", "too short") and more < 1.2
        ):
            raise Unfit
        if kind == "too short":
            count = max(3, int(clients * rng.uniform(1, 2.5)))
            return world.run(count, None, clients, closed=True)
        count = int(max(300, 12 * clients) * rng.uniform(1, 2))
        rate = carried * rng.uniform(1.2, 4) if kind == "held back" else None
        return world.run(count, rate, clients, closed=True)
    carried = world.carried()
    if kind == "filling":
        rate = carried * rng.uniform(1.1, 2)
        full = world.run(2_000, rate)
        running = carried * float((full["e2e"] - full["ttft"]).mean())
        count = int(max(300, 4 * running) * rng.uniform(1, 3))
        return world.run(count, rate) | {"carried": carried}
    rate = carried * rng.uniform(0.3, 0.9)
    under_way = rate * float(world.run(2_000, rate)["e2e"].mean())
    if kind == "steady":
        limit = None if rng.random() < 0.7 else int(4 * under_way) + 20  # that never binds
        return world.run(int(max(400, 12 * under_way) * rng.uniform(1, 3)), rate, limit)
    if rng.random() < 0.3:
        return world.run(int(rng.integers(3, 20)), rate)
    if under_way < 10:
        raise Unfit
    return world.run(int(under_way * rng.uniform(0.3, 2)), rate)


def written(run: dict[str, Any], path: Path, detailed: bool) -> None:
    """Write what vllm bench serve would, with a time for each request or without."""
    gaps = (run["e2e"] - run["ttft"]) / np.maximum(run["outputs"] - 1, 1)
    tpot = gaps[run["outputs"] > 1]
    document = {
        "backend": "vllm", "num_prompts": run["arrival"].size,
        "request_rate": run["rate"] or "inf", "burstiness": run["burstiness"],
        "max_concurrency": run["limit"],
        "duration": run["duration"], "completed": run["arrival"].size, "failed": 0,
        "total_input_tokens": int(run["prompts"].sum()),
        "total_output_tokens": int(run["outputs"].sum()),
        "request_throughput": run["arrival"].size / run["duration"],
    }  # fmt: skip
    decoding = np.repeat(gaps, np.maximum(run["outputs"] - 1, 0))
    for name, samples in (
        ("ttft", run["ttft"]), ("tpot", tpot), ("itl", decoding), ("e2el", run["e2e"])
    ):  # fmt: skip
        samples = samples * 1e3 if samples.size else np.zeros(1)
        document |= {
            f"mean_{name}_ms": float(samples.mean()),
            f"std_{name}_ms": float(samples.std()),
        }
        document |= {
            f"{called}_{name}_ms": float(np.quantile(samples, share))
            for called, share in (("median", 0.5), ("p90", 0.9), ("p99", 0.99))
        }
    if detailed:
        document |= {
            "input_lens": run["prompts"].tolist(), "output_lens": run["outputs"].tolist(),
            "start_times": (run["arrival"] + 1e4).tolist(), "ttfts": run["ttft"].tolist(),
            "itls": [
                [gap] * int(count - 1) for gap, count in zip(gaps, run["outputs"], strict=True)
            ],
        }  # fmt: skip
    path.write_text(json.dumps(document))


def made(seed: int, path: Path) -> dict[str, Any]:
    """Write the benchmark of a seed; return its truth."""
    kind, detailed = KINDS[seed % len(KINDS)], bool(seed // len(KINDS) % 2)
    for attempt in range(200):
        try:
            run = benchmark(World.drawn(np.random.default_rng([seed, attempt])), kind)
        except Unfit:
            continue
        written(run, path, detailed)
        truth = {"seed": seed, "kind": kind, "detailed": detailed}
        return truth | {"carried": run.get("carried")}
    raise RuntimeError(f"seed {seed}: nothing of the kind {kind!r} was drawn")


def main(first: int = 100, last: int = 299, file: str | None = None) -> int:
    """Make and judge; return 1 where fewer than 95% are told rightly."""
    entries = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, last + 1):
            path = Path(folder, f"{seed}.json")
            truth = made(seed, path)
            (row,) = diagnose(path).rows
            told = {"told": row.verdict, "said": row.said, "told_carried": row.carried_per_s}
            entries.append(truth | told | {"interval": row.interval})
            right = "" if row.verdict == truth["kind"] else f"  told {row.verdict}"
            print(f"{seed:4} {truth['kind']:10} {truth['detailed']!s:6}{right}", flush=True)
    if file is not None:
        Path(file).write_text(json.dumps(entries, indent=1))
    counts: dict[Any, list[bool]] = collections.defaultdict(list)
    for entry in entries:
        right = entry["kind"] == entry["told"]
        for key in (entry["kind"], "all"):
            counts[key, entry["detailed"]].append(right)
    print(f"{'':10}  {'each request':>14}  {'summary':>14}")
    for kind in (*KINDS, "all"):
        cells = (f"{sum(of)} of {len(of)}" for of in (counts[kind, True], counts[kind, False]))
        print(f"{kind:10}  {'  '.join(f'{cell:>14}' for cell in cells)}")
    for detailed in (True, False):
        known = [
            entry
            for entry in entries
            if entry["carried"] and entry["told"] == "filling" and entry["detailed"] is detailed
        ]
        off = [entry["told_carried"] / entry["carried"] - 1 for entry in known]
        spans = [(entry["interval"], entry["carried"]) for entry in known if entry["interval"]]
        held = sum(span[0] <= carried <= span[1] for span, carried in spans)
        print(
            f"Carried while filling, {'each request' if detailed else 'summary'}: off by "
            f"{np.median(off):+.1%} in the median, {min(off):+.0%} to {max(off):+.0%}; "
            f"intervals that hold it: {held} of {len(spans)}"
        )
    share = sum(entry["kind"] == entry["told"] for entry in entries) / len(entries)
    print(f"{share:.1%} told rightly")
    return int(share < 0.95)


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:3]]
    sys.exit(main(*numbers, *sys.argv[3:4]))
