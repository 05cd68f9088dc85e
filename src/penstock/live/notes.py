"""What is to be minded of what is said: what happened, and what is not known."""

from penstock.live.lengths import Lengths
from penstock.live.pace import tokens_in_flight
from penstock.live.scrape import Scrape
from penstock.live.settings import Settings
from penstock.live.state import AS_SEEN, State
from penstock.system.server import Server

SILENT_S = 60.0
"""Seconds since an engine answered, for it to have no part in what arrives."""
_SAME_MEMORY = 0.02  # by which two sizes may differ without a word
_ABORTED = 4.0  # times the mean output that a request in flight has: some have gone


def notes(
    everyone: list[State], answering: list[State], lengths: Lengths | None, settings: Settings
) -> tuple[str, ...]:
    """Return the notes on engines that share what arrives, and on those that are left out."""
    # ``answering``: the engines that count. ``lengths``: of what arrives; None: not known.
    texts = [
        f"{state.history.engine}: left out of the sum, since it has not answered twice, or not "
        f"for {SILENT_S:.0f} s"
        for state in everyone
        if state not in answering
    ]
    for state in answering:
        about = "" if len(answering) == 1 else f"{state.history.engine}: "
        own = _happened(state)
        if lengths is not None:
            own += [*_of_tokens(state, lengths), *_of_pace(state)]
        texts += [about + text for text in own]
    came = any(state.arrivals.requests > 0 for state in answering)
    if came and not any(_counts_arrivals(state) for state in answering):
        texts.append(
            "arrivals are those that the engine shows: requests that clients cancel are not among "
            "them"
        )
    asked = settings.queue_limit is not None or settings.ttft_s is not None
    if asked and answering[0].server is None:
        texts.append("how long it takes until a limit is not known without a batch time")
    return tuple(texts)


def _happened(state: State) -> list[str]:
    """Return what happened, with how often."""
    texts = []
    for text, count in state.history.notes.items():
        times = "" if count == 1 else f" ({count} times)"
        texts.append(f"{text}{times}")
    return [*texts, *state.fitted_server.notes]


def _of_tokens(state: State, lengths: Lengths) -> list[str]:
    """Return what is to be minded of lengths, and of what the load is against."""
    texts = []
    if AS_SEEN in state.carried:
        why = "no batch time was given" if state.server is None else "the batch time cannot be used"
        texts.append(f"the load is against what the engine carried while requests waited: {why}")
    last = state.history.last
    if last is not None:
        texts += _of_memory(state.server, last)
    flight = None if last is None else tokens_in_flight(last)
    if last is None or flight is None:
        texts.append("tokens of requests in flight are not known, so outputs read low")
    elif flight > _ABORTED * lengths.output.value * max(last.running or 0.0, 1.0):
        texts.append(
            "more tokens came out than requests in flight can account for: clients have gone "
            "before the end, so arrivals and load may read low"
        )
    return texts


def _of_memory(server: Server | None, last: Scrape) -> list[str]:
    """Return what is to be minded of KV memory: that given is not what the engine says."""
    memory = None if server is None else server.memory
    if memory is None:
        return []
    texts = []
    if last.kv_tokens is not None and abs(last.kv_tokens / memory.tokens - 1) > _SAME_MEMORY:
        texts.append(
            f"the engine says that its KV memory holds {last.kv_tokens:,.0f} tokens, but "
            f"{memory.tokens:,} are given; the load is against those given"
        )
    if last.kv_block is not None and last.kv_block != memory.block_size:
        texts.append(
            f"the engine's KV memory has blocks of {last.kv_block:,.0f} tokens, but those given "
            f"have {memory.block_size:,}; the load is against those given"
        )
    return texts


def _of_pace(state: State) -> list[str]:
    """Return what is to be minded of batch times."""
    if state.server is None:
        return []
    if state.pace is None or state.pace.host_s is None:
        return [
            "the host's time between batches is not known: the engine counts no batches, or was "
            "never busy; the load may read low"
        ]
    host = state.pace.host_s
    if host.high < 0:
        return [
            f"batches took {-host.value * 1e3:.3g} ms less than the batch time given; check it: "
            "the load may read high"
        ]
    if host.low > state.pace.batch_s.value / 3:
        return ["more than a third of a batch is not in the batch time given; check it"]
    return []


def _counts_arrivals(state: State) -> bool:
    last = state.history.last
    return last is not None and last.arrived is not None
