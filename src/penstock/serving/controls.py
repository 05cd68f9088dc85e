"""What a page changes of a scenario: where each value stands, and which ones its sliders offer.

A state of the page is a scenario: the file's, with these values put into it. So whatever the page
shows, `penstock check` of the downloaded file says.
"""

import copy
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from penstock import checks
from penstock.document import files_named, read_document
from penstock.errors import InputError
from penstock.scenario.network import build_network
from penstock.scenario.scenario import build, describes_network
from penstock.system.engine_flags import ENGINE_NAMES
from penstock.system.engines import ENGINES
from penstock.system.network import Network
from penstock.system.outages import Outage
from penstock.system.policies import POLICIES
from penstock.system.server import Server
from penstock.theory.load import refuse_no_rate
from penstock.workload.workload import Workload

MOST_REPLICAS = 64
_CALLED = {
    "rate": ("rate",),
    "token_budget": ("token budget", *ENGINE_NAMES["token_budget"]),
    "max_batch_size": ("max batch size", *ENGINE_NAMES["max_batch_size"]),
    "replicas": ("replica",),
    "policy": ("policy", "scheduler"),
}
_EXAMPLE = {
    "workload": {"preset": "azure-code", "rate": 1.2, "arrivals": "poisson"},
    "server": {"hardware": "codellama-34b-a100-tp1", "token_budget": 512, "policy": "sarathi"},
    "simulate": {"requests": 20_000, "seed": 0},
}
_GENERATED = ("poisson", "deterministic", "gamma")
_POOL = "pool"


class Values(NamedTuple):
    """What the page may change: requests/s, tokens, requests (None: as the file says nothing), the
    name of a policy, and how many servers there are.
    """

    rate: float
    token_budget: int
    max_batch_size: int | None
    policy: str
    replicas: int


@dataclasses.dataclass(frozen=True)
class Case:
    """A state of the page, ready to be answered."""

    text: str  # the scenario as YAML
    workload: Workload  # what arrives in all
    server: Server  # one of the servers
    network: Network | None  # the servers behind their router; None: there is one, without a router
    length: int | None  # requests or jobs to simulate; None where `until` says how long
    until: float | None  # simulated seconds
    outages: tuple[Outage, ...]  # replicas that die and come back
    replicas: int  # how many servers there are


class Controls:
    """A scenario, and the values of it that a page changes. It is of one server, or of a network of
    one pool with one workload; without a path an example.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.name = "example" if path is None else path.stem
        self._folder = Path() if path is None else path.parent
        document = _EXAMPLE if path is None else read_document(path)
        files = files_named(document, self._folder)
        _check(document, self._folder, self.name)
        self._document = _absolute(document, files)
        self._is_network = describes_network(document)
        if self._is_network:
            _refuse_larger(document, self.name)
        self.values = self._own_values()

    def choices(self) -> dict[str, list[Any]]:
        """Return what each slider offers, rising; of the max batch size, None comes last."""
        own = self.values
        powers = [2**power for power in range(15)]
        between = {power * parts // 4 for power in powers for parts in (4, 5, 6, 7)}
        rates = {float(f"{own.rate * 1.025**step:.3g}") for step in range(-160, 161)}
        slots: list[int | None] = sorted({*between, own.max_batch_size or 1})
        return {
            "rate": sorted({*rates, own.rate}),
            "token_budget": sorted({*(b for b in between if b >= 16), own.token_budget}),
            "max_batch_size": [*slots, None],
            "replicas": list(range(1, max(MOST_REPLICAS, own.replicas) + 1)),
            "policy": list(dict.fromkeys([own.policy, *POLICIES, *ENGINES])),
        }

    def values_of(self, query: Mapping[str, str]) -> Values:
        """Return the values that a query gives, the scenario's where it gives none."""
        own = self.values
        checks.word("policy", query.get("policy", own.policy).strip(), self.choices()["policy"])
        texts = {name: query[name].strip() for name in Values._fields if name in query}
        slots = texts.get("max_batch_size", _text(own.max_batch_size))
        return Values(
            checks.number("rate", _number(texts, "rate", own.rate), 1e-9, 1e9, "requests/s",
                          "it is how many requests arrive"),
            _whole(texts, "token_budget", own.token_budget, 1, 10**6, "tokens"),
            None if slots in ("", "none") else
            _whole({"max_batch_size": slots}, "max_batch_size", 1, 1, 10**6, "requests"),
            texts.get("policy", own.policy),
            _whole(texts, "replicas", own.replicas, 1, 256, "servers"),
        )  # fmt: skip

    def case(self, values: Values) -> Case:
        """Return the scenario with these values."""
        document = self._with(values)
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
        if not describes_network(document):
            one = build(document, self._folder, f"{self.name}.yaml")
            return Case(text, one.workload, one.server, None, one.requests, one.until, (), 1)
        many = build_network(document, self._folder, f"{self.name}.yaml")
        (pool,) = many.network.pools.values()
        (workflow,) = many.network.workflows
        workload = workflow.arrivals
        assert isinstance(workload, Workload)
        (server, replicas), *_ = pool.servers
        return Case(
            text, workload, server, many.network, many.jobs, many.until, many.outages, replicas
        )

    def _own_values(self) -> Values:
        values = Values(0.0, 0, None, "", 1)
        case = self.case(values)
        refuse_no_rate(case.workload)
        return Values(
            float(case.workload.rate),
            case.server.token_budget,
            case.server.max_batch_size,
            case.server.policy.name,
            case.replicas,
        )

    def _with(self, values: Values) -> dict[str, Any]:
        """Put into the document what differs from it; what is as it was stays as it is written."""
        document: dict[str, Any] = copy.deepcopy(self._document)
        own = getattr(self, "values", values)
        section = document if not self._is_network else _only(document, "workflows")
        server = document["server"] if not self._is_network else _only(document, "pools")
        if values.rate != own.rate:
            _set_rate(section["workload"], values.rate)
        for name in ("token_budget", "max_batch_size"):
            if getattr(values, name) != getattr(own, name):
                _set(server, ENGINE_NAMES[name], getattr(values, name))
        if values.policy != own.policy:
            server.pop("policy_params", None)  # which are of the other policy
            server["policy"] = values.policy
        if self._is_network:
            if values.replicas != own.replicas:
                server["replicas"] = values.replicas
            return document
        return document if values.replicas == 1 else _as_network(document, values.replicas)


