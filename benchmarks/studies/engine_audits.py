"""Find by audit which schedulers of engines are work-conserving, and the smallest batch that
refutes the others.

Without limits on memory or running requests, each scheduler serves every system of up to three
requests and six tokens, the smallest first, a tick a batch, until an audit finds a batch below the
token budget that what waited could have filled. Those that survive serve random systems of up to 12
requests as well. What it all comes to is the highest rate at which each is stable. Two engines are
drawn at the same six requests.

Run ``python benchmarks/studies/engine_audits.py``; it prints the tables of docs/engines.md and
writes its figure.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import vl_convert

import penstock as ps
from penstock.checking.figures import gantt
from penstock.show import charts

REQUESTS, TOKENS, GAP = 3, 6, 2  # of the largest of the small systems; ticks between arrivals
RANDOM = 2_000
BATCH_TIME = ps.hardware("codellama-34b-a100-tp1").batch_time
FIGURE = Path(__file__).parents[2] / "docs" / "figures" / "engine_gantt.svg"

STATIC, PACKED = {"capacity": "static_batch"}, {"capacity": "max_utilization"}
CHUNKED, MIXED = {"chunked_context": True}, {"mixed_chunk": True}
AT_ONCE = {"overlap_schedule": False}
SCHEDULERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("vllm", {}),
    ("vllm", {"chunked_prefill": False}),
    ("vllm", {"long_prefill_threshold": 1}),
    ("sglang", {}),
    ("sglang", MIXED),
    ("sglang", MIXED | AT_ONCE),
    ("sglang", MIXED | {"max_prefill_tokens": 2}),
    ("tensorrt-llm", {}),
    ("tensorrt-llm", PACKED),
    ("tensorrt-llm", STATIC),
    ("tensorrt-llm", CHUNKED),
    ("tensorrt-llm", PACKED | CHUNKED),
    ("tensorrt-llm", STATIC | CHUNKED),
)


class System(NamedTuple):
    """Requests (arrival ticks, prompt and output tokens) and a token budget."""

    arrival: tuple[int, ...]
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    budget: int

    def run(self, name: str, settings: dict[str, Any]) -> ps.Run:
        """Serve it, a tick a batch."""
        server = ps.Server(
            ps.Affine(c=1.0, a=0.0), self.budget, policy=name, policy_params=settings
        )
        workload = ps.Workload.from_arrays(self.arrival, self.prompt, self.output)
        return ps.simulate(workload, server, record="allocations", tick_s=1.0)


class Finding(NamedTuple):
    """What audits found: systems tried, and the first batch that fell short of the budget."""

    name: str
    settings: dict[str, Any]
    systems: int
    system: System | None
    batch: int


def cuts_prompts(name: str, settings: dict[str, Any]) -> bool:
    """Whether prompts may be longer than the budget."""
    return ps.ENGINES[name].with_options(settings).batching.cuts_prompts


def small_systems(cuts: bool) -> Iterator[System]:
    """Yield all small systems: fewest requests first, then fewest tokens, smallest budget, closest
    arrivals.
    """
    for n in range(1, REQUESTS + 1):
        gaps = sorted(itertools.product(range(GAP + 1), repeat=n - 1), key=sum)
        for tokens in range(n, TOKENS + 1):
            lengths = list(lengths_of(n, tokens))
            for budget, gap, (prompt, output) in itertools.product(
                range(1, tokens + 1), gaps, lengths
            ):
                if cuts or max(prompt) <= budget:
                    yield System((0, *itertools.accumulate(gap)), prompt, output, budget)


def lengths_of(n: int, tokens: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield the prompts and outputs of n requests that cost so many tokens: prompt + output - 1
    each.
    """
    for fences in itertools.combinations_with_replacement(range(tokens - n + 1), 2 * n - 1):
        ones_more = [b - a + 1 for a, b in itertools.pairwise((0, *fences, tokens - n))]
        yield tuple(ones_more[:n]), tuple(ones_more[n:])


def random_systems(cuts: bool, seed: int = 0) -> Iterator[System]:
    """Yield larger ones."""
    rng = np.random.default_rng(seed)
    for _ in range(RANDOM):
        n = int(rng.integers(2, 13))
        arrival = np.cumsum(np.append(0, rng.integers(0, rng.choice([1, 3, 8]) + 1, n - 1)))
        prompt, output = (rng.integers(1, longest + 1, n) for longest in rng.choice([3, 10, 30], 2))
        budget = int(rng.integers(1, 40))
        budget = budget if cuts else max(budget, int(prompt.max()))
        yield System(
            tuple(arrival.tolist()), tuple(prompt.tolist()), tuple(output.tolist()), budget
        )


