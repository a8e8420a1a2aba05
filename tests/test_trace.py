"""The trace reader: every format, every kind of fault, on fixtures written here.

Longer than most files, because half of it is the table of fixtures.
"""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcflow.errors import InputError
from mcflow.workload import trace as trace_module
from mcflow.workload.trace import FORMATS, Trace, read_trace

pytestmark = pytest.mark.filterwarnings("error")

PLAIN = "arrived_at,prompt_tokens,output_tokens\n"
SHARED = Path(__file__).resolve().parents[2] / "shared"


def write(folder: Path, text: str | bytes, name: str = "trace.csv") -> Path:
    """Write a fixture exactly as given (no translation of line ends)."""
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def lines(*records: dict[str, Any]) -> str:
    """JSON Lines."""
    return "".join(json.dumps(record) + "\n" for record in records)


def arrivals(trace: Trace) -> list[float]:
    assert trace.arrived is not None
    assert trace.arrived.dtype == np.float64
    return [float(x) for x in trace.arrived]


def mistake(path: Path, time_unit: str | None = None) -> str:
    """The one-line message of an unreadable trace, which starts with its file."""
    with pytest.raises(InputError) as caught:
        read_trace(path, time_unit)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message
    return message.removeprefix(f"{path}: ")


# Formats: text, name, unit, arrivals; the lengths are (100, 7) and (200, 8) throughout.
CASES = {
    "plain": (PLAIN + "0.5,100,7\n2,200,8\n", "plain", "slot", [0.5, 2.0]),
    "plain jsonl": (
        lines(
            {"arrived_at": 0.5, "prompt_tokens": 100, "output_tokens": 7},
            {"arrived_at": 2, "prompt_tokens": 200, "output_tokens": 8},
        ),
        "plain", "slot", [0.5, 2.0],
    ),
    "azure 2023": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2024-02-29 23:59:59.9999999,100,7\r\n2024-03-01 00:00:00.0010001,200,8",
        "azure", "s", [0.0, 0.0010002],
    ),
    "azure 2024": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00+00:00,100,7\n2024-05-10 02:00:00.250000+02:00,200,8\n",
        "azure", "s", [0.0, 0.25],
    ),
    "azure with numbers": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n5.5,100,7\n6,200,8\n", "azure", "s", [0.0, 0.5],
    ),
    "burstgpt v1": (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,100,7,107,API log\n9,GPT-4,200,8,208,API log\n",
        "burstgpt", "s", [0.0, 4.0],
    ),
    "burstgpt v3": (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "19440110.0,a-b,3,GPT-4,100,7,107,API log\n19440110.5,,4,GPT-4,200,8,208,API log\n",
        "burstgpt", "s", [0.0, 0.5],
    ),
    "mooncake jsonl": (
        lines(
            {"timestamp": 0, "input_length": 100, "output_length": 7, "hash_ids": [0, 1]},
            {"timestamp": 1500, "input_length": 200, "output_length": 8, "hash_ids": [0, 1, 2, 3, 4]},
        ),
        "mooncake", "ms", [0.0, 1.5],
    ),
    "mooncake csv": (
        "timestamp,input_length,output_length\n0,100,7\n1500,200,8\n", "mooncake", "ms", [0.0, 1.5],
    ),
    "bailian": (
        lines(
            {"chat_id": 1, "timestamp": 61.5, "input_length": 100, "output_length": 7, "hash_ids": [1]},
            {"chat_id": 2, "timestamp": 62.0, "input_length": 200, "output_length": 8, "hash_ids": []},
        ),
        "bailian", "s", [61.5, 62.0],
    ),
    "vidur": (
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0,100,7\n1.5,200,8\n", "vidur", "s", [0.0, 1.5],
    ),
    "vidur old": (
        "Date,Time,PromptTokenCount,CompletionTokenCount\nd,0,100,7\nd,1.5,200,8\n",
        "vidur-old", "s", [0.0, 1.5],
    ),
    "vidur lengths": (
        "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n100,7,107,14.3\n200,8,208,25.0\n",
        "vidur", None, None,
    ),
    "lmsys": ("question_length,answer_length\n100,7\n200,8\n", "lmsys", None, None),
    "servegen": (
        "request_id,timestamp,input_tokens,output_tokens\n0,0.25,100,7\n1,0.5,200,8\n",
        "servegen", "s", [0.25, 0.5],
    ),
    "llmservingsim": (
        lines(
            {"input_toks": 100, "output_toks": 7, "arrival_time_ns": 250000000, "input_tok_ids": [1, 2]},
            {"input_toks": 200, "output_toks": 8, "arrival_time_ns": 1000000001, "input_tok_ids": []},
        ),
        "llmservingsim", "ns", [0.25, 1.000000001],
    ),
}  # fmt: skip


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_formats(tmp_path: Path, case: str, zipped: bool) -> None:
    text, name, unit, times = CASES[case]
    raw = gzip.compress(text.encode()) if zipped else text.encode()
    trace = read_trace(write(tmp_path, raw, "trace.gz" if zipped else "trace"))
    assert (trace.format, trace.unit) == (name, unit)
    assert trace.prompt.tolist() == [100, 200] and trace.output.tolist() == [7, 8]
    assert trace.row.tolist() == [0, 1]
    assert {a.dtype for a in (trace.prompt, trace.output, trace.row)} == {np.dtype(np.int64)}
    assert trace.dropped == {} and trace.source == str(tmp_path / ("trace.gz" if zipped else "trace"))
    if times is None:
        assert trace.arrived is None and trace.rate is None
        assert any("no arrival times" in notice for notice in trace.notices)
    else:
        assert arrivals(trace) == times
        assert trace.rate == 1 / (times[1] - times[0])
        assert "rate" in trace.notices[1]
    assert all("\n" not in notice for notice in trace.notices)


