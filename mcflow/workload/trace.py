"""Request traces: the public formats, read into arrays of arrival, prompt and output.

A format is recognised by its columns (`FORMATS`), which also fix its unit of time. Token
counts are exact or an error with row and column; times come out in slots, one slot to the
second where the source has a physical unit. Rows that are no request (a zero length) are
dropped with a count, and everything else that was done to the file is told in a notice.

Longer than most files here, because a format, its cells and its errors are read together.
"""

from __future__ import annotations

import csv
import dataclasses
import difflib
import gzip
import io
import json
import math
import re
import warnings
import zlib
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import numpy as np

from mcflow.errors import InputError

#: Stamps per slot. Without a physical unit a stamp is a slot; else a slot is a second.
UNITS = {"slot": 1, "s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}

#: Largest token count: beyond it a float somewhere down the line would round.
MOST = 2**53

#: A clock that starts this late (slots or seconds, three years) does not start with its trace.
EPOCH = 10**8

#: A first arrival after so many mean gaps is told: most clocks start with their trace.
QUIET = 10

#: JSON records parsed at a time: memory follows the columns and not the file, and so few objects
#: live at once that Python's garbage collector is not set off (which halves the time).
CHUNK = 128

ABSENT = {"", "nan", "na", "n/a", "nat", "null", "none"}


@dataclass(frozen=True)
class Format:
    """Columns of one source; a file without the time column is read as one without times."""

    name: str
    time: str | None
    prompt: str
    output: str
    unit: str = "s"
    also: str | None = None  # a column that tells it from a format of the same names
    dates: bool = False  # stamps may be dates
    wall: bool = False  # the clock does not start with the trace
    words: bool = False  # lengths are words

    @property
    def columns(self) -> list[str]:
        """Column names in the source's spelling."""
        return [name for name in (self.time, self.prompt, self.output, self.also) if name]


FORMATS = (
    Format("plain", "arrived_at", "prompt_tokens", "output_tokens", unit="slot"),
    Format("azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", dates=True, wall=True),
    Format("burstgpt", "Timestamp", "Request tokens", "Response tokens", wall=True),
    Format("bailian", "timestamp", "input_length", "output_length", also="chat_id"),
    Format("mooncake", "timestamp", "input_length", "output_length", unit="ms"),
    Format("vidur", "arrived_at", "num_prefill_tokens", "num_decode_tokens"),
    Format("vidur-old", "Time", "PromptTokenCount", "CompletionTokenCount"),
    Format("servegen", "timestamp", "input_tokens", "output_tokens"),
    Format("llmservingsim", "arrival_time_ns", "input_toks", "output_toks", unit="ns"),
    Format("lmsys", None, "question_length", "answer_length", words=True),
)


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests in order of arrival (of the file, where it has no times).

    Attributes
    ----------
    arrived : ndarray of float64, shape (n,), or None
        Arrival times in slots, not decreasing; None when the source has no times.
    prompt, output : ndarray of int64, shape (n,)
        Lengths in tokens, all >= 1 (words for `lmsys`).
    row : ndarray of int64, shape (n,)
        Row number in the source, from 0, dropped rows counted: the request's id.
    unit : str or None
        Unit of the source's stamps: slot, s, ms, us or ns (dates are s); None without times.
    format : str
        Name in `FORMATS`.
    dropped : dict of str to int
        Rows left out, by reason.
    notices : list of str
        What a reader of the results should know, one line each.
    source : str
        Path of the file.
    """

    arrived: np.ndarray | None
    prompt: np.ndarray
    output: np.ndarray
    row: np.ndarray
    unit: str | None
    format: str
    dropped: dict[str, int]
    notices: list[str]
    source: str

    def __len__(self) -> int:
        return len(self.prompt)

    @property
    def length_unit(self) -> str:
        """What lengths are counted in: tokens, or words."""
        return "words" if any(fmt.words for fmt in FORMATS if fmt.name == self.format) else "tokens"

    @property
    def span(self) -> float | None:
        """Slots from the first to the last arrival, None without times."""
        return None if self.arrived is None else float(self.arrived[-1] - self.arrived[0])

    @property
    def rate(self) -> float | None:
        """Requests per slot, one over the mean gap; None where no time passes."""
        return (len(self) - 1) / self.span if self.span else None

    def scaled(self, rate: float) -> str:
        """Notice that the times are scaled to another rate."""
        per = "slot" if self.unit == "slot" else "s"
        return f"arrival times scaled to a mean rate of {rate:g} requests/{per}, from {self.rate:.4g}"


def read_trace(
    path: str | Path,
    time_unit: str | None = None,
    *,
    start: float | None = None,
    rows: int | None = None,
    timed: bool = False,
) -> Trace:
    """Read a trace: CSV or JSON Lines, gzipped or not, in any of `FORMATS`.

    Parameters
    ----------
    path : str or Path
    time_unit : {"slot", "s", "ms", "us", "ns"}, optional
        Unit of numeric stamps, in place of the format's own (plain CSV: slot).
    start : float, optional
        Leave out what arrives before this time (slots or seconds of the trace's clock, which may
        have been re-based already); the first arrival that is left is then time 0.
    rows : int, optional
        Take so many requests, the first ones after all dropping and sorting.
    timed : bool
        Whether the requests go where time is in seconds: plain CSV then is too, and slots are no unit.

    Raises
    ------
    InputError
        If the file cannot be read or recognised, a cell is not what its column needs (with row,
        counted from 1, and column), no request is left, or there are fewer than `rows`.
    """
    where = str(path)
    if start is not None and not (math.isfinite(start) and start >= 0):
        raise InputError(f"start must be a finite time >= 0, got {start:g}", where=where)
    if rows is not None and rows < 1:
        raise InputError(f"rows must be a whole number >= 1, got {rows}", where=where)
    if time_unit is not None and time_unit not in UNITS:
        raise InputError(f"unknown time unit {time_unit!r}; accepted: {', '.join(UNITS)}", where=where)
    if timed and time_unit == "slot":
        raise InputError("slot is no unit where iterations take real time; give s, ms, us or ns", where=where)
    text = _text(path)
    fmt, names, columns = (_json if text[0] in "{[" else _csv)(text, where)
    folded = [_fold(name) for name in names]

    def cells(name: str) -> list[Any]:
        if folded.count(_fold(name)) > 1:
            raise InputError(f"column {name} occurs twice; keep one", where=where)
        return columns[folded.index(_fold(name))]

    prompt, output = (_counts(cells(name), name, where) for name in (fmt.prompt, fmt.output))
    if not len(prompt):
        raise InputError("no requests: the file holds a header only", where=where)
    stamped = fmt.time is not None and _fold(fmt.time) in folded
    times = cells(str(fmt.time)) if stamped else []
    stamps, dated = _stamps(times, fmt, where) if stamped else (None, False)

    keep = (prompt > 0) & (output > 0)
    reasons = {"output 0": int((output == 0).sum()), "prompt 0": int(((prompt == 0) & (output > 0)).sum())}
    dropped = {reason: count for reason, count in reasons.items() if count}
    told = ", ".join(f"{reason}: {count}" for reason, count in dropped.items())
    row = np.flatnonzero(keep).astype(np.int64)
    if not len(row):
        raise InputError(f"no requests: all {len(keep)} rows dropped ({told})", where=where)
    notices = [f"{len(keep) - len(row)} of {len(keep)} rows dropped ({told})"] if dropped else []
    if fmt.words:
        notices.append(f"format {fmt.name}: lengths are numbers of words, not of tokens")

    usual = "s" if timed and fmt.unit == "slot" else fmt.unit
    unit = None if stamps is None else "s" if dated else time_unit or usual
    if time_unit and unit != time_unit:
        notices.append(f"time unit {time_unit} not used: {'times are dates' if dated else 'no times'}")
    arrived = None
    if stamps is None:
        reason = f"column {fmt.time} is empty" if stamped else _listed(names)
        notices.append(f"no arrival times ({reason})")
    else:
        stamps, rebased = _rebase(stamps[row], [times[i] for i in row], fmt, dated, str(unit), where)
        notices += rebased
        arrived = stamps / (UNITS["ns"] if dated else UNITS[str(unit)])
        if (np.diff(arrived) < 0).any():
            order = np.argsort(arrived, kind="stable")
            arrived, row = arrived[order], row[order]
            notices.append("rows out of order: sorted by arrival time, file order kept on ties")
    trace = Trace(arrived, prompt[row], output[row], row, unit, fmt.name, dropped, notices, where)
    trace = _cut(trace, start, rows)
    if arrived is not None:
        trace.notices[:0] = _clock(trace, time_unit, dated, timed)
        trace.notices.extend(_quiet_start(trace))
    return trace


def _cut(trace: Trace, start: float | None, rows: int | None) -> Trace:
    """A trace without what arrives before `start`, then without what comes after `rows` requests."""
    dropped, notices, where = dict(trace.dropped), list(trace.notices), trace.source
    first, arrived = 0, trace.arrived
    if start is not None:
        if arrived is None:
            raise InputError("has no arrival times, so start cannot apply; leave it out", where=where)
        first = int(np.searchsorted(arrived, start))
        if first == len(trace):
            raise InputError(
                f"no requests: all arrive before start {start:.15g}, the last at {arrived[-1]:.15g}", where=where
            )
        if first:
            dropped["before start"] = first
            notices.append(f"{first} requests before {start:.15g} left out")
        if arrived[first]:
            notices.append(f"clock re-based: the first arrival, {arrived[first]:.15g}, is now 0")
            arrived = arrived - arrived[first]
    left = len(trace) - first
    if rows is not None and rows > left:
        why = "".join(f", {reason}: {count} left out" for reason, count in dropped.items())
        raise InputError(f"{rows} rows asked for, but there are {left}{why}; ask for at most {left}", where=where)
    last = len(trace) if rows is None else first + rows
    if last < len(trace):
        dropped["after the rows asked for"] = len(trace) - last
        notices.append(f"the first {rows} of {left} requests taken, as asked")
    part = slice(first, last)
    return dataclasses.replace(
        trace, arrived=None if arrived is None else arrived[part], prompt=trace.prompt[part],
        output=trace.output[part], row=trace.row[part], dropped=dropped, notices=notices,
    )  # fmt: skip


def _text(path: str | Path) -> str:
    """Contents of a text file, gunzipped where needed, without leading blanks; never empty."""
    where = str(path)
    try:
        raw = Path(path).read_bytes()
    except FileNotFoundError:
        raise InputError("no such file; check the path", where=where) from None
    except IsADirectoryError:
        raise InputError("is a directory; name a trace file inside it", where=where) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot be read ({reason}); check its permissions", where=where) from None
    if raw[:2] == b"\x1f\x8b":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error):
            raise InputError("damaged gzip file; fetch or compress it again", where=where) from None
    try:
        text = raw.decode("utf-8-sig").lstrip()
        binary = "\0" in text
    except UnicodeDecodeError:
        binary = True
    if binary:
        raise InputError("not text; accepted: CSV or JSON Lines in UTF-8, plain or gzipped", where=where)
    if not text:
        raise InputError("no requests: the file is empty", where=where)
    return text


def _csv(text: str, where: str) -> tuple[Format, list[str], list[list[Any]]]:
    """Format, column names and columns of text cells, in file order."""
    import pandas as pd

    try:
        names = next(csv.reader(io.StringIO(text, newline="")))
        fmt = _recognise(names, where)
        with warnings.catch_warnings():
            # pandas only warns where the rows have more cells than the header, and cuts them off.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False, index_col=False)
    except (csv.Error, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        reason = str(error).strip().rpartition("C error: ")[2]
        raise InputError(f"malformed CSV ({reason}); make lines match the header", where=where) from None
    except pd.errors.ParserWarning:
        raise InputError("malformed CSV (rows have more cells than the header)", where=where) from None
    needed = {_fold(name) for name in fmt.columns}
    return fmt, names, [frame.iloc[:, i].tolist() if _fold(name) in needed else [] for i, name in enumerate(names)]


def _json(text: str, where: str) -> tuple[Format, list[str], list[list[Any]]]:
    """Format, names and columns of JSON Lines, by the keys of the first record."""
    # Hash and token ids are most of such a file and none of our business.
    lines = [line for line in re.sub(r"\[[\d\s,.eE+-]*\]", "[]", text).split("\n") if line.strip()]
    names: list[str] = list(_records(lines[:1], 1, where)[0])
    fmt = _recognise(names, where)
    columns: list[list[Any]] = [[] for _ in names]
    needed = {_fold(name) for name in fmt.columns}
    for start in range(0, len(lines), CHUNK):
        records = _records(lines[start : start + CHUNK], start + 1, where)
        for name, column in zip(names, columns, strict=True):
            if _fold(name) in needed:
                column.extend([record.get(name) for record in records])
    return fmt, names, columns


def _records(lines: list[str], first: int, where: str) -> list[dict[str, Any]]:
    """Parse lines together, and one by one where that fails, to name the row."""
    with suppress(ValueError, RecursionError):
        records = json.loads(f"[{','.join(lines)}]")
        if len(records) == len(lines) and all(type(record) is dict for record in records):
            return list(records)
    for row, line in enumerate(lines, first):
        try:
            whole = type(json.loads(line)) is dict
        except (ValueError, RecursionError):
            whole = False
        if not whole:
            raise InputError("not JSON Lines: expected one object {...} a line", where=f"{where}: row {row}")
    raise InputError("not JSON Lines: expected one object {...} a line", where=where)


def _fold(name: str) -> str:
    """Column name without regard to case, blanks around it, and blank against underscore."""
    return name.strip().casefold().replace(" ", "_")


def _listed(names: list[str]) -> str:
    """The columns a file has, in one line of bounded length."""
    shown = ", ".join(name.strip()[:40] or "(no name)" for name in names[:12])
    return f"columns found: {shown}{', ...' if len(names) > 12 else ''}"


def _recognise(names: list[str], where: str) -> Format:
    """First format whose columns are all there, else the first with all but the times."""
    found = {_fold(name) for name in names}
    for optional in (False, True):
        for fmt in FORMATS:
            needed = [name for name in fmt.columns if not (optional and name == fmt.time)]
            if found.issuperset(map(_fold, needed)):
                return fmt

    def likeness(fmt: Format) -> float:
        def best(need: str) -> float:
            return max((difflib.SequenceMatcher(None, _fold(need), name[:40]).ratio() for name in found), default=0.0)

        return sum(map(best, fmt.columns)) / len(fmt.columns)

    nearest = max(FORMATS, key=likeness)
    missing = [name for name in nearest.columns if _fold(name) not in found]
    cure = (
        f"nearest is {nearest.name}, which also needs {', '.join(missing)}: rename or add"
        if likeness(nearest) > 0.6
        else "the first line must name them"
    )
    accepted = "; ".join(f"{fmt.name} {','.join(fmt.columns)}" for fmt in FORMATS)
    raise InputError(f"unknown columns ({_listed(names)}); {cure}. Accepted: {accepted}", where=where)


def _shown(cell: Any) -> str:
    """A cell as an error message shows it."""
    text = "an empty cell" if _absent(cell) else repr(cell)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _absent(cell: Any) -> bool:
    """Whether a cell holds nothing (JSON null and NaN included)."""
    if type(cell) is str:
        return cell.strip().casefold() in ABSENT
    return cell is None or (type(cell) is float and math.isnan(cell))


def _counts(cells: list[Any], column: str, where: str) -> np.ndarray:
    """Token counts, int64, shape (rows,); exact, or an error with the first bad row."""
    kinds = set(map(type, cells))
    # The rest (2.5, 1e3, true, null) is looked at cell by cell.
    for whole in (int, _without_point) if kinds == {str} else (int,) if kinds == {int} else ():
        with suppress(ValueError):
            values = list(map(whole, cells))
            if kinds == {str} and not _decimals("".join(cells)):
                break
            if min(values) >= 0 and max(values) <= MOST:
                return np.array(values, dtype=np.int64)
            break
    counts = np.zeros(len(cells), dtype=np.int64)
    for i, cell in enumerate(cells):
        value = _decimal(cell)
        if value is None or not 0 <= value <= MOST or value != value.to_integral_value():
            expected = f"expected a whole number of tokens from 0 to 2^53, got {_shown(cell)}"
            raise InputError(expected, where=f"{where}: row {i + 1}, column {column}")
        counts[i] = int(value)
    return counts


def _decimals(text: str) -> bool:
    """Whether a text is free of what Python takes for numbers beyond decimals: 1_000, digits of other scripts."""
    return text.isascii() and "_" not in text


def _without_point(cell: str) -> int:
    """The whole number in a cell such as 512.0."""
    return int(cell[:-2] if cell.endswith(".0") and cell[-3:-2].isdigit() else cell)


def _stamps(cells: list[Any], fmt: Format, where: str) -> tuple[np.ndarray | None, bool]:
    """Time stamps, int64 or float64, shape (rows,), and whether they are dates (then in ns).

    None when every cell is empty: a source without times.
    """
    kinds = set(map(type, cells))
    plain = kinds <= {int, float, str} and _decimals("".join(cell for cell in cells if type(cell) is str))
    if plain and kinds in ({int}, {str}):
        with suppress(ValueError, OverflowError):
            exact = np.array(list(map(int, cells)), dtype=np.int64)
            if max(-int(exact.min()), int(exact.max())) < 2**62:  # so that differences cannot wrap
                return exact, False
    if plain:
        with suppress(ValueError, OverflowError):
            numbers = np.array(list(map(float, cells)))
            if np.isfinite(numbers).all():
                return numbers, False
    dated = fmt.dates and _decimal(cells[0]) is None
    if dated:
        import pandas as pd

        dates = pd.to_datetime(list(map(str, cells)), format="ISO8601", utc=True, errors="coerce")
        wrong = np.asarray(dates.isna() | (dates.year < 1678) | (dates.year > 2261))  # what 64-bit ns hold
        if not wrong.any():
            return dates.as_unit("ns").asi8, True
    absent = np.fromiter(map(_absent, cells), dtype=bool, count=len(cells))
    if absent.all():
        return None, False

    def bad(row: int, expected: str) -> InputError:
        place = f"{where}: row {row + 1}, column {fmt.time}"
        return InputError(f"expected {expected}, got {_shown(cells[row])}", where=place)

    if absent.any():
        raise bad(int(absent.argmax()), "a time (in all rows or in none)")
    if dated:
        raise bad(int(wrong.argmax()), "a date and time such as 2023-11-16 18:15:46.68")
    exacts = [_decimal(cell) for cell in cells]
    numbers = np.array([math.nan if value is None else float(value) for value in exacts])
    if not np.isfinite(numbers).all():
        raise bad(int((~np.isfinite(numbers)).argmax()), "a finite number")
    return numbers, False


def _decimal(cell: Any) -> Decimal | None:
    """A cell as the finite decimal it is written as, None where it is none."""
    if type(cell) not in (int, float, str):  # True is no number here
        return None
    try:
        value = Decimal(str(cell).strip()) if _decimals(str(cell)) else Decimal("nan")
    except (InvalidOperation, ValueError):
        return None
    return value if value.is_finite() else None


def _rebase(
    stamps: np.ndarray, cells: list[Any], fmt: Format, dated: bool, unit: str, where: str
) -> tuple[np.ndarray, list[str]]:
    """Count from the first arrival where the clock does not start with the trace."""
    earliest = int(stamps.argmin())
    first = stamps[earliest] / UNITS[unit]
    if first == 0 or not (fmt.wall or dated or first < 0 or first >= EPOCH):
        return stamps, []
    if stamps.dtype == np.int64:
        stamps = stamps - stamps[earliest]
    else:  # a float holds an epoch only to 0.2 us: subtract what is written, then round
        stamps = _differences(stamps, cells, earliest)
        if not np.isfinite(stamps).all():
            raise InputError(f"column {fmt.time}: times lie further apart than numbers reach", where=where)
    return stamps, [f"clock re-based: the first arrival, {str(cells[earliest]).strip()}, is now 0"]


def _differences(stamps: np.ndarray, cells: list[Any], origin: int) -> np.ndarray:
    """Times as written minus that of row `origin`, rounded once; float64, shape (rows,)."""
    texts = list(map(str, cells))
    digits = max(len(text.partition(".")[2]) for text in texts)
    # Below 2^51 units of the last digit the nearest whole number of them is the one written.
    if digits <= 22 and not any("e" in text or "E" in text for text in texts):
        units = np.rint(stamps * 10.0**digits)
        if np.abs(units).max() < 2**51:
            return (units - units[origin]) / 10.0**digits
    written = [_decimal(cell) or Decimal(0) for cell in cells]
    return np.array([float(value - written[origin]) for value in written])


def _clock(trace: Trace, asked: str | None, dated: bool, timed: bool) -> list[str]:
    """The unit taken and the rate that follows from it."""
    why = f"format {trace.format}" if trace.unit != asked else "as asked"
    if trace.format == "plain" and not asked:
        why = "plain CSV; give a time unit, s, ms, us or ns, if it is another"
    plural, per = ("slots", "slot") if trace.unit == "slot" else ("s", "s")
    taken = "times are dates" if dated else f"times taken in {plural if per == 'slot' else trace.unit}"
    notices = [f"{taken} ({why}){'' if per == 'slot' or timed else '; 1 slot = 1 s'}"]
    if trace.rate:
        over = f"{len(trace)} requests over {trace.span:.6g} {plural}"
        return [*notices, f"{over}: rate {trace.rate:.4g} per {per}"]
    same = f"all {len(trace)} requests arrive at the same time" if len(trace) > 1 else "there is one request"
    return [*notices, f"rate undefined: {same}"]


def _quiet_start(trace: Trace) -> list[str]:
    """Say that nothing comes for long (`QUIET` mean gaps) after time 0."""
    assert trace.arrived is not None
    first, unit = float(trace.arrived[0]), "slots" if trace.unit == "slot" else "s"
    if not trace.rate or first * trace.rate <= QUIET:
        return []
    return [f"nothing arrives in the first {first:.6g} {unit}; with start {first:.15g} they are left out"]
