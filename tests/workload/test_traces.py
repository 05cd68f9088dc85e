"""What must be true of reading traces."""

import gzip
import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import InputError
from penstock.workload.lengths import LONGEST
from penstock.workload.trace_formats import FORMATS
from penstock.workload.traces import load

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def write(tmp_path):
    def write(content, name="trace.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def refusal(path, **options):
    """The one line with which a file is refused."""
    with pytest.raises(InputError) as caught:
        load(path, **options)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def outcome(path):
    """The refusal, or nothing where the file was read; any other exception fails the test."""
    try:
        load(path)
    except InputError as error:
        return str(error)
    return ""


def real(name):
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"the real data ({name}) is not here")
    return path


# Real files


@pytest.mark.parametrize(
    ("name", "format", "rows", "prompt", "output"),
    [
        ("traces/azure_llm_2023_code.csv", "azure", 8_819, 2047.848, 27.883),
        ("traces/azure_llm_2023_conv.csv", "azure", 19_366, 1154.697, 211.126),
        ("traces/mooncake_fast25_conversation_trace.jsonl.gz", "mooncake", 12_031, 12035.061, 342.619),
        ("traces/ragpulse_0_trace.jsonl.gz", "ragpulse", 7_106, 2943.583, 283.236),
        ("traces/sharegpt_8k_lengths.csv.gz", "lengths", 30_731, 2340.034, 438.710),
    ],
)
def test_a_real_trace_is_recognised_and_read_whole(name, format, rows, prompt, output):
    trace = load(real(name))
    assert trace.format == format
    assert len(trace.prompt_tokens) == len(trace.output_tokens) == rows
    assert trace.prompt_tokens.mean() == pytest.approx(prompt, abs=5e-4)
    assert trace.output_tokens.mean() == pytest.approx(output, abs=5e-4)


def test_azure_arrivals_are_exact_and_the_last_one_is_where_the_file_has_it():
    trace = load(real("traces/azure_llm_2023_code.csv"))
    assert trace.arrival_s[:4].tolist() == [0.0, 0.052, 0.098189, 0.140684]
    assert trace.arrival_s[-1] == 3435.948056
    assert trace.notices == ()


def test_mooncake_times_are_milliseconds():
    assert load(real("traces/mooncake_fast25_conversation_trace.jsonl.gz")).arrival_s[-1] == 3536.999


def test_ragpulse_is_sorted_and_the_user_is_told():
    trace = load(real("traces/ragpulse_0_trace.jsonl.gz"))
    assert trace.notices == ("3,304 rows were out of order; sorted by arrival",)
    assert trace.arrival_s[0] == 0
    assert (np.diff(trace.arrival_s) >= 0).all()


@pytest.mark.parametrize("name", ["burst200", "code200", "conv200"])
def test_vidur_workloads_are_read(name):
    trace = load(real(f"golden/vidur/workload_{name}.csv"))
    assert trace.format == "vidur"
    assert len(trace.arrival_s) == 200


def test_a_real_file_with_zero_outputs_is_refused_with_its_row():
    columns = {"prompt_tokens": "in_tokens", "output_tokens": "out_tokens"}
    message = refusal(real("traces/weka_claude_code_requests.parquet"), columns=columns)
    assert "row 3,846, column 'out_tokens': '0' cannot be used" in message


# Times


