"""The heads of ``max-rate``, ``recommend`` and ``region``: the answer, its source, its price."""

from collections.abc import Mapping, Sequence

from penstock.capacity.max_rate import SIMULATION, MaxLoad, MaxRate
from penstock.capacity.recommendation import Recommendation
from penstock.checking.doubt import reach_of
from penstock.checking.head import asked_of_network, asked_of_server, doubted, share_of
from penstock.checking.head_of_answer import said_of_targets
from penstock.checking.view_parts import contradictions
from penstock.scenario.scenario import Scenario
from penstock.show.page import MOST_LINES, Line
from penstock.system.prefix_cache import doubts_of
from penstock.system.server import Server
from penstock.theory.operating_point import OperatingPoint
from penstock.words import sentence

_MOST_NAMED = 4  # rates in one line
_ALL = 0.995  # share of a limit that is called all of it
_RATE, _LOAD = "requests/s", "times this load"


def head_of_rates(
    rates: Mapping[str, MaxRate], scenario: Scenario, servers: Mapping[str, Server]
) -> list[Line]:
    """Say what a server carries under one policy, or under each of several."""
    name, first = next(iter(rates.items()))
    rate = scenario.workload.rate
    share = f" ({rate:,.4g} arrive, {share_of(rate / first.rate)} of that)"
    limit = min(first.certificate.bounds, key=lambda bound: bound.max_rate)
    estimated = any(server.memory and server.memory.estimated for server in servers.values())
    mind = [Line("Mind", "the KV memory is an estimate: give kv_tokens, which the engine logs.")]
    return [
        *_asked(scenario, servers[name], len(rates)),
        *_contradicting(rates),
        *_met(rates, _RATE),
        _carried("Max rate", {name: (one.rate, one) for name, one in rates.items()}, _RATE, share),
        _held_by_limit(list(rates.values()), f"{first.bound:,.4g} {_RATE}", f"the {limit.name}"),
        *_within(rates, _RATE),
        *(mind if estimated else []),
    ][:MOST_LINES]


def _asked(scenario: Scenario, server: Server, policies: int = 1) -> list[Line]:
    asked = asked_of_server(scenario.name, scenario.workload, server, scenario.hardware, policies)
    return [asked, *doubted(doubts_of(scenario.workload, server))]


def head_of_loads(loads: Mapping[str, MaxLoad], scenario: Scenario) -> list[Line]:
    """Say what a network carries as it is, or in each of several variants."""
    first = next(iter(loads.values()))
    fullest = f"pool {first.certificate.bottleneck.name}"
    short = ", so this load is not known to be carried" if first.load < 1 else ""
    return [
        asked_of_network(scenario.name, scenario.network, scenario.hardware),
        *_contradicting(loads),
        *_met(loads, _LOAD),
        _carried("Max load", {name: (one.load, one) for name, one in loads.items()}, _LOAD, short),
        _held_by_limit(list(loads.values()), f"{first.bound:,.4g} {_LOAD}", fullest),
        *_within(loads, _LOAD),
    ][:MOST_LINES]


def _met(found: Mapping[str, MaxRate] | Mapping[str, MaxLoad], unit: str) -> list[Line]:
    """Say up to where targets are known to be met, from where they are not, and the goodput."""
    of = {name: one.targets for name, one in found.items() if one.targets}
    if not of:
        return []
    name = max(of, key=lambda name: of[name].rate)
    best, stable = of[name], found[name].share * found[name].bound
    if len(of) > 1:
        ranked = sorted(of, key=lambda name: -of[name].rate)[:_MOST_NAMED]
        said = [f"{name} {of[name].rate:,.4g} (not at {of[name].missed:,.4g})" for name in ranked]
        return [Line("Meets", f"{best.limits}, in {unit}: {'; '.join(said)}.")]
    end = f"{'it' if best.binding == best.limits else best.binding} is missed"
    if best.binding == "stability":
        end = "it is not known to be stable"
    middle = ", with the middle batch times" if found[name].ends else ""
    text = (
        f"{best.limits} up to {best.rate:,.4g} {unit} ({share_of(best.rate / stable)} of what is "
        f"stable); at {best.missed:,.4g} {end}{middle}. Goodput there: {best.goodput_rate:,.4g} a "
        f"second, {best.goodput.value or 0.0:.2%} of all"
    )
    return [Line("Meets", f"{text}.")]


def _carried(
    label: str, found: Mapping[str, tuple[float, MaxRate | MaxLoad]], unit: str, besides: str
) -> Line:
    """Say up to where it is stable and how that is known, the highest first."""
    if len(found) == 1:
        ((value, search),) = found.values()
        text = f"{value:,.4g} {unit}{besides}; {_known(search)}"
        if search.known == SIMULATION:
            proved = _certified(search)
            text += f" (proved up to {proved:,.4g})" if proved else ""
            text += f": at {search.above:,.4g} it is unstable, or too near its limit to tell"
        return Line(label, f"{text}.")
    ranked = sorted(found, key=lambda name: -found[name][0])
    known = {_known(search) for _, search in found.values()}
    same = f", {known.pop()}" if len(known) == 1 else ""
    said = [
        f"{name} {value:,.4g}" + ("" if same else f" ({_known(search)})")
        for name, (value, search) in ((name, found[name]) for name in ranked)
    ]
    more = len(said) - _MOST_NAMED
    several = f"; {more:,} more behind --why" if more > 0 else ""
    return Line(label, f"in {unit}{same}: {'; '.join(said[:_MOST_NAMED])}{several}.")


