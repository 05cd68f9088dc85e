"""Whether the metrics of one row can be of one benchmark.

End-to-end time, time to first token, inter-token latency, lengths, counts and durations say the
same thing more than once. What contradicts itself is mended where it is clear what is wrong, which
a note says, and refused where it is not: a time in another unit looks like any other number.
"""

import itertools
import math
from collections.abc import Iterator

from penstock.errors import InputError
from penstock.measuring.calibration.result_row import METRICS, STATISTICS, Row, add_note

_ODD = 0.1  # share by which two figures of one thing may differ
_WRONG = 2.0  # factor from which on no rounding and no odd mean explains it
_ONE_PIECE = 0.001  # share of E2E that is left after the first token of an answer in one piece
_ORDERED = ("p50", "p90", "p99")
_REMEDY = "so one of them is wrong. Check units and columns, or leave the row out"


def make_consistent(place: str, row: Row, format: str) -> None:
    """Mend what contradicts itself, or refuse it, as in a table of one's own (``csv``)."""
    # There either of two figures may be wrong; of a tool it is known what it counts oddly.
    contradiction = next(_contradictions(row, format), None)
    if contradiction:
        raise InputError(f"{place}: {contradiction}, {_REMEDY}")
    _settle_one_piece(row)
    _settle_inter_token(place, row, format)
    _settle_rate(row)
    _settle_lengths(row)


def _contradictions(row: Row, format: str) -> Iterator[str]:
    for metric in METRICS:
        known = [(name, row[f"{metric}_{name}_s"]) for name in _ORDERED]
        known = [(name, seconds) for name, seconds in known if seconds is not None]
        for (low, less), (high, more) in itertools.pairwise(known):
            if less > more * 1.001:
                yield (f"{metric.upper()} {low} is {_ms(less)}, above its {high} of {_ms(more)}")
    ttft, e2e = row["ttft_mean_s"], row["e2e_mean_s"]
    if ttft and e2e and ttft > e2e * 1.001:
        yield f"TTFT is {_ms(ttft)} on average, longer than E2E with {_ms(e2e)}"
    waited_for_all = row.get("incomplete") == 0
    for metric in ("ttft", "e2e"):
        seconds = row[f"{metric}_mean_s"]
        if seconds and waited_for_all and seconds > row["duration_s"] * (1 + _ODD):
            yield (
                f"{metric.upper()} is {seconds:,.4g} s on average, longer than the benchmark with "
                f"{row['duration_s']:,.4g} s"
            )
    yield from _contradictions_of_counts(row, format)


def _contradictions_of_counts(row: Row, format: str) -> Iterator[str]:
    """Hold times and counts against each other by Little's law."""
    rate, e2e = row.get("requests_per_s"), row["e2e_mean_s"]
    if not e2e and row["ttft_mean_s"] and row["itl_mean_s"]:
        e2e = row["ttft_mean_s"] + row["itl_mean_s"] * (row["output_tokens"] - 1)
    counted = row["completed"] / row["duration_s"]
    if format == "csv" and rate and abs(_logarithm(rate, counted)) > 1:
        yield (
            f"{rate:,.4g} requests/s in {row['duration_s']:,.4g} s are not the "
            f"{row['completed']:,.0f} requests that were completed"
        )
    if not rate or not e2e:
        return
    under_way = rate * e2e
    places = row.get("in_flight")
    stated = row["pattern"] == "closed" and not str(row.get("load")).startswith("throughput")
    if stated and places and under_way > places * (1 + _ODD) + 1:
        yield (
            f"{rate:,.4g} requests/s with an E2E of {e2e:,.4g} s are {under_way:,.4g} under way, "
            f"but the client had {places:,.0f}"
        )
    concurrency = row.get("concurrency")
    if concurrency and abs(_logarithm(under_way, concurrency)) > 1:
        yield (
            f"{rate:,.4g} requests/s with an E2E of {e2e:,.4g} s are {under_way:,.4g} under way, "
            f"but a concurrency of {concurrency:,.4g} is stated"
        )