@quick
@given(
    st.lists(
        st.tuples(
            st.datetimes(datetime(1971, 1, 1), datetime(2260, 1, 1)).map(lambda when: when.replace(microsecond=0)),
            st.text("0123456789", max_size=9),
            st.sampled_from(["", "Z", "+00:00", "+05:30", "-0800", "-00:30"]),
            st.sampled_from(" T"),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_dates_of_any_precision_and_offset_are_exact_to_the_nanosecond(write, stamps):
    if any(offset for _, _, offset, _ in stamps):  # all say one, or none does
        stamps = [(when, digits, offset or "Z", between) for when, digits, offset, between in stamps]
    shifts = {"+05:30": 19_800, "-0800": -28_800, "-00:30": -1_800}
    rows, expected = "", []
    for when, digits, offset, between in stamps:
        fraction = f".{digits}" if digits else ""
        rows += f"{when:%Y-%m-%d}{between}{when:%H:%M:%S}{fraction}{offset},1,1\n"
        second = (when - datetime(1970, 1, 1)) // timedelta(seconds=1) - shifts.get(offset, 0)
        expected.append(second * 10**9 + int(digits.ljust(9, "0")))
    expected = [(ns - min(expected)) / 1e9 for ns in sorted(expected)]
    assert load(write(AZURE + rows)).arrival_s.tolist() == expected


@quick
@given(st.lists(st.tuples(st.integers(0, 9 * 10**18), st.integers(0, 9)), min_size=1, max_size=8))
def test_seconds_of_any_precision_are_exact_to_the_nanosecond(write, times):
    rows, expected = "", []
    for ns, decimals in times:
        kept = ns - ns % 10 ** (9 - decimals)
        text = f"{kept // 10**9}.{kept % 10**9:09d}"
        rows += (text[: len(text) - 9 + decimals].rstrip(".")) + ",1,1\n"
        expected.append(kept)
    expected = [(ns - min(expected)) / 1e9 for ns in sorted(expected)]
    assert load(write(VIDUR + rows)).arrival_s.tolist() == expected


def test_digits_beyond_the_nanosecond_are_rounded_and_exponents_are_read(write):
    trace = load(write(VIDUR + "0,1,1\n0.0000000014999,1,1\n0.0000000015,1,1\n1.5e-3,1,1\n.25,1,1\n"))
    assert trace.arrival_s.tolist() == [0, 1e-9, 2e-9, 0.0015, 0.25]


def test_rows_with_and_without_decimals_may_be_mixed_as_in_azure_2024(write):
    rows = "2024-05-10 00:00:00+00:00,1,2\n2024-05-10 00:00:00.009930+00:00,3,4\n2024-05-10 00:00:01+00:00,5,6\n"
    assert load(write(AZURE + rows)).arrival_s.tolist() == [0, 0.00993, 1]


def test_rows_out_of_order_are_sorted_stably_and_counted(write):
    trace = load(write(VIDUR + "2,1,10\n1,2,20\n1,3,30\n3,4,40\n"))
    assert trace.arrival_s.tolist() == [0, 0, 1, 2]
    assert trace.prompt_tokens.tolist() == [2, 3, 1, 4]
    assert trace.output_tokens.tolist() == [20, 30, 10, 40]
    assert trace.notices == ("2 rows were out of order; sorted by arrival",)


def test_many_rows_at_one_time_keep_their_order(write):
    rows = "".join(f"{2 - n % 3},{n + 1},1\n" for n in range(3_000))
    expected = [n + 1 for late in (2, 1, 0) for n in range(late, 3_000, 3)]
    assert load(write(VIDUR + rows)).prompt_tokens.tolist() == expected


def test_the_arrays_can_be_written_to(write):
    trace = load(write(VIDUR + "2,1,10\n"))
    assert all(array.flags.writeable for array in (trace.arrival_s, trace.prompt_tokens, trace.output_tokens))


# Formats


def test_burstgpt_is_read_by_name_in_both_widths_and_failures_are_counted(write):
    six = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    eight = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    trace = load(write(six + "5,ChatGPT,472,18,490,API log\n45,ChatGPT,0,0,0,API log\n118,GPT-4,80,7,87,API log\n"))
    assert (trace.format, trace.arrival_s.tolist()) == ("burstgpt", [0, 113])
    assert trace.notices == ("1 row with 0 output tokens: failed requests, dropped",)
    trace = load(write(eight + "19440110.0,,3.5,GPT-4,472,18,490,API log\n19440110.5,7,,GPT-4,8,1,9,API log\n"))
    assert (trace.arrival_s.tolist(), trace.prompt_tokens.tolist()) == ([0, 0.5], [472, 8])
    assert "all 1 rows have 0 output tokens" in refusal(write(six + "5,ChatGPT,472,0,472,API log\n"))


def test_qwen_is_told_from_mooncake_by_its_chat_id(write):
    row = {"timestamp": 61, "input_length": 521, "output_length": 132, "hash_ids": [1]}
    later = row | {"timestamp": 62}
    lines = "\n".join(json.dumps(line) for line in (row, later))
    assert load(write(lines, "a.jsonl")).arrival_s.tolist() == [0, 0.001]
    lines = "\n".join(json.dumps({"chat_id": 1} | line) for line in (row, later))
    assert load(write(lines, "a.jsonl")).arrival_s.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("format", "name", "content"),
    [
        (
            "llmservingsim",
            "a.jsonl",
            '{"input_toks": 374, "output_toks": 44, "arrival_time_ns": 0}\n'
            '{"input_toks": 396, "output_toks": 109, "arrival_time_ns": 4314579000}\n',
        ),
        (
            "splitwisesim",
            "a.csv",
            "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
            "0,2,0,0.0,1,374,44\n1,2,0,4.314579,1,396,109\n",
        ),
        (
            "apex",
            "a.jsonl",
            '{"ContextTokens": 374, "GeneratedTokens": 44, "StartTimeOffset": 0, "RequestID": 0}\n'
            '{"ContextTokens": 396, "GeneratedTokens": 109, "StartTimeOffset": 4314579000, "RequestID": 1}\n',
        ),
    ],
)
def test_traces_of_other_simulators_are_read_by_themselves(write, format, name, content):
    trace = load(write(content, name))
    assert (trace.format, trace.notices, trace.doubts) == (format, (), ())
    assert trace.arrival_s.tolist() == [0, 4.314579]
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([374, 396], [44, 109])


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_every_format_is_recognised_by_its_own_columns(format):
    columns = [*format.columns, *format.marks]
    assert next(other for other in FORMATS if other.fits(columns)) is format


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.jsonl", "t.parquet", "t.csv.gz", "t.jsonl.gz", "t.parquet.gz"])
def test_a_plain_table_with_penstocks_names_needs_no_mapping(tmp_path, name):
    frame = pl.DataFrame({"arrival_s": [10.0, 10.5], "prompt": [3, 4], "output": [5, 6], "note": ["a, b", None]})
    path = tmp_path / name
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    if ".parquet" in name:
        frame.write_parquet(plain)
    elif ".jsonl" in name:
        frame.write_ndjson(plain)
    else:
        frame.write_csv(plain, separator="\t" if ".tsv" in name else ",")
    if path != plain:
        path.write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
    trace = load(path)
    assert (trace.format, trace.source) == ("plain", name)
    assert trace.arrival_s.tolist() == [0, 0.5]
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([3, 4], [5, 6])


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("arrival_s", ["1.5", "2"]),
        ("arrival_ms", ["1500", "2000.0"]),
        ("arrival_ns", ["1500000000", "2000000000"]),
        ("arrival_s", ["2024-05-10 00:00:01.5Z", "2024-05-10T00:00:02Z"]),
    ],
)
def test_columns_name_the_arrival_in_any_unit_or_as_dates(write, key, values):
    path = write("in;when;out\n" + "".join(f"7;{value};9\n" for value in values))
    trace = load(path, columns={"prompt_tokens": "in", "output_tokens": "out", key: "when"})
    assert trace.arrival_s.tolist() == [0, 0.5]


