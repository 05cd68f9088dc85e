"""What a page changes of a scenario: where each value stands, and which ones its sliders offer.

A state of the page is a scenario: the file's, with these values put into it. So whatever the page
shows, `penstock check` of the downloaded file says.
"""

import copy
import dataclasses
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from penstock import checks
from penstock.checking.targets import Target, parsed_targets
from penstock.document import check_mapping, files_named, parsed, read_document
from penstock.errors import InputError
from penstock.scenario.pools import PoolSection
from penstock.scenario.scenario import Scenario, build, describes_network
from penstock.scenario.server import HardwareSection
from penstock.system.engine_flags import ENGINE_NAMES, TENSOR_PARALLEL, plain
from penstock.system.engines import ENGINES, choosing
from penstock.system.models.catalogue import catalogue
from penstock.system.models.gpus import SHEETS
from penstock.system.network import Network
from penstock.system.policies import POLICIES
from penstock.system.routing import ROUTERS
from penstock.system.server import Server
from penstock.theory.load import refuse_no_rate
from penstock.workload.workload import Workload

MOST_REPLICAS = 64
_CALLED = {
    "model": ("model is", "the model"),
    "gpu": ("gpu is", "another GPU"),
    "tensor_parallel": ("tensor_parallel", "more GPUs"),
    "rate": ("rate",),
    "prompt": ("prompt",),
    "output": ("output",),
    "target": ("target",),
    "replicas": ("replica",),
    "router": ("router",),
    "policy": ("policy", "scheduler"),
    "token_budget": ("token budget", *ENGINE_NAMES["token_budget"]),
    "max_batch_size": ("max batch size", *ENGINE_NAMES["max_batch_size"]),
}
"""What a page may change, and the words by which a message is about it."""
_HARDWARE = {"model": ("model",), "gpu": ("gpu",), "tensor_parallel": TENSOR_PARALLEL}
_LENGTHS = ("prompt", "output")
_LIMITS = ("token_budget", "max_batch_size")
_BEHIND = ("replicas", "router")
_WORDS = ("model", "gpu", "router", "policy")
_WHOLE = {
    "tensor_parallel": (1, 64, "GPUs"),
    "replicas": (1, 256, "servers"),
    "token_budget": (1, 10**6, "tokens"),
    "max_batch_size": (1, 10**6, "requests"),
}
_OF_A_MEAN = ("mean", "constant", "geometric")
_EXAMPLE = {
    "workload": {"poisson": {"rate": 5, "prompt": 1000, "output": 200}},
    "server": {"hardware": {"model": "Llama-3.1-8B", "gpu": "h100-sxm"}},
    "plan": {"targets": ["ttft_p99<1s"]},
}
_GENERATED = ("poisson", "deterministic", "gamma")
_POOL = "pool"

Values = dict[str, Any]
"""What a page may change, by name: of `_CALLED` what means something in its scenario. A limit of
None is one that the file does not give.
"""


@dataclasses.dataclass(frozen=True)
class Case:
    """A state of the page, ready to be answered."""

    text: str  # the scenario as YAML
    scenario: Scenario
    workload: Workload  # what arrives in all
    server: Server  # one of the servers
    replicas: int  # how many servers there are
    targets: list[Target]

    @property
    def network(self) -> Network | None:
        """The servers behind their router; None: there is one, without a router."""
        return self.scenario.network if self.scenario.is_network else None


