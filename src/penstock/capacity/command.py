"""The commands ``penstock region``, ``max-rate`` and ``recommend``."""

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.checking.command_choices import chosen_scenario
from penstock.errors import InputError
from penstock.show.commands import command
from penstock.show.options import Form

if TYPE_CHECKING:
    from penstock.scenario.scenario import Scenario

_RATE_OF_NETWORK = (
    "region is of one server; `penstock max-rate {path}` says what the network carries"
)
_CHOICE_OF_NETWORK = (
    "recommend is of one server; `penstock compare {path}` with --routers, --policies or --orders "
    "puts side by side what a network may choose"
)


@command(form="figures report")
def region(scenario: Path, *, policy: str | None = None, exact: bool = False, form: Form) -> None:
    """Draw the token rates outside which no policy is stable.

    Say where the load lies, and what holds the server back. Of one server; `max-rate` says what a
    network carries.

    Parameters
    ----------
    exact
        Count that prompts end, too: what the best of all policies carries (a minute at most).
    """
    chosen, _ = chosen_scenario(scenario, form, {"policy": policy}, server_alone=_RATE_OF_NETWORK)
    from penstock.capacity.region import load_in_region
    from penstock.show.compiling import simulating

    with simulating("Finding what is carried"):
        answer = load_in_region(chosen.workload, chosen.server, exact=exact)
    form.show(answer.page(chosen), answer.as_dict())


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
    """Find the highest rate at which each policy is stable.

    Beside it stands the rate above which no policy is; with targets, also the highest at which they
    are known to be met.

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
    from penstock.capacity.side_by_side import max_rates
    from penstock.checking.variants import variants, varied
    from penstock.show.compiling import simulating

    systems = variants(chosen.system, axes, chosen.folder)
    if chosen.is_network:
        from penstock.system.network import own_seed

        flows = chosen.network.workflows
        options.setdefault("seed", own_seed(flows[0]))
        notices = list(dict.fromkeys(notice for flow in flows for notice in flow.notices))
        if chosen.outages:
            notices.insert(
                0,
                "outages are left out: they end, so they do not change up to which load queues "
                "stay finite",
            )
    else:
        options["seed"] = chosen.workload.seed
        notices = list(chosen.workload.notices)
    with simulating("Searching") as show:
        answer = max_rates(systems, notices, show, **options)
    form.show(answer.page(chosen, varied(axes)), answer.as_dict())


@command("recommend", form="figures report strict")
def recommend(
    scenario: Path,
    *,
    queue: bool = False,
    seed: int | None = None,
    form: Form,
    **options: Any,
) -> None:
    """Say which token budget, max batch size and policy to use.

    Say why, and what that gains. An engine keeps its scheduler. Of one server; `compare` puts
    routers, policies and orders of a network side by side.

    Parameters
    ----------
    queue
        Say instead which limit on the queue keeps the targets for those who are served.
    policies
        Policies to try, separated by commas, from simple to subtle.
    """
    given = {*options}
    choices = {"seed": seed, **options}
    chosen, options = chosen_scenario(scenario, form, choices, server_alone=_CHOICE_OF_NETWORK)
    from penstock.capacity import recommend as study
    from penstock.checking.variants import values_of
    from penstock.show.compiling import simulating

    if form.figures is not None and not queue:
        raise InputError("recommend draws the limits of --queue alone; leave out --figures")
    if "requests" not in given and (queue or chosen.workload.rows is not None):
        del options["requests"]  # a whole trace has more than a comparison needs
    if queue:
        usual = inspect.signature(study.recommend).parameters
        for name in given - {"targets", "requests"}:
            if options[name] != usual[name].default:
                option = f"--{name.replace('_', '-')}"
                raise InputError(f"{option} says nothing beside --queue; leave it out")
        _recommend_queue(chosen, options, form)
        return
    if "policies" in options:
        options["policies"] = values_of("policies", options["policies"], chosen.folder)
    with simulating("Comparing") as show:
        found = study.recommend(chosen.workload, chosen.server, **options, progress=show)
    is_no = found.verdict != "stable" or found.recommended.missed
    form.show(found.page(chosen), found.as_dict(), is_no=is_no)


def _recommend_queue(chosen: "Scenario", options: dict[str, Any], form: Form) -> None:
    """Say which limit on the queue is right."""
    from penstock.capacity.queue_limit import recommend_queue
    from penstock.show.compiling import simulating

    asked = {name: options[name] for name in ("targets", "requests") if name in options}
    with simulating("Trying limits") as show:
        found = recommend_queue(chosen.workload, chosen.server, **asked, progress=show)
    form.show(found.page(chosen), found.as_dict())
