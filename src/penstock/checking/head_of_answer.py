"""The head of ``check`` and ``simulate``: after its first two lines the test, targets, latency,
what must not be missed, and what it all rests on.
"""

from collections.abc import Mapping, Sequence

from penstock.checking.answer import Answer
from penstock.checking.batch_means import Statistics, enough_for_bursts
from penstock.checking.closed_loop import ClosedAnswer
from penstock.checking.doubt import Interval
from penstock.checking.head import BECAUSE, LATENCIES, MOST_NAMED, first_lines, share_of
from penstock.checking.overload import OverloadAnswer
from penstock.checking.storm import has_retries
from penstock.checking.targets import TargetAnswer
from penstock.scenario.scenario import Scenario
from penstock.show.page import MOST_LINES, Line
from penstock.simulation.rows import FAILED
from penstock.simulation.run import Run
from penstock.system.kinds import System
from penstock.theory.certificate import Certificate
from penstock.theory.ends import known_of
from penstock.words import counted, duration, sentence
from penstock.workload.workload import ClosedLoop

_COSTS = 0.01  # share of tokens done again by preemptions that is worth a word
_AGAIN = 1.01  # times as many come as for the first time: worth a word
_OPEN = " to ?)"  # where a run has no upper end
BEHIND_WHY = "hypotheses and limits"
BEHIND_ALL = "every statistic with its interval"


def head_of_answer(answer: Answer, scenario: Scenario | None) -> list[Line]:
    """Return all lines of an answer."""
    lines = [*_first_lines(answer.system, answer.certificate, scenario)]
    lines += [*_of_test(answer), *_of_targets(answer)]
    mind, rests_on = _to_mind(answer), _rests_on(answer, scenario)
    if answer.latency_refused:
        step = answer.next_step(scenario.file if scenario else "SCENARIO")
        last = [Line("Next", sentence(step))] if step else []
        return [*lines, *mind, *last, *rests_on][:MOST_LINES]
    of = answer.latency
    if of is None:
        return _fitted(lines, latency_of_run(answer.run), mind, rests_on)
    shown = {label: places for m, label in LATENCIES.items() if (places := of.places(m))}
    texts = {label: _worst(places) for label, places in shown.items()}
    longer = ""
    if not of.too_short:  # else another length would do
        every = {
            f"{at} {label}": {which: known[which] for which in ("mean", "p99") if which in known}
            for label, places in shown.items()
            for at, known in places.items()
        }
        enough = enough_for_bursts(every, of.confidence, of.jobs)
        if enough is not None and enough <= answer.most_arrivals:
            longer = f"--{answer.unit} {enough}"
    return _fitted(lines, texts, mind, rests_on, longer)


def head_of_clients(answer: ClosedAnswer, scenario: Scenario | None) -> list[Line]:
    """Return all lines of the answer for a closed loop."""
    lines = _first_lines((answer.workload, answer.server), None, scenario)
    if answer.targets:
        word, said = said_of_targets(answer.targets)
        step = answer.next_step(scenario.file if scenario else "SCENARIO")
        lines.append(Line(word, f"{'; '.join([*said, step] if step else said)}.", judges=True))
    lines.append(Line("Carries", _carried(answer)))
    of = answer.latency
    texts = {label: _latency(of.estimates[metric]) for metric, label in LATENCIES.items()}
    doubts = [*_lost(answer.run), *(of.notices[-1:] if of.too_short else ())]
    known = known_of(answer.server)
    on = _measured(scenario) if known is None else [_estimated(known.calibrated, answer.factors)]
    return _fitted(lines, texts, _mind(doubts), [Line("Rests on", f"{one}.") for one in on])


