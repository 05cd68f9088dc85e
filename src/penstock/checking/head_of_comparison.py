"""The heads of ``compare``: a line for each policy or network, those that matter most."""

import math
import re
from collections.abc import Mapping, Sequence

from penstock.checking.answer import Answer
from penstock.checking.comparison import ComparedWorkflow, NetworkComparison
from penstock.checking.head import LATENCIES, asked_of
from penstock.scenario.scenario import Scenario
from penstock.show.page import MOST_LINES, Line
from penstock.words import duration

_MOST_WORKFLOWS = 2  # in a line


def head_of_policies(
    scenario: Scenario, answers: Mapping[str, Answer], left_out: Mapping[str, str] | None = None
) -> list[Line]:
    """Say of each policy whether it is stable, and its mean latencies; why others are left out."""
    system = next(iter(answers.values())).system
    asked, *mind = asked_of(scenario.name, system, scenario.hardware, len(answers))
    doubts = [line.text for line in mind]
    text = " ".join([f"{asked.text}.", *doubts, "Means (p99) of the same requests:"])
    fastest = _fastest(answers)
    lines = {name: _policy(answer, name == fastest) for name, answer in answers.items()}
    speed = {name: _whole_call(answer)[1] for name, answer in answers.items()}
    found = _head(Line(scenario.name, text), answers, lines, speed)
    reasons = [f"{name}: {re.split('[:;] ', why)[0]}" for name, why in (left_out or {}).items()]
    cannot = [Line("Left out", f"{'; '.join(reasons)} (--why).")] if reasons else []
    return [*found, *cannot][:MOST_LINES]


def _policy(answer: Answer, fastest: bool) -> str:
    if answer.latency is None:
        does = 1 - answer.tested.drift
        grows = f": it does {does:.3g} times the work that arrives" if does < 1 else ""
        return f"{answer.verdict}{grows}"
    latencies = [
        f"{words.lower()} {duration(of['mean'].value)} ({duration(of['p99'].value)})"
        for metric, words in LATENCIES.items()
        for of in (answer.latency.estimates[metric],)
    ]
    return f"{answer.verdict}; {', '.join(latencies)}{', the fastest' if fastest else ''}"


def _whole_call(answer: Answer) -> tuple[float, float, float]:
    """Return the mean of a whole call, between the ends of its interval; infinite if unknown."""
    if answer.latency is None:
        return math.inf, math.inf, math.inf
    mean = answer.latency.estimates["e2e_s"]["mean"]
    ends = (mean.low, mean.value, mean.high)
    low, value, high = (math.inf if end is None else end for end in ends)
    return low, value, high


def _fastest(answers: Mapping[str, Answer]) -> str | None:
    """Return the policy whose whole calls are shortest, if all of its interval is below others'."""
    first, *others = sorted(answers, key=lambda name: _whole_call(answers[name])[1])
    below = min((_whole_call(answers[name])[0] for name in others), default=0.0)
    return first if _whole_call(answers[first])[2] < below else None


def head_of_networks(comparison: NetworkComparison, title: str, what: str) -> list[Line]:
    """Say of each network whether it is stable, how long jobs take, and what the change brings."""
    jobs = f"the same {comparison.jobs:,} jobs" if comparison.rows else "the same jobs"
    count = len(comparison.answers)
    text = f"{count} networks, that differ by {what.lower()}. Mean times of {jobs}:"
    rows = comparison.by_workflow().values()
    of = {name: [row for flow in rows for row in flow if row.network == name]
          for name in comparison.answers}  # fmt: skip
    lines = {
        name: "; ".join([answer.verdict, *_workflows(of[name], comparison.first)])
        for name, answer in comparison.answers.items()
    }
    speed = {name: sum(_mean(row) for row in mine) or math.inf for name, mine in of.items()}
    return _head(Line(title, text), comparison.answers, lines, speed)


def _workflows(rows: Sequence[ComparedWorkflow], first: str | None) -> list[str]:
    """Say how long the jobs of the first few workflows take, and how that differs."""
    said = []
    for row in rows[:_MOST_WORKFLOWS]:
        text = f"{row.workflow} {duration(row.latency['e2e_s']['mean'].value)}"
        change = row.difference and row.difference["e2e_s"]["mean"]
        if change and change.value is not None and change.low is not None:
            less = "less" if change.value < 0 else "more"
            sure = "" if change.low * (change.high or 0.0) > 0 else ", perhaps by chance"
            text += f" ({duration(abs(change.value))} {less} than {first}{sure})"
        said.append(text)
    return said


def _mean(row: ComparedWorkflow) -> float:
    return row.latency["e2e_s"]["mean"].value or math.inf


def _head(
    asked: Line, answers: Mapping[str, Answer], lines: Mapping[str, str],
    speed: Mapping[str, float],
) -> list[Line]:  # fmt: skip
    """Return a line for each, the first one's first; of many the fastest of the others."""
    said = [
        f"{name}: {answer.disagreement}" for name, answer in answers.items() if answer.disagreement
    ]
    doubts = [Line("contradiction", f"{text}.", judges=True) for text in said[:1]]
    short = [
        f"{name}: {answer.latency.notices[-1]}"
        for name, answer in answers.items()
        if answer.latency and answer.latency.too_short and answer.latency.notices
    ]
    more = f"; {', '.join(one.partition(':')[0] for one in short[1:])} too (--why)"
    mind = [Line("Mind", f"{text}{more if short[1:] else ''}.") for text in short[:1]]
    room = MOST_LINES - 1 - len(doubts) - len(mind)
    first, *others = lines
    left_out: list[str] = []
    if len(lines) > room:
        ranked = sorted(others, key=lambda name: speed[name])
        left_out = ranked[room - 2 :]
    rows = [Line(name, f"{lines[name]}.") for name in (first, *others) if name not in left_out]
    if left_out:
        rows.append(Line("Others", f"slower or not stable: {', '.join(left_out)}."))
    return [asked, *doubts, *rows, *mind]