class Controls:
    """A scenario, and the values of it that a page changes. It is of one server, or of a network of
    one pool with one workload; without a path the one that is described, an example by default.
    """

    def __init__(
        self,
        path: Path | None = None,
        described: Any = _EXAMPLE,
        name: str = "example",
        targets: list[str] | None = None,  # in place of those of the file
    ) -> None:
        self.name = name if path is None else path.stem
        self._folder = Path() if path is None else path.parent
        document = described if path is None else read_document(path)
        files = files_named(document, self._folder)
        _check(document, self._folder, self.name)
        self._document = _absolute(document, files)
        self._is_network = describes_network(document)
        if self._is_network:
            _refuse_larger(document, self.name)
        self.values = self._own_values(targets)

    @property
    def file_name(self) -> str:
        """How the file of a state is called."""
        return f"{re.sub(r'[^A-Za-z0-9_.-]', '-', self.name)}.yaml"

    @functools.cached_property
    def choices(self) -> dict[str, list[Any]]:
        """What each slider and list offers, numbers rising; of limits None comes last."""
        own = self.values
        powers = [2**power for power in range(18)]
        between = {power * parts // 4 for power in powers for parts in (4, 5, 6, 7)}
        offered: dict[str, list[Any]] = {
            "model": sorted(catalogue(), key=str.lower),
            "gpu": list(SHEETS),
            "tensor_parallel": powers[:5],
            "rate": [float(f"{own['rate'] * 1.025**step:.3g}") for step in range(-160, 161)],
            "prompt": [tokens for tokens in between if tokens >= 16],
            "output": [tokens for tokens in between if tokens <= 2**14],
            "replicas": list(range(1, MOST_REPLICAS + 1)),
            "router": list(ROUTERS),
            "policy": [*POLICIES, *ENGINES],
            "token_budget": [tokens for tokens in between if 16 <= tokens < 2**15],
            "max_batch_size": [requests for requests in between if requests < 2**15],
        }
        for name, values in offered.items():
            added = [own[name]] if own.get(name) not in (None, *values) else []
            offered[name] = added + values if name in _WORDS else sorted({*added, *values})
        offered["max_batch_size"].append(None)
        if own["token_budget"] is None:
            offered["token_budget"].append(None)
        return {name: offered[name] for name in own if name in offered}

    def values_of(self, query: Mapping[str, str]) -> Values:
        """Return the values that a query gives, the scenario's where it gives none."""
        given = {name: query[name].strip() for name in self.values if name in query}
        return self.values | {name: self._value(name, text) for name, text in given.items()}

    def _value(self, name: str, text: str) -> Any:
        """Return what is meant by a field; of files and code there is only what it offers."""
        if name == "target":
            return ", ".join(str(target) for target in parsed_targets(_listed(text)))
        if name in _WORDS:
            checks.word(name, text, self.choices[name])
            return text
        if name == "rate":
            reason = "it is how many requests arrive"
            return checks.number(name, _number(text), 1e-9, 1e9, "requests/s", reason)
        if name in _LENGTHS:
            reason = "it is the tokens of a request, on average"
            checks.number(name, _number(text), 1, 10**7, "tokens", reason)
            return _number(text)
        if name in _LIMITS and text in ("", "none"):
            return None
        low, high, unit = _WHOLE[name]
        what = "beyond that nothing is simulated; give another"
        return checks.whole(name, _number(text), low, high, unit, what)

    def case(self, values: Values) -> Case:
        """Return the scenario with these values."""
        document = self._with(values)
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
        targets = parsed_targets(_listed(values.get("target", "")))
        scenario = build(document, self._folder, self.file_name)
        scenario = dataclasses.replace(scenario, name=self.name, file=self.file_name)
        if not scenario.is_network:
            return Case(text, scenario, scenario.workload, scenario.server, 1, targets)
        (pool,) = scenario.network.pools.values()
        (workflow,) = scenario.network.workflows
        workload = workflow.arrivals
        assert isinstance(workload, Workload)
        (server, replicas), *_ = pool.servers
        return Case(text, scenario, workload, server, replicas, targets)

    def _own_values(self, targets: list[str] | None) -> Values:
        case = self.case({})
        refuse_no_rate(case.workload)
        self._taken = case.server.token_budget  # of an engine's choice, by schedulers without one
        workload, server = self._parts(self._document)
        section = parsed(server, PoolSection, self.name, "a server")
        shape = section.hardware
        own: Values = {}
        if isinstance(shape, HardwareSection):
            own = {name: getattr(shape, name) for name in _HARDWARE}
        own["rate"] = float(case.workload.rate)
        for name in _LENGTHS:
            if place := _mean_of(workload, name):
                own[name] = place[0][place[1]]
        own["target"] = ", ".join(map(str, parsed_targets(targets or _targets_of(self._document))))
        own["replicas"] = case.replicas
        if isinstance(section.router, str):
            own["router"] = section.router
        own["policy"] = case.server.policy.name
        return own | {name: getattr(section, name) for name in _LIMITS}

    def _parts(self, document: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return where a document says what arrives, and what serves it."""
        if not self._is_network:
            return document["workload"], document["server"]
        return _only(document, "workflows")["workload"], _only(document, "pools")

    def _with(self, values: Values) -> dict[str, Any]:
        """Put into the document what differs from it; what is as it was stays as it is written."""
        document: dict[str, Any] = copy.deepcopy(self._document)
        changed = {name: value for name, value in values.items() if value != self.values[name]}
        workload, server = self._parts(document)
        if "rate" in changed:
            _process_of(workload)["rate"] = changed["rate"]
        for name in _LENGTHS:
            if name in changed and (place := _mean_of(workload, name)):
                place[0][place[1]] = changed[name]
        if changed.keys() & _HARDWARE:
            _forget_kv_size(server)
        for name, names in _HARDWARE.items():
            if name in changed:
                _set(server["hardware"], names, changed[name])
        for name in _LIMITS:
            if name in changed:
                _set(server, ENGINE_NAMES[name], changed[name])
        if "policy" in changed:
            server.pop("policy_params", None)  # which are of the other policy
            server["policy"] = changed["policy"]
            if "model" in values and changed["policy"] in ENGINES:
                server["hardware"]["engine"] = changed["policy"]
            if changed["policy"] not in choosing() and values["token_budget"] is None:
                _set(server, ENGINE_NAMES["token_budget"], self._taken)
        behind: Values = {name: changed[name] for name in _BEHIND if name in changed}
        if self._is_network:
            server |= behind
        elif values.get("replicas", 1) > 1:
            return _as_network(document, behind)
        elif "target" in changed:
            plan = document.get("plan") or {}
            document["plan"] = plan | {"targets": _listed(changed["target"])}
        return document


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
    check_mapping(document, name, "`workload` and `server`, or `network`")
    build(document, folder, name)


def _only(document: dict[str, Any], part: str) -> dict[str, Any]:
    """Return the only pool, or the only workflow, of a network."""
    section: dict[str, Any] = next(iter(document["network"][part].values()))
    return section


def _targets_of(document: dict[str, Any]) -> list[str]:
    """Return the targets that a document plans for."""
    plan = document.get("plan")
    given = plan.get("targets") or [] if isinstance(plan, dict) else []
    return [given] if isinstance(given, str) else given


def _as_network(document: dict[str, Any], behind: Values) -> dict[str, Any]:
    """Return the scenario of one server as one of several behind a router."""
    simulate = dict(document.get("simulate", {}))
    if "requests" in simulate:
        simulate["jobs"] = simulate.pop("requests")
    pools = {_POOL: document["server"] | behind}
    workflows = {"requests": {"workload": document["workload"], "pool": _POOL}}
    return {"network": {"pools": pools, "workflows": workflows}, "simulate": simulate}


def _process_of(workload: dict[str, Any]) -> dict[str, Any]:
    """Return where the rate is, and lengths where requests are drawn."""
    return next((workload[kind] for kind in _GENERATED if kind in workload), workload)


def _mean_of(workload: dict[str, Any], name: str) -> tuple[dict[str, Any], str] | None:
    """Return the mapping and the key with a mean length; None: it has none, as of a recording."""
    place, key = _process_of(workload), name
    while isinstance(place.get(key), dict):
        place = place[key]
        key = "mean" if "mean" in place else next(iter(place), "")
    number = isinstance(place.get(key), int | float) and key in (name, *_OF_A_MEAN)
    return (place, key) if number else None


def _forget_kv_size(server: dict[str, Any]) -> None:
    """Leave out how much KV memory there was, on other hardware."""
    for name in ("kv_blocks", "kv_tokens"):
        _set(server, ENGINE_NAMES[name], None)
        if isinstance(server.get("memory"), dict):
            _set(server["memory"], (*ENGINE_NAMES[name], name.removeprefix("kv_")), None)
    if server.get("memory") == {}:
        del server["memory"]


def _set(section: dict[str, Any], names: tuple[str, ...], value: Any) -> None:
    """Put a value where an engine's own name may stand for it; None: leave it out."""
    given = [key for key in section if isinstance(key, str) and plain(key) in names]
    if value is not None:
        section[given.pop() if given else names[0]] = value
    for key in given:
        del section[key]


def _absolute(document: Any, files: Mapping[str, Path]) -> Any:
    """Return a document that names its files wherever it is read."""
    if isinstance(document, dict):
        return {key: _absolute(value, files) for key, value in document.items()}
    if isinstance(document, list):
        return [_absolute(value, files) for value in document]
    if isinstance(document, str) and document in files and Path(document).suffix:
        return str(files[document].resolve())
    return document


def _listed(text: str) -> list[str]:
    """Return the targets that a field holds."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _number(text: str) -> Any:
    """Return what a field holds as a number, or its text where it is none."""
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() else number