def _logarithm(one: float, other: float) -> float:
    """Return how often two figures differ by the factor that is wrong."""
    return math.log(one / other, _WRONG)


def _settle_one_piece(row: Row) -> None:
    """Take the first token for unknown where an answer of several tokens came at once."""
    ttft, e2e = row["ttft_mean_s"], row["e2e_mean_s"]
    if not ttft or not e2e or row["output_tokens"] < 2 or e2e - ttft > _ONE_PIECE * e2e:
        return
    for metric in ("ttft", "itl", "tpot"):
        row |= dict.fromkeys((f"{metric}_{name}_s" for name in ("mean", *_ORDERED)), None)
    add_note(
        row,
        "TTFT is stated to be E2E, so answers were not streamed: neither TTFT nor ITL was measured",
    )


def _settle_inter_token(place: str, row: Row, format: str) -> None:
    """Hold the mean inter-token latency against (E2E - TTFT) / (output - 1), the mean gap."""
    # Tools that count chunks of several tokens as one, or one as several, are off: then that is
    # taken in its place. In a table of one's own either may be wrong: a note says it, or, where no
    # odd mean explains it, the table is refused.
    ttft, e2e, output = row["ttft_mean_s"], row["e2e_mean_s"], row["output_tokens"]
    if output == 1 and any(row[f"{metric}_mean_s"] for metric in ("itl", "tpot")):
        row |= {f"{metric}_{name}_s": None for metric in ("itl", "tpot") for name in STATISTICS}
        add_note(row, "ITL is stated, but outputs of one token have none: it is left out")
    if not ttft or not e2e or e2e <= ttft or output < 2:
        return
    per_token = (e2e - ttft) / (output - 1)
    stated = row["itl_mean_s"]
    if stated is None:
        row["itl_mean_s"] = per_token
        return
    if abs(stated / per_token - 1) <= _ODD:
        return
    note = f"ITL is stated as {_ms(stated)}, but (E2E - TTFT) / (output - 1) is {_ms(per_token)}"
    per_request = row["tpot_mean_s"]
    confirmed = per_request is None or abs(_logarithm(per_request, per_token)) <= 1
    if format == "csv":
        if abs(_logarithm(stated, per_token)) > 1:
            raise InputError(f"{place}: {note}, {_REMEDY}")
    elif not confirmed:
        raise InputError(f"{place}: {note}, and TPOT as {_ms(per_request)}, {_REMEDY}")
    else:
        row |= dict.fromkeys((f"itl_{name}_s" for name in _ORDERED), None)
        row["itl_mean_s"] = per_token
        note += ", which is used"
    add_note(row, note)


def _settle_rate(row: Row) -> None:
    """Say where another number of requests per second is stated than were counted in the time."""
    # Tools leave out times when little happens, and some divide by another time altogether.
    rate = row.get("requests_per_s")
    counted = row["completed"] / row["duration_s"]
    if not rate or abs(rate / counted - 1) <= _ODD:
        return
    note = (
        f"{rate:,.4g} requests/s are stated, but {row['completed']:,.0f} in "
        f"{row['duration_s']:,.4g} s are {counted:,.4g}"
    )
    if abs(_logarithm(rate, counted)) > 1:
        row["requests_per_s"] = counted
        note += ", which is used"
    add_note(row, note)


def _settle_lengths(row: Row) -> None:
    """Take the lengths of each request where another mean is stated."""
    for name in ("prompt", "output"):
        each = row.get(f"{name}_lengths")
        stated = row[f"{name}_tokens"]
        if each and abs(sum(each) / len(each) / stated - 1) > _ODD:
            row[f"{name}_tokens"] = sum(each) / len(each)
            add_note(
                row,
                f"{stated:,.4g} {name} tokens are stated on average, but those of each request "
                f"make {row[f'{name}_tokens']:,.4g}, which is used",
            )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.4g} ms"