def test_every_format_is_tested() -> None:
    assert {fmt.name for fmt in FORMATS} == {name for _, name, _, _ in CASES.values()}


def test_words_are_called_words(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, "question_length,answer_length\n1,2\n"))
    assert "words" in trace.notices[0]


@pytest.mark.parametrize(
    ("unit", "times"),
    [("slot", [0, 1500]), ("s", [0, 1500]), ("ms", [0, 1.5]), ("us", [0, 1.5e-3]), ("ns", [0, 1.5e-6])],
)
@pytest.mark.parametrize("case", ["plain", "mooncake"])
def test_time_unit_overrides_numeric_stamps(tmp_path: Path, case: str, unit: str, times: list[float]) -> None:
    header = PLAIN if case == "plain" else "timestamp,input_length,output_length\n"
    trace = read_trace(write(tmp_path, header + "0,1,1\n1500,1,1\n"), unit)
    assert arrivals(trace) == times and trace.unit == unit
    assert "as asked" in trace.notices[0]


def test_time_unit_cannot_apply_to_dates_or_to_no_times(tmp_path: Path) -> None:
    dates = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,1,1\n2024-05-10 00:00:01,1,1\n"
    trace = read_trace(write(tmp_path, dates), "ms")
    assert arrivals(trace) == [0, 1] and trace.unit == "s"
    assert any("time unit ms not used" in notice for notice in trace.notices)
    trace = read_trace(write(tmp_path, PLAIN + ",1,1\n"), "ms")
    assert trace.arrived is None and "time unit ms not used: no times" in trace.notices
    assert "unknown time unit 'min'" in mistake(write(tmp_path, dates), "min")


def test_plain_csv_says_that_it_took_slots(tmp_path: Path) -> None:
    notices = read_trace(write(tmp_path, PLAIN + "0,1,1\n0.5,1,1\n2,1,1\n")).notices
    assert notices[0].startswith("times taken in slots (plain CSV")
    assert notices[1] == "3 requests over 2 slots: rate 1 per slot"


def test_header_is_read_leniently(tmp_path: Path) -> None:
    # byte order mark, blank first line, spaces, case, quotes, an index column, another order
    text = '\ufeff\n,Output_Tokens, "x" ,"arrived_at",PROMPT_TOKENS \n0,7,z,1, 100\n\n1,8,z,2,200\n'
    trace = read_trace(write(tmp_path, text))
    assert arrivals(trace) == [1, 2] and trace.prompt.tolist() == [100, 200]


def test_whole_numbers_written_as_decimals_are_counts(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, PLAIN + "0,1e3,64.0\n"))
    assert (trace.prompt.tolist(), trace.output.tolist()) == ([1000], [64])


