"""To how much of what they carry vLLM's default flags are proved stable, on twelve deployments.

python benchmarks/studies/certificates.py
"""

import dataclasses
from pathlib import Path

import penstock as ps
from penstock.scenario.server import HardwareSection
from penstock.theory.hypotheses import AMPLE
from penstock.theory.kv_blocks import at_once, largest

DEPLOYMENTS = (
    ("Llama-3.1-8B", "h100", 1), ("Llama-3.1-8B", "a100", 1), ("Llama-3.1-8B", "l40s", 1),
    ("Llama-3.1-70B", "h100", 4), ("Llama-3.1-70B", "a100", 4), ("Qwen3-32B", "h100", 2),
    ("Qwen3-32B", "a100", 2), ("Qwen3-30B-A3B", "h100", 1), ("Mixtral-8x7B", "a100", 2),
    ("gpt-oss-120b", "h200", 2), ("DeepSeek-R1", "h200", 8), ("Mistral-Small-24B", "h200", 1),
)  # fmt: skip
WORKLOAD = ps.Workload.poisson(1.0, ps.Geometric(1000, max=4000), ps.Geometric(200, max=1000))


def row(model: str, gpu: str, tensor_parallel: int) -> list[str]:
    """Return the cells of a deployment."""
    section = HardwareSection(model=model, gpu=gpu, tensor_parallel=tensor_parallel)
    hardware = section.build(Path())
    budget, places = hardware.served.limits
    server = ps.Server(hardware.batch_time, budget, places, "vllm", gpu=hardware.gpu)
    certificate = ps.certify(WORKLOAD, server)
    fits = {hypothesis.name: hypothesis.held for hypothesis in certificate.hypotheses}[AMPLE]
    held = places
    if not fits:
        held = at_once(server, largest(WORKLOAD.lengths)).fitting
    proved = ps.certify(WORKLOAD, dataclasses.replace(server, max_batch_size=held)).certified_rate
    carried = ps.max_rate(WORKLOAD, server).rate
    name = f"{model}, {f'{tensor_parallel} x ' if tensor_parallel > 1 else ''}{gpu.upper()}"
    cells = [f"{budget:,} / {places:,}", f"{certificate.max_rate:.3g}", f"{carried:.3g}"]
    return [name, *cells, f"{held:,}", f"{proved:.3g}", f"{proved / carried:.0%}"]


def main() -> None:
    """Print the table."""
    heads = (
        "deployment", "token budget / max batch size", "no scheduler carries more", "carries",
        "KV memory surely holds", "proved there", "of what it carries",
    )  # fmt: skip
    rows = [row(*deployment) for deployment in DEPLOYMENTS]
    for cells in (heads, ["---"] * len(heads), *rows):
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
