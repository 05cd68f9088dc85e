"""Which schedulers are work-conserving, by audit (Table 1), and the batches in which two are not
(Section 4).
"""

import dataclasses
import itertools
from typing import Any, Literal, NamedTuple

import altair as alt
import numpy as np
import polars as pl
from pydantic import Field

from penstock.auditing.audit import audit
from penstock.checking.charts import first_batches, gantt
from penstock.document import Section, Whole, parsed
from penstock.errors import InputError
from penstock.reproducing.claims import Claim, Reproduction
from penstock.reproducing.looks import on_grid
from penstock.reproducing.setup import Different, Setup
from penstock.reproducing.small_systems import (
    Random,
    Small,
    System,
    Waiting,
    random_systems,
    small_systems,
    waiting,
)
from penstock.scenario.server import ServerSection
from penstock.show import charts
from penstock.show.page import Table
from penstock.simulation.run import Run
from penstock.simulation.simulate import simulate
from penstock.system.policies import resolve
from penstock.system.scheduler import Scheduler
from penstock.system.server import Convention
from penstock.words import counted
from penstock.workload.workload import Workload


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
            f"{counted(finding.systems, 'system')} {name} "
            f"had no batch {lacks}, so nothing can be said of it; raise random.systems, or "
            "random.requests and "
            "random.tokens"
        )
    return finding


def table(setup: Setup) -> Reproduction:
    """Audit each policy in small and random systems, and compare it with Table 1."""
    settings = setup.settings(_TableSettings, sections=())
    if not settings.policies:
        raise InputError(
            "reproduce.policies is empty, so there is nothing to audit; name a policy such as "
            "sarathi"
        )
    findings = []
    for index, name in enumerate(settings.policies):
        setup.progress(index / len(settings.policies))
        findings.append(search(name, resolve(name, folder=setup.folder), settings))
    claims = tuple(
        claim for finding in findings if finding.policy in PUBLISHED for claim in _claims(finding)
    )
    columns = (
        "policy",
        "systems",
        "batches",
        "could_be_full",
        "left_short",
        "both_waited",
        "mixed",
        "priority",
        "cuts",
    )
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
        what = f"{row.name}: strong, min(supply, b_max)"
        reason = _refuted(finding.strong)
        claims.append(
            Claim(
                what,
                "Yes, for Appendix C",
                _verdict(finding.strong),
                finding.strong is None,
                reason,
            )
        )
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


_ROOM = alt.Axis(labelLimit=300, minExtent=130)
"""Of the names of policies, also where a browser's letters are wider than those the figure was laid
out with.
"""


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


class _Request(Section):
    at_s: float = Field(ge=0, le=1e6)
    prompt: Whole = Field(ge=1, le=1000)
    output: Whole = Field(ge=1, le=1000)


class _FigureSettings(Section):
    policies: Different[str]
    requests: list[_Request] = Field(max_length=50)


SHORT = {"vllm-vanilla": [2], "fastertransformer": [2, 3, 4], "orca": [], "sarathi": []}
"""Batches, counted from 1, that are not work-conserving: the figure's two, and by Table 1 those
that it leaves out.
"""

_DRAWN = ("vllm-vanilla", "fastertransformer")
"""Those that the paper's figure shows."""


