"""The commands ``penstock region``, ``max-rate`` and ``recommend``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.checking.command_choices import chosen_scenario
from penstock.errors import InputError
from penstock.show.commands import command
from penstock.show.options import Form
from penstock.words import gathered

if TYPE_CHECKING:
    from penstock.system.kinds import System


@command(form="figures report")
def region(scenario: Path, *, policy: str | None = None, form: Form) -> None:
    """Draw the token rates outside which no policy is stable, where the load lies, and what holds
    the server back.
    """
    chosen, _ = chosen_scenario(scenario, form, {"policy": policy}, server_alone=True)
    from penstock.capacity.view import region_page
    from penstock.checking.doubt import known_within, reach_of
    from penstock.show.compiling import simulating
    from penstock.simulation.quick import memory_is_full
    from penstock.system.prefix_cache import front_notes
    from penstock.theory.operating_point import operating_point

    with simulating("Finding what is carried"):
        full = memory_is_full(chosen.workload, chosen.server)
        carried = None if full is None else full.rate
        found = operating_point(chosen.workload, chosen.server, memory_rate=carried)
    reach = reach_of((chosen.workload, chosen.server))
    notes = front_notes(chosen.workload, chosen.server)
    document = found.as_dict() | {
        "calibration": reach and {"load": list(reach.load), "max_rate": list(reach.max_rate)},
        "warnings": [*known_within((chosen.workload, chosen.server)), *notes],
    }
    form.show(region_page(found, chosen), document)


@command("max_rate", but="seed")
def max_rate(
    scenario: Path,
    *,
    policies: str | None = None,
    routers: str | None = None,
    orders: str | None = None,
    seed: int | None = None,
    form: Form,
    **options: Any,
) -> None:
    """Find the highest rate at which each policy is stable, beside the rate above which none is;
    with targets also the highest at which they are known to be met.

    Of a network: the highest load, in times all its arrival rates, under each policy, router and
    order between stages.

    Parameters
    ----------
    policies
        Policies, separated by commas. Default: the scenario's.
    routers
        Of a network: routers, by commas, at all pools.
    orders
        Of a network: orders between stages, by commas.
    """
    if not options.get("targets") and options.keys() & {"requests", "jobs"}:
        raise InputError(
            "--requests and --jobs give the length of runs that judge targets, but there are none; "
            "give a --target, or leave them out"
        )
    axes = {"policies": policies, "routers": routers, "orders": orders}
    chosen, options = chosen_scenario(scenario, form, {**axes, "seed": seed, **options})
    options = {name: value for name, value in options.items() if name not in axes}
    from penstock.capacity import max_rate as search
    from penstock.capacity.view import max_load_page, max_rate_page, within_ends
    from penstock.checking.doubt import beyond_rows
    from penstock.checking.variants import ask, variants, varied
    from penstock.show.compiling import simulating
    from penstock.system.prefix_cache import unsaid

    systems = variants(chosen.system, axes, chosen.folder)
    if chosen.is_network:
        from penstock.system.network import own_seed

        options.setdefault("seed", own_seed(chosen.network.workflows[0]))
    else:
        options["seed"] = chosen.workload.seed
    with simulating("Searching") as show:
        found = ask(search.max_rate, systems, show, **options)
    notes = gathered(
        {
            name: [*within_ends(found[name]), *beyond_rows(system), *_front_notes(system)]
            for name, system in systems.items()
        }
    )
    answers = {name: one.as_dict() for name, one in found.items()}
    if chosen.is_network:
        if chosen.outages:
            notes.append(
                "outages are left out: they end, so they do not change up to which load queues "
                "stay finite"
            )
        flows = chosen.network.workflows
        notes += dict.fromkeys(notice for flow in flows for notice in flow.notices)
        page = max_load_page(found, chosen, varied(axes), notes)
        form.show(page, {"networks": answers, "warnings": notes})
        return
    notices = unsaid(chosen.workload.notices, notes)
    servers = {name: one[1] for name, one in systems.items() if isinstance(one, tuple)}
    page = max_rate_page(found, chosen, servers, notes, notices)
    form.show(page, {"policies": answers, "warnings": [*notes, *notices]})


def _front_notes(system: "System") -> list[str]:
    """Return what to know of the KV memory of all servers, and of prefix caches."""
    from penstock.system.prefix_cache import front_notes, network_notes

    if isinstance(system, tuple):
        return front_notes(*system)
    servers = [server for pool in system.pools.values() for server, _ in pool.servers]
    return [*network_notes(system), *(note for server in servers for note in server.kv_notes)]


@command("recommend", form="strict")
def recommend(scenario: Path, *, seed: int | None = None, form: Form, **options: Any) -> None:
    """Say which token budget and max batch size to use, which policy unless the scenario names an
    engine, why, and what that gains.

    Parameters
    ----------
    policies
        Policies to try, separated by commas, from simple to subtle.
    """
    has_length = "requests" in options
    choices = {"seed": seed, **options}
    chosen, options = chosen_scenario(scenario, form, choices, server_alone=True)
    from penstock.capacity import recommend as study
    from penstock.capacity.view import recommend_page
    from penstock.checking.variants import values_of
    from penstock.show.compiling import simulating

    if "policies" in options:
        options["policies"] = values_of("policies", options["policies"], chosen.folder)
    if chosen.workload.rows is not None and not has_length:
        del options["requests"]  # a whole trace has more than a comparison needs
    with simulating("Comparing") as show:
        found = study.recommend(chosen.workload, chosen.server, **options, progress=show)
    is_no = found.verdict != "stable" or found.recommended.missed
    form.show(recommend_page(found, chosen), found.as_dict(), is_no=is_no)