def search(name: str, settings: dict[str, Any]) -> Finding:
    """Audit system after system, until a batch falls short."""
    tried, cuts = 0, cuts_prompts(name, settings)
    for system in itertools.chain(small_systems(cuts), random_systems(cuts)):
        tried += 1
        found = ps.audit(system.run(name, settings))
        assert found.feasible, (system, found.violations)
        if found.paper.first is not None:
            return Finding(name, settings, tried, system, found.paper.first.batch)
        assert found.strong.held, system
    return Finding(name, settings, tried, None, -1)


def told(name: str, settings: dict[str, Any]) -> str:
    """Return name and settings as the tables have them."""
    said = [f"{key} {value if value is not False else 'off'}" for key, value in settings.items()]
    return f"`{name}`" + "".join(
        f", {words.removesuffix(' True').replace('_', ' ')}" for words in said
    )


def kept(found: Finding) -> str:
    """Return the row of a scheduler that no batch refuted."""
    return f"| {told(found.name, found.settings)} | {found.systems:,} |"


def refuted(found: Finding) -> str:
    """Return a row that says who was served in the batch that fell short, and who was left out."""
    assert found.system is not None
    s = found.system
    run = s.run(found.name, found.settings)
    assert run.allocation_rows is not None
    assert run.batch_rows is not None
    came, served, left_out = [], [], []
    for i, (who, arrival, prompt, output) in enumerate(
        zip("ABC", s.arrival, s.prompt, s.output, strict=False)
    ):
        came.append(f"{who} {prompt}+{output} at {arrival}")
        of = run.allocation_rows[run.allocation_rows[:, 1] == i]
        given = int(of[of[:, 0] < found.batch, 2:].sum())
        prefill, decode = of[of[:, 0] == found.batch, 2:].sum(axis=0).tolist()
        if prefill + decode:
            served.append(f"{who} prefills {prefill}" if prefill else f"{who} decodes")
        left = prompt - given - prefill
        if left > 0 and arrival <= run.batch_rows[found.batch, 0]:
            left_out.append(f"{left} prompt token{'s' if left > 1 else ''} of {who}")
        elif given >= prompt and not decode and given < prompt + output - 1:
            left_out.append(f"a decode of {who}")
    load = int(run.batch_rows[found.batch, 2:4].sum())
    cells = [told(found.name, found.settings), ", ".join(came), f"{found.batch}", ", ".join(served)]
    return f"| {' | '.join([*cells, f'{load} of {s.budget}', ', '.join(left_out)])} |"


def tables(findings: list[Finding]) -> str:
    """Return both tables in Markdown: the schedulers that no batch refuted, and the others with
    theirs.
    """
    lines = ["| scheduler | systems |", "|---|---|"]
    lines += [kept(found) for found in findings if found.system is None]
    lines += [
        "",
        "| scheduler | requests: prompt + output, tick | batch | served | tokens | left out |",
        f"|{'---|' * 6}",
    ]
    lines += [refuted(found) for found in findings if found.system is not None]
    return "\n".join(lines)


def max_rates() -> str:
    """Return the highest stable rate of each, 128 running requests at most, in Markdown."""
    workload = ps.Workload.poisson(10.0, ps.Geometric(129, max=1_000), ps.Geometric(112, max=1_000))
    lines = ["| scheduler | stable up to, requests/s |", "|---|---:|"]
    for name, settings in SCHEDULERS:
        if "max_prefill_tokens" in settings or "long_prefill_threshold" in settings:
            continue  # settings for small systems
        server = ps.Server(BATCH_TIME, 1_024, 128, policy=name, policy_params=settings)
        found = ps.max_rate(workload, server)
        lines.append(f"| {told(name, settings)} | {found.rate:.2f} |")
    return "\n".join(lines)


def draw() -> None:
    """Draw a long prompt that arrives while others decode: vLLM above SGLang."""
    workload = ps.Workload.from_arrays(
        [0, 0, 0, 0.05, 0.2, 0.3], [60, 80, 50, 90, 1400, 300], [14, 22, 9, 20, 6, 8]
    )
    panels = []
    for name in ("vllm", "sglang"):
        run = ps.simulate(workload, ps.Server(BATCH_TIME, 512, policy=name), record="allocations")
        panels.append(gantt(run) | {"title": f"{name}, token budget 512, CodeLlama-34B on an A100"})
    chart = {"vconcat": panels, "resolve": {"scale": {"x": "shared"}}}
    charts.write_whole(FIGURE, vl_convert.vegalite_to_svg(chart).encode())


def main() -> None:
    """Search, print and draw."""
    print(tables([search(*scheduler) for scheduler in SCHEDULERS]))
    print(f"\n{max_rates()}")
    draw()


if __name__ == "__main__":
    main()