@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Tokyo"])
def test_parquet_columns_of_dates_are_read_whatever_their_zone(tmp_path, zone):
    when = pl.Series([datetime(2024, 5, 10, 1, tzinfo=UTC) + timedelta(microseconds=n) for n in (0, 7)])
    when = when.dt.convert_time_zone(zone) if zone else when.dt.replace_time_zone(None)
    pl.DataFrame({"when": when, "prompt": [1, 2], "output": [1, 2]}).write_parquet(tmp_path / "t.parquet")
    assert load(tmp_path / "t.parquet", columns={"arrival_s": "when"}).arrival_s.tolist() == [0, 7e-6]


def test_nested_json_keys_are_named_with_a_dot(write):
    path = write('{"usage": {"in": 5, "out": 6}}\n{"usage": {"in": 7, "out": 8}}\n', "t.jsonl")
    trace = load(path, columns={"prompt_tokens": "usage.in", "output_tokens": "usage.out"})
    assert trace.arrival_s is None
    assert trace.prompt_tokens.tolist() == [5, 7]


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n\n", "\r\n\r\n"])
def test_line_ends_byte_order_marks_and_blank_lines_at_the_end_do_not_matter(write, end):
    text = ("\ufeff" + VIDUR + "0,1,2\n1, 12.0 ,1e3").replace("\n", "\r\n" if "\r" in end else "\n") + end
    trace = load(write(text))
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([1, 12], [2, 1000])


