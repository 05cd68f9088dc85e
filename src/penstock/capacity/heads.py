"""The heads of ``max-rate``, ``recommend`` and ``region``: the answer, its source, its price."""

import math
from collections.abc import Iterable, Mapping

from penstock.capacity.held_by import held_by
from penstock.capacity.max_rate import SIMULATION, MaxRate
from penstock.capacity.recommendation import Recommendation
from penstock.capacity.region import LoadInRegion
from penstock.capacity.side_by_side import MaxRates
from penstock.checking.doubt import reach_of
from penstock.checking.head import asked_of, share_of
from penstock.checking.head_of_answer import said_of_targets
from penstock.checking.view_parts import contradictions
from penstock.scenario.scenario import Scenario
from penstock.show.page import MOST_LINES, Line
from penstock.system.server import Server
from penstock.theory.operating_point import OperatingPoint
from penstock.words import between, digits, sentence

_MOST_NAMED = 4  # rates in one line
_ALL = 0.995  # share of a limit that is called all of it


def head_of_rates(answer: MaxRates, scenario: Scenario) -> list[Line]:
    """Say what a server or a network carries as it is, or in each of several variants."""
    rates = answer.rates
    name, first = next(iter(rates.items()))
    system, label = scenario.system, "Max load"
    limit = f"pool {first.certificate.bottleneck.name}"
    fails = _order_fails_above(first)
    if fails < first.bound and len(rates) == 1:
        limit = f"the order between stages, which fails above {fails:,.4g}, and by no pool"
    besides = ""
    if first.rate < 1:
        known = "unstable, which is proved" if fails < 1 else "not known to be carried"
        besides = f", so this load is {known}"
    if answer.point is not None:
        system, rate = answer.systems[name], scenario.workload.rate
        label, limit = "Max rate", held_by(answer.point)
        besides = f" ({rate:,.4g} arrive, {share_of(rate / first.rate)} of that)"
    return [
        *asked_of(scenario.name, system, scenario.hardware, len(rates)),
        *(
            Line(verdict.word, f"{verdict.about}: {verdict.reason}", judges=True)
            for verdict in contradictions(rates)[:1]
        ),
        *_met(rates),
        _carried(label, rates, besides),
        _held_by_limit(rates, limit, answer.point),
        *_within(rates),
        *_mind_memory(one[1] for one in answer.systems.values() if isinstance(one, tuple)),
    ][:MOST_LINES]


def _order_fails_above(of: MaxRate) -> float:
    """Return from where on, in its unit, a virtual station proves that the order fails."""
    virtual = of.certificate.virtual_station
    return virtual.max_load * of.certificate.rate / of.per_s if virtual else math.inf


def _met(rates: Mapping[str, MaxRate]) -> list[Line]:
    """Say up to where targets are known to be met, from where they are not, and the goodput."""
    of = {name: one.targets for name, one in rates.items() if one.targets}
    if not of:
        return []
    ranked = sorted(of, key=lambda name: -of[name].rate)[:_MOST_NAMED]
    best, rate = of[ranked[0]], rates[ranked[0]]
    if len(of) > 1:
        said = [f"{name} {of[name].rate:,.4g} (not at {of[name].missed:,.4g})" for name in ranked]
        return [Line("Meets", f"{best.limits}, in {rate.unit}: {'; '.join(said)}.")]
    end = f"{'it' if best.binding == best.limits else best.binding} is missed"
    if best.binding == "stability":
        end = "it is not known to be stable"
    middle = ", with the middle batch times" if rate.ends else ""
    if rate.ends and best.rate > rate.ends.slow.rate:
        middle += f" (with the slow ones no more than {rate.ends.slow.rate:,.4g} is stable)"
    unit = "--jobs" if rate.is_network else "--requests"
    text = (
        f"{best.limits} up to {best.rate:,.4g} {rate.unit} ({share_of(best.rate / rate.rate)} of "
        f"what is stable); at {best.missed:,.4g} {end}{middle}. Goodput there: "
        f"{best.goodput_rate:,.4g} a second, {best.goodput.value or 0.0:.2%} of all"
    )
    if best.gap is not None:
        text += (
            f". Between the two runs are too short to tell: {best.gap:.0%} apart, where "
            f"{100 * best.precision:.3g}% was asked; more {unit} narrow it"
        )
    return [Line("Meets", f"{text}.")]


def _carried(label: str, rates: Mapping[str, MaxRate], besides: str) -> Line:
    """Say up to where it is stable and how that is known, the highest first."""
    known = {
        name: "by simulation" if one.known == SIMULATION else f"by {one.known}"
        for name, one in rates.items()
    }
    ranked = sorted(rates, key=lambda name: -rates[name].rate)
    one = rates[ranked[0]]
    if len(rates) == 1:
        text = f"{one.rate:,.4g} {one.unit}{besides}; {known[ranked[0]]}"
        if one.known == SIMULATION:
            text += f" (proved up to {one.certified:,.4g})" if one.certified else ""
            text += f": at {one.above:,.4g} it is unstable, or too near its limit to tell"
        return Line(label, f"{text}.")
    alike = len(set(known.values())) == 1
    same = f", {known[ranked[0]]}" if alike else ""
    said = [
        f"{name} {rates[name].rate:,.4g}{'' if alike else f' ({known[name]})'}" for name in ranked
    ]
    more = len(said) - _MOST_NAMED
    several = f"; {more:,} more behind --why" if more > 0 else ""
    return Line(label, f"in {one.unit}{same}: {'; '.join(said[:_MOST_NAMED])}{several}.")


