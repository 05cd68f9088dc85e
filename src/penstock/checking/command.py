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
    """Say whether a deployment is stable, and at what latency.

    Besides it says what the deployment can carry.

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
    from penstock.checking import check
    from penstock.checking.targets import parsed_targets
    from penstock.show.compiling import simulating
    from penstock.system.kinds import asked_about

    options |= {"targets": parsed_targets(options.get("targets", ())), "until": chosen.until}
    if chosen.is_network:
        options["outages"] = chosen.outages
    name = chosen.name if chosen.is_network else chosen.server.policy.name
    with simulating(f"Simulating {name}") as show:
        begin = partial(_begin, form, chosen)
        result = check.check(*asked_about(chosen.system), **options, progress=show, certified=begin)
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
    """Put policies side by side on the same requests.

    Of a network: routers, policies and orders. Each has how sure its difference to the first is.

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


_RUN_OF_NETWORK = (
    "simulate is of one server; `penstock check {path} --all` simulates a run of the network, and "
    "shows its statistics"
)


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

    Of one server; `check` shows a run of a network.

    Parameters
    ----------
    requests
        Arrivals to simulate.
    """
    choices = {"policy": policy, "seed": seed, **options}
    chosen, _ = chosen_scenario(scenario, form, choices, server_alone=_RUN_OF_NETWORK)
    from penstock.checking.one_run import one_run
    from penstock.show.compiling import simulating

    begin = partial(_begin, form, chosen)
    with simulating(f"Simulating {chosen.server.policy.name}") as show:
        answer = one_run(chosen.workload, chosen.server, chosen.arrivals, chosen.until, show, begin)
    form.show(answer.page(chosen), answer.as_dict())
