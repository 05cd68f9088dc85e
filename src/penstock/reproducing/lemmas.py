"""Two lemmas of the paper: where they fail, with which constant one holds, and what holds instead
of the other.
"""

import random
from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple

import altair as alt
import numpy as np
import polars as pl
from pydantic import AfterValidator, Field
from tests.reference import markov_chain
from tests.reference.markov_chain import Allocation, History, State, fill

from penstock.auditing.audit import audit
from penstock.document import Section, Whole
from penstock.inputs.arrays import Ints
from penstock.reproducing.item import Claim, Different, Reproduction, Seed, Setup
from penstock.show import charts
from penstock.show.charts import on_grid
from penstock.simulation.simulate import simulate


def _odd(slack: int) -> int:
    if slack % 2 == 0:
        raise ValueError(
            f"{slack} is even, for which the burst has K = {2 * slack} and shows nobody far ahead; "
            f"give {slack - 1} or {slack + 1}"
        )
    return slack


class _Burst(Section):
    requests: Annotated[Whole, Field(ge=1, le=3000)] = 1000
    prompt: Annotated[Whole, Field(ge=1, le=20)] = 2
    output: Annotated[Whole, Field(ge=1, le=20)] = 3
    token_budget: Annotated[Whole, Field(ge=1, le=1000)] = 8


class _Departures(Section):
    slack: Annotated[Whole, Field(ge=1, le=1001), AfterValidator(_odd)] = 101
    systems: Annotated[Whole, Field(ge=1, le=10_000)] = 300
    seed: Seed = 0


class _Overtaking(Section):
    prefill: _Burst = _Burst()
    departures: _Departures = _Departures()
    policies: Different[str]


class Overtaking(NamedTuple):
    """How far requests passed older ones, beside the limits that bound it.

    Attributes
    ----------
    k
        Smallest K of K-FCFS that held, 1 at least.
    tokens
        Most prompt and output tokens of a request (v_max).
    budget
        Tokens of a batch at most (b_max).
    places
        Most places in the order of arrival by which a request left ahead of an older one.
    overtakers
        Most younger requests that left ahead of the same one.
    """

    k: int
    tokens: int
    budget: int
    places: int
    overtakers: int

    @property
    def lemma(self) -> int:
        """The lemma's K' for departures: K + v_max b_max."""
        return self.k + self.tokens * self.budget

    @property
    def most_places(self) -> int:
        """What holds instead, with an output of a token at least: 2 (K - 1) + (v_max - 1)(b_max -
        1).

        Where j leaves before the older i, all between them but the K - 1 next to either share a
        batch with i.
        """
        return 2 * (self.k - 1) + (self.tokens - 1) * (self.budget - 1)


def newest_prompt_first(state: State) -> Allocation:
    """Serve prompts, the newest first, then decodes, the oldest first: work-conserving, and K = 1
    in every state.
    """
    return fill(state, [*reversed(state.prompts), *state.decoding])


def far_ahead(slack: int) -> markov_chain.Policy:
    """Return the order that lets request 2K - 1 leave before request 0, with K the slack of K-FCFS.

    Prompts first, all but that of request 0; then requests 1 to K - 1, which may pass it without
    serving it; then request 2K - 1 beside a token of request 0: all others that are old enough to
    be owed one have left.
    """

    def rank(request: markov_chain.Request) -> int:
        i = request.index
        if request.P > 0 and i > 0:
            return 0
        if 0 < i < slack:
            return 1
        return 2 if i == 2 * slack - 1 else 3

    return lambda state: fill(state, sorted(state.requests, key=rank))


def any_order(draw: random.Random) -> markov_chain.Policy:
    """Return a policy that serves whoever is in the system in an order drawn anew for each
    batch.
    """
    return lambda state: fill(state, draw.sample(state.requests, len(state.requests)))


def fcfs_slack(history: History) -> int:
    """Return the smallest K of K-FCFS: beside j that decodes, every i <= j - K in the system gets a
    token.
    """
    left = {
        request.index: request.prompt_tokens + request.decode_tokens for request in history.requests
    }
    came = {request.index: request.arrival for request in history.requests}
    slack = 1
    for batch in history.batches:
        youngest = max((i for i, (_, decode) in batch.allocation.items() if decode), default=-1)
        unserved = (i for i in left if came[i] <= batch.start and i not in batch.allocation)
        slack = max(slack, youngest - next(unserved, youngest) + 1)
        for i, tokens in batch.allocation.items():
            left[i] -= sum(tokens)
            if not left[i]:
                del left[i]
    return slack


