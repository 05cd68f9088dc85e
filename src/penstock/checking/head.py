"""The first two lines of a head: what arrives and what serves it; load, limit and certificate.

They are said before anything is simulated. The other lines are those of
`penstock.checking.head_of_answer`.
"""

from collections.abc import Mapping, Sequence

from penstock.checking.doubt import Reach, reach_of
from penstock.checking.recordings import recording_notes
from penstock.show.page import Line
from penstock.system.kinds import System
from penstock.system.network import Network
from penstock.system.pool import Pool
from penstock.system.prefix_cache import doubts_of, network_doubts
from penstock.system.server import Server
from penstock.theory.certificate import SPIRAL, VIRTUAL, Certificate
from penstock.theory.hypotheses import Hypothesis
from penstock.words import counted, sentence
from penstock.workload.sessions import Sessions
from penstock.workload.workflow import Workflow
from penstock.workload.workload import ClosedLoop, Workload

LATENCIES = {"ttft_s": "First token", "tbt_s": "Per token", "e2e_s": "Whole call"}
BECAUSE = "because of the batch times"
MIDDLE = ", with the middle batch times"  # of a verdict that need not hold with others
MOST_NAMED = 2  # of several things; the others are counted
_NEVER = " never binds"
_CLOSE = 0.01  # to a limit, where whole percents say too little
SAME = 0.01  # share by which a certified rate may lie below the limit of all schedulers


def asked_of(
    name: str,
    system: System,
    hardware: Mapping[str, str] | None = None,
    policies: int = 1,
    doubts: Sequence[str] = (),
) -> list[Line]:
    """Say what arrives and what serves it, and what to doubt of that; of several policies, how many
    there are.
    """
    if isinstance(system, tuple):
        asked = _asked_of_server(*system, (hardware or {}).get("server"), policies)
        doubts = [*doubts_of(*system), *doubts]
    else:
        serving = [_pool(*pool, (hardware or {}).get(pool[0])) for pool in system.pools.items()]
        asked = f"{_arriving(system)} on {_few(serving, 3)}"
        patient = {of.name: of.patience.words for of in system.workflows if of.patience is not None}
        named = len(system.workflows) > 1
        asked += "".join(f"; {f'{of}: ' if named else ''}{words}" for of, words in patient.items())
        doubts = [*network_doubts(system), *doubts]
    mind = [Line("Mind", " ".join(doubts))] if doubts else []
    return [Line(name, asked), *mind]


def _asked_of_server(workload: Workload, server: Server, name: str | None, policies: int) -> str:
    parts = [server.policy.name if policies == 1 else f"{policies} policies"]
    parts.append(f"token budget {server.token_budget:,}")
    if server.max_batch_size is not None:
        parts.append(f"max batch size {server.max_batch_size:,}")
    if server.memory is not None:
        estimated = " (estimated)" if server.memory.estimated else ""
        parts.append(f"KV memory of {server.memory.tokens:,} tokens{estimated}")
    beside = (server.front_end, server.queue_limit, workload.patience)
    parts += [part.words for part in beside if part is not None]
    on = f" {'to' if workload.has_rate else 'on'} {name}" if name else ""
    return f"{workload.pace}{on}; {', '.join(parts)}"


def _pool(name: str, pool: Pool, hardware: str | None) -> str:
    replicas = f"{pool.replicas} x" if pool.replicas > 1 else ""
    parts = [" ".join(filter(None, (replicas, hardware)))]
    parts += dict.fromkeys(one.policy.name for one, _ in pool.servers)
    if pool.replicas > 1:
        parts.append(f"router {pool.router.name}")
    limits = dict.fromkeys(server.queue_limit for server, _ in pool.servers)
    each = "each " if pool.replicas > 1 else ""
    parts += [f"{each}{limit.words}" for limit in limits if limit is not None]
    if pool.router_limit is not None:
        parts.append(f"the router {pool.router_limit.words}")
    if pool.order_name != "fcfs":
        parts.append(f"order {pool.order_name}")
    return f"{name} ({', '.join(filter(None, parts))})"


def _arriving(network: Network, times: float = 1.0) -> str:
    """Say how many jobs of each kind arrive, at so many times the load; of one call, requests."""
    first, *others = network.workflows
    of_one_call = all(_is_a_request(one) for one in network.workflows)
    calls = "requests" if of_one_call else "jobs"
    if of_one_call and not others:
        return f"{times * first.rate:,.4g} requests/s"
    rates = [f"{times * one.rate:,.4g} {one.name}" for one in network.workflows]
    return f"{_few(rates, 3)} {calls}/s"


def _is_a_request(workflow: Workflow | Sessions) -> bool:
    """Return whether each job is one request."""
    if not isinstance(workflow, Workflow):
        return False
    (stage, *others) = workflow.stages.values()
    return not others and stage.then is None