def _known(search: MaxRate | MaxLoad) -> str:
    return "by simulation" if search.known == SIMULATION else f"by {search.known}"


def _certified(search: MaxRate | MaxLoad) -> float | None:
    """Return up to where a theorem says stable."""
    if isinstance(search, MaxRate):
        return search.certificate.certified_rate
    return search.certified_load


def _held_by_limit(found: Sequence[MaxRate | MaxLoad], bound: str, limit: str) -> Line:
    """Say what no scheduler exceeds, and how much of it is carried where one thing is asked."""
    if len(found) > 1:
        return Line("Held by", f"{limit}; no scheduler carries more than {bound}.")
    if found[0].share > _ALL:
        return Line("Held by", f"{limit}; no scheduler carries more.")
    own = f"this one {share_of(found[0].share)} of that"
    return Line("Held by", f"{limit}; no scheduler carries more than {bound}, {own}.")


def _contradicting(found: Mapping[str, MaxRate] | Mapping[str, MaxLoad]) -> list[Line]:
    return [
        Line(verdict.word, f"{verdict.about}: {verdict.reason}", judges=True)
        for verdict in contradictions(found)[:1]
    ]


def _within(found: Mapping[str, MaxRate] | Mapping[str, MaxLoad], unit: str) -> list[Line]:
    """Say between what the highest rate lies, where batch times are not exact."""
    said = []
    for name, one in found.items():
        if one.ends is None:
            continue
        low, high = (
            end.rate if isinstance(end, MaxRate) else end.load
            for end in (one.ends.slow, one.ends.fast)
        )
        said.append(f"{name if len(found) > 1 else ''} {low:,.4g} to {high:,.4g}".lstrip())
    if not said:
        return []
    text = f"not exact: as far as they are known it is {'; '.join(said[:_MOST_NAMED])} {unit}."
    return [Line("Batch times", text)]


def head_of_recommendation(found: Recommendation, scenario: Scenario) -> list[Line]:
    """Say keep, or the one change, or that nothing does and what comes nearest; then its price,
    what is carried, and what is next; the lines that a head has no room for come last.
    """
    new = found.recommended
    lines = _asked(scenario, found.current.server)
    judged, texts = said_of_targets(new.targets) if new.targets else ("", [])
    if found.overload and found.calibration and not found.calibration.holds("unstable"):
        overload = sentence(f"with the middle batch times {found.overload}")
        lines.append(Line("undecided", overload, judges=True))
    elif found.overload:
        lines.append(Line("overloaded", sentence(found.overload), judges=True))
    elif new.missed:
        lines.append(Line(judged, f"{found.why}.", judges=True))
    else:
        word, to = ("change", "to ") if found.change else ("keep", "")
        lines.append(Line(word, f"{to}policy {new.what}: {found.why}.", judges=True))
        lines += [Line(judged, f"{'; '.join(texts)}.", judges=True)] if texts else []
    optional = {
        "Price": found.price,
        "Carries": "" if found.overload else f"{found.carries}; {found.held_by}",
        "Next": found.next_step(scenario.file),
        "Trade": found.trade,
        "With plugin": found.with_plugin,
    }
    return lines + [Line(label, f"{text}.") for label, text in optional.items() if text]


def head_of_region(point: OperatingPoint, scenario: Scenario) -> list[Line]:
    """Say whether any scheduler may carry the load, and what limits them all."""
    policy = scenario.server.policy.name
    reach = reach_of((scenario.workload, scenario.server))
    word = "inside" if point.inside else "outside"
    text = (
        f"{point.arrival_rate:,.4g} {_RATE} arrive, {share_of(1 - point.margin)} of "
        f"{point.max_rate:,.4g} {_RATE}, above which no scheduler is stable"
    )
    if reach is not None:
        low, high = reach.max_rate.low, reach.max_rate.high
        text += f"; that limit is {low:,.4g} to {high:,.4g} as far as batch times are known"
    if reach is not None and reach.undecided:
        text += ": measure them"
        word = "undecided"
    text += "."
    lines = [*_asked(scenario, scenario.server), Line(word, text, judges=True)]
    if point.own_max_rate is not None:
        own = f"{policy} carries {point.own_max_rate:,.4g} {_RATE} at this budget"
        lines.append(Line("Its own", f"{own}, by a fluid argument."))
    held = f"the {' and the '.join(point.binding)}"
    if why := _held_by(point):
        held += f": {why}"
    lines.append(Line("Held by", f"{held}."))
    if point.inside:
        lines.append(Line("Next", f"`penstock check` says whether {policy} is stable here."))
    return lines


def _held_by(point: OperatingPoint) -> str:
    """Say what more of the binding limit would bring."""
    if point.kv_memory_rate is not None:
        return (
            f"the server carries about {point.kv_memory_rate:,.4g} requests/s once it is full (an "
            "estimate)"
        )
    if point.bound.name == "KV memory":
        return point.bound.why
    if point.binding == ("batch time",):
        return "the speed of its batches: no limit that you set, only faster hardware helps"
    price = point.optimum.slot_price
    if price:
        return (
            f"one more slot lets the best policy carry {price:,.1f} tokens/s more; others may "
            "carry less"
        )
    return ""
