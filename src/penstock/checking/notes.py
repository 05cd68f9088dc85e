"""What the user should know of the load and the limits of a server, beside the verdict."""

from penstock.system.server import Server
from penstock.theory.kv_blocks import reuses
from penstock.theory.load import Load
from penstock.theory.memory import MemoryEstimate
from penstock.workload.workload import Workload

_LOSS_WORTH_A_WARNING = 0.01
_SOME = 0.01  # preemptions of a request


def memory_warnings(
    load: Load, workload: Workload, server: Server, full: MemoryEstimate | None
) -> list[str]:
    """Return what KV memory does to a workload that neither load nor bounds say; ``full`` by the
    estimate.
    """
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
            "prompts may be found in the prefix cache: the load counts all of their tokens, "
            "bounds only one of each; "
            "the test repeats the recording, and finds in the cache what it holds of the "
            "repetition before"
        )
    if full is not None:
        again = f", each preempted {full.preemptions:.2g} times" if full.preemptions > _SOME else ""
        remedy = "; fewer running requests or a watermark may carry more" if again else ""
        warnings.append(
            f"once its KV memory is full the server carries about {full.rate:,.4g} requests/s (an "
            "estimate), with "
            f"{full.running:,.0f} running{again}{remedy}"
        )
    return warnings


def load_warnings(load: Load, server: Server) -> list[str]:
    """Say whether the policy is out of place under the limits, and what these waste where token
    load alone decides.
    """
    warnings = [server.scope_warning] if server.scope_warning else []
    if any(load.attention_s):
        return warnings
    full, best = load.filled_batch_tokens_per_s, load.best_batch_tokens_per_s
    if full >= best * (1 - _LOSS_WORTH_A_WARNING):
        return warnings
    return [
        *warnings,
        f"batches filled to the token budget of {server.token_budget:,} carry {full:,.0f} "
        "tokens/s, but batches of "
        f"{load.best_token_load:,} carry {best:,.0f}: set the budget to {load.best_token_load:,}",
    ]
