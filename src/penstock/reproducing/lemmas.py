"""Two lemmas of the paper: where they fail, with which constant one holds, and what holds instead of the other."""

import dataclasses
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import altair as alt
import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import AfterValidator, Field

from penstock.auditing.audit import audit
from penstock.document import Section, Whole
from penstock.errors import InputError
from penstock.reference import markov_chain
from penstock.reference.markov_chain import Allocation, History, State, fill
from penstock.reproducing.asked import Asked, Different, Seed
from penstock.reproducing.catalogue import Item
from penstock.reproducing.claims import Claim, Reproduction
from penstock.scenario.scenario import Scenario
from penstock.show import charts
from penstock.simulation.run import Run
from penstock.simulation.simulate import simulate
from penstock.system.batch_time import Affine
from penstock.system.network import Network
from penstock.system.pool import Pool
from penstock.theory.network.certificate import NetworkCertificate, certify_network
from penstock.workload.stage import Stage
from penstock.workload.workflow import Workflow
from penstock.workload.workload import Workload

Ints = npt.NDArray[np.int64]

_MOST_POINTS = 1_200


def _odd(slack: int) -> int:
    if slack % 2 == 0:
        raise ValueError(
            f"{slack} is even, for which the burst has K = {2 * slack} and shows nobody far ahead; give {slack - 1} or "
            f"{slack + 1}"
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
        """What holds instead, with an output of a token at least: 2 (K - 1) + (v_max - 1)(b_max - 1).

        Where j leaves before the older i, all between them but the K - 1 next to either share a batch with i.
        """
        return 2 * (self.k - 1) + (self.tokens - 1) * (self.budget - 1)


def newest_prompt_first(state: State) -> Allocation:
    """Serve prompts, the newest first, then decodes, the oldest first: work-conserving, and K = 1 in every state."""
    return fill(state, [*reversed(state.prompts), *state.decoding])


def far_ahead(slack: int) -> markov_chain.Policy:
    """Return the order that lets request 2K - 1 leave before request 0, with K the slack of K-FCFS.

    Prompts first, all but that of request 0; then requests 1 to K - 1, which may pass it without serving it; then
    request 2K - 1 beside a token of request 0: all others that are old enough to be owed one have left.
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
    """Return a policy that serves whoever is in the system in an order drawn anew for each batch."""
    return lambda state: fill(state, draw.sample(state.requests, len(state.requests)))


def fcfs_slack(history: History) -> int:
    """Return the smallest K of K-FCFS: beside j that decodes, every i <= j - K in the system gets a token."""
    left = {request.index: request.prompt_tokens + request.decode_tokens for request in history.requests}
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
    """Return the most places in the order of arrival by which a request was done ahead of an older one."""
    last = np.maximum.accumulate(done)  # of all as old
    return max((j - int(np.argmax(done > done[j])) for j in np.flatnonzero(done < last).tolist()), default=0)


def overtakers(done: Ints) -> int:
    """Return the most younger requests that were done ahead of the same one."""
    return max((int((done[i + 1 :] < done[i]).sum()) for i in range(done.size)), default=0)


def _of(k: int, prompt: Iterable[int], output: Iterable[int], budget: int, finish: Ints) -> Overtaking:
    return Overtaking(max(k, 1), max(prompt) + max(output), budget, places(finish), overtakers(finish))


def _serve(
    arrival: list[int], prompt: list[int], output: list[int], budget: int, policy: markov_chain.Policy
) -> tuple[History, Overtaking]:
    """Serve requests a tick a batch, in an order of one's own."""
    history = markov_chain.simulate(
        arrival, prompt, output, batch_time=lambda load: 1, token_budget=budget, policy=policy, convention="paper"
    )
    finish = np.array([request.finish for request in history.requests], np.int64)
    return history, _of(fcfs_slack(history), prompt, output, budget, finish)


def _overtaking(asked: Asked, item: Item) -> Reproduction:
    settings = asked.settings(_Overtaking)
    burst, slack = settings.prefill, settings.departures.slack
    given = [burst.prompt] * burst.requests, [burst.output] * burst.requests
    prefill, newest = _serve([0] * burst.requests, *given, burst.token_budget, newest_prompt_first)
    asked.progress(0.3)
    n = 2 * slack + 1
    ahead, far = _serve([0] * n, [1] * n, [1] * n, 2, far_ahead(slack))
    asked.progress(0.4)
    usual = {name: _usual(asked, name) for name in settings.policies}
    drawn = [*_drawn(settings.departures, asked)]
    everyone = [newest, far, *usual.values(), *drawn]
    claims = (
        _of_prefill(places(prefilled(prefill)), newest, burst),
        *(_of_departures(f"departures, {name}: most ahead of an older one", found) for name, found in usual.items()),
        _of_departures(f"departures, {len(drawn):,} random orders: the closest", _worst(drawn)),
        _places(far),
        _corrected(everyone),
    )
    table = pl.concat([_rows("Newest prompt first", prefill), _rows(f"Departures, K = {slack}", ahead)])
    text = "When each prompt was done and each request left, by order of arrival, in the two bursts."
    return Reproduction(
        item.name, item.title, item.source, claims, table, {text: _orders(table)},
        "All requests of a burst arrive together. Where a curve falls, younger requests are done before older ones. "
        f"The two large marks: request {2 * slack - 1} leaves before request 0.",
        assumed=("Every batch takes one tick: batch times do not change who overtakes whom here.",),
    )  # fmt: skip


def _usual(asked: Asked, name: str) -> Overtaking:
    """Serve the scenario under a policy."""
    given = asked.scenario(server={"policy": name})
    run = simulate(given.workload, given.server, requests=given.requests, until=given.until, record="allocations")
    assert run.rows is not None
    finish = np.where(run.rows.finish < 0, np.iinfo(np.int64).max, run.rows.finish)
    prompt, output = (run.requests[column].to_list() for column in ("prompt_tokens", "output_tokens"))
    return _of(audit(run).overtake_k, prompt, output, given.server.token_budget, finish)


def _drawn(settings: _Departures, asked: Asked) -> Iterable[Overtaking]:
    """Serve random systems in random orders."""
    draw = random.Random(settings.seed)
    for place in range(settings.systems):
        asked.progress(0.5 + place / (2 * settings.systems))
        n, longest = draw.randint(2, 60), draw.randint(1, 4)
        arrival = sorted(draw.choices(range(draw.randint(1, 40)), k=n))
        prompt, output = ([draw.randint(1, longest) for _ in range(n)] for _ in range(2))
        yield _serve(arrival, prompt, output, draw.randint(1, 6), any_order(draw))[1]


def _worst(found: list[Overtaking]) -> Overtaking:
    return max(found, key=lambda each: each.overtakers / each.lemma)


def _of_prefill(measured: int, found: Overtaking, burst: _Burst) -> Claim:
    bound = found.k + burst.prompt * burst.token_budget
    same = measured < bound
    why = (
        f"the lemma is false for prefill: K-FCFS holds with K = {found.k}, but says nothing of batches without "
        "decodes, so the newest prompts of a burst may all go first. For departures (f = d) it holds"
    )
    what = f"prefill: farthest ahead of an older one, K = {found.k}"
    return Claim(what, f"fewer than K' = {bound} places", f"{measured:,} places", same, "" if same else why)


def _of_departures(what: str, found: Overtaking) -> Claim:
    said = f"fewer than K' = {found.lemma} (K = {found.k})"
    same = found.overtakers < found.lemma
    return Claim(
        what,
        said,
        f"{found.overtakers} requests",
        same,
        "" if same else "the count in the proof of the lemma is wrong too",
    )


def _places(far: Overtaking) -> Claim:
    same = far.places < far.lemma
    why = (
        "the lemma holds for departures, with another constant: its proof counts the requests that overtake "
        f"({far.overtakers} here), but the lemma speaks of places. The {far.k - 1} requests just before the overtaker "
        "may wait too. 2(K - 1) + (v_max - 1)(b_max - 1) places are the most"
    )
    what = f"departures: farthest ahead of an older one, K = {far.k}"
    return Claim(what, f"fewer than K' = {far.lemma} places", f"{far.places:,} places", same, "" if same else why)


def _corrected(found: list[Overtaking]) -> Claim:
    held = sum(each.places <= each.most_places for each in found)
    worst = max(found, key=lambda each: each.places - each.most_places)
    said = "proved: 2(K - 1) + (v_max - 1)(b_max - 1) places at most"
    measured = f"in {held:,} of {len(found):,} runs; closest: {worst.places} of {worst.most_places}"
    same = held == len(found)
    return Claim("departures, corrected", said, measured, same, "" if same else "the correction is wrong too")


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


def _thinned(burst: pl.DataFrame) -> pl.DataFrame:
    """Return a few hundred of the requests, the one that gets far ahead among them: the last but one."""
    n = burst["request"].n_unique()
    return burst.filter((pl.col("request") % max(n // 200, 1) == 0) | pl.col("request").is_in(_pair(burst)))


def _last(table: pl.DataFrame, name: str) -> float:
    """Return the last batch of a burst."""
    return float(table.filter(burst=name)["at_batch"].to_numpy().max())


def _orders(table: pl.DataFrame) -> alt.HConcatChart:
    """Draw when each request was through its phases, a panel per burst."""
    names = table["burst"].unique(maintain_order=True).to_list()
    kinds = ["prefill", "departure"]
    shape = alt.Shape("done:N", scale=alt.Scale(domain=kinds, range=["circle", "triangle-up"]), title="Done")
    colour = alt.Color("done:N", scale=alt.Scale(domain=kinds, range=list(charts.COLOURS[:2])), title="Done")
    panels = []
    for name in names:
        burst = table.filter(pl.col("burst") == name)
        scale = alt.Scale(domain=[0, 1.06 * _last(table, name)], nice=False)
        where: dict[str, Any] = {
            "x": alt.X("request:Q", title="Request, in order of arrival", axis=alt.Axis(tickCount=5)),
            "y": alt.Y("at_batch:Q", title="Done after batch", axis=alt.Axis(tickCount=5), scale=scale),
        }
        looks = where | {"color": colour, "shape": shape}
        layers = [alt.Chart(_thinned(burst)).mark_point(size=14, filled=True, opacity=1).encode(**looks)]
        if name == names[-1]:  # two single points are the whole example
            oldest, overtaker = (burst.filter(request=request, done="departure") for request in _pair(burst))
            layers.append(
                alt.Chart(pl.concat([oldest, overtaker])).mark_point(size=110, filled=True, opacity=1).encode(**looks)
            )
            for point, right in ((oldest, 40), (overtaker, -20)):
                text = alt.Chart(point.with_columns(label=pl.format("request {}", "request")))
                layers.append(text.mark_text(dx=right, dy=-14, fontSize=12).encode(text="label:N", **where))
        panels.append(alt.layer(*layers).properties(width=290, height=250, title=name))
    chart: alt.HConcatChart = alt.hconcat(*panels).configure_axis(gridColor=charts.GRID)
    return chart


class _Join(Section):
    batch_ms: list[Annotated[float, Field(ge=0.001, le=1e6)]] = Field(max_length=20)
    shown_s: float = Field(2000.0, gt=0, le=1e9)


class Joined(NamedTuple):
    """A fork-join, just after each finish of a branch: its join buffers and queues, and the orders of completion.

    Attributes
    ----------
    time_s
        Of the finishes.
    buffers
        Branches that are done and wait, in all buffers (the sum of J_l).
    queue
        Requests at the fullest server of the fork (the largest Q_l).
    apart
        By how many places in the order of completion any two branches of a job differ, at most.
    k
        Smallest K of K-FCFS that held at all servers, 1 at least.
    """

    time_s: npt.NDArray[np.float64]
    buffers: Ints
    queue: Ints
    apart: int
    k: int


def fork_join(workload: Workload, runs: Callable[[int, Workload], Run], forks: int) -> Joined:
    """Serve jobs at server 0, then their branches at each server of the fork; see `Joined`.

    The network feeds forward, so its servers can be simulated one after the other.
    """
    first = runs(0, workload)
    ready = _finishes(first)
    order = np.argsort(ready, kind="stable")
    ones = np.ones(ready.size, np.int64)
    branches = [
        runs(place, Workload.from_arrays(ready[order] * first.tick_s, ones, ones)) for place in range(1, forks + 1)
    ]
    came = ready[order]
    done = [_finishes(run) + came[0] for run in branches]
    instants = np.unique(np.concatenate(done))

    def count(times: Ints) -> Ints:
        return np.searchsorted(np.sort(times), instants, side="right")

    released = count(np.max(done, axis=0))
    buffers = np.sum([count(times) - released for times in done], axis=0)
    queue = np.max([count(came) - count(times) for times in done], axis=0)
    places = np.array([np.argsort(np.argsort(times, kind="stable"), kind="stable") for times in done])
    apart = int(np.ptp(places, axis=0).max())
    k = max(1, *(audit(run).overtake_k for run in (first, *branches)))
    return Joined(instants * first.tick_s, buffers, queue, apart, k)


def _network(given: Scenario, batch_ms: Sequence[float]) -> Network:
    """Return the same as a network: q_1, the servers of the fork, and a last one, as fast as the first, at the join."""
    names = [f"q_{place}" for place in range(1, len(batch_ms) + 2)]
    models = [Affine(c=ms / 1e3, a=0.0) for ms in (*batch_ms, batch_ms[0])]
    pools = {
        name: Pool(dataclasses.replace(given.server, batch_time=model))
        for name, model in zip(names, models, strict=True)
    }
    first, *forks, last = names
    stages = {
        first: Stage(first, 1, 1, then=forks),
        **{name: Stage(name, 1, 1, then=last) for name in forks},
        last: Stage(last, 1, 1, join=True),
    }
    return Network(pools, [Workflow("job", given.workload, stages)])


def _finishes(run: Run) -> Ints:
    assert run.rows is not None
    return run.rows.finish


def _server_of_joins(asked: Asked) -> Scenario:
    """Return the scenario, once nothing in its server is refused; batch times are set by server."""
    server = asked.document.get("server")
    dropped = [key for key in ("batch_time", "hardware") if isinstance(server, Mapping) and key in server]
    if dropped:
        raise InputError(
            f"server.{dropped[0]} would change nothing, since reproduce.batch_ms says how long a batch of each server "
            "takes; leave it out"
        )
    given = asked.scenario(server={"batch_time": {"affine": {"c_ms": 1000, "a_ms_per_token": 0}}})
    if given.server.policy.work_conserving is not True:
        raise InputError(
            f"server.policy is {given.server.policy.name}, which is not known to be work-conserving, as the lemma and "
            "its theorem ask; give one that is, such as sarathi"
        )
    if given.server.convention != "paper":
        raise InputError(
            f"server.convention is {given.server.convention}, in which a request of one output token has no decode, "
            "but the lemma counts one; give convention: paper"
        )
    if given.server.max_batch_size is not None or given.server.memory is not None:
        raise InputError(
            "server has a max batch size or KV memory, which the lemma and the loads here leave out; leave both out"
        )
    return given


def _join(asked: Asked, item: Item) -> Reproduction:
    settings = asked.settings(_Join)
    forks = len(settings.batch_ms) - 1
    if forks < 2:
        raise InputError(
            f"reproduce.batch_ms has {len(settings.batch_ms)} values, but a fork and join has three servers at least: "
            "q_1 and two of the fork; give a time for each"
        )
    given = _server_of_joins(asked)
    if given.until is not None or given.workload.mean_prompt != 1 or given.workload.mean_output != 1:
        raise InputError(
            "lemma-join serves requests of one prompt and one output token, to the last; set prompt and output to 1, "
            "and give simulate.requests"
        )
    loads = [2 * given.workload.rate * ms / 1e3 / given.server.token_budget for ms in settings.batch_ms]
    if max(loads) >= 1:
        raise InputError(
            f"a server has load {max(loads):.3g}, so its queue and the join buffers grow for ever; lower "
            "workload.rate or reproduce.batch_ms until each load is below 1"
        )
    asked.progress(0.1)

    def run(place: int, workload: Workload) -> Run:
        server = dataclasses.replace(given.server, batch_time=Affine(c=settings.batch_ms[place] / 1e3, a=0.0))
        found = simulate(workload, server, requests=given.requests, record="allocations")
        asked.progress((place + 1) / (forks + 2))
        return found

    found = fork_join(given.workload, run, forks)
    k_prime = found.k + 2 * given.server.token_budget
    bound = 2 * k_prime * forks
    corrected = (forks - 1) * (found.queue + 2 * k_prime)
    certified = certify_network(_network(given, settings.batch_ms))
    claims = _of_joins(found, k_prime, bound, corrected, certified, max(loads))
    table = pl.DataFrame(
        {
            "time_s": found.time_s,
            "join_buffer": found.buffers,
            "lemma": [bound] * found.buffers.size,
            "corrected": corrected,
        }
    )
    middle = found.time_s[int(found.buffers.argmax())]
    shown = table.filter((pl.col("time_s") - middle).abs() <= settings.shown_s / 2)
    text = "Join buffers over time, with the bound of the lemma and the corrected one."
    return Reproduction(
        item.name, item.title, item.source, claims, shown, {text: _buffers(shown)},
        f"{settings.shown_s:g} s about the largest of {found.time_s[-1]:,.0f} s: the join buffer, the lemma's bound, "
        "and the corrected one.",
        assumed=(
            f"Loads {', '.join(f'{load:.3g}' for load in loads)} of q_1 and of the fork; K-FCFS held with "
            f"K = {found.k}, so K' = K + v_max b_max = {k_prime}. How large the buffers get depends on the seed and on "
            "the number of jobs.",
        ),
    )  # fmt: skip


def _of_joins(
    found: Joined, k_prime: int, bound: int, corrected: Ints, theorem: NetworkCertificate, load: float
) -> tuple[Claim, ...]:
    largest, within = int(found.buffers.max()), bool((found.buffers <= corrected).all())
    same = largest <= bound
    why = (
        "the lemma is false: its proof bounds the order in which branches end, not when. Branches that the fast server "
        f"has done wait for the queue of the slow one, which reaches {found.queue.max():,} here"
    )
    certain = theorem.verdict == "stable"
    orders = found.apart <= 2 * k_prime
    slack = int((corrected - found.buffers).min())
    measured = f"{'holds' if within else 'fails'} at {found.buffers.size:,} instants, by {slack:,} at least"
    return (
        Claim("join buffers, sum J", f"at most 2K'(k - 1) = {bound}", f"{largest:,}", same, "" if same else why),
        Claim(
            "places between completions of a job's branches", f"at most 2K' = {2 * k_prime}", f"{found.apart}", orders,
            "" if orders else "the lemma is false: bounded overtaking fails here",
        ),
        Claim(
            "join buffers, corrected", "(n_fork - 1)(max Q_l + 2K') at most", measured, within,
            "" if within else "the corrected bound is wrong too",
        ),
        Claim(
            f"thm:fork-join, load {load:.3g}", "stable", theorem.verdict, certain,
            "the theorem does not need the lemma: in the fluid limit the buffers are empty once the forks are"
            if certain else theorem.reason,
        ),
    )  # fmt: skip


def _buffers(shown: pl.DataFrame) -> alt.Chart:
    """Draw the join buffers and both bounds as steps over time, thinned to the largest buffers."""
    bins = (pl.int_range(pl.len()) * _MOST_POINTS // pl.len()).alias("bin")
    shown = shown.group_by(bins, maintain_order=True).agg(pl.all().sort_by("join_buffer").last()).drop("bin")
    names = {"join_buffer": "join buffers", "lemma": "lemma's bound", "corrected": "corrected bound"}
    long = shown.rename(names).unpivot(index="time_s", variable_name="line", value_name="branches")
    kinds = list(names.values())
    dashes = [list(dash) for dash in charts.DASHES[:3]]
    chart: alt.Chart = (
        alt.Chart(long)
        .mark_line(interpolate="step-after", strokeWidth=1.6)
        .encode(
            x=alt.X("time_s:Q", title="Time (s)", axis=alt.Axis(tickCount=8), scale=alt.Scale(zero=False, nice=False)),
            y=alt.Y("branches:Q", title="Branches that wait at the join"),
            color=alt.Color("line:N", title=None, scale=alt.Scale(domain=kinds, range=list(charts.COLOURS[:3]))),
            strokeDash=alt.StrokeDash("line:N", title=None, scale=alt.Scale(domain=kinds, range=dashes)),
        )
        .properties(width=620, height=280)
        .configure_axis(gridColor=charts.GRID)
    )
    return chart


RUN: dict[str, Callable[[Asked, Item], Reproduction]] = {"lemma-overtaking": _overtaking, "lemma-join": _join}