def prefilled(history: History) -> Ints:
    """Return the tick at which each prompt was done, by request."""
    done = np.zeros(len(history.requests), np.int64)
    for batch in history.batches:
        for i, (prefill, _) in batch.allocation.items():
            if prefill:
                done[i] = batch.end
    return done


def places(done: Ints) -> int:
    """Return the most places in the order of arrival by which a request was done ahead of an older
    one.
    """
    last = np.maximum.accumulate(done)  # of all as old
    return max(
        (j - int(np.argmax(done > done[j])) for j in np.flatnonzero(done < last).tolist()),
        default=0,
    )


def overtakers(done: Ints) -> int:
    """Return the most younger requests that were done ahead of the same one."""
    return max((int((done[i + 1 :] < done[i]).sum()) for i in range(done.size)), default=0)


def _of(
    k: int, prompt: Iterable[int], output: Iterable[int], budget: int, finish: Ints
) -> Overtaking:
    longest = max(prompt) + max(output)
    return Overtaking(max(k, 1), longest, budget, places(finish), overtakers(finish))


def _serve(
    arrival: list[int],
    prompt: list[int],
    output: list[int],
    budget: int,
    policy: markov_chain.Policy,
) -> tuple[History, Overtaking]:
    """Serve requests a tick a batch, in an order of one's own."""
    history = markov_chain.simulate(
        arrival,
        prompt,
        output,
        batch_time=lambda load: 1,
        token_budget=budget,
        policy=policy,
        convention="paper",
    )
    finish = np.array([request.finish for request in history.requests], np.int64)
    return history, _of(fcfs_slack(history), prompt, output, budget, finish)


def overtaking(setup: Setup) -> Reproduction:
    """Count who overtakes whom in two bursts, under usual policies and in random orders."""
    settings = setup.settings(_Overtaking)
    burst, slack = settings.prefill, settings.departures.slack
    lengths = [burst.prompt] * burst.requests, [burst.output] * burst.requests
    prefill, newest = _serve(
        [0] * burst.requests, *lengths, burst.token_budget, newest_prompt_first
    )
    setup.progress(0.3)
    n = 2 * slack + 1
    ahead, far = _serve([0] * n, [1] * n, [1] * n, 2, far_ahead(slack))
    setup.progress(0.4)
    usual = {name: _usual(setup, name) for name in settings.policies}
    drawn = [*_drawn(settings.departures, setup)]
    closest = max(drawn, key=lambda run: run.overtakers / run.lemma)
    everyone = [newest, far, *usual.values(), *drawn]
    claims = (
        _of_prefill(places(prefilled(prefill)), newest, burst),
        *(
            _of_departures(f"departures, {name}: most ahead of an older one", run)
            for name, run in usual.items()
        ),
        _of_departures(f"departures, {len(drawn):,} random orders: the closest", closest),
        _places(far),
        _corrected(everyone),
    )
    table = pl.concat(
        [_rows("Newest prompt first", prefill), _rows(f"Departures, K = {slack}", ahead)]
    )
    text = (
        "When each prompt was done and each request left, by order of arrival, in the two bursts."
    )
    return setup.answer(
        claims, table, {text: _orders(table)},
        "All requests of a burst arrive together. Where a curve falls, younger requests are done "
        f"before older ones. The two large marks: request {2 * slack - 1} leaves before request 0.",
        assumed=("Every batch takes one tick: batch times do not change who overtakes whom here.",),
    )  # fmt: skip


def _usual(setup: Setup, name: str) -> Overtaking:
    """Serve the scenario under a policy."""
    scenario = setup.scenario(server={"policy": name})
    run = simulate(
        scenario.workload,
        scenario.server,
        requests=scenario.requests,
        until=scenario.until,
        record="allocations",
    )
    assert run.rows is not None
    finish = np.where(run.rows.finish < 0, np.iinfo(np.int64).max, run.rows.finish)
    prompt, output = (
        run.requests[column].to_list() for column in ("prompt_tokens", "output_tokens")
    )
    return _of(audit(run).overtake_k, prompt, output, scenario.server.token_budget, finish)


def _drawn(settings: _Departures, setup: Setup) -> Iterable[Overtaking]:
    """Serve random systems in random orders."""
    draw = random.Random(settings.seed)
    for index in range(settings.systems):
        setup.progress(0.5 + index / (2 * settings.systems))
        n, longest = draw.randint(2, 60), draw.randint(1, 4)
        arrival = sorted(draw.choices(range(draw.randint(1, 40)), k=n))
        prompt, output = ([draw.randint(1, longest) for _ in range(n)] for _ in range(2))
        yield _serve(arrival, prompt, output, draw.randint(1, 6), any_order(draw))[1]


