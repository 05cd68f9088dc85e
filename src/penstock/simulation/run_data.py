"""What JSON has of a run."""

from typing import Annotated, TypedDict

from penstock.show.answers import Meaning


class RunData(TypedDict):
    """What was simulated."""

    jobs: Annotated[int, Meaning("That arrived; of a server they are its requests.")]
    requests: Annotated[int, Meaning("Of these jobs.")]
    unfinished: Annotated[int, Meaning("Jobs that had not ended when the run stopped.")]
    batches: Annotated[int, Meaning("That started, less those that died with their replica.")]
    seconds: Annotated[float, Meaning("Simulated.")]
    tokens_per_s: Annotated[float, Meaning("Tokens of batches that ended, per second.")]
    utilisation: Annotated[float, Meaning("Share of the time in batches, over all replicas.")]
    growth_tokens_per_s: Annotated[
        float | None, Meaning("By which the tokens that are left grew, in the later part.")
    ]
    preemptions: Annotated[int, Meaning("How often a request had to make room.")]
    recomputed_tokens: Annotated[int, Meaning("That were processed again after it.")]
    reused_tokens: Annotated[int, Meaning("That requests found computed when admitted.")]
    dropped: Annotated[int, Meaning("Requests left out because they could never fit.")]
