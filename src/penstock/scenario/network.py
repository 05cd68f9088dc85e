"""A scenario of a network: one YAML file with pools of replicas and the workflows that visit them.

network:
  pools:
    small: {hardware: codellama-34b-a100-tp1, token_budget: 512, replicas: 2}
    large: {hardware: codellama-34b-a100-tp4, token_budget: 512, order: hlpps}
  workflows:
    research:
      arrivals: {poisson: 0.5}
      stages:
        plan: {pool: large, prompt: 400, output: 200, then: [search, read]}
        search: {pool: small, prompt: 300, output: {geometric: 100}, then: answer}
        read: {pool: small, prompt: {uniform: [100, 900]}, output: 100, then: answer}
        answer: {pool: large, join: true, prompt: 800, output: 300}
simulate: {jobs: 20000, seed: 0}
"""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from penstock.document import Section, Whole, parsed, short, stays_in, with_keys_of, within
from penstock.scenario.pools import PoolSection
from penstock.scenario.run_section import COUNT, DEFAULT_ARRIVALS, RunSection
from penstock.scenario.workflows import WorkflowSection
from penstock.system.network import Network
from penstock.system.network_checks import refuse_in_vain
from penstock.system.outages import Outage, checked_outages


@with_keys_of(Network, without=("pools", "workflows"))
class NetworkSection(Section):
    """Pools, workflows, and how long replicas keep what they computed for reused contexts."""

    pools: dict[str, PoolSection]
    workflows: dict[str, WorkflowSection]

    def build(self, folder: Path, seed: int) -> Network:
        """Return the network; relative paths are looked for in ``folder``."""
        pools = {
            name: pool.build_pool(f"network.pools.{short(name)}", folder)
            for name, pool in self.pools.items()
        }
        gpus = {name: pool.known_gpu(folder) for name, pool in self.pools.items()}
        workflows = [
            workflow.build(name, folder, seed, gpus) for name, workflow in self.workflows.items()
        ]
        with within("network"):
            network: Network = super().build(pools, workflows)
            refuse_in_vain(network)
            return network


@with_keys_of(Outage)
class OutageSection(Section):
    """A replica that dies and comes back; see `Outage`."""

    replica: Whole = 0


class SimulateSection(RunSection):
    """How much to simulate, and which replicas die meanwhile and come back."""

    jobs: Annotated[Whole, stays_in(COUNT)] | None = None
    outages: list[OutageSection] = Field(default_factory=list)


class _Document(Section):
    network: NetworkSection
    simulate: SimulateSection = SimulateSection()


def network_of(document: Any, folder: Path, name: str) -> dict[str, Any]:
    """Return the network of a scenario, and what is simulated of it, as its fields."""
    sections = parsed(document, _Document, name, "`network`")
    simulate = sections.simulate
    jobs = simulate.arrivals("jobs")
    network = sections.network.build(folder, simulate.seed)
    if jobs is None and simulate.until is None and not network.ends:
        jobs = DEFAULT_ARRIVALS
    outages = []
    for index, section in enumerate(simulate.outages):
        with within(f"simulate.outages.{index}"):
            outages.append(section.build())
    with within("simulate.outages"):
        outages_in_order = checked_outages(outages, network.pools)
    return {
        "system": network,
        "arrivals": jobs,
        "until": simulate.until,
        "hardware": {name: pool.hardware_name for name, pool in sections.network.pools.items()},
        "outages": outages_in_order,
    }
