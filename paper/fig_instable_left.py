"""Two schedulers lose 14 requests/s, two carry them (Figure 1, left).

Theorem 1(b): a work-conserving scheduler is stable wherever the load is below 1. The two that are not work-conserving
waste batches, so a sequential test has to decide of them.
"""

import dataclasses

import polars as pl

import penstock as ps
from paper.item import Item
from paper.staircase import STAIRS
from penstock.checking.figures import token_figure
from penstock.show.charts import whole

RATE = 14.0
WORKLOAD = ps.Workload.poisson(RATE, prompt=129, output=112)
BUDGET = 1024
SERVER = ps.Server(STAIRS, BUDGET, convention="paper")
OTHER_BUDGETS = (256, 512, 2048, 4096)
SECONDS = 1000  # simulated, and drawn
PUBLISHED = {"fastertransformer": "unstable", "vllm-vanilla": "unstable", "orca": "stable", "sarathi": "stable"}

item = Item(__name__, __doc__)


def by_theorem(answer):
    return answer.certificate.verdict != "unknown"


def with_witness(answer):
    """Say the verdict, and what gives it."""
    if by_theorem(answer):
        return f"{answer.verdict} ({answer.certificate.theorem})"
    drift = answer.stability.drift
    return f"{answer.verdict} (test: a backlog {'grows' if drift > 0 else 'shrinks'} by {abs(drift):.1%})"


# 1. Judge each policy at each token budget.
answers = {}
for budget in (BUDGET, *OTHER_BUDGETS):
    server = dataclasses.replace(SERVER, token_budget=budget)
    answers[budget] = {name: ps.check(WORKLOAD, server.with_policy(name), until=SECONDS) for name in PUBLISHED}
rho = {budget: of["sarathi"].certificate.rho for budget, of in answers.items()}

# 2. At the budget of the figure, each policy is as the figure says.
for name, answer in answers[BUDGET].items():
    same = answer.verdict == PUBLISHED[name]
    item.claim(f"{name} at {BUDGET:,} tokens", PUBLISHED[name], with_witness(answer), same, answer.reason)

# 3. At others too, unless the load alone makes all of them unstable.
for budget in OTHER_BUDGETS:
    overloaded = rho[budget] > 1
    expected = dict.fromkeys(PUBLISHED, "unstable") if overloaded else PUBLISHED
    verdicts = {name: answer.verdict for name, answer in answers[budget].items()}
    by_verdict = {said: [name for name in verdicts if verdicts[name] == said] for said in verdicts.values()}
    measured = "; ".join(f"{said}: {', '.join(names)}" for said, names in by_verdict.items())
    if len(by_verdict) == 1:
        measured = f"all {verdicts['sarathi']}"
    because = f"the load alone is too much, so the figure cannot be made with {budget:,} tokens" if overloaded else ""
    wrong = [f"{name}: {answers[budget][name].reason}" for name in verdicts if verdicts[name] != expected[name]]
    item.claim(
        f"all at {budget:,} tokens, rho {rho[budget]:.3f}",
        "all unstable by Theorem 1(a)" if overloaded else "as in Figure 1",
        measured, not wrong, known="; ".join(wrong) or because,
    )  # fmt: skip

lost = " and ".join(f"{budget:,}" for budget in rho if rho[budget] > 1)
reason = f", since at {lost} tokens the load alone makes every policy unstable" if lost and rho[BUDGET] < 1 else ""
item.note(f"The paper gives no token budget: {BUDGET:,} (rho {rho[BUDGET]:.3f}) is assumed{reason}")
item.note("The paper gives mean lengths: constant ones are assumed, and no max batch size")

# 4. The figure.
rows = [
    {
        "token_budget": budget,
        "policy": name,
        "rho": rho[budget],
        "verdict": answer.verdict,
        "by": answer.certificate.theorem if by_theorem(answer) else "sequential test",
        "drift_of_the_test": answer.stability.drift if answer.stability.interval else None,
        "growth_of_the_run": answer.run.growth_tokens_per_s / answer.certificate.load.offered_tokens_per_s,
    }
    for budget, of in answers.items()
    for name, answer in of.items()
]
drawn = token_figure({name: answer.run for name, answer in answers[BUDGET].items()})
text = f"Uncompleted tokens in the system over time at {RATE:g} requests/s, a line per policy."
item.show(
    pl.DataFrame(rows), {text: whole(drawn.charts.values())},
    "A verdict is that of a theorem, or else of a sequential test that starts from large backlogs and is wrong with "
    "probability 1% at most. The slopes drawn decide nothing. A small backlog lies near zero on the left; the log "
    "scale on the right tells it from others.",
)  # fmt: skip
