"""What the user should know of a server beside the verdict: of the load, the limits, and KV memory
that nobody gave.
"""

import math

from penstock.checking.verdict import verdict
from penstock.errors import InputError
from penstock.simulation.quick import MemoryEstimate
from penstock.system.server import Server, with_kv_tokens
from penstock.theory.kv_blocks import drawn, reuses
from penstock.theory.load import Load
from penstock.workload.workload import Workload

_LOSS_WORTH_A_WARNING = 0.01
_SOME = 0.01  # preemptions of a request
# of tests with other KV memory: nearer to the limit its tokens matter less than what is unknown
_RESOLUTION = 0.05
_COARSE = 4.0  # from one size to the next, until the verdict turns
_CLOSE = 1.25  # of the two sizes between which it turns


def memory_warnings(
    load: Load, workload: Workload, server: Server, full: MemoryEstimate | None
) -> list[str]:
    """Return what KV memory does that neither load nor bounds say; ``full`` is the estimate."""
    if server.memory is None:
        return []
    warnings = []
    kept = load.work.share
    if kept < 1:
        warnings.append(
            f"{1 - kept:.2%} of the requests never fit and are dropped; nothing here counts them"
        )
    if reuses(workload, server):
        warnings.append(
            "prompts may be found in the prefix cache: the load counts what was computed in this "
            "run, bounds what is computed if everything is kept; the test goes on with the "
            "recording as if its prompts were new ones each time"
        )
    if full is not None:
        low, high = full.rate_interval
        again = f", each preempted {full.preemptions:.2g} times" if full.preemptions > _SOME else ""
        remedy = "; fewer running requests or a watermark may carry more" if again else ""
        warnings.append(
            f"once its KV memory is full the server carries about {full.rate:,.4g} requests/s "
            f"({low:,.4g} to {high:,.4g} by simulation), with {full.running:,.0f} "
            f"running{again}{remedy}"
        )
    return warnings


def load_warnings(load: Load, server: Server) -> list[str]:
    """Say whether limits suit the policy, and what they waste where token load alone decides."""
    warnings = [server.scope_warning] if server.scope_warning else []
    return warnings + ([] if any(load.attention_s) else wasteful_budget(server))


def wasteful_budget(server: Server, replicas: int = 1, pool: str = "") -> list[str]:
    """Say that smaller batches than full ones carry more, of replicas of a pool if it has a name;
    nothing where attention takes time, which grows with the requests in a batch.
    """
    linear, budget = server.batch_time.by_tokens, server.token_budget
    best, most = linear.best_load(budget)
    full = budget / float(linear(budget))
    if not server.batch_time.by_load or full >= most * (1 - _LOSS_WORTH_A_WARNING):
        return []
    of = f" of pool {pool}" if pool else ""
    return [
        f"batches{of} filled to the token budget of {budget:,} carry {full * replicas:,.0f} "
        f"tokens/s, but batches of {best:,} carry {most * replicas:,.0f}: set the budget to "
        f"{best:,}"
    ]


def kv_notes(
    workload: Workload, server: Server, outcome: str, *, search: bool = True
) -> tuple[tuple[str, ...], str]:
    """Return what to know of KV memory before the verdict, in a sentence or none, and what of it
    puts the verdict in doubt, as a clause.
    """
    # With ``search`` also at how many tokens it would turn: up to a dozen more tests.
    if server.kv_note is None:
        return (), ""
    note, doubt = server.kv_note, ""
    if search and server.kv_estimate is not None:
        ends = {"stable": server.kv_estimate.low, "unstable": server.kv_estimate.high}
        if outcome in ends:
            tokens = ends[outcome]
            there = _verdict(workload, server, tokens)
            note += f". The test below says {outcome}, "
            if there == outcome:
                note += f"at {tokens:,} tokens, too"
            else:
                note += f"but {there} at {tokens:,} tokens, so measure that number first"
                doubt = (
                    f"KV memory is estimated, and with {tokens:,} tokens, which may be the true "
                    f"number, it is {there}: read it from the engine's log and give kv_tokens"
                )
    elif search and outcome == "stable":
        note += _below(workload, server)
    return (f"{note}.",), doubt


def _below(workload: Workload, server: Server) -> str:
    """Say between which sizes a verdict of stable turns, by simulation."""
    prompt, output = drawn(workload.lengths)
    slots = min(server.max_batch_size or server.token_budget, server.token_budget)
    stable = math.inf
    tokens = slots * float((prompt + output).mean())
    unstable = 1.0
    while stable / unstable > _CLOSE:
        if _verdict(workload, server, int(tokens)) == "stable":
            stable = tokens
        else:
            unstable = tokens
        if math.isinf(stable):
            return ""
        tokens = stable / _COARSE if unstable == 1.0 else math.sqrt(stable * unstable)
        if tokens < server.policy.memory.block_size:
            break
    if unstable == 1.0:
        return f"; with {stable:,.0f} tokens it is stable too"
    return f"; with {stable:,.0f} tokens the verdict is stable too, with {unstable:,.0f} it is not"


def _verdict(workload: Workload, server: Server, tokens: int) -> str:
    """Return the verdict with so many KV tokens; ``unstable`` where a request never fits."""
    try:
        limited = with_kv_tokens(server, tokens)
        return verdict(workload, limited, resolution=_RESOLUTION, seed=workload.seed).verdict
    except InputError:
        return "unstable"
