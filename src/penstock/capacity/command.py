"""The commands ``penstock region``, ``max-rate`` and ``recommend``."""

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.checking.command_choices import (
    Alpha,
    AlphaOfServer,
    PolicyName,
    Requests,
    Targets,
    about,
    chosen_policies,
    chosen_scenario,
    chosen_servers,
    chosen_variants,
    read_either,
    varied,
)
from penstock.checking.command_network import Jobs, Orders, Routers
from penstock.errors import InputError
from penstock.show import progress
from penstock.show.options import Form, ScenarioPath, Seed, answers, files_of
from penstock.simulation.progress import in_parts
from penstock.words import gathered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.scenario.scenario import Scenario
    from penstock.system.network import Network


@answers("figures", "report")
def region(
    scenario: ScenarioPath,
    policy: PolicyName = None,
    *,
    form: Form,
) -> None:
    """Draw the token rates outside which no policy is stable, where the load lies, and what holds
    the server back.
    """
    form.check(files_of(scenario))
    chosen = chosen_scenario(scenario, policy)
    progress.announce_compilation()
    from penstock.capacity.view import region_page
    from penstock.checking.doubt import known_within, reach_of
    from penstock.simulation.quick import memory_is_full
    from penstock.system.prefix_cache import front_notes
    from penstock.theory.operating_point import operating_point

    with progress.bar("Finding what is carried"):
        full = memory_is_full(chosen.workload, chosen.server)
        carried = None if full is None else full.rate
        found = operating_point(chosen.workload, chosen.server, memory_rate=carried)
    if form.figures is not None:
        from penstock.checking.charts import region_chart

        chart = region_chart(found.region, found.point, found.own, about=about(chosen))
        form.draw({"region": chart})
    reach = reach_of((chosen.workload, chosen.server))
    notes = front_notes(chosen.workload, chosen.server)
    document = found.as_dict() | {
        "calibration": reach and {"load": list(reach.load), "max_rate": list(reach.max_rate)},
        "warnings": [*known_within((chosen.workload, chosen.server)), *notes],
    }
    form.show(region_page(found, chosen), document)


@answers()
def max_rate(
    scenario: ScenarioPath,
    policies: Annotated[
        str | None,
        typer.Option("--policies", help="Policies, separated by commas; default: the scenario's."),
    ] = None,
    routers: Routers = None,
    orders: Orders = None,
    precision: Annotated[
        float | None,
        typer.Option(
            "--precision", help="Relative distance that may be left: 0.01, networks 0.05."
        ),
    ] = None,
    targets: Targets = None,
    requests: Requests = None,
    jobs: Jobs = None,
    alpha: AlphaOfServer = None,
    seed: Seed = None,
    *,
    form: Form,
) -> None:
    """Find the highest rate at which each policy is stable, beside the rate above which none is;
    with targets also the highest at which they are known to be met.

    Of a network: the highest load, in times all its arrival rates, under each policy, router and
    order between stages.
    """
    of_network = {"--routers": routers, "--orders": orders}
    if not targets and (requests, jobs) != (None, None):
        raise InputError(
            "--requests and --jobs give the length of runs that judge targets, but there are none; "
            "give a --target, or leave them out"
        )
    of_server = {"--alpha": alpha, "--requests": requests}
    document, is_network = read_either(scenario, of_server, of_network | {"--jobs": jobs})
    progress.announce_compilation()
    if is_network:
        axes = {"policies": policies, "routers": routers, "orders": orders}
        _max_load(
            chosen_scenario(scenario, arrivals=jobs, document=document),
            axes,
            precision,
            targets,
            seed,
            form,
        )
        return
    chosen = chosen_scenario(scenario, None, requests, seed, document)
    _max_rate(chosen, policies, precision, targets, alpha, form)