def test_zero_lengths_are_dropped_with_a_count(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, PLAIN + "0,5,0\n1,0,0\n2,6,1\n3,0,9\n4,7,2\n"))
    assert trace.dropped == {"output 0": 2, "prompt 0": 1}
    assert trace.row.tolist() == [2, 4] and arrivals(trace) == [2, 4]
    assert "3 of 5 rows dropped (output 0: 2, prompt 0: 1)" in trace.notices
    message = mistake(write(tmp_path, PLAIN + "0,5,0\n1,0,3\n"))
    assert message == "no requests: all 2 rows dropped (output 0: 1, prompt 0: 1)"


@pytest.mark.parametrize(
    "cell",
    ["abc", "", " ", "NaN", "-3", "2.5", "inf", "0x10", "1/2", "9007199254740993", "9" * 5000, "1e999999999"],
)
@pytest.mark.parametrize("column", ["prompt_tokens", "output_tokens"])
def test_bad_counts_name_row_and_column(tmp_path: Path, cell: str, column: str) -> None:
    row = f"1,{cell},64" if column == "prompt_tokens" else f"1,64,{cell}"
    message = mistake(write(tmp_path, f"{PLAIN}0,512,128\n{row}\n2,1,1\n"))
    assert message.startswith(f"row 2, column {column}: expected a whole number of tokens")
    assert len(message) < 200
    assert ("empty cell" in message) == (cell.strip() in ("", "NaN"))


@pytest.mark.parametrize("value", ["true", "null", "NaN", "2.5", "-1", '"x"', "[1]", "{}", "1e30"])
def test_bad_counts_in_json(tmp_path: Path, value: str) -> None:
    good = '{"timestamp": 0, "input_length": 1, "output_length": 1}\n'
    path = write(tmp_path, good + good.replace('"output_length": 1', f'"output_length": {value}'))
    assert mistake(path).startswith("row 2, column output_length: expected a whole number")


def test_a_key_missing_from_a_record_is_an_empty_cell(tmp_path: Path) -> None:
    path = write(tmp_path, '{"timestamp": 0, "input_length": 1, "output_length": 1}\n{"timestamp": 1}\n')
    assert mistake(path).startswith("row 2, column input_length: ") and "an empty cell" in mistake(path)


def test_big_counts_are_exact(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, f"{PLAIN}0,{2**31},{2**53}\n1,3000000000,{2**53 - 1}\n"))
    assert trace.prompt.tolist() == [2**31, 3000000000]
    assert trace.output.tolist() == [2**53, 2**53 - 1]


@pytest.mark.parametrize("cell", ["abc", "inf", "-inf", "2023-11-16 18:15:46", "1e400"])
def test_bad_times_name_row_and_column(tmp_path: Path, cell: str) -> None:
    message = mistake(write(tmp_path, f"{PLAIN}0,1,1\n{cell},1,1\n"))
    assert message.startswith("row 2, column arrived_at: expected a finite number")


@pytest.mark.parametrize("cell", ["", "nan"])
def test_times_are_in_all_rows_or_in_none(tmp_path: Path, cell: str) -> None:
    message = mistake(write(tmp_path, f"{PLAIN}0,1,1\n1,1,1\n{cell},1,1\n"))
    assert message == "row 3, column arrived_at: expected a time (in all rows or in none), got an empty cell"
    assert read_trace(write(tmp_path, f"{PLAIN}{cell},1,1\n{cell},2,1\n")).arrived is None


@pytest.mark.parametrize("cell", ["yesterday", "17", "2024-13-01 00:00:00", "9999-01-01 00:00:00"])
def test_bad_dates_name_row_and_column(tmp_path: Path, cell: str) -> None:
    text = f"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,1,1\n{cell},1,1\n"
    assert mistake(write(tmp_path, text)).startswith("row 2, column TIMESTAMP: expected a date and time")