def first_lines(
    name: str,
    system: System,
    certificate: Certificate | None,
    hardware: Mapping[str, str] | None = None,
) -> list[Line]:
    """Say what arrives and what serves it, what to doubt of that, and what a theorem says of it."""
    # None: nothing that theory speaks of, for it has no rate.
    workload = system[0] if isinstance(system, tuple) else None
    if certificate is None:
        lines = asked_of(name, system, hardware)
        if isinstance(workload, ClosedLoop):
            lines.append(Line("stable", sentence(stable_because(workload.clients)), judges=True))
        return lines
    recorded = recording_notes(workload, certificate)[0] if workload else []
    limit = f"{certificate.max_rate:,.4g} requests/s"
    if not isinstance(system, tuple):
        at = f" at pool {certificate.bottleneck.name}" if len(certificate.pools) > 1 else ""
        limit = f"{certificate.max_load:,.3g} times this load{at}"
    line = _proved(certificate, reach_of(system), limit)
    if certificate.theorem in (VIRTUAL, SPIRAL) and not isinstance(system, tuple):
        line = _order_fails(certificate, system)
    return [*asked_of(name, system, hardware, doubts=recorded), line]


def stable_because(clients: int) -> str:
    """Say why a closed loop is stable."""
    return (
        "by construction: a client waits for its answer, so no more than "
        f"{counted(clients, 'request')} are under way"
    )


def _order_fails(certificate: Certificate, network: Network) -> Line:
    """Say from where on a priority order fails."""
    fullest, virtual = certificate.bottleneck, certificate.virtual_station
    above = ""
    if virtual:
        rates = _arriving(network, virtual.max_load)
        above = f" above {rates} ({virtual.max_load:.3g} times this load)"
    orders = " with ".join(dict.fromkeys(pool.order_name for pool in network.pools.values()))
    text = (
        f"Order {orders} fails{above}, though no pool is overloaded: the fullest, {fullest.name}, "
        f"is at {share_of(1 / certificate.max_load)}. Proved: {certificate.theorem}."
    )
    return Line("unstable", text, judges=True)


def _proved(certificate: Certificate, reach: Reach | None, limit: str) -> Line:
    """Say how much of its limit is asked for, and what theory says."""
    load = 1 / certificate.max_load
    uncached = max(pool.rho_without_cache or 0.0 for pool in certificate.pools)
    certified = (certificate.certified_load or 0.0) * load
    used, middle = share_of(load), ""
    if reach is not None:
        low, high = map(share_of, reach.load)
        used += "" if low == high else f" ({low} to {high} as far as batch times are known)"
        middle = MIDDLE
    text = f"{used} of the most that any scheduler can carry (limit {limit})"
    if uncached > load:
        text += f" if prefix caches keep everything, {share_of(uncached)} if nothing"
    if certificate.verdict == "unknown":
        return Line("Load", f"{text}. {_unproved(certificate.hypotheses)}")
    if reach is not None and reach.undecided:
        alone = f"Proved {certificate.verdict}{middle} alone: {certificate.theorem}."
        return Line("Load", f"{text}. {alone}")
    if certificate.verdict == "unstable" and load <= 1:
        text = certificate.reason
    far = ""
    if certificate.verdict == "stable" and certified < 1 - SAME:
        far = f" up to {share_of(certified)} of that limit"
    trusted = f", which trusts: {', '.join(certificate.trusted)}" if certificate.trusted else ""
    proof = f" Proved{far}{middle}: {certificate.theorem}{trusted}." if certificate.theorem else ""
    return Line(certificate.verdict, f"{sentence(text)}{proof}", judges=True)


def _unproved(hypotheses: Sequence[Hypothesis]) -> str:
    names = [hypothesis.name for hypothesis in hypotheses if not hypothesis.held]
    limits = [name.removesuffix(_NEVER) for name in names if name.endswith(_NEVER)]
    failing = (
        [f"not true here: {_few(others, MOST_NAMED)}"]
        if (others := [name for name in names if not name.endswith(_NEVER)])
        else []
    )
    if limits:
        failing.insert(0, f"{' and '.join(limits)} may bind")
    failing += [hypothesis.instead for hypothesis in hypotheses if hypothesis.instead]
    return f"No theorem says whether it is stable ({'; '.join(failing)})."


def share_of(value: float) -> str:
    """Return a share in percent, with two more digits near the limit and near nothing."""
    return f"{value:.{2 if abs(1 - value) < _CLOSE or 0 < value < _CLOSE else 0}%}"


def _few(names: Sequence[str], most: int) -> str:
    """Return the first of several names, and how many others there are."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])}, {counted(len(names) - most, 'other')}"
