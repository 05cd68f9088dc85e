"""The commands ``penstock check``, ``compare`` and ``simulate``."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.checking.command_choices import chosen_scenario, measured
from penstock.errors import InputError
from penstock.show.commands import command
from penstock.show.options import Form

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.scenario.scenario import Scenario
    from penstock.system.kinds import System
    from penstock.theory.certificate import Certificate


@command("check", but="until estimate_memory", form="figures report strict")
def check(
    scenario: Path,
    *,
    policy: str | None = None,
    orders: str | None = None,
    seed: int | None = None,
    form: Form,
    **options: Any,
) -> None:
    """Say whether a deployment is stable, what it can carry, and at what latency.

    A scenario looks like this:

      workload: {trace: requests.csv, rate: 1.2, arrivals: poisson}
      server: {hardware: codellama-34b-a100-tp1, token_budget: 512, policy: sarathi}
      simulate: {requests: 20000, seed: 0}

    or, for a network, `network` with pools and workflows in place of the first two.

    Parameters
    ----------
    orders
        Of a network: orders between stages, by commas, beside the scenario's own.
    """
    choices = {"policy": policy, "orders": orders, "seed": seed, **options}
    chosen, options = chosen_scenario(scenario, form, choices)
    if options.pop("orders", None) is not None:
        _check_orders(chosen, str(orders), options, form)
        return
    from penstock.checking import answer
    from penstock.checking.targets import parsed_targets
    from penstock.show.compiling import simulating
    from penstock.system.kinds import asked_about

    options |= {"targets": parsed_targets(options.get("targets", ())), "until": chosen.until}
    if chosen.is_network:
        options["outages"] = chosen.outages
    name = chosen.name if chosen.is_network else chosen.server.policy.name
    with simulating(f"Simulating {name}") as show:
        begin = partial(_begin, form, chosen)
        result = answer.check(
            *asked_about(chosen.system), **options, progress=show, certified=begin
        )
    document = result.as_dict()
    document |= {"measured": measured(chosen), "next": result.next_step(chosen.file)}
    form.show(result.page(chosen), document, is_no=result.verdict != "stable" or result.missed)


def _check_orders(chosen: "Scenario", orders: str, options: dict[str, Any], form: Form) -> None:
    """Put a network's own order and others side by side."""
    from penstock.checking.variants import own_order, variants

    for name, option in {"targets": "--target", "precision": "--precision"}.items():
        if name in options:
            raise InputError(
                f"{option} judges one network, and --orders compares several; leave out one of them"
            )
    others = variants(chosen.system, {"orders": orders}, chosen.folder)
    own = {own_order(chosen.network): chosen.system}
    _compare(chosen, own | others | own, "Order", options, form)


def _begin(form: Form, scenario: "Scenario", certificate: "Certificate | None") -> None:
    """Say what theory says, before anything is compiled, unless JSON is asked for."""
    from penstock.checking.head import first_lines

    if not form.as_json:
        form.begin(first_lines(scenario.name, scenario.system, certificate, scenario.hardware))


@command(
    "compare_networks",
    "check",
    only="requests jobs targets alpha resolution",
    form="figures report strict",
)
def compare(
    scenario: Path,
    *,
    policies: str | None = None,
    routers: str | None = None,
    orders: str | None = None,
    seed: int | None = None,
    form: Form,
    **options: Any,
) -> None:
    """Put policies side by side on the same requests; of a network routers, policies and orders,
    with how sure each difference to the first one is.

    Parameters
    ----------
    policies
        Policies, separated by commas. Default: of a server the scenario's own, engines, and
        pool-controlled, which adapts its token budget.
    routers
        Of a network: routers, by commas, at all pools.
    orders
        Of a network: orders between stages, by commas.
    targets
        Of a network: a limit of goodput such as ttft_p99<2s.
    """
    axes = {"policies": policies, "routers": routers, "orders": orders}
    choices = {**axes, "seed": seed, **options}
    chosen, options = chosen_scenario(scenario, form, choices, of_network=("targets",))
    options = {name: value for name, value in options.items() if name not in axes}
    from penstock.checking.variants import variants, varied
    from penstock.system.policies import beside

    if not chosen.is_network:
        own = chosen.server.policy
        # the scenario's own policy comes first, so that the others are compared with it
        fields = axes | ({"policies": beside(own)} if policies is None else {})
        servers = variants(chosen.system, fields, chosen.folder)
        options["optional"] = () if policies else servers.keys() - {own.name}
        _compare(chosen, servers, "Policy", options, form)
        return
    if all(names is None for names in axes.values()):
        several = any(pool.replicas > 1 for pool in chosen.network.pools.values())
        such = "--routers jsq,tokens" if several else "--orders fcfs,hlpps"
        raise InputError(
            f"{chosen.name} describes a network, of which compare puts routers, policies or "
            f"orders side by side; name some, as {such}"
        )
    networks = variants(chosen.system, axes, chosen.folder)
    _compare(chosen, networks, varied(axes), options, form)