def test_a_clock_that_starts_elsewhere_is_rebased(tmp_path: Path) -> None:
    # Epochs keep what is written: as floats 1787520000.1 and 1787520001.1 are not 1 apart.
    for stamps, times in [
        (["1787520000.1", "1787520001.1"], [0.0, 1.0]),
        (["-3.5", "0"], [0.0, 3.5]),
        (["-4", "3"], [0.0, 7.0]),
        (["99999999", "100000000"], [99999999.0, 100000000.0]),
        (["100000000", "100000003"], [0.0, 3.0]),
        (["7", "8"], [7.0, 8.0]),
    ]:
        trace = read_trace(write(tmp_path, PLAIN + "".join(f"{stamp},1,1\n" for stamp in stamps)))
        assert arrivals(trace) == times
        told = [notice for notice in trace.notices if "re-based" in notice]
        assert len(told) == (times[0] == 0) and all(stamps[0] in notice for notice in told)
    trace = read_trace(write(tmp_path, PLAIN + "1787520000000000001,1,1\n1787520000000000003,1,1\n"), "ns")
    assert arrivals(trace) == [0, 2e-9]


def test_rows_out_of_order_are_sorted_stably(tmp_path: Path) -> None:
    rows = ["9,1,1\n", "3,2,1\n", "3,3,1\n", "1,9,0\n", "0.5,4,1\n"]
    trace = read_trace(write(tmp_path, PLAIN + "".join(rows)))
    assert arrivals(trace) == [0.5, 3, 3, 9]
    assert trace.row.tolist() == [4, 1, 2, 0] and trace.prompt.tolist() == [4, 2, 3, 1]
    assert any("out of order" in notice for notice in trace.notices)
    ordered = read_trace(write(tmp_path, PLAIN + "".join(rows[i] for i in (4, 3, 1, 2, 0))))
    assert not any("out of order" in notice for notice in ordered.notices)
    assert arrivals(ordered) == arrivals(trace) and ordered.prompt.tolist() == trace.prompt.tolist()


@pytest.mark.parametrize(
    ("rows", "reason"),
    [("5,1,1\n", "there is one request"), ("5,1,1\n5,2,2\n", "all 2 requests arrive at the same")],
)
def test_undefined_rate_is_said(tmp_path: Path, rows: str, reason: str) -> None:
    trace = read_trace(write(tmp_path, PLAIN + rows))
    assert trace.rate is None and trace.span == 0
    assert trace.notices[1].startswith(f"rate undefined: {reason}")


def test_files_that_are_no_trace(tmp_path: Path) -> None:
    assert "no such file" in mistake(tmp_path / "absent.csv")
    assert "is a directory" in mistake(tmp_path)
    assert mistake(write(tmp_path, "")) == "no requests: the file is empty"
    assert mistake(write(tmp_path, "\n  \n")) == "no requests: the file is empty"
    assert mistake(write(tmp_path, PLAIN)) == "no requests: the file holds a header only"
    assert "not text" in mistake(write(tmp_path, bytes(range(256))))
    assert "not text" in mistake(write(tmp_path, (PLAIN + "0,1,1\n").encode("utf-16")))
    assert "not text" in mistake(write(tmp_path, PLAIN + "0,1\0,1\n"))
    assert "damaged gzip" in mistake(write(tmp_path, gzip.compress(PLAIN.encode() * 99)[:-9]))
    assert "damaged gzip" in mistake(write(tmp_path, b"\x1f\x8bnonsense"))
    assert mistake(write(tmp_path, gzip.compress(b""))) == "no requests: the file is empty"


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # chmod does not stop root, under whom tests may run.
    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path, PLAIN)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert "cannot be read (Permission denied)" in mistake(path)


def test_malformed_lines(tmp_path: Path) -> None:
    assert "Expected 3 fields in line 3, saw 4" in mistake(write(tmp_path, PLAIN + "0,1,1\n1,1,1,1\n"))
    assert "more cells than the header" in mistake(write(tmp_path, PLAIN + "0,1,1,1\n1,1,1,1\n"))
    assert "column output_tokens" in mistake(write(tmp_path, PLAIN + "0,1\n"))
    assert "malformed CSV" in mistake(write(tmp_path, PLAIN + '0,"1,1\n'))
    twice = mistake(write(tmp_path, "arrived_at,prompt_tokens,prompt_tokens,output_tokens\n0,1,1,1\n"))
    assert twice == "column prompt_tokens occurs twice; keep one"
    record = '{"timestamp": 0, "input_length": 1, "output_length": 1}'
    for bad in ("{", "7", "[1]", f"{record},{record}", f"{record} {record}", "{" * 2000):
        assert mistake(write(tmp_path, f"{record}\n\n{bad}\n{record}\n")).startswith("row 2: not JSON Lines")
    assert "row 1: not JSON Lines" in mistake(write(tmp_path, json.dumps([1, {"a": 2}], indent=1)))
    assert "unknown columns" in mistake(write(tmp_path, "{}\n"))