def head_of_overload(answer: OverloadAnswer, scenario: Scenario | None) -> list[Line]:
    """Return all lines of the answer where requests are refused, or clients leave."""
    lines = _first_lines(answer.system, None, scenario)
    closed = isinstance(answer.system, tuple) and isinstance(answer.workload, ClosedLoop)
    if not closed or answer.storm is not None:  # its first lines have said so
        lines.append(Line(answer.verdict, sentence(answer.reason), judges=True))
    of, tries = answer.rates, answer.tries
    served = f"{of.carried:,.4g} of {of.arriving:,.4g} {answer.unit}/s"
    first = sum(stage.arriving for stage in answer.stages) or of.arriving
    if tries.offered > _AGAIN * first:
        served += f" ({tries.offered:,.4g}/s with those that come again)"
    served += f"; {share_of(answer.lost)} are lost"
    if answer.lost_at_least > 0:
        most = f"as no scheduler serves more than {answer.most:,.4g}/s"
        least = f"{share_of(answer.lost_at_least)} by theorem"
        served += f", in the long run at least {least}, {most}"
    lines.append(Line("Served", f"{served}."))
    reasons = {"refused": tries.refused, "left by their clients": tries.left}
    failed = [f"{rate:,.4g}/s are {reason}" for reason, rate in reasons.items() if rate]
    if answer.wasted >= _COSTS:
        failed.append(f"{answer.wasted:.0%} of the tokens are for clients who leave")
    if failed:
        label = "Tries" if has_retries(answer.system) else "Lost"
        lines.append(Line(label, sentence("; ".join(failed))))
    if answer.targets:
        word, said = said_of_targets(answer.targets)
        good = answer.goodput
        if good is not None and good.value is not None:
            said.append(f"goodput {good.value * of.arriving:,.4g} {answer.unit}/s")
        lines.append(Line(word, f"{'; '.join(said)}.", judges=True))
    step = answer.next_step(scenario.file if scenario else "SCENARIO")
    last = [Line("Next", sentence(step))] if step else []
    of_places = {label: answer.latency.places(metric) for metric, label in LATENCIES.items()}
    texts = {label: _worst(places) for label, places in of_places.items() if places}
    texts = texts if answer.latency.jobs else {}
    last += [Line("Rests on", f"{one}.") for one in times_of(answer.system, scenario)]
    return _fitted(lines, texts, _mind([*_lost(answer.run), *answer.warnings]), last)


def _first_lines(
    system: System, certificate: Certificate | None, scenario: Scenario | None
) -> list[Line]:
    if scenario is None:
        return first_lines("check", system, certificate)
    return first_lines(scenario.name, system, certificate, scenario.hardware)


def _carried(answer: ClosedAnswer) -> str:
    """Say what throughput clients have, and how near it is to what can be carried."""
    of = answer.requests_per_s
    if of.value is None:
        return "not known: too few requests ended"
    between = "" if of.low is None or of.high is None else f" ({of.low:,.4g} to {of.high:,.4g})"
    near = (
        f", {share_of(of.value / answer.max_rate)} of the most that any scheduler can carry "
        f"({answer.max_rate:,.4g} requests/s)"
    )
    return f"{of.value:,.4g} requests/s{between}{near}"


def head_of_run(scenario: Scenario, certificate: Certificate | None, run: Run) -> list[Line]:
    """Return the head of one finite run."""
    first = _first_lines((scenario.workload, run.server), certificate, scenario)
    if certificate is None:
        rate = f"{run.finished / run.seconds:,.4g} requests/s" if run.end else "no time"
        said = f"{counted(run.finished, 'answer')} within {duration(run.seconds)}, {rate}"
    else:
        said = "it began empty and came to an end"
    if run.dropped:
        said += f"; dropped: {counted(run.dropped, 'request')} that never fit"
    if run.rows is not None and run.rows.failed is not None:
        counts = {word: int((run.rows.failed == code).sum()) for code, word in FAILED.items()}
        said += "".join(f"; {count:,} {word}" for word, count in counts.items() if count)
    if certificate is not None or isinstance(scenario.workload, ClosedLoop):  # no burst
        said += "; for the long run, with intervals, ask check"
    return _fitted([*first, Line("One run", sentence(said))], latency_of_run(run))


def latency_of_run(run: Run) -> dict[str, str]:
    """Return the latencies of one run, by label."""
    of = run.latency_as_dict()
    return {
        label: f"mean {duration(of[metric]['mean'])}, p99 {duration(of[metric]['p99'])}"
        for metric, label in LATENCIES.items()
    }