def _compare(
    chosen: "Scenario",
    systems: "Mapping[str, System]",
    what: str,
    options: dict[str, Any],
    form: Form,
) -> None:
    """Put systems side by side, and say what they differ by; the rest is asked of all."""
    from penstock.checking import comparison
    from penstock.show.compiling import simulating

    if chosen.outages:
        raise InputError(
            "steady states are compared, in which nothing dies, so `simulate.outages` would be "
            "passed over; leave them out"
        )
    with simulating() as show:
        result = comparison.compare(systems, **options, until=chosen.until, progress=show)
    document = result.as_dict()
    if isinstance(result, comparison.ServerComparison):
        document["measured"] = measured(chosen)
    is_no = any(answer.verdict != "stable" for answer in result.answers.values())
    form.show(result.page(chosen, what), document, is_no=is_no)


@command("simulate", only="requests", form="figures report")
def simulate(
    scenario: Path,
    *,
    policy: str | None = None,
    seed: int | None = None,
    form: Form,
    **options: Any,
) -> None:
    """Say what happened in one finite run, whatever the theory says.

    Parameters
    ----------
    requests
        Arrivals to simulate.
    """
    choices = {"policy": policy, "seed": seed, **options}
    chosen, _ = chosen_scenario(scenario, form, choices, server_alone=True)
    from penstock.checking import answer, check_server, json_documents
    from penstock.checking.doubt import known_within
    from penstock.checking.notes import load_warnings
    from penstock.checking.recordings import recording_notes
    from penstock.checking.view import run_page
    from penstock.show.compiling import simulating
    from penstock.simulation.simulate import simulate as run_once
    from penstock.system.prefix_cache import front_notes, unsaid
    from penstock.theory.certify import certify
    from penstock.theory.kv_blocks import served

    run_asked = check_server.RunAsked(chosen.workload, chosen.arrivals, chosen.until)  # or refused
    # The load is said beside the run, where there is one, though no verdict is drawn from it.
    rated = chosen.workload.has_rate
    certificate = certify(chosen.workload, chosen.server) if rated else None
    if not rated:
        served(chosen.workload, chosen.server)  # or refused
    _begin(form, chosen, certificate)
    with simulating(f"Simulating {chosen.server.policy.name}") as show:
        run = run_once(
            chosen.workload,
            chosen.server,
            requests=chosen.arrivals,
            until=chosen.until,
            record=run_asked.record,
            progress=show,
        )
    front, warnings, load = front_notes(chosen.workload, run.server), [], None
    if certificate is not None:
        certificate = certificate.with_found(run.found_share, run.server)
        recorded, _ = recording_notes(chosen.workload, certificate)
        front = [*known_within((chosen.workload, run.server)), *recorded, *front]
        warnings = load_warnings(certificate.load, chosen.server)
        load = json_documents.load_as_dict(certificate)
    warnings = [*unsaid(chosen.workload.notices, front), *warnings]
    document_of_run = {
        "load": load,
        "simulation": json_documents.run_as_dict(run),
        "latency": json_documents.latency_as_dict(run),
        "latency_refused": None,
        "warnings": [*front, *warnings],
    }
    drawn = answer.Drawn(chosen.workload, chosen.server)
    form.show(run_page(chosen, certificate, run, drawn, front, warnings), document_of_run)