def test_unknown_columns_say_found_accepted_and_nearest(tmp_path: Path) -> None:
    message = mistake(write(tmp_path, "Time,PromptTokenCount,GeneratedTokenCount\n0,1,1\n"))
    assert "columns found: Time, PromptTokenCount, GeneratedTokenCount" in message
    assert "nearest is vidur-old, which also needs CompletionTokenCount" in message
    assert all(",".join(fmt.columns) in message for fmt in FORMATS)
    headerless = mistake(write(tmp_path, "0,512,128\n1,256,64\n"))
    assert "the first line must name them" in headerless


def test_a_misnamed_time_column_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, "arrival,prompt_tokens,output_tokens\n0,1,1\n"))
    assert trace.arrived is None
    assert trace.notices == ["no arrival times (columns found: arrival, prompt_tokens, output_tokens)"]


def test_many_rows_are_read_by_columns(tmp_path: Path) -> None:
    # More than one chunk of JSON records; rows after the first chunk keep their numbers.
    count = 9000
    good = [{"timestamp": i, "input_length": i + 1, "output_length": 1} for i in range(count)]
    trace = read_trace(write(tmp_path, lines(*good)))
    assert len(trace) == count and trace.prompt[-1] == count and trace.rate == pytest.approx(1000)
    good[8000]["output_length"] = -1
    assert mistake(write(tmp_path, lines(*good))).startswith("row 8001, column output_length")


shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"no reference material at {SHARED}")


@shared
@pytest.mark.parametrize("name", sorted(p.name for p in SHARED.glob("faults/*-*")))
def test_shared_faults(name: str) -> None:
    path = SHARED / "faults" / name
    errors = {
        "20": "row 2, column prompt_tokens",
        "23": "no requests",
        "28": "columns found: Time, PromptTokenCount, GeneratedTokenCount",
    }
    times = {
        "01": [0, 113], "09": [0, 27.482, 30.535], "11": [0, 1.125, 2.375], "12": [0, 0.001, 0.008, 0.010],
        "14": [0] * 4, "15": [0] * 4, "17": [0, 3.5, 4.5], "19": [0, 3.25, 3.25, 9.5, 12],
        "29": [0, 0.2, 0.4],
    }  # fmt: skip
    if name[:2] in errors:
        assert errors[name[:2]] in mistake(path)
        return
    trace = read_trace(path)
    if name[:2] in times:
        assert arrivals(trace) == times[name[:2]]
    if name[:2] == "01":
        assert trace.dropped == {"output 0": 1} and trace.row.tolist() == [0, 2]
    if name[:2] == "26":
        assert trace.prompt.tolist() == [100000, 2147483648, 3000000000]
    assert (trace.prompt > 0).all() and (trace.output > 0).all()


@shared
@pytest.mark.parametrize("name", sorted(p.name for p in SHARED.glob("traces/formats/*")))
def test_shared_formats(name: str) -> None:
    path = SHARED / "traces" / "formats" / name
    if name.startswith("servegen_client"):  # rates and length laws per client: no requests in them
        assert "the first line must name them" in mistake(path) or "not JSON Lines" in mistake(path)
        return
    trace = read_trace(path)
    assert len(trace) >= 4 and not trace.dropped
    assert (trace.arrived is None) == name.startswith(("arxiv", "lmsys", "sharegpt"))
    table = SHARED / "traces" / f"{name.split('.')[0]}.csv.gz"
    if table.exists() and trace.format not in ("vidur", "lmsys"):
        # The same requests in the plain table, in seconds from the first (LLMServingSim: rounded).
        plain = read_trace(table, "s")
        assert trace.prompt.tolist() == plain.prompt[: len(trace)].tolist()
        assert trace.arrived is not None and plain.arrived is not None
        assert np.allclose(trace.arrived, plain.arrived[: len(trace)], atol=1e-6)