def _held_by_limit(rates: Mapping[str, MaxRate], limit: str, point: OperatingPoint | None) -> Line:
    """Say what no scheduler exceeds, and how much of it is carried where one thing is asked."""
    first = next(iter(rates.values()))
    bound, own = f" than {first.bound:,.4g} {first.unit}", ""
    if len(rates) == 1 and first.share > _ALL:
        bound = ""
    elif len(rates) == 1:
        own = f", this one {share_of(first.share)} of that"
        if point is not None and point.kv_memory_rate is not None:  # another limit says that
            bound += f" within the {' and the '.join(point.without_estimate)}"
    return Line("Held by", f"{limit}; no scheduler carries more{bound}{own}.")


def _within(rates: Mapping[str, MaxRate]) -> list[Line]:
    """Say between what the highest rate lies, where batch times are not exact."""
    said = [
        f"{name if len(rates) > 1 else ''} "
        + between(f"{one.ends.slow.rate:,.4g}", f"{one.ends.fast.rate:,.4g}")
        for name, one in rates.items()
        if one.ends
    ]
    if not said:
        return []
    unit = next(iter(rates.values())).unit
    ends = "; ".join(text.lstrip() for text in said[:_MOST_NAMED])
    return [Line("Batch times", f"not exact: as far as they are known it is {ends} {unit}.")]


def _mind_memory(servers: Iterable[Server]) -> list[Line]:
    """Say that KV memory is estimated, where it is."""
    if not any(server.memory and server.memory.estimated for server in servers):
        return []
    return [Line("Mind", "the KV memory is an estimate: give kv_tokens, which the engine logs.")]


def head_of_recommendation(found: Recommendation, scenario: Scenario) -> list[Line]:
    """Say keep, or the one change, or that nothing does and what comes nearest; then its price,
    what is carried, and what is next; the lines that a head has no room for come last.
    """
    new = found.recommended
    system = scenario.workload, found.current.server
    lines = asked_of(scenario.name, system, scenario.hardware)
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
    doubt = ""
    if found.calibration is not None:
        low, high = found.calibration.max_rate
        doubt = (
            "not exact: as far as they are known no scheduler carries more than "
            f"{between(f'{low:,.4g}', f'{high:,.4g}')} requests/s"
        )
    first = {
        "Price": found.price,
        "Carries": "" if found.overload else f"{found.carries}; {found.held_by}",
        "Next": found.next_step(scenario.file),
        "Batch times": doubt,
    }
    last = {"Trade": found.trade, "With plugin": found.with_plugin}
    lines += [Line(label, f"{text}.") for label, text in first.items() if text]
    lines += _mind_memory([new.server])
    return lines + [Line(label, f"{text}.") for label, text in last.items() if text]


def head_of_region(answer: LoadInRegion, scenario: Scenario) -> list[Line]:
    """Say whether any scheduler may carry the load, and what limits them all."""
    point = answer.point
    policy = scenario.server.policy.name
    reach = reach_of(scenario.system)
    carried = math.inf if answer.exact is None else answer.exact.upper
    inside = point.inside and point.arrival_rate < carried
    word = "inside" if inside else "outside"
    text = (
        f"{point.arrival_rate:,.4g} requests/s arrive, {share_of(1 - point.margin)} of "
        f"{point.max_rate:,.4g} requests/s, above which no scheduler is stable"
    )
    if reach is not None:
        low, high = reach.max_rate.low, reach.max_rate.high
        ends = between(f"{low:,.4g}", f"{high:,.4g}")
        text += f"; that limit is {ends} as far as batch times are known"
    if reach is not None and reach.undecided:
        text += ": measure them"
        word = "undecided"
    text += "."
    lines = asked_of(scenario.name, scenario.system, scenario.hardware)
    lines.append(Line(word, text, judges=True))
    if point.own_max_rate is not None:
        own = f"{policy} carries {point.own_max_rate:,.4g} requests/s at this budget"
        lines.append(Line("Its own", f"{own}, by a fluid argument."))
    if (exact := answer.exact) is not None:
        # The program ends within a thousandth: three digits, rounded to where both stay true.
        unit = 10.0 ** (math.floor(math.log10(exact.upper)) - 2)
        most = f"{digits(math.ceil(exact.upper / unit - 1e-6) * unit)} requests/s"
        text = f"counting that prompts end, no scheduler carries more than {most}"
        text += f", {share_of(exact.upper / point.max_rate)} of that limit"
        if exact.upper >= (1 - 1e-9) * point.max_rate:
            text = "that prompts end costs nothing here"
        if scenario.server.scope == "batch":
            text += f"; the best carries {digits(math.floor(exact.rate / unit + 1e-6) * unit)}"
        lines.append(Line("Exact", sentence(text)))
    lines.append(Line("Held by", f"{held_by(point)}."))
    if inside:
        lines.append(Line("Next", f"`penstock check` says whether {policy} is stable here."))
    return lines