def _of_prefill(measured: int, overtaking: Overtaking, burst: _Burst) -> Claim:
    bound = overtaking.k + burst.prompt * burst.token_budget
    return Claim.judged(
        f"prefill: farthest ahead of an older one, K = {overtaking.k}",
        f"fewer than K' = {bound} places", f"{measured:,} places", measured < bound,
        f"the lemma is false for prefill: K-FCFS holds with K = {overtaking.k}, but says nothing "
        "of batches without decodes, so the newest prompts of a burst may all go first. For "
        "departures (f = d) it holds",
    )  # fmt: skip


def _of_departures(what: str, overtaking: Overtaking) -> Claim:
    return Claim.judged(
        what, f"fewer than K' = {overtaking.lemma} (K = {overtaking.k})",
        f"{overtaking.overtakers} requests", overtaking.overtakers < overtaking.lemma,
        "the count in the proof of the lemma is wrong too",
    )  # fmt: skip


def _places(far: Overtaking) -> Claim:
    return Claim.judged(
        f"departures: farthest ahead of an older one, K = {far.k}",
        f"fewer than K' = {far.lemma} places", f"{far.places:,} places", far.places < far.lemma,
        "the lemma holds for departures, with another constant: its proof counts the requests "
        f"that overtake ({far.overtakers} here), but the lemma speaks of places. The {far.k - 1} "
        "requests just before the overtaker may wait too. 2(K - 1) + (v_max - 1)(b_max - 1) places "
        "are the most",
    )  # fmt: skip


def _corrected(runs: list[Overtaking]) -> Claim:
    held = sum(run.places <= run.most_places for run in runs)
    worst = max(runs, key=lambda run: run.places - run.most_places)
    return Claim.judged(
        "departures, corrected", "proved: 2(K - 1) + (v_max - 1)(b_max - 1) places at most",
        f"in {held:,} of {len(runs):,} runs; closest: {worst.places} of {worst.most_places}",
        held == len(runs), "the correction is wrong too",
    )  # fmt: skip


def _rows(name: str, history: History) -> pl.DataFrame:
    """Return a row per request and phase: when it was done."""
    n, finish = len(history.requests), [request.finish for request in history.requests]
    return pl.DataFrame(
        {
            "burst": name,
            "request": [*range(n)] * 2,
            "done": ["prefill"] * n + ["departure"] * n,
            "at_batch": [*prefilled(history).tolist(), *finish],
        }
    )


def _pair(burst: pl.DataFrame) -> tuple[int, int]:
    """Return the oldest request and the one that gets farthest ahead of it, the last but one."""
    return 0, burst["request"].n_unique() - 2


def _orders(table: pl.DataFrame) -> Any:
    """Draw when each request was through its phases, a panel per burst."""
    names = table["burst"].unique(maintain_order=True).to_list()
    kinds = ["prefill", "departure"]
    shape = alt.Shape(
        "done:N", scale=alt.Scale(domain=kinds, range=["circle", "triangle-up"]), title="Done"
    )
    colour = alt.Color(
        "done:N", scale=alt.Scale(domain=kinds, range=list(charts.COLOURS[:2])), title="Done"
    )
    panels = []
    for name in names:
        burst = table.filter(burst=name)
        last = float(burst["at_batch"].to_numpy().max())
        # A few hundred of the requests, the one that gets far ahead among them.
        every = max(burst["request"].n_unique() // 200, 1)
        request = pl.col("request")
        thinned = burst.filter((request % every == 0) | request.is_in(_pair(burst)))
        scale = alt.Scale(domain=[0, 1.06 * last], nice=False)
        where: dict[str, Any] = {
            "x": alt.X(
                "request:Q", title="Request, in order of arrival", axis=alt.Axis(tickCount=5)
            ),
            "y": alt.Y(
                "at_batch:Q", title="Done after batch", axis=alt.Axis(tickCount=5), scale=scale
            ),
        }
        looks = where | {"color": colour, "shape": shape}
        layers = [alt.Chart(thinned).mark_point(size=14, filled=True, opacity=1).encode(**looks)]
        if name == names[-1]:  # two single points are the whole example
            oldest, overtaker = (
                burst.filter(request=request, done="departure") for request in _pair(burst)
            )
            layers.append(
                alt.Chart(pl.concat([oldest, overtaker]))
                .mark_point(size=110, filled=True, opacity=1)
                .encode(**looks)
            )
            for point, right in ((oldest, 40), (overtaker, -20)):
                text = alt.Chart(point.with_columns(label=pl.format("request {}", "request")))
                layers.append(
                    text.mark_text(dx=right, dy=-14, fontSize=12).encode(text="label:N", **where)
                )
        panels.append(alt.layer(*layers).properties(width=290, height=250, title=name))
    return on_grid(alt.hconcat(*panels))
