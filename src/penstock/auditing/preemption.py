"""Which allocations of a request begin its prefill anew, told from the allocations alone.

A request that is preempted does its prompt and the outputs it had again. After a
decode iteration a prefill token says so by itself. In the middle of a prefill it does not: 4
tokens, then 6 of a prompt of 10 are one prefill, or one that was broken off and the beginning of
another. What came after decides: where the prefill ended, when the request finished, how often it
was preempted. All histories that explain that are followed, and what they have in common is
certain.
"""

from typing import NamedTuple

from penstock.simulation.rows import Rows
from penstock.system.server import Server


class Story(NamedTuple):
    """What became of one request: its record, and how its server treats preempted ones."""

    prompt: int
    total: int  # tokens processed when it finishes
    extra: int  # outputs that the end of a prefill yields
    ahead: bool  # whether batches are composed a step ahead
    holds_prefill: bool  # memory for the whole prefill is held from its first token on
    first_token: int
    finish: int
    preemptions: int


class Account(NamedTuple):
    """A history that explains a request's allocations, and what all such histories agree on."""

    again: list[bool]  # which allocations begin anew
    stored: list[int]  # tokens, at least, that it has memory for during each
    stays: list[bool]  # whether it surely keeps that until its next allocation


class _State(NamedTuple):
    """After an allocation: tokens of this prefill (0: it decodes), tokens processed, times begun
    anew, first output.
    """

    target: int
    done: int
    times: int
    first: int  # the allocation that yielded the first output; -1: none yet

    def first_by(self, allocation: int) -> int:
        """Return the allocation that yielded the first output, once this one yields an output."""
        if self.first >= 0:
            return self.first
        return allocation


def story(server: Server, rows: Rows, request: int) -> Story:
    """Return what the record says of a request."""
    extra = server.outputs_of_prefill
    prompt, output = int(rows.prompt_tokens[request]), int(rows.output_tokens[request])
    return Story(
        prompt=prompt,
        total=prompt + output - extra,
        extra=extra,
        ahead=server.policy.batching.ahead,
        holds_prefill=server.holds == "prefill",
        first_token=int(rows.first_token[request]),
        finish=int(rows.finish[request]),
        preemptions=int(rows.preempted[request]),
    )


def recomputes(server: Server) -> bool:
    """Whether requests may be preempted and computed again."""
    return server.memory is not None and server.holds != "completion"


def explain(
    record: Story, prefill: list[int], decode: list[int], ends: list[int]
) -> Account | None:
    """Find the histories that explain a request's allocations, in order; None: there is none."""
    # Forward, all states that its allocations may have led to, one layer after each of them.
    start = _State(record.prompt, 0, 0, -1)
    layers: list[dict[_State, list[tuple[_State, bool]]]] = [{start: []}]
    for j, (x, y) in enumerate(zip(prefill, decode, strict=True)):
        layer: dict[_State, list[tuple[_State, bool]]] = {}
        for state in layers[-1]:
            for following, again in _steps(record, state, x, y, j):
                if following.times > record.preemptions or (
                    following.first == j and ends[j] != record.first_token
                ):
                    continue
                layer.setdefault(following, []).append((state, again))
        layers.append(layer)

    # Backward, from the ends that fit the record: what all ways there have in common.
    possible = {state for state in layers[-1] if _explains(record, state, ends)}
    if not possible:
        return None
    chosen = next(state for state in layers[-1] if state in possible)
    anew: list[bool] = []
    stored: list[int] = []
    stays = [True]
    for layer in reversed(layers[1:]):
        stored.append(min(_tokens_held(record, state) for state in possible))
        came = [(state, step) for state in possible for step in layer[state]]
        stays.append(not any(step[1] for _, step in came))
        chosen, again = layer[chosen][0]
        anew.append(again)
        possible = {step[0] for _, step in came}
    # Before the first there is nothing to keep.
    return Account(anew[::-1], stored[::-1], stays[:-1][::-1])


def at_once(record: Story, prefill: list[int], decode: list[int]) -> Account:
    """Return a history for a senseless record: a request begins anew where nothing else can be."""
    target, prefilled, done = record.prompt, 0, 0
    again: list[bool] = []
    stored: list[int] = []
    for x, y in zip(prefill, decode, strict=True):
        anew = x > 0 and prefilled >= target and done < record.total
        if anew:
            target, prefilled, done = done + record.extra, 0, 0
        again.append(anew)
        prefilled, done = prefilled + x, done + x + y
        stored.append(done)
    return Account(again, stored, [not anew for anew in again[1:]] + [True])


def _steps(record: Story, state: _State, x: int, y: int, j: int) -> list[tuple[_State, bool]]:
    """Return what x prefill and y decode tokens can have led to, and whether it began anew."""
    decodes = state.target == 0
    if x == 0:
        if y != 1 or not decodes or state.done >= record.total:
            return []
        return [(_State(0, state.done + 1, state.times, state.first_by(j)), False)]
    if y or x < 0 or (decodes and state.done >= record.total):
        return []
    # It goes on with its prefill, or begins anew: what it decoded is then part of the prompt.
    steps, target = [], state.target
    if decodes:
        target = state.done + record.extra
    else:
        steps.append((_prefilled(record, state, target, state.done + x, state.times, j), False))
    if state.done > 0:
        steps.append((_prefilled(record, state, target, x, state.times + 1, j), True))
    return [(after, again) for after, again in steps if after.done <= (after.target or after.done)]


def _prefilled(record: Story, before: _State, target: int, done: int, times: int, j: int) -> _State:
    """Return the state after prefill tokens; if they were the last of them, it now decodes."""
    if done != target:
        return _State(target, done, times, before.first)
    first = before.first
    if record.extra:
        first = before.first_by(j)
    return _State(0, done, times, first)


def _explains(record: Story, state: _State, ends: list[int]) -> bool:
    """Whether a history with this end fits the recorded first token, finish and preemptions."""
    first = finish = -1
    if state.first >= 0:
        first = ends[state.first]
    finished = state.target == 0 and state.done == record.total
    if finished:
        finish = ends[-1]
    times = {record.preemptions}
    if record.ahead or not finished:
        # It may wait once more; a step ahead, perhaps only for its last token.
        times.add(record.preemptions - 1)
    return (first, finish) == (record.first_token, record.finish) and state.times in times


def _tokens_held(record: Story, state: _State) -> int:
    if record.holds_prefill:
        return max(state.target, state.done)
    return state.done
