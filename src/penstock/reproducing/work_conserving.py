"""Which schedulers are work-conserving, by audit (Table 1)."""

import dataclasses
import itertools
from typing import Any, Literal, NamedTuple

import altair as alt
import numpy as np
import polars as pl

from penstock.auditing.audit import audit
from penstock.document import Section
from penstock.errors import InputError
from penstock.reproducing.item import Claim, Different, Reproduction, Setup, refuse
from penstock.reproducing.small_systems import (
    Random,
    Small,
    System,
    Waiting,
    random_systems,
    small_systems,
    waiting,
)
from penstock.show import charts
from penstock.show.charts import on_grid
from penstock.show.page import Table
from penstock.system.policies import resolve
from penstock.system.scheduler import Scheduler
from penstock.system.server import Convention
from penstock.words import counted


class _Row(NamedTuple):
    """What Table 1 says of a scheduler."""

    name: str
    priority: str
    mixes: bool
    work_conserving: bool
    cuts_prompts: bool = False


PUBLISHED = {
    "fastertransformer": _Row(
        "FasterTransformer", "decode-first", mixes=False, work_conserving=False
    ),
    "vllm-vanilla": _Row("vanilla vLLM", "prefill-first", mixes=False, work_conserving=False),
    "orca": _Row("Orca", "prefill-first", mixes=True, work_conserving=True),
    "sarathi": _Row(
        "Sarathi-Serve", "decode-first", mixes=True, work_conserving=True, cuts_prompts=True
    ),
}
"""Table 1 of the paper."""


class _TableSettings(Section):
    policies: Different[str]
    convention: Literal["paper", "engine"] = "paper"
    small: Small = Small()
    random: Random = Random()


@dataclasses.dataclass
class Finding:
    """What audits of many systems found about a policy.

    Attributes
    ----------
    policy
        Its name.
    systems, batches
        How many were audited.
    could_be_full, left_short
        Batches for which enough waited to fill the token budget, and those of them that did not.
    both_waited, mixed
        Batches before which prompts and decodes waited, and those of them that served both.
    decode_first, prefill_first
        Whether all of those took as much of that phase as the budget allows.
    cuts
        Whether a prompt was spread over several batches.
    paper, strong
        The first system, and its batch, that refutes work conservation as the paper has it, and the
        strong one.
    """

    policy: str
    systems: int = 0
    batches: int = 0
    could_be_full: int = 0
    left_short: int = 0
    both_waited: int = 0
    mixed: int = 0
    decode_first: bool = True
    prefill_first: bool = True
    cuts: bool = False
    paper: tuple[System, int] | None = None
    strong: tuple[System, int] | None = None

    @property
    def priority(self) -> str:
        """Which phase it serves first."""
        if not self.both_waited or self.decode_first == self.prefill_first:
            return "either" if self.decode_first else "neither"
        return "decode-first" if self.decode_first else "prefill-first"

    def audit(self, system: System, policy: Scheduler, convention: Convention) -> None:
        """Serve a system, and add what its batches show."""
        run = system.run(policy, convention)
        audited = audit(run)
        if not audited.feasible:
            raise InputError(
                f"{self.policy} served {system.in_words()} with batches that no server can run "
                f"({audited.violations[0]}), so they cannot be audited; mend the policy"
            )
        if self.paper is None and audited.paper.first is not None:
            self.paper = system, audited.paper.first.batch
        if self.strong is None and audited.strong.first is not None:
            self.strong = system, audited.strong.first.batch
        self._count(waiting(run, system.arrival, system.prompt, system.output), system.budget)

    def _count(self, s: Waiting, budget: int) -> None:
        both = (s.prompt_tokens > 0) & (s.decodes > 0)
        self.systems += 1
        self.batches += s.load.size
        self.could_be_full += int((s.supply >= budget).sum())
        self.left_short += int(s.short(budget).sum())
        self.both_waited += int(both.sum())
        self.mixed += int((both & (s.prefill > 0) & (s.decode > 0)).sum())
        self.decode_first &= bool((s.decode >= np.minimum(s.decodes, budget))[both].all())
        self.prefill_first &= bool((s.prefill >= np.minimum(s.prompt_tokens, budget))[both].all())
        self.cuts |= s.cut


def search(name: str, policy: Scheduler, settings: _TableSettings) -> Finding:
    """Audit small systems, the smallest first, until one refutes work conservation, then all the
    random ones.
    """
    finding = Finding(name)
    small = itertools.takewhile(lambda system: finding.paper is None, small_systems(settings.small))
    for system in itertools.chain(small, random_systems(settings.random)):
        if system.fits(policy):
            finding.audit(system, policy, settings.convention)
    if not finding.both_waited or not finding.could_be_full:
        lacks = (
            "in which prompts and decodes waited"
            if not finding.both_waited
            else "that could have been full"
        )
        raise InputError(
            f"reproduce.random.systems is {settings.random.systems}: in "
            f"{counted(finding.systems, 'system')} {name} had no batch {lacks}, so nothing can be "
            "said of it; raise random.systems, or random.requests and random.tokens"
        )
    return finding