def field_of(message: str) -> str | None:
    """Return the field of the page that a message is about, by the names that it holds."""
    places = {
        name: message.find(word)
        for name, words in _CALLED.items()
        for word in words
        if word in message
    }
    return min(places, key=places.__getitem__) if places else None


def _refuse_larger(document: Any, name: str) -> None:
    """Refuse networks that sliders of one pool do not describe."""
    network = document["network"]
    mapping = network if isinstance(network, dict) else {}
    parts = [mapping.get(key) for key in ("pools", "workflows")]
    single = all(
        isinstance(part, dict) and [type(section) for section in part.values()] == [dict]
        for part in parts
    )
    alike = single and "servers" not in _only(document, "pools")
    if not (alike and {"workload", "pool"} <= _only(document, "workflows").keys()):
        raise InputError(
            f"{name} is a network with more than one pool, one kind of server or one workload, "
            "for which this page has no sliders; ask `penstock check`, or give a scenario with a "
            "`server`"
        )


def _check(document: Any, folder: Path, name: str) -> None:
    """Refuse what is no scenario, before any of it is changed."""
    if not isinstance(document, dict):
        raise InputError(
            f"{name} holds {checks.shown(document)}, which is no scenario, so there is nothing to "
            "show; give a YAML file with a workload and a server"
        )
    if describes_network(document):
        build_network(document, folder, name)
    else:
        build(document, folder, name)


def _only(document: dict[str, Any], part: str) -> dict[str, Any]:
    """Return the only pool, or the only workflow, of a network."""
    section: dict[str, Any] = next(iter(document["network"][part].values()))
    return section


def _as_network(document: dict[str, Any], replicas: int) -> dict[str, Any]:
    """Return the scenario of one server as one of several behind a router."""
    simulate = dict(document.get("simulate", {}))
    if "requests" in simulate:
        simulate["jobs"] = simulate.pop("requests")
    pools = {_POOL: {**document["server"], "replicas": replicas}}
    workflows = {"requests": {"workload": document["workload"], "pool": _POOL}}
    return {"network": {"pools": pools, "workflows": workflows}, "simulate": simulate}


def _set_rate(workload: dict[str, Any], rate: float) -> None:
    generated = next((workload[kind] for kind in _GENERATED if kind in workload), workload)
    generated["rate"] = rate


def _set(server: dict[str, Any], names: tuple[str, ...], value: int | None) -> None:
    """Put a limit where an engine's own name may stand for it."""
    for name in names:
        server.pop(name, None)
        server.pop(name.replace("_", "-"), None)
    if value is not None:
        server[names[0]] = value


def _absolute(document: Any, files: Mapping[str, Path]) -> Any:
    """Return a document that names its files wherever it is read."""
    if isinstance(document, dict):
        return {key: _absolute(value, files) for key, value in document.items()}
    if isinstance(document, list):
        return [_absolute(value, files) for value in document]
    if isinstance(document, str) and document in files and Path(document).suffix:
        return str(files[document].resolve())
    return document


def _text(value: int | None) -> str:
    return "" if value is None else str(value)


def _number(texts: Mapping[str, str], name: str, own: float) -> Any:
    """Return what a field holds as a number, or its text where it is none."""
    if name not in texts:
        return own
    try:
        number = float(texts[name])
    except ValueError:
        return texts[name]
    return int(number) if number.is_integer() else number


def _whole(texts: Mapping[str, str], name: str, own: int, low: int, high: int, unit: str) -> int:
    what = "beyond that nothing is simulated; give another"
    return checks.whole(name, _number(texts, name, own), low, high, unit, what)