@shared
def test_shared_lmsys_rows_with_positive_lengths() -> None:
    # MODEL section 3: "the 59,915 rows themselves, with their own E[w] = 33306.76677".
    trace = read_trace(SHARED / "traces" / "lmsys_words_q500_a600.csv.gz")
    work = trace.prompt * trace.output + trace.output * (trace.output + 1) // 2
    assert len(trace) == 59915
    assert work.mean() == pytest.approx(33306.76677, abs=1e-5)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(-(10**13), 10**13), st.integers(0, 12)), min_size=1, max_size=5), st.booleans())
def test_rebasing_rounds_the_difference_of_what_is_written_once(parts: list[tuple[int, int]], exponent: bool) -> None:
    cells = [f"{number}E-{digits}" if exponent else str(Decimal(number).scaleb(-digits)) for number, digits in parts]
    cells = [cell if "." in cell or "E" in cell else f"{cell}.0" for cell in cells]
    stamps, dated = trace_module._stamps(cells, FORMATS[0], "x")
    assert stamps is not None and not dated
    assert [float(x) for x in stamps] == [float(cell) for cell in cells]
    found = trace_module._differences(stamps, cells, 0)
    assert [float(x) for x in found] == [float(Decimal(cell) - Decimal(cells[0])) for cell in cells]


def test_times_too_far_apart_for_numbers(tmp_path: Path) -> None:
    assert "further apart than numbers reach" in mistake(write(tmp_path, PLAIN + "-1.7e308,1,1\n1.7e308,1,1\n"))


CUT = PLAIN + "0,1,1\n2.5,2,1\n3,0,1\n7,4,1\n5,3,1\n"


def test_start_leaves_out_the_head_and_rebases(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, CUT), start=2.5)
    assert arrivals(trace) == [0, 2.5, 4.5] and trace.row.tolist() == [1, 4, 3]
    assert trace.dropped == {"prompt 0": 1, "before start": 1}
    assert trace.notices[-2:] == ["1 requests before 2.5 left out", "clock re-based: the first arrival, 2.5, is now 0"]
    assert trace.notices[1] == "3 requests over 4.5 slots: rate 0.4444 per slot"
    assert arrivals(read_trace(write(tmp_path, CUT), start=0)) == [0, 2.5, 5, 7]
    # the clock that start is read on has been re-based before
    late = read_trace(write(tmp_path, PLAIN + "1787520000,1,1\n1787520010,1,1\n1787520011,1,1\n"), "s", start=5)
    assert arrivals(late) == [0, 1] and late.row.tolist() == [1, 2]


def test_rows_takes_the_first_after_dropping_and_sorting(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, CUT), rows=3)
    assert arrivals(trace) == [0, 2.5, 5] and trace.prompt.tolist() == [1, 2, 3]
    assert trace.dropped == {"prompt 0": 1, "after the rows asked for": 1}
    assert "the first 3 of 4 requests taken, as asked" in trace.notices
    both = read_trace(write(tmp_path, CUT), start=1, rows=1)
    assert arrivals(both) == [0] and both.row.tolist() == [1]
    assert len(read_trace(write(tmp_path, PLAIN + ",1,1\n,2,1\n"), rows=1)) == 1
    assert read_trace(write(tmp_path, CUT), rows=4).dropped == {"prompt 0": 1}


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (CUT, {"rows": 5}, "5 rows asked for, but there are 4, prompt 0: 1 left out"),
        (CUT, {"rows": 4, "start": 1}, "4 rows asked for, but there are 3"),
        (CUT, {"rows": 0}, "rows must be a whole number >= 1, got 0"),
        (CUT, {"start": -1}, "start must be a finite time >= 0, got -1"),
        (CUT, {"start": float("nan")}, "start must be a finite time >= 0, got nan"),
        (CUT, {"start": 7.5}, "no requests: all arrive before start 7.5, the last at 7"),
        (PLAIN + ",1,1\n", {"start": 0}, "has no arrival times, so start cannot apply"),
    ],
)
def test_cuts_that_cannot_be(tmp_path: Path, text: str, options: dict[str, Any], words: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        read_trace(path, **options)
    assert str(caught.value).startswith(f"{path}: {words}")