def _max_rate(
    chosen: "Scenario",
    policies: str | None,
    precision: float | None,
    targets: list[str] | None,
    alpha: float | None,
    form: Form,
) -> None:
    """Find what one server carries under each policy."""
    from penstock.capacity import max_rate as search
    from penstock.capacity.view import max_rate_page, within_ends
    from penstock.checking.doubt import beyond_rows
    from penstock.system.prefix_cache import front_notes, unsaid

    servers = chosen_servers(chosen, policies, [chosen.server.policy])
    with progress.bar("Searching") as show:
        found = {
            name: search.max_rate(
                chosen.workload, server, precision=precision, alpha=alpha,
                seed=chosen.workload.seed, targets=targets or (), requests=chosen.arrivals,
                progress=part,
            )
            for (name, server), part in in_parts(show, servers.items())
        }  # fmt: skip
    notes = gathered(
        {
            name: [
                *within_ends(found[name]),
                *beyond_rows((chosen.workload, server)),
                *front_notes(chosen.workload, server),
            ]
            for name, server in servers.items()
        }
    )
    notices = unsaid(chosen.workload.notices, notes)
    policies_found = {name: rate.as_dict() for name, rate in found.items()}
    document = {"policies": policies_found, "warnings": [*notes, *notices]}
    form.show(max_rate_page(found, chosen, servers, notes, notices), document)


def _max_load(
    chosen: "Scenario",
    axes: "Mapping[str, str | None]",
    precision: float | None,
    targets: list[str] | None,
    seed: int | None,
    form: Form,
) -> None:
    """Find what a network carries, as it is or in each variant that is asked for."""
    from penstock.capacity import max_rate as search
    from penstock.capacity.view import max_load_page, within_ends
    from penstock.checking.doubt import beyond_rows
    from penstock.system.network import own_seed

    networks = chosen_variants(chosen, axes)
    workflows = chosen.network.workflows
    seed = own_seed(workflows[0]) if seed is None else seed
    with progress.bar("Searching") as show:
        found = {
            name: search.max_rate(
                network, precision=precision, seed=seed, targets=targets or (),
                jobs=chosen.arrivals, progress=part,
            )
            for (name, network), part in in_parts(show, networks.items())
        }  # fmt: skip
    notes = gathered(
        {
            name: [
                *within_ends(found[name]),
                *beyond_rows(network),
                *_front_notes(network),
            ]
            for name, network in networks.items()
        }
    )
    if chosen.outages:
        notes.append(
            "outages are left out: they end, so they do not change up to which load queues stay "
            "finite"
        )
    notices = list(dict.fromkeys(notice for flow in workflows for notice in flow.notices))
    document = {
        "networks": {name: load.as_dict() for name, load in found.items()},
        "warnings": [*notes, *notices],
    }
    form.show(max_load_page(found, chosen, varied(axes), [*notes, *notices]), document)


def _front_notes(network: "Network") -> list[str]:
    """Return what to know of the KV memory of all servers, and of prefix caches."""
    servers = [server for pool in network.pools.values() for server, _ in pool.servers]
    from penstock.system.prefix_cache import network_notes

    return [*network_notes(network), *(note for server in servers for note in server.kv_notes)]


@answers("strict")
def recommend(
    scenario: ScenarioPath,
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective",
            help="stable-rate, ttft, tbt or e2e; default: e2e where the load is carried safely, "
            "else stable-rate.",
        ),
    ] = None,
    policies: Annotated[
        str | None,
        typer.Option(
            "--policies", help="Policies to try, separated by commas, from simple to subtle."
        ),
    ] = None,
    requests: Requests = None,
    targets: Targets = None,
    precision: Annotated[
        float, typer.Option("--precision", help="Of the highest stable rates.")
    ] = 0.02,
    alpha: Alpha = 0.01,
    seed: Seed = None,
    *,
    form: Form,
) -> None:
    """Say which token budget and max batch size to use, which policy unless the scenario names an
    engine, why, and what that gains.
    """
    chosen = chosen_scenario(scenario, None, requests, seed)
    progress.announce_compilation()
    from penstock.capacity import recommend as study
    from penstock.capacity.view import recommend_page

    # More than a comparison needs.
    whole_trace = requests is None and chosen.workload.rows is not None
    with progress.bar("Comparing") as show:
        found = study.recommend(
            chosen.workload, chosen.server, objective=objective,  # type: ignore[arg-type]
            policies=None if policies is None else chosen_policies(chosen, policies, ()),
            targets=targets or (),
            requests=None if whole_trace else chosen.arrivals, precision=precision, alpha=alpha,
            progress=show,
        )  # fmt: skip
    form.show(recommend_page(found, chosen), found.as_dict())
    form.leave(found.verdict != "stable" or found.recommended.missed)