def test_a_quoted_field_may_hold_a_separator_and_a_line_break(write):
    head = "prompt,text,output\n"
    assert load(write(head + '1,"a, b\nc",2\n')).output_tokens.tolist() == [2]
    assert "line 4, column 'output'" in refusal(write(head + '1,"a, b\nc",2\n1,x,0\n'))


# Refusals


@pytest.mark.parametrize(
    "value", ["", "  ", "abc", "1_000", "nan", "-inf", "-3", "12.5", "0", f"{LONGEST + 1}", "99999999999999999999"]
)
def test_a_length_that_cannot_be_used_is_named_with_line_column_value_and_reason(write, value):
    why = f"{value!r} cannot be used" if value.strip() else "the value is missing"
    for rows, column in ((f"2,{value},5", "num_prefill_tokens"), (f"2,5,{value}", "num_decode_tokens")):
        message = refusal(write(VIDUR + f"1,2,3\n{rows}\n3,4,5\n"))
        assert f"trace.csv: line 3, column '{column}'" in message
        assert why in message
        assert "a whole number of tokens from 1 to 16,777,215" in message


def test_the_longest_length_is_accepted(write):
    assert load(write(VIDUR + f"1,{LONGEST},1\n")).prompt_tokens.tolist() == [LONGEST]


@pytest.mark.parametrize("value", ["", "x", "NaN", "-1", "1e300"])
def test_a_time_that_cannot_be_used_is_named(write, value):
    message = refusal(write(VIDUR + f"0,1,1\n{value},1,1\n"))
    assert "line 3, column 'arrived_at'" in message
    assert (f"{value!r} cannot be used: an arrival" if value else "the value is missing: an arrival") in message


@pytest.mark.parametrize(
    "value",
    [
        "2023-11-16", "2023-02-30 00:00:00", "2023-11-16 18:17:03.", "yesterday", "2023-11-16 18:17:03.1234567891",
        "2023-11-16 18:17:03.+5", "2023-11-16 18:17:03+99:00", "1969-12-31 23:59:59", "3000-01-01 00:00:00", "17",
        "2023-11-16 18:17:60", "1970-01-01 00:00:00+01:00",
    ],
)  # fmt: skip
def test_a_date_that_cannot_be_used_is_named(write, value):
    path = write(AZURE + f"2023-11-16 18:17:03,1,1\n{value},1,1\n")
    if value.endswith("03."):  # a point without decimals says nothing wrong
        assert load(path).arrival_s.tolist() == [0, 0]
    else:
        assert f"line 3, column 'TIMESTAMP': '{value[:40]}' cannot be used" in refusal(path)


def test_the_first_bad_row_is_named_and_the_others_counted(write):
    message = refusal(write(VIDUR + "0,1,1\n1,2,0\n2,0,0\nx,1,1\n"))
    assert "line 3, column 'num_decode_tokens': '0'" in message
    assert "(2 rows more cannot be used)" in message