def table(setup: Setup) -> Reproduction:
    """Audit each policy in small and random systems, and compare it with Table 1."""
    settings = setup.settings(_TableSettings, sections=())
    refuse(
        not settings.policies,
        "reproduce.policies is empty, so there is nothing to audit; name a policy such as sarathi",
    )
    findings = []
    for name in setup.each(settings.policies):
        findings.append(search(name, resolve(name, folder=setup.folder), settings))
    claims = tuple(
        claim for finding in findings if finding.policy in PUBLISHED for claim in _claims(finding)
    )
    columns = (
        "policy", "systems", "batches", "could_be_full", "left_short", "both_waited", "mixed",
        "priority", "cuts",
    )  # fmt: skip
    rows = [
        {name: getattr(finding, name) for name in columns}
        | {"paper": _verdict(finding.paper), "strong": _verdict(finding.strong)}
        for finding in findings
    ]
    refuted = [
        (
            finding.policy,
            *_example(*finding.paper, settings, resolve(finding.policy, folder=setup.folder)),
        )
        for finding in findings
        if finding.paper
    ]
    heads = ("Policy", "Requests: prompt + output, tick", "Batch", "Served", "Could have been")
    about = (
        "The smallest system that refutes each: the first batch with fewer tokens than the budget "
        "and the supply."
    )
    text = "Share of batches left short and of batches that mix phases, by policy."
    return setup.answer(
        claims, pl.DataFrame(rows), {text: _shares(findings)},
        "Left short: of the batches for which enough waited, those below the token budget. Mixed: "
        "of the batches "
        "before which prompts and decodes waited, those that serve both. Over all systems audited.",
        (Table(heads, refuted, about),),
        (
            "An audit can refute, not prove: Yes means that no system audited refutes it.",
            "The paper's four cut prompts to fit the budget, since it states them in tokens; no "
            "max batch size.",
        ),
    )  # fmt: skip


def _claims(finding: Finding) -> list[Claim]:
    """Compare a policy with its row of Table 1, then with what Appendix C needs."""
    row, many = PUBLISHED[finding.policy], f"{finding.systems:,} systems"
    seen_in = f"so in {finding.both_waited:,} batches, in {many}, before which both phases waited"
    batching = _batching(finding.mixed > 0, cuts=finding.cuts and row.cuts_prompts)
    published = _batching(row.mixes, cuts=row.cuts_prompts)
    claims = [
        Claim.judged(
            f"{row.name}: priority", row.priority, finding.priority,
            finding.priority == row.priority, seen_in
        ),
        Claim.judged(f"{row.name}: batching", published, batching, batching == published, seen_in),
        Claim(
            f"{row.name}: work-conserving", "Yes" if row.work_conserving else "No",
            _verdict(finding.paper),
            (finding.paper is None) == row.work_conserving,
            _refuted(finding.paper) or f"no batch refutes it, in {many}",
        ),
    ]  # fmt: skip
    if row.work_conserving:
        claims.append(
            Claim(
                f"{row.name}: strong, min(supply, b_max)", "Yes, for Appendix C",
                _verdict(finding.strong), finding.strong is None, _refuted(finding.strong),
            )
        )  # fmt: skip
    return claims


def _batching(mixes: bool, cuts: bool) -> str:
    return f"{'chunked prefill, ' if cuts else ''}{'mixed' if mixes else 'not mixed'}"


def _verdict(refuted: tuple[System, int] | None) -> str:
    return "Yes" if refuted is None else "No"


def _refuted(by: tuple[System, int] | None) -> str:
    """Say which batch refutes a policy."""
    if by is None:
        return ""
    system, batch = by
    example = "A 1+2 at 0: one prompt and two output tokens, tick 0"
    return f"batch {batch + 1} refutes it, of {system.in_words()} ({example})"


def _example(
    system: System, batch: int, settings: _TableSettings, policy: Scheduler
) -> tuple[str, str, str, str]:
    """Return the system, the batch that falls short, what it serves, and what it could have had."""
    run = system.run(policy, settings.convention)
    s = waiting(run, system.arrival, system.prompt, system.output)
    return (
        system.in_words(), f"{batch + 1}", _tokens(s.prefill[batch], s.decode[batch]),
        _tokens(s.prompt_tokens[batch], s.decodes[batch]),
    )  # fmt: skip


def _tokens(prefill: int, decode: int) -> str:
    return f"{prefill} prefill, {decode} decode"


# Of the names of policies, also where a browser's letters are wider than those the figure was laid
# out with.
_ROOM = alt.Axis(labelLimit=300, minExtent=130)


def _shares(findings: list[Finding]) -> Any:
    """Draw how many batches of each policy are left short, and how many mix phases."""
    rows = [
        (finding.policy, what, of / among)
        for finding in findings
        for what, of, among in (
            ("left short", finding.left_short, finding.could_be_full),
            ("mixed", finding.mixed, finding.both_waited),
        )
        if among
    ]
    table = pl.DataFrame(
        rows, {"policy": pl.String, "what": pl.String, "share": pl.Float64}, orient="row"
    )
    kinds = ["left short", "mixed"]
    base = alt.Chart(table).encode(
        x=alt.X(
            "share:Q",
            title="Share of batches",
            axis=alt.Axis(format="%", values=[0, 0.2, 0.4, 0.6, 0.8, 1]),
            scale=alt.Scale(domain=[0, 1.1]),
        ),
        y=alt.Y("policy:N", title=None, sort=[finding.policy for finding in findings], axis=_ROOM),
        yOffset=alt.YOffset("what:N", sort=kinds),
    )
    colours = alt.Scale(domain=kinds, range=[charts.COLOURS[1], charts.COLOURS[5]])
    bars = base.mark_bar(stroke="#333333", strokeWidth=0.5).encode(
        color=alt.Color(
            "what:N", scale=colours, legend=alt.Legend(title="Batches", symbolStrokeColor="#333333")
        )
    )
    words = base.mark_text(align="left", dx=4, fontSize=11).encode(
        text=alt.Text("share:Q", format=".0%")
    )
    return on_grid(alt.LayerChart(layer=[bars, words]).properties(width=430, height={"step": 19}))
