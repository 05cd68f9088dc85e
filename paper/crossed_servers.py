"""Two servers that two kinds of task cross in opposite directions, each with a short stage first and a long one then.

No server is overloaded, and both always work; yet priorities to the second stages can let the queues grow without end.
"""

import penstock as ps

SLOT = "A batch takes 1 s, so a second is a slot."
SERVER = ps.Server(ps.PiecewiseConstant(c=1.0, a=0.0, b0=768), 768, convention="paper")
SHORT, LONG, OUTPUT = 32, 512, 32  # prompt tokens of first and second stages, and output tokens of all
LENGTHS = {"constant": ps.Constant, "geometric": ps.Geometric, "uniform": lambda mean: ps.Uniform(1, 2 * mean - 1)}
"""Kinds of lengths by their mean: the paper gives no more."""
FIRST = "search.look_up"
AT_RETRIEVAL, AT_COMMUNICATION = ("complaint.look_into", FIRST), ("search.reply", "complaint.understand")
RANKING = AT_RETRIEVAL + AT_COMMUNICATION  # of the paper, the most urgent stage of each server first
PUBLISHED = (ps.Order.priority(AT_RETRIEVAL), ps.Order.priority(AT_COMMUNICATION))
REVERSED = (ps.Order.priority(AT_RETRIEVAL[::-1]), ps.Order.priority(AT_COMMUNICATION[::-1]))


def crossed(load, orders, lengths=ps.Constant):
    """Return the network at a load of both servers, with an order at each and with lengths of a kind."""
    short, long, output = lengths(SHORT), lengths(LONG), lengths(OUTPUT)
    arrivals = ps.Workload.poisson(load / ((SHORT + LONG + 2 * OUTPUT) / SERVER.token_budget), 1, 1, seed=0)
    search = {
        "look_up": ps.Stage("retrieval", short, output, then="reply"),
        "reply": ps.Stage("communication", long, output),
    }
    complaint = {
        "understand": ps.Stage("communication", short, output, then="look_into"),
        "look_into": ps.Stage("retrieval", long, output),
    }
    pools = zip(("retrieval", "communication"), orders, strict=True)
    return ps.Network(
        {name: ps.Pool(SERVER, order=order) for name, order in pools},
        [ps.Workflow("search", arrivals, search), ps.Workflow("complaint", arrivals, complaint)],
    )


def claim_verdict(item, network, what, answer, published):
    """Compare the verdicts of the flood test and of the theorems with the one that is expected."""
    certificate, simulated = ps.certify(network), ps.verdict(network).verdict
    theory = certificate.verdict
    same = simulated == answer and theory in (answer, "unknown")
    undecided = f"no theorem decides, so the flood test does: {certificate.reason}"
    item.claim(
        what, published, f"{simulated} by floods, {theory} by theorem", same,
        "too close to critical for the test, or the verdict is wrong",
        known=undecided if same and theory == "unknown" else "",
    )  # fmt: skip