def _fitted(
    lines: Sequence[Line], texts: Mapping[str, str], mind: Sequence[Line] = (),
    last: Sequence[Line] = (), longer: str = "",
) -> list[Line]:  # fmt: skip
    """Put latencies between the lines: one each, or as many together as there is no room for; the
    last without an upper end is followed by the run that would have one.
    """
    if len(lines) + len(mind) + len(last) >= MOST_LINES:
        last = []  # as it is behind --why, too
    if len(lines) + len(mind) >= MOST_LINES:
        mind = []
    room = MOST_LINES - len(lines) - len(mind) - len(last)
    labels = list(texts)
    together = labels[: len(labels) - room + 1]
    latencies = [Line(label, texts[label]) for label in labels]
    if len(together) > 1:
        first, *others = together
        parts = [texts[first], *(f"{label.lower()} {texts[label]}" for label in others)]
        latencies = [Line(first, "; ".join(parts)), *latencies[len(together) :]]
    open_ended = [at for at, line in enumerate(latencies) if _OPEN in line.text]
    if longer and open_ended:
        last_one = latencies[open_ended[-1]]
        text = f"{last_one.text}; for an upper end: {longer}"
        latencies[open_ended[-1]] = Line(last_one.label, text)
    return [*lines, *latencies, *mind, *last]


def _of_test(answer: Answer) -> list[Line]:
    """Say what the test says, where it decides or contradicts, and what batch times leave open."""
    test, doubt = answer.stability, answer.calibration
    if answer.disagreement:
        return [Line("contradiction", sentence(answer.disagreement), judges=True)]
    if doubt is not None and answer.hinges_on_calibration:
        middle: str = answer.certificate.verdict
        if middle == "unknown" and test is not None:
            middle = test.verdict
        text = (
            f"{BECAUSE}: with the slowest that are likely it is {doubt.slow.verdict}, with the "
            f"middle ones {middle}, with the fastest {doubt.fast.verdict}; {doubt.remedy}."
        )
        return [Line("undecided", text, judges=True)]
    if test is None:
        return [Line("not tested", sentence(answer.stability_skipped or ""), judges=True)]
    if answer.metastable is not None:
        return [Line("metastable", f"by simulation: {answer.metastable.reason}.", judges=True)]
    if answer.certificate.verdict not in ("unknown", "critical"):
        return []
    ends = ""
    if doubt is not None and test.verdict == "stable":
        ends = ", also with the slowest and the fastest batch times that are likely"
    text = f"by simulation: {test.in_short}{ends}."
    return [Line(test.verdict, text, judges=True)]


def _of_targets(answer: Answer) -> list[Line]:
    """Say of all targets together whether they are met; those that are not come first."""
    if not answer.targets:
        return []
    word, texts = said_of_targets(answer.targets)
    if word == "missed":
        remedy = "more replicas, other limits or less load may meet them"
        if not answer.is_network:
            remedy = "`penstock recommend` looks for limits that meet them, `plan` for a fleet"
        texts.append(remedy)
    elif word == "undecided":
        decides = f"a longer run may decide: --{answer.unit} {answer.longer_run}"
        texts.append(decides if answer.longer_run else answer.left_open)
    return [Line(word, f"{'; '.join(texts)}.", judges=True)]


def said_of_targets(targets: Sequence[TargetAnswer]) -> tuple[str, list[str]]:
    """Return the worst that is said of any target, and the targets by what is said of them."""
    said: dict[str, list[str]] = {"missed": [], "undecided": [], "met": []}
    for answer in targets:
        said[answer.judgement].append(f"{answer} ({answer.value})")
    word, *others = [(name, texts) for name, texts in said.items() if texts]
    return word[0], [", ".join(word[1]), *(f"{name}: {', '.join(of)}" for name, of in others)]