def test_bad_rows_of_parquet_and_json_are_named(tmp_path, write):
    pl.DataFrame({"prompt": [1.0, 2.5], "output": [1, 2]}).write_parquet(tmp_path / "t.parquet")
    assert "row 2, column 'prompt': '2.5' cannot be used" in refusal(tmp_path / "t.parquet")
    pl.DataFrame({"prompt": [[1]], "output": [1]}).write_parquet(tmp_path / "t.parquet")
    refusal(tmp_path / "t.parquet")
    good = '{"prompt": 1, "output": 2}\n'
    for bad, why in [
        ('{"prompt": 1}', "column 'output': the value is missing"),
        ('{"prompt": 1, "output": true}', "'true' cannot be used"),
        ('{"prompt": NaN, "output": 1}', "line 2 is not JSON (NaN is no value of JSON)"),
        ('{"prompt": 1, "output": 1, "other": [-Infinity]}', "line 2 is not JSON (-Infinity is no value of JSON)"),
        ('{"prompt": 1, "output"', "line 2 is not JSON"),
        ('{"prompt": 1, "output": 2} x', "line 2 is not JSON"),
        ("[1, 2]", "line 2 is '[1, 2]', not a JSON object"),
        ("5", "line 2 is '5', not a JSON object"),
        ("", "line 2 is blank"),
        ("[" * 100_000, "line 2 is not JSON"),
        ('{"prompt": 1,\r "output": 0}', "column 'output': '0' cannot be used"),
    ]:
        message = refusal(write(good + bad + "\n" + good, "t.jsonl"))
        assert message.startswith("t.jsonl: line 2")
        assert why in message


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("a.csv", b"", "a.csv: is empty"),
        ("a.csv", b"\n\n", "is empty"),
        ("a.csv.gz", gzip.compress(b"", mtime=0), "is empty"),
        ("a.jsonl", b"\n", "is empty"),
        ("a.csv", AZURE.encode(), "has no rows"),
        ("a.csv", AZURE.encode() + b"\n\n", "has no rows"),
        ("a.csv", b"a,b\n1,2\n", "'a', 'b' are those of no known format (azure, burstgpt,"),
        ("a.csv", b"one\n1\n", "'one' are those of no known format"),
        ("a.csv", b"prompt,output,prompt\n1,2,3\n", "two columns called 'prompt'"),
        ("a.jsonl", b'{"prompt": 1, "output": 2, "prompt": 3}', "the key 'prompt' twice"),
        ("a.csv", VIDUR.encode() + b"0,1,1\n1,2,3,4\n", "line 3 has 4 fields"),
        ("a.csv", VIDUR.encode() + b"0,1,1\n1,2\n", "line 3 has 2 fields"),
        ("a.csv", b"prompt,output,x,y\n1,1,1,1\n2,2\n", "line 3 has 2 fields, but the header names 4"),
        ("a.csv", VIDUR.encode() + b"0,1,1\n\n1,2,3\n", "line 3 is blank"),
        ("a.csv", VIDUR.encode() + b"0,1,1\n1,2,\xff\n", "line 3 is not UTF-8"),
        ("a.jsonl", b'{"prompt": 1, "output": 2}\n{"a": "\xff"}', "line 2 is not UTF-8"),
        ("a.csv", AZURE.encode("utf-16"), "not UTF-8"),
        ("a.csv.gz", gzip.compress(AZURE.encode() * 99, mtime=0)[:40], "cannot be read"),
        ("a.csv.gz", b"\x1f\x8bjunk that is no gzip", "cannot be read"),
        ("a.parquet", b"PAR1junkjunkjunkPAR1", "cannot be read as Parquet"),
        ("a.parquet", b"junk", "cannot be read as Parquet"),
        ("a.json", b'[{"prompt": 1, "output": 2}]', "not a JSON object"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_in_one_line(write, name, content, part):
    assert part in refusal(write(content, name))


def test_a_missing_file_suggests_the_closest_name_and_a_directory_is_refused(tmp_path, write):
    write(AZURE, "azure_code.csv")
    assert "did you mean 'azure_code.csv'?" in refusal(tmp_path / "azure_cod.csv")
    assert "does not exist. Check the path" in refusal(tmp_path / "no" / "such.csv")
    assert "is a directory" in refusal(tmp_path)


def test_formats_and_columns_that_do_not_exist_are_refused(write):
    path = write(VIDUR + "0,1,1\n")
    assert "did you mean 'azure'" in refusal(path, format="azur")
    assert "needs the column 'TIMESTAMP'" in refusal(path, format="azure")
    assert "leave one of them out" in refusal(path, format="vidur", columns={"prompt": "x"})
    assert "'num_prefil_tokens', which is not there; did you mean 'num_prefill_tokens'?" in refusal(
        path, columns={"prompt_tokens": "num_prefil_tokens"}
    )
    assert "did you mean 'prompt_tokens'" in refusal(path, columns={"prompt_token": "num_prefill_tokens"})
    assert "twice" in refusal(path, columns={"arrival_s": "arrived_at", "arrival_ms": "arrived_at"})
    assert "Name them with `columns: {" in refusal(path, columns={"prompt_tokens": "num_prefill_tokens"})
    both = dict.fromkeys(("prompt_tokens", "output_tokens"), "num_prefill_tokens")
    assert "to prompt_tokens and output_tokens, but it is one of them" in refusal(path, columns=both)
    assert load(path, format="lengths").arrival_s is None


@quick
@given(st.binary(max_size=200), st.sampled_from(["csv", "jsonl", "parquet", "csv.gz"]), st.sampled_from(["", "head"]))
def test_random_bytes_give_one_line_and_nothing_else(write, content, suffix, head):
    if head:
        content = {"csv": AZURE.encode(), "jsonl": b'{"prompt": 1, "output": 2}\n', "parquet": b"PAR1"}.get(
            suffix, b"\x1f\x8b\x08"
        ) + content
    assert len(outcome(write(content, f"random.{suffix}")).splitlines()) <= 1


@quick
@given(st.text(max_size=60))
def test_random_text_in_a_table_gives_one_line_and_nothing_else(write, text):
    for content in (VIDUR + "0,1,1\n" + text, f"prompt,output\n{text},1\n"):
        assert len(outcome(write(content.encode("utf-8", "replace"))).splitlines()) <= 1


def test_offsets_agree_with_the_standard_library(write):
    when = datetime(2024, 5, 10, 3, 4, 5, 678_901, tzinfo=timezone(timedelta(hours=-7)))
    rows = f"{when},1,1\n{when.astimezone(UTC)},1,1\n"
    assert load(write(AZURE + rows)).arrival_s.tolist() == [0, 0]


def test_dates_with_and_without_an_offset_are_not_mixed(write):
    rows = "2023-11-16 18:17:03,1,1\n" * 2 + "2023-11-16 18:17:04+02:00,1,1\n"
    assert "line 4, column 'TIMESTAMP': '2023-11-16 18:17:04+02:00' has an offset" in refusal(write(AZURE + rows))
    rows = "2023-11-16 18:17:03Z,1,1\n2023-11-16 18:17:04,1,1\n"
    assert "line 3, column 'TIMESTAMP': '2023-11-16 18:17:04' has no offset" in refusal(write(AZURE + rows))


@pytest.mark.parametrize("path", ["", None, 3, b"x.csv", ["x.csv"], "x" * 300, "~nosuchuser/x.csv", "a\0b"])
def test_what_is_no_path_is_refused(path):
    assert len(refusal(path)) < 250


@pytest.mark.parametrize("options", [{"columns": 3}, {"columns": ["a"]}, {"columns": {"prompt": 3}}, {"format": 3}])
def test_what_is_no_format_or_mapping_of_columns_is_refused(write, options):
    assert next(iter(options)) in refusal(write(VIDUR + "0,1,1\n"), **options)


def test_a_byte_order_mark_that_stands_twice_hides_no_column(write):
    assert load(write("\ufeff\ufeffarrival_s,prompt,output\n0,1,1\n5,1,1\n")).arrival_s.tolist() == [0, 5]


@pytest.mark.parametrize("names", ["arrival_s,arrival_ms,prompt,output", "arrival_s,prompt,prompt_tokens,output"])
def test_two_columns_for_one_thing_are_refused_unless_one_is_chosen(write, names):
    path = write(names + "\n0,1,2,3\n")
    second = "arrival_ms" if "arrival_ms" in names else "prompt"
    key = second if second == "arrival_ms" else "prompt_tokens"
    assert f"`columns: {{{key}: {second}}}`" in refusal(path)
    assert load(path, columns={second: second}).format == "plain"


@pytest.mark.parametrize("name", ["arrival", "Time", "timestamp"])
def test_a_column_that_looks_like_times_is_not_passed_over(write, name):
    path = write(f"{name},prompt,output\n7,1,2\n9,1,2\n")
    assert f"`columns: {{arrival_s: {name}}}`" in refusal(path)
    assert load(path, columns={"arrival_s": name}).arrival_s.tolist() == [0, 2]
    assert load(path, columns={"prompt": "prompt", "output": "output"}).arrival_s is None


@pytest.mark.parametrize(
    ("first", "second", "apart_s"),
    [
        ("2024-05-10 00:00:01.5", "2024-05-10 00:00:03", 1.5),
        ("1715299201.5", "1715299203", 1.5),  # the same in units that only one reading makes a time of this century
        ("1715299201500", "1715299203000", 1.5),
        ("1715299201500000", "1715299203000000", 1.5),
        ("1715299201500000000", "1715299203000000000", 1.5),
    ],
)
def test_a_timestamp_whose_unit_is_beyond_doubt_is_read(write, first, second, apart_s):
    trace = load(write(f"timestamp,prompt_tokens,completion_tokens\n{first},1,2\n{second},3,4\n"))
    assert trace.arrival_s.tolist() == [0, apart_s]
    assert trace.output_tokens.tolist() == [2, 4]


@pytest.mark.parametrize("times", [("0", "1.5"), ("1715299201", "12"), ("171529920", "171529921"), ("x", "y")])
def test_a_timestamp_whose_unit_is_in_doubt_is_asked_for(write, times):
    path = write("timestamp,prompt_tokens,completion_tokens\n{},1,2\n{},3,4\n".format(*times))
    assert "in which unit is unclear" in refusal(path)


def test_two_columns_like_times_are_refused_unless_one_is_chosen(write):
    path = write("created,timestamp,input_tokens,completion_tokens\n1715299201,1715299202,1,2\n")
    assert "which one is meant is unclear" in refusal(path)
    assert load(path, columns={"arrival_s": "created"}).arrival_s.tolist() == [0]


def test_a_key_that_stands_twice_is_refused_on_any_line_of_json(write):
    row = '{"arrival_s": 1, "prompt": 1, "output": 2}\n'
    twice = '{"arrival_s": 1, "prompt": 1, "output": 2, "prompt": 9}\n'
    assert "line 3 has the key 'prompt' twice" in refusal(write(row * 2 + twice, "t.jsonl"))
    inner = '{"arrival_s": 1, "prompt": 1, "output": 2, "more": {"prompt": 9}}\n'
    assert load(write(row * 2 + inner, "t.jsonl")).prompt_tokens.tolist() == [1, 1, 1]


def test_a_column_of_priorities_is_read_with_its_rows_where_it_is_named(write):
    path = write("arrival_s,prompt,output,priority\n2,1,10,-1\n1,2,20,3\n")
    assert load(path).priority is None
    assert load(path, columns={"priority": "priority"}).priority.tolist() == [3, -1]
    bad = write("arrival_s,prompt,output,class\n2,1,10,high\n")
    with pytest.raises(InputError, match="column 'class': 'high' cannot be used: a priority is a whole number"):
        load(bad, columns={"priority": "class"})


# Rows that are no requests as they stand

CODES = "arrival_s,prompt_tokens,output_tokens,http_code\n0.5,9,4,200\n1,9,,500\n2,9,1,429\n3,9,5,200.0\n"


def test_where_chooses_rows_by_a_value_before_anything_else_of_them_is_read(write):
    trace = load(write(CODES), where={"http_code": 200})
    assert trace.output_tokens.tolist() == [4, 5]
    assert trace.arrival_s.tolist() == [0, 2.5]
    assert trace.notices == ("2 rows left out by `where`",)
    assert trace.doubts == ()


def test_a_bad_row_points_to_where_and_a_column_that_differs_is_doubted(write):
    assert "`where: {http_code: VALUE}`" in refusal(write(CODES))
    assert "where" not in refusal(write(CODES), where={"http_code": 500})
    (said,) = load(write(CODES.replace(",,", ",7,").replace("200.0", "200"))).doubts
    assert "2 rows of 4 have another http_code than '200'" in said
    assert "`where: {http_code: 200}`" in said


@pytest.mark.parametrize(
    ("where", "part"),
    [
        ({"http_code": 201}, "has no row whose 'http_code' is 201"),
        ({"http": 200}, "did you mean 'http_code'?"),
        ({"http_code": [200]}, "must map names of columns to the values"),
        (200, "must map names of columns to the values"),
    ],
)
def test_where_that_chooses_nothing_is_refused(write, where, part):
    assert part in refusal(write(CODES), where=where)


@pytest.mark.parametrize("value", ["true", "True", True, " TRUE"])
def test_where_takes_words_in_any_case(write, value):
    rows = "prompt_tokens,output_tokens,success\n5,6,True\n7,8,false\n"
    assert load(write(rows), where={"success": value}).prompt_tokens.tolist() == [5]


TURN = '{"session_id": "a", "delay": 500, "input_length": 9, "output_length": 3}\n'


@pytest.mark.parametrize("first", ['{"timestamp": 0, "input_length": 9, "output_length": 3}\n', ""])
def test_turns_of_sessions_without_times_are_refused_as_such(write, first):
    assert "turn of a session" in refusal(write(first + TURN, "turns.jsonl"))


def test_turns_with_times_are_read_and_the_delay_is_not_passed_over(write):
    row = TURN.replace("{", '{"timestamp": 0, ')
    (said,) = load(write(row, "turns.jsonl")).doubts
    assert "Rows have a delay" in said


@pytest.mark.parametrize("zone", [" UTC", "+00", " +0000", " GMT", "Z"])
def test_offsets_are_read_as_databases_write_them(write, zone):
    rows = f"2023-11-16 18:17:03.5{zone},5,5\n2023-11-16 19:17:05+01,5,5\n"
    assert load(write(AZURE + rows)).arrival_s.tolist() == [0, 1.5]


def test_a_clock_that_is_set_back_is_told_from_rows_in_no_order(write):
    hour = [f"2023-10-29 02:{minute:02d}:00,5,5\n" for minute in range(60)]
    (said,) = load(write(AZURE + "".join(hour * 2))).doubts
    assert "fall back by 3,540 s at request 61" in said
    assert load(write(AZURE + "".join(hour[::-1]))).doubts == ()


def test_ids_of_more_blocks_than_a_request_can_fill_are_doubted(write):
    row = '{"timestamp": 0, "input_length": %d, "output_length": 8, "hash_ids": [0, 1]}\n'
    assert load(write(row % 513, "ids.jsonl")).doubts == ()
    (said,) = load(write(row % 513 + row % 20, "ids.jsonl")).doubts
    assert "request 2 in order of arrival names 2 blocks of 512 tokens, and has 28 in all" in said


def test_fractions_of_a_unit_that_a_format_has_whole_are_told(write):
    row = '{"timestamp": %s, "input_length": 5, "output_length": 8, "hash_ids": [0]}\n'
    assert load(write(row % 0 + row % "7.0", "whole.jsonl")).fractions is False
    assert load(write(row % 0 + row % "0.2", "parts.jsonl")).fractions is True