def figure(setup: Setup) -> Reproduction:
    """Serve a few requests under each policy, and shade the batches that are left short."""
    settings = setup.settings(_FigureSettings, sections=("server",))
    if not settings.policies or not settings.requests:
        raise InputError(
            "reproduce.policies or reproduce.requests is empty, so nothing can be drawn; give "
            "some of each"
        )
    server = parsed(
        setup.document.get("server"), ServerSection, "server", "`batch_time`, `token_budget`"
    ).build(setup.folder)
    if server.max_batch_size is not None:
        raise InputError(
            f"server.max_batch_size is {server.max_batch_size}, but the paper defines work "
            "conservation without one; "
            "leave it out"
        )
    if server.convention != "paper":
        raise InputError(
            f"server.convention is {server.convention}, in which the first output token needs no "
            "batch, but the paper "
            "counts one for each; give convention: paper"
        )
    arrival, prompt, output = (
        [getattr(r, name) for r in sorted(settings.requests, key=lambda r: r.at_s)]
        for name in ("at_s", "prompt", "output")
    )
    # the same few requests under each policy, each batch beside what waited before it
    workload = Workload.from_arrays(arrival, prompt, output)
    claims, rows, panels = [], [], []
    for index, name in enumerate(settings.policies):
        setup.progress(index / len(settings.policies))
        chosen = dataclasses.replace(server, policy=resolve(name, folder=setup.folder))
        run = simulate(workload, chosen, record="allocations")
        table = _batches(name, run, prompt, output)
        rows.append(table)
        panels.append(_marked(run, table, name))
        if name in SHORT:
            short, breaches = table.filter("short")["batch"].to_list(), audit(run).paper.breaches
            same = short == SHORT[name] and breaches == len(short)
            reason = (
                ""
                if same
                else "these requests and this token budget are not the paper's, which gives no "
                "numbers"
            )
            published = _numbers(SHORT[name]) + (
                "" if name in _DRAWN else " (by Table 1; not in the figure)"
            )
            claims.append(
                Claim(f"{name}: batches left short", published, _numbers(short), same, reason)
            )
    text = (
        f"Batches of {', '.join(settings.policies)} over time, each request's tokens by phase; "
        "short batches shaded."
    )
    together = alt.vconcat(*panels).resolve_scale(x="shared")
    return setup.answer(
        claims, pl.concat(rows),
        {text: together.configure_axis(gridColor=charts.GRID)},
        "Above each batch its number. Shaded: a batch with fewer tokens than the budget although "
        "as many waited. "
        "There, 2: 6/8 says that batch 2 has 6 of the 8 tokens that it could have.",
        assumed=(
            f"The paper draws its example without numbers: {counted(len(prompt), 'request')} and "
            "a token budget of "
            f"{server.token_budget} were chosen here.",
        ),
    )  # fmt: skip


def _numbers(batches: list[int]) -> str:
    return ", ".join(map(str, batches)) or "none"


def _batches(name: str, run: Run, prompt: list[int], output: list[int]) -> pl.DataFrame:
    """Return a row per batch, counted from 1: what it has, what waited, and whether it is short."""
    assert run.rows is not None
    budget = run.server.token_budget
    s = waiting(run, run.rows.arrival.tolist(), prompt, output)
    return run.batches.select(
        policy=pl.lit(name),
        batch=pl.int_range(1, s.load.size + 1),
        start_s=pl.col("start_ns") * 1e-9,
        end_s=(pl.col("start_ns") + pl.col("duration_ns")) * 1e-9,
        prefill_tokens="prefill_tokens",
        decode_tokens="decode_tokens",
        prompt_tokens_waiting=pl.Series(s.prompt_tokens),
        decodes_waiting=pl.Series(s.decodes),
        token_budget=pl.lit(budget),
        short=pl.Series(s.short(budget)),
    )


def _marked(run: Run, table: pl.DataFrame, name: str) -> alt.LayerChart:
    """Draw the batches of a run, shade those that are short, and number all."""
    drawn = first_batches(run)["batch"] + 1
    could = pl.min_horizontal(
        pl.col("prompt_tokens_waiting") + pl.col("decodes_waiting"), "token_budget"
    )
    has = pl.col("prefill_tokens") + pl.col("decode_tokens")
    table = table.filter(pl.col("batch").is_in(drawn.implode())).with_columns(
        middle_s=(pl.col("start_s") + pl.col("end_s")) / 2,
        words=pl.when("short")
        .then(pl.format("{}: {}/{}", "batch", has, could))
        .otherwise(pl.col("batch").cast(pl.String)),
    )
    short = alt.Chart(table.filter("short")).mark_rect(color=charts.COLOURS[1], opacity=0.3)
    over = alt.Chart(table).mark_text(baseline="bottom", dy=-4, fontSize=11)
    chart = gantt(run)
    layers: list[Any] = [
        short.encode(x="start_s:Q", x2="end_s:Q"),
        *chart.layer,
        over.encode(x="middle_s:Q", y=alt.value(0), text="words:N"),
    ]
    titled: alt.LayerChart = alt.LayerChart(layer=layers).properties(
        width=480, height={"step": 30}, title=alt.TitleParams(name, anchor="start", offset=14)
    )
    return titled