def _to_mind(answer: Answer) -> list[Line]:
    """Say what can change a decision, if there is such a thing."""
    said = []
    run = answer.run
    if answer.kv_doubt:
        said.append(answer.kv_doubt)
    said += _lost(run, 1 - answer.certificate.load.work.share if not answer.is_network else 0.0)
    if not answer.is_network:
        again = run.recomputed_tokens / max(run.started_tokens, 1)
        if again > _COSTS:
            said.append(
                f"preemptions do {again:.1%} of the tokens again ({run.preemptions:,} of them)"
            )
    of = answer.latency
    if of is not None and of.too_short and of.notices:
        said.append(f"the run is too short: {of.notices[-1]}")
    return _mind(said)


def _mind(doubts: Sequence[str]) -> list[Line]:
    return [Line("Mind", sentence("; ".join(doubts)))] if doubts else []


def _lost(run: Run, expected: float = 0.0) -> list[str]:
    """Say which share of the requests is dropped, by theory or else in a run, if any."""
    share = expected or run.dropped / max(run.arrived + run.dropped, 1)
    return [f"{share:.2%} of the requests never fit and are dropped"] if share > 0 else []


def _rests_on(answer: Answer, scenario: Scenario | None) -> list[Line]:
    """Say whether theorem and simulation agree, and where batch times come from: read on from the
    label.
    """
    certificate, test, doubt = answer.certificate, answer.stability, answer.calibration
    said = []
    if not answer.disagreement and certificate.verdict in ("stable", "unstable"):
        agrees = test is not None and test.verdict == certificate.verdict
        said.append("a theorem and a simulation that agree" if agrees else "the theorem alone")
    measured = certificate.measured
    if answer.is_network and answer.bottleneck.found_share is not None:
        measured = answer.bottleneck.rho
    if measured is not None:
        said.append(f"what prefix caches found in this run (a load of {share_of(measured)})")
    if doubt is not None:
        said.append(_estimated(doubt.calibrated, doubt.latency))
    else:
        said += _measured(scenario)
    if said and not _has_memory(answer.system):
        said.append("no KV memory is counted")
    return [Line("Rests on", f"{'; '.join(said)}.")] if said else []


def _has_memory(system: System) -> bool:
    """Return whether KV memory may hold requests back anywhere."""
    if isinstance(system, tuple):
        return system[1].memory is not None
    return any(one.memory for pool in system.pools.values() for one, _ in pool.servers)


def _estimated(calibrated: bool, factors: Mapping[str, Interval]) -> str:
    """Say where batch times that are not exact come from, and how far off that leaves means."""
    origin = (
        "batch times calibrated on a few rows"
        if calibrated
        else "batch times from the shape of the model, which nobody measured"
    )
    if factors:
        low = min(ends.low for ends in factors.values())
        high = max(ends.high for ends in factors.values())
        origin += f": true means may be {low:.2g} to {high:.2g} times those above"
    return origin


def times_of(system: System, scenario: Scenario | None) -> list[str]:
    """Say where batch times come from, if that is known."""
    known = known_of(system[1]) if isinstance(system, tuple) else None
    return _measured(scenario) if known is None else [_estimated(known.calibrated, {})]


def _measured(scenario: Scenario | None) -> list[str]:
    """Say where batch times were measured, if they were."""
    if scenario is None or scenario.measured is None or not scenario.measured.year:
        return []
    return [f"batch times measured in {scenario.measured.year}, {scenario.measured.description}"]


def _latency(of: Statistics) -> str:
    """Return mean and p99, the latter with its lower end where the run has no upper one."""
    mean, p99 = of["mean"], of["p99"]
    known = f"mean {duration(mean.value)}, p99 {duration(p99.value)}"
    if p99.low is None or p99.high is not None:
        return known
    return f"{known} ({duration(p99.low)}{_OPEN}"


def _worst(of: Mapping[str, Statistics]) -> str:
    """Return mean and p99 of the longest, each with its name where there are several."""
    if len(of) == 1:
        return _latency(next(iter(of.values())))
    ranked = sorted(of, key=lambda name: of[name]["p99"].value or 0.0, reverse=True)
    texts = [f"{name} {_latency(of[name])}" for name in ranked[:MOST_NAMED]]
    if len(ranked) > MOST_NAMED:
        texts.append(f"{len(ranked) - MOST_NAMED} more: --all")
    return "; ".join(texts)
